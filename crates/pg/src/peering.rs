//! How a group begins an epoch.
//!
//! The primary may serve only when every in-sync member agrees with it. It gets there in four steps:
//! 1. *Claim*: a compare-and-swap in the registry makes the epoch one higher. Whoever holds an older epoch is
//!    refused by every member that has heard of the newer one.
//! 2. *Query*: each replica obeys the new epoch from now on and tells the newest entries of its log, once
//!    nothing it staged before is still on its way to the drive.
//! 3. *Mark*: the primary begins the epoch with a mark behind everything any member has.
//! 4. *Repair*: entries that not all members have were never acknowledged (an acknowledgement needs all of
//!    them). For each block they touch, the primary's present content is written to all members, in order, as
//!    any write. What a replica had beyond the primary is so replaced.
//!
//! A crash at any point is harmless: the next epoch finds the same differences or fewer.

use crate::group::{Group, GroupState, MemberPosition, RepairRange};
use crate::io::Io;
use crate::mend::Absence;
use crate::milestone::Milestone;
use crate::operation::{OperationId, OperationKind, OperationState, Origin};
use crate::osd::{Osd, Peer};
use crate::request::{done_runs, runs_alike};
use crate::sabotage::Sabotage;
use base::log_entry::{NAME, REPAIR, UNDONE};
use base::map::PgConfig;
use base::{BLOCK_BYTES, Epoch, Instant, LinkId, LogEntry, ObjectKey, OsdId, PgId, Sequence, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use store::StageError;
use wire::{Position, Status, encode};

/// How long the members may take to say where they stand.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a primary that the registry just told of may take to show itself to its replicas.
const NEW_PRIMARY_PATIENCE: Duration = Duration::from_secs(2);
/// How long an epoch may wait for a learner's last acknowledgements.
const PROMOTION_MAX: Duration = Duration::from_secs(1);
/// Replicas take over one after the other: this much later each.
const TAKEOVER_STAGGER: Duration = Duration::from_millis(200);
/// The pause before a group that lost its epoch claims another.
const CLAIM_PAUSE: Duration = Duration::from_millis(100);
/// The pause after a claim that came to nothing.
pub(crate) const CLAIM_PAUSE_LONG: Duration = Duration::from_secs(1);
/// Blocks repaired at a time.
const REPAIR_BLOCKS: u16 = 64;

impl Osd {
    /// Ends the epoch of a group this OSD is primary of. What is under way is answered with "try again": it
    /// may or may not have taken effect, and nobody was told that it did.
    pub(crate) fn end_epoch(&mut self, index: u32, reason: &str, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        if matches!(group.state, GroupState::Replica { .. } | GroupState::Left { .. }) {
            return;
        }
        let state = group.enter(GroupState::Waiting { reason: reason.to_owned() });
        group.claim_after = self.now + CLAIM_PAUSE;
        group.learners.clear();
        group.promoted = None;
        let mut ended: Vec<_> = group.in_flight.drain(..).chain(group.waiting.drain(..)).collect();
        if let GroupState::Repairing { current: Some(current), .. } = state {
            ended.push(current);
        }
        for id in ended {
            let Some(operation) = self.operations.get_mut(id) else { continue };
            let origin = operation.origin;
            operation.origin = Origin::Deletion;
            if operation.parts_awaited > 0 {
                // The drive still works for it; it goes when the drive is done.
                operation.state = OperationState::Abandoned;
            } else {
                self.forget_operation(id);
            }
            self.refuse(origin, Status::NotActive, io);
        }
        self.next_tick_soon();
    }

    /// A member cannot be reached: the epochs in which it is in sync end, and nobody brings it up to date.
    pub(crate) fn lost_member(&mut self, osd: OsdId, reason: &str, io: &mut impl Io) {
        for index in 0..self.groups.len() as u32 {
            let group = &mut self.groups[index as usize];
            group.learners.retain(|learner| learner.osd != osd);
            if group.promoted.as_ref().is_some_and(|promotion| promotion.osd == osd) {
                group.promoted = None;
            }
            if group.config.primary == self.id && group.config.in_sync.contains(&osd) {
                self.end_epoch(index, reason, io);
            }
        }
    }

    /// Takes a group's next step towards serving, if it can be taken now.
    pub(crate) fn advance_peering(&mut self, index: u32, io: &mut impl Io) {
        let group = &self.groups[index as usize];
        // Who obeys an epoch that the map does not show yet waits for the map.
        if !group.config.in_sync.contains(&self.id) || group.epoch > group.config.epoch {
            return;
        }
        let is_primary = group.config.primary == self.id;
        match &group.state {
            GroupState::Claiming { .. } => {}
            GroupState::Replica { .. } | GroupState::Waiting { .. } | GroupState::Stopped { .. } => {
                self.try_to_claim(index, io);
            }
            GroupState::Querying { .. } | GroupState::Repairing { .. } | GroupState::Active if is_primary => {
                let silent = group.replicas(self.id).find(|osd| !self.is_present(*osd));
                if let Some(silent) = silent {
                    return self.end_epoch(index, &format!("{silent} does not answer"), io);
                }
                match &self.groups[index as usize].state {
                    GroupState::Querying { since, .. } if self.now.since(*since) > QUERY_TIMEOUT => {
                        self.milestones.pass(Milestone::QueryTimeout);
                        self.end_epoch(index, "a member does not say where it stands", io);
                    }
                    GroupState::Repairing { current: None, .. } => self.repair_next(index, io),
                    _ => {}
                }
            }
            GroupState::Querying { .. }
            | GroupState::Repairing { .. }
            | GroupState::Active
            | GroupState::Left { .. } => {}
        }
    }

    /// Asks the registry for an epoch, if one can begin: as the primary, or in its place if it is gone.
    fn try_to_claim(&mut self, index: u32, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        if self.now < group.claim_after {
            return;
        }
        let is_primary = group.config.primary == self.id;
        // A primary knows its log's end only when nothing is on its way to the drive. Who takes over goes on as a
        // replica until it has the epoch, and looks then.
        if is_primary && group.staged_count > 0 {
            return;
        }
        if self.is_shutting_down || is_primary && !self.promotion_is_settled(index) {
            return;
        }
        if !is_primary && !self.may_take_over(index) {
            return;
        }
        if let Some(failure) = self.store.failure() {
            if is_primary {
                let reason = format!("the drive of {} failed: {failure}; replace it", self.id);
                self.groups[index as usize].enter(GroupState::Stopped { reason });
            }
            return;
        }
        let config = match self.next_config(index) {
            Ok(config) => config,
            Err(reason) => {
                if is_primary {
                    self.groups[index as usize].enter(GroupState::Waiting { reason });
                }
                return;
            }
        };
        if !is_primary && self.sabotage != Some(Sabotage::ForgetFence) {
            // What it still asks for on this connection is not granted any more: a lease that ran out must not be
            // renewed behind the proposal. Should it live, it learns by this that the epoch is over.
            let primary = self.groups[index as usize].config.primary;
            if let Some(link) = self.osd_links.get(&primary).copied() {
                io.close(link, "it is silent, and is replaced");
                self.handle_closed(self.now, link, "it is silent, and is replaced", io);
            }
        }
        let group = &mut self.groups[index as usize];
        let expected = match group.state {
            GroupState::Replica { expected } => expected,
            _ => None,
        };
        group.enter(GroupState::Claiming { expected });
        self.milestones.pass(group.claim_kind(&config, self.id));
        io.propose(group.pg, group.config.epoch, config);
    }

    /// Whether a learner that shall be in sync has everything that was sent to it on stable media: part of that was
    /// acknowledged to clients without it. If it takes too long, the epoch begins without it.
    fn promotion_is_settled(&mut self, index: u32) -> bool {
        let now = self.now;
        let Some(promotion) = self.groups[index as usize].promoted.clone() else { return true };
        let oldest = match self.peers.get(&promotion.link) {
            Some(Peer::Osd(peer)) => peer.outstanding.front().map_or(u64::MAX, |front| front.ordinal),
            _ => 0,
        };
        if oldest > promotion.through {
            return true;
        }
        if oldest == 0 || now.since(promotion.since) >= PROMOTION_MAX {
            self.groups[index as usize].promoted = None;
            self.milestones.pass(Milestone::PromotionLate);
            return true;
        }
        false
    }

    /// Whether a replica is free to take its group over: it has promised the primary nothing any more, and those
    /// before it in the list had their chance.
    fn may_take_over(&mut self, index: u32) -> bool {
        let now = self.now;
        let group = &self.groups[index as usize];
        let primary = group.config.primary;
        let is_free =
            self.leases.is_free_of(primary, now) && now.since(group.config_seen_at) >= NEW_PRIMARY_PATIENCE;
        let group = &mut self.groups[index as usize];
        if !is_free {
            group.free_since = None;
            return false;
        }
        let since = *group.free_since.get_or_insert(now);
        let before = group.config.in_sync.iter().filter(|osd| **osd != primary);
        let rank = before.take_while(|osd| **osd != self.id).count() as u32;
        now.since(since) >= TAKEOVER_STAGGER * rank
    }

    /// The configuration to ask for.
    ///
    /// # Errors
    /// Why there can be none now.
    fn next_config(&self, index: u32) -> Result<PgConfig, String> {
        let group = &self.groups[index as usize];
        let config = &group.config;
        let min_size = group.min_size;
        let names = |osds: &[OsdId]| osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(" and ");
        let (mut in_sync, absent): (Vec<OsdId>, Vec<OsdId>) =
            config.in_sync.iter().copied().partition(|osd| *osd == self.id || self.is_present(*osd));
        if config.primary != self.id {
            // The primary is replaced because it is silent towards this member, whatever else it does.
            in_sync.retain(|osd| *osd != config.primary);
        }
        in_sync.retain(|osd| group.unfit != Some(*osd));
        let promoted = group.promoted.as_ref().map(|promotion| promotion.osd);
        let is_wanted = |osd: &OsdId| group.wanted_learners().any(|wanted| wanted == *osd);
        if let Some(osd) = promoted.filter(|osd| is_wanted(osd) && self.is_present(*osd)) {
            in_sync.push(osd);
        }
        let is_reachable =
            |osd: &OsdId| in_sync.contains(osd) || *osd == config.primary || group.unfit == Some(*osd);
        let missing: Vec<OsdId> = config.in_sync.iter().copied().filter(|osd| !is_reachable(osd)).collect();
        let mut gone = absent;
        if config.primary != self.id && !gone.contains(&config.primary) {
            gone.push(config.primary);
        }
        // Fewer than that take no writes, so whoever is gone misses nothing as long as it may come back. One that
        // was taken out will not: those who are left are all there is, and bring others up to date.
        if in_sync.len() < min_size && gone.iter().any(|osd| !self.is_out(*osd)) {
            let count = in_sync.len();
            return Err(format!(
                "{} cannot be reached, and {count} of at least {min_size} members are left; start its node, or take it \
                 out with `millpond osd out` if its drive is lost",
                names(&gone)
            ));
        }
        if missing.iter().any(|osd| !self.is_away(*osd)) {
            return Err(format!("{} cannot be reached; start its node", names(&missing)));
        }
        let replaces_somebody = !missing.is_empty() || config.primary != self.id;
        if let Some(silent) =
            in_sync.iter().find(|osd| replaces_somebody && **osd != self.id && !self.was_heard(**osd))
        {
            return Err(format!("{} cannot be reached, nor {silent} just now", names(&gone)));
        }
        // Who is not in the target goes when all of it is in sync, this OSD excepted: it hands over first.
        let in_sync = group.needed_of(&in_sync, self.id);
        let learners = self.learners_beside(index, &in_sync);
        Ok(PgConfig { epoch: Epoch(config.epoch.0 + 1), primary: self.id, in_sync, learners })
    }

    /// The registry's answer to a proposal: the configuration that stands now, or `None` when the proposal came
    /// to nothing.
    pub fn handle_proposal(&mut self, now: Instant, pg: PgId, accepted: Option<PgConfig>, io: &mut impl Io) {
        self.now = now;
        let Some(&index) = self.group_index.get(&pg) else { return };
        let group = &mut self.groups[index as usize];
        let GroupState::Claiming { expected } = group.state else { return };
        let stands = |config: &PgConfig| {
            config.epoch >= group.config.epoch && config.epoch > group.epoch && config.primary == self.id
        };
        if let Some(config) = accepted.as_ref().filter(|config| config.primary != self.id) {
            // It was handed over.
            if config.epoch > group.config.epoch {
                group.config = config.clone();
                group.config_seen_at = now;
            }
            group.enter(GroupState::Replica { expected: None });
            return;
        }
        let Some(config) = accepted.filter(stands) else {
            group.claim_after = now + CLAIM_PAUSE_LONG;
            self.milestones.pass(Milestone::ClaimInVain);
            let state = if group.config.primary == self.id {
                GroupState::Waiting { reason: "the registry did not take the new epoch".to_owned() }
            } else {
                GroupState::Replica { expected }
            };
            group.enter(state);
            return;
        };
        group.config = config;
        group.epoch = group.config.epoch;
        group.config_seen_at = now;
        group.promoted = None;
        group.unfit = None;
        group.asked.clear();
        self.note_regained(index);
        let group = &mut self.groups[index as usize];
        let (modulus, epoch) = (group.modulus, group.epoch);
        group.enter(GroupState::Querying { positions: Vec::new(), since: now });
        let replicas: Vec<_> = group.replicas(self.id).collect();
        for osd in &replicas {
            match self.ready_link(*osd) {
                Some(link) => io.send(link, &encode::query(pg, modulus, epoch)),
                None => return self.end_epoch(index, &format!("{osd} cannot be reached"), io),
            }
        }
        self.begin_epoch(index, io);
    }

    /// A primary claimed an epoch and asks where this replica stands.
    pub(crate) fn handle_query(
        &mut self,
        link: LinkId,
        pg: PgId,
        modulus: u32,
        epoch: Epoch,
        io: &mut impl Io,
    ) {
        self.split_by_query(pg, modulus, io);
        let Some(&index) = self.group_index.get(&pg) else { return };
        let Some(leader) = self.osd_link_mut(link).map(|peer| peer.osd) else { return };
        let group = &mut self.groups[index as usize];
        // A query of an older epoch is a fenced primary's: it gets no answer. One epoch has one primary.
        let is_its_leader = group.leader.is_none_or(|known| known == leader);
        let is_asked_again = epoch == group.epoch && is_its_leader && !group.is_led_here();
        if epoch <= group.epoch && !is_asked_again || modulus != group.modulus {
            self.milestones.pass(Milestone::QueryOutdated);
            return;
        }
        self.end_epoch(index, "another OSD is primary now", io);
        let group = &mut self.groups[index as usize];
        group.epoch = epoch;
        group.leader = Some(leader);
        group.free_since = None;
        group.enter(GroupState::Replica { expected: None });
        group.query_pending = Some((link, epoch));
        self.answer_pending_query(index, io);
    }

    /// Answers a query once nothing staged before it is on its way to the drive: only then is the log complete.
    pub(crate) fn answer_pending_query(&mut self, index: u32, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        if group.staged_count > 0 {
            return;
        }
        let Some((link, epoch)) = group.query_pending.take() else { return };
        if epoch != group.epoch {
            return;
        }
        let pg = group.pg;
        let mut bytes = Vec::new();
        encode::position(&mut bytes, pg, epoch, self.log_state(index), self.store.pg_log(pg));
        io.send(link, &bytes);
    }

    fn log_state(&self, index: u32) -> encode::LogState {
        let Group { pg, may_lack_tail, .. } = self.groups[index as usize];
        encode::LogState {
            last_sequence: self.store.pg_position(pg).map_or(Sequence(0), |(_, sequence)| sequence),
            log_begins: self.store.pg_log_begins(pg),
            is_incomplete: self.store.pg_is_incomplete(pg),
            may_lack_tail,
        }
    }

    /// Where this OSD stands itself.
    pub(crate) fn own_position(&self, index: u32) -> MemberPosition {
        let encode::LogState { last_sequence, log_begins, is_incomplete, may_lack_tail } =
            self.log_state(index);
        let entries = self.store.pg_log(self.groups[index as usize].pg).collect();
        MemberPosition { osd: self.id, last_sequence, log_begins, is_incomplete, may_lack_tail, entries }
    }

    /// A replica says where it stands.
    pub(crate) fn handle_position(&mut self, link: LinkId, position: &Position<'_>, io: &mut impl Io) {
        let Some(osd) = self.osd_link_mut(link).map(|peer| peer.osd) else { return };
        let Some(&index) = self.group_index.get(&position.pg) else { return };
        let group = &mut self.groups[index as usize];
        if position.epoch != group.epoch {
            return;
        }
        if !group.config.in_sync.contains(&osd) {
            return self.learner_stands(index, osd, position, io);
        }
        let GroupState::Querying { positions, .. } = &mut group.state else { return };
        if positions.iter().any(|known| known.osd == osd) {
            return;
        }
        positions.push(MemberPosition::told(osd, position));
        self.begin_epoch(index, io);
    }

    /// When everybody said where they stand: finds the differences and begins the epoch behind them.
    pub(crate) fn begin_epoch(&mut self, index: u32, io: &mut impl Io) {
        let group = &self.groups[index as usize];
        let GroupState::Querying { positions, .. } = &group.state else { return };
        // What this OSD staged in an older epoch is part of its log only when it is durable.
        if positions.len() + 1 < group.config.in_sync.len() || group.staged_count > 0 {
            return;
        }
        let pg = group.pg;
        let own = self.own_position(index);
        let group = &mut self.groups[index as usize];
        let min_size = group.min_size;
        let GroupState::Querying { positions, .. } = &mut group.state else { return };
        let mut members = std::mem::take(positions);
        members.push(own);
        if let Some(complete) = members.iter().find(|member| !member.is_incomplete).map(|member| member.osd)
            && let Some(osd) = members.iter().find(|member| member.may_lack_pushes()).map(|member| member.osd)
        {
            self.milestones.pass(Milestone::ClaimMayLackPushes);
            if osd == self.id {
                let in_sync = self.groups[index as usize].config.in_sync.clone();
                return self.propose_primary(index, complete, in_sync, io);
            }
            let reason = format!("{osd} started anew before it was in sync, and is compared again");
            return self.do_without(index, osd, reason);
        }
        let found = differences(pg, group.modulus, &members);
        if self.sabotage != Some(Sabotage::TrustTail)
            && found.as_ref().map_or(true, |ranges| !ranges.is_empty())
            && let Some(heir) = who_lacks_less(&members)
        {
            let group = &self.groups[index as usize];
            let in_sync = group.config.in_sync.clone();
            self.milestones.pass(Milestone::ClaimMayLackTail);
            return self.propose_primary(index, heir, in_sync, io);
        }
        match found {
            Ok(mut queue) => {
                self.milestones.pass(match queue.is_empty() {
                    true => Milestone::PeeringAgrees,
                    false => Milestone::PeeringDiffers,
                });
                if self.sabotage == Some(Sabotage::SkipRepair) {
                    queue.clear();
                }
                let last = members.iter().map(|member| member.last_sequence).max().unwrap_or_default();
                group.next_sequence = last.next();
                // Its own content is what counts now, and every member's log says so.
                let own = members.pop().expect("this OSD is the last of the members");
                let queue: VecDeque<RepairRange> =
                    queue.into_iter().flat_map(|range| as_told_by(&own, range)).collect();
                if queue.iter().any(|range| range.tag & UNDONE != 0) {
                    self.milestones.pass(Milestone::PeeringUndone);
                }
                // Of their logs, what a block that is adopted may be about.
                let names: BTreeSet<u64> = queue.iter().map(|range| range.tag & NAME).collect();
                let mut others = members;
                for member in &mut others {
                    member.entries.retain(|entry| names.contains(&(entry.origin & NAME)));
                }
                others.sort_by_key(|member| member.may_lack_tail);
                let (current, mark_is_due) = (None, true);
                group.enter(GroupState::Repairing { queue, current, mark_is_due, others });
                self.repair_next(index, io);
            }
            Err(behind) => {
                self.milestones.pass(Milestone::PeeringBehind);
                let Behind { osd, last_sequence, window_start } = behind;
                let reason = format!(
                    "{osd} lacks writes that are older than the log of the others (it has {last_sequence}, the log \
                     begins at {window_start})"
                );
                if osd != self.id && group.config.in_sync.len() > min_size {
                    return self.do_without(index, osd, reason);
                }
                group.enter(GroupState::Stopped { reason });
                group.claim_after = self.now + Duration::from_secs(10);
            }
        }
    }

    /// A member goes on as a learner, and is compared object by object.
    fn do_without(&mut self, index: u32, osd: OsdId, reason: String) {
        let group = &mut self.groups[index as usize];
        group.unfit = Some(osd);
        group.enter(GroupState::Waiting { reason });
        group.claim_after = self.now + CLAIM_PAUSE;
    }

    /// Stages the epoch's mark or the next repair; when nothing is left, the group serves.
    pub(crate) fn repair_next(&mut self, index: u32, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        let GroupState::Repairing { queue, current, mark_is_due, .. } = &mut group.state else { return };
        if current.is_some() {
            return;
        }
        if *mark_is_due {
            return self.stage_mark(index, io);
        }
        let Some(range) = queue.pop_front() else {
            group.enter(GroupState::Active);
            group.may_lack_tail = false;
            let (pg, epoch) = (group.pg, group.epoch);
            let replicas: Vec<OsdId> = group.replicas(self.id).collect();
            for link in replicas.into_iter().filter_map(|osd| self.ready_link(osd)) {
                io.send(link, &encode::serves(pg, epoch));
            }
            return self.forget_lost(pg);
        };
        let (id, operation) = self.operations.add();
        operation.kind = OperationKind::Write;
        operation.origin = Origin::Repair;
        operation.group = index;
        operation.key = range.key;
        operation.first_block = range.first_block;
        operation.tag = range.tag;
        self.set_current_repair(index, Some(id));
        let wanted = range.block_count.min(REPAIR_BLOCKS);
        let (block_count, is_zeros) = self.look_up_run(id, wanted, 1);
        self.requeue_repair(index, range.behind(block_count));
        if !is_zeros {
            self.operations.live(id).state = OperationState::Reading;
            return self.read_parts(id, io);
        }
        self.operations.live(id).kind = OperationKind::Zero;
        if !self.order_zero(id, io) {
            self.repair_must_come_again(id);
        }
    }

    fn stage_mark(&mut self, index: u32, io: &mut impl Io) {
        let group = &self.groups[index as usize];
        let (pg, epoch, sequence) = (group.pg, group.epoch, group.next_sequence);
        match self.store.stage_mark(pg, group.modulus, epoch, sequence, self.next_staged_token()) {
            Ok(()) => {
                let (id, operation) = self.operations.add();
                operation.kind = OperationKind::Mark;
                operation.origin = Origin::Repair;
                operation.group = index;
                operation.key = ObjectKey { pg, ..ObjectKey::default() };
                operation.block_count = 0;
                if let GroupState::Repairing { current, mark_is_due, .. } =
                    &mut self.groups[index as usize].state
                {
                    *current = Some(id);
                    *mark_is_due = false;
                }
                self.ordered(id);
            }
            Err(StageError::Busy) => {
                self.look_again(index);
            }
            Err(error) => self.repair_failed(index, &error, io),
        }
    }

    /// The drive answered the read of a repair: its content goes to all members, unless it is damaged.
    pub(crate) fn repair_was_read(&mut self, id: OperationId, io: &mut impl Io) {
        let damage = self.first_damage(id);
        let operation = self.operations.live(id);
        let (index, key) = (operation.group, operation.key);
        let (first_block, block_count, tag) = (operation.first_block, operation.block_count, operation.tag);
        if let Some((block, status)) = damage {
            self.release_parts(id);
            if block_count == 1 {
                // Another member may have the same content in a sound copy.
                self.met_damage(key, block);
                self.milestones.pass(Milestone::MendOfRepair);
                return self.fetch_next(id, 0, Absence::of(status), io);
            }
            self.forget_operation(id);
            for block in (first_block..first_block + block_count).rev() {
                self.requeue_repair(index, RepairRange { key, first_block: block, block_count: 1, tag });
            }
            self.set_current_repair(index, None);
            return self.repair_next(index, io);
        }
        let buffer = operation.parts[0].buffer.take().expect("it was read without damage");
        let is_ordered = self.order_write(id, &buffer.bytes()[..usize::from(block_count) * BLOCK_BYTES], io);
        self.put_buffer(buffer);
        if !is_ordered {
            self.repair_must_come_again(id);
        }
    }

    /// All members have the mark or a repair.
    pub(crate) fn repair_done(&mut self, index: u32, io: &mut impl Io) {
        self.set_current_repair(index, None);
        self.repair_next(index, io);
    }

    /// The store would not take a mark or a repair.
    pub(crate) fn repair_failed(&mut self, index: u32, error: &StageError, io: &mut impl Io) {
        self.set_current_repair(index, None);
        let reason = match error {
            StageError::Full => format!("{} is full", self.id),
            StageError::Busy | StageError::Failed(_) => {
                format!("the drive of {} failed; replace it", self.id)
            }
        };
        self.end_epoch(index, &reason, io);
        self.groups[index as usize].claim_after = self.now + CLAIM_PAUSE_LONG;
    }

    /// No member has a sound copy of what the primary holds in a block on which they may differ. Where one has a sound copy
    /// of something else there, that becomes everybody's: the write that makes the difference was acknowledged to nobody,
    /// for not all in sync had it. Unless that one's log ends too early because its end rotted: so its word counts last, and
    /// only when the primary's own drive is out of the question for good. Where nobody has anything, the block stays as it
    /// is, and reads of it fail.
    pub(crate) fn adopt_next(&mut self, id: OperationId, asked: usize, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (index, key, block) = (operation.group, operation.key, operation.first_block);
        let is_for_good = self.is_lost_for_good(key, block);
        let GroupState::Repairing { others, .. } = &self.groups[index as usize].state else { return };
        let mut candidates = others.iter().enumerate().skip(asked);
        if let Some((at, member)) = candidates.find(|(_, member)| is_for_good || !member.may_lack_tail) {
            let osd = member.osd;
            self.operations.live(id).origin = Origin::Adoption(osd);
            return self.fetch_from(id, osd, at + 1, Absence::Certain, io);
        }
        self.forget_operation(id);
        self.set_current_repair(index, None);
        if is_for_good {
            return self.repair_next(index, io);
        }
        let reason =
            format!("the drive of {} does not read what its members differ in; it tries again", self.id);
        self.end_epoch(index, &reason, io);
        self.groups[index as usize].claim_after = self.now + CLAIM_PAUSE_LONG;
    }

    /// A block gets another member's content: whether the write on which they differ is done, that one's log tells.
    pub(crate) fn adopted(&mut self, id: OperationId, osd: OsdId) {
        self.milestones.pass(Milestone::Adopted);
        let operation = self.operations.live(id);
        let GroupState::Repairing { others, .. } = &self.groups[operation.group as usize].state else {
            return;
        };
        let Some(member) = others.iter().find(|member| member.osd == osd) else { return };
        let (key, first_block, block_count) = (operation.key, operation.first_block, operation.block_count);
        let adopted = RepairRange { key, first_block, block_count, tag: operation.tag };
        operation.tag = as_told_by(member, adopted).map(|range| range.tag).next().unwrap_or(operation.tag);
    }

    /// The store has no room right now for a repair.
    pub(crate) fn repair_must_come_again(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        let range = RepairRange {
            key: operation.key,
            first_block: operation.first_block,
            block_count: operation.block_count,
            tag: operation.tag,
        };
        let index = operation.group;
        self.forget_operation(id);
        self.requeue_repair(index, range);
        self.set_current_repair(index, None);
        self.look_again(index);
    }

    fn requeue_repair(&mut self, index: u32, range: RepairRange) {
        if let GroupState::Repairing { queue, .. } = &mut self.groups[index as usize].state
            && range.block_count > 0
        {
            queue.push_front(range);
        }
    }

    fn set_current_repair(&mut self, index: u32, id: Option<OperationId>) {
        if let GroupState::Repairing { current, .. } = &mut self.groups[index as usize].state {
            *current = id;
        }
    }
}

impl Group {
    /// What a configuration that is asked for is to change.
    fn claim_kind(&self, config: &PgConfig, me: OsdId) -> Milestone {
        let is_new = |osd: &OsdId| !self.config.in_sync.contains(osd);
        let is_gone = |osd: &&OsdId| !config.in_sync.contains(osd);
        if self.config.primary != me {
            Milestone::ClaimTakeOver
        } else if config.in_sync.iter().any(is_new) {
            Milestone::ClaimMemberTakenIn
        } else if self.unfit.is_some_and(|osd| is_gone(&&osd)) {
            Milestone::ClaimUnfit
        } else if self.config.in_sync.iter().filter(is_gone).any(|osd| self.target.contains(osd)) {
            Milestone::ClaimMemberRemoved
        } else if self.config.in_sync.iter().any(|osd| is_gone(&osd)) {
            Milestone::ClaimSurplusDropped
        } else {
            Milestone::ClaimSame
        }
    }
}

/// A member whose log does not reach into those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    pub(crate) osd: OsdId,
    last_sequence: Sequence,
    window_start: Sequence,
}

