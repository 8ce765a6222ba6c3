//! The OSD: its links, its map, its turn.

use crate::access::{ClientLink, Credential};
use crate::counting::Replicated;
use crate::drive::Renewals;
use crate::fence::Fencing;
use crate::group::{Group, GroupState, GroupSummary};
use crate::io::Io;
use crate::lease::Leases;
use crate::mend::{DamageCounts, Fetching, Lost};
use crate::milestone::{Milestone, Milestones};
use crate::operation::{OperationId, Operations};
use crate::pace::Pace;
use crate::placement::target_of;
use crate::sabotage::Sabotage;
use crate::scrub::Scrubs;
use crate::split::Splitting;
use base::figures::{Figures, Traffic};
use base::hash::Map;
use base::map::ClusterMap;
use base::{
    BLOCK_BYTES, Buffer, BufferPool, Generation, Instant, LinkId, ObjectKey, OsdId, PgId, PoolId, VolumeId,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::{Action, Store};
use wire::encode::RefusalDetails;
use wire::{Hello, Message, Role, Status, WireError, encode};

/// How long after a failed attempt an OSD is dialled again.
const REDIAL_PAUSE: Duration = Duration::from_millis(200);
/// How often the slow things are looked at.
const TICK: Duration = Duration::from_millis(100);
/// The same when none of them is under way: an idle OSD hardly wakes.
const TICK_AT_REST: Duration = Duration::from_secs(2);
/// An OSD that had nothing to do for so long is at rest.
const REST_AFTER: Duration = Duration::from_secs(5);
/// The most bytes a client may leave unread before no more of its requests are handled.
const CLIENT_UNSENT_BYTES_MAX: usize = 4 << 20;

/// A replica that lags by more gets copies of what it must write.
const SHARE_LIMIT_BYTES: usize = 512 << 10;

/// Sizes of an OSD.
#[derive(Clone, Debug)]
pub struct OsdOptions {
    /// Buffers of one block, for reads of one.
    pub small_buffers: usize,
    /// Buffers for the largest message.
    pub large_buffers: usize,
    /// Breaks a promise on purpose, so that tests can show that they would notice.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

impl Default for OsdOptions {
    fn default() -> OsdOptions {
        OsdOptions { small_buffers: 1024, large_buffers: 64, sabotage: None }
    }
}

/// Why a link is of no use any more: close it with this reason, and tell the peer.
#[derive(thiserror::Error, Debug)]
pub enum LinkError {
    /// It sent what is no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It belongs elsewhere.
    #[error("this is cluster {ours}, not {theirs}; use the address of an OSD of your cluster")]
    OtherCluster {
        /// This OSD's.
        ours: base::ClusterId,
        /// The peer's.
        theirs: base::ClusterId,
    },
    /// It wanted another OSD.
    #[error("this is {ours}, not {theirs}; the address in your map is out of date")]
    OtherOsd {
        /// This one.
        ours: OsdId,
        /// Whom the peer wanted.
        theirs: OsdId,
    },
    /// It sent a message out of turn.
    #[error("a message came out of turn: {0}")]
    OutOfTurn(&'static str),
    /// An OSD that this cluster's map does not show.
    #[error("{0} is not an OSD of this cluster")]
    UnknownOsd(OsdId),
    /// Its key does not allow that.
    #[error("the key {name} must not {what}; `millpond auth ls` shows what it may do")]
    NotAllowed {
        /// The key's name.
        name: Arc<str>,
        /// What it wanted to.
        what: &'static str,
    },
    /// Its key has as many connections as one may.
    #[error(
        "the key {name} has {max} connections to this OSD already, as many as one key may; give each machine a key of its own \
         (`millpond auth add`), or end some"
    )]
    TooMany {
        /// The key's name.
        name: Arc<str>,
        /// How many.
        max: usize,
    },
    /// Its key was removed, or replaced.
    #[error("the key {0} was removed or replaced; `millpond auth ls` shows who has one")]
    KeyRemoved(Arc<str>),
    /// This OSD serves nothing more.
    #[error("{0} stops, or its drive failed")]
    Stopped(OsdId),
    /// It refused us.
    #[error("refused: {0}")]
    Refused(String),
}

/// What became of the bytes that a link brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many were consumed, from the front.
    pub consumed: usize,
    /// A message is there and cannot be handled yet: present the rest again after the next turn.
    pub is_stalled: bool,
}

/// Whether a message was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    Done,
    Stalled,
}

/// What the acknowledgement of a replicated message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// A write, at a member in sync.
    Write(OperationId),
    /// A write of this group, at a learner: nobody waits for it.
    Learning { group: u32, session: u32 },
    /// What a learner of this group lacked.
    Push { group: u32, session: u32, cost: u16 },
    /// The mark of a learner's join.
    Join { group: u32, session: u32 },
}

/// A replicated message that awaits its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) ordinal: u64,
    pub(crate) awaited: Awaited,
}

/// A reply that was looked up and leaves with the end of the turn, if the leases still last then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Zeros,
    Allocated([u8; base::OBJECT_BLOCKS / 8]),
}

