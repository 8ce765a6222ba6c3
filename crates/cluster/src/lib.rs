//! The cluster's state as typed operations over a [`Registry`].
//!
//! Values are JSON. Everything that routes requests is below one prefix, so that one range reads the
//! [`ClusterMap`] as of one revision and one watch keeps it current:
//!
//! | key                              | value | lives |
//! |----------------------------------|-------|-------|
//! | `millpond/map/cluster`           | the cluster's id | for ever |
//! | `millpond/map/node/ID`           | [`NodeInfo`](base::map::NodeInfo): its host, and where that stands | until the node is removed |
//! | `millpond/map/osd/ID`            | uuid, node, size, incarnation, admission, device class, reweight, whether its drive is still blank | until the OSD is removed |
//! | `millpond/map/up/ID`             | where that OSD listens | as long as its node's lease |
//! | `millpond/map/pool/ID`           | [`PoolInfo`](base::map::PoolInfo) | until removed |
//! | `millpond/map/pg/POOL.INDEX`     | [`PgConfig`](base::map::PgConfig) | with its pool |
//! | `millpond/map/target/POOL.INDEX` | the OSDs that shall hold that group, the preferred primary first | with its pool |
//! | `millpond/map/principal/NAME`    | [`Principal`](base::access::Principal): a public key, and what whoever has it may do | until removed |
//! | `millpond/map/encryption`        | [`Encryption`](base::Encryption): whether connections are encrypted | for ever |
//! | `millpond/map/profile`           | [`Profile`](base::Profile): whom OSDs favour | for ever |
//! | `millpond/reserved`              | a number, one more with each reservation that is made larger | for ever |
//! | `millpond/map/recovery-share`    | [`RecoveryShare`](base::RecoveryShare): how much of what OSDs do may be recovery | for ever |
//! | `millpond/map/namespace/POOL/NAME` | [`NamespaceInfo`](base::map::NamespaceInfo) | until removed |
//! | `millpond/map/volume/ID`         | [`VolumeInfo`](base::map::VolumeInfo) | with its pool |
//! | `millpond/map/snapshot/VOLUME/NUMBER` | [`SnapshotInfo`](base::map::SnapshotInfo): of the layer of that number | until the snapshot is removed |
//! | `millpond/map/still/VOLUME`      | [`Stillness`](base::map::Stillness): its clients are to stand still | as long as the lease of whoever makes snapshots, or until they are made |
//! | `millpond/map/wish/VOLUME/WISH`  | [`Wish`](base::map::Wish): somebody who opened the volume has something to change | until it owns the volume, or as long as its lease |
//! | `millpond/map/schedule/NAME`     | [`Schedule`](base::schedule::Schedule): which volumes have snapshots made by themselves, how often, and which are kept | until removed |
//! | `millpond/map/removed-pool/ID`   | [`RemovedPool`](base::map::RemovedPool): the tombstone of a pool | until every OSD it names holds nothing of it |
//! | `millpond/next/{node,osd,pool,volume,cut,group}` | the next id, so that none is used twice | for ever |
//! | `millpond/uuid/UUID`             | the id of the OSD formatted so | with the OSD |
//! | `millpond/drive/ID`              | where that OSD's drive was at its last start | with the OSD |
//! | `millpond/joined/ID`             | the placement group in which that OSD became in sync last | with the OSD |
//! | `millpond/osds-removed`          | how many OSDs were removed | for ever |
//! | `millpond/pool-name/NAME`        | the id of the pool | with the pool |
//! | `millpond/volume-name/NAME`, `…/NAME/POOL`, `millpond/volume-name-in/POOL/NAMESPACE/NAME` | the id of the volume: see `names.rs` | until the volume is renamed, put into the trash, or removed |
//! | `millpond/snapshot-name/VOLUME/NAME` | the number of the layer | until the snapshot is renamed or removed |
//! | `millpond/stands-still/VOLUME/CLIENT` | [`Stillness`](base::map::Stillness): for that time the client stands still | as long as the client's lease |
//! | `millpond/metadata/VOLUME/KEY`    | what somebody noted beside the volume: text | until the volume is removed |
//! | `millpond/place-metadata/POOL/NAMESPACE/KEY` | what somebody noted beside the pool or the namespace: text | until that is removed |
//! | `millpond/group/POOL/NAMESPACE/NAME` | [`GroupRecord`]: volumes of which snapshots are made together | until the group is removed |
//! | `millpond/group-of/VOLUME`       | the number of the group that the volume is in | until it is taken out, or removed |
//! | `millpond/attached/VOLUME/CLIENT` | [`AttachRecord`] | as long as the client's lease |
//! | `millpond/holder/VOLUME/CLIENT`  | [`AttachRecord`] | until the client detached with nothing under way, or was fenced |
//! | `millpond/attach-guard/VOLUME`   | the last client that attached | until the volume is removed |
//! | `millpond/watcher/VOLUME/CLIENT/WHAT` | [`WatchRecord`]: who has the volume open, or that snapshot of it | as long as the client's lease |
//! | `millpond/watch-guard/VOLUME`    | the last client that opened it | until the volume is removed |
//! | `millpond/locks/VOLUME`          | [`LockRecord`]s: advisory locks | until they are removed, or the volume |
//! | `millpond/client-lease/LEASE`    | the principal that it was granted to by a node | as long as that lease |
//! | `millpond/scrub/POOL.INDEX` | [`ScrubRecord`] | until its pool is removed |
//! | `millpond/scrub-wish/POOL.INDEX` | [`ScrubWish`] | until it is fulfilled, or its pool removed |
//! | `millpond/http/NODE-PID`         | [`HttpRecord`]: where that process serves HTTP | as long as its lease |
//! | `millpond/manager`               | [`ManagerRecord`]: who decides what nobody needs to be asked for | as long as its lease |
//! | `millpond/settings`              | [`Settings`] | for ever |
//! | `millpond/space`                 | [`SpaceRecord`]: how full the cluster is | for ever |
//! | `millpond/moving-in`             | [`MoveRecord`]: a cluster is being moved into this registry | until it is here |
//! | `millpond/moved`                 | [`MoveRecord`]: the cluster was moved to another registry | until one is moved in |
//!
//! The cluster is where `millpond/map/cluster` is: it is the condition of every change, and no registry has it beside one of
//! the last two keys. So a cluster that was moved to another registry ([`Migration`]) cannot be changed where it was.
//!
//! Each change reads, decides, and writes in one transaction under the condition that what it decided by
//! is unchanged; else it looks again. Some keys exist for that condition alone: every attach writes the
//! volume's guard, every new volume moves `next/volume`, so that a removal of a volume or pool notices either;
//! whoever makes a volume or a key in a namespace writes the namespace's entry, and who makes a namespace writes its pool's
//! name, so that their removal notices that;
//! every removal of an OSD and every new pool writes `osds-removed`, so that the one notices the other; whoever becomes in
//! sync writes `joined`, so that its removal, and its replacement, notice that.
//!
//! A target names only OSDs that were in when it was written: their records are conditions of writing it. Only
//! who is out can be removed, and the record is a condition of that too; so no target names who is gone.
//!
//! Placement groups of a large pool do not fit in one transaction. They are written first and the pool
//! last; groups without a pool are not part of the map.

