//! A pool gets twice as many placement groups, and again, under load: clients see neither an error nor anything old, and
//! then all replicas are the same.

use crate::common::fio::fio_notices_nothing_of;
use crate::common::pond::Pond;
use crate::common::whole::{MOVED_WITHIN, becomes_whole, groups, node_of};
use crate::common::{names, wait_longer};
use nix::sys::signal::Signal;
use testkit::process::signal;

#[test]
fn groups_are_split_twice_and_nodes_are_killed_meanwhile_while_fio_verifies() {
    let pond = Pond::start("3GiB");
    // Few groups, so that each holds much of what fio writes.
    pond.run(&["pool", "rm", "default"]);
    pond.run(&["pool", "create", "default", "--pg-count", "4"]);
    fio_notices_nothing_of(&pond, |pond| {
        for (count, why) in [("32768", "say 8 first"), ("12", "say 8 first"), ("2", "never made fewer")] {
            pond.refused(&["pool", "set", "default", "--pg-count", count], &[why]);
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
    wait_longer(MOVED_WITHIN, "it has 128 groups", || {
        groups(&pond).len() == 128 && split_to(&pond).is_none()
    });
    becomes_whole(&pond);
    pond.run(&["pool", "set", "default", "--pg-autoscale", "off"]);
}

/// Has the groups split, and kills the node of an OSD when that is under way.
fn splits_to(pond: &Pond, count: usize, osd: u32) {
    let told = pond.run(&["pool", "set", "default", "--pg-count", &count.to_string()]);
    names(&told, &[&format!("being split to {count}"), "millpond status"]);
    wait_longer(MOVED_WITHIN, "a group is split", || groups(pond).len() > count / 2);
    signal(node_of(pond, osd), Signal::SIGKILL);
    wait_longer(MOVED_WITHIN, "all groups are split", || {
        groups(pond).len() == count && split_to(pond).is_none()
    });
    becomes_whole(pond);
}

/// How many groups the pool is on its way to have.
fn split_to(pond: &Pond) -> Option<u64> {
    pond.json(&["pool", "ls"])[0]["split_to"].as_u64()
}
