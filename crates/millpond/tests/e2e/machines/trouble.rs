//! Hosts of a cluster, and the members of its etcd on them, are cut off, killed, replaced, emptied and taken in again while
//! fio verifies: operations go on, and after each trouble the cluster is whole again by itself.

use crate::common::fio::fio_notices_nothing_of;
use crate::common::hosts::{HOSTS, Hosts, walk};
use crate::common::network::Peer::Node;
use crate::common::pond::runs;
use crate::common::probe::Probe;
use crate::common::time_of_day::at_another_time;
use crate::common::whole::{
    MOVED_WITHIN, becomes_whole, epochs, goes_on_in, groups, osd_view, osds_in, without, without_link,
};
use crate::common::{OnDrop, names, path, run, wait_longer, wait_until};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant, SystemTime};
use testkit::prerequisites::installed;
use testkit::process::{Frozen, signal};

/// Links stay cut for so long: past every lease.
const CUT: Duration = Duration::from_secs(8);
/// How long etcd has no majority: past every lease in it, several times.
const WITHOUT_MAJORITY: Duration = Duration::from_secs(30);

/// Sets the clock of what is started on a host from now on.
fn set_clock(hosts: &Hosts, host: u32, difference: &str) {
    for (name, value) in at_another_time(difference) {
        hosts.set(host, name, &value);
    }
}

/// How many seconds the clock of a host's node is ahead, by what it logged last.
fn clock_is_ahead(hosts: &Hosts, host: u32) -> i64 {
    let log = hosts.node_log(host);
    let is_time = |word: &&str| word.contains('T') && word.ends_with('Z') && word.contains(':');
    let stamp = log.split_ascii_whitespace().rfind(is_time).expect("a node logs, and when");
    let logged: i64 = run("date", &["--date", stamp, "+%s"]).trim().parse().expect("it is a number");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    logged - i64::try_from(now.as_secs()).expect("it is not the end of time")
}

#[test]
fn hosts_whose_clocks_are_minutes_apart_are_cut_off_while_fio_verifies() {
    let test = "hosts whose clocks are minutes apart";
    if !installed(test, &["faketime"]) {
        return;
    }
    let Some(hosts) = Hosts::bare(test, 0) else { return };
    set_clock(&hosts, 1, "+7m");
    set_clock(&hosts, 2, "-9m");
    hosts.follow(&walk());
    let ahead = [0, 1, 2].map(|host| clock_is_ahead(&hosts, host));
    assert!(
        ahead[0].abs() < 120 && ahead[1] > 300 && ahead[2] < -420,
        "the clocks are not as set: {ahead:?}"
    );
    fio_notices_nothing_of(&hosts, |hosts| {
        let mut probe = Probe::new(hosts);
        let cut = goes_on_in(hosts, without_link([0, 2].map(|host| hosts.osd_of(host))), || {
            hosts.network().cut_off(2, &[Node(0)])
        });
        probe.goes_on("h1 and h3 do not reach each other");
        cut.lasts(CUT);
        probe.goes_on("h1 and h3 have not reached each other for a while");
        drop(cut);
        becomes_whole(hosts);
        // Together with its member of etcd, and one of them with whoever manages the cluster.
        for host in 0..HOSTS {
            let cut =
                goes_on_in(hosts, without(hosts.osd_of(host)), || hosts.network().cut_off_from_all(host));
            probe.goes_on(&format!("h{} is cut off from everybody", host + 1));
            cut.lasts(CUT);
            drop(cut);
            becomes_whole(hosts);
        }
        // What a host missed comes back over a thin line.
        hosts.network().limit(0, "60mbit");
        let killed = goes_on_in(hosts, without(hosts.osd_of(1)), || {
            hosts.kill_node(1);
            hosts.starts_again(1)
        });
        probe.goes_on("h2 is killed, and the line of h1 is thin");
        drop(killed);
        becomes_whole(hosts);
        hosts.network().unlimit(0);
    });
}

