//! Snapshots are made and removed by themselves, whoever manages the cluster, until somebody says that they are not.

use crate::common::pond::Pond;
use crate::common::whole::becomes_whole;
use crate::common::{names, wait_longer};
use nix::sys::signal::Signal;
use std::time::Duration;
use testkit::process::signal;

/// The shortest interval that there is.
const EVERY: Duration = Duration::from_secs(10);
/// Clients whose groups wait for a node that was killed do not stand still: it is tried again.
const MADE_WITHIN: Duration = Duration::from_secs(90);

/// The names of the snapshots of a volume, the oldest first.
fn made(pond: &Pond, volume: &str) -> Vec<String> {
    let all = pond.list(&["volume", "snapshot", "ls", volume]);
    all.iter().map(|one| one["name"].as_str().expect("a name is text").to_owned()).collect()
}

#[test]
fn snapshots_are_made_and_removed_by_themselves_also_when_the_manager_is_killed_until_that_is_paused() {
    let pond = Pond::start("512MiB");
    ["v", "w"].into_iter().for_each(|volume| pond.volume(volume, "64MiB"));
    names(&pond.run(&["schedule", "ls"]), &["there is no schedule"]);
    let create = |flags: &[&'static str]| [&["schedule", "create", "often"], flags].concat();
    for (flags, words) in [
        (&["--every", "0", "--keep", "2 last", "v"][..], &["no time at all"][..]),
        (&["--every", "9s", "--keep", "2 last", "v"], &["from 10s to 366d"]),
        (&["--every", "10s", "--keep", "2 fortnightly", "v"], &["2 fortnightly", "daily"]),
        (&["--every", "10s", "--keep", "2 last", "x"], &["no volume x", "volume ls"]),
        (&["--every", "10s", "--keep", "2 last", "v", "v"], &["v is named twice"]),
    ] {
        pond.refused(&create(flags), words);
    }
    let door = pond.serve("v");
    let mut client = door.client();
    client.write(0, &[1; 4096]).expect("it lies within the volume");
    becomes_whole(&pond);
    let said = pond.run(&create(&["--every", "10s", "--keep", "2 last", "v", "w"]));
    names(&said, &["schedule often made", "the next snapshots are made"]);
    pond.refused(
        &create(&["--every", "10s", "--keep", "2 last", "v"]),
        &["often already", "schedule set often"],
    );
    wait_longer(MADE_WITHIN, "the first snapshot is made", || !made(&pond, "v").is_empty());
    let first = made(&pond, "v").remove(0);
    assert!(first.starts_with("often-2") && first.ends_with('Z'), "{first}");
    client.write(0, &[2; 4096]).expect("it lies within the volume");
    let door_of_first = pond.serve(&format!("v@{first}"));
    let mut reader = door_of_first.client();
    assert!(reader.read(0, 4096).expect("it lies within the snapshot") == [1; 4096]);
    drop((reader, door_of_first));

    let manager = pond.status()["manager"]["pid"].as_i64().expect("somebody manages the cluster");
    signal(i32::try_from(manager).expect("a process has such an id"), Signal::SIGKILL);
    wait_longer(MADE_WITHIN, "later ones are made, and the first goes", || {
        let made = made(&pond, "v");
        made.len() == 2 && !made.contains(&first)
    });
    let listed = pond.list(&["volume", "snapshot", "ls", "v"]);
    assert!(listed.iter().all(|one| one["schedule"] == "often"), "{listed:?}");
    let shown = pond.json(&["schedule", "info", "often"]);
    assert_eq!((&shown["every_seconds"], &shown["keep"]), (&10.into(), &"2 last".into()));
    assert!(shown["last_unix_seconds"].is_u64() && shown["next_unix_seconds"].is_u64(), "{shown}");

    names(&pond.run(&["schedule", "pause", "often"]), &["is paused", "schedule resume often"]);
    let left = made(&pond, "v");
    assert_eq!(made(&pond, "w"), left, "both have all of them");
    std::thread::sleep(EVERY + Duration::from_secs(2));
    assert_eq!((made(&pond, "v"), made(&pond, "w")), (left.clone(), left.clone()));
    assert_eq!(pond.list(&["schedule", "ls"])[0]["state"], "paused");
    names(&pond.run(&["schedule", "rm", "often"]), &["often removed", "4 snapshots", "stay"]);
    pond.refused(&["schedule", "info", "often"], &["no schedule often", "schedule ls"]);
    assert_eq!(made(&pond, "v"), left);
}
