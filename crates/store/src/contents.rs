//! What is durable: which block lies where, what the groups' logs say, and what that makes of the segments.

use crate::batch::RecordView;
use crate::index::{Entry, Index};
use crate::layout::{Piece, RecordKind};
use crate::pg_log::PgLogs;
use crate::segments::Segments;
use base::{LogEntry, ObjectKey, Sequence};
use zerocopy::little_endian::U32;

/// All of it. Only durable records change it.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) index: Index,
    pub(crate) logs: PgLogs,
    pub(crate) segments: Segments,
}

impl Contents {
    /// Whether a record splits a group off that is there already. No program of ours writes one, and nothing could be done by
    /// it.
    pub(crate) fn is_impossible_split(&self, view: &RecordView<'_>) -> bool {
        let pg = view.record.key().pg;
        let Some(modulus) = view.record.modulus().filter(|_| view.kind == RecordKind::Split) else {
            return false;
        };
        if self.logs.groups.get(&pg).is_some_and(|log| log.modulus >= modulus) {
            return false;
        }
        let child = pg.child(modulus / 2);
        self.logs.groups.contains_key(&child) || self.index.object_count(child) > 0
    }

    /// Brings what [`Self::apply`] needs of such records as there are many of into the processor's cache, as far as objects are
    /// called what they were.
    pub(crate) fn bring<'a>(&self, views: impl Iterator<Item = RecordView<'a>> + Clone) {
        let is_about_blocks =
            |kind: RecordKind| kind.has_blocks() || matches!(kind, RecordKind::Zero | RecordKind::Hole);
        let blocks = views.clone().filter(|view| is_about_blocks(view.kind));
        self.index.bring(blocks.map(|view| view.begin()));
        let is_logged = |kind| {
            matches!(kind, RecordKind::Write | RecordKind::Zero | RecordKind::Hole | RecordKind::Entry)
        };
        self.logs.bring(views.filter(|view| is_logged(view.kind)).map(|view| view.record.key().pg));
    }

    /// Takes in a durable record. The same code runs when a batch becomes durable and when a start replays it, so both
    /// come to the same state. `key` is what the object is called now. Answers the checkpoint page of an object that is
    /// gone.
    pub(crate) fn apply(
        &mut self,
        view: &RecordView<'_>,
        key: ObjectKey,
        data_location: u32,
    ) -> Option<Piece> {
        let (index, logs, segments) = (&mut self.index, &mut self.logs, &mut self.segments);
        let (first_block, block_count) = (view.record.first_block.get(), view.record.block_count.get());
        let mut freed = None;
        // The log of the group that the record names: it was copied with this entry when the group was split.
        let pg = view.record.key().pg;
        let (epoch, sequence) = view.record.position();
        let origin = view.record.origin();
        let object = if block_count == 0 { 0 } else { key.object };
        let entry = LogEntry { epoch, sequence, layer: key.layer, object, first_block, block_count, origin };
        let is_mend = view.kind == RecordKind::Write && entry.is_mend();
        let location = data_location + view.data_index;
        match view.kind {
            RecordKind::Write | RecordKind::Push => {
                let (checksums, more) = view.tail.split_at(usize::from(block_count));
                // Batches lie in one segment each.
                segments.at(location).live += u32::from(block_count);
                index.change(key, |object| {
                    for (number, location) in (0..block_count).zip(location..) {
                        let (at, block) = (usize::from(number), first_block + number);
                        let entry = Entry { location, crc32c: checksums[at].get() };
                        let old = match view.kind {
                            RecordKind::Push => object.set(block, entry, changed_at(&more[2 * at..])),
                            _ if is_mend => object.mend(block, entry, sequence),
                            _ => object.set(block, entry, sequence),
                        };
                        if let Some(old) = old {
                            segments.entry_died(old);
                        }
                    }
                });
            }
            RecordKind::Relocate => {
                let (checksums, sources) = view.tail.split_at(usize::from(block_count));
                // What was overwritten since it was read to be moved is dead on arrival, and so is what is gone.
                if let Some(object) = index.get_mut(&key) {
                    for (number, location) in (0..block_count).zip(location..) {
                        let at = usize::from(number);
                        let source = Entry { location: sources[at].get(), crc32c: checksums[at].get() };
                        if object.move_to(first_block + number, source, location) {
                            segments.at(location).live += 1;
                            segments.block_died(source.location);
                        }
                    }
                }
            }
            RecordKind::Zero => {
                freed = index.remove(&key, first_block, block_count, |old| segments.entry_died(old));
            }
            RecordKind::Hole => index.change(key, |object| {
                // Of one that was pushed the origin says it.
                let changed = if sequence > Sequence(0) { sequence } else { Sequence(origin) };
                for block in first_block..first_block + block_count {
                    if let Some(old) = object.set(block, Entry::HOLE, changed) {
                        segments.entry_died(old);
                    }
                }
            }),
            RecordKind::Reached => {
                logs.reached(pg, (key.layer, key.object));
                return None;
            }
            RecordKind::Mark | RecordKind::Join => {
                if let Some(modulus) = view.record.modulus() {
                    logs.note_modulus(key.pg, modulus);
                }
            }
            RecordKind::Split => {
                if let Some(modulus) = view.record.modulus()
                    && logs.split(key.pg, modulus)
                {
                    index.split(key.pg, modulus);
                }
                return None;
            }
            RecordKind::Forget => {
                logs.forget(pg.pool);
                return None;
            }
            RecordKind::Entry => {}
            RecordKind::Page | RecordKind::Root => return None,
        }
        let is_placed = sequence > Sequence(0) || view.kind == RecordKind::Join;
        if view.kind == RecordKind::Mark {
            logs.completed(pg);
        }
        if !matches!(view.kind, RecordKind::Relocate | RecordKind::Push) && is_placed {
            match view.kind {
                RecordKind::Join if view.record.is_leave() => logs.left(pg, entry),
                RecordKind::Join => logs.restart(pg, entry),
                _ => logs.push(pg, entry),
            }
        }
        freed
    }
}

