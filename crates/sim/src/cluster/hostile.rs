//! Somebody who means harm, and knows the protocol and whatever is in use: with the key of a client, or of an OSD. It sends
//! messages of every kind with anything in them ([`wire::hostile`]), some that are none, and halves of some; many at once, on
//! many connections, which it opens and closes, and does not read.
//!
//! What must hold meanwhile, as docs/security.md promises:
//! - [`Malice::Client`] has a pool of its own on the OSDs that all share, and does there what it likes. If it may write, it
//!   attaches its volumes again and again, and tells OSDs that it did, and that it did far more often. Nothing of it is seen in
//!   the other pool, and nobody is kept from anything there.
//! - [`Malice::Stranger`] has the key of an OSD that holds nothing. It says anything that OSDs say, as a primary, a member or a
//!   learner; nobody believes a word.
//! - [`Malice::Member`] has the key of an OSD that runs and is a member of groups. Of itself it is believed, so it says nothing
//!   there: neither that it has something (an acknowledgement, a position, what a learner has, a block, a check), nor that it lets
//!   another lead (a lease, a fence that is known). And it says nothing about groups that its OSD led at some time, for those it
//!   may spoil, nor, but for queries, by epochs to come, which it may lead. All else is as with a stranger. It takes its OSD's connections away meanwhile, so others may have to wait.
//! - [`Malice::Leader`] has the key of a member that leads groups, and does what a member does. As the leader of these it orders
//!   and pushes what is right in all but one thing: it is about objects that other groups have, which its OSD never led.
//!
//! Either may have clients fail that have volumes attached, by telling of generations that no map shows.
//!
//! And all that waits on an OSD stays within bounds ([`pg::View::check_bounds`]), nothing panics, and everything heals.

use super::life::Life;
use super::node::Node;
use super::plan::Plan;
use super::registry::{MALICE_OBJECTS, MALICE_POOL, POOL, malicious_volumes, node_id};
use super::world::{Input, MICROSECOND, MILLISECOND, Process, SECOND, World};
use crate::random::Random;
use base::map::ClusterMap;
use base::{
    Access, BLOCK_BYTES, BlockRange, ClientId, ClusterId, Epoch, Generation, LinkId, OBJECT_BLOCKS,
    ObjectKey, OsdId, Permission, PgId, Principal, PublicKey, VolumeId, crc32c,
};
use pg::Credential;
use wire::hostile::{Forger, InUse, OF_CLIENTS};
use wire::{Fence, Hello, Kind, Lease, Message, Push, PushHole, Replicate, Role, Status, VERSIONS};

/// Who means harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malice {
    /// A client with the key of another pool.
    Client,
    /// Somebody with the key of an OSD that holds nothing.
    Stranger,
    /// Somebody with the key of an OSD that runs, and that did not lead the groups which it hears of.
    Member,
    /// Somebody with the key of an OSD that leads groups, who is after the others.
    Leader,
}

/// Of a hundred lives, in how many there is which.
const PERCENT: [(Malice, u64); 4] =
    [(Malice::Client, 12), (Malice::Stranger, 7), (Malice::Member, 6), (Malice::Leader, 5)];

/// Whether OSDs that mean harm ask where members stand in epochs that no map shows yet.
const ASKS_BEYOND_THE_MAP: bool = true;
/// Whether they tell of generations of volumes that no map shows. Who lies so is believed for as long as its connection lasts, and
/// whoever has the volume fails and is to attach it anew: where somebody looks how long operations take, it is not done.
const FENCES_BEYOND_THE_MAP: bool = true;

/// Where the kind of a message is in its header.
const KIND_AT: usize = 4;
/// Connections that it has at the same time.
const LINKS_MAX: usize = 6;
/// How long it leaves what it is told unread, at most.
const DEAF_MAX: u64 = 2 * SECOND;
/// How often a client attaches.
const ATTACH_PAUSE: u64 = 100 * MILLISECOND;
/// Messages of a life, and their bytes.
const MESSAGES_MAX: u32 = 4000;
const BYTES_MAX: usize = 8 << 20;
/// Messages that are longer are rarer.
const LONG_BYTES: usize = 16 << 10;
/// Blocks that it may write to its own pool: they lie on the drives of all.
const BLOCKS_MAX: usize = 300;

