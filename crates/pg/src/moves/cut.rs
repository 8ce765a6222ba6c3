//! Cuts: what a volume that was made smaller holds beyond its end goes, and is not there again when the volume grows.
//!
//! Each shrink has a number, which the map shows of the volume until that is done ([`base::map::VolumeInfo::cut`]), and until
//! then the volume does not grow. The primaries of the groups of its pool delete what lies beyond the end, as ordinary ordered
//! zeroings: whole blocks, and of the block in which the end lies the part behind it, as the edge of a write of zeros. So
//! members that are away get it like anything else that they missed. When a group has nothing left, its primary reports the
//! number ([`Cutting::through`]); when all groups of the pool have, the manager takes it off the volume
//! (`manager::decide::cuts`).
//!
//! To find what is left, all objects of the store are searched: once for all groups whose turn it is, and of a group not again
//! before that can find something else. What it found is cut first, and when all of that has ended it is searched again. One
//! that found nothing counts for as long as the epoch and the map by which it was made, for nothing is added afterwards but by
//! what reached beyond an end then; it is repeated when that has ended. The blocks in which volumes end, which may be damaged
//! for a long time, are looked at without it.
//!
//! # Why nothing comes back
//! - *What is reported is so on all members in sync*: nothing is left in the primary's index, and nothing is under way in the
//!   group or waits there that reaches beyond an end. What was ordered is committed then: it leaves the line no sooner.
//! - *Nothing is added afterwards.* In the same epoch the primary refuses it, by the very map that it was cut by. In any later
//!   one nobody is served before the primary has a map that shows that epoch ([`crate::request::admit`]), and that map shows
//!   the cut, or what came of it.
//! - *Later epochs begin with it.* Their members were in sync, or were brought up to date by one that was. What an epoch
//!   finds that not all members have was ordered before it served, and so before anything was cut in it.
//! - *What has grown since is not cut.* Only a primary cuts whose map shows the epoch that it serves, and the cut as still to
//!   be done. Whoever writes where the volume has grown since is served by a map that shows the growth. In this epoch that is
//!   this OSD, and the write is behind what it had begun to cut. In an earlier one it was nobody: if this epoch was registered
//!   before the growth, a map that shows the growth shows that the earlier epoch is over; if it was registered after it, this
//!   OSD's map shows the growth too. In a later one the members take nothing of this epoch any more.

