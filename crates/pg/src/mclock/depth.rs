//! How much is under way for clients while something is reserved: as much as an operation hardly waits behind.
//!
//! How deep a drive's queue may be without anything waiting in it depends on the drive: one thing on some, dozens on others. So it
//! is found out. Once in two hundred spans of some milliseconds as little as possible is begun for two of them: how long operations of a block take that
//! begin and end then, on average over the last thousands of spans, is what they take where they wait for nothing. While they take half as long again, less and less
//! is begun; else, if something had to wait, more and more. Reads and changes are looked at apart.
//!
//! What counts is the time that an OSD sees: the drive's, the other members', and that in which the processor did something else. Where operations
//! take longer than the two spans by themselves, nothing is found out, and the bound stays what it is at first.

use super::UNIT;
use base::Instant;
use std::time::Duration;

/// A span is as long as that at least.
const SPAN: Duration = Duration::from_millis(5);
/// What is said of how long they take now, or take alone, is the average of so many operations at least.
const SAMPLES_MIN: u32 = 32;
/// It is not to take longer than so many percent of what it takes alone.
const SLOWER_PERCENT: u64 = 150;
/// As little as possible is begun this often, for two spans.
const PROBED_EVERY: u32 = 200;
/// What they take alone is known from so many spans, up to twice as many.
const REMEMBERED: u32 = 2_000;
/// What an operation takes at most, as far as this counts it: what takes longer does not wait for the drive.
const TOOK_MAX: Duration = Duration::from_millis(100);
const MIN: u32 = 2 * UNIT;
const AT_FIRST: u32 = 12 * UNIT;
pub(super) const MAX: u32 = 32 * UNIT;

/// How long operations took, and how many did.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    nanoseconds: u64,
    count: u32,
}

impl Times {
    fn add(&mut self, took: Duration) {
        self.nanoseconds += took.min(TOOK_MAX).as_nanos() as u64;
        self.count += 1;
    }

    fn average(&self) -> Option<u64> {
        (self.count >= SAMPLES_MIN).then(|| self.nanoseconds / u64::from(self.count))
    }
}

/// How long reads took, or changes.
#[derive(Debug, Default)]
struct Took {
    /// In the last few spans.
    lately: Times,
    /// Where as little as possible was begun, since it was forgotten last, and before that.
    alone: Times,
    alone_before: Times,
}

impl Took {
    /// The end of a span. Whether they take too long; `None` if too few ended to tell: those count for the next one.
    fn end_span(&mut self) -> Option<bool> {
        let average = self.lately.average()?;
        self.lately = Times::default();
        let (now, before) = (&self.alone, &self.alone_before);
        let count = now.count + before.count;
        let alone = Times { nanoseconds: now.nanoseconds + before.nanoseconds, count }.average()?;
        Some(100 * average > SLOWER_PERCENT * alone)
    }

