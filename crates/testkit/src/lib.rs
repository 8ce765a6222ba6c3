//! What tests of several crates start and hold: real programs and the places they work in.
//!
//! Everything here ends with the test that made it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on ends by panicking")]

mod etcd;
pub mod prerequisites;

pub use etcd::Etcd;
