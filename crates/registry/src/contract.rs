//! The contract of a registry: etcd's semantics, as far as Millpond needs them.

use crate::error::RegistryError;
use crate::ids::{LeaseId, Revision};
use crate::value::Value;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 1 << 10;
/// Bytes of the largest value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Compares, and operations of each branch, that one transaction may have. etcd's default.
pub const OPERATIONS_PER_TXN_MAX: usize = 128;
/// Bytes of all keys and values of one transaction. Below etcd's 1.5 MiB, which count its framing too.
pub const BYTES_PER_TXN_MAX: usize = 1280 << 10;
/// The shortest lease.
pub const LEASE_TTL_MIN: Duration = Duration::from_secs(1);
/// The longest lease.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// A lease as granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// How long it lives without being kept alive; no less than was asked for.
    pub ttl: Duration,
}

/// A key with its value and its history in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// The transaction that created it, the last time it was absent.
    pub create_revision: Revision,
    /// The transaction that changed it last.
    pub mod_revision: Revision,
    /// How often it was written since it was created, 1 at first.
    pub version: u64,
    /// The lease it dies with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

/// All keys of a prefix, in order, as of one revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The revision it shows: a watch from the next one misses nothing and repeats nothing.
    pub revision: Revision,
    /// The keys, ascending.
    pub entries: Vec<KeyValue>,
}

/// A condition of a transaction, on one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// The key is there.
    Exists(String),
    /// The key is not there.
    Absent(String),
    /// The key was changed last by that transaction. Revision 0: it is absent.
    ModRevision(String, Revision),
    /// The key is there with that value.
    Value(String, Value),
    /// The key has that version. 0: it is absent.
    Version(String, u64),
}

impl Compare {
    /// The key it looks at.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Compare::Exists(key)
            | Compare::Absent(key)
            | Compare::ModRevision(key, _)
            | Compare::Value(key, _)
            | Compare::Version(key, _) => key,
        }
    }

    /// That the key is as it was read: unchanged, or still absent.
    #[must_use]
    pub fn unchanged(key: impl Into<String>, read: Option<&KeyValue>) -> Compare {
        Compare::ModRevision(key.into(), read.map_or(Revision(0), |read| read.mod_revision))
    }

    fn value_bytes(&self) -> usize {
        if let Compare::Value(_, value) = self { value.len() } else { 0 }
    }

    fn bytes(&self) -> usize {
        self.key().len() + self.value_bytes()
    }
}

/// One step of a transaction's branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Writes a key. It leaves the lease it had, and joins the one given.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Value,
        /// The lease it dies with from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
    },
    /// Deletes a key, if it is there.
    Delete {
        /// The key.
        key: String,
    },
    /// Reads a key; sees the steps before it.
    Get {
        /// The key.
        key: String,
    },
    /// Reads all keys of a prefix; sees the steps before it.
    Range {
        /// The prefix.
        prefix: String,
    },
}

impl Operation {
    /// Writes a key that belongs to no lease.
    pub fn put(key: impl Into<String>, value: impl Into<Value>) -> Operation {
        Operation::Put { key: key.into(), value: value.into(), lease: None }
    }

    /// Writes a key that dies with a lease.
    pub fn put_leased(key: impl Into<String>, value: impl Into<Value>, lease: LeaseId) -> Operation {
        Operation::Put { key: key.into(), value: value.into(), lease: Some(lease) }
    }

    /// Deletes a key.
    pub fn delete(key: impl Into<String>) -> Operation {
        Operation::Delete { key: key.into() }
    }

    /// Reads a key.
    pub fn get(key: impl Into<String>) -> Operation {
        Operation::Get { key: key.into() }
    }

    /// Reads all keys of a prefix.
    pub fn range(prefix: impl Into<String>) -> Operation {
        Operation::Range { prefix: prefix.into() }
    }

    /// The key it reads or changes, or the prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Operation::Put { key, .. } | Operation::Delete { key } | Operation::Get { key } => key,
            Operation::Range { prefix } => prefix,
        }
    }

    fn changes(&self) -> bool {
        matches!(self, Operation::Put { .. } | Operation::Delete { .. })
    }

    fn value_bytes(&self) -> usize {
        if let Operation::Put { value, .. } = self { value.len() } else { 0 }
    }

    fn bytes(&self) -> usize {
        self.key().len() + self.value_bytes()
    }
}

