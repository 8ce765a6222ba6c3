//! Which segments are cleaned, how fast, and what is moved of them.

use super::*;
use crate::actions::Options;
use crate::index::{Entry, Index, ObjectIndex};
use crate::layout::{Cursor, LogEnd, NO_SEGMENT, Piece, SEGMENTS_OFFSET, Superblock};
use crate::pg_log::PgLogs;
use base::{Buffer, Fingerprints, Sequence};

const BLOCKS: u32 = 256;

/// A store of 64 segments, of which so many are free, and none has anything in it.
fn store_with(free: usize) -> (Contents, Log, Checkpoint) {
    let segment_bytes = BLOCKS * BLOCK_BYTES as u32;
    let mut segments = Segments::new(SEGMENTS_OFFSET + 64 * u64::from(segment_bytes), segment_bytes);
    for segment in &mut segments.all[64 - free..] {
        segment.state = SegmentState::Sealed;
    }
    segments.free_all_unused();
    let options = Options { batch_bytes_max: 64 << 10, ..Options::default() };
    let (end, superblock) = (LogEnd::default(), Superblock::empty());
    let fingerprints = Fingerprints::new(&superblock.secret);
    let log = Log::new(end, &superblock, fingerprints, &segments, &options, 0, false);
    let checkpoint = Checkpoint::new(superblock, &segments, &options);
    (Contents { index: Index::default(), logs: PgLogs::new(16), segments }, log, checkpoint)
}

/// Clients have written so many blocks, and there is more of them.
fn clients_write(log: &mut Log, blocks: u64, segments: &Segments) {
    let record = Record::new(RecordKind::Zero, ObjectKey::default(), 0, 1);
    assert!(log.stage(RecordKind::Zero, &record, (&[], &[]), 0, segments).is_ok());
    log.client_blocks += blocks;
}

#[test]
fn what_is_moved_keeps_pace_with_what_clients_write_and_the_faster_the_fewer_segments_are_free() {
    for (free, blocks) in [(10, 40), (9, 40), (8, 80), (7, 120), (6, 160)] {
        let (mut contents, mut log, _) = store_with(free);
        let segments = &mut contents.segments;
        // Half of it is to be kept, data and pages.
        (segments.all[0].live, segments.all[0].pages) = (BLOCKS / 2 - 28, 28);
        let mut cleaner = Cleaner::default();
        clients_write(&mut log, 60, segments);
        assert!(cleaner.pace_allows(0, segments, &log, false), "{free} are free");
        assert_eq!(cleaner.credit, blocks, "{free} are free");
        // That was moved: more is when more was written.
        cleaner.credit -= blocks;
        assert!(!cleaner.pace_allows(0, segments, &log, false), "{free} are free");
        clients_write(&mut log, 6, segments);
        assert!(cleaner.pace_allows(0, segments, &log, false), "{free} are free");
        assert_eq!(cleaner.credit, blocks / 10);
        clients_write(&mut log, 100_000, segments);
        assert!(cleaner.pace_allows(0, segments, &log, false));
        assert_eq!(cleaner.credit, 4 * i64::from(PIECE_BLOCKS), "that is no licence for ever");
    }
    // All but a block of a full segment is to be kept.
    let (mut contents, mut log, _) = store_with(9);
    (contents.segments.all[0].live, contents.segments.all[0].pages) = (BLOCKS, 1);
    clients_write(&mut log, 1, &contents.segments);
    let mut cleaner = Cleaner::default();
    assert!(cleaner.pace_allows(0, &contents.segments, &log, false));
    assert_eq!(cleaner.credit, (i64::from(BLOCKS) - 1) * 4 / 6);
}

#[test]
fn nobody_waits_for_the_pace_who_wants_for_room_and_who_is_idle_has_a_budget() {
    let (contents, mut log, _) = store_with(8);
    let mut cleaner = Cleaner::default();
    assert!(!cleaner.pace_allows(0, &contents.segments, &log, false), "nobody wrote");
    cleaner.credit = 50;
    assert!(cleaner.pace_allows(0, &contents.segments, &log, true));
    assert_eq!(cleaner.credit, 0, "the pace begins anew behind it");
    cleaner.grant(1);
    assert!(cleaner.pace_allows(0, &contents.segments, &log, false));
    cleaner.grant(2);
    assert_eq!(cleaner.idle_budget, 12);
    cleaner.grant(1 << 30);
    assert_eq!(cleaner.idle_budget, IDLE_BUDGET_MAX, "it comes to rest");
    cleaner.idle_budget = 0;
    clients_write(&mut log, 0, &contents.segments);
    assert!(!cleaner.pace_allows(0, &contents.segments, &log, false));
    let (contents, mut log, _) = store_with(RESERVE as usize + 1);
    clients_write(&mut log, 0, &contents.segments);
    assert!(cleaner.pace_allows(0, &contents.segments, &log, false), "clients take no segment any more");
}

