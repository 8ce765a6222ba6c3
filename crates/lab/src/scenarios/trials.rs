//! The one model of a run: each kind of job on each subject in every round gives a sample, and what is told is a function of
//! the samples.
//!
//! Machines drift, and only figures of the same minutes compare: subjects are measured in turns, and a ratio is computed within
//! its round.

use crate::engine::plan::{Job, Mode, TargetName};
use crate::statistics::{Ratio, median};
use crate::testbed::jobs::Sample;
use base::units::ByteSize;
use serde::Serialize;
use std::time::Duration;

/// How long a job runs before it counts.
const RAMP: Duration = Duration::from_secs(1);
/// Of the mixed jobs, as in the 10K challenge.
const MIX_READ_PERCENT: u8 = 75;

/// One figure of a sample, if it could be measured.
pub type Figure = fn(&Sample) -> Option<f64>;

/// The figures of a sample by what heads their column, and whether more of it is better.
pub const FIGURES: [(&str, Figure, bool); 7] = [
    ("IOPS", |sample| Some(sample.iops), true),
    ("average µs", |sample| sample.mean_us, false),
    ("p99 µs", |sample| sample.slower(|latency| latency.p99_us), false),
    ("p99.9 µs", |sample| sample.slower(|latency| latency.p99_9_us), false),
    ("machine µs", |sample| sample.machine_us_per_operation, false),
    ("client µs", |sample| sample.client_us_per_operation, false),
    ("nodes µs", |sample| sample.nodes_us_per_operation, false),
];

/// A kind of job, and what each subject made of it.
#[derive(Debug, Serialize)]
pub struct Trial {
    #[serde(with = "crate::engine::plan::as_text")]
    mode: Mode,
    block: ByteSize,
    depth: u32,
    /// By subject and round.
    pub samples: Vec<Vec<Sample>>,
}

impl Trial {
    /// None was measured yet.
    pub fn new(mode: Mode, block_bytes: u64, depth: u32, subjects: usize) -> Trial {
        Trial { mode, block: ByteSize(block_bytes), depth, samples: vec![Vec::new(); subjects] }
    }

    /// What it is called.
    pub fn name(&self) -> String {
        format!("{} {} depth {}", self.mode, self.block, self.depth)
    }

    /// Its job.
    pub fn job(&self, target: TargetName, runtime: Duration, round: u32) -> Job {
        Job {
            block: self.block,
            depth: self.depth,
            mix_read_percent: MIX_READ_PERCENT,
            seed: u64::from(round),
            runtime: Some(runtime),
            ramp: RAMP,
            ..Job::new(target, self.mode)
        }
    }

    /// The median over the rounds of a subject's figure, of those rounds that have it.
    pub fn median(&self, subject: usize, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.samples[subject].iter().filter_map(figure).collect())
    }

    /// A figure of one subject as a multiple of another's.
    pub fn ratio(&self, of: usize, by: usize, figure: Figure) -> Option<Ratio> {
        self.ratio_of(of, by, |sample, _| figure(sample), figure)
    }

    /// A figure of one subject, which may take the other's sample of the same round to tell, as a multiple of `divisor` of that one.
    pub fn ratio_of(
        &self,
        of: usize,
        by: usize,
        figure: impl Fn(&Sample, &Sample) -> Option<f64>,
        divisor: Figure,
    ) -> Option<Ratio> {
        Ratio::of(self.by_round(of, by, |sample, other| {
            Some(figure(sample, other)? / divisor(other).filter(|figure| *figure > 0.0)?)
        }))
    }

    /// What comes of a subject's sample and another's of the same round, of those rounds that have it.
    pub fn by_round(
        &self,
        of: usize,
        other: usize,
        figure: impl Fn(&Sample, &Sample) -> Option<f64>,
    ) -> Vec<f64> {
        let rounds = self.samples[of].iter().zip(&self.samples[other]);
        rounds.filter_map(|(sample, other)| figure(sample, other)).collect()
    }
}

