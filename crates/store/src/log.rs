//! The log's end: batches that are being filled, sealed, written, and become durable.

use crate::actions::{Action, BatchId, Options, Sabotage, StageError, Staged};
use crate::batch::OpenBatch;
use crate::contents::Contents;
use crate::in_flight::{InFlight, SealedBatch, write_token};
use crate::layout::{BatchHeader, Cursor, LogEnd, ROOT_PIECES_MAX, Record, RecordKind, STREAMS, Superblock};
use crate::segments::Segments;
use crate::slots::Slots;
use crate::streams::{COLD, HOT, Streams};
use base::{BLOCK_BYTES, Buffer, Fingerprints};
use zerocopy::little_endian::U32;

/// Cold batches under way at the same time.
const COLD_IN_FLIGHT_MAX: usize = 2;
/// The largest cold batch, but for a piece of a large root. A header for fewer blocks would waste what cleaning wins; and what
/// clients write behind one is not durable before it is.
const COLD_BATCH_BYTES: usize = 256 << 10;

/// What a step of a checkpoint or of cleaning works on, and what must happen next.
pub(crate) struct Turn<'a> {
    pub(crate) contents: &'a mut Contents,
    pub(crate) log: &'a mut Log,
    pub(crate) actions: &'a mut Vec<Action>,
}

/// A batch that was given its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    /// Its first data block on the drive.
    pub(crate) data_location: u32,
    /// All its blocks.
    pub(crate) blocks: u32,
}

/// See above.
#[derive(Debug)]
pub(crate) struct Log {
    /// What all batches of this opening say.
    header: BatchHeader,
    batches_in_flight_max: usize,
    /// The largest batch.
    pub(crate) batch_blocks_max: u32,
    root_pieces_max: usize,
    /// The largest root of a checkpoint, in bytes.
    pub(crate) root_bytes_max: u64,
    pub(crate) slots: Slots,
    streams: Streams,
    open: [Option<OpenBatch>; STREAMS],
    open_tokens: Vec<u64>,
    pub(crate) in_flight: InFlight,
    next_sequence: u64,
    /// Behind the newest durable batch.
    pub(crate) durable: LogEnd,
    /// Data blocks staged and not yet in the index.
    pub(crate) staged_blocks: u64,
    /// Data blocks staged since opening.
    pub(crate) client_blocks: u64,
    /// Blocks appended, those that opening replayed among them.
    pub(crate) appended_blocks: u64,
    /// The newest cold batch.
    pub(crate) cold_sequence: u64,
    /// The newest batch with clients' records.
    pub(crate) client_sequence: u64,
    /// Cleaning reads what it appends next: nobody else appends to the cold stream meanwhile.
    pub(crate) cold_is_reserved: bool,
    /// Something could not be staged for want of segments, and there is none yet.
    pub(crate) is_starving: bool,
}

impl Log {
    /// The log that goes on behind `end` in the mount that `superblock` says, with fingerprints under its secret. Opening
    /// replayed so many blocks of it, with clients' records among them or not.
    pub(crate) fn new(
        end: LogEnd,
        superblock: &Superblock,
        fingerprints: Fingerprints,
        segments: &Segments,
        options: &Options,
        replayed_blocks: u64,
        replayed_clients: bool,
    ) -> Log {
        // Foreground batches under way, one being filled, and some that slow replicas still hold.
        let slot_count = options.batches_in_flight_max + 3 + COLD_IN_FLIGHT_MAX + 1;
        let needs_flush = options.volatile_cache && options.sabotage != Some(Sabotage::ReportBeforeFlush);
        let durable = end.sequence.get();
        let batch_blocks_max = ((options.batch_bytes_max / BLOCK_BYTES) as u32).min(segments.blocks_each);
        // No batch is larger than a segment.
        let segment_bytes = segments.blocks_each as usize * BLOCK_BYTES;
        let slot_bytes = options.batch_bytes_max.max(COLD_BATCH_BYTES).min(segment_bytes);
        let pieces = options.root_pieces_max;
        assert!(pieces <= ROOT_PIECES_MAX, "no superblock has room for {pieces} pieces of a root");
        Log {
            header: BatchHeader {
                mount: superblock.mount,
                mount_begin: (durable + 1).into(),
                ..BatchHeader::default()
            },
            batches_in_flight_max: options.batches_in_flight_max,
            batch_blocks_max,
            root_pieces_max: pieces,
            root_bytes_max: pieces as u64 * u64::from(batch_blocks_max - 1) * BLOCK_BYTES as u64,
            slots: Slots::new(slot_count, slot_bytes, fingerprints),
            streams: Streams::new(end.cursors, end.next_segment),
            open: [None, None],
            open_tokens: Vec::new(),
            in_flight: InFlight::new(needs_flush, durable),
            next_sequence: durable + 1,
            durable: end,
            staged_blocks: 0,
            client_blocks: 0,
            appended_blocks: replayed_blocks,
            cold_sequence: 0,
            client_sequence: if replayed_clients { durable } else { 0 },
            cold_is_reserved: false,
            is_starving: false,
        }
    }

