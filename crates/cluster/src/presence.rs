//! Whether a registry is the one that its cluster lives in: a cluster can be moved from one to another
//! ([`super::Migration`]), and lives in one of them at most.

use super::{ClusterError, Result, decode, keys};
use base::ClusterId;
use registry::{Compare, KeyValue, Operation, OperationResult, Registry, Revision, Txn};
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
    /// The key that says so, as it was changed last; all of them where nothing is said.
    key: Option<(&'static str, Revision)>,
}

impl Seen {
    pub(super) async fn read(registry: &dyn Registry) -> Result<Seen> {
        let reads = ALL.into_iter().fold(Txn::new(), |txn, key| txn.then(Operation::get(key)));
        let results = registry.txn(reads).await?.results;
        let entry = |at: usize| match results.get(at) {
            Some(OperationResult::Got(entry)) => entry.as_ref(),
            _ => None,
        };
        // In this order: where a cluster is, the others would be somebody's mistake, and it is the cluster that counts.
        let found = (0..ALL.len()).find_map(|at| entry(at).map(|entry| (ALL[at], entry)));
        let Some((key, entry)) = found else { return Ok(Seen { presence: Presence::Absent, key: None }) };
        let presence = match key {
            keys::CLUSTER => Presence::Here(value_of(entry)?),
            keys::MOVING_IN => Presence::MovingIn(value_of(entry)?),
            _ => Presence::Moved(value_of(entry)?),
        };
        Ok(Seen { presence, key: Some((key, entry.mod_revision)) })
    }

    /// The conditions that nothing of this has changed since.
    pub(super) fn unchanged(&self) -> Vec<Compare> {
        let revision = |key: &str| match self.key {
            Some((own, revision)) if own == key => revision,
            _ => Revision(0),
        };
        ALL.iter().map(|key| Compare::ModRevision((*key).to_owned(), revision(key))).collect()
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
