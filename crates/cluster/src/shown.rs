//! What of the map is told to clients that are no owners.
//!
//! Whoever comes with a key of some pools and namespaces is told of the volumes in these, of their snapshots, and when their clients
//! are to stand still; of other volumes not even that they are there. Of principals it is told its own, and those of nodes, by which
//! it knows them. Which volumes these are never changes: none leaves its pool, nor its namespace.

use super::keys::{self, MapKey};
use super::{ClusterError, decode};
use async_trait::async_trait;
use base::map::VolumeInfo;
use base::{Access, Principal, Rights, VolumeId};
use registry::{Event, KeyValue, Range, RegistryError, Revision, Value, Watch, WatchBatch};
use std::collections::BTreeSet;

/// Whether an entry of the map is told to clients that are no owners at all.
pub(super) fn is_for_clients(key: &str) -> bool {
    ![keys::REMOVED_POOLS, keys::SCHEDULES].iter().any(|kept| key.starts_with(kept))
}

/// What one is told.
pub(super) enum Shown {
    /// All that clients are told.
    Whole,
    /// What is of a key.
    Of(Box<Own>),
}

/// What is of a key.
pub(super) struct Own {
    name: String,
    principal: Principal,
    rights: Rights,
    volumes: BTreeSet<VolumeId>,
    /// The principals of nodes, of which it is told.
    nodes: BTreeSet<String>,
}

impl Shown {
    /// What a principal of that name is told.
    pub(super) fn to(name: &str, principal: &Principal) -> Shown {
        match &principal.access {
            Access::Pools(rights) => Shown::Of(Box::new(Own {
                name: name.to_owned(),
                principal: principal.clone(),
                rights: rights.clone(),
                volumes: BTreeSet::new(),
                nodes: BTreeSet::new(),
            })),
            _ => Shown::Whole,
        }
    }

    /// Leaves of all entries of the map those that are told.
    pub(super) fn reduce(&mut self, range: &mut Range) {
        if let Shown::Of(own) = self {
            // Which volumes are its, before what is said of them is looked at.
            range.entries.iter().for_each(|KeyValue { key, value, .. }| own.learn(key, value));
        }
        range.entries.retain(|entry| self.shows(&entry.key, Some(&entry.value)));
    }

    fn shows(&self, key: &str, value: Option<&Value>) -> bool {
        is_for_clients(key)
            && match self {
                Shown::Whole => true,
                Shown::Of(own) => own.shows(key, value),
            }
    }
}

impl Own {
    /// Takes note of a volume that is its, and of a node.
    fn learn(&mut self, key: &str, value: &Value) {
        match MapKey::parse(key) {
            Some(MapKey::Volume(id)) => {
                let info: Result<VolumeInfo, ClusterError> = decode(key, value);
                if info.is_ok_and(|info| self.rights.to(info.pool, &info.namespace).is_some()) {
                    self.volumes.insert(id);
                }
            }
            // Of a node that goes it is told, though another may have the name by now.
            Some(MapKey::Principal(name)) if is_of_node(key, value) => {
                self.nodes.insert(name.to_owned());
            }
            _ => {}
        }
    }

    fn shows(&self, key: &str, value: Option<&Value>) -> bool {
        match MapKey::parse(key) {
            Some(MapKey::Volume(id) | MapKey::Still(id) | MapKey::Wish(id, _)) => self.volumes.contains(&id),
            Some(MapKey::Snapshot(layer)) => self.volumes.contains(&layer.volume()),
            Some(MapKey::Namespace(pool, name)) => self.rights.to(pool, name).is_some(),
            Some(MapKey::Principal(name)) if name != self.name => {
                value.map_or(self.nodes.contains(name), |value| is_of_node(key, value))
            }
            _ => true,
        }
    }

    /// Whether its own entry says still what it said when it came.
    fn is_still(&self, event: &Event) -> bool {
        if MapKey::parse(event.key()) != Some(MapKey::Principal(&self.name)) {
            return true;
        }
        let now = event.value().and_then(|value| decode::<Principal>(event.key(), value).ok());
        now.is_some_and(|now| now.access == self.principal.access)
    }
}

/// Whether a principal is a node's.
fn is_of_node(key: &str, value: &Value) -> bool {
    let principal: Result<Principal, ClusterError> = decode(key, value);
    principal.is_ok_and(|principal| matches!(principal.access, Access::Node(_)))
}

/// Changes of the map, without those that are not told.
pub(super) struct OfClients {
    pub(super) changes: Box<dyn Watch>,
    pub(super) shown: Shown,
}

#[async_trait]
impl Watch for OfClients {
    fn position(&self) -> Revision {
        self.changes.position()
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        loop {
            let mut batch = self.changes.next().await?;
            if let Shown::Of(own) = &mut self.shown {
                if !batch.events.iter().all(|event| own.is_still(event)) {
                    let reason = "its access was changed a moment ago; connect again".to_owned();
                    return Err(RegistryError::Forbidden { who: own.name.clone(), reason });
                }
                for event in &batch.events {
                    if let Some(value) = event.value() {
                        own.learn(event.key(), value);
                    }
                }
            }
            batch.events.retain(|event| self.shown.shows(event.key(), event.value()));
            if !batch.events.is_empty() {
                return Ok(batch);
            }
        }
    }
}
