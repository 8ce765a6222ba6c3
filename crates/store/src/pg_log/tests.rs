//! What members can tell of their groups' order by their logs.

use super::*;
use base::log_entry::{MEND, REPAIR};

#[test]
fn an_object_is_found_under_its_present_name_by_each_earlier_one() {
    let mut logs = PgLogs::new(3);
    let pool = PoolId(1);
    let pg = |index| PgId { pool, index };
    // Nothing is known of group 2, and nothing of it is renamed.
    logs.note_modulus(pg(0), 3);
    logs.note_modulus(pg(1), 3);
    assert!(logs.split(pg(0), 6) && logs.split(pg(0), 12) && logs.split(pg(3), 12) && logs.split(pg(1), 6));
    assert!(!logs.split(pg(0), 6) && !logs.split(pg(3), 12), "a split is done once");
    for object in 0..240 {
        let key = |pg| ObjectKey { pg, layer: LayerId(5), object };
        let of = |modulus| PgId::of_object(pool, modulus, LayerId(5), object);
        let now = match of(3).index {
            0 => of(12),
            1 => of(6),
            _ => of(3),
        };
        for modulus in [3, 6, 12].into_iter().take_while(|modulus| of(*modulus).index <= now.index) {
            assert_eq!(logs.home(key(of(modulus))), key(now), "as it was called among {modulus}");
            if of(modulus) == now {
                break;
            }
        }
    }
}

#[test]
fn both_halves_of_a_group_go_on_with_its_log() {
    let mut logs = PgLogs::new(3);
    let pg = PgId { pool: PoolId(1), index: 1 };
    let mark = |sequence| LogEntry {
        epoch: Epoch(4),
        sequence: Sequence(sequence),
        layer: LayerId(0),
        object: 0,
        first_block: 0,
        block_count: 0,
        origin: 0,
    };
    logs.restart(pg, mark(7));
    logs.note_modulus(pg, 2);
    assert!(logs.split(pg, 4));
    let child = PgId { index: 3, ..pg };
    logs.push(child, mark(9));
    logs.completed(child);
    assert_eq!(
        (logs.position(pg), logs.position(child)),
        (Some((Epoch(4), Sequence(7))), Some((Epoch(4), Sequence(9))))
    );
    assert_eq!((logs.groups[&pg].is_incomplete, logs.groups[&child].is_incomplete), (true, false));
    assert_eq!(logs.groups[&child].begins, Sequence(8));
    // What it was split by stays when a log begins anew.
    logs.restart(child, mark(12));
    logs.note_modulus(child, 2);
    assert_eq!(logs.groups[&child].modulus, 4);
}

#[test]
fn a_log_keeps_the_newest_entries_and_says_where_it_begins() {
    let pg = PgId { pool: PoolId(1), index: 0 };
    let entry = |sequence| LogEntry {
        epoch: Epoch(1),
        sequence: Sequence(sequence),
        layer: LayerId(1),
        object: 0,
        first_block: 0,
        block_count: 1,
        origin: 0,
    };
    let mut logs = PgLogs::new(3);
    for sequence in 1..=3 {
        logs.push(pg, entry(sequence));
        assert_eq!(logs.groups[&pg].begins, Sequence(0));
    }
    logs.push(pg, entry(4));
    // Replay goes over what is there.
    logs.push(pg, entry(4));
    let kept: Vec<u64> = logs.groups[&pg].entries.iter().map(|entry| entry.sequence.0).collect();
    assert_eq!(kept, [2, 3, 4]);
    assert_eq!(logs.groups[&pg].begins, Sequence(2));
    // Marks that follow each other are one, and what lies before them still counts as known.
    let mark = |sequence| LogEntry { block_count: 0, ..entry(sequence) };
    logs.restart(pg, mark(10));
    logs.push(pg, mark(20));
    let log = &logs.groups[&pg];
    assert_eq!((log.begins, log.entries.len()), (Sequence(11), 1));
    assert!(log.is_incomplete);
}

