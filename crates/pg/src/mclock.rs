//! Whose requests begin next where clients want more of several volumes than this OSD does: mClock, with reservations and weights.
//!
//! As long as one volume alone is used, its requests begin when they come. Where several are, no more is under way for clients than
//! keeps a drive busy ([`UnderWay`]), so that what begins is not behind much; and what has to wait stays in its connection. Then
//! begins, of what is there,
//!
//! 1. what is *reserved*: each volume with a reservation has so many operations a second that begin at once, however much is under
//!    way. All reservations together are less than what OSDs do: that is checked when one is set;
//! 2. then the rest, by *weight*: each volume has a time of its own, which goes on with what it begins that is not reserved, the slower
//!    the more its weight is; the volume with the earliest begins. One that wanted nothing for a while has saved up nothing: its time
//!    goes on from where that of the others is.
//!
//! The third thing that mClock has, the *limit*, counts over all OSDs, and is in [`crate::limits`].
//!
//! A reservation is the volume's at all of its primaries together: each gives it the part that it leads of the groups of its pool.
//! So who asks only a few of them for something has less reserved, and the rest by weight.
//!
//! What waits is asked for again with each turn, by its connection. So a volume *waits* if it was sent away in this turn or in the one
//! before: whoever is gone holds up nobody for longer.

mod depth;

use base::figures::RequestKind;
use base::hash::Map;
use base::map::ClusterMap;
use base::{BLOCK_BYTES, Instant, OsdId, PoolId, Qos, VolumeId};
use depth::Depth;
use std::time::Duration;

/// What an operation costs, whatever its length, in blocks.
const OPERATION_COST: u32 = 4;
/// What an operation of one block costs.
const UNIT: u32 = OPERATION_COST + 1;
/// What is under way for clients of several volumes at most: so many operations of one block, or fewer of larger ones.
const UNDER_WAY_MAX: u32 = depth::MAX;
/// For so long an operation counts as under way at least, and for twice that at most. What takes longer does not wait for the drive:
/// it waits for a member that does not answer, or to be mended, and is not to keep others from beginning.
const COUNTED_FOR: Duration = Duration::from_millis(5);
/// Several volumes are used if something was asked of two of them within so long.
const SHARED_FOR: Duration = Duration::from_millis(100);
/// What is reserved can be saved up for so long.
const SAVED_FOR: Duration = Duration::from_millis(10);
/// A volume of which nothing was asked for so long is forgotten.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// The time of a volume of weight 1 goes on by so much with each block.
const TIME_PER_COST: u64 = 10_000;

/// What a request costs of so many bytes. A zeroing moves none.
pub(crate) fn cost_of(kind: RequestKind, bytes: u32) -> u32 {
    let moved = if kind == RequestKind::Zero { 0 } else { bytes };
    OPERATION_COST + moved.div_ceil(BLOCK_BYTES as u32)
}

/// What was begun for clients and has not ended, as far as it was begun a short while ago.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    now: Instant,
    /// What operations cost that were begun in this span, and in the one before.
    lately: u32,
    before: u32,
    since: Instant,
    /// The number of this span.
    span: u32,
    /// By the slot of an operation, if it counts.
    counted: Vec<Option<Counted>>,
    /// How much may be, while something is reserved.
    depth: Depth,
}

/// An operation that counts as under way: what it costs, and since when it does.
#[derive(Clone, Copy, Debug)]
struct Counted {
    cost: u32,
    span: u32,
    /// If it is a small one: how long it takes says something about the drive.
    small: Option<(Instant, bool)>,
}

