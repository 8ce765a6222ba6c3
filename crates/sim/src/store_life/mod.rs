//! One store's life from a seed: random work, crashes at any moment, and a model that knows better.
//!
//! A turn completes some operations of the drive in random order, stages some work, and ends with
//! `flush`. A life ends by a power cut, a kill, a failing device or a clean shutdown, at a random
//! moment: between any two device operations, within one turn's actions, or while the store is being
//! opened. Then the store is opened again and must hold what [`Model::recover`] allows, with data that
//! verifies and accounting that is exact.
//!
//! Here is how a life begins and ends, and how the store is opened; `turn` has what happens in between, `staging` the work.

mod rot;
mod staging;
mod turn;

use crate::contents::Contents;
use crate::drive::{Completion, SimDrive};
use crate::inspect::{Media, View};
use crate::lookalike;
use crate::machine::Machine;
use crate::model::{Effect, Model};
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use base::hash::mix;
use base::{BLOCK_BYTES, Buffer, Epoch, OBJECT_BLOCKS, ObjectKey, PgId, PoolId, Sequence, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use store::{
    Action, BatchId, DeviceError, Expected, Identity, OpenError, Options, RecordKind, Sabotage, Secret,
    StageError, Store,
};

/// Rounds of completing everything and ending a turn after which a store must have come to rest.
const ROUNDS_MAX: u32 = 20_000;
/// Doublings of a life's groups.
const DOUBLINGS: u32 = 2;

/// Every way of breaking a store on purpose; the checker must notice each.
pub const SABOTAGES: [Sabotage; 12] = [
    Sabotage::ReportBeforeFlush,
    Sabotage::TrustTornBatch,
    Sabotage::DropLastBatch,
    Sabotage::ReuseLiveSegment,
    Sabotage::ReusePinnedSegment,
    Sabotage::IgnoreMount,
    Sabotage::ForgetZero,
    Sabotage::ForgetHole,
    Sabotage::ForgetSplit,
    Sabotage::KeepOldNames,
    Sabotage::ReplayOverLogs,
    Sabotage::TrustEnd,
];

/// How to run a life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Breaks the store on purpose, to see the checker notice.
    pub sabotage: Option<Sabotage>,
    /// Formats the drive with what a client takes for its secret, to see that blocks which look like the store's own are a
    /// danger then.
    pub secret_is_known: bool,
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
    /// Times that everything went, the logs of groups too.
    pub forgets: u64,
    /// Times that something was known for sure of an object of which something is missing.
    pub held: u64,
    /// Openings that were refused, as the header of a batch had rotted.
    pub refused_headers: u64,
    /// Blocks that were pushed, as to a learner.
    pub pushed_blocks: u64,
    /// Blocks that were written and have the checksum of another.
    pub colliding_blocks: u64,
    /// Blocks that were written and may look like the store's own.
    pub lookalike_blocks: u64,
}

/// What went wrong in the life of one seed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// How it was run.
    pub settings: Settings,
    /// The turn.
    pub turn: u64,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "seed {} failed in turn {}: {}\n  ", self.seed, self.turn, self.message)?;
        write!(formatter, "{}", replay_command(self.seed, self.settings))
    }
}

/// The command that runs `seed` again in the same way and prints its trace.
#[must_use]
pub fn replay_command(seed: u64, settings: Settings) -> String {
    let sabotage = settings.sabotage.map(|sabotage| format!(" --sabotage {sabotage:?}")).unwrap_or_default();
    let secret = if settings.secret_is_known { " --known-secret" } else { "" };
    format!("replay it with: cargo run -p sim --release -- --store --seed {seed} --trace{sabotage}{secret}")
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
        Err(message) => Err(Failure { seed, settings, turn: life.turn, message }),
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
        Err(Failure { seed, settings, turn: 0, message })
    })
}

/// A write whose batch is not sealed: where its data must be found in the batch's buffer.
#[derive(Debug)]
struct Unsealed {
    batch: BatchId,
    offset: usize,
    token: u64,
    object: usize,
    blocks: Range<u64>,
}

