//! What the newest writes of each placement group were, for members to compare.

use crate::batch::RecordView;
use crate::layout::{RecordKind, RootEntry, RootGroup, RootHeld};
use base::hash::{Map, Set};
use base::{Epoch, LogEntry, ObjectKey, PgId, PoolId, Sequence, VolumeId};
use std::collections::VecDeque;

/// Entries kept for each group, unless [`Options`](crate::Options) ask for fewer.
pub const PG_LOG_ENTRIES: usize = 1024;

/// The most writes of a group that are under way at the same time: between one that is ordered and the last before it that
/// all members in sync have.
pub const IN_FLIGHT_MAX: u64 = 256;
/// Doubts of a member that are kept; with more it is taken to have nothing for sure.
pub(crate) const DOUBTS_MAX: usize = 4096;
/// Steps of what a member held that are kept apart.
pub(crate) const HELD_MAX: usize = 64;

/// Up to where a member had its group's order, of the objects up to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) object: (VolumeId, u32),
    pub(crate) through: Sequence,
}

/// The write by which a block has what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastWrite {
    /// Its place in the group's order.
    pub sequence: Sequence,
    /// The epoch in which it was ordered, if the group's log tells of it.
    pub epoch: Option<Epoch>,
}

/// How current a copy of a block is, as far as the member that has it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Currency {
    /// It is as the group's order has it up to this sequence, for sure; of nothing, if that is 0.
    Through(Sequence),
    /// It is of this write, which may have come to nothing.
    Of(LastWrite),
}

/// Whether both repair the same write.
fn repair_the_same(one: &LogEntry, other: &LogEntry) -> bool {
    let names = |entry: &LogEntry| (entry.volume, entry.object, entry.origin);
    one.is_repair() && other.is_repair() && names(one) == names(other)
}

/// Whether a mark or a repair says all that an earlier one said.
fn supersedes(entry: &LogEntry, earlier: &LogEntry) -> bool {
    if entry.is_mark() {
        return earlier.is_mark();
    }
    repair_the_same(entry, earlier)
        && entry.first_block <= earlier.first_block
        && entry.end() >= earlier.end()
}

/// One group's log.
#[derive(Clone, Debug, Default)]
pub(crate) struct PgLog {
    pub(crate) entries: VecDeque<LogEntry>,
    /// Nothing from here on was dropped for its age; 0 if nothing ever was. The first entry may be a later one: marks and
    /// repairs go when others say the same.
    pub(crate) begins: Sequence,
    /// The log began while the member was catching up: it does not tell what the member has.
    pub(crate) is_incomplete: bool,
    /// What `begins` was when the log last began anew.
    pub(crate) started: Sequence,
    /// Of one that is incomplete: in catching up it came to have everything of the objects up to this one.
    pub(crate) reached: Option<(VolumeId, u32)>,
    /// Of one that is incomplete: what it had before, by objects in order.
    pub(crate) held: Vec<Held>,
    /// Of one that is incomplete: what it had in its log beyond that, which may have come to nothing.
    pub(crate) doubts: Vec<LogEntry>,
    /// The group has the objects whose place, divided by this, leaves its number as remainder. 0 before the
    /// group's first record told it.
    pub(crate) modulus: u32,
}

impl PgLog {
    /// Up to which sequence everything that was applied in order is what the group's order has for good; `None` if the log
    /// does not tell any more what that is.
    ///
    /// A primary orders nothing while what it ordered so many sequences before is not on all members in sync. What an epoch
    /// does before it serves (marks, repairs) tells nothing of that.
    fn settled(&self, in_flight_max: u64) -> Option<Sequence> {
        let served = self.entries.iter().rev().find(|entry| !entry.is_mark() && !entry.is_repair());
        let by_order = served.map_or(0, |entry| entry.sequence.0.saturating_sub(in_flight_max));
        let settled = by_order.max(self.started.0.saturating_sub(1));
        (self.begins.0.saturating_sub(1) <= settled).then_some(Sequence(settled))
    }

    /// The member lags from here on: notes what it has for sure, by objects, and what it may have beyond that.
    fn note_held(&mut self, in_flight_max: u64) {
        const END: (VolumeId, u32) = (VolumeId(u64::MAX), u32::MAX);
        let reached = if self.is_incomplete { self.reached.take() } else { Some(END) };
        if !self.is_incomplete {
            (self.held, self.doubts) = (Vec::new(), Vec::new());
        }
        let settled = self.settled(in_flight_max);
        if let Some((object, through)) = reached.zip(settled) {
            self.held.retain(|held| held.object > object);
            self.held.insert(0, Held { object, through });
        }
        let settled_or_none = settled.unwrap_or_default();
        let beyond = self.entries.iter().filter(|entry| entry.sequence > settled_or_none && !entry.is_mark());
        for entry in beyond {
            if !self.doubts.contains(entry) {
                self.doubts.push(*entry);
            }
        }
        if settled.is_none() || self.doubts.len() > DOUBTS_MAX {
            (self.held, self.doubts) = (Vec::new(), Vec::new());
        }
        while self.held.len() > HELD_MAX {
            let first = self.held.remove(0);
            self.held[0].through = self.held[0].through.min(first.through);
        }
    }

    /// Drops the oldest entries until there are so many, but none that may have come to nothing: what is
    /// [settled](Self::settled) stays so.
    fn shorten(&mut self, entries_max: usize, in_flight_max: u64) {
        let Some(settled) = self.settled(in_flight_max) else { return };
        let is_settled = |entry: &LogEntry| entry.sequence <= settled;
        while self.entries.len() > entries_max && self.entries.front().is_some_and(is_settled) {
            self.begins = self.entries.pop_front().map_or(self.begins, |dropped| dropped.sequence.next());
        }
    }