/// See [`Answer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) group: u32,
    pub(crate) epoch: base::Epoch,
    pub(crate) asked: crate::operation::Asked,
    pub(crate) answer: Answer,
}

/// Who is at the other end of a link.
#[derive(Debug)]
pub(crate) enum Peer {
    /// It connected and has not said yet.
    Unknown(Option<Credential>),
    Client(ClientLink),
    Osd(OsdLink),
}

/// The link to another OSD. Carries replication in both directions.
#[derive(Debug, Default)]
pub(crate) struct OsdLink {
    pub(crate) osd: OsdId,
    /// Whose key is there, if that is checked.
    pub(crate) credential: Option<Credential>,
    pub(crate) is_ready: bool,
    /// When it was dialled, or became ready.
    pub(crate) since: Instant,
    /// When something came on it.
    pub(crate) heard_at: Instant,
    /// Replicated messages sent on it.
    pub(crate) sent: u64,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Replicated messages received on it.
    pub(crate) received: u64,
    /// How many of those are on stable media here.
    pub(crate) durable: u64,
    pub(crate) needs_ack: bool,
    /// The peer is nearly full.
    pub(crate) is_full: bool,
}

impl OsdLink {
    pub(crate) fn new(osd: OsdId, is_ready: bool, now: Instant) -> OsdLink {
        OsdLink { osd, is_ready, since: now, heard_at: now, ..OsdLink::default() }
    }
}

/// What was staged in the store and becomes durable in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StagedRecord {
    Own {
        group: u32,
        operation: OperationId,
    },
    Replica {
        group: u32,
        link: LinkId,
        ordinal: u64,
        /// A write or zeroing of a client, to be counted.
        write: Option<Replicated>,
    },
    /// A part of the deletion of a group that this OSD left: nobody waits for it.
    Left {
        group: u32,
    },
    /// A split: both groups wait for it.
    Split {
        group: u32,
        child: u32,
    },
}

impl StagedRecord {
    fn group(self) -> u32 {
        let (StagedRecord::Own { group, .. }
        | StagedRecord::Replica { group, .. }
        | StagedRecord::Left { group }
        | StagedRecord::Split { group, .. }) = self;
        group
    }
}

/// Blocks of a buffer of the small pool: whatever fits one.
const SMALL_BLOCKS: usize = 1;
/// Blocks of a buffer of the large pool: whatever a message has.
const LARGE_BLOCKS: usize = wire::BLOCKS_PER_MESSAGE_MAX;

// What a device operation was for.
const TOKEN_SHIFT: u32 = 56;
const TOKEN_STORE_WRITE: u64 = 1;
const TOKEN_STORE_FLUSH: u64 = 2;
const TOKEN_STORE_READ: u64 = 3;
pub(crate) const TOKEN_PART: u64 = 4;

/// What requests need to know of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeState {
    pub(crate) pool: PoolId,
    pub(crate) generation: Generation,
    pub(crate) is_removed: bool,
    /// What clients were served of it here.
    pub(crate) traffic: Traffic,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Osd {
    pub(crate) id: OsdId,
    pub(crate) cluster: base::ClusterId,
    pub(crate) store: Store,
    pub(crate) map: Arc<ClusterMap>,
    pub(crate) groups: Vec<Group>,
    pub(crate) group_index: Map<PgId, u32>,
    pub(crate) volumes: Map<VolumeId, VolumeState>,
    /// Generations of volumes that the map does not show yet.
    pub(crate) fences: BTreeMap<VolumeId, Generation>,
    /// Fences that other OSDs are yet to know.
    pub(crate) fencing: Vec<Fencing>,
    pub(crate) operations: Operations,
    pub(crate) peers: Map<LinkId, Peer>,
    pub(crate) osd_links: BTreeMap<OsdId, LinkId>,
    pub(crate) redial_after: BTreeMap<OsdId, Instant>,
    pub(crate) leases: Leases,
    /// Whom this OSD shares groups with, in order.
    pub(crate) neighbours: Vec<OsdId>,
    /// Since when one of them does not answer.
    pub(crate) away_since: BTreeMap<OsdId, Instant>,
    /// When there last was work.
    pub(crate) active_at: Instant,
    pub(crate) deferred: Vec<Deferred>,
    /// Attempts at learners that were begun.
    pub(crate) sessions: u32,
    /// Groups that wait for a learner's last acknowledgements to take it in.
    pub(crate) promotions: Vec<u32>,
    pub(crate) small: BufferPool,
    pub(crate) large: BufferPool,
    pub(crate) zeros: Buffer,
    pub(crate) staged: VecDeque<StagedRecord>,
    staged_token: u64,
    durable_token: u64,
    /// Ordered and not yet sent to the replicas: their batch is still being filled.
    pub(crate) outgoing: VecDeque<OperationId>,
    actions: Vec<Action>,
    /// Groups with operations or repairs that wait for room, to be looked at with the end of the turn.
    blocked_groups: Vec<u32>,
    scratch_groups: Vec<u32>,
    links_to_ack: Vec<LinkId>,
    pub(crate) now: Instant,
    pub(crate) next_tick: Instant,
    was_full: bool,
    /// Splits that the store is yet to take.
    pub(crate) splittings: VecDeque<Splitting>,
    pub(crate) deletions: VecDeque<ObjectKey>,
    pub(crate) deletions_are_due: bool,
    pub(crate) damage: DamageCounts,
    pub(crate) renewals: Renewals,
    /// Groups with members that are being brought up to date; some may have none any more.
    pub(crate) learning: Vec<u32>,
    /// How fast they are brought up to date.
    pub(crate) pace: Pace,
    /// Bytes that learners were sent since the start.
    pub(crate) pushed_bytes: u64,
    /// What it did for clients and primaries since the start.
    pub(crate) figures: Figures,
    pub(crate) scrubs: Scrubs,
    /// Blocks that other members were asked for.
    pub(crate) fetching: Vec<Fetching>,
    /// Blocks of which no member had a sound copy.
    pub(crate) lost: BTreeMap<(ObjectKey, u16), Lost>,
    pub(crate) notes: VecDeque<String>,
    pub(crate) milestones: Milestones,
    pub(crate) is_shutting_down: bool,
    is_shut_down: bool,
    pub(crate) sabotage: Option<Sabotage>,
    /// A link with more unsent bytes gets copies instead of shares of batches.
    pub(crate) share_limit_bytes: usize,
    pub(crate) scratch_extents: Vec<store::Extent>,
    pub(crate) scratch_checksums: Vec<u32>,
}

