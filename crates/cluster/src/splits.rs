//! How a pool gets twice as many placement groups: what is wanted, and each group's step.
//!
//! A pool that is being split says so (`split_to`). Each of its groups is split by its primary, by one transaction that
//! replaces the group's configuration and adds that of its child; the manager says when all are. Nothing is ever made
//! fewer: groups are not merged.

use super::pools::check_pg;
use super::scrubs::ScrubRecord;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{ClusterMap, PgConfig, PoolInfo};
use base::{Epoch, OsdId, PgId, PoolId};
use placement::{Candidate, PG_COUNT_MAX};
use placement::{next_pg_count, recommended_pg_count};
use registry::{Compare, Operation, Txn};

impl Cluster {
    /// Has a pool's groups split until there are `pg_count`: as many as now, or twice as many. Answers what the pool is
    /// now; the groups are split one by one from here on, while they serve.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPool`]; [`ClusterError::PoolInvalid`] for any other number, or while the groups are being
    /// split already; those of the registry.
    pub async fn set_pg_count(&self, name: &str, pg_count: u32) -> Result<PoolInfo> {
        self.update_pool(name, |pool| {
            check_split(pool, pg_count)
                .map_err(|reason| ClusterError::PoolInvalid { name: name.to_owned(), reason })?;
            pool.split_to = (pg_count > pool.pg_count).then_some(pg_count);
            Ok(())
        })
        .await
    }

    /// Says whether the manager splits a pool's groups when they are few for its OSDs. Answers what the pool is now.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPool`]; those of the registry.
    pub async fn set_pg_autoscale(&self, name: &str, is_on: bool) -> Result<PoolInfo> {
        self.update_pool(name, |pool| {
            pool.pg_autoscale = is_on;
            Ok(())
        })
        .await
    }

    async fn update_pool(
        &self,
        name: &str,
        change: impl Fn(&mut PoolInfo) -> Result<()>,
    ) -> Result<PoolInfo> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, is_named) = self.find_pool(name).await?;
            let read: Read<PoolInfo> = self.read(&keys::pool(id)).await?;
            // It was removed since its name was looked up.
            let Some(before) = read.value.clone() else { continue };
            let mut info = before.clone();
            change(&mut info)?;
            if info == before {
                return Ok(info);
            }
            let txn = Txn::new()
                .when(is_named)
                .when(read.unchanged())
                .then(Operation::put(&read.key, encode(&info)));
            if self.commit(txn).await? {
                return Ok(info);
            }
        }
        Err(ClusterError::Contended { what: format!("the pool {name}") })
    }

    /// Replaces the configuration of a placement group by one with the same members, if its epoch is `expected` still,
    /// and gives its child the same one, and its target, if its pool is being split. Says whether.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPg`]; [`ClusterError::PgInvalid`] for a configuration that breaks the rules; those of the
    /// registry.
    pub async fn split_pg(&self, pg: PgId, expected: Epoch, new: PgConfig) -> Result<bool> {
        check_pg(pg, expected, &new)?;
        let read: Read<PgConfig> = self.read(&keys::pg(pg)).await?;
        let present = read.value.as_ref().ok_or(ClusterError::NoSuchPg { pg })?;
        let pool: Read<PoolInfo> = self.read(&keys::pool(pg.pool)).await?;
        let Some(PoolInfo { pg_count, split_to: Some(_), .. }) = pool.value else { return Ok(false) };
        if present.epoch != expected || pg.index >= pg_count {
            return Ok(false);
        }
        if (new.primary, &new.in_sync, &new.learners) != (present.primary, &present.in_sync, &Vec::new()) {
            let reason = "a split changes no members, and waits for learners";
            return Err(ClusterError::PgInvalid { pg, expected, reason });
        }
        let child = pg.child(pg_count);
        let target: Read<Vec<OsdId>> = self.read(&keys::target(pg)).await?;
        let scrubbed: Read<ScrubRecord> = self.read(&keys::scrub(pg)).await?;
        let mut txn = Txn::new()
            .when(read.unchanged())
            .when(pool.unchanged())
            .when(target.unchanged())
            .when(Compare::Absent(keys::pg(child)))
            .then(Operation::put(&read.key, encode(&new)))
            .then(Operation::put(keys::pg(child), encode(&new)));
        if let Some(target) = &target.value {
            txn = txn.then(Operation::put(keys::target(child), encode(target)));
        }
        if let Some(ScrubRecord { light_ms, deep_ms, .. }) = scrubbed.value {
            // What it holds was scrubbed then; what was found stays the parent's.
            let record = ScrubRecord { light_ms, deep_ms, ..ScrubRecord::default() };
            txn = txn.then(Operation::put(keys::scrub(child), encode(&record)));
        }
        self.commit(txn).await
    }

    /// Counts the groups of a pool that were split off, if all are. Says whether.
    ///
    /// # Errors
    /// Those of the registry.
    pub(super) async fn finish_split(&self, pool: PoolId, map: &ClusterMap) -> Result<bool> {
        let Some(info @ PoolInfo { split_to: Some(pg_count), .. }) = map.pools.get(&pool).cloned() else {
            return Ok(false);
        };
        if groups_to_split(map, pool) > 0 {
            return Ok(false);
        }
        let read: Read<PoolInfo> = self.read(&keys::pool(pool)).await?;
        if read.value.as_ref() != Some(&info) {
            return Ok(false);
        }
        let info = PoolInfo { pg_count, split_to: None, ..info };
        self.commit(Txn::new().when(read.unchanged()).then(Operation::put(&read.key, encode(&info)))).await
    }

    /// Has the groups of a pool split that decides by itself, if their number is too small and all of them are whole.
    ///
    /// # Errors
    /// Those of the registry.
    pub(super) async fn begin_split(&self, pool: PoolId, map: &ClusterMap) -> Result<bool> {
        let Some(pg_count) = count_to_split_to(map, pool) else { return Ok(false) };
        let read: Read<PoolInfo> = self.read(&keys::pool(pool)).await?;
        let Some(info) = read.value.clone().filter(|info| map.pools.get(&pool) == Some(info)) else {
            return Ok(false);
        };
        let info = PoolInfo { split_to: Some(pg_count), ..info };
        self.commit(Txn::new().when(read.unchanged()).then(Operation::put(&read.key, encode(&info)))).await
    }
}

