//! When the tombstone of a pool has done its service: every OSD that may hold something of the pool has said that it does not.
//!
//! Whoever says so has the tombstone in its map, and comes to hold nothing of the pool any more. So it is struck off for good, and
//! so is whoever is not registered any more: it takes part in nothing again. One that was formatted anew holds nothing, and says
//! that itself.

use base::PoolId;
use base::map::{ClusterMap, RemovedPool};
use base::status::Statuses;

/// What a tombstone shall be: gone, if nobody owes it anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TombstoneChange {
    /// The pool.
    pub pool: PoolId,
    /// What this was decided by.
    pub before: RemovedPool,
    /// What it shall be.
    pub now: RemovedPool,
}

/// The tombstones that name OSDs which hold nothing of their pools any more, by what these say.
#[must_use]
pub fn tombstone_changes(map: &ClusterMap, statuses: &Statuses) -> Vec<TombstoneChange> {
    let change = |(&pool, before): (&PoolId, &RemovedPool)| {
        let mut now = before.clone();
        now.owed_by.retain(|osd| {
            let has_cleared = statuses.get(osd).is_some_and(|status| status.cleared_pools.contains(&pool));
            map.osds.contains_key(osd) && !has_cleared
        });
        // One that names nobody goes, whoever made it so.
        let is_news = now != *before || now.owed_by.is_empty();
        is_news.then(|| TombstoneChange { pool, before: before.clone(), now })
    };
    map.removed_pools.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::OsdId;
    use base::map::OsdInfo;
    use base::status::OsdStatus;
    use std::sync::Arc;

    const POOL: PoolId = PoolId(3);

    /// So many OSDs, all of which owe a tombstone something.
    fn map(osds: u32) -> ClusterMap {
        let mut map = ClusterMap::default();
        map.osds.extend((0..osds).map(|osd| (OsdId(osd), OsdInfo::default())));
        let owed_by = map.osds.keys().copied().collect();
        map.removed_pools.insert(POOL, RemovedPool { name: "p".into(), owed_by });
        map
    }

    fn told(cleared: &[(u32, &[u32])]) -> Statuses {
        let status = |pools: &[u32]| {
            let cleared_pools = pools.iter().copied().map(PoolId).collect();
            Arc::new(OsdStatus { cleared_pools, ..OsdStatus::default() })
        };
        cleared.iter().map(|(osd, pools)| (OsdId(*osd), status(pools))).collect()
    }

    /// Who owes the tombstone something by what is decided; `None` if it stays as it is.
    fn left(map: &ClusterMap, statuses: &Statuses) -> Option<Vec<u32>> {
        let change = tombstone_changes(map, statuses).pop()?;
        assert_eq!((change.pool, &change.before), (POOL, &map.removed_pools[&POOL]));
        assert_eq!(change.now.name, change.before.name);
        Some(change.now.owed_by.iter().map(|osd| osd.0).collect())
    }

    #[test]
    fn who_says_that_it_holds_nothing_is_struck_off_and_who_is_silent_stays() {
        let map = map(3);
        assert_eq!(left(&map, &Statuses::default()), None);
        assert_eq!(left(&map, &told(&[(0, &[]), (1, &[2, 4]), (2, &[1])])), None, "of other pools");
        assert_eq!(left(&map, &told(&[(0, &[1, 3]), (2, &[])])), Some(vec![1, 2]));
        assert_eq!(left(&map, &told(&[(0, &[3]), (1, &[3]), (2, &[3, 9])])), Some(vec![]));
    }

    #[test]
    fn who_is_not_registered_any_more_owes_nothing_and_a_tombstone_of_nobody_goes() {
        let mut map = map(2);
        map.osds.remove(&OsdId(0));
        assert_eq!(left(&map, &Statuses::default()), Some(vec![1]));
        map.osds.clear();
        assert_eq!(left(&map, &Statuses::default()), Some(vec![]));
        map.removed_pools.get_mut(&POOL).unwrap().owed_by.clear();
        assert_eq!(left(&map, &Statuses::default()), Some(vec![]));
        // Who is down, or out, may come back with what it holds.
        assert_eq!(left(&self::map(1), &told(&[])), None);
    }
}
