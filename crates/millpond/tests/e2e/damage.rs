//! Drives and files that give back other bytes than were written, or no room for more.

use crate::common::nbd::error;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::replicas::replicas_are_equal;
use crate::common::whole::{MOVED_WITHIN, becomes_whole, goes_on_in, groups, node_of, osds_in, without};
use crate::common::{names, path, wait_longer, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::process::Frozen;

const MIB: usize = 1 << 20;

/// Where `needle` stands in a file, block by block.
pub fn blocks_that_hold(file: &Path, needle: &[u8]) -> Vec<u64> {
    let file = File::open(file).expect("the drive's file is there");
    let bytes = file.metadata().expect("a file has a size").len();
    let mut found = Vec::new();
    let mut part = vec![0; 4 * MIB];
    let mut at = 0;
    while at < bytes {
        let count = file.read_at(&mut part, at).expect("the drive's file can be read");
        let blocks = part[..count].chunks(4096).enumerate();
        found.extend(
            blocks.filter(|(_, block)| block.starts_with(needle)).map(|(index, _)| at + index as u64 * 4096),
        );
        at += count as u64;
    }
    found
}

pub fn flip_bit(file: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(file).expect("the drive's file is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("the offset is within the file");
    file.write_all_at(&[byte[0] ^ 4], offset).expect("the file can be written");
}

#[test]
fn a_flipped_bit_is_an_error_that_names_its_place_and_never_wrong_bytes() {
    let pond = Pond::start("256MiB");
    pond.volume("v", "64MiB");
    let mut random = Random::seeded();
    let data = random.bytes(8 * 4096);
    let offset = 12 << 20;
    {
        let door = pond.serve("v");
        let mut client = door.client();
        client.write(offset, &data).unwrap();
        client.flush().unwrap();
    }
    pond.down();
    let damaged = &data[2 * 4096..3 * 4096];
    for osd in 0..3 {
        spoil(&pond, osd, damaged);
    }
    pond.up();
    let door = pond.serve("v");
    let mut client = door.client();
    for (first, count) in [(2u64, 1u32), (0, 8), (1, 2)] {
        let refusal = client.read(offset + first * 4096, count * 4096).unwrap_err();
        assert_eq!(refusal.code, error::IO, "{refusal:?}");
        names(&refusal.message, &["volume", "object 3", "osd."]);
    }
    assert!(client.read(offset, 2 * 4096).unwrap() == data[..2 * 4096]);
    assert!(client.read(offset + 3 * 4096, 5 * 4096).unwrap() == data[3 * 4096..]);
    wait_until("status names the OSD", || {
        let problems = pond.status()["health"]["problems"].to_string();
        problems.contains("osd.") && problems.contains("checksum")
    });
    // A part of the damaged block cannot be written, for the rest of it is lost; all of it can.
    client.write(offset + 2 * 4096 + 10, b"part").unwrap_err();
    client.write(offset + 2 * 4096, &[7; 4096]).unwrap();
    assert!(client.read(offset + 2 * 4096, 4096).unwrap() == [7; 4096]);
}

#[test]
fn lost_blocks_do_not_hold_up_that_all_else_is_rebuilt() {
    let pond = Pond::start("256MiB");
    pond.volume("v", "64MiB");
    let data = Random::seeded().bytes(64 * 4096);
    let offset = 12 << 20;
    pond.serve("v").client().write(offset, &data).unwrap();
    pond.down();
    let lost = [3usize, 4, 40];
    for osd in 0..3 {
        for block in lost {
            spoil(&pond, osd, &data[block * 4096..][..4096]);
        }
    }
    pond.up();
    for osd in ["0", "1"] {
        pond.run(&["osd", "add", "--size", "256MiB"]);
        pond.run(&["osd", "out", osd]);
        wait_longer(MOVED_WITHIN, "all that is not lost is elsewhere", || {
            pond.attempt(&["osd", "rm", osd]).0
        });
    }
    becomes_whole(&pond);
    let door = pond.serve("v");
    let mut client = door.client();
    for (block, content) in data.chunks(4096).enumerate() {
        let read = client.read(offset + block as u64 * 4096, 4096);
        match read {
            Ok(bytes) => assert!(bytes == content && !lost.contains(&block), "block {block}"),
            Err(refusal) => {
                assert!(refusal.code == error::IO && lost.contains(&block), "block {block}: {refusal:?}");
            }
        }
    }
    wait_until("status names what is lost", || {
        let problems = pond.status()["health"]["problems"].to_string();
        problems.contains("12KiB of data are lost") && problems.contains("v, 8KiB at 12595200")
    });
    for block in lost {
        client.write(offset + block as u64 * 4096, &[7; 4096]).unwrap();
    }
    wait_until("nothing is lost any more", || {
        !pond.status()["health"]["problems"].to_string().contains("are lost")
    });
    client.read(offset, 64 * 4096).unwrap();
}

/// Spoils every place of an OSD's drive that holds a block.
pub fn spoil(pond: &Pond, osd: u32, block: &[u8]) {
    let file = pond.osd_file(osd);
    let places = blocks_that_hold(&file, &block[..64]);
    assert!(!places.is_empty(), "osd.{osd} holds no copy of the block");
    for place in places {
        flip_bit(&file, place + 1777);
    }
}

/// A cluster with three blocks at 12 MiB, each with a bad copy on another OSD.
fn with_one_bad_copy_of_each() -> (Pond, Vec<u8>) {
    let pond = Pond::start("256MiB");
    pond.volume("v", "64MiB");
    let data = Random::seeded().bytes(3 * 4096);
    pond.serve("v").client().write(12 << 20, &data).expect("it can be written");
    pond.down();
    for (osd, block) in (0..).zip(data.chunks(4096)) {
        spoil(&pond, osd, block);
    }
    pond.up();
    (pond, data)
}

#[test]
fn a_damaged_copy_is_read_from_another_member_and_written_anew() {
    let (pond, data) = with_one_bad_copy_of_each();
    let door = pond.serve("v");
    let mut client = door.client();
    assert!(client.read(12 << 20, 3 * 4096).unwrap() == data);
    // The edges of an unaligned write are read as well.
    client.write((12 << 20) + 10, b"part").unwrap();
    let mut expected = data.clone();
    expected[10..14].copy_from_slice(b"part");
    assert!(client.read(12 << 20, 3 * 4096).unwrap() == expected);
    wait_until("status tells of damage that was mended", || {
        let problems = pond.status()["health"]["problems"].to_string();
        problems.contains("wrote 1 block anew")
    });
}

#[test]
fn a_deep_scrub_finds_and_mends_what_nobody_reads() {
    let (pond, data) = with_one_bad_copy_of_each();
    let scrub_all = || -> u64 {
        let before = newest(&pond);
        pond.run(&["scrub", "start", "--deep"]);
        wait_until("every group is scrubbed deeply", || {
            scrubs(&pond)
                .iter()
                .all(|scrub| scrub["deep_ms"].as_u64() > Some(before) && scrub["state"] == "-")
        });
        scrubs(&pond).iter().map(|scrub| scrub["found"].as_u64().expect("a count")).sum()
    };
    assert_eq!(scrub_all(), 3);
    assert_eq!(scrub_all(), 0, "what was found is mended");
    assert!(pond.serve("v").client().read(12 << 20, 3 * 4096).unwrap() == data);
}

#[test]
fn a_scrub_is_asked_for_by_group_pool_or_osd() {
    let pond = Pond::start("256MiB");
    pond.run(&["pool", "create", "single", "--size", "1", "--pg-count", "8"]);
    wait_until("every group serves", || groups(&pond).iter().all(|group| group["state"] == "active"));
    let lights = || -> BTreeMap<String, u64> {
        let of = |scrub: &serde_json::Value| {
            let pg = scrub["pg"].as_str().expect("a group has a name").to_owned();
            (pg, scrub["light_ms"].as_u64().expect("a time"))
        };
        scrubs(&pond).iter().map(of).collect()
    };
    // Those on osd.1 of the pool with one copy, and all of the pool with three.
    let on_osd = |osd: u64| -> BTreeSet<String> {
        let of = |group: &serde_json::Value| group["pg"].as_str().expect("a group has a name").to_owned();
        let holds = |group: &&serde_json::Value| osds_in(group, "in_sync").contains(&osd);
        groups(&pond).iter().filter(holds).map(of).collect()
    };
    let all: BTreeSet<String> = lights().into_keys().collect();
    let of_pool = |prefix: &str| -> BTreeSet<String> {
        all.iter().filter(|pg| pg.starts_with(prefix)).cloned().collect()
    };
    let cases = [
        (vec!["--pg", "2.3", "--pg", "1.7"], BTreeSet::from(["1.7".to_owned(), "2.3".to_owned()])),
        (vec!["--pool", "single"], of_pool("2.")),
        (vec!["--osd", "1"], on_osd(1)),
    ];
    assert!(cases.iter().all(|(_, meant)| !meant.is_empty() && meant.len() < all.len()));
    for (selector, meant) in cases {
        let scrubbed = || -> BTreeSet<String> {
            let before = lights();
            pond.run(&[&["scrub", "start"][..], &selector].concat());
            let changed = || -> BTreeSet<String> {
                lights().into_iter().filter(|(pg, at)| *at > before[pg]).map(|(pg, _)| pg).collect()
            };
            wait_until("what was meant is scrubbed", || changed().is_superset(&meant));
            changed()
        };
        // A group whose time of the day it is comes too, but not twice.
        let (first, second) = (scrubbed(), scrubbed());
        let both: BTreeSet<String> = first.intersection(&second).cloned().collect();
        assert_eq!(both, meant, "{selector:?}");
    }
}

fn scrubs(pond: &Pond) -> Vec<serde_json::Value> {
    pond.list(&["scrub", "ls"])
}

/// When the newest deep scrub began.
fn newest(pond: &Pond) -> u64 {
    scrubs(pond).iter().filter_map(|scrub| scrub["deep_ms"].as_u64()).max().unwrap_or(0)
}

/// Starts it, expects that it does not come to serve fully, and gives all that was said.
#[track_caller]
fn up_is_refused(pond: &Pond) -> String {
    let (worked, stdout, stderr) = pond.attempt(&["up", "--detach"]);
    assert!(!worked, "it came up in spite of the damage: {stdout}");
    // What can run without the damaged part does.
    if pond.up_pid().is_some() {
        pond.down();
    }
    format!("{stdout}{stderr}")
}

/// A cluster that holds this, and is down.
fn stopped_with(data: &[u8]) -> Pond {
    let pond = Pond::start("256MiB");
    pond.volume("v", "64MiB");
    pond.serve("v").client().write(0, data).expect("a healthy cluster writes");
    pond.down();
    pond
}

fn overwrite(file: &Path, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(file).expect("the drive's file is there");
    file.write_all_at(bytes, offset).expect("the file can be written");
}

#[test]
fn one_damaged_superblock_is_no_loss_and_two_are_named_with_what_to_do() {
    let data = Random::seeded().bytes(MIB);
    let pond = stopped_with(&data);
    for copy in [0, MIB as u64] {
        // A start writes both copies anew.
        overwrite(&pond.osd_file(1), copy, &[0x5a; 4096]);
        pond.up();
        assert!(pond.serve("v").client().read(0, MIB as u32).unwrap() == data, "without copy at {copy}");
        pond.down();
    }
    overwrite(&pond.osd_file(1), 0, &[0x5a; 4096]);
    overwrite(&pond.osd_file(1), MIB as u64, &[0x5a; 4096]);
    let said = up_is_refused(&pond);
    names(&said, &["osd.1.img", "osd replace"]);
}

#[test]
fn a_truncated_drive_is_named_with_what_to_do() {
    let pond = stopped_with(&[7; 4096]);
    let file = File::options().write(true).open(pond.osd_file(2)).unwrap();
    file.set_len(200 << 20).unwrap();
    let said = up_is_refused(&pond);
    names(&said, &["osd.2.img", "200MiB", "256MiB"]);
    // Nothing was made worse: with its size restored, it holds what it held.
    file.set_len(256 << 20).unwrap();
    pond.up();
    assert!(pond.serve("v").client().read(0, 4096).unwrap() == [7; 4096]);
}

#[test]
fn a_damaged_batch_header_never_loses_an_acknowledged_write_silently() {
    let pond = Pond::start("256MiB");
    pond.volume("v", "64MiB");
    let mut random = Random::seeded();
    let blocks: Vec<Vec<u8>> = (0..64).map(|_| random.bytes(4096)).collect();
    let door = pond.serve_shared("v");
    let mut client = door.client();
    for (index, block) in blocks.iter().enumerate() {
        // One batch each: the next write is sent when this one is acknowledged.
        client.write((index as u64) << 20, block).unwrap();
    }
    // Killed, so that the log has a tail to be replayed.
    pond.kill_all(&[&door], |_| ());
    drop(door);
    let file = pond.osd_file(0);
    let places = blocks_that_hold(&file, &blocks[20][..64]);
    assert!(!places.is_empty(), "osd.0 holds no copy of the block");
    // A batch's header stands in front of its data.
    flip_bit(&file, places[0] - 4096 + 100);
    let (worked, stdout, stderr) = pond.attempt(&["up", "--detach"]);
    if !worked {
        names(&format!("{stdout}{stderr}"), &["osd.0", "damaged", "osd replace"]);
        return;
    }
    let door = pond.serve_shared("v");
    let mut client = door.client();
    for (index, block) in blocks.iter().enumerate() {
        let read = client.read((index as u64) << 20, 4096).unwrap();
        assert!(read == *block, "acknowledged write {index} is not there");
    }
}

#[test]
fn a_damaged_registry_of_a_cluster_is_named() {
    let pond = stopped_with(&[7; 4096]);
    let registry = pond.dir().join("registry.redb");
    let sound = std::fs::read(&registry).unwrap();
    for (what, offset, bytes) in
        [("its header", 0, vec![0x5a; 512]), ("all of it", 0, vec![0x5a; sound.len()])]
    {
        overwrite(&registry, offset, &bytes);
        let said = up_is_refused(&pond);
        assert!(said.contains("registry.redb") && said.contains("damaged"), "{what}: {said}");
    }
    std::fs::write(&registry, &sound[..sound.len() / 2]).unwrap();
    names(&up_is_refused(&pond), &["registry.redb"]);
    std::fs::write(&registry, &sound).unwrap();
    pond.up();
    assert!(pond.serve("v").client().read(0, 4096).unwrap() == [7; 4096]);
}

#[test]
fn a_full_cluster_says_so_and_can_be_trimmed_and_written_again() {
    let pond = Pond::start("256MiB");
    pond.volume("v", "512MiB");
    let door = pond.serve("v");
    let mut client = door.client();
    let data = Random::seeded().bytes(MIB);
    let mut written = 0;
    let refusal = loop {
        match client.write(written << 20, &data) {
            Ok(()) => written += 1,
            Err(refusal) => break refusal,
        }
        assert!(written < 256, "more was written than the drives can hold");
    };
    assert_eq!(refusal.code, error::NO_SPACE, "{refusal:?}");
    assert!(written > 100, "full after {written} MiB of 256 MiB");
    // What has no room for a large write may still take small ones, up to its end.
    let refusal = (0..4096)
        .find_map(|index| client.write((written << 20) + index * 4096, &data[..4096]).err())
        .expect("16 MiB more cannot fit");
    assert_eq!(refusal.code, error::NO_SPACE, "{refusal:?}");
    for index in [0, written / 2, written - 1] {
        assert!(client.read(index << 20, MIB as u32).unwrap() == data, "MiB {index} when full");
    }
    wait_until("status says that it is full", || {
        pond.status()["health"]["problems"].to_string().contains("is full")
    });
    client.trim(0, (written as u32 / 2) << 20).unwrap();
    wait_until("there is room again", || client.write(0, &data).is_ok());
    for index in 1..written / 4 {
        client.write(index << 20, &data).unwrap();
    }
    for index in (0..written / 4).chain(written / 2..written) {
        assert!(client.read(index << 20, MIB as u32).unwrap() == data, "MiB {index} after trimming");
    }
    assert!(client.read((written / 4 + 1) << 20, 4096).unwrap() == [0; 4096], "trimmed, not zeros");
    // Past the end of room, again and again: the refusal does no harm.
    drop(client);
    drop(door);
    pond.down();
    pond.up();
    let door = pond.serve("v");
    assert!(door.client().read(0, MIB as u32).unwrap() == data, "after a restart: {}", path(&pond.dir()));
}

#[test]
fn who_was_away_lets_go_of_what_was_deleted_before_it_is_filled() {
    let pond = Pond::start("256MiB");
    pond.volume("v", "1GiB");
    let door = pond.serve("v");
    let mut client = door.client();
    let data = Random::seeded().bytes(MIB);
    let written =
        (0..256).find(|index| client.write(index << 20, &data).is_err()).expect("256 MiB cannot fit");
    // One of three misses that all of it is deleted, and that nearly as much is written elsewhere.
    let away = goes_on_in(&pond, without(2), || Frozen::new(node_of(&pond, 2)));
    client.trim(0, (written as u32) << 20).unwrap();
    let other = 512..512 + written * 3 / 4;
    for index in other.clone() {
        wait_until("there is room", || client.write(index << 20, &data).is_ok());
    }
    drop(away);
    becomes_whole(&pond);
    for index in other {
        assert!(client.read(index << 20, MIB as u32).unwrap() == data, "MiB {index}");
    }
    drop(client);
    drop(door);
    replicas_are_equal(&pond, written * 3 / 4 * 256);
}
