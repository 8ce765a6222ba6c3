//! Snapshots: made of volumes at one moment, renamed, protected, removed.
//!
//! A snapshot is the number of the layer that was its volume's newest until then; from there on the volume writes to the next one.
//! So that it holds what there was at one moment, clients *stand still* while that is registered: the map asks them to, each says
//! when it has begun no change since and ended those under way, and one transaction makes the snapshots of all volumes and lets
//! the clients go on. Who writes to two of them in an order cannot have done the second write and not the first at that
//! moment: none of them began one between the first client's word and the transaction.
//!
//! Who had a volume, fell silent and was not fenced may write to it still, and hears nothing: of such a volume no snapshot is made
//! before somebody attaches it, which fences the others ([`ClusterError::Unsettled`]).

use super::attach::by;
use super::clerk::Bearer;
use super::error::check_name;
use super::{ATTEMPTS_MAX, AttachRecord, Cluster, ClusterError, Read, Result, StandsStill, encode, keys};
use base::map::{SnapshotInfo, Stillness, VolumeInfo};
use base::schedule::Schedule;
use base::{ClientId, CutId, LayerId, VolumeId};
use registry::{LeaseId, Operation, Txn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Volumes of which snapshots are made at one moment. Four conditions each fit in what an etcd takes as one transaction.
pub const VOLUMES_AT_ONCE_MAX: usize = 24;
/// Snapshots of a volume that are removed at once. Two conditions each, and as many changes, fit in what an etcd takes as one
/// transaction.
pub const REMOVED_AT_ONCE_MAX: usize = 48;
/// Entries that are read of each snapshot that is removed.
const REMOVAL_READS: u32 = 2;
/// How long clients have for coming to a standstill: they write nothing meanwhile.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(1);
/// How long a standstill lasts at most should whoever asked for it die.
const STANDSTILL_TTL: Duration = Duration::from_secs(5);
/// Entries that are read of a volume so that its clients are asked to stand still.
const STOP_READS: u32 = 12;
/// Ranges that are read of a volume to see whether its clients stand still.
const LOOK_READS: u32 = 3;
/// The pause before it is looked again who stands still.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// A snapshot that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedSnapshot {
    /// Of which volume, by name.
    pub volume: String,
    /// Its name.
    pub name: String,
}

/// A volume whose clients are asked to stand still.
struct Stopped {
    id: VolumeId,
    volume: String,
    read: Read<VolumeInfo>,
    info: VolumeInfo,
    /// What is changed by whoever attaches it.
    guard: Read<ClientId>,
    name: String,
    named: Read<u32>,
    still: Read<Stillness>,
}

/// A snapshot, with its entry and that of its name as they were read.
pub(super) struct FoundSnapshot {
    pub(super) layer: LayerId,
    pub(super) named: Read<u32>,
    pub(super) snapshot: Read<SnapshotInfo>,
}

/// A standstill that was asked for. Its lease ends it, should nobody else.
pub struct Standstill {
    number: Stillness,
    volumes: Vec<Stopped>,
    /// The schedule that the snapshots are made for, if they are made for one: as it was read.
    schedule: Option<Read<Schedule>>,
}

/// A schedule for which snapshots are to be made, as it was when that was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnBehalf<'a> {
    pub(super) name: &'a str,
    pub(super) schedule: &'a Schedule,
}

impl Cluster {
    /// Makes snapshots of volumes at one moment: of all or of none. Their clients write nothing for some milliseconds, or for a
    /// second if one of them does not say that it stands still; then none is made.
    ///
    /// # Errors
    /// [`ClusterError::SnapshotExists`], [`ClusterError::NotStill`], [`ClusterError::Unsettled`], [`ClusterError::KnowsNoLayers`],
    /// [`ClusterError::NoMoreSnapshots`], [`ClusterError::NoSuchVolume`], [`ClusterError::NameInvalid`]; those of the registry.
    pub async fn take_snapshots(
        &self,
        wanted: &[WantedSnapshot],
        at_unix_seconds: u64,
    ) -> Result<Vec<LayerId>> {
        self.take_for(None, wanted, at_unix_seconds).await
    }

