//! A cluster that began on one machine by `millpond up`: other hosts join it by the very commands that docs/operations.md
//! names, and leave it again.

use crate::common::door::Door;
use crate::common::hosts::{HOSTS, Hosts, commands};
use crate::common::pieces::{check, write};
use crate::common::whole::{MOVED_WITHIN, goes_on_in, without};
use crate::common::{wait_longer, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;

/// Serves the volume on the first host, in its own network: OSDs that nobody else is to reach are reached there.
fn serve(hosts: &Hosts, name: &str) -> Door {
    let served = Door::of(hosts.command_on(0, "millpond"), hosts.scratch(), "disk", name, &[]);
    served.expect("it is served")
}

#[test]
fn a_machine_becomes_three_hosts_by_the_commands_of_the_document_and_one_again() {
    let Some(hosts) = Hosts::bare("a machine becomes three hosts", 0) else { return };
    hosts.run_on(0, "millpond up --detach --osd-size 1GiB");
    hosts.run_on(0, "millpond volume create disk 256MiB");
    write(&mut serve(&hosts, "one").client(), 0);

    let walk = commands("## From one machine to several");
    assert!(walk.len() >= 6, "{walk:?}");
    for (place, line) in &walk {
        let on: Vec<u32> = match place.split([':', ',']).next() {
            Some("each host") => (0..HOSTS).collect(),
            Some("each other host") => (1..HOSTS).collect(),
            Some("the first host") => vec![0],
            _ => panic!("nobody knows where {place:?} is"),
        };
        on.into_iter().for_each(|host| hosts.follow_line(host, line));
    }
    wait_until("the cluster is well, and its data on all hosts", || {
        hosts.health() == "ok" && copies_on_hosts(&hosts).iter().all(|hosts| hosts.len() == 3)
    });
    let served = serve(&hosts, "three");
    let mut client = served.client();
    check(&mut client, 1);
    write(&mut client, 1);
    // A host dies, and the first one's drives are not all that is left.
    let killed = goes_on_in(&hosts, without(hosts.osd_of(2)), || {
        hosts.kill_node(2);
        hosts.starts_again(2)
    });
    write(&mut client, 2);
    check(&mut client, 3);
    drop(killed);
    wait_until("the cluster is well again", || hosts.health() == "ok");
    drop((client, served));

    // And back, by what it says.
    hosts.run_on(0, "millpond down");
    let back = "millpond registry migrate --to embedded";
    hosts.refused_on(0, back, &["is of another host, h2", "millpond node drain 3"]);
    hosts.run_on(0, "millpond up --detach");
    for node in [3, 4] {
        hosts.run_on(0, &format!("millpond node drain {node}"));
    }
    wait_longer(MOVED_WITHIN, "nothing is left on the other hosts", || {
        [3, 4].iter().all(|node| {
            let line = format!("millpond node rm {node}");
            let gone = hosts.shell(0, &line).status.success();
            gone || !hosts.run_on(0, "millpond node ls").contains(&format!("node.{node} "))
        })
    });
    for host in 1..HOSTS {
        // Its process has ended with its last OSD, or is told to.
        hosts.shell(host, "millpond node stop");
    }
    hosts.run_on(0, "millpond down");
    hosts.run_on(0, back);
    (0..HOSTS).for_each(|host| hosts.kill_etcd(host));
    hosts.run_on(0, "millpond up --detach");
    check(&mut serve(&hosts, "one-again").client(), 3);
    hosts.run_on(0, "millpond down");
}

/// Of each placement group, the hosts that have it in sync.
fn copies_on_hosts(hosts: &Hosts) -> Vec<BTreeSet<String>> {
    let json = |line: &str| -> Value { serde_json::from_str(&hosts.run_on(0, line)).expect("it is JSON") };
    let osds = json("millpond osd tree --json");
    let host_of = |number: &Value| {
        let osd = osds.as_array().expect("a list").iter().find(|osd| osd["osd"] == *number);
        osd.and_then(|osd| osd["host"].as_str()).unwrap_or_default().to_owned()
    };
    let pgs = json("millpond pg dump --json");
    let copies = |pg: &Value| pg["in_sync"].as_array().expect("a list").iter().map(host_of).collect();
    pgs.as_array().expect("a list").iter().map(copies).collect()
}
