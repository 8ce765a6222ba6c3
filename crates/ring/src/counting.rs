//! An allocator that counts, for tests that hold the data path to no allocation per operation, and what is fed by strangers
//! to a bound of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes that this thread was given, less those that it gave back, which may have been another's.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most of them since that was asked for last.
    static HELD_MAX: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with a count of what it is asked for. A test makes it its own:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: ring::counting::CountingAllocator = ring::counting::CountingAllocator;
///
/// let before = ring::counting::allocations();
/// drop(std::hint::black_box(Box::new(7)));
/// assert_eq!(ring::counting::allocations() - before, 1);
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

/// How often any thread of this process asked for memory or for more of it, where [`CountingAllocator`] is the
/// allocator.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// What `run` answers, and how many bytes more than before this thread held meanwhile at the most, where [`CountingAllocator`]
/// is the allocator; elsewhere 0.
pub fn bytes_held<R>(run: impl FnOnce() -> R) -> (R, usize) {
    let before = HELD.get();
    HELD_MAX.set(before);
    let result = run();
    (result, usize::try_from(HELD_MAX.get() - before).unwrap_or(0))
}

fn was_given(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    let held = HELD.get().wrapping_add_unsigned(bytes);
    HELD.set(held);
    HELD_MAX.set(HELD_MAX.get().max(held));
}

fn gives_back(bytes: usize) {
    HELD.set(HELD.get().wrapping_sub_unsigned(bytes));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        was_given(layout.size());
        // SAFETY: the caller keeps the promises of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        was_given(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both may be there for a moment.
        was_given(bytes);
        gives_back(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gives_back(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
