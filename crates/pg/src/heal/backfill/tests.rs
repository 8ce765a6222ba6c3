//! Learners that the tests speak for: which ones are brought up to date, and when.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::io::reads_data;
use crate::links::inquiries::UNREAD_BYTES_MAX;
use crate::replication::order;
use crate::testing::{Alone, PG, Pair, VOLUME, ack};
use base::map::{ClusterMap, OsdInfo};
use base::{History, LinkId, crc32c};
use std::sync::Arc;
use wire::{LogState, Message};
use zerocopy::little_endian::U32;

mod one_learner;

#[test]
fn whatever_a_member_has_of_an_earlier_history_is_older_than_what_was_written_in_this_one() {
    let mut alone = Alone::new();
    let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
    let this = History(1);
    alone.begins_anew(this);
    alone.write(key);
    let ObjectKey { layer, object, .. } = key;
    let held = |through| ObjectHeld { layer, object, block_count: 1, has_doubts: 0, through };
    let mut is_behind = |through| alone.with(|_, cx| is_behind(cx, &key, &held(through)));
    assert!(is_behind(Sequence(this.floor().0 - 1)), "however much was written before");
    assert!(!is_behind(this.floor().next().next()));
}

/// An OSD that leads groups in which so many are in sync of the four that are wanted, who are all there.
fn in_sync_with(counts: [u32; 3]) -> Alone {
    let mut alone = Alone::with_groups(3);
    let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
    for other in 1..4 {
        let address = Some(([127, 0, 0, 1], 7000).into());
        map.osds.insert(OsdId(other), OsdInfo { address, ..OsdInfo::default() });
    }
    for other in 1..4 {
        alone.connect(OsdId(other));
    }
    for (group, in_sync) in alone.osd.shared.groups.iter_mut().zip(counts) {
        group.wanted.target = (0..4).map(OsdId).collect();
        group.config.in_sync = (0..in_sync).map(OsdId).collect();
    }
    alone
}

/// How many learners each group has after the next look.
fn begun(alone: &mut Alone) -> Vec<usize> {
    alone.with(|router, cx| router.backfill.advance(cx));
    alone.osd.shared.groups.iter().map(|group| group.learners().len()).collect()
}

#[test]
fn the_most_degraded_groups_are_brought_up_to_date_first() {
    let mut alone = in_sync_with([3, 1, 2]);
    // Four at a time: all three that the group of one copy lacks, one of the two of the next.
    assert_eq!(begun(&mut alone), [0, 3, 1]);
    assert_eq!(alone.osd.router.backfill.learning, [1, 2]);
    assert_eq!(begun(&mut alone), [0, 3, 1], "they stay");
    // One that is wanted no more makes room for another.
    alone.osd.shared.groups[1].wanted.target.pop();
    assert_eq!(begun(&mut alone), [0, 2, 2]);
}

#[test]
fn a_group_that_takes_no_writes_waits_for_no_learners_of_others() {
    let mut alone = in_sync_with([1, 3, 2]);
    assert_eq!(begun(&mut alone), [3, 0, 1]);
    // It lost two of three, and may not write with one.
    alone.osd.shared.groups[1].config.in_sync.truncate(1);
    assert_eq!(begun(&mut alone), [3, 0, 1], "while it may write it waits");
    alone.osd.shared.groups[1].wanted.min_size = 2;
    assert_eq!(begun(&mut alone), [3, 3, 1]);
}

/// A group that is to have one member more, and the link to that.
fn short_of_one() -> (Alone, LinkId) {
    let mut alone = Alone::new();
    let link = lacks_one(&mut alone);
    (alone, link)
}

/// All groups are to have one member more. The link to that stands from now on.
fn lacks_one(alone: &mut Alone) -> LinkId {
    let link = alone.connect(OsdId(1));
    let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
    let address = Some(([127, 0, 0, 1], 7000).into());
    map.osds.insert(OsdId(1), OsdInfo { address, ..OsdInfo::default() });
    for group in alone.osd.shared.groups.iter_mut() {
        group.wanted.target = vec![OsdId(0), OsdId(1)];
    }
    link
}

