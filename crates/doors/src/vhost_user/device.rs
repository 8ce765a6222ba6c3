//! The disk that a guest sees: rings on one side, a volume on the other, on the thread that turns the volume's loop.
//!
//! A turn takes what drivers put into rings, submits it to the volume, ends what the volume did, and tells drivers, once a ring. Nothing
//! is allocated per request once the tables have grown. A request without a buffer waits for one, and what came after it waits too.

use super::chain::Table;
use super::configuration::{LOG_ALL, PROTOCOL_FEATURES, features, part_of_space};
use super::dirty::DirtyLog;
use super::in_flight::InFlight;
use super::memory::Memory;
use super::request::{self, Disk, Request, Segment, What, ZEROED_BYTES_MAX};
use super::ring::{Addresses, Misuse, Ring, eventfd};
use base::{Instant, VolumeId};
use client::{ClientError, Completion, Outcome, VolumeHandle};
use ring::{Event, WatchId};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::GuestAddress;
use volume::{Buffers, PIECE_BYTES_MAX, Slots, VolumeLoop};

/// Buffers for what fits a block.
const SMALL_COUNT: usize = 1024;
/// Buffers for more.
const LARGE_COUNT: usize = 64;

/// How often in a turn rings are looked at again, because something of them ended: drivers that ask for what ends at once find no end.
const ROUNDS_MAX: usize = 8;

/// So many requests are taken from a ring before another has its turn.
const TAKEN_MAX: usize = 256;
/// How long what a front-end that is gone left under way is waited for by the next: more than it takes to replace an OSD, or to give up a
/// silent one.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Who waits for something, and hears what came of it.
pub(super) type Reply<T> = SyncSender<io::Result<T>>;

/// A request that was taken.
struct Task {
    ring: u16,
    head: u16,
    request: Request,
    /// What is to be written, or where to put what is read.
    data: Vec<Segment>,
    /// So much of it is submitted, in bytes.
    begun: u64,
    /// Pieces that are out.
    out: u32,
    has_failed: bool,
    /// Its front-end is gone: it ends and nobody is told.
    is_abandoned: bool,
}

/// A part of a request that is out.
struct Piece {
    task: usize,
    /// Where it begins in that, in bytes.
    at: u64,
    length: usize,
}

/// See the module's documentation.
pub(super) struct Device {
    pub(super) volume: VolumeLoop,
    handle: VolumeHandle,
    id: VolumeId,
    is_read_only: bool,
    buffers: Buffers,
    rings: Vec<Ring>,
    memory: Memory,
    /// What the front-end chose.
    features: u64,
    in_flight: Option<InFlight>,
    log: Option<DirtyLog>,
    tasks: Slots<Task>,
    pieces: Slots<Piece>,
    /// Tasks of which something is still to be submitted, the oldest first.
    waiting: VecDeque<usize>,
    /// Memory for the data of tasks to come.
    spare: Vec<Vec<Segment>>,
    other: Vec<Segment>,
    /// A front-end is there.
    is_connected: bool,
    /// One that waits to be, until what its predecessor left has ended, and since when.
    connecting: Option<(Reply<()>, Instant)>,
    settling: Settling,
    /// Whoever waits until nothing of a ring is under way.
    stopping: Vec<(u16, Reply<u16>)>,
    /// No more requests are taken.
    is_closing: bool,
    /// Zeroings that are out, in bytes, and those that wait until there are fewer.
    zeroing_bytes: u64,
    zeroings: VecDeque<usize>,
    /// Why the volume is lost, as an OSD said. What it refused stays noted as under way.
    lost: Option<String>,
}

/// What is done about requests of a front-end that is gone, which do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    /// They are waited for.
    Awaited,
    /// The volume is being attached anew.
    Renewing,
    /// They take effect never more.
    Fenced,
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

impl Device {
    pub(super) fn new(volume: VolumeLoop, is_read_only: bool, queues: u16) -> Device {
        let opened = &volume.volumes()[0];
        let (handle, id, is_read_only) = (opened.handle, opened.id, is_read_only || opened.is_snapshot);
        Device {
            volume,
            handle,
            id,
            is_read_only,
            buffers: Buffers::new(SMALL_COUNT, LARGE_COUNT),
            rings: (0..queues).map(Ring::new).collect(),
            memory: Memory::default(),
            features: 0,
            in_flight: None,
            log: None,
            tasks: Slots::default(),
            pieces: Slots::default(),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            other: Vec::new(),
            is_connected: false,
            connecting: None,
            settling: Settling::Awaited,
            stopping: Vec::new(),
            is_closing: false,
            zeroing_bytes: 0,
            zeroings: VecDeque::new(),
            lost: None,
        }
    }

