//! A load that goes on whatever happens to the cluster, and remembers when each operation was done.
//!
//! The engine ([`crate::engine`]) sums latencies up; here the moments count: the longest time without any completed
//! operation is what a failure costs, and the latencies of a stretch of time are what catching up costs.

use crate::engine::generator::Generator;
use crate::engine::histogram::{Latency, LatencySummary};
use crate::engine::plan::{Job, Mode, TargetName};
use crate::engine::{Completion, Kind, Operation, Target};
use crate::targets::volume::VolumeTarget;
use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use volume::ClusterAccess;
use volume::OpenAs;

/// Operations in flight.
pub const DEPTH: u32 = 16;
/// The share of reads, in percent.
pub const READ_PERCENT: u8 = 75;
/// How long a turn lasts at most.
const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// What is in flight when the load is told to end has so long.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Room for the operations of a minute, so that the list rarely moves.
const DONE_EXPECTED: usize = 4 << 20;

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
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    pub fn operations(&self) -> u64 {
        (self.iops * self.seconds).round() as u64
    }
}

/// What clients got before something, during it and after it, under the same load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Impact {
    /// Before.
    pub before: Stretch,
    /// During.
    pub during: Stretch,
    /// After, when everything was done that it brought with it.
    pub after: Stretch,
}

impl Impact {
    /// Operations a second during it, as a multiple of those after; absent if there were none after.
    pub fn iops_kept(&self) -> Option<f64> {
        (self.after.iops > 0.0).then(|| self.during.iops / self.after.iops)
    }

    /// The latency that 99 % of the operations did not exceed, during it as a multiple of after; absent if there were
    /// none after or none during it. What serves clients is the same in both, which before need not be so.
    pub fn p99_growth(&self) -> Option<f64> {
        let (after, during) = (self.after.latency?.p99_us, self.during.latency?.p99_us);
        (after > 0.0).then(|| during / after)
    }

    /// The three by name.
    pub fn stretches(&self) -> [(&'static str, &Stretch); 3] {
        [("before", &self.before), ("during", &self.during), ("after", &self.after)]
    }
}

impl Timeline {
    /// The longest time within `from` and `to` in which no operation was done.
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

    /// What clients got in these three stretches of time.
    pub fn impact(&self, before: &Range<Instant>, during: &Range<Instant>, after: &Range<Instant>) -> Impact {
        let [before, during, after] = [before, during, after].map(|range| self.stretch(range));
        Impact { before, during, after }
    }

    /// What was done within a range of time.
    pub fn stretch(&self, range: &Range<Instant>) -> Stretch {
        let (mut latency, mut written_bytes) = (Latency::default(), 0);
        for done in self.between(range.start, range.end) {
            latency.record(done.latency_ns);
            written_bytes += if done.kind == Kind::Write { base::BLOCK_BYTES as u64 } else { 0 };
        }
        let seconds = range.end.saturating_duration_since(range.start).as_secs_f64();
        Stretch { seconds, iops: latency.count() as f64 / seconds, written_bytes, latency: latency.summary() }
    }