    fn forget_half(&mut self) {
        self.alone_before = std::mem::take(&mut self.alone);
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Depth {
    most: u32,
    span_began: Instant,
    spans: u32,
    probe_began: Instant,
    reads: Took,
    changes: Took,
    /// Something had to wait in this span, for so much was under way.
    was_reached: bool,
}

impl Default for Depth {
    fn default() -> Depth {
        let ((span_began, probe_began), (reads, changes)) = Default::default();
        // The first probe is yet to come.
        Depth { most: AT_FIRST, span_began, spans: 2, probe_began, reads, changes, was_reached: false }
    }
}

impl Depth {
    /// Whether as little as possible is begun now.
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

    /// An operation of a block has ended that began then.
    pub(super) fn ended(&mut self, is_read: bool, at: Instant, now: Instant) {
        let is_alone = self.is_probing() && at >= self.probe_began;
        let its = if is_read { &mut self.reads } else { &mut self.changes };
        if is_alone {
            its.alone.add(now.since(at));
        } else {
            its.lately.add(now.since(at));
        }
    }

    pub(super) fn turn(&mut self, now: Instant) {
        if now.since(self.span_began) < SPAN {
            return;
        }
        self.span_began = now;
        self.spans = self.spans.wrapping_add(1);
        if self.spans.is_multiple_of(PROBED_EVERY) {
            self.probe_began = now;
        }
        if self.spans.is_multiple_of(REMEMBERED) {
            self.reads.forget_half();
            self.changes.forget_half();
        }
        let are_slow = [self.reads.end_span(), self.changes.end_span()];
        let was_reached = std::mem::take(&mut self.was_reached);
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

    /// A drive that does so many operations at once, each of which takes 100 us on average and up to twice that, and clients that want ever
    /// more. The bound in the last second, in operations: the least and the greatest.
    fn settles(at_once: u32, seconds: u64) -> (u32, u32) {
        let mut depth = Depth::default();
        let mut now = Instant::default() + Duration::from_secs(1);
        let end = now + Duration::from_secs(seconds);
        let (mut least, mut greatest, mut chance) = (u32::MAX, 0, 1_u32);
        while now < end {
            let under_way = depth.most() / UNIT;
            let rounds = under_way.div_ceil(at_once);
            let began = now;
            now = now + Duration::from_micros(100) * rounds;
            for _ in 0..under_way {
                chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let took = Duration::from_micros(u64::from(chance >> 16) % 200) * rounds;
                depth.ended(true, began, began + took);
            }
            depth.is_reached();
            depth.turn(now);
            if now + Duration::from_secs(1) > end {
                (least, greatest) = (least.min(depth.most / UNIT), greatest.max(depth.most / UNIT));
            }
        }
        (least, greatest)
    }

    #[test]
    fn so_much_is_begun_that_it_takes_half_as_long_again_as_alone_at_most_for_however_long_that_goes_on() {
        for seconds in [3, 60] {
            let (least, greatest) = settles(4, seconds);
            assert!(least >= 3 && greatest <= 6, "{least} to {greatest}, of a drive that does four at once");
            let (least, _) = settles(64, seconds);
            assert!(least >= 24, "{least}, of a drive that is not busy");
            let (least, greatest) = settles(2, seconds);
            assert!(least >= 2 && greatest <= 4, "{least} to {greatest}, of a drive that does two at once");
        }
    }

    /// Spans in each of which so many end that took so many microseconds, and something had to wait.
    fn passes(depth: &mut Depth, spans: u32, count: u32, took: u64) -> u32 {
        let took = Duration::from_micros(took);
        for _ in 0..spans {
            let now = depth.span_began + SPAN;
            (0..count).for_each(|_| depth.ended(false, depth.span_began, depth.span_began + took));
            depth.is_reached();
            depth.turn(now);
        }
        depth.most
    }

    #[test]
    fn a_drive_that_becomes_slower_for_good_is_seen_as_that() {
        let mut depth = Depth::default();
        assert_eq!(passes(&mut depth, 500, SAMPLES_MIN, 100), MAX);
        assert_eq!(passes(&mut depth, PROBED_EVERY - 2, SAMPLES_MIN, 500), MIN);
        assert_eq!(passes(&mut depth, 3 * REMEMBERED, SAMPLES_MIN, 500), MAX);
    }

    #[test]
    fn few_are_taken_together_and_what_takes_longer_than_a_probe_changes_nothing() {
        let mut depth = Depth::default();
        passes(&mut depth, 2 * PROBED_EVERY, SAMPLES_MIN, 100);
        depth.most = AT_FIRST;
        // In eight spans there are enough.
        assert_eq!(passes(&mut depth, PROBED_EVERY / 2, 0, 0), AT_FIRST);
        assert_eq!(passes(&mut depth, 7, SAMPLES_MIN / 8, 1000), AT_FIRST);
        assert_eq!(passes(&mut depth, 1, SAMPLES_MIN / 8, 1000), AT_FIRST - AT_FIRST / 8);
        // Nobody had to wait.
        (0..SAMPLES_MIN).for_each(|_| depth.ended(false, depth.span_began, depth.span_began + SPAN / 50));
        depth.turn(depth.span_began + SPAN);
        assert_eq!(depth.most, AT_FIRST - AT_FIRST / 8);
        let mut slow = Depth::default();
        slow.turn(Instant::default() + Duration::from_secs(1));
        for _ in 0..3 * PROBED_EVERY {
            let began = slow.span_began - 2 * SPAN;
            slow.turn(slow.span_began + SPAN);
            (0..SAMPLES_MIN).for_each(|_| slow.ended(true, began, slow.span_began));
            slow.is_reached();
        }
        assert_eq!(slow.most, AT_FIRST);
    }
}