/// Who of the members shall lead instead of the last of them, which would undo what its log lacks.
///
/// Where the end of a log rotted before its OSD started, the log just seems to end earlier. So who was in an epoch since
/// it started knows better what was done than who was not. If nobody was, whose log goes furthest has lost least: by what
/// was ordered while an epoch served, for who had that had all before it. The mark of an epoch that never served, or its
/// first repairs, may have gone to a member that lacks the rest.
fn who_lacks_less(members: &[MemberPosition]) -> Option<OsdId> {
    let end = |member: &MemberPosition| {
        let at = |entry: &LogEntry| (entry.epoch, entry.sequence);
        let served = member.entries.iter().rev().find(|entry| tells_agreement(entry)).map(at);
        let last = member.entries.last().map(at);
        (!member.may_lack_tail, served, last.unwrap_or((Epoch(0), member.last_sequence)))
    };
    let (own, others) = members.split_last()?;
    let best = others.iter().reduce(|best, other| if end(other) > end(best) { other } else { best })?;
    let lacks_less = own.may_lack_tail && end(best) > end(own);
    lacks_less.then_some(best.osd)
}

/// Whether an entry was ordered while its epoch served: when all members agreed on everything before it.
fn tells_agreement(entry: &LogEntry) -> bool {
    !entry.is_mark() && !entry.is_repair()
}

