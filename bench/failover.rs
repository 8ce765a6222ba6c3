//! Measures what clients notice when a node of a three-replica cluster is lost, how soon everything is redundant
//! again, how fast a new OSD is filled, and what a deep scrub costs. `make bench-failover` runs it;
//! `make bench-failover JSON=FILE` also writes the results to a file.

mod common;

use anyhow::Context;
use base::units::ByteSize;
use clap::Parser;
use lab::scenarios::failover;
use lab::testbed::cleanup;
use std::path::PathBuf;

/// Measure how long clients wait when a node is lost, how fast a new OSD is filled, and what a scrub costs
#[derive(Parser, Debug)]
#[command(
    name = "bench-failover",
    after_help = "Needs root (loop devices) and free memory of twenty volumes.\n\n\
                  Examples:\n  bench-failover\n  bench-failover --rounds 1 --json results.json"
)]
struct Arguments {
    /// The millpond to measure
    #[arg(long, value_name = "PATH", default_value = "./target/release/millpond")]
    millpond: PathBuf,

    /// A tmpfs to make the drives on
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    directory: PathBuf,

    /// How often each is measured; the worst counts
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// The size of the volume in many placement groups; the one in a single group has an eighth of it
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    volume_size: ByteSize,

    #[command(flatten)]
    output: common::Output,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    cleanup::install_handlers().context("cannot watch for signals")?;
    let date = arguments.output.date()?;
    let options = failover::Options {
        millpond: std::path::absolute(&arguments.millpond)?,
        directory: arguments.directory,
        rounds: arguments.rounds,
        volume_bytes: arguments.volume_size.0,
        date,
    };
    let summary = failover::run(&options, |step| eprintln!("{step}"))?;
    arguments.output.publish(&summary)
}
