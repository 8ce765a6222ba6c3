//! An OSD that is alone, on a drive in memory, for tests of what it does by itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::context::Context;
use crate::epoch::query;
use crate::group::Group;
use crate::io::Io;
use crate::links::access::ClientLink;
use crate::links::{OsdLink, Peer};
use crate::operation::{OperationKind, Purpose};
use crate::osd::{Osd, OsdOptions};
use crate::replication::order;
use crate::request::write;
use crate::router::Router;
use base::log_entry::REPAIR;
use base::map::{ClusterMap, OsdInfo, PgConfig, PoolInfo, VolumeInfo};
use base::{
    BLOCK_BYTES, BlockRange, Buffer, ClientId, ClusterId, Epoch, Generation, History, Instant, LinkId,
    LogEntry, Network, ObjectKey, OsdId, OsdUuid, PgId, PoolId, RecoveryShare, Sequence, VolumeId, crc32c,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::testing::Memory;
use wire::{
    Found, HeaderBytes, Kind, Lease, LogState, Message, Query, ReplicateAck, ReplicateRefused, Status,
    Version,
};
use zerocopy::little_endian::U32;

pub(crate) const PG: PgId = PgId { pool: PoolId(1), index: 0 };
pub(crate) const VOLUME: VolumeId = VolumeId(1);
const SEGMENT_BYTES: u32 = 512 << 10;

/// A drive on which everything succeeds but reads of its bad place, a network that leads nowhere, and a registry that
/// agrees to everything, while it is there.
#[derive(Default)]
pub(crate) struct Surroundings {
    /// What was copied to links, whichever.
    pub(crate) sent: Vec<u8>,
    /// All that was sent on each link and not looked at yet.
    pub(crate) to: BTreeMap<LinkId, Vec<u8>>,
    pub(crate) closed: Vec<LinkId>,
    /// Where it was to be connected to, in vain.
    pub(crate) dialled: Vec<SocketAddr>,
    pub(crate) disk: Vec<u8>,
    pub(crate) bad: Option<u64>,
    pub(crate) drive: Vec<(u64, Option<Buffer>, Result<(), String>)>,
    pub(crate) proposals: Vec<(PgId, PgConfig)>,
    /// Those that ask for a split.
    pub(crate) splits: Vec<(PgId, PgConfig)>,
    /// The registry answers nothing.
    pub(crate) is_registry_away: bool,
    /// Nobody takes what is sent from shared memory.
    pub(crate) is_deaf: bool,
    /// What was so sent.
    pub(crate) unsent: Vec<Buffer>,
    /// How many bytes whoever is there leaves unread.
    pub(crate) unread: BTreeMap<LinkId, usize>,
}

impl Surroundings {
    /// Of each message that was sent on a link and not looked at yet, what is picked.
    pub(crate) fn told<T>(&mut self, link: LinkId, pick: impl FnMut(Message<'_>) -> Option<T>) -> Vec<T> {
        let told = self.to.remove(&link).unwrap_or_default();
        let (mut left, mut pick, mut picked) = (&told[..], pick, Vec::new());
        while let Some((message, size)) = wire::parse(left).unwrap() {
            picked.extend(pick(message));
            left = &left[size..];
        }
        picked
    }

    /// How many positions were.
    pub(crate) fn positions_told(&mut self, link: LinkId) -> usize {
        self.told(link, |message| matches!(message, Message::Position(_)).then_some(())).len()
    }
}

impl Network for Surroundings {
    fn connect(&mut self, address: SocketAddr) -> Option<LinkId> {
        self.dialled.push(address);
        None
    }
    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
        self.to.entry(link).or_default().extend_from_slice(bytes);
    }
    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: std::ops::Range<usize>) {
        self.to.entry(link).or_default().extend_from_slice(&buffer.bytes()[range]);
        if self.is_deaf {
            self.unsent.push(buffer);
        }
    }
    fn unsent_bytes(&self, link: LinkId) -> usize {
        self.unread.get(&link).copied().unwrap_or(0)
    }
    fn close(&mut self, link: LinkId, _: &str) {
        self.closed.push(link);
    }
}

