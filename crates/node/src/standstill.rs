//! Clients on whose connections nothing moves: that take nothing of what they are sent, or do not go on with what they began to
//! send.
//!
//! What they leave, or what the rest is awaited in, is memory that their tenant has a share of. Nobody else waits for that; but where
//! their own tenant does, they are let go: an honest client that was paused connects anew, and asks again.

use base::Instant;
use base::hash::Map;
use std::hash::Hash;
use std::time::Duration;

/// How often it is looked what clients took and sent.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// How long nothing may move while a client's tenant is short of memory. On a slow line something moves all the time.
const STANDSTILL_MAX: Duration = Duration::from_secs(10);
/// How long ago a tenant may have been short of memory last: what waits is presented again at least so often.
pub(crate) const SHORT_WITHIN: Duration = Duration::from_secs(3);
/// Why a connection ends on which nothing is taken.
pub(crate) const TAKES_NOTHING: &str =
    "it took nothing of what it was sent for 10 s, and its key's share of this OSD's memory is used up";
/// Why a connection ends on which nothing comes.
pub(crate) const SENDS_NOTHING: &str =
    "it did not go on for 10 s, and its key's share of the memory that this OSD receives in is used up";

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Standstill<C> {
    /// How many bytes have moved on each, and since when it is so many.
    moved: Map<C, (u64, Instant)>,
    look_at: Instant,
}

impl<C> Default for Standstill<C> {
    fn default() -> Standstill<C> {
        Standstill { moved: Map::default(), look_at: Instant::default() }
    }
}

impl<C: Copy + Eq + Hash> Standstill<C> {
    /// Whether it is time for a look.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.look_at;
        if is_due {
            self.look_at = now + LOOK_PAUSE;
        }
        is_due
    }

    /// Tells how many bytes have moved by now on each on which some should, and whose tenant is short. Answers those on which none
    /// did for too long.
    pub(crate) fn look(&mut self, now: Instant, moved: impl Iterator<Item = (C, u64)>) -> Vec<C> {
        let (before, mut still) = (std::mem::take(&mut self.moved), Vec::new());
        for (connection, bytes) in moved {
            let since = match before.get(&connection) {
                Some((known, since)) if *known == bytes => *since,
                _ => now,
            };
            if now.since(since) >= STANDSTILL_MAX {
                still.push(connection);
            }
            self.moved.insert(connection, (bytes, since));
        }
        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant { nanoseconds: seconds * 1_000_000_000 }
    }

    #[test]
    fn who_takes_nothing_for_long_is_found_and_who_takes_a_little_is_not() {
        let mut still = Standstill::default();
        assert!(still.is_due(at(1)) && !still.is_due(at(1)) && still.is_due(at(2)));
        for second in 0..10 {
            let none = still.look(at(10 + second), [(1, 500), (2, 500 + second)].into_iter());
            assert!(none.is_empty(), "in second {second}: {none:?}");
        }
        assert_eq!(still.look(at(20), [(1, 500), (2, 510)].into_iter()), [1]);
    }

    #[test]
    fn it_counts_only_while_the_tenant_is_short_all_along() {
        let mut still = Standstill::default();
        assert!(still.look(at(10), [(1, 500)].into_iter()).is_empty());
        assert!(still.look(at(15), std::iter::empty()).is_empty());
        assert!(still.look(at(20), [(1, 500)].into_iter()).is_empty());
        assert_eq!(still.look(at(30), [(1, 500)].into_iter()), [1]);
    }
}
