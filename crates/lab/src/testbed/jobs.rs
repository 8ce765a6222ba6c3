//! Jobs as processes of their own, so that each begins clean and its CPU is its own: `millpond bench`, and fio
//! as the witness that our engine does to a device what others do.

use crate::engine::cpu::{Monitor, Role, told_share};
use crate::engine::histogram::LatencySummary;
use crate::engine::plan::Job;
use crate::report::Report;
use crate::testbed::command;
use anyhow::{Context, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a job may take beyond its own time before it counts as stuck.
const GRACE: Duration = Duration::from_secs(60);
/// A job that ends with its bytes is given time for so many of them a second.
const BYTES_PER_SECOND_MIN: u64 = 4 << 20;

/// The figures of one run that are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Operations a second.
    pub iops: f64,
    /// MiB a second.
    pub mib_per_second: f64,
    /// Average latency over all operations, in microseconds.
    pub mean_us: Option<f64>,
    /// Latencies of the reads.
    pub read: Option<LatencySummary>,
    /// Latencies of the writes.
    pub write: Option<LatencySummary>,
    /// CPU of the whole machine per operation, in microseconds.
    pub machine_us_per_operation: Option<f64>,
    /// CPU of the client per operation, in microseconds.
    pub client_us_per_operation: Option<f64>,
    /// CPU of all nodes per operation, in microseconds.
    pub nodes_us_per_operation: Option<f64>,
    /// CPU of each role on the machine per operation, in microseconds.
    pub roles_us_per_operation: BTreeMap<Role, f64>,
    /// What loop devices completed, for each operation.
    pub loop_completions_per_operation: Option<f64>,
    /// CPU time that the hypervisor gave to others, in seconds.
    pub steal_seconds: Option<f64>,
}

impl Sample {
    /// What an operation costs an operator, in microseconds of CPU: the nodes, and the soft interrupts of the network that run in
    /// threads of their own, of which some are for the client's end. Without the client and without what real drives do not have:
    /// the workers of loop devices, and what these complete by soft interrupts in threads. Each such completion is taken to cost
    /// what it does to `raw`, a job on a loop device in the same round.
    #[must_use]
    pub fn node_cost_us(&self, raw: &Sample) -> Option<f64> {
        let soft = |sample: &Sample| sample.roles_us_per_operation.get(&Role::SoftInterrupts).copied();
        let by_completion = soft(raw)? / raw.loop_completions_per_operation.filter(|count| *count > 0.0)?;
        let of_network = soft(self)? - by_completion * self.loop_completions_per_operation?;
        Some(self.nodes_us_per_operation? + of_network.max(0.0))
    }

    /// How much of the machine's CPU time the roles have together, as a share of 1.
    #[must_use]
    pub fn told_share(&self) -> Option<f64> {
        told_share(self.machine_us_per_operation, &self.roles_us_per_operation)
    }

    /// A latency of the reads or of the writes, whichever took longer.
    #[must_use]
    pub fn slower(&self, of: fn(&LatencySummary) -> f64) -> Option<f64> {
        self.read.iter().chain(&self.write).map(of).reduce(f64::max)
    }
}

impl From<&Report> for Sample {
    fn from(report: &Report) -> Sample {
        Sample {
            iops: report.iops(),
            mib_per_second: report.mib_per_second(),
            mean_us: report.mean_us(),
            read: report.read.map(|side| side.latency),
            write: report.write.map(|side| side.latency),
            machine_us_per_operation: report.cpu.machine_us_per_operation,
            client_us_per_operation: report.cpu.client.us_per_operation,
            nodes_us_per_operation: report.cpu.nodes_us_per_operation,
            roles_us_per_operation: report.cpu.roles_us_per_operation.clone(),
            loop_completions_per_operation: report.cpu.loop_completions_per_operation,
            steal_seconds: report.cpu.steal_seconds,
        }
    }
}

