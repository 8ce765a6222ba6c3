//! What a job measured, for people as a table and for programs as JSON.
//!
//! The JSON's names are stable. A figure that is unknown is `null`, and `unavailable` in the table.

pub mod challenge;
mod json;
pub mod table;
mod text;

pub(crate) use json::side;
pub use json::{Cpu, ProcessCpu, Report, Side};
pub use text::{figure, grouped, live_line, number, size};

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::engine::contents::Contents;
    use crate::engine::cpu::{ProcessUsage, Role, Usage};
    use crate::engine::histogram::Latency;
    use crate::engine::plan::Job;
    use crate::engine::plan::{Mode, TargetName};
    use crate::engine::{Live, Measured};
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// 20 s of 75/25 at 64 in flight: reads 100 µs, writes 300 µs, three nodes, the last one unknown if asked.
    pub(crate) fn sample(third_node_known: bool) -> Report {
        let mut job = Job::new(TargetName::Volume("demo".into()), Mode::RandomReadWrite);
        (job.depth, job.mix_read_percent) = (64, 75);
        let (mut reads, mut writes) = (Latency::default(), Latency::default());
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
            roles: Role::OF_A_JOB.into_iter().zip([2e6, 2.4e6, 3e6, 4e5, 0.0]).collect(),
            loop_completions: Some(200_000),
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
            overdue: 0,
            reads_in_all: 300_000,
            writes_in_all: 100_000,
            contents: Contents::default(),
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
    fn all_of_the_machines_time_is_told_by_role_and_what_is_missing_too() {
        let mut report = sample(true);
        let told =
            "By role: client 5.0, nodes 6.0, kernel threads 7.5, soft interrupts 1.0, rest 0.0: 98 % of it\n";
        assert!(report.to_string().contains(told), "{report}");
        report.cpu.machine_us_per_operation = None;
        assert!(!report.to_string().contains("By role"), "{report}");
    }

    #[test]
    fn failures_and_steal_are_told() {
        let mut report = sample(true);
        (report.errors, report.first_error) = (2, Some("osd.1 is full".into()));
        report.cpu.steal_seconds = Some(3.0);
        let text = report.to_string();
        assert!(text.contains("osd.1 is full") && text.contains("took 3.0 s"), "{text}");
    }

    #[test]
    fn a_job_that_measured_nothing_reports_nothing_as_zero() {
        let mut measured_nothing = sample(true);
        (measured_nothing.read, measured_nothing.write) = (None, None);
        assert_eq!(measured_nothing.mean_us(), None);
        assert!(measured_nothing.to_string().contains("no operation was measured"));
        let usage = Usage {
            roles: BTreeMap::new(),
            loop_completions: Some(1),
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
        let latency = Latency::default();
        let mut live = Live {
            elapsed: Duration::from_secs(7),
            since: Duration::from_secs(1),
            ramping: false,
            read_iops: 61_234.4,
            write_iops: 0.0,
            read_mean_us: Some(512.3),
            write_mean_us: None,
            bytes_done: 1 << 29,
            bytes_total: Some(1 << 30),
            in_flight: 64,
            reads: &latency,
            writes: &latency,
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
