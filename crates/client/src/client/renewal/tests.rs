//! Operations whose askers are gone, and a volume that is attached anew.

use super::super::tests::Scene;
use super::super::{Holding, Outcome};
use crate::error::ClientError;
use base::{Generation, OBJECT_BYTES};
use wire::{Kind, Status};

fn abandon(scene: &mut Scene, gone: u64) {
    scene.client.abandon(scene.now, |token| token == gone, &mut scene.io);
}

#[track_caller]
fn is_abandoned(ended: Option<(u64, Outcome)>, token: u64) {
    let is_it = matches!(
        ended,
        Some((ended, Outcome::Failed(ClientError::Abandoned { .. }))) if ended == token
    );
    assert!(is_it, "{ended:?}");
}

#[test]
fn what_was_not_begun_ends_with_its_asker() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    scene.write(2, 8192, 4096);
    for (_, request) in scene.sent() {
        scene.refuse(&request, Status::NotActive, true);
    }
    // What waits for it goes on.
    scene.write(3, 0, 4096);
    assert_eq!(scene.sent(), []);
    abandon(&mut scene, 1);
    is_abandoned(scene.ended(), 1);
    assert_eq!(scene.sent_one().1.offset, 0);
    scene.wait();
    assert_eq!(scene.sent_one().1.offset, 8192, "the other one is tried again, and nothing else");
}

#[test]
fn what_may_have_been_done_is_settled_before_anything_else_touches_the_same_bytes() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    let (_, orphan) = scene.sent_one();
    abandon(&mut scene, 1);
    scene.write(2, 0, 4096);
    scene.read(3, 0, 4096);
    assert_eq!(scene.sent(), []);
    scene.done(&orphan);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    let (_, next) = scene.sent_one();
    scene.done(&next);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    // The same if its connection ends.
    let (_, read) = scene.sent_one();
    scene.done(&read);
    scene.write(4, 0, 4096);
    scene.sent_one();
    abandon(&mut scene, 4);
    scene.write(5, 0, 4096);
    scene.reconnect();
    let (_, orphan) = scene.sent_one();
    assert!(orphan.since.is_some());
    scene.done(&orphan);
    assert!(scene.sent_one().1.since.is_none(), "the next one is sent for the first time");
}

#[test]
fn reads_of_who_is_gone_bring_what_they_bring() {
    let mut scene = Scene::new(Holding::Alone);
    scene.read(1, 0, 4096);
    let (_, read) = scene.sent_one();
    abandon(&mut scene, 1);
    scene.write(2, 0, 4096);
    scene.sent_one();
    scene.done(&read);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    scene.read(3, 8192, 4096);
    let (_, read) = scene.sent_one();
    scene.refuse(&read, Status::NotActive, true);
    abandon(&mut scene, 3);
    assert_eq!(scene.ended(), None, "one that waits as well");
    scene.wait();
    let (_, read) = scene.sent_one();
    scene.done(&read);
    assert_eq!(scene.ended(), Some((3, Outcome::Done)));
}

#[test]
fn a_question_ends_with_its_asker_and_what_may_have_been_done_does_not() {
    let mut scene = Scene::new(Holding::Shared);
    // Nothing is known of the second object's group.
    scene.write(1, OBJECT_BYTES, 4096);
    assert_eq!(scene.sent_one().0, Kind::Allocated);
    abandon(&mut scene, 1);
    is_abandoned(scene.ended(), 1);
    scene.write(2, 0, 4096);
    scene.sent_one();
    let link = scene.link();
    scene.client.handle_closed(scene.now, link, "cut");
    abandon(&mut scene, 2);
    assert_eq!(scene.ended(), None);
    scene.write(3, 0, 4096);
    scene.wait();
    scene.greet();
    let (_, orphan) = scene.sent_one();
    assert!(orphan.since.is_some(), "it is seen to its end");
    scene.done(&orphan);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    assert!(scene.sent_one().1.since.is_none(), "the next one waited for it");
}

