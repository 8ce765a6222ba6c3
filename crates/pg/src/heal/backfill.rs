//! How a learner is brought up to date while its group serves.
//!
//! A learner is asked where it stands, as a replica is. Then it *joins*: its log begins anew with a mark, and from
//! there on it receives every write like a replica, in the same stream. What it lacks from before is *pushed* to
//! it in that stream too, until it has everything; then the primary asks for a configuration in which it is in
//! sync, and the epoch begins with it.
//!
//! What it lacks is known from the logs, if it was in sync until they part. Else it says of each of its objects up to which
//! sequence it surely had what the group's order has, and which of its blocks may have got something that came to nothing;
//! it is given those, and what has changed since by the index here ([`is_behind`]). Contents are not compared: different ones
//! may have the same checksum, by chance or by somebody's design. Writes that were under way when it joined are in neither,
//! so their blocks are pushed in any case.
//!
//! # Why a push never undoes a newer write
//! A push is an operation on its blocks like any other: it waits for those before it and holds back those behind
//! it until the blocks were read and sent. So whatever is ordered later stands behind it in the stream.
//!
//! # Why a learner that fell behind is not taken for whole
//! Its log begins at its join, and says durably that it is incomplete until an epoch begins in which it is in
//! sync. Should it be a learner again before that, its log is not used; what it had before its join, and how far it got
//! after it ([`Kind::Reached`]), its store keeps. Nobody but the registry's configuration makes it in sync, and the primary
//! asks for that only when the learner has every push on stable media.

