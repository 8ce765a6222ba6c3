//! The way in: what a function does is done here, so that nothing of it reaches the program but its answer.

use crate::errno::{Answer, Errno};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// This process was made by `fork` of one that used the library: its threads are not here, and what they hold never comes back.
static WAS_FORKED: AtomicBool = AtomicBool::new(false);
static WATCHES: Once = Once::new();

extern "C" fn note_fork() {
    WAS_FORKED.store(true, Ordering::Relaxed);
}

/// Has a fork noticed from now on.
pub fn watch_forks() {
    WATCHES.call_once(|| {
        // SAFETY: what is called in the child does nothing but write to memory of its own.
        // It fails without memory; then a fork is not noticed.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    });
}

/// Does it, and answers as C's libraries do: what came of it, or a negative number of `errno.h`. A panic is `EIO`.
pub fn answer(work: impl FnOnce() -> Answer<i64>) -> i64 {
    if WAS_FORKED.load(Ordering::Relaxed) {
        return -i64::from(libc::EIO);
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(Errno(number))) => -i64::from(number),
        Err(_) => -i64::from(libc::EIO),
    }
}

/// The same, of what answers with an `int`.
pub fn answer_int(work: impl FnOnce() -> Answer<i64>) -> c_int {
    answer(work) as c_int
}

/// The same, of what answers with nothing but whether it was done.
pub fn answer_done(work: impl FnOnce() -> Answer<()>) -> c_int {
    answer_int(|| work().map(|()| 0))
}

/// The same, of what answers nothing at all.
pub fn answer_nothing(work: impl FnOnce() -> Answer<()>) {
    let _ = answer_done(work);
}

/// What a program is told while something goes on: how much of how much is done, and what it handed over for that.
pub type Progress = Option<extern "C" fn(u64, u64, *mut c_void) -> c_int>;

/// Tells that so much of so much is done; whoever is told may want no more of it.
///
/// # Errors
/// What they answer with.
pub fn tell(progress: Progress, (done, total): (u64, u64), handed: *mut c_void) -> Answer<()> {
    match progress.map_or(0, |progress| progress(done, total, handed)) {
        wish if wish < 0 => Err(Errno(-wish)),
        _ => Ok(()),
    }
}

/// Tells that it is done, which no wish changes any more.
pub fn tell_done(progress: Progress, handed: *mut c_void) {
    let _ = tell(progress, (1, 1), handed);
}

/// Starts something that makes threads, which are to have none of the program's signals.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are valid, and filled before they are read.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = start();
    // SAFETY: it was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_answer_too() {
        assert_eq!(answer(|| Ok(7)), 7);
        assert_eq!(answer(|| Err(Errno(libc::ENOENT))), -2);
        assert_eq!(answer_done(|| panic!("a bug")), -libc::EIO);
    }

    #[test]
    fn a_child_is_refused() {
        watch_forks();
        // SAFETY: the child does nothing but ask and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_refused = answer(|| Ok(0)) == -i64::from(libc::EIO);
            // SAFETY: it ends this process.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's, and the status is written to a place of its own.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(answer(|| Ok(0)), 0);
    }
}
