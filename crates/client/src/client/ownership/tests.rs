//! Volumes that are opened: owned when there is something to change, and given up when another wishes that.

use super::super::tests::{Scene, map, of};
use super::super::{Holding, Notice, Outcome};
use super::{OWNED_MIN, OwnershipStep};
use crate::error::ClientError;
use base::map::{ClusterMap, Stillness, Wish, WishId};
use base::{Generation, VolumeId};
use std::sync::Arc;
use std::time::Duration;
use wire::{Kind, Status};

const VOLUME: VolumeId = VolumeId(5);

fn opened(is_read_only: bool) -> Scene {
    let mut scene = Scene::new(Holding::Alone);
    scene.volume = scene.client.add_opened(VOLUME, is_read_only);
    scene
}

/// The map, of that revision, with that generation of the volume, and a wish for it or none.
fn see(scene: &mut Scene, revision: u64, generation: u32, is_wished: bool) {
    let mut map = ClusterMap { revision, ..map() };
    map.volumes.get_mut(&VOLUME).unwrap().generation = Generation(generation);
    if is_wished {
        map.wishes.entry(VOLUME).or_default().insert(WishId(3), Wish::default());
    }
    scene.client.handle_map(scene.now, Arc::new(map), &mut scene.io);
}

fn step(scene: &mut Scene) -> Option<OwnershipStep> {
    let step = scene.client.poll_ownership(scene.now);
    step.map(|(volume, step)| {
        assert_eq!(volume, scene.volume);
        step
    })
}

/// It is owned under that generation, which the map shows.
fn is_owned(scene: &mut Scene, generation: u32) {
    let mut map = ClusterMap::clone(&scene.client.map);
    map.volumes.get_mut(&VOLUME).unwrap().generation = Generation(generation);
    scene.client.take_map(Arc::new(map));
    scene.client.owned(scene.now, scene.volume, Generation(generation), &mut scene.io);
}

fn time_passes(scene: &mut Scene, by: Duration) {
    scene.now = scene.now + by;
    scene.client.handle_timeout(scene.now, &mut scene.io);
}

#[test]
fn what_is_opened_is_read_at_once_and_owned_from_the_first_change_on() {
    let mut scene = opened(false);
    scene.read(1, 0, 4096);
    let (kind, read) = scene.sent_one();
    assert_eq!((kind, read.generation, step(&mut scene)), (Kind::Read, Generation(1), None));
    scene.done(&read);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    // Others come and go meanwhile.
    see(&mut scene, 2, 4, false);
    scene.write(2, 0, 4096);
    scene.client.submit_zero(scene.now, of(scene.volume, 3, 8192, 4096), &mut scene.io);
    assert_eq!(
        (step(&mut scene), step(&mut scene)),
        (Some(OwnershipStep::Ask { keeps: false }), None),
        "it is asked once"
    );
    scene.read(4, 0, 4096);
    let (kind, read) = scene.sent_one();
    assert_eq!((kind, read.generation), (Kind::Read, Generation(4)), "reads go on");
    scene.done(&read);
    assert_eq!(scene.ended(), Some((4, Outcome::Done)));
    assert!(!scene.client.is_owner(scene.volume) && scene.client.operations_in_flight() == 2);
    is_owned(&mut scene, 5);
    let sent = scene.sent();
    let told: Vec<_> = sent.iter().map(|(kind, request)| (*kind, request.generation)).collect();
    assert_eq!(told, [(Kind::Write, Generation(5)), (Kind::Zero, Generation(5))]);
    for (_, request) in sent {
        scene.done(&request);
    }
    assert_eq!((scene.ended(), scene.ended()), (Some((2, Outcome::Done)), Some((3, Outcome::Done))));
    // While it is owned, changes begin at once, and maps change nothing of the generation.
    see(&mut scene, 3, 6, false);
    scene.write(5, 0, 4096);
    assert_eq!((scene.sent_one().1.generation, step(&mut scene)), (Generation(5), None));
}

