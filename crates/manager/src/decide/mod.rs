//! What is to be done, as functions of the map, of what was seen before, and of a moment.

pub mod cuts;
pub mod full;
pub mod membership;
pub mod removed_pools;
pub mod schedules;
pub mod scrubs;
pub mod splits;
pub mod targets;
pub mod trash;

use std::time::Duration;

/// A moment, by both clocks of the machine on which something is decided.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the monotonic clock: since an arbitrary start.
    pub now: Duration,
    /// By the clock that people set: since 1970.
    pub unix: Duration,
}

impl Moment {
    /// Milliseconds since 1970.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        u64::try_from(self.unix.as_millis()).unwrap_or(u64::MAX)
    }
}
