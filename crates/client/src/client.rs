//! The client's state machine.

mod lines;
mod ownership;
mod piece;
mod query;
mod renewal;
mod stillness;
mod volumes;
mod waiting;

pub use ownership::OwnershipStep;
pub use query::{Change, Space};
pub use waiting::Notice;

use crate::error::ClientError;
use crate::route::{Reached, Routes};
use base::geometry::blocks_touched;
use base::hash::{Map, mix};
use base::map::ClusterMap;
use base::{
    BLOCK_BYTES, Buffer, ClientId, ClusterId, Epoch, Generation, Instant, LayerId, LinkId, Network,
    OBJECT_BYTES, ObjectKey, OsdId, PgId, Sequence, crc32c,
};
use lines::Lines;
use piece::{Piece, PieceKind, PieceState};
use query::Query;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stillness::PutOff;
use volumes::{Snapshot, Volume};
use waiting::Trouble;
use wire::{
    BLOCKS_PER_MESSAGE_MAX, Hello, Kind, Message, PAYLOAD_BYTES_MAX, Reply, Request, Role, Status, VERSIONS,
    Version, Welcome, WireError,
};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// The longest pause between two attempts at the same piece.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(400);
/// The pause before the second attempt.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(5);
/// How often bytes may arrive damaged before it is an error.
const TRANSIT_ATTEMPTS_MAX: u32 = 5;

/// A volume this client works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeHandle(u32);

/// With whom a client has a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nobody else writes to it: whoever had it before is fenced, and whoever takes it has this client fenced.
    Alone,
    /// Others may write to it at the same time.
    Shared,
}

/// An operation that is submitted: on which part of which volume.
#[derive(Clone, Copy, Debug)]
pub struct Submission {
    /// The volume.
    pub volume: VolumeHandle,
    /// What the caller names it; comes back with its completion.
    pub token: u64,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
}

/// What an operation brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The allocation of a range: `(bytes, is allocated)` in order, neighbours different.
    Allocated(Vec<(u64, bool)>),
    /// What a range holds now that it did not when a snapshot was made: `(bytes, what)` in order, neighbours different.
    Changed(Vec<(u64, Change)>),
    /// The room that a range takes.
    Space(Space),
    /// It failed for good.
    Failed(ClientError),
}

/// An operation that ended.
#[derive(Debug)]
pub struct Completion {
    /// What the caller named it.
    pub token: u64,
    /// The buffer it was submitted with. After a write a handle of it may still be on its way out.
    pub buffer: Option<Buffer>,
    /// How it ended.
    pub outcome: Outcome,
}

#[derive(Debug)]
struct Operation {
    token: u64,
    volume: VolumeHandle,
    submitted: Instant,
    buffer: Option<Buffer>,
    pieces_left: u32,
    failure: Option<ClientError>,
    /// It changes what the volume holds.
    is_change: bool,
    /// Whoever asked for it is gone.
    is_abandoned: bool,
    query: Option<Query>,
}

/// The connection to one OSD.
#[derive(Debug)]
struct OsdLink {
    link: LinkId,
    address: SocketAddr,
    incarnation: u64,
    /// Which version of the protocol is spoken on it. None before the welcome.
    version: Option<Version>,
    /// Pieces to send once it stands, with their serials: a place may be another's by then.
    queued: VecDeque<(u32, u32)>,
    /// Since when it is known that an answer is awaited and nothing at all comes.
    silent_since: Option<Instant>,
    /// An answer is awaited: as of the newest look around.
    is_awaited: bool,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    cluster: ClusterId,
    map: Arc<ClusterMap>,
    routes: Routes,
    volumes: Vec<Volume>,
    osds: Map<OsdId, OsdLink>,
    links: Map<LinkId, OsdId>,
    operations: Vec<Option<Operation>>,
    operations_free: Vec<u32>,
    pieces: Vec<Piece>,
    pieces_free: Vec<u32>,
    retries: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    lines: Lines,
    completions: VecDeque<Completion>,
    zeros: Buffer,
    /// Pieces that were ever made.
    pieces_made: u64,
    /// How long an operation may take.
    timeout: Option<Duration>,
    /// When to look around next, if there is reason to.
    look_at: Instant,
    /// Something that a person was told to wait for went on: reason to look around, with nothing in flight too.
    has_gone_on: bool,
    /// How the newest connection to each OSD ended that did.
    ends: Map<OsdId, String>,
    /// OSDs that greeted and then did not answer in time, and how often in a row.
    silences: Map<OsdId, u32>,
    notices: VecDeque<Notice>,
}

