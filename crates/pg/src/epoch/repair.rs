//! Repairs: the mark of an epoch, and then what its members differ in, one after the other.

use super::differences::as_told_by;
use super::end_for_longer;
use crate::context::{Context, Fetch, Task};
use crate::damage::Absence;
use crate::group::LogTail;
use crate::group::position::Difference;
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
    let (block_count, is_zeros) = cx.disk.look_up_run(operation, 1);
    requeue(cx, index, Difference { range: range.behind(block_count), origin });
    let operation = cx.operations.live(id);
    if !is_zeros {
        operation.state = OperationState::Reading;
        return cx.read_parts(id);
    }
    operation.kind = OperationKind::Zero;
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
            return cx.then(Task::Fetch(Fetch { id, asked: 0, absence: Absence::of(status) }));
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
/// is, and reads of it fail.
pub(crate) fn adopt_next(cx: &mut Context<'_, impl Io>, id: OperationId, asked: usize) {
    let operation = cx.operations.live(id);
    let (index, range) = (operation.group, operation.range);
    let is_for_good = cx.damage.is_lost_for_good(range.key, range.first_block);
    let Some(repairing) = cx.groups[index].standing.repairing() else { return };
    let mut candidates = repairing.others.iter().enumerate().skip(asked);
    if let Some((at, member)) = candidates.find(|(_, member)| is_for_good || !member.may_lack_tail) {
        let osd = member.osd;
        operation.purpose = Purpose::Adoption(osd);
        let fetch = Fetch { id, asked: at + 1, absence: Absence::Certain };
        return cx.then(Task::FetchFrom(fetch, osd));
    }
    cx.forget(id);
    if is_for_good {
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
    use crate::testing::{PG, Pair, VOLUME};
    use base::log_entry::{REPAIR, UNDONE};
    use base::{Epoch, LogEntry, Sequence};

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
            volume: VOLUME,
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
    }

    #[test]
    fn members_that_agree_serve_after_the_mark() {
        let pair = Pair::new();
        assert_eq!(pair.received, 1, "the mark alone");
        assert!(pair.heard.iter().any(|message| message.starts_with("Serves")), "{:?}", pair.heard);
    }
}
