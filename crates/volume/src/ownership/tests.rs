//! Volumes that are opened, against a registry on a socket and an OSD in memory: who owns them when, and what becomes of who dies.

use crate::testing::{Faults, TestCluster};
use crate::{AttachError, LoopError, OpenAs, SessionOptions, VolumeLoop};
use base::Buffer;
use client::{ClientError, Outcome};
use cluster::WatchMode;
use ring::ReactorOptions;
use std::time::{Duration, Instant};
use wire::Status;

struct Pond {
    _directory: tempfile::TempDir,
    cluster: TestCluster,
}

impl Pond {
    fn new() -> Pond {
        let directory = tempfile::tempdir().unwrap();
        let cluster = TestCluster::start(directory.path());
        cluster.create_volume("disk", 64 << 20);
        Pond { _directory: directory, cluster }
    }

    fn try_open(&self, open: OpenAs, timeout: Option<Duration>) -> Result<VolumeLoop, AttachError> {
        let (cluster, volumes) = (self.cluster.access(), vec!["disk".to_owned()]);
        let options =
            SessionOptions { cluster, volumes, open, timeout, purpose: format!("{open:?}"), note: None };
        VolumeLoop::attach(options, ReactorOptions { connections_max: 64, ..ReactorOptions::default() })
    }

    fn open(&self, open: OpenAs) -> VolumeLoop {
        self.try_open(open, None).unwrap()
    }

    /// Who has it attached, and who has it open and how.
    fn seen(&self) -> (Vec<String>, Vec<WatchMode>) {
        self.cluster.with(async |cluster| {
            let id = cluster.map().await.unwrap().volume_named("disk").unwrap().0;
            let attached = cluster.attachments(id).await.unwrap();
            let purpose = |text: String| text.rsplit(", ").next().unwrap_or_default().to_owned();
            let attached = attached.into_iter().map(|record| purpose(record.description)).collect();
            let watchers = cluster.watchers(id).await.unwrap();
            (attached, watchers.into_iter().map(|record| record.mode).collect())
        })
    }

    fn generation(&self) -> u32 {
        let map = self.cluster.with(async |cluster| cluster.map().await.unwrap());
        map.volume_named("disk").unwrap().1.generation.0
    }

    /// Ends the leases of attachments, or of all that is open, as time does with those of who is dead.
    fn ends_leases(&self, below: &str) {
        self.cluster.with(async |cluster| {
            for entry in cluster.registry().range(below).await.unwrap().entries {
                cluster.registry().lease_revoke(entry.lease.unwrap()).await.unwrap();
            }
        });
    }
}

/// Turns all of them until it is so.
fn until(loops: &mut [&mut VolumeLoop], mut is_so: impl FnMut(&mut [&mut VolumeLoop]) -> bool) {
    let (deadline, mut others) = (Instant::now() + Duration::from_secs(30), Vec::new());
    while !is_so(loops) {
        assert!(Instant::now() < deadline, "it does not come: {:?}", loops[0].trouble());
        for one in loops.iter_mut() {
            one.turn(Some(Duration::from_millis(1)), &mut others).unwrap();
        }
    }
}

fn write(of: &mut VolumeLoop, token: u64, byte: u8) {
    let (disk, mut buffer) = (of.volumes()[0].handle, Buffer::new(4096));
    buffer.bytes_mut().unwrap().fill(byte);
    of.write(disk, token, 0, 4096, buffer);
}

/// Waits for the one operation of the first.
fn outcome(loops: &mut [&mut VolumeLoop]) -> (Outcome, Option<Buffer>) {
    let mut done = None;
    until(loops, |loops| {
        done = loops[0].poll_completion().map(|completion| (completion.outcome, completion.buffer));
        done.is_some()
    });
    done.unwrap()
}

/// What the first one reads.
fn read(loops: &mut [&mut VolumeLoop]) -> u8 {
    let disk = loops[0].volumes()[0].handle;
    loops[0].read(disk, 99, 0, 4096, Buffer::new(4096));
    let (done, buffer) = outcome(loops);
    assert_eq!(done, Outcome::Done);
    buffer.unwrap().bytes()[0]
}