impl Client {
    /// A client of a cluster. `id` is drawn at random by the caller: OSDs know a client's connections by it.
    #[must_use]
    pub fn new(id: ClientId, map: Arc<ClusterMap>) -> Client {
        let mut client = Client {
            id,
            cluster: map.cluster,
            map: Arc::new(ClusterMap::default()),
            routes: Routes::default(),
            volumes: Vec::new(),
            osds: Map::default(),
            links: Map::default(),
            operations: Vec::new(),
            operations_free: Vec::new(),
            pieces: Vec::new(),
            pieces_free: Vec::new(),
            retries: BinaryHeap::new(),
            lines: Lines::default(),
            completions: VecDeque::new(),
            zeros: Buffer::new(BLOCK_BYTES),
            pieces_made: 0,
            timeout: None,
            look_at: Instant::default(),
            has_gone_on: false,
            ends: Map::default(),
            silences: Map::default(),
            notices: VecDeque::new(),
        };
        client.take_map(map);
        client
    }

    /// The volume's size in bytes, as of the newest map.
    #[must_use]
    pub fn volume_bytes(&self, volume: VolumeHandle) -> u64 {
        self.volumes[volume.0 as usize].bytes
    }

    /// The generation that a volume's changes bear; of one that is opened, while it is owned.
    #[must_use]
    pub fn generation(&self, volume: VolumeHandle) -> Generation {
        self.volumes[volume.0 as usize].generation
    }

    /// The newest map.
    #[must_use]
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// The revision of the newest map.
    #[must_use]
    pub fn map_revision(&self) -> u64 {
        self.map.revision
    }

    /// Operations that have not ended.
    #[must_use]
    pub fn operations_in_flight(&self) -> usize {
        let put_off: usize = self.volumes.iter().map(|volume| volume.still.put_off_count()).sum();
        self.operations.len() - self.operations_free.len() + put_off
    }

