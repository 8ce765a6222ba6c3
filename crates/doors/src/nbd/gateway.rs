//! The NBD server: sockets on one side, volumes on the other, one thread and one reactor for both.
//!
//! A turn takes in what all clients sent, submits it to the volumes, completes what the volumes did, and
//! sends the answers, gathered per connection. Nothing is allocated per request once the tables have
//! grown.
//!
//! Bounds: each connection has those of [`Limits`]; buffers come from two pools. When a pool is empty, a
//! connection that needs it is not consumed further until one is back. Nobody holds a buffer while it
//! waits for another, and a client that does not receive its answers ties up at most part of a pool, so
//! buffers always come back.
//!
//! When things fail: a failed operation, or one that reached its time limit, is told to its client and changes nothing
//! else. What a connection that ends had under way is settled before the next one begins ([`orphans`]). A lost attachment
//! fails all that is in flight with `ESHUTDOWN` and ends the gateway with the reason. A client that connects and does not
//! choose an export is sent away after half a minute; one that did may stay silent.

mod admission;
mod lobby;
mod orphans;
#[cfg(test)]
mod tests;
mod work;

use super::Output;
use super::exports::{Export, Exports, ExportsError};
use super::protocol::ErrorCode;
use super::server::Connection;
use super::terms::Terms;
use super::vocabulary::{Extent, Failure, Limits, Operation, ReadPart, Request, Waiting};
use crate::listen::{Listen, ListenError, Listener, note_beside};
use crate::stopper::Stopper;
use auth::CertifiedServer;
use base::{BLOCK_BYTES, Buffer, Instant, PublicKey};
use client::{Completion, Outcome, VolumeHandle};
use lobby::{Arrival, Lobby};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use orphans::{Orphans, SETTLE_LIMIT};
use ring::{ConnectionId, Event, FREE_WITHIN, Inbox, Reactor, ReactorOptions, when_free};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use volume::{
    AttachError, Buffers, ClusterAccess, LoopError, OpenAs, PIECE_BYTES_MAX, SessionOptions, VolumeLoop,
};
use work::{Kind, Work, Works, failure};

/// Connections at the same time, those to OSDs included.
const CONNECTIONS_MAX: u64 = 16_384;
/// Descriptors that are none of the reactor's connections.
const DESCRIPTORS_RESERVED: u64 = 256;
/// Room for what a client sends, at first. Thousands of idle clients have no more.
const INBOX_BYTES_MIN: usize = 4 << 10;
/// Room for what a busy client sends: many requests in one receive.
const INBOX_BYTES_MAX: usize = 1 << 20;
/// Answers that a client has not received; from there on nothing more is taken in from it, in bytes.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// What one connection may have in flight, in requests.
const REQUESTS_IN_FLIGHT_MAX: u16 = 256;
/// What one connection may have in flight, in bytes.
const BYTES_IN_FLIGHT_MAX: u64 = 8 << 20;
/// How long a client may take to choose an export.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to receive the last answers before its connection is closed anyway.
const FAREWELL_LIMIT: Duration = Duration::from_secs(5);
/// How much of a volume one question for extents covers; clients ask on from there.
const EXTENTS_BYTES_MAX: u64 = 256 << 20;
/// Clients that are told why they are refused, at the same time.
const REFUSED_MAX: usize = 64;
/// Buffers for what fits a block.
const SMALL_COUNT: usize = 2048;
/// Buffers for more.
const LARGE_COUNT: usize = 128;
/// How often the gateway looks around while something is pending.
const TICK: Duration = Duration::from_secs(1);

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The cluster whose volumes they are.
    pub cluster: ClusterAccess,
    /// The volumes, by name, and snapshots, as VOLUME@SNAPSHOT; each becomes an export of that name.
    pub volumes: Vec<String>,
    /// Where to listen: at each of these.
    pub listen: Vec<Listen>,
    /// Who connects by TCP encrypts with this server, and has what its key may have. None: nobody is asked who it is.
    pub tls: Option<CertifiedServer>,
    /// How the volumes are had. Writes to what is opened to be read are refused.
    pub open: OpenAs,
    /// How long an operation may take before its client is told that it failed; `None` lets it wait for ever.
    pub timeout: Option<Duration>,
}

