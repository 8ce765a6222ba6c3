//! The tail of latencies: a high quantile of all rounds together, and how sure it is.
//!
//! Latencies come as one histogram per second. A quantile is always read from merged histograms; quantiles
//! are never averaged. How sure it is cannot be told from the number of operations, as slow ones come
//! together, in a bad second or in a bad round. So it is told by a bootstrap of two levels: rounds are drawn
//! with replacement, for both subjects the same, and of each drawn round blocks of consecutive seconds, for
//! each subject its own. (Davison and Hinkley, Bootstrap Methods and their Application, section 3.8, on
//! levels; Künsch, Annals of Statistics 17, 1989, on blocks; Politis and Romano, A Circular Block-Resampling
//! Procedure, 1992, on blocks that go on with the first second after the last.) The interval leaves out a
//! share of what is found at either end.
//!
//! That share is smaller than 2.5 %, as the bootstrap of few rounds is too narrow: of 500 simulated
//! comparisons by six rounds without a difference, the plain interval took up to 16 % for one, this one 0 to
//! 5 %. It is the careful choice: within a round, chance counts twice, once by the choice of rounds. Blocks
//! as long as a round count it once; with them 2 to 7 % of comparisons claim a difference where there is
//! none, and a p99.9 that is 20 % longer is found in 90 % instead of 70 % of comparisons by twelve quiet
//! rounds. Where single rounds go wild by a multiple, about 6 % claim a difference also with short blocks.
//!
//! A closed loop hides a stall: of 10,000 operations per second at depth 16, just 16 meet one of 200 ms. Once
//! a second, that is p99.9; once in ten seconds, only p99.99.

use super::comparison::Ratio;
use crate::engine::generator::Random;
use crate::engine::histogram::Buckets;

/// Fewer rounds than this have no interval.
const ROUNDS_MIN: usize = 6;
/// Where fewer operations than this are to be expected beyond a quantile in all rounds, it says nothing.
const OPERATIONS_BEYOND_MIN: f64 = 10.0;

/// How the interval of a quantile is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Resampling {
    /// How often rounds are drawn. Of six rounds, 0.24 % of the draws lie beyond either end: of 4,000 about
    /// ten.
    pub resamples: usize,
    /// How many consecutive seconds are drawn together. A round that is no longer is drawn as a whole.
    pub block_seconds: usize,
    /// What determines all draws.
    pub seed: u64,
}

impl Default for Resampling {
    fn default() -> Resampling {
        Resampling { resamples: 4000, block_seconds: 3, seed: 1 }
    }
}

/// A quantile of one subject's latencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantile {
    /// That of all rounds merged, in nanoseconds.
    pub estimate_ns: u64,
    /// Where that of ever more rounds lies, in nanoseconds. Fewer than six rounds have none. Its confidence
    /// is 99 % where all rounds are alike, and 87 to 92 % where they differ by a third: then what is missed
    /// lies above, in bad rounds that were not met. A ratio of two subjects does not miss what both met.
    pub interval_ns: Option<[u64; 2]>,
    /// How many rounds this comes from.
    pub rounds: usize,
}

/// The least latency, in nanoseconds, that a share of `quantile` (0 to 1) of all operations does not exceed.
/// `None` of no operations.
#[must_use]
pub fn quantile_of<'a>(seconds: impl IntoIterator<Item = &'a Buckets>, quantile: f64) -> Option<u64> {
    let mut counts: Vec<(u64, u64)> =
        seconds.into_iter().flat_map(|buckets| buckets.counts.iter().copied()).collect();
    counts.sort_unstable();
    let rank = rank(counts.iter().map(|(_, count)| count).sum(), quantile)?;
    let mut reached = 0;
    counts.into_iter().find_map(|(value_ns, count)| {
        reached += count;
        (reached >= rank).then_some(value_ns)
    })
}