/// A reader that holds a pin: what it read must stay.
#[derive(Debug)]
struct Reader {
    location: store::Location,
    contents: Vec<Option<Rc<[u8; BLOCK_BYTES]>>>,
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
    /// What the drive is formatted with.
    secret: Secret,
    /// What is written.
    contents: Contents,
    drive: SimDrive,
    model: Model,
    /// The group of each object and the modulus of each group, with everything that is staged.
    pg_of: Vec<usize>,
    moduli: Vec<u32>,
    /// Decides when a group is split, in lives in which they are: of its own, so that the others are what they were.
    splits: Option<Random>,
    /// Decides when everything goes, in lives in which it does: of its own too.
    forgets: Option<Random>,
    /// Everything is going: objects before this one are zeroed.
    forgetting: Option<usize>,
    /// Decides when a member misses something and when it has caught up, in lives in which it does: of its own too.
    lags: Option<Random>,
    /// Decides when the header of a batch rots, in lives in which some do: of its own too.
    header_rot: Option<Random>,
    /// Whether some writes are pushes.
    has_pushes: bool,
    /// Whether some zeroings leave holes.
    has_holes: bool,
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
        let mut plan = Plan::draw(&mut random);
        // Of those with a member that lags, so that the others are what they were.
        let may_be_another = seed.is_multiple_of(3) && plan.operations_per_turn_max > 1;
        if may_be_another && mix(!seed).is_multiple_of(3) {
            plan.have_many_objects();
        } else if may_be_another && mix(!seed) % 9 == 1 {
            plan.have_large_segments();
        }
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
            ObjectKey { pg, layer: volume.first_layer(), object }
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
            ..Options::default()
        };
        let mut life = Life {
            drive: SimDrive::new(plan.drive_bytes(), plan.volatile_cache, random.fork()),
            secret: match settings.secret_is_known {
                true => lookalike::guess(&Machine::identity()),
                false => Machine::SECRET,
            },
            // Of their own, so that lives take the course that they took with any content.
            contents: Contents::draw(&mut Random::new(mix(!seed)), 1),
            has_pushes: mix(seed).is_multiple_of(4),
            has_holes: mix(seed) % 4 != 1,
            identity: Machine::identity(),
            next_sequence: vec![1; pgs.len()],
            epochs: vec![1; pgs.len()],
            model: Model::new(pgs, keys, plan.pg_log_entries),
            pg_of: Vec::new(),
            moduli: Vec::new(),
            splits,
            forgets: (seed % 3 == 2).then(|| Random::new(mix(seed))),
            forgetting: None,
            // Where clients can write headers, what is one says nothing.
            header_rot: (seed % 5 == 2 && !settings.secret_is_known).then(|| Random::new(mix(seed + 1))),
            lags: seed.is_multiple_of(3).then(|| Random::new(mix(seed))),
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
        life.trace.remark(|| format!("seed {seed}: {:?}, {:?}", life.plan, life.contents));
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

    /// What lies under the store.
    fn media(&self) -> Media<'_> {
        Media { drive: &self.drive, contents: self.contents, rotten: &self.rotten }
    }

    /// What an operator may change between two starts.
    fn draw_options(&mut self) {
        self.options.batches_in_flight_max = self.random.between(1, 3) as usize;
    }

    fn format(&mut self) -> Result<(), String> {
        if self.random.one_in(20) {
            self.drive.arm(self.random.below(6));
            let result = store::format(&mut self.drive, self.identity, self.secret, &self.options);
            self.trace.note("format with a fuse", &[u64::from(result.is_ok())]);
            if result.is_err() && self.drive.is_powered() {
                return Err(format!("cannot format: {result:?}"));
            }
            self.drive.power_on();
            // Whatever a half-made format looks like, looking must be safe.
            let _ = store::identify(&mut self.drive);
        }
        store::format(&mut self.drive, self.identity, self.secret, &self.options)
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
        self.forgetting = None;
        self.actions.clear();
        self.unsealed.clear();
        self.seals.clear();
        self.held.clear();
        self.readers.clear();
        self.drive.power_on();
        let expected =
            Expected { cluster: Some(self.identity.cluster), osd_uuid: Some(self.identity.osd_uuid) };
        let mut rotten = self.rot_a_header();
        let store = loop {
            if self.random.percent(25) {
                self.drive.arm(self.random.below(40));
            }
            match Store::open(&mut self.drive, &expected, self.options.clone()) {
                Ok(store) => break store,
                Err(OpenError::Damaged { .. }) if rotten.is_some() && self.drive.is_powered() => {
                    self.trace.note("refused for a header", &[]);
                    self.report.refused_headers += 1;
                    rotten.take().into_iter().for_each(|rotten| self.heal(rotten));
                }
                Err(error) if self.drive.is_powered() => return Err(format!("cannot open: {error}")),
                Err(_) => {
                    self.trace.note("power cut while opening", &[]);
                    self.report.crashes += 1;
                    self.drive.power_on();
                }
            }
        };
        rotten.into_iter().for_each(|rotten| self.heal(rotten));
        self.drive.power_on();
        self.durable_at_open = self.drive.durable_writes();
        let replayed = store.statistics().replayed_batches;
        self.report.replayed_batches += replayed;
        self.trace.note("opened", &[u64::from(clean), replayed]);
        if clean && replayed != 0 {
            return Err(format!("{replayed} batches were replayed after a clean shutdown"));
        }
        let view = View::of(&store, &self.model, self.media())?;
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

    /// Writes every block that operations fall on once, as far as there is space.
    fn fill_up(&mut self, store: &mut Store) -> Result<(), String> {
        for object in 0..self.plan.objects {
            let mut block = 0;
            while block < self.range_blocks {
                let count = self.plan.write_blocks_max.min(self.range_blocks - block);
                let checksums = self.fill(object, block as u16, count as u16);
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
        let checksums = self.fill(0, 0, 1);
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
        let (what, token, fatal) = match completion {
            Completion::Written(token) => ("write failed", token, true),
            Completion::Flushed(token) => ("flush failed", token, true),
            Completion::Read(token, ..) => ("read failed", token, false),
        };
        self.trace.note(what, &[u64::from(token)]);
        completion.tell(store, Err(error), &mut self.actions);
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
        let (pg, sequence) = (self.model.pgs[0], Sequence(u64::MAX));
        match store.stage_mark(RecordKind::Mark, pg, 1, Epoch(1), sequence, u64::MAX) {
            Err(StageError::Failed(_)) => Ok(()),
            other => Err(format!("a failed store answers {other:?}")),
        }
    }
}