/// Draws who means harm in a life, if somebody does.
pub(super) fn draw(random: &mut Random) -> Option<Malice> {
    let mut left = random.below(100);
    for (malice, percent) in PERCENT {
        if left < percent {
            return Some(malice);
        }
        left -= percent;
    }
    None
}

/// One of its connections.
#[derive(Debug)]
struct Line {
    link: LinkId,
    target: OsdId,
    is_open: bool,
    /// It reads nothing before then.
    deaf_until: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Hostile {
    malice: Malice,
    process: Process,
    random: Random,
    /// Who it says to be.
    client: ClientId,
    osd: OsdId,
    is_at_work: bool,
    /// It told of a generation that no map shows.
    has_fenced: bool,
    /// When it attaches next: never, unless its key is a client's that may write.
    attach_at: u64,
    /// What was said last on this connection waits for a map that never comes.
    spent: Option<LinkId>,
    lines: Vec<Line>,
    /// Generations that it was told of.
    learned: Vec<Generation>,
    next_at: u64,
    messages_left: u32,
    bytes_left: usize,
    blocks_left: usize,
}

impl Hostile {
    pub(super) fn new(malice: Malice, plan: &Plan, mut random: Random) -> Hostile {
        Hostile {
            malice,
            process: plan.malicious_process().expect("the plan has somebody who means harm"),
            client: ClientId(random.next_u64()),
            osd: OsdId(plan.nodes as u32),
            random,
            is_at_work: false,
            has_fenced: false,
            attach_at: u64::MAX,
            spent: None,
            lines: Vec::new(),
            learned: Vec::new(),
            next_at: 0,
            messages_left: MESSAGES_MAX,
            bytes_left: BYTES_MAX,
            blocks_left: BLOCKS_MAX,
        }
    }

    /// What its key is good for.
    fn credential(&mut self) -> Credential {
        let access = match self.malice {
            Malice::Client => {
                let permission =
                    if self.random.percent(80) { Permission::ReadWrite } else { Permission::Read };
                if permission == Permission::ReadWrite {
                    self.attach_at = 0;
                }
                Access::Pools([(MALICE_POOL, permission)].into())
            }
            Malice::Stranger | Malice::Member | Malice::Leader => Access::Node(node_id(self.osd.0 as usize)),
        };
        let principal = Principal::new(PublicKey([0x6d; 32]), access);
        // No map takes it away.
        Credential { name: "malice".into(), principal, seen_at: u64::MAX }
    }

    fn is_osd(&self) -> bool {
        self.malice != Malice::Client
    }

    /// Whether it is the word of an OSD that holds something.
    fn is_member(&self) -> bool {
        matches!(self.malice, Malice::Member | Malice::Leader)
    }

    /// Looks at what came, as far as it reads at all.
    fn hear(&mut self, cluster: ClusterId, world: &mut World) {
        let mailbox = &mut world.mailboxes[self.process.0];
        mailbox.released.clear();
        for input in std::mem::take(&mut mailbox.inputs) {
            match input {
                Input::Connected(link) => self.connected(link, cluster, world),
                Input::Closed(link, _) => self.lines.retain(|line| line.link != link),
                _ => {}
            }
        }
        let hears = |line: &&Line| line.is_open && line.deaf_until <= world.now;
        let links: Vec<LinkId> = self.lines.iter().filter(hears).map(|line| line.link).collect();
        for link in links {
            world.reap(link);
            let Some(inbox) = world.take_inbox(link) else { continue };
            self.learn(&inbox);
            world.return_inbox(link, Vec::new(), false);
        }
    }

    /// Of what it is told it heeds one thing: which generation would not be refused.
    fn learn(&mut self, inbox: &[u8]) {
        let mut at = 0;
        while let Ok(Some((message, size))) = wire::parse(&inbox[at..]) {
            if let Message::Reply(reply) = message
                && reply.head.status == Status::Fenced
            {
                self.learned = vec![reply.head.details.generation];
            }
            at += size;
        }
    }

