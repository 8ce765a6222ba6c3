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
    cx.groups[operation.group].line.hold(id, &operation.range);
    cx.disk.look_up_edges(operation);
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
        if cx.wait_for_mend(id, block) {
            return;
        }
        cx.groups[group].line.ended(id);
        cx.report_damage(id, block, status);
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
    use super::*;
    use crate::operation::{OperationKind, Operations, Part, Purpose};
    use base::{BlockRange, Buffer, ObjectKey};
    use store::Location;

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
        operation.parts.push(Part { first_block: 4, block_count: 1, location, buffer, is_pinned: false });
        assert_eq!(damage_of(&operation), Some((4, Status::DeviceFailed)));
        operation.parts[0].buffer = Some(Buffer::new(BLOCK_BYTES));
        operation.edge_checksums = [1, 0];
        assert_eq!(damage_of(&operation), Some((4, Status::Damaged)));
    }
}
