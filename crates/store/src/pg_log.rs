//! What the newest writes of each placement group were, for members to compare.

use crate::batch::RecordView;
use crate::cache::bring;
use crate::layout::{RecordKind, RootEntry, RootGroup, RootHeld};
use base::hash::{Map, Set};
use base::{Epoch, LayerId, LogEntry, ObjectKey, PgId, PoolId, Sequence};
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
    pub(crate) object: (LayerId, u32),
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
    let names = |entry: &LogEntry| (entry.layer, entry.object, entry.origin);
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
    pub(crate) reached: Option<(LayerId, u32)>,
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
        const END: (LayerId, u32) = (LayerId(u64::MAX), u32::MAX);
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

    /// What it tells of a block, the newest first. Mends change nothing.
    fn told_of(&self, key: &ObjectKey, block: u16) -> impl Iterator<Item = &LogEntry> {
        self.entries.iter().rev().filter(move |entry| entry.is_about(key, block) && !entry.is_mend())
    }

    /// Of an incomplete one, up to where it had an object when it last had it all.
    fn held_before(&self, object: (LayerId, u32)) -> Sequence {
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
        let object = (key.layer, key.object);
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

    /// By when a block surely has what it has. The log of a member that has everything tells of all changes since it begins.
    fn changed_by(&self, key: &ObjectKey, block: u16, changed: Sequence) -> Sequence {
        let Some(log) = self.groups.get(&key.pg).filter(|log| !log.is_incomplete) else { return changed };
        let newest = log.told_of(key, block).next().map(|entry| entry.sequence);
        let by_log = newest.or(log.begins.0.checked_sub(1).map(Sequence));
        by_log.map_or(changed, |by_log| by_log.min(changed))
    }

    fn last_write(&self, key: &ObjectKey, block: u16, last: Option<Sequence>) -> Option<LastWrite> {
        let none = PgLog::default();
        let log = self.groups.get(&key.pg).unwrap_or(&none);
        // The index may not know exactly what the log of a member tells that has everything. Repairs that follow each other are
        // one entry, of the last one's sequence.
        let newest = log.told_of(key, block).next().filter(|_| !log.is_incomplete);
        let sequence = newest.filter(|newest| !newest.is_repair()).map(|newest| newest.sequence).or(last)?;
        let doubts = log.doubts.iter().filter(|entry| entry.is_about(key, block));
        let mut same = log.told_of(key, block).chain(doubts).filter(|entry| entry.sequence == sequence);
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
    pub(crate) fn reached(&mut self, pg: PgId, object: (LayerId, u32)) {
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

    /// Brings what [`Self::push`] needs of the logs of these groups into the processor's cache.
    pub(crate) fn bring(&self, groups: impl Iterator<Item = PgId>) {
        let logs = groups.filter_map(|pg| self.groups.get(&pg));
        // The next one comes beside the newest, or into the place of the oldest.
        bring(logs.flat_map(|log| [log.entries.back(), log.entries.front()]).flatten());
    }

    /// What an object is called now that a record names: since that was written, its group may have been split, and the
    /// object be one of the other half.
    pub(crate) fn home(&self, key: ObjectKey) -> ObjectKey {
        let mut pg = key.pg;
        while let Some(modulus) = self.groups.get(&pg).map(|log| log.modulus).filter(|modulus| *modulus > 0)
            && !pg.holds(modulus, key.layer, key.object)
        {
            // It went at the first doubling by which it was not the group's any more.
            let doublings = std::iter::successors(Some(modulus), |m| m.is_multiple_of(2).then_some(m / 2));
            let before =
                doublings.take_while(|m| *m > pg.index).find(|m| pg.holds(*m, key.layer, key.object));
            let Some(before) = before else { break };
            pg = pg.child(before);
        }
        ObjectKey { pg, ..key }
    }

    /// What the object of a record is called now.
    pub(crate) fn home_of(&self, view: &RecordView<'_>) -> ObjectKey {
        match view.kind {
            RecordKind::Write
            | RecordKind::Zero
            | RecordKind::Hole
            | RecordKind::Relocate
            | RecordKind::Push => self.home(view.record.key()),
            _ => view.record.key(),
        }
    }

    pub(crate) fn position(&self, pg: PgId) -> Option<(Epoch, Sequence)> {
        self.groups.get(&pg)?.entries.back().map(|entry| (entry.epoch, entry.sequence))
    }
}

#[cfg(test)]
mod tests;