    /// The same, for a schedule, unless that was changed since it was decided.
    ///
    /// # Errors
    /// Those, and [`ClusterError::ScheduleChanged`].
    pub(super) async fn take_for(
        &self,
        schedule: Option<OnBehalf<'_>>,
        wanted: &[WantedSnapshot],
        at_unix_seconds: u64,
    ) -> Result<Vec<LayerId>> {
        check_wanted(wanted)?;
        if let Some(bearer) = &self.bearer {
            bearer.take_turn(reads(STOP_READS, wanted)).await?;
            // For who may not, nothing is begun.
            for one in wanted {
                self.find_volume(&one.volume).await?;
            }
        }
        let lease = self.registry.lease_grant(STANDSTILL_TTL).await?.id;
        let taken = self.take_under(lease, schedule, wanted, at_unix_seconds).await;
        // With the lease what asks clients to stand still is gone, if it is there still. It ends by itself, too.
        drop(self.registry.lease_revoke(lease).await);
        taken
    }

    async fn take_under(
        &self,
        lease: LeaseId,
        schedule: Option<OnBehalf<'_>>,
        wanted: &[WantedSnapshot],
        at_unix_seconds: u64,
    ) -> Result<Vec<LayerId>> {
        let deadline = tokio::time::Instant::now() + STANDSTILL_LIMIT;
        loop {
            let number = Stillness(uuid::Uuid::new_v4().as_u64_pair().0);
            let read = match schedule {
                Some(OnBehalf { name, schedule }) => Some(self.read_same_schedule(name, schedule).await?),
                None => None,
            };
            let mut standstill = match self.begin_standstill(wanted, number, lease).await {
                // Somebody else is making one.
                Err(ClusterError::Contended { .. }) if tokio::time::Instant::now() < deadline => {
                    self.pause(reads(STOP_READS, wanted)).await?;
                    continue;
                }
                begun => begun?,
            };
            standstill.schedule = read;
            if let Some(OnBehalf { name, schedule }) = schedule {
                // A volume that was renamed meanwhile left its name to another.
                let is_meant = |stopped: &Stopped| schedule.volumes.contains(&stopped.id);
                if !standstill.volumes.iter().all(is_meant) {
                    return Err(ClusterError::ScheduleChanged { name: name.to_owned() });
                }
            }
            while let Some((volume, holder)) = self.moves_still(&standstill).await? {
                if tokio::time::Instant::now() >= deadline {
                    return Err(ClusterError::NotStill { volume, holder: holder.description });
                }
                self.pause(reads(LOOK_READS, wanted)).await?;
            }
            if let Some(layers) = self.commit_snapshots(&standstill, at_unix_seconds).await? {
                return Ok(layers);
            }
            if tokio::time::Instant::now() >= deadline {
                let what = standstill.volumes.iter().map(|stopped| stopped.volume.as_str());
                return Err(ClusterError::Contended { what: what.collect::<Vec<_>>().join(", ") });
            }
            self.end_standstill(&standstill).await?;
        }
    }

    /// Waits until it is looked again, which takes so many requests of the registry: whoever came with a key has its share of
    /// these.
    async fn pause(&self, requests: u32) -> Result<()> {
        tokio::time::sleep(LOOK_PAUSE).await;
        match &self.bearer {
            Some(bearer) => bearer.take_turn(requests).await,
            None => Ok(()),
        }
    }

