//! The store of an OSD, the memory it reads into, and what it wants of the drive.

use crate::io::{Io, TOKEN_PART, TOKEN_SHIFT, TOKEN_STORE_FLUSH, TOKEN_STORE_READ, TOKEN_STORE_WRITE};
use crate::operation::{ByteRange, Operation, OperationId, Part};
use crate::patience::Patience;
use base::tenant;
use base::{
    BLOCK_BYTES, BlockRange, Buffer, BufferPool, Epoch, LayerSpan, LinkId, Network, ObjectKey, PgId,
    Sequence, Tenant,
};
use store::{Action, DeviceError, Location, Store};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Blocks of a buffer of the small pool: whatever fits one.
const SMALL_BLOCKS: usize = 1;
/// Blocks of a buffer of the large pool: whatever a message has.
const LARGE_BLOCKS: usize = wire::BLOCKS_PER_MESSAGE_MAX;

/// Names one part of an operation to the drive. Twelve bits of the serial are enough: a slot is not used again
/// while the drive still works for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartToken {
    pub(crate) slot: u32,
    pub(crate) serial_low: u32,
    pub(crate) index: usize,
}

impl PartToken {
    fn number(id: OperationId, index: usize) -> u64 {
        TOKEN_PART << TOKEN_SHIFT
            | u64::from(id.serial & 0xfff) << 44
            | (index as u64) << 32
            | u64::from(id.slot)
    }

    pub(crate) fn of(number: u64) -> PartToken {
        PartToken {
            slot: number as u32,
            serial_low: (number >> 44 & 0xfff) as u32,
            index: (number >> 32 & 0xfff) as usize,
        }
    }
}

/// What a layer holds at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    Hole,
    Data,
}

impl Held {
    pub(crate) fn at(location: Option<Location>) -> Held {
        match location {
            None => Held::Nothing,
            Some(Location::HOLE) => Held::Hole,
            Some(_) => Held::Data,
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) store: Store,
    /// Buffers of one block.
    pub(crate) small: BufferPool,
    /// Buffers for the largest message.
    pub(crate) large: BufferPool,
    /// Bytes of memory that was made because a pool had none left, and that somebody holds still.
    pub(crate) spare_bytes: tenant::Held,
    zeros: Buffer,
    actions: Vec<Action>,
    extents: Vec<store::Extent>,
    checksums: Vec<u32>,
    pub(crate) patience: Patience,
}

impl Disk {
    pub(crate) fn new(store: Store, small_buffers: usize, large_buffers: usize) -> Disk {
        Disk {
            store,
            small: BufferPool::new(small_buffers, SMALL_BLOCKS * BLOCK_BYTES),
            large: BufferPool::new(large_buffers, LARGE_BLOCKS * BLOCK_BYTES),
            spare_bytes: tenant::Held::default(),
            zeros: Buffer::new((wire::BLOCKS_PER_MESSAGE_MAX + 1) * BLOCK_BYTES),
            actions: Vec::new(),
            extents: Vec::new(),
            checksums: Vec::new(),
            patience: Patience::default(),
        }
    }

    /// All memory that drives read and write.
    pub(crate) fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.store.buffers_mut().chain(self.large.iter_mut()).chain(self.small.iter_mut())
    }

    /// Takes a buffer back into the pool that it is of; the store's batches come home by themselves.
    pub(crate) fn put(&mut self, buffer: Buffer) {
        if buffer.size() == self.small.buffer_bytes() {
            self.small.put(buffer);
        } else if buffer.size() == self.large.buffer_bytes() {
            self.large.put(buffer);
        } else if buffer.is_unique() {
            // The last holder's. Should it be none of these, as a batch that the store gave up, nothing is counted.
            let spare = buffer.size().min(self.spare_bytes.of(buffer.tenant()));
            self.spare_bytes.take_off(buffer.tenant(), spare);
        }
    }

    /// Memory for when a pool has none left.
    fn make_spare(&mut self, bytes: usize, tenant: Tenant) -> Buffer {
        let mut buffer = spare_buffer(bytes);
        buffer.lend_to(tenant);
        self.spare_bytes.add(tenant, buffer.size());
        buffer
    }

