//! A client's process: the real client state machine under a random load, whose history is kept.

use super::fencer::{Fencer, Progress};
use super::history::{History, Kind};
use super::node::Clock;
use super::ownership::NOT_YET;
use super::plan::Plan;
use super::registry::{volume_id, volume_index};
use super::world::{Event, Input, MICROSECOND, MILLISECOND, Process, World};
use crate::random::Random;
use base::geometry::OBJECT_BYTES;
use base::map::ClusterMap;
use base::{BLOCK_BYTES, Buffer, ClientId, Generation, LayerId, LinkId, Network, VolumeId};
use client::{Client, ClientError, Holding, Outcome, OwnershipStep, Submission, VolumeHandle};
use cluster::Attachment;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Of a hundred operations, how many read while logs are to be written past.
const READ_PERCENT_IN_A_HURRY: u64 = 10;

/// What a client does next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) volume: usize,
    /// The snapshot that is read; None: the volume itself.
    pub(super) layer: Option<LayerId>,
    pub(super) first_block: u64,
    pub(super) blocks: u64,
}

/// What a client does.
#[derive(Debug)]
pub(super) enum Work {
    /// Random operations, until the life's last.
    Load,
    /// These, then nothing more.
    List(Vec<Step>),
}

/// An operation that was refused for a reason which the cluster has to have.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) operation: u64,
    pub(super) error: ClientError,
}

#[derive(Debug)]
struct Running {
    client: Client,
    clock: Clock,
    /// With the generation under which it has each now.
    volumes: BTreeMap<usize, (VolumeHandle, Generation)>,
    /// The newest map.
    map: Arc<ClusterMap>,
    /// The snapshots that were read.
    snapshots: BTreeMap<LayerId, VolumeHandle>,
    /// When the slots without an operation begin their next.
    due: BinaryHeap<Reverse<u64>>,
    in_flight: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct ClientProcess {
    process: Process,
    random: Random,
    /// Its id in its present life.
    id: ClientId,
    /// It makes sure of its volumes before it begins.
    pub(super) fencer: Option<Fencer>,
    running: Option<Running>,
    /// It was told that another has a volume now.
    pub(super) is_fenced: bool,
    buffers: Vec<Buffer>,
    pub(super) work: Work,
    /// What it does before any work, without pauses.
    errands: Vec<Step>,
    /// What it was refused in this turn.
    pub(super) refusals: Vec<Refusal>,
    /// It gives up what another wishes at once.
    pub(super) gives_up_early: bool,
}

pub(super) struct ClientIo<'a> {
    pub(super) process: Process,
    pub(super) world: &'a mut World,
}

impl Network for ClientIo<'_> {
    fn connect(&mut self, address: SocketAddr) -> Option<LinkId> {
        self.world.connect(self.process, address)
    }
    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        self.world.send(link, bytes);
    }
    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: Range<usize>) {
        self.world.send_shared(self.process, link, buffer, range);
    }
    fn unsent_bytes(&self, link: LinkId) -> usize {
        self.world.unsent_bytes(link)
    }
    fn close(&mut self, link: LinkId, _reason: &str) {
        self.world.close(link, "closed here");
    }
}

impl ClientProcess {
    pub(super) fn new(process: Process, random: Random, work: Work) -> ClientProcess {
        ClientProcess {
            process,
            random,
            id: ClientId(0),
            fencer: None,
            running: None,
            is_fenced: false,
            buffers: Vec::new(),
            work,
            errands: Vec::new(),
            refusals: Vec::new(),
            gives_up_early: false,
        }
    }

    /// Its id in its present life, or its last one.
    pub(super) fn id(&self) -> ClientId {
        self.id
    }

    /// Draws the id of the next life.
    pub(super) fn draw_id(&mut self) -> ClientId {
        self.id = ClientId(self.random.next_u64());
        self.id
    }

    /// The process starts, and makes sure of its volumes first.
    pub(super) fn start_fencing(
        &mut self,
        volumes: Vec<Attachment>,
        map: Arc<ClusterMap>,
        world: &mut World,
    ) {
        self.fencer = Some(Fencer::new(self.id, volumes, map, world.now));
        world.wake(self.process, world.now);
    }

