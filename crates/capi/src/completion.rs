//! What a program waits for.

use crate::errno::{Answer, Errno};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

/// What is called when an operation has ended: with the completion, and what the program wants to be told with it.
pub type Callback = extern "C" fn(*mut c_void, *mut c_void);

/// A place of the program's, which this library only hands back.
#[derive(Clone, Copy, Debug)]
pub struct Handed(pub *mut c_void);

// SAFETY: it is never looked into, and the program says that it may be had in another thread.
#[allow(unsafe_code)]
unsafe impl Send for Handed {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Handed {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    /// Its callback is told.
    Telling(i64),
    Ended(i64),
}

/// See the module's documentation. The program has one share of it, and each operation that will end it another.
#[derive(Debug)]
pub struct Completion {
    callback: Option<Callback>,
    argument: Handed,
    /// It is one that the program made and knows.
    is_the_program_s: bool,
    /// The thread that ends it: it cannot wait for it too.
    worker: OnceLock<ThreadId>,
    state: Mutex<State>,
    ended: Condvar,
}

impl Completion {
    /// One that calls that.
    #[must_use]
    pub fn new(callback: Option<Callback>, argument: *mut c_void) -> Arc<Completion> {
        Completion::make(callback, argument, true)
    }

    /// One that only this library waits for.
    #[must_use]
    pub fn unknown() -> Arc<Completion> {
        Completion::make(None, std::ptr::null_mut(), false)
    }

    fn make(callback: Option<Callback>, argument: *mut c_void, is_the_program_s: bool) -> Arc<Completion> {
        let (worker, state, ended) = (OnceLock::new(), Mutex::new(State::Pending), Condvar::new());
        Arc::new(Completion { callback, argument: Handed(argument), is_the_program_s, worker, state, ended })
    }

    /// Whether the program knows it.
    #[must_use]
    pub fn is_the_program_s(&self) -> bool {
        self.is_the_program_s
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which thread ends it.
    pub fn is_left_to(&self, worker: ThreadId) {
        // What is used twice is so by a mistake of the program's.
        let _ = self.worker.set(worker);
    }

    /// Ends it, once: calls the callback, then `listed`, and then lets go on who waits.
    pub fn end(self: &Arc<Completion>, result: i64, listed: impl FnOnce()) {
        *self.state() = State::Telling(result);
        if let Some(callback) = self.callback {
            callback(self.handle(), self.argument.0);
        }
        listed();
        *self.state() = State::Ended(result);
        self.ended.notify_all();
    }

    /// The same, of what failed or brought something.
    pub fn end_with(self: &Arc<Completion>, result: Answer<i64>) {
        self.end(result.unwrap_or_else(|Errno(number)| -i64::from(number)), || {});
    }

    /// Waits until it has ended, and answers with what.
    ///
    /// # Errors
    /// `EDEADLK`: this is the thread that has to end it.
    pub fn wait(&self) -> Answer<i64> {
        let mut state = self.state();
        loop {
            match *state {
                State::Ended(result) => return Ok(result),
                _ if self.worker.get() == Some(&std::thread::current().id()) => {
                    return Err(Errno(libc::EDEADLK));
                }
                _ => state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether it is done. The callback may ask already.
    #[must_use]
    pub fn is_done(&self) -> bool {
        *self.state() != State::Pending
    }

    /// With what it ended; 0 before. The callback may ask already.
    #[must_use]
    pub fn result(&self) -> i64 {
        match *self.state() {
            State::Pending => 0,
            State::Telling(result) | State::Ended(result) => result,
        }
    }

    /// What is told with it.
    #[must_use]
    pub fn argument(&self) -> *mut c_void {
        self.argument.0
    }

    /// What the program knows it by.
    #[must_use]
    pub fn handle(self: &Arc<Completion>) -> *mut c_void {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// The program's share, as what it knows it by.
    #[must_use]
    pub fn into_handle(self: Arc<Completion>) -> *mut c_void {
        Arc::into_raw(self).cast_mut().cast()
    }
}

/// A share of what the program knows by that.
///
/// # Errors
/// It is null.
///
/// # Safety
/// It came from [`Completion::into_handle`], and was not released.
#[allow(unsafe_code)]
pub unsafe fn share(handle: *mut c_void) -> Answer<Arc<Completion>> {
    if handle.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let completion = handle.cast::<Completion>().cast_const();
    // SAFETY: as the caller promises: so the program's share is still there.
    unsafe {
        Arc::increment_strong_count(completion);
        Ok(Arc::from_raw(completion))
    }
}

/// Gives the program's share back.
///
/// # Errors
/// It is null.
///
/// # Safety
/// It came from [`Completion::into_handle`], and was not released.
#[allow(unsafe_code)]
pub unsafe fn release(handle: *mut c_void) -> Answer<()> {
    if handle.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    drop(unsafe { Arc::from_raw(handle.cast::<Completion>().cast_const()) });
    Ok(())
}