/// What one [`Operation`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationResult {
    /// The key was written.
    Put,
    /// Whether the key was there to be deleted.
    Deleted(bool),
    /// The key, if it is there.
    Got(Option<KeyValue>),
    /// The keys of the prefix, ascending.
    Range(Vec<KeyValue>),
}

/// An atomic transaction: if every compare holds, the steps of `then`, else those of `otherwise`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// The conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compares: Vec<Compare>,
    /// The steps where all hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Operation>,
    /// The steps where one does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub otherwise: Vec<Operation>,
}

impl Txn {
    /// A transaction without conditions and steps.
    #[must_use]
    pub fn new() -> Txn {
        Txn::default()
    }

    /// With one more condition.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Txn {
        self.compares.push(compare);
        self
    }

    /// With one more step where the conditions hold.
    #[must_use]
    pub fn then(mut self, operation: Operation) -> Txn {
        self.then.push(operation);
        self
    }

    /// With one more step where they do not.
    #[must_use]
    pub fn otherwise(mut self, operation: Operation) -> Txn {
        self.otherwise.push(operation);
        self
    }

    /// Unconditional transactions that together perform the operations in their order, each within the
    /// limits. For creations too large for one transaction, where atomicity is not needed.
    #[must_use]
    pub fn split(operations: impl IntoIterator<Item = Operation>) -> Vec<Txn> {
        Txn::split_when(&[], operations)
    }

    /// As [`Self::split`], each of them under the same conditions.
    #[must_use]
    pub fn split_when(conditions: &[Compare], operations: impl IntoIterator<Item = Operation>) -> Vec<Txn> {
        let mut txns: Vec<Txn> = Vec::new();
        let condition_bytes: usize = conditions.iter().map(Compare::bytes).sum();
        let mut bytes = 0;
        let mut changed = BTreeSet::new();
        for operation in operations {
            let repeats = operation.changes() && !changed.insert(operation.key().to_owned());
            bytes += operation.bytes();
            match txns.last_mut() {
                Some(txn)
                    if txn.then.len() < OPERATIONS_PER_TXN_MAX && bytes <= BYTES_PER_TXN_MAX && !repeats =>
                {
                    txn.then.push(operation);
                }
                _ => {
                    bytes = condition_bytes + operation.bytes();
                    changed.clear();
                    if operation.changes() {
                        changed.insert(operation.key().to_owned());
                    }
                    let under = Txn { compares: conditions.to_vec(), ..Txn::new() };
                    txns.push(under.then(operation));
                }
            }
        }
        txns
    }

    /// Whether it keeps the limits and changes no key twice in a branch.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn check(&self) -> Result<(), RegistryError> {
        let limit = |what: &str, count: usize, count_max: usize| {
            if count > count_max {
                return Err(RegistryError::TxnTooLarge { what: what.to_owned(), count, count_max });
            }
            Ok(())
        };
        limit("compares", self.compares.len(), OPERATIONS_PER_TXN_MAX)?;
        limit("operations", self.then.len(), OPERATIONS_PER_TXN_MAX)?;
        limit("operations in its else branch", self.otherwise.len(), OPERATIONS_PER_TXN_MAX)?;
        let mut bytes = 0;
        for compare in &self.compares {
            check_key(compare.key())?;
            check_value(compare.key(), compare.value_bytes())?;
            bytes += compare.bytes();
        }
        for branch in [&self.then, &self.otherwise] {
            let mut changed = BTreeSet::new();
            for operation in branch {
                match operation {
                    Operation::Range { prefix } => check_prefix(prefix)?,
                    _ => check_key(operation.key())?,
                }
                check_value(operation.key(), operation.value_bytes())?;
                bytes += operation.bytes();
                if operation.changes() && !changed.insert(operation.key()) {
                    return Err(RegistryError::DuplicateKey { key: operation.key().to_owned() });
                }
            }
        }
        limit("bytes", bytes, BYTES_PER_TXN_MAX)
    }
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnResult {
    /// Whether all compares held, so that `then` was performed.
    pub succeeded: bool,
    /// The registry's revision after it; its own, if it changed anything.
    pub revision: Revision,
    /// One for each step of the branch performed.
    pub results: Vec<OperationResult>,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It was written; its `mod_revision` is the revision of the change.
    Put(KeyValue),
    /// It was deleted, by a transaction or with its lease.
    Delete {
        /// The key.
        key: String,
        /// The revision of the change.
        revision: Revision,
    },
}

