//! What is known of damage: how much was met, and which blocks nobody has.

use crate::disk::Disk;
use crate::report::{DamageCounts, LostBlock};
use base::{Instant, ObjectKey, PgId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::Location;
use wire::Status;

/// Lost blocks that are remembered one by one.
const LOST_MAX: usize = 4096;
/// A drive that could not read a block for so long, whenever it was tried, will not read it any more.
const UNREADABLE_FOR: Duration = Duration::from_secs(60);
/// Two failures so far apart are not the same: in between nobody looked.
const UNREADABLE_GAP: Duration = Duration::from_secs(30);
/// How long members are not asked again for a block that nobody had.
const LOST_PAUSE: Duration = Duration::from_secs(1);

/// How sure it is that nobody has a block, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Absence {
    /// A member that did not answer may have it.
    Unknown,
    /// Every member answered, and a drive could not read what it has.
    Unreadable,
    /// No member has a copy that verifies.
    Certain,
}

impl Absence {
    pub(crate) fn of(status: Status) -> Absence {
        match status {
            Status::NotActive => Absence::Unknown,
            Status::DeviceFailed => Absence::Unreadable,
            _ => Absence::Certain,
        }
    }
}

/// A block that nobody had, and where this OSD's damaged copy lies.
#[derive(Clone, Copy, Debug)]
struct Lost {
    location: Location,
    /// What came of it when members were asked; `None` in an epoch in which they were not yet.
    answer: Option<Answer>,
}

/// What came of asking all members for a block.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// When they were asked last.
    since: Instant,
    /// When they were asked for it first, of the times that followed each other closely and to which all of them answered.
    first_at: Instant,
    absence: Absence,
}

impl Lost {
    /// Whether no other time will show a sound copy.
    fn is_for_good(&self) -> bool {
        self.answer.is_some_and(|Answer { since, first_at, absence }| match absence {
            Absence::Unknown => false,
            Absence::Unreadable => since.since(first_at) >= UNREADABLE_FOR,
            Absence::Certain => true,
        })
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    pub(crate) counts: DamageCounts,
    /// Blocks of which no member had a sound copy.
    lost: BTreeMap<(ObjectKey, u16), Lost>,
    /// Those of them for which members are to be asked again.
    to_ask: Vec<(ObjectKey, u16)>,
}

impl Damage {
    /// Whether no member had a sound copy of a block when they were asked a moment ago.
    pub(crate) fn is_lost(&mut self, disk: &mut Disk, now: Instant, key: ObjectKey, block: u16) -> bool {
        let Some(known) = self.lost.get(&(key, block)).copied() else { return false };
        if disk.location_of(key, block) != Some(known.location) {
            // It was written anew, or moved.
            self.lost.remove(&(key, block));
            return false;
        }
        known.answer.is_some_and(|answer| now.since(answer.since) < LOST_PAUSE)
    }

    /// Notes that nobody had the block that lies there. Answers whether that is new.
    pub(crate) fn nobody_has(
        &mut self,
        now: Instant,
        key: ObjectKey,
        block: u16,
        location: Location,
        absence: Absence,
    ) -> bool {
        if self.lost.len() >= LOST_MAX {
            self.lost.pop_first();
        }
        let before = self.lost.get(&(key, block)).filter(|lost| lost.location == location);
        let goes_on =
            |answer: &Answer| now.since(answer.since) < UNREADABLE_GAP && answer.absence > Absence::Unknown;
        let before = before.and_then(|lost| lost.answer).filter(goes_on);
        let first_at = before.map_or(now, |answer| answer.first_at);
        let answer = Some(Answer { since: now, first_at, absence });
        self.lost.insert((key, block), Lost { location, answer }).is_none()
    }

    /// A block was read without damage.
    pub(crate) fn is_sound(&mut self, key: ObjectKey, block: u16) {
        self.lost.remove(&(key, block));
    }

