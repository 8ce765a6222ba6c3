//! A sample by fio: as a witness of our own engine, and of what only fio reaches.
//!
//! fio says nothing while it works that could be counted with, so its ramp is run as a job of its own before, and what is watched is
//! the whole of the second one. Starting and ending takes it some tenths of a second; CPU time per operation is that much too high.

use super::Progress;
use super::sample::{Asked, job_of, served_since, size_of, watched};
use crate::agent::unix_ns;
use crate::archive::{AgentView, Sample, Second};
use crate::engine::cpu::{Monitor, Role, Usage, Watched};
use crate::engine::histogram::{Buckets, Latency};
use crate::engine::plan::{Job, TargetName};
use crate::monitor::{DriveUse, Drives, InterfaceUse, Network, Pressure, Stalls};
use crate::plan::{Place, Subject};
use crate::report::{Cpu, Side};
use crate::targets::raw::TOGETHER_MAX;
use crate::testbed::command;
use crate::trust::FIO;
use anyhow::{Context, bail};
use serde_json::Value;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long fio may take beyond its time.
const GRACE: Duration = Duration::from_secs(120);

/// Runs fio for the sample. Its numbers are not filled in.
pub(super) fn take(asked: &Asked<'_>, progress: &mut dyn FnMut(&Progress<'_>)) -> anyhow::Result<Sample> {
    let Asked { host, subject, point, round, .. } = *asked;
    if !point.job.ramp.is_zero() {
        let ramp = Job { runtime: Some(point.job.ramp), ..point.job.clone() };
        run(&arguments(asked, &ramp)?, subject, asked.mark, ramp.ramp, asked.options.stopping)?;
    }
    let served = host.served(subject, point.clients)?;
    let nodes = watched(subject, host)?;
    progress(&Progress::Step(format!("fio runs {} on {}", point.name, subject.name)));
    let runtime = point.job.runtime.unwrap_or_default();
    let arguments = arguments(asked, &point.job)?;
    let seen = watch(nodes, || run(&arguments, subject, asked.mark, runtime, asked.options.stopping))?;
    let mut sample = seen.sample_of(&jobs_of(&seen.output)?[0])?;
    sample.round = round;
    sample.cpu = Some(Cpu::new(&seen.usage, sample.operations()));
    if let Some(before) = served {
        let asked_bytes = [&sample.read, &sample.write]
            .map(|side| side.as_ref().map_or(0, |side| side.operations * point.job.block.0));
        sample.served = served_since(asked, &before, asked_bytes.into())?;
    }
    Ok(sample)
}

/// What a run of fio printed, and what was seen of the machine meanwhile.
pub(super) struct Seen {
    pub(super) output: String,
    pub(super) usage: Usage,
    pressure: Pressure,
    drives: Vec<DriveUse>,
    network: Vec<InterfaceUse>,
    began_ns: u64,
}

