//! Mends, with members that the tests speak for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::context::Shared;
use crate::group::PendingQuery;
use crate::group::position::{Difference, MemberPosition};
use crate::group::role::Repairing;
use crate::heal::scrub;
use crate::io::reads_data;
use crate::ledger::StagedRecord;
use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME, ack};
use base::map::OsdInfo;
use base::{LogEntry, ObjectKey};
use std::sync::Arc;
use store::RecordKind;
use wire::{Kind, Message, Replicate};

/// A pair whose primary has one block, which is full of that.
fn written(content: u8) -> Pair {
    let mut pair = Pair::new();
    let write = pair.write_of(10, content);
    pair.ask(&write);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Ok));
    pair
}

/// The same, and the place of its drive gives back something else.
fn damaged() -> Pair {
    let mut pair = written(7);
    rots(&mut pair.alone, 10);
    pair
}

#[test]
fn a_block_that_does_not_verify_is_read_from_a_sound_copy_and_written_anew() {
    let mut pair = damaged();
    pair.block = Some(vec![7; BLOCK_BYTES]);
    let read = pair.request(10).encode(Kind::Read);
    pair.ask(&read);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Ok));
    let damage = pair.alone.osd.view().damage();
    assert_eq!((damage.found, damage.mended), (1, 1));
    assert!(pair.alone.osd.router.mends.is_idle());
}

#[test]
fn who_verifies_what_it_reads_is_given_it_as_it_is_and_has_it_mended_by_asking_again() {
    let mut pair = damaged();
    pair.block = Some(vec![7; BLOCK_BYTES]);
    let request = pair.request(10);
    pair.ask(&wire::Request { unverified: true, ..request }.encode(Kind::Read));
    pair.run();
    let given = pair.alone.io.told(LinkId(99), |message| match message {
        Message::Reply(reply) => Some((reply.head.status, reply.checksums[0].get() == crc32c(reply.data))),
        _ => None,
    });
    assert_eq!(given, [(Status::Ok, false)], "its checksum is the writer's, and does not fit");
    assert_eq!(pair.alone.osd.view().damage().found, 0, "nobody looked");
    pair.ask(&request.encode(Kind::Read));
    pair.run();
    let given = pair.alone.io.told(LinkId(99), |message| match message {
        Message::Reply(reply) => Some((reply.head.status, reply.data == [7; BLOCK_BYTES])),
        _ => None,
    });
    assert_eq!(given, [(Status::Ok, true)]);
    assert_eq!(pair.alone.osd.view().damage().mended, 1);
}

#[test]
fn a_mend_for_which_there_is_no_room_right_now_is_done_when_there_is() {
    let mut pair = damaged();
    pair.block = Some(vec![7; BLOCK_BYTES]);
    // As if as many writes were under way as may be.
    let are_under_way = |pair: &mut Pair, count| {
        pair.alone.osd.shared.groups[0].standing.primary_mut().unwrap().under_way = count;
    };
    let most = pair.alone.osd.store().in_flight_max();
    let available = pair.alone.osd.shared.disk.small.available();
    are_under_way(&mut pair, most);
    let read = pair.request(10).encode(Kind::Read);
    assert_eq!(pair.ask(&read), None);
    pair.turns(10);
    assert_eq!(pair.told(), None, "nobody can tell yet");
    are_under_way(&mut pair, 0);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Ok));
    assert_eq!(pair.alone.osd.view().damage().mended, 1);
    assert!(pair.alone.osd.router.mends.is_idle());
    let left = pair.alone.osd.shared.disk.small.available();
    assert_eq!(left, available, "no memory is kept");
}

#[test]
fn what_a_member_answers_in_its_place_counts_only_if_it_matches_the_index() {
    let mut pair = damaged();
    pair.block = Some(vec![8; BLOCK_BYTES]);
    let read = pair.request(10).encode(Kind::Read);
    pair.ask(&read);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Damaged));
    assert_eq!(pair.alone.osd.view().damage().mended, 0);
}

#[test]
fn a_sound_copy_that_is_garbled_on_its_way_is_asked_for_again() {
    let mut pair = damaged();
    (pair.block, pair.garbles) = (Some(vec![7; BLOCK_BYTES]), true);
    let read = pair.request(10).encode(Kind::Read);
    pair.ask(&read);
    pair.run();
    assert_ne!(pair.told(), Some(Status::Damaged));
    assert!(pair.alone.osd.lost_blocks().is_empty());
    pair.garbles = false;
    // Who could not be asked is asked again a while later.
    pair.run();
    pair.run();
    pair.ask(&read);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Ok));
}

/// The one block whose copies are compared.
const BLOCK: BlockRange = BlockRange {
    key: ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 },
    first_block: 10,
    block_count: 1,
};

/// What an OSD tells of its copy, as it comes at the other end.
fn told(alone: &mut Alone, epoch: Epoch) -> Currency {
    let inquiry = Inquiry { request: 1, range: BLOCK, epoch };
    alone.with(|_, cx| currency_in(&found(cx.disk, &inquiry, Status::Ok)))
}

