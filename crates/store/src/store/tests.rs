//! A whole store, on a drive that does one thing after the other.

mod layers;

use super::*;
use crate::actions::{
    Expected, Extent, Location, Options, Role, StageError, Staged, Statistics, WriteRecord,
};
use crate::device::{Device, Memory};
use crate::index::Entry;
use crate::layout::{BatchHeader, Record, RootHeld, SEGMENTS_OFFSET, SUPERBLOCK_OFFSETS, Superblock};
use crate::segments::SegmentState;
use crate::superblock;
use base::{
    ClusterId, Epoch, LayerId, OBJECT_BLOCKS, ObjectKey, OsdId, OsdUuid, PgId, PoolId, Sequence,
    ZERO_BLOCK_CRC32C, crc32c,
};
use std::collections::VecDeque;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

const SEGMENT_BYTES: u32 = 64 << 10;
const SEGMENTS: u32 = 64;
const DRIVE_BYTES: u64 = SEGMENTS_OFFSET + SEGMENTS as u64 * SEGMENT_BYTES as u64;
const PG: PgId = PgId { pool: PoolId(1), index: 0 };

fn options() -> Options {
    Options {
        batch_bytes_max: 8 * BLOCK_BYTES,
        segment_bytes: Some(SEGMENT_BYTES),
        pg_log_entries: 16,
        ..Options::default()
    }
}

fn key(object: u32) -> ObjectKey {
    ObjectKey { pg: PG, layer: LayerId(1), object }
}

/// A store and its drive, which does what it is told when it is told to.
struct Machine {
    drive: Memory,
    store: Store,
    /// What the drive was told and has not done, oldest first.
    under_way: VecDeque<Action>,
    durable: Vec<u64>,
    lost: Vec<(u64, String)>,
    shutdowns: usize,
    superblocks_written: usize,
    sequence: u64,
}

impl Machine {
    fn format(options: &Options) -> Machine {
        let mut drive = Memory::new(DRIVE_BYTES);
        let (cluster, osd_uuid) = (ClusterId::from_bytes([1; 16]), OsdUuid::from_bytes([2; 16]));
        let identity = Identity { cluster, osd_uuid, osd: OsdId(3) };
        superblock::format(&mut drive, identity, *b"this one is ours", options).unwrap();
        Machine::open(drive, options)
    }

    fn open(mut drive: Memory, options: &Options) -> Machine {
        let store = Store::open(&mut drive, &Expected::default(), options.clone()).unwrap();
        Machine {
            drive,
            store,
            under_way: VecDeque::new(),
            durable: Vec::new(),
            lost: Vec::new(),
            shutdowns: 0,
            superblocks_written: 0,
            sequence: 0,
        }
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Durable { token } => self.durable.push(token),
                Action::Lost { token, reason } => self.lost.push((token, reason)),
                Action::ShutdownDone => self.shutdowns += 1,
                Action::Sealed { .. } => {}
                other => self.under_way.push_back(other),
            }
        }
    }

    /// The end of a turn.
    fn turn(&mut self) {
        let mut actions = Vec::new();
        self.store.flush(&mut actions);
        self.take(actions);
    }

    /// The drive does the oldest of what is under way. `false` if nothing is.
    fn complete(&mut self) -> bool {
        let Some(action) = self.under_way.pop_front() else { return false };
        let mut actions = Vec::new();
        match action {
            Action::Write { token, offset, buffer, length } => {
                self.superblocks_written += usize::from(token & TOKEN_SUPERBLOCK != 0);
                self.drive.write(offset, &buffer.bytes()[..length]).unwrap();
                self.store.handle_written(token, Ok(()), &mut actions);
            }
            Action::Flush { token } => self.store.handle_flushed(token, Ok(()), &mut actions),
            Action::Read { token, offset, length } => {
                let mut data = vec![0; length];
                self.drive.read(offset, &mut data).unwrap();
                self.store.handle_read(token, Ok(&data), &mut actions);
            }
            other => panic!("{other:?}"),
        }
        self.take(actions);
        true
    }

    /// Until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.turn();
            if self.under_way.is_empty() {
                return self.store.verify().unwrap();
            }
            while self.complete() {}
        }
        panic!("the store does not come to rest: {:?}", self.store.statistics());
    }

    fn begin_shutdown(&mut self) {
        let mut actions = Vec::new();
        self.store.begin_shutdown(&mut actions);
        self.take(actions);
    }

    /// Shuts down in good order and opens again.
    fn restart(mut self) -> Machine {
        self.begin_shutdown();
        self.settle();
        assert_eq!(self.shutdowns, 1);
        Machine::open(self.drive, &options())
    }

    fn record(&mut self, key: ObjectKey, first_block: u16, block_count: u16) -> WriteRecord {
        self.sequence += 1;
        let (sequence, token) = (Sequence(self.sequence), self.sequence);
        let (epoch, origin, role) = (Epoch(1), 0, Role::Primary);
        WriteRecord { key, epoch, sequence, origin, first_block, block_count, token, role }
    }

    fn write(&mut self, object: u32, first_block: u16, block_count: u16) -> Result<Staged, StageError> {
        let record = self.record(key(object), first_block, block_count);
        let data = vec![self.sequence as u8; usize::from(block_count) * BLOCK_BYTES];
        let checksums: Vec<U32> = data.chunks(BLOCK_BYTES).map(|block| U32::new(crc32c(block))).collect();
        self.store.stage_write(&record, &checksums, &data)
    }

    fn writes_under_way(&self) -> usize {
        self.under_way.iter().filter(|action| matches!(action, Action::Write { .. })).count()
    }
}