/// The newest entry that all members have and that tells that they agreed on everything before it. Members apply
/// what they get in order and without a gap, so whoever has it had been in agreement.
pub(crate) fn agreement(members: &[MemberPosition]) -> Option<Sequence> {
    let (first, others) = members.split_first()?;
    let names = |member: &MemberPosition| -> BTreeSet<(Sequence, Epoch)> {
        member.entries.iter().map(|entry| (entry.sequence, entry.epoch)).collect()
    };
    let others: Vec<_> = others.iter().map(names).collect();
    let is_common =
        |entry: &&LogEntry| others.iter().all(|other| other.contains(&(entry.sequence, entry.epoch)));
    let entries = first.entries.iter().rev();
    entries.filter(|entry| tells_agreement(entry)).find(is_common).map(|entry| entry.sequence)
}

/// The repairs of a range that bring a member's content: a write that its log has is done, one that it lacks is undone.
fn as_told_by(member: &MemberPosition, range: RepairRange) -> impl Iterator<Item = RepairRange> + use<> {
    let RepairRange { key, first_block, block_count, tag } = range;
    let name = tag & NAME;
    let runs = done_runs(member.entries.iter().copied(), &key, first_block, block_count, name);
    runs.into_iter().map(move |(first_block, block_count, was_done)| {
        let undone = if name != 0 && !was_done { UNDONE } else { 0 };
        RepairRange { key, first_block, block_count, tag: name | REPAIR | undone }
    })
}

