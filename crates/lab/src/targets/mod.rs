//! What a job runs against: a drive ([`raw`]), a volume ([`volume`]), an NBD export ([`nbd`]), and memory as the engine's
//! testing twin ([`memory`]). Each is a [`Target`](crate::engine::Target).

pub mod memory;
pub mod nbd;
pub mod raw;
pub mod volume;
