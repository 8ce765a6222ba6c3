//! How a group splits in two while it serves.
//!
//! A group has the objects whose place in their volume's walk, divided by its *modulus*, leaves its number
//! ([`base::PgId::holds`]). When its pool shall have twice as many groups, the modulus doubles, and half of the objects
//! become another group's, its *child*, which the same members hold.
//!
//! 1. The primary ends its epoch and proposes the next one, and with it, in one transaction, a configuration of the
//!    child. Nobody serves the group meanwhile.
//! 2. Whoever sees the split in the map first splits what it holds: one record in its store, which gives the child its
//!    objects and a copy of the log.
//! 3. Both halves begin their epochs as after any change of a configuration, each with the whole log of the time before:
//!    what was under way is found, and repaired, by the half it belongs to.
//!
//! # Why nothing is lost
//! - *Nobody serves by the old modulus once the split is registered.* The one who could is the primary of the epoch
//!   before. It ended that epoch before it proposed the split; and had it been replaced, its proposal would be refused.
//! - *Each member's halves have what the group had.* Of whatever was staged before the split, the store's order tells
//!   that it is the group's; nothing is staged after it by the old name, for no epoch from before is obeyed any more
//!   ([`Splits::split_group`]), and neither half says where it stands before its split is on stable media.
//! - *Who was away splits before it is asked.* A query is obeyed only if the map shows its epoch, and the map that shows an epoch
//!   from after the split shows the child too: one transaction brought both. So whoever asks and whoever is asked go by the same
//!   modulus, which the query tells too, and one by another is of an epoch that is over.

use super::placement::target_of;
use crate::broken::Sabotage;
use crate::context::Context;
use crate::epoch::{self, claim};
use crate::group::Group;
use crate::group::role::State;
use crate::io::Io;
use crate::journal::Milestone;
use crate::ledger::StagedRecord;
use base::PgId;
use std::collections::VecDeque;
use std::time::Duration;

/// How long a configuration lasts at least before its group is split: what just changed shall show that it holds.
const SETTLE: Duration = Duration::from_secs(2);

/// A split that is to be staged, before anything else of both groups.
#[derive(Clone, Copy, Debug)]
struct Splitting {
    group: u32,
    child: u32,
    /// Of both from then on.
    modulus: u32,
}

/// Splits that the store is yet to take.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    queue: VecDeque<Splitting>,
}

impl Splits {
    /// Whether none waits for the store.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Splits what the map shows to be split.
    pub(crate) fn by_map(&mut self, cx: &mut Context<'_, impl Io>) {
        // The children of the first are among those behind them.
        let mut index = 0;
        while let Some(group) = cx.groups.get(index) {
            if let Some(modulus) = cx.volumes.map.modulus_of(group.pg) {
                self.split_group(cx, index, modulus);
            }
            index += 1;
        }
        self.stage(cx);
    }

    /// A group has this modulus from here on. What an epoch from before sends is not taken any more.
    fn split_group(&mut self, cx: &mut Context<'_, impl Io>, index: u32, modulus: u32) {
        if cx.groups[index].modulus < modulus / 2 {
            cx.pass(Milestone::SplitMissed);
        }
        while cx.groups[index].modulus < modulus {
            let group = &cx.groups[index];
            let child = group.pg.child(group.modulus);
            let has_something = cx.disk.store.pg_position(group.pg).is_some() || group.staged_count > 0;
            let is_split_here = has_something && !cx.breaks(Sabotage::IgnoreSplit);
            let child = if is_split_here { child_group(cx, child) } else { None };
            if is_split_here && child.is_none() {
                // No map shows the one without the other.
                return;
            }
            let group = &mut cx.groups[index];
            match group.state() {
                State::Replica | State::Learner | State::Candidate | State::Claiming => {
                    group.standing.was_split();
                    group.leader = None;
                }
                State::Waiting | State::Stopped | State::Left => {}
                State::Querying | State::Repairing | State::Active => epoch::end(cx, index, "it was split"),
            }
            let group = &mut cx.groups[index];
            group.modulus *= 2;
            // Where there is nothing to split, what comes, comes by the new modulus.
            let Some(child) = child else { continue };
            // Until the split is on stable media neither says where it stands.
            group.staged_count += 1;
            let (modulus, tail) = (group.modulus, group.tail);
            let born = &mut cx.groups[child];
            (born.staged_count, born.modulus, born.tail) = (born.staged_count + 1, modulus, tail);
            self.queue.push_back(Splitting { group: index, child, modulus });
            cx.pass(Milestone::Split);
        }
    }

