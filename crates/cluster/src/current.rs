//! The cluster map, and single entries, read at once and kept current by what a watch shows.

use super::keys::{self, MapKey};
use super::osds::{OsdRecord, OsdUp};
use super::vantage::Vantage;
use super::{ClusterError, decode_if_any};
use base::access::{Access, Principal, PublicKey};
use base::map::{
    ClusterMap, NamespaceInfo, NodeInfo, OsdInfo, PgConfig, PoolInfo, RemovedPool, SnapshotInfo, Stillness,
    VolumeInfo, Wish, WishId,
};
use base::schedule::Schedule;
use base::{ClusterId, Encryption, NodeId, OsdId, PgId, PoolId, Profile, RecoveryShare, VolumeId, WorkClass};
use registry::{Range, Registry, RegistryError, Revision, Value, Watch};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The pause before the map is read again after the registry failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Changes that wait to be looked at and become one map: a large one takes longer to put together than to change.
const CHANGES_AT_ONCE_MAX: usize = 256;

/// The entries of which a map is put together.
#[derive(Default)]
pub(super) struct MapParts {
    revision: Revision,
    cluster: Option<ClusterId>,
    nodes: BTreeMap<NodeId, NodeInfo>,
    osds: BTreeMap<OsdId, OsdRecord>,
    up: BTreeMap<OsdId, OsdUp>,
    pools: BTreeMap<PoolId, PoolInfo>,
    pgs: BTreeMap<PgId, PgConfig>,
    targets: BTreeMap<PgId, Vec<OsdId>>,
    namespaces: BTreeMap<PoolId, BTreeMap<String, NamespaceInfo>>,
    volumes: BTreeMap<VolumeId, VolumeInfo>,
    snapshots: BTreeMap<VolumeId, BTreeMap<u32, SnapshotInfo>>,
    still: BTreeMap<VolumeId, Stillness>,
    wishes: BTreeMap<VolumeId, BTreeMap<WishId, Wish>>,
    schedules: BTreeMap<String, Schedule>,
    removed_pools: BTreeMap<PoolId, RemovedPool>,
    principals: BTreeMap<String, Principal>,
    encryption: Encryption,
    /// If it was set beside the profile.
    recovery_share: Option<RecoveryShare>,
    profile: Profile,
    /// Of whoever the map is for, if that came with one.
    key: Option<PublicKey>,
}

impl MapParts {
    /// All entries as of one revision.
    pub(super) async fn read(registry: &dyn Registry) -> Result<MapParts, ClusterError> {
        MapParts::of(registry.range(keys::MAP).await?)
    }

    fn of(range: Range) -> Result<MapParts, ClusterError> {
        let mut parts = MapParts { revision: range.revision, ..MapParts::default() };
        for entry in range.entries {
            parts.set(&entry.key, Some(&entry.value))?;
        }
        Ok(parts)
    }

    /// Takes over an entry, or that it is gone. One that cannot be read leaves what was there.
    fn set(&mut self, key: &str, value: Option<&Value>) -> Result<(), ClusterError> {
        match MapKey::parse(key) {
            Some(MapKey::Cluster) => self.cluster = decode_if_any(key, value)?,
            Some(MapKey::Node(id)) => put_or_remove(&mut self.nodes, id, decode_if_any(key, value)?),
            Some(MapKey::Osd(id)) => put_or_remove(&mut self.osds, id, decode_if_any(key, value)?),
            Some(MapKey::Up(id)) => put_or_remove(&mut self.up, id, decode_if_any(key, value)?),
            Some(MapKey::Pool(id)) => put_or_remove(&mut self.pools, id, decode_if_any(key, value)?),
            Some(MapKey::Pg(id)) => put_or_remove(&mut self.pgs, id, decode_if_any(key, value)?),
            Some(MapKey::Target(id)) => put_or_remove(&mut self.targets, id, decode_if_any(key, value)?),
            Some(MapKey::Namespace(pool, name)) => {
                set_below(&mut self.namespaces, pool, name.to_owned(), decode_if_any(key, value)?);
            }
            Some(MapKey::Volume(id)) => put_or_remove(&mut self.volumes, id, decode_if_any(key, value)?),
            Some(MapKey::Snapshot(layer)) => {
                set_below(&mut self.snapshots, layer.volume(), layer.number(), decode_if_any(key, value)?);
            }
            Some(MapKey::Still(id)) => put_or_remove(&mut self.still, id, decode_if_any(key, value)?),
            Some(MapKey::Wish(volume, wish)) => {
                set_below(&mut self.wishes, volume, wish, decode_if_any(key, value)?);
            }
            Some(MapKey::Schedule(name)) => {
                put_or_remove(&mut self.schedules, name.to_owned(), decode_if_any(key, value)?);
            }
            Some(MapKey::RemovedPool(id)) => {
                put_or_remove(&mut self.removed_pools, id, decode_if_any(key, value)?);
            }
            Some(MapKey::Principal(name)) => {
                put_or_remove(&mut self.principals, name.to_owned(), decode_if_any(key, value)?);
            }
            Some(MapKey::Encryption) => self.encryption = decode_if_any(key, value)?.unwrap_or_default(),
            Some(MapKey::RecoveryShare) => {
                self.recovery_share = decode_if_any(key, value)?;
            }
            Some(MapKey::Profile) => self.profile = decode_if_any(key, value)?.unwrap_or_default(),
            // Written by a later version, which does without this one's understanding.
            None => {}
        }
        Ok(())
    }

