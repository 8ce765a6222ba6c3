//! What a run found, as it is printed and as it is written to a file. A ratio is computed within its round, and the median of
//! the rounds counts.

use crate::engine::plan::Mode;
use crate::report::statistics::median;
use crate::report::{figure, number, size, table};
use crate::scenarios::trials::{FIGURES, Figure, Trial};
use crate::testbed::jobs::Sample;
use base::units::ByteSize;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Who runs a job: our engine on the raw device, our engine on the replicated volume, and fio on the raw device as the witness
/// that our engine does to a device what others do.
pub(super) const SUBJECTS: [&str; 3] = ["raw", "volume", "fio"];
pub(super) const RAW: usize = 0;
const VOLUME: usize = 1;
pub(super) const FIO: usize = 2;
/// How far our engine's rate on the raw device may be from fio's.
const WITNESS_TOLERANCE: f64 = 0.10;

/// A job that runs on both, and the ratio that it is for, volume by raw device.
struct Case {
    name: &'static str,
    mode: Mode,
    depth: u32,
    /// The figure that is compared, and how the ratio's name ends.
    metric: (&'static str, Figure),
    /// What the ratio must not exceed.
    must: f64,
    /// What it should come down to.
    aim: f64,
}

/// CPU of the whole machine per operation.
const CPU: (&str, Figure) = ("cpu", |sample| sample.machine_us_per_operation);
/// Average latency.
const LATENCY: (&str, Figure) = ("latency", |sample| sample.mean_us);

/// The cases, in the order in which they run.
#[rustfmt::skip]
const CASES: [Case; 5] = [
    Case { name: "randread_qd64", mode: Mode::RandomRead, depth: 64, metric: CPU, must: 1.8, aim: 1.3 },
    Case { name: "randwrite_qd64", mode: Mode::RandomWrite, depth: 64, metric: CPU, must: 2.5, aim: 1.5 },
    Case { name: "randrw75_qd64", mode: Mode::RandomReadWrite, depth: 64, metric: CPU, must: 2.2, aim: 1.4 },
    Case { name: "randread_qd1", mode: Mode::RandomRead, depth: 1, metric: LATENCY, must: 2.4, aim: 1.8 },
    Case { name: "randwrite_qd1", mode: Mode::RandomWrite, depth: 1, metric: LATENCY, must: 5.0, aim: 3.5 },
];

impl Case {
    fn ratio(&self) -> String {
        format!("{}_{}", self.name, self.metric.0)
    }

    /// At depth 1 rates are latencies, and those are compared by their ratio already.
    fn has_witness(&self) -> bool {
        self.depth > 1
    }
}

/// The trials of all cases.
pub(super) fn trials() -> Vec<Trial> {
    let subjects = |case: &Case| if case.has_witness() { SUBJECTS.len() } else { FIO };
    CASES.iter().map(|case| Trial::new(case.mode, 4096, case.depth, subjects(case))).collect()
}

/// Figures besides the ratios. Absent ones were not measured.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// CPU of all processes of the idle cluster, in percent of one core.
    pub idle_cpu_percent: Option<f64>,
    /// Sequential 1 MiB writes to the volume, in MiB a second.
    pub volume_write_mib_per_second: Option<f64>,
    /// What the drives allow for three copies: all of them written at the same time, divided by three.
    pub raw_write_mib_per_second: Option<f64>,
    /// Sequential 1 MiB reads from the volume, in MiB a second.
    pub volume_read_mib_per_second: Option<f64>,
    /// What the drives allow for one copy: all of them read at the same time.
    pub raw_read_mib_per_second: Option<f64>,
    /// Index memory of the fullest OSD, in bytes.
    pub index_bytes: Option<u64>,
    /// The same for each 4 KiB block of the volume, every one of which is on that OSD.
    pub index_bytes_per_block: Option<f64>,
    /// Bytes written to drives for each byte that clients overwrote at random, on aged drives.
    pub write_amplification: Option<f64>,
    /// 75 % reads at depth 64 over NBD, by fio, round by round: operations a second.
    pub nbd_iops: Vec<f64>,
    /// The same on an image of Ceph, if there was one to compare with.
    pub ceph_iops: Vec<f64>,
    /// Bytes that were written to an OSD before it was killed.
    pub restart_bytes: Option<u64>,
    /// Seconds from `millpond up` until all of it served again.
    pub restart_seconds: Option<f64>,
}

/// What was run on and with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setup {
    /// Where the drives' files were.
    pub directory: String,
    /// Bytes of the volume and of the raw device.
    pub volume_bytes: u64,
    /// Bytes of each drive of the cluster.
    pub drive_bytes: u64,
    /// Whether the loop devices bypass the page cache.
    pub direct_io: bool,
    pub rounds: u32,
    /// Seconds of each job.
    pub runtime_seconds: f64,
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    setup: Setup,
    /// The samples, case by case, subject by subject and round by round.
    results: BTreeMap<&'static str, BTreeMap<&'static str, Vec<Sample>>>,
    /// Volume by raw device, of the case's metric. `None` where it could not be measured.
    ratios: BTreeMap<String, Option<f64>>,
    /// Our engine's rate on the raw device as a multiple of fio's, by case.
    engine_by_fio: BTreeMap<&'static str, Option<f64>>,
    figures: Figures,
    #[serde(skip)]
    trials: Vec<Trial>,
}

