//! What a start reads of a drive, piece by piece: headers of batches, an object's page, the superblocks. How they go together
//! is asked by `opening`.

use super::{SEALED, Script, leaked_name, opening};
use crate::outcomes::{Outcome, Outcomes};
use base::{BLOCK_BYTES, ObjectKey, ZERO_BLOCK_CRC32C};
use std::mem::offset_of;
use std::sync::LazyLock;
use store::layout::{
    BatchHeader, FORMAT_VERSION, PageHeader, Record, RecordKind, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS,
    Superblock,
};
use store::testing::{BatchRead, read_batch, read_page, seal_batch};
use store::{Device, DeviceError, Location};
use zerocopy::{FromBytes, IntoBytes};

type Block = [u8; BLOCK_BYTES];

/// Bit of an input's first byte: the second superblock is sealed.
const SECOND_SEALED: u8 = 2;
/// Bit of an input's first byte: the drive ends before the second superblock.
const IS_SHORT: u8 = 4;
/// Of an input, for each superblock: what comes behind is zeros.
const SUPERBLOCK_BYTES: usize = 128;
/// Changes of an object behind its page.
const CHANGES: usize = 4;
/// Of an input, for each change.
const CHANGE_BYTES: usize = 10;
/// A slot of a page.
const SLOT_BYTES: usize = 10;
/// Blocks of an object.
const BLOCKS: usize = base::OBJECT_BLOCKS;

/// The names of all kinds of records, by their numbers.
static KINDS: LazyLock<Vec<(RecordKind, &str)>> = LazyLock::new(|| {
    let kinds = (0..=u8::MAX).filter_map(RecordKind::from_number);
    kinds.map(|kind| (kind, leaked_name(kind))).collect()
});

fn name_of(kind: RecordKind) -> &'static str {
    let named = KINDS.iter().find(|(one, _)| *one == kind);
    named.map_or("none", |(_, name)| *name)
}

fn padded(bytes: &[u8]) -> Block {
    let mut block = [0; BLOCK_BYTES];
    let count = bytes.len().min(BLOCK_BYTES);
    block[..count].copy_from_slice(&bytes[..count]);
    block
}

/// Behind the first byte stands a header block; zeros behind it are left out.
pub(super) fn batch(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut block = padded(bytes);
    if choice & SEALED != 0 {
        seal_batch(&mut block, &opening::FINGERPRINTS);
    }
    match read_batch(&block, &opening::FINGERPRINTS) {
        BatchRead::Foreign => seen.note("foreign", ""),
        BatchRead::UnknownRecord(_) => seen.note("unknown record", ""),
        BatchRead::Impossible(what) => seen.note("impossible", what),
        BatchRead::Batch(kinds) => {
            seen.note("batch", if kinds.is_empty() { "without records" } else { "with records" });
            kinds.iter().for_each(|kind| seen.note("record", name_of(*kind)));
        }
    }
}

/// A record of a kind that says what it may.
fn record_of(kind: RecordKind) -> Record {
    let (key, block_count) = (ObjectKey::default(), 1);
    match kind {
        RecordKind::Write
        | RecordKind::Zero
        | RecordKind::Hole
        | RecordKind::Relocate
        | RecordKind::Push
        | RecordKind::Entry => Record { sequence: 9u64.into(), ..Record::new(kind, key, 4, block_count) },
        RecordKind::Page | RecordKind::Root => {
            Record { bytes: 100u32.into(), ..Record::new(kind, key, 0, block_count) }
        }
        RecordKind::Split => Record { object: 2u32.into(), ..Record::new(kind, key, 0, 0) },
        _ => Record::new(kind, key, 0, 0),
    }
}

