//! How a write is ordered, replicated and acknowledged.
//!
//! The primary gives it the group's next sequence, stages it in its own store's open batch, and when the batch
//! is sealed sends it from there to every replica. [`member_has`] counts who has it on stable media; the
//! last one's word is the acknowledgement.

use crate::broken::Sabotage;
use crate::codec::{Payload, copies};
use crate::context::{Context, Task};
use crate::group::Group;
use crate::io::Io;
use crate::ledger::StagedRecord;
use crate::links::inquiries::UNREAD_BYTES_MAX;
use crate::links::{Awaited, ToLearner};
use crate::operation::{OperationId, OperationKind, OperationState, Purpose};
use base::{BlockRange, Buffer, ObjectKey, Sequence};
use store::{BatchId, RecordKind, StageError, WriteRecord};
use wire::{Activate, Kind, Outcome, Replicate, Status};

/// Objects of which it is noted that a volume's newest layer took the place of something.
const REPLACED_MAX: usize = 4096;
/// A replica that lags by more gets copies of what it must write.
const SHARE_LIMIT_BYTES: usize = 512 << 10;

/// Orders a write of whole blocks. `false` when the store has no room right now, or too many are under way; otherwise it is
/// under way, or refused and gone.
pub(crate) fn write(cx: &mut Context<'_, impl Io>, id: OperationId, data: &[u8]) -> bool {
    if !may_go(cx, id) {
        return false;
    }
    let record = record(cx, id);
    let operation = cx.operations.live(id);
    let staged = cx.disk.store.stage_write(&record, &operation.checksums, data).map(|staged| {
        operation.payload = Payload::Staged(staged.batch, staged.offset);
    });
    was_staged(cx, id, staged)
}

/// Orders a zeroing, as [`write`]. What is to read as zeros and not only to be gone hides what lies beneath.
pub(crate) fn zero(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    if !may_go(cx, id) {
        return false;
    }
    let operation = cx.operations.live(id);
    let (range, purpose) = (operation.range, operation.purpose);
    if matches!(purpose, Purpose::Client(_) | Purpose::Cut(_)) {
        let hides = hides_something(cx, &range);
        cx.operations.live(id).kind = if hides { OperationKind::Hole } else { OperationKind::Zero };
    }
    let record = record(cx, id);
    let staged = match cx.operations.live(id).kind {
        OperationKind::Hole => cx.disk.store.stage_hole(&record),
        _ => cx.disk.store.stage_zero(&record),
    };
    was_staged(cx, id, staged)
}

/// Whether whoever reads the layer of these blocks would see something of older ones if it held nothing there.
pub(crate) fn hides_something(cx: &Context<'_, impl Io>, range: &BlockRange) -> bool {
    cx.disk.store.holds_some(cx.volumes.beneath(range.key.layer), range) && !cx.breaks(Sabotage::HideNothing)
}

/// Whether one more of a group's writes may be under way. What a member has beyond so many may have come to nothing, when it
/// comes back: see [`Store::currency`](store::Store::currency). Repairs come one by one, before an epoch serves.
fn may_go(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    let operation = cx.operations.live(id);
    let (group, is_repair) = (operation.group, operation.purpose == Purpose::Repair);
    let under_way = cx.groups[group].standing.primary().map_or(0, |primary| primary.under_way);
    is_repair || under_way < cx.disk.store.in_flight_max() || cx.breaks(Sabotage::OrderUnbounded)
}

/// Orders the mark that begins an epoch.
pub(crate) fn mark(cx: &mut Context<'_, impl Io>, id: OperationId) -> Result<(), StageError> {
    let group = &cx.groups[cx.operations.live(id).group];
    let sequence = next_sequence(group);
    let token = cx.ledger.next_token();
    cx.disk.store.stage_mark(RecordKind::Mark, group.pg, group.modulus, group.epoch, sequence, token)?;
    ordered(cx, id);
    Ok(())
}

/// The group's next sequence, which an operation is about to get.
fn next_sequence(group: &Group) -> Sequence {
    group.standing.primary().expect("only a primary orders").next_sequence
}

fn record(cx: &Context<'_, impl Io>, id: OperationId) -> WriteRecord {
    let operation = cx.operations.get(id).expect("an operation being ordered is alive");
    let role = match operation.purpose {
        Purpose::Client(_) => store::Role::Primary,
        _ => store::Role::Housekeeping,
    };
    let group = &cx.groups[operation.group];
    let (epoch, sequence) = (cx.recorded_epoch(group.epoch), next_sequence(group));
    let write = Replicate { range: operation.range, epoch, sequence, origin: operation.attempt.origin };
    cx.ledger.record(&write, role)
}

