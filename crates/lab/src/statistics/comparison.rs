//! Two subjects measured in turns: by how much a figure differs between them, and how surely.

use serde::{Deserialize, Serialize};

/// How sure it is, at least, that what ever more rounds would find lies within an interval.
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

/// How many times one subject's figure is another's, from rounds that measured both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The likeliest factor.
    pub estimate: f64,
    /// Where the factor that ever more rounds would find lies, with a confidence of 95 % at least. Fewer than
    /// six rounds have none.
    pub interval: Option<[f64; 2]>,
    /// How many rounds this comes from.
    pub rounds: usize,
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
    /// Of one quotient per round, the figure of one subject by that of the other. `None` of none, and where a
    /// quotient is not a positive number: to leave such a round out would flatter the subject that failed in
    /// it.
    ///
    /// The estimate is that of Hodges and Lehmann, taken of the logarithms: the median of the means of every
    /// two rounds and of each round with itself (Walsh averages). So B by A is one by A by B, and a wild
    /// round counts little. The interval goes from the c-th smallest to the c-th largest of these means: the
    /// factors that Wilcoxon's signed-rank test does not refute (Hollander, Wolfe and Chicken, Nonparametric
    /// Statistical Methods, 3rd edition, sections 3.1 to 3.3).
    ///
    /// Its confidence is that of [`coverage`], a little over 95 %, as c is a whole number and one more would
    /// be too many. Equal quotients stay in, and so do those that are 1, which the test would drop: the ends
    /// are means that exist, and a closed interval covers its centre more often with ties than without
    /// (Noether, Wilcoxon Confidence Intervals for Location Parameters in the Discrete Case, JASA 62, 1967).
    ///
    /// It assumes that a round's logarithm falls as likely so far above the centre as below, whatever the
    /// other rounds found. A fair coin that says for each round who is measured first makes this so for all
    /// that the machine does to both. With strict turns instead, what drifts slowly is taken for a difference
    /// a little more often (up to 6 % where the machine's noise is twice a subject's own); who is always
    /// first gains from a trend. No order helps against luck of one subject that stays from round to round
    /// (its memory, its place on a drive): where half of it is left in the next round, 14 % of comparisons by
    /// six rounds without a difference claim one, and 22 % by twelve. Make anew between rounds what can have
    /// such luck.
    ///
    /// Memory grows with the square of the rounds and time with their cube: milliseconds for some hundreds.
    #[must_use]
    pub fn of(quotients: Vec<f64>) -> Option<Ratio> {
        if !quotients.iter().all(|quotient| quotient.is_finite() && *quotient > 0.0) {
            return None;
        }
        let rounds = quotients.len();
        let means = walsh_averages(quotients.into_iter().map(f64::ln).collect());
        let interval = SignedRank::of(rounds)
            .map(|SignedRank { cut, .. }| [means[cut - 1], means[means.len() - cut]].map(f64::exp));
        Some(Ratio { estimate: median(means)?.exp(), interval, rounds })
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

/// The exact confidence, from 0 to 1, of the interval that [`Ratio::of`] makes of so many rounds without
/// ties; `None` where there are too few for one.
#[must_use]
pub fn coverage(rounds: usize) -> Option<f64> {
    SignedRank::of(rounds).map(|SignedRank { coverage, .. }| coverage)
}

/// By how much the second number of a point grows with each one of the first: the median of the slopes
/// between every two points (Theil 1950; Sen, Journal of the American Statistical Association 63, 1968). Up
/// to 29 % of wild points do not move it far. `None` where no two points differ in the first number, or where
/// a number is not finite.
///
/// Takes memory for half the square of the points.
#[must_use]
pub fn theil_sen_slope(points: &[(f64, f64)]) -> Option<f64> {
    if !points.iter().all(|(x, y)| x.is_finite() && y.is_finite()) {
        return None;
    }
    let mut slopes = Vec::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let others = points[..index].iter().filter(|(other_x, _)| other_x != x);
        slopes.extend(others.map(|(other_x, other_y)| (y - other_y) / (x - other_x)));
    }
    median(slopes)
}