    /// Whether nothing that was ever asked for can still take effect: every operation has ended, with an answer.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.operations_in_flight() == 0 && self.volumes.iter().all(|volume| volume.loose_end.is_none())
    }

    /// The next operation that ended.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let retry = self.retries.peek().map(|Reverse((at, ..))| *at);
        let look = self.has_reason_to_look().then_some(self.look_at);
        [retry, look, self.next_ownership()].into_iter().flatten().min()
    }

    /// Reads a range to the front of `buffer`, which nobody else may hold.
    ///
    /// # Panics
    /// If the buffer is too small.
    pub fn submit_read(&mut self, now: Instant, what: Submission, buffer: Buffer, io: &mut impl Network) {
        assert!(what.length <= buffer.size() as u64, "a read fits its buffer");
        self.submit(now, PieceKind::Read, what, Some(buffer), io);
    }

    /// Writes what is at the front of `buffer` to a range.
    ///
    /// # Panics
    /// If the range is longer than the buffer.
    pub fn submit_write(&mut self, now: Instant, what: Submission, buffer: Buffer, io: &mut impl Network) {
        assert!(what.length <= buffer.size() as u64, "a write's bytes lie within its buffer");
        self.submit(now, PieceKind::Write, what, Some(buffer), io);
    }

    /// Makes a range read as zeros and frees the space of whole blocks.
    pub fn submit_zero(&mut self, now: Instant, what: Submission, io: &mut impl Network) {
        self.submit(now, PieceKind::Zero, what, None, io);
    }

    /// Asks which parts of a range are allocated.
    pub fn submit_allocated(&mut self, now: Instant, what: Submission, io: &mut impl Network) {
        self.submit(now, PieceKind::Allocated, what, None, io);
    }

    /// Asks which parts of a range may hold something else than the snapshot of a layer of the same volume, or of one that it was
    /// cloned from, does. None: which parts hold anything.
    pub fn submit_changed(
        &mut self,
        now: Instant,
        what: Submission,
        since: Option<LayerId>,
        io: &mut impl Network,
    ) {
        self.submit(now, PieceKind::Changed(since.unwrap_or_default()), what, None, io);
    }

    /// Asks what room a range takes, by whole objects. Volumes that are only looked at can be asked too.
    pub fn submit_space(&mut self, now: Instant, what: Submission, io: &mut impl Network) {
        self.submit(now, PieceKind::Space, what, None, io);
    }

    /// Takes over a newer map. What was sent to an OSD that does not serve its group any more is sent to the one
    /// that does: an OSD that hangs does not answer.
    pub fn handle_map(&mut self, now: Instant, map: Arc<ClusterMap>, io: &mut impl Network) {
        self.take_map(map);
        self.heed_wishes(now);
        self.note_shown();
        while let Some(link) = self.replaced_link() {
            self.give_up_link(now, link, "the OSD was started anew", io);
        }
        let mut misplaced = Vec::new();
        for (index, piece) in (0u32..).zip(&self.pieces) {
            let osd = match piece.state {
                PieceState::Sent(link) => self.links.get(&link).copied(),
                PieceState::Queued(osd) => Some(osd),
                PieceState::Free | PieceState::Waiting | PieceState::Held => continue,
            };
            let route = self.routes.get(piece.key.pg);
            let is_elsewhere = route.is_some_and(|route| Some(route.primary) != osd);
            // The group that it was sent to was split since, and it belongs to the other half.
            let is_of_other = self.group_of(piece).is_some_and(|pg| pg != piece.key.pg);
            if is_elsewhere || is_of_other {
                misplaced.push(index);
            }
        }
        // All have lost their places before the first of them is sent.
        for index in &misplaced {
            self.give_up_attempt(*index);
        }
        for index in misplaced {
            self.dispatch(now, index, io);
        }
        self.go_on(now, io);
    }

    /// What changes say of groups that they still belong to was reached before those are split, if it was in epochs that the map
    /// shows.
    fn note_shown(&mut self) {
        for index in 0..self.pieces.len() {
            let piece = &self.pieces[index];
            let belongs = piece.since.is_some() && self.group_of(piece) == Some(piece.key.pg);
            if let Some(route) = self.routes.get(piece.key.pg).filter(|_| belongs) {
                let piece = &mut self.pieces[index];
                piece.since = piece.since.map(|reached| reached.shown_by(route.shown));
            }
        }
    }

    /// A connection to an OSD that has been started anew since, perhaps elsewhere: nothing sent on it will be answered.
    fn replaced_link(&self) -> Option<LinkId> {
        let is_replaced = |(osd, state): (&OsdId, &OsdLink)| {
            let info = self.map.osds.get(osd)?;
            let is_same = info.address? == state.address && info.incarnation == state.incarnation;
            (!is_same).then_some(state.link)
        };
        self.osds.iter().find_map(is_replaced)
    }

    /// Ends a connection that is of no use any more. What was under way on it is tried again.
    fn give_up_link(&mut self, now: Instant, link: LinkId, reason: &str, io: &mut impl Network) {
        io.close(link, reason);
        self.handle_closed(now, link, reason);
    }

    /// Ends an attempt: what is still said of it is ignored, and a change has lost its place in the order.
    fn give_up_attempt(&mut self, index: u32) {
        self.end_attempt(index);
        self.line_up(index);
    }

    fn end_attempt(&mut self, index: u32) {
        let piece = &mut self.pieces[index as usize];
        piece.state = PieceState::Waiting;
        piece.serial = piece.serial.wrapping_add(1);
    }

    fn take_map(&mut self, map: Arc<ClusterMap>) {
        self.routes.update(&map);
        for volume in &mut self.volumes {
            volume.heed(&map);
        }
        self.map = map;
    }

    /// An outgoing connection stands.
    pub fn handle_connected(&mut self, link: LinkId, io: &mut impl Network) {
        if let Some(&osd) = self.links.get(&link) {
            let (role, cluster) = (Role::Client(self.id), self.cluster);
            io.send(link, &Hello { role, cluster, target: osd, versions: VERSIONS }.encode());
        }
    }

    /// A connection ended. What was under way on it is tried again.
    pub fn handle_closed(&mut self, now: Instant, link: LinkId, reason: &str) {
        let Some(osd) = self.links.remove(&link) else { return };
        if self.osds.get(&osd).is_some_and(|state| state.link == link) {
            self.osds.remove(&osd);
        }
        self.ends.insert(osd, reason.to_owned());
        for index in 0..self.pieces.len() as u32 {
            let state = self.pieces[index as usize].state;
            if state == PieceState::Sent(link) || state == PieceState::Queued(osd) {
                self.retry_later(now, index, Trouble::ConnectionEnded(osd));
            }
        }
    }

    /// Bytes came. Consumes whole messages from the front and answers how many bytes that were.
    ///
    /// # Errors
    /// When the peer does not speak the protocol or refuses this client: close the connection.
    pub fn handle_bytes(
        &mut self,
        now: Instant,
        link: LinkId,
        bytes: &[u8],
        io: &mut impl Network,
    ) -> Result<usize, LinkError> {
        self.heard_of(link);
        let mut consumed = 0;
        while let Some((message, size)) = wire::parse(&bytes[consumed..])? {
            match message {
                Message::Reply(reply) => {
                    self.answered_by(link);
                    self.handle_reply(now, link, &reply, io);
                }
                Message::Welcome(welcome) => self.handle_welcome(now, link, welcome, io),
                Message::Refused(refused) => return Err(LinkError::Refused(refused.reason.to_owned())),
                _ => return Err(LinkError::Unexpected),
            }
            consumed += size;
        }
        self.release_held(now, io);
        Ok(consumed)
    }

    /// Tries again what is due, and looks for what has waited too long.
    pub fn handle_timeout(&mut self, now: Instant, io: &mut impl Network) {
        while let Some(Reverse((at, index, serial))) = self.retries.peek().copied() {
            if at > now {
                break;
            }
            self.retries.pop();
            let piece = &self.pieces[index as usize];
            if piece.serial == serial && piece.state == PieceState::Waiting {
                self.dispatch(now, index, io);
            }
        }
        self.heed_wishes(now);
        if self.look_at <= now && self.has_reason_to_look() {
            self.look_around(now, io);
        }
        self.release_held(now, io);
    }

    fn submit(
        &mut self,
        now: Instant,
        kind: PieceKind,
        what: Submission,
        buffer: Option<Buffer>,
        io: &mut impl Network,
    ) {
        self.begin(now, PutOff { kind, what, buffer, submitted: now }, io);
    }

    /// Begins what was submitted now, or was put off.
    fn begin(&mut self, now: Instant, submission: PutOff, io: &mut impl Network) {
        let PutOff { kind, what, buffer, submitted } = submission;
        let Submission { volume, token, offset, length } = what;
        let info = &self.volumes[volume.0 as usize];
        let refused = match info.snapshot {
            Some(Snapshot::Looked) if kind != PieceKind::Space => {
                Some(ClientError::NoSuchVolume { volume: format!("{}@", info.name) })
            }
            Some(_) if kind.is_change() => Some(ClientError::IsSnapshot { volume: info.name.clone() }),
            _ if kind.is_change() && info.ownership.is_read_only() => {
                Some(ClientError::ReadOnly { volume: info.name.clone() })
            }
            _ => info.out_of_range(offset, length),
        };
        if let Some(error) = refused {
            self.completions.push_back(Completion { token, buffer, outcome: Outcome::Failed(error) });
            return;
        }
        if !self.has_reason_to_look() {
            self.look_at = now + waiting::LOOK_EVERY;
        }
        let volume = &mut self.volumes[volume.0 as usize];
        if kind.is_change() && !volume.lets_begin() {
            return volume.still.put_off(PutOff { kind, what, buffer, submitted });
        }
        let query = Query::of(kind, offset, length);
        let operation = Operation {
            token,
            volume: what.volume,
            submitted,
            buffer,
            pieces_left: 1,
            failure: None,
            is_change: kind.is_change(),
            is_abandoned: false,
            query,
        };
        let operation_index = self.operations_free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() as u32 - 1
        });
        self.operations[operation_index as usize] = Some(operation);
        let mut at = offset;
        while at < offset + length {
            let (piece_kind, piece_length) = next_piece(kind, at, offset + length - at);
            let index = self.add_piece(operation_index, piece_kind, at, piece_length);
            self.pieces[index as usize].buffer_start = (at - offset) as usize;
            self.dispatch(now, index, io);
            at += u64::from(piece_length);
        }
        // The piece that stood for the submission itself: an operation cannot end while it is being cut.
        self.piece_ended(operation_index);
    }

    fn add_piece(&mut self, operation: u32, kind: PieceKind, at: u64, length: u32) -> u32 {
        let state = self.operation_mut(operation);
        state.pieces_left += 1;
        let volume = state.volume;
        let info = &self.volumes[volume.0 as usize];
        let object = (at / OBJECT_BYTES) as u32;
        // Until the map shows the pool it is of no group.
        let pg = self.routes.group_of(info.pool, info.layer, object).unwrap_or_default();
        let key = ObjectKey { pg, layer: info.layer, object };
        let index = self.pieces_free.pop().unwrap_or(self.pieces.len() as u32);
        self.pieces_made += 1;
        let serial = self.pieces.get(index as usize).map_or(1, |piece| piece.serial.wrapping_add(1));
        let piece = Piece {
            serial,
            number: self.pieces_made,
            state: PieceState::Waiting,
            operation,
            kind,
            key,
            offset: (at % OBJECT_BYTES) as u32,
            length,
            buffer_start: 0,
            attempts: 0,
            damaged: 0,
            trouble: Trouble::None,
            origin: (mix(self.id.0.wrapping_add(self.pieces_made)) >> 3).max(1),
            since: None,
            is_first: false,
            generation: Generation(0),
            epoch: Epoch(0),
            asks: false,
            has_asked: false,
            is_lined_up: false,
        };
        match self.pieces.get_mut(index as usize) {
            Some(slot) => *slot = piece,
            None => self.pieces.push(piece),
        }
        index
    }

    fn operation_mut(&mut self, index: u32) -> &mut Operation {
        self.operations[index as usize].as_mut().expect("a piece's operation lives as long as the piece")
    }

    /// The group that a piece belongs to, by the newest map.
    fn group_of(&self, piece: &Piece) -> Option<PgId> {
        let operation = self.operations[piece.operation as usize].as_ref()?;
        let pool = self.volumes[operation.volume.0 as usize].pool;
        self.routes.group_of(pool, piece.key.layer, piece.key.object)
    }

    /// What a piece fails with that lies beyond the end of its volume by the newest map: this was made smaller since it was
    /// submitted.
    fn beyond_end(&self, index: u32) -> Option<ClientError> {
        let piece = &self.pieces[index as usize];
        self.volume_of(index).out_of_range(piece.volume_offset(), piece.length.into())
    }

    /// What a piece fails with whose snapshot was removed.
    fn is_gone(&self, index: u32) -> Option<ClientError> {
        let volume = self.volume_of(index);
        let is_gone = volume.snapshot == Some(Snapshot::Removed);
        is_gone.then(|| ClientError::NoSuchVolume { volume: volume.name.clone() })
    }

    /// A piece that was not sent, or of which nothing can have been done, is of the newest layer.
    fn go_to_newest_layer(&mut self, index: u32) {
        let layer = self.volume_of(index).layer;
        let piece = &mut self.pieces[index as usize];
        if piece.since.is_none() || !piece.is_change() {
            piece.key.layer = layer;
        }
    }

    /// Sends a piece to where it belongs, or arranges that it is sent later.
    fn dispatch(&mut self, now: Instant, index: u32, io: &mut impl Network) {
        if let Some(error) = self.beyond_end(index) {
            // What was sent of it before may still be done, and is cut off then.
            self.may_have_loose_end(index);
            return self.drop_piece(index, Some(error));
        }
        if let Some(error) = self.is_gone(index) {
            return self.drop_piece(index, Some(error));
        }
        self.go_to_newest_layer(index);
        if self.is_held_back(index) {
            return self.hold_back(index);
        }
        if self.is_to_be_fenced(index) {
            return self.retry_later(now, index, Trouble::Renewing);
        }
        let group = self.group_of(&self.pieces[index as usize]);
        let piece = &mut self.pieces[index as usize];
        if let Some(pg) = group.filter(|pg| *pg != piece.key.pg) {
            piece.key.pg = pg;
            // The other half goes by what the group had reached before it was split.
            piece.since = piece.since.map(Reached::of_child);
        }
        let Some(route) = self.routes.get(piece.key.pg) else {
            return self.retry_later(now, index, Trouble::Unmapped);
        };
        let osd = route.primary;
        let info = self.map.osds.get(&osd);
        let place = info.and_then(|info| Some((info.address?, info.incarnation)));
        // Whom only the registry does not hear from has no address any more, and leads on until it is replaced.
        if let Some(state) = self.osds.get_mut(&osd) {
            let is_same = place.is_none_or(|place| place == (state.address, state.incarnation));
            assert!(is_same, "a map that shows an OSD started anew ends the connection to the one before");
            if state.version.is_some() {
                let link = state.link;
                self.send_piece(index, link, io);
            } else {
                state.queued.push_back((index, self.pieces[index as usize].serial));
                self.pieces[index as usize].state = PieceState::Queued(osd);
            }
            return;
        }
        let Some((address, incarnation)) = place else {
            return self.retry_later(now, index, Trouble::PrimaryDown(osd));
        };
        let Some(link) = io.connect(address) else {
            return self.retry_later(now, index, Trouble::NoConnection(osd));
        };
        self.links.insert(link, osd);
        let queued = VecDeque::from([(index, self.pieces[index as usize].serial)]);
        let silent_since = Some(now);
        let state =
            OsdLink { link, address, incarnation, version: None, queued, silent_since, is_awaited: true };
        self.osds.insert(osd, state);
        self.pieces[index as usize].state = PieceState::Queued(osd);
    }

    fn handle_welcome(&mut self, now: Instant, link: LinkId, welcome: Welcome, io: &mut impl Network) {
        let Some(osd) = self.links.get(&link).copied() else { return };
        let Some(state) = self.osds.get_mut(&osd) else { return };
        state.version = Some(welcome.version);
        let mut queued = std::mem::take(&mut state.queued);
        for (index, serial) in queued.drain(..) {
            let piece = &self.pieces[index as usize];
            // Since it was queued it may have been sent elsewhere.
            if piece.serial == serial && piece.state == PieceState::Queued(osd) {
                self.dispatch(now, index, io);
            }
        }
    }

    fn send_piece(&mut self, index: u32, link: LinkId, io: &mut impl Network) {
        let piece = &mut self.pieces[index as usize];
        piece.state = PieceState::Sent(link);
        piece.attempts += 1;
        let operation = self.operations[piece.operation as usize].as_ref().expect("a piece has an operation");
        let route = self.routes.get(piece.key.pg).expect("dispatch found a route");
        let volume = &self.volumes[operation.volume.0 as usize];
        (piece.generation, piece.epoch) = (volume.generation, route.epoch);
        let request = Request {
            request: u64::from(piece.serial) << 32 | u64::from(index),
            key: piece.key,
            offset: piece.offset,
            length: piece.length,
            epoch: route.epoch,
            generation: volume.generation,
            origin: piece.origin,
            since: piece.since.map(|reached| reached.newest),
            // What arrives is verified here.
            unverified: piece.kind == PieceKind::Read && piece.damaged == 0,
            of_snapshot: volume.snapshot.is_some(),
        };
        let is_first = piece.is_change() && piece.since.is_none();
        // A change that is to be repeated where others write too has to say since when. Of most groups that is known from
        // the answer before; whoever knows nothing asks first, once.
        let is_known =
            volume.holding == Holding::Alone || route.reached.newest > Sequence(0) || piece.has_asked;
        piece.asks = is_first && !is_known;
        if piece.asks {
            return io.send(link, &request.encode(Kind::Allocated));
        }
        if is_first {
            piece.since = Some(route.reached);
        }
        piece.is_first = is_first;
        match piece.kind {
            PieceKind::Read => io.send(link, &request.encode(Kind::Read)),
            PieceKind::Zero => io.send(link, &request.encode(Kind::Zero)),
            PieceKind::Allocated => io.send(link, &request.encode(Kind::Allocated)),
            PieceKind::Space => io.send(link, &request.encode(Kind::Space)),
            PieceKind::Changed(since) => {
                io.send(link, &Request { origin: since.0, ..request }.encode(Kind::Changed));
            }
            PieceKind::Write => {
                // The unaligned edge of a zeroing has no buffer: it is a write of zeros.
                let (buffer, start) = match &operation.buffer {
                    Some(buffer) => (buffer, piece.buffer_start),
                    None => (&self.zeros, 0),
                };
                let range = start..start + piece.length as usize;
                let mut checksums = [U32::ZERO; BLOCKS_PER_MESSAGE_MAX];
                let count = block_checksums(piece.offset, &buffer.bytes()[range.clone()], &mut checksums);
                io.send(link, &request.encode(Kind::Write));
                io.send(link, checksums[..count].as_bytes());
                io.send_shared(link, buffer.clone(), range);
            }
        }
    }

    fn handle_reply(&mut self, now: Instant, link: LinkId, reply: &Reply<'_>, io: &mut impl Network) {
        let (index, serial) = (reply.head.request as u32, (reply.head.request >> 32) as u32);
        let Some(piece) = self.pieces.get(index as usize) else { return };
        // A reply to an attempt that was given up, on this link or another, changes nothing.
        if piece.serial != serial || piece.state != PieceState::Sent(link) {
            return;
        }
        let osd = self.links.get(&link).copied().unwrap_or_default();
        let (ObjectKey { pg, object, .. }, details) = (piece.key, reply.head.details);
        let status = reply.head.status;
        if status == Status::Throttled {
            // It is answered when a limit lets it begin.
            self.pieces[index as usize].trouble = Trouble::Throttled(osd);
            return;
        }
        // An OSD answers in the epoch that it was asked in.
        self.routes.has_reached(pg, piece.epoch, reply.head.reached);
        if self.was_question(index, status) {
            self.end_attempt(index);
            return self.dispatch(now, index, io);
        }
        self.heed_refusal(index, status, details.was_not_begun);
        let failure = match status {
            Status::Ok => match self.take_result(index, reply) {
                Ok(()) => return self.end_piece(index, None),
                Err(()) => return self.corrupt_in_transit(now, index, osd, io),
            },
            Status::StaleEpoch if self.routes.told_epoch(pg, details.epoch) => {
                self.give_up_attempt(index);
                return self.dispatch(now, index, io);
            }
            // Of the end of the volume the OSD may know something newer, or older: the newest map here is asked before it is
            // sent again.
            Status::NotPrimary
            | Status::NotActive
            | Status::StaleEpoch
            | Status::BeyondEnd
            | Status::Frozen => {
                return self.retry_later(now, index, Trouble::NotServed(osd, status));
            }
            Status::SendAgain | Status::Throttled => {
                self.give_up_attempt(index);
                return self.dispatch(now, index, io);
            }
            Status::CorruptPayload => return self.corrupt_in_transit(now, index, osd, io),
            Status::OutcomeUnknown if self.volume_of(index).holding == Holding::Alone => {
                // Nobody else wrote there meanwhile, and what this client submitted later waits for it.
                self.pieces[index as usize].since = None;
                self.give_up_attempt(index);
                return self.dispatch(now, index, io);
            }
            Status::OutcomeUnknown => ClientError::OutcomeUnknown { volume: self.volume_name(index) },
            Status::Fenced if self.was_renewed_since(index) => {
                self.give_up_attempt(index);
                return self.dispatch(now, index, io);
            }
            Status::Fenced if self.volume_of(index).is_renewing => {
                return self.retry_later(now, index, Trouble::Renewing);
            }
            // By an OSD of a version that refuses reads of older generations, and knows of an attach that is not shown here yet.
            Status::Fenced
                if self.volume_of(index).ownership.is_opened()
                    && !self.pieces[index as usize].is_change() =>
            {
                return self.retry_later(now, index, Trouble::NotServed(osd, status));
            }
            Status::Fenced => ClientError::Fenced { volume: self.volume_name(index) },
            Status::NoSpace => ClientError::NoSpace { volume: self.volume_name(index) },
            Status::NoSuchVolume => ClientError::NoSuchVolume { volume: self.volume_name(index) },
            Status::Forbidden => ClientError::Forbidden { volume: self.volume_name(index) },
            Status::DeviceFailed => {
                ClientError::DeviceFailed { volume: self.volume_name(index), osd: details.osd }
            }
            Status::Damaged => {
                let (offset, osd) = (details.offset, details.osd);
                ClientError::Damaged { volume: self.volume_name(index), object, offset, osd }
            }
        };
        self.end_piece(index, Some(failure));
    }

    /// Whether what was answered is the question how far the group is, and is answered for good. Then the change itself
    /// follows.
    fn was_question(&mut self, index: u32, status: Status) -> bool {
        let piece = &mut self.pieces[index as usize];
        let is_answer = std::mem::take(&mut piece.asks) && status == Status::Ok;
        piece.has_asked |= is_answer;
        is_answer
    }

    /// If an attempt was refused before anything was done for it, and none before it may have been done, there was none.
    fn heed_refusal(&mut self, index: u32, status: Status, was_not_begun: bool) {
        let piece = &mut self.pieces[index as usize];
        if piece.is_first && (was_not_begun || status == Status::CorruptPayload) {
            piece.since = None;
        }
    }

    fn volume_of(&self, index: u32) -> &Volume {
        let operation = self.operations[self.pieces[index as usize].operation as usize].as_ref();
        &self.volumes[operation.expect("a piece has an operation").volume.0 as usize]
    }

    fn volume_name(&self, index: u32) -> String {
        self.volume_of(index).name.clone()
    }

    fn corrupt_in_transit(&mut self, now: Instant, index: u32, osd: OsdId, io: &mut impl Network) {
        let piece = &mut self.pieces[index as usize];
        piece.damaged += 1;
        let attempts = piece.damaged;
        if attempts < TRANSIT_ATTEMPTS_MAX {
            self.give_up_attempt(index);
            return self.dispatch(now, index, io);
        }
        let volume = self.volume_name(index);
        self.end_piece(index, Some(ClientError::CorruptInTransit { volume, osd, attempts }));
    }

    /// Verifies a good reply's data and copies it to where it was wanted.
    fn take_result(&mut self, index: u32, reply: &Reply<'_>) -> Result<(), ()> {
        let piece = &self.pieces[index as usize];
        let operation = self.operations[piece.operation as usize].as_mut().expect("a piece has an operation");
        match piece.kind {
            PieceKind::Write | PieceKind::Zero => Ok(()),
            PieceKind::Read => {
                let buffer = operation.buffer.as_mut().expect("a read has a buffer");
                let memory = buffer.bytes_mut().expect("a read's buffer has one holder");
                let target = &mut memory[piece.buffer_start..piece.buffer_start + piece.length as usize];
                if reply.head.is_zeros {
                    target.fill(0);
                    return Ok(());
                }
                let (_, blocks) = blocks_touched(u64::from(piece.offset), u64::from(piece.length));
                if reply.checksums.len() as u64 != blocks
                    || reply.data.len() != reply.checksums.len() * BLOCK_BYTES
                {
                    return Err(());
                }
                let mut skipped = piece.offset as usize % BLOCK_BYTES;
                let mut rest = target;
                for (block, checksum) in reply.data.chunks_exact(BLOCK_BYTES).zip(reply.checksums) {
                    // The end of the end-to-end check: the writer's checksum against the bytes as they arrived.
                    if crc32c(block) != checksum.get() {
                        return Err(());
                    }
                    // Copied at once, while it is in the cache. Until the whole piece verifies, nobody is given it.
                    let block = &block[skipped..];
                    let (part, left) = rest.split_at_mut(block.len().min(rest.len()));
                    part.copy_from_slice(&block[..part.len()]);
                    (rest, skipped) = (left, 0);
                }
                Ok(())
            }
            PieceKind::Allocated | PieceKind::Changed(_) | PieceKind::Space => {
                let query = operation.query.as_mut().expect("a question has what it is about");
                query.take(piece, reply.data)
            }
        }
    }

    fn retry_later(&mut self, now: Instant, index: u32, trouble: Trouble) {
        self.give_up_attempt(index);
        let piece = &mut self.pieces[index as usize];
        (piece.trouble, piece.damaged) = (trouble, 0);
        piece.attempts += 1;
        let pause = RETRY_PAUSE_MIN * (1 << piece.attempts.min(8));
        self.retries.push(Reverse((now + pause.min(RETRY_PAUSE_MAX), index, piece.serial)));
    }

    /// Whoever serves its group has spoken the last word on a piece.
    fn end_piece(&mut self, index: u32, failure: Option<ClientError>) {
        let Piece { operation, key, .. } = self.pieces[index as usize];
        let volume = self.operation_mut(operation).volume;
        self.has_gone_on |= self.volumes[volume.0 as usize].stalls.answered(key.pg);
        self.drop_piece(index, failure);
    }

    fn drop_piece(&mut self, index: u32, failure: Option<ClientError>) {
        self.leave_line(index);
        let piece = &mut self.pieces[index as usize];
        piece.state = PieceState::Free;
        let operation = piece.operation;
        self.pieces_free.push(index);
        let state = self.operation_mut(operation);
        if state.failure.is_none() {
            state.failure = failure;
        }
        self.piece_ended(operation);
    }

    fn piece_ended(&mut self, operation: u32) {
        let state = self.operation_mut(operation);
        state.pieces_left -= 1;
        if state.pieces_left > 0 {
            return;
        }
        let state = self.operations[operation as usize].take().expect("it was just looked at");
        self.operations_free.push(operation);
        let outcome = match (state.failure, state.query) {
            (Some(error), _) => Outcome::Failed(error),
            (None, Some(query)) => query.outcome(),
            (None, None) => Outcome::Done,
        };
        self.completions.push_back(Completion { token: state.token, buffer: state.buffer, outcome });
    }
}

