//! OSDs: their ids, whether they are up, whether data is placed on them, and their end.

use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{Admission, ClusterMap, DeviceClass, Reweight};
use base::{NodeId, OsdId, OsdUuid, PgId};
use registry::{Compare, LeaseId, Operation, Txn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Groups whose configurations one removal can have as conditions, so that it stays within the limits.
const LEARNING_MAX: usize = 100;

/// What is known of an OSD whether it is up or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OsdRecord {
    pub(super) uuid: OsdUuid,
    pub(super) node: NodeId,
    pub(super) bytes: u64,
    pub(super) incarnation: u64,
    #[serde(default)]
    pub(super) admission: Admission,
    /// The class of its drive, as it was found at its last start.
    #[serde(default)]
    pub(super) found_class: DeviceClass,
    /// The class that a person gave it instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) given_class: Option<DeviceClass>,
    #[serde(default)]
    pub(super) reweight: Reweight,
    /// It never came up as `uuid` yet: at its next start a blank drive is formatted so, and is no loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_new: bool,
}

impl OsdRecord {
    pub(super) fn device_class(&self) -> DeviceClass {
        self.given_class.unwrap_or(self.found_class)
    }
}

/// Where an OSD listens. It is there as long as the OSD's node keeps its lease alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OsdUp {
    pub(super) address: SocketAddr,
    /// Its program knows layers of volumes. Those of before snapshots do not say so.
    #[serde(default)]
    pub(super) knows_layers: bool,
}

impl Cluster {
    /// The id of the OSD formatted as `uuid`, a new one the first time. Notes where it is now, its size, and the class
    /// of drive that it was found to be on.
    ///
    /// It is for a drive that is to become a new OSD. What was one before may have been replaced or removed since, and would
    /// become another: of that [`Self::note_osd`] is asked.
    ///
    /// # Errors
    /// Those of the registry; of one that is there already, those of [`Self::note_osd`].
    pub async fn register_osd(
        &self,
        uuid: OsdUuid,
        node: NodeId,
        bytes: u64,
        class: DeviceClass,
    ) -> Result<OsdId> {
        for _ in 0..ATTEMPTS_MAX {
            let known: Read<OsdId> = self.read(&keys::uuid(uuid)).await?;
            if let Some(id) = known.value {
                self.note_osd(id, uuid, node, bytes, class).await?;
                return Ok(id);
            }
            let next: Read<u64> = self.read(keys::NEXT_OSD).await?;
            let (number, used) = next.take_u32(0, "id of an OSD")?;
            let id = OsdId(number);
            let record = OsdRecord {
                uuid,
                node,
                bytes,
                incarnation: 0,
                admission: Admission::In,
                found_class: class,
                given_class: None,
                reweight: Reweight::FULL,
                is_new: true,
            };
            let txn = known
                .replaced_by(&id)
                .when(next.unchanged())
                .then(used)
                .then(Operation::put(keys::osd(id), encode(&record)));
            if self.commit(txn).await? {
                return Ok(id);
            }
        }
        Err(ClusterError::Contended { what: format!("the list of OSDs, for {uuid},") })
    }

    /// Notes where an OSD is now that is formatted as `uuid`, its size, and the class of drive that it was found to be on.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`], [`ClusterError::OsdReplaced`] if its number belongs to another drive by now; those of the
    /// registry.
    pub async fn note_osd(
        &self,
        id: OsdId,
        uuid: OsdUuid,
        node: NodeId,
        bytes: u64,
        class: DeviceClass,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, before) = self.osd_record_as(id, uuid).await?;
            let now = OsdRecord { node, bytes, found_class: class, ..before.clone() };
            if now == before || self.commit(read.replaced_by(&now)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    /// The OSD that was formatted as `uuid`. None if there never was one, or it was removed.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn osd_of(&self, uuid: OsdUuid) -> Result<Option<OsdId>> {
        Ok(self.read(&keys::uuid(uuid)).await?.value)
    }

