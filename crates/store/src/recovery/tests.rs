//! What a start takes for a part of its log, piece by piece.

use super::*;
use crate::batch::OpenBatch;
use crate::device::Memory;
use crate::layout::{Record, SEGMENTS_OFFSET, Secret};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const SECRET: Secret = *b"this one is ours";
const BLOCKS: u32 = 16;
const COUNT: u32 = 32;
const SEGMENT_BYTES: u32 = BLOCKS * BLOCK_BYTES as u32;
const DRIVE_BYTES: u64 = SEGMENTS_OFFSET + COUNT as u64 * SEGMENT_BYTES as u64;
const FIRST: u32 = (SEGMENTS_OFFSET / BLOCK_BYTES as u64) as u32;

fn options() -> Options {
    Options { segment_bytes: Some(SEGMENT_BYTES), batch_bytes_max: 32 << 10, ..Options::default() }
}

/// One of a drive that was opened three times, and whose checkpoint covers five batches.
fn superblock() -> Superblock {
    Superblock {
        device_bytes: DRIVE_BYTES.into(),
        segment_bytes: SEGMENT_BYTES.into(),
        mount: 3u64.into(),
        covers: 5u64.into(),
        secret: SECRET,
        ..Superblock::empty()
    }
}

fn cursor(segment: u32, block: u32) -> Cursor {
    Cursor { segment: segment.into(), block: block.into() }
}

fn end() -> LogEnd {
    LogEnd {
        sequence: 5u64.into(),
        mount: 3u64.into(),
        cursors: [cursor(0, 2), cursor(1, 2)],
        next_segment: [2, 3].map(Into::into),
    }
}

fn location(segment: u32, block: u32) -> u32 {
    FIRST + segment * BLOCKS + block
}

