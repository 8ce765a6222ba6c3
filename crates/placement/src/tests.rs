//! Properties of placing and of placing anew, over clusters of any shape.

mod scale;
mod trees;

use super::*;
use base::map::FailureDomain::Host;
use proptest::prelude::*;
use std::collections::BTreeSet;

type Targets = Vec<Vec<OsdId>>;

fn on_host(osd: u32, host: u32, weight: u64) -> Candidate {
    Candidate { osd: OsdId(osd), weight, place: Place { host, ..Place::default() } }
}

fn equal(nodes: u32, each: u32) -> Vec<Candidate> {
    (0..nodes * each).map(|osd| on_host(osd, osd % nodes, 8 << 30)).collect()
}

fn count<'a>(osds: impl Iterator<Item = &'a OsdId>) -> BTreeMap<OsdId, u32> {
    let mut counts = BTreeMap::new();
    for osd in osds {
        *counts.entry(*osd).or_insert(0) += 1;
    }
    counts
}

fn fair(candidates: &[Candidate], size: u32) -> Vec<f64> {
    shares(&Tree::new(Host, candidates), candidates, size as usize)
}

fn leads(candidates: &[Candidate], size: u32) -> Vec<f64> {
    lead_shares(&fair(candidates, size), candidates, size as usize)
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (0..8u32, prop::sample::select(vec![1u64 << 30, 2 << 30, 2 << 30, 64 << 30]));
    prop::collection::vec(one, 1..40).prop_map(|drives| {
        (0..).zip(drives).map(|(osd, (host, weight))| on_host(osd, host, weight)).collect()
    })
}

proptest! {
    #[test]
    fn every_group_has_its_replicas_on_distinct_osds_and_hosts(
        candidates in candidates(), pool in 0..5u32, pg_count in 1..200u32, size in 1..6u32,
    ) {
        prop_assume!(candidates.len() >= size as usize);
        let nodes: BTreeMap<OsdId, u32> = candidates.iter().map(|one| (one.osd, one.place.host)).collect();
        let node_count = nodes.values().collect::<BTreeSet<_>>().len();
        let groups = place(PoolId(pool), pg_count, size, Host, &candidates);
        prop_assert_eq!(groups.len(), pg_count as usize);
        for group in &groups {
            prop_assert_eq!(group.len(), size as usize);
            prop_assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), size as usize);
            let used: BTreeSet<_> = group.iter().map(|osd| nodes[osd]).collect();
            prop_assert_eq!(used.len(), node_count.min(size as usize));
        }
        prop_assert_eq!(groups, place(PoolId(pool), pg_count, size, Host, &candidates));
    }

    #[test]
    fn primaries_of_equal_osds_differ_by_one_at_most(
        candidates in candidates(), pool in 0..5u32, pg_count in 1..200u32, size in 1..4u32,
    ) {
        prop_assume!(candidates.len() >= size as usize);
        let groups = place(PoolId(pool), pg_count, size, Host, &candidates);
        let primaries = count(groups.iter().map(|group| &group[0]));
        let mut by_share: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (one, share) in candidates.iter().zip(leads(&candidates, size)) {
            let counts = by_share.entry((share * 1e9).round() as u64).or_default();
            counts.push(primaries.get(&one.osd).copied().unwrap_or(0));
        }
        for (share, counts) in by_share {
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{share}: {counts:?}");
        }
    }

    #[test]
    fn replicas_of_equal_osds_are_spread(
        nodes in 1..12u32, each in 1..5u32, size in 1..4u32, pool in 0..5u32, per_osd in 4..40u32,
    ) {
        prop_assume!(nodes >= size);
        let candidates = equal(nodes, each);
        let pg_count = (nodes * each * per_osd / size).max(1);
        let groups = place(PoolId(pool), pg_count, size, Host, &candidates);
        check_balance(size, &groups, &candidates);
    }
}