/// Measures every trial on each of its subjects, in every round. `run` runs its job on one.
pub fn measure(
    rounds: u32,
    subjects: &[&str],
    trials: &mut [Trial],
    mut run: impl FnMut(usize, &Trial, u32) -> anyhow::Result<Sample>,
) -> anyhow::Result<()> {
    for round in 1..=rounds {
        for trial in &mut *trials {
            let count = trial.samples.len();
            for turn in 0..count {
                // Whoever comes first finds the machine in another state than who comes last: take turns.
                let subject = (turn + round as usize - 1) % count;
                super::say(&format!("round {round} of {rounds}: {} on {}", trial.name(), subjects[subject]));
                let sample = run(subject, trial, round)?;
                trial.samples[subject].push(sample);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Trials of a machine that gets slower round by round, for every subject: one has half the rate of the one before.
    pub(crate) fn drifting(rounds: u32, mut trials: Vec<Trial>) -> Vec<Trial> {
        let subjects = ["one", "two", "three"];
        let run = |subject: usize, _: &Trial, round: u32| {
            let cost = f64::from(round) * f64::from(1 << subject);
            Ok(Sample {
                iops: 300_000.0 / cost,
                mean_us: Some(40.0 * cost),
                machine_us_per_operation: Some(6.0 * cost),
                ..Sample::default()
            })
        };
        measure(rounds, &subjects, &mut trials, run).unwrap();
        trials
    }

    #[test]
    fn subjects_take_turns() {
        let mut order = Vec::new();
        let mut trials = [Trial::new(Mode::Read, 4096, 1, 2), Trial::new(Mode::Write, 4096, 1, 3)];
        let run = |subject, _: &Trial, round| {
            order.push((round, subject));
            Ok(Sample::default())
        };
        measure(2, &["one", "two", "three"], &mut trials, run).unwrap();
        let first = [(1, 0), (1, 1), (1, 0), (1, 1), (1, 2)];
        let second = [(2, 1), (2, 0), (2, 1), (2, 2), (2, 0)];
        assert_eq!(order, [first, second].concat());
        assert_eq!(trials[1].samples.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2]);
    }

    #[test]
    fn ratios_are_those_of_each_round_so_that_drift_and_one_bad_round_do_not_move_them() {
        let mut trials = drifting(7, vec![Trial::new(Mode::Read, 4096, 64, 2)]);
        trials[0].samples[1][1].machine_us_per_operation = Some(900.0);
        let ratio = |figure| trials[0].ratio(1, 0, figure).map(|ratio| ratio.estimate);
        assert_eq!(ratio(|sample| sample.machine_us_per_operation), Some(2.0));
        assert_eq!(ratio(|sample| Some(sample.iops)), Some(0.5));
        assert_eq!(trials[0].median(0, |sample| sample.mean_us), Some(160.0));
    }

    #[test]
    fn an_unknown_figure_makes_its_ratio_unknown_and_not_zero() {
        let mut trials = drifting(1, vec![Trial::new(Mode::Read, 4096, 64, 2)]);
        trials[0].samples[0][0].machine_us_per_operation = None;
        assert_eq!(trials[0].ratio(1, 0, |sample| sample.machine_us_per_operation), None);
        assert_eq!(trials[0].median(0, |sample| sample.machine_us_per_operation), None);
        assert_eq!(trials[0].ratio(1, 0, |sample| sample.mean_us).map(|ratio| ratio.estimate), Some(2.0));
    }

    #[test]
    fn a_trial_is_the_same_job_on_every_target() {
        let trial = Trial::new(Mode::RandomReadWrite, 4096, 64, 2);
        let raw = trial.job(TargetName::Raw("/dev/loop0".into()), Duration::from_secs(8), 5);
        let volume = trial.job(TargetName::Volume("bench".into()), Duration::from_secs(8), 5);
        assert_eq!(Job { target: volume.target.clone(), ..raw.clone() }, volume);
        assert_eq!((raw.depth, raw.read_percent(), raw.mode, raw.seed), (64, 75, Mode::RandomReadWrite, 5));
    }
}
