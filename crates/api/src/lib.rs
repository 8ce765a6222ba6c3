//! What an operator is shown of a cluster, as plain data: the same for a command, its JSON, and HTTP.
//!
//! - [`view`]: OSDs, placement groups, pools, volumes, as lists.
//! - [`health`]: the verdict; [`codes`]: everything that can be wrong, explained; [`integrity`]: what the verdict says of
//!   damage and of members that catch up.
//! - [`registry_health`]: what the verdict says of the registry itself.
//! - [`status`]: all of it at one moment.
//! - [`reports`]: what processes tell the manager; [`collector`]: what the manager was told.
//! - [`log`]: what processes log, kept by the manager.
//! - [`figures`]: what OSDs count; [`board`]: what those of this process told last.
//! - [`metrics`]: all of it for Prometheus; [`http`]: all of it over HTTP, with its OpenAPI document; [`caller`]: who asks the manager.
//! - [`duration`]: durations as people write and read them.
//!
//! It performs no I/O but to read the registry; sockets are its users'.

pub mod board;
pub mod caller;
pub mod codes;
pub mod collector;
pub mod duration;
pub mod figures;
pub mod health;
pub mod http;
pub mod integrity;
pub mod log;
pub mod metrics;
pub mod registry_health;
pub mod reports;
pub mod status;
pub mod view;
