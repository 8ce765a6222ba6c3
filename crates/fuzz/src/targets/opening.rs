//! Opening a store on a whole small drive, of which some fields say something else. However that ends, it ends: with a store,
//! or with an error that says what is wrong and where. A store that is in order takes writes, and has them, opened again too.
//!
//! An input is a list of edits of a drive that a store wrote: which structure, which field of it, and what it says. Then all
//! checksums and fingerprints are put right, those that point to what was edited too, for nothing behind them would be looked
//! at otherwise; unless the first byte says that they are left as they are.

use super::{SEALED, Script};
use crate::outcomes::{Outcome, Outcomes};
use base::{
    BLOCK_BYTES, ClusterId, Epoch, Fingerprints, LayerId, OBJECT_BLOCKS, ObjectKey, OsdId, OsdUuid, PgId,
    PoolId, Sequence, crc32c,
};
use sim::machine::push_words;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::LazyLock;
use store::layout::{
    BatchHeader, LogEnd, PageHeader, Piece, Record, RecordKind, RootEntry, RootGroup, RootHeader, RootHeld,
    RootObject, SEGMENTS_OFFSET, SUPERBLOCK_OFFSETS, Secret, Superblock,
};
use store::testing::{BatchRead, Memory, read_batch, seal_batch};
use store::{
    Action, Device, DeviceError, Expected, Identity, OpenError, Options, Role, StageError, Store, WriteRecord,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// What all drives here are formatted with.
pub(super) const SECRET: Secret = *b"this one is ours";
/// What is read ahead of the drives here: a page has three blocks at the most.
pub(super) const READ_AHEAD_BYTES: usize = 8 * BLOCK_BYTES;

const SEGMENT_BYTES: u32 = 64 << 10;
const DRIVE_BYTES: u64 = SEGMENTS_OFFSET + 24 * SEGMENT_BYTES as u64;
/// Of an input, for each edit.
const EDIT_BYTES: usize = 12;
/// Bit of an input's first byte: batches whose data was edited have their fingerprints.
const PRINTED: u8 = 2;
/// Where the number of the drive begins in an input's first byte.
const IMAGE_SHIFT: u8 = 4;
/// Blocks that are looked up at the beginning and at the end of each object.
const LOOKED_UP: u16 = 64;
/// Rounds after which a store that is left alone must have come to rest.
const ROUNDS_MAX: u32 = 1000;
/// What is written to a store that opened: blocks that no object here has.
const WRITTEN: (u16, u16) = (700, 2);

/// A field: where it lies in its structure, and how many bytes it has.
type Field = (usize, usize);

const SUPERBLOCK: &[Field] = &[
    (offset_of!(Superblock, version), 4),
    (offset_of!(Superblock, segment_bytes), 4),
    (offset_of!(Superblock, device_bytes), 8),
    (offset_of!(Superblock, mount), 8),
    (offset_of!(Superblock, sequence), 8),
    (offset_of!(Superblock, covers), 8),
    (offset_of!(Superblock, root_pieces), 4),
    (offset_of!(Superblock, root) + offset_of!(Piece, location), 4),
    (offset_of!(Superblock, root) + offset_of!(Piece, bytes), 4),
    (offset_of!(Superblock, root) + offset_of!(Piece, crc32c), 4),
    (offset_of!(Superblock, root) + size_of::<Piece>() + offset_of!(Piece, location), 4),
    (offset_of!(Superblock, secret), 8),
    (offset_of!(Superblock, mount_begin), 8),
];

const HEADER: &[Field] = &[
    (offset_of!(BatchHeader, sequence), 8),
    (offset_of!(BatchHeader, mount), 8),
    (offset_of!(BatchHeader, durable_through), 8),
    (offset_of!(BatchHeader, next_segment), 4),
    (offset_of!(BatchHeader, next_segment) + 4, 4),
    (offset_of!(BatchHeader, stream), 1),
    (offset_of!(BatchHeader, reserved), 1),
    (offset_of!(BatchHeader, record_count), 2),
    (offset_of!(BatchHeader, data_blocks), 4),
    (offset_of!(BatchHeader, mount_begin), 8),
    (offset_of!(BatchHeader, data_fingerprint), 8),
];

/// With the first words behind it.
const RECORD: &[Field] = &[
    (offset_of!(Record, kind), 1),
    (offset_of!(Record, flags), 1),
    (offset_of!(Record, block_count), 2),
    (offset_of!(Record, first_block), 2),
    (offset_of!(Record, reserved), 2),
    (offset_of!(Record, pool), 4),
    (offset_of!(Record, pg_index), 4),
    (offset_of!(Record, layer), 8),
    (offset_of!(Record, object), 4),
    (offset_of!(Record, sequence), 8),
    (offset_of!(Record, bytes), 4),
    (size_of::<Record>(), 4),
    (size_of::<Record>() + 4, 8),
];

const ROOT_HEADER: &[Field] = &[
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, sequence), 8),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, mount), 8),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, cursors), 4),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, cursors) + 4, 4),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, cursors) + 8, 4),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, cursors) + 12, 4),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, next_segment), 4),
    (offset_of!(RootHeader, end) + offset_of!(LogEnd, next_segment) + 4, 4),
    (offset_of!(RootHeader, object_count), 8),
    (offset_of!(RootHeader, group_count), 8),
];

