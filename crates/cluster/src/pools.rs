//! Pools and the configurations of their placement groups.

use super::error::check_name;
use super::osds::OsdRecord;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{ClusterMap, FailureDomain, PgConfig, PlacementRule, PoolInfo, RemovedPool, VolumeInfo};
use base::{Epoch, OsdId, PgId, PlaceName, PoolId};
use placement::{Candidate, PG_COUNT_MAX, most_replicas, place};
use registry::{Compare, Operation, Txn};

/// Copies of an object, at most.
const SIZE_MAX: u32 = 16;

impl Cluster {
    /// Makes a pool whose replicas lie on distinct hosts, on drives of any class: see [`Self::create_pool_by`].
    ///
    /// # Errors
    /// The same.
    pub async fn create_pool(&self, name: &str, size: u32, min_size: u32, pg_count: u32) -> Result<PoolId> {
        let rule = PlacementRule::default();
        let name = name.to_owned();
        self.create_pool_by(&PoolInfo { name, size, min_size, pg_count, rule, ..PoolInfo::default() }).await
    }

    /// Makes a pool over the OSDs that are in now and that its rule allows, whether they are up or not. Replicas lie in
    /// distinct failure domains where there are enough, else they are spread over them as far as possible; for racks and
    /// what is larger there must be enough.
    ///
    /// # Errors
    /// [`ClusterError::PoolExists`], [`ClusterError::PoolInvalid`], [`ClusterError::TooFewOsds`],
    /// [`ClusterError::TooFewOfClass`], [`ClusterError::TooFewDomains`], [`ClusterError::NameInvalid`]; those of the
    /// registry.
    pub async fn create_pool_by(&self, info: &PoolInfo) -> Result<PoolId> {
        let PoolInfo { name, size, min_size, pg_count, rule, .. } = info;
        let (name, size, pg_count) = (name.as_str(), *size, *pg_count);
        check_name("pool", name)?;
        check_pool(name, size, *min_size, pg_count)?;
        for _ in 0..ATTEMPTS_MAX {
            let named: Read<PoolId> = self.read(&keys::pool_name(name)).await?;
            if named.value.is_some() {
                return Err(ClusterError::PoolExists { name: name.to_owned() });
            }
            // Read before the OSDs are, and written with the pool: whichever of the two comes second, this or
            // the removal of an OSD, finds it changed.
            let removed: Read<u64> = self.read(keys::OSDS_REMOVED).await?;
            let map = self.map().await?;
            check_enough(&map, info)?;
            check_not_too_many(&map, info)?;
            let candidates = Candidate::of_rule(&map, rule);
            let id = self.take_pool_id().await?;
            let groups = place(id, pg_count, size, rule.failure_domain, &candidates);
            let configurations = (0..).zip(groups).flat_map(|(index, in_sync): (u32, Vec<OsdId>)| {
                let pg = PgId { pool: id, index };
                let target = Operation::put(keys::target(pg), encode(&in_sync));
                let (epoch, primary) = (Epoch(1), in_sync[0]);
                let config = PgConfig { epoch, primary, in_sync, ..PgConfig::default() };
                [target, Operation::put(keys::pg(pg), encode(&config))]
            });
            self.perform_all(configurations).await?;
            let last = named
                .replaced_by(&id)
                .when(removed.unchanged())
                .then(Operation::put(&removed.key, encode(&removed.value.unwrap_or(0))))
                .then(Operation::put(keys::pool(id), encode(info)));
            if self.commit(last).await? {
                return Ok(id);
            }
            self.delete_pgs(id).await?;
        }
        Err(ClusterError::Contended { what: format!("the pool {name}") })
    }

