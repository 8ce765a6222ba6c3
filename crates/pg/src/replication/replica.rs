//! The other end of replication: applying what a primary ordered.
//!
//! Whether it is taken at all is decided in [`crate::group::obedience`].

use crate::broken::Sabotage;
use crate::codec::payload_verifies;
use crate::context::{Context, Handled};
use crate::group::LogTail;
use crate::group::obedience::{
    Refusal, is_from_before, may_activate, may_go_on, may_join, may_order, may_push, may_tell,
};
use crate::group::position::range_of;
use crate::io::Io;
use crate::journal::Milestone;
use crate::ledger::{Replicated, StagedRecord};
use base::figures::RequestKind;
use base::log_entry::REPAIR;
use base::{Epoch, LinkId, LogEntry, ObjectKey, PgId, Sequence};
use store::{RecordKind, Role, StageError, WriteRecord};
use wire::{
    Activate, Checksums, GroupEpoch, ObjectEpoch, PUSH_WORDS, Push, PushEntry, Replicate, ReplicateRefused,
    Status,
};
use zerocopy::little_endian::U32;

/// What this member is told that blocks hold.
#[derive(Clone, Copy)]
pub(crate) enum Content<'a> {
    Data(Checksums<'a>, &'a [u8]),
    Zeros,
    /// Zeros, whatever lies beneath their layer.
    Hole,
    /// The same of what a learner lacked, which last changed then.
    PushedHole(Sequence),
    /// What a learner lacked, with the words of a push.
    Pushed(&'a [U32], &'a [u8]),
    /// Nobody knows any more; these are the words of its push.
    Lost([U32; PUSH_WORDS]),
}

/// How a replicated message moves this member on in its primary's order.
#[derive(Clone, Copy, Debug)]
enum Advance {
    /// Not at all: it stands beside the order.
    No,
    /// By a write, behind which this sequence is the next.
    To { next: Sequence, write: Replicated },
    /// An epoch begins here, whose next sequence is this.
    Begin { next: Sequence, is_learner: bool },
}

/// What became of a replicated message: its group and whether the store took it, or why it is refused.
type Staged = Result<(u32, Result<(), StageError>), Refusal>;

/// A write or zeroing that the primary ordered.
pub(crate) fn apply_write(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    replicate: &Replicate,
    content: Content<'_>,
) -> Handled {
    // What makes members agree is taken by one that takes no other writes any more.
    let role = if replicate.origin & REPAIR == 0 { Role::Replica } else { Role::Housekeeping };
    let group = ordered_group(cx, link, replicate);
    let staged = group.and_then(|group| stage_verified(cx, group, replicate, role, content));
    let bytes = if let Content::Data(_, data) = content { data.len() as u32 } else { 0 };
    let write = Replicated { bytes, at: cx.now };
    applied(cx, link, Advance::To { next: replicate.sequence.next(), write }, staged)
}

/// The group of a replicated message, if it is the next one of the epoch that this member obeys.
fn ordered_group(cx: &Context<'_, impl Io>, link: LinkId, replicate: &Replicate) -> Result<u32, Refusal> {
    let index = cx.groups.find(replicate.range.key.pg).ok_or((Status::NotActive, Epoch(0)))?;
    let group = &cx.groups[index];
    let sender = if cx.breaks(Sabotage::ObeyAnybody) { group.leader } else { cx.links.osd_at(link) };
    match may_order(group, sender, replicate.epoch, replicate.sequence) {
        Err((Status::StaleEpoch, _)) if cx.breaks(Sabotage::ForgetFence) => Ok(index),
        taken => taken.and_then(|()| that_holds(cx, index, &replicate.range.key)),
    }
}

/// A group that takes what its primary says of an object, if that is one of its own.
fn that_holds(cx: &Context<'_, impl Io>, index: u32, key: &ObjectKey) -> Result<u32, Refusal> {
    let group = &cx.groups[index];
    let is_taken = group.holds(key) || cx.breaks(Sabotage::TakeForeign);
    if is_taken { Ok(index) } else { Err((Status::NotActive, group.epoch)) }
}

