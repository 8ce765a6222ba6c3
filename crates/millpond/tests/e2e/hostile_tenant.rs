//! Somebody with the key of one pool does what he can against three nodes, and a client of another pool notices nothing of it.
//!
//! What "nothing" means on a machine that both share: whoever keeps a machine busy costs others time, however honest he is.
//! So the hostile neighbour is compared with an honest one, in turns, and each of the two is as many threads that never
//! rest, on as many connections with the same key to the same OSDs. The client that is measured does one operation after
//! the other, each verified, with a pause between them, so that it is always the same. Its slowest percent of operations may
//! take twice as long beside the hostile neighbour as beside the honest one, and it gets half as much done at least. What both
//! cost the nodes is printed, and what the hostile one did during the slowest percent.
//!
//! `MILLPOND_HOSTILE_SECONDS` says for how long the hostile one tries; the honest one gets half of that, and no more than
//! [`HONEST_MAX`] in all. From [`LONG`] on they have thousands of connections, up to what one key may have, and in every second
//! turn the hostile one does one thing over and over, whatever harms most among all that it can do.

mod measured;
mod neighbour;

use crate::common::door::Door;
use crate::common::nbd::NbdClient;
use crate::common::pond::{Pond, runs};
use crate::common::random::Random;
use crate::common::raw::Tenant;
use crate::common::replicas::replicas_are_equal;
use crate::common::whole::{BLOCK, becomes_whole};
use crate::common::{OnDrop, path, wait_until};
use base::{BLOCK_BYTES, ClientId};
use measured::{ByPhase, Measured, Phase, Took};
use neighbour::{ACTS, Neighbour, Task, WORKERS, be_one_if_asked, now_us};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::process::Process;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The hostile neighbour's time if nothing else is said, in seconds.
const SECONDS: u64 = 20;
/// The longest time of the honest neighbour: enough operations beside it to tell their slowest percent.
const HONEST_MAX: Duration = Duration::from_secs(600);
/// A try of so long is one that may take its time for everything.
const LONG: Duration = Duration::from_secs(600);
/// Connections of a neighbour, and in a long try.
const CONNECTIONS: usize = 256;
const CONNECTIONS_LONG: usize = 6000;
/// The pause between two operations of the client that is measured.
const PAUSE: Duration = Duration::from_millis(1);
/// An operation that takes longer is told of at once.
const TOLD_MIN: Duration = Duration::from_secs(1);
/// Both volumes' size.
const VOLUME_SIZE: &str = "128MiB";
/// How often an OSD logs that it refuses connections, at most.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// What a block holds that was written so often.
fn contents(block: u64, stamp: u32) -> Vec<u8> {
    match stamp {
        0 => vec![0; BLOCK_BYTES],
        _ => base::hash::mix(block << 32 | u64::from(stamp)).to_le_bytes().repeat(BLOCK_BYTES / 8),
    }
}

/// The client that is measured, and all that it wrote.
struct Good {
    client: NbdClient,
    random: Random,
    /// How often each block was written.
    stamps: Vec<u32>,
}

impl Good {
    fn new(client: NbdClient, random: Random) -> Good {
        let stamps = vec![0; (client.bytes / BLOCK) as usize];
        Good { client, random, stamps }
    }

    /// Writes some blocks, or reads and verifies some. Answers how long that took.
    fn step(&mut self) -> Duration {
        let is_write = self.random.below(2) == 0;
        let count = 1 + self.random.below(if is_write { 4 } else { 16 });
        // Often where something was written.
        let within = if self.random.below(2) == 0 { 64 } else { self.stamps.len() as u64 };
        let first = self.random.below(within - count + 1);
        if !is_write {
            return self.verify(first, count);
        }
        let mut data = Vec::new();
        for block in first..first + count {
            self.stamps[block as usize] += 1;
            data.extend(contents(block, self.stamps[block as usize]));
        }
        let began = Instant::now();
        let written = self.client.write(first * BLOCK, &data);
        written.unwrap_or_else(|refusal| panic!("a write failed: {refusal:?}"));
        began.elapsed()
    }

