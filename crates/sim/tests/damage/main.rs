//! Rot, foreign drives, truncation: the store says what is wrong and never shows wrong bytes as right.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod superblocks;

use base::{
    BLOCK_BYTES, ClusterId, Fingerprints, ObjectKey, OsdUuid, PgId, SECTOR_BYTES, ZERO_BLOCK_CRC32C, crc32c,
};
use sim::collide::ending;
use sim::contents::{Collision, Contents, Place};
use sim::drive::SimDrive;
use sim::lookalike;
use sim::machine::Machine;
use sim::plan::LOG_OFFSET_BYTES;
use sim::random::Random;
use std::collections::BTreeMap;
use std::ops::Range;
use store::layout::{
    BatchHeader, FORMAT_OLDEST, FORMAT_VERSION, Record, RootEntry, RootGroup, RootHeader, RootObject,
    Superblock,
};
use store::testing::{BatchRead, read_batch, seal_batch};
use store::{
    Device, DeviceError, Expected, OpenError, Options, RecordKind, Sabotage, Secret, StageError, Store,
};
use zerocopy::{FromBytes, IntoBytes};

const SECOND_SUPERBLOCK: u32 = (1 << 20) / BLOCK_BYTES as u32;
/// First blocks and numbers of blocks that no object has, some with a sum that is little in 16 bits.
const BEYOND_AN_OBJECT: [(u16, u16); 8] = [
    (0, 1025),
    (1, 1024),
    (200, 900),
    (1024, 1),
    (u16::MAX, 1),
    (u16::MAX, 2),
    (1, u16::MAX),
    (u16::MAX, u16::MAX),
];

fn options() -> Options {
    Options {
        volatile_cache: true,
        batches_in_flight_max: 2,
        batch_bytes_max: 32 << 10,
        segment_bytes: Some(64 << 10),
        checkpoint_interval_bytes: None,
        ..Options::default()
    }
}

/// A store with `writes` durable writes of two blocks each, in batches of their own.
fn machine(writes: u16) -> Machine {
    machine_by(Random::new(1), writes)
}

/// The same, on a drive that this one decides of what a cut of the power leaves.
fn machine_by(random: Random, writes: u16) -> Machine {
    let mut machine = Machine::format(SimDrive::new(LOG_OFFSET_BYTES + (4 << 20), true, random), &options());
    for write in 0..writes {
        let data = vec![write as u8 + 1; 2 * BLOCK_BYTES];
        machine.write(0, 2 * write, &data).unwrap();
        machine.settle();
    }
    machine
}

fn location(store: &Store, block: u16) -> Option<u32> {
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    store.lookup(&Machine::key(0), block, 1, &mut extents, &mut checksums);
    extents[0].location.map(|location| location.0)
}

