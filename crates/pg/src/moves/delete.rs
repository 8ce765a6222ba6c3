//! Deletions: objects of removed volumes, and what is left of groups that this OSD left.
//!
//! What a removed volume held is deleted by the primary, as ordinary ordered zeroings. Of a group that this OSD left it
//! deletes its own copy alone; before the first block goes, its log says that it does not tell any more what it has.

use crate::broken::Sabotage;
use crate::context::Context;
use crate::group::Group;
use crate::group::role::Role;
use crate::io::Io;
use crate::ledger::StagedRecord;
use crate::operation::{OperationKind, Purpose};
use crate::replication::order;
use base::{BlockRange, ObjectKey, Sequence};
use std::collections::VecDeque;
use store::StageError;
use wire::Replicate;

/// Deletions under way at the same time.
const AT_ONCE: usize = 16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    pub(crate) queue: VecDeque<ObjectKey>,
    /// There may be more to delete than what is in the queue.
    pub(crate) are_due: bool,
}

impl Deletions {
    /// Whether nothing is to be deleted.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.are_due
    }

    /// Looks for what is to be deleted, when all that was found before is.
    pub(crate) fn look(&mut self, cx: &mut Context<'_, impl Io>) {
        if !self.are_due || !self.queue.is_empty() {
            return;
        }
        let is_due = |key: &ObjectKey| {
            let has_left = cx.groups.find(key.pg).is_some_and(|index| cx.groups[index].has_left());
            cx.volumes.is_removed(key.volume) || has_left
        };
        self.queue = cx.disk.store.objects().filter(is_due).collect();
        // What was pushed here just before may not be among the objects yet.
        let may_come = |group: &Group| group.staged_count > 0 && group.has_left();
        self.are_due = !self.queue.is_empty() || cx.groups.iter().any(may_come);
    }

    /// Deletes objects a few at a time.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        for _ in 0..AT_ONCE {
            let Some(key) = self.queue.pop_front() else { return };
            let Some(group) = cx.groups.find(key.pg) else { continue };
            if !cx.groups[group].holds(&key) {
                // It went to the other half since, and is looked for there.
                self.are_due = true;
                continue;
            }
            let is_done = match cx.groups[group].has_left() {
                true => !matches!(delete_left(cx, group, key), Err(StageError::Busy)),
                // This OSD may be a member again, and even lead the group, since what it held was to be deleted.
                false => !cx.volumes.is_removed(key.volume) || delete_everywhere(cx, group, key),
            };
            if !is_done {
                return self.queue.push_front(key);
            }
        }
    }
}

/// Deletes an object of a removed volume at all members, if this OSD leads its group and nothing is under way on it; else it
/// is found again later. `false` when the store has no room right now.
fn delete_everywhere(cx: &mut Context<'_, impl Io>, group: u32, key: ObjectKey) -> bool {
    let range = BlockRange::whole(key);
    let state = &cx.groups[group];
    if !state.is_active() || !state.is_writable() || cx.must_wait(group, &range) {
        return true;
    }
    let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, group, range);
    let is_ordered = order::zero(cx, id);
    if !is_ordered {
        cx.operations.remove(id);
    }
    is_ordered
}

/// Deletes an object of a group that this OSD left.
///
/// # Errors
/// When the store does not take it.
fn delete_left(cx: &mut Context<'_, impl Io>, index: u32, key: ObjectKey) -> Result<(), StageError> {
    let group = &cx.groups[index];
    let Role::Left { is_marked } = *group.standing.role() else { return Ok(()) };
    let (pg, modulus, epoch) = (group.pg, group.modulus, group.config.epoch);
    if !is_marked && !cx.breaks(Sabotage::KeepLog) {
        let (kind, token) = (store::RecordKind::Join, cx.ledger.next_token());
        cx.disk.store.stage_mark(kind, pg, modulus, epoch, Sequence(0), token)?;
        cx.note_staged(index, StagedRecord::Left);
        cx.groups[index].standing.leaving_was_marked();
    }
    let zeroing = Replicate { range: BlockRange::whole(key), epoch, sequence: Sequence(0), origin: 0 };
    let record = cx.ledger.record(&zeroing, store::Role::Housekeeping);
    cx.disk.store.stage_zero(&record)?;
    cx.note_staged(index, StagedRecord::Left);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::epoch;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::map::{ClusterMap, PgConfig};
    use base::{Epoch, OsdId};
    use std::sync::Arc;

    #[test]
    fn what_was_to_go_with_a_group_stays_when_this_osd_leads_the_group_again() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        // Noted when it had left the group.
        alone.osd.router.deletions.queue.push_back(key);
        alone.run();
        assert!(alone.osd.router.deletions.queue.is_empty() && alone.holds(key));
    }

    #[test]
    fn what_belongs_to_a_removed_volume_goes() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        assert!(alone.holds(key));
        let mut map = map(1);
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.run();
        assert!(!alone.holds(key));
    }

    /// The map without its pool, and what belongs to that.
    fn without_pools(revision: u64) -> ClusterMap {
        ClusterMap { revision, osds: map(1).osds, ..ClusterMap::default() }
    }

    #[test]
    fn of_a_removed_pool_nothing_is_kept_and_no_epoch_is_claimed() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        let mut removed = map(1);
        removed.revision = 2;
        removed.volumes.get_mut(&VOLUME).unwrap().removed = true;
        alone.osd.handle_map(alone.now, Arc::new(removed), &mut alone.io);
        let without = Arc::new(without_pools(3));
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
        // Another map changes nothing of that, and nothing waits for the group.
        alone.osd.handle_map(alone.now, without, &mut alone.io);
        assert!(alone.osd.shared.groups[0].has_left());
        assert!(!alone.osd.shared.groups.iter().any(|group| group.config.primary == OsdId(0)));
    }

    #[test]
    fn what_others_held_by_a_registry_that_was_set_back_is_not_deleted_here() {
        for (epoch, is_kept) in [(Epoch(2), true), (Epoch(9), false)] {
            let mut alone = Alone::new();
            let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
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
            let config = PgConfig { epoch, primary, in_sync: vec![primary], learners: Vec::new() };
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
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        alone.osd.handle_map(alone.now, Arc::new(without_pools(2)), &mut alone.io);
        alone.run();
        assert!(alone.holds(key) && !alone.osd.shared.groups[0].has_left());
    }
}