/// Whether a copy of which somebody tells that counts at an OSD.
fn counts(alone: &mut Alone, theirs: Currency) -> bool {
    let other = alone.connect(OsdId(2));
    alone.with(|_, cx| {
        let purpose = Purpose::Mend(MendReason::Damaged);
        let id = cx.operations.add_for(OperationKind::Mend, purpose, 0, BLOCK);
        let is_current = is_current(cx, id, other, theirs);
        cx.forget(id);
        is_current
    })
}

#[test]
fn a_copy_counts_by_the_write_that_brought_it_and_not_by_mends_of_it() {
    let (mut alone, epoch) = (Alone::new(), Epoch(9));
    alone.order(BLOCK.key, 10, 1, 7);
    let written = told(&mut alone, epoch);
    let Currency::Of(last) = written else { panic!("{written:?}") };
    assert!(counts(&mut alone, written) && counts(&mut alone, Currency::Through(last.sequence)));
    assert!(!counts(&mut alone, Currency::Through(Sequence(last.sequence.0 - 1))));
    let of_epoch = |epoch| Currency::Of(LastWrite { epoch, ..last });
    assert!(counts(&mut alone, of_epoch(None)) && !counts(&mut alone, of_epoch(Some(Epoch(77)))));
    // It is the same whether the mend was done here, there, or at both.
    alone.order(BLOCK.key, 10, 1, REPAIR | MEND);
    assert_eq!(told(&mut alone, epoch), written);
    assert!(counts(&mut alone, written));
    // And when the log tells of neither any more.
    alone.age_log();
    let aged = told(&mut alone, epoch);
    assert!(matches!(aged, Currency::Through(through) if through > last.sequence), "{aged:?}");
    assert!(counts(&mut alone, aged) && counts(&mut alone, written));
    alone.order(BLOCK.key, 10, 1, REPAIR | MEND);
    assert!(counts(&mut alone, aged) && counts(&mut alone, written));
    // A write is no mend.
    alone.order(BLOCK.key, 10, 1, 8);
    assert!(!counts(&mut alone, aged) && !counts(&mut alone, written));
}

#[test]
fn whether_a_copy_counts_the_log_tells_where_the_index_has_rounded() {
    let (mut alone, epoch) = (Alone::new(), Epoch(9));
    alone.order(BLOCK.key, 11, 1, 7);
    // So far on that sequences of one object are told in steps.
    alone.with(|_, cx| {
        let (epoch, token) = (cx.groups[0].epoch, cx.ledger.next_token());
        let mark = Sequence(cx.disk.end_of(PG).0 + 70_000);
        cx.disk.store.stage_mark(RecordKind::Mark, PG, 1, epoch, mark, token).unwrap();
        cx.note_staged(0, StagedRecord::Left);
    });
    alone.run();
    alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
    alone.run();
    alone.order(BLOCK.key, 10, 1, 8);
    let written = told(&mut alone, epoch);
    assert!(matches!(written, Currency::Of(_)) && counts(&mut alone, written), "{written:?}");
    // Later it is sure of that, and rounding makes it no later than its log begins.
    alone.age_log();
    let aged = told(&mut alone, epoch);
    assert!(matches!(aged, Currency::Through(_)) && counts(&mut alone, aged), "{aged:?}");
}

#[test]
fn who_knows_of_a_later_epoch_than_the_registry_tells_nothing_of_how_current_it_is() {
    let mut alone = Alone::new();
    alone.order(BLOCK.key, 10, 1, 7);
    let (known, _) = alone.osd.store().pg_position(PG).unwrap();
    assert!(matches!(told(&mut alone, known), Currency::Of(_)));
    assert_eq!(told(&mut alone, Epoch(known.0 - 1)), Currency::Through(Sequence(0)));
}

#[test]
fn a_group_wants_a_sound_copy_until_somebody_who_did_not_answer_brings_it() {
    let mut pair = damaged();
    (pair.block, pair.garbles) = (Some(vec![7; BLOCK_BYTES]), true);
    assert!(pair.alone.osd.groups_in_want().is_empty());
    let read = pair.request(10).encode(Kind::Read);
    pair.ask(&read);
    pair.run();
    assert_eq!(pair.alone.osd.groups_in_want(), [PG]);
    assert!(pair.alone.osd.lost_blocks().is_empty(), "it may be had");
    pair.garbles = false;
    pair.turns(80);
    pair.ask(&read);
    pair.run();
    assert!(pair.alone.osd.groups_in_want().is_empty());
}

