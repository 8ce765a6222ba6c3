//! The engine: keeps a target's queue full, times every operation, and measures CPU around it.
//!
//! It is generic over the target, so that nothing on the way of an operation is dynamic or allocated.
//! The clock is read twice a turn: once for all operations that a turn submits, once for all it completes.
//!
//! The window that is measured opens after the ramp and closes when the last operation that began in it is
//! done, so that a stall at the end is in the figures and not cut off. Operations from before are not in.
//!
//! The first operation that fails ends the job: the others in flight are awaited, then it reports.

pub mod cpu;
pub mod generator;
pub mod histogram;
pub mod plan;

use crate::engine::cpu::{Monitor, Usage};
use crate::engine::generator::Generator;
use crate::engine::histogram::Latency;
use crate::engine::plan::{Job, PlanError};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the target into the slot's data.
    Read,
    /// From the slot's data to the target.
    Write,
}

/// One operation, to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whose data it uses, below the job's depth. A slot holds one operation at a time.
    pub slot: u32,
    /// Read or write.
    pub kind: Kind,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes: always the job's block.
    pub length: u32,
}

/// An operation that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation's slot.
    pub slot: u32,
    /// For a failure, a sentence that names place and reason.
    pub result: Result<(), String>,
}

/// The target as a whole is unusable: not one operation failed, but the way to it.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
#[error("{0}")]
pub struct TargetError(pub String);

/// Something to read from and write to, with a queue.
///
/// The order of calls is: any number of [`data_mut`](Target::data_mut) and [`submit`](Target::submit),
/// then [`wait`](Target::wait), and again.
pub trait Target {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// What offset and length of every operation must be a multiple of, in bytes.
    fn alignment_bytes(&self) -> u32;

    /// The data of a slot, at least one block long. Asked for only while the slot has nothing in flight.
    fn data_mut(&mut self, slot: u32) -> &mut [u8];

    /// Takes one operation. It may begin now or at the next `wait`.
    ///
    /// # Errors
    /// The target is unusable.
    fn submit(&mut self, operation: Operation) -> Result<(), TargetError>;

    /// Begins what was submitted and appends what is done to `completions`. Returns as soon as one
    /// operation is done, and after about a second when none is, so that a stalled target is seen.
    ///
    /// # Errors
    /// The target is unusable.
    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), TargetError>;
}

/// Where the engine takes the time from.
pub trait Clock {
    /// Nanoseconds since an arbitrary start, never going back.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock, from that moment on.
impl Clock for Instant {
    fn now_ns(&self) -> u64 {
        // 64 bits of nanoseconds last 584 years.
        self.elapsed().as_nanos() as u64
    }
}

/// The state of a running job, given once a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Live {
    /// Since the job began, ramp included.
    pub elapsed: Duration,
    /// Not measured yet.
    pub ramping: bool,
    /// Reads a second, since the last of these.
    pub read_iops: f64,
    /// Writes a second, since the last of these.
    pub write_iops: f64,
    /// Average latency of these reads, in microseconds.
    pub read_mean_us: Option<f64>,
    /// Average latency of these writes, in microseconds.
    pub write_mean_us: Option<f64>,
    /// Bytes of I/O done in all.
    pub bytes_done: u64,
    /// Bytes of I/O after which the job ends, if that ends it.
    pub bytes_total: Option<u64>,
    /// Operations in flight now.
    pub in_flight: u32,
}

/// Why a job could not be run, or not to its end.
#[derive(thiserror::Error, Debug)]
pub enum RunError {
    /// Job and target do not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target became unusable.
    #[error("{target}: {error}")]
    Target {
        /// The target.
        target: String,
        /// What it said.
        error: TargetError,
    },
}

/// What a job measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The window's length.
    pub window: Duration,
    /// Latencies of the reads that began in it.
    pub reads: Latency,
    /// Latencies of the writes that began in it.
    pub writes: Latency,
    /// CPU and memory used in it.
    pub usage: Usage,
    /// Operations that failed, whenever they began.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Whether `live` asked to stop before the job's own end.
    pub stopped_early: bool,
}

/// Runs `job` on `target`. `live` is told once a second how it goes and may stop the job.
///
/// # Errors
/// The job does not fit the target, or the target became unusable. Operations that fail are no such error:
/// they end the job and are counted in [`Measured::errors`].
pub fn run<T: Target>(
    target: &mut T,
    job: &Job,
    monitor: &Monitor,
    live: impl FnMut(&Live) -> ControlFlow<()>,
) -> Result<Measured, RunError> {
    run_with_clock(target, job, monitor, &Instant::now(), live)
}

