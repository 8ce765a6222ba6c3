//! The bytes on the drive, little-endian. Drawn in docs/formats/.

use base::{BLOCK_BYTES, Epoch, LayerId, LogEntry, OBJECT_BLOCKS, ObjectKey, PgId, PoolId, Sequence};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// The version of this format.
pub const FORMAT_VERSION: u32 = 7;
/// The oldest one that is read. What it lays out is the same; it knows neither holes nor layers. A drive is of the newest from its
/// first opening on.
pub const FORMAT_OLDEST: u32 = 6;
/// The first bytes of a superblock after its checksum.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"MILLPOSD";
/// Where the two superblocks lie, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 1 << 20];
/// Where the segments begin, in bytes.
pub const SEGMENTS_OFFSET: u64 = 4 << 20;
/// The most pieces of a checkpoint's root.
pub const ROOT_PIECES_MAX: usize = 300;
/// More openings, superblocks or batches than any drive comes to: what is counted has room to grow.
pub const COUNT_MAX: u64 = 1 << 62;
/// No segment.
pub const NO_SEGMENT: u32 = u32::MAX;
/// Streams: foreground and relocated data are kept apart.
pub const STREAMS: usize = 2;

/// What only the program that formatted a drive and those that opened it since have seen. Data that looks like the store's
/// own cannot be made without it: whoever writes data reads no superblock.
pub type Secret = [u8; 16];

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
    /// Drawn when the drive was formatted, and told to nobody: batches are known by it.
    pub secret: Secret,
    /// The first batch of the last opening, if it wrote one: from there on batches of earlier openings were given up. 0 where it
    /// was not noted. What came before it was durable when that was written.
    pub mount_begin: U64,
    /// Zeros.
    pub reserved: [u8; 380],
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

/// The first 80 bytes of a batch's header block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct BatchHeader {
    /// Of the whole header block, as if this were zeros, under the secret ([`base::Fingerprints`]). Of a header that was torn
    /// some sectors are what lay there before: whoever wrote that makes a checksum fit, and no fingerprint.
    pub fingerprint: U64,
    /// The formatting's: neither what an earlier one left nor what a client wrote is taken for a batch.
    pub secret: Secret,
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
    /// Of all its data blocks, under the secret: should one not have arrived, what lay there before may have its checksum.
    pub data_fingerprint: U64,
}
const _: () = assert!(size_of::<BatchHeader>() == 80);

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
    /// Data for blocks of an object that a learner lacked; for each block a CRC-32C, and then for each the sequence of its
    /// last change in two words, the low one first.
    Push = 10,
    /// Of a group whose log tells that this member is catching up: it has the objects up to this one.
    Reached = 11,
    /// Of a pool of which no object is there: the logs of its groups go.
    Forget = 12,
    /// Blocks of a layer read as zeros, whatever lies beneath it: they are there, and take no room.
    Hole = 13,
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
            Self::Push => (3, 1),
            Self::Page | Self::Root => (0, 1),
            Self::Zero
            | Self::Mark
            | Self::Join
            | Self::Entry
            | Self::Split
            | Self::Reached
            | Self::Forget
            | Self::Hole => (0, 0),
        }
    }

    /// Whether it puts data to blocks of an object.
    #[must_use]
    pub fn has_blocks(self) -> bool {
        matches!(self, Self::Write | Self::Relocate | Self::Push)
    }
}

