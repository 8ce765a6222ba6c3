//! How a cluster is, as plain data: the same for a command, its JSON, and HTTP. From the map, from what OSDs tell of
//! themselves, and from a moment comes a verdict, with what to do.
//!
//! - [`view`]: OSDs, placement groups, pools, volumes, as lists.
//! - [`schedules`]: schedules of snapshots, as another.
//! - [`codes`]: everything that can be wrong, explained; [`problem`]: what is wrong with one cluster.
//! - [`verdict`]: what finds that out.
//! - [`status`]: all of it at one moment.
//!
//! It asks nobody and reads no clock: what it is made from, its users bring.

pub mod codes;
pub mod problem;
pub mod schedules;
pub mod status;
pub mod verdict;
pub mod view;