    fn connected(&mut self, link: LinkId, cluster: ClusterId, world: &mut World) {
        let Some(line) = self.lines.iter_mut().find(|line| line.link == link) else { return };
        line.is_open = true;
        let (target, osds, clients) = (line.target, vec![line.target, self.osd], vec![self.client]);
        let role =
            if self.malice == Malice::Client { Role::Client(self.client) } else { Role::Osd(self.osd) };
        let honest = Hello { role, cluster, target, versions: VERSIONS };
        let mut source = self.random.fork();
        let in_use = InUse { osds, clients, cluster, ..InUse::default() };
        let hello = match self.random.percent(90) {
            true => honest,
            false => Forger::new(&in_use, move || source.next_u64()).hello(),
        };
        world.send(link, &hello.encode());
    }

    /// The next thing that it does.
    fn act(&mut self, in_use: &InUse, life: &mut Life) {
        let world = &mut life.world;
        let pause = match self.random.one_in(10) {
            true => self.random.below(2 * SECOND),
            false => self.random.between(50 * MICROSECOND, 20 * MILLISECOND),
        };
        self.next_at = world.now + pause;
        let some_line = self.random.index(self.lines.len().max(1));
        match self.random.below(20) {
            0..=2 => self.dial(&life.registry.map.clone(), world),
            3 if !self.lines.is_empty() => {
                let line = self.lines.swap_remove(some_line);
                world.close(line.link, "has no more use for it");
            }
            4 if !self.lines.is_empty() => {
                self.lines[some_line].deaf_until = world.now + self.random.below(DEAF_MAX);
            }
            _ if self.lines.get(some_line).is_some_and(|line| line.is_open) => {
                self.burst(some_line, in_use, life);
            }
            _ => self.dial(&life.registry.map.clone(), world),
        }
    }

    fn dial(&mut self, map: &ClusterMap, world: &mut World) {
        let addresses: Vec<_> =
            map.osds.iter().filter_map(|(osd, info)| Some((*osd, info.address?))).collect();
        if addresses.is_empty() || self.lines.len() >= LINKS_MAX {
            return;
        }
        let (target, address) = addresses[self.random.index(addresses.len())];
        if let Some(link) = world.connect(self.process, address) {
            self.lines.push(Line { link, target, is_open: false, deaf_until: 0 });
        }
    }

    /// Attaches a volume of its own once more, and wants whoever had it before fenced: by what is so, and by what never was.
    fn attach(&mut self, life: &mut Life) {
        let world = &mut life.world;
        self.attach_at = world.now + ATTACH_PAUSE;
        if let Some(spent) = self.spent.take()
            && self.lines.iter().any(|line| line.link == spent)
        {
            self.lines.retain(|line| line.link != spent);
            world.close(spent, "has no more use for it");
        }
        let volumes: Vec<VolumeId> = malicious_volumes(&world.plan).collect();
        let volume = self.random.choose(&volumes);
        let attached = life.registry.attach_once_more(self.process, self.client, volume, world);
        let open: Vec<LinkId> = self.lines.iter().filter(|line| line.is_open).map(|line| line.link).collect();
        if let Some(generation) = attached
            && !open.is_empty()
        {
            let link = self.random.choose(&open);
            for generation in [generation, Generation(u32::MAX)] {
                let fence = Fence { request: 1, volume, generation };
                world.send(link, &fence.encode(Kind::Fence));
            }
            self.spent = Some(link);
            world.coverage.count("who means harm attaches a volume and lies of it");
        }
        self.dial(&life.registry.map.clone(), world);
    }

