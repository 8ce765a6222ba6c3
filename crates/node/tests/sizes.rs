//! Real OSDs serve nothing beyond the end of a volume, whatever a client believes; and what a volume lost when it was made
//! smaller is zeros when it has grown again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

mod common;

use base::{ClientId, CutId, Generation, OBJECT_BYTES, ObjectKey, PgId};
use client::{ClientError, Outcome};
use common::{BLOCK, POOL, Pond, VOLUME, VOLUME_BYTES, cluster_id, scattered};
use node::shard::{Command, Report};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Hello, Kind, Message, Request, Role, Status, VERSIONS};

const PATIENCE: Duration = Duration::from_secs(30);

/// The OSDs hear that the volume has another size. The client does not.
fn is_resized(pond: &mut Pond, bytes: u64, cut: Option<CutId>) {
    pond.map.revision += 1;
    let volume = pond.map.volumes.get_mut(&VOLUME).unwrap();
    (volume.bytes, volume.cut) = (bytes, cut);
    let map = Arc::new(pond.map.clone());
    for osd in pond.osds.values() {
        osd.command(Command::Map(map.clone()));
    }
}

/// What the primary says to a read of a block by somebody who asks for whatever it likes; `None` if it brings more than a word.
fn asked(pond: &Pond, offset: u64) -> Option<Status> {
    let object = (offset / OBJECT_BYTES) as u32;
    let pg = pond.map.pg_of(POOL, VOLUME, object).unwrap();
    let config = &pond.map.pgs[&pg];
    let mut stream = TcpStream::connect(pond.map.osds[&config.primary].address.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (role, cluster) = (Role::Client(ClientId(77)), cluster_id());
    let hello = Hello { role, cluster, target: config.primary, versions: VERSIONS };
    stream.write_all(&hello.encode()).unwrap();
    let request = Request {
        request: 9,
        key: ObjectKey { pg, layer: VOLUME.first_layer(), object },
        offset: (offset % OBJECT_BYTES) as u32,
        length: BLOCK as u32,
        epoch: config.epoch,
        generation: Generation(1),
        origin: 0,
        since: None,
        unverified: false,
        of_snapshot: false,
    };
    stream.write_all(&request.encode(Kind::Read)).unwrap();
    // A welcome, and the answer.
    let mut inbox = [0; 128];
    stream.read_exact(&mut inbox).unwrap();
    match wire::parse(&inbox[64..]).unwrap() {
        Some((Message::Reply(reply), _)) => Some(reply.head.status),
        Some((other, _)) => panic!("{other:?}"),
        None => None,
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the primaries of all groups report that cut.
fn is_cut(pond: &mut Pond, cut: CutId) {
    let all: BTreeSet<PgId> = pond.map.pgs.keys().copied().collect();
    let mut done = BTreeSet::new();
    wait_until("all groups report the cut", || {
        for (osd, thread) in &mut pond.osds {
            while let Ok(report) = thread.reports.try_recv() {
                let Report::Status(status) = report else { continue };
                let is_done = |pg: &PgId| {
                    status.pgs.get(pg).is_some_and(|group| group.cut_through == cut)
                        && pond.map.pgs[pg].primary == *osd
                };
                done.extend(all.iter().copied().filter(is_done));
            }
        }
        done == all
    });
}

#[test]
fn nothing_is_served_beyond_an_end_and_what_was_cut_off_is_zeros_when_the_volume_has_grown_again() {
    let mut pond = Pond::start();
    pond.becomes_active();
    let (half, cut) = (VOLUME_BYTES / 2, CutId(1));
    let number = (1..).find(|number| scattered(*number) >= half).unwrap();
    assert_eq!(pond.outcome(number, true), Outcome::Done);
    assert_eq!(asked(&pond, scattered(number)), None, "it is there");
    is_resized(&mut pond, half, Some(cut));
    wait_until("the OSD has heard of it", || asked(&pond, scattered(number)) == Some(Status::BeyondEnd));
    is_cut(&mut pond, cut);

    // A client that has not heard of it tries again and again, until it has.
    let buffer = pond.buffers.pop().unwrap();
    pond.submit(number, true, buffer);
    let (began, mut trouble) = (Instant::now(), String::new());
    while began.elapsed() < Duration::from_millis(500) {
        pond.turn();
        assert!(pond.client.poll_completion().is_none(), "it may be the OSD that has an older map");
        trouble = pond.client.trouble().unwrap_or(trouble);
    }
    assert!(trouble.contains("beyond the end"), "{trouble}");
    pond.publish();
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        assert!(Instant::now() < deadline, "it does not end: {:?}", pond.client.trouble());
        pond.turn();
        if let Some(completion) = pond.client.poll_completion() {
            break completion.outcome;
        }
    };
    assert!(matches!(ended, Outcome::Failed(ClientError::OutOfRange { .. })), "{ended:?}");

    let volume = pond.map.volumes.get_mut(&VOLUME).unwrap();
    (volume.bytes, volume.cut) = (VOLUME_BYTES, None);
    pond.publish();
    assert_eq!(pond.outcome(number, false), Outcome::Done);
    let buffer = pond.buffers.last().expect("it was just given back");
    assert_eq!(buffer.bytes()[..8], [0; 8], "it held its number");
    pond.stop();
}
