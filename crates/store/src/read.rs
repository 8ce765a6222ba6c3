//! What a store has, and how it is. Only what is durable is seen.

use crate::actions::{Extent, Identity, Location, Role, Statistics, Unseen};
use crate::bits::Bits;
use crate::index::ObjectIndex;
use crate::layout::Superblock;
use crate::pg_log::Currency;
use crate::space::Space;
use crate::stack::{ObjectSpace, Stack};
use crate::store::Store;
use crate::superblock;
use base::{
    BLOCK_BYTES, BlockRange, Epoch, LayerSpan, LogEntry, ObjectKey, PgId, PoolId, Sequence, Views,
    ZERO_BLOCK_CRC32C,
};
use std::collections::VecDeque;
use std::ops::Range;
use zerocopy::FromBytes;

impl Store {
    /// Whose drive this is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where blocks of an object lie, and their checksums, one for each: what its layer holds itself. Appends to both vectors.
    pub fn lookup(
        &self,
        key: &ObjectKey,
        first_block: u16,
        block_count: u16,
        extents: &mut Vec<Extent>,
        checksums: &mut Vec<u32>,
    ) {
        let object = self.contents.index.get(key);
        let first_extent = extents.len();
        for block in first_block..first_block + block_count {
            let entry = object.and_then(|object| object.get(block));
            checksums.push(entry.map_or(ZERO_BLOCK_CRC32C, |entry| entry.crc32c));
            let location = entry.map(|entry| Location(entry.location));
            let extent = Extent { layer: key.layer, first_block: block, block_count: 1, location };
            self.append(extent, first_extent, extents);
        }
    }

    /// The same of what somebody sees who sees all of these layers, those of the first span in front of those of the second, and so
    /// on. What reads as zeros lies nowhere.
    pub fn lookup_through(
        &self,
        spans: &[LayerSpan],
        range: &BlockRange,
        extents: &mut Vec<Extent>,
        checksums: &mut Vec<u32>,
    ) {
        let BlockRange { key, first_block, .. } = *range;
        let (first_extent, first_checksum) = (extents.len(), checksums.len());
        let nothing = Extent { layer: key.layer, first_block, block_count: 1, location: None };
        // One for each block, until all layers were looked at.
        extents.extend(range.blocks().map(|block| Extent { first_block: block, ..nothing }));
        checksums.extend(range.blocks().map(|_| ZERO_BLOCK_CRC32C));
        let wanted = Bits::of(range.blocks());
        self.contents.index.look_through(key.pg, spans, key.object, wanted, |layer, block, entry| {
            let at = usize::from(block - first_block);
            let extent = &mut extents[first_extent + at];
            (extent.layer, extent.location) = (layer, Some(Location(entry.location)));
            checksums[first_checksum + at] = entry.crc32c;
        });
        let mut end = first_extent;
        for at in first_extent..extents.len() {
            let mut extent = extents[at];
            extent.location = extent.on_drive();
            end = self.join(extent, first_extent..end, extents);
        }
        extents.truncate(end);
    }

    fn append(&self, extent: Extent, first: usize, extents: &mut Vec<Extent>) {
        let count = extents.len();
        extents.push(extent);
        let end = self.join(extent, first..count, extents);
        extents.truncate(end);
    }

    /// Puts an extent of one block behind those there, of which the last may take it in. Answers where they end.
    fn join(&self, extent: Extent, before: Range<usize>, extents: &mut [Extent]) -> usize {
        if let Some(last) = extents[before.clone()].last_mut() {
            let continues = match (last.location, extent.location) {
                (None, None) => true,
                (Some(Location::HOLE), Some(Location::HOLE)) => last.layer == extent.layer,
                // Two segments that touch are two extents: they are pinned one by one.
                (Some(Location(start)), Some(Location(location))) => {
                    last.layer == extent.layer
                        && start.checked_add(u32::from(last.block_count)) == Some(location)
                        && self.contents.segments.of(start) == self.contents.segments.of(location)
                }
                _ => false,
            };
            if continues {
                last.block_count += 1;
                return before.end;
            }
        }
        extents[before.end] = extent;
        before.end + 1
    }