#[test]
fn what_a_group_wants_it_wants_in_the_next_epoch_too_and_asks_for_without_a_read() {
    let mut pair = damaged();
    (pair.block, pair.garbles) = (Some(vec![7; BLOCK_BYTES]), true);
    let read = pair.request(10).encode(Kind::Read);
    pair.ask(&read);
    pair.run();
    for is_had in [false, true] {
        pair.garbles = !is_had;
        // The replica stands where this OSD does: nothing is repaired.
        pair.entries = pair.alone.osd.store().pg_log(PG).collect();
        pair.alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
        pair.turns(100);
        assert!(pair.alone.osd.shared.groups[0].is_active());
        assert_eq!(pair.alone.osd.groups_in_want().is_empty(), is_had);
    }
    assert_eq!(pair.alone.osd.view().damage().mended, 1);
}

#[test]
fn a_block_that_nobody_has_is_lost_until_it_is_written_anew() {
    let mut pair = damaged();
    let read = pair.request(10).encode(Kind::Read);
    pair.ask(&read);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Damaged));
    assert_eq!(pair.alone.osd.lost_blocks().len(), 1);
    let write = pair.write_of(10, 9);
    pair.ask(&write);
    pair.run();
    assert_eq!(pair.told(), Some(Status::Ok));
    assert!(pair.alone.osd.lost_blocks().is_empty());
}

/// An OSD of which a block does not verify, in a group that these others are to be in too. No map shows them.
fn rotten(others: &[u32]) -> Alone {
    let mut alone = Alone::new();
    alone.order(BLOCK.key, 10, 2, 0);
    rots(&mut alone, 10);
    let target = [&[0][..], others].concat();
    alone.osd.shared.groups[0].wanted.target = target.into_iter().map(OsdId).collect();
    alone
}

/// The drive gives back something else than a block holds; after the second time it is what it was.
fn rots(alone: &mut Alone, block: u16) {
    let place = alone.osd.shared.disk.location_of(BLOCK.key, block).unwrap();
    alone.io.disk[place.0 as usize * BLOCK_BYTES] ^= 1;
}

/// A mend begins, and the drive says what it has.
fn is_to_be_mended(alone: &mut Alone, block: u16, reason: MendReason) {
    alone.with(|_, cx| cx.mend(0, BLOCK.key, block, reason));
    alone.drive_answers();
}

/// What an OSD was asked for since the last time.
fn asked(alone: &mut Alone, link: LinkId) -> Vec<Inquiry> {
    alone.io.told(link, |message| if let Message::Fetch(inquiry) = message { Some(inquiry) } else { None })
}

fn asked_once(alone: &mut Alone, link: LinkId) -> Inquiry {
    let asked = asked(alone, link);
    assert_eq!(asked.len(), 1, "{asked:?}");
    asked[0]
}

fn found_of(inquiry: Inquiry, status: Status, through: Sequence) -> Found {
    Found { inquiry, status, through, written_in: None }
}

/// An OSD answers that, with the data if there are any.
fn answers(alone: &mut Alone, link: LinkId, found: Found, data: &[u8]) {
    let mut bytes = found.encode(!data.is_empty()).to_vec();
    if !data.is_empty() {
        bytes.extend(crc32c(data).to_le_bytes());
        bytes.extend_from_slice(data);
    }
    alone.osd.handle_bytes(alone.now, link, &bytes, &mut alone.io).unwrap();
    alone.settles();
}

/// The checksum of a block here, if it is there.
fn held(alone: &Alone, block: u16) -> Option<u32> {
    let mut held = None;
    alone.osd.store().for_each_block(&BLOCK.key, |other, checksum, _| {
        if other == block {
            held = Some(checksum);
        }
    });
    held
}

fn sum_of(content: u8) -> Option<u32> {
    Some(crc32c(&[content; BLOCK_BYTES]))
}

const TOLD_APART: [&str; 3] = [
    "mend: a learner has it",
    "fetch: what is not in sync may be older, or come to nothing",
    "mend: a member answers with something else",
];

#[test]
fn members_are_asked_one_after_the_other_each_once_and_the_least_sure_answer_counts() {
    let (damaged, unread, nothing) = (Status::Damaged, Status::DeviceFailed, Status::NotActive);
    for (is_second_known, first, last, is_lost) in [
        (false, damaged, damaged, true),
        (true, damaged, damaged, false),
        (false, unread, damaged, false),
        (false, damaged, unread, false),
        (false, damaged, nothing, false),
    ] {
        let mut alone = rotten(&[1, 2, 3]);
        // Who is to be a member, and was one before.
        alone.osd.shared.groups[0].config.learners = vec![OsdId(3)];
        if is_second_known {
            // It is down, and expected to come back.
            let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
            map.osds.insert(OsdId(2), OsdInfo::default());
        }
        let links = [1, 3].map(|osd| alone.connect(OsdId(osd)));
        is_to_be_mended(&mut alone, 10, MendReason::Damaged);
        for (link, status) in links.into_iter().zip([first, last]) {
            let inquiry = asked_once(&mut alone, link);
            assert_eq!(inquiry.range, BLOCK);
            assert!(!alone.osd.router.mends.is_idle());
            answers(&mut alone, link, found_of(inquiry, status, Sequence(0)), &[]);
        }
        assert!(links.into_iter().all(|link| asked(&mut alone, link).is_empty()), "nobody is asked twice");
        assert!(alone.osd.router.mends.is_idle());
        assert_eq!(alone.osd.groups_in_want(), [PG]);
        assert_eq!(alone.osd.lost_blocks().len(), usize::from(is_lost), "{first:?}, {last:?}");
        assert_eq!(TOLD_APART.map(|name| alone.passed(name)), [0; 3]);
        let view = alone.osd.view();
        assert_eq!((view.operations_in_flight(), view.damage().mended), (0, 0));
    }
}

