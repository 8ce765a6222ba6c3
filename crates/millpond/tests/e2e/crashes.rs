//! Processes killed at any moment: what was acknowledged is there afterwards, whole, and nothing older.

use crate::common::door::Door;
use crate::common::nbd::{NbdClient, command};
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::whole::{BLOCK, OSDS, node_of};
use crate::common::{OnDrop, wait_until};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::process::signal;

const ROUNDS: usize = 20;
/// The unit that has one write in flight at most, in blocks.
const RUN_BLOCKS: u64 = 8;
/// Runs lie this far apart, in bytes: they fall to all placement groups, and cross borders of objects.
const RUN_STRIDE: u64 = (512 << 10) + 3 * BLOCK;
const RUNS: u64 = 400;
/// Requests in flight.
const DEPTH: usize = 24;

/// What is known of a block: it holds `acknowledged`, or `sent` if that is newer.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    sent: u64,
}

/// Blocks of a volume that say themselves which write they are from.
struct Stamps {
    known: Vec<Known>,
    next: u64,
    random: Random,
    acknowledged_total: u64,
}

struct InFlight {
    first: usize,
    count: usize,
    stamp: u64,
}

impl Stamps {
    fn new() -> Stamps {
        let known = vec![Known::default(); (RUNS * RUN_BLOCKS) as usize];
        Stamps { known, next: 1, random: Random::seeded(), acknowledged_total: 0 }
    }

    /// Writes until the connection breaks or `enough` is set; an error that the server answers fails the test.
    fn write(&mut self, client: &mut NbdClient, enough: &AtomicBool) -> std::io::Result<()> {
        let mut in_flight: HashMap<u64, InFlight> = HashMap::new();
        let mut busy = vec![false; RUNS as usize];
        while !enough.load(Ordering::Relaxed) || !in_flight.is_empty() {
            while in_flight.len() < DEPTH && !enough.load(Ordering::Relaxed) {
                let run = self.random.below(RUNS);
                if busy[run as usize] {
                    continue;
                }
                let from = self.random.below(RUN_BLOCKS);
                let count = 1 + self.random.below(RUN_BLOCKS - from);
                let (first, stamp) = ((run * RUN_BLOCKS + from) as usize, self.next);
                self.next += 1;
                busy[run as usize] = true;
                let mut data = Vec::new();
                for block in first..first + count as usize {
                    self.known[block].sent = stamp;
                    data.extend_from_slice(&content(block, stamp));
                }
                let length = data.len() as u32;
                let cookie = client.send(command::WRITE, 0, offset(first), length, &data)?;
                in_flight.insert(cookie, InFlight { first, count: count as usize, stamp });
            }
            let reply = client.receive()?;
            let write = in_flight.remove(&reply.cookie).expect("a reply belongs to a request");
            reply.result.unwrap_or_else(|refusal| panic!("a write failed: {refusal:?}"));
            busy[write.first / RUN_BLOCKS as usize] = false;
            for block in write.first..write.first + write.count {
                self.known[block].acknowledged = write.stamp;
            }
            self.acknowledged_total += 1;
        }
        Ok(())
    }

    /// Reads every block and holds it against what is known; what is read is what holds from then on.
    fn check(&mut self, client: &mut NbdClient) {
        for run in 0..RUNS {
            let first = (run * RUN_BLOCKS) as usize;
            let data = client.read(offset(first), (RUN_BLOCKS * BLOCK) as u32);
            let data = data.unwrap_or_else(|refusal| panic!("run {run} cannot be read: {refusal:?}"));
            for (index, bytes) in data.chunks(BLOCK as usize).enumerate() {
                let block = first + index;
                let Known { acknowledged, sent } = self.known[block];
                let found = stamp_of(bytes);
                assert!(
                    found == acknowledged || found == sent,
                    "block {block} at {}: holds write {found}, but {acknowledged} was acknowledged and \
                     {sent} was sent last",
                    offset(block)
                );
                assert!(bytes == content(block, found), "block {block} is torn or wrong in write {found}");
                self.known[block] = Known { acknowledged: found, sent: found };
            }
        }
    }
}

fn offset(block: usize) -> u64 {
    let block = block as u64;
    block / RUN_BLOCKS * RUN_STRIDE + block % RUN_BLOCKS * BLOCK
}