/// Of [`Record::flags`]: a write's, relocation's or push's block does not match its checksum on purpose, because its content
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
    /// Zeros: room for a position in a stripe.
    pub reserved: U16,
    /// The group's pool.
    pub pool: U32,
    /// The group's number in the pool.
    pub pg_index: U32,
    /// The layer.
    pub layer: U64,
    /// The 4 MiB piece of the layer. Of a mark, join or split: the group's modulus, 0 of a mark that tells no place.
    pub object: U32,
    /// The group's epoch.
    pub epoch: U32,
    /// The place in the group's order; 0 for what stands beside it.
    pub sequence: U64,
    /// Of a page or root: bytes that count. Of a write, zeroing or entry: the low half of [`Record::origin`].
    pub bytes: U32,
    /// Of a page or root: of those bytes. Of a write, zeroing or entry: the high half of [`Record::origin`].
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
            layer: key.layer.0.into(),
            object: key.object.into(),
            ..Record::default()
        }
    }

    /// The object.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            pg: PgId { pool: PoolId(self.pool.get()), index: self.pg_index.get() },
            layer: LayerId(self.layer.get()),
            object: self.object.get(),
        }
    }

    /// Of a write, zeroing or entry: see [`base::LogEntry::origin`].
    #[must_use]
    pub fn origin(&self) -> u64 {
        u64::from(self.crc32c.get()) << 32 | u64::from(self.bytes.get())
    }

    /// Of a mark, join or split: the group's modulus, if it tells it.
    #[must_use]
    pub fn modulus(&self) -> Option<u32> {
        Some(self.object.get()).filter(|modulus| *modulus > 0)
    }

    /// Of a join: whether it says that the member leaves the group.
    #[must_use]
    pub fn is_leave(&self) -> bool {
        self.modulus().is_none() && self.sequence.get() == 0
    }

    /// The same record, of that origin.
    #[must_use]
    pub fn with_origin(self, origin: u64) -> Record {
        Record { bytes: (origin as u32).into(), crc32c: ((origin >> 32) as u32).into(), ..self }
    }

    /// Whether every field is one that the kind can have, as far as one record tells.
    #[must_use]
    pub fn is_possible(&self, kind: RecordKind) -> bool {
        let (first, count) = (usize::from(self.first_block.get()), usize::from(self.block_count.get()));
        let flags = if kind.has_blocks() { RECORD_IS_DAMAGED } else { 0 };
        let (pg_index, modulus) = (self.pg_index.get(), self.object.get());
        self.reserved.get() == 0
            && self.flags & !flags == 0
            && match kind {
                RecordKind::Write => {
                    (1..=OBJECT_BLOCKS).contains(&count)
                        && first + count <= OBJECT_BLOCKS
                        && self.sequence.get() > 0
                }
                RecordKind::Zero | RecordKind::Hole | RecordKind::Relocate | RecordKind::Push => {
                    (1..=OBJECT_BLOCKS).contains(&count) && first + count <= OBJECT_BLOCKS
                }
                // One of a mark has no blocks.
                RecordKind::Entry => first + count <= OBJECT_BLOCKS,
                RecordKind::Mark | RecordKind::Join => {
                    first + count == 0 && (modulus == 0 || modulus <= GROUP_MODULUS_MAX && pg_index < modulus)
                }
                RecordKind::Split => {
                    first + count == 0
                        && modulus <= GROUP_MODULUS_MAX
                        && modulus.is_multiple_of(2)
                        && pg_index < modulus / 2
                }
                RecordKind::Reached => first + count == 0,
                RecordKind::Forget => first + count == 0 && pg_index == 0 && modulus == 0,
                RecordKind::Page | RecordKind::Root => {
                    let bytes = self.bytes.get() as usize;
                    first == 0 && bytes > 0 && bytes.div_ceil(BLOCK_BYTES) == count
                }
            }
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
    /// The layer.
    pub layer: U64,
    /// The piece of the layer.
    pub object: U32,
    /// Its page.
    pub page: Piece,
}
const _: () = assert!(size_of::<RootObject>() == 32);

/// A group in a checkpoint's root; its log entries, its doubts and what it reached follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootGroup {
    /// Its pool.
    pub pool: U32,
    /// Its number.
    pub pg_index: U32,
    /// Bit 1: it was catching up when its log began. Bit 2: so far it reached `reached_layer`, `reached_object`.
    /// Bits 8 to 31: its modulus.
    pub flags: U32,
    /// Entries that follow, as [`RootEntry`].
    pub entry_count: U32,
    /// From this sequence on the log lacks nothing; 0 if it reaches back to the group's first write.
    pub log_begins: U64,
    /// What `log_begins` was when the log last began anew.
    pub log_started: U64,
    /// How far it got in catching up: the layer.
    pub reached_layer: U64,
    /// And the piece of the layer.
    pub reached_object: U32,
    /// Entries behind those, of what it may have and others have not.
    pub doubt_count: U32,
    /// What it had of the group's order when it last had it of everything up to an object, as [`RootHeld`], behind those.
    pub held_count: U32,
    /// How many batches behind [`RootHeader::end`] were durable when the root was made: the log tells of them already.
    pub batches_ahead: U32,
}
const _: () = assert!(size_of::<RootGroup>() == 56);

