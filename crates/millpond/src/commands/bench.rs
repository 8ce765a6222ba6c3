//! `millpond bench`: one measurement, in fio's names and meanings.

use crate::Usage;
use crate::commands::serving::parse_timeout;
use crate::host::access;
use crate::host::directory::Directory;
use crate::host::stop;
use crate::host::supervisor::Running;
use crate::output;
use crate::output::progress::Progress;
use anyhow::{Context, anyhow, bail};
use base::units::ByteSize;
use clap::Args;
use lab::engine::cpu::{Monitor, Watched};
use lab::engine::plan::{Job, Mode, TargetName, parse_seconds};
use lab::engine::{self, Live, TargetError};
use lab::report::{Report, live_line};
use lab::targets::volume::VolumeTarget;
use lab::targets::{OpenTarget, VolumeAccess};
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use volume::OpenAs;

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
    /// What to measure: raw:PATH, volume:NAME, nbd:URI or vhost-user:SOCKET
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

    /// Operations a second to ask for; latencies count from when each was due [default: as many as can be done]
    #[arg(long, value_name = "COUNT")]
    pub rate_iops: Option<u32>,

    /// Write zeros in place of random bytes, which makes stores that recognise them look faster than they are
    #[arg(long)]
    pub zero_buffers: bool,

    /// How long an operation on a volume may take before it counts as failed [default: it waits for ever]
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,

    /// The file of the key to act with on a volume, as `millpond auth add` makes it [default: that of the cluster's
    /// owner]
    #[arg(long, env = "MILLPOND_KEY", value_name = "PATH")]
    pub key: Option<PathBuf>,

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
        job.rate_iops = self.rate_iops;
        job.zero_buffers = self.zero_buffers;
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
    } else if arguments.timeout.is_some() {
        bail!(Usage(format!("--timeout is for volumes, and {} is none; leave it out", job.target)));
    }
    measure(&job, &directory, arguments)
}

fn measure(job: &Job, directory: &Directory, arguments: &BenchArguments) -> anyhow::Result<()> {
    let monitor = Monitor::new(watched(job, directory)?);
    let stopping = Arc::new(AtomicBool::new(false));
    let wished = stopping.clone();
    stop::on_wish(move || {
        if wished.swap(true, Ordering::Relaxed) {
            // The second wish: a target that does not answer is not waited for.
            std::process::exit(1);
        }
    })?;
    let live = |live: &Live<'_>| {
        show_on_terminal(&live_line(live));
        if stopping.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut target = OpenTarget::open(job, true, || {
        let cluster = directory.access(arguments.key.as_deref()).map_err(|error| unusable(&error))?;
        // Who only reads needs nobody to give it up.
        let open = if job.mode.writes() { OpenAs::Owner } else { OpenAs::Reader };
        Ok(VolumeAccess { cluster, open, timeout: arguments.timeout })
    })?;
    let measured = engine::run(&mut target, job, &monitor, live)?;
    show_on_terminal("");
    let report = Report::new(job, &measured);
    output::show(arguments.json, &report, || report.to_string())?;
    fail_if_any_failed(&report)
}

/// Why a target cannot be used, in one sentence.
pub fn unusable(error: &anyhow::Error) -> TargetError {
    TargetError(format!("{error:#}"))
}

fn fail_if_any_failed(report: &Report) -> anyhow::Result<()> {
    if report.errors == 0 {
        return Ok(());
    }
    let first = report.first_error.as_deref().unwrap_or("no reason given");
    bail!("{} operations on {} failed; the first: {first}", report.errors, report.job.target)
}

/// The node processes whose CPU time goes into the job: those of the cluster in the directory, unless the
/// job has nothing to do with it.
fn watched(job: &Job, directory: &Directory) -> anyhow::Result<Vec<Watched>> {
    let is_concerned = match &job.target {
        TargetName::Raw(_) | TargetName::Command(_) => false,
        TargetName::Volume(_) => true,
        // The export may be anybody's; if a cluster is up here, it is most likely that one's.
        TargetName::Nbd(_) | TargetName::VhostUser(_) => directory.holder()?.is_some(),
    };
    if is_concerned { nodes_of(directory) } else { Ok(Vec::new()) }
}

