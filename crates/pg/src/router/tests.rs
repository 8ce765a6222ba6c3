//! Tests of who handles what, and when.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::io::{TOKEN_STORE_READ, reads_data};
use crate::links::OsdLink;
use crate::links::access::ClientLink;
use crate::links::inquiries::UNREAD_BYTES_MAX;
use crate::operation::Asked;
use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME};
use base::figures::RequestKind;
use base::map::OsdInfo;
use base::{
    BlockRange, ClientId, Epoch, Generation, Instant, NodeId, ObjectKey, OsdUuid, PgId, Tenant, VolumeId,
};
use wire::{Fence, Hello, Kind, ObjectEpoch, Role, VERSIONS, Welcome};

const CLIENT: LinkId = LinkId(99);
const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };

fn ends_turn(alone: &mut Alone) {
    let Alone { osd, io, now } = alone;
    osd.end_turn(*now, io);
}

/// What a client was told since the last time: of which requests, and what.
fn told(alone: &mut Alone) -> Vec<(u64, Status)> {
    alone.io.told(CLIENT, |message| match message {
        Message::Reply(reply) => Some((reply.head.request, reply.head.status)),
        _ => None,
    })
}

/// How long after the next look at the slow things the one behind it is due.
fn pause(alone: &mut Alone) -> Duration {
    alone.osd.shared.turn.next_tick = alone.now;
    ends_turn(alone);
    alone.osd.shared.turn.next_tick.since(alone.now)
}

/// Another OSD of the cluster is up, and connected.
fn joins(alone: &mut Alone, osd: u32) {
    let address = Some(([127, 0, 0, 1], 7009).into());
    let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
    map.osds.insert(OsdId(osd), OsdInfo { address, ..OsdInfo::default() });
    alone.connect(OsdId(osd));
}

#[test]
fn slow_things_are_looked_at_rarely_only_where_nothing_can_change_by_itself() {
    type Change = fn(&mut Alone);
    let changes: [(&str, Change); 8] = [
        ("there was work", |alone| alone.osd.shared.turn.active_at = alone.now),
        ("a lease ends before that", |alone| {
            alone.osd.shared.presence.leases.ask(REPLICA, alone.now, true);
        }),
        ("an OSD has not greeted", |alone| {
            let link = OsdLink::new(OsdId(5), None, alone.now);
            alone.osd.shared.links.insert_osd(LinkId(70), link);
        }),
        ("one of two members that are wanted is there", |alone| {
            joins(alone, 7);
            let target = [0, 1, 7, 8].map(OsdId).to_vec();
            alone.osd.shared.groups[0].wanted.target = target;
        }),
        ("it is to be handed over later", |alone| {
            let group = &mut alone.osd.shared.groups[0];
            group.wanted.target.reverse();
            group.pauses.hand_over_after = alone.now + Duration::from_secs(60);
        }),
        ("a scrub waits", |alone| assert!(alone.osd.begin_scrub(PG, false))),
        ("a fence waits", |alone| {
            alone.osd.shared.links.insert(CLIENT, Peer::Client(ClientLink::new(ClientId(9), None)));
            let fence = Fence { request: 5, volume: VOLUME, generation: Generation(1) };
            alone.with(|router, cx| router.fences.handle_client_fence(cx, CLIENT, &fence));
        }),
        ("its epoch ended", |alone| alone.with(|_, cx| epoch::end(cx, 0, "a test"))),
    ];
    for (what, change) in changes {
        let mut pair = Pair::new();
        pair.turns(100);
        assert_eq!(pause(&mut pair.alone), TICK_AT_REST);
        change(&mut pair.alone);
        assert_eq!(pause(&mut pair.alone), TICK, "{what}");
    }
}

#[test]
fn slow_things_are_looked_at_when_they_are_due_and_not_before() {
    let mut alone = Alone::new();
    assert_eq!(pause(&mut alone), TICK_AT_REST);
    let due = alone.osd.next_timeout();
    for (now, is_looked) in [(due - Duration::from_nanos(1), false), (due, true)] {
        alone.now = now;
        ends_turn(&mut alone);
        assert_eq!(alone.osd.next_timeout(), if is_looked { due + TICK_AT_REST } else { due });
    }
}

