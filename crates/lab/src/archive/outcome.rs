//! What came of a plan. The names in its JSON are stable.

use crate::engine::contents::Counts;
use crate::engine::cpu::Machine;
use crate::engine::histogram::Buckets;
use crate::engine::plan::Job;
use crate::monitor::{CycleCount, DriveUse, Found, InterfaceUse, ThreadUse};
use crate::plan::{Objective, Published};
use crate::report::{Cpu, Side};
use crate::statistics::quantile_of;
use serde::{Deserialize, Serialize};

/// The version of the JSON: what cannot be read any more counts it up.
pub const FORMAT: u32 = 1;

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`FORMAT`].
    pub format: u32,
    /// The plan's name.
    pub name: String,
    /// The report's heading.
    pub title: String,
    /// What the reader should know of it.
    pub note: Option<String>,
    /// The command that made it.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// The program.
    pub build: Build,
    /// When it began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// When it ended or was written last, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// How many rounds were to be.
    pub rounds: u32,
    /// Whether the first subject was measured twice a round.
    pub control: bool,
    /// Whether subjects were measured in turns; otherwise what differs may be the time, and is not called better or worse.
    #[serde(default = "yes")]
    pub in_turns: bool,
    /// Whether it ended before its end, and why.
    pub ended_early: Option<String>,
    /// What was measured.
    pub subjects: Vec<SubjectView>,
    /// How.
    pub points: Vec<PointView>,
    /// What came of it, in the order in which it was measured.
    pub samples: Vec<Sample>,
    /// Why it is not to be trusted; nothing if it is.
    pub findings: Vec<Finding>,
    /// What was expected and did not come, in words.
    pub disappointments: Vec<String>,
    /// Which subjects could not be stopped, and why.
    #[serde(default)]
    pub not_stopped: Vec<String>,
    /// What others have published of the same.
    #[serde(default)]
    pub published: Vec<Published>,
    /// The point that others are told as so many times of, by number.
    #[serde(default)]
    pub baseline: Option<usize>,
}

fn yes() -> bool {
    true
}

/// The program that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Its version.
    pub version: String,
    /// Whether it, or an agent, was built without optimisation.
    pub is_debug: bool,
}

impl Build {
    /// This one.
    #[must_use]
    pub fn this() -> Build {
        Build { version: env!("CARGO_PKG_VERSION").to_owned(), is_debug: cfg!(debug_assertions) }
    }
}

/// A subject of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SubjectView {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub what: String,
    /// Its bytes that one client uses, if that became known.
    pub bytes: Option<u64>,
    /// Whether it was written once before it was measured.
    pub is_filled: bool,
    /// The subject that it is compared with, by number; the first if absent.
    #[serde(default)]
    pub by: Option<usize>,
    /// How full was what it lies on when it was measured, of 1, if that is known.
    #[serde(default)]
    pub full: Option<f64>,
    /// Whether what serves it was built without optimisation.
    #[serde(default)]
    pub is_debug: bool,
    /// Whether the page cache of this host lies between.
    #[serde(default)]
    pub is_cached: bool,
    /// Why it was not measured, if it was left out.
    #[serde(default)]
    pub left_out: Option<String>,
}

/// A point of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointView {
    /// What it is called.
    pub name: String,
    /// The job's name.
    pub job_name: String,
    /// What each client does. Its target is that of no subject.
    pub job: Job,
    /// How many clients there are.
    pub clients: u32,
    /// What a shell runs in place of operations.
    #[serde(default)]
    pub run: Option<String>,
    /// Within which bound the highest rate was looked for.
    #[serde(default)]
    pub within: Option<Objective>,
}