use crate::broken::Sabotage;
use crate::codec::Payload;
use crate::context::Context;
use crate::group::cutting::Cutting;
use crate::io::Io;
use crate::journal::Milestone;
use crate::moves::prune;
use crate::operation::{ByteRange, OperationId, OperationKind, Purpose};
use crate::pace::DELETION_COST;
use crate::replication::order;
use crate::request::{admit, queue, write};
use crate::volumes::Shrunk;
use base::{
    BLOCK_BYTES, BlockRange, CutId, LayerId, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, PgId, VolumeId,
    WorkClass,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use zerocopy::little_endian::U32;

/// Zeroings that are begun at a time.
const AT_ONCE: usize = 64;
/// How long the last block of a volume is left alone that cannot be cut: it may be damaged, and no sound copy be there.
const TAIL_PAUSE: Duration = Duration::from_secs(5);
/// How long last blocks are left alone after a member refused a cut, while one has no room for what clients write. It may have
/// some for this, and it may be another one that refused, which says nothing when it takes it.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// What lies beyond the end of a volume, in one object.
#[derive(Clone, Copy, Debug)]
enum Excess {
    /// Whole blocks.
    Blocks(BlockRange),
    /// Of the block in which the end lies, what is behind that.
    Tail(ObjectKey),
}

impl Excess {
    fn key(&self) -> ObjectKey {
        match self {
            Excess::Blocks(range) => range.key,
            Excess::Tail(key) => *key,
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    /// What was found, and by which cut of its volume.
    queue: VecDeque<(Excess, CutId)>,
    /// Something is being cut, or a moment ago was.
    is_under_way: bool,
}

impl Cuts {
    /// Whether nothing is being cut.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_under_way
    }

    /// Goes on with what is to be cut: looks for it, when all that was found before is begun, and begins some of it.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        self.is_under_way = false;
        if cx.volumes.shrunk.is_empty() && cx.volumes.pruned.is_empty() {
            return self.queue.clear();
        }
        if self.queue.is_empty() {
            self.look(cx);
        }
        self.is_under_way |= !self.queue.is_empty();
        for _ in 0..AT_ONCE {
            if !cx.rates.pace.may_work(cx.now, WorkClass::Removal) {
                return;
            }
            let Some((excess, cut)) = self.queue.pop_front() else { return };
            if !begin(cx, excess, cut) {
                return self.queue.push_front((excess, cut));
            }
        }
    }

    /// Finds what is left in the groups that this OSD leads, and notes what is done.
    fn look(&mut self, cx: &mut Context<'_, impl Io>) {
        // Of which cuts something is left, by group; and the groups that are to be searched.
        let mut left: BTreeMap<u32, Vec<CutId>> = BTreeMap::new();
        let mut to_search = Vec::new();
        for index in cx.groups.indices() {
            let Some(cutting) = cutting(cx, index).filter(|cutting| !cutting.is_settled) else { continue };
            if !may_cut(cx, index) {
                continue;
            }
            self.is_under_way = true;
            // What was begun ends first: what it was for is looked at when it has.
            if cuts_in_line(cx, index) {
                continue;
            }
            let reached: Vec<CutId> = cuts_reached(cx, index).collect();
            if cutting.is_to_be_searched(&reached) {
                to_search.push(index);
            }
            left.insert(index, reached);
        }
        if cx.breaks(Sabotage::KeepBeyondEnd) {
            return left.into_keys().for_each(|index| note_left(cx, index, &[]));
        }
        if !to_search.is_empty() {
            self.search(cx, &to_search, &mut left);
        }
        for (index, mut left) in left {
            left.extend(prune::pending(cx, index));
            self.look_at_tails(cx, index, &mut left);
            note_left(cx, index, &left);
        }
    }

    /// Finds the whole blocks that are left in these groups, among all objects of the store.
    fn search(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        groups: &[u32],
        left: &mut BTreeMap<u32, Vec<CutId>>,
    ) {
        cx.pass(Milestone::CutSearched);
        let mut found: BTreeMap<u32, Vec<CutId>> = groups.iter().map(|index| (*index, Vec::new())).collect();
        // Objects of which several layers may hold something, each once.
        let mut layered = BTreeSet::new();
        // Of which volumes made smaller something is seen, by the volume that holds it.
        let mut seen_from: BTreeMap<VolumeId, Vec<LayerId>> = BTreeMap::new();
        for head in cx.volumes.shrunk.keys() {
            let volumes: BTreeSet<VolumeId> =
                cx.volumes.sight_of(*head).iter().map(|span| span.volume).collect();
            volumes.into_iter().for_each(|volume| seen_from.entry(volume).or_default().push(*head));
        }
        for key in cx.disk.store.objects() {
            for head in seen_from.get(&key.layer.volume()).into_iter().flatten() {
                let key = ObjectKey { layer: *head, ..key };
                let Some(shrunk) = cx.volumes.shrunk.get(head) else { continue };
                if (head.number() > 0 || head.volume().is_clone()) && !layered.insert(key) {
                    continue;
                }
                let Some(found) = cx.groups.find(key.pg).and_then(|index| found.get_mut(&index)) else {
                    continue;
                };
                if let Some(range) = blocks_beyond(key, shrunk.end)
                    && holds_some(cx, &range)
                {
                    self.queue.push_back((Excess::Blocks(range), shrunk.cut));
                    found.push(shrunk.cut);
                }
            }
        }
        for (index, mut found) in found {
            let left = left.entry(index).or_default();
            if let Some(primary) = cx.groups[index].standing.primary_mut() {
                primary.cutting.was_searched(found.is_empty().then(|| left.clone()));
            }
            left.append(&mut found);
        }
    }

    /// Finds the blocks of a group in which volumes end.
    fn look_at_tails(&mut self, cx: &mut Context<'_, impl Io>, index: u32, left: &mut Vec<CutId>) {
        let pg = cx.groups[index].pg;
        let is_here = |(layer, shrunk): (&LayerId, &Shrunk)| {
            let tail = tail_of(pg, *layer, shrunk)?;
            cx.groups[index].holds(&tail.key).then_some((tail, shrunk.cut))
        };
        let tails: Vec<(BlockRange, CutId)> = cx.volumes.shrunk.iter().filter_map(is_here).collect();
        for (tail, cut) in tails {
            let (key, now) = (tail.key, cx.now);
            let is_there = is_seen(cx, &tail) || cx.must_wait(&tail);
            let Some(primary) = cx.groups[index].standing.primary_mut() else { return };
            let cutting = &mut primary.cutting;
            if cutting.has_cut_tail(key.layer, cut) {
                continue;
            }
            if !is_there {
                // Whatever is written there from now on ends where the volume does.
                cutting.tail_is_cut(key.layer, cut);
                continue;
            }
            left.push(cut);
            if cutting.may_cut_tail(key.layer, cut, now) {
                self.queue.push_back((Excess::Tail(key), cut));
            }
        }
    }
}

/// A newer map: what it asks for may be more than what is done, or nothing.
pub(crate) fn heed(cx: &mut Context<'_, impl Io>) {
    for group in cx.groups.iter_mut() {
        let asks = cx.volumes.cuts_of(group.pg.pool).next().is_some();
        let Some(primary) = group.standing.primary_mut() else { continue };
        match asks {
            true => primary.cutting.is_asked_anew(),
            false => primary.cutting.is_asked_nothing(),
        }
    }
}

fn cutting<'a>(cx: &'a Context<'_, impl Io>, index: u32) -> Option<&'a Cutting> {
    cx.groups[index].standing.primary().map(|primary| &primary.cutting)
}

/// Whether this OSD may cut what a group holds: some volume of its pool waits for it too.
fn may_cut(cx: &Context<'_, impl Io>, index: u32) -> bool {
    may_delete(cx, index) && cx.volumes.cuts_of(cx.groups[index].pg.pool).next().is_some()
}

/// Whether this OSD may have members of a group delete something: it serves the group, by a map that is no older than its epoch.
pub(crate) fn may_delete(cx: &Context<'_, impl Io>, index: u32) -> bool {
    let group = &cx.groups[index];
    group.config.primary == cx.me.id && group.is_active() && group.is_shown && group.is_writable()
}

/// Whether something that was begun here is under way, or waits for its blocks.
fn cuts_in_line(cx: &Context<'_, impl Io>, group: u32) -> bool {
    let is_cut = |id: OperationId| {
        let purpose = cx.operations.get(id).map(|operation| operation.purpose);
        matches!(purpose, Some(Purpose::Cut(_)))
    };
    cx.lines.all(group).any(is_cut)
}

/// The cuts behind whose ends something reaches that is under way in a group or waits there, and is no read. What is about the
/// block in which an end lies, and none behind it, leaves what lies behind the end as it finds it.
fn cuts_reached(cx: &Context<'_, impl Io>, group: u32) -> impl Iterator<Item = CutId> {
    cx.lines.all(group).filter_map(move |id| {
        let operation = cx.operations.get(id).filter(|operation| operation.kind != OperationKind::Read)?;
        let range = &operation.range;
        let shrunk = cx.volumes.shrunk.get(&range.key.layer)?;
        let beyond = blocks_beyond(range.key, shrunk.end)?;
        (range.blocks().end > beyond.first_block).then_some(shrunk.cut)
    })
}

/// The blocks of an object that lie behind the end of its volume as a whole, if some do.
fn blocks_beyond(key: ObjectKey, end: u64) -> Option<BlockRange> {
    let start = u64::from(key.object) * OBJECT_BYTES;
    let first_block = end.saturating_sub(start).div_ceil(BLOCK_BYTES as u64);
    let block_count = (OBJECT_BLOCKS as u64).checked_sub(first_block).filter(|count| *count > 0)?;
    Some(BlockRange { key, first_block: first_block as u16, block_count: block_count as u16 })
}

/// The block of a group's pool in which a volume ends, if it ends within one.
fn tail_of(pg: PgId, layer: LayerId, shrunk: &Shrunk) -> Option<BlockRange> {
    let ends_within = shrunk.pool == pg.pool && !shrunk.end.is_multiple_of(BLOCK_BYTES as u64);
    ends_within.then(|| {
        let key = ObjectKey { pg, layer, object: (shrunk.end / OBJECT_BYTES) as u32 };
        BlockRange::one(key, (shrunk.end % OBJECT_BYTES / BLOCK_BYTES as u64) as u16)
    })
}

/// Whether something of these blocks is there for whoever reads their layer.
fn holds_some(cx: &Context<'_, impl Io>, range: &BlockRange) -> bool {
    // Of one without other layers it was found that it is there, and it has no holes.
    let layer = range.key.layer;
    range.first_block == 0 && layer.number() == 0 && !layer.volume().is_clone() || is_seen(cx, range)
}

/// The same of blocks of an object that may not be there.
fn is_seen(cx: &Context<'_, impl Io>, range: &BlockRange) -> bool {
    let sight = cx.volumes.sight_of(range.key.layer);
    let bits = cx.disk.store.allocated_through(&sight, range.key.pg, range.key.object);
    range.blocks().any(|block| bits[usize::from(block) / 8] >> (block % 8) & 1 != 0)
}

/// Notes of which cuts something is left in a group.
fn note_left(cx: &mut Context<'_, impl Io>, index: u32, left: &[CutId]) {
    let group = &mut cx.groups[index];
    let pool = group.pg.pool;
    let Some(primary) = group.standing.primary_mut() else { return };
    let cuts = cx.volumes.cuts_of(pool);
    let first = left.iter().min();
    let is_done = |cut: &CutId| first.is_none_or(|first| cut < first);
    primary.cutting.through = cuts.filter(is_done).max().unwrap_or_default();
    primary.cutting.is_settled = left.is_empty();
    if left.is_empty() {
        cx.pass(Milestone::CutSettled);
    }
}

/// Begins to cut something that was found, if it is to be cut still; else it is looked for anew. `false` when there is no room
/// for it right now.
fn begin(cx: &mut Context<'_, impl Io>, excess: Excess, cut: CutId) -> bool {
    let key = excess.key();
    let Some(index) = cx.groups.find(key.pg) else { return true };
    let Some(shrunk) = cx.volumes.shrunk.get(&key.layer).filter(|shrunk| shrunk.cut == cut).copied() else {
        return true;
    };
    if !may_cut(cx, index) || !cx.groups[index].holds(&key) {
        return true;
    }
    if !queue::takes_change(cx.lines, index) {
        return false;
    }
    match excess {
        // Holes are something that a member may have no room for.
        Excess::Blocks(range) if waits_for_room(cx, index, &range.key) => true,
        Excess::Blocks(range) => {
            cx.pass(Milestone::CutBlocks);
            cx.work_begins(WorkClass::Removal, DELETION_COST);
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Cut(cut), index, range);
            if cx.must_wait(&range) || !order::zero(cx, id) {
                admit::wait(cx, id);
            }
            true
        }
        Excess::Tail(key) => begin_tail(cx, index, key, &shrunk),
    }
}

