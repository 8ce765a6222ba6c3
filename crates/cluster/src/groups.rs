//! Groups: volumes of which snapshots are made together, under one name.
//!
//! A group lies in a pool or in a namespace, as a volume does, and may hold volumes from anywhere; a volume is in one at most. What a
//! group's snapshot holds of a volume is a snapshot of that volume, by a name that follows from the group's: all of them are made at
//! one moment. A snapshot is noted before that and noted as complete after it, so that what is left of one that failed can be removed.

use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, WantedSnapshot, check_name, encode, keys};
use base::map::VolumeInfo;
use base::{PlaceName, PoolId, VolumeId, VolumeName};
use registry::{KeyValue, Operation, Txn};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Volumes of a group: of so many snapshots are made at one moment.
const VOLUMES_MAX: usize = super::VOLUMES_AT_ONCE_MAX;
/// Snapshots of a group.
const SNAPSHOTS_MAX: usize = 256;
/// Groups of a pool's default namespace, or of another: all of them are conditions of its removal.
const GROUPS_MAX: usize = 64;

/// A group, as it is noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Its number, which no other group of the cluster has, or had.
    pub id: u64,
    /// What it holds. One that was removed, or lies in the trash, is among them until it is taken out.
    pub volumes: BTreeSet<VolumeId>,
    /// Snapshots of it, in the order in which they were made.
    pub snapshots: Vec<GroupSnapshot>,
    /// The number of its next snapshot.
    pub next_snapshot: u64,
}

/// A snapshot of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSnapshot {
    /// Its number, which no other snapshot of the group has, or had.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970, by the clock of whoever made it: for people.
    pub at_unix_seconds: u64,
    /// What the group held.
    pub volumes: BTreeSet<VolumeId>,
    /// It was made of all of them.
    pub is_complete: bool,
}

impl GroupRecord {
    /// What a snapshot of it is called among those of each volume.
    #[must_use]
    pub fn name_in_volumes(&self, snapshot: &GroupSnapshot) -> String {
        format!(".group.{:x}.{:x}", self.id, snapshot.id)
    }

    /// The snapshot of it that a volume's snapshot of that name is of.
    #[must_use]
    pub fn snapshot_of(&self, name_in_volume: &str) -> Option<&GroupSnapshot> {
        self.snapshots.iter().find(|snapshot| self.name_in_volumes(snapshot) == name_in_volume)
    }

    fn snapshot_named(&self, name: &str) -> Option<usize> {
        self.snapshots.iter().position(|snapshot| snapshot.name == name)
    }
}

/// What is to become of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupChange {
    /// It is made, and holds nothing.
    Create,
    /// It is removed with its snapshots. The volumes stay.
    Remove,
    /// It is called so from now on, where it is.
    Rename {
        /// The name, without a place.
        new: String,
    },
    /// A volume is in it too.
    Add {
        /// The volume's name.
        volume: String,
    },
    /// A volume is in it no more. Snapshots keep what they hold of it.
    TakeOut {
        /// The volume, which may be gone.
        volume: VolumeId,
    },
    /// A snapshot is made of all volumes at one moment.
    TakeSnapshot {
        /// Its name.
        name: String,
        /// The time, in seconds since 1970.
        at_unix_seconds: u64,
    },
    /// A snapshot is called otherwise.
    RenameSnapshot {
        /// The name that it has.
        name: String,
        /// The name that it is to have.
        new: String,
    },
    /// A snapshot is removed from all volumes that have it.
    RemoveSnapshot {
        /// Its name.
        name: String,
    },
    /// All volumes that it was made of, which nobody has attached, become what they were: one after the other.
    RollBack {
        /// The snapshot's name.
        name: String,
    },
}

/// A group as it was read.
struct FoundGroup {
    name: String,
    pool: PoolId,
    place: PlaceName,
    read: Read<GroupRecord>,
    record: GroupRecord,
}

