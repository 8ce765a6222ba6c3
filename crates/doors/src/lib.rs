//! The doors: the protocols by which programs that know nothing of Millpond reach its volumes.
//!
//! Each door is a module. Its protocol is a state machine without I/O, so that it can be fed byte by
//! byte, fuzzed, and replayed; what connects it to sockets and volumes stands beside it.

mod listen;
pub mod nbd;
mod stopper;
pub mod vhost_user;

pub use listen::{Listen, ListenError};
pub use stopper::Stopper;
