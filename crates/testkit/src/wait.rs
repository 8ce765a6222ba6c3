//! Waiting for what must happen, however busy the machine is.

use std::time::{Duration, Instant};

/// Generous: what must happen happens within it on a busy machine too. It is reached only where something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until it holds, as long as anything takes on a busy machine.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_longer(PATIENCE, what, holds);
}

/// The same for what takes longer. It asks less and less often: an answer of the command costs the processor more than what
/// it asks about.
#[track_caller]
pub fn wait_longer(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(10);
    while !holds() {
        assert!(Instant::now() < end, "in vain for {limit:?}: {what}");
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(300));
    }
}
