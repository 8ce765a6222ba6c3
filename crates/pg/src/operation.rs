//! One read, write or zeroing on its way through a primary.

use crate::codec::Payload;
use crate::mclock::UnderWay;
use crate::shares::Shares;
use base::figures::RequestKind;
use base::{
    BLOCK_BYTES, BlockRange, Buffer, CutId, Epoch, Instant, LayerId, LinkId, ObjectKey, OsdId, Sequence,
    Tenant, VolumeId, crc32c,
};
use store::Location;
use wire::Status;
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperationKind {
    #[default]
    Read,
    Write,
    Zero,
    /// Blocks of a layer read as zeros, whatever lies beneath it.
    Hole,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperationState {
    #[default]
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
    /// Whose that link is.
    pub(crate) tenant: Tenant,
    pub(crate) request: u64,
    pub(crate) volume: VolumeId,
    pub(crate) kind: RequestKind,
    /// Whoever asked verifies what it is given to read.
    pub(crate) unverified: bool,
    /// The length of what is read, written or zeroed.
    pub(crate) bytes: u32,
    /// When it was taken up.
    pub(crate) at: Instant,
}

/// Why a block is written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MendReason {
    /// It does not verify here.
    Damaged,
    /// It does not verify, or differs, at another member: what this OSD has is written to all.
    OtherDamaged,
    /// Most members hold something else than this OSD: what that one has is written to all.
    Outvoted(OsdId),
}

/// What an operation is for: who gets the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    Client(Asked),
    /// A difference between members being removed while the group peers.
    #[default]
    Repair,
    /// The same of a block that the primary cannot read: this member's content is to become everybody's.
    Adoption(OsdId),
    /// An object of a removed volume being deleted.
    Deletion,
    /// What lies beyond the end of a volume that was made smaller being zeroed, for that cut: whole blocks, or by a write the
    /// part of the block in which it ends.
    Cut(CutId),
    /// What nobody sees of a volume that has had snapshots being deleted.
    Prune,
    /// A block that a clone sees of its parent being copied to it.
    Flatten,
    /// A damaged block being replaced.
    Mend(MendReason),
    /// Blocks being compared.
    Scrub,
    /// Another OSD, which is primary of the group.
    Peer {
        link: LinkId,
        request: u64,
        /// Of a deep check: under which key it asks for a hash.
        key: u64,
    },
    /// A learner being brought up to date.
    Backfill {
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
    /// The layer that holds it.
    pub(crate) layer: LayerId,
    pub(crate) first_block: u16,
    pub(crate) block_count: u16,
    pub(crate) location: Option<Location>,
    /// Of a hole there from the start. Filled when the drive answered.
    pub(crate) buffer: Option<Buffer>,
    /// Nothing else is written to that place: the drive is reading it, or did not give it and is to read it block by block.
    pub(crate) is_pinned: bool,
}

impl Part {
    /// Whether the drive, which has answered, did not give it.
    fn has_failed(&self) -> bool {
        self.location.is_some() && self.buffer.is_none()
    }

    /// Where one of its blocks lies.
    pub(crate) fn location_of(&self, offset: u16) -> Option<Location> {
        self.location.map(|first| match first {
            Location::HOLE => Location::HOLE,
            Location(first) => Location(first + u32::from(offset)),
        })
    }
}

/// Bytes of an object, as asked for, from its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByteRange {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl ByteRange {
    pub(crate) fn of(range: &BlockRange) -> ByteRange {
        let bytes = |blocks: u16| u32::from(blocks) * BLOCK_BYTES as u32;
        ByteRange { offset: bytes(range.first_block), length: bytes(range.block_count) }
    }
}

/// Which of the attempts at a write or zeroing it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    /// See [`base::LogEntry::origin`].
    pub(crate) origin: u64,
    /// It may have been done before: see [`wire::Request::since`].
    pub(crate) since: Option<Sequence>,
    /// It was narrowed to a part of what was asked for: the client is to send it again for the rest.
    pub(crate) is_narrowed: bool,
}

/// The place of a write in its group's order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Order {
    pub(crate) sequence: Sequence,
    /// Members that do not have it on stable media yet.
    pub(crate) members_awaited: u8,
}

