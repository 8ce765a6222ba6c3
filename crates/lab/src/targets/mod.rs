//! What a job runs against: a drive ([`raw`]), a volume ([`volume`]), an NBD export ([`nbd`]), the disk of a vhost-user back-end ([`vhost_user`]), a command ([`command`]), and, for
//! tests of the engine, memory. Each is a [`Target`](crate::engine::Target).

pub mod command;
#[cfg(test)]
pub(crate) mod memory;
pub mod nbd;
mod opened;
pub mod raw;
pub mod vhost_user;
pub mod volume;

pub use opened::{OpenTarget, VolumeAccess, make_file};
