//! Deletions: objects of removed volumes, and what is left of groups that this OSD left.
//!
//! What a removed volume held is deleted by the primary, as ordinary ordered zeroings. Of a group that this OSD left it
//! deletes its own copy alone; before the first block goes, its log says that it does not tell any more what it has. When nothing
//! of a removed pool is there any more, the logs of its groups go too: no number of a pool is ever used again.
//!
//! To find it, all objects of the store are searched, when a map or a group that is left asks for it. What was found waits by
//! group. Groups that can delete at this moment take turns, and what cannot go, as where another OSD leads the group, keeps
//! nobody; it is looked through for what has gone by others' doing. The objects are searched once more when all that was found
//! was looked at, and some of it was deleted or all of it is gone.

use crate::broken::Sabotage;
use crate::context::Context;
use crate::group::Group;
use crate::group::role::Role;
use crate::io::Io;
use crate::journal::Milestone;
use crate::ledger::StagedRecord;
use crate::operation::{OperationKind, Purpose};
use crate::pace::DELETION_COST;
use crate::replication::order;
use base::{BlockRange, ObjectKey, PgId, PoolId, Sequence, WorkClass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use store::StageError;
use wire::Replicate;

/// Deletions that are begun with each tick: half of the records that a batch of the store has room for.
const BEGUN_PER_TICK: usize = 40;
/// Objects that are looked at with each tick in groups that can delete, and as many in those that cannot.
const LOOKED_AT_PER_TICK: usize = 1024;

/// What was found of a group and has not gone.
#[derive(Debug, Default)]
struct Found {
    keys: VecDeque<ObjectKey>,
    /// So many at the front were not looked at yet, since they were found or since all were.
    fresh: usize,
}

impl Found {
    /// Takes out the next one to be looked at.
    fn next(&mut self) -> Option<ObjectKey> {
        self.fresh = self.fresh.saturating_sub(1);
        self.keys.pop_front()
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    /// Groups of which nothing is left are absent.
    found: BTreeMap<PgId, Found>,
    /// The group that had its turn last.
    last: PgId,
    /// There may be more to delete than what was found.
    pub(crate) are_due: bool,
}

impl Deletions {
    /// Whether nothing is to be deleted.
    pub(crate) fn is_idle(&self) -> bool {
        self.found.is_empty() && !self.are_due
    }

    /// Notes an object that may have to be deleted.
    pub(crate) fn note(&mut self, key: ObjectKey) {
        let found = self.found.entry(key.pg).or_default();
        found.keys.push_back(key);
        found.fresh += 1;
    }

    /// Looks for what is to be deleted, when all that was found before was looked at.
    pub(crate) fn look(&mut self, cx: &mut Context<'_, impl Io>) {
        if self.found.values().any(|found| found.fresh > 0) {
            return;
        }
        if !self.are_due {
            return self.found.values_mut().for_each(|found| found.fresh = found.keys.len());
        }
        cx.pass(Milestone::DeletionSearched);
        self.found.clear();
        let is_due = |key: &ObjectKey| {
            let has_left = cx.groups.find(key.pg).is_some_and(|index| cx.groups[index].has_left());
            cx.volumes.is_removed(key.layer) || has_left
        };
        for key in cx.disk.store.objects().filter(is_due) {
            self.note(key);
        }
        let is_forgotten = forget_removed(cx);
        // What was pushed here just before may not be among the objects yet.
        let may_come = |group: &Group| group.staged_count > 0 && group.has_left();
        self.are_due = cx.groups.iter().any(may_come) || !is_forgotten;
    }

    /// Deletes objects, so many with each tick.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        if self.found.is_empty() {
            return;
        }
        let behind = self.found.range((Bound::Excluded(self.last), Bound::Unbounded));
        let order = behind.chain(self.found.range(..=self.last)).map(|(pg, _)| *pg);
        let (can, cannot): (Vec<PgId>, Vec<PgId>) = order.partition(|pg| can_delete(cx, *pg));
        self.delete_some(cx, &can);
        self.pass_over_some(cx, &cannot);
        self.are_due |= self.found.is_empty();
    }

    /// Deletes what was found of these groups, until so much was begun. Who has more than that is the last one the next time.
    fn delete_some(&mut self, cx: &mut Context<'_, impl Io>, groups: &[PgId]) {
        let (mut begins_left, mut looks_left) = (BEGUN_PER_TICK, LOOKED_AT_PER_TICK);
        for pg in groups {
            if begins_left.min(looks_left) == 0 || !cx.rates.pace.may_work(cx.now, WorkClass::Deletion) {
                return;
            }
            let Some(mut found) = self.found.remove(pg) else { continue };
            self.last = *pg;
            for _ in 0..found.keys.len() {
                if begins_left.min(looks_left) == 0 || !cx.rates.pace.may_work(cx.now, WorkClass::Deletion) {
                    break;
                }
                let Some(key) = found.next() else { break };
                looks_left -= 1;
                if self.is_done(cx, &key) {
                    continue;
                }
                let begun = delete(cx, key);
                if begun == Ok(true) {
                    begins_left -= 1;
                    cx.work_begins(WorkClass::Deletion, DELETION_COST);
                    // It is looked for again, for the deletion may come to nothing.
                    self.are_due = true;
                    continue;
                }
                found.keys.push_back(key);
                if begun.is_err() {
                    // Perhaps too much of this group is under way, and of the next one is not.
                    break;
                }
            }
            self.put_back(*pg, found);
        }
    }

    /// Drops what is done with among what was found of these groups.
    fn pass_over_some(&mut self, cx: &Context<'_, impl Io>, groups: &[PgId]) {
        let mut looks_left = LOOKED_AT_PER_TICK;
        for pg in groups {
            if looks_left == 0 {
                return;
            }
            let Some(mut found) = self.found.remove(pg) else { continue };
            while found.fresh > 0 && looks_left > 0 {
                let Some(key) = found.next() else { break };
                looks_left -= 1;
                if !self.is_done(cx, &key) {
                    found.keys.push_back(key);
                }
            }
            self.put_back(*pg, found);
        }
    }

    fn put_back(&mut self, pg: PgId, found: Found) {
        if !found.keys.is_empty() {
            self.found.insert(pg, found);
        }
    }

    /// Whether nothing is to be done any more with an object that was found.
    fn is_done(&mut self, cx: &Context<'_, impl Io>, key: &ObjectKey) -> bool {
        let group = cx.groups.find(key.pg).map(|index| &cx.groups[index]);
        if group.is_some_and(|group| !group.holds(key)) {
            // It went to the other half since, and is looked for there.
            self.are_due = true;
            return true;
        }
        // This OSD may be a member again, and even lead the group, since what it held was to be deleted.
        let is_kept = group.is_some_and(|group| !group.has_left()) && !cx.volumes.is_removed(key.layer);
        is_kept || cx.disk.store.block_count(key) == 0
    }
}