/// The command line of `millpond` that runs `job` on the cluster in `cluster`.
fn bench_arguments(job: &Job, cluster: &Path) -> Vec<String> {
    let dir = ["--dir", &cluster.display().to_string(), "bench"].map(str::to_owned);
    [dir.to_vec(), job.arguments(), vec!["--json".to_owned()]].concat()
}

/// Runs `job` as `millpond bench`. Fails if any operation does.
pub(super) fn bench(millpond: &Path, cluster: &Path, job: &Job) -> anyhow::Result<Sample> {
    parse_report(&command::run(millpond, &bench_arguments(job, cluster), limit(job))?)
}

/// Runs several jobs as `millpond bench` at the same time.
pub(super) fn bench_together(millpond: &Path, cluster: &Path, jobs: &[Job]) -> anyhow::Result<Vec<Sample>> {
    let arguments: Vec<_> = jobs.iter().map(|job| bench_arguments(job, cluster)).collect();
    let limit = jobs.iter().map(limit).max().unwrap_or(GRACE);
    let outputs = command::run_together(millpond, &arguments, limit)?;
    outputs.iter().map(|output| parse_report(output)).collect()
}

fn parse_report(output: &str) -> anyhow::Result<Sample> {
    let report: Report = serde_json::from_str(output)
        .context("`millpond bench` printed no report; are this program and millpond of one build?")?;
    if report.errors > 0 {
        bail!(
            "{} operations of {} on {} failed, the first: {}",
            report.errors,
            report.job.mode,
            report.job.target,
            report.first_error.as_deref().unwrap_or("no reason given")
        );
    }
    Ok(Sample::from(&report))
}

fn limit(job: &Job) -> Duration {
    let bytes = Duration::from_secs(job.io_size.unwrap_or(0) / BYTES_PER_SECOND_MIN);
    GRACE + job.ramp + job.runtime.unwrap_or(bytes)
}

/// What fio measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FioTarget {
    /// A device, as our engine does it: registered buffers and files, whatever has completed reaped at once.
    Device(PathBuf),
    /// An NBD export.
    Nbd {
        /// Its address.
        uri: String,
    },
    /// An image of a Ceph cluster.
    Rbd {
        /// The cluster's configuration.
        configuration: PathBuf,
        /// The pool.
        pool: String,
        /// The image in it.
        image: String,
    },
}

impl FioTarget {
    fn arguments(&self, depth: u32) -> Vec<String> {
        match self {
            FioTarget::Device(path) => vec![
                "--ioengine=io_uring".to_owned(),
                "--direct=1".to_owned(),
                "--registerfiles=1".to_owned(),
                "--fixedbufs=1".to_owned(),
                // By itself fio makes a system call for each operation, which costs more and keeps the drive
                // busier.
                format!("--iodepth_batch_submit={}", (depth / 4).max(1)),
                "--iodepth_batch_complete_min=1".to_owned(),
                format!("--iodepth_batch_complete_max={depth}"),
                // By itself it writes the same bytes again and again, out of a cache.
                "--refill_buffers=1".to_owned(),
                // fio takes a colon in a name for the end of it.
                format!("--filename={}", path.display().to_string().replace(':', "\\:")),
            ],
            FioTarget::Nbd { uri } => vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}")],
            FioTarget::Rbd { pool, image, .. } => vec![
                "--ioengine=rbd".to_owned(),
                "--clientname=admin".to_owned(),
                format!("--pool={pool}"),
                format!("--rbdname={image}"),
            ],
        }
    }
}

/// The command line of fio that does to `target` what `job` does to its own.
fn fio_arguments(target: &FioTarget, job: &Job) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--name=witness", "--norandommap=1", "--randrepeat=0", "--output-format=json"]
            .map(str::to_owned)
            .into();
    arguments.extend(target.arguments(job.depth));
    arguments.extend([
        format!("--rw={}", job.mode),
        format!("--bs={}", job.block.0),
        format!("--iodepth={}", job.depth),
        format!("--rwmixread={}", job.mix_read_percent),
        format!("--ramp_time={}ms", job.ramp.as_millis()),
        format!("--offset={}", job.offset),
    ]);
    if let Some(runtime) = job.runtime {
        arguments.extend(["--time_based=1".to_owned(), format!("--runtime={}ms", runtime.as_millis())]);
    }
    arguments.extend(job.size.map(|size| format!("--size={size}")));
    arguments
}