mod attach;
mod change;
mod clerk;
mod current;
mod error;
mod groups;
mod history;
mod http;
mod keys;
mod lineage;
mod locks;
mod manager;
mod metadata;
mod migration;
mod names;
mod namespaces;
mod nodes;
mod osds;
mod ownership;
mod pools;
mod presence;
mod principals;
mod qos;
mod question;
mod replacement;
mod schedules;
mod scrubs;
mod settings;
mod shown;
mod snapshots;
mod space;
mod splits;
mod targets;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod vantage;
mod volumes;
mod watchers;

pub use attach::{AttachRecord, Attachment};
pub use change::{Changed, VolumeChange};
pub use clerk::{Clerk, Visitor};
pub use current::{Known, MapFollower, keep_map};
pub use error::{ClusterError, check_name};
pub use groups::{GroupChange, GroupRecord, GroupSnapshot};
pub use history::HistoryBounds;
pub use http::HttpRecord;
pub use locks::LockRecord;
pub use manager::ManagerRecord;
pub use migration::{Migrated, Migration, MigrationError, leased, reclaim};
pub use ownership::Owning;
pub use pools::check_pg;
pub use presence::{MoveRecord, Presence};
pub use question::{
    Attach, Attachments, ChangeVolumes, Detach, Drives, Fenced, GiveUp, Grant, Groups, HttpServers, Identify,
    KeepAlive, Lock, Locks, Manager, Metadata, Open, Own, PlaceMetadata, Question, Resume, Revoke, Space,
    StandsStill, Unlock, Watchers, WishNoMore,
};
pub use replacement::{Replacement, SlotOsd};
pub use schedules::{ScheduleChange, WantedSchedule};
pub use scrubs::{ScrubRecord, ScrubResult, ScrubState, ScrubWish, ScrubWishes};
pub use settings::Settings;
pub use snapshots::{REMOVED_AT_ONCE_MAX, Standstill, VOLUMES_AT_ONCE_MAX, WantedSnapshot};
pub use space::SpaceRecord;
pub use targets::TargetChange;
pub use vantage::{Vantage, all_places};
pub use watchers::{WatchMode, WatchRecord};

