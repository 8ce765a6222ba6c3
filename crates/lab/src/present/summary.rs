//! The figures of all samples, brought down to those that are told: of each point and figure what every subject has, and how many
//! times the first one's that is.

use crate::archive::{FIGURES, Figure, Outcome, Sample, quantile_us};
use crate::statistics::{Ratio, Resampling, Verdict, median, quantile_ratio};

/// What may differ without being called a difference.
pub(super) const TOLERANCE: f64 = 0.02;

/// Of operations this large it is told how many bytes a second they are.
const LARGE_BLOCK_BYTES: u64 = 64 << 10;

/// One figure in one point.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which point, by number.
    pub point: usize,
    /// Which figure.
    pub figure: &'static Figure,
    /// What each subject has: the median over the rounds, or the quantile of all latencies together.
    pub values: Vec<Option<f64>>,
    /// How many times that of the subject it is compared with, if there is one.
    pub ratios: Vec<Option<Ratio>>,
    /// The second of two of the same by the first.
    pub control: Option<Ratio>,
}

/// One figure in one point by the same subject's in the outcome's baseline.
#[derive(Clone, Debug)]
pub(super) struct BaselineRow {
    pub(super) point: usize,
    pub(super) figure: &'static Figure,
    /// Of each subject.
    pub(super) ratios: Vec<Option<Ratio>>,
}

/// The figures that are told by a baseline.
const BY_BASELINE: [&str; 4] = ["iops", "mean_us", "p99_us", "machine_us"];

/// All rows.
#[derive(Clone, Debug)]
pub struct Summary {
    /// By point, and by figure within.
    pub rows: Vec<Row>,
    /// The same, of an outcome that has a baseline.
    pub(super) by_baseline: Vec<BaselineRow>,
}

/// What is said of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Surely better than the first.
    Better,
    /// Surely worse.
    Worse,
    /// Neither is sure.
    NoDifferenceShown,
}

impl Row {
    /// What is said of a ratio in this row.
    #[must_use]
    pub fn said(&self, ratio: &Ratio) -> Said {
        match ratio.verdict(TOLERANCE) {
            Verdict::NoDifferenceShown => Said::NoDifferenceShown,
            verdict if (verdict == Verdict::Above) == self.figure.more_is_better => Said::Better,
            _ => Said::Worse,
        }
    }
}

impl Summary {
    /// Of the figures that are known of any subject.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Summary {
        let mut rows = Vec::new();
        for point in 0..outcome.points.len() {
            for figure in FIGURES.iter().filter(|figure| is_told(outcome, point, figure)) {
                let value = |subject| value_of(outcome, point, subject, figure);
                let values: Vec<Option<f64>> = (0..outcome.subjects.len()).map(value).collect();
                if values.iter().all(Option::is_none) {
                    continue;
                }
                let ratio = |subject| {
                    let base = outcome.base_of(subject)?;
                    ratio_between(outcome, (point, base), (point, subject, false), figure)
                };
                let ratios = (0..outcome.subjects.len()).map(ratio).collect();
                let control = || ratio_between(outcome, (point, 0), (point, 0, true), figure);
                let control = outcome.control.then(control).flatten();
                rows.push(Row { point, figure, values, ratios, control });
            }
        }
        Summary { rows, by_baseline: by_baseline(outcome) }
    }

    /// A figure by its name.
    #[must_use]
    pub fn value(&self, point: usize, subject: usize, figure: &str) -> Option<f64> {
        self.of_point(point).find(|row| row.figure.name == figure)?.values[subject]
    }

    /// The rows of a point.
    pub fn of_point(&self, point: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.point == point)
    }
}

/// Whether a figure says something in a point that others do not.
fn is_told(outcome: &Outcome, point: usize, figure: &Figure) -> bool {
    let job = &outcome.points[point].job;
    match figure.name {
        "mib_per_second" => outcome.points[point].run.is_none() && job.block.0 >= LARGE_BLOCK_BYTES,
        // Where it is CPU time by clock it says nothing that is not said already.
        "cycles" => is_published(outcome, figure) || outcome.samples.iter().any(is_counted),
        "iops_per_core" => is_published(outcome, figure),
        "read_iops" | "write_iops" | "read_p99_us" | "write_p99_us" | "read_p99_9_us" | "write_p99_9_us" => {
            !matches!(job.read_percent(), 0 | 100)
        }
        _ => true,
    }
}

fn is_published(outcome: &Outcome, figure: &Figure) -> bool {
    outcome.published.iter().any(|published| published.figure == figure.name)
}

/// Whether cycles were counted, and are not CPU time by clock.
fn is_counted(sample: &Sample) -> bool {
    sample.cycles.is_some_and(|cycles| !cycles.is_estimated)
}

/// What a subject has of a figure in a point, of all rounds.
#[must_use]
pub fn value_of(outcome: &Outcome, point: usize, subject: usize, figure: &Figure) -> Option<f64> {
    let samples = outcome.samples_of(point, subject, false);
    match figure.quantile {
        None => median(samples.filter_map(|sample| (figure.of)(sample)).collect()),
        Some(quantile) => quantile_us(&samples.collect::<Vec<_>>(), quantile),
    }
}

/// Each point but the baseline, by that.
fn by_baseline(outcome: &Outcome) -> Vec<BaselineRow> {
    let Some(baseline) = outcome.baseline else { return Vec::new() };
    let points = (0..outcome.points.len()).filter(|point| *point != baseline);
    let rows = points.flat_map(|point| {
        FIGURES.iter().filter(|figure| BY_BASELINE.contains(&figure.name)).map(move |figure| {
            let ratio =
                |subject| ratio_between(outcome, (baseline, subject), (point, subject, false), figure);
            BaselineRow { point, figure, ratios: (0..outcome.subjects.len()).map(ratio).collect() }
        })
    });
    rows.filter(|row| row.ratios.iter().any(Option::is_some)).collect()
}

/// A figure of a subject in a point by that of another, of the rounds that have both. The last says whether it is the second of
/// two of the same.
fn ratio_between(
    outcome: &Outcome,
    first: (usize, usize),
    other: (usize, usize, bool),
    figure: &Figure,
) -> Option<Ratio> {
    let pairs: Vec<(&Sample, &Sample)> = outcome
        .samples_of(other.0, other.1, other.2)
        .filter_map(|sample| {
            let first =
                outcome.samples_of(first.0, first.1, false).find(|first| first.round == sample.round)?;
            Some((first, sample))
        })
        .collect();
    match figure.quantile {
        None => {
            // A round that lacks it would be missed by one of the two: then nothing is said.
            let quotients =
                pairs.iter().map(|(first, sample)| Some((figure.of)(sample)? / (figure.of)(first)?));
            Ratio::of(quotients.collect::<Option<Vec<f64>>>()?)
        }
        Some(quantile) => {
            let (first, other): (Vec<_>, Vec<_>) =
                pairs.iter().map(|(first, sample)| (first.seconds(), sample.seconds())).unzip();
            quantile_ratio([&first, &other], quantile, &Resampling::default())
        }
    }
}