/// Up to which sequence a member that catches up had its group's order, of the objects up to this one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootHeld {
    /// The layer of the last object.
    pub layer: U64,
    /// The piece of the layer.
    pub object: U32,
    /// Zeros.
    pub reserved: U32,
    /// The sequence.
    pub through: U64,
}
const _: () = assert!(size_of::<RootHeld>() == 24);

/// A log entry in a checkpoint's root.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RootEntry {
    /// Its place in the group's order.
    pub sequence: U64,
    /// The layer.
    pub layer: U64,
    /// The epoch.
    pub epoch: U32,
    /// The piece of the layer.
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

impl RootEntry {
    /// Whether its blocks lie within an object.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        usize::from(self.first_block.get()) + usize::from(self.block_count.get()) <= OBJECT_BLOCKS
    }
}

impl From<&LogEntry> for RootEntry {
    fn from(entry: &LogEntry) -> RootEntry {
        RootEntry {
            sequence: entry.sequence.0.into(),
            layer: entry.layer.0.into(),
            epoch: entry.epoch.0.into(),
            object: entry.object.into(),
            first_block: entry.first_block.into(),
            block_count: entry.block_count.into(),
            reserved: 0.into(),
            origin: entry.origin.into(),
        }
    }
}

impl From<&RootEntry> for LogEntry {
    fn from(entry: &RootEntry) -> LogEntry {
        LogEntry {
            epoch: Epoch(entry.epoch.get()),
            sequence: Sequence(entry.sequence.get()),
            layer: LayerId(entry.layer.get()),
            object: entry.object.get(),
            first_block: entry.first_block.get(),
            block_count: entry.block_count.get(),
            origin: entry.origin.get(),
        }
    }
}

/// The start of an object's page; a slot of 10 bytes for each of its blocks follows: where it lies, its CRC-32C, and its tick.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct PageHeader {
    /// A bit for each block that is there, the lowest first.
    pub bits: [U64; OBJECT_BLOCKS / 64],
    /// A block last changed at or before the sequence `base` + (tick << `shift`).
    pub base: U64,
    /// See `base`; less than 64.
    pub shift: u8,
    /// Zeros.
    pub reserved: [u8; 7],
}
const _: () = assert!(size_of::<PageHeader>() == 144);

/// Bit of [`RootGroup::flags`].
pub(crate) const GROUP_IS_INCOMPLETE: u32 = 2;
/// Bit of [`RootGroup::flags`].
pub(crate) const GROUP_REACHED: u32 = 4;
/// Where the modulus begins in [`RootGroup::flags`].
pub(crate) const GROUP_MODULUS_SHIFT: u32 = 8;
/// The largest modulus that fits there.
pub(crate) const GROUP_MODULUS_MAX: u32 = u32::MAX >> GROUP_MODULUS_SHIFT;

#[cfg(test)]
mod tests {
    use super::*;

    fn is_possible(kind: RecordKind, first_block: u16, block_count: u16) -> bool {
        let record = Record::new(kind, ObjectKey::default(), first_block, block_count);
        Record { sequence: U64::new(1), ..record }.is_possible(kind)
    }

    #[test]
    fn the_blocks_of_a_record_lie_within_an_object() {
        const ALL: u16 = OBJECT_BLOCKS as u16;
        for kind in [RecordKind::Write, RecordKind::Zero, RecordKind::Relocate, RecordKind::Push] {
            let within = [(0, 1), (0, ALL), (1, ALL - 1), (ALL - 1, 1)];
            assert!(within.iter().all(|(first, count)| is_possible(kind, *first, *count)), "{kind:?}");
            let beyond = [(0, 0), (0, ALL + 1), (1, ALL), (ALL, 1)];
            assert!(!beyond.iter().any(|(first, count)| is_possible(kind, *first, *count)), "{kind:?}");
        }
        assert!(is_possible(RecordKind::Entry, 0, 0) && is_possible(RecordKind::Entry, 0, ALL));
        assert!(!is_possible(RecordKind::Entry, 1, ALL));
        for kind in [RecordKind::Mark, RecordKind::Join, RecordKind::Reached, RecordKind::Forget] {
            assert!(is_possible(kind, 0, 0), "{kind:?}");
            assert!(!is_possible(kind, 0, 1) && !is_possible(kind, 1, 0), "{kind:?}");
        }
    }

