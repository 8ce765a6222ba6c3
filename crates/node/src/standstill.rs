//! Clients that take nothing of what they are sent.
//!
//! What they leave is in memory that their tenant has a share of. Nobody else waits for that; but where their own tenant does,
//! they are let go: an honest client that was paused connects anew, and asks again.

use base::Instant;
use base::hash::Map;
use std::hash::Hash;
use std::time::Duration;

/// How often it is looked what clients took.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// How long a client may take nothing while its tenant is short of memory. A slow line takes something all the time.
const DEAF_MAX: Duration = Duration::from_secs(10);
/// How long ago a tenant may have been short of memory last: what waits is presented again at least so often.
pub(crate) const SHORT_WITHIN: Duration = Duration::from_secs(3);
/// Why a connection ends then.
pub(crate) const REASON: &str =
    "it took nothing of what it was sent for 10 s, and its key's share of this OSD's memory is used up";

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Deaf<C> {
    /// How much each had taken, and since when it is so much.
    taken: Map<C, (u64, Instant)>,
    look_at: Instant,
}

impl<C> Default for Deaf<C> {
    fn default() -> Deaf<C> {
        Deaf { taken: Map::default(), look_at: Instant::default() }
    }
}

impl<C: Copy + Eq + Hash> Deaf<C> {
    /// Whether it is time for a look.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.look_at;
        if is_due {
            self.look_at = now + LOOK_PAUSE;
        }
        is_due
    }

    /// Tells how many bytes each has taken by now that was sent something and whose tenant is short. Answers those that have
    /// been deaf for too long.
    pub(crate) fn look(&mut self, now: Instant, taken: impl Iterator<Item = (C, u64)>) -> Vec<C> {
        let (before, mut deaf) = (std::mem::take(&mut self.taken), Vec::new());
        for (connection, bytes) in taken {
            let since = match before.get(&connection) {
                Some((known, since)) if *known == bytes => *since,
                _ => now,
            };
            if now.since(since) >= DEAF_MAX {
                deaf.push(connection);
            }
            self.taken.insert(connection, (bytes, since));
        }
        deaf
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
        let mut deaf = Deaf::default();
        assert!(deaf.is_due(at(1)) && !deaf.is_due(at(1)) && deaf.is_due(at(2)));
        for second in 0..10 {
            let none = deaf.look(at(10 + second), [(1, 500), (2, 500 + second)].into_iter());
            assert!(none.is_empty(), "in second {second}: {none:?}");
        }
        assert_eq!(deaf.look(at(20), [(1, 500), (2, 510)].into_iter()), [1]);
    }

    #[test]
    fn it_counts_only_while_the_tenant_is_short_all_along() {
        let mut deaf = Deaf::default();
        assert!(deaf.look(at(10), [(1, 500)].into_iter()).is_empty());
        assert!(deaf.look(at(15), std::iter::empty()).is_empty());
        assert!(deaf.look(at(20), [(1, 500)].into_iter()).is_empty());
        assert_eq!(deaf.look(at(30), [(1, 500)].into_iter()), [1]);
    }
}