    /// The map, if there is a cluster, with OSDs where they are reached from here. Placement groups and volumes without a
    /// pool are left out: their pool is being made or removed.
    pub(super) fn to_map(&self) -> Option<ClusterMap> {
        let vantage = Vantage::default();
        let osd = |(&id, record): (&OsdId, &OsdRecord)| {
            let reached_at = |up: &OsdUp| vantage.nearest(self.nodes.get(&record.node), up.address);
            let info = OsdInfo {
                uuid: record.uuid,
                node: record.node,
                bytes: record.bytes,
                address: self.up.get(&id).map(reached_at),
                knows_layers: self.up.get(&id).is_some_and(|up| up.knows_layers),
                incarnation: record.incarnation,
                admission: record.admission,
                device_class: record.device_class(),
                reweight: record.reweight,
            };
            (id, info)
        };
        let pgs = self.pgs.iter().filter(|(id, _)| self.pools.contains_key(&id.pool));
        let targets = self.targets.iter().filter(|(id, _)| self.pools.contains_key(&id.pool));
        let namespaces = self.namespaces.iter().filter(|(pool, _)| self.pools.contains_key(pool));
        let own = self.key.and_then(|key| self.principals.values().find(|one| one.public_key == key));
        let rights = own.and_then(|own| match &own.access {
            Access::Pools(rights) => Some(rights.clone()),
            _ => None,
        });
        let volumes = self.volumes.iter().filter(|(_, volume)| self.pools.contains_key(&volume.pool));
        Some(ClusterMap {
            revision: self.revision.0,
            cluster: self.cluster?,
            nodes: self.nodes.clone(),
            osds: self.osds.iter().map(osd).collect(),
            pools: self.pools.clone(),
            pgs: pgs.map(|(id, config)| (*id, config.clone())).collect(),
            targets: targets.map(|(id, target)| (*id, target.clone())).collect(),
            namespaces: namespaces.map(|(pool, named)| (*pool, named.clone())).collect(),
            volumes: volumes.map(|(id, volume)| (*id, volume.clone())).collect(),
            snapshots: self.snapshots.clone(),
            still: self.still.clone(),
            wishes: self.wishes.clone(),
            schedules: self.schedules.clone(),
            removed_pools: self.removed_pools.clone(),
            principals: self.principals.clone(),
            encryption: self.encryption,
            profile: self.profile,
            recovery_share: self.recovery_share.unwrap_or_else(|| self.profile.share(WorkClass::Recovery)),
            rights,
        })
    }
}

/// Sets one of what belongs to something, which has no entry without any.
fn set_below<O: Ord + Copy, K: Ord, V>(
    all: &mut BTreeMap<O, BTreeMap<K, V>>,
    owner: O,
    id: K,
    value: Option<V>,
) {
    let below = all.entry(owner).or_default();
    put_or_remove(below, id, value);
    if below.is_empty() {
        all.remove(&owner);
    }
}

fn put_or_remove<K: Ord, V>(entries: &mut BTreeMap<K, V>, id: K, value: Option<V>) {
    match value {
        Some(value) => entries.insert(id, value),
        None => entries.remove(&id),
    };
}

/// The same, of entries that a volume has several of. One that has none is not there.
/// Starts a task that keeps the map current until nobody looks any more, by following it from where `begin` reads it, and
/// shows each to `see`. Until the first reading has come, it is the empty map of revision 0.
///
/// # Panics
/// Outside a tokio runtime.
#[must_use]
pub fn keep_map<F>(
    begin: impl Fn() -> F + Send + Sync + 'static,
    see: impl Fn(&ClusterMap) + Send + Sync + 'static,
) -> watch::Receiver<Arc<ClusterMap>>
where
    F: Future<Output = Result<MapFollower, ClusterError>> + Send,
{
    let (sender, receiver) = watch::channel(Arc::new(ClusterMap::default()));
    tokio::spawn(async move {
        let follow = || async { follow(begin().await?, &see, &sender).await };
        follow_again_and_again("the cluster map", &sender, follow).await;
    });
    receiver
}

enum Never {}

