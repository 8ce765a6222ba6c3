//! Where a request goes: the cluster map, arranged for one look-up per piece.

use base::hash::Map;
use base::map::ClusterMap;
use base::{Epoch, OsdId, PgId, PoolId};

/// Who serves a placement group, as far as this client knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) primary: OsdId,
    pub(crate) epoch: Epoch,
}

/// The routes of every pool.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pools: Map<PoolId, Vec<Option<Route>>>,
}

impl Routes {
    /// Takes over what the map says, except where an OSD told of a newer epoch.
    pub(crate) fn update(&mut self, map: &ClusterMap) {
        self.pools.retain(|id, _| map.pools.contains_key(id));
        for (id, pool) in &map.pools {
            self.pools.entry(*id).or_default().resize(pool.pg_count as usize, None);
        }
        for (pg, config) in &map.pgs {
            let Some(route) = self.slot(*pg) else { continue };
            if route.is_none_or(|known| known.epoch <= config.epoch) {
                *route = Some(Route { primary: config.primary, epoch: config.epoch });
            }
        }
    }

    /// The group of an object of a volume in `pool`, whose map gave it `pg_count` groups.
    pub(crate) fn get(&self, pg: PgId) -> Option<Route> {
        *self.pools.get(&pg.pool)?.get(pg.index as usize)?
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

    fn slot(&mut self, pg: PgId) -> Option<&mut Option<Route>> {
        self.pools.get_mut(&pg.pool)?.get_mut(pg.index as usize)
    }
}