#[test]
fn repairs_and_marks_do_not_drive_out_what_is_to_be_repaired() {
    let pg = PgId { pool: PoolId(1), index: 0 };
    let entry = |epoch, sequence, first_block, block_count, origin| LogEntry {
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        layer: LayerId(1),
        object: 0,
        first_block,
        block_count,
        origin,
    };
    let mut logs = PgLogs::new(8);
    logs.push(pg, entry(1, 1, 0, 100, 7));
    logs.push(pg, entry(1, 2, 200, 1, 8));
    let mut sequence = 2;
    let mut next = || {
        sequence += 1;
        sequence
    };
    // An epoch after the other begins, repairs block by block, and comes to an end before the last.
    for epoch in 2..20 {
        logs.push(pg, entry(epoch, next(), 0, 0, 0));
        for block in 0..100 {
            logs.push(pg, entry(epoch, next(), block, 1, REPAIR | 7));
        }
    }
    let entries: Vec<LogEntry> = logs.groups[&pg].entries.iter().copied().collect();
    assert_eq!(entries[..2], [entry(1, 1, 0, 100, 7), entry(1, 2, 200, 1, 8)]);
    assert_eq!(entries[2..], [entry(19, sequence - 100, 0, 0, 0), entry(19, sequence, 0, 100, REPAIR | 7)]);
    assert_eq!(logs.groups[&pg].begins, Sequence(0));
    // A part of it again, elsewhere, and of another write: none says what the others say.
    logs.push(pg, entry(20, sequence + 1, 0, 10, REPAIR | 7));
    logs.push(pg, entry(20, sequence + 2, 20, 10, REPAIR | 7));
    logs.push(pg, entry(20, sequence + 3, 30, 10, REPAIR | 9));
    assert_eq!(logs.groups[&pg].entries.len(), 7);
}

const GROUP: PgId = PgId { pool: PoolId(1), index: 0 };

/// A write of one block of an object, or a mark of none.
fn write(sequence: u64, object: u32, block: u16) -> LogEntry {
    LogEntry {
        epoch: Epoch(1),
        sequence: Sequence(sequence),
        layer: LayerId(1),
        object,
        first_block: block,
        block_count: 1,
        origin: sequence,
    }
}

fn mark(sequence: u64) -> LogEntry {
    LogEntry { block_count: 0, origin: 0, ..write(sequence, 0, 0) }
}

fn key(object: u32) -> ObjectKey {
    ObjectKey { pg: GROUP, layer: LayerId(1), object }
}

fn through(logs: &PgLogs, object: u32) -> u64 {
    logs.object_held_through(&key(object)).0
}

#[test]
fn of_the_last_writes_a_member_is_sure_only_behind_those_that_may_be_under_way() {
    let mut logs = PgLogs::new(16);
    let in_flight = [3, 7, 8, 16, PG_LOG_ENTRIES].map(|entries_max| PgLogs::new(entries_max).in_flight_max());
    assert_eq!(in_flight, [1, 1, 2, 4, IN_FLIGHT_MAX]);
    (1..=10).for_each(|sequence| logs.push(GROUP, write(sequence, 3, sequence as u16)));
    assert_eq!(through(&logs, 3), 6);
    let of_block = |logs: &PgLogs, block| logs.held_through(&key(3), block).0;
    // What was not touched since, or surely, or may have come to nothing.
    assert_eq!([0, 6, 7, 10].map(|block| of_block(&logs, block)), [6, 6, 0, 0]);
    // An epoch that began and made members agree says nothing of what was before.
    logs.push(GROUP, mark(20));
    logs.push(GROUP, LogEntry { origin: 9 | REPAIR, ..write(21, 3, 9) });
    assert_eq!(through(&logs, 3), 6);
    // Its log begins anew, and what it was sure of and what not stays.
    logs.restart(GROUP, mark(30));
    logs.push(GROUP, write(31, 3, 0));
    logs.push(GROUP, write(60, 3, 1));
    assert_eq!((through(&logs, 3), through(&logs, 9)), (6, 6), "it follows, but lacks what was between");
    assert_eq!([2, 7, 10].map(|block| of_block(&logs, block)), [6, 0, 0]);
    let doubts: Vec<u64> = logs.groups[&GROUP].doubts.iter().map(|entry| entry.sequence.0).collect();
    assert_eq!(doubts, [7, 8, 9, 10, 21]);
    logs.completed(GROUP);
    assert_eq!(through(&logs, 3), 56);
    assert!(logs.groups[&GROUP].doubts.is_empty());
}

