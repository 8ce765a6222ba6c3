//! What a job measured, as it is kept and written as JSON. The names are stable.

use crate::engine::Measured;
use crate::engine::cpu::{Role, Usage};
use crate::engine::histogram::{Latency, LatencySummary};
use crate::engine::plan::Job;
use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The outcome of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was asked for.
    pub job: Job,
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// The reads, if there were any.
    pub read: Option<Side>,
    /// The writes, if there were any.
    pub write: Option<Side>,
    /// CPU and memory.
    pub cpu: Cpu,
    /// Operations that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Whether it was stopped before its end.
    pub stopped_early: bool,
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// How many were measured.
    pub operations: u64,
    /// How many a second.
    pub iops: f64,
    /// MiB a second.
    pub mib_per_second: f64,
    /// How long they took.
    pub latency: LatencySummary,
}

/// CPU time per operation in microseconds, and memory in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Of the whole machine: everybody's, kernel workers included.
    pub machine_us_per_operation: Option<f64>,
    /// Of all nodes together.
    pub nodes_us_per_operation: Option<f64>,
    /// Of this process.
    pub client: ProcessCpu,
    /// Of each node.
    pub nodes: Vec<ProcessCpu>,
    /// Of each role on the machine. What is missing to the machine's own is that of processes that ended, and on some kernels that
    /// of interrupts.
    #[serde(default)]
    pub roles_us_per_operation: BTreeMap<Role, f64>,
    /// What loop devices completed, for each operation.
    #[serde(default)]
    pub loop_completions_per_operation: Option<f64>,
    /// CPUs' time that the hypervisor gave to others, in seconds. More than a little makes a run worthless.
    pub steal_seconds: Option<f64>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessCpu {
    /// What it is.
    pub label: String,
    /// Its process id.
    pub pid: u32,
    /// Microseconds of CPU per operation of the job.
    pub us_per_operation: Option<f64>,
    /// Resident memory at the end, in bytes.
    pub resident_bytes: Option<u64>,
}

impl Report {
    /// The report of what `job` measured.
    #[must_use]
    pub fn new(job: &Job, measured: &Measured) -> Report {
        let seconds = measured.window.as_secs_f64();
        Report {
            job: job.clone(),
            seconds,
            read: side(&measured.reads, seconds, job.block),
            write: side(&measured.writes, seconds, job.block),
            cpu: Cpu::new(&measured.usage, measured.reads.count() + measured.writes.count()),
            errors: measured.errors,
            first_error: measured.first_error.clone(),
            stopped_early: measured.stopped_early,
        }
    }

    /// Operations a second, reads and writes together.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.sides().map(|side| side.iops).sum()
    }

    /// MiB a second, reads and writes together.
    #[must_use]
    pub fn mib_per_second(&self) -> f64 {
        self.sides().map(|side| side.mib_per_second).sum()
    }

    /// The exact average latency over reads and writes, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        let operations: u64 = self.sides().map(|side| side.operations).sum();
        let total_us: f64 = self.sides().map(|side| side.latency.mean_us * side.operations as f64).sum();
        (operations > 0).then(|| total_us / operations as f64)
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.read.iter().chain(&self.write)
    }
}

/// Reads or writes of `block` bytes, in so many seconds.
pub(crate) fn side(latency: &Latency, seconds: f64, block: ByteSize) -> Option<Side> {
    let operations = latency.count();
    let iops = if seconds > 0.0 { operations as f64 / seconds } else { return None };
    latency.summary().map(|latency| Side {
        operations,
        iops,
        mib_per_second: iops * block.0 as f64 / f64::from(1 << 20),
        latency,
    })
}

impl Cpu {
    /// What was used, by so many operations.
    pub(crate) fn new(usage: &Usage, operations: u64) -> Cpu {
        let per_operation = |of: Option<f64>| of.filter(|_| operations > 0).map(|of| of / operations as f64);
        let process = |process: &crate::engine::cpu::ProcessUsage| ProcessCpu {
            label: process.label.clone(),
            pid: process.pid,
            us_per_operation: per_operation(process.cpu_us),
            resident_bytes: process.resident_bytes,
        };
        Cpu {
            machine_us_per_operation: per_operation(usage.machine_us),
            nodes_us_per_operation: per_operation(usage.nodes_us()),
            client: process(&usage.client),
            nodes: usage.nodes.iter().map(process).collect(),
            roles_us_per_operation: usage
                .roles
                .iter()
                .filter_map(|(role, us)| Some((*role, per_operation(Some(*us))?)))
                .collect(),
            loop_completions_per_operation: per_operation(usage.loop_completions.map(|count| count as f64)),
            steal_seconds: usage.steal_us.map(|us| us / 1e6),
        }
    }
}