#[test]
fn what_waits_for_the_map_that_shows_its_owner_ends_at_its_time_limit_and_people_are_told() {
    let mut scene = opened(false);
    let limit = Duration::from_secs(10);
    scene.client.set_timeout(Some(limit));
    scene.write(1, 0, 4096);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }));
    scene.client.owned(scene.now, scene.volume, Generation(7), &mut scene.io);
    assert!(!scene.client.begins_changes(scene.volume));
    time_passes(&mut scene, super::BLOCKED_AFTER);
    let notice = scene.client.poll_notice();
    assert!(matches!(&notice, Some(Notice::Blocked { why, .. }) if why.contains("the map")), "{notice:?}");
    assert!(scene.client.trouble().is_some_and(|why| why.contains("the map")));
    time_passes(&mut scene, limit - super::BLOCKED_AFTER);
    let ended = scene.ended();
    assert!(matches!(ended, Some((1, Outcome::Failed(ClientError::TimedOut { .. })))), "{ended:?}");
    assert!(matches!(scene.client.poll_notice(), Some(Notice::GivenUp { .. })));
    see(&mut scene, 2, 7, false);
    let notice = scene.client.poll_notice();
    assert!(matches!(notice, Some(Notice::GoesOn { .. })), "{notice:?}");
}

#[test]
fn an_owner_gives_its_volume_up_when_all_that_it_began_has_ended_and_not_before() {
    let mut scene = opened(false);
    scene.write(1, 0, 4096);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }));
    is_owned(&mut scene, 2);
    let (_, first) = scene.sent_one();
    see(&mut scene, 2, 2, true);
    scene.write(2, 8192, 4096);
    let (_, second) = scene.sent_one();
    // It has it for a while in any case.
    assert_eq!(scene.client.next_timeout(), Some(scene.now + OWNED_MIN));
    time_passes(&mut scene, OWNED_MIN);
    scene.write(3, 16384, 4096);
    assert_eq!((scene.sent(), step(&mut scene)), (vec![], None), "no more begin, and two are under way");
    scene.done(&first);
    assert_eq!((scene.ended(), step(&mut scene)), (Some((1, Outcome::Done)), None));
    // It is tried again until it has ended.
    scene.refuse(&second, Status::NotActive, false);
    assert_eq!(step(&mut scene), None);
    scene.wait();
    let (_, again) = scene.sent_one();
    assert_eq!((again.key, again.generation), (second.key, Generation(2)));
    scene.done(&again);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    assert_eq!((step(&mut scene), step(&mut scene)), (Some(OwnershipStep::GiveUp), None));
    scene.client.gave_up(scene.volume);
    assert_eq!(scene.sent(), vec![]);
    // The third still waits, and now it is this one's turn to wish.
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }));
    see(&mut scene, 3, 3, false);
    is_owned(&mut scene, 4);
    assert_eq!(scene.sent_one().1.generation, Generation(4));
}

#[test]
fn an_owner_goes_on_if_nobody_wishes_any_more() {
    let mut scene = opened(false);
    scene.write(1, 0, 4096);
    step(&mut scene);
    is_owned(&mut scene, 2);
    let (_, first) = scene.sent_one();
    see(&mut scene, 2, 2, true);
    time_passes(&mut scene, OWNED_MIN);
    scene.write(2, 8192, 4096);
    assert_eq!(scene.sent(), vec![]);
    see(&mut scene, 3, 2, false);
    let (_, second) = scene.sent_one();
    scene.done(&first);
    scene.done(&second);
    assert_eq!(step(&mut scene), None);
}

#[test]
fn a_volume_of_which_something_may_take_effect_yet_is_fenced_before_it_is_given_up() {
    let mut scene = opened(false);
    scene.client.set_timeout(Some(Duration::from_secs(1)));
    scene.write(1, 0, 4096);
    step(&mut scene);
    is_owned(&mut scene, 2);
    scene.sent_one();
    time_passes(&mut scene, Duration::from_secs(2));
    let ended = scene.ended();
    assert!(matches!(ended, Some((1, Outcome::Failed(ClientError::TimedOut { .. })))), "{ended:?}");
    see(&mut scene, 2, 2, true);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Renew));
    scene.client.begin_renewal(scene.volume);
    time_passes(&mut scene, Duration::from_secs(60));
    assert_eq!(step(&mut scene), None, "that is under way");
    scene.client.not_renewed(scene.volume);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Renew), "and is tried again");
    scene.client.begin_renewal(scene.volume);
    scene.client.reattached(scene.volume, Generation(3));
    scene.client.renewed(scene.now, scene.volume, &mut scene.io);
    assert_eq!(step(&mut scene), Some(OwnershipStep::GiveUp));
}

