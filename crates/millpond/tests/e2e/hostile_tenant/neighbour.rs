//! Neighbours of the client that is measured: they have the key of another pool, and one of them means harm.
//!
//! In earnest they have machines of their own. Here each is a process in a session of its own, which comes after all others:
//! nobody else is to be delayed by what it computes itself, only by the work that it gives the nodes. For the same reason the
//! hostile one's end of a connection keeps little: the kernel has one bound for both ends. The process is the test once more, told by
//! its environment what it is, and goes on until its input ends.

use crate::common::random::Random;
use crate::common::raw::{RawLink, Tenant};
use crate::common::whole::BLOCK;
use crate::common::{OnDrop, wait_until};
use base::map::ClusterMap;
use base::{
    BLOCK_BYTES, ClientId, Generation, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, OsdId, PgId, Sequence,
    VolumeId, crc32c,
};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::hostile::{Forger, InUse};
use wire::{Fence, Kind, Message, Request, Status};

/// The environment of a neighbour has its task there.
const TASK: &str = "MILLPOND_TEST_NEIGHBOUR";
/// How little a neighbour matters, as for `nice`.
const NICE: &str = "10";
/// It says that when it has all its connections.
const READY: &str = "ready";
/// Before what it did.
const DID: &str = "did ";
/// Threads of a neighbour.
pub const WORKERS: usize = 4;
/// More than one key may have to one OSD.
const CONNECTIONS_TOO_MANY: usize = 4200;
/// The hostile one does not wait longer for anything.
const IMPATIENCE: Duration = Duration::from_millis(100);
/// How long it waits when it could not do what it meant to.
const IDLE_PAUSE: Duration = Duration::from_millis(1);
/// What clients ask.
const REQUESTS: [Kind; 6] =
    [Kind::Read, Kind::Write, Kind::Zero, Kind::Allocated, Kind::Changed, Kind::Space];
/// How long it floods on one connection.
const FLOOD: Duration = Duration::from_millis(200);
/// For whom it attaches its volume: one client, for another one would be refused.
const ATTACHER: ClientId = ClientId(3);

/// What a neighbour is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub is_hostile: bool,
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Where its key is.
    pub key: PathBuf,
    pub seed: u64,
    /// How many connections it has.
    pub connections: usize,
    /// Whether there is time for all that a hostile one could do.
    pub is_long: bool,
    /// Which of [`ACTS`] a hostile one does, if not all.
    pub only: Option<usize>,
    /// The client of the other pool.
    pub victim: ClientId,
    /// Where nodes serve figures.
    pub http: Vec<String>,
}

/// Something that a hostile one did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Deed {
    /// Which of [`ACTS`].
    pub act: usize,
    /// When, in microseconds of the clock.
    pub began_us: u64,
    pub ended_us: u64,
    /// Whether it came to that: it may have had no connection.
    pub is_done: bool,
}

/// What a neighbour did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Did {
    /// Requests of an honest one that were served.
    pub served: u64,
    pub deeds: Vec<Deed>,
    /// Refused for being too many.
    pub too_many: u64,
}

impl Did {
    pub fn add(&mut self, more: Did) {
        self.served += more.served;
        self.deeds.extend(more.deeds);
        self.too_many += more.too_many;
    }
}

/// One that is at it.
pub struct Neighbour {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Neighbour {
    /// Starts one, and waits until it has all its connections.
    pub fn start(task: &Task) -> Neighbour {
        let test = std::thread::current().name().expect("a test's thread has its name").to_owned();
        let own = std::env::current_exe().expect("the test is a file");
        let mut command = Command::new("nice");
        command.args(["-n", NICE]).arg(own).args([&test, "--exact", "--nocapture"]);
        // A name that no test has: by what belongs to the cluster it is found if this test is killed.
        command.arg(&task.dir);
        command.env(TASK, serde_json::to_string(task).expect("it is text"));
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = started.expect("nice is there");
        let said = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut neighbour = Neighbour { process, said };
        neighbour.says(READY);
        neighbour
    }