/// One point on one subject in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The subject, by number.
    pub subject: usize,
    /// The point, by number.
    pub point: usize,
    /// The round, from 1.
    pub round: u32,
    /// Whether it is the second of two of the same (A/A).
    #[serde(default)]
    pub is_control: bool,
    /// When the window opened, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// The reads, if there were any.
    pub read: Option<Side>,
    /// The writes, if there were any.
    pub write: Option<Side>,
    /// CPU time; of a sample by fio it may be unknown.
    pub cpu: Option<Cpu>,
    /// Share of the window in which something that could run waited for a CPU (pressure stall information), of 1.
    pub cpu_pressure: Option<f64>,
    /// The same for I/O.
    pub io_pressure: Option<f64>,
    /// Cycles of all CPUs.
    #[serde(default)]
    pub cycles: Option<CyclesPerOperation>,
    /// What block devices of this host did.
    #[serde(default)]
    pub drives: Vec<DriveUse>,
    /// What its network interfaces moved.
    #[serde(default)]
    pub network: Vec<InterfaceUse>,
    /// CPU time of threads of clients and nodes, and how long they waited for a CPU.
    #[serde(default)]
    pub thread_times: Vec<ThreadUse>,
    /// What the subject itself counted, and what was asked of it.
    pub served: Option<Served>,
    /// What blocks held.
    pub contents: Contents,
    /// What threads of clients and nodes did, if that was looked at.
    #[serde(default)]
    pub threads: Option<Found>,
    /// Operations that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Operations that were due and never begun.
    pub overdue: u64,
    /// Operations a second that were asked for, if that was so many.
    #[serde(default)]
    pub asked_iops: Option<f64>,
    /// The rates that were tried, where the highest was looked for.
    #[serde(default)]
    pub probes: Vec<Probe>,
    /// Whether it was stopped before its end.
    pub stopped_early: bool,
    /// Those who made the load.
    pub agents: Vec<AgentView>,
    /// Who did not stay to the end, and why, in words.
    #[serde(default)]
    pub missing: Vec<String>,
    /// What else happened.
    pub events: Vec<Happened>,
    /// How each second went, all clients together.
    pub series: Vec<Second>,
    /// The latencies of each second. They are in a file of their own.
    #[serde(skip)]
    pub latencies: Vec<(Buckets, Buckets)>,
}

/// A rate that was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Operations a second that were asked for; as many as can be if absent.
    pub asked_iops: Option<f64>,
    /// Those that were had.
    pub iops: f64,
    /// The figure that was to keep within its bound.
    pub value: Option<f64>,
    /// Operations that failed.
    #[serde(default)]
    pub errors: u64,
    /// Whether it did, and the rate was had.
    pub holds: bool,
}

/// Cycles by two accounts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CyclesPerOperation {
    /// Cycles of all CPUs for each operation.
    pub cycles: f64,
    /// Whether they are CPU time by clock, where nothing counts them.
    pub is_estimated: bool,
    /// The clock that follows from them and from CPU time, in megahertz.
    pub clock_mhz: Option<f64>,
}

impl CyclesPerOperation {
    /// Of so many operations, which used so much CPU time in microseconds.
    #[must_use]
    pub fn new(count: CycleCount, operations: u64, machine_us: Option<f64>) -> CyclesPerOperation {
        let cycles = count.cycles as f64;
        CyclesPerOperation {
            cycles: cycles / operations.max(1) as f64,
            is_estimated: count.is_estimated,
            clock_mhz: machine_us.filter(|us| *us > 0.0).map(|us| cycles / us),
        }
    }
}

/// Bytes by two accounts, those of what is not measured included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Bytes that clients read.
    pub asked_read_bytes: u64,
    /// Bytes that clients wrote.
    pub asked_written_bytes: u64,
    /// Bytes that the subject says were read of it.
    pub read_bytes: u64,
    /// Bytes that the subject says were written to it.
    pub written_bytes: u64,
}

/// What blocks held that were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Those that were read.
    pub read: Counts,
    /// Those that were written.
    pub written: Counts,
}

impl Contents {
    /// Adds another's.
    pub fn add(&mut self, other: &Contents) {
        self.read.add(&other.read);
        self.written.add(&other.written);
    }
}

