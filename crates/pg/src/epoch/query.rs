//! Queries: a primary that claimed an epoch asks the members where they stand, and begins it behind what they have.

use super::claim::propose_primary;
use super::differences::{Behind, as_told_by, differences, who_lacks_less};
use super::kept::KeptQueries;
use super::{CLAIM_PAUSE, end, repair};
use crate::broken::Sabotage;
use crate::context::Context;
use crate::group::obedience::{AHEAD_MAX, Verdict, judge_query};
use crate::group::position::{Difference, MemberPosition};
use crate::group::role::{Change, Phase, Repairing};
use crate::group::{LogTail, PendingQuery};
use crate::io::Io;
use crate::journal::Milestone;
use crate::links::inquiries::{self, Asks};
use base::log_entry::UNDONE;
use base::{Epoch, LinkId, OsdId, Sequence};
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

/// An OSD says that it claimed an epoch, and asks where this one stands: it is told if the map says so too. Until the map can,
/// what it asks is `kept`.
pub(crate) fn handle_query(
    cx: &mut Context<'_, impl Io>,
    kept: &mut KeptQueries,
    link: LinkId,
    query: &Query,
) {
    let Query { pg, epoch, .. } = *query;
    let Some(leader) = cx.links.osd_at(link) else { return };
    let index = cx.groups.find(pg);
    let verdict = match index {
        Some(index) => judge_query(&cx.groups[index], leader, query),
        // The target that makes this OSD a member may be on its way: it carries no epoch.
        None if cx.volumes.map.pgs.get(&pg).is_none_or(|shown| shown.epoch <= epoch) => Verdict::AwaitMap,
        None => Verdict::Ignore,
    };
    match (verdict, index) {
        (Verdict::Obey, Some(index)) => obey(cx, index, link, leader, epoch),
        (Verdict::AwaitMap, Some(index)) if cx.breaks(Sabotage::ObeyAnyQuery) => {
            obey(cx, index, link, leader, epoch);
        }
        (Verdict::AwaitMap, _) if kept.keep(cx.links, link, *query) => cx.pass(Milestone::QueryKept),
        _ => cx.pass(Milestone::QueryOutdated),
    }
}

/// The map is another one: looks at the queries that were kept until it came.
pub(crate) fn look_again(cx: &mut Context<'_, impl Io>, kept: &mut KeptQueries) {
    for (link, query) in kept.take() {
        handle_query(cx, kept, link, &query);
    }
}

/// Obeys the primary of an epoch from here on, and tells it where this member stands.
fn obey(cx: &mut Context<'_, impl Io>, index: u32, link: LinkId, leader: OsdId, epoch: Epoch) {
    end(cx, index, "another OSD is primary now");
    let group = &mut cx.groups[index];
    group.epoch = epoch;
    group.leader = Some(leader);
    group.standing.obeys();
    group.query = Some(PendingQuery { link, epoch });
    answer_pending(cx, index);
}

/// Answers a query once nothing staged before it is on its way to the drive: only then is the log complete. Where its sender
/// takes no more answers at the moment, it waits with what else that one asks, and comes again.
pub(crate) fn answer_pending(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &mut cx.groups[index];
    if group.staged_count > 0 {
        return;
    }
    let Some(PendingQuery { link, epoch }) = group.query.take() else { return };
    if epoch != group.epoch {
        return;
    }
    let query = Query { pg: group.pg, modulus: group.modulus, epoch };
    let unread_bytes = cx.unread_bytes(link);
    if cx.links.osd_mut(link).is_some_and(|peer| !peer.inquiries.has_room(unread_bytes)) {
        return inquiries::wait(cx.links, link, Asks::Position(query));
    }
    let state = log_state(cx, index);
    cx.io.send(link, &state.encode(cx.disk.store.pg_log(state.pg)));
}

