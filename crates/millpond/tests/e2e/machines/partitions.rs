//! Links between nodes are cut, both ways or one way, while fio verifies: whoever can go on does, what cannot waits, and
//! after the links are whole again so is the cluster, by itself and with all replicas the same.

use crate::common::door::Door;
use crate::common::fio::fio_notices_nothing_of;
use crate::common::names;
use crate::common::network::Peer::{Clients, Node};
use crate::common::network::{Cut, Network};
use crate::common::pond::Pond;
use crate::common::probe::Probe;
use crate::common::whole::{
    BLOCK, OSDS, becomes_whole, every_epoch_ends, goes_on_in, node_of, without, without_link,
};
use nix::sys::signal::Signal;
use std::time::Duration;
use testkit::process::{Frozen, signal};

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

/// Operations go on when links are cut, and when they have been for a while.
#[track_caller]
fn lasts<'a>(
    pond: &Pond,
    probe: &mut Probe<'_>,
    what: &str,
    reach: impl Fn(u64, u64) -> bool,
    begin: impl Fn() -> Cut<'a>,
) {
    let cut = goes_on_in(pond, reach, begin);
    probe.goes_on(what);
    cut.lasts(CUT);
    probe.goes_on(what);
    drop(cut);
    becomes_whole(pond);
}

#[test]
fn the_link_between_two_nodes_is_cut_both_ways_or_one_way_while_fio_verifies() {
    let Some(Scene { pond, network }) = Scene::new("links between two nodes") else { return };
    fio_notices_nothing_of(&pond, |pond| {
        let mut probe = Probe::new(pond);
        for (one, other) in [(0, 1), (1, 2), (0, 2)] {
            let what = format!("{one} and {other} do not reach each other");
            lasts(pond, &mut probe, &what, without_link([one, other]), || {
                network.cut_off(one, &[Node(other)])
            });
        }
        for (from, to) in [(0, 1), (2, 0)] {
            let what = format!("{from} does not reach {to}");
            lasts(pond, &mut probe, &what, without_link([from, to]), || network.cut(Node(from), Node(to)));
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
            lasts(pond, &mut probe, &what, without(node), || network.cut_off_from_nodes(node));
        }
        let cut = goes_on_in(pond, without(1), || network.cut_off_from_all(1));
        probe.goes_on("1 is cut off from everybody");
        cut.lasts(CUT);
        drop(cut);
        becomes_whole(pond);
        // The others reach it, so nobody takes over, and what it leads waits for the link.
        for (from, to) in [(Clients, Node(0)), (Node(2), Clients)] {
            network.cut(from, to).lasts(CUT);
            probe.goes_on(&format!("after {to:?} did not hear {from:?}"));
        }
        // Nobody has a majority: everything waits.
        every_epoch_ends(pond, || {
            let cuts: Vec<Cut<'_>> = (0..OSDS).map(|node| network.cut_off_from_nodes(node)).collect();
            cuts.iter().for_each(|cut| cut.lasts(CUT));
        });
        probe.goes_on("after no node reached another");
    });
}

#[test]
fn a_volume_whose_server_was_killed_is_served_again_only_when_no_node_can_serve_the_old_one() {
    let Some(Scene { pond, network }) = Scene::new("a volume whose server was killed") else { return };
    pond.volume("probe", "256MiB");
    becomes_whole(&pond);
    let cut_off = |nodes: std::ops::Range<u32>| -> Vec<Cut<'_>> {
        nodes.map(|node| network.cut_off(node, &[Clients])).collect()
    };
    let is_killed_while_it_writes = || {
        let mut door = pond.serve("probe");
        door.client().write(0, &vec![7; BLOCK as usize]).expect("a healthy cluster writes");
        door.is_killed();
    };
    // The other nodes vouch for the one that cannot be reached, and what they lead is served.
    is_killed_while_it_writes();
    let cut = cut_off(2..3);
    let door = serve_when_free(&pond);
    drop(door.expect("one node of three is enough of each group"));
    // Nobody can vouch for anybody.
    drop(cut);
    is_killed_while_it_writes();
    let cut = cut_off(0..OSDS);
    let refusal = serve_when_free(&pond).err().expect("it was served although an old server might be");
    names(&refusal, &["volume probe is not attached", "had it before", "osd.0 (", "osd.1 (", "osd.2 ("]);
    drop(cut);
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
        let (frozen, cut) =
            goes_on_in(pond, without(0), || (Frozen::new(node_of(pond, 0)), network.cut_off_from_nodes(0)));
        probe.goes_on("0 stands still, cut off");
        cut.lasts(CUT);
        drop(frozen);
        probe.goes_on("0 goes on, cut off");
        drop(cut);
        becomes_whole(pond);
        // The links are whole before it goes on: what they brought meanwhile it finds all at once.
        let (cut, frozen) = goes_on_in(pond, without(1), || {
            let cut = network.cut_off_from_nodes(1);
            (cut, Frozen::new(node_of(pond, 1)))
        });
        probe.goes_on("1 cut off, stands still");
        cut.lasts(CUT);
        drop(cut);
        std::thread::sleep(Duration::from_millis(500));
        drop(frozen);
        becomes_whole(pond);
        // Whoever leads groups that the other two hold cannot be replaced by either of them alone.
        let cut = goes_on_in(pond, without_link([0, 1]), || network.cut_off(0, &[Node(1)]));
        every_epoch_ends(pond, || {
            let frozen = Frozen::new(node_of(pond, 2));
            std::thread::sleep(CUT);
            drop(frozen);
        });
        probe.goes_on("2 goes on while 0 and 1 do not reach each other");
        drop(cut);
        becomes_whole(pond);
        // It starts anew behind the cut.
        let cut = goes_on_in(pond, without(2), || {
            let cut = network.cut_off_from_nodes(2);
            signal(node_of(pond, 2), Signal::SIGKILL);
            cut
        });
        probe.goes_on("2 is killed, cut off");
        cut.lasts(CUT);
        drop(cut);
        becomes_whole(pond);
        probe.goes_on("in the end");
    });
}
