//! Writes and zeroings of clients, until they are ordered ([`crate::replication::order`]).

use super::{admit, edges, limits, queue};
use crate::codec::{Payload, payload_verifies};
use crate::context::{Context, Handled};
use crate::io::Io;
use crate::operation::{Asked, OperationId, OperationKind, Purpose};
use crate::replication::order;
use base::figures::RequestKind;
use base::{BLOCK_BYTES, LinkId};
use std::time::Duration;
use wire::{Checksums, RefusalDetails, Request, Status};

/// How long a change stays in its connection because its group takes none. Members that take what they are sent make room for
/// the next one sooner.
pub(crate) const STAY_MAX: Duration = Duration::from_millis(100);

pub(crate) fn handle_zero(cx: &mut Context<'_, impl Io>, link: LinkId, request: &Request) -> Handled {
    let asked = admit::asked(cx, link, request, RequestKind::Zero);
    let admitted = admit::admit_change(cx, request);
    let Some(group) = admit::or_refuse(cx, admitted, &asked) else { return Handled::Done };
    let range = admit::range_of(request);
    if admit::lacks_object(cx, group, &request.key) && order::hides_something(cx, &range) {
        cx.refuse(Purpose::Client(asked), Status::NoSpace);
        return Handled::Done;
    }
    if let Some(handled) = turned_away(cx, &asked, group) {
        return handled;
    }
    let has_conflict = cx.must_wait(&admit::range_of(request));
    let may_wait = queue::may_wait_in_place(cx.operations, &asked);
    if has_conflict && !may_wait || !admit::is_its_turn(cx, &asked) {
        return Handled::Stalled;
    }
    if let Some(handled) = limits::hold_up(cx, link, request, RequestKind::Zero) {
        return handled;
    }
    let id = admit::add_operation(cx, asked, request, group, OperationKind::Zero);
    if !has_conflict && (admit::is_answered(cx, id) || order::zero(cx, id)) {
        admit::has_begun(cx, &asked);
        return Handled::Done;
    }
    wait_or_stay(cx, id, request, &asked, may_wait)
}

pub(crate) fn handle_write(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    request: &Request,
    checksums: Checksums<'_>,
    data: &[u8],
) -> Handled {
    let asked = admit::asked(cx, link, request, RequestKind::Write);
    let admitted = admit::admit_change(cx, request);
    let Some(group) = admit::or_refuse(cx, admitted, &asked) else { return Handled::Done };
    if admit::is_full(cx, group, &request.key) {
        cx.refuse(Purpose::Client(asked), Status::NoSpace);
        return Handled::Done;
    }
    if let Some(handled) = turned_away(cx, &asked, group) {
        return handled;
    }
    let has_conflict = cx.must_wait(&admit::range_of(request));
    let may_wait = queue::may_wait_to_write(cx.disk, cx.operations, &asked);
    if !queue::takes_write(cx.disk, asked.tenant) || has_conflict && !may_wait {
        return Handled::Stalled;
    }
    if !admit::is_its_turn(cx, &asked) {
        return Handled::Stalled;
    }
    if let Some(handled) = limits::hold_up(cx, link, request, RequestKind::Write) {
        return handled;
    }
    if !payload_verifies(request.offset, checksums, data) {
        cx.refuse(Purpose::Client(asked), Status::CorruptPayload);
        return Handled::Done;
    }
    let id = admit::add_operation(cx, asked, request, group, OperationKind::Write);
    cx.operations.live(id).checksums.extend_from_slice(checksums);
    let must_wait = has_conflict || admit::is_done_in_part(cx, id);
    if !must_wait && (admit::is_answered(cx, id) || request.is_aligned() && order::write(cx, id, data)) {
        admit::has_begun(cx, &asked);
        return Handled::Done;
    }
    hold(cx, id, request, data);
    if !must_wait && start(cx, id) {
        admit::has_begun(cx, &asked);
        return Handled::Done;
    }
    wait_or_stay(cx, id, request, &asked, may_wait)
}