    /// Begins to work under the generations that the volumes are attached with.
    pub(super) fn begin(
        &mut self,
        volumes: &[(VolumeId, Generation)],
        map: Arc<ClusterMap>,
        world: &mut World,
    ) {
        let id = self.id;
        let mut client = Client::new(id, map.clone());
        // Who reads everything in the end waits as long as it takes. By the id, for which chance was asked already.
        let has_limit = matches!(self.work, Work::Load) && id.0.is_multiple_of(4);
        client.set_timeout(has_limit.then(|| Duration::from_millis(500 + id.0 / 4 % 8192)));
        let holding = if world.plan.is_exclusive { Holding::Alone } else { Holding::Shared };
        let volumes = volumes
            .iter()
            .map(|(id, generation)| {
                (volume_index(*id), (client.add_volume(*id, *generation, holding), *generation))
            })
            .collect();
        let clock = Clock::new(world.plan.drift_ppm_max, &mut world.random);
        let due =
            (0..world.plan.depth).map(|_| Reverse(world.now + self.random.below(5 * MILLISECOND))).collect();
        self.running =
            Some(Running { client, clock, volumes, map, snapshots: BTreeMap::new(), due, in_flight: 0 });
        world.wake(self.process, world.now);
    }

    /// Begins to read all volumes, and to own them by turns.
    pub(super) fn begin_opened(
        &mut self,
        volumes: impl IntoIterator<Item = usize>,
        map: Arc<ClusterMap>,
        history: &mut History,
        world: &mut World,
    ) {
        let is_reader = world.plan.has_reader && self.process.0 == world.plan.nodes;
        let is_listed = |id: &VolumeId| map.volumes.get(id).is_some_and(|info| info.is_listed());
        let volumes: Vec<_> = volumes.into_iter().map(volume_id).filter(is_listed).collect();
        history.starts_anew(self.process.0);
        self.begin(&[], map, world);
        let Some(running) = &mut self.running else { return };
        // What is given up at a time limit may take effect yet, and would have to be fenced.
        running.client.set_timeout(None);
        for id in volumes {
            let handle = running.client.add_opened(id, is_reader);
            running.volumes.insert(volume_index(id), (handle, NOT_YET));
        }
    }

    /// The generation of a volume that its map shows.
    pub(super) fn shown_generation(&self, volume: VolumeId) -> Option<Generation> {
        let info = self.running.as_ref()?.map.volumes.get(&volume)?;
        Some(info.generation)
    }

    /// That under which it owns a volume.
    pub(super) fn owned_generation(&self, volume: VolumeId) -> Generation {
        let running = self.running.as_ref();
        running.map_or(NOT_YET, |running| running.volumes[&volume_index(volume)].1)
    }

    /// It owns a volume that it asked for.
    pub(super) fn owns(
        &mut self,
        volume: VolumeId,
        generation: Generation,
        history: &mut History,
        world: &mut World,
    ) {
        let process = self.process;
        let Some(running) = &mut self.running else { return };
        let now = running.clock.at(world.now);
        let entry = running.volumes.get_mut(&volume_index(volume)).expect("it was opened");
        entry.1 = generation;
        running.client.owned(now, entry.0, generation, &mut ClientIo { process, world });
        // Who stands still begins nothing yet.
        if running.client.begins_changes(entry.0) {
            history.is_owned(process.0, volume, generation);
        }
        world.wake(process, world.now);
    }

    /// It gave a volume up.
    pub(super) fn gave_up(&mut self, volume: VolumeId, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let entry = running.volumes.get_mut(&volume_index(volume)).expect("it was opened");
        entry.1 = NOT_YET;
        running.client.gave_up(entry.0);
        world.wake(self.process, world.now);
    }