impl Event {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// The value that was written.
    #[must_use]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Event::Put(entry) => Some(&entry.value),
            Event::Delete { .. } => None,
        }
    }

    /// The revision of the change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { revision, .. } => *revision,
        }
    }

    /// Bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        self.key().len() + self.value().map_or(0, Value::len)
    }
}

/// What a watch saw: the changes of one or more whole transactions, never a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchBatch {
    /// Up to this revision, everything of the prefix has been shown.
    pub revision: Revision,
    /// At least one change, by ascending revision.
    pub events: Vec<Event>,
}

/// A stream of changes. Dropping it ends the watch.
#[async_trait]
pub trait Watch: Send {
    /// The first revision that the next batch may show.
    fn position(&self) -> Revision;

    /// Waits for the next changes. Safe to cancel: what was not returned is returned the next time.
    ///
    /// # Errors
    /// [`RegistryError::Compacted`] when changes were missed; read anew and watch from there.
    async fn next(&mut self) -> Result<WatchBatch, RegistryError>;
}

/// Something that is wrong with a registry that consists of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryTrouble {
    /// Its quota is used up: it takes no change but those that make room.
    Full {
        /// The member that says so.
        member: String,
    },
    /// Its quota will be used up.
    Filling {
        /// The member whose store is so large.
        member: String,
        /// Bytes of the store.
        bytes: u64,
        /// The quota: what it may have.
        bytes_max: u64,
        /// Whether the member told its quota; else it is that of one that was told nothing else.
        is_quota_known: bool,
    },
    /// A member does not answer, or takes no part.
    MemberDown {
        /// The member.
        member: String,
        /// What was found.
        reason: String,
    },
    /// A member is of a version that is too old.
    Outdated {
        /// The member.
        member: String,
        /// Its version.
        version: String,
    },
}

/// A registry with etcd's semantics. Keys are text of 1 to [`KEY_BYTES_MAX`] bytes without control
/// characters. Reads are linearizable: they show every change acknowledged before they began.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// The key, if it is there.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, RegistryError>;

    /// All keys of a prefix, as of one revision. The empty prefix means all.
    async fn range(&self, prefix: &str) -> Result<Range, RegistryError>;

    /// Performs a transaction. If it changes anything, the revision grows by one, and all its changes
    /// bear that revision.
    async fn txn(&self, txn: Txn) -> Result<TxnResult, RegistryError>;

    /// A new lease. Unless kept alive, it ends after its time to live, and its keys with it.
    async fn lease_grant(&self, ttl: Duration) -> Result<Lease, RegistryError>;

    /// Makes a lease live for its whole time again.
    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), RegistryError>;

    /// Ends a lease and deletes its keys in one transaction.
    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), RegistryError>;

    /// Shows every change of the keys of a prefix from `start` on, past ones included, as far back as
    /// history reaches. Revision 0 means: from now on.
    async fn watch(&self, prefix: &str, start: Revision) -> Result<Box<dyn Watch>, RegistryError>;

    /// Drops history up to a revision. Keys keep their values.
    async fn compact(&self, revision: Revision) -> Result<(), RegistryError>;

    /// What is wrong with the registry itself, though it answers. Takes half a second at most.
    async fn troubles(&self) -> Vec<RegistryTrouble> {
        Vec::new()
    }

    /// Writes one key that belongs to no lease.
    async fn put(&self, key: &str, value: Value) -> Result<Revision, RegistryError> {
        Ok(self.txn(Txn::new().then(Operation::put(key, value))).await?.revision)
    }

    /// Deletes one key; says whether it was there.
    async fn delete(&self, key: &str) -> Result<bool, RegistryError> {
        let result = self.txn(Txn::new().then(Operation::delete(key))).await?;
        Ok(result.results.first() == Some(&OperationResult::Deleted(true)))
    }
}

/// Whether a key keeps the rules.
///
/// # Errors
/// Which it breaks.
pub fn check_key(key: &str) -> Result<(), RegistryError> {
    if key.is_empty() {
        return Err(key_invalid(key, "is empty; a key has 1 byte or more"));
    }
    check_prefix(key)
}

