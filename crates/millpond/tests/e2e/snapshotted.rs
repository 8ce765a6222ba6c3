//! A file system of which snapshots are made all the time, and removed at random, while programs write to it and nodes are killed:
//! each snapshot mounts, holds what was synced before it was begun, and is whole.
//!
//! `MILLPOND_SNAPSHOTTED_SECONDS` says for how long.

use crate::common::mounted::Mounted;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::whole::{BLOCK, OSDS, becomes_whole, node_of};
use crate::common::{OnDrop, Process, have_own_mounts, wait_until};
use nix::sys::signal::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::prerequisites::{installed, is_root};
use testkit::process::signal;

const VOLUME_BYTES: u64 = 384 << 20;
/// What is left out where it cannot run.
const TEST: &str = "a file system that is snapshotted";
/// For how long if nothing else is said.
const SECONDS: u64 = 15;
/// From one snapshot to the next.
const EVERY: Duration = Duration::from_secs(1);
/// A node is killed after so many of them.
const KILLED_EVERY: usize = 5;
/// So many snapshots are kept at most.
const KEPT_MAX: usize = 12;
/// Blocks of the file that says what was synced: it is written round and round.
const PLACES: u64 = 1024;
/// What a run of fio may take: it waits for groups that a killed node was in.
const FIO_LIMIT: Duration = Duration::from_secs(240);

/// A block of that number, as it is written to the file.
fn numbered(number: u64) -> Vec<u8> {
    let words =
        (0..BLOCK / 8).map(|word| if word == 0 { number } else { base::hash::mix(number << 16 | word) });
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes one block after the other and syncs each. `synced` is how many are.
fn number(file: &File, synced: &AtomicU64, enough: &AtomicBool) -> std::io::Result<()> {
    for next in 1.. {
        file.write_all_at(&numbered(next), (next % PLACES) * BLOCK)?;
        file.sync_data()?;
        synced.store(next, Ordering::SeqCst);
        if enough.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

/// Asserts that a file holds all blocks up to `synced`, each or a later one in its place.
fn holds_what_was_synced(file: &File, synced: u64) {
    for oldest in (synced.saturating_sub(PLACES) + 1)..=synced {
        let place = oldest % PLACES;
        let mut block = vec![0; BLOCK as usize];
        file.read_exact_at(&mut block, place * BLOCK)
            .unwrap_or_else(|error| panic!("block {oldest} of {synced} cannot be read: {error}"));
        let found = u64::from_le_bytes(block[..8].try_into().expect("a block is longer"));
        assert!(
            found >= oldest && found % PLACES == place,
            "{found} is where {oldest} of {synced} was synced"
        );
        assert!(block == numbered(found), "block {found} is not whole");
    }
}

/// Has fio write and verify files of its own.
fn verify(top: &Path, log: &Path, enough: &AtomicBool) {
    let mut random = Random::seeded();
    while !enough.load(Ordering::Relaxed) {
        let mut command = Command::new("fio");
        command
            .args(["--name=snapshotted", "--rw=randwrite", "--bsrange=512-64k", "--size=4m", "--fsync=32"])
            .args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--verify_state_save=0"])
            .args(["--thinktime=20ms", "--thinktime_blocks=16"])
            .arg(format!("--directory={}", top.display()))
            .arg(format!("--randseed={}", random.below(1 << 30)));
        let mut fio = Process::start(&mut command, log);
        let status = fio.ends_within(FIO_LIMIT);
        assert!(status.success(), "fio: {status}: {}", fio.said());
    }
}

/// A snapshot, and how many blocks were synced before it was begun.
struct Kept {
    name: String,
    synced: u64,
}

/// Makes snapshots and removes some; kills nodes. Answers those that are there still.
fn make_trouble(pond: &Pond, synced: &AtomicU64) -> Vec<Kept> {
    let seconds = std::env::var("MILLPOND_SNAPSHOTTED_SECONDS");
    let seconds = seconds.map_or(SECONDS, |text| text.parse().expect("seconds are a number"));
    let (end, mut random) = (Instant::now() + Duration::from_secs(seconds), Random::seeded());
    let (mut kept, mut made): (Vec<Kept>, usize) = (Vec::new(), 0);
    while Instant::now() < end {
        std::thread::sleep(EVERY);
        let (name, before) = (format!("s{made}"), synced.load(Ordering::SeqCst));
        // It is not made while a group waits for a node that was killed, and an answer may get lost with one.
        let snapshot = format!("v@{name}");
        wait_until("a snapshot is made", || {
            let (is_made, _, complaint) = pond.attempt(&["volume", "snapshot", "create", &snapshot]);
            is_made || complaint.contains("already")
        });
        kept.push(Kept { name, synced: before });
        made += 1;
        if kept.len() > KEPT_MAX || (kept.len() > 2 && random.below(3) == 0) {
            let one = kept.swap_remove(random.below(kept.len() as u64) as usize);
            pond.run(&["volume", "snapshot", "rm", &format!("v@{}", one.name)]);
        }
        if made % KILLED_EVERY == 0 {
            signal(node_of(pond, random.below(u64::from(OSDS)) as u32), Signal::SIGKILL);
        }
    }
    eprintln!(
        "{made} snapshots made, {} of them are there, {} blocks synced",
        kept.len(),
        synced.load(Ordering::SeqCst)
    );
    kept
}

#[test]
fn each_snapshot_of_a_file_system_holds_what_was_synced_before_while_nodes_are_killed_and_others_removed() {
    let needed = ["nbdfuse", "losetup", "mount", "fusermount3", "mkfs.xfs", "xfs_repair", "fio"];
    if !installed(TEST, &needed) || !is_root(TEST, "mounting") {
        return;
    }
    have_own_mounts();
    let pond = Pond::start("4GiB");
    pond.volume("v", "384MiB");
    let door = pond.serve("v");
    let place = |name: &str| pond.scratch().join(name);
    let Some(mut mounted) = Mounted::device(TEST, &place("v"), &door.uri(), VOLUME_BYTES) else { return };
    mounted.on_device(&["mkfs.xfs", "-q", "-f"]);
    let top = mounted.mount();
    becomes_whole(&pond);
    let file = File::create(top.join("numbered")).expect("the file system takes a file");
    let (synced, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let kept = std::thread::scope(|scope| {
        // Also when what follows panics: the scope waits for its threads.
        let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
        scope.spawn(|| number(&file, &synced, &enough).expect("blocks can be written and synced"));
        scope.spawn(|| verify(&top, &place("fio.log"), &enough));
        make_trouble(&pond, &synced)
    });
    becomes_whole(&pond);
    for Kept { name, synced } in &kept {
        pond.run(&["volume", "clone", &format!("v@{name}"), name]);
        let door = pond.serve(name);
        let mut clone =
            Mounted::device(TEST, &place(name), &door.uri(), VOLUME_BYTES).expect("it was possible before");
        // The log of what went on is played again, as after a loss of power. Another one with that UUID is mounted.
        let top = clone.mount_with(&["-o", "nouuid"]);
        // Where nothing was synced before, the file may not be there either.
        if *synced > 0 {
            holds_what_was_synced(&File::open(top.join("numbered")).expect("the file is there"), *synced);
        }
        clone.unmount();
        clone.on_device(&["xfs_repair", "-n"]);
        drop(clone);
        drop(door);
        pond.run(&["volume", "rm", name, "--now"]);
    }
    drop(file);
    mounted.unmount();
    mounted.on_device(&["xfs_repair", "-n"]);
}
