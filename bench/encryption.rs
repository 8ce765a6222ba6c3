//! Measures what encryption of a three-replica cluster's traffic costs: the same jobs with it off and on, in turns, on one
//! cluster. `make bench-encryption` runs it; `make bench-encryption JSON=FILE` also writes the results to a file.

mod common;

use anyhow::Context;
use base::units::ByteSize;
use clap::Parser;
use lab::engine::plan::parse_seconds;
use lab::scenarios::encryption;
use lab::testbed::cleanup;
use std::path::PathBuf;
use std::time::Duration;

/// Measure what encryption of a cluster's traffic costs
#[derive(Parser, Debug)]
#[command(
    name = "bench-encryption",
    after_help = "Needs root (loop devices) and free memory of eight volumes.\n\n\
                  Examples:\n  bench-encryption\n  bench-encryption --rounds 1 --json results.json"
)]
struct Arguments {
    /// The millpond to measure
    #[arg(long, value_name = "PATH", default_value = "./target/release/millpond")]
    millpond: PathBuf,

    /// A tmpfs to make the drives on
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    directory: PathBuf,

    /// How often each is measured; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How long each job is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    runtime: Duration,

    /// The volume's size
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    volume_size: ByteSize,

    #[command(flatten)]
    output: common::Output,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    cleanup::install_handlers().context("cannot watch for signals")?;
    let date = arguments.output.date()?;
    let options = encryption::Options {
        millpond: std::path::absolute(&arguments.millpond)?,
        directory: arguments.directory,
        rounds: arguments.rounds,
        runtime: arguments.runtime,
        volume_bytes: arguments.volume_size.0,
        date,
    };
    let summary = encryption::run(&options, |step| eprintln!("{step}"))?;
    arguments.output.publish(&summary)
}
