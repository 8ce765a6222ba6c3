//! What a registry knows, and how requests change it. No file, no clock, no random source.

use crate::contract::{Compare, Event, KeyValue, Operation, OperationResult, Txn, TxnResult};
use crate::error::RegistryError;
use crate::ids::{LeaseId, Revision};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// A lease and the keys that die with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    pub ttl: Duration,
    pub keys: BTreeSet<String>,
}

/// One thing to write down so that the state can be built again.
#[derive(Debug, PartialEq, Eq)]
pub enum Write {
    /// A key has this value.
    Put(KeyValue),
    /// A key is gone.
    Delete(String),
    /// A lease, and how long it lives without being kept alive.
    Lease(LeaseId, Duration),
    /// A lease ended.
    LeaseEnd(LeaseId),
}

/// What a batch of requests changed: what to write down, and what to show to watches afterwards.
#[derive(Debug, Default)]
pub struct Changes {
    /// What is to be kept.
    pub writes: Vec<Write>,
    /// What watches are shown.
    pub transactions: Vec<(Revision, Vec<Event>)>,
}

/// The keys and leases of a registry.
///
/// Invariants: every key's `mod_revision` is at most `revision`; a key names a lease exactly when that
/// lease is there and lists the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    revision: Revision,
    keys: BTreeMap<String, KeyValue>,
    leases: BTreeMap<LeaseId, LeaseState>,
}

