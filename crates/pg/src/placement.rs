//! How a group moves to where its target says.
//!
//! The map names for each group the OSDs that shall hold it. The primary brings those that are not in sync up to
//! date like any learner ([`crate::recovery`]), without a new epoch for it. When all of them are in sync, the next
//! configuration drops the others, and the primary role goes to the first of the target.
//!
//! # Why a move never costs a copy
//! Who is to go stays in sync until those who come are. Who was dropped deletes what it holds only when a
//! configuration without it has every member of the target in sync, and says so durably before the first block
//! goes: its log then begins anew, and does not tell what it has.

use crate::group::{Group, GroupState};
use crate::io::Io;
use crate::milestone::Milestone;
use crate::osd::{Osd, StagedRecord};
use crate::sabotage::Sabotage;
use base::map::{Admission, ClusterMap, PgConfig};
use base::{Epoch, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, Sequence};
use std::time::Duration;
use store::{StageError, WriteRecord};

/// How long a configuration lasts at least before the next step of a move: members that come and go shall not
/// make the primary role go to and fro.
const SETTLE: Duration = Duration::from_secs(2);

/// A primary that gets a group back so soon after it handed it over keeps it for some time: the heir could not lead it.
const HAND_OVER_FAILED: Duration = Duration::from_secs(10);
/// How long.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(20);

/// Who leads a group of which this OSD knows nobody.
pub(crate) const NOBODY: OsdId = OsdId(u32::MAX);

/// What an active group lacks of being where its target says.
enum Step {
    /// Members that are not in the target are dropped.
    DropSurplus,
    /// The first of the target becomes the primary.
    HandOver,
}

impl Group {
    /// Whether an OSD holds a part of this group, or shall.
    pub(crate) fn has_member(&self, osd: OsdId) -> bool {
        self.members().any(|member| member == osd)
    }

    /// Members that are to be brought up to date.
    pub(crate) fn wanted_learners(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.target.iter().copied().filter(|osd| !self.config.in_sync.contains(osd))
    }

    /// Of these members in sync, those that stay: with a whole target in sync, nobody else is needed.
    pub(crate) fn needed_of(&self, in_sync: &[OsdId], also: OsdId) -> Vec<OsdId> {
        let is_whole = self.is_whole_in(in_sync);
        let is_needed = |osd: &OsdId| !is_whole || *osd == also || self.target.contains(osd);
        in_sync.iter().copied().filter(is_needed).collect()
    }

    /// Whether the target has as many members as the pool wants, and all of them are among these.
    fn is_whole_in(&self, in_sync: &[OsdId]) -> bool {
        self.target.len() >= self.size && self.target.iter().all(|osd| in_sync.contains(osd))
    }

    fn next_step(&self, me: OsdId) -> Option<Step> {
        let preferred = *self.target.first()?;
        let is_in_sync = |osd: &OsdId| self.config.in_sync.contains(osd);
        if !self.is_active() || !self.learners.is_empty() || !self.target.iter().all(is_in_sync) {
            return None;
        }
        if preferred != me {
            return Some(Step::HandOver);
        }
        let has_surplus = self.needed_of(&self.config.in_sync, me).len() < self.config.in_sync.len();
        // All that shall be in sync is: who is still named a learner, or was asked to be one, is none any more, and deletes
        // what it has when a later epoch tells it so.
        let is_done_with = |osd: &OsdId| !self.config.in_sync.contains(osd);
        let has_learners = !self.config.learners.is_empty() || self.asked.iter().any(is_done_with);
        (has_surplus || has_learners).then_some(Step::DropSurplus)
    }
}

/// Where a group shall lie: as the map says, else where it does.
pub(crate) fn target_of(map: &ClusterMap, pg: PgId, config: &PgConfig) -> Vec<OsdId> {
    match map.targets.get(&pg) {
        Some(target) if !target.is_empty() => target.clone(),
        _ => {
            let others = config.in_sync.iter().chain(&config.learners).filter(|osd| **osd != config.primary);
            std::iter::once(config.primary).chain(others.copied()).collect()
        }
    }
}

