//! `millpond bench`: one measurement, in fio's names and meanings.

use crate::directory::Directory;
use crate::supervisor::Running;
use crate::{Usage, access};
use anyhow::{anyhow, bail};
use base::units::ByteSize;
use clap::Args;
use lab::plan::{Job, Mode, TargetName, parse_seconds};
use std::path::Path;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  millpond bench --target volume:disk --rw randread --iodepth 64
  millpond bench --target volume:disk --rw randrw --rwmixread 75 --iodepth 64 --runtime 60 --json
  millpond bench --target raw:/dev/nvme1n1 --rw randwrite        destroys what the drive holds
  millpond bench --target nbd:nbd://localhost/disk --rw read --bs 1MiB --iodepth 8

Writes overwrite the target with random bytes. Names and meanings are those of fio.";

/// Measure a drive, a volume or an NBD export.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArguments {
    /// What to measure: raw:PATH, volume:NAME or nbd:URI
    #[arg(long, value_name = "TARGET")]
    pub target: TargetName,

    /// What to do: read, write, randread, randwrite, rw or randrw
    #[arg(long, value_name = "MODE", default_value = "randread")]
    pub rw: Mode,

    /// The size of each operation
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub bs: ByteSize,

    /// Operations in flight
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub iodepth: u32,

    /// Seconds to measure [default: 20, or until --io-size is done]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub runtime: Option<Duration>,

    /// Seconds to run before measuring
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub ramp_time: Duration,

    /// Share of reads in rw and randrw, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    pub rwmixread: u8,

    /// Where to begin in the target
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub offset: ByteSize,

    /// How much of the target to use [default: all of it]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,

    /// Stop after this much I/O
    #[arg(long, value_name = "SIZE")]
    pub io_size: Option<ByteSize>,

    /// The number from which offsets and data follow
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl BenchArguments {
    fn job(&self) -> anyhow::Result<Job> {
        let mut job = Job::new(self.target.clone(), self.rw);
        job.block = self.bs;
        job.depth = self.iodepth;
        // A job that ends with its amount is not cut short by a time that nobody asked for.
        job.runtime = self.runtime.or(if self.io_size.is_some() { None } else { job.runtime });
        job.ramp = self.ramp_time;
        job.mix_read_percent = self.rwmixread;
        job.offset = self.offset.0;
        job.size = self.size.map(|size| size.0);
        job.io_size = self.io_size.map(|size| size.0);
        job.seed = self.seed;
        job.validate().map_err(|error| anyhow!(Usage(error.to_string())))?;
        Ok(job)
    }
}

/// Measures, and prints what came of it.
pub fn run(arguments: &BenchArguments, path: &Path) -> anyhow::Result<()> {
    let job = arguments.job()?;
    let directory = Directory::new(path)?;
    if matches!(job.target, TargetName::Volume(_)) {
        access::require_up(&directory)?;
    }
    measure(&job, &directory, arguments.json)
}

fn measure(job: &Job, directory: &Directory, json: bool) -> anyhow::Result<()> {
    let _ = json;
    bail!(
        "this build of millpond has no benchmark engine in it, so {} is not measured (cluster {}); \
         build it from a complete checkout",
        job.target,
        directory.given()
    )
}

/// The 10K challenge on a volume of a cluster that this process runs.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// The cluster.
    pub directory: Directory,
    /// The volume. What it holds is overwritten.
    pub volume: String,
    /// Its size in bytes, all of which is filled first.
    pub bytes: u64,
    /// How long to measure.
    pub runtime: Duration,
    /// The processes whose CPU time is counted.
    pub processes: Vec<Running>,
}

/// Fills the volume with large writes, runs the challenge with a live line, and prints the table.
/// Fails if any operation does. It blocks; it attaches the volume shared with whoever serves it.
pub fn challenge(challenge: &Challenge) -> anyhow::Result<()> {
    bail!(
        "this build of millpond has no benchmark engine in it, so the challenge does not run on the {} of \
         volume {} in {} for {} s with {} processes; build it from a complete checkout",
        ByteSize(challenge.bytes),
        challenge.volume,
        challenge.directory.given(),
        challenge.runtime.as_secs(),
        challenge.processes.len()
    )
}