/// A header of a batch with records of these kinds, as far as it is not zeros.
fn header_with(kinds: &[RecordKind]) -> Vec<u8> {
    let records: Vec<Record> = kinds.iter().map(|kind| record_of(*kind)).collect();
    let with_kinds = || records.iter().zip(kinds).map(|(record, kind)| (record.block_count.get(), *kind));
    let data_blocks: u32 = with_kinds().map(|(count, kind)| kind.data_blocks(count)).sum();
    let header = BatchHeader {
        sequence: 10u64.into(),
        mount: 2u64.into(),
        durable_through: 8u64.into(),
        mount_begin: 5u64.into(),
        next_segment: [2u32.into(), 3u32.into()],
        record_count: (records.len() as u16).into(),
        data_blocks: data_blocks.into(),
        ..BatchHeader::default()
    };
    let mut bytes = header.as_bytes().to_vec();
    for (record, (count, kind)) in records.iter().zip(with_kinds()) {
        bytes.extend_from_slice(record.as_bytes());
        bytes.resize(bytes.len() + 4 * kind.tail_words(count), 7);
    }
    bytes
}

/// One of each kind of record, all of them, none, and those of a drive.
pub(super) fn batches() -> Vec<Vec<u8>> {
    let all: Vec<RecordKind> = KINDS.iter().map(|(kind, _)| *kind).collect();
    let made = all.chunks(1).chain([&all[..], &[]]).map(header_with);
    made.chain(opening::headers()).map(|header| [&[SEALED][..], &header].concat()).collect()
}

pub(super) fn expected_of_batches() -> Vec<Outcome> {
    let impossible = [
        "a record of the batch",
        "the number of records of the batch",
        "the number of data blocks of the batch",
        "the stream of the batch",
        "what was durable before the batch",
        "the begin of the mount of the batch",
        "what is reserved in the header of the batch",
    ];
    let impossible = impossible.into_iter().map(|what| ("impossible", what));
    let records = KINDS.iter().map(|(_, name)| ("record", *name));
    let others =
        [("foreign", ""), ("unknown record", ""), ("batch", "without records"), ("batch", "with records")];
    impossible.chain(records).chain(others).collect()
}

/// Behind the first byte stand some changes of an object, and then its page. Slots that it lacks are made up, so that whole
/// pages need no long inputs.
pub(super) fn page(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let (changes, page) = bytes.split_at(bytes.len().min(CHANGES * CHANGE_BYTES));
    let mut page = page.to_vec();
    if choice & SEALED != 0 {
        put_right(&mut page);
    }
    let (mut script, count) = (Script::new(changes), changes.len() / CHANGE_BYTES);
    let changes: [(u16, u64); CHANGES] = std::array::from_fn(|_| {
        let block = script.number() as u16 % BLOCKS as u16;
        let sequence = script.bytes(size_of::<u64>()).first_chunk().copied().unwrap_or_default();
        (block, u64::from_le_bytes(sequence))
    });
    let fault = fault_of(&page);
    let block_count = read_page(&page, &changes[..count], |changed| {
        seen.note("change", if changed.was_there { "of a block that was there" } else { "of a new block" });
        seen.note("told", if changed.is_exact { "exactly" } else { "about" });
    });
    assert_eq!(block_count.is_none(), fault.is_some(), "{fault:?}");
    match block_count {
        None => seen.note("refused", fault.unwrap_or_default()),
        Some(count) if usize::from(count) == BLOCKS => seen.note("page", "of all blocks"),
        Some(_) => seen.note("page", "of some blocks"),
    }
}

fn slot_count(header: &PageHeader) -> usize {
    header.bits.iter().map(|word| word.get().count_ones() as usize).sum()
}

/// What is wrong with a page, if something is.
fn fault_of(page: &[u8]) -> Option<&'static str> {
    let Ok((header, slots)) = PageHeader::ref_from_prefix(page) else { return Some("cut off") };
    let checks = [
        (slot_count(header) > 0, "no block"),
        (slots.len() == SLOT_BYTES * slot_count(header), "size"),
        (u32::from(header.shift) < u64::BITS, "shift"),
        (header.reserved == [0; 7], "reserved"),
        (slots.chunks_exact(SLOT_BYTES).all(may_be_a_slot), "hole"),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|(_, what)| *what)
}