#[test]
fn who_left_its_group_is_sure_of_nothing_that_it_deletes() {
    let mut logs = PgLogs::new(16);
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    logs.left(GROUP, mark(0));
    assert_eq!((through(&logs, 0), logs.held_through(&key(0), 0)), (0, Sequence(0)));
    logs.restart(GROUP, mark(200));
    assert_eq!((through(&logs, 0), logs.pg_held_through(GROUP)), (0, Sequence(0)));
    assert!(logs.groups[&GROUP].doubts.is_empty());
}

#[test]
fn of_a_group_it_is_known_how_far_any_object_is_there_for_sure() {
    let mut logs = PgLogs::new(16);
    let held = |logs: &PgLogs| logs.pg_held_through(GROUP).0;
    assert_eq!((held(&logs), logs.held_through(&key(0), 0)), (0, Sequence(0)), "there is nothing of it");
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    assert_eq!(held(&logs), 96);
    // Who has everything says of no object that it came to have it: that would be taken for true when it lags.
    logs.reached(GROUP, (LayerId(1), 10));
    logs.restart(GROUP, mark(500));
    (501..=600).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    assert_eq!((held(&logs), through(&logs, 3)), (96, 96), "it lacks what was between");
    logs.reached(GROUP, (LayerId(1), 10));
    assert_eq!((held(&logs), through(&logs, 10), through(&logs, 11)), (596, 596, 96));
}

#[test]
fn what_a_learner_gets_again_that_begins_where_it_was_is_in_doubt_once() {
    let mut logs = PgLogs::new(16);
    (1..=10).for_each(|sequence| logs.push(GROUP, write(sequence, 3, 7)));
    // The last of them were under way, and came to be only after it joined.
    logs.restart(GROUP, mark(6));
    (7..=10).for_each(|sequence| logs.push(GROUP, write(sequence, 3, 7)));
    logs.restart(GROUP, mark(30));
    let doubts: Vec<u64> = logs.groups[&GROUP].doubts.iter().map(|entry| entry.sequence.0).collect();
    assert_eq!(doubts, [7, 8, 9, 10]);
}

#[test]
fn who_has_more_doubts_than_are_kept_is_sure_of_nothing() {
    let mut logs = PgLogs::new(PG_LOG_ENTRIES);
    (1..=1000).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    // Each time as many as can be under way.
    let rounds = DOUBTS_MAX as u64 / IN_FLIGHT_MAX;
    for round in 1..=rounds {
        logs.restart(GROUP, mark(round * 10_000));
        assert_eq!(logs.groups[&GROUP].doubts.len() as u64, round * IN_FLIGHT_MAX);
        (1..=300).for_each(|number| logs.push(GROUP, write(round * 10_000 + number, 0, 0)));
    }
    assert_eq!((logs.groups[&GROUP].doubts.len(), through(&logs, 0)), (DOUBTS_MAX, 744));
    logs.restart(GROUP, mark(900_000));
    assert_eq!((logs.groups[&GROUP].doubts.len(), through(&logs, 0)), (0, 0));
}

#[test]
fn a_replay_leaves_logs_alone_that_are_ahead_of_it() {
    let mut logs = PgLogs::new(16);
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    logs.restart(GROUP, mark(500));
    (501..=600).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    logs.ahead.insert(GROUP);
    let other = PgId { index: 1, ..GROUP };
    for pg in [GROUP, other] {
        logs.completed(pg);
        logs.restart(pg, mark(500));
        logs.reached(pg, (LayerId(1), 7));
        logs.push(pg, write(601, 0, 0));
    }
    assert_eq!(through(&logs, 0), 96);
    assert_eq!(logs.position(GROUP), Some((Epoch(1), Sequence(600))));
    assert_eq!(logs.position(other), Some((Epoch(1), Sequence(601))), "of this one the root told nothing");
    logs.forget(GROUP.pool);
    assert!(logs.groups.contains_key(&GROUP) && !logs.groups.contains_key(&other));
}

