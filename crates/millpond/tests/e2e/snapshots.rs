//! Snapshots hold what there was at one moment, of one volume or of several, whatever is written and whoever is killed
//! meanwhile; and what no other needs of one that is removed is free.

use crate::common::door::Door;
use crate::common::nbd::NbdClient;
use crate::common::pond::Pond;
use crate::common::replicas::replicas_are_equal;
use crate::common::whole::{BLOCK, OSDS, becomes_whole, every_epoch_ends, node_of};
use crate::common::{names, wait_longer, wait_until};
use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::process::signal;

/// Blocks that are written in turn, [`APART`] bytes from one to the next, so that all placement groups have some.
const STAMPED: u64 = 64;
const APART: u64 = 1 << 20;
const VOLUME_BYTES: &str = "64MiB";
/// What is told of a removal, counted and deleted, takes no longer.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// A client that was killed is known to be gone within 10 s.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);

fn stamp(client: &mut NbdClient, number: u64) {
    let block = number.to_le_bytes().repeat(BLOCK as usize / 8);
    client.write(number % STAMPED * APART, &block).expect("it lies within the volume");
}

/// The number that was written last, by what is found in all blocks; which must be what the writes up to it left.
fn last_stamp(client: &mut NbdClient) -> u64 {
    let found: Vec<u64> = (0..STAMPED)
        .map(|block| {
            let data = client.read(block * APART, BLOCK as u32).expect("it lies within the volume");
            let number = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
            assert!(data.chunks(8).all(|part| part == number.to_le_bytes()), "block {block} is torn");
            number
        })
        .collect();
    let last = found.iter().copied().max().unwrap_or_default();
    for (block, number) in found.iter().enumerate() {
        let block = block as u64;
        // The highest number up to the last one that is written there; 0 is written nowhere.
        let expected = last.saturating_sub((last + STAMPED - block) % STAMPED);
        assert_eq!(*number, expected, "block {block}, where {last} was written last");
    }
    last
}

/// What a snapshot of two volumes shows of a writer that writes each number to the first and then to the second.
fn stamps_of(pond: &Pond, snapshot: &str) -> (u64, u64) {
    let last = |volume: &str| {
        let door = pond.serve(&format!("{volume}@{snapshot}"));
        last_stamp(&mut door.client())
    };
    (last("cause"), last("effect"))
}

#[test]
fn snapshots_of_two_volumes_hold_no_effect_without_its_cause_whoever_is_killed_meanwhile() {
    let pond = Pond::start("1GiB");
    ["cause", "effect"].into_iter().for_each(|volume| pond.volume(volume, VOLUME_BYTES));
    let doors = ["cause", "effect"].map(|volume| pond.serve(volume));
    becomes_whole(&pond);
    let (enough, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let take = |name: &str| {
        let before = written.load(Ordering::Relaxed);
        let [cause, effect] = ["cause", "effect"].map(|volume| format!("{volume}@{name}"));
        // Clients that wait for a group which changes hands do not stand still yet.
        wait_until("a snapshot is made", || {
            let (worked, _, said) = pond.attempt(&["volume", "snapshot", "create", &cause, &effect]);
            assert!(worked || said.contains("did not stand still"), "{said}");
            worked
        });
        (before, written.load(Ordering::Relaxed) + 1)
    };
    let mut spans = Vec::new();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut clients = doors.each_ref().map(Door::client);
            for number in 1.. {
                clients.iter_mut().for_each(|client| stamp(client, number));
                written.store(number, Ordering::Relaxed);
                if enough.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        wait_until("each block was written", || written.load(Ordering::Relaxed) >= STAMPED);
        spans.push(take("s0"));
        for osd in 0..OSDS {
            every_epoch_ends(&pond, || {
                signal(node_of(&pond, osd), Signal::SIGKILL);
                spans.push(take(&format!("s{}", spans.len())));
            });
            spans.push(take(&format!("s{}", spans.len())));
            becomes_whole(&pond);
        }
        assert!(!writing.is_finished(), "the writer ended early");
        enough.store(true, Ordering::Relaxed);
        writing.join().expect("nothing was refused");
    });
    // Each is as it was, after all that was written since and under other primaries.
    for (index, (before, after)) in spans.iter().enumerate() {
        let (cause, effect) = stamps_of(&pond, &format!("s{index}"));
        assert!(cause == effect || cause == effect + 1, "s{index} has cause {cause} and effect {effect}");
        assert!((*before..=*after).contains(&effect), "s{index}: {effect} is not within {before}..={after}");
    }
    let all = written.load(Ordering::Relaxed);
    assert_eq!(doors.each_ref().map(|door| last_stamp(&mut door.client())), [all, all]);
    drop(doors);
    replicas_are_equal(&pond, 2 * STAMPED);
}

