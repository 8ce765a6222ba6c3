//! Nodes that are killed or stand still under load: clients see neither an error nor anything old, the cluster becomes
//! whole again by itself, and then all replicas are the same.

mod common;

use common::nbd::{NbdClient, command};
use common::pond::Pond;
use common::random::Random;
use common::{PATIENCE, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::{Device, DeviceError, Expected, Options, Store};

const OSDS: u32 = 3;
const BLOCK: u64 = 4096;
/// What a run of fio may take. It writes and verifies 32 MiB, and waits out a few failures meanwhile.
const FIO_LIMIT: Duration = Duration::from_secs(150);

#[test]
fn a_node_that_is_killed_comes_back_and_catches_up_while_fio_verifies() {
    fio_notices_nothing_of(|pond| {
        // The second time it stays away longer: `up` doubles the pause before it starts a node again.
        for osd in (0..OSDS).chain(0..OSDS) {
            every_epoch_ends(pond, || signal(node_of(pond, osd), Signal::SIGKILL));
            becomes_whole(pond);
        }
    });
}

#[test]
fn a_node_that_stands_still_for_four_seconds_catches_up_while_fio_verifies() {
    fio_notices_nothing_of(|pond| {
        for osd in 0..OSDS {
            every_epoch_ends(pond, || {
                let frozen = Frozen::new(node_of(pond, osd));
                std::thread::sleep(Duration::from_secs(4));
                drop(frozen);
            });
            becomes_whole(pond);
        }
    });
}

#[test]
fn two_or_all_nodes_are_killed_at_once_or_one_too_soon_after_another_while_fio_verifies() {
    fio_notices_nothing_of(|pond| {
        let mut random = Random::seeded();
        let kill_at_once = |osds: &[u32]| {
            every_epoch_ends(pond, || {
                let pids: Vec<i32> = osds.iter().map(|osd| node_of(pond, *osd)).collect();
                pids.into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
            });
            becomes_whole(pond);
        };
        kill_at_once(&[0, 1]);
        kill_at_once(&[0, 1, 2]);
        // Whoever comes back is still catching up when the next one goes.
        every_epoch_ends(pond, || {
            for osd in [1, 2] {
                signal(node_of(pond, osd), Signal::SIGKILL);
                std::thread::sleep(Duration::from_millis(300 + random.below(2000)));
            }
        });
        becomes_whole(pond);
    });
}

/// Runs fio on a new cluster, does `trouble` to it meanwhile, and looks at everything afterwards.
fn fio_notices_nothing_of(trouble: impl FnOnce(&Pond)) {
    let pond = Pond::start("3GiB");
    pond.volume("v", "1GiB");
    let mut door = pond.serve("v");
    becomes_whole(&pond);
    let enough = AtomicBool::new(false);
    let jobs: Vec<FioJob> = std::thread::scope(|scope| {
        // Also when `trouble` panics: the scope waits for its threads.
        let _at_the_end = SetOnDrop(&enough);
        let verifying = [0, 1].map(|half| {
            let (scratch, uri, enough) = (pond.scratch(), door.uri(), &enough);
            scope.spawn(move || verify_until(enough, scratch, &uri, half))
        });
        trouble(&pond);
        assert!(verifying.iter().all(|thread| !thread.is_finished()), "fio ended early");
        enough.store(true, Ordering::Relaxed);
        verifying.into_iter().flat_map(|thread| thread.join().expect("fio found nothing")).collect()
    });
    assert!(door.runs(), "the NBD server ended");
    becomes_whole(&pond);
    for job in &jobs {
        // From the seed of the last job of each part fio knows what it must find.
        job.run(pond.scratch(), &door.uri(), &["--verify_only"]);
    }
    drop(door);
    replicas_are_equal(&pond, jobs.len() as u64 * FioJob::BYTES / BLOCK);
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes and verifies, again and again. Answers the last job of each part of the half.
fn verify_until(enough: &AtomicBool, scratch: &Path, uri: &str, half: u64) -> Vec<FioJob> {
    let mut random = Random::seeded();
    let mut jobs = BTreeMap::new();
    let mut count = 0;
    while !enough.load(Ordering::Relaxed) {
        // One part after the other, so that what a member missed is not soon written over.
        let job = FioJob { half, part: count % FioJob::PARTS, seed: random.below(1 << 30) };
        // Verifying not only at the end of a job: reads and writes are mixed at any time.
        job.run(scratch, uri, &["--verify_backlog=512"]);
        jobs.insert(job.part, job);
        count += 1;
    }
    eprintln!("fio wrote and verified {count} parts of half {half}");
    jobs.into_values().collect()
}

/// One run of fio: whole blocks in the first half of the volume, anything in the second.
struct FioJob {
    half: u64,
    part: u64,
    seed: u64,
}

impl FioJob {
    const BYTES: u64 = 32 << 20;
    const PARTS: u64 = 16;

    fn run(&self, scratch: &Path, uri: &str, more: &[&str]) {
        let sizes = if self.half == 0 { "--bs=4k" } else { "--bsrange=512-128k" };
        let mut command = Command::new("fio");
        command
            .args(["--name=failover", "--ioengine=nbd", "--rw=randwrite", "--iodepth=16", sizes])
            .args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--randrepeat=0"])
            .arg(format!("--uri={uri}"))
            .arg(format!("--offset={}", (self.half * Self::PARTS + self.part) * Self::BYTES))
            .arg(format!("--size={}", Self::BYTES))
            .arg(format!("--randseed={}", self.seed))
            .args(more);
        Program::start(command, &scratch.join(format!("fio.{}.log", self.half))).succeeds();
    }
}

/// A program that is killed with the test.
struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    fn start(mut command: Command, log: &Path) -> Program {
        let output = File::create(log).expect("a log can be made");
        let copy = output.try_clone().expect("a descriptor can be doubled");
        let child = command.stdin(Stdio::null()).stdout(output).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("fio: {error}; `make deps` installs it"));
        Program { child, log: log.to_owned() }
    }

    #[track_caller]
    fn succeeds(mut self) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            assert!(started.elapsed() < FIO_LIMIT, "fio hangs: {}", self.words());
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "fio: {status}: {}", self.words());
    }

    fn words(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("the process runs");
}