impl Osd {
    /// An OSD over an opened store.
    #[must_use]
    pub fn new(store: Store, options: &OsdOptions) -> Osd {
        let identity = store.identity();
        Osd {
            id: identity.osd,
            cluster: identity.cluster,
            store,
            map: Arc::new(ClusterMap::default()),
            groups: Vec::new(),
            group_index: Map::default(),
            volumes: Map::default(),
            fences: BTreeMap::new(),
            fencing: Vec::new(),
            operations: Operations::default(),
            peers: Map::default(),
            osd_links: BTreeMap::new(),
            redial_after: BTreeMap::new(),
            leases: Leases::new(options.sabotage),
            neighbours: Vec::new(),
            away_since: BTreeMap::new(),
            active_at: Instant::default(),
            deferred: Vec::new(),
            sessions: 0,
            promotions: Vec::new(),
            small: BufferPool::new(options.small_buffers, SMALL_BLOCKS * BLOCK_BYTES),
            large: BufferPool::new(options.large_buffers, LARGE_BLOCKS * BLOCK_BYTES),
            zeros: Buffer::new((wire::BLOCKS_PER_MESSAGE_MAX + 1) * BLOCK_BYTES),
            staged: VecDeque::new(),
            staged_token: 0,
            durable_token: 0,
            outgoing: VecDeque::new(),
            actions: Vec::new(),
            blocked_groups: Vec::new(),
            scratch_groups: Vec::new(),
            links_to_ack: Vec::new(),
            now: Instant::default(),
            next_tick: Instant::default(),
            was_full: false,
            splittings: VecDeque::new(),
            deletions: VecDeque::new(),
            deletions_are_due: false,
            damage: DamageCounts::default(),
            renewals: Renewals::default(),
            learning: Vec::new(),
            pace: Pace::default(),
            pushed_bytes: 0,
            figures: Figures::default(),
            scrubs: Scrubs::default(),
            fetching: Vec::new(),
            lost: BTreeMap::new(),
            notes: VecDeque::new(),
            milestones: Milestones::default(),
            is_shutting_down: false,
            is_shut_down: false,
            sabotage: options.sabotage,
            share_limit_bytes: SHARE_LIMIT_BYTES,
            scratch_extents: Vec::new(),
            scratch_checksums: Vec::new(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> OsdId {
        self.id
    }

    /// Its store, for figures.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// All memory that drives read and write, to be registered before work starts.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.store.buffers_mut().chain(self.large.iter_mut()).chain(self.small.iter_mut())
    }

    /// The groups this OSD is primary of.
    pub fn summaries(&self) -> impl Iterator<Item = GroupSummary> + '_ {
        let is_led = |group: &&Group| group.config.primary == self.id && group.is_led_here();
        self.groups.iter().filter(is_led).map(Group::summary)
    }

    /// The damage that was met since the start, and what became of it.
    #[must_use]
    pub fn damage(&self) -> DamageCounts {
        self.damage
    }

    /// Bytes of data that members that catch up were sent since the start.
    #[must_use]
    pub fn pushed_bytes(&self) -> u64 {
        self.pushed_bytes
    }

    /// The newest things worth an operator's attention, oldest first.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    /// Whether a shutdown that was begun is done.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.is_shut_down
    }

    /// Operations of clients that have not ended.
    #[must_use]
    pub fn operations_in_flight(&self) -> usize {
        self.operations.in_flight()
    }

