//! Superblocks: either of the two may be damaged, or out of reach, and the power go at any moment.

use super::*;
use store::layout::Piece;

#[test]
fn one_corrupt_superblock_is_survived_and_mended() {
    for copy in [0, SECOND_SUPERBLOCK] {
        let mut drive = machine(20).shut_down();
        drive.scramble(copy);
        let machine = Machine::open(drive, &options()).expect("one good copy is enough");
        assert!(location(&machine.store, 39).is_some());
        let mut drive = machine.shut_down();
        drive.scramble(SECOND_SUPERBLOCK - copy);
        assert!(Machine::open(drive, &options()).is_ok(), "the first copy was mended");
    }
}

#[test]
fn a_start_with_one_superblock_may_lose_the_power_at_any_moment() {
    for (copy, is_unreadable) in
        [(0, true), (0, false), (SECOND_SUPERBLOCK, true), (SECOND_SUPERBLOCK, false)]
    {
        let mut cuts = 0;
        for seed in 0..16 {
            let whole = machine_by(Random::new(seed), 20).shut_down();
            let opens_at_once = |operations| {
                let mut drive = whole.copy();
                if is_unreadable {
                    drive.go_bad(copy);
                } else {
                    drive.scramble(copy);
                }
                drive.arm(operations);
                let (mut machine, at_once) = match Machine::open(drive, &options()) {
                    Ok(machine) => (machine, true),
                    Err((mut drive, _)) => {
                        drive.power_on();
                        let machine = Machine::open(*drive, &options());
                        (machine.unwrap_or_else(|(_, error)| panic!("{copy}, {operations}: {error}")), false)
                    }
                };
                assert!((0..40).all(|block| location(&machine.store, block).is_some()));
                machine.write(0, 40, &[7; BLOCK_BYTES]).unwrap();
                machine.settle();
                at_once
            };
            cuts += (0..).take_while(|operations| !opens_at_once(*operations)).count();
        }
        println!("copy {copy}, unreadable: {is_unreadable}: {cuts} cuts");
        assert!(cuts > 16 * 8, "{cuts}");
    }
}

/// So that a root has many pieces, and two superblocks differ in more than one sector.
fn small_batches() -> Options {
    Options { batch_bytes_max: 8 << 10, ..options() }
}

/// A drive with such a store. What a cut of the power leaves is decided by the seed.
fn with_large_root(seed: u64) -> SimDrive {
    let drive = SimDrive::new(LOG_OFFSET_BYTES + (8 << 20), true, Random::new(seed));
    let mut machine = Machine::format(drive, &small_batches());
    machine.write(0, 0, &[7; BLOCK_BYTES]).unwrap();
    for (index, sequence) in (0..6).flat_map(|index| (1..1000).map(move |sequence| (index, sequence))) {
        let pg = PgId { index, ..Machine::key(0).pg };
        machine.entry_of(ObjectKey { pg, ..Machine::key(0) }, 0, 1 + sequence).unwrap();
    }
    let drive = machine.shut_down();
    let superblock = Superblock::read_from_bytes(&drive.block(0)[..]).unwrap();
    assert!(size_of::<Piece>() * superblock.root_pieces.get() as usize > SECTOR_BYTES);
    drive
}

/// Opens a store with a large root, has it write all anew, and takes it away as it is so many operations of the drive before the
/// last one.
fn taken_from(drive: &SimDrive, steps_left: u32, renew: impl Fn(&mut Machine)) -> SimDrive {
    let opened = || {
        let machine = Machine::open(drive.copy(), &small_batches());
        let mut machine = machine.unwrap_or_else(|(_, error)| panic!("{error}"));
        renew(&mut machine);
        machine
    };
    let mut machine = opened();
    let steps = (0..).take_while(|_| machine.step()).count() as u32;
    let mut machine = opened();
    (0..steps - steps_left).for_each(|_| assert!(machine.step()));
    machine.drive
}

/// A running store has a superblock written anew that was found overwritten, or could not be read.
#[test]
fn a_store_that_renews_a_superblock_may_lose_the_power_at_any_moment() {
    for (seed, copy) in (0..8).flat_map(|seed| [(seed, 0), (seed, SECOND_SUPERBLOCK)]) {
        let drive = with_large_root(seed);
        for steps_left in 0..8 {
            let mut drive = taken_from(&drive, steps_left, |machine| {
                machine.drive.go_bad(copy);
                machine.store.renew_superblock(offset_of(copy));
            });
            drive.power_cut();
            drive.power_on();
            let again = Machine::open(drive, &small_batches());
            again.unwrap_or_else(|(_, error)| panic!("{seed}, {copy}, {steps_left}: {error}"));
        }
    }
}

