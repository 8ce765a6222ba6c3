//! The queue before admission: which requests are taken up now, and which stay with their clients for the moment.
//!
//! A request that is not taken up stays where it came in, and what its client sent after it stays behind it: the link
//! presents it again after the next turn. So the line of each client is bounded by what its connection holds. What was
//! taken up and must wait for its blocks ties up a place in line, and of a write also memory: of that each connection has a
//! share, and all have one together. Who is in nobody's way does not wait, and needs no share. What clients may have, and in
//! which shares, is to be decided here and nowhere else.

use crate::disk::Disk;
use crate::group::Group;
use crate::operation::Operations;
use crate::shares::Share;
use base::{BLOCK_BYTES, BlockRange, BufferPool, LinkId};
use wire::Request;

/// The most bytes a client may leave unread before no more of its requests are taken up.
const CLIENT_UNSENT_BYTES_MAX: usize = 4 << 20;

/// The most of a connection's requests that wait in line, or waited there and are not answered yet. As many operations as a
/// connection of NBD may have under way, and as many bytes as may be left unread: whoever means no harm hardly meets it, for
/// it counts only what is asked of blocks while somebody changes them.
const WAITING_PER_LINK_MAX: Share = Share { operations: 256, bytes: CLIENT_UNSENT_BYTES_MAX };

/// The same of all connections: as much as 32 of them may have of small requests, or 16 of large ones. Beside the buffers
/// that are made at the start it takes less than 128 MiB of an OSD.
const WAITING_MAX: Share = Share { operations: 8192, bytes: 64 << 20 };

/// Whether more of a client's requests are taken up, of whose answers it left so many bytes unread.
pub(crate) fn takes_client(unsent_bytes: usize) -> bool {
    unsent_bytes <= CLIENT_UNSENT_BYTES_MAX
}

/// Whether there is memory for a read: it holds at least one buffer at most for each of its blocks.
pub(crate) fn takes_read(disk: &Disk, request: &Request) -> bool {
    let (_, block_count) = request.blocks();
    disk.small.available() >= usize::from(block_count) && disk.large.available() > 0
}

/// Whether there is memory for a read of so many blocks that waited and is free to go. It leaves half of the buffers to those
/// who did not wait, for many may have waited for one write. Beyond that, memory is made for it, up to as much as may wait.
pub(crate) fn takes_waiting_read(disk: &Disk, block_count: u16) -> bool {
    let count = usize::from(block_count);
    let has = |pool: &BufferPool| pool.available() >= pool.count() / 2 + count;
    let may_make = disk.spare_bytes + count * BLOCK_BYTES <= WAITING_MAX.bytes;
    may_make || has(&disk.small) && has(&disk.large)
}

/// Whether a group takes a zeroing.
pub(crate) fn takes_zero(group: &Group) -> bool {
    !group.line.is_full()
}

/// Whether a group takes a write, and there is memory to hold its bytes, should it have to wait.
pub(crate) fn takes_write(disk: &Disk, group: &Group) -> bool {
    !group.line.is_full() && disk.large.available() > 0
}

/// Whether a read that must wait in line may. It counts by what it is going to be read into.
pub(crate) fn may_wait_to_read(operations: &Operations, link: LinkId, range: &BlockRange) -> bool {
    may_wait(operations, link, usize::from(range.block_count) * BLOCK_BYTES)
}

/// The same of a write, whose bytes are held meanwhile. All of these have half of the memory that there is for it. The rest
/// is for who is in nobody's way, and for reads.
pub(crate) fn may_wait_to_write(disk: &Disk, operations: &Operations, link: LinkId) -> bool {
    let is_left = disk.large.available() > disk.large.count() / 2;
    is_left && may_wait(operations, link, disk.large.buffer_bytes())
}

/// The same of what holds nothing but its place.
pub(crate) fn may_wait_in_place(operations: &Operations, link: LinkId) -> bool {
    may_wait(operations, link, 0)
}

