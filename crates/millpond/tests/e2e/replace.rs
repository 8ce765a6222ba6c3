//! Drives that are lost, OSDs that are drained, removed and added under load: clients see neither an error nor anything
//! old, the data is where it shall be, and then all replicas are the same.

use crate::common::fio::fio_notices_nothing_of;
use crate::common::pond::{Pond, runs};
use crate::common::random::Random;
use crate::common::whole::{MOVED_WITHIN, becomes_whole, groups, is_removed, node_of, osd_view, osds_in};
use crate::common::{names, path, wait_longer, wait_until};
use nix::sys::signal::Signal;
use std::fs::File;
use testkit::process::signal;

#[test]
fn a_drive_that_is_lost_is_replaced_by_another_while_fio_verifies() {
    let pond = Pond::start("3GiB");
    fio_notices_nothing_of(&pond, |pond| {
        loses_its_drive(pond, 1);
        pond.refused(&["osd", "rm", "1"], &["osd.1 is in", "osd out 1"]);
        pond.run(&["osd", "out", "osd.1"]);
        is_removed(pond, 1);
        let added = pond.run(&["osd", "add", "--size", "3GiB"]);
        names(&added, &["osd.3 is up on node.1", "osd.3.img"]);
        becomes_whole(pond);

        // Another one, and what replaces it is put where it was.
        loses_its_drive(pond, 0);
        pond.run(&["osd", "out", "0"]);
        is_removed(pond, 0);
        let drive = pond.osd_file(0);
        let added = pond.run(&["osd", "add", "--device", path(&drive), "--node", "0"]);
        names(&added, &["osd.4 is up on node.0", "osd.0.img"]);
        becomes_whole(pond);
    });
    // All of it is remembered.
    pond.up();
    becomes_whole(&pond);
    assert_eq!(osds(&pond), [2, 3, 4]);
}

#[test]
fn an_osd_that_lives_is_drained_and_removed_while_fio_verifies() {
    let pond = Pond::start_with(&["--osd-size", "3GiB", "--nodes", "4"]);
    fio_notices_nothing_of(&pond, |pond| {
        let node = node_of(pond, 2);
        assert!(holds(pond, 2) > 0);
        names(&pond.run(&["osd", "out", "2"]), &["are being moved", "osd rm 2"]);
        pond.refused(&["osd", "rm", "2"], &["osd.2 cannot be removed yet"]);
        wait_longer(MOVED_WITHIN, "nothing is left on it", || holds(pond, 2) == 0);
        becomes_whole(pond);
        wait_longer(MOVED_WITHIN, "what it held is deleted", || {
            osd_view(pond, 2).is_some_and(|osd| osd["used_bytes"] == 0)
        });
        is_removed(pond, 2);
        wait_until("its process has ended", || !runs(node));
        wait_until("that is told", || {
            pond.log("up.log").contains("node.2 has ended: it has no OSD any more")
        });
        pond.refused(
            &["osd", "out", "0"],
            &["leave 2 OSDs for the 3 copies of pool default", "--allow-fewer-copies", "osd add"],
        );
    });
    assert!(!pond.log("up.log").contains("starts again"), "{}", pond.log("up.log"));
    pond.up();
    becomes_whole(&pond);
    assert_eq!(osds(&pond), [0, 1, 3]);
}

#[test]
fn a_pool_gives_a_copy_back_and_gets_it_again_while_fio_verifies() {
    let pond = Pond::start("3GiB");
    fio_notices_nothing_of(&pond, |pond| {
        pond.refused(
            &["pool", "set", "default", "--size", "4"],
            &["wants 4 copies", "only 3 OSDs are in", "osd add"],
        );
        pond.refused(&["pool", "set", "default", "--size", "1"], &["min-size 2 does not fit 1 copies"]);
        let told = pond.run(&["pool", "set", "default", "--size", "2"]);
        names(&told, &["shall keep 2 copies", "millpond status"]);
        wait_longer(MOVED_WITHIN, "every group has two copies", || {
            groups(pond).iter().all(|group| osds_in(group, "in_sync").len() == 2)
        });
        pond.run(&["pool", "set", "default", "--size", "3"]);
        becomes_whole(pond);
    });
}

#[test]
fn an_osd_that_stays_away_is_replaced_by_the_others_without_a_hand_and_comes_back_while_fio_verifies() {
    let pond = Pond::start_with(&["--osd-size", "3GiB", "--nodes", "4", "--osd-out-after", "10s"]);
    fio_notices_nothing_of(&pond, |pond| {
        // Where it does not find its drive it does not come back.
        let (drive, away) = (pond.osd_file(1), pond.scratch().join("away.img"));
        std::fs::rename(&drive, &away).expect("the drive's file can be moved");
        signal(node_of(pond, 1), Signal::SIGKILL);
        wait_until("status says what becomes of it", || {
            let text = pond.run(&["status"]);
            text.contains("osd.1 on node.1 is down") && text.contains("it is taken out in")
        });
        wait_until("it is out", || admission(pond, 1) == "out_while_down");
        wait_longer(MOVED_WITHIN, "it holds nothing", || holds(pond, 1) == 0);
        becomes_whole(pond);

        std::fs::rename(&away, &drive).expect("the drive's file can be moved back");
        wait_until("it is back and in", || admission(pond, 1) == "in");
        wait_longer(MOVED_WITHIN, "data is placed on it again", || holds(pond, 1) > 0);
        becomes_whole(pond);
    });
}

