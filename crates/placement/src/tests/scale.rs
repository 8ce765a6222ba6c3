//! A whole data centre: 339 hosts of 24 OSDs, 65,536 groups of three replicas.
#![allow(
    clippy::disallowed_methods,
    reason = "that nothing grows with the square is seen by the time it takes"
)]

use super::*;
use std::time::{Duration, Instant};

const HOSTS: u32 = 339;
const OSDS_PER_HOST: u32 = 24;
/// What the slowest step may take on a busy machine. It takes about a second on an idle one; what grows with the square of
/// the OSDs takes minutes.
const LIMIT: Duration = Duration::from_secs(30);

fn hosts(hosts: std::ops::Range<u32>, racks: u32) -> Vec<Candidate> {
    let osds = hosts.flat_map(|host| (0..OSDS_PER_HOST).map(move |slot| (host * OSDS_PER_HOST + slot, host)));
    osds.map(|(osd, host)| {
        let rack = (racks > 0).then(|| host % racks);
        Candidate { osd: OsdId(osd), weight: 8 << 40, place: Place { rack, host, ..Place::default() } }
    })
    .collect()
}

fn timed<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = step();
    let took = started.elapsed();
    println!("{what}: {} ms", took.as_millis());
    assert!(took < LIMIT, "{what} took {took:?}");
    result
}

fn assert_good(failure_domain: FailureDomain, targets: &Targets, candidates: &[Candidate]) {
    let survey = Survey::of(3, failure_domain, targets, candidates);
    println!("{survey:?}");
    assert_eq!(survey.violations, 0, "{survey:?}");
    assert_eq!(survey.replicas.beyond, 0, "{survey:?}");
    assert!(survey.primaries.off_max < 1.0 + 1e-6, "{survey:?}");
}

fn lives(failure_domain: FailureDomain, racks: u32) {
    let pool = PoolId(1);
    let all = hosts(0..HOSTS, racks);
    let placed = timed("placing", || place(pool, 1 << 16, 3, failure_domain, &all));
    assert_good(failure_domain, &placed, &all);

    let fewer: Vec<Candidate> = all.iter().filter(|one| one.place.host != 7).copied().collect();
    let held = placed.iter().flatten().filter(|osd| osd.0 / OSDS_PER_HOST == 7).count();
    let without = timed("a host goes", || retarget(pool, 3, failure_domain, &placed, &fewer));
    assert_good(failure_domain, &without, &fewer);
    let count = moved(&placed, &without);
    println!("{count} of {held}");
    assert!(count >= held && count as f64 <= held as f64 * 1.1, "{count} moved for {held}");
    assert!(timed("nothing changes", || retarget(pool, 3, failure_domain, &without, &fewer)) == without);

    let more = hosts(0..HOSTS + 1, racks);
    let with = timed("a host comes", || retarget(pool, 3, failure_domain, &placed, &more));
    assert_good(failure_domain, &with, &more);
    let (count, ideal) = (moved(&placed, &with), 3.0 * 65_536.0 / f64::from(HOSTS + 1));
    println!("{count} of {ideal}");
    assert!(count as f64 <= ideal * 1.1, "{count} moved for {ideal}");
}

#[test]
fn a_data_centre_is_placed_and_changed_within_seconds() {
    lives(FailureDomain::Host, 0);
}

#[test]
fn a_data_centre_is_placed_over_its_racks_and_changed_within_seconds() {
    lives(FailureDomain::Rack, 20);
}

#[test]
fn few_osds_with_very_many_groups_are_changed_within_seconds_too() {
    let pool = PoolId(1);
    let five: Vec<Candidate> = (0..5).map(|osd| on_host(osd, osd, 1 << 40)).collect();
    let placed = timed("placing", || place(pool, 1 << 16, 3, Host, &five[..4]));
    let with = timed("a host comes", || retarget(pool, 3, Host, &placed, &five));
    assert_good(Host, &with, &five);
    let (count, ideal) = (moved(&placed, &with), 3.0 * 65_536.0 / 5.0);
    assert!(count as f64 <= ideal * 1.1, "{count} moved for {ideal}");
}