/// Who made a part of the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// What it is called.
    pub name: String,
    /// By how much its clock was ahead of that of who measured, in milliseconds.
    pub clock_ahead_ms: f64,
    /// When its window opened, by its clock set right, in milliseconds since 1970.
    pub opened_unix_ms: f64,
    /// How long its window was, in seconds.
    pub seconds: f64,
    /// Its operations a second.
    pub iops: f64,
    /// Whether it was built without optimisation.
    #[serde(default)]
    pub is_debug: bool,
    /// Whether it was on another host, whose counters were not read.
    #[serde(default)]
    pub is_remote: bool,
}

/// An event of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    /// What it is called.
    pub name: String,
    /// When it began, in seconds since the window opened.
    pub at_s: f64,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// One second of all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// When it ended, in seconds since the window opened.
    pub at_s: f64,
    /// How long it was, in seconds.
    pub seconds: f64,
    /// Reads that were done, a second.
    pub read_iops: f64,
    /// Writes that were done, a second.
    pub write_iops: f64,
    /// The average of all latencies, in microseconds.
    pub mean_us: Option<f64>,
    /// 99 % of the operations took no longer, in microseconds.
    pub p99_us: Option<f64>,
}

/// Why figures are not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What kind it is of, one word or two with a hyphen.
    pub code: String,
    /// Where, and by how much.
    pub text: String,
}

/// A figure of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// What it is called in JSON and in plans.
    pub name: &'static str,
    /// What heads its column.
    pub heading: &'static str,
    /// Whether more of it is better.
    pub more_is_better: bool,
    /// The quantile of the latencies that it is, if it is one.
    pub quantile: Option<f64>,
    /// The figure, if it is known.
    pub of: fn(&Sample) -> Option<f64>,
}

const fn figure(
    name: &'static str,
    heading: &'static str,
    more_is_better: bool,
    of: fn(&Sample) -> Option<f64>,
) -> Figure {
    Figure { name, heading, more_is_better, quantile: None, of }
}

const fn tail(name: &'static str, heading: &'static str, q: f64, of: fn(&Sample) -> Option<f64>) -> Figure {
    Figure { name, heading, more_is_better: false, quantile: Some(q), of }
}

/// All figures, in the order in which they are told.
pub const FIGURES: [Figure; 19] = [
    figure("iops", "IOPS", true, |sample| Some(sample.iops())),
    figure("mib_per_second", "MiB/s", true, |sample| {
        Some(sample.sides().map(|side| side.mib_per_second).sum()).filter(|rate| *rate > 0.0)
    }),
    figure("mean_us", "average µs", false, Sample::mean_us),
    tail("p50_us", "p50 µs", 0.5, |sample| sample.quantile_us(0.5)),
    tail("p99_us", "p99 µs", 0.99, |sample| sample.quantile_us(0.99)),
    tail("p99_9_us", "p99.9 µs", 0.999, |sample| sample.quantile_us(0.999)),
    tail("p99_99_us", "p99.99 µs", 0.9999, |sample| sample.quantile_us(0.9999)),
    figure("max_us", "longest µs", false, Sample::longest_us),
    figure("machine_us", "machine CPU µs/op", false, |sample| sample.cpu.as_ref()?.machine_us_per_operation),
    figure("client_us", "client CPU µs/op", false, |sample| sample.cpu.as_ref()?.client.us_per_operation),
    figure("nodes_us", "nodes CPU µs/op", false, |sample| sample.cpu.as_ref()?.nodes_us_per_operation),
    figure("cycles", "cycles/op", false, |sample| {
        Some(sample.cycles?.cycles).filter(|_| sample.operations() > 0)
    }),
    figure("iops_per_core", "IOPS per core used", true, |sample| {
        Some(1e6 / sample.cpu.as_ref()?.machine_us_per_operation.filter(|us| *us > 0.0)?)
    }),
    figure("read_iops", "read IOPS", true, |sample| Some(sample.read.as_ref()?.iops)),
    figure("write_iops", "write IOPS", true, |sample| Some(sample.write.as_ref()?.iops)),
    figure("read_p99_us", "read p99 µs", false, |sample| Some(sample.read.as_ref()?.latency.p99_us)),
    figure("read_p99_9_us", "read p99.9 µs", false, |sample| Some(sample.read.as_ref()?.latency.p99_9_us)),
    figure("write_p99_9_us", "write p99.9 µs", false, |sample| {
        Some(sample.write.as_ref()?.latency.p99_9_us)
    }),
    figure("write_p99_us", "write p99 µs", false, |sample| Some(sample.write.as_ref()?.latency.p99_us)),
];