    /// Has done what its volumes need so that they change hands.
    fn take_steps(&mut self, world: &mut World) {
        let (process, gives_up_early) = (self.process, self.gives_up_early);
        let Some(running) = &mut self.running else { return };
        let now = running.clock.at(world.now);
        let mut steps = Vec::new();
        if gives_up_early {
            for (index, (handle, _)) in &running.volumes {
                let is_wished = running.map.wishes.contains_key(&volume_id(*index));
                if is_wished && running.client.is_owner(*handle) {
                    steps.push((*handle, OwnershipStep::GiveUp));
                }
            }
        }
        steps.extend(std::iter::from_fn(|| running.client.poll_ownership(now)));
        for (handle, step) in steps {
            let known = running.volumes.iter().find(|(_, (its, _))| *its == handle);
            let volume = volume_id(*known.expect("it was opened").0);
            let (life, delay) = (world.mailboxes[process.0].life, world.registry_delay());
            world.after(delay, Event::ChangesHands { process, life, volume, step });
        }
    }

    /// The process is gone; nobody will ever know how its operations ended.
    pub(super) fn stop(&mut self) {
        (self.running, self.fencer, self.is_fenced) = (None, None, false);
        // Another one may have its volumes for the rest of this life.
        self.errands.clear();
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some() || self.fencer.is_some()
    }

    /// One turn of making sure of its volumes.
    pub(super) fn fence(&mut self, world: &mut World) -> Progress {
        let process = self.process;
        self.fencer.as_mut().map_or(Progress::Done, |fencer| fencer.turn(process, world))
    }

    /// Whether nothing is under way and nothing will be.
    pub(super) fn is_done(&self, history: &History, plan: &Plan) -> bool {
        self.running.as_ref().is_none_or(|running| running.in_flight == 0) && !self.has_more(history, plan)
    }

    fn has_more(&self, history: &History, plan: &Plan) -> bool {
        !self.errands.is_empty()
            || match &self.work {
                Work::Load => history.len() < plan.operations,
                Work::List(list) => !list.is_empty(),
            }
    }

    /// Gives it something to do before anything else, in this order.
    pub(super) fn run_errands(&mut self, mut steps: Vec<Step>, world: &mut World) {
        // The last one is the next.
        steps.reverse();
        steps.append(&mut self.errands);
        self.errands = steps;
        self.wake_up(world);
    }

    /// Whether errands are left.
    pub(super) fn has_errands(&self) -> bool {
        !self.errands.is_empty()
    }

    /// How many errands are left on a volume.
    pub(super) fn errands_on(&self, volume: usize) -> u64 {
        self.errands.iter().filter(|step| step.volume == volume).count() as u64
    }

    /// Ends the pauses that it makes.
    pub(super) fn wake_up(&mut self, world: &mut World) {
        let Some(running) = &mut self.running else { return };
        let slots = world.plan.depth.saturating_sub(running.in_flight);
        running.due = std::iter::repeat_n(Reverse(world.now), slots).collect();
        world.wake(self.process, world.now);
    }

    /// What it waits for, in words.
    pub(super) fn trouble(&self) -> String {
        self.running.as_ref().map_or_else(String::new, |running| {
            format!(
                "{} operations in flight, {}",
                running.in_flight,
                running.client.trouble().unwrap_or_else(|| "no trouble".to_owned())
            )
        })
    }