#[test]
fn slow_things_are_looked_at_at_once_when_the_registry_answers_again() {
    let mut alone = Alone::new();
    alone.now = alone.now + Duration::from_secs(5);
    for is_looked in [true, false] {
        let late = alone.now + TICK_AT_REST;
        alone.osd.shared.turn.next_tick = late;
        alone.osd.handle_registry(alone.now);
        assert_eq!(alone.osd.shared.turn.next_tick, if is_looked { alone.now } else { late });
    }
}

#[test]
fn a_message_of_a_client_ends_the_rest_of_an_osd() {
    let mut alone = Alone::new();
    alone.osd.shared.links.insert(CLIENT, Peer::Client(ClientLink::new(ClientId(9), None)));
    assert_eq!(pause(&mut alone), TICK_AT_REST);
    let read = alone.request(&BlockRange::one(KEY, 0)).encode(Kind::Read);
    let comes = |alone: &mut Alone| {
        let Alone { osd, io, now } = alone;
        osd.handle_bytes(*now, CLIENT, &read, io).unwrap();
        (osd.shared.turn.next_tick, osd.shared.turn.active_at)
    };
    let now = alone.now;
    assert_eq!(comes(&mut alone), (now, now));
    assert!(alone.osd.shared.rates.pace.push_blocks(now) < crate::pace::PUSH_BLOCKS);
    assert_eq!(pause(&mut alone), TICK);
    alone.now = now + Duration::from_millis(1);
    assert_eq!(comes(&mut alone), (now + TICK, alone.now), "it looks soon already");
}

#[test]
fn an_osd_that_greets_back_is_counted_on_from_then_on_and_told_of_every_generation() {
    let mut alone = Alone::new();
    let (link, begun) = (LinkId(20), Instant::default());
    alone.osd.shared.links.insert_osd(link, OsdLink::new(OsdId(4), None, begun));
    let version = VERSIONS.common(VERSIONS).unwrap();
    let Alone { osd, io, now } = &mut alone;
    osd.handle_bytes(*now, link, &Welcome { version }.encode(), io).unwrap();
    let peer = osd.shared.links.osd_mut(link).unwrap();
    assert_eq!((peer.version, peer.since), (Some(version), *now));
    assert!(osd.next_timeout() <= *now, "it is looked what can be done with it");
    let told = io.told(link, |message| match message {
        Message::Fence(fence) => Some((fence.volume, fence.generation)),
        _ => None,
    });
    assert_eq!(told, [(VOLUME, Generation(1))]);
}

#[test]
fn who_is_silent_for_long_is_let_go() {
    let mut pair = Pair::new();
    pair.alone.now = pair.alone.now + Duration::from_secs(8);
    pair.alone.osd.shared.turn.next_tick = pair.alone.now;
    ends_turn(&mut pair.alone);
    assert_eq!(pair.alone.io.closed, [pair.link]);
    assert_eq!(pair.alone.osd.shared.links.link_of(REPLICA), None);
    assert!(!pair.alone.osd.shared.groups[0].is_active());
}

#[test]
fn who_stops_or_whose_drive_failed_leaves_the_others() {
    for is_shut_down in [true, false] {
        let mut pair = Pair::new();
        let other = pair.alone.connect(OsdId(2));
        let Alone { osd, io, now } = &mut pair.alone;
        if is_shut_down {
            osd.begin_shutdown(io);
            osd.shared.turn.next_tick = *now;
        } else {
            osd.fail_drive(*now, "a test", io);
        }
        assert!(io.closed.is_empty() && osd.next_timeout() <= *now);
        osd.end_turn(*now, io);
        assert_eq!(io.closed, [pair.link, other]);
        assert_eq!(osd.shared.links.osds().count(), 0);
        assert!(!osd.shared.groups[0].is_active());
    }
}

