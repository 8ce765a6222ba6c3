//! The kernel's file systems on a volume, across a restart of the whole cluster.

use crate::common::mounted::Mounted;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::whole::{becomes_whole, groups, node_of};
use crate::common::{have_own_mounts, path, run, wait_until};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::prerequisites::{installed, is_root};
use testkit::process::Frozen;

const VOLUME_BYTES: u64 = 384 << 20;
/// What [`fill`] leaves: ten folders of 40 files without every seventh, and a large one.
const FILES: usize = 10 * 34 + 1;

/// Files of many sizes in folders, some removed and some written over again.
fn fill(place: &Path, random: &mut Random) -> std::io::Result<()> {
    for folder in 0..10 {
        let folder = place.join(format!("folder.{folder}"));
        std::fs::create_dir(&folder)?;
        let file = |number: usize| folder.join(format!("file.{number}"));
        for number in 0..40 {
            let bytes = (1usize << random.below(18)) + random.below(4096) as usize;
            std::fs::write(file(number), random.bytes(bytes))?;
        }
        for number in (0..40).step_by(7) {
            std::fs::remove_file(file(number))?;
        }
        for number in (1..40).step_by(5).filter(|number| number % 7 != 0) {
            let file = File::options().write(true).open(file(number))?;
            file.write_all_at(&random.bytes(3000), random.below(5000))?;
        }
    }
    std::fs::write(place.join("large"), random.bytes(24 << 20))
}

/// Checksums of all files, computed by a program of the system.
fn fingerprint(place: &Path) -> String {
    let script = "cd \"$0\" && find . -type f -print0 | sort -z | xargs -0 sha256sum";
    run("sh", &["-c", script, path(place)])
}

/// What is left out where it cannot run.
const TEST: &str = "a file system on a volume";

/// Makes a file system, fills it, has its own checker look, restarts the cluster, checks and compares.
fn survives_a_restart(make: &[&str], check: &[&str]) {
    let needed = ["nbdfuse", "losetup", "mount", "fusermount3", make[0], check[0]];
    if !installed(TEST, &needed) || !is_root(TEST, "mounting") {
        return;
    }
    have_own_mounts();
    let pond = Pond::start("1GiB");
    pond.volume("v", "384MiB");
    let place = pond.scratch().to_owned();
    let door = pond.serve("v");
    let Some(mut mounted) = Mounted::device(TEST, &place, &door.uri(), VOLUME_BYTES) else { return };
    mounted.on_device(make);
    let top = mounted.mount();
    fill(&top, &mut Random::seeded()).expect("the file system takes the files");
    let before = fingerprint(&top);
    assert_eq!(before.lines().count(), FILES);
    mounted.unmount();
    mounted.on_device(check);
    drop(mounted);
    drop(door);

    pond.down();
    pond.up();
    let door = pond.serve("v");
    let mut mounted =
        Mounted::device(TEST, &place, &door.uri(), VOLUME_BYTES).expect("it was possible before");
    mounted.on_device(check);
    let top = mounted.mount();
    let after = fingerprint(&top);
    mounted.unmount();
    assert!(before == after, "files differ after a restart");
}

#[test]
fn an_ext4_file_system_survives_a_restart_of_the_cluster() {
    survives_a_restart(&["mkfs.ext4", "-q", "-F"], &["e2fsck", "-f", "-n"]);
}

#[test]
fn an_xfs_file_system_survives_a_restart_of_the_cluster() {
    survives_a_restart(&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
}

/// A file that grows by pieces of a block, each behind a hole: the blocks that say where they lie are written anew with each,
/// and all versions of one such block have one CRC-32C, for it ends in the CRC-32C of what precedes it.
fn grow_in_pieces(place: &Path, pieces: std::ops::Range<u64>, random: &mut Random) -> std::io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(place.join("pieces"))?;
    for piece in pieces {
        file.write_all_at(&random.bytes(4096), piece * 2 * 4096)?;
        file.sync_all()?;
    }
    Ok(())
}

#[test]
fn an_ext4_file_system_is_whole_when_a_member_leads_that_was_away_while_a_fragmented_file_grew() {
    let needed = ["nbdfuse", "losetup", "mount", "fusermount3", "mkfs.ext4", "e2fsck"];
    if !installed(TEST, &needed) || !is_root(TEST, "mounting") {
        return;
    }
    have_own_mounts();
    let pond = Pond::start("1GiB");
    pond.run(&["pool", "rm", "default"]);
    pond.run(&["pool", "create", "default", "--pg-count", "1"]);
    pond.volume("v", "384MiB");
    becomes_whole(&pond);
    let primary = || groups(&pond)[0]["primary"].as_u64().expect("a group has a primary") as u32;
    let preferred = primary();
    let place = pond.scratch().to_owned();
    let door = pond.serve("v");
    let Some(mut mounted) = Mounted::device(TEST, &place, &door.uri(), VOLUME_BYTES) else { return };
    // Of a device so small it would make blocks of 1 KiB, of which four lie in one that has a checksum here.
    mounted.on_device(&["mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "metadata_csum,extent"]);
    let top = mounted.mount();
    let mut random = Random::seeded();
    grow_in_pieces(&top, 0..60, &mut random).expect("the file system takes the files");
    // Until then a version of those blocks is in the journal alone.
    mounted.unmount();
    let top = mounted.mount();
    let away = Frozen::new(node_of(&pond, preferred));
    wait_until("another one leads", || primary() != preferred);
    // The log of the one group has 1,024 entries; each piece is a few writes.
    grow_in_pieces(&top, 60..600, &mut random).expect("the file system takes the files");
    let before = fingerprint(&top);
    mounted.unmount();
    drop(mounted);
    drop(door);
    drop(away);
    becomes_whole(&pond);
    assert_eq!(primary(), preferred);
    let door = pond.serve("v");
    let mut mounted =
        Mounted::device(TEST, &place, &door.uri(), VOLUME_BYTES).expect("it was possible before");
    mounted.on_device(&["e2fsck", "-f", "-n"]);
    let top = mounted.mount();
    let after = fingerprint(&top);
    mounted.unmount();
    assert!(before == after, "files differ when osd.{preferred} leads");
}