    /// One turn.
    ///
    /// # Errors
    /// What is wrong with what an operation brought.
    pub(super) fn turn(&mut self, history: &mut History, world: &mut World) -> Result<(), String> {
        let process = self.process;
        let Some(running) = &mut self.running else { return Ok(()) };
        world.mailboxes[process.0].released.clear();
        let mut inputs = std::mem::take(&mut world.mailboxes[process.0].inputs);
        let now = running.clock.at(world.now);
        let client = &mut running.client;
        for input in inputs.drain(..) {
            match input {
                Input::Received(link) => {
                    world.reap(link);
                    let Some(mut inbox) = world.take_inbox(link) else { continue };
                    match client.handle_bytes(now, link, &inbox, &mut ClientIo { process, world }) {
                        Ok(consumed) => {
                            inbox.drain(..consumed);
                            world.return_inbox(link, inbox, false);
                        }
                        Err(error) => {
                            world.story(Some(process), || format!("gives up {link}: {error}"));
                            world.close(link, "of no use");
                        }
                    }
                }
                Input::Connected(link) => client.handle_connected(link, &mut ClientIo { process, world }),
                Input::Closed(link, reason) => client.handle_closed(now, link, reason),
                Input::Map(map) => {
                    running.map = map.clone();
                    client.handle_map(now, map, &mut ClientIo { process, world });
                }
                Input::FileDone { .. }
                | Input::Accepted(_)
                | Input::Proposal { .. }
                | Input::RegistryAnswered => {
                    return Err("a client was told what is for nodes".to_owned());
                }
            }
        }
        world.mailboxes[process.0].inputs = inputs;
        // A map may have come with which what waited for a volume begins.
        for (index, (handle, generation)) in &running.volumes {
            if *generation != NOT_YET && client.begins_changes(*handle) {
                history.is_owned(process.0, volume_id(*index), *generation);
            }
        }
        if client.next_timeout().is_some_and(|at| at <= now) {
            client.handle_timeout(now, &mut ClientIo { process, world });
        }
        while let Some(notice) = client.poll_notice() {
            world.story(Some(process), || format!("{notice:?}"));
        }
        self.begin_due(history, world);
        self.poll_completions(history, world)?;
        self.begin_due(history, world);
        let Some(running) = &mut self.running else { return Ok(()) };
        while let Some((volume, number)) = running.client.poll_still() {
            let known = running.volumes.iter().find(|(_, (handle, _))| *handle == volume);
            let volume = volume_id(*known.expect("snapshots never move").0);
            let (life, delay) = (world.mailboxes[process.0].life, world.registry_delay());
            world.after(delay, Event::StandsStill { process, life, volume, number });
        }
        if world.plan.opens {
            self.take_steps(world);
        }
        let Some(running) = &mut self.running else { return Ok(()) };
        let retry = running.client.next_timeout().map(|at| running.clock.when(at));
        let due = running.due.peek().map(|Reverse(at)| *at);
        if let Some(at) = [retry, due].into_iter().flatten().min() {
            world.wake(process, at.max(world.now + MICROSECOND));
        }
        Ok(())
    }

    /// A block of an operation is lost: what reads everything writes zeros over it, and reads it again.
    pub(super) fn write_off(&mut self, operation: u64, history: &History, world: &mut World) {
        if let Work::List(list) = &mut self.work {
            let step = history.step(operation);
            list.extend([step, zeroing_of(&world.plan, step)]);
            self.running.iter_mut().for_each(|running| running.due.push(Reverse(world.now)));
            world.wake(self.process, world.now);
        }
    }

