//! The suite behind `make bench`: what is compared, how ratios are made of samples, and how they are shown.
//!
//! A raw device and a replicated volume are measured in turns in one run, because machines drift and only
//! figures of the same minutes compare. Each round runs every case on the device and on the volume. A ratio is computed within its round, and the
//! median of the rounds counts.

use crate::engine::cpu::Machine;
use crate::engine::plan::{Job, Mode, TargetName};
use crate::report::statistics::median;
use crate::report::{grouped, microseconds};
use crate::scenarios::jobs::Sample;
use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How far our engine's rate on the raw device may be from fio's.
const WITNESS_TOLERANCE: f64 = 0.10;

/// Which figure of a case is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// CPU of the whole machine per operation.
    MachineCpu,
    /// Average latency.
    MeanLatency,
}

/// One job that runs on both, and the ratio that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in the results.
    pub name: &'static str,
    /// The name of its ratio.
    pub ratio: &'static str,
    /// Which figure the ratio compares.
    pub metric: Metric,
    /// What the ratio must not exceed.
    pub must: f64,
    /// What it should come down to.
    pub aim: f64,
    mode: Mode,
    depth: u32,
}

/// The cases, in the order in which they run.
pub const CASES: [Case; 5] = [
    Case {
        name: "randread_qd64",
        ratio: "randread_qd64_cpu",
        metric: Metric::MachineCpu,
        must: 1.8,
        aim: 1.3,
        mode: Mode::RandomRead,
        depth: 64,
    },
    Case {
        name: "randwrite_qd64",
        ratio: "randwrite_qd64_cpu",
        metric: Metric::MachineCpu,
        must: 2.5,
        aim: 1.5,
        mode: Mode::RandomWrite,
        depth: 64,
    },
    Case {
        name: "randrw75_qd64",
        ratio: "randrw75_qd64_cpu",
        metric: Metric::MachineCpu,
        must: 2.2,
        aim: 1.4,
        mode: Mode::RandomReadWrite,
        depth: 64,
    },
    Case {
        name: "randread_qd1",
        ratio: "randread_qd1_latency",
        metric: Metric::MeanLatency,
        must: 2.4,
        aim: 1.8,
        mode: Mode::RandomRead,
        depth: 1,
    },
    Case {
        name: "randwrite_qd1",
        ratio: "randwrite_qd1_latency",
        metric: Metric::MeanLatency,
        must: 5.0,
        aim: 3.5,
        mode: Mode::RandomWrite,
        depth: 1,
    },
];

impl Case {
    /// Its job on `target`, over `size` bytes.
    #[must_use]
    pub fn job(&self, target: TargetName, size: u64, runtime: Duration, seed: u64) -> Job {
        Job {
            depth: self.depth,
            mix_read_percent: 75,
            runtime: Some(runtime),
            ramp: Duration::from_secs(1),
            size: Some(size),
            seed,
            ..Job::new(target, self.mode)
        }
    }

    /// Whether fio runs it too. At depth 1 rates are latencies, and those are compared by their ratio already.
    fn has_witness(&self) -> bool {
        self.depth > 1
    }

    fn metric_of(&self, sample: &Sample) -> Option<f64> {
        match self.metric {
            Metric::MachineCpu => sample.machine_us_per_operation,
            Metric::MeanLatency => sample.mean_us,
        }
    }
}

/// Who runs a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Our engine on the raw device.
    Raw,
    /// Our engine on the replicated volume.
    Volume,
    /// fio on the raw device.
    Fio,
}

/// The samples of one case, one per round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// Our engine on the raw device.
    pub raw: Vec<Sample>,
    /// Our engine on the replicated volume.
    pub volume: Vec<Sample>,
    /// fio on the raw device.
    #[serde(default)]
    pub fio: Vec<Sample>,
}

/// The results of all cases by name.
pub type Results = BTreeMap<String, CaseResult>;

