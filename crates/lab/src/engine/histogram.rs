//! Latencies, kept whole: a histogram of nanoseconds with three significant digits.
//!
//! Histograms are merged, percentiles are read once at the end. Maximum and mean are exact.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency told apart, in nanoseconds: one hour. Longer ones are counted as this long.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// The latencies of one kind of operation.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

/// What a [`Latency`] says, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The exact average.
    pub mean_us: f64,
    /// Half of the operations took no longer.
    pub p50_us: f64,
    /// 90 % took no longer.
    pub p90_us: f64,
    /// 95 % took no longer.
    pub p95_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p99_9_us: f64,
    /// 99.99 % took no longer.
    pub p99_99_us: f64,
    /// The exact longest.
    pub max_us: f64,
}

impl Default for Latency {
    /// An empty histogram.
    fn default() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("the bounds are constants that the library accepts");
        Latency { histogram, sum_ns: 0, max_ns: 0 }
    }
}

impl Latency {
    /// Counts one operation.
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
        self.sum_ns += u128::from(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
    }

    /// Adds all of another's operations.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("all histograms have the same bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Adds all of another's operations, of which none are left there.
    pub fn take(&mut self, other: &mut Latency) {
        if other.count() > 0 {
            self.merge(other);
            other.histogram.reset();
            (other.sum_ns, other.max_ns) = (0, 0);
        }
    }

    /// The histogram itself, of nanoseconds.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// All that another histogram of nanoseconds holds. Its sum is as exact as its buckets.
    #[must_use]
    pub fn from_histogram(histogram: &Histogram<u64>) -> Latency {
        let mut latency = Latency::default();
        for bucket in histogram.iter_recorded() {
            let (value, count) = (bucket.value_iterated_to(), bucket.count_at_value());
            latency.histogram.saturating_record_n(value, count);
            latency.sum_ns += u128::from(value) * u128::from(count);
            latency.max_ns = latency.max_ns.max(value);
        }
        latency
    }

    /// How many operations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The figures, or `None` where nothing was counted.
    #[must_use]
    pub fn summary(&self) -> Option<LatencySummary> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        // A bucket's upper border can lie above the longest latency in it; nothing took that long.
        let percentile =
            |percent| self.histogram.value_at_percentile(percent).min(self.max_ns) as f64 / 1000.0;
        Some(LatencySummary {
            mean_us: self.sum_ns as f64 / count as f64 / 1000.0,
            p50_us: percentile(50.0),
            p90_us: percentile(90.0),
            p95_us: percentile(95.0),
            p99_us: percentile(99.0),
            p99_9_us: percentile(99.9),
            p99_99_us: percentile(99.99),
            max_us: self.max_ns as f64 / 1000.0,
        })
    }
}

/// What a [`Latency`] holds, without the buckets that are empty: on its way to another process, or to where seconds are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    /// The sum of all, in nanoseconds. 64 bits are 584 years.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// A latency in nanoseconds that stands for its bucket, and how many there are in it; ascending.
    pub counts: Vec<(u64, u64)>,
}

impl Buckets {
    /// How many operations there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// These and others together.
    #[must_use]
    pub fn and(&self, others: &Buckets) -> Buckets {
        let mut counts = [self.counts.as_slice(), &others.counts].concat();
        counts.sort_unstable();
        counts.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            first.1 += if is_same { later.1 } else { 0 };
            is_same
        });
        Buckets { sum_ns: self.sum_ns + others.sum_ns, max_ns: self.max_ns.max(others.max_ns), counts }
    }
}

impl From<&Latency> for Buckets {
    fn from(latency: &Latency) -> Buckets {
        let buckets = latency.histogram.iter_recorded();
        let counts = buckets.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()));
        Buckets { sum_ns: latency.sum_ns as u64, max_ns: latency.max_ns, counts: counts.collect() }
    }
}

impl From<&Buckets> for Latency {
    fn from(buckets: &Buckets) -> Latency {
        let (sum_ns, max_ns) = (u128::from(buckets.sum_ns), buckets.max_ns);
        let mut latency = Latency { sum_ns, max_ns, ..Latency::default() };
        for (latency_ns, count) in &buckets.counts {
            latency.histogram.saturating_record_n(*latency_ns, *count);
        }
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() <= expected * 0.001
    }

    #[test]
    fn percentiles_of_a_known_distribution_are_right_to_three_digits() {
        let mut latency = Latency::default();
        for microseconds in 1..=100_000u64 {
            latency.record(microseconds * 1000);
        }
        let summary = latency.summary().unwrap();
        assert!(near(summary.p50_us, 50_000.0), "{summary:?}");
        assert!(near(summary.p90_us, 90_000.0) && near(summary.p95_us, 95_000.0));
        assert!(near(summary.p99_us, 99_000.0) && near(summary.p99_9_us, 99_900.0));
        assert!(near(summary.p99_99_us, 99_990.0));
        assert_eq!(summary.max_us, 100_000.0);
        assert_eq!(summary.mean_us, 50_000.5);
    }

    #[test]
    fn merging_equals_recording_everything_in_one() {
        let (mut all, mut left, mut right) = (Latency::default(), Latency::default(), Latency::default());
        for value in 0..10_000u64 {
            let latency_ns = base::hash::mix(value) % 5_000_000;
            all.record(latency_ns);
            if value % 10 == 0 { &mut left } else { &mut right }.record(latency_ns);
        }
        left.merge(&right);
        assert_eq!(left.summary(), all.summary());
        assert_eq!(left.count(), 10_000);
    }

    #[test]
    fn merged_percentiles_are_not_the_average_of_percentiles() {
        let (mut quick, mut slow) = (Latency::default(), Latency::default());
        (0..99_000).for_each(|_| quick.record(100_000));
        (0..1_000).for_each(|_| slow.record(10_000_000));
        quick.merge(&slow);
        let summary = quick.summary().unwrap();
        assert!(near(summary.p99_us, 100.0) && near(summary.p99_9_us, 10_000.0), "{summary:?}");
    }

    #[test]
    fn what_is_sent_in_buckets_is_the_same() {
        let mut latency = Latency::default();
        (0..100_000u64).for_each(|value| latency.record(base::hash::mix(value) % 90_000_000_000));
        let sent = Buckets::from(&latency);
        let received = Latency::from(&sent);
        assert_eq!((received.summary(), Buckets::from(&received)), (latency.summary(), sent));
    }

    #[test]
    fn nothing_recorded_is_no_summary() {
        assert_eq!(Latency::default().summary(), None);
    }

    #[test]
    fn a_latency_beyond_an_hour_is_counted_and_its_length_kept() {
        let mut latency = Latency::default();
        latency.record(2 * LATENCY_NS_MAX);
        assert_eq!(latency.count(), 1);
        assert_eq!(latency.summary().unwrap().max_us, 7.2e9);
    }
}
