//! An OSD that is told anything by a client with a key, by another OSD, by one that has no say, and by somebody who does not
//! greet. It answers or ends a connection, and what it holds stays in order. Whoever comes afterwards and means well is served:
//! a client, and the other OSDs.
//!
//! The input is a script: who does what. What is in a message follows from the bytes behind that
//! ([`wire::hostile::Forger`]); the OSD that leads says what it should now and then, or few of its messages would be taken.

use super::{Script, leaked_name, messages, opening};
use crate::outcomes::{Outcome, Outcomes};
use base::map::{ClusterMap, PgConfig};
use base::{
    Access, BLOCK_BYTES, BlockRange, Buffer, ClientId, Epoch, Generation, Instant, LinkId, Network,
    ObjectKey, OsdId, Permission, PgId, PoolId, Principal, PublicKey, Sequence, VolumeId,
};
use pg::{Credential, Io, LinkError, Osd, OsdOptions};
use sim::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use store::{Device, DeviceError, Expected, Identity, Options, Store};
use wire::hostile::{Forger, InUse, OF_CLIENTS};
use wire::{
    Activate, Hello, Kind, LEASE_MS_MAX, Lease, Message, Query, Replicate, Request, Role, Status, VERSIONS,
};

const ME: OsdId = OsdId(0);
const CLIENT: ClientId = ClientId(9);
const POOL: PoolId = PoolId(1);
const VOLUME: VolumeId = VolumeId(5);
const SEGMENT_BYTES: u32 = 512 << 10;
const DRIVE_BYTES: usize = (4 << 20) + 24 * SEGMENT_BYTES as usize;
/// The most steps of an input.
const STEPS_MAX: usize = 64;
/// What a peer may have said that was not taken up, before it is let go.
const INBOX_BYTES_MAX: usize = 1 << 20;
/// The most bytes of garbage at once.
const GARBAGE_BYTES_MAX: usize = 80;

/// Who is at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A client with a key of the one pool.
    Client,
    /// An OSD of the cluster.
    Osd(OsdId),
    /// Who says nothing before the input does.
    Stranger,
}

/// A link that is none any more.
const GONE: LinkId = LinkId(0);
/// A client; the primary of a group of which this OSD is a member; an OSD that is member of nothing; and a stranger.
const PEERS: [Who; 4] = [Who::Client, Who::Osd(OsdId(1)), Who::Osd(OsdId(2)), Who::Stranger];
/// The client, the OSD that leads a group, and the other one, among them.
const A_CLIENT: usize = 0;
const LEADER: usize = 1;
const OTHER: usize = 2;

/// What an OSD asks of those that are to be sure of it: nobody takes its place meanwhile.
const LEASE: Lease = Lease { ttl_ms: LEASE_MS_MAX, stamp: 5, granted_ttl_ms: 0, granted_stamp: 0 };

/// As what is counted what the OSD says while the input goes on, and with what status it answers clients.
const BY_INPUT: [&str; 2] = ["sent", "answered"];
/// The same of what it says to those who mean well.
const BY_RIGHT: [&str; 2] = ["served", "served with"];

/// One group that this OSD leads alone, and one that OSD 1 leads with it.
static MAP: LazyLock<ClusterMap> = LazyLock::new(|| {
    let text = r#"{
        "revision": 1, "cluster": "07070707-0707-0707-0707-070707070707",
        "osds": {
            "0": {"uuid": "02020202-0202-0202-0202-020202020202", "node": 0, "bytes": 1073741824},
            "1": {"uuid": "03030303-0303-0303-0303-030303030303", "node": 1, "bytes": 1073741824,
                "address": "127.0.0.1:7001"},
            "2": {"uuid": "04040404-0404-0404-0404-040404040404", "node": 2, "bytes": 1073741824}
        },
        "pools": {"1": {"name": "pool", "size": 1, "min_size": 1, "pg_count": 2}},
        "pgs": {
            "1.0": {"epoch": 1, "primary": 0, "in_sync": [0]},
            "1.1": {"epoch": 3, "primary": 1, "in_sync": [1, 0]}
        },
        "targets": {"1.0": [0], "1.1": [1, 0]},
        "volumes": {"5": {"name": "volume", "pool": 1, "bytes": 67108864, "generation": 1}}
    }"#;
    serde_json::from_str(text).expect("it is a map")
});

static STATUSES: LazyLock<Vec<(Status, &str)>> =
    LazyLock::new(|| Status::ALL.iter().map(|status| (*status, leaked_name(status))).collect());