    /// Changes how many copies a pool keeps, and below how many in sync its groups take no writes; `None` leaves it as it
    /// is. Where the copies shall lie from then on the manager says. Answers what the pool is now.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPool`], [`ClusterError::PoolInvalid`]; [`ClusterError::TooFewOsds`],
    /// [`ClusterError::TooFewOfClass`] or [`ClusterError::TooFewDomains`] if it shall have more copies than there is room
    /// for; those of the registry.
    pub async fn change_pool(
        &self,
        name: &str,
        size: Option<u32>,
        min_size: Option<u32>,
    ) -> Result<PoolInfo> {
        self.update_pool(name, |map, pool| {
            let size_before = pool.size;
            pool.size = size.unwrap_or(size_before);
            pool.min_size = min_size.unwrap_or(pool.min_size);
            check_pool(name, pool.size, pool.min_size, pool.pg_count)?;
            if pool.size > size_before {
                check_enough(map, pool)?;
                check_not_too_many(map, pool)?;
            }
            Ok(())
        })
        .await
    }

    /// Changes what is known of a pool, by the OSDs that are there. Answers what it is now.
    pub(super) async fn update_pool(
        &self,
        name: &str,
        change: impl Fn(&ClusterMap, &mut PoolInfo) -> Result<()>,
    ) -> Result<PoolInfo> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, is_named) = self.find_pool(name).await?;
            let removed: Read<u64> = self.read(keys::OSDS_REMOVED).await?;
            let map = self.map().await?;
            let read: Read<PoolInfo> = self.read(&keys::pool(id)).await?;
            // It was removed since its name was looked up.
            let Some(before) = read.value.clone() else { continue };
            let mut info = before.clone();
            change(&map, &mut info)?;
            let txn = read.replaced_by(&info).when(is_named).when(removed.unchanged());
            if info == before || self.commit(txn).await? {
                return Ok(info);
            }
        }
        Err(ClusterError::Contended { what: format!("the pool {name}") })
    }

    /// Replaces what is known of a pool, if it still is what this was decided by. Says whether.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn replace_pool(&self, pool: PoolId, before: &PoolInfo, now: &PoolInfo) -> Result<bool> {
        let read: Read<PoolInfo> = self.read(&keys::pool(pool)).await?;
        if read.value.as_ref() != Some(before) {
            return Ok(false);
        }
        self.commit(read.replaced_by(now)).await
    }

    /// Removes a pool that holds no volumes and has no namespaces. Its tombstone stays until every OSD that there is now has said that it holds
    /// nothing of it: one that is away hears of it when it is back.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPool`], [`ClusterError::PoolInUse`], [`ClusterError::PoolHasNamespaces`]; those of the registry.
    pub async fn remove_pool(&self, name: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, is_named) = self.find_pool(name).await?;
            // Read before the volumes are: one that is made afterwards moves it.
            let next: Read<u64> = self.read(keys::NEXT_VOLUME).await?;
            let volumes: Vec<(String, VolumeInfo)> = self.read_all(keys::VOLUMES).await?;
            let (removed, living): (Vec<_>, Vec<_>) = volumes
                .into_iter()
                .filter(|(_, volume)| volume.pool == id)
                .partition(|(_, volume)| volume.removed);
            if let Some((_, example)) = living.first() {
                return Err(ClusterError::PoolInUse {
                    name: name.to_owned(),
                    volumes: living.len(),
                    example: example.name.clone(),
                });
            }
            // Whoever makes one meanwhile changes the entry of the pool's name.
            if let Some(namespace) = self.namespace_of(id).await? {
                return Err(ClusterError::PoolHasNamespaces { name: name.to_owned(), namespace });
            }
            let there = PlaceName { pool: name.to_owned(), namespace: String::new() };
            let groups = self.empty_groups_of(id, &there).await?;
            // The same of the OSDs: nobody joins or leaves behind the list of those who may hold something.
            let removed_osds: Read<u64> = self.read(keys::OSDS_REMOVED).await?;
            let next_osd: Read<u64> = self.read(keys::NEXT_OSD).await?;
            let owed_by = self.map().await?.osds.into_keys().collect();
            let tombstone = RemovedPool { name: name.to_owned(), owed_by };
            let txn = groups.iter().fold(Txn::new(), |txn, group| {
                txn.when(Compare::unchanged(&group.key, Some(group))).then(Operation::delete(&group.key))
            });
            let txn = txn
                .when(is_named)
                .when(next.unchanged())
                .when(removed_osds.unchanged())
                .when(next_osd.unchanged())
                .then(Operation::put(keys::removed_pool(id), encode(&tombstone)))
                .then(Operation::delete(keys::pool_name(name)))
                .then(Operation::delete(keys::pool(id)));
            if self.commit(txn).await? {
                // Without its pool none of this is part of the map; what a failure leaves here is harmless.
                self.delete_pgs(id).await?;
                let mut left: Vec<String> = removed.into_iter().map(|(key, _)| key).collect();
                let notes = self.registry.range(&keys::place_metadata_of_pool(id)).await?.entries;
                left.extend(notes.into_iter().map(|entry| entry.key));
                return self.perform_all(left.into_iter().map(Operation::delete)).await;
            }
        }
        Err(ClusterError::Contended { what: format!("the pool {name}") })
    }

    /// Replaces the tombstone of a pool, if it still is what this was decided by. It goes when nobody owes it anything any more.
    /// Says whether.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn replace_removed_pool(
        &self,
        pool: PoolId,
        before: &RemovedPool,
        now: &RemovedPool,
    ) -> Result<bool> {
        let read: Read<RemovedPool> = self.read(&keys::removed_pool(pool)).await?;
        if read.value.as_ref() != Some(before) {
            return Ok(false);
        }
        let txn = match now.owed_by.is_empty() {
            true => Txn::new().when(read.unchanged()).then(Operation::delete(&read.key)),
            false => read.replaced_by(now),
        };
        self.commit(txn).await
    }

    /// Replaces the configuration of a placement group, if its epoch is `expected` still. Says whether. It is for whoever
    /// knows that no OSD was replaced since this was decided: an OSD asks for [`Self::claim_pg`].
    ///
    /// # Errors
    /// [`ClusterError::NoSuchPg`]; [`ClusterError::PgInvalid`] for a configuration that breaks the rules;
    /// those of the registry.
    pub async fn change_pg(&self, pg: PgId, expected: Epoch, new: PgConfig) -> Result<bool> {
        self.replace_pg(pg, expected, new, None).await
    }

    /// The same by who decided it by a map: whoever becomes in sync must still be formatted as it was there. Its number
    /// alone may be that of a blank drive by now, which holds nothing of what it acknowledged.
    ///
    /// # Errors
    /// Those of [`Self::change_pg`].
    pub async fn claim_pg(
        &self,
        pg: PgId,
        expected: Epoch,
        new: PgConfig,
        decided_by: &ClusterMap,
    ) -> Result<bool> {
        self.replace_pg(pg, expected, new, Some(decided_by)).await
    }

    async fn replace_pg(
        &self,
        pg: PgId,
        expected: Epoch,
        new: PgConfig,
        decided_by: Option<&ClusterMap>,
    ) -> Result<bool> {
        check_pg(pg, expected, &new)?;
        let read: Read<PgConfig> = self.read(&keys::pg(pg)).await?;
        let present = read.value.as_ref().ok_or(ClusterError::NoSuchPg { pg })?;
        if present.epoch != expected {
            return Ok(false);
        }
        // A later one says whose log is in one: the registry was set back since the group was given up.
        if new.history < present.history {
            let reason = "a group goes back to no earlier history";
            return Err(ClusterError::PgInvalid { pg, expected, reason });
        }
        let mut txn = read.replaced_by(&new);
        for osd in new.in_sync.iter().filter(|osd| !present.in_sync.contains(osd)) {
            let uuid = match decided_by {
                Some(map) => map.osds.get(osd).map(|info| info.uuid),
                None => self.read::<OsdRecord>(&keys::osd(*osd)).await?.value.map(|record| record.uuid),
            };
            // It must not have been removed or replaced meanwhile: nobody would find what it holds.
            let Some(uuid) = uuid else { return Ok(false) };
            txn = txn
                .when(Compare::Value(keys::uuid(uuid), encode(osd)))
                .then(Operation::put(keys::joined(*osd), encode(&pg)));
        }
        self.commit(txn).await
    }

    async fn take_pool_id(&self) -> Result<PoolId> {
        for _ in 0..ATTEMPTS_MAX {
            let next: Read<u64> = self.read(keys::NEXT_POOL).await?;
            let (id, used) = next.take_u32(1, "id of a pool")?;
            if self.commit(Txn::new().when(next.unchanged()).then(used)).await? {
                return Ok(PoolId(id));
            }
        }
        Err(ClusterError::Contended { what: "the list of pools".to_owned() })
    }

    async fn delete_pgs(&self, pool: PoolId) -> Result<()> {
        let scrubs = [keys::SCRUBS, keys::SCRUB_WISHES].map(|prefix| format!("{prefix}{}.", pool.0));
        for prefix in [keys::pgs_of(pool), keys::targets_of(pool)].into_iter().chain(scrubs) {
            let entries = self.registry.range(&prefix).await?.entries;
            self.perform_all(entries.into_iter().map(|entry| Operation::delete(entry.key))).await?;
        }
        Ok(())
    }

    /// The pool of a name, and the condition that it is there still.
    pub(super) async fn find_pool(&self, name: &str) -> Result<(PoolId, Compare)> {
        let named: Read<PoolId> = self.read(&keys::pool_name(name)).await?;
        let id = named.value.ok_or_else(|| ClusterError::NoSuchPool { name: name.to_owned() })?;
        Ok((id, named.unchanged()))
    }
}

