//! One store's life from a seed: random work, crashes at any moment, and a model that knows better.
//!
//! A turn completes some operations of the drive in random order, stages some work, and ends with
//! `flush`. A life ends by a power cut, a kill, a failing device or a clean shutdown, at a random
//! moment: between any two device operations, within one turn's actions, or while the store is being
//! opened. Then the store is opened again and must hold what [`Model::recover`] allows, with data that
//! verifies and accounting that is exact.

use crate::drive::{Completion, SimDrive};
use crate::inspect::{self, View};
use crate::model::{Change, Effect, Model};
use crate::plan::{LOG_OFFSET_BYTES, Plan};
use crate::random::Random;
use crate::trace::Trace;
use base::hash::mix;
use base::{
    BLOCK_BYTES, Buffer, ClusterId, Epoch, OBJECT_BLOCKS, ObjectKey, OsdId, OsdUuid, PgId, PoolId, Sequence,
    VolumeId, crc32c,
};
use std::collections::{BTreeMap, BTreeSet};
use store::{
    Action, BatchId, DeviceError, Expected, Identity, Options, Role, Sabotage, StageError, Store, WriteRecord,
};
use zerocopy::little_endian::U32;

/// Rounds of completing everything and ending a turn after which a store must have come to rest.
const ROUNDS_MAX: u32 = 20_000;
/// Turns in a row in which a store may answer that it is busy before it is helped along.
const BUSY_TURNS_MAX: u32 = 50;
/// Of so many operations of a life that splits groups one is a split.
const SPLIT_EVERY: u64 = 40;
/// Doublings of a life's groups.
const DOUBLINGS: u32 = 2;
/// Writes to the media after a block's own that prove it durable to any later replay: more than can be
/// in flight together with the writes of two checkpoints.
const WRITES_UNTIL_PROVEN: u64 = 16;

/// Every way of breaking a store on purpose; the checker must notice each.
pub const SABOTAGES: [Sabotage; 9] = [
    Sabotage::ReportBeforeFlush,
    Sabotage::TrustTornBatch,
    Sabotage::DropLastBatch,
    Sabotage::ReuseLiveSegment,
    Sabotage::ReusePinnedSegment,
    Sabotage::IgnoreMount,
    Sabotage::ForgetZero,
    Sabotage::ForgetSplit,
    Sabotage::KeepOldNames,
];

/// What two checkpoints of a life may take: three full logs and six objects' pages, each twice.
const CHECKPOINT_BYTES_MAX: u64 = 512 << 10;

/// How to run a life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Breaks the store on purpose, to see the checker notice.
    pub sabotage: Option<Sabotage>,
    /// Is given every event as a line.
    pub print: Option<fn(&str)>,
}

/// What happened in a life in which nothing was wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Two runs of a seed have the same.
    pub trace_hash: u64,
    /// Actions, completions and staged operations.
    pub events: u64,
    /// Operations staged.
    pub operations: u64,
    /// Power cuts, kills and device failures, those while opening included.
    pub crashes: u64,
    /// Clean shutdowns.
    pub shutdowns: u64,
    /// Operations that survived a crash without having been acknowledged.
    pub survivors: u64,
    /// Times a write was refused because the store was full.
    pub refusals: u64,
    /// Blocks that cleaning moved, of the stores that were alive at the end of each life.
    pub cleaned_blocks: u64,
    /// Batches replayed at all openings.
    pub replayed_batches: u64,
    /// Groups that were split.
    pub splits: u64,
}

/// What went wrong in the life of one seed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// How the store was broken, if it was.
    pub sabotage: Option<Sabotage>,
    /// The turn.
    pub turn: u64,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "seed {} failed in turn {}: {}\n  ", self.seed, self.turn, self.message)?;
        write!(formatter, "{}", replay_command(self.seed, self.sabotage))
    }
}

/// The command that runs `seed` again and prints its trace.
#[must_use]
pub fn replay_command(seed: u64, sabotage: Option<Sabotage>) -> String {
    let sabotage = sabotage.map(|sabotage| format!(" --sabotage {sabotage:?}")).unwrap_or_default();
    format!("replay it with: cargo run -p sim --release -- --store --seed {seed} --trace{sabotage}")
}

/// Runs the life of `seed`.
///
/// # Errors
/// What is wrong with the store, with the command that shows it again.
pub fn run(seed: u64, settings: Settings) -> Result<Report, Failure> {
    let mut life = Life::new(seed, settings);
    match life.live() {
        Ok(()) => Ok(Report {
            trace_hash: life.trace.hash(),
            events: life.trace.events(),
            operations: life.next_token - 1,
            ..life.report
        }),
        Err(message) => Err(Failure { seed, sabotage: settings.sabotage, turn: life.turn, message }),
    }
}