    pub fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    /// Waits until it says something that begins so. Answers the rest.
    fn says(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.said.read_line(&mut line).expect("what it says can be read");
            assert!(length > 0, "a neighbour ended");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim_end().to_owned();
            }
        }
    }

    /// Ends it. Answers what it did.
    pub fn ends(mut self) -> Did {
        drop(self.process.stdin.take());
        let did = self.says(DID);
        assert!(self.process.wait().expect("it can be waited for").success());
        serde_json::from_str(&did).expect("it says what it did")
    }
}

/// What the process of a neighbour does instead of the test. Answers whether this is one.
pub fn be_one_if_asked() -> bool {
    let Ok(task) = std::env::var(TASK) else { return false };
    let task: Task = serde_json::from_str(&task).expect("whoever starts it says what it is to be");
    nix::unistd::setsid().expect("whoever was just started leads no group");
    // Where the kernel shares processors by sessions `nice` counts within one only. Elsewhere there is no such file.
    if let Err(error) = std::fs::write("/proc/self/autogroup", NICE) {
        eprintln!("a neighbour has the share of other sessions: {error}");
    }
    let did = task.work();
    println!("\n{DID}{}", serde_json::to_string(&did).expect("it is text"));
    true
}

impl Task {
    fn work(&self) -> Did {
        let mut random = Random::of(self.seed);
        let (ready, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
        let connections = self.connections / WORKERS;
        std::thread::scope(|scope| {
            // Also when something here panics: the scope waits for the workers.
            let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
            let worker = |mut random: Random| {
                let (tenant, ready, enough) = (Tenant::new(&self.dir, &self.key), &ready, &enough);
                scope.spawn(move || {
                    if !self.is_hostile {
                        let served = honest(&tenant, connections, ready, enough, &mut random);
                        return Did { served, ..Did::default() };
                    }
                    let mut hostile = Hostile::new(tenant, self, connections, random);
                    ready.fetch_add(1, Ordering::Relaxed);
                    let deeds = hostile.work(enough);
                    Did { deeds, too_many: hostile.too_many, ..Did::default() }
                })
            };
            let workers: Vec<_> = (0..WORKERS).map(|_| worker(random.fork())).collect();
            wait_until("the neighbours are there", || {
                ready.load(Ordering::Relaxed) == WORKERS || workers.iter().any(|one| one.is_finished())
            });
            println!("\n{READY}");
            // Until whoever started it closes this, or ends.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            enough.store(true, Ordering::Relaxed);
            let mut all = Did::default();
            for worker in workers {
                all.add(worker.join().expect("a neighbour goes on to its end"));
            }
            all
        })
    }
}

/// By a clock that all processes have.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is such a clock");
    Duration::from(now).as_micros() as u64
}

/// Requests for the volume that both neighbours may use, which are served.
struct Requests {
    volume: VolumeId,
    /// By who leads their groups.
    objects: BTreeMap<OsdId, Vec<ObjectKey>>,
    map: ClusterMap,
}

impl Requests {
    fn new(map: ClusterMap, name: &str) -> Requests {
        let keys = keys_of(&map, name);
        let volume = keys[0].layer.volume();
        let mut objects: BTreeMap<OsdId, Vec<ObjectKey>> = BTreeMap::new();
        for key in keys {
            objects.entry(map.pgs[&key.pg].primary).or_default().push(key);
        }
        Requests { volume, objects, map }
    }

    /// One of some blocks, for an OSD that leads something.
    fn request(&self, osd: OsdId, blocks: u64, random: &mut Random) -> Request {
        let objects = &self.objects[&osd];
        let key = objects[random.below(objects.len() as u64) as usize];
        Request {
            request: random.next(),
            key,
            offset: (random.below(OBJECT_BLOCKS as u64 - blocks + 1) * BLOCK) as u32,
            length: (blocks * BLOCK) as u32,
            epoch: self.map.pgs[&key.pg].epoch,
            // Whatever the hostile one had fenced: that is its own.
            generation: Generation(u32::MAX),
            origin: random.next() >> 2,
            since: None,
            unverified: false,
            of_snapshot: false,
        }
    }