/// Why a gateway could not start, or had to end.
#[derive(thiserror::Error, Debug)]
pub enum GatewayError {
    /// The volumes could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Nobody can connect.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The volumes cannot be served together.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// The volumes cannot be worked on any more, or the reactor failed.
    #[error("the volumes are not served any more: {0}")]
    Loop(#[from] LoopError),
}

/// A running server of volumes. It belongs to the thread that made it.
pub struct Gateway {
    volumes: VolumeLoop,
    handles: Vec<VolumeHandle>,
    exports: Exports,
    /// Where those are who encrypt.
    lobby: Option<Lobby>,
    /// The map by which those were let in who have.
    admitted_by: u64,
    // They remove their sockets' names when dropped: after the reactor is gone.
    listeners: Vec<Listener>,
    /// By the connection's slot.
    doors: Vec<Option<Box<Door>>>,
    works: Works,
    /// By export.
    orphans: Vec<Orphans>,
    /// How long an export's orphans are waited for.
    settle_limit: Duration,
    /// A connection ended that had something under way, and was not looked at yet.
    has_dead: bool,
    buffers: Buffers,
    zeros: Buffer,
    /// Slots of doors that can go on.
    ready: Vec<usize>,
    /// Those of them that go on now; kept for its memory.
    serving: Vec<usize>,
    /// Slots of doors that wait for a buffer, in the order in which they came.
    starved: VecDeque<usize>,
    /// Doors that have not chosen an export, or are being closed: those on which time weighs.
    doors_watched: usize,
    /// Doors from which nothing is received.
    doors_stalled: usize,
    /// In which turn all were looked at last, whether anybody is there.
    looked_for_gone: Instant,
    events: Vec<Event>,
    requests: Vec<Request>,
    ticked: Instant,
    stopper: Stopper,
    stopping_since: Option<Instant>,
}

/// What each connection may occupy.
fn limits() -> Limits {
    Limits {
        requests_in_flight_max: REQUESTS_IN_FLIGHT_MAX,
        bytes_in_flight_max: BYTES_IN_FLIGHT_MAX,
        ..Limits::default()
    }
}

/// One client.
struct Door {
    id: ConnectionId,
    nbd: Connection,
    /// Which key it has proved to have, and on which terms it was let in by that.
    admitted: Option<(PublicKey, Terms)>,
    since: Instant,
    /// Requests taken in that wait for a buffer. Their data are in the inbox, which keeps `taken` bytes for
    /// them.
    waiting: Vec<Request>,
    taken: usize,
    is_ready: bool,
    is_starved: bool,
    is_watched: bool,
    /// Nothing is received from it, so its end is not noticed, until something is done that it asked for.
    is_stalled: bool,
    /// Its last answers are on their way; then it is closed with this reason.
    closing: Option<String>,
}

impl Door {
    /// Whether it has no more to do than to hear why it may do nothing.
    fn is_refused(&self) -> bool {
        matches!(self.admitted, Some((_, Terms::Refused(_))))
    }
}

impl Gateway {
    /// Attaches or opens the volumes, and listens. Clients are served from [`Self::run`] on.
    ///
    /// # Errors
    /// When a volume is not there or attached elsewhere, or nobody can connect to that place.
    pub fn open(options: &GatewayOptions) -> Result<Gateway, GatewayError> {
        // First, so that a socket in use is told of without an attach that fences somebody.
        let is_in_use = |error: &ListenError| matches!(error, ListenError::InUse(_));
        let bind = |listen| when_free(FREE_WITHIN, is_in_use, || Listener::bind(listen));
        let mut listeners = options.listen.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let reactor = ReactorOptions {
            connections_max: connections_max(),
            inbox_bytes: INBOX_BYTES_MIN,
            ..ReactorOptions::default()
        };
        let session = SessionOptions {
            cluster: options.cluster.clone(),
            volumes: options.volumes.clone(),
            open: options.open,
            timeout: options.timeout,
            purpose: "millpond nbd".to_owned(),
            note: note_beside(&options.listen),
        };
        let mut volumes = VolumeLoop::attach(session, reactor)?;
        let handles: Vec<_> = volumes.volumes().iter().map(|volume| volume.handle).collect();
        let exports = volumes.volumes().iter().map(|volume| {
            let bytes = volumes.volume_bytes(volume.handle);
            let is_read_only = options.open == OpenAs::Reader || volume.is_snapshot;
            Export::new(&volume.name, format!("Millpond {}", volume.id), bytes, is_read_only)
        });
        let exports = Exports::new(exports.collect())?;
        let orphans = exports.all().iter().map(|_| Orphans::default()).collect();
        let mut encrypted = Vec::new();
        for listener in &mut listeners {
            match (&options.tls, listener.place()) {
                (Some(_), Listen::Tcp(_)) => encrypted.push(listener.take_socket()),
                _ => {
                    volumes.reactor().listen(listener.take_socket()).map_err(LoopError::Ring)?;
                }
            }
        }
        let lobby = match &options.tls {
            Some(server) if !encrypted.is_empty() => {
                let lobby = Lobby::open(encrypted, server.clone(), volumes.reactor().waker());
                Some(lobby.map_err(LoopError::Ring)?)
            }
            _ => None,
        };
        let stopper = Stopper::new(volumes.reactor().waker());
        Ok(Gateway {
            volumes,
            handles,
            exports,
            lobby,
            admitted_by: 0,
            listeners,
            doors: Vec::new(),
            works: Works::default(),
            orphans,
            settle_limit: SETTLE_LIMIT,
            has_dead: false,
            buffers: Buffers::new(SMALL_COUNT, LARGE_COUNT),
            zeros: Buffer::new(PIECE_BYTES_MAX),
            ready: Vec::new(),
            serving: Vec::new(),
            starved: VecDeque::new(),
            doors_watched: 0,
            doors_stalled: 0,
            looked_for_gone: Instant::default(),
            events: Vec::new(),
            requests: Vec::new(),
            ticked: ring::now(),
            stopper,
            stopping_since: None,
        })
    }

