//! What the newest writes of each placement group were, for members to compare.

use crate::batch::RecordView;
use crate::layout::RecordKind;
use base::hash::Map;
use base::{Epoch, LogEntry, ObjectKey, PgId, Sequence};
use std::collections::VecDeque;

/// Entries kept for each group, unless [`Options`](crate::Options) ask for fewer.
pub const PG_LOG_ENTRIES: usize = 1024;

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
    /// The group has the objects whose place, divided by this, leaves its number as remainder. 0 before the
    /// group's first record told it.
    pub(crate) modulus: u32,
}

/// All groups' logs.
#[derive(Debug)]
pub(crate) struct PgLogs {
    pub(crate) groups: Map<PgId, PgLog>,
    entries_max: usize,
}

impl PgLogs {
    pub(crate) fn new(entries_max: usize) -> PgLogs {
        assert!((1..=PG_LOG_ENTRIES).contains(&entries_max), "no log of {entries_max} entries can be kept");
        PgLogs { groups: Map::default(), entries_max }
    }

    /// Notes a write. What only makes members agree must not drive out what they have to agree about: of marks the last is
    /// kept, and repairs of one write are one entry as far as they follow each other, in place of earlier attempts.
    pub(crate) fn push(&mut self, pg: PgId, mut entry: LogEntry) {
        let log = self.groups.entry(pg).or_default();
        // Replay goes over entries that the checkpoint may hold already.
        if log.entries.back().is_some_and(|last| last.sequence >= entry.sequence) {
            return;
        }
        if let Some(last) = log.entries.back().copied() {
            let goes_on = repair_the_same(&entry, &last)
                && entry.epoch == last.epoch
                && entry.first_block == last.end();
            if goes_on {
                (entry.first_block, entry.block_count) = (last.first_block, entry.end() - last.first_block);
            }
        }
        if entry.is_mark() || entry.is_repair() {
            log.entries.retain(|earlier| !supersedes(&entry, earlier));
        }
        // A checkpoint may hold more of them, made when more were kept.
        while log.entries.len() >= self.entries_max {
            log.begins = log.entries.pop_front().map_or(log.begins, |dropped| dropped.sequence.next());
        }
        log.entries.push_back(entry);
    }

    /// A log begins anew: what the member had before says nothing any more.
    pub(crate) fn restart(&mut self, pg: PgId, entry: LogEntry) {
        let log = self.groups.entry(pg).or_default();
        log.entries.clear();
        log.begins = entry.sequence.next();
        log.is_incomplete = true;
        log.entries.push_back(entry);
    }

    /// An epoch began in which the member is in sync.
    pub(crate) fn completed(&mut self, pg: PgId) {
        self.groups.entry(pg).or_default().is_incomplete = false;
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
        let before = self.groups.insert(pg.child(modulus / 2), copy);
        assert!(before.is_none(), "a group that is split off from {pg} has no log before");
        true
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
            RecordKind::Write | RecordKind::Zero | RecordKind::Relocate => self.home(view.record.key()),
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
    use base::log_entry::REPAIR;
    use base::{PoolId, VolumeId};

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
}