#[test]
fn what_cleaning_moved_goes_with_the_end_of_a_turn_if_it_had_nowhere_to_go_before() {
    let mut machine = Machine::format(&options());
    let mut batch = machine.store.log.slots.take().unwrap();
    batch.push(&Record::new(RecordKind::Relocate, key(0), 0, 1), [&[U32::ZERO; 2][..]], &[1; BLOCK_BYTES]);
    *machine.store.log.open_cold() = Some(batch);
    machine.turn();
    assert_eq!((machine.writes_under_way(), machine.store.log.in_flight.count(COLD)), (1, 1));
    machine.settle();
    assert!(machine.store.log.cold_is_still());
}

#[test]
fn a_second_batch_goes_only_when_half_of_it_is_full_and_no_third() {
    let mut machine = Machine::format(&options());
    for (blocks, under_way) in [(1, 1), (1, 1), (1, 1), (1, 2), (7, 2)] {
        // One of one block, two that grow to three, and then to half of eight; the last is full.
        machine.write(0, 0, blocks).unwrap();
        machine.turn();
        assert_eq!(machine.writes_under_way(), under_way, "{:?}", machine.sequence);
    }
    assert_eq!(machine.write(0, 0, 1), Err(StageError::Busy));
    machine.settle();
    assert_eq!(machine.durable, [1, 2, 3, 4, 5]);
    // Half of what there is room for of records counts as much.
    machine.write(0, 0, 1).unwrap();
    machine.turn();
    let half = (BLOCK_BYTES / 2 - size_of::<BatchHeader>()) / size_of::<Record>();
    for number in 1..=half {
        let record = machine.record(key(0), 0, 1);
        machine.store.stage_entry(&record).unwrap();
        machine.turn();
        assert_eq!(machine.writes_under_way(), if number < half { 1 } else { 2 });
    }
    machine.settle();
    assert_eq!(machine.durable.len(), 6 + half);
}

#[test]
fn a_store_tells_by_figures_what_it_has_and_did() {
    let mut machine = Machine::format(&options());
    let fresh = Statistics {
        device_bytes: DRIVE_BYTES,
        // Of 56 segments 94 %, without three steps of four batches each.
        usable_bytes: (56 * 16 * 94 / 100 - 3 * 32) * BLOCK_BYTES as u64,
        free_segments: SEGMENTS - 4,
        segments: SEGMENTS,
        ..Statistics::default()
    };
    assert_eq!(machine.store.statistics(), fresh);
    for (object, blocks) in [(0, 3), (1, 2), (0, 3)] {
        machine.write(object, 5, blocks).unwrap();
        machine.settle();
    }
    let index_bytes = machine.store.statistics().index_bytes;
    let written = Statistics {
        live_bytes: 5 * BLOCK_BYTES as u64,
        index_bytes,
        objects: 2,
        batches: 3,
        client_blocks: 8,
        header_blocks: 3,
        ..fresh
    };
    assert_eq!(machine.store.statistics(), written);
    assert!(index_bytes > 0 && machine.store.log.appended_blocks == 11);
    // The power goes.
    let mut machine = Machine::open(machine.drive, &options());
    assert_eq!(machine.store.log.appended_blocks, 11, "what was replayed is a part of the log");
    let replayed = Statistics {
        index_bytes: machine.store.statistics().index_bytes,
        batches: 0,
        client_blocks: 0,
        header_blocks: 0,
        replayed_batches: 3,
        ..written
    };
    assert_eq!(machine.store.statistics(), replayed);
    machine.begin_shutdown();
    machine.settle();
    // Two pages and the root, each kind with a header.
    let Statistics { batches, header_blocks, checkpoint_blocks, .. } = machine.store.statistics();
    assert_eq!((batches, header_blocks, checkpoint_blocks), (2, 2, 3));
}