    /// Where it listens, with the ports that it got.
    pub fn places(&self) -> impl Iterator<Item = &Listen> {
        self.listeners.iter().map(Listener::place)
    }

    /// Something that ends it from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until it is stopped. Dropping the gateway afterwards detaches the volumes.
    ///
    /// # Errors
    /// The volumes are attached no more, or the reactor failed.
    pub fn run(&mut self) -> Result<(), GatewayError> {
        while self.goes_on()? {}
        Ok(())
    }

    /// Serves for one turn. `false` once it has stopped.
    fn goes_on(&mut self) -> Result<bool, GatewayError> {
        if let Err(error) = self.turn() {
            self.fail_everything(&error.to_string());
            return Err(error.into());
        }
        Ok(!(self.stopper.is_wanted() && self.is_stopped()))
    }

    fn turn(&mut self) -> Result<(), LoopError> {
        let pending = self.doors_watched > 0
            || self.doors_stalled > 0
            || self.works.count() > 0
            || self.stopping_since.is_some();
        let mut events = std::mem::take(&mut self.events);
        let turned = self.volumes.turn(pending.then_some(TICK), &mut events);
        for event in events.drain(..) {
            self.handle(event);
        }
        self.events = events;
        turned?;
        self.settle();
        let now = self.volumes.now();
        if pending && now.since(self.ticked) >= TICK {
            self.tick(now);
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { connection, .. } => self.greet(connection),
            Event::Received { connection } | Event::Drained { connection } => self.mark_ready(connection),
            Event::Closed { connection, reason } => self.forget(connection, &reason),
            Event::Woken => {
                for (index, handle) in self.handles.iter().enumerate() {
                    self.exports.set_bytes(index, self.volumes.volume_bytes(*handle));
                }
                self.heed_renewals();
                self.heed_rights();
                self.admit_arrivals();
            }
            Event::Connected { .. } | Event::FileDone { .. } | Event::Signalled { .. } => {
                unreachable!("only the client connects, and there are no files or eventfds")
            }
        }
    }