impl Summary {
    pub(super) fn new(setup: Setup, trials: Vec<Trial>, figures: Figures) -> Summary {
        let cases = || CASES.iter().zip(&trials);
        let samples = |trial: &Trial| {
            let of = |subject| trial.samples.get(subject).cloned().unwrap_or_default();
            SUBJECTS.iter().enumerate().map(|(subject, name)| (*name, of(subject))).collect()
        };
        let ratio = |(case, trial): (&Case, &Trial)| {
            let ratio = trial.ratio(VOLUME, RAW, case.metric.1);
            (case.ratio(), ratio.map(|ratio| ratio.median))
        };
        let engine_by_fio = |(case, trial): (&Case, &Trial)| {
            let ratio = trial.ratio(RAW, FIO, |sample| Some(sample.iops));
            (case.name, ratio.map(|ratio| ratio.median))
        };
        Summary {
            setup,
            results: cases().map(|(case, trial)| (case.name, samples(trial))).collect(),
            ratios: cases().map(ratio).collect(),
            engine_by_fio: cases().filter(|(case, _)| case.has_witness()).map(engine_by_fio).collect(),
            figures,
            trials,
        }
    }

    fn results_table(&self) -> String {
        let figures = FIGURES.map(|(heading, ..)| format!(">{heading}"));
        let mut headings = vec!["case", "on"];
        headings.extend(figures.iter().map(String::as_str));
        headings.push(">steal s");
        let mut rows = Vec::new();
        for (case, trial) in CASES.iter().zip(&self.trials) {
            for (subject, name) in SUBJECTS.iter().enumerate().take(trial.samples.len()) {
                let mut row = vec![case.name.to_owned(), (*name).to_owned()];
                row.extend(FIGURES.map(|(heading, of, _)| match (heading, subject) {
                    // A raw device has no nodes: that is not a figure that could not be measured.
                    ("nodes µs", RAW | FIO) => "-".to_owned(),
                    _ => figure(trial.median(subject, of)),
                }));
                row.push(number(trial.median(subject, |sample| sample.steal_seconds), 1, ""));
                rows.push(row);
            }
        }
        table::render(&headings, rows)
    }

    fn ratios_table(&self) -> String {
        let row = |case: &Case| {
            let ratio = self.ratios.get(&case.ratio()).copied().flatten();
            let verdict = match ratio {
                None => "",
                Some(ratio) if ratio <= case.aim => "reaches the aim",
                Some(ratio) if ratio <= case.must => "within the must",
                Some(_) => "MISSES the must",
            };
            let [must, aim] = [case.must, case.aim].map(|limit| format!("{limit:.1}x"));
            vec![case.ratio(), number(ratio, 2, "x"), must, aim, verdict.to_owned()]
        };
        table::render(&["volume by raw device", ">ratio", ">must", ">aim", ""], CASES.iter().map(row))
    }

    fn witness_table(&self) -> String {
        let row = |(case, ratio): (&&str, &Option<f64>)| {
            let verdict = match ratio {
                None => "",
                Some(ratio) if (ratio - 1.0).abs() <= WITNESS_TOLERANCE => "within 10 %",
                Some(_) => "NOT within 10 %: look into it before you trust the rest",
            };
            vec![(*case).to_owned(), number(*ratio, 2, "x"), verdict.to_owned()]
        };
        table::render(&["our engine by fio, IOPS", ">ratio", ""], self.engine_by_fio.iter().map(row))
    }