/// As [`run`], by another clock.
///
/// # Errors
/// As [`run`].
pub fn run_with_clock<T: Target, C: Clock>(
    target: &mut T,
    job: &Job,
    monitor: &Monitor,
    clock: &C,
    mut live: impl FnMut(&Live) -> ControlFlow<()>,
) -> Result<Measured, RunError> {
    let region = job.region(target.bytes(), target.alignment_bytes())?;
    let unusable = |error| RunError::Target { target: job.target.to_string(), error };
    let mut run = Run::new(job, Generator::new(job, region), region.block_bytes, clock.now_ns());
    let mut completions = Vec::with_capacity(job.depth as usize);
    let mut opening = job.ramp.is_zero().then(|| monitor.snapshot());
    run.now_ns = clock.now_ns();
    if opening.is_some() {
        run.open_window(run.now_ns);
    }
    loop {
        run.submit(target, clock.now_ns()).map_err(unusable)?;
        if run.in_flight() == 0 {
            break;
        }
        target.wait(&mut completions).map_err(unusable)?;
        run.now_ns = clock.now_ns();
        for completion in completions.drain(..) {
            run.complete(completion);
        }
        if run.live_due() && live(&run.take_live()).is_break() {
            run.stop();
        }
        if run.ramp_is_over() {
            opening = Some(monitor.snapshot());
            run.open_window(clock.now_ns());
        }
    }
    let closing = monitor.snapshot();
    let opening = opening.unwrap_or_else(|| closing.clone());
    Ok(run.finish(monitor.usage(&opening, &closing)))
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Working, not measuring yet.
    Ramp,
    /// Measuring what begins since then.
    Window { opened_ns: u64 },
    /// Nothing begins any more. `opened_ns` is absent if it never came to measuring.
    Drain { opened_ns: Option<u64> },
}

#[derive(Clone, Copy)]
struct Slot {
    kind: Kind,
    started_ns: u64,
    measured: bool,
}

/// Counts of one kind since the last live line.
#[derive(Clone, Copy, Default)]
struct Interval {
    operations: u64,
    latency_ns: u64,
}

impl Interval {
    fn mean_us(self) -> Option<f64> {
        (self.operations > 0).then(|| self.latency_ns as f64 / self.operations as f64 / 1000.0)
    }
}

const LIVE_INTERVAL_NS: u64 = 1_000_000_000;

/// The state of a run: what is in flight and what was counted.
struct Run {
    generator: Generator,
    phase: Phase,
    block_bytes: u32,
    slots: Vec<Slot>,
    free: Vec<u32>,
    began_ns: u64,
    now_ns: u64,
    ramp_ns: u64,
    runtime_ns: Option<u64>,
    operations_left: Option<u64>,
    bytes_total: Option<u64>,
    operations_done: u64,
    reads: Latency,
    writes: Latency,
    live_from_ns: u64,
    live_reads: Interval,
    live_writes: Interval,
    errors: u64,
    first_error: Option<String>,
    stopped_early: bool,
}

