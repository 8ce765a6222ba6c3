//! Two variants of one thing, measured in turns by the same jobs: what differs, by how much, and how surely.

use crate::engine::cpu::Machine;
use crate::engine::plan::{Job, Mode, TargetName};
use crate::report::statistics::{Ratio, Verdict, median};
use crate::report::{grouped, microseconds};
use crate::scenarios::jobs::Sample;
use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How long a job runs before it counts.
const RAMP: Duration = Duration::from_secs(1);
/// What may be worse without being called so.
const TOLERANCE: f64 = 0.02;

/// A kind of job, and what both variants made of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Which operations.
    pub mode: Mode,
    /// Bytes of each.
    pub block: ByteSize,
    /// In flight.
    pub depth: u32,
    /// Of the first variant and of the second, one for each round.
    pub samples: [Vec<Sample>; 2],
}

impl Case {
    /// None was measured yet.
    #[must_use]
    pub fn new(mode: Mode, block_bytes: u64, depth: u32) -> Case {
        Case { mode, block: ByteSize(block_bytes), depth, samples: [Vec::new(), Vec::new()] }
    }

    /// What virtual machines do, and what backups do.
    #[must_use]
    pub fn all() -> Vec<Case> {
        vec![
            Case::new(Mode::RandomRead, 4 << 10, 64),
            Case::new(Mode::RandomWrite, 4 << 10, 64),
            Case::new(Mode::RandomRead, 4 << 10, 1),
            Case::new(Mode::RandomWrite, 4 << 10, 1),
            Case::new(Mode::Read, 256 << 10, 8),
            Case::new(Mode::Write, 256 << 10, 8),
        ]
    }

    /// Its job on a volume.
    #[must_use]
    pub fn job(&self, volume: &str, runtime: Duration, round: u32) -> Job {
        Job {
            block: self.block,
            depth: self.depth,
            seed: u64::from(round),
            runtime: Some(runtime),
            ramp: RAMP,
            ..Job::new(TargetName::Volume(volume.to_owned()), self.mode)
        }
    }

    /// The medians of a figure, and the second by the first.
    fn compared(&self, figure: Figure) -> ([Option<f64>; 2], Option<Ratio>) {
        let medians = [0, 1].map(|variant| {
            let samples: &Vec<Sample> = &self.samples[variant];
            median(samples.iter().filter_map(figure).collect())
        });
        let rounds = self.samples[0].iter().zip(&self.samples[1]);
        let quotients = rounds.filter_map(|(first, second)| {
            Some(figure(second)? / figure(first).filter(|figure| *figure > 0.0)?)
        });
        (medians, Ratio::of(quotients.collect()))
    }
}

/// One figure of a sample, if it could be measured.
type Figure = fn(&Sample) -> Option<f64>;

/// What is compared, and whether more of it is better.
const FIGURES: [(&str, Figure, bool); 5] = [
    ("IOPS", |sample| Some(sample.iops), true),
    ("average µs", |sample| sample.mean_us, false),
    ("machine µs", |sample| sample.machine_us_per_operation, false),
    ("client µs", |sample| sample.client_us_per_operation, false),
    ("nodes µs", |sample| sample.nodes_us_per_operation, false),
];

/// Everything that a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The machine.
    pub machine: Machine,
    /// When.
    pub date: String,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// What the variants are called.
    pub variants: [String; 2],
    /// What was measured.
    pub cases: Vec<Case>,
}

