//! The benchmarks: each is a scenario of `lab`, run on drives of memory and taken down on every way out.
//!
//! `make bench` and the like run it; `JSON=FILE` also writes the results to a file.

use anyhow::Context;
use clap::{Parser, Subcommand};
use lab::engine::cpu::Machine;
use lab::scenarios::{failover, large, turns, volume};
use lab::testbed::{Testbed, cleanup, command};
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

#[derive(Subcommand, Debug)]
enum Scenario {
    /// A raw device and a three-replica volume in one run, and the ratios
    Volume(volume::Options),
    /// How long clients wait when a node is lost, how fast a new OSD is filled, and what a scrub costs
    Failover(failover::Options),
    /// What encryption of a cluster's traffic costs: off and on in turns
    Encryption(turns::Turns),
    /// Another build of millpond and this one in turns, and whether this one is worse
    Against(turns::Against),
    /// What a cluster of thousands of OSDs costs to look at, what it writes to its registry, and hosts that join and die
    LargeCluster(large::Options),
}

/// What a run found, and where and when.
#[derive(Serialize)]
struct Results<S> {
    machine: Machine,
    date: String,
    #[serde(flatten)]
    summary: S,
}

/// Prints the results, and writes them to a file too if that was asked for.
fn publish(date: String, summary: impl Display + Serialize, json: Option<&Path>) -> anyhow::Result<()> {
    let machine = Machine::this();
    print!("\nMachine   {machine}\nDate      {date}\n{summary}");
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&Results { machine, date, summary })?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("{}: cannot write the results", path.display()))?;
    }
    Ok(())
}

fn now() -> anyhow::Result<String> {
    let date = command::run("date", &["--utc", "+%Y-%m-%d %H:%M UTC"], Duration::from_secs(10))?;
    Ok(date.trim().to_owned())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    cleanup::install_handlers().context("cannot watch for signals")?;
    let testbed = Testbed::new(&arguments.directory, &std::path::absolute(&arguments.millpond)?)?;
    let date = arguments.date.map_or_else(now, Ok)?;
    let json = arguments.json.as_deref();
    match &arguments.scenario {
        Scenario::Volume(options) => publish(date, volume::run(&testbed, options)?, json),
        Scenario::Failover(options) => publish(date, failover::run(&testbed, options)?, json),
        Scenario::Encryption(turns) => publish(date, turns::encryption(&testbed, turns)?, json),
        Scenario::Against(options) => publish(date, turns::against(&testbed, options)?, json),
        Scenario::LargeCluster(options) => publish(date, large::run(&testbed, options)?, json),
    }
}
