//! How an OSD that serves clients spaces out what it pushes to its learners: in bursts, with pauses that get longer as
//! everything takes longer.
//!
//! What hurts clients is what a burst adds to what they wait for anyway. On a drive that flushes in microseconds that is
//! all of it, so bursts are small. On one whose flush takes milliseconds every write waits for that, whoever wrote, and
//! larger bursts cost little: they grow as long as one of them takes about as long as such flushes do.
//!
//! A group that takes no writes for want of members in sync is not spaced out: that is what its clients wait for.

use base::Instant;
use std::time::Duration;

/// Blocks pushed at a time.
pub(crate) const PUSH_BLOCKS: u16 = 64;
/// The same while clients are served: what is behind a push in a queue waits for all of it.
const PUSH_BLOCKS_BUSY: u16 = 16;
/// Blocks of a burst: behind more of them, clients wait longer.
const BURST_BLOCKS_MIN: u32 = PUSH_BLOCKS_BUSY as u32;
/// The same where a burst takes no longer than clients wait for their writes anyway.
const BURST_BLOCKS_MAX: u32 = 256;
/// Bursts are small where the fastest write of a client takes no longer than this: it did not wait for a slow drive.
const NO_WAIT: Duration = Duration::from_millis(1);
/// How many times as long as such a write takes beyond that a burst may take before bursts get smaller.
const BURST_WAITS: u32 = 2;
/// How much longer than a burst the pause behind it is.
const PAUSE_FACTOR: u32 = 4;
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Clients are served if there was something of theirs to do so shortly before.
const BUSY_FOR: Duration = Duration::from_millis(200);
/// The fastest of the writes that ended in the last one or two of these counts.
const WRITES_OF: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Blocks of a burst.
    size: u32,
    /// Blocks that may still be pushed in this one.
    left: u32,
    /// When its first push was started.
    began: Option<Instant>,
    /// When the next burst begins.
    pub(crate) next_at: Option<Instant>,
    /// When there last was something of a client's to do, here or as a replica.
    client_at: Instant,
    fastest: Fastest,
}

/// The fastest write of clients in the last one or two spans of [`WRITES_OF`].
#[derive(Debug, Default)]
struct Fastest {
    since: Instant,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl Fastest {
    fn turn(&mut self, now: Instant) {
        let age = now.since(self.since);
        if age >= WRITES_OF {
            self.before = if age < 2 * WRITES_OF { self.now } else { None };
            (self.now, self.since) = (None, now);
        }
    }

    fn note(&mut self, now: Instant, took: Duration) {
        self.turn(now);
        self.now = Some(self.now.map_or(took, |least| least.min(took)));
    }

    fn get(&mut self, now: Instant) -> Option<Duration> {
        self.turn(now);
        self.now.into_iter().chain(self.before).min()
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            size: BURST_BLOCKS_MIN,
            left: BURST_BLOCKS_MIN,
            began: None,
            next_at: None,
            client_at: Instant::default(),
            fastest: Fastest::default(),
        }
    }
}

impl Pace {
    /// There is something of a client's to do.
    pub(crate) fn client_came(&mut self, now: Instant) {
        self.client_at = now;
    }

    /// A client's write is durable everywhere, so long after it was ordered.
    pub(crate) fn write_ended(&mut self, now: Instant, took: Duration) {
        self.fastest.note(now, took);
    }

    fn is_busy(&self, now: Instant) -> bool {
        now.since(self.client_at) < BUSY_FOR
    }

    /// Whether one more push may be started.
    pub(crate) fn may_push(&self, now: Instant) -> bool {
        let is_pause = self.next_at.is_some_and(|at| now < at);
        !self.is_busy(now) || self.left > 0 && !is_pause
    }

    /// How many blocks a push may have.
    pub(crate) fn push_blocks(&self, now: Instant) -> u16 {
        if self.is_busy(now) { PUSH_BLOCKS_BUSY } else { PUSH_BLOCKS }
    }

    /// A push is started, which counts as so many blocks.
    pub(crate) fn push_begins(&mut self, now: Instant, blocks: u32) {
        self.left = self.left.saturating_sub(blocks);
        self.began.get_or_insert(now);
    }

    /// All that was pushed is on stable media, or nobody waits for it any more: the pause begins.
    pub(crate) fn burst_ends(&mut self, now: Instant) {
        let Some(began) = self.began.take() else { return };
        let took = now.since(began);
        let limit = self.fastest.get(now).unwrap_or_default().saturating_sub(NO_WAIT) * BURST_WAITS;
        if took > limit {
            self.size = (self.size / 2).max(BURST_BLOCKS_MIN);
        } else if self.left == 0 {
            self.size = (self.size * 2).min(BURST_BLOCKS_MAX);
        }
        self.left = self.size;
        self.next_at = Some(now + (took * PAUSE_FACTOR).min(PAUSE_MAX));
    }

    /// The pause is over.
    pub(crate) fn pause_ends(&mut self) {
        self.next_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::default() + Duration::from_millis(milliseconds)
    }

    /// Bursts of which each takes so many milliseconds while clients' writes take `write` at least. Answers the
    /// blocks of the last one, and the pause behind it.
    fn after_bursts(pace: &mut Pace, from: u64, took: u64, write: u64) -> (u32, Duration) {
        let mut blocks = 0;
        let mut now = from;
        let mut pause = Duration::ZERO;
        for _ in 0..10 {
            pace.client_came(at(now));
            pace.write_ended(at(now), Duration::from_millis(write));
            pace.write_ended(at(now), Duration::from_millis(write * 5));
            blocks = 0;
            while pace.may_push(at(now)) {
                pace.push_begins(at(now), u32::from(pace.push_blocks(at(now))));
                blocks += u32::from(pace.push_blocks(at(now)));
            }
            now += took;
            pace.client_came(at(now));
            pace.burst_ends(at(now));
            let next = pace.next_at.expect("there is a pause");
            pause = next.since(at(now));
            assert!(!pace.may_push(at(now)), "it pauses");
            now += pause.as_millis() as u64;
            pace.pause_ends();
        }
        (blocks, pause)
    }

    #[test]
    fn bursts_are_small_where_they_add_to_what_clients_wait_and_large_where_a_flush_is_slow() {
        let mut pace = Pace::default();
        assert_eq!(after_bursts(&mut pace, 1000, 1, 1), (16, Duration::from_millis(4)));
        assert_eq!(after_bursts(&mut pace, 4000, 12, 10), (256, Duration::from_millis(48)));
        // Slower than what clients wait for: it comes from the bursts themselves.
        assert_eq!(after_bursts(&mut pace, 9000, 80, 10), (16, PAUSE_MAX));
    }

    #[test]
    fn what_writes_took_long_ago_says_nothing() {
        let mut pace = Pace::default();
        assert_eq!(after_bursts(&mut pace, 1000, 12, 10).0, 256);
        let later = at(60_000);
        pace.client_came(later);
        pace.push_begins(later, 256);
        pace.burst_ends(later + Duration::from_millis(1));
        assert_eq!(pace.left, 128, "no write ended lately, so clients may wait for this");
    }

    #[test]
    fn nobody_is_spared_where_nobody_is_served() {
        let mut pace = Pace::default();
        pace.client_came(at(1000));
        assert_eq!(pace.push_blocks(at(1199)), PUSH_BLOCKS_BUSY);
        pace.push_begins(at(1000), 32);
        assert!(!pace.may_push(at(1199)));
        assert!(pace.may_push(at(1200)));
        assert_eq!(pace.push_blocks(at(1200)), PUSH_BLOCKS);
    }
}
