//! What a process held that has just ended.

use std::time::{Duration, Instant};

/// How long files and sockets may stay in use by a process that has ended: the kernel takes an `io_uring` down, and lets go of
/// what it held, some time after the process has exited, and later when the machine is busy.
pub const FREE_WITHIN: Duration = Duration::from_secs(5);
/// The pauses between attempts, the first and the longest: most often it is let go of within milliseconds.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

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
    let mut pauses = pauses();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && started.elapsed() < limit => {
                std::thread::sleep(pauses.next().unwrap_or(PAUSE_MAX));
            }
            outcome => return outcome,
        }
    }
}

/// The pauses between attempts, without end.
fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(PAUSE_MIN), |pause| Some((*pause * 2).min(PAUSE_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_short_at_first_and_double() {
        let pauses: Vec<u128> = pauses().take(7).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 50, 50]);
    }

    #[test]
    fn what_is_in_use_is_tried_until_it_is_free_and_nothing_else_is() {
        let outcome = |limit, attempts: [Result<u32, &'static str>; 3]| {
            let mut attempts = attempts.into_iter();
            when_free(limit, |error| *error == "in use", || attempts.next().unwrap())
        };
        assert_eq!(outcome(FREE_WITHIN, [Err("in use"), Err("in use"), Ok(3)]), Ok(3));
        assert_eq!(outcome(FREE_WITHIN, [Err("in use"), Err("gone"), Ok(3)]), Err("gone"));
        assert_eq!(outcome(Duration::ZERO, [Err("in use"), Ok(2), Ok(3)]), Err("in use"));
    }
}
