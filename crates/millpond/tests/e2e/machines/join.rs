//! From three bare hosts to a cluster by the very commands that docs/operations.md names, each host in a network namespace
//! of its own, with a member of an etcd and a drive; then hosts die and come back.

use crate::common::hosts::{HOSTS, Hosts, walk};
use crate::common::whole::{goes_on_in, without};
use crate::common::{OnDrop, path, wait_until};
use serde_json::Value;

#[test]
fn three_bare_hosts_become_a_cluster_by_the_commands_of_the_document() {
    let Some(hosts) = Hosts::bare("three bare hosts become a cluster", 0) else { return };
    let walk = walk();
    let count: u32 = walk.iter().map(|(is_on_each, _)| if *is_on_each { HOSTS } else { 1 }).sum();
    assert!((5..10).contains(&count), "{count} commands");
    hosts.follow(&walk);
    wait_until("the cluster is well", || hosts.health() == "ok");
    let nodes: Value = serde_json::from_str(&hosts.run_on(1, "millpond node ls --json")).unwrap();
    let names: Vec<&str> =
        nodes.as_array().unwrap().iter().filter_map(|node| node["host"].as_str()).collect();
    assert_eq!(names, ["h1", "h2", "h3"]);

    let door = hosts.serve("disk");
    let mut client = door.client();
    for round in 0..4u8 {
        client.write(u64::from(round) << 22, &[round + 1; 8192]).unwrap();
    }

    // A host dies: its processes, and its member of etcd.
    let killed = goes_on_in(&hosts, without(hosts.osd_of(2)), || {
        hosts.kill_node(2);
        hosts.kill_etcd(2);
        OnDrop(|| {
            hosts.start_etcd(2);
            hosts.run_on(2, "millpond node start");
        })
    });
    for round in 0..4u8 {
        client.write((u64::from(round) << 22) + 8192, &[round + 11; 8192]).unwrap();
        assert_eq!(client.read(u64::from(round) << 22, 8192).unwrap(), vec![round + 1; 8192]);
    }
    wait_until("the lost host is told of", || hosts.health() == "warning");
    drop(killed);
    wait_until("the cluster is well again", || hosts.health() == "ok");
    for round in 0..4u8 {
        assert_eq!(client.read((u64::from(round) << 22) + 8192, 8192).unwrap(), vec![round + 11; 8192]);
    }

    // Somebody who joins twice, with the wrong drive, or nobody's token.
    let join = format!("millpond node join $TOKEN --listen {} --device", hosts.address(1));
    hosts.refused_on(1, &format!("{join} /dev/null"), &["already"]);
    let other = hosts.scratch().join("other");
    hosts.refused_on(1, &format!("{join} /dev/null --dir {}", path(&other)), &["/dev/null"]);
    let nobodys = "echo millpond1.e30 | millpond node join - --listen 127.0.0.1 --device x --dir x";
    hosts.refused_on(1, nobodys, &["cluster token"]);
    hosts.refused_on(1, "millpond node rm 1", &["is in"]);
    hosts.refused_on(1, "millpond osd add --device x", &["node.devices"]);
}
