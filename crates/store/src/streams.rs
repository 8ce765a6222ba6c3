//! Where the batches of each stream go. A stream fills its segment and goes on in its next one, of which an earlier batch
//! must have told: a start looks nowhere else.

use crate::layout::{Cursor, NO_SEGMENT, STREAMS};
use crate::segments::{SegmentState, Segments};
use zerocopy::little_endian::U32;

/// The stream of foreground writes.
pub(crate) const HOT: usize = 0;
/// The stream of what cleaning moves, and of checkpoints.
pub(crate) const COLD: usize = 1;
/// Free segments that only cleaning and checkpoints may take.
pub(crate) const RESERVE: u32 = 4;

/// Where each stream stands.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Where the next batch goes.
    cursors: [Cursor; STREAMS],
    next_segment: [Option<u32>; STREAMS],
    /// A sealed batch told of it: only then may a batch go there.
    next_is_announced: [bool; STREAMS],
}

/// Free segments that a stream may not take.
fn kept_from(stream: usize) -> u32 {
    if stream == HOT { RESERVE } else { 0 }
}

impl Streams {
    /// As the log's last batch has them.
    pub(crate) fn new(cursors: [Cursor; STREAMS], next_segment: [U32; STREAMS]) -> Streams {
        let known = |segment: U32| Some(segment.get()).filter(|segment| *segment != NO_SEGMENT);
        Streams { cursors, next_segment: next_segment.map(known), next_is_announced: [true; STREAMS] }
    }

    /// Blocks left of a stream's segment.
    pub(crate) fn room(&self, stream: usize, segments: &Segments) -> u32 {
        segments.blocks_each - self.cursors[stream].block.get()
    }

    /// Blocks of that which a batch may take. A batch that left neither stream a place would be the last of all, as nothing could
    /// tell any more of where to go on: so a block is kept.
    pub(crate) fn room_to_take(&self, stream: usize, segments: &Segments) -> u32 {
        let goes_on = self.has_next(stream) || self.other_goes_on(stream, segments);
        self.room(stream, segments).saturating_sub(u32::from(!goes_on))
    }

    /// Whether the other stream has a place once a batch told of its next segment.
    fn other_goes_on(&self, stream: usize, segments: &Segments) -> bool {
        let goes_on = |other: usize| self.room(other, segments) > 0 || self.has_next(other);
        (0..STREAMS).any(|other| other != stream && goes_on(other))
    }

    /// Whether a stream can go on when its segment is full, once that is announced.
    pub(crate) fn has_next(&self, stream: usize) -> bool {
        self.next_segment[stream].is_some()
    }

    /// Whether a stream still has a next segment behind a batch of `blocks`.
    pub(crate) fn leaves_next(&self, stream: usize, blocks: u32, segments: &Segments) -> bool {
        let is_in_this = blocks <= self.room_to_take(stream, segments);
        if is_in_this { self.has_next(stream) } else { segments.free_count() > kept_from(stream) }
    }

    /// Whether a batch of one block has a place.
    pub(crate) fn has_place(&self, stream: usize, segments: &Segments) -> bool {
        self.room(stream, segments) > 0 || self.has_next(stream) && self.next_is_announced[stream]
    }

    /// Whether a batch of `blocks` waits for another one that tells of the segment it goes to.
    pub(crate) fn waits_for_word(&self, stream: usize, blocks: u32, segments: &Segments) -> bool {
        self.has_next(stream) && !self.next_is_announced[stream] && blocks > self.room(stream, segments)
    }

    /// Chooses segments to go on in, where the streams have none.
    pub(crate) fn replenish(&mut self, segments: &mut Segments) {
        for stream in [COLD, HOT] {
            if !self.has_next(stream) {
                self.choose_next(stream, segments);
            }
        }
    }

    fn choose_next(&mut self, stream: usize, segments: &mut Segments) {
        self.next_segment[stream] = segments.take(kept_from(stream));
        self.next_is_announced[stream] = false;
    }

