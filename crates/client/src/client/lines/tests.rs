//! The order of operations on the same bytes, and what is said of a write whose answer was lost.

use super::super::tests::{OSD, REACHED, Scene, map, map_with_halves_of, of};
use super::super::{Holding, Outcome};
use crate::error::ClientError;
use base::map::OsdInfo;
use base::{Epoch, OBJECT_BYTES, OsdId, PoolId, Sequence, VolumeId};
use std::sync::Arc;
use wire::{Kind, RefusalDetails, Request, Status};

#[test]
fn a_repeat_says_what_the_group_had_reached_when_it_was_sent_first() {
    let mut scene = Scene::new(Holding::Shared);
    scene.write(1, 0, 4096);
    let (kind, first) = scene.sent_one();
    assert_eq!((kind, first.since), (Kind::Write, None));
    scene.reconnect();
    let (_, again) = scene.sent_one();
    assert_eq!((again.since, again.origin), (Some(REACHED), first.origin));
    // The group goes on meanwhile. That is no news for what was sent before.
    scene.read(2, 8192, 4096);
    let (_, read) = scene.sent_one();
    scene.hear(&wire::Outcome::zeros(read.request, Sequence(90)));
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    scene.write(3, 8192, 4096);
    scene.sent_one();
    scene.reconnect();
    assert_eq!(scene.sent_one().1.since, Some(Sequence(90)));
    scene.wait();
    assert_eq!(scene.sent_one().1.since, Some(REACHED), "it was tried twice, and has a longer pause");
}

#[test]
fn a_write_of_which_nobody_can_tell_fails_where_others_may_write() {
    let mut scene = Scene::new(Holding::Shared);
    scene.write(1, 0, 4096);
    scene.sent_one();
    scene.reconnect();
    let (_, again) = scene.sent_one();
    scene.refuse(&again, Status::OutcomeUnknown, false);
    let Some((1, Outcome::Failed(error @ ClientError::OutcomeUnknown { .. }))) = scene.ended() else {
        panic!("it fails")
    };
    assert!(error.to_string().contains("\"v\""), "{error}");
    assert!(scene.sent().is_empty() && scene.client.is_quiet(), "it is not sent again");
}

#[test]
fn a_write_of_which_nobody_can_tell_is_done_before_what_came_after_it_where_nobody_else_writes() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    let (_, first) = scene.sent_one();
    scene.reconnect();
    let (_, again) = scene.sent_one();
    scene.write(2, 0, 8192);
    scene.read(3, 4095, 1);
    assert_eq!(scene.sent(), [], "both wait for the first");
    scene.write(4, 8192, 4096);
    let (_, elsewhere) = scene.sent_one();
    scene.done(&elsewhere);
    assert_eq!(scene.ended(), Some((4, Outcome::Done)));
    scene.refuse(&again, Status::OutcomeUnknown, false);
    let (kind, anew) = scene.sent_one();
    assert_eq!((kind, anew.origin, anew.since), (Kind::Write, first.origin, None));
    scene.refuse(&again, Status::OutcomeUnknown, false);
    assert_eq!(scene.sent(), [], "an answer counts once");
    scene.done(&anew);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    let (kind, second) = scene.sent_one();
    assert_eq!((kind, second.length), (Kind::Write, 8192), "the read waits for this one too");
    scene.done(&second);
    let (kind, third) = scene.sent_one();
    assert_eq!(kind, Kind::Read);
    scene.done(&third);
    assert_eq!([scene.ended(), scene.ended()], [2, 3].map(|token| Some((token, Outcome::Done))));
    assert!(scene.client.lines.objects.is_empty(), "nothing is kept");
}

#[test]
fn what_is_tried_again_is_not_passed_by_what_comes_after_it() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 512);
    let (_, first) = scene.sent_one();
    scene.refuse(&first, Status::NotActive, true);
    // Other bytes of the same block do not wait, nor those of another object.
    scene.write(2, 512, 512);
    scene.write(3, OBJECT_BYTES, 512);
    assert_eq!(scene.sent().len(), 2);
    scene.write(4, 0, 1024);
    scene.client.submit_allocated(scene.now, of(scene.volume, 5, 0, 4096), &mut scene.io);
    assert_eq!(scene.sent(), []);
    scene.wait();
    let (_, again) = scene.sent_one();
    assert_eq!(again.origin, first.origin);
    scene.done(&again);
    let (kind, fourth) = scene.sent_one();
    assert_eq!((kind, fourth.length), (Kind::Write, 1024));
    scene.done(&fourth);
    assert_eq!(scene.sent_one().0, Kind::Allocated);
}

#[test]
fn an_attempt_that_was_not_begun_is_none() {
    let mut scene = Scene::new(Holding::Shared);
    scene.write(1, 0, 4096);
    let (_, first) = scene.sent_one();
    scene.refuse(&first, Status::NotActive, true);
    scene.wait();
    let (_, second) = scene.sent_one();
    assert_eq!(second.since, None);
    // This one may have been done when the epoch ended.
    scene.refuse(&second, Status::NotActive, false);
    scene.wait();
    let (_, third) = scene.sent_one();
    assert_eq!(third.since, Some(REACHED));
    scene.refuse(&third, Status::NotPrimary, true);
    scene.wait();
    assert_eq!(scene.sent_one().1.since, Some(REACHED), "the one before counts still");
}