#[test]
fn a_copy_of_who_is_not_in_sync_counts_if_it_is_of_the_last_write_and_what_was_written() {
    let (right, wrong, none): (&[u8], &[u8], &[u8]) = (&[10; BLOCK_BYTES], &[11; BLOCK_BYTES], &[]);
    for (data, behind, told_apart) in
        [(right, 0, [1, 0, 0]), (right, 1, [0, 1, 0]), (wrong, 0, [0, 0, 1]), (none, 0, [0, 0, 1])]
    {
        let mut alone = rotten(&[1]);
        let link = alone.connect(OsdId(1));
        let changed = alone.osd.store().changed(&BLOCK.key, 10).unwrap();
        is_to_be_mended(&mut alone, 10, MendReason::Damaged);
        let inquiry = asked_once(&mut alone, link);
        answers(&mut alone, link, found_of(inquiry, Status::Ok, Sequence(changed.0 - behind)), data);
        assert_eq!(TOLD_APART.map(|name| alone.passed(name)), told_apart);
        let is_mended = told_apart[0] == 1;
        assert_eq!(alone.osd.view().damage().mended, u64::from(is_mended));
        assert_eq!(alone.osd.lost_blocks().len(), usize::from(!is_mended));
        let last = alone.osd.store().pg_log(PG).next_back().unwrap();
        assert_eq!((last.first_block, last.origin), (10, if is_mended { REPAIR | MEND } else { 0 }));
        assert_eq!(held(&alone, 10), sum_of(10), "it is what was written last in any case");
    }
}

#[test]
fn an_answer_is_taken_from_whom_it_was_asked_for_and_to_what() {
    let mut alone = rotten(&[1]);
    let [link, other] = [1, 2].map(|osd| alone.connect(OsdId(osd)));
    let changed = alone.osd.store().changed(&BLOCK.key, 10).unwrap();
    is_to_be_mended(&mut alone, 10, MendReason::Damaged);
    let (inquiry, data) = (asked_once(&mut alone, link), [10; BLOCK_BYTES]);
    let found = found_of(inquiry, Status::Ok, changed);
    let to_another = Inquiry { request: inquiry.request + 1, ..inquiry };
    answers(&mut alone, other, found, &data);
    answers(&mut alone, link, Found { inquiry: to_another, ..found }, &data);
    assert!(!alone.osd.router.mends.is_idle() && alone.osd.view().damage().mended == 0);
    for _ in 0..2 {
        answers(&mut alone, link, found, &data);
        assert!(alone.osd.router.mends.is_idle() && alone.osd.view().damage().mended == 1);
    }
}

#[test]
fn who_does_not_answer_for_long_or_whose_link_ends_is_not_waited_for() {
    let given_up = |alone: &mut Alone, now: Instant| {
        alone.now = now;
        alone.with(|router, cx| router.mends.advance(cx));
        (alone.osd.router.mends.fetching.len(), alone.passed("mend: a member does not answer"))
    };
    let mut alone = rotten(&[1]);
    rots(&mut alone, 11);
    let (link, begun_at) = (alone.connect(OsdId(1)), alone.now);
    is_to_be_mended(&mut alone, 10, MendReason::Damaged);
    alone.now = alone.now + Duration::from_secs(1);
    is_to_be_mended(&mut alone, 11, MendReason::Damaged);
    assert_eq!(given_up(&mut alone, begun_at + FETCH_MAX - Duration::from_nanos(1)), (2, 0));
    assert_eq!(given_up(&mut alone, begun_at + FETCH_MAX), (1, 1));
    alone.osd.shared.links.forget(link);
    assert_eq!(given_up(&mut alone, begun_at + FETCH_MAX), (0, 2));
    assert!(alone.osd.lost_blocks().is_empty() && alone.osd.groups_in_want() == [PG]);
    assert_eq!(alone.osd.view().operations_in_flight(), 0);
    // What was asked for in an epoch that is over nobody waits for.
    let mut alone = rotten(&[1]);
    let (_, now) = (alone.connect(OsdId(1)), alone.now);
    is_to_be_mended(&mut alone, 10, MendReason::Damaged);
    assert_eq!(given_up(&mut alone, now), (1, 0));
    alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
    assert_eq!(given_up(&mut alone, now), (0, 0));
}