    /// Bytes of a checkpoint's root that it takes with so many entries, beside its [`RootGroup`].
    fn bytes_with(&self, entries: usize) -> u64 {
        let before = self.doubts.len() * size_of::<RootEntry>() + self.held.len() * size_of::<RootHeld>();
        (entries * size_of::<RootEntry>() + before) as u64
    }

    /// Bytes of a checkpoint's root that it may come to take beside its [`RootGroup`], of so many entries at most. One that
    /// tells of nothing is that of a group that this OSD left, as a rule: nothing comes to it before the OSD joins again.
    pub(crate) fn bytes_max(&self, entries_max: usize) -> u64 {
        let tells = self.entries.back().is_some_and(|last| last.sequence > Sequence(0));
        let entries = if tells { entries_max.max(self.entries.len()) } else { self.entries.len() };
        self.bytes_with(entries)
    }

    /// Of an incomplete one, up to where it had an object when it last had it all.
    fn held_before(&self, object: (VolumeId, u32)) -> Sequence {
        let held = self.held.iter().find(|held| object <= held.object);
        held.map_or(Sequence(0), |held| held.through)
    }
}

/// All groups' logs.
#[derive(Debug)]
pub(crate) struct PgLogs {
    pub(crate) groups: Map<PgId, PgLog>,
    pub(crate) entries_max: usize,
    /// During a replay: groups whose logs tell already of what is replayed. They are left as they are: a member that joins
    /// notes what its log told until then, and that must not be what was in it only later.
    pub(crate) ahead: Set<PgId>,
    /// The sum of [`PgLog::bytes_max`], so that nobody has to walk them.
    pub(crate) bytes_max: u64,
}

impl PgLogs {
    pub(crate) fn new(entries_max: usize) -> PgLogs {
        assert!((1..=PG_LOG_ENTRIES).contains(&entries_max), "no log of {entries_max} entries can be kept");
        PgLogs { groups: Map::default(), entries_max, ahead: Set::default(), bytes_max: 0 }
    }

    /// Bytes of a checkpoint's root that they take when each that tells of something has as many entries as are kept.
    pub(crate) fn root_bytes_max(&self) -> u64 {
        (self.groups.len() * size_of::<RootGroup>()) as u64 + self.bytes_max
    }

    /// Bytes of a checkpoint's root that they take as they are.
    fn root_bytes(&self) -> u64 {
        let logs = self.groups.values().map(|log| log.bytes_with(log.entries.len()));
        (self.groups.len() * size_of::<RootGroup>()) as u64 + logs.sum::<u64>()
    }

    /// Shortens the longest logs until all of them take no more than so many bytes of a checkpoint's root, as far as that goes:
    /// each keeps as many entries as writes may be under way, and all that may have come to nothing. A member that was away for
    /// longer than its group's log goes back is brought up to date by versions; a root that is not written fails the store.
    pub(crate) fn shorten(&mut self, bytes_max: u64) {
        let (entries_max, in_flight_max) = (self.entries_max, self.in_flight_max());
        let mut length = PG_LOG_ENTRIES;
        while length > in_flight_max as usize && self.root_bytes() > bytes_max {
            length = (length - length.div_ceil(8)).max(in_flight_max as usize);
            for log in self.groups.values_mut() {
                self.bytes_max -= log.bytes_max(entries_max);
                log.shorten(length, in_flight_max);
                self.bytes_max += log.bytes_max(entries_max);
            }
        }
    }

    /// Takes in a log read from a checkpoint.
    pub(crate) fn insert(&mut self, pg: PgId, log: PgLog) {
        self.bytes_max += log.bytes_max(self.entries_max);
        let before = self.groups.insert(pg, log);
        self.bytes_max -= before.map_or(0, |before| before.bytes_max(self.entries_max));
    }

    pub(crate) fn in_flight_max(&self) -> u64 {
        (self.entries_max as u64 / 4).clamp(1, IN_FLIGHT_MAX)
    }

    /// See [`Store::object_held_through`](crate::Store::object_held_through).
    pub(crate) fn object_held_through(&self, key: &ObjectKey) -> Sequence {
        let Some(log) = self.groups.get(&key.pg) else { return Sequence(0) };
        let object = (key.volume, key.object);
        let is_there = !log.is_incomplete || log.reached.is_some_and(|reached| object <= reached);
        let now = log.settled(self.in_flight_max()).filter(|_| is_there).unwrap_or_default();
        now.max(log.held_before(object))
    }

    /// See [`Store::pg_held_through`](crate::Store::pg_held_through).
    pub(crate) fn pg_held_through(&self, pg: PgId) -> Sequence {
        let Some(log) = self.groups.get(&pg) else { return Sequence(0) };
        let is_there = !log.is_incomplete || log.reached.is_some();
        let now = log.settled(self.in_flight_max()).filter(|_| is_there);
        let before = log.held.iter().map(|held| held.through);
        before.chain(now).max().unwrap_or_default()
    }

    /// The same of one block, which may be in doubt.
    fn held_through(&self, key: &ObjectKey, block: u16) -> Sequence {
        let Some(log) = self.groups.get(&key.pg) else { return Sequence(0) };
        let through = self.object_held_through(key);
        let mut beyond = log.entries.iter().filter(|entry| entry.sequence > through).chain(&log.doubts);
        // A mend brings what was there, whatever becomes of it.
        let is_in_doubt = beyond.any(|entry| entry.is_about(key, block) && !entry.is_mend());
        if is_in_doubt { Sequence(0) } else { through }
    }

