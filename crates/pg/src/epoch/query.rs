//! Queries: a primary that claimed an epoch asks the members where they stand, and begins it behind what they have.

use super::claim::propose_primary;
use super::differences::{Behind, as_told_by, differences, who_lacks_less};
use super::{CLAIM_PAUSE, end, repair};
use crate::broken::Sabotage;
use crate::context::Context;
use crate::group::obedience::may_ask;
use crate::group::position::{Difference, MemberPosition};
use crate::group::role::{Change, Phase, Repairing};
use crate::group::{LogTail, PendingQuery};
use crate::io::Io;
use crate::journal::Milestone;
use base::log_entry::UNDONE;
use base::{LinkId, OsdId, Sequence};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use wire::{LogState, Position, Query};

/// How long a group whose members' logs do not reach each other waits before it looks again.
const STOPPED_PAUSE: Duration = Duration::from_secs(10);

/// Asks the replicas of an epoch that was just granted.
pub(crate) fn ask(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &cx.groups[index];
    let query = Query { pg: group.pg, modulus: group.modulus, epoch: group.epoch };
    let replicas: Vec<_> = group.replicas(cx.me.id).collect();
    for osd in replicas {
        match cx.links.ready(osd) {
            Some(link) => cx.io.send(link, &query.encode()),
            None => return end(cx, index, &format!("{osd} cannot be reached")),
        }
    }
    begin_epoch(cx, index);
}

/// A primary claimed an epoch and asks where this replica stands.
pub(crate) fn handle_query(cx: &mut Context<'_, impl Io>, link: LinkId, query: &Query) {
    let Query { pg, modulus, epoch } = *query;
    let Some(index) = cx.groups.find(pg) else { return };
    let Some(leader) = cx.links.osd_at(link) else { return };
    if !may_ask(&cx.groups[index], leader, epoch, modulus) {
        return cx.pass(Milestone::QueryOutdated);
    }
    end(cx, index, "another OSD is primary now");
    let group = &mut cx.groups[index];
    group.epoch = epoch;
    group.leader = Some(leader);
    group.standing.obeys();
    group.query = Some(PendingQuery { link, epoch });
    answer_pending(cx, index);
}

/// Answers a query once nothing staged before it is on its way to the drive: only then is the log complete.
pub(crate) fn answer_pending(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &mut cx.groups[index];
    if group.staged_count > 0 {
        return;
    }
    let Some(PendingQuery { link, epoch }) = group.query.take() else { return };
    if epoch != group.epoch {
        return;
    }
    let state = log_state(cx, index);
    cx.io.send(link, &state.encode(cx.disk.store.pg_log(state.pg)));
}

fn log_state(cx: &Context<'_, impl Io>, index: u32) -> LogState {
    let (group, store) = (&cx.groups[index], &cx.disk.store);
    let pg = group.pg;
    LogState {
        pg,
        epoch: group.epoch,
        last_sequence: store.pg_position(pg).map_or(Sequence(0), |(_, sequence)| sequence),
        log_begins: store.pg_log_begins(pg),
        is_incomplete: store.pg_is_incomplete(pg),
        may_lack_tail: group.tail == LogTail::MayHaveRotted,
    }
}

/// Where this OSD stands itself.
pub(crate) fn own_position(cx: &Context<'_, impl Io>, index: u32) -> MemberPosition {
    let state = log_state(cx, index);
    MemberPosition::new(cx.me.id, &state, cx.disk.store.pg_log(state.pg))
}

/// A replica says where it stands. Answers its group, if it is no member in sync: then it says so as a learner.
pub(crate) fn handle_position(
    cx: &mut Context<'_, impl Io>,
    osd: OsdId,
    position: &Position<'_>,
) -> Option<u32> {
    let index = cx.groups.find(position.head.pg)?;
    let group = &mut cx.groups[index];
    if position.head.epoch != group.epoch {
        return None;
    }
    if !group.config.in_sync.contains(&osd) {
        return Some(index);
    }
    let positions = group.standing.positions_mut()?;
    if positions.iter().all(|known| known.osd != osd) {
        positions.push(MemberPosition::new(osd, &position.head, position.entries()));
        begin_epoch(cx, index);
    }
    None
}

/// When everybody said where they stand: finds the differences and begins the epoch behind them.
pub(crate) fn begin_epoch(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &cx.groups[index];
    let Some(Phase::Querying { positions, .. }) = group.standing.phase() else { return };
    // What this OSD staged in an older epoch is part of its log only when it is durable.
    if positions.len() + 1 < group.config.in_sync.len() || group.staged_count > 0 {
        return;
    }
    let own = own_position(cx, index);
    let group = &mut cx.groups[index];
    let Some(positions) = group.standing.positions_mut() else { return };
    let mut members = std::mem::take(positions);
    members.push(own);
    if let Some(complete) = members.iter().find(|member| !member.is_incomplete).map(|member| member.osd)
        && let Some(osd) = members.iter().find(|member| member.may_lack_pushes()).map(|member| member.osd)
    {
        cx.journal.pass(Milestone::ClaimMayLackPushes);
        if osd == cx.me.id {
            let in_sync = group.config.in_sync.clone();
            return propose_primary(cx, index, complete, in_sync);
        }
        let reason = format!("{osd} started anew before it was in sync, and is compared again");
        return do_without(cx, index, osd, reason);
    }
    let found = differences(group.pg, group.modulus, &members);
    if !cx.me.broken.is(Sabotage::TrustTail)
        && found.as_ref().map_or(true, |found| !found.is_empty())
        && let Some(heir) = who_lacks_less(&members)
    {
        let in_sync = group.config.in_sync.clone();
        cx.pass(Milestone::ClaimMayLackTail);
        return propose_primary(cx, index, heir, in_sync);
    }
    match found {
        Ok(found) => begin_behind(cx, index, members, found),
        Err(behind) => is_behind(cx, index, &behind),
    }
}

