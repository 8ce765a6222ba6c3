//! Who has a volume open: to read it, or to write to it when it owns it. Whoever opens a volume disturbs nobody, and nobody is kept
//! from anything by that but from removing the volume under it.

use super::clerk::Bearer;
use super::question::Open;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, by, encode, keys};
use base::map::VolumeInfo;
use base::{ClientId, VolumeId};
use registry::{Operation, Txn};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How somebody has a volume open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchMode {
    /// To read it.
    ReadOnly,
    /// To read it, and to own it from its first change on.
    ReadWrite,
    /// To read its snapshot whose layer has that number.
    Snapshot(u32),
}

impl fmt::Display for WatchMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WatchMode::ReadOnly => formatter.write_str("read-only"),
            WatchMode::ReadWrite => formatter.write_str("read-write"),
            WatchMode::Snapshot(_) => formatter.write_str("a snapshot"),
        }
    }
}

impl WatchMode {
    /// What tells it, in its key, from what else the same client has open of the volume.
    fn name(&self) -> String {
        match self {
            WatchMode::ReadOnly | WatchMode::ReadWrite => "head".to_owned(),
            WatchMode::Snapshot(number) => number.to_string(),
        }
    }
}

/// A client that has a volume open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRecord {
    /// The client.
    pub client: ClientId,
    /// How it has it open.
    pub mode: WatchMode,
    /// Who it is, for people: process and host.
    pub description: String,
    /// By whose key it came, where a node noted it: see [`super::Clerk`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Since when, by its own clock.
    pub since_unix_seconds: u64,
}