    fn poll_completions(&mut self, history: &mut History, world: &mut World) -> Result<(), String> {
        let (process, random) = (self.process, &mut self.random);
        let Some(running) = &mut self.running else { return Ok(()) };
        while let Some(completion) = running.client.poll_completion() {
            running.in_flight -= 1;
            world.trace.count(3, completion.token);
            let (token, buffer) = (completion.token, completion.buffer.as_ref());
            let volume = history.step(token).volume;
            history.was_done_under(token, running.volumes[&volume].1);
            let done = history.complete(token, world.now, &completion.outcome, buffer);
            world.story(Some(process), || history.describe(completion.token));
            done.map_err(|error| format!("{}: {error}", world.name(process)))?;
            match &completion.outcome {
                Outcome::Failed(
                    error @ (ClientError::DeviceFailed { .. }
                    | ClientError::Damaged { .. }
                    | ClientError::Fenced { .. }
                    | ClientError::OutOfRange { .. }),
                ) => {
                    self.is_fenced |= matches!(error, ClientError::Fenced { .. });
                    self.refusals.push(Refusal { operation: completion.token, error: error.clone() });
                }
                Outcome::Failed(ClientError::NoSuchVolume { .. })
                    if history.step(completion.token).layer.is_some() =>
                {
                    world.coverage.count("reads of a snapshot that was removed meanwhile");
                }
                Outcome::Failed(ClientError::NoSpace { .. }) if world.plan.is_tight => {
                    world.coverage.count("a write is refused, for a drive is full");
                }
                Outcome::Failed(ClientError::TimedOut { .. }) => {
                    world.coverage.count("operations given up at their time limit");
                }
                Outcome::Failed(ClientError::OutcomeUnknown { .. }) if !world.plan.is_exclusive => {
                    world.coverage.count("operations of which nobody can tell whether they were done");
                }
                Outcome::Failed(error) => {
                    return Err(format!(
                        "{}: {}: {error}",
                        world.name(process),
                        history.describe(completion.token)
                    ));
                }
                Outcome::Done => world.coverage.count("operations done"),
                Outcome::Allocated(_) => world.coverage.count("operations done: allocated"),
                Outcome::Changed(_) | Outcome::Space(_) => return Err("nobody asked that".to_owned()),
            }
            if let Some(buffer) = completion.buffer
                && buffer.is_unique()
            {
                self.buffers.push(buffer);
            }
            // Who only reads would have read all that is left before the others have written much.
            let is_reader = world.plan.has_reader && process.0 == world.plan.nodes;
            let hurries = world.is_calm || world.is_hurried && !is_reader || !self.errands.is_empty();
            let pause = if matches!(self.work, Work::List(_)) || hurries {
                0
            } else if random.one_in(8) {
                random.below(world.plan.pause_max)
            } else {
                random.below(2 * MILLISECOND)
            };
            running.due.push(Reverse(world.now + pause));
        }
        Ok(())
    }

    fn begin_due(&mut self, history: &mut History, world: &mut World) {
        loop {
            if !self.has_more(history, &world.plan) {
                if let Some(running) = &mut self.running {
                    running.due.clear();
                }
                return;
            }
            let Some(running) = &mut self.running else { return };
            if running.due.peek().is_none_or(|Reverse(at)| *at > world.now) {
                return;
            }
            running.due.pop();
            running.in_flight += 1;
            let is_reader = world.plan.has_reader && self.process.0 == world.plan.nodes;
            let step = match (self.errands.pop(), &mut self.work) {
                (Some(step), _) => step,
                (None, Work::Load) => {
                    let volume = running.some_volume(&mut self.random);
                    let step = draw(&world.plan, volume, is_reader, world.is_hurried, &mut self.random);
                    if world.plan.snapshots { running.of_a_snapshot(step, &mut self.random) } else { step }
                }
                (None, Work::List(list)) => list.pop().expect("has_more looked"),
            };
            self.submit(step, history, world);
        }
    }

    fn submit(&mut self, step: Step, history: &mut History, world: &mut World) {
        let process = self.process;
        let Some(running) = &mut self.running else { return };
        let (mut volume, generation) = running.volumes[&step.volume];
        if let Some(layer) = step.layer {
            let client = &mut running.client;
            volume = *running.snapshots.entry(layer).or_insert_with(|| client.add_snapshot(layer));
            world.coverage.count("operations on snapshots");
        }
        let is_change = matches!(step.kind, Kind::Write | Kind::Zero);
        let token = match (generation == NOT_YET, is_change) {
            (true, false) => {
                let shown = running.map.volumes.get(&volume_id(step.volume)).map(|info| info.generation);
                history.begin_reading(process.0, shown.unwrap_or_default(), step, world.now)
            }
            // Of who is about to give it up, it waits for the next time.
            (_, true) if world.plan.opens && !running.client.begins_changes(volume) => {
                history.begin(process.0, NOT_YET, step, world.now)
            }
            _ => history.begin(process.0, generation, step, world.now),
        };
        world.trace.count(4, token);
        world.story(Some(process), || history.describe(token));
        let now = running.clock.at(world.now);
        let (offset, length) =
            (step.first_block * world.plan.unit_bytes, step.blocks * world.plan.unit_bytes);
        let bytes = (world.plan.operation_blocks_max * world.plan.unit_bytes) as usize;
        let mut buffer = || self.buffers.pop().unwrap_or_else(|| Buffer::new(bytes));
        let io = &mut ClientIo { process, world };
        let what = Submission { volume, token, offset, length };
        match step.kind {
            Kind::Read => running.client.submit_read(now, what, buffer(), io),
            Kind::Write => {
                let mut buffer = buffer();
                let memory = buffer.bytes_mut().expect("a buffer that is lent has one holder");
                history.fill(token, &mut memory[..length as usize]);
                running.client.submit_write(now, what, buffer, io);
            }
            Kind::Zero => running.client.submit_zero(now, what, io),
            Kind::Allocated => running.client.submit_allocated(now, what, io),
        }
    }
}