    #[test]
    fn a_record_of_a_group_names_one_that_there_can_be() {
        const MOST: u32 = GROUP_MODULUS_MAX;
        let of_group = |kind, index, modulus| {
            let pg = PgId { pool: PoolId(1), index };
            let key = ObjectKey { pg, layer: LayerId(0), object: modulus };
            Record::new(kind, key, 0, 0).is_possible(kind)
        };
        for kind in [RecordKind::Mark, RecordKind::Join] {
            let is = |index, modulus| of_group(kind, index, modulus);
            assert!(is(0, 0) && is(5, 0) && is(3, 4) && is(0, MOST), "{kind:?}");
            assert!(!is(4, 4) && !is(0, MOST + 1), "{kind:?}");
        }
        let splits = |index, modulus| of_group(RecordKind::Split, index, modulus);
        for (first_block, block_count) in [(0, 1), (1, 0)] {
            let key = ObjectKey { object: 2, ..ObjectKey::default() };
            let split = Record::new(RecordKind::Split, key, first_block, block_count);
            assert!(!split.is_possible(RecordKind::Split), "it is about no blocks");
        }
        assert!(splits(0, 2) && splits(1, 4) && splits(0, MOST - 1));
        assert!(!splits(0, 0) && !splits(2, 4) && !splits(0, 3) && !splits(0, MOST + 1));
        let forgets = |index, modulus| of_group(RecordKind::Forget, index, modulus);
        assert!(forgets(0, 0) && !forgets(1, 0) && !forgets(0, 1));
    }

    #[test]
    fn a_record_says_nothing_that_its_kind_has_not() {
        let of = |kind, block_count, change: fn(&mut Record)| {
            let mut record = Record::new(kind, ObjectKey::default(), 0, block_count);
            change(&mut record);
            record.is_possible(kind)
        };
        assert!(!of(RecordKind::Write, 1, |_| {}), "a write has a place in its group's order");
        assert!(of(RecordKind::Zero, 1, |_| {}) && of(RecordKind::Push, 1, |_| {}));
        let is_damaged = |record: &mut Record| record.flags = RECORD_IS_DAMAGED;
        assert!(of(RecordKind::Push, 1, is_damaged) && !of(RecordKind::Zero, 1, is_damaged));
        assert!(!of(RecordKind::Push, 1, |record| record.flags = 2 * RECORD_IS_DAMAGED));
        assert!(!of(RecordKind::Push, 1, |record| record.reserved = U16::new(1)));
        for kind in [RecordKind::Page, RecordKind::Root] {
            let has_bytes = |record: &mut Record| record.bytes = U32::new(BLOCK_BYTES as u32 + 1);
            assert!(of(kind, 2, has_bytes) && !of(kind, 1, has_bytes) && !of(kind, 3, has_bytes), "{kind:?}");
            assert!(!of(kind, 0, |_| {}), "{kind:?}");
            let is_behind = |record: &mut Record| {
                (record.bytes, record.first_block) = (U32::new(BLOCK_BYTES as u32), U16::new(1));
            };
            assert!(!of(kind, 1, is_behind), "{kind:?}");
        }
    }

    #[test]
    fn a_join_that_tells_neither_modulus_nor_sequence_says_that_the_member_leaves() {
        let is_leave = |modulus: u32, sequence: u64| {
            let key = ObjectKey { object: modulus, ..ObjectKey::default() };
            let join = Record::new(RecordKind::Join, key, 0, 0);
            Record { sequence: U64::new(sequence), ..join }.is_leave()
        };
        assert!(is_leave(0, 0));
        assert!(!is_leave(4, 0) && !is_leave(0, 1) && !is_leave(4, 1));
    }
}