use crate::broken::Sabotage;
use crate::context::{Context, Task};
use crate::disk::Disk;
use crate::epoch::differences::{agreement, differences, runs_alike};
use crate::epoch::{self, claim, query};
use crate::group::Groups;
use crate::group::learner::{Comparison, Joined, Learner, Promotion, Work};
use crate::group::position::MemberPosition;
use crate::group::role::Change;
use crate::io::Io;
use crate::journal::Milestone;
use crate::links::{Awaited, ToLearner};
use crate::operation::{OperationId, OperationKind, OperationState, Purpose};
use crate::pace::PUSH_BLOCKS;
use base::{
    BLOCK_BYTES, BlockRange, Epoch, LogEntry, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, Sequence, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wire::{
    Activate, BlockBits, Blocks, GroupEpoch, Kind, ListObjects, ObjectEpoch, ObjectHeld, Objects, Page,
    Position, Push, PushEntry, Query, Status,
};
use zerocopy::IntoBytes;

/// Blocks on their way to one learner.
const PUSHED_MAX: u32 = 4 * PUSH_BLOCKS as u32;
/// A push counts as so many blocks at least: each is a read, a message and an acknowledgement.
const PUSHED_LEAST: u16 = 16;
/// A push is from so many places of the drive at most: that many reads stand before what clients want read.
const PUSH_PARTS_MAX: usize = 16;
/// Objects after which a learner is told how far it got: should it be interrupted, it goes on from there.
const REACHED_EVERY: usize = 64;
/// Learners that an OSD brings up to date at the same time.
const LEARNERS_MAX: usize = 4;
/// How long a learner may take to answer before it is given up for now.
const LEARNER_SILENCE_MAX: Duration = Duration::from_secs(5);
/// The pause after a learner was given up.
const LEARN_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a learner that is full or whose primary is damaged is tried again.
const LEARN_PAUSE_LONG: Duration = Duration::from_secs(10);

fn cost_of(block_count: u16) -> u16 {
    block_count.max(PUSHED_LEAST)
}

/// Those that an OSD brings up to date, in the groups it leads.
#[derive(Debug, Default)]
pub(crate) struct Backfill {
    /// Attempts at learners that were begun.
    sessions: u32,
    /// Groups that wait for a learner's last acknowledgements to take it in.
    promotions: Vec<u32>,
    /// Groups with members that are being brought up to date; some may have none any more.
    learning: Vec<u32>,
}

impl Backfill {
    /// Begins with learners that wait for it, those of the most degraded groups first.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        for index in cx.groups.indices() {
            let is_silent = |learner: &Learner| {
                learner.is_owing() && cx.now.since(learner.heard_at) >= LEARNER_SILENCE_MAX
            };
            let mut lags = |learner: &Learner| match cx.links.osd_mut(learner.link) {
                Some(peer) => {
                    let unread_bytes = cx.io.unsent_bytes(learner.link);
                    peer.unacknowledged.lags(learner.session, unread_bytes) || is_silent(learner)
                }
                None => true,
            };
            let group = &cx.groups[index];
            let is_wanted = |learner: &Learner| group.wanted_learners().any(|osd| osd == learner.osd);
            let behind = group.learners().iter().find(|learner| lags(learner) || !is_wanted(learner));
            if let Some(osd) = behind.map(|learner| learner.osd) {
                give_up(cx, index, osd, LEARN_PAUSE);
            }
        }
        // Should whoever held the others back be gone, nothing else sets them going.
        self.recover_others(cx, u32::MAX);
        let mut under_way: usize = cx.groups.iter().map(|group| group.learners().len()).sum();
        for (_, index, osd) in waiting(cx) {
            if under_way >= LEARNERS_MAX {
                return;
            }
            let Some(link) = cx.links.ready(osd) else { continue };
            let unread_bytes = cx.io.unsent_bytes(link);
            if cx.links.to(osd).is_none_or(|peer| !peer.unacknowledged.may_learn(unread_bytes)) {
                continue;
            }
            let group = &mut cx.groups[index];
            self.sessions += 1;
            let (session, heard_at) = (self.sessions, cx.now);
            let Some(learning) = group.learning_mut() else { continue };
            learning.asked.insert(osd);
            learning.learners.push(Learner { osd, link, session, heard_at, joined: None });
            let (pg, modulus, epoch) = (group.pg, group.modulus, group.epoch);
            cx.io.send(link, &Query { pg, modulus, epoch }.encode());
            if !self.learning.contains(&index) {
                self.learning.push(index);
            }
            under_way += 1;
        }
    }

    /// A learner says where it stands: it joins.
    pub(crate) fn learner_stands(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        index: u32,
        osd: OsdId,
        position: &Position<'_>,
    ) {
        if position.head.last_sequence.history() > cx.groups[index].config.history {
            let pg = cx.groups[index].pg;
            cx.note(format!(
                "{osd} says that it has what was written to {pg} after the group was given up, of which the registry tells nothing; \
                 it is not overwritten: if the registry was set back, stop {}, so that {osd} leads, or else replace {osd}",
                cx.me.id
            ));
            return give_up(cx, index, osd, LEARN_PAUSE);
        }
        let group = &mut cx.groups[index];
        let (pg, modulus, epoch) = (group.pg, group.modulus, group.epoch);
        let is_active = group.is_active();
        let Some(learning) = group.learning_mut() else { return };
        let is_cramped = learning.cramped.contains(&osd);
        let Some(learner) = learning.of(osd).filter(|learner| is_active && learner.joined.is_none()) else {
            return;
        };
        let (link, session) = (learner.link, learner.session);
        let own = query::own_position(cx, index);
        let last_sequence = own.last_sequence;
        let theirs = MemberPosition::new(osd, &position.head, position.entries());
        // Its log tells what it lacks only where it is a part of the same history: logs that both go back to the
        // first write are, and those that share an entry that members had only in agreement. The same numbers may
        // stand for other writes.
        let is_whole = own.is_whole() && theirs.is_whole();
        let members = [own, theirs];
        let tells = !position.head.is_incomplete && (is_whole || agreement(&members).is_some());
        let by_log = if tells && !is_cramped { differences(pg, modulus, &members).ok() } else { None };
        cx.pass(match by_log {
            Some(_) => Milestone::LearnerByLog,
            None if is_cramped => Milestone::LearnerFrees,
            None => Milestone::LearnerByVersion,
        });
        let [MemberPosition { entries, log_begins, .. }, _] = members;
        let (mut work, mut comparison) = match by_log {
            Some(found) => (found.into_iter().map(|found| Work::Range(found.range)).collect(), None),
            None => (VecDeque::new(), Some(comparison(cx.disk, pg))),
        };
        let under_way = under_way(cx, index, last_sequence, &mut work);
        if cx.breaks(Sabotage::CountLearner) {
            (work, comparison) = (VecDeque::new(), None);
        }
        let now = cx.now;
        let primary = cx.groups[index].standing.primary_mut().expect("it has a learner");
        let from = primary.next_sequence;
        // Its log begins where this one does.
        let mark = Sequence(log_begins.0.saturating_sub(1));
        let learner = primary.learning.of(osd).expect("it was there a moment ago");
        learner.heard_at = now;
        learner.joined = Some(Joined { from, work, comparison, ..Joined::default() });
        let join = Activate { pg, epoch, mark, join: Some(from) }.encode();
        cx.send_replicated(link, Awaited::Learner { group: index, session, sent: ToLearner::Mark }, &join);
        // Its log shall be as good as any member's: a client may ask it whether a write was done. What is under way
        // is no part of this OSD's log yet.
        for entry in entries.iter().chain(&under_way) {
            let bytes = PushEntry { pg, epoch, entry: *entry }.encode();
            let awaited = Awaited::Learner { group: index, session, sent: ToLearner::Entry };
            cx.send_replicated(link, awaited, &bytes);
        }
        self.recover_next(cx, index, osd);
    }

    /// A learner did not apply a message.
    pub(crate) fn learner_refused(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        index: u32,
        session: u32,
        osd: OsdId,
        status: Status,
    ) {
        let group = &mut cx.groups[index];
        let pg = group.pg;
        if group.standing.promotion().is_some_and(|promotion| promotion.osd == osd) {
            group.standing.promotion_failed();
        }
        let Some(learning) = group.learning_mut() else { return };
        if learning.of(osd).is_some_and(|learner| learner.session == session) {
            let mut pause = LEARN_PAUSE;
            if status == Status::NoSpace {
                pause = LEARN_PAUSE_LONG;
                learning.cramped.insert(osd);
            }
            cx.pass(Milestone::LearnerRefused);
            cx.note(format!("{osd} could not go on catching up in pg {pg}: {status:?}"));
            give_up(cx, index, osd, pause);
        }
    }

    /// A learner has a push, or the mark of its join, on stable media.
    pub(crate) fn learner_has(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        index: u32,
        session: u32,
        sent: ToLearner,
    ) {
        let now = cx.now;
        let learning = cx.groups[index].learning_mut();
        let Some(learner) = learning.and_then(|learning| learning.of_session(session)) else { return };
        learner.heard_at = now;
        let osd = learner.osd;
        let Some(joined) = &mut learner.joined else { return };
        match sent {
            ToLearner::Entry | ToLearner::Write { .. } => {}
            ToLearner::Mark => joined.has_mark = true,
            ToLearner::Push { cost } => joined.pushed = joined.pushed.saturating_sub(u32::from(cost)),
        }
        self.recover_next(cx, index, osd);
        // What this one has on stable media makes room for another group's.
        self.recover_others(cx, index);
    }

    /// Groups that waited for a learner's last acknowledgement begin their epochs, if it is there.
    pub(crate) fn advance_promotions(&mut self, cx: &mut Context<'_, impl Io>) {
        for group in std::mem::take(&mut self.promotions) {
            claim::advance(cx, group);
            if cx.groups[group].standing.promotion().is_some() && !cx.groups[group].is_claiming() {
                self.promotions.push(group);
            }
        }
    }

    /// Goes on with the learners of other groups, one after the other in turn.
    fn recover_others(&mut self, cx: &mut Context<'_, impl Io>, index: u32) {
        self.learning.retain(|index| !cx.groups[*index].learners().is_empty());
        if self.learning.is_empty() || !self.may_push(cx) {
            return;
        }
        self.learning.sort_unstable_by_key(|other| (*other <= index, *other));
        for other in self.learning.clone() {
            for at in 0..cx.groups[other].learners().len() {
                if let Some(osd) = cx.groups[other].learners().get(at).map(|learner| learner.osd) {
                    self.recover_next(cx, other, osd);
                }
            }
            if !self.may_push(cx) {
                return;
            }
        }
    }

    /// Whether one more push may be started for the sake of having one copy more.
    fn may_push(&self, cx: &Context<'_, impl Io>) -> bool {
        let learners = self.learning.iter().flat_map(|index| cx.groups[*index].learners());
        cx.pace.may_push(cx.now, learners.map(Learner::pushed).sum())
    }

    /// The pause behind a push is over.
    pub(crate) fn go_on(&mut self, cx: &mut Context<'_, impl Io>) {
        cx.pace.pause_ends();
        self.recover_others(cx, u32::MAX);
    }

    /// Gives a learner the next of what it lacks. When nothing is left, asks for it to be in sync.
    fn recover_next(&mut self, cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId) {
        loop {
            // Where too few are in sync for writes, clients wait for nothing but this.
            let (may_push, push_blocks) = match cx.groups[index].is_writable() {
                true => (self.may_push(cx), cx.pace.push_blocks(cx.now)),
                false => (true, PUSH_BLOCKS),
            };
            let group = &mut cx.groups[index];
            let (pg, epoch) = (group.pg, group.epoch);
            let Some(learning) = group.learning_mut() else { return };
            let is_cramped = learning.cramped.contains(&osd);
            let Some(learner) = learning.of(osd) else { return };
            let (link, session) = (learner.link, learner.session);
            let Some(joined) = &mut learner.joined else { return };
            // Until its log says that it is catching up, nothing of what it has may change.
            if !joined.has_mark
                || joined.blocks_awaited.is_some()
                || joined.pushed >= PUSHED_MAX
                || !may_push && !joined.work.is_empty()
            {
                return;
            }
            match (joined.work.pop_front(), &mut joined.comparison) {
                (Some(Work::Range(range)), _) => {
                    let block_count = range.block_count.min(push_blocks);
                    let cost = cost_of(block_count);
                    joined.pushed += u32::from(cost);
                    joined.put_back(range.behind(block_count));
                    cx.pace.push_begins(cx.now, block_count, cx.volumes.map.recovery_share);
                    let purpose = Purpose::Backfill { learner: osd, session, cost };
                    push(cx, index, purpose, BlockRange { block_count, ..range });
                }
                (Some(Work::Object(key, through)), _) => {
                    joined.blocks_awaited = Some((key, through));
                    return cx.io.send(link, &ObjectEpoch { key, epoch }.encode(Kind::ListBlocks));
                }
                (Some(reached @ Work::Reached(_)), _)
                    if joined.pushed > 0 && !cx.me.broken.is(Sabotage::ReachedEarly) =>
                {
                    return joined.work.push_front(reached);
                }
                (Some(Work::Reached(key)), _) => {
                    let reached = ObjectEpoch { key, epoch }.encode(Kind::Reached);
                    let awaited = Awaited::Learner { group: index, session, sent: ToLearner::Entry };
                    cx.send_replicated(link, awaited, &reached);
                }
                (None, Some(comparison)) => {
                    if !comparison.is_awaited {
                        comparison.is_awaited = true;
                        let after = comparison.after;
                        cx.io.send(link, &ListObjects { pg, epoch, after }.encode());
                    }
                    return;
                }
                (None, None) if joined.pushed > 0 => return,
                (None, None) if !is_cramped => return self.learner_is_whole(cx, index, osd, session),
                (None, None) => {
                    // It has nothing too much any more: now for what it lacks.
                    joined.comparison = Some(comparison(cx.disk, pg));
                    learning.cramped.remove(&osd);
                }
            }
        }
    }

    fn learner_is_whole(&mut self, cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId, session: u32) {
        let Some(link) = cx.links.ready(osd) else { return };
        cx.pass(Milestone::LearnerIsWhole);
        let group = &cx.groups[index];
        let whole = GroupEpoch { pg: group.pg, epoch: group.epoch }.encode(Kind::Whole);
        cx.send_replicated(link, Awaited::Learner { group: index, session, sent: ToLearner::Entry }, &whole);
        epoch::end(cx, index, &format!("{osd} has caught up"));
        // From here on nothing more is acknowledged. What was, it was sent.
        let through = cx.links.osd_mut(link).map_or(0, |peer| peer.sent);
        let group = &mut cx.groups[index];
        if let Some(primary) = group.standing.primary_mut() {
            primary.change = Change::TakeIn(Promotion { osd, link, through, since: cx.now });
        }
        // At once: nobody is served meanwhile.
        group.pauses.claim_after = cx.now;
        self.promotions.push(index);
        cx.turn.next_tick = cx.now;
    }

    /// The drive answered the read of a push.
    pub(crate) fn push_was_read(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        let (group, damage) = (operation.group, operation.first_damage());
        if let Some((block, _)) = damage
            && cx.wait_for_mend(id, block)
        {
            return;
        }
        cx.groups[group].line.ended(id);
        match damage {
            None => send_push(cx, id),
            Some((block, _)) => self.push_is_damaged(cx, id, block),
        }
        cx.then(Task::StartWaiting { group });
    }

    /// A push met a block of which nobody who was asked has a sound copy.
    fn push_is_damaged(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId, block: u16) {
        let operation = cx.operations.live(id);
        let (index, range, purpose) = (operation.group, operation.range, operation.purpose);
        let Purpose::Backfill { learner: osd, session, cost } = purpose else { return cx.forget(id) };
        if !cx.damage.is_lost_for_good(range.key, block) {
            // A member that is away may have it, or a drive read it another time. Without it the learner would keep
            // something old that looks sound.
            cx.forget(id);
            return give_up(cx, index, osd, LEARN_PAUSE_LONG);
        }
        if range.block_count == 1 {
            // The learner shall fail reads of it as everybody does: it is no reason to have one copy less of the rest.
            return send_push(cx, id);
        }
        cx.forget(id);
        let learner = cx.groups[index].learner_mut(osd).filter(|learner| learner.session == session);
        let Some(Learner { joined: Some(joined), .. }) = learner else { return };
        joined.pushed = joined.pushed.saturating_sub(u32::from(cost));
        let (first_block, end) = (range.first_block, range.blocks().end);
        for (from, to) in [(block + 1, end), (block, block + 1), (first_block, block)] {
            joined.put_back(BlockRange { first_block: from, block_count: to - from, ..range });
        }
        self.recover_next(cx, index, osd);
    }

    /// A learner says which objects it has.
    pub(crate) fn handle_objects(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        osd: OsdId,
        objects: &Objects<'_>,
    ) {
        let Page { pg, epoch, is_last } = objects.head;
        let Some((index, is_cramped, learner)) = heard(cx.groups, osd, pg, epoch) else { return };
        let Some(joined) = &mut learner.joined else { return };
        let Some(comparison) = joined.comparison.as_mut().filter(|one| one.is_awaited) else { return };
        comparison.is_awaited = false;
        learner.heard_at = cx.now;
        let theirs: BTreeMap<(VolumeId, u32), ObjectHeld> =
            objects.entries().map(|entry| ((entry.volume, entry.object), entry)).collect();
        // A page that is not the last goes as far as its last entry.
        let end = if is_last { None } else { theirs.keys().next_back().copied() };
        let is_on_page = |key: &mut ObjectKey| end.is_none_or(|end| (key.volume, key.object) <= end);
        let own: Vec<ObjectKey> = std::iter::from_fn(|| comparison.own.pop_front_if(is_on_page)).collect();
        comparison.after = end;
        if is_last {
            joined.comparison = None;
        }
        let known: BTreeSet<_> = own.iter().map(|key| (key.volume, key.object)).collect();
        let mut work = Vec::new();
        for (volume, object) in theirs.keys().filter(|key| !known.contains(key)) {
            // The primary has nothing of it, unless it was made since: whatever it has is pushed.
            let key = ObjectKey { pg, volume: *volume, object: *object };
            work.push(Work::Range(BlockRange::whole(key)));
        }
        for (number, key) in (1..).zip(&own) {
            match theirs.get(&(key.volume, key.object)) {
                None if is_cramped => {}
                None => work.push(Work::Range(BlockRange::whole(*key))),
                Some(held) if is_behind(cx, index, key, held) => {
                    work.push(Work::Object(*key, held.through));
                }
                Some(_) => {}
            }
            if number % REACHED_EVERY == 0 && !is_cramped {
                work.push(Work::Reached(*key));
            }
        }
        if let Some((volume, object)) = end.filter(|_| !is_cramped) {
            work.push(Work::Reached(ObjectKey { pg, volume, object }));
        }
        if let Some(Learner { joined: Some(joined), .. }) = cx.groups[index].learner_mut(osd) {
            joined.work.extend(work);
        }
        self.recover_next(cx, index, osd);
    }

    /// A learner says which blocks of an object it has: those that it lacks, has too much, or may have as they came to
    /// nothing are pushed.
    pub(crate) fn handle_blocks(&mut self, cx: &mut Context<'_, impl Io>, osd: OsdId, blocks: &Blocks<'_>) {
        let ObjectEpoch { key, epoch } = blocks.of;
        let Some((index, is_cramped, learner)) = heard(cx.groups, osd, key.pg, epoch) else { return };
        let Some(joined) = &mut learner.joined else { return };
        let Some((_, through)) = joined.blocks_awaited.take_if(|(awaited, _)| *awaited == key) else {
            return;
        };
        learner.heard_at = cx.now;
        let mut own = [None; OBJECT_BLOCKS];
        cx.disk.store.for_each_block(&key, |block, _, changed| own[usize::from(block)] = Some(changed));
        let is_in = |bits: &BlockBits, block: u16| bits[usize::from(block) / 8] >> (block % 8) & 1 != 0;
        let is_wrong = |block: u16| match own[usize::from(block)] {
            None => is_in(blocks.allocated, block),
            Some(_) if is_cramped => false,
            Some(changed) => {
                changed > through || !is_in(blocks.allocated, block) || is_in(blocks.doubted, block)
            }
        };
        // Before what is to come behind this object.
        let wrong: Vec<_> =
            runs_alike(BlockRange::whole(key).blocks(), is_wrong).into_iter().filter(|run| run.2).collect();
        for (first_block, block_count, _) in wrong.into_iter().rev() {
            joined.put_back(BlockRange { key, first_block, block_count });
        }
        self.recover_next(cx, index, osd);
    }
}