#[test]
fn changes_fail_whose_volume_another_keeps_and_those_that_come_later_ask_again() {
    let mut scene = opened(false);
    (1..3).for_each(|token| scene.write(token, 0, 4096));
    step(&mut scene);
    scene.client.not_owned(scene.volume, "somebody keeps it");
    for token in 1..3 {
        let Some((ended, Outcome::Failed(error))) = scene.ended() else { panic!("it fails") };
        assert_eq!(ended, token);
        assert!(matches!(error, ClientError::NotOwned { .. }), "{error}");
        assert!(error.to_string().contains("somebody keeps it"), "{error}");
    }
    assert_eq!((step(&mut scene), scene.client.is_quiet()), (None, true));
    scene.write(3, 0, 4096);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }));
}

#[test]
fn changes_that_wait_for_their_volume_end_at_their_time_limit_and_people_are_told_of_whom_it_is_asked() {
    let mut scene = opened(false);
    scene.client.set_timeout(Some(Duration::from_secs(10)));
    scene.write(1, 0, 4096);
    step(&mut scene);
    scene.client.waits_for_owner(scene.volume, Some("pid 7 on beta".to_owned()));
    time_passes(&mut scene, Duration::from_secs(4));
    let Some(Notice::Blocked { operations: 1, why, .. }) = scene.client.poll_notice() else {
        panic!("somebody is told")
    };
    assert!(why.contains("pid 7 on beta"), "{why}");
    scene.write(2, 0, 4096);
    time_passes(&mut scene, Duration::from_secs(6));
    let Some((1, Outcome::Failed(error))) = scene.ended() else { panic!("the first one fails") };
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("pid 7 on beta"), "{error}");
    let told = scene.client.poll_notice();
    assert!(matches!(told, Some(Notice::GivenUp { operations: 1, .. })), "{told:?}");
    is_owned(&mut scene, 2);
    assert!(matches!(scene.client.poll_notice(), Some(Notice::GoesOn { .. })));
    // The second one's limit counts from when it was submitted.
    scene.sent_one();
    time_passes(&mut scene, Duration::from_secs(4));
    assert!(matches!(scene.ended(), Some((2, Outcome::Failed(ClientError::TimedOut { .. })))));
}

#[test]
fn who_opened_a_volume_to_read_it_changes_nothing_and_stands_still_for_nobody() {
    let mut scene = opened(true);
    scene.write(1, 0, 4096);
    assert!(matches!(scene.ended(), Some((1, Outcome::Failed(ClientError::ReadOnly { .. })))));
    assert_eq!(step(&mut scene), None);
    let mut map = ClusterMap { revision: 2, ..map() };
    map.still.insert(VOLUME, Stillness(7));
    scene.client.handle_map(scene.now, Arc::new(map), &mut scene.io);
    let told: Vec<_> = std::iter::from_fn(|| scene.client.poll_still()).collect();
    assert!(told.iter().all(|(volume, _)| *volume != scene.volume) && told.len() == 1, "{told:?}");
    scene.read(2, 0, 4096);
    let (_, read) = scene.sent_one();
    // By an OSD of an older version, which knows of an attach that no map has shown here.
    scene.refuse(&read, Status::Fenced, true);
    assert_eq!(scene.ended(), None);
    see(&mut scene, 3, 9, false);
    scene.wait();
    let (_, again) = scene.sent_one();
    assert_eq!(again.generation, Generation(9));
    scene.done(&again);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
}

#[test]
fn an_owner_stands_still_too_and_begins_behind_the_snapshot_what_was_put_off() {
    let mut scene = opened(false);
    scene.write(1, 0, 4096);
    step(&mut scene);
    let mut asked = ClusterMap { revision: 2, ..map() };
    asked.still.insert(VOLUME, Stillness(7));
    scene.client.handle_map(scene.now, Arc::new(asked), &mut scene.io);
    is_owned(&mut scene, 2);
    assert_eq!(scene.sent(), vec![]);
    let told: Vec<_> = std::iter::from_fn(|| scene.client.poll_still()).map(|(volume, _)| volume).collect();
    assert!(told.contains(&scene.volume), "{told:?}");
    see(&mut scene, 3, 2, false);
    scene.sent_one();
}

