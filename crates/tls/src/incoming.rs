//! What came over a connection: records that were not opened yet, and plaintext that was not taken yet.

use crate::end::End;
use crate::{CIPHERTEXT_BYTES_MAX, HEADER_BYTES};
use std::ops::Range;

/// Room for one record of the largest size, and for the beginning of another.
const BYTES_MIN: usize = 32 << 10;
/// Room for what a connection may bring at once.
const BYTES_MAX: usize = 256 << 10;
/// The type of every record after a handshake, whatever is in it (RFC 8446, section 5.2).
const APPLICATION_DATA: u8 = 23;
/// The version in every header (RFC 8446, section 5.1).
const VERSION: [u8; 2] = [3, 3];

const _: () = assert!(BYTES_MIN >= HEADER_BYTES + CIPHERTEXT_BYTES_MAX);

/// Invariant: `opened` lies before `sealed`, and nothing moves while something is opened.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    memory: Vec<u8>,
    opened: Range<usize>,
    sealed: Range<usize>,
    /// The last receipt left no room: more came at once than fits.
    was_filled: bool,
}

impl Incoming {
    /// Where the next bytes go: never empty once everything opened was taken and no whole record is left.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.opened.is_empty() {
            if self.memory.len() - self.sealed.end < self.memory.len() / 2 || self.sealed.is_empty() {
                self.memory.copy_within(self.sealed.clone(), 0);
                self.sealed = 0..self.sealed.len();
            }
            let wanted = if self.was_filled { self.memory.len() * 2 } else { BYTES_MIN };
            let wanted = wanted.clamp(BYTES_MIN, BYTES_MAX);
            if self.memory.len() < wanted {
                self.memory.resize(wanted, 0);
            }
            self.was_filled = false;
        }
        &mut self.memory[self.sealed.end..]
    }

    pub(crate) fn received(&mut self, count: usize) {
        assert!(self.sealed.end + count <= self.memory.len(), "only what was given to receive can be filled");
        self.sealed.end += count;
        self.was_filled |= count > 0 && self.sealed.end == self.memory.len();
    }

    /// Whether something came that was not taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.opened.is_empty() && self.sealed.is_empty()
    }

    /// The body of the next record, to be opened where it lies. `None` until all of it has come.
    pub(crate) fn next_record(&mut self) -> Result<Option<&mut [u8]>, End> {
        let Some((header, _)) = self.memory[self.sealed.clone()].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [kind, major, minor, high, low] = *header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if kind != APPLICATION_DATA || [major, minor] != VERSION || length > CIPHERTEXT_BYTES_MAX {
            return Err(End::NoRecord);
        }
        if self.sealed.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        let start = self.sealed.start + HEADER_BYTES;
        self.sealed.start = start + length;
        Ok(Some(&mut self.memory[start..start + length]))
    }

    /// The record that was taken last had so much plaintext at its front.
    pub(crate) fn opened(&mut self, record_bytes: usize, plaintext_bytes: usize) {
        assert!(self.opened.is_empty(), "records are opened one after the other");
        let start = self.sealed.start - record_bytes;
        self.opened = start..start + plaintext_bytes;
    }

    /// Moves plaintext out, and answers how much.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.opened.len());
        into[..count].copy_from_slice(&self.memory[self.opened.start..self.opened.start + count]);
        self.opened.start += count;
        count
    }
}