    fn greet(&mut self, id: ConnectionId) {
        let mut wire = Wire { reactor: self.volumes.reactor(), id };
        let nbd = Connection::new(self.exports.clone(), limits(), &mut wire);
        self.add_door(id, nbd, None);
    }

    /// The terms on which whoever has a key is served, by the newest map.
    fn terms_of(&self, key: &PublicKey) -> Terms {
        let volumes: Vec<_> = self.volumes.volumes().iter().map(|volume| volume.id).collect();
        admission::terms(self.volumes.map(), key, &volumes)
    }

    /// Serves those who have encrypted and proved their keys.
    fn admit_arrivals(&mut self) {
        while let Some(Arrival { stream, key, padding }) = self.lobby.as_ref().and_then(Lobby::next) {
            let terms = self.terms_of(&key);
            if let Terms::Refused(reason) = &terms {
                tracing::info!(%key, reason, "an NBD client is refused");
                // Strangers have but so many places among those who are served, where they are told why.
                if self.doors.iter().flatten().filter(|door| door.is_refused()).count() >= REFUSED_MAX {
                    continue;
                }
            }
            match self.volumes.reactor().adopt(stream) {
                Ok(id) => {
                    let nbd = Connection::encrypted(self.exports.clone(), limits(), terms.clone(), padding);
                    self.add_door(id, nbd, Some((key, terms)));
                }
                Err(error) => tracing::warn!(%error, "an NBD client cannot be served"),
            }
        }
    }

    /// Parts from those whose keys may do something else by now than when they came.
    fn heed_rights(&mut self) {
        let revision = self.volumes.map_revision();
        if self.lobby.is_none() || std::mem::replace(&mut self.admitted_by, revision) == revision {
            return;
        }
        let known = self.doors.iter().flatten().filter_map(|door| Some((door.id, door.admitted.clone()?)));
        let changed = known.filter(|(_, (key, terms))| self.terms_of(key) != *terms).map(|(id, _)| id);
        for id in changed.collect::<Vec<_>>() {
            self.volumes.reactor().close(id, "what its key may do was changed");
        }
    }

    fn add_door(&mut self, id: ConnectionId, mut nbd: Connection, admitted: Option<(PublicKey, Terms)>) {
        if self.stopping_since.is_some() {
            nbd.shut_down();
        }
        let door = Door {
            id,
            nbd,
            admitted,
            since: self.volumes.now(),
            waiting: Vec::new(),
            taken: 0,
            is_ready: false,
            is_starved: false,
            is_watched: true,
            is_stalled: false,
            closing: None,
        };
        if self.doors.len() <= id.slot() {
            self.doors.resize_with(id.slot() + 1, || None);
        }
        self.doors[id.slot()] = Some(Box::new(door));
        self.doors_watched += 1;
    }

    fn forget(&mut self, connection: ConnectionId, reason: &str) {
        let Some(slot) = self.doors.get_mut(connection.slot()) else { return };
        if let Some(door) = slot.take_if(|door| door.id == connection) {
            self.doors_watched -= usize::from(door.is_watched);
            self.doors_stalled -= usize::from(door.is_stalled);
            self.has_dead |= door.nbd.in_flight() > 0;
            tracing::debug!(reason, "an NBD client is gone");
        }
    }

