//! Who had a volume before is served by no OSD once one member of each group was told, although no other map tells of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

mod common;

use base::map::VolumeInfo;
use base::{ClientId, Generation, OsdId, VolumeId};
use client::{ClientError, Holding, Outcome};
use common::{BLOCK, PGS, POOL, Pond, VOLUME, cluster_id};
use node::shard::Command;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Fence, Hello, Kind, Message, Role, VERSIONS};

/// Connects to an OSD as a client and has a fence set up. Gives what to wait for its answer with.
fn begin_fence(pond: &Pond, osd: OsdId, volume: VolumeId, generation: Generation) -> (TcpStream, Fence) {
    let address = pond.map.osds[&osd].address.unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (role, cluster) = (Role::Client(ClientId(77)), cluster_id());
    stream.write_all(&Hello { role, cluster, target: osd, versions: VERSIONS }.encode()).unwrap();
    let fence = Fence { request: 5, volume, generation };
    stream.write_all(&fence.encode(Kind::Fence)).unwrap();
    (stream, fence)
}

/// The same once the OSD has a map, as the only one, that shows the generation.
fn begin_fence_where_it_is_shown(pond: &Pond, osd: OsdId, generation: Generation) -> (TcpStream, Fence) {
    let mut map = pond.map.clone();
    map.revision += 1;
    map.volumes.get_mut(&VOLUME).unwrap().generation = generation;
    pond.osds[&osd].command(Command::Map(Arc::new(map)));
    begin_fence(pond, osd, VOLUME, generation)
}

/// Whether nothing but a welcome has come within a moment.
fn waits((stream, _): &(TcpStream, Fence)) -> bool {
    std::thread::sleep(Duration::from_millis(300));
    matches!(stream.peek(&mut [0; 128]), Ok(64))
}

/// Waits until the OSD answers that the fence stands.
fn stands((mut stream, fence): (TcpStream, Fence)) {
    let mut inbox = [0; 128];
    // A welcome, and the answer.
    stream.read_exact(&mut inbox).unwrap();
    assert!(matches!(wire::parse(&inbox), Ok(Some((Message::Welcome(_), 64)))));
    let answer = wire::parse(&inbox[64..]);
    assert!(matches!(answer, Ok(Some((Message::FenceDone(done), 64))) if done == fence), "{answer:?}");
}

/// Nothing is changed for the client any more, in any group, and what it reads it reads as anybody does.
fn is_fenced(pond: &mut Pond) {
    // Objects are spread over the groups; of the first 16 there is one in each, most likely.
    for object in 0..16 {
        let number = (object << 22) / BLOCK;
        let outcome = pond.outcome(number, true);
        assert!(
            matches!(outcome, Outcome::Failed(ClientError::Fenced { .. })),
            "object {object}: {outcome:?}"
        );
        let outcome = pond.outcome(number, false);
        assert!(matches!(outcome, Outcome::Done), "object {object}: {outcome:?}");
    }
}

#[test]
fn one_member_of_each_group_is_enough_for_a_fence() {
    let mut pond = Pond::start();
    pond.becomes_active();
    for number in 0..u64::from(PGS) * 4 {
        assert_eq!(pond.outcome(number, true), Outcome::Done);
    }
    stands(begin_fence_where_it_is_shown(&pond, OsdId(0), Generation(2)));
    is_fenced(&mut pond);
    pond.stop();
}

#[test]
fn a_fence_outlasts_the_promises_to_an_osd_that_cannot_be_told() {
    let mut pond = Pond::start();
    pond.becomes_active();
    assert_eq!(pond.outcome(0, true), Outcome::Done);
    // It is gone without having been asked; what it was promised last lasts on.
    let gone = pond.osds.remove(&OsdId(2)).unwrap();
    gone.command(node::shard::Command::Shutdown);
    gone.thread.join().unwrap().unwrap();
    let asked = Instant::now();
    stands(begin_fence_where_it_is_shown(&pond, OsdId(0), Generation(2)));
    eprintln!("the fence stood after {:.1} s", asked.elapsed().as_secs_f64());
    is_fenced_while_one_is_away(&mut pond);
    pond.stop();
}

/// The groups of an OSD that is gone are taken over meanwhile.
fn is_fenced_while_one_is_away(pond: &mut Pond) {
    pond.map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    pond.publish();
    is_fenced(pond);
}

#[test]
fn a_fence_of_a_generation_that_the_map_does_not_show_yet_waits_until_it_does() {
    let mut pond = Pond::start();
    pond.becomes_active();
    let young = VolumeId(2);
    let begun = begin_fence(&pond, OsdId(1), young, Generation(4));
    assert!(waits(&begun));
    // The map that shows the volume is from before the fence.
    let info = VolumeInfo {
        name: "young".to_owned(),
        pool: POOL,
        bytes: common::VOLUME_BYTES,
        generation: Generation(3),
        ..VolumeInfo::default()
    };
    pond.map.volumes.insert(young, info);
    pond.publish();
    assert!(waits(&begun));
    pond.map.volumes.get_mut(&young).unwrap().generation = Generation(4);
    pond.publish();
    stands(begun);
    pond.volume = pond.client.add_volume(young, Generation(3), Holding::Alone);
    is_fenced(&mut pond);
    pond.volume = pond.client.add_volume(young, Generation(4), Holding::Alone);
    assert_eq!(pond.outcome(0, true), Outcome::Done);
    pond.stop();
}
