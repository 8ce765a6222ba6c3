//! What a limit gives, where its home is.

use super::{Amount, CHANGES, READS, Ways};
use base::{Instant, Limit, Limits, LinkId, OsdId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Parts of one operation, or of one byte, that are counted: what comes in a nanosecond at one a second.
const PARTS: i128 = 1_000_000_000;
/// Whoever waits is not given each operation as it comes, but some at a time, and so many bytes.
const OPERATIONS_AT_ONCE: i64 = 4;
const BYTES_AT_ONCE: i64 = 16 << 10;
/// Nor is it looked more often, or less, what there is.
const LOOK_PAUSE_MIN: Duration = Duration::from_micros(500);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Nobody wants more at a time: nothing that is counted by it is beyond what can be.
const WANTED_MAX: i64 = 1 << 45;
/// Who is not the home saves up no more than what comes in so long.
const SAVED_BESIDE: Duration = Duration::from_millis(100);

/// Of a rate, so many parts of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) of: u32,
    pub(super) all: u32,
}

/// One limit, and what there is of it.
#[derive(Debug)]
struct Level {
    limit: Limit,
    parts: i128,
}

impl Level {
    fn fill(&mut self, nanoseconds: i128, part: Part) {
        let (of, all) = (i128::from(part.of), i128::from(part.all.max(1)));
        let came = i128::from(self.limit.per_second) * nanoseconds * of / all;
        let most = i128::from(self.limit.depth()) * PARTS;
        self.parts = (self.parts + came).min(most);
    }

    fn there_is(&self) -> i64 {
        (self.parts / PARTS).max(0) as i64
    }

    fn take(&mut self, count: i64) {
        self.parts -= i128::from(count) * PARTS;
    }

    /// How long it takes until there is so much.
    fn until(&self, count: i64, part: Part) -> Duration {
        let missing = (i128::from(count) * PARTS - self.parts).max(0);
        let rate =
            (i128::from(self.limit.per_second) * i128::from(part.of) / i128::from(part.all.max(1))).max(1);
        Duration::from_nanos(u64::try_from(missing / rate + 1).unwrap_or(u64::MAX))
    }
}

/// What an OSD asked for and was not given yet.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// On which link it asked; none of this OSD itself. What was asked on another one counts no more.
    link: Option<LinkId>,
    ways: Ways,
    /// In parts, what it was given too little of the operations and bytes of each way.
    owed: [i128; 4],
}

/// What one OSD gets of one thing.
struct Share {
    osd: OsdId,
    wants: i128,
    /// In parts.
    owed: i128,
    gets: i128,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Bucket {
    at: Instant,
    limits: Limits,
    /// In the order of [`Limits::named`].
    levels: [Option<Level>; 6],
    wanted: BTreeMap<OsdId, Wanted>,
    /// Which way is given something first, of what is too little for both.
    first_way: usize,
    /// When it is looked again what there is. None while nobody wants anything.
    pub(super) next_at: Option<Instant>,
}

/// The limits that count operations of a way, and those that count its bytes.
fn counting(way: usize, counts_bytes: bool) -> [usize; 2] {
    let first = if counts_bytes { 3 } else { 0 };
    [first, first + 1 + way]
}

fn of(amount: &mut Amount, counts_bytes: bool) -> &mut i64 {
    if counts_bytes { &mut amount.bytes } else { &mut amount.operations }
}

/// Of each way the operations and the bytes.
const COUNTS: [(usize, bool); 4] = [(READS, false), (READS, true), (CHANGES, false), (CHANGES, true)];

impl Bucket {
    /// An empty one: what there was elsewhere is not known.
    pub(super) fn new(limits: Limits, now: Instant) -> Bucket {
        let mut bucket = Bucket {
            at: now,
            limits: Limits::default(),
            levels: [const { None }; 6],
            wanted: BTreeMap::new(),
            first_way: READS,
            next_at: None,
        };
        bucket.heed(limits, now);
        bucket
    }