pub(super) fn name_of_status(status: Status) -> &'static str {
    let named = STATUSES.iter().find(|(one, _)| *one == status);
    named.map_or("none", |(_, name)| *name)
}

/// A drive in memory, of which blocks that were never written are zeros.
struct Memory(Vec<Option<Box<[u8; BLOCK_BYTES]>>>);

impl Memory {
    fn new() -> Memory {
        Memory((0..DRIVE_BYTES / BLOCK_BYTES).map(|_| None).collect())
    }

    fn get(&self, offset: u64, into: &mut [u8]) {
        for (number, part) in (offset as usize / BLOCK_BYTES..).zip(into.chunks_mut(BLOCK_BYTES)) {
            match &self.0[number] {
                Some(block) => part.copy_from_slice(&block[..part.len()]),
                None => part.fill(0),
            }
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        for (number, part) in (offset as usize / BLOCK_BYTES..).zip(data.chunks(BLOCK_BYTES)) {
            let block = self.0[number].get_or_insert_with(|| Box::new([0; BLOCK_BYTES]));
            block[..part.len()].copy_from_slice(part);
        }
    }
}

impl Device for Memory {
    fn bytes(&self) -> u64 {
        DRIVE_BYTES as u64
    }

    fn read_ahead_bytes(&self) -> usize {
        opening::READ_AHEAD_BYTES
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.get(offset, into);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.put(offset, data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An object of the volume.
fn key_of(object: u32) -> ObjectKey {
    let pg = PgId::of_object(POOL, 2, VOLUME, object);
    ObjectKey { pg, layer: VOLUME.first_layer(), object }
}

/// The first object of the volume in that group.
fn key_in(index: u32) -> ObjectKey {
    let mut keys = (0..).map(key_of);
    keys.find(|key| key.pg.index == index).expect("each group has objects")
}

/// What became of a drive's operation: its token, its buffer if it has one, and whether it succeeded.
type Done = (u64, Option<Buffer>, Result<(), String>);

/// A drive on which everything succeeds, links of which the other end is here, and a registry.
struct Surroundings {
    drive: Memory,
    done: Vec<Done>,
    proposals: Vec<(PgId, PgConfig)>,
    sent: BTreeMap<LinkId, Vec<u8>>,
    closed: Vec<LinkId>,
    /// What was sent of buffers, which are to be given back.
    lent: Vec<Buffer>,
}

impl Network for Surroundings {
    fn connect(&mut self, _: std::net::SocketAddr) -> Option<LinkId> {
        None
    }

    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        self.sent.entry(link).or_default().extend_from_slice(bytes);
    }

    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: Range<usize>) {
        self.sent.entry(link).or_default().extend_from_slice(&buffer.bytes()[range]);
        self.lent.push(buffer);
    }

    fn unsent_bytes(&self, _: LinkId) -> usize {
        0
    }

    fn close(&mut self, link: LinkId, _: &str) {
        self.closed.push(link);
    }
}

impl Io for Surroundings {
    fn read(&mut self, token: u64, offset: u64, mut buffer: Buffer, length: usize) {
        let memory = buffer.bytes_mut().expect("who reads into a buffer is its only holder");
        self.drive.get(offset, &mut memory[..length]);
        self.done.push((token, Some(buffer), Ok(())));
    }

    fn write(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize) {
        self.drive.put(offset, &buffer.bytes()[..length]);
        self.done.push((token, Some(buffer), Ok(())));
    }

    fn flush(&mut self, token: u64) {
        self.done.push((token, None, Ok(())));
    }

    fn propose(&mut self, pg: PgId, _: Epoch, config: PgConfig) {
        self.proposals.push((pg, config));
    }