/// What the store made of a write or zeroing: see [`write`].
fn was_staged(cx: &mut Context<'_, impl Io>, id: OperationId, staged: Result<(), StageError>) -> bool {
    let group = cx.operations.live(id).group;
    let has_others = cx.groups[group].config.in_sync.len() > 1;
    let status = match &staged {
        Ok(()) => {
            ordered(cx, id);
            return true;
        }
        Err(StageError::Busy) => return false,
        Err(StageError::Full) => Status::NoSpace,
        // Another member may do it, as soon as this one's epoch has ended.
        Err(StageError::Failed(_)) if has_others => Status::NotActive,
        Err(StageError::Failed(_)) => Status::DeviceFailed,
    };
    let purpose = cx.operations.live(id).purpose;
    cx.refuse(purpose, status);
    cx.lines.ended(id);
    cx.forget(id);
    // What waited for it is started with the end of the turn: it may be refused too, and so on.
    cx.turn.look_again(group);
    if let Err(error) = staged
        && purpose == Purpose::Repair
    {
        cx.then(Task::RepairFailed { group, error });
    }
    true
}

/// It has its place in the group's order and in the store's open batch.
fn ordered(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let is_early = cx.breaks(Sabotage::AcknowledgeEarly);
    let operation = cx.operations.live(id);
    let group_index = operation.group;
    let group = &mut cx.groups[group_index];
    let was_in_flight = operation.state == OperationState::Reading;
    operation.state = OperationState::Replicating;
    operation.order.members_awaited = if is_early { 1 } else { group.config.in_sync.len() as u8 };
    let primary = group.standing.primary_mut().expect("only a primary orders");
    operation.order.sequence = primary.next_sequence;
    primary.next_sequence = primary.next_sequence.next();
    primary.under_way += 1;
    if !was_in_flight || operation.purpose == Purpose::Repair {
        cx.lines.hold(group_index, id, &operation.range);
    }
    cx.note_staged(group_index, StagedRecord::Own(id));
    cx.ledger.outgoing.push_back(id);
}

/// A batch will not change any more: what was ordered in it goes to the replicas, from its memory.
pub(crate) fn send_sealed(cx: &mut Context<'_, impl Io>, batch: BatchId, memory: &Buffer) {
    while let Some(&id) = cx.ledger.outgoing.front() {
        if let Some(operation) = cx.operations.get(id) {
            if operation.payload.batch().is_some_and(|staged| staged != batch) {
                return;
            }
            send_to_members(cx, id, memory);
        }
        cx.ledger.outgoing.pop_front();
    }
}

fn send_to_members(cx: &mut Context<'_, impl Io>, id: OperationId, memory: &Buffer) {
    let operation = cx.operations.get(id).expect("the caller looked");
    let group_index = operation.group;
    let group = &cx.groups[group_index];
    let (me, sequence) = (cx.me.id, operation.order.sequence);
    let header = match operation.kind {
        OperationKind::Mark => {
            Activate { pg: group.pg, epoch: group.epoch, mark: sequence, join: None }.encode()
        }
        kind => {
            let (range, origin) = (operation.range, operation.attempt.origin);
            let message = Replicate { range, epoch: group.epoch, sequence, origin };
            message.encode(match kind {
                OperationKind::Zero => Kind::ReplicateZero,
                OperationKind::Hole => Kind::ReplicateHole,
                _ => Kind::ReplicateWrite,
            })
        }
    };
    let blocks = if operation.kind == OperationKind::Write { operation.range.block_count } else { 0 };
    let mut is_member_behind = false;
    let replicas = group.replicas(me).map(|osd| (osd, None, Awaited::Write(id)));
    // Learners have everything from their join on; nobody waits for them.
    let learners = group.learners().iter().filter(|learner| learner.receives(sequence)).map(|learner| {
        let session = learner.session;
        let awaited = Awaited::Learner { group: group_index, session, sent: ToLearner::Write { blocks } };
        (learner.osd, Some(learner.link), awaited)
    });
    for (osd, link, awaited) in replicas.chain(learners) {
        let Some(link) = link.or_else(|| cx.links.link_of(osd)) else { continue };
        let Some(peer) = cx.links.osd_mut(link) else { continue };
        peer.sends(awaited);
        let unread_bytes = cx.io.unsent_bytes(link);
        let unacknowledged = &peer.unacknowledged;
        match awaited {
            Awaited::Write(_) => {
                is_member_behind |= unacknowledged.beside_learners(unread_bytes) > UNREAD_BYTES_MAX;
            }
            // It is given up at once.
            Awaited::Learner { session, .. } if unacknowledged.lags(session, unread_bytes) => {
                cx.turn.next_tick = cx.now;
            }
            Awaited::Learner { .. } => {}
        }
        // A slow replica must not keep the store's batches: two that wait for each other would stop.
        let is_shared = unread_bytes <= SHARE_LIMIT_BYTES;
        cx.io.send(link, &header);
        if let Some(piece) = copies::piece(&operation.payload, &operation.checksums, memory) {
            piece.send(link, is_shared, cx.io);
        }
    }
    cx.groups[group_index].pauses.is_member_behind |= is_member_behind;
}

