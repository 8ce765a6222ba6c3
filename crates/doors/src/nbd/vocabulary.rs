//! The words between a connection and its owner: what is asked of a volume, and what it answers.

use super::in_flight::PieceId;
use super::protocol::{ErrorCode, REQUEST_BYTES_MAX, extent_flag};
use base::Buffer;
use std::ops::Range;

/// What one connection may occupy.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests taken in and not yet answered.
    pub requests_in_flight_max: u16,
    /// Bytes of pieces handed out, and of read data kept until a reply is whole. A single request may
    /// exceed it when nothing else is in flight.
    pub bytes_in_flight_max: u64,
    /// Pieces of a read end at multiples of this many bytes of the export. At least 4 KiB.
    pub read_piece_bytes: u32,
    /// Likewise of a write; the inbox must have room for one of them. At least 4 KiB.
    pub write_piece_bytes: u32,
}

impl Default for Limits {
    /// Pieces as long as the longest payload of a message between client and OSD.
    fn default() -> Limits {
        Limits {
            requests_in_flight_max: 1024,
            bytes_in_flight_max: u64::from(REQUEST_BYTES_MAX),
            read_piece_bytes: 256 << 10,
            write_piece_bytes: 256 << 10,
        }
    }
}

/// A piece of work for the volume behind an export. It lies within the export as it was when the request
/// came, is not empty, and gets exactly one completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// To be given with the completion.
    pub id: PieceId,
    /// The export, by its place in [`super::Exports`].
    pub export: usize,
    /// What to do.
    pub operation: Operation,
}

/// What a volume is asked to do. Offsets and lengths are in bytes, of any alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Complete with [`super::Connection::complete_read`] or [`super::Connection::complete_hole`].
    Read {
        /// Where it starts.
        offset: u64,
        /// At most a read piece.
        length: usize,
    },
    /// Complete with [`super::Connection::complete`].
    Write {
        /// Where it starts.
        offset: u64,
        /// Where the data stand in the bytes given to the call that pushed this. Gone once consumed.
        data: Range<usize>,
        /// Whether it must be durable when it completes, as every write here is.
        durable: bool,
    },
    /// Complete with [`super::Connection::complete`]. Stays within one object.
    Trim {
        /// Where it starts.
        offset: u64,
        /// At most an object.
        length: u64,
    },
    /// Complete with [`super::Connection::complete`]. Stays within one object.
    WriteZeroes {
        /// Where it starts.
        offset: u64,
        /// At most an object.
        length: u64,
        /// Whether the space may be given up.
        may_punch: bool,
        /// Whether to fail with [`ErrorCode::NotSupported`] where it would take as long as a write.
        fast: bool,
    },
    /// Complete with [`super::Connection::complete_extents`]; an answer for a part from the start is enough.
    Extents {
        /// Where it starts.
        offset: u64,
        /// Up to the end of the export.
        length: u64,
        /// Whether one extent is enough.
        first_only: bool,
    },
}

/// A run of data for a read.
#[derive(Debug)]
pub enum ReadPart<'a> {
    /// Sent without a copy.
    Shared(Buffer, Range<usize>),
    /// Copied.
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(usize),
}

impl ReadPart<'_> {
    /// In bytes.
    pub(super) fn length(&self) -> usize {
        match self {
            ReadPart::Shared(_, range) => range.len(),
            ReadPart::Bytes(bytes) => bytes.len(),
            ReadPart::Zeros(count) => *count,
        }
    }
}

/// A run of an export that is alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// In bytes.
    pub length: u64,
    /// Whether no space is allocated for it.
    pub hole: bool,
    /// Whether it reads as zeros.
    pub zero: bool,
}

impl Extent {
    /// As the protocol writes it.
    pub(super) fn flags(self) -> u32 {
        let hole = if self.hole { extent_flag::HOLE } else { 0 };
        hole | if self.zero { extent_flag::ZERO } else { 0 }
    }
}

/// Why a request failed, for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub code: ErrorCode,
    /// Where in the export, if it is known to be in one place.
    pub offset: Option<u64>,
    /// In words: which volume, object and OSD, and what to do. Clients that know structured replies see it.
    pub message: String,
}

impl Failure {
    /// A failure of no particular place.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Failure {
        Failure { code, offset: None, message: message.into() }
    }
}

/// Why a connection is over.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Cleanly, after reading and writing.
    #[error("the client disconnected")]
    Disconnected,
    /// Cleanly, before that.
    #[error("the client ended the negotiation")]
    Aborted,
    /// The server is going.
    #[error("this server is shutting down")]
    ShuttingDown,
    /// Flags nobody offered.
    #[error(
        "the client set handshake flags {0:#010x}, of which only 0x3 were offered; it is no NBD client, or newer"
    )]
    ClientFlags(u32),
    /// No NBD client, or one that lost its place.
    #[error("an option began with {0:#018x} instead of IHAVEOPT; whoever connected does not speak NBD")]
    OptionMagic(u64),
    /// No option is that long.
    #[error("option {option} announced {bytes} bytes of data, far more than any option has")]
    OptionLength {
        /// The option's number.
        option: u32,
        /// What it announced.
        bytes: usize,
    },
    /// It haggles without end.
    #[error("the client sent {0} options without choosing an export")]
    TooManyOptions(usize),
    /// Asked for in the old way, to which there is no other answer.
    #[error("the client asked for export {0:?}, which is not served here")]
    ExportUnknown(String),
    /// Extended headers are for who chooses an export by `GO`.
    #[error("the client agreed on extended headers, and then asked for an export in the old way")]
    OldWay,
    /// No NBD client, or one that lost its place.
    #[error(
        "a request began with {0:#010x}, as none does in what was agreed on; the client lost its place in the stream"
    )]
    RequestMagic(u32),
    /// Too much to skip.
    #[error("a request announced {0} bytes of payload, far more than the 32 MiB that were offered")]
    PayloadLength(u64),
}

impl Closed {
    /// Whether the client ended it as the protocol wants it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        matches!(self, Closed::Disconnected | Closed::Aborted)
    }
}

/// What a connection needs before [`super::Connection::handle_bytes`] can do more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// More bytes: at least so many in all, counted from the first unconsumed one. The inbox must have
    /// room for them; it is never more than a write piece or 17 KiB, whichever is more.
    Bytes(usize),
    /// A completion: it is at a bound, and receiving more makes no sense.
    Completion,
    /// That the export which its client chose settles ([`super::Exports::set_settling`]).
    Settlement,
    /// Nothing. Close it once its replies are sent.
    Close,
}