    /// Blocks of an object in the layers of a volume that nobody sees of those who see that volume, for newer layers hide them or
    /// nobody begins above them; and holes that hide nothing. Runs of each layer that can be deleted as they are. When they are gone,
    /// holes above them may hide nothing. What is newer than all views is seen by one that is not known here yet.
    #[must_use]
    pub fn unseen(&self, pg: PgId, object: u32, views: &Views) -> Vec<Unseen> {
        let mut unseen: Vec<Unseen> = Vec::new();
        let stack = Stack::of(&self.contents.index, pg, object, views);
        for (at, (layer, held)) in stack.layers.iter().enumerate() {
            let (seen, beneath) = (&stack.seen[at], stack.there_beneath(at));
            if !held.has_holes() && held.bits().is_within(seen) {
                continue;
            }
            let mut run: Option<Unseen> = None;
            for (block, entry) in held.bits().blocks().zip(held.entries()) {
                let is_hidden = !seen.has(block);
                let is_idle = entry.is_hole() && !beneath.has(block);
                if !is_hidden && !is_idle {
                    unseen.extend(run.take());
                    continue;
                }
                if run.is_some_and(|run| run.is_hidden != is_hidden) {
                    unseen.extend(run.take());
                }
                let key = ObjectKey { pg, layer: *layer, object };
                let range = BlockRange { key, first_block: block, block_count: 0 };
                let run = run.get_or_insert(Unseen { range, is_hidden });
                run.range.block_count = block + 1 - run.range.first_block;
            }
            unseen.extend(run);
        }
        unseen
    }

