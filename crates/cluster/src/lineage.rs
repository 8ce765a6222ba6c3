//! What lies beneath what a volume writes to: volumes are rolled back to their snapshots, cloned from those of others, and
//! flattened. The module [`base::Views`] is of says what comes of that for who reads.
//!
//! All of it is a change of entries: no data is moved. A rollback has the volume write to a new layer, that lies upon the snapshot's;
//! what was written since lies in layers that nobody sees any more, and is deleted as after the removal of a snapshot. A clone is a
//! volume of the same family whose first layer lies upon the snapshot's; as long as it does, the snapshot is not removed. Flattening
//! has primaries copy what it sees of that to its first layer, beneath all that it and its snapshots hold, so that nobody sees a
//! difference; when all have, the snapshot is let go.

use super::metadata::noted_first;
use super::snapshots::FoundSnapshot;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{ClusterMap, SnapshotInfo, VolumeInfo};
use base::{CutId, Generation, LayerId, VolumeId, VolumeName};
use registry::{Operation, Txn};
use std::collections::BTreeMap;

/// Rollbacks of a volume that are of account at the same time, for a snapshot or the volume sees what was written since.
const BENDS_MAX: usize = 500;

impl Cluster {
    /// Has a volume that nobody has attached hold what one of its snapshots holds, at that one's size. What was written since is
    /// seen by nobody any more, unless another snapshot holds it.
    ///
    /// # Errors
    /// [`ClusterError::Attached`], [`ClusterError::NoSuchSnapshot`], [`ClusterError::NoSuchVolume`],
    /// [`ClusterError::NoMoreSnapshots`], [`ClusterError::BentTooOften`]; those of the registry.
    pub async fn roll_back_volume(&self, volume: &str, snapshot: &str) -> Result<LayerId> {
        for _ in 0..ATTEMPTS_MAX {
            let FoundSnapshot { layer, named, snapshot: found } =
                self.find_snapshot(volume, snapshot).await?;
            let (id, number) = (layer.volume(), layer.number());
            let Some(held) = found.value.clone() else { continue };
            let read: Read<VolumeInfo> = self.read(&keys::volume(id)).await?;
            let Some(info) = read.value.clone().filter(VolumeInfo::is_listed) else { continue };
            let guard = self.unattached(id, volume).await?;
            if info.head >= LayerId::NUMBER_MAX {
                return Err(ClusterError::NoMoreSnapshots { volume: volume.to_owned() });
            }
            let others: Vec<(String, SnapshotInfo)> = self.read_all(&keys::snapshots_of(id)).await?;
            let others = others.iter().filter_map(|(key, _)| keys::snapshot_number(key));
            let head = info.head + 1;
            let mut bends = info.bends.clone();
            bends.insert(head, number);
            let bends = those_passed(&bends, others.chain([head]));
            if bends.len() > BENDS_MAX {
                return Err(ClusterError::BentTooOften { volume: volume.to_owned(), max: BENDS_MAX });
            }
            let next: Read<u64> = self.read(keys::NEXT_CUT).await?;
            let (change, used) = next.take(1);
            let back = VolumeInfo {
                head,
                bends,
                bytes: held.bytes,
                generation: Generation(info.generation.0 + 1),
                cut: held.is_ragged.then_some(CutId(change)),
                prune: Some(CutId(change)),
                ..info
            };
            let txn = read
                .replaced_by(&back)
                .when(guard.unchanged())
                .when(named.unchanged())
                .when(found.unchanged())
                .when(next.unchanged())
                .then(used);
            if self.commit(txn).await? {
                return Ok(id.layer(number));
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {volume}") })
    }

    /// Makes a volume that holds what a snapshot holds: beside the snapshot's volume, or where its name says, which is in the same
    /// pool. Whoever may read the snapshot may do so where it may make volumes.
    ///
    /// # Errors
    /// [`ClusterError::VolumeExists`], [`ClusterError::NoSuchSnapshot`], [`ClusterError::NoSuchVolume`],
    /// [`ClusterError::NoSuchNamespace`], [`ClusterError::OtherPool`], [`ClusterError::ClonedTooDeep`],
    /// [`ClusterError::NoMoreClones`], [`ClusterError::NoName`]; those of the registry.
    pub async fn clone_volume(&self, volume: &str, snapshot: &str, name: &str) -> Result<VolumeId> {
        self.clone_volume_noted(volume, snapshot, name, &BTreeMap::new()).await
    }

    /// The same, with what is noted beside it from the beginning.
    ///
    /// # Errors
    /// Those, and [`ClusterError::MetadataInvalid`].
    pub async fn clone_volume_noted(
        &self,
        volume: &str,
        snapshot: &str,
        name: &str,
        notes: &BTreeMap<String, String>,
    ) -> Result<VolumeId> {
        let wanted: VolumeName = name.parse()?;
        for _ in 0..ATTEMPTS_MAX {
            let seen = self.find_seen_volume(volume).await?;
            let beside = self.place_of(&seen.2).await?;
            let place = wanted.place.clone().unwrap_or_else(|| beside.clone());
            let (pool, pool_there) = self.find_place(&place).await?;
            if pool != seen.2.pool {
                return Err(ClusterError::OtherPool { pool: beside.pool, new: name.to_owned() });
            }
            let found = self.find_snapshot_of(seen.0, volume, snapshot).await?;
            let FoundSnapshot { layer, named: numbered, snapshot: found } = found;
            let id = layer.volume();
            let Some(held) = found.value.clone() else { continue };
            let read: Read<VolumeInfo> = self.read(&keys::volume(id)).await?;
            let Some(info) = read.value.clone().filter(VolumeInfo::is_listed) else { continue };
            let named = self.free_name(pool, &place.namespace, &wanted.name).await?;
            if self.map().await?.clone_depth(id) >= ClusterMap::CLONE_DEPTH_MAX {
                let (volume, max) = (volume.to_owned(), ClusterMap::CLONE_DEPTH_MAX);
                return Err(ClusterError::ClonedTooDeep { volume, max });
            }
            let next: Read<u64> = self.read(&keys::next_clone(id.family())).await?;
            let (clone, used) = next.take(1);
            if clone > u64::from(VolumeId::CLONE_MAX) {
                return Err(ClusterError::NoMoreClones { volume: volume.to_owned() });
            }
            let next_cut: Read<u64> = self.read(keys::NEXT_CUT).await?;
            let (change, used_cut) = next_cut.take(1);
            let clone = id.clone_of_family(clone as u32);
            let made = VolumeInfo {
                name: wanted.name.clone(),
                namespace: place.namespace,
                pool,
                bytes: held.bytes,
                parent: Some(layer),
                cut: held.is_ragged.then_some(CutId(change)),
                ..VolumeInfo::default()
            };
            let mut txn = Txn::new()
                .when(pool_there)
                // Whoever removes the snapshot or its volume meanwhile looks again what was cloned from it.
                .when(read.unchanged())
                .then(Operation::put(&read.key, encode(&info)))
                .when(numbered.unchanged())
                .when(found.unchanged())
                .then(Operation::put(&found.key, encode(&held)))
                .when(next.unchanged())
                .then(used)
                .then(Operation::put(keys::volume(clone), encode(&made)));
            if held.is_ragged {
                txn = txn.when(next_cut.unchanged()).then(used_cut);
            }
            let txn = noted_first(txn, clone, notes)?;
            if self.commit(named.taken_by(clone, txn)).await? {
                return Ok(clone);
            }
        }
        Err(ClusterError::Contended { what: "the list of volumes".to_owned() })
    }

    /// Has a clone, that may be attached, be given all that it sees of what it was cloned from, so that it depends on that no more; or
    /// has that end, where `is_wanted` says so: what was copied stays.
    ///
    /// # Errors
    /// [`ClusterError::NoClone`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn flatten_volume(&self, name: &str, is_wanted: bool) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (_, read, info) = self.find_volume(name).await?;
            if info.parent.is_none() {
                return Err(ClusterError::NoClone { name: name.to_owned() });
            }
            if info.flatten.is_some() == is_wanted {
                return Ok(());
            }
            let next: Read<u64> = self.read(keys::NEXT_CUT).await?;
            let (change, used) = next.take(1);
            let flatten = is_wanted.then_some(CutId(change));
            let txn = read.replaced_by(&VolumeInfo { flatten, ..info }).when(next.unchanged()).then(used);
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// Notes that a clone holds all that it saw of what it was cloned from, as it was asked to under that number: it has no parent
    /// any more. Says whether it waited for that.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn is_flattened(&self, volume: VolumeId, flatten: CutId) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let waits = |info: &VolumeInfo| info.flatten == Some(flatten);
            let Some(info) = read.value.clone().filter(waits) else { return Ok(false) };
            let next: Read<u64> = self.read(keys::NEXT_CUT).await?;
            let (change, used) = next.take(1);
            // Its holes hide nothing any more.
            let prune = Some(CutId(change));
            let txn = read
                .replaced_by(&VolumeInfo { parent: None, flatten: None, prune, ..info })
                .when(next.unchanged())
                .then(used);
            if self.commit(txn).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// Whether nothing was cloned from a volume's snapshots, or from one of them. Read behind what a clone changes when it is made.
    pub(super) fn check_uncloned(
        &self,
        map: &ClusterMap,
        id: VolumeId,
        snapshot: Option<LayerId>,
        what: &str,
    ) -> Result<()> {
        let is_of = |of: LayerId| snapshot.is_none_or(|snapshot| snapshot == of);
        let Some((clone, info, _)) = map.clones_of(id).find(|(.., of)| is_of(*of)) else { return Ok(()) };
        let what = what.to_owned();
        // Of what it is not for a key learns no more than that it is there.
        if self.bearer.as_ref().is_some_and(|bearer| bearer.permission(info).is_err()) {
            return Err(ClusterError::HasUnseenClones { what, clone });
        }
        let clone = match info.trashed {
            None => map.shown_name(info),
            Some(_) => format!("{} (in the trash, id {})", map.shown_name(info), clone.0),
        };
        Err(ClusterError::HasClones { what, clone })
    }

    /// Has whoever removes the volume meanwhile look again what snapshots it has.
    pub(super) async fn touch(&self, volume: VolumeId, txn: Txn) -> Result<Txn> {
        let read: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
        let Some(info) = &read.value else { return Ok(txn.when(read.unchanged())) };
        Ok(txn.when(read.unchanged()).then(Operation::put(&read.key, encode(info))))
    }
}

/// Those bends that somebody passes who begins at one of these layers.
fn those_passed(bends: &BTreeMap<u32, u32>, from: impl Iterator<Item = u32>) -> BTreeMap<u32, u32> {
    let mut passed = BTreeMap::new();
    for mut number in from {
        while let Some((layer, beneath)) = bends.range(..=number).next_back() {
            if passed.insert(*layer, *beneath).is_some() || beneath >= layer {
                break;
            }
            number = *beneath;
        }
    }
    passed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::WantedSnapshot;
    use crate::testing::cluster_of;
    use base::map::Trashed;

    const MIB: u64 = 1 << 20;

    async fn with_snapshot(names: &[&str]) -> (Cluster, VolumeId) {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 64 * MIB).await.unwrap();
        for name in names {
            snapshot(&cluster, "v", name).await;
        }
        (cluster, volume)
    }

    async fn snapshot(cluster: &Cluster, volume: &str, name: &str) {
        let wanted = WantedSnapshot { volume: volume.to_owned(), name: name.to_owned() };
        cluster.take_snapshots(&[wanted], 5).await.unwrap();
    }

    async fn info(cluster: &Cluster, volume: VolumeId) -> VolumeInfo {
        cluster.map().await.unwrap().volumes[&volume].clone()
    }

    #[tokio::test]
    async fn a_volume_that_is_rolled_back_goes_on_upon_its_snapshot_at_its_size() {
        let (cluster, volume) = with_snapshot(&["a", "b"]).await;
        cluster.resize_volume("v", 8 * MIB, true).await.unwrap();
        let before = info(&cluster, volume).await;
        assert_eq!(cluster.roll_back_volume("v", "a").await.unwrap(), volume.layer(0));
        let back = info(&cluster, volume).await;
        assert_eq!((back.head, back.bytes, back.cut), (3, 64 * MIB, None), "nothing lies beyond that end");
        assert_eq!((back.bends.clone(), back.generation.0), ([(3, 0)].into(), before.generation.0 + 1));
        assert!(back.prune.is_some());
        // Once more: nobody passes the other bend any more.
        cluster.roll_back_volume("v", "b").await.unwrap();
        assert_eq!(info(&cluster, volume).await.bends, [(4, 1)].into());
        snapshot(&cluster, "v", "c").await;
        cluster.roll_back_volume("v", "a").await.unwrap();
        assert_eq!(info(&cluster, volume).await.bends, [(4, 1), (6, 0)].into(), "the new snapshot does");
        let error = cluster.roll_back_volume("v", "x").await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchSnapshot { .. }), "{error}");
    }

    #[tokio::test]
    async fn what_lay_beyond_the_end_when_a_snapshot_was_made_is_deleted_by_who_begins_with_it() {
        let (cluster, volume) = with_snapshot(&[]).await;
        cluster.resize_volume("v", 8 * MIB, true).await.unwrap();
        snapshot(&cluster, "v", "ragged").await;
        let cut = info(&cluster, volume).await.cut.unwrap();
        cluster.cut_is_done(volume, cut).await.unwrap();
        snapshot(&cluster, "v", "smooth").await;
        let of = |name: &'static str| cluster.clone_volume("v", name, name);
        let clones = [of("ragged").await.unwrap(), of("smooth").await.unwrap()];
        assert!(info(&cluster, clones[0]).await.cut > Some(cut));
        assert_eq!(info(&cluster, clones[1]).await.cut, None);
        cluster.roll_back_volume("v", "ragged").await.unwrap();
        let back = info(&cluster, volume).await;
        assert!(back.cut > Some(cut) && back.cut == back.prune);
        cluster.roll_back_volume("v", "smooth").await.unwrap();
        assert_eq!(info(&cluster, volume).await.cut, None);
    }

    #[tokio::test]
    async fn what_was_cloned_stays_until_the_clone_is_flattened_or_removed() {
        let (cluster, volume) = with_snapshot(&["a"]).await;
        let clone = cluster.clone_volume("v", "a", "c").await.unwrap();
        assert_eq!((clone.family(), clone.is_clone()), (volume, true));
        let made = info(&cluster, clone).await;
        assert_eq!((made.parent, made.bytes, made.head), (Some(volume.layer(0)), 64 * MIB, 0));
        let refused = |error: ClusterError| {
            assert!(matches!(error, ClusterError::HasClones { .. }), "{error}");
            assert!(error.to_string().contains("millpond volume flatten c"), "{error}");
        };
        refused(cluster.remove_snapshots("v", &["a".to_owned()].into()).await.unwrap_err());
        refused(cluster.remove_volume("v").await.unwrap_err());
        let lies = Trashed { at_unix_seconds: 1, ..Trashed::default() };
        cluster.trash_volume("v", lies).await.unwrap();
        let generation = info(&cluster, volume).await.generation;
        refused(cluster.purge_volume(volume, generation).await.unwrap_err());
        cluster.restore_volume(volume, None).await.unwrap();
        // A clone of a clone is of the same family, and holds the first one alone.
        snapshot(&cluster, "c", "b").await;
        let second = cluster.clone_volume("c", "b", "d").await.unwrap();
        assert_eq!((second.family(), info(&cluster, second).await.parent), (volume, Some(clone.layer(0))));
        cluster.remove_volume("d").await.unwrap();
        cluster.remove_snapshots("c", &["b".to_owned()].into()).await.unwrap();
        cluster.flatten_volume("c", true).await.unwrap();
        let asked = info(&cluster, clone).await.flatten.unwrap();
        cluster.flatten_volume("c", true).await.unwrap();
        assert_eq!(info(&cluster, clone).await.flatten, Some(asked), "it is under way");
        cluster.flatten_volume("c", false).await.unwrap();
        assert!(!cluster.is_flattened(clone, asked).await.unwrap(), "it was ended");
        cluster.flatten_volume("c", true).await.unwrap();
        let asked = info(&cluster, clone).await.flatten.unwrap();
        assert!(cluster.is_flattened(clone, asked).await.unwrap());
        let flat = info(&cluster, clone).await;
        assert_eq!((flat.parent, flat.flatten), (None, None));
        assert!(flat.prune > Some(asked));
        let error = cluster.flatten_volume("c", true).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoClone { .. }), "{error}");
        cluster.remove_snapshots("v", &["a".to_owned()].into()).await.unwrap();
        cluster.remove_volume("v").await.unwrap();
    }

    #[tokio::test]
    async fn clones_of_clones_have_a_depth_that_is_told() {
        let (cluster, _) = with_snapshot(&["s"]).await;
        let mut of = "v".to_owned();
        for depth in 1..=ClusterMap::CLONE_DEPTH_MAX {
            let name = format!("c{depth}");
            cluster.clone_volume(&of, "s", &name).await.unwrap();
            snapshot(&cluster, &name, "s").await;
            of = name;
        }
        let error = cluster.clone_volume(&of, "s", "x").await.unwrap_err();
        assert!(error.to_string().contains("16") && error.to_string().contains("flatten c16"), "{error}");
        let error = cluster.clone_volume("v", "s", "c1").await.unwrap_err();
        assert!(matches!(error, ClusterError::VolumeExists { .. }), "{error}");
    }

    #[tokio::test]
    async fn nobody_is_rolled_back_who_is_attached() {
        let (cluster, _) = with_snapshot(&["a"]).await;
        let lease = cluster.registry().lease_grant(std::time::Duration::from_secs(9)).await.unwrap().id;
        let attached = cluster.attach("v", base::ClientId(7), lease, false, "me".to_owned()).await;
        assert!(attached.is_ok());
        let error = cluster.roll_back_volume("v", "a").await.unwrap_err();
        assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
    }

    #[test]
    fn bends_that_nobody_passes_are_forgotten() {
        let bends: BTreeMap<u32, u32> = [(3, 1), (5, 2), (8, 4), (9, 7)].into();
        let passed =
            |from: &[u32]| those_passed(&bends, from.iter().copied()).into_keys().collect::<Vec<_>>();
        assert!(passed(&[]).is_empty() && passed(&[2]).is_empty());
        assert_eq!(passed(&[4]), [3]);
        assert_eq!(passed(&[8]), [3, 8]);
        assert_eq!(passed(&[9]), [5, 9]);
        assert_eq!(passed(&[9, 8]), [3, 5, 8, 9]);
    }
}