/// See the module's documentation. Its vectors keep their memory from one use of the slot to the next.
#[derive(Debug, Default)]
pub(crate) struct Operation {
    pub(crate) serial: u32,
    pub(crate) state: OperationState,
    pub(crate) kind: OperationKind,
    pub(crate) purpose: Purpose,
    /// Index of the group in the OSD's table.
    pub(crate) group: u32,
    /// Of a read: the group's epoch when the index was looked at.
    pub(crate) epoch: Epoch,
    pub(crate) bytes: ByteRange,
    /// The blocks that touches.
    pub(crate) range: BlockRange,
    pub(crate) attempt: Attempt,
    pub(crate) order: Order,
    pub(crate) payload: Payload,
    /// One a block: of a write, what the writer computed; of a read, what the index says.
    pub(crate) checksums: Vec<U32>,
    /// Of an unaligned write: what the index says of the blocks in `parts`.
    pub(crate) edge_checksums: [u32; 2],
    pub(crate) parts: Vec<Part>,
    pub(crate) parts_awaited: u16,
}

impl Operation {
    /// Whether it is about whole blocks. One that brings no bytes takes all of its block from what is there.
    pub(crate) fn is_aligned(&self) -> bool {
        self.bytes.length > 0 && (self.bytes.offset | self.bytes.length).is_multiple_of(BLOCK_BYTES as u32)
    }

    /// Whether nothing of what was looked up for it is on the drive.
    pub(crate) fn is_hole(&self) -> bool {
        self.parts.iter().all(|part| part.location.is_none())
    }

    /// The object of the layer in which a block was found that was looked up for it.
    pub(crate) fn key_of(&self, block: u16) -> ObjectKey {
        let has_it = |part: &&Part| (part.first_block..part.first_block + part.block_count).contains(&block);
        let layer = self.parts.iter().find(has_it).map_or(self.range.key.layer, |part| part.layer);
        ObjectKey { layer, ..self.range.key }
    }

    /// For whom the memory counts that it works with.
    pub(crate) fn tenant(&self) -> Tenant {
        if let Purpose::Client(asked) = self.purpose { asked.tenant } else { Tenant::NOBODY }
    }

    /// The memory that it holds while it waits, or that is read into then, in bytes.
    fn waiting_bytes(&self) -> usize {
        match (&self.payload, self.purpose) {
            (Payload::Held(buffer), _) => buffer.size(),
            (_, Purpose::Client(Asked { kind: RequestKind::Read, .. })) => {
                usize::from(self.range.block_count) * BLOCK_BYTES
            }
            _ => 0,
        }
    }

    /// Leaves of a write, whose bytes are held, or of a zeroing these blocks only.
    pub(crate) fn narrow(&mut self, first_block: u16, block_count: u16) {
        let block_bytes = BLOCK_BYTES as u32;
        let skipped = usize::from(first_block - self.range.first_block);
        let blocks = skipped..skipped + usize::from(block_count);
        let held = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
        if let Payload::Held(payload) = &mut self.payload {
            payload.bytes_mut().expect("a held write's buffer has one holder").copy_within(held, 0);
            self.checksums.truncate(blocks.end);
            self.checksums.drain(..blocks.start);
        }
        let end =
            (self.bytes.offset + self.bytes.length).min(u32::from(first_block + block_count) * block_bytes);
        self.bytes.offset = self.bytes.offset.max(u32::from(first_block) * block_bytes);
        self.bytes.length = end - self.bytes.offset;
        (self.range.first_block, self.range.block_count) = (first_block, block_count);
        self.attempt.is_narrowed = true;
    }

    /// The first block of what was to be read that the drive did not give, and that as the reason: as [`Self::first_damage`]
    /// for whom what it gave need not verify.
    pub(crate) fn first_failed(&self) -> Option<(u16, Status)> {
        let failed = self.parts.iter().find(|part| part.has_failed());
        failed.map(|part| (part.first_block, Status::DeviceFailed))
    }

    /// The first block of what was read that does not verify, and why.
    pub(crate) fn first_damage(&self) -> Option<(u16, Status)> {
        let first_block = self.parts.first().map_or(self.range.first_block, |part| part.first_block);
        for part in self.parts.iter().filter(|part| part.location.is_some()) {
            let Some(buffer) = &part.buffer else { return Some((part.first_block, Status::DeviceFailed)) };
            let blocks = buffer.bytes().chunks_exact(BLOCK_BYTES).take(usize::from(part.block_count));
            for (number, block) in (part.first_block..).zip(blocks) {
                // What the drive gave against what the writer computed.
                if crc32c(block) != self.checksums[usize::from(number - first_block)].get() {
                    return Some((number, Status::Damaged));
                }
            }
        }
        None
    }

