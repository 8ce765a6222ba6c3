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
    /// Where the next bytes go: never empty once everything opened was taken and no whole record is left. The memory is no
    /// larger than `bytes_max`, or as one record needs it; what is beyond is given back when nothing is in it.
    pub(crate) fn space(&mut self, bytes_max: usize) -> &mut [u8] {
        if self.opened.is_empty() {
            if self.memory.len() - self.sealed.end < self.memory.len() / 2 || self.sealed.is_empty() {
                self.memory.copy_within(self.sealed.clone(), 0);
                self.sealed = 0..self.sealed.len();
            }
            let wanted = if self.was_filled { self.memory.len() * 2 } else { BYTES_MIN };
            let bytes_max = bytes_max.clamp(BYTES_MIN, BYTES_MAX);
            let wanted = wanted.clamp(BYTES_MIN, bytes_max);
            if self.memory.len() < wanted {
                self.memory.resize(wanted, 0);
            } else if self.memory.len() > bytes_max && self.sealed.is_empty() {
                self.memory = vec![0; bytes_max];
            }
            self.was_filled = false;
        }
        &mut self.memory[self.sealed.end..]
    }

    /// What came before is there: plaintext, and records behind it.
    pub(crate) fn begin_with(&mut self, plaintext: &[u8], sealed: &[u8]) {
        assert!(self.is_empty(), "it begins once");
        let count = plaintext.len() + sealed.len();
        self.memory = [plaintext, sealed].concat();
        // Room for the record of which the beginning is there.
        self.memory.resize(count.next_multiple_of(BYTES_MIN).max(BYTES_MIN) + BYTES_MIN, 0);
        (self.opened, self.sealed) = (0..plaintext.len(), plaintext.len()..count);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The space is filled with records, which are all taken. Answers how much it was.
    fn fill_and_take(incoming: &mut Incoming, bytes_max: usize) -> usize {
        let space = incoming.space(bytes_max);
        let filled = space.len();
        for record in space.chunks_exact_mut(1024) {
            record[..HEADER_BYTES].copy_from_slice(&[APPLICATION_DATA, 3, 3, 3, 251]);
        }
        incoming.received(filled);
        while let Some(body) = incoming.next_record().expect("it is a record") {
            let bytes = body.len();
            incoming.opened(bytes, bytes);
            assert_eq!(incoming.take(&mut [0; 1024]), 1024 - HEADER_BYTES);
        }
        assert!(incoming.is_empty());
        filled
    }

    #[test]
    fn what_came_before_is_read_before_what_comes() {
        let record: Vec<u8> = [&[APPLICATION_DATA, 3, 3, 0, 4][..], b"next"].concat();
        for cut in 0..=record.len() {
            let mut incoming = Incoming::default();
            incoming.begin_with(b"first", &record[..cut]);
            let mut taken = [0; 8];
            assert_eq!((incoming.take(&mut taken[..2]), incoming.take(&mut taken[2..])), (2, 3));
            assert_eq!(&taken[..5], b"first");
            assert_eq!(incoming.next_record().unwrap().is_some(), cut == record.len());
            if cut < record.len() {
                incoming.space(usize::MAX)[..record.len() - cut].copy_from_slice(&record[cut..]);
                incoming.received(record.len() - cut);
                assert_eq!(incoming.next_record().unwrap().map(|body| body.to_vec()), Some(b"next".to_vec()));
            }
        }
    }

    #[test]
    fn memory_grows_while_it_is_filled_and_is_given_back_when_less_is_allowed() {
        let mut incoming = Incoming::default();
        let grown = [(); 5].map(|()| fill_and_take(&mut incoming, usize::MAX));
        assert_eq!(grown, [BYTES_MIN, 2 * BYTES_MIN, 4 * BYTES_MIN, BYTES_MAX, BYTES_MAX]);
        // The first bytes of a record stay where they are.
        incoming.space(usize::MAX)[0] = APPLICATION_DATA;
        incoming.received(1);
        assert_eq!(incoming.space(0).len(), BYTES_MAX - 1);
        incoming.sealed = 0..0;
        assert_eq!(fill_and_take(&mut incoming, 2 * BYTES_MIN), 2 * BYTES_MIN);
        assert_eq!(fill_and_take(&mut incoming, 2 * BYTES_MIN), 2 * BYTES_MIN);
        assert_eq!(fill_and_take(&mut incoming, 0), BYTES_MIN);
    }
}