/// The sequence that a push says for a block, whose two words come first.
fn changed_at(words: &[U32]) -> Sequence {
    Sequence(u64::from(words[1].get()) << 32 | u64::from(words[0].get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Record, SEGMENTS_OFFSET};
    use base::log_entry::{MEND, REPAIR};
    use base::{BLOCK_BYTES, LayerId, PgId, PoolId};

    const BLOCKS: u32 = 16;
    const PG: PgId = PgId { pool: PoolId(1), index: 1 };
    const KEY: ObjectKey = ObjectKey { pg: PG, layer: LayerId(3), object: 4 };

    fn contents() -> Contents {
        let bytes = BLOCKS * BLOCK_BYTES as u32;
        let segments = Segments::new(SEGMENTS_OFFSET + 8 * u64::from(bytes), bytes);
        Contents { index: Index::default(), logs: PgLogs::new(16), segments }
    }

    /// A record of a place in the group's order, of no blocks.
    fn place(kind: RecordKind, modulus: u32, sequence: u64) -> Record {
        let record = Record::new(kind, ObjectKey { pg: PG, object: modulus, ..ObjectKey::default() }, 0, 0);
        Record { sequence: sequence.into(), ..record }
    }

    fn blocks(kind: RecordKind, first_block: u16, block_count: u16, sequence: u64) -> Record {
        Record { sequence: sequence.into(), ..Record::new(kind, KEY, first_block, block_count) }
    }

    fn view(record: Record, tail: &[U32]) -> RecordView<'_> {
        let kind = RecordKind::from_number(record.kind).unwrap();
        assert!(record.is_possible(kind) && tail.len() == kind.tail_words(record.block_count.get()));
        RecordView { kind, record, tail, tail_at: 0, data_index: 2 }
    }

    /// Where the data of such a view lies.
    fn at(segments: &Segments, number: u32) -> u32 {
        segments.location(3, 1) + 2 + number
    }

    fn apply(contents: &mut Contents, record: Record, tail: &[u32]) {
        let tail: Vec<U32> = tail.iter().copied().map(U32::new).collect();
        let (key, data_location) = (record.key(), contents.segments.location(3, 1));
        assert!(contents.apply(&view(record, &tail), key, data_location).is_none());
    }

    #[test]
    fn a_split_is_impossible_if_anything_is_there_that_would_be_split_off() {
        let is_impossible = |contents: &Contents, record| contents.is_impossible_split(&view(record, &[]));
        let split = place(RecordKind::Split, 4, 0);
        let child = PgId { index: 3, ..PG };
        let mut with_log = contents();
        assert!(!is_impossible(&with_log, split));
        with_log.logs.note_modulus(PG, 2);
        assert!(!is_impossible(&with_log, split));
        with_log.logs.note_modulus(child, 4);
        assert!(is_impossible(&with_log, split) && !is_impossible(&with_log, place(RecordKind::Mark, 4, 1)));
        // It was done before, and that is why.
        with_log.logs.note_modulus(PG, 4);
        assert!(!is_impossible(&with_log, split));
        let mut with_object = contents();
        let key = ObjectKey { pg: child, ..KEY };
        with_object.index.set(key, 0, Entry { location: 0, crc32c: 0 }, Sequence(1));
        assert!(is_impossible(&with_object, split));
    }

    #[test]
    fn what_a_learner_is_given_changed_when_each_block_of_it_did() {
        let mut contents = contents();
        // Checksums, and then of each block when it changed, the low half first.
        apply(&mut contents, blocks(RecordKind::Push, 7, 3, 0), &[11, 12, 13, 5, 0, 6, 1, 7, 1 << 16]);
        let object = contents.index.get(&KEY).unwrap();
        let entry = |number: u32| Entry { location: at(&contents.segments, number), crc32c: 11 + number };
        assert_eq!([7, 8, 9].map(|block| object.get(block)), [0, 1, 2].map(|number| Some(entry(number))));
        assert_eq!(object.last_changed(), Sequence(1 << 48 | 7));
        assert!(object.changed(8).unwrap() >= Sequence(1 << 32 | 6));
        let mut contents = self::contents();
        apply(&mut contents, blocks(RecordKind::Push, 7, 2, 0), &[11, 12, 5, 1, 9, 1]);
        let object = contents.index.get(&KEY).unwrap();
        let changed = [7, 8].map(|block| object.exactly_changed(block));
        assert_eq!(changed, [5, 9].map(|low| Some(Sequence(1 << 32 | low))));
        assert_eq!(contents.segments.all[3].live, 2);
        assert_eq!(contents.logs.position(PG), None, "no log tells of it");
    }

    #[test]
    fn what_is_written_zeroed_moved_and_mended_is_counted_where_it_lies() {
        let mut contents = contents();
        let live = |contents: &Contents| [2, 3].map(|segment: usize| contents.segments.all[segment].live);
        let elsewhere = contents.segments.location(2, 5);
        contents.index.set(KEY, 7, Entry { location: elsewhere, crc32c: 9 }, Sequence(1));
        contents.index.set(KEY, 8, Entry { location: elsewhere + 1, crc32c: 9 }, Sequence(1));
        contents.segments.all[2].live = 2;
        // One that lies where it was read, and one that was written meanwhile.
        let words = [9, 9, elsewhere, elsewhere + 7];
        apply(&mut contents, blocks(RecordKind::Relocate, 7, 2, 0), &words);
        assert_eq!(live(&contents), [1, 1]);
        assert_eq!(contents.index.entry(&KEY, 7).unwrap().location, at(&contents.segments, 0));
        apply(&mut contents, blocks(RecordKind::Zero, 100, 1, 0), &[]);
        assert_eq!(contents.logs.position(PG), None, "neither has a place in the order");
        apply(&mut contents, blocks(RecordKind::Write, 8, 1, 2), &[5]);
        assert_eq!((live(&contents), contents.index.block_count), ([0, 2], 2));
        let mend = blocks(RecordKind::Write, 8, 1, 3).with_origin(MEND | REPAIR);
        apply(&mut contents, mend, &[5]);
        assert_eq!(contents.index.get(&KEY).unwrap().exactly_changed(8), Some(Sequence(2)));
        assert_eq!((live(&contents), contents.logs.position(PG).unwrap().1), ([0, 2], Sequence(3)));
        apply(&mut contents, blocks(RecordKind::Write, 8, 1, 4), &[6]);
        assert_eq!(contents.index.get(&KEY).unwrap().exactly_changed(8), Some(Sequence(4)));
        apply(&mut contents, blocks(RecordKind::Zero, 8, 1, 0), &[]);
        assert_eq!((live(&contents), contents.logs.position(PG).unwrap().1), ([0, 1], Sequence(4)));
        apply(&mut contents, blocks(RecordKind::Entry, 0, 9, 6), &[]);
        assert_eq!((live(&contents), contents.logs.position(PG).unwrap().1), ([0, 1], Sequence(6)));
    }

    #[test]
    fn places_in_a_groups_order_begin_its_log_end_its_catching_up_and_say_that_it_is_left() {
        let mut contents = contents();
        let of = |contents: &Contents| {
            let log = &contents.logs.groups[&PG];
            (log.is_incomplete, log.begins.0, log.entries.len(), log.held.len(), log.modulus)
        };
        // It tells that the member is in sync, and has no place.
        apply(&mut contents, place(RecordKind::Mark, 0, 0), &[]);
        assert_eq!(of(&contents), (false, 0, 0, 0, 0));
        apply(&mut contents, place(RecordKind::Mark, 2, 3), &[]);
        assert_eq!(of(&contents), (false, 0, 1, 0, 2));
        apply(&mut contents, place(RecordKind::Join, 2, 9), &[]);
        assert_eq!(of(&contents), (true, 10, 1, 1, 2));
        apply(&mut contents, place(RecordKind::Join, 0, 0), &[]);
        assert_eq!(of(&contents), (true, 1, 1, 0, 2));
        apply(&mut contents, place(RecordKind::Join, 0, 20), &[]);
        let reached = Record::new(RecordKind::Reached, KEY, 0, 0);
        apply(&mut contents, reached, &[]);
        assert_eq!(contents.logs.groups[&PG].reached, Some((LayerId(3), 4)));
        assert_eq!(contents.logs.position(PG).unwrap().1, Sequence(20));
        apply(&mut contents, place(RecordKind::Mark, 0, 0), &[]);
        assert_eq!(of(&contents), (false, 21, 1, 0, 2));
        // Its objects are split too, once.
        for _ in 0..2 {
            apply(&mut contents, place(RecordKind::Split, 4, 0), &[]);
            assert_eq!(contents.logs.groups.len(), 2);
        }
        let pool = ObjectKey { pg: PgId { index: 0, ..PG }, ..ObjectKey::default() };
        apply(&mut contents, Record::new(RecordKind::Forget, pool, 0, 0), &[]);
        assert_eq!(contents.logs.groups.len(), 0);
    }
}
