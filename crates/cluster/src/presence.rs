//! Whether a registry is the one that its cluster lives in: a cluster can be moved from one to another
//! ([`super::Migration`]), and lives in one of them at most.

use super::{ClusterError, Result, decode, keys};
use base::ClusterId;
use registry::{Compare, KeyValue, Operation, OperationResult, Registry, RegistryError, Txn, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A move of a cluster from one registry to another, as it stands in both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRecord {
    /// Which attempt it is, so that none is taken for another.
    pub attempt: Uuid,
    /// The cluster.
    pub cluster: ClusterId,
    /// Where it comes from, for people.
    pub source: String,
    /// Where it goes to, for people.
    pub target: String,
    /// When it was begun: seconds since 1970, by the clock of the machine that moves it. For people.
    pub at_unix_seconds: u64,
}

/// What a registry says of the cluster in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Nothing.
    Absent,
    /// It lives here.
    Here(ClusterId),
    /// It is being moved here, and does not live here yet.
    MovingIn(MoveRecord),
    /// It lives elsewhere now. What else stands here is left over.
    Moved(MoveRecord),
}

impl Presence {
    /// What a registry says, at one revision.
    ///
    /// # Errors
    /// Those of the registry, or an entry that makes no sense.
    pub async fn read(registry: &dyn Registry) -> Result<Presence> {
        Ok(Seen::read(registry).await?.presence)
    }

    /// The cluster that lives here.
    ///
    /// # Errors
    /// [`ClusterError::NoCluster`], [`ClusterError::MovingIn`], [`ClusterError::Moved`].
    pub fn id(self) -> Result<ClusterId> {
        match self {
            Presence::Here(id) => Ok(id),
            Presence::Absent => Err(ClusterError::NoCluster),
            Presence::MovingIn(record) => Err(ClusterError::MovingIn { record: Box::new(record) }),
            Presence::Moved(record) => Err(ClusterError::Moved { record: Box::new(record) }),
        }
    }
}

/// What a registry said, and the condition that it still says so.
pub(super) struct Seen {
    pub(super) presence: Presence,
    /// What says so; none where nothing is said.
    entry: Option<KeyValue>,
}

impl Seen {
    pub(super) async fn read(registry: &dyn Registry) -> Result<Seen> {
        let reads = ALL.into_iter().fold(Txn::new(), |txn, key| txn.then(Operation::get(key)));
        let mut results = registry.txn(reads).await?.results.into_iter();
        // In this order: where a cluster is, the others would be somebody's mistake, and it is the cluster that counts.
        let entry = results.find_map(|result| match result {
            OperationResult::Got(entry) => entry,
            _ => None,
        });
        let presence = match &entry {
            None => Presence::Absent,
            Some(entry) if entry.key == keys::CLUSTER => Presence::Here(value_of(entry)?),
            Some(entry) if entry.key == keys::MOVING_IN => Presence::MovingIn(value_of(entry)?),
            Some(entry) => Presence::Moved(value_of(entry)?),
        };
        Ok(Seen { presence, entry })
    }

    /// The conditions that nothing of this has changed since.
    pub(super) fn unchanged(&self) -> Vec<Compare> {
        let entry = |key: &str| self.entry.as_ref().filter(|entry| entry.key == key);
        ALL.into_iter().map(|key| Compare::unchanged(key, entry(key))).collect()
    }

    /// Has the registry that this was read from say it by another key, if nothing of it has changed since. Says whether.
    pub(super) async fn replace(
        &self,
        registry: &dyn Registry,
        key: &str,
        new_key: &str,
        value: Value,
    ) -> Result<bool, RegistryError> {
        let steps = vec![Operation::delete(key), Operation::put(new_key, value)];
        let txn = Txn { compares: self.unchanged(), then: steps, ..Txn::new() };
        Ok(registry.txn(txn).await?.succeeded)
    }
}

/// The keys that say where a cluster lives.
const ALL: [&str; 3] = [keys::CLUSTER, keys::MOVING_IN, keys::MOVED];

/// Whether a key says where a cluster lives: such keys are not copied with the others.
pub(super) fn is_of_presence(key: &str) -> bool {
    ALL.contains(&key)
}

fn value_of<T: DeserializeOwned>(entry: &KeyValue) -> Result<T, ClusterError> {
    decode(&entry.key, &entry.value)
}