    /// Fills an operation's parts and checksums from the index, of its blocks: what their layer holds.
    pub(crate) fn look_up(&mut self, operation: &mut Operation) {
        self.forget_scratch();
        let BlockRange { key, first_block, block_count } = operation.range;
        self.store.lookup(&key, first_block, block_count, &mut self.extents, &mut self.checksums);
        self.take_found(operation);
    }

    /// The same of what somebody sees who reads the layer.
    pub(crate) fn look_up_seen(&mut self, operation: &mut Operation, sight: &[LayerSpan]) {
        self.forget_scratch();
        self.look_through(&operation.range, sight);
        self.take_found(operation);
    }

    fn look_through(&mut self, range: &BlockRange, sight: &[LayerSpan]) {
        let BlockRange { key, first_block, block_count } = *range;
        match sight {
            // Nothing ever lay beneath it, and so it has no holes.
            [LayerSpan { volume, newest: 0, .. }] if !volume.is_clone() => {
                self.store.lookup(&key, first_block, block_count, &mut self.extents, &mut self.checksums);
            }
            sight => self.store.lookup_through(sight, range, &mut self.extents, &mut self.checksums),
        }
    }

    fn take_found(&mut self, operation: &mut Operation) {
        operation.checksums.clear();
        operation.checksums.extend(self.checksums.iter().map(|checksum| U32::new(*checksum)));
        self.take_parts(operation);
    }

    /// As [`Self::look_up`], but only as far as all blocks hold the same kind of thing, and lie in at most `parts_max` places of
    /// the drive; so many the operation is about then. Answers how many, and what they hold.
    pub(crate) fn look_up_run(&mut self, operation: &mut Operation, parts_max: usize) -> (u16, Held) {
        self.look_up(operation);
        let held = Held::at(operation.parts[0].location);
        let alike = operation.parts.iter().take_while(|part| Held::at(part.location) == held);
        let count = alike.take(parts_max).count();
        operation.parts.truncate(count);
        let found = operation.parts.iter().map(|part| part.block_count).sum();
        operation.range.block_count = found;
        operation.bytes = ByteRange::of(&operation.range);
        operation.checksums.truncate(usize::from(found));
        (found, held)
    }

    /// Fills the parts of an unaligned write with the blocks that it leaves something of: its first and last. One of no bytes leaves
    /// all of its block.
    pub(crate) fn look_up_edges(&mut self, operation: &mut Operation, sight: &[LayerSpan]) {
        let (offset, length) = (operation.bytes.offset as usize, operation.bytes.length as usize);
        let (first, last) = (operation.range.first_block, operation.range.blocks().end - 1);
        let key = operation.range.key;
        let head_is_partial = length == 0 || !offset.is_multiple_of(BLOCK_BYTES);
        let tail_is_partial = !(offset + length).is_multiple_of(BLOCK_BYTES);
        self.forget_scratch();
        if head_is_partial {
            self.look_through(&BlockRange::one(key, first), sight);
        }
        if tail_is_partial && !(head_is_partial && first == last) {
            self.look_through(&BlockRange::one(key, last), sight);
        }
        self.take_parts(operation);
        operation.edge_checksums = [0; 2];
        operation.edge_checksums[..self.checksums.len()].copy_from_slice(&self.checksums);
    }

    fn forget_scratch(&mut self) {
        self.extents.clear();
        self.checksums.clear();
    }

    fn take_parts(&mut self, operation: &mut Operation) {
        operation.parts.clear();
        operation.parts.extend(self.extents.iter().map(|extent| Part {
            layer: extent.layer,
            first_block: extent.first_block,
            block_count: extent.block_count,
            location: extent.location,
            buffer: None,
            is_pinned: false,
        }));
    }

    /// The last that is of a group's order on stable media.
    pub(crate) fn end_of(&self, pg: PgId) -> Sequence {
        self.store.pg_position(pg).map_or(Sequence(0), |(_, sequence)| sequence)
    }

