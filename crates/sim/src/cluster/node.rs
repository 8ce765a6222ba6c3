//! A node: the real OSD over the real store on a simulated drive, driven in turns as the node's shard does.

use super::Settings;
use super::plan::Plan;
use super::world::{Event, Input, MICROSECOND, MILLISECOND, Process, Proposal, SECOND, World};
use crate::drive::{Completion, SimDrive};
use crate::machine::{Machine, identity_after};
use crate::plan::LOG_OFFSET_BYTES;
use crate::random::Random;
use base::hash::mix;
use base::map::{ClusterMap, PgConfig};
use base::{BLOCK_BYTES, Buffer, Epoch, Instant, LinkId, Network, ObjectKey, OsdId, PgId, crc32c};
use pg::{Io, Osd, OsdOptions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::layout::{BatchHeader, SUPERBLOCK_OFFSETS};
use store::{Device, Expected, Identity, Options, Sabotage, Store};
use zerocopy::FromBytes;

/// How long somebody who connected may take to say who it is.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a segment: the least that holds the largest batch.
const SEGMENT_BYTES: u32 = 512 << 10;
/// The largest batch: the largest message of a client and its header fit.
const BATCH_BYTES_MAX: usize = 300 << 10;
/// The stream of foreground writes, as batches name it: of the other one are checkpoints, and what cleaning moves.
const FOREGROUND: u8 = 0;
/// How often a drive whose batches of checkpoints wait looks again.
const WAIT_OF_CHECKPOINTS: u64 = 20 * MILLISECOND;

/// A monotonic clock that starts anywhere and runs a little wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset: u64,
    /// Its nanoseconds in a million of the simulation's.
    rate: u64,
}

impl Clock {
    pub(super) fn new(drift_ppm_max: u64, random: &mut Random) -> Clock {
        let rate = 1_000_000 + random.between(0, 2 * drift_ppm_max) - drift_ppm_max;
        Clock { offset: random.below(1000 * SECOND), rate }
    }

    pub(super) fn at(&self, now: u64) -> Instant {
        let passed = u128::from(now) * u128::from(self.rate) / 1_000_000;
        Instant { nanoseconds: self.offset + passed as u64 }
    }

    /// The simulation's time at which this clock shows `instant`, or has shown it.
    pub(super) fn when(&self, instant: Instant) -> u64 {
        let passed = u128::from(instant.nanoseconds.saturating_sub(self.offset));
        let now = passed * 1_000_000 / u128::from(self.rate) + 1;
        u64::try_from(now).unwrap_or(u64::MAX)
    }
}

/// What a drive operation in flight was submitted with.
#[derive(Debug)]
struct Submitted {
    token: u64,
    /// What is written from: what is read into is with the drive.
    buffer: Option<Buffer>,
    /// In bytes from the drive's start.
    offset: u64,
    length: usize,
}

impl Submitted {
    /// Whether it is no write, and no flush.
    fn is_read(&self) -> bool {
        self.buffer.is_none() && self.length > 0
    }

    /// The header of the batch that is written, if it is one.
    fn batch(&self) -> Option<BatchHeader> {
        let buffer = self.buffer.as_ref().filter(|_| self.offset >= LOG_OFFSET_BYTES)?;
        BatchHeader::read_from_prefix(buffer.bytes()).ok().map(|(header, _)| header)
    }

    /// Whether a read meets a bad place, if of a hundred blocks so many are bad; another `outage` has other bad ones.
    fn meets_a_bad_place(&self, percent: u64, outage: u64) -> bool {
        let first = self.offset / BLOCK_BYTES as u64;
        let blocks = first..first + self.length.div_ceil(BLOCK_BYTES) as u64;
        blocks.into_iter().any(|block| mix(block ^ mix(outage)) % 100 < percent)
    }
}

/// A drive, and what the OSD wants of it.
#[derive(Debug)]
struct Bay {
    drive: SimDrive,
    submitted: Vec<Option<Submitted>>,
    free: Vec<u32>,
    /// What is wrong with a request, which no OSD may ever make.
    complaint: Option<String>,
}

impl Bay {
    fn slot(&mut self, submitted: Submitted) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.submitted[slot as usize] = Some(submitted);
                slot
            }
            None => {
                self.submitted.push(Some(submitted));
                self.submitted.len() as u32 - 1
            }
        }
    }

    fn forget_all(&mut self) {
        self.submitted.clear();
        self.free.clear();
    }

    fn note(&mut self, result: Result<(), String>) {
        if let Err(complaint) = result {
            self.complaint.get_or_insert(complaint);
        }
    }
}