#[test]
fn what_was_put_off_begins_no_sooner_than_the_map_shows_that_the_volume_is_owned_and_in_the_layer_that_it_shows()
 {
    let mut scene = opened(false);
    scene.write(1, 0, 4096);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }));
    // A snapshot was made before it was attached, and the map that shows both is on its way.
    scene.client.owned(scene.now, scene.volume, Generation(3), &mut scene.io);
    assert!(scene.client.is_owner(scene.volume) && !scene.client.begins_changes(scene.volume));
    scene.write(2, 4096, 4096);
    assert!(scene.sent().is_empty());
    let mut map = ClusterMap { revision: 2, ..map() };
    let info = map.volumes.get_mut(&VOLUME).unwrap();
    (info.generation, info.head) = (Generation(3), 1);
    scene.client.handle_map(scene.now, Arc::new(map), &mut scene.io);
    let sent = scene.sent();
    assert_eq!(sent.len(), 2);
    for (kind, request) in sent {
        let of = (kind, request.generation, request.key.layer);
        assert_eq!(of, (Kind::Write, Generation(3), VOLUME.layer(1)));
    }
}

#[test]
fn what_is_held_is_owned_without_a_change_and_given_to_nobody_until_it_is_let_go() {
    let mut scene = opened(false);
    scene.client.own(scene.volume, true);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: true }));
    assert_eq!(scene.client.is_had(scene.volume), Ok(false));
    is_owned(&mut scene, 2);
    assert_eq!(scene.client.is_had(scene.volume), Ok(true));
    see(&mut scene, 2, 2, true);
    time_passes(&mut scene, 10 * OWNED_MIN);
    scene.write(1, 0, 4096);
    let (_, write) = scene.sent_one();
    assert_eq!(step(&mut scene), None, "whoever wishes for it");
    scene.client.let_go(scene.volume);
    time_passes(&mut scene, Duration::ZERO);
    scene.write(2, 8192, 4096);
    assert_eq!((step(&mut scene), scene.sent().len()), (None, 0), "something is under way");
    scene.done(&write);
    assert_eq!(step(&mut scene), Some(OwnershipStep::GiveUp));
    assert!(!scene.client.is_given_up(scene.volume), "the registry has not heard of it");
    scene.client.gave_up(scene.volume);
    assert!(scene.client.is_given_up(scene.volume));
    assert_eq!(scene.client.is_had(scene.volume), Ok(false));
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }), "there is something to change");
    // To be held, it is given up first: it was not kept.
    is_owned(&mut scene, 3);
    let (_, write) = scene.sent_one();
    scene.client.own(scene.volume, true);
    assert_eq!(scene.client.is_had(scene.volume), Ok(false));
    time_passes(&mut scene, Duration::ZERO);
    assert_eq!(step(&mut scene), None);
    scene.done(&write);
    assert_eq!(step(&mut scene), Some(OwnershipStep::GiveUp));
    scene.client.gave_up(scene.volume);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: true }));
    // Let go before it is there, it is given up when it is.
    scene.client.let_go(scene.volume);
    is_owned(&mut scene, 4);
    time_passes(&mut scene, Duration::ZERO);
    assert_eq!(step(&mut scene), Some(OwnershipStep::GiveUp));
    scene.client.gave_up(scene.volume);
    assert_eq!(step(&mut scene), None);
    // One that is not to be had is told of once.
    scene.client.own(scene.volume, true);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: true }));
    scene.client.not_owned(scene.volume, "somebody has it");
    assert_eq!(scene.client.is_had(scene.volume), Err("somebody has it".to_owned()));
    assert_eq!((scene.client.is_had(scene.volume), step(&mut scene)), (Ok(false), None));
    // Owned and not held, it goes to whoever wishes for it, and is not asked for again.
    scene.client.own(scene.volume, false);
    assert_eq!(step(&mut scene), Some(OwnershipStep::Ask { keeps: false }));
    is_owned(&mut scene, 5);
    assert_eq!(scene.client.is_had(scene.volume), Ok(true));
    scene.client.own(scene.volume, false);
    assert_eq!(scene.client.is_had(scene.volume), Ok(true), "it has it already");
    see(&mut scene, 3, 5, true);
    time_passes(&mut scene, OWNED_MIN);
    assert_eq!(step(&mut scene), Some(OwnershipStep::GiveUp));
    scene.client.gave_up(scene.volume);
    assert_eq!(step(&mut scene), None);
}
