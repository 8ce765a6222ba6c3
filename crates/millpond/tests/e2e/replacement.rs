//! Drives that are damaged, wiped, gone or swapped: the other OSDs go on, health says why theirs is not started and names one
//! command, and after that command, which may break off anywhere, the cluster is whole and nothing that was written is missing.

use crate::common::door::Door;
use crate::common::pond::{Pond, runs};
use crate::common::random::Random;
use crate::common::replicas::replicas_are_equal;
use crate::common::whole::{becomes_whole, groups, node_of, osd_view, osds_in};
use crate::common::{Process, command, names, path, scratch, wait_until};
use crate::damage::{blocks_that_hold, flip_bit};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::process::signal;

const MIB: u64 = 1 << 20;
/// Blocks that are written before anything happens.
const BLOCKS: u64 = 32;

/// A volume with a block at each of its first MiB, which is served all the time.
struct Written {
    door: Door,
    blocks: Vec<Vec<u8>>,
}

impl Written {
    fn on(pond: &Pond) -> Written {
        pond.volume("v", "64MiB");
        let (door, mut random) = (pond.serve("v"), Random::seeded());
        let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| random.bytes(4096)).collect();
        let mut client = door.client();
        for (index, block) in (0..).zip(&blocks) {
            // One batch each: the next write is sent when this one is acknowledged.
            client.write(index * MIB, block).expect("a healthy cluster writes");
        }
        drop(client);
        Written { door, blocks }
    }

    fn is_read_back(&self) {
        let mut client = self.door.client();
        for (index, block) in (0..).zip(&self.blocks) {
            assert!(client.read(index * MIB, 4096).expect("somebody has it") == *block, "block {index}");
        }
    }
}

/// Ends the process of an OSD, and does something before it is started again. While there is work the others notice that
/// soon.
fn ends(pond: &Pond, written: &Written, osd: u32, how: Signal, meanwhile: impl FnOnce()) {
    let node = node_of(pond, osd);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(600) {
        written.is_read_back();
    }
    signal(node, how);
    wait_until("its process is gone", || !runs(node));
    meanwhile();
}

fn make_blank(drive: &Path, bytes: u64) {
    let file = File::create(drive).expect("a file can be made");
    file.set_len(bytes).expect("it can be sparse");
}

/// Waits until health says why an OSD is not started, and what to do.
fn says_why(pond: &Pond, osd: u32, reason: &str) {
    let (what, next) = (
        format!("osd.{osd} on node.{osd} is down: it is not started: "),
        format!("`millpond osd replace {osd}`"),
    );
    let says = |problem: &Value| {
        let text = |field: &str| problem[field].as_str().expect("a problem is told in words").to_owned();
        problem["code"] == "OSD_START_REFUSED"
            && text("what").starts_with(&what)
            && text("what").contains(reason)
            && text("next").contains(&next)
    };
    wait_until("health says why, and what to do", || {
        let status = pond.status();
        status["health"]["problems"].as_array().expect("problems are listed").iter().any(says)
    });
}

/// Whether all is well, and the OSDs are those that there were.
fn is_well_again(pond: &Pond, written: &Written) {
    becomes_whole(pond);
    wait_until("nothing is wrong", || pond.status()["health"]["level"] == "ok");
    let osds: Vec<u64> = pond.list(&["osd", "tree"]).iter().filter_map(|osd| osd["osd"].as_u64()).collect();
    assert_eq!(osds, [0, 1, 2]);
    written.is_read_back();
}

#[test]
fn an_osd_whose_log_has_a_damaged_header_is_replaced_by_one_command() {
    let pond = Pond::start("256MiB");
    let written = Written::on(&pond);
    let drive = pond.osd_file(0);
    let places = blocks_that_hold(&drive, &written.blocks[10][..64]);
    assert!(!places.is_empty(), "osd.0 holds no copy of the block");
    // Killed, so that the log has a tail to be replayed. A batch's header stands in front of its data.
    ends(&pond, &written, 0, Signal::SIGKILL, || flip_bit(&drive, places[0] - 4096 + 100));
    says_why(&pond, 0, "is damaged; acknowledged writes are in it");
    let replaced = pond.run(&["osd", "replace", "0"]);
    names(&replaced, &["osd.0 is up on node.0 with", path(&drive), "millpond status --watch"]);
    is_well_again(&pond, &written);
    names(&pond.run(&["osd", "replace", "osd.0"]), &["osd.0 is up on node.0", "there is nothing to replace"]);
    drop(written);
    replicas_are_equal(&pond, BLOCKS);
}

#[test]
fn an_osd_whose_drive_was_wiped_is_replaced_by_a_command_that_may_break_off_anywhere() {
    let pond = Pond::start("256MiB");
    let written = Written::on(&pond);
    let drive = pond.osd_file(1);
    ends(&pond, &written, 1, Signal::SIGTERM, || make_blank(&drive, 256 << 20));
    says_why(&pond, 1, "is blank, but osd.1 was on it");
    let mut random = Random::seeded();
    for _ in 0..3 {
        let mut replacing = command(&["osd", "replace", "1", "--dir", path(&pond.dir())]);
        let mut replacing = Process::start(&mut replacing, &pond.scratch().join("replacing.log"));
        std::thread::sleep(Duration::from_millis(random.below(300)));
        replacing.is_killed();
    }
    names(&pond.run(&["osd", "replace", "1"]), &["osd.1 is up on node.1 with", path(&drive)]);
    is_well_again(&pond, &written);
}