use attach::by;
use base::ClusterId;
use base::map::ClusterMap;
use clerk::Bearer;
use registry::Value;
use registry::{Compare, KeyValue, Operation, OperationResult, Registry, Txn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// How often an operation looks again because another changed what it had read.
const ATTEMPTS_MAX: usize = 1000;

type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// The cluster that a registry describes.
#[derive(Clone)]
pub struct Cluster {
    registry: Arc<dyn Registry>,
    /// Who came with a key that is no owner's, if it is for such a one that volumes are changed: see `change.rs`.
    bearer: Option<Arc<Bearer>>,
}

impl Cluster {
    /// The cluster in `registry`.
    #[must_use]
    pub fn new(registry: Arc<dyn Registry>) -> Cluster {
        Cluster { registry, bearer: None }
    }

    /// The same cluster, as far as volumes of it may be changed by who came with a key.
    fn for_bearer(&self, bearer: Bearer) -> Cluster {
        Cluster { registry: self.registry.clone(), bearer: Some(Arc::new(bearer)) }
    }

    /// The registry, for leases.
    #[must_use]
    pub fn registry(&self) -> &Arc<dyn Registry> {
        &self.registry
    }

    /// The condition that the cluster is in this registry, for changes of what is kept beside it.
    #[must_use]
    pub fn is_here() -> Compare {
        Compare::Exists(keys::CLUSTER.to_owned())
    }

    /// Makes the registry that of cluster `id`. Doing it again changes nothing.
    ///
    /// # Errors
    /// [`ClusterError::OtherCluster`] if it is another's; [`ClusterError::MovingIn`], [`ClusterError::Moved`].
    pub async fn create(&self, id: ClusterId) -> Result<()> {
        let absent = [keys::CLUSTER, keys::MOVING_IN, keys::MOVED].map(|key| Compare::Absent(key.to_owned()));
        let txn = absent.into_iter().fold(Txn::new(), Txn::when);
        let txn = txn.then(Operation::put(keys::CLUSTER, encode(&id)));
        if self.registry.txn(txn).await?.succeeded {
            return Ok(());
        }
        let found = self.id().await?;
        if found != id {
            return Err(ClusterError::OtherCluster { found, expected: id });
        }
        Ok(())
    }

    /// The cluster's id.
    ///
    /// # Errors
    /// [`ClusterError::NoCluster`] before [`Self::create`]; [`ClusterError::MovingIn`], [`ClusterError::Moved`].
    pub async fn id(&self) -> Result<ClusterId> {
        Presence::read(&*self.registry).await?.id()
    }

    /// The map as of now. An OSD has no address unless it is up.
    ///
    /// # Errors
    /// As [`Self::id`], or an entry that makes no sense.
    pub async fn map(&self) -> Result<ClusterMap> {
        let parts = current::MapParts::read(&*self.registry).await?;
        match parts.to_map() {
            Some(map) => Ok(map),
            None => Err(self.absence().await),
        }
    }

    /// Why there is no cluster.
    async fn absence(&self) -> ClusterError {
        // Between the two looks it may have come.
        self.id().await.err().unwrap_or(ClusterError::NoCluster)
    }

    /// The map, kept current by a task of its own for as long as a receiver lives. Until the first
    /// reading has come, it is the empty map of revision 0.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch_map(&self) -> tokio::sync::watch::Receiver<Arc<ClusterMap>> {
        let registry = self.registry.clone();
        let begin = move || {
            let registry = registry.clone();
            async move { MapFollower::begin(&*registry).await }
        };
        keep_map(begin, |_| {})
    }

    async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Read<T>> {
        let entry = self.registry.get(key).await?;
        let value = decode_if_any(key, entry.as_ref().map(|entry| &entry.value))?;
        Ok(Read { key: key.to_owned(), value, entry })
    }

    async fn read_all<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<(String, T)>> {
        let entries = self.registry.range(prefix).await?.entries;
        let decoded = entries.into_iter().map(|entry| {
            let value = decode(&entry.key, &entry.value)?;
            Ok((entry.key, value))
        });
        decoded.collect()
    }

    /// Performs a transaction if the cluster is in this registry, and the key may still for which it is done, if it is for one;
    /// false if something it was decided by has changed.
    ///
    /// # Errors
    /// As [`Self::id`]; [`RegistryError::Forbidden`](registry::RegistryError::Forbidden); those of the registry.
    async fn commit(&self, txn: Txn) -> Result<bool> {
        let bearer = self.bearer.as_deref();
        let txn = by(bearer, txn).when(Cluster::is_here()).otherwise(Operation::get(keys::CLUSTER));
        let done = self.registry.txn(txn).await?;
        match done.results.last() {
            Some(OperationResult::Got(None)) if !done.succeeded => return Err(self.absence().await),
            _ if done.succeeded => return Ok(true),
            _ => {}
        }
        if let Some(bearer) = bearer {
            bearer.check_unchanged(&*self.registry).await?;
        }
        Ok(false)
    }

    /// Performs operations in as few transactions as their number allows.
    async fn perform_all(&self, operations: impl IntoIterator<Item = Operation>) -> Result<()> {
        for txn in Txn::split(operations) {
            self.registry.txn(txn).await?;
        }
        Ok(())
    }
}