#[test]
fn a_copy_is_current_if_it_is_sure_of_the_last_write_or_has_the_very_one() {
    let mut logs = PgLogs::new(16);
    // The log begins at 9, and tells of a write of block 20 and of none of block 3.
    (1..=24).for_each(|sequence| {
        let (block, epoch) = if sequence == 20 { (20, 4) } else { (7, 2) };
        logs.push(GROUP, LogEntry { epoch: Epoch(epoch), ..write(sequence, 3, block) });
    });
    assert_eq!(logs.groups[&GROUP].begins, Sequence(9));
    let is_current = |logs: &PgLogs, block, last, theirs| {
        logs.is_current(&key(3), block, Sequence(last), Some(Sequence(last)), theirs)
    };
    let sure = |through| Currency::Through(Sequence(through));
    let of = |sequence, epoch: Option<u32>| {
        Currency::Of(LastWrite { sequence: Sequence(sequence), epoch: epoch.map(Epoch) })
    };
    assert_eq!([4, 5].map(|through| is_current(&logs, 3, 5, sure(through))), [false, true]);
    assert_eq!([19, 20].map(|through| is_current(&logs, 20, 20, sure(through))), [false, true]);
    assert!(is_current(&logs, 3, 5, of(5, Some(1))) && is_current(&logs, 3, 5, of(5, None)));
    assert!(!is_current(&logs, 3, 5, of(4, Some(1))) && !is_current(&logs, 3, 5, of(6, Some(1))));
    assert!(is_current(&logs, 20, 20, of(20, Some(4))) && is_current(&logs, 20, 20, of(20, None)));
    assert!(!is_current(&logs, 20, 20, of(20, Some(3))), "another history has this sequence too");
    // What the index has rounded the log tells, and of what is older than the log that it is.
    let rounded = |logs: &PgLogs, block, theirs| logs.is_current(&key(3), block, Sequence(40), None, theirs);
    assert_eq!([19, 20].map(|through| rounded(&logs, 20, sure(through))), [false, true]);
    assert_eq!([7, 8].map(|through| rounded(&logs, 3, sure(through))), [false, true]);
    assert!(rounded(&logs, 20, of(20, Some(4))) && !rounded(&logs, 20, of(19, Some(4))));
    assert!(!rounded(&logs, 3, of(5, None)));
    // Mends change nothing. Repairs do; that some are one entry hides when.
    logs.push(GROUP, LogEntry { origin: REPAIR | MEND, ..write(25, 3, 20) });
    assert!(is_current(&logs, 20, 20, sure(20)) && rounded(&logs, 20, of(20, Some(4))));
    logs.push(GROUP, LogEntry { origin: REPAIR | 7, ..write(26, 3, 20) });
    logs.push(GROUP, LogEntry { origin: REPAIR | 7, ..write(27, 3, 21) });
    assert_eq!([25, 27].map(|through| rounded(&logs, 20, sure(through))), [false, true]);
    assert!(is_current(&logs, 20, 26, of(26, Some(1))) && !rounded(&logs, 20, of(27, Some(1))));
    // The log of who is catching up does not tell what it has.
    logs.restart(GROUP, mark(30));
    logs.push(GROUP, write(35, 3, 20));
    assert_eq!([35, 40].map(|through| rounded(&logs, 20, sure(through))), [false, true]);
    assert!(!rounded(&logs, 20, of(35, Some(1))) && is_current(&logs, 20, 35, of(35, Some(1))));
}

