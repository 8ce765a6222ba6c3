//! Unaligned writes: the blocks at their edges are read, and what the write leaves of them is taken over, so that whole
//! blocks are ordered.

use crate::codec::Payload;
use crate::context::{Context, Task};
use crate::io::Io;
use crate::operation::{ByteRange, Operation, OperationId, OperationState};
use crate::replication::order;
use base::{BLOCK_BYTES, crc32c};
use wire::Status;
use zerocopy::little_endian::U32;

/// Reads the blocks at the edges of a write whose bytes are held. `false` when there is no memory for that.
pub(crate) fn start(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    if cx.disk.small.available() < 2 {
        return false;
    }
    let operation = cx.operations.live(id);
    operation.state = OperationState::Reading;
    cx.lines.hold(operation.group, id, &operation.range);
    cx.disk.look_up_edges(operation, &cx.volumes.sight_of(operation.range.key.layer));
    if operation.is_hole() {
        were_read(cx, id);
    } else {
        cx.read_parts(id);
    }
    true
}

/// The blocks at the edges of an unaligned write are there: completes it to whole blocks and orders it.
pub(crate) fn were_read(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let operation = cx.operations.live(id);
    let group = operation.group;
    if let Some((block, status)) = damage_of(operation) {
        let key = operation.key_of(block);
        if cx.wait_for_mend(id, block) {
            return;
        }
        cx.lines.ended(id);
        cx.report_damage(id, key, block, status);
        cx.forget(id);
        return cx.then(Task::StartWaiting { group });
    }
    complete(operation);
    cx.release_parts(id);
    if !order_held(cx, id) {
        // What came after it keeps waiting too.
        cx.put_back(id);
    }
}

/// Orders a write of whole blocks whose bytes are held. `false` when the store has no room right now.
pub(crate) fn order_held(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    let operation = cx.operations.live(id);
    let length = usize::from(operation.range.block_count) * BLOCK_BYTES;
    let held = operation.payload.take_held().expect("a held write has its bytes");
    let is_ordered = order::write(cx, id, &held.bytes()[..length]);
    if is_ordered {
        cx.disk.put(held);
    } else {
        cx.operations.live(id).payload = Payload::Held(held);
    }
    is_ordered
}

/// The first of the edges that does not verify, and why.
fn damage_of(operation: &Operation) -> Option<(u16, Status)> {
    operation.parts.iter().zip(operation.edge_checksums).find_map(|(part, expected)| {
        part.location?;
        match &part.buffer {
            None => Some((part.first_block, Status::DeviceFailed)),
            Some(buffer) if crc32c(&buffer.bytes()[..BLOCK_BYTES]) != expected => {
                Some((part.first_block, Status::Damaged))
            }
            Some(_) => None,
        }
    })
}

