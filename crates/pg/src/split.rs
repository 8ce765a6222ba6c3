//! How a group splits in two while it serves.
//!
//! A group has the objects whose place in their volume's walk, divided by its *modulus*, leaves its number
//! ([`base::PgId::holds`]). When its pool shall have twice as many groups, the modulus doubles, and half of the objects
//! become another group's, its *child*, which the same members hold.
//!
//! 1. The primary ends its epoch and proposes the next one, and with it, in one transaction, a configuration of the
//!    child. Nobody serves the group meanwhile.
//! 2. Whoever hears of the split, by the map or by a query of either half, first splits what it holds: one record in its
//!    store, which gives the child its objects and a copy of the log.
//! 3. Both halves begin their epochs as after any change of a configuration, each with the whole log of the time before:
//!    what was under way is found, and repaired, by the half it belongs to.
//!
//! # Why nothing is lost
//! - *Nobody serves by the old modulus once the split is registered.* The one who could is the primary of the epoch
//!   before. It ended that epoch before it proposed the split; and had it been replaced, its proposal would be refused.
//! - *Each member's halves have what the group had.* Of whatever was staged before the split, the store's order tells
//!   that it is the group's; nothing is staged after it by the old name, for no epoch from before is obeyed any more
//!   ([`Osd::split_group`]), and neither half says where it stands before its split is on stable media.
//! - *Who was away splits before it is asked.* A query tells the modulus, so that no map is needed for that, and of an
//!   older epoch with a smaller one it is refused.

use crate::group::{Group, GroupState};
use crate::io::Io;
use crate::milestone::Milestone;
use crate::osd::Osd;
use crate::placement::{NOBODY, target_of};
use crate::sabotage::Sabotage;
use base::map::PgConfig;
use base::{Epoch, PgId};
use std::time::Duration;
use store::StageError;

/// How long a configuration lasts at least before its group is split: what just changed shall show that it holds.
const SETTLE: Duration = Duration::from_secs(2);

/// A split that is to be staged, before anything else of both groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splitting {
    group: u32,
    child: u32,
    /// Of both from then on.
    modulus: u32,
}

/// The doublings that lead to a modulus, the smallest first, without itself.
fn halvings(modulus: u32) -> impl Iterator<Item = u32> {
    let smallest = modulus >> modulus.trailing_zeros();
    std::iter::successors(Some(smallest), |one| one.checked_mul(2)).take_while(move |one| *one < modulus)
}

impl Osd {
    /// Splits what the map shows to be split.
    pub(crate) fn split_by_map(&mut self, io: &mut impl Io) {
        // The children of the first are among those behind them.
        let mut index = 0;
        while let Some(group) = self.groups.get(index as usize) {
            if let Some(modulus) = self.map.modulus_of(group.pg) {
                self.split_group(index, modulus, io);
            }
            index += 1;
        }
        self.stage_splits();
    }

    /// Splits what a query shows to be split: the group itself, or those that it was split from. One epoch's query is
    /// enough: a modulus is registered before anybody asks by it, and never becomes smaller.
    pub(crate) fn split_by_query(&mut self, pg: PgId, modulus: u32, io: &mut impl Io) {
        for smaller in halvings(modulus) {
            let ancestor = PgId { index: pg.index % smaller, ..pg };
            if let Some(&index) = self.group_index.get(&ancestor)
                && self.groups[index as usize].modulus == smaller
            {
                self.split_group(index, 2 * smaller, io);
            }
        }
        self.stage_splits();
    }