/// A turn that stopped in its middle.
#[derive(Debug)]
struct Suspended {
    /// The time it read at its start.
    now: Instant,
    inputs: VecDeque<Input>,
}

/// The process and what it holds in memory.
#[derive(Debug)]
struct Running {
    osd: Osd,
    clock: Clock,
    /// The newest map that the OSD was given.
    map: Arc<ClusterMap>,
    proposals: Vec<(PgId, Epoch, PgConfig, bool)>,
    stalled: Vec<LinkId>,
    greetings: VecDeque<(Instant, LinkId)>,
    suspended: Option<Suspended>,
    /// The next turn stops in its middle for so long.
    stall_armed: Option<u64>,
    shutdown_limit: Option<Instant>,
    /// By group: the epoch it serves in.
    serving: BTreeMap<PgId, Option<Epoch>>,
    /// What the store had written of checkpoints and moved by cleaning, in blocks.
    store_work: [u64; 2],
}

/// How a start ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Started {
    Yes,
    /// The power failed meanwhile.
    PowerFailed,
    /// What is on the drive cannot be used, after a write had gone astray.
    Refused(String),
}

/// What a store does beside clients' work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreWork {
    /// It writes pages or the root of a checkpoint.
    Checkpoint,
    /// It moves blocks.
    Cleaning,
}

/// How a turn ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    GoesOn,
    /// A shutdown is done, or took too long.
    Exits,
}

/// A node with one OSD.
#[derive(Debug)]
pub(super) struct Node {
    process: Process,
    identity: Identity,
    options: Options,
    osd_options: OsdOptions,
    bay: Bay,
    /// Until then some reads of data fail, or failed.
    read_errors_until: u64,
    /// Until then some writes and flushes fail, or failed.
    write_errors_until: u64,
    /// When one failed last.
    write_failed_at: u64,
    /// A write went astray: the store may refuse to open.
    went_astray: bool,
    /// How often the process was started.
    starts: u32,
    /// How often its OSD's number was given to another drive.
    replacements: u8,
    /// The drive writes batches in the log's order, and those of a checkpoint only when one of the foreground is behind them.
    has_checkpoints_wait: bool,
    running: Option<Running>,
}

/// The OSD's surroundings.
struct NodeIo<'a> {
    process: Process,
    world: &'a mut World,
    bay: &'a mut Bay,
    /// Those that ask for a split too.
    proposals: &'a mut Vec<(PgId, Epoch, PgConfig, bool)>,
}

impl Network for NodeIo<'_> {
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
    fn close(&mut self, link: LinkId, reason: &str) {
        let (process, world) = (self.process, &mut *self.world);
        world.story(Some(process), || format!("closes {link}: {reason}"));
        world.close(link, "closed here");
    }
}

impl NodeIo<'_> {
    fn submitted(&mut self) {
        let delay = self.world.drive_delay(self.process);
        let life = self.world.mailboxes[self.process.0].life;
        self.world.after(delay, Event::DriveDone { process: self.process, life });
    }
}

impl Io for NodeIo<'_> {
    fn read(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize) {
        let slot = self.bay.slot(Submitted { token, buffer: None, offset, length });
        let result = self.bay.drive.submit_read_into(slot, offset, buffer, length);
        self.bay.note(result);
        self.submitted();
    }
    fn write(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize) {
        let slot = self.bay.slot(Submitted { token, buffer: Some(buffer.clone()), offset, length });
        let result = self.bay.drive.submit_write(slot, offset, buffer, length);
        self.bay.note(result);
        self.submitted();
    }
    fn flush(&mut self, token: u64) {
        let slot = self.bay.slot(Submitted { token, buffer: None, offset: 0, length: 0 });
        self.bay.drive.submit_flush(slot);
        self.submitted();
    }
    fn propose(&mut self, pg: PgId, expected: Epoch, config: PgConfig) {
        self.proposals.push((pg, expected, config, false));
    }
    fn propose_split(&mut self, pg: PgId, expected: Epoch, config: PgConfig) {
        self.proposals.push((pg, expected, config, true));
    }
}

/// A process while it does something, and what it does that with.
struct Turn<'a> {
    process: Process,
    running: &'a mut Running,
    bay: &'a mut Bay,
    world: &'a mut World,
}

