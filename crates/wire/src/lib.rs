//! The binary protocol between clients and OSDs and between OSDs: what a message looks like.
//!
//! A message is a header of 64 bytes and a body. Of each kind one struct says what the bytes of its header are, and another
//! what it is in memory, with its bounds and the way from one to the other beside them: [`Hello`] and what answers it in
//! `hello`, all others in `message`, by who talks to whom. [`parse`] turns the bytes of a peer, which may be anything, into
//! a [`Message`] that cannot be wrong: every length, count and range was bounded, the header's checksum verified, and what
//! this version does not use is zero. Data is not verified here but by whoever stores or uses it, against the CRC-32C that
//! travels beside each block.
//!
//! `fixtures/` has the bytes of a message of each kind. The order of messages is told in `docs/protocol.md`.

mod fields;
mod frame;
mod header;
mod hello;
#[cfg(any(test, feature = "testing"))]
pub mod hostile;
mod message;
mod version;

pub use frame::WireError;
pub use header::{HEADER_BYTES, HeaderBytes, Kind, Status, seal};
pub use hello::{Hello, Refused, Role, Welcome};
pub use message::*;
pub use version::{KNOWS_LIMITS, VERSIONS, Version, Versions};

/// The checksums of a message's data, one for each block or part of one.
pub type Checksums<'a> = &'a [zerocopy::little_endian::U32];

/// The most bytes a whole message can have: what a receiver must have room for.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + message::BODY_BYTES_MAX;