const ROOT_OBJECT: &[Field] = &[
    (offset_of!(RootObject, pool), 4),
    (offset_of!(RootObject, pg_index), 4),
    (offset_of!(RootObject, layer), 8),
    (offset_of!(RootObject, object), 4),
    (offset_of!(RootObject, page) + offset_of!(Piece, location), 4),
    (offset_of!(RootObject, page) + offset_of!(Piece, bytes), 4),
    (offset_of!(RootObject, page) + offset_of!(Piece, crc32c), 4),
];

const ROOT_GROUP: &[Field] = &[
    (offset_of!(RootGroup, pool), 4),
    (offset_of!(RootGroup, pg_index), 4),
    (offset_of!(RootGroup, flags), 4),
    (offset_of!(RootGroup, entry_count), 4),
    (offset_of!(RootGroup, log_begins), 8),
    (offset_of!(RootGroup, log_started), 8),
    (offset_of!(RootGroup, reached_layer), 8),
    (offset_of!(RootGroup, doubt_count), 4),
    (offset_of!(RootGroup, held_count), 4),
];

const ROOT_ENTRY: &[Field] = &[
    (offset_of!(RootEntry, sequence), 8),
    (offset_of!(RootEntry, layer), 8),
    (offset_of!(RootEntry, object), 4),
    (offset_of!(RootEntry, first_block), 2),
    (offset_of!(RootEntry, block_count), 2),
    (offset_of!(RootEntry, origin), 8),
];

/// With its first slots.
const PAGE: &[Field] = &[
    (offset_of!(PageHeader, bits), 8),
    (offset_of!(PageHeader, bits) + 120, 8),
    (offset_of!(PageHeader, base), 8),
    (offset_of!(PageHeader, shift), 1),
    (offset_of!(PageHeader, reserved), 1),
    (size_of::<PageHeader>(), 4),
    (size_of::<PageHeader>() + 4, 4),
    (size_of::<PageHeader>() + 8, 2),
    (size_of::<PageHeader>() + 10, 4),
];

/// No structure has more fields than this.
const FIELDS_MAX: u8 = 13;
const _: () = assert!(RECORD.len() <= FIELDS_MAX as usize && SUPERBLOCK.len() <= FIELDS_MAX as usize);

/// How a store is that counts what it has.
const CONSISTENT: &str = "consistent";

/// What fields are often set to, beside what the input says.
const NUMBERS: [u64; 12] = [0, 1, 2, 3, 15, 16, 23, 24, 1023, 1024, u32::MAX as u64, u64::MAX];

fn options() -> Options {
    Options {
        volatile_cache: false,
        batch_bytes_max: SEGMENT_BYTES as usize,
        segment_bytes: Some(SEGMENT_BYTES),
        ..Options::default()
    }
}

/// How opening failed.
pub(super) fn name_of(error: &OpenError) -> Outcome {
    match error {
        OpenError::NotAnOsd => ("refused", "no OSD"),
        OpenError::OtherCluster { .. } => ("refused", "other cluster"),
        OpenError::OtherOsd { .. } => ("refused", "other OSD"),
        OpenError::NewerFormat { .. } => ("refused", "newer format"),
        OpenError::OlderFormat { .. } => ("refused", "older format"),
        OpenError::SuperblocksDamaged => ("refused", "damaged superblocks"),
        OpenError::Truncated { .. } => ("refused", "truncated"),
        OpenError::UnknownRecord { .. } => ("refused", "unknown record"),
        OpenError::Device(_) => ("refused", "device"),
        OpenError::Damaged { what, .. } => ("damaged", *what),
        OpenError::Impossible { what, .. } => ("impossible", *what),
    }
}

/// A store at work on a drive that does everything at once.
struct Machine<D> {
    drive: D,
    store: Store,
    tokens: u64,
    is_shut_down: bool,
}

impl<D: Device> Machine<D> {
    fn new(drive: D, store: Store) -> Machine<D> {
        Machine { drive, store, tokens: 0, is_shut_down: false }
    }

    fn open(mut drive: D) -> Machine<D> {
        let store = Store::open(&mut drive, &Expected::default(), options()).expect("a store wrote it");
        Machine::new(drive, store)
    }

    fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// Until nothing is left to do.
    fn settle(&mut self) {
        let mut actions = Vec::new();
        for _ in 0..ROUNDS_MAX {
            self.store.flush(&mut actions);
            if actions.is_empty() {
                return;
            }
            while !actions.is_empty() {
                for action in std::mem::take(&mut actions) {
                    self.perform(action, &mut actions);
                }
            }
        }
        panic!("the store does not come to rest: {:?}", self.store.statistics());
    }