impl Turn<'_> {
    /// The OSD and its surroundings.
    fn parts(&mut self) -> (&mut Osd, NodeIo<'_>) {
        let Running { osd, proposals, .. } = &mut *self.running;
        (osd, NodeIo { process: self.process, world: self.world, bay: self.bay, proposals })
    }

    fn finish(&mut self, now: Instant, mut inputs: VecDeque<Input>) -> Result<TurnEnd, String> {
        for input in inputs.drain(..) {
            self.handle(now, input);
        }
        let mailbox = &mut self.world.mailboxes[self.process.0];
        if mailbox.inputs.is_empty() {
            // The memory serves again.
            mailbox.inputs = inputs;
        } else {
            // It came while the turn stood still.
            self.world.wake(self.process, self.world.now + MICROSECOND);
        }
        for link in std::mem::take(&mut self.running.stalled) {
            self.handle_inbox(now, link);
        }
        let fresh = self.running.clock.at(self.world.now);
        let (osd, mut io) = self.parts();
        osd.end_turn(fresh, &mut io);
        self.hand_over_proposals();
        self.close_the_silent(fresh);
        let Running { osd, clock, shutdown_limit, .. } = &*self.running;
        if let Some(complaint) = self.bay.complaint.take() {
            return Err(format!("{}: {complaint}", osd.id()));
        }
        if shutdown_limit.is_some_and(|limit| osd.is_shut_down() || fresh >= limit) {
            return Ok(TurnEnd::Exits);
        }
        // A turn takes a moment: time passes even for whoever asks to be called at once.
        let at = clock.when(osd.next_timeout()).max(self.world.now + 10 * MICROSECOND);
        self.world.wake(self.process, at);
        Ok(TurnEnd::GoesOn)
    }

    fn handle(&mut self, now: Instant, input: Input) {
        let (osd, mut io) = self.parts();
        match input {
            Input::FileDone { token, buffer, result } => osd.handle_file(now, token, buffer, result, &mut io),
            Input::Received(link) => self.handle_inbox(now, link),
            Input::Accepted(link) => {
                if io.world.is_open(link) {
                    let credential = io.world.credential_of(link);
                    match osd.handle_accepted(link, credential) {
                        Ok(()) => self.running.greetings.push_back((now + GREETING_LIMIT, link)),
                        Err(_) => io.world.close(link, "its key is not let in"),
                    }
                }
            }
            Input::Connected(link) => osd.handle_connected(link, &mut io),
            Input::Closed(link, reason) => {
                io.world.story(Some(io.process), || format!("{link} ended: {reason}"));
                osd.handle_closed(now, link, reason, &mut io);
            }
            Input::Map(map) => {
                osd.handle_map(now, map.clone(), &mut io);
                self.running.map = map;
            }
            Input::Proposal { pg, accepted } => osd.handle_proposal(now, pg, accepted, &mut io),
            Input::RegistryAnswered => osd.handle_registry(now),
        }
    }

    fn handle_inbox(&mut self, now: Instant, link: LinkId) {
        let Some(mut inbox) = self.world.take_inbox(link) else { return };
        let (osd, mut io) = self.parts();
        match osd.handle_bytes(now, link, &inbox, &mut io) {
            Ok(progress) => {
                inbox.drain(..progress.consumed);
                if progress.is_stalled {
                    self.world.coverage.count("a request is held back");
                    self.running.stalled.push(link);
                }
                self.world.return_inbox(link, inbox, progress.is_stalled);
            }
            Err(error) => {
                let reason = error.to_string();
                self.world.story(Some(self.process), || format!("refuses {link}: {reason}"));
                self.world.coverage.count("a connection is refused");
                self.world.send(link, &wire::Refused { reason: &reason }.encode());
                self.world.close(link, "refused here");
            }
        }
    }

    fn hand_over_proposals(&mut self) {
        let life = self.world.mailboxes[self.process.0].life;
        for (pg, expected, config, is_split) in self.running.proposals.drain(..) {
            let (process, decided_by) = (self.process, self.running.map.clone());
            let proposal = Proposal { process, life, pg, expected, config, is_split, decided_by };
            let delay = self.world.registry_delay();
            self.world.after(delay, Event::Propose(Box::new(proposal)));
        }
    }

    fn close_the_silent(&mut self, now: Instant) {
        let Running { osd, greetings, .. } = &mut *self.running;
        while let Some((_, link)) = greetings.pop_front_if(|(limit, _)| *limit <= now) {
            if self.world.is_open(link) && !osd.is_greeted(link) {
                self.world.coverage.count("a silent connection is closed");
                self.world.close(link, "it never said who it is");
            }
        }
    }
}

