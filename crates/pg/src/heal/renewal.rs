//! What an OSD does when the drive under it is not what it was: cut short, or overwritten by somebody else.
//!
//! Blocks of data that do not verify are mended one by one where they are met ([`super::mend`]). What only a start reads
//! is met by nobody until it is too late, so it is looked at now and then; what is wrong is written anew from memory, which
//! has all of it.

use crate::context::Context;
use crate::disk::Disk;
use crate::io::Io;
use crate::journal::Journal;
use base::Instant;
use std::time::Duration;

/// How long after one renewal of the checkpoint damage brings the next. It writes the whole index: so each time twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// After so long without damage the next comes at once, and the one behind it as soon as at first.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// When damage last had the checkpoint renewed, and how much was known then.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    found: u64,
    after: Instant,
    pause: Duration,
}

impl Renewals {
    /// A drive that gave back other bytes than were written may have done so to what only a start reads. Who overwrites a drive
    /// is not done with it when the first damage is met, and then what was just written anew is damaged too.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        if self.is_due(cx.damage.counts.found, cx.now) {
            cx.damage.counts.renewals += 1;
            cx.disk.store.renew_checkpoint();
        }
    }

    fn is_due(&mut self, found: u64, now: Instant) -> bool {
        let is_due = found > self.found && now >= self.after;
        if is_due {
            let is_first = now.since(self.after) >= PAUSE_MAX;
            self.pause = if is_first { PAUSE_MIN } else { (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX) };
            (self.found, self.after) = (found, now + self.pause);
        }
        is_due
    }
}

/// The place of a superblock holds something else: what a start needs is written anew.
pub(crate) fn renew_superblocks(journal: &mut Journal, disk: &mut Disk, offset: u64) {
    journal.note(format!(
        "the superblock at offset {offset} was overwritten or cannot be read; all that a start needs is written anew"
    ));
    disk.store.renew_superblock(offset);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Alone, PG, VOLUME};
    use base::ObjectKey;

    /// When everything was written anew, in seconds, of a drive that is damaged more in each second of `damaged`.
    fn renewals(damaged: std::ops::Range<u64>, until: u64) -> Vec<u64> {
        let mut renewals = Renewals::default();
        let at = |second| Instant::default() + Duration::from_secs(10_000 + second);
        let found = |second: u64| second.clamp(damaged.start, damaged.end) - damaged.start;
        (0..until).filter(|second| renewals.is_due(found(*second), at(*second))).collect()
    }

    #[test]
    fn what_is_damaged_after_a_renewal_brings_the_next_one_soon_and_ever_later() {
        // The last one covers all of the damage.
        assert_eq!(renewals(10..12, 3600), [11, 16]);
        assert_eq!(renewals(0..100, 3600), [1, 6, 16, 36, 76, 156]);
        let often = renewals(0..100_000, 100_000);
        assert!(often.windows(2).all(|pair| pair[1] - pair[0] <= 600) && often.len() < 180, "{often:?}");
    }

    #[test]
    fn damage_long_after_other_damage_is_like_the_first() {
        let mut renewals = Renewals::default();
        let at = |second| Instant::default() + Duration::from_secs(10_000 + second);
        let due: Vec<u64> = (1..5000)
            .filter(|second| {
                renewals.is_due(if *second < 3000 { (*second).min(50) } else { *second }, at(*second))
            })
            .collect();
        assert_eq!(due[..5], [1, 6, 16, 36, 76]);
        assert_eq!(due[5..8], [3000, 3005, 3015]);
    }

    #[test]
    fn how_long_ago_other_damage_was_counts_from_when_it_could_have_brought_a_renewal() {
        let almost = PAUSE_MAX - Duration::from_nanos(1);
        for (quiet, pause) in [(almost, 2 * PAUSE_MIN), (PAUSE_MAX, PAUSE_MIN)] {
            let mut renewals = Renewals::default();
            let begin = Instant::default() + Duration::from_secs(10_000);
            assert!(renewals.is_due(1, begin));
            assert!(renewals.is_due(2, begin + PAUSE_MIN + quiet));
            assert_eq!(renewals.pause, pause, "after {quiet:?}");
        }
    }

    #[test]
    fn damage_and_a_superblock_that_was_overwritten_have_all_written_anew_that_a_start_needs() {
        let mut alone = Alone::new();
        alone.write(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 });
        // What the next seconds bring: blocks of checkpoints.
        let written = |alone: &mut Alone| {
            let before = alone.osd.store().statistics().checkpoint_blocks;
            alone.run();
            alone.osd.store().statistics().checkpoint_blocks - before
        };
        assert_eq!((written(&mut alone), alone.osd.view().damage().renewals), (0, 0));
        alone.osd.shared.damage.counts.found += 1;
        assert!(written(&mut alone) > 0);
        assert_eq!(alone.osd.view().damage().renewals, 1);
        assert_eq!(written(&mut alone), 0, "once");
        alone.osd.renew_superblocks(0);
        assert!(written(&mut alone) > 0);
    }
}