impl Cluster {
    /// The groups of a pool or a namespace, by name: `place` is `POOL` or `POOL/NAMESPACE`.
    ///
    /// # Errors
    /// [`ClusterError::NoPlace`], [`ClusterError::NoSuchPool`]; those of the registry.
    pub async fn groups(&self, place: &str) -> Result<BTreeMap<String, GroupRecord>> {
        let place = super::namespaces::parse(place)?;
        let (pool, _) = self.find_place(&place).await?;
        let prefix = keys::groups_of(pool, &place.namespace);
        let all: Vec<(String, GroupRecord)> = self.read_all(&prefix).await?;
        Ok(all.into_iter().map(|(key, record)| (key[prefix.len()..].to_owned(), record)).collect())
    }

    /// Changes a group, which is named `POOL/NAME` or `POOL/NAMESPACE/NAME`.
    ///
    /// # Errors
    /// Those that begin with `Group` or end with it; [`ClusterError::NoSuchVolume`], [`ClusterError::NameInvalid`]; those of
    /// [`Self::take_snapshots`], [`Self::remove_snapshots`] and [`Self::roll_back_volume`]; those of the registry.
    pub async fn change_group(&self, group: &str, change: GroupChange) -> Result<()> {
        match change {
            GroupChange::Create => self.create_group(group).await,
            GroupChange::Remove => self.remove_group(group).await,
            GroupChange::Rename { new } => self.rename_group(group, &new).await,
            GroupChange::Add { volume } => self.add_to_group(group, &volume).await,
            GroupChange::TakeOut { volume } => self.take_out_of_group(group, volume).await,
            GroupChange::TakeSnapshot { name, at_unix_seconds } => {
                self.take_group_snapshot(group, &name, at_unix_seconds).await
            }
            GroupChange::RenameSnapshot { name, new } => self.rename_group_snapshot(group, &name, &new).await,
            GroupChange::RemoveSnapshot { name } => self.remove_group_snapshot(group, &name).await,
            GroupChange::RollBack { name } => self.roll_back_group(group, &name).await,
        }
    }

    /// The place and the bare name of a group.
    async fn place_of_group(&self, group: &str) -> Result<(PlaceName, String)> {
        let VolumeName { place, name } = group.parse()?;
        let place = place.ok_or_else(|| ClusterError::NoPlace {
            reason: format!("a group is named POOL/NAME or POOL/NAMESPACE/NAME, and {group} says no pool"),
        })?;
        Ok((place, name))
    }

    async fn find_group(&self, group: &str) -> Result<FoundGroup> {
        let (place, name) = self.place_of_group(group).await?;
        let (pool, _) = self.find_place(&place).await?;
        let read: Read<GroupRecord> = self.read(&keys::group(pool, &place.namespace, &name)).await?;
        let record =
            read.value.clone().ok_or_else(|| ClusterError::NoSuchGroup { name: group.to_owned() })?;
        Ok(FoundGroup { name, pool, place, read, record })
    }