/// Measures every case on both variants, in every round. `run` runs a case's job on variant 0 or 1; `progress` is told before
/// each.
///
/// # Errors
/// The first that `run` returns.
pub fn measure<E>(
    rounds: u32,
    mut progress: impl FnMut(&str),
    mut run: impl FnMut(usize, &Case, u32) -> Result<Sample, E>,
) -> Result<Vec<Case>, E> {
    let mut cases = Case::all();
    for round in 1..=rounds {
        for case in &mut cases {
            progress(&format!(
                "round {round} of {rounds}: {} {} depth {}",
                case.mode, case.block, case.depth
            ));
            // Whoever comes first finds the machine in another state than who comes last: take turns.
            for turn in [0, 1] {
                let variant = (turn + round as usize + 1) % 2;
                let sample = run(variant, case, round)?;
                case.samples[variant].push(sample);
            }
        }
    }
    Ok(cases)
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.cases.first().map_or(0, |case| case.samples[0].len());
        let [first, second] = &self.variants;
        writeln!(formatter, "Machine   {}", self.machine)?;
        writeln!(formatter, "Date      {}", self.date)?;
        writeln!(
            formatter,
            "Volume    {}; medians of {rounds} rounds, and {second} by {first} with its 95 % interval\n",
            ByteSize(self.volume_bytes)
        )?;
        writeln!(
            formatter,
            "{:26} {:12} {first:>12} {second:>12} {:>7} {:>14}",
            "case", "figure", "ratio", "interval"
        )?;
        for case in &self.cases {
            let name = format!("{} {} depth {}", case.mode, case.block, case.depth);
            for (index, (figure, of, more_is_better)) in FIGURES.into_iter().enumerate() {
                let (medians, ratio) = case.compared(of);
                let [first, second] = medians.map(|value| match value {
                    Some(value) if index == 0 => grouped(value),
                    value => microseconds(value),
                });
                let name = if index == 0 { name.as_str() } else { "" };
                writeln!(
                    formatter,
                    "{name:26} {figure:12} {first:>12} {second:>12} {:>7} {:>14}{}",
                    ratio.map_or("unavailable".to_owned(), |ratio| format!("{:.2}", ratio.median)),
                    ratio
                        .and_then(|ratio| ratio.interval)
                        .map_or("-".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}")),
                    match ratio.map(|ratio| ratio.verdict(TOLERANCE)) {
                        None | Some(Verdict::NoDifferenceShown) => "",
                        Some(verdict) if (verdict == Verdict::Above) == more_is_better => "  better",
                        Some(_) => "  WORSE",
                    }
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn sample(iops: f64, nodes_us_per_operation: Option<f64>) -> Sample {
        Sample { iops, nodes_us_per_operation, ..Sample::default() }
    }

    #[test]
    fn a_ratio_is_of_one_round_and_what_was_not_measured_has_none() {
        let mut case = Case::new(Mode::Read, 4096, 1);
        case.samples[0] = vec![sample(100.0, None), sample(50.0, None), sample(10.0, None)];
        case.samples[1] = vec![sample(50.0, Some(1.0)), sample(50.0, None), sample(9.0, None)];
        let (medians, ratio) = case.compared(|sample| Some(sample.iops));
        assert_eq!((medians, ratio.unwrap().median), ([Some(50.0), Some(50.0)], 0.9));
        assert_eq!(case.compared(|sample| sample.nodes_us_per_operation), ([None, Some(1.0)], None));
    }

    #[test]
    fn variants_take_turns_and_what_is_surely_worse_is_called_so() {
        let mut order = Vec::new();
        let run = |variant: usize, _: &Case, round: u32| {
            order.push(variant);
            let drift = f64::from(round);
            Ok::<_, Infallible>(sample([1000.0, 900.0][variant] / drift, Some([10.0, 9.0][variant] * drift)))
        };
        let cases = measure(6, |_| (), run).unwrap();
        assert_eq!(order[..14], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0]);
        let machine = Machine { cpu: None, cpus: None, memory_bytes: None, kernel: None };
        let variants = ["base", "this"].map(str::to_owned);
        let summary = Summary { machine, date: "today".into(), volume_bytes: 1 << 30, variants, cases };
        let text = summary.to_string();
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("randread 4KiB depth 64").ends_with("0.90   0.90 to 0.90  WORSE"), "{text}");
        assert!(line("nodes µs").ends_with("0.90   0.90 to 0.90  better"), "{text}");
        assert!(line("average µs").ends_with("unavailable              -"), "{text}");
    }
}