#[test]
fn who_reads_a_volume_sees_what_its_owner_writes_and_disturbs_nobody() {
    let pond = Pond::new();
    let mut owner = pond.open(OpenAs::Owner);
    let mut reader = pond.open(OpenAs::Reader);
    let generation = pond.generation();
    assert_eq!(pond.seen(), (vec!["Owner".to_owned()], vec![WatchMode::ReadOnly]));
    for byte in 1..4 {
        write(&mut owner, 1, byte);
        assert_eq!(outcome(&mut [&mut owner, &mut reader]).0, Outcome::Done);
        assert_eq!(read(&mut [&mut reader, &mut owner]), byte);
    }
    write(&mut reader, 1, 9);
    let refused = outcome(&mut [&mut reader]).0;
    assert!(matches!(refused, Outcome::Failed(ClientError::ReadOnly { .. })), "{refused:?}");
    // Others come after the first owner; it reads on.
    drop(owner);
    let mut owner = pond.open(OpenAs::Owner);
    write(&mut owner, 1, 7);
    assert_eq!(outcome(&mut [&mut owner]).0, Outcome::Done);
    assert_eq!(read(&mut [&mut reader, &mut owner]), 7);
    assert_eq!(pond.generation(), generation + 1);
    drop(reader);
    assert_eq!(pond.seen().1, vec![]);
}

#[test]
fn who_writes_by_turns_hands_the_volume_over_each_time_and_fences_nobody() {
    let pond = Pond::new();
    let (mut one, mut two) = (pond.open(OpenAs::Writer), pond.open(OpenAs::Writer));
    assert_eq!((pond.seen(), pond.generation()), ((vec![], vec![WatchMode::ReadWrite; 2]), 0));
    assert_eq!(read(&mut [&mut one, &mut two]), 0);
    assert_eq!(pond.generation(), 0, "nobody is needed for that");
    let mut took = Vec::new();
    for round in 1..=10 {
        for turn in [false, true] {
            let (writer, other) = if turn { (&mut one, &mut two) } else { (&mut two, &mut one) };
            let (byte, began) = (2 * round + u8::from(turn), Instant::now());
            write(writer, 1, byte);
            assert_eq!(outcome(&mut [writer, other]).0, Outcome::Done);
            took.push(began.elapsed());
            assert_eq!(read(&mut [other, writer]), byte);
            assert_eq!(pond.seen().0, ["Writer"]);
        }
    }
    took.sort_unstable();
    println!("written by turns: half of the writes took {:?} at most, all of them {:?}", took[10], took[19]);
    assert_eq!(pond.generation(), 20);
    assert_eq!(pond.cluster.fences(), vec![], "each had nothing under way when the next one came");
    drop((one, two));
    assert_eq!(pond.seen(), (vec![], vec![]));
}

#[test]
fn an_owner_with_a_write_under_way_gives_the_volume_up_when_that_has_ended() {
    let pond = Pond::new();
    let (mut one, mut two) = (pond.open(OpenAs::Writer), pond.open(OpenAs::Writer));
    write(&mut one, 1, 1);
    assert_eq!(outcome(&mut [&mut one, &mut two]).0, Outcome::Done);
    pond.cluster.set_faults(Faults { refuse_writes: Some(Status::NotActive), ..Faults::default() });
    write(&mut one, 2, 2);
    write(&mut two, 3, 3);
    let began = Instant::now();
    until(&mut [&mut one, &mut two], |_| began.elapsed() > Duration::from_secs(2));
    assert_eq!(pond.generation(), 1, "it is not given up");
    assert!(two.trouble().unwrap().contains("Writer"), "{:?}", two.trouble());
    pond.cluster.set_faults(Faults::default());
    assert_eq!(outcome(&mut [&mut one, &mut two]).0, Outcome::Done);
    assert_eq!(outcome(&mut [&mut two, &mut one]).0, Outcome::Done);
    assert_eq!((pond.generation(), read(&mut [&mut one, &mut two])), (2, 3));
    assert_eq!(pond.cluster.fences(), vec![]);
}

#[test]
fn what_may_take_effect_yet_of_an_owner_is_fenced_by_itself_before_it_gives_the_volume_up() {
    let pond = Pond::new();
    let mut one = pond.try_open(OpenAs::Writer, Some(Duration::from_secs(1))).unwrap();
    let mut two = pond.open(OpenAs::Writer);
    write(&mut one, 1, 1);
    assert_eq!(outcome(&mut [&mut one, &mut two]).0, Outcome::Done);
    pond.cluster.set_faults(Faults { refuse_writes: Some(Status::NotActive), ..Faults::default() });
    write(&mut one, 2, 2);
    let failed = outcome(&mut [&mut one, &mut two]).0;
    assert!(matches!(failed, Outcome::Failed(ClientError::TimedOut { .. })), "{failed:?}");
    pond.cluster.set_faults(Faults::default());
    write(&mut two, 3, 3);
    assert_eq!(outcome(&mut [&mut two, &mut one]).0, Outcome::Done);
    // Its own, and no other.
    assert_eq!((pond.generation(), pond.cluster.fences().len()), (3, 1));
}

