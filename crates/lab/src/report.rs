//! What a job measured, for people as a table and for programs as JSON.
//!
//! The JSON's names are stable. A figure that is unknown is `null`, and `unavailable` in the table.

use crate::cpu::Usage;
use crate::engine::{Live, Measured};
use crate::histogram::{Latency, LatencySummary};
use crate::plan::Job;
use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::fmt;

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

    /// The share of all CPU time that the hypervisor took, from 0 to 1.
    #[must_use]
    pub fn steal_share(&self, cpus: u32) -> Option<f64> {
        let capacity = self.seconds * f64::from(cpus);
        self.cpu.steal_seconds.filter(|_| capacity > 0.0).map(|steal| steal / capacity)
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.read.iter().chain(&self.write)
    }
}

fn side(latency: &Latency, seconds: f64, block: ByteSize) -> Option<Side> {
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
        let per_operation = |us: Option<f64>| us.filter(|_| operations > 0).map(|us| us / operations as f64);
        let process = |process: &crate::cpu::ProcessUsage| ProcessCpu {
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
            steal_seconds: usage.steal_us.map(|us| us / 1e6),
        }
    }
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds with as many digits as matter, or `unavailable`.
#[must_use]
pub fn microseconds(value: Option<f64>) -> String {
    match value {
        None => "unavailable".to_owned(),
        Some(us) if us < 100.0 => format!("{us:.1}"),
        Some(us) => grouped(us),
    }
}

/// One line for a terminal, without its end: how a job goes now.
#[must_use]
pub fn live_line(live: &Live) -> String {
    let mut line = format!("{:>4} s", live.elapsed.as_secs());
    if let Some(total) = live.bytes_total.filter(|&total| total > 0) {
        line += &format!("  {:>3.0} %", (live.bytes_done as f64 / total as f64 * 100.0).min(100.0));
    }
    for (name, iops, mean_us) in
        [("read", live.read_iops, live.read_mean_us), ("write", live.write_iops, live.write_mean_us)]
    {
        if let Some(mean_us) = mean_us {
            line += &format!("  {name} {:>9} IOPS {:>7} µs", grouped(iops), microseconds(Some(mean_us)));
        }
    }
    if live.read_mean_us.is_none() && live.write_mean_us.is_none() {
        line += &format!("  nothing completed, {} in flight", live.in_flight);
    }
    if live.ramping {
        line += "  (ramp, not measured)";
    }
    line
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = &self.job;
        write!(formatter, "{} on {}, bs {}, iodepth {}", job.mode, job.target, job.block, job.depth)?;
        if !matches!(job.read_percent(), 0 | 100) {
            write!(formatter, ", {} % reads", job.read_percent())?;
        }
        writeln!(formatter, ", {:.1} s", self.seconds)?;
        writeln!(
            formatter,
            "{:<6}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "", "IOPS", "MiB/s", "avg µs", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"
        )?;
        for (name, side) in [("read", &self.read), ("write", &self.write)] {
            let Some(side) = side else { continue };
            let latency = &side.latency;
            write!(formatter, "{name:<6}{:>10}{:>9.1}", grouped(side.iops), side.mib_per_second)?;
            for us in [
                latency.mean_us,
                latency.p50_us,
                latency.p90_us,
                latency.p95_us,
                latency.p99_us,
                latency.p99_9_us,
                latency.p99_99_us,
                latency.max_us,
            ] {
                write!(formatter, "{:>9}", microseconds(Some(us)))?;
            }
            writeln!(formatter)?;
        }
        if self.read.is_none() && self.write.is_none() {
            writeln!(formatter, "no operation was measured")?;
        }
        self.write_cpu(formatter)?;
        if self.stopped_early {
            writeln!(formatter, "stopped before its end")?;
        }
        if self.errors > 0 {
            let first = self.first_error.as_deref().unwrap_or("no reason given");
            writeln!(formatter, "{} operations failed and ended the job; the first: {first}", self.errors)?;
        }
        Ok(())
    }
}

