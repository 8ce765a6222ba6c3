//! One batch: filled in memory, and read back record by record.

use crate::layout::{BatchHeader, Record, RecordKind, STREAMS};
use base::{BLOCK_BYTES, Buffer, Fingerprint, Fingerprints, ObjectKey};
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// A batch that is being filled. Its header block lies at the front of its buffer, the data behind it.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) slot: u32,
    pub(crate) buffer: Buffer,
    header_bytes: usize,
    pub(crate) data_blocks: u32,
    pub(crate) record_count: u16,
    /// Of the data up to there, in bytes from the start of the buffer.
    fingerprint: Fingerprint,
    fingerprinted: usize,
}

/// Data of more than so many bytes is copied in parts of that size, of each of which the fingerprint is taken before: so it comes
/// into the processor's first cache once for both. (What was copied to is not there yet.) Of less data it is cheaper to take the
/// fingerprint of much together.
const PART_BYTES: usize = 16 << 10;

impl OpenBatch {
    /// An empty one, whose fingerprint begins with that.
    pub(crate) fn new(slot: u32, buffer: Buffer, fingerprint: Fingerprint) -> OpenBatch {
        let header_bytes = size_of::<BatchHeader>();
        OpenBatch {
            slot,
            buffer,
            header_bytes,
            data_blocks: 0,
            record_count: 0,
            fingerprint,
            fingerprinted: BLOCK_BYTES,
        }
    }

    /// Whether a record and its data fit, in a batch of at most `blocks_max` blocks.
    pub(crate) fn fits(&self, kind: RecordKind, block_count: u16, blocks_max: u32) -> bool {
        let record_bytes = size_of::<Record>() + 4 * kind.tail_words(block_count);
        self.header_bytes + record_bytes <= BLOCK_BYTES
            && 1 + self.data_blocks + kind.data_blocks(block_count) <= blocks_max
    }

    /// Whether half of what fits is in it, of records or of data.
    pub(crate) fn is_half_full(&self, blocks_max: u32) -> bool {
        self.header_bytes * 2 >= BLOCK_BYTES || self.blocks() * 2 >= blocks_max
    }

    /// Appends a record, the words after it, and its data (which may end within a block). Answers where in the
    /// buffer the data lies.
    pub(crate) fn push<'a>(
        &mut self,
        record: &Record,
        tail: impl IntoIterator<Item = &'a [U32]>,
        data: &[u8],
    ) -> usize {
        let memory = self.buffer.bytes_mut().expect("a batch being filled has one holder");
        let mut put = |bytes: &[u8]| {
            memory[self.header_bytes..self.header_bytes + bytes.len()].copy_from_slice(bytes);
            self.header_bytes += bytes.len();
        };
        put(record.as_bytes());
        for words in tail {
            put(words.as_bytes());
        }
        let start = BLOCK_BYTES * (1 + self.data_blocks as usize);
        let (data_end, end) = (start + data.len(), start + data.len().next_multiple_of(BLOCK_BYTES));
        if data.len() > PART_BYTES {
            self.fingerprint.add(&memory[self.fingerprinted..start]);
            let (whole, rest) =
                data.split_at(data.len() / Fingerprints::CHUNK_BYTES * Fingerprints::CHUNK_BYTES);
            self.fingerprinted = start + whole.len();
            let places = memory[start..self.fingerprinted].chunks_mut(PART_BYTES);
            for (place, part) in places.zip(whole.chunks(PART_BYTES)) {
                self.fingerprint.add(part);
                place.copy_from_slice(part);
            }
            memory[self.fingerprinted..data_end].copy_from_slice(rest);
        } else {
            memory[start..data_end].copy_from_slice(data);
        }
        memory[data_end..end].fill(0);
        self.data_blocks += ((end - start) / BLOCK_BYTES) as u32;
        self.record_count += 1;
        start
    }

    /// Blocks it takes on the drive.
    pub(crate) fn blocks(&self) -> u32 {
        1 + self.data_blocks
    }

    /// Completes the header; nothing changes after that.
    pub(crate) fn seal(&mut self, header: BatchHeader) {
        let end = BLOCK_BYTES * self.blocks() as usize;
        self.fingerprint.add(&self.buffer.bytes()[self.fingerprinted..end]);
        let header = BatchHeader {
            secret: *self.fingerprint.under().secret(),
            data_fingerprint: self.fingerprint.value().into(),
            record_count: self.record_count.into(),
            data_blocks: self.data_blocks.into(),
            ..header
        };
        let memory = self.buffer.bytes_mut().expect("a batch being filled has one holder");
        memory[self.header_bytes..BLOCK_BYTES].fill(0);
        memory[..size_of::<BatchHeader>()].copy_from_slice(header.as_bytes());
        put_fingerprint(&mut memory[..BLOCK_BYTES], self.fingerprint.under());
    }
}

