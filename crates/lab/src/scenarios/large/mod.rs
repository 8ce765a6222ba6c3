//! What `make bench-large` measures: a cluster of thousands of OSDs, watched; and hosts that join and die.
//!
//! The thousands are simulated as far as the registry and the manager can tell ([`fleet`]); the registry, the manager, the
//! node that is scraped and the command are real. Hosts that join and die are real processes.

pub mod events;
pub mod fleet;
mod http;
pub mod meter;
mod summary;
pub mod watching;

pub use summary::Summary;

use crate::scenarios::Run;
use crate::testbed::etcd::Etcd;
use crate::testbed::{Cluster, LoopDevice, Testbed, TestbedError};
use anyhow::Context;
use fleet::Size;
use node::Location;
use std::path::Path;
use std::time::Duration;
use watching::Watching;

/// How long groups may take to become what they shall be.
const PATIENCE: Duration = Duration::from_secs(300);
/// Real nodes beside the simulated ones, and OSDs of each.
const REAL_NODES: usize = 2;
const REAL_OSDS_PER_NODE: usize = 4;
const REAL_DRIVE_BYTES: u64 = 256 << 20;

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum LargeError {
    /// There is nothing to measure on.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// Groups do not become what they shall be.
    #[error("the groups of pool {pool} are not all as they shall be after {} s", PATIENCE.as_secs())]
    NotActive {
        /// Its name.
        pool: String,
    },
}

/// How it is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every run is told; this one has no rounds.
    pub run: Run,
    /// How many OSDs and groups are simulated.
    pub size: Size,
    /// Without the hosts that join and die.
    pub skip_events: bool,
    /// Without the part on an etcd.
    pub skip_etcd: bool,
}

/// Sets up, measures, and takes everything down. `progress` is told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> anyhow::Result<Summary> {
    let testbed = Testbed::new(&options.run.directory, &options.run.millpond)?;
    let mut watched = vec![on_embedded(options, testbed.directory(), &mut progress)?];
    if !options.skip_etcd {
        watched.push(on_etcd(options, testbed.directory(), &mut progress)?);
    }
    let events = match options.skip_events {
        true => None,
        false => Some(events::run(&options.run.millpond, testbed.directory(), &mut progress)?),
    };
    Ok(Summary::new(options, watched, events))
}

fn drives(directory: &Path, name: &str, count: usize) -> Result<Vec<LoopDevice>, TestbedError> {
    let drive = |index| LoopDevice::new(directory, &format!("{name}.{index}"), REAL_DRIVE_BYTES);
    (0..count).map(drive).collect()
}

fn on_embedded(
    options: &Options,
    directory: &Path,
    progress: &mut impl FnMut(&str),
) -> anyhow::Result<Watching> {
    progress("embedded registry: starting two real nodes");
    let drives = drives(directory, "embedded", REAL_NODES * REAL_OSDS_PER_NODE)?;
    let devices: Vec<&Path> = drives.iter().map(LoopDevice::path).collect();
    let place = directory.join("embedded");
    let cluster = Cluster::start_nodes(&options.run.millpond, &place, &devices, REAL_NODES, REAL_NODES, &[])?;
    cluster.command(&["pool", "rm", "default"])?;
    watch(options, &place, &Location::Socket(place.join("registry.sock")), progress)
}

fn on_etcd(options: &Options, directory: &Path, progress: &mut impl FnMut(&str)) -> anyhow::Result<Watching> {
    progress("etcd of three members: starting two real nodes");
    let etcd = Etcd::start(&directory.join("etcd"))?;
    let drives = drives(directory, "etcd-drive", REAL_NODES * REAL_OSDS_PER_NODE)?;
    let hosts: Vec<Cluster> = (0..REAL_NODES)
        .map(|index| Cluster::of_host(&options.run.millpond, &directory.join(format!("host{index}"))))
        .collect();
    let made: serde_json::Value = hosts[0].json(&["cluster", "init", "--registry", &etcd.url()])?;
    let token = made["token"].as_str().context("`millpond cluster init --json` tells no token")?;
    for (host, drives) in hosts.iter().zip(drives.chunks(REAL_OSDS_PER_NODE)) {
        let devices: Vec<&Path> = drives.iter().map(LoopDevice::path).collect();
        host.join(token, &devices)?;
    }
    let location = etcd.url().parse().map_err(anyhow::Error::msg)?;
    watch(options, hosts[0].directory(), &location, progress)
}

fn watch(
    options: &Options,
    directory: &Path,
    location: &Location,
    progress: &mut impl FnMut(&str),
) -> anyhow::Result<Watching> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(watching::watch(&options.run.millpond, directory, location, options.size, progress))
}
