//! The time of day, and how long ago something was.

use base::duration::about;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the clock says that people set, since 1970.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How long ago something was, by the same clock. A second at least: the clock may have been set back.
pub fn ago(at: Duration, now: Duration) -> String {
    format!("{} ago", about(now.saturating_sub(at).as_secs().max(1)))
}