/// Whether anything of a group can be deleted here at this moment.
fn can_delete(cx: &Context<'_, impl Io>, pg: PgId) -> bool {
    let group = cx.groups.find(pg).map(|index| &cx.groups[index]);
    group.is_some_and(|group| group.has_left() || group.is_active() && group.is_writable())
}

/// Begins to delete an object. `false` if that cannot be at this moment.
///
/// # Errors
/// When the store does not take it.
fn delete(cx: &mut Context<'_, impl Io>, key: ObjectKey) -> Result<bool, StageError> {
    let Some(group) = cx.groups.find(key.pg) else { return Ok(false) };
    match cx.groups[group].has_left() {
        true => delete_left(cx, group, key).map(|()| true),
        false => delete_everywhere(cx, group, key),
    }
}

/// Deletes an object of a removed volume at all members. `false` if this OSD does not lead its group, or something is under way
/// on it.
///
/// # Errors
/// [`StageError::Busy`] when there is no room for it right now.
fn delete_everywhere(cx: &mut Context<'_, impl Io>, group: u32, key: ObjectKey) -> Result<bool, StageError> {
    let range = BlockRange::whole(key);
    let state = &cx.groups[group];
    if !state.is_active() || !state.is_writable() || cx.must_wait(&range) {
        return Ok(false);
    }
    let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, group, range);
    if !order::zero(cx, id) {
        cx.operations.remove(id);
        return Err(StageError::Busy);
    }
    Ok(true)
}

/// Deletes an object of a group that this OSD left.
///
/// # Errors
/// When the store does not take it.
fn delete_left(cx: &mut Context<'_, impl Io>, index: u32, key: ObjectKey) -> Result<(), StageError> {
    let group = &cx.groups[index];
    let Role::Left { is_marked } = *group.standing.role() else { return Ok(()) };
    let (pg, epoch) = (group.pg, group.config.epoch);
    if !is_marked && !cx.breaks(Sabotage::KeepLog) {
        let token = cx.ledger.next_token();
        cx.disk.store.stage_left(pg, epoch, token)?;
        cx.note_staged(index, StagedRecord::Left);
        cx.groups[index].standing.leaving_was_marked();
    }
    let zeroing = Replicate { range: BlockRange::whole(key), epoch, sequence: Sequence(0), origin: 0 };
    let record = cx.ledger.record(&zeroing, store::Role::Housekeeping);
    cx.disk.store.stage_zero(&record)?;
    cx.note_staged(index, StagedRecord::Left);
    Ok(())
}