/// A quantile (0 to 1) of one subject, which has one histogram per second for each round.
///
/// `None` where fewer than ten operations are to be expected beyond it in all rounds, and where a round has
/// no operation at all.
#[must_use]
pub fn quantile_interval(
    rounds: &[Vec<Buckets>],
    quantile: f64,
    resampling: &Resampling,
) -> Option<Quantile> {
    let tail = Tail::of(rounds, quantile)?;
    let interval_ns = interval(rounds.len(), resampling, |random, chosen| {
        tail.draw(random, chosen, resampling.block_seconds).map(|value_ns| value_ns as f64)
    });
    let interval_ns = interval_ns.map(|ends| ends.map(|end_ns| end_ns as u64));
    Some(Quantile { estimate_ns: tail.quantile_of_all()?, interval_ns, rounds: rounds.len() })
}

/// A quantile (0 to 1) of the second subject as a multiple of that of the first. The same round of both was
/// measured at about the same time; both have equally many rounds.
///
/// The interval covers the factor that ever more rounds would find with a confidence of about 95 % at least,
/// which was measured and not proven; see above. `None` where [`quantile_interval`] of either subject is.
#[must_use]
pub fn quantile_ratio(
    subjects: [&[Vec<Buckets>]; 2],
    quantile: f64,
    resampling: &Resampling,
) -> Option<Ratio> {
    let rounds = subjects[0].len();
    assert_eq!(rounds, subjects[1].len(), "every round measures both subjects");
    let [first, second] = [Tail::of(subjects[0], quantile)?, Tail::of(subjects[1], quantile)?];
    let interval = interval(rounds, resampling, |random, chosen| {
        let divisor_ns = first.draw(random, chosen, resampling.block_seconds)?;
        let dividend_ns = second.draw(random, chosen, resampling.block_seconds)?;
        Some(quotient(dividend_ns, divisor_ns))
    });
    let estimate = quotient(second.quantile_of_all()?, first.quantile_of_all()?);
    Some(Ratio { estimate, interval, rounds })
}

/// How many times one latency is another; less than a nanosecond counts as one.
fn quotient(dividend_ns: u64, divisor_ns: u64) -> f64 {
    dividend_ns.max(1) as f64 / divisor_ns.max(1) as f64
}

/// Which of so many operations, the fastest first and counted from one, has the quantile. `None` of none.
fn rank(operations: u64, quantile: f64) -> Option<u64> {
    // In binary, 7 % of 100 are a little more than 7, which would find the eighth.
    let rank = (operations as f64 * quantile * (1.0 - 1e-12)).ceil() as u64;
    (operations > 0).then(|| rank.clamp(1, operations))
}

/// What `draw` finds for rounds drawn with replacement, without the share at either end that an interval
/// leaves out. `None` of too few rounds.
fn interval(
    rounds: usize,
    resampling: &Resampling,
    mut draw: impl FnMut(&mut Random, &[usize]) -> Option<f64>,
) -> Option<[f64; 2]> {
    if rounds < ROUNDS_MIN {
        return None;
    }
    let mut random = Random::new(resampling.seed);
    let mut chosen = vec![0; rounds];
    let mut found = Vec::with_capacity(resampling.resamples);
    for _ in 0..resampling.resamples {
        chosen.fill_with(|| random.index(rounds));
        found.extend(draw(&mut random, &chosen));
    }
    found.sort_by(f64::total_cmp);
    let left_out = (share_beyond(rounds) * found.len() as f64) as usize;
    Some([*found.get(left_out)?, *found.get(found.len() - 1 - left_out)?])
}

/// Which share of all draws lies beyond either end of an interval of so many rounds.
///
/// It makes up for two things that a bootstrap of few rounds does not know: that rounds vary more around what
/// ever more would find than around their own mean, and Student's distribution (Hesterberg, What Teachers
/// Should Know About the Bootstrap, arXiv 1411.5279, on the expanded percentile interval).
fn share_beyond(rounds: usize) -> f64 {
    let rounds = rounds as f64;
    normal_below(-student_quantile(rounds - 1.0) * (rounds / (rounds - 1.0)).sqrt())
}

