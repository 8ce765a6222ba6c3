//! Drives that are cut short or overwritten under running nodes, or stand still: clients see neither an error nor anything wrong,
//! what happened is told, and with no more than the documented steps all replicas are the same again.

use crate::common::door::Door;
use crate::common::fio::fio_notices_nothing_of;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::whole::{becomes_whole, is_removed, node_of, osd_view};
use crate::common::{OnDrop, attempt, have_own_mounts, names, path, run, wait_until};
use nix::sys::signal::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use testkit::prerequisites::{installed, is_root};
use testkit::process::signal;

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 3 << 30;
/// What is on the drives before anything happens to them.
const OLD_MIB: u64 = 192;

/// How many MiB of a drive, from its start, have been written to.
fn written_mib(file: &Path) -> u64 {
    let file = File::open(file).expect("the drive's file is there");
    let is_written = |at: &u64| {
        let mut block = [0; 4096];
        file.read_at(&mut block, at * MIB).is_ok() && block.iter().any(|byte| *byte != 0)
    };
    (0..DRIVE_BYTES / MIB).rev().find(is_written).map_or(0, |last| last + 1)
}

fn set_bytes(file: &Path, bytes: u64) {
    let file = File::options().write(true).open(file).expect("the drive's file can be opened");
    file.set_len(bytes).expect("its size can be set");
}

/// Overwrites a range of a file.
fn spoil(file: &Path, offset: u64, bytes: u64) {
    let garbage = Random::seeded().bytes(bytes as usize);
    let file = File::options().write(true).open(file).expect("the drive's file can be opened");
    file.write_all_at(&garbage, offset).expect("it can be written");
}

fn damaged_blocks(pond: &Pond, osd: u32) -> u64 {
    osd_view(pond, osd).and_then(|view| view["damaged_reads"].as_u64()).unwrap_or(0)
}

/// How often damage had all written anew that a start needs, by the node's log.
fn renewals(pond: &Pond, osd: u32) -> u64 {
    let log = pond.log(&format!("node.{osd}.log"));
    let told =
        log.rsplit_once("renewals=").map(|(_, rest)| rest.split(char::is_whitespace).next().unwrap_or(rest));
    told.map_or(0, |count| count.parse().expect("it is a number"))
}

/// Waits until the OSD gave its drive up, and says so; its process must not have ended for it.
fn gives_its_drive_up(pond: &Pond, osd: u32, process: i32) {
    wait_until("the OSD gives its drive up", || osd_view(pond, osd).is_some_and(|view| view["up"] == false));
    let drive = pond.osd_file(osd);
    wait_until("status says what happened, and what to do", || {
        let text = pond.run(&["status"]);
        text.contains(&format!("its drive {} failed: it was truncated: it had 3GiB", path(&drive)))
            && text.contains(&format!("`millpond osd replace {osd}`"))
    });
    names(&pond.log(&format!("node.{osd}.log")), &["the drive failed", "it was truncated: it had 3GiB"]);
    assert_eq!(node_of(pond, osd), process, "its process was started anew");
}

/// Does what the documentation says of a lost drive, with the same file.
fn is_replaced(pond: &Pond, osd: u32) {
    let drive = pond.osd_file(osd);
    pond.run(&["osd", "out", &osd.to_string()]);
    is_removed(pond, osd);
    set_bytes(&drive, DRIVE_BYTES);
    pond.run(&["osd", "wipe", path(&drive), "--yes"]);
    let added = pond.run(&["osd", "add", "--device", path(&drive), "--node", &osd.to_string()]);
    names(&added, &[&format!("is up on node.{osd}"), path(&drive)]);
    becomes_whole(pond);
}

/// A volume that is full and that nobody writes to any more.
struct OldData {
    door: Door,
    data: Vec<u8>,
}