#[test]
fn a_block_is_mended_once_behind_what_is_under_way_and_before_all_that_waits() {
    use OperationKind::{Check, Mend, Read};
    let mut alone = rotten(&[]);
    let in_line = |alone: &Alone| -> Vec<(OperationKind, bool)> {
        let Shared { lines, operations, .. } = &alone.osd.shared;
        let kind_of = |id| operations.get(id).unwrap().kind;
        lines.on(BLOCK).map(|(id, is_under_way)| (kind_of(id), is_under_way)).collect()
    };
    let begin = |alone: &mut Alone| {
        alone.with(|router, cx| router.mends.begin(cx, 0, BLOCK, MendReason::Damaged));
    };
    let [check, read, other] = [Check, Read, Read]
        .map(|kind| alone.with(|_, cx| cx.operations.add_for(kind, Purpose::Deletion, 0, BLOCK)));
    alone.with(|_, cx| cx.hold(check));
    alone.with(|_, cx| cx.put_back(read));
    begin(&mut alone);
    assert_eq!(in_line(&alone), [(Check, true), (Mend, false), (Read, false)]);
    // One that met the damage meanwhile goes before what waits, and it before that.
    alone.with(|_, cx| cx.put_back(other));
    begin(&mut alone);
    assert_eq!(in_line(&alone), [(Check, true), (Mend, false), (Read, false), (Read, false)]);
    alone.with(|_, cx| scrub::end_check(cx, check, 0));
    for _ in 0..2 {
        assert_eq!(in_line(&alone), [(Mend, true), (Read, false), (Read, false)]);
        begin(&mut alone);
    }
    assert_eq!(alone.io.drive.iter().filter(|(token, ..)| reads_data(*token)).count(), 1);
}

#[test]
fn what_is_written_or_zeroed_anew_while_it_is_read_needs_no_mend() {
    for is_zero in [false, true] {
        let mut pair = damaged();
        pair.acknowledges = false;
        let read = pair.request(10).encode(Kind::Read);
        assert_eq!(pair.ask(&read), None);
        let zero = pair.request(10).encode(Kind::Zero).to_vec();
        let change = if is_zero { zero } else { pair.write_of(10, 8) };
        assert_eq!(pair.ask(&change), None);
        pair.turns(5);
        assert_eq!(pair.alone.passed("mend: damaged here"), 0, "it waits for what is under way");
        pair.acknowledges = true;
        let all = ack(pair.received);
        pair.hears(&all);
        pair.run();
        let told = pair.alone.io.told(LinkId(99), |message| match message {
            Message::Reply(reply) => Some((reply.head.status, reply.data.first().copied())),
            _ => None,
        });
        assert_eq!(told, [(Status::Ok, None), (Status::Ok, (!is_zero).then_some(8))]);
        assert_eq!(pair.alone.passed("mend: damaged here"), 1);
        let view = pair.alone.osd.view();
        assert_eq!((view.damage().found, view.damage().mended, view.operations_in_flight()), (1, 0, 0));
    }
}

#[test]
fn what_this_osd_holds_or_another_that_is_right_is_written_to_all_members() {
    let (other, outvoted) = (MendReason::OtherDamaged, MendReason::Outvoted(REPLICA));
    for (reason, block, expected, origin) in [
        (other, 10, sum_of(7), REPAIR | MEND),
        (other, 20, None, REPAIR | MEND),
        (outvoted, 10, sum_of(8), REPAIR),
        (outvoted, 20, sum_of(8), REPAIR),
    ] {
        let mut pair = written(7);
        pair.block = Some(vec![8; BLOCK_BYTES]);
        let (received, available) = (pair.received, pair.alone.osd.shared.disk.small.available());
        pair.alone.with(|_, cx| cx.mend(0, BLOCK.key, block, reason));
        pair.run();
        assert_eq!((pair.received, held(&pair.alone, block)), (received + 1, expected), "{reason:?}");
        let last = pair.alone.osd.store().pg_log(PG).next_back().unwrap();
        assert_eq!((last.first_block, last.origin), (block, origin), "{reason:?}");
        let view = pair.alone.osd.view();
        assert_eq!((view.damage().mended, view.operations_in_flight()), (1, 0));
        assert_eq!(pair.alone.osd.shared.disk.small.available(), available, "no memory is kept for it");
    }
}

#[test]
fn what_most_members_lack_goes_here_too() {
    let mut pair = written(7);
    pair.alone.with(|_, cx| cx.mend(0, BLOCK.key, 10, MendReason::Outvoted(REPLICA)));
    let inquiry = asked_once(&mut pair.alone, pair.link);
    pair.hears(&found_of(inquiry, Status::Ok, Sequence(0)).encode(false));
    pair.run();
    assert_eq!((held(&pair.alone, 10), pair.alone.osd.view().damage().mended), (None, 1));
}