    fn mark_ready(&mut self, connection: ConnectionId) {
        if let Some(Some(door)) = self.doors.get_mut(connection.slot())
            && door.id == connection
            && !door.is_ready
        {
            door.is_ready = true;
            self.ready.push(connection.slot());
        }
    }

    /// Completes what is done and lets go on who can, until nothing moves.
    fn settle(&mut self) {
        self.disown_dead();
        loop {
            let mut is_freed = false;
            while let Some(completion) = self.volumes.poll_completion() {
                self.complete(completion);
                is_freed = true;
            }
            let buffers = &mut self.buffers;
            self.volumes.take_released(|buffer| {
                buffers.put(buffer);
                is_freed = true;
            });
            if is_freed {
                while let Some(slot) = self.starved.pop_front() {
                    let Some(Some(door)) = self.doors.get_mut(slot) else { continue };
                    door.is_starved = false;
                    if !door.is_ready {
                        door.is_ready = true;
                        self.ready.push(slot);
                    }
                }
            }
            if self.ready.is_empty() {
                return;
            }
            // Who is served may become ready once more, so the list must not be the one that is gone through.
            let mut serving = std::mem::replace(&mut self.ready, std::mem::take(&mut self.serving));
            for slot in serving.drain(..) {
                // A box: taking it out and putting it back moves a pointer.
                let Some(mut door) = self.doors[slot].take() else { continue };
                door.is_ready = false;
                self.serve(&mut door);
                self.doors[slot] = Some(door);
            }
            self.serving = serving;
        }
    }

    /// Takes in what a client sent, as far as limits and buffers allow.
    fn serve(&mut self, door: &mut Door) {
        if door.closing.is_some() {
            return self.close_when_sent(door);
        }
        let Some(mut inbox) = self.volumes.reactor().take_inbox(door.id) else { return self.go_on(door) };
        if door.nbd.is_negotiating() {
            // It may be about to choose an export.
            self.part_from_gone(true);
        }
        let may_receive = self.take_in(door, &mut inbox);
        self.doors_stalled -= usize::from(std::mem::replace(&mut door.is_stalled, !may_receive));
        self.doors_stalled += usize::from(door.is_stalled);
        self.volumes.reactor().return_inbox(door.id, inbox, may_receive);
        if door.is_watched && door.closing.is_none() && !door.nbd.is_negotiating() {
            door.is_watched = false;
            self.doors_watched -= 1;
        }
    }

    /// While nothing has come: what was asked before may have pieces that nobody has asked a volume for yet.
    fn go_on(&mut self, door: &mut Door) {
        let mut requests = std::mem::take(&mut self.requests);
        door.nbd.go_on(&mut requests, &mut Wire { reactor: self.volumes.reactor(), id: door.id });
        // They bring no data, and need no buffer.
        let begun = self.begin_all(door, &requests, &[]);
        assert_eq!(begun, requests.len(), "trims and zeroings begin without a buffer");
        requests.clear();
        self.requests = requests;
    }

