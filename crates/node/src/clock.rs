//! The clocks of this machine, as those see them who are told the time.

use manager::decide::Moment;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Tells moments since it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { began: Instant::now() }
    }

    pub(crate) fn now(&self) -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { now: self.began.elapsed(), unix }
    }

    /// What to sleep until, to wake at that time of its own.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.began + at
    }
}
