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
    /// When they were asked for it first, of the times that followed each other closely.
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
        let is_close = |answer: &Answer| now.since(answer.since) < UNREADABLE_GAP;
        let before = before.and_then(|lost| lost.answer).filter(is_close);
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
            lost.push(LostBlock { pg: key.pg, volume: key.volume, object: key.object, block });
        }
        lost.sort_unstable_by_key(|lost| (lost.volume, lost.object, lost.block));
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
}
