//! Volumes: made, resized, removed.
//!
//! A volume that is made smaller bears the number of that *cut* until what it held beyond its end is deleted everywhere
//! ([`Cluster::cut_is_done`]). Until then it does not grow: what was cut off would be there again. It may be made smaller
//! still, which is another cut.

use super::error::check_name;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::geometry::VOLUME_BYTES_MAX;
use base::map::VolumeInfo;
use base::units::ByteSize;
use base::{ClientId, CutId, Generation, VolumeId};
use registry::Operation;

impl Cluster {
    /// Makes a volume in the pool of a name.
    ///
    /// # Errors
    /// [`ClusterError::VolumeExists`], [`ClusterError::NoSuchPool`], [`ClusterError::NameInvalid`],
    /// [`ClusterError::VolumeSizeInvalid`]; those of the registry.
    pub async fn create_volume(&self, name: &str, pool: &str, bytes: u64) -> Result<VolumeId> {
        check_name("volume", name)?;
        check_bytes(name, bytes)?;
        for _ in 0..ATTEMPTS_MAX {
            let named: Read<VolumeId> = self.read(&keys::volume_name(name)).await?;
            if named.value.is_some() {
                return Err(ClusterError::VolumeExists { name: name.to_owned() });
            }
            let (pool, pool_there) = self.find_pool(pool).await?;
            let next: Read<u64> = self.read(keys::NEXT_VOLUME).await?;
            let (number, used) = next.take(1);
            let id = VolumeId(number);
            let info = VolumeInfo {
                name: name.to_owned(),
                pool,
                bytes,
                generation: Generation(0),
                removed: false,
                cut: None,
            };
            let txn = named
                .replaced_by(&id)
                .when(pool_there)
                .when(next.unchanged())
                .then(used)
                .then(Operation::put(keys::volume(id), encode(&info)));
            if self.commit(txn).await? {
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

    /// Notes that nothing is left of a volume beyond its end since that cut, so that it may grow. Says whether it waited for
    /// that: it may have been made smaller once more, or removed.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn cut_is_done(&self, volume: VolumeId, cut: CutId) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let Some(info) = read.value.clone().filter(|info| info.cut == Some(cut)) else {
                return Ok(false);
            };
            if self.commit(read.replaced_by(&VolumeInfo { cut: None, ..info })).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// Removes a volume that nobody has attached: its name is free at once, its objects go as OSDs come
    /// to it.
    ///
    /// # Errors
    /// [`ClusterError::Attached`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn remove_volume(&self, name: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(name).await?;
            // Read before the attachments are: one that is made afterwards changes it.
            let guard: Read<ClientId> = self.read(&keys::attach_guard(id)).await?;
            if let Some(holder) = self.attachments(id).await?.into_iter().next() {
                return Err(ClusterError::Attached {
                    name: name.to_owned(),
                    holder: holder.description,
                    next: "detach it there first",
                });
            }
            // What lay beyond its end goes with the rest.
            let info = VolumeInfo { removed: true, cut: None, ..info };
            let txn = read
                .replaced_by(&info)
                .when(guard.unchanged())
                .then(Operation::delete(keys::volume_name(name)))
                .then(Operation::delete(&guard.key));
            if self.commit(txn).await? {
                // Nobody attaches it any more; what is left of these is of no use, whatever it says.
                let holders = self.registry.range(&keys::holders_of(id)).await?.entries;
                self.perform_all(holders.into_iter().map(|entry| Operation::delete(entry.key))).await?;
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }
}

fn check_bytes(name: &str, bytes: u64) -> Result<()> {
    if !(1..=VOLUME_BYTES_MAX).contains(&bytes) {
        return Err(ClusterError::VolumeSizeInvalid { name: name.to_owned(), bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
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
}
