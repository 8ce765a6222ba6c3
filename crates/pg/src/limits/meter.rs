//! What a primary may begin by one limit, and what waits for it there.

use super::{Amount, Waiting, Ways};
use base::{Instant, Limit, Limits, LinkId};
use std::collections::VecDeque;
use std::time::Duration;

/// A primary has in store what so much of a second brings to each OSD, so that who stays below a limit does not wait.
const STASH_PART: u64 = 100;
/// But no more operations, nor bytes.
const STASH_OPERATIONS_MAX: i64 = 64;
const STASH_BYTES_MAX: i64 = 4 << 20;
/// What was asked for, and nothing of it given for so long, is told once more.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// What of a way is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// As much as is kept in store, of what is counted.
    operations: Option<i64>,
    bytes: Option<i64>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Meter {
    counted: [Counted; 2],
    /// What may be begun. The last to begin may take more than there is.
    stash: Ways,
    lines: [VecDeque<Waiting>; 2],
    /// What all in the lines cost.
    waiting: Ways,
    /// What the home was asked for, and did not give yet.
    asked: Ways,
    /// On which link; none if it is here.
    asked_on: Option<LinkId>,
    /// Less is wanted than was asked for.
    asks_all: bool,
    /// When something was asked for or given last.
    heard_at: Instant,
    /// The home does not know the limit: it is not asked before then.
    alone_until: Instant,
    /// It is to be looked at with the end of the turn.
    pub(super) is_due: bool,
}

impl Meter {
    /// One with nothing in store, of a limit that is one of so many OSDs'.
    pub(super) fn new(limits: &Limits, osds: u32, now: Instant) -> Meter {
        let mut meter = Meter {
            counted: Default::default(),
            stash: Ways::default(),
            lines: Default::default(),
            waiting: Ways::default(),
            asked: Ways::default(),
            asked_on: None,
            asks_all: false,
            heard_at: now,
            alone_until: Instant::default(),
            is_due: false,
        };
        meter.heed(limits, osds);
        meter
    }

    /// Goes by other limits from now on, or by another number of OSDs.
    pub(super) fn heed(&mut self, limits: &Limits, osds: u32) {
        let kept = |limits: [Option<Limit>; 2], most: i64| {
            let least = limits.into_iter().flatten().map(|limit| limit.per_second).min()?;
            Some((least / STASH_PART / u64::from(osds.max(1))).min(most as u64) as i64)
        };
        let Limits { iops, read_iops, write_iops, bandwidth, read_bandwidth, write_bandwidth } = *limits;
        let own = [(read_iops, read_bandwidth), (write_iops, write_bandwidth)];
        self.counted = own.map(|(own_iops, own_bandwidth)| Counted {
            operations: kept([iops, own_iops], STASH_OPERATIONS_MAX),
            bytes: kept([bandwidth, own_bandwidth], STASH_BYTES_MAX),
        });
        for (counted, stash) in self.counted.iter().zip(&mut self.stash.0) {
            stash.operations = counted.operations.map_or(0, |_| stash.operations);
            stash.bytes = counted.bytes.map_or(0, |_| stash.bytes);
        }
        self.is_due = true;
    }

    /// Whether something of a way may begin that costs so much. What moves no bytes needs none.
    fn lets_begin(&self, way: usize, cost: Amount) -> bool {
        let (counted, stash) = (self.counted[way], self.stash.0[way]);
        counted.operations.is_none_or(|_| stash.operations > 0)
            && (cost.bytes == 0 || counted.bytes.is_none_or(|_| stash.bytes > 0))
    }

    /// Whether the first of those that wait may.
    pub(super) fn may_begin(&self, way: usize) -> bool {
        self.lines[way].front().is_some_and(|first| self.lets_begin(way, first.cost()))
    }

    /// Whether something may that comes now: not before those that wait.
    pub(super) fn may_begin_new(&self, way: usize, cost: Amount) -> bool {
        self.lines[way].is_empty() && self.lets_begin(way, cost)
    }