/// What an OSD serves in an epoch that the client's map does not show yet may be half of a group, and says nothing of the other.
#[test]
fn what_is_repeated_to_the_half_that_was_split_off_says_what_the_group_had_reached_before() {
    let mut scene = Scene::new(Holding::Shared);
    let [mut whole, mut halves] = [map(), map_with_halves_of(&[0, 1, 2, 3])];
    let of = |object| [&whole, &halves].map(|map| map.pg_of(PoolId(1), VolumeId(5), object).unwrap());
    let [group, _] = of(0);
    let half = |half| (0..16).find(|object| of(*object) == [group, half]).unwrap();
    let [stays, goes] = [group, group.child(4)].map(|pg| u64::from(half(pg)) * OBJECT_BYTES);
    scene.read(1, stays, 1);
    let (_, read) = scene.sent_one();
    let details = RefusalDetails { epoch: Epoch(5), ..RefusalDetails::default() };
    scene.hear(&wire::Outcome::refused(read.request, Status::StaleEpoch, details));
    let (_, read) = scene.sent_one();
    assert_eq!(read.epoch, Epoch(5));
    // Of several maps on their way one comes, from before the split.
    for (map, revision, epoch) in [(&mut whole, 2, 4), (&mut halves, 3, 5)] {
        map.revision = revision;
        map.pgs.values_mut().for_each(|config| config.epoch = Epoch(epoch));
    }
    scene.client.handle_map(scene.now, Arc::new(whole), &mut scene.io);
    scene.hear(&wire::Outcome::zeros(read.request, Sequence(90)));
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    for (token, offset) in [(2, stays), (3, goes)] {
        scene.write(token, offset, 4096);
        scene.sent_one();
    }
    scene.client.handle_map(scene.now, Arc::new(halves), &mut scene.io);
    let (_, gone) = scene.sent_one();
    assert_eq!((gone.key.pg, gone.since), (group.child(4), Some(REACHED)));
    scene.done(&gone);
    scene.reconnect();
    let (_, stayed) = scene.sent_one();
    assert_eq!((stayed.key.pg, stayed.since), (group, Some(Sequence(90))));
}

/// A change that was sent when no map showed the epoch of what it says, and is moved when one has meanwhile.
#[test]
fn what_a_map_shows_before_a_group_is_split_counts_for_the_half_that_was_split_off() {
    let mut scene = Scene::new(Holding::Shared);
    scene.read(1, 0, 1);
    let (_, read) = scene.sent_one();
    let details = RefusalDetails { epoch: Epoch(4), ..RefusalDetails::default() };
    scene.hear(&wire::Outcome::refused(read.request, Status::StaleEpoch, details));
    let (_, read) = scene.sent_one();
    scene.hear(&wire::Outcome::zeros(read.request, Sequence(90)));
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    let [mut whole, mut halves] = [map(), map_with_halves_of(&[0, 1, 2, 3])];
    let moves = |object: &u32| {
        let [before, after] = [&whole, &halves].map(|map| map.pg_of(PoolId(1), VolumeId(5), *object));
        before == whole.pg_of(PoolId(1), VolumeId(5), 0) && before != after
    };
    let object = (0..16).find(moves).unwrap();
    scene.write(2, u64::from(object) * OBJECT_BYTES, 4096);
    scene.sent_one();
    for (map, revision, epoch) in [(&mut whole, 2, 4), (&mut halves, 3, 5)] {
        map.revision = revision;
        map.pgs.values_mut().for_each(|config| config.epoch = Epoch(epoch));
    }
    scene.client.handle_map(scene.now, Arc::new(whole), &mut scene.io);
    scene.client.handle_map(scene.now, Arc::new(halves), &mut scene.io);
    assert_eq!(scene.sent_one().1.since, Some(Sequence(90)));
}

/// The answer to a question how far a group is.
fn answer(question: &Request, reached: Sequence) -> Vec<u8> {
    let mut bytes = wire::Outcome::done(question.request, reached, 128).to_vec();
    bytes.extend([0; 128]);
    bytes
}

#[test]
fn whoever_knows_nothing_of_a_group_asks_before_a_change_that_others_may_overtake() {
    let mut scene = Scene::new(Holding::Shared);
    let group = |object| map().pg_of(PoolId(1), VolumeId(5), object);
    let object = (1..16).find(|object| group(*object) != group(0)).unwrap();
    let offset = u64::from(object) * OBJECT_BYTES;
    scene.write(1, offset, 4096);
    let (kind, question) = scene.sent_one();
    assert_eq!(kind, Kind::Allocated);
    scene.refuse(&question, Status::NotActive, true);
    scene.wait();
    let (kind, question) = scene.sent_one();
    assert_eq!(kind, Kind::Allocated);
    scene.hear(&answer(&question, Sequence(7)));
    let (kind, first) = scene.sent_one();
    assert_eq!((kind, first.since), (Kind::Write, None));
    scene.write(2, offset + 4096, 4096);
    assert_eq!(scene.sent_one().0, Kind::Write, "it is known now");
    scene.reconnect();
    assert_eq!(scene.sent_one().1.since, Some(Sequence(7)));
    scene.wait();
    assert_eq!(scene.sent_one().1.since, Some(Sequence(7)));
    // Where nobody else writes there is nothing to ask.
    let mut alone = Scene::new(Holding::Alone);
    alone.write(1, offset, 4096);
    assert_eq!(alone.sent_one().0, Kind::Write);
}