/// What cannot be, or is damaged, and where.
fn told<T>(result: Result<T, OpenError>) -> Option<(&'static str, u64)> {
    match result {
        Ok(_) => None,
        Err(OpenError::Damaged { what, offset } | OpenError::Impossible { what, offset }) => {
            Some((what, offset))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_window_shows_what_is_on_the_drive_up_to_its_last_block() {
    let mut drive = Memory::new(64 * BLOCK_BYTES as u64);
    for block in 0..64u8 {
        drive.write(u64::from(block) * BLOCK_BYTES as u64, &[block; BLOCK_BYTES]).unwrap();
    }
    let mut window = Window::new(8 * BLOCK_BYTES);
    for (location, count) in [(0, 1), (7, 1), (7, 2), (3, 8), (10, 1), (11, 1), (60, 4), (63, 1), (2, 3)] {
        let bytes = window.blocks(&mut drive, location, count).unwrap();
        let shown: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(|block| block[0].into()).collect();
        assert_eq!(shown, (location..location + count).collect::<Vec<_>>());
    }
    assert!(window.blocks(&mut drive, 62, 4).is_err());
    assert_eq!(window.blocks(&mut drive, 62, 1).unwrap()[0], 62);
}

#[test]
fn what_is_wanted_is_read_where_what_lies_behind_it_cannot_be() {
    let mut drive = Memory::new(64 * BLOCK_BYTES as u64);
    for block in 0..64u8 {
        drive.write(u64::from(block) * BLOCK_BYTES as u64, &[block; BLOCK_BYTES]).unwrap();
    }
    drive.bad = [13, 43].into();
    let mut window = Window::new(8 * BLOCK_BYTES);
    for location in (0..64).filter(|location| ![13, 43].contains(location)) {
        assert_eq!(u32::from(window.blocks(&mut drive, location, 1).unwrap()[0]), location);
    }
    // A read of all that is ahead fails once for each bad block: from there to behind it blocks are read one by one.
    let [all, ones] = [(64 - 16) / 8, 2 * 7];
    assert_eq!(drive.reads, 2 + all + ones);
    let mut window = Window::new(8 * BLOCK_BYTES);
    assert!(window.blocks(&mut drive, 12, 2).is_err() && window.blocks(&mut drive, 43, 1).is_err());
    assert_eq!(window.blocks(&mut drive, 11, 2).unwrap()[BLOCK_BYTES], 12);
}

/// What a start takes a block for that cannot be read at first: it is bad, it is read after all, or the drive is away.
fn taken_for(drive: &mut Memory, location: u32) -> Option<bool> {
    let mut window = Window::new(8 * BLOCK_BYTES);
    let shown = BadBlocks::new().block(&mut window, drive, location);
    shown.ok().map(|bytes| bytes.is_none())
}

#[test]
fn a_block_is_bad_if_its_neighbours_can_be_read_and_it_cannot() {
    let [is_bad, is_read, is_away] = [Some(true), Some(false), None];
    let drive = Memory::new(64 * BLOCK_BYTES as u64);
    let with = |bad: std::ops::Range<u64>| Memory { bad: bad.collect(), ..drive.clone() };
    // A sector, or a page of flash, wherever it lies: at the end of a drive too.
    for bad in [20..21, 20..24, 21..23, 63..64, 60..64] {
        for location in bad.clone() {
            assert_eq!(taken_for(&mut with(bad.clone()), location as u32), is_bad, "{location} of {bad:?}");
        }
    }
    // A part of a drive.
    for bad in [16..32, 0..32, 32..64, 0..64] {
        for location in bad.clone() {
            assert_eq!(taken_for(&mut with(bad.clone()), location as u32), is_away, "{location} of {bad:?}");
        }
    }
    // Nothing can be read for so many reads, from whichever on.
    for away in (0..20).flat_map(|from| (from + 1..20).map(move |to| from..to)) {
        let mut sound = Memory { away: away.clone().collect(), ..drive.clone() };
        assert_ne!(taken_for(&mut sound, 20), is_bad, "it was away for {away:?}");
        let mut bad = Memory { away: away.clone().collect(), ..with(20..21) };
        assert_ne!(taken_for(&mut bad, 20), is_read, "it was away for {away:?}");
    }
    // With what lies behind it and alone, then after each look at its neighbours; at last it can be read.
    for away in [&[0, 1][..], &[0, 1, 4], &[0, 1, 4, 7]] {
        let mut comes_and_goes = Memory { away: away.iter().copied().collect(), ..drive.clone() };
        assert_eq!(taken_for(&mut comes_and_goes, 20), is_read, "it was away for {away:?}");
    }
}

#[test]
fn a_bad_block_that_was_met_is_not_tried_again() {
    let mut drive = Memory::new(64 * BLOCK_BYTES as u64);
    drive.bad = [20].into();
    let (mut bad_blocks, mut window) = (BadBlocks::new(), Window::new(BLOCK_BYTES));
    let mut is_bad = |drive: &mut Memory| bad_blocks.block(&mut window, drive, 20).unwrap().is_none();
    assert!(is_bad(&mut drive));
    let reads = drive.reads;
    assert!(is_bad(&mut drive) && drive.reads == reads);
}

#[test]
fn a_checkpoint_ends_where_the_log_can_have_ended_when_it_was_begun() {
    let mut drive = Memory::new(DRIVE_BYTES);
    let recovery = Recovery::new(&mut drive, superblock(), &options());
    let may_end = |change: &dyn Fn(&mut LogEnd)| {
        let mut changed = end();
        change(&mut changed);
        recovery.may_end(&changed)
    };
    assert!(may_end(&|_| {}));
    for (mount, is) in [(0u64, true), (2, true), (4, false)] {
        assert_eq!(may_end(&|end| end.mount = mount.into()), is);
    }
    for sequence in [4u64, 6] {
        assert!(!may_end(&|end| end.sequence = sequence.into()));
    }
    for stream in 0..STREAMS {
        for (segment, block, is) in
            [(COUNT - 1, BLOCKS, true), (COUNT, 0, false), (0, BLOCKS + 1, false), (u32::MAX, 0, false)]
        {
            let moved = |end: &mut LogEnd| end.cursors[stream] = cursor(segment, block);
            assert_eq!(may_end(&moved), is, "{stream}: {segment} {block}");
        }
        for (next, is) in [(COUNT - 1, true), (COUNT, false), (NO_SEGMENT, true), (NO_SEGMENT - 1, false)] {
            assert_eq!(may_end(&|end| end.next_segment[stream] = next.into()), is, "{stream}: {next}");
        }
    }
}

#[test]
fn a_log_goes_on_only_where_nothing_lies_that_is_needed() {
    let goes_on = |change: &dyn Fn(&mut Contents, &mut LogEnd)| {
        let mut drive = Memory::new(DRIVE_BYTES);
        let mut recovery = Recovery::new(&mut drive, superblock(), &options());
        recovery.end = end();
        change(&mut recovery.contents, &mut recovery.end);
        recovery.can_go_on()
    };
    assert!(goes_on(&|_, _| {}));
    assert!(goes_on(&|contents, _| contents.segments.all[0].live = 9), "it is written on behind that");
    for next in [2, 3] {
        assert!(goes_on(&|contents, _| contents.segments.all[next].last_sequence = 5));
        assert!(!goes_on(&|contents, _| contents.segments.all[next].last_sequence = 6));
        assert!(!goes_on(&|contents, _| contents.segments.all[next].live = 1));
        assert!(!goes_on(&|contents, _| contents.segments.all[next].pages = 1));
    }
    // Where both streams are, and where they go on.
    for (places, is) in [
        ([5, 4, 3, 2], true),
        ([0, 1, 2, NO_SEGMENT], true),
        ([0, 1, NO_SEGMENT, NO_SEGMENT], true),
        ([0, 0, 2, 3], false),
        ([0, 1, 0, 3], false),
        ([0, 1, 1, 3], false),
        ([0, 1, 2, 0], false),
        ([0, 1, 2, 1], false),
        ([0, 1, 2, 2], false),
    ] {
        let moved = |_: &mut Contents, end: &mut LogEnd| {
            end.cursors = [cursor(places[0], 2), cursor(places[1], 2)];
            end.next_segment = [places[2].into(), places[3].into()];
        };
        assert_eq!(goes_on(&moved), is, "{places:?}");
    }
}

#[test]
fn a_piece_of_a_checkpoint_lies_in_one_segment_and_beside_the_others() {
    const BLOCK: u32 = BLOCK_BYTES as u32;
    let outside = "a checkpoint's pointer to a place outside of the log";
    for (at, bytes, is) in [
        (location(3, 0), BLOCKS * BLOCK, true),
        (location(3, 1), BLOCKS * BLOCK, false),
        (location(3, 15), BLOCK, true),
        (location(3, 15), BLOCK + 1, false),
        (location(3, 0), 0, false),
        (FIRST - 1, 1, false),
        (location(COUNT - 1, 15), 1, true),
        (location(COUNT, 0), 1, false),
        (u32::MAX, BLOCK + 1, false),
    ] {
        let mut drive = Memory::new(DRIVE_BYTES);
        let mut recovery = Recovery::new(&mut drive, superblock(), &options());
        let piece = Piece { location: at.into(), bytes: bytes.into(), ..Piece::default() };
        let expected = (!is).then_some((outside, u64::from(at) * BLOCK_BYTES as u64));
        assert_eq!(told(recovery.count_piece(&piece)), expected, "{at}: {bytes}");
        let counted = if is { u64::from(piece.blocks()) } else { 0 };
        assert_eq!(recovery.contents.segments.pages_blocks, counted);
    }
    let mut drive = Memory::new(DRIVE_BYTES);
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    let mut count = |bytes: u32| {
        let piece = Piece { location: location(3, 0).into(), bytes: bytes.into(), ..Piece::default() };
        told(recovery.count_piece(&piece)).map(|(what, _)| what)
    };
    assert_eq!([count(15 * BLOCK), count(BLOCK)], [None, None]);
    assert_eq!(count(1), Some("a checkpoint's pointer to a place of another"));
}

/// A root without objects, with one group that has so many entries, doubts and steps of what it held; the last of the entries
/// and doubts is about these blocks.
fn root([entries, doubts, held]: [u32; 3], (first_block, block_count): (u16, u16)) -> Vec<u8> {
    let header = RootHeader { end: end(), object_count: 0u64.into(), group_count: 1u64.into() };
    let group = RootGroup {
        pool: 7u32.into(),
        entry_count: entries.into(),
        doubt_count: doubts.into(),
        held_count: held.into(),
        log_begins: 1u64.into(),
        batches_ahead: 4u32.into(),
        ..RootGroup::default()
    };
    let mut bytes = [header.as_bytes(), group.as_bytes()].concat();
    for number in 1..=entries + doubts {
        let sequence = u64::from(number).into();
        let mut entry = RootEntry { sequence, block_count: 1u16.into(), ..RootEntry::default() };
        if number == entries + doubts {
            (entry.first_block, entry.block_count) = (first_block.into(), block_count.into());
        }
        bytes.extend_from_slice(entry.as_bytes());
    }
    for _ in 0..held {
        bytes.extend_from_slice(RootHeld { through: 9u64.into(), ..RootHeld::default() }.as_bytes());
    }
    bytes
}

#[test]
fn a_group_in_a_root_has_no_more_than_a_log_keeps() {
    let parse = |bytes: &[u8]| {
        let mut drive = Memory::new(DRIVE_BYTES);
        let mut recovery = Recovery::new(&mut drive, superblock(), &options());
        told(recovery.parse_root(bytes, 99))
    };
    let offset = 99 * BLOCK_BYTES as u64;
    let most = [PG_LOG_ENTRIES, DOUBTS_MAX, HELD_MAX].map(|count| count as u32);
    assert_eq!(parse(&root(most, (1023, 1))), None);
    let impossible = Some(("a group in the root of the checkpoint", offset));
    for more in 0..3 {
        let mut counts = [2, 2, 2];
        counts[more] = most[more] + 1;
        assert_eq!(parse(&root(counts, (0, 1))), impossible, "{counts:?}");
    }
    assert_eq!(parse(&root([2, 2, 2], (1023, 2))), impossible, "one of them is about what no object has");
    let whole = root([2, 1, 1], (0, 1));
    assert_eq!(parse(&whole), None);
    for bytes in [0, 50, 60, 150, 200, whole.len() - 1] {
        let damaged = Some(("the root of the checkpoint", offset));
        assert_eq!(parse(&whole[..bytes]), damaged, "it ends after {bytes} bytes");
    }
}

#[test]
fn what_a_root_says_of_a_group_is_what_its_log_tells() {
    let mut drive = Memory::new(DRIVE_BYTES);
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    assert!(recovery.parse_root(&root([3, 2, 1], (0, 1)), 99).is_ok());
    let (pg, log) = recovery.contents.logs.groups.iter().next().unwrap();
    assert_eq!(*pg, PgId { pool: PoolId(7), index: 0 });
    assert!(log.entries.iter().map(|entry| entry.sequence.0).eq([1, 2, 3]));
    assert!(log.doubts.iter().map(|entry| entry.sequence.0).eq([4, 5]));
    assert_eq!((log.held.len(), log.held[0].through, log.begins), (1, Sequence(9), Sequence(1)));
    assert!(!log.is_incomplete && log.reached.is_none() && log.modulus == 0);
    // It tells of four batches that the checkpoint does not cover.
    assert_eq!((recovery.logs_through, recovery.contents.logs.ahead.len()), (9, 1));
    assert_eq!((recovery.end.sequence.get(), recovery.chain.sequence.get()), (5, 5));
}

/// The header of the batch that follows [`end`].
fn next_header() -> BatchHeader {
    BatchHeader {
        sequence: 6u64.into(),
        mount: 3u64.into(),
        mount_begin: 1u64.into(),
        durable_through: 5u64.into(),
        next_segment: [2, 3].map(Into::into),
        ..BatchHeader::default()
    }
}

/// Writes a batch with so many data blocks.
fn put(drive: &mut Memory, (segment, block): (u32, u32), header: BatchHeader, data_blocks: u16) {
    let count = usize::from(data_blocks);
    let fingerprint = Fingerprints::new(&SECRET).begin();
    let mut batch = OpenBatch::new(0, Buffer::new((1 + count) * BLOCK_BYTES), fingerprint);
    if count > 0 {
        let record = Record::new(RecordKind::Write, ObjectKey::default(), 0, data_blocks);
        let record = Record { sequence: 1u64.into(), ..record };
        batch.push(&record, [&vec![U32::ZERO; count][..]], &vec![1; count * BLOCK_BYTES]);
    }
    batch.seal(header);
    let offset = u64::from(location(segment, block)) * BLOCK_BYTES as u64;
    drive.write(offset, batch.buffer.bytes()).unwrap();
}

/// Where the batch is found that follows [`end`], by a start whose superblock says that.
fn found(drive: &mut Memory, superblock: Superblock) -> Result<Option<(u32, u32)>, OpenError> {
    let mut recovery = Recovery::new(drive, superblock, &options());
    recovery.chain = end();
    let found = recovery.next_batch()?;
    Ok(found.map(|found| (found.place.segment.get(), found.place.block.get())))
}

#[test]
fn the_next_batch_is_found_where_a_stream_ended_or_was_said_to_go_on_and_nowhere_else() {
    let at = |place: (u32, u32), header: BatchHeader, data_blocks: u16| {
        let mut drive = Memory::new(DRIVE_BYTES);
        put(&mut drive, place, header, data_blocks);
        found(&mut drive, superblock()).unwrap()
    };
    let cold = BatchHeader { stream: 1, ..next_header() };
    for (place, header) in [((0, 2), next_header()), ((2, 0), next_header()), ((1, 2), cold), ((3, 0), cold)]
    {
        assert_eq!(at(place, header, 3), Some(place));
        let BatchHeader { stream, .. } = header;
        let other = BatchHeader { stream: 1 - stream, ..header };
        assert_eq!(at(place, other, 3), None, "it is of the other stream");
        let behind = (place.0, place.1 + 1);
        assert_eq!(at(behind, header, 3), None);
        // With its data it lies within its segment.
        let most = (BLOCKS - place.1 - 1) as u16;
        let blocks = [most, most + 1].map(|data_blocks| at(place, header, data_blocks));
        assert_eq!(blocks, [Some(place), None]);
        for sequence in [5u64, 7] {
            let other = BatchHeader { sequence: sequence.into(), durable_through: 4u64.into(), ..header };
            assert_eq!(at(place, other, 3), None, "{sequence}");
        }
    }
    assert_eq!(at((4, 0), next_header(), 3), None);
    // Where the streams go on behind it there is room for that.
    for stream in 0..STREAMS {
        for (next, is) in [(COUNT - 1, true), (NO_SEGMENT, true), (COUNT, false)] {
            let mut header = next_header();
            header.next_segment[stream] = next.into();
            let mut drive = Memory::new(DRIVE_BYTES);
            put(&mut drive, (0, 2), header, 3);
            let what = told(found(&mut drive, superblock())).map(|(what, _)| what);
            let expected = (!is).then_some("a segment that is announced by the batch");
            assert_eq!(what, expected, "{stream}: {next}");
        }
    }
}

#[test]
fn of_batches_for_one_place_the_last_openings_counts_and_none_that_was_given_up() {
    let of = |mount: u64, begin: u64| BatchHeader {
        mount: mount.into(),
        mount_begin: begin.into(),
        ..next_header()
    };
    let superblock_of = |mount: u64, begin: u64| Superblock {
        mount: mount.into(),
        mount_begin: begin.into(),
        ..superblock()
    };
    // What lies where the stream ended, and where it goes on; what the superblock says; and which of them counts.
    let here = Some((0, 2));
    let there = Some((2, 0));
    for (first, second, superblock, expected) in [
        (of(3, 1), of(4, 6), superblock_of(4, 0), there),
        (of(4, 6), of(3, 1), superblock_of(4, 0), here),
        (of(4, 0), of(3, 1), superblock_of(4, 0), here),
        // It did not begin there, and what came before it is not there.
        (of(4, 5), of(3, 1), superblock_of(4, 0), there),
        // Of earlier ones than the last before it, and of openings that never were.
        (of(2, 6), of(5, 6), superblock_of(4, 0), None),
        // From there on all that counts is of the last opening.
        (of(3, 1), of(3, 1), superblock_of(4, 6), None),
        (of(3, 1), of(4, 6), superblock_of(4, 6), there),
        (of(3, 1), of(2, 1), superblock_of(4, 7), here),
        (of(3, 1), of(2, 1), superblock_of(4, 5), None),
    ] {
        let mut drive = Memory::new(DRIVE_BYTES);
        put(&mut drive, (0, 2), first, 3);
        put(&mut drive, (2, 0), second, 2);
        let described = format!("{first:?} {second:?} {:?}", superblock.mount_begin);
        assert_eq!(found(&mut drive, superblock).unwrap(), expected, "{described}");
    }
}

#[test]
fn a_batch_is_whole_if_all_its_data_are_there() {
    for data_blocks in [0, 1, 3] {
        let mut drive = Memory::new(DRIVE_BYTES);
        put(&mut drive, (0, 2), next_header(), data_blocks);
        let is_whole = |drive: &mut Memory| {
            let mut recovery = Recovery::new(drive, superblock(), &options());
            recovery.chain = end();
            let found = recovery.next_batch().unwrap().unwrap();
            recovery.is_whole(&found).unwrap()
        };
        assert!(is_whole(&mut drive));
        // What lies behind it is none of its.
        let behind = u64::from(location(0, 3) + u32::from(data_blocks)) * BLOCK_BYTES as u64;
        drive.write(behind, &[7; BLOCK_BYTES]).unwrap();
        assert!(is_whole(&mut drive));
        drive.write(behind - BLOCK_BYTES as u64, &[7; BLOCK_BYTES]).unwrap();
        assert!(data_blocks == 0 || !is_whole(&mut drive), "{data_blocks}");
    }
}

#[test]
fn a_batch_of_which_a_block_is_bad_is_not_whole_and_that_is_told() {
    let mut drive = Memory::new(DRIVE_BYTES);
    put(&mut drive, (0, 2), next_header(), 3);
    let is_whole = |drive: &mut Memory| {
        let mut recovery = Recovery::new(drive, superblock(), &options());
        recovery.chain = end();
        let found = recovery.next_batch().unwrap().unwrap();
        recovery.is_whole(&found).map(|is_whole| (is_whole, recovery.unreadable_blocks))
    };
    assert_eq!(is_whole(&mut drive).unwrap(), (true, 0));
    for block in 3..6 {
        drive.bad = [u64::from(location(0, block))].into();
        assert_eq!(is_whole(&mut drive).unwrap(), (false, 1));
    }
    // All of it cannot be read at once, but block by block.
    drive.bad.clear();
    let first_of_data = drive.reads + 4;
    drive.away = [first_of_data].into();
    assert_eq!(is_whole(&mut drive).unwrap(), (true, 0));
    assert!(drive.reads > first_of_data + 2);
    // The drive goes away.
    drive.away = (drive.reads + 4..drive.reads + 100).collect();
    assert!(matches!(is_whole(&mut drive), Err(OpenError::Device(_))));
}

#[test]
fn a_bad_block_is_no_header_and_where_the_log_ends_for_it_that_is_told() {
    for place in [(0, 2), (2, 0), (1, 2), (3, 0)] {
        let mut drive = Memory::new(DRIVE_BYTES);
        drive.bad = [u64::from(location(place.0, place.1))].into();
        let mut recovery = Recovery::new(&mut drive, superblock(), &options());
        recovery.chain = end();
        assert!(recovery.next_batch().unwrap().is_none());
        assert_eq!(recovery.unreadable_blocks, 1, "{place:?}");
    }
    // Where it does not end nothing is to be told.
    let mut drive = Memory::new(DRIVE_BYTES);
    put(&mut drive, (0, 2), next_header(), 3);
    drive.bad = [u64::from(location(2, 0))].into();
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    recovery.chain = end();
    assert!(recovery.next_batch().unwrap().is_some());
    assert_eq!(recovery.unreadable_blocks, 0);
}

#[test]
fn what_says_that_more_of_the_log_was_durable_is_no_end_of_it() {
    let lost = |place: (u32, u32), sequence: u64, durable_through: u64| {
        let mut drive = Memory::new(DRIVE_BYTES);
        let header = BatchHeader {
            sequence: sequence.into(),
            durable_through: durable_through.into(),
            ..next_header()
        };
        put(&mut drive, place, header, 0);
        let mut recovery = Recovery::new(&mut drive, superblock(), &options());
        recovery.end = end();
        told(recovery.search_for_lost_batches(5))
    };
    let header = "the header of a batch of the log";
    let offset = |stream: u32| u64::from(location(stream, 2)) * BLOCK_BYTES as u64;
    let places = [((0, 2), 0), ((0, 15), 0), ((2, 0), 0), ((2, 15), 0), ((1, 9), 1), ((3, 4), 1)];
    for (place, stream) in places {
        assert_eq!(lost(place, 7, 6), Some((header, offset(stream))), "{place:?}");
        assert_eq!(lost(place, 7, 5), None, "it was under way with the one that is missing");
    }
    for place in [(0, 1), (1, 0), (4, 0)] {
        assert_eq!(lost(place, 7, 6), None, "{place:?} is not where the log goes on");
    }
    // Bad blocks around it hide it as little as they end the search.
    let mut drive = Memory::new(DRIVE_BYTES);
    drive.bad = [(0, 3), (0, 9), (2, 1)].map(|(segment, block)| u64::from(location(segment, block))).into();
    let search = |drive: &mut Memory| {
        let mut recovery = Recovery::new(drive, superblock(), &options());
        recovery.end = end();
        told(recovery.search_for_lost_batches(5))
    };
    assert_eq!(search(&mut drive), None);
    let header = BatchHeader { sequence: 7u64.into(), durable_through: 6u64.into(), ..next_header() };
    put(&mut drive, (0, 12), header, 0);
    assert_eq!(search(&mut drive), Some(("the header of a batch of the log", offset(0))));
    let mut drive = Memory::new(DRIVE_BYTES);
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    recovery.end = end();
    assert_eq!(told(recovery.search_for_lost_batches(6)), Some(("a batch of the log", offset(0))));
}

/// A batch: where it lies, its sequence, through which the log was durable, and what it announces.
type Told = ((u32, u32), u64, u64, [u32; 2]);

#[test]
fn the_log_is_searched_where_those_batches_go_on_that_follow_the_missing_one() {
    let lost = |next: [u32; 2], batches: &[Told], live: u32| {
        let mut drive = Memory::new(DRIVE_BYTES);
        for (place, sequence, durable_through, next) in batches {
            let header = BatchHeader {
                sequence: (*sequence).into(),
                durable_through: (*durable_through).into(),
                next_segment: next.map(Into::into),
                ..next_header()
            };
            put(&mut drive, *place, header, 0);
        }
        let mut recovery = Recovery::new(&mut drive, superblock(), &options());
        recovery.end = LogEnd { next_segment: next.map(Into::into), ..end() };
        recovery.contents.segments.all[7].live = live;
        told(recovery.search_for_lost_batches(5))
    };
    let [hot, cold] = [0, 1].map(|stream: u32| {
        Some(("the header of a batch of the log", u64::from(location(stream, 2)) * BLOCK_BYTES as u64))
    });
    // Of the segment after the next one a batch tells that was still under way with the missing one.
    let goes_on = ((2, 0), 7, 5, [7, 3]);
    assert_eq!(lost([2, 3], &[goes_on, ((7, 9), 8, 6, [7, 3])], 0), hot);
    assert_eq!(lost([2, 3], &[goes_on, ((7, 9), 8, 5, [7, 3])], 0), None);
    assert_eq!(lost([2, 3], &[((3, 0), 7, 5, [2, 7]), ((7, 9), 8, 6, [7, 3])], 0), cold);
    // The missing one alone told of a next segment: one that was free.
    let began = ((7, 0), 7, 5, [NO_SEGMENT, 3]);
    let later = ((7, 1), 8, 6, [NO_SEGMENT, 3]);
    assert_eq!(lost([NO_SEGMENT, 3], &[began, later], 0), hot);
    assert_eq!(lost([2, NO_SEGMENT], &[began, later], 0), hot);
    assert_eq!(lost([2, 3], &[began, later], 0), None, "all that is needed was told of before");
    assert_eq!(lost([NO_SEGMENT, 3], &[began, later], 1), None, "it was not free");
    let before = ((7, 0), 5, 3, [NO_SEGMENT, 3]);
    assert_eq!(lost([NO_SEGMENT, 3], &[before, later], 0), None, "nothing began there since");
}

#[test]
fn what_was_given_up_is_erased_where_the_next_batch_is_looked_for() {
    let mut drive = Memory::new(DRIVE_BYTES);
    let places = [((0, 2), 6u64), ((1, 2), 8), ((2, 0), 6), ((3, 0), 5), ((0, 9), 7), ((4, 0), 6)];
    for (place, sequence) in places {
        put(&mut drive, place, BatchHeader { sequence: sequence.into(), ..next_header() }, 0);
    }
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    recovery.end = end();
    recovery.erase_given_up().unwrap();
    let is_there = places.map(|((segment, block), _)| {
        let offset = u64::from(location(segment, block)) * BLOCK_BYTES as u64;
        let mut bytes = [0; BLOCK_BYTES];
        drive.read(offset, &mut bytes).unwrap();
        bytes != [0; BLOCK_BYTES]
    });
    // One of an earlier time is no candidate, and the others lie where nobody looks for the next one.
    assert_eq!(is_there, [false, false, false, true, true, true]);
    // Where the log has no next segment, or ends with its own, there is nothing to look at.
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    recovery.end = LogEnd {
        cursors: [cursor(0, BLOCKS), cursor(COUNT, 0)],
        next_segment: [NO_SEGMENT; 2].map(Into::into),
        ..end()
    };
    recovery.erase_given_up().unwrap();
}

#[test]
fn segments_are_what_the_end_of_the_log_makes_of_them() {
    let mut drive = Memory::new(DRIVE_BYTES);
    let mut recovery = Recovery::new(&mut drive, superblock(), &options());
    recovery.end = LogEnd { next_segment: [2, NO_SEGMENT].map(Into::into), ..end() };
    recovery.contents.segments.all[5].live = 1;
    recovery.contents.segments.all[6].last_sequence = 6;
    recovery.settle_segments();
    let segments = &recovery.contents.segments;
    let states = [0, 1, 2, 3, 5, 6].map(|number: usize| segments.all[number].state);
    let [open, next, free, sealed] =
        [SegmentState::Open, SegmentState::Next, SegmentState::Free, SegmentState::Sealed];
    assert_eq!(states, [open, open, next, free, sealed, sealed]);
    assert_eq!(segments.free_count(), COUNT - 5);
    assert_eq!([0, 1].map(|number: usize| segments.all[number].written), [2, 2]);
}
