//! The bytes on the drive, little-endian. Drawn in docs/formats/.

use base::{BLOCK_BYTES, Epoch, ObjectKey, PgId, PoolId, Sequence, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// The version of this format.
pub const FORMAT_VERSION: u32 = 3;
/// The first bytes of a superblock after its checksum.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"MILLPOSD";
/// The first bytes of a batch header after its checksum.
pub const BATCH_MAGIC: u32 = 0x4854_424d;
/// Where the two superblocks lie, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 1 << 20];
/// Where the segments begin, in bytes.
pub const SEGMENTS_OFFSET: u64 = 4 << 20;
/// The most pieces of a checkpoint's root.
pub const ROOT_PIECES_MAX: usize = 300;
/// No segment.
pub const NO_SEGMENT: u32 = u32::MAX;
/// Streams: foreground and relocated data are kept apart.
pub const STREAMS: usize = 2;

/// A piece of a checkpoint: an object's page, or a part of the root.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Piece {
    /// Its first block on the drive.
    pub location: U32,
    /// Bytes of it that count.
    pub bytes: U32,
    /// Of those bytes.
    pub crc32c: U32,
}

impl Piece {
    /// How many blocks it takes.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.bytes.get().div_ceil(BLOCK_BYTES as u32)
    }
}

/// The superblock, 4 KiB.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Superblock {
    /// Of the 4,092 bytes that follow.
    pub crc32c: U32,
    /// [`SUPERBLOCK_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: U32,
    /// The cluster.
    pub cluster: [u8; 16],
    /// This formatting.
    pub osd_uuid: [u8; 16],
    /// The OSD's number.
    pub osd: U32,
    /// Bytes of a segment.
    pub segment_bytes: U32,
    /// The drive's size when formatted.
    pub device_bytes: U64,
    /// How often it was opened.
    pub mount: U64,
    /// Grows with each superblock written.
    pub sequence: U64,
    /// The newest checkpoint holds the effect of all batches up to this one.
    pub covers: U64,
    /// Pieces of its root; 0 before the first checkpoint.
    pub root_pieces: U32,
    /// The root, in order.
    pub root: [Piece; ROOT_PIECES_MAX],
    /// Zeros.
    pub reserved: [u8; 404],
}
const _: () = assert!(size_of::<Superblock>() == BLOCK_BYTES);

impl Superblock {
    /// Fills in the checksum.
    #[must_use]
    pub fn sealed(mut self) -> Superblock {
        self.crc32c = base::crc32c(&self.as_bytes()[4..]).into();
        self
    }

    /// Whether the checksum and the magic are right.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.magic == SUPERBLOCK_MAGIC && self.crc32c.get() == base::crc32c(&self.as_bytes()[4..])
    }

    /// A superblock of zeros.
    #[must_use]
    pub fn empty() -> Superblock {
        Superblock::new_zeroed()
    }

    /// The pieces of the newest checkpoint's root, in order; none before the first.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.root[..(self.root_pieces.get() as usize).min(ROOT_PIECES_MAX)]
    }
}

/// Where the next batch of a stream goes.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub struct Cursor {
    /// The segment.
    pub segment: U32,
    /// The block in it.
    pub block: U32,
}

/// Where a durable log ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct LogEnd {
    /// The newest batch.
    pub sequence: U64,
    /// The mount of that batch.
    pub mount: U64,
    /// Where each stream goes on after it.
    pub cursors: [Cursor; STREAMS],
    /// And after that.
    pub next_segment: [U32; STREAMS],
}

/// The first 64 bytes of a batch's header block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct BatchHeader {
    /// Of the 4,092 bytes that follow.
    pub crc32c: U32,
    /// [`BATCH_MAGIC`].
    pub magic: U32,
    /// From the formatting's id: what an earlier formatting left is not taken for this one's.
    pub salt: U64,
    /// The batch's place in the log.
    pub sequence: U64,
    /// The opening it was written in.
    pub mount: U64,
    /// Batches up to this one were durable when it was sealed.
    pub durable_through: U64,
    /// Where each stream goes on when its segment is full; [`NO_SEGMENT`] while that is not decided.
    pub next_segment: [U32; STREAMS],
    /// Which stream it belongs to.
    pub stream: u8,
    /// Zero.
    pub reserved: u8,
    /// Records after this header.
    pub record_count: U16,
    /// Data blocks after the header block.
    pub data_blocks: U32,
    /// The first batch of the opening it was written in; 0 if that was not noted.
    pub mount_begin: U64,
}
const _: () = assert!(size_of::<BatchHeader>() == 64);

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum RecordKind {
    /// Data for blocks of an object; a CRC-32C for each follows.
    Write = 1,
    /// Blocks of an object become zeros.
    Zero = 2,
    /// Data moved by cleaning; for each block a CRC-32C and where it lay follow.
    Relocate = 3,
    /// A place in a group's order without data.
    Mark = 4,
    /// A page of a checkpoint: an object's index.
    Page = 5,
    /// A piece of a checkpoint's root.
    Root = 6,
    /// A mark behind which a group's log begins anew: the member is catching up, and what lies before is unknown.
    Join = 7,
    /// An entry of a group's log, about blocks whose content is or comes here by other records.
    Entry = 8,
    /// A group gives half of its objects, and a copy of its log, to another.
    Split = 9,
}

impl RecordKind {
    /// The kind of that number, if any.
    #[must_use]
    pub fn from_number(number: u8) -> Option<RecordKind> {
        RecordKind::try_read_from_bytes(&[number]).ok()
    }

    /// Words of 4 bytes after the record, for `block_count` blocks.
    #[must_use]
    pub fn tail_words(self, block_count: u16) -> usize {
        self.sizes().0 * usize::from(block_count)
    }