#[test]
fn who_has_what_may_come_to_nothing_tells_of_which_write_it_is() {
    let mut logs = PgLogs::new(16);
    (1..=10).for_each(|sequence| logs.push(GROUP, write(sequence, 3, sequence as u16)));
    let currency =
        |logs: &PgLogs, block, last: Option<u64>| logs.currency(&key(3), block, last.map(Sequence));
    let of = |sequence, epoch| Currency::Of(LastWrite { sequence: Sequence(sequence), epoch });
    let sure = |through| Currency::Through(Sequence(through));
    assert_eq!([5, 6].map(|block| currency(&logs, block, Some(u64::from(block)))), [sure(6), sure(6)]);
    assert_eq!(currency(&logs, 9, Some(9)), of(9, Some(Epoch(1))));
    assert_eq!(currency(&logs, 9, None), of(9, Some(Epoch(1))), "the log tells what the index does not");
    assert_eq!(currency(&logs, 20, Some(8)), of(8, None), "a push, of which the log does not tell");
    // A mend changes nothing, whatever becomes of it.
    logs.push(GROUP, LogEntry { origin: REPAIR | MEND, ..write(11, 3, 5) });
    assert_eq!(currency(&logs, 5, Some(5)), sure(6));
    logs.restart(GROUP, mark(30));
    assert_eq!(currency(&logs, 5, Some(5)), sure(6));
    assert_eq!(currency(&logs, 9, Some(9)), of(9, Some(Epoch(1))));
    assert_eq!(
        currency(&logs, 9, None),
        sure(0),
        "of what the log was before some may have come to nothing here"
    );
    // Another epoch gave the sequence again.
    let other = LogEntry { epoch: Epoch(2), ..write(9, 3, 9) };
    logs.groups.get_mut(&GROUP).unwrap().doubts.push(other);
    assert_eq!(currency(&logs, 9, Some(9)), of(9, None));
}

#[test]
fn a_learner_that_begins_again_is_as_sure_as_it_was_of_what_it_had_reached_and_what_not() {
    let mut logs = PgLogs::new(16);
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    logs.restart(GROUP, mark(500));
    logs.reached(GROUP, (LayerId(1), 10));
    logs.reached(GROUP, (LayerId(1), 7));
    (501..=600).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    assert_eq!([0, 10, 11].map(|object| through(&logs, object)), [596, 596, 96]);
    logs.restart(GROUP, mark(900));
    assert_eq!([0, 10, 11].map(|object| through(&logs, object)), [596, 596, 96]);
    logs.reached(GROUP, (LayerId(1), 4));
    logs.push(GROUP, write(950, 0, 0));
    logs.restart(GROUP, mark(1000));
    assert_eq!([4, 5, 10, 11].map(|object| through(&logs, object)), [946, 596, 596, 96]);
    assert_eq!(logs.pg_held_through(GROUP), Sequence(946));
    // It got nowhere.
    logs.restart(GROUP, mark(1100));
    assert_eq!([4, 5, 10, 11].map(|object| through(&logs, object)), [946, 596, 596, 96]);
    // It gets just as far: there is no step more.
    logs.reached(GROUP, (LayerId(1), 4));
    logs.push(GROUP, write(1150, 0, 0));
    logs.restart(GROUP, mark(1200));
    assert_eq!([4, 5, 10, 11].map(|object| through(&logs, object)), [1146, 596, 596, 96]);
    assert_eq!(logs.groups[&GROUP].held.len(), 3);
}

#[test]
fn who_began_with_nothing_is_sure_of_nothing() {
    let mut logs = PgLogs::new(16);
    assert_eq!(through(&logs, 1), 0);
    logs.restart(GROUP, mark(70));
    assert_eq!(through(&logs, 1), 0);
    logs.reached(GROUP, (LayerId(1), 1));
    assert_eq!((through(&logs, 1), through(&logs, 2)), (70, 0), "what was before its log was pushed");
}

#[test]
fn a_log_that_dropped_what_may_have_come_to_nothing_tells_nothing() {
    let mut logs = PgLogs::new(16);
    let repair = |sequence: u64| LogEntry { origin: sequence | REPAIR, ..write(sequence, 0, 3) };
    (1..=20).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    // Repairs of many writes.
    (21..=32).for_each(|sequence| logs.push(GROUP, repair(sequence)));
    assert_eq!((logs.groups[&GROUP].begins, through(&logs, 0)), (Sequence(17), 16), "all of those are there");
    logs.push(GROUP, repair(33));
    assert_eq!(through(&logs, 0), 0);
    logs.push(GROUP, repair(34));
    logs.restart(GROUP, mark(50));
    assert_eq!(through(&logs, 0), 0);
    assert!(logs.groups[&GROUP].held.is_empty() && logs.groups[&GROUP].doubts.is_empty());
}

