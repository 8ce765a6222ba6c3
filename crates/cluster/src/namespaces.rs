//! Namespaces of pools: made, and removed when nothing is in them and no key is for them.
//!
//! Whoever makes a volume in a namespace, or a key for one, writes its entry anew; so its removal notices either. Who makes a
//! namespace writes the name of its pool anew, so that the removal of that notices it.

use super::error::check_name;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{NamespaceInfo, VolumeInfo};
use base::{Access, PlaceName, PoolId, Principal};
use registry::{Compare, KeyValue, Operation, Txn};

/// Notes beside a namespace that its removal deletes in the same transaction, beside its groups.
const DELETIONS_AT_ONCE: usize = 50;

impl Cluster {
    /// Makes a namespace in the pool of a name.
    ///
    /// # Errors
    /// [`ClusterError::NamespaceExists`], [`ClusterError::NoSuchPool`], [`ClusterError::NameInvalid`]; those of the registry.
    pub async fn create_namespace(&self, pool: &str, name: &str) -> Result<()> {
        check_name("namespace", name)?;
        for _ in 0..ATTEMPTS_MAX {
            let (id, named) = self.find_managed_pool(pool, name).await?;
            let read: Read<NamespaceInfo> = self.read(&keys::namespace(id, name)).await?;
            if read.value.is_some() {
                return Err(ClusterError::NamespaceExists { place: place(pool, name) });
            }
            let txn = read
                .replaced_by(&NamespaceInfo::default())
                .when(named.unchanged())
                .then(Operation::put(&named.key, encode(&id)));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the namespace {}", place(pool, name)) })
    }

    /// Removes a namespace in which no volumes are, those in the trash among them, and for which no keys are.
    ///
    /// # Errors
    /// [`ClusterError::NamespaceInUse`], [`ClusterError::NamespaceHasKeys`], [`ClusterError::NoSuchNamespace`],
    /// [`ClusterError::NoSuchPool`]; those of the registry.
    pub async fn remove_namespace(&self, pool: &str, name: &str) -> Result<()> {
        let place = place(pool, name);
        for _ in 0..ATTEMPTS_MAX {
            let (id, _) = self.find_managed_pool(pool, name).await?;
            // Read before the volumes and the keys are: one that is made afterwards changes it.
            let read: Read<NamespaceInfo> = self.read(&keys::namespace(id, name)).await?;
            if read.value.is_none() {
                return Err(ClusterError::NoSuchNamespace { place });
            }
            let volumes: Vec<(String, VolumeInfo)> = self.read_all(keys::VOLUMES).await?;
            let mut inside = volumes.into_iter().map(|(_, info)| info);
            let mut inside = inside.by_ref().filter(|info| is_inside(info, id, name));
            if let Some(example) = inside.next() {
                let volumes = 1 + inside.count();
                let example = match example.trashed {
                    None => example.name,
                    Some(_) => format!("{} (in the trash)", example.name),
                };
                return Err(ClusterError::NamespaceInUse { place, volumes, example });
            }
            let principals = self.principals().await?;
            if let Some((key, _)) = principals.into_iter().find(|(_, one)| is_for(one, id, name)) {
                return Err(ClusterError::NamespaceHasKeys { place, key });
            }
            let there = PlaceName { pool: pool.to_owned(), namespace: name.to_owned() };
            let groups = self.empty_groups_of(id, &there).await?;
            // What is beside it would be beside another one that is called so later. Whoever adds a note writes its entry anew; whoever
            // adds to a group writes that.
            let mut notes = self.registry.range(&keys::place_metadata_of(id, name)).await?.entries;
            let deleted = |entry: KeyValue| Operation::delete(entry.key);
            // What is too much for one transaction goes before it: it is not wanted any more.
            let before = notes.split_off(notes.len().min(DELETIONS_AT_ONCE));
            self.perform_all(before.into_iter().map(deleted)).await?;
            let mut txn = Txn::new().when(read.unchanged()).then(Operation::delete(&read.key));
            for group in groups {
                txn = txn.when(Compare::unchanged(&group.key, Some(&group))).then(deleted(group));
            }
            if self.commit(notes.into_iter().map(deleted).fold(txn, Txn::then)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the namespace {place}") })
    }

    /// The pool of a place that whoever this is done for manages, and the beginning of a transaction that is done only if the place is
    /// there still: whoever removes it meanwhile looks again what is there.
    pub(super) async fn touch_place(&self, place: &PlaceName) -> Result<(PoolId, Txn)> {
        let (pool, there) = self.find_place(place).await?;
        let txn = Txn::new().when(there);
        if place.namespace.is_empty() {
            return Ok((pool, txn.then(Operation::put(keys::pool_name(&place.pool), encode(&pool)))));
        }
        let read: Read<NamespaceInfo> = self.read(&keys::namespace(pool, &place.namespace)).await?;
        match &read.value {
            Some(info) => {
                Ok((pool, txn.when(read.unchanged()).then(Operation::put(&read.key, encode(info)))))
            }
            None => Err(ClusterError::NoSuchNamespace { place: place.to_string() }),
        }
    }

    /// One of the namespaces of a pool, if it has some.
    pub(super) async fn namespace_of(&self, pool: PoolId) -> Result<Option<String>> {
        let prefix = keys::namespaces_of(pool);
        let all = self.registry.range(&prefix).await?.entries;
        Ok(all.first().and_then(|entry| entry.key.strip_prefix(&prefix)).map(str::to_owned))
    }

    /// The pool of a name, for whoever manages all of it.
    async fn find_managed_pool(&self, pool: &str, namespace: &str) -> Result<(PoolId, Read<PoolId>)> {
        let named: Read<PoolId> = self.read(&keys::pool_name(pool)).await?;
        if let Some(bearer) = &self.bearer {
            bearer.may_manage_namespaces(named.value, &place(pool, namespace))?;
        }
        let id = named.value.ok_or_else(|| ClusterError::NoSuchPool { name: pool.to_owned() })?;
        Ok((id, named))
    }
}

fn is_inside(info: &VolumeInfo, pool: PoolId, namespace: &str) -> bool {
    info.pool == pool && info.namespace == namespace && !info.removed
}

fn is_for(principal: &Principal, pool: PoolId, namespace: &str) -> bool {
    let Access::Pools(rights) = &principal.access else { return false };
    rights.namespaces.get(&pool).is_some_and(|named| named.contains_key(namespace))
}

fn place(pool: &str, namespace: &str) -> String {
    PlaceName { pool: pool.to_owned(), namespace: namespace.to_owned() }.to_string()
}

/// A place by its name.
pub(super) fn parse(place: &str) -> Result<PlaceName> {
    place.parse().map_err(|reason| ClusterError::NoPlace { reason })
}