/// Has the store forget the removed pools of which nothing is there, or on its way to the drive. `false` when it has no room for
/// that right now.
fn forget_removed(cx: &mut Context<'_, impl Io>) -> bool {
    let map = cx.volumes.map.clone();
    let known = cx.disk.store.groups().map(|pg| pg.pool);
    let known: BTreeSet<PoolId> = known.filter(|pool| map.removed_pools.contains_key(pool)).collect();
    for pool in known {
        let mut groups = cx.groups.indices().filter(|index| cx.groups[*index].pg.pool == pool).peekable();
        let Some(index) = groups.peek().copied() else { continue };
        let is_left = groups.all(|index| cx.groups[index].has_left() && cx.groups[index].staged_count == 0);
        if !is_left || cx.disk.store.has_objects_of(pool) {
            continue;
        }
        match cx.disk.store.stage_forget(pool, cx.ledger.next_token()) {
            Ok(()) => {
                cx.note_staged(index, StagedRecord::Left);
                cx.pass(Milestone::PoolForgotten);
            }
            Err(error) => return error != StageError::Busy,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::epoch;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::map::{ClusterMap, OsdInfo, PgConfig, RemovedPool};
    use base::{BLOCK_BYTES, Epoch, OsdId, crc32c};
    use std::sync::Arc;
    use wire::Query;

    #[test]
    fn what_was_to_go_with_a_group_stays_when_this_osd_leads_the_group_again() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        // Noted when it had left the group.
        alone.osd.router.deletions.note(key);
        alone.run();
        assert!(alone.osd.router.deletions.is_idle() && alone.holds(key));
    }

    #[test]
    fn what_belongs_to_a_removed_volume_goes() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        assert!(alone.holds(key));
        let mut map = map(1);
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.run();
        assert!(!alone.holds(key));
    }

    #[test]
    fn objects_are_not_searched_again_for_what_cannot_go_until_something_changed() {
        let mut alone = Alone::new();
        let [busy, free] = [3, 4].map(|object| ObjectKey { pg: PG, layer: VOLUME.first_layer(), object });
        [busy, free].into_iter().for_each(|key| alone.write(key));
        let id = alone.with(|_, cx| {
            let range = BlockRange::one(busy, 0);
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
            cx.hold(id);
            id
        });
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.run();
        let searches = |alone: &Alone| alone.passed("deletion: all objects are searched");
        let before = searches(&alone);
        // For the map, and when the one that could go had gone.
        assert!((2..=3).contains(&before), "{before}");
        alone.run();
        assert_eq!((searches(&alone), alone.holds(busy), alone.holds(free)), (before, true, false));
        assert!(!alone.osd.router.deletions.is_idle());
        assert_eq!(alone.osd.router.deletions.found[&PG].keys, [busy], "it is there once");
        alone.with(|_, cx| assert!(order::zero(cx, id)));
        alone.run();
        assert_eq!((searches(&alone), alone.holds(busy)), (before + 1, false));
        assert!(alone.osd.router.deletions.is_idle());
    }

    /// Writes a block of each of these objects.
    fn write_each(alone: &mut Alone, keys: &[ObjectKey]) {
        let data = [7; BLOCK_BYTES];
        for key in keys {
            alone.with(|_, cx| {
                let (group, range) = (cx.groups.find(key.pg).unwrap(), BlockRange::one(*key, 0));
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, group, range);
                cx.operations.live(id).checksums.push(crc32c(&data).into());
                assert!(order::write(cx, id, &data));
            });
            (0..5).for_each(|_| alone.turn());
        }
    }

    #[test]
    fn what_can_go_does_not_wait_behind_what_others_have_to_delete() {
        let mut alone = Alone::with_groups(2);
        let other = PG.child(1);
        let keys = (0..1000).map(|object| {
            let pg = PgId::of_object(PG.pool, 2, VOLUME, object);
            ObjectKey { pg, layer: VOLUME.first_layer(), object }
        });
        let (mine, theirs): (Vec<ObjectKey>, Vec<ObjectKey>) = keys.partition(|key| key.pg == PG);
        write_each(&mut alone, &mine[..40]);
        write_each(&mut alone, &theirs[..400]);
        let held = |alone: &Alone| [PG, other].map(|pg| alone.osd.store().object_count(pg));
        // Another OSD leads both groups when the volume is removed, and this one is to catch up.
        let (me, primary) = (OsdId(0), OsdId(1));
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.osds.insert(primary, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        for pg in [PG, other] {
            let in_sync = vec![primary];
            map.pgs.insert(pg, PgConfig { epoch: Epoch(50), primary, in_sync, ..PgConfig::default() });
            map.targets.insert(pg, vec![primary, me]);
        }
        map.revision += 1;
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.run();
        assert_eq!(held(&alone), [40, 400]);
        // One of them comes back to this OSD.
        let config = PgConfig { epoch: Epoch(60), primary: me, in_sync: vec![me], ..PgConfig::default() };
        map.targets.insert(PG, vec![me]);
        map.pgs.insert(PG, config);
        map.revision += 1;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let mut turns = 0;
        while held(&alone)[0] > 0 {
            alone.turn();
            turns += 1;
            assert!(turns < 30, "{:?} are left after {turns} turns", held(&alone));
        }
        assert_eq!(held(&alone), [0, 400]);
    }

    #[test]
    fn groups_that_can_delete_take_turns() {
        let mut alone = Alone::with_groups(2);
        let key = |object| {
            let pg = PgId::of_object(PG.pool, 2, VOLUME, object);
            ObjectKey { pg, layer: VOLUME.first_layer(), object }
        };
        let (of_one, of_other): (Vec<ObjectKey>, Vec<ObjectKey>) =
            (0..500).map(key).partition(|key| key.pg == PG);
        write_each(&mut alone, &of_one[..200]);
        write_each(&mut alone, &of_other[..20]);
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        map.revision += 1;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let held = |alone: &Alone, pg| alone.osd.store().object_count(pg);
        let mut turns = 0;
        while held(&alone, PG.child(1)) > 0 {
            alone.turn();
            turns += 1;
            assert!(turns < 100, "nothing of the other goes");
        }
        assert!(held(&alone, PG) > 0, "the one that has more is not done before the other begins");
        alone.run();
        assert!(held(&alone, PG) == 0 && alone.osd.router.deletions.is_idle());
    }

    #[test]
    fn what_went_by_others_doing_is_passed_over_a_thousand_at_a_time() {
        let mut alone = Alone::new();
        let searches = alone.passed("deletion: all objects are searched");
        let elsewhere = PgId { index: 7, ..PG };
        for object in 0..3000 {
            alone.osd.router.deletions.note(ObjectKey { pg: elsewhere, layer: VOLUME.first_layer(), object });
        }
        alone.run();
        assert!(alone.osd.router.deletions.is_idle());
        assert_eq!(alone.passed("deletion: all objects are searched"), searches + 1);
    }

    #[test]
    fn a_thousand_objects_are_looked_at_with_each_tick_of_groups_that_can_delete_and_of_others() {
        let mut alone = Alone::with_groups(2);
        // Nothing is there of any of them.
        let key = |object| {
            let pg = PgId::of_object(PG.pool, 2, VOLUME, object);
            ObjectKey { pg, layer: VOLUME.first_layer(), object }
        };
        let (one, other): (Vec<ObjectKey>, Vec<ObjectKey>) =
            (0..4 * LOOKED_AT_PER_TICK as u32).map(key).partition(|key| key.pg == PG);
        let left = |alone: &mut Alone| {
            alone.with(|router, cx| router.deletions.advance(cx));
            let found = alone.osd.router.deletions.found.values();
            found.map(|found| found.keys.len()).sum::<usize>()
        };
        // Of groups that this OSD leads, and that it knows nothing of.
        for first in [0, 7] {
            for key in one[..LOOKED_AT_PER_TICK - 1].iter().chain(&other[..2]) {
                let pg = PgId { index: first + key.pg.index, ..PG };
                alone.osd.router.deletions.note(ObjectKey { pg, ..*key });
            }
            assert_eq!([left(&mut alone), left(&mut alone)], [1, 0], "from group {first} on");
        }
    }

    /// An object of the group.
    fn key(object: u32) -> ObjectKey {
        ObjectKey { pg: PG, layer: VOLUME.first_layer(), object }
    }

    /// The map comes by which the volume is removed. Nothing is looked at yet.
    fn is_removed(alone: &mut Alone) {
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        map.revision += 1;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    }

    /// The map comes by which another OSD holds the group, and this one does not. Nothing is looked at yet.
    fn is_left(alone: &mut Alone) {
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        let primary = OsdId(1);
        let config = PgConfig { epoch: Epoch(9), primary, in_sync: vec![primary], ..PgConfig::default() };
        map.pgs.insert(PG, config);
        map.targets.insert(PG, vec![primary]);
        map.revision += 1;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert!(alone.osd.shared.groups[0].has_left());
    }

    #[test]
    fn what_was_found_is_looked_at_in_its_order_and_is_fresh_until_then() {
        let mut found = Found { keys: [1, 2, 3].map(key).into(), fresh: 2 };
        let looks: Vec<_> = (0..4).map(|_| (found.next().map(|key| key.object), found.fresh)).collect();
        assert_eq!(looks, [(Some(1), 1), (Some(2), 0), (Some(3), 0), (None, 0)]);
    }

    /// How many of all that was found were not looked at.
    fn fresh(deletions: &Deletions) -> usize {
        deletions.found.values().map(|found| found.fresh).sum()
    }

    #[test]
    fn objects_are_searched_when_that_is_due_and_all_of_all_groups_was_looked_at() {
        let mut alone = Alone::with_groups(2);
        let searched = |alone: &Alone| alone.passed("deletion: all objects are searched");
        let before = searched(&alone);
        alone.with(|router, cx| {
            let deletions = &mut router.deletions;
            deletions.note(key(1));
            deletions.note(ObjectKey { pg: PG.child(1), ..key(2) });
            deletions.found.get_mut(&PG).unwrap().fresh = 0;
            deletions.are_due = true;
            deletions.look(cx);
            assert!(deletions.are_due && fresh(deletions) == 1, "one of them was not looked at");
            deletions.found.get_mut(&PG.child(1)).unwrap().fresh = 0;
            deletions.are_due = false;
            deletions.look(cx);
            assert_eq!(fresh(deletions), 2, "nothing is due: they are gone through once more");
            deletions.found.values_mut().for_each(|found| found.fresh = 0);
            deletions.are_due = true;
            deletions.look(cx);
            assert!(deletions.is_idle());
        });
        assert_eq!(searched(&alone), before + 1);
    }

    #[test]
    fn what_may_come_yet_of_a_group_that_was_left_is_searched_for_once_more() {
        let mut alone = Alone::with_groups(2);
        is_left(&mut alone);
        alone.run();
        assert!(alone.osd.router.deletions.is_idle());
        for staged_count in [1, 0] {
            alone.osd.shared.groups[0].staged_count = staged_count;
            alone.with(|router, cx| {
                router.deletions.are_due = true;
                router.deletions.look(cx);
            });
            assert_eq!(alone.osd.router.deletions.are_due, staged_count > 0);
        }
    }

    #[test]
    fn so_many_deletions_are_begun_with_each_tick() {
        let mut alone = Alone::new();
        let keys: Vec<ObjectKey> = (0..2 * BEGUN_PER_TICK as u32).map(key).collect();
        write_each(&mut alone, &keys);
        is_removed(&mut alone);
        alone.with(|router, cx| {
            router.deletions.look(cx);
            router.deletions.advance(cx);
        });
        assert_eq!(alone.osd.view().operations_in_flight(), BEGUN_PER_TICK);
        alone.run();
        assert!(alone.osd.store().objects().next().is_none() && alone.osd.router.deletions.is_idle());
    }

    #[test]
    fn what_a_group_does_not_take_now_waits_and_what_is_busy_keeps_nothing_behind_it() {
        let mut alone = Alone::new();
        let keys = [1, 2, 3].map(key);
        write_each(&mut alone, &keys);
        is_removed(&mut alone);
        let most = alone.osd.store().in_flight_max();
        let under_way = |alone: &mut Alone, count| {
            alone.osd.shared.groups[0].standing.primary_mut().unwrap().under_way = count;
        };
        under_way(&mut alone, most);
        alone.with(|router, cx| {
            keys.into_iter().for_each(|key| router.deletions.note(key));
            router.deletions.advance(cx);
        });
        let left = |alone: &Alone| alone.osd.router.deletions.found[&PG].keys.clone();
        assert_eq!(left(&alone), [keys[1], keys[2], keys[0]], "one was tried");
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
        under_way(&mut alone, 0);
        alone.with(|router, cx| {
            let range = BlockRange::one(keys[1], 0);
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
            cx.hold(id);
            router.deletions.advance(cx);
        });
        assert_eq!((left(&alone).len(), left(&alone)[0]), (1, keys[1]));
        assert_eq!(alone.osd.view().operations_in_flight(), 3);
    }

    #[test]
    fn who_had_no_turn_with_a_tick_has_it_first_with_the_next() {
        let mut alone = Alone::with_groups(3);
        // Nothing is there of any of them.
        for (index, count) in [(0, 2 * LOOKED_AT_PER_TICK), (1, 1), (2, 1)] {
            let pg = PgId { index, ..PG };
            let objects = (0..).filter(|object| PgId::of_object(PG.pool, 3, VOLUME, *object) == pg);
            for object in objects.take(count) {
                alone.osd.router.deletions.note(ObjectKey { pg, layer: VOLUME.first_layer(), object });
            }
        }
        let left = |alone: &mut Alone| {
            alone.with(|router, cx| router.deletions.advance(cx));
            let found = &alone.osd.router.deletions.found;
            [0, 1, 2].map(|index| found.get(&PgId { index, ..PG }).map_or(0, |found| found.keys.len()))
        };
        assert_eq!(left(&mut alone), [LOOKED_AT_PER_TICK, 1, 1]);
        assert_eq!(left(&mut alone), [2, 0, 0]);
    }

    #[test]
    fn what_cannot_go_is_passed_over_once_and_keeps_its_order() {
        let mut alone = Alone::new();
        let keys = [1, 2, 3].map(key);
        write_each(&mut alone, &keys);
        is_removed(&mut alone);
        alone.is_led_by(OsdId(1), Epoch(50));
        for _ in 0..2 {
            alone.with(|router, cx| {
                router.deletions.found.clear();
                keys.into_iter().for_each(|key| router.deletions.note(key));
                router.deletions.advance(cx);
            });
            let found = &alone.osd.router.deletions.found[&PG];
            assert!(found.keys == keys && found.fresh == 0, "{found:?}");
        }
    }

    #[test]
    fn nothing_is_deleted_of_a_group_that_does_not_serve_or_has_too_few_members() {
        let mut alone = Alone::new();
        alone.write(key(3));
        alone.with(|_, cx| {
            assert!(can_delete(cx, PG) && !can_delete(cx, PG.child(1)));
            cx.groups[0].wanted.min_size = 2;
            assert!(!can_delete(cx, PG));
            assert_eq!(delete_everywhere(cx, 0, key(3)), Ok(false));
            cx.groups[0].wanted.min_size = 1;
            epoch::end(cx, 0, "a test");
            assert!(!can_delete(cx, PG));
            assert_eq!(delete_everywhere(cx, 0, key(3)), Ok(false));
            assert_eq!(cx.operations.in_flight(), 0);
        });
    }

    #[test]
    fn a_log_says_once_that_its_group_was_left() {
        let mut alone = Alone::new();
        write_each(&mut alone, &[1, 2, 3].map(key));
        is_left(&mut alone);
        alone.with(|router, cx| {
            router.deletions.look(cx);
            router.deletions.advance(cx);
        });
        let group = &alone.osd.shared.groups[0];
        assert!(matches!(group.standing.role(), Role::Left { is_marked: true }));
        assert_eq!(group.staged_count, 1 + 3);
        alone.run();
        assert!(alone.osd.store().pg_is_incomplete(PG) && alone.osd.store().objects().next().is_none());
        assert_eq!(alone.osd.shared.groups[0].staged_count, 0);
    }

    #[test]
    fn what_went_to_the_other_half_of_a_group_is_searched_for_there() {
        let mut alone = Alone::new();
        let is_mine = |object: &u32| PG.holds(2, VOLUME, *object);
        let mine = key((0..).find(is_mine).unwrap());
        let theirs = key((0..).find(|object| !is_mine(object)).unwrap());
        write_each(&mut alone, &[mine, theirs]);
        is_removed(&mut alone);
        alone.with(|router, cx| {
            cx.groups[0].modulus = 2;
            let deletions = &mut router.deletions;
            deletions.are_due = false;
            assert!(!deletions.is_done(cx, &mine) && !deletions.are_due);
            assert!(deletions.is_done(cx, &theirs) && deletions.are_due);
        });
    }

    #[test]
    fn a_pool_is_forgotten_when_nothing_of_any_of_its_groups_is_on_its_way_to_the_drive() {
        let mut alone = Alone::with_groups(2);
        alone.osd.handle_map(alone.now, Arc::new(removed(2)), &mut alone.io);
        for (staged_counts, times) in [([0, 1], 0), ([1, 0], 0), ([0, 0], 1)] {
            alone.with(|router, cx| {
                for (index, staged_count) in (0..).zip(staged_counts) {
                    cx.groups[index].staged_count = staged_count;
                }
                router.deletions.are_due = true;
                router.deletions.look(cx);
            });
            let forgotten = alone.passed("placement: nothing is left of a removed pool");
            assert_eq!(forgotten, times, "{staged_counts:?}");
        }
        alone.run();
        assert_eq!(told(&alone), (vec![PG.pool], vec![]));
    }

    #[test]
    fn a_pool_that_the_store_is_too_busy_to_forget_is_forgotten_later() {
        let mut alone = Alone::with_groups(1);
        alone.osd.handle_map(alone.now, Arc::new(removed(2)), &mut alone.io);
        let forgets = |alone: &mut Alone| alone.with(|_, cx| forget_removed(cx));
        // As much is staged as goes before the drive takes some of it.
        alone.with(|_, cx| {
            loop {
                match cx.disk.store.stage_forget(PoolId(9), cx.ledger.next_token()) {
                    Ok(()) => cx.note_staged(0, StagedRecord::Left),
                    Err(error) => break assert_eq!(error, StageError::Busy),
                }
            }
        });
        // As if that were another group's.
        let staged_count = std::mem::take(&mut alone.osd.shared.groups[0].staged_count);
        assert!(!forgets(&mut alone), "it is to be tried again");
        alone.osd.shared.groups[0].staged_count = staged_count;
        assert_eq!(alone.passed("placement: nothing is left of a removed pool"), 0);
        alone.settles();
        assert!(forgets(&mut alone));
        assert_eq!(alone.passed("placement: nothing is left of a removed pool"), 1);
    }

    /// The map without its pool, and what belongs to that.
    fn without_pools(revision: u64) -> ClusterMap {
        ClusterMap { revision, osds: map(1).osds, ..ClusterMap::default() }
    }

    /// The same with the pool's tombstone.
    fn removed(revision: u64) -> ClusterMap {
        let mut map = without_pools(revision);
        let owed_by = map.osds.keys().copied().collect();
        map.removed_pools.insert(PG.pool, RemovedPool { name: "pool".to_owned(), owed_by });
        map
    }

    /// The pools that it says to hold nothing of, and the groups that its store knows something of.
    fn told(alone: &Alone) -> (Vec<PoolId>, Vec<PgId>) {
        let mut groups: Vec<PgId> = alone.osd.store().groups().collect();
        groups.sort_unstable();
        (alone.osd.view().cleared_pools().collect(), groups)
    }

    #[test]
    fn of_a_removed_pool_nothing_is_kept_and_no_epoch_is_claimed() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        // It was away when its volume was removed.
        let without = Arc::new(removed(3));
        // In the middle of a claim, which the registry refuses then.
        alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        while alone.io.proposals.is_empty() {
            alone.now = alone.now + std::time::Duration::from_millis(50);
            alone.osd.end_turn(alone.now, &mut alone.io);
        }
        alone.osd.handle_map(alone.now, without.clone(), &mut alone.io);
        alone.io.proposals.clear();
        alone.osd.handle_proposal(alone.now, PG, None, &mut alone.io);
        alone.run();
        assert!(!alone.holds(key));
        assert!(alone.io.proposals.is_empty() && alone.osd.shared.groups[0].has_left());
        assert_eq!(told(&alone), (vec![PG.pool], vec![]));
        // Another map changes nothing of that, and nothing waits for the group.
        alone.osd.handle_map(alone.now, without, &mut alone.io);
        assert!(alone.osd.shared.groups[0].has_left());
        assert!(!alone.osd.shared.groups.iter().any(|group| group.config.primary == OsdId(0)));
        assert!(alone.osd.router.deletions.is_idle());
    }

    #[test]
    fn what_no_map_shows_any_more_goes_when_its_pool_was_removed_and_only_then() {
        let key = |object| ObjectKey { pg: PG, layer: VOLUME.first_layer(), object };
        for ends_in_good_order in [false, true] {
            let mut alone = Alone::new();
            (0..40).for_each(|object| alone.write(key(object)));
            let end = |alone: &mut Alone| {
                if ends_in_good_order {
                    alone.osd.begin_shutdown(&mut alone.io);
                    alone.run();
                    assert!(alone.osd.is_shut_down());
                }
            };
            end(&mut alone);
            alone.restart(without_pools(3));
            assert!(alone.holds(key(39)) && alone.osd.shared.groups.iter().count() == 0);
            assert_eq!(told(&alone), (vec![], vec![PG]), "nobody said that the pool was removed");
            end(&mut alone);
            alone.restart(removed(4));
            assert!(alone.osd.store().objects().next().is_none());
            assert_eq!(told(&alone), (vec![PG.pool], vec![]));
            alone.osd.shared.disk.store.verify().unwrap();
            // It is so after a start, too, and nothing is left to do for it.
            end(&mut alone);
            alone.restart(removed(5));
            assert_eq!(told(&alone), (vec![PG.pool], vec![]));
            assert!(alone.osd.shared.groups.iter().count() == 0 && alone.osd.router.deletions.is_idle());
        }
    }

    #[test]
    fn of_a_group_that_was_left_before_its_pool_was_removed_nothing_is_remembered_either() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        let mut moved = map(1);
        moved.revision = 2;
        let primary = OsdId(1);
        let config = PgConfig { epoch: Epoch(9), primary, in_sync: vec![primary], ..PgConfig::default() };
        moved.pgs.insert(PG, config);
        moved.targets.insert(PG, vec![primary]);
        alone.osd.handle_map(alone.now, Arc::new(moved), &mut alone.io);
        alone.run();
        assert!(!alone.holds(key) && alone.osd.router.deletions.is_idle());
        assert_eq!(told(&alone), (vec![], vec![PG]));
        alone.osd.handle_map(alone.now, Arc::new(removed(3)), &mut alone.io);
        alone.run();
        assert_eq!(told(&alone), (vec![PG.pool], vec![]));
    }

    #[test]
    fn nobody_says_that_nothing_is_left_before_that_is_so_on_stable_media() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        alone.osd.handle_map(alone.now, Arc::new(removed(2)), &mut alone.io);
        let mut turns = 0;
        // The drive does in each turn what it was asked in the one before.
        while told(&alone).0.is_empty() {
            turns += 1;
            assert!(turns < 100, "it never says so: {:?}", alone.osd.router.deletions);
            alone.now = alone.now + std::time::Duration::from_millis(50);
            alone.osd.end_turn(alone.now, &mut alone.io);
            assert!(told(&alone).0.is_empty(), "it was only staged");
            alone.drive_answers();
            assert!(told(&alone).0.is_empty() || !alone.holds(key) && told(&alone).1.is_empty());
        }
        // A crash right then changes nothing of it.
        alone.restart(removed(3));
        assert_eq!(told(&alone), (vec![PG.pool], vec![]));
        assert!(alone.osd.store().objects().next().is_none());
    }

    #[test]
    fn nobody_is_told_where_this_osd_stands_in_a_group_of_a_removed_pool() {
        for has_tombstone in [true, false] {
            let mut alone = Alone::new();
            alone.write(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 });
            alone.osd.handle_map(alone.now, Arc::new(removed(2)), &mut alone.io);
            alone.run();
            if !has_tombstone {
                // Everybody has said that nothing is left.
                alone.osd.handle_map(alone.now, Arc::new(without_pools(3)), &mut alone.io);
            }
            let link = alone.connect(OsdId(1));
            alone.io.to.clear();
            let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 9);
            for pg in [PG, PG.child(1)] {
                let query = Query { pg, modulus: 2, epoch }.encode();
                alone.osd.handle_bytes(alone.now, link, &query, &mut alone.io).unwrap();
            }
            let query = Query { pg: PG, modulus: 1, epoch }.encode();
            alone.osd.handle_bytes(alone.now, link, &query, &mut alone.io).unwrap();
            assert!(!alone.io.to.contains_key(&link), "somebody is answered by an older map");
            assert!(alone.osd.shared.groups[0].has_left());
        }
    }

    #[test]
    fn what_others_held_by_a_registry_that_was_set_back_is_not_deleted_here() {
        for (epoch, is_kept) in [(Epoch(2), true), (Epoch(9), false)] {
            let mut alone = Alone::new();
            let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
            let mut map = map(1);
            map.revision = 2;
            map.pgs.get_mut(&PG).unwrap().epoch = Epoch(4);
            alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
            alone.run();
            alone.write(key);
            let known = alone.osd.shared.disk.store.pg_position(PG).unwrap().0;
            assert!(Epoch(4) <= known && known < Epoch(9), "{known:?}");
            // The registry says that another holds it, by an epoch from before what this OSD wrote, or a later one.
            let primary = OsdId(1);
            let config = PgConfig { epoch, primary, in_sync: vec![primary], ..PgConfig::default() };
            map.pgs.insert(PG, config);
            map.targets.insert(PG, vec![primary]);
            alone.restart(map);
            assert_eq!(alone.holds(key), is_kept, "{epoch:?}");
            assert_eq!(alone.osd.shared.groups[0].has_left(), !is_kept);
        }
    }

    #[test]
    fn of_a_pool_that_is_gone_before_its_volumes_everything_is_kept() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.write(key);
        alone.osd.handle_map(alone.now, Arc::new(without_pools(2)), &mut alone.io);
        alone.run();
        assert!(alone.holds(key) && !alone.osd.shared.groups[0].has_left());
    }
}
