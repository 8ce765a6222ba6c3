//! A store's whole life from one number: simulated drives, random work, crashes, and checkers.
//!
//! Everything here is deterministic: a seed decides the drive, the load, the moments of the crashes and
//! what they leave behind, and a failing seed fails again. There is no clock, no thread, no file and no
//! map whose order depends on the process.
//!
//! A failure is a message with the seed and the command that replays it. The checkers are themselves
//! checked: each way of breaking the store on purpose must be noticed within a bounded number of seeds.

pub mod cluster;
pub mod collide;
pub mod contents;
pub mod drive;
pub mod inspect;
pub mod lookalike;
pub mod machine;
pub mod model;
pub mod plan;
pub mod random;
pub mod store_life;
pub mod trace;
