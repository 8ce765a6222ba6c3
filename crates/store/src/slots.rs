//! The memory of batches, lent again when nobody holds it any more.

use crate::batch::OpenBatch;
use base::Buffer;

#[derive(Debug)]
struct Slot {
    buffer: Buffer,
    is_used: bool,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Slots {
    all: Vec<Slot>,
    /// What a slot holds while its memory is being filled elsewhere.
    stand_in: Buffer,
}

impl Slots {
    pub(crate) fn new(count: usize, bytes_each: usize) -> Slots {
        let all = (0..count).map(|_| Slot { buffer: Buffer::new(bytes_each), is_used: false }).collect();
        Slots { all, stand_in: Buffer::new(1) }
    }

    pub(crate) fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.all.iter_mut().map(|slot| &mut slot.buffer)
    }

    /// A batch to fill, with memory that nobody holds.
    pub(crate) fn take(&mut self) -> Option<OpenBatch> {
        let index = self.all.iter().position(|slot| !slot.is_used && slot.buffer.is_unique())?;
        let slot = &mut self.all[index];
        slot.is_used = true;
        // The slot keeps an empty stand-in while the batch is filled, so that the batch is its only holder.
        let buffer = std::mem::replace(&mut slot.buffer, self.stand_in.clone());
        Some(OpenBatch::new(index as u32, buffer))
    }

    /// Takes back a batch that was not needed.
    pub(crate) fn give_back(&mut self, batch: OpenBatch) {
        let slot = &mut self.all[batch.slot as usize];
        slot.buffer = batch.buffer;
        slot.is_used = false;
    }

    /// Nothing of this batch changes any more.
    pub(crate) fn was_sealed(&mut self, batch: &OpenBatch) {
        self.all[batch.slot as usize].buffer = batch.buffer.clone();
    }

    /// A batch is on the drive: its memory, which may be lent again when whoever else holds it is done.
    pub(crate) fn was_settled(&mut self, slot: u32) -> Buffer {
        let slot = &mut self.all[slot as usize];
        slot.is_used = false;
        slot.buffer.clone()
    }
}
