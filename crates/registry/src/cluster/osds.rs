//! OSDs: their ids, and whether they are up.

use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use crate::interface::{LeaseId, Operation, Txn};
use base::{NodeId, OsdId, OsdUuid};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What is known of an OSD whether it is up or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OsdRecord {
    pub(super) uuid: OsdUuid,
    pub(super) node: NodeId,
    pub(super) bytes: u64,
    pub(super) incarnation: u64,
}

/// Where an OSD listens. It is there as long as the OSD's node keeps its lease alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OsdUp {
    pub(super) address: SocketAddr,
}

impl Cluster {
    /// The id of the OSD formatted as `uuid`, a new one the first time. Notes where it is now and its size.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn register_osd(&self, uuid: OsdUuid, node: NodeId, bytes: u64) -> Result<OsdId> {
        for _ in 0..ATTEMPTS_MAX {
            let known: Read<OsdId> = self.read(&keys::uuid(uuid)).await?;
            let (id, txn) = match known.value {
                Some(id) => {
                    let record: Read<OsdRecord> = self.read(&keys::osd(id)).await?;
                    let before = record.value.as_ref().ok_or(ClusterError::NoSuchOsd { osd: id })?;
                    let now = OsdRecord { node, bytes, ..before.clone() };
                    if now == *before {
                        return Ok(id);
                    }
                    (id, Txn::new().when(record.unchanged()).then(Operation::put(&record.key, encode(&now))))
                }
                None => {
                    let next: Read<u64> = self.read(keys::NEXT_OSD).await?;
                    let (number, used) = next.take(0);
                    let id = OsdId(u32::try_from(number).map_err(|_| ClusterError::Unreadable {
                        key: keys::NEXT_OSD.to_owned(),
                        reason: format!("{number} is no id of an OSD"),
                    })?);
                    let record = OsdRecord { uuid, node, bytes, incarnation: 0 };
                    let txn = Txn::new()
                        .when(known.unchanged())
                        .when(next.unchanged())
                        .then(used)
                        .then(Operation::put(&known.key, encode(&id)))
                        .then(Operation::put(keys::osd(id), encode(&record)));
                    (id, txn)
                }
            };
            if self.commit(txn).await? {
                return Ok(id);
            }
        }
        Err(ClusterError::Contended { what: format!("the list of OSDs, for {uuid},") })
    }

    /// Notes that an OSD has started and listens at `address`, for as long as the lease lives. Returns the
    /// number of this start, one more than that of the last.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`] before [`Self::register_osd`]; those of the registry.
    pub async fn osd_up(&self, id: OsdId, address: SocketAddr, lease: LeaseId) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<OsdRecord> = self.read(&keys::osd(id)).await?;
            let mut record = read.value.clone().ok_or(ClusterError::NoSuchOsd { osd: id })?;
            record.incarnation += 1;
            let txn = Txn::new()
                .when(read.unchanged())
                .then(Operation::put(&read.key, encode(&record)))
                .then(Operation::put_leased(keys::up(id), encode(&OsdUp { address }), lease));
            if self.commit(txn).await? {
                return Ok(record.incarnation);
            }
        }
        Err(ClusterError::Contended { what: id.to_string() })
    }
}