/// Whether a block lies somewhere, or has the checksum of the zeros that it is.
fn may_be_a_slot(slot: &[u8]) -> bool {
    let words: Vec<u32> =
        slot[..8].chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes)).collect();
    words[0] != Location::HOLE.0 || words[1] == ZERO_BLOCK_CRC32C
}

/// Has a page as many slots as it says, and zeros where nothing is said.
fn put_right(page: &mut Vec<u8>) {
    let Ok((header, _)) = PageHeader::mut_from_prefix(page) else { return };
    header.reserved = Default::default();
    let bytes = size_of::<PageHeader>() + SLOT_BYTES * slot_count(header);
    page.truncate(bytes);
    // Their ticks differ.
    page.extend((page.len()..bytes).map(|at| at as u8));
}

pub(super) fn pages() -> Vec<Vec<u8>> {
    let page_of = |bits: [u64; BLOCKS / 64], base: u64, shift: u8| {
        let header =
            PageHeader { bits: bits.map(Into::into), base: base.into(), shift, ..PageHeader::default() };
        header.as_bytes().to_vec()
    };
    let mut some = [0; BLOCKS / 64];
    (some[0], some[9]) = (0b1011, 1 << 63);
    let mut one = [0; BLOCKS / 64];
    one[9] = 1 << 24;
    let ticks = [(1000, 0), (1 << 40, 12), (u64::MAX - 5, 48), (0, 1), (1 << 62, 63)];
    let with_slots = [some, one].into_iter().flat_map(|bits| {
        ticks.map(|(base, shift)| {
            let mut page = page_of(bits, base, shift);
            put_right(&mut page);
            page
        })
    });
    // One of all blocks among some twenty is enough: it takes ten times as long.
    let without_slots = [page_of([0; BLOCKS / 64], 0, 0), page_of([u64::MAX; BLOCKS / 64], 7, 0)];
    // Changes of blocks that are there and of others, soon, long before, and long after.
    let changes = [(0u16, 1010u64), (2, 3), (600, u64::MAX >> 1), (639, 1011)];
    let changes =
        changes.map(|(block, sequence)| [&block.to_le_bytes()[..], &sequence.to_le_bytes()].concat());
    let front = [&[SEALED][..], &changes.concat()].concat();
    // One with something where nothing is to be, which is not put right.
    let mut reserved = page_of(one, 1000, 0);
    put_right(&mut reserved);
    reserved[offset_of!(PageHeader, reserved)] = 1;
    let reserved = [&[0][..], &front[1..], &reserved].concat();
    let hole = |crc32c: u32| {
        let slot = [&Location::HOLE.0.to_le_bytes()[..], &crc32c.to_le_bytes(), &[0; 2]].concat();
        [page_of(one, 1000, 0), slot].concat()
    };
    let holes = [ZERO_BLOCK_CRC32C, !ZERO_BLOCK_CRC32C].map(hole);
    let pages = without_slots.into_iter().chain(with_slots).chain(holes).chain(opening::pages());
    pages.map(|page| [&front[..], &page].concat()).chain([reserved]).collect()
}

pub(super) fn expected_of_pages() -> Vec<Outcome> {
    let pages = ["of some blocks", "of all blocks"].map(|which| ("page", which));
    let refused = ["cut off", "no block", "size", "shift", "reserved", "hole"].map(|why| ("refused", why));
    let changes = ["of a block that was there", "of a new block"].map(|which| ("change", which));
    let told = ["exactly", "about"].map(|how| ("told", how));
    pages.into_iter().chain(refused).chain(changes).chain(told).collect()
}

/// A drive that has nothing but its superblocks.
struct Copies {
    copies: [Block; 2],
    bytes: u64,
}

impl Device for Copies {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let copy = SUPERBLOCK_OFFSETS.iter().position(|place| *place == offset);
        let copy = copy.ok_or_else(|| DeviceError("nothing else is read".into()))?;
        into.copy_from_slice(&self.copies[copy][..into.len()]);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        panic!("whoever looks at a drive does not change it");
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        panic!("whoever looks at a drive does not change it");
    }
}