    /// A new epoch begins: members may have come back with sound copies, so they are asked again. Until one has brought its
    /// copy, the group wants it as before.
    pub(crate) fn ask_again(&mut self, pg: PgId) {
        self.to_ask.retain(|(key, _)| key.pg != pg);
        for (place, lost) in self.lost.iter_mut().filter(|((key, _), _)| key.pg == pg) {
            lost.answer = None;
            if self.to_ask.len() < LOST_MAX {
                self.to_ask.push(*place);
            }
        }
    }

    /// The next block for which members are to be asked again.
    pub(crate) fn next_to_ask(&mut self) -> Option<(ObjectKey, u16)> {
        self.to_ask.pop()
    }

    /// Whether there is none.
    pub(crate) fn asks_nothing(&self) -> bool {
        self.to_ask.is_empty()
    }

    /// Whether every member said that it has no sound copy of a block, or cannot read the one it has now.
    pub(crate) fn cannot_be_read(&self, key: ObjectKey, block: u16) -> bool {
        let answer = self.lost.get(&(key, block)).and_then(|lost| lost.answer);
        answer.is_some_and(|answer| answer.absence > Absence::Unknown)
    }

    /// Whether no member has a sound copy of a block, nor one that its drive may read another time.
    pub(crate) fn is_lost_for_good(&self, key: ObjectKey, block: u16) -> bool {
        self.lost.get(&(key, block)).is_some_and(Lost::is_for_good)
    }

    /// The blocks of the groups this OSD is primary of that no member has a sound copy of, in order.
    pub(crate) fn lost_blocks(&self, disk: &mut Disk) -> Vec<LostBlock> {
        let mut lost = Vec::new();
        for (key, block, _) in self.still_lost(disk).filter(|(.., known)| known.is_for_good()) {
            lost.push(LostBlock { pg: key.pg, layer: key.layer, object: key.object, block });
        }
        lost.sort_unstable_by_key(|lost| (lost.layer, lost.object, lost.block));
        lost
    }

    /// The groups with a block of which nobody who answered had a sound copy, in order. Somebody may come back with one.
    pub(crate) fn groups_in_want(&self, disk: &mut Disk) -> BTreeSet<PgId> {
        self.still_lost(disk).map(|(key, ..)| key.pg).collect()
    }