impl Running {
    /// One of those that it has.
    fn some_volume(&self, random: &mut Random) -> usize {
        *self.volumes.keys().nth(random.index(self.volumes.len())).expect("it has some")
    }

    /// Some reads are of a snapshot, if its volume has one as far as is known here.
    fn of_a_snapshot(&self, step: Step, random: &mut Random) -> Step {
        let is_read = matches!(step.kind, Kind::Read | Kind::Allocated);
        if !is_read || !random.one_in(4) {
            return step;
        }
        let there: Vec<LayerId> =
            self.map.snapshots_of(volume_id(step.volume)).map(|(layer, _)| layer).collect();
        let layer = (!there.is_empty()).then(|| there[random.index(there.len())]);
        Step { layer, ..step }
    }
}

/// The first block of a region: half of it lies in one object, half in the next.
fn region_start(plan: &Plan, region: u64) -> u64 {
    let object = 1 + region * 3 % (plan.volume_objects - 1);
    object * (OBJECT_BYTES / plan.unit_bytes) - plan.region_blocks / 2
}

fn draw(plan: &Plan, volume: usize, is_reader: bool, is_hurried: bool, random: &mut Random) -> Step {
    let blocks = random.between(1, plan.operation_blocks_max.min(plan.region_blocks));
    let start = region_start(plan, random.below(plan.regions));
    let first_block = start + random.between(0, plan.region_blocks - blocks);
    let number = random.below(100);
    let read_percent =
        if is_hurried { plan.read_percent.min(READ_PERCENT_IN_A_HURRY) } else { plan.read_percent };
    let kind = if number < read_percent || is_reader {
        Kind::Read
    } else if number < read_percent + plan.zero_percent {
        Kind::Zero
    } else if number < read_percent + plan.zero_percent + plan.allocated_percent {
        Kind::Allocated
    } else {
        Kind::Write
    };
    let mut step = Step { kind, volume, layer: None, first_block, blocks };
    if kind == Kind::Zero && plan.discards && random.one_in(3) {
        // Makes room that who is away just now has not; and takes many repairs where blocks lie apart.
        (step.first_block, step.blocks) = (start, plan.region_blocks);
    }
    if kind == Kind::Zero { zeroing_of(plan, step) } else { step }
}

/// Zeroes the blocks of drives that a step touches: only whole ones can be.
fn zeroing_of(plan: &Plan, step: Step) -> Step {
    let each = BLOCK_BYTES as u64 / plan.unit_bytes;
    let first_block = step.first_block / each * each;
    let end = (step.first_block + step.blocks).div_ceil(each) * each;
    Step { kind: Kind::Zero, first_block, blocks: end - first_block, ..step }
}

/// The same kind of operation for everything that the load may have written, each of so many blocks at most.
pub(super) fn all_of(kind: Kind, plan: &Plan, blocks_max: u64) -> Vec<Step> {
    (0..plan.volumes).flat_map(|volume| all_of_volume(kind, plan, volume, blocks_max)).collect()
}

/// The same of one volume.
pub(super) fn all_of_volume(kind: Kind, plan: &Plan, volume: usize, blocks_max: u64) -> Vec<Step> {
    let mut list = Vec::new();
    for region in 0..plan.regions {
        let start = region_start(plan, region);
        for first in (0..plan.region_blocks).step_by(blocks_max as usize) {
            let blocks = blocks_max.min(plan.region_blocks - first);
            list.push(Step { kind, volume, layer: None, first_block: start + first, blocks });
        }
    }
    list
}
