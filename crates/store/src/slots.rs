//! The memory of batches, lent again when nobody holds it any more.

use crate::batch::OpenBatch;
use base::{Buffer, Fingerprints};

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
    fingerprints: Fingerprints,
    /// What a slot holds while its memory is being filled elsewhere.
    stand_in: Buffer,
}

impl Slots {
    pub(crate) fn new(count: usize, bytes_each: usize, fingerprints: Fingerprints) -> Slots {
        let all = (0..count).map(|_| Slot { buffer: None, is_used: false }).collect();
        Slots { all, bytes_each, fingerprints, stand_in: Buffer::new(1) }
    }

    /// Those that batches have.
    pub(crate) fn fingerprints(&self) -> &Fingerprints {
        &self.fingerprints
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
        Some(OpenBatch::new(index as u32, buffer, self.fingerprints.begin()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> Slots {
        Slots::new(count, 8192, Fingerprints::new(&[0; 16]))
    }

    #[test]
    fn memory_is_lent_once_and_again_when_the_batch_is_on_the_drive_and_nobody_else_holds_it() {
        let mut slots = slots(2);
        let (first, second) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!((first.slot, second.slot, first.buffer.size()), (0, 1, 8192));
        assert!(slots.take().is_none());
        slots.give_back(first);
        let first = slots.take().expect("it was not needed");
        assert!((first.slot, first.buffer.size()) == (0, 8192) && first.buffer.is_unique());
        slots.was_sealed(&second);
        // A replica is to be sent it.
        let copy = second.buffer.clone();
        let (slot, before) = (second.slot, second.buffer.bytes().as_ptr());
        drop(second);
        assert!(slots.take().is_none(), "it is on its way to the drive");
        drop(slots.was_settled(slot));
        assert!(slots.take().is_none(), "it is on its way to a replica");
        drop(copy);
        let again = slots.take().expect("nobody holds it");
        assert_eq!((again.slot, again.buffer.bytes().as_ptr()), (slot, before));
        assert!(slots.take().is_none());
    }

    #[test]
    fn who_registers_the_memory_gets_all_of_it() {
        let mut slots = slots(3);
        assert_eq!(slots.buffers_mut().map(|buffer| buffer.size()).collect::<Vec<_>>(), [8192; 3]);
        assert_eq!(std::iter::from_fn(|| slots.take()).count(), 3);
    }
}
