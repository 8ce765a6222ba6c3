//! Counts of what an OSD did for others: operations, bytes, errors, and how long they took.
//!
//! All of them only grow, from 0 at the start of the OSD's process: whoever wants a rate takes two readings and
//! subtracts. Counting allocates nothing and reads no clock.

use crate::ids::{ClientId, PoolId, VolumeId};
use crate::time::Instant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What an OSD is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// A client reads.
    Read,
    /// A client writes.
    Write,
    /// A client zeroes or trims.
    Zero,
    /// A client asks which blocks hold something.
    Allocated,
    /// A primary has this OSD write what it ordered.
    Replicate,
}

impl RequestKind {
    /// All of them.
    pub const ALL: [RequestKind; 5] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Zero,
        RequestKind::Allocated,
        RequestKind::Replicate,
    ];

    /// Its name, as in JSON and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Zero => "zero",
            RequestKind::Allocated => "allocated",
            RequestKind::Replicate => "replicate",
        }
    }
}

/// The upper bound of the first bucket of a [`Latencies`], in nanoseconds.
const FIRST_BOUND_NS: u64 = 8_000;

/// How many operations took how long: buckets from 8 µs to 16.8 s, each twice as wide as the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Operations by [`Latencies::bound`]: those that took no longer than it, and longer than the one before. The last
    /// one has no bound.
    pub buckets: [u64; Latencies::BUCKETS],
    /// The sum of all, in nanoseconds.
    pub sum_ns: u64,
}

impl Latencies {
    /// Buckets, the one without a bound included.
    pub const BUCKETS: usize = 23;

    /// Counts one operation.
    pub fn record(&mut self, latency: Duration) {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(latency_ns)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(latency_ns);
    }

    /// The upper bound of a bucket, itself included. `None` for the last, and beyond it.
    #[must_use]
    pub fn bound(bucket: usize) -> Option<Duration> {
        (bucket + 1 < Latencies::BUCKETS).then(|| Duration::from_nanos(FIRST_BOUND_NS << bucket))
    }

    /// How many operations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// What was counted since an earlier reading of the same counts. A count that is smaller than before began anew.
    #[must_use]
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        if self.buckets.iter().zip(&earlier.buckets).any(|(now, before)| now < before) {
            return *self;
        }
        let mut buckets = self.buckets;
        buckets.iter_mut().zip(&earlier.buckets).for_each(|(now, before)| *now -= before);
        Latencies { buckets, sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns) }
    }

    /// Adds what another counted.
    pub fn add(&mut self, other: &Latencies) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, other)| *own += other);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// How long the fastest `share` of the operations took at most, `share` from 0 to 1: within its bucket they are
    /// taken for evenly spread, as Prometheus' `histogram_quantile` does. `None` where nothing was counted.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * count as f64;
        let mut below = 0.0;
        for (bucket, in_bucket) in self.buckets.iter().enumerate() {
            let in_bucket = *in_bucket as f64;
            let Some(upper) = Latencies::bound(bucket) else { break };
            if in_bucket > 0.0 && below + in_bucket >= wanted {
                let lower = bucket.checked_sub(1).and_then(Latencies::bound).unwrap_or_default();
                return Some(lower + (upper - lower).mul_f64((wanted - below) / in_bucket));
            }
            below += in_bucket;
        }
        // Longer than any bound: the last one is the least that can be said.
        Latencies::bound(Latencies::BUCKETS - 2)
    }
}

/// The bucket of a latency: the first whose bound is not exceeded.
fn bucket(latency_ns: u64) -> usize {
    let doublings = latency_ns.saturating_sub(1) / FIRST_BOUND_NS;
    let bucket = (u64::BITS - doublings.leading_zeros()) as usize;
    bucket.min(Latencies::BUCKETS - 1)
}

/// What became of the requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFigures {
    /// Bytes that were read, written or zeroed by those that were done.
    pub bytes: u64,
    /// Those that failed for good: damage, no space, a drive that failed, a client that was fenced.
    pub errors: u64,
    /// Those that were turned away and are sent again, here or elsewhere: another OSD is primary, or the group does not
    /// serve at the moment.
    pub redirected: u64,
    /// Those that were done, by how long that took.
    pub latencies: Latencies,
}

impl RequestFigures {
    /// A request was done.
    pub fn done(&mut self, bytes: u64, latency: Duration) {
        self.bytes += bytes;
        self.latencies.record(latency);
    }

    /// What was counted since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &RequestFigures) -> RequestFigures {
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        RequestFigures {
            bytes: since(self.bytes, earlier.bytes),
            errors: since(self.errors, earlier.errors),
            redirected: since(self.redirected, earlier.redirected),
            latencies: self.latencies.since(&earlier.latencies),
        }
    }

    /// Adds what another counted.
    pub fn add(&mut self, other: &RequestFigures) {
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.redirected += other.redirected;
        self.latencies.add(&other.latencies);
    }
}

/// What an OSD did, by kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Client reads.
    pub read: RequestFigures,
    /// Client writes.
    pub write: RequestFigures,
    /// Client zeroings and trims.
    pub zero: RequestFigures,
    /// Questions of clients for what is allocated.
    pub allocated: RequestFigures,
    /// Replicated writes and zeroings, from when they came to when they were durable here.
    pub replicate: RequestFigures,
}

impl Figures {
    /// Those of one kind.
    #[must_use]
    pub fn of(&self, kind: RequestKind) -> &RequestFigures {
        match kind {
            RequestKind::Read => &self.read,
            RequestKind::Write => &self.write,
            RequestKind::Zero => &self.zero,
            RequestKind::Allocated => &self.allocated,
            RequestKind::Replicate => &self.replicate,
        }
    }