/// Whether a learner may lack something of an object that both have, or have something of it that nobody else has. What was
/// only zeroed since has left no trace in the index here, but blocks that the learner has too many: of those that are here
/// none has changed, so it has them. While something is under way on the object, that is not so: the learner may have zeroed
/// blocks that are still here, and their number tells nothing then.
fn is_behind(cx: &Context<'_, impl Io>, index: u32, key: &ObjectKey, held: &ObjectHeld) -> bool {
    let store = &cx.disk.store;
    store.last_changed(key) > held.through
        || held.has_doubts != 0
        || held.block_count != store.block_count(key)
        || cx.must_wait(index, &BlockRange::whole(*key))
}

/// The learner that says something in its group's present epoch: the group, whether the learner is to free some room before
/// anything else, and how far it is.
fn heard(groups: &mut Groups, osd: OsdId, pg: PgId, epoch: Epoch) -> Option<(u32, bool, &mut Learner)> {
    let index = groups.find(pg)?;
    let group = &mut groups[index];
    let is_current = group.epoch == epoch;
    let learning = group.learning_mut()?;
    let is_cramped = learning.cramped.contains(&osd);
    let learner = learning.of(osd).filter(|_| is_current)?;
    Some((index, is_cramped, learner))
}

/// The learners that wait to be begun with: how many are in sync in their group, the group, and who.
fn waiting(cx: &Context<'_, impl Io>) -> Vec<(usize, u32, OsdId)> {
    let mut waiting = Vec::new();
    for (index, group) in (0..).zip(cx.groups.iter()) {
        let Some(primary) = group.standing.primary() else { continue };
        if !group.is_active() || cx.now < primary.learning.after {
            continue;
        }
        let waits = |osd: &OsdId| !group.learners().iter().any(|learner| learner.osd == *osd);
        let waiting_here = group.wanted_learners().filter(waits).filter(|osd| cx.can_follow(*osd));
        waiting.extend(waiting_here.map(|osd| (group.config.in_sync.len(), index, osd)));
    }
    waiting.sort_unstable();
    waiting
}

