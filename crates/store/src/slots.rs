//! The memory of batches, lent again when nobody holds it any more.

use crate::batch::OpenBatch;
use base::Buffer;

#[derive(Debug)]
struct Slot {
    /// Made when somebody wants it, unless all are wanted before.
    buffer: Option<Buffer>,
    is_used: bool,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Slots {
    all: Vec<Slot>,
    bytes_each: usize,
    /// What a slot holds while its memory is being filled elsewhere.
    stand_in: Buffer,
}

impl Slots {
    pub(crate) fn new(count: usize, bytes_each: usize) -> Slots {
        let all = (0..count).map(|_| Slot { buffer: None, is_used: false }).collect();
        Slots { all, bytes_each, stand_in: Buffer::new(1) }
    }

    pub(crate) fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let bytes_each = self.bytes_each;
        self.all.iter_mut().map(move |slot| slot.buffer.get_or_insert_with(|| Buffer::new(bytes_each)))
    }

    /// A batch to fill, with memory that nobody holds.
    pub(crate) fn take(&mut self) -> Option<OpenBatch> {
        let is_free = |slot: &Slot| !slot.is_used && slot.buffer.as_ref().is_none_or(Buffer::is_unique);
        let index = self.all.iter().position(is_free)?;
        let slot = &mut self.all[index];
        slot.is_used = true;
        // The slot keeps an empty stand-in while the batch is filled, so that the batch is its only holder.
        let buffer = slot.buffer.replace(self.stand_in.clone());
        let buffer = buffer.unwrap_or_else(|| Buffer::new(self.bytes_each));
        Some(OpenBatch::new(index as u32, buffer))
    }

    /// Takes back a batch that was not needed.
    pub(crate) fn give_back(&mut self, batch: OpenBatch) {
        let slot = &mut self.all[batch.slot as usize];
        slot.buffer = Some(batch.buffer);
        slot.is_used = false;
    }

    /// Nothing of this batch changes any more.
    pub(crate) fn was_sealed(&mut self, batch: &OpenBatch) {
        self.all[batch.slot as usize].buffer = Some(batch.buffer.clone());
    }

    /// A batch is on the drive: its memory, which may be lent again when whoever else holds it is done.
    pub(crate) fn was_settled(&mut self, slot: u32) -> Buffer {
        let slot = &mut self.all[slot as usize];
        slot.is_used = false;
        slot.buffer.clone().expect("a batch on the drive was sealed in its memory")
    }
}
