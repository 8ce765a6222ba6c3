//! Whether figures rise or fall while they are measured.

use super::comparison::{median, theil_sen_slope};

/// How many standard deviations a sum of signs lies from what chance gives, at least, where a trend is sure (95 %).
const SURE: f64 = 1.96;
/// Fewer figures in all show no trend that could be told from chance.
const FIGURES_MIN: usize = 6;

/// A trend of several series, each of figures at equal distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// By how much of its median a series changes from its begin to its end, by the slope of Theil (1950) and Sen (1968) or by
    /// the medians of its first and last quarter, whichever is more; of all series the median.
    pub change: f64,
    /// How far the signs of all differences are from what chance gives, in standard deviations: the test of Mann (1945) and
    /// Kendall, summed over the series as by Hirsch, Slack and Smith, Water Resources Research 18 (1982).
    pub deviations: f64,
}

impl Trend {
    /// Of what the series have in common; `None` of too few figures.
    #[must_use]
    pub fn of(series: &[Vec<f64>]) -> Option<Trend> {
        let (mut signs, mut variance, mut count) = (0.0, 0.0, 0);
        let mut changes = Vec::new();
        for figures in series.iter().filter(|figures| figures.len() > 2) {
            let length = figures.len() as f64;
            count += figures.len();
            variance += length * (length - 1.0) * (2.0 * length + 5.0) / 18.0;
            for (number, earlier) in figures.iter().enumerate() {
                signs += figures[number + 1..].iter().map(|later| sign(later - earlier)).sum::<f64>();
            }
            let points: Vec<(f64, f64)> = (0..).map(f64::from).zip(figures.iter().copied()).collect();
            let typical = median(figures.clone()).filter(|typical| *typical > 0.0);
            let by_slope = theil_sen_slope(&points).map(|slope| slope * (length - 1.0));
            // A cliff leaves most slopes level: from the first quarter to the last it is seen.
            let quarter = figures.len().div_ceil(4);
            let ends =
                [&figures[..quarter], &figures[figures.len() - quarter..]].map(|end| median(end.to_vec()));
            let by_ends = ends[1].zip(ends[0]).map(|(last, first)| last - first);
            let change =
                by_slope.into_iter().chain(by_ends).max_by(|one, other| one.abs().total_cmp(&other.abs()));
            changes.extend(change.zip(typical).map(|(change, of)| change / of));
        }
        // One sign less, since they change in steps of two.
        let beyond = (signs.abs() - 1.0).max(0.0) * sign(signs);
        let deviations = if variance > 0.0 { beyond / variance.sqrt() } else { 0.0 };
        median(changes).filter(|_| count >= FIGURES_MIN).map(|change| Trend { change, deviations })
    }

    /// Whether it is none that chance makes in one of twenty cases.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.deviations.abs() > SURE
    }
}

fn sign(of: f64) -> f64 {
    match of {
        of if of > 0.0 => 1.0,
        of if of < 0.0 => -1.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::generator::Random;

    #[test]
    fn a_line_is_a_trend_and_its_slope_is_told() {
        let rising: Vec<f64> = (0..11).map(|at| 100.0 + f64::from(at)).collect();
        let trend = Trend::of(std::slice::from_ref(&rising)).unwrap();
        assert!(trend.is_sure() && (trend.change - 10.0 / 105.0).abs() < 1e-9, "{trend:?}");
        let falling: Vec<f64> = rising.into_iter().rev().collect();
        let trend = Trend::of(&[falling.clone(), falling]).unwrap();
        assert!(trend.is_sure() && (trend.change + 10.0 / 105.0).abs() < 1e-9, "{trend:?}");
    }

    #[test]
    fn a_cliff_is_a_trend() {
        let cliff = vec![vec![100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 20.0, 20.0]; 3];
        let trend = Trend::of(&cliff).unwrap();
        assert!(trend.is_sure() && trend.change < -0.75, "{trend:?}");
    }

    #[test]
    fn too_few_and_equal_figures_have_none() {
        assert_eq!(Trend::of(&[vec![1.0, 2.0, 3.0]]), None);
        assert_eq!(Trend::of(&[]), None);
        let trend = Trend::of(&[vec![5.0; 20]]).unwrap();
        assert!(!trend.is_sure() && trend.change == 0.0);
        assert_eq!(Trend::of(&[vec![0.0; 20]]), None, "of nothing no share can be told");
    }

    #[test]
    fn noise_is_called_a_trend_in_one_of_twenty_cases_at_most() {
        let mut random = Random::new(1);
        let mut called = 0;
        for _ in 0..2000 {
            let mut series = || (0..10).map(|_| 100.0 + 5.0 * random.normal()).collect::<Vec<f64>>();
            let all: Vec<Vec<f64>> = (0..6).map(|_| series()).collect();
            called += u32::from(Trend::of(&all).unwrap().is_sure());
        }
        assert!((40..=110).contains(&called), "{called} of 2000");
    }
}