#[test]
fn three_equal_hosts_share_64_groups_evenly() {
    let groups = place(PoolId(1), 64, 3, Host, &equal(3, 1));
    let mut primaries: Vec<u32> = count(groups.iter().map(|group| &group[0])).into_values().collect();
    primaries.sort_unstable();
    assert_eq!(primaries, [21, 21, 22]);
}

#[test]
fn a_drive_of_twice_the_size_holds_about_twice_as_much() {
    let mut candidates = equal(12, 1);
    for candidate in &mut candidates[..6] {
        candidate.weight *= 2;
    }
    let replicas = count(place(PoolId(1), 512, 2, Host, &candidates).iter().flatten());
    let sum = |range: std::ops::Range<u32>| range.map(|osd| replicas[&OsdId(osd)]).sum::<u32>();
    let ratio = f64::from(sum(0..6)) / f64::from(sum(6..12));
    assert!((1.8..2.2).contains(&ratio), "{ratio}");
}

#[test]
fn a_giant_is_not_the_primary_of_everything() {
    let mut candidates = equal(4, 1);
    candidates[0].weight <<= 10;
    let groups = place(PoolId(1), 90, 3, Host, &candidates);
    let primaries = count(groups.iter().map(|group| &group[0]));
    assert_eq!(primaries[&OsdId(0)], 30);
}

#[test]
fn two_pools_do_not_lie_alike() {
    let candidates = equal(6, 2);
    assert_ne!(place(PoolId(1), 64, 3, Host, &candidates), place(PoolId(2), 64, 3, Host, &candidates));
}

/// The least sum of squares of the replicas per node that a group of `size` can have.
fn crowding(group: &[OsdId], nodes: &BTreeMap<OsdId, u32>) -> usize {
    let mut on_node: BTreeMap<u32, usize> = BTreeMap::new();
    for osd in group {
        *on_node.entry(nodes[osd]).or_default() += 1;
    }
    on_node.values().map(|count| count * count).sum()
}

fn moved(from: &Targets, to: &Targets) -> usize {
    let new = |(from, to): (&Vec<OsdId>, &Vec<OsdId>)| to.iter().filter(|osd| !from.contains(osd)).count();
    from.iter().zip(to).map(new).sum()
}

/// Asserts what holds of every target of these candidates.
fn check(pool: PoolId, size: u32, targets: &Targets, candidates: &[Candidate]) {
    let nodes: BTreeMap<OsdId, u32> = candidates.iter().map(|one| (one.osd, one.place.host)).collect();
    let size = (size as usize).min(candidates.len());
    // The evenest spread there is, found by dealing.
    let ideal: Vec<OsdId> = place(PoolId(9), 1, size as u32, Host, candidates).remove(0);
    for target in targets {
        assert_eq!(target.len(), size, "{target:?}");
        assert_eq!(target.iter().collect::<BTreeSet<_>>().len(), size, "{target:?}");
        assert_eq!(crowding(target, &nodes), crowding(&ideal, &nodes), "{target:?}");
    }
    assert_eq!(*targets, retarget(pool, size as u32, Host, targets, candidates), "it is not settled");
}

/// Asserts that every OSD has its share, as near as the rule says, and leads its share.
fn check_balance(size: u32, targets: &Targets, candidates: &[Candidate]) {
    let replicas = count(targets.iter().flatten());
    let primaries = count(targets.iter().map(|target| &target[0]));
    let total = (targets.len() * size as usize) as f64;
    let lead = leads(candidates, size);
    for ((one, share), lead) in candidates.iter().zip(fair(candidates, size)).zip(lead) {
        let (held, fair) = (replicas.get(&one.osd).copied().unwrap_or(0), share * total);
        assert!(
            (f64::from(held) - fair).abs() <= (fair * 0.05).max(1.0) + 1e-6,
            "{} holds {held} of {fair}: {replicas:?}",
            one.osd
        );
        let (led, fair) = (primaries.get(&one.osd).copied().unwrap_or(0), lead * targets.len() as f64);
        assert!(
            // Of a single copy the primary is where the replica is.
            size == 1 || (f64::from(led) - fair).abs() < 1.0 + 1e-6,
            "{} leads {led} of {fair}: {primaries:?}",
            one.osd
        );
    }
}

