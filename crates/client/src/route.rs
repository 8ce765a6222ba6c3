//! Where a request goes: the cluster map, arranged for one look-up per piece.

use base::hash::Map;
use base::map::ClusterMap;
use base::{Epoch, OsdId, PgId, PoolId, Sequence, VolumeId};

/// Who serves a placement group, as far as this client knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) primary: OsdId,
    pub(crate) epoch: Epoch,
    /// What the group has reached for good, as far as it said so ([`wire::Outcome::reached`]).
    pub(crate) reached: Sequence,
}

/// The routes of a pool's groups, by their numbers.
#[derive(Debug, Default)]
struct PoolRoutes {
    /// Its groups that are not being split, or were not yet.
    pg_count: u32,
    groups: Vec<Option<Route>>,
}

/// The routes of every pool.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pools: Map<PoolId, PoolRoutes>,
}

impl Routes {
    /// Takes over what the map says, except where an OSD told of a newer epoch.
    pub(crate) fn update(&mut self, map: &ClusterMap) {
        self.pools.retain(|id, _| map.pools.contains_key(id));
        for (id, pool) in &map.pools {
            let routes = self.pools.entry(*id).or_default();
            routes.pg_count = pool.pg_count;
            routes.groups.resize(pool.pg_numbers() as usize, None);
        }
        for (pg, config) in &map.pgs {
            let Some(route) = self.slot(*pg) else { continue };
            if route.is_none_or(|known| known.epoch <= config.epoch) {
                let reached = route.map_or(Sequence(0), |known| known.reached);
                *route = Some(Route { primary: config.primary, epoch: config.epoch, reached });
            }
        }
    }

    /// The group of an object of a volume, by the newest map: the one that was split off from another, if it was. `None`
    /// without the pool.
    pub(crate) fn group_of(&self, pool: PoolId, family: VolumeId, object: u32) -> Option<PgId> {
        let routes = self.pools.get(&pool)?;
        let pg = PgId::of_object(pool, routes.groups.len() as u32, family, object);
        let is_there = routes.groups[pg.index as usize].is_some();
        Some(if is_there { pg } else { PgId::of_object(pool, routes.pg_count, family, object) })
    }

    pub(crate) fn get(&self, pg: PgId) -> Option<Route> {
        *self.pools.get(&pg.pool)?.groups.get(pg.index as usize)?
    }

    /// Notes a newer epoch that the primary told of. Answers whether it was news.
    pub(crate) fn newer_epoch(&mut self, pg: PgId, epoch: Epoch) -> bool {
        match self.slot(pg) {
            Some(Some(route)) if route.epoch < epoch => {
                route.epoch = epoch;
                true
            }
            _ => false,
        }
    }

    /// A group says what it has reached, or that it says nothing of it.
    pub(crate) fn has_reached(&mut self, pg: PgId, reached: Sequence) {
        if let Some(Some(route)) = self.slot(pg) {
            route.reached = route.reached.max(reached);
        }
    }

    fn slot(&mut self, pg: PgId) -> Option<&mut Option<Route>> {
        self.pools.get_mut(&pg.pool)?.groups.get_mut(pg.index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{PgConfig, PoolInfo};

    /// A pool of one group.
    fn map(epoch: u32, primary: u32) -> ClusterMap {
        let (epoch, primary) = (Epoch(epoch), OsdId(primary));
        let config = PgConfig { epoch, primary, in_sync: vec![primary], ..PgConfig::default() };
        let info = PoolInfo { name: "p".into(), size: 1, min_size: 1, pg_count: 1, ..PoolInfo::default() };
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        map.pools.insert(PoolId(1), info);
        map.pgs.insert(PgId { pool: PoolId(1), index: 0 }, config);
        map
    }

    #[test]
    fn what_an_osd_told_of_counts_until_a_map_shows_as_much() {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let mut routes = Routes::default();
        routes.update(&map(3, 1));
        let is_news = [3, 5, 5, 4].map(|epoch| routes.newer_epoch(pg, Epoch(epoch)));
        assert_eq!(is_news, [false, true, false, false]);
        [40, 7].into_iter().for_each(|reached| routes.has_reached(pg, Sequence(reached)));
        let seen = |routes: &Routes| {
            let Route { primary, epoch, reached } = routes.get(pg).unwrap();
            (primary.0, epoch.0, reached.0)
        };
        routes.update(&map(4, 2));
        assert_eq!(seen(&routes), (1, 5, 40), "that map is older");
        routes.update(&map(5, 2));
        assert_eq!(seen(&routes), (2, 5, 40));
        let nobodys = PgId { index: 1, ..pg };
        assert!(!routes.newer_epoch(nobodys, Epoch(9)) && routes.get(nobodys).is_none());
        assert_eq!(routes.group_of(PoolId(1), VolumeId(5), 0), Some(pg));
        routes.update(&ClusterMap::default());
        assert!(routes.get(pg).is_none() && routes.group_of(PoolId(1), VolumeId(5), 0).is_none());
    }
}