impl OldData {
    fn write(pond: &Pond) -> OldData {
        pond.volume("old", &format!("{OLD_MIB}MiB"));
        let old = OldData { door: pond.serve("old"), data: Random::seeded().bytes((OLD_MIB * MIB) as usize) };
        let mut client = old.door.client();
        old.pieces().for_each(|(at, piece)| client.write(at, piece).expect("a healthy cluster writes"));
        old
    }

    fn is_read_back(&self) {
        let mut client = self.door.client();
        for (at, piece) in self.pieces() {
            assert!(client.read(at, MIB as u32).expect("somebody has it") == piece, "at {at}");
        }
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (0..).step_by(MIB as usize).zip(self.data.chunks(MIB as usize))
    }
}

#[test]
fn drives_that_are_truncated_under_running_nodes_are_given_up_and_replaced_while_fio_verifies() {
    let pond = Pond::start("3GiB");
    fio_notices_nothing_of(&pond, |pond| {
        let drive = pond.osd_file(1);
        let old = OldData::write(pond);
        let process = node_of(pond, 1);
        set_bytes(&drive, written_mib(&drive) / 2 * MIB);
        gives_its_drive_up(pond, 1, process);
        // Who tries it again is told.
        signal(process, Signal::SIGKILL);
        wait_until("a start refuses it by name", || {
            let log = pond.log("node.1.log");
            log.contains("osd.1.img: ") && log.contains("osd replace")
        });
        is_replaced(pond, 1);

        let process = node_of(pond, 0);
        set_bytes(&pond.osd_file(0), 0);
        gives_its_drive_up(pond, 0, process);
        is_replaced(pond, 0);
        old.is_read_back();
    });
}

#[test]
fn a_drive_that_is_overwritten_under_a_running_node_is_mended_from_the_others_while_fio_verifies() {
    let pond = Pond::start("3GiB");
    fio_notices_nothing_of(&pond, |pond| {
        let drive = pond.osd_file(1);
        let old = OldData::write(pond);
        let process = node_of(pond, 1);
        // Superblocks, checkpoints, headers, data: a sixth of everything.
        spoil(&drive, 0, 2 * MIB);
        for at in (10..written_mib(&drive)).step_by(6) {
            spoil(&drive, at * MIB + 12345, MIB);
        }
        let before = renewals(pond, 1);
        // What fio reads may all have been written since.
        old.is_read_back();
        wait_until("damage is met", || damaged_blocks(pond, 1) > 0);
        wait_until("status and the log name the drive", || {
            let text = pond.run(&["status"]);
            text.contains("osd.1 found") && text.contains("osd.1.img returned other bytes than were written")
        });
        wait_until("the log tells of damage", || {
            pond.log("node.1.log").contains("blocks whose checksum does not verify")
        });
        pond.run(&["scrub", "start", "--deep"]);
        wait_until("every group was scrubbed deeply", || {
            let scrubs = pond.list(&["scrub", "ls"]);
            scrubs.iter().all(|scrub| scrub["deep_ms"].as_u64().is_some() && scrub["state"] == "-")
        });
        // For the first time perhaps before all of the damage was done.
        wait_until("all that a start needs is written anew, twice", || renewals(pond, 1) >= before + 2);
        becomes_whole(pond);
        assert_eq!(node_of(pond, 1), process, "its process was started anew");
        // It can be started again, by what was written anew.
        signal(process, Signal::SIGKILL);
        wait_until("it is back", || {
            osd_view(pond, 1).is_some_and(|view| view["pid"] != process && view["up"] == true)
        });
        becomes_whole(pond);
    });
}

