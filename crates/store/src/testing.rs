//! For tests elsewhere: a drive in memory, and what is read of a drive, piece by piece, for whoever feeds it bytes that no
//! program of ours wrote.

use crate::batch::{Fault, fault, header_of, put_fingerprint, records};
use crate::device::{Device, DeviceError};
use crate::index::{Entry, ObjectIndex};
use crate::layout::{BatchHeader, RecordKind};
use base::{Fingerprints, Sequence};
use std::mem::offset_of;

/// A drive in memory, of as many bytes.
#[derive(Clone, Debug)]
pub struct Memory(pub Vec<u8>);

impl Device for Memory {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_ahead_bytes(&self) -> usize {
        64 << 10
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// What a block is that may begin a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchRead {
    /// None of this formatting.
    Foreign,
    /// It has a record of that unknown kind.
    UnknownRecord(u8),
    /// It says what cannot be.
    Impossible(&'static str),
    /// A batch with records of these kinds.
    Batch(Vec<RecordKind>),
}

/// The header of a block that begins a batch of the formatting with these fingerprints.
#[must_use]
pub fn batch_header(block: &[u8], fingerprints: &Fingerprints) -> Option<BatchHeader> {
    header_of(block, fingerprints)
}

/// Reads a block as a start does, of a drive with these fingerprints.
///
/// # Panics
/// If a header that was taken for possible does not fit its records; if `block` is shorter than a block.
#[must_use]
pub fn read_batch(block: &[u8], fingerprints: &Fingerprints) -> BatchRead {
    let Some(header) = header_of(block, fingerprints) else { return BatchRead::Foreign };
    match fault(block, &header) {
        Some(Fault::UnknownRecord(kind)) => return BatchRead::UnknownRecord(kind),
        Some(Fault::Impossible(what)) => return BatchRead::Impossible(what),
        None => {}
    }
    let (mut kinds, mut data_blocks) = (Vec::new(), 0);
    for view in records(block, &header) {
        let block_count = view.record.block_count.get();
        assert_eq!(view.data_index, data_blocks, "the data of a record lies behind that of those before it");
        assert_eq!(view.tail.len(), view.kind.tail_words(block_count), "a record has all its words");
        data_blocks += view.kind.data_blocks(block_count);
        kinds.push(view.kind);
    }
    assert_eq!(kinds.len(), usize::from(header.record_count.get()), "all records are there");
    assert_eq!(data_blocks, header.data_blocks.get(), "all data belong to records");
    BatchRead::Batch(kinds)
}

/// Makes a block one that begins a batch of the formatting with these fingerprints, as far as secret and fingerprint tell.
///
/// # Panics
/// If it is shorter than a block.
pub fn seal_batch(block: &mut [u8], fingerprints: &Fingerprints) {
    let secret = fingerprints.secret();
    block[offset_of!(BatchHeader, secret)..][..secret.len()].copy_from_slice(secret);
    put_fingerprint(block, fingerprints);
}

/// What came of a change of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChanged {
    /// It was there before.
    pub was_there: bool,
    /// When it changed is known exactly.
    pub is_exact: bool,
}

/// Reads an object's page as a start does, and has these blocks change at those sequences. Answers how many blocks the page
/// had, or `None` if it is refused; what each change did is told to `changed`.
///
/// # Panics
/// If the page is written otherwise than it was read, or a block is said to have changed before it did; if a block is none
/// that an object has.
pub fn read_page(bytes: &[u8], changes: &[(u16, u64)], mut changed: impl FnMut(BlockChanged)) -> Option<u16> {
    let mut object = ObjectIndex::from_page(bytes)?;
    let mut again = Vec::with_capacity(bytes.len());
    object.to_page(&mut again);
    assert!(again == bytes, "a page is written as it was read");
    let block_count = object.block_count();
    for (block, sequence) in changes {
        let was_there = object.get(*block).is_some();
        object.set(*block, Entry { location: 0, crc32c: 0 }, Sequence(*sequence));
        assert!(object.changed(*block) >= Some(Sequence(*sequence)), "it changed at {sequence}: {object:?}");
        let exact = object.exactly_changed(*block);
        assert!(exact.is_none_or(|exact| exact.0 == *sequence), "it changed at {sequence}: {object:?}");
        changed(BlockChanged { was_there, is_exact: exact.is_some() });
    }
    // Meanwhile ticks may have been counted anew.
    let last_changed = Some(object.last_changed());
    for (at, (block, sequence)) in changes.iter().enumerate() {
        let is_newest = changes[at + 1..].iter().all(|(later, _)| later != block);
        let told = object.changed(*block);
        assert!(!is_newest || told >= Some(Sequence(*sequence)), "it changed at {sequence}: {object:?}");
        assert!(told <= last_changed, "no block changed after the last one: {object:?}");
    }
    object.to_page(&mut again);
    assert!(ObjectIndex::from_page(&again).is_some(), "what is written can be read");
    Some(block_count)
}
