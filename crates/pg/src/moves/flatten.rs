//! Flattening: what a clone sees of the snapshot that it was cloned from is copied to it, so that it depends on that no more.
//!
//! A block is copied to the clone's *first* layer, beneath whatever it and its snapshots hold, by an ordinary ordered write: the
//! primary reads what lies beneath, which is in the same group, as it reads the edges of a write of some bytes. So nobody sees a
//! difference, before it or after it, and whatever was copied when it ends early is not copied again. Who writes to the block
//! meanwhile waits for it, and what is written is not written over: it is looked once more that the layer holds nothing there.
//!
//! Each flattening has a number ([`base::map::VolumeInfo::flatten`]). When a look at all objects of a group has found nothing that
//! somebody sees beneath the clone, and what was under way then has ended in the same epoch, the primary counts it as done there; when
//! all groups have, the manager takes the parent off the clone. Nothing is added afterwards: a snapshot does not change, and what hides something of it stays for as long as the map
//! shows that it lies there. Who serves by a map that does not show it serves by one that no later epoch has an older one than, as
//! with cuts ([`crate::moves::cut`]).

use super::cut::{may_delete, waits_for_room};
use crate::broken::Sabotage;
use crate::codec::Payload;
use crate::context::Context;
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{ByteRange, OperationId, OperationKind, Purpose};
use crate::pace::COPY_COST;
use crate::request::{admit, queue, write};
use base::{BLOCK_BYTES, BlockRange, CutId, Epoch, Instant, LayerSpan, ObjectKey, VolumeId, WorkClass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use zerocopy::little_endian::U32;

/// Blocks that are being copied at a time, in each group.
const AT_ONCE: usize = 32;
/// Objects that are looked at at a time, in all groups.
const OBJECTS_AT_ONCE: usize = 128;
/// The pause between one look and the next.
const PACE: Duration = Duration::from_millis(5);
/// The pause before a group is looked at again of which something was copied: something may be damaged, and stay so.
const PASS_PAUSE: Duration = Duration::from_secs(1);

/// A look at all objects of a group.
#[derive(Debug)]
struct Pass {
    epoch: Epoch,
    /// The newest number that the map showed of volumes of the pool when it began.
    through: CutId,
    /// Objects that are to be looked at, by the first layers of clones.
    objects: VecDeque<ObjectKey>,
    /// What was found.
    blocks: VecDeque<BlockRange>,
    has_found: bool,
    /// When all was looked at: what was under way then. What hid something was durable here, and may come to nothing where it is
    /// not elsewhere before the epoch ends; as long as it is under way nothing is told.
    awaited: Option<Vec<OperationId>>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Flattens {
    /// By group.
    passes: BTreeMap<u32, Pass>,
    /// When groups are looked at again.
    again_at: BTreeMap<u32, Instant>,
    is_under_way: bool,
}

impl Flattens {
    /// Whether nothing is being copied.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_under_way
    }

    /// Goes on with what is to be copied.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        if cx.volumes.flattened.is_empty() {
            *self = Flattens::default();
            return;
        }
        self.begin_passes(cx);
        let mut looks = OBJECTS_AT_ONCE;
        for index in self.passes.keys().copied().collect::<Vec<_>>() {
            self.go_on(cx, index, &mut looks);
        }
        self.is_under_way = !self.passes.is_empty() || !self.again_at.is_empty();
        if self.is_under_way {
            cx.turn.next_tick = cx.turn.next_tick.min(cx.now + PACE);
        }
    }

    /// Finds the objects that are to be looked at.
    fn begin_passes(&mut self, cx: &mut Context<'_, impl Io>) {
        let now = cx.now;
        self.again_at.retain(|_, at| *at > now);
        let mut new = BTreeSet::new();
        for index in cx.groups.indices() {
            let is_due = !self.passes.contains_key(&index) && !self.again_at.contains_key(&index);
            if is_due && is_pending(cx, index) && may_delete(cx, index) {
                new.insert(index);
            }
        }
        if new.is_empty() {
            return;
        }
        cx.pass(Milestone::FlattenSearched);
        // The clones that see a volume.
        let mut clones: BTreeMap<VolumeId, Vec<VolumeId>> = BTreeMap::new();
        for clone in cx.volumes.flattened.keys() {
            let beneath = cx.volumes.map.views_of(*clone).map_or_else(Vec::new, |views| views.beneath);
            for volume in beneath.iter().map(|span| span.volume).collect::<BTreeSet<_>>() {
                clones.entry(volume).or_default().push(*clone);
            }
        }
        for index in new {
            let group = &cx.groups[index];
            let mut objects = BTreeSet::new();
            for key in cx.disk.store.objects_of(group.pg) {
                let clones = clones.get(&key.layer.volume()).into_iter().flatten();
                objects.extend(clones.map(|clone| ObjectKey { layer: clone.first_layer(), ..key }));
            }
            let through = cx.volumes.flattens_of(group.pg.pool).max().unwrap_or_default();
            let (epoch, objects) = (group.epoch, objects.into_iter().collect());
            let pass =
                Pass { epoch, through, objects, blocks: VecDeque::new(), has_found: false, awaited: None };
            self.passes.insert(index, pass);
        }
    }

    fn go_on(&mut self, cx: &mut Context<'_, impl Io>, index: u32, looks: &mut usize) {
        let Some(pass) = self.passes.get_mut(&index) else { return };
        if cx.groups[index].epoch != pass.epoch || !may_delete(cx, index) {
            self.passes.remove(&index);
            return;
        }
        let under_way = in_line(cx, index);
        for _ in under_way..AT_ONCE {
            if !cx.rates.pace.may_work(cx.now, WorkClass::Removal) {
                break;
            }
            while pass.blocks.is_empty() && *looks > 0 {
                *looks -= 1;
                let Some(key) = pass.objects.pop_front() else { break };
                pass.blocks = seen_beneath(cx, &key);
                pass.has_found |= !pass.blocks.is_empty();
            }
            let Some(block) = pass.blocks.pop_front() else { break };
            if !begin(cx, index, &block) {
                pass.blocks.push_front(block);
                break;
            }
        }
        let left = (pass.objects.len() + usize::from(!pass.blocks.is_empty())) as u64;
        let mut is_over = left == 0 && in_line(cx, index) == 0;
        if is_over && !pass.has_found {
            let awaited = pass.awaited.get_or_insert_with(|| changes_in_line(cx, index));
            awaited.retain(|id| cx.lines.all(index).any(|other| other == *id));
            is_over = awaited.is_empty();
        }
        let (through, has_found) = (pass.through, pass.has_found);
        let now = cx.now;
        let Some(primary) = cx.groups[index].standing.primary_mut() else { return };
        primary.cutting.flatten.objects_left = left;
        if !is_over {
            return;
        }
        self.passes.remove(&index);
        if has_found {
            // It is looked whether all of that came to something.
            self.again_at.insert(index, now + PASS_PAUSE);
            primary.cutting.flatten.objects_left = 1;
        } else {
            primary.cutting.flatten.through = through;
        }
    }
}