    async fn create_group(&self, group: &str) -> Result<()> {
        let (place, name) = self.place_of_group(group).await?;
        for _ in 0..ATTEMPTS_MAX {
            let (pool, touch) = self.touch_place(&place).await?;
            let read: Read<GroupRecord> = self.read(&keys::group(pool, &place.namespace, &name)).await?;
            if read.value.is_some() {
                return Err(ClusterError::GroupExists { name: group.to_owned() });
            }
            let all = self.registry.range(&keys::groups_of(pool, &place.namespace)).await?.entries;
            if all.len() >= GROUPS_MAX {
                let (place, what) = (place.to_string(), "groups");
                return Err(ClusterError::GroupFull { group: place, what, max: GROUPS_MAX });
            }
            let next: Read<u64> = self.read(keys::NEXT_GROUP).await?;
            let (id, used) = next.take(1);
            let record = GroupRecord { id, ..GroupRecord::default() };
            let txn = touch
                .when(read.unchanged())
                .when(next.unchanged())
                .then(used)
                .then(Operation::put(&read.key, encode(&record)));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        contended(group)
    }

    async fn remove_group(&self, group: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.find_group(group).await?;
            if let Some(snapshot) = found.record.snapshots.first() {
                self.remove_group_snapshot(group, &snapshot.name).await?;
                continue;
            }
            let txn = Txn::new().when(found.read.unchanged()).then(Operation::delete(&found.read.key));
            let members = found.record.volumes.iter();
            let txn = members.fold(txn, |txn, volume| txn.then(Operation::delete(keys::group_of(*volume))));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        contended(group)
    }

    async fn rename_group(&self, group: &str, new: &str) -> Result<()> {
        check_name("group", new)?;
        for _ in 0..ATTEMPTS_MAX {
            let FoundGroup { name, pool, place, read, record } = self.find_group(group).await?;
            if name == new {
                return Ok(());
            }
            let other: Read<GroupRecord> = self.read(&keys::group(pool, &place.namespace, new)).await?;
            if other.value.is_some() {
                return Err(ClusterError::GroupExists { name: format!("{place}/{new}") });
            }
            let txn = other.replaced_by(&record).when(read.unchanged()).then(Operation::delete(&read.key));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        contended(group)
    }

    async fn add_to_group(&self, group: &str, volume: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let FoundGroup { read, mut record, .. } = self.find_group(group).await?;
            let (id, there, info) = self.find_volume(volume).await?;
            let grouped: Read<u64> = self.read(&keys::group_of(id)).await?;
            if grouped.value.is_some() {
                return Err(ClusterError::GroupedAlready { volume: volume.to_owned() });
            }
            // What is gone for good takes up no room.
            record.volumes =
                self.those_there(&record.volumes, |info| !info.removed).await?.into_keys().collect();
            if record.volumes.len() >= VOLUMES_MAX {
                return Err(full(group, "volumes", VOLUMES_MAX));
            }
            record.volumes.insert(id);
            let txn = read
                .replaced_by(&record)
                // One that is removed meanwhile leaves nothing behind.
                .when(there.unchanged())
                .then(Operation::put(&there.key, encode(&info)))
                .when(grouped.unchanged())
                .then(Operation::put(&grouped.key, encode(&record.id)));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        contended(group)
    }

    async fn take_out_of_group(&self, group: &str, volume: VolumeId) -> Result<()> {
        self.change_record(group, |found| {
            if !found.record.volumes.remove(&volume) {
                let (volume, group) = (volume.to_string(), group.to_owned());
                return Err(ClusterError::NotInGroup { volume, group });
            }
            Ok(Txn::new().then(Operation::delete(keys::group_of(volume))))
        })
        .await
        .map(drop)
    }

    async fn take_group_snapshot(&self, group: &str, name: &str, at_unix_seconds: u64) -> Result<()> {
        check_name("snapshot", name)?;
        let mut volumes = BTreeMap::new();
        let mut noted = None;
        for _ in 0..ATTEMPTS_MAX {
            let FoundGroup { read, mut record, .. } = self.find_group(group).await?;
            if record.snapshot_named(name).is_some() {
                let (group, name) = (group.to_owned(), name.to_owned());
                return Err(ClusterError::GroupSnapshotExists { group, name });
            }
            if record.snapshots.len() >= SNAPSHOTS_MAX {
                return Err(full(group, "snapshots", SNAPSHOTS_MAX));
            }
            volumes = self.those_there(&record.volumes, VolumeInfo::is_listed).await?;
            let snapshot = GroupSnapshot {
                id: record.next_snapshot,
                name: name.to_owned(),
                at_unix_seconds,
                volumes: volumes.keys().copied().collect(),
                is_complete: volumes.is_empty(),
            };
            record.next_snapshot += 1;
            record.snapshots.push(snapshot.clone());
            if self.commit(read.replaced_by(&record)).await? {
                noted = Some((record.id, record.name_in_volumes(&snapshot), snapshot));
                break;
            }
        }
        let Some((id, name_in_volumes, snapshot)) = noted else { return contended(group) };
        if volumes.is_empty() {
            return Ok(());
        }
        let mut wanted = Vec::with_capacity(volumes.len());
        for info in volumes.values() {
            wanted
                .push(WantedSnapshot { volume: self.full_name(info).await?, name: name_in_volumes.clone() });
        }
        let taken = self.take_snapshots(&wanted, at_unix_seconds).await;
        let made_of: BTreeSet<VolumeId> = taken.iter().flatten().map(|layer| layer.volume()).collect();
        if let Err(error) = taken {
            // If this fails too, it is there, and is not complete.
            drop(self.remove_group_snapshot(group, name).await);
            return Err(error);
        }
        // One that was renamed meanwhile may have left its name to another.
        let is_complete = made_of == snapshot.volumes;
        let found = self
            .change_record(group, |found| {
                let is_it = |other: &GroupSnapshot| other.id == snapshot.id;
                let at = found.record.snapshots.iter().position(is_it);
                // One that was removed meanwhile may have left its name to another.
                let at = at.filter(|_| found.record.id == id).ok_or_else(|| no_snapshot(group, name))?;
                found.record.snapshots[at].is_complete = is_complete;
                found.record.snapshots[at].volumes.extend(made_of.iter().copied());
                Ok(Txn::new())
            })
            .await;
        match found {
            Ok(_) if is_complete => Ok(()),
            Ok(_) => Err(incomplete(group, name)),
            Err(error) => {
                // Nobody knows of them any more.
                for volume in &made_of {
                    self.remove_part(*volume, &name_in_volumes, group).await?;
                }
                Err(error)
            }
        }
    }

    async fn rename_group_snapshot(&self, group: &str, name: &str, new: &str) -> Result<()> {
        check_name("snapshot", new)?;
        self.change_record(group, |found| {
            let at = found.record.snapshot_named(name).ok_or_else(|| no_snapshot(group, name))?;
            if name != new && found.record.snapshot_named(new).is_some() {
                let (group, name) = (group.to_owned(), new.to_owned());
                return Err(ClusterError::GroupSnapshotExists { group, name });
            }
            new.clone_into(&mut found.record.snapshots[at].name);
            Ok(Txn::new())
        })
        .await
        .map(drop)
    }

    async fn remove_group_snapshot(&self, group: &str, name: &str) -> Result<()> {
        let FoundGroup { record, .. } = self.find_group(group).await?;
        let at = record.snapshot_named(name).ok_or_else(|| no_snapshot(group, name))?;
        let snapshot = &record.snapshots[at];
        let of_volumes = record.name_in_volumes(snapshot);
        for volume in &snapshot.volumes {
            self.remove_part(*volume, &of_volumes, group).await?;
        }
        let id = snapshot.id;
        self.change_record(group, |found| {
            found.record.snapshots.retain(|other| other.id != id);
            Ok(Txn::new())
        })
        .await
        .map(drop)
    }

    /// Removes what a snapshot of a group holds of a volume, if that is there and has it.
    async fn remove_part(&self, volume: VolumeId, name: &str, group: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(info) = self.read::<VolumeInfo>(&keys::volume(volume)).await?.value else {
                return Ok(());
            };
            let part: Read<u32> = self.read(&keys::snapshot_name(volume, name)).await?;
            if info.removed || part.value.is_none() {
                return Ok(());
            }
            if info.trashed.is_some() {
                let (volume, group) = (info.name, group.to_owned());
                return Err(ClusterError::GroupedInTrash { volume, group });
            }
            let names = BTreeSet::from([name.to_owned()]);
            match self.remove_snapshots(&self.full_name(&info).await?, &names).await {
                // It has another name by now, or somebody removed it already: looked at again.
                Ok(_) | Err(ClusterError::NoSuchSnapshot { .. } | ClusterError::NoSuchVolume { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        contended(group)
    }

    async fn roll_back_group(&self, group: &str, name: &str) -> Result<()> {
        let FoundGroup { record, .. } = self.find_group(group).await?;
        let at = record.snapshot_named(name).ok_or_else(|| no_snapshot(group, name))?;
        let snapshot = &record.snapshots[at];
        let volumes = self.those_there(&snapshot.volumes, VolumeInfo::is_listed).await?;
        if !snapshot.is_complete || volumes.len() != snapshot.volumes.len() {
            return Err(incomplete(group, name));
        }
        let in_volumes = record.name_in_volumes(snapshot);
        // Nothing is begun that is seen not to go on.
        let map = self.map().await?;
        for (id, info) in &volumes {
            if map.snapshot_named(*id, &in_volumes).is_none() {
                return Err(incomplete(group, name));
            }
            self.unattached(*id, &self.full_name(info).await?).await?;
        }
        for info in volumes.values() {
            self.roll_back_volume(&self.full_name(info).await?, &in_volumes).await?;
        }
        Ok(())
    }

    /// The groups of a place as they were read, none of which holds anything: they go with the place.
    ///
    /// # Errors
    /// [`ClusterError::PlaceHasGroup`]; those of the registry.
    pub(super) async fn empty_groups_of(&self, pool: PoolId, place: &PlaceName) -> Result<Vec<KeyValue>> {
        let prefix = keys::groups_of(pool, &place.namespace);
        let entries = self.registry.range(&prefix).await?.entries;
        for entry in &entries {
            let record: GroupRecord = super::decode(&entry.key, &entry.value)?;
            if !record.snapshots.is_empty()
                || !self.those_there(&record.volumes, |info| !info.removed).await?.is_empty()
            {
                let (place, group) = (place.to_string(), entry.key[prefix.len()..].to_owned());
                return Err(ClusterError::PlaceHasGroup { place, group });
            }
        }
        Ok(entries)
    }

    /// Changes what is noted of a group, together with what else `change` says.
    async fn change_record(
        &self,
        group: &str,
        change: impl Fn(&mut FoundGroup) -> Result<Txn>,
    ) -> Result<GroupRecord> {
        for _ in 0..ATTEMPTS_MAX {
            let mut found = self.find_group(group).await?;
            let txn = change(&mut found)?;
            let txn =
                txn.when(found.read.unchanged()).then(Operation::put(&found.read.key, encode(&found.record)));
            if self.commit(txn).await? {
                return Ok(found.record);
            }
        }
        contended(group)
    }

    /// Those of volumes that are there, each as its entry says.
    async fn those_there(
        &self,
        volumes: &BTreeSet<VolumeId>,
        is_there: impl Fn(&VolumeInfo) -> bool,
    ) -> Result<BTreeMap<VolumeId, VolumeInfo>> {
        let mut there = BTreeMap::new();
        for volume in volumes {
            let info = self.read::<VolumeInfo>(&keys::volume(*volume)).await?.value;
            there.extend(info.filter(&is_there).map(|info| (*volume, info)));
        }
        Ok(there)
    }
}

fn contended<T>(group: &str) -> Result<T> {
    Err(ClusterError::Contended { what: format!("the group {group}") })
}

fn full(group: &str, what: &'static str, max: usize) -> ClusterError {
    ClusterError::GroupFull { group: group.to_owned(), what, max }
}

fn no_snapshot(group: &str, name: &str) -> ClusterError {
    ClusterError::NoSuchGroupSnapshot { group: group.to_owned(), name: name.to_owned() }
}

fn incomplete(group: &str, name: &str) -> ClusterError {
    ClusterError::GroupSnapshotIncomplete { group: group.to_owned(), name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::cluster_of;
    use base::ClientId;
    use base::map::Trashed;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    async fn of(names: &[&str]) -> (Cluster, Vec<VolumeId>) {
        let cluster = cluster_of(2, 4).await;
        cluster.create_namespace("p", "n").await.unwrap();
        change(&cluster, GroupChange::Create).await.unwrap();
        let mut volumes = Vec::new();
        for name in names {
            volumes.push(cluster.create_volume(name, "p", MIB).await.unwrap());
            change(&cluster, GroupChange::Add { volume: (*name).to_owned() }).await.unwrap();
        }
        (cluster, volumes)
    }

    async fn change(cluster: &Cluster, change: GroupChange) -> Result<()> {
        cluster.change_group("p/g", change).await
    }

    async fn take(cluster: &Cluster, name: &str) -> Result<()> {
        change(cluster, GroupChange::TakeSnapshot { name: name.to_owned(), at_unix_seconds: 7 }).await
    }

    async fn remove(cluster: &Cluster, name: &str) -> Result<()> {
        change(cluster, GroupChange::RemoveSnapshot { name: name.to_owned() }).await
    }

    async fn roll_back(cluster: &Cluster, name: &str) -> Result<()> {
        change(cluster, GroupChange::RollBack { name: name.to_owned() }).await
    }

    async fn group(cluster: &Cluster) -> GroupRecord {
        cluster.groups("p").await.unwrap().remove("g").unwrap()
    }

    async fn snapshots_of(cluster: &Cluster, volume: VolumeId) -> Vec<String> {
        let map = cluster.map().await.unwrap();
        map.snapshots_of(volume).map(|(_, info)| info.name.clone()).collect()
    }

    #[tokio::test]
    async fn a_volume_is_in_one_group_at_most_and_in_none_when_that_is_gone() {
        let (cluster, volumes) = of(&["a", "b"]).await;
        let error = change(&cluster, GroupChange::Create).await.unwrap_err();
        assert!(matches!(error, ClusterError::GroupExists { .. }), "{error}");
        cluster.change_group("p/n/h", GroupChange::Create).await.unwrap();
        let add = async |group: &str| {
            cluster.change_group(group, GroupChange::Add { volume: "a".to_owned() }).await
        };
        for group in ["p/g", "p/n/h"] {
            let error = add(group).await.unwrap_err();
            assert!(matches!(error, ClusterError::GroupedAlready { .. }), "{error}");
        }
        for unnamed in ["g", "p/x", "p/m/g", "q/g"] {
            assert!(add(unnamed).await.is_err(), "{unnamed}");
        }
        let out = GroupChange::TakeOut { volume: volumes[0] };
        change(&cluster, out.clone()).await.unwrap();
        assert!(matches!(change(&cluster, out).await, Err(ClusterError::NotInGroup { .. })));
        add("p/n/h").await.unwrap();
        assert_eq!(group(&cluster).await.volumes, [volumes[1]].into());

        // It goes on under another name, which must be free.
        cluster.change_group("p/other", GroupChange::Create).await.unwrap();
        let rename = async |new: &str| change(&cluster, GroupChange::Rename { new: new.to_owned() }).await;
        assert!(matches!(rename("other").await, Err(ClusterError::GroupExists { .. })));
        assert!(matches!(rename("a/b").await, Err(ClusterError::NameInvalid { .. })));
        let before = group(&cluster).await;
        rename("g").await.unwrap();
        rename("new").await.unwrap();
        assert_eq!(cluster.groups("p").await.unwrap()["new"], before);
        assert!(matches!(take(&cluster, "s").await, Err(ClusterError::NoSuchGroup { .. })));
        cluster.change_group("p/new", GroupChange::Remove).await.unwrap();
        cluster.change_group("p/other", GroupChange::Add { volume: "b".to_owned() }).await.unwrap();

        // With its volume, its pool's namespace and so on nothing of it is left.
        cluster.remove_volume("b").await.unwrap();
        cluster.change_group("p/other", GroupChange::Remove).await.unwrap();
        let error = cluster.remove_namespace("p", "n").await.unwrap_err();
        assert!(matches!(error, ClusterError::PlaceHasGroup { .. }), "{error}");
        cluster.remove_volume("a").await.unwrap();
        cluster.remove_namespace("p", "n").await.unwrap();
        for prefix in ["millpond/group/", "millpond/group-of/"] {
            let left = cluster.registry().range(prefix).await.unwrap().entries;
            assert!(left.is_empty(), "{left:?}");
        }
    }

    #[tokio::test]
    async fn a_snapshot_is_made_of_all_volumes_or_of_none_and_is_removed_with_what_it_is_of_them() {
        let (cluster, volumes) = of(&["a", "b"]).await;
        take(&cluster, "s").await.unwrap();
        let error = take(&cluster, "s").await.unwrap_err();
        assert!(matches!(error, ClusterError::GroupSnapshotExists { .. }), "{error}");
        let record = group(&cluster).await;
        let snapshot = record.snapshots[0].clone();
        assert!(snapshot.is_complete && snapshot.at_unix_seconds == 7);
        let in_volumes = record.name_in_volumes(&snapshot);
        assert_eq!(record.snapshot_of(&in_volumes), Some(&snapshot));
        for volume in &volumes {
            assert_eq!(snapshots_of(&cluster, *volume).await, [in_volumes.as_str()]);
        }
        // One that does not stand still keeps all of them from being made, and nothing is left.
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
        cluster.attach("b", ClientId(3), lease, false, "somebody".to_owned()).await.unwrap();
        assert!(matches!(take(&cluster, "t").await, Err(ClusterError::NotStill { .. })));
        assert_eq!(group(&cluster).await.snapshots, std::slice::from_ref(&snapshot));
        assert_eq!(snapshots_of(&cluster, volumes[0]).await, [in_volumes.as_str()]);
        // Nor are they rolled back while somebody has one.
        let head = async || cluster.map().await.unwrap().volumes[&volumes[0]].head;
        let before = head().await;
        assert!(matches!(roll_back(&cluster, "s").await, Err(ClusterError::Attached { .. })));
        assert_eq!(head().await, before);
        cluster.detach(volumes[1], ClientId(3)).await.unwrap();
        roll_back(&cluster, "s").await.unwrap();
        assert!(head().await > before);

        let rename = async |name: &str, new: &str| {
            change(&cluster, GroupChange::RenameSnapshot { name: name.to_owned(), new: new.to_owned() }).await
        };
        take(&cluster, "t").await.unwrap();
        assert!(matches!(rename("s", "t").await, Err(ClusterError::GroupSnapshotExists { .. })));
        assert!(matches!(rename("x", "y").await, Err(ClusterError::NoSuchGroupSnapshot { .. })));
        rename("s", "first").await.unwrap();
        // Those of a volume that is in it no more are its snapshot's still; and a volume that is gone is not looked for.
        change(&cluster, GroupChange::TakeOut { volume: volumes[0] }).await.unwrap();
        remove(&cluster, "first").await.unwrap();
        assert_eq!(snapshots_of(&cluster, volumes[0]).await.len(), 1);
        cluster.trash_volume("b", Trashed::default()).await.unwrap();
        assert!(matches!(roll_back(&cluster, "t").await, Err(ClusterError::GroupSnapshotIncomplete { .. })));
        assert!(matches!(remove(&cluster, "t").await, Err(ClusterError::GroupedInTrash { .. })));
        cluster.restore_volume(volumes[1], None).await.unwrap();
        let names = snapshots_of(&cluster, volumes[1]).await.into_iter().collect();
        cluster.remove_snapshots("b", &names).await.unwrap();
        assert!(matches!(roll_back(&cluster, "t").await, Err(ClusterError::GroupSnapshotIncomplete { .. })));
        cluster.remove_volume("b").await.unwrap();
        change(&cluster, GroupChange::Remove).await.unwrap();
        assert!(snapshots_of(&cluster, volumes[0]).await.is_empty());
    }

    #[tokio::test]
    async fn groups_are_bounded() {
        let names: Vec<String> = (0..VOLUMES_MAX).map(|number| format!("v{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (cluster, volumes) = of(&names).await;
        cluster.create_volume("one-more", "p", MIB).await.unwrap();
        let add = async || change(&cluster, GroupChange::Add { volume: "one-more".to_owned() }).await;
        let error = add().await.unwrap_err().to_string();
        assert!(error.contains("24 volumes"), "{error}");
        take(&cluster, "all").await.unwrap();
        assert_eq!(group(&cluster).await.snapshots[0].volumes.len(), VOLUMES_MAX);
        remove(&cluster, "all").await.unwrap();
        // What is gone takes up no room.
        cluster.remove_volume("v5").await.unwrap();
        add().await.unwrap();
        assert!(!group(&cluster).await.volumes.contains(&volumes[5]));
        cluster.change_group("p/empty", GroupChange::Create).await.unwrap();
        for number in 0..SNAPSHOTS_MAX {
            let take = GroupChange::TakeSnapshot { name: number.to_string(), at_unix_seconds: 7 };
            cluster.change_group("p/empty", take).await.unwrap();
        }
        let take = GroupChange::TakeSnapshot { name: "one-more".to_owned(), at_unix_seconds: 7 };
        let error = cluster.change_group("p/empty", take).await.unwrap_err().to_string();
        assert!(error.contains("256 snapshots"), "{error}");
    }
}
