//! Bytes from a peer, checked once and turned into messages that cannot be wrong.

use crate::PROTOCOL_VERSION;
use crate::header::{HEADER_BYTES, Header, Kind, Status};
use base::geometry::blocks_touched;
use base::{
    BLOCK_BYTES, ClientId, ClusterId, Epoch, Generation, LogEntry, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey,
    OsdId, PgId, PoolId, Sequence, VolumeId,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most bytes of a volume that one request reads or writes.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// The most blocks such a request can touch: one more when it starts within a block.
pub const BLOCKS_PER_MESSAGE_MAX: usize = PAYLOAD_BYTES_MAX / BLOCK_BYTES + 1;
/// The most entries of a log in one [`Position`].
pub const LOG_ENTRIES_MAX: usize = 1024;
/// The most objects in one answer to [`Kind::ListObjects`].
pub const OBJECTS_MAX: usize = 1024;
/// The longest lease that may be asked for, in milliseconds. Who has just started and does not know what it
/// promised in an earlier life waits for as long.
pub const LEASE_MS_MAX: u32 = 6000;
/// The most blocks of one deep check: a bit of [`Findings::damaged`] for each.
pub const CHECK_BLOCKS_MAX: u16 = 64;
/// The most bytes of a refusal's reason.
pub const REASON_BYTES_MAX: usize = 512;
/// The most bytes after a header.
pub const BODY_BYTES_MAX: usize = BLOCKS_PER_MESSAGE_MAX * (BLOCK_BYTES + size_of::<U32>());

pub(crate) const MAGIC: [u8; 8] = *b"MILLPOND";

/// Bit of [`Header::flags`] in a reply: every byte asked for is zero, and none is sent.
pub(crate) const FLAG_ALL_ZEROS: u8 = 1;
/// Bit of [`Header::flags`] in a position: the member was catching up, and does not have what its log says.
pub(crate) const FLAG_IS_INCOMPLETE: u8 = 2;
/// Bit of [`Header::flags`] in a position: the member was in no epoch since it started.
pub(crate) const FLAG_MAY_LACK_TAIL: u8 = 4;
/// Bit of [`Header::flags`] in a client's request: it was sent before.
pub(crate) const FLAG_AGAIN: u8 = 1;
/// Bit of [`Header::flags`] in an activation: the member is a learner, and its log begins anew.
pub(crate) const FLAG_JOIN: u8 = 1;
/// Bit of [`Header::flags`] in [`Kind::ListObjects`]: behind the object that it names, not from the first.
pub(crate) const FLAG_AFTER: u8 = 1;
/// Bit of [`Header::flags`] in [`Kind::Objects`]: there are no more.
pub(crate) const FLAG_LAST: u8 = 1;
/// Bit of [`Header::flags`] in [`Kind::Check`]: the drive is read.
pub(crate) const FLAG_DEEP: u8 = 1;
/// Bit of [`Header::flags`] in an acknowledgement: this replica is nearly full.
pub(crate) const FLAG_FULL: u8 = 1;

/// The body of a hello.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct HelloBody {
    pub magic: [u8; 8],
    pub version: U16,
    /// 1 a client, 2 an OSD.
    pub role: U16,
    /// The OSD that is meant.
    pub target: U32,
    pub cluster: [u8; 16],
    /// The client's or the OSD's id.
    pub sender: U64,
    pub reserved: [u8; 24],
}
const _: () = assert!(size_of::<HelloBody>() == 64);

/// One entry of a log in the body of a position.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct LogEntryBody {
    pub sequence: U64,
    pub volume: U64,
    pub epoch: U32,
    pub object: U32,
    pub first_block: U16,
    pub block_count: U16,
    pub reserved: U32,
    pub origin: U64,
}
const _: () = assert!(size_of::<LogEntryBody>() == 40);

/// One object in the body of [`Kind::Objects`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct ObjectBody {
    pub volume: U64,
    pub object: U32,
    pub reserved: U32,
    pub digest: U64,
}
const _: () = assert!(size_of::<ObjectBody>() == 24);

/// The body of [`Kind::Checked`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct FindingsBody {
    pub damaged: U64,
    pub digest: [U64; 2],
}
const _: () = assert!(size_of::<FindingsBody>() == 24);

/// Bytes of the body of [`Kind::Blocks`]: a bit for each block, then a checksum for each.
pub(crate) const BLOCKS_BODY_BYTES: usize = OBJECT_BLOCKS / 8 + OBJECT_BLOCKS * size_of::<U32>();

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client that reads and writes volumes.
    Client(ClientId),
    /// Another OSD of the cluster.
    Osd(OsdId),
}