/// Whether there are OSDs and failure domains enough for the copies of a pool.
fn check_enough(map: &ClusterMap, pool: &PoolInfo) -> Result<()> {
    let PoolInfo { name, size, rule, .. } = pool;
    let (name, size, domain) = (name.clone(), *size, rule.failure_domain);
    let candidates = Candidate::of_rule(map, rule);
    if candidates.len() < size as usize {
        let osds = candidates.len();
        return Err(match rule.device_class {
            None => ClusterError::TooFewOsds { name, size, osds },
            Some(class) => ClusterError::TooFewOfClass { name, size, class, osds },
        });
    }
    // A person who runs one machine has one host, and knows it; racks that are asked for are meant to be there.
    let domains = Candidate::named_domains(&candidates, domain);
    if domain > FailureDomain::Host && domains < size as usize {
        return Err(ClusterError::TooFewDomains { name, size, domain, domains });
    }
    Ok(())
}

/// Whether an OSD would have to hold more groups than its checkpoints should have to keep the logs of, were a pool this.
pub(super) fn check_not_too_many(map: &ClusterMap, pool: &PoolInfo) -> Result<()> {
    let (most, limit) = (most_replicas(map, pool), PgId::PER_OSD_MAX);
    if most <= limit {
        return Ok(());
    }
    let reason = format!(
        "an OSD would hold copies of {most} placement groups, those of other pools among them; choose so many \
         that it is {limit} at most, or add OSDs first"
    );
    Err(ClusterError::PoolInvalid { name: pool.name.clone(), reason })
}