#[test]
fn by_a_newer_map_an_osd_on_another_drive_or_node_is_another_one_and_an_older_map_says_nothing() {
    let changes: [fn(&mut OsdInfo); 2] =
        [|info| info.uuid = OsdUuid::from_bytes([9; 16]), |info| info.node = NodeId(9)];
    for change in changes {
        let mut pair = Pair::new();
        // One that no map shows, and one that is what it was.
        pair.alone.connect(OsdId(5));
        joins(&mut pair.alone, 6);
        let shown = pair.alone.osd.shared.volumes.map.clone();
        let now = pair.alone.now;
        for (revision, is_heeded) in [(shown.revision - 1, false), (shown.revision + 1, true)] {
            let mut map = ClusterMap::clone(&shown);
            map.revision = revision;
            change(map.osds.get_mut(&REPLICA).unwrap());
            pair.alone.osd.handle_map(now, Arc::new(map), &mut pair.alone.io);
            let closed = if is_heeded { vec![pair.link] } else { vec![] };
            assert_eq!(pair.alone.io.closed, closed, "revision {revision}");
            assert_eq!(pair.alone.osd.shared.groups[0].is_active(), !is_heeded);
        }
        assert!(pair.alone.osd.next_timeout() <= now, "it is looked what follows from it");
        assert_eq!(pair.alone.osd.shared.links.osds().count(), 2);
    }
}

#[test]
fn a_change_that_is_under_way_when_the_drive_fails_may_be_done_by_another_member() {
    for (has_others, expected) in [(true, Status::NotActive), (false, Status::DeviceFailed)] {
        let mut alone = if has_others { Pair::new().alone } else { Alone::new() };
        let request = alone.request(&BlockRange::one(KEY, 10));
        alone.with(|_, cx| write::handle_zero(cx, CLIENT, &request));
        let Alone { osd, io, now } = &mut alone;
        osd.end_turn(*now, io);
        assert!(osd.shared.groups[0].is_active());
        osd.fail_drive(*now, "first", io);
        osd.fail_drive(*now, "second", io);
        let failed = osd.view().notes().filter(|note| note.contains("the drive failed")).count();
        assert_eq!((failed, osd.store().failure()), (1, Some("first")));
        assert!(!osd.shared.groups[0].is_active());
        assert_eq!(osd.view().operations_in_flight(), 0);
        assert_eq!(told(&mut alone), [(1, expected)]);
        // What the drive is done with then changes nothing.
        alone.drive_answers();
        assert!(told(&mut alone).is_empty());
    }
}

#[test]
fn a_write_that_a_replica_refuses_ends_the_epoch_for_a_while_and_is_noted() {
    let mut pair = Pair::new();
    pair.is_full = true;
    let write = pair.write_of(10, 7);
    assert_eq!(pair.ask(&write), None);
    pair.turn();
    assert_eq!(pair.told(), Some(Status::NotActive));
    let pauses = &pair.alone.osd.shared.groups[0].pauses;
    assert_eq!(pauses.claim_after.since(pair.alone.now), epoch::CLAIM_PAUSE_LONG);
    assert_eq!(pauses.tails_wait_until, None, "it was no cut");
    let noted = "osd.1 refused a write of pg 1.0: NoSpace";
    assert!(pair.alone.osd.view().notes().any(|note| note.starts_with(noted)));
}

#[test]
fn what_waited_of_inquiries_is_answered_a_part_in_each_turn() {
    let mut alone = Alone::new();
    alone.write(KEY);
    let epoch = Epoch(9);
    let link = alone.connect(OsdId(1));
    alone.is_led_by(OsdId(1), epoch);
    alone.query(link, PG, 1, epoch);
    alone.io.unread.insert(link, UNREAD_BYTES_MAX + 1);
    let asked = ObjectEpoch { key: KEY, epoch }.encode(Kind::ListBlocks);
    let count = queue::WORK_MAX + 44;
    for _ in 0..count {
        let Alone { osd, io, now } = &mut alone;
        osd.handle_bytes(*now, link, &asked, io).unwrap();
    }
    alone.io.to.clear();
    alone.io.unread.clear();
    for (answered, is_left) in [(queue::WORK_MAX, true), (44, false)] {
        ends_turn(&mut alone);
        let told = alone.io.told(link, |message| matches!(message, Message::Blocks(_)).then_some(()));
        assert_eq!(told.len(), answered);
        assert_eq!(alone.osd.shared.turn.next_is_due, is_left);
        assert_eq!(alone.osd.shared.links.with_inquiries.len(), usize::from(is_left));
    }
}

