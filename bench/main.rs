//! The benchmarks: each is a scenario of `lab`, run on drives of memory and taken down on every way out.
//!
//! `make bench` and the like run it; `JSON=FILE` also writes the results to a file.

use anyhow::Context;
use base::units::ByteSize;
use clap::{Parser, Subcommand};
use lab::engine::plan::parse_seconds;
use lab::scenarios::large::fleet::Size;
use lab::scenarios::{Run, against, comparison, encryption, failover, large};
use lab::testbed::{cleanup, command};
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measure millpond on drives of memory
#[derive(Parser, Debug)]
#[command(
    name = "millpond-bench",
    after_help = "Needs root (loop devices) and some GiB of free memory.\n\n\
                  Examples:\n  millpond-bench volume --quick\n  millpond-bench failover --rounds 1 --json results.json\n  \
                  millpond-bench against target/base/release/millpond"
)]
struct Arguments {
    /// The millpond to measure
    #[arg(long, global = true, value_name = "PATH", default_value = "./target/release/millpond")]
    millpond: PathBuf,

    /// A tmpfs to make the drives on
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = "/dev/shm")]
    directory: PathBuf,

    /// Also write all results to this file
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,

    /// The date to print with the results; now if not given
    #[arg(long, global = true, value_name = "DATE")]
    date: Option<String>,

    #[command(subcommand)]
    scenario: Scenario,
}

/// How often everything is measured.
type Rounds = clap::builder::RangedU64ValueParser<u32>;

fn rounds() -> Rounds {
    Rounds::new().range(1..=100)
}

#[derive(Subcommand, Debug)]
enum Scenario {
    /// A raw device and a three-replica volume in one run, and the ratios
    Volume {
        /// How often every case is measured; the median counts
        #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = rounds())]
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
    },
    /// How long clients wait when a node is lost, how fast a new OSD is filled, and what a scrub costs
    Failover {
        /// How often each is measured; the worst counts
        #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = rounds())]
        rounds: u32,

        /// The size of the volume in many placement groups; the one in a single group has an eighth of it
        #[arg(long, value_name = "SIZE", default_value = "512MiB")]
        volume_size: ByteSize,
    },
    /// What encryption of a cluster's traffic costs: off and on in turns
    Encryption {
        #[command(flatten)]
        turns: Turns,
    },
    /// Another build of millpond and this one in turns, and whether this one is worse
    Against {
        /// The other build of millpond
        #[arg(value_name = "MILLPOND")]
        base: PathBuf,

        #[command(flatten)]
        turns: Turns,
    },
    /// What a cluster of thousands of OSDs costs to look at, what it writes to its registry, and hosts that join and die
    LargeCluster {
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
    },
}

/// What is measured of two variants.
#[derive(clap::Args, Debug)]
struct Turns {
    /// How often each is measured; fewer than six have no interval
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = rounds())]
    rounds: u32,

    /// How long each job is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    runtime: Duration,

    /// The volume's size
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    volume_size: ByteSize,
}

fn now() -> anyhow::Result<String> {
    let date = command::run("date", &["--utc", "+%Y-%m-%d %H:%M UTC"], Duration::from_secs(10))?;
    Ok(date.trim().to_owned())
}

/// Prints the results, and writes them to a file too if that was asked for.
fn publish(summary: &(impl Display + Serialize), json: Option<&Path>) -> anyhow::Result<()> {
    print!("\n{summary}");
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(summary)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("{}: cannot write the results", path.display()))?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    cleanup::install_handlers().context("cannot watch for signals")?;
    let run = Run {
        millpond: std::path::absolute(&arguments.millpond)?,
        directory: arguments.directory,
        rounds: 1,
        date: arguments.date.map_or_else(now, Ok)?,
    };
    let json = arguments.json.as_deref();
    let progress = |step: &str| eprintln!("{step}");
    match arguments.scenario {
        Scenario::Volume { rounds, runtime, volume_size, quick, ceph_conf } => {
            let options = comparison::Options {
                run: Run { rounds: if quick { 1 } else { rounds }, ..run },
                runtime: if quick { Duration::from_secs(3) } else { runtime },
                volume_bytes: volume_size.map(|size| size.0),
                ageing: !quick,
                ceph_configuration: ceph_conf,
            };
            publish(&comparison::run(&options, progress)?, json)
        }
        Scenario::Failover { rounds, volume_size } => {
            let options = failover::Options { run: Run { rounds, ..run }, volume_bytes: volume_size.0 };
            publish(&failover::run(&options, progress)?, json)
        }
        Scenario::Encryption { turns } => {
            let run = Run { rounds: turns.rounds, ..run };
            publish(&encryption::run(&run, turns.runtime, turns.volume_size.0, progress)?, json)
        }
        Scenario::Against { base, turns } => {
            let run = Run { rounds: turns.rounds, ..run };
            let base = std::path::absolute(base)?;
            publish(&against::run(&run, &base, turns.runtime, turns.volume_size.0, progress)?, json)
        }
        Scenario::LargeCluster { nodes, osds_per_node, groups, skip_events, skip_etcd } => {
            let size = Size { nodes, osds_per_node, groups };
            let options = large::Options { run, size, skip_events, skip_etcd };
            publish(&large::run(&options, progress)?, json)
        }
    }
}
