//! The numbers and fixed structures of the NBD protocol. Everything is big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// What a server says first: `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// What a newstyle server says next, and every option begins with: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// What every reply to an option begins with.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// What every request begins with.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// What a simple reply begins with.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// What every chunk of a structured reply begins with.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// What every request begins with where extended headers were agreed on.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// What every chunk begins with there.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// The longest string the protocol knows, in bytes: names, descriptions, messages.
pub const STRING_BYTES_MAX: usize = 4096;
/// The port that is NBD's by IANA.
pub const PORT: u16 = 10_809;
/// Zero bytes that follow the reply to `EXPORT_NAME`, unless the client asked for none.
pub const PADDING_BYTES: usize = 124;
/// The name of the one metadata context served: which parts of an export are allocated.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
/// The longest payload of a read or write, in bytes, that the server advertises and accepts.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// How requests and replies travel, as client and server agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Framing {
    /// Lengths of 32 bits; replies have a number for an error, and a read's data in one go.
    #[default]
    Simple,
    /// Reads and errors are answered in chunks.
    Structured,
    /// All is answered in chunks, and lengths have 64 bits.
    Extended,
}

/// Flags of the greeting, and of the client's answer to it.
pub mod handshake_flag {
    /// Both: options get proper replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// Both: the reply to `EXPORT_NAME` ends without padding.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags that say what an export can do.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Nothing can be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is known.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` is known.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is known.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is known.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag `DF` is known.
    pub const SEND_DF: u16 = 1 << 7;
    /// All connections see the same data; a flush on one covers them all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is known.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The flag `FAST_ZERO` is known.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// What a client can ask for before it reads and writes.
pub mod option {
    /// Choose an export, the old way: no reply but success or disconnect.
    pub const EXPORT_NAME: u32 = 1;
    /// End it.
    pub const ABORT: u32 = 2;
    /// Name all exports.
    pub const LIST: u32 = 3;
    /// Encrypt from here on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and choose it.
    pub const GO: u32 = 7;
    /// Answer reads in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use headers with lengths of 64 bits, and answer everything in chunks.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Kinds of replies to an option.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export's name and description.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known or not supported.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// Whoever asks may not have it.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data make no sense.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// Encrypt first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is about to go.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option, or the answer to it, is too long.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// It goes with extended headers alone.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Facts about an export, asked for and given with `INFO` and `GO`.
pub mod information {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name it really has.
    pub const NAME: u16 = 1;
    /// What a person would want to know of it.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, best and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Kinds of requests.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the header.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISCONNECT: u16 = 2;
    /// Make all acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// A range's content is no longer needed.
    pub const TRIM: u16 = 4;
    /// A range will be read soon.
    pub const CACHE: u16 = 5;
    /// Make a range zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Tell which parts of a range are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Answer only when it is durable.
    pub const FUA: u16 = 1 << 0;
    /// `WRITE_ZEROES`: keep the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `READ`: answer in one chunk.
    pub const DF: u16 = 1 << 2;
    /// `BLOCK_STATUS`: one extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `WRITE_ZEROES`: fail rather than be as slow as a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of a payload. Every `WRITE` has it then.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Kinds and flags of chunks of a structured reply.
pub mod chunk {
    /// Flag: the last chunk of this reply.
    pub const DONE: u16 = 1 << 0;
    /// Kind: nothing more to say.
    pub const NONE: u16 = 0;
    /// Kind: an offset and the data there.
    pub const OFFSET_DATA: u16 = 1;
    /// Kind: an offset and how many bytes there read as zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Kind: a context and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Kind: a context, how many extents, and extents with lengths of 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Set in the kind of every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// Kind: an error of the whole request.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// Kind: an error and the offset where it happened.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// Flags of an extent in the context `base:allocation`.
pub mod extent_flag {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// What can be wrong with a request.
#[derive(thiserror::Error, TryFromBytes, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// The export is read-only.
    #[error("not permitted")]
    NotPermitted = 1,
    /// Data could not be read or written.
    #[error("input/output error")]
    Io = 5,
    /// No memory for it now.
    #[error("out of memory")]
    NoMemory = 12,
    /// The request makes no sense, or lies beyond the end.
    #[error("invalid request")]
    Invalid = 22,
    /// No space for it, or a write beyond the end.
    #[error("no space")]
    NoSpace = 28,
    /// Too long to be answered as wanted.
    #[error("too long")]
    Overflow = 75,
    /// Not possible in the way wanted, for example fast.
    #[error("not supported")]
    NotSupported = 95,
    /// The server is about to go.
    #[error("server is shutting down")]
    Shutdown = 108,
}

impl ErrorCode {
    /// The number on the wire.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        self as u32
    }