    /// Answers whether more can be received.
    fn take_in(&mut self, door: &mut Door, inbox: &mut Inbox) -> bool {
        if !door.waiting.is_empty() {
            let mut waiting = std::mem::take(&mut door.waiting);
            let begun = self.begin_all(door, &waiting, inbox.bytes());
            waiting.drain(..begun);
            door.waiting = waiting;
            if !door.waiting.is_empty() {
                self.starve(door);
                return false;
            }
            inbox.consume(std::mem::take(&mut door.taken));
        }
        if self.volumes.reactor().unsent_bytes(door.id) > UNSENT_BYTES_MAX {
            // `Drained` brings us back.
            return false;
        }
        let was_full = inbox.is_full();
        let mut requests = std::mem::take(&mut self.requests);
        let mut wire = Wire { reactor: self.volumes.reactor(), id: door.id };
        let consumed = door.nbd.handle_bytes(inbox.bytes(), &mut requests, &mut wire);
        let begun = self.begin_all(door, &requests, inbox.bytes());
        let is_starved = begun < requests.len();
        if is_starved {
            door.waiting.extend(requests.drain(begun..));
            door.taken = consumed;
            self.starve(door);
        } else {
            inbox.consume(consumed);
        }
        requests.clear();
        self.requests = requests;
        if is_starved {
            return false;
        }
        match door.nbd.waiting() {
            Waiting::Bytes(count) => {
                if was_full {
                    inbox.grow((inbox.capacity() * 2).min(INBOX_BYTES_MAX));
                }
                inbox.grow(count);
                true
            }
            // What stands in the inbox is looked at again when it has come: so long nothing is received.
            Waiting::Completion | Waiting::Settlement => false,
            Waiting::Close => {
                self.begin_close(door);
                false
            }
        }
    }

    fn starve(&mut self, door: &mut Door) {
        if !door.is_starved {
            door.is_starved = true;
            self.starved.push_back(door.id.slot());
        }
    }

    /// Submits requests in order until a buffer is missing; answers how many.
    fn begin_all(&mut self, door: &mut Door, requests: &[Request], bytes: &[u8]) -> usize {
        let begun = requests.iter().position(|request| !self.begin(door, request, bytes));
        begun.unwrap_or(requests.len())
    }

    /// Submits one request, unless a buffer is missing. `bytes` hold the data of writes.
    fn begin(&mut self, door: &mut Door, request: &Request, bytes: &[u8]) -> bool {
        let (volume, piece) = (self.handles[request.export], request.id);
        match &request.operation {
            Operation::Read { offset, length } => {
                let Some(buffer) = self.buffers.take(*length) else { return false };
                let token = self.insert(door, request, Kind::Read, *length, 1);
                self.volumes.read(volume, token, *offset, *length as u64, buffer);
            }
            Operation::Write { offset, data, .. } => {
                let Some(mut buffer) = self.buffers.take(data.len()) else { return false };
                let memory = buffer.bytes_mut().expect("a buffer from a pool has one holder");
                memory[..data.len()].copy_from_slice(&bytes[data.clone()]);
                let token = self.insert(door, request, Kind::Change, data.len(), 1);
                self.volumes.write(volume, token, *offset, data.len() as u64, buffer);
            }
            Operation::Trim { offset, length } => {
                // A part of a block has no space of its own to give up.
                let block = BLOCK_BYTES as u64;
                let (start, end) = (offset.next_multiple_of(block), (offset + length) / block * block);
                if start < end {
                    let token = self.insert(door, request, Kind::Change, 0, 1);
                    self.volumes.zero(volume, token, start, end - start);
                } else {
                    door.nbd.complete(piece, &mut Wire { reactor: self.volumes.reactor(), id: door.id });
                    // It may have waited for this alone.
                    self.mark_later(door);
                }
            }
            Operation::WriteZeroes { offset, length, may_punch: true, .. } => {
                let token = self.insert(door, request, Kind::Change, 0, 1);
                self.volumes.zero(volume, token, *offset, *length);
            }
            Operation::WriteZeroes { fast: true, .. } => {
                let text = "zeros that take up space take as long as a write";
                let refusal = Failure::new(ErrorCode::NotSupported, text);
                door.nbd.fail(piece, refusal, &mut Wire { reactor: self.volumes.reactor(), id: door.id });
                self.mark_later(door);
            }
            Operation::WriteZeroes { offset, length, .. } => {
                let parts = length.div_ceil(PIECE_BYTES_MAX as u64);
                let token = self.insert(door, request, Kind::Change, 0, parts as u32);
                for part in 0..parts {
                    let start = part * PIECE_BYTES_MAX as u64;
                    let bytes = (length - start).min(PIECE_BYTES_MAX as u64);
                    self.volumes.write(volume, token, offset + start, bytes, self.zeros.clone());
                }
            }
            Operation::Extents { offset, length, .. } => {
                let length = (*length).min(EXTENTS_BYTES_MAX);
                let token = self.insert(door, request, Kind::Extents, length as usize, 1);
                self.volumes.allocated(volume, token, *offset, length);
            }
        }
        true
    }