/// The segment that is chosen of full ones that so many blocks of data and of pages are live in, and whose newest batch is
/// that.
fn chosen(free: usize, is_busy: bool, full: &[(u32, u32, u64)]) -> Option<u32> {
    let (mut contents, mut log, mut checkpoint) = store_with(free);
    log.durable.sequence = 100u64.into();
    if is_busy {
        clients_write(&mut log, 1, &contents.segments);
    }
    for (segment, (live, pages, last_sequence)) in contents.segments.all.iter_mut().zip(full) {
        segment.state = SegmentState::Sealed;
        (segment.live, segment.pages, segment.last_sequence) = (*live, *pages, *last_sequence);
    }
    let mut cleaner = Cleaner { idle_budget: 1, ..Cleaner::default() };
    let is_chosen = cleaner.choose_victim(&mut contents, &log, &mut checkpoint);
    assert_eq!(is_chosen, cleaner.victim.is_some());
    cleaner.victim
}

#[test]
fn what_gives_back_most_is_cleaned_first_and_what_gives_back_little_only_for_want_of_room() {
    assert_eq!(chosen(8, true, &[(100, 0, 7), (90, 0, 7), (110, 0, 7)]), Some(1), "the emptiest");
    assert_eq!(chosen(8, true, &[(128, 0, 7), (128, 0, 1)]), Some(1), "the oldest");
    assert_eq!(chosen(8, true, &[(100, 60, 7), (128, 0, 7)]), Some(1), "pages are moved too");
    assert_eq!(chosen(8, true, &[(0, 60, 7)]), None, "a checkpoint moves those by itself");
    assert_eq!([230, 231].map(|live| chosen(8, true, &[(live, 0, 7)])), [Some(0), None]);
    assert_eq!([246, 247].map(|live| chosen(5, true, &[(live, 0, 7)])), [Some(0), None]);
    // Where nothing else is free, only what needs no checkpoint before it is free.
    assert_eq!(chosen(0, true, &[(128, 0, 7), (128, 1, 0), (200, 0, 0)]), Some(2));
    // What is rewritten soon is left alone, but not what would give much more.
    assert_eq!(chosen(8, true, &[(100, 0, 1), (10, 0, 57)]), Some(1));
    assert_eq!(chosen(8, true, &[(200, 0, 100), (100, 0, 100)]), Some(1));
    // While nothing else is to do, for tidiness.
    assert_eq!([128, 129].map(|live| chosen(8, false, &[(live, 0, 7)])), [Some(0), None]);
    assert_eq!(chosen(8, false, &[(100, 1, 7)]), None);
}

