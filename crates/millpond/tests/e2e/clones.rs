//! Volumes that begin with what a snapshot holds, need it no more when they are flattened, and go back to one of their own.

use crate::common::nbd::NbdClient;
use crate::common::pond::Pond;
use crate::common::whole::{OSDS, becomes_whole, node_of};
use crate::common::{names, wait_longer, wait_until};
use nix::sys::signal::Signal;
use std::time::Duration;
use testkit::process::signal;

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: &str = "64MiB";
const WRITTEN: u64 = 16;
/// What is told of a removal, counted and deleted, takes no longer.
const GONE_WITHIN: Duration = Duration::from_secs(60);

fn piece(round: u8) -> Vec<u8> {
    vec![round; MIB as usize]
}

fn fill(client: &mut NbdClient, pieces: std::ops::Range<u64>, round: u8) {
    pieces.for_each(|at| client.write(at * MIB, &piece(round)).expect("it lies within the volume"));
}

/// Checks which round each piece of a volume, or of a snapshot, is of.
fn holds(pond: &Pond, what: &str, expected: impl Fn(u64) -> u8) {
    let door = pond.serve(what);
    let mut client = door.client();
    for at in 0..WRITTEN + 2 {
        let held = client.read(at * MIB, MIB as u32).expect("it lies within the volume");
        assert!(held == piece(expected(at)), "at {at} MiB of {what}: {:?}", &held[..4]);
    }
}

/// What a volume holds of which the first pieces, so many, are of the first round.
fn first(count: u64) -> impl Fn(u64) -> u8 {
    move |at| u8::from(at < count)
}

#[test]
fn a_clone_holds_what_its_snapshot_holds_and_needs_it_no_more_when_it_is_flattened() {
    let pond = Pond::start("1GiB");
    pond.volume("v", VOLUME_BYTES);
    fill(&mut pond.serve("v").client(), 0..WRITTEN, 1);
    pond.run(&["volume", "snapshot", "create", "v@s"]);
    fill(&mut pond.serve("v").client(), 0..8, 2);
    names(&pond.run(&["volume", "clone", "v@s", "c"]), &["volume c made", "v@s"]);
    names(&pond.run(&["volume", "info", "c"]), &["clone of    v@s", "64MiB"]);
    names(&pond.run(&["volume", "snapshot", "ls", "v"]), &["s", "c"]);
    pond.refused(&["volume", "clone", "v@s", "v"], &["there is a volume v already"]);
    pond.refused(&["volume", "flatten", "v"], &["no clone"]);
    for removal in [&["volume", "snapshot", "rm", "v@s"][..], &["volume", "rm", "v", "--now"]] {
        pond.refused(removal, &["c was cloned from", "millpond volume flatten c"]);
    }
    holds(&pond, "c", first(WRITTEN));

    // What is written to it the other one does not see, to the byte; nor what is zeroed.
    let door = pond.serve("c");
    let mut client = door.client();
    fill(&mut client, 0..4, 3);
    client.trim(4 * MIB, 2 * MIB as u32).expect("it lies within the volume");
    client.write(10 * MIB + 5, &[9; 100]).expect("it lies within the volume");
    let edge = client.read(10 * MIB, 4096).expect("it lies within the volume");
    let expected: Vec<u8> = [(1, 5), (9, 100), (1, 4096 - 105)]
        .into_iter()
        .flat_map(|(byte, count)| std::iter::repeat_n(byte, count))
        .collect();
    assert!(edge == expected);
    client.write(10 * MIB, &piece(1)).expect("it lies within the volume");
    let of_clone = |at| match at {
        0..4 => 3,
        4..6 => 0,
        at => first(WRITTEN)(at),
    };
    pond.run(&["volume", "snapshot", "create", "c@t"]);
    pond.run(&["volume", "clone", "c@t", "d"]);
    fill(&mut client, 6..7, 4);
    drop((client, door));
    holds(&pond, "v", |at| if at < 8 { 2 } else { first(WRITTEN)(at) });
    holds(&pond, "d", of_clone);

    // What a clone loses of its parent when it is made smaller is not there when it grows.
    pond.run(&["volume", "clone", "v@s", "e"]);
    fill(&mut pond.serve("e").client(), 12..13, 5);
    pond.run(&["volume", "resize", "e", "9MiB", "--allow-shrink"]);
    pond.run(&["volume", "resize", "e", VOLUME_BYTES]);
    holds(&pond, "e", first(9));
    pond.run(&["volume", "rm", "e", "--now"]);

    // Others go on with it when a node is killed.
    pond.run(&["volume", "flatten", "c", "--no-wait"]);
    signal(node_of(&pond, 0), Signal::SIGKILL);
    names(&pond.run(&["volume", "flatten", "c"]), &["volume c is flat"]);
    becomes_whole(&pond);
    assert!(!pond.run(&["volume", "info", "c"]).contains("clone of"));
    pond.refused(&["volume", "flatten", "c"], &["no clone"]);
    pond.run(&["volume", "snapshot", "rm", "v@s"]);
    pond.run(&["volume", "rm", "v", "--now"]);
    holds(&pond, "c", |at| if at == 6 { 4 } else { of_clone(at) });
    holds(&pond, "c@t", of_clone);
    holds(&pond, "d", of_clone);
    pond.refused(&["volume", "snapshot", "rm", "c@t"], &["d was cloned from"]);
    pond.run(&["volume", "rm", "d", "--now"]);
    pond.run(&["volume", "snapshot", "rm", "c@t"]);
    // What waits for something to be deleted is not held up by what was flattened, whoever leads.
    pond.down();
    pond.up();
    pond.run(&["volume", "resize", "c", "8MiB", "--allow-shrink"]);
    pond.run(&["volume", "resize", "c", VOLUME_BYTES]);
    holds(&pond, "c", |at| {
        if at == 6 {
            4
        } else if at < 8 {
            of_clone(at)
        } else {
            0
        }
    });
}