    /// Asks the clients of volumes to stand still, as long as the lease lives.
    ///
    /// # Errors
    /// As [`Self::take_snapshots`].
    pub async fn begin_standstill(
        &self,
        wanted: &[WantedSnapshot],
        number: Stillness,
        lease: LeaseId,
    ) -> Result<Standstill> {
        check_wanted(wanted)?;
        let map = self.map().await?;
        if let Some((osd, _)) = map.osds.iter().find(|(_, info)| info.address.is_some() && !info.knows_layers)
        {
            return Err(ClusterError::KnowsNoLayers { osd: *osd });
        }
        for _ in 0..ATTEMPTS_MAX {
            let mut volumes = Vec::with_capacity(wanted.len());
            for one in wanted {
                let one = self.to_stop(one).await?;
                if volumes.iter().any(|other: &Stopped| other.id == one.id) {
                    return Err(ClusterError::NamedTwice { volume: one.volume });
                }
                volumes.push(one);
            }
            let mut txn = Txn::new();
            for stopped in &volumes {
                txn = txn.when(stopped.still.unchanged()).then(Operation::put_leased(
                    &stopped.still.key,
                    encode(&number),
                    lease,
                ));
            }
            if !self.commit(txn).await? {
                continue;
            }
            for stopped in &mut volumes {
                stopped.still = self.read(&stopped.still.key).await?;
                if stopped.still.value != Some(number) {
                    return Err(ClusterError::Contended { what: format!("the volume {}", stopped.volume) });
                }
            }
            return Ok(Standstill { number, volumes, schedule: None });
        }
        Err(ClusterError::Contended { what: "the list of volumes".to_owned() })
    }

    async fn to_stop(&self, wanted: &WantedSnapshot) -> Result<Stopped> {
        let WantedSnapshot { volume, name } = wanted.clone();
        let (id, read, info) = self.find_volume(&volume).await?;
        let named: Read<u32> = self.read(&keys::snapshot_name(id, &name)).await?;
        if named.value.is_some() {
            return Err(ClusterError::SnapshotExists { volume, name });
        }
        if info.head >= LayerId::NUMBER_MAX {
            return Err(ClusterError::NoMoreSnapshots { volume });
        }
        let still: Read<Stillness> = self.read(&keys::still(id)).await?;
        if still.value.is_some() {
            return Err(ClusterError::Contended { what: format!("the volume {volume}") });
        }
        // Read before the attachments are: one that is made afterwards changes it.
        let guard: Read<ClientId> = self.read(&keys::attach_guard(id)).await?;
        Ok(Stopped { id, volume, read, info, guard, name, named, still })
    }

    /// One of the clients that have not said yet that they stand still, and its volume, if there are any.
    ///
    /// # Errors
    /// [`ClusterError::Unsettled`]; those of the registry.
    pub async fn moves_still(&self, standstill: &Standstill) -> Result<Option<(String, AttachRecord)>> {
        for Stopped { id, volume, .. } in &standstill.volumes {
            let stand: Vec<(String, Stillness)> = self.read_all(&keys::stands_still_of(*id)).await?;
            let attached = self.attachments(*id).await?;
            let gone = |holder: &AttachRecord| attached.iter().all(|one| one.client != holder.client);
            if let Some(holder) = self.holders(*id).await?.into_iter().find(gone) {
                let (volume, holder) = (volume.clone(), holder.description);
                return Err(ClusterError::Unsettled { volume, holder });
            }
            let stands = |client: ClientId| {
                let key = keys::stands_still(*id, client);
                stand.iter().any(|(name, number)| *name == key && *number == standstill.number)
            };
            if let Some(moving) = attached.into_iter().find(|holder| !stands(holder.client)) {
                return Ok(Some((volume.clone(), moving)));
            }
        }
        Ok(None)
    }