    /// Says many things at once.
    fn burst(&mut self, line: usize, in_use: &InUse, life: &mut Life) {
        let Line { link, target, .. } = self.lines[line];
        if self.malice == Malice::Leader
            && let Some(bytes) = self.order_about_another_group(target, life)
        {
            life.world.coverage.count("an order about what another group has");
            life.world.send(link, &bytes);
        }
        let mut source = self.random.fork();
        let mut forger = Forger::new(in_use, move || source.next_u64());
        let count = self.random.choose(&[1, 3, 10, 30]);
        for _ in 0..count {
            let kind = match self.random.percent(80) && !self.is_osd() {
                true => self.random.choose(&OF_CLIENTS),
                false => self.random.choose(Kind::ALL),
            };
            let drawn = self.random.below(100);
            let bytes = match drawn {
                0..=89 => forger.message(kind),
                90..=97 => forger.twisted(kind),
                _ => forger.garbage(),
            };
            let is_too_long = bytes.len() > LONG_BYTES && self.random.percent(75);
            if is_too_long || bytes.len() > self.bytes_left || self.messages_left == 0 {
                continue;
            }
            let Some(mut bytes) = self.as_far_as_it_may(bytes, life) else { continue };
            if drawn < 3 {
                // What follows may complete it: so it is one that it may send.
                bytes.truncate(self.random.index(bytes.len()));
            }
            self.messages_left -= 1;
            self.bytes_left -= bytes.len();
            life.world.coverage.count("a message of somebody who means harm");
            life.world.send(link, &bytes);
        }
    }

    /// What its OSD would order or push next as the leader of a group, but about an object that another group has at the one
    /// who is told.
    fn order_about_another_group(&mut self, target: OsdId, life: &Life) -> Option<Vec<u8>> {
        let (osd, registry) = (self.osd, &life.registry);
        let groups = registry.map.pgs_of(POOL).filter(|(_, config)| config.primary == osd);
        let led: Vec<_> = groups.map(|(pg, config)| (pg, config.epoch)).collect();
        let store = life.nodes.get(target.0 as usize)?.osd()?.store();
        let is_of_others = |key: &ObjectKey| key.pg.pool == POOL && !registry.has_led(key.pg, osd);
        let mut keys: Vec<ObjectKey> = store.objects().filter(is_of_others).collect();
        if led.is_empty() || keys.is_empty() {
            return None;
        }
        keys.sort_unstable();
        let (pg, epoch) = led[self.random.index(led.len())];
        let key = ObjectKey { pg, ..keys[self.random.index(keys.len())] };
        let (_, last) = store.pg_position(pg)?;
        let kind = self.random.choose(&[
            Kind::ReplicateWrite,
            Kind::ReplicateWrite,
            Kind::ReplicateZero,
            Kind::ReplicateHole,
            Kind::PushWrite,
            Kind::PushZero,
            Kind::PushHole,
            Kind::PushLost,
        ]);
        let range = match kind {
            Kind::ReplicateZero | Kind::ReplicateHole | Kind::PushZero | Kind::PushHole => {
                BlockRange::whole(key)
            }
            _ => BlockRange::one(key, self.random.index(OBJECT_BLOCKS) as u16),
        };
        let (sequence, data) = (last.next(), [self.random.next_u64() as u8; BLOCK_BYTES]);
        let (checksum, changed) = (crc32c(&data).to_le_bytes(), sequence.0.to_le_bytes());
        let (order, push) = (Replicate { range, epoch, sequence, origin: 0 }, Push { range, epoch });
        Some(match kind {
            Kind::ReplicateWrite => [&order.encode(kind)[..], &checksum, &data].concat(),
            Kind::ReplicateZero | Kind::ReplicateHole => order.encode(kind).to_vec(),
            Kind::PushHole => PushHole { range, epoch, changed: sequence }.encode().to_vec(),
            Kind::PushWrite => [&push.encode(kind)[..], &checksum, &changed, &data].concat(),
            Kind::PushLost => [&push.encode(kind)[..], &checksum, &changed].concat(),
            _ => push.encode(kind).to_vec(),
        })
    }

