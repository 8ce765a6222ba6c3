//! A sample by fio: as a witness of our own engine, and of what only fio reaches.
//!
//! fio says nothing while it works that could be counted with, so its ramp is run as a job of its own before, and what is watched is
//! the whole of the second one. Starting and ending takes it some tenths of a second; CPU time per operation is that much too high.

use super::Progress;
use super::sample::{Asked, job_of, watched};
use crate::agent::unix_ns;
use crate::archive::{AgentView, Sample, Second};
use crate::engine::cpu::Monitor;
use crate::engine::histogram::{Buckets, Latency};
use crate::engine::plan::{Job, TargetName};
use crate::monitor::Stalls;
use crate::plan::{Place, Subject};
use crate::report::{Cpu, side};
use crate::testbed::command;
use anyhow::{Context, bail};
use serde_json::Value;
use std::time::Duration;

/// How long fio may take beyond its time.
const GRACE: Duration = Duration::from_secs(120);

/// Runs fio for the sample. Its numbers are not filled in.
pub(super) fn take(asked: &Asked<'_>, progress: &mut dyn FnMut(&Progress<'_>)) -> anyhow::Result<Sample> {
    let Asked { host, subject, point, round, .. } = *asked;
    if !point.job.ramp.is_zero() {
        let ramp = Job { runtime: Some(point.job.ramp), ..point.job.clone() };
        run(&arguments(asked, &ramp)?, subject, ramp.ramp)?;
    }
    let served = host.served(subject, point.clients)?;
    let monitor = Monitor::of(Vec::new(), watched(subject, host)?);
    let (began_ns, stalls, before) = (unix_ns(), Stalls::now(), monitor.snapshot());
    let used_before = children_us()?;
    progress(&Progress::Step(format!("fio runs {} on {}", point.name, subject.name)));
    let output = run(&arguments(asked, &point.job)?, subject, point.job.runtime.unwrap_or_default())?;
    let mut usage = monitor.usage(&before, &monitor.snapshot());
    let pressure = Stalls::now().since(&stalls);
    let client_us = children_us()? - used_before;
    usage.client.cpu_us = Some(client_us);
    usage.roles.insert(crate::engine::cpu::Role::Client, client_us);
    let mut sample = parsed(&output, &point.job)?;
    sample.round = round;
    sample.began_unix_ms = began_ns / 1_000_000;
    sample.cpu = Some(Cpu::new(&usage, sample.operations()));
    (sample.cpu_pressure, sample.io_pressure) = (pressure.cpu, pressure.io);
    sample.agents = vec![AgentView {
        name: "fio".to_owned(),
        opened_unix_ms: began_ns as f64 / 1e6,
        seconds: sample.seconds,
        iops: sample.iops(),
        ..AgentView::default()
    }];
    std::thread::sleep(host.served_delay(subject));
    if let Some((before, after)) = served.zip(host.served(subject, point.clients)?) {
        let asked_bytes = [&sample.read, &sample.write]
            .map(|side| side.as_ref().map_or(0, |side| side.operations * point.job.block.0));
        sample.served = after.since(&before, asked_bytes.into());
    }
    Ok(sample)
}

/// CPU time of all processes that this one has started and waited for, in microseconds.
fn children_us() -> anyhow::Result<f64> {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read what children used")?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64)
}

fn run(arguments: &[String], subject: &Subject, runtime: Duration) -> anyhow::Result<String> {
    let limit = runtime + GRACE;
    match &subject.ceph_conf {
        Some(path) => {
            let words = [format!("CEPH_CONF={}", path.display()), "fio".to_owned()];
            command::run("env", &[&words[..], arguments].concat(), limit)
        }
        None => command::run("fio", arguments, limit),
    }
}