/// What becomes of a change whose group takes none now: too many are under way there, or a member leaves too much unread. For a
/// moment it stays in its connection, as that is how members hold clients back. But what is behind it there may be about other
/// groups, or only read: where none was taken for longer than that, it is refused, and its client tries it again. For as long:
/// then it stays once more, so that whoever waits before trying again has as good a chance as who does not.
fn turned_away(cx: &mut Context<'_, impl Io>, asked: &Asked, group: u32) -> Option<Handled> {
    let is_taken = queue::takes_change(cx.lines, group) && order::do_members_take(cx, group);
    let pauses = &mut cx.groups[group].pauses;
    if is_taken {
        pauses.takes_none_since = None;
        return None;
    }
    let since = *pauses.takes_none_since.get_or_insert(cx.now);
    let waited = cx.now.since(since);
    if waited >= 2 * STAY_MAX {
        pauses.takes_none_since = Some(cx.now);
    }
    if !(STAY_MAX..2 * STAY_MAX).contains(&waited) {
        return Some(Handled::Stalled);
    }
    let details = RefusalDetails { osd: cx.me.id, was_not_begun: true, ..RefusalDetails::default() };
    cx.refuse_client(asked, Status::NotActive, details);
    Some(Handled::Done)
}

/// What cannot begin now waits in line, if there is room for it; else it stays with its client for the moment.
fn wait_or_stay(
    cx: &mut Context<'_, impl Io>,
    id: OperationId,
    request: &Request,
    asked: &Asked,
    may_wait: bool,
) -> Handled {
    if !may_wait {
        cx.rates.limits.comes_again(asked.link, request, asked.kind, cx.now);
        cx.forget(id);
        return Handled::Stalled;
    }
    admit::has_begun(cx, asked);
    admit::wait(cx, id);
    Handled::Done
}

/// The slow way: a write's bytes are kept until the blocks are free, their edges read, or the store has room.
fn hold(cx: &mut Context<'_, impl Io>, id: OperationId, request: &Request, data: &[u8]) {
    let tenant = cx.operations.live(id).tenant();
    let mut held = cx.disk.large.take_for(tenant).expect("one was there a moment ago");
    let start = request.offset as usize % BLOCK_BYTES;
    held.bytes_mut().expect("a buffer from the pool is unique")[start..start + data.len()]
        .copy_from_slice(data);
    cx.operations.live(id).payload = Payload::Held(held);
}

