//! What tests of several crates start and hold: real programs, the places they work in, and waiting for them.
//!
//! Everything here ends with the test that made it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on ends by panicking")]

pub mod between;
pub mod etcd;
pub mod prerequisites;
pub mod process;
mod wait;

pub use etcd::Etcd;
pub use process::Process;
pub use wait::{PATIENCE, wait_longer, wait_until};