    /// Makes the snapshots, when all clients stand still, and lets them go on. None: a volume was changed or attached meanwhile,
    /// or the standstill was ended.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn commit_snapshots(
        &self,
        standstill: &Standstill,
        at_unix_seconds: u64,
    ) -> Result<Option<Vec<LayerId>>> {
        let (mut txn, mut layers) = (Txn::new(), Vec::new());
        let schedule = standstill.schedule.as_ref();
        if let Some(read) = schedule {
            txn = txn.when(read.unchanged());
        }
        for Stopped { id, read, info, guard, name, named, still, .. } in &standstill.volumes {
            let layer = info.head_layer(*id);
            let snapshot = SnapshotInfo {
                name: name.clone(),
                bytes: info.bytes,
                at_unix_seconds,
                protected: false,
                is_ragged: info.cut.is_some(),
                schedule: schedule.and_then(|read| read.value.as_ref()).map(|schedule| schedule.id),
            };
            let info = VolumeInfo { head: info.head + 1, ..info.clone() };
            txn = txn
                .when(read.unchanged())
                .when(guard.unchanged())
                .when(named.unchanged())
                .when(still.unchanged())
                .then(Operation::put(&read.key, encode(&info)))
                .then(Operation::put(keys::snapshot(layer), encode(&snapshot)))
                .then(Operation::put(&named.key, encode(&layer.number())))
                .then(Operation::delete(&still.key));
            layers.push(layer);
        }
        Ok(self.commit(txn).await?.then_some(layers))
    }

    /// Lets clients go on.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn end_standstill(&self, standstill: &Standstill) -> Result<()> {
        let asked = standstill.volumes.iter().map(|stopped| &stopped.still);
        let txn = asked
            .fold(Txn::new(), |txn, still| txn.when(still.unchanged()).then(Operation::delete(&still.key)));
        // It was ended by another, or with its lease.
        self.commit(txn).await?;
        Ok(())
    }

    /// Notes that a client stands still, for as long as its lease lives, if it has the volume.
    pub(super) async fn stands_still_by(&self, bearer: Option<&Bearer>, says: &StandsStill) -> Result<()> {
        let StandsStill { volume, client, number, lease } = *says;
        for _ in 0..ATTEMPTS_MAX {
            let attached: Read<AttachRecord> = self.read(&keys::attached(volume, client)).await?;
            let Some(record) = &attached.value else { return Ok(()) };
            bearer.map_or(Ok(()), |bearer| bearer.check_own([record]))?;
            let key = keys::stands_still(volume, client);
            let says = Operation::put_leased(key, encode(&number), lease);
            if self.commit(by(bearer, Txn::new().when(attached.unchanged()).then(says))).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the attachment of client {:016x}", client.0) })
    }

    /// Protects a snapshot from being removed, or does so no more.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchSnapshot`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn protect_snapshot(&self, volume: &str, name: &str, protected: bool) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let FoundSnapshot { layer, snapshot, .. } = self.find_snapshot(volume, name).await?;
            let info = SnapshotInfo { protected, ..snapshot.value.clone().unwrap_or_default() };
            let txn = self.touch(layer.volume(), snapshot.replaced_by(&info)).await?;
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the snapshot {volume}@{name}") })
    }

    /// Removes snapshots of a volume: all that are named or none. What only they hold is deleted as OSDs come to it. Answers with
    /// the layers, in the order of the names; a snapshot that is named twice is one.
    ///
    /// # Errors
    /// [`ClusterError::SnapshotProtected`], [`ClusterError::HasClones`], [`ClusterError::NoSuchSnapshot`],
    /// [`ClusterError::NoSuchVolume`], [`ClusterError::TooManyToRemove`]; those of the registry.
    pub async fn remove_snapshots(&self, volume: &str, names: &BTreeSet<String>) -> Result<Vec<LayerId>> {
        let (count, max) = (names.len(), REMOVED_AT_ONCE_MAX);
        if count > max {
            return Err(ClusterError::TooManyToRemove { count, max });
        }
        if let Some(bearer) = &self.bearer {
            bearer.take_turn(REMOVAL_READS * count as u32).await?;
        }
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(volume).await?;
            let mut found = Vec::with_capacity(count);
            for name in names {
                let one = self.find_snapshot_of(id, volume, name).await?;
                if one.snapshot.value.as_ref().is_some_and(|snapshot| snapshot.protected) {
                    let (volume, name) = (volume.to_owned(), name.clone());
                    return Err(ClusterError::SnapshotProtected { volume, name });
                }
                found.push(one);
            }
            let map = self.map().await?;
            for (name, found) in names.iter().zip(&found) {
                self.check_uncloned(&map, id, Some(found.layer), &format!("the snapshot {volume}@{name}"))?;
            }
            if self.commit_removal(&read, info, &found, None).await? {
                return Ok(found.into_iter().map(|found| found.layer).collect());
            }
        }
        let names: Vec<String> = names.iter().map(|name| format!("{volume}@{name}")).collect();
        Err(ClusterError::Contended { what: names.join(", ") })
    }

    /// Removes snapshots of a volume, if all of it is as it was read, and the schedule by which that was decided.
    pub(super) async fn commit_removal(
        &self,
        volume: &Read<VolumeInfo>,
        info: VolumeInfo,
        snapshots: &[FoundSnapshot],
        decided_by: Option<&Read<Schedule>>,
    ) -> Result<bool> {
        let next: Read<u64> = self.read(keys::NEXT_CUT).await?;
        let (number, used) = next.take(1);
        let mut txn = volume
            .replaced_by(&VolumeInfo { prune: Some(CutId(number)), ..info })
            .when(next.unchanged())
            .then(used);
        for FoundSnapshot { named, snapshot, .. } in snapshots {
            txn = txn
                .when(snapshot.unchanged())
                .when(named.unchanged())
                .then(Operation::delete(&snapshot.key))
                .then(Operation::delete(&named.key));
        }
        let txn = decided_by.into_iter().fold(txn, |txn, read| txn.when(read.unchanged()));
        self.commit(txn).await
    }

    /// Whether no snapshot of a volume is protected.
    pub(super) async fn check_unprotected(&self, id: VolumeId, volume: &str) -> Result<()> {
        let snapshots: Vec<(String, SnapshotInfo)> = self.read_all(&keys::snapshots_of(id)).await?;
        match snapshots.into_iter().find(|(_, info)| info.protected) {
            None => Ok(()),
            Some((_, SnapshotInfo { name, .. })) => {
                Err(ClusterError::SnapshotProtected { volume: volume.to_owned(), name })
            }
        }
    }

    /// Gives a snapshot another name.
    ///
    /// # Errors
    /// [`ClusterError::SnapshotExists`], [`ClusterError::NoSuchSnapshot`], [`ClusterError::NoSuchVolume`],
    /// [`ClusterError::NameInvalid`]; those of the registry.
    pub async fn rename_snapshot(&self, volume: &str, name: &str, new: &str) -> Result<()> {
        check_name("snapshot", new)?;
        for _ in 0..ATTEMPTS_MAX {
            let FoundSnapshot { layer, named, snapshot: found } = self.find_snapshot(volume, name).await?;
            let id = layer.volume();
            if name == new {
                return Ok(());
            }
            let other: Read<u32> = self.read(&keys::snapshot_name(id, new)).await?;
            if other.value.is_some() {
                let (volume, name) = (volume.to_owned(), new.to_owned());
                return Err(ClusterError::SnapshotExists { volume, name });
            }
            let info = SnapshotInfo { name: new.to_owned(), ..found.value.clone().unwrap_or_default() };
            let txn = found
                .replaced_by(&info)
                .when(named.unchanged())
                .when(other.unchanged())
                .then(Operation::put(&other.key, encode(&named.value)))
                .then(Operation::delete(&named.key));
            let txn = self.touch(id, txn).await?;
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the snapshot {volume}@{name}") })
    }

    /// A snapshot, by its name.
    pub(super) async fn find_snapshot(&self, volume: &str, name: &str) -> Result<FoundSnapshot> {
        let (id, ..) = self.find_volume(volume).await?;
        self.find_snapshot_of(id, volume, name).await
    }

    /// The same, of a volume that was found by that name.
    pub(super) async fn find_snapshot_of(
        &self,
        id: VolumeId,
        volume: &str,
        name: &str,
    ) -> Result<FoundSnapshot> {
        let missing = || ClusterError::NoSuchSnapshot { volume: volume.to_owned(), name: name.to_owned() };
        let named: Read<u32> = self.read(&keys::snapshot_name(id, name)).await?;
        let number = named.value.filter(|number| *number <= LayerId::NUMBER_MAX).ok_or_else(missing)?;
        let layer = id.layer(number);
        let snapshot: Read<SnapshotInfo> = self.read(&keys::snapshot(layer)).await?;
        // The name and the entry are read one after the other, and change together.
        let bears_it = snapshot.value.as_ref().is_some_and(|info| info.name == name);
        if bears_it { Ok(FoundSnapshot { layer, named, snapshot }) } else { Err(missing()) }
    }
}