    /// Reads blocks, which must hold what was written last. Answers how long that took.
    fn verify(&mut self, first: u64, count: u64) -> Duration {
        let began = Instant::now();
        let read = self.client.read(first * BLOCK, (count * BLOCK) as u32);
        let took = began.elapsed();
        let read = read.unwrap_or_else(|refusal| panic!("a read failed: {refusal:?}"));
        for (block, data) in (first..).zip(read.chunks(BLOCK_BYTES)) {
            let stamp = self.stamps[block as usize];
            assert!(data == contents(block, stamp), "block {block} does not hold its write {stamp}");
        }
        took
    }

    /// Goes on until it is enough. Answers what it wrote, and of operations that began in each phase how long they took, and
    /// when they began.
    fn work(mut self, phase: &AtomicUsize, enough: &AtomicBool) -> (Vec<u32>, ByPhase<Vec<Took>>) {
        let mut took = ByPhase::<Vec<Took>>::default();
        while !enough.load(Ordering::Relaxed) {
            let (at, began_us) = (phase.load(Ordering::Relaxed), now_us());
            let lasted = self.step();
            if lasted > TOLD_MIN {
                eprintln!("an operation that began at {began_us} us took {lasted:.1?}");
            }
            took[at].push((lasted, began_us));
            std::thread::sleep(PAUSE);
        }
        (self.stamps, took)
    }
}

/// The cluster's processes.
struct Processes {
    /// The nodes', and the one that keeps them running and has the registry.
    nodes: [i32; 3],
    up: i32,
}

impl Processes {
    fn of(pond: &Pond) -> Processes {
        let nodes = pond.node_pids().try_into().expect("there are three nodes");
        Processes { nodes, up: pond.up_pid().expect("the cluster runs") }
    }

    /// Asserts that all run, and notes how much memory they have.
    fn look(&self, memory_max: &mut [u64; 4]) {
        for (pid, most) in self.nodes.iter().chain([&self.up]).zip(memory_max) {
            assert!(runs(*pid), "process {pid} of the cluster ended");
            let status = Process::new(*pid).and_then(|process| process.status());
            let memory = status.ok().and_then(|status| status.vmrss).unwrap_or(0) << 10;
            *most = memory.max(*most);
        }
    }

    /// How much memory the kernel has for TCP, for whomever, in bytes.
    fn tcp_memory() -> u64 {
        let told = std::fs::read_to_string("/proc/net/sockstat").expect("the kernel tells of sockets");
        let of_tcp = told.lines().find(|line| line.starts_with("TCP:")).expect("it has TCP");
        let pages = of_tcp.rsplit(' ').next().and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("it counts pages") * procfs::page_size()
    }

    /// Seconds of the processor that all nodes have had, and their neighbour, if there is one.
    fn cpu_seconds(&self, neighbour: Option<i32>) -> [f64; 2] {
        let of = |pid: i32| {
            let stat = Process::new(pid).and_then(|process| process.stat());
            let stat = stat.expect("a process that runs has figures");
            (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
        };
        [self.nodes.iter().copied().map(of).sum(), neighbour.map_or(0.0, of)]
    }
}

/// Measures one phase after the other, while a client works in a thread that ends with `T`.
struct Measuring<'a, T> {
    client: ScopedJoinHandle<'a, T>,
    processes: Processes,
    /// What goes on, for the client.
    phase: &'a AtomicUsize,
    /// Which half of the time it is.
    half: usize,
    measured: Measured,
}