    /// Something left a line without beginning: less is wanted than was asked for.
    pub(super) fn wants_less(&mut self) {
        (self.asks_all, self.is_due) = (true, true);
    }

    /// The home does not know the limit: for a while this OSD gives itself its part.
    pub(super) fn is_alone_until(&mut self, until: Instant) {
        (self.alone_until, self.is_due) = (until, true);
    }

    /// Whether the home is asked.
    pub(super) fn asks_home(&self, now: Instant) -> bool {
        self.alone_until <= now
    }

    /// Something begins.
    pub(super) fn begins(&mut self, way: usize, cost: Amount) {
        // What no limit counts is owed to none that is set later.
        let (counted, stash) = (self.counted[way], &mut self.stash.0[way]);
        stash.operations -= counted.operations.map_or(0, |_| cost.operations);
        stash.bytes -= counted.bytes.map_or(0, |_| cost.bytes);
        self.is_due = true;
    }

    pub(super) fn wait(&mut self, waiting: Waiting) {
        self.waiting.0[waiting.way()].add(waiting.cost());
        self.lines[waiting.way()].push_back(waiting);
        self.is_due = true;
    }

    /// The first in a line goes.
    pub(super) fn next(&mut self, way: usize) -> Option<Waiting> {
        let waiting = self.lines[way].pop_front()?;
        self.waiting.0[way].take_off(waiting.cost());
        Some(waiting)
    }

    /// Takes out of the lines whatever is not to wait any more.
    pub(super) fn drop_from_lines(&mut self, mut is_gone: impl FnMut(&Waiting) -> bool) {
        for (line, cost) in self.lines.iter_mut().zip(&mut self.waiting.0) {
            line.retain(|waiting| {
                let goes = is_gone(waiting);
                if goes {
                    cost.take_off(waiting.cost());
                    (self.asks_all, self.is_due) = (true, true);
                }
                !goes
            });
        }
    }

    /// The home gave something, if it is the one that was asked. Nobody else can.
    pub(super) fn was_given(&mut self, on: Option<LinkId>, given: &Ways, now: Instant) {
        if on != self.asked_on {
            return;
        }
        self.asked.take_off(given);
        self.stash.add(given);
        // What is not wanted any more is not saved up.
        for way in 0..2 {
            let (counted, waiting, stash) = (self.counted[way], self.waiting.0[way], &mut self.stash.0[way]);
            let most = |kept: Option<i64>, waiting: i64| kept.map_or(i64::MAX, |kept| waiting.max(1) + kept);
            stash.operations = stash.operations.min(most(counted.operations, waiting.operations));
            stash.bytes = stash.bytes.min(most(counted.bytes, waiting.bytes));
        }
        (self.heard_at, self.is_due) = (now, true);
    }

    /// What is to be asked for now, of a home that is reached there; and whether that is all, instead of what it was asked for
    /// before.
    pub(super) fn asks(&mut self, on: Option<LinkId>, now: Instant) -> Option<(Ways, bool)> {
        let is_all = on != self.asked_on || self.is_late(now) || self.asks_all;
        self.asks_all = false;
        if is_all {
            (self.asked, self.asked_on) = (Ways::default(), on);
        }
        let more = self.lacks();
        if more.is_none() && !is_all {
            return None;
        }
        self.asked.add(&more);
        self.heard_at = now;
        Some((more, is_all))
    }

    /// Whether something is lacking that was not asked for.
    pub(super) fn is_short(&self) -> bool {
        !self.lacks().is_none()
    }

