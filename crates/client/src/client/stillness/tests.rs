//! Clients that are to stand still while snapshots are made.

use super::super::tests::{Scene, map};
use super::super::{Holding, Outcome};
use crate::error::ClientError;
use base::map::{ClusterMap, Stillness};
use base::{LayerId, VolumeId};
use std::sync::Arc;
use std::time::Duration;
use wire::{Kind, Status};

const VOLUME: VolumeId = VolumeId(5);

/// The map, of that revision, with that to be asked for, and so many snapshots made.
fn see(scene: &mut Scene, revision: u64, still: Option<u64>, head: u32) {
    let mut map = ClusterMap { revision, ..map() };
    map.still.extend(still.map(|number| (VOLUME, Stillness(number))));
    map.volumes.get_mut(&VOLUME).unwrap().head = head;
    scene.client.handle_map(scene.now, Arc::new(map), &mut scene.io);
}

fn told(scene: &mut Scene) -> Option<u64> {
    let told = scene.client.poll_still();
    told.map(|(volume, number)| {
        assert_eq!(volume, scene.volume);
        number.0
    })
}

#[test]
fn what_was_begun_ends_and_what_comes_meanwhile_begins_behind_the_snapshot_in_its_own_layer() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    let (_, first) = scene.sent_one();
    assert_eq!((first.key.layer, told(&mut scene)), (LayerId(5), None));
    see(&mut scene, 2, Some(7), 0);
    assert_eq!(told(&mut scene), None, "a write is under way");
    scene.write(2, 8192, 4096);
    scene.client.submit_zero(scene.now, super::super::tests::of(scene.volume, 3, 0, 4096), &mut scene.io);
    scene.read(4, 0, 4096);
    let (kind, read) = scene.sent_one();
    assert_eq!((kind, read.key.layer), (Kind::Read, LayerId(5)), "reads go on");
    scene.done(&read);
    assert_eq!(scene.ended(), Some((4, Outcome::Done)));
    // It is tried again until it has ended.
    scene.refuse(&first, Status::NotActive, false);
    assert_eq!(told(&mut scene), None);
    scene.wait();
    let (_, again) = scene.sent_one();
    assert_eq!(again.key.layer, LayerId(5));
    scene.done(&again);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    assert_eq!((told(&mut scene), told(&mut scene)), (Some(7), None), "it is told once");
    assert_eq!((scene.sent(), scene.client.operations_in_flight()), (vec![], 2));
    assert!(!scene.client.is_quiet());
    see(&mut scene, 3, None, 1);
    let sent = scene.sent();
    let layers: Vec<_> = sent.iter().map(|(kind, request)| (*kind, request.key.layer)).collect();
    assert_eq!(layers, [(Kind::Write, VOLUME.layer(1)), (Kind::Zero, VOLUME.layer(1))]);
    for (_, request) in sent {
        scene.done(&request);
    }
    assert_eq!((scene.ended(), scene.ended()), (Some((2, Outcome::Done)), Some((3, Outcome::Done))));
    assert!(scene.client.is_quiet() && told(&mut scene).is_none());
}

#[test]
fn each_time_is_told_of_also_the_one_that_follows_at_once_and_nothing_begins_between_them() {
    let mut scene = Scene::new(Holding::Shared);
    see(&mut scene, 2, Some(7), 0);
    assert_eq!(told(&mut scene), Some(7));
    scene.write(1, 0, 4096);
    see(&mut scene, 3, Some(8), 1);
    assert_eq!((told(&mut scene), scene.sent()), (Some(8), vec![]));
    // It came to nothing.
    see(&mut scene, 4, None, 1);
    assert_eq!(scene.sent_one().1.key.layer, VOLUME.layer(1));
    see(&mut scene, 5, Some(8), 1);
    assert_eq!(told(&mut scene), None, "the write has not ended");
}

#[test]
fn what_was_put_off_ends_with_its_asker() {
    let mut scene = Scene::new(Holding::Alone);
    see(&mut scene, 2, Some(7), 0);
    (1..4).for_each(|token| scene.write(token, 0, 4096));
    scene.client.abandon(scene.now, |token| token == 2, &mut scene.io);
    let ended = scene.ended();
    assert!(matches!(ended, Some((2, Outcome::Failed(ClientError::Abandoned { .. })))), "{ended:?}");
    see(&mut scene, 3, None, 0);
    assert_eq!((scene.sent().len(), scene.client.operations_in_flight()), (2, 2));
}

#[test]
fn who_may_have_changes_of_which_it_knows_nothing_does_not_say_that_it_stands_still() {
    let mut scene = Scene::new(Holding::Alone);
    scene.client.set_timeout(Some(Duration::from_secs(1)));
    scene.write(1, 0, 4096);
    scene.sent_one();
    scene.now = scene.now + Duration::from_secs(2);
    scene.client.handle_timeout(scene.now, &mut scene.io);
    let ended = scene.ended();
    assert!(matches!(ended, Some((1, Outcome::Failed(ClientError::TimedOut { .. })))), "{ended:?}");
    see(&mut scene, 2, Some(7), 0);
    assert_eq!(told(&mut scene), None);
}