#[test]
fn a_shutdown_writes_one_checkpoint_and_none_if_there_is_no_news() {
    let mut machine = Machine::format(&options());
    machine.begin_shutdown();
    assert_eq!((machine.shutdowns, machine.under_way.len()), (1, 0), "nothing was ever written");
    let mut machine = Machine::format(&options());
    machine.write(0, 0, 1).unwrap();
    machine.begin_shutdown();
    assert_eq!((machine.shutdowns, machine.writes_under_way()), (0, 1), "it waits for what was staged");
    machine.settle();
    assert_eq!((machine.durable.as_slice(), machine.shutdowns), (&[1][..], 1));
    assert_eq!(machine.superblocks_written, 2, "both copies once");
    let mut machine = Machine::open(machine.drive, &options());
    assert_eq!(machine.store.statistics().replayed_batches, 0);
    let mut again = Machine::open(machine.drive.clone(), &options());
    again.begin_shutdown();
    assert_eq!((again.shutdowns, again.under_way.len()), (1, 0));
    // Unless everything is to be written anew.
    machine.store.renew_checkpoint();
    machine.begin_shutdown();
    assert_eq!(machine.shutdowns, 0);
    machine.settle();
    assert_eq!((machine.shutdowns, machine.superblocks_written), (1, 2));
    assert_eq!(machine.store.statistics().checkpoint_blocks, 2);
}

#[test]
fn a_checkpoint_is_due_after_so_much_log_and_has_what_changed_since_the_last_one() {
    let options = Options { checkpoint_interval_bytes: Some(32 * BLOCK_BYTES as u64), ..options() };
    let mut machine = Machine::format(&options);
    for number in 1..=15 {
        // Four blocks with their header.
        machine.write(if number <= 8 { number % 2 } else { 0 }, 0, 3).unwrap();
        machine.turn();
        while let Some(first) = machine.under_way.front() {
            let is_superblock = matches!(first, Action::Write { token, .. } if token & TOKEN_SUPERBLOCK != 0);
            assert!(!is_superblock || !machine.store.superblocks_are_at_rest(), "one is being written");
            machine.complete();
        }
        machine.settle();
        assert!(machine.store.superblocks_are_at_rest());
        let Statistics { checkpoint_blocks, .. } = machine.store.statistics();
        let expected = match number {
            1..=7 => (0, 0),
            // Two pages and the root.
            8..=14 => (2, 3),
            // Of two batches five blocks were the first one's, and seven of four are behind it.
            _ => (4, 5),
        };
        assert_eq!((machine.superblocks_written, checkpoint_blocks), expected, "{number}");
    }
}

