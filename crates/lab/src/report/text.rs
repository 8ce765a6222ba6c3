//! What a job measured, as people read it.

use super::json::Report;
use crate::engine::Live;
use crate::engine::cpu::told_share;
use crate::engine::histogram::LatencySummary;
use base::units::ByteSize;
use std::fmt;

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

/// A figure with as many digits as matter, or `unavailable`.
#[must_use]
pub fn figure(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 100.0 => grouped(value),
        value => number(value, 1, ""),
    }
}

/// A figure with so many digits behind the point and its unit, or `unavailable`.
#[must_use]
pub fn number(value: Option<f64>, digits: usize, unit: &str) -> String {
    value.map_or_else(|| "unavailable".to_owned(), |value| format!("{value:.digits$}{unit}"))
}

/// A size in bytes, or `unavailable`.
#[must_use]
pub fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unavailable".to_owned(), |bytes| ByteSize(bytes).to_string())
}

/// One line for a terminal, without its end: how a job goes now.
#[must_use]
pub fn live_line(live: &Live<'_>) -> String {
    let mut line = format!("{:>4} s", live.elapsed.as_secs());
    if let Some(total) = live.bytes_total.filter(|&total| total > 0) {
        line += &format!("  {:>3.0} %", (live.bytes_done as f64 / total as f64 * 100.0).min(100.0));
    }
    for (name, iops, mean_us) in
        [("read", live.read_iops, live.read_mean_us), ("write", live.write_iops, live.write_mean_us)]
    {
        if let Some(mean_us) = mean_us {
            line += &format!("  {name} {:>9} IOPS {:>7} µs", grouped(iops), figure(Some(mean_us)));
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
            let LatencySummary { mean_us, p50_us, p90_us, p95_us, p99_us, p99_9_us, p99_99_us, max_us } =
                side.latency;
            write!(formatter, "{name:<6}{:>10}{:>9.1}", grouped(side.iops), side.mib_per_second)?;
            for us in [mean_us, p50_us, p90_us, p95_us, p99_us, p99_9_us, p99_99_us, max_us] {
                write!(formatter, "{:>9}", figure(Some(us)))?;
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
            figure(cpu.machine_us_per_operation),
            figure(cpu.client.us_per_operation)
        )?;
        for node in &cpu.nodes {
            write!(formatter, ", {} {}", node.label, figure(node.us_per_operation))?;
        }
        writeln!(formatter)?;
        let roles = &cpu.roles_us_per_operation;
        if let Some(share) = told_share(cpu.machine_us_per_operation, roles) {
            let told = roles.iter().map(|(role, us)| format!("{} {}", role.name(), figure(Some(*us))));
            let percent = 100.0 * share;
            writeln!(formatter, "By role: {}: {percent:.0} % of it", told.collect::<Vec<_>>().join(", "))?;
        }
        write!(formatter, "Memory: client {}", size(cpu.client.resident_bytes))?;
        for node in &cpu.nodes {
            write!(formatter, ", {} {}", node.label, size(node.resident_bytes))?;
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
