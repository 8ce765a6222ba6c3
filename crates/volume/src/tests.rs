//! Attached volumes against a registry on a socket and an OSD in memory.

use super::*;
use crate::testing::{Faults, Served, TestCluster};
use async_trait::async_trait;
use base::{Buffer, Encryption};
use client::{ClientError, Completion, Outcome};
use registry::implement::{Answer, Caller, Request, perform};
use registry::{Connect, Operation, Registry, RegistryError, Revision, Watch};
use registry_remote::DeskPlace;
use ring::ReactorOptions;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Status;

struct Pond {
    _directory: tempfile::TempDir,
    cluster: TestCluster,
}

fn pond() -> Pond {
    let directory = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start(directory.path());
    cluster.create_volume("disk", 64 << 20);
    Pond { _directory: directory, cluster }
}

impl Pond {
    fn attach(&self, shared: bool) -> Result<VolumeLoop, AttachError> {
        let options = SessionOptions {
            cluster: self.cluster.access(),
            volumes: vec!["disk".to_owned()],
            open: if shared { OpenAs::Sharer } else { OpenAs::Owner },
            timeout: None,
            purpose: "a test".to_owned(),
            note: None,
        };
        VolumeLoop::attach(options, ReactorOptions { connections_max: 64, ..ReactorOptions::default() })
    }

    fn attachments(&self) -> Vec<String> {
        let records = self.cluster.with(async |cluster| {
            let map = cluster.map().await.unwrap();
            cluster.attachments(map.volume_named("disk").unwrap().0).await.unwrap()
        });
        records.into_iter().map(|record| record.description).collect()
    }

    /// Those of all attachments.
    fn leases(&self) -> Vec<registry::LeaseId> {
        let attached =
            self.cluster.with(async |cluster| cluster.registry().range("millpond/attached/").await);
        attached.unwrap().entries.iter().filter_map(|entry| entry.lease).collect()
    }
}

fn turn_until<T>(volumes: &mut VolumeLoop, mut look: impl FnMut(&mut VolumeLoop) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut others = Vec::new();
    while Instant::now() < deadline {
        if let Some(found) = look(volumes) {
            return found;
        }
        volumes.turn(Some(Duration::from_millis(100)), &mut others).unwrap();
    }
    panic!("it does not come: {:?}", volumes.trouble());
}

fn completion(volumes: &mut VolumeLoop) -> Completion {
    turn_until(volumes, VolumeLoop::poll_completion)
}

fn filled(bytes: usize) -> Buffer {
    let mut buffer = Buffer::new(bytes);
    buffer.bytes_mut().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 3) as u8);
    buffer
}

#[test]
fn what_is_written_is_read_back_zeroed_and_shown_as_allocated() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    assert_eq!(volumes.volume_bytes(disk), 64 << 20);
    let written = filled(1 << 20);
    // Across an object's border, in five pieces.
    volumes.write(disk, 1, (4 << 20) - 70_000, 1 << 20, written.clone());
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
    volumes.read(disk, 2, (4 << 20) - 70_000, 1 << 20, Buffer::new(1 << 20));
    let read = completion(&mut volumes);
    assert_eq!((read.token, read.outcome), (2, Outcome::Done));
    assert!(read.buffer.unwrap().bytes() == written.bytes());
    volumes.zero(disk, 3, 0, 4 << 20);
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
    volumes.allocated(disk, 4, 0, 8 << 20);
    let end = (1u64 << 20) - 70_000;
    let end = end.next_multiple_of(4096);
    let runs = vec![(4 << 20, false), (end, true), ((4 << 20) - end, false)];
    assert_eq!(completion(&mut volumes).outcome, Outcome::Allocated(runs));
    let mut released = 0;
    volumes.take_released(|_| released += 1);
    assert!(released >= 5, "each piece's handle comes back, {released} did");
}

#[test]
fn an_attachment_is_seen_refuses_others_and_goes_with_its_owner() {
    let pond = pond();
    let first = pond.attach(false).unwrap();
    let holders = pond.attachments();
    assert!(holders.len() == 1 && holders[0].contains(&format!("pid {} on ", std::process::id())));
    assert!(holders[0].ends_with(", a test"), "{holders:?}");
    let refused = pond.attach(true).err().unwrap().to_string();
    assert!(refused.contains("attached by pid"), "{refused}");
    assert_eq!(pond.attachments().len(), 1, "who is refused leaves nothing behind");
    drop(first);
    assert_eq!(pond.attachments(), Vec::<String>::new());
    let (_one, _two) = (pond.attach(true).unwrap(), pond.attach(true).unwrap());
    assert_eq!(pond.attachments().len(), 2);
}

