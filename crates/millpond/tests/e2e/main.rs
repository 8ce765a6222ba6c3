//! The command before whole clusters of real processes: what users see and what happens to their data.
//!
//! One program, so that all of it is linked once. Each file is about one promise; [`machines`] has those that need hosts
//! with a network of their own.

mod common;

mod certificates;
mod cli;
mod clones;
mod compatibility;
mod confined;
mod crashes;
mod damage;
mod databases;
mod drives;
mod encryption;
mod exports;
mod failover;
mod file_systems;
mod hostile;
mod hostile_tenant;
mod interruptions;
mod keys;
mod lab;
mod limits;
mod machines;
mod migrate;
mod monitoring;
mod namespaces;
mod opening;
mod placement;
mod qos;
mod rbd;
mod recovery;
mod removed_pools;
mod replace;
mod replacement;
mod schedules;
mod sizes;
mod snapshots;
mod snapshotted;
mod splitting;
mod stale;
mod time_limits;
mod transfers;
mod trash;
mod vhost_user;