    /// The same, to count.
    pub fn of_mut(&mut self, kind: RequestKind) -> &mut RequestFigures {
        match kind {
            RequestKind::Read => &mut self.read,
            RequestKind::Write => &mut self.write,
            RequestKind::Zero => &mut self.zero,
            RequestKind::Allocated => &mut self.allocated,
            RequestKind::Replicate => &mut self.replicate,
        }
    }

    /// What was counted since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Figures) -> Figures {
        let mut figures = *self;
        for kind in RequestKind::ALL {
            *figures.of_mut(kind) = self.of(kind).since(earlier.of(kind));
        }
        figures
    }

    /// Adds what another counted.
    pub fn add(&mut self, other: &Figures) {
        for kind in RequestKind::ALL {
            self.of_mut(kind).add(other.of(kind));
        }
    }
}

/// Busiest volumes and clients that a [`Tally`] names.
pub const BUSIEST_MAX: usize = 64;

/// What one OSD counted in all.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// What it did for clients and primaries.
    pub requests: Figures,
    /// CPU time of its thread, in nanoseconds; what the kernel does for it on other threads is not in it.
    pub cpu_ns: u64,
    /// Operations that have not ended.
    pub operations_in_flight: u64,
    /// Bytes that members were sent that catch up.
    pub recovery_sent_bytes: u64,
}

/// What one OSD counted, as of one moment.
#[derive(Clone, Debug)]
pub struct Tally {
    /// When.
    pub at: Instant,
    /// In all.
    pub counts: Counts,
    /// What clients were served, by pool.
    pub pools: Vec<(PoolId, Traffic)>,
    /// The same by volume: the busiest of late, at most [`BUSIEST_MAX`].
    pub volumes: Vec<(VolumeId, Traffic)>,
    /// The same by client, since it connected: the busiest of late, at most [`BUSIEST_MAX`].
    pub clients: Vec<(ClientId, Traffic)>,
}

/// How much of something a client, a volume or a pool asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes, zeroings and trims.
    pub writes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Those of a volume or of a client that had to wait for a limit before they were taken up.
    #[serde(default)]
    pub throttled: u64,
    /// Those of a volume that had to wait for their turn, because others were used too.
    #[serde(default)]
    pub queued: u64,
}

impl Traffic {
    /// Counts a request that was taken up. Questions for what is allocated do not count.
    pub fn count(&mut self, kind: RequestKind, bytes: u64) {
        match kind {
            RequestKind::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            RequestKind::Write | RequestKind::Replicate => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
            RequestKind::Zero => self.writes += 1,
            RequestKind::Allocated => {}
        }
    }

    /// Reads and writes.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.reads + self.writes
    }

    /// Adds what another counted.
    pub fn add(&mut self, other: &Traffic) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.throttled += other.throttled;
        self.queued += other.queued;
    }

    /// What was counted since an earlier reading. Counts that are smaller than before began anew.
    #[must_use]
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Traffic {
            reads: since(self.reads, earlier.reads),
            read_bytes: since(self.read_bytes, earlier.read_bytes),
            writes: since(self.writes, earlier.writes),
            written_bytes: since(self.written_bytes, earlier.written_bytes),
            throttled: since(self.throttled, earlier.throttled),
            queued: since(self.queued, earlier.queued),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() {
        for (bucket_expected, bound) in (0..).map_while(|bucket| Some((bucket, Latencies::bound(bucket)?))) {
            let bound_ns = bound.as_nanos() as u64;
            assert_eq!(bucket(bound_ns), bucket_expected);
            assert_eq!(bucket(bound_ns + 1), bucket_expected + 1);
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, Latencies::BUCKETS - 1));
        assert_eq!(Latencies::bound(0), Some(Duration::from_micros(8)));
        assert_eq!(Latencies::bound(Latencies::BUCKETS - 2), Some(Duration::from_micros(16_777_216)));
        assert_eq!(Latencies::bound(Latencies::BUCKETS - 1), None);
    }

    #[test]
    fn quantiles_lie_within_the_bucket_of_the_operation_they_name() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), None);
        (0..99).for_each(|_| latencies.record(Duration::from_micros(100)));
        latencies.record(Duration::from_millis(50));
        let within = |share: f64, low_us: u64, high_us: u64| {
            let found = latencies.quantile(share).unwrap();
            let range = Duration::from_micros(low_us)..=Duration::from_micros(high_us);
            assert!(range.contains(&found), "{share}: {found:?}");
        };
        within(0.5, 64, 128);
        within(0.99, 64, 128);
        within(0.999, 32_768, 65_536);
        assert_eq!(latencies.count(), 100);
        latencies.record(Duration::from_secs(3600));
        assert_eq!(latencies.quantile(1.0), Some(Duration::from_micros(16_777_216)));
    }

    #[test]
    fn what_was_counted_in_between_is_the_difference_unless_counting_began_anew() {
        let mut figures = Figures::default();
        figures.of_mut(RequestKind::Read).done(4096, Duration::from_micros(20));
        let earlier = figures;
        figures.of_mut(RequestKind::Read).done(8192, Duration::from_micros(30));
        figures.of_mut(RequestKind::Write).errors += 1;
        let since = figures.since(&earlier);
        assert_eq!((since.read.bytes, since.read.latencies.count(), since.write.errors), (8192, 1, 1));
        assert_eq!(since.read.latencies.sum_ns, 30_000);
        // Started anew: all it counts is new.
        assert_eq!(earlier.since(&figures).read.latencies.count(), 1);
        let mut sum = earlier;
        sum.add(&since);
        assert_eq!(sum, figures);
    }
}