#[test]
fn segments_without_anything_live_wait_for_a_checkpoint_and_keep_no_other_from_being_cleaned() {
    let (mut contents, mut log, mut checkpoint) = store_with(8);
    clients_write(&mut log, 1, &contents.segments);
    // Those of no checkpoint yet that are full.
    let is_full = |contents: &mut Contents, index: usize, live: u32| {
        let segment = &mut contents.segments.all[index];
        (segment.state, segment.live, segment.last_sequence) = (SegmentState::Sealed, live, 7);
    };
    let mut cleaner = Cleaner::default();
    (0..4).for_each(|index| is_full(&mut contents, index, 0));
    assert!(!cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    is_full(&mut contents, 4, BLOCKS / 2);
    is_full(&mut contents, 5, BLOCKS / 4);
    assert!(cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    assert_eq!((cleaner.victim, cleaner.idle_budget), (Some(5), 0));
    // With more than a sixteenth of all a checkpoint is worth its while.
    is_full(&mut contents, 6, 0);
    assert!(cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    assert_eq!((cleaner.victim, cleaner.idle_budget), (Some(5), -i64::from(PIECE_BLOCKS)));
}

#[test]
fn clients_that_want_for_room_have_a_checkpoint_written_for_each_segment_that_waits_for_it() {
    for (free, waiting, is_busy, budget) in
        [(5, 1, true, -64), (5, 0, true, 0), (6, 1, true, 0), (5, 1, false, 9), (6, 5, true, -64)]
    {
        let (mut contents, mut log, mut checkpoint) = store_with(free);
        if is_busy {
            clients_write(&mut log, 1, &contents.segments);
        }
        for segment in &mut contents.segments.all[..waiting] {
            (segment.state, segment.last_sequence) = (SegmentState::Sealed, 7);
        }
        let mut cleaner = Cleaner { idle_budget: if is_busy { 0 } else { 9 }, ..Cleaner::default() };
        assert!(!cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
        assert_eq!(cleaner.idle_budget, budget, "{free} {waiting} {is_busy}");
    }
}

#[test]
fn a_victim_is_begun_at_its_begin_and_is_none_that_a_batch_is_on_its_way_to() {
    let (mut contents, log, mut checkpoint) = store_with(8);
    for (segment, in_flight) in [(0, 1), (1, 0)] {
        let segment = &mut contents.segments.all[segment];
        (segment.state, segment.live) = (SegmentState::Sealed, 9);
        segment.in_flight = in_flight;
    }
    let mut cleaner = Cleaner { position: 9, drained_with: Some(1), ..Cleaner::default() };
    cleaner.data_done = Some(3);
    // Who is left alone comes to rest.
    assert!(!cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    cleaner.idle_budget = 1;
    assert!(cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    assert_eq!(cleaner.victim, Some(1));
    assert_eq!((cleaner.position, cleaner.data_done, cleaner.drained_with), (0, None, None));
}

const NOTHING: [(u32, u32); 0] = [];

/// The reads that the next step of cleaning issues: the block that they begin with, and how many.
fn step(
    cleaner: &mut Cleaner,
    (contents, log, checkpoint): (&mut Contents, &mut Log, &mut Checkpoint),
) -> Vec<(u32, u32)> {
    let mut actions = Vec::new();
    cleaner.advance(checkpoint, &mut Turn { contents, log, actions: &mut actions });
    let reads = actions.into_iter().map(|action| match action {
        Action::Read { token: 0, offset, length } => {
            ((offset / BLOCK_BYTES as u64) as u32, (length / BLOCK_BYTES) as u32)
        }
        other => panic!("{other:?}"),
    });
    reads.collect()
}

fn read_ended(cleaner: &mut Cleaner, contents: &mut Contents, log: &mut Log) -> Option<u32> {
    cleaner.read_ended(&mut Turn { contents, log, actions: &mut Vec::new() })
}

#[test]
fn a_victim_is_read_piece_by_piece_and_what_is_still_live_at_its_end_stays_where_it_is() {
    let (mut contents, mut log, mut checkpoint) = store_with(9);
    clients_write(&mut log, 500, &contents.segments);
    let segment = &mut contents.segments.all[3];
    (segment.state, segment.live, segment.written) = (SegmentState::Sealed, 10, 100);
    let begin = contents.segments.location(3, 0);
    let mut cleaner = Cleaner::default();
    // Something is in the cold batch yet.
    *log.open_cold() = log.slots.take();
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING);
    let batch = log.open_cold().take().unwrap();
    log.slots.give_back(batch);
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [(begin, 64)]);
    assert_eq!((contents.segments.all[3].pins, log.cold_is_reserved), (1, true));
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING, "one at a time");
    assert_eq!(read_ended(&mut cleaner, &mut contents, &mut log), Some(3));
    assert_eq!((contents.segments.all[3].pins, log.cold_is_reserved), (0, false));
    cleaner.position = 64;
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [(begin + 64, 36)]);
    read_ended(&mut cleaner, &mut contents, &mut log);
    // All of it was read, and what was moved is durable with that batch.
    (cleaner.position, log.cold_sequence) = (100, 5);
    for durable in [0u64, 4] {
        log.durable.sequence = durable.into();
        assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING);
        assert_eq!((cleaner.victim, cleaner.drained_with), (Some(3), Some(5)));
    }
    log.durable.sequence = 5u64.into();
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING);
    assert_eq!(contents.segments.all[3].state, SegmentState::Quarantined);
    assert_eq!((cleaner.victim, cleaner.drained_with, cleaner.damaged_blocks), (None, None, 10));
}