#[test]
fn members_of_etcd_are_killed_and_replaced_and_a_majority_is_lost_for_half_a_minute_while_fio_verifies() {
    let Some(hosts) = Hosts::up("members of etcd in trouble", 0) else { return };
    fio_notices_nothing_of(&hosts, |hosts| {
        let mut probe = Probe::new(hosts);
        let leader = hosts.etcd_leader();
        hosts.kill_etcd(leader);
        hosts.volume("leader-killed", "64MiB");
        probe.goes_on("etcd's leader is killed");
        hosts.start_etcd(leader);
        hosts.etcd_is_well();

        // Its connections stay, and nobody answers on them.
        let frozen = Frozen::new(hosts.etcd_pid(hosts.etcd_leader()));
        hosts.volume("leader-stands-still", "64MiB");
        probe.goes_on("etcd's leader stands still");
        drop(frozen);
        hosts.etcd_is_well();

        for host in 0..HOSTS {
            hosts.replace_etcd(host);
            hosts.volume(&format!("replaced-{host}"), "64MiB");
        }
        probe.goes_on("all members of etcd are new");
        becomes_whole(hosts);

        let killed = goes_on_in(hosts, without(hosts.osd_of(2)), || {
            let began = Instant::now();
            hosts.kill_etcd(0);
            hosts.kill_etcd(1);
            probe.goes_on("etcd has no majority");
            hosts.refused(&["status"], &["do a majority of etcd's members run"]);
            while began.elapsed() < WITHOUT_MAJORITY {
                probe.goes_on("etcd has had no majority for a while");
                std::thread::sleep(Duration::from_secs(6));
            }
            // Nobody can take over what it leads until etcd is back.
            hosts.kill_node(2);
            std::thread::sleep(Duration::from_secs(2));
            hosts.start_etcd(0);
            hosts.start_etcd(1);
            hosts.etcd_is_well();
            hosts.starts_again(2)
        });
        probe.goes_on("etcd has a majority again, and h3 is killed");
        let before = epochs(hosts);
        drop(killed);
        becomes_whole(hosts);
        assert!(epochs(hosts) != before, "h3 came back unnoticed");
    });
}

#[test]
fn hosts_join_and_leave_and_the_manager_is_killed_meanwhile_while_fio_verifies() {
    let Some(hosts) = Hosts::up("hosts that join and leave", 1) else { return };
    fio_notices_nothing_of(&hosts, |hosts| {
        let mut probe = Probe::new(hosts);
        // Enough to move that moving takes a moment.
        hosts.volume("ballast", "256MiB");
        fill(hosts, "ballast");
        let targets = || groups(hosts).iter().map(|group| group["target"].clone()).collect::<Vec<_>>();
        let before = targets();
        hosts.join(3);
        wait_until("the new host is to have a part", || targets() != before);
        kill_manager(hosts);
        probe.goes_on("h4 joined, and the manager was killed");
        becomes_whole(hosts);
        assert!(has_groups(hosts, hosts.osd_of(3)), "nothing is placed on the new host");

        // Who leads groups, and has a member of etcd that stays.
        let (node, osd) = (hosts.node_of(1)["node"].clone(), hosts.osd_of(1));
        hosts.run(&["node", "drain", &node.to_string()]);
        kill_manager(hosts);
        probe.goes_on("h2 is drained, and the manager was killed");
        wait_longer(MOVED_WITHIN, "the drained host is empty", || !has_groups(hosts, osd));
        hosts.run_on(1, "millpond node stop");
        wait_until("the drained host can be removed", || {
            let (worked, _, complaint) = hosts.attempt(&["node", "rm", &node.to_string()]);
            assert!(worked || complaint.contains("yet") || complaint.contains("is up"), "{complaint}");
            worked
        });
        wait_until("status has forgotten it", || {
            osd_view(hosts, osd).is_none() && hosts.nodes().iter().all(|view| view["node"] != node)
        });
        becomes_whole(hosts);
        probe.goes_on("h2 is removed");

        // As another node, for it was removed.
        hosts.run_on(1, &format!("millpond osd wipe {} --yes", path(&hosts.drive(1))));
        std::fs::remove_dir_all(hosts.dir_of(1)).expect("its settings can be removed");
        let before = targets();
        hosts.join(1);
        assert!(hosts.node_of(1)["node"] != node);
        wait_until("the host that joined anew is to have a part", || targets() != before);
        probe.goes_on("h2 joined anew");
        becomes_whole(hosts);
        assert!(has_groups(hosts, hosts.osd_of(1)), "nothing is placed on the host that joined anew");
    });
}