/// The first message: who I am, and whom I mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks.
    pub role: Role,
    /// The cluster the speaker belongs to.
    pub cluster: ClusterId,
    /// The OSD it wants to reach.
    pub target: OsdId,
}

/// What a client asks of an object. `offset + length` lies within the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's number for it.
    pub request: u64,
    /// The object.
    pub key: ObjectKey,
    /// In bytes from the object's start.
    pub offset: u32,
    /// In bytes; not 0, at most [`PAYLOAD_BYTES_MAX`] except for zeroing, which takes whole objects.
    pub length: u32,
    /// The client's idea of the group's epoch.
    pub epoch: Epoch,
    /// The client's attach generation.
    pub generation: Generation,
    /// Of a write or zeroing: what the client calls it, the same in every attempt.
    pub origin: u64,
    /// It may have been done already, by an attempt whose answer did not arrive.
    pub is_again: bool,
}

impl Request {
    /// The blocks it touches, as `(first, count)`.
    #[must_use]
    pub fn blocks(&self) -> (u16, u16) {
        let (first, count) = blocks_touched(u64::from(self.offset), u64::from(self.length));
        (first as u16, count as u16)
    }

    /// Whether it starts and ends on block borders.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        ((self.offset | self.length) as usize).is_multiple_of(BLOCK_BYTES)
    }
}

/// The checksums of a message's data, one for each block or part of one.
pub type Checksums<'a> = &'a [U32];

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The client's number for it.
    pub request: u64,
    /// How it ended.
    pub status: Status,
    /// The group's epoch, when the request's was stale.
    pub epoch: Epoch,
    /// The newest generation, when the request's was fenced.
    pub generation: Generation,
    /// The place of damage: bytes from the object's start.
    pub offset: u32,
    /// The OSD whose damage or failure it is.
    pub osd: OsdId,
    /// Every byte asked for is zero.
    pub is_zeros: bool,
    /// One for each block of `data`.
    pub checksums: Checksums<'a>,
    /// Whole blocks, those the request touched; or 128 bytes of allocation bits.
    pub data: &'a [u8],
}

/// A write or zeroing for a replica to apply. Whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicate {
    /// The object.
    pub key: ObjectKey,
    /// The epoch of the primary that ordered it.
    pub epoch: Epoch,
    /// Its place in the group's order.
    pub sequence: Sequence,
    /// The first block of the object it changes.
    pub first_block: u16,
    /// How many blocks it changes; not 0.
    pub block_count: u16,
    /// What its client calls it; 0 if it has none.
    pub origin: u64,
}

/// Where a replica stands in a group's order.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// The group.
    pub pg: PgId,
    /// The epoch of the query it answers.
    pub epoch: Epoch,
    /// The last write it has, 0 if none.
    pub last_sequence: Sequence,
    /// From here on the entries lack nothing; 0 if they go back to the group's first write.
    pub log_begins: Sequence,
    /// The member was catching up when its log began, and does not have what came before.
    pub is_incomplete: bool,
    /// The member was in no epoch of the group since it started: the end of its log may have rotted before that, which
    /// looks like the end of what was written.
    pub may_lack_tail: bool,
    entries: &'a [LogEntryBody],
}

/// What an OSD asks of another, and grants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// For how long the sender counts on the receiver not to take over its groups, from `stamp` on, in
    /// milliseconds. 0 asks for nothing.
    pub ttl_ms: u32,
    /// The sender's clock, in nanoseconds. Comes back in the grant.
    pub stamp: u64,
    /// The `ttl_ms` of what is granted; 0 grants nothing.
    pub granted_ttl_ms: u32,
    /// The `stamp` of what is granted.
    pub granted_stamp: u64,
}

/// An object and what it holds, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectDigest {
    /// The volume.
    pub volume: VolumeId,
    /// The 4 MiB piece of it.
    pub object: u32,
    /// Over which blocks there are, and their checksums.
    pub digest: u64,
}

/// Objects of a group that a learner has, in the order of volume and object.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'a> {
    /// The group.
    pub pg: PgId,
    /// The epoch of the request it answers.
    pub epoch: Epoch,
    /// There are no more.
    pub is_last: bool,
    entries: &'a [ObjectBody],
}

impl<'a> Objects<'a> {
    /// The objects.
    pub fn entries(&self) -> impl Iterator<Item = ObjectDigest> + use<'a> {
        self.entries.iter().map(|entry| ObjectDigest {
            volume: VolumeId(entry.volume.get()),
            object: entry.object.get(),
            digest: entry.digest.get(),
        })
    }
}