/// A key as it was read.
struct Read<T> {
    key: String,
    value: Option<T>,
    entry: Option<KeyValue>,
}

impl<T> Read<T> {
    /// The condition that it still is so.
    fn unchanged(&self) -> Compare {
        Compare::unchanged(&self.key, self.entry.as_ref())
    }

    /// Gives it another value, if it still is so.
    fn replaced_by<V: Serialize>(&self, value: &V) -> Txn {
        Txn::new().when(self.unchanged()).then(Operation::put(&self.key, encode(value)))
    }
}

impl Read<u64> {
    /// Takes the next id of a counter that starts at `first`: the id and the step that uses it up.
    fn take(&self, first: u64) -> (u64, Operation) {
        let id = self.value.unwrap_or(first);
        (id, Operation::put(&self.key, encode(&(id + 1))))
    }

    /// The same, of ids that have 32 bits.
    fn take_u32(&self, first: u64, what: &str) -> Result<(u32, Operation)> {
        let (id, used) = self.take(first);
        match u32::try_from(id) {
            Ok(id) => Ok((id, used)),
            Err(_) => {
                Err(ClusterError::Unreadable { key: self.key.clone(), reason: format!("{id} is no {what}") })
            }
        }
    }
}

fn encode<T: Serialize>(value: &T) -> Value {
    serde_json::to_vec(value).expect("plain data with text keys has a JSON form").into()
}

fn decode<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T> {
    serde_json::from_slice(value.as_bytes())
        .map_err(|error| ClusterError::Unreadable { key: key.to_owned(), reason: error.to_string() })
}

fn decode_if_any<T: DeserializeOwned>(key: &str, value: Option<&Value>) -> Result<Option<T>> {
    value.map(|value| decode(key, value)).transpose()
}