/// Where a header block has its own fingerprint.
const FINGERPRINT: Range<usize> = {
    let at = offset_of!(BatchHeader, fingerprint);
    at..at + size_of::<U64>()
};

/// The fingerprint of a header block, whatever stands in its place there.
fn fingerprint_of(block: &[u8], fingerprints: &Fingerprints) -> u64 {
    let (first, rest) = block[..BLOCK_BYTES].split_at(Fingerprints::CHUNK_BYTES);
    let mut chunk = [0; Fingerprints::CHUNK_BYTES];
    chunk.copy_from_slice(first);
    chunk[FINGERPRINT].fill(0);
    let mut fingerprint = fingerprints.begin();
    fingerprint.add(&chunk);
    fingerprint.add(rest);
    fingerprint.value()
}

/// Puts a header block's fingerprint in its place.
pub(crate) fn put_fingerprint(block: &mut [u8], fingerprints: &Fingerprints) {
    let fingerprint = fingerprint_of(block, fingerprints);
    block[FINGERPRINT].copy_from_slice(&fingerprint.to_le_bytes());
}

/// The header of a block that begins a batch of this formatting and arrived whole, or `None` if it does not.
pub(crate) fn header_of(block: &[u8], fingerprints: &Fingerprints) -> Option<BatchHeader> {
    let (header, _) = BatchHeader::read_from_prefix(block).ok()?;
    // The secret is looked at first: most blocks that are probed do not have it, and a fingerprint costs more.
    let is_ours = header.secret == *fingerprints.secret();
    (is_ours && header.fingerprint.get() == fingerprint_of(block, fingerprints)).then_some(header)
}

/// The header of a block that was verified, or that this store sealed.
pub(crate) fn known_header(block: &[u8]) -> BatchHeader {
    BatchHeader::read_from_prefix(block).expect("a block is larger than a header").0
}

/// One record as it stands in a header block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordView<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) record: Record,
    /// Checksums; of a relocation followed by the old locations.
    pub(crate) tail: &'a [U32],
    /// Where that begins in the block, in bytes.
    pub(crate) tail_at: usize,
    /// The first of its data blocks in the batch.
    pub(crate) data_index: u32,
}

impl RecordView<'_> {
    /// The first of its blocks, which those behind it lie beside.
    pub(crate) fn begin(&self) -> (ObjectKey, u16) {
        (self.record.key(), self.record.first_block.get())
    }
}

/// What is wrong with a header block whose fingerprint was verified: the program that wrote it knew more than this one, or was
/// none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A record of a kind that is not known.
    UnknownRecord(u8),
    /// A field that says what cannot be.
    Impossible(&'static str),
}