    /// The size that the drive of an OSD had when it was registered last. None if it never was, or was removed.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn bytes_of(&self, id: OsdId) -> Result<Option<u64>> {
        let read: Read<OsdRecord> = self.read(&keys::osd(id)).await?;
        Ok(read.value.map(|record| record.bytes))
    }

    /// Notes that an OSD has started and listens at `address`, for as long as the lease lives. Returns the
    /// number of this start, one more than that of the last. It is for whoever knows that nobody took its number since:
    /// a process asks for [`Self::osd_up_as`].
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`] before [`Self::register_osd`]; those of the registry.
    pub async fn osd_up(&self, id: OsdId, address: SocketAddr, lease: LeaseId) -> Result<u64> {
        self.note_start(id, None, address, lease).await
    }

    /// The same of an OSD that is formatted as `uuid`.
    ///
    /// # Errors
    /// Those of [`Self::osd_up`]; [`ClusterError::OsdReplaced`] if its number belongs to another drive by now.
    pub async fn osd_up_as(
        &self,
        id: OsdId,
        uuid: OsdUuid,
        address: SocketAddr,
        lease: LeaseId,
    ) -> Result<u64> {
        self.note_start(id, Some(uuid), address, lease).await
    }

    async fn note_start(
        &self,
        id: OsdId,
        uuid: Option<OsdUuid>,
        address: SocketAddr,
        lease: LeaseId,
    ) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, mut record) = self.osd_record(id).await?;
            if uuid.is_some_and(|uuid| uuid != record.uuid) {
                return Err(ClusterError::OsdReplaced { osd: id });
            }
            record.incarnation += 1;
            record.is_new = false;
            let up =
                Operation::put_leased(keys::up(id), encode(&OsdUp { address, knows_layers: true }), lease);
            if self.commit(read.replaced_by(&record).then(up)).await? {
                return Ok(record.incarnation);
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    /// Notes where the drive of an OSD is that is formatted as `uuid`, so that it is known while the OSD is down.
    ///
    /// # Errors
    /// Those of [`Self::note_osd`].
    pub async fn note_drive(&self, id: OsdId, uuid: OsdUuid, path: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (record, _) = self.osd_record_as(id, uuid).await?;
            let read: Read<String> = self.read(&keys::drive(id)).await?;
            if read.value.as_deref() == Some(path) {
                return Ok(());
            }
            let txn = Txn::new().when(record.unchanged()).then(Operation::put(&read.key, encode(&path)));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    /// Where the drive of each OSD was when it was started last.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn drives(&self) -> Result<BTreeMap<OsdId, String>> {
        let all = self.read_all(keys::DRIVES).await?;
        let numbered = all.into_iter().filter_map(|(key, path)| {
            let id = key.strip_prefix(keys::DRIVES)?.parse().ok()?;
            Some((OsdId(id), path))
        });
        Ok(numbered.collect())
    }

    /// Sets whether data is placed on an OSD. Answers what was before.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`]; those of the registry.
    pub async fn set_admission(&self, id: OsdId, to: Admission) -> Result<Admission> {
        Ok(self.change_osd(id, |record| record.admission = to).await?.admission)
    }

    /// Corrects how much data an OSD shall hold, on top of its size. Answers what was before.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`]; those of the registry.
    pub async fn set_reweight(&self, id: OsdId, to: Reweight) -> Result<Reweight> {
        Ok(self.change_osd(id, |record| record.reweight = to).await?.reweight)
    }

    /// Gives an OSD a class, whatever its drive is found to be; `None` goes by that again. Answers its class now.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`]; those of the registry.
    pub async fn set_device_class(&self, id: OsdId, to: Option<DeviceClass>) -> Result<DeviceClass> {
        let before = self.change_osd(id, |record| record.given_class = to).await?;
        Ok(to.unwrap_or(before.found_class))
    }

    /// Changes the record of an OSD. Answers what it was before.
    async fn change_osd(&self, id: OsdId, change: impl Fn(&mut OsdRecord)) -> Result<OsdRecord> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, before) = self.osd_record(id).await?;
            let mut record = before.clone();
            change(&mut record);
            if record == before || self.commit(read.replaced_by(&record)).await? {
                return Ok(before);
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }

    /// Takes an OSD out until it is back, if it is there, in, and down. Says whether.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn take_out_while_down(&self, id: OsdId) -> Result<bool> {
        let is_down = Txn::new().when(Compare::Absent(keys::up(id)));
        self.admit_instead(id, Admission::In, Admission::OutWhileDown, is_down).await
    }

    /// Takes an OSD in again, if it is there and was out only while it was down. Says whether.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn take_in_again(&self, id: OsdId) -> Result<bool> {
        self.admit_instead(id, Admission::OutWhileDown, Admission::In, Txn::new()).await
    }

    /// Changes an admission from what it must be, under the conditions of `txn`.
    async fn admit_instead(&self, id: OsdId, from: Admission, to: Admission, txn: Txn) -> Result<bool> {
        let read: Read<OsdRecord> = self.read(&keys::osd(id)).await?;
        let Some(record) = read.value.clone().filter(|record| record.admission == from) else {
            // Or it was removed: whoever decided this has a map from before.
            return Ok(false);
        };
        let record = OsdRecord { admission: to, ..record };
        self.commit(txn.when(read.unchanged()).then(Operation::put(&read.key, encode(&record)))).await
    }

    /// Removes an OSD that is out and that no group needs, together with what `along` does under its own
    /// conditions. False if something that this was decided by has changed: look again. Its id is never used
    /// again; groups that have it as a learner lose nothing.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`], [`ClusterError::OsdIn`], [`ClusterError::OsdInUse`]; those of the registry.
    pub async fn remove_osd(&self, id: OsdId, along: Txn) -> Result<bool> {
        // Who is out is named by no target that is written from now on, unless the record changes.
        let (read, record) = self.osd_record(id).await?;
        if record.admission == Admission::In {
            return Err(ClusterError::OsdIn { osd: id });
        }
        // A pool that is being made may lie on it; making it ends in a look at this, and writes it.
        let removed: Read<u64> = self.read(keys::OSDS_REMOVED).await?;
        let up: Read<OsdUp> = self.read(&keys::up(id)).await?;
        // One whose lease has ended may live all the same, and become in sync at any moment.
        let joined: Read<PgId> = self.read(&keys::joined(id)).await?;
        let map = self.map().await?;
        check_unused(id, &map)?;
        let mut txn = along.when(read.unchanged()).when(removed.unchanged()).when(joined.unchanged());
        // A learner may become in sync at any moment, unless it is dead.
        let learns: Vec<PgId> =
            map.pgs.iter().filter(|(_, config)| config.learners.contains(&id)).map(|(pg, _)| *pg).collect();
        if up.value.is_none() {
            txn = txn.when(up.unchanged());
        } else if learns.len() > LEARNING_MAX {
            let what = format!("{} placement groups are still bringing it up to date", learns.len());
            return Err(ClusterError::OsdInUse { osd: id, what });
        } else {
            for pg in learns {
                txn = txn.when(Compare::Value(keys::pg(pg), encode(&map.pgs[&pg])));
            }
        }
        let (_, counted) = removed.take(0);
        let gone = [keys::osd(id), keys::uuid(record.uuid), keys::up(id), keys::drive(id), keys::joined(id)];
        txn = gone.into_iter().fold(txn.then(counted), |txn, key| txn.then(Operation::delete(key)));
        self.commit(txn).await
    }

    /// The record of an OSD, as it was read.
    pub(super) async fn osd_record(&self, id: OsdId) -> Result<(Read<OsdRecord>, OsdRecord)> {
        let read: Read<OsdRecord> = self.read(&keys::osd(id)).await?;
        let record = read.value.clone().ok_or(ClusterError::NoSuchOsd { osd: id })?;
        Ok((read, record))
    }

    /// The same, if the OSD is formatted as `uuid`.
    async fn osd_record_as(&self, id: OsdId, uuid: OsdUuid) -> Result<(Read<OsdRecord>, OsdRecord)> {
        let (read, record) = self.osd_record(id).await?;
        if record.uuid != uuid {
            return Err(ClusterError::OsdReplaced { osd: id });
        }
        Ok((read, record))
    }
}

/// Whether no group has acknowledged writes on an OSD, or shall have.
fn check_unused(id: OsdId, map: &ClusterMap) -> Result<()> {
    let refuse = |groups: Vec<&PgId>, what: &str| match groups.first() {
        None => Ok(()),
        Some(example) => Err(ClusterError::OsdInUse {
            osd: id,
            what: format!("{what} {}", so_many_of(groups.len(), map.pgs.len(), **example)),
        }),
    };
    let holding = map.pgs.iter().filter(|(_, config)| config.in_sync.contains(&id));
    refuse(holding.map(|(pg, _)| pg).collect(), "it holds acknowledged writes of")?;
    let aimed = map.targets.iter().filter(|(_, target)| target.contains(&id));
    refuse(aimed.map(|(pg, _)| pg).collect(), "no OSD was found yet to take its place in")
}

/// How many groups, and one of them, for a person.
pub(super) fn so_many_of(count: usize, total: usize, example: PgId) -> String {
    format!("{count} of {total} placement groups, {example} among them")
}