    /// Stages what is to be split, as far as the store takes it now.
    pub(crate) fn stage(&mut self, cx: &mut Context<'_, impl Io>) {
        while let Some(Splitting { group, child, modulus }) = self.queue.front().copied() {
            let pg = cx.groups[group].pg;
            // Of a drive that failed nothing is expected any more.
            if cx.disk.store.stage_split(pg, modulus, cx.ledger.next_token()).is_err() {
                return;
            }
            self.queue.pop_front();
            cx.note_staged(group, StagedRecord::Split { child });
        }
    }

    /// Splits the next group that is to be. One at a time, and only while none that this OSD leads is about to serve: each
    /// split is a short pause for the clients of two groups. One that cannot serve, for want of members or of its pool, holds
    /// nobody up.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        if !self.is_idle() || !claim::may_end_by_choice(cx) {
            return;
        }
        let is_due = |group: &Group| {
            cx.now.since(group.pauses.config_seen_at) >= SETTLE
                && cx.now >= group.pauses.hand_over_after
                && is_to_be_split(cx, group)
        };
        let due = cx.groups.indices().find(|index| is_due(&cx.groups[*index]));
        let waits =
            |index: u32| cx.groups[index].config.primary == cx.me.id && claim::is_on_its_way(cx, index);
        if let Some(index) = due
            && !cx.groups.indices().any(waits)
        {
            claim::propose_split(cx, index);
        }
    }
}

/// The group that is split off, of which this OSD is a member or has something at least; `None` if the map does not show it.
fn child_group(cx: &mut Context<'_, impl Io>, pg: PgId) -> Option<u32> {
    if let Some(index) = cx.groups.find(pg) {
        return Some(index);
    }
    let config = cx.volumes.map.pgs.get(&pg)?.clone();
    let target = target_of(&cx.volumes.map, pg, &config);
    let is_primary = config.primary == cx.me.id;
    Some(cx.groups.add(Group::new(pg, 0, config, target, is_primary, cx.now)))
}

/// Whether a group that this OSD leads is to be split, and can be: its pool wants it, and it is whole.
pub(crate) fn is_to_be_split(cx: &Context<'_, impl Io>, group: &Group) -> bool {
    let Some(pool) = cx.volumes.map.pools.get(&group.pg.pool) else { return false };
    pool.split_to == group.modulus.checked_mul(2)
        && group.config.primary == cx.me.id
        && group.is_active()
        && is_settled(group)
        && group.replicas(cx.me.id).all(|osd| cx.can_follow(osd))
}

