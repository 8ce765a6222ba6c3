//! How an OSD that serves clients spaces out the work that none of them waits for: so that each class of it is a share of what it does.
//!
//! # Recovery
//! People set the share ([`base::RecoveryShare`]), or a [profile](base::Profile) of all classes. What clients get is counted as it is done, here and as a replica; by that
//! the pushes go, at a pace of their own: small ones, evenly spaced, since a client waits behind all of one. So recovery takes
//! as much of a fast machine as of a slow one. Where clients ask for little, their share says nothing of what the machine can
//! do: then pushes come at the least pace, which tells how long recovery takes at most.
//!
//! What is under way is bounded besides. Drives that cannot take the least pace are not given more than they can take.
//!
//! A group that takes no writes for want of members in sync is not spaced out: that is what its clients wait for.
//!
//! # Removal and deletion
//! They go by their shares in the same way. What they begin is small, and looked for with each tick: so they begin as much at a time as
//! their share is of the time since. How scrubs pause is in [`crate::heal::scrub`].

use base::{BLOCK_BYTES, Instant, RecoveryShare, WorkClass};
use std::time::Duration;

/// Blocks pushed at a time.
pub(crate) const PUSH_BLOCKS: u16 = 64;
/// The same while clients are served: what is behind a push in a queue waits for all of it.
const PUSH_BLOCKS_BUSY: u16 = 16;
/// Blocks on their way to learners while clients are served.
const PUSHED_MAX_BUSY: u32 = 4 * PUSH_BLOCKS_BUSY as u32;
/// What an operation costs, whatever its length, in blocks.
const OPERATION_COST: u32 = 4;
/// Whole pushes a second, for each percent of the share, that are the least: 2 MiB.
const LEAST_PER_PERCENT: u32 = (2 << 20) / (PUSH_BLOCKS_BUSY as u32 * BLOCK_BYTES as u32);
/// Clients are served if there was something of theirs to do so shortly before.
const BUSY_FOR: Duration = Duration::from_millis(200);
/// What clients get is counted over so long.
const COUNTED_OVER: Duration = Duration::from_millis(100);
/// A push that comes so much too late, because others had the processor, is made up for.
const LATE_MAX: Duration = Duration::from_millis(1);
/// The same of removals, which are looked for each 10 ms, and of deletions, with each tick of the router: one that is late is made up for.
const REMOVAL_LATE_MAX: Duration = Duration::from_millis(20);
const DELETION_LATE_MAX: Duration = Duration::from_millis(200);
/// What deleting blocks costs, however many: there is no data in it, and it is done at three members as a rule. What clients write is
/// counted at each of them.
pub(crate) const DELETION_COST: u32 = 3 * OPERATION_COST;
/// What copying a block costs: as much as one of many in a push.
pub(crate) const COPY_COST: u32 = 3;
/// Nobody is held up for longer by pushes that could not wait.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What an operation costs, in blocks.
fn cost_of(blocks: u32) -> u32 {
    OPERATION_COST + blocks
}

/// What a push costs: it is read here and written there.
fn cost_of_push(blocks: u16) -> u32 {
    2 * cost_of(blocks.into())
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the pushes so far have had their time.
    free_at: Instant,
    /// When the next push may be started; `None` if nothing waits for that.
    pub(crate) next_at: Option<Instant>,
    /// When there last was something of a client's to do, here or as a replica.
    client_at: Instant,
    clients: Counted,
    /// When what was begun of removals, and of deletions, has had its time.
    removals_free_at: Instant,
    deletions_free_at: Instant,
}

/// What clients get.
#[derive(Debug, Default)]
struct Counted {
    since: Instant,
    cost: u64,
    /// In the last span that is over.
    per_second: u64,
}

impl Counted {
    fn turn(&mut self, now: Instant) {
        let over = now.since(self.since);
        if over >= COUNTED_OVER {
            self.per_second = (u128::from(self.cost) * NANOSECONDS / over.as_nanos()) as u64;
            (self.cost, self.since) = (0, now);
        }
    }
}

const NANOSECONDS: u128 = Duration::from_secs(1).as_nanos();