    /// Divides the parts that the drive did not give into single blocks, for it may be one of them that it cannot read.
    /// Answers whether there are any.
    pub(crate) fn divide_failed(&mut self) -> bool {
        let is_divided = |part: &Part| part.has_failed() && part.block_count > 1;
        if !self.parts.iter().any(is_divided) {
            return false;
        }
        for part in std::mem::take(&mut self.parts) {
            let (Some(Location(location)), true) = (part.location, is_divided(&part)) else {
                self.parts.push(part);
                continue;
            };
            self.parts.extend((0..part.block_count).map(|number| Part {
                layer: part.layer,
                first_block: part.first_block + number,
                block_count: 1,
                location: Some(Location(location + u32::from(number))),
                buffer: None,
                // All of them lie in one segment, which is kept without a gap.
                is_pinned: part.is_pinned && number == 0,
            }));
        }
        true
    }
}

/// All operations of an OSD, in slots that are used again.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: Vec<Operation>,
    free: Vec<u32>,
    /// Of those that clients asked for and that were put in line.
    pub(crate) shares: Shares,
    /// Of those that clients asked for and that wait for nobody else.
    pub(crate) under_way: UnderWay,
}

impl Operations {
    /// How many there are.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A new operation of whole blocks.
    pub(crate) fn add_for(
        &mut self,
        kind: OperationKind,
        purpose: Purpose,
        group: u32,
        range: BlockRange,
    ) -> OperationId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Operation::default());
            self.slots.len() as u32 - 1
        });
        let operation = &mut self.slots[slot as usize];
        operation.serial = operation.serial.wrapping_add(1);
        operation.state = OperationState::Waiting;
        (operation.kind, operation.purpose, operation.group) = (kind, purpose, group);
        (operation.range, operation.bytes) = (range, ByteRange::of(&range));
        operation.attempt = Attempt::default();
        operation.order = Order::default();
        operation.payload = Payload::None;
        operation.checksums.clear();
        operation.parts.clear();
        operation.parts_awaited = 0;
        OperationId { slot, serial: operation.serial }
    }

    /// Counts an operation that is put in line, if a client asked for it, until it has ended.
    pub(crate) fn count_waiting(&mut self, id: OperationId) {
        self.under_way.waits(id.slot);
        let operation = self.live(id);
        if let Purpose::Client(asked) = operation.purpose {
            let bytes = operation.waiting_bytes();
            self.shares.count(id.slot, asked.link, asked.tenant, bytes);
        }
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
        self.under_way.ends(id.slot);
        self.shares.ended(id.slot);
        self.free.push(id.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ObjectKey;

    fn range(first_block: u16, block_count: u16) -> BlockRange {
        BlockRange { key: ObjectKey::default(), first_block, block_count }
    }

    #[test]
    fn a_slot_that_is_used_again_is_another_operation() {
        let mut operations = Operations::default();
        let first = operations.add_for(OperationKind::Read, Purpose::Repair, 0, range(0, 1));
        operations.remove(first);
        assert!(operations.get(first).is_none() && operations.get_mut(first).is_none(), "it has ended");
        let second = operations.add_for(OperationKind::Read, Purpose::Repair, 0, range(0, 1));
        assert_eq!(first.slot, second.slot);
        assert!(operations.get(first).is_none() && operations.get_mut(first).is_none());
        assert!(operations.get(second).is_some());
        assert_eq!(OperationId { slot: 2, serial: 3 }.number(), 3_u64 << 32 | 2, "both count in messages");
        assert_eq!(operations.in_flight(), 1);
    }

    #[test]
    fn a_write_that_is_narrowed_keeps_the_bytes_of_what_is_left() {
        let mut operations = Operations::default();
        let id = operations.add_for(OperationKind::Write, Purpose::Repair, 0, range(10, 3));
        let operation = operations.live(id);
        let mut held = Buffer::new(3 * BLOCK_BYTES);
        for (number, block) in held.bytes_mut().expect("it is new").chunks_mut(BLOCK_BYTES).enumerate() {
            block.fill(number as u8);
        }
        operation.payload = Payload::Held(held);
        operation.checksums.extend([0, 1, 2].map(U32::new));
        // The last block is asked for in part.
        operation.bytes.length -= 100;
        operation.narrow(11, 2);
        assert_eq!((operation.range, operation.bytes.offset), (range(11, 2), 11 * BLOCK_BYTES as u32));
        assert_eq!(operation.bytes.length, 2 * BLOCK_BYTES as u32 - 100);
        assert_eq!(operation.checksums, [1, 2].map(U32::new));
        let Payload::Held(held) = &operation.payload else { panic!("its bytes are held still") };
        assert_eq!((held.bytes()[0], held.bytes()[BLOCK_BYTES]), (1, 2));
    }

    #[test]
    fn what_the_drive_did_not_give_is_tried_block_by_block() {
        let mut operations = Operations::default();
        let id = operations.add_for(OperationKind::Read, Purpose::Repair, 0, range(10, 3));
        let operation = operations.live(id);
        let (location, buffer) = (Some(Location(100)), None);
        operation.parts.push(Part { is_pinned: true, location, ..part(10, 3, None, buffer) });
        assert_eq!(operation.first_damage(), Some((10, Status::DeviceFailed)));
        assert!(operation.divide_failed());
        assert_eq!(operation.parts.iter().filter(|part| part.is_pinned).count(), 1, "one pin is one part's");
        let places: Vec<_> = operation.parts.iter().map(|part| (part.first_block, part.location)).collect();
        assert_eq!(places, [(10, 100), (11, 101), (12, 102)].map(|(block, at)| (block, Some(Location(at)))));
        assert!(!operation.divide_failed(), "single blocks are not divided");
    }

    fn part(first_block: u16, block_count: u16, location: Option<u32>, buffer: Option<Buffer>) -> Part {
        let (layer, location) = (LayerId::default(), location.map(Location));
        Part { layer, first_block, block_count, location, buffer, is_pinned: false }
    }

    #[test]
    fn what_an_operation_was_is_nothing_to_the_next_one_in_its_slot() {
        let mut operations = Operations::default();
        let id = operations.add_for(OperationKind::Write, Purpose::Scrub, 7, range(10, 3));
        let operation = operations.live(id);
        operation.state = OperationState::Replicating;
        operation.attempt = Attempt { origin: 5, since: Some(Sequence(6)), is_narrowed: true };
        operation.order = Order { sequence: Sequence(8), members_awaited: 2 };
        operation.payload = Payload::Held(Buffer::new(BLOCK_BYTES));
        operation.checksums.push(U32::new(1));
        operation.parts.push(part(10, 1, Some(3), None));
        operation.parts_awaited = 1;
        operations.remove(id);
        let next = operations.add_for(OperationKind::Read, Purpose::Repair, 1, range(0, 2));
        assert_eq!(next.slot, id.slot);
        let operation = operations.live(next);
        let what = (operation.kind, operation.purpose, operation.group, operation.state);
        assert_eq!(what, (OperationKind::Read, Purpose::Repair, 1, OperationState::Waiting));
        let ByteRange { offset, length } = operation.bytes;
        assert_eq!((operation.range, offset, length), (range(0, 2), 0, 2 * BLOCK_BYTES as u32));
        let Attempt { origin, since, is_narrowed } = operation.attempt;
        assert_eq!((origin, since, is_narrowed), (0, None, false));
        let Order { sequence, members_awaited } = operation.order;
        assert_eq!((sequence, members_awaited, operation.parts_awaited), (Sequence(0), 0, 0));
        assert!(!operation.payload.is_held() && operation.checksums.is_empty() && operation.parts.is_empty());
    }

    #[test]
    fn what_begins_or_ends_within_a_block_is_not_aligned() {
        let block = BLOCK_BYTES as u32;
        let is_aligned = |offset, length| {
            Operation { bytes: ByteRange { offset, length }, ..Operation::default() }.is_aligned()
        };
        assert!(is_aligned(0, block) && is_aligned(3 * block, 2 * block));
        assert!(!is_aligned(1, block) && !is_aligned(block, 1) && !is_aligned(block - 1, 1));
    }

    #[test]
    fn what_waits_counts_by_the_memory_that_it_holds_or_is_read_into_and_for_its_tenant() {
        let asked = |kind| {
            let (link, tenant, volume, at) = (LinkId(1), Tenant(3), VolumeId(1), Instant::default());
            Purpose::Client(Asked { link, tenant, request: 1, volume, kind, unverified: false, bytes: 0, at })
        };
        let of = |purpose, payload| {
            let operation = Operation { purpose, payload, range: range(0, 3), ..Operation::default() };
            (operation.waiting_bytes(), operation.tenant())
        };
        let tenant = Tenant(3);
        assert_eq!(of(asked(RequestKind::Read), Payload::None), (3 * BLOCK_BYTES, tenant));
        let held = Payload::Held(Buffer::new(5 * BLOCK_BYTES));
        assert_eq!(of(asked(RequestKind::Write), held), (5 * BLOCK_BYTES, tenant));
        assert_eq!(of(asked(RequestKind::Zero), Payload::None), (0, tenant));
        assert_eq!(of(asked(RequestKind::Allocated), Payload::None), (0, tenant));
        assert_eq!(of(Purpose::Repair, Payload::None), (0, Tenant::NOBODY));
    }

    #[test]
    fn what_is_narrowed_ends_where_its_last_block_does_and_begins_where_it_did_in_its_first() {
        let block = BLOCK_BYTES as u32;
        let asked = ByteRange { offset: 10 * block + 100, length: 3 * block - 150 };
        let narrowed = |first_block, block_count| {
            let mut held = Buffer::new(3 * BLOCK_BYTES);
            for (number, block) in held.bytes_mut().expect("it is new").chunks_mut(BLOCK_BYTES).enumerate() {
                block.fill(number as u8);
            }
            let mut operation = Operation { range: range(10, 3), bytes: asked, ..Operation::default() };
            operation.payload = Payload::Held(held);
            operation.checksums.extend([0, 1, 2].map(U32::new));
            operation.narrow(first_block, block_count);
            assert!(operation.attempt.is_narrowed && operation.range == range(first_block, block_count));
            let Payload::Held(held) = &operation.payload else { panic!("its bytes are held still") };
            let checksums: Vec<u32> = operation.checksums.iter().map(|checksum| checksum.get()).collect();
            (operation.bytes.offset, operation.bytes.length, checksums, held.bytes()[0])
        };
        assert_eq!(narrowed(10, 1), (10 * block + 100, block - 100, vec![0], 0));
        assert_eq!(narrowed(11, 1), (11 * block, block, vec![1], 1));
        assert_eq!(narrowed(12, 1), (12 * block, block - 50, vec![2], 2));
        // A zeroing holds no bytes.
        let bytes = ByteRange::of(&range(10, 3));
        let mut zero = Operation { range: range(10, 3), bytes, ..Operation::default() };
        zero.narrow(10, 2);
        assert_eq!((zero.range, zero.bytes.length), (range(10, 2), 2 * block));
    }

    /// Memory as a pool lends it, larger than what was read into it: blocks that are full of these bytes, and zeros.
    fn read(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new((bytes.len() + 2) * BLOCK_BYTES);
        let memory = buffer.bytes_mut().expect("it is new");
        for (block, byte) in memory.chunks_mut(BLOCK_BYTES).zip(bytes) {
            block.fill(*byte);
        }
        buffer
    }

    #[test]
    fn damage_is_the_first_block_that_does_not_verify_and_no_hole_nor_what_a_buffer_has_beyond() {
        let checksum = |byte: u8| U32::new(crc32c(&[byte; BLOCK_BYTES]));
        let mut operation = Operation { range: range(10, 6), ..Operation::default() };
        operation.parts.push(part(10, 2, Some(100), Some(read(&[1, 2]))));
        operation.parts.push(part(12, 2, None, None));
        operation.parts.push(part(14, 2, Some(200), Some(read(&[5, 6]))));
        let checksums = [checksum(1), checksum(2), U32::ZERO, U32::ZERO, checksum(5), checksum(6)];
        operation.checksums.extend(checksums);
        assert!(!operation.is_hole(), "a part of it is there");
        assert_eq!(operation.first_damage(), None);
        for (number, block) in [(5, 15), (4, 14), (1, 11)] {
            operation.checksums[number] = U32::ZERO;
            assert_eq!(operation.first_damage(), Some((block, Status::Damaged)));
        }
        operation.parts[2].buffer = None;
        assert_eq!(operation.first_damage(), Some((11, Status::Damaged)));
        operation.parts[0].buffer = None;
        assert_eq!(operation.first_damage(), Some((10, Status::DeviceFailed)));
        operation.parts.retain(|part| part.location.is_none());
        assert!(operation.is_hole() && operation.first_damage().is_none());
    }

    #[test]
    fn only_what_the_drive_did_not_give_of_several_blocks_is_divided() {
        let mut operation = Operation { range: range(0, 8), ..Operation::default() };
        operation.parts.push(part(0, 3, None, None));
        operation.parts.push(part(3, 2, Some(100), Some(read(&[1, 2]))));
        operation.parts.push(part(5, 1, Some(200), None));
        assert!(!operation.divide_failed());
        assert_eq!(operation.parts.len(), 3);
        operation.parts.push(Part { is_pinned: true, ..part(6, 2, Some(300), None) });
        assert!(operation.divide_failed());
        let place = |part: &Part| {
            (part.first_block, part.block_count, part.location.map(|location| location.0), part.is_pinned)
        };
        let expected = [
            (0, 3, None, false),
            (3, 2, Some(100), false),
            (5, 1, Some(200), false),
            (6, 1, Some(300), true),
            (7, 1, Some(301), false),
        ];
        assert_eq!(operation.parts.iter().map(place).collect::<Vec<_>>(), expected);
    }
}