#[test]
fn what_mechanisms_have_done_by_others_is_done_in_the_order_in_which_they_asked() {
    let mut alone = Alone::new();
    let blocks = [12, 10, 14];
    blocks.into_iter().for_each(|block| alone.order(KEY, block, 1, 0));
    alone.with(|_, cx| {
        for block in blocks {
            let (range, reason) = (BlockRange::one(KEY, block), MendReason::OtherDamaged);
            cx.then(Task::Mend { group: 0, range, reason });
        }
    });
    let operations = &alone.osd.shared.operations;
    let of_read = |token: u64| {
        let part = PartToken::of(token);
        let id = operations.reading(part.slot, part.serial_low);
        operations.get(id).map(|operation| operation.range.first_block)
    };
    let reads = alone.io.drive.iter().map(|(token, ..)| *token).filter(|token| reads_data(*token));
    let begun: Vec<_> = reads.filter_map(of_read).collect();
    assert_eq!(begun, blocks);
}

/// What a client asks for waits in line, as if for its blocks.
fn waits(cx: &mut Context<'_, impl Io>, request: u64, kind: RequestKind, group: u32, range: BlockRange) {
    let (tenant, bytes, at) = (Tenant::NOBODY, 0, cx.now);
    let asked = Asked { link: CLIENT, tenant, request, volume: VOLUME, kind, unverified: false, bytes, at };
    let is_change = kind == RequestKind::Zero;
    let operation = if is_change { OperationKind::Zero } else { OperationKind::Read };
    let id = cx.operations.add_for(operation, Purpose::Client(asked), group, range);
    cx.lines.wait(group, id, !is_change, &range);
    cx.turn.look_again(group);
}

#[test]
fn groups_of_which_much_waits_share_a_turn() {
    let mut alone = Alone::with_groups(2);
    let each = 200;
    alone.with(|_, cx| {
        for group in 0..2 {
            for object in 0..each {
                let key = ObjectKey { pg: PgId { index: group, ..PG }, layer: VOLUME.first_layer(), object };
                waits(cx, 1, RequestKind::Allocated, group, BlockRange::whole(key));
            }
        }
    });
    for left in [each as usize - queue::WORK_MAX / 2, 0] {
        ends_turn(&mut alone);
        let lines = &alone.osd.shared.lines;
        assert_eq!([0, 1].map(|group| lines.all(group).count()), [left; 2]);
        assert_eq!(alone.osd.shared.turn.next_is_due, left > 0);
        assert_eq!(alone.osd.shared.turn.work, 0, "what becomes free before the next one is begun");
    }
}

#[test]
fn a_read_for_which_there_is_no_memory_keeps_no_change_waiting() {
    let mut alone = Alone::new();
    alone.order(KEY, 0, 1, 0);
    // More was made than may be, and all buffers are lent.
    let spare = 1 << 40;
    let disk = &mut alone.osd.shared.disk;
    disk.spare_bytes.add(Tenant::NOBODY, spare);
    let lent: Vec<Buffer> = std::iter::from_fn(|| disk.small.take()).collect();
    alone.with(|_, cx| {
        for (request, kind) in [(1, RequestKind::Read), (2, RequestKind::Zero), (3, RequestKind::Zero)] {
            waits(cx, request, kind, 0, BlockRange::one(KEY, request as u16 - 1));
        }
    });
    alone.settles();
    assert_eq!(told(&mut alone), [(2, Status::Ok), (3, Status::Ok)]);
    lent.into_iter().for_each(|buffer| alone.osd.put_buffer(buffer));
    alone.settles();
    assert_eq!(told(&mut alone), [(1, Status::Ok)]);
}