    /// What of a message it sends, if anything: see the module's documentation.
    fn as_far_as_it_may(&mut self, bytes: Vec<u8>, life: &Life) -> Option<Vec<u8>> {
        let kind = bytes.get(KIND_AT).and_then(|number| Kind::from_number(*number));
        if self.is_member() && kind.is_some_and(speaks_for_a_member) {
            return None;
        }
        let message = match wire::parse(&bytes) {
            Ok(Some((message, _))) => message,
            // It says that it is longer than it is, and what follows completes it: nobody knows of which group it is.
            Ok(None) if self.is_member() && kind.is_some_and(is_of_a_primary) => return None,
            Ok(None) | Err(_) => return Some(bytes),
        };
        if !self.is_osd() {
            // It would wait for a map, and so would all that is said behind it.
            if let Message::Fence(fence) = message
                && let Some(known) = life.registry.map.volumes.get(&fence.volume)
                && known.pool == MALICE_POOL
                && fence.generation > known.generation
            {
                return None;
            }
            if let Message::Write(write) = message
                && write.head.key.pg.pool == MALICE_POOL
            {
                let blocks = write.data.len().div_ceil(BLOCK_BYTES) + 1;
                self.blocks_left = self.blocks_left.checked_sub(blocks)?;
            }
            return Some(bytes);
        }
        let map = &life.registry.map;
        match message {
            Message::Query(query) => {
                let known = map.pgs.get(&query.pg).map(|config| config.epoch);
                if !ASKS_BEYOND_THE_MAP && known.is_none_or(|known| query.epoch > known) {
                    return None;
                }
            }
            Message::Fence(fence) => {
                let known = map.volumes.get(&fence.volume).map(|volume| volume.generation);
                if known.is_some_and(|known| fence.generation > known) {
                    if !FENCES_BEYOND_THE_MAP || life.world.is_calm {
                        return None;
                    }
                    self.has_fenced = true;
                }
            }
            _ => {}
        }
        if !self.is_member() {
            return Some(bytes);
        }
        if let Message::Lease(lease) = message {
            let asks = Lease { granted_ttl_ms: 0, granted_stamp: 0, ..lease };
            return Some(asks.encode().to_vec());
        }
        let may_be_its = group_of(&message).is_some_and(|(pg, epoch)| {
            // By the time that this arrives it may lead an epoch that no map shows yet. Where somebody stands it may ask: that
            // spoils nothing.
            let is_to_come = map.pgs.get(&pg).is_none_or(|config| epoch > config.epoch);
            is_to_come && !matches!(message, Message::Query(_)) || life.registry.has_led(pg, self.osd)
        });
        (!may_be_its).then_some(bytes)
    }
}

/// Whether it is by messages of this kind that a member is believed of itself.
fn speaks_for_a_member(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ReplicateAck
            | Kind::Position
            | Kind::Objects
            | Kind::Blocks
            | Kind::Fetched
            | Kind::Checked
            | Kind::FenceDone
    )
}

/// Whether it is a primary who sends messages of this kind: see [`group_of`].
fn is_of_a_primary(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ReplicateWrite
            | Kind::ReplicateZero
            | Kind::ReplicateHole
            | Kind::Query
            | Kind::Activate
            | Kind::Serves
            | Kind::Whole
            | Kind::PushWrite
            | Kind::PushZero
            | Kind::PushHole
            | Kind::PushLost
            | Kind::PushEntry
            | Kind::Reached
            | Kind::ListBlocks
            | Kind::ListObjects
            | Kind::Fetch
            | Kind::Check
    )
}

/// The group that a message is about which a primary sends, and by which epoch.
fn group_of(message: &Message<'_>) -> Option<(PgId, Epoch)> {
    Some(match message {
        Message::ReplicateWrite(write) => (write.head.range.key.pg, write.head.epoch),
        Message::ReplicateZero(order) | Message::ReplicateHole(order) => (order.range.key.pg, order.epoch),
        Message::Query(query) => (query.pg, query.epoch),
        Message::Activate(activate) => (activate.pg, activate.epoch),
        Message::Serves(group) | Message::Whole(group) => (group.pg, group.epoch),
        Message::PushWrite(push) => (push.head.range.key.pg, push.head.epoch),
        Message::PushZero(push) => (push.range.key.pg, push.epoch),
        Message::PushHole(hole) => (hole.range.key.pg, hole.epoch),
        Message::PushLost(lost) => (lost.push.range.key.pg, lost.push.epoch),
        Message::PushEntry(entry) => (entry.pg, entry.epoch),
        Message::Reached(object) | Message::ListBlocks(object) => (object.key.pg, object.epoch),
        Message::ListObjects(wanted) => (wanted.pg, wanted.epoch),
        Message::Fetch(inquiry) => (inquiry.range.key.pg, inquiry.epoch),
        Message::Check(check) => (check.inquiry.range.key.pg, check.inquiry.epoch),
        _ => return None,
    })
}