/// Has the store take what blocks of a group are to hold, if the bytes are those that were sent.
fn stage_verified(
    cx: &mut Context<'_, impl Io>,
    group: u32,
    write: &Replicate,
    role: Role,
    content: Content<'_>,
) -> Staged {
    let epoch = cx.recorded_epoch(write.epoch);
    let record = WriteRecord { epoch, ..cx.ledger.record(write, role) };
    let store = &mut cx.disk.store;
    let staged = match content {
        Content::Data(checksums, data) | Content::Pushed(checksums, data)
            if !payload_verifies(0, checksums, data) =>
        {
            return Err((Status::CorruptPayload, write.epoch));
        }
        Content::Data(checksums, data) => store.stage_write(&record, checksums, data).map(|_| ()),
        Content::Zeros => store.stage_zero(&record),
        Content::Hole => store.stage_hole(&record),
        Content::PushedHole(changed) => store.stage_pushed_hole(&record, changed),
        Content::Pushed(words, data) => store.stage_push(&record, words, data),
        Content::Lost(words) => store.stage_damaged(&record, &words),
    };
    Ok((group, staged))
}

/// The group of what a primary sends a learner beside its order.
fn pushed_group(cx: &Context<'_, impl Io>, link: LinkId, pg: PgId, epoch: Epoch) -> Result<u32, Refusal> {
    let sender = cx.links.osd_at(link);
    let index = cx.groups.find(pg).filter(|index| may_push(&cx.groups[*index], sender, epoch));
    index.ok_or((Status::NotActive, epoch))
}

/// What this learner lacks. It is in the primary's order where it stands in the stream, but has no sequence.
pub(crate) fn apply_push(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    push: &Push,
    content: Content<'_>,
) -> Handled {
    let Push { range, epoch } = *push;
    let write = Replicate { range, epoch, sequence: Sequence(0), origin: 0 };
    let group = pushed_group(cx, link, range.key.pg, epoch);
    let group = group.and_then(|group| that_holds(cx, group, &range.key));
    let staged = group.and_then(|group| stage_verified(cx, group, &write, Role::Recovery, content));
    applied(cx, link, Advance::No, staged)
}

/// An entry of the log from before this learner's join. It may be about an object of the other half, from before a split: what
/// blocks hold it does not change.
pub(crate) fn apply_entry(cx: &mut Context<'_, impl Io>, link: LinkId, pushed: &PushEntry) -> Handled {
    let PushEntry { pg, epoch, entry } = *pushed;
    let LogEntry { sequence, origin, .. } = entry;
    let write = Replicate { range: range_of(pg, &entry), epoch: entry.epoch, sequence, origin };
    let record = cx.ledger.record(&write, Role::Housekeeping);
    let group = pushed_group(cx, link, pg, epoch).and_then(|group| {
        let is_earlier = is_from_before(&cx.groups[group], sequence);
        if is_earlier { Ok(group) } else { Err((Status::NotActive, epoch)) }
    });
    let staged = group.map(|group| (group, cx.disk.store.stage_entry(&record)));
    applied(cx, link, Advance::No, staged)
}

/// This learner has everything. That it has what it was pushed, of which no log tells, is told by this: should the end of
/// what was sent to it ever be missing, this is missing too.
pub(crate) fn apply_whole(cx: &mut Context<'_, impl Io>, link: LinkId, whole: GroupEpoch) -> Handled {
    let GroupEpoch { pg, epoch } = whole;
    let group = pushed_group(cx, link, pg, epoch);
    let staged = group.map(|group| (group, cx.disk.store.stage_whole(pg, epoch, cx.ledger.next_token())));
    applied(cx, link, Advance::No, staged)
}

/// This learner was sent all that it lacked of the objects up to this one.
pub(crate) fn apply_reached(cx: &mut Context<'_, impl Io>, link: LinkId, reached: &ObjectEpoch) -> Handled {
    let ObjectEpoch { key, epoch } = *reached;
    let group = pushed_group(cx, link, key.pg, epoch);
    let staged = group.map(|group| (group, cx.disk.store.stage_reached(key, cx.ledger.next_token())));
    applied(cx, link, Advance::No, staged)
}