    /// What nobody had, and was neither written anew nor moved since.
    fn still_lost<'a>(&'a self, disk: &'a mut Disk) -> impl Iterator<Item = (ObjectKey, u16, &'a Lost)> {
        let all = self.lost.iter().map(|((key, block), known)| (*key, *block, known));
        all.filter(|(key, block, known)| disk.location_of(*key, *block) == Some(known.location))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{OperationKind, Purpose};
    use crate::replication::order;
    use crate::testing::{Alone, PG, VOLUME};
    use base::{BLOCK_BYTES, BlockRange, crc32c};
    use zerocopy::little_endian::U32;

    #[test]
    fn a_drive_that_does_not_read_for_a_minute_will_not_read_any_more() {
        let mut damage = Damage::default();
        let (key, place) = (ObjectKey::default(), Location(9));
        let at = |seconds| Instant::default() + Duration::from_secs(seconds);
        assert!(damage.nobody_has(at(0), key, 1, place, Absence::Unreadable));
        assert!(damage.cannot_be_read(key, 1) && !damage.is_lost_for_good(key, 1));
        for seconds in [25, 50] {
            assert!(!damage.nobody_has(at(seconds), key, 1, place, Absence::Unreadable));
        }
        assert!(!damage.is_lost_for_good(key, 1));
        damage.nobody_has(at(60), key, 1, place, Absence::Unreadable);
        assert!(damage.is_lost_for_good(key, 1));
        // Somewhere else it is another block, and after a long time another failure.
        damage.nobody_has(at(61), key, 1, Location(10), Absence::Unreadable);
        assert!(!damage.is_lost_for_good(key, 1));
        damage.is_sound(key, 1);
        assert!(!damage.cannot_be_read(key, 1));
    }

    #[test]
    fn what_is_remembered_of_lost_blocks_is_bounded() {
        let mut damage = Damage::default();
        for object in 0..2 * LOST_MAX as u32 {
            let key = ObjectKey { object, ..ObjectKey::default() };
            damage.nobody_has(Instant::default(), key, 0, Location(1), Absence::Certain);
        }
        assert_eq!(damage.lost.len(), LOST_MAX);
        // However often it is noted that they are to be asked for again.
        for _ in 0..2 {
            damage.ask_again(PgId::default());
            assert!(damage.lost.values().all(|lost| lost.answer.is_none()));
            assert_eq!((damage.lost.len(), damage.to_ask.len()), (LOST_MAX, LOST_MAX));
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    const JUST: Duration = Duration::from_nanos(1);

    #[test]
    fn what_a_member_answers_tells_how_sure_it_is_that_nobody_has_a_block() {
        let of = [Status::NotActive, Status::DeviceFailed, Status::Damaged, Status::Ok].map(Absence::of);
        assert_eq!(of, [Absence::Unknown, Absence::Unreadable, Absence::Certain, Absence::Certain]);
        let mut damage = Damage::default();
        let (key, place) = (ObjectKey::default(), Location(9));
        for (absence, is_lost, cannot_be_read) in [
            (Absence::Unknown, false, false),
            (Absence::Unreadable, false, true),
            (Absence::Certain, true, true),
        ] {
            damage.nobody_has(at(0), key, 1, place, absence);
            let told = (damage.is_lost_for_good(key, 1), damage.cannot_be_read(key, 1));
            assert_eq!(told, (is_lost, cannot_be_read), "{absence:?}");
        }
    }

    #[test]
    fn failures_that_are_far_apart_are_not_the_same_one() {
        let (key, place) = (ObjectKey::default(), Location(9));
        for (gap, is_for_good) in [(UNREADABLE_GAP - JUST, true), (UNREADABLE_GAP, false)] {
            let mut damage = Damage::default();
            for now in [at(0), at(0) + gap, at(0) + 2 * gap, at(60)] {
                damage.nobody_has(now, key, 1, place, Absence::Unreadable);
            }
            assert_eq!(damage.is_lost_for_good(key, 1), is_for_good, "{gap:?} apart");
        }
    }

    #[test]
    fn while_a_member_is_away_its_drive_fails_nothing() {
        let (key, place) = (ObjectKey::default(), Location(9));
        let mut damage = Damage::default();
        for seconds in [0, 20, 40, 60] {
            damage.nobody_has(at(seconds), key, 1, place, Absence::Unknown);
        }
        for (seconds, is_for_good) in [(65, false), (90, false), (115, false), (124, false), (125, true)] {
            damage.nobody_has(at(seconds), key, 1, place, Absence::Unreadable);
            assert_eq!(damage.is_lost_for_good(key, 1), is_for_good, "after {seconds} s");
        }
    }

    #[test]
    fn members_are_not_asked_for_a_block_again_for_a_moment_unless_it_lies_elsewhere() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.order(key, 10, 2, 0);
        let (mut damage, disk) = (Damage::default(), &mut alone.osd.shared.disk);
        let place = disk.location_of(key, 10).expect("it was written");
        assert!(!damage.is_lost(disk, at(5), key, 10));
        damage.nobody_has(at(5), key, 10, place, Absence::Certain);
        assert!(damage.is_lost(disk, at(5) + LOST_PAUSE - JUST, key, 10));
        assert!(!damage.is_lost(disk, at(5), key, 11), "of another block it says nothing");
        assert!(!damage.is_lost(disk, at(5) + LOST_PAUSE, key, 10));
        assert!(damage.is_lost_for_good(key, 10), "nobody had it, whenever they are asked");
        damage.ask_again(PG);
        assert!(!damage.is_lost(disk, at(5), key, 10), "they were not asked in this epoch");
        damage.nobody_has(at(6), key, 10, Location(place.0 + 1), Absence::Certain);
        assert!(!damage.is_lost(disk, at(6), key, 10) && !damage.is_lost_for_good(key, 10));
    }

    #[test]
    fn with_an_epoch_members_are_asked_again_for_the_blocks_of_its_group() {
        let pg = |index| PgId { index, ..PgId::default() };
        let key = |index, object| ObjectKey { pg: pg(index), object, ..ObjectKey::default() };
        let mut damage = Damage::default();
        damage.nobody_has(at(0), key(0, 1), 5, Location(1), Absence::Certain);
        damage.nobody_has(at(0), key(1, 2), 6, Location(2), Absence::Certain);
        assert!(damage.asks_nothing());
        damage.ask_again(pg(0));
        damage.ask_again(pg(0));
        assert!(!damage.is_lost_for_good(key(0, 1), 5) && damage.is_lost_for_good(key(1, 2), 6));
        damage.ask_again(pg(1));
        assert!(!damage.asks_nothing());
        assert_eq!(damage.next_to_ask(), Some((key(1, 2), 6)));
        assert_eq!(damage.next_to_ask(), Some((key(0, 1), 5)));
        assert!(damage.next_to_ask().is_none() && damage.asks_nothing());
        // Where one group has as many as are remembered, another one's are asked for in its next epoch.
        let mut damage = Damage::default();
        for index in 0..2 {
            for object in 0..LOST_MAX as u32 {
                damage.nobody_has(at(0), key(index, object), 0, Location(1), Absence::Certain);
            }
            damage.ask_again(pg(index));
            assert_eq!(damage.to_ask.len(), LOST_MAX);
        }
    }

    #[test]
    fn blocks_that_are_lost_for_good_are_told_in_order_and_groups_that_want_any_at_all() {
        let mut alone = Alone::with_groups(2);
        let of = |object| PgId::of_object(PG.pool, 2, VOLUME, object);
        let key = |object| ObjectKey { pg: of(object), layer: VOLUME.first_layer(), object };
        // The later one is of the group that comes first.
        let sooner = (0..).find(|object| of(*object).index == 1).expect("there are many");
        let later = (sooner..).find(|object| of(*object).index == 0).expect("there are many");
        let data = [7; 2 * BLOCK_BYTES];
        for object in [sooner, later] {
            alone.with(|_, cx| {
                let range = BlockRange { key: key(object), first_block: 0, block_count: 2 };
                let group = cx.groups.find(range.key.pg).expect("it is there");
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, group, range);
                let checksum = U32::new(crc32c(&data[..BLOCK_BYTES]));
                cx.operations.live(id).checksums.extend([checksum; 2]);
                assert!(order::write(cx, id, &data));
            });
            alone.run();
        }
        let (mut damage, disk) = (Damage::default(), &mut alone.osd.shared.disk);
        for (object, block, absence) in [
            (later, 1, Absence::Unknown),
            (later, 0, Absence::Certain),
            (sooner, 1, Absence::Certain),
            (sooner, 0, Absence::Certain),
        ] {
            let place = disk.location_of(key(object), block).expect("it was written");
            damage.nobody_has(at(0), key(object), block, place, absence);
        }
        let told = |damage: &Damage, disk: &mut Disk| {
            let lost = damage.lost_blocks(disk);
            let lost: Vec<(u32, u16)> = lost.iter().map(|lost| (lost.object, lost.block)).collect();
            (lost, damage.groups_in_want(disk).into_iter().map(|pg| pg.index).collect::<Vec<u32>>())
        };
        assert_eq!(told(&damage, disk), (vec![(sooner, 0), (sooner, 1), (later, 0)], vec![0, 1]));
        // One was read, another one was written anew since, and a third one is left that somebody may have.
        damage.is_sound(key(sooner), 0);
        damage.is_sound(key(later), 0);
        damage.nobody_has(at(0), key(sooner), 1, Location(u32::MAX), Absence::Certain);
        assert_eq!(told(&damage, disk), (vec![], vec![0]));
    }
}
