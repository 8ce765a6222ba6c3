//! Figures that do not depend on the machine: write amplification, index memory, what a start replays.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::{BLOCK_BYTES, Epoch, OBJECT_BLOCKS, PgId, PoolId, Sequence, VolumeId};
use sim::drive::SimDrive;
use sim::machine::Machine;
use sim::plan::LOG_OFFSET_BYTES;
use sim::random::Random;
use store::layout::RootObject;
use store::{Options, RecordKind, StageError, Store};

fn options(segment_bytes: u32, batch_bytes_max: usize) -> Options {
    Options {
        volatile_cache: true,
        batches_in_flight_max: 2,
        batch_bytes_max,
        segment_bytes: Some(segment_bytes),
        checkpoint_interval_bytes: None,
        ..Options::default()
    }
}

fn machine(log_bytes: u64, options: &Options) -> Machine {
    Machine::format(SimDrive::new(LOG_OFFSET_BYTES + log_bytes, true, Random::new(1)), options)
}

/// Data that differs from block to block, cheaply.
fn stamp(data: &mut [u8], stamp: u64) {
    for block in data.chunks_exact_mut(BLOCK_BYTES) {
        block[..8].copy_from_slice(&stamp.to_le_bytes());
    }
}

#[test]
fn random_overwrites_at_80_percent_full_write_at_most_3_and_a_half_times() {
    const LOG_BYTES: u64 = 128 << 20;
    const WRITES_PER_TURN: u64 = 16;
    let mut machine = machine(LOG_BYTES, &options(512 << 10, 128 << 10));
    let usable_blocks = machine.store.statistics().usable_bytes / BLOCK_BYTES as u64;
    let blocks = usable_blocks * 80 / 100;
    let mut data = vec![0; BLOCK_BYTES];
    let mut random = Random::new(7);
    let mut put = |machine: &mut Machine, block: u64, turn: u64| {
        stamp(&mut data, block ^ turn << 32);
        let (object, first) = (block / OBJECT_BLOCKS as u64, block % OBJECT_BLOCKS as u64);
        machine.write(object as u32, first as u16, &data).unwrap();
    };
    for block in 0..blocks {
        put(&mut machine, block, 0);
        if block % WRITES_PER_TURN == WRITES_PER_TURN - 1 {
            machine.settle();
        }
    }
    machine.settle();
    let before = machine.store.statistics();
    let overwrites = 2 * LOG_BYTES / BLOCK_BYTES as u64;
    for write in 0..overwrites {
        put(&mut machine, random.below(blocks), write);
        if write % WRITES_PER_TURN == WRITES_PER_TURN - 1 {
            machine.settle();
        }
    }
    machine.settle();
    let after = machine.store.statistics();
    let clients = (after.client_blocks - before.client_blocks) as f64;
    let share = |after: u64, before: u64| (after - before) as f64 / clients;
    let (cleaned, headers, checkpoints) = (
        share(after.cleaned_blocks, before.cleaned_blocks),
        share(after.header_blocks, before.header_blocks),
        share(after.checkpoint_blocks, before.checkpoint_blocks),
    );
    let amplification = 1.0 + cleaned + headers + checkpoints;
    println!(
        "write amplification {amplification:.2} with {:.1} % of the log live: cleaning {cleaned:.2}, \
         headers {headers:.2}, checkpoints {checkpoints:.2}; by the store's own count {:.2}",
        blocks as f64 * BLOCK_BYTES as f64 * 100.0 / LOG_BYTES as f64,
        after.write_amplification()
    );
    assert_eq!(after.client_blocks - before.client_blocks, overwrites);
    assert!(amplification <= 3.5, "write amplification {amplification:.2}");
    machine.store.verify().unwrap();
}