impl State {
    /// The state as it was written down.
    ///
    /// # Errors
    /// Which invariant the record breaks, so that it cannot be one that this program wrote.
    pub fn restore(
        revision: Revision,
        entries: Vec<KeyValue>,
        leases: Vec<(LeaseId, Duration)>,
    ) -> Result<State, String> {
        let leases = leases.into_iter().map(|(id, ttl)| (id, LeaseState { ttl, keys: BTreeSet::new() }));
        let mut state = State { revision, keys: BTreeMap::new(), leases: leases.collect() };
        for entry in entries {
            if entry.mod_revision > revision
                || entry.create_revision > entry.mod_revision
                || entry.version == 0
            {
                return Err(format!("key {:?} has revisions that cannot be", entry.key));
            }
            if let Some(lease) = entry.lease {
                let Some(lease) = state.leases.get_mut(&lease) else {
                    return Err(format!("key {:?} names {lease}, which is not there", entry.key));
                };
                lease.keys.insert(entry.key.clone());
            }
            state.keys.insert(entry.key.clone(), entry);
        }
        Ok(state)
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The leases, and how long each lives without being kept alive.
    pub fn leases(&self) -> impl Iterator<Item = (LeaseId, Duration)> {
        self.leases.iter().map(|(id, lease)| (*id, lease.ttl))
    }

    /// A key.
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    /// All keys of a prefix, in order.
    pub fn range(&self, prefix: &str) -> Vec<KeyValue> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.keys
            .range::<str, _>(from)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(_, entry)| entry.clone())
            .collect()
    }

    /// Performs a transaction that keeps the limits.
    pub fn txn(&mut self, txn: &Txn, changes: &mut Changes) -> Result<TxnResult, RegistryError> {
        let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &txn.then } else { &txn.otherwise };
        for operation in branch {
            if let Operation::Put { lease: Some(lease), .. } = operation
                && !self.leases.contains_key(lease)
            {
                return Err(RegistryError::LeaseNotFound { lease: *lease });
            }
        }
        let revision = self.revision.next();
        let mut events = Vec::new();
        let mut results = Vec::with_capacity(branch.len());
        for operation in branch {
            results.push(match operation {
                Operation::Put { key, value, lease } => {
                    events.push(self.put(key, value, *lease, revision));
                    OperationResult::Put
                }
                Operation::Delete { key } => {
                    let deleted = self.delete(key, revision);
                    let is_deleted = deleted.is_some();
                    events.extend(deleted);
                    OperationResult::Deleted(is_deleted)
                }
                Operation::Get { key } => OperationResult::Got(self.get(key).cloned()),
                Operation::Range { prefix } => OperationResult::Range(self.range(prefix)),
            });
        }
        self.finish(revision, events, changes);
        Ok(TxnResult { succeeded, revision: self.revision, results })
    }

    /// Adds a lease under an id that was never used.
    pub fn grant(&mut self, id: LeaseId, ttl: Duration, changes: &mut Changes) {
        let before = self.leases.insert(id, LeaseState { ttl, keys: BTreeSet::new() });
        assert!(before.is_none(), "{id} was granted twice");
        changes.writes.push(Write::Lease(id, ttl));
    }

    /// The time to live of a lease, if it is alive.
    pub fn lease_ttl(&self, id: LeaseId) -> Option<Duration> {
        self.leases.get(&id).map(|lease| lease.ttl)
    }

    /// Ends a lease and its keys, in one revision. Says whether it was alive.
    pub fn end_lease(&mut self, id: LeaseId, changes: &mut Changes) -> bool {
        let Some(lease) = self.leases.get(&id) else { return false };
        let keys = lease.keys.clone();
        let revision = self.revision.next();
        let events = keys.iter().filter_map(|key| self.delete(key, revision)).collect();
        self.leases.remove(&id);
        self.finish(revision, events, changes);
        changes.writes.push(Write::LeaseEnd(id));
        true
    }

    fn holds(&self, compare: &Compare) -> bool {
        let entry = self.keys.get(compare.key());
        match compare {
            Compare::Exists(_) => entry.is_some(),
            Compare::Absent(_) => entry.is_none(),
            Compare::ModRevision(_, revision) => {
                entry.map_or(Revision(0), |entry| entry.mod_revision) == *revision
            }
            Compare::Value(_, value) => entry.is_some_and(|entry| entry.value == *value),
            Compare::Version(_, version) => entry.map_or(0, |entry| entry.version) == *version,
        }
    }

    fn put(&mut self, key: &str, value: &Value, lease: Option<LeaseId>, revision: Revision) -> Event {
        let before = self.keys.get(key);
        let entry = KeyValue {
            key: key.to_owned(),
            value: value.clone(),
            create_revision: before.map_or(revision, |before| before.create_revision),
            mod_revision: revision,
            version: before.map_or(1, |before| before.version + 1),
            lease,
        };
        let lease_before = before.and_then(|before| before.lease);
        if lease_before != lease {
            self.leave_lease(lease_before, key);
            if let Some(lease) = lease {
                let lease = self.leases.get_mut(&lease).expect("its presence was checked before any step");
                lease.keys.insert(key.to_owned());
            }
        }
        self.keys.insert(key.to_owned(), entry.clone());
        Event::Put(entry)
    }

    fn delete(&mut self, key: &str, revision: Revision) -> Option<Event> {
        let before = self.keys.remove(key)?;
        self.leave_lease(before.lease, key);
        Some(Event::Delete { key: key.to_owned(), revision })
    }

    fn leave_lease(&mut self, lease: Option<LeaseId>, key: &str) {
        if let Some(lease) = lease {
            let lease = self.leases.get_mut(&lease).expect("a key names only leases that are there");
            assert!(lease.keys.remove(key), "a lease lists every key that names it");
        }
    }

    fn finish(&mut self, revision: Revision, events: Vec<Event>, changes: &mut Changes) {
        if !events.is_empty() {
            self.revision = revision;
            changes.writes.extend(events.iter().cloned().map(|event| match event {
                Event::Put(entry) => Write::Put(entry),
                Event::Delete { key, .. } => Write::Delete(key),
            }));
            changes.transactions.push((revision, events));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, Option<u8>),
        Delete(u8),
        Grant(u8),
        End(u8),
    }

    fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..8u8, prop::option::of(0..4u8)).prop_map(|(key, lease)| Step::Put(key, lease)),
            2 => (0..8u8).prop_map(Step::Delete),
            2 => (0..4u8).prop_map(Step::Grant),
            1 => (0..4u8).prop_map(Step::End),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn what_was_written_down_restores_the_state(steps in steps()) {
            let mut state = State::default();
            let mut entries = BTreeMap::new();
            let mut leases = BTreeMap::new();
            let mut shown = BTreeMap::new();
            for step in steps {
                let mut changes = Changes::default();
                let before = state.clone();
                match step {
                    Step::Put(key, lease) => {
                        let key = format!("key{key}");
                        let operation = match lease {
                            Some(lease) => Operation::put_leased(key, "v", LeaseId(u64::from(lease))),
                            None => Operation::put(key, "v"),
                        };
                        if state.txn(&Txn::new().then(operation), &mut changes).is_err() {
                            prop_assert_eq!(&before, &state);
                        }
                    }
                    Step::Delete(key) => {
                        state.txn(&Txn::new().then(Operation::delete(format!("key{key}"))), &mut changes).unwrap();
                    }
                    Step::Grant(id) => {
                        let id = LeaseId(u64::from(id));
                        if state.lease_ttl(id).is_none() {
                            state.grant(id, Duration::from_secs(5), &mut changes);
                        }
                    }
                    Step::End(id) => {
                        state.end_lease(LeaseId(u64::from(id)), &mut changes);
                    }
                }
                for write in changes.writes {
                    match write {
                        Write::Put(entry) => { entries.insert(entry.key.clone(), entry); }
                        Write::Delete(key) => { entries.remove(&key); }
                        Write::Lease(id, ttl) => { leases.insert(id, ttl); }
                        Write::LeaseEnd(id) => { leases.remove(&id); }
                    }
                }
                for (revision, events) in changes.transactions {
                    prop_assert!(!events.is_empty());
                    for event in events {
                        prop_assert_eq!(event.revision(), revision);
                        match event {
                            Event::Put(entry) => { shown.insert(entry.key.clone(), entry); }
                            Event::Delete { key, .. } => { prop_assert!(shown.remove(&key).is_some()); }
                        }
                    }
                }
                prop_assert!(state.revision().0 - before.revision().0 <= 1);
                prop_assert_eq!(&shown, &state.keys);
                let again = State::restore(
                    state.revision(),
                    entries.values().cloned().collect(),
                    leases.iter().map(|(id, ttl)| (*id, *ttl)).collect(),
                );
                prop_assert_eq!(again.as_ref(), Ok(&state));
            }
        }
    }

    #[test]
    fn a_record_that_names_a_missing_lease_is_refused() {
        let entry = KeyValue {
            key: "a".into(),
            value: "1".into(),
            create_revision: Revision(1),
            mod_revision: Revision(1),
            version: 1,
            lease: Some(LeaseId(9)),
        };
        assert!(State::restore(Revision(1), vec![entry.clone()], vec![]).unwrap_err().contains("lease.9"));
        assert!(State::restore(Revision(0), vec![KeyValue { lease: None, ..entry }], vec![]).is_err());
    }
}