/// An order to serve a volume to nobody under an older generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The sender's number for it, repeated in the answer; 0 if it wants none.
    pub request: u64,
    /// The volume.
    pub volume: VolumeId,
    /// The oldest generation that may still be served.
    pub generation: Generation,
}

/// Blocks of an object that a primary asks a member about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The primary's number for it, repeated in the answer.
    pub request: u64,
    /// The object.
    pub key: ObjectKey,
    /// The primary's epoch.
    pub epoch: Epoch,
    /// The first block.
    pub first_block: u16,
    /// How many; not 0.
    pub block_count: u16,
}

/// What blocks hold, in short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// A bit for each block that does not verify, the lowest for the first block asked about.
    pub damaged: u64,
    /// Over which of the others there are and their CRC-32C; of a deep check over their bytes too.
    pub digest: [u64; 2],
}

/// The checksums of an object's blocks.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The object.
    pub key: ObjectKey,
    /// The epoch of the request it answers.
    pub epoch: Epoch,
    /// A bit for each block that there is, the lowest first: 128 bytes.
    pub allocated: &'a [u8],
    /// A checksum for each block, 1,024 of them.
    pub checksums: Checksums<'a>,
}

impl<'a> Position<'a> {
    /// The newest entries of its log, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = LogEntry> + use<'a> {
        self.entries.iter().map(|entry| LogEntry {
            epoch: Epoch(entry.epoch.get()),
            sequence: Sequence(entry.sequence.get()),
            volume: VolumeId(entry.volume.get()),
            object: entry.object.get(),
            first_block: entry.first_block.get(),
            block_count: entry.block_count.get(),
            origin: entry.origin.get(),
        })
    }
}

/// A message that was checked.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// See [`Kind::Hello`].
    Hello(Hello),
    /// See [`Kind::Welcome`].
    Welcome,
    /// See [`Kind::Refused`].
    Refused(&'a str),
    /// See [`Kind::Read`].
    Read(Request),
    /// See [`Kind::Write`]: a checksum for each block's part of the data.
    Write(Request, Checksums<'a>, &'a [u8]),
    /// See [`Kind::Zero`]. Aligned to blocks.
    Zero(Request),
    /// See [`Kind::Allocated`].
    Allocated(Request),
    /// See [`Kind::Reply`].
    Reply(Reply<'a>),
    /// See [`Kind::ReplicateWrite`].
    ReplicateWrite(Replicate, Checksums<'a>, &'a [u8]),
    /// See [`Kind::ReplicateZero`].
    ReplicateZero(Replicate),
    /// See [`Kind::ReplicateAck`].
    ReplicateAck {
        /// How many replicated messages of this connection are on stable media, in order.
        through: u64,
        /// The replica takes no more new data than what is under way.
        is_full: bool,
    },
    /// See [`Kind::ReplicateRefused`].
    ReplicateRefused {
        /// Its number among the replicated messages of this connection.
        ordinal: u64,
        /// Why.
        status: Status,
        /// The newer epoch, if that is why.
        epoch: Epoch,
    },
    /// See [`Kind::Query`].
    Query {
        /// The group.
        pg: PgId,
        /// Which objects are the group's in that epoch: see [`PgId::holds`].
        modulus: u32,
        /// The epoch the primary claimed.
        epoch: Epoch,
    },
    /// See [`Kind::Position`].
    Position(Position<'a>),
    /// See [`Kind::Activate`].
    Activate {
        /// The group.
        pg: PgId,
        /// The epoch that begins.
        epoch: Epoch,
        /// The sequence of the mark that begins this epoch; its first write follows.
        mark: Sequence,
        /// The receiver is a learner: its log begins anew with the mark, and does not tell what it has. It gets
        /// what is ordered from this sequence on.
        join: Option<Sequence>,
    },
    /// See [`Kind::Whole`].
    Whole {
        /// The group.
        pg: PgId,
        /// The epoch in which it was brought up to date.
        epoch: Epoch,
    },
    /// See [`Kind::Serves`].
    Serves {
        /// The group.
        pg: PgId,
        /// The epoch that has begun.
        epoch: Epoch,
    },
    /// See [`Kind::Lease`].
    Lease(Lease),
    /// See [`Kind::PushWrite`]. Its sequence is 0.
    PushWrite(Replicate, Checksums<'a>, &'a [u8]),
    /// See [`Kind::PushZero`]. Its sequence is 0.
    PushZero(Replicate),
    /// See [`Kind::PushLost`]. Its sequence is 0, its block one, and the checksum that of what the block held.
    PushLost(Replicate, U32),
    /// See [`Kind::PushEntry`].
    PushEntry {
        /// The group.
        pg: PgId,
        /// The primary's epoch; the entry's own may be older.
        epoch: Epoch,
        /// The entry.
        entry: LogEntry,
    },
    /// See [`Kind::ListObjects`].
    ListObjects {
        /// The group.
        pg: PgId,
        /// The primary's epoch.
        epoch: Epoch,
        /// Only those behind this one.
        after: Option<(VolumeId, u32)>,
    },
    /// See [`Kind::Objects`].
    Objects(Objects<'a>),
    /// See [`Kind::ListBlocks`].
    ListBlocks {
        /// The object.
        key: ObjectKey,
        /// The primary's epoch.
        epoch: Epoch,
    },
    /// See [`Kind::Blocks`].
    Blocks(Blocks<'a>),
    /// See [`Kind::Fetch`].
    Fetch(Inquiry),
    /// See [`Kind::Fetched`]. With data only if the status is [`Status::Ok`]; without, those blocks hold zeros.
    Fetched(Inquiry, Status, Checksums<'a>, &'a [u8]),
    /// See [`Kind::Check`].
    Check {
        /// The blocks: at most [`CHECK_BLOCKS_MAX`] if it is deep.
        inquiry: Inquiry,
        /// Reads them from the drive, instead of looking into the index only.
        is_deep: bool,
    },
    /// See [`Kind::Checked`].
    Checked(Inquiry, Findings),
    /// See [`Kind::Fence`].
    Fence(Fence),
    /// See [`Kind::FenceDone`].
    FenceDone(Fence),
}

/// Why bytes are no message. The connection they came on cannot be trusted further.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Not this protocol, or damaged on the way.
    #[error(
        "the header of a message does not match its checksum: the peer does not speak Millpond's protocol"
    )]
    HeaderChecksum,
    /// Its first message is no hello of this protocol.
    #[error("the peer's greeting is not Millpond's")]
    NotMillpond,
    /// Another version.
    #[error(
        "the peer speaks protocol version {found}, this is version {PROTOCOL_VERSION}; upgrade the older of the two"
    )]
    Version {
        /// The peer's.
        found: u16,
    },
    /// A kind that does not exist.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// A field out of its bounds.
    #[error("a {kind:?} message with an impossible {field}: {value}")]
    Field {
        /// The message.
        kind: Kind,
        /// The field.
        field: &'static str,
        /// What it said.
        value: u64,
    },
}