#[test]
fn a_randomly_written_block_costs_at_most_12_bytes_of_memory() {
    const OBJECTS: usize = 12;
    for percent in [25, 40, 50, 60, 75, 90, 100] {
        let mut machine = machine(128 << 20, &options(512 << 10, 128 << 10));
        let mut random = Random::new(percent);
        let mut blocks: Vec<usize> = (0..OBJECTS * OBJECT_BLOCKS).collect();
        for index in (1..blocks.len()).rev() {
            blocks.swap(index, random.index(index + 1));
        }
        blocks.truncate(blocks.len() * percent as usize / 100);
        let mut data = vec![0; BLOCK_BYTES];
        for (count, block) in blocks.iter().enumerate() {
            stamp(&mut data, *block as u64);
            machine.write((block / OBJECT_BLOCKS) as u32, (block % OBJECT_BLOCKS) as u16, &data).unwrap();
            if count % 16 == 15 {
                machine.settle();
            }
        }
        machine.settle();
        let bytes = machine.store.statistics().index_bytes as f64 / blocks.len() as f64;
        println!("{percent:>3} % of the blocks written: {bytes:.2} bytes each");
        assert!(bytes <= 12.0, "{bytes:.2} bytes per block with {percent} % written");
    }
}

#[test]
fn a_start_after_a_clean_shutdown_replays_nothing() {
    let options = options(64 << 10, 32 << 10);
    let mut machine = machine(4 << 20, &options);
    let mut data = vec![0; 3 * BLOCK_BYTES];
    for round in 0..5u64 {
        for write in 0..100 {
            stamp(&mut data, round << 32 | write);
            machine.write((write % 5) as u32, (write % 60) as u16, &data).unwrap();
            machine.settle();
        }
        machine = machine.restart();
        assert_eq!(machine.store.statistics().replayed_batches, 0);
        machine.store.verify().unwrap();
    }
}

#[test]
fn a_full_store_still_deletes_and_takes_writes_again() {
    let mut machine = machine(4 << 20, &options(64 << 10, 32 << 10));
    let mut data = vec![0; 4 * BLOCK_BYTES];
    let mut refusal = None;
    for write in 0..2048u64 {
        stamp(&mut data, write);
        if let Err(error) = machine.write((write / 256) as u32, (write % 256 * 4) as u16, &data) {
            refusal = Some(error);
            break;
        }
        machine.settle();
    }
    assert!(matches!(refusal, Some(StageError::Full)), "{refusal:?}");
    let statistics = machine.store.statistics();
    println!("full with {} of {} bytes live", statistics.live_bytes, statistics.usable_bytes);
    assert!(machine.store.is_full());
    for object in 0..8 {
        machine.zero(object, 0, OBJECT_BLOCKS as u16).unwrap();
        machine.settle();
    }
    assert!(!machine.store.is_full());
    machine.write(0, 0, &data).unwrap();
    machine.settle();
    machine.store.verify().unwrap();
}

/// A root of seven blocks, and few entries of logs in it.
fn with_a_small_root() -> Options {
    Options { root_pieces_max: 1, pg_log_entries: 16, ..options(64 << 10, 32 << 10) }
}
const SMALL_ROOT_BYTES: u64 = 7 * BLOCK_BYTES as u64;

/// Adds objects from this one on, until none is taken any more. Answers how many there are then.
fn add_objects(
    machine: &mut Machine,
    object: &mut u32,
    add: impl Fn(&mut Machine, u32) -> Result<(), StageError>,
) -> u64 {
    loop {
        if let Err(refusal) = add(machine, *object) {
            assert_eq!(refusal, StageError::Full);
            break;
        }
        *object += 1;
        if object.is_multiple_of(16) {
            machine.settle();
        }
    }
    machine.settle();
    machine.store.statistics().objects
}

#[test]
fn a_store_with_as_many_objects_as_it_takes_writes_to_those_deletes_and_takes_others_again() {
    let mut machine = machine(32 << 20, &with_a_small_root());
    let data = [5; BLOCK_BYTES];
    let mut next = 0;
    let of_clients =
        add_objects(&mut machine, &mut next, |machine, object| machine.write(object, 0, &data).map(|_| ()));
    assert!(machine.store.takes_no_objects() && !machine.store.is_full());
    let with_recovery =
        add_objects(&mut machine, &mut next, |machine, object| machine.write_damaged(object, 0, 7));
    let with_repairs = add_objects(&mut machine, &mut next, |machine, object| {
        machine.forge(Machine::key(object), 0, Some(&data))
    });
    let root_max = SMALL_ROOT_BYTES / size_of::<RootObject>() as u64;
    println!("{of_clients}, {with_recovery}, {with_repairs} objects in a root for {root_max}");
    assert!(of_clients > root_max * 80 / 100 && of_clients < with_recovery);
    assert!(with_recovery < with_repairs && with_repairs < root_max * 95 / 100);
    // A checkpoint has room for all of them.
    machine = machine.restart();
    assert_eq!(machine.store.statistics().objects, with_repairs);
    machine.write(0, 0, &data).unwrap();
    machine.write(0, 1, &data).unwrap();
    machine.settle();
    assert_eq!(machine.write(next, 0, &data), Err(StageError::Full));
    for object in 0..100 {
        machine.zero(object, 0, OBJECT_BLOCKS as u16).unwrap();
        if object % 16 == 15 {
            machine.settle();
        }
    }
    machine.settle();
    assert!(!machine.store.takes_no_objects());
    machine.write(next, 0, &data).unwrap();
    machine.settle();
    machine.store.verify().unwrap();
}

