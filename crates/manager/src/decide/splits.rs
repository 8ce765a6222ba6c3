//! How many placement groups a pool shall have: those that decide by themselves double while they are few for their OSDs.

use base::map::{ClusterMap, PgConfig, PoolInfo};
use base::{PgId, PoolId};
use placement::{Candidate, most_replicas, next_pg_count, recommended_pg_count};

/// What a pool shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolChange {
    /// The pool.
    pub pool: PoolId,
    /// What this was decided by.
    pub before: PoolInfo,
    /// What it shall be.
    pub now: PoolInfo,
}

/// The pools whose groups are to be split in two, if all of them are whole, and those of which all are split, which count them
/// then.
#[must_use]
pub fn pool_changes(map: &ClusterMap) -> Vec<PoolChange> {
    let change = |(&pool, before): (&PoolId, &PoolInfo)| {
        let now = match before.split_to {
            Some(_) if !are_all_split(map, pool, before.pg_count) => return None,
            Some(pg_count) => PoolInfo { pg_count, split_to: None, ..before.clone() },
            None => PoolInfo { split_to: Some(count_to_split_to(map, pool, before)?), ..before.clone() },
        };
        Some(PoolChange { pool, before: before.clone(), now })
    };
    map.pools.iter().filter_map(change).collect()
}

/// Whether all groups of a pool that is being split are.
fn are_all_split(map: &ClusterMap, pool: PoolId, pg_count: u32) -> bool {
    (pg_count..2 * pg_count).all(|index| map.pgs.contains_key(&PgId { pool, index }))
}

/// How many groups a pool shall have instead of those it has, if it decides by itself and can have them split now.
fn count_to_split_to(map: &ClusterMap, pool: PoolId, info: &PoolInfo) -> Option<u32> {
    let is_whole = |(pg, config): (PgId, &PgConfig)| {
        let target = map.targets.get(&pg).unwrap_or(&config.in_sync);
        target.len() >= info.size as usize
            && config.in_sync.len() == target.len()
            && target.iter().all(|osd| config.in_sync.contains(osd))
    };
    if !info.pg_autoscale || !map.pgs_of(pool).all(is_whole) {
        return None;
    }
    let osds = Candidate::of_rule(map, &info.rule).len();
    // Nobody knows which pool will hold how much.
    let share = 1.0 / map.pools.len() as f64;
    let next = next_pg_count(info.pg_count, recommended_pg_count(osds, info.size, share));
    let split = PoolInfo { split_to: Some(next), ..info.clone() };
    (next > info.pg_count && most_replicas(map, &split) <= PgId::PER_OSD_MAX).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::OsdInfo;
    use base::{Epoch, NodeId, OsdId};

    const POOL: PoolId = PoolId(1);

    fn put_group(map: &mut ClusterMap, index: u32, in_sync: Vec<OsdId>) {
        let config = PgConfig { epoch: Epoch(1), primary: OsdId(0), in_sync, ..PgConfig::default() };
        map.pgs.insert(PgId { pool: POOL, index }, config);
    }

    /// Two OSDs, on which a pool of 16 groups is few.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::default();
        for osd in 0..2 {
            let info = OsdInfo { node: NodeId(osd), bytes: 1 << 30, ..OsdInfo::default() };
            map.osds.insert(OsdId(osd), info);
        }
        let pool = PoolInfo { name: "p".into(), size: 2, min_size: 1, pg_count: 16, ..PoolInfo::default() };
        map.pools.insert(POOL, PoolInfo { pg_autoscale: true, ..pool });
        (0..16).for_each(|index| put_group(&mut map, index, vec![OsdId(0), OsdId(1)]));
        map
    }

    #[test]
    fn a_pool_doubles_when_it_is_whole_and_counts_the_new_groups_when_all_are_there() {
        let mut map = map();
        let only = |map: &ClusterMap| {
            pool_changes(map).pop().map(|change| (change.now.pg_count, change.now.split_to))
        };
        put_group(&mut map, 3, vec![OsdId(0)]);
        assert_eq!(only(&map), None, "one group lacks a copy");
        put_group(&mut map, 3, vec![OsdId(0), OsdId(1)]);
        assert_eq!(only(&map), Some((16, Some(32))));
        map.pools.get_mut(&POOL).unwrap().pg_autoscale = false;
        assert_eq!(only(&map), None, "nobody said that it may");
        map.pools.get_mut(&POOL).unwrap().split_to = Some(32);
        (16..31).for_each(|index| put_group(&mut map, index, vec![OsdId(0), OsdId(1)]));
        assert_eq!(only(&map), None, "one group is still to be split");
        put_group(&mut map, 31, vec![OsdId(0), OsdId(1)]);
        assert_eq!(only(&map), Some((32, None)));
    }

    #[test]
    fn a_pool_does_not_double_where_its_osds_hold_groups_enough_of_others() {
        let mut map = map();
        let changes_beside = |pg_count| {
            let other = PoolInfo { name: "q".into(), pg_count, ..map.pools[&POOL].clone() };
            map.pools.insert(PoolId(2), PoolInfo { pg_autoscale: false, ..other });
            pool_changes(&map).len()
        };
        assert_eq!([1960, 1990].map(changes_beside), [1, 0]);
    }
}