#[test]
fn superblocks_that_are_overwritten_under_an_idle_node_are_noticed_and_written_anew() {
    let pond = Pond::start("256MiB");
    pond.volume("v", "64MiB");
    let data = Random::seeded().bytes(MIB as usize);
    pond.serve("v").client().write(0, &data).expect("a healthy cluster writes");
    let process = node_of(&pond, 1);
    spoil(&pond.osd_file(1), 0, 2 * MIB);
    wait_until("that is noticed", || {
        pond.log("node.1.log").contains("was overwritten by something else, or cannot be read")
    });
    wait_until("status tells of it", || {
        // One of the two may have been due to be written just then.
        let told = pond.run(&["status"]);
        let says =
            |at: u64| format!("osd.1: the superblock at offset {at} was overwritten or cannot be read");
        store::layout::SUPERBLOCK_OFFSETS.iter().any(|at| told.contains(&says(*at)))
    });
    wait_until("there is one again", || {
        let mut found = [0; 8];
        let file = File::open(pond.osd_file(1)).expect("the drive's file is there");
        file.read_exact_at(&mut found, MIB + 4).expect("it can be read");
        found == store::layout::SUPERBLOCK_MAGIC
    });
    signal(process, Signal::SIGKILL);
    wait_until("it is back", || {
        osd_view(&pond, 1).is_some_and(|view| view["pid"] != process && view["up"] == true)
    });
    becomes_whole(&pond);
    assert!(pond.serve("v").client().read(0, MIB as u32).expect("it can be read") == data);
}

#[test]
fn a_drive_that_hangs_counts_as_down_until_it_goes_on_while_fio_verifies() {
    const TEST: &str = "a drive that hangs";
    if !installed(TEST, &["mkfs.xfs", "mount", "umount", "fsfreeze"]) || !is_root(TEST, "mounting") {
        return;
    }
    have_own_mounts();
    let pond = Pond::start("3GiB");
    pond.down();
    // Onto a file system of its own, which can be frozen: what is written there waits then.
    let (image, place) = (pond.scratch().join("xfs.img"), pond.scratch().join("xfs"));
    File::create(&image).and_then(|file| file.set_len(4 << 30)).expect("a scratch file can be made");
    run("mkfs.xfs", &["-q", path(&image)]);
    std::fs::create_dir(&place).expect("a scratch directory can be made");
    run("mount", &["-o", "loop", path(&image), path(&place)]);
    let _mounted = OnDrop(|| drop(attempt("umount", &["--lazy", path(&place)])));
    let (drive, moved) = (pond.osd_file(1), place.join("osd.1.img"));
    run("cp", &["--sparse=always", path(&drive), path(&moved)]);
    std::fs::remove_file(&drive).and_then(|()| symlink(&moved, &drive)).expect("it can be moved");
    pond.up();
    fio_notices_nothing_of(&pond, |pond| {
        let process = node_of(pond, 1);
        {
            // Also when this panics: whoever writes there cannot even be killed.
            let _goes_on = OnDrop(|| drop(attempt("fsfreeze", &["--unfreeze", path(&place)])));
            run("fsfreeze", &["--freeze", path(&place)]);
            wait_until("status says what happened, and what to do", || {
                let text = pond.run(&["status"]);
                text.contains("osd.1 on node.1 is down: its drive")
                    && text.contains("does nothing of what it is asked")
                    && text.contains("`millpond osd replace 1`")
            });
        }
        wait_until("it is up again", || osd_view(pond, 1).is_some_and(|view| view["up"] == true));
        becomes_whole(pond);
        assert_eq!(node_of(pond, 1), process, "its process was started anew");
        // It is replaced while it hangs, by a process with another drive.
        let other = pond.scratch().join("other.img");
        File::create(&other).and_then(|file| file.set_len(DRIVE_BYTES)).expect("a scratch file can be made");
        {
            let _goes_on = OnDrop(|| drop(attempt("fsfreeze", &["--unfreeze", path(&place)])));
            run("fsfreeze", &["--freeze", path(&place)]);
            wait_until("it counts as down", || osd_view(pond, 1).is_some_and(|view| view["up"] == false));
            names(&pond.run(&["osd", "replace", "1", "--drive", path(&other)]), &["osd.1", path(&other)]);
            becomes_whole(pond);
        }
        std::fs::remove_file(&drive).and_then(|()| symlink(&other, &drive)).expect("it can be moved");
    });
    pond.down();
}