#[test]
fn the_other_osds_of_a_node_go_on_when_one_is_removed_and_when_one_is_added() {
    let scratch = crate::common::scratch();
    let drives: Vec<_> = (0..5).map(|index| scratch.path().join(format!("drive.{index}"))).collect();
    for drive in &drives {
        let file = File::create(drive).expect("a file can be made");
        file.set_len(512 << 20).expect("it can be sparse");
    }
    let mut flags = vec!["--nodes", "2", "--replicas", "2"];
    for drive in &drives[..4] {
        flags.extend(["--device", path(drive)]);
    }
    let pond = Pond::start_with(&flags);
    pond.volume("v", "64MiB");
    let door = pond.serve("v");
    let mut client = door.client();
    let data = Random::seeded().bytes(4 << 20);
    client.write(0, &data).expect("it can be written");

    // Of node.0, on the drives 0 and 2.
    let node = node_of(&pond, 1);
    assert_eq!(node, node_of(&pond, 0));
    pond.run(&["osd", "out", "0"]);
    is_removed(&pond, 0);
    assert_eq!(node, node_of(&pond, 1), "the process was started again");
    assert!(client.read(0, data.len() as u32).expect("it can be read") == data);

    pond.refused(&["osd", "add", "--device", path(&drives[0])], &["holds osd.0", "osd wipe"]);
    pond.refused(&["osd", "add", "--device", path(&drives[1])], &["is a drive of this cluster already"]);
    names(&pond.run(&["osd", "add", "--device", path(&drives[4])]), &["osd.4 is up on node.0"]);
    assert_ne!(node_of(&pond, 4), node, "it has a process of its own until the next start");

    // Started again, the process knows which drives are left to it.
    signal(node, Signal::SIGKILL);
    wait_until("the node is back", || {
        let pid = osd_view(&pond, 1).and_then(|osd| osd["pid"].as_i64());
        pid.is_some_and(|pid| pid != i64::from(node))
    });
    pond.becomes_active();
    assert!(client.read(0, data.len() as u32).expect("it can be read") == data);
    drop(client);
    drop(door);
    pond.down();
    pond.up();
    pond.becomes_active();
    assert_eq!(osds(&pond), [1, 2, 3, 4]);
    assert_eq!(node_of(&pond, 4), node_of(&pond, 1), "one process for each node again");

    // At once after its OSD was removed, and at once after its process was killed.
    let drive_of = |osd| {
        let view = osd_view(&pond, osd).expect("the OSD is there");
        view["path"].as_str().expect("its drive is known").to_owned()
    };
    let (removed, killed) = (drive_of(2), drive_of(1));
    pond.run(&["osd", "out", "2"]);
    is_removed(&pond, 2);
    pond.run(&["osd", "wipe", &removed, "--yes"]);
    names(&pond.run(&["osd", "add", "--device", &removed]), &["osd.5 is up"]);
    pond.kill_all(&[], |_| ());
    pond.run(&["osd", "wipe", &killed, "--yes"]);
}

/// Kills the node of an OSD and empties its drive before it is started again.
fn loses_its_drive(pond: &Pond, osd: u32) {
    let node = node_of(pond, osd);
    let drive = pond.osd_file(osd);
    let bytes = std::fs::metadata(&drive).expect("the drive's file is there").len();
    signal(node, Signal::SIGKILL);
    wait_until("its process is gone", || !runs(node));
    let file = File::options().write(true).open(&drive).expect("the drive's file can be written");
    file.set_len(0).and_then(|()| file.set_len(bytes)).expect("it can be emptied");
    wait_until("it is known to be down", || osd_view(pond, osd).is_some_and(|osd| osd["up"] == false));
    let said = format!("is blank, but osd.{osd} was on it");
    wait_until("the drive is not taken for a new one", || {
        pond.log(&format!("node.{osd}.log")).contains(&said)
    });
}

/// How many groups an OSD holds, or is catching up in.
fn holds(pond: &Pond, osd: u32) -> usize {
    let is_in = |group, field| osds_in(group, field).contains(&u64::from(osd));
    groups(pond).iter().filter(|group| is_in(group, "in_sync") || is_in(group, "learners")).count()
}

fn admission(pond: &Pond, osd: u32) -> String {
    let view = osd_view(pond, osd).expect("the OSD is there");
    view["admission"].as_str().expect("it is in or out").to_owned()
}

fn osds(pond: &Pond) -> Vec<u64> {
    let status = pond.status();
    let osds = status["osds"].as_array().expect("the status lists the OSDs");
    osds.iter().filter_map(|osd| osd["osd"].as_u64()).collect()
}
