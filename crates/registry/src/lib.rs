//! The registry: what the cluster must agree on, kept with etcd's semantics.
//!
//! [`Registry`] is the contract: keys with revisions, atomic transactions, leases, watches. [`MemoryRegistry`] is a twin in
//! memory, with a clock that whoever holds it sets. [`conformance`] is the contract as tests; an implementation is one that
//! passes it unchanged. Those that people use are leaves: `registry-embedded` on a file of its process, `registry-etcd`, and
//! `registry-remote`, which reaches any of them over a connection. What is kept in it is the crate `cluster`'s business.
//!
//! Invariants:
//! - One revision counts every modifying transaction; it never goes back and is never reused.
//! - What was acknowledged is on stable media, and what a reader saw was acknowledged or will survive.
//! - A watch shows every change once, in order, whole transactions at a time, or ends in
//!   [`RegistryError::Compacted`].
//!
//! When things fail: nothing on the data path waits here, so an outage stops reconfiguration and no
//! I/O. A registry whose file cannot be written answers every later operation with the reason. A client
//! that loses its server reconnects by itself, resumes its watches, and reports a transaction whose
//! answer was lost as [`RegistryError::OutcomeUnknown`], never as a success or a plain failure.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod contract;
mod endpoint;
mod error;
mod ids;
mod memory;
mod request;
mod value;

pub use contract::{
    BYTES_PER_TXN_MAX, Compare, Connect, Event, KEY_BYTES_MAX, KeyValue, LEASE_TTL_MAX, LEASE_TTL_MIN, Lease,
    OPERATIONS_PER_TXN_MAX, Operation, OperationResult, Range, Registry, RegistryTrouble, Txn, TxnResult,
    VALUE_BYTES_MAX, Watch, WatchBatch,
};
pub use endpoint::{Endpoint, Endpoints};
pub use error::RegistryError;
pub use ids::{LeaseId, Revision};
pub use memory::MemoryRegistry;
pub use value::Value;

/// How long an operation may take before its registry counts as unreachable, if nothing else is said.
pub const DEFAULT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// What implementations of the contract share; nobody else needs it.
pub mod implement {
    pub use crate::contract::{check_key, check_prefix, check_ttl};
    pub use crate::endpoint::SCHEME;
    pub use crate::memory::history::{self, History};
    pub use crate::memory::state::{Changes, State, Write};
    pub use crate::memory::table::Table;
    pub use crate::request::{Answer, Caller, Request, perform};

    /// A key that everybody may read, whoever it is: whoever does sees that the registry answers.
    pub const PROBE: &str = "millpond";
}