/// Runs `job` as fio, on `target`. What it costs is known of a job without a ramp: fio tells nothing of operations before.
pub fn fio(target: &FioTarget, job: &Job) -> anyhow::Result<Sample> {
    let monitor = Monitor::new(Vec::new());
    let before = monitor.snapshot();
    let output = run_fio(target, job)?;
    let usage = monitor.usage(&before, &monitor.snapshot());
    let (sample, operations) = parse_fio(&output)?;
    let machine_us = usage.machine_us.filter(|_| job.ramp.is_zero() && operations > 0.0);
    Ok(Sample {
        machine_us_per_operation: machine_us.map(|us| us / operations),
        steal_seconds: usage.steal_us.map(|us| us / 1e6),
        ..sample
    })
}

fn run_fio(target: &FioTarget, job: &Job) -> anyhow::Result<String> {
    let arguments = fio_arguments(target, job);
    match target {
        FioTarget::Rbd { configuration, .. } => {
            let words = [format!("CEPH_CONF={}", configuration.display()), "fio".to_owned()];
            command::run("env", &[&words[..], &arguments].concat(), limit(job))
        }
        _ => command::run("fio", &arguments, limit(job)),
    }
}

/// Reads fio's JSON, which warnings may precede. Answers how many operations were measured, too.
fn parse_fio(output: &str) -> anyhow::Result<(Sample, f64)> {
    let json = output.find('{').map_or("", |from| &output[from..]);
    let value: serde_json::Value = serde_json::from_str(json).context("fio printed no JSON")?;
    let number = |path: &str| {
        let number = value.pointer(&format!("/jobs/0{path}")).and_then(serde_json::Value::as_f64);
        number.with_context(|| format!("fio tells no {path}"))
    };
    if number("/error")? != 0.0 {
        bail!("fio reports error {}", number("/error")?);
    }
    let (reads, writes) = (number("/read/total_ios")?, number("/write/total_ios")?);
    let total_ns = number("/read/lat_ns/mean")? * reads + number("/write/lat_ns/mean")? * writes;
    let sample = Sample {
        iops: number("/read/iops")? + number("/write/iops")?,
        // fio's `bw` is in KiB.
        mib_per_second: (number("/read/bw")? + number("/write/bw")?) / 1024.0,
        mean_us: (reads + writes > 0.0).then(|| total_ns / (reads + writes) / 1000.0),
        ..Sample::default()
    };
    Ok((sample, reads + writes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{Mode, TargetName};
    use crate::report::tests::sample;

    #[test]
    fn a_report_read_back_from_json_keeps_the_compared_figures() {
        let report = sample(false);
        let read = parse_report(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(read, Sample::from(&report));
        assert_eq!((read.iops, read.mean_us), (20_000.0, Some(150.0)));
        assert_eq!(read.nodes_us_per_operation, None);
    }

    #[test]
    fn what_nodes_cost_has_the_soft_interrupts_of_the_network_in_it_and_is_unknown_without() {
        let sample = Sample::from(&sample(true));
        let raw = |soft: f64, completions: f64| Sample {
            roles_us_per_operation: [(Role::SoftInterrupts, soft)].into(),
            loop_completions_per_operation: Some(completions),
            ..Sample::default()
        };
        // Half a completion an operation, at 1.5 µs each.
        assert_eq!(sample.node_cost_us(&raw(1.5, 1.0)), Some(6.0 + 1.0 - 0.75));
        assert_eq!(sample.node_cost_us(&raw(6.0, 2.0)), Some(6.0), "never less than nothing");
        assert_eq!(sample.node_cost_us(&raw(1.5, 0.0)), None);
        assert_eq!(sample.told_share(), Some(0.975));
        assert_eq!(sample.slower(|latency| latency.mean_us), Some(300.0));
        let unknown = Sample { roles_us_per_operation: BTreeMap::new(), ..sample };
        assert_eq!((unknown.node_cost_us(&raw(1.5, 1.0)), unknown.told_share()), (None, None));
        assert_eq!(Sample::default().slower(|latency| latency.mean_us), None);
    }

    #[test]
    fn a_report_with_failed_operations_is_no_sample() {
        let mut report = sample(true);
        (report.errors, report.first_error) = (1, Some("osd.2 is full".into()));
        let error = parse_report(&serde_json::to_string(&report).unwrap()).unwrap_err().to_string();
        assert!(error.contains("randrw on volume:demo") && error.contains("osd.2 is full"), "{error}");
        assert!(parse_report("what?").unwrap_err().to_string().contains("no report"));
    }

    #[test]
    fn fio_is_told_the_same_as_our_engine() {
        let mut job = Job::new(TargetName::Raw("/dev/loop0".into()), Mode::RandomReadWrite);
        (job.depth, job.size) = (64, Some(1 << 30));
        let device = FioTarget::Device("/dev/loop0".into());
        let line = fio_arguments(&device, &job).join(" ");
        for expected in ["--filename=/dev/loop0", "--rw=randrw", "--iodepth=64", "--size=1073741824"] {
            assert!(line.contains(expected), "{line}");
        }
        assert!(
            line.contains("--registerfiles=1 --fixedbufs=1") && line.contains("--runtime=20000ms"),
            "{line}"
        );
        assert!(line.contains("--refill_buffers=1"), "{line}");
        let nbd = FioTarget::Nbd { uri: "nbd://host/disk".into() };
        let line = fio_arguments(&nbd, &job).join(" ");
        assert!(
            line.contains("--ioengine=nbd --uri=nbd://host/disk") && !line.contains("fixedbufs"),
            "{line}"
        );
        job.runtime = None;
        assert!(!fio_arguments(&nbd, &job).join(" ").contains("time_based"));
    }

    #[test]
    fn the_json_of_fio_is_read_as_captured() {
        let captured = r#"fio: warning about something
            {"fio version": "fio-3.33", "jobs": [{"jobname": "witness", "error": 0,
             "read": {"total_ios": 300, "iops": 150.0, "bw": 600, "lat_ns": {"mean": 100000.0}},
             "write": {"total_ios": 100, "iops": 50.0, "bw": 200, "lat_ns": {"mean": 300000.0}}}]}"#;
        let (sample, operations) = parse_fio(captured).unwrap();
        assert_eq!(operations, 400.0);
        assert_eq!((sample.iops, sample.mib_per_second), (200.0, 800.0 / 1024.0));
        assert_eq!(sample.mean_us, Some(150.0));
        assert_eq!(sample.machine_us_per_operation, None);
        assert!(parse_fio(&captured.replace("\"error\": 0", "\"error\": 5")).is_err());
        assert!(parse_fio("fio: no such engine").is_err());
    }

    #[test]
    fn fio_itself_agrees_with_its_parser() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.as_file().set_len(4 << 20).unwrap();
        let mut job = Job::new(TargetName::Raw(file.path().into()), Mode::RandomRead);
        job.runtime = Some(Duration::from_millis(200));
        match run_fio(&FioTarget::Device(file.path().into()), &job) {
            Ok(output) => {
                let (sample, _) = parse_fio(&output).unwrap();
                assert!(sample.iops > 0.0 && sample.mean_us.unwrap() > 0.0, "{sample:?}");
            }
            // Where io_uring or direct I/O is refused, fio must be told apart from a wrong parser.
            Err(error) => testkit::prerequisites::not_tested("fio and its parser", &error.to_string()),
        }
    }
}