#[test]
fn a_checkpoint_that_has_no_room_fails_the_store_in_words_and_loses_nothing() {
    let small = with_a_small_root();
    let mut machine = machine(4 << 20, &small);
    // Each group has its place in the root, and no mark is refused.
    for index in 0..400 {
        let pg = PgId { pool: PoolId(1), index };
        let (epoch, sequence, token) = (Epoch(1), Sequence(1), u64::from(index) + 1);
        machine.store.stage_mark(RecordKind::Mark, pg, 512, epoch, sequence, token).unwrap();
        if index % 50 == 49 {
            machine.settle();
        }
    }
    for _ in 0..2 {
        machine.store.renew_checkpoint();
        machine.settle();
        let failure = machine.store.failure().unwrap();
        assert!(failure.contains("400 placement groups are more than"), "{failure}");
        let refused = machine.write(0, 0, &[5; BLOCK_BYTES]);
        assert!(matches!(refused, Err(StageError::Failed(_))), "{refused:?}");
        // It is the same after another start.
        machine = Machine::open(machine.drive, &small).unwrap();
    }
    let larger = Options { root_pieces_max: 2, ..small };
    machine = Machine::open(machine.drive, &larger).unwrap().restart();
    assert_eq!((machine.store.groups().count(), machine.store.statistics().replayed_batches), (400, 0));
}

#[test]
fn groups_that_split_with_full_logs_beside_all_objects_that_go_have_shorter_ones_from_then_on() {
    const ENTRIES: usize = 128;
    let small = Options { pg_log_entries: ENTRIES, ..with_a_small_root() };
    let mut machine = machine(32 << 20, &small);
    let data = [5; BLOCK_BYTES];
    let pg = |index| PgId { index, ..PgId::default() };
    machine.mark(RecordKind::Mark, pg(0), 1, 1).unwrap();
    let mut next = 0;
    let objects =
        add_objects(&mut machine, &mut next, |machine, object| machine.write(object, 0, &data).map(|_| ()));
    assert!(objects > ENTRIES as u64);
    // Each half has all of the log.
    for (index, modulus) in [(0, 2), (0, 4), (1, 4)] {
        machine.split(pg(index), modulus).unwrap();
        machine.settle();
    }
    machine.store.renew_checkpoint();
    machine.settle();
    assert_eq!(machine.store.failure(), None);
    let logs = |store: &Store| {
        let log = |index| (store.pg_log_begins(pg(index)), store.pg_log(pg(index)).collect::<Vec<_>>());
        (0..4).map(log).collect::<Vec<_>>()
    };
    for (begins, entries) in logs(&machine.store) {
        let count = entries.len();
        assert!((ENTRIES / 4..ENTRIES).contains(&count), "{count} entries are left");
        assert_eq!(begins, entries[0].sequence);
    }
    // It goes on, and what comes is replayed behind what is left.
    let object = (0..next).find(|object| pg(0).holds(4, VolumeId(1), *object)).unwrap();
    machine.write(object, 1, &data).unwrap();
    machine.settle();
    let before = logs(&machine.store);
    machine = Machine::open(machine.drive, &small).unwrap();
    assert_eq!(logs(&machine.store), before);
    machine = machine.restart();
    assert_eq!(logs(&machine.store), before);
    assert_eq!(machine.store.statistics().objects, objects);
    machine.store.verify().unwrap();
}
