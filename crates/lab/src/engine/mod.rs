//! The engine: keeps a target's queue full, times every operation, and measures CPU around it.
//!
//! It is generic over the target, so that nothing on the way of an operation is dynamic or allocated.
//! The clock is read twice a turn: once for all operations that a turn submits, once for all it completes.
//!
//! The window that is measured opens after the ramp and closes when the last operation that began in it is
//! done, so that a stall at the end is in the figures and not cut off. Operations from before are not in.
//!
//! A job with a rate asks for each operation when it is due, and its latency counts from then, begun or not: a target that
//! stands still is not spared the operations that would have come meanwhile (coordinated omission).
//!
//! The first operation that fails ends the job: the others in flight are awaited, then it reports.

pub mod contents;
pub mod cpu;
pub mod generator;
pub mod histogram;
pub mod plan;

use crate::engine::contents::Contents;
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

    /// Whether what slots hold is data of the target, and worth a look.
    fn holds_data(&self) -> bool {
        true
    }

    /// The data of a slot, at least one block long. Asked for only while the slot has nothing in flight.
    fn data_mut(&mut self, slot: u32) -> &mut [u8];

    /// Takes one operation. It may begin now or at the next `wait`.
    ///
    /// # Errors
    /// The target is unusable.
    fn submit(&mut self, operation: Operation) -> Result<(), TargetError>;

    /// Begins what was submitted and appends what is done to `completions`. Returns as soon as one
    /// operation is done, and after about `limit` when none is, or sooner.
    ///
    /// # Errors
    /// The target is unusable.
    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError>;
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

