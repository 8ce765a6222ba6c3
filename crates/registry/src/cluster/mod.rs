//! The cluster's state as typed operations over a [`Registry`].
//!
//! Values are JSON. Everything that routes requests is below one prefix, so that one range reads the
//! [`ClusterMap`] as of one revision and one watch keeps it current:
//!
//! | key                              | value | lives |
//! |----------------------------------|-------|-------|
//! | `millpond/map/cluster`           | the cluster's id | for ever |
//! | `millpond/map/node/ID`           | [`NodeInfo`](base::map::NodeInfo): its host, and where that stands | for ever |
//! | `millpond/map/osd/ID`            | uuid, node, size, incarnation, admission, device class, reweight | until the OSD is removed |
//! | `millpond/map/up/ID`             | where that OSD listens | as long as its node's lease |
//! | `millpond/map/pool/ID`           | [`PoolInfo`](base::map::PoolInfo) | until removed |
//! | `millpond/map/pg/POOL.INDEX`     | [`PgConfig`](base::map::PgConfig) | with its pool |
//! | `millpond/map/target/POOL.INDEX` | the OSDs that shall hold that group, the preferred primary first | with its pool |
//! | `millpond/map/principal/NAME`    | [`Principal`](base::access::Principal): a public key, and what whoever has it may do | until removed |
//! | `millpond/map/volume/ID`         | [`VolumeInfo`](base::map::VolumeInfo) | with its pool |
//! | `millpond/next/{node,osd,pool,volume}` | the next id, so that none is used twice | for ever |
//! | `millpond/uuid/UUID`             | the id of the OSD formatted so | with the OSD |
//! | `millpond/drive/ID`              | where that OSD's drive was at its last start | with the OSD |
//! | `millpond/osds-removed`          | how many OSDs were removed | for ever |
//! | `millpond/pool-name/NAME`        | the id of the pool | with the pool |
//! | `millpond/volume-name/NAME`      | the id of the volume | until the volume is removed |
//! | `millpond/attached/VOLUME/CLIENT` | [`AttachRecord`] | as long as the client's lease |
//! | `millpond/holder/VOLUME/CLIENT`  | [`AttachRecord`] | until the client detached with nothing under way, or was fenced |
//! | `millpond/attach-guard/VOLUME`   | the last client that attached | until the volume is removed |
//! | `millpond/scrub/POOL.INDEX` | [`ScrubRecord`] | until its pool is removed |
//! | `millpond/scrub-wish/POOL.INDEX` | [`ScrubWish`] | until it is fulfilled, or its pool removed |
//! | `millpond/http/NODE-PID`         | [`HttpRecord`]: where that process serves HTTP | as long as its lease |
//! | `millpond/manager`               | [`ManagerRecord`]: who decides what nobody needs to be asked for | as long as its lease |
//! | `millpond/settings`              | [`Settings`] | for ever |
//!
//! Each change reads, decides, and writes in one transaction under the condition that what it decided by
//! is unchanged; else it looks again. Some keys exist for that condition alone: every attach writes the
//! volume's guard, every new volume moves `next/volume`, so that a removal of a volume or pool notices either;
//! every removal of an OSD and every new pool writes `osds-removed`, so that the one notices the other.
//!
//! A target names only OSDs that were in when it was written: their records are conditions of writing it. Only
//! who is out can be removed, and the record is a condition of that too; so no target names who is gone.
//!
//! Placement groups of a large pool do not fit in one transaction. They are written first and the pool
//! last; groups without a pool are not part of the map.

mod attach;
mod current;
mod error;
mod http;
mod keys;
mod management;
mod manager;
mod nodes;
mod osds;
mod placement;
mod pools;
mod principals;
mod scrubs;
mod settings;
mod targets;
#[cfg(test)]
mod tests;
mod volumes;

pub use attach::{AttachRecord, Attachment};
pub use current::{Known, MapFollower};
pub use error::ClusterError;
pub use http::HttpRecord;
pub use management::{Management, Moment, target_changes};
pub use manager::{Away, ManagerRecord};
pub use placement::{
    Candidate, PG_COUNT_MAX, PG_COUNT_MIN, Place, Spread, Survey, fair_replicas, moved, next_pg_count, place,
    recommended_pg_count, retarget,
};
pub use pools::check_pg;
pub use scrubs::{ScrubRecord, ScrubResult, ScrubState, ScrubWish, ScrubWishes};
pub use settings::Settings;
pub use targets::TargetChange;

use crate::interface::{Compare, KeyValue, Operation, Registry, Txn};
use crate::value::Value;
use base::ClusterId;
use base::map::ClusterMap;
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
}

impl Cluster {
    /// The cluster in `registry`.
    #[must_use]
    pub fn new(registry: Arc<dyn Registry>) -> Cluster {
        Cluster { registry }
    }

    /// The registry, for leases.
    #[must_use]
    pub fn registry(&self) -> &Arc<dyn Registry> {
        &self.registry
    }

    /// Makes the registry that of cluster `id`. Doing it again changes nothing.
    ///
    /// # Errors
    /// [`ClusterError::OtherCluster`] if it is another's.
    pub async fn create(&self, id: ClusterId) -> Result<()> {
        let txn = Txn::new()
            .when(Compare::Absent(keys::CLUSTER.to_owned()))
            .then(Operation::put(keys::CLUSTER, encode(&id)));
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
    /// [`ClusterError::NoCluster`] before [`Self::create`].
    pub async fn id(&self) -> Result<ClusterId> {
        self.read(keys::CLUSTER).await?.value.ok_or(ClusterError::NoCluster)
    }

    /// The map as of now. An OSD has no address unless it is up.
    ///
    /// # Errors
    /// [`ClusterError::NoCluster`], or an entry that makes no sense.
    pub async fn map(&self) -> Result<ClusterMap> {
        let map = current::MapParts::read(&*self.registry).await?;
        map.to_map().ok_or(ClusterError::NoCluster)
    }

    /// The map, kept current by a task of its own for as long as a receiver lives. Until the first
    /// reading has come, it is the empty map of revision 0.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch_map(&self) -> tokio::sync::watch::Receiver<Arc<ClusterMap>> {
        current::keep(self.registry.clone())
    }

    async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Read<T>> {
        let entry = self.registry.get(key).await?;
        let value = entry.as_ref().map(|entry| decode(key, &entry.value)).transpose()?;
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

    /// Performs a transaction; false if something it was decided by has changed.
    async fn commit(&self, txn: Txn) -> Result<bool> {
        Ok(self.registry.txn(txn).await?.succeeded)
    }

    async fn delete_all(&self, keys: impl IntoIterator<Item = String>) -> Result<()> {
        for txn in Txn::split(keys.into_iter().map(Operation::delete)) {
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
}

impl Read<u64> {
    /// Takes the next id of a counter that starts at `first`: the id and the step that uses it up.
    fn take(&self, first: u64) -> (u64, Operation) {
        let id = self.value.unwrap_or(first);
        (id, Operation::put(&self.key, encode(&(id + 1))))
    }
}

fn encode<T: Serialize>(value: &T) -> Value {
    serde_json::to_vec(value).expect("plain data with text keys has a JSON form").into()
}

fn decode<T: DeserializeOwned>(key: &str, value: &Value) -> Result<T> {
    serde_json::from_slice(value.as_bytes())
        .map_err(|error| ClusterError::Unreadable { key: key.to_owned(), reason: error.to_string() })
}
