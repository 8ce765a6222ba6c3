//! The binary protocol between clients and OSDs and between OSDs: what a message looks like.
//!
//! A message is a [`header::Header`] of 64 bytes and a body. [`message::parse`] turns the bytes of a peer,
//! which may be anything, into a [`Message`] that cannot be wrong: every length, count and range was
//! bounded, the header's checksum verified. Data is not verified here but by whoever stores or uses it,
//! against the CRC-32C that travels beside each block.
//!
//! The order of messages is told in `docs/protocol.md`.

pub mod encode;
pub mod header;
pub mod message;

pub use header::{HEADER_BYTES, Header, Kind, Status};
pub use message::{
    BLOCKS_PER_MESSAGE_MAX, Blocks, CHECK_BLOCKS_MAX, Checksums, Fence, Findings, Hello, Inquiry,
    LEASE_MS_MAX, Lease, Message, OBJECTS_MAX, ObjectDigest, Objects, PAYLOAD_BYTES_MAX, Position, Replicate,
    Reply, Request, Role, WireError, parse,
};

/// The version of this protocol. A peer with another one is refused, with both numbers in the reason.
pub const PROTOCOL_VERSION: u16 = 3;

/// The most bytes a whole message can have: what a receiver must have room for.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + message::BODY_BYTES_MAX;