#[test]
fn a_store_whose_drive_failed_says_so_to_all_and_does_nothing_more() {
    let mut machine = Machine::format(&options());
    for _ in 0..3 {
        machine.write(0, 0, 1).unwrap();
        machine.turn();
    }
    // The first is on its way, and the others wait for it.
    assert_eq!(machine.under_way.len(), 1);
    let Some(Action::Write { token, .. }) = machine.under_way.pop_front() else { panic!("it is no write") };
    let fail = |machine: &mut Machine, reason: &str| {
        let mut actions = Vec::new();
        machine.store.handle_written(token, Err(DeviceError(reason.to_owned())), &mut actions);
        machine.take(actions);
    };
    fail(&mut machine, "it broke");
    let all: Vec<_> = (1..=3).map(|token| (token, "it broke".to_owned())).collect();
    assert_eq!(machine.lost, all);
    fail(&mut machine, "it broke again");
    assert_eq!((machine.lost.len(), machine.store.failure()), (3, Some("it broke")));
    assert_eq!(machine.write(0, 0, 1), Err(StageError::Failed("it broke".to_owned())));
    let record = machine.record(key(0), 0, 1);
    assert_eq!(machine.store.stage_zero(&record), Err(StageError::Failed("it broke".to_owned())));
    let mut actions = Vec::new();
    machine.store.handle_written(token, Ok(()), &mut actions);
    machine.store.handle_flushed(0, Ok(()), &mut actions);
    machine.store.flush(&mut actions);
    assert!(actions.is_empty() && machine.durable.is_empty(), "{actions:?}");
    machine.begin_shutdown();
    assert_eq!((machine.shutdowns, machine.under_way.len()), (1, 0));
    // While it is shut down, a flush fails.
    let mut machine = Machine::format(&options());
    machine.write(0, 0, 1).unwrap();
    machine.begin_shutdown();
    machine.complete();
    assert!(matches!(machine.under_way.pop_front(), Some(Action::Flush { .. })));
    let mut actions = Vec::new();
    machine.store.handle_flushed(0, Err(DeviceError("it broke".to_owned())), &mut actions);
    machine.take(actions);
    assert_eq!((machine.lost.len(), machine.shutdowns, machine.store.failure()), (1, 1, Some("it broke")));
}

#[test]
fn what_lies_together_in_a_segment_is_looked_up_as_one() {
    let mut machine = Machine::format(&options());
    let segments = &machine.store.contents.segments;
    let (before, behind) = (segments.location(5, 14), segments.location(6, 0));
    assert_eq!(before + 2, behind, "the segments touch");
    let places = [(0, before), (1, before + 1), (2, behind), (5, behind + 1), (6, behind + 3), (12, 7)];
    for (block, location) in places {
        let entry = Entry { location, crc32c: location + 1 };
        machine.store.contents.index.set(key(0), block, entry, Sequence(9));
    }
    let store = &machine.store;
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    store.lookup(&key(0), 0, 7, &mut extents, &mut checksums);
    let zeros = ZERO_BLOCK_CRC32C;
    let of = [before + 1, before + 2, behind + 1, zeros, zeros, behind + 2, behind + 4];
    assert_eq!(checksums, of);
    // What was looked up before is left as it is.
    store.lookup(&key(0), 7, 2, &mut extents, &mut checksums);
    store.lookup(&key(1), 9, 1, &mut extents, &mut checksums);
    let extent = |first_block, block_count, location: Option<u32>| Extent {
        layer: key(0).layer,
        first_block,
        block_count,
        location: location.map(Location),
    };
    assert_eq!(
        extents,
        [
            extent(0, 2, Some(before)),
            extent(2, 1, Some(behind)),
            extent(3, 2, None),
            extent(5, 1, Some(behind + 1)),
            extent(6, 1, Some(behind + 3)),
            extent(7, 2, None),
            extent(9, 1, None)
        ]
    );
    assert_eq!(checksums[7..], [zeros; 3]);
    let mut bits = [0; OBJECT_BLOCKS / 8];
    (bits[0], bits[1]) = (0b0110_0111, 0b0001_0000);
    assert_eq!(store.allocated_bits(&key(0)), bits);
    let mut seen = Vec::new();
    store.for_each_block(&key(0), |block, crc32c, changed| seen.push((block, crc32c, changed)));
    assert_eq!(seen.len(), 6);
    assert_eq!(seen[5], (12, 8, Sequence(9)));
    assert_eq!((store.block_count(&key(0)), store.last_changed(&key(0))), (6, Sequence(9)));
}

#[test]
fn what_is_read_is_not_written_anew_before_all_that_read_it_have_done() {
    let mut machine = Machine::format(&options());
    let segments = &mut machine.store.contents.segments;
    let number = segments.take(0).unwrap();
    let (location, free) = (segments.location(number, 3), segments.free_count());
    let segment = &mut segments.all[number as usize];
    (segment.state, segment.live) = (SegmentState::Sealed, 1);
    let store = &mut machine.store;
    (0..2).for_each(|_| store.pin(Location(location)));
    store.contents.segments.block_died(location);
    store.unpin(Location(location));
    assert_eq!(store.contents.segments.free_count(), free);
    store.unpin(Location(location));
    assert_eq!(store.contents.segments.free_count(), free + 1);
}