/// The means of every two values and of each with itself, sorted.
fn walsh_averages(values: Vec<f64>) -> Vec<f64> {
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (index, value) in values.iter().enumerate() {
        means.extend(values[..=index].iter().map(|other| (value + other) / 2.0));
    }
    means.sort_by(f64::total_cmp);
    means
}

/// What the signed-rank test of so many values allows.
struct SignedRank {
    /// The interval goes from the `cut`-th smallest mean to the `cut`-th largest: one more than the greatest
    /// sum of ranks that is rare enough to refute.
    cut: usize,
    /// How often such an interval covers the centre.
    coverage: f64,
}

impl SignedRank {
    /// `None` where even the rarest outcome is too common to refute anything.
    fn of(values: usize) -> Option<SignedRank> {
        let mut below = 0.0;
        let mut found = None;
        for (sum, chance) in signed_rank_chances(values).into_iter().enumerate() {
            below += chance;
            let coverage = 1.0 - 2.0 * below;
            if coverage < CONFIDENCE {
                break;
            }
            found = Some(SignedRank { cut: sum + 1, coverage });
        }
        found
    }
}

/// How likely each sum of the ranks of positive values is, from zero up to the middle of all sums, where each
/// of so many values is as likely positive as negative: how many subsets of the ranks have this sum, by how
/// many there are.
fn signed_rank_chances(values: usize) -> Vec<f64> {
    let mut chances = vec![0.0; values * (values + 1) / 4 + 1];
    chances[0] = 1.0;
    // Half of each rank's outcomes add it to the sum. From above, so that no rank is added twice.
    for rank in 1..=values {
        for sum in (0..chances.len()).rev() {
            let without = chances[sum];
            let with = if sum < rank { 0.0 } else { chances[sum - rank] };
            chances[sum] = (without + with) / 2.0;
        }
    }
    chances
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::generator::Random;

    fn near(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() < 1e-9
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_signed_rank_distribution_is_that_of_all_signs_tried() {
        for values in 0..=12usize {
            let chances = signed_rank_chances(values);
            let mut counts = vec![0u32; values * (values + 1) / 2 + 1];
            for signs in 0..1u32 << values {
                counts[(0..values).filter(|bit| signs >> bit & 1 == 1).map(|bit| bit + 1).sum::<usize>()] +=
                    1;
            }
            for (sum, chance) in chances.iter().enumerate() {
                assert_eq!(*chance, f64::from(counts[sum]) / f64::from(1u32 << values), "{sum} of {values}");
            }
        }
    }

    #[test]
    fn the_critical_values_are_those_of_the_tables() {
        // The greatest sum that refutes on two sides at 5 %: Hollander, Wolfe and Chicken, table A.4;
        // Wilcoxon and Wilcox 1964.
        let tabulated = [
            (6, 0),
            (7, 2),
            (8, 3),
            (9, 5),
            (10, 8),
            (11, 10),
            (12, 13),
            (13, 17),
            (14, 21),
            (15, 25),
            (16, 29),
            (17, 34),
            (18, 40),
            (19, 46),
            (20, 52),
            (25, 89),
            (30, 137),
            (40, 264),
            (50, 434),
        ];
        for (rounds, critical) in tabulated {
            assert_eq!(SignedRank::of(rounds).unwrap().cut, critical + 1, "{rounds}");
        }
        for rounds in 0..6 {
            assert!(coverage(rounds).is_none(), "{rounds}");
        }
    }

    #[test]
    fn the_confidence_is_the_least_that_reaches_95_percent() {
        for (rounds, expected) in [(6, 62.0 / 64.0), (8, 246.0 / 256.0), (10, 974.0 / 1024.0)] {
            assert_eq!(coverage(rounds), Some(expected), "{rounds}");
        }
        for rounds in 6..100 {
            assert!((0.95..0.97).contains(&coverage(rounds).unwrap()), "{rounds}");
        }
        // The normal approximation is good to three digits by then.
        let rounds = 300f64;
        let deviation = (rounds * (rounds + 1.0) * (2.0 * rounds + 1.0) / 24.0).sqrt();
        let expected = rounds * (rounds + 1.0) / 4.0 - 1.959_964 * deviation;
        assert!((SignedRank::of(300).unwrap().cut as f64 / expected - 1.0).abs() < 1e-3);
    }

    #[test]
    fn six_rounds_span_their_least_and_greatest_quotient() {
        let ratio = Ratio::of(vec![1.1, 1.0, 1.3, 1.2, 0.9, 1.4]).unwrap();
        let [low, high] = ratio.interval.unwrap();
        assert!(near(low, 0.9) && near(high, 1.4) && ratio.rounds == 6, "{ratio:?}");
        let five = Ratio::of(vec![1.1, 1.0, 1.3, 1.2, 0.9]).unwrap();
        assert_eq!((five.interval, five.rounds), (None, 5));
    }

    #[test]
    fn estimate_and_interval_are_those_of_published_data() {
        // Hollander, Wolfe and Chicken, table 3.1 and examples 3.3 and 3.4: the Hamilton depression scale of
        // nine patients, which falls by 0.46, within [0.786, 0.01] at 96.1 %.
        let changes = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];
        let ratio = Ratio::of(changes.map(f64::exp).to_vec());
        let ratio = ratio.unwrap();
        let [low, high] = ratio.interval.unwrap().map(f64::ln);
        assert!(near(ratio.estimate.ln(), -0.46), "{ratio:?}");
        assert!(near(low, -0.786) && near(high, -0.01), "{low} {high}");
        assert!(near(coverage(9).unwrap(), 1.0 - 2.0 * 10.0 / 512.0));
    }

    #[test]
    fn the_ratio_of_swapped_subjects_is_the_reciprocal() {
        let quotients = [1.1, 0.97, 1.31, 1.24, 0.92, 1.42, 1.03];
        let [ratio, swapped] = [false, true].map(|swap| {
            Ratio::of(
                quotients.iter().map(|quotient| if swap { 1.0 / quotient } else { *quotient }).collect(),
            )
            .unwrap()
        });
        let ([low, high], [swapped_low, swapped_high]) = (ratio.interval.unwrap(), swapped.interval.unwrap());
        assert!(near(swapped.estimate * ratio.estimate, 1.0));
        assert!(near(low * swapped_high, 1.0) && near(high * swapped_low, 1.0));
    }

    #[test]
    fn a_round_gone_wild_moves_little() {
        let quotients = vec![1.04, 1.05, 1.06, 1.05, 1.04, 1.06, 1.05, 1.05, 1.05, 1.06, 1.04, 50.0];
        let ratio = Ratio::of(quotients).unwrap();
        assert!((ratio.estimate - 1.05).abs() < 0.01 && ratio.verdict(0.02) == Verdict::Above, "{ratio:?}");
    }

    #[test]
    fn equal_rounds_are_one_point() {
        let ratio = Ratio::of(vec![1.0; 12]).unwrap();
        assert_eq!(ratio, Ratio { estimate: 1.0, interval: Some([1.0, 1.0]), rounds: 12 });
        assert_eq!(ratio.verdict(0.0), Verdict::NoDifferenceShown);
    }

    #[test]
    fn quotients_that_say_nothing_have_no_ratio() {
        assert_eq!(Ratio::of(vec![]), None);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Ratio::of(vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn a_difference_is_told_only_where_the_whole_interval_shows_it() {
        let verdict =
            |low, high| Ratio { estimate: 1.0, interval: Some([low, high]), rounds: 6 }.verdict(0.02);
        assert_eq!(verdict(1.03, 1.2), Verdict::Above);
        assert_eq!(verdict(1.01, 1.2), Verdict::NoDifferenceShown);
        assert_eq!(verdict(0.8, 0.97), Verdict::Below);
        let alone = Ratio { estimate: 3.0, interval: None, rounds: 5 };
        assert_eq!(alone.verdict(0.02), Verdict::NoDifferenceShown);
    }

    #[test]
    fn a_slope_is_that_of_most_points() {
        assert_eq!(theil_sen_slope(&[]), None);
        assert_eq!(theil_sen_slope(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(theil_sen_slope(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0)]), None);
        // Sen 1968, section 6: the slope is 4.
        let sen =
            [(1.0, 9.0), (2.0, 15.0), (3.0, 19.0), (4.0, 20.0), (10.0, 45.0), (12.0, 55.0), (18.0, 78.0)];
        assert_eq!(theil_sen_slope(&sen), Some(4.0));
        let mut line: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), 3.0 - 0.5 * f64::from(x))).collect();
        line[19].1 = 1e9;
        line[3].1 = -1e9;
        assert_eq!(theil_sen_slope(&line), Some(-0.5));
    }

    /// Noise of a simulated comparison, in standard deviations of a figure's logarithm.
    #[derive(Clone, Copy)]
    struct Noise {
        /// Of each measurement on its own, so that a round's quotient has the square root of two times this.
        own: f64,
        /// Student's distribution with three degrees of freedom instead of the normal one.
        heavy_tails: bool,
        /// Of what is common to both subjects and changes from measurement to measurement, each the next
        /// one's by `drift_kept`: 1 is a random walk.
        drift: f64,
        drift_kept: f64,
        /// What the machine gains with every measurement.
        trend: f64,
        /// How much of a subject's own noise stays from round to round.
        own_kept: f64,
        /// A coin says who is first in a round, instead of turns.
        coin: bool,
    }

    const QUIET: Noise = Noise {
        own: 0.028,
        heavy_tails: false,
        drift: 0.0,
        drift_kept: 0.0,
        trend: 0.0,
        own_kept: 0.0,
        coin: true,
    };

    /// The quotients of so many rounds, the second subject's figure by the first's.
    fn simulate(random: &mut Random, noise: Noise, rounds: usize, factor: f64) -> Vec<f64> {
        let mut machine = 0.0;
        let mut measured = 0.0;
        let mut own = [0.0; 2];
        let mut quotient = |round: usize| {
            let mut figures = [0.0; 2];
            let first = if noise.coin { random.index(2) } else { round % 2 };
            for subject in [first, 1 - first] {
                machine = noise.drift_kept * machine + noise.drift * random.normal();
                measured += 1.0;
                let drawn = if noise.heavy_tails { random.heavy() } else { random.normal() };
                own[subject] = noise.own_kept * own[subject]
                    + noise.own * (1.0 - noise.own_kept * noise.own_kept).sqrt() * drawn;
                figures[subject] = machine + noise.trend * measured + own[subject];
            }
            (figures[1] - figures[0]).exp() * factor
        };
        (0..rounds).map(&mut quotient).collect()
    }

    /// The share of so many simulated comparisons that claim a difference.
    fn claims(noise: Noise, rounds: usize, factor: f64, simulations: u32) -> f64 {
        let mut random = Random::new(rounds as u64);
        let claimed = (0..simulations).filter(|_| {
            let ratio = Ratio::of(simulate(&mut random, noise, rounds, factor)).unwrap();
            ratio.verdict(0.0) != Verdict::NoDifferenceShown
        });
        claimed.count() as f64 / f64::from(simulations)
    }

    /// Reads a second of a file on the disk of a virtual machine of two processors, 64 at once for two seconds, by those of the
    /// same just before or after: 24 rounds of a plan with `control = true`.
    const RECORDED: [f64; 24] = [
        1.0396, 0.9941, 0.9971, 0.9877, 0.9900, 1.0027, 1.0016, 0.9485, 0.9998, 0.9900, 0.9257, 1.0415,
        1.0144, 1.0021, 1.0238, 1.0118, 1.0076, 1.0223, 1.0160, 0.9836, 0.9525, 1.0391, 1.0115, 0.9456,
    ];

    /// Kinds of noise that a comparison must not take for a difference.
    fn noises() -> [(&'static str, Noise); 6] {
        [
            ("log-normal", QUIET),
            ("heavy tails", Noise { heavy_tails: true, ..QUIET }),
            ("common drift", Noise { drift: 0.05, drift_kept: 1.0, ..QUIET }),
            ("common autocorrelated", Noise { drift: 0.05, drift_kept: 0.7, heavy_tails: true, ..QUIET }),
            ("common trend", Noise { trend: 0.03, ..QUIET }),
            (
                "trend and drift",
                Noise { trend: 0.01, drift: 0.05, drift_kept: 0.9, heavy_tails: true, ..QUIET },
            ),
        ]
    }

    #[test]
    fn no_noise_is_claimed_a_difference_more_often_than_promised() {
        for rounds in [6, 8, 12, 20] {
            for (name, noise) in noises() {
                // 5,000 simulations know a share of 5 % to within 0.31 % (one standard deviation).
                let claimed = claims(noise, rounds, 1.0, 5_000);
                let promised = 1.0 - coverage(rounds).unwrap();
                assert!(claimed <= promised + 0.0093, "{name}, {rounds} rounds: {claimed}");
                let claimed = claims(Noise { coin: false, ..noise }, rounds, 1.0, 5_000);
                assert!(claimed <= 0.07, "{name}, {rounds} rounds in strict turns: {claimed}");
            }
        }
    }

    #[test]
    fn the_confidence_is_used_up_where_noise_is_independent() {
        // An interval that is too wide keeps every promise and finds nothing.
        for rounds in [6, 8, 12, 20] {
            let claimed = claims(QUIET, rounds, 1.0, 5_000);
            assert!(
                (claimed - (1.0 - coverage(rounds).unwrap())).abs() < 0.0093,
                "{rounds} rounds: {claimed}"
            );
        }
    }

    #[test]
    fn five_percent_are_found_in_noise_of_four() {
        for (name, noise) in noises().into_iter().take(2) {
            let found = claims(noise, 12, 1.05, 2_000);
            assert!(found >= 0.8, "{name}: {found}");
        }
    }

    /// Of how many simulated comparisons of 12 rounds, whose noise is that of real ones, a difference is claimed.
    fn claims_of_recorded(recorded: &[f64], factor: f64) -> f64 {
        let mut random = Random::new(12);
        let simulations = 2_000;
        let claimed = (0..simulations).filter(|_| {
            let quotients = (0..12).map(|_| {
                let quotient = recorded[random.index(recorded.len())];
                // Which of the two was called the first was drawn.
                let quotient = if random.index(2) == 0 { quotient } else { 1.0 / quotient };
                quotient * factor
            });
            Ratio::of(quotients.collect()).unwrap().verdict(0.0) != Verdict::NoDifferenceShown
        });
        claimed.count() as f64 / f64::from(simulations)
    }

    #[test]
    fn five_percent_are_found_in_the_noise_of_a_real_machine() {
        let none = claims_of_recorded(&RECORDED, 1.0);
        assert!(none <= 0.05, "{none}");
        let some = claims_of_recorded(&RECORDED, 1.05);
        assert!(some >= 0.8, "{some}");
    }

    #[test]
    #[ignore = "prints a table"]
    fn tabulate() {
        for rounds in [6, 8, 12, 20] {
            println!("{rounds} rounds, promised {:.4}", 1.0 - coverage(rounds).unwrap());
            for (name, noise) in noises() {
                let [none, some] = [1.0, 1.05].map(|factor| claims(noise, rounds, factor, 20_000));
                println!("  {name:25} {none:.4} {some:.3}");
                let noise = Noise { coin: false, ..noise };
                let [none, some] = [1.0, 1.05].map(|factor| claims(noise, rounds, factor, 20_000));
                println!("  {name:20} turns {none:.4} {some:.3}");
            }
            for own in [0.028, 0.04] {
                let found = claims(Noise { own, ..QUIET }, rounds, 1.05, 20_000);
                println!("  quotients vary by {:.3}: 5 % found in {found:.3}", own * 2f64.sqrt());
            }
            for own_kept in [0.3, 0.5, 0.7] {
                let [none, some] =
                    [1.0, 1.05].map(|factor| claims(Noise { own_kept, ..QUIET }, rounds, factor, 20_000));
                println!("  own noise kept by {own_kept}      {none:.4} {some:.3}");
            }
        }
    }
}
