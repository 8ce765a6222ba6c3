//! How a learner is brought up to date while its group serves.
//!
//! A learner is asked where it stands, as a replica is. Then it *joins*: its log begins anew with a mark, and from
//! there on it receives every write like a replica, in the same stream. What it lacks from before is *pushed* to
//! it in that stream too, until it has everything; then the primary asks for a configuration in which it is in
//! sync, and the epoch begins with it.
//!
//! What it lacks is known from the logs, if it was in sync until they part. Else its objects are compared with the
//! primary's by digest, and those that differ block by block, by allocation and checksum. Writes that were under
//! way when it joined are in neither, so their blocks are pushed in any case.
//!
//! # Why a push never undoes a newer write
//! A push is an operation on its blocks like any other: it waits for those before it and holds back those behind
//! it until the blocks were read and sent. So whatever is ordered later stands behind it in the stream.
//!
//! # Why a learner that fell behind is not taken for whole
//! Its log begins at its join, and says durably that it is incomplete until an epoch begins in which it is in
//! sync. Should it be a learner again before that, its log is not used. Nobody but the registry's configuration
//! makes it in sync, and the primary asks for that only when the learner has every push on stable media.

use crate::group::{Comparison, Learner, LearnerState, MemberPosition, Promotion, RepairRange, Work};
use crate::io::Io;
use crate::milestone::Milestone;
use crate::operation::{OperationId, OperationKind, OperationState, Origin};
use crate::osd::{Awaited, Osd, Outstanding, Peer};
use crate::pace::PUSH_BLOCKS;
use crate::peering::{agreement, differences};
use crate::sabotage::Sabotage;
use base::hash::mix;
use base::{BLOCK_BYTES, Epoch, LinkId, LogEntry, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, Sequence, VolumeId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{Blocks, OBJECTS_MAX, ObjectDigest, Objects, Position, Replicate, Status, encode};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Blocks on their way to one learner.
const PUSHED_MAX: u32 = 4 * PUSH_BLOCKS as u32;
/// A push counts as so many blocks at least: each is a read, a message and an acknowledgement.
const PUSHED_LEAST: u16 = 16;
/// A push is from so many places of the drive at most: that many reads stand before what clients want read.
const PUSH_PARTS_MAX: usize = 16;
/// Learners that an OSD brings up to date at the same time.
const LEARNERS_MAX: usize = 4;
/// Replicated messages that a learner may leave unacknowledged before it is given up for now.
const LEARNER_LAG_MAX: usize = 16_384;
/// How long a learner may take to answer before it is given up for now.
const LEARNER_SILENCE_MAX: Duration = Duration::from_secs(5);
/// The pause after a learner was given up.
const LEARN_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a learner that is full or whose primary is damaged is tried again.
const LEARN_PAUSE_LONG: Duration = Duration::from_secs(10);

/// What a learner has on stable media.
pub(crate) enum Received {
    /// The mark of its join.
    Mark,
    /// A push, and for how many blocks it counted.
    Push { cost: u16 },
}

fn cost_of(block_count: u16) -> u16 {
    block_count.max(PUSHED_LEAST)
}

impl Osd {
    /// Begins with learners that wait for it, those of the most degraded groups first.
    pub(crate) fn advance_recovery(&mut self, io: &mut impl Io) {
        for index in 0..self.groups.len() as u32 {
            let is_silent = |learner: &Learner| {
                learner.is_owing() && self.now.since(learner.heard_at) >= LEARNER_SILENCE_MAX
            };
            let lags = |learner: &Learner| match self.peers.get(&learner.link) {
                Some(Peer::Osd(peer)) => peer.outstanding.len() > LEARNER_LAG_MAX || is_silent(learner),
                _ => true,
            };
            let group = &self.groups[index as usize];
            let is_wanted = |learner: &Learner| group.wanted_learners().any(|osd| osd == learner.osd);
            let behind = group.learners.iter().find(|learner| lags(learner) || !is_wanted(learner));
            if let Some(osd) = behind.map(|learner| learner.osd) {
                self.give_up_learner(index, osd, LEARN_PAUSE);
            }
        }
        // Should whoever held the others back be gone, nothing else sets them going.
        self.end_burst();
        self.recover_others(u32::MAX, io);
        let mut under_way: usize = self.groups.iter().map(|group| group.learners.len()).sum();
        let mut waiting: Vec<(usize, u32, OsdId)> = Vec::new();
        for (index, group) in (0..).zip(&self.groups) {
            if !group.is_active() || self.now < group.learn_after || group.promoted.is_some() {
                continue;
            }
            let learners = group.wanted_learners();
            let waits = |osd: &OsdId| !group.learners.iter().any(|learner| learner.osd == *osd);
            let waiting_here = learners.filter(waits).filter(|osd| self.is_present(*osd));
            waiting.extend(waiting_here.map(|osd| (group.config.in_sync.len(), index, osd)));
        }
        waiting.sort_unstable();
        for (_, index, osd) in waiting {
            if under_way >= LEARNERS_MAX {
                return;
            }
            let Some(link) = self.ready_link(osd) else { continue };
            let group = &mut self.groups[index as usize];
            self.sessions += 1;
            if !group.asked.contains(&osd) {
                group.asked.push(osd);
            }
            group.learners.push(Learner {
                osd,
                link,
                session: self.sessions,
                heard_at: self.now,
                state: LearnerState::Asked,
            });
            io.send(link, &encode::query(group.pg, group.modulus, group.epoch));
            if !self.learning.contains(&index) {
                self.learning.push(index);
            }
            under_way += 1;
        }
    }

    fn give_up_learner(&mut self, index: u32, osd: OsdId, pause: Duration) {
        self.milestones.pass(Milestone::LearnerGivenUp);
        let group = &mut self.groups[index as usize];
        group.learners.retain(|learner| learner.osd != osd);
        group.learn_after = self.now + pause;
    }

    /// A learner did not apply a message.
    pub(crate) fn learner_refused(&mut self, index: u32, session: u32, osd: OsdId, status: Status) {
        let group = &mut self.groups[index as usize];
        let pg = group.pg;
        if group.promoted.as_ref().is_some_and(|promotion| promotion.osd == osd) {
            group.promoted = None;
        }
        if group.learner_mut(osd).is_some_and(|learner| learner.session == session) {
            self.milestones.pass(Milestone::LearnerRefused);
            let mut pause = LEARN_PAUSE;
            if status == Status::NoSpace {
                pause = LEARN_PAUSE_LONG;
                if !group.cramped.contains(&osd) {
                    group.cramped.push(osd);
                }
            }
            self.note(format!("{osd} could not go on catching up in pg {pg}: {status:?}"));
            self.give_up_learner(index, osd, pause);
        }
    }

    /// A learner says where it stands: it joins.
    pub(crate) fn learner_stands(
        &mut self,
        index: u32,
        osd: OsdId,
        position: &Position<'_>,
        io: &mut impl Io,
    ) {
        let group = &mut self.groups[index as usize];
        let (pg, modulus, epoch) = (group.pg, group.modulus, group.epoch);
        let is_active = group.is_active();
        let is_cramped = group.cramped.contains(&osd);
        let Some(learner) = group.learner_mut(osd) else { return };
        if !is_active || !matches!(learner.state, LearnerState::Asked) {
            return;
        }
        let (link, session) = (learner.link, learner.session);
        let own = self.own_position(index);
        let last_sequence = own.last_sequence;
        let theirs = MemberPosition::told(osd, position);
        // Its log tells what it lacks only where it is a part of the same history: logs that both go back to the
        // first write are, and those that share an entry that members had only in agreement. The same numbers may
        // stand for other writes.
        let is_whole = own.is_whole() && theirs.is_whole();
        let members = [own, theirs];
        let tells = !position.is_incomplete && (is_whole || agreement(&members).is_some());
        let by_log = if tells && !is_cramped { differences(pg, modulus, &members).ok() } else { None };
        self.milestones.pass(match by_log {
            Some(_) => Milestone::LearnerByLog,
            None if is_cramped => Milestone::LearnerFrees,
            None => Milestone::LearnerByDigest,
        });
        let [MemberPosition { entries, log_begins, .. }, _] = members;
        let mut work: VecDeque<Work> = VecDeque::new();
        let comparison = match by_log {
            Some(ranges) => {
                work.extend(ranges.into_iter().map(Work::Range));
                None
            }
            None => Some(self.comparison(pg)),
        };
        // What is ordered and not yet durable here is neither in the log nor in the index.
        let group = &self.groups[index as usize];
        let mut under_way: Vec<LogEntry> = Vec::new();
        for id in &group.in_flight {
            let Some(operation) = self.operations.get(*id) else { continue };
            if operation.state == OperationState::Replicating {
                if operation.sequence > last_sequence {
                    under_way.push(LogEntry {
                        epoch,
                        sequence: operation.sequence,
                        volume: operation.key.volume,
                        object: operation.key.object,
                        first_block: operation.first_block,
                        block_count: operation.block_count,
                        origin: operation.tag,
                    });
                }
                work.push_back(Work::Range(RepairRange {
                    key: operation.key,
                    first_block: operation.first_block,
                    block_count: operation.block_count,
                    tag: 0,
                }));
            }
        }
        let now = self.now;
        under_way.sort_unstable_by_key(|entry| entry.sequence);
        let (work, comparison) = match self.sabotage {
            Some(Sabotage::CountLearner) => (VecDeque::new(), None),
            _ => (work, comparison),
        };
        let group = &mut self.groups[index as usize];
        let from = group.next_sequence;
        // Its log begins where this one does.
        let mark = Sequence(log_begins.0.saturating_sub(1));
        let learner = group.learner_mut(osd).expect("it was there a moment ago");
        learner.heard_at = now;
        learner.state =
            LearnerState::Joined { from, has_mark: false, work, comparison, blocks_awaited: None, pushed: 0 };
        let join = encode::join(pg, epoch, mark, from);
        self.send_to_learner(link, Awaited::Join { group: index, session }, &join, io);
        // Its log shall be as good as any member's: a client may ask it whether a write was done. What is under way
        // is no part of this OSD's log yet.
        for entry in entries.iter().chain(&under_way) {
            let bytes = encode::push_entry(pg, epoch, entry);
            self.send_to_learner(link, Awaited::Learning { group: index, session }, &bytes, io);
        }
        self.recover_next(index, osd, io);
    }

    fn comparison(&self, pg: PgId) -> Comparison {
        Comparison { own: self.objects_of(pg), after: None, is_awaited: false }
    }

    /// The objects of a group here, in order.
    fn objects_of(&self, pg: PgId) -> VecDeque<ObjectKey> {
        let mut objects: Vec<ObjectKey> = self.store.objects().filter(|key| key.pg == pg).collect();
        objects.sort_unstable_by_key(|key| (key.volume, key.object));
        objects.into()
    }

    fn send_to_learner(&mut self, link: LinkId, awaited: Awaited, bytes: &[u8], io: &mut impl Io) {
        let Some(Peer::Osd(peer)) = self.peers.get_mut(&link) else { return };
        peer.sent += 1;
        peer.outstanding.push_back(Outstanding { ordinal: peer.sent, awaited });
        io.send(link, bytes);
    }

    /// A learner has a push, or the mark of its join, on stable media.
    pub(crate) fn learner_has(&mut self, index: u32, session: u32, what: Received, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        let Some(learner) = group.learners.iter_mut().find(|learner| learner.session == session) else {
            return;
        };
        learner.heard_at = self.now;
        let LearnerState::Joined { has_mark, pushed, .. } = &mut learner.state else { return };
        match what {
            Received::Mark => *has_mark = true,
            Received::Push { cost } => *pushed = pushed.saturating_sub(u32::from(cost)),
        }
        let osd = learner.osd;
        self.end_burst();
        self.recover_next(index, osd, io);
        // What this one has on stable media makes room for another group's.
        self.recover_others(index, io);
    }

    /// Goes on with the learners of other groups, one after the other in turn.
    fn recover_others(&mut self, index: u32, io: &mut impl Io) {
        self.learning.retain(|index| !self.groups[*index as usize].learners.is_empty());
        if self.learning.is_empty() || !self.pace.may_push(self.now) {
            return;
        }
        self.learning.sort_unstable_by_key(|other| (*other <= index, *other));
        for other in self.learning.clone() {
            for at in 0..self.groups[other as usize].learners.len() {
                if let Some(osd) = self.groups[other as usize].learners.get(at).map(|learner| learner.osd) {
                    self.recover_next(other, osd, io);
                }
            }
            if !self.pace.may_push(self.now) {
                return;
            }
        }
    }

    /// Ends a burst when all of it is on stable media, or nobody waits for it any more.
    fn end_burst(&mut self) {
        let learners = self.learning.iter().flat_map(|index| &self.groups[*index as usize].learners);
        if learners.map(Learner::pushed).sum::<u32>() > 0 {
            return;
        }
        self.pace.burst_ends(self.now);
    }

    /// The pause between two bursts is over.
    pub(crate) fn begin_burst(&mut self, io: &mut impl Io) {
        self.pace.pause_ends();
        self.recover_others(u32::MAX, io);
    }

    /// Gives a learner the next of what it lacks. When nothing is left, asks for it to be in sync.
    fn recover_next(&mut self, index: u32, osd: OsdId, io: &mut impl Io) {
        loop {
            let group = &mut self.groups[index as usize];
            // Where too few are in sync for writes, clients wait for nothing but this.
            let (may_push, push_blocks) = match group.is_writable() {
                true => (self.pace.may_push(self.now), self.pace.push_blocks(self.now)),
                false => (true, PUSH_BLOCKS),
            };
            let (pg, epoch) = (group.pg, group.epoch);
            let Some(learner) = group.learner_mut(osd) else { return };
            let (link, session) = (learner.link, learner.session);
            let LearnerState::Joined { has_mark, work, comparison, blocks_awaited, pushed, .. } =
                &mut learner.state
            else {
                return;
            };
            // Until its log says that it is catching up, nothing of what it has may change.
            if !*has_mark
                || blocks_awaited.is_some()
                || *pushed >= PUSHED_MAX
                || !may_push && !work.is_empty()
            {
                return;
            }
            match (work.pop_front(), comparison) {
                (Some(Work::Range(range)), _) => {
                    let block_count = range.block_count.min(push_blocks);
                    let cost = u32::from(cost_of(block_count));
                    *pushed += cost;
                    self.pace.push_begins(self.now, cost);
                    self.push(index, osd, session, range, block_count, io);
                }
                (Some(Work::Object(key)), _) => {
                    *blocks_awaited = Some(key);
                    io.send(link, &encode::list_blocks(key, epoch));
                    return;
                }
                (None, Some(comparison)) => {
                    if !comparison.is_awaited {
                        comparison.is_awaited = true;
                        io.send(link, &encode::list_objects(pg, epoch, comparison.after));
                    }
                    return;
                }
                (None, None) if *pushed > 0 => return,
                (None, None) => {
                    let is_cramped = group.cramped.contains(&osd);
                    if !is_cramped {
                        return self.learner_is_whole(index, osd, io);
                    }
                    // It has nothing too much any more: now for what it lacks.
                    let all = self.comparison(pg);
                    let group = &mut self.groups[index as usize];
                    group.cramped.retain(|other| *other != osd);
                    let Some(learner) = group.learner_mut(osd) else { return };
                    if let LearnerState::Joined { comparison, .. } = &mut learner.state {
                        *comparison = Some(all);
                    }
                }
            }
        }
    }

    fn learner_is_whole(&mut self, index: u32, osd: OsdId, io: &mut impl Io) {
        let Some(link) = self.ready_link(osd) else { return };
        self.milestones.pass(Milestone::LearnerIsWhole);
        let group = &mut self.groups[index as usize];
        let (pg, epoch) = (group.pg, group.epoch);
        if let Some(session) = group.learner_mut(osd).map(|learner| learner.session) {
            let awaited = Awaited::Learning { group: index, session };
            self.send_to_learner(link, awaited, &encode::whole(pg, epoch), io);
        }
        self.end_epoch(index, &format!("{osd} has caught up"), io);
        // From here on nothing more is acknowledged. What was, it was sent.
        let through = self.osd_link_mut(link).map_or(0, |peer| peer.sent);
        let now = self.now;
        let group = &mut self.groups[index as usize];
        group.promoted = Some(Promotion { osd, link, through, since: now });
        // At once: nobody is served meanwhile.
        group.claim_after = now;
        self.promotions.push(index);
        self.next_tick = now;
    }

    /// Starts a push of a range's first blocks, or puts it behind what is under way on them.
    fn push(
        &mut self,
        index: u32,
        learner: OsdId,
        session: u32,
        range: RepairRange,
        block_count: u16,
        io: &mut impl Io,
    ) {
        let waiting = self.groups[index as usize].waiting.len();
        let (id, operation) = self.operations.add();
        operation.kind = OperationKind::Push;
        operation.origin = Origin::Recovery { learner, session, cost: cost_of(block_count) };
        operation.group = index;
        operation.key = range.key;
        operation.first_block = range.first_block;
        operation.block_count = block_count;
        operation.offset = u32::from(range.first_block) * BLOCK_BYTES as u32;
        operation.length = u32::from(block_count) * BLOCK_BYTES as u32;
        self.requeue_push(index, learner, range, block_count);
        if self.has_conflict(index, &range.key, range.first_block, block_count, waiting) {
            self.groups[index as usize].waiting.push_back(id);
        } else {
            self.start_push(id, io);
        }
    }

    /// Puts what of a range lies behind its first blocks back to a learner's work.
    fn requeue_push(&mut self, index: u32, learner: OsdId, range: RepairRange, done: u16) {
        let Some(learner) = self.groups[index as usize].learner_mut(learner) else { return };
        if let LearnerState::Joined { work, .. } = &mut learner.state
            && range.block_count > done
        {
            work.push_front(Work::Range(range.behind(done)));
        }
    }

    /// Reads what a push is to bring: its blocks are free.
    pub(crate) fn start_push(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (key, first_block, block_count) = (operation.key, operation.first_block, operation.block_count);
        let (index, origin) = (operation.group, operation.origin);
        let (found, is_zeros) = self.look_up_run(id, block_count, PUSH_PARTS_MAX);
        if let Origin::Recovery { learner, .. } = origin {
            self.requeue_push(index, learner, RepairRange { key, first_block, block_count, tag: 0 }, found);
        }
        if is_zeros {
            return self.send_push(id, io);
        }
        self.operations.live(id).state = OperationState::Reading;
        if self.sabotage != Some(Sabotage::StalePush) {
            self.groups[index as usize].in_flight.push_back(id);
        }
        self.read_parts(id, io);
    }

    /// The drive answered the read of a push.
    pub(crate) fn push_was_read(&mut self, id: OperationId, io: &mut impl Io) {
        let damage = self.first_damage(id);
        let operation = self.operations.live(id);
        let index = operation.group;
        self.groups[index as usize].in_flight.retain(|other| *other != id);
        match damage {
            None => self.send_push(id, io),
            Some((block, _)) => {
                self.release_parts(id);
                if self.wait_for_mend(id, block, io) {
                    return;
                }
                self.push_damaged(id, block, io);
            }
        }
        self.start_waiting(index, io);
    }

    /// A push met a block of which nobody who was asked has a sound copy.
    fn push_damaged(&mut self, id: OperationId, block: u16, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (index, key, origin) = (operation.group, operation.key, operation.origin);
        let (first_block, block_count) = (operation.first_block, operation.block_count);
        let Origin::Recovery { learner: osd, session, cost } = origin else {
            return self.forget_operation(id);
        };
        if !self.is_lost_for_good(key, block) {
            // A member that is away may have it, or a drive read it another time. Without it the learner would keep
            // something old that looks sound.
            self.forget_operation(id);
            return self.give_up_learner(index, osd, LEARN_PAUSE_LONG);
        }
        if block_count == 1 {
            // The learner shall fail reads of it as everybody does: it is no reason to have one copy less of the rest.
            return self.send_push(id, io);
        }
        self.forget_operation(id);
        let group = &mut self.groups[index as usize];
        let Some(learner) = group.learner_mut(osd).filter(|learner| learner.session == session) else {
            return;
        };
        let LearnerState::Joined { work, pushed, .. } = &mut learner.state else { return };
        *pushed = pushed.saturating_sub(u32::from(cost));
        let end = first_block + block_count;
        for (from, to) in [(block + 1, end), (block, block + 1), (first_block, block)] {
            if from < to {
                let range = RepairRange { key, first_block: from, block_count: to - from, tag: 0 };
                work.push_front(Work::Range(range));
            }
        }
        self.recover_next(index, osd, io);
    }

    /// Sends what was read to the learner, and ends the operation.
    fn send_push(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let index = operation.group;
        let group = &mut self.groups[index as usize];
        let push = Replicate {
            key: operation.key,
            epoch: group.epoch,
            sequence: Sequence(0),
            first_block: operation.first_block,
            block_count: operation.block_count,
            origin: 0,
        };
        let origin = operation.origin;
        // Of what is lost there is nothing: what was read was given back.
        let (is_lost, is_zeros) = match operation.parts.first() {
            None => (true, false),
            Some(part) => (false, part.location.is_none()),
        };
        // It may have been given up meanwhile, and even be asked anew: then nothing is owed to it.
        let link = match origin {
            Origin::Recovery { learner, session, cost } => {
                let learner = group.learner_mut(learner).filter(|learner| learner.session == session);
                learner.map(|learner| (learner.link, session, cost))
            }
            _ => None,
        };
        if let Some((link, session, cost)) = link {
            let header = if is_lost { encode::push_lost(&push) } else { encode::push(&push, is_zeros) };
            self.send_to_learner(link, Awaited::Push { group: index, session, cost }, &header, io);
            let operation = self.operations.live(id);
            if !is_zeros {
                io.send(link, operation.checksums.as_bytes());
            }
            if !is_zeros && !is_lost {
                for part in &mut operation.parts {
                    let buffer = part.buffer.take().expect("it was read without damage");
                    io.send_shared(link, buffer, 0..usize::from(part.block_count) * BLOCK_BYTES);
                }
                self.pushed_bytes += u64::from(operation.block_count) * BLOCK_BYTES as u64;
            }
        }
        self.release_parts(id);
        self.forget_operation(id);
    }

    /// A primary asks which objects of a group this learner has.
    pub(crate) fn list_objects(
        &mut self,
        link: LinkId,
        pg: PgId,
        epoch: Epoch,
        after: Option<(VolumeId, u32)>,
        io: &mut impl Io,
    ) {
        let is_expected =
            self.group_index.get(&pg).is_some_and(|index| self.groups[*index as usize].epoch == epoch);
        if !is_expected {
            return;
        }
        let objects = self.objects_of(pg);
        let mut left =
            objects.iter().filter(|key| after.is_none_or(|after| (key.volume, key.object) > after));
        let page: Vec<ObjectDigest> = left.by_ref().take(OBJECTS_MAX).map(|key| self.digest(key)).collect();
        let mut bytes = Vec::new();
        encode::objects(&mut bytes, pg, epoch, &page, left.next().is_none());
        io.send(link, &bytes);
    }

    fn digest(&self, key: &ObjectKey) -> ObjectDigest {
        let mut digest = 0u64;
        self.store.for_each_block(key, |block, crc32c| {
            digest = with_block(digest, block, crc32c);
        });
        ObjectDigest { volume: key.volume, object: key.object, digest }
    }

    /// A learner says which objects it has.
    pub(crate) fn handle_objects(&mut self, link: LinkId, objects: &Objects<'_>, io: &mut impl Io) {
        let Some(osd) = self.osd_link_mut(link).map(|peer| peer.osd) else { return };
        if self.scrub_lists(osd, objects, io) {
            return;
        }
        let Some(&index) = self.group_index.get(&objects.pg) else { return };
        let group = &mut self.groups[index as usize];
        let pg = group.pg;
        let is_current = group.epoch == objects.epoch;
        let is_cramped = group.cramped.contains(&osd);
        let Some(learner) = group.learner_mut(osd).filter(|_| is_current) else { return };
        let LearnerState::Joined { comparison: Some(comparison), .. } = &mut learner.state else { return };
        if !comparison.is_awaited {
            return;
        }
        comparison.is_awaited = false;
        learner.heard_at = self.now;
        let theirs: BTreeMap<(VolumeId, u32), u64> =
            objects.entries().map(|entry| ((entry.volume, entry.object), entry.digest)).collect();
        // A page that is not the last goes as far as its last entry.
        let end = if objects.is_last { None } else { theirs.keys().next_back().copied() };
        let mut own: Vec<ObjectKey> = Vec::new();
        while let Some(key) = comparison.own.front().copied() {
            if end.is_some_and(|end| (key.volume, key.object) > end) {
                break;
            }
            comparison.own.pop_front();
            own.push(key);
        }
        comparison.after = end;
        let mut found: Vec<Work> = Vec::new();
        for key in &own {
            match theirs.get(&(key.volume, key.object)) {
                None if is_cramped => {}
                None => found.push(Work::Range(whole_object(*key))),
                Some(digest) if *digest != self.digest(key).digest => found.push(Work::Object(*key)),
                Some(_) => {}
            }
        }
        let known: std::collections::BTreeSet<_> = own.iter().map(|key| (key.volume, key.object)).collect();
        for (volume, object) in theirs.keys().filter(|key| !known.contains(key)) {
            // The primary has nothing of it, unless it was made since: whatever it has is pushed.
            found.push(Work::Range(whole_object(ObjectKey { pg, volume: *volume, object: *object })));
        }
        let learner = self.groups[index as usize].learner_mut(osd).expect("it was there a moment ago");
        if let LearnerState::Joined { work, comparison, .. } = &mut learner.state {
            work.extend(found);
            if objects.is_last {
                *comparison = None;
            }
        }
        self.recover_next(index, osd, io);
    }

    /// A primary asks for the checksums of an object's blocks.
    pub(crate) fn list_blocks(&mut self, link: LinkId, key: ObjectKey, epoch: Epoch, io: &mut impl Io) {
        let mut checksums = Box::new([U32::ZERO; OBJECT_BLOCKS]);
        self.store.for_each_block(&key, |block, crc32c| checksums[usize::from(block)] = crc32c.into());
        let mut bytes = Vec::new();
        encode::blocks(&mut bytes, key, epoch, &self.store.allocated_bits(&key), &checksums);
        io.send(link, &bytes);
    }

    /// A learner says what the blocks of an object hold: those that differ are pushed.
    pub(crate) fn handle_blocks(&mut self, link: LinkId, blocks: &Blocks<'_>, io: &mut impl Io) {
        let Some(osd) = self.osd_link_mut(link).map(|peer| peer.osd) else { return };
        let Some(&index) = self.group_index.get(&blocks.key.pg) else { return };
        let group = &mut self.groups[index as usize];
        let is_current = group.epoch == blocks.epoch;
        let is_cramped = group.cramped.contains(&osd);
        let Some(learner) = group.learner_mut(osd).filter(|_| is_current) else { return };
        let LearnerState::Joined { work, blocks_awaited, .. } = &mut learner.state else { return };
        if *blocks_awaited != Some(blocks.key) {
            return;
        }
        *blocks_awaited = None;
        learner.heard_at = self.now;
        let mut own = [None; OBJECT_BLOCKS];
        self.store.for_each_block(&blocks.key, |block, crc32c| own[usize::from(block)] = Some(crc32c));
        let theirs = |block: usize| {
            let is_there = blocks.allocated[block / 8] >> (block % 8) & 1 != 0;
            is_there.then(|| blocks.checksums[block].get())
        };
        let is_wrong = |block: usize| own[block] != theirs(block) && (own[block].is_none() || !is_cramped);
        let mut block = 0;
        while block < OBJECT_BLOCKS {
            let first = block;
            while block < OBJECT_BLOCKS && is_wrong(block) {
                block += 1;
            }
            if block > first {
                work.push_back(Work::Range(RepairRange {
                    key: blocks.key,
                    first_block: first as u16,
                    block_count: (block - first) as u16,
                    tag: 0,
                }));
            }
            block += 1;
        }
        self.recover_next(index, osd, io);
    }
}

fn whole_object(key: ObjectKey) -> RepairRange {
    RepairRange { key, first_block: 0, block_count: OBJECT_BLOCKS as u16, tag: 0 }
}

/// A digest with one more value in it.
pub(crate) fn mixed(digest: u64, value: u64) -> u64 {
    mix(digest.rotate_left(1) ^ value)
}

/// A digest of blocks with one more in it.
pub(crate) fn with_block(digest: u64, block: u16, crc32c: u32) -> u64 {
    mixed(digest, u64::from(block) << 32 | u64::from(crc32c))
}