    /// Data blocks in the batch, for `block_count` blocks.
    #[must_use]
    pub fn data_blocks(self, block_count: u16) -> u32 {
        self.sizes().1 * u32::from(block_count)
    }

    /// For each block: words after the record, and data blocks.
    fn sizes(self) -> (usize, u32) {
        match self {
            Self::Write => (1, 1),
            Self::Relocate => (2, 1),
            Self::Page | Self::Root => (0, 1),
            Self::Zero | Self::Mark | Self::Join | Self::Entry | Self::Split => (0, 0),
        }
    }
}

/// Of [`Record::flags`]: a write's or relocation's block does not match its checksum on purpose, because its content
/// was lost before.
pub const RECORD_IS_DAMAGED: u8 = 1;

/// One record of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Record {
    /// A [`RecordKind`].
    pub kind: u8,
    /// [`RECORD_IS_DAMAGED`] or 0.
    pub flags: u8,
    /// Blocks it is about.
    pub block_count: U16,
    /// The first of them in the object.
    pub first_block: U16,
    /// Zeros.
    pub reserved: U16,
    /// The group's pool.
    pub pool: U32,
    /// The group's number in the pool.
    pub pg_index: U32,
    /// The volume.
    pub volume: U64,
    /// The 4 MiB piece of the volume. Of a mark, join or split: the group's modulus, 0 of a mark that tells no place.
    pub object: U32,
    /// The group's epoch.
    pub epoch: U32,
    /// The place in the group's order; 0 for what a learner was given out of order.
    pub sequence: U64,
    /// Of a page or root: bytes that count. Of a write or zeroing: the low half of [`Record::origin`].
    pub bytes: U32,
    /// Of a page or root: of those bytes. Of a write or zeroing: the high half of [`Record::origin`].
    pub crc32c: U32,
}
const _: () = assert!(size_of::<Record>() == 48);

impl Record {
    /// A record about blocks of an object.
    #[must_use]
    pub fn new(kind: RecordKind, key: ObjectKey, first_block: u16, block_count: u16) -> Record {
        Record {
            kind: kind as u8,
            block_count: block_count.into(),
            first_block: first_block.into(),
            pool: key.pg.pool.0.into(),
            pg_index: key.pg.index.into(),
            volume: key.volume.0.into(),
            object: key.object.into(),
            ..Record::default()
        }
    }

    /// The object.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            pg: PgId { pool: PoolId(self.pool.get()), index: self.pg_index.get() },
            volume: VolumeId(self.volume.get()),
            object: self.object.get(),
        }
    }

    /// Of a write or zeroing: see [`base::LogEntry::origin`].
    #[must_use]
    pub fn origin(&self) -> u64 {
        u64::from(self.crc32c.get()) << 32 | u64::from(self.bytes.get())
    }

    /// Of a mark, join or split: the group's modulus, if it tells it.
    #[must_use]
    pub fn modulus(&self) -> Option<u32> {
        Some(self.object.get()).filter(|modulus| *modulus > 0)
    }

    /// The same record, of that origin.
    #[must_use]
    pub fn with_origin(self, origin: u64) -> Record {
        Record { bytes: (origin as u32).into(), crc32c: ((origin >> 32) as u32).into(), ..self }
    }

    /// The place in the group's order.
    #[must_use]
    pub fn position(&self) -> (Epoch, Sequence) {
        (Epoch(self.epoch.get()), Sequence(self.sequence.get()))
    }
}

/// The start of a checkpoint's root; objects, groups and log entries follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootHeader {
    /// The checkpoint holds the effect of all batches up to there.
    pub end: LogEnd,
    /// Objects that follow.
    pub object_count: U64,
    /// Groups that follow them.
    pub group_count: U64,
}
const _: () = assert!(size_of::<RootHeader>() == 56);

/// An object in a checkpoint's root: where its page is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootObject {
    /// The group's pool.
    pub pool: U32,
    /// The group's number.
    pub pg_index: U32,
    /// The volume.
    pub volume: U64,
    /// The piece of the volume.
    pub object: U32,
    /// Its page.
    pub page: Piece,
}
const _: () = assert!(size_of::<RootObject>() == 32);

/// A group in a checkpoint's root; its log entries follow it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootGroup {
    /// Its pool.
    pub pool: U32,
    /// Its number.
    pub pg_index: U32,
    /// Bit 1: it was catching up when its log began. Bits 8 to 31: its modulus.
    pub flags: U32,
    /// Entries that follow.
    pub entry_count: U32,
    /// From this sequence on the log lacks nothing; 0 if it reaches back to the group's first write.
    pub log_begins: U64,
}
const _: () = assert!(size_of::<RootGroup>() == 24);

/// A log entry in a checkpoint's root.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootEntry {
    /// Its place in the group's order.
    pub sequence: U64,
    /// The volume.
    pub volume: U64,
    /// The epoch.
    pub epoch: U32,
    /// The piece of the volume.
    pub object: U32,
    /// The first block it changed.
    pub first_block: U16,
    /// How many.
    pub block_count: U16,
    /// Zeros.
    pub reserved: U32,
    /// What its client calls it; 0 if it has none.
    pub origin: U64,
}
const _: () = assert!(size_of::<RootEntry>() == 40);

/// Bit of [`RootGroup::flags`].
pub(crate) const GROUP_IS_INCOMPLETE: u32 = 2;
/// Where the modulus begins in [`RootGroup::flags`].
pub(crate) const GROUP_MODULUS_SHIFT: u32 = 8;
/// The largest modulus that fits there.
pub(crate) const GROUP_MODULUS_MAX: u32 = u32::MAX >> GROUP_MODULUS_SHIFT;
