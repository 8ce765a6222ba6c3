//! Measures a raw device and a three-replica volume on this machine in one run, and prints the ratios.
//! `make bench` runs it; `make bench JSON=FILE` also writes the results to a file.

mod common;

use anyhow::Context;
use base::units::ByteSize;
use clap::Parser;
use lab::engine::plan::parse_seconds;
use lab::scenarios::comparison;
use lab::testbed::cleanup;
use std::path::PathBuf;
use std::time::Duration;

/// Measure a raw device and a three-replica volume in one run, and print the ratios
#[derive(Parser, Debug)]
#[command(
    name = "bench-suite",
    after_help = "Needs root (loop devices), fio, and some GiB of free memory.\n\n\
                  Examples:\n  bench-suite\n  bench-suite --quick\n  bench-suite --rounds 5 --json results.json"
)]
struct Arguments {
    /// The millpond to measure
    #[arg(long, value_name = "PATH", default_value = "./target/release/millpond")]
    millpond: PathBuf,

    /// A tmpfs to make the drives on
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    directory: PathBuf,

    /// How often every case is measured; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How long each job is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = parse_seconds)]
    runtime: Duration,

    /// The volume's size; as large as the free memory allows, up to 4GiB, if not given
    #[arg(long, value_name = "SIZE")]
    volume_size: Option<ByteSize>,

    /// One round of three seconds and no ageing: to see that it works, not to publish
    #[arg(long)]
    quick: bool,

    /// Compare fio over NBD with fio on the image rbd/test of the Ceph cluster of this configuration
    #[arg(long, value_name = "FILE")]
    ceph_conf: Option<PathBuf>,

    #[command(flatten)]
    output: common::Output,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    cleanup::install_handlers().context("cannot watch for signals")?;
    let date = arguments.output.date()?;
    let quick = arguments.quick;
    let options = comparison::Options {
        millpond: std::path::absolute(&arguments.millpond)?,
        directory: arguments.directory,
        rounds: if quick { 1 } else { arguments.rounds },
        runtime: if quick { Duration::from_secs(3) } else { arguments.runtime },
        volume_bytes: arguments.volume_size.map(|size| size.0),
        ageing: !quick,
        ceph_configuration: arguments.ceph_conf,
        date,
    };
    let summary = comparison::run(&options, |step| eprintln!("{step}"))?;
    arguments.output.publish(&summary)
}