impl UnderWay {
    /// Time goes on.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.now = now;
        self.depth.turn(now);
        let over = now.since(self.since);
        if over < COUNTED_FOR {
            return;
        }
        self.before = if over < 2 * COUNTED_FOR { self.lately } else { 0 };
        // What was begun in a span that is two ago counts no more, however many were left out.
        self.span = self.span.wrapping_add(if over < 2 * COUNTED_FOR { 1 } else { 2 });
        (self.lately, self.since) = (0, now);
    }

    /// The operation in a slot begins. What is reserved takes no room.
    pub(crate) fn begins(&mut self, slot: u32, kind: RequestKind, bytes: u32, is_reserved: bool) {
        let is_small = bytes == BLOCK_BYTES as u32 && kind != RequestKind::Zero;
        let small = is_small.then_some((self.now, kind == RequestKind::Read));
        let cost = if is_reserved { 0 } else { cost_of(kind, bytes) };
        let slot = slot as usize;
        if slot >= self.counted.len() {
            self.counted.resize(slot + 1, None);
        }
        self.counted[slot] = Some(Counted { cost, span: self.span, small });
        self.lately += cost;
    }

    /// It has ended. One that does not count may be told of too.
    pub(crate) fn ends(&mut self, slot: u32) {
        // What ends in the turn in which it began had no need of the drive.
        if let Some((at, is_read)) = self.take(slot).and_then(|counted| counted.small)
            && self.now > at
        {
            self.depth.ended(is_read, self.now.since(at));
        }
    }

    /// It has to wait for others.
    pub(crate) fn waits(&mut self, slot: u32) {
        self.take(slot);
    }

    fn take(&mut self, slot: u32) -> Option<Counted> {
        let counted = self.counted.get_mut(slot as usize)?.take()?;
        match self.span.wrapping_sub(counted.span) {
            0 => self.lately -= counted.cost,
            1 => self.before -= counted.cost,
            _ => {}
        }
        Some(counted)
    }

    fn has_room(&mut self, cost: u32, is_beside_reserved: bool) -> bool {
        let most = if is_beside_reserved { self.depth.most() } else { UNDER_WAY_MAX };
        let counted = self.lately + self.before;
        let has_room = counted == 0 || counted + cost <= most;
        if !has_room {
            self.depth.is_reached();
        }
        has_room
    }
}

/// What a volume has of this OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    /// How long a reserved operation of one block takes, if some are reserved.
    reserved: Option<Duration>,
    weight: u32,
}

impl Default for Claim {
    fn default() -> Claim {
        Claim { reserved: None, weight: Qos::default().weight.number() }
    }
}

/// How far a volume is.
#[derive(Clone, Copy, Debug, Default)]
struct Tags {
    /// From when on the next reserved operation may begin.
    reserved_at: Instant,
    /// Its own time.
    time: u64,
    /// When something was asked of it last.
    asked_at: Instant,
    /// In which turn it was sent away last, if nothing of it was begun since.
    waits_since: Option<u64>,
}