    fn between(&self, from: Instant, to: Instant) -> impl Iterator<Item = &Done> {
        self.0.iter().filter(move |done| done.at >= from && done.at <= to)
    }
}

/// Keeps the volume `name` of `cluster` busy until `enough` is set: blocks of 4 KiB at random places,
/// [`DEPTH`] in flight, [`READ_PERCENT`] of them reads.
/// None of its operations may fail: a client waits out a failure.
pub fn run(cluster: &ClusterAccess, name: &str, seed: u64, enough: &AtomicBool) -> anyhow::Result<Timeline> {
    let unusable = || format!("the load on volume {name}");
    let job = Job {
        depth: DEPTH,
        mix_read_percent: READ_PERCENT,
        seed,
        ..Job::new(TargetName::Volume(name.to_owned()), Mode::RandomReadWrite)
    };
    let block_bytes = job.block.0 as u32;
    let mut target = VolumeTarget::attach(cluster, name, OpenAs::Owner, DEPTH, block_bytes, None)
        .with_context(unusable)?;
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
                bail!(
                    "{count} operations on volume {name} were not answered within {} s",
                    DRAIN_LIMIT.as_secs()
                );
            }
        } else {
            let now = Instant::now();
            for (slot, vacant) in (0..).zip(&mut started).filter(|(_, started)| started.is_none()) {
                let (kind, offset) = generator.next_operation();
                if kind == Kind::Write {
                    generator.fill(offset, target.data_mut(slot));
                }
                let operation = Operation { slot, kind, offset, length: block_bytes };
                target.submit(operation).with_context(unusable)?;
                *vacant = Some((now, kind));
            }
        }
        target.wait(WAIT_LIMIT, &mut completions).with_context(unusable)?;
        let at = Instant::now();
        for Completion { slot, result } in completions.drain(..) {
            result.map_err(|words| anyhow!("an operation on volume {name} failed, and none may: {words}"))?;
            let (began, kind) = started[slot as usize].take().expect("what completes was submitted");
            timeline.0.push(Done { at, latency_ns: (at - began).as_nanos() as u64, kind });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A second in which every operation took as long.
    pub(crate) fn stretch(iops: f64, latency_us: f64) -> Stretch {
        let mut latency = Latency::default();
        latency.record((latency_us * 1000.0) as u64);
        let exactly = |summary| LatencySummary { p99_us: latency_us, max_us: latency_us, ..summary };
        Stretch { seconds: 1.0, iops, written_bytes: 0, latency: latency.summary().map(exactly) }
    }

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
        let stretch = timeline.stretch(&(at(15)..at(2015)));
        assert_eq!((stretch.seconds, stretch.iops, stretch.written_bytes), (2.0, 1.5, 8192));
        assert_eq!(stretch.operations(), 3);
        assert_eq!(stretch.latency.map(|latency| latency.max_us), Some(40_000.0));
        assert_eq!(timeline.stretch(&(at(50)..at(100))).latency, None);
    }

    #[test]
    fn the_load_goes_on_until_it_is_told_to_end() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = volume::testing::TestCluster::start(directory.path());
        cluster.create_volume("disk", 16 << 20);
        let enough = AtomicBool::new(false);
        let timeline = std::thread::scope(|scope| {
            let load = scope.spawn(|| run(&cluster.access(), "disk", 1, &enough));
            while cluster.served().plain < 200 && !load.is_finished() {
                std::thread::sleep(Duration::from_millis(10));
            }
            enough.store(true, Ordering::Relaxed);
            load.join().unwrap().unwrap()
        });
        let kinds = |kind| timeline.0.iter().filter(|done| done.kind == kind).count();
        assert!(kinds(Kind::Read) > kinds(Kind::Write) && kinds(Kind::Write) > 0, "{}", timeline.0.len());
    }

    #[test]
    fn an_impact_is_what_is_left_of_the_rate_and_how_the_tail_grows() {
        let impact = impact(stretch(900.0, 1500.0), stretch(1000.0, 500.0));
        assert_eq!((impact.iops_kept(), impact.p99_growth()), (Some(0.9), Some(3.0)));
    }

    #[test]
    fn without_operations_it_is_unknown_and_not_zero() {
        let nothing = || Stretch { latency: None, ..stretch(0.0, 0.0) };
        let unknown = impact(stretch(900.0, 1500.0), nothing());
        assert_eq!((unknown.iops_kept(), unknown.p99_growth()), (None, None));
        let unknown = impact(nothing(), stretch(1000.0, 500.0));
        assert_eq!((unknown.iops_kept(), unknown.p99_growth()), (Some(0.0), None));
    }

    fn impact(during: Stretch, after: Stretch) -> Impact {
        Impact { before: stretch(2000.0, 250.0), during, after }
    }
}