proptest! {
    #[test]
    fn what_was_placed_stays_where_it_is(
        candidates in candidates(), pool in 0..5u32, pg_count in 1..200u32, size in 1..6u32,
    ) {
        prop_assume!(candidates.len() >= size as usize);
        let placed = place(PoolId(pool), pg_count, size, Host, &candidates);
        prop_assert_eq!(&placed, &retarget(PoolId(pool), size, Host, &placed, &candidates));
        check(PoolId(pool), size, &placed, &candidates);
    }

    #[test]
    fn after_any_change_targets_keep_the_rules_and_who_can_stay_stays_unless_others_need_it(
        candidates in candidates(), pool in 0..5u32, pg_count in 1..150u32, size in 1..6u32,
        gone in prop::collection::vec(any::<bool>(), 40), new in prop::collection::vec(any::<bool>(), 40),
    ) {
        let is = |flags: &Vec<bool>, osd: OsdId| flags[osd.0 as usize];
        let before: Vec<Candidate> = candidates.iter().filter(|one| !is(&new, one.osd)).copied().collect();
        let after: Vec<Candidate> = candidates.iter().filter(|one| !is(&gone, one.osd)).copied().collect();
        prop_assume!(before.len() >= size as usize && !after.is_empty());
        let placed = place(PoolId(pool), pg_count, size, Host, &before);
        let targets = retarget(PoolId(pool), size, Host, &placed, &after);
        check(PoolId(pool), size, &targets, &after);
        prop_assert_eq!(&targets, &retarget(PoolId(pool), size, Host, &placed, &after));
        // And back again: what left may come back.
        let back = retarget(PoolId(pool), size, Host, &targets, &candidates);
        check(PoolId(pool), size, &back, &candidates);
    }

    #[test]
    fn equal_osds_have_their_shares_after_any_change(
        nodes in 1..9u32, each in 1..4u32, size in 1..4u32, pool in 0..5u32, pg_count in 1..200u32,
        gone in prop::collection::btree_set(0..27u32, 0..5), come in 0..6u32,
    ) {
        let all = equal(nodes + 1, each);
        let before: Vec<Candidate> = all.iter().filter(|one| one.place.host < nodes).copied().collect();
        let mut after: Vec<Candidate> =
            before.iter().filter(|one| !gone.contains(&one.osd.0)).copied().collect();
        after.extend(all.iter().filter(|one| one.place.host == nodes).take(come as usize));
        prop_assume!(before.len() >= size as usize && after.len() >= size as usize);
        let placed = place(PoolId(pool), pg_count, size, Host, &before);
        check_balance(size, &placed, &before);
        let targets = retarget(PoolId(pool), size, Host, &placed, &after);
        check_balance(size, &targets, &after);
    }

    #[test]
    fn one_of_many_equal_osds_that_goes_or_comes_moves_little_more_than_its_share(
        nodes in 4..12u32, each in 1..4u32, size in 1..4u32, pool in 0..5u32, per_osd in 4..60u32,
        one in 0..100u32,
    ) {
        let all = equal(nodes, each);
        let one = OsdId(one % (nodes * each));
        let others: Vec<Candidate> = all.iter().filter(|candidate| candidate.osd != one).copied().collect();
        let pg_count = (nodes * each * per_osd / size).max(1);
        let limit = |ideal: usize| ideal as f64 * 1.1 + 4.0;

        let with = place(PoolId(pool), pg_count, size, Host, &all);
        let held = with.iter().flatten().filter(|osd| **osd == one).count();
        let without = retarget(PoolId(pool), size, Host, &with, &others);
        let count = moved(&with, &without);
        prop_assert!(count >= held && count as f64 <= limit(held), "{count} moved for {held} that went");

        let without = place(PoolId(pool), pg_count, size, Host, &others);
        let with = retarget(PoolId(pool), size, Host, &without, &all);
        let ideal = pg_count as usize * size as usize / all.len();
        let count = moved(&without, &with);
        prop_assert!(count as f64 <= limit(ideal), "{count} moved for {ideal} that came");
    }

    #[test]
    fn few_preferred_primaries_change_when_an_osd_goes(
        nodes in 4..12u32, size in 2..4u32, pool in 0..5u32, pg_count in 8..200u32, one in 0..12u32,
    ) {
        let all = equal(nodes, 1);
        let one = OsdId(one % nodes);
        let others: Vec<Candidate> = all.iter().filter(|candidate| candidate.osd != one).copied().collect();
        let before = place(PoolId(pool), pg_count, size, Host, &all);
        let after = retarget(PoolId(pool), size, Host, &before, &others);
        let changed = before.iter().zip(&after).filter(|(before, after)| before[0] != after[0]).count();
        let led = before.iter().filter(|target| target[0] == one).count();
        // A replica that had to move for balance may have been a primary's, and a rounding may fall elsewhere.
        prop_assert!(changed <= led + nodes as usize, "{changed} changed, {led} had to");
    }
}