/// Runs every case `rounds` times, in turns. `run` runs one; `progress` is told before each.
///
/// # Errors
/// The first that `run` returns.
pub fn measure<E>(
    rounds: u32,
    mut run: impl FnMut(Subject, &Case, u32) -> Result<Sample, E>,
    mut progress: impl FnMut(&str),
) -> Result<Results, E> {
    let mut results = Results::new();
    for round in 0..rounds {
        for case in &CASES {
            let mut subjects = vec![Subject::Raw, Subject::Volume];
            if case.has_witness() {
                subjects.push(Subject::Fio);
            }
            // Whoever comes first finds the machine in another state than who comes last: take turns.
            let first = round as usize % subjects.len();
            subjects.rotate_left(first);
            for subject in subjects {
                progress(&format!("round {} of {rounds}: {} on {subject:?}", round + 1, case.name));
                let sample = run(subject, case, round)?;
                let result = results.entry(case.name.to_owned()).or_default();
                match subject {
                    Subject::Raw => result.raw.push(sample),
                    Subject::Volume => result.volume.push(sample),
                    Subject::Fio => result.fio.push(sample),
                }
            }
        }
    }
    Ok(results)
}

/// The median over the rounds of one figure, of those rounds that have it.
fn median_of(samples: &[Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(samples.iter().filter_map(figure).collect())
}

/// The median over the rounds of the quotient of a figure, volume by raw device.
fn median_ratio(volume: &[Sample], raw: &[Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let quotient = |(volume, raw): (&Sample, &Sample)| {
        let (volume, raw) = (figure(volume)?, figure(raw)?);
        (raw > 0.0).then(|| volume / raw)
    };
    median(volume.iter().zip(raw).filter_map(quotient).collect())
}

/// The ratios by name: volume by raw device, of the case's metric. `None` where it could not be measured.
#[must_use]
pub fn ratios(results: &Results) -> BTreeMap<String, Option<f64>> {
    CASES
        .iter()
        .map(|case| {
            let ratio = results.get(case.name).and_then(|result| {
                median_ratio(&result.volume, &result.raw, |sample| case.metric_of(sample))
            });
            (case.ratio.to_owned(), ratio)
        })
        .collect()
}

/// Our engine's rate on the raw device as a multiple of fio's, by case.
#[must_use]
pub fn engine_by_fio(results: &Results) -> BTreeMap<String, Option<f64>> {
    CASES
        .iter()
        .filter(|case| case.has_witness())
        .map(|case| {
            let ratio = results
                .get(case.name)
                .and_then(|result| median_ratio(&result.raw, &result.fio, |sample| Some(sample.iops)));
            (case.name.to_owned(), ratio)
        })
        .collect()
}

/// Figures besides the ratios. Absent ones were not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
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
    #[serde(default)]
    pub nbd_iops: Vec<f64>,
    /// The same on an image of Ceph, if there was one to compare with.
    #[serde(default)]
    pub ceph_iops: Vec<f64>,
    /// Bytes that were written to an OSD before it was killed.
    #[serde(default)]
    pub restart_bytes: Option<u64>,
    /// Seconds from `millpond up` until all of it served again.
    #[serde(default)]
    pub restart_seconds: Option<f64>,
}

impl Figures {
    /// NBD by Ceph, the median of the rounds.
    #[must_use]
    pub fn nbd_by_ceph(&self) -> Option<f64> {
        median(self.nbd_iops.iter().zip(&self.ceph_iops).map(|(nbd, ceph)| nbd / ceph).collect())
    }
}

/// What the suite ran on and with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Where the drives' files were.
    pub directory: String,
    /// Bytes of the volume and of the raw device.
    pub volume_bytes: u64,
    /// Bytes of each drive of the cluster.
    pub drive_bytes: u64,
    /// Whether the loop devices bypass the page cache.
    pub direct_io: bool,
    /// Rounds.
    pub rounds: u32,
    /// Seconds of each job.
    pub runtime_seconds: f64,
}

/// Everything, as it is written to a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The machine.
    pub machine: Machine,
    /// The date that was passed in.
    pub date: String,
    /// What it ran on and with.
    pub setup: Setup,
    /// The samples, case by case and round by round.
    pub results: Results,
    /// Volume by raw device; see [`ratios`].
    pub ratios: BTreeMap<String, Option<f64>>,
    /// Our engine by fio; see [`engine_by_fio`].
    pub engine_by_fio: BTreeMap<String, Option<f64>>,
    /// The others.
    pub figures: Figures,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        writeln!(formatter, "Machine   {}", self.machine)?;
        writeln!(formatter, "Date      {}", self.date)?;
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
        self.write_results(formatter)?;
        self.write_ratios(formatter)?;
        self.write_witness(formatter)?;
        self.write_figures(formatter)
    }
}