/// How many learners there are after the next look, when so much is unread.
fn learners(alone: &mut Alone, link: LinkId, unread_bytes: usize) -> usize {
    alone.io.unread.insert(link, unread_bytes);
    alone.with(|router, cx| router.backfill.advance(cx));
    alone.osd.shared.groups[0].learners().len()
}

#[test]
fn a_learner_that_leaves_too_many_bytes_unread_is_given_up_however_few_messages_they_are() {
    let (mut alone, link) = short_of_one();
    assert_eq!(learners(&mut alone, link, 0), 1);
    let session = alone.osd.router.backfill.sessions;
    let peer = alone.osd.shared.links.osd_mut(link).unwrap();
    let sent = ToLearner::Write { blocks: 1024 };
    (0..9).for_each(|_| peer.sends(Awaited::Learner { group: 0, session, sent }));
    assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX), 1, "it takes some of it");
    assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX + 1), 0);
    // Nor is it begun with before it has taken some of it.
    alone.now = alone.now + LEARN_PAUSE;
    alone.osd.shared.links.osd_mut(link).unwrap().since = alone.now;
    assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX + 1), 0);
    assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX), 1);
}

#[test]
fn what_a_member_leaves_unread_that_clients_wrote_to_one_group_does_not_keep_it_from_another() {
    let (mut alone, link) = short_of_one();
    let most = 2 * UNREAD_BYTES_MAX;
    for unread_bytes in [UNREAD_BYTES_MAX + 1, most] {
        assert_eq!(learners(&mut alone, link, unread_bytes), 1, "{unread_bytes} bytes");
    }
    // Nobody was sent so much but who says that it has what it did not read.
    assert_eq!(learners(&mut alone, link, most + 1), 0);
    alone.now = alone.now + LEARN_PAUSE;
    alone.osd.shared.links.osd_mut(link).unwrap().since = alone.now;
    assert_eq!(learners(&mut alone, link, most + 1), 0);
    assert_eq!(learners(&mut alone, link, most), 1);
}

/// The OSD gets these bytes on a link.
fn hears(alone: &mut Alone, link: LinkId, bytes: &[u8]) {
    let Alone { osd, io, now } = alone;
    osd.handle_bytes(*now, link, bytes, io).unwrap();
}

/// A learner says that its log ends where its primary's does, goes back to that sequence, and has these entries.
fn says(alone: &mut Alone, link: LinkId, pg: PgId, log_begins: Sequence, entries: &[LogEntry]) {
    let index = alone.osd.shared.groups.find(pg).unwrap();
    let epoch = alone.osd.shared.groups[index].epoch;
    let (_, last_sequence) = alone.osd.store().pg_position(pg).unwrap();
    let (is_incomplete, may_lack_tail) = (false, false);
    let state = LogState { pg, epoch, last_sequence, log_begins, is_incomplete, may_lack_tail };
    hears(alone, link, &state.encode(entries.iter().copied()));
}

/// It has all that it was sent on stable media.
fn has_all(alone: &mut Alone, link: LinkId) {
    let through = alone.osd.shared.links.osd_mut(link).unwrap().sent;
    hears(alone, link, &ack(through));
}

#[test]
fn logs_tell_what_a_learner_lacks_if_both_go_back_to_the_first_write_or_they_share_an_entry() {
    let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
    for (is_old, log_begins, shared, do_tell) in
        [(false, 0, 0, true), (false, 1, 0, false), (true, 0, 0, false), (true, 0, 1, true)]
    {
        let mut alone = Alone::new();
        alone.write(key);
        if is_old {
            alone.age_log();
        }
        let link = lacks_one(&mut alone);
        assert_eq!(learners(&mut alone, link, 0), 1);
        let log: Vec<LogEntry> = alone.osd.store().pg_log(PG).collect();
        says(&mut alone, link, PG, Sequence(log_begins), &log[log.len() - shared..]);
        has_all(&mut alone, link);
        let asked = alone.io.told(link, |message| matches!(message, Message::ListObjects(_)).then_some(()));
        let scene = format!("old: {is_old}, theirs begins at {log_begins}, {shared} shared");
        assert_eq!(asked.is_empty(), do_tell, "{scene}");
    }
}

