//! How much is under way for clients while something is reserved: as much as an operation hardly waits behind.
//!
//! How deep a drive's queue may be without anything waiting in it depends on the drive: one thing on some, dozens on others. So it
//! is found out. How long small operations take is averaged over some milliseconds at a time, reads and changes apart. The least of
//! that in the last seconds is what they take where they wait for nothing: to know it, once a second as little as possible is begun for
//! two such spans. While they take half as long again, less and less is begun; else, if something had to wait, more and
//! more.
//!
//! What counts is the time that an OSD sees: the drive's, the other members', and that in which the processor did something else.

use super::UNIT;
use base::Instant;
use std::time::Duration;

/// Over so long is averaged.
const SPAN: Duration = Duration::from_millis(5);
/// An average is one of so many operations at least.
const SAMPLES_MIN: u32 = 4;
/// It is not to take longer than so many percent of the least.
const SLOWER_PERCENT: u64 = 150;
/// As little as possible is begun this often, for two spans.
const PROBED_EVERY: u32 = 200;
/// The least is that of the last ten to twenty seconds.
const REMEMBERED: u32 = 2_000;
/// What an operation takes at most, as far as this counts it: what takes longer does not wait for the drive.
const TOOK_MAX: Duration = Duration::from_millis(100);
const MIN: u32 = 2 * UNIT;
const AT_FIRST: u32 = 12 * UNIT;
pub(super) const MAX: u32 = 32 * UNIT;

/// How long reads took, or changes.
#[derive(Debug, Default)]
struct Took {
    /// In this span, in nanoseconds, and how many did; or in the last few, as long as those are few.
    sum: u64,
    count: u32,
    /// The least average while this one is remembered, and the one before.
    least: Option<u64>,
    least_before: Option<u64>,
}

impl Took {
    /// The end of a span. Whether what ended in it took too long; `None` if that was too little to tell: it counts for the next one.
    fn end_span(&mut self) -> Option<bool> {
        if self.count < SAMPLES_MIN {
            return None;
        }
        let (sum, count) = (std::mem::take(&mut self.sum), std::mem::take(&mut self.count));
        let average = sum / u64::from(count);
        self.least = Some(self.least.map_or(average, |least| least.min(average)));
        let least = self.least.into_iter().chain(self.least_before).min();
        least.map(|least| 100 * average > SLOWER_PERCENT * least)
    }

    fn forget_half(&mut self) {
        (self.least_before, self.least) = (self.least.take(), None);
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Depth {
    most: u32,
    span_began: Instant,
    spans: u32,
    reads: Took,
    changes: Took,
    /// Something had to wait in this span, for so much was under way.
    was_reached: bool,
}

impl Default for Depth {
    fn default() -> Depth {
        let (span_began, reads, changes) = Default::default();
        Depth { most: AT_FIRST, span_began, spans: 0, reads, changes, was_reached: false }
    }
}

impl Depth {
    /// Whether as little as possible is begun in this span.
    fn is_probing(&self) -> bool {
        self.spans % PROBED_EVERY < 2
    }

    /// How much may be under way now.
    pub(super) fn most(&self) -> u32 {
        if self.is_probing() { MIN } else { self.most }
    }

    /// Something has to wait.
    pub(super) fn is_reached(&mut self) {
        self.was_reached = true;
    }

    /// A small operation has ended that took so long.
    pub(super) fn ended(&mut self, is_read: bool, took: Duration) {
        let its = if is_read { &mut self.reads } else { &mut self.changes };
        its.sum += took.min(TOOK_MAX).as_nanos() as u64;
        its.count += 1;
    }

    pub(super) fn turn(&mut self, now: Instant) {
        if now.since(self.span_began) < SPAN {
            return;
        }
        self.span_began = now;
        let was_probed = self.is_probing();
        self.spans = self.spans.wrapping_add(1);
        let are_slow = [self.reads.end_span(), self.changes.end_span()];
        let was_reached = std::mem::take(&mut self.was_reached);
        if self.spans.is_multiple_of(REMEMBERED) {
            self.reads.forget_half();
            self.changes.forget_half();
        }
        if was_probed {
            return;
        }
        if are_slow.contains(&Some(true)) {
            self.most = (self.most - self.most / 8).max(MIN);
        } else if was_reached && are_slow.contains(&Some(false)) {
            self.most = (self.most + UNIT / 2).min(MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive that does so many operations at once, each of which takes 100 us, and clients that want ever more.
    fn settles(at_once: u32, seconds: u64) -> (u32, u32) {
        let mut depth = Depth::default();
        let mut now = Instant::default() + Duration::from_secs(1);
        let end = now + Duration::from_secs(seconds);
        let (mut least, mut greatest) = (u32::MAX, 0);
        while now < end {
            let under_way = depth.most() / UNIT;
            let took = Duration::from_micros(100) * under_way.div_ceil(at_once);
            for _ in 0..under_way {
                depth.ended(true, took);
            }
            depth.is_reached();
            now = now + took;
            depth.turn(now);
            if now + Duration::from_secs(1) > end && depth.spans % PROBED_EVERY >= 2 {
                (least, greatest) = (least.min(depth.most / UNIT), greatest.max(depth.most / UNIT));
            }
        }
        (least, greatest)
    }

    #[test]
    fn so_much_is_begun_that_it_takes_half_as_long_again_as_alone_at_most_for_however_long_that_goes_on() {
        for seconds in [2, 60] {
            let (least, greatest) = settles(4, seconds);
            assert!(least >= 4 && greatest <= 6, "{least} to {greatest}, of a drive that does four at once");
            let (least, _) = settles(64, seconds);
            assert_eq!(least, MAX / UNIT, "of a drive that is not busy");
            let (least, greatest) = settles(1, seconds);
            assert!(
                least >= 2 && greatest <= 4,
                "{least} to {greatest}, of a drive that does one after the other"
            );
        }
    }

    #[test]
    fn a_drive_that_becomes_slower_for_good_is_seen_as_that() {
        let mut depth = Depth::default();
        let mut now = Instant::default() + Duration::from_secs(1);
        let mut run = |depth: &mut Depth, spans: u32, took: u64| {
            for _ in 0..spans {
                (0..SAMPLES_MIN).for_each(|_| depth.ended(false, Duration::from_micros(took)));
                depth.is_reached();
                now = now + SPAN;
                depth.turn(now);
            }
            depth.most
        };
        assert_eq!(run(&mut depth, 500, 100), MAX);
        assert_eq!(run(&mut depth, 500, 500), MIN);
        assert_eq!(run(&mut depth, 2 * REMEMBERED, 500), MAX);
        // What did not wait for want of room asks for no more.
        depth.most = AT_FIRST;
        (0..SAMPLES_MIN).for_each(|_| depth.ended(false, Duration::from_micros(500)));
        depth.turn(now + SPAN);
        assert_eq!(depth.most, AT_FIRST);
        // Few say nothing for themselves, and several times a few do.
        for (span, most) in [(2, AT_FIRST), (3, AT_FIRST), (4, AT_FIRST), (5, AT_FIRST - AT_FIRST / 8)] {
            depth.ended(false, Duration::from_secs(1));
            depth.turn(now + span * SPAN);
            assert_eq!(depth.most, most);
        }
    }
}
