//! What is durable: which block lies where, what the groups' logs say, and what that makes of the segments.

use crate::batch::RecordView;
use crate::index::{Entry, Index};
use crate::layout::{Piece, RecordKind};
use crate::pg_log::PgLogs;
use crate::segments::Segments;
use base::{LogEntry, ObjectKey, Sequence};

/// All of it. Only durable records change it.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) index: Index,
    pub(crate) logs: PgLogs,
    pub(crate) segments: Segments,
}

impl Contents {
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
        match view.kind {
            RecordKind::Write | RecordKind::Relocate => {
                let (checksums, sources) = view.tail.split_at(usize::from(block_count));
                for number in 0..block_count {
                    let block = first_block + number;
                    let crc32c = checksums[usize::from(number)].get();
                    // What was moved and overwritten since it was read is dead on arrival. The checksum tells even a write
                    // to the very place that the block was read from, should that have been freed meanwhile.
                    if let Some(source) = sources.get(usize::from(number))
                        && index.entry(&key, block) != Some(Entry { location: source.get(), crc32c })
                    {
                        continue;
                    }
                    let location = data_location + view.data_index + u32::from(number);
                    let old = index.set(key, block, Entry { location, crc32c });
                    segments.at(location).live += 1;
                    if let Some(old) = old {
                        segments.block_died(old.location);
                    }
                }
            }
            RecordKind::Zero => {
                freed = index.remove(&key, first_block, block_count, |old| segments.block_died(old.location));
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
            RecordKind::Entry => {}
            RecordKind::Page | RecordKind::Root => return None,
        }
        // The log of the group that the record names: it was copied with this entry when the group was split.
        let pg = view.record.key().pg;
        let (epoch, sequence) = view.record.position();
        let is_placed = sequence > Sequence(0) || view.kind == RecordKind::Join;
        if view.kind == RecordKind::Mark {
            logs.completed(pg);
        }
        if view.kind != RecordKind::Relocate && is_placed {
            let origin = view.record.origin();
            let object = if block_count == 0 { 0 } else { key.object };
            let volume = key.volume;
            let entry = LogEntry { epoch, sequence, volume, object, first_block, block_count, origin };
            match view.kind {
                RecordKind::Join => logs.restart(pg, entry),
                _ => logs.push(pg, entry),
            }
        }
        freed
    }
}