/// A process that stands still until this is dropped.
struct Frozen(i32);

impl Frozen {
    fn new(pid: i32) -> Frozen {
        signal(pid, Signal::SIGSTOP);
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0), Signal::SIGCONT);
    }
}

/// The process that runs an OSD.
fn node_of(pond: &Pond, osd: u32) -> i32 {
    let mut found = None;
    // Just after a start the status may still have the process before.
    wait_until("the OSD's process is known", || {
        let pid = pond.status()["osds"][osd as usize]["pid"].as_i64();
        found = pid.map(|pid| pid as i32).filter(|pid| pond.node_pids().contains(pid));
        found.is_some()
    });
    found.expect("it was waited for")
}

/// `pg dump --json`.
fn groups(pond: &Pond) -> Vec<Value> {
    serde_json::from_str(&pond.run(&["pg", "dump", "--json"])).expect("the groups are JSON")
}

/// Asserts that `trouble` ends the epoch of every group: if not, nothing was tested.
fn every_epoch_ends(pond: &Pond, trouble: impl FnOnce()) {
    let epochs = || -> Vec<u64> {
        groups(pond).iter().map(|group| group["epoch"].as_u64().expect("an epoch is a number")).collect()
    };
    let before = epochs();
    trouble();
    wait_until("every group has a new epoch", || {
        epochs().iter().zip(&before).all(|(now, before)| now > before)
    });
}