/// A ratio with its `x`, or `unavailable`.
fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "unavailable".to_owned(), |ratio| format!("{ratio:.2}x"))
}

impl Summary {
    fn write_results(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<16}{:<8}{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "case", "on", "IOPS", "avg µs", "machine µs", "client µs", "nodes µs", "steal s"
        )?;
        for case in &CASES {
            let Some(result) = self.results.get(case.name) else { continue };
            for (subject, samples) in [("raw", &result.raw), ("volume", &result.volume), ("fio", &result.fio)]
            {
                if samples.is_empty() {
                    continue;
                }
                let iops = median_of(samples, |sample| Some(sample.iops));
                writeln!(
                    formatter,
                    "{:<16}{subject:<8}{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}",
                    case.name,
                    iops.map_or_else(|| "unavailable".to_owned(), grouped),
                    microseconds(median_of(samples, |sample| sample.mean_us)),
                    microseconds(median_of(samples, |sample| sample.machine_us_per_operation)),
                    microseconds(median_of(samples, |sample| sample.client_us_per_operation)),
                    // A raw device has no nodes: that is not a figure that could not be measured.
                    if subject == "volume" {
                        microseconds(median_of(samples, |sample| sample.nodes_us_per_operation))
                    } else {
                        "-".to_owned()
                    },
                    median_of(samples, |sample| sample.steal_seconds)
                        .map_or_else(|| "unavailable".to_owned(), |seconds| format!("{seconds:.1}")),
                )?;
            }
        }
        writeln!(formatter)
    }

    fn write_ratios(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<26}{:>12}{:>8}{:>8}", "volume by raw device", "ratio", "must", "aim")?;
        for case in &CASES {
            let ratio = self.ratios.get(case.ratio).copied().flatten();
            let verdict = match ratio {
                None => "",
                Some(ratio) if ratio <= case.aim => "reaches the aim",
                Some(ratio) if ratio <= case.must => "within the must",
                Some(_) => "MISSES the must",
            };
            let (must, aim) = (times_short(case.must), times_short(case.aim));
            writeln!(formatter, "{:<26}{:>12}{must:>8}{aim:>8}  {verdict}", case.ratio, times(ratio))?;
        }
        writeln!(formatter)
    }

    fn write_witness(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<26}{:>12}", "our engine by fio, IOPS", "ratio")?;
        for (case, ratio) in &self.engine_by_fio {
            let verdict = match ratio {
                None => "",
                Some(ratio) if (ratio - 1.0).abs() <= WITNESS_TOLERANCE => "within 10 %",
                Some(_) => "NOT within 10 %: look into it before you trust the rest",
            };
            writeln!(formatter, "{case:<26}{:>12}  {verdict}", times(*ratio))?;
        }
        writeln!(formatter)
    }

    fn write_figures(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = &self.figures;
        let number = |value: Option<f64>, unit: &str| {
            value.map_or_else(|| "unavailable".to_owned(), |value| format!("{}{unit}", precise(value)))
        };
        let part = |volume: Option<f64>, raw: Option<f64>| {
            number(volume.zip(raw).map(|(volume, raw)| volume / raw * 100.0), " %")
        };
        writeln!(
            formatter,
            "Sequential 1MiB write     {}, drives allow {} for three copies: {}",
            number(figures.volume_write_mib_per_second, " MiB/s"),
            number(figures.raw_write_mib_per_second, " MiB/s"),
            part(figures.volume_write_mib_per_second, figures.raw_write_mib_per_second),
        )?;
        writeln!(
            formatter,
            "Sequential 1MiB read      {}, drives allow {} for one copy: {}",
            number(figures.volume_read_mib_per_second, " MiB/s"),
            number(figures.raw_read_mib_per_second, " MiB/s"),
            part(figures.volume_read_mib_per_second, figures.raw_read_mib_per_second),
        )?;
        writeln!(
            formatter,
            "Idle cluster              {} of a core",
            number(figures.idle_cpu_percent, " %")
        )?;
        writeln!(
            formatter,
            "Index                     {} at the fullest OSD",
            figures.index_bytes.map_or_else(|| "unavailable".to_owned(), |bytes| ByteSize(bytes).to_string())
        )?;
        if let Some(bytes) = figures.index_bytes_per_block {
            writeln!(formatter, "                          {bytes:.1} bytes per 4KiB block of the volume")?;
        }
        writeln!(
            formatter,
            "Write amplification       {} under random overwrites at 80 % full",
            number(figures.write_amplification, "x")
        )?;
        writeln!(
            formatter,
            "Start after SIGKILL       {} with {} written to the OSD",
            number(figures.restart_seconds, " s"),
            figures
                .restart_bytes
                .map_or_else(|| "unavailable".to_owned(), |bytes| ByteSize(bytes).to_string())
        )?;
        write!(formatter, "fio over NBD, 75/25 QD64  {}", number(median(figures.nbd_iops.clone()), " IOPS"))?;
        match (median(figures.ceph_iops.clone()), figures.nbd_by_ceph()) {
            (Some(ceph), Some(ratio)) => {
                writeln!(formatter, ", Ceph's RBD {} IOPS: {ratio:.1}x", precise(ceph))
            }
            _ => writeln!(formatter),
        }
    }
}