    /// Which blocks of an object somebody sees of those who see a volume in what lies beneath its first layer, and are not zeros
    /// there: runs, in order.
    #[must_use]
    pub fn seen_beneath(&self, pg: PgId, object: u32, views: &Views) -> Vec<Range<u16>> {
        let mut runs: Vec<Range<u16>> = Vec::new();
        let there = self.allocated_through(&views.beneath, pg, object);
        if there.iter().all(|byte| *byte == 0) {
            return runs;
        }
        let seen = Stack::of(&self.contents.index, pg, object, views).seen_beneath_all;
        for block in 0..base::OBJECT_BLOCKS as u16 {
            if there[usize::from(block) / 8] >> (block % 8) & 1 == 0 || !seen.has(block) {
                continue;
            }
            match runs.last_mut().filter(|run| run.end == block) {
                Some(run) => run.end += 1,
                None => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// What a volume holds of an object, and how much of it one of those who see it sees alone.
    #[must_use]
    pub fn space(&self, pg: PgId, object: u32, views: &Views) -> ObjectSpace {
        Stack::of(&self.contents.index, pg, object, views).space(views)
    }

    /// Whether all that a layer holds of these blocks are holes.
    #[must_use]
    pub fn are_holes(&self, range: &BlockRange) -> bool {
        let object = self.contents.index.get(&range.key);
        object.is_none_or(|object| {
            range.blocks().filter_map(|block| object.get(block)).all(|entry| entry.is_hole())
        })
    }

    /// Whether one of these layers holds something of these blocks of an object, whichever layer they are named by.
    #[must_use]
    pub fn holds_some(&self, spans: impl IntoIterator<Item = LayerSpan>, range: &BlockRange) -> bool {
        let ObjectKey { pg, object, .. } = range.key;
        let mut layers = spans.into_iter().flat_map(|span| self.contents.index.layers(pg, span, object));
        layers.any(|(_, held)| range.blocks().any(|block| held.get(block).is_some()))
    }

    /// Brings what is kept of blocks into the processor's cache, before they are looked up one after the other.
    pub fn bring(&self, blocks: impl Iterator<Item = (ObjectKey, u16)>) {
        self.contents.index.bring(blocks);
    }

    /// Keeps what lies at a location from being overwritten while it is read.
    ///
    /// # Panics
    /// If it is the place of a hole.
    pub fn pin(&mut self, location: Location) {
        self.contents.segments.at(location.0).pins += 1;
    }

    /// Ends a [`Self::pin`].
    pub fn unpin(&mut self, location: Location) {
        let segment = self.contents.segments.at(location.0);
        assert!(segment.pins > 0, "what is unpinned was pinned");
        segment.pins -= 1;
        if segment.pins == 0 {
            let index = self.contents.segments.of(location.0).expect("it was just found");
            self.contents.segments.try_free(index);
        }
    }

    /// Which blocks of an object are allocated: a bit for each, the lowest first.
    #[must_use]
    pub fn allocated_bits(&self, key: &ObjectKey) -> [u8; base::OBJECT_BLOCKS / 8] {
        self.contents.index.get(key).map_or(Bits::default(), |object| *object.bits()).to_bytes()
    }

    /// Which blocks of an object are allocated for whom sees all of these layers: a bit for each, the lowest first.
    #[must_use]
    pub fn allocated_through(
        &self,
        spans: &[LayerSpan],
        pg: PgId,
        object: u32,
    ) -> [u8; base::OBJECT_BLOCKS / 8] {
        let mut bits = Bits::default();
        self.contents.index.look_through(pg, spans, object, Bits::ALL, |_, block, entry| {
            if !entry.is_hole() {
                bits.set(block);
            }
        });
        bits.to_bytes()
    }

    /// Of which blocks of an object one of these layers holds something, be it a hole: a bit for each, the lowest first.
    #[must_use]
    pub fn held_by(&self, spans: &[LayerSpan], pg: PgId, object: u32) -> [u8; base::OBJECT_BLOCKS / 8] {
        let mut bits = Bits::default();
        let layers = spans.iter().flat_map(|span| self.contents.index.layers(pg, *span, object));
        layers.for_each(|(_, object)| bits.add(object.bits()));
        bits.to_bytes()
    }

    /// Calls `visit` with each block of an object that is there, in order, its checksum, and the sequence of its last
    /// change, which may be told later than it is.
    pub fn for_each_block(&self, key: &ObjectKey, mut visit: impl FnMut(u16, u32, Sequence)) {
        let Some(object) = self.contents.index.get(key) else { return };
        for block in 0..base::OBJECT_BLOCKS as u16 {
            if let (Some(entry), Some(changed)) = (object.get(block), object.changed(block)) {
                visit(block, entry.crc32c, changed);
            }
        }
    }

    /// The sequence of the last change of a block that is there; it may be told later than it is.
    #[must_use]
    pub fn changed(&self, key: &ObjectKey, block: u16) -> Option<Sequence> {
        self.contents.index.get(key)?.changed(block)
    }

    /// How current what this member has of a block is.
    #[must_use]
    pub fn currency(&self, key: &ObjectKey, block: u16) -> Currency {
        self.contents.logs.currency(key, block, self.exactly_changed(key, block))
    }

    /// Whether a copy of a block that another member has is of the same write as this one's, should its checksum be the same:
    /// checksums alone do not tell. This member has all of its group's order.
    #[must_use]
    pub fn is_current(&self, key: &ObjectKey, block: u16, theirs: Currency) -> bool {
        self.changed(key, block).is_some_and(|changed| {
            self.contents.logs.is_current(key, block, changed, self.exactly_changed(key, block), theirs)
        })
    }

    fn exactly_changed(&self, key: &ObjectKey, block: u16) -> Option<Sequence> {
        self.contents.index.get(key)?.exactly_changed(block)
    }

    /// The last change of any block of an object, which may be told later than it is.
    #[must_use]
    pub fn last_changed(&self, key: &ObjectKey) -> Sequence {
        self.contents.index.get(key).map_or(Sequence(0), ObjectIndex::last_changed)
    }

    /// A number that nobody else can tell, the same for the same `nonce`: from the drive's secret, which it does not tell.
    #[must_use]
    pub fn unguessable(&self, nonce: u64) -> u64 {
        // By another name than the fingerprints' keys, which are hashes of numbers alone.
        base::keyed_hash(self.log.fingerprints().secret(), [&b"unguessable"[..], &nonce.to_le_bytes()[..]])
    }

    /// How many blocks of an object are there.
    #[must_use]
    pub fn block_count(&self, key: &ObjectKey) -> u16 {
        self.contents.index.get(key).map_or(0, ObjectIndex::block_count)
    }

    /// Every object with at least one block.
    pub fn objects(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.contents.index.iter().map(|(key, _)| key)
    }

    /// Those of them that are a group's, in no order. Of other groups none is looked at.
    pub fn objects_of(&self, pg: PgId) -> impl Iterator<Item = ObjectKey> + '_ {
        self.contents.index.of_group(pg).map(|(key, _)| key)
    }

    /// How many objects of a group are there.
    #[must_use]
    pub fn object_count(&self, pg: PgId) -> u64 {
        self.contents.index.object_count(pg)
    }

    /// Whether any object of a pool is there.
    #[must_use]
    pub fn has_objects_of(&self, pool: PoolId) -> bool {
        self.contents.index.groups().any(|pg| pg.pool == pool)
    }

    /// The groups of which something is known: what they hold, or held, and where this member stands in their order.
    pub fn groups(&self) -> impl Iterator<Item = PgId> + '_ {
        self.contents.logs.groups.keys().copied()
    }

    /// The newest durable entry of a group's order.
    #[must_use]
    pub fn pg_position(&self, pg: PgId) -> Option<(Epoch, Sequence)> {
        self.contents.logs.position(pg)
    }

    /// The newest durable entries of a group's order, oldest first.
    pub fn pg_log(&self, pg: PgId) -> impl ExactSizeIterator<Item = LogEntry> + DoubleEndedIterator + '_ {
        const NONE: &VecDeque<LogEntry> = &VecDeque::new();
        self.contents.logs.groups.get(&pg).map_or(NONE, |log| &log.entries).iter().copied()
    }

