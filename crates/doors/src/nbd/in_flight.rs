//! The requests of one connection that were taken in and not yet answered, each cut into pieces.
//!
//! A piece never crosses a multiple of its request's piece size, counted from the start of the export.
//! So the pieces of a request follow from its range: what is kept of them is how many are out.

use super::reply::Answered;
use super::vocabulary::{Failure, ReadPart};
use base::Buffer;
use std::ops::Range;

/// Names a piece of a request that was handed out, until it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId {
    /// Where its request is kept.
    pub(super) slot: u16,
    /// Which piece of its request it is.
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What kind of answer a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The data, a chunk for each piece as it comes.
    Chunks,
    /// The data in one go, once all of it is there.
    Whole,
    /// Only whether it worked.
    Acknowledgement,
    /// Extents, or only the first.
    Extents { first_only: bool },
}

/// Read data that waits for the rest of its request.
#[derive(Debug)]
pub(super) enum Held {
    Shared(Buffer, Range<usize>),
    Copied(Vec<u8>),
    Zeros(usize),
}

/// What a request is, as far as it concerns its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Whose answer it is, and where it starts.
    pub answered: Answered,
    /// In bytes, not 0.
    pub length: u64,
    /// What it gets.
    pub answer: Answer,
    /// Pieces end at multiples of this many bytes of the export.
    pub piece_bytes: u64,
    /// The most that one piece counts against the bytes in flight.
    pub charge_bytes_max: u64,
}

/// A request.
#[derive(Debug)]
pub(super) struct Entry {
    pub plan: Plan,
    /// Pieces handed out and not completed.
    pub outstanding: u32,
    /// Whether no more pieces will be handed out.
    pub issued: bool,
    /// The first thing that went wrong.
    pub failure: Option<Failure>,
    /// With the piece's number and the part's number in it, which give their order.
    pub held: Vec<(u32, u32, Held)>,
    /// Bytes counted as in flight for it.
    pub charged_bytes: u64,
    generation: u32,
    used: bool,
}

impl Entry {
    /// How many pieces it has.
    pub fn pieces(&self) -> u32 {
        let Plan { answered: Answered { offset, .. }, length, piece_bytes, .. } = self.plan;
        let end = (offset + length).div_ceil(piece_bytes);
        u32::try_from(end - offset / piece_bytes).expect("pieces are large enough to be numbered")
    }

    /// Offset and length of a piece.
    pub fn piece(&self, index: u32) -> (u64, u64) {
        let Plan { answered: Answered { offset, .. }, length, piece_bytes, .. } = self.plan;
        let start = (offset / piece_bytes + u64::from(index)) * piece_bytes;
        let end = start.saturating_add(piece_bytes).min(offset + length);
        let start = start.max(offset);
        assert!(start < end, "piece {index} lies within its request");
        (start, end - start)
    }

    /// What a piece counts against the bytes in flight.
    pub fn piece_charge(&self, index: u32) -> u64 {
        self.piece(index).1.min(self.plan.charge_bytes_max)
    }

    /// Whether all is done but the last word.
    pub fn is_complete(&self) -> bool {
        self.issued && self.outstanding == 0
    }

    /// Notes what went wrong, unless something did before.
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Keeps a part of a piece's data until the rest is there.
    pub fn hold(&mut self, piece: u32, ordinal: u32, part: ReadPart<'_>) {
        let held = match part {
            ReadPart::Shared(buffer, range) => Held::Shared(buffer, range),
            ReadPart::Bytes(bytes) => Held::Copied(bytes.to_vec()),
            ReadPart::Zeros(count) => Held::Zeros(count),
        };
        self.held.push((piece, ordinal, held));
    }
}

/// All requests of a connection. Slots are used again, so that a busy connection allocates nothing.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    entries: Vec<Entry>,
    free: Vec<u16>,
}

impl InFlight {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Takes a request in, with nothing handed out yet.
    pub fn insert(&mut self, plan: Plan) -> u16 {
        let Some(slot) = self.free.pop() else {
            let slot = u16::try_from(self.entries.len()).expect("requests in flight are limited");
            self.entries.push(Entry {
                plan,
                outstanding: 0,
                issued: false,
                failure: None,
                held: Vec::new(),
                charged_bytes: 0,
                generation: 0,
                used: true,
            });
            return slot;
        };
        let entry = self.entry_mut(slot);
        assert!(!entry.used && entry.held.is_empty() && entry.charged_bytes == 0, "a free slot is empty");
        (entry.plan, entry.outstanding, entry.issued, entry.used) = (plan, 0, false, true);
        entry.generation = entry.generation.wrapping_add(1);
        slot
    }

    /// The request in a slot.
    pub fn entry_mut(&mut self, slot: u16) -> &mut Entry {
        &mut self.entries[usize::from(slot)]
    }

    /// Hands a piece out.
    pub fn issue(&mut self, slot: u16, index: u32) -> PieceId {
        let entry = self.entry_mut(slot);
        assert!(entry.used && !entry.issued, "pieces are handed out before the last of them was");
        entry.outstanding += 1;
        entry.issued = index + 1 == entry.pieces();
        PieceId { slot, index, generation: entry.generation }
    }

    /// The request of a piece that comes back.
    pub fn take_back(&mut self, id: PieceId) -> &mut Entry {
        let entry = self.entry_mut(id.slot);
        assert!(
            entry.used && entry.generation == id.generation && entry.outstanding > 0,
            "a piece is completed once"
        );
        entry.outstanding -= 1;
        entry
    }

    /// Forgets an answered request.
    pub fn remove(&mut self, slot: u16) {
        let entry = self.entry_mut(slot);
        assert!(entry.used && entry.is_complete(), "only an answered request is forgotten");
        assert_eq!(entry.charged_bytes, 0, "an answered request counts no more");
        entry.used = false;
        entry.failure = None;
        entry.held.clear();
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::protocol::Framing;

    fn plan(offset: u64, length: u64, piece_bytes: u64) -> Plan {
        Plan {
            answered: Answered { cookie: 1, offset, framing: Framing::Simple },
            length,
            answer: Answer::Acknowledgement,
            piece_bytes,
            charge_bytes_max: u64::MAX,
        }
    }

    #[test]
    fn pieces_end_at_multiples_of_the_piece_size_and_cover_the_request() {
        for (offset, length) in [(0, 1), (0, 4096), (4095, 2), (5, 4091), (5, 4092), (8191, 12_290)] {
            let mut requests = InFlight::default();
            let slot = requests.insert(plan(offset, length, 4096));
            let entry = requests.entry_mut(slot);
            let mut at = offset;
            for index in 0..entry.pieces() {
                let (start, bytes) = entry.piece(index);
                assert_eq!(start, at);
                assert_eq!(start / 4096, (start + bytes - 1) / 4096);
                at += bytes;
            }
            assert_eq!(at, offset + length);
        }
    }

    #[test]
    #[should_panic(expected = "a piece is completed once")]
    fn a_piece_of_an_earlier_request_in_the_slot_is_noticed() {
        let mut requests = InFlight::default();
        let slot = requests.insert(plan(0, 1, 4096));
        let old = requests.issue(slot, 0);
        requests.take_back(old);
        requests.remove(slot);
        let slot = requests.insert(plan(0, 1, 4096));
        requests.issue(slot, 0);
        requests.take_back(old);
    }
}
