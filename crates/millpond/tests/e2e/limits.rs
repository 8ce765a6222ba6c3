//! What is done with a volume, or under a key, in a second is what its limits allow, however many clients want how much and
//! whichever OSDs they ask; and nobody else waits for that.

use crate::common::door::Door;
use crate::common::pond::Pond;
use crate::common::whole::becomes_whole;
use crate::common::{names, path};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;
const VOLUME_BYTES: u64 = 64 << 20;
/// Connections to each door, each with one operation at a time.
const DEPTH: u64 = 12;
/// How long is counted, and how long it takes before until what is counted is what goes on.
const COUNTED: Duration = Duration::from_secs(4);
const SETTLES: Duration = Duration::from_millis(1500);

struct EndsWithThis<'a>(&'a AtomicBool);

impl Drop for EndsWithThis<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads and writes a second that are done through each of the doors, where `reads` of a hundred read; and meanwhile something else.
fn rates(doors: &[&Door], reads: u64, meanwhile: impl Fn()) -> Vec<f64> {
    let (enough, counts) = (AtomicBool::new(false), AtomicBool::new(false));
    let done: Vec<AtomicU64> = doors.iter().map(|_| AtomicU64::new(0)).collect();
    let (mut seconds, data) = (0.0, vec![7; BLOCK as usize]);
    std::thread::scope(|scope| {
        for (door, done) in doors.iter().zip(&done) {
            for number in 0..DEPTH {
                let (enough, counts, data) = (&enough, &counts, &data);
                scope.spawn(move || {
                    let mut client = door.client();
                    for step in 0.. {
                        if enough.load(Ordering::Relaxed) {
                            return;
                        }
                        // Another object each time.
                        let place = (step * DEPTH + number) * 1237 % (VOLUME_BYTES / u64::from(BLOCK));
                        let offset = place * u64::from(BLOCK);
                        match (step * 37 + number) % 100 < reads {
                            true => drop(client.read(offset, BLOCK).expect("it lies within the volume")),
                            false => client.write(offset, data).expect("it lies within the volume"),
                        }
                        done.fetch_add(u64::from(counts.load(Ordering::Relaxed)), Ordering::Relaxed);
                    }
                });
            }
        }
        std::thread::sleep(SETTLES);
        // Should it fail, the others are not to go on for ever.
        let _ends = EndsWithThis(&enough);
        meanwhile();
        let began = Instant::now();
        counts.store(true, Ordering::Relaxed);
        std::thread::sleep(COUNTED);
        counts.store(false, Ordering::Relaxed);
        seconds = began.elapsed().as_secs_f64();
        enough.store(true, Ordering::Relaxed);
    });
    done.iter().map(|done| done.load(Ordering::Relaxed) as f64 / seconds).collect()
}

/// Operations a second that no limit of these tests allows, and that a machine which runs other tests meanwhile is still good for.
const UNLIMITED: f64 = 500.0;

/// How often a rate is measured that is too low.
const TRIES: usize = 4;

/// The rate that `measure` finds comes to at least `least`: where it does not, it is measured again, since a machine that others
/// use too lets clients stand still for a moment. What is beyond `most` is so at the first time.
fn comes_to(least: f64, most: f64, mut measure: impl FnMut() -> f64) {
    let mut seen = Vec::new();
    while seen.len() < TRIES {
        let rate = measure();
        seen.push(rate);
        assert!(rate <= most, "{seen:?} a second, where {most} is too much");
        if rate >= least {
            return;
        }
    }
    panic!("{seen:?} a second, where {least} is expected");
}

/// No more than is allowed, and as much as clients ask for.
fn is_about(limit: f64, measure: impl FnMut() -> f64) {
    comes_to(0.85 * limit, 1.06 * limit, measure);
}