    /// See [`Store::currency`](crate::Store::currency); `last` is when the index says that the block changed last, if that is exact.
    pub(crate) fn currency(&self, key: &ObjectKey, block: u16, last: Option<Sequence>) -> Currency {
        let through = self.held_through(key, block);
        match self.last_write(key, block, last) {
            Some(write) if write.sequence > through => Currency::Of(write),
            _ => Currency::Through(through),
        }
    }

    /// See [`Store::is_current`](crate::Store::is_current); `changed` is when the index says that the block changed last, or later,
    /// `last` the same if that is exact.
    pub(crate) fn is_current(
        &self,
        key: &ObjectKey,
        block: u16,
        changed: Sequence,
        last: Option<Sequence>,
        theirs: Currency,
    ) -> bool {
        match theirs {
            Currency::Through(through) => through >= self.changed_by(key, block, changed),
            // Another epoch may have given the sequence again: the logs tell of that, as far as they reach. Of what was pushed
            // they tell nothing; and it may be the only sound copy.
            Currency::Of(theirs) => self.last_write(key, block, last).is_some_and(|own| {
                let is_same = |own: Epoch| theirs.epoch.is_none_or(|epoch| own == epoch);
                own.sequence == theirs.sequence && own.epoch.is_none_or(is_same)
            }),
        }
    }