impl<T> Measuring<'_, T> {
    /// Measures for so long; the client must go on.
    fn measure(&mut self, now: Phase, time: Duration, neighbour: Option<i32>) {
        let before = self.processes.cpu_seconds(neighbour);
        self.phase.store(now as usize, Ordering::Relaxed);
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert!(!self.client.is_finished(), "the client of the other pool ended");
            self.processes.look(&mut self.measured.memory_max[self.half]);
            self.measured.tcp_memory_max = self.measured.tcp_memory_max.max(Processes::tcp_memory());
            std::thread::sleep(Duration::from_millis(50));
        }
        self.phase.store(Phase::Between as usize, Ordering::Relaxed);
        self.measured.seconds[now as usize] += time.as_secs_f64();
        let after = self.processes.cpu_seconds(neighbour);
        for (sum, (before, after)) in self.measured.cpu[now as usize].iter_mut().zip(before.iter().zip(after))
        {
            *sum += after - before;
        }
    }
}

/// Asserts that of all connections that the OSDs refused few lines tell, in the time since they were started.
fn assert_logged_in_sum(pond: &Pond, started: Instant) {
    for node in 0..3 {
        let log = pond.log(&format!("node.{node}.log"));
        let tells = |line: &&str| line.contains("node::shard: ") && line.contains("refused");
        let lines = log.lines().filter(tells).count() as u64;
        let most = 1 + started.elapsed().as_secs() / LOG_PAUSE.as_secs();
        assert!((1..=most).contains(&lines), "node.{node} tells of it in {lines} lines, {most} at most");
    }
}