/// The blocks whose content members may disagree about: those touched by log entries that not all have. Entries from
/// before a split may be of the other half: they tell of agreement, and of nothing to repair.
///
/// # Errors
/// When a member's log ends before another's begins: its gap is larger than a log can tell.
pub(crate) fn differences(
    pg: PgId,
    modulus: u32,
    members: &[MemberPosition],
) -> Result<VecDeque<RepairRange>, Behind> {
    // Entries before this sequence are gone from some log; every member must reach up to it.
    let logs_begin = members.iter().map(|member| member.log_begins).max().unwrap_or_default();
    let window_start = agreement(members).map_or(logs_begin, Sequence::next);
    if let Some(behind) = members.iter().find(|member| member.last_sequence.next() < window_start) {
        let (osd, last_sequence) = (behind.osd, behind.last_sequence);
        return Err(Behind { osd, last_sequence, window_start });
    }
    let mut holders: BTreeMap<(Sequence, Epoch), (LogEntry, usize)> = BTreeMap::new();
    for member in members {
        let mut seen = BTreeSet::new();
        for entry in member.entries.iter().filter(|entry| entry.sequence >= window_start) {
            if seen.insert((entry.sequence, entry.epoch)) {
                holders.entry((entry.sequence, entry.epoch)).or_insert((*entry, 0)).1 += 1;
            }
        }
    }
    let ranges: BTreeSet<RepairRange> = holders
        .into_values()
        .filter(|(entry, count)| *count < members.len() && !entry.is_mark())
        .filter(|(entry, _)| pg.holds(modulus, entry.volume, entry.object))
        .map(|(entry, _)| RepairRange {
            key: ObjectKey { pg, volume: entry.volume, object: entry.object },
            first_block: entry.first_block,
            block_count: entry.block_count,
            tag: entry.origin & NAME,
        })
        .collect();
    let words: Vec<Words> = members.iter().map(words_of).collect();
    Ok(ranges.into_iter().flat_map(|range| unsettled(&words, range)).collect())
}