#[test]
fn who_did_not_part_quietly_is_fenced_before_the_volume_is_used_again() {
    let pond = pond();
    drop(pond.attach(false).unwrap());
    drop(pond.attach(false).unwrap());
    assert_eq!(pond.cluster.fences(), [], "who detached with nothing under way needs no fence");
    let mut volumes = pond.attach(false).unwrap();
    pond.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    volumes.write(volumes.volumes()[0].handle, 1, 0, 4096, filled(4096));
    drop(volumes);
    pond.cluster.set_faults(Faults { deaf_to_fences: true, ..Faults::default() });
    // It is waited for, and the volume not served.
    let (sender, attached) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(pond.attach(false).map(drop)).unwrap());
        assert!(attached.recv_timeout(Duration::from_secs(2)).is_err(), "attached without a fence");
        pond.cluster.set_faults(Faults::default());
        attached.recv().unwrap().unwrap();
    });
    let fences = pond.cluster.fences();
    assert!(
        !fences.is_empty() && fences.iter().all(|fence| fence.generation == base::Generation(4)),
        "{fences:?}"
    );
}

#[test]
fn a_volume_that_is_attached_anew_is_rid_of_what_was_abandoned_and_goes_on() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    pond.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    volumes.write(disk, 1, 0, 4096, filled(4096));
    let before = pond.cluster.served();
    turn_until(&mut volumes, |_| (pond.cluster.served().plain > before.plain + 1).then_some(()));
    // It heard the write, and may do it at any time.
    pond.cluster.set_faults(Faults::default());
    volumes.abandon(|token| token == 1);
    volumes.write(disk, 2, 0, 4096, filled(4096));
    assert!(volumes.begin_renewal(disk));
    let renewal = turn_until(&mut volumes, VolumeLoop::poll_renewal);
    assert_eq!(renewal, Renewal { volume: disk, outcome: Ok(()) });
    let ended = completion(&mut volumes);
    assert!(matches!(ended.outcome, Outcome::Failed(ClientError::Abandoned { .. })) && ended.token == 1);
    let ended = completion(&mut volumes);
    assert_eq!((ended.token, ended.outcome), (2, Outcome::Done));
    let fences = pond.cluster.fences();
    assert!(!fences.is_empty() && pond.attachments().len() == 1, "{fences:?}");
    // It is this client that has the volume still, and says so when it goes.
    drop(volumes);
    let next = pond.attach(false).unwrap();
    assert_eq!(pond.cluster.fences(), fences, "nothing was under way");
    drop(next);
    let mut shared = pond.attach(true).unwrap();
    let disk = shared.volumes()[0].handle;
    assert!(!shared.begin_renewal(disk), "whoever shares it would be fenced too");
}

#[test]
fn a_volume_that_is_attached_anew_is_the_same_one_whatever_volumes_are_called_by_then() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let (disk, id) = (volumes.volumes()[0].handle, volumes.volumes()[0].id);
    let other = pond.cluster.with(async |cluster| {
        cluster.rename_volume("disk", "old").await.unwrap();
        cluster.create_volume("disk", "default", 4 << 20).await.unwrap()
    });
    // Its map shows neither of that yet.
    assert!(volumes.begin_renewal(disk));
    let renewal = turn_until(&mut volumes, VolumeLoop::poll_renewal);
    assert_eq!(renewal, Renewal { volume: disk, outcome: Ok(()) });
    let map = pond.cluster.with(async |cluster| cluster.map().await.unwrap());
    let generations = [id, other].map(|id| map.volumes[&id].generation.0);
    assert_eq!((generations, map.volumes[&id].name.as_str()), ([2, 0], "old"));
    volumes.write(disk, 1, 0, 4096, filled(4096));
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
}

/// The way to a registry whose answers to attaches are lost.
#[derive(Debug)]
struct Forgetful(Arc<dyn Connect>);