/// Follows something, and begins anew when that fails, until nobody looks any more.
async fn follow_again_and_again<T, F>(what: &str, sender: &watch::Sender<T>, follow: impl Fn() -> F)
where
    F: Future<Output = Result<Never, ClusterError>>,
{
    loop {
        let Err(error) = tokio::select! {
            () = sender.closed() => return,
            followed = follow() => followed,
        };
        match error {
            // Too far behind: what a new reading shows has all of it.
            ClusterError::Registry(RegistryError::Compacted { .. }) => continue,
            error => tracing::warn!(%error, "{what} is not current; reading it again"),
        }
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(RETRY_PAUSE) => {}
        }
    }
}

/// The map, kept current by what a watch shows.
pub struct MapFollower {
    parts: MapParts,
    changes: Box<dyn Watch>,
}

impl MapFollower {
    /// Reads the map.
    ///
    /// # Errors
    /// Those of the registry, or an entry that makes no sense.
    pub async fn begin(registry: &dyn Registry) -> Result<MapFollower, ClusterError> {
        let (range, changes) = read_and_watch(registry).await?;
        MapFollower::of(range, changes)
    }

    /// Goes on from a reading of the map, by its changes from there on.
    ///
    /// # Errors
    /// An entry that makes no sense.
    pub fn of(range: Range, changes: Box<dyn Watch>) -> Result<MapFollower, ClusterError> {
        Ok(MapFollower { parts: MapParts::of(range)?, changes })
    }

    /// The same, for whoever has that key: what bare names mean goes by what that is for.
    #[must_use]
    pub fn seen_with(mut self, key: Option<PublicKey>) -> MapFollower {
        self.parts.key = key;
        self
    }

    /// The map as it was seen last, if there is a cluster.
    #[must_use]
    pub fn map(&self) -> Option<ClusterMap> {
        self.parts.to_map()
    }

    /// Waits for changes, of one or more whole transactions.
    ///
    /// # Errors
    /// Those of the registry: begin anew.
    pub async fn next(&mut self) -> Result<(), ClusterError> {
        let batch = self.changes.next().await?;
        for event in &batch.events {
            if let Err(error) = self.parts.set(event.key(), event.value()) {
                // The rest of the map is better than none; who needs this entry sees the older one.
                tracing::error!(%error, "a change of the cluster map is passed over");
            }
        }
        self.parts.revision = batch.revision;
        Ok(())
    }
}

/// All entries of the map, and their changes from there on.
pub(super) async fn read_and_watch(
    registry: &dyn Registry,
) -> Result<(Range, Box<dyn Watch>), RegistryError> {
    let range = registry.range(keys::MAP).await?;
    let changes = registry.watch(keys::MAP, range.revision.next()).await?;
    Ok((range, changes))
}

/// Publishes the map and its changes until these cannot be followed.
async fn follow(
    mut follower: MapFollower,
    see: &impl Fn(&ClusterMap),
    sender: &watch::Sender<Arc<ClusterMap>>,
) -> Result<Never, ClusterError> {
    loop {
        if let Some(map) = follower.map() {
            see(&map);
            sender.send_replace(Arc::new(map));
        }
        follower.next().await?;
        for _ in 0..CHANGES_AT_ONCE_MAX {
            tokio::select! {
                biased;
                next = follower.next() => next?,
                () = std::future::ready(()) => break,
            }
        }
    }
}

/// What is known of an entry that is being followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// Nothing: it was not read yet.
    NotYet,
    /// It is not there.
    Absent,
    /// Its value.
    Is(T),
}

/// Starts a task that keeps one entry current until nobody looks any more.
pub(super) fn keep_entry<T>(registry: Arc<dyn Registry>, key: &'static str) -> watch::Receiver<Known<T>>
where
    T: DeserializeOwned + PartialEq + Send + Sync + 'static,
{
    let (sender, receiver) = watch::channel(Known::NotYet);
    tokio::spawn(async move {
        follow_again_and_again(key, &sender, || follow_entry(&*registry, key, &sender)).await;
    });
    receiver
}

async fn follow_entry<T: DeserializeOwned + PartialEq>(
    registry: &dyn Registry,
    key: &str,
    sender: &watch::Sender<Known<T>>,
) -> Result<Never, ClusterError> {
    let publish = |value: Option<&Value>| -> Result<(), ClusterError> {
        let known = decode_if_any(key, value)?.map_or(Known::Absent, Known::Is);
        sender.send_if_modified(|before| {
            let is_new = *before != known;
            *before = known;
            is_new
        });
        Ok(())
    };
    let range = registry.range(key).await?;
    // Other keys may begin with this one.
    let entry = range.entries.iter().find(|entry| entry.key == key);
    publish(entry.map(|entry| &entry.value))?;
    let mut changes = registry.watch(key, range.revision.next()).await?;
    loop {
        for event in changes.next().await?.events.iter().filter(|event| event.key() == key) {
            publish(event.value())?;
        }
    }
}