/// Whether the members of a group have taken so much of what they were sent that it takes another change of a client. They are
/// looked at only when one of them had not, the last time that it was sent something.
pub(crate) fn do_members_take(cx: &mut Context<'_, impl Io>, index: u32) -> bool {
    let group = &cx.groups[index];
    if !group.pauses.is_member_behind {
        return true;
    }
    let is_behind = |osd| {
        let link = cx.links.link_of(osd);
        link.is_some_and(|link| cx.unread_bytes(link) > UNREAD_BYTES_MAX)
    };
    let is_behind = group.replicas(cx.me.id).any(is_behind);
    cx.groups[index].pauses.is_member_behind = is_behind;
    !is_behind
}

/// Notes the object of a change where something may be seen by nobody from now on, or a hole hide nothing.
fn note_replaced(
    cx: &mut Context<'_, impl Io>,
    purpose: Purpose,
    kind: OperationKind,
    group: u32,
    range: &BlockRange,
) {
    let layer = range.key.layer;
    let head = match purpose {
        // A hole may be about blocks under which nothing is, too.
        Purpose::Client(_) | Purpose::Cut(_) => {
            let replaces =
                || layer.number() > 0 && cx.disk.store.holds_some(cx.volumes.replaced_by(layer), range);
            (kind == OperationKind::Hole || replaces()).then_some(layer)
        }
        Purpose::Prune => cx.volumes.of_layer(layer).map(|state| state.head),
        _ => None,
    };
    let Some(head) = head else { return };
    if cx.volumes.replaced.len() < REPLACED_MAX {
        cx.volumes.replaced.insert(ObjectKey { layer: head, ..range.key });
    } else if let Some(primary) = cx.groups[group].standing.primary_mut() {
        primary.cutting.was_swept = false;
    }
}

