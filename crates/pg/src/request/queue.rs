//! The queue before admission: which requests are taken up now, and which stay with their clients for the moment.
//!
//! A request that is not taken up stays where it came in, and what its client sent after it stays behind it: the link
//! presents it again after the next turn. So the line of each client is bounded by what its connection holds. What was
//! taken up and must wait for its blocks ties up a place in line, and of a write also memory: of that each connection has a
//! share, and all have one together. Who is in nobody's way does not wait, and needs no share.
//!
//! Of all this memory, and of the buffers that are read into, which are its answers' until it has taken them, no tenant has
//! more than it leaves to the others ([`base::tenant`]). What clients may have, and in which shares, is to be decided here
//! and nowhere else.

use crate::disk::Disk;
use crate::group::line::Lines;
use crate::links::inquiries::Asks;
use crate::operation::{Asked, Operation, OperationId, Operations};
use crate::shares::Share;
use base::tenant::may_have;
use base::{BLOCK_BYTES, BlockRange, BufferPool, Tenant};
use wire::{Message, Request};

/// The most bytes a client may leave unread before no more of its requests are taken up.
const CLIENT_UNSENT_BYTES_MAX: usize = 4 << 20;

/// The same of all connections of one key together: each may leave its part of that.
const TENANT_UNSENT_BYTES_MAX: usize = 64 << 20;

/// The most that is done one after the other for a link: then it is others' turn. And the most that is begun in a turn of what
/// waited, whosever it is. In messages that take little.
pub(crate) const WORK_MAX: usize = 256;

/// How much a change counts for that was sent before: its group's log is gone through.
const REPEAT_WORK: usize = 16;

/// The same of a group's log that is asked for, or told.
const LOG_WORK: usize = 4;

/// The most of a connection's requests that wait in line, or waited there and are not answered yet. As many operations as a
/// connection of NBD may have under way, and as many bytes as may be left unread: whoever means no harm hardly meets it, for
/// it counts only what is asked of blocks while somebody changes them.
const WAITING_PER_LINK_MAX: Share = Share { operations: 256, bytes: CLIENT_UNSENT_BYTES_MAX };

/// The same of all connections: as much as 32 of them may have of small requests, or 16 of large ones. Beside the buffers
/// that are made at the start it takes less than 128 MiB of an OSD.
const WAITING_MAX: Share = Share { operations: 8192, bytes: 64 << 20 };

/// Whether more of a client's requests are taken up, of whose answers it left so many bytes unread, and whose key has so
/// many connections.
pub(crate) fn takes_client(connections: usize, unsent_bytes: usize) -> bool {
    unsent_bytes <= CLIENT_UNSENT_BYTES_MAX.min(TENANT_UNSENT_BYTES_MAX / connections)
}

/// How much a message counts for.
pub(crate) fn work_of(message: &Message<'_>) -> usize {
    match message {
        Message::Write(write) if write.head.since.is_some() => REPEAT_WORK,
        Message::Zero(request) if request.since.is_some() => REPEAT_WORK,
        Message::Query(_) | Message::Position(_) => LOG_WORK,
        _ => 1,
    }
}

/// How much an inquiry that waited counts for.
pub(crate) fn work_to_answer(asks: &Asks) -> usize {
    match asks {
        Asks::Position(_) => LOG_WORK,
        Asks::Objects(_) | Asks::Blocks(_) | Asks::Content(_) | Asks::Check(_) => 1,
    }
}

/// How much an operation that waited counts for when it is started.
pub(crate) fn work_to_start(operation: &Operation) -> usize {
    if operation.attempt.since.is_some() { REPEAT_WORK } else { 1 }
}

/// Whether there is memory for a read: it holds at least one buffer at most for each of its blocks.
pub(crate) fn takes_read(disk: &Disk, tenant: Tenant, request: &Request) -> bool {
    let (_, block_count) = request.blocks();
    disk.small.has_for(tenant, block_count.into(), 0) && disk.large.has_for(tenant, 1, 0)
}

