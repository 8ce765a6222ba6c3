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
use crate::disk::{Disk, Held};
use crate::epoch::differences::{agreement, differences, runs_alike};
use crate::epoch::{self, claim, query};
use crate::group::learner::{Comparison, Joined, LEARN_PAUSE_LONG, Learner, Promotion, Work};
use crate::group::position::MemberPosition;
use crate::group::role::Change;
use crate::group::{Group, Groups};
use crate::io::Io;
use crate::journal::Milestone;
use crate::links::{Awaited, ToLearner};
use crate::operation::{OperationId, OperationKind, OperationState, Purpose};
use crate::pace::PUSH_BLOCKS;
use base::{
    BLOCK_BYTES, BlockRange, Epoch, LayerId, LogEntry, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, Sequence,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use store::Store;
use wire::{
    Activate, BlockBits, Blocks, GroupEpoch, Kind, ListObjects, ObjectEpoch, ObjectHeld, Objects, Page,
    Position, Push, PushEntry, PushHole, Query, Status,
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
/// As many more for groups that take no writes without them: these wait for no others, which may take hours.
const LEARNERS_URGENT_MAX: usize = 4;
/// How long a learner may take to answer before it is given up for now.
const LEARNER_SILENCE_MAX: Duration = Duration::from_secs(5);
/// The pause after a learner was given up.
const LEARN_PAUSE: Duration = Duration::from_secs(1);

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
    /// The one of them that was the last to get something.
    last: u32,
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
        self.recover_others(cx, self.last);
        let mut under_way: usize = cx.groups.iter().map(|group| group.learners().len()).sum();
        for (_, index, osd) in waiting(cx) {
            let urgent = if cx.groups[index].is_writable() { 0 } else { LEARNERS_URGENT_MAX };
            if under_way >= LEARNERS_MAX + urgent {
                continue;
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
        let group = &mut cx.groups[index];
        let (pg, modulus, epoch) = (group.pg, group.modulus, group.epoch);
        let is_of_later = position.head.last_sequence.history() > group.config.history;
        let is_active = group.is_active();
        let Some(learning) = group.learning_mut() else { return };
        let is_cramped = learning.cramped.contains(&osd);
        let Some(learner) = learning.of(osd).filter(|learner| is_active && learner.joined.is_none()) else {
            return;
        };
        let (link, session) = (learner.link, learner.session);
        if is_of_later {
            cx.note(format!(
                "{osd} says that it has what was written to {pg} after the group was given up, of which the registry tells nothing; \
                 it is not overwritten: if the registry was set back, stop {}, so that {osd} leads, or else replace {osd}",
                cx.me.id
            ));
            return give_up(cx, index, osd, LEARN_PAUSE);
        }
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
            self.last = other;
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

    /// The learners that are given something for the sake of having one copy more: those that clients wait for are not spared.
    fn spared<'a>(&self, cx: &'a Context<'_, impl Io>) -> impl Iterator<Item = &'a Learner> {
        let groups = self.learning.iter().map(|index| &cx.groups[*index]);
        groups.filter(|group| group.is_writable()).flat_map(Group::learners)
    }

    /// Whether one more push may be started for the sake of having one copy more.
    fn may_push(&self, cx: &Context<'_, impl Io>) -> bool {
        cx.rates.pace.may_push(cx.now, self.spared(cx).map(Learner::pushed).sum())
    }

    /// How many blocks may be on their way to one learner: of several, one that is slow leaves the others their part.
    fn pushed_max(&self, cx: &Context<'_, impl Io>) -> u32 {
        let learners = self.spared(cx).filter(|learner| learner.lacks_something()).count();
        cx.rates.pace.pushed_max(cx.now, learners).min(PUSHED_MAX)
    }

    /// The pause behind a push is over.
    pub(crate) fn go_on(&mut self, cx: &mut Context<'_, impl Io>) {
        cx.rates.pace.pause_ends();
        self.recover_others(cx, self.last);
    }

    /// Gives a learner the next of what it lacks. When nothing is left, asks for it to be in sync.
    fn recover_next(&mut self, cx: &mut Context<'_, impl Io>, index: u32, osd: OsdId) {
        loop {
            // Where too few are in sync for writes, clients wait for nothing but this.
            let is_spared = cx.groups[index].is_writable();
            let (may_push, push_blocks, pushed_max) = match is_spared {
                true => (self.may_push(cx), cx.rates.pace.push_blocks(cx.now), self.pushed_max(cx)),
                false => (true, PUSH_BLOCKS, PUSHED_MAX),
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
                || joined.pushed >= pushed_max
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
                    if is_spared {
                        cx.rates.pace.push_begins(cx.now, block_count, cx.volumes.map.recovery_share);
                    }
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
        // Until then it gets whatever is ordered, and is looked at again with each tick.
        if !claim::may_end_by_choice(cx) {
            return;
        }
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
        cx.lines.ended(id);
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
        if !goes_on(objects, comparison.after) {
            cx.note(format!("{osd} lists objects of pg {pg} out of order; it is not brought up to date now"));
            return give_up(cx, index, osd, LEARN_PAUSE_LONG);
        }
        comparison.is_awaited = false;
        learner.heard_at = cx.now;
        let theirs: BTreeMap<(LayerId, u32), ObjectHeld> =
            objects.entries().map(|entry| ((entry.layer, entry.object), entry)).collect();
        // A page that is not the last goes as far as its last entry.
        let end = if is_last { None } else { theirs.keys().next_back().copied() };
        let is_on_page = |key: &mut ObjectKey| end.is_none_or(|end| (key.layer, key.object) <= end);
        let own: Vec<ObjectKey> = std::iter::from_fn(|| comparison.own.pop_front_if(is_on_page)).collect();
        comparison.after = end;
        if is_last {
            joined.comparison = None;
        }
        let known: BTreeSet<_> = own.iter().map(|key| (key.layer, key.object)).collect();
        let mut work = Vec::new();
        for (volume, object) in theirs.keys().filter(|key| !known.contains(key)) {
            // The primary has nothing of it, unless it was made since: whatever it has is pushed.
            let key = ObjectKey { pg, layer: *volume, object: *object };
            work.push(Work::Range(BlockRange::whole(key)));
        }
        for (number, key) in (1..).zip(&own) {
            match theirs.get(&(key.layer, key.object)) {
                None if is_cramped => {}
                None => work.push(Work::Range(BlockRange::whole(*key))),
                Some(held) if is_behind(cx, key, held) => {
                    work.push(Work::Object(*key, held.through));
                }
                Some(_) => {}
            }
            if number % REACHED_EVERY == 0 && !is_cramped {
                work.push(Work::Reached(*key));
            }
        }
        if let Some((volume, object)) = end.filter(|_| !is_cramped) {
            work.push(Work::Reached(ObjectKey { pg, layer: volume, object }));
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
fn is_behind(cx: &Context<'_, impl Io>, key: &ObjectKey, held: &ObjectHeld) -> bool {
    let store = &cx.disk.store;
    store.last_changed(key) > held.through
        || held.has_doubts != 0
        || held.block_count != store.block_count(key)
        || cx.must_wait(&BlockRange::whole(*key))
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
        if !group.is_active() {
            continue;
        }
        let waits = |osd: &OsdId| {
            let may_try = primary.learning.may_try(*osd, cx.now);
            may_try && !group.learners().iter().any(|learner| learner.osd == *osd)
        };
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
        learning.put_off(osd, cx.now + pause);
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
    for id in cx.lines.under_way(index) {
        let Some(operation) = cx.operations.get(id) else { continue };
        if operation.state != OperationState::Replicating {
            continue;
        }
        let (epoch, sequence, origin) = (group.epoch, operation.order.sequence, operation.attempt.origin);
        let BlockRange { key: ObjectKey { layer: volume, object, .. }, first_block, block_count } =
            operation.range;
        if sequence > last_sequence {
            entries.push(LogEntry {
                epoch,
                sequence,
                layer: volume,
                object,
                first_block,
                block_count,
                origin,
            });
        }
        work.push_back(Work::Range(operation.range));
    }
    entries.sort_unstable_by_key(|entry| entry.sequence);
    entries
}

/// Starts a push, or puts it behind what is under way on its blocks.
fn push(cx: &mut Context<'_, impl Io>, index: u32, purpose: Purpose, range: BlockRange) {
    let must_wait = cx.must_wait(&range);
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
    let (found, held) = cx.disk.look_up_run(operation, PUSH_PARTS_MAX);
    if let Purpose::Backfill { learner, .. } = purpose
        && let Some(Learner { joined: Some(joined), .. }) = cx.groups[index].learner_mut(learner)
    {
        joined.put_back(range.behind(found));
    }
    if held != Held::Data {
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
    let forgets_changed = cx.breaks(Sabotage::ForgetChanged);
    let operation = cx.operations.live(id);
    let index = operation.group;
    let group = &mut cx.groups[index];
    let newest = group.standing.primary().map_or(Sequence(0), |primary| primary.last_sequence());
    let push = Push { range: operation.range, epoch: group.epoch };
    let kind = match operation.parts.first() {
        // Of what is lost there is nothing: what was read was given back.
        None => Kind::PushLost,
        Some(part) => match Held::at(part.location) {
            Held::Nothing => Kind::PushZero,
            Held::Hole => Kind::PushHole,
            Held::Data => Kind::PushWrite,
        },
    };
    // Its blocks are held, or were looked up just now: they are what is sent. What is rounded is no later than what was ordered.
    let changed = |store: &Store, block| {
        let changed = store.changed(&push.range.key, block).filter(|_| !forgets_changed);
        changed.unwrap_or_default().min(newest)
    };
    // It may have been given up meanwhile, and even be asked anew: then nothing is owed to it.
    if let Purpose::Backfill { learner, session, cost } = operation.purpose
        && let Some(learner) = group.learner_mut(learner).filter(|learner| learner.session == session)
    {
        let (link, awaited) =
            (learner.link, Awaited::Learner { group: index, session, sent: ToLearner::Push { cost } });
        let header = match kind {
            Kind::PushHole => {
                let all = push.range.blocks().map(|block| changed(&cx.disk.store, block));
                let changed = all.max().unwrap_or_default();
                PushHole { range: push.range, epoch: push.epoch, changed }.encode()
            }
            kind => push.encode(kind),
        };
        cx.send_replicated(link, awaited, &header);
        let operation = cx.operations.live(id);
        if matches!(kind, Kind::PushWrite | Kind::PushLost) {
            cx.io.send(link, operation.checksums.as_bytes());
            for block in push.range.blocks() {
                cx.io.send(link, &changed(&cx.disk.store, block).0.to_le_bytes());
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

/// Whether a page of objects goes on behind that one: else they might be asked for without end.
fn goes_on(objects: &Objects<'_>, after: Option<(LayerId, u32)>) -> bool {
    let listed = || objects.entries().map(|entry| (entry.layer, entry.object));
    let is_behind = listed().next().is_none_or(|first| after.is_none_or(|after| after < first));
    is_behind
        && listed().is_sorted_by(|one, next| one < next)
        && (objects.head.is_last || listed().next().is_some())
}

#[cfg(test)]
mod tests;