/// One more member has a write on stable media. With the last one it is acknowledged.
pub(crate) fn member_has(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let Some(operation) = cx.operations.get_mut(id) else { return };
    operation.order.members_awaited -= 1;
    if operation.order.members_awaited > 0 {
        return;
    }
    let (purpose, group, is_narrowed) = (operation.purpose, operation.group, operation.attempt.is_narrowed);
    let (range, operation_kind) = (operation.range, operation.kind);
    note_replaced(cx, purpose, operation_kind, group, &range);
    let Some(operation) = cx.operations.get_mut(id) else { return };
    if let Some(primary) = cx.groups[group].standing.primary_mut() {
        primary.under_way = primary.under_way.saturating_sub(1);
        if let (Purpose::Cut(cut), OperationKind::Write) = (purpose, operation.kind) {
            primary.cutting.tail_is_cut(operation.range.key.layer, cut);
        }
    }
    if let Purpose::Client(asked) = purpose {
        // The acknowledgement of a write: every in-sync member has it.
        match is_narrowed {
            false => {
                let reached = cx.groups[group].reached();
                cx.io.send(asked.link, &Outcome::done(asked.request, reached, 0));
                cx.count_done(&asked, group);
            }
            true => cx.refuse(purpose, Status::NotActive),
        }
    }
    cx.lines.ended(id);
    cx.forget(id);
    if let Purpose::Mend(_) = purpose {
        cx.damage.counts.mended += 1;
    }
    if purpose == Purpose::Repair {
        cx.then(Task::RepairDone { group });
    } else if cx.lines.has_ready(group) {
        cx.then(Task::StartWaiting { group });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::request::write;
    use crate::testing::{Alone, PG, Pair, VOLUME, ack};
    use base::{BlockRange, LinkId, ObjectKey, OsdId};
    use wire::Message;

    #[test]
    fn a_write_is_acknowledged_when_every_member_has_it_and_not_before() {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(10, 7);
        assert_eq!(pair.ask(&write), None);
        pair.turns(5);
        assert!(pair.alone.io.drive.is_empty(), "it is on stable media here");
        assert_eq!(pair.told(), None, "the replica has not said that it has it");
        let ack = ack(pair.received);
        pair.hears(&ack);
        assert_eq!(pair.told(), Some(Status::Ok));
        assert_eq!(pair.alone.osd.view().operations_in_flight(), 0);
    }

    #[test]
    fn a_replica_that_has_it_first_is_not_enough_either() {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        let crate::testing::Alone { osd, io, now } = &mut pair.alone;
        osd.end_turn(*now, io);
        let ack = ack(pair.received + 1);
        pair.hears(&ack);
        assert_eq!(pair.told(), None, "the drive has not written it");
        pair.received += 1;
        pair.alone.io.to.remove(&pair.link);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
    }

    #[test]
    fn what_a_failed_drive_does_not_take_another_member_may() {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        // Nothing is under way that is lost with it, so the epoch lasts a moment longer.
        let crate::testing::Alone { osd, io, now } = &mut pair.alone;
        osd.fail_drive(*now, "a test", io);
        assert!(osd.shared.groups[0].is_active());
        assert_eq!(pair.ask(&write), Some(Status::NotActive), "the client is to try again");
    }

    #[test]
    fn clients_write_no_more_while_a_member_leaves_too_much_unread_and_read_on() {
        let mut pair = Pair::new();
        let asks = |pair: &mut Pair, bytes: &[u8]| {
            let crate::testing::Alone { osd, io, now } = &mut pair.alone;
            osd.handle_bytes(*now, LinkId(99), bytes, io).unwrap().is_stalled
        };
        let write = pair.write_of(10, 7);
        let read = pair.request(10).encode(Kind::Read);
        pair.alone.io.unread.insert(pair.link, UNREAD_BYTES_MAX + 1);
        pair.ask(&write);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok), "it is found when it is sent something");
        assert!(asks(&mut pair, &write));
        pair.ask(&read);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        // When it has left that unread for long, what stands behind a write is not held up any more.
        pair.alone.io.to.remove(&LinkId(99));
        pair.alone.osd.shared.groups[0].pauses.takes_none_since = Some(pair.alone.now);
        pair.alone.now = pair.alone.now + write::STAY_MAX;
        assert!(!asks(&mut pair, &[&write[..], &read].concat()));
        pair.turns(2);
        let told = pair.alone.io.told(LinkId(99), |message| match message {
            Message::Reply(reply) => Some((reply.head.status, reply.head.details.was_not_begun)),
            _ => None,
        });
        assert_eq!(told, [(Status::NotActive, true), (Status::Ok, false)]);
        pair.alone.io.unread.insert(pair.link, UNREAD_BYTES_MAX);
        assert!(!asks(&mut pair, &write));
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        assert!(!pair.alone.osd.shared.groups[0].pauses.is_member_behind, "nobody is looked at any more");
    }

    #[test]
    fn what_a_member_leaves_unread_as_a_learner_of_another_group_holds_up_no_write_and_no_inquiry() {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let link = pair.link;
        let peer = pair.alone.osd.shared.links.osd_mut(link).unwrap();
        let (sent, count) = (ToLearner::Write { blocks: 1024 }, 9);
        (0..count).for_each(|_| peer.sends(Awaited::Learner { group: 0, session: 7, sent }));
        let to_learner = count * (4 << 20);
        for (block, beside, is_behind) in [(10, UNREAD_BYTES_MAX, false), (11, UNREAD_BYTES_MAX + 1, true)] {
            pair.alone.io.unread.insert(link, to_learner + beside);
            let write = pair.write_of(block, 7);
            assert_eq!(pair.ask(&write), None);
            pair.turns(5);
            assert_eq!(pair.alone.osd.shared.groups[0].pauses.is_member_behind, is_behind, "{beside}");
            pair.alone.with(|_, cx| assert_eq!(cx.unread_bytes(link), beside));
        }
    }

    #[test]
    fn a_write_under_way_when_the_epoch_ends_is_neither_done_nor_failed() {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.turn();
        let (now, link) = (pair.alone.now, pair.link);
        pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
        assert_eq!(pair.told(), Some(Status::NotActive));
    }

    #[test]
    fn no_more_is_ordered_than_may_come_to_nothing_and_what_waited_follows_as_there_is_room() {
        let mut pair = Pair::new();
        let most = pair.alone.osd.store().in_flight_max();
        let primary = |pair: &Pair| {
            let primary = pair.alone.osd.shared.groups[0].standing.primary().unwrap();
            (primary.next_sequence, primary.under_way)
        };
        let (next, _) = primary(&pair);
        pair.alone.osd.shared.groups[0].standing.primary_mut().unwrap().under_way = most - 1;
        let zeros = [20, 21].map(|block| pair.request(block).encode(Kind::Zero));
        let changes = [pair.write_of(10, 7), zeros[0].to_vec(), pair.write_of(11, 7), zeros[1].to_vec()];
        assert_eq!(pair.ask(&changes.concat()), None);
        assert_eq!(primary(&pair), (next.next(), most), "the first of them is under way");
        let lines = &pair.alone.osd.shared.lines;
        assert_eq!((lines.all(0).count(), lines.under_way(0).count()), (4, 1));
        pair.run();
        let told = pair.alone.io.told(LinkId(99), |message| match message {
            Message::Reply(reply) => Some(reply.head.status),
            _ => None,
        });
        assert_eq!(told, [Status::Ok; 4]);
        assert_eq!(primary(&pair), (Sequence(next.0 + 4), most - 1));
    }

    #[test]
    fn a_member_that_lags_is_sent_a_copy_and_keeps_no_batch_from_being_used_again() {
        for (unread_bytes, is_shared) in [(SHARE_LIMIT_BYTES, true), (SHARE_LIMIT_BYTES + 1, false)] {
            let mut pair = Pair::new();
            pair.alone.io.is_deaf = true;
            pair.alone.io.unread.insert(pair.link, unread_bytes);
            let write = pair.write_of(10, 7);
            pair.ask(&write);
            let crate::testing::Alone { osd, io, now } = &mut pair.alone;
            osd.end_turn(*now, io);
            assert_eq!(io.unsent.len(), usize::from(is_shared), "{unread_bytes}");
            let sent = io.told(pair.link, |message| match message {
                Message::ReplicateWrite(write) => Some((write.data.to_vec(), write.checksums[0].get())),
                _ => None,
            });
            let data = vec![7; base::BLOCK_BYTES];
            let checksum = base::crc32c(&data);
            assert_eq!(sent, [(data, checksum)]);
        }
    }

    #[test]
    fn a_change_waits_for_the_one_member_that_leaves_too_much_unread() {
        let mut alone = Alone::new();
        let (members, mut links) = ([OsdId(1), OsdId(2)], Vec::new());
        members.iter().for_each(|osd| links.push(alone.connect(*osd)));
        let group = &mut alone.osd.shared.groups[0];
        group.config.in_sync.extend(members);
        group.pauses.is_member_behind = true;
        let takes = |alone: &mut Alone| {
            let takes = alone.with(|_, cx| do_members_take(cx, 0));
            (takes, alone.osd.shared.groups[0].pauses.is_member_behind)
        };
        alone.io.unread.insert(links[1], UNREAD_BYTES_MAX + 1);
        assert_eq!(takes(&mut alone), (false, true));
        alone.io.unread.insert(links[1], UNREAD_BYTES_MAX);
        assert_eq!(takes(&mut alone), (true, false));
        // Nobody is looked at before it is found anew.
        alone.io.unread.insert(links[1], UNREAD_BYTES_MAX + 1);
        assert_eq!(takes(&mut alone), (true, false));
    }

    #[test]
    fn what_a_failed_drive_does_not_take_fails_where_there_is_nobody_else_and_a_repair_ends_the_epoch() {
        let mut alone = Alone::new();
        let Alone { osd, io, now } = &mut alone;
        osd.fail_drive(*now, "a test", io);
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let range = BlockRange::one(key, 10);
        let request = alone.request(&range);
        alone.with(|_, cx| write::handle_zero(cx, LinkId(7), &request));
        let told = alone.io.told(LinkId(7), |message| match message {
            Message::Reply(reply) => Some(reply.head.status),
            _ => None,
        });
        assert_eq!(told, [Status::DeviceFailed]);
        assert!(alone.osd.shared.groups[0].is_active() && alone.osd.view().operations_in_flight() == 0);
        alone.with(|_, cx| {
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Repair, 0, range);
            assert!(zero(cx, id));
        });
        let trouble = alone.osd.view().summaries().next().and_then(|summary| summary.trouble);
        assert_eq!(trouble.as_deref(), Some("the drive of osd.0 failed; replace it"));
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
    }
}