/// The processes of the nodes of the cluster in a directory that run on this machine.
pub fn nodes_of(directory: &Directory) -> anyhow::Result<Vec<Watched>> {
    let osds = access::with_inquiry(directory.as_given(), async |inquiry| inquiry.osds().await)?;
    let mut watched: Vec<Watched> = Vec::new();
    for osd in &osds {
        // Several OSDs may share a node's process.
        if let Some(pid) = osd.pid
            && watched.iter().all(|known| known.pid != pid)
        {
            watched.push(Watched { label: osd.node.to_string(), pid });
        }
    }
    Ok(watched)
}

/// Shows how a job goes now on one line of a terminal, in place of what stood there; nothing elsewhere. A terminal that went
/// away is not worth failing for.
pub fn show_on_terminal(line: &str) {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
    }
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
    let target = TargetName::Volume(challenge.volume.clone());
    fill(challenge, &target)?;
    let job = lab::report::challenge::job(target, challenge.runtime);
    let watched =
        challenge.processes.iter().map(|process| Watched { label: process.name.clone(), pid: process.pid });
    let monitor = Monitor::new(watched.collect());
    let live = |live: &Live<'_>| {
        show_on_terminal(&live_line(live));
        ControlFlow::Continue(())
    };
    let mut volume = attach_shared(challenge, &job)?;
    let measured = engine::run(&mut volume, &job, &monitor, live)?;
    show_on_terminal("");
    let report = Report::new(&job, &measured);
    output::print(&format!("\n{}", lab::report::challenge::table(&report)))?;
    fail_if_any_failed(&report)
}

/// Writes the volume once, so that the challenge reads data and not holes.
fn fill(challenge: &Challenge, target: &TargetName) -> anyhow::Result<()> {
    const MIB: u64 = 1 << 20;
    /// Off a terminal each step is a line of its own.
    const STEPS: u64 = 8;
    let job = Job::prefill(target.clone(), challenge.bytes);
    let label = format!("filling volume {} (MiB)", challenge.volume);
    let total = challenge.bytes / MIB;
    let mut progress = Progress::new(&label, total);
    let step = if std::io::stderr().is_terminal() { 1 } else { (total / STEPS).max(1) };
    let live = |live: &Live<'_>| {
        progress.set(live.bytes_done / MIB / step * step);
        ControlFlow::Continue(())
    };
    let mut volume = attach_shared(challenge, &job)?;
    let measured = engine::run(&mut volume, &job, &Monitor::new(Vec::new()), live)?;
    fail_if_any_failed(&Report::new(&job, &measured))?;
    progress.set(total);
    Ok(())
}

fn attach_shared(challenge: &Challenge, job: &Job) -> anyhow::Result<VolumeTarget> {
    let cluster = challenge.directory.access(None)?;
    let block_bytes = u32::try_from(job.block.0).context("the job's operations are too large")?;
    Ok(VolumeTarget::attach(&cluster, &challenge.volume, OpenAs::Sharer, job.depth, block_bytes, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        bench: BenchArguments,
    }

    fn job(target: &str) -> Job {
        Job::new(target.parse().unwrap(), Mode::RandomRead)
    }

    #[test]
    fn a_job_that_has_nothing_to_do_with_a_cluster_asks_none() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        assert_eq!(watched(&job("raw:/dev/nvme0n1"), &directory).unwrap(), []);
        assert_eq!(watched(&job("nbd:nbd://localhost/x"), &directory).unwrap(), []);
        let refusal = watched(&job("volume:x"), &directory).unwrap_err().to_string();
        assert!(refusal.contains("millpond up"), "{refusal}");
    }

    #[test]
    fn a_file_is_measured_to_its_end() {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = scratch.path().join("drive");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let target = format!("raw:{}", path.display());
        let line = CommandLine::parse_from(["bench", "--target", &target, "--io-size", "1MiB", "--json"]);
        run(&line.bench, scratch.path()).unwrap();
    }
}