impl Life {
    /// Whether an OSD may have told others of a generation that no map shows, for which clients are refused.
    pub(super) fn is_fenced_by_a_lie(&self) -> bool {
        self.hostile.as_ref().is_some_and(|hostile| hostile.has_fenced)
    }

    /// Somebody begins to do harm.
    pub(super) fn malice_begins(&mut self) {
        let nodes = self.nodes.len();
        let Some(hostile) = &mut self.hostile else { return };
        if hostile.is_member() {
            let groups = &self.registry.map.pgs;
            let malice = hostile.malice;
            let is_wanted = |osd: &OsdId| {
                let led = groups.keys().filter(|pg| self.registry.has_led(**pg, *osd)).count();
                match malice {
                    // One that leads some, and is after the others.
                    Malice::Leader => (1..groups.len()).contains(&led),
                    // Rather one that leads nothing: more of what it says is nobody's word but its own.
                    _ => led == 0,
                }
            };
            let first = hostile.random.index(nodes);
            let mut osds = (first..nodes).chain(0..first).map(|node| OsdId(node as u32));
            hostile.osd = osds.find(is_wanted).unwrap_or(OsdId(first as u32));
        }
        hostile.is_at_work = true;
        let (process, credential) = (hostile.process, hostile.credential());
        self.world.credentials.insert(process, credential);
        let mailbox = &mut self.world.mailboxes[process.0];
        mailbox.is_running = true;
        mailbox.life += 1;
        self.world.event(
            Some(process),
            match hostile.malice {
                Malice::Client => "a client means harm",
                Malice::Stranger => "an OSD that holds nothing means harm",
                Malice::Member => "a member means harm",
                Malice::Leader => "a leader means harm",
            },
        );
        let now = self.world.now;
        self.world.wake(process, now);
    }

    /// It stops.
    pub(super) fn malice_ends(&mut self) {
        let Some(hostile) = self.hostile.as_mut().filter(|hostile| hostile.is_at_work) else { return };
        hostile.is_at_work = false;
        hostile.lines.clear();
        let process = hostile.process;
        self.world.event(Some(process), "no more harm");
        self.end_process(process, false);
    }

    /// One turn of whoever means harm.
    pub(super) fn hostile_turn(&mut self) {
        let Some(mut hostile) = self.hostile.take() else { return };
        if hostile.is_at_work {
            hostile.hear(self.registry.map.cluster, &mut self.world);
            if hostile.next_at <= self.world.now && hostile.messages_left > 0 {
                let in_use = self.what_is_in_use(&mut hostile);
                hostile.act(&in_use, self);
            }
            if hostile.attach_at <= self.world.now {
                hostile.attach(self);
            }
            let at = hostile.next_at.min(hostile.attach_at).max(self.world.now + MILLISECOND);
            self.world.wake(hostile.process, at);
        }
        self.hostile = Some(hostile);
    }