    fn propose_split(&mut self, _: PgId, _: Epoch, _: PgConfig) {}
}

/// Somebody at the other end of a link.
struct Peer {
    who: Who,
    link: LinkId,
    /// What it said and was not taken up.
    inbox: Vec<u8>,
}

/// The OSD, and everybody around it.
struct Scene {
    osd: Osd,
    io: Surroundings,
    now: Instant,
    map: ClusterMap,
    in_use: InUse,
    peers: [Peer; PEERS.len()],
    links: u64,
    /// As what is counted what the OSD says: see [`BY_INPUT`].
    counted_as: [&'static str; 2],
    /// Which kinds of messages were sent to whom.
    heard: BTreeSet<(LinkId, &'static str)>,
    /// What the OSD that leads the other group goes on with in its order, by what it was told last.
    next: Sequence,
}

impl Scene {
    /// The group that the OSD leads serves.
    fn new(seen: &mut Outcomes) -> Scene {
        let options =
            Options { segment_bytes: Some(SEGMENT_BYTES), batch_bytes_max: 272 << 10, ..Options::default() };
        let mut drive = Memory::new();
        let map = MAP.clone();
        let identity = Identity { cluster: map.cluster, osd_uuid: map.osds[&ME].uuid, osd: ME };
        store::format(&mut drive, identity, opening::SECRET, &options).expect("it is large enough");
        let store = Store::open(&mut drive, &Expected::default(), options).expect("it was just formatted");
        let osd_options = OsdOptions { small_buffers: 8, large_buffers: 6, ..OsdOptions::default() };
        let in_use = InUse {
            keys: (0..4).map(key_of).collect(),
            epochs: map.pgs.values().map(|config| config.epoch).collect(),
            generations: vec![Generation(1)],
            sequences: (0..4).map(Sequence).collect(),
            requests: (0..3).collect(),
            clients: vec![CLIENT],
            osds: map.osds.keys().copied().collect(),
            cluster: map.cluster,
            ..InUse::default()
        };
        let mut scene = Scene {
            osd: Osd::new(store, &osd_options),
            io: Surroundings {
                drive,
                done: Vec::new(),
                proposals: Vec::new(),
                sent: BTreeMap::new(),
                closed: Vec::new(),
                lent: Vec::new(),
            },
            now: Instant { nanoseconds: 1_000_000_000 },
            map,
            in_use,
            peers: PEERS.map(|who| Peer { who, link: GONE, inbox: Vec::new() }),
            links: 0,
            counted_as: BY_RIGHT,
            heard: BTreeSet::new(),
            next: Sequence(1),
        };
        scene.take_map();
        for _ in 0..40 {
            scene.pass(Duration::from_millis(200), seen);
        }
        (0..PEERS.len()).for_each(|peer| scene.connect(peer, seen));
        scene
    }

    fn take_map(&mut self) {
        self.osd.handle_map(self.now, Arc::new(self.map.clone()), &mut self.io);
    }

    /// Time passes: the drive and the registry do what they were asked, and a turn ends.
    fn pass(&mut self, time: Duration, seen: &mut Outcomes) {
        self.now = self.now + time;
        self.osd.handle_registry(self.now);
        for (token, buffer, result) in std::mem::take(&mut self.io.done) {
            self.osd.handle_file(self.now, token, buffer, result, &mut self.io);
        }
        for (pg, config) in std::mem::take(&mut self.io.proposals) {
            // The group that the other OSD leads stays its own.
            if MAP.pgs[&pg].primary != ME {
                self.osd.handle_proposal(self.now, pg, None, &mut self.io);
                continue;
            }
            self.map.revision += 1;
            self.map.pgs.insert(pg, config.clone());
            self.in_use.epochs.push(config.epoch);
            self.take_map();
            self.osd.handle_proposal(self.now, pg, Some(config), &mut self.io);
        }
        self.osd.end_turn(self.now, &mut self.io);
        for buffer in std::mem::take(&mut self.io.lent) {
            self.osd.put_buffer(buffer);
        }
        self.hear(seen);
        for link in std::mem::take(&mut self.io.closed) {
            if let Some(peer) = self.peers.iter().position(|peer| peer.link == link) {
                self.let_go(peer, "it was closed");
            }
        }
        (0..PEERS.len()).for_each(|peer| self.present(peer, seen));
    }

    /// What the OSD said.
    fn hear(&mut self, seen: &mut Outcomes) {
        let [sent, answered] = self.counted_as;
        for (link, bytes) in std::mem::take(&mut self.io.sent) {
            let mut rest = &bytes[..];
            while let Ok(Some((message, size))) = wire::parse(rest) {
                let name = messages::name_of_message(rest);
                seen.note(sent, name);
                self.heard.insert((link, name));
                match message {
                    Message::Reply(reply) => seen.note(answered, name_of_status(reply.head.status)),
                    Message::Position(position) => self.next = position.head.last_sequence.next(),
                    _ => {}
                }
                rest = &rest[size..];
            }
            assert!(rest.is_empty(), "what an OSD says is whole messages");
        }
    }

    /// A peer connects, and says who it is unless that is the input's to say.
    fn connect(&mut self, peer: usize, seen: &mut Outcomes) {
        self.links += 1;
        let link = LinkId(self.links);
        let who = self.peers[peer].who;
        self.peers[peer] = Peer { who, link, inbox: Vec::new() };
        let credential = (who == Who::Client).then(|| Credential {
            name: "tenant".into(),
            principal: Principal::new(
                PublicKey([9; 32]),
                Access::Pools([(POOL, Permission::ReadWrite)].into()),
            ),
            // No map says anything newer.
            seen_at: u64::MAX,
        });
        if let Err(error) = self.osd.handle_accepted(link, credential) {
            seen.note("link", name_of_error(&error));
            return self.let_go(peer, &error.to_string());
        }
        let role = match who {
            Who::Client => Role::Client(CLIENT),
            Who::Osd(osd) => Role::Osd(osd),
            Who::Stranger => return,
        };
        let hello = Hello { role, cluster: self.map.cluster, target: ME, versions: VERSIONS };
        self.peers[peer].inbox = hello.encode();
        self.present(peer, seen);
    }

    /// Whose link ended connects anew before it says something.
    fn say(&mut self, peer: usize, bytes: &[u8], seen: &mut Outcomes) {
        if self.peers[peer].link == GONE {
            self.connect(peer, seen);
        }
        self.peers[peer].inbox.extend_from_slice(bytes);
        self.present(peer, seen);
    }

    /// What a peer said and was not taken up is presented once more.
    fn present(&mut self, peer: usize, seen: &mut Outcomes) {
        let Peer { link, inbox, .. } = &mut self.peers[peer];
        if inbox.is_empty() || *link == GONE {
            return;
        }
        let (link, bytes) = (*link, std::mem::take(inbox));
        match self.osd.handle_bytes(self.now, link, &bytes, &mut self.io) {
            Ok(progress) if bytes.len() - progress.consumed <= INBOX_BYTES_MAX => {
                self.peers[peer].inbox.extend_from_slice(&bytes[progress.consumed..]);
            }
            Ok(_) => self.let_go(peer, "it says more than is taken up"),
            Err(error) => {
                seen.note("link", name_of_error(&error));
                self.let_go(peer, &error.to_string());
            }
        }
    }

    fn let_go(&mut self, peer: usize, reason: &str) {
        let Peer { link, inbox, .. } = &mut self.peers[peer];
        inbox.clear();
        let link = std::mem::replace(link, GONE);
        self.osd.handle_closed(self.now, link, reason, &mut self.io);
    }

    /// The OSD that leads the other group says what it should: it asks for a lease, and where this one stands, begins its epoch
    /// behind that, and orders zeroings.
    fn lead(&mut self, what: u8, seen: &mut Outcomes) {
        let key = key_in(1);
        let (pg, epoch) = (key.pg, MAP.pgs[&key.pg].epoch);
        let sequence = self.next;
        let said = match what % 4 {
            0 => LEASE.encode().to_vec(),
            1 => Query { pg, modulus: 2, epoch }.encode().to_vec(),
            2 => Activate { pg, epoch, mark: sequence, join: None }.encode().to_vec(),
            _ => {
                let range = BlockRange { key, first_block: 0, block_count: 1 };
                Replicate { range, epoch, sequence, origin: 5 }.encode(Kind::ReplicateZero).to_vec()
            }
        };
        if what % 4 > 1 {
            self.next = sequence.next();
        }
        self.say(LEADER, &said, seen);
    }

    /// The group that the other OSD leads serves, with this one in it.
    fn follow(&mut self, seen: &mut Outcomes) {
        for what in 0..4 {
            self.lead(what, seen);
            (0..6).for_each(|_| self.pass(Duration::from_millis(20), seen));
        }
    }

    /// What somebody says is answered by a message of that kind.
    fn answers(&mut self, peer: usize, said: &[u8], kind: &'static str, seen: &mut Outcomes) {
        self.heard.clear();
        self.say(peer, said, seen);
        for _ in 0..40 {
            self.pass(Duration::from_millis(50), seen);
            if self.heard.contains(&(self.peers[peer].link, kind)) {
                return;
            }
        }
        panic!("peer {peer} got no {kind}, but {:?}", self.heard);
    }

    /// Whatever was said before: a client and other OSDs that come anew, and say what they should, are answered.
    fn serves(&mut self, seen: &mut Outcomes) {
        self.counted_as = BY_RIGHT;
        for peer in 0..PEERS.len() {
            if self.peers[peer].link != GONE {
                self.let_go(peer, "it ends");
            }
        }
        self.pass(Duration::from_millis(20), seen);
        let lease = LEASE.encode();
        [LEADER, OTHER].into_iter().for_each(|peer| self.answers(peer, &lease, "Lease", seen));
        self.heard.clear();
        self.follow(seen);
        let link = self.peers[LEADER].link;
        for kind in ["Position", "ReplicateAck"] {
            assert!(self.heard.contains(&(link, kind)), "who leads got no {kind}, but {:?}", self.heard);
        }
        let is_refused = self.heard.contains(&(link, "ReplicateRefused"));
        assert!(!is_refused, "who leads is obeyed: {:?}", self.heard);
        let led = key_in(0);
        let request = Request {
            request: 1,
            key: led,
            offset: 0,
            length: BLOCK_BYTES as u32,
            epoch: self.map.pgs[&led.pg].epoch,
            generation: Generation(1),
            origin: 1,
            since: None,
            unverified: false,
            of_snapshot: false,
        };
        for kind in [Kind::Zero, Kind::Read] {
            self.answers(A_CLIENT, &request.encode(kind), "Reply", seen);
        }
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>, seen: &mut Outcomes) {
        let peer = usize::from(step >> 4) % PEERS.len();
        let forged = match step % 16 {
            0 => return self.pass(Duration::from_millis(20), seen),
            1 => return self.pass(Duration::from_secs(1), seen),
            2 => return self.let_go(peer, "it ends"),
            3 => script.bytes(GARBAGE_BYTES_MAX).to_vec(),
            15 if peer == LEADER => return self.lead(script.byte(), seen),
            how => {
                let kind = usize::from(script.byte());
                let kind = match self.peers[peer].who {
                    Who::Client if kind % 8 > 0 => OF_CLIENTS[kind % OF_CLIENTS.len()],
                    _ => Kind::ALL[kind % Kind::ALL.len()],
                };
                let blocks_max = script.blocks_max();
                let mut forger = Forger::new(&self.in_use, || script.draw()).with_blocks_max(blocks_max);
                match how {
                    4 => forger.twisted(kind),
                    5 => forger.cut_off(kind),
                    _ => forger.message(kind),
                }
            }
        };
        self.say(peer, &forged, seen);
    }
}

fn name_of_error(error: &LinkError) -> &'static str {
    match error {
        LinkError::Wire(_) => "no message",
        LinkError::OtherCluster { .. } => "other cluster",
        LinkError::OtherOsd { .. } => "other OSD",
        LinkError::OutOfTurn(_) => "out of turn",
        LinkError::UnknownOsd(_) => "unknown OSD",
        LinkError::NotAllowed { .. } => "not allowed",
        LinkError::Refused(_) => "refused",
        _ => "other",
    }
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let mut script = Script::new(input);
    let mut scene = Scene::new(seen);
    if script.byte().is_multiple_of(2) {
        scene.follow(seen);
    }
    scene.counted_as = BY_INPUT;
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        scene.step(step, &mut script, seen);
    }
    for _ in 0..10 {
        scene.pass(Duration::from_millis(100), seen);
    }
    scene.serves(seen);
    if let Err(difference) = scene.osd.store().verify() {
        panic!("its store is not in order: {difference}");
    }
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let script = |length: u64| (0..length).map(|_| random.next_u64() as u8).collect();
    (0..24).map(|number| 60 + 20 * number).map(script).collect()
}

pub(super) fn expected() -> Vec<Outcome> {
    let kinds = ["Welcome", "Reply", "Position", "ReplicateAck", "ReplicateRefused", "Lease", "Fetched"];
    let sent = kinds.map(|kind| ("sent", kind));
    let answered = ["Ok", "StaleEpoch", "NotPrimary", "Forbidden"].map(|status| ("answered", status));
    let links = ["no message", "out of turn", "other OSD"].map(|why| ("link", why));
    sent.into_iter().chain(answered).chain(links).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_asks_as_it_should_is_served() {
        let mut seen = Outcomes::default();
        let mut scene = Scene::new(&mut seen);
        scene.serves(&mut seen);
        assert_eq!(seen.times(("served with", "Ok")), 2, "{seen}");
        assert!(seen.times(("served", "Welcome")) >= 6, "{seen}");
    }

    #[test]
    #[should_panic(expected = "peer 2 got no Position")]
    fn who_is_not_answered_is_noticed() {
        let mut seen = Outcomes::default();
        let pg = key_in(1).pg;
        // It does not lead the group.
        let query = Query { pg, modulus: 2, epoch: MAP.pgs[&pg].epoch }.encode();
        Scene::new(&mut seen).answers(OTHER, &query, "Position", &mut seen);
    }
}