/// As [`run`], with a panic of the store as a failure like any other. Where panics abort, as in release
/// builds, this is the same as [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_guarded(seed: u64, settings: Settings) -> Result<Report, Failure> {
    std::panic::catch_unwind(|| run(seed, settings)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let message = format!("panic: {text}");
        Err(Failure { seed, sabotage: settings.sabotage, turn: 0, message })
    })
}

/// A write whose batch is not sealed: where its data must be found in the batch's buffer.
#[derive(Debug)]
struct Unsealed {
    batch: BatchId,
    offset: usize,
    checksums: Vec<u32>,
}

/// A reader that holds a pin: what it read must stay.
#[derive(Debug)]
struct Reader {
    location: store::Location,
    checksums: Vec<u32>,
    until_turn: u64,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    PowerCut,
    Kill,
    Shutdown,
    DeviceError,
}

#[derive(Debug)]
struct Life {
    random: Random,
    plan: Plan,
    options: Options,
    identity: Identity,
    drive: SimDrive,
    model: Model,
    /// The group of each object and the modulus of each group, with everything that is staged.
    pg_of: Vec<usize>,
    moduli: Vec<u32>,
    /// Decides when a group is split, in lives in which they are: of its own, so that the others are what they were.
    splits: Option<Random>,
    trace: Trace,
    report: Report,
    turn: u64,
    next_token: u64,
    next_sequence: Vec<u64>,
    epochs: Vec<u32>,
    /// Blocks of each object that operations fall on; drawn when the usable size is known.
    range_blocks: u64,
    actions: Vec<Action>,
    data: Vec<u8>,
    unsealed: Vec<Unsealed>,
    /// How often each batch slot was sealed.
    seals: BTreeMap<BatchId, u64>,
    /// Buffers that were sealed and that a slow sender still holds, with the turn in which it lets go.
    held: Vec<(u64, Buffer)>,
    readers: Vec<Reader>,
    /// Rotten blocks by object and block, with the token of the version that rotted.
    rotten: BTreeMap<(usize, usize), u64>,
    /// Device operations until the end; `None` while no end is set.
    moments: Option<u64>,
    /// The moment came: nothing reaches the drive or the store any more.
    cut: bool,
    /// Operations the store gave up, while a device error is being played.
    lost: Option<Vec<u64>>,
    shutdown_done: bool,
    busy_turns: u32,
    /// Zeros to stage before the next write, after the store was full.
    relief: u64,
    /// Durable writes of the drive when the store was opened.
    durable_at_open: u64,
}

impl Life {
    fn new(seed: u64, settings: Settings) -> Life {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        let splits = (seed % 3 == 1).then(|| Random::new(mix(seed)));
        let (pool, modulus) = (PoolId(1), plan.pgs as u32);
        let groups = modulus << splits.as_ref().map_or(0, |_| DOUBLINGS);
        let pgs: Vec<PgId> = (0..groups).map(|index| PgId { pool, index }).collect();
        let key = |object: u32| {
            let volume = VolumeId(1 + u64::from(object) / 2);
            let pg = match splits {
                Some(_) => PgId::of_object(pool, modulus, volume, object),
                None => pgs[object as usize % pgs.len()],
            };
            ObjectKey { pg, volume, object }
        };
        let keys = (0..plan.objects as u32).map(key).collect();
        let options = Options {
            volatile_cache: plan.volatile_cache,
            batches_in_flight_max: 2,
            batch_bytes_max: plan.batch_bytes_max,
            segment_bytes: Some(plan.segment_bytes),
            checkpoint_interval_bytes: plan.checkpoint_interval_bytes,
            pg_log_entries: plan.pg_log_entries,
            sabotage: settings.sabotage,
        };
        let mut life = Life {
            drive: SimDrive::new(plan.drive_bytes(), plan.volatile_cache, random.fork()),
            identity: Identity {
                cluster: ClusterId::from_bytes([1; 16]),
                osd_uuid: OsdUuid::from_bytes([2; 16]),
                osd: OsdId(3),
            },
            next_sequence: vec![1; pgs.len()],
            epochs: vec![1; pgs.len()],
            model: Model::new(pgs, keys, plan.pg_log_entries),
            pg_of: Vec::new(),
            moduli: Vec::new(),
            splits,
            trace: Trace::new(settings.print),
            report: Report::default(),
            random,
            plan,
            options,
            turn: 0,
            next_token: 1,
            range_blocks: 1,
            actions: Vec::new(),
            data: Vec::new(),
            unsealed: Vec::new(),
            seals: BTreeMap::new(),
            held: Vec::new(),
            readers: Vec::new(),
            rotten: BTreeMap::new(),
            moments: None,
            cut: false,
            lost: None,
            shutdown_done: false,
            busy_turns: 0,
            relief: 0,
            durable_at_open: 0,
        };
        life.draw_options();
        life.trace.remark(|| format!("seed {seed}: {:?}", life.plan));
        life
    }