#[test]
fn what_goes_to_another_primary_keeps_its_order() {
    let mut scene = Scene::new(Holding::Alone);
    // The second of two that touch gets the slot that is before the first one's.
    scene.write(1, 8192, 4096);
    scene.write(2, 0, 4096);
    let (_, before) = scene.sent().remove(0);
    scene.done(&before);
    scene.write(3, 0, 4096);
    scene.sent();
    let mut newer = map();
    newer.revision += 1;
    let other = OsdId(2);
    let address = Some("127.0.0.1:7001".parse().unwrap());
    newer.osds.insert(other, OsdInfo { bytes: 1 << 30, address, ..OsdInfo::default() });
    for config in newer.pgs.values_mut() {
        (config.epoch, config.primary, config.in_sync) = (Epoch(4), other, vec![other, OSD]);
    }
    scene.client.handle_map(scene.now, Arc::new(newer), &mut scene.io);
    scene.greet();
    let (_, first) = scene.sent_one();
    scene.done(&first);
    let (_, second) = scene.sent_one();
    assert!(second.origin != first.origin && second.since.is_some());
    scene.done(&second);
    assert_eq!([1, 2, 3].map(|_| scene.ended().map(|(token, _)| token)), [1, 2, 3].map(Some));
}

#[test]
fn a_question_is_answered_once_and_asked_once_of_a_group_that_has_done_nothing() {
    let mut scene = Scene::new(Holding::Shared);
    // Of another group than the first object is.
    let offset = OBJECT_BYTES;
    scene.write(1, offset, 4096);
    let (kind, question) = scene.sent_one();
    assert_eq!(kind, Kind::Allocated);
    scene.hear(&answer(&question, Sequence(0)));
    let (kind, first) = scene.sent_one();
    assert_eq!((kind, first.since), (Kind::Write, None));
    scene.hear(&answer(&question, Sequence(0)));
    assert_eq!((scene.sent(), scene.ended()), (Vec::new(), None), "that is no answer to the write");
    scene.refuse(&first, Status::NotActive, true);
    scene.wait();
    assert_eq!(scene.sent_one().0, Kind::Write, "it has asked");
    scene.write(2, offset + 4096, 4096);
    let (kind, question) = scene.sent_one();
    assert_eq!(kind, Kind::Allocated, "this one has not");
    scene.hear(&answer(&question, Sequence(1)));
    assert_eq!(scene.sent_one().0, Kind::Write);
    scene.write(3, offset + 8192, 4096);
    assert_eq!(scene.sent_one().0, Kind::Write, "where it stands is known");
}

#[test]
fn a_piece_waits_for_whichever_change_it_touches_and_for_no_neighbour() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 4096, 4096);
    scene.write(2, 16384, 4096);
    for (_, request) in scene.sent() {
        scene.refuse(&request, Status::NotActive, true);
    }
    scene.write(3, 0, 4096);
    scene.write(4, 8192, 8192);
    for (_, request) in scene.sent() {
        scene.done(&request);
    }
    assert_eq!([scene.ended(), scene.ended()], [3, 4].map(|token| Some((token, Outcome::Done))));
    scene.write(5, 20479, 4096);
    assert_eq!(scene.sent(), [], "its first byte is the last one of the second");
    scene.wait();
    let again = scene.sent();
    assert_eq!(again.iter().map(|(_, request)| request.offset).collect::<Vec<_>>(), [4096, 16384]);
    scene.done(&again[0].1);
    assert_eq!(scene.sent(), []);
    scene.done(&again[1].1);
    let (_, last) = scene.sent_one();
    assert_eq!(last.offset, 20479);
    scene.done(&last);
    assert!(scene.client.lines.objects.is_empty(), "nothing is kept");
}

#[test]
fn a_read_that_is_tried_again_holds_nobody_and_a_change_that_ends_leaves_nothing_behind() {
    let mut scene = Scene::new(Holding::Alone);
    scene.read(1, 0, 4096);
    let (_, read) = scene.sent_one();
    scene.refuse(&read, Status::NotActive, true);
    scene.write(2, 0, 4096);
    let (kind, write) = scene.sent_one();
    assert!(kind == Kind::Write && scene.client.lines.objects.is_empty());
    scene.refuse(&write, Status::NotActive, true);
    assert_eq!(scene.client.lines.objects.len(), 1);
    scene.wait();
    for (_, request) in scene.sent() {
        scene.done(&request);
    }
    assert_eq!([scene.ended(), scene.ended()], [1, 2].map(|token| Some((token, Outcome::Done))));
    assert!(scene.client.lines.objects.is_empty());
}