/// The figure of that name.
#[must_use]
pub fn figure_named(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

impl Sample {
    /// Reads and writes.
    pub fn sides(&self) -> impl Iterator<Item = &Side> {
        self.read.iter().chain(&self.write)
    }

    /// Operations a second, reads and writes together.
    #[must_use]
    pub fn iops(&self) -> f64 {
        // The sum of nothing is a zero with a sign.
        self.sides().fold(0.0, |sum, side| sum + side.iops)
    }

    /// How many operations were measured.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.sides().fold(0, |sum, side| side.operations.saturating_add(sum))
    }

    /// The exact average latency over reads and writes, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        let total_us: f64 = self.sides().map(|side| side.latency.mean_us * side.operations as f64).sum();
        let operations = self.operations();
        (operations > 0).then(|| total_us / operations as f64)
    }

    /// The longest latency, in microseconds.
    #[must_use]
    pub fn longest_us(&self) -> Option<f64> {
        self.sides().map(|side| side.latency.max_us).reduce(f64::max)
    }

    /// The latencies of each second, reads and writes together.
    #[must_use]
    pub fn seconds(&self) -> Vec<Buckets> {
        self.latencies.iter().map(|(reads, writes)| reads.and(writes)).collect()
    }

    /// A quantile of the latencies of reads and writes together, in microseconds.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        quantile_us(&[self], quantile)
    }
}

/// A quantile of the latencies of all samples together, in microseconds: those of samples are not averaged.
#[must_use]
pub fn quantile_us(samples: &[&Sample], quantile: f64) -> Option<f64> {
    let seconds: Vec<Buckets> = samples.iter().flat_map(|sample| sample.seconds()).collect();
    let quantile_us = quantile_of(&seconds, quantile).map(|ns| ns as f64 / 1000.0)?;
    // What stands for a bucket may lie above the longest in it.
    let longest = samples.iter().filter_map(|sample| sample.longest_us()).reduce(f64::max);
    Some(longest.map_or(quantile_us, |longest| quantile_us.min(longest)))
}

impl Outcome {
    /// One that has begun now, in milliseconds since 1970, on this machine, and has nothing yet.
    #[must_use]
    pub fn begun(name: &str, command: &str, rounds: u32, now_unix_ms: u64) -> Outcome {
        Outcome {
            format: FORMAT,
            name: name.to_owned(),
            title: name.to_owned(),
            note: None,
            command: command.to_owned(),
            machine: Machine::this(),
            build: Build::this(),
            began_unix_ms: now_unix_ms,
            ended_unix_ms: now_unix_ms,
            rounds,
            control: false,
            in_turns: true,
            ended_early: Some("it has not ended".to_owned()),
            subjects: Vec::new(),
            points: Vec::new(),
            samples: Vec::new(),
            findings: Vec::new(),
            disappointments: Vec::new(),
            not_stopped: Vec::new(),
            published: Vec::new(),
            baseline: None,
        }
    }

    /// The subject that one is compared with, by number.
    #[must_use]
    pub fn base_of(&self, subject: usize) -> Option<usize> {
        let base = self.subjects[subject].by.unwrap_or(0);
        Some(base).filter(|base| *base != subject && *base < self.subjects.len())
    }

    /// What that is called.
    #[must_use]
    pub fn name_of_base(&self, subject: usize) -> &str {
        self.base_of(subject).map_or("", |base| &self.subjects[base].name)
    }

    /// The samples of a point on a subject, by round; those of the second of two of the same are apart.
    pub fn samples_of(
        &self,
        point: usize,
        subject: usize,
        is_control: bool,
    ) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| {
            sample.point == point && sample.subject == subject && sample.is_control == is_control
        })
    }
}
