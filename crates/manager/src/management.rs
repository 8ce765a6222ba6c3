//! Has what is decided written. A decision is made anew whenever the map or the settings have changed, and when one says so; it
//! is written under the condition that what it was decided by still holds.

use crate::decide::Moment;
use crate::decide::cuts::{cuts_done, flattened};
use crate::decide::full::{is_news, space};
use crate::decide::membership::Membership;
use crate::decide::removed_pools::{TombstoneChange, tombstone_changes};
use crate::decide::splits::{PoolChange, pool_changes};
use crate::decide::targets::Layout;
use crate::decide::trash::Expiry;
use base::OsdId;
use base::map::ClusterMap;
use base::status::{Away, Statuses};
use cluster::{Cluster, ClusterError, SpaceRecord, TargetChange};
use std::collections::BTreeMap;
use std::time::Duration;

/// What one process that manages the cluster decides, and has decided.
pub struct Management {
    cluster: Cluster,
    membership: Membership,
    /// What nothing is to be done about.
    settled: Option<Layout>,
    /// How full the cluster is, as that was noted last.
    noted: SpaceRecord,
}

impl Management {
    /// For a process that has just become the manager.
    #[must_use]
    pub fn new(cluster: Cluster) -> Management {
        Management {
            cluster,
            membership: Membership::default(),
            settled: None,
            noted: SpaceRecord::default(),
        }
    }

    /// Takes in who is back, and out who has been away for `out_after` and can be; nobody, if there is none. Answers when
    /// the next one will have been away for so long, by the monotonic clock.
    ///
    /// # Errors
    /// Those of the registry; decide again.
    pub async fn decide_who_is_in(
        &mut self,
        map: &ClusterMap,
        moment: Moment,
        out_after: Option<Duration>,
    ) -> Result<Option<Duration>, ClusterError> {
        let decision = self.membership.decide(map, moment, out_after);
        for osd in decision.back {
            if self.cluster.take_in_again(osd).await? {
                tracing::info!(%osd, "it is back, so it is in again");
            }
        }
        for osd in decision.out {
            if self.cluster.take_out_while_down(osd).await? {
                let seconds = out_after.unwrap_or_default().as_secs();
                tracing::warn!(%osd, seconds, "it stayed away, so its data is placed elsewhere");
            }
        }
        Ok(decision.next)
    }

    /// Whether the map asks for targets that were not decided yet: see [`crate::decide::targets::target_changes`].
    #[must_use]
    pub fn must_retarget(&self, map: &ClusterMap) -> bool {
        self.settled.as_ref() != Some(&Layout::of(map))
    }

    /// Writes the targets that were decided by `map`. Says whether nothing is left to write; if not, look again.
    ///
    /// # Errors
    /// Those of the registry; decide again.
    pub async fn retarget(
        &mut self,
        map: &ClusterMap,
        changes: &[TargetChange],
    ) -> Result<bool, ClusterError> {
        if changes.is_empty() {
            self.settled = Some(Layout::of(map));
            return Ok(true);
        }
        tracing::info!(groups = changes.len(), "placement groups get new targets");
        // Their change shows in the map, which is looked at again.
        self.cluster.change_targets(changes).await
    }

    /// Has pools split their groups that are to, and counts those that were split off when all are. What changes shows in
    /// the map, which is looked at again.
    ///
    /// # Errors
    /// Those of the registry; decide again.
    pub async fn split_pools(&self, map: &ClusterMap) -> Result<(), ClusterError> {
        for PoolChange { pool, before, now } in pool_changes(map) {
            let name = &before.name;
            if !self.cluster.replace_pool(pool, &before, &now).await? {
                continue;
            }
            if before.split_to.is_some() {
                tracing::info!(pool = %name, groups = now.pg_count, "all placement groups of the pool are split");
            } else {
                tracing::info!(pool = %name, groups = before.pg_count, "the placement groups of the pool are split in two");
            }
        }
        Ok(())
    }

    /// Strikes off the tombstones of removed pools who holds nothing of them any more, and ends those that name nobody. What
    /// changes shows in the map; what could not be written is decided again with the next word of the OSDs.
    ///
    /// # Errors
    /// Those of the registry; decide again.
    pub async fn settle_removed_pools(
        &self,
        map: &ClusterMap,
        statuses: &Statuses,
    ) -> Result<(), ClusterError> {
        for TombstoneChange { pool, before, now } in tombstone_changes(map, statuses) {
            let is_last = now.owed_by.is_empty();
            if self.cluster.replace_removed_pool(pool, &before, &now).await? && is_last {
                tracing::info!(pool = %before.name, "nothing is left of the removed pool");
            }
        }
        Ok(())
    }

