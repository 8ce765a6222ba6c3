//! The registry: what the cluster must agree on, kept with etcd's semantics.
//!
//! [`Registry`] is the contract: keys with revisions, atomic transactions, leases, watches. Two
//! implementations that people use live here, [`EmbeddedRegistry`] on a file of this process, and [`RemoteRegistry`],
//! which reaches any registry that a [`SocketServer`] exposes on a Unix socket; [`MemoryRegistry`] is the first without
//! its file and its clock. [`conformance`] is the
//! contract as tests; an implementation is one that passes it unchanged. [`cluster`] is the schema that
//! Millpond keeps in a registry, with a type for each operation on it.
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

pub mod cluster;
pub mod conformance;
mod embedded;
mod endpoint;
mod error;
mod etcd;
mod interface;
mod location;
mod request;
mod socket;
mod value;

pub use embedded::{EmbeddedRegistry, MemoryRegistry, OpenError};
pub use endpoint::{Endpoint, Endpoints};
pub use error::RegistryError;
pub use etcd::{EtcdOptions, EtcdRegistry, EtcdTls, EtcdUrlError, EtcdUser};
pub use interface::{
    BYTES_PER_TXN_MAX, Compare, Event, KEY_BYTES_MAX, KeyValue, LEASE_TTL_MAX, LEASE_TTL_MIN, Lease, LeaseId,
    OPERATIONS_PER_TXN_MAX, Operation, OperationResult, Range, Registry, RegistryTrouble, Revision, Txn,
    TxnResult, VALUE_BYTES_MAX, Watch, WatchBatch,
};
pub use location::Location;
pub use socket::{ConnectionLimits, DEFAULT_TIMEOUT, RemoteRegistry, ServeError, SocketServer, serve_stream};
pub use value::Value;
