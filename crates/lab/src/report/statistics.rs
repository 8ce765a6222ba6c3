//! What several rounds say together.

use serde::{Deserialize, Serialize};

/// How sure it is that the median of ever more rounds would lie within an interval.
const CONFIDENCE: f64 = 0.95;

/// The median; of an even number the mean of the middle two. `None` of none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Quotients of a figure, one of each round, so that what drifts from round to round does not move them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Their median.
    pub median: f64,
    /// Where the median of ever more rounds lies with a confidence of 95 % at least, whatever the distribution: between two
    /// order statistics (the sign test's interval). Fewer than six rounds have none.
    pub interval: Option<[f64; 2]>,
}

/// What a ratio tells of a change that must not exceed a tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Surely more than the tolerance above 1.
    Above,
    /// Surely more than the tolerance below 1.
    Below,
    /// Neither can be said.
    NoDifferenceShown,
}

impl Ratio {
    /// Of the quotients of all rounds; `None` of none.
    #[must_use]
    pub fn of(mut quotients: Vec<f64>) -> Option<Ratio> {
        quotients.sort_by(f64::total_cmp);
        let interval = cut(quotients.len()).map(|cut| [quotients[cut], quotients[quotients.len() - 1 - cut]]);
        median(quotients).map(|median| Ratio { median, interval })
    }

    /// Whether it surely differs from 1 by more than `tolerance`.
    #[must_use]
    pub fn verdict(&self, tolerance: f64) -> Verdict {
        match self.interval {
            Some([low, _]) if low > 1.0 + tolerance => Verdict::Above,
            Some([_, high]) if high < 1.0 - tolerance => Verdict::Below,
            _ => Verdict::NoDifferenceShown,
        }
    }
}

/// How many of so many values may be left out at either end such that the median still lies among the rest for sure enough.
fn cut(count: usize) -> Option<usize> {
    // The chance that at most so many of `count` fair coins show heads, one more with each turn.
    let mut ways = 1.0;
    let mut below = 0.0;
    let mut found = None;
    for left_out in 0..count.div_ceil(2) {
        below += ways / 2f64.powi(count as i32);
        ways *= (count - left_out) as f64 / (left_out + 1) as f64;
        if 1.0 - 2.0 * below < CONFIDENCE {
            break;
        }
        found = Some(left_out);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // As tabulated: Conover, Practical Nonparametric Statistics, 3.4.
        for (count, expected) in
            [(0, None), (5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (12, Some(2)), (20, Some(5))]
        {
            assert_eq!(cut(count), expected, "{count}");
        }
        let ratio = Ratio::of(vec![1.1, 1.0, 1.3, 1.2, 0.9, 1.4]).unwrap();
        assert!((ratio.median - 1.15).abs() < 1e-9);
        assert_eq!(ratio.interval, Some([0.9, 1.4]));
    }

    #[test]
    fn a_difference_is_told_only_where_the_whole_interval_shows_it() {
        let verdict = |low, high| Ratio { median: 1.0, interval: Some([low, high]) }.verdict(0.02);
        assert_eq!(verdict(1.03, 1.2), Verdict::Above);
        assert_eq!(verdict(1.01, 1.2), Verdict::NoDifferenceShown);
        assert_eq!(verdict(0.8, 0.97), Verdict::Below);
        assert_eq!(Ratio { median: 3.0, interval: None }.verdict(0.02), Verdict::NoDifferenceShown);
    }
}
