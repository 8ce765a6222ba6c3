//! The store survives what drives are allowed to do; and the checker that says so notices when it does not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use sim::store_life::{self, SABOTAGES, Settings};
use store::Sabotage;

const FIXED_SEEDS: u64 = 600;
const FRESH_SEEDS: u64 = 300;
const SEEDS_UNTIL_NOTICED_MAX: u64 = 2000;
/// Where those were noticed last that take long to be; the search begins there, so that it usually ends there.
const NOTICED_AT: [(Sabotage, u64); 2] = [(Sabotage::KeepOldNames, 472), (Sabotage::ReplayOverLogs, 678)];

fn assert_survives(seed: u64) -> store_life::Report {
    store_life::run_guarded(seed, Settings::default()).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn the_store_survives_crashes_at_any_moment() {
    let (mut crashes, mut survivors, mut cleaned, mut refusals, mut shutdowns) = (0, 0, 0, 0, 0);
    let (mut splits, mut forgets, mut held) = (0, 0, 0);
    let (mut refused_headers, mut pushed, mut colliding, mut lookalikes) = (0, 0, 0, 0);
    for seed in 0..FIXED_SEEDS {
        let report = assert_survives(seed);
        crashes += report.crashes;
        survivors += report.survivors;
        cleaned += report.cleaned_blocks;
        refusals += report.refusals;
        shutdowns += report.shutdowns;
        splits += report.splits;
        forgets += report.forgets;
        held += report.held;
        refused_headers += report.refused_headers;
        pushed += report.pushed_blocks;
        colliding += report.colliding_blocks;
        lookalikes += report.lookalike_blocks;
    }
    // A simulation that stops reaching the interesting places would pass in silence.
    assert!(crashes > 2 * FIXED_SEEDS, "only {crashes} crashes");
    assert!(survivors > FIXED_SEEDS / 4, "only {survivors} unacknowledged operations survived");
    assert!(cleaned > FIXED_SEEDS * 10, "only {cleaned} blocks were cleaned");
    assert!(refusals > FIXED_SEEDS / 4, "only {refusals} refusals because full");
    assert!(shutdowns > FIXED_SEEDS / 4, "only {shutdowns} clean shutdowns");
    assert!(splits > FIXED_SEEDS / 2, "only {splits} splits");
    assert!(forgets > FIXED_SEEDS / 20, "only {forgets} times everything went");
    assert!(held > FIXED_SEEDS / 20, "only {held} objects that lag, and of which something is sure");
    assert!(refused_headers > FIXED_SEEDS / 20, "only {refused_headers} starts refused for a rotten header");
    assert!(pushed > FIXED_SEEDS * 10, "only {pushed} blocks were pushed");
    assert!(colliding > FIXED_SEEDS * 100, "only {colliding} blocks of equal checksums");
    assert!(lookalikes > FIXED_SEEDS * 50, "only {lookalikes} blocks that look like the store's own");
}

#[test]
fn the_store_survives_seeds_that_nobody_tried_before() {
    for seed in common::fresh_seeds(FRESH_SEEDS) {
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

#[test]
fn every_sabotage_is_noticed() {
    for sabotage in SABOTAGES {
        let settings = Settings { sabotage: Some(sabotage), ..Settings::default() };
        let hint = NOTICED_AT.iter().find(|(known, _)| *known == sabotage).map(|(_, seed)| *seed);
        let noticed = hint
            .into_iter()
            .chain(0..SEEDS_UNTIL_NOTICED_MAX)
            .find_map(|seed| store_life::run_guarded(seed, settings).err())
            // Noticed must be the sabotage, and nothing else.
            .inspect(|failure| {
                assert_survives(failure.seed);
            })
            .unwrap_or_else(|| panic!("{sabotage:?} goes unnoticed for {SEEDS_UNTIL_NOTICED_MAX} seeds"));
        println!("{sabotage:?} is noticed by {noticed}");
    }
}

#[test]
fn blocks_that_look_like_the_stores_own_are_noticed_where_its_secret_is_known() {
    let settings = Settings { secret_is_known: true, ..Settings::default() };
    let noticed = (0..SEEDS_UNTIL_NOTICED_MAX)
        .find_map(|seed| store_life::run_guarded(seed, settings).err())
        .inspect(|failure| {
            assert_survives(failure.seed);
        });
    println!("{}", noticed.expect("some life writes a block that its store takes for a batch"));
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    // Logs of groups that a checkpoint wrote left no room on a tiny drive, however much was deleted.
    for seed in [1_001_240, 1_004_129, 1_753_316_152_578_302] {
        assert_survives(seed);
    }
    // What arrived of a batch made the one whole that an opening had given up in its place.
    for seed in [5_000_711, 5_004_178, 5_012_720, 5_013_929] {
        assert_survives(seed);
    }
    // Both streams were full to the last block before any segment was free, and no batch could tell of the next one.
    assert_survives(5_011_186);
    // A checkpoint that found no room kept the cold stream from cleaning, which would have made some.
    assert_survives(6_001_969);
}
