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
        let entry =
            LogEntry { epoch, sequence, volume: key.volume, object, first_block, block_count, origin };
        let is_mend = view.kind == RecordKind::Write && entry.is_mend();
        match view.kind {
            RecordKind::Write | RecordKind::Relocate | RecordKind::Push => {
                let (checksums, more) = view.tail.split_at(usize::from(block_count));
                for number in 0..block_count {
                    let at = usize::from(number);
                    let (block, crc32c) = (first_block + number, checksums[at].get());
                    let location = data_location + view.data_index + u32::from(number);
                    let old = match view.kind {
                        RecordKind::Relocate => {
                            // What was moved and overwritten since it was read is dead on arrival.
                            let source = Entry { location: more[at].get(), crc32c };
                            if !index.move_to(&key, block, source, location) {
                                continue;
                            }
                            Some(source)
                        }
                        RecordKind::Push => {
                            let changed = changed_at(&more[2 * at..]);
                            index.set(key, block, Entry { location, crc32c }, changed)
                        }
                        _ if is_mend => index.mend(key, block, Entry { location, crc32c }, sequence),
                        _ => index.set(key, block, Entry { location, crc32c }, sequence),
                    };
                    segments.at(location).live += 1;
                    if let Some(old) = old {
                        segments.block_died(old.location);
                    }
                }
            }
            RecordKind::Zero => {
                freed = index.remove(&key, first_block, block_count, |old| segments.block_died(old.location));
            }
            RecordKind::Reached => {
                logs.reached(pg, (key.volume, key.object));
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
