//! What `make bench-large` measures: a cluster of thousands of OSDs, watched; and hosts that join and die.
//!
//! The thousands are simulated as far as the registry and the manager can tell ([`fleet`]); the registry, the manager, the
//! node that is scraped and the command are real. Hosts that join and die are real processes.

mod events;
pub mod fleet;
mod http;
mod meter;
mod summary;
mod watching;

use super::say;
use crate::testbed::Testbed;
use crate::testbed::etcd::Etcd;
use anyhow::Context;
use fleet::Size;
use node::Location;
use serde::Serialize;
use std::fmt;
use std::time::Duration;
use summary::Summary;
use watching::{Watching, watch};

/// How long groups may take to become what they shall be.
const PATIENCE: Duration = Duration::from_secs(300);
/// Real nodes beside the simulated ones, and OSDs of each.
const REAL_NODES: usize = 2;
const REAL_OSDS_PER_NODE: usize = 4;
const REAL_DRIVE_BYTES: u64 = 256 << 20;

/// How it is run.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    size: Size,

    /// Leave out the hosts that join and die
    #[arg(long)]
    skip_events: bool,

    /// Leave out the part on an etcd
    #[arg(long)]
    skip_etcd: bool,
}

/// Sets up, measures, and takes everything down.
pub fn run(testbed: &Testbed, options: &Options) -> anyhow::Result<impl fmt::Display + Serialize> {
    let mut watched = vec![on_embedded(testbed, options.size)?];
    if !options.skip_etcd {
        watched.push(on_etcd(testbed, options.size)?);
    }
    let events = if options.skip_events { None } else { Some(events::run(testbed)?) };
    Ok(Summary { simulated_osds: options.size.osds(), watched, events })
}

fn on_embedded(testbed: &Testbed, size: Size) -> anyhow::Result<Watching> {
    say("embedded registry: starting two real nodes");
    let drives = testbed.drives("embedded-drive", REAL_NODES * REAL_OSDS_PER_NODE, REAL_DRIVE_BYTES)?;
    let cluster = testbed.cluster("embedded", &drives, REAL_NODES)?;
    cluster.command(&["pool", "rm", "default"])?;
    watch(&cluster, "embedded", &Location::Socket(cluster.directory().join("registry.sock")), size)
}

fn on_etcd(testbed: &Testbed, size: Size) -> anyhow::Result<Watching> {
    say("etcd of three members: starting two real nodes");
    let etcd = Etcd::start(&testbed.directory().join("etcd"))?;
    let drives = testbed.drives("etcd-drive", REAL_NODES * REAL_OSDS_PER_NODE, REAL_DRIVE_BYTES)?;
    let hosts = [testbed.host("host0"), testbed.host("host1")];
    let made: serde_json::Value = hosts[0].json(&["cluster", "init", "--registry", &etcd.url()])?;
    let token = made["token"].as_str().context("`millpond cluster init --json` tells no token")?;
    for (host, drives) in hosts.iter().zip(drives.chunks(REAL_OSDS_PER_NODE)) {
        host.join(token, drives)?;
    }
    let location = etcd.url().parse().map_err(anyhow::Error::msg)?;
    watch(&hosts[0], "etcd", &location, size)
}