/// Whether there is memory for a read of so many blocks that waited and is free to go. Where it has a share of what waits,
/// that is memory that can be made for it: whoever has none left keeps nobody behind it waiting. Another, as one that met
/// damage, leaves half of the buffers to those who did not wait.
pub(crate) fn takes_waiting_read(
    disk: &Disk,
    operations: &Operations,
    id: OperationId,
    block_count: u16,
) -> bool {
    let count = usize::from(block_count);
    let has = |pool: &BufferPool| pool.available() >= pool.count() / 2 + count;
    let may_make = disk.spare_bytes.all() + count * BLOCK_BYTES <= WAITING_MAX.bytes;
    operations.shares.has(id.slot) || may_make || has(&disk.small) && has(&disk.large)
}

/// Whether a group takes one more change under way.
pub(crate) fn takes_change(lines: &Lines, group: u32) -> bool {
    !lines.is_full(group)
}

/// Whether there is memory to hold the bytes of a write, should it have to wait.
pub(crate) fn takes_write(disk: &Disk, tenant: Tenant) -> bool {
    disk.large.has_for(tenant, 1, 0)
}

/// Whether a read that must wait in line may. It counts by what it is going to be read into, which is made for it then, if
/// need be: with what was made and is not given back yet, all that waits has so much memory.
pub(crate) fn may_wait_to_read(
    disk: &Disk,
    operations: &Operations,
    asked: &Asked,
    range: &BlockRange,
) -> bool {
    let bytes = usize::from(range.block_count) * BLOCK_BYTES;
    let spare = &disk.spare_bytes;
    let held = operations.shares.of_tenant(asked.tenant).bytes + spare.of(asked.tenant);
    let free = WAITING_MAX.bytes.saturating_sub(operations.shares.all().bytes + spare.all());
    may_have(asked.tenant, held, bytes, free) && may_wait(operations, asked, bytes)
}

/// The same of a write, whose bytes are held meanwhile. All of these have half of the memory that there is for it. The rest
/// is for who is in nobody's way, and for reads.
pub(crate) fn may_wait_to_write(disk: &Disk, operations: &Operations, asked: &Asked) -> bool {
    let large = &disk.large;
    let is_left = large.has_for(asked.tenant, 1, large.count() / 2);
    is_left && may_wait(operations, asked, large.buffer_bytes())
}

/// The same of what holds nothing but its place.
pub(crate) fn may_wait_in_place(operations: &Operations, asked: &Asked) -> bool {
    may_wait(operations, asked, 0)
}

fn may_wait(operations: &Operations, asked: &Asked, bytes: usize) -> bool {
    let shares = &operations.shares;
    let free = WAITING_MAX.operations - shares.all().operations.min(WAITING_MAX.operations);
    shares.of(asked.link).fits(bytes, WAITING_PER_LINK_MAX)
        && shares.all().fits(bytes, WAITING_MAX)
        && may_have(asked.tenant, shares.of_tenant(asked.tenant).operations, 1, free)
}