fn log_state(cx: &Context<'_, impl Io>, index: u32) -> LogState {
    let (group, store) = (&cx.groups[index], &cx.disk.store);
    let pg = group.pg;
    // Epochs that the registry forgot come again: a place in the order of one may be another's of the same number.
    let is_learner = !group.config.in_sync.contains(&cx.me.id);
    let is_from_another = is_learner && cx.disk.knows_later_epoch(pg, group.epoch);
    LogState {
        pg,
        epoch: group.epoch,
        last_sequence: cx.disk.end_of(pg),
        log_begins: store.pg_log_begins(pg),
        is_incomplete: store.pg_is_incomplete(pg) || is_from_another,
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
    let LogState { pg, epoch, last_sequence, .. } = position.head;
    let index = cx.groups.find(pg)?;
    let own = cx.disk.end_of(pg);
    let group = &mut cx.groups[index];
    if epoch != group.epoch {
        return None;
    }
    if !group.config.in_sync.contains(&osd) {
        return Some(index);
    }
    // Whatever is here of an earlier history, the order of this one begins behind its floor.
    let begun = own.max(group.config.history.floor());
    let positions = group.standing.positions_mut()?;
    if last_sequence.0.saturating_sub(begun.0) > AHEAD_MAX {
        is_beyond(cx, index, osd, last_sequence);
    } else if positions.iter().all(|known| known.osd != osd) {
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
    // Of a group that was given up, whoever was a member may come back with what it had.
    let floor = match cx.breaks(Sabotage::BeginAtOne) {
        true => Sequence(0),
        false => cx.groups[index].config.history.floor(),
    };
    let last = members.iter().map(|member| member.last_sequence).max().unwrap_or_default().max(floor);
    // Its own content is what counts now, and every member's log says so.
    let own = members.pop().expect("this OSD is the last of the members");
    let queue: VecDeque<Difference> =
        found.into_iter().flat_map(|difference| as_told_by(&own, difference)).collect();
    if queue.iter().any(|difference| difference.origin & UNDONE != 0) {
        cx.pass(Milestone::PeeringUndone);
    }
    // Of their logs, what tells of the blocks that are to be repaired.
    let objects: BTreeSet<_> =
        queue.iter().map(|difference| (difference.range.key.layer, difference.range.key.object)).collect();
    let mut others = members;
    for member in &mut others {
        member.entries.retain(|entry| objects.contains(&(entry.layer, entry.object)));
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
    match osd == cx.me.id {
        true => stop(cx, index, reason),
        false => do_without_or_stop(cx, index, osd, reason),
    }
}

/// A member says that it has more than there can be of the order that this OSD knows. A lie, or what one who lied made of it, is
/// done without, if enough are left; but not what is of a later history: the registry was set back to before the group was given
/// up, and there is what counts.
fn is_beyond(cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId, last_sequence: Sequence) {
    let me = cx.me.id;
    if last_sequence.history() > cx.groups[index].config.history {
        let reason = format!(
            "{osd} says that it has what was written after the group was given up, of which the registry \
             tells nothing; if it was set back, stop the node of {me}, so that {osd} leads"
        );
        return stop(cx, index, reason);
    }
    let reason = format!("{osd} says that it has far more of the group than there can be; stop its node");
    do_without_or_stop(cx, index, osd, reason);
}

/// The epoch begins without a member, if enough are left.
fn do_without_or_stop(cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId, reason: String) {
    let group = &cx.groups[index];
    match group.config.in_sync.len() > group.wanted.min_size {
        true => do_without(cx, index, osd, reason),
        false => stop(cx, index, reason),
    }
}

/// The group serves nothing until somebody does something.
fn stop(cx: &mut Context<'_, impl Io>, index: u32, reason: String) {
    let group = &mut cx.groups[index];
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
    use crate::group::obedience::may_join;
    use crate::group::role::State;
    use crate::ledger::StagedRecord;
    use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME, map};
    use base::map::PgConfig;
    use base::{History, LogEntry, ObjectKey, PgId, PoolId};
    use std::sync::Arc;
    use store::RecordKind;

    const PRIMARY: OsdId = OsdId(1);

    /// What a member says whose log is as that of this OSD, and its entries.
    fn agrees(alone: &Alone) -> (LogState, Vec<LogEntry>) {
        let (_, last_sequence) = alone.osd.store().pg_position(PG).unwrap();
        let state = LogState {
            pg: PG,
            epoch: alone.osd.shared.groups[0].epoch,
            last_sequence,
            log_begins: Sequence(0),
            is_incomplete: false,
            may_lack_tail: false,
        };
        (state, alone.osd.store().pg_log(PG).collect())
    }

    /// A member says that.
    fn says(alone: &mut Alone, link: LinkId, state: &LogState, entries: &[LogEntry]) {
        let Alone { osd, io, now } = alone;
        osd.handle_bytes(*now, link, &state.encode(entries.iter().copied()), io).unwrap();
    }

    fn state(alone: &Alone) -> State {
        alone.osd.shared.groups[0].state()
    }

    /// An OSD that asked two others, who are in sync with it, where they stand.
    fn asks_two() -> (Alone, [LinkId; 2]) {
        let mut alone = Alone::new();
        let links = [1, 2].map(|osd| alone.connect(OsdId(osd)));
        alone.with(|_, cx| {
            end(cx, 0, "a test");
            let group = &mut cx.groups[0];
            group.config.in_sync = (0..3).map(OsdId).collect();
            group.standing.claims();
            group.standing.epoch_was_granted(cx.now);
        });
        (alone, links)
    }

    #[test]
    fn an_epoch_begins_behind_all_when_each_member_has_said_where_it_stands_and_this_one_knows() {
        let (mut alone, [first, second]) = asks_two();
        let (told, log) = agrees(&alone);
        for _ in 0..2 {
            says(&mut alone, first, &LogState { may_lack_tail: true, ..told }, &log);
        }
        assert_eq!(state(&alone), State::Querying, "one said it twice");
        says(&mut alone, second, &LogState { epoch: Epoch(told.epoch.0 - 1), ..told }, &log);
        assert_eq!(state(&alone), State::Querying, "the other one said where it stood in an earlier epoch");
        alone.osd.shared.groups[0].staged_count += 1;
        let last_sequence = Sequence(told.last_sequence.0 + 10);
        says(&mut alone, second, &LogState { last_sequence, ..told }, &log);
        assert_eq!(state(&alone), State::Querying, "its own log may go on");
        alone.osd.shared.groups[0].staged_count -= 1;
        alone.with(|_, cx| begin_epoch(cx, 0));
        assert_eq!(state(&alone), State::Repairing);
        let standing = &alone.osd.shared.groups[0].standing;
        let mark = last_sequence.next();
        assert_eq!(standing.primary().unwrap().next_sequence, mark.next());
        let others: Vec<OsdId> =
            standing.repairing().unwrap().others.iter().map(|member| member.osd).collect();
        assert_eq!(others, [OsdId(2), OsdId(1)], "who may lack something is asked last");
    }

    #[test]
    fn an_epoch_in_which_a_member_cannot_be_asked_ends_at_once() {
        let mut pair = Pair::new();
        pair.asks_its_members();
        let link = pair.link;
        pair.alone.osd.shared.links.forget(link);
        pair.alone.with(|_, cx| ask(cx, 0));
        assert_eq!(state(&pair.alone), State::Waiting);
    }

    #[test]
    fn a_member_is_believed_to_be_ahead_by_as_much_as_one_can_be_in_this_history() {
        for history in [History(0), History(1)] {
            for (ahead, is_believed) in [(AHEAD_MAX, true), (AHEAD_MAX + 1, false)] {
                let mut pair = Pair::new();
                pair.asks_its_members();
                pair.alone.osd.shared.groups[0].config.history = history;
                let (told, log) = agrees(&pair.alone);
                let last_sequence = Sequence(told.last_sequence.max(history.floor()).0 + ahead);
                pair.hears(&LogState { last_sequence, ..told }.encode(log.iter().copied()));
                let expected = if is_believed { State::Repairing } else { State::Stopped };
                assert_eq!(state(&pair.alone), expected, "{history} and {ahead}");
            }
        }
    }

    #[test]
    fn a_member_that_may_lack_what_it_was_pushed_is_compared_again() {
        for (is_incomplete, may_lack_tail) in [(true, true), (true, false), (false, true)] {
            let mut pair = Pair::new();
            pair.asks_its_members();
            let (told, log) = agrees(&pair.alone);
            let told = LogState { is_incomplete, may_lack_tail, ..told };
            pair.hears(&told.encode(log.iter().copied()));
            let is_left_out = is_incomplete && may_lack_tail;
            let (group, now) = (&pair.alone.osd.shared.groups[0], pair.alone.now);
            assert_eq!(group.standing.unfit(), is_left_out.then_some(REPLICA));
            let expected = if is_left_out { State::Waiting } else { State::Repairing };
            assert_eq!(group.state(), expected, "{is_incomplete} {may_lack_tail}");
            assert!(!is_left_out || group.pauses.claim_after == now + CLAIM_PAUSE);
        }
    }

    #[test]
    fn who_may_lack_what_it_was_pushed_itself_has_another_one_lead() {
        let mut pair = Pair::new();
        pair.alone.with(|_, cx| {
            let (epoch, token) = (cx.groups[0].epoch, cx.ledger.next_token());
            let mark = cx.disk.end_of(PG).next();
            cx.disk.store.stage_mark(RecordKind::Join, PG, 1, epoch, mark, token).unwrap();
            cx.note_staged(0, StagedRecord::Left);
        });
        pair.turns(5);
        assert!(pair.alone.osd.store().pg_is_incomplete(PG));
        pair.asks_its_members();
        pair.alone.osd.shared.groups[0].tail = LogTail::MayHaveRotted;
        let (told, log) = agrees(&pair.alone);
        pair.hears(&told.encode(log.iter().copied()));
        let (pg, config) = pair.alone.io.proposals.remove(0);
        assert_eq!((pg, config.primary, config.in_sync), (PG, REPLICA, vec![OsdId(0), REPLICA]));
        assert_eq!(state(&pair.alone), State::Claiming);
    }

    #[test]
    fn who_may_lack_the_end_of_its_log_has_another_one_lead_only_if_that_says_something_else() {
        for differs in [false, true] {
            let mut pair = Pair::new();
            pair.asks_its_members();
            pair.alone.osd.shared.groups[0].tail = LogTail::MayHaveRotted;
            let (mut told, mut log) = agrees(&pair.alone);
            if differs {
                let last = *log.last().unwrap();
                told.last_sequence = last.sequence.next();
                log.push(LogEntry { sequence: told.last_sequence, block_count: 1, ..last });
            }
            pair.hears(&told.encode(log.iter().copied()));
            let heirs: Vec<OsdId> =
                pair.alone.io.proposals.iter().map(|(_, config)| config.primary).collect();
            assert_eq!(heirs, if differs { vec![REPLICA] } else { vec![] });
            let expected = if differs { State::Claiming } else { State::Repairing };
            assert_eq!(state(&pair.alone), expected);
        }
    }

    #[test]
    fn a_member_whose_log_does_not_reach_is_done_without_if_enough_are_left() {
        for (osd, min_size, is_left_out) in [(REPLICA, 1, true), (REPLICA, 2, false), (OsdId(0), 1, false)] {
            let mut pair = Pair::new();
            pair.alone.osd.shared.groups[0].wanted.min_size = min_size;
            pair.asks_its_members();
            let behind = Behind { osd, last_sequence: Sequence(37), window_start: Sequence(94) };
            pair.alone.with(|_, cx| is_behind(cx, 0, &behind));
            let (group, now) = (&pair.alone.osd.shared.groups[0], pair.alone.now);
            assert_eq!(group.standing.unfit(), is_left_out.then_some(REPLICA));
            let (state, pause) =
                if is_left_out { (State::Waiting, CLAIM_PAUSE) } else { (State::Stopped, STOPPED_PAUSE) };
            assert_eq!((group.state(), group.pauses.claim_after), (state, now + pause));
            let trouble = group.summary().trouble.unwrap();
            let is_told = |what: &str| trouble.contains(what);
            assert!(is_told(&osd.to_string()) && is_told("37") && is_told("94"), "{trouble}");
        }
    }

    #[test]
    fn a_query_that_waited_is_answered_only_in_the_epoch_that_is_obeyed() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let obeyed = alone.osd.shared.groups[0].epoch;
        for (epoch, answers) in [(Epoch(obeyed.0 - 1), 0), (obeyed, 1)] {
            alone.osd.shared.groups[0].query = Some(PendingQuery { link, epoch });
            alone.with(|_, cx| answer_pending(cx, 0));
            assert_eq!(alone.io.positions_told(link), answers, "{epoch}");
        }
    }

    #[test]
    fn of_a_group_that_it_is_no_member_of_it_keeps_what_a_map_may_still_come_for() {
        let pg = PgId { pool: PoolId(2), index: 0 };
        for (epoch, kept) in [(4, 0), (5, 1), (6, 1)] {
            let mut alone = Alone::new();
            let link = alone.connect(PRIMARY);
            let mut map = (*alone.osd.shared.volumes.map).clone();
            map.revision += 1;
            map.pools.insert(pg.pool, map.pools[&PG.pool].clone());
            let in_sync = vec![PRIMARY];
            map.targets.insert(pg, in_sync.clone());
            let config = PgConfig { epoch: Epoch(5), primary: PRIMARY, in_sync, ..PgConfig::default() };
            map.pgs.insert(pg, config);
            alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
            alone.query(link, pg, 1, Epoch(epoch));
            assert_eq!((alone.io.positions_told(link), alone.osd.router.kept.len()), (0, kept), "{epoch}");
        }
    }

    #[test]
    fn what_a_member_says_of_itself_is_what_its_log_is_good_for() {
        let mut alone = Alone::new();
        let told = |alone: &mut Alone| alone.with(|_, cx| log_state(cx, 0));
        let (expected, _) = agrees(&alone);
        assert_eq!(told(&mut alone), expected);
        alone.osd.shared.groups[0].tail = LogTail::MayHaveRotted;
        assert_eq!(told(&mut alone), LogState { may_lack_tail: true, ..expected });
        // The registry was set back to an earlier epoch: that tells something to those who compare, and they are learners.
        let group = &mut alone.osd.shared.groups[0];
        (group.tail, group.epoch) = (LogTail::IsKnown, Epoch(expected.epoch.0 - 1));
        assert!(!told(&mut alone).is_incomplete);
        let in_sync = std::mem::take(&mut alone.osd.shared.groups[0].config.in_sync);
        assert!(told(&mut alone).is_incomplete);
        alone.osd.shared.groups[0].epoch = expected.epoch;
        assert!(!told(&mut alone).is_incomplete);
        alone.osd.shared.groups[0].config.in_sync = in_sync;
    }

    #[test]
    fn a_candidate_that_is_asked_by_the_primary_that_the_map_names_follows_and_lets_it_begin() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let epoch = next_epoch(&alone);
        alone.is_led_by(PRIMARY, epoch);
        alone.osd.shared.groups[0].standing.claims();
        assert_eq!(state(&alone), State::Candidate);
        alone.now = alone.now + Duration::from_secs(1);
        alone.query(link, PG, 1, epoch);
        assert_eq!((state(&alone), alone.io.positions_told(link)), (State::Replica, 1));
        assert_eq!(alone.osd.shared.groups[0].pauses.claim_after, alone.now + CLAIM_PAUSE);
    }

    fn next_epoch(alone: &Alone) -> Epoch {
        Epoch(alone.osd.shared.groups[0].epoch.0 + 1)
    }

    #[test]
    fn a_primary_that_the_map_names_is_told_where_this_member_stands_and_obeyed() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let epoch = next_epoch(&alone);
        alone.is_led_by(PRIMARY, epoch);
        alone.query(link, PG, 1, epoch);
        assert_eq!(alone.io.positions_told(link), 1);
        let group = &alone.osd.shared.groups[0];
        assert!(!group.is_led_here() && group.epoch == epoch && group.leader == Some(PRIMARY));
    }

    #[test]
    fn what_is_asked_before_the_map_shows_it_is_answered_when_it_does() {
        let mut alone = Alone::new();
        let (link, other) = (alone.connect(PRIMARY), alone.connect(OsdId(2)));
        let epoch = next_epoch(&alone);
        // Two say that they claimed it; the map tells who did.
        for link in [other, link] {
            alone.query(link, PG, 1, epoch);
        }
        assert_eq!((alone.io.positions_told(link), alone.io.positions_told(other)), (0, 0));
        assert!(alone.osd.shared.groups[0].is_active(), "it serves as if nobody had asked");
        // A map of something else.
        alone.is_led_by(OsdId(0), Epoch(epoch.0 - 1));
        assert_eq!((alone.io.positions_told(link), alone.osd.router.kept.len()), (0, 2));
        alone.is_led_by(PRIMARY, epoch);
        assert_eq!((alone.io.positions_told(link), alone.io.positions_told(other)), (1, 0));
        let group = &alone.osd.shared.groups[0];
        assert!(group.epoch == epoch && group.leader == Some(PRIMARY));
        assert_eq!(alone.osd.router.kept.len(), 0);
    }

    #[test]
    fn what_is_asked_by_an_epoch_that_the_map_passes_over_is_forgotten() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let epoch = next_epoch(&alone);
        alone.query(link, PG, 1, epoch);
        let later = Epoch(epoch.0 + 1);
        alone.is_led_by(PRIMARY, later);
        assert_eq!((alone.io.positions_told(link), alone.osd.router.kept.len()), (0, 0));
        assert_eq!(alone.osd.shared.groups[0].leader, None);
        alone.query(link, PG, 1, later);
        assert_eq!(alone.io.positions_told(link), 1);
    }

    #[test]
    fn an_epoch_that_nobody_claimed_stops_no_group_for_however_long_it_is_asked_by() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let epoch = next_epoch(&alone);
        for lie in [epoch, Epoch(epoch.0 + 1000), Epoch(u32::MAX)] {
            alone.query(link, PG, 1, lie);
        }
        alone.run();
        assert!(alone.osd.shared.groups[0].is_active());
        // Nor does it keep this OSD from obeying whoever is the primary afterwards.
        let heir = alone.connect(OsdId(2));
        alone.is_led_by(OsdId(2), epoch);
        alone.query(heir, PG, 1, epoch);
        assert_eq!((alone.io.positions_told(heir), alone.io.positions_told(link)), (1, 0));
        // What was kept ends with its link.
        let now = alone.now;
        alone.osd.handle_closed(now, link, "a test", &mut alone.io);
        alone.is_led_by(OsdId(2), epoch);
        assert_eq!(alone.osd.router.kept.len(), 0);
    }

    #[test]
    fn who_is_to_become_a_member_is_asked_before_it_hears_of_that() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let young = PgId { pool: PoolId(2), index: 0 };
        let epoch = Epoch(5);
        alone.query(link, young, 1, epoch);
        assert_eq!((alone.io.positions_told(link), alone.osd.router.kept.len()), (0, 1));
        let mut map = (*alone.osd.shared.volumes.map).clone();
        map.revision += 1;
        map.pools.insert(young.pool, map.pools[&PG.pool].clone());
        let config = PgConfig { epoch, primary: PRIMARY, in_sync: vec![PRIMARY], ..PgConfig::default() };
        map.pgs.insert(young, config);
        map.targets.insert(young, vec![PRIMARY]);
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        assert_eq!(
            (alone.io.positions_told(link), alone.osd.router.kept.len()),
            (0, 1),
            "it is no member yet"
        );
        map.revision += 1;
        map.targets.insert(young, vec![PRIMARY, OsdId(0)]);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(alone.io.positions_told(link), 1);
    }

    #[test]
    fn a_query_of_an_older_epoch_gets_no_answer_and_changes_nothing() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        let epoch = alone.osd.shared.groups[0].epoch;
        alone.query(link, PG, 1, epoch);
        assert_eq!(alone.io.positions_told(link), 0);
        assert!(alone.osd.shared.groups[0].is_active(), "it leads that epoch itself");
    }

    #[test]
    fn a_position_is_told_when_nothing_is_on_its_way_to_the_drive_any_more() {
        let mut alone = Alone::new();
        let link = alone.connect(PRIMARY);
        alone.osd.shared.groups[0].staged_count += 1;
        let epoch = next_epoch(&alone);
        alone.is_led_by(PRIMARY, epoch);
        alone.query(link, PG, 1, epoch);
        assert_eq!(alone.io.positions_told(link), 0);
        alone.osd.shared.groups[0].staged_count -= 1;
        alone.with(|_, cx| answer_pending(cx, 0));
        assert_eq!(alone.io.positions_told(link), 1);
    }

    #[test]
    fn the_order_of_a_group_that_was_given_up_begins_behind_all_that_anybody_may_have_of_it() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        let last = |alone: &Alone| alone.osd.store().pg_position(PG).map(|(_, sequence)| sequence);
        for history in [History(1), History(2)] {
            let mark = history.floor().next();
            alone.begins_anew(history);
            assert_eq!(last(&alone), Some(mark));
            alone.write(key);
            // The next epoch, which this OSD claims by itself, goes on from there.
            alone.with(|_, cx| end(cx, 0, "a test"));
            alone.run();
            assert_eq!(last(&alone), Some(mark.next().next()));
            let group = &alone.osd.shared.groups[0];
            assert!(group.is_active() && group.config.history == history);
        }
    }

    #[test]
    fn the_order_of_a_group_goes_on_in_the_history_of_its_log_when_the_registry_was_set_back() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let later = History(3);
        alone.begins_anew(later);
        alone.write(key);
        // To a time before the group was given up.
        alone.restart(map(1));
        let (_, last) = alone.osd.store().pg_position(PG).unwrap();
        let group = &alone.osd.shared.groups[0];
        assert!(group.is_active() && last.history() == later);
        assert_eq!(group.config.history, later);
        let next = group.standing.primary().unwrap().next_sequence;
        assert!(may_join(group.config.history, last, next), "nobody could catch up");
    }

    #[test]
    fn an_order_that_somebody_brought_to_the_end_of_its_history_goes_on_in_the_next_one() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let next = History(1).floor();
        alone.with(|_, cx| {
            let (epoch, token) = (cx.groups[0].epoch, cx.ledger.next_token());
            let last = Sequence(next.0 - 1);
            cx.disk.store.stage_mark(RecordKind::Mark, PG, 1, epoch, last, token).unwrap();
            cx.note_staged(0, StagedRecord::Left);
        });
        alone.run();
        alone.with(|_, cx| end(cx, 0, "a test"));
        alone.run();
        let last = |alone: &Alone| alone.osd.store().pg_position(PG).map(|(_, sequence)| sequence);
        assert_eq!(last(&alone), Some(next.next()));
        alone.write(key);
        assert_eq!(last(&alone), Some(next.next().next()));
        assert_eq!(alone.osd.shared.groups[0].config.history, History(1));
    }

    #[test]
    fn a_member_that_says_it_is_beyond_all_others_is_not_believed() {
        let far = Sequence(2 * AHEAD_MAX);
        // Should it be true, what is of a later history counts.
        let later = Sequence(u64::MAX);
        for (lie, min_size, is_left_out) in [(far, 1, true), (far, 2, false), (later, 1, false)] {
            let mut pair = Pair::new();
            pair.alone.osd.shared.groups[0].wanted.min_size = min_size;
            pair.asks_its_members();
            let state = LogState {
                pg: PG,
                epoch: pair.alone.osd.shared.groups[0].epoch,
                last_sequence: lie,
                log_begins: Sequence(0),
                is_incomplete: false,
                may_lack_tail: false,
            };
            pair.hears(&state.encode(std::iter::empty()));
            let group = &pair.alone.osd.shared.groups[0];
            assert_eq!(group.standing.unfit(), is_left_out.then_some(REPLICA), "{lie}");
            assert_eq!(group.state() == State::Stopped, !is_left_out, "{lie}: {group:?}");
            // Asked once more it says how it is.
            let mut turns = 0;
            while !pair.alone.osd.shared.groups[0].is_active() {
                pair.turn();
                turns += 1;
                assert!(turns < 700, "{lie}: {:?}", pair.alone.osd.shared.groups[0]);
            }
            let config = &pair.alone.osd.shared.groups[0].config;
            assert_eq!(config.in_sync.len(), 2 - usize::from(is_left_out), "{lie}");
            assert!(config.history.is_first());
        }
    }

    #[test]
    fn a_learner_that_says_it_is_beyond_all_others_joins() {
        let mut pair = Pair::new();
        pair.alone.osd.shared.groups[0].wanted.min_size = 1;
        pair.alone.with(|_, cx| end(cx, 0, "a test"));
        let mark = LogEntry {
            epoch: pair.alone.osd.shared.groups[0].epoch,
            sequence: Sequence(2 * AHEAD_MAX),
            layer: VOLUME.first_layer(),
            object: 0,
            first_block: 0,
            block_count: 0,
            origin: 0,
        };
        pair.entries.push(mark);
        let mut turns = 0;
        while pair.alone.osd.shared.groups[0].learners().iter().all(|learner| learner.joined.is_none()) {
            pair.turn();
            turns += 1;
            assert!(turns < 700, "{:?}", pair.alone.osd.shared.groups[0]);
        }
    }
}
