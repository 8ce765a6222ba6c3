//! Who may say what to an OSD, tested: every kind of message, well formed and as right as it can be, from those who must not
//! say it, changes nothing but what docs/protocol.md says. The table there has the same rows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::links::access::Credential;
use crate::links::{LinkError, OsdLink};
use crate::testing::{Alone, PG, VOLUME};
use base::map::{OsdInfo, PgConfig};
use base::{
    Access, BLOCK_BYTES, BlockRange, ClientId, Epoch, Generation, LinkId, LogEntry, OBJECT_BLOCKS, ObjectKey,
    OsdId, Permission, PgId, PoolId, Principal, PublicKey, Rights, Sequence, crc32c,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::{
    Activate, Allowance, Blocks, Check, Checked, Fence, Findings, Found, GroupEpoch, Hello, Inquiry, Kind,
    Lease, ListObjects, LogState, Message, ObjectEpoch, Outcome, Page, Push, PushEntry, PushHole, Query,
    Refused, Replicate, ReplicateAck, ReplicateRefused, Request, Role, Status, VERSIONS, Version, Welcome,
};

/// Whom the map names primary of the group that this OSD follows.
const PRIMARY: OsdId = OsdId(1);
/// A member of no group.
const STRANGER: OsdId = OsdId(2);
/// In sync in the group that this OSD follows, and not its primary.
const MEMBER: OsdId = OsdId(3);
/// The epoch of that group.
const EPOCH: Epoch = Epoch(9);
/// The group that this OSD leads.
const LED: PgId = PgId { index: 1, ..PG };

/// Somebody who says what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// A client that may only read.
    Reader,
    /// A client of another pool.
    Tenant,
    /// A client of a namespace of the pool that the volume is not in.
    Neighbour,
    /// An OSD, by an epoch that is so much later than the group's.
    Osd(OsdId, i64),
}

const SENDERS: [Sender; 10] = [
    Sender::Reader,
    Sender::Tenant,
    Sender::Neighbour,
    Sender::Osd(STRANGER, -1),
    Sender::Osd(STRANGER, 0),
    Sender::Osd(STRANGER, 1),
    Sender::Osd(MEMBER, 0),
    Sender::Osd(MEMBER, 1),
    Sender::Osd(PRIMARY, -1),
    Sender::Osd(PRIMARY, 1),
];