/// Fills what an unaligned write leaves of its first and last block from what they held, and extends the write
/// to both.
fn complete(operation: &mut Operation) {
    let Payload::Held(held) = &mut operation.payload else { panic!("an unaligned write's bytes are held") };
    let memory = held.bytes_mut().expect("a held write's buffer has one holder");
    let start = operation.bytes.offset as usize % BLOCK_BYTES;
    let end = start + operation.bytes.length as usize;
    let aligned_end = usize::from(operation.range.block_count) * BLOCK_BYTES;
    memory[..start].fill(0);
    memory[end..aligned_end].fill(0);
    let last_start = aligned_end - BLOCK_BYTES;
    for part in &operation.parts {
        let Some(buffer) = &part.buffer else { continue };
        let old = &buffer.bytes()[..BLOCK_BYTES];
        if part.first_block == operation.range.first_block {
            memory[..start].copy_from_slice(&old[..start]);
        }
        if part.first_block == operation.range.blocks().end - 1 {
            memory[end..aligned_end].copy_from_slice(&old[end - last_start..]);
        }
    }
    // Only now whole blocks are known; the edges' checksums are this primary's, the others the writer's.
    operation.checksums[0] = U32::new(crc32c(&memory[..BLOCK_BYTES]));
    let last = usize::from(operation.range.block_count) - 1;
    operation.checksums[last] = U32::new(crc32c(&memory[last_start..aligned_end]));
    operation.bytes = ByteRange::of(&operation.range);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::io::reads_data;
    use crate::operation::{OperationKind, Operations, Part, Purpose};
    use crate::request::write;
    use crate::testing::{Alone, PG, Pair, VOLUME};
    use base::{BlockRange, Buffer, LayerId, LinkId, ObjectKey};
    use store::Location;
    use wire::{Kind, Message, Request};

    #[test]
    fn what_a_write_leaves_of_its_first_and_last_block_stays() {
        let mut operations = Operations::default();
        let range = BlockRange { key: ObjectKey::default(), first_block: 10, block_count: 2 };
        let id = operations.add_for(OperationKind::Write, Purpose::Repair, 0, range);
        let operation = operations.live(id);
        // From 96 bytes before the end of the first block to 50 bytes into the last; only the last holds something.
        operation.bytes = ByteRange { offset: 11 * BLOCK_BYTES as u32 - 96, length: 96 + 50 };
        let mut held = Buffer::new(2 * BLOCK_BYTES);
        held.bytes_mut().expect("it is new").fill(7);
        operation.payload = Payload::Held(held);
        operation.checksums.extend([U32::ZERO; 2]);
        let mut old = Buffer::new(BLOCK_BYTES);
        old.bytes_mut().expect("it is new").fill(1);
        let part = |first_block, location, buffer| Part {
            layer: LayerId::default(),
            first_block,
            block_count: 1,
            location,
            buffer,
            is_pinned: false,
        };
        operation.parts.push(part(10, None, None));
        operation.parts.push(part(11, Some(Location(3)), Some(old)));
        operation.edge_checksums = [0, crc32c(&[1; BLOCK_BYTES])];
        assert_eq!(damage_of(operation), None);
        complete(operation);
        let Payload::Held(held) = &operation.payload else { panic!("its bytes are held") };
        let expected: Vec<u8> = [(0, BLOCK_BYTES - 96), (7, 96 + 50), (1, BLOCK_BYTES - 50)]
            .into_iter()
            .flat_map(|(byte, count)| std::iter::repeat_n(byte, count))
            .collect();
        assert_eq!(held.bytes(), expected);
        let (first, last) = expected.split_at(BLOCK_BYTES);
        assert_eq!(operation.checksums, [first, last].map(|block| U32::new(crc32c(block))));
        assert!(operation.is_aligned());
    }

    #[test]
    fn an_edge_that_does_not_verify_or_was_not_read_is_damage() {
        let mut operation = Operation::default();
        let (location, buffer) = (Some(Location(3)), None);
        let layer = LayerId::default();
        operation.parts.push(Part {
            layer,
            first_block: 4,
            block_count: 1,
            location,
            buffer,
            is_pinned: false,
        });
        assert_eq!(damage_of(&operation), Some((4, Status::DeviceFailed)));
        operation.parts[0].buffer = Some(Buffer::new(BLOCK_BYTES));
        operation.edge_checksums = [1, 0];
        assert_eq!(damage_of(&operation), Some((4, Status::Damaged)));
    }

    const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
    const CLIENT: LinkId = LinkId(99);
    const BLOCK: u32 = BLOCK_BYTES as u32;

    /// What a client sends that writes so many bytes of that value from there on: its request, checksums and data.
    fn written(alone: &Alone, offset: u32, length: u32, byte: u8) -> (Request, Vec<U32>, Vec<u8>) {
        let request = Request { offset, length, ..alone.request(&BlockRange::one(KEY, 0)) };
        let data = vec![byte; length as usize];
        let (head, rest) = data.split_at(data.len().min(BLOCK_BYTES - offset as usize % BLOCK_BYTES));
        let parts = std::iter::once(head).chain(rest.chunks(BLOCK_BYTES));
        let checksums = parts.map(|part| U32::new(crc32c(part))).collect();
        (request, checksums, data)
    }

    fn writes(alone: &mut Alone, link: LinkId, offset: u32, length: u32, byte: u8) {
        let (request, checksums, data) = written(alone, offset, length, byte);
        alone.with(|_, cx| write::handle_write(cx, link, &request, &checksums, &data));
    }

    /// What a client was told since the last time.
    fn told(alone: &mut Alone, link: LinkId) -> Vec<Status> {
        alone.io.told(link, |message| match message {
            Message::Reply(reply) => Some(reply.head.status),
            _ => None,
        })
    }

    /// What the first blocks of the object hold, as the drive has it.
    fn content(alone: &Alone, block_count: u16) -> Vec<u8> {
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        alone.osd.store().lookup(&KEY, 0, block_count, &mut extents, &mut checksums);
        let mut content = Vec::new();
        for extent in extents {
            let length = usize::from(extent.block_count) * BLOCK_BYTES;
            match extent.location {
                Some(place) => content.extend(&alone.io.disk[place.0 as usize * BLOCK_BYTES..][..length]),
                None => content.resize(content.len() + length, 0),
            }
        }
        let held = content.chunks(BLOCK_BYTES).map(crc32c);
        assert!(held.eq(checksums), "the index tells of what is there");
        content
    }

    fn reads(alone: &Alone) -> usize {
        alone.io.drive.iter().filter(|(token, ..)| reads_data(*token)).count()
    }

    #[test]
    fn a_write_of_whatever_bytes_changes_these_and_reads_no_more_than_the_edges_that_are_there() {
        let mut alone = Alone::new();
        // Before it and behind it is nothing.
        alone.order(KEY, 1, 3, 0);
        let mut expected = content(&alone, 6);
        let written = [
            // Within a block; over the border of two; from a block over a whole one into a hole.
            (BLOCK + 100, 50, 1),
            (2 * BLOCK - 96, 146, 2),
            (4 * BLOCK - 96, 96 + BLOCK + 10, 1),
            // From within a block to its end, in a hole and not; from a block's begin on, alone and behind a whole one.
            (10, BLOCK - 10, 0),
            (BLOCK + 1, BLOCK - 1, 1),
            (2 * BLOCK, 100, 1),
            (2 * BLOCK, BLOCK + 7, 1),
            // What was a hole before.
            (4 * BLOCK + 1, 2 * BLOCK - 2, 2),
            // Whole blocks have no edges.
            (BLOCK, 2 * BLOCK, 0),
        ];
        for (number, (offset, length, edges)) in written.into_iter().enumerate() {
            let byte = 100 + number as u8;
            writes(&mut alone, CLIENT, offset, length, byte);
            assert_eq!(reads(&alone), edges, "write {number}");
            alone.run();
            assert_eq!(told(&mut alone, CLIENT), [Status::Ok], "write {number}");
            expected[offset as usize..(offset + length) as usize].fill(byte);
            assert!(content(&alone, 6) == expected, "write {number}");
        }
        let disk = &alone.osd.shared.disk;
        assert_eq!((disk.small.available(), disk.large.available()), (4, 4), "all memory was given back");
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
    }

    #[test]
    fn a_write_waits_for_memory_for_both_of_its_edges() {
        let mut alone = Alone::new();
        alone.order(KEY, 0, 3, 0);
        let small = &mut alone.osd.shared.disk.small;
        let mut lent: Vec<Buffer> = (0..2).filter_map(|_| small.take()).collect();
        writes(&mut alone, CLIENT, BLOCK - 1, 2, 7);
        assert_eq!(reads(&alone), 2);
        alone.run();
        assert_eq!(told(&mut alone, CLIENT), [Status::Ok]);
        lent.extend(alone.osd.shared.disk.small.take());
        writes(&mut alone, CLIENT, BLOCK - 1, 2, 8);
        alone.run();
        assert!(told(&mut alone, CLIENT).is_empty());
        lent.into_iter().for_each(|buffer| alone.osd.put_buffer(buffer));
        alone.run();
        assert_eq!(told(&mut alone, CLIENT), [Status::Ok]);
        assert_eq!(content(&alone, 1)[BLOCK_BYTES - 1], 8);
    }

    #[test]
    fn a_write_for_which_there_is_no_room_when_its_edges_are_there_stays_before_those_behind_it() {
        let mut alone = Alone::new();
        alone.order(KEY, 0, 1, 0);
        let most = alone.osd.store().in_flight_max();
        let are_under_way = |alone: &mut Alone, count| {
            alone.osd.shared.groups[0].standing.primary_mut().unwrap().under_way = count;
        };
        let other = LinkId(98);
        writes(&mut alone, CLIENT, 10, 20, 7);
        are_under_way(&mut alone, most);
        alone.drive_answers();
        writes(&mut alone, other, 15, 30, 8);
        (0..5).for_each(|_| alone.turn());
        assert!(told(&mut alone, CLIENT).is_empty() && told(&mut alone, other).is_empty());
        are_under_way(&mut alone, 0);
        let Alone { osd, io, now } = &mut alone;
        osd.end_turn(*now, io);
        let lines = &osd.shared.lines;
        assert_eq!((lines.all(0).count(), lines.under_way(0).count()), (2, 1), "the other one waits for it");
        alone.run();
        assert_eq!((told(&mut alone, CLIENT), told(&mut alone, other)), (vec![Status::Ok], vec![Status::Ok]));
        let held = content(&alone, 1);
        assert_eq!([9, 10, 14, 15, 44, 45].map(|at: usize| held[at]), [0, 7, 7, 8, 8, 0]);
    }

    #[test]
    fn an_edge_that_is_damaged_is_mended_first_or_the_write_is_refused_and_what_is_behind_it_goes_on() {
        for is_mended in [true, false] {
            let mut pair = Pair::new();
            let whole = pair.write_of(10, 7);
            pair.ask(&whole);
            pair.run();
            let place = pair.alone.osd.shared.disk.location_of(KEY, 10).unwrap();
            pair.alone.io.disk[place.0 as usize * BLOCK_BYTES] ^= 1;
            pair.block = is_mended.then(|| vec![7; BLOCK_BYTES]);
            let (request, checksums, data) = written(&pair.alone, 10 * BLOCK + 100, 50, 9);
            let mut bytes = request.encode(Kind::Write).to_vec();
            checksums.iter().for_each(|checksum| bytes.extend(checksum.get().to_le_bytes()));
            bytes.extend(data);
            // One of the whole block waits behind it.
            bytes.extend(pair.write_of(10, 8));
            assert_eq!(pair.ask(&bytes), None);
            pair.run();
            let told = pair.alone.io.told(CLIENT, |message| match message {
                Message::Reply(reply) => Some((reply.head.status, reply.head.details.offset)),
                _ => None,
            });
            let first = if is_mended { (Status::Ok, 0) } else { (Status::Damaged, 10 * BLOCK) };
            assert_eq!(told, [first, (Status::Ok, 0)]);
            assert_eq!(pair.alone.osd.view().damage().mended, u64::from(is_mended));
            assert_eq!(pair.alone.osd.view().operations_in_flight(), 0);
            let disk = &pair.alone.osd.shared.disk;
            assert_eq!((disk.small.available(), disk.large.available()), (4, 4));
        }
    }
}