#[test]
fn a_snapshot_is_read_and_not_written_and_what_only_it_held_is_free_when_it_is_removed() {
    let pond = Pond::start("1GiB");
    pond.volume("v", VOLUME_BYTES);
    let door = pond.serve("v");
    let mut client = door.client();
    let piece = |round: u8| vec![round; 1 << 20];
    let fill = |client: &mut NbdClient, round: u8| {
        (0..16).for_each(|at| client.write(at << 20, &piece(round)).expect("it lies within the volume"));
    };
    let used = || pond.status()["capacity"]["used_bytes"].as_u64().unwrap_or_default();
    let copies = u64::from(OSDS) * (16 << 20);
    fill(&mut client, 1);
    wait_until("what was written is counted", || used() >= copies);
    let before = used();
    names(&pond.run(&["volume", "snapshot", "create", "v@one"]), &["snapshot v@one made"]);
    fill(&mut client, 2);
    client.trim(0, 4 << 20).expect("it lies within the volume");
    wait_until("what was written is counted", || used() >= before + copies / 2);
    pond.refused(&["volume", "snapshot", "create", "v@one"], &["v", "one"]);
    pond.refused(&["volume", "snapshot", "create", "v"], &["VOLUME@SNAPSHOT"]);
    names(&pond.run(&["volume", "info", "v"]), &["snapshots   1"]);

    let frozen = pond.serve("v@one");
    let mut reader = frozen.client();
    for at in 0..16 {
        assert!(reader.read(at << 20, 1 << 20).expect("it lies within") == piece(1), "at {at} MiB of v@one");
        let now = if at < 4 { piece(0) } else { piece(2) };
        assert!(client.read(at << 20, 1 << 20).expect("it lies within") == now, "at {at} MiB of v");
    }
    assert!(reader.write(0, &piece(3)).is_err(), "a snapshot was written to");
    let space = pond.json(&["volume", "du", "v"]);
    assert_eq!(space["snapshots"], serde_json::json!([{"name": "one", "alone_bytes": 16 << 20}]));
    let [held, alone, shared] =
        ["held_bytes", "alone_bytes", "shared_bytes"].map(|what| space[what].as_u64());
    assert_eq!((held, alone, shared), (Some(28 << 20), Some(12 << 20), Some(0)));
    // A size is the snapshot's own.
    pond.run(&["volume", "resize", "v", "8MiB", "--allow-shrink"]);
    assert!(reader.read(15 << 20, 1 << 20).expect("it lies within the snapshot") == piece(1));
    drop((reader, frozen, client, door));

    pond.run(&["volume", "snapshot", "rename", "v@one", "first"]);
    let listed = pond.list(&["volume", "snapshot", "ls", "v"]);
    assert_eq!((&listed[0]["name"], &listed[0]["bytes"]), (&"first".into(), &(64 << 20).into()));
    pond.run(&["volume", "snapshot", "protect", "v@first"]);
    for removal in [&["volume", "snapshot", "rm", "v@first"][..], &["volume", "rm", "v", "--now"]] {
        pond.refused(removal, &["v@first is protected", "unprotect v@first"]);
    }
    pond.run(&["volume", "snapshot", "unprotect", "v@first"]);
    // Of those that are named, none is removed should one not be there.
    pond.refused(&["volume", "snapshot", "rm", "v@first", "v@last"], &["no snapshot v@last"]);
    names(&pond.run(&["volume", "snapshot", "rm", "v@first"]), &["snapshot v@first removed"]);
    pond.refused(&["volume", "snapshot", "rm", "v@first"], &["no snapshot v@first", "snapshot ls v"]);
    assert!(pond.try_serve("v@first").is_err(), "what was removed is served");
    // Half of what there was is beyond the end, and half of that is trimmed.
    wait_longer(GONE_WITHIN, "what only the snapshot held is deleted", || used() < before - copies / 2);
    let door = pond.serve("v");
    let mut client = door.client();
    for at in 0..8 {
        let now = if at < 4 { piece(0) } else { piece(2) };
        assert!(client.read(at << 20, 1 << 20).expect("it lies within") == now, "at {at} MiB of v");
    }
}

#[test]
fn a_snapshot_of_a_volume_whose_server_was_killed_is_made_when_that_one_is_fenced() {
    let pond = Pond::start("512MiB");
    pond.volume("v", VOLUME_BYTES);
    let mut door = pond.serve("v");
    stamp(&mut door.client(), 1);
    door.is_killed();
    wait_longer(SETTLED_WITHIN, "it is known to be gone", || {
        let (worked, _, said) = pond.attempt(&["volume", "snapshot", "create", "v@s"]);
        assert!(!worked, "what it has under way may arrive behind the snapshot");
        said.contains("fell silent") && said.contains("--fence")
    });
    pond.run(&["volume", "snapshot", "create", "v@s", "--fence"]);
    let door = pond.serve("v@s");
    assert_eq!(last_stamp(&mut door.client()), 1);
}