/// Writes a volume full.
fn fill(hosts: &Hosts, volume: &str) {
    let target = format!("volume:{volume}");
    hosts.run(&["bench", "--target", &target, "--rw", "write", "--bs", "256KiB", "--io-size", "256MiB"]);
}

/// The process that manages the cluster is killed, and another one does.
fn kill_manager(hosts: &Hosts) {
    let manager = hosts.manager();
    signal(manager, Signal::SIGKILL);
    wait_until("the manager is gone", || !runs(manager));
    wait_until("another process manages the cluster", || hosts.manager() != manager);
}

/// Whether some group counts on what an OSD holds, or shall.
fn has_groups(hosts: &Hosts, osd: u32) -> bool {
    let has = |group, field| osds_in(group, field).contains(&u64::from(osd));
    groups(hosts).iter().any(|group| ["in_sync", "learners", "target"].iter().any(|field| has(group, field)))
}

#[test]
fn a_host_with_a_key_that_is_not_its_own_is_not_let_in_and_disturbs_nobody() {
    let Some(hosts) = Hosts::up("a host with a wrong key", 0) else { return };
    fio_notices_nothing_of(&hosts, |hosts| {
        let mut probe = Probe::new(hosts);
        let (own, aside) = (hosts.dir_of(2).join("node.key"), hosts.scratch().join("aside.key"));
        let stranger = hosts.scratch().join("stranger.key");
        hosts.run(&["auth", "add", "stranger", "--admin", "--out", path(&stranger)]);
        let stopped = goes_on_in(hosts, without(hosts.osd_of(2)), || {
            hosts.run_on(2, "millpond node stop");
            hosts.starts_again(2)
        });
        std::fs::rename(&own, &aside).expect("a key can be put aside");
        // One that opens everything, but is not the node's; one of nobody; and the node's again.
        for what in ["another's", "nobody's"] {
            std::fs::copy(&stranger, &own).expect("a key can be copied");
            let before = hosts.node_log(2).len();
            hosts.run_on(2, "millpond node start");
            wait_until("the host is not let in", || {
                hosts.node_log(2)[before..].contains("is not that of node.2 in cluster")
            });
            names(&hosts.node_log(2)[before..], &["put the key back that the host had when it joined"]);
            probe.goes_on(&format!("h3 has {what} key"));
            assert_eq!(hosts.node_of(2)["osds_up"], 0);
            hosts.shell(2, "millpond node stop");
            if what == "another's" {
                hosts.run(&["auth", "rm", "stranger"]);
            }
        }
        std::fs::rename(&aside, &own).expect("a key can be put back");
        drop(stopped);
        becomes_whole(hosts);

        // A node whose key is taken away while it runs stops, and counts as down.
        hosts.refused(&["auth", "rm", "node.2"], &["take its OSDs out first"]);
        let principal = "/millpond/millpond/map/principal/node.2";
        let value = hosts.etcdctl(&["get", "--print-value-only", principal]);
        let removed = goes_on_in(hosts, without(hosts.osd_of(2)), || {
            hosts.etcdctl(&["del", principal]);
            OnDrop(|| drop(hosts.etcdctl(&["put", principal, value.trim()])))
        });
        wait_until("the host is not let in any more", || hosts.node_of(2)["osds_up"] == 0);
        probe.goes_on("the key of h3 was removed");
        drop(removed);
        becomes_whole(hosts);
    });
}