#[test]
fn who_keeps_a_volume_is_not_asked_and_who_would_change_it_is_told_whose_it_is() {
    let pond = Pond::new();
    let mut writer = pond.open(OpenAs::Writer);
    let owner = pond.open(OpenAs::Owner);
    write(&mut writer, 1, 1);
    let Outcome::Failed(error) = outcome(&mut [&mut writer]).0 else { panic!("it is another's") };
    assert!(matches!(error, ClientError::NotOwned { .. }), "{error}");
    assert!(error.to_string().contains("Owner has it attached"), "{error}");
    assert_eq!(read(&mut [&mut writer]), 0, "it reads on");
    drop(owner);
    write(&mut writer, 2, 2);
    assert_eq!(outcome(&mut [&mut writer]).0, Outcome::Done);
    let refused = pond.try_open(OpenAs::Owner, None).err().unwrap().to_string();
    assert!(refused.contains("Writer") && refused.contains("--open"), "{refused}");
}

#[test]
fn an_owner_that_does_not_answer_is_waited_for_up_to_the_time_limit_and_fenced_when_its_lease_ends() {
    let pond = Pond::new();
    let mut silent = pond.open(OpenAs::Writer);
    let mut other = pond.try_open(OpenAs::Writer, Some(Duration::from_secs(2))).unwrap();
    write(&mut silent, 1, 1);
    assert_eq!(outcome(&mut [&mut silent, &mut other]).0, Outcome::Done);
    // It takes no turn from now on, and its session keeps the lease alive.
    write(&mut other, 2, 2);
    let Outcome::Failed(error) = outcome(&mut [&mut other]).0 else { panic!("it is another's") };
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("Writer, which has not given it up"), "{error}");
    pond.ends_leases("millpond/attached/");
    write(&mut other, 3, 3);
    assert_eq!(outcome(&mut [&mut other]).0, Outcome::Done);
    assert_eq!(pond.cluster.fences().len(), 1);
    // It learns that it has it no more, and whatever it sends is refused.
    let mut others = Vec::new();
    let lost = loop {
        match silent.turn(Some(Duration::from_millis(100)), &mut others) {
            Ok(()) => {}
            Err(LoopError::Lost { reason }) => break reason,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(lost.contains("lease ended"), "{lost}");
}

#[test]
fn who_has_a_volume_only_open_goes_on_when_its_lease_has_ended() {
    let pond = Pond::new();
    let mut writer = pond.open(OpenAs::Writer);
    pond.ends_leases("millpond/watcher/");
    assert_eq!(pond.seen(), (vec![], vec![]));
    until(&mut [&mut writer], |_| !pond.seen().1.is_empty());
    write(&mut writer, 1, 1);
    assert_eq!(outcome(&mut [&mut writer]).0, Outcome::Done);
}

#[test]
fn an_asker_that_goes_before_its_turn_leaves_nothing_behind() {
    let pond = Pond::new();
    let (mut one, mut two) = (pond.open(OpenAs::Writer), pond.open(OpenAs::Writer));
    write(&mut one, 1, 1);
    assert_eq!(outcome(&mut [&mut one, &mut two]).0, Outcome::Done);
    pond.cluster.set_faults(Faults { refuse_writes: Some(Status::NotActive), ..Faults::default() });
    write(&mut one, 2, 2);
    write(&mut two, 3, 3);
    let wishes = || {
        let range = pond.cluster.with(async |cluster| cluster.registry().range("millpond/map/wish/").await);
        range.unwrap().entries.len()
    };
    until(&mut [&mut one, &mut two], |_| wishes() == 1);
    drop(two);
    assert_eq!(wishes(), 0);
    pond.cluster.set_faults(Faults::default());
    for (token, byte) in [(0, 0), (4, 4)] {
        if token > 0 {
            write(&mut one, token, byte);
        }
        assert_eq!(outcome(&mut [&mut one]).0, Outcome::Done);
    }
    assert_eq!(pond.generation(), 1, "it kept it");
}