impl Cluster {
    /// Notes that a client has a volume open, for as long as its lease lives. Done again it counts for the newer lease.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchVolume`]; [`registry::RegistryError::Forbidden`]; those of the registry.
    pub(super) async fn watch_by(&self, bearer: Option<&Bearer>, asked: Open) -> Result<()> {
        let Open { volume, client, lease, mode, description, since_unix_seconds } = asked;
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let listed = read.value.as_ref().filter(|info| info.is_listed());
            let info = listed.ok_or_else(|| ClusterError::NoSuchVolume { name: volume.to_string() })?;
            let guard: Read<ClientId> = self.read(&keys::watch_guard(volume)).await?;
            let known: Read<WatchRecord> = self.read(&keys::watcher(volume, client, &mode.name())).await?;
            if let Some(bearer) = bearer {
                bearer.may_watch(info, &mode)?;
                bearer.check_own_watch(known.value.as_ref())?;
                if known.value.is_none() {
                    bearer.check_watchers(&info.name, &self.watchers(volume).await?)?;
                }
            }
            let principal = bearer.map(|bearer| bearer.name.clone());
            let (mode, description) = (mode.clone(), description.clone());
            let record = WatchRecord { client, mode, description, principal, since_unix_seconds };
            let txn = guard
                .replaced_by(&client)
                .when(read.unchanged())
                .when(known.unchanged())
                .then(Operation::put_leased(&known.key, encode(&record), lease));
            if self.commit(by(bearer, txn)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// Who has a volume open, without those who attached it for good: [`Self::attachments`] are these.
    ///
    /// # Errors
    /// Those of the registry, or a record that cannot be read.
    pub async fn watchers(&self, volume: VolumeId) -> Result<Vec<WatchRecord>> {
        let records = self.read_all(&keys::watchers_of(volume)).await?;
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }

    /// A condition that nobody opens a volume which nobody has open.
    pub(super) async fn unwatched(&self, id: VolumeId, name: &str, txn: Txn) -> Result<Txn> {
        // Read before the watchers are: one that comes afterwards changes it.
        let guard: Read<ClientId> = self.read(&keys::watch_guard(id)).await?;
        match self.watchers(id).await?.into_iter().next() {
            None => Ok(txn.when(guard.unchanged())),
            Some(WatchRecord { mode, description, .. }) => {
                let (name, watcher) = (name.to_owned(), description);
                Err(ClusterError::Watched { name, watcher, mode })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::cluster_of;
    use base::map::Trashed;
    use registry::LeaseId;
    use std::time::Duration;

    async fn lease(cluster: &Cluster) -> LeaseId {
        cluster.registry().lease_grant(Duration::from_secs(10)).await.unwrap().id
    }

    fn watch(volume: VolumeId, client: u64, lease: LeaseId, mode: WatchMode) -> Open {
        let (client, description) = (ClientId(client), format!("client {client}"));
        Open { volume, client, lease, mode, description, since_unix_seconds: 7 }
    }

    #[tokio::test]
    async fn who_has_a_volume_open_is_listed_as_long_as_its_lease_lives_and_disturbs_nobody() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        let (one, two) = (lease(&cluster).await, lease(&cluster).await);
        cluster.watch_by(None, watch(volume, 1, one, WatchMode::ReadOnly)).await.unwrap();
        cluster.watch_by(None, watch(volume, 1, one, WatchMode::Snapshot(4))).await.unwrap();
        cluster.watch_by(None, watch(volume, 2, two, WatchMode::ReadWrite)).await.unwrap();
        let generation = cluster.map().await.unwrap().volumes[&volume].generation;
        let attached = cluster.attach("v", ClientId(3), two, false, "three".to_owned()).await.unwrap();
        assert_eq!((attached.generation.0, attached.unfenced.len()), (generation.0 + 1, 0));
        let told = |records: Vec<WatchRecord>| {
            records.into_iter().map(|record| (record.client.0, record.mode)).collect::<Vec<_>>()
        };
        let (reads, writes) = ((1, WatchMode::ReadOnly), (2, WatchMode::ReadWrite));
        let both = [(1, WatchMode::Snapshot(4)), reads.clone(), writes.clone()];
        assert_eq!(told(cluster.watchers(volume).await.unwrap()), both);
        cluster.registry().lease_revoke(one).await.unwrap();
        assert_eq!(told(cluster.watchers(volume).await.unwrap()), [writes]);
        // It goes on under another lease.
        let three = lease(&cluster).await;
        cluster.watch_by(None, watch(volume, 2, three, WatchMode::ReadWrite)).await.unwrap();
        cluster.registry().lease_revoke(two).await.unwrap();
        assert_eq!(cluster.watchers(volume).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_volume_that_somebody_has_open_is_neither_removed_nor_put_into_the_trash() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        for mode in [WatchMode::ReadOnly, WatchMode::ReadWrite, WatchMode::Snapshot(0)] {
            let lease = lease(&cluster).await;
            cluster.watch_by(None, watch(volume, 1, lease, mode)).await.unwrap();
            let refused = [
                cluster.remove_volume("v").await.unwrap_err(),
                cluster.trash_volume("v", Trashed::default()).await.unwrap_err(),
            ];
            for error in refused {
                assert!(matches!(error, ClusterError::Watched { .. }), "{error}");
                assert!(error.to_string().contains("client 1"), "{error}");
            }
            // What changes nothing for who reads, or what it sees by the map, is done.
            cluster.resize_volume("v", 2 << 20, true).await.unwrap();
            cluster.resize_volume("v", 1 << 20, true).await.unwrap();
            let cut = cluster.map().await.unwrap().volumes[&volume].cut.unwrap();
            cluster.cut_is_done(volume, cut).await.unwrap();
            cluster.registry().lease_revoke(lease).await.unwrap();
        }
        cluster.trash_volume("v", Trashed::default()).await.unwrap();
        let lease = lease(&cluster).await;
        let error = cluster.watch_by(None, watch(volume, 1, lease, WatchMode::ReadOnly)).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
        cluster.restore_volume(volume, None).await.unwrap();
        cluster.remove_volume("v").await.unwrap();
        let left = cluster.registry().range("millpond/watch").await.unwrap().entries;
        assert!(left.is_empty(), "{left:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_opening_and_removing_at_once_one_comes_to_nothing() {
        let cluster = cluster_of(2, 4).await;
        for round in 0..20 {
            let name = format!("v{round}");
            let volume = cluster.create_volume(&name, "p", 1 << 20).await.unwrap();
            let lease = lease(&cluster).await;
            let opening = {
                let cluster = cluster.clone();
                tokio::spawn(async move {
                    cluster.watch_by(None, watch(volume, 1, lease, WatchMode::ReadOnly)).await.is_ok()
                })
            };
            let is_removed = cluster.remove_volume(&name).await.is_ok();
            assert_eq!(opening.await.unwrap(), !is_removed);
        }
    }
}