/// How many entries are read of all volumes, at so many of each.
fn reads(of_each: u32, wanted: &[WantedSnapshot]) -> u32 {
    of_each * wanted.len() as u32
}

fn check_wanted(wanted: &[WantedSnapshot]) -> Result<()> {
    for (index, one) in wanted.iter().enumerate() {
        check_name("snapshot", &one.name)?;
        if wanted[..index].iter().any(|other| other.volume == one.volume) {
            return Err(ClusterError::NamedTwice { volume: one.volume.clone() });
        }
    }
    if wanted.len() > VOLUMES_AT_ONCE_MAX {
        return Err(ClusterError::TooManyAtOnce { count: wanted.len(), max: VOLUMES_AT_ONCE_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::Attach;
    use crate::testing::cluster_of;
    use base::map::Trashed;

    const MIB: u64 = 1 << 20;

    fn wanted(names: &[(&str, &str)]) -> Vec<WantedSnapshot> {
        let one = |(volume, name): &(&str, &str)| WantedSnapshot {
            volume: (*volume).to_owned(),
            name: (*name).to_owned(),
        };
        names.iter().map(one).collect()
    }

    async fn remove(cluster: &Cluster, volume: &str, names: &[&str]) -> Result<Vec<LayerId>> {
        cluster.remove_snapshots(volume, &names.iter().map(|name| (*name).to_owned()).collect()).await
    }

    async fn lease(cluster: &Cluster) -> LeaseId {
        cluster.registry.lease_grant(Duration::from_secs(600)).await.unwrap().id
    }

    #[tokio::test]
    async fn a_snapshot_is_the_layer_that_was_written_to_and_the_next_one_follows() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        let first = cluster.take_snapshots(&wanted(&[("v", "a")]), 77).await.unwrap();
        assert_eq!(first, [volume.layer(0)]);
        cluster.resize_volume("v", 2 * MIB, false).await.unwrap();
        assert_eq!(cluster.take_snapshots(&wanted(&[("v", "b")]), 78).await.unwrap(), [volume.layer(1)]);
        let map = cluster.map().await.unwrap();
        assert_eq!(map.volumes[&volume].head_layer(volume), volume.layer(2));
        let all: Vec<_> = map.snapshots_of(volume).map(|(layer, info)| (layer, info.clone())).collect();
        let info = |name: &str, bytes, at_unix_seconds| {
            let name = name.to_owned();
            SnapshotInfo { name, bytes, at_unix_seconds, ..SnapshotInfo::default() }
        };
        assert_eq!(all, [(volume.layer(0), info("a", MIB, 77)), (volume.layer(1), info("b", 2 * MIB, 78))]);
        assert_eq!(map.snapshot(volume.layer(1)), Some(&all[1].1));
        assert!(map.still.is_empty(), "clients go on");
        let error = cluster.take_snapshots(&wanted(&[("v", "a")]), 79).await.unwrap_err();
        assert!(matches!(error, ClusterError::SnapshotExists { .. }), "{error}");
        let lease = lease(&cluster).await;
        let (name, description) = ("v".to_owned(), "an old client".to_owned());
        let attach = Attach {
            volume: name,
            client: ClientId(1),
            lease,
            shared: false,
            description,
            id: None,
            knows_layers: false,
            yields: false,
            renews: false,
        };
        let error = cluster.attach_by(None, attach).await.unwrap_err();
        assert!(matches!(error, ClusterError::HasLayers { .. }), "{error}");
        let error = cluster.take_snapshots(&wanted(&[("w", "a")]), 79).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
        let error = cluster.take_snapshots(&wanted(&[("v", "c"), ("v", "d")]), 79).await.unwrap_err();
        assert!(matches!(error, ClusterError::NamedTwice { .. }), "{error}");
        let error = cluster.take_snapshots(&wanted(&[("v", "c/d")]), 79).await.unwrap_err();
        assert!(matches!(error, ClusterError::NameInvalid { .. }), "{error}");
        cluster.rename_snapshot("v", "a", "c").await.unwrap();
        let error = cluster.rename_snapshot("v", "c", "b").await.unwrap_err();
        assert!(matches!(error, ClusterError::SnapshotExists { .. }), "{error}");
        let error = cluster.protect_snapshot("v", "a", true).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchSnapshot { .. }), "{error}");
        let before: Read<VolumeInfo> = cluster.read(&keys::volume(volume)).await.unwrap();
        cluster.protect_snapshot("v", "c", true).await.unwrap();
        let is_unchanged = cluster.commit(Txn::new().when(before.unchanged())).await.unwrap();
        assert!(!is_unchanged, "whoever removes the volume meanwhile does not notice");
        let map = cluster.map().await.unwrap();
        let info = map.snapshot(volume.layer(0)).unwrap();
        assert_eq!((info.name.as_str(), info.protected, info.at_unix_seconds), ("c", true, 77));
        for refused in [
            remove(&cluster, "v", &["c"]).await.map(drop),
            cluster.remove_volume("v").await.map(drop),
            cluster.trash_volume("v", Trashed::default()).await.map(drop),
        ] {
            assert!(matches!(refused, Err(ClusterError::SnapshotProtected { .. })), "{refused:?}");
        }
        cluster.protect_snapshot("v", "c", false).await.unwrap();
        assert_eq!(remove(&cluster, "v", &["c"]).await.unwrap(), [volume.layer(0)]);
        let map = cluster.map().await.unwrap();
        let prune = map.volumes[&volume].prune.unwrap();
        assert_eq!(map.snapshots_of(volume).map(|(layer, _)| layer).collect::<Vec<_>>(), [volume.layer(1)]);
        // A number is never given again, and what is left goes with the volume.
        remove(&cluster, "v", &["b"]).await.unwrap();
        assert!(cluster.map().await.unwrap().volumes[&volume].prune > Some(prune));
        assert!(!cluster.cut_is_done(volume, prune).await.unwrap(), "it lost another one since");
        assert_eq!(cluster.take_snapshots(&wanted(&[("v", "c")]), 80).await.unwrap(), [volume.layer(2)]);
        cluster.remove_volume("v").await.unwrap();
        let map = cluster.map().await.unwrap();
        assert!(map.snapshots.is_empty() && map.volumes[&volume].prune.is_none());
        let names = cluster.registry.range(&keys::snapshot_names_of(volume)).await.unwrap();
        assert!(names.entries.is_empty());
    }

    #[tokio::test]
    async fn of_several_snapshots_all_are_removed_or_none() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        let names: Vec<String> = (0..REMOVED_AT_ONCE_MAX + 8).map(|number| format!("s{number}")).collect();
        for name in &names {
            cluster.take_snapshots(&wanted(&[("v", name)]), 0).await.unwrap();
        }
        let those =
            |numbers: std::ops::Range<usize>| names[numbers].iter().map(String::as_str).collect::<Vec<_>>();
        let left = async || cluster.map().await.unwrap().snapshots_of(volume).count();
        cluster.protect_snapshot("v", "s5", true).await.unwrap();
        cluster.clone_volume("v", "s7", "c").await.unwrap();
        let with = |other: &'static str| [those(0..5), vec![other]].concat();
        for (refused, said) in [
            (with("s5"), "protect"),
            (with("s7"), "flatten"),
            (with("other"), "has no snapshot other"),
            (those(0..names.len()), "48"),
        ] {
            let error = remove(&cluster, "v", &refused).await.unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(left().await, names.len(), "{error}");
        }
        // As many as may be, and none of them twice.
        let most = those(8..names.len());
        let removed = remove(&cluster, "v", &[most.clone(), vec!["s8"]].concat()).await.unwrap();
        assert_eq!(removed.iter().collect::<BTreeSet<_>>().len(), most.len());
        assert_eq!(left().await, 8);
        assert!(cluster.map().await.unwrap().volumes[&volume].prune.is_some());
    }

    #[tokio::test]
    async fn no_snapshot_is_made_before_all_clients_of_all_volumes_stand_still() {
        let cluster = cluster_of(2, 4).await;
        let (lease, asking) = (lease(&cluster).await, lease(&cluster).await);
        let mut ids = Vec::new();
        for (name, client) in [("v", 1), ("w", 2)] {
            cluster.create_volume(name, "p", MIB).await.unwrap();
            let attached =
                cluster.attach(name, ClientId(client), lease, false, format!("client {client}")).await;
            ids.push(attached.unwrap().id);
        }
        let (both, number) = (wanted(&[("v", "s"), ("w", "s")]), Stillness(5));
        let standstill = cluster.begin_standstill(&both, number, asking).await.unwrap();
        let map = cluster.map().await.unwrap();
        assert_eq!(map.still, ids.iter().map(|id| (*id, number)).collect());
        let moves = async || {
            let moving = cluster.moves_still(&standstill).await.unwrap();
            moving.map(|(volume, holder)| (volume, holder.client.0))
        };
        let says = async |volume, client, number| {
            let says = StandsStill { volume, client: ClientId(client), number, lease };
            cluster.stands_still_by(None, &says).await.unwrap();
        };
        assert_eq!(moves().await, Some(("v".to_owned(), 1)));
        says(ids[0], 3, number).await;
        let noted = cluster.registry.range(&keys::stands_still_of(ids[0])).await.unwrap();
        assert!(noted.entries.is_empty(), "who does not have a volume leaves nothing");
        says(ids[0], 1, Stillness(4)).await;
        assert_eq!(moves().await, Some(("v".to_owned(), 1)), "that was another time");
        says(ids[0], 1, number).await;
        assert_eq!(moves().await, Some(("w".to_owned(), 2)));
        says(ids[1], 2, number).await;
        assert_eq!(moves().await, None);
        // Nobody else has them stand still meanwhile.
        let error = cluster.take_snapshots(&wanted(&[("w", "t")]), 0).await.unwrap_err();
        assert!(matches!(error, ClusterError::Contended { .. }), "{error}");
        let layers = cluster.commit_snapshots(&standstill, 9).await.unwrap().unwrap();
        assert_eq!(layers, [ids[0].layer(0), ids[1].layer(0)]);
        let map = cluster.map().await.unwrap();
        assert!(map.still.is_empty() && ids.iter().all(|id| map.volumes[id].head == 1));
        assert!(cluster.commit_snapshots(&standstill, 9).await.unwrap().is_none(), "it is over");
        // One that says nothing keeps all of them from being made.
        let error = cluster.take_snapshots(&wanted(&[("v", "t"), ("w", "t")]), 0).await.unwrap_err();
        assert!(matches!(error, ClusterError::NotStill { .. }), "{error}");
        assert!(error.to_string().contains("client 1"), "{error}");
        let map = cluster.map().await.unwrap();
        assert!(map.still.is_empty() && ids.iter().all(|id| map.volumes[id].head == 1));
    }

    #[tokio::test]
    async fn who_attaches_meanwhile_is_not_passed_over_and_who_fell_silent_is_fenced_first() {
        let cluster = cluster_of(2, 4).await;
        let (short, long) = (lease(&cluster).await, lease(&cluster).await);
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        let standstill = cluster.begin_standstill(&wanted(&[("v", "s")]), Stillness(5), long).await.unwrap();
        assert!(cluster.moves_still(&standstill).await.unwrap().is_none());
        cluster.attach("v", ClientId(1), short, false, "client 1".to_owned()).await.unwrap();
        assert!(cluster.commit_snapshots(&standstill, 9).await.unwrap().is_none());
        cluster.end_standstill(&standstill).await.unwrap();
        assert!(cluster.map().await.unwrap().still.is_empty());
        // Its lease ends, and it may write still.
        cluster.registry.lease_revoke(short).await.unwrap();
        let error = cluster.take_snapshots(&wanted(&[("v", "s")]), 0).await.unwrap_err();
        assert!(matches!(error, ClusterError::Unsettled { .. }), "{error}");
        assert!(error.to_string().contains("client 1"), "{error}");
        let next = cluster.attach("v", ClientId(2), long, false, "client 2".to_owned()).await.unwrap();
        cluster.fenced(&next).await.unwrap();
        cluster.detach(volume, ClientId(2)).await.unwrap();
        assert_eq!(cluster.take_snapshots(&wanted(&[("v", "s")]), 0).await.unwrap(), [volume.layer(0)]);
    }
}