#[test]
fn a_learner_whose_log_dropped_what_may_have_come_to_nothing_forgets_what_it_had_before() {
    let mut logs = PgLogs::new(16);
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    logs.restart(GROUP, mark(500));
    (501..=520).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    assert_eq!((through(&logs, 0), logs.groups[&GROUP].doubts.len()), (96, 4));
    (521..=540).for_each(|sequence| {
        logs.push(GROUP, LogEntry { origin: sequence | REPAIR, ..write(sequence, 0, 3) });
    });
    logs.restart(GROUP, mark(700));
    let log = &logs.groups[&GROUP];
    assert_eq!((through(&logs, 0), log.held.len(), log.doubts.len()), (0, 0, 0));
}

#[test]
fn the_longest_logs_are_shortened_until_a_root_has_room_and_tell_as_much_of_what_is_sure() {
    let (mut logs, short) = (PgLogs::new(16), PgId { index: 1, ..GROUP });
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    (1..=9).for_each(|sequence| logs.push(short, write(sequence, 0, 0)));
    let lengths = |logs: &PgLogs| [GROUP, short].map(|pg| logs.groups[&pg].entries.len());
    let (bytes, counted) = (logs.root_bytes(), logs.root_bytes_max());
    assert_eq!(bytes, (2 * size_of::<RootGroup>() + 25 * size_of::<RootEntry>()) as u64);
    logs.shorten(bytes);
    assert_eq!(lengths(&logs), [16, 9], "there is room");
    logs.shorten(bytes - 3 * size_of::<RootEntry>() as u64);
    assert_eq!(lengths(&logs), [13, 9], "the longest, and no shorter than it takes");
    assert_eq!(logs.groups[&GROUP].begins, Sequence(88));
    assert_eq!(logs.groups[&short].begins, Sequence(0), "it dropped nothing");
    assert_eq!(logs.root_bytes_max(), counted, "they may be full again");
    // There is no room at all: what may be under way stays.
    logs.shorten(0);
    assert_eq!((lengths(&logs), through(&logs, 0)), ([4, 4], 96));
    assert_eq!(logs.position(GROUP), Some((Epoch(1), Sequence(100))));
    // It lags, and is as sure as it would have been with all of its log.
    logs.restart(GROUP, mark(500));
    assert_eq!((through(&logs, 0), logs.groups[&GROUP].doubts.len()), (96, 4));
    // Of a log that dropped what may have come to nothing, nothing more is dropped; a mark stays the last.
    (10..=40).for_each(|sequence| {
        logs.push(short, LogEntry { origin: sequence | REPAIR, ..write(sequence, 0, 3) });
    });
    logs.shorten(0);
    assert_eq!((lengths(&logs), logs.pg_held_through(short)), ([1, 16], Sequence(0)));
    assert_eq!(logs.position(GROUP), Some((Epoch(1), Sequence(500))));
}

#[test]
fn both_halves_of_a_group_are_as_sure_as_it_was() {
    let mut logs = PgLogs::new(16);
    logs.note_modulus(GROUP, 1);
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    logs.restart(GROUP, mark(500));
    assert!(logs.split(GROUP, 2));
    for index in 0..2 {
        let pg = PgId { index, ..GROUP };
        assert_eq!(logs.object_held_through(&ObjectKey { pg, ..key(0) }), Sequence(96));
        assert_eq!(logs.groups[&pg].doubts.len(), 4);
    }
}

#[test]
fn the_logs_of_a_pool_that_is_forgotten_go_and_what_a_replay_meets_of_it_again_goes_too() {
    let mut logs = PgLogs::new(16);
    let other = PgId { pool: PoolId(2), index: 0 };
    logs.push(other, write(1, 0, 0));
    logs.note_modulus(GROUP, 1);
    (1..=20).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    // A root that was written behind the forgetting covers a log that ends anywhere before it.
    for _ in 0..2 {
        logs.push(GROUP, write(21, 0, 0));
        assert!(logs.split(GROUP, 2));
        logs.push(GROUP.child(1), write(22, 0, 0));
        logs.restart(GROUP, mark(30));
        logs.forget(GROUP.pool);
        assert_eq!(logs.groups.keys().collect::<Vec<_>>(), [&other]);
    }
    assert_eq!((logs.position(GROUP), logs.object_held_through(&key(0))), (None, Sequence(0)));
}