#[test]
fn all_that_waited_for_a_change_begins_with_its_end() {
    let mut pair = Pair::new();
    pair.acknowledges = false;
    let both = BlockRange { key: KEY, first_block: 10, block_count: 2 };
    let first = pair.alone.request(&both).encode(Kind::Zero);
    let behind = [10, 11].map(|block| pair.request(block).encode(Kind::Zero));
    assert_eq!(pair.ask(&[&first[..], &behind[0], &behind[1]].concat()), None);
    pair.turns(5);
    let under_way = |pair: &Pair| pair.alone.osd.shared.lines.under_way(0).count();
    assert_eq!(under_way(&pair), 1);
    let ack = crate::testing::ack(pair.received);
    pair.hears(&ack);
    assert_eq!(under_way(&pair), 2);
}

#[test]
fn a_drive_that_only_reads_does_nothing_and_so_does_one_that_only_writes_for_longer() {
    let kinds = [TOKEN_STORE_READ, TOKEN_STORE_WRITE, TOKEN_STORE_FLUSH].map(|kind| kind << TOKEN_SHIFT);
    let [read, write, flush] = kinds;
    let cases = [
        (write, Some(read), 10),
        (flush, Some(read), 10),
        (write, None, 10),
        (read, None, 10),
        (read, Some(write), 40),
        (read, Some(flush), 40),
    ];
    for (stuck, works, limit) in cases {
        let mut alone = Alone::new();
        // Long after it was started.
        alone.now = alone.now + Duration::from_secs(1000);
        alone.with(|_, cx| {
            cx.disk.patience.look(cx.now);
            cx.disk.patience.asks(stuck);
            for second in 0..45 {
                let now = cx.now + Duration::from_secs(second);
                if let Some(works) = works {
                    cx.disk.patience.asks(works);
                    cx.disk.patience.has_answered(works);
                }
                cx.disk.patience.look(now);
                assert_eq!(cx.disk.patience.is_silent(now), second >= limit, "{stuck:x} {second}");
            }
            cx.disk.patience.has_answered(stuck);
            assert!(!cx.disk.patience.is_silent(cx.now + Duration::from_secs(45)));
        });
    }
}

#[test]
fn what_whoever_runs_an_osd_reads_of_its_drive_tells_whether_that_does_anything() {
    let mut alone = Alone::new();
    alone.run();
    let hangs_after = |alone: &mut Alone, seconds: u64| {
        alone.now = alone.now + Duration::from_secs(seconds);
        alone.osd.end_turn(alone.now, &mut alone.io);
        alone.osd.view().drive_hangs()
    };
    assert!(!hangs_after(&mut alone, 60), "it is at rest");
    alone.osd.note_own_reads(3, 0);
    // It looks every 2 s.
    assert!(!hangs_after(&mut alone, 2) && !hangs_after(&mut alone, 7) && hangs_after(&mut alone, 2));
    alone.osd.note_own_reads(0, 1);
    assert!(!hangs_after(&mut alone, 2) && hangs_after(&mut alone, 10), "two more are awaited");
    alone.osd.note_own_reads(0, 2);
    assert!(!hangs_after(&mut alone, 2) && !hangs_after(&mut alone, 60));
}

