//! Prunes: what nobody sees any more of a volume that has had snapshots is deleted.
//!
//! A block of a layer is *seen* from a snapshot's layer, or from the newest one, if no layer between them holds that block too. Two
//! things take it out of everybody's sight: a snapshot is removed, or the newest layer is written to where an older one holds what
//! no snapshot sees. What nobody sees once nobody ever sees, for whoever comes later sees a volume from newer layers; so it is
//! deleted by the primary of its group, as ordinary ordered zeroings of that layer, however late, and in whatever order. Holes that
//! hide nothing go too. In the newest layer they may be written to meanwhile: that is looked at when nobody else is on their blocks.
//!
//! Each removal has a number, as a shrink has ([`base::map::VolumeInfo::prune`]). When a pass over all objects of a group has found
//! nothing, the primary counts it as done there, and the manager takes it off the volume when all groups have
//! ([`crate::moves::cut`]). Nothing is added afterwards that it is about: in layers below the newest one nobody writes.
//!
//! Of what is written over, and of what is deleted, for a hole may hide nothing then, the primary notes the objects. Should it lose
//! that, or be unable to keep up, there is a pass over all of them.

use super::cut::may_delete;
use crate::broken::Sabotage;
use crate::context::Context;
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{OperationKind, Purpose};
use crate::pace::DELETION_COST;
use crate::replication::order;
use crate::request::{admit, queue};
use base::{CutId, Epoch, ObjectKey, WorkClass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use store::Unseen;

/// Zeroings that are begun at a time.
const AT_ONCE: usize = 64;
/// Layers of objects that are looked at at a time: some tenths of a microsecond for each that a volume may have.
const LAYERS_AT_ONCE: usize = 1024;

/// Nothing more is looked for while so much is to be deleted. An object may have some hundred of them in each layer.
const UNSEEN_MAX: usize = 4096;
/// The pause between one look and the next.
const PACE: Duration = Duration::from_millis(10);

/// A look at all objects of a group.
#[derive(Clone, Copy, Debug)]
struct Pass {
    epoch: Epoch,
    /// The newest number that the map showed of volumes of the pool when it began.
    cut: CutId,
    has_found: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Prunes {
    /// Objects of passes that are to be looked at, by the newest layers of their volumes.
    objects: VecDeque<ObjectKey>,
    /// The same of objects in which something was written over or deleted.
    changed: VecDeque<ObjectKey>,
    /// What was found, and in which epoch of its group: in another one what hid it may have come to nothing.
    unseen: VecDeque<(Unseen, Epoch)>,
    /// By group.
    passes: BTreeMap<u32, Pass>,
    is_under_way: bool,
}

impl Prunes {
    /// Whether nothing is being looked at or deleted.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_under_way
    }

    /// Goes on with what is to be looked at and deleted.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        if cx.volumes.with_layers.is_empty() {
            *self = Prunes::default();
            return;
        }
        self.changed.extend(std::mem::take(&mut cx.volumes.replaced));
        if self.objects.is_empty() && self.unseen.is_empty() {
            self.end_passes(cx);
            self.begin_passes(cx);
        }
        let mut layers = 0;
        while layers < LAYERS_AT_ONCE && self.unseen.len() < UNSEEN_MAX {
            if let Some(key) = self.changed.pop_front() {
                layers += self.look_at(cx, key, false);
            } else if let Some(key) = self.objects.pop_front() {
                layers += self.look_at(cx, key, true);
            } else {
                break;
            }
        }
        let queues_are_empty = self.objects.is_empty() && self.changed.is_empty() && self.unseen.is_empty();
        self.is_under_way = !queues_are_empty || !self.passes.is_empty();
        if self.is_under_way {
            cx.turn.next_tick = cx.turn.next_tick.min(cx.now + PACE);
        }
        for _ in 0..AT_ONCE {
            if !cx.rates.pace.may_work(cx.now, WorkClass::Removal) {
                return;
            }
            let Some((unseen, epoch)) = self.unseen.pop_front() else { return };
            if !begin(cx, unseen, epoch) {
                return self.unseen.push_front((unseen, epoch));
            }
        }
    }

    /// Notes what has been looked at as a whole.
    fn end_passes(&mut self, cx: &mut Context<'_, impl Io>) {
        for (index, pass) in std::mem::take(&mut self.passes) {
            let group = &mut cx.groups[index];
            if group.epoch != pass.epoch {
                continue;
            }
            let Some(primary) = group.standing.primary_mut() else { continue };
            primary.cutting.was_swept = true;
            if !pass.has_found {
                primary.cutting.pruned_through = pass.cut;
            }
        }
    }

    /// Finds the objects that are to be looked at.
    fn begin_passes(&mut self, cx: &mut Context<'_, impl Io>) {
        for index in cx.groups.indices() {
            let group = &cx.groups[index];
            let (pool, epoch) = (group.pg.pool, group.epoch);
            let Some(primary) = group.standing.primary() else { continue };
            let is_asked = !primary.cutting.was_swept || pending(cx, index).next().is_some();
            let is_due = is_asked && cx.volumes.with_layers.contains(&pool) && may_delete(cx, index);
            // What was begun ends first: what it was for is looked at when it has.
            if is_due && !is_in_line(cx, index) {
                let cut = cx.volumes.prunes_of(pool).max().unwrap_or_default();
                self.passes.insert(index, Pass { epoch, cut, has_found: false });
            }
        }
        if self.passes.is_empty() {
            return;
        }
        cx.pass(Milestone::PruneSearched);
        let mut found = BTreeSet::new();
        for key in cx.disk.store.objects() {
            let Some(head) = cx.volumes.of_layer(key.layer).map(|state| state.head) else { continue };
            let is_passed = || cx.groups.find(key.pg).is_some_and(|index| self.passes.contains_key(&index));
            if (head.number() > 0 || head.volume().is_clone()) && is_passed() {
                found.insert(ObjectKey { layer: head, ..key });
            }
        }
        self.objects.extend(found);
    }

    /// Looks for what nobody sees of an object. Says how many layers that took; an object costs as much as a few.
    fn look_at(&mut self, cx: &mut Context<'_, impl Io>, key: ObjectKey, is_of_pass: bool) -> usize {
        const OBJECT: usize = 8;
        let Some(index) = cx.groups.find(key.pg) else { return OBJECT };
        if !may_delete(cx, index) {
            // Another pass looks at it.
            self.passes.remove(&index);
            sweep_again(cx, index);
            return OBJECT;
        }
        if cx.breaks(Sabotage::PruneNothing) {
            return OBJECT;
        }
        let Some(mut views) = cx.volumes.map.views_of(key.layer.volume()) else { return OBJECT };
        if cx.breaks(Sabotage::PruneSeen) {
            views.from.remove(0);
        }
        let unseen = cx.disk.store.unseen(key.pg, key.object, &views);
        if let Some(pass) = self.passes.get_mut(&index).filter(|_| is_of_pass) {
            pass.has_found |= !unseen.is_empty();
        }
        let epoch = cx.groups[index].epoch;
        self.unseen.extend(unseen.into_iter().map(|unseen| (unseen, epoch)));
        OBJECT + views.from.len()
    }
}