#[test]
fn a_learner_that_was_to_be_taken_in_is_not_when_others_may_have_led_since() {
    let (mut alone, link) = short_of_one();
    assert_eq!(learners(&mut alone, link, 0), 1);
    let log: Vec<LogEntry> = alone.osd.store().pg_log(PG).collect();
    says(&mut alone, link, PG, Sequence(0), &log);
    has_all(&mut alone, link);
    let promoted = alone.osd.shared.groups[0].standing.promotion().map(|promotion| promotion.osd);
    assert_eq!(promoted, Some(OsdId(1)), "it lacked nothing");
    // The map passes over an epoch. Whoever led it gave the learner nothing.
    let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
    map.revision += 1;
    map.targets.insert(PG, vec![OsdId(0), OsdId(1)]);
    map.pgs.get_mut(&PG).unwrap().epoch.0 += 2;
    alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    has_all(&mut alone, link);
    let mut turns = 0;
    while !alone.osd.shared.groups[0].is_active() {
        alone.turn();
        let group = &alone.osd.shared.groups[0];
        assert_eq!(group.config.in_sync, [OsdId(0)]);
        turns += 1;
        assert!(turns < 40, "{group:?}");
    }
}

#[test]
fn beside_clients_pushes_are_spaced_out_and_groups_get_them_in_turn() {
    // As many as may be on their way beside clients, in four pushes.
    const BLOCKS: u16 = 64;
    let mut alone = Alone::with_groups(2);
    let data = vec![7; usize::from(BLOCKS) * BLOCK_BYTES];
    let keys = [0, 1].map(|index| {
        let pg = PgId { index, ..PG };
        let is_of = |object: &u32| PgId::of_object(PG.pool, 2, VOLUME, *object) == pg;
        ObjectKey { pg, layer: VOLUME.first_layer(), object: (0..).find(is_of).unwrap() }
    });
    for key in keys {
        alone.with(|_, cx| {
            let group = cx.groups.find(key.pg).unwrap();
            let range = BlockRange { key, first_block: 0, block_count: BLOCKS };
            let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, group, range);
            let checksum = U32::new(crc32c(&data[..BLOCK_BYTES]));
            cx.operations.live(id).checksums.extend([checksum; BLOCKS as usize]);
            assert!(order::write(cx, id, &data));
        });
        alone.run();
    }
    let link = lacks_one(&mut alone);
    alone.with(|router, cx| router.backfill.advance(cx));
    keys.iter().for_each(|key| says(&mut alone, link, key.pg, Sequence(0), &[]));
    let reads = |alone: &Alone| alone.io.drive.iter().filter(|(token, ..)| reads_data(*token)).count();
    alone.with(|_, cx| cx.rates.pace.client_came(cx.now));
    has_all(&mut alone, link);
    assert_eq!(reads(&alone), 1, "the next one is to wait");
    let goes_on = |alone: &mut Alone| {
        alone.now = alone.now + Duration::from_millis(4);
        alone.drive_answers();
        let Alone { osd, io, now } = alone;
        osd.end_turn(*now, io);
        reads(alone)
    };
    assert_eq!([0; 4].map(|_| goes_on(&mut alone)), [1, 1, 1, 0], "no more may be on their way");
    let pushed = alone.io.told(link, |message| match message {
        Message::PushWrite(push) => Some((push.head.range.key, push.head.range.block_count)),
        _ => None,
    });
    assert_eq!(pushed, [keys[0], keys[1], keys[0], keys[1]].map(|key| (key, BLOCKS / 4)), "in turn");
    has_all(&mut alone, link);
    assert_eq!(reads(&alone), 1, "what they have makes room for the next, at once");
}