impl fmt::Display for Forgetful {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[async_trait]
impl Connect for Forgetful {
    async fn connect(&self) -> Result<Arc<dyn Registry>, RegistryError> {
        Ok(Arc::new(ForgetfulRegistry(self.0.connect().await?)))
    }
}

struct ForgetfulRegistry(Arc<dyn Registry>);

#[async_trait]
impl Caller for ForgetfulRegistry {
    fn place(&self) -> String {
        "a test".to_owned()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        let attaches = |operation: &Operation| matches!(operation, Operation::Put { lease: Some(_), .. });
        let is_attach = matches!(&request, Request::Txn(txn) if txn.then.iter().any(attaches));
        let answer = perform(&*self.0, request).await?;
        match is_attach {
            true => {
                let (registry, reason) = (self.place(), "it forgot".to_owned());
                Err(RegistryError::OutcomeUnknown { registry, reason })
            }
            false => Ok(answer),
        }
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        self.0.watch(&prefix, start).await
    }
}

#[test]
fn an_attach_whose_answer_was_lost_leaves_nothing_behind() {
    let pond = pond();
    let DeskPlace::Registry(registry) = pond.cluster.access().desk else { panic!("it reaches the registry") };
    let options = SessionOptions {
        cluster: ClusterAccess {
            desk: DeskPlace::Registry(Arc::new(Forgetful(registry))),
            ..pond.cluster.access()
        },
        volumes: vec!["disk".to_owned()],
        open: OpenAs::Owner,
        timeout: None,
        purpose: "a test".to_owned(),
        note: None,
    };
    let error = VolumeLoop::attach(options, ReactorOptions::default()).err().unwrap();
    assert!(error.to_string().contains("it forgot"), "{error}");
    assert_eq!(pond.attachments(), Vec::<String>::new());
    let _next = pond.attach(false).unwrap();
    assert_eq!(pond.cluster.fences(), [], "nothing was under way, so nobody is fenced");
}

#[test]
fn a_volume_that_is_not_there_is_named() {
    let pond = pond();
    let options = SessionOptions {
        cluster: pond.cluster.access(),
        volumes: vec!["other".to_owned()],
        open: OpenAs::Owner,
        timeout: None,
        purpose: "a test".to_owned(),
        note: None,
    };
    let error = VolumeLoop::attach(options, ReactorOptions::default()).err().unwrap();
    assert!(error.to_string().contains("no volume other"), "{error}");
}

#[test]
fn a_resize_arrives_without_being_asked_for() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    pond.cluster.with(async |cluster| cluster.resize_volume("disk", 128 << 20, false).await.unwrap());
    turn_until(&mut volumes, |volumes| (volumes.volume_bytes(disk) == 128 << 20).then_some(()));
}

#[test]
fn a_lease_that_ended_is_taken_up_again_if_nobody_else_attached() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    let before = pond.leases();
    pond.cluster.revoke_attachments();
    turn_until(&mut volumes, |_| {
        let now = pond.leases();
        (now.len() == 1 && now != before).then_some(())
    });
    // Nobody was fenced meanwhile, and others are kept out again.
    volumes.write(disk, 1, 0, 4096, filled(4096));
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
    assert!(matches!(pond.attach(false), Err(AttachError::Cluster(cluster::ClusterError::Attached { .. }))));
}

#[test]
fn a_lost_lease_ends_every_further_turn_with_the_reason() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    pond.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    volumes.write(disk, 1, 0, 4096, filled(4096));
    pond.cluster.take_over("disk");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut others = Vec::new();
    let error = loop {
        assert!(Instant::now() < deadline);
        if let Err(error) = volumes.turn(Some(Duration::from_secs(1)), &mut others) {
            break error;
        }
    };
    assert!(error.to_string().contains("lease ended"), "{error}");
    assert!(matches!(volumes.turn(None, &mut others), Err(LoopError::Lost { .. })));
    while volumes.reactor().connection_count() > 0 {
        assert!(Instant::now() < deadline, "its link is never closed");
        volumes.reactor().turn(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
    }
}