    // What a front-end says.

    /// A front-end is there. `reply` hears of it when nothing is under way that another left, or what is takes effect never more.
    pub(super) fn connect(&mut self, reply: Reply<()>) {
        // The turn before may be long ago.
        self.connecting = Some((reply, ring::now()));
        self.settling = Settling::Awaited;
        self.welcome();
    }

    fn welcome(&mut self) {
        let is_settled = self.tasks.count() == 0 || self.settling == Settling::Fenced;
        if is_settled
            && !self.is_connected
            && let Some((reply, _)) = self.connecting.take()
        {
            // If it is gone meanwhile that is said too.
            self.is_connected = reply.send(Ok(())).is_ok();
        }
    }

    /// Whether somebody waits for what another left.
    pub(super) fn is_awaited(&self) -> bool {
        self.connecting.is_some()
    }

    /// Sees to it that a front-end does not wait for ever: what its predecessor left, and what does not end, is fenced.
    pub(super) fn settle(&mut self) {
        while let Some(renewal) = self.volume.poll_renewal() {
            match renewal.outcome {
                Ok(()) => self.settling = Settling::Fenced,
                Err(reason) => {
                    tracing::warn!(
                        reason,
                        "what a front-end that is gone left under way is waited for; trying again"
                    );
                    self.settling = Settling::Awaited;
                    self.connecting.iter_mut().for_each(|(_, since)| *since = ring::now());
                }
            }
        }
        let waited = self.connecting.as_ref().map(|(_, since)| self.volume.now().since(*since));
        if self.settling == Settling::Awaited
            && waited.is_some_and(|waited| waited >= SETTLE_LIMIT)
            && self.volume.begin_renewal(self.handle)
        {
            self.settling = Settling::Renewing;
        }
        self.welcome();
    }

    /// It is to end: nobody who waits for something is answered any more.
    pub(super) fn part(&mut self) {
        self.connecting = None;
        self.stopping.clear();
    }

    /// The front-end is gone. What it had under way ends, and is noted as not ended: whoever follows does it again.
    pub(super) fn disconnect(&mut self) {
        for ring in &mut self.rings {
            if let Some(kick) = ring.kick.take() {
                self.volume.reactor().unwatch(kick);
            }
            ring.forget();
        }
        for task in self.tasks.iter_mut() {
            task.is_abandoned = true;
        }
        self.volume.abandon(|_| true);
        (self.memory, self.features) = (Memory::default(), 0);
        (self.in_flight, self.log) = (None, None);
        self.stopping.clear();
        self.is_connected = false;
    }

    pub(super) fn features(&self) -> u64 {
        features(self.is_read_only)
    }

    pub(super) fn set_features(&mut self, wanted: u64) -> io::Result<()> {
        if wanted & !self.features() != 0 {
            return Err(invalid("it chose features that were not offered"));
        }
        self.features = wanted;
        if wanted & PROTOCOL_FEATURES == 0 {
            // Nobody says when rings are to be served: they are.
            self.rings.iter_mut().for_each(|ring| ring.is_enabled = true);
        }
        Ok(())
    }

    pub(super) fn queues(&self) -> u16 {
        self.rings.len() as u16
    }

    pub(super) fn configuration(&self, offset: u32, length: u32) -> io::Result<Vec<u8>> {
        let part = part_of_space(self.disk().bytes, self.queues(), offset, length);
        part.ok_or_else(|| invalid("it asked for more than there is"))
    }

    pub(super) fn set_memory(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
    ) -> io::Result<()> {
        self.memory = Memory::of(regions, files)?;
        self.start_rings()
    }

    pub(super) fn add_memory(&mut self, region: &VhostUserMemoryRegion, file: File) -> io::Result<()> {
        self.memory.add(region, file)?;
        self.start_rings()
    }

    pub(super) fn remove_memory(&mut self, region: &VhostUserMemoryRegion) -> io::Result<()> {
        self.memory.remove(region)
    }

    pub(super) fn set_log(&mut self, file: File, offset: u64, bytes: u64) -> io::Result<()> {
        self.log = Some(DirtyLog::new(file, offset, bytes)?);
        Ok(())
    }

    /// Memory in which what is under way is noted from now on. Its file and its size in bytes.
    pub(super) fn create_in_flight(&mut self, queues: u16, entries: u16) -> io::Result<(File, u64)> {
        if queues == 0 || queues > self.queues() || entries == 0 || entries > super::ring::ENTRIES_MAX {
            return Err(invalid("it has other rings than were offered"));
        }
        self.check_rings_rest()?;
        let (in_flight, file, bytes) = InFlight::create(queues, entries)?;
        self.in_flight = Some(in_flight);
        Ok((file, bytes))
    }