/// Whether a prefix keeps the rules.
///
/// # Errors
/// Which it breaks.
pub fn check_prefix(prefix: &str) -> Result<(), RegistryError> {
    if prefix.len() > KEY_BYTES_MAX {
        return Err(key_invalid(prefix, &format!("has {} bytes, at most {KEY_BYTES_MAX}", prefix.len())));
    }
    if prefix.chars().any(char::is_control) {
        return Err(key_invalid(prefix, "holds a control character; use printable text"));
    }
    Ok(())
}

fn key_invalid(key: &str, reason: &str) -> RegistryError {
    RegistryError::KeyInvalid { key: key.chars().take(80).collect(), reason: reason.to_owned() }
}

fn check_value(key: &str, bytes: usize) -> Result<(), RegistryError> {
    if bytes > VALUE_BYTES_MAX {
        return Err(RegistryError::ValueTooLarge { key: key.to_owned(), bytes, bytes_max: VALUE_BYTES_MAX });
    }
    Ok(())
}

/// Whether a time to live is possible.
///
/// # Errors
/// What is.
pub fn check_ttl(ttl: Duration) -> Result<(), RegistryError> {
    if ttl < LEASE_TTL_MIN || ttl > LEASE_TTL_MAX {
        return Err(RegistryError::LeaseTtlInvalid {
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            ttl_ms_min: LEASE_TTL_MIN.as_millis() as u64,
            ttl_ms_max: LEASE_TTL_MAX.as_millis() as u64,
        });
    }
    Ok(())
}

/// A registry that can be reached: where it is, and how to get there. Its text says where.
#[async_trait]
pub trait Connect: fmt::Debug + fmt::Display + Send + Sync {
    /// A client of it that has seen it answer.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when it does not answer in time.
    async fn connect(&self) -> Result<std::sync::Arc<dyn Registry>, RegistryError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_creation_is_split_into_transactions_within_the_limits() {
        let operations = (0..1000).map(|index| Operation::put(format!("key/{index:04}"), vec![7; 20_000]));
        let txns = Txn::split(operations.clone());
        assert!(txns.iter().all(|txn| txn.check().is_ok()));
        assert!(txns.len() < 20, "{}", txns.len());
        let together: Vec<_> = txns.into_iter().flat_map(|txn| txn.then).collect();
        assert_eq!(together, operations.collect::<Vec<_>>());
    }

    #[test]
    fn the_conditions_of_a_split_count_in_each_of_its_transactions() {
        let condition = Compare::Value("c".to_owned(), vec![1; 200_000].into());
        let operations = (0..12).map(|index| Operation::put(format!("{index:02}"), vec![7; 200_000]));
        let txns = Txn::split_when(std::slice::from_ref(&condition), operations);
        assert!(txns.iter().all(|txn| txn.check().is_ok() && txn.compares == [condition.clone()]));
        assert_eq!(txns.iter().map(|txn| txn.then.len()).collect::<Vec<_>>(), [5, 5, 2]);
    }

    #[test]
    fn a_key_written_twice_is_split_into_two_transactions() {
        let twice = [Operation::put("a", "1"), Operation::put("b", "1"), Operation::put("a", "2")];
        let txns = Txn::split(twice);
        assert_eq!(txns.iter().map(|txn| txn.then.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn limits_are_named_in_the_refusal() {
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        assert!(Txn::new().then(Operation::get(&long)).check().unwrap_err().to_string().contains("1024"));
        assert!(Txn::new().then(Operation::get("")).check().is_err());
        assert!(Txn::new().then(Operation::range("")).check().is_ok());
        assert!(Txn::new().then(Operation::get("a\nb")).check().is_err());
        let large = Txn::new().then(Operation::put("k", vec![0; VALUE_BYTES_MAX + 1]));
        assert!(matches!(large.check(), Err(RegistryError::ValueTooLarge { .. })));
        let many = Txn { then: vec![Operation::get("k"); OPERATIONS_PER_TXN_MAX + 1], ..Txn::new() };
        assert!(matches!(many.check(), Err(RegistryError::TxnTooLarge { .. })));
        let heavy = Txn::new()
            .then(Operation::put("a", vec![0; VALUE_BYTES_MAX]))
            .then(Operation::put("b", vec![0; VALUE_BYTES_MAX]));
        assert!(matches!(heavy.check(), Err(RegistryError::TxnTooLarge { .. })));
    }
}