impl Io for Surroundings {
    fn read(&mut self, token: u64, offset: u64, mut buffer: Buffer, length: usize) {
        let place = offset as usize..offset as usize + length;
        let result = match self.bad {
            Some(bad) if place.contains(&(bad as usize)) => Err("a bad place".to_owned()),
            _ => Ok(()),
        };
        buffer.bytes_mut().unwrap()[..length].copy_from_slice(&self.disk[place]);
        self.drive.push((token, Some(buffer), result));
    }
    fn write(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize) {
        self.disk[offset as usize..][..length].copy_from_slice(&buffer.bytes()[..length]);
        self.drive.push((token, Some(buffer), Ok(())));
    }
    fn flush(&mut self, token: u64) {
        self.drive.push((token, None, Ok(())));
    }
    fn propose(&mut self, pg: PgId, _: Epoch, config: PgConfig) {
        self.proposals.push((pg, config));
    }
    fn propose_split(&mut self, pg: PgId, _: Epoch, config: PgConfig) {
        self.splits.push((pg, config));
    }
}

/// An OSD that is alone and holds a group.
pub(crate) struct Alone {
    pub(crate) osd: Osd,
    pub(crate) io: Surroundings,
    pub(crate) now: Instant,
}

impl Alone {
    pub(crate) fn new() -> Alone {
        Alone::with_groups(1)
    }

    pub(crate) fn with_groups(groups: u32) -> Alone {
        let options = options();
        let (cluster, osd_uuid) = (ClusterId::from_bytes([1; 16]), OsdUuid::from_bytes([2; 16]));
        let mut drive = Memory(vec![0; 32 * SEGMENT_BYTES as usize]);
        let identity = store::Identity { cluster, osd_uuid, osd: OsdId(0) };
        store::format(&mut drive, identity, [3; 16], &options).unwrap();
        let (osd, io) = open(drive);
        let mut alone = Alone { osd, io, now: Instant { nanoseconds: 1_000_000_000 } };
        alone.osd.handle_map(alone.now, Arc::new(map(groups)), &mut alone.io);
        alone.run();
        assert!(alone.osd.shared.groups.iter().all(Group::is_active));
        alone
    }

    /// It ends, and starts again in a cluster that has this map.
    pub(crate) fn restart(&mut self, map: ClusterMap) {
        (self.osd, self.io) = open(Memory(std::mem::take(&mut self.io.disk)));
        self.osd.handle_map(self.now, Arc::new(map), &mut self.io);
        self.run();
    }

    /// Some seconds pass.
    pub(crate) fn run(&mut self) {
        for _ in 0..100 {
            self.turn();
        }
    }

    /// A moment passes.
    pub(crate) fn turn(&mut self) {
        self.passes(Duration::from_millis(50));
    }

    /// So much time passes: the drive and the registry do what they were asked.
    pub(crate) fn passes(&mut self, time: Duration) {
        self.now = self.now + time;
        self.drive_answers();
        if !self.io.is_registry_away {
            self.osd.handle_registry(self.now);
        }
        for (pg, config) in std::mem::take(&mut self.io.proposals) {
            if self.io.is_registry_away {
                self.osd.handle_proposal(self.now, pg, None, &mut self.io);
                continue;
            }
            grant(&mut self.osd, &mut self.io, self.now, pg, config);
        }
        self.osd.end_turn(self.now, &mut self.io);
    }

    /// The drive does what it was asked, at this moment.
    pub(crate) fn drive_answers(&mut self) {
        for (token, buffer, result) in std::mem::take(&mut self.io.drive) {
            self.osd.handle_file(self.now, token, buffer, result, &mut self.io);
        }
    }

    /// Whatever is under way comes to its end, at this moment.
    pub(crate) fn settles(&mut self) {
        for _ in 0..8 {
            self.drive_answers();
            self.osd.end_turn(self.now, &mut self.io);
        }
    }