impl Osd {
    /// Whether an OSD is not expected to come back with what it holds: it was taken out, or removed.
    pub(crate) fn is_out(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_none_or(|info| info.admission != Admission::In)
    }

    /// Whether an OSD is out and down: it is not expected to answer ever again. One that is out and up may just not be
    /// reached for a moment.
    pub(crate) fn is_gone(&self, osd: OsdId) -> bool {
        self.is_out(osd) && self.map.osds.get(&osd).is_none_or(|info| info.address.is_none())
    }

    /// Whether a group is not yet where it shall be, and this OSD can do something about it.
    pub(crate) fn has_placement_work(&self, group: &Group) -> bool {
        group.config.primary == self.id
            && match group.next_step(self.id) {
                Some(Step::HandOver) => {
                    let heir = self.map.osds.get(&group.target[0]);
                    // Who has no address there does not hear from the registry.
                    heir.is_some_and(|info| info.address.is_some())
                        && group.target.iter().all(|osd| *osd == self.id || self.is_present(*osd))
                }
                Some(Step::DropSurplus) => true,
                None => false,
            }
    }

    /// Takes the next step of one group's move. One at a time: each is a short pause for the group's clients.
    pub(crate) fn advance_placement(&mut self, io: &mut impl Io) {
        for index in 0..self.groups.len() as u32 {
            let group = &self.groups[index as usize];
            let is_early = self.now.since(group.config_seen_at) < SETTLE || self.now < group.hand_over_after;
            if is_early || !self.has_placement_work(group) {
                continue;
            }
            match group.next_step(self.id) {
                Some(Step::HandOver) => self.hand_over(index, io),
                Some(Step::DropSurplus) => {
                    self.end_epoch(index, "members that are not in its target go", io);
                    self.groups[index as usize].claim_after = self.now;
                    self.advance_peering(index, io);
                }
                None => {}
            }
            return;
        }
    }

    fn hand_over(&mut self, index: u32, io: &mut impl Io) {
        let group = &mut self.groups[index as usize];
        group.handed_over_at = Some(self.now);
        let heir = group.target[0];
        let in_sync = group.needed_of(&group.config.in_sync, heir);
        self.milestones.pass(Milestone::ClaimHandOver);
        self.propose_primary(index, heir, in_sync, io);
    }

    /// Asks for a configuration in which another member is the primary. From here on this OSD serves nothing of the
    /// group, and the other begins an epoch of its own when it hears of it.
    pub(crate) fn propose_primary(&mut self, index: u32, heir: OsdId, in_sync: Vec<OsdId>, io: &mut impl Io) {
        self.end_epoch(index, &format!("{heir} becomes its primary"), io);
        let group = &mut self.groups[index as usize];
        let epoch = Epoch(group.config.epoch.0 + 1);
        let learners = self.learners_beside(index, &in_sync);
        let group = &mut self.groups[index as usize];
        let config = PgConfig { epoch, primary: heir, in_sync, learners };
        group.enter(GroupState::Claiming { expected: None });
        io.propose(group.pg, group.config.epoch, config);
    }

