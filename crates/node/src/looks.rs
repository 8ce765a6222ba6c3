//! When an OSD's thread looks whether there is something to publish.

use base::Instant;
use std::time::Duration;

/// How often figures are published while they change.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);
/// How soon a change of a group's state is published.
const PAUSE_SHORT: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    last_at: Instant,
    /// When it is looked next, if the thread runs then.
    next_at: Instant,
    /// It is to run then: groups are changing, and somebody waits for what becomes of them.
    is_awaited: bool,
}

impl Looks {
    /// Whether it is time.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// Something came by which groups may change.
    pub(crate) fn hasten(&mut self) {
        self.next_at = self.next_at.min(self.last_at + PAUSE_SHORT);
        self.is_awaited = true;
    }

    /// It was looked, and found whether groups have changed or will in a moment.
    pub(crate) fn looked(&mut self, now: Instant, will_change: bool) {
        let pause = if will_change { PAUSE_SHORT } else { PAUSE };
        *self = Looks { last_at: now, next_at: now + pause, is_awaited: will_change };
    }

    /// When the thread is to run at the latest. None at rest: an OSD that has nothing to do does not wake to say so.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.is_awaited.then_some(self.next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant { nanoseconds: milliseconds * 1_000_000 }
    }

    #[test]
    fn what_groups_become_is_looked_for_although_nothing_else_happens() {
        let mut looks = Looks::default();
        assert!(looks.is_due(at(0)));
        looks.looked(at(1000), true);
        // They are what they shall be a moment later, and from then on nothing wakes the thread.
        assert!(!looks.is_due(at(1099)));
        assert_eq!(looks.next_timeout(), Some(at(1100)));
        looks.looked(at(1100), true);
        looks.looked(at(1200), false);
        assert_eq!(looks.next_timeout(), None, "there is nothing more to come");
        assert!(!looks.is_due(at(3199)) && looks.is_due(at(3200)));
    }

    #[test]
    fn a_command_has_it_looked_soon_and_not_more_often_than_that() {
        let mut looks = Looks::default();
        looks.looked(at(1000), false);
        looks.hasten();
        assert_eq!((looks.is_due(at(1099)), looks.next_timeout()), (false, Some(at(1100))));
        looks.hasten();
        assert_eq!(looks.next_timeout(), Some(at(1100)));
        looks.looked(at(1100), false);
        assert_eq!(looks.next_timeout(), None);
        // Long after the last look it is at once.
        looks.hasten();
        assert!(looks.is_due(at(2500)) && looks.next_timeout() == Some(at(1200)));
    }
}