impl Run {
    fn new(job: &Job, generator: Generator, block_bytes: u32, now_ns: u64) -> Run {
        let vacant = Slot { kind: Kind::Read, started_ns: 0, measured: false };
        let operations = job.io_size.map(|bytes| bytes.div_ceil(u64::from(block_bytes)));
        Run {
            generator,
            phase: Phase::Ramp,
            block_bytes,
            slots: vec![vacant; job.depth as usize],
            free: (0..job.depth).rev().collect(),
            began_ns: now_ns,
            now_ns,
            ramp_ns: job.ramp.as_nanos() as u64,
            runtime_ns: job
                .runtime
                .filter(|runtime| !runtime.is_zero())
                .map(|runtime| runtime.as_nanos() as u64),
            operations_left: operations,
            bytes_total: job.io_size,
            operations_done: 0,
            reads: Latency::default(),
            writes: Latency::default(),
            live_from_ns: now_ns,
            live_reads: Interval::default(),
            live_writes: Interval::default(),
            errors: 0,
            first_error: None,
            stopped_early: false,
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn ramp_is_over(&self) -> bool {
        self.phase == Phase::Ramp && self.now_ns - self.began_ns >= self.ramp_ns
    }

    fn open_window(&mut self, now_ns: u64) {
        assert_eq!(self.phase, Phase::Ramp, "the window opens once");
        self.phase = Phase::Window { opened_ns: now_ns };
    }

    fn stop(&mut self) {
        self.stopped_early = true;
        self.drain();
    }

    fn drain(&mut self) {
        self.phase = match self.phase {
            Phase::Ramp => Phase::Drain { opened_ns: None },
            Phase::Window { opened_ns } => Phase::Drain { opened_ns: Some(opened_ns) },
            drain @ Phase::Drain { .. } => drain,
        };
    }

    /// Fills every free slot, unless the job is at its end.
    fn submit<T: Target>(&mut self, target: &mut T, now_ns: u64) -> Result<(), TargetError> {
        let runtime_is_over = match self.phase {
            Phase::Window { opened_ns } => {
                self.runtime_ns.is_some_and(|runtime| now_ns - opened_ns >= runtime)
            }
            Phase::Ramp | Phase::Drain { .. } => false,
        };
        if runtime_is_over || self.operations_left == Some(0) {
            self.drain();
        }
        let measured = match self.phase {
            Phase::Ramp => false,
            Phase::Window { .. } => true,
            Phase::Drain { .. } => return Ok(()),
        };
        while self.operations_left != Some(0) {
            let Some(slot) = self.free.pop() else { break };
            let (kind, offset) = self.generator.next_operation();
            if kind == Kind::Write {
                let data = &mut target.data_mut(slot)[..self.block_bytes as usize];
                self.generator.fill(offset, data);
            }
            self.slots[slot as usize] = Slot { kind, started_ns: now_ns, measured };
            target.submit(Operation { slot, kind, offset, length: self.block_bytes })?;
            if let Some(left) = &mut self.operations_left {
                *left -= 1;
            }
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) {
        let slot = self.slots[completion.slot as usize];
        self.free.push(completion.slot);
        assert!(self.free.len() <= self.slots.len(), "an operation completes once");
        if let Err(error) = completion.result {
            self.errors += 1;
            self.first_error.get_or_insert(error);
            self.drain();
            return;
        }
        self.operations_done += 1;
        let latency_ns = self.now_ns - slot.started_ns;
        let (interval, latency) = match slot.kind {
            Kind::Read => (&mut self.live_reads, &mut self.reads),
            Kind::Write => (&mut self.live_writes, &mut self.writes),
        };
        interval.operations += 1;
        interval.latency_ns += latency_ns;
        if slot.measured {
            latency.record(latency_ns);
        }
    }

    fn live_due(&self) -> bool {
        self.now_ns - self.live_from_ns >= LIVE_INTERVAL_NS
    }

    fn take_live(&mut self) -> Live {
        let seconds = (self.now_ns - self.live_from_ns) as f64 / 1e9;
        let live = Live {
            elapsed: Duration::from_nanos(self.now_ns - self.began_ns),
            ramping: self.phase == Phase::Ramp,
            read_iops: self.live_reads.operations as f64 / seconds,
            write_iops: self.live_writes.operations as f64 / seconds,
            read_mean_us: self.live_reads.mean_us(),
            write_mean_us: self.live_writes.mean_us(),
            bytes_done: self.operations_done * u64::from(self.block_bytes),
            bytes_total: self.bytes_total,
            in_flight: self.in_flight() as u32,
        };
        self.live_from_ns = self.now_ns;
        self.live_reads = Interval::default();
        self.live_writes = Interval::default();
        live
    }

    fn finish(self, usage: Usage) -> Measured {
        assert_eq!(self.in_flight(), 0, "a job reports only when nothing is in flight");
        let opened_ns = match self.phase {
            Phase::Ramp => None,
            Phase::Window { opened_ns } => Some(opened_ns),
            Phase::Drain { opened_ns } => opened_ns,
        };
        Measured {
            window: Duration::from_nanos(opened_ns.map_or(0, |opened| self.now_ns.saturating_sub(opened))),
            reads: self.reads,
            writes: self.writes,
            usage,
            errors: self.errors,
            first_error: self.first_error,
            stopped_early: self.stopped_early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{Mode, TargetName};
    use crate::targets::memory::{ManualClock, MemoryTarget};
    use base::units::ByteSize;

    struct Bench {
        clock: ManualClock,
        target: MemoryTarget,
        job: Job,
    }

    fn bench(mode: Mode, depth: u32) -> Bench {
        let clock = ManualClock::default();
        let mut job = Job::new(TargetName::Volume("memory".into()), mode);
        job.depth = depth;
        job.runtime = Some(Duration::from_secs(1));
        Bench { target: MemoryTarget::new(1 << 20, depth, 4096, clock.clone()), clock, job }
    }

    impl Bench {
        fn run(&mut self) -> Measured {
            self.run_with(|_| ControlFlow::Continue(())).unwrap()
        }

        fn run_with(&mut self, live: impl FnMut(&Live) -> ControlFlow<()>) -> Result<Measured, RunError> {
            run_with_clock(&mut self.target, &self.job, &Monitor::new(Vec::new()), &self.clock, live)
        }
    }

    #[test]
    fn rate_and_latency_are_those_of_the_target() {
        let mut bench = bench(Mode::RandomRead, 1);
        let measured = bench.run();
        // One operation takes one turn of 100 µs: 10,000 a second.
        assert_eq!(measured.reads.count(), 10_000);
        assert_eq!(measured.window, Duration::from_secs(1));
        let summary = measured.reads.summary().unwrap();
        assert_eq!((summary.mean_us, summary.max_us), (100.0, 100.0));
        assert_eq!(measured.writes.count(), 0);
        assert_eq!((measured.errors, measured.stopped_early), (0, false));
    }

    #[test]
    fn every_slot_is_kept_busy_and_waiting_in_the_queue_is_latency() {
        let mut bench = bench(Mode::RandomWrite, 64);
        bench.target.completions_per_turn = 16;
        let measured = bench.run();
        assert_eq!(bench.target.in_flight_max, 64);
        // 16 a turn of 100 µs; each waits behind 48 others: 4 turns. The last 64 are drained in 3 turns more.
        assert_eq!(measured.writes.count(), 160_000 + 48);
        let summary = measured.writes.summary().unwrap();
        assert!((399.0..=400.0).contains(&summary.mean_us), "{summary:?}");
    }

    #[test]
    fn the_mix_is_measured_apart() {
        let mut bench = bench(Mode::RandomReadWrite, 16);
        bench.job.mix_read_percent = 75;
        let measured = bench.run();
        let (reads, writes) = (measured.reads.count() as f64, measured.writes.count() as f64);
        assert!((reads / (reads + writes) - 0.75).abs() < 0.01, "{reads} {writes}");
    }

    #[test]
    fn the_ramp_is_not_measured() {
        let mut bench = bench(Mode::RandomRead, 4);
        bench.job.ramp = Duration::from_millis(500);
        let measured = bench.run();
        assert_eq!(measured.reads.count(), 40_000);
        assert_eq!(measured.window, Duration::from_secs(1));
        assert_eq!(bench.clock.now_ns(), 1_500_000_000);
    }

    #[test]
    fn a_prefill_writes_every_byte_once_and_ends() {
        let mut bench = bench(Mode::Write, 8);
        bench.job = Job::prefill(TargetName::Volume("memory".into()), 1 << 20);
        bench.job.block = ByteSize(4096);
        let measured = bench.run();
        assert_eq!(measured.writes.count(), 256);
        let contents = bench.target.contents();
        for (index, block) in contents.chunks(4096).enumerate() {
            assert_eq!(block[..8], (index as u64 * 4096).to_le_bytes());
        }
    }

    #[test]
    fn the_first_failure_ends_the_job_and_is_told() {
        let mut bench = bench(Mode::RandomWrite, 8);
        bench.target.fails_at = Some(100);
        let measured = bench.run();
        assert_eq!(measured.errors, 1);
        assert!(measured.first_error.unwrap().contains("broken on request"));
        assert_eq!(measured.writes.count(), 103, "the turn that failed is completed, no other begins");
    }

    #[test]
    fn a_stall_at_the_end_is_in_the_figures() {
        let mut bench = bench(Mode::RandomRead, 1);
        bench.target.turn_ns = 3_000_000_000;
        let measured = bench.run();
        assert_eq!(measured.window, Duration::from_secs(3));
        assert_eq!(measured.reads.summary().unwrap().max_us, 3_000_000.0);
    }

    #[test]
    fn a_live_line_comes_every_second_and_can_stop_the_job() {
        let mut bench = bench(Mode::RandomRead, 2);
        bench.job.runtime = Some(Duration::from_secs(60));
        let mut lines = Vec::new();
        let measured = bench
            .run_with(|live| {
                lines.push(*live);
                if lines.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert!(measured.stopped_early);
        assert_eq!(lines[1].elapsed, Duration::from_secs(2));
        assert_eq!((lines[1].read_iops, lines[1].read_mean_us), (20_000.0, Some(100.0)));
        assert_eq!((lines[1].write_iops, lines[1].write_mean_us), (0.0, None));
        assert_eq!(lines[1].bytes_done, 40_000 * 4096);
        assert_eq!(measured.window, Duration::from_secs(3));
    }

    #[test]
    fn a_job_that_does_not_fit_the_target_is_refused_before_any_operation() {
        let mut bench = bench(Mode::RandomWrite, 1);
        bench.target.alignment_bytes = 8192;
        let error = bench.run_with(|_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, RunError::Plan(PlanError::Alignment { .. })), "{error}");
        assert_eq!(bench.target.in_flight_max, 0);
    }
}