fn stamp_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("a block has eight bytes"))
}

/// Never written is zeros; else each sector says write, block and sector, so that a tear shows.
fn content(block: usize, stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if stamp != 0 {
        for (sector, bytes) in bytes.chunks_mut(512).enumerate() {
            bytes[..8].copy_from_slice(&stamp.to_le_bytes());
            bytes[8..16].copy_from_slice(&(block as u64).to_le_bytes());
            bytes[16] = sector as u8;
            bytes[17..].fill(stamp as u8 ^ 0x5a);
        }
    }
    bytes
}

fn pause(random: &mut Random) -> Duration {
    Duration::from_millis(20 + random.below(500))
}

#[test]
fn every_acknowledged_write_survives_twenty_kills_of_all_processes() {
    let pond = Pond::start("1GiB");
    pond.volume("v", "256MiB");
    let mut stamps = Stamps::new();
    let mut random = Random::seeded();
    for round in 0..ROUNDS {
        let door = pond.serve_shared("v");
        let mut client = door.client();
        stamps.check(&mut client);
        let before = stamps.acknowledged_total;
        let (moment, rotation) = (pause(&mut random), random.below(5) as usize);
        std::thread::scope(|scope| {
            let never = AtomicBool::new(false);
            let writer = scope.spawn(|| {
                let never = never;
                let error = stamps.write(&mut client, &never).expect_err("nobody says that it is enough");
                assert!(error.kind() != std::io::ErrorKind::InvalidData, "{error}");
            });
            std::thread::sleep(moment);
            pond.kill_all(&[&door], |pids| pids.rotate_left(rotation));
            writer.join().expect("the writer did not fail");
        });
        eprintln!("round {round}: {} writes acknowledged in {moment:?}", stamps.acknowledged_total - before);
        pond.up();
    }
    let door = pond.serve_shared("v");
    stamps.check(&mut door.client());
    assert!(
        stamps.acknowledged_total > 20 * ROUNDS as u64,
        "only {} writes were tested",
        stamps.acknowledged_total
    );
}

#[test]
fn a_node_that_is_killed_comes_back_and_no_client_sees_an_error() {
    let pond = Pond::start("1GiB");
    pond.volume("v", "256MiB");
    let mut door = pond.serve("v");
    let mut client = door.client();
    let mut stamps = Stamps::new();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| stamps.write(&mut client, &enough).expect("the connection holds"));
        // The writer ends even if that panics: else the scope would wait for it for ever.
        let ends = OnDrop(|| enough.store(true, Ordering::Relaxed));
        kill_each_node(&pond, &writer);
        drop(ends);
        writer.join().expect("the writer did not fail");
    });
    assert!(door.runs(), "the NBD server ended");
    stamps.check(&mut door.client());
    reads_go_on(&pond, &door, &mut stamps);
}

/// Kills one node after the other while writes go on, and sees status name each.
fn kill_each_node(pond: &Pond, writer: &std::thread::ScopedJoinHandle<'_, ()>) {
    for osd in 0..OSDS {
        assert!(!writer.is_finished(), "the writer ended early");
        let process = node_of(pond, osd);
        // Where it does not find its drive it does not come back.
        let (drive, away) = (pond.osd_file(osd), pond.scratch().join("away.img"));
        std::fs::rename(&drive, &away).expect("the drive's file can be moved");
        signal(process, Signal::SIGKILL);
        wait_until("status names what is down", || {
            pond.status()["health"]["problems"].to_string().contains(&format!("osd.{osd}"))
        });
        std::fs::rename(&away, &drive).expect("the drive's file can be moved back");
        wait_until("it is back", || {
            let status = pond.status();
            let view = &status["osds"][osd as usize];
            view["up"] == true && view["pid"].as_i64() != Some(i64::from(process))
        });
        pond.becomes_active();
    }
}

/// A node is killed between writes: reads wait for it, and are right.
fn reads_go_on(pond: &Pond, door: &Door, stamps: &mut Stamps) {
    let pids = pond.node_pids();
    assert_eq!(pids.len(), 3, "not every node runs");
    signal(pids[0], Signal::SIGKILL);
    stamps.check(&mut door.client());
    wait_until("the node is back", || pond.node_pids().len() == 3);
}
