//! Links between nodes are cut, both ways or one way, while fio verifies: whoever can go on does, what cannot waits, and
//! after the links are whole again so is the cluster, by itself and with all replicas the same.

use crate::common::door::Door;
use crate::common::fio::fio_notices_nothing_of;
use crate::common::network::Network;
use crate::common::network::Peer::{Clients, Node};
use crate::common::pond::Pond;
use crate::common::probe::Probe;
use crate::common::whole::{BLOCK, Frozen, OSDS, becomes_whole, every_epoch_ends, node_of, some_epoch_ends};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Links stay cut for so long at least: past every lease under load, and past the time after which clients give up a
/// silent connection.
const CUT: Duration = Duration::from_secs(6);

/// A cluster whose links can be cut. The cluster ends first.
struct Scene {
    pond: Pond,
    network: Network,
}

impl Scene {
    fn new(test: &str) -> Option<Scene> {
        let network = Network::make(test, OSDS)?;
        let pond = Pond::start_with(&["--osd-size", "3GiB", &network.flag()]);
        Some(Scene { pond, network })
    }
}

#[test]
fn the_link_between_two_nodes_is_cut_both_ways_or_one_way_while_fio_verifies() {
    let Some(Scene { pond, network }) = Scene::new("links between two nodes") else { return };
    fio_notices_nothing_of(&pond, |pond| {
        let mut probe = Probe::new(pond);
        let mut phase = |what: &str, cut: &dyn Fn()| {
            let began = Instant::now();
            some_epoch_ends(pond, cut);
            probe.goes_on(what);
            std::thread::sleep(CUT.saturating_sub(began.elapsed()));
            probe.goes_on(what);
            network.heal();
            becomes_whole(pond);
        };
        for (one, other) in [(0, 1), (1, 2), (0, 2)] {
            let what = format!("{one} and {other} do not reach each other");
            phase(&what, &|| network.cut_off(one, &[Node(other)]));
        }
        for (from, to) in [(0, 1), (2, 0)] {
            phase(&format!("{from} does not reach {to}"), &|| network.cut(Node(from), Node(to)));
        }
    });
}

#[test]
fn a_node_is_cut_off_from_the_others_or_from_everybody_while_fio_verifies() {
    let Some(Scene { pond, network }) = Scene::new("a node cut off") else { return };
    fio_notices_nothing_of(&pond, |pond| {
        let mut probe = Probe::new(pond);
        for node in 0..OSDS {
            let what = format!("{node} is cut off from the other nodes");
            let began = Instant::now();
            every_epoch_ends(pond, || network.cut_off_from_nodes(node));
            probe.goes_on(&what);
            std::thread::sleep(CUT.saturating_sub(began.elapsed()));
            probe.goes_on(&what);
            network.heal();
            becomes_whole(pond);
        }
        every_epoch_ends(pond, || {
            network.cut_off(1, &[Node(0), Node(2), Clients]);
        });
        probe.goes_on("1 is cut off from everybody");
        std::thread::sleep(CUT);
        network.heal();
        becomes_whole(pond);
        // The others reach it, so nobody takes over, and what it leads waits for the link.
        for (from, to) in [(Clients, Node(0)), (Node(2), Clients)] {
            network.cut(from, to);
            std::thread::sleep(CUT);
            network.heal();
            probe.goes_on(&format!("after {to:?} did not hear {from:?}"));
        }
        // Nobody has a majority: everything waits.
        every_epoch_ends(pond, || {
            (0..OSDS).for_each(|node| network.cut_off_from_nodes(node));
            std::thread::sleep(CUT);
            network.heal();
        });
        probe.goes_on("after no node reached another");
    });
}

#[test]
fn a_volume_whose_server_was_killed_is_served_again_only_when_no_node_can_serve_the_old_one() {
    let Some(Scene { pond, network }) = Scene::new("a volume whose server was killed") else { return };
    pond.volume("probe", "256MiB");
    becomes_whole(&pond);
    let cut_off = |nodes: std::ops::Range<u32>| {
        for node in nodes {
            network.cut(Clients, Node(node));
            network.cut(Node(node), Clients);
        }
    };
    let is_killed_while_it_writes = || {
        let mut door = pond.serve("probe");
        door.client().write(0, &vec![7; BLOCK as usize]).expect("a healthy cluster writes");
        door.is_killed();
    };
    // The other nodes vouch for the one that cannot be reached, and what they lead is served.
    is_killed_while_it_writes();
    cut_off(2..3);
    let door = serve_when_free(&pond);
    drop(door.expect("one node of three is enough of each group"));
    // Nobody can vouch for anybody.
    network.heal();
    is_killed_while_it_writes();
    cut_off(0..OSDS);
    let refusal = serve_when_free(&pond).err().expect("it was served although an old server might be");
    crate::common::names(
        &refusal,
        &["volume probe is not attached", "had it before", "osd.0 (", "osd.1 (", "osd.2 ("],
    );
    network.heal();
    let door = serve_when_free(&pond).expect("all nodes can be told");
    assert!(door.client().read(0, BLOCK as u32).expect("it is served") == vec![7; BLOCK as usize]);
}

/// Serves the volume as soon as the lease of its killed server has ended; or what is said instead.
fn serve_when_free(pond: &Pond) -> Result<Door, String> {
    loop {
        match pond.try_serve("probe") {
            Err(said) if said.contains("wait a few seconds") => {
                std::thread::sleep(Duration::from_millis(500))
            }
            outcome => return outcome,
        }
    }
}

#[test]
fn nodes_stand_still_or_are_killed_while_links_are_cut_and_fio_verifies() {
    let Some(Scene { pond, network }) = Scene::new("nodes that stand still behind cut links") else { return };
    fio_notices_nothing_of(&pond, |pond| {
        let mut probe = Probe::new(pond);
        // It goes on while it is cut off, with leases that ran out long ago.
        every_epoch_ends(pond, || {
            let frozen = Frozen::new(node_of(pond, 0));
            network.cut_off_from_nodes(0);
            probe.goes_on("0 stands still, cut off");
            std::thread::sleep(CUT);
            drop(frozen);
        });
        probe.goes_on("0 goes on, cut off");
        network.heal();
        becomes_whole(pond);
        // The links are whole before it goes on: what they brought meanwhile it finds all at once.
        every_epoch_ends(pond, || {
            network.cut_off_from_nodes(1);
            let frozen = Frozen::new(node_of(pond, 1));
            probe.goes_on("1 cut off, stands still");
            std::thread::sleep(CUT);
            network.heal();
            std::thread::sleep(Duration::from_millis(500));
            drop(frozen);
        });
        becomes_whole(pond);
        // Whoever leads groups that the other two hold cannot be replaced by either of them alone.
        every_epoch_ends(pond, || {
            network.cut_off(0, &[Node(1)]);
            let frozen = Frozen::new(node_of(pond, 2));
            std::thread::sleep(CUT);
            drop(frozen);
        });
        probe.goes_on("2 goes on while 0 and 1 do not reach each other");
        network.heal();
        becomes_whole(pond);
        // It starts anew behind the cut.
        every_epoch_ends(pond, || {
            network.cut_off_from_nodes(2);
            crate::common::whole::signal(node_of(pond, 2), Signal::SIGKILL);
            probe.goes_on("2 is killed, cut off");
            std::thread::sleep(CUT);
        });
        network.heal();
        becomes_whole(pond);
        probe.goes_on("in the end");
    });
}