    /// A group has this modulus from here on. What an epoch from before sends is not taken any more.
    fn split_group(&mut self, index: u32, modulus: u32, io: &mut impl Io) {
        if self.groups[index as usize].modulus < modulus / 2 {
            self.milestones.pass(Milestone::SplitMissed);
        }
        while self.groups[index as usize].modulus < modulus {
            let group = &mut self.groups[index as usize];
            match &mut group.state {
                GroupState::Replica { expected } | GroupState::Claiming { expected } => {
                    (*expected, group.leader) = (None, None);
                }
                GroupState::Waiting { .. } | GroupState::Stopped { .. } | GroupState::Left { .. } => {}
                GroupState::Querying { .. } | GroupState::Repairing { .. } | GroupState::Active => {
                    self.end_epoch(index, "it was split", io);
                }
            }
            let group = &mut self.groups[index as usize];
            let child = group.pg.child(group.modulus);
            group.modulus *= 2;
            let (pg, modulus, may_lack_tail) = (group.pg, group.modulus, group.may_lack_tail);
            let has_something = self.store.pg_position(pg).is_some() || group.staged_count > 0;
            if !has_something || self.sabotage == Some(Sabotage::IgnoreSplit) {
                // Nothing to split: what comes, comes by the new modulus.
                continue;
            }
            let child = self.child_group(child);
            // Until the split is on stable media neither says where it stands.
            self.groups[index as usize].staged_count += 1;
            let born = &mut self.groups[child as usize];
            (born.staged_count, born.modulus, born.may_lack_tail) =
                (born.staged_count + 1, modulus, may_lack_tail);
            self.splittings.push_back(Splitting { group: index, child, modulus });
            self.milestones.pass(Milestone::Split);
        }
    }

    /// The group that is split off. Where the map does not show it yet, this member obeys whoever asks by an epoch of it,
    /// and claims nothing.
    fn child_group(&mut self, pg: PgId) -> u32 {
        if let Some(&index) = self.group_index.get(&pg) {
            return index;
        }
        let unknown = PgConfig { epoch: Epoch(0), primary: NOBODY, in_sync: vec![], learners: vec![self.id] };
        let config = self.map.pgs.get(&pg).unwrap_or(&unknown).clone();
        if config.epoch == Epoch(0) {
            self.milestones.pass(Milestone::SplitUnmapped);
        }
        let target = if config.epoch > Epoch(0) { target_of(&self.map, pg, &config) } else { Vec::new() };
        let is_primary = config.primary == self.id;
        let index = self.groups.len() as u32;
        self.group_index.insert(pg, index);
        self.groups.push(Group::new(pg, 0, config, target, is_primary, self.now));
        index
    }

    /// Stages what is to be split, as far as the store takes it now.
    pub(crate) fn stage_splits(&mut self) {
        while let Some(Splitting { group, child, modulus }) = self.splittings.front().copied() {
            let pg = self.groups[group as usize].pg;
            match self.store.stage_split(pg, modulus, self.next_staged_token()) {
                Ok(()) => {
                    self.splittings.pop_front();
                    self.note_split(group, child);
                }
                // Of a drive that failed nothing is expected any more.
                Err(StageError::Busy | StageError::Full | StageError::Failed(_)) => return,
            }
        }
    }

    /// Whether a group that this OSD leads is to be split, and can be: its pool wants it, and it is whole.
    pub(crate) fn is_to_be_split(&self, group: &Group) -> bool {
        let Some(pool) = self.map.pools.get(&group.pg.pool) else { return false };
        pool.split_to == group.modulus.checked_mul(2)
            && group.config.primary == self.id
            && group.is_active()
            && group.is_settled()
            && group.replicas(self.id).all(|osd| self.is_present(osd))
    }

    /// Splits the next group that is to be. One at a time, and only while all others that this OSD leads serve: each
    /// split is a short pause for the clients of two groups.
    pub(crate) fn advance_splitting(&mut self, io: &mut impl Io) {
        let waits = |group: &Group| group.config.primary == self.id && !group.is_active();
        if !self.splittings.is_empty() || self.groups.iter().any(waits) {
            return;
        }
        let is_due = |group: &Group| {
            self.now.since(group.config_seen_at) >= SETTLE
                && self.now >= group.hand_over_after
                && self.is_to_be_split(group)
        };
        if let Some(index) = self.groups.iter().position(is_due) {
            self.propose_split(index as u32, io);
        }
    }