/// Why a pool's groups cannot be split until there are `pg_count`.
fn check_split(pool: &PoolInfo, pg_count: u32) -> Result<(), String> {
    let now = pool.pg_count;
    if let Some(split_to) = pool.split_to {
        if pg_count == split_to {
            return Ok(());
        }
        return Err(format!(
            "its {now} placement groups are being split to {split_to}; `millpond pool ls` shows when that is done"
        ));
    }
    if pg_count == now {
        return Ok(());
    }
    if pg_count < now {
        return Err(format!("it has {now} placement groups, and they are never made fewer"));
    }
    if now > PG_COUNT_MAX / 2 {
        return Err(format!("it has {now} placement groups, and there are at most {PG_COUNT_MAX}"));
    }
    if pg_count != 2 * now {
        return Err(format!(
            "each of its {now} placement groups is split in two, no more at a time: say {} first",
            2 * now
        ));
    }
    Ok(())
}

/// Groups of a pool that are still to be split.
#[must_use]
pub fn groups_to_split(map: &ClusterMap, pool: PoolId) -> usize {
    let Some(PoolInfo { pg_count, split_to: Some(_), .. }) = map.pools.get(&pool) else { return 0 };
    let is_there = |index: &u32| map.pgs.contains_key(&PgId { pool, index: *index });
    (0..*pg_count).filter(|index| !is_there(&(index + pg_count))).count()
}