    /// What mechanisms do now, with what follows from it.
    pub(crate) fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Router, &mut Context<'_, Surroundings>) -> R,
    ) -> R {
        let (router, mut cx) = self.osd.at(self.now, &mut self.io);
        let result = act(router, &mut cx);
        router.settle(&mut cx);
        result
    }

    /// A link to another OSD stands.
    pub(crate) fn connect(&mut self, osd: OsdId) -> LinkId {
        let link = LinkId(10 + u64::from(osd.0));
        self.osd.shared.links.insert_osd(link, OsdLink::new(osd, Some(Version(3)), self.now));
        link
    }

    /// The OSD at the other end of a link asks where this one stands.
    pub(crate) fn query(&mut self, link: LinkId, pg: PgId, modulus: u32, epoch: Epoch) {
        let query = Query { pg, modulus, epoch };
        self.with(|router, cx| query::handle_query(cx, &mut router.kept, link, &query));
    }

    /// The map comes that names an OSD the primary of the group in that epoch, with this one in sync.
    pub(crate) fn is_led_by(&mut self, primary: OsdId, epoch: Epoch) {
        let mut map = (*self.osd.shared.volumes.map).clone();
        map.revision += 1;
        map.osds.entry(primary).or_insert(OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
        let mut in_sync = vec![primary, self.osd.me.id];
        in_sync.dedup();
        map.targets.insert(PG, in_sync.clone());
        map.pgs.insert(PG, PgConfig { epoch, primary, in_sync, ..PgConfig::default() });
        self.osd.handle_map(self.now, Arc::new(map), &mut self.io);
    }

    /// The map comes that shows a volume attached so often.
    pub(crate) fn is_attached(&mut self, volume: VolumeId, generation: Generation) {
        let mut map = (*self.osd.shared.volumes.map).clone();
        map.revision += 1;
        let info = VolumeInfo { generation, ..map.volumes[&VOLUME].clone() };
        map.volumes.insert(volume, info);
        self.osd.handle_map(self.now, Arc::new(map), &mut self.io);
    }

    /// The map comes by which the group was given up, and is in that history now.
    pub(crate) fn begins_anew(&mut self, history: History) {
        let mut map = (*self.osd.shared.volumes.map).clone();
        map.revision += 1;
        let config = map.pgs.get_mut(&PG).unwrap();
        (config.epoch, config.history) = (Epoch(config.epoch.0 + 1), history);
        self.osd.handle_map(self.now, Arc::new(map), &mut self.io);
        self.run();
    }

    pub(crate) fn write(&mut self, key: ObjectKey) {
        self.order(key, 0, 1, 0);
    }

    /// A write of blocks that are full of their own number, without a client.
    pub(crate) fn order(&mut self, key: ObjectKey, first_block: u16, block_count: u16, origin: u64) {
        let (data, checksums) = content(first_block, block_count);
        let range = BlockRange { key, first_block, block_count };
        self.with(|_, cx| {
            let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, 0, range);
            let operation = cx.operations.live(id);
            operation.attempt.origin = origin;
            operation.checksums.extend(checksums);
            assert!(order::write(cx, id, &data));
        });
        self.run();
    }

    /// So much is ordered of another object that the group's log tells of nothing from before.
    pub(crate) fn age_log(&mut self) {
        // The records of one batch.
        const AT_ONCE: usize = 64;
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 9 };
        let range = BlockRange { key, first_block: 0, block_count: 1 };
        for _ in 0..=store::PG_LOG_ENTRIES / AT_ONCE {
            self.with(|_, cx| {
                for _ in 0..AT_ONCE {
                    let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
                    assert!(order::zero(cx, id));
                }
            });
            self.run();
        }
    }

    /// What a client asks for that wants something of these blocks, for the first time.
    pub(crate) fn request(&self, range: &BlockRange) -> wire::Request {
        wire::Request {
            request: 1,
            key: range.key,
            offset: u32::from(range.first_block) * BLOCK_BYTES as u32,
            length: u32::from(range.block_count) * BLOCK_BYTES as u32,
            epoch: self.osd.shared.groups[0].epoch,
            generation: Generation(1),
            origin: 0,
            since: None,
            unverified: false,
            of_snapshot: false,
        }
    }

    /// As [`Alone::order`], by a client that sent it before.
    pub(crate) fn send_again(&mut self, key: ObjectKey, first_block: u16, block_count: u16, origin: u64) {
        let (data, checksums) = content(first_block, block_count);
        let range = BlockRange { key, first_block, block_count };
        let request = wire::Request { origin, since: Some(Sequence(0)), ..self.request(&range) };
        self.with(|_, cx| write::handle_write(cx, LinkId(7), &request, &checksums, &data));
        self.run();
    }

    /// How long a hundred small pushes hold up the next one, a tenth of a second from now and at the greatest share: the less
    /// clients got until then, the longer.
    pub(crate) fn pause_behind_pushes(&mut self) -> Duration {
        self.now = self.now + Duration::from_millis(100);
        let share = RecoveryShare::try_from(80_u8).unwrap();
        self.with(|_, cx| {
            for _ in 0..100 {
                cx.rates.pace.push_begins(cx.now, 16, share);
            }
            cx.rates.pace.next_at.map_or(Duration::ZERO, |next_at| next_at.since(cx.now))
        })
    }

    pub(crate) fn holds(&self, key: ObjectKey) -> bool {
        self.osd.shared.disk.store.objects().any(|held| held == key)
    }

    /// How often a milestone of that name was passed.
    pub(crate) fn passed(&self, milestone: &str) -> u64 {
        let mut passed = self.osd.shared.journal.milestones();
        passed.find(|(name, _)| *name == milestone).map_or(0, |(_, times)| times)
    }
}