#[test]
fn what_logs_may_take_of_a_root_is_counted_as_they_come_are_copied_and_go() {
    let (mut logs, child) = (PgLogs::new(16), GROUP.child(1));
    let one = (size_of::<RootGroup>() + 16 * size_of::<RootEntry>()) as u64;
    // What they had before, beside all their entries.
    let taken = |logs: &PgLogs| {
        let each = logs.groups.values().map(|log| log.bytes_max(16) + size_of::<RootGroup>() as u64);
        assert_eq!(logs.root_bytes_max(), each.sum::<u64>());
        logs.root_bytes_max() - logs.groups.len() as u64 * one
    };
    (1..=100).for_each(|sequence| logs.push(GROUP, write(sequence, 0, 0)));
    assert_eq!(taken(&logs), 0);
    logs.restart(GROUP, mark(500));
    let before = taken(&logs);
    // Four doubts, and one step.
    assert_eq!(before, (4 * size_of::<RootEntry>() + size_of::<RootHeld>()) as u64);
    assert!(logs.split(GROUP, 2));
    assert_eq!(taken(&logs), 2 * before);
    logs.completed(GROUP);
    assert_eq!(taken(&logs), before);
    logs.restart(child, mark(600));
    taken(&logs);
    let copy = logs.groups[&child].clone();
    logs.insert(GROUP, copy.clone());
    taken(&logs);
    // Of another pool, with more entries than are kept now.
    let other = PgId { pool: PoolId(2), index: 0 };
    logs.insert(other, PgLog { entries: (1..=40).map(|sequence| write(sequence, 0, 0)).collect(), ..copy });
    let longer = taken(&logs);
    logs.shorten(0);
    assert_eq!(longer - taken(&logs), 24 * size_of::<RootEntry>() as u64, "it may have as many as others");
    logs.forget(GROUP.pool);
    taken(&logs);
    logs.forget(other.pool);
    assert_eq!((taken(&logs), logs.root_bytes_max()), (0, 0));
}

#[test]
fn a_group_that_was_left_takes_of_a_root_what_it_holds_until_it_is_joined_again() {
    let mut logs = PgLogs::new(16);
    let one = (size_of::<RootGroup>() + size_of::<RootEntry>()) as u64;
    let full = one + 15 * size_of::<RootEntry>() as u64;
    for index in 0..100 {
        let pg = PgId { index, ..GROUP };
        (1..=20).for_each(|sequence| logs.push(pg, write(sequence, 0, 0)));
        assert_eq!(logs.root_bytes_max(), u64::from(index) * one + full);
        logs.left(pg, mark(0));
    }
    assert_eq!(logs.root_bytes_max(), 100 * one);
    logs.restart(GROUP, mark(900));
    assert_eq!(logs.root_bytes_max(), 99 * one + full);
    logs.left(GROUP, mark(0));
    // One that joins while its group's order is at its beginning gets all of it.
    logs.restart(GROUP, mark(0));
    logs.push(GROUP, write(1, 0, 0));
    assert_eq!(logs.root_bytes_max(), 99 * one + full);
}

#[test]
fn steps_are_joined_to_the_less_sure_of_them_when_they_are_too_many() {
    let mut logs = PgLogs::new(16);
    logs.restart(GROUP, mark(1));
    for step in 1..=200u32 {
        // Each attempt gets a little less far than the one before.
        logs.reached(GROUP, (LayerId(1), 1000 - step));
        logs.restart(GROUP, mark(u64::from(step) * 100));
    }
    assert_eq!(logs.groups[&GROUP].held.len(), HELD_MAX);
    let sure: Vec<u64> = (700..1000).map(|object| through(&logs, object)).collect();
    assert!(sure.is_sorted_by(|one, next| one >= next), "{sure:?}");
    // The first of those that were joined is what all of them are sure of, and what was before stays.
    assert_eq!([800, 937, 938, 939].map(|object| through(&logs, object)), [6200, 6200, 6100, 6000]);
}
