//! The segments of a drive: which can be written, and what still lies in the others.

use crate::actions::Sabotage;
use crate::index::Entry;
use crate::layout::{Cursor, NO_SEGMENT, Piece, SEGMENTS_OFFSET};
use base::BLOCK_BYTES;
use std::collections::VecDeque;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    Free,
    /// Announced as a stream's next.
    Next,
    /// A stream appends to it.
    Open,
    /// Full.
    Sealed,
    /// Sealed, with a header that does not verify: what is live in it stays there.
    Quarantined,
    /// Sealed, and could not be read: what is live in it stays there until that is tried again.
    Unread,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    /// Data blocks that the index points at.
    pub(crate) live: u32,
    /// Blocks of checkpoint pages that a start may need.
    pub(crate) pages: u32,
    /// Blocks appended.
    pub(crate) written: u32,
    /// Batches in it that are not durable yet; and the one with which its stream left it, while that is not.
    pub(crate) in_flight: u32,
    /// Reads under way.
    pub(crate) pins: u32,
    /// The newest batch in it.
    pub(crate) last_sequence: u64,
}

const FRESH: Segment = Segment {
    state: SegmentState::Free,
    live: 0,
    pages: 0,
    written: 0,
    in_flight: 0,
    pins: 0,
    last_sequence: 0,
};