    fn insert(&mut self, door: &Door, request: &Request, kind: Kind, length: usize, parts_left: u32) -> u64 {
        let (connection, export, piece) = (door.id, request.export, request.id);
        let (failure, is_orphan) = (None, false);
        self.works.insert(Work { connection, export, piece, kind, length, parts_left, failure, is_orphan })
    }

    /// Has a door that is being served now served once more.
    fn mark_later(&mut self, door: &mut Door) {
        if !door.is_ready {
            door.is_ready = true;
            self.ready.push(door.id.slot());
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { token, buffer, outcome } = completion;
        let failed = match &outcome {
            Outcome::Failed(error) => Some(failure(error, self.works.kind(token))),
            Outcome::Done | Outcome::Allocated(_) | Outcome::Changed(_) | Outcome::Space(_) => None,
        };
        let work = self.works.part_ended(token, failed);
        if let Some(work) = work.as_ref().filter(|work| work.is_orphan) {
            self.orphan_ended(work.export);
        }
        let door = work.as_ref().and_then(|work| {
            let door = self.doors.get_mut(work.connection.slot())?.as_mut()?;
            (door.id == work.connection).then_some(door)
        });
        let (Some(work), Some(door)) = (work, door) else {
            buffer.into_iter().for_each(|buffer| self.buffers.put(buffer));
            return;
        };
        let mut wire = Wire { reactor: self.volumes.reactor(), id: door.id };
        let mut unused = buffer;
        if let Some(failure) = work.failure {
            tracing::debug!(%failure.message, "an operation failed");
            door.nbd.fail(work.piece, failure, &mut wire);
        } else {
            match (work.kind, outcome) {
                (Kind::Read, _) => {
                    let buffer = unused.take().expect("a read comes back with its buffer");
                    let is_closed = door.nbd.closed().is_some();
                    if is_closed || self.buffers.is_scarce(&buffer) || door.nbd.keeps_data(work.piece) {
                        let data = ReadPart::Bytes(&buffer.bytes()[..work.length]);
                        door.nbd.complete_read(work.piece, [data], &mut wire);
                        unused = Some(buffer);
                    } else {
                        let data = ReadPart::Shared(buffer, 0..work.length);
                        door.nbd.complete_read(work.piece, [data], &mut wire);
                    }
                }
                (Kind::Extents, Outcome::Allocated(runs)) => {
                    let extents = runs.iter().map(|&(length, allocated)| Extent {
                        length,
                        hole: !allocated,
                        zero: !allocated,
                    });
                    door.nbd.complete_extents(work.piece, extents, &mut wire);
                }
                _ => door.nbd.complete(work.piece, &mut wire),
            }
        }
        if door.nbd.goes_on_by_completions() && !door.is_ready {
            door.is_ready = true;
            self.ready.push(work.connection.slot());
        }
        unused.into_iter().for_each(|buffer| self.buffers.put(buffer));
    }

    /// The conversation is over; what was answered still goes out.
    fn begin_close(&mut self, door: &mut Door) {
        let reason = door.nbd.closed().map(ToString::to_string).unwrap_or_default();
        if door.nbd.closed().is_some_and(|closed| !closed.is_clean()) {
            tracing::info!(reason, "an NBD connection is closed");
        }
        if !door.is_watched {
            door.is_watched = true;
            self.doors_watched += 1;
        }
        door.since = self.volumes.now();
        door.closing = Some(reason);
        self.close_when_sent(door);
    }

    fn close_when_sent(&mut self, door: &mut Door) {
        let reactor = self.volumes.reactor();
        if reactor.unsent_bytes(door.id) == 0 {
            reactor.close(door.id, door.closing.as_deref().unwrap_or_default());
        }
    }

    /// Looks for clients that take too long.
    fn tick(&mut self, now: Instant) {
        self.ticked = now;
        self.part_from_gone(false);
        self.tick_orphans(now);
        if self.doors_watched > 0 {
            for door in self.doors.iter().flatten() {
                let waited = now.since(door.since);
                // Who chose one that settles waits for the gateway.
                let has_chosen = door.nbd.waiting() == Waiting::Settlement;
                if door.closing.is_some() && waited >= FAREWELL_LIMIT {
                    self.volumes.reactor().close(door.id, "the client does not receive the last answers");
                } else if door.is_refused() && waited >= FAREWELL_LIMIT {
                    self.volumes.reactor().close(door.id, "the client was refused");
                } else if door.nbd.is_negotiating() && !has_chosen && waited >= NEGOTIATION_LIMIT {
                    self.volumes.reactor().close(door.id, "the client did not choose an export in time");
                }
            }
        }
    }

    /// Begins to stop, and answers whether that is over.
    fn is_stopped(&mut self) -> bool {
        let now = self.volumes.now();
        let since = match self.stopping_since {
            Some(since) => since,
            None => {
                self.stopping_since = Some(now);
                self.doors.iter_mut().flatten().for_each(|door| door.nbd.shut_down());
                now
            }
        };
        let is_idle = self.works.count() == 0 && self.is_all_sent();
        if !is_idle && now.since(since) < FAREWELL_LIMIT {
            return false;
        }
        self.close_all("this server is shutting down");
        true
    }

    fn is_all_sent(&mut self) -> bool {
        let reactor = self.volumes.reactor();
        self.doors.iter().flatten().all(|door| reactor.unsent_bytes(door.id) == 0)
    }

    fn close_all(&mut self, reason: &str) {
        for door in self.doors.iter().flatten() {
            self.volumes.reactor().close(door.id, reason);
        }
    }

    /// Tells every client that waits for something that it failed.
    fn fail_everything(&mut self, reason: &str) {
        for work in self.works.drain() {
            if let Some(Some(door)) = self.doors.get_mut(work.connection.slot())
                && door.id == work.connection
            {
                let mut wire = Wire { reactor: self.volumes.reactor(), id: door.id };
                door.nbd.fail(work.piece, Failure::new(ErrorCode::Shutdown, reason), &mut wire);
            }
        }
        let deadline = ring::now() + FAREWELL_LIMIT;
        while !self.is_all_sent() && ring::now() < deadline {
            // Of the reactor alone: the client, which knows of requests to send again, is not asked any more.
            let mut events = std::mem::take(&mut self.events);
            let turned = self.volumes.reactor().turn(Some(TICK), &mut events);
            events.clear();
            self.events = events;
            if turned.is_err() {
                return;
            }
        }
        self.close_all(reason);
    }
}

/// A connection of the reactor as a place for answers.
struct Wire<'a> {
    reactor: &'a mut Reactor,
    id: ConnectionId,
}

impl Output for Wire<'_> {
    fn inline(&mut self, bytes: &[u8]) {
        self.reactor.send(self.id, bytes);
    }
    fn shared(&mut self, buffer: Buffer, range: Range<usize>) {
        self.reactor.send_shared(self.id, buffer, range);
    }
}

/// How many connections this process may have, after its limit of descriptors was raised as far as it goes.
fn connections_max() -> u32 {
    let limit = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard => {
            if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
                hard
            } else {
                soft
            }
        }
        Ok((soft, _)) => soft,
        Err(_) => 1024,
    };
    limit.saturating_sub(DESCRIPTORS_RESERVED).clamp(64, CONNECTIONS_MAX) as u32
}
