//! How full the cluster is, as its OSDs tell.

use base::status::Statuses;
use cluster::SpaceRecord;
use std::collections::BTreeMap;

/// What changes by less than one part in so many of the whole is not told anew.
const PARTS: u64 = 400;

/// The sums over OSDs that tell.
#[must_use]
pub fn space(statuses: &Statuses) -> SpaceRecord {
    let sum = |of: fn(&base::status::OsdStatus) -> u64| statuses.values().map(|status| of(status)).sum();
    let mut objects = BTreeMap::new();
    for (pg, status) in statuses.values().flat_map(|status| &status.pgs) {
        *objects.entry(pg.pool).or_insert(0) += status.objects;
    }
    SpaceRecord {
        usable_bytes: sum(|status| status.usable_bytes),
        used_bytes: sum(|status| status.used_bytes),
        objects,
    }
}

/// Whether somebody who asks how full the cluster is would want to know that it is not as it was.
#[must_use]
pub fn is_news(before: &SpaceRecord, now: &SpaceRecord) -> bool {
    let part = now.usable_bytes / PARTS;
    let differs = |one: u64, other: u64| one.abs_diff(other) > part;
    let all = |space: &SpaceRecord| space.objects.values().sum::<u64>();
    let objects = all(now) / PARTS;
    differs(before.usable_bytes, now.usable_bytes)
        || differs(before.used_bytes, now.used_bytes)
        || all(before).abs_diff(all(now)) > objects
        || before.objects.keys().ne(now.objects.keys())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::status::{FlattenStatus, OsdStatus, PgState, PgStatus};
    use base::{CutId, Epoch, OsdId, PgId, PoolId};
    use std::sync::Arc;

    fn told(pools: &[(u32, u64)], used_bytes: u64) -> OsdStatus {
        let group = |(pool, objects): &(u32, u64)| {
            let status = PgStatus {
                epoch: Epoch(1),
                state: PgState::Active,
                in_sync: Vec::new(),
                objects: *objects,
                recovery: None,
                cut_through: CutId(0),
                flatten: FlattenStatus::default(),
            };
            (PgId { pool: PoolId(*pool), index: 0 }, status)
        };
        OsdStatus {
            used_bytes,
            usable_bytes: 10_000,
            pgs: pools.iter().map(group).collect(),
            ..OsdStatus::default()
        }
    }

    #[test]
    fn it_is_told_anew_when_it_has_changed_by_more_than_a_little() {
        let statuses = |first: u64| -> Statuses {
            let all = [told(&[(1, 5), (2, 1)], first), told(&[(1, 7)], 200)];
            (0..).map(OsdId).zip(all.map(Arc::new)).collect()
        };
        let before = space(&statuses(100));
        let objects = [(PoolId(1), 12), (PoolId(2), 1)].into();
        assert_eq!(before, SpaceRecord { usable_bytes: 20_000, used_bytes: 300, objects });
        assert!(is_news(&SpaceRecord::default(), &before));
        assert!(!is_news(&before, &before) && !is_news(&before, &space(&statuses(150))));
        assert!(is_news(&before, &space(&statuses(151))));
        assert!(is_news(&before, &SpaceRecord { objects: [(PoolId(1), 13)].into(), ..before.clone() }));
    }
}
