//! A load that goes on whatever happens to the cluster, and remembers when each operation was done.
//!
//! The engine ([`crate::engine`]) sums latencies up; here the moments count: the longest time without any completed
//! operation is what a failure costs, and the latencies of a stretch of time are what catching up costs.

use crate::engine::generator::Generator;
use crate::engine::histogram::{Latency, LatencySummary};
use crate::engine::plan::{Job, Mode, PlanError, TargetName};
use crate::engine::{Completion, Kind, Operation, Target, TargetError};
use crate::targets::volume::VolumeTarget;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use volume::ClusterAccess;

/// Operations in flight.
pub const DEPTH: u32 = 16;
/// The share of reads, in percent.
pub const READ_PERCENT: u8 = 75;
/// What is in flight when the load is told to end has so long.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Room for the operations of a minute, so that the list rarely moves.
const DONE_EXPECTED: usize = 4 << 20;

/// Why the load did not go on to its end.
#[derive(thiserror::Error, Debug)]
pub enum LoadError {
    /// The volume is too small.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no way into the cluster.
    #[error(transparent)]
    Key(#[from] auth::KeyError),
    /// The volume became unusable.
    #[error("volume {volume}: {error}")]
    Target {
        /// Its name.
        volume: String,
        /// What it said.
        error: TargetError,
    },
    /// An operation failed. None may: a client waits out a failure.
    #[error("an operation on volume {volume} failed, and none may: {words}")]
    Operation {
        /// The volume's name.
        volume: String,
        /// What it said.
        words: String,
    },
    /// Operations that are never answered.
    #[error("{count} operations on volume {volume} were not answered within {} s", DRAIN_LIMIT.as_secs())]
    Hangs {
        /// The volume's name.
        volume: String,
        /// How many.
        count: usize,
    },
}

/// An operation that is done.
#[derive(Clone, Copy, Debug)]
struct Done {
    at: Instant,
    latency_ns: u64,
    kind: Kind,
}

/// All operations of a load, in the order in which they were done.
#[derive(Debug, Default)]
pub struct Timeline(Vec<Done>);

/// What a stretch of time cost the clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// How long it was, in seconds.
    pub seconds: f64,
    /// Operations done a second.
    pub iops: f64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Latencies of all of them; absent if none was done.
    pub latency: Option<LatencySummary>,
}

impl Stretch {
    /// Operations done.
    #[must_use]
    pub fn operations(&self) -> u64 {
        (self.iops * self.seconds).round() as u64
    }
}

impl Timeline {
    /// The longest time within `from` and `to` in which no operation was done.
    #[must_use]
    pub fn longest_pause(&self, from: Instant, to: Instant) -> Duration {
        let moments = self.between(from, to).map(|done| done.at);
        let mut last = from;
        let mut longest = Duration::ZERO;
        for moment in moments.chain([to]) {
            longest = longest.max(moment.saturating_duration_since(last));
            last = moment;
        }
        longest
    }

    /// What was done within `from` and `to`.
    #[must_use]
    pub fn stretch(&self, from: Instant, to: Instant) -> Stretch {
        let (mut latency, mut written_bytes) = (Latency::new(), 0);
        for done in self.between(from, to) {
            latency.record(done.latency_ns);
            written_bytes += if done.kind == Kind::Write { base::BLOCK_BYTES as u64 } else { 0 };
        }
        let seconds = to.saturating_duration_since(from).as_secs_f64();
        Stretch { seconds, iops: latency.count() as f64 / seconds, written_bytes, latency: latency.summary() }
    }

    fn between(&self, from: Instant, to: Instant) -> impl Iterator<Item = &Done> {
        self.0.iter().filter(move |done| done.at >= from && done.at <= to)
    }
}