#[test]
fn who_is_outvoted_keeps_what_it_has_when_the_other_does_not_answer_with_what_that_has() {
    // It is not there, it cannot read it, and what it says is garbled on its way.
    for (osd, block, garbles) in
        [(OsdId(9), Some(8), false), (REPLICA, None, false), (REPLICA, Some(8), true)]
    {
        let mut pair = written(7);
        pair.block = block.map(|content| vec![content; BLOCK_BYTES]);
        pair.garbles = garbles;
        let received = pair.received;
        pair.alone.with(|_, cx| cx.mend(0, BLOCK.key, 10, MendReason::Outvoted(osd)));
        pair.run();
        assert_eq!((pair.received, held(&pair.alone, 10)), (received, sum_of(7)), "{osd}");
        assert!(pair.alone.osd.groups_in_want().is_empty(), "what is here is sound");
        assert_eq!(pair.alone.osd.view().operations_in_flight(), 0);
        let write = pair.write_of(10, 9);
        pair.ask(&write);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok), "nothing holds it back");
    }
}

#[test]
fn a_block_that_the_drive_gives_after_all_is_not_wanted_any_more() {
    let mut alone = rotten(&[1]);
    let link = alone.connect(OsdId(1));
    is_to_be_mended(&mut alone, 10, MendReason::Damaged);
    let inquiry = asked_once(&mut alone, link);
    answers(&mut alone, link, found_of(inquiry, Status::NotActive, Sequence(0)), &[]);
    assert_eq!(alone.osd.groups_in_want(), [PG]);
    rots(&mut alone, 10);
    alone.with(|_, cx| cx.damage.ask_again(PG));
    alone.run();
    assert!(alone.osd.groups_in_want().is_empty() && asked(&mut alone, link).is_empty());
    let view = alone.osd.view();
    assert_eq!((view.damage().mended, view.operations_in_flight()), (0, 0));
    assert!(!alone.with(|_, cx| cx.must_wait(&BLOCK)));
}

#[test]
fn what_waits_for_a_mend_begins_at_once_when_nobody_has_the_block() {
    let mut alone = rotten(&[1]);
    let link = alone.connect(OsdId(1));
    is_to_be_mended(&mut alone, 10, MendReason::Damaged);
    let inquiry = asked_once(&mut alone, link);
    alone.with(|_, cx| {
        let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, BLOCK);
        cx.wait(id);
    });
    let found = found_of(inquiry, Status::Damaged, Sequence(0)).encode(false);
    alone.osd.handle_bytes(alone.now, link, &found, &mut alone.io).unwrap();
    assert_eq!(alone.osd.shared.groups[0].standing.primary().unwrap().under_way, 1);
    alone.settles();
    assert_eq!((held(&alone, 10), alone.osd.view().operations_in_flight()), (None, 0));
}

#[test]
fn what_another_member_holds_where_this_one_cannot_read_becomes_everybodys() {
    let mut pair = damaged();
    // The write of that block, which the replica lacks.
    let mut log: Vec<LogEntry> = pair.alone.osd.store().pg_log(PG).collect();
    assert_eq!(log.pop().map(|entry| entry.first_block), Some(10));
    (pair.entries, pair.block) = (log, Some(vec![8; BLOCK_BYTES]));
    pair.alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
    pair.turns(100);
    assert!(pair.alone.osd.shared.groups[0].is_active());
    let adopted = "peering: what another member has where this one cannot read is taken";
    assert_eq!((pair.alone.passed(adopted), held(&pair.alone, 10)), (1, sum_of(8)));
    let last = pair.alone.osd.store().pg_log(PG).rfind(|entry| entry.is_about(&BLOCK.key, 10)).unwrap();
    assert_eq!(last.origin, REPAIR, "it is news to this one");
    assert!(pair.alone.osd.groups_in_want().is_empty());
}

/// What the members of a pair differ in is its block, by a write that the replica does not know. The primary cannot read it, and the
/// replica was asked for the same: it has something else there. What it is asked for then is what it has.
fn adopts() -> (Pair, Inquiry, u64) {
    let mut pair = damaged();
    let mut entries: Vec<LogEntry> = pair.alone.osd.store().pg_log(PG).collect();
    let origin = entries.pop().unwrap().origin | REPAIR;
    let last_sequence = entries.last().map_or(Sequence(0), |entry| entry.sequence);
    let (log_begins, is_incomplete, may_lack_tail) = (Sequence(0), false, false);
    let other =
        MemberPosition { osd: REPLICA, last_sequence, log_begins, is_incomplete, may_lack_tail, entries };
    pair.asks_its_members();
    pair.alone.with(|_, cx| {
        let difference = Difference { range: BLOCK, origin };
        let queue = [difference].into();
        let repairing = Repairing { queue, current: None, mark_is_due: false, others: vec![other] };
        cx.groups[0].standing.differences_are_known(cx.disk.end_of(PG).next(), repairing);
        repair::next(cx, 0);
    });
    pair.alone.io.to.clear();
    pair.alone.drive_answers();
    let inquiry = asked_once(&mut pair.alone, pair.link);
    let found = found_of(inquiry, Status::Ok, Sequence(0));
    answers(&mut pair.alone, pair.link, found, &[8; BLOCK_BYTES]);
    let inquiry = asked_once(&mut pair.alone, pair.link);
    (pair, inquiry, origin)
}