/// Whether a group that serves takes writes, and exactly the members of its target hold it, all of them in sync.
fn is_settled(group: &Group) -> bool {
    let target = &group.wanted.target;
    group.is_writable()
        && group.learners().is_empty()
        && group.config.learners.is_empty()
        && group.config.in_sync.len() == target.len()
        && target.iter().all(|osd| group.config.in_sync.contains(osd))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::group::LogTail;
    use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME, map};
    use base::map::{OsdInfo, PgConfig, PoolInfo};
    use base::{Epoch, ObjectKey, OsdId, PoolId, Sequence};
    use std::sync::Arc;
    use wire::Activate;

    fn key(modulus: u32, object: u32) -> ObjectKey {
        ObjectKey {
            pg: PgId::of_object(PG.pool, modulus, VOLUME, object),
            layer: VOLUME.first_layer(),
            object,
        }
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
        let epoch = alone.osd.shared.groups[0].epoch;
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, None)), &mut alone.io);
        alone.run();
        let (pg, config) = alone.io.splits.pop().expect("it asks for that");
        assert_eq!((pg, config.epoch), (PG, Epoch(epoch.0 + 1)));
        assert!(!alone.osd.shared.groups[0].is_active(), "nobody is served meanwhile");
        (alone, config.epoch)
    }

    fn index_of(alone: &Alone, pg: PgId) -> u32 {
        alone.osd.shared.groups.find(pg).unwrap()
    }

    #[test]
    fn a_group_that_splits_gives_half_of_its_objects_to_another_and_both_serve() {
        let (mut alone, epoch) = about_to_split();
        let before: Vec<_> =
            alone.osd.shared.disk.store.pg_log(PG).filter(|entry| !entry.is_mark()).collect();
        alone.osd.handle_map(alone.now, Arc::new(map_of(3, epoch, Some(epoch))), &mut alone.io);
        let config = alone.osd.shared.volumes.map.pgs[&PG].clone();
        alone.osd.handle_proposal(alone.now, PG, Some(config), &mut alone.io);
        alone.run();
        assert!(alone.osd.shared.groups.iter().all(Group::is_active), "{:?}", alone.osd.shared.groups);
        let mut held: Vec<ObjectKey> = alone.osd.shared.disk.store.objects().collect();
        held.sort_by_key(|key| key.object);
        assert_eq!(held, (0..8).map(|object| key(2, object)).collect::<Vec<_>>());
        for pg in [PG, PG.child(1)] {
            let log: Vec<_> =
                alone.osd.shared.disk.store.pg_log(pg).filter(|entry| !entry.is_mark()).collect();
            assert_eq!(log, before, "what was done before is known to both halves");
        }
        alone.osd.shared.disk.store.verify().unwrap();
        let passed = ["split: what is held here is split", "split: several that were missed"];
        assert_eq!(passed.map(|milestone| alone.passed(milestone)), [1, 0]);
        for index in 0..2 {
            let group = &alone.osd.shared.groups[index];
            let is_right = |object: &u32| group.holds(&key(2, *object));
            assert_eq!((0..8).filter(is_right).count(), 4);
            assert!(!(0..8).any(|object| is_right(&object) && key(2, object).pg != group.pg));
        }
        // An old map is no reason to split again, nor to forget it.
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, None)), &mut alone.io);
        assert!(alone.osd.router.splits.is_idle() && alone.osd.shared.groups.iter().count() == 2);
    }

    #[test]
    fn neither_half_says_where_it_stands_before_the_split_is_on_stable_media() {
        let (mut alone, epoch) = about_to_split();
        // Another one was faster. It asks about both halves before the map tells of that.
        let (child, leader, next) = (PG.child(1), OsdId(1), Epoch(epoch.0 + 1));
        let link = alone.connect(leader);
        alone.io.sent.clear();
        alone.query(link, child, 2, next);
        alone.query(link, PG, 2, next);
        assert_eq!(alone.osd.shared.groups.iter().count(), 1, "nothing is split by its word");
        both_are_led_by(&mut alone, leader, next);
        let born = &alone.osd.shared.groups[index_of(&alone, child)];
        assert_eq!((born.epoch, born.leader), (next, Some(leader)));
        assert_eq!((born.modulus, born.tail), (2, LogTail::IsKnown));
        alone.osd.end_turn(alone.now, &mut alone.io);
        assert!(told(&alone).is_empty());
        alone.settles();
        let entries = alone.osd.shared.disk.store.pg_log(PG).count();
        assert_eq!(told(&alone), [(PG, entries), (child, entries)]);
        assert!((0..8).all(|object| alone.holds(key(2, object))));
    }

    #[test]
    fn neither_half_begins_an_epoch_before_the_split_is_on_stable_media() {
        let (mut alone, epoch) = about_to_split();
        let (leader, next) = (OsdId(1), Epoch(epoch.0 + 1));
        let link = alone.connect(leader);
        both_are_led_by(&mut alone, leader, next);
        let mut said: Vec<u8> = Vec::new();
        for pg in [PG, PG.child(1)] {
            alone.query(link, pg, 2, next);
            said.extend(Activate { pg, epoch: next, mark: Sequence(50), join: None }.encode());
        }
        // It does not wait until it is told where this member stands.
        let progress = alone.osd.handle_bytes(alone.now, link, &said, &mut alone.io).unwrap();
        assert_eq!((progress.consumed, progress.is_stalled), (0, true));
        alone.settles();
        let progress = alone.osd.handle_bytes(alone.now, link, &said, &mut alone.io).unwrap();
        assert_eq!(progress.consumed, said.len());
        alone.settles();
        for group in alone.osd.shared.groups.iter() {
            let following = group.standing.following().unwrap();
            assert_eq!(following.expected, Some(Sequence(51)), "pg {}", group.pg);
        }
        assert!((0..8).all(|object| alone.holds(key(2, object))));
        alone.osd.shared.disk.store.verify().unwrap();
    }

    #[test]
    fn who_followed_a_group_that_was_split_takes_no_order_of_the_epoch_before() {
        let mut alone = Alone::new();
        (0..8).for_each(|object| alone.write(key(1, object)));
        let (leader, epoch) = (OsdId(1), Epoch(alone.osd.shared.groups[0].epoch.0 + 1));
        let link = alone.connect(leader);
        alone.is_led_by(leader, epoch);
        alone.query(link, PG, 1, epoch);
        let begun = Activate { pg: PG, epoch, mark: Sequence(50), join: None }.encode();
        alone.osd.handle_bytes(alone.now, link, &begun, &mut alone.io).unwrap();
        alone.settles();
        let follows = |alone: &Alone| {
            let group = &alone.osd.shared.groups[0];
            (group.leader, group.standing.following().and_then(|following| following.expected))
        };
        assert_eq!(follows(&alone), (Some(leader), Some(Sequence(51))));
        both_are_led_by(&mut alone, leader, Epoch(epoch.0 + 1));
        assert_eq!(follows(&alone), (None, None));
        assert_eq!(alone.osd.shared.groups[0].modulus, 2);
    }

    #[test]
    fn a_group_that_serves_when_a_map_shows_that_it_was_split_serves_no_more_in_that_epoch() {
        let mut alone = Alone::new();
        alone.write(key(1, 3));
        let epoch = alone.osd.shared.groups[0].epoch;
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, Some(epoch))), &mut alone.io);
        let group = &alone.osd.shared.groups[0];
        assert!(!group.is_active() && group.modulus == 2, "{group:?}");
    }

    #[test]
    fn of_a_group_of_which_nothing_is_held_only_the_modulus_changes() {
        let mut alone = Alone::new();
        alone.with(|router, cx| {
            let (pg, primary) = (PgId { pool: PoolId(9), index: 0 }, OsdId(1));
            let in_sync = vec![primary];
            let config =
                PgConfig { epoch: Epoch(1), primary, in_sync: in_sync.clone(), ..PgConfig::default() };
            let index = cx.groups.add(Group::new(pg, 1, config, in_sync, false, cx.now));
            router.splits.split_group(cx, index, 4);
            assert!(cx.groups[index].modulus == 4 && router.splits.is_idle());
            // Something is on its way to the drive, and no map shows where half of it goes.
            cx.groups[index].staged_count = 1;
            router.splits.split_group(cx, index, 8);
            assert!(cx.groups[index].modulus == 4 && router.splits.is_idle());
        });
        assert_eq!(alone.osd.shared.groups.iter().count(), 2);
    }

    #[test]
    fn a_half_that_others_are_to_hold_goes_and_the_other_half_stays() {
        let (mut alone, epoch) = about_to_split();
        let (child, other) = (PG.child(1), OsdId(1));
        let mut map = map_of(3, epoch, Some(epoch));
        map.osds.insert(other, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
        let config = map.pgs.get_mut(&child).unwrap();
        (config.primary, config.in_sync) = (other, vec![other]);
        map.targets.insert(child, vec![other]);
        let config = map.pgs[&PG].clone();
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.osd.handle_proposal(alone.now, PG, Some(config), &mut alone.io);
        alone.run();
        let group = &alone.osd.shared.groups[index_of(&alone, child)];
        assert!(group.has_left() && group.modulus == 2, "{group:?}");
        let mut held: Vec<ObjectKey> = alone.osd.store().objects().collect();
        held.sort_by_key(|key| key.object);
        let kept = (0..8).map(|object| key(2, object)).filter(|key| key.pg == PG);
        assert_eq!(held, kept.collect::<Vec<_>>());
        assert!(alone.osd.shared.groups[0].is_active());
    }

    #[test]
    fn a_group_is_split_when_its_configuration_has_lasted_and_no_other_split_waits() {
        let mut alone = Alone::new();
        let epoch = alone.osd.shared.groups[0].epoch;
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, None)), &mut alone.io);
        let moment = Duration::from_nanos(1);
        for (lasted, pause, waits, is_asked) in [
            (SETTLE - moment, Duration::ZERO, false, false),
            (SETTLE, moment, false, false),
            (SETTLE, Duration::ZERO, true, false),
            (SETTLE, Duration::ZERO, false, true),
        ] {
            alone.with(|router, cx| {
                let now = cx.now;
                let pauses = &mut cx.groups[0].pauses;
                (pauses.config_seen_at, pauses.hand_over_after) = (now - lasted, now + pause);
                if waits {
                    router.splits.queue.push_back(Splitting { group: 0, child: 0, modulus: 2 });
                }
                router.splits.advance(cx);
                router.splits.queue.clear();
            });
            assert_eq!(alone.io.splits.len(), usize::from(is_asked), "{lasted:?} {pause:?} {waits}");
        }
    }

    #[test]
    fn no_group_is_split_before_the_registry_answers() {
        let mut alone = Alone::new();
        let epoch = alone.osd.shared.groups[0].epoch;
        alone.osd.handle_map(alone.now, Arc::new(map_of(2, epoch, None)), &mut alone.io);
        alone.now = alone.now + Duration::from_secs(5);
        for answers in [false, true] {
            if answers {
                alone.osd.handle_registry(alone.now);
            }
            alone.with(|router, cx| router.splits.advance(cx));
            assert_eq!(alone.osd.shared.groups[0].is_active(), !answers);
            assert_eq!(alone.io.splits.len(), usize::from(answers));
        }
    }

    #[test]
    fn only_a_group_is_split_that_exactly_its_target_holds_and_whose_members_can_all_follow() {
        let mut pair = Pair::new();
        let map = Arc::make_mut(&mut pair.alone.osd.shared.volumes.map);
        map.pools.get_mut(&PG.pool).unwrap().split_to = Some(2);
        let is_to_be = |pair: &mut Pair| pair.alone.with(|_, cx| is_to_be_split(cx, &cx.groups[0]));
        assert!(is_to_be(&mut pair));
        let is_heard_at = |pair: &mut Pair, address| {
            let map = Arc::make_mut(&mut pair.alone.osd.shared.volumes.map);
            std::mem::replace(&mut map.osds.get_mut(&REPLICA).unwrap().address, address)
        };
        let address = is_heard_at(&mut pair, None);
        assert!(!is_to_be(&mut pair), "one of them does not reach the registry");
        is_heard_at(&mut pair, address);
        let group = &mut pair.alone.osd.shared.groups[0];
        group.wanted.min_size = 3;
        assert!(!is_settled(group));
        group.wanted.min_size = 2;
        group.config.learners = vec![OsdId(2)];
        assert!(!is_settled(group));
        group.config.learners.clear();
        for target in [vec![0, 1, 2], vec![0], vec![0, 2]] {
            group.wanted.target = target.iter().copied().map(OsdId).collect();
            assert!(!is_settled(group), "{target:?}");
        }
        group.wanted.target = vec![REPLICA, OsdId(0)];
        assert!(is_settled(group) && is_to_be(&mut pair));
    }

    /// The map comes by which the group was split, and another OSD leads both halves in that epoch.
    fn both_are_led_by(alone: &mut Alone, leader: OsdId, epoch: Epoch) {
        let mut map = map_of(3, epoch, Some(epoch));
        for pg in [PG, PG.child(1)] {
            let config = map.pgs.get_mut(&pg).unwrap();
            (config.primary, config.in_sync) = (leader, vec![leader, OsdId(0)]);
            map.targets.insert(pg, config.in_sync.clone());
        }
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    }

    /// The groups of which this OSD said where it stands, with how many entries of its log.
    fn told(alone: &Alone) -> Vec<(PgId, usize)> {
        let (mut told, mut sent) = (Vec::new(), &alone.io.sent[..]);
        while let Some((message, size)) = wire::parse(sent).unwrap() {
            if let wire::Message::Position(position) = message {
                told.push((position.head.pg, position.entries().count()));
            }
            sent = &sent[size..];
        }
        told.sort_unstable();
        told
    }

    #[test]
    fn a_query_by_the_modulus_of_before_is_of_an_epoch_that_is_over() {
        let (mut alone, epoch) = about_to_split();
        alone.osd.handle_map(alone.now, Arc::new(map_of(3, epoch, Some(epoch))), &mut alone.io);
        alone.run();
        let (link, later) = (alone.connect(OsdId(1)), Epoch(epoch.0 + 9));
        alone.is_led_by(OsdId(1), later);
        let before = alone.osd.shared.groups[0].epoch;
        alone.query(link, PG, 1, later);
        assert_eq!(alone.osd.shared.groups[0].epoch, before);
        alone.query(link, PG, 2, later);
        assert_eq!(alone.osd.shared.groups[0].epoch, later);
        alone.query(link, PgId { pool: PoolId(9), index: 0 }, 64, Epoch(1));
        assert_eq!(alone.osd.shared.groups.iter().count(), 2, "what is held of no group is not split");
    }

    #[test]
    fn a_group_is_split_when_no_other_that_this_osd_leads_is_about_to_serve() {
        let mut alone = Alone::with_groups(2);
        let mut map = map(2);
        map.revision = 2;
        map.pools.get_mut(&PG.pool).unwrap().split_to = Some(4);
        for (pg, config) in &mut map.pgs {
            config.epoch = alone.osd.shared.groups[index_of(&alone, *pg)].epoch;
        }
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.now = alone.now + 2 * SETTLE;
        alone.with(|router, cx| {
            epoch::end(cx, 1, "a test");
            router.splits.advance(cx);
        });
        assert!(alone.io.splits.is_empty(), "the clients of the other group wait already");
        alone.run();
        assert_eq!(alone.io.splits.len(), 1);
    }

    #[test]
    fn a_group_that_cannot_serve_for_want_of_members_or_of_its_pool_holds_up_no_split() {
        let (other, away) = (PgId { pool: PoolId(2), index: 0 }, OsdId(1));
        for has_pool in [true, false] {
            let mut alone = Alone::new();
            let epoch = alone.osd.shared.groups[0].epoch;
            let before = map_of(2, epoch, None);
            let mut with_other = before.clone();
            with_other.osds.insert(away, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
            let members = vec![OsdId(0), away];
            let config = PgConfig {
                epoch: Epoch(1),
                primary: OsdId(0),
                in_sync: members.clone(),
                ..PgConfig::default()
            };
            with_other.pgs.insert(other, config);
            with_other.targets.insert(other, members);
            let pool = PoolInfo { size: 2, min_size: 2, split_to: None, ..before.pools[&PG.pool].clone() };
            with_other.pools.insert(other.pool, pool);
            if !has_pool {
                // It knows the group, and then no map shows it or its pool any more; nobody says that it was removed.
                let mut no_split = with_other.clone();
                no_split.pools.get_mut(&PG.pool).unwrap().split_to = None;
                alone.osd.handle_map(alone.now, Arc::new(no_split), &mut alone.io);
                alone.run();
                assert!(alone.io.splits.is_empty());
            }
            let newest = if has_pool { with_other } else { before };
            let newest = base::map::ClusterMap { revision: 3, ..newest };
            alone.osd.handle_map(alone.now, Arc::new(newest), &mut alone.io);
            alone.run();
            let group = &alone.osd.shared.groups[index_of(&alone, other)];
            assert!(group.config.primary == OsdId(0) && !group.is_active(), "{group:?}");
            let asked: Vec<PgId> = alone.io.splits.iter().map(|(pg, _)| *pg).collect();
            assert_eq!(asked, [PG]);
        }
    }

    #[test]
    fn several_doublings_that_were_missed_are_made_up_for_in_their_order() {
        let mut alone = Alone::new();
        for object in 0..8 {
            alone.write(key(1, object));
        }
        let epoch = alone.osd.shared.groups[0].epoch;
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
        let moduli: Vec<_> =
            alone.osd.shared.groups.iter().map(|group| (group.pg.index, group.modulus)).collect();
        assert_eq!(moduli, [(0, 4), (1, 2), (2, 4)]);
        let passed = ["split: what is held here is split", "split: several that were missed"];
        assert_eq!(passed.map(|milestone| alone.passed(milestone)), [2, 1]);
        alone.run();
        alone.osd.shared.disk.store.verify().unwrap();
        for object in 0..8 {
            assert!(
                alone.holds(ObjectKey { pg: map.pg_of(PG.pool, VOLUME, object).unwrap(), ..key(1, object) })
            );
        }
    }
}