    fn figures_table(&self) -> String {
        let figures = &self.figures;
        let with = |value: Option<f64>, unit: &str| {
            value.map_or_else(|| figure(None), |value| figure(Some(value)) + unit)
        };
        let sequential = |volume: Option<f64>, raw: Option<f64>, copies: &str| {
            let share = number(volume.zip(raw).map(|(volume, raw)| volume / raw * 100.0), 2, " %");
            let [volume, raw] = [volume, raw].map(|rate| with(rate, " MiB/s"));
            format!("{volume}, drives allow {raw} for {copies}: {share}")
        };
        let [nbd, ceph] = [&figures.nbd_iops, &figures.ceph_iops].map(|iops| median(iops.clone()));
        let by_ceph = figures.nbd_iops.iter().zip(&figures.ceph_iops).map(|(nbd, ceph)| nbd / ceph);
        let ceph = match median(by_ceph.collect()) {
            Some(ratio) => format!(", Ceph's RBD {}: {ratio:.1}x", with(ceph, " IOPS")),
            None => String::new(),
        };
        let written = (figures.volume_write_mib_per_second, figures.raw_write_mib_per_second);
        let read = (figures.volume_read_mib_per_second, figures.raw_read_mib_per_second);
        let per_block = number(figures.index_bytes_per_block, 1, " bytes");
        let (index, amplification) = (size(figures.index_bytes), number(figures.write_amplification, 2, "x"));
        let (restart, on_it) = (number(figures.restart_seconds, 2, " s"), size(figures.restart_bytes));
        let rows = [
            ("Sequential 1MiB write", sequential(written.0, written.1, "three copies")),
            ("Sequential 1MiB read", sequential(read.0, read.1, "one copy")),
            ("Idle cluster", format!("{} of a core", number(figures.idle_cpu_percent, 2, " %"))),
            ("Index", format!("{index} at the fullest OSD, {per_block} per 4KiB block of the volume")),
            ("Write amplification", format!("{amplification} under random overwrites at 80 % full")),
            ("Start after SIGKILL", format!("{restart} with {on_it} written to the OSD")),
            ("fio over NBD, 75/25 QD64", with(nbd, " IOPS") + &ceph),
        ];
        table::render(&["other figures", ""], rows.map(|(name, value)| vec![name.to_owned(), value]))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        writeln!(
            formatter,
            "Setup     volume and raw device {}, three drives of {} (loop on {}, direct I/O {})",
            ByteSize(setup.volume_bytes),
            ByteSize(setup.drive_bytes),
            setup.directory,
            if setup.direct_io { "on" } else { "OFF" },
        )?;
        writeln!(
            formatter,
            "          3 nodes, 3 replicas, TCP, checksums; median of {} rounds of {} s\n",
            setup.rounds, setup.runtime_seconds
        )?;
        let tables =
            [&self.results_table(), &self.ratios_table(), &self.witness_table(), &self.figures_table()];
        formatter.write_str(&tables.map(String::as_str).join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::trials::tests::drifting;

    /// The volume has half of the raw device's rate, and fio half of that; what costs per operation is twice as much.
    fn summary(change: impl FnOnce(&mut Vec<Trial>)) -> Summary {
        let mut trials = drifting(3, trials());
        change(&mut trials);
        let setup = Setup {
            directory: "/dev/shm".into(),
            volume_bytes: 2 << 30,
            drive_bytes: 4 << 30,
            direct_io: true,
            rounds: 3,
            runtime_seconds: 8.0,
        };
        Summary::new(setup, trials, Figures { idle_cpu_percent: Some(0.4), ..Figures::default() })
    }

    #[test]
    fn the_json_has_samples_ratios_and_figures_by_name() {
        let json = serde_json::to_value(summary(|_| ())).unwrap();
        let names: Vec<_> = json["ratios"].as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "randread_qd1_latency",
            "randread_qd64_cpu",
            "randrw75_qd64_cpu",
            "randwrite_qd1_latency",
            "randwrite_qd64_cpu",
        ];
        assert_eq!(names, expected);
        for (pointer, expected) in [
            ("/ratios/randread_qd64_cpu", 2.0),
            ("/engine_by_fio/randrw75_qd64", 4.0),
            ("/results/randread_qd64/fio/0/iops", 75_000.0),
            ("/results/randwrite_qd1/volume/2/mean_us", 240.0),
            ("/figures/idle_cpu_percent", 0.4),
            ("/setup/volume_bytes", 2_147_483_648.0),
        ] {
            assert_eq!(
                json.pointer(pointer).and_then(serde_json::Value::as_f64),
                Some(expected),
                "{pointer}"
            );
        }
        assert_eq!(json["engine_by_fio"].as_object().unwrap().len(), 3);
        assert_eq!(json["results"]["randread_qd1"]["fio"], serde_json::json!([]));
        assert!(json["figures"]["write_amplification"].is_null());
    }

    #[test]
    fn an_unknown_figure_makes_its_ratio_unknown_and_not_zero() {
        let summary = summary(|trials| {
            trials[0].samples[RAW].iter_mut().for_each(|sample| sample.machine_us_per_operation = None);
        });
        let json = serde_json::to_value(&summary).unwrap();
        assert!(json["ratios"]["randread_qd64_cpu"].is_null());
        assert_eq!(json["ratios"]["randwrite_qd64_cpu"], 2.0);
        assert!(summary.to_string().contains("unavailable"));
    }

    #[test]
    fn the_report_judges_by_must_and_aim() {
        let text = summary(|trials| {
            for round in 0..3 {
                // 3.0x, and as fast as fio.
                trials[3].samples[VOLUME][round].mean_us =
                    trials[3].samples[RAW][round].mean_us.map(|us| 3.0 * us);
                trials[0].samples[FIO][round].iops = trials[0].samples[RAW][round].iops;
            }
        })
        .to_string();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("randread_qd64_cpu").ends_with("2.00x  1.8x  1.3x  MISSES the must"), "{text}");
        assert!(line("randwrite_qd64_cpu").ends_with("2.00x  2.5x  1.5x  within the must"), "{text}");
        assert!(line("randwrite_qd1_latency").ends_with("2.00x  5.0x  3.5x  reaches the aim"), "{text}");
        assert!(line("randread_qd1_latency").contains("MISSES the must"), "{text}");
        assert!(text.contains("randread_qd64            1.00x  within 10 %"), "{text}");
        assert!(text.contains("NOT within 10 %") && text.contains("0.40 % of a core"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
