//! How many placement groups a pool should have.

use super::{Candidate, fair_replicas};
use base::map::{ClusterMap, PlacementRule, PoolInfo};
use base::{OsdId, PgId};
use std::collections::BTreeMap;

/// The fewest that a pool gets without being asked for a number.
pub const PG_COUNT_MIN: u32 = 16;
/// The most that a pool can have.
pub const PG_COUNT_MAX: u32 = PgId::COUNT_MAX;
/// Replicas on an OSD that are enough to spread load and rebuilding over many others, and few enough that what each
/// group costs does not count.
const REPLICAS_PER_OSD: f64 = 100.0;
/// A pool is left alone unless it should have so many times the groups it has.
const TOO_FEW_BY: u32 = 2;

/// The number of placement groups for a pool of `size` copies over `osds` OSDs that is expected to hold the part `share`
/// (0 to 1) of the cluster's data: the power of two nearest to what gives all pools together 100 replicas on each OSD,
/// within [`PG_COUNT_MIN`] and [`PG_COUNT_MAX`].
#[must_use]
pub fn recommended_pg_count(osds: usize, size: u32, share: f64) -> u32 {
    let exact = osds as f64 * REPLICAS_PER_OSD * share.clamp(0.0, 1.0) / f64::from(size.max(1));
    let (least, most) = (f64::from(PG_COUNT_MIN), f64::from(PG_COUNT_MAX));
    1 << exact.clamp(least, most).log2().round() as u32
}

/// The number of placement groups for a pool of `size` copies by a rule, of which nobody said a number: all pools, this one with them, are
/// expected to hold equal parts.
#[must_use]
pub fn default_pg_count(map: &ClusterMap, rule: &PlacementRule, size: u32) -> u32 {
    let pools = map.pools.len() + 1;
    recommended_pg_count(Candidate::of_rule(map, rule).len(), size, 1.0 / pools as f64)
}

/// What a pool of `current` groups should have next, on its way to `recommended`: as many as now, unless that is at least
/// twice as many; then exactly twice as many as now, for each group is split in two. So a wrong guess cannot set off a
/// large change, and each step can be seen through before the next. Groups are never made fewer.
#[must_use]
pub fn next_pg_count(current: u32, recommended: u32) -> u32 {
    let is_possible = (1..=PG_COUNT_MAX / 2).contains(&current);
    if is_possible && recommended / TOO_FEW_BY >= current { 2 * current } else { current }
}

/// How many replicas, of all pools, the OSD should hold that should hold the most of those on which a pool may lie, if the pool of
/// that name is or becomes `info`. Where they lie at the moment does not count. [`PgId::PER_OSD_MAX`] is enough.
#[must_use]
pub fn most_replicas(map: &ClusterMap, info: &PoolInfo) -> u32 {
    let mut of_osds: BTreeMap<OsdId, f64> = BTreeMap::new();
    let others = map.pools.values().filter(|pool| pool.name != info.name);
    for pool in others.chain([info]) {
        let candidates = Candidate::of_rule(map, &pool.rule);
        if candidates.is_empty() {
            continue;
        }
        let fair = fair_replicas(pool.size, pool.rule.failure_domain, pool.pg_numbers(), &candidates);
        for (candidate, replicas) in candidates.iter().zip(fair) {
            *of_osds.entry(candidate.osd).or_default() += replicas;
        }
    }
    let own = Candidate::of_rule(map, &info.rule);
    own.iter().filter_map(|candidate| of_osds.get(&candidate.osd)).copied().fold(0.0, f64::max).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{DeviceClass, OsdInfo, PlacementRule};
    use base::{NodeId, PoolId};
    use proptest::prelude::*;

    #[test]
    fn an_osd_should_hold_its_part_of_each_pool_that_may_lie_on_it() {
        let mut map = ClusterMap::default();
        for osd in 0..4 {
            let device_class = if osd < 2 { DeviceClass::Ssd } else { DeviceClass::Hdd };
            let info = OsdInfo { node: NodeId(osd), bytes: 1 << 40, device_class, ..OsdInfo::default() };
            map.osds.insert(OsdId(osd), info);
        }
        let pool = |name: &str, pg_count, device_class| PoolInfo {
            name: name.to_owned(),
            size: 2,
            min_size: 1,
            pg_count,
            rule: PlacementRule { device_class, ..PlacementRule::default() },
            ..PoolInfo::default()
        };
        map.pools.insert(PoolId(1), pool("all", 100, None));
        assert_eq!(most_replicas(&map, &pool("fast", 300, Some(DeviceClass::Ssd))), 50 + 300);
        map.pools.insert(PoolId(2), pool("slow", 5000, Some(DeviceClass::Hdd)));
        let fast = pool("fast", 300, Some(DeviceClass::Ssd));
        assert_eq!(
            most_replicas(&map, &fast),
            50 + 300,
            "what others hold that it does not touch is not its matter"
        );
        map.pools.remove(&PoolId(2));
        let split = PoolInfo { split_to: Some(200), ..pool("all", 100, None) };
        assert_eq!(most_replicas(&map, &split), 100, "it takes the place of what it is now");
        assert_eq!(most_replicas(&ClusterMap::default(), &split), 0);
    }

    #[test]
    fn a_pool_gets_about_a_hundred_replicas_on_each_osd() {
        assert_eq!(recommended_pg_count(3, 3, 1.0), 128);
        assert_eq!(recommended_pg_count(3, 3, 0.5), 64);
        assert_eq!(recommended_pg_count(12, 3, 1.0), 512);
        assert_eq!(recommended_pg_count(8_136, 3, 1.0), 1 << 16);
        assert_eq!(recommended_pg_count(8_136, 3, 0.1), 32_768);
        assert_eq!(recommended_pg_count(0, 3, 1.0), PG_COUNT_MIN);
        assert_eq!(recommended_pg_count(1, 1, 0.0), PG_COUNT_MIN);
    }

    #[test]
    fn a_number_that_is_not_far_off_stays() {
        for near in [1, 32, 64, 100, 127] {
            assert_eq!(next_pg_count(64, near), 64, "{near}");
        }
        assert_eq!(next_pg_count(64, 128), 128);
        assert_eq!(next_pg_count(64, 65_536), 128);
        assert_eq!(next_pg_count(100, 512), 200);
        assert_eq!(next_pg_count(PG_COUNT_MAX, PG_COUNT_MAX), PG_COUNT_MAX);
        assert_eq!(next_pg_count(40_000, u32::MAX), 40_000, "twice as many are too many");
    }

    proptest! {
        #[test]
        fn no_step_is_large_and_all_steps_come_to_an_end(current in 1..=PG_COUNT_MAX, recommended in 1..=PG_COUNT_MAX) {
            let mut now = current;
            for _ in 0..20 {
                let next = next_pg_count(now, recommended);
                prop_assert!(next == now || next == now * 2, "{now} to {next}");
                now = next;
            }
            prop_assert_eq!(next_pg_count(now, recommended), now);
            prop_assert!(now > PG_COUNT_MAX / 2 || now > recommended / 2, "it stays at {now}");
        }

        #[test]
        fn what_is_recommended_is_a_power_of_two_near_the_goal(osds in 1..20_000usize, size in 1..17u32) {
            let count = recommended_pg_count(osds, size, 1.0);
            prop_assert!(count.is_power_of_two() && (PG_COUNT_MIN..=PG_COUNT_MAX).contains(&count));
            let each = f64::from(count) * f64::from(size) / osds as f64;
            prop_assert!(count == PG_COUNT_MIN || count == PG_COUNT_MAX || (70.0..=142.0).contains(&each), "{each}");
        }
    }
}
