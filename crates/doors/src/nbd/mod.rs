//! The NBD door: volumes as network block devices, for the Linux kernel, QEMU, libnbd and their kin.
//!
//! - [`server::Connection`] is one client's connection, from greeting to disconnect.
//! - [`client::Client`] is the other side, for the benchmark engine and for tests.
//! - [`exports::Exports`] is what is served; [`uri::NbdUri`] how people write where.
//! - [`gateway::Gateway`] carries between sockets and volumes.
//! - [`protocol`] holds the numbers and structures of the published protocol
//!   (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).
//!
//! What a server offers: structured replies and extended headers (lengths of 64 bits: a volume of any size is trimmed or zeroed by
//! one request, and others are served meanwhile), `base:allocation`, `DF`, `FUA`, `FAST_ZERO`, `CACHE`, several connections.
//!
//! Server and client perform no I/O and read no clock; only the gateway does. Bytes from outside are
//! judged here and nowhere else: every length is bounded before it is believed, every range lies within
//! the export when a request comes out. A client that breaks the protocol loses its connection, with a
//! reason in [`Closed`]; nobody else notices.

pub mod client;
pub mod exports;
pub mod gateway;
mod in_flight;
mod negotiation;
pub mod protocol;
mod reply;
pub mod server;
mod terms;
#[cfg(test)]
mod tests;
pub mod uri;
mod vocabulary;

pub use client::{Client, ClientError, ClientEvent, ExportInfo};
pub use exports::{Export, Exports, ExportsError};
pub use in_flight::PieceId;
pub use protocol::{ErrorCode, Framing};
pub use server::Connection;
pub use terms::{Admittance, Terms};
pub use uri::{NbdAddress, NbdUri, NbdUriError};
pub use vocabulary::{Closed, Extent, Failure, Limits, Operation, ReadPart, Request, Waiting};

use base::Buffer;
use std::ops::Range;

/// Where a state machine puts the bytes it wants sent, in order.
pub trait Output {
    /// Sends a copy of `bytes`.
    fn inline(&mut self, bytes: &[u8]);
    /// Sends `range` of `buffer` without copying it; the buffer must not change until it is sent, and
    /// while a clone of it lives it cannot.
    fn shared(&mut self, buffer: Buffer, range: Range<usize>);
}

/// Collects what would be sent. For tests and tools.
impl Output for Vec<u8> {
    fn inline(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn shared(&mut self, buffer: Buffer, range: Range<usize>) {
        self.extend_from_slice(&buffer.bytes()[range]);
    }
}