    /// The segment and the block in it where a batch of `blocks` goes, or `None` while its stream has nowhere to go.
    pub(crate) fn place(
        &mut self,
        stream: usize,
        blocks: u32,
        segments: &mut Segments,
    ) -> Option<(u32, u32)> {
        if self.room_to_take(stream, segments) < blocks {
            let next = self.next_segment[stream].filter(|_| self.next_is_announced[stream])?;
            let goes_on = blocks < segments.blocks_each
                || segments.free_count() > kept_from(stream)
                || self.other_goes_on(stream, segments);
            if !goes_on {
                return None;
            }
            let old = self.cursors[stream].segment.get();
            segments.all[old as usize].state = SegmentState::Sealed;
            segments.try_free(old);
            segments.all[next as usize].state = SegmentState::Open;
            self.cursors[stream] = Cursor { segment: next.into(), block: 0.into() };
            self.choose_next(stream, segments);
        }
        let cursor = &mut self.cursors[stream];
        let (segment, block) = (cursor.segment.get(), cursor.block.get());
        cursor.block = (block + blocks).into();
        Some((segment, block))
    }

    /// What a batch that is being sealed tells of.
    pub(crate) fn announce(&mut self) -> [U32; STREAMS] {
        self.next_is_announced = [true; STREAMS];
        self.next_segment.map(|segment| segment.unwrap_or(NO_SEGMENT).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SEGMENTS_OFFSET;

    #[test]
    fn a_batch_goes_to_no_segment_that_nobody_told_of() {
        let mut segments = Segments::new(SEGMENTS_OFFSET + (1 << 20), 64 << 10);
        for segment in &mut segments.all[2..] {
            segment.state = SegmentState::Sealed;
        }
        segments.free_all_unused();
        let cursor = |segment: u32, block: u32| Cursor { segment: segment.into(), block: block.into() };
        let mut streams = Streams::new([cursor(0, 14), cursor(1, 0)], [NO_SEGMENT.into(); STREAMS]);
        assert_eq!(streams.place(HOT, 3, &mut segments), None, "it has no next segment");
        streams.replenish(&mut segments);
        assert!(streams.has_next(HOT) && streams.waits_for_word(HOT, 3, &segments));
        assert_eq!(streams.place(HOT, 3, &mut segments), None, "nobody told of its next segment");
        assert_eq!(streams.place(HOT, 1, &mut segments), Some((0, 14)), "one that fits tells of it");
        let [next, _] = streams.announce();
        assert_eq!(streams.place(HOT, 3, &mut segments), Some((next.get(), 0)));
        assert!(!streams.waits_for_word(HOT, 13, &segments) && streams.waits_for_word(HOT, 14, &segments));
    }

    #[test]
    fn the_last_place_of_all_is_kept_for_the_batch_that_tells_of_the_next_one() {
        let cursor = |segment: u32, block: u32| Cursor { segment: segment.into(), block: block.into() };
        for (stream, blocks) in [(HOT, [14, 16]), (COLD, [16, 14])] {
            let mut segments = Segments::new(SEGMENTS_OFFSET + (1 << 20), 64 << 10);
            let cursors = [cursor(0, blocks[HOT]), cursor(1, blocks[COLD])];
            let mut streams = Streams::new(cursors, [NO_SEGMENT.into(); STREAMS]);
            streams.replenish(&mut segments);
            assert_eq!(streams.place(stream, 2, &mut segments), None, "none is free, and the other is full");
            assert_eq!(streams.room_to_take(stream, &segments), 1);
            assert!(streams.place(stream, 1, &mut segments).is_some());
            assert_eq!(streams.place(stream, 1, &mut segments), None);
            for segment in &mut segments.all[2..8] {
                segment.state = SegmentState::Sealed;
            }
            segments.free_all_unused();
            streams.replenish(&mut segments);
            assert!(streams.waits_for_word(stream, 2, &segments));
            assert!(streams.place(stream, 1, &mut segments).is_some(), "now it tells of the next one");
            let next = streams.announce()[stream].get();
            assert_eq!(streams.place(stream, 2, &mut segments), Some((next, 0)));
        }
    }
}