/// How far from its mean a value of Student's distribution lies with a chance of 5 %: Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 26.7.5. Good to three digits from five degrees of freedom on.
fn student_quantile(freedom: f64) -> f64 {
    let normal: f64 = 1.959_963_985;
    let [z3, z5, z7, z9] = [3, 5, 7, 9].map(|power| normal.powi(power));
    normal
        + (z3 + normal) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * normal) / (96.0 * freedom.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * normal) / (384.0 * freedom.powi(3))
        + (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * normal) / (92_160.0 * freedom.powi(4))
}

/// How likely a value of the normal distribution lies below `value`, which is negative: Abramowitz and
/// Stegun, 26.2.17; good to 7.5e-8.
fn normal_below(value: f64) -> f64 {
    let t = 1.0 / (1.0 - 0.231_641_9 * value);
    let polynomial = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530]
        .iter()
        .fold(0.0, |sum, factor| sum * t + factor)
        * t;
    (-value * value / 2.0).exp() / std::f64::consts::TAU.sqrt() * polynomial
}

/// One subject's operations, such that a quantile of any choice of seconds is found quickly.
struct Tail {
    quantile: f64,
    /// The latencies that the quantile can be, sorted.
    values_ns: Vec<u64>,
    /// For each of these values, how many operations of each second took longer.
    beyond: Vec<u64>,
    /// The operations of each second.
    totals: Vec<u64>,
    /// The seconds of each round.
    rounds: Vec<std::ops::Range<usize>>,
}

impl Tail {
    /// `None` where the quantile says nothing.
    fn of(rounds: &[Vec<Buckets>], quantile: f64) -> Option<Tail> {
        let seconds: Vec<&Buckets> = rounds.iter().flatten().collect();
        let totals: Vec<u64> = seconds.iter().map(|buckets| buckets.count()).collect();
        if rounds.iter().any(|round| round.iter().all(|buckets| buckets.count() == 0)) {
            return None;
        }
        let expected = totals.iter().sum::<u64>() as f64 * (1.0 - quantile);
        if expected < OPERATIONS_BEYOND_MIN - 1e-6 {
            return None;
        }
        // A merged quantile lies between those of the parts.
        let quantiles = || seconds.iter().filter_map(|buckets| quantile_of([*buckets], quantile));
        let possible = quantiles().min()?..=quantiles().max()?;
        let values = seconds.iter().flat_map(|buckets| buckets.counts.iter().map(|(value_ns, _)| *value_ns));
        let mut values_ns: Vec<u64> = values.filter(|value_ns| possible.contains(value_ns)).collect();
        values_ns.sort_unstable();
        values_ns.dedup();
        let mut beyond = vec![0; values_ns.len() * seconds.len()];
        for (second, buckets) in seconds.iter().enumerate() {
            let mut counts = buckets.counts.clone();
            counts.sort_unstable();
            let mut slower = 0;
            for (index, value_ns) in values_ns.iter().enumerate().rev() {
                while let Some((_, count)) = counts.pop_if(|(slower_ns, _)| *slower_ns > *value_ns) {
                    slower += count;
                }
                beyond[index * seconds.len() + second] = slower;
            }
        }
        let mut end = 0;
        let rounds = rounds.iter().map(|round| {
            let start = end;
            end += round.len();
            start..end
        });
        let rounds = rounds.collect();
        Some(Tail { quantile, values_ns, beyond, totals, rounds })
    }

    /// The quantile of all seconds, each taken once.
    fn quantile_of_all(&self) -> Option<u64> {
        self.quantile(&vec![1; self.totals.len()])
    }