/// Has all objects of a group looked at.
fn sweep_again(cx: &mut Context<'_, impl Io>, index: u32) {
    if let Some(primary) = cx.groups[index].standing.primary_mut() {
        primary.cutting.was_swept = false;
    }
}

/// The prunes of which a group may hold something still, as far as its primary knows.
pub(crate) fn pending(cx: &Context<'_, impl Io>, index: u32) -> impl Iterator<Item = CutId> {
    let group = &cx.groups[index];
    let through = group.standing.primary().map_or(CutId(0), |primary| primary.cutting.pruned_through);
    cx.volumes.prunes_of(group.pg.pool).filter(move |cut| *cut > through)
}

/// Whether something that was begun here is under way, or waits for its blocks.
fn is_in_line(cx: &Context<'_, impl Io>, group: u32) -> bool {
    let is_prune = |id| cx.operations.get(id).is_some_and(|operation| operation.purpose == Purpose::Prune);
    cx.lines.all(group).any(is_prune)
}

/// Begins to delete blocks that nobody sees. `false` when there is no room for it right now.
fn begin(cx: &mut Context<'_, impl Io>, unseen: Unseen, epoch: Epoch) -> bool {
    let Unseen { range, is_hidden } = unseen;
    let Some(index) = cx.groups.find(range.key.pg) else { return true };
    if !may_delete(cx, index) || cx.groups[index].epoch != epoch || !cx.groups[index].holds(&range.key) {
        // It is looked for once more.
        sweep_again(cx, index);
        return true;
    }
    if !queue::takes_change(cx.lines, index) {
        return false;
    }
    // Somebody may be writing where a hole of the newest layer is, or have written there.
    let is_needed = !is_hidden && (cx.must_wait(&range) || !cx.disk.store.are_holes(&range));
    if is_needed && !cx.breaks(Sabotage::PruneWritten) {
        return true;
    }
    cx.pass(Milestone::Pruned);
    cx.work_begins(WorkClass::Removal, DELETION_COST);
    let id = cx.operations.add_for(OperationKind::Zero, Purpose::Prune, index, range);
    if cx.must_wait(&range) || !order::zero(cx, id) {
        admit::wait(cx, id);
    }
    true
}