    /// Whether there is something of a later epoch of a group than that one, which the registry names: it was set back.
    pub(crate) fn knows_later_epoch(&self, pg: PgId, epoch: Epoch) -> bool {
        self.store.pg_position(pg).is_some_and(|(known, _)| known > epoch)
    }

    /// Where a block lies, if it has data.
    pub(crate) fn location_of(&mut self, key: ObjectKey, block: u16) -> Option<Location> {
        self.forget_scratch();
        self.store.lookup(&key, block, 1, &mut self.extents, &mut self.checksums);
        self.extents.first().and_then(|extent| extent.location)
    }

    /// Whether all blocks of an operation lie where they lay when they were looked up.
    pub(crate) fn is_where_it_was(&mut self, operation: &Operation) -> bool {
        let key = operation.range.key;
        operation.parts.iter().all(|part| {
            (0..part.block_count)
                .all(|offset| self.location_of(key, part.first_block + offset) == part.location_of(offset))
        })
    }

    /// The objects of a group, in order.
    pub(crate) fn objects_of(&self, pg: base::PgId) -> Vec<ObjectKey> {
        let mut objects: Vec<ObjectKey> = self.store.objects_of(pg).collect();
        objects.sort_unstable_by_key(|key| (key.layer, key.object));
        objects
    }

    /// Issues the reads of an operation's parts, of those that were not read yet. None are where all of them are holes. For what is first, clients' requests that
    /// did not wait, the memory was checked to be there; whatever else is read leaves them half of it, and has other memory
    /// made. So has what lies in more places than its tenant may have buffers.
    pub(crate) fn read_parts(
        &mut self,
        id: OperationId,
        operation: &mut Operation,
        is_first: bool,
        io: &mut impl Io,
    ) {
        let tenant = operation.tenant();
        let mut awaited = 0;
        for (index, part) in operation.parts.iter_mut().enumerate() {
            let Some(location) = part.location.filter(|_| part.buffer.is_none()) else { continue };
            if location == Location::HOLE {
                part.buffer = Some(self.zeros.clone());
                continue;
            }
            let length = usize::from(part.block_count) * BLOCK_BYTES;
            let pool = if part.block_count == 1 { &mut self.small } else { &mut self.large };
            let kept = if is_first { 0 } else { pool.count() / 2 };
            let lent = if pool.has_for(tenant, 1, kept) { pool.take_for(tenant) } else { None };
            let buffer = lent.unwrap_or_else(|| self.make_spare(length, tenant));
            if !std::mem::replace(&mut part.is_pinned, true) {
                self.store.pin(location);
            }
            awaited += 1;
            let offset = u64::from(location.0) * BLOCK_BYTES as u64;
            let token = PartToken::number(id, index);
            self.patience.asks(token);
            io.read(token, offset, buffer, length);
        }
        operation.parts_awaited = awaited;
    }

    /// The drive answered one part of an operation: what it gave is kept there, if it gave something. Answers whether it was
    /// the last that is awaited.
    pub(crate) fn was_read(
        &mut self,
        operation: &mut Operation,
        index: usize,
        given: Option<Buffer>,
    ) -> bool {
        let part = &mut operation.parts[index];
        part.buffer = given;
        operation.parts_awaited -= 1;
        // What the drive did not give may be read again, block by block: it must be there still.
        if part.buffer.is_some() || part.block_count == 1 {
            self.unpin(part);
        }
        operation.parts_awaited == 0
    }

    /// The place of a part may be written to, if it was kept from that.
    fn unpin(&mut self, part: &mut Part) {
        if std::mem::take(&mut part.is_pinned) {
            self.store.unpin(part.location.expect("only parts on the drive are read"));
        }
    }

    /// Gives the buffers of an operation's parts back.
    pub(crate) fn release_parts(&mut self, operation: &mut Operation) {
        for mut part in operation.parts.drain(..) {
            self.unpin(&mut part);
            if let Some(buffer) = part.buffer {
                self.put(buffer);
            }
        }
    }

