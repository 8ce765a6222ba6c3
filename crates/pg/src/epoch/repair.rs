//! Repairs: the mark of an epoch, and then what its members differ in, one after the other.

use super::differences::as_told_by;
use super::end_for_longer;
use crate::context::{Context, Fetch, Task};
use crate::damage::Absence;
use crate::disk::Held;
use crate::group::LogTail;
use crate::group::position::{Difference, MemberPosition};
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{Operation, OperationId, OperationKind, OperationState, Purpose};
use crate::replication::order;
use base::log_entry::MEND;
use base::{BLOCK_BYTES, BlockRange, LogEntry, ObjectKey, OsdId};
use store::StageError;
use wire::{GroupEpoch, Kind};

/// Blocks repaired at a time.
const REPAIR_BLOCKS: u16 = 64;

/// Stages the epoch's mark or the next repair; when nothing is left, the group serves.
pub(crate) fn next(cx: &mut Context<'_, impl Io>, index: u32) {
    let Some(repairing) = cx.groups[index].standing.repairing_mut() else { return };
    if repairing.current.is_some() {
        return;
    }
    if repairing.mark_is_due {
        return stage_mark(cx, index);
    }
    let Some(Difference { range, origin }) = repairing.queue.pop_front() else { return serve(cx, index) };
    let wanted = BlockRange { block_count: range.block_count.min(REPAIR_BLOCKS), ..range };
    let id = cx.operations.add_for(OperationKind::Write, Purpose::Repair, index, wanted);
    let operation = cx.operations.live(id);
    operation.attempt.origin = origin;
    repairing.current = Some(id);
    let (block_count, held) = cx.disk.look_up_run(operation, 1);
    requeue(cx, index, Difference { range: range.behind(block_count), origin });
    let operation = cx.operations.live(id);
    operation.kind = match held {
        Held::Nothing => OperationKind::Zero,
        Held::Hole => OperationKind::Hole,
        Held::Data => {
            operation.state = OperationState::Reading;
            return cx.read_parts(id);
        }
    };
    if !order::zero(cx, id) {
        must_come_again(cx, id);
    }
}

/// No difference is left.
fn serve(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &mut cx.groups[index];
    group.standing.serves();
    group.tail = LogTail::IsKnown;
    let (pg, epoch) = (group.pg, group.epoch);
    for link in group.replicas(cx.me.id).filter_map(|osd| cx.links.ready(osd)) {
        cx.io.send(link, &GroupEpoch { pg, epoch }.encode(Kind::Serves));
    }
    cx.damage.ask_again(pg);
}

fn stage_mark(cx: &mut Context<'_, impl Io>, index: u32) {
    let key = ObjectKey { pg: cx.groups[index].pg, ..ObjectKey::default() };
    let range = BlockRange { key, ..BlockRange::default() };
    let id = cx.operations.add_for(OperationKind::Mark, Purpose::Repair, index, range);
    let Err(error) = order::mark(cx, id) else {
        if let Some(repairing) = cx.groups[index].standing.repairing_mut() {
            (repairing.current, repairing.mark_is_due) = (Some(id), false);
        }
        return;
    };
    cx.forget(id);
    match error {
        StageError::Busy => cx.turn.look_again(index),
        error => failed(cx, index, &error),
    }
}

/// The drive answered the read of a repair: its content goes to all members, unless it is damaged.
pub(crate) fn was_read(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let operation = cx.operations.live(id);
    let damage = operation.first_damage();
    let (index, range, origin) = (operation.group, operation.range, operation.attempt.origin);
    if let Some((block, status)) = damage {
        cx.release_parts(id);
        if range.block_count == 1 {
            // Another member may have the same content in a sound copy.
            cx.met_damage(range.key, block);
            cx.pass(Milestone::MendOfRepair);
            return cx.then(Task::Fetch(Fetch::begin(id, Absence::of(status))));
        }
        cx.forget(id);
        for block in range.blocks().rev() {
            requeue(cx, index, Difference { range: BlockRange::one(range.key, block), origin });
        }
        return done(cx, index);
    }
    let buffer = operation.parts[0].buffer.take().expect("it was read without damage");
    let is_ordered = order::write(cx, id, &buffer.bytes()[..usize::from(range.block_count) * BLOCK_BYTES]);
    cx.disk.put(buffer);
    if !is_ordered {
        must_come_again(cx, id);
    }
}

/// The mark or a repair is done: all members have it, or can do without.
pub(crate) fn done(cx: &mut Context<'_, impl Io>, index: u32) {
    current_ended(cx, index);
    next(cx, index);
}