    fn perform(&mut self, action: Action, actions: &mut Vec<Action>) {
        match action {
            Action::Write { token, offset, buffer, length } => {
                self.drive.write(offset, &buffer.bytes()[..length]).expect("memory can be written");
                self.store.handle_written(token, Ok(()), actions);
            }
            Action::Flush { token } => self.store.handle_flushed(token, Ok(()), actions),
            Action::Read { token, offset, length } => {
                let mut data = vec![0; length];
                self.drive.read(offset, &mut data).expect("memory can be read");
                self.store.handle_read(token, Ok(&data), actions);
            }
            Action::ShutdownDone => self.is_shut_down = true,
            Action::Lost { reason, .. } => panic!("nothing fails here: {reason}"),
            Action::Sealed { .. } | Action::Durable { .. } => {}
        }
    }

    fn record(&mut self, key: ObjectKey, sequence: u64, first_block: u16, block_count: u16) -> WriteRecord {
        let (epoch, origin, token) = (Epoch(2), sequence, self.token());
        let (sequence, role) = (Sequence(sequence), Role::Housekeeping);
        WriteRecord { key, epoch, sequence, origin, first_block, block_count, token, role }
    }

    fn write(&mut self, key: ObjectKey, sequence: u64, first_block: u16, block_count: u16) {
        self.try_write(key, sequence, (first_block, block_count)).expect("there is room");
    }

    fn try_write(
        &mut self,
        key: ObjectKey,
        sequence: u64,
        (first_block, block_count): (u16, u16),
    ) -> Result<(), StageError> {
        let (data, checksums) = content(sequence, block_count);
        let checksums: Vec<U32> = checksums.into_iter().map(U32::new).collect();
        let record = self.record(key, sequence, first_block, block_count);
        self.store.stage_write(&record, &checksums, &data)?;
        self.settle();
        Ok(())
    }

    /// What was written with that sequence is there, by the index and on the drive.
    fn reads_back(&mut self, key: &ObjectKey, sequence: u64, (first_block, block_count): (u16, u16)) {
        let (data, checksums) = content(sequence, block_count);
        let (mut extents, mut told, mut read) = (Vec::new(), Vec::new(), Vec::new());
        self.store.lookup(key, first_block, block_count, &mut extents, &mut told);
        assert_eq!(told, checksums, "{key} was written with sequence {sequence}");
        for extent in extents {
            let location = extent.location.expect("what was written lies somewhere");
            let mut part = vec![0; usize::from(extent.block_count) * BLOCK_BYTES];
            let offset = u64::from(location.0) * BLOCK_BYTES as u64;
            self.drive.read(offset, &mut part).expect("what was written can be read");
            read.extend(part);
        }
        assert!(read == data, "{key} was written with sequence {sequence}, and overwritten");
    }

    fn mark(&mut self, kind: RecordKind, pg: PgId, sequence: u64) {
        let token = self.token();
        let staged = self.store.stage_mark(kind, pg, 1, Epoch(2), Sequence(sequence), token);
        staged.expect("there is room");
    }

    /// What the members of two groups have done to them: one leads, is split and goes on; in the other this one catches up.
    fn work(&mut self) {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let key = |modulus, object| ObjectKey {
            pg: PgId::of_object(pg.pool, modulus, LayerId(1), object),
            layer: LayerId(1),
            object,
        };
        self.mark(RecordKind::Mark, pg, 1);
        for object in 0..4 {
            self.write(key(1, object), 2 + u64::from(object), 3, 2);
        }
        let zeroed = self.record(key(1, 0), 6, 4, 1);
        self.store.stage_zero(&zeroed).expect("there is room");
        let entry = self.record(key(1, 1), 7, 0, 9);
        self.store.stage_entry(&entry).expect("there is room");
        self.settle();
        let token = self.token();
        self.store.stage_split(pg, 2, token).expect("there is room");
        self.settle();
        self.write(key(2, 0), 8, 1000, 3);
        self.write(key(2, 1), 9, 0, 1);

        let learned = PgId { pool: PoolId(2), index: 0 };
        let key = ObjectKey { pg: learned, layer: LayerId(2), object: 0 };
        self.write(key, 1, 0, 1);
        self.mark(RecordKind::Join, learned, 20);
        let (data, checksums) = content(3, 2);
        let words = push_words(&checksums, |_| Sequence(3));
        let pushed = WriteRecord { sequence: Sequence(0), ..self.record(key, 0, 5, 2) };
        self.store.stage_push(&pushed, &words, &data).expect("there is room");
        let lost = WriteRecord { sequence: Sequence(0), ..self.record(key, 0, 8, 1) };
        self.store.stage_damaged(&lost, &[7, 4, 0].map(U32::new)).expect("there is room");
        let token = self.token();
        self.store.stage_reached(key, token).expect("there is room");
        self.settle();
    }