/// Zeroes of the block in which a volume ends what lies behind the end. `false` when there is no memory for that right now.
fn begin_tail(cx: &mut Context<'_, impl Io>, index: u32, key: ObjectKey, shrunk: &Shrunk) -> bool {
    let Some(tail) = tail_of(key.pg, key.layer, shrunk) else { return true };
    if waits_for_room(cx, index, &key) {
        return true;
    }
    let Some(mut zeros) = cx.disk.large.take() else { return false };
    zeros.bytes_mut().expect("a buffer from the pool is unique")[..BLOCK_BYTES].fill(0);
    let again_at = cx.now + TAIL_PAUSE;
    if let Some(primary) = cx.groups[index].standing.primary_mut() {
        primary.cutting.begins_tail(key.layer, shrunk.cut, again_at);
    }
    cx.pass(Milestone::CutTail);
    let id = cx.operations.add_for(OperationKind::Write, Purpose::Cut(shrunk.cut), index, tail);
    let operation = cx.operations.live(id);
    let offset = (shrunk.end % OBJECT_BYTES) as u32;
    let length = BLOCK_BYTES as u32 - offset % BLOCK_BYTES as u32;
    operation.bytes = ByteRange { offset, length };
    operation.payload = Payload::Held(zeros);
    // Of the whole block it is known when its front was read.
    operation.checksums.push(U32::ZERO);
    if cx.must_wait(&tail) || !write::start(cx, id) {
        admit::wait(cx, id);
    }
    true
}