/// A blank drive of so many bytes, formatted for an OSD.
fn formatted(bytes: u64, identity: Identity, options: &Options, random: &mut Random) -> SimDrive {
    let mut drive = SimDrive::new(bytes, options.volatile_cache, random.fork());
    store::format(&mut drive, identity, Machine::SECRET, options)
        .unwrap_or_else(|error| panic!("a drive of the plan's size can be formatted: {error}"));
    drive
}

impl Node {
    /// A node with a formatted drive, not running.
    pub(super) fn new(process: Process, plan: &Plan, settings: &Settings, random: &mut Random) -> Node {
        let identity = identity_after(process.0, 0);
        let interval = plan.checkpoint_segments * u64::from(SEGMENT_BYTES);
        let options = Options {
            volatile_cache: plan.volatile_cache,
            batch_bytes_max: BATCH_BYTES_MAX,
            segment_bytes: Some(SEGMENT_BYTES),
            checkpoint_interval_bytes: (interval > 0).then_some(interval),
            pg_log_entries: plan.pg_log_entries,
            sabotage: settings.store_sabotage,
            ..Options::default()
        };
        let bytes = LOG_OFFSET_BYTES + plan.segments * u64::from(SEGMENT_BYTES);
        let drive = formatted(bytes, identity, &options, random);
        let osd_options = OsdOptions {
            small_buffers: plan.small_buffers,
            large_buffers: plan.large_buffers,
            sabotage: settings.sabotage,
        };
        let bay = Bay { drive, submitted: Vec::new(), free: Vec::new(), complaint: None };
        Node {
            process,
            identity,
            options,
            osd_options,
            bay,
            read_errors_until: 0,
            write_errors_until: 0,
            write_failed_at: 0,
            went_astray: false,
            starts: 0,
            replacements: 0,
            has_checkpoints_wait: false,
            running: None,
        }
    }

    /// Who its OSD is once its number was given to another drive.
    pub(super) fn next_identity(&self) -> Identity {
        identity_after(self.process.0, self.replacements + 1)
    }

    /// While the process does not run: a blank drive takes the place of its own.
    pub(super) fn replace_drive(&mut self, random: &mut Random) {
        self.identity = self.next_identity();
        self.replacements += 1;
        self.bay.drive = formatted(self.bay.drive.bytes(), self.identity, &self.options, random);
        self.went_astray = false;
    }