/// What becomes of a message, and of who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its link ends, and nothing has changed.
    Ends,
    /// It is told that, and nothing has changed.
    Told(&'static str),
    /// Nothing is said, and nothing has changed.
    Ignored,
    /// It is told that, if anything, and nothing but these parts has changed.
    Done(Option<&'static str>, &'static [&'static str]),
}

/// What becomes of what a client says.
fn of_client(sender: Sender, kind: Kind) -> Fate {
    match kind {
        Kind::Read | Kind::Allocated | Kind::Changed | Kind::Space if sender == Sender::Reader => {
            // What it was served is counted.
            Fate::Done(Some("reply Ok"), &["groups", "volumes"])
        }
        Kind::Read | Kind::Allocated | Kind::Changed | Kind::Space | Kind::Write | Kind::Zero => {
            Fate::Told("reply Forbidden")
        }
        Kind::Hello | Kind::Welcome | Kind::Refused | Kind::Reply => Fate::Ends,
        Kind::Fence | Kind::FenceDone => Fate::Ends,
        Kind::ReplicateWrite | Kind::ReplicateZero | Kind::ReplicateHole => Fate::Ends,
        Kind::ReplicateAck | Kind::ReplicateRefused => Fate::Ends,
        Kind::Query | Kind::Position | Kind::Activate | Kind::Serves | Kind::Lease => Fate::Ends,
        Kind::PushWrite | Kind::PushZero | Kind::PushHole | Kind::PushLost | Kind::PushEntry => Fate::Ends,
        Kind::Whole | Kind::Reached => Fate::Ends,
        Kind::ListObjects | Kind::Objects | Kind::ListBlocks | Kind::Blocks => Fate::Ends,
        Kind::Fetch | Kind::Fetched | Kind::Check | Kind::Checked => Fate::Ends,
        Kind::AskAllowance | Kind::Allowance => Fate::Ends,
    }
}

/// What becomes of what an OSD says, by an epoch that is so much `later`, of the group that this one follows, or of the one
/// that it leads.
fn of_osd(osd: OsdId, later: i64, is_followed: bool, kind: Kind) -> Fate {
    match kind {
        Kind::Hello | Kind::Welcome | Kind::Refused | Kind::Reply => Fate::Ends,
        Kind::Read | Kind::Write | Kind::Zero | Kind::Allocated | Kind::Changed | Kind::Space => Fate::Ends,
        Kind::ReplicateWrite | Kind::ReplicateZero | Kind::ReplicateHole if later < 0 => {
            Fate::Told("refused StaleEpoch")
        }
        Kind::ReplicateWrite | Kind::ReplicateZero | Kind::ReplicateHole => Fate::Told("refused NotActive"),
        // Nothing was sent to it that it could have.
        Kind::ReplicateAck => Fate::Ends,
        Kind::ReplicateRefused => Fate::Ignored,
        Kind::Query if later > 0 => Fate::Done(None, &["kept"]),
        Kind::Query | Kind::Position | Kind::Serves => Fate::Ignored,
        Kind::Activate if later == 0 => Fate::Told("refused NotActive"),
        Kind::Activate => Fate::Told("refused StaleEpoch"),
        // It is there, for whatever groups it leads.
        Kind::Lease => Fate::Done(Some("granted"), &["leases"]),
        Kind::PushWrite | Kind::PushZero | Kind::PushHole | Kind::PushLost => Fate::Told("refused NotActive"),
        Kind::PushEntry | Kind::Whole | Kind::Reached => Fate::Told("refused NotActive"),
        Kind::ListObjects | Kind::Objects | Kind::ListBlocks | Kind::Blocks => Fate::Ignored,
        // It leads the group by the map, and may have gone on before that shows it.
        Kind::Fetch if osd == PRIMARY && later > 0 && is_followed => Fate::Done(Some("fetched Ok"), &[]),
        Kind::Fetch => Fate::Told("fetched NotActive"),
        Kind::Fetched | Kind::Check | Kind::Checked => Fate::Ignored,
        // It counts as long as its link lasts.
        Kind::Fence => Fate::Done(Some("fence done"), &["volumes"]),
        Kind::FenceDone => Fate::Ignored,
        // No limit of that volume is known.
        Kind::AskAllowance => Fate::Told("allowance"),
        Kind::Allowance => Fate::Ignored,
    }
}

/// What messages are about, as right as it can be.
#[derive(Clone, Copy, Debug)]
struct About {
    /// An object of the group.
    key: ObjectKey,
    epoch: Epoch,
    /// What the group's order goes on with.
    sequence: Sequence,
}

/// A whole message of that kind.
fn message(kind: Kind, about: About) -> Vec<u8> {
    let About { key, epoch, sequence } = about;
    let pg = key.pg;
    let data = [7; BLOCK_BYTES];
    let (checksum, changed) = (crc32c(&data).to_le_bytes(), sequence.0.to_le_bytes());
    let range = BlockRange { key, first_block: 0, block_count: 1 };
    let replicate = Replicate { range, epoch, sequence, origin: 5 };
    let push = Push { range, epoch };
    let inquiry = Inquiry { request: 1, range, epoch };
    let request = Request {
        request: 1,
        key,
        offset: 0,
        length: BLOCK_BYTES as u32,
        epoch,
        generation: Generation(1),
        origin: 5,
        since: None,
        unverified: false,
        of_snapshot: false,
    };
    match kind {
        Kind::Hello => {
            let (role, target) = (Role::Osd(STRANGER), OsdId(0));
            let cluster = base::ClusterId::from_bytes([1; 16]);
            Hello { role, cluster, target, versions: VERSIONS }.encode()
        }
        Kind::Welcome => Welcome { version: version() }.encode().to_vec(),
        Kind::Refused => Refused { reason: "a test" }.encode(),
        Kind::Read | Kind::Zero | Kind::Allocated | Kind::Changed | Kind::Space => {
            request.encode(kind).to_vec()
        }
        Kind::Write => [&request.encode(kind)[..], &checksum, &data].concat(),
        Kind::Reply => Outcome::done(1, sequence, 0).to_vec(),
        Kind::ReplicateWrite => [&replicate.encode(kind)[..], &checksum, &data].concat(),
        Kind::ReplicateZero | Kind::ReplicateHole => replicate.encode(kind).to_vec(),
        Kind::ReplicateAck => {
            ReplicateAck { through: 1, is_full: true, takes_no_objects: true }.encode().to_vec()
        }
        Kind::ReplicateRefused => {
            ReplicateRefused { ordinal: 1, status: Status::StaleEpoch, epoch }.encode().to_vec()
        }
        Kind::Query => Query { pg, modulus: 2, epoch }.encode().to_vec(),
        Kind::Position => {
            let (log_begins, is_incomplete, may_lack_tail) = (Sequence(0), false, false);
            LogState { pg, epoch, last_sequence: sequence, log_begins, is_incomplete, may_lack_tail }
                .encode(std::iter::empty())
        }
        Kind::Activate => Activate { pg, epoch, mark: sequence, join: None }.encode().to_vec(),
        Kind::Serves | Kind::Whole => GroupEpoch { pg, epoch }.encode(kind).to_vec(),
        Kind::Lease => Lease { ttl_ms: 900, stamp: 5, ..Lease::default() }.encode().to_vec(),
        Kind::PushWrite => [&push.encode(kind)[..], &checksum, &changed, &data].concat(),
        Kind::PushZero => push.encode(kind).to_vec(),
        Kind::PushHole => PushHole { range, epoch, changed: sequence }.encode().to_vec(),
        Kind::PushLost => [&push.encode(kind)[..], &checksum, &changed].concat(),
        Kind::PushEntry => {
            let ObjectKey { layer: volume, object, .. } = key;
            let (first_block, block_count, origin) = (0, 1, 5);
            let entry = LogEntry { epoch, sequence, layer: volume, object, first_block, block_count, origin };
            PushEntry { pg, epoch, entry }.encode().to_vec()
        }
        Kind::ListObjects => ListObjects { pg, epoch, after: None }.encode().to_vec(),
        Kind::Objects => Page { pg, epoch, is_last: true }.encode(std::iter::empty()),
        Kind::ListBlocks | Kind::Reached => ObjectEpoch { key, epoch }.encode(kind).to_vec(),
        Kind::Blocks => {
            let bits = [0xff; OBJECT_BLOCKS / 8];
            Blocks { of: ObjectEpoch { key, epoch }, allocated: &bits, doubted: &bits }.encode()
        }
        Kind::Fetch => inquiry.encode().to_vec(),
        Kind::Fetched => {
            let found = Found { inquiry, status: Status::Ok, through: sequence, written_in: None };
            [&found.encode(true)[..], &checksum, &data].concat()
        }
        Kind::Check => Check { inquiry, deep: Some(3) }.encode().to_vec(),
        Kind::Checked => Checked { inquiry, findings: Findings::default() }.encode(),
        Kind::Fence | Kind::FenceDone => {
            Fence { request: 5, volume: VOLUME, generation: Generation(9) }.encode(kind).to_vec()
        }
        Kind::AskAllowance | Kind::Allowance => {
            let of = base::Limited::Volume(VOLUME);
            let (reads, changes, read_bytes, changed_bytes) = (5, 5, 1 << 20, 1 << 20);
            Allowance { of, is_all: false, reads, changes, read_bytes, changed_bytes }.encode(kind).to_vec()
        }
    }
}

fn version() -> Version {
    VERSIONS.common(VERSIONS).unwrap()
}

/// The first object of the volume that is one of that group's.
fn key_of(pg: PgId) -> ObjectKey {
    let object = (0..).find(|object| PgId::of_object(PG.pool, 2, VOLUME, *object) == pg).unwrap();
    ObjectKey { pg, layer: VOLUME.first_layer(), object }
}

/// An OSD that follows one group, with an object in it and in the middle of an epoch, and leads another. No time passes.
struct Scene {
    alone: Alone,
    links: u64,
}

impl Scene {
    fn new() -> Scene {
        let mut alone = Alone::with_groups(2);
        alone.write(key_of(PG));
        let mut map = (*alone.osd.shared.volumes.map).clone();
        map.revision += 1;
        for osd in [PRIMARY, STRANGER, MEMBER] {
            map.osds.insert(osd, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
        }
        let in_sync = vec![PRIMARY, OsdId(0), MEMBER];
        map.targets.insert(PG, in_sync.clone());
        map.pgs.insert(PG, PgConfig { epoch: EPOCH, primary: PRIMARY, in_sync, ..PgConfig::default() });
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let mut scene = Scene { alone, links: 100 };
        let link = scene.connect(Sender::Osd(PRIMARY, 0));
        let about = About { key: key_of(PG), epoch: EPOCH, sequence: Sequence(50) };
        for kind in [Kind::Query, Kind::Activate] {
            scene.say(link, &message(kind, about)).unwrap();
        }
        let group = &scene.alone.osd.shared.groups[0];
        assert_eq!((group.epoch, group.leader), (EPOCH, Some(PRIMARY)));
        let expected = group.standing.following().and_then(|following| following.expected);
        assert_eq!(expected, Some(Sequence(51)));
        assert!(scene.alone.osd.shared.groups[1].is_active());
        scene
    }

    /// What messages are about by an epoch that is so much later than the group's.
    fn about(&self, pg: PgId, later: i64) -> About {
        let index = self.alone.osd.shared.groups.find(pg).unwrap();
        let group = &self.alone.osd.shared.groups[index];
        let followed = group.standing.following().and_then(|following| following.expected);
        let led = group.standing.primary().map(|primary| primary.next_sequence);
        let epoch = Epoch((i64::from(group.epoch.0) + later) as u32);
        About { key: key_of(pg), epoch, sequence: followed.or(led).unwrap_or_default() }
    }

    /// A link to somebody stands, and both ends have greeted.
    fn connect(&mut self, sender: Sender) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        let Alone { osd, io, now } = &mut self.alone;
        let access = match sender {
            Sender::Osd(peer, _) => {
                osd.shared.links.insert_osd(link, OsdLink::new(peer, Some(version()), *now));
                None
            }
            Sender::Reader => Some(Access::Pools([(PG.pool, Permission::Read)].into())),
            Sender::Tenant => Some(Access::Pools([(PoolId(2), Permission::ReadWrite)].into())),
            Sender::Neighbour => {
                let namespaces = [(PG.pool, [("theirs".to_owned(), Permission::Manage)].into())].into();
                Some(Access::Pools(Rights { namespaces, ..Rights::default() }))
            }
        };
        if let Some(access) = access {
            let principal = Principal::new(PublicKey([3; 32]), access);
            let seen_at = osd.shared.volumes.map.revision;
            osd.handle_accepted(link, Some(Credential { name: "one".into(), principal, seen_at })).unwrap();
            let (role, cluster, target) = (Role::Client(ClientId(5)), osd.me.cluster, osd.me.id);
            let hello = Hello { role, cluster, target, versions: VERSIONS };
            osd.handle_bytes(*now, link, &hello.encode(), io).unwrap();
        }
        self.settles();
        link
    }

    /// Whatever is under way comes to its end, at the same moment.
    fn settles(&mut self) {
        // Leases are asked for as often whether somebody has just said something or not.
        self.alone.osd.shared.turn.active_at = self.alone.now;
        self.alone.settles();
    }

    /// The next epoch makes this OSD a learner of the group that it followed, from 70 on. Answers what its primary may say there,
    /// and by which link.
    fn joins(&mut self) -> (LinkId, About) {
        let mut map = (*self.alone.osd.shared.volumes.map).clone();
        map.revision += 1;
        let epoch = Epoch(EPOCH.0 + 1);
        let (in_sync, learners) = (vec![PRIMARY, MEMBER], vec![OsdId(0)]);
        map.pgs.insert(PG, PgConfig { epoch, primary: PRIMARY, in_sync, learners, ..PgConfig::default() });
        let now = self.alone.now;
        self.alone.osd.handle_map(now, Arc::new(map), &mut self.alone.io);
        let link = self.connect(Sender::Osd(PRIMARY, 0));
        let about = About { key: key_of(PG), epoch, sequence: Sequence(60) };
        self.say(link, &message(Kind::Query, about)).unwrap();
        let join = Activate { pg: PG, epoch, mark: Sequence(55), join: Some(Sequence(70)) };
        self.say(link, &join.encode()).unwrap();
        assert!(self.alone.osd.store().pg_is_incomplete(PG));
        (link, about)
    }

    fn say(&mut self, link: LinkId, bytes: &[u8]) -> Result<(), LinkError> {
        self.alone.io.to.clear();
        let Alone { osd, io, now } = &mut self.alone;
        let progress = osd.handle_bytes(*now, link, bytes, io)?;
        assert_eq!(progress.consumed, bytes.len());
        self.settles();
        Ok(())
    }

    /// What somebody was answered, in short. Nobody else was told anything.
    fn answers(&mut self, link: LinkId) -> Vec<String> {
        let told = self.alone.io.to.remove(&link).unwrap_or_default();
        assert!(self.alone.io.to.is_empty(), "others were told something: {:?}", self.alone.io.to.keys());
        let (mut rest, mut answers) = (&told[..], Vec::new());
        while let Some((message, size)) = wire::parse(rest).unwrap() {
            answers.push(match message {
                Message::ReplicateRefused(refused) => format!("refused {:?}", refused.status),
                Message::Reply(reply) => format!("reply {:?}", reply.head.status),
                Message::Fetched(fetched) => format!("fetched {:?}", fetched.head.status),
                Message::Lease(lease) if lease.granted_ttl_ms > 0 => "granted".to_owned(),
                Message::FenceDone(_) => "fence done".to_owned(),
                Message::Allowance(_) => "allowance".to_owned(),
                other => format!("{other:?}"),
            });
            rest = &rest[size..];
        }
        answers
    }

    /// All that somebody could have changed, in words.
    fn parts(&self) -> BTreeMap<&'static str, String> {
        let (shared, router, io) = (&self.alone.osd.shared, &self.alone.osd.router, &self.alone.io);
        let store = &shared.disk.store;
        let mut held = Vec::new();
        for key in store.objects() {
            let mut blocks = Vec::new();
            store.for_each_block(&key, |block, crc32c, changed| blocks.push((block, crc32c, changed)));
            held.push((key, blocks));
        }
        held.sort();
        let logs = [PG, LED].map(|pg| {
            let place = (store.pg_position(pg), store.pg_log_begins(pg), store.pg_is_incomplete(pg));
            (place, store.pg_log(pg).collect::<Vec<_>>())
        });
        BTreeMap::from([
            ("groups", format!("{:?}", shared.groups.iter().collect::<Vec<_>>())),
            ("store", format!("{held:?} {logs:?}")),
            ("leases", format!("{:?}", shared.presence.leases)),
            ("volumes", format!("{:?}", shared.volumes.iter().collect::<Vec<_>>())),
            ("fences", format!("{:?}", router.fences)),
            ("kept", format!("{:?}", router.kept)),
            ("registry", format!("{:?} {:?}", io.proposals, io.splits)),
            ("closed", format!("{:?}", io.closed)),
            ("in flight", format!("{} {}", shared.operations.in_flight(), io.drive.len())),
        ])
    }

    /// Somebody says that, which becomes this.
    fn becomes(&mut self, link: &mut LinkId, sender: Sender, kind: Kind, about: About, fate: Fate) {
        let what = format!("{kind:?} by {sender:?} about pg {}", about.key.pg);
        let before = self.parts();
        let said = self.say(*link, &message(kind, about));
        let answers = self.answers(*link);
        let after = self.parts();
        let changed: BTreeSet<&str> =
            before.keys().filter(|part| before[*part] != after[*part]).copied().collect();
        let (ends, told, may_change): (bool, Option<&str>, &[&str]) = match fate {
            Fate::Ends => (true, None, &[]),
            Fate::Told(told) => (false, Some(told), &[]),
            Fate::Ignored => (false, None, &[]),
            Fate::Done(told, parts) => (false, told, parts),
        };
        assert_eq!(said.is_err(), ends, "{what}: {said:?}");
        assert_eq!(answers, told.into_iter().collect::<Vec<_>>(), "{what}");
        let more: Vec<_> = changed.iter().filter(|part| !may_change.contains(part)).collect();
        assert!(more.is_empty(), "{what} changes {more:?}:\n{before:#?}\n{after:#?}");
        if ends {
            let Alone { osd, io, now } = &mut self.alone;
            osd.handle_closed(*now, *link, "a test", io);
            *link = self.connect(sender);
        }
    }
}

#[test]
fn whoever_must_not_say_something_changes_nothing_by_it() {
    for sender in SENDERS {
        let mut scene = Scene::new();
        let mut link = scene.connect(sender);
        for kind in Kind::ALL {
            match sender {
                Sender::Reader | Sender::Tenant | Sender::Neighbour => {
                    let about = scene.about(LED, 0);
                    scene.becomes(&mut link, sender, *kind, about, of_client(sender, *kind));
                }
                Sender::Osd(osd, later) => {
                    for pg in [PG, LED] {
                        let about = scene.about(pg, later);
                        let fate = of_osd(osd, later, pg == PG, *kind);
                        scene.becomes(&mut link, sender, *kind, about, fate);
                    }
                }
            }
        }
    }
}

#[test]
fn whom_the_map_names_is_obeyed_in_that_epoch() {
    let mut scene = Scene::new();
    let link = scene.connect(Sender::Osd(PRIMARY, 0));
    let about = scene.about(PG, 0);
    for (kind, expected) in [
        (Kind::ListObjects, "Objects("),
        (Kind::ListBlocks, "Blocks("),
        (Kind::Fetch, "fetched Ok"),
        (Kind::Check, "Checked("),
    ] {
        let before = scene.parts();
        scene.say(link, &message(kind, about)).unwrap();
        let answers = scene.answers(link);
        assert!(answers.len() == 1 && answers[0].starts_with(expected), "{kind:?}: {answers:?}");
        assert_eq!(scene.parts(), before, "{kind:?} asks and changes nothing");
    }
    for kind in [Kind::ReplicateWrite, Kind::ReplicateZero, Kind::ReplicateHole] {
        let (before, about) = (scene.parts(), scene.about(PG, 0));
        scene.say(link, &message(kind, about)).unwrap();
        let answers = scene.answers(link);
        assert!(answers.len() == 1 && answers[0].starts_with("ReplicateAck("), "{kind:?}: {answers:?}");
        assert_ne!(scene.parts()["store"], before["store"], "{kind:?}");
    }
    let about = scene.about(PG, 0);
    scene.say(link, &message(Kind::Serves, about)).unwrap();
    scene.say(link, &message(Kind::Query, about)).unwrap();
    let answers = scene.answers(link);
    assert!(answers.len() == 1 && answers[0].starts_with("Position("), "{answers:?}");
}

#[test]
fn whom_the_map_names_says_nothing_of_objects_that_are_another_groups() {
    // Of another group's object, by the name that it would have in this one.
    let foreign = |about: About| About { key: ObjectKey { pg: PG, ..key_of(LED) }, ..about };
    let (sender, not_active) = (Sender::Osd(PRIMARY, 0), Fate::Told("refused NotActive"));
    for kind in [Kind::ReplicateWrite, Kind::ReplicateZero, Kind::ReplicateHole] {
        let mut scene = Scene::new();
        let mut link = scene.connect(sender);
        let about = foreign(scene.about(PG, 0));
        scene.becomes(&mut link, sender, kind, about, not_active);
    }
    for kind in [Kind::PushWrite, Kind::PushZero, Kind::PushHole, Kind::PushLost, Kind::PushEntry] {
        let mut scene = Scene::new();
        let (mut link, about) = scene.joins();
        if kind == Kind::PushEntry {
            // Its log may name what was the group's before a split.
            scene.say(link, &message(kind, foreign(about))).unwrap();
            assert!(scene.answers(link).iter().all(|answer| answer.starts_with("ReplicateAck(")));
        } else {
            scene.becomes(&mut link, sender, kind, foreign(about), not_active);
        }
        let before = scene.parts()["store"].clone();
        scene.say(link, &message(kind, about)).unwrap();
        let answers = scene.answers(link);
        assert!(answers.iter().all(|answer| answer.starts_with("ReplicateAck(")), "{kind:?}: {answers:?}");
        let is_new = kind != Kind::PushEntry;
        assert_eq!(scene.parts()["store"] != before, is_new, "{kind:?} of the group's own is taken");
    }
}

#[test]
fn an_entry_of_the_log_tells_of_nothing_that_is_to_come() {
    let mut scene = Scene::new();
    let (mut link, about) = scene.joins();
    for sequence in [Sequence(70), Sequence(u64::MAX)] {
        let (sender, refused) = (Sender::Osd(PRIMARY, 0), Fate::Told("refused NotActive"));
        scene.becomes(&mut link, sender, Kind::PushEntry, About { sequence, ..about }, refused);
    }
    let last = Sequence(69);
    scene.say(link, &message(Kind::PushEntry, About { sequence: last, ..about })).unwrap();
    assert!(scene.answers(link).iter().all(|answer| answer.starts_with("ReplicateAck(")));
    assert_eq!(scene.alone.osd.store().pg_position(PG), Some((about.epoch, last)));
}

#[test]
fn nobody_uses_the_sequences_of_a_group_up() {
    let mut scene = Scene::new();
    let mut map = (*scene.alone.osd.shared.volumes.map).clone();
    map.revision += 1;
    let epoch = Epoch(EPOCH.0 + 1);
    map.pgs.get_mut(&PG).unwrap().epoch = epoch;
    let now = scene.alone.now;
    scene.alone.osd.handle_map(now, Arc::new(map), &mut scene.alone.io);
    let sender = Sender::Osd(PRIMARY, 0);
    let mut link = scene.connect(sender);
    let about = About { key: key_of(PG), epoch, sequence: Sequence(u64::MAX) };
    scene.say(link, &message(Kind::Query, about)).unwrap();
    scene.becomes(&mut link, sender, Kind::Activate, about, Fate::Told("refused NotActive"));
}

#[test]
fn who_has_not_greeted_says_nothing_else() {
    let mut scene = Scene::new();
    let about = scene.about(PG, 0);
    for kind in Kind::ALL.iter().copied() {
        let before = scene.parts();
        // Somebody who connected, and an OSD that was dialled.
        let (accepted, dialled) = (LinkId(10), LinkId(11));
        let now = scene.alone.now;
        scene.alone.osd.handle_accepted(accepted, None).unwrap();
        scene.alone.osd.shared.links.insert_osd(dialled, OsdLink::new(STRANGER, None, now));
        if kind != Kind::Hello {
            let said = scene.say(accepted, &message(kind, about));
            assert!(matches!(said, Err(LinkError::OutOfTurn(_))), "{kind:?}: {said:?}");
            assert!(scene.answers(accepted).is_empty());
        }
        let said = scene.say(dialled, &message(kind, about));
        match kind {
            Kind::Welcome => assert!(said.is_ok(), "{said:?}"),
            Kind::Refused => assert!(matches!(said, Err(LinkError::Refused(_))), "{said:?}"),
            _ => assert!(matches!(said, Err(LinkError::OutOfTurn(_))), "{kind:?}: {said:?}"),
        }
        for link in [accepted, dialled] {
            scene.alone.osd.handle_closed(now, link, "a test", &mut scene.alone.io);
        }
        scene.settles();
        let after = scene.parts();
        // Whoever was welcomed was asked for a lease.
        let is_same = |part: &&str| {
            let may_change = kind == Kind::Welcome && *part == "leases";
            may_change || before[*part] == after[*part]
        };
        assert!(before.keys().all(is_same), "{kind:?}:\n{before:#?}\n{after:#?}");
    }
}

#[test]
fn the_table_in_the_docs_has_every_kind() {
    let text = include_str!("../../../docs/protocol.md");
    let table = text.split("## Who may say what").nth(1).expect("there is such a chapter");
    let table = table.split("\n## ").next().unwrap();
    for kind in Kind::ALL {
        let mut name = String::new();
        for letter in format!("{kind:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push(' ');
            }
            name.extend(letter.to_lowercase());
        }
        let rows = table.lines().filter(|line| line.starts_with(&format!("| {name} |"))).count();
        assert_eq!(rows, 1, "{name}");
    }
}