impl Report {
    fn write_cpu(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = &self.cpu;
        write!(
            formatter,
            "CPU µs per operation: machine {}, client {}",
            microseconds(cpu.machine_us_per_operation),
            microseconds(cpu.client.us_per_operation)
        )?;
        for node in &cpu.nodes {
            write!(formatter, ", {} {}", node.label, microseconds(node.us_per_operation))?;
        }
        writeln!(formatter)?;
        let memory = |bytes: Option<u64>| {
            bytes.map_or_else(|| "unavailable".to_owned(), |bytes| ByteSize(bytes).to_string())
        };
        write!(formatter, "Memory: client {}", memory(cpu.client.resident_bytes))?;
        for node in &cpu.nodes {
            write!(formatter, ", {} {}", node.label, memory(node.resident_bytes))?;
        }
        writeln!(formatter)?;
        if let Some(steal) = cpu.steal_seconds.filter(|&steal| steal > 0.01 * self.seconds) {
            writeln!(
                formatter,
                "The hypervisor took {steal:.1} s of CPU away: repeat this run on a quieter machine"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::ProcessUsage;
    use crate::plan::{Mode, TargetName};
    use std::time::Duration;

    /// 20 s of 75/25 at 64 in flight: reads 100 µs, writes 300 µs, three nodes, the last one unknown if asked.
    pub(crate) fn sample(third_node_known: bool) -> Report {
        let mut job = Job::new(TargetName::Volume("demo".into()), Mode::RandomReadWrite);
        (job.depth, job.mix_read_percent) = (64, 75);
        let (mut reads, mut writes) = (Latency::new(), Latency::new());
        (0..300_000).for_each(|_| reads.record(100_000));
        (0..100_000).for_each(|_| writes.record(300_000));
        let process = |label: &str, pid, cpu_us| ProcessUsage {
            label: label.to_owned(),
            pid,
            cpu_us,
            resident_bytes: Some(64 << 20),
        };
        let third = third_node_known.then_some(1_200_000.0);
        let usage = Usage {
            seconds: 20.0,
            machine_us: Some(8_000_000.0),
            steal_us: Some(0.0),
            client: process("client", 10, Some(2_000_000.0)),
            nodes: vec![
                process("node.1", 11, Some(400_000.0)),
                process("node.2", 12, Some(800_000.0)),
                process("node.3", 13, third),
            ],
        };
        let measured = Measured {
            window: Duration::from_secs(20),
            reads,
            writes,
            usage,
            errors: 0,
            first_error: None,
            stopped_early: false,
        };
        Report::new(&job, &measured)
    }

    #[test]
    fn rates_and_costs_are_divided_by_time_and_operations() {
        let report = sample(true);
        let read = report.read.unwrap();
        assert_eq!((read.iops, read.operations), (15_000.0, 300_000));
        assert_eq!(report.write.unwrap().mib_per_second, 5000.0 * 4096.0 / 1048576.0);
        assert_eq!(report.iops(), 20_000.0);
        assert_eq!(report.mean_us(), Some(150.0));
        assert_eq!(report.cpu.machine_us_per_operation, Some(20.0));
        assert_eq!(report.cpu.client.us_per_operation, Some(5.0));
        assert_eq!(report.cpu.nodes_us_per_operation, Some(6.0));
    }

    #[test]
    fn a_report_survives_json_and_unknown_is_null() {
        let report = sample(false);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(value["cpu"]["nodes_us_per_operation"].is_null());
        assert!(value["cpu"]["nodes"][2]["us_per_operation"].is_null());
        assert_eq!(value["job"]["rw"], "randrw");
    }

    #[test]
    fn the_table_says_unavailable_and_never_zero_for_what_is_unknown() {
        let text = sample(false).to_string();
        assert!(text.contains("node.3 unavailable"), "{text}");
        assert!(text.contains("node.1 1.0") && text.contains("machine 20.0"), "{text}");
        assert!(text.contains("15,000") && text.contains("75 % reads"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn failures_and_steal_are_told() {
        let mut report = sample(true);
        (report.errors, report.first_error) = (2, Some("osd.1 is full".into()));
        report.cpu.steal_seconds = Some(3.0);
        let text = report.to_string();
        assert!(text.contains("osd.1 is full") && text.contains("took 3.0 s"), "{text}");
        assert_eq!(report.steal_share(2), Some(0.075));
    }

    #[test]
    fn a_job_that_measured_nothing_reports_nothing_as_zero() {
        let mut measured_nothing = sample(true);
        (measured_nothing.read, measured_nothing.write) = (None, None);
        assert_eq!(measured_nothing.mean_us(), None);
        assert!(measured_nothing.to_string().contains("no operation was measured"));
        let usage = Usage {
            seconds: 0.0,
            machine_us: Some(10.0),
            steal_us: None,
            client: ProcessUsage { label: "client".into(), pid: 1, cpu_us: Some(5.0), resident_bytes: None },
            nodes: Vec::new(),
        };
        let cpu = Cpu::new(&usage, 0);
        assert_eq!((cpu.machine_us_per_operation, cpu.client.us_per_operation), (None, None));
        assert_eq!(cpu.nodes_us_per_operation, None, "no node was watched, so their cost is unknown");
    }

    #[test]
    fn live_lines_show_progress_and_stalls() {
        let mut live = Live {
            elapsed: Duration::from_secs(7),
            ramping: false,
            read_iops: 61_234.4,
            write_iops: 0.0,
            read_mean_us: Some(512.3),
            write_mean_us: None,
            bytes_done: 1 << 29,
            bytes_total: Some(1 << 30),
            in_flight: 64,
        };
        assert_eq!(live_line(&live), "   7 s   50 %  read    61,234 IOPS     512 µs");
        (live.read_mean_us, live.ramping) = (None, true);
        assert_eq!(live_line(&live), "   7 s   50 %  nothing completed, 64 in flight  (ramp, not measured)");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0.0, 999.4, 1000.0, 1_234_567.0].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