/// The OSD with a replica, which a test speaks for: OSD 1, in sync with it in the one group that it leads.
pub(crate) struct Pair {
    pub(crate) alone: Alone,
    /// To the replica.
    pub(crate) link: LinkId,
    /// Replicated messages that the replica was sent.
    pub(crate) received: u64,
    /// Whether the replica acknowledges them.
    pub(crate) acknowledges: bool,
    /// What the replica says that its log has, as the last of it.
    pub(crate) entries: Vec<LogEntry>,
    /// What the replica answers when it is asked for a block.
    pub(crate) block: Option<Vec<u8>>,
    /// A bit of what it answers flips on the way.
    pub(crate) garbles: bool,
    /// The replica says that it is nearly full, and has no room for writes.
    pub(crate) is_full: bool,
    /// What the replica was sent that it has no answer to, in words.
    pub(crate) heard: Vec<String>,
}

pub(crate) const REPLICA: OsdId = OsdId(1);

impl Pair {
    /// A group that serves.
    pub(crate) fn new() -> Pair {
        let mut pair = Pair::before(Vec::new());
        pair.run();
        assert!(pair.alone.osd.shared.groups[0].is_active(), "{:?}", pair.alone.osd.shared.groups[0]);
        pair
    }

    /// A group whose primary was just told of its replica, which has these entries in its log.
    pub(crate) fn before(entries: Vec<LogEntry>) -> Pair {
        let mut alone = Alone::new();
        let mut map = map(1);
        map.revision = 2;
        let address = Some(([127, 0, 0, 1], 7001).into());
        let uuid = OsdUuid::from_bytes([3; 16]);
        map.osds.insert(REPLICA, OsdInfo { uuid, bytes: 1 << 30, address, ..OsdInfo::default() });
        let pool = map.pools.get_mut(&PG.pool).unwrap();
        (pool.size, pool.min_size) = (2, 2);
        let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
        let in_sync = vec![OsdId(0), REPLICA];
        map.targets.insert(PG, in_sync.clone());
        map.pgs.insert(PG, PgConfig { epoch, primary: OsdId(0), in_sync, ..PgConfig::default() });
        let link = alone.connect(REPLICA);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let (received, acknowledges, block, heard) = (0, true, None, Vec::new());
        let (garbles, is_full) = (false, false);
        Pair { alone, link, received, acknowledges, entries, block, garbles, is_full, heard }
    }

