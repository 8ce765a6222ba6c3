//! What the benchmark programs measure.

pub mod comparison;
pub mod encryption;
pub mod failover;
pub mod jobs;
pub mod large;
pub mod steady;
pub mod suite;