    /// The bytes of such a request.
    fn bytes(&self, osd: OsdId, kind: Kind, blocks: u64, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.request(osd, blocks, random).encode(kind).to_vec();
        if kind == Kind::Write {
            let block = random.next().to_le_bytes().repeat(BLOCK_BYTES / 8);
            bytes.extend(crc32c(&block).to_le_bytes().repeat(blocks as usize));
            bytes.extend(block.repeat(blocks as usize));
        }
        bytes
    }

    /// Reads and writes, mostly small, as a busy machine sends them.
    fn burst(&self, osd: OsdId, random: &mut Random) -> (Vec<u8>, usize) {
        const COUNT: usize = 16;
        let bytes = (0..COUNT).flat_map(|_| match random.below(4) {
            0 => self.bytes(osd, Kind::Write, 1, random),
            1 => self.bytes(osd, Kind::Read, 16, random),
            _ => self.bytes(osd, Kind::Read, 1, random),
        });
        (bytes.collect(), COUNT)
    }
}

/// All objects of a volume.
fn keys_of(map: &ClusterMap, name: &str) -> Vec<ObjectKey> {
    let found = map.volumes.iter().find(|(_, info)| info.name == name && !info.removed);
    let (volume, info) = found.expect("the volume is in the map");
    let pg_count = map.pools[&info.pool].pg_count;
    let objects = 0..(info.bytes / OBJECT_BYTES) as u32;
    let pg = |object| PgId::of_object(info.pool, pg_count, *volume, object);
    objects.map(|object| ObjectKey { pg: pg(object), layer: volume.first_layer(), object }).collect()
}

/// A neighbour that means no harm: asks as much as it can, and takes all answers. Answers how many requests were served.
fn honest(
    tenant: &Tenant,
    connections: usize,
    ready: &AtomicUsize,
    enough: &AtomicBool,
    random: &mut Random,
) -> u64 {
    let requests = Requests::new(tenant.map.clone(), "bad");
    let osds: Vec<OsdId> = requests.objects.keys().copied().collect();
    let connect = |number: usize| {
        let (osd, client) = (osds[number % osds.len()], ClientId(random.next()));
        let mut link = tenant.greet(osd, client);
        // The hostile one has the same key, and the connections that he let go of are counted until the OSD has come to them. Of
        // many that are refused at once few hear why.
        let is_early = |link: &Result<RawLink, String>| link.is_err();
        wait_until("the hostile one's connections are gone", || {
            if is_early(&link) {
                link = tenant.greet(osd, client);
            }
            !is_early(&link)
        });
        (osd, link.unwrap_or_else(|reason| panic!("an honest client is let in: {reason}")))
    };
    let mut links: Vec<(OsdId, RawLink)> = (0..connections).map(connect).collect();
    ready.fetch_add(1, Ordering::Relaxed);
    let mut served = 0;
    let mut next = 0;
    while !enough.load(Ordering::Relaxed) {
        // Several have something under way at a time.
        let chosen: Vec<usize> = (next..next + 4).map(|number| number % links.len()).collect();
        next += chosen.len();
        let mut awaited = Vec::new();
        for number in chosen {
            let (osd, link) = &mut links[number];
            let (bytes, count) = requests.burst(*osd, random);
            link.send(&bytes).expect("an honest client's requests are taken");
            awaited.push((number, count));
        }
        for (number, count) in awaited {
            for _ in 0..count {
                let is_served = |message: Message<'_>| match message {
                    Message::Reply(reply) => reply.head.status == Status::Ok,
                    other => panic!("{other:?}"),
                };
                let is_served = links[number].1.receive(is_served).expect("an honest client is answered");
                served += u64::from(is_served);
            }
        }
    }
    served
}

/// A neighbour that means harm.
pub struct Hostile {
    tenant: Tenant,
    requests: Requests,
    in_use: InUse,
    /// The client of the other pool.
    victim: ClientId,
    osds: Vec<OsdId>,
    /// Where nodes serve figures.
    http: Vec<String>,
    random: Random,
    /// Connections that are kept open, oldest first.
    held: VecDeque<RawLink>,
    held_max: usize,
    is_long: bool,
    only: Option<usize>,
    /// Refused for being too many.
    too_many: u64,
}