/// Keeps the volume `name` of the cluster of `registry` busy until `enough` is set: blocks of 4 KiB at random places,
/// [`DEPTH`] in flight, [`READ_PERCENT`] of them reads.
///
/// # Errors
/// The first operation that fails, or the volume as a whole.
pub fn run(
    cluster: &ClusterAccess,
    name: &str,
    seed: u64,
    enough: &AtomicBool,
) -> Result<Timeline, LoadError> {
    let unusable = |error| LoadError::Target { volume: name.to_owned(), error };
    let job = Job {
        depth: DEPTH,
        mix_read_percent: READ_PERCENT,
        seed,
        ..Job::new(TargetName::Volume(name.to_owned()), Mode::RandomReadWrite)
    };
    let block_bytes = job.block.0 as u32;
    let mut target =
        VolumeTarget::attach(cluster, name, false, DEPTH, block_bytes, None).map_err(unusable)?;
    let mut generator = Generator::new(&job, job.region(target.bytes(), target.alignment_bytes())?);
    let mut started: Vec<Option<(Instant, Kind)>> = vec![None; DEPTH as usize];
    let mut timeline = Timeline(Vec::with_capacity(DONE_EXPECTED));
    let mut completions = Vec::with_capacity(DEPTH as usize);
    let mut told_to_end = None;
    loop {
        if told_to_end.is_none() && enough.load(Ordering::Relaxed) {
            told_to_end = Some(Instant::now());
        }
        if let Some(told) = told_to_end {
            let count = started.iter().flatten().count();
            if count == 0 {
                return Ok(timeline);
            }
            if told.elapsed() > DRAIN_LIMIT {
                return Err(LoadError::Hangs { volume: name.to_owned(), count });
            }
        } else {
            let now = Instant::now();
            for (slot, vacant) in (0..).zip(&mut started).filter(|(_, started)| started.is_none()) {
                let (kind, offset) = generator.next_operation();
                if kind == Kind::Write {
                    generator.fill(offset, target.data_mut(slot));
                }
                let operation = Operation { slot, kind, offset, length: block_bytes };
                target.submit(operation).map_err(unusable)?;
                *vacant = Some((now, kind));
            }
        }
        target.wait(&mut completions).map_err(unusable)?;
        let at = Instant::now();
        for Completion { slot, result } in completions.drain(..) {
            result.map_err(|words| LoadError::Operation { volume: name.to_owned(), words })?;
            let (began, kind) = started[slot as usize].take().expect("what completes was submitted");
            timeline.0.push(Done { at, latency_ns: (at - began).as_nanos() as u64, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(start: Instant, moments_ms: &[u64]) -> Timeline {
        let done = |ms: &u64| Done {
            at: start + Duration::from_millis(*ms),
            latency_ns: ms * 1_000_000,
            kind: if ms.is_multiple_of(2) { Kind::Write } else { Kind::Read },
        };
        Timeline(moments_ms.iter().map(done).collect())
    }

    #[test]
    fn the_longest_pause_may_touch_either_end() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let timeline = timeline(start, &[10, 20, 400, 420, 3000]);
        let pause = |from, to| timeline.longest_pause(at(from), at(to)).as_millis();
        assert_eq!(pause(0, 500), 380);
        assert_eq!(pause(100, 450), 300);
        assert_eq!(pause(0, 5000), 2580);
        assert_eq!(pause(0, 9000), 6000);
        assert_eq!(pause(500, 600), 100);
    }

    #[test]
    fn a_stretch_has_what_was_done_in_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let timeline = timeline(start, &[10, 20, 31, 40, 3000]);
        let stretch = timeline.stretch(at(15), at(2015));
        assert_eq!((stretch.seconds, stretch.iops, stretch.written_bytes), (2.0, 1.5, 8192));
        assert_eq!(stretch.operations(), 3);
        assert_eq!(stretch.latency.map(|latency| latency.max_us), Some(40_000.0));
        assert_eq!(timeline.stretch(at(50), at(100)).latency, None);
    }

    #[test]
    fn the_load_goes_on_until_it_is_told_to_end() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = volume::testing::TestCluster::start(directory.path());
        cluster.create_volume("disk", 16 << 20);
        // How long it takes until the volume is attached is up to the machine.
        let seconds = [0.2, 2.0, 20.0].into_iter().map(Duration::from_secs_f64);
        let mut timelines = seconds.map(|lasting| {
            let enough = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let load = scope.spawn(|| run(&cluster.access(), "disk", 1, &enough));
                std::thread::sleep(lasting);
                enough.store(true, Ordering::Relaxed);
                load.join().unwrap().unwrap()
            })
        });
        let timeline = timelines.find(|timeline| timeline.0.len() > 100).unwrap();
        let kinds = |kind| timeline.0.iter().filter(|done| done.kind == kind).count();
        assert!(kinds(Kind::Read) > kinds(Kind::Write) && kinds(Kind::Write) > 0, "{}", timeline.0.len());
    }
}