/// The state of a running job, given once a second, when the window opens, and in the end.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// Since the job began, ramp included.
    pub elapsed: Duration,
    /// Since the last of these.
    pub since: Duration,
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
    /// Latencies of the measured reads that were done since the last of these.
    pub reads: &'a Latency,
    /// Latencies of the measured writes that were done since the last of these.
    pub writes: &'a Latency,
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
    /// Operations that were due in the window by the job's rate, and not begun in twice its time.
    pub overdue: u64,
    /// Reads that were done, measured or not.
    pub reads_in_all: u64,
    /// Writes that were done, measured or not.
    pub writes_in_all: u64,
    /// What some of the blocks held that were read and written.
    pub contents: Contents,
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
    live: impl FnMut(&Live<'_>) -> ControlFlow<()>,
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
    mut live: impl FnMut(&Live<'_>) -> ControlFlow<()>,
) -> Result<Measured, RunError> {
    let region = job.region(target.bytes(), target.alignment_bytes())?;
    let unusable = |error| RunError::Target { target: job.target.to_string(), error };
    let mut run = Run::new(job, Generator::new(job, region), region.block_bytes, clock.now_ns());
    let mut completions = Vec::with_capacity(job.depth as usize);
    let mut opening = job.ramp.is_zero().then(|| monitor.snapshot());
    run.now_ns = clock.now_ns();
    if opening.is_some() {
        run.open_window(run.now_ns);
        let _ = run.tell(&mut live);
    }
    loop {
        let now_ns = clock.now_ns();
        run.submit(target, now_ns).map_err(unusable)?;
        if run.in_flight() == 0 && matches!(run.phase, Phase::Drain { .. }) {
            break;
        }
        target.wait(run.wait_limit(now_ns), &mut completions).map_err(unusable)?;
        run.now_ns = clock.now_ns();
        for completion in completions.drain(..) {
            run.look(target, &completion);
            run.complete(completion);
        }
        if run.live_due() && run.tell(&mut live).is_break() {
            run.stop();
        }
        if run.ramp_is_over() {
            opening = Some(monitor.snapshot());
            run.open_window(clock.now_ns());
            if run.tell(&mut live).is_break() {
                run.stop();
            }
        }
    }
    let closing = monitor.snapshot();
    // What the last second holds. It is at its end anyway.
    let _ = run.tell(&mut live);
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
    offset: u64,
    /// When it began, or was due.
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
/// Of so many reads, and of so many writes, the contents of one are looked at, the first of all too.
const LOOK_INTERVAL: u64 = 997;

/// When the operations of a job with a rate are due.
#[derive(Clone, Copy, Debug)]
struct Pace {
    interval_ns: f64,
    from_ns: u64,
    /// Since then so many were begun.
    begun: u64,
}

impl Pace {
    fn next_due_ns(&self) -> u64 {
        // A sum of so many intervals would add up what each is rounded by.
        self.from_ns + (self.begun as f64 * self.interval_ns) as u64
    }

    /// How many are due before `end_ns` and not begun.
    fn left_before(&self, end_ns: u64) -> u64 {
        let all = (end_ns.saturating_sub(self.from_ns) as f64 / self.interval_ns).ceil() as u64;
        all.saturating_sub(self.begun)
    }
}

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
    pace: Option<Pace>,
    operations_left: Option<u64>,
    bytes_total: Option<u64>,
    writes_begun: u64,
    operations_done: u64,
    /// Of these.
    reads_done: u64,
    /// Of all seconds that are told.
    reads: Latency,
    writes: Latency,
    /// Since then.
    second_reads: Latency,
    second_writes: Latency,
    live_from_ns: u64,
    live_reads: Interval,
    live_writes: Interval,
    contents: Contents,
    overdue: u64,
    errors: u64,
    first_error: Option<String>,
    stopped_early: bool,
}

impl Run {
    fn new(job: &Job, generator: Generator, block_bytes: u32, now_ns: u64) -> Run {
        let vacant = Slot { kind: Kind::Read, offset: 0, started_ns: 0, measured: false };
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
            pace: job.rate_iops.map(|rate| Pace {
                interval_ns: 1e9 / f64::from(rate),
                from_ns: now_ns,
                begun: 0,
            }),
            operations_left: operations,
            bytes_total: job.io_size,
            writes_begun: 0,
            operations_done: 0,
            reads_done: 0,
            reads: Latency::default(),
            writes: Latency::default(),
            second_reads: Latency::default(),
            second_writes: Latency::default(),
            live_from_ns: now_ns,
            live_reads: Interval::default(),
            live_writes: Interval::default(),
            contents: Contents::default(),
            overdue: 0,
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
        if let Some(pace) = &mut self.pace {
            (pace.from_ns, pace.begun) = (now_ns, 0);
        }
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

    /// How long a turn may last at most.
    fn wait_limit(&self, now_ns: u64) -> Duration {
        let second = Duration::from_nanos(LIVE_INTERVAL_NS);
        match &self.pace {
            Some(pace) if !self.free.is_empty() && !matches!(self.phase, Phase::Drain { .. }) => {
                Duration::from_nanos(pace.next_due_ns().saturating_sub(now_ns)).min(second)
            }
            _ => second,
        }
    }

    /// Whether nothing more is to begin.
    fn is_over(&mut self, now_ns: u64) -> bool {
        if self.operations_left == Some(0) {
            return true;
        }
        let (Phase::Window { opened_ns }, Some(runtime_ns)) = (self.phase, self.runtime_ns) else {
            return false;
        };
        let end_ns = opened_ns + runtime_ns;
        match &self.pace {
            None => now_ns >= end_ns,
            // What was due is asked for, though late, but not for ever.
            Some(pace) if now_ns >= end_ns + runtime_ns => {
                self.overdue = pace.left_before(end_ns);
                true
            }
            Some(pace) => pace.next_due_ns() >= end_ns && now_ns >= end_ns,
        }
    }

    /// Fills every free slot, unless the job is at its end, with what is due.
    fn submit<T: Target>(&mut self, target: &mut T, now_ns: u64) -> Result<(), TargetError> {
        if self.is_over(now_ns) {
            self.drain();
        }
        let (measured, end_ns) = match self.phase {
            Phase::Ramp => (false, None),
            Phase::Window { opened_ns } => (true, self.runtime_ns.map(|runtime| opened_ns + runtime)),
            Phase::Drain { .. } => return Ok(()),
        };
        while self.operations_left != Some(0) && !self.free.is_empty() {
            let mut started_ns = now_ns;
            if let Some(pace) = &mut self.pace {
                let due_ns = pace.next_due_ns();
                if due_ns > now_ns || end_ns.is_some_and(|end_ns| due_ns >= end_ns) {
                    break;
                }
                started_ns = due_ns;
                pace.begun += 1;
            }
            let slot = self.free.pop().expect("one was free");
            let (kind, offset) = self.generator.next_operation();
            if kind == Kind::Write {
                let holds_data = target.holds_data();
                let data = &mut target.data_mut(slot)[..self.block_bytes as usize];
                self.generator.fill(offset, data);
                // Not when it is done: the bytes may be on their way still.
                if self.writes_begun.is_multiple_of(LOOK_INTERVAL) && holds_data {
                    self.contents.look(kind, offset, data);
                }
            }
            self.writes_begun += u64::from(kind == Kind::Write);
            self.slots[slot as usize] = Slot { kind, offset, started_ns, measured };
            target.submit(Operation { slot, kind, offset, length: self.block_bytes })?;
            if let Some(left) = &mut self.operations_left {
                *left -= 1;
            }
        }
        Ok(())
    }

    /// Looks at what some of the reads brought.
    fn look<T: Target>(&mut self, target: &mut T, completion: &Completion) {
        let Slot { kind, offset, .. } = self.slots[completion.slot as usize];
        let is_due = kind == Kind::Read && self.reads_done.is_multiple_of(LOOK_INTERVAL);
        if is_due && completion.result.is_ok() && target.holds_data() {
            let data = &target.data_mut(completion.slot)[..self.block_bytes as usize];
            self.contents.look(kind, offset, data);
        }
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
        self.reads_done += u64::from(slot.kind == Kind::Read);
        let latency_ns = self.now_ns.saturating_sub(slot.started_ns);
        let (interval, latency) = match slot.kind {
            Kind::Read => (&mut self.live_reads, &mut self.second_reads),
            Kind::Write => (&mut self.live_writes, &mut self.second_writes),
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

    /// Tells how it goes, and begins the next second.
    fn tell(&mut self, live: &mut impl FnMut(&Live<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let since_ns = self.now_ns.saturating_sub(self.live_from_ns);
        let per_second = |operations: u64| operations as f64 / (since_ns.max(1) as f64 / 1e9);
        let flow = live(&Live {
            elapsed: Duration::from_nanos(self.now_ns - self.began_ns),
            since: Duration::from_nanos(since_ns),
            ramping: self.phase == Phase::Ramp,
            read_iops: per_second(self.live_reads.operations),
            write_iops: per_second(self.live_writes.operations),
            read_mean_us: self.live_reads.mean_us(),
            write_mean_us: self.live_writes.mean_us(),
            bytes_done: self.operations_done * u64::from(self.block_bytes),
            bytes_total: self.bytes_total,
            in_flight: self.in_flight() as u32,
            reads: &self.second_reads,
            writes: &self.second_writes,
        });
        self.reads.take(&mut self.second_reads);
        self.writes.take(&mut self.second_writes);
        self.live_from_ns = self.now_ns;
        self.live_reads = Interval::default();
        self.live_writes = Interval::default();
        flow
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
            overdue: self.overdue,
            reads_in_all: self.reads_done,
            writes_in_all: self.operations_done - self.reads_done,
            contents: self.contents,
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

        fn run_with(&mut self, live: impl FnMut(&Live<'_>) -> ControlFlow<()>) -> Result<Measured, RunError> {
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
                lines.push((live.elapsed, live.since, live.read_iops, live.read_mean_us, live.bytes_done));
                assert_eq!((live.write_iops, live.write_mean_us), (0.0, None));
                assert_eq!(live.reads.count(), (live.read_iops * live.since.as_secs_f64()) as u64);
                if lines.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert!(measured.stopped_early);
        assert_eq!(lines[0], (Duration::ZERO, Duration::ZERO, 0.0, None, 0), "the window opens");
        let second = Duration::from_secs(1);
        assert_eq!(lines[2], (2 * second, second, 20_000.0, Some(100.0), 40_000 * 4096));
        assert_eq!(measured.window, 3 * second);
        assert_eq!((lines.len(), measured.reads.count()), (5, 60_000), "the seconds have all");
    }

    #[test]
    fn a_rate_is_kept_and_who_stands_still_is_not_spared_what_was_due_meanwhile() {
        let mut bench = bench(Mode::RandomRead, 8);
        bench.target.turn_ns = 50_000;
        (bench.job.rate_iops, bench.job.runtime) = (Some(1000), Some(Duration::from_secs(10)));
        let mut stalled = false;
        let clock = bench.clock.clone();
        let measured = bench
            .run_with(|live| {
                if live.elapsed >= Duration::from_secs(5) && !std::mem::replace(&mut stalled, true) {
                    clock.advance(200_000_000);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((measured.reads.count(), measured.overdue), (10_000, 0));
        let summary = measured.reads.summary().unwrap();
        assert!((49.0..60.0).contains(&summary.p50_us), "{summary:?}");
        // Of 10,000 those 200 were late that were due in these 200 ms, by 100 ms on average.
        assert!((95_000.0..105_000.0).contains(&summary.p99_us), "{summary:?}");
        assert!((185_000.0..200_100.0).contains(&summary.p99_9_us), "{summary:?}");
        // A rate that cannot be had: half of what was due was done, later and later.
        bench.target.completions_per_turn = 1;
        bench.target.turn_ns = 4_000_000;
        let measured = bench.run();
        let done = measured.reads.count();
        assert!((5_000..5_010).contains(&done), "{done}");
        assert_eq!(measured.overdue, 10_000 - done);
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