    /// Sends what was read for an operation: the checksums, then the blocks.
    pub(crate) fn send_content(&self, operation: &mut Operation, link: LinkId, network: &mut impl Network) {
        network.send(link, operation.checksums.as_bytes());
        for part in &mut operation.parts {
            let length = usize::from(part.block_count) * BLOCK_BYTES;
            let buffer = part.buffer.take().unwrap_or_else(|| self.zeros.clone());
            network.send_shared(link, buffer, 0..length);
        }
    }

    /// Has what is staged written, as far as it is time for that.
    pub(crate) fn flush(&mut self) {
        self.store.flush(&mut self.actions);
    }

    pub(crate) fn begin_shutdown(&mut self) {
        self.store.begin_shutdown(&mut self.actions);
    }

    /// The drive is of no use any more.
    pub(crate) fn fail(&mut self, reason: &str) {
        self.store.fail(reason, &mut self.actions);
    }

    /// A drive operation of the store's own ended.
    pub(crate) fn ended(&mut self, token: u64, buffer: Option<&Buffer>, result: Result<(), DeviceError>) {
        let index = token as u32;
        match token >> TOKEN_SHIFT {
            TOKEN_STORE_WRITE => self.store.handle_written(index, result, &mut self.actions),
            TOKEN_STORE_FLUSH => self.store.handle_flushed(index, result, &mut self.actions),
            TOKEN_STORE_READ => {
                let length = (token >> 32 & 0xff_ffff) as usize * BLOCK_BYTES;
                let buffer = buffer.expect("a read gives its buffer back");
                let data = result.map(|()| &buffer.bytes()[..length]);
                self.store.handle_read(index, data, &mut self.actions);
            }
            kind => unreachable!("no drive operation of kind {kind} is ever issued"),
        }
    }

    /// Takes what the store wants done; to be given back by [`Self::give_back`].
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Gives the memory of a list back that was worked off. Answers whether the store wants more by now.
    pub(crate) fn give_back(&mut self, worked_off: Vec<Action>) -> bool {
        let again = std::mem::replace(&mut self.actions, worked_off);
        self.actions.extend(again);
        !self.actions.is_empty()
    }

    /// Issues a read of the store's own.
    pub(crate) fn read_for_store(&mut self, token: u32, offset: u64, length: usize, io: &mut impl Io) {
        // Cleaning keeps to one buffer at a time; should all be lent, a fresh one serves.
        let buffer = self.large.take().unwrap_or_else(|| self.make_spare(length, Tenant::NOBODY));
        let blocks = (length / BLOCK_BYTES) as u64;
        let token = TOKEN_STORE_READ << TOKEN_SHIFT | blocks << 32 | u64::from(token);
        self.patience.asks(token);
        io.read(token, offset, buffer, length);
    }
}

