//! What an operator is shown of a cluster, as plain data: the same for a command, its JSON, and HTTP.
//!
//! - [`view`]: OSDs, placement groups, pools, volumes, as lists.
//! - [`health`]: the verdict; [`codes`]: everything that can be wrong, explained; [`integrity`]: what it says of damage and of members that catch up.
//! - [`status`]: all of it at one moment.
//! - [`duration`]: durations as people write and read them.
//!
//! It performs no I/O but to read the registry.

pub mod codes;
pub mod duration;
pub mod health;
pub mod integrity;
pub mod status;
pub mod view;