/// Looks at every field of a header block before anything is done by it.
pub(crate) fn fault(block: &[u8], header: &BatchHeader) -> Option<Fault> {
    let (mut count, mut end, mut data_blocks) = (0, size_of::<BatchHeader>(), 0u64);
    for view in records(block, header) {
        if !view.record.is_possible(view.kind) {
            return Some(Fault::Impossible("a record of the batch"));
        }
        count += 1;
        end += size_of::<Record>() + size_of_val(view.tail);
        data_blocks += u64::from(view.kind.data_blocks(view.record.block_count.get()));
    }
    if count < header.record_count.get() {
        let kind = block[..BLOCK_BYTES].get(end).copied();
        let unknown = kind.filter(|kind| RecordKind::from_number(*kind).is_none());
        let impossible = Fault::Impossible("the number of records of the batch");
        return Some(unknown.map_or(impossible, Fault::UnknownRecord));
    }
    let checks = [
        (data_blocks == u64::from(header.data_blocks.get()), "the number of data blocks of the batch"),
        (usize::from(header.stream) < STREAMS, "the stream of the batch"),
        (header.durable_through < header.sequence, "what was durable before the batch"),
        (header.mount_begin <= header.sequence, "the begin of the mount of the batch"),
        (header.reserved == 0, "what is reserved in the header of the batch"),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|(_, what)| Fault::Impossible(what))
}