fn check_pool(name: &str, size: u32, min_size: u32, pg_count: u32) -> Result<()> {
    let reason = if !(1..=SIZE_MAX).contains(&size) {
        format!("it cannot have {size} copies; choose 1 to {SIZE_MAX}")
    } else if !(1..=size).contains(&min_size) {
        format!("min-size {min_size} does not fit {size} copies; choose 1 to {size}")
    } else if !(1..=PG_COUNT_MAX).contains(&pg_count) {
        format!("it cannot have {pg_count} placement groups; choose 1 to {PG_COUNT_MAX}")
    } else {
        return Ok(());
    };
    Err(ClusterError::PoolInvalid { name: name.to_owned(), reason })
}

/// Checks what may follow a configuration of epoch `expected`.
///
/// # Errors
/// [`ClusterError::PgInvalid`] says which rule it breaks.
pub fn check_pg(pg: PgId, expected: Epoch, new: &PgConfig) -> Result<()> {
    let mut members: Vec<OsdId> = new.in_sync.iter().chain(&new.learners).copied().collect();
    members.sort_unstable();
    let reason = if expected.0.checked_add(1) != Some(new.epoch.0) {
        "its epoch is not the next one"
    } else if !new.in_sync.contains(&new.primary) {
        "its primary is not in sync"
    } else if members.windows(2).any(|pair| pair[0] == pair[1]) {
        "it names an OSD twice"
    } else {
        return Ok(());
    };
    Err(ClusterError::PgInvalid { pg, expected, reason })
}
