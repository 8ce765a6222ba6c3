//! The other end of replication: applying what a primary ordered.
//!
//! Whether it is taken at all is decided in [`crate::group::obedience`].

use crate::broken::Sabotage;
use crate::codec::payload_verifies;
use crate::context::{Context, Handled};
use crate::group::LogTail;
use crate::group::obedience::{Refusal, may_activate, may_order, may_push, may_tell};
use crate::io::Io;
use crate::journal::Milestone;
use crate::ledger::{Replicated, StagedRecord};
use base::figures::RequestKind;
use base::log_entry::REPAIR;
use base::{Epoch, LinkId, ObjectKey, PgId, Sequence};
use store::{StageError, WriteRecord};
use wire::{Activate, Checksums, GroupEpoch, Push, PushEntry, Replicate, ReplicateRefused, Status};
use zerocopy::little_endian::U32;

/// What a learner is told that blocks hold.
pub(crate) enum Pushed<'a> {
    Data(Checksums<'a>, &'a [u8]),
    Zeros,
    /// Nobody knows any more; this is its checksum.
    Lost(U32),
}

/// How a replicated message moves this member on in its primary's order.
#[derive(Clone, Copy, Debug)]
enum Advance {
    /// Not at all: it stands beside the order.
    No,
    /// This sequence is the next.
    To(Sequence),
    /// An epoch begins here, whose next sequence is this.
    Begin { next: Sequence, is_learner: bool },
}

/// What became of a replicated message: its group and whether the store took it, or why it is refused.
type Staged = Result<(u32, Result<(), StageError>), Refusal>;

