//! A pool gets twice as many placement groups, and again, under load: clients see neither an error nor anything old, and
//! then all replicas are the same.

use crate::common::fio::fio_notices_nothing_of;
use crate::common::pond::Pond;
use crate::common::whole::{becomes_whole, groups, node_of, signal};
use crate::common::{names, within};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::Duration;

/// What it may take to split some groups one by one, with nodes that die meanwhile.
const SPLIT_WITHIN: Duration = Duration::from_secs(120);

#[test]
fn groups_are_split_twice_and_nodes_are_killed_meanwhile_while_fio_verifies() {
    let pond = Pond::start("3GiB");
    // Few groups, so that each holds much of what fio writes.
    pond.run(&["pool", "rm", "default"]);
    pond.run(&["pool", "create", "default", "--pg-count", "4"]);
    fio_notices_nothing_of(&pond, |pond| {
        for (count, why) in [("32768", "say 8 first"), ("12", "say 8 first"), ("2", "never made fewer")] {
            let (worked, _, told) = pond.attempt(&["pool", "set", "default", "--pg-count", count]);
            assert!(!worked, "{count} groups instead of 4 were taken");
            names(&told, &[why]);
        }
        splits_to(pond, 8, 1);
        splits_to(pond, 16, 0);
    });
    assert!(!pond.log("up.log").contains("panicked"), "{}", pond.log("up.log"));
    // All of it is remembered.
    pond.up();
    becomes_whole(&pond);
    assert_eq!(groups(&pond).len(), 16);
}

#[test]
fn a_pool_that_may_splits_its_groups_until_they_are_enough() {
    let pond = Pond::start("1GiB");
    pond.run(&["pool", "rm", "default"]);
    pond.run(&["pool", "create", "default", "--pg-count", "16"]);
    names(
        &pond.run(&["pool", "set", "default", "--pg-autoscale", "on"]),
        &["pool default shall keep 3 copies"],
    );
    // What a new pool that is alone gets on 3 OSDs.
    within(SPLIT_WITHIN, "it has 128 groups", || groups(&pond).len() == 128 && split_to(&pond).is_none());
    becomes_whole(&pond);
    pond.run(&["pool", "set", "default", "--pg-autoscale", "off"]);
}

/// Has the groups split, and kills the node of an OSD when that is under way.
fn splits_to(pond: &Pond, count: usize, osd: u32) {
    let told = pond.run(&["pool", "set", "default", "--pg-count", &count.to_string()]);
    names(&told, &[&format!("being split to {count}"), "millpond status"]);
    within(SPLIT_WITHIN, "a group is split", || groups(pond).len() > count / 2);
    signal(node_of(pond, osd), Signal::SIGKILL);
    within(SPLIT_WITHIN, "all groups are split", || groups(pond).len() == count && split_to(pond).is_none());
    becomes_whole(pond);
}

/// How many groups the pool is on its way to have.
fn split_to(pond: &Pond) -> Option<u64> {
    let pools: Vec<Value> =
        serde_json::from_str(&pond.run(&["pool", "ls", "--json"])).expect("the pools are JSON");
    pools[0]["split_to"].as_u64()
}