    fn shut_down(mut self) -> D {
        let mut actions = Vec::new();
        self.store.begin_shutdown(&mut actions);
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                self.perform(action, &mut actions);
            }
        }
        self.settle();
        assert!(self.is_shut_down, "a store that came to rest is shut down");
        self.drive
    }
}

/// Blocks that are full of a number, and their checksums.
fn content(number: u64, block_count: u16) -> (Vec<u8>, Vec<u32>) {
    let data = vec![number as u8; usize::from(block_count) * BLOCK_BYTES];
    let checksums = data.chunks(BLOCK_BYTES).map(crc32c).collect();
    (data, checksums)
}

/// A structure on a drive: where it begins, in bytes, and its fields.
type Part = (usize, &'static [Field]);

/// A drive that a store wrote, and where what is on it.
struct Image {
    bytes: Vec<u8>,
    /// Blocks that begin batches, with the bytes in them at which records begin, and their data blocks.
    batches: Vec<(usize, Vec<usize>, usize)>,
    /// The checkpoint's root, in bytes.
    root: std::ops::Range<usize>,
    root_parts: Vec<Part>,
    /// The pages that the root points to, in bytes, and where it does.
    pages: Vec<(std::ops::Range<usize>, usize)>,
}

impl Image {
    fn new(bytes: Vec<u8>) -> Image {
        let first_block = (SEGMENTS_OFFSET as usize) / BLOCK_BYTES;
        let mut batches = Vec::new();
        for (number, block) in bytes.chunks_exact(BLOCK_BYTES).enumerate().skip(first_block) {
            let BatchRead::Batch(kinds) = read_batch(block, &FINGERPRINTS) else { continue };
            let (mut at, mut records, mut data_blocks) = (size_of::<BatchHeader>(), Vec::new(), 0);
            for kind in kinds {
                let (record, _) = Record::read_from_prefix(&block[at..]).expect("it was just read");
                records.push(at);
                at += size_of::<Record>() + 4 * kind.tail_words(record.block_count.get());
                data_blocks += kind.data_blocks(record.block_count.get()) as usize;
            }
            batches.push((number, records, data_blocks));
        }
        let (superblock, _) = Superblock::read_from_prefix(&bytes[..]).expect("a drive has a superblock");
        let (mut root, mut root_parts, mut pages) = (0..0, Vec::new(), Vec::new());
        if let [piece] = superblock.pieces() {
            root = range_of(piece);
            let mut at = root.start;
            let (header, _) = RootHeader::read_from_prefix(&bytes[at..]).expect("a root has a header");
            root_parts.push((at, ROOT_HEADER));
            at += size_of::<RootHeader>();
            for _ in 0..header.object_count.get() {
                let (object, _) = RootObject::read_from_prefix(&bytes[at..]).expect("the header says so");
                root_parts.push((at, ROOT_OBJECT));
                pages.push((range_of(&object.page), at + offset_of!(RootObject, page)));
                at += size_of::<RootObject>();
            }
            for _ in 0..header.group_count.get() {
                let (group, _) = RootGroup::read_from_prefix(&bytes[at..]).expect("the header says so");
                root_parts.push((at, ROOT_GROUP));
                at += size_of::<RootGroup>();
                for _ in 0..group.entry_count.get() + group.doubt_count.get() {
                    root_parts.push((at, ROOT_ENTRY));
                    at += size_of::<RootEntry>();
                }
                at += group.held_count.get() as usize * size_of::<RootHeld>();
            }
            assert_eq!(at, root.end, "a root has nothing else");
        }
        Image { bytes, batches, root, root_parts, pages }
    }
}

fn range_of(piece: &Piece) -> std::ops::Range<usize> {
    let start = piece.location.get() as usize * BLOCK_BYTES;
    start..start + piece.bytes.get() as usize
}

/// A drive without a checkpoint, one that was left in good order, and that one after it was used again.
static IMAGES: LazyLock<[Image; 3]> = LazyLock::new(|| {
    let mut drive = Memory(vec![0; DRIVE_BYTES as usize]);
    let identity = Identity {
        cluster: ClusterId::from_bytes([1; 16]),
        osd_uuid: OsdUuid::from_bytes([2; 16]),
        osd: OsdId(0),
    };
    store::format(&mut drive, identity, SECRET, &options()).expect("it is large enough");
    let mut machine = Machine::open(drive);
    machine.work();
    let worked = machine.drive.clone();
    let left = machine.shut_down();
    let mut machine = Machine::open(left.clone());
    let object = 6;
    let pg = PgId::of_object(PoolId(1), 2, LayerId(1), object);
    for sequence in 30..36 {
        let first_block = sequence as u16;
        machine.write(ObjectKey { pg, layer: LayerId(1), object }, sequence, first_block, 1);
    }
    [worked, left, machine.drive].map(|drive| Image::new(drive.0))
});

pub(super) static FINGERPRINTS: LazyLock<Fingerprints> = LazyLock::new(|| Fingerprints::new(&SECRET));

/// The headers of all batches of these drives, as far as they are not zeros.
pub(super) fn headers() -> Vec<Vec<u8>> {
    let blocks = IMAGES.iter().flat_map(|image| {
        image.batches.iter().map(move |(block, ..)| &image.bytes[block * BLOCK_BYTES..][..BLOCK_BYTES])
    });
    let trimmed = blocks.map(|block| {
        let end = block.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        block[..end].to_vec()
    });
    trimmed.collect()
}

/// The pages of all objects of these drives.
pub(super) fn pages() -> Vec<Vec<u8>> {
    let pages =
        IMAGES.iter().flat_map(|image| image.pages.iter().map(move |(range, _)| &image.bytes[range.clone()]));
    pages.map(<[u8]>::to_vec).collect()
}

/// A drive with some blocks that are other ones.
struct Edited {
    image: &'static Image,
    blocks: Vec<(usize, Box<[u8; BLOCK_BYTES]>)>,
    bytes: u64,
    /// A block that cannot be read.
    bad: Option<usize>,
}

impl Edited {
    fn block(&self, number: usize) -> &[u8] {
        match self.blocks.iter().find(|(edited, _)| *edited == number) {
            Some((_, block)) => &block[..],
            None => &self.image.bytes[number * BLOCK_BYTES..][..BLOCK_BYTES],
        }
    }

    fn block_mut(&mut self, number: usize) -> &mut [u8; BLOCK_BYTES] {
        let at = self.blocks.iter().position(|(edited, _)| *edited == number).unwrap_or_else(|| {
            let mut block = Box::new([0; BLOCK_BYTES]);
            block.copy_from_slice(self.block(number));
            self.blocks.push((number, block));
            self.blocks.len() - 1
        });
        &mut self.blocks[at].1
    }

    fn get(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let first = range.start / BLOCK_BYTES;
        let blocks = (first..range.end.div_ceil(BLOCK_BYTES)).map(|number| self.block(number));
        let mut bytes = blocks.collect::<Vec<_>>().concat();
        bytes.truncate(range.end - first * BLOCK_BYTES);
        bytes.split_off(range.start - first * BLOCK_BYTES)
    }

    fn put(&mut self, mut start: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = start % BLOCK_BYTES;
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - at));
            self.block_mut(start / BLOCK_BYTES)[at..at + now.len()].copy_from_slice(now);
            (start, bytes) = (start + now.len(), rest);
        }
    }

    /// Has a number say something else.
    fn change(&mut self, start: usize, width: usize, how: u8, value: u64) {
        let mut word = [0; 8];
        word[..width].copy_from_slice(&self.get(start..start + width));
        let now = u64::from_le_bytes(word);
        let number = match how % 4 {
            0 => value,
            1 => now.wrapping_add_signed(i64::from(value as i8)),
            2 => now ^ value,
            _ => NUMBERS[value as usize % NUMBERS.len()],
        };
        self.put(start, &number.to_le_bytes()[..width]);
    }
}