/// The process is killed when a superblock is in the drive's cache alone, and the power goes in the start behind that.
#[test]
fn what_a_start_reads_of_superblocks_may_be_in_the_cache_alone() {
    let opens_in = |seed, operations| {
        // All that is left to do is to flush the second copy.
        let mut drive = taken_from(&with_large_root(seed), 1, |machine| machine.store.renew_checkpoint());
        drive.kill();
        drive.arm(operations);
        Machine::open(drive, &small_batches()).map(|_| ()).map_err(|(drive, _)| drive)
    };
    // Most of what a start does is to read the root.
    let needed = (0..).step_by(8).find(|operations| opens_in(0, *operations).is_ok()).unwrap();
    let mut cuts = 0;
    for (seed, operations) in (0..100).flat_map(|seed| (needed - 12..needed).map(move |at| (seed, at))) {
        let Err(mut drive) = opens_in(seed, operations) else { continue };
        drive.power_on();
        cuts += 1;
        let again = Machine::open(*drive, &small_batches());
        again.unwrap_or_else(|(_, error)| panic!("{seed}, {operations}: {error}"));
    }
    assert!(cuts > 300, "{cuts}");
}

#[test]
fn two_corrupt_superblocks_are_an_error_that_says_so() {
    let mut drive = machine(20).shut_down();
    drive.scramble(0);
    drive.scramble(SECOND_SUPERBLOCK);
    let error = open_error(drive).to_string();
    println!("{error}");
    assert!(error.contains("superblock"), "{error}");
}

#[test]
fn one_superblock_that_cannot_be_read_is_survived_and_mended() {
    for copy in [0, SECOND_SUPERBLOCK] {
        let mut drive = machine(20).shut_down();
        drive.go_bad(copy);
        let machine = Machine::open(drive, &options()).expect("one good copy is enough");
        assert!(location(&machine.store, 39).is_some());
        let mut drive = machine.shut_down();
        assert!(!drive.has_bad_blocks(), "the copy was mended");
        drive.go_bad(0);
        drive.go_bad(SECOND_SUPERBLOCK);
        let error = open_error(drive);
        assert!(matches!(error, OpenError::Device(_)), "{error}");
    }
}

/// Where the power goes while an opening makes durable what it found, that may be gone; not any more when a superblock tells of it.
#[test]
fn what_an_opening_found_that_was_broken_off_is_there_if_a_superblock_tells_of_it() {
    let (mut told, mut gone) = (0, 0);
    for (seed, operations) in (0..40).flat_map(|seed| (0..40).map(move |operations| (seed, operations))) {
        let drive = SimDrive::new(LOG_OFFSET_BYTES + (4 << 20), true, Random::new(seed));
        let mut machine = Machine::format(drive, &options());
        machine.write(0, 0, &[1; BLOCK_BYTES]).unwrap();
        machine.settle();
        machine.write(0, 1, &[2; BLOCK_BYTES]).unwrap();
        // It is in the drive's cache, and the process is killed.
        assert!(machine.step());
        let mut drive = machine.drive;
        drive.kill();
        drive.arm(operations);
        let Err((mut drive, _)) = Machine::open(drive, &options()) else { continue };
        drive.power_on();
        let tells = |block: u32| {
            let superblock = Superblock::read_from_bytes(&drive.block(block)[..]).unwrap();
            superblock.is_intact() && superblock.mount_begin.get() == 3
        };
        let is_told_of = tells(0) || tells(SECOND_SUPERBLOCK);
        let store = opened(&mut *drive).unwrap();
        assert!(location(&store, 0).is_some(), "what was acknowledged is lost");
        let is_there = location(&store, 1).is_some();
        assert!(is_there || !is_told_of, "{seed}, {operations}");
        (told, gone) = (told + u32::from(is_told_of), gone + u32::from(!is_there));
    }
    assert!(told > 3 && gone > 3, "told of {told} times, gone {gone} times");
}