    /// Goes by other limits from now on, with what there is.
    pub(super) fn heed(&mut self, limits: Limits, now: Instant) {
        if limits == self.limits {
            return;
        }
        self.limits = limits;
        self.next_at = self.next_at.map(|_| now);
        for (level, (_, limit, _)) in self.levels.iter_mut().zip(limits.named()) {
            *level = limit.map(|limit| {
                let most = i128::from(limit.depth()) * PARTS;
                Level { limit, parts: level.as_ref().map_or(0, |level| level.parts.min(most)) }
            });
        }
    }

    /// An OSD wants so much more; or that and no more than that.
    pub(super) fn wants(
        &mut self,
        osd: OsdId,
        link: Option<LinkId>,
        more: &Ways,
        is_all: bool,
        now: Instant,
    ) {
        let fresh = Wanted { link, ways: Ways::default(), owed: [0; 4] };
        let wanted = self.wanted.entry(osd).or_insert(fresh);
        if wanted.link != link || is_all {
            *wanted = fresh;
        }
        wanted.ways.add(more);
        // What no limit counts is wanted of nobody.
        for (way, counts_bytes) in COUNTS {
            let is_counted = counting(way, counts_bytes).into_iter().any(|at| self.levels[at].is_some());
            let amount = of(&mut wanted.ways.0[way], counts_bytes);
            *amount = if is_counted { (*amount).min(WANTED_MAX) } else { 0 };
        }
        self.next_at = Some(now);
    }

    /// Another was the home until now, or is from now on: what was saved up here is there, and what was wanted is asked for there.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        self.levels.iter_mut().flatten().for_each(|level| level.parts = level.parts.min(0));
        (self.at, self.next_at) = (now, None);
        self.wanted.clear();
    }

    /// Nobody is given anything any more who does not ask on these links.
    pub(super) fn keep(&mut self, is_there: impl Fn(OsdId, Option<LinkId>) -> bool) {
        self.wanted.retain(|osd, wanted| is_there(*osd, wanted.link));
    }

    /// Gives what there is, where it is wanted, and notes when more is. `is_home`: not of a part beside the home.
    pub(super) fn give(
        &mut self,
        now: Instant,
        part: Part,
        is_home: bool,
    ) -> Vec<(OsdId, Option<LinkId>, Ways)> {
        let age = now.since(self.at);
        let age = if is_home { age } else { age.min(SAVED_BESIDE) };
        let nanoseconds = i128::try_from(age.as_nanos()).unwrap_or(i128::MAX / MAX_RATE);
        self.levels.iter_mut().flatten().for_each(|level| level.fill(nanoseconds, part));
        self.at = now;
        let mut given: BTreeMap<OsdId, Ways> = BTreeMap::new();
        // Of what is left over one way has the first part, and then the other.
        self.first_way = 1 - self.first_way;
        for (way, counts_bytes) in COUNTS.map(|(way, counts_bytes)| (way ^ self.first_way, counts_bytes)) {
            for (osd, count) in self.divide(way, counts_bytes) {
                *of(&mut given.entry(osd).or_default().0[way], counts_bytes) += count;
            }
        }
        let mut told = Vec::with_capacity(given.len());
        for (osd, ways) in given {
            let Some(wanted) = self.wanted.get_mut(&osd) else { continue };
            wanted.ways.take_off(&ways);
            told.push((osd, wanted.link, ways));
        }
        self.wanted.retain(|_, wanted| !wanted.ways.is_none());
        self.next_at = self.next_in(part).map(|pause| now + pause);
        told
    }

    /// What there is for a way; no bound where no limit counts it.
    fn there_is(&self, way: usize, counts_bytes: bool) -> i64 {
        let levels = counting(way, counts_bytes).map(|at| self.levels[at].as_ref().map(Level::there_is));
        levels.into_iter().flatten().min().unwrap_or(i64::MAX)
    }