    /// From where on [`Self::pg_log`] lacks nothing; 0 if it goes back to the group's first entry.
    #[must_use]
    pub fn pg_log_begins(&self, pg: PgId) -> Sequence {
        self.contents.logs.groups.get(&pg).map_or(Sequence(0), |log| log.begins)
    }

    /// The group's modulus: it has the objects whose place, divided by that, leaves its number ([`PgId::holds`]). `None`
    /// if it holds nothing of the group.
    #[must_use]
    pub fn pg_modulus(&self, pg: PgId) -> Option<u32> {
        self.contents.logs.groups.get(&pg).map(|log| log.modulus).filter(|modulus| *modulus > 0)
    }

    /// Whether this member was catching up when the group's log began, and may lack what came before.
    #[must_use]
    pub fn pg_is_incomplete(&self, pg: PgId) -> bool {
        self.contents.logs.groups.get(&pg).is_some_and(|log| log.is_incomplete)
    }

    /// Up to which sequence of its group's order this member surely has an object as that order has it, but for blocks that are
    /// [in doubt](Self::doubts). Beyond that it may lack something, or have what came to nothing.
    #[must_use]
    pub fn object_held_through(&self, key: &ObjectKey) -> Sequence {
        self.contents.logs.object_held_through(key)
    }

    /// The furthest that this is for any object of a group.
    #[must_use]
    pub fn pg_held_through(&self, pg: PgId) -> Sequence {
        self.contents.logs.pg_held_through(pg)
    }

    /// Of a member that catches up: blocks of an object, as entries of its log, that it may have beyond what its group's
    /// order has.
    pub fn doubts(&self, key: &ObjectKey) -> impl Iterator<Item = &LogEntry> {
        let (log, key) = (self.contents.logs.groups.get(&key.pg), *key);
        let doubts = log.into_iter().flat_map(|log| &log.doubts);
        doubts.filter(move |entry| (entry.layer, entry.object) == (key.layer, key.object))
    }

    /// How many writes of a group may be under way at the same time: see [`Options`](crate::Options).
    #[must_use]
    pub fn in_flight_max(&self) -> u64 {
        self.contents.logs.in_flight_max()
    }

    /// Whether clients' writes are refused for want of space: the largest of them would be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.failure().is_none() && Space::of(&self.contents, &self.log).is_full()
    }

    /// Whether clients' writes are refused because nothing that cleaning would make room by could be read for long.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.failure().is_none() && self.cleaner.is_blocked(&self.log)
    }

    /// Whether something waits for room that cleaning or a checkpoint is to make.
    #[must_use]
    pub fn is_in_want_of_room(&self) -> bool {
        self.log.is_starving
    }

    /// Whether clients' writes to objects that are not there are refused, for as many are there as a checkpoint has room for.
    #[must_use]
    pub fn takes_no_objects(&self) -> bool {
        self.failure().is_none() && !Space::of(&self.contents, &self.log).has_room_for_object(Role::Primary)
    }

    /// Figures.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let (index, segments) = (&self.contents.index, &self.contents.segments);
        let usable_blocks = Space::of(&self.contents, &self.log).blocks_max(Role::Primary);
        Statistics {
            device_bytes: self.checkpoint.superblock().device_bytes.get(),
            usable_bytes: usable_blocks * BLOCK_BYTES as u64,
            live_bytes: index.block_count * BLOCK_BYTES as u64,
            free_segments: segments.free_count(),
            segments: segments.count(),
            index_bytes: index.memory_bytes(),
            objects: index.len() as u64,
            batches: self.log.batches(),
            client_blocks: self.log.client_blocks,
            cleaned_blocks: self.cleaner.moved_blocks,
            // Each batch has one.
            header_blocks: self.log.batches(),
            checkpoint_blocks: self.checkpoint.blocks,
            replayed_batches: self.replayed_batches,
            unreadable_blocks: self.unreadable_blocks,
            damaged_blocks: self.cleaner.damaged_blocks,
        }
    }

    /// Whether the superblocks are left alone just now, so that what is read of them is whole.
    #[must_use]
    pub fn superblocks_are_at_rest(&self) -> bool {
        self.checkpoint.superblocks_are_at_rest()
    }

    /// Whether a block read from the place of a superblock is one of this store's, an older one too.
    #[must_use]
    pub fn is_own_superblock(&self, block: &[u8]) -> bool {
        Superblock::read_from_prefix(block)
            .is_ok_and(|(found, _)| found.is_intact() && superblock::identity(&found) == self.identity)
    }
}