/// The store would not take a mark or a repair.
pub(crate) fn failed(cx: &mut Context<'_, impl Io>, index: u32, error: &StageError) {
    let me = cx.me.id;
    let reason = match error {
        StageError::Full => format!("{me} is full"),
        StageError::Busy | StageError::Failed(_) => format!("the drive of {me} failed; replace it"),
    };
    end_for_longer(cx, index, &reason);
}

/// No member has a sound copy of what the primary holds in a block on which they may differ. Where one has a sound copy
/// of something else there, that becomes everybody's: the write that makes the difference was acknowledged to nobody,
/// for not all in sync had it. Unless that one's log ends too early because its end rotted: so its word counts last, and
/// only when the primary's own drive is out of the question for good. Where nobody has anything, the block stays as it
/// is, and reads of it fail: not where one of them did not say so, for what it has may be another content than the primary's.
pub(crate) fn adopt_next(cx: &mut Context<'_, impl Io>, mut fetch: Fetch) {
    let operation = cx.operations.live(fetch.id);
    let (index, range) = (operation.group, operation.range);
    let (key, block) = (range.key, range.first_block);
    let is_for_good = cx.damage.is_lost_for_good(key, block);
    let Some(repairing) = cx.groups[index].standing.repairing() else { return };
    let may_be_asked =
        |member: &&MemberPosition| !fetch.asked.has(member.osd) && (is_for_good || !member.may_lack_tail);
    if let Some(osd) = repairing.others.iter().find(may_be_asked).map(|member| member.osd) {
        if fetch.asked.note(osd) {
            operation.purpose = Purpose::Adoption(osd);
            return cx.then(Task::FetchFrom(fetch, osd));
        }
        fetch.absence = Absence::Unknown;
    }
    if fetch.absence < Absence::Certain
        && let Some(location) = cx.disk.location_of(key, block)
    {
        cx.damage.nobody_has(cx.now, key, block, location, fetch.absence);
    }
    cx.forget(fetch.id);
    if cx.damage.is_lost_for_good(key, block) {
        return done(cx, index);
    }
    let reason =
        format!("the drive of {} does not read what its members differ in; it tries again", cx.me.id);
    end_for_longer(cx, index, &reason);
}

/// Whether a member's log tells of the same last write of a repair's one block as this OSD's own: then they hold the same.
/// Checksums do not tell, of blocks on which members may differ.
pub(crate) fn has_same(cx: &Context<'_, impl Io>, operation: &Operation, osd: OsdId) -> bool {
    let BlockRange { key, first_block, .. } = operation.range;
    let Some(repairing) = cx.groups[operation.group].standing.repairing() else { return false };
    let Some(member) = repairing.others.iter().find(|member| member.osd == osd) else { return false };
    let is_last = |entry: &LogEntry| entry.is_about(&key, first_block);
    let place = |entry: LogEntry| (entry.sequence, entry.epoch);
    let own = cx.disk.store.pg_log(key.pg).rev().find(is_last).map(place);
    own == member.entries.iter().rev().copied().find(is_last).map(place)
}

/// A block gets another member's content: whether the write on which they differ is done, that one's log tells.
pub(crate) fn adopted(cx: &mut Context<'_, impl Io>, id: OperationId, osd: OsdId) {
    cx.pass(Milestone::Adopted);
    let operation = cx.operations.live(id);
    let Some(repairing) = cx.groups[operation.group].standing.repairing() else { return };
    let Some(member) = repairing.others.iter().find(|member| member.osd == osd) else { return };
    let told = as_told_by(member, difference_of(operation));
    // What it had itself may have been another content.
    let origin = told.map(|told| told.origin).next().unwrap_or(operation.attempt.origin);
    operation.attempt.origin = origin & !MEND;
}

/// The store has no room right now for a repair.
pub(crate) fn must_come_again(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let operation = cx.operations.live(id);
    let (index, difference) = (operation.group, difference_of(operation));
    cx.forget(id);
    requeue(cx, index, difference);
    current_ended(cx, index);
    cx.turn.look_again(index);
}

fn difference_of(operation: &Operation) -> Difference {
    Difference { range: operation.range, origin: operation.attempt.origin }
}

fn requeue(cx: &mut Context<'_, impl Io>, index: u32, difference: Difference) {
    if let Some(repairing) = cx.groups[index].standing.repairing_mut()
        && difference.range.block_count > 0
    {
        repairing.queue.push_front(difference);
    }
}