/// The begin of an epoch: from its mark on, the primary's order is this member's. With `join` this member is a learner, whose
/// stream begins there.
pub(crate) fn activate(cx: &mut Context<'_, impl Io>, link: LinkId, activate: &Activate) -> Handled {
    let Activate { pg, epoch, mark, join } = *activate;
    let sender = cx.links.osd_at(link);
    let is_learner = join.is_some();
    let from = join.map(|from| Sequence(from.0.max(1)));
    let own = cx.disk.end_of(pg);
    let may_begin = |index| {
        may_activate(&cx.groups[index], sender, epoch)?;
        let history = cx.groups[index].config.history;
        let leaves_room = match from {
            // What it has of a later history counts: the registry was set back to before the group was given up.
            Some(from) => may_join(history, mark, from) && own.history() <= history,
            None => may_go_on(history, own, mark),
        };
        if leaves_room || cx.breaks(Sabotage::BeginAtOne) {
            Ok(index)
        } else {
            Err((Status::NotActive, epoch))
        }
    };
    let begun = cx.groups.find(pg).ok_or((Status::NotActive, Epoch(0))).and_then(may_begin);
    if begun.is_ok_and(|index| cx.groups[index].query.is_some()) {
        // What was staged comes first, a split above all, and so does the word where this member stands.
        return Handled::Stalled;
    }
    let staged = begun.map(|index| {
        let group = &mut cx.groups[index];
        if is_learner {
            // What its log ended with when it started is no part of the one that begins now.
            group.tail = LogTail::IsKnown;
        }
        let modulus = group.modulus;
        let kind = if is_learner { RecordKind::Join } else { RecordKind::Mark };
        if from.is_some_and(|from| is_from_another_order(cx, pg, epoch, from)) {
            let forgotten = cx.disk.store.stage_left(pg, epoch, cx.ledger.next_token());
            if forgotten.is_err() {
                return (index, forgotten);
            }
            cx.note_staged(index, StagedRecord::Left);
        }
        (index, cx.disk.store.stage_mark(kind, pg, modulus, epoch, mark, cx.ledger.next_token()))
    });
    let next = from.unwrap_or(mark.next());
    applied(cx, link, Advance::Begin { next, is_learner }, staged)
}

/// Whether what a learner is sure of may be of another order than the one that reaches it at `from`. Of that one it can only be
/// sure of what all members had before. After the registry was set back, the same places are given once more; and whoever led the
/// group before may have said anything.
fn is_from_another_order(cx: &Context<'_, impl Io>, pg: PgId, epoch: Epoch, from: Sequence) -> bool {
    let is_other = cx.disk.knows_later_epoch(pg, epoch) || cx.disk.store.pg_held_through(pg) >= from;
    is_other && !cx.breaks(Sabotage::BeginAtOne)
}

/// Every member has what was ordered before this epoch.
pub(crate) fn epoch_serves(cx: &mut Context<'_, impl Io>, link: LinkId, serves: GroupEpoch) {
    if let Some(index) = cx.groups.find(serves.pg)
        && may_tell(&cx.groups[index], cx.links.osd_at(link), serves.epoch)
    {
        cx.groups[index].tail = LogTail::IsKnown;
    }
}