/// The message at the front of `bytes` and its size, or `None` while it is not all there. A message is
/// refused as soon as its header is, so a peer cannot make the receiver wait for what it will refuse.
///
/// # Errors
/// When the bytes are no message of this protocol.
pub fn parse(bytes: &[u8]) -> Result<Option<(Message<'_>, usize)>, WireError> {
    let Ok((header, rest)) = Header::ref_from_prefix(bytes) else { return Ok(None) };
    if !header.is_intact() {
        return Err(WireError::HeaderChecksum);
    }
    let kind = Kind::from_number(header.kind).ok_or(WireError::Kind(header.kind))?;
    let body_bytes = header.body_bytes.get() as usize;
    let parser = Parser { kind, header };
    parser.check_body_bytes(body_bytes)?;
    let Some(body) = rest.get(..body_bytes) else { return Ok(None) };
    Ok(Some((parser.message(body)?, HEADER_BYTES + body_bytes)))
}

struct Parser<'a> {
    kind: Kind,
    header: &'a Header,
}

impl<'a> Parser<'a> {
    fn wrong(&self, field: &'static str, value: u64) -> WireError {
        WireError::Field { kind: self.kind, field, value }
    }

    /// The size of the body follows from the kind and the header's other fields.
    fn check_body_bytes(&self, body_bytes: usize) -> Result<(), WireError> {
        let fits = match self.kind {
            Kind::Hello => body_bytes == size_of::<HelloBody>(),
            Kind::Refused => body_bytes <= REASON_BYTES_MAX,
            Kind::Write => {
                let request = self.request(PAYLOAD_BYTES_MAX as u64)?;
                body_bytes == request.length as usize + usize::from(request.blocks().1) * 4
            }
            Kind::ReplicateWrite | Kind::PushWrite => {
                let replicate = self.replicate(BLOCKS_PER_MESSAGE_MAX)?;
                body_bytes == usize::from(replicate.block_count) * (BLOCK_BYTES + 4)
            }
            Kind::PushLost => {
                self.replicate(1)?;
                body_bytes == size_of::<U32>()
            }
            Kind::Reply => {
                let whole_blocks = body_bytes.is_multiple_of(BLOCK_BYTES + 4) && body_bytes <= BODY_BYTES_MAX;
                whole_blocks || body_bytes == OBJECT_BLOCKS / 8
            }
            Kind::Position => {
                let entry = size_of::<LogEntryBody>();
                body_bytes.is_multiple_of(entry) && body_bytes / entry <= LOG_ENTRIES_MAX
            }
            Kind::Objects => {
                let entry = size_of::<ObjectBody>();
                body_bytes.is_multiple_of(entry) && body_bytes / entry <= OBJECTS_MAX
            }
            Kind::Blocks => body_bytes == BLOCKS_BODY_BYTES,
            Kind::Fetched => {
                let inquiry = self.inquiry(BLOCKS_PER_MESSAGE_MAX)?;
                body_bytes == 0 || body_bytes == usize::from(inquiry.block_count) * (BLOCK_BYTES + 4)
            }
            Kind::Checked => body_bytes == size_of::<FindingsBody>(),
            Kind::Fetch
            | Kind::Fence
            | Kind::FenceDone
            | Kind::Check
            | Kind::Welcome
            | Kind::Lease
            | Kind::PushZero
            | Kind::PushEntry
            | Kind::ListObjects
            | Kind::ListBlocks
            | Kind::Read
            | Kind::Zero
            | Kind::Allocated
            | Kind::ReplicateZero
            | Kind::ReplicateAck
            | Kind::ReplicateRefused
            | Kind::Query
            | Kind::Serves
            | Kind::Whole
            | Kind::Activate => body_bytes == 0,
        };
        if fits { Ok(()) } else { Err(self.wrong("body length", body_bytes as u64)) }
    }