/// Watches the machine while fio runs. fio is the client, and a process that has ended when it is looked at: its CPU time is what
/// this one's children have used more.
pub(super) fn watch(
    nodes: Vec<Watched>,
    run: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<Seen> {
    let monitor = Monitor::of(Vec::new(), nodes);
    let (began_ns, stalls, before) = (unix_ns(), Stalls::now(), monitor.snapshot());
    let (drives, network) = (Drives::now(), Network::now());
    let used_before = children_us()?;
    let output = run()?;
    let mut usage = monitor.usage(&before, &monitor.snapshot());
    let pressure = Stalls::now().since(&stalls);
    let (drives, network) = (Drives::now().since(&drives), Network::now().since(&network));
    let client_us = children_us()? - used_before;
    usage.client.cpu_us = Some(client_us);
    usage.roles.insert(Role::Client, client_us);
    Ok(Seen { output, usage, pressure, drives, network, began_ns })
}

impl Seen {
    /// What fio tells of one of its jobs, as a sample. Its numbers, and what all jobs together used, are not filled in.
    pub(super) fn sample_of(&self, told: &Value) -> anyhow::Result<Sample> {
        let mut sample = sample_of(told)?;
        sample.began_unix_ms = self.began_ns / 1_000_000;
        (sample.cpu_pressure, sample.io_pressure) = (self.pressure.cpu, self.pressure.io);
        (sample.drives, sample.network) = (self.drives.clone(), self.network.clone());
        sample.agents = vec![AgentView {
            name: FIO.to_owned(),
            opened_unix_ms: self.began_ns as f64 / 1e6,
            seconds: sample.seconds,
            iops: sample.iops(),
            ..AgentView::default()
        }];
        Ok(sample)
    }
}

/// CPU time of all processes that this one has started and waited for, in microseconds.
fn children_us() -> anyhow::Result<f64> {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read what children used")?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64)
}

fn run(
    arguments: &[String],
    subject: &Subject,
    mark: &str,
    runtime: Duration,
    stopping: &AtomicBool,
) -> anyhow::Result<String> {
    let mut words: Vec<String> = vec!["env".to_owned()];
    words.extend(subject.ceph_conf.iter().map(|path| format!("CEPH_CONF={}", path.display())));
    words.push(FIO.to_owned());
    command::run_unless(&words[0], &[&words[1..], arguments].concat(), mark, runtime + GRACE, stopping)
}

/// The command line of fio that does what our engine would do: for all clients, and then for each what is its own.
fn arguments(asked: &Asked<'_>, job: &Job) -> anyhow::Result<Vec<String>> {
    let Asked { subject, point, round, .. } = *asked;
    let runtime_ms = job.runtime.unwrap_or_default().as_millis();
    let mut arguments = vec![
        "--output-format=json+".to_owned(),
        "--name=global".to_owned(),
        // One process, which goes when it is to go.
        "--thread=1".to_owned(),
        "--group_reporting=1".to_owned(),
        "--lat_percentiles=1".to_owned(),
        "--norandommap=1".to_owned(),
        "--randrepeat=1".to_owned(),
        format!("--randseed={round}"),
        // By itself it writes the same bytes again and again, out of a cache.
        "--refill_buffers=1".to_owned(),
        "--time_based=1".to_owned(),
        format!("--runtime={runtime_ms}ms"),
        format!("--rw={}", job.mode),
        format!("--bs={}", job.block.0),
        format!("--iodepth={}", job.depth),
        format!("--rwmixread={}", job.mix_read_percent),
        format!("--offset={}", job.offset),
    ];
    arguments.extend(size_of(subject, point).map(|size| format!("--size={size}")));
    arguments.extend(job.rate_iops.map(|rate| format!("--rate_iops={rate}")));
    if job.zero_buffers {
        arguments.push("--zero_buffers=1".to_owned());
    }
    arguments.extend(match subject.place().context("the subject is nowhere")? {
        // As our own engine does it: registered buffers and files, whatever has completed reaped at once, and what takes its place
        // begun in parts of the same size: smaller ones keep some devices busier, and are another job.
        Place::Raw(_) | Place::Directory(_) => vec![
            "--ioengine=io_uring".to_owned(),
            format!("--direct={}", u8::from(subject.is_direct())),
            "--registerfiles=1".to_owned(),
            "--fixedbufs=1".to_owned(),
            format!("--iodepth_batch_submit={}", job.depth.min(TOGETHER_MAX)),
            "--iodepth_batch_complete_min=1".to_owned(),
            format!("--iodepth_batch_complete_max={}", job.depth),
        ],
        Place::Nbd(_) => vec!["--ioengine=nbd".to_owned()],
        Place::Rbd(_) => vec!["--ioengine=rbd".to_owned(), "--clientname=admin".to_owned()],
        Place::System(_) => bail!("fio reaches no system that only commands reach"),
        Place::VhostUser(_) => bail!("fio reaches no vhost-user back-end; leave out engine = \"fio\""),
        Place::Volume(_) => bail!("fio reaches no volume but by its NBD export"),
    });
    for client in 1..=point.clients {
        arguments.push(format!("--name=client-{client}"));
        match (subject.place(), job_of(subject, point, asked.host, client, round).map(|job| job.target)) {
            (_, Some(TargetName::Raw(path))) => {
                // fio takes a colon in a name for the end of it.
                arguments.push(format!("--filename={}", path.display().to_string().replace(':', "\\:")));
            }
            (_, Some(TargetName::Nbd(uri))) => arguments.push(format!("--uri={uri}")),
            (Some(Place::Rbd(image)), _) => {
                let image = image.replace("{client}", &client.to_string());
                let (pool, image) = image.split_once('/').context("an image is \"pool/image\"")?;
                arguments.extend([format!("--pool={pool}"), format!("--rbdname={image}")]);
            }
            _ => bail!("fio does not reach {}", subject.name),
        }
    }
    Ok(arguments)
}

/// Writes what so many clients use of what only fio reaches.
pub(super) fn fill(subject: &Subject, clients: u32, mark: &str, stopping: &AtomicBool) -> anyhow::Result<()> {
    let Some(Place::Rbd(image)) = subject.place() else { return Ok(()) };
    let places = if subject.is_by_client() { clients } else { 1 };
    for client in 1..=places {
        let image = image.replace("{client}", &client.to_string());
        let (pool, image) = image.split_once('/').context("an image is \"pool/image\"")?;
        let mut arguments: Vec<String> =
            ["--name=fill", "--thread=1", "--ioengine=rbd", "--clientname=admin"]
                .into_iter()
                .chain(["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers=1"])
                .map(str::to_owned)
                .collect();
        arguments.extend([format!("--pool={pool}"), format!("--rbdname={image}")]);
        arguments.extend(subject.size.map(|size| format!("--size={}", size.0)));
        run(&arguments, subject, mark, Duration::from_secs(3600), stopping)?;
    }
    Ok(())
}

/// Reads fio's JSON, which warnings may precede: what it tells of each job, or group of jobs.
pub(super) fn jobs_of(output: &str) -> anyhow::Result<Vec<Value>> {
    let json = output.find('{').map_or("", |from| &output[from..]);
    let mut value: Value = serde_json::from_str(json).context("fio printed no JSON")?;
    match value["jobs"].take() {
        Value::Array(jobs) if !jobs.is_empty() => Ok(jobs),
        _ => bail!("fio tells of no job"),
    }
}

/// What fio tells of a job, as a sample. Its numbers are not filled in.
fn sample_of(told: &Value) -> anyhow::Result<Sample> {
    let error = told["error"].as_u64().context("fio tells no error")?;
    if error != 0 {
        bail!("fio reports error {error}");
    }
    let (read, reads, read_seconds) = side_of(&told["read"])?;
    let (write, writes, write_seconds) = side_of(&told["write"])?;
    let seconds = read_seconds.max(write_seconds);
    let mut all = Latency::default();
    all.merge(&reads);
    all.merge(&writes);
    let summary = all.summary().context("fio did nothing")?;
    let iops = |side: &Option<Side>| side.as_ref().map_or(0.0, |side| side.iops);
    Ok(Sample {
        seconds,
        series: vec![Second {
            at_s: seconds,
            seconds,
            read_iops: iops(&read),
            write_iops: iops(&write),
            mean_us: Some(summary.mean_us),
            p99_us: Some(summary.p99_us),
        }],
        read,
        write,
        latencies: vec![(Buckets::from(&reads), Buckets::from(&writes))],
        ..Sample::default()
    })
}

/// What fio tells of one direction, and for how many seconds.
fn side_of(told: &Value) -> anyhow::Result<(Option<Side>, Latency, f64)> {
    let number = |path: &str| {
        told.pointer(path).and_then(Value::as_f64).with_context(|| format!("fio tells no {path}"))
    };
    let count = number("/total_ios")?;
    if count == 0.0 {
        return Ok((None, Latency::default(), 0.0));
    }
    // Total latencies if it was asked for them, and those of completion if a job file asks for others.
    let kind =
        ["/lat_ns", "/clat_ns"].into_iter().find(|kind| told.pointer(&format!("{kind}/bins")).is_some());
    let kind = kind.context("fio tells no bins")?;
    let bins =
        told.pointer(&format!("{kind}/bins")).and_then(Value::as_object).context("fio tells no bins")?;
    let mut counts = Vec::with_capacity(bins.len());
    for (latency_ns, count) in bins {
        counts.push((
            latency_ns.parse().context("a bin of fio is no number")?,
            count.as_u64().context("a bin of fio has no number")?,
        ));
    }
    counts.sort_unstable();
    let sum_ns = (number(&format!("{kind}/mean"))? * number(&format!("{kind}/N"))?) as u64;
    let buckets = Buckets { sum_ns, max_ns: number(&format!("{kind}/max"))? as u64, counts };
    let latency = Latency::from(&buckets);
    let seconds = number("/runtime")? / 1000.0;
    let side = latency.summary().filter(|_| seconds > 0.0).map(|latency| Side {
        operations: count as u64,
        iops: count / seconds,
        mib_per_second: number("/io_bytes").unwrap_or_default() / seconds / f64::from(1 << 20),
        latency,
    });
    Ok((side, latency, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_tells_is_read_as_captured() {
        let captured = r#"fio: warning about something
            {"fio version": "fio-3.33", "jobs": [{"jobname": "client-1", "error": 0,
             "read": {"total_ios": 4, "io_bytes": 16384, "runtime": 2000,
                      "lat_ns": {"max": 300000, "mean": 150000.0, "N": 4, "bins": {"100000": 3, "300000": 1}}},
             "write": {"total_ios": 0}}]}"#;
        let jobs = jobs_of(captured).unwrap();
        let sample = sample_of(&jobs[0]).unwrap();
        assert_eq!((sample.iops(), sample.mean_us(), sample.seconds), (2.0, Some(150.0), 2.0));
        assert_eq!((sample.read.unwrap().latency.max_us, sample.write), (300.0, None));
        assert!((sample.read.unwrap().mib_per_second - 8192.0 / 1048576.0).abs() < 1e-9);
        let broken = captured.replace("\"error\": 0", "\"error\": 5");
        assert!(sample_of(&jobs_of(&broken).unwrap()[0]).unwrap_err().to_string().contains("error 5"));
        assert!(jobs_of("fio: no such engine").is_err() && jobs_of("{\"jobs\": []}").is_err());
        let idle = captured.replace("\"total_ios\": 4", "\"total_ios\": 0");
        assert!(sample_of(&jobs_of(&idle).unwrap()[0]).unwrap_err().to_string().contains("did nothing"));
    }
}