/// A write that the primary ordered, or without a payload a zeroing.
pub(crate) fn apply_write(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    replicate: &Replicate,
    payload: Option<(Checksums<'_>, &[u8])>,
) -> Handled {
    let verifies = payload.is_none_or(|(checksums, data)| payload_verifies(0, checksums, data));
    let staged = match ordered_group(cx, replicate) {
        Ok(_) if !verifies => Err((Status::CorruptPayload, replicate.epoch)),
        Ok(group) => {
            let record = replica_record(cx, replicate);
            let store = &mut cx.disk.store;
            let staged = match payload {
                Some((checksums, data)) => store.stage_write(&record, checksums, data).map(|_| ()),
                None => store.stage_zero(&record),
            };
            Ok((group, staged))
        }
        Err(refusal) => Err(refusal),
    };
    let bytes = payload.map_or(0, |(_, data)| data.len() as u32);
    let write = Replicated { bytes, at: cx.now };
    applied(cx, link, Advance::To(replicate.sequence.next()), Some(write), staged)
}

/// The group of a replicated message, if it is the next one of the epoch that this member obeys.
fn ordered_group(cx: &Context<'_, impl Io>, replicate: &Replicate) -> Result<u32, Refusal> {
    let index = cx.groups.find(replicate.range.key.pg).ok_or((Status::NotActive, Epoch(0)))?;
    let group = &cx.groups[index];
    match may_order(group, replicate.epoch, replicate.sequence) {
        Err((Status::StaleEpoch, _)) if cx.breaks(Sabotage::ForgetFence) => Ok(index),
        taken => taken.map(|()| index),
    }
}

fn replica_record(cx: &Context<'_, impl Io>, replicate: &Replicate) -> WriteRecord {
    WriteRecord {
        key: replicate.range.key,
        epoch: cx.recorded_epoch(replicate.epoch),
        sequence: replicate.sequence,
        origin: replicate.origin,
        first_block: replicate.range.first_block,
        block_count: replicate.range.block_count,
        token: cx.ledger.next_token(),
        // What makes members agree is taken by one that takes no other writes any more.
        role: match replicate.origin & REPAIR {
            0 => store::Role::Replica,
            _ => store::Role::Housekeeping,
        },
    }
}

/// The group of what a primary sends a learner beside its order.
fn pushed_group(cx: &Context<'_, impl Io>, pg: PgId, epoch: Epoch) -> Result<u32, Refusal> {
    let index = cx.groups.find(pg).filter(|index| may_push(&cx.groups[*index], epoch));
    index.ok_or((Status::NotActive, epoch))
}

/// What this learner lacks. It is in the primary's order where it stands in the stream, but has no sequence.
pub(crate) fn apply_push(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    push: &Push,
    pushed: Pushed<'_>,
) -> Handled {
    let record = WriteRecord {
        key: push.range.key,
        epoch: cx.recorded_epoch(push.epoch),
        sequence: Sequence(0),
        origin: 0,
        first_block: push.range.first_block,
        block_count: push.range.block_count,
        token: cx.ledger.next_token(),
        role: store::Role::Recovery,
    };
    let group = pushed_group(cx, push.range.key.pg, push.epoch);
    let store = &mut cx.disk.store;
    let staged = group.and_then(|group| {
        let staged = match pushed {
            Pushed::Data(checksums, data) if !payload_verifies(0, checksums, data) => {
                return Err((Status::CorruptPayload, push.epoch));
            }
            Pushed::Data(checksums, data) => store.stage_write(&record, checksums, data).map(|_| ()),
            Pushed::Zeros => store.stage_zero(&record),
            Pushed::Lost(checksum) => store.stage_damaged(&record, checksum),
        };
        Ok((group, staged))
    });
    applied(cx, link, Advance::No, None, staged)
}

/// An entry of the log from before this learner's join.
pub(crate) fn apply_entry(cx: &mut Context<'_, impl Io>, link: LinkId, pushed: &PushEntry) -> Handled {
    let PushEntry { pg, epoch, entry } = *pushed;
    let record = WriteRecord {
        key: ObjectKey { pg, volume: entry.volume, object: entry.object },
        epoch: entry.epoch,
        sequence: entry.sequence,
        origin: entry.origin,
        first_block: entry.first_block,
        block_count: entry.block_count,
        token: cx.ledger.next_token(),
        role: store::Role::Housekeeping,
    };
    let group = pushed_group(cx, pg, epoch);
    let staged = group.map(|group| (group, cx.disk.store.stage_entry(&record)));
    applied(cx, link, Advance::No, None, staged)
}

/// This learner has everything. That it has what it was pushed, of which no log tells, is told by this: should the end of
/// what was sent to it ever be missing, this is missing too.
pub(crate) fn apply_whole(cx: &mut Context<'_, impl Io>, link: LinkId, whole: GroupEpoch) -> Handled {
    let GroupEpoch { pg, epoch } = whole;
    let group = pushed_group(cx, pg, epoch);
    let staged = group.map(|group| (group, cx.disk.store.stage_whole(pg, epoch, cx.ledger.next_token())));
    applied(cx, link, Advance::No, None, staged)
}

/// The begin of an epoch: from its mark on, the primary's order is this member's. With `join` this member is a learner, whose
/// stream begins there.
pub(crate) fn activate(cx: &mut Context<'_, impl Io>, link: LinkId, activate: &Activate) -> Handled {
    let Activate { pg, epoch, mark, join } = *activate;
    let sender = cx.links.osd_at(link);
    let token = cx.ledger.next_token();
    let may_begin = |index| may_activate(&cx.groups[index], sender, epoch).map(|()| index);
    let begun = cx.groups.find(pg).ok_or((Status::NotActive, Epoch(0))).and_then(may_begin);
    let staged = begun.map(|index| {
        let group = &mut cx.groups[index];
        let store = &mut cx.disk.store;
        let staged = match join {
            // What its log ended with when it started is no part of the one that begins now.
            Some(_) => {
                group.tail = LogTail::IsKnown;
                store.stage_join(pg, group.modulus, epoch, mark, token)
            }
            None => store.stage_mark(pg, group.modulus, epoch, mark, token),
        };
        (index, staged)
    });
    let next = join.map_or(mark.next(), |from| Sequence(from.0.max(1)));
    applied(cx, link, Advance::Begin { next, is_learner: join.is_some() }, None, staged)
}

/// Every member has what was ordered before this epoch.
pub(crate) fn epoch_serves(cx: &mut Context<'_, impl Io>, serves: GroupEpoch) {
    if let Some(index) = cx.groups.find(serves.pg)
        && may_tell(&cx.groups[index], serves.epoch)
    {
        cx.groups[index].tail = LogTail::IsKnown;
    }
}

/// What became of a replicated message. It counts, whether applied or refused, unless it must come again.
fn applied(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    advance: Advance,
    write: Option<Replicated>,
    staged: Staged,
) -> Handled {
    if matches!(staged, Ok((_, Err(StageError::Busy)))) {
        return Handled::Stalled;
    }
    let Some(peer) = cx.links.osd_mut(link) else { return Handled::Done };
    peer.received += 1;
    let ordinal = peer.received;
    let (status, epoch) = match staged {
        Ok((group, Ok(()))) => {
            let standing = &mut cx.groups[group].standing;
            match advance {
                Advance::No => {}
                Advance::To(next) => {
                    if let Some(following) = standing.following_mut() {
                        following.expected = Some(next);
                    }
                }
                Advance::Begin { next, is_learner } => standing.was_activated(next, is_learner),
            }
            if !matches!(advance, Advance::No) {
                cx.pace.client_came(cx.now);
            }
            cx.turn.active_at = cx.now;
            cx.note_staged(StagedRecord::Replica { group, link, ordinal, write });
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
    use base::OsdId;
    use base::map::PgConfig;
    use std::sync::Arc;

    #[test]
    fn who_left_a_group_since_it_said_where_it_stands_does_not_join_it() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        let (primary, other, link) = (OsdId(1), OsdId(2), LinkId(7));
        let peer = OsdLink { osd: primary, version: Some(wire::Version(3)), ..OsdLink::default() };
        alone.osd.shared.links.insert_osd(link, peer);
        // Others hold the group now. Before a map says that this OSD shall hold it again, the primary asks it.
        let epoch = Epoch(9);
        let mut map = map(1);
        let in_sync = vec![primary, other];
        map.pgs.insert(PG, PgConfig { epoch, primary, in_sync: in_sync.clone(), learners: Vec::new() });
        map.targets.insert(PG, in_sync.clone());
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.query(link, PG, 1, epoch);
        assert!(!alone.io.sent.is_empty(), "it says where it stands");
        // Another map from before that comes first.
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.with(|router, cx| router.deletions.advance(cx));
        alone.osd.router.deletions.queue.push_back(key);
        alone.with(|router, cx| router.deletions.advance(cx));
        map.targets.insert(PG, [in_sync.clone(), vec![OsdId(0)]].concat());
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let (mark, join) = (Sequence(1), Some(Sequence(20)));
        let join = Activate { pg: PG, epoch, mark, join }.encode();
        alone.osd.handle_bytes(alone.now, link, &join, &mut alone.io).unwrap();
        assert_eq!(alone.osd.shared.groups[0].following().and_then(|following| following.expected), None);
        assert!(!alone.osd.shared.groups[0].is_led_here());
        // Asked anew, it says that its log does not tell what it has, and joins.
        alone.query(link, PG, 1, epoch);
        alone.run();
        assert!(!alone.holds(key) && alone.osd.shared.disk.store.pg_is_incomplete(PG));
    }
}