    fn message(&self, body: &'a [u8]) -> Result<Message<'a>, WireError> {
        let header = self.header;
        Ok(match self.kind {
            Kind::Hello => Message::Hello(self.hello(body)?),
            Kind::Welcome => Message::Welcome,
            Kind::Refused => Message::Refused(std::str::from_utf8(body).unwrap_or("(unreadable reason)")),
            Kind::Read => Message::Read(self.request(PAYLOAD_BYTES_MAX as u64)?),
            Kind::Write => {
                let request = self.request(PAYLOAD_BYTES_MAX as u64)?;
                let (checksums, data) = split_checksums(body, usize::from(request.blocks().1));
                Message::Write(request, checksums, data)
            }
            Kind::Zero => {
                let request = self.request(OBJECT_BYTES)?;
                if !request.is_aligned() {
                    return Err(self.wrong("alignment", u64::from(request.offset | request.length)));
                }
                Message::Zero(request)
            }
            Kind::Allocated => Message::Allocated(self.request(OBJECT_BYTES)?),
            Kind::Reply => Message::Reply(self.reply(body)?),
            Kind::ReplicateWrite => {
                let replicate = self.replicate(BLOCKS_PER_MESSAGE_MAX)?;
                let (checksums, data) = split_checksums(body, usize::from(replicate.block_count));
                Message::ReplicateWrite(replicate, checksums, data)
            }
            Kind::ReplicateZero => Message::ReplicateZero(self.replicate(OBJECT_BLOCKS)?),
            Kind::ReplicateAck => Message::ReplicateAck {
                through: header.sequence.get(),
                is_full: header.flags & FLAG_FULL != 0,
            },
            Kind::ReplicateRefused => Message::ReplicateRefused {
                ordinal: header.sequence.get(),
                status: self.status()?,
                epoch: Epoch(header.epoch.get()),
            },
            Kind::Query => {
                let (pg, modulus) = (self.pg(), header.length.get());
                // A group's number is a remainder.
                if modulus <= pg.index || modulus > PgId::COUNT_MAX {
                    return Err(self.wrong("modulus", u64::from(modulus)));
                }
                Message::Query { pg, modulus, epoch: Epoch(header.epoch.get()) }
            }
            Kind::Whole => Message::Whole { pg: self.pg(), epoch: Epoch(header.epoch.get()) },
            Kind::Serves => Message::Serves { pg: self.pg(), epoch: Epoch(header.epoch.get()) },
            Kind::Position => Message::Position(self.position(body)?),
            Kind::Activate => Message::Activate {
                pg: self.pg(),
                epoch: Epoch(header.epoch.get()),
                mark: Sequence(header.sequence.get()),
                join: (header.flags & FLAG_JOIN != 0).then(|| Sequence(header.request.get())),
            },
            Kind::Lease => Message::Lease(self.lease()?),
            Kind::PushWrite => {
                let replicate = self.replicate(BLOCKS_PER_MESSAGE_MAX)?;
                let (checksums, data) = split_checksums(body, usize::from(replicate.block_count));
                Message::PushWrite(replicate, checksums, data)
            }
            Kind::PushZero => Message::PushZero(self.replicate(OBJECT_BLOCKS)?),
            Kind::PushLost => Message::PushLost(
                self.replicate(1)?,
                U32::read_from_bytes(body).expect("the size was checked"),
            ),
            Kind::PushEntry => {
                Message::PushEntry { pg: self.pg(), epoch: Epoch(header.epoch.get()), entry: self.entry()? }
            }
            Kind::ListObjects => Message::ListObjects {
                pg: self.pg(),
                epoch: Epoch(header.epoch.get()),
                after: (header.flags & FLAG_AFTER != 0)
                    .then(|| (VolumeId(header.volume.get()), header.object.get())),
            },
            Kind::Objects => Message::Objects(Objects {
                pg: self.pg(),
                epoch: Epoch(header.epoch.get()),
                is_last: header.flags & FLAG_LAST != 0,
                entries: <[ObjectBody]>::ref_from_bytes(body).expect("the size was checked"),
            }),
            Kind::ListBlocks => Message::ListBlocks { key: self.key(), epoch: Epoch(header.epoch.get()) },
            Kind::Blocks => {
                let (allocated, checksums) = body.split_at(OBJECT_BLOCKS / 8);
                Message::Blocks(Blocks {
                    key: self.key(),
                    epoch: Epoch(header.epoch.get()),
                    allocated,
                    checksums: <[U32]>::ref_from_bytes(checksums).expect("the size was checked"),
                })
            }
            Kind::Fetch => Message::Fetch(self.inquiry(BLOCKS_PER_MESSAGE_MAX)?),
            Kind::Fetched => {
                let inquiry = self.inquiry(BLOCKS_PER_MESSAGE_MAX)?;
                let (checksums, data) = split_checksums(body, body.len() / (BLOCK_BYTES + 4));
                Message::Fetched(inquiry, self.status()?, checksums, data)
            }
            Kind::Check => {
                let is_deep = header.flags & FLAG_DEEP != 0;
                let blocks_max = if is_deep { usize::from(CHECK_BLOCKS_MAX) } else { OBJECT_BLOCKS };
                Message::Check { inquiry: self.inquiry(blocks_max)?, is_deep }
            }
            Kind::Checked => {
                let body = FindingsBody::ref_from_bytes(body).expect("the size was checked");
                let findings = Findings { damaged: body.damaged.get(), digest: body.digest.map(U64::get) };
                Message::Checked(self.inquiry(OBJECT_BLOCKS)?, findings)
            }
            Kind::Fence => Message::Fence(self.fence()),
            Kind::FenceDone => Message::FenceDone(self.fence()),
        })
    }

    fn fence(&self) -> Fence {
        Fence {
            request: self.header.request.get(),
            volume: VolumeId(self.header.volume.get()),
            generation: Generation(self.header.generation.get()),
        }
    }

    fn inquiry(&self, blocks_max: usize) -> Result<Inquiry, WireError> {
        let Replicate { key, epoch, first_block, block_count, origin, .. } = self.replicate(blocks_max)?;
        Ok(Inquiry { request: origin, key, epoch, first_block, block_count })
    }

    fn pg(&self) -> PgId {
        PgId { pool: PoolId(self.header.pool.get()), index: self.header.pg_index.get() }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey {
            pg: self.pg(),
            volume: VolumeId(self.header.volume.get()),
            object: self.header.object.get(),
        }
    }

    fn status(&self) -> Result<Status, WireError> {
        let number = self.header.status.get();
        Status::from_number(number).ok_or_else(|| self.wrong("status", u64::from(number)))
    }

    fn hello(&self, body: &[u8]) -> Result<Hello, WireError> {
        let body = HelloBody::ref_from_bytes(body).expect("the size was checked");
        if body.magic != MAGIC {
            return Err(WireError::NotMillpond);
        }
        if body.version.get() != PROTOCOL_VERSION {
            return Err(WireError::Version { found: body.version.get() });
        }
        let sender = body.sender.get();
        let role = match body.role.get() {
            1 => Role::Client(ClientId(sender)),
            2 => Role::Osd(OsdId(u32::try_from(sender).map_err(|_| self.wrong("sender", sender))?)),
            other => return Err(self.wrong("role", u64::from(other))),
        };
        Ok(Hello { role, cluster: ClusterId::from_bytes(body.cluster), target: OsdId(body.target.get()) })
    }

    fn request(&self, length_max: u64) -> Result<Request, WireError> {
        let header = self.header;
        let (offset, length) = (header.offset.get(), header.length.get());
        if length == 0 || u64::from(length) > length_max {
            return Err(self.wrong("length", u64::from(length)));
        }
        if u64::from(offset) + u64::from(length) > OBJECT_BYTES {
            return Err(self.wrong("offset", u64::from(offset)));
        }
        Ok(Request {
            request: header.request.get(),
            key: self.key(),
            offset,
            length,
            epoch: Epoch(header.epoch.get()),
            generation: Generation(header.generation.get()),
            origin: header.sequence.get(),
            is_again: header.flags & FLAG_AGAIN != 0,
        })
    }

    fn replicate(&self, blocks_max: usize) -> Result<Replicate, WireError> {
        let header = self.header;
        let (offset, length) = (header.offset.get() as usize, header.length.get() as usize);
        if length == 0 || !length.is_multiple_of(BLOCK_BYTES) || length > blocks_max * BLOCK_BYTES {
            return Err(self.wrong("length", length as u64));
        }
        if !offset.is_multiple_of(BLOCK_BYTES) || offset + length > OBJECT_BYTES as usize {
            return Err(self.wrong("offset", offset as u64));
        }
        Ok(Replicate {
            key: self.key(),
            epoch: Epoch(header.epoch.get()),
            sequence: Sequence(header.sequence.get()),
            first_block: (offset / BLOCK_BYTES) as u16,
            block_count: (length / BLOCK_BYTES) as u16,
            origin: header.request.get(),
        })
    }

    fn entry(&self) -> Result<LogEntry, WireError> {
        let header = self.header;
        let (first_block, block_count) = (header.offset.get(), header.length.get());
        if u64::from(first_block) + u64::from(block_count) > OBJECT_BLOCKS as u64 {
            return Err(self.wrong("log entry", u64::from(first_block) + u64::from(block_count)));
        }
        Ok(LogEntry {
            epoch: Epoch(header.generation.get()),
            sequence: Sequence(header.sequence.get()),
            volume: VolumeId(header.volume.get()),
            object: header.object.get(),
            first_block: first_block as u16,
            block_count: block_count as u16,
            origin: header.request.get(),
        })
    }

    fn lease(&self) -> Result<Lease, WireError> {
        let header = self.header;
        let (ttl_ms, granted_ttl_ms) = (header.length.get(), header.offset.get());
        if ttl_ms > LEASE_MS_MAX || granted_ttl_ms > LEASE_MS_MAX {
            return Err(self.wrong("lease", u64::from(ttl_ms.max(granted_ttl_ms))));
        }
        let (stamp, granted_stamp) = (header.request.get(), header.sequence.get());
        Ok(Lease { ttl_ms, stamp, granted_ttl_ms, granted_stamp })
    }

    fn reply(&self, body: &'a [u8]) -> Result<Reply<'a>, WireError> {
        let header = self.header;
        let (checksums, data): (Checksums<'a>, _) = if body.len() == OBJECT_BLOCKS / 8 {
            (&[], body)
        } else {
            split_checksums(body, body.len() / (BLOCK_BYTES + 4))
        };
        Ok(Reply {
            request: header.request.get(),
            status: self.status()?,
            epoch: Epoch(header.epoch.get()),
            generation: Generation(header.generation.get()),
            offset: header.offset.get(),
            osd: OsdId(header.sequence.get() as u32),
            is_zeros: header.flags & FLAG_ALL_ZEROS != 0,
            checksums,
            data,
        })
    }

    fn position(&self, body: &'a [u8]) -> Result<Position<'a>, WireError> {
        let entries = <[LogEntryBody]>::ref_from_bytes(body).expect("the size was checked");
        for entry in entries {
            let end = usize::from(entry.first_block.get()) + usize::from(entry.block_count.get());
            if end > OBJECT_BLOCKS {
                return Err(self.wrong("log entry", end as u64));
            }
        }
        Ok(Position {
            pg: self.pg(),
            epoch: Epoch(self.header.epoch.get()),
            last_sequence: Sequence(self.header.sequence.get()),
            log_begins: Sequence(self.header.request.get()),
            is_incomplete: self.header.flags & FLAG_IS_INCOMPLETE != 0,
            may_lack_tail: self.header.flags & FLAG_MAY_LACK_TAIL != 0,
            entries,
        })
    }
}

/// The body of a message with data: first a checksum for each block, then the data.
fn split_checksums(body: &[u8], count: usize) -> (Checksums<'_>, &[u8]) {
    <[U32]>::ref_from_prefix_with_elems(body, count).expect("the size was checked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;

    fn request() -> Request {
        Request {
            request: 9,
            key: ObjectKey { pg: PgId { pool: PoolId(1), index: 5 }, volume: VolumeId(2), object: 3 },
            offset: 8192,
            length: 8192,
            epoch: Epoch(4),
            generation: Generation(6),
            origin: 7,
            is_again: true,
        }
    }

    #[test]
    fn a_write_reads_back_and_is_incomplete_until_its_last_byte() {
        let data = [7; 8192];
        let sums = [U32::new(1), U32::new(2)];
        let mut bytes = encode::write(&request(), &sums).to_vec();
        bytes.extend_from_slice(sums.as_bytes());
        bytes.extend_from_slice(&data);
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).unwrap().is_none(), "complete at {end}");
        }
        let Some((Message::Write(parsed, checksums, payload), size)) = parse(&bytes).unwrap() else {
            panic!()
        };
        assert_eq!((parsed, checksums, payload, size), (request(), &sums[..], &data[..], bytes.len()));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = encode::read(&request());
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&wrong).err(), Some(WireError::HeaderChecksum), "bit {bit}");
        }
    }

    #[test]
    fn impossible_fields_are_refused_before_the_body_is_awaited() {
        let refused = |change: &dyn Fn(&mut Header)| {
            let mut header = Header::read_from_bytes(&encode::write(&request(), &[U32::ZERO; 2])).unwrap();
            change(&mut header);
            parse(header.sealed().as_bytes()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(refused(&|header| header.kind = 99).contains("unknown kind 99"));
        assert!(refused(&|header| header.length = 0.into()).contains("impossible length: 0"));
        assert!(refused(&|header| header.length = u32::MAX.into()).contains("impossible length"));
        assert!(
            refused(&|header| header.offset = (OBJECT_BYTES as u32 - 1).into()).contains("impossible offset")
        );
        assert!(refused(&|header| header.body_bytes = u32::MAX.into()).contains("impossible body length"));
        assert!(refused(&|header| header.body_bytes = 0.into()).contains("impossible body length"));
    }

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let hello = Hello { role: Role::Osd(OsdId(1)), cluster: ClusterId::default(), target: OsdId(2) };
        let bytes = encode::hello(&hello);
        assert!(matches!(parse(&bytes), Ok(Some((Message::Hello(parsed), 128))) if parsed == hello));
        let mut other = bytes;
        other[HEADER_BYTES + 8] = 9;
        assert_eq!(parse(&other).err(), Some(WireError::Version { found: 9 }));
        let mut foreign = bytes;
        foreign[HEADER_BYTES] = b'X';
        assert_eq!(parse(&foreign).err(), Some(WireError::NotMillpond));
    }

    #[test]
    fn a_fence_and_its_answer_read_back() {
        let fence = Fence { request: 3, volume: VolumeId(4), generation: Generation(5) };
        assert!(
            matches!(parse(&encode::fence(&fence)), Ok(Some((Message::Fence(read), 64))) if read == fence)
        );
        let done = encode::fence_done(&fence);
        assert!(matches!(parse(&done), Ok(Some((Message::FenceDone(read), 64))) if read == fence));
    }

    #[test]
    fn a_position_reads_back() {
        let pg = PgId { pool: PoolId(1), index: 2 };
        let entries: Vec<_> = (1..=3)
            .map(|number| LogEntry {
                epoch: Epoch(1),
                sequence: Sequence(number),
                volume: VolumeId(4),
                object: 5,
                first_block: 6,
                block_count: 7,
                origin: 8,
            })
            .collect();
        let mut bytes = Vec::new();
        let (last_sequence, log_begins) = (Sequence(3), Sequence(1));
        let state = encode::LogState { last_sequence, log_begins, is_incomplete: false, may_lack_tail: true };
        encode::position(&mut bytes, pg, Epoch(8), state, entries.iter().copied());
        let Some((Message::Position(position), _)) = parse(&bytes).unwrap() else { panic!() };
        assert_eq!((position.pg, position.epoch, position.last_sequence), (pg, Epoch(8), Sequence(3)));
        assert_eq!(position.log_begins, log_begins);
        assert!(!position.is_incomplete && position.may_lack_tail);
        assert_eq!(position.entries().collect::<Vec<_>>(), entries);
    }
}
