//! Why an operation on a registry failed. The same errors travel over the socket.

use crate::ids::{LeaseId, Revision};
use serde::{Deserialize, Serialize};

/// Why a registry did not do what it was asked. Unless the variant says otherwise, nothing was changed.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistryError {
    /// The key breaks the rules for keys.
    #[error("key {key:?} {reason}")]
    KeyInvalid {
        /// The key, shortened.
        key: String,
        /// Which rule.
        reason: String,
    },
    /// The value is larger than a registry holds.
    #[error(
        "the value of key {key:?} has {bytes} bytes, more than the {bytes_max} a registry holds; split it over several keys"
    )]
    ValueTooLarge {
        /// Its key.
        key: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The transaction has too many parts or bytes.
    #[error(
        "the transaction has {count} {what}, more than {count_max}; where it need not be atomic, split it with Txn::split"
    )]
    TxnTooLarge {
        /// What there is too much of.
        what: String,
        /// How much there is.
        count: usize,
        /// The limit.
        count_max: usize,
    },
    /// One branch of a transaction changes a key twice, which has no meaning within one revision.
    #[error("the transaction changes key {key:?} twice in one branch; keep the last change only")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// The lease expired, was revoked, or never was.
    #[error("{lease} is not alive: it expired or was revoked; grant a new one and write its keys again")]
    LeaseNotFound {
        /// The lease.
        lease: LeaseId,
    },
    /// The lease's time to live is out of bounds.
    #[error("a lease of {ttl_ms} ms is not possible; choose {ttl_ms_min} to {ttl_ms_max} ms")]
    LeaseTtlInvalid {
        /// What was asked for.
        ttl_ms: u64,
        /// The shortest.
        ttl_ms_min: u64,
        /// The longest.
        ttl_ms_max: u64,
    },
    /// The history a watch wanted is gone.
    #[error(
        "the changes since revision {asked} are gone up to revision {compacted}; read the keys anew and watch from the revision of that reading"
    )]
    Compacted {
        /// Where the watch wanted to go on.
        asked: Revision,
        /// Up to where history was dropped.
        compacted: Revision,
    },
    /// A compaction was asked for beyond the newest revision.
    #[error("revision {asked} is not there yet, the newest is {latest}; compact up to that at most")]
    RevisionInFuture {
        /// What was asked for.
        asked: Revision,
        /// The newest.
        latest: Revision,
    },
    /// The registry's file could not be written; it takes no further operation until it is opened again.
    /// Whether the operation survives is known only then.
    #[error(
        "the registry file {path} cannot be written: {reason}; make room or replace the drive, then start the cluster again"
    )]
    Storage {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The registry is closing.
    #[error("the registry was closed; start the cluster again with `millpond up`")]
    Closed,
    /// Nobody answered in time, and the operation had not been sent, or may safely be repeated.
    #[error(
        "no answer from the registry at {registry} within {waited_ms} ms ({reason}); {}",
        advice(registry)
    )]
    Unreachable {
        /// The socket's path, or the URL of an etcd.
        #[serde(rename = "socket")]
        registry: String,
        /// How long it was tried.
        waited_ms: u64,
        /// What went wrong last.
        reason: String,
    },
    /// The answer to a change was lost with the connection or came too late: it may or may not be done.
    #[error(
        "the registry at {registry} took a change but its answer was lost ({reason}): it may or may not be done; look at the present state before trying again"
    )]
    OutcomeUnknown {
        /// The socket's path, or the URL of an etcd.
        #[serde(rename = "socket")]
        registry: String,
        /// How the answer was lost.
        reason: String,
    },
    /// The peer answered something else than was asked.
    #[error("the registry at {registry} answered {reason}; do both ends run versions that go together?")]
    Protocol {
        /// The socket's path, or the URL of an etcd.
        #[serde(rename = "socket")]
        registry: String,
        /// What it answered.
        reason: String,
    },
    /// Who asks may not do that.
    #[error("{who} may not do that: {reason}")]
    Forbidden {
        /// The principal.
        who: String,
        /// What it may not, and what to do.
        reason: String,
    },
    /// An etcd refused, and would again.
    #[error(
        "the registry at {registry} refused that: {reason}; nothing was changed. Does its user have all rights on these \
         keys, and is it of its default limits?"
    )]
    Refused {
        /// The URL of the etcd.
        registry: String,
        /// What it said.
        reason: String,
    },
}

/// What to do when a registry does not answer.
fn advice(registry: &str) -> &'static str {
    if registry.starts_with("etcd") {
        "do a majority of etcd's members run, and can one of them be reached from here?"
    } else if registry.starts_with(crate::endpoint::SCHEME) {
        "do these nodes run, can one of them be reached from here, and is the key still one of the cluster (`millpond auth \
         ls`)?"
    } else {
        "is the cluster up? start it with `millpond up`"
    }
}