impl Tags {
    /// Whether something was sent away in this turn or in the one before.
    fn waits(&self, turn: u64) -> bool {
        self.waits_since.is_some_and(|since| since + 1 >= turn)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Mclock {
    /// By the newest map, of those volumes of which something is set.
    claims: Map<VolumeId, Claim>,
    /// Of volumes that were used while others were.
    tags: Map<VolumeId, Tags>,
    /// Those of them that wait, or did so a moment ago. Each of them is looked at with each request while several are used, so these are
    /// few: connections with something that waits are presented a few at a time.
    waiting: Vec<VolumeId>,
    /// Of which something was asked last.
    last: Option<VolumeId>,
    /// Until then several are used.
    shared_until: Instant,
    /// Until then one is used of which something is reserved.
    reserved_until: Instant,
    /// The time of the volume that began last.
    time: u64,
    turn: u64,
    /// When what was sent away is to be looked at again at the latest.
    pub(crate) next_at: Option<Instant>,
}

impl Mclock {
    /// Goes by a newer map.
    pub(crate) fn heed(&mut self, map: &ClusterMap, me: OsdId) {
        let before = std::mem::take(&mut self.claims);
        // How many groups a pool has, and how many of them are led here.
        let mut pools: Map<PoolId, (u64, u64)> = Map::default();
        for (id, info) in map.volumes.iter().filter(|(_, info)| info.is_listed() && !info.qos.is_default()) {
            let (all, led) = *pools.entry(info.pool).or_insert_with(|| {
                map.pgs_of(info.pool)
                    .fold((0, 0), |(all, led), (_, config)| (all + 1, led + u64::from(config.primary == me)))
            });
            let per_second = u64::from(info.qos.reservation) * led;
            let reserved = (per_second > 0).then(|| Duration::from_nanos(all * 1_000_000_000 / per_second));
            self.claims.insert(*id, Claim { reserved, weight: info.qos.weight.number() });
        }
        // What less was reserved of may have begun its next operation in a long while.
        for (id, tags) in &mut self.tags {
            let of = |claims: &Map<VolumeId, Claim>| claims.get(id).and_then(|claim| claim.reserved);
            if of(&before) != of(&self.claims) {
                tags.reserved_at = Instant::default();
            }
        }
    }

    /// Whether something of other volumes was asked for too a short while ago.
    fn is_shared(&mut self, volume: VolumeId, now: Instant) -> bool {
        match self.last.replace(volume) {
            Some(last) if last != volume => self.shared_until = now + SHARED_FOR,
            _ => {}
        }
        now < self.shared_until
    }

    /// Whether a request that costs so much may begin. If not it is to come again after this turn.
    pub(crate) fn may_begin(
        &mut self,
        volume: VolumeId,
        cost: u32,
        under_way: &mut UnderWay,
        now: Instant,
    ) -> bool {
        if !self.is_shared(volume, now) {
            return true;
        }
        let claim = self.claims.get(&volume).copied().unwrap_or_default();
        let (time, turn) = (self.time, self.turn);
        let tags = self.tags.entry(volume).or_default();
        tags.asked_at = now;
        if claim.reserved.is_some() {
            self.reserved_until = now + SHARED_FOR;
            if tags.reserved_at <= now {
                return true;
            }
        }
        let own = tags.time.max(time);
        let is_before = |other: &VolumeId| {
            let waits = self.tags.get(other).filter(|tags| tags.waits(turn));
            *other != volume && waits.is_some_and(|tags| tags.time.max(time) < own)
        };
        let is_beside_reserved = now < self.reserved_until;
        if under_way.has_room(cost, is_beside_reserved) && !self.waiting.iter().any(is_before) {
            return true;
        }
        if let Some(tags) = self.tags.get_mut(&volume) {
            tags.waits_since = Some(turn);
        }
        if !self.waiting.contains(&volume) {
            self.waiting.push(volume);
        }
        self.next_at = Some(now + COUNTED_FOR);
        false
    }

    /// Whether what of a volume begins now is reserved.
    pub(crate) fn is_reserved(&self, volume: VolumeId, now: Instant) -> bool {
        self.claims.get(&volume).is_some_and(|claim| claim.reserved.is_some())
            && self.tags.get(&volume).is_some_and(|tags| tags.reserved_at <= now)
    }

    /// It begins. Answers whether it had been sent away before.
    pub(crate) fn begins(&mut self, volume: VolumeId, cost: u32, now: Instant) -> bool {
        if now >= self.shared_until {
            return false;
        }
        let claim = self.claims.get(&volume).copied().unwrap_or_default();
        let time = self.time;
        let tags = self.tags.entry(volume).or_default();
        match claim.reserved.filter(|_| tags.reserved_at <= now) {
            Some(each) => {
                tags.reserved_at = tags.reserved_at.max(now - SAVED_FOR) + each * cost / UNIT;
            }
            None => {
                let begins = tags.time.max(time);
                tags.time = begins + u64::from(cost) * TIME_PER_COST / u64::from(claim.weight);
                self.time = begins;
            }
        }
        tags.waits_since.take().is_some()
    }

    /// The end of a turn: whoever was sent away comes again.
    pub(crate) fn end_turn(&mut self, now: Instant) {
        self.turn += 1;
        self.waiting.retain(|volume| self.tags.get(volume).is_some_and(|tags| tags.waits(self.turn)));
        if self.next_at.is_some_and(|at| at <= now) {
            self.next_at = None;
        }
    }

    /// Forgets volumes that nobody uses.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.tags.retain(|_, tags| now.since(tags.asked_at) < KNOWN_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{PgConfig, PoolInfo, VolumeInfo};
    use base::{PgId, Weight};
    use std::collections::VecDeque;

    const POOL: PoolId = PoolId(1);
    const ME: OsdId = OsdId(0);

    fn at(microseconds: u64) -> Instant {
        Instant::default() + Duration::from_micros(1_000_000 + microseconds)
    }

    /// A map with volumes of which that is set, and a pool of four groups of which this OSD leads so many.
    fn map_with(qos: &[(VolumeId, Qos)], led: u32) -> ClusterMap {
        let mut map = ClusterMap::default();
        map.pools.insert(POOL, PoolInfo { pg_count: 4, ..PoolInfo::default() });
        for index in 0..4 {
            let primary = if index < led { ME } else { OsdId(1) };
            map.pgs.insert(PgId { pool: POOL, index }, PgConfig { primary, ..PgConfig::default() });
        }
        for (id, qos) in qos {
            map.volumes.insert(*id, VolumeInfo { pool: POOL, qos: *qos, ..VolumeInfo::default() });
        }
        map
    }

    /// Clients that always have so many requests there for each of some volumes, and a drive that ends one thing after the other.
    struct Busy {
        mclock: Mclock,
        under_way: UnderWay,
        ends: VecDeque<u32>,
        slots: u32,
        begun: Map<VolumeId, u32>,
        /// How many of them were sent away before.
        queued: u32,
    }

    impl Busy {
        fn new(map: &ClusterMap) -> Busy {
            let mut mclock = Mclock::default();
            mclock.heed(map, ME);
            Busy {
                mclock,
                under_way: UnderWay::default(),
                ends: VecDeque::new(),
                slots: 0,
                begun: Map::default(),
                queued: 0,
            }
        }

        /// A request comes, or comes again.
        fn asks(&mut self, volume: VolumeId, blocks: u32, now: Instant) -> bool {
            let cost = cost_of(RequestKind::Read, blocks * BLOCK_BYTES as u32);
            self.under_way.turn(now);
            let begins = self.mclock.may_begin(volume, cost, &mut self.under_way, now);
            if begins {
                let is_reserved = self.mclock.is_reserved(volume, now);
                let bytes = blocks * BLOCK_BYTES as u32;
                self.under_way.begins(self.slots, RequestKind::Read, bytes, is_reserved);
                self.queued += u32::from(self.mclock.begins(volume, cost, now));
                self.ends.push_back(self.slots);
                self.slots += 1;
                *self.begun.entry(volume).or_default() += 1;
            }
            begins
        }

        /// In each 10 us something ends, and whoever is there asks for as much as begins, in that order.
        fn run(&mut self, volumes: &[(VolumeId, u32)], microseconds: u64) -> Vec<u32> {
            self.begun.clear();
            // Each is known to be used, before one alone begins all that it has.
            for (volume, _) in volumes {
                self.mclock.is_shared(*volume, at(0));
            }
            for now in (0..microseconds).step_by(10).map(at) {
                if let Some(counted) = self.ends.pop_front() {
                    self.under_way.ends(counted);
                }
                for (volume, blocks) in volumes {
                    while self.asks(*volume, *blocks, now) && self.ends.len() < 10_000 {}
                }
                self.mclock.end_turn(now);
            }
            volumes.iter().map(|(volume, _)| self.begun.get(volume).copied().unwrap_or(0)).collect()
        }
    }

    const A: VolumeId = VolumeId(1);
    const B: VolumeId = VolumeId(2);
    const C: VolumeId = VolumeId(3);

    fn weighs(number: u32) -> Qos {
        Qos { weight: Weight::try_from(number).expect("it is one"), ..Qos::default() }
    }

    fn reserves(reservation: u32) -> Qos {
        Qos { reservation, ..Qos::default() }
    }

    #[test]
    fn a_volume_alone_begins_whatever_comes() {
        let mut busy = Busy::new(&ClusterMap::default());
        assert!((0..1000).all(|_| busy.asks(A, 1, at(0))));
        assert!(!busy.asks(B, 1, at(0)) && !busy.asks(A, 1, at(10)));
        // A while after something was asked of another one.
        assert!((0..1000).all(|_| busy.asks(A, 1, at(200_000))));
    }

    #[test]
    fn of_several_volumes_each_has_its_part_by_weight_whoever_comes_first_and_whatever_it_asks_for() {
        let mut busy = Busy::new(&ClusterMap::default());
        let begun = busy.run(&[(A, 1), (B, 1)], 100_000);
        assert!(begun[0].abs_diff(begun[1]) <= 64 && begun[0] > 4_000, "{begun:?}");
        let mut busy = Busy::new(&map_with(&[(A, weighs(300))], 4));
        let begun = busy.run(&[(B, 1), (A, 1)], 100_000);
        assert!((28..=32).contains(&(begun[1] * 10 / begun[0])), "{begun:?}");
        // 64 blocks cost as much as thirteen times one.
        let mut busy = Busy::new(&ClusterMap::default());
        let begun = busy.run(&[(B, 64), (A, 1)], 100_000);
        assert!((12..=15).contains(&(begun[1] / begun[0])), "{begun:?}");
    }

    #[test]
    fn those_that_wait_are_noted_once_however_long_that_goes_on() {
        let mut busy = Busy::new(&ClusterMap::default());
        busy.run(&[(A, 1), (B, 1)], 100_000);
        assert_eq!(busy.mclock.waiting.len(), 2);
    }

    #[test]
    fn what_is_reserved_takes_no_room_from_the_rest_and_the_largest_begin_beside_it() {
        // More is reserved than ends, and none of it does.
        let mut busy = Busy::new(&map_with(&[(A, reserves(20_000))], 4));
        let mut begun = [0; 3];
        for now in (0..100_000).step_by(10).map(at) {
            // Whatever else ends at once.
            busy.ends.drain(..).for_each(|slot| busy.under_way.ends(slot));
            begun[0] += u32::from(busy.asks(A, 1, now));
            begun[1] += u32::from(busy.asks(B, 64, now));
            begun[2] += u32::from(busy.asks(C, 1, now));
            busy.mclock.end_turn(now);
        }
        assert!(begun[0] >= 2_000 && begun[1] >= 500 && begun[2] >= 5_000, "{begun:?}");
    }

    #[test]
    fn what_is_reserved_from_now_on_does_not_wait_for_what_was_before() {
        let mut busy = Busy::new(&map_with(&[(A, reserves(1))], 1));
        busy.asks(B, 1, at(0));
        assert!(busy.asks(A, 64, at(0)), "it is reserved");
        assert!(busy.mclock.tags[&A].reserved_at > at(50_000_000));
        busy.mclock.heed(&map_with(&[(A, reserves(1))], 1), ME);
        assert!(!busy.mclock.is_reserved(A, at(10)));
        busy.mclock.heed(&map_with(&[(A, reserves(5_000))], 1), ME);
        assert!(busy.mclock.is_reserved(A, at(10)));
    }

    #[test]
    fn who_asks_for_little_waits_for_one_end_at_most_and_who_asked_for_nothing_has_saved_up_nothing() {
        let mut busy = Busy::new(&ClusterMap::default());
        busy.run(&[(A, 1), (B, 1)], 20_000);
        // B does nothing for a while, in which C comes.
        busy.run(&[(A, 1), (C, 1)], 50_000);
        let now = at(50_000);
        busy.mclock.end_turn(now);
        assert!(!busy.asks(B, 1, now), "so much is under way");
        let ended = busy.ends.pop_front().expect("it is");
        busy.under_way.ends(ended);
        let queued = busy.queued;
        assert!(!busy.asks(A, 1, now) && busy.asks(B, 1, now));
        assert_eq!(busy.queued, queued + 1, "B was sent away once");
        let mut others = Busy::new(&ClusterMap::default());
        std::mem::swap(&mut others.mclock, &mut busy.mclock);
        let begun = others.run(&[(A, 1), (B, 1), (C, 1)], 60_000);
        assert!(begun[1].abs_diff(begun[0]) <= 64 && begun[1].abs_diff(begun[2]) <= 64, "{begun:?}");
    }

    #[test]
    fn what_is_reserved_begins_at_once_and_beyond_that_goes_by_weight() {
        // Half of the groups are led here: so much of 10,000 a second, and each 200 us one.
        let mut busy = Busy::new(&map_with(&[(A, reserves(10_000))], 2));
        assert_eq!(busy.mclock.claims[&A].reserved, Some(Duration::from_micros(200)));
        // Nothing ends.
        let mut begun = [0, 0];
        for now in (0..4_000).step_by(10).map(at) {
            begun[1] += u32::from(busy.asks(B, 1, now));
            begun[0] += u32::from(busy.asks(A, 1, now));
            busy.mclock.end_turn(now);
        }
        assert!((20..=80).contains(&begun[0]), "{begun:?}: 10 ms are saved up");
        assert!(begun[1] <= UNDER_WAY_MAX / UNIT, "{begun:?}");
        // Ten thousand a tenth of a second, of which a twentieth are reserved; the rest is halved.
        let mut busy = Busy::new(&map_with(&[(A, reserves(10_000))], 2));
        let begun = busy.run(&[(A, 1), (B, 1)], 100_000);
        assert!(begun[0].abs_diff(begun[1] + 500) <= 150, "{begun:?}");
        // None of the groups is led here, and nothing is reserved of the volume in the trash.
        let busy = Busy::new(&map_with(&[(A, reserves(10_000))], 0));
        assert_eq!(busy.mclock.claims[&A].reserved, None);
    }

    #[test]
    fn a_reservation_of_larger_operations_lasts_less_long() {
        let mut busy = Busy::new(&map_with(&[(A, reserves(1_000))], 4));
        let mut of = |blocks: u32, start: u64| {
            (0..100_000)
                .step_by(10)
                .filter(|now| {
                    let now = at(start + now);
                    busy.asks(B, 1, now);
                    let is_reserved = busy.mclock.is_reserved(A, now);
                    let begins = busy.asks(A, blocks, now);
                    busy.mclock.end_turn(now);
                    begins && is_reserved
                })
                .count()
        };
        let (small, large) = (of(1, 0), of(16, 1_000_000));
        assert!((75..=115).contains(&small), "{small} {large}");
        assert!((small / 5..=small / 3).contains(&large), "{small} {large}: each counts for four");
    }

    #[test]
    fn what_does_not_end_keeps_others_from_beginning_for_some_milliseconds_only() {
        let mut busy = Busy::new(&ClusterMap::default());
        busy.asks(A, 1, at(0));
        while busy.asks(B, 1, at(0)) {}
        assert!(!busy.asks(A, 1, at(9_000)) && busy.mclock.next_at == Some(at(14_000)));
        assert!(busy.asks(A, 1, at(14_000)));
        // What ends late is not taken off what was begun since.
        while let Some(ended) = busy.ends.pop_front() {
            busy.under_way.ends(ended);
        }
        assert_eq!((busy.under_way.lately, busy.under_way.before), (0, 0));
    }

    #[test]
    fn who_was_sent_away_and_does_not_come_again_holds_up_nobody_for_longer_than_a_turn() {
        let mut busy = Busy::new(&ClusterMap::default());
        busy.asks(A, 1, at(0));
        while busy.asks(B, 1, at(0)) {}
        // It began nothing yet, so it is before B; and it goes.
        assert!(!busy.asks(C, 1, at(10)));
        let ended = busy.ends.pop_front().expect("it is under way");
        busy.under_way.ends(ended);
        busy.mclock.end_turn(at(10));
        assert!(!busy.asks(B, 1, at(20)));
        busy.mclock.end_turn(at(20));
        assert!(busy.asks(B, 1, at(30)));
    }

    #[test]
    fn volumes_that_nobody_uses_are_forgotten() {
        let mut busy = Busy::new(&ClusterMap::default());
        busy.run(&[(A, 1), (B, 1)], 1_000);
        busy.mclock.tick(at(900_000));
        assert_eq!(busy.mclock.tags.len(), 2);
        busy.mclock.tick(at(1_001_000));
        assert!(busy.mclock.tags.is_empty());
    }
}
