//! What a run found, as it is printed and as it is written to a file. A ratio is computed within its round, and the median of
//! the rounds counts.

use crate::engine::cpu::Role;
use crate::engine::plan::Mode;
use crate::report::{figure, number, size, table};
use crate::scenarios::trials::{Figure, Trial};
use crate::statistics::{Ratio, median};
use crate::testbed::REPLICAS;
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

/// A kind of job of 4 KiB that runs on both.
struct Case {
    name: &'static str,
    mode: Mode,
    depth: u32,
}

/// A figure of the volume as a multiple of one of the raw device in the same round, and what it is to come to.
struct Goal {
    name: &'static str,
    case: &'static str,
    /// Of the volume's sample, beside the raw device's.
    of: fn(&Sample, &Sample) -> Option<f64>,
    by: Figure,
    /// What the ratio must not exceed.
    must: f64,
    /// What it should come down to.
    aim: f64,
}

/// CPU of the whole machine per operation.
const CPU: Figure = |sample| sample.machine_us_per_operation;
/// The same of as many operations as a write makes of its copies.
const CPU_OF_COPIES: Figure = |sample| sample.machine_us_per_operation.map(|us| us * REPLICAS as f64);
/// Average latency.
const LATENCY: Figure = |sample| sample.mean_us;
/// The same two of the volume, whatever the raw device's are.
const OF_CPU: fn(&Sample, &Sample) -> Option<f64> = |volume, _| CPU(volume);
const OF_LATENCY: fn(&Sample, &Sample) -> Option<f64> = |volume, _| LATENCY(volume);

/// Writes to drives on which nothing is to be cleaned yet: those come before the others, on a cluster of their own.
const FRESH: &str = "randwrite_qd64_fresh";

/// The cases, in the order in which they run. The last one is [`FRESH`].
#[rustfmt::skip]
const CASES: [Case; 12] = [
    Case { name: "randread_qd1", mode: Mode::RandomRead, depth: 1 },
    Case { name: "randread_qd16", mode: Mode::RandomRead, depth: 16 },
    Case { name: "randread_qd64", mode: Mode::RandomRead, depth: 64 },
    Case { name: "randread_qd256", mode: Mode::RandomRead, depth: 256 },
    Case { name: "randwrite_qd1", mode: Mode::RandomWrite, depth: 1 },
    Case { name: "randwrite_qd16", mode: Mode::RandomWrite, depth: 16 },
    Case { name: "randwrite_qd64", mode: Mode::RandomWrite, depth: 64 },
    Case { name: "randwrite_qd256", mode: Mode::RandomWrite, depth: 256 },
    Case { name: "randrw75_qd16", mode: Mode::RandomReadWrite, depth: 16 },
    Case { name: "randrw75_qd64", mode: Mode::RandomReadWrite, depth: 64 },
    Case { name: "randrw75_qd256", mode: Mode::RandomReadWrite, depth: 256 },
    Case { name: FRESH, mode: Mode::RandomWrite, depth: 64 },
];

#[rustfmt::skip]
const GOALS: [Goal; 10] = [
    Goal { name: "randread_qd64_nodes", case: "randread_qd64", of: Sample::node_cost_us, by: CPU, must: 1.0, aim: 0.8 },
    Goal { name: "randwrite_qd64_nodes", case: "randwrite_qd64", of: Sample::node_cost_us, by: CPU, must: 2.2, aim: 1.6 },
    Goal { name: "randread_qd64_cpu", case: "randread_qd64", of: OF_CPU, by: CPU, must: 2.6, aim: 2.2 },
    Goal { name: "randwrite_qd64_cpu", case: "randwrite_qd64", of: OF_CPU, by: CPU, must: 4.0, aim: 3.2 },
    Goal { name: "randrw75_qd64_cpu", case: "randrw75_qd64", of: OF_CPU, by: CPU, must: 3.2, aim: 2.6 },
    Goal { name: "randread_qd256_cpu", case: "randread_qd256", of: OF_CPU, by: CPU, must: 2.2, aim: 1.9 },
    Goal { name: "randwrite_qd256_cpu", case: "randwrite_qd256", of: OF_CPU, by: CPU, must: 3.2, aim: 2.6 },
    Goal { name: "fresh_write_cpu_by_3", case: FRESH, of: OF_CPU, by: CPU_OF_COPIES, must: 1.3, aim: 1.1 },
    Goal { name: "randread_qd1_latency", case: "randread_qd1", of: OF_LATENCY, by: LATENCY, must: 1.8, aim: 1.3 },
    Goal { name: "randwrite_qd1_latency", case: "randwrite_qd1", of: OF_LATENCY, by: LATENCY, must: 4.0, aim: 3.0 },
];

/// The least that roles are to have together of the machine's time, as a share.
const TOLD_MIN: f64 = 0.95;