/// Starts a write whose bytes are held: orders it, or first reads the edges it leaves. `false` when there
/// is no room.
pub(crate) fn start(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    if cx.operations.live(id).is_aligned() { edges::order_held(cx, id) } else { edges::start(cx, id) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::group::line::IN_FLIGHT_MAX;
    use crate::links::Peer;
    use crate::links::access::ClientLink;
    use crate::testing::{Alone, PG, Pair, VOLUME};
    use base::figures::{RequestFigures, Traffic};
    use base::log_entry::REPAIR;
    use base::{BlockRange, ClientId, Epoch, Generation, ObjectKey, crc32c};
    use wire::{Kind, Message, ReplicateAck};

    #[test]
    fn a_write_that_was_done_in_part_is_done_where_it_was_not() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        // Members had agreed on the second of three blocks when another one began to lead, which lacks the others.
        let name = 5;
        alone.order(key, 11, 1, REPAIR | name);
        let newest = |alone: &Alone| alone.osd.shared.disk.store.pg_log(PG).next_back().unwrap();
        let mut expected = [(10, 1), (12, 1), (12, 1)].into_iter();
        for status in [Status::NotActive, Status::NotActive, Status::Ok] {
            let sequence = newest(&alone).sequence;
            alone.io.sent.clear();
            alone.send_again(key, 10, 3, name);
            let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().unwrap().0 else {
                panic!("the client is answered")
            };
            assert_eq!(reply.head.status, status);
            assert_eq!(newest(&alone).sequence > sequence, status != Status::Ok);
            assert_eq!((newest(&alone).first_block, newest(&alone).block_count), expected.next().unwrap());
        }
        // Each block has what was meant for it.
        let mut checksums = Vec::new();
        alone.osd.shared.disk.store.lookup(&key, 10, 3, &mut Vec::new(), &mut checksums);
        assert_eq!(checksums, [10, 11, 12].map(|byte| crc32c(&[byte; BLOCK_BYTES])));
    }

    #[test]
    fn what_waits_behind_a_write_that_is_refused_is_started() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let mut object = 10;
        // The last of these leaves no room for one block more.
        let mut is_full = false;
        while !is_full {
            is_full = alone.osd.shared.disk.store.is_full();
            alone.order(ObjectKey { object, ..key }, 0, 64, 0);
            object += 1;
        }
        let request = wire::Request { request: 2, ..alone.request(&BlockRange::one(key, 0)) };
        let (writer, reader) = (LinkId(7), LinkId(8));
        let data = [5; BLOCK_BYTES];
        alone.with(|router, cx| {
            // Its edges were read, and meanwhile others filled the drive.
            let asked = admit::asked(cx, writer, &request, RequestKind::Write);
            let id = admit::add_operation(cx, asked, &request, 0, OperationKind::Write);
            cx.operations.live(id).checksums.push(crc32c(&data).into());
            cx.hold(id);
            router.reads.handle_read(cx, reader, &request);
            assert!(order::write(cx, id, &data));
        });
        alone.run();
        let mut status = |link| match wire::parse(&alone.io.to.remove(&link).unwrap()).unwrap().unwrap().0 {
            Message::Reply(reply) => reply.head.status,
            other => panic!("{other:?}"),
        };
        assert_eq!([status(writer), status(reader)], [Status::NoSpace, Status::Ok]);
    }

    #[test]
    fn where_a_replica_takes_no_more_objects_those_that_are_there_are_written_to_and_zeroed_still() {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        let fills_up = |pair: &mut Pair| {
            let through = pair.received;
            pair.hears(&ReplicateAck { through, is_full: false, takes_no_objects: true }.encode());
        };
        let done = |pair: &mut Pair, bytes: &[u8]| {
            pair.ask(bytes);
            pair.run();
            pair.told()
        };
        assert_eq!(done(&mut pair, &write), Some(Status::Ok));
        fills_up(&mut pair);
        let data = [7; BLOCK_BYTES];
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 4 };
        let new = Request { key, ..pair.request(10) };
        let new = [&new.encode(Kind::Write)[..], &crc32c(&data).to_le_bytes(), &data].concat();
        assert_eq!(pair.ask(&new), Some(Status::NoSpace));
        let beside = pair.write_of(11, 7);
        assert_eq!(done(&mut pair, &beside), Some(Status::Ok));
        fills_up(&mut pair);
        let zero = pair.request(10).encode(Kind::Zero).to_vec();
        assert_eq!(done(&mut pair, &zero), Some(Status::Ok));
        assert_eq!(done(&mut pair, &new), Some(Status::Ok), "it said that it has room again");
    }

    /// As many writes are under way as may be, of which a member acknowledges none.
    fn takes_none(pair: &mut Pair) {
        pair.alone.with(|_, cx| {
            for _ in 0..IN_FLIGHT_MAX {
                let range = BlockRange::default();
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Repair, 0, range);
                cx.hold(id);
            }
        });
    }

    #[test]
    fn a_change_that_its_group_does_not_take_holds_up_what_is_behind_it_for_a_moment_only() {
        let mut pair = Pair::new();
        takes_none(&mut pair);
        let (zero, read) = (pair.request(20).encode(Kind::Zero), pair.request(21).encode(Kind::Read));
        let both = [&zero[..], &read].concat();
        assert_eq!(pair.ask(&both), None);
        pair.alone.now = pair.alone.now + STAY_MAX;
        assert_eq!(pair.ask(&both), Some(Status::NotActive));
        pair.turn();
        let told = pair.alone.io.told(LinkId(99), |message| match message {
            Message::Reply(reply) => Some((reply.head.status, reply.head.details.was_not_begun)),
            _ => None,
        });
        assert_eq!(told, [(Status::NotActive, true), (Status::Ok, false)]);
        // It is not refused for ever: whoever comes later waits again.
        pair.alone.now = pair.alone.now + 2 * STAY_MAX;
        pair.alone.io.to.remove(&LinkId(99));
        assert_eq!(pair.ask(&zero), None);
        // When there is room again, the next one is taken.
        pair.alone.with(|_, cx| {
            cx.lines.take_all(0).into_iter().for_each(|id| cx.forget(id));
        });
        assert_eq!(pair.ask(&zero), None);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        assert_eq!(pair.alone.osd.shared.groups[0].pauses.takes_none_since, None);
    }

    #[test]
    fn what_clients_ask_is_counted_when_it_is_answered() {
        let mut alone = Alone::new();
        let link = LinkId(7);
        alone.osd.shared.links.insert(link, Peer::Client(ClientLink::new(ClientId(9), None)));
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.send_again(key, 0, 2, 5);
        // Again: it is done already, and answered all the same.
        alone.send_again(key, 0, 2, 5);
        let range = BlockRange { key, first_block: 0, block_count: 4 };
        let request = wire::Request { request: 2, ..alone.request(&range) };
        alone.with(|router, cx| router.reads.handle_read(cx, link, &request));
        // Of nothing: it is answered without the drive.
        let hole = wire::Request { key: ObjectKey { object: 4, ..key }, ..request };
        alone.with(|router, cx| router.reads.handle_read(cx, link, &hole));
        alone.with(|router, cx| router.reads.handle_allocated(cx, link, &hole));
        alone.with(|_, cx| handle_zero(cx, link, &hole));
        let stale = wire::Request { epoch: Epoch(0), ..request };
        alone.with(|router, cx| router.reads.handle_read(cx, link, &stale));
        let fenced = wire::Request { generation: Generation(0), ..request };
        alone.with(|_, cx| handle_zero(cx, link, &fenced));
        alone.run();
        let figures = alone.osd.view().figures();
        let counted = |of: &RequestFigures| (of.latencies.count(), of.bytes, of.errors, of.redirected);
        let blocks = |count: u64| count * BLOCK_BYTES as u64;
        assert_eq!(counted(&figures.write), (2, blocks(4), 0, 0));
        assert_eq!(counted(&figures.read), (2, blocks(8), 0, 1));
        assert_eq!(counted(&figures.zero), (1, blocks(4), 1, 0));
        assert_eq!(figures.allocated.latencies.count(), 1);
        // The drive answers a turn later, which is 50 ms here; the second write was answered at once.
        assert_eq!(figures.write.latencies.sum_ns % 50_000_000, 0);
        assert!(figures.write.latencies.sum_ns > 0);
        let traffic = Traffic {
            reads: 2,
            read_bytes: blocks(8),
            writes: 3,
            written_bytes: blocks(4),
            ..Traffic::default()
        };
        assert_eq!(alone.osd.view().pool_traffic().into_iter().collect::<Vec<_>>(), [(PG.pool, traffic)]);
        assert_eq!(alone.osd.view().volume_traffic().collect::<Vec<_>>(), [(VOLUME, traffic)]);
        assert_eq!(alone.osd.view().client_traffic().collect::<Vec<_>>(), [(ClientId(9), traffic)]);
    }

    #[test]
    fn how_long_a_change_stays_counts_from_when_its_group_took_none_and_once_more_after_that() {
        let mut pair = Pair::new();
        takes_none(&mut pair);
        let zero = pair.request(20).encode(Kind::Zero);
        let (begin, moment) = (pair.alone.now, Duration::from_nanos(1));
        for (passed, is_refused) in [
            (Duration::ZERO, false),
            (STAY_MAX - moment, false),
            (STAY_MAX, true),
            (2 * STAY_MAX - moment, true),
            (2 * STAY_MAX, false),
            (3 * STAY_MAX - moment, false),
            (3 * STAY_MAX, true),
        ] {
            pair.alone.now = begin + passed;
            assert_eq!(pair.ask(&zero), is_refused.then_some(Status::NotActive), "after {passed:?}");
        }
    }

    #[test]
    fn what_does_not_match_its_checksum_is_refused_and_nothing_of_it_is_kept() {
        let mut pair = Pair::new();
        let sound = pair.write_of(10, 7);
        let mut garbled = sound.clone();
        *garbled.last_mut().unwrap() ^= 1;
        assert_eq!(pair.ask(&garbled), Some(Status::CorruptPayload));
        assert_eq!(pair.alone.osd.view().operations_in_flight(), 0);
        assert_eq!(pair.alone.osd.view().figures().write.errors, 1);
        pair.ask(&sound);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        assert_eq!(pair.alone.osd.view().figures().write.latencies.count(), 1);
    }
}