    /// By which this formatting's batches are told from all other blocks.
    pub(crate) fn fingerprints(&self) -> &Fingerprints {
        self.slots.fingerprints()
    }

    /// Batches written since opening.
    pub(crate) fn batches(&self) -> u64 {
        self.next_sequence - self.header.mount_begin.get()
    }

    /// Nothing is staged, being cleaned, or under way.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_staged = self.open.iter().flatten().any(|batch| batch.record_count > 0);
        self.in_flight.is_empty() && !is_staged && !self.cold_is_reserved
    }

    /// Nothing of the foreground is.
    pub(crate) fn foreground_is_idle(&self) -> bool {
        self.in_flight.count(HOT) == 0 && self.open[HOT].as_ref().is_none_or(|batch| batch.record_count == 0)
    }

    /// Appends a record of the foreground with the words after it and its data to the open batch.
    pub(crate) fn stage(
        &mut self,
        kind: RecordKind,
        record: &Record,
        (tail, data): (&[U32], &[u8]),
        token: u64,
        segments: &Segments,
    ) -> Result<Staged, StageError> {
        let block_count = record.block_count.get();
        if !self.make_room(kind, block_count, segments) {
            return Err(StageError::Busy);
        }
        let batch = self.open[HOT].as_mut().expect("make_room opened it");
        let offset = batch.push(record, [tail], data) as u32;
        self.staged_blocks += u64::from(kind.data_blocks(block_count));
        self.client_blocks += u64::from(kind.data_blocks(block_count));
        self.open_tokens.push(token);
        Ok(Staged { batch: BatchId(batch.slot), offset })
    }

    /// Whether the open foreground batch takes a record, once one is opened if there is none.
    fn make_room(&mut self, kind: RecordKind, block_count: u16, segments: &Segments) -> bool {
        assert!(kind.data_blocks(block_count) < self.batch_blocks_max, "a record fits a batch");
        if self.open[HOT].is_none() {
            self.open[HOT] = self.slots.take();
        }
        let Some(batch) = &self.open[HOT] else { return false };
        if !batch.fits(kind, block_count, self.batch_blocks_max) {
            return false;
        }
        let blocks = batch.blocks() + kind.data_blocks(block_count);
        let room = self.streams.room_to_take(HOT, segments);
        // A batch ends with its segment, so that little of it is wasted; the record begins the next one.
        let ends_segment = batch.record_count > 0 && batch.blocks() <= room && blocks > room;
        let has_room = room >= blocks || self.streams.has_next(HOT);
        self.is_starving |= !has_room;
        has_room && !ends_segment
    }

    /// Whether the open foreground batch should go now. While one is under way the next one grows, unless it is large
    /// already: one write for many operations. Alone it goes at once.
    pub(crate) fn foreground_goes_now(&self) -> bool {
        self.open[HOT].as_ref().is_some_and(|batch| {
            let is_large = batch.is_half_full(self.batch_blocks_max);
            let limit = if is_large { self.batches_in_flight_max } else { 1 };
            batch.record_count > 0 && self.in_flight.count(HOT) < limit
        })
    }

    /// The largest cold batch that wastes nothing of its segment's end.
    pub(crate) fn cold_blocks_max(&self, segments: &Segments) -> u32 {
        let most = ((COLD_BATCH_BYTES / BLOCK_BYTES) as u32).min(segments.blocks_each);
        let room = self.streams.room_to_take(COLD, segments);
        if room >= 2 { room.min(most) } else { most }
    }

    /// Bytes of each piece of a root of so many: no more than a cold batch has, unless a superblock could not point to all of them.
    pub(crate) fn root_piece_bytes(&self, root_bytes: usize) -> usize {
        let most = self.batch_blocks_max as usize - 1;
        let needed = root_bytes.div_ceil(BLOCK_BYTES).div_ceil(self.root_pieces_max);
        needed.max(COLD_BATCH_BYTES / BLOCK_BYTES - 1).min(most) * BLOCK_BYTES
    }

    /// Whether a cold batch of `blocks` leaves cleaning a segment to go on in.
    pub(crate) fn leaves_room_to_clean(&self, blocks: u32, segments: &Segments) -> bool {
        self.streams.leaves_next(COLD, blocks, segments)
    }

    /// Blocks that the cold stream can go on in while no segment is free.
    pub(crate) fn cold_blocks_left(&self, segments: &Segments) -> u32 {
        let next = if self.streams.has_next(COLD) { segments.blocks_each } else { 0 };
        self.streams.room_to_take(COLD, segments) + next
    }

    /// Whether one more cold batch may be under way.
    pub(crate) fn cold_may_go(&self) -> bool {
        self.in_flight.count(COLD) < COLD_IN_FLIGHT_MAX
    }

    /// Whether nothing that cleaning moved is staged or under way.
    pub(crate) fn cold_is_still(&self) -> bool {
        self.open[COLD].is_none() && self.in_flight.count(COLD) == 0
    }

    /// The cold batch that is being filled.
    pub(crate) fn open_cold(&mut self) -> &mut Option<OpenBatch> {
        &mut self.open[COLD]
    }

    /// Chooses segments to go on in, where the streams have none, and tells of them where that is needed.
    pub(crate) fn replenish(&mut self, segments: &mut Segments, actions: &mut Vec<Action>) {
        self.streams.replenish(segments);
        self.is_starving &= !self.streams.has_next(HOT);
        // A batch that must go to a segment nobody was told of waits for an empty batch that tells of it.
        let waits = (0..STREAMS).any(|stream| {
            let blocks = self.open[stream].as_ref().map_or(0, OpenBatch::blocks);
            self.streams.waits_for_word(stream, blocks, segments)
        });
        if !waits {
            return;
        }
        let has_place = |stream: &usize| self.streams.has_place(*stream, segments);
        if let Some(stream) = [COLD, HOT].into_iter().find(has_place)
            && let Some(batch) = self.slots.take()
        {
            let place = self.streams.place(stream, batch.blocks(), segments).expect("it was just looked for");
            self.issue(stream, batch, place, Vec::new(), segments, actions);
        }
    }

    /// Seals a stream's open batch and issues its write. `None` if there is none, or while it has nowhere to go.
    pub(crate) fn seal(
        &mut self,
        stream: usize,
        segments: &mut Segments,
        actions: &mut Vec<Action>,
    ) -> Option<Sealed> {
        let blocks = self.open[stream].as_ref()?.blocks();
        let place = self.streams.place(stream, blocks, segments)?;
        let batch = self.open[stream].take().expect("it was just looked at");
        // Nobody waits for a cold batch.
        let tokens = match stream {
            HOT => std::mem::replace(&mut self.open_tokens, self.in_flight.token_vector()),
            _ => Vec::new(),
        };
        Some(self.issue(stream, batch, place, tokens, segments, actions))
    }

    /// Seals a batch that has its place and issues its write.
    fn issue(
        &mut self,
        stream: usize,
        mut batch: OpenBatch,
        (segment, block): (u32, u32),
        tokens: Vec<u64>,
        segments: &mut Segments,
        actions: &mut Vec<Action>,
    ) -> Sealed {
        let blocks = batch.blocks();
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let next_segment = self.streams.announce();
        let header = BatchHeader {
            sequence: sequence.into(),
            durable_through: self.durable.sequence,
            next_segment,
            stream: stream as u8,
            ..self.header
        };
        batch.seal(header);
        let state = &mut segments.all[segment as usize];
        state.written = block + blocks;
        state.in_flight += 1;
        state.last_sequence = sequence;
        let data_location = segments.location(segment, block + 1);
        self.slots.was_sealed(&batch);
        if stream == HOT {
            actions.push(Action::Sealed { batch: BatchId(batch.slot), buffer: batch.buffer.clone() });
            if batch.record_count > 0 {
                self.client_sequence = sequence;
            }
        } else {
            self.cold_sequence = sequence;
        }
        actions.push(Action::Write {
            token: write_token(sequence),
            offset: segments.offset(segment, block),
            buffer: batch.buffer,
            length: blocks as usize * BLOCK_BYTES,
        });
        self.appended_blocks += u64::from(blocks);
        self.in_flight.push(SealedBatch {
            sequence,
            slot: batch.slot,
            stream,
            segment,
            data_location,
            data_blocks: blocks - 1,
            end_block: block + blocks,
            next_segment,
            tokens,
            is_written: false,
        });
        Sealed { data_location, blocks }
    }

    /// The next batch that became durable, and its memory, a handle of its own.
    pub(crate) fn next_durable(&mut self, segments: &mut Segments) -> Option<(SealedBatch, Buffer)> {
        let batch = self.in_flight.take_durable()?;
        let buffer = self.slots.was_settled(batch.slot);
        segments.all[batch.segment as usize].in_flight -= 1;
        if batch.stream == HOT {
            self.staged_blocks -= u64::from(batch.data_blocks);
        }
        self.durable.sequence = batch.sequence.into();
        self.durable.mount = self.header.mount;
        let cursor = &mut self.durable.cursors[batch.stream];
        let left = cursor.segment.get();
        if left != batch.segment {
            // The log does not end there any more, whatever happens.
            segments.all[left as usize].in_flight -= 1;
            segments.try_free(left);
        }
        *cursor = Cursor { segment: batch.segment.into(), block: batch.end_block.into() };
        self.durable.next_segment = batch.next_segment;
        Some((batch, buffer))
    }

    /// The drive failed: the tokens of all that will not be durable.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.in_flight.tokens().chain(self.open_tokens.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NO_SEGMENT, SEGMENTS_OFFSET};
    use crate::segments::SegmentState;
    use base::ObjectKey;

    const BLOCKS: u32 = 16;

    fn options() -> Options {
        Options { batch_bytes_max: 8 * BLOCK_BYTES, ..Options::default() }
    }

    /// A log in segments of 16 blocks, of which so many are free. The streams have so many blocks left, and next segments or
    /// none.
    fn log_with(free: usize, rooms: [u32; STREAMS], nexts: [u32; STREAMS]) -> (Log, Segments) {
        let segment_bytes = BLOCKS * BLOCK_BYTES as u32;
        let mut segments = Segments::new(SEGMENTS_OFFSET + 32 * u64::from(segment_bytes), segment_bytes);
        for segment in &mut segments.all[32 - free..] {
            segment.state = SegmentState::Sealed;
        }
        segments.free_all_unused();
        let cursor = |stream: usize| Cursor {
            segment: (stream as u32).into(),
            block: (BLOCKS - rooms[stream]).into(),
        };
        let end = LogEnd {
            sequence: 40u64.into(),
            cursors: [cursor(HOT), cursor(COLD)],
            next_segment: nexts.map(Into::into),
            ..LogEnd::default()
        };
        let superblock = Superblock { mount: 3u64.into(), ..Superblock::empty() };
        let fingerprints = Fingerprints::new(&superblock.secret);
        let log = Log::new(end, &superblock, fingerprints, &segments, &options(), 100, true);
        (log, segments)
    }

    /// Stages a write of so many blocks.
    fn stage(log: &mut Log, blocks: u16, segments: &Segments) -> Result<Staged, StageError> {
        let record = Record::new(RecordKind::Write, ObjectKey::default(), 0, blocks);
        let count = usize::from(blocks);
        let (checksums, data) = (vec![U32::ZERO; count], vec![1; count * BLOCK_BYTES]);
        log.stage(RecordKind::Write, &record, (&checksums, &data), 7, segments)
    }

    /// Where batches are written, as segments and blocks in them, and how many blocks they have.
    fn written(actions: &[Action]) -> Vec<(u32, u32, u32)> {
        let writes = actions.iter().filter_map(|action| match action {
            Action::Write { offset, length, .. } => {
                let block = ((offset - SEGMENTS_OFFSET) / BLOCK_BYTES as u64) as u32;
                Some((block / BLOCKS, block % BLOCKS, (length / BLOCK_BYTES) as u32))
            }
            _ => None,
        });
        writes.collect()
    }

    #[test]
    fn a_batch_ends_with_its_segment_and_the_record_behind_it_begins_the_next_one() {
        let (mut log, mut segments) = log_with(6, [6, 16], [2, 3]);
        let mut actions = Vec::new();
        assert_eq!(stage(&mut log, 2, &segments).unwrap().offset, BLOCK_BYTES as u32);
        assert_eq!(stage(&mut log, 3, &segments).unwrap().offset, 3 * BLOCK_BYTES as u32);
        assert_eq!(stage(&mut log, 1, &segments), Err(StageError::Busy), "there is room in the batch only");
        // What has no data goes with it.
        let mark = Record::new(RecordKind::Mark, ObjectKey::default(), 0, 0);
        log.stage(RecordKind::Mark, &mark, (&[], &[]), 8, &segments).unwrap();
        assert_eq!((log.staged_blocks, log.client_blocks, log.is_starving), (5, 5, false));
        let sealed = log.seal(HOT, &mut segments, &mut actions).unwrap();
        assert_eq!((sealed.blocks, sealed.data_location), (6, segments.location(0, 11)));
        assert_eq!(log.give_up().collect::<Vec<_>>(), [7, 7, 8]);
        // One of a whole batch goes on in the next segment.
        stage(&mut log, 7, &segments).unwrap();
        assert_eq!(stage(&mut log, 1, &segments), Err(StageError::Busy), "it is full");
        log.seal(HOT, &mut segments, &mut actions).unwrap();
        assert_eq!(written(&actions), [(0, 10, 6), (2, 0, 8)]);
        assert_eq!((log.batches(), log.appended_blocks, log.client_sequence), (2, 114, 42));
    }

    #[test]
    fn a_record_for_which_there_is_no_segment_waits_until_there_is_one() {
        let (mut log, mut segments) = log_with(0, [4, 16], [NO_SEGMENT, NO_SEGMENT]);
        stage(&mut log, 2, &segments).unwrap();
        assert!(stage(&mut log, 1, &segments).is_ok() && !log.is_starving, "just so many");
        assert_eq!(stage(&mut log, 1, &segments), Err(StageError::Busy));
        assert!(log.is_starving);
        let mut actions = Vec::new();
        log.replenish(&mut segments, &mut actions);
        assert!(log.is_starving && actions.is_empty(), "none is free");
        log.seal(HOT, &mut segments, &mut actions).unwrap();
        for segment in &mut segments.all[20..] {
            segment.state = SegmentState::Sealed;
        }
        segments.free_all_unused();
        log.replenish(&mut segments, &mut actions);
        assert!(!log.is_starving);
        assert_eq!(written(&actions), [(0, 12, 4)], "nobody waits to be told of the next one");
        stage(&mut log, 2, &segments).unwrap();
        assert!(log.seal(HOT, &mut segments, &mut actions).is_none(), "nobody told of the segment");
        log.replenish(&mut segments, &mut actions);
        assert_eq!(written(&actions)[1..], [(1, 0, 1)], "an empty one of the other stream does");
        assert_eq!(log.client_sequence, 41, "nobody's records are in it");
        log.seal(HOT, &mut segments, &mut actions).unwrap();
        let [.., (segment, 0, 3)] = written(&actions)[..] else { panic!("{:?}", written(&actions)) };
        assert!(segment >= 20);
        // Each of them says where the streams go on.
        log.replenish(&mut segments, &mut actions);
        assert_eq!(written(&actions).len(), 3);
    }

    #[test]
    fn an_empty_batch_goes_where_there_is_a_block_and_is_no_clients() {
        // The cold stream is full, and of its next segment nobody told either.
        let (mut log, mut segments) = log_with(12, [1, 0], [NO_SEGMENT, NO_SEGMENT]);
        let mut actions = Vec::new();
        assert_eq!(stage(&mut log, 2, &segments), Err(StageError::Busy));
        log.replenish(&mut segments, &mut actions);
        assert!(!log.is_starving && actions.is_empty());
        stage(&mut log, 2, &segments).unwrap();
        log.replenish(&mut segments, &mut actions);
        assert_eq!(written(&actions), [(0, 15, 1)]);
        assert_eq!((log.client_sequence, log.staged_blocks), (40, 2));
        assert!(log.seal(HOT, &mut segments, &mut actions).is_some());
    }

    #[test]
    fn the_log_is_quiet_when_nothing_is_staged_on_its_way_or_read_to_be_moved() {
        let (mut log, mut segments) = log_with(6, [16, 16], [2, 3]);
        let mut actions = Vec::new();
        assert!(log.is_quiet() && log.foreground_is_idle());
        // Opened, and nothing came into it.
        *log.open_cold() = log.slots.take();
        assert!(log.is_quiet());
        let batch = log.open_cold().take().unwrap();
        log.slots.give_back(batch);
        stage(&mut log, 1, &segments).unwrap();
        assert!(!log.is_quiet() && !log.foreground_is_idle());
        log.seal(HOT, &mut segments, &mut actions).unwrap();
        assert!(!log.is_quiet() && !log.foreground_is_idle(), "it is on its way");
        log.in_flight.was_written(41);
        log.in_flight.issue_flush(&mut actions);
        log.in_flight.were_flushed();
        let (batch, _) = log.next_durable(&mut segments).unwrap();
        assert_eq!((batch.sequence, log.durable.sequence.get(), log.durable.mount.get()), (41, 41, 3));
        let cursor = log.durable.cursors[HOT];
        assert_eq!((cursor.segment.get(), cursor.block.get(), log.staged_blocks), (0, 2, 0));
        assert_eq!((segments.all[0].written, segments.all[0].last_sequence), (2, 41));
        assert!(log.is_quiet() && log.foreground_is_idle());
        log.cold_is_reserved = true;
        assert!(!log.is_quiet() && log.foreground_is_idle());
    }

    #[test]
    fn a_segment_that_a_stream_left_is_not_written_anew_while_the_log_may_end_there() {
        let (mut log, mut segments) = log_with(6, [2, 16], [2, 3]);
        let mut actions = Vec::new();
        // Nothing in it is live, and no start needs it.
        stage(&mut log, 2, &segments).unwrap();
        log.seal(HOT, &mut segments, &mut actions).unwrap();
        stage(&mut log, 2, &segments).unwrap();
        log.seal(HOT, &mut segments, &mut actions).unwrap();
        assert_eq!(written(&actions), [(2, 0, 3), (2, 3, 3)]);
        segments.free_all_unused();
        assert_eq!(segments.all[0].state, SegmentState::Sealed);
        for sequence in [41, 42] {
            log.in_flight.was_written(sequence);
            log.in_flight.issue_flush(&mut actions);
            log.in_flight.were_flushed();
            assert!(log.next_durable(&mut segments).is_some());
            assert_eq!((segments.all[0].state, segments.all[0].in_flight), (SegmentState::Free, 0));
            // One was taken to be the next one.
            assert_eq!(segments.free_count(), 6);
        }
    }

    #[test]
    fn cold_batches_are_as_large_as_what_is_left_of_their_segment_and_few_at_a_time() {
        for (room, blocks) in [(0, 16), (1, 16), (2, 2), (9, 9), (16, 16)] {
            let (log, segments) = log_with(6, [16, room], [2, 3]);
            assert_eq!(log.cold_blocks_max(&segments), blocks, "{room}");
        }
        let (mut log, mut segments) = log_with(6, [16, 16], [2, 3]);
        let mut actions = Vec::new();
        for number in 0..COLD_IN_FLIGHT_MAX as u64 {
            assert!(log.cold_may_go());
            let mut batch = log.slots.take().unwrap();
            batch.push(&Record::new(RecordKind::Page, ObjectKey::default(), 0, 1), [], &[1; BLOCK_BYTES]);
            *log.open_cold() = Some(batch);
            log.seal(COLD, &mut segments, &mut actions).unwrap();
            assert_eq!((log.cold_sequence, log.client_sequence), (41 + number, 40));
        }
        assert!(!log.cold_may_go());
        assert_eq!(written(&actions), [(1, 0, 2), (1, 2, 2)]);
        assert_eq!(log.client_blocks, 0);
    }

    #[test]
    fn slow_replicas_may_hold_three_batches_without_anything_waiting_for_their_memory() {
        let (mut log, _) = log_with(6, [16, 16], [2, 3]);
        let held: Vec<_> = (0..3).map(|_| log.slots.take().unwrap()).collect();
        // Those under way of either stream, and one that is filled.
        let others = std::iter::from_fn(|| log.slots.take()).count();
        assert!(held.len() == 3 && others > options().batches_in_flight_max + COLD_IN_FLIGHT_MAX);
    }

    #[test]
    fn batches_are_as_large_as_segments_allow_and_roots_as_many_of_them_as_a_superblock_points_to() {
        let (log, _) = log_with(6, [16, 16], [2, 3]);
        assert_eq!(log.batch_blocks_max, 8);
        assert_eq!(log.root_bytes_max, ROOT_PIECES_MAX as u64 * 7 * BLOCK_BYTES as u64);
        for bytes in [1, log.root_bytes_max as usize] {
            assert_eq!(log.root_piece_bytes(bytes), 7 * BLOCK_BYTES);
        }
        let segments = Segments::new(SEGMENTS_OFFSET + (4 << 20), 64 << 10);
        let superblock = Superblock::empty();
        let fingerprints = Fingerprints::new(&superblock.secret);
        let options = Options::default();
        let log =
            Log::new(LogEnd::default(), &superblock, fingerprints.clone(), &segments, &options, 0, false);
        assert_eq!((log.batch_blocks_max, log.appended_blocks, log.client_sequence), (16, 0, 0));
        // Where batches are large, pieces are as small as suffices.
        let segments = Segments::new(SEGMENTS_OFFSET + (512 << 20), 64 << 20);
        let log =
            Log::new(LogEnd::default(), &superblock, fingerprints.clone(), &segments, &options, 0, false);
        let small = 63 * BLOCK_BYTES;
        for (bytes, piece_bytes) in [
            (1, small),
            (ROOT_PIECES_MAX * small, small),
            (ROOT_PIECES_MAX * small + 1, small + BLOCK_BYTES),
            (log.root_bytes_max as usize, 255 * BLOCK_BYTES),
        ] {
            assert_eq!(log.root_piece_bytes(bytes), piece_bytes, "{bytes}");
            assert!(bytes.div_ceil(piece_bytes) <= ROOT_PIECES_MAX);
        }
    }
}