#[test]
fn what_a_member_did_not_answer_is_not_taken_for_lost_when_another_content_is_to_be_adopted() {
    let unanswered = [Status::NotActive, Status::DeviceFailed, Status::Damaged];
    for (status, is_lost) in unanswered.into_iter().zip([false, false, true]) {
        let (mut pair, inquiry, _) = adopts();
        answers(&mut pair.alone, pair.link, found_of(inquiry, status, Sequence(0)), &[]);
        assert_eq!(pair.alone.osd.shared.groups[0].is_active(), is_lost, "{status:?}");
    }
    // It takes too long.
    let (mut pair, ..) = adopts();
    pair.alone.now = pair.alone.now + FETCH_MAX;
    pair.alone.with(|router, cx| router.mends.advance(cx));
    assert!(!pair.alone.osd.shared.groups[0].is_active());
}

#[test]
fn an_adoption_that_has_to_come_again_says_of_the_write_what_was_said_before() {
    let (mut pair, inquiry, origin) = adopts();
    // The store takes nothing more right now.
    pair.alone.with(|_, cx| {
        let (modulus, epoch) = (cx.groups[0].modulus, cx.groups[0].epoch);
        let stage = |sequence| {
            let kind = RecordKind::Mark;
            cx.disk.store.stage_mark(kind, PG, modulus, epoch, Sequence(1000 + sequence), u64::MAX - sequence)
        };
        assert!((0..100_000).map(stage).any(|staged| staged.is_err()));
    });
    let found = found_of(inquiry, Status::Ok, Sequence(0));
    let mut bytes = found.encode(true).to_vec();
    bytes.extend(crc32c(&[8; BLOCK_BYTES]).to_le_bytes());
    bytes.extend([8; BLOCK_BYTES]);
    pair.alone.with(|router, cx| {
        let Message::Fetched(fetched) = wire::parse(&bytes).unwrap().unwrap().0 else { panic!("it is that") };
        router.mends.handle_fetched(cx, pair.link, &fetched);
    });
    let queue = &pair.alone.osd.shared.groups[0].standing.repairing().unwrap().queue;
    let origins: Vec<u64> = queue.iter().map(|difference| difference.origin).collect();
    assert_eq!(origins, [origin]);
}

#[test]
fn who_becomes_a_member_while_others_are_asked_is_asked_too() {
    let mut alone = rotten(&[1]);
    alone.osd.shared.groups[0].config.learners = vec![OsdId(3)];
    let links = [1, 2, 3].map(|osd| alone.connect(OsdId(osd)));
    is_to_be_mended(&mut alone, 10, MendReason::Damaged);
    let inquiry = asked_once(&mut alone, links[0]);
    alone.osd.shared.groups[0].wanted.target = vec![OsdId(0), OsdId(2)];
    answers(&mut alone, links[0], found_of(inquiry, Status::Damaged, Sequence(0)), &[]);
    for link in [links[1], links[2]] {
        let inquiry = asked_once(&mut alone, link);
        answers(&mut alone, link, found_of(inquiry, Status::Damaged, Sequence(0)), &[]);
    }
    assert!(alone.osd.router.mends.is_idle() && alone.osd.lost_blocks().len() == 1);
}

#[test]
fn nobody_is_told_what_is_here_before_a_split_of_it_is_on_stable_media() {
    let (mut alone, link, epoch) = led();
    let inquiry = Inquiry { request: 1, range: BLOCK, epoch };
    let fetches = |alone: &mut Alone| {
        alone.with(|_, cx| handle_fetch(cx, link, &inquiry));
        alone.drive_answers();
        fetched(alone, link).into_iter().map(|(found, _)| found.status).collect::<Vec<_>>()
    };
    assert_eq!(fetches(&mut alone), [Status::Ok]);
    let group = &mut alone.osd.shared.groups[0];
    (group.staged_count, group.leader) = (1, None);
    assert_eq!(fetches(&mut alone), [Status::NotActive]);
    // It obeys somebody, and is to say where it stands as soon as nothing is staged.
    let group = &mut alone.osd.shared.groups[0];
    (group.leader, group.query) = (Some(OsdId(1)), Some(PendingQuery { link, epoch }));
    assert_eq!(fetches(&mut alone), [Status::NotActive]);
    alone.osd.shared.groups[0].query = None;
    assert_eq!(fetches(&mut alone), [Status::Ok], "something else is staged");
}

/// An OSD with a block of which another one leads the group now: the link to that one, and its epoch.
fn led() -> (Alone, LinkId, Epoch) {
    let mut alone = Alone::new();
    alone.order(BLOCK.key, 10, 2, 0);
    let (link, primary) = (alone.connect(OsdId(1)), OsdId(1));
    let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
    alone.is_led_by(primary, epoch);
    alone.io.to.clear();
    alone.io.is_deaf = true;
    (alone, link, epoch)
}