/// What a member's log says of each write that has a name, by volume, object and name, oldest first.
type Words = BTreeMap<(VolumeId, u32, u64), Vec<LogEntry>>;

fn words_of(member: &MemberPosition) -> Words {
    let mut words = Words::new();
    for entry in member.entries.iter().filter(|entry| !entry.is_mark()) {
        words.entry((entry.volume, entry.object, entry.origin & NAME)).or_default().push(*entry);
    }
    words
}

/// The parts of a range on which the members' newest words of its write differ. Where all have the same, an epoch that
/// began since made them agree: its repair brought everybody the same content, whatever they had before.
fn unsettled(words: &[Words], range: RepairRange) -> Vec<RepairRange> {
    let RepairRange { key, tag, .. } = range;
    if tag == 0 {
        return vec![range];
    }
    let words: Vec<&[LogEntry]> = words
        .iter()
        .map(|words| words.get(&(key.volume, key.object, tag)).map_or(&[][..], Vec::as_slice))
        .collect();
    let differ = |block: u16| {
        let mut newest = words.iter().map(|words| {
            let entry = words.iter().rev().find(|entry| entry.covers(block));
            entry.map(|entry| (entry.sequence, entry.epoch))
        });
        let first = newest.next().flatten();
        first.is_none() || newest.any(|other| other != first)
    };
    let runs = runs_alike(range.blocks(), differ).into_iter().filter(|(.., differs)| *differs);
    runs.map(|(first_block, block_count, _)| RepairRange { first_block, block_count, ..range }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{PoolId, VolumeId};

    fn entry(epoch: u32, sequence: u64, block: u16) -> LogEntry {
        LogEntry {
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            volume: VolumeId(1),
            object: 0,
            first_block: block,
            block_count: 1,
            origin: 0,
        }
    }

    fn member(osd: u32, is_whole: bool, entries: &[LogEntry]) -> MemberPosition {
        let last_sequence = entries.last().map_or(Sequence(0), |entry| entry.sequence);
        let first = entries.first().map_or(Sequence(0), |entry| entry.sequence);
        MemberPosition {
            osd: OsdId(osd),
            last_sequence,
            log_begins: if is_whole { Sequence(0) } else { first },
            is_incomplete: false,
            may_lack_tail: false,
            entries: entries.to_vec(),
        }
    }

    fn blocks(members: &[MemberPosition]) -> Result<Vec<u16>, Behind> {
        let pg = PgId { pool: PoolId(1), index: 0 };
        Ok(differences(pg, 1, members)?.into_iter().map(|range| range.first_block).collect())
    }

    #[test]
    fn members_that_agree_need_no_repair() {
        let log = [entry(1, 1, 10), entry(1, 2, 11)];
        assert_eq!(blocks(&[member(0, true, &log), member(1, true, &log)]), Ok(vec![]));
    }

    #[test]
    fn what_one_lacks_and_what_one_has_beyond_are_both_repaired() {
        let common = [entry(1, 1, 10)];
        let ahead = [entry(1, 1, 10), entry(1, 2, 11)];
        let diverged = [entry(1, 1, 10), entry(2, 2, 12)];
        let members = [member(0, true, &common), member(1, true, &ahead), member(2, true, &diverged)];
        assert_eq!(blocks(&members), Ok(vec![11, 12]));
    }

    #[test]
    fn entries_that_left_a_log_are_not_taken_for_differences() {
        let long: Vec<_> = (1..=20).map(|sequence| entry(1, sequence, sequence as u16)).collect();
        assert_eq!(blocks(&[member(0, false, &long[5..]), member(1, true, &long)]), Ok(vec![]));
        assert_eq!(blocks(&[member(0, false, &long[5..19]), member(1, false, &long[8..])]), Ok(vec![20]));
    }

    #[test]
    fn a_member_beyond_the_reach_of_the_log_stops_the_group() {
        let long: Vec<_> = (1..=20).map(|sequence| entry(1, sequence, sequence as u16)).collect();
        let behind = blocks(&[member(0, false, &long[10..]), member(1, true, &[])]).unwrap_err();
        assert_eq!((behind.osd, behind.window_start), (OsdId(1), Sequence(11)));
    }

    #[test]
    fn what_an_epoch_made_the_same_everywhere_is_no_difference_any_more() {
        // One member never had the write; an epoch began, and its repair was the same on both. Then came another write of
        // the same block, which one has: that is all they differ in, and its repair tells of both content and write.
        let first = LogEntry { origin: 7, ..entry(1, 2, 10) };
        let repair = LogEntry { origin: 7 | REPAIR | UNDONE, ..entry(2, 4, 10) };
        let second = LogEntry { origin: 8, ..entry(2, 5, 10) };
        let had = [entry(1, 1, 9), first, repair, second];
        let lacked = [entry(1, 1, 9), repair];
        let members = [member(0, true, &had), member(1, true, &lacked)];
        let pg = PgId { pool: PoolId(1), index: 0 };
        let found = differences(pg, 1, &members).unwrap();
        assert_eq!(found.iter().map(|range| (range.first_block, range.tag)).collect::<Vec<_>>(), [(10, 8)]);
        // Before that repair was on both, the write was a difference. A part of it that only one repaired is one still.
        let wide = LogEntry { block_count: 3, ..first };
        let of_one = LogEntry { origin: 7 | REPAIR, ..entry(2, 5, 11) };
        let members = [
            member(0, true, &[entry(1, 1, 9), wide, repair, of_one]),
            member(1, true, &[entry(1, 1, 9), repair]),
        ];
        let found = differences(pg, 1, &members).unwrap();
        let parts: Vec<_> = found.iter().map(|range| (range.first_block, range.block_count)).collect();
        assert_eq!(parts, [(11, 2), (11, 1)]);
    }

    #[test]
    fn a_repair_tells_what_the_log_of_the_content_tells() {
        let key = ObjectKey { pg: PgId { pool: PoolId(1), index: 0 }, volume: VolumeId(1), object: 0 };
        let range = |tag| RepairRange { key, first_block: 10, block_count: 2, tag };
        let told = |entries: &[LogEntry], tag| -> Vec<(u16, u64)> {
            let parts = as_told_by(&member(0, true, entries), range(tag));
            parts.map(|part| (part.first_block, part.tag)).collect()
        };
        let write = LogEntry { origin: 7, block_count: 2, ..entry(1, 1, 10) };
        assert_eq!(told(&[write], 7), [(10, 7 | REPAIR)]);
        assert_eq!(told(&[write], 8), [(10, 8 | REPAIR | UNDONE)]);
        let undone = LogEntry { origin: 7 | REPAIR | UNDONE, ..entry(2, 2, 11) };
        assert_eq!(told(&[write, undone], 7), [(10, 7 | REPAIR), (11, 7 | REPAIR | UNDONE)]);
        assert_eq!(told(&[write], 0), [(10, REPAIR)], "a write without a name is never told undone");
        // What was told before counts no more: another member's content is told by that one's log.
        assert_eq!(told(&[write], 7 | REPAIR | UNDONE), [(10, 7 | REPAIR)]);
    }

    #[test]
    fn whose_log_may_have_lost_its_end_lets_another_lead_that_knows_more() {
        let log = [entry(1, 1, 10), entry(1, 2, 11)];
        let restarted =
            |osd, entries: &[LogEntry]| MemberPosition { may_lack_tail: true, ..member(osd, true, entries) };
        let went_on = member(1, true, &log);
        assert_eq!(who_lacks_less(&[went_on.clone(), restarted(0, &log[..1])]), Some(OsdId(1)));
        // The later epoch began with what the one that went on has.
        let marked = [entry(1, 1, 10), entry(2, 3, 12)];
        assert_eq!(who_lacks_less(&[went_on.clone(), restarted(0, &marked)]), Some(OsdId(1)));
        assert_eq!(who_lacks_less(&[restarted(1, &log), restarted(0, &log[..1])]), Some(OsdId(1)));
        assert_eq!(
            who_lacks_less(&[restarted(1, &log), restarted(2, &marked), restarted(0, &log)]),
            Some(OsdId(2))
        );
        // The mark of an epoch that did not get far says nothing of what went before.
        let mark = LogEntry { block_count: 0, ..entry(2, 3, 0) };
        let repair = LogEntry { origin: REPAIR, ..entry(2, 4, 10) };
        let claimed = [log[0], mark, repair];
        assert_eq!(who_lacks_less(&[restarted(1, &log), restarted(0, &claimed)]), Some(OsdId(1)));
        assert_eq!(who_lacks_less(&[restarted(1, &claimed), restarted(0, &log)]), None);
        assert_eq!(who_lacks_less(&[restarted(1, &log), restarted(0, &log)]), None);
        assert_eq!(who_lacks_less(&[went_on, member(0, true, &log[..1])]), None);
        assert_eq!(who_lacks_less(&[restarted(0, &log)]), None);
    }

    #[test]
    fn a_common_entry_tells_agreement_unless_it_repaired_something() {
        let common = [entry(1, 1, 10), entry(1, 2, 11)];
        let forked: Vec<_> = common.iter().copied().chain([entry(1, 3, 12)]).collect();
        let went_on: Vec<_> = common.iter().copied().chain([entry(2, 3, 13)]).collect();
        let members = [member(0, true, &forked), member(1, true, &went_on)];
        assert_eq!(agreement(&members), Some(Sequence(2)));
        assert_eq!(blocks(&members), Ok(vec![12, 13]));
        // The same numbers, and nothing in common: which writes went before cannot be told.
        assert_eq!(agreement(&[member(0, false, &forked[2..]), member(1, false, &went_on[2..])]), None);
        let repair = LogEntry { origin: REPAIR, ..entry(2, 4, 14) };
        assert_eq!(agreement(&[member(0, false, &[repair]), member(1, false, &[repair])]), None);
    }
}