/// Memory for when a pool is empty. Of a size that no pool has, so that none takes it in.
fn spare_buffer(bytes: usize) -> Buffer {
    let is_pooled = |blocks: &usize| [SMALL_BLOCKS, LARGE_BLOCKS].contains(blocks);
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    let blocks = (blocks..).find(|blocks| !is_pooled(blocks)).expect("two sizes are taken");
    Buffer::new(blocks * BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::io::reads_data;
    use crate::operation::{OperationKind, Purpose};
    use crate::testing::{Alone, PG, VOLUME};
    use base::{LayerId, crc32c};
    use wire::{Message, Status};

    #[test]
    fn no_pool_takes_in_spare_memory() {
        for blocks in 1..=LARGE_BLOCKS {
            let size = spare_buffer(blocks * BLOCK_BYTES).size();
            assert!(size >= blocks * BLOCK_BYTES);
            assert!(
                size != SMALL_BLOCKS * BLOCK_BYTES && size != LARGE_BLOCKS * BLOCK_BYTES,
                "{blocks} blocks"
            );
        }
    }

    #[test]
    fn a_part_is_found_again_by_its_number() {
        let id = OperationId { slot: 0xdead_beef, serial: 0x0012_3abc };
        let token = PartToken::number(id, 0x123);
        assert!(reads_data(token));
        let part = PartToken::of(token);
        assert_eq!((part.slot, part.serial_low, part.index), (0xdead_beef, 0xabc, 0x123));
    }

    fn key(object: u32) -> ObjectKey {
        ObjectKey { pg: PG, layer: VOLUME.first_layer(), object }
    }

    #[test]
    fn all_memory_that_drives_read_and_write_is_told_of_before_work_starts() {
        let mut alone = Alone::new();
        let disk = &alone.osd.shared.disk;
        let (small, large) = (disk.small.buffer_bytes(), disk.large.buffer_bytes());
        let (small_count, large_count) = (disk.small.count(), disk.large.count());
        let sizes: Vec<usize> = alone.osd.buffers_mut().map(|buffer| buffer.size()).collect();
        let count_of = |bytes: usize| sizes.iter().filter(|size| **size == bytes).count();
        assert_eq!((count_of(small), count_of(large)), (small_count, large_count));
        assert!(sizes.len() > small_count + large_count, "the store's batches too");
    }

    #[test]
    fn memory_that_was_made_counts_for_its_tenant_until_its_last_holder_gives_it_back() {
        let mut alone = Alone::new();
        let disk = &mut alone.osd.shared.disk;
        let (one, other) = (Tenant(1), Tenant(2));
        let blocks = |count: usize| count * BLOCK_BYTES;
        let first = disk.make_spare(blocks(3), one);
        let second = disk.make_spare(blocks(5), one);
        let others = disk.make_spare(blocks(7), other);
        let held = |disk: &Disk| [one, other].map(|tenant| disk.spare_bytes.of(tenant));
        assert_eq!(held(disk), [blocks(8), blocks(7)]);
        let shared = first.clone();
        disk.put(first);
        assert_eq!(held(disk), [blocks(8), blocks(7)], "the network has it still");
        disk.put(shared);
        assert_eq!(held(disk), [blocks(5), blocks(7)]);
        // What nobody counted takes nothing off.
        disk.put(Buffer::new(blocks(9)));
        disk.put(second);
        assert_eq!(held(disk), [0, blocks(7)]);
        disk.put(others);
        assert_eq!(disk.spare_bytes.all(), 0);
    }

    #[test]
    fn what_may_wait_leaves_half_of_the_buffers_and_has_other_memory_made() {
        let mut alone = Alone::new();
        // One block in one place, and two in another.
        alone.order(key(3), 0, 1, 0);
        alone.order(key(3), 2, 2, 0);
        let range = BlockRange { key: key(3), first_block: 0, block_count: 4 };
        let mut left_by = |is_first: bool| {
            alone.with(|_, cx| {
                let id = cx.operations.add_for(OperationKind::Read, Purpose::Repair, 0, range);
                let operation = cx.operations.live(id);
                cx.disk.look_up(operation);
                cx.disk.read_parts(id, operation, is_first, cx.io);
                assert_eq!(operation.parts_awaited, 2);
            });
            let disk = &alone.osd.shared.disk;
            (disk.small.available(), disk.large.available(), disk.spare_bytes.all() / BLOCK_BYTES)
        };
        assert_eq!([false; 3].map(&mut left_by), [(3, 3, 0), (2, 2, 0), (2, 2, 4)]);
        assert_eq!([true; 3].map(&mut left_by), [(1, 1, 4), (0, 0, 4), (0, 0, 8)]);
    }

    #[test]
    fn a_run_is_of_data_or_of_zeros_and_lies_in_no_more_places_than_it_may() {
        let mut alone = Alone::new();
        // Two blocks in one place, a hole of two, and two in a place each.
        for (first_block, block_count) in [(0, 2), (4, 1), (5, 1)] {
            alone.order(key(3), first_block, block_count, 0);
        }
        let mut run = |first_block: u16, block_count: u16, parts_max: usize| {
            let range = BlockRange { key: key(3), first_block, block_count };
            let mut operation = Operation { range, ..Operation::default() };
            let (found, held) = alone.osd.shared.disk.look_up_run(&mut operation, parts_max);
            assert_eq!(operation.range, BlockRange { block_count: found, ..range });
            assert_eq!(operation.checksums.len(), usize::from(found));
            assert_eq!(operation.bytes.length, u32::from(found) * BLOCK_BYTES as u32);
            assert_eq!(operation.parts.iter().map(|part| part.block_count).sum::<u16>(), found);
            (found, held == Held::Nothing)
        };
        assert_eq!([run(0, 6, 1), run(0, 6, 9), run(1, 5, 1)], [(2, false), (2, false), (1, false)]);
        assert_eq!([run(2, 4, 1), run(3, 3, 9)], [(2, true), (1, true)]);
        assert_eq!([run(4, 2, 1), run(4, 2, 2)], [(1, false), (2, false)]);
    }

    #[test]
    fn blocks_lie_elsewhere_when_any_of_them_was_written_anew_or_for_the_first_time() {
        let mut alone = Alone::new();
        for block in 0..6 {
            let key = key(u32::from(block));
            alone.order(key, 0, 2, 0);
            alone.order(key, 4, 2, 0);
            let range = BlockRange { key, first_block: 0, block_count: 6 };
            let mut operation = Operation { range, ..Operation::default() };
            let disk = &mut alone.osd.shared.disk;
            disk.look_up(&mut operation);
            assert_eq!(operation.parts.len(), 3);
            assert!(disk.is_where_it_was(&operation));
            alone.order(key, block, 1, 0);
            assert!(!alone.osd.shared.disk.is_where_it_was(&operation), "block {block}");
        }
    }

    #[test]
    fn the_objects_of_a_group_are_listed_in_order() {
        let mut alone = Alone::new();
        let mut expected = Vec::new();
        for object in [9, 3, 70_000, 1, 8, 2] {
            for layer in [2, 1] {
                let key = ObjectKey { layer: LayerId(layer), ..key(object) };
                alone.write(key);
                expected.push((key.layer, key.object));
            }
        }
        expected.sort_unstable();
        let listed = alone.osd.shared.disk.objects_of(PG);
        assert_eq!(listed.iter().map(|key| (key.layer, key.object)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn places_that_were_read_are_used_again_whether_the_drive_gave_them_or_not() {
        let mut alone = Alone::new();
        let key = key(9);
        // More than the drive holds. There are two of these in each of its segments.
        for round in 0..80 {
            alone.order(key, 0, 60, 0);
            let is_bad = round % 2 == 0;
            let place = alone.osd.shared.disk.location_of(key, 1).unwrap();
            alone.io.bad = is_bad.then_some(u64::from(place.0) * BLOCK_BYTES as u64);
            let request = alone.request(&BlockRange { key, first_block: 0, block_count: 3 });
            alone.with(|router, cx| router.reads.handle_read(cx, LinkId(7), &request));
            alone.run();
            alone.io.bad = None;
            let told = alone.io.told(LinkId(7), |message| match message {
                Message::Reply(reply) => Some(reply.head.status),
                _ => None,
            });
            assert_eq!(told, [if is_bad { Status::DeviceFailed } else { Status::Ok }], "{round}");
        }
    }

    #[test]
    fn a_place_is_kept_until_it_was_read_or_longer_if_it_is_to_be_read_again_block_by_block() {
        let mut alone = Alone::new();
        // Two places of two blocks, and two of one. The drive gives the first of each.
        for (first_block, block_count) in [(0, 2), (2, 2), (4, 1), (5, 1)] {
            alone.order(key(3), first_block, block_count, 0);
        }
        let range = BlockRange { key: key(3), first_block: 0, block_count: 6 };
        alone.with(|_, cx| {
            let id = cx.operations.add_for(OperationKind::Read, Purpose::Repair, 0, range);
            let operation = cx.operations.live(id);
            cx.disk.look_up(operation);
            cx.disk.read_parts(id, operation, true, cx.io);
            let kept = |operation: &Operation| -> Vec<bool> {
                operation.parts.iter().map(|part| part.is_pinned).collect()
            };
            assert_eq!(kept(operation), [true; 4]);
            let answers = std::mem::take(&mut cx.io.drive);
            assert_eq!(answers.len(), 4);
            let mut were_last = Vec::new();
            for (index, (_, buffer, _)) in answers.into_iter().enumerate() {
                were_last.push(cx.disk.was_read(operation, index, buffer.filter(|_| index % 2 == 0)));
            }
            assert_eq!(were_last, [false, false, false, true]);
            assert_eq!(kept(operation), [false, true, false, false]);
            let has: Vec<bool> = operation.parts.iter().map(|part| part.buffer.is_some()).collect();
            assert_eq!(has, [true, false, true, false]);
            cx.forget(id);
        });
    }

    #[test]
    fn what_the_store_wants_while_its_list_is_worked_off_is_next_and_a_list_is_used_again() {
        const ROOM: usize = 1000;
        let mut alone = Alone::new();
        let disk = &mut alone.osd.shared.disk;
        let mut list = disk.take_actions();
        assert!(list.is_empty());
        list.reserve(ROOM);
        assert!(!disk.give_back(list), "it wants nothing");
        let list = disk.take_actions();
        assert!(list.is_empty() && list.capacity() >= ROOM, "no memory is made each time");
        disk.actions.extend([Action::Flush { token: 1 }, Action::ShutdownDone]);
        assert!(disk.give_back(list));
        let list = disk.take_actions();
        assert!(matches!(&list[..], [Action::Flush { token: 1 }, Action::ShutdownDone]), "{list:?}");
        assert!(list.capacity() >= ROOM);
    }

    #[test]
    fn a_place_that_the_store_cannot_read_is_noted_and_room_is_made_elsewhere_a_moment_later() {
        const OBJECTS: u32 = 24;
        let mut alone = Alone::new();
        alone.order(key(0), 0, 64, 0);
        let place = alone.osd.shared.disk.location_of(key(0), 40);
        alone.io.bad = place.map(|place| u64::from(place.0) * BLOCK_BYTES as u64);
        // One fills half of a segment, and leaves no room in it for another. The oldest is cleaned first.
        (1..OBJECTS).for_each(|object| alone.order(key(object), 0, 64, 0));
        assert!(alone.osd.view().notes().any(|note| note == "a read of the drive failed: a bad place"));
        assert!(alone.osd.store().statistics().cleaned_blocks > 0);
        assert_eq!(alone.osd.shared.disk.location_of(key(0), 40), place);
    }

    #[test]
    fn what_the_store_reads_to_make_room_it_is_given() {
        const OBJECTS: u32 = 28;
        let mut alone = Alone::new();
        // Of most of the drive one half is written again and again, so that no segment dies as a whole.
        (0..OBJECTS).for_each(|object| alone.order(key(object), 0, 64, 0));
        let mut rounds = 0;
        while alone.osd.store().statistics().cleaned_blocks == 0 {
            (0..OBJECTS).for_each(|object| alone.order(key(object), 0, 32, 0));
            rounds += 1;
            assert!(rounds < 8, "nothing was cleaned");
        }
        assert_eq!(alone.osd.store().statistics().damaged_blocks, 0);
        for object in 0..OBJECTS {
            let (mut extents, mut checksums) = (Vec::new(), Vec::new());
            alone.osd.store().lookup(&key(object), 0, 64, &mut extents, &mut checksums);
            let expected: Vec<u32> = (0..64).map(|block| crc32c(&[block; BLOCK_BYTES])).collect();
            assert_eq!(checksums, expected, "{object}");
            for extent in extents {
                let place = extent.location.unwrap().0 as usize * BLOCK_BYTES;
                for number in 0..extent.block_count {
                    let at = place + usize::from(number) * BLOCK_BYTES;
                    let block = (extent.first_block + number) as u8;
                    assert!(alone.io.disk[at..at + BLOCK_BYTES] == [block; BLOCK_BYTES], "{object}: {block}");
                }
            }
        }
    }
}