/// How many groups a pool that decides by itself shall have instead of those it has, if it can have them split now.
fn count_to_split_to(map: &ClusterMap, pool: PoolId) -> Option<u32> {
    let info = map.pools.get(&pool)?;
    let is_whole = |(pg, config): (PgId, &PgConfig)| {
        let target = map.targets.get(&pg).unwrap_or(&config.in_sync);
        target.len() >= info.size as usize
            && config.in_sync.len() == target.len()
            && target.iter().all(|osd| config.in_sync.contains(osd))
    };
    if !info.pg_autoscale || info.split_to.is_some() || !map.pgs_of(pool).all(is_whole) {
        return None;
    }
    let osds = Candidate::of_rule(map, &info.rule).len();
    // Nobody knows which pool will hold how much.
    let share = 1.0 / map.pools.len() as f64;
    let next = next_pg_count(info.pg_count, recommended_pg_count(osds, info.size, share));
    (next > info.pg_count).then_some(next)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::super::{Management, TargetChange, target_changes};
    use super::*;
    use base::map::DeviceClass;
    use base::{ClusterId, NodeId, OsdUuid};
    use std::sync::Arc;

    async fn cluster_of(osds: u32, pg_count: u32) -> Cluster {
        let cluster = Cluster::new(Arc::new(registry::MemoryRegistry::new()));
        cluster.create(ClusterId::from_bytes([1; 16])).await.unwrap();
        add_osds(&cluster, 0..osds).await;
        cluster.create_pool("p", 2, 1, pg_count).await.unwrap();
        cluster
    }

    async fn add_osds(cluster: &Cluster, osds: std::ops::Range<u32>) {
        for osd in osds {
            let uuid = OsdUuid::from_bytes([osd as u8 + 1; 16]);
            cluster.register_osd(uuid, NodeId(osd), 1 << 30, DeviceClass::Ssd).await.unwrap();
        }
    }

    /// What a primary would propose to split its group.
    async fn split(cluster: &Cluster, index: u32) -> Result<bool> {
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
        let mut management = Management::new(cluster.clone());
        for index in [2, 0, 3, 1] {
            let before = cluster.map().await.unwrap();
            management.decide_pg_counts(&before).await.unwrap();
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
            assert_eq!(groups_to_split(&map, PoolId(1)), groups_to_split(&before, PoolId(1)) - 1);
        }
        let map = cluster.map().await.unwrap();
        management.decide_pg_counts(&map).await.unwrap();
        let map = cluster.map().await.unwrap();
        let pool = &map.pools[&PoolId(1)];
        assert_eq!((pool.pg_count, pool.split_to, map.pgs_of(PoolId(1)).count()), (8, None, 8));
        assert!(!split(&cluster, 0).await.unwrap());
    }

    #[tokio::test]
    async fn a_split_changes_no_members_and_is_lost_to_whoever_was_faster() {
        let cluster = cluster_of(3, 2).await;
        cluster.set_pg_count("p", 4).await.unwrap();
        let pg = PgId { pool: PoolId(1), index: 0 };
        let present = cluster.map().await.unwrap().pgs[&pg].clone();
        let next = PgConfig { epoch: Epoch(present.epoch.0 + 1), ..present.clone() };
        let fewer = PgConfig { in_sync: vec![next.primary], ..next.clone() };
        let error = cluster.split_pg(pg, present.epoch, fewer).await.unwrap_err().to_string();
        assert!(error.contains("changes no members"), "{error}");
        assert!(cluster.change_pg(pg, present.epoch, next.clone()).await.unwrap());
        assert!(!cluster.split_pg(pg, present.epoch, next).await.unwrap());
        let error = cluster.split_pg(PgId { index: 7, ..pg }, Epoch(1), present).await;
        assert!(error.is_err(), "there is no such group");
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
        let mut management = Management::new(cluster.clone());
        async fn decided(cluster: &Cluster, management: &mut Management) -> (u32, Option<u32>) {
            management.decide_pg_counts(&cluster.map().await.unwrap()).await.unwrap();
            let map = cluster.map().await.unwrap();
            let pool = &map.pools[&PoolId(1)];
            (pool.pg_count, pool.split_to)
        }
        assert_eq!(decided(&cluster, &mut management).await, (16, None), "nobody said that it may");
        cluster.set_pg_autoscale("p", true).await.unwrap();
        // 200 replicas on 2 OSDs are 100 groups of 2: 128, far from 16.
        assert_eq!(decided(&cluster, &mut management).await, (16, Some(32)));
        assert_eq!(decided(&cluster, &mut management).await, (16, Some(32)));
        for index in 0..16 {
            assert!(split(&cluster, index).await.unwrap());
        }
        assert_eq!(decided(&cluster, &mut management).await, (32, None));
        // One group that is to move holds up the next doubling.
        let pg = PgId { pool: PoolId(1), index: 3 };
        let before = cluster.map().await.unwrap().targets[&pg].clone();
        add_osds(&cluster, 2..3).await;
        let moved = TargetChange { pg, before: Some(before.clone()), target: vec![before[0], OsdId(2)] };
        assert!(cluster.change_targets(&[moved]).await.unwrap());
        assert_eq!(decided(&cluster, &mut management).await, (32, None));
        let back = TargetChange { pg, before: Some(vec![before[0], OsdId(2)]), target: before };
        assert!(cluster.change_targets(&[back]).await.unwrap());
        assert_eq!(decided(&cluster, &mut management).await, (32, Some(64)));
    }
}
