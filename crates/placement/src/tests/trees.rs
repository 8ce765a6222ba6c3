//! Properties over random trees, weights and rules.

use super::*;
use base::map::FailureDomain;

/// Zones of racks of hosts of OSDs, of any sizes, some without names, with any weights.
fn trees() -> impl Strategy<Value = Vec<Candidate>> {
    let osd = prop::sample::select(vec![1u64 << 40, 2 << 40, 2 << 40, 8 << 40]);
    let host = prop::collection::vec(osd, 1..6);
    let rack = (prop::bool::weighted(0.85), prop::collection::vec(host, 1..5));
    let zone = (prop::bool::weighted(0.85), prop::collection::vec(rack, 1..5));
    prop::collection::vec(zone, 1..4).prop_map(|zones| {
        let (mut candidates, mut hosts, mut racks) = (Vec::new(), 0, 0);
        for (number, (is_named, in_zone)) in (0..).zip(zones) {
            let zone = is_named.then_some(number);
            for (is_named, in_rack) in in_zone {
                racks += 1;
                let rack = is_named.then_some(racks);
                for osds in in_rack {
                    hosts += 1;
                    for weight in osds {
                        let place = Place { region: None, zone, rack, host: hosts };
                        candidates.push(Candidate { osd: OsdId(candidates.len() as u32), weight, place });
                    }
                }
            }
        }
        candidates
    })
}

fn rules() -> impl Strategy<Value = FailureDomain> {
    prop::sample::select(FailureDomain::ALL.to_vec())
}

/// Asserts what holds of all targets: distinct failure domains as far as there are any, fair shares, and rest.
fn assert_good(pool: PoolId, size: u32, rule: FailureDomain, targets: &Targets, candidates: &[Candidate]) {
    let survey = Survey::of(size, rule, targets, candidates);
    assert_eq!(survey.violations, 0, "{survey:?}");
    assert_eq!(survey.replicas.beyond, 0, "{survey:?}");
    assert_eq!(*targets, retarget(pool, size, rule, targets, candidates), "it is not settled");
}