#[test]
fn a_final_refusal_fails_and_a_passing_one_is_waited_out() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    pond.cluster.set_faults(Faults { refuse_writes: Some(Status::NoSpace), ..Faults::default() });
    volumes.write(disk, 1, 0, 4096, filled(4096));
    let outcome = completion(&mut volumes).outcome;
    assert!(matches!(outcome, Outcome::Failed(ClientError::NoSpace { .. })), "{outcome:?}");
    pond.cluster.set_faults(Faults { refuse_writes: Some(Status::NotActive), ..Faults::default() });
    volumes.write(disk, 2, 0, 4096, filled(4096));
    turn_until(&mut volumes, |volumes| volumes.trouble());
    pond.cluster.set_faults(Faults::default());
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
    assert_eq!(volumes.operations_in_flight(), 0);
}

#[test]
fn what_an_osd_swallowed_is_sent_again_on_a_new_connection() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    volumes.write(disk, 1, 0, 4096, filled(4096));
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
    pond.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    volumes.write(disk, 2, 8192, 4096, filled(4096));
    for _ in 0..3 {
        volumes.turn(Some(Duration::from_millis(100)), &mut Vec::new()).unwrap();
    }
    // It heard the request and will never answer it.
    pond.cluster.set_faults(Faults::default());
    assert_eq!(completion(&mut volumes).outcome, Outcome::Done);
    assert_eq!(pond.cluster.allocated_blocks(), 2);
}

#[test]
fn an_idle_loop_does_not_turn_by_itself() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    volumes.read(disk, 1, 0, 4096, Buffer::new(4096));
    completion(&mut volumes);
    let (mut others, before) = (Vec::new(), volumes.reactor().enters());
    let started = Instant::now();
    volumes.turn(Some(Duration::from_millis(300)), &mut others).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(250), "something woke it: {others:?}");
    assert_eq!(volumes.reactor().enters(), before + 1);
}

#[test]
fn links_are_made_anew_when_encryption_is_switched_and_nothing_is_said_in_plain_where_it_is_on() {
    let pond = pond();
    let mut volumes = pond.attach(false).unwrap();
    let disk = volumes.volumes()[0].handle;
    let mut token = 0;
    let mut write_until = |volumes: &mut VolumeLoop, is_so: &dyn Fn(Served) -> bool| {
        let (before, deadline) = (pond.cluster.served(), Instant::now() + Duration::from_secs(20));
        loop {
            token += 1;
            volumes.write(disk, token, 0, 256 << 10, filled(256 << 10));
            assert_eq!(completion(volumes).outcome, Outcome::Done);
            let now = pond.cluster.served();
            let since =
                Served { encrypted: now.encrypted - before.encrypted, plain: now.plain - before.plain };
            if is_so(since) {
                return since;
            }
            assert!(Instant::now() < deadline, "{since:?}");
        }
    };
    write_until(&mut volumes, &|served| served.plain >= 2 && served.encrypted == 0);
    pond.cluster.set_encryption(Encryption::On);
    write_until(&mut volumes, &|served| served.encrypted >= 2);
    let since = write_until(&mut volumes, &|served| served.encrypted >= 8);
    assert_eq!(since.plain, 0);
    volumes.read(disk, 0, 0, 1 << 20, Buffer::new(1 << 20));
    let read = completion(&mut volumes);
    assert!(read.buffer.unwrap().bytes()[..256 << 10] == *filled(256 << 10).bytes());
    pond.cluster.set_encryption(Encryption::Off);
    write_until(&mut volumes, &|served| served.plain >= 2);
}

#[test]
fn whoever_attaches_where_encryption_is_on_says_no_word_in_plain() {
    let pond = pond();
    pond.cluster.set_encryption(Encryption::On);
    let mut first = pond.attach(false).unwrap();
    // With something under way, so that whoever attaches next has it fenced.
    pond.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    first.write(first.volumes()[0].handle, 1, 0, 4096, filled(4096));
    turn_until(&mut first, |_| (pond.cluster.served().encrypted >= 2).then_some(()));
    drop(first);
    pond.cluster.set_faults(Faults::default());
    let mut second = pond.attach(false).unwrap();
    assert_eq!(pond.cluster.fences().len(), 1);
    second.read(second.volumes()[0].handle, 1, 0, 4096, Buffer::new(4096));
    assert_eq!(completion(&mut second).outcome, Outcome::Done);
    assert_eq!(pond.cluster.served().plain, 0);
}
