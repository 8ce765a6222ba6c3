//! Refused connections, logged in sum: keys cost nothing, so a stranger can have as many refused as he likes.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The shortest time between two lines.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// What was refused at one port.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since the last line.
    count: u64,
    logged_at: Option<Instant>,
}

impl Refusals {
    /// Notes one. Some: how many there were since the last line, as it is time for another.
    fn note(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        let is_due = state.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_PAUSE);
        is_due.then(|| {
            state.logged_at = Some(now);
            std::mem::take(&mut state.count)
        })
    }

    /// Notes one. Some: it is time for a line, and how many there were since the last one.
    pub(crate) fn due(&self) -> Option<u64> {
        self.note(Instant::now())
    }

    /// Notes one, and logs it, or those since the last line.
    pub(crate) fn log(&self, port: &dyn std::fmt::Display, from: SocketAddr, error: &dyn std::fmt::Display) {
        match self.due() {
            None => {}
            Some(1) => tracing::warn!(%port, %from, %error, "a connection is refused"),
            Some(count) => {
                tracing::warn!(%port, %from, %error, count, "connections were refused; this is the last of them");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_at_once_one_line_tells() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.note(now), Some(1), "the first is told at once");
        for later in 1..10 {
            assert_eq!(refusals.note(now + LOG_PAUSE / 10 * later), None);
        }
        assert_eq!(refusals.note(now + LOG_PAUSE), Some(10));
        assert_eq!(refusals.note(now + LOG_PAUSE * 2), Some(1));
        let refusals = Refusals::default();
        assert_eq!((refusals.due(), refusals.due()), (Some(1), None));
    }
}