    /// Asks for the next epoch with the same members, and for the child with them too. From here on this OSD serves
    /// nothing of the group.
    fn propose_split(&mut self, index: u32, io: &mut impl Io) {
        self.end_epoch(index, "it is being split", io);
        let group = &mut self.groups[index as usize];
        let config = PgConfig { epoch: Epoch(group.config.epoch.0 + 1), ..group.config.clone() };
        group.enter(GroupState::Claiming { expected: None });
        self.milestones.pass(Milestone::ClaimSplit);
        io.propose_split(group.pg, group.config.epoch, config);
    }
}

impl Group {
    /// Whether it takes writes, and exactly the members of its target hold it, all of them in sync.
    fn is_settled(&self) -> bool {
        self.is_writable()
            && self.learners.is_empty()
            && self.promoted.is_none()
            && self.config.learners.is_empty()
            && self.config.in_sync.len() == self.target.len()
            && self.target.iter().all(|osd| self.config.in_sync.contains(osd))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::osd::Peer;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::{LinkId, ObjectKey, OsdId, PoolId};
    use std::sync::Arc;

    fn key(modulus: u32, object: u32) -> ObjectKey {
        ObjectKey { pg: PgId::of_object(PG.pool, modulus, VOLUME, object), volume: VOLUME, object }
    }

    /// The map of one group that is being split, and was, if there is a child.
    fn map_of(revision: u64, epoch: Epoch, child: Option<Epoch>) -> base::map::ClusterMap {
        let mut map = map(1);
        map.revision = revision;
        map.pools.get_mut(&PG.pool).unwrap().split_to = Some(2);
        let config = map.pgs.get_mut(&PG).unwrap();
        config.epoch = epoch;
        let config = config.clone();
        if let Some(epoch) = child {
            map.pgs.insert(PG.child(1), PgConfig { epoch, ..config });
            map.targets.insert(PG.child(1), vec![OsdId(0)]);
        }
        map
    }

    /// An OSD that has a group with eight objects in it, and asks for that to be split.
    fn about_to_split() -> (Alone, Epoch) {
        let mut alone = Alone::new();
        for object in 0..8 {
            alone.write(key(1, object));
        }
        let epoch = alone.osd.groups[0].epoch;
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, None)), &mut alone.io);
        alone.run();
        let (pg, config) = alone.io.splits.pop().expect("it asks for that");
        assert_eq!((pg, config.epoch), (PG, Epoch(epoch.0 + 1)));
        assert!(!alone.osd.groups[0].is_active(), "nobody is served meanwhile");
        (alone, config.epoch)
    }

    fn index_of(alone: &Alone, pg: PgId) -> usize {
        alone.osd.groups.iter().position(|group| group.pg == pg).unwrap()
    }

    #[test]
    fn a_group_that_splits_gives_half_of_its_objects_to_another_and_both_serve() {
        let (mut alone, epoch) = about_to_split();
        let before: Vec<_> = alone.osd.store.pg_log(PG).filter(|entry| !entry.is_mark()).collect();
        alone.osd.handle_map(alone.now, Arc::new(map_of(3, epoch, Some(epoch))), &mut alone.io);
        let config = alone.osd.map.pgs[&PG].clone();
        alone.osd.handle_proposal(alone.now, PG, Some(config), &mut alone.io);
        alone.run();
        assert!(alone.osd.groups.iter().all(Group::is_active), "{:?}", alone.osd.groups);
        let mut held: Vec<ObjectKey> = alone.osd.store.objects().collect();
        held.sort_by_key(|key| key.object);
        assert_eq!(held, (0..8).map(|object| key(2, object)).collect::<Vec<_>>());
        for pg in [PG, PG.child(1)] {
            let log: Vec<_> = alone.osd.store.pg_log(pg).filter(|entry| !entry.is_mark()).collect();
            assert_eq!(log, before, "what was done before is known to both halves");
        }
        alone.osd.store.verify().unwrap();
        for index in 0..2 {
            let group = &alone.osd.groups[index];
            let is_right = |object: &u32| group.holds(&key(2, *object));
            assert_eq!((0..8).filter(is_right).count(), 4);
            assert!(!(0..8).any(|object| is_right(&object) && key(2, object).pg != group.pg));
        }
        // An old map is no reason to split again, nor to forget it.
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, None)), &mut alone.io);
        assert!(alone.osd.splittings.is_empty() && alone.osd.groups.len() == 2);
    }

    #[test]
    fn neither_half_says_where_it_stands_before_the_split_is_on_stable_media() {
        let (mut alone, epoch) = about_to_split();
        // A later primary of both asks, and no map was seen.
        let (link, leader) = (LinkId(1), OsdId(1));
        alone.osd.peers.insert(link, Peer::Osd(crate::osd::OsdLink::new(leader, true, alone.now)));
        let child = PG.child(1);
        alone.io.sent.clear();
        alone.osd.handle_query(link, child, 2, Epoch(epoch.0 + 1), &mut alone.io);
        alone.osd.handle_query(link, PG, 2, Epoch(epoch.0 + 1), &mut alone.io);
        assert!(alone.io.sent.is_empty());
        let born = &alone.osd.groups[index_of(&alone, child)];
        assert_eq!((born.config.epoch, born.modulus, born.may_lack_tail), (Epoch(0), 2, false));
        alone.osd.end_turn(alone.now, &mut alone.io);
        for (token, buffer, result) in std::mem::take(&mut alone.io.drive) {
            assert!(alone.io.sent.is_empty());
            alone.osd.handle_file(alone.now, token, buffer, result, &mut alone.io);
        }
        alone.run();
        let mut told = Vec::new();
        let mut sent = &alone.io.sent[..];
        while let Some((message, size)) = wire::parse(sent).unwrap() {
            if let wire::Message::Position(position) = message {
                told.push((position.pg, position.entries().count()));
            }
            sent = &sent[size..];
        }
        told.sort_unstable();
        let entries = alone.osd.store.pg_log(PG).count();
        assert_eq!(told, [(PG, entries), (child, entries)]);
        assert!((0..8).all(|object| alone.holds(key(2, object))));
    }

    #[test]
    fn a_query_by_the_modulus_of_before_is_of_an_epoch_that_is_over() {
        let (mut alone, epoch) = about_to_split();
        alone.osd.handle_map(alone.now, Arc::new(map_of(3, epoch, Some(epoch))), &mut alone.io);
        alone.run();
        let link = LinkId(1);
        alone.osd.peers.insert(link, Peer::Osd(crate::osd::OsdLink::new(OsdId(1), true, alone.now)));
        let epochs: Vec<Epoch> = alone.osd.groups.iter().map(|group| group.epoch).collect();
        alone.osd.handle_query(link, PG, 1, Epoch(epoch.0 + 9), &mut alone.io);
        assert_eq!(alone.osd.groups.iter().map(|group| group.epoch).collect::<Vec<_>>(), epochs);
        alone.osd.handle_query(link, PgId { pool: PoolId(9), index: 0 }, 64, Epoch(1), &mut alone.io);
        assert_eq!(alone.osd.groups.len(), 2, "what is held of no group is not split");
    }

    #[test]
    fn several_doublings_that_were_missed_are_made_up_for_in_their_order() {
        let mut alone = Alone::new();
        for object in 0..8 {
            alone.write(key(1, object));
        }
        let epoch = alone.osd.groups[0].epoch;
        let mut map = map_of(2, Epoch(epoch.0 + 4), None);
        let config = map.pgs[&PG].clone();
        let pool = map.pools.get_mut(&PG.pool).unwrap();
        (pool.pg_count, pool.split_to) = (2, Some(4));
        // Group 0 was split twice, group 1 is not yet.
        for index in [1, 2] {
            map.pgs.insert(PgId { index, ..PG }, config.clone());
            map.targets.insert(PgId { index, ..PG }, vec![OsdId(0)]);
        }
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        let moduli: Vec<_> = alone.osd.groups.iter().map(|group| (group.pg.index, group.modulus)).collect();
        assert_eq!(moduli, [(0, 4), (1, 2), (2, 4)]);
        alone.run();
        alone.osd.store.verify().unwrap();
        for object in 0..8 {
            assert!(
                alone.holds(ObjectKey { pg: map.pg_of(PG.pool, VOLUME, object).unwrap(), ..key(1, object) })
            );
        }
    }
}