    /// What there is to be named, about some group: with what it may be told apart from the others.
    fn what_is_in_use(&self, hostile: &mut Hostile) -> InUse {
        let map = &self.registry.map;
        let groups: Vec<PgId> = map.pgs.keys().copied().collect();
        let own: Vec<PgId> = groups.iter().filter(|pg| pg.pool == MALICE_POOL).copied().collect();
        let is_own = !own.is_empty() && hostile.random.percent(60);
        let of = if is_own { own } else { groups };
        let pg = of[hostile.random.index(of.len())];
        let mut in_use = InUse {
            epochs: map.pgs.get(&pg).map(|config| config.epoch).into_iter().collect(),
            requests: (1..4).collect(),
            clients: self.clients.iter().map(super::client::ClientProcess::id).collect(),
            osds: map.osds.keys().copied().collect(),
            cluster: map.cluster,
            ..InUse::default()
        };
        in_use.clients.push(hostile.client);
        in_use.generations.extend(map.volumes.values().map(|volume| volume.generation));
        // What it was told would not be refused is likelier to be said.
        let learned = hostile.learned.iter().cycle().take(3 * hostile.learned.len());
        in_use.generations.extend(learned);
        if !hostile.is_osd() {
            in_use.keys.extend(own_keys(&self.world.plan, map).filter(|key| key.pg == pg));
        }
        for store in self.nodes.iter().filter_map(Node::osd).map(pg::Osd::store) {
            let mut keys: Vec<ObjectKey> = store.objects().filter(|key| key.pg == pg).collect();
            keys.sort_unstable();
            keys.truncate(3);
            // Everybody has the same, mostly.
            keys.retain(|key| !in_use.keys.contains(key));
            in_use.keys.extend(keys);
            in_use.sequences.extend(store.pg_position(pg).map(|(_, sequence)| sequence));
            in_use.sequences.extend(store.pg_position(pg).map(|(_, sequence)| sequence.next()));
            in_use.origins.extend(store.pg_log(pg).rev().take(2).map(|entry| entry.origin));
        }
        // And one of the others.
        let foreign = self.nodes.iter().filter_map(Node::osd).flat_map(|osd| osd.store().objects());
        in_use.keys.extend(foreign.filter(|key| key.pg.pool == POOL && key.pg != pg).min());
        in_use
    }
}

/// All objects of the volumes of the pool that a malicious client has.
fn own_keys<'a>(plan: &Plan, map: &'a ClusterMap) -> impl Iterator<Item = ObjectKey> + use<'a> {
    malicious_volumes(plan).flat_map(move |volume| {
        let objects = 0..MALICE_OBJECTS as u32;
        objects.filter_map(move |object| {
            Some(ObjectKey {
                pg: map.pg_of(MALICE_POOL, volume, object)?,
                layer: volume.first_layer(),
                object,
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Sequence;

    #[test]
    fn three_in_ten_lives_have_somebody_who_means_harm() {
        let mut random = Random::new(1);
        let drawn: Vec<_> = (0..1000).map(|_| draw(&mut random)).collect();
        let count = |wanted| drawn.iter().filter(|one| **one == wanted).count();
        assert!((630..770).contains(&count(None)), "{}", count(None));
        for (malice, _) in PERCENT {
            assert!(count(Some(malice)) > 30, "{malice:?}");
        }
    }

    /// Each kind is either a word of a member about itself, or about a group, or about neither: which, is to be decided for a new
    /// one too.
    #[test]
    fn of_every_kind_it_is_known_what_a_member_may_say() {
        let key = ObjectKey { pg: PgId { pool: POOL, index: 1 }, ..ObjectKey::default() };
        let in_use = InUse {
            keys: vec![key],
            epochs: vec![Epoch(3)],
            sequences: vec![Sequence(9)],
            ..InUse::default()
        };
        let mut random = Random::new(2);
        for kind in Kind::ALL {
            let mut forger = Forger::new(&in_use, || random.next_u64());
            let bytes = forger.message(*kind);
            let Ok(Some((message, _))) = wire::parse(&bytes) else { panic!("{kind:?} is well formed") };
            // Who is there, leases and fences; what clients say, and are told; and that one did not do something, which ends an
            // epoch and no more.
            let is_about_neither = matches!(
                kind,
                Kind::Hello
                    | Kind::Welcome
                    | Kind::Refused
                    | Kind::Lease
                    | Kind::Fence
                    | Kind::Read
                    | Kind::Write
                    | Kind::Zero
                    | Kind::Allocated
                    | Kind::Changed
                    | Kind::Space
                    | Kind::Reply
                    | Kind::ReplicateRefused
                    | Kind::AskAllowance
                    | Kind::Allowance
            );
            assert_eq!(bytes[KIND_AT], *kind as u8);
            let is_known = speaks_for_a_member(*kind) || group_of(&message).is_some();
            assert_ne!(is_known, is_about_neither, "{kind:?}");
        }
    }
}