fn current_ended(cx: &mut Context<'_, impl Io>, index: u32) {
    if let Some(repairing) = cx.groups[index].standing.repairing_mut() {
        repairing.current = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::epoch::CLAIM_PAUSE_LONG;
    use crate::group::role::{Repairing, State};
    use crate::ledger::StagedRecord;
    use crate::testing::{Alone, PG, Pair, REPLICA, Surroundings, VOLUME};
    use base::log_entry::{REPAIR, UNDONE};
    use base::{Epoch, PoolId, Sequence, crc32c};
    use wire::Status;
    use zerocopy::IntoBytes;
    use zerocopy::little_endian::U32;

    #[test]
    fn what_only_a_replica_has_is_replaced_everywhere_before_the_epoch_serves() {
        let mut pair = Pair::before(Vec::new());
        // The replica has the whole log of this OSD, and one write more.
        let log: Vec<LogEntry> = pair.alone.osd.store().pg_log(PG).collect();
        let last = log.last().map_or(Sequence(0), |entry| entry.sequence);
        let epoch = log.last().map_or(Epoch(1), |entry| entry.epoch);
        let more = LogEntry {
            epoch,
            sequence: last.next(),
            layer: VOLUME.first_layer(),
            object: 3,
            first_block: 10,
            block_count: 2,
            origin: 5,
        };
        pair.entries = log.into_iter().chain([more]).collect();
        pair.run();
        assert!(pair.alone.osd.shared.groups[0].is_active());
        let repaired: Vec<LogEntry> = pair.alone.osd.store().pg_log(PG).filter(LogEntry::is_repair).collect();
        assert_eq!(repaired.len(), 1);
        assert_eq!((repaired[0].first_block, repaired[0].block_count), (10, 2));
        assert_eq!(repaired[0].origin, 5 | REPAIR | UNDONE, "whoever wrote it is told that it was not done");
        assert_eq!(pair.alone.passed(UNDONE_PASSED), 1);
    }

    const UNDONE_PASSED: &str = "peering: a write is undone";
    const ADOPTED: &str = "peering: what another member has where this one cannot read is taken";

    const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };

    fn difference(first_block: u16, block_count: u16, origin: u64) -> Difference {
        Difference { range: BlockRange { key: KEY, first_block, block_count }, origin }
    }

    /// A pair with these blocks, each run of which was written at once.
    fn written(runs: &[(u16, u16)]) -> Pair {
        let mut pair = Pair::new();
        for (first_block, block_count) in runs.iter().copied() {
            let data = vec![7; usize::from(block_count) * BLOCK_BYTES];
            let checksums = vec![U32::new(crc32c(&data[..BLOCK_BYTES])); usize::from(block_count)];
            let request = pair.alone.request(&BlockRange { key: KEY, first_block, block_count });
            let write = [&request.encode(Kind::Write)[..], checksums.as_bytes(), &data].concat();
            pair.ask(&write);
            pair.run();
            assert_eq!(pair.told(), Some(Status::Ok));
        }
        pair
    }

    /// The drive gives something else for a block from now on.
    fn is_damaged(pair: &mut Pair, block: u16) {
        let place = pair.alone.osd.shared.disk.location_of(KEY, block).unwrap();
        pair.alone.io.disk[place.0 as usize * BLOCK_BYTES] ^= 1;
    }

    /// The log of this OSD, and the entries of a member that has one write more: of a block that it calls 6.
    fn log_and_one_more(pair: &Pair, first_block: u16) -> Vec<LogEntry> {
        let mut log: Vec<LogEntry> = pair.alone.osd.store().pg_log(PG).collect();
        let last = *log.last().unwrap();
        let sequence = last.sequence.next();
        log.push(LogEntry { sequence, first_block, block_count: 1, origin: 6, ..last });
        log
    }

    fn member(osd: OsdId, may_lack_tail: bool, entries: Vec<LogEntry>) -> MemberPosition {
        let last_sequence = entries.last().map_or(Sequence(0), |entry| entry.sequence);
        let (log_begins, is_incomplete) = (Sequence(0), false);
        MemberPosition { osd, last_sequence, log_begins, is_incomplete, may_lack_tail, entries }
    }

    /// The next epoch of the pair is to repair that.
    fn is_to_repair(pair: &mut Pair, mark_is_due: bool, queue: Vec<Difference>, others: Vec<MemberPosition>) {
        pair.asks_its_members();
        pair.alone.with(|_, cx| {
            let last = cx.disk.end_of(PG);
            let repairing = Repairing { queue: queue.into(), current: None, mark_is_due, others };
            cx.groups[0].standing.differences_are_known(last.next(), repairing);
        });
    }

    /// What was repaired, each with its origin.
    fn repaired(pair: &Pair) -> Vec<(u16, u16, u64)> {
        let repairs = pair.alone.osd.store().pg_log(PG).filter(LogEntry::is_repair);
        repairs.map(|entry| (entry.first_block, entry.block_count, entry.origin)).collect()
    }

    /// The epoch serves, and nothing is left of its repairs.
    fn serves(pair: &Pair) {
        let shared = &pair.alone.osd.shared;
        assert!(shared.groups[0].is_active(), "{:?}", shared.groups[0]);
        assert_eq!(shared.operations.in_flight(), 0);
        for pool in [&shared.disk.small, &shared.disk.large] {
            assert_eq!(pool.available(), pool.count());
        }
    }

    /// The store takes nothing more before what is staged is on its way.
    fn is_busy(cx: &mut Context<'_, Surroundings>) {
        loop {
            let token = cx.ledger.next_token();
            match cx.disk.store.stage_forget(PoolId(9), token) {
                Ok(()) => cx.note_staged(0, StagedRecord::Left),
                Err(error) => return assert_eq!(error, StageError::Busy),
            }
        }
    }

    #[test]
    fn a_difference_is_repaired_one_run_of_the_drive_after_the_other_and_no_more_than_64_blocks_at_a_time() {
        let mut pair = written(&[(10, 1), (11, 1)]);
        let before = pair.received;
        is_to_repair(&mut pair, false, vec![difference(10, 100, 5 | REPAIR)], vec![]);
        pair.alone.with(|_, cx| {
            for _ in 0..2 {
                next(cx, 0);
                assert_eq!(cx.operations.in_flight(), 1, "one after the other");
            }
        });
        pair.run();
        serves(&pair);
        // They follow each other, so they are one entry: of blocks 10, 11, 12 to 75 and 76 to 109.
        assert_eq!(repaired(&pair), [(10, 100, 5 | REPAIR)]);
        assert_eq!(pair.received - before, 4);
    }

    #[test]
    fn what_the_store_has_no_room_for_right_now_comes_again_as_it_was() {
        let (data, zeros) = (difference(10, 1, 5 | REPAIR), difference(20, 2, 5 | REPAIR));
        for (mark_is_due, wanted) in [(true, zeros), (false, zeros), (false, data)] {
            let mut pair = written(&[(10, 1)]);
            is_to_repair(&mut pair, mark_is_due, vec![wanted], vec![]);
            pair.alone.with(|_, cx| {
                is_busy(cx);
                cx.turn.blocked.clear();
                next(cx, 0);
            });
            // What has data is read first.
            pair.alone.drive_answers();
            let shared = &pair.alone.osd.shared;
            let repairing = shared.groups[0].standing.repairing().unwrap();
            assert_eq!(repairing.queue, [wanted]);
            assert_eq!((repairing.current, repairing.mark_is_due), (None, mark_is_due));
            assert_eq!((&shared.turn.blocked[..], shared.operations.in_flight()), (&[0][..], 0));
            pair.run();
            serves(&pair);
            let BlockRange { first_block, block_count, .. } = wanted.range;
            assert_eq!(repaired(&pair), [(first_block, block_count, wanted.origin)]);
        }
    }

    #[test]
    fn a_drive_that_takes_no_mark_or_repair_ends_the_epoch_for_longer() {
        for mark_is_due in [true, false] {
            let mut pair = written(&[(10, 1)]);
            is_to_repair(&mut pair, mark_is_due, vec![difference(20, 2, 5 | REPAIR)], vec![]);
            let Alone { osd, io, now } = &mut pair.alone;
            osd.fail_drive(*now, "a test", io);
            pair.alone.with(|_, cx| next(cx, 0));
            let (shared, now) = (&pair.alone.osd.shared, pair.alone.now);
            let group = &shared.groups[0];
            assert_eq!((group.state(), shared.operations.in_flight()), (State::Waiting, 0));
            assert_eq!(group.pauses.claim_after, now + CLAIM_PAUSE_LONG);
            assert_eq!(group.summary().trouble.unwrap(), "the drive of osd.0 failed; replace it");
        }
    }

    #[test]
    fn a_repair_that_meets_damage_takes_that_block_from_a_member_that_has_the_same() {
        let mut pair = written(&[(10, 2)]);
        is_damaged(&mut pair, 10);
        pair.block = Some(vec![7; BLOCK_BYTES]);
        let log = pair.alone.osd.store().pg_log(PG).collect();
        let others = vec![member(REPLICA, false, log)];
        is_to_repair(&mut pair, false, vec![difference(10, 2, 5 | REPAIR)], others);
        pair.alone.with(|_, cx| next(cx, 0));
        pair.run();
        serves(&pair);
        assert_eq!(repaired(&pair), [(10, 2, 5 | REPAIR)]);
        assert_eq!((pair.alone.osd.view().damage().found, pair.alone.passed(ADOPTED)), (1, 0));
        let read = pair.request(10).encode(Kind::Read);
        pair.ask(&read);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
    }

    #[test]
    fn what_another_member_has_becomes_everybodys_where_nobody_has_what_this_one_had() {
        let mut pair = written(&[(10, 1)]);
        is_damaged(&mut pair, 10);
        pair.block = Some(vec![9; BLOCK_BYTES]);
        let log = log_and_one_more(&pair, 10);
        // The first one cannot be asked. For good it is: so the word of one whose log may have lost its end counts too.
        let others = vec![member(OsdId(2), true, vec![]), member(REPLICA, true, log)];
        is_to_repair(&mut pair, false, vec![difference(10, 1, 6 | REPAIR | UNDONE | MEND)], others);
        pair.alone.with(|_, cx| next(cx, 0));
        pair.run();
        serves(&pair);
        assert_eq!(repaired(&pair), [(10, 1, 6 | REPAIR)], "that one's log tells that it was done");
        assert_eq!(pair.alone.passed(ADOPTED), 1);
        assert!(pair.alone.osd.lost_blocks().is_empty());
        let read = pair.request(10).encode(Kind::Read);
        pair.ask(&read);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
    }

    #[test]
    fn while_a_sound_copy_may_come_back_nobody_is_believed_whose_log_may_have_lost_its_end() {
        let mut pair = written(&[(10, 1)]);
        is_damaged(&mut pair, 10);
        (pair.block, pair.garbles) = (Some(vec![9; BLOCK_BYTES]), true);
        let others = vec![member(REPLICA, true, log_and_one_more(&pair, 10))];
        is_to_repair(&mut pair, false, vec![difference(10, 1, 6 | REPAIR)], others);
        pair.alone.with(|_, cx| next(cx, 0));
        // Its answer comes garbled. Another one would not.
        pair.turn();
        pair.garbles = false;
        pair.turns(10);
        let group = &pair.alone.osd.shared.groups[0];
        assert_eq!(group.state(), State::Waiting);
        let trouble = group.summary().trouble.unwrap();
        assert!(trouble.contains("osd.0 does not read what its members differ in"), "{trouble}");
        assert_eq!((pair.alone.osd.shared.operations.in_flight(), repaired(&pair)), (0, vec![]));
    }

    #[test]
    fn a_block_of_which_nobody_has_anything_holds_no_epoch_up() {
        let mut pair = written(&[(10, 1)]);
        is_damaged(&mut pair, 10);
        let others = vec![member(REPLICA, false, log_and_one_more(&pair, 10))];
        is_to_repair(&mut pair, false, vec![difference(10, 1, 6 | REPAIR)], others);
        pair.alone.with(|_, cx| next(cx, 0));
        pair.run();
        serves(&pair);
        assert_eq!((repaired(&pair), pair.alone.osd.lost_blocks().len()), (vec![], 1));
    }

    #[test]
    fn what_a_replica_lacks_and_this_one_has_is_brought_to_it_as_done() {
        let mut pair = Pair::new();
        pair.entries = pair.alone.osd.store().pg_log(PG).collect();
        let request = wire::Request { origin: 5, ..pair.request(10) };
        let data = vec![7; BLOCK_BYTES];
        let write = [&request.encode(Kind::Write)[..], &crc32c(&data).to_le_bytes(), &data].concat();
        pair.ask(&write);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        // It says that it has nothing of it.
        pair.alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
        pair.turns(80);
        serves(&pair);
        assert_eq!(repaired(&pair), [(10, 1, 5 | REPAIR)]);
        assert_eq!(pair.alone.passed(UNDONE_PASSED), 0);
    }

    #[test]
    fn members_that_agree_serve_after_the_mark() {
        let pair = Pair::new();
        assert_eq!(pair.received, 1, "the mark alone");
        assert!(pair.heard.iter().any(|message| message.starts_with("Serves")), "{:?}", pair.heard);
        assert_eq!(pair.alone.osd.shared.groups[0].tail, LogTail::IsKnown);
        assert_eq!(pair.alone.passed(UNDONE_PASSED), 0);
    }
}