    /// The error of that number. The protocol wants unknown ones taken for [`ErrorCode::Invalid`].
    #[must_use]
    pub fn from_wire(number: u32) -> ErrorCode {
        ErrorCode::try_read_from_bytes(&number.to_ne_bytes()).unwrap_or(ErrorCode::Invalid)
    }
}

macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident, $bytes:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire_struct!(/// What the server says first.
Greeting, 18 {
    /// [`GREETING_MAGIC`].
    magic: U64,
    /// [`OPTION_MAGIC`]: this is newstyle.
    option_magic: U64,
    /// Of [`handshake_flag`].
    flags: U16,
});

wire_struct!(/// An option, before its data.
OptionHeader, 16 {
    /// [`OPTION_MAGIC`].
    magic: U64,
    /// Of [`option`].
    option: U32,
    /// Bytes of data that follow.
    length: U32,
});

wire_struct!(/// A reply to an option, before its data.
OptionReplyHeader, 20 {
    /// [`OPTION_REPLY_MAGIC`].
    magic: U64,
    /// The option it answers.
    option: U32,
    /// Of [`option_reply`].
    kind: U32,
    /// Bytes of data that follow.
    length: U32,
});

wire_struct!(/// Size and flags of an export: the answer to `EXPORT_NAME`, before its padding.
ExportSize, 10 {
    /// Size in bytes.
    bytes: U64,
    /// Of [`transmission_flag`].
    flags: U16,
});

wire_struct!(/// The fact [`information::EXPORT`].
ExportInformation, 12 {
    /// [`information::EXPORT`].
    kind: U16,
    /// Size and flags.
    export: ExportSize,
});

wire_struct!(/// The fact [`information::BLOCK_SIZE`].
BlockSizeInformation, 14 {
    /// [`information::BLOCK_SIZE`].
    kind: U16,
    /// Requests are multiples of this many bytes.
    bytes_min: U32,
    /// Requests of multiples of this many bytes are best.
    bytes_preferred: U32,
    /// Payloads have at most this many bytes.
    bytes_max: U32,
});

wire_struct!(/// A request, before its payload.
RequestHeader, 28 {
    /// [`REQUEST_MAGIC`].
    magic: U32,
    /// Of [`command_flag`].
    flags: U16,
    /// Of [`command`].
    command: U16,
    /// The client's name for it, returned in the reply.
    cookie: U64,
    /// In bytes from the start of the export.
    offset: U64,
    /// In bytes.
    length: U32,
});

wire_struct!(/// A request where extended headers were agreed on, before its payload.
ExtendedRequestHeader, 32 {
    /// [`EXTENDED_REQUEST_MAGIC`].
    magic: U32,
    /// Of [`command_flag`].
    flags: U16,
    /// Of [`command`].
    command: U16,
    /// The client's name for it, returned in the reply.
    cookie: U64,
    /// In bytes from the start of the export.
    offset: U64,
    /// In bytes: of the payload, or of what the request is about.
    length: U64,
});

wire_struct!(/// A simple reply; after a read without an error, the data follow.
SimpleReply, 16 {
    /// [`SIMPLE_REPLY_MAGIC`].
    magic: U32,
    /// 0, or of [`ErrorCode`].
    error: U32,
    /// The request's.
    cookie: U64,
});

wire_struct!(/// One chunk of a structured reply, before its payload.
ChunkHeader, 20 {
    /// [`CHUNK_MAGIC`].
    magic: U32,
    /// [`chunk::DONE`] or none.
    flags: U16,
    /// Of [`chunk`].
    kind: U16,
    /// The request's.
    cookie: U64,
    /// Bytes of payload that follow.
    length: U32,
});

wire_struct!(/// One chunk where extended headers were agreed on, before its payload.
ExtendedChunkHeader, 32 {
    /// [`EXTENDED_CHUNK_MAGIC`].
    magic: U32,
    /// [`chunk::DONE`] or none.
    flags: U16,
    /// Of [`chunk`].
    kind: U16,
    /// The request's.
    cookie: U64,
    /// The request's.
    offset: U64,
    /// Bytes of payload that follow.
    length: U64,
});

wire_struct!(/// The payload of a chunk of kind [`chunk::OFFSET_HOLE`].
Hole, 12 {
    /// Where the zeros stand in the export.
    offset: U64,
    /// How many.
    bytes: U32,
});

wire_struct!(/// The payload of a chunk of kind [`chunk::ERROR`] or [`chunk::ERROR_OFFSET`], before its message.
ErrorHead, 6 {
    /// Of [`ErrorCode`].
    error: U32,
    /// Bytes of text that follow; behind it, an [`chunk::ERROR_OFFSET`] has the offset.
    message_bytes: U16,
});

wire_struct!(/// One extent in a chunk of kind [`chunk::BLOCK_STATUS`].
ExtentDescriptor, 8 {
    /// In bytes, not 0.
    length: U32,
    /// Of [`extent_flag`].
    flags: U32,
});

wire_struct!(/// One extent in a chunk of kind [`chunk::BLOCK_STATUS_EXT`].
ExtendedExtentDescriptor, 16 {
    /// In bytes, not 0.
    length: U64,
    /// Of [`extent_flag`].
    flags: U64,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_wire_and_unknown_ones_are_invalid() {
        use ErrorCode::*;
        for code in [NotPermitted, Io, NoMemory, Invalid, NoSpace, Overflow, NotSupported, Shutdown] {
            assert_eq!(ErrorCode::from_wire(code.to_wire()), code);
        }
        assert_eq!(ErrorCode::from_wire(4711), Invalid);
    }

    #[test]
    fn the_magic_numbers_are_the_published_ones() {
        assert_eq!(GREETING_MAGIC, 0x4e42_444d_4147_4943);
        assert_eq!(OPTION_MAGIC, 0x4948_4156_454f_5054);
    }
}