fn may_wait(operations: &Operations, link: LinkId, bytes: usize) -> bool {
    let shares = &operations.shares;
    shares.of(link).fits(bytes, WAITING_PER_LINK_MAX) && shares.all().fits(bytes, WAITING_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::group::line::IN_FLIGHT_MAX;
    use crate::links::Peer;
    use crate::links::access::ClientLink;
    use crate::operation::{OperationKind, Purpose};
    use crate::osd::Progress;
    use crate::testing::{Alone, PG, Pair, VOLUME};
    use base::{ClientId, Epoch, Generation, ObjectKey};
    use wire::{Kind, Message, ReplicateAck, Status};

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
            since: None,
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
            for _ in 0..IN_FLIGHT_MAX {
                let range = BlockRange::default();
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Repair, 0, range);
                cx.hold(id);
            }
            assert!(!takes_zero(&cx.groups[0]) && !takes_write(cx.disk, &cx.groups[0]));
            cx.groups[0].line.take_all();
        });
    }

    #[test]
    fn what_waits_has_a_bound_of_operations_and_of_bytes() {
        let mut operations = Operations::default();
        let (one, other) = (LinkId(1), LinkId(2));
        let range = BlockRange { block_count: 64, ..BlockRange::default() };
        let bytes = 64 * BLOCK_BYTES;
        let large = (WAITING_PER_LINK_MAX.bytes / bytes) as u32;
        for slot in 0..large {
            assert!(may_wait_to_read(&operations, one, &range));
            operations.shares.count(slot, one, bytes);
        }
        assert!(!may_wait_to_read(&operations, one, &range) && may_wait_in_place(&operations, one));
        assert!(may_wait_to_read(&operations, other, &range), "another connection has its own share");
        for slot in large..large + WAITING_PER_LINK_MAX.operations as u32 {
            operations.shares.count(slot, other, 0);
        }
        assert!(!may_wait_in_place(&operations, other));
        // As one connection has of large ones, others have.
        for slot in 1000..1000 + (WAITING_MAX.bytes / bytes) as u32 - large {
            operations.shares.count(slot, LinkId(u64::from(slot)), bytes);
        }
        let newcomer = LinkId(3);
        assert!(!may_wait_to_read(&operations, newcomer, &range) && may_wait_in_place(&operations, newcomer));
    }

    /// A group of which the replica does not acknowledge a write of that block.
    fn slow(block: u16) -> Pair {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(block, 7);
        assert_eq!(pair.ask(&write), None);
        for _ in 0..5 {
            pair.turn();
        }
        pair
    }

    /// A client asks for that on a connection of its own.
    fn asks(pair: &mut Pair, link: LinkId, bytes: &[u8]) -> Progress {
        let Alone { osd, io, now } = &mut pair.alone;
        if osd.shared.links.get(link).is_none() {
            osd.shared.links.insert(link, Peer::Client(ClientLink::new(ClientId(link.0), None)));
        }
        osd.handle_bytes(*now, link, bytes, io).unwrap()
    }

    fn acknowledge(pair: &mut Pair) {
        let ack = ReplicateAck { through: pair.received, is_full: false }.encode();
        pair.hears(&ack);
    }

    /// What a client was told since the last time, of each request.
    fn told(pair: &mut Pair, link: LinkId) -> Vec<Status> {
        let told = pair.alone.io.to.remove(&link).unwrap_or_default();
        let (mut statuses, mut at) = (Vec::new(), 0);
        while let Some((Message::Reply(reply), size)) = wire::parse(&told[at..]).unwrap() {
            statuses.push(reply.head.status);
            at += size;
        }
        statuses
    }

    const TENANT: LinkId = LinkId(50);

    #[test]
    fn reads_that_wait_are_bounded_and_what_comes_behind_stays_in_the_connection() {
        let mut pair = slow(10);
        let before = pair.alone.osd.view().operations_in_flight();
        let read = pair.request(10).encode(Kind::Read).to_vec();
        let all = read.repeat(100_000);
        let progress = asks(&mut pair, TENANT, &all);
        let taken = WAITING_PER_LINK_MAX.operations;
        assert_eq!(progress, Progress { consumed: taken * read.len(), is_stalled: true });
        let progress = asks(&mut pair, TENANT, &all[taken * read.len()..]);
        assert_eq!(progress, Progress { consumed: 0, is_stalled: true }, "nothing ended meanwhile");
        assert_eq!(pair.alone.osd.view().operations_in_flight(), before + taken);
        acknowledge(&mut pair);
        let spare_bytes = pair.alone.osd.shared.disk.spare_bytes;
        assert!(spare_bytes > 0, "there are not so many buffers");
        pair.turn();
        assert_eq!(told(&mut pair, TENANT), vec![Status::Ok; taken]);
        assert_eq!(pair.alone.osd.shared.disk.spare_bytes, 0);
        assert_eq!(pair.alone.osd.shared.operations.shares.all(), Share::default());
        assert!(asks(&mut pair, TENANT, &all[taken * read.len()..]).consumed > 0, "it goes on");
    }

    #[test]
    fn reads_that_waited_are_read_as_there_is_memory_and_hold_up_no_write_meanwhile() {
        let mut pair = slow(10);
        let (read, write) = (pair.request(10).encode(Kind::Read).to_vec(), pair.write_of(11, 8));
        assert!(!asks(&mut pair, TENANT, &read).is_stalled);
        let disk = &mut pair.alone.osd.shared.disk;
        disk.spare_bytes = WAITING_MAX.bytes;
        let lent: Vec<_> = std::iter::from_fn(|| disk.small.take()).collect();
        assert!(!takes_waiting_read(disk, 1));
        pair.acknowledges = true;
        acknowledge(&mut pair);
        assert!(!asks(&mut pair, LinkId(51), &write).is_stalled);
        pair.run();
        assert_eq!(told(&mut pair, LinkId(51)), [Status::Ok]);
        assert!(told(&mut pair, TENANT).is_empty());
        for buffer in lent {
            pair.alone.osd.put_buffer(buffer);
        }
        pair.run();
        assert_eq!(told(&mut pair, TENANT), [Status::Ok]);
    }

    #[test]
    fn who_is_in_nobodys_way_is_served_beside_reads_that_wait() {
        let mut pair = slow(10);
        let read = pair.request(10).encode(Kind::Read).to_vec();
        // Of many connections, until no more may wait.
        let links = WAITING_MAX.operations / WAITING_PER_LINK_MAX.operations;
        for link in 0..links as u64 {
            let flood = read.repeat(WAITING_PER_LINK_MAX.operations + 1);
            assert!(asks(&mut pair, LinkId(1000 + link), &flood).is_stalled);
        }
        assert_eq!(pair.alone.osd.shared.operations.shares.all().operations, WAITING_MAX.operations);
        assert!(asks(&mut pair, TENANT, &read).is_stalled, "no more wait than may wait in all");
        // The same object, and the same group.
        let other = LinkId(51);
        let elsewhere = pair.request(20).encode(Kind::Read).to_vec();
        assert!(!asks(&mut pair, other, &elsewhere).is_stalled);
        pair.turn();
        assert_eq!(told(&mut pair, other), [Status::Ok]);
        let zero = pair.request(21).encode(Kind::Zero).to_vec();
        let write = pair.write_of(22, 5);
        assert!(!asks(&mut pair, other, &zero).is_stalled && !asks(&mut pair, other, &write).is_stalled);
        for _ in 0..5 {
            pair.turn();
        }
        acknowledge(&mut pair);
        pair.turn();
        assert_eq!(told(&mut pair, other), [Status::Ok; 2]);
        for _ in 0..WAITING_MAX.operations {
            if pair.alone.osd.shared.operations.shares.all() == Share::default() {
                return;
            }
            pair.turn();
        }
        panic!("some wait for ever");
    }

    #[test]
    fn writes_that_wait_leave_memory_to_those_who_do_not() {
        let mut pair = slow(10);
        let write = pair.write_of(10, 8);
        let half = pair.alone.osd.shared.disk.large.count() / 2;
        let progress = asks(&mut pair, TENANT, &write.repeat(half + 1));
        assert_eq!(progress, Progress { consumed: half * write.len(), is_stalled: true });
        let (other, elsewhere) = (LinkId(51), pair.write_of(20, 9));
        assert!(!asks(&mut pair, other, &elsewhere).is_stalled);
        pair.acknowledges = true;
        acknowledge(&mut pair);
        pair.run();
        assert_eq!(told(&mut pair, TENANT), vec![Status::Ok; half]);
        assert_eq!(told(&mut pair, other), [Status::Ok]);
    }
}