#[test]
fn while_enough_is_free_a_victim_is_brought_to_its_end_and_no_other_is_chosen() {
    let (mut contents, mut log, mut checkpoint) = store_with(10);
    clients_write(&mut log, 500, &contents.segments);
    let segment = &mut contents.segments.all[3];
    (segment.state, segment.live) = (SegmentState::Sealed, 10);
    let mut cleaner = Cleaner::default();
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING);
    assert_eq!((cleaner.foreground_seen, cleaner.credit), (log.client_blocks, 0), "that is no debt");
    log.client_blocks += 500;
    cleaner.victim = Some(3);
    let begin = contents.segments.location(3, 0);
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [(begin, 64)]);
    read_ended(&mut cleaner, &mut contents, &mut log);
    // A victim of which nothing is live any more was freed meanwhile.
    contents.segments.all[3].state = SegmentState::Free;
    (cleaner.drained_with, cleaner.retries_blocked) = (Some(7), 9);
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING);
    assert_eq!((cleaner.victim, cleaner.drained_with, cleaner.retries_blocked), (None, None, 0));
    assert_eq!(read_ended(&mut cleaner, &mut contents, &mut log), None);
}

fn read_fails(cleaner: &mut Cleaner, contents: &mut Contents, log: &mut Log) {
    let mut turn = Turn { contents, log, actions: &mut Vec::new() };
    let victim = cleaner.read_ended(&mut turn).unwrap();
    cleaner.take_piece(victim, Err(DeviceError("no".to_owned())), &mut turn);
}

#[test]
fn what_cannot_be_read_is_tried_again_later_and_stays_where_it_is_for_a_while_if_that_fails_too() {
    let (mut contents, mut log, mut checkpoint) = store_with(8);
    clients_write(&mut log, 500, &contents.segments);
    let segment = &mut contents.segments.all[3];
    (segment.state, segment.live, segment.written) = (SegmentState::Sealed, 10, 100);
    let begin = contents.segments.location(3, 0);
    let mut cleaner = Cleaner::default();
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [(begin, 64)]);
    let credit = cleaner.credit;
    read_fails(&mut cleaner, &mut contents, &mut log);
    assert_eq!((cleaner.credit, cleaner.idle_budget), (credit - 64, -64), "that is not for nothing");
    assert_eq!((cleaner.victim, contents.segments.all[3].state), (Some(3), SegmentState::Sealed));
    clients_write(&mut log, 100_000, &contents.segments);
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), NOTHING, "not at once");
    cleaner.retry_reads(false, &mut contents.segments);
    assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [(begin, 64)]);
    read_fails(&mut cleaner, &mut contents, &mut log);
    assert_eq!((cleaner.victim, cleaner.drained_with, cleaner.damaged_blocks), (None, None, 0));
    for _ in 1..RETRIES_LONG {
        assert_eq!(contents.segments.all[3].state, SegmentState::Unread);
        cleaner.retry_reads(false, &mut contents.segments);
    }
    assert_eq!(contents.segments.all[3].state, SegmentState::Sealed);
    // One of which nothing is left is free instead.
    let segment = &mut contents.segments.all[4];
    (segment.state, segment.live, segment.pins) = (SegmentState::Sealed, 0, 1);
    (cleaner.victim, cleaner.has_failed) = (Some(4), true);
    read_fails(&mut cleaner, &mut contents, &mut log);
    assert_eq!((cleaner.victim, contents.segments.all[4].state), (None, SegmentState::Free));
}

#[test]
fn a_victim_of_which_a_piece_is_read_at_the_second_try_stays_one_and_its_next_piece_has_two_tries_too() {
    let (mut contents, mut log, mut checkpoint) = store_with(8);
    log.is_starving = true;
    let segment = &mut contents.segments.all[3];
    (segment.state, segment.live, segment.written) = (SegmentState::Sealed, 10, 100);
    let begin = contents.segments.location(3, 0);
    let mut cleaner = Cleaner::default();
    for (first, count) in [(0, 64), (64, 36)] {
        let piece = (begin + first, count);
        assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [piece]);
        read_fails(&mut cleaner, &mut contents, &mut log);
        cleaner.retry_reads(true, &mut contents.segments);
        assert_eq!(step(&mut cleaner, (&mut contents, &mut log, &mut checkpoint)), [piece]);
        let mut turn = Turn { contents: &mut contents, log: &mut log, actions: &mut Vec::new() };
        let victim = cleaner.read_ended(&mut turn).unwrap();
        cleaner.take_piece(victim, Ok(&[0u8; 64 * BLOCK_BYTES]), &mut turn);
        assert_eq!((cleaner.victim, cleaner.has_failed), (Some(3), false));
        // As if it had begun with a header.
        cleaner.position = first + 64;
    }
}