/// Checks that what waits, and the memory that was made for it, is within these bounds.
///
/// # Errors
/// How much there is.
pub(crate) fn check_bounds(disk: &Disk, operations: &Operations) -> Result<(), String> {
    let (all, of_link) = (operations.shares.all(), operations.shares.most_of_a_link());
    let (spare_bytes, spare_bytes_max) = (disk.spare_bytes.all(), 2 * WAITING_MAX.bytes);
    let is_within =
        |share: Share, most: Share| share.operations <= most.operations && share.bytes <= most.bytes;
    match is_within(all, WAITING_MAX) && is_within(of_link, WAITING_PER_LINK_MAX) {
        true if spare_bytes <= spare_bytes_max => Ok(()),
        _ => {
            Err(format!("{all:?} waits, of one connection {of_link:?}; {spare_bytes} bytes were made for it"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::context::Shared;
    use crate::group::line::IN_FLIGHT_MAX;
    use crate::io::reads_data;
    use crate::links::Peer;
    use crate::links::access::{ClientLink, Credential};
    use crate::operation::{OperationKind, Purpose};
    use crate::osd::Progress;
    use crate::testing::{Alone, PG, Pair, VOLUME, ack};
    use base::figures::RequestKind;
    use base::{Access, ClientId, Epoch, Generation, Instant, LinkId, ObjectKey, Principal, PublicKey};
    use wire::{Kind, ListObjects, Message, Query, Status};

    #[test]
    fn a_client_that_does_not_read_its_answers_gets_no_more() {
        assert!(takes_client(1, CLIENT_UNSENT_BYTES_MAX) && !takes_client(1, CLIENT_UNSENT_BYTES_MAX + 1));
        let of_many = TENANT_UNSENT_BYTES_MAX / 4096;
        assert!(takes_client(4096, of_many) && !takes_client(4096, of_many + 1), "nor by many connections");
    }

    /// What asks for so many blocks.
    fn read_of(blocks: u32) -> Request {
        Request {
            request: 1,
            key: ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 },
            offset: 0,
            length: blocks * BLOCK_BYTES as u32,
            epoch: Epoch(1),
            generation: Generation(1),
            origin: 0,
            since: None,
            unverified: false,
            of_snapshot: false,
        }
    }

    fn asked(link: LinkId, tenant: Tenant) -> Asked {
        let (kind, at) = (RequestKind::Read, Instant::default());
        Asked { link, tenant, request: 1, volume: VOLUME, kind, unverified: false, bytes: 0, at }
    }

    #[test]
    fn a_read_waits_for_memory_for_each_of_its_blocks() {
        let alone = Alone::new();
        let disk = &alone.osd.shared.disk;
        let takes = |blocks: u32| takes_read(disk, Tenant::NOBODY, &read_of(blocks));
        let there = disk.small.available() as u32;
        assert!(takes(there) && !takes(there + 1));
    }

    #[test]
    fn a_tenant_leaves_as_many_buffers_as_it_has_for_reads_and_writes() {
        let mut alone = Alone::new();
        let (tenant, other) = (Tenant(1), Tenant(2));
        let disk = &mut alone.osd.shared.disk;
        let mut lent: Vec<_> = (0..2).filter_map(|_| disk.large.take_for(tenant)).collect();
        assert!(!takes_read(disk, tenant, &read_of(1)) && !takes_write(disk, tenant));
        assert!(takes_read(disk, other, &read_of(1)) && takes_write(disk, other));
        disk.put(lent.pop().unwrap());
        assert!(takes_read(disk, tenant, &read_of(1)), "its client took an answer");
        lent.extend((0..2).filter_map(|_| disk.small.take_for(tenant)));
        assert!(!takes_read(disk, tenant, &read_of(1)) && takes_read(disk, other, &read_of(2)));
    }

    #[test]
    fn a_group_takes_no_more_than_its_log_can_tell_of() {
        let mut alone = Alone::new();
        assert!(takes_change(&alone.osd.shared.lines, 0));
        alone.with(|_, cx| {
            for _ in 0..IN_FLIGHT_MAX {
                let range = BlockRange::default();
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Repair, 0, range);
                cx.hold(id);
            }
            assert!(!takes_change(cx.lines, 0));
            cx.lines.take_all(0);
        });
    }

    #[test]
    fn what_waits_has_a_bound_of_operations_and_of_bytes() {
        let alone = Alone::new();
        let (disk, mut operations) = (&alone.osd.shared.disk, Operations::default());
        let nobody = |link| asked(LinkId(link), Tenant::NOBODY);
        let (one, other) = (nobody(1), nobody(2));
        let range = BlockRange { block_count: 64, ..BlockRange::default() };
        let bytes = 64 * BLOCK_BYTES;
        let large = (WAITING_PER_LINK_MAX.bytes / bytes) as u32;
        for slot in 0..large {
            assert!(may_wait_to_read(disk, &operations, &one, &range));
            operations.shares.count(slot, one.link, one.tenant, bytes);
        }
        assert!(!may_wait_to_read(disk, &operations, &one, &range) && may_wait_in_place(&operations, &one));
        assert!(may_wait_to_read(disk, &operations, &other, &range), "another connection has its own share");
        for slot in large..large + WAITING_PER_LINK_MAX.operations as u32 {
            operations.shares.count(slot, other.link, other.tenant, 0);
        }
        assert!(!may_wait_in_place(&operations, &other));
        // As one connection has of large ones, others have.
        for slot in 1000..1000 + (WAITING_MAX.bytes / bytes) as u32 - large {
            operations.shares.count(slot, LinkId(u64::from(slot)), Tenant::NOBODY, bytes);
        }
        let newcomer = nobody(3);
        assert!(!may_wait_to_read(disk, &operations, &newcomer, &range));
        assert!(may_wait_in_place(&operations, &newcomer));
    }

    #[test]
    fn a_tenant_with_many_connections_leaves_half_of_what_may_wait() {
        let mut alone = Alone::new();
        let disk = &mut alone.osd.shared.disk;
        let mut operations = Operations::default();
        let range = BlockRange { block_count: 64, ..BlockRange::default() };
        // On another connection each.
        let of_tenant = |slot: u32| asked(LinkId(u64::from(slot)), Tenant(1));
        let newcomer = asked(LinkId(50_000), Tenant(2));
        // A part of it was made, and is its clients' until they have taken it.
        disk.spare_bytes.add(Tenant(1), WAITING_MAX.bytes / 4);
        let mut slot = 0;
        while may_wait_to_read(disk, &operations, &of_tenant(slot), &range) {
            operations.shares.count(slot, LinkId(u64::from(slot)), Tenant(1), 64 * BLOCK_BYTES);
            slot += 1;
        }
        assert_eq!(operations.shares.of_tenant(Tenant(1)).bytes, WAITING_MAX.bytes / 4);
        assert!(may_wait_to_read(disk, &operations, &newcomer, &range));
        while may_wait_in_place(&operations, &of_tenant(slot)) {
            operations.shares.count(slot, LinkId(u64::from(slot)), Tenant(1), 0);
            slot += 1;
        }
        assert_eq!(operations.shares.of_tenant(Tenant(1)).operations, WAITING_MAX.operations / 2);
        assert!(may_wait_in_place(&operations, &newcomer));
    }

    /// A group of which the replica does not acknowledge a write of that block.
    fn slow(block: u16) -> Pair {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(block, 7);
        assert_eq!(pair.ask(&write), None);
        pair.turns(5);
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
        let ack = ack(pair.received);
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
        let spare_bytes = pair.alone.osd.shared.disk.spare_bytes.all();
        assert!(spare_bytes > 0, "there are not so many buffers");
        pair.turn();
        assert_eq!(told(&mut pair, TENANT), vec![Status::Ok; taken]);
        assert_eq!(pair.alone.osd.shared.disk.spare_bytes.all(), 0);
        assert_eq!(pair.alone.osd.shared.operations.shares.all(), Share::default());
        assert!(asks(&mut pair, TENANT, &all[taken * read.len()..]).consumed > 0, "it goes on");
    }

    #[test]
    fn a_read_that_waits_has_its_memory_kept_and_one_for_which_there_is_none_does_not_begin_to() {
        let mut pair = slow(10);
        let (read, write) = (pair.request(10).encode(Kind::Read).to_vec(), pair.write_of(11, 8));
        assert!(!asks(&mut pair, TENANT, &read).is_stalled);
        // Others have all the rest of it.
        let Shared { disk, operations, .. } = &mut pair.alone.osd.shared;
        let kept = operations.shares.all().bytes;
        assert_eq!(kept, BLOCK_BYTES);
        disk.spare_bytes.add(Tenant::NOBODY, WAITING_MAX.bytes - kept);
        assert!(asks(&mut pair, LinkId(52), &read).is_stalled, "one more cannot wait");
        // And all buffers.
        let disk = &mut pair.alone.osd.shared.disk;
        let lent: Vec<_> = std::iter::from_fn(|| disk.small.take()).collect();
        pair.acknowledges = true;
        acknowledge(&mut pair);
        assert!(!asks(&mut pair, LinkId(51), &write).is_stalled);
        pair.run();
        assert_eq!(told(&mut pair, LinkId(51)), [Status::Ok]);
        assert_eq!(told(&mut pair, TENANT), [Status::Ok]);
        drop(lent);
    }

    /// Somebody with that key connects as a client.
    fn connects(alone: &mut Alone, link: LinkId, key: u8) {
        let principal = Principal::new(PublicKey([key; 32]), Access::Admin);
        let seen_at = alone.osd.shared.volumes.map.revision;
        let credential = Credential { name: format!("key-{key}").into(), principal, seen_at };
        alone.osd.handle_accepted(link, Some(credential.clone())).unwrap();
        let client = ClientLink::new(ClientId(link.0), Some(credential));
        alone.osd.shared.links.insert(link, Peer::Client(client));
    }

    #[test]
    fn who_takes_no_answers_keeps_half_of_the_buffers_from_others_at_most() {
        let mut alone = Alone::new();
        alone.write(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 });
        alone.io.is_deaf = true;
        let (deaf, beside_it, other) = (LinkId(60), LinkId(61), LinkId(62));
        connects(&mut alone, deaf, 1);
        connects(&mut alone, beside_it, 1);
        connects(&mut alone, other, 2);
        let epoch = alone.osd.shared.groups[0].epoch;
        let read = Request { epoch, ..read_of(1) }.encode(Kind::Read).to_vec();
        let count = alone.osd.shared.disk.small.count();
        let Alone { osd, io, now } = &mut alone;
        let progress = osd.handle_bytes(*now, deaf, &read.repeat(count), io).unwrap();
        assert_eq!(progress, Progress { consumed: count / 2 * read.len(), is_stalled: true });
        let [tenant, another] = [deaf, other].map(|link| osd.tenant(link).unwrap());
        assert!(osd.was_held_back(tenant, *now) && !osd.was_held_back(another, *now));
        // What was asked for is read, and on its way from then on.
        alone.run();
        let Alone { osd, io, now } = &mut alone;
        for link in [deaf, beside_it] {
            let progress = osd.handle_bytes(*now, link, &read, io).unwrap();
            assert_eq!(progress, Progress { consumed: 0, is_stalled: true });
        }
        let progress = osd.handle_bytes(*now, other, &read, io).unwrap();
        assert_eq!(progress, Progress { consumed: read.len(), is_stalled: false });
        for buffer in std::mem::take(&mut io.unsent) {
            osd.put_buffer(buffer);
        }
        assert!(!osd.handle_bytes(*now, deaf, &read, io).unwrap().is_stalled, "it took its answers");
    }

    #[test]
    fn a_client_is_handled_for_a_while_and_then_it_is_the_turn_of_others() {
        let mut alone = Alone::new();
        let link = LinkId(60);
        connects(&mut alone, link, 1);
        // Each is answered at once.
        let read = read_of(1).encode(Kind::Read).to_vec();
        let all = read.repeat(WORK_MAX + 1);
        let Alone { osd, io, now } = &mut alone;
        let progress = osd.handle_bytes(*now, link, &all, io).unwrap();
        let consumed = WORK_MAX * read.len();
        assert_eq!(progress, Progress { consumed, is_stalled: true });
        let progress = osd.handle_bytes(*now, link, &all[consumed..], io).unwrap();
        assert_eq!(progress, Progress { consumed: read.len(), is_stalled: false });
        let tenant = osd.tenant(link).unwrap();
        assert!(!osd.was_held_back(tenant, *now), "there was nothing that it had to wait for");
    }

    /// A change of a whole object by somebody who sent it before.
    fn repeat(epoch: Epoch) -> Vec<u8> {
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let length = base::OBJECT_BYTES as u32;
        let (origin, since) = (5, Some(base::Sequence(0)));
        Request { key, length, epoch, origin, since, ..read_of(1) }.encode(Kind::Zero).to_vec()
    }

    #[test]
    fn what_was_sent_before_counts_for_more_than_a_message_in_a_turn() {
        let mut alone = Alone::new();
        let link = LinkId(60);
        connects(&mut alone, link, 1);
        let epoch = alone.osd.shared.groups[0].epoch;
        let zero = repeat(epoch);
        let all = zero.repeat(WORK_MAX);
        let Alone { osd, io, now } = &mut alone;
        let progress = osd.handle_bytes(*now, link, &all, io).unwrap();
        let consumed = WORK_MAX / REPEAT_WORK * zero.len();
        assert_eq!(progress, Progress { consumed, is_stalled: true });
        osd.end_turn(*now, io);
        assert!(osd.next_timeout() <= *now, "it goes on at once");
        osd.end_turn(*now, io);
        assert!(osd.next_timeout() > *now, "and not for ever");
    }

    #[test]
    fn what_is_written_for_the_first_time_counts_as_any_message_does() {
        let mut pair = Pair::new();
        let work = |bytes: &[u8]| work_of(&wire::parse(bytes).unwrap().unwrap().0);
        let write = pair.write_of(10, 7);
        let request = Request { origin: 5, since: Some(base::Sequence(1)), ..pair.request(10) };
        let head = request.encode(Kind::Write);
        let again = [&head[..], &write[wire::HEADER_BYTES..]].concat();
        assert_eq!([work(&write), work(&again)], [1, REPEAT_WORK]);
        let zero = pair.request(10).encode(Kind::Zero);
        assert_eq!([work(&zero), work(&request.encode(Kind::Zero))], [1, REPEAT_WORK]);
        // More than could be had of what was sent before.
        let count = 2 * WORK_MAX / REPEAT_WORK;
        let writes: Vec<u8> = (0..count as u16).flat_map(|block| pair.write_of(block, 7)).collect();
        let progress = asks(&mut pair, TENANT, &writes);
        assert_eq!(progress, Progress { consumed: writes.len(), is_stalled: false });
        pair.run();
        assert_eq!(told(&mut pair, TENANT), vec![Status::Ok; count]);
    }

    #[test]
    fn messages_of_another_osd_count_in_a_turn_as_those_of_a_client_do() {
        let mut alone = Alone::new();
        let link = alone.connect(base::OsdId(1));
        let grant = wire::Lease { granted_ttl_ms: 900, granted_stamp: 7, ..wire::Lease::default() }.encode();
        let Alone { osd, io, now } = &mut alone;
        let progress = osd.handle_bytes(*now, link, &grant.repeat(WORK_MAX + 1), io).unwrap();
        assert_eq!(progress, Progress { consumed: WORK_MAX * grant.len(), is_stalled: true });
        osd.end_turn(*now, io);
        assert!(osd.next_timeout() <= *now, "it goes on at once");
    }

    #[test]
    fn of_what_waited_a_part_is_started_in_each_turn_and_all_of_it_at_last() {
        let mut pair = slow(10);
        let read = pair.request(10).encode(Kind::Read).to_vec();
        let links = 4;
        for link in 0..links {
            asks(&mut pair, LinkId(1000 + link), &read.repeat(WAITING_PER_LINK_MAX.operations));
        }
        let all = links as usize * WAITING_PER_LINK_MAX.operations;
        assert_eq!(pair.alone.osd.shared.operations.shares.all().operations, all);
        let reads = |pair: &Pair| pair.alone.io.drive.iter().filter(|(token, ..)| reads_data(*token)).count();
        acknowledge(&mut pair);
        assert_eq!(reads(&pair), WORK_MAX, "all of it became free at once");
        let mut turns = 0;
        while pair.alone.osd.shared.operations.shares.all() != Share::default() {
            pair.turn();
            assert!(reads(&pair) <= WORK_MAX);
            turns += 1;
            let is_left = turns < all / WORK_MAX - 1;
            assert_eq!(pair.alone.osd.next_timeout() <= pair.alone.now, is_left, "after {turns} turns");
        }
        for link in 0..links {
            let told = told(&mut pair, LinkId(1000 + link));
            assert_eq!(told, vec![Status::Ok; WAITING_PER_LINK_MAX.operations]);
        }
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
        pair.turns(5);
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

    #[test]
    fn the_last_buffer_is_enough_for_a_read_or_a_write() {
        let mut alone = Alone::new();
        let disk = &mut alone.osd.shared.disk;
        let takes =
            |disk: &Disk| (takes_read(disk, Tenant::NOBODY, &read_of(1)), takes_write(disk, Tenant::NOBODY));
        let mut lent: Vec<_> = (1..disk.large.count()).filter_map(|_| disk.large.take()).collect();
        assert_eq!(takes(disk), (true, true));
        lent.extend(disk.large.take());
        assert_eq!(takes(disk), (false, false));
    }

    #[test]
    fn a_read_that_is_free_to_go_has_its_share_or_memory_that_may_be_made_or_leaves_half_of_the_buffers() {
        let mut alone = Alone::new();
        let disk = &mut alone.osd.shared.disk;
        let mut operations = Operations::default();
        let id = operations.add_for(OperationKind::Read, Purpose::Scrub, 0, BlockRange::default());
        let takes = |disk: &Disk, operations: &Operations| {
            [1, 2, 3].map(|block_count| takes_waiting_read(disk, operations, id, block_count))
        };
        assert_eq!((disk.small.count(), disk.large.count()), (4, 4));
        // One of the buffers is lent, and so much was made that there may be two blocks more.
        let lent = disk.small.take().unwrap();
        disk.spare_bytes.add(Tenant::NOBODY, WAITING_MAX.bytes - 2 * BLOCK_BYTES);
        assert_eq!(takes(disk, &operations), [true, true, false]);
        disk.spare_bytes.add(Tenant::NOBODY, 2 * BLOCK_BYTES);
        assert_eq!(takes(disk, &operations), [true, false, false], "of the buffers one is to be had");
        disk.put(lent);
        assert_eq!(takes(disk, &operations), [true, true, false]);
        let lent = [disk.large.take(), disk.large.take()];
        assert_eq!(takes(disk, &operations), [false; 3], "it may need either");
        operations.shares.count(id.slot, LinkId(1), Tenant::NOBODY, BLOCK_BYTES);
        assert_eq!(takes(disk, &operations), [true; 3], "it was kept for it");
        drop(lent);
    }

    #[test]
    fn reads_that_waited_leave_half_of_the_buffers_to_others_who_have_all_of_them() {
        let mut pair = slow(10);
        let read = pair.request(10).encode(Kind::Read).to_vec();
        assert!(!asks(&mut pair, TENANT, &read.repeat(3)).is_stalled);
        acknowledge(&mut pair);
        let free = |pair: &Pair| {
            let disk = &pair.alone.osd.shared.disk;
            (disk.small.available(), disk.spare_bytes.all())
        };
        // A block's is no size of a pool.
        let made = 2 * BLOCK_BYTES;
        assert_eq!(free(&pair), (2, made));
        let other = LinkId(51);
        assert!(!asks(&mut pair, other, &read.repeat(2)).is_stalled);
        assert_eq!(free(&pair), (0, made));
        pair.turn();
        assert_eq!(told(&mut pair, TENANT), [Status::Ok; 3]);
        assert_eq!(told(&mut pair, other), [Status::Ok; 2]);
        assert_eq!(free(&pair), (4, 0));
    }

    #[test]
    fn what_holds_nothing_but_its_place_waits_within_the_bound_too() {
        for kind in [Kind::Allocated, Kind::Zero] {
            let mut pair = slow(10);
            let asked = pair.request(10).encode(kind).to_vec();
            let all = asked.repeat(2 * WORK_MAX);
            let taken = WAITING_PER_LINK_MAX.operations * asked.len();
            let progress = asks(&mut pair, TENANT, &all);
            assert_eq!(progress, Progress { consumed: taken, is_stalled: true }, "{kind:?}");
            let progress = asks(&mut pair, TENANT, &all[taken..]);
            assert_eq!(progress, Progress { consumed: 0, is_stalled: true }, "{kind:?}");
            assert_eq!(pair.alone.osd.view().check_bounds(), Ok(()));
        }
    }

    #[test]
    fn who_leaves_too_many_answers_unread_is_held_back_and_who_asks_as_much_as_is_handled_is_not() {
        let mut alone = Alone::new();
        let link = LinkId(60);
        connects(&mut alone, link, 1);
        let read = read_of(1).encode(Kind::Read).to_vec();
        let Alone { osd, io, now } = &mut alone;
        let tenant = osd.tenant(link).unwrap();
        io.unread.insert(link, CLIENT_UNSENT_BYTES_MAX);
        let all = read.repeat(WORK_MAX);
        let progress = osd.handle_bytes(*now, link, &all, io).unwrap();
        assert_eq!(progress, Progress { consumed: all.len(), is_stalled: false });
        assert!(!osd.was_held_back(tenant, *now) && !osd.shared.turn.goes_on, "nothing is left");
        io.unread.insert(link, CLIENT_UNSENT_BYTES_MAX + 1);
        let progress = osd.handle_bytes(*now, link, &read, io).unwrap();
        assert_eq!(progress, Progress { consumed: 0, is_stalled: true });
        assert!(osd.was_held_back(tenant, *now));
    }

    #[test]
    fn what_has_a_log_gone_through_counts_for_more() {
        let mut operation = Operation::default();
        assert_eq!(work_to_start(&operation), 1);
        operation.attempt.since = Some(base::Sequence(0));
        assert_eq!(work_to_start(&operation), REPEAT_WORK);
        let epoch = Epoch(1);
        assert_eq!(work_to_answer(&Asks::Position(Query { pg: PG, modulus: 1, epoch })), LOG_WORK);
        assert_eq!(work_to_answer(&Asks::Objects(ListObjects { pg: PG, epoch, after: None })), 1);
    }

    #[test]
    fn whatever_waits_beyond_a_bound_is_told() {
        let mut alone = Alone::new();
        let is_within = |alone: &Alone| alone.osd.view().check_bounds().is_ok();
        let spare_max = 2 * WAITING_MAX.bytes;
        for (bytes, expected) in [(spare_max, true), (1, false)] {
            alone.osd.shared.disk.spare_bytes.add(Tenant::NOBODY, bytes);
            assert_eq!(is_within(&alone), expected);
        }
        alone.osd.shared.disk.spare_bytes.take_off(Tenant::NOBODY, spare_max + 1);
        let mut slot = 0;
        let mut waits = |alone: &mut Alone, link: u64, bytes: usize| {
            slot += 1;
            let shares = &mut alone.osd.shared.operations.shares;
            shares.count(slot, LinkId(link), Tenant::NOBODY, bytes);
            (is_within(alone), slot)
        };
        // Of a connection, operations and bytes; what ended does not count.
        let Share { operations, bytes } = WAITING_PER_LINK_MAX;
        assert!((0..operations).all(|_| waits(&mut alone, 1, 0).0));
        let (fits, slot_beyond) = waits(&mut alone, 1, 0);
        assert!(!fits);
        alone.osd.shared.operations.shares.ended(slot_beyond);
        assert!(is_within(&alone) && waits(&mut alone, 2, bytes).0);
        let (fits, slot_beyond) = waits(&mut alone, 2, 1);
        assert!(!fits);
        alone.osd.shared.operations.shares.ended(slot_beyond);
        // Of all, bytes and operations.
        let links = (WAITING_MAX.bytes / bytes) as u64;
        assert!((3..=links + 1).all(|link| waits(&mut alone, link, bytes).0));
        let (fits, slot_beyond) = waits(&mut alone, links + 2, 1);
        assert!(!fits);
        alone.osd.shared.operations.shares.ended(slot_beyond);
        let shares = &mut alone.osd.shared.operations.shares;
        let left = WAITING_MAX.operations - shares.all().operations;
        for number in 0..left as u32 {
            let link = LinkId(u64::from(1000 + number / 200));
            shares.count(10_000 + number, link, Tenant::NOBODY, 0);
        }
        assert!(is_within(&alone) && !waits(&mut alone, 500, 0).0);
    }
}