    /// The groups that this OSD left, and whose objects it deletes.
    #[doc(hidden)]
    pub fn left_groups(&self) -> impl Iterator<Item = PgId> + '_ {
        let left = self.groups.iter().filter(|group| matches!(group.state, GroupState::Left { .. }));
        left.map(|group| group.pg)
    }

    /// Whom a configuration with these members in sync names beside them: the others of the target; and until all of that
    /// is in sync, who was a member before. Such a one gets nothing any more, but it keeps what it has, and may have the
    /// last sound copy of a block.
    pub(crate) fn learners_beside(&self, index: u32, in_sync: &[OsdId]) -> Vec<OsdId> {
        let Group { config, target, .. } = &self.groups[index as usize];
        let mut learners: Vec<OsdId> = target.clone();
        if !target.iter().all(|osd| in_sync.contains(osd)) {
            let former = config.in_sync.iter().chain(&config.learners);
            learners.extend(former.filter(|osd| !target.contains(osd) && self.map.osds.contains_key(osd)));
        }
        learners.retain(|osd| !in_sync.contains(osd));
        learners
    }

    pub(crate) fn has_left(&self, index: u32) -> bool {
        matches!(self.groups[index as usize].state, GroupState::Left { .. })
    }

    /// This OSD became primary of a group.
    pub(crate) fn note_regained(&mut self, index: u32) {
        let group = &mut self.groups[index as usize];
        if group.handed_over_at.is_some_and(|at| self.now.since(at) < HAND_OVER_FAILED) {
            group.hand_over_after = self.now + HAND_OVER_PAUSE;
        }
    }

    /// Looks whether this OSD left groups whose data it still has.
    pub(crate) fn find_left_groups(&mut self) {
        for group in &mut self.groups {
            let is_member = group.has_member(self.id);
            match group.state {
                GroupState::Left { .. } if is_member => {
                    group.enter(GroupState::Replica { expected: None });
                    self.milestones.pass(Milestone::LeftGroupReturns);
                }
                GroupState::Replica { expected }
                    if !is_member
                        && (group.is_whole_in(&group.config.in_sync)
                            || self.sabotage == Some(Sabotage::LeaveEarly)) =>
                {
                    // Who was activated in an epoch may be a learner of it that this map does not show yet: only a
                    // later epoch without it tells that it is none.
                    let is_over = group.config.epoch > group.epoch
                        || group.config.epoch == group.epoch && expected.is_none();
                    // A store that knows a later epoch than the registry: that was set back, and what it says of who holds
                    // the group may be long over.
                    let is_known =
                        self.store.pg_position(group.pg).is_none_or(|(epoch, _)| epoch <= group.config.epoch);
                    if is_over && is_known && group.query_pending.is_none() {
                        group.enter(GroupState::Left { is_marked: false });
                        // What it may have told a primary of what it holds will not be true any more.
                        group.leader = None;
                        self.milestones.pass(Milestone::LeftGroup);
                        self.deletions_are_due = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// Ends the groups of pools that were removed: nobody is a member of them, so what they held is deleted. A pool is removed
    /// when none of its volumes is left. One that is gone before that was not removed: the registry was set back to a time
    /// before the pool was made, and what may be all there is of its volumes stays on the drive.
    pub(crate) fn end_removed_groups(&mut self, io: &mut impl Io) {
        for index in 0..self.groups.len() as u32 {
            let group = &mut self.groups[index as usize];
            let pool = group.pg.pool;
            if self.map.pools.contains_key(&pool)
                || group.config.primary == NOBODY
                || self.volumes.values().any(|volume| volume.pool == pool && !volume.is_removed)
            {
                continue;
            }
            group.target.clear();
            // An epoch that this map does not show may have begun before the pool was removed.
            let epoch = Epoch(group.config.epoch.max(group.epoch).0 + 1);
            let over = PgConfig { epoch, primary: NOBODY, in_sync: Vec::new(), learners: Vec::new() };
            self.handle_config(index, &over, io);
        }
    }

    /// Deletes an object of a group that this OSD left. `false` when the store has no room right now.
    pub(crate) fn delete_left(&mut self, index: u32, key: ObjectKey) -> bool {
        let group = &self.groups[index as usize];
        let GroupState::Left { is_marked } = group.state else { return true };
        let (pg, modulus, epoch) = (group.pg, group.modulus, group.config.epoch);
        let mut staged = Ok(());
        if !is_marked && self.sabotage != Some(Sabotage::KeepLog) {
            staged = self.store.stage_join(pg, modulus, epoch, Sequence(0), self.next_staged_token());
            if staged.is_ok() {
                self.note_staged(StagedRecord::Left { group: index });
                self.groups[index as usize].enter(GroupState::Left { is_marked: true });
            }
        }
        if staged.is_ok() {
            let record = WriteRecord {
                key,
                epoch,
                sequence: Sequence(0),
                origin: 0,
                first_block: 0,
                block_count: OBJECT_BLOCKS as u16,
                token: self.next_staged_token(),
                role: store::Role::Housekeeping,
            };
            staged = self.store.stage_zero(&record);
            if staged.is_ok() {
                self.note_staged(StagedRecord::Left { group: index });
            }
        }
        !matches!(staged, Err(StageError::Busy))
    }
}