#[test]
fn an_osd_whose_drive_does_nothing_leaves_its_groups_to_others_until_it_does() {
    let mut alone = Alone::new();
    joins(&mut alone, 7);
    let (other, link) = (OsdId(7), LinkId(17));
    // Time passes, and of the drive nothing comes; of the other OSD something does.
    let passes = |alone: &mut Alone, time: Duration| {
        let end = alone.now + time;
        while alone.now < end {
            alone.now = alone.now + Duration::from_millis(50);
            if let Some(peer) = alone.osd.shared.links.osd_mut(link) {
                peer.heard_at = alone.now;
            }
            alone.osd.handle_registry(alone.now);
            alone.osd.end_turn(alone.now, &mut alone.io);
        }
    };
    passes(&mut alone, Duration::from_secs(60));
    assert!(alone.io.closed.is_empty(), "it was asked for nothing");
    alone.with(|_, cx| {
        let range = BlockRange { key: KEY, first_block: 0, block_count: 1 };
        let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
        assert!(order::zero(cx, id));
    });
    passes(&mut alone, Duration::from_secs(8));
    assert!(alone.io.closed.is_empty(), "it may only be slow");
    passes(&mut alone, Duration::from_secs(5));
    assert_eq!(alone.io.closed, [link]);
    let notes: Vec<_> = alone.osd.shared.journal.notes().collect();
    assert!(notes.iter().any(|note| note.contains("does nothing of what it was asked")), "{notes:?}");
    let hello = |alone: &mut Alone| {
        let (role, cluster, target) = (Role::Osd(other), alone.osd.me.cluster, alone.osd.me.id);
        let hello = Hello { role, cluster, target, versions: VERSIONS }.encode();
        alone.osd.handle_accepted(LinkId(77), None).unwrap();
        alone.osd.handle_bytes(alone.now, LinkId(77), &hello, &mut alone.io)
    };
    assert!(matches!(hello(&mut alone), Err(LinkError::Stopped(_))));
    // It asks for no epoch, whoever else is gone.
    alone.with(|_, cx| {
        epoch::end(cx, 0, "a test");
        cx.groups[0].staged_count = 0;
        cx.groups[0].pauses.claim_after = cx.now;
        claim::advance(cx, 0);
        assert!(cx.io.proposals.is_empty());
        cx.groups[0].staged_count = 1;
    });
    passes(&mut alone, Duration::from_secs(60));
    alone.drive_answers();
    assert!(hello(&mut alone).is_ok(), "it does something");
    alone.run();
    assert!(alone.osd.shared.groups[0].is_active());
}

#[test]
fn who_floods_a_volume_leaves_a_place_for_who_uses_another_one_and_what_waits_begins_when_something_ends() {
    let mut alone = Alone::new();
    let other_volume = VolumeId(7);
    alone.is_attached(other_volume, Generation(1));
    let (flood, neighbour) = (LinkId(50), LinkId(51));
    for link in [flood, neighbour] {
        alone.osd.shared.links.insert(link, Peer::Client(ClientLink::new(ClientId(link.0), None)));
    }
    let other = ObjectKey { layer: other_volume.first_layer(), ..KEY };
    let zero =
        |alone: &Alone, key, block| alone.request(&BlockRange::one(key, block)).encode(Kind::Zero).to_vec();
    let of_other = zero(&alone, other, 0);
    let of_one: Vec<Vec<u8>> = (0..200).map(|block| zero(&alone, KEY, block)).collect();
    let (all, each) = (of_one.concat(), of_one[0].len());
    let brings = |alone: &mut Alone, link, bytes: &[u8]| {
        let Alone { osd, io, now } = alone;
        osd.handle_bytes(*now, link, bytes, io).unwrap()
    };
    assert!(!brings(&mut alone, neighbour, &of_other).is_stalled);
    let begun = brings(&mut alone, flood, &all);
    assert!(begun.is_stalled && (10 * each..60 * each).contains(&begun.consumed), "{begun:?}");
    let next_at = alone.osd.shared.rates.mclock.next_at.unwrap();
    assert!(
        next_at > alone.now && alone.osd.next_timeout() <= next_at,
        "what does not end counts no more by then"
    );
    // As much is under way as may be, and it asked for less.
    assert!(brings(&mut alone, neighbour, &of_other).is_stalled);
    alone.run();
    assert!(!brings(&mut alone, neighbour, &of_other).is_stalled);
    assert!(brings(&mut alone, flood, &all[begun.consumed..]).consumed > 0);
}