#[test]
fn what_lies_behind_a_header_that_does_not_verify_stays_where_it_is_and_is_counted() {
    let (mut contents, ..) = store_with(8);
    let mut cleaner = Cleaner::default();
    // One of which nothing is left is free instead.
    for (index, live, state) in [(3, 10, SegmentState::Quarantined), (4, 0, SegmentState::Sealed)] {
        let segment = &mut contents.segments.all[index as usize];
        (segment.state, segment.live) = (SegmentState::Sealed, live);
        (cleaner.victim, cleaner.drained_with) = (Some(index), Some(1));
        cleaner.end_victim(&mut contents.segments);
        assert_eq!(contents.segments.all[index as usize].state, state);
        assert_eq!((cleaner.victim, cleaner.drained_with, cleaner.damaged_blocks), (None, None, 10));
    }
    contents.segments.retry_unread();
    assert_eq!(contents.segments.all[3].state, SegmentState::Quarantined, "it reads no better later");
}

#[test]
fn what_is_live_of_a_batch_is_found_in_runs_of_what_lies_together() {
    let (mut contents, ..) = store_with(8);
    let (fingerprints, key) = (Fingerprints::new(&[0; 16]), ObjectKey::default());
    let data = vec![1; 43 * BLOCK_BYTES];
    let checksum = U32::new(crc32c(&data[..BLOCK_BYTES]));
    let mut batch = OpenBatch::new(0, Buffer::new(44 * BLOCK_BYTES), fingerprints.begin());
    // The second write goes on where the first one ends, in the object and on the drive.
    for (kind, first_block, count) in
        [(RecordKind::Write, 100, 40), (RecordKind::Zero, 7, 9), (RecordKind::Write, 140, 3)]
    {
        let record = Record { sequence: 1u64.into(), ..Record::new(kind, key, first_block, count) };
        let blocks = kind.data_blocks(count) as usize;
        batch.push(&record, [&vec![checksum; blocks][..]], &data[..blocks * BLOCK_BYTES]);
    }
    let header = BatchHeader { sequence: 1u64.into(), ..BatchHeader::default() };
    batch.seal(header);
    let block = batch.buffer.bytes()[..BLOCK_BYTES].to_vec();
    let header = header_of(&block, &fingerprints).unwrap();
    let begin = contents.segments.location(5, 1);
    for number in 0..43 {
        let entry = Entry { location: begin + number, crc32c: checksum.get() };
        contents.index.set(key, 100 + number as u16, entry, Sequence(1));
    }
    // The record of each run, its first block, how many, where, its first checksum, and whether it is damaged.
    let runs = |contents: &Contents, done: u32, count: u32, data: &[u8], blocks_max: u32| {
        let (mut cleaner, here) = (Cleaner::default(), begin + done);
        cleaner.find_runs((&header, &block), (done, count), (here, data), contents, blocks_max);
        let told = cleaner.scratch_runs.iter().map(|run| {
            let at = run.location - begin;
            let number = |tail_at: usize| run.checksums_at.checked_sub(tail_at).map(|bytes| bytes / 4);
            let of_record = |(record, view): (usize, RecordView<'_>)| {
                Some((record, number(view.tail_at).filter(|number| *number < view.tail.len())?))
            };
            let (record, tail_index) = records(&block, &header).enumerate().find_map(of_record).unwrap();
            (record, run.first_block, run.block_count, at, tail_index, run.is_damaged)
        });
        told.collect::<Vec<_>>()
    };
    // A batch takes a run of half its blocks, whatever is in it already.
    let eight = |at: u16| (0, 100 + at, 8, at.into(), at.into(), false);
    let expected: Vec<(usize, u16, u16, u32, usize, bool)> =
        [0, 8, 16, 24, 32].map(eight).into_iter().chain([(2, 140, 3, 40, 0, false)]).collect();
    assert_eq!(runs(&contents, 0, 43, &data, 16), expected);
    // One was written elsewhere, and one is damaged.
    contents.index.set(key, 110, Entry { location: 7, crc32c: 7 }, Sequence(2));
    let mut damaged = data.clone();
    damaged[20 * BLOCK_BYTES] = 2;
    assert_eq!(
        runs(&contents, 0, 43, &damaged, 64),
        [
            (0, 100, 10, 0, 0, false),
            (0, 111, 9, 11, 11, false),
            (0, 120, 1, 20, 20, true),
            (0, 121, 19, 21, 21, false),
            (2, 140, 3, 40, 0, false)
        ]
    );
    // Of what was read there are these only.
    let piece = &damaged[10 * BLOCK_BYTES..15 * BLOCK_BYTES];
    assert_eq!(runs(&contents, 10, 5, piece, 64), [(0, 111, 4, 11, 11, false)]);
}

