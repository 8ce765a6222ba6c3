//! What an operator is shown of a cluster, over HTTP.
//!
//! - [`http`]: how the cluster is, as [`health`] has it, with its OpenAPI document; [`caller`]: who asks the manager.
//! - [`metrics`]: all of it for Prometheus.
//! - [`figures`]: what OSDs count, as it is told; [`board`]: what those of this process told last.
//! - [`registry_health`]: what the verdict says of the registry itself.
//!
//! It performs no I/O but to read the registry; sockets are its users'.

pub mod board;
pub mod caller;
pub mod figures;
pub mod http;
pub mod metrics;
pub mod registry_health;