/// A cluster with two pools, each with a volume and a key, and a server of the one volume.
struct Scene {
    pond: Pond,
    door: Door,
    key: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let pond = Pond::start("1GiB");
        let mut keys = Vec::new();
        for pool in ["good", "bad"] {
            pond.run(&["pool", "create", pool]);
            pond.run(&["volume", "create", pool, VOLUME_SIZE, "--pool", pool]);
            let file = pond.scratch().join(format!("{pool}.key"));
            pond.run(&["auth", "add", pool, "--pool", pool, "--rw", "--out", path(&file)]);
            keys.push(file);
        }
        becomes_whole(&pond);
        let door = pond.serve_with("good", &["--key", path(&keys[0])]);
        let key = keys.remove(1);
        Scene { pond, door, key }
    }

    /// The client that the server of the volume is.
    fn victim(&self) -> ClientId {
        let info = self.pond.json(&["volume", "info", "good"]);
        let client = info["attachments"][0]["client"].as_str().expect("it is attached");
        ClientId(u64::from_str_radix(client, 16).expect("it is a number"))
    }

    /// Has neighbours in turns, the hostile one for so long in all, while the client works. Answers what it wrote, and what was
    /// measured.
    fn has_neighbours(&self, time: Duration, random: &mut Random) -> (Vec<u32>, Measured) {
        let is_long = time >= LONG;
        let connections = if is_long { CONNECTIONS_LONG } else { CONNECTIONS };
        allow_open_files(2 * connections as u64);
        wait_until("every node serves figures", || self.pond.http_addresses().len() == 3);
        let mut task = Task {
            is_hostile: false,
            dir: self.pond.dir(),
            key: self.key.clone(),
            seed: 0,
            connections,
            is_long,
            only: None,
            victim: self.victim(),
            http: self.pond.http_addresses(),
        };
        let turns = (time.as_secs() / 60).max(2) as u32;
        let honest_time = (time / 2).min(HONEST_MAX);
        eprintln!("{time:?} of hostility in {turns} turns, {connections} connections, {WORKERS} threads");
        let (phase, enough) = (AtomicUsize::new(Phase::Between as usize), AtomicBool::new(false));
        let good = Good::new(self.door.client(), random.fork());
        std::thread::scope(|scope| {
            // Also when something here panics: the scope waits for the client.
            let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
            let mut measuring = Measuring {
                client: scope.spawn(|| good.work(&phase, &enough)),
                processes: Processes::of(&self.pond),
                phase: &phase,
                half: 0,
                measured: Measured { is_long, ..Measured::default() },
            };
            measuring.measure(Phase::Alone, time.min(HONEST_MAX) / 10, None);
            for turn in 0..turns {
                measuring.half = usize::from(turn >= turns / 2);
                let single = (is_long && turn % 2 == 1).then_some(turn as usize / 2 % ACTS.len());
                let hostile = if single.is_some() { Phase::Single } else { Phase::Hostile };
                if is_long {
                    let does = single.map_or("does anything", |act| ACTS[act].0);
                    eprintln!("turn {turn}: the hostile one {does}; {:?}", measuring.measured.memory_max);
                }
                for (now, lasts) in [(Phase::Honest, honest_time / turns), (hostile, time / turns)] {
                    let is_hostile = now != Phase::Honest;
                    task = Task { is_hostile, seed: random.next(), only: single, ..task };
                    let (neighbour, began_us) = (Neighbour::start(&task), now_us());
                    measuring.measure(now, lasts, Some(neighbour.pid()));
                    let was_alone = single.filter(|_| is_hostile).map(|act| (act, began_us..now_us()));
                    measuring.measured.singles.extend(was_alone);
                    measuring.measured.did.add(neighbour.ends());
                }
            }
            enough.store(true, Ordering::Relaxed);
            let Measuring { client, measured, .. } = measuring;
            let (stamps, took) = client.join().expect("the client of the other pool goes on");
            (stamps, Measured { took, ..measured })
        })
    }

    /// Asserts that the volume holds that, and all its copies do.
    fn assert_unharmed(self, stamps: Vec<u32>, random: Random) {
        let Scene { pond, door, key } = self;
        wait_until("all is well", || pond.status()["health"]["level"] == "ok");
        becomes_whole(&pond);
        let mut again = Good { client: door.client(), random, stamps };
        let blocks = again.stamps.len() as u64;
        for first in (0..blocks).step_by(256) {
            again.verify(first, 256.min(blocks - first));
        }
        let written = again.stamps.iter().filter(|stamp| **stamp > 0).count();
        drop((again, door));
        let scrubs = || pond.list(&["scrub", "ls"]);
        let map = Tenant::new(&pond.dir(), &key).map;
        let (pool, _) = map.pool_named("good").expect("the pool is there");
        let of_good = |scrub: &&serde_json::Value| {
            scrub["pg"].as_str().is_some_and(|pg| pg.starts_with(&format!("{}.", pool.0)))
        };
        let newest = scrubs().iter().filter_map(|scrub| scrub["deep_ms"].as_u64()).max().unwrap_or(0);
        pond.run(&["scrub", "start", "--deep", "--pool", "good"]);
        wait_until("the pool is scrubbed deeply", || {
            scrubs()
                .iter()
                .filter(of_good)
                .all(|scrub| scrub["deep_ms"].as_u64() > Some(newest) && scrub["state"] == "-")
        });
        let found: u64 =
            scrubs().iter().filter(of_good).map(|scrub| scrub["found"].as_u64().expect("a count")).sum();
        assert_eq!(found, 0, "nothing of the pool was damaged");
        replicas_are_equal(&pond, written as u64);
    }
}

/// Allows so many open files, after the cluster was started, which raises its own limit.
fn allow_open_files(count: u64) {
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).expect("so much is allowed");
    assert!(limit > count, "`ulimit -Hn` allows {limit} open files only");
}

#[test]
fn who_does_what_he_can_with_the_key_of_one_pool_harms_no_other() {
    if be_one_if_asked() {
        return;
    }
    let seconds = std::env::var("MILLPOND_HOSTILE_SECONDS")
        .map_or(SECONDS, |text| text.parse().expect("MILLPOND_HOSTILE_SECONDS is a number of seconds"));
    let mut random = Random::seeded();
    let started = Instant::now();
    let scene = Scene::new();
    let (stamps, mut measured) = scene.has_neighbours(Duration::from_secs(seconds.max(4)), &mut random);
    measured.is_harmless();
    assert_logged_in_sum(&scene.pond, started);
    scene.assert_unharmed(stamps, random);
}