#[test]
fn an_osd_whose_drive_is_gone_goes_on_on_another_by_one_command_and_stays_there() {
    let scratch = scratch();
    let drives: Vec<_> = (0..3).map(|index| scratch.path().join(format!("drive.{index}"))).collect();
    let mut flags = Vec::new();
    for drive in &drives {
        make_blank(drive, 256 << 20);
        flags.extend(["--device", path(drive)]);
    }
    let pond = Pond::start_with(&flags);
    let written = Written::on(&pond);
    let (away, other) = (scratch.path().join("away"), scratch.path().join("other"));
    ends(&pond, &written, 2, Signal::SIGTERM, || {
        std::fs::rename(&drives[2], &away).expect("the drive's file can be moved");
    });
    says_why(&pond, 2, "there is no such device or file");
    pond.refused(&["osd", "replace", "2"], &["there is no such device or file", "with --drive"]);
    pond.refused(
        &["osd", "replace", "2", "--drive", path(&drives[1])],
        &["drive.1: is where the drive of osd.1 is"],
    );
    make_blank(&other, 256 << 20);
    let replaced = pond.run(&["osd", "replace", "2", "--drive", path(&other)]);
    names(&replaced, &["osd.2 is up on node.2 with", path(&other)]);
    // What turns up where it was is nobody's any more.
    std::fs::rename(&away, &drives[2]).expect("the drive's file can be moved back");
    is_well_again(&pond, &written);
    drop(written);
    pond.down();
    pond.up();
    becomes_whole(&pond);
    assert_eq!(osd_view(&pond, 2).expect("it is there")["path"], path(&other));
}

#[test]
fn an_osd_whose_drive_was_swapped_for_a_larger_one_is_replaced_by_one_command() {
    let pond = Pond::start("256MiB");
    let written = Written::on(&pond);
    let drive = pond.osd_file(0);
    ends(&pond, &written, 0, Signal::SIGTERM, || {
        std::fs::remove_file(&drive).expect("the drive's file can be removed");
        make_blank(&drive, 512 << 20);
        let file = File::options().write(true).open(&drive).expect("the drive's file can be written");
        file.write_all_at(b"XFSB", 0).expect("it can be written");
    });
    says_why(&pond, 0, "is not blank and holds no OSD");
    pond.refused(&["osd", "replace", "0"], &["holds an XFS file system, and would lose it", "--erase"]);
    let replaced = pond.run(&["osd", "replace", "0", "--erase"]);
    names(&replaced, &["osd.0 is up on node.0 with", path(&drive)]);
    is_well_again(&pond, &written);
    assert_eq!(osd_view(&pond, 0).expect("it is there")["bytes"], 512 << 20);
}

#[test]
fn the_last_good_copy_of_a_group_is_given_up_only_where_its_pool_is_named() {
    let pond = Pond::start("256MiB");
    let written = Written::on(&pond);
    pond.run(&["pool", "create", "single", "--size", "1", "--pg-count", "8"]);
    ends(&pond, &written, 0, Signal::SIGTERM, || make_blank(&pond.osd_file(0), 256 << 20));
    says_why(&pond, 0, "is blank, but osd.0 was on it");
    let refusal = ["osd.0 has the last good copy", "of 8 placement groups of pool single", "lost"];
    pond.refused(&["osd", "replace", "0"], &refusal);
    pond.refused(&["osd", "replace", "0", "--lose-last-copy-of", "default"], &refusal);
    let view = osd_view(&pond, 0).expect("it is there");
    assert_eq!((&view["up"], &view["admission"]), (&Value::Bool(false), &Value::from("in")));
    pond.run(&["osd", "replace", "0", "--lose-last-copy-of", "single"]);
    wait_until("every group has its copies", || {
        groups(&pond).iter().all(|group| {
            let copies = if group["pg"].as_str().is_some_and(|pg| pg.starts_with("1.")) { 3 } else { 1 };
            group["state"] == "active" && osds_in(group, "in_sync").len() == copies
        })
    });
    written.is_read_back();
}

#[test]
fn two_drives_that_were_lost_at_once_are_replaced_by_one_command_each() {
    let pond = Pond::start("256MiB");
    let written = Written::on(&pond);
    let nodes = [0, 1].map(|osd| node_of(&pond, osd));
    ends(&pond, &written, 0, Signal::SIGTERM, || {
        signal(nodes[1], Signal::SIGTERM);
        wait_until("the other is gone too", || !runs(nodes[1]));
        [0, 1].iter().for_each(|osd| make_blank(&pond.osd_file(*osd), 256 << 20));
    });
    for osd in [0, 1] {
        says_why(&pond, osd, "is blank");
    }
    // Of three copies two are wanted at least, so the one that is left waits for either: both are given up.
    let mut replacing = [0u32, 1].map(|osd| {
        let mut command = command(&["osd", "replace", &osd.to_string(), "--dir", path(&pond.dir())]);
        Process::start(&mut command, &pond.scratch().join(format!("replacing.{osd}.log")))
    });
    for one in &mut replacing {
        let status = one.ends();
        assert!(status.success(), "{}\n{}", one.said(), pond.logs());
    }
    is_well_again(&pond, &written);
}