#[test]
fn with_fewer_osds_than_copies_a_target_names_all_and_never_none() {
    let candidates = equal(3, 1);
    let placed = place(PoolId(1), 16, 3, Host, &candidates);
    let two = retarget(PoolId(1), 3, Host, &placed, &candidates[..2]);
    assert!(two.iter().all(|target| target.len() == 2), "{two:?}");
    let primaries = count(two.iter().map(|target| &target[0]));
    assert!(primaries.values().all(|count| *count == 8), "{primaries:?}");
    assert_eq!(retarget(PoolId(1), 3, Host, &two, &[]), two);
    let again = retarget(PoolId(1), 3, Host, &two, &candidates);
    check(PoolId(1), 3, &again, &candidates);
}

#[test]
fn a_target_without_replicas_is_filled_and_one_that_names_strangers_is_cleaned() {
    let candidates = equal(4, 1);
    let present =
        vec![vec![], vec![OsdId(77), OsdId(2), OsdId(2)], vec![OsdId(1), OsdId(0), OsdId(3), OsdId(2)]];
    let targets = retarget(PoolId(1), 3, Host, &present, &candidates);
    assert!(targets[1].contains(&OsdId(2)) && targets.iter().all(|target| target.len() == 3), "{targets:?}");
    check(PoolId(1), 3, &targets, &candidates);
}

#[test]
fn a_third_host_gets_a_replica_of_everything() {
    let candidates = equal(3, 2);
    let before: Vec<Candidate> = candidates.iter().filter(|one| one.place.host < 2).copied().collect();
    let placed = place(PoolId(1), 64, 3, Host, &before);
    let targets = retarget(PoolId(1), 3, Host, &placed, &candidates);
    assert_eq!(moved(&placed, &targets), 64);
    check(PoolId(1), 3, &targets, &candidates);
    check_balance(3, &targets, &candidates);
}

#[test]
fn where_data_lies_does_not_change_with_the_version() {
    // Machines of one drive each, three of them larger, of which some go and come: no version may move what an earlier one
    // had placed, and these are what the first one drew.
    let all: Vec<Candidate> = (0..9).map(|osd| on_host(osd, osd, (8 << 30) << (osd % 3 / 2))).collect();
    let placed = place(PoolId(1), 64, 3, Host, &all);
    let fewer: Vec<Candidate> = all.iter().filter(|one| one.osd.0 % 4 != 1).copied().collect();
    let without = retarget(PoolId(1), 3, Host, &placed, &fewer);
    let with = retarget(PoolId(1), 3, Host, &without, &all);
    let expected = [991_072_919_068_888_083, 4_787_351_446_956_634_601, 14_828_105_013_072_722_033];
    let digest = |targets: &Targets| {
        let osds = targets.iter().flatten();
        osds.fold(0, |digest: u64, osd| base::hash::mix(digest.rotate_left(7) ^ u64::from(osd.0)))
    };
    assert_eq!([&placed, &without, &with].map(digest), expected);
}