    /// Divides what there is for a way among those who want it, by how much they want. What cannot be divided goes to whom most is
    /// owed.
    fn divide(&mut self, way: usize, counts_bytes: bool) -> Vec<(OsdId, i64)> {
        let wants = |wanted: &Wanted, way: usize| {
            let amount = wanted.ways.0[way];
            i128::from(if counts_bytes { amount.bytes } else { amount.operations }.max(0))
        };
        let [both, alone] = counting(way, counts_bytes);
        let own: i128 = self.wanted.values().map(|wanted| wants(wanted, way)).sum();
        let others: i128 = self.wanted.values().map(|wanted| wants(wanted, 1 - way)).sum();
        let mut left = i128::from(self.there_is(way, counts_bytes)).min(own);
        // Of what both ways draw on the first leaves the other its share.
        if let Some(level) = &self.levels[both]
            && way == self.first_way
            && others > 0
        {
            left = left.min(i128::from(level.there_is()) * own / (own + others).max(1) + 1);
        }
        let to_divide = left;
        let at = 2 * way + usize::from(counts_bytes);
        let mut shares: Vec<Share> = Vec::with_capacity(self.wanted.len());
        for (osd, wanted) in &self.wanted {
            let wants = wants(wanted, way);
            let owed = if wants == 0 { 0 } else { wanted.owed[at] + to_divide * PARTS * wants / own };
            let gets = (owed / PARTS).clamp(0, wants.min(left));
            left -= gets;
            shares.push(Share { osd: *osd, wants, owed: owed - gets * PARTS, gets });
        }
        shares.sort_by_key(|share| std::cmp::Reverse(share.owed));
        for share in &mut shares {
            let more = left.min(share.wants - share.gets);
            (share.gets, share.owed) = (share.gets + more, share.owed - more * PARTS);
            left -= more;
        }
        let mut told = Vec::with_capacity(shares.len());
        for Share { osd, owed, gets, .. } in shares {
            if let Some(wanted) = self.wanted.get_mut(&osd) {
                wanted.owed[at] = owed;
            }
            if gets > 0 {
                told.push((osd, i64::try_from(gets).unwrap_or(i64::MAX)));
            }
        }
        let gets = told.iter().map(|(_, gets)| gets).sum();
        for at in [both, alone] {
            if let Some(level) = &mut self.levels[at] {
                level.take(gets);
            }
        }
        told
    }

    /// How long it is until there is enough for somebody who wants something.
    fn next_in(&self, part: Part) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for wanted in self.wanted.values() {
            for (way, counts_bytes) in COUNTS {
                let wants = *of(&mut wanted.ways.0[way].clone(), counts_bytes);
                if wants <= 0 {
                    continue;
                }
                let enough = wants.min(if counts_bytes { BYTES_AT_ONCE } else { OPERATIONS_AT_ONCE });
                let levels = counting(way, counts_bytes).map(|at| self.levels[at].as_ref());
                let until = levels
                    .into_iter()
                    .flatten()
                    .map(|level| level.until(enough.min(level.limit.depth() as i64), part))
                    .max();
                let until = until.unwrap_or(LOOK_PAUSE_MIN).clamp(LOOK_PAUSE_MIN, LOOK_PAUSE_MAX);
                next = Some(next.map_or(until, |next| next.min(until)));
            }
        }
        next
    }
}