/// Begins the epoch behind everything that any member has: with what they differ in.
fn begin_behind(
    cx: &mut Context<'_, impl Io>,
    index: u32,
    mut members: Vec<MemberPosition>,
    mut found: VecDeque<Difference>,
) {
    cx.pass(if found.is_empty() { Milestone::PeeringAgrees } else { Milestone::PeeringDiffers });
    if cx.breaks(Sabotage::SkipRepair) {
        found.clear();
    }
    let last = members.iter().map(|member| member.last_sequence).max().unwrap_or_default();
    // Its own content is what counts now, and every member's log says so.
    let own = members.pop().expect("this OSD is the last of the members");
    let queue: VecDeque<Difference> =
        found.into_iter().flat_map(|difference| as_told_by(&own, difference)).collect();
    if queue.iter().any(|difference| difference.origin & UNDONE != 0) {
        cx.pass(Milestone::PeeringUndone);
    }
    // Of their logs, what tells of the blocks that are to be repaired.
    let objects: BTreeSet<_> =
        queue.iter().map(|difference| (difference.range.key.volume, difference.range.key.object)).collect();
    let mut others = members;
    for member in &mut others {
        member.entries.retain(|entry| objects.contains(&(entry.volume, entry.object)));
    }
    others.sort_by_key(|member| member.may_lack_tail);
    let repairing = Repairing { queue, current: None, mark_is_due: true, others };
    cx.groups[index].standing.differences_are_known(last.next(), repairing);
    repair::next(cx, index);
}

/// A member's log does not reach into those of the others: the epoch begins without it, if enough are left.
fn is_behind(cx: &mut Context<'_, impl Io>, index: u32, behind: &Behind) {
    cx.pass(Milestone::PeeringBehind);
    let Behind { osd, last_sequence, window_start } = *behind;
    let reason = format!(
        "{osd} lacks writes that are older than the log of the others (it has {last_sequence}, the log \
         begins at {window_start})"
    );
    let group = &mut cx.groups[index];
    if osd != cx.me.id && group.config.in_sync.len() > group.wanted.min_size {
        return do_without(cx, index, osd, reason);
    }
    group.standing.must_stop(reason);
    group.pauses.claim_after = cx.now + STOPPED_PAUSE;
}

/// A member goes on as a learner, and is compared object by object.
fn do_without(cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId, reason: String) {
    let group = &mut cx.groups[index];
    group.standing.must_wait(reason);
    if let Some(primary) = group.standing.primary_mut() {
        primary.change = Change::LeaveOut(osd);
    }
    group.pauses.claim_after = cx.now + CLAIM_PAUSE;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::{Alone, PG};
    use base::Epoch;
    use wire::Message;

    fn positions(alone: &mut Alone, link: LinkId) -> usize {
        let sent = alone.io.to.remove(&link).unwrap_or_default();
        let (mut rest, mut count) = (&sent[..], 0);
        while let Some((message, size)) = wire::parse(rest).unwrap() {
            count += usize::from(matches!(message, Message::Position(_)));
            rest = &rest[size..];
        }
        count
    }

    #[test]
    fn a_primary_of_a_later_epoch_is_told_where_this_member_stands_and_obeyed() {
        let mut alone = Alone::new();
        let link = alone.connect(OsdId(1));
        let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
        alone.query(link, PG, 1, epoch);
        assert_eq!(positions(&mut alone, link), 1);
        let group = &alone.osd.shared.groups[0];
        assert!(!group.is_led_here() && group.epoch == epoch && group.leader == Some(OsdId(1)));
    }

    #[test]
    fn a_query_of_an_older_epoch_gets_no_answer_and_changes_nothing() {
        let mut alone = Alone::new();
        let link = alone.connect(OsdId(1));
        let epoch = alone.osd.shared.groups[0].epoch;
        alone.query(link, PG, 1, epoch);
        assert_eq!(positions(&mut alone, link), 0);
        assert!(alone.osd.shared.groups[0].is_active(), "it leads that epoch itself");
    }

    #[test]
    fn a_position_is_told_when_nothing_is_on_its_way_to_the_drive_any_more() {
        let mut alone = Alone::new();
        let link = alone.connect(OsdId(1));
        alone.osd.shared.groups[0].staged_count += 1;
        let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
        alone.query(link, PG, 1, epoch);
        assert_eq!(positions(&mut alone, link), 0);
        alone.osd.shared.groups[0].staged_count -= 1;
        alone.with(|_, cx| answer_pending(cx, 0));
        assert_eq!(positions(&mut alone, link), 1);
    }
}
