//! Where data shall lie when the OSDs or pools have changed.

use base::map::{ClusterMap, PgConfig, PoolInfo};
use base::{OsdId, PgId, PoolId};
use cluster::TargetChange;
use placement::{Candidate, retarget};
use std::collections::BTreeMap;

/// What targets are decided by, and what was decided.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// With their weights and places, by the rule of each pool.
    candidates: BTreeMap<PoolId, Vec<Candidate>>,
    pools: BTreeMap<PoolId, PoolInfo>,
    targets: BTreeMap<PgId, Vec<OsdId>>,
}

impl Layout {
    pub(crate) fn of(map: &ClusterMap) -> Layout {
        let candidates = map.pools.iter().map(|(&id, pool)| (id, Candidate::of_rule(map, &pool.rule)));
        Layout { candidates: candidates.collect(), pools: map.pools.clone(), targets: map.targets.clone() }
    }
}

/// The targets that are to be others than they are. In a large pool this takes a while.
#[must_use]
pub fn target_changes(map: &ClusterMap) -> Vec<TargetChange> {
    let change = |pg: PgId, target| TargetChange { pg, before: map.targets.get(&pg).cloned(), target };
    let mut changes = Vec::new();
    for (&pool, info) in &map.pools {
        let candidates = Candidate::of_rule(map, &info.rule);
        // Of groups that are being split both halves lie together until all are: whatever was balanced before is so then.
        let groups = || (0..info.pg_count).map(|index| PgId { pool, index });
        let present: Vec<Vec<OsdId>> = groups().map(|pg| present(map, pg)).collect();
        let targets = retarget(pool, info.size, info.rule.failure_domain, &present, &candidates);
        for ((pg, present), target) in groups().zip(present).zip(targets) {
            if target != present {
                changes.push(change(pg, target.clone()));
            }
            let child = pg.child(info.pg_count);
            if info.split_to.is_some() && map.pgs.contains_key(&child) && self::present(map, child) != target
            {
                changes.push(change(child, target));
            }
        }
    }
    changes
}

/// Where a group's replicas shall lie now: where its target says, else where its configuration has them.
fn present(map: &ClusterMap, pg: PgId) -> Vec<OsdId> {
    if let Some(target) = map.targets.get(&pg) {
        return target.clone();
    }
    let Some(PgConfig { primary, in_sync, .. }) = map.pgs.get(&pg) else { return Vec::new() };
    let others = in_sync.iter().filter(|osd| *osd != primary);
    std::iter::once(primary).chain(others).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{Admission, DeviceClass, FailureDomain, Location, NodeInfo, OsdInfo, Reweight};
    use base::{Epoch, NodeId};

    /// OSDs on nodes of their own, all in and up, and one pool of three copies.
    fn map(osds: u32) -> ClusterMap {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        for osd in 0..osds {
            let address = Some("127.0.0.1:7000".parse().unwrap());
            let info = OsdInfo { node: NodeId(osd), bytes: 1 << 30, address, ..OsdInfo::default() };
            map.osds.insert(OsdId(osd), info);
        }
        let pool = PoolInfo { name: "p".into(), size: 3, min_size: 1, pg_count: 16, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        map
    }

    #[test]
    fn whatever_targets_depend_on_has_them_decided_anew() {
        let mut settled = None;
        let mut map = map(8);
        for node in 0..8 {
            let location = Location { rack: Some(format!("r{}", node / 2)), ..Location::default() };
            map.nodes.insert(NodeId(node), NodeInfo { location, ..NodeInfo::default() });
        }
        let mut settle = |map: &mut ClusterMap| {
            assert_ne!(settled, Some(Layout::of(map)));
            for change in target_changes(map) {
                map.targets.insert(change.pg, change.target);
            }
            assert_eq!(target_changes(map), []);
            settled = Some(Layout::of(map));
        };
        settle(&mut map);
        map.osds.get_mut(&OsdId(3)).unwrap().reweight = Reweight::from_thousandths(500).unwrap();
        settle(&mut map);
        map.nodes.get_mut(&NodeId(1)).unwrap().location.rack = Some("r3".into());
        settle(&mut map);
        map.nodes.get_mut(&NodeId(1)).unwrap().host = "other".into();
        map.nodes.get_mut(&NodeId(2)).unwrap().host = "other".into();
        settle(&mut map);
        map.pools.get_mut(&PoolId(1)).unwrap().rule.failure_domain = FailureDomain::Rack;
        settle(&mut map);
        map.pools.get_mut(&PoolId(1)).unwrap().rule.device_class = Some(DeviceClass::Ssd);
        map.osds.get_mut(&OsdId(5)).unwrap().device_class = DeviceClass::Hdd;
        settle(&mut map);
        assert!(map.targets.values().all(|target| !target.contains(&OsdId(5))));
    }

    #[test]
    fn targets_change_with_the_osds_and_settle() {
        let mut map = map(4);
        for change in target_changes(&map) {
            map.targets.insert(change.pg, change.target);
        }
        assert_eq!(map.targets.len(), 16);
        assert_eq!(target_changes(&map), []);
        map.osds.get_mut(&OsdId(2)).unwrap().admission = Admission::OutWhileDown;
        let away = target_changes(&map);
        assert!(!away.is_empty() && away.iter().all(|change| !change.target.contains(&OsdId(2))));
        assert!(away.iter().all(|change| change.before.as_ref() == map.targets.get(&change.pg)));
    }

    #[test]
    fn a_group_without_a_target_keeps_what_it_has() {
        let mut map = map(3);
        let placed = target_changes(&map);
        for change in &placed {
            let config = PgConfig {
                epoch: Epoch(1),
                primary: change.target[0],
                in_sync: change.target.iter().rev().copied().collect(),
                ..PgConfig::default()
            };
            map.pgs.insert(change.pg, config);
        }
        assert_eq!(target_changes(&map), []);
    }
}
