//! One read, write or zeroing on its way through a primary.

use crate::mend::MendReason;
use base::figures::RequestKind;
use base::{Buffer, Epoch, Instant, LinkId, ObjectKey, OsdId, Sequence, VolumeId};
use store::{BatchId, Location};
use zerocopy::little_endian::U32;

/// The slot of an operation and how often the slot was used, so that a late event cannot hit another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationId {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

impl OperationId {
    /// A number for it in messages.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Read,
    Write,
    Zero,
    /// The mark that begins an epoch.
    Mark,
    /// What a learner lacks, on its way to it.
    Push,
    /// A damaged block being replaced by a sound copy.
    Mend,
    /// Blocks being compared with those of other members.
    Check,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationState {
    Free,
    /// Behind another operation on the same blocks, or short of memory.
    Waiting,
    /// The drive is being read: for a read, for the edges of an unaligned write, or for a repair.
    Reading,
    /// Another member was asked for what it holds.
    Fetching,
    /// Its group lost its epoch while the drive was being read; it goes when the drive is done.
    Abandoned,
    /// Ordered: appended here and sent to the replicas, whose acknowledgements are awaited.
    Replicating,
}

/// What a client asked: whom to answer, and what is counted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) link: LinkId,
    pub(crate) request: u64,
    pub(crate) volume: VolumeId,
    pub(crate) kind: RequestKind,
    /// The length of what is read, written or zeroed.
    pub(crate) bytes: u32,
    /// When it was taken up.
    pub(crate) at: Instant,
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Client(Asked),
    /// A difference between members being removed while the group peers.
    Repair,
    /// The same of a block that the primary cannot read: this member's content is to become everybody's.
    Adoption(OsdId),
    /// An object of a removed volume being deleted.
    Deletion,
    /// A damaged block being replaced.
    Mend(MendReason),
    /// Blocks being compared.
    Scrub,
    /// Another OSD, which is primary of the group.
    Peer {
        link: LinkId,
        request: u64,
    },
    /// A learner being brought up to date.
    Recovery {
        learner: OsdId,
        /// Which attempt at it.
        session: u32,
        /// For how many blocks it counts.
        cost: u16,
    },
}

/// A run of blocks of a read, from one place of the drive or zeros.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) first_block: u16,
    pub(crate) block_count: u16,
    pub(crate) location: Option<Location>,
    /// Filled when the drive answered.
    pub(crate) buffer: Option<Buffer>,
}

/// See the module's documentation. Its vectors keep their memory from one use of the slot to the next.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) serial: u32,
    pub(crate) state: OperationState,
    pub(crate) kind: OperationKind,
    pub(crate) origin: Origin,
    /// Index of the group in the OSD's table.
    pub(crate) group: u32,
    pub(crate) key: ObjectKey,
    /// In bytes from the object's start, as asked for.
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// The blocks that touches.
    pub(crate) first_block: u16,
    pub(crate) block_count: u16,
    /// Members that do not have it on stable media yet.
    pub(crate) members_awaited: u8,
    pub(crate) sequence: Sequence,
    /// When a write got that.
    pub(crate) ordered_at: Instant,
    /// Of a read: the group's epoch when the index was looked at.
    pub(crate) epoch: Epoch,
    /// What its client calls it, 0 if it has none; and whether it was sent before.
    pub(crate) tag: u64,
    pub(crate) is_again: bool,
    /// It was narrowed to a part of what was asked for: the client is to send it again for the rest.
    pub(crate) is_narrowed: bool,
    /// A write's bytes while they cannot be staged yet, laid out from the start of `first_block`.
    pub(crate) payload: Option<Buffer>,
    /// Where its data lies once staged.
    pub(crate) staged: Option<(BatchId, u32)>,
    /// One a block: of a write, what the writer computed; of a read, what the index says.
    pub(crate) checksums: Vec<U32>,
    /// Of an unaligned write: what the index says of the blocks in `parts`.
    pub(crate) edge_checksums: [u32; 2],
    pub(crate) parts: Vec<Part>,
    pub(crate) parts_awaited: u16,
}