#[test]
fn a_volume_is_rolled_back_to_a_snapshot_and_what_was_written_since_is_free() {
    let pond = Pond::start("1GiB");
    pond.volume("v", VOLUME_BYTES);
    let used = || pond.status()["capacity"]["used_bytes"].as_u64().unwrap_or_default();
    let door = pond.serve("v");
    let mut client = door.client();
    fill(&mut client, 0..WRITTEN, 1);
    pond.run(&["volume", "snapshot", "create", "v@one"]);
    fill(&mut client, 0..8, 2);
    pond.run(&["volume", "snapshot", "create", "v@two"]);
    let copies = |pieces: u64| u64::from(OSDS) * pieces * MIB;
    wait_until("what was written is counted", || used() >= copies(WRITTEN + 8));
    let before = used();
    fill(&mut client, 0..WRITTEN, 3);
    wait_until("what was written is counted", || used() >= before + copies(WRITTEN) / 2);
    let back = ["volume", "rollback", "v@one", "--discard-changes"];
    pond.refused(&back, &["volume v is attached", "detach it there first"]);
    drop((client, door));
    pond.refused(&back[..3], &["would be lost", "snapshot create v@NAME", "--discard-changes"]);
    pond.refused(&["volume", "rollback", "v@none", "--discard-changes"], &["no snapshot none"]);
    pond.run(&["volume", "resize", "v", "8MiB", "--allow-shrink"]);
    names(&pond.run(&back), &["volume v holds what v@one holds"]);
    names(&pond.run(&["volume", "info", "v"]), &["64MiB", "snapshots   2"]);
    wait_longer(GONE_WITHIN, "what was written since is deleted", || used() < before + copies(1));
    holds(&pond, "v", first(WRITTEN));
    holds(&pond, "v@two", |at| if at < 8 { 2 } else { first(WRITTEN)(at) });

    // To a newer one, and on from there.
    fill(&mut pond.serve("v").client(), 3..4, 5);
    pond.run(&["volume", "snapshot", "create", "v@three"]);
    pond.run(&["volume", "rollback", "v@two", "--discard-changes"]);
    holds(&pond, "v", |at| if at < 8 { 2 } else { first(WRITTEN)(at) });
    pond.run(&["volume", "snapshot", "rm", "v@two"]);
    pond.run(&["volume", "rollback", "v@three", "--discard-changes"]);
    for snapshot in ["v@one", "v@three"] {
        pond.run(&["volume", "snapshot", "rm", snapshot]);
    }
    wait_longer(GONE_WITHIN, "what nobody sees is deleted", || used() < copies(WRITTEN + 2));
    holds(&pond, "v", |at| if at == 3 { 5 } else { first(WRITTEN)(at) });
}
