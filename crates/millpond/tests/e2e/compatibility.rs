//! What an earlier millpond wrote: today's starts on it and reads it back. `tests/fixtures/README.md` says who wrote it, and how.

use crate::common::nbd::NbdClient;
use crate::common::pond::Pond;
use std::path::{Path, PathBuf};

/// As in `write.py`.
const BLOCK_BYTES: usize = 4096;
const STRIDE_BYTES: u64 = 212_992;
const BLOCKS: u64 = 300;

/// What is known of a block: it holds the write that was acknowledged last, or the one that was sent last.
struct Known {
    block: u64,
    acknowledged: u64,
    sent: u64,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn known(name: &str) -> Vec<Known> {
    let notes = std::fs::read_to_string(fixture(&format!("{name}.blocks"))).expect("there are notes");
    let number = |text: &str| text.parse::<u64>().expect("notes are numbers");
    let known = notes.lines().map(|line| match line.split(' ').map(number).collect::<Vec<_>>()[..] {
        [block, acknowledged, sent] => Known { block, acknowledged, sent },
        _ => panic!("{line:?} is no note"),
    });
    known.collect()
}

/// What a write leaves in a block.
fn content(block: u64, write: u64) -> Vec<u8> {
    if write.is_multiple_of(8) {
        return vec![0; BLOCK_BYTES];
    }
    [write.to_le_bytes(), block.to_le_bytes()].concat().repeat(BLOCK_BYTES / 16)
}

/// Holds every block against what is known of it. Answers how many hold a write that nobody acknowledged.
fn check(client: &mut NbdClient, known: &[Known]) -> usize {
    let mut newer = 0;
    for Known { block, acknowledged, sent } in known {
        let found = client.read(block * STRIDE_BYTES, BLOCK_BYTES as u32).expect("a block can be read");
        let is_newer = found != content(*block, *acknowledged);
        assert!(!is_newer || found == content(*block, *sent), "block {block} holds {:?}…", &found[..16]);
        newer += usize::from(is_newer);
    }
    newer
}

fn is_read_back(name: &str, in_flight: usize) {
    let known = known(name);
    assert_eq!(known.len() as u64, BLOCKS);
    let unanswered = known.iter().filter(|block| block.acknowledged != block.sent).count();
    assert_eq!(unanswered, in_flight, "writes without an answer");
    let pond = Pond::unpacked(&fixture(&format!("{name}.tar.gz")));
    let door = pond.serve_shared("v");
    let newer = check(&mut door.client(), &known);
    eprintln!("{name}: {newer} of {in_flight} writes that were under way are there");
    // It goes on as a cluster of today, and has the same when it starts again.
    let (first, last) = (content(0, 1), content(BLOCKS - 1, 1));
    let mut client = door.client();
    client.write(0, &first).expect("it takes writes");
    client.write((BLOCKS - 1) * STRIDE_BYTES, &last).expect("it takes writes");
    drop((client, door));
    pond.down();
    pond.up();
    let door = pond.serve_shared("v");
    check(&mut door.client(), &known[1..known.len() - 1]);
    assert_eq!(door.client().read(0, BLOCK_BYTES as u32).expect("a block can be read"), first);
}

#[test]
fn a_cluster_that_an_earlier_version_stopped_is_read_back() {
    is_read_back("clean", 0);
}

#[test]
fn a_cluster_that_an_earlier_version_was_killed_on_is_read_back() {
    is_read_back("killed", 24);
}