    fn lacks(&self) -> Ways {
        let mut more = Ways::default();
        for (way, more) in more.0.iter_mut().enumerate() {
            let (counted, waiting) = (self.counted[way], self.waiting.0[way]);
            let (stash, asked) = (self.stash.0[way], self.asked.0[way]);
            let lacks = |kept: Option<i64>, waiting: i64, stash: i64, asked: i64| {
                let Some(kept) = kept else { return 0 };
                // What is kept in store is filled up when half of it is gone.
                let is_short = waiting > stash || stash <= kept / 2;
                if is_short { (waiting + kept - stash - asked).max(0) } else { 0 }
            };
            more.operations =
                lacks(counted.operations, waiting.operations, stash.operations, asked.operations);
            // The last byte of what is owed lets nobody begin.
            let one = i64::from(waiting.operations > 0);
            more.bytes = lacks(counted.bytes, waiting.bytes.max(one), stash.bytes, asked.bytes);
        }
        more
    }

    /// Some time went by, and the home is reached there.
    pub(super) fn look(&mut self, on: Option<LinkId>, now: Instant) {
        self.is_due |= self.is_late(now) || on != self.asked_on;
    }

    /// Whether nothing came for long of what was asked for.
    fn is_late(&self, now: Instant) -> bool {
        !self.asked.is_none() && now.since(self.heard_at) >= ASKED_FOR
    }