    /// Most of a second passes.
    pub(crate) fn run(&mut self) {
        self.turns(40);
    }

    /// So many moments pass.
    pub(crate) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// The primary's epoch ends, the next one is granted, and it asks its members where they stand.
    pub(crate) fn asks_its_members(&mut self) {
        self.alone.with(|_, cx| {
            crate::epoch::end(cx, 0, "a test");
            let now = cx.now;
            cx.groups[0].standing.claims();
            cx.groups[0].standing.epoch_was_granted(now);
        });
    }

    /// A moment passes, and the replica answers.
    pub(crate) fn turn(&mut self) {
        self.alone.passes(Duration::from_millis(20));
        let bytes = self.alone.io.to.remove(&self.link).unwrap_or_default();
        let answer = self.answer(&bytes);
        self.hears(&answer);
    }

    /// The OSD gets these bytes from its replica.
    pub(crate) fn hears(&mut self, bytes: &[u8]) {
        let Alone { osd, io, now } = &mut self.alone;
        osd.handle_bytes(*now, self.link, bytes, io).unwrap();
    }

    /// What the replica says to all that.
    fn answer(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut answer: Vec<u8> = Vec::new();
        let before = self.received;
        while let Some((message, size)) = wire::parse(bytes).unwrap() {
            match message {
                Message::Query(Query { pg, epoch, .. }) => {
                    let log = LogState {
                        pg,
                        epoch,
                        last_sequence: self.entries.last().map_or(Sequence(0), |entry| entry.sequence),
                        log_begins: Sequence(0),
                        is_incomplete: false,
                        may_lack_tail: false,
                    };
                    let entries = self.entries.iter().copied();
                    answer.extend(log.encode(entries));
                }
                // What makes members agree it takes all the same.
                Message::ReplicateWrite(write) if self.is_full && write.head.origin & REPAIR == 0 => {
                    self.received += 1;
                    let (ordinal, epoch) = (self.received, write.head.epoch);
                    let refused = ReplicateRefused { ordinal, status: Status::NoSpace, epoch };
                    answer.extend(refused.encode());
                }
                Message::Activate(_) | Message::ReplicateWrite(_) | Message::ReplicateZero(_) => {
                    self.received += 1;
                }
                Message::Lease(lease) if lease.ttl_ms > 0 => {
                    let Lease { ttl_ms, stamp, .. } = lease;
                    let grant = Lease { ttl_ms: 0, granted_ttl_ms: ttl_ms, granted_stamp: stamp, ..lease };
                    answer.extend(grant.encode());
                }
                Message::Fetch(inquiry) => match &self.block {
                    Some(block) => {
                        answer.extend(
                            Found { inquiry, status: Status::Ok, through: Sequence(0), written_in: None }
                                .encode(true),
                        );
                        answer.extend(crc32c(block).to_le_bytes());
                        answer.extend_from_slice(block);
                        *answer.last_mut().expect("it has a block") ^= u8::from(self.garbles);
                    }
                    None => {
                        let found = Found {
                            inquiry,
                            status: Status::Damaged,
                            through: Sequence(0),
                            written_in: None,
                        };
                        answer.extend(found.encode(false));
                    }
                },
                other => self.heard.push(format!("{other:?}")),
            }
            bytes = &bytes[size..];
        }
        if self.acknowledges && self.received > before {
            let (through, is_full, takes_no_objects) = (self.received, self.is_full, false);
            answer.extend(ReplicateAck { through, is_full, takes_no_objects }.encode());
        }
        answer
    }