#[test]
fn when_a_volume_is_attached_anew_orphans_end_and_all_else_goes_on() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    scene.write(2, 8192, 4096);
    scene.write(3, 16384, 4096);
    let sent = scene.sent();
    abandon(&mut scene, 1);
    scene.write(4, 0, 4096);
    assert!(!scene.client.is_renewing(scene.volume));
    scene.client.begin_renewal(scene.volume);
    assert!(scene.client.is_renewing(scene.volume));
    // The OSDs hear of the newer generation before this client does.
    scene.refuse(&sent[1].1, Status::Fenced, true);
    assert_eq!(scene.ended(), None, "that is no failure now");
    scene.client.reattached(scene.volume, Generation(5));
    assert_eq!((scene.sent(), scene.ended()), (Vec::new(), None), "the older one may be served still");
    scene.client.renewed(scene.now, scene.volume, &mut scene.io);
    is_abandoned(scene.ended(), 1);
    let (_, fourth) = scene.sent_one();
    assert_eq!((fourth.offset, fourth.generation), (0, Generation(5)));
    // One that was refused for the older generation after that.
    scene.refuse(&sent[2].1, Status::Fenced, true);
    let (_, third) = scene.sent_one();
    assert_eq!((third.offset, third.generation), (16384, Generation(5)));
    scene.refuse(&sent[2].1, Status::Fenced, true);
    scene.write(5, 16384, 4096);
    assert_eq!(scene.sent(), [], "what comes after it waits for it");
    scene.wait();
    let (_, second) = scene.sent_one();
    assert_eq!((second.offset, second.generation), (8192, Generation(5)));
    // Somebody else has it now.
    scene.refuse(&second, Status::Fenced, true);
    assert!(matches!(scene.ended(), Some((2, Outcome::Failed(ClientError::Fenced { .. })))));
}

#[test]
fn an_orphan_that_was_sent_under_the_newer_generation_is_not_fenced_by_it() {
    let mut scene = Scene::new(Holding::Alone);
    scene.client.begin_renewal(scene.volume);
    scene.client.reattached(scene.volume, Generation(5));
    scene.write(1, 0, 4096);
    let (_, orphan) = scene.sent_one();
    assert_eq!(orphan.generation, Generation(5));
    abandon(&mut scene, 1);
    scene.client.renewed(scene.now, scene.volume, &mut scene.io);
    assert_eq!(scene.ended(), None, "it may take effect at any time");
    scene.done(&orphan);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn an_orphan_is_not_sent_again_while_it_is_about_to_be_fenced() {
    for outcome in [Ok(()), Err(())] {
        let mut scene = Scene::new(Holding::Alone);
        scene.write(1, 0, 4096);
        scene.write(2, 8192, 4096);
        scene.sent();
        abandon(&mut scene, 1);
        scene.client.begin_renewal(scene.volume);
        scene.reconnect();
        assert_eq!(scene.sent_one().1.offset, 8192, "the one that lives");
        for _ in 0..10 {
            scene.now = scene.client.next_timeout().unwrap();
            scene.client.handle_timeout(scene.now, &mut scene.io);
        }
        assert_eq!((scene.sent(), scene.ended()), (Vec::new(), None));
        match outcome {
            Ok(()) => {
                scene.client.reattached(scene.volume, Generation(5));
                scene.client.renewed(scene.now, scene.volume, &mut scene.io);
                is_abandoned(scene.ended(), 1);
            }
            Err(()) => {
                scene.client.not_renewed(scene.volume);
                scene.wait();
                assert_eq!(scene.sent_one().1.offset, 0, "it is seen to its end after all");
            }
        }
    }
}

#[test]
fn a_volume_that_could_not_be_attached_anew_may_be_fenced() {
    let mut scene = Scene::new(Holding::Alone);
    scene.client.begin_renewal(scene.volume);
    scene.client.not_renewed(scene.volume);
    scene.write(1, 0, 4096);
    let (_, request) = scene.sent_one();
    scene.refuse(&request, Status::Fenced, true);
    assert!(matches!(scene.ended(), Some((1, Outcome::Failed(ClientError::Fenced { .. })))));
}
