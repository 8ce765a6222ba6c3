//! `millpond volume du`: what room a volume takes, and what is free when which of its snapshots goes.

use super::export::check_versions;
use super::find;
use crate::host::access;
use crate::host::directory::Directory;
use crate::output::{self, table};
use crate::transfer::worker::{Worker, parts};
use base::units::ByteSize;
use base::{BLOCK_BYTES, OBJECT_BYTES};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use volume::OpenAs;

/// What is asked about at a time, in bytes.
const WINDOW_BYTES: u64 = 1024 * OBJECT_BYTES;

/// What room a volume takes: `volume du --json`. In bytes of one copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct VolumeSpace {
    volume: String,
    /// Copies that there are of each.
    copies: u32,
    /// All that it and its snapshots hold.
    held_bytes: u64,
    /// What it holds now and none of its snapshots does.
    alone_bytes: u64,
    /// What several of them hold.
    shared_bytes: u64,
    /// Its snapshots, the oldest first.
    snapshots: Vec<SnapshotSpace>,
}

/// What room a snapshot takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct SnapshotSpace {
    name: String,
    /// What it holds alone: so much is free when it is removed.
    alone_bytes: u64,
}

/// Performs it.
pub fn run(name: &str, json: bool, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    access::require_up(&directory)?;
    let map = access::with_desk(path, async |desk| Ok(desk.map().await?))?;
    check_versions(&map)?;
    let id = find(&map, name)?.volume;
    let info = &map.volumes[&id];
    // It is looked at, and not attached.
    let mut worker = Worker::open(&directory, format!("{name}@"), OpenAs::Reader, "millpond volume du")?;
    let (mut held, mut alone) = (0, BTreeMap::new());
    // What it holds beyond its end its snapshots may hold: they may be larger.
    let end = map.snapshots_of(id).map(|(_, snapshot)| snapshot.bytes).chain([info.bytes]).max();
    let end = end.unwrap_or_default().next_multiple_of(OBJECT_BYTES);
    for (start, length) in parts(0, end, WINDOW_BYTES) {
        let told = worker.space(start, length)?;
        held += told.held;
        for (number, blocks) in told.alone {
            *alone.entry(number).or_insert(0) += blocks;
        }
    }
    let bytes = |number: u32| alone.get(&number).copied().unwrap_or(0) * BLOCK_BYTES as u64;
    let snapshots: Vec<SnapshotSpace> = map
        .snapshots_of(id)
        .map(|(layer, info)| SnapshotSpace { name: info.name.clone(), alone_bytes: bytes(layer.number()) })
        .collect();
    let held_bytes = held * BLOCK_BYTES as u64;
    let alone_bytes = bytes(info.head);
    let apart = alone_bytes + snapshots.iter().map(|snapshot| snapshot.alone_bytes).sum::<u64>();
    let space = VolumeSpace {
        volume: name.to_owned(),
        copies: map.pools.get(&info.pool).map_or(1, |pool| pool.size),
        held_bytes,
        alone_bytes,
        shared_bytes: held_bytes.saturating_sub(apart),
        snapshots,
    };
    output::show(json, &space, || show(&space))
}

fn show(space: &VolumeSpace) -> String {
    let row = |what: String, bytes: u64| vec![what, ByteSize(bytes).to_string()];
    let snapshots = space.snapshots.iter();
    let rows = snapshots
        .map(|snapshot| row(format!("{}@{} alone", space.volume, snapshot.name), snapshot.alone_bytes))
        .chain([
            row(format!("{} alone", space.volume), space.alone_bytes),
            row("several of them".to_owned(), space.shared_bytes),
            row("all".to_owned(), space.held_bytes),
        ]);
    let text = table::render(&["HELD BY", ">BYTES"], rows);
    format!(
        "{text}of one copy; there are {}. What a snapshot holds alone is free when it is removed\n",
        space.copies
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_holds_alone_is_told_and_what_they_share() {
        let snapshots = vec![SnapshotSpace { name: "monday".to_owned(), alone_bytes: 1 << 20 }];
        let space = VolumeSpace {
            volume: "disk".to_owned(),
            copies: 3,
            held_bytes: 7 << 20,
            alone_bytes: 2 << 20,
            shared_bytes: 4 << 20,
            snapshots,
        };
        let shown = show(&space);
        for (line, parts) in shown.lines().skip(1).zip([
            ["disk@monday alone", "1MiB"],
            ["disk alone", "2MiB"],
            ["several of them", "4MiB"],
            ["all", "7MiB"],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{shown}");
        }
        assert!(shown.contains("there are 3"));
    }
}