impl Pace {
    /// There is something of a client's to do.
    pub(crate) fn client_came(&mut self, now: Instant) {
        self.client_at = now;
    }

    /// Something of a client's is done, of so many bytes.
    pub(crate) fn client_was_served(&mut self, now: Instant, bytes: u64) {
        self.clients.turn(now);
        self.clients.cost += u64::from(cost_of(bytes.div_ceil(BLOCK_BYTES as u64) as u32));
    }

    fn is_busy(&self, now: Instant) -> bool {
        now.since(self.client_at) < BUSY_FOR
    }

    /// Whether one more push may be started, when so many blocks are on their way to learners.
    pub(crate) fn may_push(&self, now: Instant, pushed: u32) -> bool {
        !self.is_busy(now) || self.free_at <= now && pushed < PUSHED_MAX_BUSY
    }

    /// How many blocks may be on their way to each of so many learners.
    pub(crate) fn pushed_max(&self, now: Instant, learners: usize) -> u32 {
        if !self.is_busy(now) {
            return u32::MAX;
        }
        (PUSHED_MAX_BUSY / learners.max(1) as u32).max(PUSH_BLOCKS_BUSY.into())
    }

    /// How many blocks a push may have.
    pub(crate) fn push_blocks(&self, now: Instant) -> u16 {
        if self.is_busy(now) { PUSH_BLOCKS_BUSY } else { PUSH_BLOCKS }
    }

    /// A push of so many blocks is started, where recovery has that share.
    pub(crate) fn push_begins(&mut self, now: Instant, blocks: u16, share: RecoveryShare) {
        let takes = self.time_of(now, cost_of_push(blocks), share);
        let began = self.free_at.max(now - LATE_MAX);
        self.free_at = (began + takes).min(now + PAUSE_MAX);
        self.next_at = (self.free_at > now).then_some(self.free_at);
    }

    /// How long it is until as much may be begun again as costs that, of what has such a share.
    fn time_of(&mut self, now: Instant, cost: u32, share: RecoveryShare) -> Duration {
        self.clients.turn(now);
        let percent = share.percent();
        let of_clients = self.clients.per_second * u64::from(percent) / u64::from(100 - percent);
        let least = u64::from(percent * LEAST_PER_PERCENT * cost_of_push(PUSH_BLOCKS_BUSY));
        Duration::from_nanos(u64::from(cost) * NANOSECONDS as u64 / of_clients.max(least))
    }

    /// When what was begun of a class has had its time. Those that are not spaced out here are free.
    fn free_at_of(&mut self, class: WorkClass) -> Option<&mut Instant> {
        match class {
            WorkClass::Removal => Some(&mut self.removals_free_at),
            WorkClass::Deletion => Some(&mut self.deletions_free_at),
            WorkClass::Recovery | WorkClass::Scrub => None,
        }
    }

    /// Whether more may be begun of a removal or a deletion.
    pub(crate) fn may_work(&mut self, now: Instant, class: WorkClass) -> bool {
        let is_busy = self.is_busy(now);
        !is_busy || self.free_at_of(class).is_none_or(|free_at| *free_at <= now)
    }

    /// Something that costs so much is begun of a removal or a deletion, which have such a share.
    pub(crate) fn work_begins(&mut self, now: Instant, class: WorkClass, cost: u32, share: RecoveryShare) {
        let takes = self.time_of(now, cost, share);
        let late_max = if class == WorkClass::Deletion { DELETION_LATE_MAX } else { REMOVAL_LATE_MAX };
        if let Some(free_at) = self.free_at_of(class) {
            *free_at = ((*free_at).max(now - late_max) + takes).min(now + PAUSE_MAX);
        }
    }

