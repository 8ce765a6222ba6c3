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
            let left = &mut segments.all[old as usize];
            left.state = SegmentState::Sealed;
            // Should the batch be lost, the log ends there still and goes on there: what another batch left at its begin would
            // be in the way of cleaning.
            left.in_flight += 1;
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
        // What was left has nothing in it, and may be where the log ends yet.
        segments.free_all_unused();
        let state = |segment: u32| segments.all[segment as usize].state;
        assert_eq!([state(0), state(next.get())], [SegmentState::Sealed, SegmentState::Open]);
        assert_eq!(segments.all[0].in_flight, 1);
    }

    fn cursor(segment: u32, block: u32) -> Cursor {
        Cursor { segment: segment.into(), block: block.into() }
    }

    fn nexts(hot: u32, cold: u32) -> [U32; STREAMS] {
        [hot.into(), cold.into()]
    }

    /// 16 segments of 16 blocks, of which so many are free.
    fn segments_with(free: usize) -> Segments {
        let mut segments = Segments::new(SEGMENTS_OFFSET + (1 << 20), 64 << 10);
        for segment in &mut segments.all[16 - free..] {
            segment.state = SegmentState::Sealed;
        }
        segments.free_all_unused();
        segments
    }

    #[test]
    fn a_block_is_kept_only_where_neither_stream_goes_on() {
        let segments = segments_with(0);
        let none = NO_SEGMENT;
        for (hot_next, cold_block, cold_next, room) in
            [(none, 16, none, 5), (none, 15, none, 6), (none, 16, 3, 6), (none, 15, 3, 6), (2, 16, none, 6)]
        {
            let streams = Streams::new([cursor(0, 10), cursor(1, cold_block)], nexts(hot_next, cold_next));
            let found = streams.room_to_take(HOT, &segments);
            assert_eq!(found, room, "{hot_next} {cold_block} {cold_next}");
        }
    }

    #[test]
    fn a_batch_that_fills_a_segment_goes_there_only_if_something_goes_on_behind_it() {
        // Free segments, the cold stream's place and next one, and whether a batch of 16 and of 15 blocks finds a place.
        for (free, cold_block, cold_next, has_place) in [
            (0, 16, NO_SEGMENT, [false, true]),
            (4, 16, NO_SEGMENT, [false, true]),
            (5, 16, NO_SEGMENT, [true, true]),
            (0, 15, NO_SEGMENT, [true, true]),
            (0, 16, 3, [true, true]),
        ] {
            let found = [16, 15].map(|blocks| {
                let mut segments = segments_with(free);
                let cursors = [cursor(0, 16), cursor(1, cold_block)];
                let mut streams = Streams::new(cursors, nexts(2, cold_next));
                streams.place(HOT, blocks, &mut segments) == Some((2, 0))
            });
            assert_eq!(found, has_place, "{free} {cold_block} {cold_next}");
        }
    }

    #[test]
    fn the_last_free_segments_are_for_cleaning_and_checkpoints() {
        // Free segments, and which of the streams take one of them.
        let scenes = [(0, [false, false]), (1, [false, true]), (5, [false, true]), (6, [true, true])];
        for (free, takes) in scenes {
            let mut segments = segments_with(free);
            let mut streams = Streams::new([cursor(0, 0), cursor(1, 0)], [NO_SEGMENT.into(); STREAMS]);
            streams.replenish(&mut segments);
            assert_eq!([HOT, COLD].map(|stream| streams.has_next(stream)), takes, "{free} were free");
        }
        // A batch that stays in its segment leaves the next one, another needs a free one instead of it.
        for (cold_next, stream, blocks, free, leaves) in [
            (3, COLD, 6, 0, true),
            (NO_SEGMENT, COLD, 6, 1, false),
            (3, COLD, 7, 0, false),
            (3, COLD, 7, 1, true),
            (3, HOT, 7, 4, false),
            (3, HOT, 7, 5, true),
        ] {
            let streams = Streams::new([cursor(0, 10), cursor(1, 10)], nexts(2, cold_next));
            let leaves_next = streams.leaves_next(stream, blocks, &segments_with(free));
            assert_eq!(leaves_next, leaves, "{cold_next} {stream} {blocks} {free}");
        }
    }

    #[test]
    fn a_full_stream_has_no_place_before_its_next_segment_is_announced() {
        let mut segments = segments_with(6);
        let mut streams = Streams::new([cursor(0, 16), cursor(1, 15)], [NO_SEGMENT.into(); STREAMS]);
        let has_place = |streams: &Streams, segments: &Segments| {
            [HOT, COLD].map(|stream| streams.has_place(stream, segments))
        };
        assert_eq!(has_place(&streams, &segments), [false, true], "there is no next one");
        assert!(!streams.waits_for_word(HOT, 1, &segments));
        streams.replenish(&mut segments);
        assert_eq!(has_place(&streams, &segments), [false, true], "nobody told of it");
        assert!(streams.waits_for_word(HOT, 1, &segments));
        streams.announce();
        assert_eq!(has_place(&streams, &segments), [true, true]);
        assert!(!streams.waits_for_word(HOT, 1, &segments));
        // Where there is none to choose, nobody waits to be told of it.
        let mut none = segments_with(0);
        let mut streams = Streams::new([cursor(0, 16), cursor(1, 15)], [NO_SEGMENT.into(); STREAMS]);
        streams.replenish(&mut none);
        assert!(!streams.waits_for_word(HOT, 1, &none));
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