impl Case {
    fn has_witness(&self) -> bool {
        self.depth == 64 && self.name != FRESH
    }
}

/// The trials of all cases; those of [`FRESH`] apart.
pub(super) fn trials() -> (Vec<Trial>, Trial) {
    let subjects = |case: &Case| if case.has_witness() { SUBJECTS.len() } else { FIO };
    let trial = |case: &Case| Trial::new(case.mode, 4096, case.depth, subjects(case));
    let [others @ .., fresh] = &CASES;
    (others.iter().map(trial).collect(), trial(fresh))
}

/// What a ratio comes to, by what it must and what it should.
fn verdict(ratio: Option<f64>, must: f64, aim: f64) -> &'static str {
    // Of shares more is better.
    let is_within = |ratio: f64, limit: f64| if aim < must { ratio <= limit } else { ratio >= limit };
    match ratio {
        None => "",
        Some(ratio) if is_within(ratio, aim) => "reaches the aim",
        Some(ratio) if is_within(ratio, must) => "within the must",
        Some(_) => "MISSES the must",
    }
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
    /// Sequential 1 MiB reads of what was overwritten at random since, and cleaned.
    pub overwritten_read_mib_per_second: Option<f64>,
    /// Index memory of the fullest OSD, in bytes.
    pub index_bytes: Option<u64>,
    /// The same for each 4 KiB block of the volume, every one of which is on that OSD.
    pub index_bytes_per_block: Option<f64>,
    /// Bytes written to drives for each byte that clients overwrote at random, on aged drives.
    pub write_amplification: Option<f64>,
    /// 75 % reads at depth 64 over NBD, by fio, round by round.
    pub nbd: Vec<Sample>,
    /// The same on an image of Ceph, if there was one to compare with.
    pub ceph: Vec<Sample>,
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
    /// Volume by raw device, by the goal's name. `None` where it could not be measured.
    ratios: BTreeMap<&'static str, Option<Ratio>>,
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
        let ratio = |goal: &Goal| {
            let (_, trial) = cases().find(|(case, _)| case.name == goal.case).expect("a goal is of a case");
            (goal.name, trial.ratio_of(VOLUME, RAW, goal.of, goal.by))
        };
        let engine_by_fio = |(case, trial): (&Case, &Trial)| {
            let ratio = trial.ratio(RAW, FIO, |sample| Some(sample.iops));
            (case.name, ratio.map(|ratio| ratio.estimate))
        };
        Summary {
            setup,
            results: cases().map(|(case, trial)| (case.name, samples(trial))).collect(),
            ratios: GOALS.iter().map(ratio).collect(),
            engine_by_fio: cases().filter(|(case, _)| case.has_witness()).map(engine_by_fio).collect(),
            figures,
            trials,
        }
    }

    /// A row for each case and each of so many subjects.
    fn rows(&self, subjects: usize, row: impl Fn(usize, &Trial) -> Vec<String>) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (case, trial) in CASES.iter().zip(&self.trials) {
            for (subject, name) in SUBJECTS.iter().enumerate().take(trial.samples.len().min(subjects)) {
                let begin = vec![case.name.to_owned(), (*name).to_owned()];
                rows.push([begin, row(subject, trial)].concat());
            }
        }
        rows
    }

    fn results_table(&self) -> String {
        let row = |subject: usize, trial: &Trial| {
            let figures: [Figure; 4] = [
                |sample| Some(sample.iops),
                LATENCY,
                |sample| sample.slower(|latency| latency.p99_us),
                |sample| sample.slower(|latency| latency.p99_9_us),
            ];
            let mut row: Vec<String> = figures.map(|of| figure(trial.median(subject, of))).into();
            row.push(number(trial.median(subject, |sample| sample.steal_seconds), 1, ""));
            row
        };
        let headings = ["case", "on", ">IOPS", ">average µs", ">p99 µs", ">p99.9 µs", ">steal s"];
        table::render(&headings, self.rows(SUBJECTS.len(), row))
    }

    /// Where the CPU time of an operation goes.
    fn roles_table(&self) -> String {
        let roles = Role::OF_A_JOB.map(|role| format!(">{}", role.name()));
        let mut headings = vec!["CPU µs/op", "on", ">machine"];
        headings.extend(roles.iter().map(String::as_str));
        headings.extend([">told", ">IOPS/core"]);
        let row = |subject: usize, trial: &Trial| {
            let mut row = vec![figure(trial.median(subject, CPU))];
            row.extend(Role::OF_A_JOB.map(|role| match (role, subject) {
                // A raw device has no nodes: that is not a figure that could not be measured.
                (Role::Nodes, RAW) => "-".to_owned(),
                _ => {
                    figure(trial.median(subject, |sample| sample.roles_us_per_operation.get(&role).copied()))
                }
            }));
            let told = trial.median(subject, Sample::told_share);
            let mark = if told.is_some_and(|told| told < TOLD_MIN) { " %!" } else { " %" };
            row.push(number(told.map(|told| told * 100.0), 0, mark));
            row.push(match subject {
                RAW => "-".to_owned(),
                _ => figure(median(trial.by_round(subject, RAW, Sample::node_cost_us)).map(|us| 1e6 / us)),
            });
            row
        };
        let note = match self.is_told() {
            true => "",
            false => "%! of less than 95 % of the machine's time it is known who had it\n",
        };
        table::render(&headings, self.rows(FIO, row)) + note
    }

    /// Whether it is known of almost all of the machine's time who had it.
    fn is_told(&self) -> bool {
        let of_own = |trial: &Trial| [RAW, VOLUME].map(|subject| trial.median(subject, Sample::told_share));
        self.trials.iter().flat_map(of_own).flatten().all(|told| told >= TOLD_MIN)
    }

    fn ratios_table(&self) -> String {
        let row = |goal: &Goal| {
            let ratio = self.ratios.get(goal.name).copied().flatten();
            let interval = ratio.and_then(|ratio| ratio.interval);
            let ratio = ratio.map(|ratio| ratio.estimate);
            let [must, aim] = [goal.must, goal.aim].map(|limit| format!("{limit:.1}x"));
            vec![
                goal.name.to_owned(),
                number(ratio, 2, "x"),
                interval.map_or("-".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}")),
                must,
                aim,
                verdict(ratio, goal.must, goal.aim).to_owned(),
            ]
        };
        let headings = ["volume by raw device", ">ratio", ">interval", ">must", ">aim", ""];
        table::render(&headings, GOALS.iter().map(row))
    }

    fn shares_table(&self) -> String {
        let figures = &self.figures;
        let by = |of: Option<f64>, by: Option<f64>| of.zip(by).map(|(of, by)| of / by);
        let of_ceph = |figure: Figure| {
            let rounds = figures.nbd.iter().zip(&figures.ceph);
            let quotients = rounds.filter_map(|(nbd, ceph)| Some(figure(nbd)? / figure(ceph)?));
            median(quotients.collect())
        };
        let (read, written) = (figures.volume_read_mib_per_second, figures.volume_write_mib_per_second);
        let overwritten = figures.overwritten_read_mib_per_second;
        let rows = [
            (
                "sequential 1MiB read by what drives allow",
                by(read, figures.raw_read_mib_per_second),
                0.33,
                0.45,
            ),
            (
                "sequential 1MiB write by what drives allow",
                by(written, figures.raw_write_mib_per_second),
                0.40,
                0.44,
            ),
            ("sequential read of what was overwritten by fresh", by(overwritten, read), 0.5, 0.8),
            ("fio over NBD by Ceph's librbd: IOPS", of_ceph(|sample| Some(sample.iops)), 12.0, 16.0),
            ("fio over NBD by Ceph's librbd: machine CPU", of_ceph(CPU), 1.0 / 15.0, 1.0 / 20.0),
        ];
        let row = |(name, ratio, must, aim): (&str, Option<f64>, f64, f64)| {
            let [ratio_told, must_told, aim_told] =
                [ratio, Some(must), Some(aim)].map(|ratio| number(ratio, 2, "x"));
            vec![name.to_owned(), ratio_told, must_told, aim_told, verdict(ratio, must, aim).to_owned()]
        };
        table::render(&["other ratios", ">ratio", ">must", ">aim", ""], rows.map(row))
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
        let [nbd, ceph] = [&figures.nbd, &figures.ceph]
            .map(|samples| median(samples.iter().map(|sample| sample.iops).collect()));
        let ceph =
            ceph.map_or_else(String::new, |iops| format!(", Ceph's RBD {}", with(Some(iops), " IOPS")));
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
        let tables = [
            self.results_table(),
            self.roles_table(),
            self.ratios_table(),
            self.shares_table(),
            self.witness_table(),
            self.figures_table(),
        ];
        formatter.write_str(&tables.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::trials::tests::drifting;

    /// The volume has half of the raw device's rate, and fio half of that; what costs per operation is twice as much.
    fn summary(change: impl FnOnce(&mut Vec<Trial>)) -> Summary {
        let (others, fresh) = trials();
        let mut trials = drifting(6, others.into_iter().chain([fresh]).collect());
        change(&mut trials);
        let setup = Setup {
            directory: "/dev/shm".into(),
            volume_bytes: 2 << 30,
            drive_bytes: 4 << 30,
            direct_io: true,
            rounds: 6,
            runtime_seconds: 5.0,
        };
        Summary::new(setup, trials, Figures { idle_cpu_percent: Some(0.4), ..Figures::default() })
    }

    fn case(name: &str) -> usize {
        CASES.iter().position(|case| case.name == name).unwrap()
    }

    #[test]
    fn goals_are_of_cases_and_the_last_case_is_the_fresh_one() {
        assert!(GOALS.iter().all(|goal| CASES.iter().any(|case| case.name == goal.case)));
        assert_eq!(case(FRESH), CASES.len() - 1);
        let (others, fresh) = trials();
        assert_eq!((others.len(), fresh.samples.len()), (CASES.len() - 1, 2), "no witness");
    }

    #[test]
    fn the_json_has_samples_ratios_and_figures_by_name() {
        let json = serde_json::to_value(summary(|_| ())).unwrap();
        for (pointer, expected) in [
            ("/ratios/randread_qd64_cpu/estimate", 2.0),
            ("/ratios/fresh_write_cpu_by_3/estimate", 2.0 / 3.0),
            ("/ratios/randwrite_qd1_latency/interval/1", 2.0),
            ("/engine_by_fio/randrw75_qd64", 4.0),
            ("/results/randread_qd64/fio/0/iops", 75_000.0),
            ("/results/randwrite_qd1/volume/2/mean_us", 240.0),
            ("/figures/idle_cpu_percent", 0.4),
            ("/setup/volume_bytes", 2_147_483_648.0),
        ] {
            let found = json.pointer(pointer).and_then(serde_json::Value::as_f64);
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{pointer}: {found:?}");
        }
        assert_eq!(json["ratios"].as_object().unwrap().len(), GOALS.len());
        assert_eq!(json["engine_by_fio"].as_object().unwrap().len(), 3);
        assert_eq!(json["results"]["randread_qd1"]["fio"], serde_json::json!([]));
        assert!(json["figures"]["write_amplification"].is_null());
        assert!(json["ratios"]["randread_qd64_nodes"].is_null(), "what nodes cost was not measured");
    }

    #[test]
    fn an_unknown_figure_makes_its_ratio_unknown_and_not_zero() {
        let summary = summary(|trials| {
            let samples = &mut trials[case("randread_qd64")].samples[RAW];
            samples.iter_mut().for_each(|sample| sample.machine_us_per_operation = None);
        });
        let json = serde_json::to_value(&summary).unwrap();
        assert!(json["ratios"]["randread_qd64_cpu"].is_null());
        assert_eq!(json["ratios"]["randwrite_qd64_cpu"]["estimate"], 2.0);
        assert!(summary.to_string().contains("unavailable"));
    }

    #[test]
    fn the_report_judges_by_must_and_aim() {
        let text = summary(|trials| {
            for round in 0..6 {
                // 1.5x, and as fast as fio.
                let samples = &mut trials[case("randread_qd1")].samples;
                samples[VOLUME][round].mean_us = samples[RAW][round].mean_us.map(|us| 1.5 * us);
                let samples = &mut trials[case("randread_qd64")].samples;
                samples[FIO][round].iops = samples[RAW][round].iops;
            }
        })
        .to_string();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(
            line("randread_qd64_cpu").ends_with("2.00x  2.00 to 2.00  2.6x  2.2x  reaches the aim"),
            "{text}"
        );
        assert!(line("randread_qd256_cpu").ends_with("2.2x  1.9x  within the must"), "{text}");
        assert!(
            line("randread_qd1_latency").ends_with("1.50x  1.50 to 1.50  1.8x  1.3x  within the must"),
            "{text}"
        );
        assert!(line("fresh_write_cpu_by_3").ends_with("reaches the aim"), "{text}");
        assert!(text.contains("randread_qd64            1.00x  within 10 %"), "{text}");
        assert!(text.contains("NOT within 10 %") && text.contains("0.40 % of a core"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
    }

    #[test]
    fn more_of_a_share_is_better() {
        for (ratio, expected) in [
            (Some(0.46), "reaches the aim"),
            (Some(0.40), "within the must"),
            (Some(0.30), "MISSES the must"),
            (None, ""),
        ] {
            assert_eq!(verdict(ratio, 0.33, 0.45), expected);
        }
        assert_eq!(verdict(Some(0.06), 1.0 / 15.0, 1.0 / 20.0), "within the must");
    }

    #[test]
    fn where_it_is_not_known_who_had_the_time_the_report_says_so() {
        let with = |share: f64| {
            summary(|trials| {
                for sample in trials.iter_mut().flat_map(|trial| trial.samples.iter_mut().flatten()) {
                    let machine = sample.machine_us_per_operation.unwrap();
                    sample.roles_us_per_operation = [(Role::Client, machine * share)].into();
                }
            })
            .to_string()
        };
        assert!(with(0.94).contains("94 %!") && with(0.94).contains("it is known who had it"));
        assert!(with(0.96).contains("96 %") && !with(0.96).contains("it is known who had it"));
    }
}
