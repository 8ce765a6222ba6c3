//! Where several volumes want more than OSDs do, each has what is reserved for it, and of the rest its part by weight.

use crate::common::pond::Pond;
use crate::common::whole::becomes_whole;
use crate::common::{command, names, path};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Reads of so many at a time, for so long that another one of 3 s lies within.
fn flood(pond: &Pond, volume: &str) -> Child {
    let target = format!("volume:{volume}");
    let job = ["bench", "--target", &target, "--iodepth", "192", "--runtime", "6", "--json"];
    let mut flood = command(&job);
    flood.args(["--dir", path(&pond.dir())]).stdout(Stdio::piped());
    flood.spawn().expect("it can be run")
}

/// Reads a second of one volume, and of another one beside it, each with many at a time.
fn rates(pond: &Pond, one: &str, other: &str, meanwhile: impl FnOnce()) -> (f64, f64) {
    let (child, target) = (flood(pond, other), format!("volume:{one}"));
    let watched = std::thread::scope(|scope| {
        let job = ["bench", "--target", &target, "--iodepth", "192", "--ramp-time", "1", "--runtime", "3"];
        let watched = scope.spawn(move || pond.json(&job));
        meanwhile();
        watched.join().expect("it does not panic")
    });
    let flooded = child.wait_with_output().expect("it ends");
    let flooded: Value = serde_json::from_slice(&flooded.stdout).expect("it is JSON");
    let iops = |of: &Value| of["read"]["iops"].as_f64().expect("it is a number");
    (iops(&watched), iops(&flooded))
}

#[test]
fn of_two_volumes_that_want_all_each_has_its_part_by_weight_and_what_is_reserved() {
    let pond = Pond::start("1GiB");
    for volume in ["one", "other"] {
        pond.volume(volume, "256MiB");
    }
    becomes_whole(&pond);
    for volume in ["one", "other"] {
        let target = format!("volume:{volume}");
        pond.run(&["bench", "--target", &target, "--rw", "write", "--bs", "256KiB", "--io-size", "256MiB"]);
    }
    let said = pond.run(&["volume", "qos", "one", "--weight", "1000"]);
    names(&said, &["volume one", "nothing reserved", "weight 1000"]);
    pond.run(&["volume", "qos", "other", "--weight", "10"]);
    let top = || {
        std::thread::sleep(Duration::from_millis(1500));
        let sample = pond.json(&["top"]);
        let volumes = sample["volumes"].as_array().expect("it lists volumes").clone();
        let other = volumes.iter().find(|volume| volume["name"] == "other").expect("it is busy");
        assert!(other["queued_per_s"].as_f64().is_some_and(|rate| rate > 100.0), "{other}");
        assert_eq!(other["limits"], "nothing reserved, weight 10");
    };
    let (heavy, _) = rates(&pond, "one", "other", top);
    for (volume, weight) in [("one", "10"), ("other", "1000")] {
        pond.run(&["volume", "qos", volume, "--weight", weight]);
    }
    let (light, _) = rates(&pond, "one", "other", || {});
    // By as much as the client keeps something waiting: with two processors for all, the kernel shares those evenly.
    assert!(heavy > 2.0 * light, "{heavy} and {light} a second");
    // Now it weighs next to nothing, and has what is reserved.
    pond.run(&["volume", "qos", "one", "--weight", "1", "--reservation", "2000"]);
    let (one, other) = rates(&pond, "one", "other", || {});
    assert!(one > 1_900.0, "{one} and {other} a second");
}

#[test]
fn what_cannot_be_reserved_is_refused_and_profiles_say_what_work_may_take() {
    let pond = Pond::start("1GiB");
    pond.volume("disk", "64MiB");
    let refused = |arguments: &[&str], told: &[&str]| {
        let (worked, _, said) = pond.attempt(arguments);
        assert!(!worked, "{arguments:?}");
        names(&said, told);
    };
    names(&pond.run(&["cluster", "capacity"]), &["20000 operations"]);
    // Three OSDs, and three copies.
    refused(
        &["volume", "qos", "disk", "--reservation", "20001"],
        &["20000 left", "millpond cluster capacity"],
    );
    names(&pond.run(&["cluster", "capacity", "30000"]), &["30000 operations"]);
    names(
        &pond.run(&["volume", "qos", "disk", "--reservation", "20001"]),
        &["20001 operations a second reserved"],
    );
    names(&pond.run(&["volume", "info", "disk"]), &["20001 operations a second reserved, weight 100"]);
    refused(&["volume", "limit", "disk", "--iops", "20000"], &["20001 operations", "millpond volume qos"]);
    pond.run(&["volume", "limit", "disk", "--iops", "25000"]);
    refused(&["volume", "qos", "disk", "--reservation", "25001"], &["never have more than 25000"]);
    refused(&["volume", "qos", "disk"], &["--reservation 2000", "--weight 200"]);
    refused(&["volume", "qos", "disk", "--weight", "0"], &["from 1 to 10000"]);
    refused(&["volume", "qos", "nobody", "--weight", "5"], &["nobody", "millpond volume ls"]);
    refused(&["cluster", "capacity", "0"], &["IOPS"]);
    refused(&["cluster", "profile", "fast"], &["balanced, clients, recovery and background"]);
    names(&pond.run(&["cluster", "profile"]), &["balanced", "recovery 10%", "scrub 10%"]);
    names(&pond.run(&["cluster", "profile", "recovery"]), &["recovery 50%", "deletion 5%"]);
    assert_eq!(pond.json(&["status"])["cluster"]["profile"], "recovery");
    pond.run(&["cluster", "recovery", "7%"]);
    names(&pond.run(&["cluster", "profile"]), &["recovery 7%", "scrub 5%"]);
    names(&pond.run(&["cluster", "profile", "clients"]), &["recovery 3%"]);
}
