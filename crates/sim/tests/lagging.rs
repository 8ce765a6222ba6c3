//! What a member that begins to lag is sure of, over every restart.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::{BLOCK_BYTES, Sequence};
use sim::drive::SimDrive;
use sim::machine::Machine;
use sim::plan::LOG_OFFSET_BYTES;
use sim::random::Random;
use store::{Options, RecordKind, Sabotage};

/// More than the pages of one batch.
const OBJECTS: u32 = 400;
const WRITES: u64 = 100;

/// A store whose group has the writes 1 to 100, of one block and of an object after the other, and a checkpoint of it.
fn options() -> Options {
    Options { pg_log_entries: 16, segment_bytes: Some(1 << 20), ..Options::default() }
}

fn machine() -> Machine {
    let drive = SimDrive::new(LOG_OFFSET_BYTES + (32 << 20), true, Random::new(1));
    let mut machine = Machine::format(drive, &options());
    for object in 0..OBJECTS {
        machine.forge(Machine::key(object), 0, Some(&[object as u8; BLOCK_BYTES])).unwrap();
        machine.settle();
    }
    for write in 1..=WRITES {
        machine.entry(write as u32, 0, write).unwrap();
        machine.settle();
    }
    machine
}

/// A member begins to lag while a checkpoint is written, and is started anew by these options at each moment of that: what it is
/// sure of then that it missed, if anything.
fn sure_of_what_it_missed(options: &Options) -> Option<String> {
    let (begun, pg) = (machine(), Machine::key(0).pg);
    let mut cut = 0;
    loop {
        let mut machine = Machine::open(begun.drive.copy(), options).unwrap();
        machine.store.renew_checkpoint();
        machine.step();
        // It is in sync still, then it lags, and goes on with the stream of writes.
        machine.mark(RecordKind::Mark, pg, 1, WRITES + 1).unwrap();
        let mut sequences = 500..=600;
        let mut is_at_rest = false;
        for _ in 0..cut {
            for sequence in sequences.by_ref().take(10) {
                match sequence {
                    500 => machine.mark(RecordKind::Join, pg, 1, sequence).unwrap(),
                    _ => machine.entry(7, 0, sequence).unwrap(),
                }
            }
            is_at_rest = !machine.step() && sequences.is_empty();
        }
        let mut drive = machine.drive;
        drive.kill();
        drive.power_on();
        let again = Machine::open(drive, options).unwrap();
        for object in [1, 7, 99, 399] {
            let through = again.store.object_held_through(&Machine::key(object));
            if through > Sequence(WRITES - 4) {
                return Some(format!("object {object}: {through:?} after {cut} steps"));
            }
        }
        if is_at_rest {
            assert!(cut > 20, "only {cut} steps");
            return None;
        }
        cut += 1;
    }
}

#[test]
fn a_member_that_begins_to_lag_while_a_checkpoint_is_written_is_sure_of_no_more_after_a_restart() {
    assert_eq!(sure_of_what_it_missed(&options()), None);
}

#[test]
fn a_store_that_replays_what_its_logs_have_already_is_noticed() {
    let options = Options { sabotage: Some(Sabotage::ReplayOverLogs), ..options() };
    assert!(sure_of_what_it_missed(&options).is_some());
}
