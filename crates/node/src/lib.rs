//! One node's daemon: a thread for each OSD, and the control side that ties them to the registry.
//!
//! - [`device`]: the drive under an OSD: opened once, directly, its cache looked at.
//! - `drive_check`: whether the drive under a running OSD still is what it was.
//! - [`shard`]: an OSD's thread: `ring` + `pg` + `store` in one loop.
//! - [`control`]: ordinary tokio code: leases, the cluster map, new epochs, status.
//! - [`manager`]: what one node at a time decides for the cluster: where data shall lie, who is taken out.
//!
//! The two sides meet in bounded queues. A node whose registry is away goes on serving; what needs a new epoch
//! waits. A node whose drive fails says so in its status and serves the others.

pub mod control;
pub mod device;
mod device_class;
mod drive_check;
pub mod manager;
mod scrubbing;
pub mod shard;

pub use control::{Config, NodeError, run};
