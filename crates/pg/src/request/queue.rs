//! The queue before admission: which requests are taken up now, and which stay with their clients for the moment.
//!
//! A request that is not taken up stays where it came in, and what its client sent after it stays behind it: the link
//! presents it again after the next turn. So the line of each client is bounded by what its connection holds, and no memory
//! of this OSD is tied up by who waits. What clients may have, and in which shares, is to be decided here and nowhere else.

use crate::disk::Disk;
use crate::group::Group;
use crate::group::line::IN_FLIGHT_MAX;
use wire::Request;

/// The most bytes a client may leave unread before no more of its requests are taken up.
const CLIENT_UNSENT_BYTES_MAX: usize = 4 << 20;

/// Whether more of a client's requests are taken up, of whose answers it left so many bytes unread.
pub(crate) fn takes_client(unsent_bytes: usize) -> bool {
    unsent_bytes <= CLIENT_UNSENT_BYTES_MAX
}

/// Whether there is memory for a read: it holds at least one buffer at most for each of its blocks.
pub(crate) fn takes_read(disk: &Disk, request: &Request) -> bool {
    let (_, block_count) = request.blocks();
    disk.small.available() >= usize::from(block_count) && disk.large.available() > 0
}

/// Whether a group takes a zeroing. What waits counts too: it holds nothing back but its place.
pub(crate) fn takes_zero(group: &Group) -> bool {
    group.line.in_flight.len() + group.line.waiting.len() < IN_FLIGHT_MAX
}

/// Whether a group takes a write, and there is memory to hold its bytes, should it have to wait.
pub(crate) fn takes_write(disk: &Disk, group: &Group) -> bool {
    !group.line.is_full() && disk.large.available() > 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::operation::{OperationKind, Purpose};
    use crate::testing::{Alone, PG, VOLUME};
    use base::{BLOCK_BYTES, BlockRange, Epoch, Generation, ObjectKey};

    #[test]
    fn a_client_that_does_not_read_its_answers_gets_no_more() {
        assert!(takes_client(CLIENT_UNSENT_BYTES_MAX) && !takes_client(CLIENT_UNSENT_BYTES_MAX + 1));
    }

    #[test]
    fn a_read_waits_for_memory_for_each_of_its_blocks() {
        let alone = Alone::new();
        let read = |blocks: u32| Request {
            request: 1,
            key: ObjectKey { pg: PG, volume: VOLUME, object: 0 },
            offset: 0,
            length: blocks * BLOCK_BYTES as u32,
            epoch: Epoch(1),
            generation: Generation(1),
            origin: 0,
            is_again: false,
        };
        let disk = &alone.osd.shared.disk;
        let there = disk.small.available() as u32;
        assert!(takes_read(disk, &read(there)) && !takes_read(disk, &read(there + 1)));
    }

    #[test]
    fn a_group_takes_no_more_than_its_log_can_tell_of() {
        let mut alone = Alone::new();
        assert!(takes_zero(&alone.osd.shared.groups[0]));
        alone.with(|_, cx| {
            let id = cx.operations.add_for(OperationKind::Write, Purpose::Repair, 0, BlockRange::default());
            cx.groups[0].line.in_flight.extend([id; IN_FLIGHT_MAX]);
            assert!(!takes_zero(&cx.groups[0]) && !takes_write(cx.disk, &cx.groups[0]));
            cx.groups[0].line.in_flight.clear();
        });
    }
}