    fn live(&mut self) -> Result<(), String> {
        self.format()?;
        let mut store = self.open(false)?;
        let usable_blocks = store.statistics().usable_bytes / BLOCK_BYTES as u64;
        let demand = usable_blocks * self.plan.demand_percent / 100 / self.plan.objects as u64;
        self.range_blocks = demand.clamp(1, OBJECT_BLOCKS as u64);
        if self.plan.fill_first {
            self.fill_up(&mut store)?;
        }
        for _ in 0..self.plan.restarts {
            let ending = match self.random.below(20) {
                0..=10 => Ending::PowerCut,
                11..=13 => Ending::Kill,
                14..=18 => Ending::Shutdown,
                _ => Ending::DeviceError,
            };
            let clean = self.live_once(&mut store, ending)?;
            self.report.cleaned_blocks += store.statistics().cleaned_blocks;
            drop(store);
            store = self.open(clean)?;
        }
        self.work(&mut store, 5)?;
        self.empty_out(&mut store)?;
        self.shut_down(&mut store)?;
        drop(store);
        self.drive.power_cut();
        self.open(true)?;
        Ok(())
    }

    /// Works until the end comes, and returns whether it was a clean shutdown.
    fn live_once(&mut self, store: &mut Store, ending: Ending) -> Result<bool, String> {
        let short = self.random.percent(self.plan.short_percent);
        let turns =
            if short { self.random.between(1, 8) } else { self.random.between(9, self.plan.turns_max) };
        if ending != Ending::DeviceError && (ending != Ending::Shutdown || self.random.percent(30)) {
            self.moments = Some(self.random.between(1, turns * 5));
        }
        self.trace
            .remark(|| format!("a life of {turns} turns and {:?} moments, ending {ending:?}", self.moments));
        self.work(store, turns)?;
        let clean = match ending {
            Ending::DeviceError => {
                self.fail_device(store)?;
                false
            }
            Ending::Shutdown if !self.cut => {
                self.shut_down(store)?;
                !self.cut
            }
            _ => false,
        };
        let kill = ending == Ending::Kill || (ending != Ending::PowerCut && self.random.percent(30));
        self.trace.note(if kill { "kill" } else { "power cut" }, &[u64::from(clean)]);
        if kill {
            self.drive.kill();
        } else {
            self.drive.power_cut();
        }
        if clean {
            self.report.shutdowns += 1;
        } else {
            self.report.crashes += 1;
        }
        Ok(clean)
    }

    /// What an operator may change between two starts.
    fn draw_options(&mut self) {
        self.options.batches_in_flight_max = self.random.between(1, 3) as usize;
    }

    fn format(&mut self) -> Result<(), String> {
        if self.random.one_in(20) {
            self.drive.arm(self.random.below(6));
            let result = store::format(&mut self.drive, self.identity, &self.options);
            self.trace.note("format with a fuse", &[u64::from(result.is_ok())]);
            if result.is_err() && self.drive.is_powered() {
                return Err(format!("cannot format: {result:?}"));
            }
            self.drive.power_on();
            // Whatever a half-made format looks like, looking must be safe.
            let _ = store::identify(&mut self.drive);
        }
        store::format(&mut self.drive, self.identity, &self.options)
            .map_err(|error| format!("cannot format: {error}"))
    }

    /// Opens the store, however often the power fails meanwhile, and compares it with the model.
    fn open(&mut self, clean: bool) -> Result<Store, String> {
        self.draw_options();
        self.moments = None;
        self.cut = false;
        self.lost = None;
        self.shutdown_done = false;
        self.busy_turns = 0;
        self.actions.clear();
        self.unsealed.clear();
        self.seals.clear();
        self.held.clear();
        self.readers.clear();
        self.drive.power_on();
        let expected =
            Expected { cluster: Some(self.identity.cluster), osd_uuid: Some(self.identity.osd_uuid) };
        let store = loop {
            if self.random.percent(25) {
                self.drive.arm(self.random.below(40));
            }
            match Store::open(&mut self.drive, &expected, self.options.clone()) {
                Ok(store) => break store,
                Err(error) if self.drive.is_powered() => return Err(format!("cannot open: {error}")),
                Err(_) => {
                    self.trace.note("power cut while opening", &[]);
                    self.report.crashes += 1;
                    self.drive.power_on();
                }
            }
        };
        self.drive.power_on();
        self.durable_at_open = self.drive.durable_writes();
        let replayed = store.statistics().replayed_batches;
        self.report.replayed_batches += replayed;
        self.trace.note("opened", &[u64::from(clean), replayed]);
        if clean && replayed != 0 {
            return Err(format!("{replayed} batches were replayed after a clean shutdown"));
        }
        let view = View::of(&store, &self.model)?;
        let staged = self.model.staged.len();
        let survivors = self.model.recover(&view.shown)?;
        self.trace.note("recovered", &[survivors as u64, staged as u64]);
        if clean && staged != 0 {
            return Err(format!("{staged} operations were not durable when the clean shutdown was done"));
        }
        self.report.survivors += survivors as u64;
        self.check_everything(&store)?;
        self.pg_of.clone_from(&self.model.pg_of);
        self.moduli.clone_from(&self.model.moduli);
        if self.splits.is_some() {
            let first = self.plan.pgs as u32;
            self.moduli.iter_mut().take(self.plan.pgs).for_each(|modulus| *modulus = first.max(*modulus));
        }
        // A new primary continues each log from where it stands, often in a new epoch.
        for (pg, log) in self.model.logs.iter().enumerate() {
            let (epoch, sequence) = log.position().unwrap_or((Epoch(1), Sequence(0)));
            self.epochs[pg] = epoch.0 + u32::from(self.random.percent(50));
            self.next_sequence[pg] = sequence.0 + 1;
        }
        Ok(store)
    }

