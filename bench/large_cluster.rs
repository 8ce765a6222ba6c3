//! Measures what it costs to look at a cluster of thousands of OSDs, what it writes to its registry, and what happens when a
//! host joins or dies. `make bench-large` runs it; `make bench-large JSON=FILE` also writes the results to a file.

mod common;

use anyhow::Context;
use clap::Parser;
use lab::scenarios::large;
use lab::scenarios::large::fleet::Size;
use lab::testbed::cleanup;
use std::path::PathBuf;

/// Measure what a cluster of thousands of OSDs costs to look at, and what it writes to its registry
#[derive(Parser, Debug)]
#[command(
    name = "bench-large-cluster",
    after_help = "Needs root (loop devices), etcd, and 4 GiB of free memory.\n\n\
                  Examples:\n  bench-large-cluster\n  bench-large-cluster --nodes 20 --groups 1024 --skip-events"
)]
struct Arguments {
    /// The millpond to measure
    #[arg(long, value_name = "PATH", default_value = "./target/release/millpond")]
    millpond: PathBuf,

    /// A tmpfs to make drives and registries on
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    directory: PathBuf,

    /// Simulated nodes
    #[arg(long, value_name = "COUNT", default_value_t = 581)]
    nodes: u32,

    /// Simulated OSDs of each
    #[arg(long, value_name = "COUNT", default_value_t = 14)]
    osds_per_node: u32,

    /// Placement groups on them
    #[arg(long, value_name = "COUNT", default_value_t = 65536)]
    groups: u32,

    /// Leave out the hosts that join and die
    #[arg(long)]
    skip_events: bool,

    /// Leave out the part on an etcd
    #[arg(long)]
    skip_etcd: bool,

    #[command(flatten)]
    output: common::Output,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    cleanup::install_handlers().context("cannot watch for signals")?;
    let options = large::Options {
        millpond: std::path::absolute(&arguments.millpond)?,
        directory: arguments.directory,
        size: Size {
            nodes: arguments.nodes,
            osds_per_node: arguments.osds_per_node,
            groups: arguments.groups,
        },
        skip_events: arguments.skip_events,
        skip_etcd: arguments.skip_etcd,
        date: arguments.output.date()?,
    };
    let summary = large::run(&options, |step| eprintln!("{step}"))?;
    arguments.output.publish(&summary)
}
