//! Volumes: made, renamed, resized, put into the trash, restored, removed.
//!
//! A volume in the trash has no name: others may have it by then. It is known by its id, and what it held is there as it was
//! until it is purged. Then it is removed for good, as one that was never in the trash can be.
//!
//! A volume is called by its name, which says where it is if it is not bare; it stays in its pool and its namespace for good.
//!
//! A volume that is made smaller bears the number of that *cut* until what it held beyond its end is deleted everywhere
//! ([`Cluster::cut_is_done`]). Until then it does not grow: what was cut off would be there again. It may be made smaller
//! still, which is another cut.

use super::metadata::noted_first;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::geometry::VOLUME_BYTES_MAX;
use base::map::{Trashed, VolumeInfo};
use base::units::ByteSize;
use base::{ClientId, CutId, Generation, PlaceName, PoolId, VolumeId, VolumeName};
use registry::{Compare, Operation, Txn};
use std::collections::BTreeMap;

/// Entries beside a volume that its removal deletes in the same transaction.
const DELETIONS_AT_ONCE: usize = 100;

impl Cluster {
    /// Makes a volume in the pool of a name: in its default namespace, or where the volume's name says.
    ///
    /// # Errors
    /// [`ClusterError::VolumeExists`], [`ClusterError::NoSuchPool`], [`ClusterError::NoSuchNamespace`], [`ClusterError::NoName`],
    /// [`ClusterError::PlaceInvalid`], [`ClusterError::VolumeSizeInvalid`]; those of the registry.
    pub async fn create_volume(&self, name: &str, pool: &str, bytes: u64) -> Result<VolumeId> {
        self.create_volume_noted(name, pool, bytes, &BTreeMap::new()).await
    }

    /// The same, with what is noted beside it from the beginning.
    ///
    /// # Errors
    /// Those, and [`ClusterError::MetadataInvalid`].
    pub async fn create_volume_noted(
        &self,
        name: &str,
        pool: &str,
        bytes: u64,
        notes: &BTreeMap<String, String>,
    ) -> Result<VolumeId> {
        let wanted: VolumeName = name.parse()?;
        check_bytes(name, bytes)?;
        let of_pool = || PlaceName { pool: pool.to_owned(), namespace: String::new() };
        let place = wanted.place.clone().unwrap_or_else(of_pool);
        if place.pool != pool {
            let reason = "is in another pool than is said beside it".to_owned();
            return Err(ClusterError::PlaceInvalid { place: place.to_string(), reason });
        }
        for _ in 0..ATTEMPTS_MAX {
            let (pool, pool_there) = self.find_place(&place).await?;
            let named = self.free_name(pool, &place.namespace, &wanted.name).await?;
            let next: Read<u64> = self.read(keys::NEXT_VOLUME).await?;
            let (number, used) = next.take(1);
            let id = VolumeId(number);
            let (namespace, name) = (place.namespace.clone(), wanted.name.clone());
            let info = VolumeInfo { name, namespace, pool, bytes, ..VolumeInfo::default() };
            let txn = Txn::new()
                .when(pool_there)
                .when(next.unchanged())
                .then(used)
                .then(Operation::put(keys::volume(id), encode(&info)));
            let txn = noted_first(txn, id, notes)?;
            if self.commit(named.taken_by(id, txn)).await? {
                return Ok(id);
            }
        }
        Err(ClusterError::Contended { what: "the list of volumes".to_owned() })
    }

