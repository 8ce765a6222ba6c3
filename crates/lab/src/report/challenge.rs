//! The 10K challenge: 7,500 reads and 2,500 writes a second of 4 KiB on one volume, by one client that keeps
//! 64 operations in flight. The goal was set for six nodes with two consumer drives each.

use crate::engine::plan::{Job, Mode, TargetName};
use crate::report::{Report, Side, figure, grouped};
use std::fmt::Write;
use std::time::Duration;

/// Reads a second that the challenge asks for.
pub const READ_IOPS_GOAL: f64 = 7500.0;
/// Writes a second that the challenge asks for.
pub const WRITE_IOPS_GOAL: f64 = 2500.0;

/// The challenge's job on `target`, which must be filled before.
#[must_use]
pub fn job(target: TargetName, runtime: Duration) -> Job {
    let mut job = Job::new(target, Mode::RandomReadWrite);
    (job.depth, job.mix_read_percent, job.runtime) = (64, 75, Some(runtime));
    job
}

/// The outcome, for a person: at most 25 lines of at most 100 columns.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let job = &report.job;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "10K challenge: {} {}/{}, bs {}, iodepth {}, {:.1} s on {}\n",
        job.mode,
        job.read_percent(),
        100 - job.read_percent(),
        job.block,
        job.depth,
        report.seconds,
        shortened(&job.target.to_string(), 40),
    );
    let _ = writeln!(
        text,
        "        {:>10}{:>10}  {:<18}{:>10}{:>10}{:>10}",
        "IOPS", "goal", "", "avg µs", "p99 µs", "p99.9 µs"
    );
    line(&mut text, "read", report.read.as_ref(), READ_IOPS_GOAL);
    line(&mut text, "write", report.write.as_ref(), WRITE_IOPS_GOAL);
    text.push_str("\nCPU per operation, µs\n");
    cpu(&mut text, report);
    if report.stopped_early {
        text.push_str("\nStopped before its end: the figures are of the time until then.\n");
    }
    if report.errors > 0 {
        let first = report.first_error.as_deref().unwrap_or("no reason given");
        let _ = writeln!(text, "\nFAILED: {} operations failed. The first:", report.errors);
        let _ = writeln!(text, "  {}", shortened(first, 96));
    }
    text
}

fn line(text: &mut String, name: &str, side: Option<&Side>, goal: f64) {
    let _ = match side {
        Some(side) => writeln!(
            text,
            "{name:<8}{:>10}{:>10}  {:<18}{:>10}{:>10}{:>10}",
            grouped(side.iops),
            grouped(goal),
            format!("{:.1}x of the goal", side.iops / goal),
            figure(Some(side.latency.mean_us)),
            figure(Some(side.latency.p99_us)),
            figure(Some(side.latency.p99_9_us)),
        ),
        None => writeln!(text, "{name:<8}{:>10}{:>10}  none completed", "0", grouped(goal)),
    };
}

/// Nodes that are listed one by one; of more, only the sum is shown.
const NODES_LISTED_MAX: usize = 6;

fn cpu(text: &mut String, report: &Report) {
    let cpu = &report.cpu;
    let mut row = |name: &str, value: Option<f64>, note: &str| {
        let note = if note.is_empty() { String::new() } else { format!("   {note}") };
        let _ = writeln!(text, "  {name:<12}{:>12}{note}", figure(value));
    };
    row("machine", cpu.machine_us_per_operation, "everything, kernel workers included");
    row("client", cpu.client.us_per_operation, "");
    row("nodes", cpu.nodes_us_per_operation, "all of them together");
    if cpu.nodes.len() <= NODES_LISTED_MAX {
        for node in &cpu.nodes {
            row(&format!("  {}", shortened(&node.label, 9)), node.us_per_operation, "");
        }
    }
    if let Some(steal) = cpu.steal_seconds.filter(|&steal| steal > 0.01 * report.seconds) {
        let _ = writeln!(text, "  The hypervisor took {steal:.1} s of CPU away: the figures are too low.");
    }
}

fn shortened(text: &str, columns: usize) -> String {
    let one_line = text.replace('\n', " ");
    if one_line.chars().count() <= columns {
        return one_line;
    }
    one_line.chars().take(columns - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    fn check_shape(text: &str) {
        assert!(text.lines().count() <= 25, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }

    #[test]
    fn the_table_gives_the_factor_of_each_goal() {
        let text = table(&sample(true));
        check_shape(&text);
        assert!(text.contains("15,000     7,500  2.0x of the goal"), "{text}");
        assert!(text.contains("5,000     2,500  2.0x of the goal"), "{text}");
        assert!(text.contains("100") && text.contains("300"), "{text}");
        assert!(text.contains("machine             20.0"), "{text}");
        assert!(text.contains("    node.3             3.0"), "{text}");
    }

    #[test]
    fn what_is_unknown_or_failed_is_said_within_the_same_space() {
        let mut report = sample(false);
        report.write = None;
        report.cpu.steal_seconds = Some(5.0);
        (report.errors, report.first_error) = (3, Some("volume demo: object 7: ".repeat(20)));
        report.stopped_early = true;
        let text = table(&report);
        check_shape(&text);
        assert!(text.contains("none completed") && text.contains("unavailable"), "{text}");
        assert!(text.contains("FAILED: 3 operations") && text.contains('…'), "{text}");
    }

    #[test]
    fn the_job_is_the_published_one() {
        let job = job(TargetName::Volume("demo".into()), Duration::from_secs(20));
        assert_eq!(job.arguments()[2..10].join(" "), "--rw randrw --bs 4096 --iodepth 64 --rwmixread 75");
    }
}