/// Waits until every group is active with all members in sync.
#[track_caller]
fn becomes_whole(pond: &Pond) {
    let started = Instant::now();
    loop {
        let groups = groups(pond);
        let is_whole = |group: &Value| {
            let count = |field: &str| group[field].as_array().map(Vec::len);
            group["state"] == "active"
                && count("in_sync") == Some(OSDS as usize)
                && count("learners") == Some(0)
        };
        let lacking: Vec<&Value> = groups.iter().filter(|group| !is_whole(group)).collect();
        if lacking.is_empty() && !groups.is_empty() {
            eprintln!("whole after {:.1} s", started.elapsed().as_secs_f64());
            return;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{} of {} groups are not whole after {PATIENCE:?}, the first: {}",
            lacking.len(),
            groups.len(),
            lacking.first().map_or_else(String::new, ToString::to_string)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// An OSD's file, as it is after a stop. What opening a store writes is left out: nothing reads it again.
struct Image(File);

impl Image {
    fn of(pond: &Pond, osd: u32) -> Image {
        Image(File::open(pond.osd_file(osd)).expect("the drive's file is there"))
    }
}

impl Device for Image {
    fn bytes(&self) -> u64 {
        self.0.metadata().expect("a file has a size").len()
    }
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_exact_at(into, offset).map_err(|error| DeviceError(error.to_string()))
    }
    fn write(&mut self, _offset: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Which blocks of which object an OSD has, and their checksums.
type Content = BTreeMap<base::ObjectKey, BTreeMap<u16, u32>>;

/// What an OSD holds; asserts that the bytes on its drive are those of the checksums.
fn content_of(pond: &Pond, osd: u32) -> Content {
    let mut image = Image::of(pond, osd);
    let store = Store::open(&mut image, &Expected::default(), Options::default());
    let store = store.unwrap_or_else(|error| panic!("osd.{osd}: {error}"));
    store.verify().unwrap_or_else(|error| panic!("osd.{osd}: {error}"));
    let mut content = Content::new();
    for key in store.objects() {
        let blocks = content.entry(key).or_default();
        store.for_each_block(&key, |block, checksum| {
            blocks.insert(block, checksum);
        });
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        store.lookup(&key, 0, base::OBJECT_BLOCKS as u16, &mut extents, &mut checksums);
        for extent in extents {
            let Some(location) = extent.location else { continue };
            let mut data = vec![0; usize::from(extent.block_count) * BLOCK as usize];
            image.read(u64::from(location.0) * BLOCK, &mut data).expect("the drive's file can be read");
            for (block, data) in (extent.first_block..).zip(data.chunks(BLOCK as usize)) {
                let found = base::crc32c(data);
                assert_eq!(Some(&found), blocks.get(&block), "osd.{osd}: {key} block {block} on the drive");
            }
        }
    }
    content
}

/// Stops the cluster, and compares every block of every object on all OSDs.
fn replicas_are_equal(pond: &Pond, blocks_min: u64) {
    pond.down();
    let contents: Vec<Content> = (0..OSDS).map(|osd| content_of(pond, osd)).collect();
    let count: usize = contents[0].values().map(BTreeMap::len).sum();
    assert!(count as u64 >= blocks_min, "only {count} blocks were compared");
    for (osd, content) in contents.iter().enumerate().skip(1) {
        let keys = contents[0].keys().chain(content.keys());
        let different: Vec<_> = keys.filter(|key| contents[0].get(key) != content.get(key)).collect();
        let Some(key) = different.first() else { continue };
        let blocks = |content: &Content| content.get(key).cloned().unwrap_or_default();
        let (one, other) = (blocks(&contents[0]), blocks(content));
        let differing = (0..base::OBJECT_BLOCKS as u16).filter(|block| one.get(block) != other.get(block));
        panic!(
            "osd.0 and osd.{osd} differ in {} objects; the first is {key}, blocks {:?}",
            different.len(),
            differing.collect::<Vec<_>>()
        );
    }
    eprintln!("{count} blocks are the same on {OSDS} OSDs");
}

/// Blocks that are stamped, over all groups.
const STAMPED: u64 = 256;
/// They lie this far apart, in bytes.
const STRIDE: u64 = (1 << 20) - 5 * BLOCK;
/// Requests in flight.
const DEPTH: usize = 32;
/// A server of a volume that stood still for longer may have lost its attachment, and then refuses.
const ATTACHMENT_HOLDS: Duration = Duration::from_millis(6500);

fn stamped(block: u64, stamp: u64) -> Vec<u8> {
    [stamp, block].map(u64::to_le_bytes).concat().repeat(BLOCK as usize / 16)
}

/// Stamps every block anew, and waits until all of it is acknowledged.
fn stamp_all(client: &mut NbdClient, stamp: u64) {
    let mut in_flight = 0;
    for block in 0..STAMPED {
        let data = stamped(block, stamp);
        client.send(command::WRITE, 0, block * STRIDE, BLOCK as u32, &data).expect("the connection holds");
        in_flight += 1;
        if in_flight == DEPTH {
            written(client);
            in_flight -= 1;
        }
    }
    (0..in_flight).for_each(|_| written(client));
}

fn written(client: &mut NbdClient) {
    let reply = client.receive().expect("the connection holds");
    reply.result.unwrap_or_else(|refusal| panic!("a write failed: {refusal:?}"));
}

/// Reads of every block that are under way.
struct Reads(HashMap<u64, u64>);

impl Reads {
    fn send(client: &mut NbdClient) -> Reads {
        let send = |block| {
            let cookie = client.send(command::READ, 0, block * STRIDE, BLOCK as u32, &[]);
            (cookie.expect("the connection holds"), block)
        };
        Reads((0..STAMPED).map(send).collect())
    }

    /// Asserts that every answer holds this stamp, and counts those that are refusals instead.
    fn all_hold(mut self, client: &mut NbdClient, who: &str, stamp: u64) -> usize {
        let mut refused = 0;
        while !self.0.is_empty() {
            let reply = client.receive().expect("the connection holds");
            let block = self.0.remove(&reply.cookie).expect("a reply belongs to a request");
            match reply.result {
                Ok(data) => {
                    let found = u64::from_le_bytes(data[..8].try_into().expect("a block has eight bytes"));
                    assert!(
                        data == stamped(block, stamp),
                        "{who} read stamp {found} from block {block}, where {stamp} was acknowledged"
                    );
                }
                Err(_) => refused += 1,
            }
        }
        refused
    }
}

#[test]
fn a_primary_that_was_replaced_while_it_stood_still_serves_nothing_old() {
    let pond = Pond::start("512MiB");
    pond.volume("v", "256MiB");
    let mut door = pond.serve_shared("v");
    // Stands still together with the node, and goes on with the old map and an open connection to the old primary.
    let late = pond.serve_shared_at("v", "late");
    becomes_whole(&pond);
    let (mut client, mut late_client) = (door.client(), late.client());
    let mut stamp = 1;
    stamp_all(&mut client, stamp);
    for osd in 0..OSDS {
        assert_eq!(Reads::send(&mut client).all_hold(&mut client, "the client", stamp), 0);
        assert_eq!(Reads::send(&mut late_client).all_hold(&mut late_client, "the late client", stamp), 0);
        let led = led_by(&pond, osd);
        let began = Instant::now();
        let frozen = [Frozen::new(late.pid()), Frozen::new(node_of(&pond, osd))];
        stamp += 1;
        stamp_all(&mut client, stamp);
        wait_until("the groups of the node are taken over", || led_by(&pond, osd) == 0);
        eprintln!("osd.{osd} led {led} groups; taken over and stamped after {:?}", began.elapsed());
        // Sent now, after all of it was acknowledged, and heard by the late server only when it goes on.
        let mut reads = Reads::send(&mut late_client);
        let still = began.elapsed();
        let [late_frozen, node_frozen] = frozen;
        match osd {
            // The node first: it may not know yet what became of it when the requests arrive.
            0 => drop((node_frozen, late_frozen)),
            // The server first: the requests are there when the node goes on.
            1 => drop((late_frozen, node_frozen)),
            _ => {
                drop(late_frozen);
                std::thread::sleep(Duration::from_millis(2));
                drop(node_frozen);
            }
        }
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            let refused = reads.all_hold(&mut late_client, "the late client", stamp);
            assert!(refused == 0 || still > ATTACHMENT_HOLDS, "{refused} reads were refused after {still:?}");
            assert_eq!(Reads::send(&mut client).all_hold(&mut client, "the client", stamp), 0);
            reads = Reads::send(&mut late_client);
        }
        reads.all_hold(&mut late_client, "the late client", stamp);
        becomes_whole(&pond);
    }
    assert!(door.runs(), "the NBD server ended");
    assert_eq!(Reads::send(&mut client).all_hold(&mut client, "the client", stamp), 0);
    drop((client, late_client, door, late));
    replicas_are_equal(&pond, STAMPED);
}

/// How many groups an OSD is primary of.
fn led_by(pond: &Pond, osd: u32) -> usize {
    groups(pond).iter().filter(|group| group["primary"] == osd).count()
}