impl Device for Edited {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_ahead_bytes(&self) -> usize {
        READ_AHEAD_BYTES
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let (start, end) = (offset as usize, offset as usize + into.len());
        let (first, last) = (start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        if end > self.image.bytes.len() || self.bad.is_some_and(|bad| (first..last).contains(&bad)) {
            return Err(DeviceError(format!("nothing can be read at {offset}")));
        }
        into.copy_from_slice(&self.image.bytes[start..end]);
        for (number, block) in self.blocks.iter().filter(|(number, _)| (first..last).contains(number)) {
            into[(number - first) * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&block[..]);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.put(offset as usize, data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// What was edited.
#[derive(Default)]
struct Edits {
    superblocks: bool,
    /// Both have another checksum than they should.
    spoilt: bool,
    root: bool,
    pages: BTreeSet<usize>,
    batches: BTreeSet<usize>,
}

/// Makes an edit.
fn edit(drive: &mut Edited, edits: &mut Edits, script: &mut Script<'_>) {
    let [place, index, field, how] = std::array::from_fn(|_| script.byte());
    let value = script.bytes(size_of::<u64>()).first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let image = drive.image;
    let index = usize::from(index);
    let change = |drive: &mut Edited, (start, fields): Part| {
        let (offset, width) = fields[usize::from(field) % fields.len()];
        drive.change(start + offset, width, how, value);
    };
    let (batch, (block, records, data_blocks)) = {
        let batch = index % image.batches.len();
        (batch, &image.batches[batch])
    };
    match place % 8 {
        0 => {
            edits.superblocks = true;
            SUPERBLOCK_OFFSETS.iter().for_each(|offset| change(drive, (*offset as usize, SUPERBLOCK)));
        }
        1 => {
            edits.batches.insert(batch);
            change(drive, (block * BLOCK_BYTES, HEADER));
        }
        2 | 3 if !records.is_empty() => {
            edits.batches.insert(batch);
            let record = records[usize::from(place >> 3) % records.len()];
            change(drive, (block * BLOCK_BYTES + record, RECORD));
        }
        4 if !image.root_parts.is_empty() => {
            edits.root = true;
            change(drive, image.root_parts[index % image.root_parts.len()]);
        }
        5 if !image.pages.is_empty() => {
            let page = index % image.pages.len();
            edits.pages.insert(page);
            change(drive, (image.pages[page].0.start, PAGE));
        }
        6 if *data_blocks > 0 => {
            edits.batches.insert(batch);
            let data_block = block + 1 + usize::from(field) % data_blocks;
            drive.change(data_block * BLOCK_BYTES + value as usize % (BLOCK_BYTES - 8), 8, how, value);
        }
        _ => match field % 7 {
            0 => SUPERBLOCK_OFFSETS.iter().for_each(|offset| {
                drive.block_mut(*offset as usize / BLOCK_BYTES).fill(0);
            }),
            1 => {
                drive.block_mut(*block).fill(0);
            }
            // A batch at the place of another.
            2 => {
                let (other, ..) = image.batches[value as usize % image.batches.len()];
                let bytes = drive.get(other * BLOCK_BYTES..(other + 1) * BLOCK_BYTES);
                drive.put(block * BLOCK_BYTES, &bytes);
                edits.batches.insert(batch);
            }
            3 => drive.bytes = value % DRIVE_BYTES,
            4 => drive.bad = Some(block + usize::from(how) % 2),
            5 => edits.spoilt = true,
            // What lies behind a batch looks like one that follows it.
            _ => {
                let bytes = drive.get(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
                let behind = block + 1 + data_blocks;
                if behind * BLOCK_BYTES < image.bytes.len() && !is_batch(image, behind) {
                    drive.put(behind * BLOCK_BYTES, &bytes);
                    let start = behind * BLOCK_BYTES;
                    drive.change(start + offset_of!(BatchHeader, sequence), 8, 1, 1);
                    change(drive, (start, HEADER));
                    seal_batch(drive.block_mut(behind), &FINGERPRINTS);
                }
            }
        },
    }
}

fn is_batch(image: &Image, block: usize) -> bool {
    image.batches.iter().any(|(other, ..)| *other == block)
}

/// Puts right what tells whether something was edited: of pages in the root, of the root in the superblocks, and so on.
fn put_right(drive: &mut Edited, edits: &Edits, choice: u8) {
    let image = drive.image;
    for page in &edits.pages {
        let (range, pointer) = &image.pages[*page];
        let checksum = crc32c(&drive.get(range.clone()));
        drive.put(pointer + offset_of!(Piece, crc32c), &checksum.to_le_bytes());
    }
    if edits.root || !edits.pages.is_empty() {
        let checksum = crc32c(&drive.get(image.root.clone()));
        for offset in SUPERBLOCK_OFFSETS {
            let piece = offset as usize + offset_of!(Superblock, root);
            drive.put(piece + offset_of!(Piece, crc32c), &checksum.to_le_bytes());
        }
    }
    for batch in &edits.batches {
        let (block, _, data_blocks) = &image.batches[*batch];
        if choice & PRINTED != 0 {
            let data = drive.get((block + 1) * BLOCK_BYTES..(block + 1 + data_blocks) * BLOCK_BYTES);
            let at = block * BLOCK_BYTES + offset_of!(BatchHeader, data_fingerprint);
            drive.put(at, &FINGERPRINTS.of(&data).to_le_bytes());
        }
        seal_batch(drive.block_mut(*block), &FINGERPRINTS);
    }
    if edits.superblocks || edits.root || !edits.pages.is_empty() {
        for offset in SUPERBLOCK_OFFSETS {
            let block = drive.block_mut(offset as usize / BLOCK_BYTES);
            let superblock = Superblock::read_from_bytes(&block[..]).expect("a superblock is a block");
            block.copy_from_slice(superblock.sealed().as_bytes());
        }
    }
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let image = &IMAGES[usize::from(choice >> IMAGE_SHIFT) % IMAGES.len()];
    let mut drive = Edited { image, blocks: Vec::new(), bytes: DRIVE_BYTES, bad: None };
    let mut edits = Edits::default();
    for bytes in bytes.chunks(EDIT_BYTES) {
        edit(&mut drive, &mut edits, &mut Script::new(bytes));
    }
    if choice & SEALED != 0 {
        put_right(&mut drive, &edits, *choice);
    }
    if edits.spoilt {
        for offset in SUPERBLOCK_OFFSETS {
            drive.block_mut(offset as usize / BLOCK_BYTES)[0] ^= 1;
        }
    }
    let opened = Store::open(&mut drive, &Expected::default(), options());
    match opened {
        Ok(store) => {
            let state = look_at(&store);
            seen.note("opened", state);
            if state == CONSISTENT && can_go_on(&drive) {
                works(Machine::new(drive, store), seen);
            }
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let (what, why) = name_of(&error);
            seen.note(what, why);
        }
    }
}

/// Looks at all of a store.
fn look_at(store: &Store) -> &'static str {
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    for key in store.objects() {
        // Those that the drives have, and those of the bits of a page that are edited.
        for first_block in [0, OBJECT_BLOCKS as u16 - LOOKED_UP] {
            extents.clear();
            checksums.clear();
            store.lookup(&key, first_block, LOOKED_UP, &mut extents, &mut checksums);
            let blocks: u16 = extents.iter().map(|extent| extent.block_count).sum();
            assert_eq!((blocks, checksums.len()), (LOOKED_UP, usize::from(LOOKED_UP)));
        }
        assert!(store.last_changed(&key) >= store.changed(&key, 3).unwrap_or_default());
        let _ = (store.currency(&key, 3), store.doubts(&key).count());
        assert!(store.pg_log(key.pg).all(|entry| usize::from(entry.end()) <= OBJECT_BLOCKS));
    }
    let statistics = store.statistics();
    assert!(statistics.usable_bytes <= statistics.device_bytes);
    if store.verify().is_ok() { CONSISTENT } else { "not consistent" }
}

/// Whether a drive of which a store is in order is one that a store can write to: all of it can be read, it is laid out as it
/// was, and nobody who knew its secret wrote batches of the very opening that just began, or has openings counted anew.
fn can_go_on(drive: &Edited) -> bool {
    let of = |block: &[u8]| Superblock::read_from_bytes(block).expect("a superblock is a block");
    let (before, now) = (of(&drive.image.bytes[..BLOCK_BYTES]), of(drive.block(0)));
    let is_foretold = |(_, block): &(usize, Box<[u8; BLOCK_BYTES]>)| {
        let (header, _) = BatchHeader::read_from_prefix(&block[..]).expect("a block has room for a header");
        header.mount.get() >= now.mount.get() && read_batch(&block[..], &FINGERPRINTS) != BatchRead::Foreign
    };
    drive.bad.is_none()
        && now.segment_bytes == before.segment_bytes
        && now.mount.get() == before.mount.get() + 1
        && !drive.blocks.iter().any(is_foretold)
}

/// Writes to a store, an object that it has and a new one, and looks whether it has them, and still when it is opened again.
fn works(mut machine: Machine<Edited>, seen: &mut Outcomes) {
    let known = machine.store.objects().min();
    let pg = PgId { pool: PoolId(77), index: 0 };
    let new = ObjectKey { pg, layer: LayerId(77), object: 0 };
    let mut written = Vec::new();
    for key in known.into_iter().chain([new]) {
        let last = machine.store.pg_position(key.pg).map_or(Sequence(0), |(_, last)| last);
        let sequence = last.next().0;
        match machine.try_write(key, sequence, WRITTEN) {
            Ok(()) => written.push((key, sequence)),
            Err(StageError::Full) => seen.note("not written", "full"),
            Err(StageError::Busy) => seen.note("not written", "busy"),
            Err(StageError::Failed(reason)) => panic!("nothing fails here: {reason}"),
        }
    }
    for (key, sequence) in &written {
        machine.reads_back(key, *sequence, WRITTEN);
        seen.note("written", "and read back");
    }
    let mut drive = machine.drive;
    match Store::open(&mut drive, &Expected::default(), options()) {
        Ok(store) => {
            let mut machine = Machine::new(drive, store);
            written.iter().for_each(|(key, sequence)| machine.reads_back(key, *sequence, WRITTEN));
            seen.note("opened again", "with what was written");
        }
        Err(error) => seen.note("not opened again", name_of(&error).1),
    }
}

/// Each drive as it is, and with one edit of everything that can be edited, which is set to a few numbers.
pub(super) fn examples() -> Vec<Vec<u8>> {
    let edited = |image: u8, place: u8, index: u8, field: u8, number: u64| {
        let choice = SEALED | PRINTED | image << IMAGE_SHIFT;
        [&[choice, place, index, field, 3][..], &number.to_le_bytes()].concat()
    };
    let mut examples: Vec<Vec<u8>> =
        (0..3u8).map(|image| vec![SEALED | PRINTED | image << IMAGE_SHIFT]).collect();
    for field in 0..FIELDS_MAX {
        for (image, place) in (0..3).flat_map(|image| (0..8).map(move |place| (image, place))) {
            let index = field + 5 * u8::from(image == 2);
            examples.extend([0, 9, 11].map(|number| edited(image, place, index, field, number)));
        }
        // The parts of a root are many.
        examples.extend((0..24).map(|index| edited(1, 4, index, field, 11)));
    }
    // The last batch, whichever that is, tells where the log goes on.
    let batches = (0..3).flat_map(|image| (0..32).map(move |index| (image, index)));
    let with_next =
        batches.clone().flat_map(|(image, index)| [3, 4].map(|field| edited(image, 1, index, field, 0)));
    examples.extend(with_next);
    // Of each one a block cannot be read: of a checkpoint nothing goes without it.
    examples.extend(batches.map(|(image, index)| edited(image, 7, index, 4, 0)));
    examples
}

pub(super) fn expected() -> Vec<Outcome> {
    let refused = [
        "no OSD",
        "newer format",
        "older format",
        "damaged superblocks",
        "truncated",
        "unknown record",
        "device",
    ];
    let damaged = [
        "the root of the checkpoint",
        "a checkpoint's page",
        "a checkpoint's pointer to a place outside of the log",
        "the header of a batch of the log",
    ];
    let impossible = [
        "the size of segments in the superblock",
        "the size of the drive in the superblock",
        "a count in the superblock",
        "the number of pieces in the superblock",
        "the end of the log in the root of the checkpoint",
        "a group in the root of the checkpoint",
        "a record of the batch",
        "a segment that is announced by the batch",
        "a segment in which the log goes on",
    ];
    let refused = refused.into_iter().map(|why| ("refused", why));
    let damaged = damaged.into_iter().map(|what| ("damaged", what));
    let impossible = impossible.into_iter().map(|what| ("impossible", what));
    let opened =
        [("opened", CONSISTENT), ("written", "and read back"), ("opened again", "with what was written")];
    refused.chain(damaged).chain(impossible).chain(opened).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_have_what_there_is_to_edit_and_open_as_they_are() {
        let kinds = |image: &Image| {
            let blocks = image.batches.iter().map(|(block, ..)| &image.bytes[block * BLOCK_BYTES..]);
            let read = blocks.map(|block| read_batch(block, &FINGERPRINTS));
            let kinds = read.filter_map(|read| match read {
                BatchRead::Batch(kinds) => Some(kinds),
                _ => None,
            });
            kinds.flatten().map(|kind| kind as u8).collect::<BTreeSet<u8>>()
        };
        assert!(kinds(&IMAGES[0]).len() >= 8, "{:?}", kinds(&IMAGES[0]));
        assert!(IMAGES[0].pages.is_empty() && IMAGES[1].pages.len() > 4 && IMAGES[2].pages.len() > 4);
        for image in 0..3u8 {
            let seen = Outcomes::of(run, &[SEALED | image << IMAGE_SHIFT]);
            assert_eq!(seen.times(("opened", CONSISTENT)), 1, "{image}: {seen}");
            assert_eq!(seen.times(("written", "and read back")), 2, "{image}: {seen}");
            assert_eq!(seen.times(("opened again", "with what was written")), 1, "{image}: {seen}");
        }
    }

    #[test]
    fn a_log_that_goes_on_in_a_segment_in_which_it_stands_is_refused() {
        for number in 0..3u8 {
            let image = &IMAGES[usize::from(number)];
            let sequence = |block: usize| {
                let header = BatchHeader::read_from_prefix(&image.bytes[block * BLOCK_BYTES..]);
                header.unwrap().0.sequence.get()
            };
            let batches = image.batches.iter().enumerate();
            let (index, (block, ..)) = batches.max_by_key(|(_, (block, ..))| sequence(*block)).unwrap();
            let segment = (*block as u64 * BLOCK_BYTES as u64 - SEGMENTS_OFFSET) / u64::from(SEGMENT_BYTES);
            // Either stream's next segment.
            for field in [3, 4] {
                let choice = SEALED | PRINTED | number << IMAGE_SHIFT;
                let edit = [&[choice, 1, index as u8, field, 0][..], &segment.to_le_bytes()].concat();
                let seen = Outcomes::of(run, &edit);
                let refused = seen.times(("impossible", "a segment in which the log goes on"));
                assert_eq!(refused, 1, "{number} {field}: {seen}");
            }
        }
    }

    #[test]
    fn a_checkpoint_without_a_root_is_refused() {
        let edit = [&[SEALED | PRINTED | 1 << IMAGE_SHIFT, 0, 0, 6, 0][..], &[0; 8]].concat();
        let seen = Outcomes::of(run, &edit);
        let refused = seen.times(("impossible", "a checkpoint without a root in the superblock"));
        assert_eq!(refused, 1, "{seen}");
    }

    #[test]
    fn what_is_edited_is_taken_once_what_tells_of_it_is_put_right() {
        let is_entry = |(_, fields): &Part| fields.len() == ROOT_ENTRY.len();
        let entry = IMAGES[1].root_parts.iter().position(is_entry).unwrap() as u8;
        // One more of the superblock's sequence, of an entry's origin, and of the tick of a page's first block.
        for (place, index, field, told_as) in [
            (0u8, 0u8, 4u8, ("refused", "damaged superblocks")),
            (4, entry, 5, ("damaged", "the root of the checkpoint")),
            (5, 0, 7, ("damaged", "a checkpoint's page")),
        ] {
            let edit = [&[place, index, field, 1][..], &1u64.to_le_bytes()].concat();
            let with = |choice: u8| Outcomes::of(run, &[&[choice | 1 << IMAGE_SHIFT][..], &edit].concat());
            let (right, wrong) = (with(SEALED | PRINTED), with(0));
            assert_eq!(right.times(("opened", CONSISTENT)), 1, "{place} {field}: {right}");
            assert_eq!(wrong.times(told_as), 1, "{place} {field}: {wrong}");
        }
    }
}