    /// A client asks for that; answers the status that it was told by now, if any.
    pub(crate) fn ask(&mut self, bytes: &[u8]) -> Option<Status> {
        let client = LinkId(99);
        let Alone { osd, io, now } = &mut self.alone;
        osd.shared.links.insert(client, Peer::Client(ClientLink::new(ClientId(9), None)));
        io.to.remove(&client);
        osd.handle_bytes(*now, client, bytes, io).unwrap();
        self.told()
    }

    /// The status that the client was told last.
    pub(crate) fn told(&self) -> Option<Status> {
        let told = self.alone.io.to.get(&LinkId(99))?;
        match wire::parse(told).unwrap()?.0 {
            Message::Reply(reply) => Some(reply.head.status),
            other => panic!("{other:?}"),
        }
    }

    /// A write of one block of the volume, as a client sends it.
    pub(crate) fn write_of(&self, block: u16, content: u8) -> Vec<u8> {
        let data = vec![content; BLOCK_BYTES];
        let checksums = [U32::new(crc32c(&data))];
        let request = self.request(block);
        let mut bytes = request.encode(Kind::Write).to_vec();
        bytes.extend_from_slice(zerocopy::IntoBytes::as_bytes(&checksums[..]));
        bytes.extend_from_slice(&data);
        bytes
    }

    /// A request for one block.
    pub(crate) fn request(&self, block: u16) -> wire::Request {
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        self.alone.request(&BlockRange::one(key, block))
    }
}

/// A replica that has room has everything up to a message on stable media.
pub(crate) fn ack(through: u64) -> HeaderBytes {
    ReplicateAck { through, is_full: false, takes_no_objects: false }.encode()
}

/// The registry takes a proposal. The map shows it before the OSD is told.
fn grant(osd: &mut Osd, io: &mut Surroundings, now: Instant, pg: PgId, config: PgConfig) {
    Arc::make_mut(&mut osd.shared.volumes.map).pgs.insert(pg, config.clone());
    osd.handle_proposal(now, pg, Some(config), io);
}

fn options() -> store::Options {
    let segment_bytes = Some(SEGMENT_BYTES);
    store::Options { segment_bytes, batch_bytes_max: 300 << 10, ..store::Options::default() }
}

fn open(mut drive: Memory) -> (Osd, Surroundings) {
    let store = store::Store::open(&mut drive, &store::Expected::default(), options()).unwrap();
    let osd = Osd::new(store, &OsdOptions { small_buffers: 4, large_buffers: 4, ..OsdOptions::default() });
    (osd, Surroundings { disk: drive.0, ..Surroundings::default() })
}

fn content(first_block: u16, block_count: u16) -> (Vec<u8>, Vec<U32>) {
    let blocks = first_block..first_block + block_count;
    let data: Vec<u8> = blocks.flat_map(|block| [block as u8; BLOCK_BYTES]).collect();
    let checksums = data.chunks(BLOCK_BYTES).map(|block| U32::new(crc32c(block))).collect();
    (data, checksums)
}

pub(crate) fn map(groups: u32) -> ClusterMap {
    let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
    let osd = OsdId(0);
    let info = OsdInfo { uuid: OsdUuid::from_bytes([2; 16]), bytes: 1 << 30, ..OsdInfo::default() };
    map.osds.insert(osd, info);
    let pool =
        PoolInfo { name: "pool".to_owned(), size: 1, min_size: 1, pg_count: groups, ..PoolInfo::default() };
    map.pools.insert(PG.pool, pool);
    let config = PgConfig { epoch: Epoch(1), primary: osd, in_sync: vec![osd], ..PgConfig::default() };
    for index in 0..groups {
        map.pgs.insert(PgId { index, ..PG }, config.clone());
        map.targets.insert(PgId { index, ..PG }, vec![osd]);
    }
    let volume = VolumeInfo {
        name: "volume".to_owned(),
        pool: PG.pool,
        bytes: 1 << 30,
        generation: Generation(1),
        ..VolumeInfo::default()
    };
    map.volumes.insert(VOLUME, volume);
    map
}
