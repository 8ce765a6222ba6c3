//! Who decides what nobody needs to be asked for, and knows how the OSDs are: one process at a time, by a lease.
//!
//! What it decides is written under the condition that what it was decided by still holds. So two that both take themselves
//! for the manager do no harm, and it may be changed at any time.

use super::current::{self, Known};
use super::{Cluster, Result, encode, keys};
use base::schedule::LateSchedule;
use base::status::Away;
use base::{NodeId, OsdId};
use registry::{Compare, LeaseId, Operation, Txn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The manager, and what it intends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerRecord {
    /// The node whose process it is.
    pub node: NodeId,
    /// That process.
    pub pid: u32,
    /// Where it hears how the OSDs are, and answers who asks. None: it is of a version that does neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// What becomes of the OSDs that are in and down.
    #[serde(default)]
    pub away: BTreeMap<OsdId, Away>,
    /// The schedules whose snapshots could not be made, some at most, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub late: BTreeMap<String, LateSchedule>,
}

impl Cluster {
    /// Becomes the manager for as long as the lease lives, if there is none. Says whether.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn become_manager(&self, record: &ManagerRecord, lease: LeaseId) -> Result<bool> {
        let put = Operation::put_leased(keys::MANAGER, encode(record), lease);
        self.commit(Txn::new().when(Compare::Absent(keys::MANAGER.to_owned())).then(put)).await
    }

    /// Publishes what the manager intends, if it still is the manager that said `before`. Says whether.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn publish_manager(
        &self,
        before: &ManagerRecord,
        now: &ManagerRecord,
        lease: LeaseId,
    ) -> Result<bool> {
        let is_same = Compare::Value(keys::MANAGER.to_owned(), encode(before));
        let put = Operation::put_leased(keys::MANAGER, encode(now), lease);
        self.commit(Txn::new().when(is_same).then(put)).await
    }

    /// Ends the term of a manager that is known to be dead, so that nobody waits for the end of its lease. One that lives
    /// after all does no harm: see the module's documentation. Says whether it was the manager still.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn depose_manager(&self, record: &ManagerRecord) -> Result<bool> {
        let is_same = Compare::Value(keys::MANAGER.to_owned(), encode(record));
        self.commit(Txn::new().when(is_same).then(Operation::delete(keys::MANAGER))).await
    }

    /// The manager, if there is one.
    ///
    /// # Errors
    /// Those of the registry, or a record that cannot be read.
    pub async fn manager(&self) -> Result<Option<ManagerRecord>> {
        Ok(self.read(keys::MANAGER).await?.value)
    }

    /// The manager, kept current by a task of its own for as long as a receiver lives.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch_manager(&self) -> tokio::sync::watch::Receiver<Known<ManagerRecord>> {
        current::keep_entry(self.registry.clone(), keys::MANAGER)
    }
}