fn offset_of(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

/// The fingerprints of machines' drives.
fn fingerprints() -> Fingerprints {
    Fingerprints::new(&Machine::SECRET)
}

/// Puts the fingerprint of a header of a batch in its place, and the checksum of what follows at the begin of any other block.
fn seal(block: &mut [u8]) {
    if BatchHeader::read_from_prefix(block).unwrap().0.secret == Machine::SECRET {
        return seal_batch(block, &fingerprints());
    }
    let checksum = crc32c(&block[4..]);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// Changes a header of a batch, or a block that begins with the checksum of what follows.
fn rewrite(drive: &mut SimDrive, offset: u64, change: impl FnOnce(&mut [u8])) {
    let mut block = vec![0; BLOCK_BYTES];
    drive.read(offset, &mut block).unwrap();
    change(&mut block);
    seal(&mut block);
    drive.write(offset, &block).unwrap();
}

fn open_error(drive: SimDrive) -> OpenError {
    match Machine::open(drive, &options()) {
        Ok(_) => panic!("the store opened"),
        Err((_, error)) => error,
    }
}

#[test]
fn another_format_is_an_error_that_names_both_and_says_what_to_do() {
    let (older, newer) = (FORMAT_OLDEST - 1, FORMAT_VERSION + 1);
    for (version, advice) in [(older, "use the older program"), (newer, "use the newer program")] {
        let mut drive = machine(1).shut_down();
        for copy in [0, SECOND_SUPERBLOCK] {
            rewrite(&mut drive, offset_of(copy), |block| {
                block[12..16].copy_from_slice(&version.to_le_bytes());
            });
        }
        let error = open_error(drive).to_string();
        assert!(error.contains(&format!("version {version}")) && error.contains(advice), "{error}");
    }
}

#[test]
fn a_record_of_an_unknown_kind_is_an_error_that_names_its_place_and_what_to_do() {
    let machine = machine(20);
    let header = offset_of(location(&machine.store, 10).unwrap() - 1);
    let mut drive = machine.drive;
    rewrite(&mut drive, header, |block| block[size_of::<BatchHeader>()] = 99);
    let error = open_error(drive).to_string();
    for part in [&format!("offset {header}"), "kind 99", "use the newer program"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_record_of_blocks_that_no_object_has_is_an_error_that_names_the_batch() {
    let machine = machine(20);
    let header = offset_of(location(&machine.store, 10).unwrap() - 1);
    let open = |kind: RecordKind, (first_block, block_count): (u16, u16)| {
        let mut drive = machine.drive.copy();
        rewrite(&mut drive, header, |block| {
            let (record, _) = Record::mut_from_prefix(&mut block[size_of::<BatchHeader>()..]).unwrap();
            record.kind = kind as u8;
            (record.first_block, record.block_count) = (first_block.into(), block_count.into());
        });
        Machine::open(drive, &options()).map(drop).map_err(|(_, error)| error)
    };
    open(RecordKind::Write, (1022, 2)).expect("they are an object's last");
    for kind in (1..).map_while(RecordKind::from_number) {
        for blocks in BEYOND_AN_OBJECT {
            let Err(OpenError::Impossible { what, offset }) = open(kind, blocks) else {
                panic!("{kind:?} of {blocks:?} is no error, or another");
            };
            let record_bytes = size_of::<Record>() + 4 * kind.tail_words(blocks.1);
            let expected = match size_of::<BatchHeader>() + record_bytes > BLOCK_BYTES {
                true => "the number of records of the batch",
                false => "a record of the batch",
            };
            assert_eq!((what, offset), (expected, header), "{kind:?} of {blocks:?}");
        }
    }
}

#[test]
fn an_entry_of_a_groups_log_about_blocks_that_no_object_has_is_an_error_that_names_the_checkpoint() {
    let shut_down = machine(20).shut_down();
    let mut block = vec![0; BLOCK_BYTES];
    shut_down.copy().read(0, &mut block).unwrap();
    let superblock = Superblock::read_from_bytes(&block).unwrap();
    let [root] = superblock.pieces() else { panic!("a small root is in one piece") };
    let root_offset = offset_of(root.location.get());
    // Behind the one object and the one group.
    let entry_at = size_of::<RootHeader>() + size_of::<RootObject>() + size_of::<RootGroup>();
    let open = |(first_block, block_count): (u16, u16)| {
        let (mut drive, mut block) = (shut_down.copy(), vec![0; BLOCK_BYTES]);
        drive.read(root_offset, &mut block).unwrap();
        let (entry, _) = RootEntry::mut_from_prefix(&mut block[entry_at..]).unwrap();
        assert_eq!((entry.sequence.get(), entry.first_block.get(), entry.block_count.get()), (1, 0, 2));
        (entry.first_block, entry.block_count) = (first_block.into(), block_count.into());
        drive.write(root_offset, &block).unwrap();
        let checksum = crc32c(&block[..root.bytes.get() as usize]);
        for copy in [0, SECOND_SUPERBLOCK] {
            rewrite(&mut drive, offset_of(copy), |block| {
                Superblock::mut_from_bytes(block).unwrap().root[0].crc32c = checksum.into();
            });
        }
        Machine::open(drive, &options()).map(drop).map_err(|(_, error)| error)
    };
    open((1022, 2)).expect("they are an object's last");
    for blocks in BEYOND_AN_OBJECT {
        let Err(OpenError::Impossible { what, offset }) = open(blocks) else {
            panic!("an entry of {blocks:?} is no error, or another");
        };
        assert_eq!((what, offset), ("a group in the root of the checkpoint", root_offset), "{blocks:?}");
    }
}

/// All blocks that a store has, with their checksums.
fn held(store: &Store) -> BTreeMap<(ObjectKey, u16), u32> {
    let mut held = BTreeMap::new();
    for key in store.objects() {
        store.for_each_block(&key, |block, crc32c, _| {
            held.insert((key, block), crc32c);
        });
    }
    held
}

/// An object of the machine's volume, by the name that it has in a group.
fn named(index: u32, object: u32) -> ObjectKey {
    ObjectKey { pg: PgId { index, ..PgId::default() }, ..Machine::key(object) }
}

fn own_name(modulus: u32, object: u32) -> ObjectKey {
    let ObjectKey { pg, layer: volume, .. } = Machine::key(object);
    named(PgId::of_object(pg.pool, modulus, volume, object).index, object)
}

/// Both groups are split in two.
fn split_both(machine: &mut Machine) {
    for index in 0..2 {
        machine.split(named(index, 0).pg, 4).unwrap();
        machine.settle();
    }
    machine.store.verify().unwrap();
}

#[test]
fn what_a_record_does_by_the_name_of_a_wrong_group_is_no_other_after_a_start() {
    let mut machine = machine(0);
    for index in 0..2 {
        machine.mark(RecordKind::Mark, named(index, 0).pg, 2, 1).unwrap();
    }
    for object in 0..8 {
        machine.forge(own_name(2, object), 0, Some(&[object as u8; BLOCK_BYTES])).unwrap();
    }
    machine.settle();
    // No OSD lets anybody have its store do that.
    let other_name = |object| named(1 - own_name(2, object).pg.index, object);
    for object in 0..2 {
        machine.forge(other_name(object), 0, None).unwrap();
        machine.forge(other_name(object + 2), 0, Some(&[9; BLOCK_BYTES])).unwrap();
    }
    machine.settle();
    machine.store.verify().unwrap();
    let before = held(&machine.store);
    let mut machine = Machine::open(machine.drive, &options()).expect("nothing is wrong with the drive");
    assert_eq!(held(&machine.store), before);
    split_both(&mut machine);
    // What is a group's own is of one half or of the other, and all else stays.
    let name_now =
        |key: ObjectKey| if key == own_name(2, key.object) { own_name(4, key.object) } else { key };
    let of_four: BTreeMap<_, _> =
        before.iter().map(|((key, block), crc32c)| ((name_now(*key), *block), *crc32c)).collect();
    assert_eq!(held(&machine.store), of_four);
    let machine = Machine::open(machine.drive, &options()).expect("nothing is wrong with the drive");
    assert_eq!(held(&machine.store), of_four);
    let machine = machine.restart();
    assert_eq!(held(&machine.store), of_four);
}

#[test]
fn an_object_of_neither_half_of_a_group_that_is_split_keeps_no_store_from_starting() {
    for object in 0..4 {
        let mut machine = machine(0);
        let own = own_name(2, object);
        let other = named(1 - own.pg.index, object);
        // While nobody knows which objects the group has.
        machine.forge(other, 0, Some(&[1; BLOCK_BYTES])).unwrap();
        for index in 0..2 {
            machine.mark(RecordKind::Mark, named(index, 0).pg, 2, 1).unwrap();
        }
        machine.forge(own, 0, Some(&[2; BLOCK_BYTES])).unwrap();
        for index in [1, 0] {
            machine.split(named(index, 0).pg, 4).unwrap();
            machine.settle();
        }
        let before = held(&machine.store);
        assert_eq!(before[&(own_name(4, object), 0)], crc32c(&[2; BLOCK_BYTES]));
        let machine = Machine::open(machine.drive, &options()).expect("nothing is wrong with the drive");
        assert_eq!(held(&machine.store), before);
    }
}

#[test]
fn a_running_store_writes_everything_anew_that_a_start_needs() {
    let spoil = |machine: &mut Machine| {
        // Whatever holds no data of the index: superblocks, headers, and the pages and root of a checkpoint.
        let data: Vec<Option<u32>> = (0..40).map(|block| location(&machine.store, block)).collect();
        let end = (machine.store.statistics().device_bytes / BLOCK_BYTES as u64) as u32;
        let begin = (LOG_OFFSET_BYTES / BLOCK_BYTES as u64) as u32;
        for block in [0, SECOND_SUPERBLOCK].into_iter().chain(begin..end) {
            if !data.contains(&Some(block)) {
                machine.drive.scramble(block);
            }
        }
    };
    // With a checkpoint whose pages nothing has changed since.
    let open = || Machine::open(machine(20).shut_down(), &options()).expect("it was shut down in good order");
    let mut lost = open();
    spoil(&mut lost);
    open_error(lost.drive);
    let mut machine = open();
    spoil(&mut machine);
    machine.store.renew_checkpoint();
    machine.settle();
    let machine = Machine::open(machine.drive, &options()).expect("all of it is there again");
    for block in 0..40 {
        let content = location(&machine.store, block).map(|location| machine.drive.block(location)[0]);
        assert_eq!(content, Some((block / 2) as u8 + 1), "block {block}");
    }
}

#[test]
fn a_corrupt_header_of_an_acknowledged_batch_is_never_dropped_in_silence() {
    let machine = machine(20);
    // The header is the block before the batch's first data block.
    let header = location(&machine.store, 10).unwrap() - 1;
    let mut drive = machine.drive;
    drive.scramble(header);
    match Machine::open(drive, &options()) {
        Err((_, error)) => println!("{error}"),
        Ok(machine) => {
            assert!(machine.store.statistics().damaged_blocks > 0, "nothing tells of the damage");
            for block in 0..40 {
                assert!(location(&machine.store, block).is_some(), "block {block} is gone in silence");
            }
        }
    }
}

#[test]
fn a_rotten_block_keeps_the_checksum_it_was_written_with_through_cleaning() {
    let mut machine = machine(20);
    let rotten = location(&machine.store, 10).unwrap();
    let mut data = vec![0; BLOCK_BYTES];
    let mut random = Random::new(5);
    machine.drive.rot(rotten);
    // Overwrites elsewhere, of so much that space must be won back, until cleaning has moved the block.
    for write in 0..20_000u32 {
        data[..4].copy_from_slice(&write.to_le_bytes());
        machine.write(1, random.below(600) as u16, &data).unwrap();
        if write % 6 == 5 {
            machine.settle();
        }
        if location(&machine.store, 10) != Some(rotten) {
            break;
        }
    }
    machine.settle();
    let moved = location(&machine.store, 10).unwrap();
    assert_ne!(moved, rotten, "cleaning never moved the block: {:?}", machine.store.statistics());
    assert_eq!(machine.store.statistics().damaged_blocks, 1);
    let options = options();
    let mut machines = vec![machine];
    for _ in 0..2 {
        let machine = machines.pop().unwrap();
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        machine.store.lookup(&Machine::key(0), 10, 1, &mut extents, &mut checksums);
        assert_eq!(checksums, [crc32c(&[6; BLOCK_BYTES])], "the checksum is the original's");
        let content = machine.drive.block(extents[0].location.unwrap().0);
        assert_ne!(crc32c(content), checksums[0], "the damage shows");
        // Once more after a replay.
        machines.push(Machine::open(machine.drive, &options).map_err(|(_, error)| error).unwrap());
    }
}

#[test]
fn each_rotten_block_that_cleaning_moves_is_counted_once() {
    let mut machine = machine(20);
    let mut places: Vec<Option<u32>> = (0..40).map(|block| location(&machine.store, block)).collect();
    places.iter().flatten().for_each(|place| machine.drive.rot(*place));
    let mut data = vec![0; BLOCK_BYTES];
    let mut random = Random::new(5);
    let mut moves = 0;
    // More than fit into a segment, and so into a batch of what is moved: what a full one leaves is found again with the next.
    for write in 0..20_000u32 {
        data[..4].copy_from_slice(&write.to_le_bytes());
        machine.write(1, random.below(600) as u16, &data).unwrap();
        if write % 6 != 5 {
            continue;
        }
        machine.settle();
        for (block, place) in (0..).zip(&mut places) {
            let now = location(&machine.store, block);
            moves += u64::from(std::mem::replace(place, now) != now);
        }
        if moves >= 30 {
            break;
        }
    }
    assert!(moves >= 30, "cleaning moved {moves} blocks: {:?}", machine.store.statistics());
    assert_eq!(machine.store.statistics().damaged_blocks, moves);
}

#[test]
fn a_drive_that_failed_all_reads_for_a_while_is_cleaned_again_when_it_gives_what_it_has() {
    let mut machine = machine(20);
    let mut random = Random::new(5);
    // Most of what there is room for, so that space must be won back.
    let mut overwrite = |machine: &mut Machine, write: u32| {
        let mut data = [0; BLOCK_BYTES];
        data[..4].copy_from_slice(&write.to_le_bytes());
        let written = machine.write(1, random.below(600) as u16, &data);
        if write % 6 == 5 {
            machine.settle();
        }
        written
    };
    for write in 0..6000 {
        overwrite(&mut machine, write).unwrap();
    }
    assert!(machine.store.statistics().cleaned_blocks > 0);
    // Whoever waits for room is told some time later that there is none.
    machine.fails_reads = true;
    let refusal = (0..20_000).find_map(|write| overwrite(&mut machine, write).err());
    assert_eq!(refusal, Some(StageError::Full), "{:?}", machine.store.statistics());
    assert!(machine.store.is_blocked());
    machine.fails_reads = false;
    // What it comes upon may be what was just set aside.
    (0..4).for_each(|_| machine.settle());
    assert!(!machine.store.is_blocked(), "{:?}", machine.store.statistics());
    for write in 0..20_000 {
        overwrite(&mut machine, write).unwrap();
    }
    assert_eq!(machine.store.statistics().damaged_blocks, 0);
    machine.restart().store.verify().unwrap();
}

#[test]
fn a_block_that_is_given_as_lost_has_its_checksum_and_does_not_verify() {
    let checksum = crc32c(&[0xa5; BLOCK_BYTES]);
    let mut machine = machine(3);
    // The last batch of the log, and one that something follows.
    for block in [2, 9] {
        machine.write_damaged(0, block, checksum).unwrap();
        machine.settle();
    }
    machine.write(0, 10, &[7; BLOCK_BYTES]).unwrap();
    machine.write_damaged(0, 11, checksum).unwrap();
    machine.settle();
    for _ in 0..3 {
        for block in [2, 9, 11] {
            let (mut extents, mut checksums) = (Vec::new(), Vec::new());
            machine.store.lookup(&Machine::key(0), block, 1, &mut extents, &mut checksums);
            assert_eq!(checksums, [checksum], "block {block}");
            let content = machine.drive.block(extents[0].location.unwrap().0);
            assert_ne!(crc32c(content), checksum, "block {block} verifies");
        }
        assert!(location(&machine.store, 10).is_some());
        machine = Machine::open(machine.drive, &options()).map_err(|(_, error)| error).unwrap();
    }
}

#[test]
fn a_rotten_block_in_the_tail_does_not_end_the_log() {
    let machine = machine(20);
    let rotten = location(&machine.store, 10).unwrap();
    let mut drive = machine.drive;
    drive.rot(rotten);
    let machine = Machine::open(drive, &options()).map_err(|(_, error)| error).unwrap();
    for block in 0..40 {
        assert!(location(&machine.store, block).is_some(), "block {block} is lost");
    }
}

/// A drive that is away for some of the reads of a start.
struct Away {
    drive: SimDrive,
    reads: u64,
    away: Range<u64>,
}

impl Device for Away {
    fn bytes(&self) -> u64 {
        self.drive.bytes()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let is_away = self.away.contains(&self.reads);
        self.reads += 1;
        if is_away { Err(DeviceError("it is away".to_owned())) } else { self.drive.read(offset, into) }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.drive.write(offset, data)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.drive.flush()
    }
}

fn opened(device: &mut impl Device) -> Result<Store, OpenError> {
    let identity = Machine::identity();
    let expected = Expected { cluster: Some(identity.cluster), osd_uuid: Some(identity.osd_uuid) };
    Store::open(device, &expected, options())
}

/// A drive without a checkpoint, and one with a checkpoint and a log behind it. The last batch of each has two blocks.
fn drives_with_a_tail() -> [SimDrive; 2] {
    let mut behind = machine(20).restart();
    for write in 0..6 {
        behind.write(1, 2 * write, &[99; 2 * BLOCK_BYTES]).unwrap();
        behind.settle();
    }
    [machine(20).drive, behind.drive]
}

#[test]
fn a_store_starts_with_a_bad_block_wherever_it_starts_with_a_rotten_one_and_has_the_same() {
    for drive in drives_with_a_tail() {
        let all = held(&opened(&mut drive.copy()).unwrap());
        let mut told = 0;
        let log = LOG_OFFSET_BYTES / BLOCK_BYTES as u64..drive.bytes() / BLOCK_BYTES as u64;
        for block in [0, SECOND_SUPERBLOCK].into_iter().chain(log.start as u32..log.end as u32) {
            let [mut bad, mut rotten] = [drive.copy(), drive.copy()];
            bad.go_bad(block);
            rotten.scramble(block);
            let [with_bad, with_rotten] = [opened(&mut bad), opened(&mut rotten)];
            let had = |opened: &Result<Store, OpenError>| opened.as_ref().ok().map(held);
            assert_eq!(had(&with_bad), had(&with_rotten), "block {block}");
            // What may have been acknowledged is never given up in silence.
            if let Ok(store) = with_bad
                && held(&store) != all
            {
                assert_eq!(store.statistics().unreadable_blocks, 1, "nothing tells of block {block}");
                told += 1;
            }
        }
        assert_eq!(told, 3, "the last batch, whose header nothing follows, and its data");
    }
}

#[test]
fn a_drive_that_is_away_for_a_moment_loses_nothing() {
    let mut drives = Vec::from(drives_with_a_tail());
    // Once more with what ends the log there.
    let last = location(&machine(20).store, 39).unwrap();
    for block in [last, last - 2] {
        let mut drive = drives[0].copy();
        drive.go_bad(block);
        drives.push(drive);
    }
    for drive in drives {
        let mut here = Away { drive: drive.copy(), reads: 0, away: 0..0 };
        let all = held(&opened(&mut here).unwrap());
        let (mut refused, mut unharmed) = (0, 0);
        for from in 0..here.reads {
            for reads in [1, 2, 3, 4, 6, 9, 14, 1000] {
                let away = from..from + reads;
                let mut device = Away { drive: drive.copy(), reads: 0, away: away.clone() };
                match opened(&mut device) {
                    Ok(store) => {
                        assert_eq!(held(&store), all, "it was away for the reads {away:?}");
                        unharmed += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, OpenError::Device(_)), "{away:?}: {error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > here.reads && unharmed > 0, "{refused} refused, {unharmed} unharmed");
    }
}

#[test]
fn a_log_does_not_end_for_a_part_of_its_drive_that_is_away() {
    let machine = machine(20);
    let last = location(&machine.store, 39).unwrap();
    // It begins or ends with a block of the last batch: of several drives that are striped, one.
    for first in (last - 2..=last).chain(last - 17..=last - 15) {
        let mut drive = machine.drive.copy();
        (first..first + 16).for_each(|block| drive.go_bad(block));
        let error = open_error(drive);
        assert!(matches!(error, OpenError::Device(_)), "from {first}: {error}");
    }
}

#[test]
fn an_osd_whose_log_ends_at_a_bad_block_says_so() {
    let machine = machine(20);
    let last = location(&machine.store, 39).unwrap();
    let notes = |bad: Option<u32>| {
        let mut drive = machine.drive.copy();
        bad.into_iter().for_each(|block| drive.go_bad(block));
        let osd = pg::Osd::new(opened(&mut drive).unwrap(), &pg::OsdOptions::default());
        osd.view().notes().map(str::to_owned).collect::<Vec<String>>()
    };
    assert!(notes(None).is_empty() && notes(Some(last - 4)).is_empty(), "nothing may be missing");
    for block in [last - 2, last - 1, last] {
        let notes = notes(Some(block));
        assert!(notes.len() == 1 && notes[0].contains("may be missing here"), "{notes:?}");
    }
}

#[test]
fn what_an_opening_found_the_next_one_has_too_or_says_that_it_is_gone() {
    let machine = Machine::open(machine(20).drive, &options()).unwrap();
    let last = location(&machine.store, 39).unwrap();
    let spoils: [fn(&mut SimDrive, u32); 3] = [SimDrive::rot, SimDrive::scramble, SimDrive::go_bad];
    for spoil in spoils {
        let mut drive = machine.drive.copy();
        spoil(&mut drive, last);
        let store = opened(&mut drive).unwrap();
        assert_eq!(location(&store, 39), Some(last), "the log ends before what was durable");
        assert_eq!(store.statistics().unreadable_blocks, 0);
        let mut drive = machine.drive.copy();
        spoil(&mut drive, last - 2);
        let error = open_error(drive);
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    }
}

/// A batch of cleaning was torn by a crash, and given up. The one that took its number is the only one of its mount, and its
/// header rots when the next mount has begun: the old one is not taken for it.
#[test]
fn what_was_given_up_does_not_come_back_for_a_batch_that_was_alone_in_its_mount() {
    let machine = machine(4);
    let last = location(&machine.store, 6).unwrap() - 1;
    let (header, _) = BatchHeader::read_from_prefix(machine.drive.block(last)).unwrap();
    let given_up = BatchHeader {
        sequence: (header.sequence.get() + 1).into(),
        durable_through: header.sequence,
        stream: 1,
        record_count: 0.into(),
        data_blocks: 0.into(),
        // Not all of it arrived.
        data_fingerprint: 1.into(),
        ..header
    };
    let mut block = [0; BLOCK_BYTES];
    block[..size_of::<BatchHeader>()].copy_from_slice(given_up.as_bytes());
    seal(&mut block);
    let mut drive = machine.drive;
    // Nothing was moved yet: there the second stream begins.
    drive.write(LOG_OFFSET_BYTES + (64 << 10), &block).unwrap();
    let written = |store: &Store| {
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        store.lookup(&Machine::key(1), 0, 1, &mut extents, &mut checksums);
        extents[0].location
    };
    let opened_at_last = |sabotage: Option<Sabotage>| {
        let options = Options { sabotage, ..options() };
        let open = |drive| Machine::open(drive, &options).map_err(|(_, error)| error);
        let mut second = open(drive.copy()).unwrap();
        second.write(1, 0, &[7; BLOCK_BYTES]).unwrap();
        second.settle();
        let mut third = open(second.drive).unwrap();
        let place = written(&third.store).expect("it was acknowledged");
        third.drive.rot(place.0 - 1);
        open(third.drive)
    };
    let error = opened_at_last(None).expect_err("it is gone");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    // Were the old one still there, nobody would notice.
    let machine = opened_at_last(Some(Sabotage::KeepGivenUp)).unwrap();
    assert_eq!(written(&machine.store), None);
}

/// A store whose log has gone around its drive several times, with nothing in it but a block of a client that looks like the
/// header of a batch: one that is far ahead, and says that all before it was durable.
fn written_around(secret: Secret) -> SimDrive {
    let header = BatchHeader {
        sequence: (u64::MAX - 1).into(),
        durable_through: (u64::MAX - 2).into(),
        mount: 1u64.into(),
        ..BatchHeader::default()
    };
    let mut block = [0; BLOCK_BYTES];
    block[..size_of::<BatchHeader>()].copy_from_slice(header.as_bytes());
    seal_batch(&mut block, &Fingerprints::new(&lookalike::guess(&Machine::identity())));
    let drive = SimDrive::new(LOG_OFFSET_BYTES + (2 << 20), true, Random::new(1));
    let mut machine = Machine::format_with(drive, secret, &options());
    for write in 0..1500 {
        machine.write(0, write % 8, &block).unwrap();
        machine.settle();
    }
    machine.drive
}

#[test]
fn a_clients_block_that_looks_like_a_header_keeps_no_store_from_starting() {
    let machine =
        Machine::open(written_around(Machine::SECRET), &options()).map_err(|(_, error)| error).unwrap();
    assert!((0..8).all(|block| location(&machine.store, block).is_some()));
    // Were its secret known to clients, that block would be a batch of this store, and all before it lost.
    open_error(written_around(lookalike::guess(&Machine::identity())));
}

/// Of the header of a log's last batch the first sector arrived, and behind it lies what a client had written there in an earlier
/// use of the segment. That has the very checksum of what it stands in for: a client that knows what else a header says can see to
/// that, for whatever the first sector is, a checksum is as if it were alone.
#[test]
fn a_torn_header_is_none_whatever_a_client_had_written_where_the_rest_of_it_was_to_be() {
    let record_of = |kind: u8| {
        // Of who knows which block of another's.
        let record = Record::new(RecordKind::Zero, Machine::key(0), 10, 1);
        Record { kind, ..record }
    };
    for kind in [RecordKind::Zero as u8, 99] {
        let mut machine = machine(20);
        (0..12).for_each(|block| machine.zero(1, block, 1).unwrap());
        machine.settle();
        let mut drive = machine.drive;
        let is_of_zeroings = |block: &u32| {
            let kinds = vec![RecordKind::Zero; 12];
            read_batch(&drive.block(*block)[..], &fingerprints()) == BatchRead::Batch(kinds)
        };
        let blocks = (LOG_OFFSET_BYTES + (4 << 20)) / BLOCK_BYTES as u64;
        let header = (0..blocks as u32).find(is_of_zeroings).expect("they are in one batch");
        let whole = *drive.block(header);
        let mut torn = whole;
        torn[SECTOR_BYTES..].fill(0);
        assert_eq!((SECTOR_BYTES - size_of::<BatchHeader>()) % size_of::<Record>(), 0);
        for place in torn[SECTOR_BYTES..].chunks_exact_mut(size_of::<Record>()).take(3) {
            place.copy_from_slice(record_of(kind).as_bytes());
        }
        let (front, end) = torn.split_at_mut(BLOCK_BYTES - 4);
        end.copy_from_slice(&ending(crc32c(&front[8..]), crc32c(&whole[8..])));
        assert!(torn != whole && crc32c(&torn[8..]) == crc32c(&whole[8..]));
        drive.write(offset_of(header), &torn).unwrap();
        let machine = Machine::open(drive, &options()).map_err(|(_, error)| error).unwrap();
        assert!((0..40).all(|block| location(&machine.store, block).is_some()), "nobody zeroed it");
    }
}

/// What the last batch of a log was to write is not there but for its header: what a drive may leave of it when the power goes.
/// What lay there before has the same checksum.
#[test]
fn a_batch_is_not_taken_for_whole_because_what_lay_there_before_has_its_checksums() {
    let place = Place { volume: 0, block: 50 };
    for crc32c in [Some(ZERO_BLOCK_CRC32C), None] {
        let contents = Contents::Colliding(Collision { crc32c, of_both: false });
        let block = |author| {
            let mut bytes = [0; BLOCK_BYTES];
            contents.fill(author, place, &mut bytes);
            bytes
        };
        let mut machine = machine(20);
        machine.write(0, 50, &block(1)).unwrap();
        machine.settle();
        machine.write(0, 50, &block(2)).unwrap();
        machine.settle();
        let place_on_drive = offset_of(location(&machine.store, 50).unwrap());
        let mut drive = machine.drive;
        // Nothing was ever written there, or an older version in an earlier use of the segment.
        let before = if crc32c.is_some() { [0; BLOCK_BYTES] } else { block(1) };
        drive.write(place_on_drive, &before).unwrap();
        let machine = Machine::open(drive, &options()).map_err(|(_, error)| error).unwrap();
        let shown = location(&machine.store, 50).unwrap();
        let is_first = *machine.drive.block(shown) == block(1);
        let says_first = offset_of(shown) != place_on_drive;
        assert!(
            is_first && says_first,
            "the second write is taken for durable, and what is read is not what it wrote"
        );
    }
}

/// A batch of so many blocks is torn, given up by an opening, and what is written in its place then is torn too: of the first
/// one the front arrives, of the second one the rest. Answers the store that is opened on that.
fn opened_over_two_torn_batches(
    start: &Machine,
    writes: [&dyn Fn(&mut Machine); 2],
    blocks: u32,
    front_bytes: usize,
) -> Store {
    let at = location(&start.store, 5).unwrap() + 1;
    let bytes_at =
        |drive: &SimDrive| -> Vec<u8> { (at..at + blocks).flat_map(|block| *drive.block(block)).collect() };
    let mut drive = start.drive.copy();
    // What lay there before has nothing in common with either.
    drive.write(offset_of(at), &vec![0xa5; blocks as usize * BLOCK_BYTES]).unwrap();
    let mut wholes = Vec::new();
    // Openings leave the first one where it is, which is one more protection.
    let options = Options { sabotage: Some(Sabotage::KeepGivenUp), ..options() };
    for (number, write) in writes.into_iter().enumerate() {
        let mut machine = Machine::open(drive, &options).unwrap();
        assert_eq!(location(&machine.store, 0), location(&start.store, 0), "a torn batch does not count");
        drive = machine.drive.copy();
        write(&mut machine);
        machine.settle();
        let (mut there, whole) = (bytes_at(&drive), bytes_at(&machine.drive));
        let arrived = if number == 0 { 0..front_bytes } else { front_bytes..whole.len() };
        there[arrived.clone()].copy_from_slice(&whole[arrived]);
        drive.write(offset_of(at), &there).unwrap();
        wholes.push(whole);
    }
    assert!(bytes_at(&drive) == wholes[0] && wholes[0] != wholes[1], "the first is there, to the last byte");
    Machine::open(drive, &options).unwrap().store
}

#[test]
fn a_torn_batch_does_not_make_the_one_whole_that_was_given_up_in_its_place() {
    let start = machine(3);
    let zero = |machine: &mut Machine| machine.zero(0, 0, 2).unwrap();
    let write = |machine: &mut Machine| {
        machine.write(0, 0, &[9; BLOCK_BYTES]).unwrap();
    };
    // All headers of few records end in zeros. And a client that heard nothing sends the same data once more.
    let all = [
        opened_over_two_torn_batches(&start, [&zero, &write], 1, BLOCK_BYTES - SECTOR_BYTES),
        opened_over_two_torn_batches(&start, [&write, &write], 2, BLOCK_BYTES),
    ];
    for store in all {
        assert_eq!(location(&store, 0), location(&start.store, 0), "what was given up stays so");
    }
}

#[test]
fn checkpoints_that_are_broken_off_leave_room_to_clean_until_one_is_complete() {
    let drive_bytes = LOG_OFFSET_BYTES + 32 * u64::from(options().segment_bytes.unwrap());
    let mut machine = Machine::format(SimDrive::new(drive_bytes, true, Random::new(1)), &options());
    for object in 0..8 {
        for write in 0..4 {
            machine.write(object, 7 * write, &[object as u8 + 1; 7 * BLOCK_BYTES]).unwrap();
            machine.settle();
        }
    }
    // Of each segment something stays live.
    for object in 0..8 {
        for write in 0..4 {
            machine.zero(object, 7 * write, 5).unwrap();
        }
    }
    let mut drive = machine.shut_down();
    for round in 0..24 {
        let mut machine = Machine::open(drive, &options()).unwrap();
        machine.store.renew_checkpoint();
        // All of it is durable, but no superblock points there.
        while !machine.drive.flying_writes().any(|(block, _)| block == 0) {
            assert!(machine.step(), "checkpoint {round} is stuck: {:?}", machine.store.statistics());
        }
        drive = machine.drive.copy();
    }
    let mut machine = Machine::open(drive, &options()).unwrap().restart();
    machine.write(0, 0, &[9; BLOCK_BYTES]).unwrap();
    machine.settle();
    machine.store.verify().unwrap();
    assert_eq!(machine.durable(), 1);
    for object in 0..8 {
        for write in 0..4 {
            let mut checksums = Vec::new();
            machine.store.lookup(&Machine::key(object), 7 * write + 5, 2, &mut Vec::new(), &mut checksums);
            assert_eq!(checksums, [crc32c(&[object as u8 + 1; BLOCK_BYTES]); 2]);
        }
    }
}

#[test]
fn segments_of_which_all_is_live_are_not_moved_into_the_last_room_of_a_checkpoint() {
    const SEGMENT_BYTES: u32 = 4 << 20;
    const OBJECTS: u32 = 300;
    let options = Options { batch_bytes_max: 1 << 20, segment_bytes: Some(SEGMENT_BYTES), ..options() };
    let drive_bytes = LOG_OFFSET_BYTES + 18 * u64::from(SEGMENT_BYTES);
    let mut machine = Machine::format(SimDrive::new(drive_bytes, true, Random::new(1)), &options);
    // Five segments of four full batches each: moving one in pieces of 64 blocks takes more than it gives.
    for object in 0..OBJECTS {
        machine.write(object, 0, &vec![object as u8; 17 * BLOCK_BYTES]).unwrap();
        if object % 15 == 14 {
            machine.settle();
        }
    }
    // A checkpoint takes some 311 blocks. All of it is durable, but no superblock points there.
    let break_off = |drive: SimDrive| {
        let mut machine = Machine::open(drive, &options).unwrap();
        machine.store.renew_checkpoint();
        while !machine.drive.flying_writes().any(|(block, _)| block == 0) {
            assert!(machine.step(), "the checkpoint is stuck: {:?}", machine.store.statistics());
        }
        (machine.drive.copy(), machine.store.statistics().free_segments)
    };
    let (mut drive, mut free_segments) = (machine.shut_down(), u32::MAX);
    while free_segments > 0 {
        (drive, free_segments) = break_off(drive);
    }
    // Beyond the end of the segment that is open then, into the last one.
    for _ in 0..4 {
        (drive, _) = break_off(drive);
    }
    let mut machine = Machine::open(drive, &options).unwrap();
    machine.store.renew_checkpoint();
    machine.settle();
    assert!(machine.store.statistics().free_segments > 0, "{:?}", machine.store.statistics());
    machine = machine.restart();
    machine.write(0, 0, &[9; BLOCK_BYTES]).unwrap();
    machine.settle();
    machine.store.verify().unwrap();
    for object in 0..OBJECTS {
        let mut checksums = Vec::new();
        machine.store.lookup(&Machine::key(object), 1, 16, &mut Vec::new(), &mut checksums);
        assert_eq!(checksums, [crc32c(&[object as u8; BLOCK_BYTES]); 16], "object {object}");
    }
}

#[test]
fn a_drive_of_another_cluster_or_another_osd_is_refused() {
    let mut drive = machine(1).shut_down();
    let identity = Machine::identity();
    let other_cluster =
        Expected { cluster: Some(ClusterId::from_bytes([9; 16])), osd_uuid: Some(identity.osd_uuid) };
    let other_osd =
        Expected { cluster: Some(identity.cluster), osd_uuid: Some(OsdUuid::from_bytes([9; 16])) };
    let open = |drive: &mut SimDrive, expected| match Store::open(drive, expected, options()) {
        Ok(_) => panic!("the store opened"),
        Err(error) => error,
    };
    let error = open(&mut drive, &other_cluster);
    assert!(matches!(error, OpenError::OtherCluster { .. }), "{error}");
    let error = open(&mut drive, &other_osd);
    assert!(matches!(error, OpenError::OtherOsd { .. }), "{error}");
    assert_eq!(store::identify(&mut drive).unwrap(), Some(identity));
}

#[test]
fn a_drive_that_was_never_formatted_is_no_osd() {
    let mut drive = SimDrive::new(LOG_OFFSET_BYTES + (4 << 20), true, Random::new(1));
    assert_eq!(store::identify(&mut drive).unwrap(), None);
    println!("{}", open_error(drive));
}

#[test]
fn a_truncated_drive_is_refused() {
    let mut drive = machine(20).shut_down();
    let bytes = drive.bytes();
    drive.truncate(bytes - (1 << 20));
    println!("{}", open_error(drive));
}

#[test]
fn a_drive_too_small_is_refused() {
    let mut drive = SimDrive::new(LOG_OFFSET_BYTES + (256 << 10), true, Random::new(1));
    let refused = store::format(&mut drive, Machine::identity(), Machine::SECRET, &options()).unwrap_err();
    println!("{refused}");
}

#[test]
fn random_bytes_anywhere_never_panic() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut drive = machine(20).drive;
        let blocks = drive.bytes() / BLOCK_BYTES as u64;
        for _ in 0..random.between(1, 40) {
            // Where something is written, mostly.
            let start = random.choose(&[0, LOG_OFFSET_BYTES / BLOCK_BYTES as u64]);
            drive.scramble((start + random.below(64).min(blocks - start - 1)) as u32);
        }
        let _ = Machine::open(drive, &options()).map(|machine| machine.store.verify().unwrap());
    }
}
