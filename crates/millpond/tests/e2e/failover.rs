//! Nodes that are killed or stand still under load: clients see neither an error nor anything old, the cluster becomes
//! whole again by itself, and then all replicas are the same.

use crate::common::fio::fio_notices_nothing_of;
use crate::common::nbd::{NbdClient, command};
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::replicas::replicas_are_equal;
use crate::common::whole::{
    BLOCK, OSDS, becomes_whole, epochs, every_epoch_ends, goes_on_in, groups, node_of, some_epoch_ends,
    without,
};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use testkit::process::{Frozen, signal};

#[test]
fn a_node_that_is_killed_comes_back_and_catches_up_while_fio_verifies() {
    fio_notices_nothing_of(&Pond::start("3GiB"), |pond| {
        // The second time it stays away longer: `up` doubles the pause before it starts a node again.
        for osd in (0..OSDS).chain(0..OSDS) {
            every_epoch_ends(pond, || signal(node_of(pond, osd), Signal::SIGKILL));
            becomes_whole(pond);
        }
    });
}

#[test]
fn nodes_that_stand_still_one_by_one_or_together_catch_up_while_fio_verifies() {
    fio_notices_nothing_of(&Pond::start("3GiB"), |pond| {
        for osd in 0..OSDS {
            every_epoch_ends(pond, || {
                let frozen = Frozen::new(node_of(pond, osd));
                std::thread::sleep(Duration::from_secs(4));
                drop(frozen);
            });
            becomes_whole(pond);
        }
        // Too few are left to go on without them; then nobody is, for longer than the registry holds them for up.
        for (osds, still) in [(0..2, Duration::from_secs(4)), (0..OSDS, Duration::from_secs(10))] {
            let pids: Vec<i32> = osds.map(|osd| node_of(pond, osd)).collect();
            some_epoch_ends(pond, || {
                let frozen: Vec<Frozen> = pids.iter().map(|pid| Frozen::new(*pid)).collect();
                std::thread::sleep(still);
                drop(frozen);
            });
            becomes_whole(pond);
            assert!(pids.iter().all(|pid| pond.node_pids().contains(pid)), "a node was started anew");
        }
    });
}

#[test]
fn two_or_all_nodes_are_killed_at_once_or_one_too_soon_after_another_while_fio_verifies() {
    fio_notices_nothing_of(&Pond::start("3GiB"), |pond| {
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

/// Longer than any lease in the registry, three times: attachments' last 10 s.
const REGISTRY_AWAY: Duration = Duration::from_secs(30);
/// Nodes' leases last 6 s and are renewed each 2 s.
const REGISTRY_AWAY_FIRST: Duration = Duration::from_millis(6500);
/// Then leases that nobody renewed would have ended.
const LEASES_END: Duration = Duration::from_secs(10);

#[test]
fn the_registry_is_away_for_long_and_clients_do_not_notice() {
    let pond = Pond::start("512MiB");
    pond.volume("v", "256MiB");
    let mut door = pond.serve("v");
    becomes_whole(&pond);
    let before = (epochs(&pond), pond.node_pids());
    let mut client = door.client();
    let (mut stamp, mut longest) = (0, Duration::ZERO);
    let mut works_for = |time: Duration| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let began = Instant::now();
            stamp += 1;
            stamp_all(&mut client, stamp);
            assert_eq!(Reads::send(&mut client).all_hold(&mut client, "the client", stamp), 0);
            longest = longest.max(began.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // The registry is in this process, and nothing that operations need. First for so long that leases have ended just
    // now when it goes on, and renewals wait to be heard.
    for away in [REGISTRY_AWAY_FIRST, REGISTRY_AWAY] {
        let frozen = Frozen::new(pond.up_pid().expect("the cluster is up"));
        works_for(away);
        drop(frozen);
        works_for(LEASES_END);
    }
    eprintln!("{stamp} rounds, of which the longest took {longest:?}");
    assert!(longest < REGISTRY_AWAY_FIRST, "operations waited for the registry: {longest:?}");
    assert!(door.runs(), "the NBD server ended");
    assert_eq!((epochs(&pond), pond.node_pids()), before, "groups or processes began anew");
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
        let mut began = Instant::now();
        let frozen = goes_on_in(&pond, without(osd), || {
            began = Instant::now();
            [Frozen::new(late.pid()), Frozen::new(node_of(&pond, osd))]
        });
        stamp += 1;
        stamp_all(&mut client, stamp);
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