/// Whether a member refused such a write of this OSD's own a while ago and may still have no room. Who refuses one ends the epoch,
/// and the next one would begin it again at once.
pub(crate) fn waits_for_room(cx: &mut Context<'_, impl Io>, index: u32, key: &ObjectKey) -> bool {
    let Some(until) = cx.groups[index].pauses.tails_wait_until else { return false };
    if cx.now < until && admit::is_full(cx, index, key) {
        return true;
    }
    cx.groups[index].pauses.tails_wait_until = None;
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::epoch;
    use crate::group::line::IN_FLIGHT_MAX;
    use crate::testing::{Alone, PG, Pair, VOLUME, ack};
    use base::map::{ClusterMap, PoolInfo, VolumeInfo};
    use base::{Epoch, OsdId, PoolId, crc32c};
    use std::sync::Arc;
    use wire::{Kind, Status};

    const BLOCK: u64 = BLOCK_BYTES as u64;

    fn key(object: u32) -> ObjectKey {
        ObjectKey { pg: PG, layer: VOLUME.first_layer(), object }
    }

    /// The map of a moment later, in which the volume ends there.
    fn resized(alone: &Alone, end: u64, cut: Option<CutId>) -> ClusterMap {
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        let volume = map.volumes.get_mut(&VOLUME).unwrap();
        (volume.bytes, volume.cut) = (end, cut);
        map
    }

    fn hears_of(alone: &mut Alone, end: u64, cut: Option<CutId>) {
        let map = resized(alone, end, cut);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    }

    /// The blocks of an object that are there, and their checksums.
    fn held(alone: &Alone, object: u32) -> Vec<(u16, u32)> {
        let mut blocks = Vec::new();
        alone.osd.store().for_each_block(&key(object), |block, checksum, _| blocks.push((block, checksum)));
        blocks
    }

    /// How often all objects were searched.
    fn searches(alone: &Alone) -> u64 {
        alone.passed("cut: all objects are searched")
    }

    /// What the primary of the one group reports.
    fn through(alone: &Alone) -> CutId {
        alone.osd.view().summaries().next().unwrap().cut_through
    }

    /// A block of the first of these bytes, so many, and then zeros.
    fn block_of(byte: u8, count: usize) -> u32 {
        let mut block = [0; BLOCK_BYTES];
        block[..count].fill(byte);
        crc32c(&block)
    }

    #[test]
    fn what_lies_beyond_an_end_within_a_block_goes_by_the_byte_and_the_rest_stays() {
        let mut alone = Alone::new();
        for (object, first_block, block_count) in [(1, 0, 2), (3, 8, 4), (5, 1, 1)] {
            alone.order(key(object), first_block, block_count, 0);
        }
        let before = held(&alone, 1);
        // Memory that was used before.
        let buffers = alone.osd.shared.disk.large.iter_mut();
        buffers.for_each(|buffer| buffer.bytes_mut().unwrap().fill(0xee));
        hears_of(&mut alone, 3 * OBJECT_BYTES + 10 * BLOCK + 100, Some(CutId(4)));
        assert_eq!(through(&alone), CutId(0));
        alone.run();
        assert_eq!(through(&alone), CutId(4));
        assert!(!alone.osd.view().is_cutting());
        assert_eq!((held(&alone, 1), held(&alone, 5)), (before, vec![]));
        let whole = |block: u8| (u16::from(block), block_of(block, BLOCK_BYTES));
        assert_eq!(held(&alone, 3), [whole(8), whole(9), (10, block_of(10, 100))]);
        alone.osd.store().verify().unwrap();
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
        // When it is noted, nothing is reported any more, and what lies there from then on is not touched.
        hears_of(&mut alone, 8 * OBJECT_BYTES, None);
        alone.order(key(5), 1, 1, 0);
        alone.run();
        assert_eq!((through(&alone), held(&alone, 5).len()), (CutId(0), 1));
        assert_eq!(held(&alone, 3)[2], (10, block_of(10, 100)));
    }

    #[test]
    fn an_end_between_blocks_or_in_a_hole_leaves_the_block_before_it_as_it_is() {
        for (end, left) in [(2 * BLOCK, 2), (2 * BLOCK + 7, 2), (BLOCK, 1), (0, 0)] {
            let mut alone = Alone::new();
            alone.order(key(3), 0, 2, 0);
            alone.order(key(3), 5, 1, 0);
            let before = held(&alone, 3);
            hears_of(&mut alone, 3 * OBJECT_BYTES + end, Some(CutId(1)));
            alone.run();
            assert_eq!((through(&alone), held(&alone, 3)), (CutId(1), before[..left].to_vec()), "{end}");
        }
    }

    fn acknowledge(pair: &mut Pair) {
        let ack = ack(pair.received);
        pair.hears(&ack);
        pair.turns(20);
    }

    #[test]
    fn a_cut_is_reported_when_all_members_have_it_and_nothing_is_under_way_behind_the_end() {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(10, 7);
        assert_eq!(pair.ask(&write), None);
        pair.turns(5);
        // The write is durable here, and not there.
        assert_eq!(held(&pair.alone, 3).len(), 1);
        hears_of(&mut pair.alone, 3 * OBJECT_BYTES, Some(CutId(2)));
        pair.turns(20);
        assert!(through(&pair.alone) == CutId(0) && pair.alone.osd.view().is_cutting());
        assert_eq!(held(&pair.alone, 3).len(), 1, "what is under way there comes first");
        acknowledge(&mut pair);
        assert_eq!(pair.told(), Some(Status::Ok));
        assert_eq!((held(&pair.alone, 3), through(&pair.alone)), (vec![], CutId(0)), "one member has it");
        acknowledge(&mut pair);
        assert_eq!(through(&pair.alone), CutId(2));
        assert_eq!(searches(&pair.alone), 2, "what was begun is not looked for before it has ended");
        // Nobody writes there any more.
        let again = pair.write_of(10, 7);
        assert_eq!(pair.ask(&again), Some(Status::BeyondEnd));
        let read = pair.request(10).encode(Kind::Read).to_vec();
        assert_eq!(pair.ask(&read), Some(Status::BeyondEnd));
    }

    #[test]
    fn what_was_found_and_is_gone_here_is_not_reported_before_it_is_gone_elsewhere() {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        pair.acknowledges = false;
        hears_of(&mut pair.alone, 3 * OBJECT_BYTES, Some(CutId(2)));
        pair.turns(20);
        assert_eq!((held(&pair.alone, 3), through(&pair.alone)), (vec![], CutId(0)));
        assert!(pair.alone.osd.view().is_cutting());
        acknowledge(&mut pair);
        assert_eq!(through(&pair.alone), CutId(2));
    }

    #[test]
    fn so_much_is_begun_at_a_time_and_everything_once() {
        let mut alone = Alone::new();
        let data = [7; BLOCK_BYTES];
        for object in 0..=100 {
            alone.with(|_, cx| {
                let range = BlockRange::one(key(object), 0);
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, 0, range);
                cx.operations.live(id).checksums.push(crc32c(&data).into());
                assert!(order::write(cx, id, &data));
            });
            (0..3).for_each(|_| alone.turn());
        }
        hears_of(&mut alone, OBJECT_BYTES, Some(CutId(1)));
        alone.turn();
        let begun = |alone: &Alone| alone.passed("cut: whole blocks");
        assert_eq!(begun(&alone), AT_ONCE as u64);
        let mut turns = 0;
        while through(&alone) == CutId(0) {
            assert!(alone.osd.view().is_cutting() && turns < 30, "{turns}");
            alone.turn();
            turns += 1;
        }
        assert_eq!((begun(&alone), searches(&alone)), (100, 2));
        let left: Vec<ObjectKey> = alone.osd.store().objects().collect();
        assert_eq!((left, alone.osd.view().operations_in_flight()), (vec![key(0)], 0));
    }

    #[test]
    fn what_finds_too_much_under_way_is_begun_when_there_is_less_and_not_looked_for_again() {
        let mut alone = Alone::new();
        alone.order(key(5), 1, 1, 0);
        let under_way: Vec<OperationId> = alone.with(|_, cx| {
            let hold = |block| {
                let range = BlockRange::one(key(0), block);
                let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
                cx.hold(id);
                id
            };
            (0..IN_FLIGHT_MAX as u16).map(hold).collect()
        });
        hears_of(&mut alone, OBJECT_BYTES, Some(CutId(1)));
        alone.run();
        assert_eq!((searches(&alone), held(&alone, 5).len(), through(&alone)), (1, 1, CutId(0)));
        assert!(alone.osd.view().is_cutting());
        alone.with(|_, cx| {
            for id in under_way {
                cx.lines.ended(id);
                cx.forget(id);
            }
        });
        alone.run();
        assert_eq!((searches(&alone), held(&alone, 5).len(), through(&alone)), (2, 0, CutId(1)));
    }

    #[test]
    fn a_volume_that_is_made_smaller_once_more_is_looked_at_anew_whatever_other_pools_have() {
        let mut alone = Alone::new();
        alone.order(key(3), 0, 3, 0);
        alone.order(key(5), 0, 1, 0);
        let hears_of = |alone: &mut Alone, end, cut| {
            let mut map = resized(alone, end, cut);
            let pool = PoolId(7);
            map.pools.insert(pool, PoolInfo { name: "other".to_owned(), ..map.pools[&PG.pool].clone() });
            let (bytes, cut) = (1, Some(CutId(9)));
            let volume = VolumeInfo { pool, bytes, cut, ..map.volumes[&VOLUME].clone() };
            map.volumes.insert(base::VolumeId(2), volume);
            alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        };
        hears_of(&mut alone, 4 * OBJECT_BYTES, Some(CutId(1)));
        alone.run();
        assert_eq!((through(&alone), held(&alone, 3).len(), held(&alone, 5)), (CutId(1), 3, vec![]));
        hears_of(&mut alone, 3 * OBJECT_BYTES + BLOCK + 5, Some(CutId(2)));
        assert_eq!(through(&alone), CutId(1), "that is so still");
        alone.run();
        assert_eq!(through(&alone), CutId(2));
        assert_eq!(held(&alone, 3), [(0, block_of(0, BLOCK_BYTES)), (1, block_of(1, 5))]);
        hears_of(&mut alone, 8 * OBJECT_BYTES, None);
        assert_eq!(through(&alone), CutId(0));
    }

    #[test]
    fn a_group_is_cut_only_by_who_serves_it_by_a_map_that_is_new_enough() {
        let mut alone = Alone::new();
        hears_of(&mut alone, OBJECT_BYTES, Some(CutId(3)));
        alone.with(|_, cx| {
            let excess = |key| Excess::Blocks(BlockRange::whole(key));
            assert!(may_cut(cx, 0));
            cx.groups[0].is_shown = false;
            assert!(!may_cut(cx, 0));
            cx.groups[0].is_shown = true;
            cx.groups[0].wanted.min_size = 2;
            assert!(!may_cut(cx, 0), "too few are in sync");
            cx.groups[0].wanted.min_size = 1;
            cx.groups[0].config.primary = OsdId(1);
            assert!(!may_cut(cx, 0));
            cx.groups[0].config.primary = OsdId(0);
            // It went to the other half when the group was split.
            cx.groups[0].modulus = 2;
            let theirs = (1..).map(key).find(|key| !key.pg.holds(2, VOLUME, key.object)).unwrap();
            assert!(may_cut(cx, 0) && begin(cx, excess(theirs), CutId(3)));
            cx.groups[0].modulus = 1;
            epoch::end(cx, 0, "a test");
            assert!(!may_cut(cx, 0) && begin(cx, excess(key(5)), CutId(3)));
        });
        assert_eq!(alone.osd.view().operations_in_flight(), 0, "nothing is begun");
    }

    #[test]
    fn what_is_under_way_on_the_block_of_the_end_is_waited_for_and_what_is_before_it_is_not() {
        let cases = [(10 * BLOCK, CutId(1), BLOCK_BYTES), (9 * BLOCK + 5, CutId(0), 5)];
        for (end, meanwhile, left) in cases {
            let mut alone = Alone::new();
            let data = [7; BLOCK_BYTES];
            let id = alone.with(|_, cx| {
                let range = BlockRange::one(key(3), 9);
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, 0, range);
                cx.operations.live(id).checksums.push(crc32c(&data).into());
                cx.hold(id);
                id
            });
            hears_of(&mut alone, 3 * OBJECT_BYTES + end, Some(CutId(1)));
            alone.run();
            assert_eq!((through(&alone), held(&alone, 3)), (meanwhile, vec![]), "{end}");
            alone.with(|_, cx| assert!(order::write(cx, id, &data)));
            alone.run();
            assert_eq!((through(&alone), held(&alone, 3)), (CutId(1), vec![(9, block_of(7, left))]), "{end}");
        }
    }

    #[test]
    fn another_epoch_begins_by_looking() {
        let mut alone = Alone::new();
        hears_of(&mut alone, OBJECT_BYTES, Some(CutId(3)));
        alone.run();
        assert_eq!(through(&alone), CutId(3));
        // As if another one had led by an older map.
        alone.order(key(4), 0, 1, 0);
        assert_eq!((through(&alone), held(&alone, 4).len()), (CutId(3), 1));
        alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        assert_eq!(through(&alone), CutId(0));
        alone.run();
        assert_eq!((through(&alone), held(&alone, 4)), (CutId(3), vec![]));
    }

    /// A moment passes, in which no map comes.
    fn step(alone: &mut Alone) {
        alone.now = alone.now + Duration::from_millis(50);
        alone.drive_answers();
        let Alone { osd, io, now } = alone;
        for (pg, config) in std::mem::take(&mut io.proposals) {
            osd.handle_proposal(*now, pg, Some(config), io);
        }
        osd.end_turn(*now, io);
    }

    #[test]
    fn a_primary_whose_map_is_older_than_its_epoch_cuts_nothing() {
        let mut alone = Alone::new();
        alone.order(key(5), 1, 1, 0);
        hears_of(&mut alone, OBJECT_BYTES, Some(CutId(3)));
        // Another epoch is granted before it looks, and the map that shows it does not come.
        alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        for _ in 0..100 {
            step(&mut alone);
        }
        assert!(alone.osd.shared.groups[0].is_active() && !alone.osd.shared.groups[0].is_shown);
        assert_eq!((held(&alone, 5).len(), through(&alone)), (1, CutId(0)), "it may have grown since");
        let mut map = resized(&alone, OBJECT_BYTES, Some(CutId(3)));
        map.pgs.insert(PG, alone.osd.shared.groups[0].config.clone());
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.run();
        assert_eq!((held(&alone, 5), through(&alone)), (vec![], CutId(3)));
    }

    #[test]
    fn what_was_found_by_an_older_map_is_not_cut_where_the_volume_has_grown_since() {
        let mut alone = Alone::new();
        alone.order(key(5), 1, 1, 0);
        // Once it waits for nothing, and once for another cut behind which this is no more.
        for cut in [None, Some(CutId(9))] {
            hears_of(&mut alone, 8 * OBJECT_BYTES, cut);
            alone.osd.router.cuts.queue.push_back((Excess::Blocks(BlockRange::whole(key(5))), CutId(8)));
            alone.osd.router.cuts.queue.push_back((Excess::Tail(key(5)), CutId(8)));
            alone.run();
            assert_eq!(held(&alone, 5).len(), 1, "{cut:?}");
            assert!(alone.osd.router.cuts.queue.is_empty());
        }
    }

    #[test]
    fn of_several_cuts_only_those_before_the_first_that_is_not_done_are_reported() {
        let mut alone = Alone::new();
        alone.with(|_, cx| {
            for (volume, cut) in [(1, 4), (2, 6), (3, 9)] {
                let shrunk = Shrunk { pool: PG.pool, end: 1, cut: CutId(cut) };
                cx.volumes.shrunk.insert(LayerId(volume), shrunk);
            }
            let elsewhere = Shrunk { pool: PoolId(7), end: 1, cut: CutId(20) };
            cx.volumes.shrunk.insert(LayerId(4), elsewhere);
            for (left, through) in [(vec![], 9), (vec![9], 6), (vec![6], 4), (vec![9, 6], 4), (vec![4], 0)] {
                let left: Vec<CutId> = left.into_iter().map(CutId).collect();
                note_left(cx, 0, &left);
                let cutting = cutting(cx, 0).unwrap();
                assert_eq!(
                    (cutting.through, cutting.is_settled),
                    (CutId(through), left.is_empty()),
                    "{left:?}"
                );
            }
        });
    }

    #[test]
    fn a_last_block_that_no_member_can_read_is_tried_again_and_holds_the_word_back() {
        let mut alone = Alone::new();
        alone.order(key(3), 10, 1, 0);
        let mut extents = Vec::new();
        alone.osd.store().lookup(&key(3), 10, 1, &mut extents, &mut Vec::new());
        let location = extents[0].location.unwrap();
        alone.io.bad = Some(u64::from(location.0) * BLOCK);
        hears_of(&mut alone, 3 * OBJECT_BYTES + 10 * BLOCK + 1, Some(CutId(1)));
        alone.run();
        assert_eq!((through(&alone), held(&alone, 3).len()), (CutId(0), 1));
        let tried = alone.osd.view().damage().found;
        assert!((1..10).contains(&tried), "{tried} times");
        assert_eq!(searches(&alone), 1, "no objects are searched for it");
        // It can be read again; or the volume is made smaller by that block.
        alone.io.bad = None;
        alone.run();
        alone.run();
        assert_eq!((through(&alone), held(&alone, 3)), (CutId(1), vec![(10, block_of(10, 1))]));
    }

    /// A group in which a member has no room for the last block of a volume, some time after it refused that, and its epoch.
    fn refused() -> (Pair, Epoch) {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.run();
        assert_eq!(pair.told(), Some(Status::Ok));
        pair.entries = pair.alone.osd.store().pg_log(PG).collect();
        pair.is_full = true;
        let epoch = pair.alone.osd.shared.groups[0].epoch;
        hears_of(&mut pair.alone, 3 * OBJECT_BYTES + 10 * BLOCK + 1, Some(CutId(2)));
        pair.turns(1000);
        let group = &pair.alone.osd.shared.groups[0];
        assert!(group.is_active() && group.epoch == Epoch(epoch.0 + 1), "{epoch:?}: {group:?}");
        assert_eq!(through(&pair.alone), CutId(0));
        (pair, Epoch(epoch.0 + 1))
    }

    #[test]
    fn a_last_block_for_which_a_member_has_no_room_ends_one_epoch_and_not_one_after_the_other() {
        let (mut pair, epoch) = refused();
        // It says when it has room.
        pair.is_full = false;
        acknowledge(&mut pair);
        pair.turns(50);
        assert_eq!(through(&pair.alone), CutId(2));
        assert_eq!(held(&pair.alone, 3), [(10, block_of(7, 1))]);
        let group = &pair.alone.osd.shared.groups[0];
        assert_eq!((group.epoch, group.pauses.tails_wait_until), (epoch, None));
    }

    #[test]
    fn a_last_block_that_was_refused_is_tried_again_although_a_member_has_no_room_for_clients() {
        let (mut pair, epoch) = refused();
        // It has room for this, and says that it has none for what clients write.
        pair.is_full = false;
        pair.turns(1000);
        assert_eq!(through(&pair.alone), CutId(0), "it was refused a short while ago");
        pair.turns(1500);
        assert_eq!((through(&pair.alone), held(&pair.alone, 3)), (CutId(2), vec![(10, block_of(7, 1))]));
        assert_eq!(pair.alone.osd.shared.groups[0].epoch, epoch);
    }

    #[test]
    fn objects_are_searched_again_only_when_something_ended_that_may_have_left_more() {
        let mut alone = Alone::new();
        let data = [7; BLOCK_BYTES];
        let id = alone.with(|_, cx| {
            let range = BlockRange::one(key(3), 10);
            let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, 0, range);
            cx.operations.live(id).checksums.push(crc32c(&data).into());
            cx.hold(id);
            id
        });
        hears_of(&mut alone, 3 * OBJECT_BYTES, Some(CutId(1)));
        alone.run();
        assert!(alone.osd.view().is_cutting());
        assert_eq!((searches(&alone), through(&alone)), (1, CutId(0)));
        alone.with(|_, cx| assert!(order::write(cx, id, &data)));
        alone.run();
        // Once for what it left, and once more when that was cut.
        assert_eq!((searches(&alone), through(&alone), held(&alone, 3)), (3, CutId(1), vec![]));
        assert!(!alone.osd.view().is_cutting());
        alone.run();
        assert_eq!(searches(&alone), 3);
    }

    #[test]
    fn the_blocks_behind_an_end_are_those_that_begin_at_it_or_later() {
        let range = |object, end| blocks_beyond(key(object), end).map(|range| range.blocks());
        let all = OBJECT_BLOCKS as u16;
        assert_eq!(range(0, 0), Some(0..all));
        assert_eq!(range(3, 3 * OBJECT_BYTES), Some(0..all));
        assert_eq!(range(3, 3 * OBJECT_BYTES + 1), Some(1..all));
        assert_eq!(range(3, 3 * OBJECT_BYTES + BLOCK), Some(1..all));
        assert_eq!(range(3, 4 * OBJECT_BYTES - BLOCK), Some(all - 1..all));
        assert_eq!(range(3, 4 * OBJECT_BYTES - BLOCK + 1), None);
        assert_eq!(range(3, 4 * OBJECT_BYTES), None);
        let tail = |end| tail_of(PG, VOLUME.first_layer(), &Shrunk { pool: PG.pool, end, cut: CutId(1) });
        assert_eq!(tail(3 * OBJECT_BYTES + 2 * BLOCK), None);
        assert_eq!(tail(3 * OBJECT_BYTES + 2 * BLOCK + 5), Some(BlockRange::one(key(3), 2)));
        assert_eq!(tail(3 * OBJECT_BYTES - 1), Some(BlockRange::one(key(2), all - 1)));
        assert_eq!(
            tail_of(PG, VOLUME.first_layer(), &Shrunk { pool: PoolId(7), end: 5, cut: CutId(1) }),
            None
        );
    }
}
