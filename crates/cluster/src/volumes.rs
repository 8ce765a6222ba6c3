//! Volumes: made, resized, removed.

use super::error::check_name;
use super::{ATTEMPTS_MAX, AttachRecord, Cluster, ClusterError, Read, Result, encode, keys};
use base::geometry::VOLUME_BYTES_MAX;
use base::map::VolumeInfo;
use base::units::ByteSize;
use base::{ClientId, Generation, VolumeId};
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
            let info =
                VolumeInfo { name: name.to_owned(), pool, bytes, generation: Generation(0), removed: false };
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

    /// Changes a volume's size. To a smaller one only where `allow_shrink` says so.
    ///
    /// # Errors
    /// [`ClusterError::WouldShrink`], [`ClusterError::NoSuchVolume`],
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
            let info = VolumeInfo { bytes, ..info };
            if self.commit(read.replaced_by(&info)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
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
            let info = VolumeInfo { removed: true, ..info };
            let txn = read
                .replaced_by(&info)
                .when(guard.unchanged())
                .then(Operation::delete(keys::volume_name(name)))
                .then(Operation::delete(&guard.key));
            if self.commit(txn).await? {
                // Nobody attaches it any more; what is left of these is of no use.
                let holders: Vec<(String, AttachRecord)> = self.read_all(&keys::holders_of(id)).await?;
                self.perform_all(holders.into_iter().map(|(key, _)| Operation::delete(key))).await?;
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