/// The largest rate there is: nothing that is counted by it is beyond what can be.
const MAX_RATE: i128 = 1 << 51;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    const WHOLE: Part = Part { of: 1, all: 1 };

    fn limits(iops: u64) -> Limits {
        Limits { iops: Some(Limit { per_second: iops, burst: 0 }), ..Limits::default() }
    }

    fn want(reads: i64, changes: i64) -> Ways {
        let amount = |operations| Amount { operations, bytes: 0 };
        Ways([amount(reads), amount(changes)])
    }

    fn at(milliseconds: u64) -> Instant {
        Instant::default() + Duration::from_millis(milliseconds)
    }

    /// What is given in so many milliseconds to OSDs that always want so much more.
    fn given(bucket: &mut Bucket, wants: &[(u32, i64, i64)], milliseconds: u64, part: Part) -> Vec<[i64; 2]> {
        let mut sums = vec![[0; 2]; wants.len()];
        let mut now = at(0);
        for (osd, reads, changes) in wants {
            bucket.wants(OsdId(*osd), None, &want(*reads, *changes), false, now);
        }
        while now < at(milliseconds) {
            for (osd, _, ways) in bucket.give(now, part, true) {
                let place = wants.iter().position(|(other, ..)| *other == osd.0).unwrap();
                for way in [READS, CHANGES] {
                    sums[place][way] += ways.0[way].operations;
                }
                // What was given is done at once, and wanted again.
                bucket.wants(osd, None, &ways, false, now);
                bucket.next_at = Some(now + LOOK_PAUSE_MIN);
            }
            now = bucket.next_at.unwrap();
        }
        sums
    }

    #[test]
    fn what_is_given_is_the_rate_however_many_want_how_much() {
        for wants in
            [&[(1, 64, 0)][..], &[(1, 5, 0), (2, 200, 0)], &[(1, 1, 1), (2, 0, 1), (3, 1, 0)], &[(1, 8, 64)]]
        {
            for iops in [10, 5_000, 200_000] {
                let mut bucket = Bucket::new(limits(iops), at(0));
                let all: i64 = given(&mut bucket, wants, 10_000, WHOLE).iter().flatten().sum();
                let expected = 10 * iops as i64;
                // Ten who want one each cannot have more than as often as it is looked.
                let bound = wants.iter().map(|(_, reads, changes)| reads + changes).sum::<i64>() * 20_000;
                let expected = expected.min(bound);
                assert!((expected - all).abs() <= expected / 50 + 1, "{wants:?} at {iops}: {all}");
            }
        }
    }

    #[test]
    fn who_wants_more_is_given_more_and_nobody_nothing() {
        let mut bucket = Bucket::new(limits(3_000), at(0));
        let sums = given(&mut bucket, &[(1, 10, 0), (2, 30, 0), (3, 0, 20)], 10_000, WHOLE);
        let near = |gets: i64, expected: i64| (gets - expected).abs() <= expected / 10;
        assert!(near(sums[0][READS], 5_000) && near(sums[1][READS], 15_000), "{sums:?}");
        assert!(near(sums[2][CHANGES], 10_000), "{sums:?}");
    }

    #[test]
    fn reads_and_writes_have_limits_of_their_own() {
        let limit = |per_second| Some(Limit { per_second, burst: 0 });
        let limits = Limits {
            read_iops: limit(1_000),
            write_iops: limit(200),
            iops: limit(1_100),
            ..Limits::default()
        };
        let mut bucket = Bucket::new(limits, at(0));
        let [reads, changes] = given(&mut bucket, &[(1, 64, 64)], 10_000, WHOLE)[0];
        assert!(reads <= 10_100 && changes <= 2_020, "{reads} and {changes}");
        assert!((10_800..=11_111).contains(&(reads + changes)), "{reads} and {changes}");
    }

    #[test]
    fn a_part_of_a_rate_is_given_where_others_give_the_rest() {
        let mut bucket = Bucket::new(limits(3_000), at(0));
        let sums = given(&mut bucket, &[(1, 64, 0)], 10_000, Part { of: 2, all: 3 });
        assert!((19_500..=20_500).contains(&sums[0][READS]), "{sums:?}");
    }

    #[test]
    fn what_was_saved_up_is_given_at_once_and_no_more_than_may_be() {
        let limits = Limits { iops: Some(Limit { per_second: 100, burst: 5_000 }), ..Limits::default() };
        let mut bucket = Bucket::new(limits, at(0));
        let gets = |bucket: &mut Bucket, count, milliseconds| {
            bucket.wants(OsdId(1), None, &want(count, 0), false, at(milliseconds));
            bucket
                .give(at(milliseconds), WHOLE, true)
                .iter()
                .map(|(_, _, ways)| ways.0[READS].operations)
                .sum::<i64>()
        };
        assert_eq!(gets(&mut bucket, 10, 0), 0, "nothing was saved up yet");
        assert_eq!(gets(&mut bucket, 10_000, 1_000_000), 5_000);
        assert_eq!(gets(&mut bucket, 0, 1_000_100), 10);
        // Set lower, no more is there than could be by that.
        let now = Limits { iops: Some(Limit { per_second: 100, burst: 50 }), ..Limits::default() };
        bucket.wants(OsdId(1), None, &want(10_000, 0), false, at(2_000_000));
        bucket.heed(now, at(2_000_000));
        assert_eq!(gets(&mut bucket, 0, 2_000_000), 50);
    }

    #[test]
    fn what_was_asked_on_a_link_that_ended_is_forgotten() {
        let mut bucket = Bucket::new(limits(1_000), at(0));
        let [older, newer] = [1, 2].map(|link| Some(LinkId(link)));
        bucket.wants(OsdId(1), older, &want(5, 0), false, at(0));
        bucket.wants(OsdId(1), newer, &want(3, 0), false, at(0));
        bucket.wants(OsdId(2), older, &want(7, 0), false, at(0));
        bucket.keep(|_, link| link == newer);
        let told = bucket.give(at(1_000), WHOLE, true);
        assert_eq!(told, [(OsdId(1), newer, want(3, 0))]);
        assert_eq!(bucket.next_at, None, "nobody wants anything");
    }

    #[test]
    fn what_is_saved_up_beside_a_home_is_next_to_nothing_and_a_new_home_begins_with_nothing() {
        let limits = Limits { iops: Some(Limit { per_second: 100, burst: 5_000 }), ..Limits::default() };
        let mut bucket = Bucket::new(limits, at(0));
        let all = |told: Vec<(OsdId, Option<LinkId>, Ways)>| {
            told.iter().map(|(_, _, ways)| ways.0[READS].operations).sum::<i64>()
        };
        bucket.wants(OsdId(1), None, &want(10_000, 0), false, at(1_000_000));
        assert_eq!(all(bucket.give(at(1_000_000), WHOLE, false)), 10);
        bucket.begin_anew(at(2_000_000));
        bucket.wants(OsdId(1), None, &want(10_000, 0), false, at(2_000_100));
        assert_eq!(all(bucket.give(at(2_000_100), WHOLE, true)), 10);
    }

    #[test]
    fn what_somebody_asks_for_beyond_all_measure_is_no_harm() {
        let mut bucket = Bucket::new(limits(1 << 50), at(0));
        let most = Amount { operations: i64::MAX, bytes: i64::MAX };
        for osd in 0..100 {
            bucket.wants(OsdId(osd), None, &Ways([most; 2]), false, at(0));
            bucket.wants(OsdId(osd), None, &Ways([most; 2]), false, at(0));
        }
        let told = bucket.give(at(1 << 40), WHOLE, true);
        assert!(
            told.iter().all(|(_, _, ways)| ways.0.iter().all(|amount| amount.bytes == 0)),
            "no limit counts them"
        );
    }

    #[test]
    fn bytes_are_given_as_they_come() {
        let bandwidth = Some(Limit { per_second: 1 << 20, burst: 0 });
        let mut bucket = Bucket::new(Limits { bandwidth, ..Limits::default() }, at(0));
        let all = Ways([Amount::default(), Amount { operations: 0, bytes: 1 << 30 }]);
        bucket.wants(OsdId(1), None, &all, false, at(0));
        let (mut now, mut gets) = (at(0), 0);
        while now < at(10_000) {
            gets +=
                bucket.give(now, WHOLE, true).iter().map(|(_, _, ways)| ways.0[CHANGES].bytes).sum::<i64>();
            now = bucket.next_at.unwrap();
        }
        assert!((gets - (10 << 20)).abs() <= 1 << 18, "{gets}");
    }
}
