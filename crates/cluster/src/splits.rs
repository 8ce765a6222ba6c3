//! How a pool gets twice as many placement groups: what is wanted, and each group's step.
//!
//! A pool that is being split says so (`split_to`). Each of its groups is split by its primary, by one transaction that
//! replaces the group's configuration and adds that of its child; the manager says when all are. Nothing is ever made
//! fewer: groups are not merged.

use super::pools::{check_not_too_many, check_pg};
use super::scrubs::ScrubRecord;
use super::{Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{PgConfig, PoolInfo};
use base::{Epoch, OsdId, PgId};
use placement::PG_COUNT_MAX;
use registry::{Compare, Operation};

impl Cluster {
    /// Has a pool's groups split until there are `pg_count`: as many as now, or twice as many. Answers what the pool is
    /// now; the groups are split one by one from here on, while they serve.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPool`]; [`ClusterError::PoolInvalid`] for any other number, while the groups are being
    /// split already, or when they would be more than the OSDs should hold; those of the registry.
    pub async fn set_pg_count(&self, name: &str, pg_count: u32) -> Result<PoolInfo> {
        self.update_pool(name, |map, pool| {
            check_split(pool, pg_count)
                .map_err(|reason| ClusterError::PoolInvalid { name: name.to_owned(), reason })?;
            let before = pool.pg_numbers();
            pool.split_to = (pg_count > pool.pg_count).then_some(pg_count);
            if pool.pg_numbers() > before { check_not_too_many(map, pool) } else { Ok(()) }
        })
        .await
    }

    /// Says whether the manager splits a pool's groups when they are few for its OSDs. Answers what the pool is now.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPool`]; those of the registry.
    pub async fn set_pg_autoscale(&self, name: &str, is_on: bool) -> Result<PoolInfo> {
        self.update_pool(name, |_, pool| {
            pool.pg_autoscale = is_on;
            Ok(())
        })
        .await
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
        let PgConfig { primary, in_sync, history, .. } = present.clone();
        if new != (PgConfig { epoch: new.epoch, primary, in_sync, learners: Vec::new(), history }) {
            let reason = "a split changes no members and no history, and waits for learners";
            return Err(ClusterError::PgInvalid { pg, expected, reason });
        }
        let child = pg.child(pg_count);
        let target: Read<Vec<OsdId>> = self.read(&keys::target(pg)).await?;
        let scrubbed: Read<ScrubRecord> = self.read(&keys::scrub(pg)).await?;
        let mut txn = read
            .replaced_by(&new)
            .when(pool.unchanged())
            .when(target.unchanged())
            .when(Compare::Absent(keys::pg(child)))
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
}

/// Why a pool's groups cannot be split until there are `pg_count`.
fn check_split(pool: &PoolInfo, pg_count: u32) -> Result<(), String> {
    let now = pool.pg_count;
    Err(match pool.split_to {
        Some(split_to) if pg_count == split_to => return Ok(()),
        Some(split_to) => format!(
            "its {now} placement groups are being split to {split_to}; `millpond pool ls` shows when that is done"
        ),
        None if pg_count == now => return Ok(()),
        None if pg_count < now => format!("it has {now} placement groups, and they are never made fewer"),
        None if now > PG_COUNT_MAX / 2 => {
            format!("it has {now} placement groups, and there are at most {PG_COUNT_MAX}")
        }
        None if pg_count == 2 * now => return Ok(()),
        None => format!(
            "each of its {now} placement groups is split in two, no more at a time: say {} first",
            2 * now
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::cluster_of;
    use base::PoolId;

    #[tokio::test]
    async fn nothing_makes_a_pool_such_that_an_osd_holds_more_groups_than_it_should() {
        // 1,334 copies on each.
        let cluster = cluster_of(3, 2001).await;
        let refused = [
            cluster.create_pool("q", 3, 1, 800).await.map(|_| ()),
            cluster.change_pool("p", Some(3), None).await.map(|_| ()),
            cluster.set_pg_count("p", 4002).await.map(|_| ()),
        ];
        for (refused, most) in refused.into_iter().zip([2134, 2001, 2668]) {
            let error = refused.unwrap_err().to_string();
            let (has, limit) = (format!("copies of {most} "), format!("{} at most", PgId::PER_OSD_MAX));
            assert!(error.contains(&has) && error.contains(&limit), "{error}");
        }
        cluster.change_pool("p", Some(1), None).await.unwrap();
        assert_eq!(cluster.set_pg_count("p", 4002).await.unwrap().split_to, Some(4002));
        cluster.create_pool("q", 3, 1, 600).await.unwrap();
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
}
