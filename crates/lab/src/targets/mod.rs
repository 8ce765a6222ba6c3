//! What a job runs against: a drive ([`raw`]), a volume ([`volume`]), an NBD export ([`nbd`]), and, for tests of the
//! engine, memory. Each is a [`Target`](crate::engine::Target).

#[cfg(test)]
pub(crate) mod memory;
pub mod nbd;
mod opened;
pub mod raw;
pub mod volume;

pub use opened::{OpenTarget, VolumeAccess, make_file};