    /// The quantile of all seconds together, each as often as `times` says. `None` of no operations.
    fn quantile(&self, times: &[u64]) -> Option<u64> {
        let weighted =
            |counts: &[u64]| counts.iter().zip(times).map(|(count, times)| count * times).sum::<u64>();
        let operations = weighted(&self.totals);
        let beyond_max = operations - rank(operations, self.quantile)?;
        let (mut low, mut high) = (0, self.values_ns.len() - 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if weighted(&self.beyond[middle * times.len()..][..times.len()]) > beyond_max {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(self.values_ns[low])
    }

    /// How often each second is drawn for the chosen rounds: of each round as many as it has, in blocks that
    /// go on with its first second after its last.
    fn seconds(&self, random: &mut Random, chosen: &[usize], block_seconds: usize) -> Vec<u64> {
        let mut times = vec![0; self.totals.len()];
        for round in chosen {
            let seconds = &mut times[self.rounds[*round].clone()];
            let mut missing = seconds.len();
            while missing > 0 {
                let start = random.index(seconds.len());
                let block = block_seconds.clamp(1, missing);
                for offset in 0..block {
                    seconds[(start + offset) % seconds.len()] += 1;
                }
                missing -= block;
            }
        }
        times
    }

    /// The quantile of what is drawn for the chosen rounds.
    fn draw(&self, random: &mut Random, chosen: &[usize], block_seconds: usize) -> Option<u64> {
        self.quantile(&self.seconds(random, chosen, block_seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::super::comparison::Verdict;
    use super::*;

    /// Three digits of a latency, as histograms keep them.
    fn bucket(value_ns: u64) -> u64 {
        let dropped = value_ns.max(1).ilog2().saturating_sub(10);
        value_ns >> dropped << dropped
    }

    fn with(counts: Vec<(u64, u64)>) -> Buckets {
        Buckets { counts, ..Buckets::default() }
    }

    fn buckets(latencies_ns: impl IntoIterator<Item = u64>) -> Buckets {
        let mut values: Vec<u64> = latencies_ns.into_iter().map(bucket).collect();
        values.sort_unstable();
        let equal = values.chunk_by(|left, right| left == right);
        with(equal.map(|equal| (equal[0], equal.len() as u64)).collect())
    }

    fn draws(resamples: usize, seed: u64) -> Resampling {
        Resampling { resamples, seed, ..Resampling::default() }
    }

    #[test]
    fn a_quantile_is_that_of_all_operations_and_not_an_average() {
        let quick = with(vec![(100, 99_000)]);
        let slow = with(vec![(10_000, 1_000)]);
        assert_eq!(quantile_of([&quick, &slow], 0.99), Some(100));
        assert_eq!(quantile_of([&quick, &slow], 0.999), Some(10_000));
        assert_eq!(quantile_of([&slow, &quick], 0.5), Some(100));
        let rounds: Vec<Vec<Buckets>> = (0..6).map(|_| vec![quick.clone(), slow.clone()]).collect();
        let found = quantile_interval(&rounds, 0.99, &draws(100, 1)).unwrap();
        assert_eq!(found.estimate_ns, 100, "an average would be 5,050");
    }

    #[test]
    fn a_quantile_is_the_least_latency_that_the_share_does_not_exceed() {
        let thousand = with((1..=1000).map(|value_ns| (value_ns, 1)).collect());
        for (quantile, expected) in [
            (0.0, 1),
            (0.001, 1),
            (0.0011, 2),
            (0.5, 500),
            (0.99, 990),
            (0.999, 999),
            (0.9991, 1000),
            (1.0, 1000),
        ] {
            assert_eq!(quantile_of([&thousand], quantile), Some(expected), "{quantile}");
        }
        let hundred = with(thousand.counts[..100].to_vec());
        assert_eq!(quantile_of([&hundred], 0.07), Some(7));
        assert_eq!(quantile_of([], 0.5), None);
        assert_eq!(quantile_of([&Buckets::default()], 0.5), None);
    }

    #[test]
    fn a_choice_of_seconds_has_the_quantile_of_their_merged_histograms() {
        let mut random = Random::new(3);
        for _ in 0..200 {
            let rounds: Vec<Vec<Buckets>> = (0..3)
                .map(|_| {
                    let second = |random: &mut Random| {
                        let (count, spread) = (random.index(40), 1 + random.index(50));
                        buckets((0..count).map(|_| 1 + random.index(spread) as u64))
                    };
                    (0..1 + random.index(4)).map(|_| second(&mut random)).collect()
                })
                .collect();
            let quantile = [0.5, 0.9][random.index(2)];
            let Some(tail) = Tail::of(&rounds, quantile) else { continue };
            for _ in 0..20 {
                let times: Vec<u64> = tail.totals.iter().map(|_| random.index(4) as u64).collect();
                let seconds = rounds.iter().flatten().zip(&times);
                let repeated = seconds.flat_map(|(buckets, times)| (0..*times).map(move |_| buckets));
                assert_eq!(tail.quantile(&times), quantile_of(repeated, quantile));
            }
        }
    }

    #[test]
    fn a_draw_takes_as_many_seconds_as_the_chosen_rounds_have_and_blocks_stay_together() {
        let rounds = vec![vec![with(vec![(5, 100)]); 10], vec![with(vec![(7, 100)]); 4]];
        let tail = Tail::of(&rounds, 0.5).unwrap();
        let mut random = Random::new(1);
        for _ in 0..100 {
            let times = tail.seconds(&mut random, &[0, 0, 1], 3);
            assert_eq!((times[..10].iter().sum(), times[10..].iter().sum()), (20u64, 4u64));
            assert_eq!(tail.seconds(&mut random, &[1], 4), [[0; 10].as_slice(), &[1; 4]].concat());
            let pair = tail.seconds(&mut random, &[1], 2);
            let together = (10..14).any(|second| pair[second] > 0 && pair[10 + (second - 9) % 4] > 0);
            assert!(together, "{pair:?}");
        }
    }

    #[test]
    fn too_few_operations_beyond_a_quantile_say_nothing() {
        let rounds = |operations: u64| vec![vec![with(vec![(1, operations - 9), (9, 9)])]; 10];
        assert!(quantile_interval(&rounds(10_000), 0.9999, &draws(100, 1)).is_some());
        assert!(quantile_interval(&rounds(9_999), 0.9999, &draws(100, 1)).is_none());
        assert!(quantile_interval(&rounds(9_999), 0.999, &draws(100, 1)).is_some());
        assert!(quantile_ratio([&rounds(10_000), &rounds(9_999)], 0.9999, &draws(100, 1)).is_none());
        assert!(quantile_interval(&[], 0.99, &draws(100, 1)).is_none());
    }

    #[test]
    fn too_few_rounds_have_no_interval_and_a_round_without_operations_no_figure() {
        let mut rounds = vec![vec![with(vec![(100, 10_000)]), Buckets::default()]; 6];
        let ratio = quantile_ratio([&rounds, &rounds], 0.99, &draws(100, 1)).unwrap();
        assert_eq!(ratio, Ratio { estimate: 1.0, interval: Some([1.0, 1.0]), rounds: 6 });
        let ratio = quantile_ratio([&rounds[..5], &rounds[..5]], 0.99, &draws(100, 1)).unwrap();
        assert_eq!(ratio, Ratio { estimate: 1.0, interval: None, rounds: 5 });
        rounds[3] = vec![Buckets::default(); 2];
        assert_eq!(quantile_interval(&rounds, 0.99, &draws(100, 1)), None);
        rounds[3].clear();
        assert_eq!(quantile_interval(&rounds, 0.99, &draws(100, 1)), None);
    }

    #[test]
    fn a_seed_determines_an_interval_and_another_moves_it_little() {
        let [first, second] = simulate(&mut Random::new(5), Noise { round: 0.1, ..QUIET }, 8, 1.0);
        let ratio = |seed| quantile_ratio([&first, &second], 0.999, &draws(4000, seed)).unwrap();
        assert_eq!(ratio(1), ratio(1));
        let ([low, high], [other_low, other_high]) = (ratio(1).interval.unwrap(), ratio(2).interval.unwrap());
        assert!(low != other_low || high != other_high);
        assert!((low / other_low - 1.0).abs() < 0.05 && (high / other_high - 1.0).abs() < 0.05);
    }

    #[test]
    fn the_widening_follows_the_tables_of_normal_and_student_distribution() {
        for (freedom, tabulated) in [(5, 2.5706), (7, 2.3646), (11, 2.2010), (19, 2.0930), (120, 1.9799)] {
            assert!((student_quantile(f64::from(freedom)) - tabulated).abs() < 0.001, "{freedom}");
        }
        for (value, tabulated) in [(0.0, 0.5), (-1.0, 0.158_655), (-1.959_964, 0.025), (-3.0, 0.001_350)] {
            assert!((normal_below(value) - tabulated).abs() < 1e-6, "{value}");
        }
        // Six rounds: 2.5706 times the root of 6/5 is 2.8160, beyond which lies 0.243 %. Twelve: 2.2989,
        // 1.075 %.
        assert!((share_beyond(6) - 0.002_43).abs() < 0.000_02, "{}", share_beyond(6));
        assert!((share_beyond(12) - 0.010_75).abs() < 0.000_02, "{}", share_beyond(12));
        assert!((share_beyond(10_000) - 0.025).abs() < 0.0001);
    }

    /// The histograms of a closed loop of 10,000 operations per second at depth 16, each of 1.6 ms or
    /// thereabouts, in which nothing is completed for 200 ms from each of `stalls_ns` on.
    fn closed_loop(random: &mut Random, seconds: usize, stalls_ns: &[u64]) -> Vec<Buckets> {
        let mut stalls = stalls_ns.iter().peekable();
        let mut latencies = vec![vec![]; seconds];
        let mut slots: Vec<[u64; 2]> = vec![[0, 0]; 16];
        let start = |random: &mut Random, now: u64| [now, now + 1_200_000 + random.index(800_000) as u64];
        slots.fill_with(|| start(random, 0));
        loop {
            let next = (0..slots.len()).min_by_key(|slot| slots[*slot][1]).unwrap();
            let [started, completed] = slots[next];
            // All that are under way when a stall begins wait for its end.
            if stalls.next_if(|stall| **stall < completed).is_some() {
                slots.iter_mut().for_each(|[_, completed]| *completed += 200_000_000);
                continue;
            }
            match latencies.get_mut((completed / 1_000_000_000) as usize) {
                Some(second) => second.push(completed - started),
                None => return latencies.into_iter().map(buckets).collect(),
            }
            slots[next] = start(random, completed);
        }
    }

    #[test]
    fn a_stall_shows_in_the_quantile_that_its_operations_reach_and_in_no_other() {
        let mut random = Random::new(9);
        let mut measure = |stalls_ns: &[u64]| -> Vec<Vec<Buckets>> {
            (0..6).map(|_| closed_loop(&mut random, 10, stalls_ns)).collect()
        };
        let every_second: Vec<u64> = (0..10).map(|second| second * 1_000_000_000 + 500_000_000).collect();
        let [none, one, three, ten] =
            [&[], &every_second[5..6], &every_second[3..6], &every_second[..]].map(&mut measure);
        let operations: u64 = none.iter().flatten().map(Buckets::count).sum();
        assert!((590_000..610_000).contains(&operations), "{operations}");
        let ratio = |slow: &[Vec<Buckets>], quantile| {
            quantile_ratio([&none, slow], quantile, &draws(1000, 1)).unwrap()
        };
        // Sixteen operations wait. Of 8,000 in a second these are 0.2 %: p99.9 is 200 ms instead of 2 ms, p99
        // as before.
        let shown = ratio(&ten, 0.999);
        assert!(shown.interval.is_some_and(|[low, high]| low > 95.0 && high < 105.0), "{shown:?}");
        let stalled = quantile_interval(&ten, 0.999, &draws(1000, 1)).unwrap();
        assert!((200_000_000..203_000_000).contains(&stalled.estimate_ns), "{stalled:?}");
        assert_eq!(ratio(&ten, 0.99).verdict(0.02), Verdict::NoDifferenceShown);
        // Of 98,000 in ten seconds they are 0.016 %: p99.99 shows them, p99.9 must not.
        assert_eq!(ratio(&one, 0.999).verdict(0.02), Verdict::NoDifferenceShown);
        assert!((ratio(&one, 0.999).estimate - 1.0).abs() < 0.01);
        let shown = ratio(&one, 0.9999);
        assert!(shown.estimate > 95.0, "{shown:?}");
        // Six stalls in a minute, of which four make the difference, can be chance. Eighteen cannot.
        assert_eq!(shown.verdict(0.02), Verdict::NoDifferenceShown, "{shown:?}");
        assert_eq!(ratio(&three, 0.9999).verdict(0.02), Verdict::Above);
        assert_eq!(ratio(&three, 0.999).verdict(0.02), Verdict::NoDifferenceShown);
    }

    /// Noise of simulated rounds of ten seconds: standard deviations of the logarithm of what latencies are
    /// multiplied with.
    #[derive(Clone, Copy)]
    struct Noise {
        /// Of a round of one subject alone, with heavy tails.
        round: f64,
        /// Of a round, common to both.
        common: f64,
        /// Of seconds; 0.7 of it is left in the next second.
        second: f64,
        /// How often, by seconds, a stall makes 16 operations take 200 ms.
        stall: f64,
        operations_per_second: u64,
    }

    const QUIET: Noise =
        Noise { round: 0.0, common: 0.0, second: 0.0, stall: 0.0, operations_per_second: 1000 };

    /// Kinds of noise that a comparison must not take for a difference.
    fn noises() -> [(&'static str, Noise); 6] {
        [
            ("independent", QUIET),
            ("common drift", Noise { common: 0.3, ..QUIET }),
            ("autocorrelated", Noise { common: 0.3, second: 0.2, ..QUIET }),
            ("rounds differ", Noise { common: 0.3, second: 0.1, round: 0.2, ..QUIET }),
            ("rounds go wild", Noise { common: 0.3, round: 0.5, ..QUIET }),
            ("rare stalls", Noise { common: 0.1, second: 0.1, stall: 0.02, ..QUIET }),
        ]
    }

    /// Three of a hundred operations are slow: 1 ms and more, the more the rarer (Pareto's distribution with
    /// the exponent 2.5). All others count as quick, as no quantile here comes near them.
    fn simulate_second(random: &mut Random, noise: Noise, scale: f64) -> Buckets {
        let slow = random.poisson(noise.operations_per_second as f64 * 0.03);
        let stalled = if random.uniform() < noise.stall { 16 } else { 0 };
        let slow_ns = (0..slow).map(|_| (1e6 * scale * random.uniform().powf(-0.4)) as u64);
        let mut second =
            buckets(slow_ns.collect::<Vec<_>>().into_iter().chain([200_000_000].repeat(stalled)));
        second.counts.insert(0, (1000, noise.operations_per_second - slow as u64));
        second
    }

    /// Both subjects of so many rounds, the second of which takes `factor` times as long.
    fn simulate(random: &mut Random, noise: Noise, rounds: usize, factor: f64) -> [Vec<Vec<Buckets>>; 2] {
        let mut subjects = [vec![], vec![]];
        for _ in 0..rounds {
            let common = noise.common * random.normal();
            for (subject, factor) in subjects.iter_mut().zip([1.0, factor]) {
                let own = common + noise.round * random.heavy();
                let mut drift = noise.second * random.normal();
                let seconds = (0..10).map(|_| {
                    drift = 0.7 * drift + noise.second * (1.0f64 - 0.7 * 0.7).sqrt() * random.normal();
                    simulate_second(random, noise, factor * (own + drift).exp())
                });
                subject.push(seconds.collect());
            }
        }
        subjects
    }

    /// How many of so many simulated comparisons claim a difference.
    fn claims(noise: Noise, rounds: usize, quantile: f64, factor: f64, simulations: u64) -> f64 {
        let mut random = Random::new(rounds as u64);
        let claimed = (0..simulations).filter(|seed| {
            let [first, second] = simulate(&mut random, noise, rounds, factor);
            let ratio = quantile_ratio([&first, &second], quantile, &draws(1000, *seed)).unwrap();
            ratio.verdict(0.0) != Verdict::NoDifferenceShown
        });
        claimed.count() as f64
    }

    #[test]
    fn no_noise_is_claimed_a_difference_more_often_than_promised() {
        // 200 simulations know a share of 5 % to within 1.5 % (one standard deviation), all 2,400 to within
        // 0.45 %.
        let simulations = 120;
        let mut all = 0.0;
        for rounds in [6, 12] {
            for (name, noise) in noises() {
                let claimed = claims(noise, rounds, 0.999, 1.0, simulations);
                let share = claimed / simulations as f64;
                assert!(share <= 0.1, "{name}, {rounds} rounds: {share}");
                all += share / 12.0;
            }
        }
        assert!(all <= 0.05, "{all}");
    }

    #[test]
    fn a_tail_half_as_long_again_is_found() {
        for (name, noise) in [noises()[0], noises()[2]] {
            let found = claims(noise, 12, 0.999, 1.5, 100) / 100.0;
            assert!(found >= 0.8, "{name}: {found}");
        }
    }

    /// The share of so many simulated intervals of one subject that cover the quantile of ever more rounds.
    fn covered(noise: Noise, rounds: usize, quantile: f64, simulations: u64) -> f64 {
        assert!(noise.round == 0.0 && noise.stall == 0.0, "only normal noise has a known quantile");
        // The share of slow operations beyond x is 0.03 (x / scale)^-2.5, and the mean of scale^2.5 known.
        let variance = noise.common.powi(2) + noise.second.powi(2);
        let expected_ns = 1e6 * (0.03 / (1.0 - quantile) * (2.5f64.powi(2) * variance / 2.0).exp()).powf(0.4);
        let mut random = Random::new(rounds as u64);
        let covering = (0..simulations).filter(|seed| {
            let [rounds, _] = simulate(&mut random, noise, rounds, 1.0);
            let found = quantile_interval(&rounds, quantile, &draws(1000, *seed)).unwrap();
            let [low_ns, high_ns] = found.interval_ns.unwrap().map(|end_ns| end_ns as f64);
            // Histograms tell only so many latencies apart.
            low_ns <= expected_ns && expected_ns * 0.999 <= high_ns
        });
        covering.count() as f64 / simulations as f64
    }

    #[test]
    fn the_interval_of_one_subject_covers_its_quantile_as_often_as_said() {
        // 200 simulations know a share of 92 % to within 1.9 % (one standard deviation).
        for rounds in [6, 12] {
            for ((name, noise), least) in [(noises()[0], 0.95), (noises()[2], 0.88)] {
                let covered = covered(noise, rounds, 0.999, 200);
                assert!(covered >= least, "{name}, {rounds} rounds: {covered}");
            }
        }
    }

    #[test]
    #[ignore = "prints a table, takes minutes"]
    fn tabulate() {
        let simulations = 500;
        println!("false claims, factors 1.2 and 1.5 found, covered by one subject's interval, all in %");
        for rounds in [6, 12] {
            for (name, noise) in noises() {
                // So that ten operations are beyond p99.99 of six rounds.
                let noise = Noise { operations_per_second: 2000, ..noise };
                print!("{rounds:2} rounds, {name:15}");
                for quantile in [0.99, 0.999, 0.9999] {
                    let [none, fifth, half] = [(1.0, 1), (1.2, 5), (1.5, 5)].map(|(factor, by)| {
                        100.0 * claims(noise, rounds, quantile, factor, simulations / by)
                            / (simulations / by) as f64
                    });
                    print!(" | {none:4.1} {fifth:5.1} {half:5.1}");
                    if noise.round == 0.0 && noise.stall == 0.0 {
                        print!(" {:5.1}", 100.0 * covered(noise, rounds, quantile, simulations));
                    }
                }
                println!();
            }
        }
    }

    #[test]
    #[ignore = "prints a time"]
    fn time_a_comparison() {
        let mut random = Random::new(1);
        let mut measure = || -> Vec<Vec<Buckets>> {
            let second = |random: &mut Random| {
                buckets((0..10_000).map(|_| (1e6 * (0.4 * random.heavy()).exp()) as u64))
            };
            (0..12).map(|_| (0..10).map(|_| second(&mut random)).collect()).collect()
        };
        let subjects = [measure(), measure()];
        let filled = subjects[0].iter().flatten().map(|buckets| buckets.counts.len()).max();
        for quantile in [0.5, 0.99, 0.999, 0.9999] {
            let started = std::time::Instant::now();
            let ratio = quantile_ratio([&subjects[0], &subjects[1]], quantile, &draws(1000, 1));
            println!("p{} of {filled:?} buckets: {:?}, {ratio:?}", quantile * 100.0, started.elapsed());
        }
    }
}
