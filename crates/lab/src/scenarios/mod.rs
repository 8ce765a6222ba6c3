//! What the benchmarks measure. Each scenario sets up on a [`Testbed`], measures in rounds, and answers a summary that people
//! and programs can read; what it set up is taken down on every way out.

pub mod failover;
pub mod large;
mod steady;
mod trials;
pub mod turns;
pub mod volume;

use crate::testbed::{Cluster, LoopDevice, REPLICAS, Testbed};
use std::path::Path;

/// The volume that is measured, where there is one.
const VOLUME: &str = "bench";
/// Its drives are so many times the volume: half full.
const DRIVE_PER_VOLUME: u64 = 2;

/// How often everything is measured, as an argument.
fn rounds() -> clap::builder::RangedU64ValueParser<u32> {
    clap::builder::RangedU64ValueParser::new().range(1..=100)
}

/// Tells whoever waits what goes on.
fn say(step: &str) {
    eprintln!("{step}");
}

/// A cluster of that `millpond` in a directory `name`, and a volume in it that was written once.
fn cluster_with_volume(
    testbed: &Testbed,
    millpond: &Path,
    name: &str,
    volume_bytes: u64,
) -> anyhow::Result<(Vec<LoopDevice>, Cluster)> {
    let drives =
        testbed.written_drives(&format!("{name}-drive"), REPLICAS, volume_bytes * DRIVE_PER_VOLUME)?;
    let cluster = testbed.cluster_of(millpond, name, &drives, REPLICAS, &[])?;
    cluster.filled_volume(VOLUME, volume_bytes, None)?;
    Ok((drives, cluster))
}
