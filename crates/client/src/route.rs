//! Where a request goes: the cluster map, arranged for one look-up per piece.

use base::hash::Map;
use base::map::ClusterMap;
use base::{Epoch, LayerId, OsdId, PgId, PoolId, Sequence};

/// What a group has reached for good, as far as it said so ([`wire::Outcome::reached`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// By its newest answer, which it gave in that epoch.
    pub(crate) newest: Sequence,
    pub(crate) epoch: Epoch,
    /// By its newest answer in an epoch that a map shows in which the group is whole, or in one before: what is split off from it
    /// later has come so far too. What it reached in a later epoch may be from after a split, and says nothing of the other half.
    pub(crate) whole: Sequence,
}

impl Reached {
    /// The same when a map shows the group in that epoch, and it is whole in it.
    pub(crate) fn shown_by(self, epoch: Epoch) -> Reached {
        Reached { whole: if self.epoch <= epoch { self.newest } else { self.whole }, ..self }
    }

    /// The same of what was split off from the group.
    pub(crate) fn of_child(self) -> Reached {
        Reached { newest: self.whole, ..self }
    }
}

/// Who serves a placement group, as far as this client knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) primary: OsdId,
    pub(crate) epoch: Epoch,
    /// The epoch that the map showed: what an OSD told of another one is forgotten when the map shows something else.
    pub(crate) shown: Epoch,
    pub(crate) reached: Reached,
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
    /// Takes over what the map says, except of groups of which it says the same as before: an OSD may have told of a newer epoch.
    pub(crate) fn update(&mut self, map: &ClusterMap) {
        self.pools.retain(|id, _| map.pools.contains_key(id));
        for (id, pool) in &map.pools {
            let routes = self.pools.entry(*id).or_default();
            routes.pg_count = pool.pg_count;
            routes.groups.resize(pool.pg_numbers() as usize, None);
        }
        for (pg, config) in &map.pgs {
            let Some(route) = self.slot(*pg) else { continue };
            let is_shown = |known: Route| known.shown == config.epoch && known.primary == config.primary;
            if !route.is_some_and(is_shown) {
                let (primary, epoch) = (config.primary, config.epoch);
                let reached = route.map_or(Reached::default(), |known| known.reached.shown_by(epoch));
                *route = Some(Route { primary, epoch, shown: epoch, reached });
            }
        }
    }

    /// The group of an object of a volume, by the newest map: the one that was split off from another, if it was. `None`
    /// without the pool.
    pub(crate) fn group_of(&self, pool: PoolId, layer: LayerId, object: u32) -> Option<PgId> {
        let routes = self.pools.get(&pool)?;
        let pg = PgId::of_object(pool, routes.groups.len() as u32, layer, object);
        let is_there = routes.groups[pg.index as usize].is_some();
        Some(if is_there { pg } else { PgId::of_object(pool, routes.pg_count, layer, object) })
    }

    pub(crate) fn get(&self, pg: PgId) -> Option<Route> {
        *self.pools.get(&pg.pool)?.groups.get(pg.index as usize)?
    }

    /// Notes the epoch that the primary told of, unless it is older than the map's. Answers whether it was news. It may be older
    /// than what was told before, which was a lie then: the OSD that told it is in other hands now.
    pub(crate) fn told_epoch(&mut self, pg: PgId, epoch: Epoch) -> bool {
        match self.slot(pg) {
            Some(Some(route)) if epoch >= route.shown && epoch != route.epoch => {
                route.epoch = epoch;
                true
            }
            _ => false,
        }
    }

    /// A group says in an epoch what it has reached, or that it says nothing of it. The newest answer counts: one that says less than
    /// another before it is true as well, and ends what was a lie.
    pub(crate) fn has_reached(&mut self, pg: PgId, epoch: Epoch, reached: Sequence) {
        if let Some(Some(route)) = self.slot(pg)
            && reached > Sequence(0)
        {
            let whole = route.reached.whole.min(reached);
            route.reached = Reached { newest: reached, epoch, whole }.shown_by(route.shown);
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

    const PG: PgId = PgId { pool: PoolId(1), index: 0 };

    /// Primary, epoch, and what was reached by the newest answer.
    fn seen(routes: &Routes) -> (u32, u32, u64) {
        let Route { primary, epoch, reached, .. } = routes.get(PG).expect("the map has shown the group");
        (primary.0, epoch.0, reached.newest.0)
    }

    #[test]
    fn what_an_osd_told_of_counts_until_a_map_shows_something_else() {
        let (pg, mut routes) = (PG, Routes::default());
        routes.update(&map(3, 1));
        let is_news = [3, 4, 5, 5].map(|epoch| routes.told_epoch(pg, Epoch(epoch)));
        assert_eq!(is_news, [false, true, true, false]);
        [7, 40, 0].into_iter().for_each(|reached| routes.has_reached(pg, Epoch(5), Sequence(reached)));
        routes.update(&map(3, 1));
        assert_eq!(seen(&routes), (1, 5, 40), "that map says nothing new");
        routes.update(&map(5, 2));
        assert_eq!(seen(&routes), (2, 5, 40));
        let nobodys = PgId { index: 1, ..pg };
        assert!(!routes.told_epoch(nobodys, Epoch(9)) && routes.get(nobodys).is_none());
        assert_eq!(routes.group_of(PoolId(1), LayerId(5), 0), Some(pg));
        routes.update(&ClusterMap::default());
        assert!(routes.get(pg).is_none() && routes.group_of(PoolId(1), LayerId(5), 0).is_none());
    }

    #[test]
    fn what_a_group_reached_in_an_epoch_that_no_map_shows_says_nothing_of_what_is_split_off_from_it() {
        // The epochs of maps that come one after the other, and what counts for the other half then.
        let cases: [(&[u32], u64); 6] =
            [(&[], 7), (&[3], 7), (&[4], 7), (&[4, 4, 5], 7), (&[4, 6], 40), (&[7], 40)];
        for (shown, whole) in cases {
            let mut routes = Routes::default();
            routes.update(&map(3, 1));
            routes.has_reached(PG, Epoch(3), Sequence(7));
            assert!(routes.told_epoch(PG, Epoch(6)));
            routes.has_reached(PG, Epoch(6), Sequence(40));
            shown.iter().for_each(|epoch| routes.update(&map(*epoch, 1)));
            let reached = routes.get(PG).expect("the map has shown the group").reached;
            assert_eq!((reached.newest.0, reached.of_child().newest.0), (40, whole), "{shown:?}");
        }
    }

    #[test]
    fn an_answer_of_an_epoch_that_no_map_shows_is_one_whenever_it_comes() {
        let mut routes = Routes::default();
        routes.update(&map(3, 1));
        let mut whole = |epoch, reached| {
            routes.has_reached(PG, Epoch(epoch), Sequence(reached));
            routes.get(PG).expect("the map has shown the group").reached.whole.0
        };
        // Late ones too, and what was too much ends with the next answer.
        assert_eq!(
            [(2, 5), (3, 7), (5, 40), (3, 9), (3, 1000), (5, 41)].map(|(e, r)| whole(e, r)),
            [5, 7, 7, 9, 1000, 41]
        );
    }

    #[test]
    fn what_an_osd_lied_of_ends_with_the_next_epoch_or_the_next_answer_of_who_does_not_lie() {
        let lied_to = || {
            let mut routes = Routes::default();
            routes.update(&map(5, 1));
            assert!(routes.told_epoch(PG, Epoch(u32::MAX)));
            routes.has_reached(PG, Epoch(5), Sequence(u64::MAX));
            routes
        };
        for (map, route) in
            [(map(6, 2), (2, 6)), (map(6, 1), (1, 6)), (map(4, 2), (2, 4)), (map(5, 2), (2, 5))]
        {
            let mut routes = lied_to();
            routes.update(&map);
            // A registry that was set back shows older epochs.
            assert_eq!(seen(&routes), (route.0, route.1, u64::MAX));
            routes.has_reached(PG, Epoch(route.1), Sequence(9));
            assert_eq!(seen(&routes), (route.0, route.1, 9));
        }
        // No other epoch has begun since.
        let mut routes = lied_to();
        assert!(!routes.told_epoch(PG, Epoch(4)), "the map knows better");
        assert!(routes.told_epoch(PG, Epoch(5)));
        assert_eq!(seen(&routes), (1, 5, u64::MAX));
    }
}