const SEGMENTS: u64 = 32;
const SEGMENT_BYTES: u32 = 4 << 20;
const FULL_BLOCKS: u32 = SEGMENT_BYTES / BLOCK_BYTES as u32;
/// The segment of which less is live than of the others.
const VICTIM: u32 = 7;

/// A store in which no segment is free, and a client waits. The cold stream has so many blocks left in its segment, and a
/// next one or none.
fn full(cold_room: u32, has_next: bool) -> (Contents, Log, Checkpoint) {
    let device_bytes = SEGMENTS_OFFSET + SEGMENTS * u64::from(SEGMENT_BYTES);
    let mut segments = Segments::new(device_bytes, SEGMENT_BYTES);
    segments.covers = 10;
    for (index, segment) in segments.all.iter_mut().enumerate() {
        (segment.state, segment.live) = match index {
            0 | 1 => (SegmentState::Open, 0),
            2 => (SegmentState::Next, 0),
            // Four batches, each of a header and what has room behind it.
            _ => (SegmentState::Sealed, FULL_BLOCKS - 4),
        };
    }
    let superblock = Superblock {
        device_bytes: device_bytes.into(),
        segment_bytes: SEGMENT_BYTES.into(),
        covers: segments.covers.into(),
        // It was opened and had checkpoints before.
        sequence: 100u64.into(),
        ..Superblock::empty()
    };
    let cursor = |segment: u32, block: u32| Cursor { segment: segment.into(), block: block.into() };
    let next = if has_next { 2 } else { NO_SEGMENT };
    let end = LogEnd {
        sequence: 20u64.into(),
        cursors: [cursor(0, FULL_BLOCKS), cursor(1, FULL_BLOCKS - cold_room)],
        next_segment: [NO_SEGMENT.into(), next.into()],
        ..LogEnd::default()
    };
    let options = Options::default();
    let fingerprints = Fingerprints::new(&superblock.secret);
    let mut log = Log::new(end, &superblock, fingerprints, &segments, &options, 0, false);
    log.is_starving = true;
    let checkpoint = Checkpoint::new(superblock, &segments, &options);
    let logs = PgLogs::new(options.pg_log_entries);
    (Contents { index: Index::default(), logs, segments }, log, checkpoint)
}

#[test]
fn what_costs_more_than_it_gives_or_than_there_is_room_for_is_not_moved() {
    let is_chosen = |live, cold_room, has_next| {
        let (mut contents, log, mut checkpoint) = full(cold_room, has_next);
        contents.segments.all[VICTIM as usize].live = live;
        let mut cleaner = Cleaner::default();
        let is_chosen = cleaner.choose_victim(&mut contents, &log, &mut checkpoint);
        assert_eq!(cleaner.victim, is_chosen.then_some(VICTIM));
        is_chosen
    };
    let headers = FULL_BLOCKS / (PIECE_BLOCKS / 2);
    let most = FULL_BLOCKS - headers - 2;
    assert_eq!(
        [most, most + 1, FULL_BLOCKS - 4].map(|live| is_chosen(live, 500, true)),
        [true, false, false]
    );
    // A block is kept where neither stream goes on.
    let room = 500 + headers + 1;
    assert_eq!([room, room - 1].map(|room| is_chosen(500, room, false)), [true, false]);
    assert!(is_chosen(500, 0, true));
}