    pub(super) fn set_in_flight(
        &mut self,
        file: File,
        (offset, bytes): (u64, u64),
        (queues, entries): (u16, u16),
    ) -> io::Result<()> {
        self.check_rings_rest()?;
        self.in_flight = Some(InFlight::open(file, offset, bytes, queues, entries)?);
        Ok(())
    }

    fn check_rings_rest(&self) -> io::Result<()> {
        match self.rings.iter().any(|ring| !ring.rests()) {
            true => Err(invalid("what is under way is to be noted elsewhere while something may be")),
            false => Ok(()),
        }
    }

    fn ring(&mut self, index: u32) -> io::Result<&mut Ring> {
        let queues = self.queues();
        let ring = self.rings.get_mut(index as usize);
        ring.ok_or_else(|| invalid(format!("it named ring {index}, and there are {queues}")))
    }

    pub(super) fn set_entries(&mut self, index: u32, entries: u32) -> io::Result<()> {
        match self.ring(index)?.set_entries(entries) {
            true => Ok(()),
            false => {
                Err(invalid(format!("ring {index} cannot have {entries} entries, or not while it runs")))
            }
        }
    }

    pub(super) fn set_addresses(&mut self, index: u32, addresses: Addresses) -> io::Result<()> {
        match self.ring(index)?.set_addresses(addresses) {
            true => self.start_rings(),
            false => Err(invalid(format!("ring {index} is moved while it runs"))),
        }
    }

    pub(super) fn set_base(&mut self, index: u32, base: u32) -> io::Result<()> {
        match self.ring(index)?.set_base(base) {
            true => Ok(()),
            false => Err(invalid(format!("ring {index} cannot go on at {base}, or not while it runs"))),
        }
    }

    pub(super) fn set_kick(&mut self, index: u32, file: Option<File>) -> io::Result<()> {
        let file = file.ok_or_else(|| invalid("it wants its rings to be polled, which is not done here"))?;
        self.ring(index)?;
        let watch = self.volume.reactor().watch(eventfd(file)?)?;
        let before: Option<WatchId> = self.ring(index)?.kick.replace(watch);
        if let Some(before) = before {
            self.volume.reactor().unwatch(before);
        }
        self.start_rings()
    }

    pub(super) fn set_call(&mut self, index: u32, file: Option<File>) -> io::Result<()> {
        let file = file.map(eventfd).transpose()?.map(File::from);
        self.ring(index)?.set_call(file);
        Ok(())
    }

    pub(super) fn set_error(&mut self, index: u32, file: Option<File>) -> io::Result<()> {
        let file = file.map(eventfd).transpose()?.map(File::from);
        self.ring(index)?.set_error(file);
        Ok(())
    }

    pub(super) fn set_enabled(&mut self, index: u32, is_enabled: bool) -> io::Result<()> {
        let ring = self.ring(index)?;
        (ring.is_enabled, ring.is_due) = (is_enabled, ring.is_running());
        Ok(())
    }