fn times_short(ratio: f64) -> String {
    format!("{ratio:.1}x")
}

/// Large numbers whole and in groups, small ones with two digits behind the point.
fn precise(value: f64) -> String {
    if value >= 100.0 { grouped(value) } else { format!("{value:.2}") }
}

/// Random overwrites' own write amplification: from what an OSD says of its whole life before and after.
/// `filled` bytes had been written before, and `overwritten` came on top.
#[must_use]
pub fn overwrite_amplification(before: f64, filled: u64, after: f64, overwritten: u64) -> Option<f64> {
    let (filled, overwritten) = (filled as f64, overwritten as f64);
    (overwritten > 0.0).then(|| (after * (filled + overwritten) - before * filled) / overwritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn sample(iops: f64, mean_us: f64, machine_us: Option<f64>) -> Sample {
        Sample { iops, mean_us: Some(mean_us), machine_us_per_operation: machine_us, ..Sample::default() }
    }

    /// A machine that gets slower round by round, for everybody.
    fn drifting(rounds: u32) -> Results {
        measure::<Infallible>(
            rounds,
            |subject, _, round| {
                let drift = f64::from(round + 1);
                Ok(match subject {
                    Subject::Raw => sample(300_000.0 / drift, 40.0 * drift, Some(6.0 * drift)),
                    Subject::Volume => sample(150_000.0 / drift, 80.0 * drift, Some(9.0 * drift)),
                    Subject::Fio => sample(290_000.0 / drift, 41.0 * drift, None),
                })
            },
            |_| (),
        )
        .unwrap()
    }

    fn summary(results: Results) -> Summary {
        Summary {
            machine: Machine { cpu: Some("Test".into()), cpus: Some(2), memory_bytes: None, kernel: None },
            date: "2026-01-02".into(),
            setup: Setup {
                directory: "/dev/shm".into(),
                volume_bytes: 2 << 30,
                drive_bytes: 4 << 30,
                direct_io: true,
                rounds: 3,
                runtime_seconds: 8.0,
            },
            ratios: ratios(&results),
            engine_by_fio: engine_by_fio(&results),
            results,
            figures: Figures { idle_cpu_percent: Some(0.4), ..Figures::default() },
        }
    }

    #[test]
    fn ratios_are_those_of_each_round_so_that_drift_does_not_move_them() {
        let results = drifting(3);
        let ratios = ratios(&results);
        let names: Vec<_> = ratios.keys().map(String::as_str).collect();
        let expected = [
            "randread_qd1_latency",
            "randread_qd64_cpu",
            "randrw75_qd64_cpu",
            "randwrite_qd1_latency",
            "randwrite_qd64_cpu",
        ];
        assert_eq!(names, expected);
        assert_eq!(ratios["randread_qd64_cpu"], Some(1.5));
        assert_eq!(ratios["randwrite_qd1_latency"], Some(2.0));
        let witness = engine_by_fio(&results);
        assert_eq!(witness.len(), 3);
        assert!((witness["randread_qd64"].unwrap() - 30.0 / 29.0).abs() < 1e-9);
    }

    #[test]
    fn one_bad_round_does_not_move_the_median() {
        let mut results = drifting(3);
        results.get_mut("randread_qd64").unwrap().volume[1].machine_us_per_operation = Some(900.0);
        assert_eq!(ratios(&results)["randread_qd64_cpu"], Some(1.5));
    }

    #[test]
    fn an_unknown_figure_makes_its_ratio_unknown_and_not_zero() {
        let mut results = drifting(1);
        results.get_mut("randread_qd64").unwrap().raw[0].machine_us_per_operation = None;
        let summary = summary(results);
        assert_eq!(summary.ratios["randread_qd64_cpu"], None);
        let json = serde_json::to_value(&summary).unwrap();
        assert!(json["ratios"]["randread_qd64_cpu"].is_null());
        assert_eq!(json["ratios"]["randwrite_qd64_cpu"], 1.5);
        assert_eq!(serde_json::from_value::<Summary>(json).unwrap(), summary);
        assert!(summary.to_string().contains("unavailable"));
    }

    #[test]
    fn subjects_take_turns_within_a_round_and_rounds_begin_with_another() {
        let mut order = Vec::new();
        let run = |subject, case: &Case, round| {
            order.push((case.name, subject, round));
            Ok::<_, Infallible>(Sample::default())
        };
        let mut steps = 0;
        measure(2, run, |_| steps += 1).unwrap();
        assert_eq!(order.len(), 2 * (3 * 3 + 2 * 2));
        assert_eq!(steps, order.len());
        assert_eq!(order[0].1, Subject::Raw);
        assert_eq!(order[13].1, Subject::Volume);
        assert!(order.iter().all(|(name, subject, _)| *subject != Subject::Fio || name.ends_with("qd64")));
    }

    #[test]
    fn nbd_is_compared_with_ceph_round_by_round_if_there_is_one() {
        let mut summary = summary(drifting(1));
        summary.figures.nbd_iops = vec![40_000.0, 60_000.0];
        assert!(summary.to_string().ends_with("fio over NBD, 75/25 QD64  50,000 IOPS\n"), "{summary}");
        summary.figures.ceph_iops = vec![4_000.0, 3_000.0];
        assert_eq!(summary.figures.nbd_by_ceph(), Some(15.0));
        assert!(summary.to_string().ends_with("50,000 IOPS, Ceph's RBD 3,500 IOPS: 15.0x\n"), "{summary}");
    }

    #[test]
    fn a_failed_job_ends_the_suite() {
        let mut runs = 0;
        let outcome = measure(
            3,
            |_, _, _| {
                runs += 1;
                if runs == 4 { Err("full") } else { Ok(Sample::default()) }
            },
            |_| (),
        );
        assert_eq!((outcome, runs), (Err("full"), 4));
    }

    #[test]
    fn the_table_judges_each_ratio_against_must_and_aim() {
        let text = summary(drifting(3)).to_string();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("randread_qd64_cpu").ends_with("1.50x    1.8x    1.3x  within the must"), "{text}");
        assert!(line("randwrite_qd64_cpu").ends_with("reaches the aim"), "{text}");
        assert!(line("randwrite_qd1_latency").ends_with("5.0x    3.5x  reaches the aim"), "{text}");
        assert!(text.contains("within 10 %") && text.contains("0.40 % of a core"), "{text}");
        let mut slow = drifting(1);
        slow.get_mut("randread_qd1").unwrap().volume[0].mean_us = Some(400.0);
        slow.get_mut("randread_qd64").unwrap().fio[0].iops = 1.0;
        let text = summary(slow).to_string();
        assert!(text.contains("MISSES the must") && text.contains("NOT within 10 %"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn overwrites_are_told_apart_from_the_fill_before_them() {
        // 8 filled at 1.0x, then 20 overwritten at 3.0x: 68 written for 28.
        let amplification = overwrite_amplification(1.0, 8, 68.0 / 28.0, 20).unwrap();
        assert!((amplification - 3.0).abs() < 1e-9);
        assert_eq!(overwrite_amplification(1.0, 8, 1.0, 0), None);
    }

    #[test]
    fn a_case_is_the_same_job_on_either_target() {
        let case = &CASES[2];
        let raw = case.job(TargetName::Raw("/dev/loop0".into()), 1 << 30, Duration::from_secs(8), 5);
        let volume = case.job(TargetName::Volume("bench".into()), 1 << 30, Duration::from_secs(8), 5);
        assert_eq!(Job { target: volume.target.clone(), ..raw.clone() }, volume);
        assert_eq!((raw.depth, raw.read_percent(), raw.mode), (64, 75, Mode::RandomReadWrite));
    }
}