fn give_up(cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId, pause: Duration) {
    cx.pass(Milestone::LearnerGivenUp);
    if let Some(learning) = cx.groups[index].learning_mut() {
        learning.forget(osd);
        learning.after = cx.now + pause;
    }
}

fn comparison(disk: &Disk, pg: PgId) -> Comparison {
    Comparison { own: disk.objects_of(pg).into(), after: None, is_awaited: false }
}

/// What is ordered and not yet durable here, which is neither in the log nor in the index: its blocks are work, whatever
/// else is. Answers the entries that the log is yet to get, in order.
fn under_way(
    cx: &mut Context<'_, impl Io>,
    index: u32,
    last_sequence: Sequence,
    work: &mut VecDeque<Work>,
) -> Vec<LogEntry> {
    let group = &cx.groups[index];
    let mut entries: Vec<LogEntry> = Vec::new();
    for id in group.line.under_way() {
        let Some(operation) = cx.operations.get(id) else { continue };
        if operation.state != OperationState::Replicating {
            continue;
        }
        let (epoch, sequence, origin) = (group.epoch, operation.order.sequence, operation.attempt.origin);
        let BlockRange { key: ObjectKey { volume, object, .. }, first_block, block_count } = operation.range;
        if sequence > last_sequence {
            entries.push(LogEntry { epoch, sequence, volume, object, first_block, block_count, origin });
        }
        work.push_back(Work::Range(operation.range));
    }
    entries.sort_unstable_by_key(|entry| entry.sequence);
    entries
}

