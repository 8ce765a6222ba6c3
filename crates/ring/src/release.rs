//! What a process held that has just ended.

use std::time::{Duration, Instant};

/// How long files and sockets may stay in use by a process that has ended: the kernel takes an `io_uring` down, and lets go of
/// what it held, some time after the process has exited, and later when the machine is busy.
pub const FREE_WITHIN: Duration = Duration::from_secs(5);
/// How often it is tried meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Tries something again that fails because a drive or an address is in use, for as long as `limit`.
///
/// # Errors
/// Those of the last attempt.
pub fn when_free<T, E>(
    limit: Duration,
    is_in_use: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && started.elapsed() < limit => std::thread::sleep(TRY_EVERY),
            outcome => return outcome,
        }
    }
}