    /// Those that wait, of each way the first come first.
    pub(super) fn waiting_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.lines.iter_mut().flatten()
    }

    /// How many wait.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::limits::{CHANGES, READS};
    use crate::testing::{PG, VOLUME};
    use base::figures::RequestKind;
    use base::{Epoch, Generation, ObjectKey, Tenant};
    use wire::Request;

    fn waiting(kind: RequestKind) -> Waiting {
        let request = Request {
            request: 1,
            key: ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 },
            offset: 0,
            length: 4096,
            epoch: Epoch(1),
            generation: Generation(1),
            origin: 0,
            since: None,
            unverified: false,
            of_snapshot: false,
        };
        Waiting { link: LinkId(7), request, kind, tenant: Tenant(1), key: None, told_at: Instant::default() }
    }

    const BLOCK: Amount = Amount { operations: 1, bytes: 4096 };

    fn limit(per_second: u64) -> Option<Limit> {
        Some(Limit { per_second, burst: 0 })
    }

    fn operations(asks: Option<(Ways, bool)>) -> [i64; 2] {
        asks.map(|(ways, _)| ways).unwrap_or_default().0.map(|amount| amount.operations)
    }

    #[test]
    fn a_stash_is_filled_up_when_half_of_it_is_gone_and_what_waits_is_asked_for_at_once() {
        let now = Instant::default();
        let mut meter = Meter::new(&Limits { iops: limit(6_000), ..Limits::default() }, 3, now);
        assert!(!meter.may_begin_new(READS, BLOCK));
        assert_eq!(operations(meter.asks(None, now)), [20, 20]);
        assert_eq!(meter.asks(None, now), None, "it was asked for");
        meter.was_given(
            None,
            &Ways([Amount { operations: 20, bytes: 0 }, Amount { operations: 20, bytes: 0 }]),
            now,
        );
        for _ in 0..9 {
            assert!(meter.may_begin_new(READS, BLOCK));
            meter.begins(READS, waiting(RequestKind::Read).cost());
            assert_eq!(meter.asks(None, now), None);
        }
        meter.begins(READS, waiting(RequestKind::Read).cost());
        assert_eq!(operations(meter.asks(None, now)), [10, 0]);
        for _ in 0..30 {
            meter.wait(waiting(RequestKind::Write));
        }
        assert_eq!(operations(meter.asks(None, now)), [0, 30]);
        assert!(
            !meter.may_begin_new(CHANGES, BLOCK)
                && meter.may_begin(CHANGES)
                && meter.may_begin_new(READS, BLOCK)
        );
        assert_eq!(meter.count(), 30);
        // Nothing comes for long: it is told once more, as all that is wanted.
        let later = now + ASKED_FOR;
        meter.look(None, later);
        assert!(
            meter.is_due
                && meter
                    .asks(None, later)
                    .is_some_and(|(ways, is_all)| is_all && ways.0[CHANGES].operations == 30)
        );
        assert_eq!(meter.asks(None, later), None);
    }

    #[test]
    fn another_home_is_asked_for_all_and_gives_what_it_gives() {
        let now = Instant::default();
        let mut meter = Meter::new(&Limits { write_iops: limit(10), ..Limits::default() }, 3, now);
        meter.wait(waiting(RequestKind::Zero));
        let link = Some(LinkId(5));
        assert_eq!(operations(meter.asks(link, now)), [0, 1]);
        assert_eq!(operations(meter.asks(None, now)), [0, 1], "it is here now");
        let one = Ways([Amount::default(), Amount { operations: 1, bytes: 0 }]);
        meter.was_given(link, &one, now);
        assert!(!meter.may_begin(CHANGES), "another one was asked");
        meter.was_given(None, &one, now);
        assert!(meter.may_begin(CHANGES) && meter.next(CHANGES).is_some());
        meter.begins(CHANGES, waiting(RequestKind::Zero).cost());
        assert!(meter.next(CHANGES).is_none() && !meter.may_begin_new(CHANGES, BLOCK));
    }

    #[test]
    fn an_operation_may_take_more_bytes_than_there_are_and_the_next_waits_until_they_came() {
        let now = Instant::default();
        let mut meter = Meter::new(&Limits { bandwidth: limit(1000), ..Limits::default() }, 1, now);
        meter.wait(waiting(RequestKind::Read));
        assert_eq!(meter.asks(None, now).unwrap().0.0[READS].bytes, 4096 + 10);
        let given = |bytes| Ways([Amount { operations: 0, bytes }, Amount::default()]);
        meter.was_given(None, &given(1), now);
        assert!(meter.may_begin(READS));
        let first = meter.next(READS).unwrap();
        meter.begins(READS, first.cost());
        meter.wait(waiting(RequestKind::Read));
        meter.was_given(None, &given(4095), now);
        assert!(!meter.may_begin(READS), "it owes nothing, and has nothing");
        meter.was_given(None, &given(1), now);
        assert!(meter.may_begin(READS));
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_saved_up_and_a_home_that_knows_nothing_is_left_alone() {
        let now = Instant::default();
        let mut meter = Meter::new(&Limits { iops: limit(10), ..Limits::default() }, 3, now);
        (0..5).for_each(|_| meter.wait(waiting(RequestKind::Read)));
        meter.asks(None, now);
        assert!((0..5).all(|_| meter.next(READS).is_some()));
        meter.wants_less();
        let five = Ways([Amount { operations: 5, bytes: 0 }, Amount::default()]);
        meter.was_given(None, &five, now);
        assert_eq!(
            (meter.stash.0[READS].operations, meter.asks(None, now)),
            (1, Some((Ways::default(), true)))
        );
        let later = now + Duration::from_secs(1);
        meter.is_alone_until(later);
        assert!(meter.is_due && !meter.asks_home(now) && meter.asks_home(later));
    }

    #[test]
    fn what_no_limit_counted_is_owed_to_none_that_is_set_later() {
        let now = Instant::default();
        let mut meter = Meter::new(&Limits { iops: limit(10), ..Limits::default() }, 3, now);
        (0..100).for_each(|_| meter.begins(CHANGES, BLOCK));
        meter.heed(&Limits { bandwidth: limit(1 << 20), ..Limits::default() }, 3);
        let kept = (1 << 20) / 300;
        let all = Amount { operations: 0, bytes: kept };
        assert_eq!(meter.asks(None, now), Some((Ways([all; 2]), false)));
        meter.heed(&Limits { iops: limit(10), ..Limits::default() }, 3);
        assert_eq!(meter.stash, Ways::default());
    }

    #[test]
    fn what_is_gone_is_not_asked_for() {
        let now = Instant::default();
        let mut meter = Meter::new(&Limits { iops: limit(10), ..Limits::default() }, 3, now);
        (0..5).for_each(|_| meter.wait(waiting(RequestKind::Read)));
        meter.drop_from_lines(|_| true);
        assert_eq!((meter.count(), meter.asks(None, now)), (0, Some((Ways::default(), true))));
        assert_eq!(meter.asks(None, now), None);
    }
}