    fn work(&mut self, store: &mut Store, turns: u64) -> Result<(), String> {
        for _ in 0..turns {
            self.turn += 1;
            if !self.random.percent(self.plan.slow_percent) {
                let completions = self.random.below(self.drive.in_flight() as u64 + 1);
                for _ in 0..completions {
                    self.complete_one(store)?;
                }
            }
            self.let_go(store, self.turn)?;
            let operations = self.random.below(self.plan.operations_per_turn_max + 1);
            for _ in 0..operations {
                if self.cut || !self.stage_something(store)? {
                    break;
                }
            }
            if self.cut {
                return Ok(());
            }
            if self.random.percent(90) {
                self.end_turn(store)?;
            }
            if self.cut {
                return Ok(());
            }
            self.look_around(store)?;
        }
        Ok(())
    }

    fn end_turn(&mut self, store: &mut Store) -> Result<(), String> {
        store.flush(&mut self.actions);
        self.perform()
    }

    /// One device operation less until the end.
    fn moment(&mut self) {
        if let Some(moments) = &mut self.moments {
            *moments = moments.saturating_sub(1);
            self.cut = *moments == 0;
        }
    }

    /// Does what the store asked for, up to the end if it comes in between.
    fn perform(&mut self) -> Result<(), String> {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            if self.cut {
                break;
            }
            self.perform_one(action)?;
        }
        self.actions = actions;
        Ok(())
    }

    fn perform_one(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Write { token, offset, buffer, length } => {
                let content = crc32c(&buffer.bytes()[..length]);
                self.trace.note("write", &[u64::from(token), offset, length as u64, u64::from(content)]);
                self.check_place(offset, length)?;
                self.drive.submit_write(token, offset, buffer, length)?;
                self.moment();
            }
            Action::Flush { token } => {
                self.trace.note("flush", &[u64::from(token)]);
                self.drive.submit_flush(token);
                self.moment();
            }
            Action::Read { token, offset, length } => {
                self.trace.note("read", &[u64::from(token), offset, length as u64]);
                self.drive.submit_read(token, offset, length)?;
                self.moment();
            }
            Action::Sealed { batch, buffer } => {
                self.trace.note("sealed", &[u64::from(batch.0)]);
                self.sealed(batch, buffer)?;
            }
            Action::Durable { token } => {
                self.trace.note("durable", &[token]);
                self.model.durable(token)?;
            }
            Action::Lost { token, reason } => {
                self.trace.note("lost", &[token]);
                match &mut self.lost {
                    Some(lost) => lost.push(token),
                    None => return Err(format!("operation {token} was lost on a sound drive: {reason}")),
                }
            }
            Action::ShutdownDone => {
                self.trace.note("shutdown done", &[]);
                self.shutdown_done = true;
            }
        }
        Ok(())
    }

    /// A write belongs to one superblock copy or into one segment.
    fn check_place(&self, offset: u64, length: usize) -> Result<(), String> {
        let end = offset + length as u64;
        let sound = if offset < LOG_OFFSET_BYTES {
            (offset == 0 || offset == 1 << 20) && length == BLOCK_BYTES
        } else {
            let segment = |place: u64| (place - LOG_OFFSET_BYTES) / u64::from(self.plan.segment_bytes);
            segment(offset) == segment(end - 1)
        };
        if sound {
            return Ok(());
        }
        Err(format!("a write of {length} bytes at {offset} is in no single segment and no superblock copy"))
    }

    /// A batch's data is final: it must be what was staged, as replicas are sent it from there.
    fn sealed(&mut self, batch: BatchId, buffer: Buffer) -> Result<(), String> {
        *self.seals.entry(batch).or_default() += 1;
        for staged in self.unsealed.extract_if(.., |staged| staged.batch == batch) {
            let data = &buffer.bytes()[staged.offset..];
            for (block, checksum) in data.chunks_exact(BLOCK_BYTES).zip(&staged.checksums) {
                if crc32c(block) != *checksum {
                    return Err(format!("{batch:?} is sealed, and its data is not what was staged"));
                }
            }
        }
        if self.random.percent(20) {
            self.held.push((self.turn + self.random.below(4), buffer));
        }
        Ok(())
    }

    fn complete_one(&mut self, store: &mut Store) -> Result<(), String> {
        if self.cut {
            return Ok(());
        }
        let Some(completion) = self.drive.complete_any() else { return Ok(()) };
        self.moment();
        if self.cut {
            return Ok(());
        }
        match completion {
            Completion::Written(token) => {
                self.trace.note("written", &[u64::from(token)]);
                store.handle_written(token, Ok(()), &mut self.actions);
            }
            Completion::Flushed(token) => {
                self.trace.note("flushed", &[u64::from(token)]);
                store.handle_flushed(token, Ok(()), &mut self.actions);
            }
            Completion::Read(token, buffer, length) => {
                self.trace.note("read done", &[u64::from(token)]);
                store.handle_read(token, Ok(&buffer.bytes()[..length]), &mut self.actions);
            }
        }
        self.perform()
    }

    /// Stages one operation; `false` when the store has no room right now.
    fn stage_something(&mut self, store: &mut Store) -> Result<bool, String> {
        if let Some((object, modulus)) = self.draw_split() {
            return self.stage(store, object, 0, Effect::Split(modulus));
        }
        let object = self.random.index(self.plan.objects);
        let kind = self.random.below(100);
        let zero = self.relief > 0 || kind < self.plan.zero_percent;
        if zero {
            let (first_block, count) = if self.random.percent(15) {
                (0, OBJECT_BLOCKS as u16)
            } else {
                self.draw_range(self.range_blocks)
            };
            self.stage(store, object, first_block, Effect::Zero(count))
        } else if kind < self.plan.zero_percent + self.plan.mark_percent {
            self.stage(store, object, 0, Effect::Mark)
        } else {
            let (first_block, count) = self.draw_range(self.plan.write_blocks_max);
            let checksums = self.fill(first_block, count);
            self.stage(store, object, first_block, Effect::Write(checksums))
        }
    }

    /// A group with something in its log and how it is split, now and then.
    fn draw_split(&mut self) -> Option<(usize, u32)> {
        let random = self.splits.as_mut()?;
        if self.relief > 0 || !random.one_in(SPLIT_EVERY) {
            return None;
        }
        let object = random.index(self.plan.objects);
        let pg = self.pg_of[object];
        let modulus = 2 * self.moduli[pg];
        let is_possible = self.next_sequence[pg] > 1 && modulus as usize <= self.model.pgs.len();
        is_possible.then_some((object, modulus))
    }

    fn draw_range(&mut self, blocks_max: u64) -> (u16, u16) {
        let first = self.random.below(self.range_blocks);
        let count = self.random.between(1, blocks_max.min(self.range_blocks - first));
        (first as u16, count as u16)
    }

    /// Makes the data that the next operation would write, and its checksums.
    fn fill(&mut self, first_block: u16, count: u16) -> Vec<u32> {
        self.data.resize(usize::from(count) * BLOCK_BYTES, 0);
        let token = self.next_token;
        let blocks = self.data.chunks_exact_mut(BLOCK_BYTES).zip(u64::from(first_block)..);
        blocks
            .map(|(bytes, block)| {
                fill_block(bytes, token, block);
                crc32c(bytes)
            })
            .collect()
    }

    fn stage(
        &mut self,
        store: &mut Store,
        object: usize,
        first_block: u16,
        effect: Effect,
    ) -> Result<bool, String> {
        let (token, pg) = (self.next_token, self.pg_of[object]);
        let role = match &effect {
            Effect::Zero(_) => self.random.choose(&[Role::Primary, Role::Replica, Role::Housekeeping]),
            _ => self.random.choose(&[Role::Primary, Role::Primary, Role::Replica]),
        };
        let mut operation = Change {
            token,
            object,
            epoch: Epoch(self.epochs[pg]),
            sequence: Sequence(self.next_sequence[pg]),
            first_block,
            effect,
            batch: None,
        };
        match self.offer(store, &mut operation, role) {
            Ok(()) => {
                let numbers =
                    [token, object as u64, u64::from(first_block), u64::from(operation.block_count())];
                self.trace.note(name_of(&operation.effect), &numbers);
                self.relief =
                    self.relief.saturating_sub(u64::from(matches!(operation.effect, Effect::Zero(_))));
                self.next_token += 1;
                self.was_staged(operation);
                self.busy_turns = 0;
                Ok(true)
            }
            Err(StageError::Busy) => {
                self.trace.note("busy", &[]);
                self.busy_turns += 1;
                if self.busy_turns >= BUSY_TURNS_MAX {
                    self.help_along(store, &mut operation, role)?;
                }
                Ok(false)
            }
            Err(StageError::Full) => {
                self.refused_as_full(store, &operation)?;
                Ok(true)
            }
            Err(error) => Err(format!("operation {token} was refused on a sound drive: {error}")),
        }
    }

    fn offer(&mut self, store: &mut Store, operation: &mut Change, role: Role) -> Result<(), StageError> {
        let record = WriteRecord {
            key: ObjectKey {
                pg: self.model.pgs[self.pg_of[operation.object]],
                ..self.model.keys[operation.object]
            },
            epoch: operation.epoch,
            sequence: operation.sequence,
            origin: 0,
            first_block: operation.first_block,
            block_count: operation.block_count(),
            token: operation.token,
            role,
        };
        match &operation.effect {
            Effect::Write(checksums) => {
                let little_endian: Vec<U32> = checksums.iter().copied().map(U32::new).collect();
                let staged = store.stage_write(&record, &little_endian, &self.data)?;
                let seals = self.seals.get(&staged.batch).copied().unwrap_or(0);
                operation.batch = Some(u64::from(staged.batch.0) << 48 | seals);
                let (offset, checksums) = (staged.offset as usize, checksums.clone());
                self.unsealed.push(Unsealed { batch: staged.batch, offset, checksums });
                Ok(())
            }
            Effect::Zero(_) => store.stage_zero(&record),
            Effect::Mark => {
                let (pg, modulus) = (record.key.pg, self.moduli[self.pg_of[operation.object]]);
                store.stage_mark(pg, modulus, operation.epoch, operation.sequence, operation.token)
            }
            Effect::Split(modulus) => store.stage_split(record.key.pg, *modulus, operation.token),
        }
    }

    fn was_staged(&mut self, operation: Change) {
        let pg = self.pg_of[operation.object];
        if let Effect::Split(modulus) = operation.effect {
            let child = pg + modulus as usize / 2;
            (self.moduli[pg], self.moduli[child]) = (modulus, modulus);
            (self.epochs[child], self.next_sequence[child]) = (self.epochs[pg], self.next_sequence[pg]);
            for (key, pg_of) in self.model.keys.iter().zip(&mut self.pg_of) {
                if *pg_of == pg && !self.model.pgs[pg].holds(modulus, key.volume, key.object) {
                    *pg_of = child;
                }
            }
            self.report.splits += 1;
        } else {
            self.next_sequence[pg] += 1;
        }
        self.model.staged.push_back(operation);
    }

    fn refused_as_full(&mut self, store: &Store, operation: &Change) -> Result<(), String> {
        self.trace.note("full", &[]);
        self.report.refusals += 1;
        let statistics = store.statistics();
        if !matches!(operation.effect, Effect::Write(_)) {
            return Err(format!("a full store refused a {}", name_of(&operation.effect)));
        }
        // Checkpoints count as used too, which matters on a drive as small as the smallest here.
        if statistics.live_bytes + CHECKPOINT_BYTES_MAX < statistics.usable_bytes / 2 {
            return Err(format!("refused as full with {statistics:?}"));
        }
        self.relief = self.random.between(1, 6);
        Ok(())
    }

    /// The store has been busy for many turns: with everything completed and nobody in its way, it must
    /// take an operation in the end. Nothing is staged by this.
    fn help_along(&mut self, store: &mut Store, operation: &mut Change, role: Role) -> Result<(), String> {
        self.let_go(store, u64::MAX)?;
        for _ in 0..ROUNDS_MAX {
            while self.drive.in_flight() > 0 && !self.cut {
                self.complete_one(store)?;
            }
            if !self.cut {
                self.end_turn(store)?;
            }
            if self.cut {
                return Ok(());
            }
            if self.drive.in_flight() == 0 {
                return match self.offer(store, operation, role) {
                    Err(StageError::Busy) => Err(format!(
                        "stuck: busy with nothing in flight and nothing to do, {:?}",
                        store.statistics()
                    )),
                    Err(StageError::Full) => self.refused_as_full(store, operation),
                    Err(error) => Err(format!("refused on a sound drive: {error}")),
                    Ok(()) => {
                        self.trace.note("stage late", &[operation.token]);
                        self.was_staged(operation.clone());
                        self.next_token += 1;
                        self.busy_turns = 0;
                        Ok(())
                    }
                };
            }
        }
        Err(format!("busy for {ROUNDS_MAX} rounds without coming to rest, {:?}", store.statistics()))
    }

    /// Completes everything until nothing is left to do.
    fn settle(&mut self, store: &mut Store) -> Result<(), String> {
        self.let_go(store, u64::MAX)?;
        for _ in 0..ROUNDS_MAX {
            while self.drive.in_flight() > 0 && !self.cut {
                self.complete_one(store)?;
            }
            if self.cut {
                return Ok(());
            }
            self.end_turn(store)?;
            if self.drive.in_flight() == 0 {
                return match self.model.staged.len() {
                    0 => Ok(()),
                    staged => Err(format!("the store rests, but {staged} operations are not durable")),
                };
            }
        }
        Err(format!("the store did not come to rest in {ROUNDS_MAX} rounds, {:?}", store.statistics()))
    }

    /// Ends the readers and senders whose turn it is; what a reader pinned must not have changed.
    fn let_go(&mut self, store: &mut Store, turn: u64) -> Result<(), String> {
        self.held.retain(|(until, _)| *until > turn);
        for reader in self.readers.extract_if(.., |reader| reader.until_turn <= turn) {
            for (block, checksum) in (reader.location.0..).zip(&reader.checksums) {
                if crc32c(self.drive.block(block)) != *checksum {
                    return Err(format!("block {block} of the drive changed while a reader had it pinned"));
                }
            }
            store.unpin(reader.location);
        }
        Ok(())
    }

    /// Reads, checks, and lets bits rot, each now and then.
    fn look_around(&mut self, store: &mut Store) -> Result<(), String> {
        if self.random.percent(10) {
            self.begin_read(store);
        }
        if self.random.percent(15) {
            let object = self.random.index(self.plan.objects);
            inspect::check_object(store, &self.model, object, &self.drive, &self.rotten)?;
        }
        if self.random.percent(2) {
            self.check_everything(store)?;
        }
        if self.plan.rot && self.random.percent(5) {
            self.let_rot(store)?;
        }
        if self.random.one_in(150) {
            self.settle(store)?;
            if !self.cut {
                self.check_fresh_replay(store)?;
            }
        }
        Ok(())
    }

    fn begin_read(&mut self, store: &mut Store) {
        let key = self.model.keys[self.random.index(self.plan.objects)];
        let (first, count) = self.draw_range(16);
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        store.lookup(&key, first, count, &mut extents, &mut checksums);
        let until_turn = self.turn + self.random.between(1, 30);
        for extent in extents {
            let Some(location) = extent.location else { continue };
            store.pin(location);
            let blocks = location.0..location.0 + u32::from(extent.block_count);
            let checksums = blocks.map(|block| crc32c(self.drive.block(block))).collect();
            self.readers.push(Reader { location, checksums, until_turn });
        }
    }

    /// Rots one block that no reader looks at and that is certainly durable.
    fn let_rot(&mut self, store: &Store) -> Result<(), String> {
        if self.drive.durable_writes() - self.durable_at_open < WRITES_UNTIL_PROVEN {
            return Ok(());
        }
        let object = self.random.index(self.plan.objects);
        let block = self.random.below(self.range_blocks) as usize;
        let view = View::of(store, &self.model)?;
        let Some(location) = view.locations[object][block] else { return Ok(()) };
        let pinned = self.readers.iter().any(|reader| {
            (reader.location.0..reader.location.0 + reader.checksums.len() as u32).contains(&location)
        });
        if !pinned && self.drive.durable_writes_after(location) >= WRITES_UNTIL_PROVEN {
            self.trace.note("rot", &[object as u64, block as u64, u64::from(location)]);
            self.drive.rot(location);
            self.rotten.insert((object, block), self.model.blocks[object][block].token);
        }
        Ok(())
    }

    fn check_everything(&mut self, store: &Store) -> Result<(), String> {
        for object in 0..self.plan.objects {
            inspect::check_object(store, &self.model, object, &self.drive, &self.rotten)?;
        }
        inspect::check_logs(store, &self.model)?;
        store.verify().map_err(|wrong| format!("the store's own accounting is wrong: {wrong}"))
    }

    /// A store opened from what is on the drive must be the same as this one, place by place.
    fn check_fresh_replay(&mut self, store: &Store) -> Result<(), String> {
        self.trace.note("fresh replay", &[]);
        let mut copy = self.drive.copy();
        let expected = Expected { cluster: None, osd_uuid: None };
        let fresh = Store::open(&mut copy, &expected, self.options.clone())
            .map_err(|error| format!("cannot open a copy of the drive: {error}"))?;
        fresh.verify().map_err(|wrong| format!("the accounting of a fresh replay is wrong: {wrong}"))?;
        let (here, there) = (View::of(store, &self.model)?, View::of(&fresh, &self.model)?);
        for (object, key) in self.model.keys.iter().enumerate() {
            for block in 0..OBJECT_BLOCKS {
                let place =
                    |view: &View| (view.locations[object][block], view.shown.checksums[object][block]);
                if place(&here) != place(&there) {
                    return Err(format!(
                        "block {block} of {key} is at {:x?} in the index and at {:x?} in that of a fresh replay",
                        place(&here),
                        place(&there)
                    ));
                }
            }
        }
        inspect::check_logs(&fresh, &self.model)
    }

    /// Writes every block that operations fall on once, as far as there is space.
    fn fill_up(&mut self, store: &mut Store) -> Result<(), String> {
        for object in 0..self.plan.objects {
            let mut block = 0;
            while block < self.range_blocks {
                let count = self.plan.write_blocks_max.min(self.range_blocks - block);
                let checksums = self.fill(block as u16, count as u16);
                let effect = Effect::Write(checksums);
                if !self.stage(store, object, block as u16, effect)? {
                    self.settle(store)?;
                } else if self.relief > 0 {
                    return self.settle(store);
                } else {
                    block += count;
                }
            }
        }
        self.settle(store)
    }

    /// Deletes everything, which a store must always allow, and finds room again.
    fn empty_out(&mut self, store: &mut Store) -> Result<(), String> {
        for object in 0..self.plan.objects {
            for _ in 0..ROUNDS_MAX {
                if self.stage(store, object, 0, Effect::Zero(OBJECT_BLOCKS as u16))? {
                    break;
                }
                self.settle(store)?;
            }
            self.end_turn(store)?;
        }
        self.settle(store)?;
        self.check_everything(store)?;
        let objects: BTreeSet<ObjectKey> = store.objects().collect();
        if store.is_full() || !objects.is_empty() {
            return Err(format!("everything was deleted, yet: {objects:?}, {:?}", store.statistics()));
        }
        let checksums = self.fill(0, 1);
        if !self.stage(store, 0, 0, Effect::Write(checksums))? {
            return Err(format!("an empty store at rest is busy: {:?}", store.statistics()));
        }
        self.settle(store)
    }

    fn shut_down(&mut self, store: &mut Store) -> Result<(), String> {
        self.let_go(store, u64::MAX)?;
        self.trace.note("shut down", &[]);
        store.begin_shutdown(&mut self.actions);
        self.perform()?;
        for _ in 0..ROUNDS_MAX {
            if self.cut {
                return Ok(());
            }
            if self.shutdown_done {
                return match (self.drive.in_flight(), self.model.staged.len()) {
                    (0, 0) => Ok(()),
                    (flying, staged) => Err(format!(
                        "shutdown is done with {flying} operations in flight and {staged} not durable"
                    )),
                };
            }
            while self.drive.in_flight() > 0 && !self.cut && !self.shutdown_done {
                self.complete_one(store)?;
            }
            if !self.cut && !self.shutdown_done {
                self.end_turn(store)?;
            }
        }
        Err(format!("the shutdown was not done after {ROUNDS_MAX} rounds, {:?}", store.statistics()))
    }

    /// One operation of the drive fails: a store whose write failed must stop and give up, by name,
    /// everything that is not durable.
    fn fail_device(&mut self, store: &mut Store) -> Result<(), String> {
        for _ in 0..50 {
            if self.drive.in_flight() > 0 {
                break;
            }
            self.work(store, 1)?;
        }
        let Some(completion) = self.drive.fail_any() else { return Ok(()) };
        self.lost = Some(Vec::new());
        let error = DeviceError("the simulated drive failed".to_owned());
        let fatal = match completion {
            Completion::Written(token) => {
                self.trace.note("write failed", &[u64::from(token)]);
                store.handle_written(token, Err(error), &mut self.actions);
                true
            }
            Completion::Flushed(token) => {
                self.trace.note("flush failed", &[u64::from(token)]);
                store.handle_flushed(token, Err(error), &mut self.actions);
                true
            }
            Completion::Read(token, _, _) => {
                self.trace.note("read failed", &[u64::from(token)]);
                store.handle_read(token, Err(error), &mut self.actions);
                false
            }
        };
        self.perform()?;
        self.end_turn(store)?;
        if store.failure().is_none() {
            return if fatal { Err("the store goes on after a write failed".to_owned()) } else { Ok(()) };
        }
        let staged: Vec<u64> = self.model.staged.iter().map(|operation| operation.token).collect();
        let mut lost = self.lost.take().unwrap_or_default();
        lost.sort_unstable();
        if lost != staged {
            return Err(format!("the drive failed: {staged:?} were not durable, but {lost:?} were given up"));
        }
        match store.stage_mark(self.model.pgs[0], 1, Epoch(1), Sequence(u64::MAX), u64::MAX) {
            Err(StageError::Failed(_)) => Ok(()),
            other => Err(format!("a failed store answers {other:?}")),
        }
    }
}

fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::Write(_) => "stage write",
        Effect::Zero(_) => "stage zero",
        Effect::Mark => "stage mark",
        Effect::Split(_) => "stage split",
    }
}

/// Data that no other write and no other block has.
fn fill_block(bytes: &mut [u8], token: u64, block: u64) {
    let start = mix(token.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (block << 48));
    for (word, index) in bytes.chunks_exact_mut(8).zip(0u64..) {
        word.copy_from_slice(&start.wrapping_add(index.wrapping_mul(0xbf58_476d_1ce4_e5b9)).to_le_bytes());
    }
}
