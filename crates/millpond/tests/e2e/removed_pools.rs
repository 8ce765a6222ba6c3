//! A pool, or a volume, is removed while a node is away: what lies on its drive goes when the node is back, the registry forgets
//! the pool then, and nothing else waits for any of it.

use crate::common::pond::Pond;
use crate::common::whole::{MOVED_WITHIN, becomes_whole, groups, node_of, osd_view};
use crate::common::{names, wait_longer, wait_until};
use base::OsdId;
use base::map::RemovedPool;
use cluster::Cluster;
use nix::sys::signal::Signal;
use registry_remote::RemoteRegistry;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use testkit::process::{Frozen, signal};

/// The OSD whose node is away.
const AWAY: u32 = 0;
/// What is written to the volume that goes, in bytes, and to the one that stays.
const GOES: u64 = 32 << 20;
const STAYS: u64 = 4 << 20;
/// Bytes of one write.
const PIECE: u64 = 256 << 10;
/// What is left takes no more than that: what stays, and room for what is written beside.
const LEFT_MAX: u64 = 2 * STAYS;
/// An OSD that is back has let go of everything within this.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// A cluster with a pool that stays, and beside it one that goes, each with a volume.
fn of_two_pools() -> Pond {
    let pond = Pond::start("1GiB");
    pond.run(&["pool", "rm", "default"]);
    for (pool, volume, bytes) in [("stays", "kept", STAYS), ("goes", "gone", GOES)] {
        pond.run(&["pool", "create", pool, "--pg-count", "4"]);
        pond.run(&["volume", "create", volume, "64MiB", "--pool", pool]);
        let door = pond.serve(volume);
        let mut client = door.client();
        for piece in 0..bytes / PIECE {
            client.write(piece * PIECE, &[piece as u8 + 1; PIECE as usize]).expect("it can be written");
        }
    }
    becomes_whole(&pond);
    pond
}

/// Bytes that an OSD says to use.
fn used(pond: &Pond, osd: u32) -> Option<u64> {
    osd_view(pond, osd)?["used_bytes"].as_u64()
}

/// The pools that the registry remembers as removed.
fn remembered(pond: &Pond) -> Vec<RemovedPool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let socket = pond.dir().join("registry.sock");
    runtime.expect("a runtime can be made").block_on(async {
        let registry = RemoteRegistry::connect(&socket, Duration::from_secs(30)).await;
        let cluster = Cluster::new(Arc::new(registry.expect("`up` serves it")));
        cluster.map().await.expect("there is a map").removed_pools.into_values().collect()
    })
}

/// A node stands still while `removes` is done, and then goes on, or is killed and started anew.
fn goes_when_the_node_is_back(is_killed: bool, removes: &[&[&str]], owed: &[RemovedPool]) {
    let pond = of_two_pools();
    wait_until("every OSD has all of it", || {
        (0..3).all(|osd| used(&pond, osd).is_some_and(|bytes| bytes >= GOES + STAYS))
    });
    wait_until("nothing is remembered of the first pool", || remembered(&pond).is_empty());
    let pid = node_of(&pond, AWAY);
    let away = Frozen::new(pid);
    wait_until("it counts as down", || osd_view(&pond, AWAY).is_some_and(|view| view["up"] == false));
    for command in removes {
        // The manager may just have been on that node.
        wait_until("it is removed", || pond.attempt(command).0);
    }
    wait_until("the others have let go of it", || {
        [1, 2].into_iter().all(|osd| used(&pond, osd).is_some_and(|bytes| bytes <= LEFT_MAX))
    });
    wait_until("only who is away is remembered to owe anything", || remembered(&pond) == owed);
    for pool in owed {
        let note = format!("osd.{AWAY}: pool {} was removed while it was away", pool.name);
        wait_until("status says what is left", || pond.run(&["status"]).contains(&note));
    }
    names(&pond.run(&["pool", "set", "stays", "--pg-count", "8"]), &["being split to 8"]);

    if is_killed {
        signal(pid, Signal::SIGKILL);
    }
    drop(away);
    wait_longer(GONE_WITHIN, "it holds no more than the others", || {
        let most = [1, 2].into_iter().filter_map(|osd| used(&pond, osd)).max();
        used(&pond, AWAY).zip(most).is_some_and(|(bytes, most)| bytes <= most.max(STAYS) + PIECE)
    });
    wait_until("nothing is remembered any more", || remembered(&pond).is_empty());
    let prefix = format!("{}.", pool_id(&pond, "stays"));
    let is_of_stays = |group: &&Value| group["pg"].as_str().is_some_and(|pg| pg.starts_with(&prefix));
    let of_stays = || groups(&pond).iter().filter(is_of_stays).count();
    wait_longer(MOVED_WITHIN, "the other pool's groups are split", || of_stays() == 8);
    becomes_whole(&pond);
    let kept = pond.serve("kept").client().read(STAYS - PIECE, PIECE as u32).expect("it can be read");
    assert_eq!(kept, vec![(STAYS / PIECE) as u8; PIECE as usize]);
}

/// The id of a pool.
fn pool_id(pond: &Pond, name: &str) -> Value {
    let pools = pond.list(&["pool", "ls"]).into_iter();
    let mut of_name = pools.filter(|pool| pool["name"] == name);
    of_name.next().expect("the pool is there")["pool"].clone()
}

const POOL: &[&[&str]] = &[&["volume", "rm", "gone", "--now"], &["pool", "rm", "goes"]];
const VOLUME: &[&[&str]] = &[&["volume", "rm", "gone", "--now"]];

fn of_who_is_away() -> [RemovedPool; 1] {
    [RemovedPool { name: "goes".to_owned(), owed_by: vec![OsdId(AWAY)] }]
}

#[test]
fn a_node_that_was_killed_lets_go_of_a_pool_that_was_removed_before_it_was_started_anew() {
    goes_when_the_node_is_back(true, POOL, &of_who_is_away());
}

#[test]
fn a_node_that_stood_still_lets_go_of_a_pool_that_was_removed_meanwhile() {
    goes_when_the_node_is_back(false, POOL, &of_who_is_away());
}

#[test]
fn a_node_that_was_killed_lets_go_of_a_volume_that_was_removed_before_it_was_started_anew() {
    goes_when_the_node_is_back(true, VOLUME, &[]);
}
