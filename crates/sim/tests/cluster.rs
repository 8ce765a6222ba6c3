//! Whole clusters survive what may happen to them; and the simulation reaches the places where that is hard.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sim::cluster::checker::Writes;
use sim::cluster::{self, Report, Settings};

const FIXED_SEEDS: u64 = 60;
const FRESH_SEEDS: u64 = 30;

/// Until OSDs recognize a write that is sent again, one that took effect before may do so again.
const SETTINGS: Settings = Settings { print: None, writes: Writes::MayBeRepeated, scarce_buffers: false };

fn assert_survives(seed: u64) -> Report {
    cluster::run_guarded(seed, SETTINGS).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn clusters_survive_whatever_breaks() {
    let mut total = Report::default();
    for seed in 0..FIXED_SEEDS {
        total.merge(&assert_survives(seed));
    }
    // A simulation that stops reaching the interesting places would pass in silence.
    let often = [
        "crash",
        "power cut",
        "hang",
        "stall in a turn",
        "link break",
        "one-way partition",
        "two-way partition",
        "isolation",
        "registry outage",
        "client crash",
        "shutdown done",
        "proposal: answer lost",
        "lease ended",
    ];
    for what in often {
        assert!(total.coverage.of(what) >= FIXED_SEEDS / 4, "{what}: only {}", total.coverage.of(what));
    }
    assert!(total.coverage.of("a group begins to serve") > 4 * FIXED_SEEDS);
    assert!(total.operations > 150 * FIXED_SEEDS, "only {} operations", total.operations);
}

#[test]
fn clusters_survive_seeds_that_nobody_tried_before() {
    #[expect(clippy::disallowed_methods, reason = "the start alone is fresh, and it is printed")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let start = now.as_nanos() as u64 >> 10;
    println!("fresh seeds from {start}");
    for seed in start..start + FRESH_SEEDS {
        assert_survives(seed);
    }
}

#[test]
fn one_seed_is_one_life() {
    for seed in [0, 1, 2, 3, 1234] {
        let (first, second) = (assert_survives(seed), assert_survives(seed));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.trace_hash, assert_survives(seed + 1).trace_hash);
    }
}