/// What became of a replicated message. It counts, whether applied or refused, unless it must come again.
fn applied(cx: &mut Context<'_, impl Io>, link: LinkId, advance: Advance, staged: Staged) -> Handled {
    if matches!(staged, Ok((_, Err(StageError::Busy)))) {
        return Handled::Stalled;
    }
    let Some(peer) = cx.links.osd_mut(link) else { return Handled::Done };
    peer.received += 1;
    let ordinal = peer.received;
    let write = if let Advance::To { write, .. } = advance { Some(write) } else { None };
    let (status, epoch) = match staged {
        Ok((group, Ok(()))) => {
            let standing = &mut cx.groups[group].standing;
            match advance {
                Advance::No => {}
                Advance::To { next, .. } => {
                    if let Some(following) = standing.following_mut() {
                        following.expected = Some(next);
                    }
                }
                Advance::Begin { next, is_learner } => standing.was_activated(next, is_learner),
            }
            if !matches!(advance, Advance::No) {
                cx.rates.pace.client_came(cx.now);
            }
            cx.turn.active_at = cx.now;
            cx.note_staged(group, StagedRecord::Replica { link, ordinal, write });
            return Handled::Done;
        }
        Ok((group, Err(StageError::Full))) => (Status::NoSpace, cx.groups[group].epoch),
        Ok((group, Err(_))) => (Status::DeviceFailed, cx.groups[group].epoch),
        Err(refusal) => refusal,
    };
    cx.pass(Milestone::replica_refuses(status));
    if write.is_some() {
        cx.count_refused(RequestKind::Replicate, status);
    }
    cx.io.send(link, &ReplicateRefused { ordinal, status, epoch }.encode());
    Handled::Done
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::links::OsdLink;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::map::PgConfig;
    use base::{BLOCK_BYTES, BlockRange, History, OBJECT_BLOCKS, ObjectKey, OsdId, crc32c};
    use std::sync::Arc;
    use wire::{Kind, Message};

    #[test]
    fn who_left_a_group_since_it_said_where_it_stands_does_not_join_it() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        let (primary, other, link) = (OsdId(1), OsdId(2), LinkId(7));
        let peer = OsdLink { osd: primary, version: Some(wire::Version(3)), ..OsdLink::default() };
        alone.osd.shared.links.insert_osd(link, peer);
        // Others hold the group now. Before a map says that this OSD shall hold it again, the primary asks it.
        let epoch = Epoch(9);
        let mut map = map(1);
        let in_sync = vec![primary, other];
        map.pgs.insert(PG, PgConfig { epoch, primary, in_sync: in_sync.clone(), ..PgConfig::default() });
        map.targets.insert(PG, in_sync.clone());
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.query(link, PG, 1, epoch);
        assert!(!alone.io.sent.is_empty(), "it says where it stands");
        // Another map from before that comes first.
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.with(|router, cx| router.deletions.advance(cx));
        alone.osd.router.deletions.note(key);
        alone.with(|router, cx| router.deletions.advance(cx));
        map.targets.insert(PG, [in_sync.clone(), vec![OsdId(0)]].concat());
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let (mark, join) = (Sequence(1), Some(Sequence(20)));
        let join = Activate { pg: PG, epoch, mark, join }.encode();
        alone.osd.handle_bytes(alone.now, link, &join, &mut alone.io).unwrap();
        assert_eq!(
            alone.osd.shared.groups[0].standing.following().and_then(|following| following.expected),
            None
        );
        assert!(!alone.osd.shared.groups[0].is_led_here());
        // Asked anew, it says that its log does not tell what it has, and joins.
        alone.query(link, PG, 1, epoch);
        alone.run();
        assert!(!alone.holds(key) && alone.osd.shared.disk.store.pg_is_incomplete(PG));
    }

    /// What comes on a link is handled, and is on stable media at the same moment.
    fn takes(alone: &mut Alone, link: LinkId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // Where a segment ends, the store takes no more before that is written.
            let consumed = alone.osd.handle_bytes(alone.now, link, bytes, &mut alone.io).unwrap().consumed;
            assert!(consumed > 0, "{} bytes are left", bytes.len());
            bytes = &bytes[consumed..];
            alone.settles();
        }
    }

    #[test]
    fn an_epoch_begins_when_all_from_before_is_durable_and_its_primary_was_told_where_this_member_stands() {
        let mut alone = Alone::new();
        let (primary, epoch) = (OsdId(1), Epoch(9));
        let link = alone.connect(primary);
        let (_, last) = alone.osd.store().pg_position(PG).unwrap();
        alone.osd.shared.groups[0].staged_count += 1;
        alone.is_led_by(primary, epoch);
        alone.query(link, PG, 1, epoch);
        let expected = |alone: &Alone| {
            alone.osd.shared.groups[0].standing.following().and_then(|following| following.expected)
        };
        let begin = Activate { pg: PG, epoch, mark: last.next(), join: None }.encode();
        let consumed = alone.osd.handle_bytes(alone.now, link, &begin, &mut alone.io).unwrap().consumed;
        assert_eq!((alone.io.positions_told(link), expected(&alone)), (0, None));
        alone.osd.shared.groups[0].staged_count -= 1;
        alone.with(|_, cx| crate::epoch::query::answer_pending(cx, 0));
        takes(&mut alone, link, &begin[consumed..]);
        alone.settles();
        assert_eq!((alone.io.positions_told(link), expected(&alone)), (1, Some(last.next().next())));
    }

    #[test]
    fn a_learner_that_knows_more_than_its_primary_can_order_is_sure_of_nothing() {
        let (primary, set_back) = (OsdId(1), Epoch(2));
        for (epoch, beyond, is_sure) in [(Epoch(99), 1, true), (Epoch(99), 0, false), (set_back, 1, false)] {
            let mut alone = Alone::new();
            let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
            alone.write(key);
            alone.age_log();
            alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
            alone.run();
            let (known, _) = alone.osd.store().pg_position(PG).unwrap();
            assert!(set_back < known && known < Epoch(99), "{known}");
            let mut map = map(1);
            let (in_sync, learners) = (vec![primary], vec![OsdId(0)]);
            map.targets.insert(PG, vec![primary, OsdId(0)]);
            map.pgs.insert(PG, PgConfig { epoch, primary, in_sync, learners, ..PgConfig::default() });
            alone.restart(map);
            let sure = alone.osd.store().object_held_through(&key);
            assert!(sure > Sequence(0));
            let link = alone.connect(primary);
            alone.query(link, PG, 1, epoch);
            let told = alone.io.told(link, |message| match message {
                Message::Position(position) => Some(position.head.is_incomplete),
                _ => None,
            });
            assert_eq!(told, [epoch == set_back], "whether its log tells what it has");
            let mark = Sequence(sure.0 - 1);
            let join = Activate { pg: PG, epoch, mark, join: Some(Sequence(sure.0 + beyond)) };
            takes(&mut alone, link, &join.encode());
            let store = alone.osd.store();
            assert_eq!(store.pg_position(PG), Some((epoch, mark)));
            let expected = if is_sure { sure } else { Sequence(0) };
            assert_eq!(store.object_held_through(&key), expected, "{epoch}, {beyond}");
        }
    }

    #[test]
    fn a_learner_of_a_later_history_than_the_registry_knows_keeps_what_it_has() {
        let (primary, epoch) = (OsdId(1), Epoch(99));
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        for history in [History(0), History(1)] {
            let mut alone = Alone::new();
            alone.begins_anew(History(1));
            alone.write(key);
            let own = alone.osd.store().pg_position(PG);
            let mut map = map(1);
            let (in_sync, learners) = (vec![primary], vec![OsdId(0)]);
            map.targets.insert(PG, vec![primary, OsdId(0)]);
            let config = PgConfig { epoch, primary, in_sync, learners, history };
            map.pgs.insert(PG, config);
            alone.restart(map);
            let link = alone.connect(primary);
            alone.query(link, PG, 1, epoch);
            let mark = Sequence(history.floor().0 + 500);
            takes(&mut alone, link, &Activate { pg: PG, epoch, mark, join: Some(mark.next()) }.encode());
            let joined = Some((epoch, mark));
            let expected = if history == History(1) { joined } else { own };
            assert_eq!(alone.osd.store().pg_position(PG), expected);
        }
    }

    #[test]
    fn the_more_a_replica_writes_for_clients_the_more_is_pushed_beside_that() {
        const WRITES: u16 = 1280;
        let mut alone = Alone::new();
        let (primary, epoch) = (OsdId(1), Epoch(9));
        let link = alone.connect(primary);
        alone.is_led_by(primary, epoch);
        alone.query(link, PG, 1, epoch);
        let (_, last) = alone.osd.store().pg_position(PG).unwrap();
        let mark = last.next();
        takes(&mut alone, link, &Activate { pg: PG, epoch, mark, join: None }.encode());
        let data = [7; BLOCK_BYTES];
        let write = |number: u16| {
            let object = u32::from(number) / OBJECT_BLOCKS as u32;
            let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object };
            let range = BlockRange::one(key, number % OBJECT_BLOCKS as u16);
            let sequence = Sequence(mark.0 + 1 + u64::from(number));
            let header = Replicate { range, epoch, sequence, origin: 0 }.encode(Kind::ReplicateWrite);
            [&header[..], &crc32c(&data).to_le_bytes(), &data].concat()
        };
        for first in (0..WRITES).step_by(32) {
            let writes: Vec<u8> = (first..first + 32).flat_map(write).collect();
            takes(&mut alone, link, &writes);
        }
        let expected = Some((epoch, Sequence(mark.0 + u64::from(WRITES))));
        assert_eq!(alone.osd.store().pg_position(PG), expected);
        // Four for each operation and one block: of each second four fifths are for pushes, which cost forty.
        let paused = alone.pause_behind_pushes().as_micros();
        assert!((14_300..14_900).contains(&paused), "{paused} us; it is 38 ms beside nobody");
    }

    const PRIMARY: OsdId = OsdId(1);
    const EPOCH: Epoch = Epoch(9);
    const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 100 };

    /// In the middle of an epoch that another OSD leads: the link to that, and the sequence of its next write.
    fn led(alone: &mut Alone) -> (LinkId, Sequence) {
        let link = alone.connect(PRIMARY);
        alone.is_led_by(PRIMARY, EPOCH);
        alone.query(link, PG, 1, EPOCH);
        let (_, last) = alone.osd.store().pg_position(PG).unwrap();
        let mark = last.next();
        takes(alone, link, &Activate { pg: PG, epoch: EPOCH, mark, join: None }.encode());
        alone.io.to.clear();
        (link, mark.next())
    }

    /// A write of one block, and a zeroing of two behind it.
    fn write(sequence: Sequence, origin: u64) -> Vec<u8> {
        let (range, data) = (BlockRange::one(KEY, 10), [7; BLOCK_BYTES]);
        let head = Replicate { range, epoch: EPOCH, sequence, origin }.encode(Kind::ReplicateWrite);
        [&head[..], &crc32c(&data).to_le_bytes(), &data].concat()
    }

    fn zero(sequence: Sequence) -> Vec<u8> {
        let range = BlockRange { key: KEY, first_block: 11, block_count: 2 };
        Replicate { range, epoch: EPOCH, sequence, origin: 0 }.encode(Kind::ReplicateZero).to_vec()
    }

    /// What the primary was told since the last time: which messages were refused and why, and through which one it has all.
    fn told(alone: &mut Alone, link: LinkId) -> (Vec<(u64, Status)>, Option<u64>) {
        let mut through = None;
        let refused = alone.io.told(link, |message| match message {
            Message::ReplicateRefused(refused) => Some((refused.ordinal, refused.status)),
            Message::ReplicateAck(ack) => {
                through = Some(ack.through);
                None
            }
            _ => None,
        });
        (refused, through)
    }

    #[test]
    fn what_a_replica_takes_and_refuses_is_told_and_counted_and_only_what_it_takes_is_work() {
        let mut alone = Alone::new();
        let (link, next) = led(&mut alone);
        // The mark was the first message.
        assert_eq!(alone.osd.shared.links.osd_mut(link).unwrap().received, 1);
        let tail = |alone: &Alone| alone.osd.shared.groups[0].tail;
        alone.osd.shared.groups[0].tail = LogTail::MayHaveRotted;
        takes(&mut alone, link, &GroupEpoch { pg: PG, epoch: EPOCH }.encode(Kind::Serves));
        assert_eq!(tail(&alone), LogTail::IsKnown, "all members agree now");
        alone.now = alone.now + std::time::Duration::from_secs(1);
        alone.osd.shared.turn.active_at = base::Instant::default();
        let is_busy = |alone: &Alone| {
            let (turn, pace) = (&alone.osd.shared.turn, &alone.osd.shared.rates.pace);
            (turn.is_busy(alone.now), pace.push_blocks(alone.now) < crate::pace::PUSH_BLOCKS)
        };
        let mut garbled = write(next, 0);
        *garbled.last_mut().unwrap() ^= 1;
        let push = Push { range: BlockRange::one(KEY, 10), epoch: EPOCH }.encode(Kind::PushZero);
        takes(&mut alone, link, &[&garbled[..], &zero(next.next()), &push].concat());
        let refused = [(2, Status::CorruptPayload), (3, Status::NotActive), (4, Status::NotActive)];
        assert_eq!(told(&mut alone, link), (refused.to_vec(), None));
        assert_eq!(is_busy(&alone), (false, false));
        takes(&mut alone, link, &[write(next, 0), zero(next.next())].concat());
        assert_eq!(told(&mut alone, link), (vec![], Some(6)));
        assert_eq!(is_busy(&alone), (true, true));
        let figures = alone.osd.view().figures().replicate;
        let counts = (figures.latencies.count(), figures.bytes, figures.errors, figures.redirected);
        assert_eq!(counts, (2, BLOCK_BYTES as u64, 1, 1), "what is pushed is nobody's write");
    }

    #[test]
    fn a_full_replica_takes_what_makes_members_agree_and_no_other_write() {
        let mut alone = Alone::new();
        // More than replicas may write, and less than what is there for housekeeping.
        (0..41).for_each(|object| alone.order(ObjectKey { object, ..KEY }, 0, 64, 0));
        let (link, next) = led(&mut alone);
        takes(&mut alone, link, &write(next, 5));
        assert_eq!(told(&mut alone, link), (vec![(2, Status::NoSpace)], None));
        takes(&mut alone, link, &[write(next, REPAIR | 5), zero(next.next())].concat());
        assert_eq!(told(&mut alone, link), (vec![], Some(4)));
    }

    #[test]
    fn what_a_drive_that_failed_has_not_or_does_not_take_is_refused() {
        let mut alone = Alone::new();
        let (link, next) = led(&mut alone);
        let Alone { osd, io, now } = &mut alone;
        osd.handle_bytes(*now, link, &write(next, 0), io).unwrap();
        osd.fail_drive(*now, "a test", io);
        assert_eq!(told(&mut alone, link), (vec![(2, Status::DeviceFailed)], None));
        let Alone { osd, io, now } = &mut alone;
        osd.handle_bytes(*now, link, &zero(next.next()), io).unwrap();
        assert_eq!(told(&mut alone, link), (vec![(3, Status::DeviceFailed)], None));
    }

    #[test]
    fn a_learner_whose_group_has_ordered_nothing_gets_its_order_from_the_first_write_on() {
        let mut alone = Alone::new();
        let mut map = map(1);
        map.revision = 2;
        map.targets.insert(PG, vec![PRIMARY, OsdId(0)]);
        let (in_sync, learners) = (vec![PRIMARY], vec![OsdId(0)]);
        map.pgs.insert(
            PG,
            PgConfig { epoch: EPOCH, primary: PRIMARY, in_sync, learners, ..PgConfig::default() },
        );
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let link = alone.connect(PRIMARY);
        alone.query(link, PG, 1, EPOCH);
        let join = Activate { pg: PG, epoch: EPOCH, mark: Sequence(0), join: Some(Sequence(0)) }.encode();
        alone.osd.handle_bytes(alone.now, link, &join, &mut alone.io).unwrap();
        let group = &alone.osd.shared.groups[0];
        let expected = group.standing.following().and_then(|following| following.expected);
        assert_eq!((expected, group.tail), (Some(Sequence(1)), LogTail::IsKnown));
    }
}