/// The records of a header block whose fingerprint was verified. Ends early at a record that cannot be.
pub(crate) fn records<'a>(
    block: &'a [u8],
    header: &BatchHeader,
) -> impl Iterator<Item = RecordView<'a>> + Clone + use<'a> {
    let mut rest = &block[size_of::<BatchHeader>()..BLOCK_BYTES];
    let mut data_index = 0;
    (0..header.record_count.get()).map_while(move |_| {
        let (record, after) = Record::read_from_prefix(rest).ok()?;
        let kind = RecordKind::from_number(record.kind)?;
        let block_count = record.block_count.get();
        let tail_at = BLOCK_BYTES - after.len();
        let (tail, after) = <[U32]>::ref_from_prefix_with_elems(after, kind.tail_words(block_count)).ok()?;
        rest = after;
        let view = RecordView { kind, record, tail, tail_at, data_index };
        data_index += kind.data_blocks(block_count);
        Some(view)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Fingerprints, OBJECT_BLOCKS, ObjectKey, Sequence};

    const SECRET: [u8; 16] = *b"this one is ours";

    fn record(kind: RecordKind, block_count: u16) -> Record {
        let record = Record::new(kind, ObjectKey::default(), 0, block_count);
        Record { sequence: 7u64.into(), ..record }
    }

    fn empty(buffer: Buffer) -> OpenBatch {
        OpenBatch::new(0, buffer, Fingerprints::new(&SECRET).begin())
    }

    #[test]
    fn a_record_fits_while_header_and_data_have_room_for_it() {
        let batch = empty(Buffer::new(8 * BLOCK_BYTES));
        assert_eq!([7, 8].map(|count| batch.fits(RecordKind::Write, count, 8)), [true, false]);
        // A checksum for each block, in what the header and the record leave of a block.
        let words = (BLOCK_BYTES - size_of::<BatchHeader>() - size_of::<Record>()) as u16 / 4;
        assert_eq!([words, words + 1].map(|count| batch.fits(RecordKind::Write, count, 2000)), [true, false]);
        assert!(batch.fits(RecordKind::Zero, OBJECT_BLOCKS as u16, 1));
    }

    #[test]
    fn a_batch_is_half_full_of_data_or_of_records() {
        let mut batch = empty(Buffer::new(8 * BLOCK_BYTES));
        batch.push(&record(RecordKind::Page, 2), [], &[1; 2 * BLOCK_BYTES]);
        assert!(!batch.is_half_full(8) && batch.is_half_full(6));
        batch.push(&record(RecordKind::Page, 1), [], &[1; BLOCK_BYTES]);
        assert_eq!((batch.is_half_full(8), batch.blocks(), batch.record_count), (true, 4, 2));
        let mut batch = empty(Buffer::new(BLOCK_BYTES));
        let half = (BLOCK_BYTES / 2 - size_of::<BatchHeader>()) / size_of::<Record>();
        assert_eq!(size_of::<BatchHeader>() + half * size_of::<Record>(), BLOCK_BYTES / 2);
        for _ in 0..half {
            assert!(!batch.is_half_full(8));
            batch.push(&record(RecordKind::Zero, 1), [], &[]);
        }
        assert!(batch.is_half_full(8));
    }

    #[test]
    fn data_of_any_size_is_there_and_in_the_fingerprint_in_the_order_in_which_it_came() {
        let mut batch = empty(Buffer::new(41 * BLOCK_BYTES));
        let data: Vec<u8> = (0..40 * BLOCK_BYTES).map(|at| (at / 100) as u8).collect();
        // Small, just as large as a part, a little larger, and large; of which the last end within a block.
        let (mut at, mut expected) = (0, Vec::new());
        for bytes in [BLOCK_BYTES, 4 * BLOCK_BYTES, 5 * BLOCK_BYTES, 100, PART_BYTES + 7, 9 * BLOCK_BYTES + 1]
        {
            let place = batch.push(&record(RecordKind::Page, 1), [], &data[at..at + bytes]);
            assert_eq!(place, BLOCK_BYTES + expected.len());
            expected.extend_from_slice(&data[at..at + bytes]);
            expected.resize(expected.len().next_multiple_of(BLOCK_BYTES), 0);
            at += bytes;
        }
        batch.seal(BatchHeader::default());
        let bytes = batch.buffer.bytes();
        assert_eq!(bytes[BLOCK_BYTES..][..expected.len()], expected);
        let (header, _) = BatchHeader::read_from_prefix(bytes).unwrap();
        assert_eq!(header.data_fingerprint.get(), Fingerprints::new(&SECRET).of(&expected));
    }

    /// A batch of two records in memory that is full of ones: a page that ends within a block, and a write.
    fn sealed() -> (Vec<u8>, BatchHeader) {
        let mut memory = Buffer::new(4 * BLOCK_BYTES);
        memory.bytes_mut().unwrap().fill(0xff);
        let mut batch = empty(memory);
        let page = Record { sequence: 0u64.into(), bytes: 10u32.into(), ..record(RecordKind::Page, 1) };
        assert_eq!(batch.push(&page, [], &[1; 10]), BLOCK_BYTES);
        let checksums = [U32::new(5), U32::new(6)];
        let at = batch.push(&record(RecordKind::Write, 2), [&checksums[..]], &[2; 2 * BLOCK_BYTES]);
        assert_eq!((at, batch.blocks()), (2 * BLOCK_BYTES, 4));
        let header = BatchHeader {
            sequence: 9u64.into(),
            mount: 1u64.into(),
            durable_through: 8u64.into(),
            mount_begin: 9u64.into(),
            ..BatchHeader::default()
        };
        batch.seal(header);
        let bytes = batch.buffer.bytes().to_vec();
        let header = header_of(&bytes, &Fingerprints::new(&SECRET)).expect("it was just sealed");
        assert_eq!(header.data_fingerprint.get(), Fingerprints::new(&SECRET).of(&bytes[BLOCK_BYTES..]));
        (bytes, header)
    }

    #[test]
    fn nothing_of_what_the_memory_held_before_gets_to_the_drive() {
        let (bytes, header) = sealed();
        assert_eq!((header.record_count.get(), header.data_blocks.get()), (2, 3));
        let records_end = size_of::<BatchHeader>() + 2 * size_of::<Record>() + 2 * size_of::<U32>();
        assert!(bytes[records_end..BLOCK_BYTES].iter().all(|byte| *byte == 0));
        let (page, rest) = bytes[BLOCK_BYTES..].split_at(BLOCK_BYTES);
        assert_eq!((&page[..10], rest), (&[1; 10][..], &[2; 2 * BLOCK_BYTES][..]));
        assert!(page[10..].iter().all(|byte| *byte == 0));
        let views: Vec<_> = records(&bytes, &header).collect();
        assert_eq!(
            [0, 1].map(|index| (views[index].kind, views[index].data_index)),
            [(RecordKind::Page, 0), (RecordKind::Write, 1)]
        );
        let words = |index: usize| views[index].tail.iter().map(|word| word.get()).collect::<Vec<_>>();
        assert_eq!((words(0), words(1)), (vec![], vec![5, 6]));
        assert_eq!(views[1].record.position().1, Sequence(7));
    }

    #[test]
    fn a_block_is_a_header_by_its_secret_and_the_fingerprint_of_all_of_it() {
        let (bytes, _) = sealed();
        let ours = Fingerprints::new(&SECRET);
        assert!(header_of(&bytes, &Fingerprints::new(b"and another one!")).is_none());
        assert!(header_of(&bytes[..size_of::<BatchHeader>() - 1], &ours).is_none());
        let with = |change: &dyn Fn(&mut [u8])| {
            let mut block = bytes[..BLOCK_BYTES].to_vec();
            change(&mut block);
            header_of(&block, &ours).is_some()
        };
        assert!(with(&|_| {}));
        for at in 0..BLOCK_BYTES {
            assert!(!with(&|block| block[at] ^= 1), "byte {at}");
        }
        // Right is what says nothing else, and has the fingerprint of what it says.
        let secret_at = offset_of!(BatchHeader, secret);
        for (at, expected) in [(secret_at - 1, true), (secret_at, false), (secret_at + 16, true)] {
            let changed = with(&|block| {
                block[at] ^= 1;
                put_fingerprint(block, &ours);
            });
            assert_eq!(changed, expected, "byte {at}");
        }
    }

    #[test]
    fn each_field_of_a_header_is_looked_at_and_what_is_wrong_is_said() {
        let (bytes, header) = sealed();
        assert_eq!(fault(&bytes, &header), None);
        let impossible = |header: BatchHeader, what: &'static str| {
            assert_eq!(fault(&bytes, &header), Some(Fault::Impossible(what)));
        };
        for data_blocks in [2u32, 4] {
            let header = BatchHeader { data_blocks: data_blocks.into(), ..header };
            impossible(header, "the number of data blocks of the batch");
        }
        assert_eq!(fault(&bytes, &BatchHeader { stream: 1, ..header }), None);
        impossible(BatchHeader { stream: 2, ..header }, "the stream of the batch");
        impossible(
            BatchHeader { durable_through: header.sequence, ..header },
            "what was durable before the batch",
        );
        impossible(
            BatchHeader { mount_begin: 10u64.into(), ..header },
            "the begin of the mount of the batch",
        );
        impossible(BatchHeader { reserved: 1, ..header }, "what is reserved in the header of the batch");
        // Behind its records the block is full of zeros, which is no kind.
        let more = BatchHeader { record_count: 3u16.into(), ..header };
        assert_eq!(fault(&bytes, &more), Some(Fault::UnknownRecord(0)));
        let mut block = bytes[..BLOCK_BYTES].to_vec();
        let third = size_of::<BatchHeader>() + 2 * size_of::<Record>() + 2 * size_of::<U32>();
        block[third] = 99;
        assert_eq!(fault(&block, &more), Some(Fault::UnknownRecord(99)));
        // A kind that is known, with more words than there is room for.
        let cut = record(RecordKind::Push, 1000);
        block[third..third + size_of::<Record>()].copy_from_slice(cut.as_bytes());
        assert_eq!(fault(&block, &more), Some(Fault::Impossible("the number of records of the batch")));
        let beyond = record(RecordKind::Zero, OBJECT_BLOCKS as u16 + 1);
        block[third..third + size_of::<Record>()].copy_from_slice(beyond.as_bytes());
        assert_eq!(fault(&block, &more), Some(Fault::Impossible("a record of the batch")));
    }
}