/// How much memory there is for single blocks, when the network has given back what it sent.
fn available(alone: &mut Alone) -> usize {
    for buffer in std::mem::take(&mut alone.io.unsent) {
        alone.osd.put_buffer(buffer);
    }
    alone.osd.shared.disk.small.available()
}

/// What an OSD was told of blocks since the last time: how that was found, and what they hold.
fn fetched(alone: &mut Alone, link: LinkId) -> Vec<(Found, Vec<u8>)> {
    alone.io.told(link, |message| match message {
        Message::Fetched(fetched) => Some((fetched.head, fetched.data.to_vec())),
        _ => None,
    })
}

#[test]
fn whoever_leads_a_group_is_told_what_blocks_hold_here_and_how_current_that_is() {
    let (mut alone, link, epoch) = led();
    let stranger = alone.connect(OsdId(2));
    rots(&mut alone, 11);
    let currency = |alone: &Alone, block| alone.osd.store().currency(&BLOCK.key, block);
    let nothing = Currency::Through(Sequence(0));
    assert!(currency(&alone, 10) != nothing && currency(&alone, 10) == currency(&alone, 11));
    let (of_10, of_12) = (currency(&alone, 10), currency(&alone, 12));
    let (before, ten) = (available(&mut alone), vec![10; BLOCK_BYTES]);
    for (from, first_block, block_count, status, theirs, data) in [
        (link, 10, 1, Status::Ok, of_10, ten),
        (link, 11, 1, Status::Damaged, of_10, vec![]),
        (link, 12, 1, Status::Ok, of_12, vec![]),
        (link, 10, 2, Status::Damaged, nothing, vec![]),
        (stranger, 10, 1, Status::NotActive, nothing, vec![]),
    ] {
        let range = BlockRange { first_block, block_count, ..BLOCK };
        let inquiry = Inquiry { request: 5, range, epoch };
        alone.osd.handle_bytes(alone.now, from, &inquiry.encode(), &mut alone.io).unwrap();
        alone.drive_answers();
        let told = fetched(&mut alone, from);
        assert_eq!(told.len(), 1);
        let (found, content) = &told[0];
        assert_eq!((found.inquiry, found.status, currency_in(found)), (inquiry, status, theirs));
        assert!(*content == data, "{} bytes of {range:?}", content.len());
    }
    let view = alone.osd.view();
    assert_eq!((view.damage().found, view.operations_in_flight()), (2, 0));
    assert_eq!(available(&mut alone), before, "no memory is kept");
}

#[test]
fn what_is_told_of_a_block_is_of_what_is_sent_also_if_it_changed_while_it_was_read() {
    for is_zero in [false, true] {
        let (mut alone, link, epoch) = led();
        let before = available(&mut alone);
        let inquiry = Inquiry { request: 5, range: BLOCK, epoch };
        alone.osd.handle_bytes(alone.now, link, &inquiry.encode(), &mut alone.io).unwrap();
        let read = std::mem::take(&mut alone.io.drive);
        assert_eq!(read.len(), 1);
        alone.with(|_, cx| {
            let (sequence, data) = (cx.disk.end_of(PG).next(), [8; BLOCK_BYTES]);
            let write = Replicate { range: BLOCK, epoch, sequence, origin: 0 };
            let record = cx.ledger.record(&write, store::Role::Replica);
            let store = &mut cx.disk.store;
            let staged = match is_zero {
                true => store.stage_zero(&record),
                false => store.stage_write(&record, &[U32::new(crc32c(&data))], &data).map(|_| ()),
            };
            staged.unwrap();
            cx.note_staged(0, StagedRecord::Left);
        });
        alone.settles();
        for (token, buffer, result) in read {
            alone.osd.handle_file(alone.now, token, buffer, result, &mut alone.io);
        }
        alone.settles();
        let told = fetched(&mut alone, link);
        let current = alone.osd.store().currency(&BLOCK.key, 10);
        let data = if is_zero { vec![] } else { vec![8; BLOCK_BYTES] };
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].0.status, currency_in(&told[0].0)), (Status::Ok, current));
        assert!(told[0].1 == data, "{} bytes", told[0].1.len());
        assert_eq!(available(&mut alone), before, "no memory is kept");
    }
}

#[test]
fn how_current_a_copy_is_comes_as_it_was_told() {
    let inquiry = Inquiry { request: 1, range: BLOCK, epoch: Epoch(9) };
    let sequence = Sequence(7);
    let of = |written_in| currency_in(&Found { written_in, ..found_of(inquiry, Status::Ok, sequence) });
    assert_eq!(of(None), Currency::Through(sequence));
    for (told, epoch) in [(Epoch(0), None), (Epoch(1), Some(Epoch(1)))] {
        assert_eq!(of(Some(told)), Currency::Of(LastWrite { sequence, epoch }));
    }
}