proptest! {
    #[test]
    fn replicas_lie_in_distinct_failure_domains_and_everybody_has_its_share(
        candidates in trees(), rule in rules(), pool in 0..5u32, pg_count in 1..400u32, size in 1..6u32,
    ) {
        prop_assume!(candidates.len() >= size as usize);
        let targets = place(PoolId(pool), pg_count, size, rule, &candidates);
        assert_good(PoolId(pool), size, rule, &targets, &candidates);
        prop_assert_eq!(&targets, &place(PoolId(pool), pg_count, size, rule, &candidates));
    }

    #[test]
    fn the_same_holds_after_hosts_came_and_went_and_weights_and_rules_changed(
        candidates in trees(), rule in rules(), other_rule in rules(), pool in 0..5u32, pg_count in 1..300u32,
        size in 1..6u32, gone in 0..40u32, new in 0..40u32, heavy in 0..100usize, light in 0..100usize,
    ) {
        let before: Vec<Candidate> = candidates.iter().filter(|one| one.place.host != new).copied().collect();
        prop_assume!(before.len() >= size as usize);
        let mut targets = place(PoolId(pool), pg_count, size, rule, &before);
        let mut after: Vec<Candidate> = candidates.iter().filter(|one| one.place.host != gone).copied().collect();
        prop_assume!(!after.is_empty());
        targets = retarget(PoolId(pool), size, rule, &targets, &after);
        assert_good(PoolId(pool), size, rule, &targets, &after);
        let count = after.len();
        after[heavy % count].weight *= 2;
        after[light % count].weight /= 2;
        targets = retarget(PoolId(pool), size, rule, &targets, &after);
        assert_good(PoolId(pool), size, rule, &targets, &after);
        let again = retarget(PoolId(pool), size, other_rule, &targets, &candidates);
        assert_good(PoolId(pool), size, other_rule, &again, &candidates);
        prop_assert_eq!(&again, &retarget(PoolId(pool), size, other_rule, &targets, &candidates));
    }

    #[test]
    fn a_host_that_comes_or_goes_moves_its_share_and_little_more(
        hosts in 5..40u32, each in 1..9u32, racks in 0..9u32, size in 1..4u32, per_osd in 8..60u32, one in 0..40u32,
        pool in 0..5u32, rule in prop::sample::select(vec![FailureDomain::Osd, FailureDomain::Host]),
    ) {
        let place_of = |host: u32| {
            Place { rack: (racks > 0).then(|| host % racks), host, ..Place::default() }
        };
        let osds = (0..hosts * each).map(|osd| Candidate { osd: OsdId(osd), weight: 1 << 40, place: place_of(osd / each) });
        let all: Vec<Candidate> = osds.collect();
        let one = one % hosts;
        let others: Vec<Candidate> = all.iter().filter(|candidate| candidate.place.host != one).copied().collect();
        let pg_count = (hosts * each * per_osd / size).max(1);
        let limit = |ideal: f64| ideal * 1.1 + 4.0;

        let with = place(PoolId(pool), pg_count, size, rule, &all);
        let held = with.iter().flatten().filter(|osd| osd.0 / each == one).count();
        let without = retarget(PoolId(pool), size, rule, &with, &others);
        let count = moved(&with, &without);
        prop_assert!(count >= held && count as f64 <= limit(held as f64), "{count} moved for {held} that went");

        let without = place(PoolId(pool), pg_count, size, rule, &others);
        let with = retarget(PoolId(pool), size, rule, &without, &all);
        let (count, ideal) = (moved(&without, &with), f64::from(pg_count * size) / f64::from(hosts));
        prop_assert!(count as f64 <= limit(ideal), "{count} moved for {ideal} that came");
    }

    #[test]
    fn primaries_follow_the_weights_of_many_equal_hosts(
        hosts in 4..30u32, each in 1..6u32, size in 2..4u32, per_osd in 8..40u32, pool in 0..5u32,
    ) {
        let all: Vec<Candidate> = (0..hosts * each).map(|osd| on_host(osd, osd / each, 1 << 40)).collect();
        let targets = place(PoolId(pool), hosts * each * per_osd / size, size, Host, &all);
        let survey = Survey::of(size, Host, &targets, &all);
        prop_assert!(survey.primaries.off_max < 1.0 + 1e-6, "{survey:?}");
    }
}

#[test]
fn hosts_without_a_rack_count_as_one_rack() {
    let place_of = |osd: u32| Place { rack: (osd < 4).then_some(osd / 2), host: osd, ..Place::default() };
    let all: Vec<Candidate> =
        (0..8).map(|osd| Candidate { osd: OsdId(osd), weight: 1, place: place_of(osd) }).collect();
    assert_eq!(Candidate::named_domains(&all, FailureDomain::Rack), 2);
    for target in place(PoolId(1), 64, 3, FailureDomain::Rack, &all) {
        let racks: BTreeSet<_> = target.iter().map(|osd| place_of(osd.0).rack).collect();
        assert_eq!(racks.len(), 3, "{target:?}");
    }
}

#[test]
fn an_osd_of_half_the_weight_holds_half_as_much_and_what_it_lost_is_all_that_moves() {
    let mut all: Vec<Candidate> = (0..24).map(|osd| on_host(osd, osd / 4, 8 << 40)).collect();
    let before = place(PoolId(1), 512, 3, Host, &all);
    all[5].weight /= 2;
    let after = retarget(PoolId(1), 3, Host, &before, &all);
    let held = |targets: &Targets| targets.iter().flatten().filter(|osd| osd.0 == 5).count();
    assert!((62..=66).contains(&held(&before)), "{}", held(&before));
    assert!((31..=35).contains(&held(&after)), "{}", held(&after));
    let count = moved(&before, &after);
    assert!(count <= held(&before) - held(&after) + 3, "{count} moved");
}
