//! Time as the state machines see it.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment of a monotonic clock that whoever drives the state machine owns: nanoseconds since an
/// arbitrary start. Never a wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    /// Nanoseconds since the driver's arbitrary start.
    pub nanoseconds: u64,
}

impl Instant {
    /// The time that has passed since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanoseconds.saturating_sub(earlier.nanoseconds))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant { nanoseconds: self.nanoseconds.saturating_add(duration.as_nanos() as u64) }
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, duration: Duration) -> Instant {
        Instant { nanoseconds: self.nanoseconds.saturating_sub(duration.as_nanos() as u64) }
    }
}