    /// Changes a volume's size. To a smaller one only where `allow_shrink` says so: then the volume is cut, and does not grow
    /// before what it held beyond its end is deleted.
    ///
    /// # Errors
    /// [`ClusterError::WouldShrink`], [`ClusterError::StillCut`], [`ClusterError::NoSuchVolume`],
    /// [`ClusterError::VolumeSizeInvalid`]; those of the registry.
    pub async fn resize_volume(&self, name: &str, bytes: u64, allow_shrink: bool) -> Result<()> {
        check_bytes(name, bytes)?;
        for _ in 0..ATTEMPTS_MAX {
            let (_, read, info) = self.find_volume(name).await?;
            if bytes == info.bytes {
                return Ok(());
            }
            if bytes < info.bytes && !allow_shrink {
                return Err(ClusterError::WouldShrink {
                    name: name.to_owned(),
                    from: ByteSize(info.bytes),
                    to: ByteSize(bytes),
                });
            }
            let txn = if bytes < info.bytes {
                let next: Read<u64> = self.read(keys::NEXT_CUT).await?;
                let (number, used) = next.take(1);
                let info = VolumeInfo { bytes, cut: Some(CutId(number)), ..info };
                read.replaced_by(&info).when(next.unchanged()).then(used)
            } else if info.cut.is_some() {
                return Err(ClusterError::StillCut { name: name.to_owned() });
            } else {
                read.replaced_by(&VolumeInfo { bytes, ..info })
            };
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// Notes that nothing is left of a volume beyond its end since that cut, so that it may grow; or nothing that nobody sees. Says
    /// whether it waited for that: it may have been made smaller once more, or have lost another snapshot, or be removed.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn cut_is_done(&self, volume: VolumeId, cut: CutId) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let waits = |info: &VolumeInfo| [info.cut, info.prune].contains(&Some(cut));
            let Some(info) = read.value.clone().filter(waits) else { return Ok(false) };
            let left = |of: Option<CutId>| of.filter(|of| *of != cut);
            let (cut, prune) = (left(info.cut), left(info.prune));
            if self.commit(read.replaced_by(&VolumeInfo { cut, prune, ..info })).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// Gives a volume another name where it is, also while it is attached.
    ///
    /// # Errors
    /// [`ClusterError::VolumeExists`], [`ClusterError::NoSuchVolume`], [`ClusterError::NoName`], [`ClusterError::OtherPlace`]; those
    /// of the registry.
    pub async fn rename_volume(&self, name: &str, new: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(name).await?;
            let new = self.named_there(name, new, &info).await?;
            if info.name == new {
                return Ok(());
            }
            let named = self.free_name(info.pool, &info.namespace, &new).await?;
            let txn = read.replaced_by(&VolumeInfo { name: new, ..info.clone() });
            let txn = self.leave_name(txn, id, &info).await?;
            if self.commit(named.taken_by(id, txn)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// Puts a volume that nobody has attached or open into the trash: its name is free at once, all that it holds is kept until it is
    /// purged. Its generation is raised, so that nothing of whoever had it changes it there.
    ///
    /// # Errors
    /// [`ClusterError::Attached`], [`ClusterError::Watched`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn trash_volume(&self, name: &str, trashed: Trashed) -> Result<VolumeId> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(name).await?;
            let guard = self.unattached(id, name).await?;
            self.check_unprotected(id, name).await?;
            let generation = Generation(info.generation.0 + 1);
            let lying = VolumeInfo { generation, trashed: Some(trashed), ..info.clone() };
            let txn = read.replaced_by(&lying).when(guard.unchanged());
            let txn = self.leave_name(txn, id, &info).await?;
            if self.commit(self.unwatched(id, name, txn).await?).await? {
                return Ok(id);
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// Brings a volume back out of the trash to where it was, under a name that nobody has there; None: under the one that it had.
    ///
    /// # Errors
    /// [`ClusterError::VolumeExists`], [`ClusterError::NotInTrash`], [`ClusterError::NoName`], [`ClusterError::OtherPlace`]; those
    /// of the registry.
    pub async fn restore_volume(&self, id: VolumeId, name: Option<&str>) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, info) = self.find_in_trash(id).await?;
            let name = match name {
                Some(new) => self.named_there(&info.name, new, &info).await?,
                None => info.name.clone(),
            };
            let named = self.free_name(info.pool, &info.namespace, &name).await?;
            let txn = read.replaced_by(&VolumeInfo { name, trashed: None, ..info });
            if self.commit(named.taken_by(id, txn)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    /// Notes until when a volume that was put into the trash under that generation lies there. Says whether it still did.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn time_trash(&self, id: VolumeId, generation: Generation, trashed: Trashed) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let Some((read, info)) = self.find_as_trashed(id, generation).await? else { return Ok(false) };
            let timed = VolumeInfo { trashed: Some(trashed), ..info };
            if self.commit(read.replaced_by(&timed)).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    /// Removes a volume that was put into the trash under that generation: its objects go as OSDs come to it. Says whether it
    /// still lay there: it may have been restored since, and put there once more.
    ///
    /// # Errors
    /// [`ClusterError::HasClones`]; those of the registry.
    pub async fn purge_volume(&self, id: VolumeId, generation: Generation) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let Some((read, info)) = self.find_as_trashed(id, generation).await? else { return Ok(false) };
            self.check_uncloned(&self.map().await?, id, None, &format!("the volume {}", info.name))?;
            let txn = read.replaced_by(&gone(info)).then(Operation::delete(keys::attach_guard(id)));
            if self.commit_with_all_beside(txn, id).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    async fn find_as_trashed(
        &self,
        id: VolumeId,
        generation: Generation,
    ) -> Result<Option<(Read<VolumeInfo>, VolumeInfo)>> {
        match self.find_in_trash(id).await {
            Ok(found) => Ok(Some(found).filter(|(_, info)| info.generation == generation)),
            Err(ClusterError::NotInTrash { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a volume that nobody has attached or open, for good: its name is free at once, its objects go as OSDs come
    /// to it.
    ///
    /// # Errors
    /// [`ClusterError::Attached`], [`ClusterError::Watched`], [`ClusterError::HasClones`], [`ClusterError::NoSuchVolume`]; those of
    /// the registry.
    pub async fn remove_volume(&self, name: &str) -> Result<VolumeId> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(name).await?;
            let guard = self.unattached(id, name).await?;
            self.check_unprotected(id, name).await?;
            self.check_uncloned(&self.map().await?, id, None, &format!("the volume {name}"))?;
            let txn = read
                .replaced_by(&gone(info.clone()))
                .when(guard.unchanged())
                .then(Operation::delete(&guard.key));
            let txn = self.leave_name(txn, id, &info).await?;
            let txn = self.unwatched(id, name, txn).await?;
            if self.commit_with_all_beside(txn, id).await? {
                return Ok(id);
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// The pool of a place in which whoever this is done for may make volumes, and the condition that it is there still.
    pub(super) async fn find_place(&self, place: &PlaceName) -> Result<(PoolId, Compare)> {
        let found = self.find_pool(&place.pool).await;
        if let Some(bearer) = &self.bearer {
            bearer.may_manage_place(found.as_ref().ok().map(|(id, _)| *id), place)?;
        }
        found
    }

    /// What a volume is to be called, by a name that may say where it is: where it is already.
    async fn named_there(&self, name: &str, new: &str, info: &VolumeInfo) -> Result<String> {
        let VolumeName { place: said, name: called } = new.parse()?;
        let place = self.place_of(info).await?;
        match said {
            Some(said) if said != place => Err(ClusterError::OtherPlace {
                name: name.to_owned(),
                place: place.to_string(),
                new: new.to_owned(),
            }),
            _ => Ok(called),
        }
    }

    async fn find_in_trash(&self, id: VolumeId) -> Result<(Read<VolumeInfo>, VolumeInfo)> {
        let read: Read<VolumeInfo> = self.read(&keys::volume(id)).await?;
        read.value.as_ref().map_or(Ok(()), |info| self.check_managed(info))?;
        let lies_there = |info: &VolumeInfo| info.trashed.is_some() && !info.removed;
        let info = read.value.clone().filter(lies_there).ok_or(ClusterError::NotInTrash { volume: id })?;
        Ok((read, info))
    }

    /// What is changed by whoever attaches a volume that nobody has attached.
    pub(super) async fn unattached(&self, id: VolumeId, name: &str) -> Result<Read<ClientId>> {
        // Read before the attachments are: one that is made afterwards changes it.
        let guard: Read<ClientId> = self.read(&keys::attach_guard(id)).await?;
        match self.attachments(id).await?.into_iter().next() {
            None => Ok(guard),
            Some(holder) => Err(ClusterError::Attached {
                name: name.to_owned(),
                holder: holder.description,
                next: "detach it there first",
            }),
        }
    }

    /// Commits the removal of a volume together with what is left of those who had it, and of what was noted beside it, whatever
    /// that says. What is too much for one transaction goes behind it.
    async fn commit_with_all_beside(&self, txn: Txn, id: VolumeId) -> Result<bool> {
        let txn = [keys::watch_guard(id), keys::locks(id), keys::group_of(id)]
            .into_iter()
            .fold(txn, |txn, key| txn.then(Operation::delete(key)));
        let mut left = self.registry.range(&keys::holders_of(id)).await?.entries;
        for prefix in [keys::metadata_of(id), keys::snapshots_of(id), keys::snapshot_names_of(id)] {
            left.extend(self.registry.range(&prefix).await?.entries);
        }
        let mut deletions = left.into_iter().map(|entry| Operation::delete(entry.key));
        let txn = deletions.by_ref().take(DELETIONS_AT_ONCE).fold(txn, Txn::then);
        let is_done = self.commit(txn).await?;
        if is_done {
            self.perform_all(deletions).await?;
        }
        Ok(is_done)
    }
}

/// One that is removed for good. What lay beyond its end goes with the rest.
fn gone(info: VolumeInfo) -> VolumeInfo {
    VolumeInfo { removed: true, cut: None, prune: None, flatten: None, trashed: None, ..info }
}

fn check_bytes(name: &str, bytes: u64) -> Result<()> {
    if bytes > VOLUME_BYTES_MAX {
        return Err(ClusterError::VolumeSizeInvalid { name: name.to_owned(), bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::question::Resume;
    use crate::testing::cluster_of;

    const MIB: u64 = 1 << 20;

    async fn cut_of(cluster: &Cluster, volume: VolumeId) -> Option<CutId> {
        cluster.map().await.unwrap().volumes[&volume].cut
    }

    #[tokio::test]
    async fn a_volume_that_was_made_smaller_grows_when_what_it_lost_is_gone() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 64 * MIB).await.unwrap();
        cluster.resize_volume("v", 65 * MIB, false).await.unwrap();
        assert_eq!(cut_of(&cluster, volume).await, None, "there is nothing beyond a larger size");
        cluster.resize_volume("v", 32 * MIB + 5, true).await.unwrap();
        let first = cut_of(&cluster, volume).await.unwrap();
        let error = cluster.resize_volume("v", 33 * MIB, false).await.unwrap_err();
        assert!(matches!(error, ClusterError::StillCut { .. }), "{error}");
        assert!(error.to_string().contains("pg dump"), "{error}");
        cluster.resize_volume("v", 32 * MIB + 5, false).await.unwrap();
        assert_eq!(cut_of(&cluster, volume).await, Some(first), "it has that size");
        // Smaller still: that is another cut, and the word for the first is none for it.
        cluster.resize_volume("v", MIB, true).await.unwrap();
        let second = cut_of(&cluster, volume).await.unwrap();
        assert!(second > first);
        assert!(!cluster.cut_is_done(volume, first).await.unwrap());
        let error = cluster.resize_volume("v", 2 * MIB, true).await.unwrap_err();
        assert!(matches!(error, ClusterError::StillCut { .. }), "{error}");
        assert!(cluster.cut_is_done(volume, second).await.unwrap());
        assert!(!cluster.cut_is_done(volume, second).await.unwrap(), "it waits for nothing any more");
        cluster.resize_volume("v", 2 * MIB, false).await.unwrap();
        assert_eq!(cluster.map().await.unwrap().volumes[&volume].bytes, 2 * MIB);
    }

    #[tokio::test]
    async fn a_volume_is_removed_with_what_is_left_of_those_who_held_it_whatever_that_says() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        let holder = keys::holder(volume, ClientId(7));
        cluster.perform_all([Operation::put(&holder, "no record")]).await.unwrap();
        cluster.remove_volume("v").await.unwrap();
        assert!(cluster.map().await.unwrap().volumes[&volume].removed);
        assert!(cluster.registry.get(&holder).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn no_two_cuts_have_one_number_whichever_volumes_they_are_of() {
        let cluster = cluster_of(2, 4).await;
        let mut cuts = Vec::new();
        for name in ["a", "b"] {
            cluster.create_volume(name, "p", 64 * MIB).await.unwrap();
        }
        for (bytes, name) in [(32, "a"), (31, "b"), (30, "a"), (29, "b")] {
            cluster.resize_volume(name, bytes * MIB, true).await.unwrap();
            let map = cluster.map().await.unwrap();
            cuts.push(map.volume_named(name).unwrap().1.cut.unwrap());
        }
        assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]), "{cuts:?}");
        // One that is done, or whose volume is gone, gives its number to no other either.
        let map = cluster.map().await.unwrap();
        let (a, _) = map.volume_named("a").unwrap();
        assert!(cluster.cut_is_done(a, cuts[2]).await.unwrap());
        cluster.remove_volume("b").await.unwrap();
        let map = cluster.map().await.unwrap();
        assert!(map.volumes.values().all(|info| info.cut.is_none()), "what is removed goes as a whole");
        cluster.resize_volume("a", MIB, true).await.unwrap();
        assert!(cut_of(&cluster, a).await.unwrap() > cuts[3]);
    }

    const LIES: Trashed = Trashed {
        at_unix_seconds: 1000,
        keep_seconds: Some(60),
        until_unix_seconds: None,
        guarded_until_unix_seconds: None,
    };

    async fn info_of(cluster: &Cluster, volume: VolumeId) -> VolumeInfo {
        cluster.map().await.unwrap().volumes[&volume].clone()
    }

    #[tokio::test]
    async fn what_is_in_the_trash_has_no_name_and_comes_back_as_it_was_under_a_generation_of_its_own() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        let before = info_of(&cluster, volume).await;
        assert_eq!(cluster.trash_volume("v", LIES).await.unwrap(), volume);
        let map = cluster.map().await.unwrap();
        assert_eq!(map.trash().map(|(id, _, lies)| (id, lies)).collect::<Vec<_>>(), [(volume, LIES)]);
        assert!(map.volume_named("v").is_none() && !map.volumes[&volume].removed);
        for refused in [
            cluster.trash_volume("v", LIES).await.map(drop),
            cluster.resize_volume("v", 2 * MIB, false).await,
            cluster.rename_volume("v", "w").await,
            cluster.remove_volume("v").await.map(drop),
        ] {
            assert!(matches!(refused, Err(ClusterError::NoSuchVolume { .. })), "{refused:?}");
        }
        let error = cluster.remove_pool("p").await.unwrap_err().to_string();
        assert!(error.contains("volume trash") && error.contains("purge"), "{error}");
        // Its name is another's by now.
        let other = cluster.create_volume("v", "p", MIB).await.unwrap();
        let error = cluster.restore_volume(volume, None).await.unwrap_err();
        assert!(matches!(error, ClusterError::VolumeExists { .. }), "{error}");
        let error = cluster.restore_volume(volume, Some("a@b")).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoName(_)), "{error}");
        cluster.restore_volume(volume, Some("w")).await.unwrap();
        let map = cluster.map().await.unwrap();
        assert_eq!((map.volume_named("v").unwrap().0, map.volume_named("w").unwrap().0), (other, volume));
        // Whoever had it before it came there has it no more.
        let generation = Generation(before.generation.0 + 1);
        assert_eq!(map.volumes[&volume], VolumeInfo { name: "w".to_owned(), generation, ..before });
        let refused = cluster.restore_volume(volume, None).await;
        assert!(matches!(refused, Err(ClusterError::NotInTrash { .. })), "{refused:?}");
        assert!(!cluster.purge_volume(volume, generation).await.unwrap(), "it was restored");
        cluster.trash_volume("w", LIES).await.unwrap();
        cluster.restore_volume(volume, None).await.unwrap();
        assert_eq!(cluster.map().await.unwrap().volume_named("w").unwrap().0, volume);
    }

    #[tokio::test]
    async fn what_is_purged_is_gone_for_good_unless_it_lies_there_otherwise_than_was_thought() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        cluster.resize_volume("v", MIB / 2, true).await.unwrap();
        cluster.trash_volume("v", LIES).await.unwrap();
        let holder = keys::holder(volume, ClientId(7));
        cluster.perform_all([Operation::put(&holder, "no record")]).await.unwrap();
        // It was restored meanwhile, and put there once more.
        let [before, now] = [0, 1].map(Generation);
        let timed = Trashed { until_unix_seconds: Some(3000), ..LIES };
        assert!(!cluster.time_trash(volume, before, timed).await.unwrap());
        assert!(!cluster.purge_volume(volume, before).await.unwrap());
        assert!(!info_of(&cluster, volume).await.removed);
        assert!(cluster.time_trash(volume, now, timed).await.unwrap());
        assert_eq!(info_of(&cluster, volume).await.trashed, Some(timed));
        assert!(cluster.purge_volume(volume, now).await.unwrap());
        let gone = info_of(&cluster, volume).await;
        assert_eq!((gone.removed, gone.cut, gone.trashed), (true, None, None));
        assert!(cluster.registry.get(&holder).await.unwrap().is_none());
        assert!(!cluster.time_trash(volume, now, timed).await.unwrap());
        assert!(!cluster.purge_volume(volume, now).await.unwrap());
        assert!(!cluster.purge_volume(VolumeId(77), now).await.unwrap());
        // What was removed at once never lies there.
        let other = cluster.create_volume("v", "p", MIB).await.unwrap();
        assert_eq!(cluster.remove_volume("v").await.unwrap(), other);
        assert!(matches!(cluster.restore_volume(other, None).await, Err(ClusterError::NotInTrash { .. })));
    }

    #[tokio::test]
    async fn a_volume_that_somebody_has_comes_not_into_the_trash_and_goes_on_under_another_name() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", MIB).await.unwrap();
        cluster.create_volume("taken", "p", MIB).await.unwrap();
        let lease = cluster.registry.lease_grant(std::time::Duration::from_secs(600)).await.unwrap().id;
        let client = ClientId(3);
        let attached = cluster.attach("v", client, lease, false, "somebody".to_owned()).await.unwrap();
        let error = cluster.trash_volume("v", LIES).await.unwrap_err();
        assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
        let error = cluster.rename_volume("v", "taken").await.unwrap_err();
        assert!(matches!(error, ClusterError::VolumeExists { .. }), "{error}");
        cluster.rename_volume("v", "v").await.unwrap();
        cluster.rename_volume("v", "w").await.unwrap();
        let info = info_of(&cluster, volume).await;
        assert_eq!((info.name.as_str(), info.generation), ("w", attached.generation));
        assert!(matches!(cluster.rename_volume("v", "x").await, Err(ClusterError::NoSuchVolume { .. })));
        let error = cluster.attach("w", ClientId(4), lease, false, "another".to_owned()).await.unwrap_err();
        assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
        let resumed = Resume { volume, client, generation: attached.generation, lease };
        assert!(cluster.resume_by(None, &resumed).await.unwrap());
        cluster.registry.lease_revoke(lease).await.unwrap();
        cluster.trash_volume("w", LIES).await.unwrap();
        // Its lease had ended, and it is not gone on with: neither there nor when it is back.
        let lease = cluster.registry.lease_grant(std::time::Duration::from_secs(600)).await.unwrap().id;
        let resumed = Resume { lease, ..resumed };
        assert!(!cluster.resume_by(None, &resumed).await.unwrap());
        cluster.restore_volume(volume, None).await.unwrap();
        assert!(!cluster.resume_by(None, &resumed).await.unwrap());
        // Whoever attaches it then has the one before fenced.
        let next = cluster.attach("w", ClientId(5), lease, false, "next".to_owned()).await.unwrap();
        assert_eq!(next.unfenced.iter().map(|old| old.client).collect::<Vec<_>>(), [client]);
        assert_eq!(next.generation, Generation(attached.generation.0 + 2));
    }

    #[tokio::test]
    async fn a_name_leads_to_no_volume_that_does_not_bear_it() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("b", "p", 2 * MIB).await.unwrap();
        // As whoever reads the name finds it who is overtaken by a renaming before it reads the entry.
        cluster.perform_all([Operation::put(keys::volume_name("a"), encode(&volume))]).await.unwrap();
        let before = info_of(&cluster, volume).await;
        for refused in [
            cluster.remove_volume("a").await.map(drop),
            cluster.trash_volume("a", LIES).await.map(drop),
            cluster.rename_volume("a", "c").await,
            cluster.resize_volume("a", MIB, true).await,
            cluster.set_metadata("a", "k", "v").await,
        ] {
            assert!(matches!(refused, Err(ClusterError::DanglingName { .. })), "{refused:?}");
        }
        assert_eq!(info_of(&cluster, volume).await, before);
        cluster.rename_volume("b", "c").await.unwrap();
        assert_eq!(cluster.map().await.unwrap().volume_named("c").unwrap().0, volume);
    }
}
