//! What clients may do with volumes, and what volumes have of OSDs.
//!
//! What is reserved for all volumes together is no more than what the OSDs are taken to do: of that each operation takes as much as
//! its pool has copies, for it may be a write. It is looked at when a reservation is made larger, under the condition that no other one
//! was meanwhile. OSDs that go later, and volumes that come into a pool with more copies, change nothing about what was reserved.

use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{Admission, VolumeInfo};
use base::{Limits, PoolId, Qos, VolumeId};
use registry::Operation;

impl Cluster {
    /// Sets how much clients may do with a volume. Answers what is set now.
    ///
    /// # Errors
    /// [`ClusterError::ReservedMore`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn limit_volume(&self, name: &str, change: impl Fn(&mut Limits)) -> Result<Limits> {
        for _ in 0..ATTEMPTS_MAX {
            let (_, read, mut info) = self.find_volume(name).await?;
            change(&mut info.limits);
            check_fits(&info)?;
            if self.commit(read.replaced_by(&info)).await? {
                return Ok(info.limits);
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// Sets what a volume has of OSDs where several want more than these do. Answers what is set now.
    ///
    /// # Errors
    /// [`ClusterError::ReservedMore`], [`ClusterError::TooMuchReserved`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn set_qos(&self, name: &str, change: impl Fn(&mut Qos)) -> Result<Qos> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, mut info) = self.find_volume(name).await?;
            let before = info.qos.reservation;
            change(&mut info.qos);
            check_fits(&info)?;
            let mut txn = read.replaced_by(&info);
            if info.qos.reservation > before {
                let reserved: Read<u64> = self.read(keys::RESERVED).await?;
                let times = reserved.value.unwrap_or(0) + 1;
                self.check_capacity(id, &info).await?;
                txn = txn.when(reserved.unchanged()).then(Operation::put(&reserved.key, encode(&times)));
            }
            if self.commit(txn).await? {
                return Ok(info.qos);
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {name}") })
    }

    /// Whether the OSDs are taken to do all that is reserved, that of one volume included as it is to be.
    async fn check_capacity(&self, id: VolumeId, info: &VolumeInfo) -> Result<()> {
        let map = self.map().await?;
        let osds = map.osds.values().filter(|osd| osd.admission == Admission::In).count();
        let can = osds as u64 * u64::from(self.settings().await?.osd_iops);
        let copies = |pool: PoolId| map.pools.get(&pool).map_or(1, |pool| u64::from(pool.size));
        let takes = |info: &VolumeInfo| u64::from(info.qos.reservation) * copies(info.pool);
        let others = map.volumes.iter().filter(|(other, info)| **other != id && !info.removed);
        let others: u64 = others.map(|(_, info)| takes(info)).sum();
        if others + takes(info) <= can {
            return Ok(());
        }
        Err(ClusterError::TooMuchReserved {
            volume: info.name.clone(),
            wanted: info.qos.reservation,
            left: can.saturating_sub(others) / copies(info.pool),
            can,
        })
    }
}

fn check_fits(info: &VolumeInfo) -> Result<()> {
    let reason = info.qos.fits(&info.limits).err();
    reason.map_or(Ok(()), |reason| Err(ClusterError::ReservedMore { volume: info.name.clone(), reason }))
}