    /// What a group's log tells of a block, the newest first. Mends change nothing.
    fn told_of<'a>(
        log: &'a PgLog,
        key: &'a ObjectKey,
        block: u16,
    ) -> impl Iterator<Item = &'a LogEntry> + 'a {
        let is_told = move |entry: &&LogEntry| entry.is_about(key, block) && !entry.is_mend();
        log.entries.iter().rev().filter(is_told)
    }

    /// By when a block surely has what it has. The log of a member that has everything tells of all changes since it begins.
    fn changed_by(&self, key: &ObjectKey, block: u16, changed: Sequence) -> Sequence {
        let Some(log) = self.groups.get(&key.pg).filter(|log| !log.is_incomplete) else { return changed };
        let newest = Self::told_of(log, key, block).next().map(|entry| entry.sequence);
        let by_log = newest.or(log.begins.0.checked_sub(1).map(Sequence));
        by_log.map_or(changed, |by_log| by_log.min(changed))
    }

    fn last_write(&self, key: &ObjectKey, block: u16, last: Option<Sequence>) -> Option<LastWrite> {
        let none = PgLog::default();
        let log = self.groups.get(&key.pg).unwrap_or(&none);
        // The index may not know exactly what the log of a member tells that has everything. Repairs that follow each other are
        // one entry, of the last one's sequence.
        let newest = Self::told_of(log, key, block).next().filter(|_| !log.is_incomplete);
        let sequence = newest.filter(|newest| !newest.is_repair()).map(|newest| newest.sequence).or(last)?;
        let doubts = log.doubts.iter().filter(|entry| entry.is_about(key, block));
        let mut same =
            Self::told_of(log, key, block).chain(doubts).filter(|entry| entry.sequence == sequence);
        // The log and what it was before may tell of two that got the same sequence.
        let first = same.next().map(|entry| entry.epoch);
        let epoch = first.filter(|epoch| same.all(|other| other.epoch == *epoch));
        Some(LastWrite { sequence, epoch })
    }

    /// Changes a group's log, which may be a new one, unless it is ahead.
    fn change(&mut self, pg: PgId, change: impl FnOnce(&mut PgLog)) {
        if self.ahead.contains(&pg) {
            return;
        }
        let log = self.groups.entry(pg).or_default();
        self.bytes_max -= log.bytes_max(self.entries_max);
        change(log);
        self.bytes_max += log.bytes_max(self.entries_max);
    }

    /// A member that is catching up has everything of the objects up to this one.
    pub(crate) fn reached(&mut self, pg: PgId, object: (VolumeId, u32)) {
        self.change(pg, |log| {
            if log.is_incomplete {
                log.reached = log.reached.max(Some(object));
            }
        });
    }

    /// Notes a write. What only makes members agree must not drive out what they have to agree about: of marks the last is
    /// kept, and repairs of one write are one entry as far as they follow each other, in place of earlier attempts.
    pub(crate) fn push(&mut self, pg: PgId, mut entry: LogEntry) {
        let entries_max = self.entries_max;
        self.change(pg, |log| {
            // Replay goes over entries that the checkpoint may hold already.
            if log.entries.back().is_some_and(|last| last.sequence >= entry.sequence) {
                return;
            }
            if let Some(last) = log.entries.back().copied() {
                let goes_on = repair_the_same(&entry, &last)
                    && entry.epoch == last.epoch
                    && entry.first_block == last.end();
                if goes_on {
                    (entry.first_block, entry.block_count) =
                        (last.first_block, entry.end() - last.first_block);
                }
            }
            if entry.is_mark() || entry.is_repair() {
                log.entries.retain(|earlier| !supersedes(&entry, earlier));
            }
            // A checkpoint may hold more of them, made when more were kept.
            while log.entries.len() >= entries_max {
                log.begins = log.entries.pop_front().map_or(log.begins, |dropped| dropped.sequence.next());
            }
            log.entries.push_back(entry);
        });
    }

    /// A log begins anew: what the member had before says nothing any more.
    pub(crate) fn restart(&mut self, pg: PgId, entry: LogEntry) {
        let in_flight_max = self.in_flight_max();
        self.change(pg, |log| {
            log.note_held(in_flight_max);
            log.entries.clear();
            log.begins = entry.sequence.next();
            log.started = log.begins;
            log.is_incomplete = true;
            log.entries.push_back(entry);
        });
    }

    /// The member leaves the group, and is about to delete what it has: nothing says any more that it has it.
    pub(crate) fn left(&mut self, pg: PgId, entry: LogEntry) {
        self.restart(pg, entry);
        self.change(pg, |log| (log.held, log.doubts) = (Vec::new(), Vec::new()));
    }

    /// An epoch began in which the member is in sync.
    pub(crate) fn completed(&mut self, pg: PgId) {
        self.change(pg, |log| {
            log.is_incomplete = false;
            (log.reached, log.held, log.doubts) = (None, Vec::new(), Vec::new());
        });
    }

    /// The group's modulus is known. It only grows: replay goes over what the checkpoint may hold already.
    pub(crate) fn note_modulus(&mut self, pg: PgId, modulus: u32) {
        let log = self.groups.entry(pg).or_default();
        log.modulus = log.modulus.max(modulus);
    }

    /// The group gives a part of its objects to one that has its log too from here on. `false` when it did before.
    pub(crate) fn split(&mut self, pg: PgId, modulus: u32) -> bool {
        let log = self.groups.entry(pg).or_default();
        if log.modulus >= modulus {
            return false;
        }
        log.modulus = modulus;
        let copy = log.clone();
        self.bytes_max += copy.bytes_max(self.entries_max);
        let before = self.groups.insert(pg.child(modulus / 2), copy);
        assert!(before.is_none(), "a group that is split off from {pg} has no log before");
        true
    }

    /// The logs of all groups of a pool go. All at once: of groups that were split from each other a start never finds some
    /// without the others.
    pub(crate) fn forget(&mut self, pool: PoolId) {
        let (bytes_max, entries_max) = (&mut self.bytes_max, self.entries_max);
        self.groups.retain(|pg, log| {
            let stays = pg.pool != pool || self.ahead.contains(pg);
            *bytes_max -= if stays { 0 } else { log.bytes_max(entries_max) };
            stays
        });
    }

    /// What an object is called now that a record names: since that was written, its group may have been split, and the
    /// object be one of the other half.
    pub(crate) fn home(&self, key: ObjectKey) -> ObjectKey {
        let mut pg = key.pg;
        while let Some(modulus) = self.groups.get(&pg).map(|log| log.modulus).filter(|modulus| *modulus > 0)
            && !pg.holds(modulus, key.volume, key.object)
        {
            // It went at the first doubling by which it was not the group's any more.
            let doublings = std::iter::successors(Some(modulus), |m| m.is_multiple_of(2).then_some(m / 2));
            let before =
                doublings.take_while(|m| *m > pg.index).find(|m| pg.holds(*m, key.volume, key.object));
            let Some(before) = before else { break };
            pg = pg.child(before);
        }
        ObjectKey { pg, ..key }
    }

    /// What the object of a record is called now.
    pub(crate) fn home_of(&self, view: &RecordView<'_>) -> ObjectKey {
        match view.kind {
            RecordKind::Write | RecordKind::Zero | RecordKind::Relocate | RecordKind::Push => {
                self.home(view.record.key())
            }
            _ => view.record.key(),
        }
    }

    pub(crate) fn position(&self, pg: PgId) -> Option<(Epoch, Sequence)> {
        self.groups.get(&pg)?.entries.back().map(|entry| (entry.epoch, entry.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::log_entry::{MEND, REPAIR};

    #[test]
    fn an_object_is_found_under_its_present_name_by_each_earlier_one() {
        let mut logs = PgLogs::new(3);
        let pool = PoolId(1);
        let pg = |index| PgId { pool, index };
        // Nothing is known of group 2, and nothing of it is renamed.
        logs.note_modulus(pg(0), 3);
        logs.note_modulus(pg(1), 3);
        assert!(
            logs.split(pg(0), 6) && logs.split(pg(0), 12) && logs.split(pg(3), 12) && logs.split(pg(1), 6)
        );
        assert!(!logs.split(pg(0), 6) && !logs.split(pg(3), 12), "a split is done once");
        for object in 0..240 {
            let key = |pg| ObjectKey { pg, volume: VolumeId(5), object };
            let of = |modulus| PgId::of_object(pool, modulus, VolumeId(5), object);
            let now = match of(3).index {
                0 => of(12),
                1 => of(6),
                _ => of(3),
            };
            for modulus in [3, 6, 12].into_iter().take_while(|modulus| of(*modulus).index <= now.index) {
                assert_eq!(logs.home(key(of(modulus))), key(now), "as it was called among {modulus}");
                if of(modulus) == now {
                    break;
                }
            }
        }
    }

    #[test]
    fn both_halves_of_a_group_go_on_with_its_log() {
        let mut logs = PgLogs::new(3);
        let pg = PgId { pool: PoolId(1), index: 1 };
        let mark = |sequence| LogEntry {
            epoch: Epoch(4),
            sequence: Sequence(sequence),
            volume: VolumeId(0),
            object: 0,
            first_block: 0,
            block_count: 0,
            origin: 0,
        };
        logs.restart(pg, mark(7));
        logs.note_modulus(pg, 2);
        assert!(logs.split(pg, 4));
        let child = PgId { index: 3, ..pg };
        logs.push(child, mark(9));
        logs.completed(child);
        assert_eq!(
            (logs.position(pg), logs.position(child)),
            (Some((Epoch(4), Sequence(7))), Some((Epoch(4), Sequence(9))))
        );
        assert_eq!((logs.groups[&pg].is_incomplete, logs.groups[&child].is_incomplete), (true, false));
        assert_eq!(logs.groups[&child].begins, Sequence(8));
        // What it was split by stays when a log begins anew.
        logs.restart(child, mark(12));
        logs.note_modulus(child, 2);
        assert_eq!(logs.groups[&child].modulus, 4);
    }

    #[test]
    fn a_log_keeps_the_newest_entries_and_says_where_it_begins() {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let entry = |sequence| LogEntry {
            epoch: Epoch(1),
            sequence: Sequence(sequence),
            volume: VolumeId(1),
            object: 0,
            first_block: 0,
            block_count: 1,
            origin: 0,
        };
        let mut logs = PgLogs::new(3);
        for sequence in 1..=3 {
            logs.push(pg, entry(sequence));
            assert_eq!(logs.groups[&pg].begins, Sequence(0));
        }
        logs.push(pg, entry(4));
        // Replay goes over what is there.
        logs.push(pg, entry(4));
        let kept: Vec<u64> = logs.groups[&pg].entries.iter().map(|entry| entry.sequence.0).collect();
        assert_eq!(kept, [2, 3, 4]);
        assert_eq!(logs.groups[&pg].begins, Sequence(2));
        // Marks that follow each other are one, and what lies before them still counts as known.
        let mark = |sequence| LogEntry { block_count: 0, ..entry(sequence) };
        logs.restart(pg, mark(10));
        logs.push(pg, mark(20));
        let log = &logs.groups[&pg];
        assert_eq!((log.begins, log.entries.len()), (Sequence(11), 1));
        assert!(log.is_incomplete);
    }

    #[test]
    fn repairs_and_marks_do_not_drive_out_what_is_to_be_repaired() {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let entry = |epoch, sequence, first_block, block_count, origin| LogEntry {
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            volume: VolumeId(1),
            object: 0,
            first_block,
            block_count,
            origin,
        };
        let mut logs = PgLogs::new(8);
        logs.push(pg, entry(1, 1, 0, 100, 7));
        logs.push(pg, entry(1, 2, 200, 1, 8));
        let mut sequence = 2;
        let mut next = || {
            sequence += 1;
            sequence
        };
        // An epoch after the other begins, repairs block by block, and comes to an end before the last.
        for epoch in 2..20 {
            logs.push(pg, entry(epoch, next(), 0, 0, 0));
            for block in 0..100 {
                logs.push(pg, entry(epoch, next(), block, 1, REPAIR | 7));
            }
        }
        let entries: Vec<LogEntry> = logs.groups[&pg].entries.iter().copied().collect();
        assert_eq!(entries[..2], [entry(1, 1, 0, 100, 7), entry(1, 2, 200, 1, 8)]);
        assert_eq!(
            entries[2..],
            [entry(19, sequence - 100, 0, 0, 0), entry(19, sequence, 0, 100, REPAIR | 7)]
        );
        assert_eq!(logs.groups[&pg].begins, Sequence(0));
        // A part of it again, elsewhere, and of another write: none says what the others say.
        logs.push(pg, entry(20, sequence + 1, 0, 10, REPAIR | 7));
        logs.push(pg, entry(20, sequence + 2, 20, 10, REPAIR | 7));
        logs.push(pg, entry(20, sequence + 3, 30, 10, REPAIR | 9));
        assert_eq!(logs.groups[&pg].entries.len(), 7);
    }

    const GROUP: PgId = PgId { pool: PoolId(1), index: 0 };

    /// A write of one block of an object, or a mark of none.
    fn write(sequence: u64, object: u32, block: u16) -> LogEntry {
        LogEntry {
            epoch: Epoch(1),
            sequence: Sequence(sequence),
            volume: VolumeId(1),
            object,
            first_block: block,
            block_count: 1,
            origin: sequence,
        }
    }

    fn mark(sequence: u64) -> LogEntry {
        LogEntry { block_count: 0, origin: 0, ..write(sequence, 0, 0) }
    }

    fn key(object: u32) -> ObjectKey {
        ObjectKey { pg: GROUP, volume: VolumeId(1), object }
    }

    fn through(logs: &PgLogs, object: u32) -> u64 {
        logs.object_held_through(&key(object)).0
    }

    #[test]
    fn of_the_last_writes_a_member_is_sure_only_behind_those_that_may_be_under_way() {
        let mut logs = PgLogs::new(16);
        assert_eq!(logs.in_flight_max(), 4);
        (1..=10).for_each(|sequence| logs.push(GROUP, write(sequence, 3, sequence as u16)));
        assert_eq!(through(&logs, 3), 6);
        let of_block = |logs: &PgLogs, block| logs.held_through(&key(3), block).0;
        // What was not touched since, or surely, or may have come to nothing.
        assert_eq!([0, 6, 7, 10].map(|block| of_block(&logs, block)), [6, 6, 0, 0]);
        // An epoch that began and made members agree says nothing of what was before.
        logs.push(GROUP, mark(20));
        logs.push(GROUP, LogEntry { origin: 9 | REPAIR, ..write(21, 3, 9) });
        assert_eq!(through(&logs, 3), 6);
        // Its log begins anew, and what it was sure of and what not stays.
        logs.restart(GROUP, mark(30));
        logs.push(GROUP, write(31, 3, 0));
        logs.push(GROUP, write(60, 3, 1));
        assert_eq!((through(&logs, 3), through(&logs, 9)), (6, 6), "it follows, but lacks what was between");
        assert_eq!([2, 7, 10].map(|block| of_block(&logs, block)), [6, 0, 0]);
        let doubts: Vec<u64> = logs.groups[&GROUP].doubts.iter().map(|entry| entry.sequence.0).collect();
        assert_eq!(doubts, [7, 8, 9, 10, 21]);
        logs.completed(GROUP);
        assert_eq!(through(&logs, 3), 56);
        assert!(logs.groups[&GROUP].doubts.is_empty());
    }

    #[test]
    fn who_left_its_group_is_sure_of_nothing_that_it_deletes() {
        let mut logs = PgLogs::new(16);
        (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        logs.left(GROUP, mark(0));
        assert_eq!((through(&logs, 0), logs.held_through(&key(0), 0)), (0, Sequence(0)));
        logs.restart(GROUP, mark(200));
        assert_eq!((through(&logs, 0), logs.pg_held_through(GROUP)), (0, Sequence(0)));
        assert!(logs.groups[&GROUP].doubts.is_empty());
    }

    #[test]
    fn a_replay_leaves_logs_alone_that_are_ahead_of_it() {
        let mut logs = PgLogs::new(16);
        (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        logs.restart(GROUP, mark(500));
        (501..=600).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        logs.ahead.insert(GROUP);
        let other = PgId { index: 1, ..GROUP };
        for pg in [GROUP, other] {
            logs.completed(pg);
            logs.restart(pg, mark(500));
            logs.reached(pg, (VolumeId(1), 7));
            logs.push(pg, write(601, 0, 0));
        }
        assert_eq!(through(&logs, 0), 96);
        assert_eq!(logs.position(GROUP), Some((Epoch(1), Sequence(600))));
        assert_eq!(
            logs.position(other),
            Some((Epoch(1), Sequence(601))),
            "of this one the root told nothing"
        );
        logs.forget(GROUP.pool);
        assert!(logs.groups.contains_key(&GROUP) && !logs.groups.contains_key(&other));
    }

    #[test]
    fn a_copy_is_current_if_it_is_sure_of_the_last_write_or_has_the_very_one() {
        let mut logs = PgLogs::new(16);
        // The log begins at 9, and tells of a write of block 20 and of none of block 3.
        (1..=24).for_each(|sequence| {
            let (block, epoch) = if sequence == 20 { (20, 4) } else { (7, 2) };
            logs.push(GROUP, LogEntry { epoch: Epoch(epoch), ..write(sequence, 3, block) });
        });
        assert_eq!(logs.groups[&GROUP].begins, Sequence(9));
        let is_current = |logs: &PgLogs, block, last, theirs| {
            logs.is_current(&key(3), block, Sequence(last), Some(Sequence(last)), theirs)
        };
        let sure = |through| Currency::Through(Sequence(through));
        let of = |sequence, epoch: Option<u32>| {
            Currency::Of(LastWrite { sequence: Sequence(sequence), epoch: epoch.map(Epoch) })
        };
        assert_eq!([4, 5].map(|through| is_current(&logs, 3, 5, sure(through))), [false, true]);
        assert_eq!([19, 20].map(|through| is_current(&logs, 20, 20, sure(through))), [false, true]);
        assert!(is_current(&logs, 3, 5, of(5, Some(1))) && is_current(&logs, 3, 5, of(5, None)));
        assert!(!is_current(&logs, 3, 5, of(4, Some(1))) && !is_current(&logs, 3, 5, of(6, Some(1))));
        assert!(is_current(&logs, 20, 20, of(20, Some(4))) && is_current(&logs, 20, 20, of(20, None)));
        assert!(!is_current(&logs, 20, 20, of(20, Some(3))), "another history has this sequence too");
        // What the index has rounded the log tells, and of what is older than the log that it is.
        let rounded =
            |logs: &PgLogs, block, theirs| logs.is_current(&key(3), block, Sequence(40), None, theirs);
        assert_eq!([19, 20].map(|through| rounded(&logs, 20, sure(through))), [false, true]);
        assert_eq!([7, 8].map(|through| rounded(&logs, 3, sure(through))), [false, true]);
        assert!(rounded(&logs, 20, of(20, Some(4))) && !rounded(&logs, 20, of(19, Some(4))));
        assert!(!rounded(&logs, 3, of(5, None)));
        // Mends change nothing. Repairs do; that some are one entry hides when.
        logs.push(GROUP, LogEntry { origin: REPAIR | MEND, ..write(25, 3, 20) });
        assert!(is_current(&logs, 20, 20, sure(20)) && rounded(&logs, 20, of(20, Some(4))));
        logs.push(GROUP, LogEntry { origin: REPAIR | 7, ..write(26, 3, 20) });
        logs.push(GROUP, LogEntry { origin: REPAIR | 7, ..write(27, 3, 21) });
        assert_eq!([25, 27].map(|through| rounded(&logs, 20, sure(through))), [false, true]);
        assert!(is_current(&logs, 20, 26, of(26, Some(1))) && !rounded(&logs, 20, of(27, Some(1))));
        // The log of who is catching up does not tell what it has.
        logs.restart(GROUP, mark(30));
        logs.push(GROUP, write(35, 3, 20));
        assert_eq!([35, 40].map(|through| rounded(&logs, 20, sure(through))), [false, true]);
        assert!(!rounded(&logs, 20, of(35, Some(1))) && is_current(&logs, 20, 35, of(35, Some(1))));
    }

    #[test]
    fn who_has_what_may_come_to_nothing_tells_of_which_write_it_is() {
        let mut logs = PgLogs::new(16);
        (1..=10).for_each(|sequence| logs.push(GROUP, write(sequence, 3, sequence as u16)));
        let currency =
            |logs: &PgLogs, block, last: Option<u64>| logs.currency(&key(3), block, last.map(Sequence));
        let of = |sequence, epoch| Currency::Of(LastWrite { sequence: Sequence(sequence), epoch });
        let sure = |through| Currency::Through(Sequence(through));
        assert_eq!(currency(&logs, 5, Some(5)), sure(6));
        assert_eq!(currency(&logs, 9, Some(9)), of(9, Some(Epoch(1))));
        assert_eq!(currency(&logs, 9, None), of(9, Some(Epoch(1))), "the log tells what the index does not");
        assert_eq!(currency(&logs, 20, Some(8)), of(8, None), "a push, of which the log does not tell");
        // A mend changes nothing, whatever becomes of it.
        logs.push(GROUP, LogEntry { origin: REPAIR | MEND, ..write(11, 3, 5) });
        assert_eq!(currency(&logs, 5, Some(5)), sure(6));
        logs.restart(GROUP, mark(30));
        assert_eq!(currency(&logs, 5, Some(5)), sure(6));
        assert_eq!(currency(&logs, 9, Some(9)), of(9, Some(Epoch(1))));
        assert_eq!(currency(&logs, 9, None), sure(0));
        // Another epoch gave the sequence again.
        let other = LogEntry { epoch: Epoch(2), ..write(9, 3, 9) };
        logs.groups.get_mut(&GROUP).unwrap().doubts.push(other);
        assert_eq!(currency(&logs, 9, Some(9)), of(9, None));
    }

    #[test]
    fn a_learner_that_begins_again_is_as_sure_as_it_was_of_what_it_had_reached_and_what_not() {
        let mut logs = PgLogs::new(16);
        (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        logs.restart(GROUP, mark(500));
        logs.reached(GROUP, (VolumeId(1), 10));
        logs.reached(GROUP, (VolumeId(1), 7));
        (501..=600).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        assert_eq!([0, 10, 11].map(|object| through(&logs, object)), [596, 596, 96]);
        logs.restart(GROUP, mark(900));
        assert_eq!([0, 10, 11].map(|object| through(&logs, object)), [596, 596, 96]);
        logs.reached(GROUP, (VolumeId(1), 4));
        logs.push(GROUP, write(950, 0, 0));
        logs.restart(GROUP, mark(1000));
        assert_eq!([4, 5, 10, 11].map(|object| through(&logs, object)), [946, 596, 596, 96]);
        assert_eq!(logs.pg_held_through(GROUP), Sequence(946));
        // It got nowhere.
        logs.restart(GROUP, mark(1100));
        assert_eq!([4, 5, 10, 11].map(|object| through(&logs, object)), [946, 596, 596, 96]);
    }

    #[test]
    fn who_began_with_nothing_is_sure_of_nothing() {
        let mut logs = PgLogs::new(16);
        assert_eq!(through(&logs, 1), 0);
        logs.restart(GROUP, mark(70));
        assert_eq!(through(&logs, 1), 0);
        logs.reached(GROUP, (VolumeId(1), 1));
        assert_eq!((through(&logs, 1), through(&logs, 2)), (70, 0), "what was before its log was pushed");
    }

    #[test]
    fn a_log_that_dropped_what_may_have_come_to_nothing_tells_nothing() {
        let mut logs = PgLogs::new(16);
        (1..=20).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        // Repairs of many writes.
        (21..=34).for_each(|sequence| {
            logs.push(GROUP, LogEntry { origin: sequence | REPAIR, ..write(sequence, 0, 3) });
        });
        assert_eq!(through(&logs, 0), 0);
        logs.restart(GROUP, mark(50));
        assert_eq!(through(&logs, 0), 0);
        assert!(logs.groups[&GROUP].held.is_empty());
    }

    #[test]
    fn the_longest_logs_are_shortened_until_a_root_has_room_and_tell_as_much_of_what_is_sure() {
        let (mut logs, short) = (PgLogs::new(16), PgId { index: 1, ..GROUP });
        (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        (1..=9).for_each(|sequence| logs.push(short, write(sequence, 0, 0)));
        let lengths = |logs: &PgLogs| [GROUP, short].map(|pg| logs.groups[&pg].entries.len());
        let (bytes, counted) = (logs.root_bytes(), logs.root_bytes_max());
        logs.shorten(bytes);
        assert_eq!(lengths(&logs), [16, 9], "there is room");
        logs.shorten(bytes - 3 * size_of::<RootEntry>() as u64);
        let [long, other] = lengths(&logs);
        assert!((9..=13).contains(&long) && other == 9, "{long} and {other} are left");
        assert_eq!(logs.groups[&GROUP].begins.0, 101 - long as u64);
        assert_eq!(logs.groups[&short].begins, Sequence(0), "it dropped nothing");
        assert_eq!(logs.root_bytes_max(), counted, "they may be full again");
        // There is no room at all: what may be under way stays.
        logs.shorten(0);
        assert_eq!((lengths(&logs), through(&logs, 0)), ([4, 4], 96));
        assert_eq!(logs.position(GROUP), Some((Epoch(1), Sequence(100))));
        // It lags, and is as sure as it would have been with all of its log.
        logs.restart(GROUP, mark(500));
        assert_eq!((through(&logs, 0), logs.groups[&GROUP].doubts.len()), (96, 4));
        // Of a log that dropped what may have come to nothing, nothing more is dropped; a mark stays the last.
        (10..=40).for_each(|sequence| {
            logs.push(short, LogEntry { origin: sequence | REPAIR, ..write(sequence, 0, 3) });
        });
        logs.shorten(0);
        assert_eq!((lengths(&logs), logs.pg_held_through(short)), ([1, 16], Sequence(0)));
        assert_eq!(logs.position(GROUP), Some((Epoch(1), Sequence(500))));
    }

    #[test]
    fn both_halves_of_a_group_are_as_sure_as_it_was() {
        let mut logs = PgLogs::new(16);
        logs.note_modulus(GROUP, 1);
        (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        logs.restart(GROUP, mark(500));
        assert!(logs.split(GROUP, 2));
        for index in 0..2 {
            let pg = PgId { index, ..GROUP };
            assert_eq!(logs.object_held_through(&ObjectKey { pg, ..key(0) }), Sequence(96));
            assert_eq!(logs.groups[&pg].doubts.len(), 4);
        }
    }

    #[test]
    fn the_logs_of_a_pool_that_is_forgotten_go_and_what_a_replay_meets_of_it_again_goes_too() {
        let mut logs = PgLogs::new(16);
        let other = PgId { pool: PoolId(2), index: 0 };
        logs.push(other, write(1, 0, 0));
        logs.note_modulus(GROUP, 1);
        (1..=20).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        // A root that was written behind the forgetting covers a log that ends anywhere before it.
        for _ in 0..2 {
            logs.push(GROUP, write(21, 0, 0));
            assert!(logs.split(GROUP, 2));
            logs.push(GROUP.child(1), write(22, 0, 0));
            logs.restart(GROUP, mark(30));
            logs.forget(GROUP.pool);
            assert_eq!(logs.groups.keys().collect::<Vec<_>>(), [&other]);
        }
        assert_eq!((logs.position(GROUP), logs.object_held_through(&key(0))), (None, Sequence(0)));
    }

    #[test]
    fn what_logs_may_take_of_a_root_is_counted_as_they_come_are_copied_and_go() {
        let (mut logs, child) = (PgLogs::new(16), GROUP.child(1));
        let one = (size_of::<RootGroup>() + 16 * size_of::<RootEntry>()) as u64;
        // What they had before, beside all their entries.
        let taken = |logs: &PgLogs| {
            let each = logs.groups.values().map(|log| log.bytes_max(16) + size_of::<RootGroup>() as u64);
            assert_eq!(logs.root_bytes_max(), each.sum::<u64>());
            logs.root_bytes_max() - logs.groups.len() as u64 * one
        };
        (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
        assert_eq!(taken(&logs), 0);
        logs.restart(GROUP, mark(500));
        let before = taken(&logs);
        // Four doubts, and one step.
        assert_eq!(before, (4 * size_of::<RootEntry>() + size_of::<RootHeld>()) as u64);
        assert!(logs.split(GROUP, 2));
        assert_eq!(taken(&logs), 2 * before);
        logs.completed(GROUP);
        assert_eq!(taken(&logs), before);
        logs.restart(child, mark(600));
        taken(&logs);
        let copy = logs.groups[&child].clone();
        logs.insert(GROUP, copy);
        taken(&logs);
        logs.forget(GROUP.pool);
        assert_eq!((taken(&logs), logs.root_bytes_max()), (0, 0));
    }

    #[test]
    fn a_group_that_was_left_takes_of_a_root_what_it_holds_until_it_is_joined_again() {
        let mut logs = PgLogs::new(16);
        let one = (size_of::<RootGroup>() + size_of::<RootEntry>()) as u64;
        let full = one + 15 * size_of::<RootEntry>() as u64;
        for index in 0..100 {
            let pg = PgId { index, ..GROUP };
            (1..=20).for_each(|sequence| logs.push(pg, write(sequence, 0, 0)));
            assert_eq!(logs.root_bytes_max(), u64::from(index) * one + full);
            logs.left(pg, mark(0));
        }
        assert_eq!(logs.root_bytes_max(), 100 * one);
        logs.restart(GROUP, mark(900));
        assert_eq!(logs.root_bytes_max(), 99 * one + full);
        logs.left(GROUP, mark(0));
        // One that joins while its group's order is at its beginning gets all of it.
        logs.restart(GROUP, mark(0));
        logs.push(GROUP, write(1, 0, 0));
        assert_eq!(logs.root_bytes_max(), 99 * one + full);
    }

    #[test]
    fn steps_are_joined_to_the_less_sure_of_them_when_they_are_too_many() {
        let mut logs = PgLogs::new(16);
        logs.restart(GROUP, mark(1));
        for step in 1..=200u32 {
            // Each attempt gets a little less far than the one before.
            logs.reached(GROUP, (VolumeId(1), 1000 - step));
            logs.restart(GROUP, mark(u64::from(step) * 100));
        }
        assert_eq!(logs.groups[&GROUP].held.len(), HELD_MAX);
        let sure: Vec<u64> = (700..1000).map(|object| through(&logs, object)).collect();
        assert!(sure.is_sorted_by(|one, next| one >= next), "{sure:?}");
    }
}