    /// The next push may be started.
    pub(crate) fn pause_ends(&mut self) {
        self.next_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Instant {
        Instant::default() + Duration::from_micros(microseconds)
    }

    /// Blocks a second that are pushed, in pushes of `blocks`, while clients get so many operations of a block each a second.
    fn pushed_beside(share: u8, operations: u64, blocks: u16) -> u32 {
        let share = RecoveryShare::try_from(share).expect("it is one");
        let mut pace = Pace::default();
        let mut pushed = 0;
        for tick in 0..110_000 {
            let now = at(1_000_000 + 10 * tick);
            pace.client_came(now);
            if tick * operations / 100_000 != (tick + 1) * operations / 100_000 {
                pace.client_was_served(now, 4096);
            }
            if pace.next_at.is_none_or(|next| now >= next) && pace.may_push(now, 0) {
                pace.pause_ends();
                pace.push_begins(now, blocks.min(pace.push_blocks(now)), share);
                // Once it is known what clients get.
                if tick >= 10_000 {
                    pushed += u32::from(blocks.min(PUSH_BLOCKS_BUSY));
                }
            }
        }
        pushed
    }

    fn is_about(blocks: u32, expected: u32) -> bool {
        blocks.abs_diff(expected) <= expected / 20
    }

    #[test]
    fn who_asks_for_little_leaves_the_least_pace_and_that_is_as_documented() {
        for share in [1, 20, 80] {
            let blocks = pushed_beside(share, 100, 64);
            assert!(is_about(blocks, u32::from(share) * 512), "{blocks} blocks at {share}%");
        }
        assert!(
            is_about(pushed_beside(20, 100, 1), 20 * 32 * 4),
            "a single block costs a quarter of a whole push"
        );
    }

    #[test]
    fn beside_busy_clients_recovery_is_its_share_of_all_that_is_done() {
        // 80,000 operations of five each, and a quarter of that for pushes of forty.
        let blocks = pushed_beside(20, 80_000, 64);
        assert!(is_about(blocks, 80_000 * 5 / 4 / 40 * 16), "{blocks} blocks");
        let blocks = pushed_beside(50, 80_000, 1);
        assert!(
            is_about(blocks, 40_000),
            "{blocks} blocks, of which each is an operation here and one there"
        );
    }

    #[test]
    fn what_could_not_wait_holds_up_nobody_for_long() {
        let mut pace = Pace::default();
        pace.client_came(at(1_000_000));
        for _ in 0..10_000 {
            pace.push_begins(at(1_000_000), PUSH_BLOCKS, RecoveryShare::default());
        }
        assert!(!pace.may_push(at(1_099_999), 0));
        assert!(pace.may_push(at(1_100_000), 0));
    }

    #[test]
    fn no_more_is_under_way_than_drives_take() {
        let mut pace = Pace::default();
        pace.client_came(at(1_000_000));
        assert!(pace.may_push(at(1_000_000), PUSHED_MAX_BUSY - 1));
        assert!(!pace.may_push(at(1_000_000), PUSHED_MAX_BUSY));
    }

    #[test]
    fn each_of_several_learners_has_its_part_and_room_for_a_push_at_least() {
        let mut pace = Pace::default();
        pace.client_came(at(1_000_000));
        let each = |learners| pace.pushed_max(at(1_000_000), learners);
        assert_eq!([0, 1, 2, 4, 5].map(each), [64, 64, 32, 16, 16]);
        assert_eq!(pace.pushed_max(at(1_200_000), 4), u32::MAX, "nobody is served");
    }

    #[test]
    fn nobody_is_spared_where_nobody_is_served() {
        let mut pace = Pace::default();
        pace.client_came(at(1_000_000));
        assert_eq!(pace.push_blocks(at(1_199_999)), PUSH_BLOCKS_BUSY);
        pace.push_begins(at(1_199_999), 1000, RecoveryShare::default());
        assert!(!pace.may_push(at(1_199_999), 0));
        assert!(pace.may_push(at(1_200_000), u32::MAX));
        assert_eq!(pace.push_blocks(at(1_200_000)), PUSH_BLOCKS);
    }

    #[test]
    fn pushes_are_spaced_out_evenly_and_what_was_late_by_a_moment_is_made_up_for() {
        let mut pace = Pace::default();
        // Each costs forty of 12,800 a second.
        for (now, next) in
            [(1_000_000, 1_002_125), (1_000_000, 1_005_250), (1_005_750, 1_008_375), (1_018_375, 1_020_500)]
        {
            pace.push_begins(at(now), PUSH_BLOCKS_BUSY, RecoveryShare::default());
            assert_eq!(pace.next_at, Some(at(next)));
        }
        pace.pause_ends();
        assert_eq!(pace.next_at, None);
    }

    /// By when twenty pushes have had their time that begin then, where half of all is for recovery, and clients were served a
    /// thousand times at each of these moments: when, and how many bytes each.
    fn free_after(served: &[(u64, u64)], now: u64) -> Duration {
        let share = RecoveryShare::try_from(50_u8).expect("it is one");
        let mut pace = Pace::default();
        for (moment, bytes) in served {
            (0..1000).for_each(|_| pace.client_was_served(at(*moment), *bytes));
        }
        (0..20).for_each(|_| pace.push_begins(at(now), PUSH_BLOCKS_BUSY, share));
        pace.free_at.since(at(now))
    }

    #[test]
    fn what_clients_get_counts_for_pushes_when_a_tenth_of_a_second_is_over() {
        let blocks = |count: u64| count * BLOCK_BYTES as u64;
        // All began a millisecond ago. Of the least pace, 64,000 a second, each takes 625 us; of 200,000 a second 200 us.
        let (least, busy) = (Duration::from_micros(11_500), Duration::from_micros(3_000));
        let served = [(1_000_000, blocks(16))];
        assert_eq!(free_after(&served, 1_099_999), least, "the tenth is not over");
        assert_eq!(free_after(&served, 1_100_000), busy);
        assert_eq!(free_after(&[(1_000_000, blocks(15) + 1)], 1_100_000), busy, "a part of a block is one");
        // The span that is over counts for the next one, which is another one.
        let served = [(1_000_000, blocks(96)), (1_500_000, 0)];
        assert_eq!(free_after(&served, 1_599_999), busy);
        assert_eq!(free_after(&served, 1_600_000), least);
    }

    /// How much of a class is begun in a second, looked at each 10 ms, while clients get so many operations of a block each a second.
    fn begun_beside(share: u8, operations: u64, cost: u32) -> u32 {
        let share = RecoveryShare::try_from(share).expect("it is one");
        let (mut pace, mut begun) = (Pace::default(), 0);
        for look in 0..200 {
            let now = at(1_000_000 + 10_000 * look);
            pace.client_came(now);
            (0..operations / 100).for_each(|_| pace.client_was_served(now, 4096));
            while pace.may_work(now, WorkClass::Removal) {
                pace.work_begins(now, WorkClass::Removal, cost, share);
                begun += u32::from(look >= 100);
            }
        }
        begun
    }

    #[test]
    fn removals_are_their_share_of_what_is_done_and_have_a_least_pace_too() {
        // 1,280 for each percent.
        assert!(is_about(begun_beside(10, 100, DELETION_COST), 12_800 / 12));
        assert!(is_about(begun_beside(3, 100, DELETION_COST), 3_840 / 12));
        // 80,000 operations of five each, and a ninth of that.
        assert!(is_about(begun_beside(10, 80_000, COPY_COST), 400_000 / 9 / 3));
    }

    #[test]
    fn one_class_does_not_wait_for_another_and_none_where_nobody_is_served() {
        let mut pace = Pace::default();
        let share = RecoveryShare::default();
        pace.client_came(at(1_000_000));
        while pace.may_work(at(1_000_000), WorkClass::Removal) {
            pace.work_begins(at(1_000_000), WorkClass::Removal, DELETION_COST, share);
        }
        assert!(pace.may_work(at(1_000_000), WorkClass::Deletion) && pace.may_push(at(1_000_000), 0));
        assert!(pace.may_work(at(1_200_000), WorkClass::Removal));
    }

    #[test]
    fn nothing_is_waited_for_behind_a_push_that_has_had_its_time() {
        let mut pace = Pace::default();
        pace.client_came(at(1_000_000));
        // A millisecond is made up for, and a single block takes less than that at this share.
        let share = RecoveryShare::try_from(80_u8).expect("it is one");
        pace.push_begins(at(1_000_000), 1, share);
        assert_eq!(pace.next_at, None);
        assert!(pace.may_push(at(1_000_000), 0));
    }
}
