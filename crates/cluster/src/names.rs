//! Which volume a name leads to, and the entries by which no two volumes of a place have one name.
//!
//! | key | says that the name is that of |
//! |-----|-------------------------------|
//! | `volume-name-in/POOL/NAMESPACE/NAME` | a volume of that namespace |
//! | `volume-name/NAME` | a volume of the default namespace of some pool |
//! | `volume-name/NAME/POOL` | one of the default namespace of that pool, where the key above is that of another pool's |
//!
//! Once there were no namespaces, and `volume-name/NAME` was all there was: a name was unique in the cluster. Where it still is,
//! nothing is otherwise than it was. The first pool in which a volume of that name is made has that key, others have theirs beside
//! it, and when the first one leaves the name, that key becomes another's. So a version that knows of no namespaces finds volumes
//! as ever, and makes none of a name that any default namespace has.
//!
//! A volume's record says in which pool it lies and what it is called; a key leads to it, and what it is called says the record.
//! While that is unchanged, the name leads to it: both change together. Only the key that a name has in its default namespace
//! becomes another one without that, and whoever looks for it looks in the order in which it may move.

use super::clerk::Bearer;
use super::error::check_name;
use super::{Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{NamespaceInfo, PoolInfo, VolumeInfo};
use base::names::is_searched;
use base::{PlaceName, PoolId, VolumeId, VolumeName};
use registry::{Compare, Operation, Txn};

/// How often a name and what it leads to are read until they fit.
const NAME_READS: usize = 4;

/// A volume as it was read.
pub(super) type Found = (VolumeId, Read<VolumeInfo>, VolumeInfo);

/// A name that no volume of a place has: what says so, and how it becomes that of one.
pub(super) struct FreeName {
    conditions: Vec<Compare>,
    /// What whoever else decides by it must find changed.
    touched: Vec<Operation>,
    key: String,
}

impl FreeName {
    /// Has it be the name of that volume with a transaction, if it is free then.
    pub(super) fn taken_by(self, id: VolumeId, txn: Txn) -> Txn {
        let txn = self.conditions.into_iter().fold(txn, Txn::when);
        let txn = self.touched.into_iter().fold(txn, Txn::then);
        txn.then(Operation::put(self.key, encode(&id)))
    }
}

/// Whether a record is that of a volume of that name which people see, in whichever pool.
fn bears(info: &VolumeInfo, namespace: &str, name: &str) -> bool {
    info.is_listed() && info.namespace == namespace && info.name == name
}

impl Cluster {
    /// The volume of a name as it was read, for a change: whoever this is done for may change it.
    pub(super) async fn find_volume(&self, name: &str) -> Result<Found> {
        let found = self.find_seen_volume(name).await?;
        self.check_managed(&found.2)?;
        Ok(found)
    }

    /// The volume of a name as it was read, which whoever this is done for may read at least.
    pub(super) async fn find_seen_volume(&self, name: &str) -> Result<Found> {
        self.find_volume_by(self.bearer.as_deref(), name).await
    }

    /// The same, for a client that came with a key. What that is not for is as if it were not there.
    pub(super) async fn find_volume_by(&self, bearer: Option<&Bearer>, name: &str) -> Result<Found> {
        let wanted: VolumeName = name.parse()?;
        let no_such_volume = || ClusterError::NoSuchVolume { name: name.to_owned() };
        let Some(place) = &wanted.place else {
            return self.find_bare(bearer, name).await?.ok_or_else(no_such_volume);
        };
        let pool: Read<PoolId> = self.read(&keys::pool_name(&place.pool)).await?;
        let is_its =
            |pool: PoolId| bearer.is_none_or(|bearer| bearer.rights().to(pool, &place.namespace).is_some());
        // Before it is looked whether there is one: who is not for that learns nothing of it.
        if let Some(bearer) = bearer
            && !pool.value.is_some_and(is_its)
        {
            return bearer.is_not_for();
        }
        let pool = pool.value.ok_or_else(|| ClusterError::NoSuchPool { name: place.pool.clone() })?;
        self.find_in(pool, &place.namespace, &wanted.name, name).await?.ok_or_else(no_such_volume)
    }

    /// The volume of a bare name, of those places in which that may mean one.
    async fn find_bare(&self, bearer: Option<&Bearer>, name: &str) -> Result<Option<Found>> {
        let rights = bearer.map(Bearer::rights);
        let mut dangling = None;
        for _ in 0..NAME_READS {
            // Those beside first: one of them may become the other meanwhile, and not the other way round.
            let mut leads: Vec<VolumeId> = self
                .read_all(&keys::volume_names_beside(name))
                .await?
                .into_iter()
                .map(|(_, id)| id)
                .collect();
            leads.extend(self.read::<VolumeId>(&keys::volume_name(name)).await?.value);
            for (pool, namespace, _) in rights.into_iter().flat_map(|rights| rights.named()) {
                leads
                    .extend(self.read::<VolumeId>(&keys::volume_name_in(pool, namespace, name)).await?.value);
            }
            leads.sort_unstable();
            leads.dedup();
            let (mut all, mut is_stale) = (Vec::new(), false);
            for id in leads {
                let read: Read<VolumeInfo> = self.read(&keys::volume(id)).await?;
                match read.value.clone() {
                    Some(info) if info.is_listed() && info.name == name => {
                        if is_searched(rights, info.pool, &info.namespace) {
                            all.push((id, read, info));
                        }
                    }
                    // Between the two readings it was renamed, removed, or put into the trash; the name may be another's by now.
                    _ => (dangling, is_stale) = (Some(id), true),
                }
            }
            if is_stale {
                continue;
            }
            if all.len() > 1 {
                return Err(self.ambiguous(name, &all).await?);
            }
            return Ok(all.pop());
        }
        Err(dangles(name, dangling))
    }

    async fn ambiguous(&self, name: &str, all: &[Found]) -> Result<ClusterError> {
        let mut names = Vec::with_capacity(all.len());
        for (_, _, info) in all {
            names.push(self.full_name(info).await?);
        }
        names.sort_unstable();
        Ok(ClusterError::AmbiguousName { name: name.to_owned(), all: names })
    }

    /// The name of a volume in full.
    pub(super) async fn full_name(&self, info: &VolumeInfo) -> Result<String> {
        Ok(format!("{}/{}", self.place_of(info).await?, info.name))
    }

    pub(super) async fn place_of(&self, info: &VolumeInfo) -> Result<PlaceName> {
        let pool = self.read::<PoolInfo>(&keys::pool(info.pool)).await?.value;
        let pool = pool.map_or_else(|| info.pool.to_string(), |pool| pool.name);
        Ok(PlaceName { pool, namespace: info.namespace.clone() })
    }

    /// The volume that is called so there.
    async fn find_in(&self, pool: PoolId, namespace: &str, name: &str, said: &str) -> Result<Option<Found>> {
        let mut dangling = None;
        for _ in 0..NAME_READS {
            let mut is_stale = false;
            let keys = match namespace {
                // In the order in which it may move from the one to the other.
                "" => vec![keys::volume_name_beside(name, pool), keys::volume_name(name)],
                _ => vec![keys::volume_name_in(pool, namespace, name)],
            };
            for key in keys {
                let Some(id) = self.read::<VolumeId>(&key).await?.value else { continue };
                let read: Read<VolumeInfo> = self.read(&keys::volume(id)).await?;
                match read.value.clone() {
                    Some(info) if bears(&info, namespace, name) => {
                        if info.pool == pool {
                            return Ok(Some((id, read, info)));
                        }
                    }
                    _ => (dangling, is_stale) = (Some(id), true),
                }
            }
            if !is_stale {
                return Ok(None);
            }
        }
        Err(dangles(said, dangling))
    }

    /// A name that no volume of that place has, which is there.
    pub(super) async fn free_name(&self, pool: PoolId, namespace: &str, name: &str) -> Result<FreeName> {
        check_name("volume", name)?;
        let taken = async || {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let info = VolumeInfo { pool, namespace, name, ..VolumeInfo::default() };
            let name = self.shown_name(&info).await?;
            Ok::<_, ClusterError>(ClusterError::VolumeExists { name })
        };
        if !namespace.is_empty() {
            let named: Read<VolumeId> = self.read(&keys::volume_name_in(pool, namespace, name)).await?;
            if named.value.is_some() {
                return Err(taken().await?);
            }
            let there: Read<NamespaceInfo> = self.read(&keys::namespace(pool, namespace)).await?;
            let Some(info) = &there.value else {
                let pool = self.read::<PoolInfo>(&keys::pool(pool)).await?.value;
                let place = pool.map(|pool| PlaceName { pool: pool.name, namespace: namespace.to_owned() });
                return Err(ClusterError::NoSuchNamespace { place: place.unwrap_or_default().to_string() });
            };
            // Whoever removes the namespace meanwhile looks again what is in it.
            let touched = vec![Operation::put(&there.key, encode(info))];
            return Ok(FreeName {
                conditions: vec![named.unchanged(), there.unchanged()],
                touched,
                key: named.key,
            });
        }
        let beside: Read<VolumeId> = self.read(&keys::volume_name_beside(name, pool)).await?;
        let named: Read<VolumeId> = self.read(&keys::volume_name(name)).await?;
        let conditions = vec![beside.unchanged(), named.unchanged()];
        let Some(other) = named.value.filter(|_| beside.value.is_none()) else {
            return match beside.value {
                Some(_) => Err(taken().await?),
                None => Ok(FreeName { conditions, touched: vec![], key: named.key }),
            };
        };
        let info = self.read::<VolumeInfo>(&keys::volume(other)).await?.value;
        match info.is_some_and(|info| bears(&info, "", name) && info.pool != pool) {
            // Whoever leaves the name meanwhile looks again whose it may become.
            true => {
                let touched = vec![Operation::put(&named.key, encode(&other))];
                Ok(FreeName { conditions, touched, key: beside.key })
            }
            false => Err(taken().await?),
        }
    }

    async fn shown_name(&self, info: &VolumeInfo) -> Result<String> {
        match info.namespace.is_empty() {
            true => Ok(info.name.clone()),
            false => self.full_name(info).await,
        }
    }

    /// Has a volume leave its name with a transaction, which has the volume's record as it was read for a condition.
    pub(super) async fn leave_name(&self, txn: Txn, id: VolumeId, info: &VolumeInfo) -> Result<Txn> {
        let VolumeInfo { pool, namespace, name, .. } = info;
        if !namespace.is_empty() {
            return Ok(txn.then(Operation::delete(keys::volume_name_in(*pool, namespace, name))));
        }
        let beside: Read<VolumeId> = self.read(&keys::volume_name_beside(name, *pool)).await?;
        let named: Read<VolumeId> = self.read(&keys::volume_name(name)).await?;
        let mut txn = txn.when(beside.unchanged()).when(named.unchanged());
        if beside.value == Some(id) {
            txn = txn.then(Operation::delete(&beside.key));
        }
        if named.value != Some(id) {
            return Ok(txn);
        }
        let others: Vec<(String, VolumeId)> = self.read_all(&keys::volume_names_beside(name)).await?;
        let Some((key, _)) = others.into_iter().find(|(_, other)| *other != id) else {
            return Ok(txn.then(Operation::delete(&named.key)));
        };
        // It must be whose it is still; one that comes beside meanwhile changes the other key.
        let heir: Read<VolumeId> = self.read(&key).await?;
        Ok(match &heir.value {
            Some(other) => txn
                .when(heir.unchanged())
                .then(Operation::put(&named.key, encode(other)))
                .then(Operation::delete(&heir.key)),
            // It left the name itself, and this is to be looked at again.
            None => txn.when(Compare::Exists(heir.key)),
        })
    }
}

fn dangles(name: &str, found: Option<VolumeId>) -> ClusterError {
    match found {
        Some(volume) => ClusterError::DanglingName { name: name.to_owned(), volume },
        None => ClusterError::NoSuchVolume { name: name.to_owned() },
    }
}