/// The command line of fio that does what our engine would do: for all clients, and then for each what is its own.
fn arguments(asked: &Asked<'_>, job: &Job) -> anyhow::Result<Vec<String>> {
    let Asked { subject, point, round, .. } = *asked;
    let size = point.job.size.or(subject.size.map(|size| size.0));
    let runtime_ms = job.runtime.unwrap_or_default().as_millis();
    let mut arguments = vec![
        "--output-format=json+".to_owned(),
        "--name=global".to_owned(),
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
    arguments.extend(size.map(|size| format!("--size={size}")));
    arguments.extend(job.rate_iops.map(|rate| format!("--rate_iops={rate}")));
    if job.zero_buffers {
        arguments.push("--zero_buffers=1".to_owned());
    }
    arguments.extend(match subject.place().context("the subject is nowhere")? {
        // As our own engine does it: registered buffers and files, whatever has completed reaped at once.
        Place::Raw(_) | Place::Directory(_) => vec![
            "--ioengine=io_uring".to_owned(),
            "--direct=1".to_owned(),
            "--registerfiles=1".to_owned(),
            "--fixedbufs=1".to_owned(),
            format!("--iodepth_batch_submit={}", (job.depth / 4).max(1)),
            "--iodepth_batch_complete_min=1".to_owned(),
            format!("--iodepth_batch_complete_max={}", job.depth),
        ],
        Place::Nbd(_) => vec!["--ioengine=nbd".to_owned()],
        Place::Rbd(_) => vec!["--ioengine=rbd".to_owned(), "--clientname=admin".to_owned()],
        Place::Volume(_) => bail!("fio reaches no volume but by its NBD export"),
    });
    for client in 1..=point.clients {
        arguments.push(format!("--name=client-{client}"));
        match (subject.place(), job_of(subject, point, client, round).map(|job| job.target)) {
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
pub(super) fn fill(subject: &Subject, clients: u32) -> anyhow::Result<()> {
    let Some(Place::Rbd(image)) = subject.place() else { return Ok(()) };
    let places = if subject.is_by_client() { clients } else { 1 };
    for client in 1..=places {
        let image = image.replace("{client}", &client.to_string());
        let (pool, image) = image.split_once('/').context("an image is \"pool/image\"")?;
        let mut arguments: Vec<String> = ["--name=fill", "--ioengine=rbd", "--clientname=admin"]
            .into_iter()
            .chain(["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers=1"])
            .map(str::to_owned)
            .collect();
        arguments.extend([format!("--pool={pool}"), format!("--rbdname={image}")]);
        arguments.extend(subject.size.map(|size| format!("--size={}", size.0)));
        run(&arguments, subject, Duration::from_secs(3600))?;
    }
    Ok(())
}

/// Reads fio's JSON, which warnings may precede.
fn parsed(output: &str, job: &Job) -> anyhow::Result<Sample> {
    let json = output.find('{').map_or("", |from| &output[from..]);
    let value: Value = serde_json::from_str(json).context("fio printed no JSON")?;
    let job_value = value.pointer("/jobs/0").context("fio tells of no job")?;
    let error = job_value["error"].as_u64().context("fio tells no error")?;
    if error != 0 {
        bail!("fio reports error {error}");
    }
    let (reads, read_seconds) = latencies(&job_value["read"])?;
    let (writes, write_seconds) = latencies(&job_value["write"])?;
    let seconds = read_seconds.max(write_seconds);
    let mut all = Latency::default();
    all.merge(&reads);
    all.merge(&writes);
    let summary = all.summary().context("fio did nothing")?;
    Ok(Sample {
        seconds,
        read: side(&reads, seconds, job.block),
        write: side(&writes, seconds, job.block),
        series: vec![Second {
            at_s: seconds,
            seconds,
            read_iops: reads.count() as f64 / seconds,
            write_iops: writes.count() as f64 / seconds,
            mean_us: Some(summary.mean_us),
            p99_us: Some(summary.p99_us),
        }],
        latencies: vec![(Buckets::from(&reads), Buckets::from(&writes))],
        ..Sample::default()
    })
}

/// What fio tells of one direction, and for how many seconds.
fn latencies(side: &Value) -> anyhow::Result<(Latency, f64)> {
    let number = |path: &str| {
        side.pointer(path).and_then(Value::as_f64).with_context(|| format!("fio tells no {path}"))
    };
    let count = number("/total_ios")?;
    if count == 0.0 {
        return Ok((Latency::default(), 0.0));
    }
    let bins = side.pointer("/lat_ns/bins").and_then(Value::as_object).context("fio tells no bins")?;
    let mut counts = Vec::with_capacity(bins.len());
    for (latency_ns, count) in bins {
        counts.push((
            latency_ns.parse().context("a bin of fio is no number")?,
            count.as_u64().context("a bin of fio has no number")?,
        ));
    }
    counts.sort_unstable();
    let (sum_ns, max_ns) = ((number("/lat_ns/mean")? * count) as u64, number("/lat_ns/max")? as u64);
    let buckets = Buckets { sum_ns, max_ns, counts };
    Ok((Latency::from(&buckets), number("/runtime")? / 1000.0))
}