/// What the hostile one does.
type Act = (&'static str, fn(&mut Hostile) -> Option<()>);

pub const ACTS: [Act; 16] = [
    ("asks for anything", Hostile::asks_for_anything),
    ("speaks as an OSD", Hostile::speaks_as_an_osd),
    ("sends garbage", Hostile::sends_garbage),
    ("leaves messages half said", Hostile::leaves_messages_half_said),
    ("takes no answers", Hostile::takes_no_answers),
    ("floods with requests", Hostile::floods_with_requests),
    ("floods with what is refused", Hostile::floods_with_what_is_refused),
    ("wants one block", Hostile::wants_one_block),
    ("says everything again", Hostile::says_everything_again),
    ("fences", Hostile::fences),
    ("attaches and fences", Hostile::attaches_and_fences),
    ("is somebody else", Hostile::is_somebody_else),
    ("connects again and again", Hostile::connects_again_and_again),
    ("proves no key", Hostile::proves_no_key),
    ("bothers the figures", Hostile::bothers_the_figures),
    ("has as many connections as it may", Hostile::has_as_many_connections_as_it_may),
];

impl Hostile {
    fn new(tenant: Tenant, task: &Task, held_max: usize, random: Random) -> Hostile {
        let victim = task.victim;
        let map = &tenant.map;
        let (own, others) = (keys_of(map, "bad"), keys_of(map, "good"));
        let generations = map.volumes.values().map(|info| info.generation);
        let in_use = InUse {
            // Mostly what is its own, so that it gets further.
            keys: [&own[..], &own[..], &others[..]].concat(),
            epochs: map.pgs.values().map(|config| config.epoch).collect(),
            generations: generations.chain([Generation(u32::MAX)]).collect(),
            sequences: (0..200).map(Sequence).collect(),
            origins: (1..20).collect(),
            requests: (1..20).collect(),
            clients: vec![victim, ClientId(1)],
            osds: tenant.osds(),
            cluster: map.cluster,
        };
        Hostile {
            requests: Requests::new(map.clone(), "bad"),
            in_use,
            victim,
            osds: tenant.osds(),
            http: task.http.clone(),
            random,
            held: VecDeque::new(),
            held_max,
            is_long: task.is_long,
            only: task.only,
            too_many: 0,
            tenant,
        }
    }

    /// Does one thing after the other, and all of them once before it draws them; or one thing over and over.
    fn work(&mut self, enough: &AtomicBool) -> Vec<Deed> {
        let mut deeds = Vec::new();
        while !enough.load(Ordering::Relaxed) {
            let act = match (self.only, deeds.len()) {
                (Some(only), _) => only,
                (None, first) if first < ACTS.len() => first,
                (None, _) => self.random.below(ACTS.len() as u64) as usize,
            };
            let began_us = now_us();
            let is_done = ACTS[act].1(self).is_some();
            deeds.push(Deed { act, began_us, ended_us: now_us(), is_done });
            if !is_done {
                // What could not be done may have taken no time at all.
                std::thread::sleep(IDLE_PAUSE);
            }
        }
        deeds
    }

    fn osd(&mut self) -> OsdId {
        self.osds[self.random.below(self.osds.len() as u64) as usize]
    }

    fn open(&mut self) -> Option<(OsdId, RawLink)> {
        let (osd, client) = (self.osd(), ClientId(self.random.next()));
        let link = self.tenant.greet(osd, client).ok()?;
        link.wait_at_most(IMPATIENCE).ok()?;
        link.keeps_little().ok()?;
        Some((osd, link))
    }

    /// Keeps a connection open until others have come.
    fn hold(&mut self, link: RawLink) {
        self.held.push_back(link);
        while self.held.len() > self.held_max {
            self.held.pop_front();
        }
    }

    fn forge<T>(&mut self, forge: impl FnOnce(&mut Forger<'_, &mut dyn FnMut() -> u64>) -> T) -> T {
        let mut source = || self.random.next();
        let source: &mut dyn FnMut() -> u64 = &mut source;
        forge(&mut Forger::new(&self.in_use, source))
    }

    /// Sends what is made, and takes what is answered, until it is enough or the connection is closed or full.
    fn flood(&mut self, link: &mut RawLink, mut make: impl FnMut(&mut Hostile) -> Vec<u8>) {
        let began = Instant::now();
        while began.elapsed() < FLOOD {
            let bytes = make(self);
            if link.send(&bytes).is_err() || link.drain().is_err() {
                return;
            }
        }
    }

    fn asks_for_anything(&mut self) -> Option<()> {
        let (_, mut link) = self.open()?;
        self.flood(&mut link, |hostile| {
            hostile.forge(|forger| {
                // A fence of another pool's volume ends the connection, and one ahead of the map waits there: so there are few.
                let kind = match forger.below(100) as usize {
                    0 => Kind::Fence,
                    drawn => REQUESTS[drawn % REQUESTS.len()],
                };
                if forger.below(64) == 0 { forger.twisted(kind) } else { forger.message(kind) }
            })
        });
        self.hold(link);
        Some(())
    }

    fn speaks_as_an_osd(&mut self) -> Option<()> {
        for _ in 0..4 {
            let (_, mut link) = self.open()?;
            let bytes = self.forge(|forger| {
                let kind = Kind::ALL[forger.below(Kind::ALL.len() as u64) as usize];
                forger.message(kind)
            });
            // It is refused, or answered if a client may say that.
            let _ = link.send(&bytes);
            let _ = link.receive(|_| ());
        }
        Some(())
    }

    fn sends_garbage(&mut self) -> Option<()> {
        for greets in [true, false] {
            let osd = self.osd();
            let mut link = self.tenant.connect(osd).ok()?;
            link.wait_at_most(IMPATIENCE).ok()?;
            let bytes = self.forge(|forger| match (greets, forger.below(2)) {
                (true, 0) => forger.twisted(Kind::Hello),
                (true, _) => forger.cut_off(Kind::Hello),
                (false, _) => forger.garbage(),
            });
            let _ = link.send(&bytes);
            self.hold(link);
        }
        Some(())
    }

    fn leaves_messages_half_said(&mut self) -> Option<()> {
        for _ in 0..4 {
            let (osd, mut link) = self.open()?;
            let whole = self.requests.bytes(osd, Kind::Write, 64, &mut self.random);
            let end = 1 + self.random.below(whole.len() as u64 - 1) as usize;
            let _ = link.send(&whole[..end]);
            self.hold(link);
        }
        Some(())
    }

    fn takes_no_answers(&mut self) -> Option<()> {
        let (osd, mut link) = self.open()?;
        // So that there is something to be read.
        let mut bytes = self.requests.bytes(osd, Kind::Write, 64, &mut self.random);
        let read = Hostile::read_of_what_is_written(&bytes)?;
        bytes.extend(read.repeat(256));
        let _ = link.send(&bytes);
        self.hold(link);
        Some(())
    }

    /// What asks for all that a write brings.
    fn read_of_what_is_written(write: &[u8]) -> Option<Vec<u8>> {
        match wire::parse(write) {
            Ok(Some((Message::Write(write), _))) => Some(write.head.encode(Kind::Read).to_vec()),
            _ => None,
        }
    }

    fn floods_with_requests(&mut self) -> Option<()> {
        let (osd, mut link) = self.open()?;
        self.flood(&mut link, |hostile| hostile.requests.burst(osd, &mut hostile.random).0);
        self.hold(link);
        Some(())
    }

    fn floods_with_what_is_refused(&mut self) -> Option<()> {
        let (osd, mut link) = self.open()?;
        let others = keys_of(&self.tenant.map, "good");
        let key = others[self.random.below(others.len() as u64) as usize];
        let read = Request { key, ..self.requests.request(osd, 1, &mut self.random) };
        let flood = read.encode(Kind::Read).repeat(1000);
        self.flood(&mut link, |_| flood.clone());
        Some(())
    }

    /// Everybody waits for everybody there.
    fn wants_one_block(&mut self) -> Option<()> {
        let (osd, mut link) = self.open()?;
        let write = self.requests.bytes(osd, Kind::Write, 1, &mut self.random);
        let read = Hostile::read_of_what_is_written(&write)?;
        let mut bytes = write.clone();
        for _ in 0..32 {
            bytes.extend(read.repeat(16));
            bytes.extend_from_slice(&write);
        }
        let _ = link.send(&bytes);
        self.hold(link);
        Some(())
    }

    fn says_everything_again(&mut self) -> Option<()> {
        let (osd, mut link) = self.open()?;
        self.flood(&mut link, |hostile| {
            let blocks = 1 + hostile.random.below(OBJECT_BLOCKS as u64);
            let request = hostile.requests.request(osd, blocks, &mut hostile.random);
            let since = Some(Sequence(hostile.random.below(1 << 20)));
            Request { since, ..request }.encode(Kind::Zero).to_vec()
        });
        Some(())
    }

    fn fences(&mut self) -> Option<()> {
        let (osd, mut link) = self.open()?;
        let volume = self.requests.volume;
        let generation = self.tenant.map.volumes[&volume].generation;
        let mut bytes = Vec::new();
        for request in 0..500 {
            bytes.extend(Fence { request, volume, generation }.encode(Kind::Fence));
        }
        let _ = link.send(&bytes);
        self.hold(link);
        // And of the other pool: that ends the connection.
        let mut link = self.tenant.greet(osd, ClientId(2)).ok()?;
        let volume = keys_of(&self.tenant.map, "good")[0].layer.volume();
        let _ =
            link.send(&Fence { request: 1, volume, generation: Generation(u32::MAX) }.encode(Kind::Fence));
        Some(())
    }

    /// Has OSDs told of an attach that was, and of one that never was, and attaches again: none is to take another for a liar.
    fn attaches_and_fences(&mut self) -> Option<()> {
        for _ in 0..5 {
            let attached = self.tenant.attach("bad", ATTACHER).ok()?;
            let (_, mut link) = self.open()?;
            let volume = self.requests.volume;
            for generation in [attached, Generation(u32::MAX)] {
                let fence = Fence { request: 1, volume, generation };
                let _ = link.send(&fence.encode(Kind::Fence));
            }
            self.hold(link);
        }
        Some(())
    }

    fn is_somebody_else(&mut self) -> Option<()> {
        for client in [self.victim, ClientId(7), ClientId(7)] {
            let osd = self.osd();
            if let Ok(link) = self.tenant.greet(osd, client) {
                self.hold(link);
            }
            let mut link = self.tenant.connect(osd).ok()?;
            let hello = self.forge(|forger| forger.message(Kind::Hello));
            let _ = link.send(&hello);
        }
        Some(())
    }

    fn connects_again_and_again(&mut self) -> Option<()> {
        for _ in 0..10 {
            let osd = self.osd();
            // The same client each time: the older connection is let go.
            drop(self.tenant.greet(osd, ClientId(9)));
        }
        Some(())
    }

    fn proves_no_key(&mut self) -> Option<()> {
        for number in 0..50 {
            let osd = self.osd();
            let mut stream = TcpStream::connect(self.tenant.map.osds[&osd].address?).ok()?;
            if number % 2 == 0 {
                let _ = stream.write_all(&self.forge(|forger| forger.garbage()));
            }
        }
        Some(())
    }

    fn bothers_the_figures(&mut self) -> Option<()> {
        let at = self.random.below(self.http.len() as u64) as usize;
        let mut stream = TcpStream::connect(&self.http[at]).ok()?;
        let _ = stream.write_all(&self.random.bytes(2000));
        let mut stream = TcpStream::connect(&self.http[at]).ok()?;
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
        Some(())
    }

    /// In a try of seconds this takes too long, and beside other things once is enough.
    fn has_as_many_connections_as_it_may(&mut self) -> Option<()> {
        let refused_before = self.too_many;
        if !self.is_long || self.only.is_none() && refused_before > 0 {
            return Some(());
        }
        let mut links = Vec::new();
        while links.len() < CONNECTIONS_TOO_MANY && self.too_many == refused_before {
            match self.tenant.greet(self.osds[0], ClientId(self.random.next())) {
                Ok(link) => links.push(link),
                Err(reason) if reason.contains("connections to this OSD already") => self.too_many += 1,
                Err(_) => break,
            }
        }
        Some(())
    }
}