    /// Notes how full the cluster is, where that has changed so much that somebody who asks would want to know.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn note_space(&mut self, statuses: &Statuses) -> Result<(), ClusterError> {
        let now = space(statuses);
        if is_news(&self.noted, &now) {
            self.cluster.note_space(&now).await?;
            self.noted = now;
        }
        Ok(())
    }

    /// Lets volumes grow again that were made smaller and hold nothing beyond their ends any more, and parents of clones go that
    /// were flattened.
    ///
    /// # Errors
    /// Those of the registry; decide again.
    pub async fn settle_cuts(&self, map: &ClusterMap, statuses: &Statuses) -> Result<(), ClusterError> {
        for (volume, flatten) in flattened(map, statuses) {
            if self.cluster.is_flattened(volume, flatten).await? {
                let name = map.volumes.get(&volume).map_or_else(String::new, |info| map.shown_name(info));
                tracing::info!(volume = %name, "the volume was flattened: it depends on no other any more");
            }
        }
        for (volume, cut) in cuts_done(map, statuses) {
            if self.cluster.cut_is_done(volume, cut).await? {
                let name = map.volumes.get(&volume).map_or_else(String::new, |info| map.shown_name(info));
                tracing::info!(volume = %name, "nothing is left of the volume beyond its end, and it may grow");
            }
        }
        Ok(())
    }

    /// Notes until when what is new in the trash is kept there, and purges what lay there for as long as it was to, at that time
    /// since 1970. Answers how long it is until something else is due.
    ///
    /// # Errors
    /// Those of the registry; decide again.
    pub async fn purge_trash(
        &self,
        map: &ClusterMap,
        unix: Duration,
    ) -> Result<Option<Duration>, ClusterError> {
        let expiry = Expiry::of(map, unix);
        for (volume, generation, trashed) in expiry.new {
            // If not, it is there no more.
            self.cluster.time_trash(volume, generation, trashed).await?;
        }
        for (volume, generation) in expiry.due {
            if self.cluster.purge_volume(volume, generation).await? {
                let name = map.volumes.get(&volume).map_or_else(String::new, |info| map.shown_name(info));
                tracing::info!(volume = %name, id = volume.0, "the volume lay in the trash long enough, and is removed for good");
            }
        }
        Ok(expiry.next_in)
    }

    /// What becomes of those who are down, for people.
    #[must_use]
    pub fn away(&self, map: &ClusterMap, out_after: Option<Duration>) -> BTreeMap<OsdId, Away> {
        self.membership.away(map, out_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::targets::target_changes;
    use base::map::PgConfig;
    use base::status::OsdStatus;
    use base::{Epoch, PgId, PoolId};
    use cluster::testing::{add_osds, cluster_of};
    use std::sync::Arc;

    /// What a primary would propose to split its group.
    async fn split(cluster: &Cluster, index: u32) -> Result<bool, ClusterError> {
        let map = cluster.map().await.unwrap();
        let pg = PgId { pool: PoolId(1), index };
        let present = map.pgs[&pg].clone();
        cluster.split_pg(pg, present.epoch, PgConfig { epoch: Epoch(present.epoch.0 + 1), ..present }).await
    }

    #[tokio::test]
    async fn a_pool_gets_exactly_twice_as_many_groups_one_by_one() {
        let cluster = cluster_of(3, 4).await;
        for (count, why) in [(3, "never made fewer"), (12, "say 8 first"), (32_768, "say 8 first")] {
            let error = cluster.set_pg_count("p", count).await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(!split(&cluster, 1).await.unwrap(), "nobody wants it");
        assert_eq!(cluster.set_pg_count("p", 4).await.unwrap().split_to, None);
        assert_eq!(cluster.set_pg_count("p", 8).await.unwrap().split_to, Some(8));
        assert_eq!(cluster.set_pg_count("p", 8).await.unwrap().split_to, Some(8));
        let error = cluster.set_pg_count("p", 16).await.unwrap_err().to_string();
        assert!(error.contains("being split to 8"), "{error}");
        let management = Management::new(cluster.clone());
        for index in [2, 0, 3, 1] {
            let before = cluster.map().await.unwrap();
            management.split_pools(&before).await.unwrap();
            assert!(split(&cluster, index).await.unwrap());
            assert!(!split(&cluster, index).await.unwrap(), "it is split already");
            let map = cluster.map().await.unwrap();
            let (pg, child) = (PgId { pool: PoolId(1), index }, PgId { pool: PoolId(1), index: index + 4 });
            assert_eq!(
                (map.pgs[&child].clone(), &map.targets[&child]),
                (map.pgs[&pg].clone(), &map.targets[&pg])
            );
            assert_eq!(map.pgs[&pg].epoch, Epoch(before.pgs[&pg].epoch.0 + 1));
            assert_eq!((map.modulus_of(pg), map.modulus_of(child)), (Some(8), Some(8)));
            assert_eq!(map.pgs.len(), before.pgs.len() + 1);
        }
        let map = cluster.map().await.unwrap();
        management.split_pools(&map).await.unwrap();
        let map = cluster.map().await.unwrap();
        let pool = &map.pools[&PoolId(1)];
        assert_eq!((pool.pg_count, pool.split_to, map.pgs_of(PoolId(1)).count()), (8, None, 8));
        assert!(!split(&cluster, 0).await.unwrap());
    }

    #[tokio::test]
    async fn a_tombstone_goes_with_the_word_of_the_last_osd_that_it_names() {
        let cluster = cluster_of(3, 4).await;
        let management = Management::new(cluster.clone());
        cluster.remove_pool("p").await.unwrap();
        let before = cluster.map().await.unwrap();
        let cleared = |osds: &[u32]| -> Statuses {
            let status = OsdStatus { cleared_pools: vec![PoolId(1)], ..OsdStatus::default() };
            osds.iter().map(|osd| (OsdId(*osd), Arc::new(status.clone()))).collect()
        };
        management.settle_removed_pools(&before, &cleared(&[0, 2])).await.unwrap();
        let map = cluster.map().await.unwrap();
        assert_eq!(map.removed_pools[&PoolId(1)].owed_by, [OsdId(1)]);
        // By a map from before nothing is undone.
        management.settle_removed_pools(&before, &cleared(&[0])).await.unwrap();
        assert_eq!(cluster.map().await.unwrap(), map);
        management.settle_removed_pools(&map, &cleared(&[1])).await.unwrap();
        assert!(cluster.map().await.unwrap().removed_pools.is_empty());
        management.settle_removed_pools(&map, &cleared(&[1])).await.unwrap();
    }

    #[tokio::test]
    async fn halves_lie_together_until_all_groups_are_split() {
        let cluster = cluster_of(4, 4).await;
        cluster.set_pg_count("p", 8).await.unwrap();
        assert!(split(&cluster, 1).await.unwrap());
        let mut map = cluster.map().await.unwrap();
        let changes = target_changes(&map);
        assert!(changes.iter().all(|change| change.pg.index < 4), "{changes:?}");
        let (pg, child) = (PgId { pool: PoolId(1), index: 1 }, PgId { pool: PoolId(1), index: 5 });
        let target = map.targets[&pg].iter().rev().copied().collect::<Vec<_>>();
        map.targets.insert(child, target.clone());
        let after = |map: &ClusterMap, pg: PgId| {
            let changes: Vec<TargetChange> = target_changes(map);
            let change = changes.into_iter().find(|change| change.pg == pg);
            change.map_or_else(|| map.targets[&pg].clone(), |change| change.target)
        };
        assert_eq!(after(&map, child), after(&map, pg));
    }

    #[tokio::test]
    async fn a_pool_that_decides_by_itself_doubles_while_it_is_whole() {
        let cluster = cluster_of(2, 16).await;
        let management = Management::new(cluster.clone());
        async fn decided(cluster: &Cluster, management: &Management) -> (u32, Option<u32>) {
            management.split_pools(&cluster.map().await.unwrap()).await.unwrap();
            let map = cluster.map().await.unwrap();
            let pool = &map.pools[&PoolId(1)];
            (pool.pg_count, pool.split_to)
        }
        assert_eq!(decided(&cluster, &management).await, (16, None), "nobody said that it may");
        cluster.set_pg_autoscale("p", true).await.unwrap();
        // 200 replicas on 2 OSDs are 100 groups of 2: 128, far from 16.
        assert_eq!(decided(&cluster, &management).await, (16, Some(32)));
        assert_eq!(decided(&cluster, &management).await, (16, Some(32)));
        for index in 0..16 {
            assert!(split(&cluster, index).await.unwrap());
        }
        assert_eq!(decided(&cluster, &management).await, (32, None));
        // One group that is to move holds up the next doubling.
        let pg = PgId { pool: PoolId(1), index: 3 };
        let before = cluster.map().await.unwrap().targets[&pg].clone();
        add_osds(&cluster, 2..3).await;
        let moved = TargetChange { pg, before: Some(before.clone()), target: vec![before[0], OsdId(2)] };
        assert!(cluster.change_targets(&[moved]).await.unwrap());
        assert_eq!(decided(&cluster, &management).await, (32, None));
        let back = TargetChange { pg, before: Some(vec![before[0], OsdId(2)]), target: before };
        assert!(cluster.change_targets(&[back]).await.unwrap());
        assert_eq!(decided(&cluster, &management).await, (32, Some(64)));
    }
}