    /// How often the process was started.
    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    pub(super) fn osd_id(&self) -> OsdId {
        self.identity.osd
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.shutdown_limit.is_some())
    }

    /// The OSD, while the process runs.
    pub(super) fn osd(&self) -> Option<&Osd> {
        self.running.as_ref().map(|running| &running.osd)
    }

    /// The drive.
    pub(super) fn drive(&self) -> &SimDrive {
        &self.bay.drive
    }

    /// Spoils a block of the drive, unless the store needs it when it opens: what it has to replay it can only tell
    /// from a torn write, see [`Self::rot_end`].
    pub(super) fn rot(&mut self, block: u32, random: &mut Random) -> bool {
        if self.changes_what_opens(|drive| drive.rot(block)) != Some(false) {
            return false;
        }
        match random.below(3) {
            0 => self.bay.drive.rot(block),
            1 => self.bay.drive.scramble(block),
            _ => {
                let from = random.below(u64::from(block)) as u32;
                let drive = &mut self.bay.drive;
                // What rots and has the checksum of what was there by chance is found by nobody: one time in 2^32. Contents
                // that collide make that a rule, so something else rots then.
                if crc32c(drive.block(from)) == crc32c(drive.block(block)) {
                    drive.scramble(block);
                } else {
                    drive.misdirect(from, block);
                }
            }
        }
        true
    }

    /// Spoils a block of the drive, whatever that does.
    pub(super) fn spoil(&mut self, block: u32) {
        self.bay.drive.write_cache_back();
        self.bay.drive.rot(block);
    }

    /// Spoils a block if the store opens with less because of that: it rots, or cannot be read.
    pub(super) fn rot_end(&mut self, block: u32) -> bool {
        let spoil = |drive: &mut SimDrive| match block.is_multiple_of(2) {
            true => drive.go_bad(block),
            false => drive.rot(block),
        };
        let ends_log = self.changes_what_opens(spoil) == Some(true);
        if ends_log {
            self.bay.drive.write_cache_back();
            spoil(&mut self.bay.drive);
        }
        ends_log
    }

    /// While the process does not run: a block goes bad without which the store opens with all that it has, unless another is
    /// bad. A superblock, something that was written last, or anything else.
    pub(super) fn go_bad(&mut self, random: &mut Random) -> bool {
        let (log, newest) = (self.log_places(), self.bay.drive.newest_blocks(4));
        let block = match random.below(3) {
            0 => (random.choose(&SUPERBLOCK_OFFSETS) / BLOCK_BYTES as u64) as u32,
            1 if !newest.is_empty() => random.choose(&newest),
            _ => random.between(u64::from(log.start), u64::from(log.end) - 1) as u32,
        };
        let may_go = !self.is_running()
            && !self.bay.drive.has_bad_blocks()
            && self.changes_what_opens(|drive| drive.go_bad(block)) == Some(false);
        if may_go {
            // A cut of the power must not bring back a checkpoint that needs it.
            self.bay.drive.write_cache_back();
            self.bay.drive.go_bad(block);
        }
        may_go
    }

    /// A batch that is on its way to the drive, as `(first block, blocks)`, if there is one.
    pub(super) fn some_batch_in_flight(&self, random: &mut Random) -> Option<(u32, u32)> {
        let first_of_log = self.log_places().start;
        let writes = self.bay.drive.flying_writes();
        let batches: Vec<(u32, u32)> = writes.filter(|(first, _)| *first >= first_of_log).collect();
        (!batches.is_empty()).then(|| batches[random.index(batches.len())])
    }

    /// The places of its drive where the log may lie.
    pub(super) fn log_places(&self) -> Range<u32> {
        let blocks = |bytes: u64| (bytes / BLOCK_BYTES as u64) as u32;
        blocks(LOG_OFFSET_BYTES)..blocks(self.bay.drive.bytes())
    }

    /// Has the batch on its way to `from` go to `to`, over what lies there. False if another write is on its way there, if that
    /// would make the store open with something else than without the batch, or if no checksum would tell of some block: one of
    /// the batch that has the same as what lies where it belongs, or where it goes.
    pub(super) fn misdirect(&mut self, from: u32, to: u32) -> bool {
        let drive = &self.bay.drive;
        let Some(bytes) = drive.flying_bytes(from) else { return false };
        let blocks = bytes.as_chunks::<BLOCK_BYTES>().0;
        let overlaps = |(first, count): (u32, u32)| first < to + blocks.len() as u32 && to < first + count;
        if drive.flying_writes().any(overlaps) {
            return false;
        }
        let tells = |(place, block): (u32, &[u8; BLOCK_BYTES])| crc32c(block) != crc32c(drive.block(place));
        if !(from..).zip(blocks).all(tells) || !(to..).zip(blocks).all(tells) {
            return false;
        }
        let offset = u64::from(to) * BLOCK_BYTES as u64;
        let overwrite = |drive: &mut SimDrive| {
            Device::write(drive, offset, bytes).expect("the place is within the drive, and whole blocks");
        };
        if self.changes_what_opens(overwrite) != Some(false) {
            return false;
        }
        self.bay.drive.misdirect_write(from, to);
        self.went_astray = true;
        true
    }

    /// Whether the store would open with something else after a change of its drive; `None` if it would not open.
    fn changes_what_opens(&self, change: impl FnOnce(&mut SimDrive)) -> Option<bool> {
        let expected =
            Expected { cluster: Some(self.identity.cluster), osd_uuid: Some(self.identity.osd_uuid) };
        let mut drives = [self.bay.drive.copy(), self.bay.drive.copy()];
        change(&mut drives[1]);
        let opened = drives.map(|mut drive| Store::open(&mut drive, &expected, self.options.clone()));
        let [Ok(before), Ok(after)] = opened else { return None };
        let has_moved = before.objects().any(|key| before.pg_position(key.pg) != after.pg_position(key.pg));
        Some(has_moved || after.statistics().live_bytes != before.statistics().live_bytes)
    }

    /// While the process does not run: a block is made to hold something else, or nothing, in silence.
    ///
    /// # Errors
    /// If the store does not open, or has no room.
    pub(super) fn forge(
        &mut self,
        key: ObjectKey,
        block: u16,
        content: Option<&[u8; BLOCK_BYTES]>,
    ) -> Result<(), String> {
        let machine = Machine::open_of(self.bay.drive.copy(), &self.identity, &self.options);
        let mut machine = machine.map_err(|(_, error)| format!("a store does not open: {error}"))?;
        machine.forge(key, block, content).map_err(|error| format!("a block cannot be forged: {error}"))?;
        self.bay.drive = machine.shut_down();
        Ok(())
    }

    /// Some reads fail until then, of data and of what the store cleans.
    pub(super) fn fail_reads(&mut self, until: u64) {
        self.read_errors_until = until;
    }

    /// All reads succeed from now on.
    pub(super) fn read_again(&mut self, now: u64) {
        self.read_errors_until = self.read_errors_until.min(now);
    }

    /// Some writes and flushes fail until then.
    pub(super) fn fail_writes(&mut self, until: u64) {
        self.write_errors_until = until;
    }

    /// Whether the drive failed a write or a flush since then, or did before and its OSD has not let go of it.
    pub(super) fn failed_to_write_since(&self, then: u64) -> bool {
        self.write_failed_at >= then.max(1) || self.has_failed_drive()
    }

    /// Its OSD, which has given the drive up, may have refused something in this turn.
    pub(super) fn refuses_writes(&mut self, now: u64) {
        self.write_failed_at = now;
    }

    /// Whether its OSD has given the drive up, and runs still.
    pub(super) fn has_failed_drive(&self) -> bool {
        self.osd().is_some_and(|osd| osd.store().failure().is_some())
    }

    /// Whether no read failed since then.
    pub(super) fn reads_since(&self, then: u64) -> bool {
        self.read_errors_until <= then
    }

    /// From now on the drive writes batches in the log's order, and those of a checkpoint only when one of the foreground is
    /// behind them; or as it likes.
    pub(super) fn have_checkpoints_wait(&mut self, waits: bool) {
        self.has_checkpoints_wait = waits;
    }

    /// By their places, the batches that the drive does not write yet.
    fn batches_that_wait(&self) -> BTreeSet<u32> {
        if !self.has_checkpoints_wait {
            return BTreeSet::new();
        }
        let slots = (0..).zip(&self.bay.submitted);
        let batches: BTreeMap<u64, (u32, bool)> = slots
            .filter_map(|(slot, submitted)| {
                let batch = submitted.as_ref()?.batch()?;
                Some((batch.sequence.get(), (slot, batch.stream == FOREGROUND)))
            })
            .collect();
        let is_awaited = batches.values().any(|(_, is_foreground)| *is_foreground);
        batches.values().skip(usize::from(is_awaited)).map(|(slot, _)| *slot).collect()
    }

    /// Blocks of checkpoints that the store has written since the process was started.
    pub(super) fn checkpoint_blocks(&self) -> u64 {
        self.osd().map_or(0, |osd| osd.store().statistics().checkpoint_blocks)
    }

    /// What tells the superblocks on the drive from those that will be there next.
    pub(super) fn superblocks(&self) -> [u32; 2] {
        SUPERBLOCK_OFFSETS.map(|offset| crc32c(self.bay.drive.block((offset / BLOCK_BYTES as u64) as u32)))
    }

    /// While the process does not run: whether a start would take this member for more current than it is, if it had the groups'
    /// logs take in again what the root of the checkpoint has of them already.
    pub(super) fn has_logs_ahead(&self) -> bool {
        let open = |sabotage| {
            let options = Options { sabotage, ..self.options.clone() };
            Store::open(&mut self.bay.drive.copy(), &Expected::default(), options)
        };
        let (Ok(right), Ok(wrong)) = (open(None), open(Some(Sabotage::ReplayOverLogs))) else { return false };
        right.objects().any(|key| wrong.object_held_through(&key) > right.object_held_through(&key))
    }

    /// The OSD, while the process runs, to be told something by an operator.
    pub(super) fn osd_mut(&mut self) -> Option<&mut Osd> {
        self.running.as_mut().map(|running| &mut running.osd)
    }

    /// What is under way, in words.
    pub(super) fn state(&self) -> String {
        let Some(running) = &self.running else { return "not running".to_owned() };
        format!(
            "{} operations, {} stalled links, {} drive operations in flight{}",
            running.osd.view().operations_in_flight(),
            running.stalled.len(),
            self.bay.drive.in_flight(),
            if running.suspended.is_some() { ", stopped in a turn" } else { "" }
        )
    }

    /// Starts the process. The power fails after `fuse` more operations of the drive, if there is one.
    ///
    /// # Errors
    /// If the store does not open although nothing is wrong with the drive.
    pub(super) fn start(&mut self, fuse: Option<u64>, world: &mut World) -> Result<Started, String> {
        self.bay.drive.power_on();
        if let Some(fuse) = fuse {
            self.bay.drive.arm(fuse);
        }
        let expected =
            Expected { cluster: Some(self.identity.cluster), osd_uuid: Some(self.identity.osd_uuid) };
        let opened = Store::open(&mut self.bay.drive, &expected, self.options.clone());
        let store = match opened {
            Ok(store) => store,
            Err(_) if !self.bay.drive.is_powered() => return Ok(Started::PowerFailed),
            Err(error) if self.went_astray => return Ok(Started::Refused(error.to_string())),
            Err(error) => return Err(format!("the store of {} does not open: {error}", self.identity.osd)),
        };
        self.bay.drive.power_on();
        store
            .verify()
            .map_err(|error| format!("the store of {} as it opened: {error}", self.identity.osd))?;
        let drift = world.plan.drift_ppm_max;
        self.starts += 1;
        self.went_astray = false;
        world.trace.count(1, u64::from(self.starts));
        self.running = Some(Running {
            osd: Osd::new(store, &self.osd_options),
            clock: Clock::new(drift, &mut world.random),
            map: Arc::default(),
            proposals: Vec::new(),
            stalled: Vec::new(),
            greetings: VecDeque::new(),
            suspended: None,
            stall_armed: None,
            shutdown_limit: None,
            serving: BTreeMap::new(),
            store_work: [0; 2],
        });
        Ok(Started::Yes)
    }

    /// The process is gone, and with `is_power_cut` what the drive had not made durable.
    pub(super) fn stop(&mut self, is_power_cut: bool) {
        self.running = None;
        if is_power_cut {
            self.bay.drive.power_cut();
        } else {
            self.bay.drive.kill();
        }
        self.bay.forget_all();
    }

    /// The next turn stops in its middle.
    pub(super) fn arm_stall(&mut self, duration: u64) -> bool {
        let Some(running) = &mut self.running else { return false };
        let is_free = running.stall_armed.is_none() && running.suspended.is_none();
        if is_free {
            running.stall_armed = Some(duration);
        }
        is_free
    }

    /// Nothing stops any more.
    pub(super) fn disarm_stall(&mut self) {
        if let Some(running) = &mut self.running {
            running.stall_armed = None;
        }
    }

    /// The process and what it needs to do something, while it runs.
    fn in_turn<'a>(&'a mut self, world: &'a mut World) -> Option<Turn<'a>> {
        let running = self.running.as_mut()?;
        Some(Turn { process: self.process, running, bay: &mut self.bay, world })
    }

    /// Begins a proper shutdown.
    pub(super) fn shut_down(&mut self, world: &mut World) -> bool {
        let Some(mut turn) = self.in_turn(world) else { return false };
        if turn.running.shutdown_limit.is_some() || turn.running.suspended.is_some() {
            return false;
        }
        let now = turn.running.clock.at(turn.world.now);
        turn.running.shutdown_limit = Some(now + Duration::from_secs(15));
        let (osd, mut io) = turn.parts();
        osd.begin_shutdown(&mut io);
        turn.world.wake(turn.process, turn.world.now);
        true
    }

    /// The drive completes one operation, whichever it likes.
    pub(super) fn drive_done(&mut self, world: &mut World) {
        let must_fail =
            self.write_errors_until > world.now && world.random.percent(world.plan.write_error_percent);
        let failed = if must_fail { self.bay.drive.fail_any_change() } else { None };
        let has_failed = failed.is_some();
        let waiting = self.batches_that_wait();
        let (stuck, submitted) = (world.stuck[self.process.0], &self.bay.submitted);
        let until = |slot: u32| {
            let of = submitted[slot as usize].as_ref();
            of.map_or(0, |submitted| stuck.until(submitted.is_read()))
        };
        let is_held_back = |slot: u32| waiting.contains(&slot) || until(slot) > world.now;
        let is_stuck_for = stuck.until(true).max(stuck.until(false)).saturating_sub(world.now);
        let completed = failed.or_else(|| match waiting.is_empty() && is_stuck_for == 0 {
            true => self.bay.drive.complete_any(),
            false => self.bay.drive.complete_any_but(is_held_back),
        });
        let Some(completion) = completed else {
            // Whatever this was to complete is completed later.
            let waits_alone = !waiting.is_empty() && stuck.until(false) <= world.now;
            let later = if waits_alone { WAIT_OF_CHECKPOINTS } else { is_stuck_for };
            if later > 0 {
                let (process, life) = (self.process, world.mailboxes[self.process.0].life);
                world.after(later, Event::DriveDone { process, life });
            }
            return;
        };
        let (slot, read) = match completion {
            Completion::Written(slot) | Completion::Flushed(slot) => (slot, None),
            Completion::Read(slot, buffer, _) => (slot, Some(buffer)),
        };
        let Some(submitted) = self.bay.submitted[slot as usize].take() else {
            unreachable!("what completes was submitted")
        };
        self.bay.free.push(slot);
        world.trace.count(2, submitted.token);
        let mut result = Ok(());
        if has_failed {
            world.event(Some(self.process), "a write or flush fails");
            self.write_failed_at = world.now;
            result = Err("the medium cannot be written".to_owned());
        }
        let fails = self.read_errors_until > world.now
            && read.is_some()
            && match world.plan.read_errors_have_places {
                true => submitted.meets_a_bad_place(world.plan.read_error_percent, self.read_errors_until),
                false => world.random.percent(world.plan.read_error_percent),
            };
        if fails {
            let is_for_others = pg::reads_data(submitted.token);
            world.coverage.count(if is_for_others { "a read fails" } else { "a read of cleaning fails" });
            result = Err("the medium cannot be read".to_owned());
        }
        let (token, buffer) = (submitted.token, read.or(submitted.buffer));
        world.tell(self.process, Input::FileDone { token, buffer, result });
    }

    /// One turn, as in the shard's loop.
    ///
    /// # Errors
    /// If the OSD did what no OSD may.
    pub(super) fn turn(&mut self, world: &mut World) -> Result<TurnEnd, String> {
        let Some(mut turn) = self.in_turn(world) else { return Ok(TurnEnd::GoesOn) };
        if turn.running.suspended.is_some() {
            return Ok(TurnEnd::GoesOn);
        }
        let mailbox = &mut turn.world.mailboxes[turn.process.0];
        for buffer in mailbox.released.drain(..) {
            turn.running.osd.put_buffer(buffer);
        }
        let mut inputs = std::mem::take(&mut mailbox.inputs);
        for input in &inputs {
            if let Input::Received(link) = input {
                turn.world.reap(*link);
            }
        }
        let now = turn.running.clock.at(turn.world.now);
        let Some(duration) = turn.running.stall_armed.take() else { return turn.finish(now, inputs) };
        let before = turn.world.random.index(inputs.len() + 1);
        for input in inputs.drain(..before).collect::<Vec<_>>() {
            turn.handle(now, input);
        }
        let Turn { process, running, world, .. } = turn;
        world.story(Some(process), || format!("stops in a turn, with {} inputs to go", inputs.len()));
        let life = world.mailboxes[process.0].life;
        running.suspended = Some(Suspended { now, inputs });
        world.after(duration, Event::Resume { process, life });
        Ok(TurnEnd::GoesOn)
    }

    /// A turn that stopped in its middle goes on, with the time it read before.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub(super) fn resume(&mut self, world: &mut World) -> Result<TurnEnd, String> {
        let Some(mut turn) = self.in_turn(world) else { return Ok(TurnEnd::GoesOn) };
        let Some(suspended) = turn.running.suspended.take() else { return Ok(TurnEnd::GoesOn) };
        turn.world.story(Some(turn.process), || "goes on in its turn".to_owned());
        turn.finish(suspended.now, suspended.inputs)
    }

    /// What the store did in the last turn beside clients' work, if anything.
    pub(super) fn store_work(&mut self) -> Option<StoreWork> {
        let running = self.running.as_mut()?;
        let statistics = running.osd.store().statistics();
        let work = [statistics.checkpoint_blocks, statistics.cleaned_blocks];
        let before = std::mem::replace(&mut running.store_work, work);
        if work[1] > before[1] {
            return Some(StoreWork::Cleaning);
        }
        (work[0] > before[0]).then_some(StoreWork::Checkpoint)
    }

    /// Which groups began or ceased to be served in the last turn: `(group, epoch or None, why not)`.
    pub(super) fn changes(&mut self) -> Vec<(PgId, Option<Epoch>, Option<String>)> {
        let mut changes = Vec::new();
        let Some(running) = &mut self.running else { return changes };
        for summary in running.osd.view().summaries() {
            let epoch = summary.trouble.is_none().then_some(summary.epoch);
            let known = running.serving.insert(summary.pg, epoch);
            if known != Some(epoch) {
                changes.push((summary.pg, epoch, summary.trouble));
            }
        }
        changes
    }
}