#[test]
fn the_log_of_a_learner_gets_what_is_under_way_when_it_joins_once_and_in_order() {
    let mut pair = Pair::new();
    // Behind these the next ones take their places in the line in the contrary order.
    for block in 20..23 {
        let write = pair.write_of(block, 7);
        pair.ask(&write);
    }
    pair.run();
    // One that is durable here and not at the replica, and two that are durable nowhere.
    pair.acknowledges = false;
    let write = pair.write_of(10, 7);
    assert_eq!(pair.ask(&write), None);
    pair.turns(5);
    for block in [11, 12] {
        let write = pair.write_of(block, 7);
        assert_eq!(pair.ask(&write), None);
    }
    let alone = &mut pair.alone;
    let learner = OsdId(2);
    let link = alone.connect(learner);
    let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
    let address = Some(([127, 0, 0, 1], 7002).into());
    map.osds.insert(learner, OsdInfo { address, ..OsdInfo::default() });
    alone.osd.shared.groups[0].wanted.target.push(learner);
    alone.with(|router, cx| router.backfill.advance(cx));
    says(alone, link, PG, Sequence(0), &[]);
    let told = alone.io.told(link, |message| match message {
        Message::PushEntry(pushed) => Some(pushed.entry.sequence),
        _ => None,
    });
    let mut expected: Vec<Sequence> = alone.osd.store().pg_log(PG).map(|entry| entry.sequence).collect();
    let last = *expected.last().unwrap();
    expected.extend([last.next(), last.next().next()]);
    assert_eq!(told, expected);
}

#[test]
fn a_zeroing_that_a_learner_has_before_its_primary_hides_no_block_that_it_has_too_many() {
    let mut alone = Alone::new();
    let (learner, key) = (OsdId(1), ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 });
    alone.order(key, 1, 2, 0);
    let address = Some(([127, 0, 0, 1], 7001).into());
    let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
    map.osds.insert(learner, OsdInfo { address, ..OsdInfo::default() });
    let link = alone.connect(learner);
    alone.osd.shared.groups[0].wanted.target = vec![OsdId(0), learner];
    alone.with(|router, cx| router.backfill.advance(cx));
    let epoch = alone.osd.shared.groups[0].epoch;
    let (_, last_sequence) = alone.osd.store().pg_position(PG).unwrap();
    // Its log does not tell what it has.
    let state = LogState {
        pg: PG,
        epoch,
        last_sequence,
        log_begins: Sequence(0),
        is_incomplete: true,
        may_lack_tail: false,
    };
    hears(&mut alone, link, &state.encode(std::iter::empty()));
    let through = alone.osd.shared.links.osd_mut(link).unwrap().sent;
    hears(&mut alone, link, &ack(through));
    // Block 2 is zeroed. The learner has that on stable media, and this OSD does not.
    alone.with(|_, cx| {
        let range = BlockRange::one(key, 2);
        let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
        assert!(order::zero(cx, id));
    });
    let Alone { osd, io, now } = &mut alone;
    osd.end_turn(*now, io);
    // Block 3 was zeroed while the learner was away, which has it still: two of three blocks are left there, as here.
    let held = ObjectHeld {
        layer: VOLUME.first_layer(),
        object: 3,
        block_count: 2,
        has_doubts: 0,
        through: last_sequence,
    };
    assert_eq!(alone.osd.store().block_count(&key), held.block_count);
    hears(&mut alone, link, &Page { pg: PG, epoch, is_last: true }.encode([held].into_iter()));
    let asked = alone.io.told(link, |message| match message {
        Message::ListBlocks(of) => Some(of.key),
        _ => None,
    });
    assert_eq!(asked, [key], "it may have others than these");
    let mut allocated: BlockBits = [0; OBJECT_BLOCKS / 8];
    allocated[0] = 1 << 1 | 1 << 3;
    let (of, doubted) = (ObjectEpoch { key, epoch }, [0; OBJECT_BLOCKS / 8]);
    hears(&mut alone, link, &Blocks { of, allocated: &allocated, doubted: &doubted }.encode());
    alone.run();
    let zeros = alone.io.told(link, |message| match message {
        Message::PushZero(push) => Some(push.range),
        _ => None,
    });
    assert_eq!(zeros, [BlockRange { key, first_block: 2, block_count: 2 }]);
}