/// A superblock with its magic and its checksum.
fn sealed(block: &Block) -> Block {
    let mut superblock = Superblock::read_from_bytes(block).expect("a superblock is a block");
    superblock.magic = SUPERBLOCK_MAGIC;
    let mut sealed = [0; BLOCK_BYTES];
    sealed.copy_from_slice(superblock.sealed().as_bytes());
    sealed
}

/// Behind the first byte stand the beginnings of both superblocks.
pub(super) fn superblock(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let (first, second) = bytes.split_at(bytes.len().min(SUPERBLOCK_BYTES));
    let mut copies = [padded(first), padded(second)];
    for (copy, bit) in copies.iter_mut().zip([SEALED, SECOND_SEALED]) {
        if choice & bit != 0 {
            *copy = sealed(copy);
        }
    }
    let bytes = if choice & IS_SHORT != 0 { 512 << 10 } else { 256 << 20 };
    match store::identify(&mut Copies { copies, bytes }) {
        Ok(None) => seen.note("none", ""),
        Ok(Some(_)) => seen.note("identity", ""),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let (what, why) = opening::name_of(&error);
            seen.note(what, why);
        }
    }
}

pub(super) fn superblocks() -> Vec<Vec<u8>> {
    let copy = |version: u32, sequence: u64| {
        let superblock = Superblock {
            magic: SUPERBLOCK_MAGIC,
            version: version.into(),
            cluster: [1; 16],
            osd_uuid: [2; 16],
            segment_bytes: (4u32 << 20).into(),
            device_bytes: (256u64 << 20).into(),
            sequence: sequence.into(),
            ..Superblock::empty()
        };
        superblock.as_bytes()[..SUPERBLOCK_BYTES].to_vec()
    };
    let both = |choice: u8, first: Vec<u8>, second: Vec<u8>| [vec![choice], first, second].concat();
    let (old, new) = (copy(FORMAT_VERSION, 7), copy(FORMAT_VERSION, 8));
    let nothing = vec![0; SUPERBLOCK_BYTES];
    vec![
        both(SEALED | SECOND_SEALED, old.clone(), new.clone()),
        both(SEALED | SECOND_SEALED, new.clone(), old.clone()),
        both(SECOND_SEALED, new.clone(), old.clone()),
        both(SEALED | IS_SHORT, old, nothing.clone()),
        both(0, nothing.clone(), nothing),
    ]
}

pub(super) fn expected_of_superblocks() -> Vec<Outcome> {
    let refused = ["newer format", "older format", "damaged superblocks"].map(|why| ("refused", why));
    refused.into_iter().chain([("none", ""), ("identity", "")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_right_is_taken_by_those_who_read_it() {
        for (kind, header) in KINDS.iter().map(|(kind, _)| (*kind, header_with(&[*kind]))) {
            let [right, wrong] =
                [SEALED, 0].map(|choice| Outcomes::of(batch, &[&[choice][..], &header].concat()));
            assert_eq!(right.times(("record", name_of(kind))), 1, "{kind:?}: {right}");
            assert_eq!(wrong.times(("foreign", "")), 1);
        }
        let both = &superblocks()[0];
        assert_eq!(Outcomes::of(superblock, both).times(("identity", "")), 1);
        let as_it_is = [&[0][..], &both[1..]].concat();
        assert_eq!(Outcomes::of(superblock, &as_it_is).times(("refused", "damaged superblocks")), 1);
        let mut one_bit_more = pages()[2].clone();
        one_bit_more[1 + CHANGES * CHANGE_BYTES] ^= 4;
        assert_eq!(Outcomes::of(page, &one_bit_more).times(("page", "of some blocks")), 1);
        one_bit_more[0] = 0;
        assert_eq!(Outcomes::of(page, &one_bit_more).times(("refused", "size")), 1);
        let whole = Outcomes::of(page, &pages()[1]);
        assert_eq!(whole.times(("page", "of all blocks")), 1, "{whole}");
    }
}