/// Whether a group may hold something that is to be copied, as far as its primary knows.
fn is_pending(cx: &Context<'_, impl Io>, index: u32) -> bool {
    let group = &cx.groups[index];
    let Some(primary) = group.standing.primary() else { return false };
    cx.volumes.flattens_of(group.pg.pool).any(|flatten| flatten > primary.cutting.flatten.through)
}

/// What is under way in a group, or waits there, and is no read.
fn changes_in_line(cx: &Context<'_, impl Io>, group: u32) -> Vec<OperationId> {
    let is_change =
        |id: &_| cx.operations.get(*id).is_some_and(|operation| operation.kind != OperationKind::Read);
    cx.lines.all(group).filter(is_change).collect()
}

/// How many blocks of a group are being copied.
fn in_line(cx: &Context<'_, impl Io>, group: u32) -> usize {
    let is_copy =
        |id: &_| cx.operations.get(*id).is_some_and(|operation| operation.purpose == Purpose::Flatten);
    cx.lines.all(group).filter(is_copy).count()
}

/// What somebody sees of an object who sees the clone of that layer, and lies beneath that: block by block.
fn seen_beneath(cx: &Context<'_, impl Io>, key: &ObjectKey) -> VecDeque<BlockRange> {
    if cx.breaks(Sabotage::FlattenNothing) || !cx.volumes.flattened.contains_key(&key.layer.volume()) {
        return VecDeque::new();
    }
    let Some(views) = cx.volumes.map.views_of(key.layer.volume()) else { return VecDeque::new() };
    let runs = cx.disk.store.seen_beneath(key.pg, key.object, &views);
    runs.into_iter().flatten().map(|block| BlockRange::one(*key, block)).collect()
}

/// Begins to copy a block. `false` when there is no room for it right now.
fn begin(cx: &mut Context<'_, impl Io>, index: u32, range: &BlockRange) -> bool {
    let holds = [LayerSpan { oldest: 0, newest: 0, ..LayerSpan::down_from(range.key.layer) }];
    // Who is on it may write it; whether that came to something is seen later.
    let is_there = cx.disk.store.holds_some(holds, range);
    let must_wait = cx.must_wait(range) && !cx.breaks(Sabotage::FlattenWritten);
    if is_there || must_wait || !cx.groups[index].holds(&range.key) {
        return true;
    }
    if !queue::takes_change(cx.lines, index)
        || admit::is_full(cx, index, &range.key)
        || waits_for_room(cx, index, &range.key)
    {
        return false;
    }
    // Clients need that memory too.
    if cx.disk.large.available() * 2 <= cx.disk.large.count() {
        return false;
    }
    let Some(copy) = cx.disk.large.take() else { return false };
    cx.pass(Milestone::Flattened);
    cx.work_begins(WorkClass::Removal, COPY_COST);
    let id = cx.operations.add_for(OperationKind::Write, Purpose::Flatten, index, *range);
    let operation = cx.operations.live(id);
    // It brings no bytes: all of the block is what lies beneath.
    operation.bytes = ByteRange { offset: u32::from(range.first_block) * BLOCK_BYTES as u32, length: 0 };
    operation.payload = Payload::Held(copy);
    operation.checksums.push(U32::ZERO);
    if !write::start(cx, id) {
        admit::wait(cx, id);
    }
    true
}