    /// Takes no more from a ring. `reply` hears when nothing of it is under way, and where whoever goes on with it begins.
    pub(super) fn stop_ring(&mut self, index: u32, reply: Reply<u16>) {
        let ring = match self.ring(index) {
            Ok(ring) => ring,
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        let kick = ring.kick.take();
        ring.stop();
        if let Some(kick) = kick {
            self.volume.reactor().unwatch(kick);
        }
        self.stopping.push((index as u16, reply));
        self.tell_stopped();
    }

    fn tell_stopped(&mut self) {
        let rings = &self.rings;
        self.stopping.retain(|(index, reply)| {
            let ring = &rings[usize::from(*index)];
            let is_over = ring.rests();
            if is_over {
                // Who asked may be gone.
                let _ = reply.send(Ok(ring.base()));
            }
            !is_over
        });
    }

    fn start_rings(&mut self) -> io::Result<()> {
        let has_event_index = self.features >> VIRTIO_RING_F_EVENT_IDX & 1 == 1;
        for ring in &mut self.rings {
            let started = ring.start(&self.memory, has_event_index, self.in_flight.as_ref());
            started.map_err(|misuse| invalid(misuse.to_string()))?;
        }
        Ok(())
    }

    // What drivers ask for.

    /// Takes no more requests.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Why the volume is lost, if an OSD said that it is.
    pub(super) fn lost(&self) -> Option<&String> {
        self.lost.as_ref()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.count() == 0
    }

    fn disk(&self) -> Disk {
        Disk { bytes: self.volume.volume_bytes(self.handle), is_read_only: self.is_read_only }
    }

    /// Something happened on the reactor that is not the volume's.
    pub(super) fn handle(&mut self, event: &Event) {
        if let Event::Signalled { watch } = event
            && let Some(ring) = self.rings.iter_mut().find(|ring| ring.kick == Some(*watch))
        {
            ring.is_due = ring.is_running();
        }
    }

    /// Takes what drivers put into rings, submits what fits, ends what has ended, and tells drivers. Whether more of that is to be done
    /// already.
    pub(super) fn work(&mut self) -> bool {
        let mut has_more = true;
        for _ in 0..ROUNDS_MAX {
            self.take_requests();
            self.begin_what_fits();
            let mut has_ended = false;
            while let Some(completion) = self.volume.poll_completion() {
                self.piece_ended(completion);
                has_ended = true;
            }
            let buffers = &mut self.buffers;
            self.volume.take_released(|buffer| {
                buffers.put(buffer);
                has_ended = true;
            });
            if self.lost.is_some() {
                return false;
            }
            has_more = has_ended && !self.waiting.is_empty() || self.rings.iter().any(|ring| ring.is_due);
            if !has_more {
                break;
            }
        }
        for ring in &mut self.rings {
            ring.tell(self.memory.guest());
        }
        self.tell_stopped();
        self.welcome();
        has_more
    }

    fn take_requests(&mut self) {
        for index in 0..self.rings.len() {
            if !std::mem::take(&mut self.rings[index].is_due) || self.is_closing {
                continue;
            }
            if let Err(misuse) = self.take_requests_of(index) {
                tracing::warn!(%misuse, volume = %self.id, "nothing more is taken from that ring");
                self.rings[index].breaks();
            }
        }
    }

    fn take_requests_of(&mut self, index: usize) -> Result<(), Misuse> {
        let disk = self.disk();
        let log = in_force(self.log.as_ref(), self.features);
        let (ring, memory) = (&mut self.rings[index], self.memory.guest());
        let table: Table = ring.table();
        for _ in 0..TAKEN_MAX {
            let Some(head) = ring.take(memory, self.in_flight.as_ref(), log)? else { return Ok(()) };
            let mut data = self.spare.pop().unwrap_or_default();
            let read = request::read(table, head, memory, disk, &mut data, &mut self.other);
            let request = read.map_err(|broken| ring.gives_up(&broken.to_string()))?;
            if let What::Wrong(why) = request.what {
                tracing::debug!(?request, why, "a request of a guest's cannot be done");
            }
            let task = Task {
                ring: index as u16,
                head,
                request,
                data,
                begun: 0,
                out: 0,
                has_failed: false,
                is_abandoned: false,
            };
            self.waiting.push_back(self.tasks.insert(task));
        }
        ring.is_due = true;
        Ok(())
    }

    /// Submits what waits, in order, until a buffer is missing.
    fn begin_what_fits(&mut self) {
        while let Some(slot) = self.waiting.front().copied() {
            if !self.has_room_to_zero(slot) {
                // What came after it does not wait for that.
                self.waiting.pop_front();
                self.zeroings.push_back(slot);
                continue;
            }
            if !self.begin(slot) {
                return;
            }
            self.waiting.pop_front();
            if self.tasks.get(slot).out == 0 {
                self.end(slot);
            }
        }
    }

    /// Whether a request may begin as far as zeroings are concerned, of which each makes many operations at once: one may always.
    fn has_room_to_zero(&mut self, slot: usize) -> bool {
        let request = &self.tasks.get(slot).request;
        request.what != What::Zero
            || self.zeroing_bytes == 0
            || self.zeroing_bytes + request.length <= ZEROED_BYTES_MAX
    }

    /// Submits all that is left of a request; whether nothing is.
    fn begin(&mut self, slot: usize) -> bool {
        loop {
            let task = self.tasks.get(slot);
            let Request { what, offset, length, .. } = task.request;
            let (at, left) = (task.begun, length - task.begun);
            let is_data = matches!(what, What::Read | What::Write);
            if left == 0 || task.has_failed || task.is_abandoned || !(is_data || what == What::Zero) {
                task.begun = length;
                return true;
            }
            let from = offset + at;
            if what == What::Zero {
                task.begun = length;
                task.out += 1;
                self.zeroing_bytes += length;
                let token = self.pieces.insert(Piece { task: slot, at, length: 0 }) as u64;
                self.volume.zero(self.handle, token, from, length);
                return true;
            }
            let length = left.min(PIECE_BYTES_MAX as u64) as usize;
            let Some(mut buffer) = self.buffers.take(length) else { return false };
            if what == What::Write {
                let bytes = buffer.bytes_mut().expect("a buffer from a pool has one holder");
                let bytes = &mut bytes[..length];
                if request::copy_from(self.memory.guest(), &task.data, at as usize, bytes).is_err() {
                    task.has_failed = true;
                    self.buffers.put(buffer);
                    continue;
                }
            }
            task.begun += length as u64;
            task.out += 1;
            let token = self.pieces.insert(Piece { task: slot, at, length }) as u64;
            match what {
                What::Write => self.volume.write(self.handle, token, from, length as u64, buffer),
                _ => self.volume.read(self.handle, token, from, length as u64, buffer),
            }
        }
    }

    fn piece_ended(&mut self, ended: Completion) {
        let Piece { task: slot, at, length } = self.pieces.remove(ended.token as usize);
        let task = self.tasks.get(slot);
        task.out -= 1;
        if task.request.what == What::Zero {
            self.zeroing_bytes -= task.request.length;
            self.waiting.extend(self.zeroings.drain(..));
        }
        match (&ended.outcome, task.request.what, &ended.buffer) {
            (Outcome::Failed(error @ ClientError::Fenced { .. }), ..) if !task.is_abandoned => {
                // Another has the volume. The guest is told nothing: it is done by the next back-end.
                self.lost = Some(error.to_string());
                return;
            }
            (Outcome::Failed(error), ..) => {
                log_failure(error, &task.request);
                task.has_failed = true;
            }
            (_, What::Read, Some(buffer)) if !task.is_abandoned && !task.has_failed => {
                let log = in_force(self.log.as_ref(), self.features);
                let put = put(&self.memory, log, &task.data, at as usize, &buffer.bytes()[..length]);
                task.has_failed |= !put;
            }
            _ => {}
        }
        let is_over = task.out == 0 && task.begun == task.request.length;
        if let Some(buffer) = ended.buffer {
            self.buffers.put(buffer);
        }
        if is_over {
            self.end(slot);
        }
    }

    /// Tells the driver what came of a request.
    fn end(&mut self, slot: usize) {
        let Task { ring, head, request, mut data, has_failed, is_abandoned, .. } = self.tasks.remove(slot);
        if !is_abandoned {
            let log = in_force(self.log.as_ref(), self.features);
            let is_named = request.what != What::Name || put(&self.memory, log, &data, 0, &name(self.id));
            let status = match request.what {
                _ if has_failed || !is_named => VIRTIO_BLK_S_IOERR,
                What::Wrong(_) => VIRTIO_BLK_S_IOERR,
                What::Unknown => VIRTIO_BLK_S_UNSUPP,
                _ => VIRTIO_BLK_S_OK,
            };
            let of_data = match request.what {
                What::Read | What::Name if status == VIRTIO_BLK_S_OK => request.length,
                _ => 0,
            };
            // If that is not there any more, neither is whoever looks for it.
            put(&self.memory, log, &[Segment { address: request.status, length: 1 }], 0, &[status as u8]);
            let ring = &mut self.rings[usize::from(ring)];
            let memory = self.memory.guest();
            let ended = ring.end(head, (of_data + 1) as u32, memory, self.in_flight.as_ref(), log);
            if let Err(misuse) = ended {
                tracing::warn!(%misuse, volume = %self.id, "nothing more is taken from that ring");
                ring.breaks();
            }
        }
        data.clear();
        self.spare.push(data);
    }

    /// How many buffers are lent.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        self.buffers.lent()
    }
}

/// The log in which pages are noted now, if they are.
fn in_force(log: Option<&DirtyLog>, features: u64) -> Option<&DirtyLog> {
    log.filter(|_| features & LOG_ALL != 0)
}

/// Puts something into the guest's memory. `false` if that is not there.
fn put(memory: &Memory, log: Option<&DirtyLog>, segments: &[Segment], at: usize, bytes: &[u8]) -> bool {
    let note = |address: GuestAddress, length: usize| {
        if let Some(log) = log {
            log.mark(address.0, length as u64);
        }
    };
    request::copy_to(memory.guest(), segments, at, bytes, note).is_ok()
}

/// What guests see the disk as, in `/dev/disk/by-id` for example.
fn name(id: VolumeId) -> [u8; VIRTIO_BLK_ID_BYTES as usize] {
    let mut name = [0; VIRTIO_BLK_ID_BYTES as usize];
    let text = format!("millpond-{:x}", id.0);
    let length = text.len().min(name.len());
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

fn log_failure(error: &ClientError, request: &Request) {
    tracing::debug!(%error, ?request, "a request of a guest's failed");
}