impl Operation {
    pub(crate) fn empty() -> Operation {
        Operation {
            serial: 0,
            state: OperationState::Free,
            kind: OperationKind::Read,
            origin: Origin::Repair,
            group: 0,
            key: ObjectKey::default(),
            offset: 0,
            length: 0,
            first_block: 0,
            block_count: 0,
            members_awaited: 0,
            sequence: Sequence(0),
            ordered_at: Instant::default(),
            epoch: Epoch(0),
            tag: 0,
            is_again: false,
            is_narrowed: false,
            payload: None,
            staged: None,
            checksums: Vec::new(),
            edge_checksums: [0; 2],
            parts: Vec::new(),
            parts_awaited: 0,
        }
    }

    pub(crate) fn is_aligned(&self) -> bool {
        (self.offset | self.length).is_multiple_of(base::BLOCK_BYTES as u32)
    }

    /// Leaves of a write, whose bytes are held, or of a zeroing these blocks only.
    pub(crate) fn narrow(&mut self, first_block: u16, block_count: u16) {
        let block_bytes = base::BLOCK_BYTES as u32;
        let skipped = usize::from(first_block - self.first_block);
        let blocks = skipped..skipped + usize::from(block_count);
        let bytes = blocks.start * base::BLOCK_BYTES..blocks.end * base::BLOCK_BYTES;
        if let Some(payload) = &mut self.payload {
            payload.bytes_mut().expect("a held write's buffer has one holder").copy_within(bytes, 0);
            self.checksums.truncate(blocks.end);
            self.checksums.drain(..blocks.start);
        }
        let end = (self.offset + self.length).min(u32::from(first_block + block_count) * block_bytes);
        self.offset = self.offset.max(u32::from(first_block) * block_bytes);
        self.length = end - self.offset;
        (self.first_block, self.block_count) = (first_block, block_count);
        self.is_narrowed = true;
    }

    pub(crate) fn overlaps(&self, key: &ObjectKey, first_block: u16, block_count: u16) -> bool {
        self.key == *key
            && self.first_block < first_block + block_count
            && first_block < self.first_block + self.block_count
    }
}

/// All operations of an OSD, in slots that are used again.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: Vec<Operation>,
    free: Vec<u32>,
}

impl Operations {
    /// How many there are.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A slot for a new operation, to be filled in by the caller.
    pub(crate) fn add(&mut self) -> (OperationId, &mut Operation) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Operation::empty());
            self.slots.len() as u32 - 1
        });
        let operation = &mut self.slots[slot as usize];
        operation.serial = operation.serial.wrapping_add(1);
        operation.state = OperationState::Waiting;
        operation.members_awaited = 0;
        operation.sequence = Sequence(0);
        operation.tag = 0;
        operation.is_again = false;
        operation.is_narrowed = false;
        operation.payload = None;
        operation.staged = None;
        operation.checksums.clear();
        operation.parts.clear();
        operation.parts_awaited = 0;
        (OperationId { slot, serial: operation.serial }, operation)
    }

    /// The operation, if it has not ended.
    pub(crate) fn get(&self, id: OperationId) -> Option<&Operation> {
        let operation = &self.slots[id.slot as usize];
        (operation.serial == id.serial && operation.state != OperationState::Free).then_some(operation)
    }

    /// As [`Self::get`], to change.
    pub(crate) fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        let operation = &mut self.slots[id.slot as usize];
        (operation.serial == id.serial && operation.state != OperationState::Free).then_some(operation)
    }

    /// An operation that its holder knows to be alive.
    pub(crate) fn live(&mut self, id: OperationId) -> &mut Operation {
        self.get_mut(id).expect("an operation in a group's lists has not ended")
    }

    /// The operation for which the drive was read; its slot is kept until the drive is done.
    pub(crate) fn reading(&self, slot: u32, serial_low: u32) -> OperationId {
        let serial = self.slots[slot as usize].serial;
        assert_eq!(serial & 0xfff, serial_low, "a slot is kept while the drive works for it");
        OperationId { slot, serial }
    }

    pub(crate) fn remove(&mut self, id: OperationId) {
        self.live(id).state = OperationState::Free;
        self.free.push(id.slot);
    }
}