/// The first piece of a range: what it does and how long it is. Never crosses an object's border.
fn next_piece(kind: PieceKind, at: u64, left: u64) -> (PieceKind, u32) {
    let block = BLOCK_BYTES as u64;
    let in_object = OBJECT_BYTES - at % OBJECT_BYTES;
    let (kind, length) = match kind {
        PieceKind::Read | PieceKind::Write => {
            // Pieces after the first start on block borders, so that only the edges are partial.
            let limit = PAYLOAD_BYTES_MAX as u64 - at % block;
            (kind, left.min(limit))
        }
        PieceKind::Allocated | PieceKind::Changed(_) | PieceKind::Space => (kind, left),
        PieceKind::Zero if !at.is_multiple_of(block) => (PieceKind::Write, left.min(block - at % block)),
        PieceKind::Zero if left < block => (PieceKind::Write, left),
        PieceKind::Zero => (kind, left / block * block),
    };
    (kind, length.min(in_object) as u32)
}

/// The checksum of each block's part of `data`, which lies at `offset` of an object. Answers how many.
fn block_checksums(offset: u32, data: &[u8], checksums: &mut [U32; BLOCKS_PER_MESSAGE_MAX]) -> usize {
    let head = data.len().min(BLOCK_BYTES - offset as usize % BLOCK_BYTES);
    let (head, rest) = data.split_at(head);
    checksums[0] = crc32c(head).into();
    let mut count = 1;
    for part in rest.chunks(BLOCK_BYTES) {
        checksums[count] = crc32c(part).into();
        count += 1;
    }
    count
}

/// Why a connection to an OSD is of no use.
#[derive(thiserror::Error, Debug)]
pub enum LinkError {
    /// It sent what is no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It does not want this client.
    #[error("refused: {0}")]
    Refused(String),
    /// It sent a message that only OSDs send each other.
    #[error("the OSD sent a message that is not for clients")]
    Unexpected,
}

#[cfg(test)]
mod tests;