#[test]
fn a_volume_has_what_its_limits_allow_with_one_client_and_with_several_and_its_neighbours_do_not_wait() {
    let pond = Pond::start("1GiB");
    for volume in ["limited", "free"] {
        pond.volume(volume, &VOLUME_BYTES.to_string());
    }
    becomes_whole(&pond);
    let doors: Vec<Door> =
        (0..4).map(|number| pond.serve_shared_at("limited", &format!("limited-{number}"))).collect();
    let all: Vec<&Door> = doors.iter().collect();
    let said = pond.run(&["volume", "limit", "limited", "--iops", "200"]);
    names(&said, &["volume limited is limited: iops 200"]);
    is_about(200.0, || rates(&all[..1], 50, || {}).iter().sum());
    let free = pond.serve("free");
    let both = [all[0], all[1], all[2], all[3], &free];
    let top = || {
        let sample = pond.json(&["top"]);
        let volumes = sample["volumes"].as_array().expect("it lists volumes").clone();
        let limited = volumes.iter().find(|volume| volume["name"] == "limited").expect("it is busy");
        assert!(limited["throttled_per_s"].as_f64().is_some_and(|rate| rate > 30.0), "{limited}");
        assert_eq!(limited["limits"], "iops 200");
    };
    is_about(200.0, || rates(&both, 50, top)[..4].iter().sum());
    comes_to(UNLIMITED, f64::INFINITY, || rates(&both, 50, || {})[4]);
    // Changed while clients work; reads and writes apart.
    let change = || {
        pond.run(&[
            "volume",
            "limit",
            "limited",
            "--iops",
            "none",
            "--read-iops",
            "300",
            "--write-iops",
            "50",
        ]);
        std::thread::sleep(SETTLES);
    };
    // Half of all are writes, and each connection does one after the other: so as many reads are done.
    is_about(100.0, || rates(&all, 50, change).iter().sum());
    is_about(300.0, || rates(&all, 100, || {}).iter().sum());
    // More waits than is done in the second that clients have for coming to a standstill.
    pond.run(&["volume", "limit", "limited", "--none", "--write-iops", "20"]);
    let snapshot = || drop(pond.run(&["volume", "snapshot", "create", "limited@busy"]));
    let rate: f64 = rates(&all, 0, snapshot).iter().sum();
    // What waited was begun for the snapshot, and what comes behind it waits for that.
    assert!(rate <= 23.0, "{rate} a second, where 20 are allowed");
    pond.run(&["volume", "limit", "limited", "--none", "--write-bandwidth", "512KiB"]);
    is_about(128.0, || rates(&all, 0, || {}).iter().sum());
    let limits = pond.json(&["volume", "info", "limited"])["limits"].clone();
    assert_eq!(limits["write_bandwidth"]["per_second"], 512 << 10);
    names(&pond.run(&["volume", "limit", "limited", "--none"]), &["has no limits"]);
    comes_to(UNLIMITED, f64::INFINITY, || rates(&all, 50, || {}).iter().sum());
}

#[test]
fn a_key_has_what_its_limits_allow_with_all_its_volumes_and_wrong_limits_are_refused() {
    let pond = Pond::start("1GiB");
    for volume in ["a", "b"] {
        pond.volume(volume, &VOLUME_BYTES.to_string());
    }
    becomes_whole(&pond);
    let key = pond.scratch().join("tenant.key");
    pond.run(&["auth", "add", "tenant", "--pool", "default", "--rw", "--out", path(&key)]);
    names(&pond.run(&["auth", "limit", "tenant", "--iops", "200"]), &["key tenant is limited: iops 200"]);
    let flags = ["--key", path(&key)];
    let doors = ["a", "b"].map(|volume| pond.serve_with(volume, &flags));
    is_about(200.0, || rates(&[&doors[0], &doors[1]], 50, || {}).iter().sum());
    names(&pond.run(&["auth", "ls"]), &["tenant", "iops 200"]);
    let refused = |arguments: &[&str], told: &[&str]| {
        let (worked, _, said) = pond.attempt(arguments);
        assert!(!worked, "{arguments:?}");
        names(&said, told);
    };
    refused(&["volume", "limit", "a", "--iops", "0"], &["wait for ever", "none"]);
    refused(&["volume", "limit", "a", "--iops", "fast"], &["5000:20000"]);
    refused(&["volume", "limit", "a", "--bandwidth", "10XB"], &["100MiB"]);
    refused(&["volume", "limit", "a"], &["no limit is named", "--none"]);
    refused(&["volume", "limit", "nobody", "--iops", "5"], &["nobody", "millpond volume ls"]);
    refused(&["auth", "limit", "nobody", "--iops", "5"], &["nobody", "millpond auth ls"]);
    pond.run(&["auth", "limit", "tenant", "--none"]);
    comes_to(UNLIMITED, f64::INFINITY, || rates(&[&doors[0], &doors[1]], 50, || {}).iter().sum());
}