/// All of them.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) all: Vec<Segment>,
    pub(crate) blocks_each: u32,
    free: VecDeque<u32>,
    /// Blocks of checkpoint pages in all of them.
    pub(crate) pages_blocks: u64,
    /// The newest complete checkpoint holds all batches up to this one.
    pub(crate) covers: u64,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Segments {
    pub(crate) fn new(device_bytes: u64, segment_bytes: u32) -> Segments {
        let count = (device_bytes.saturating_sub(SEGMENTS_OFFSET) / u64::from(segment_bytes)) as usize;
        Segments {
            all: vec![FRESH; count],
            blocks_each: segment_bytes / BLOCK_BYTES as u32,
            free: VecDeque::new(),
            pages_blocks: 0,
            covers: 0,
            sabotage: None,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.all.len() as u32
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// The block number on the drive of a block of a segment.
    pub(crate) fn location(&self, segment: u32, block: u32) -> u32 {
        (SEGMENTS_OFFSET / BLOCK_BYTES as u64) as u32 + segment * self.blocks_each + block
    }

    /// The same of where a stream goes on.
    pub(crate) fn location_of(&self, place: Cursor) -> u32 {
        self.location(place.segment.get(), place.block.get())
    }

    /// The offset in bytes of a block of a segment.
    pub(crate) fn offset(&self, segment: u32, block: u32) -> u64 {
        u64::from(self.location(segment, block)) * BLOCK_BYTES as u64
    }

    /// The segment a block of the drive lies in, or `None` if in none.
    pub(crate) fn of(&self, location: u32) -> Option<u32> {
        let first = (SEGMENTS_OFFSET / BLOCK_BYTES as u64) as u32;
        let segment = location.checked_sub(first)? / self.blocks_each;
        (segment < self.count()).then_some(segment)
    }

    /// Whether a batch may have announced that as where a stream goes on.
    pub(crate) fn may_be_next(&self, segment: u32) -> bool {
        segment == NO_SEGMENT || segment < self.count()
    }

    pub(crate) fn at(&mut self, location: u32) -> &mut Segment {
        let segment = self.of(location).expect("locations in the index lie in segments");
        &mut self.all[segment as usize]
    }

    /// A piece of a checkpoint lies there.
    pub(crate) fn piece_was_placed(&mut self, piece: &Piece) {
        self.at(piece.location.get()).pages += piece.blocks();
        self.pages_blocks += u64::from(piece.blocks());
    }

    /// No start needs it any more.
    pub(crate) fn piece_died(&mut self, piece: &Piece) {
        self.at(piece.location.get()).pages -= piece.blocks();
        self.pages_blocks -= u64::from(piece.blocks());
    }

    /// Takes a free segment to be a stream's next, if more than `keep` are free.
    pub(crate) fn take(&mut self, keep: u32) -> Option<u32> {
        if self.free_count() <= keep {
            return None;
        }
        let segment = self.free.pop_front()?;
        self.all[segment as usize] = Segment { state: SegmentState::Next, ..FRESH };
        Some(segment)
    }

    /// Up to where something was appended to a segment, or may have been: of one that a start found full, nobody counted.
    pub(crate) fn end_of(&self, index: u32) -> u32 {
        let written = self.all[index as usize].written;
        if written == 0 { self.blocks_each } else { written }
    }

    /// Whether it becomes free as soon as no block in it is live, and no checkpoint must be written before.
    pub(crate) fn frees_at_once(&self, index: u32) -> bool {
        let segment = &self.all[index as usize];
        segment.pages == 0 && segment.last_sequence <= self.covers
    }

    /// Whether nothing in it is live, or needed by a start.
    pub(crate) fn is_unused(&self, index: u32) -> bool {
        self.all[index as usize].live == 0 && self.frees_at_once(index)
    }

    /// Makes a sealed segment free if nothing needs it any more.
    pub(crate) fn try_free(&mut self, index: u32) {
        let segment = &self.all[index as usize];
        let is_empty = segment.live == 0 || self.sabotage == Some(Sabotage::ReuseLiveSegment);
        let is_read = segment.pins > 0 && self.sabotage != Some(Sabotage::ReusePinnedSegment);
        let is_unused = is_empty && segment.pages == 0 && segment.in_flight == 0 && !is_read;
        if segment.state != SegmentState::Sealed || !is_unused || segment.last_sequence > self.covers {
            return;
        }
        // Nobody reads it, unless that is what is to be noticed.
        self.all[index as usize] = Segment { pins: segment.pins, ..FRESH };
        self.free.push_back(index);
    }

    /// Looks at all segments, after a checkpoint or when opened.
    pub(crate) fn free_all_unused(&mut self) {
        for index in 0..self.count() {
            self.try_free(index);
        }
    }

    /// What could not be read may be tried again.
    pub(crate) fn retry_unread(&mut self) {
        for segment in self.all.iter_mut().filter(|segment| segment.state == SegmentState::Unread) {
            segment.state = SegmentState::Sealed;
        }
    }

    /// What the index had of a block is gone.
    pub(crate) fn entry_died(&mut self, entry: Entry) {
        if !entry.is_hole() {
            self.block_died(entry.location);
        }
    }

    /// One block less is live there.
    pub(crate) fn block_died(&mut self, location: u32) {
        let index = self.of(location).expect("locations in the index lie in segments");
        let segment = &mut self.all[index as usize];
        assert!(segment.live > 0, "a block that dies was live");
        segment.live -= 1;
        let is_full =
            matches!(segment.state, SegmentState::Sealed | SegmentState::Quarantined | SegmentState::Unread);
        if segment.live == 0 && is_full {
            segment.state = SegmentState::Sealed;
            self.try_free(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u32 = 16;
    const FIRST: u32 = (SEGMENTS_OFFSET / BLOCK_BYTES as u64) as u32;

    /// Eight segments, all of them full, in which nothing is.
    fn sealed() -> Segments {
        let bytes = BLOCKS * BLOCK_BYTES as u32;
        let mut segments = Segments::new(SEGMENTS_OFFSET + 8 * u64::from(bytes), bytes);
        segments.all.iter_mut().for_each(|segment| segment.state = SegmentState::Sealed);
        segments
    }

    #[test]
    fn a_block_of_a_drive_lies_in_one_segment_or_in_none() {
        let segments = sealed();
        let of = |location: u32| segments.of(location);
        assert_eq!([0, FIRST - 1, FIRST + 8 * BLOCKS].map(of), [None, None, None]);
        let within = [0, BLOCKS - 1, BLOCKS, 8 * BLOCKS - 1].map(|block| of(FIRST + block));
        assert_eq!(within, [Some(0), Some(0), Some(1), Some(7)]);
        assert_eq!(segments.location(3, 5), FIRST + 3 * BLOCKS + 5);
        assert_eq!(segments.offset(3, 5), SEGMENTS_OFFSET + 53 * BLOCK_BYTES as u64);
        assert_eq!([0, 7, 8, NO_SEGMENT].map(|next| segments.may_be_next(next)), [true, true, false, true]);
        assert_eq!(Segments::new(SEGMENTS_OFFSET - 1, 4096).count(), 0);
    }

    #[test]
    fn a_segment_is_free_once_nothing_in_it_is_live_read_on_its_way_or_needed_by_a_start() {
        let is_free = |change: fn(&mut Segment)| {
            let mut segments = sealed();
            segments.covers = 10;
            change(&mut segments.all[3]);
            segments.free_all_unused();
            let is_free = segments.all[3].state == SegmentState::Free;
            assert_eq!(segments.free_count(), 7 + u32::from(is_free));
            is_free
        };
        assert!(is_free(|segment| segment.last_sequence = 10));
        assert!(!is_free(|segment| segment.last_sequence = 11));
        assert!(!is_free(|segment| segment.live = 1) && !is_free(|segment| segment.pages = 1));
        assert!(!is_free(|segment| segment.in_flight = 1) && !is_free(|segment| segment.pins = 1));
        use SegmentState::{Next, Open, Quarantined, Unread};
        for state in [Next, Open, Quarantined, Unread] {
            let mut segments = sealed();
            segments.all[3].state = state;
            segments.try_free(3);
            assert_eq!((segments.all[3].state, segments.free_count()), (state, 0));
        }
    }

    #[test]
    fn with_its_last_live_block_a_segment_is_free_a_damaged_one_too() {
        use SegmentState::{Open, Quarantined, Sealed, Unread};
        for state in [Sealed, Quarantined, Unread, Open] {
            let mut segments = sealed();
            (segments.all[3].state, segments.all[3].live) = (state, 2);
            let location = segments.location(3, 1);
            segments.block_died(location);
            assert_eq!((segments.all[3].state, segments.all[3].live), (state, 1));
            segments.block_died(location + 1);
            let is_open = state == SegmentState::Open;
            let now = if is_open { SegmentState::Open } else { SegmentState::Free };
            assert_eq!((segments.all[3].state, segments.free_count()), (now, u32::from(!is_open)));
        }
    }

    #[test]
    fn pieces_of_checkpoints_are_counted_as_they_come_and_go() {
        let mut segments = sealed();
        let piece = |block, bytes: u32| Piece {
            location: sealed().location(3, block).into(),
            bytes: bytes.into(),
            ..Piece::default()
        };
        let (one, two) = (piece(0, 1), piece(1, BLOCK_BYTES as u32 + 1));
        segments.piece_was_placed(&one);
        segments.piece_was_placed(&two);
        assert_eq!((segments.all[3].pages, segments.pages_blocks), (3, 3));
        segments.piece_died(&one);
        assert_eq!((segments.all[3].pages, segments.pages_blocks), (2, 2));
        assert!(!segments.frees_at_once(3) && segments.frees_at_once(2));
        segments.covers = 10;
        segments.all[2].last_sequence = 10;
        assert!(segments.frees_at_once(2));
        segments.all[2].last_sequence = 11;
        assert!(!segments.frees_at_once(2));
    }

    #[test]
    fn the_segment_that_is_free_longest_is_taken_while_more_are_free_than_are_kept() {
        let mut segments = sealed();
        segments.all[1].live = 1;
        (segments.all[2].written, segments.all[2].last_sequence) = (9, 0);
        assert_eq!([2, 3].map(|index| segments.end_of(index)), [9, BLOCKS], "of a full one nobody counted");
        segments.free_all_unused();
        assert_eq!((segments.take(7), segments.take(6)), (None, Some(0)));
        assert_eq!(segments.take(5), Some(2));
        assert_eq!((segments.all[2].state, segments.all[2].written), (SegmentState::Next, 0));
        assert_eq!((segments.free_count(), segments.take(5)), (5, None));
        assert_eq!((0..6).map_while(|_| segments.take(0)).count(), 5);
    }
}