    /// When [`Self::end_turn`] must be called at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        // What was looked up at the end of a turn leaves with the next.
        if !self.deferred.is_empty() {
            return self.now;
        }
        let due = [self.scrubs.next_at, self.pace.next_at];
        due.into_iter().flatten().fold(self.next_tick, Instant::min)
    }

    /// Stops serving and makes the next start a quick one. `is_shut_down` tells when it is done.
    pub fn begin_shutdown(&mut self, io: &mut impl Io) {
        self.is_shutting_down = true;
        for index in 0..self.groups.len() as u32 {
            self.end_epoch(index, "the OSD is shutting down", io);
        }
        self.store.begin_shutdown(&mut self.actions);
        self.perform_actions(io);
    }

    /// Somebody connected who proved to have the key of this principal. Without a credential whoever connects is taken to be
    /// who it says it is: only a simulator, or a test, can know that.
    ///
    /// # Errors
    /// If its key is gone by now, or has too many links: this one is to be refused and closed.
    pub fn handle_accepted(
        &mut self,
        link: LinkId,
        mut credential: Option<Credential>,
    ) -> Result<(), LinkError> {
        if let Some(credential) = &mut credential {
            self.admit_one_more(credential)?;
        }
        self.peers.insert(link, Peer::Unknown(credential));
        Ok(())
    }

    /// Whoever is at the end of an outgoing link proved to have the key of this principal.
    ///
    /// # Errors
    /// If that key is gone by now: the link is to be closed.
    pub fn handle_proved(&mut self, link: LinkId, mut credential: Credential) -> Result<(), LinkError> {
        self.admit_still(&mut credential)?;
        if let Some(Peer::Osd(peer)) = self.peers.get_mut(&link) {
            peer.credential = Some(credential);
        }
        Ok(())
    }

    /// An outgoing link stands.
    pub fn handle_connected(&mut self, link: LinkId, io: &mut impl Io) {
        if let Some(Peer::Osd(peer)) = self.peers.get(&link) {
            let hello = Hello { role: Role::Osd(self.id), cluster: self.cluster, target: peer.osd };
            io.send(link, &encode::hello(&hello));
        }
    }

    /// Whether the link has said who it is; one that does not within some seconds should be closed.
    #[must_use]
    pub fn is_greeted(&self, link: LinkId) -> bool {
        !matches!(self.peers.get(&link), None | Some(Peer::Unknown(_)))
    }

    /// A link ended.
    pub fn handle_closed(&mut self, now: Instant, link: LinkId, reason: &str, io: &mut impl Io) {
        self.now = now;
        let Some(Peer::Osd(peer)) = self.peers.remove(&link) else { return };
        if self.osd_links.get(&peer.osd) == Some(&link) {
            self.osd_links.remove(&peer.osd);
            self.redial_after.insert(peer.osd, now + REDIAL_PAUSE);
            self.next_tick = now;
            self.lost_member(peer.osd, &format!("the connection to {} ended: {reason}", peer.osd), io);
        }
    }

    /// Bytes came. Handles whole messages from the front.
    ///
    /// # Errors
    /// When the link is of no use any more: tell the peer with `wire::encode::refused` and close it.
    pub fn handle_bytes(
        &mut self,
        now: Instant,
        link: LinkId,
        bytes: &[u8],
        io: &mut impl Io,
    ) -> Result<Progress, LinkError> {
        self.now = now;
        let mut consumed = 0;
        loop {
            if matches!(self.peers.get(&link), Some(Peer::Client(_)))
                && io.unsent_bytes(link) > CLIENT_UNSENT_BYTES_MAX
            {
                return Ok(Progress { consumed, is_stalled: true });
            }
            let Some((message, size)) = wire::parse(&bytes[consumed..])? else {
                return Ok(Progress { consumed, is_stalled: false });
            };
            if self.handle_message(link, message, io)? == Handled::Stalled {
                return Ok(Progress { consumed, is_stalled: true });
            }
            consumed += size;
        }
    }

    /// A drive operation ended.
    pub fn handle_file(
        &mut self,
        now: Instant,
        token: u64,
        buffer: Option<Buffer>,
        result: Result<(), String>,
        io: &mut impl Io,
    ) {
        self.now = now;
        let index = token as u32;
        let result = result.map_err(store::DeviceError);
        match token >> TOKEN_SHIFT {
            TOKEN_STORE_WRITE => self.store.handle_written(index, result, &mut self.actions),
            TOKEN_STORE_FLUSH => self.store.handle_flushed(index, result, &mut self.actions),
            TOKEN_STORE_READ => {
                let length = (token >> 32 & 0xff_ffff) as usize * BLOCK_BYTES;
                let buffer = buffer.as_ref().expect("a read gives its buffer back");
                let data = result.map(|()| &buffer.bytes()[..length]);
                self.store.handle_read(index, data, &mut self.actions);
            }
            TOKEN_PART => self.part_was_read(token, buffer.clone(), result, io),
            kind => unreachable!("no drive operation of kind {kind} is ever issued"),
        }
        if let Some(buffer) = buffer {
            self.put_buffer(buffer);
        }
        self.perform_actions(io);
    }

    /// A buffer that was shared with the network is done with there.
    pub fn put_buffer(&mut self, buffer: Buffer) {
        // Each pool takes only what is its own, by size; the store's batches come home by themselves.
        if buffer.size() == self.small.buffer_bytes() {
            self.small.put(buffer);
        } else if buffer.size() == self.large.buffer_bytes() {
            self.large.put(buffer);
        }
    }

    /// The end of a turn: batches go to the drive, acknowledgements to the primaries.
    pub fn end_turn(&mut self, now: Instant, io: &mut impl Io) {
        self.now = now;
        // Looked up before the clock was read: what is looked up from here on waits for the next turn.
        self.send_deferred(io);
        // Whoever is still blocked is noted anew, in the other vector.
        let scratch = std::mem::take(&mut self.scratch_groups);
        let mut blocked = std::mem::replace(&mut self.blocked_groups, scratch);
        for group in blocked.drain(..) {
            self.start_waiting(group, io);
            self.repair_next(group, io);
        }
        self.scratch_groups = blocked;
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.tick(io);
            if self.is_at_rest() {
                self.next_tick = now + TICK_AT_REST;
            }
        } else if self.scrubs.next_at.is_some_and(|at| now >= at) {
            self.advance_scrub(io);
        }
        if self.pace.next_at.is_some_and(|at| now >= at) {
            self.begin_burst(io);
        }
        self.stage_splits();
        self.store.flush(&mut self.actions);
        self.perform_actions(io);
        self.send_acks(io);
    }

    /// A newer map.
    pub fn handle_map(&mut self, now: Instant, map: Arc<ClusterMap>, io: &mut impl Io) {
        self.now = now;
        if map.revision < self.map.revision {
            // It was overtaken by one that brought the answer to a proposal.
            return;
        }
        self.leases.start(now);
        for (id, info) in &map.volumes {
            if !map.pools.contains_key(&info.pool) {
                continue;
            }
            let fence = self.fences.remove(id).unwrap_or_default();
            let before = self.volumes.get(id);
            let known = before.map_or(fence, |volume| volume.generation);
            let traffic = before.map(|volume| volume.traffic).unwrap_or_default();
            self.deletions_are_due |= info.removed;
            self.volumes.insert(
                *id,
                VolumeState {
                    pool: info.pool,
                    generation: known.max(info.generation),
                    is_removed: info.removed,
                    traffic,
                },
            );
        }
        for (pg, config) in &map.pgs {
            let target = target_of(&map, *pg, config);
            match self.group_index.get(pg).copied() {
                None => {
                    let modulus =
                        self.store.pg_modulus(*pg).or_else(|| map.modulus_of(*pg)).unwrap_or_default();
                    let is_primary = config.primary == self.id;
                    let group = Group::new(*pg, modulus, config.clone(), target, is_primary, now);
                    // What it held in an earlier life is to be deleted, when it is no member any more.
                    if group.has_member(self.id) || self.store.pg_position(*pg).is_some() {
                        self.group_index.insert(*pg, self.groups.len() as u32);
                        self.groups.push(group);
                    }
                }
                Some(index) => {
                    self.groups[index as usize].target = target;
                    self.handle_config(index, config, io);
                }
            }
        }
        self.map = map;
        self.end_removed_groups(io);
        self.split_by_map(io);
        for group in &mut self.groups {
            let pool = self.map.pools.get(&group.pg.pool);
            (group.size, group.min_size) =
                pool.map_or((0, 0), |pool| (pool.size as usize, pool.min_size as usize));
        }
        let map = self.map.clone();
        self.heed_principals(&map, io);
        self.find_left_groups();
        self.find_neighbours();
        self.next_tick = now;
    }

    pub(crate) fn handle_config(&mut self, index: u32, config: &base::map::PgConfig, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        if config.epoch <= group.config.epoch {
            return;
        }
        let is_claiming = group.is_claiming();
        group.config = config.clone();
        group.config_seen_at = self.now;
        group.free_since = None;
        if config.primary == self.id {
            // When it is this OSD's own claim, the answer to the proposal is on its way and begins the epoch.
            if !is_claiming {
                self.end_epoch(index, "the configuration changed", io);
            }
        } else if group.is_led_here() || is_claiming {
            self.end_epoch(index, "another OSD is primary now", io);
            self.groups[index as usize].enter(GroupState::Replica { expected: None });
        }
    }

    fn handle_message(
        &mut self,
        link: LinkId,
        message: Message<'_>,
        io: &mut impl Io,
    ) -> Result<Handled, LinkError> {
        let now = self.now;
        let peer = self.peers.get_mut(&link).ok_or(LinkError::OutOfTurn("the link is closed"))?;
        match peer {
            Peer::Osd(peer) => peer.heard_at = now,
            Peer::Client(client) => {
                if let Some((request, status)) = client.lacks_right(&message, &self.volumes) {
                    self.milestones.pass(Milestone::refused(status));
                    io.send(link, &encode::reply_refused(request, status, RefusalDetails::default()));
                    return Ok(Handled::Done);
                }
                if now.since(self.active_at) >= REST_AFTER {
                    self.next_tick = now;
                }
                self.active_at = now;
                self.pace.client_came(now);
            }
            Peer::Unknown(_) => {}
        }
        match (peer, message) {
            (Peer::Unknown(credential), Message::Hello(hello)) => {
                let credential = credential.take();
                self.handle_hello(link, hello, credential, io)
            }
            (Peer::Unknown(_), _) => Err(LinkError::OutOfTurn("the first message is not a hello")),
            (Peer::Client(_), Message::Read(request)) => Ok(self.handle_read_request(link, &request, io)),
            (Peer::Client(_), Message::Write(request, checksums, data)) => {
                Ok(self.handle_write_request(link, &request, checksums, data, io))
            }
            (Peer::Client(_), Message::Zero(request)) => Ok(self.handle_zero_request(link, &request, io)),
            (Peer::Client(_), Message::Allocated(request)) => {
                Ok(self.handle_allocated_request(link, &request, io))
            }
            (Peer::Client(_), Message::Fence(fence)) => {
                self.may_fence(link, fence.volume)?;
                self.handle_client_fence(link, &fence, io);
                Ok(Handled::Done)
            }
            (Peer::Client(_), _) => Err(LinkError::OutOfTurn("a client sent a message of OSDs")),
            (Peer::Osd(peer), Message::Welcome) => {
                (peer.is_ready, peer.since) = (true, now);
                self.next_tick = now;
                self.tell_fences(link, io);
                Ok(Handled::Done)
            }
            (Peer::Osd(_), Message::Refused(reason)) => Err(LinkError::Refused(reason.to_owned())),
            (Peer::Osd(_), Message::Fence(fence)) => {
                self.handle_peer_fence(link, &fence, io);
                Ok(Handled::Done)
            }
            (Peer::Osd(_), Message::FenceDone(fence)) => {
                self.handle_fence_done(link, &fence, io);
                Ok(Handled::Done)
            }
            (Peer::Osd(_), Message::Lease(lease)) => {
                self.handle_lease(link, &lease, io);
                Ok(Handled::Done)
            }
            (Peer::Osd(_), message) => self.handle_osd_message(link, message, io),
        }
    }

    fn handle_hello(
        &mut self,
        link: LinkId,
        hello: Hello,
        credential: Option<Credential>,
        io: &mut impl Io,
    ) -> Result<Handled, LinkError> {
        if hello.cluster != self.cluster {
            return Err(LinkError::OtherCluster { ours: self.cluster, theirs: hello.cluster });
        }
        if hello.target != self.id {
            return Err(LinkError::OtherOsd { ours: self.id, theirs: hello.target });
        }
        match hello.role {
            Role::Client(client) => {
                // A client has one connection to an OSD. What an older one still holds must not run after
                // anything of the newer: its requests may have been sent again and been overwritten since.
                let (admitted, older) = self.admit_client(client, credential)?;
                for older in older {
                    self.peers.remove(&older);
                    io.close(older, "the client connected anew");
                }
                self.peers.insert(link, Peer::Client(admitted));
            }
            Role::Osd(osd) => {
                self.admit_osd(osd, credential.as_ref())?;
                if self.is_leaving() {
                    return Err(LinkError::Stopped(self.id));
                }
                if let Some(older) = self.osd_links.insert(osd, link) {
                    self.peers.remove(&older);
                    io.close(older, "the OSD connected anew");
                    self.lost_member(osd, &format!("{osd} connected anew"), io);
                }
                let peer = OsdLink { credential, ..OsdLink::new(osd, true, self.now) };
                self.peers.insert(link, Peer::Osd(peer));
                self.next_tick = self.now;
            }
        }
        io.send(link, &encode::welcome());
        if let Role::Osd(_) = hello.role {
            self.tell_fences(link, io);
        }
        Ok(Handled::Done)
    }

    /// The link to an OSD, if it stands.
    pub(crate) fn ready_link(&self, osd: OsdId) -> Option<LinkId> {
        let link = *self.osd_links.get(&osd)?;
        matches!(self.peers.get(&link), Some(Peer::Osd(peer)) if peer.is_ready).then_some(link)
    }

    pub(crate) fn osd_link_mut(&mut self, link: LinkId) -> Option<&mut OsdLink> {
        match self.peers.get_mut(&link) {
            Some(Peer::Osd(peer)) => Some(peer),
            _ => None,
        }
    }

    /// A token for the store, whose answer comes in the order of staging.
    pub(crate) fn next_staged_token(&self) -> u64 {
        self.staged_token
    }

    /// Notes a split that was staged with [`Self::next_staged_token`]. Both groups wait for it already.
    pub(crate) fn note_split(&mut self, group: u32, child: u32) {
        self.staged_token += 1;
        self.staged.push_back(StagedRecord::Split { group, child });
    }

    /// Notes what was staged with [`Self::next_staged_token`].
    pub(crate) fn note_staged(&mut self, record: StagedRecord) {
        self.staged_token += 1;
        self.groups[record.group() as usize].staged_count += 1;
        self.staged.push_back(record);
    }

    /// Looks at what waits in a group with the end of this turn, or of the next one if that is now.
    pub(crate) fn look_again(&mut self, group: u32) {
        if !self.blocked_groups.contains(&group) {
            self.blocked_groups.push(group);
        }
    }

    /// Looks at the slow things with the end of this turn.
    pub(crate) fn next_tick_soon(&mut self) {
        self.next_tick = self.next_tick.min(self.now + REDIAL_PAUSE);
    }

    pub(crate) fn note(&mut self, text: String) {
        if self.notes.back() != Some(&text) {
            if self.notes.len() == 16 {
                self.notes.pop_front();
            }
            self.notes.push_back(text);
        }
    }

    pub(crate) fn fail_store(&mut self, reason: &str, io: &mut impl Io) {
        self.store.fail(reason, &mut self.actions);
        self.perform_actions(io);
    }

    fn perform_actions(&mut self, io: &mut impl Io) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Write { token, offset, buffer, length } => {
                    io.write(TOKEN_STORE_WRITE << TOKEN_SHIFT | u64::from(token), offset, buffer, length);
                }
                Action::Flush { token } => io.flush(TOKEN_STORE_FLUSH << TOKEN_SHIFT | u64::from(token)),
                Action::Read { token, offset, length } => {
                    // Cleaning keeps to one buffer at a time; should all be lent, a fresh one serves.
                    let buffer = self.large.take().unwrap_or_else(|| spare_buffer(length));
                    let blocks = (length / BLOCK_BYTES) as u64;
                    let token = TOKEN_STORE_READ << TOKEN_SHIFT | blocks << 32 | u64::from(token);
                    io.read(token, offset, buffer, length);
                }
                Action::Sealed { batch, buffer } => self.send_sealed(batch, &buffer, io),
                Action::Durable { token } => self.became_durable(token, io),
                Action::Lost { token, reason } => self.was_lost(token, &reason, io),
                Action::ShutdownDone => self.is_shut_down = true,
            }
        }
        // Handling an action may have made the store act again.
        let again = std::mem::replace(&mut self.actions, actions);
        if !again.is_empty() {
            self.actions.extend(again);
            self.perform_actions(io);
        }
    }

    fn pop_staged(&mut self, token: u64) -> (StagedRecord, u32) {
        assert_eq!(token, self.durable_token, "what is staged becomes durable in order");
        self.durable_token += 1;
        let record = self.staged.pop_front().expect("only what was staged becomes durable");
        let group = record.group();
        self.groups[group as usize].staged_count -= 1;
        (record, group)
    }

    fn became_durable(&mut self, token: u64, io: &mut impl Io) {
        let (record, group) = self.pop_staged(token);
        match record {
            StagedRecord::Own { operation, .. } => self.member_has(operation, io),
            StagedRecord::Replica { link, ordinal, write, .. } => {
                self.note_ack(link, ordinal);
                self.count_replicated(write);
            }
            StagedRecord::Left { .. } => {}
            StagedRecord::Split { child, .. } => {
                self.groups[child as usize].staged_count -= 1;
                self.nothing_is_staged(child, io);
            }
        }
        self.nothing_is_staged(group, io);
    }

    /// If nothing of a group is on its way to the drive any more, what waited for that goes on.
    fn nothing_is_staged(&mut self, group: u32, io: &mut impl Io) {
        if self.groups[group as usize].staged_count > 0 {
            return;
        }
        self.answer_pending_query(group, io);
        self.begin_epoch(group, io);
        if matches!(self.groups[group as usize].state, GroupState::Waiting { .. }) {
            self.advance_peering(group, io);
        }
    }

    fn was_lost(&mut self, token: u64, reason: &str, io: &mut impl Io) {
        let (record, group) = self.pop_staged(token);
        match record {
            StagedRecord::Own { operation, .. } => {
                if let Some(operation_state) = self.operations.get(operation) {
                    let origin = operation_state.origin;
                    // Another member may do it.
                    let has_others = self.groups[group as usize].config.in_sync.len() > 1;
                    let status = if has_others { Status::NotActive } else { Status::DeviceFailed };
                    self.refuse(origin, status, io);
                    self.forget_operation(operation);
                }
                self.end_epoch(group, &format!("the drive of {} failed: {reason}", self.id), io);
            }
            StagedRecord::Replica { link, ordinal, group, .. } => {
                let epoch = self.groups[group as usize].epoch;
                io.send(link, &encode::replicate_refused(ordinal, Status::DeviceFailed, epoch));
            }
            // Both halves wait for ever, as long as this process lives: its drive is of no use any more.
            StagedRecord::Left { .. } | StagedRecord::Split { .. } => {}
        }
        self.note(format!("the drive failed: {reason}"));
    }

    pub(crate) fn note_ack(&mut self, link: LinkId, ordinal: u64) {
        let Some(peer) = self.osd_link_mut(link) else { return };
        peer.durable = peer.durable.max(ordinal);
        if !peer.needs_ack {
            peer.needs_ack = true;
            self.links_to_ack.push(link);
        }
    }

    fn send_acks(&mut self, io: &mut impl Io) {
        let is_full = self.store.is_full();
        if is_full != self.was_full {
            self.was_full = is_full;
            let links: Vec<_> = self.osd_links.values().copied().collect();
            for link in links {
                self.note_ack(link, 0);
            }
        }
        let mut links = std::mem::take(&mut self.links_to_ack);
        for link in links.drain(..) {
            if let Some(peer) = self.osd_link_mut(link) {
                peer.needs_ack = false;
                let through = peer.durable;
                io.send(link, &encode::replicate_ack(through, is_full));
            }
        }
        self.links_to_ack = links;
    }

    /// Whether there was work a short while ago.
    pub(crate) fn is_busy(&self) -> bool {
        self.now.since(self.active_at) < REST_AFTER
    }

    /// Sends what was looked up in this turn. The clock was read again since, so a lease that lasts now lasted
    /// when it was looked up.
    fn send_deferred(&mut self, io: &mut impl Io) {
        let mut deferred = std::mem::take(&mut self.deferred);
        for Deferred { group, epoch, asked, answer } in deferred.drain(..) {
            let state = &self.groups[group as usize];
            if !state.is_active() || state.epoch != epoch || !self.has_leases(group) {
                let origin = crate::operation::Origin::Client(asked);
                if !self.has_leases(group) {
                    self.milestones.pass(Milestone::LeaseEnded);
                }
                self.refuse(origin, Status::NotActive, io);
                continue;
            }
            self.count_done(&asked, group);
            match answer {
                Answer::Zeros => io.send(asked.link, &encode::reply_zeros(asked.request)),
                Answer::Allocated(bits) => {
                    io.send(asked.link, &encode::reply(asked.request, Status::Ok, bits.len()));
                    io.send(asked.link, &bits);
                }
            }
        }
        self.deferred = deferred;
    }

    /// Whether it serves nothing more: its drive failed, or it is being shut down.
    fn is_leaving(&self) -> bool {
        self.store.failure().is_some() || self.is_shutting_down
    }

    /// Ends the connections to the other OSDs.
    fn leave(&mut self, io: &mut impl Io) {
        while let Some(link) = self.osd_links.first_key_value().map(|(_, link)| *link) {
            io.close(link, "the OSD stops");
            self.handle_closed(self.now, link, "this OSD stops", io);
        }
        for index in 0..self.groups.len() as u32 {
            self.advance_peering(index, io);
        }
    }

    fn tick(&mut self, io: &mut impl Io) {
        if self.is_leaving() {
            // The others are to notice that soon.
            return self.leave(io);
        }
        self.dial(io);
        self.renew_leases(io);
        self.look_around();
        for index in 0..self.groups.len() as u32 {
            self.advance_peering(index, io);
        }
        self.advance_fences(io);
        self.renew_after_damage();
        self.advance_fetching(io);
        self.advance_scrub(io);
        self.advance_recovery(io);
        self.advance_placement(io);
        self.advance_splitting(io);
        if self.deletions_are_due && self.deletions.is_empty() {
            let is_due = |key: &ObjectKey| {
                let is_removed = self.volumes.get(&key.volume).is_some_and(|volume| volume.is_removed);
                is_removed || self.group_index.get(&key.pg).is_some_and(|index| self.has_left(*index))
            };
            self.deletions = self.store.objects().filter(is_due).collect();
            // What was pushed here just before may not be among the objects yet.
            let may_come =
                |group: &Group| group.staged_count > 0 && matches!(group.state, GroupState::Left { .. });
            self.deletions_are_due = !self.deletions.is_empty() || self.groups.iter().any(may_come);
        }
        self.delete_some(io);
    }

    /// Whether nothing but requests and messages can change anything.
    fn is_at_rest(&self) -> bool {
        // A primary that serves everybody it should, or a replica whose primary shows itself.
        let is_active = |group: &Group| {
            if group.config.primary == self.id {
                group.is_active()
                    && !group.wanted_learners().any(|osd| self.is_present(osd))
                    && !self.has_placement_work(group)
                    && !self.is_to_be_split(group)
            } else {
                !group.config.in_sync.contains(&self.id)
                    || !self.leases.is_free_of(group.config.primary, self.now)
            }
        };
        // Leases must last until the next look.
        let next = self.now + TICK_AT_REST;
        !self.is_busy()
            && self.neighbours.iter().all(|osd| self.leases.holds(*osd, next))
            && self.away_since.is_empty()
            && self.deletions.is_empty()
            && !self.deletions_are_due
            && self.fetching.is_empty()
            && self.fencing.is_empty()
            && self.scrubs.is_idle()
            && self.groups.iter().all(is_active)
            && self.osd_links.keys().all(|osd| self.ready_link(*osd).is_some())
    }
}

/// Memory for when a pool is empty. Of a size that no pool has, so that none takes it in.
pub(crate) fn spare_buffer(bytes: usize) -> Buffer {
    let is_pooled = |blocks: &usize| [SMALL_BLOCKS, LARGE_BLOCKS].contains(blocks);
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    let blocks = (blocks..).find(|blocks| !is_pooled(blocks)).expect("two sizes are taken");
    Buffer::new(blocks * BLOCK_BYTES)
}

/// Whether a drive operation reads data for somebody, and not for the store itself.
#[doc(hidden)]
#[must_use]
pub fn reads_data(token: u64) -> bool {
    token >> TOKEN_SHIFT == TOKEN_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pool_takes_in_spare_memory() {
        for blocks in 1..=LARGE_BLOCKS {
            let size = spare_buffer(blocks * BLOCK_BYTES).size();
            assert!(size >= blocks * BLOCK_BYTES);
            assert!(
                size != SMALL_BLOCKS * BLOCK_BYTES && size != LARGE_BLOCKS * BLOCK_BYTES,
                "{blocks} blocks"
            );
        }
    }
}