#[test]
fn who_wants_for_room_has_all_tried_again_and_after_long_is_told_that_there_is_none() {
    let (mut contents, mut log, mut checkpoint) = full(500, true);
    let victim = &mut contents.segments.all[VICTIM as usize];
    (victim.state, victim.live) = (SegmentState::Unread, 500);
    let mut cleaner = Cleaner::default();
    let found = |cleaner: &Cleaner, contents: &Contents| {
        (contents.segments.all[VICTIM as usize].state, cleaner.retries_blocked)
    };
    // Who waits for a checkpoint has nothing tried again.
    contents.segments.all[9].live = 0;
    assert!(!cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    cleaner.retry_reads(true, &mut contents.segments);
    assert_eq!(found(&cleaner, &contents), (SegmentState::Unread, 0));
    contents.segments.all[9].live = FULL_BLOCKS - 4;
    assert!(!cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    cleaner.retry_reads(true, &mut contents.segments);
    assert_eq!(found(&cleaner, &contents), (SegmentState::Sealed, 1));
    assert!(cleaner.choose_victim(&mut contents, &log, &mut checkpoint));
    assert_eq!((cleaner.victim, cleaner.is_stuck), (Some(VICTIM), false));
    for _ in 1..RETRIES_LONG {
        // A read takes longer than the time between two tries.
        cleaner.retry_reads(true, &mut contents.segments);
        assert!(!cleaner.is_blocked(&log));
        cleaner.is_paused = true;
        cleaner.retry_reads(true, &mut contents.segments);
    }
    assert!(cleaner.is_blocked(&log));
    log.is_starving = false;
    assert!(!cleaner.is_blocked(&log), "nobody waits any more");
    cleaner.retry_reads(false, &mut contents.segments);
    assert_eq!(cleaner.retries_blocked, 0);
}

#[test]
fn checkpoints_follow_each_other_for_room_only_as_long_as_something_else_is_written_or_moved() {
    let (mut contents, mut log, checkpoint) = full(500, true);
    contents.segments.all[VICTIM as usize].state = SegmentState::Unread;
    // It waits for a checkpoint.
    contents.segments.all[9].live = 0;
    let mut cleaner = Cleaner::default();
    let first = *checkpoint.superblock();
    let mut is_stuck = |log: &Log, written: u64| {
        let mut superblock = first;
        superblock.sequence = (first.sequence.get() + written).into();
        let mut checkpoint = Checkpoint::new(superblock, &contents.segments, &Options::default());
        assert!(!cleaner.choose_victim(&mut contents, log, &mut checkpoint));
        cleaner.is_stuck
    };
    assert!((0..CHECKPOINTS_MAX).all(|written| !is_stuck(&log, written)));
    assert!(is_stuck(&log, CHECKPOINTS_MAX) && is_stuck(&log, CHECKPOINTS_MAX + 1));
    log.client_sequence += 1;
    assert!(!is_stuck(&log, CHECKPOINTS_MAX + 1));
}

#[test]
fn where_none_is_free_a_checkpoint_begins_that_moves_pages_out_of_what_is_dead() {
    let (mut contents, mut log, mut checkpoint) = full(500, true);
    let Contents { index, segments, .. } = &mut contents;
    let key = ObjectKey::default();
    let page = Piece {
        location: segments.location(VICTIM, 9).into(),
        bytes: (BLOCK_BYTES as u32).into(),
        ..Piece::default()
    };
    let mut object = ObjectIndex::default();
    object.set(0, Entry { location: segments.location(VICTIM + 1, 1), crc32c: 0 }, Sequence(1));
    (object.is_dirty, object.page) = (false, Some(page));
    assert!(index.insert(key, object));
    segments.piece_was_placed(&page);
    segments.all[VICTIM as usize].live = 0;
    let begins = |contents: &mut Contents, log: &mut Log, checkpoint: &mut Checkpoint| {
        let mut actions = Vec::new();
        checkpoint.advance(false, &mut Turn { contents, log, actions: &mut actions }).unwrap();
        !checkpoint.is_idle()
    };
    assert!(!begins(&mut contents, &mut log, &mut checkpoint), "nobody wants one");
    assert!(!Cleaner::default().choose_victim(&mut contents, &log, &mut checkpoint));
    assert!(begins(&mut contents, &mut log, &mut checkpoint));
    let page = contents.index.get(&key).unwrap().page.unwrap();
    assert_ne!(contents.segments.of(page.location.get()), Some(VICTIM), "it is written anew");
}