#[test]
fn a_store_knows_nothing_of_what_it_never_had() {
    let mut machine = Machine::format(&options());
    let store = &machine.store;
    assert_eq!((store.block_count(&key(0)), store.last_changed(&key(0))), (0, Sequence(0)));
    assert_eq!((store.changed(&key(0), 0), store.object_count(PG)), (None, 0));
    assert_eq!((store.pg_log_begins(PG), store.pg_modulus(PG)), (Sequence(0), None));
    assert_eq!(store.pg_position(PG), None);
    assert!(store.pg_log(PG).next().is_none() && !store.pg_is_incomplete(PG));
    assert_eq!((store.pg_held_through(PG), store.object_held_through(&key(0))), (Sequence(0), Sequence(0)));
    assert!(store.groups().next().is_none() && !store.has_objects_of(PG.pool));
    assert!(store.doubts(&key(0)).next().is_none());
    assert!(!store.is_full() && !store.takes_no_objects());
    assert_eq!(store.unguessable(7), store.unguessable(7));
    assert!(store.unguessable(7) != store.unguessable(8) && store.unguessable(7) > 1);
    for pool in [1, 2] {
        let record = machine.record(ObjectKey { pg: PgId { pool: PoolId(pool), index: 0 }, ..key(0) }, 0, 1);
        let checksum = U32::new(crc32c(&[0; BLOCK_BYTES]));
        machine.store.stage_write(&record, &[checksum], &[0; BLOCK_BYTES]).unwrap();
    }
    machine.settle();
    let has = [0, 1, 2, 3].map(|pool| machine.store.has_objects_of(PoolId(pool)));
    assert_eq!(has, [false, true, true, false]);
    // The group's modulus is told when it is known.
    let place = |machine: &mut Machine, kind, modulus, sequence| {
        machine.store.stage_mark(kind, PG, modulus, Epoch(1), Sequence(sequence), 9).unwrap();
        machine.settle();
    };
    place(&mut machine, RecordKind::Mark, 1, 30);
    assert_eq!(machine.store.pg_modulus(PG), Some(1));
    place(&mut machine, RecordKind::Join, 1, 40);
    assert!(machine.store.pg_is_incomplete(PG) && machine.store.pg_log_begins(PG) == Sequence(41));
}

#[test]
fn a_superblock_of_a_store_is_known_by_its_checksum_and_its_formatting() {
    let mut machine = Machine::format(&options());
    for offset in SUPERBLOCK_OFFSETS {
        let mut block = vec![0; BLOCK_BYTES];
        machine.drive.read(offset, &mut block).unwrap();
        assert!(machine.store.is_own_superblock(&block));
        let own = Superblock::read_from_bytes(&block).unwrap();
        let older = Superblock { sequence: 1u64.into(), ..own }.sealed();
        assert!(machine.store.is_own_superblock(older.as_bytes()));
        let another = Superblock { osd_uuid: [9; 16], ..own }.sealed();
        assert!(!machine.store.is_own_superblock(another.as_bytes()), "it is another's");
        assert!(!machine.store.is_own_superblock(&block[1..]), "it is not all there");
        block[2000] ^= 1;
        assert!(!machine.store.is_own_superblock(&block), "it is damaged");
    }
}

