//! Racks, classes and weights on a real cluster: what a person says of nodes and OSDs shows, is kept to by new pools, and
//! moves the data of old ones.

use crate::common::pond::Pond;
use crate::common::whole::{becomes_whole, groups, osd_view, osds_in};
use crate::common::{names, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;

fn targets(pond: &Pond, pool: &str) -> Vec<Vec<u64>> {
    let pool =
        pond.list(&["pool", "ls"]).into_iter().find(|one| one["name"] == pool).expect("the pool is there");
    let prefix = format!("{}.", pool["pool"]);
    let of_pool = groups(pond).into_iter().filter(|group| match &group["pg"] {
        Value::String(pg) => pg.starts_with(&prefix),
        pg => pg["pool"] == pool["pool"],
    });
    of_pool.map(|group| osds_in(&group, "target")).collect()
}

/// The manager, whom these commands ask, sees a moment later what was changed.
fn comes_to_name(pond: &Pond, command: &[&str], parts: &[&str]) {
    wait_until("the manager has seen it", || {
        let text = pond.run(command);
        parts.iter().all(|part| text.contains(part))
    });
}

#[test]
fn what_a_person_says_of_racks_classes_and_weights_is_kept_to() {
    let pond = Pond::start_with(&["--osd-size", "256MiB", "--nodes", "6"]);
    let node_of = |osd: u64| osd_view(&pond, osd as u32).unwrap()["node"].as_u64().unwrap();
    let nodes: Vec<u64> = (0..6).map(node_of).collect();

    pond.refused(
        &["pool", "create", "safe", "--failure-domain", "rack"],
        &["only 0 racks", "placement locate", "--failure-domain host"],
    );
    for node in 0..6 {
        let rack = format!("r{}", node / 2);
        names(
            &pond.run(&["placement", "locate", &node.to_string(), "--rack", &rack]),
            &[&format!("node.{node} runs on a host of its own, in {rack}")],
        );
    }
    pond.refused(&["placement", "locate", "9", "--rack", "r1"], &["there is no node.9", "osd tree"]);
    let made = pond.run(&["pool", "create", "safe", "--failure-domain", "rack"]);
    // 100 replicas for each of 6 OSDs, half of them this pool's: 100 groups of 3.
    names(&made, &["pool safe made: 3 copies, 128 placement groups"]);
    comes_to_name(&pond, &["pool", "ls"], &["RULE", "safe", "rack"]);
    comes_to_name(&pond, &["osd", "tree"], &["RACK", "r0", "r2", "CLASS", "WEIGHT"]);
    let of_safe = targets(&pond, "safe");
    assert_eq!(of_safe.len(), 128);
    for target in of_safe {
        let racks: BTreeSet<u64> = target.iter().map(|osd| nodes[*osd as usize] / 2).collect();
        assert_eq!(racks.len(), 3, "{target:?}");
    }
    becomes_whole(&pond);

    // Half of what lay on an OSD leaves it, and comes back.
    let aimed = |osd: u32| osd_view(&pond, osd).unwrap()["pgs_target"].as_u64().unwrap();
    let before = aimed(0);
    names(&pond.run(&["osd", "reweight", "osd.0", "0.5"]), &["osd.0 shall hold 0.5", "was at 1"]);
    wait_until("it holds less", || aimed(0) * 10 < before * 7);
    becomes_whole(&pond);
    wait_until("status shows it", || osd_view(&pond, 0).unwrap()["reweight_thousandths"] == 500);
    names(&pond.run(&["osd", "reweight", "0", "0.5"]), &["has the factor 0.5 already"]);
    pond.run(&["osd", "reweight", "0", "1"]);

    // A pool on a class that only three have.
    for osd in ["3", "4", "5"] {
        pond.run(&["osd", "class", osd, "nvme"]);
    }
    for osd in ["0", "1", "2"] {
        pond.run(&["osd", "class", osd, "hdd"]);
    }
    pond.run(&["pool", "create", "fast", "--device-class", "nvme", "--failure-domain", "osd"]);
    comes_to_name(&pond, &["pool", "ls"], &["osd on nvme"]);
    assert!(targets(&pond, "fast").iter().flatten().all(|osd| (3..6).contains(osd)));
    pond.refused(
        &["pool", "create", "x", "--size", "4", "--device-class", "nvme"],
        &["4 copies of everything on nvme drives, and only 3 OSDs"],
    );
    becomes_whole(&pond);

    let simulated = pond.json(&["placement", "simulate", "--from-cluster", "--pgs", "256", "--remove-osd"]);
    assert_eq!((&simulated["osds"], &simulated["racks"]), (&Value::from(6), &Value::from(3)));
    assert_eq!(simulated["placed"]["violations"], 0);
    assert_eq!(simulated["changes"][0]["after"]["violations"], 0);

    // All of it is remembered.
    pond.down();
    pond.up();
    comes_to_name(&pond, &["osd", "tree"], &["r1", "nvme", "hdd"]);
    becomes_whole(&pond);
}