/// Starts a push, or puts it behind what is under way on its blocks.
fn push(cx: &mut Context<'_, impl Io>, index: u32, purpose: Purpose, range: BlockRange) {
    let must_wait = cx.must_wait(index, &range);
    let id = cx.operations.add_for(OperationKind::Push, purpose, index, range);
    if must_wait {
        cx.wait(id);
    } else {
        start_push(cx, id);
    }
}

/// Reads what a push is to bring: its blocks are free.
pub(crate) fn start_push(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let operation = cx.operations.live(id);
    let (index, range, purpose) = (operation.group, operation.range, operation.purpose);
    let (found, is_zeros) = cx.disk.look_up_run(operation, PUSH_PARTS_MAX);
    if let Purpose::Backfill { learner, .. } = purpose
        && let Some(Learner { joined: Some(joined), .. }) = cx.groups[index].learner_mut(learner)
    {
        joined.put_back(range.behind(found));
    }
    if is_zeros {
        return send_push(cx, id);
    }
    cx.operations.live(id).state = OperationState::Reading;
    if !cx.breaks(Sabotage::StalePush) {
        cx.hold(id);
    }
    cx.read_parts(id);
}

/// Sends what was read to the learner, and ends the operation.
fn send_push(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let operation = cx.operations.live(id);
    let index = operation.group;
    let group = &mut cx.groups[index];
    let newest = group.standing.primary().map_or(Sequence(0), |primary| primary.last_sequence());
    let push = Push { range: operation.range, epoch: group.epoch };
    let kind = match operation.parts.first() {
        // Of what is lost there is nothing: what was read was given back.
        None => Kind::PushLost,
        Some(part) if part.location.is_none() => Kind::PushZero,
        Some(_) => Kind::PushWrite,
    };
    // It may have been given up meanwhile, and even be asked anew: then nothing is owed to it.
    if let Purpose::Backfill { learner, session, cost } = operation.purpose
        && let Some(learner) = group.learner_mut(learner).filter(|learner| learner.session == session)
    {
        let (link, sent) = (learner.link, ToLearner::Push { cost });
        cx.send_replicated(link, Awaited::Learner { group: index, session, sent }, &push.encode(kind));
        let operation = cx.operations.live(id);
        if kind != Kind::PushZero {
            cx.io.send(link, operation.checksums.as_bytes());
            for block in operation.range.blocks() {
                // Its blocks are held: they are what was read. What is rounded is no later than what was ordered.
                let changed = cx.disk.store.changed(&operation.range.key, block);
                let changed =
                    changed.filter(|_| !cx.me.broken.is(Sabotage::ForgetChanged)).unwrap_or_default();
                cx.io.send(link, &changed.min(newest).0.to_le_bytes());
            }
        }
        if kind == Kind::PushWrite {
            for part in &mut operation.parts {
                let buffer = part.buffer.take().expect("it was read without damage");
                cx.io.send_shared(link, buffer, 0..usize::from(part.block_count) * BLOCK_BYTES);
            }
            cx.journal.pushed_bytes += u64::from(operation.range.block_count) * BLOCK_BYTES as u64;
        }
    }
    cx.forget(id);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::io::reads_data;
    use crate::links::inquiries::UNREAD_BYTES_MAX;
    use crate::replication::order;
    use crate::testing::{Alone, PG, Pair, VOLUME, ack};
    use base::map::{ClusterMap, OsdInfo};
    use base::{History, LinkId, crc32c};
    use std::sync::Arc;
    use wire::{LogState, Message};
    use zerocopy::little_endian::U32;

    #[test]
    fn whatever_a_member_has_of_an_earlier_history_is_older_than_what_was_written_in_this_one() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        let this = History(1);
        alone.begins_anew(this);
        alone.write(key);
        let ObjectKey { volume, object, .. } = key;
        let held = |through| ObjectHeld { volume, object, block_count: 1, has_doubts: 0, through };
        let mut is_behind = |through| alone.with(|_, cx| is_behind(cx, 0, &key, &held(through)));
        assert!(is_behind(Sequence(this.floor().0 - 1)), "however much was written before");
        assert!(!is_behind(this.floor().next().next()));
    }

    #[test]
    fn the_most_degraded_groups_are_brought_up_to_date_first() {
        let mut alone = Alone::with_groups(3);
        let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
        for other in 1..4 {
            let address = Some(([127, 0, 0, 1], 7000).into());
            map.osds.insert(OsdId(other), OsdInfo { address, ..OsdInfo::default() });
        }
        for other in 1..4 {
            alone.connect(OsdId(other));
        }
        for (group, in_sync) in alone.osd.shared.groups.iter_mut().zip([3, 1, 2]) {
            group.wanted.target = (0..4).map(OsdId).collect();
            group.config.in_sync = (0..in_sync).map(OsdId).collect();
        }
        let begun = |alone: &mut Alone| -> Vec<usize> {
            alone.with(|router, cx| router.backfill.advance(cx));
            alone.osd.shared.groups.iter().map(|group| group.learners().len()).collect()
        };
        // Four at a time: all three that the group of one copy lacks, one of the two of the next.
        assert_eq!(begun(&mut alone), [0, 3, 1]);
        assert_eq!(alone.osd.router.backfill.learning, [1, 2]);
        assert_eq!(begun(&mut alone), [0, 3, 1], "they stay");
        // One that is wanted no more makes room for another.
        alone.osd.shared.groups[1].wanted.target.pop();
        assert_eq!(begun(&mut alone), [0, 2, 2]);
    }

    /// A group that is to have one member more, and the link to that.
    fn short_of_one() -> (Alone, LinkId) {
        let mut alone = Alone::new();
        let link = lacks_one(&mut alone);
        (alone, link)
    }

    /// All groups are to have one member more. The link to that stands from now on.
    fn lacks_one(alone: &mut Alone) -> LinkId {
        let link = alone.connect(OsdId(1));
        let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
        let address = Some(([127, 0, 0, 1], 7000).into());
        map.osds.insert(OsdId(1), OsdInfo { address, ..OsdInfo::default() });
        for group in alone.osd.shared.groups.iter_mut() {
            group.wanted.target = vec![OsdId(0), OsdId(1)];
        }
        link
    }

    /// How many learners there are after the next look, when so much is unread.
    fn learners(alone: &mut Alone, link: LinkId, unread_bytes: usize) -> usize {
        alone.io.unread.insert(link, unread_bytes);
        alone.with(|router, cx| router.backfill.advance(cx));
        alone.osd.shared.groups[0].learners().len()
    }

    #[test]
    fn a_learner_that_leaves_too_many_bytes_unread_is_given_up_however_few_messages_they_are() {
        let (mut alone, link) = short_of_one();
        assert_eq!(learners(&mut alone, link, 0), 1);
        let session = alone.osd.router.backfill.sessions;
        let peer = alone.osd.shared.links.osd_mut(link).unwrap();
        let sent = ToLearner::Write { blocks: 1024 };
        (0..9).for_each(|_| peer.sends(Awaited::Learner { group: 0, session, sent }));
        assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX), 1, "it takes some of it");
        assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX + 1), 0);
        // Nor is it begun with before it has taken some of it.
        alone.now = alone.now + LEARN_PAUSE;
        alone.osd.shared.links.osd_mut(link).unwrap().since = alone.now;
        assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX + 1), 0);
        assert_eq!(learners(&mut alone, link, UNREAD_BYTES_MAX), 1);
    }

    #[test]
    fn what_a_member_leaves_unread_that_clients_wrote_to_one_group_does_not_keep_it_from_another() {
        let (mut alone, link) = short_of_one();
        let most = 2 * UNREAD_BYTES_MAX;
        for unread_bytes in [UNREAD_BYTES_MAX + 1, most] {
            assert_eq!(learners(&mut alone, link, unread_bytes), 1, "{unread_bytes} bytes");
        }
        // Nobody was sent so much but who says that it has what it did not read.
        assert_eq!(learners(&mut alone, link, most + 1), 0);
        alone.now = alone.now + LEARN_PAUSE;
        alone.osd.shared.links.osd_mut(link).unwrap().since = alone.now;
        assert_eq!(learners(&mut alone, link, most + 1), 0);
        assert_eq!(learners(&mut alone, link, most), 1);
    }

    /// The OSD gets these bytes on a link.
    fn hears(alone: &mut Alone, link: LinkId, bytes: &[u8]) {
        let Alone { osd, io, now } = alone;
        osd.handle_bytes(*now, link, bytes, io).unwrap();
    }

    /// A learner says that its log ends where its primary's does, goes back to that sequence, and has these entries.
    fn says(alone: &mut Alone, link: LinkId, pg: PgId, log_begins: Sequence, entries: &[LogEntry]) {
        let index = alone.osd.shared.groups.find(pg).unwrap();
        let epoch = alone.osd.shared.groups[index].epoch;
        let (_, last_sequence) = alone.osd.store().pg_position(pg).unwrap();
        let (is_incomplete, may_lack_tail) = (false, false);
        let state = LogState { pg, epoch, last_sequence, log_begins, is_incomplete, may_lack_tail };
        hears(alone, link, &state.encode(entries.iter().copied()));
    }

    /// It has all that it was sent on stable media.
    fn has_all(alone: &mut Alone, link: LinkId) {
        let through = alone.osd.shared.links.osd_mut(link).unwrap().sent;
        hears(alone, link, &ack(through));
    }

    #[test]
    fn logs_tell_what_a_learner_lacks_if_both_go_back_to_the_first_write_or_they_share_an_entry() {
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        for (is_old, log_begins, shared, do_tell) in
            [(false, 0, 0, true), (false, 1, 0, false), (true, 0, 0, false), (true, 0, 1, true)]
        {
            let mut alone = Alone::new();
            alone.write(key);
            if is_old {
                alone.age_log();
            }
            let link = lacks_one(&mut alone);
            assert_eq!(learners(&mut alone, link, 0), 1);
            let log: Vec<LogEntry> = alone.osd.store().pg_log(PG).collect();
            says(&mut alone, link, PG, Sequence(log_begins), &log[log.len() - shared..]);
            has_all(&mut alone, link);
            let asked =
                alone.io.told(link, |message| matches!(message, Message::ListObjects(_)).then_some(()));
            let scene = format!("old: {is_old}, theirs begins at {log_begins}, {shared} shared");
            assert_eq!(asked.is_empty(), do_tell, "{scene}");
        }
    }

    #[test]
    fn a_learner_that_was_to_be_taken_in_is_not_when_others_may_have_led_since() {
        let (mut alone, link) = short_of_one();
        assert_eq!(learners(&mut alone, link, 0), 1);
        let log: Vec<LogEntry> = alone.osd.store().pg_log(PG).collect();
        says(&mut alone, link, PG, Sequence(0), &log);
        has_all(&mut alone, link);
        let promoted = alone.osd.shared.groups[0].standing.promotion().map(|promotion| promotion.osd);
        assert_eq!(promoted, Some(OsdId(1)), "it lacked nothing");
        // The map passes over an epoch. Whoever led it gave the learner nothing.
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        map.targets.insert(PG, vec![OsdId(0), OsdId(1)]);
        map.pgs.get_mut(&PG).unwrap().epoch.0 += 2;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        has_all(&mut alone, link);
        let mut turns = 0;
        while !alone.osd.shared.groups[0].is_active() {
            alone.turn();
            let group = &alone.osd.shared.groups[0];
            assert_eq!(group.config.in_sync, [OsdId(0)]);
            turns += 1;
            assert!(turns < 40, "{group:?}");
        }
    }

    #[test]
    fn beside_clients_pushes_are_spaced_out_and_what_one_group_has_done_makes_room_for_the_next() {
        // As many as may be on their way beside clients, in four pushes.
        const BLOCKS: u16 = 64;
        let mut alone = Alone::with_groups(2);
        let data = vec![7; usize::from(BLOCKS) * BLOCK_BYTES];
        let keys = [0, 1].map(|index| {
            let pg = PgId { index, ..PG };
            let is_of = |object: &u32| PgId::of_object(PG.pool, 2, VOLUME, *object) == pg;
            ObjectKey { pg, volume: VOLUME, object: (0..).find(is_of).unwrap() }
        });
        for key in keys {
            alone.with(|_, cx| {
                let group = cx.groups.find(key.pg).unwrap();
                let range = BlockRange { key, first_block: 0, block_count: BLOCKS };
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, group, range);
                let checksum = U32::new(crc32c(&data[..BLOCK_BYTES]));
                cx.operations.live(id).checksums.extend([checksum; BLOCKS as usize]);
                assert!(order::write(cx, id, &data));
            });
            alone.run();
        }
        let link = lacks_one(&mut alone);
        alone.with(|router, cx| router.backfill.advance(cx));
        keys.iter().for_each(|key| says(&mut alone, link, key.pg, Sequence(0), &[]));
        let reads = |alone: &Alone| alone.io.drive.iter().filter(|(token, ..)| reads_data(*token)).count();
        alone.with(|_, cx| cx.pace.client_came(cx.now));
        has_all(&mut alone, link);
        assert_eq!(reads(&alone), 1, "the next one is to wait");
        let goes_on = |alone: &mut Alone| {
            alone.now = alone.now + Duration::from_millis(4);
            alone.drive_answers();
            let Alone { osd, io, now } = alone;
            osd.end_turn(*now, io);
            reads(alone)
        };
        assert_eq!([0; 4].map(|_| goes_on(&mut alone)), [1, 1, 1, 0], "no more may be on their way");
        let pushed = alone.io.told(link, |message| match message {
            Message::PushWrite(push) => Some((push.head.range.key, push.head.range.block_count)),
            _ => None,
        });
        assert_eq!(pushed, [(keys[0], BLOCKS / 4); 4]);
        has_all(&mut alone, link);
        assert_eq!(reads(&alone), 1, "it is the other group's turn, at once");
    }

    #[test]
    fn the_log_of_a_learner_gets_what_is_under_way_when_it_joins_once_and_in_order() {
        let mut pair = Pair::new();
        // Behind these the next ones take their places in the line in the contrary order.
        for block in 20..23 {
            let write = pair.write_of(block, 7);
            pair.ask(&write);
        }
        pair.run();
        // One that is durable here and not at the replica, and two that are durable nowhere.
        pair.acknowledges = false;
        let write = pair.write_of(10, 7);
        assert_eq!(pair.ask(&write), None);
        pair.turns(5);
        for block in [11, 12] {
            let write = pair.write_of(block, 7);
            assert_eq!(pair.ask(&write), None);
        }
        let alone = &mut pair.alone;
        let learner = OsdId(2);
        let link = alone.connect(learner);
        let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
        let address = Some(([127, 0, 0, 1], 7002).into());
        map.osds.insert(learner, OsdInfo { address, ..OsdInfo::default() });
        alone.osd.shared.groups[0].wanted.target.push(learner);
        alone.with(|router, cx| router.backfill.advance(cx));
        says(alone, link, PG, Sequence(0), &[]);
        let told = alone.io.told(link, |message| match message {
            Message::PushEntry(pushed) => Some(pushed.entry.sequence),
            _ => None,
        });
        let mut expected: Vec<Sequence> = alone.osd.store().pg_log(PG).map(|entry| entry.sequence).collect();
        let last = *expected.last().unwrap();
        expected.extend([last.next(), last.next().next()]);
        assert_eq!(told, expected);
    }

    #[test]
    fn a_zeroing_that_a_learner_has_before_its_primary_hides_no_block_that_it_has_too_many() {
        let mut alone = Alone::new();
        let (learner, key) = (OsdId(1), ObjectKey { pg: PG, volume: VOLUME, object: 3 });
        alone.order(key, 1, 2, 0);
        let address = Some(([127, 0, 0, 1], 7001).into());
        let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
        map.osds.insert(learner, OsdInfo { address, ..OsdInfo::default() });
        let link = alone.connect(learner);
        alone.osd.shared.groups[0].wanted.target = vec![OsdId(0), learner];
        alone.with(|router, cx| router.backfill.advance(cx));
        let epoch = alone.osd.shared.groups[0].epoch;
        let (_, last_sequence) = alone.osd.store().pg_position(PG).unwrap();
        // Its log does not tell what it has.
        let state = LogState {
            pg: PG,
            epoch,
            last_sequence,
            log_begins: Sequence(0),
            is_incomplete: true,
            may_lack_tail: false,
        };
        hears(&mut alone, link, &state.encode(std::iter::empty()));
        let through = alone.osd.shared.links.osd_mut(link).unwrap().sent;
        hears(&mut alone, link, &ack(through));
        // Block 2 is zeroed. The learner has that on stable media, and this OSD does not.
        alone.with(|_, cx| {
            let range = BlockRange::one(key, 2);
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
            assert!(order::zero(cx, id));
        });
        let Alone { osd, io, now } = &mut alone;
        osd.end_turn(*now, io);
        // Block 3 was zeroed while the learner was away, which has it still: two of three blocks are left there, as here.
        let held =
            ObjectHeld { volume: VOLUME, object: 3, block_count: 2, has_doubts: 0, through: last_sequence };
        assert_eq!(alone.osd.store().block_count(&key), held.block_count);
        hears(&mut alone, link, &Page { pg: PG, epoch, is_last: true }.encode([held].into_iter()));
        let asked = alone.io.told(link, |message| match message {
            Message::ListBlocks(of) => Some(of.key),
            _ => None,
        });
        assert_eq!(asked, [key], "it may have others than these");
        let mut allocated: BlockBits = [0; OBJECT_BLOCKS / 8];
        allocated[0] = 1 << 1 | 1 << 3;
        let (of, doubted) = (ObjectEpoch { key, epoch }, [0; OBJECT_BLOCKS / 8]);
        hears(&mut alone, link, &Blocks { of, allocated: &allocated, doubted: &doubted }.encode());
        alone.run();
        let zeros = alone.io.told(link, |message| match message {
            Message::PushZero(push) => Some(push.range),
            _ => None,
        });
        assert_eq!(zeros, [BlockRange { key, first_block: 2, block_count: 2 }]);
    }
}