#[test]
fn a_log_of_who_catches_up_is_the_same_after_a_start_by_a_checkpoint_and_by_a_replay() {
    let mut machine = Machine::format(&options());
    let place = |machine: &mut Machine, kind, sequence| {
        machine.sequence = sequence;
        machine.store.stage_mark(kind, PG, 2, Epoch(1), Sequence(sequence), 0).unwrap();
        machine.settle();
    };
    place(&mut machine, RecordKind::Mark, 1);
    for object in 0..30 {
        // Those of the group's half only.
        if PG.holds(2, LayerId(1), object) {
            machine.write(object, 0, 1).unwrap();
            machine.settle();
        }
    }
    place(&mut machine, RecordKind::Join, 100);
    let of_group = (0..30).filter(|object| PG.holds(2, LayerId(1), *object));
    let last = of_group.max().unwrap();
    machine.store.stage_reached(key(last), 0).unwrap();
    machine.write(last, 1, 1).unwrap();
    machine.settle();
    let log = |machine: &Machine| format!("{:?}", machine.store.contents.logs.groups[&PG]);
    let before = log(&machine);
    {
        let told = &machine.store.contents.logs.groups[&PG];
        assert!(told.is_incomplete && told.reached == Some((LayerId(1), last)) && told.modulus == 2);
        assert!(told.held.len() == 1 && told.doubts.len() == 4);
    }
    let machine = Machine::open(machine.drive, &options());
    assert_eq!(log(&machine), before);
    let mut machine = machine.restart();
    assert_eq!(log(&machine), before);
    assert_eq!(machine.store.doubts(&key(last)).count(), 1, "of this object the last one");
    // What is reserved in the root are zeros. It ends in what the group had.
    let [piece] = machine.store.checkpoint.superblock().pieces() else { panic!("a small root is one piece") };
    let mut root = vec![0; BLOCK_BYTES];
    machine.drive.read(u64::from(piece.location.get()) * BLOCK_BYTES as u64, &mut root).unwrap();
    let end = piece.bytes.get() as usize;
    let held = RootHeld::read_from_bytes(&root[end - size_of::<RootHeld>()..end]).unwrap();
    assert_eq!((held.layer.get(), held.object.get(), held.reserved.get()), (u64::MAX, u32::MAX, 0));
}

#[test]
fn what_a_store_counts_wrongly_is_noticed_when_it_is_counted_again() {
    let wrong = |change: &dyn Fn(&mut Store)| {
        let mut machine = Machine::format(&options());
        for object in 0..3 {
            machine.write(object, 0, 2).unwrap();
            machine.settle();
        }
        let mut machine = machine.restart();
        assert_eq!(machine.store.verify(), Ok(()));
        change(&mut machine.store);
        machine.store.verify().expect_err("something is wrong")
    };
    let place = |store: &Store| store.contents.index.entry(&key(0), 0).unwrap().location;
    let set = |store: &mut Store, object: u32, block: u16, location: u32| {
        store.contents.index.set(key(object), block, Entry { location, crc32c: 0 }, Sequence(9));
    };
    assert!(wrong(&|store| set(store, 1, 0, 7)).contains("lies in no segment"));
    let twice = wrong(&|store| {
        let at = place(store);
        set(store, 1, 0, at);
    });
    assert!(twice.contains("belongs to two blocks"), "{twice}");
    let blocks = wrong(&|store| store.contents.index.block_count += 1);
    assert_eq!(blocks, "the index counts 7 blocks and has 6");
    for more in [true, false] {
        let live = wrong(&|store| {
            let at = place(store);
            let segment = store.contents.segments.at(at);
            segment.live = if more { segment.live + 1 } else { segment.live - 1 };
        });
        assert!(live.contains("live blocks and has"), "{live}");
        let pages = wrong(&|store| {
            let at = store.checkpoint.superblock().pieces()[0].location.get();
            let segment = store.contents.segments.at(at);
            segment.pages = if more { segment.pages + 1 } else { segment.pages - 1 };
        });
        assert!(pages.contains("page blocks and has"), "{pages}");
    }
    let pages = wrong(&|store| store.contents.segments.pages_blocks += 1);
    assert!(pages.contains("page blocks are counted, and the segments have"), "{pages}");
    let free = wrong(&|store| {
        let at = place(store);
        store.contents.segments.at(at).state = SegmentState::Free;
    });
    assert!(free.contains("is free and holds"), "{free}");
    let root = wrong(&|store| store.contents.logs.bytes_max += 1);
    assert!(root.contains("bytes of a root"), "{root}");
    let page = wrong(&|store| {
        let mut page = store.contents.index.get(&key(0)).unwrap().page.unwrap();
        page.location = 7u32.into();
        store.contents.index.get_mut(&key(0)).unwrap().page = Some(page);
    });
    assert_eq!(page, "a page lies in no segment");
    // By a modulus by which one of the objects is another group's.
    let home = wrong(&|store| store.contents.logs.note_modulus(PG, 2));
    assert!(home.contains("lies in a group that it is not one of any more"), "{home}");
}
