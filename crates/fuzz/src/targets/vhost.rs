//! Whatever a guest could write into the memory of its disk's rings: a table of descriptors, one in it, headers, ranges. What is taken for
//! a request lies within the disk, and nothing outside of the memory is touched.
//!
//! The first byte of an input is the descriptor with which a chain begins; the memory is the rest.

use crate::outcomes::{Outcome, Outcomes};
use doors::vhost_user::{JUDGED_AT, judge};

const ENTRIES: u16 = 8;
const DISK_BYTES: u64 = 1 << 20;
/// From the beginning of the memory: behind the table, a header, a range, a table of descriptors' own, and the status.
const HEADER_AT: u64 = 0x80;
const RANGE_AT: u64 = 0xa0;
const TABLE_AT: u64 = 0xc0;
const STATUS_AT: u64 = 0x100;
const MEMORY_BYTES: usize = 0x400;
/// There is one that follows; the device writes to it; it is a table.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let Some((first, memory)) = input.split_first() else { return };
    let (what, which) = judge(memory, u16::from(*first), ENTRIES, DISK_BYTES);
    seen.note(what, which);
}

fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
    memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

fn descriptor(memory: &mut [u8], at: u64, (address, length, flags, next): (u64, u32, u16, u16)) {
    put(memory, at, &(JUDGED_AT + address).to_le_bytes());
    put(memory, at + 8, &length.to_le_bytes());
    put(memory, at + 12, &flags.to_le_bytes());
    put(memory, at + 14, &next.to_le_bytes());
}

/// A request of that kind for a sector, with so many bytes of data, for which the flags are these.
fn example(kind: u32, sector: u64, data: u32, flags: u16, is_indirect: bool) -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES];
    put(&mut memory, HEADER_AT, &kind.to_le_bytes());
    put(&mut memory, HEADER_AT + 8, &sector.to_le_bytes());
    put(&mut memory, RANGE_AT, &sector.to_le_bytes());
    put(&mut memory, RANGE_AT + 8, &8u32.to_le_bytes());
    let table = if is_indirect { TABLE_AT } else { 0 };
    if is_indirect {
        descriptor(&mut memory, 0, (TABLE_AT, 48, INDIRECT, 0));
    }
    descriptor(&mut memory, table, (HEADER_AT, 16, NEXT, if data > 0 { 1 } else { 2 }));
    descriptor(&mut memory, table + 16, (RANGE_AT, data, flags | NEXT, 2));
    descriptor(&mut memory, table + 32, (STATUS_AT, 1, WRITE, 0));
    [vec![0], memory].concat()
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for is_indirect in [false, true] {
        examples.extend([
            example(0, 8, 512, WRITE, is_indirect),
            example(1, 8, 512, 0, is_indirect),
            example(4, 0, 0, 0, is_indirect),
            example(8, 0, 20, WRITE, is_indirect),
            example(11, 8, 16, 0, is_indirect),
            example(13, 8, 16, 0, is_indirect),
            example(99, 0, 0, 0, is_indirect),
            // Beyond the end, and in no whole sectors.
            example(0, DISK_BYTES / 512, 512, WRITE, is_indirect),
            example(1, 8, 100, 0, is_indirect),
        ]);
    }
    examples
}

pub(super) fn expected() -> Vec<Outcome> {
    let requests = ["read", "write", "zero", "flush", "name", "unknown"].map(|which| ("request", which));
    let wrong = ["beyond the end", "no whole sectors"].map(|which| ("wrong", which));
    let broken = [
        "a chain goes on with a descriptor that there is not",
        "a descriptor is outside of the memory",
        "a table of descriptors is not the end of a chain",
        "a table of descriptors has a part of one",
        "what can be read comes behind what can be written in a chain",
        "a chain has more descriptors than the device takes",
        "a chain has no header",
        "a header is outside of the memory",
        "a chain has no place for a status",
        "a status is outside of the memory",
    ];
    requests.into_iter().chain(wrong).chain(broken.map(|which| ("broken", which))).collect()
}
