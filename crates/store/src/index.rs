//! Which block of which object lies where, what its checksum is, and when it last changed.
//!
//! # When a block last changed
//! A sequence takes 8 bytes, and a block may have 12 in all. So each keeps a *tick* of 16 bits, which counts steps of the
//! object's own size from the object's own `base`: a bound of the sequence that is exact while the object's blocks lie
//! within 65,535 sequences of each other, and is rounded *up* by at most a 65,535th of their span when they do not. Whoever
//! asks what changed since a sequence so gets everything that did, and perhaps a little that did not.
//!
//! An object with blocks of two [histories](base::History) of its group, which are very far apart, keeps those of the earlier
//! one as if they had changed at the floor of the later one: nobody asks for more, and steps stay as small as they were.

mod layers;

use crate::actions::Location;
use crate::bits::Bits;
use crate::cache::bring;
use crate::layout::{PageHeader, Piece};
use base::hash::Map;
use base::{LayerId, LayerSpan, OBJECT_BLOCKS, ObjectKey, PgId, Sequence, VolumeId, ZERO_BLOCK_CRC32C};
use layers::Layers;
use std::collections::hash_map;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where a block lies, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) location: u32,
    pub(crate) crc32c: u32,
}

impl Entry {
    /// A block that reads as zeros and lies nowhere: it hides what lies beneath its layer.
    pub(crate) const HOLE: Entry = Entry { location: Location::HOLE.0, crc32c: ZERO_BLOCK_CRC32C };

    pub(crate) fn is_hole(&self) -> bool {
        self.location == Location::HOLE.0
    }
}

/// What the index keeps of a block, in memory and in a page: 10 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Slot {
    location: U32,
    crc32c: U32,
    tick: U16,
}
const _: () = assert!(size_of::<Slot>() == 10);

impl Slot {
    fn entry(&self) -> Entry {
        Entry { location: self.location.get(), crc32c: self.crc32c.get() }
    }
}

/// The blocks of one object: a bit for each that is there, and what is kept of them, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectIndex {
    bits: Bits,
    slots: Vec<Slot>,
    /// How many of them are holes.
    holes: u16,
    /// What ticks are counted from.
    base: u64,
    /// Steps of ticks are this power of two.
    shift: u8,
    /// Changed since its page was written.
    pub(crate) is_dirty: bool,
    /// Where it was last checkpointed.
    pub(crate) page: Option<Piece>,
}

impl ObjectIndex {
    /// Where a block's slot stands, or would stand.
    fn rank(&self, block: u16) -> usize {
        if self.is_dense() {
            return usize::from(block);
        }
        self.bits.rank(block)
    }

    fn has(&self, block: u16) -> bool {
        self.is_dense() || self.bits.has(block)
    }

    /// Whether all its blocks are there: then nobody need look at the bits.
    fn is_dense(&self) -> bool {
        self.slots.len() == OBJECT_BLOCKS
    }

    fn slot(&self, block: u16) -> Option<&Slot> {
        self.has(block).then(|| &self.slots[self.rank(block)])
    }

    pub(crate) fn get(&self, block: u16) -> Option<Entry> {
        self.slot(block).map(Slot::entry)
    }

    /// The blocks that are there.
    pub(crate) fn bits(&self) -> &Bits {
        &self.bits
    }

    /// Whether some of them are holes.
    pub(crate) fn has_holes(&self) -> bool {
        self.holes > 0
    }

    /// When a block that is there last changed, or later.
    pub(crate) fn changed(&self, block: u16) -> Option<Sequence> {
        self.slot(block).map(|slot| self.sequence_of(slot.tick.get()))
    }

    /// When a block that is there last changed, if that is known exactly: nothing changes at the floor of a history.
    pub(crate) fn exactly_changed(&self, block: u16) -> Option<Sequence> {
        self.changed(block).filter(|changed| self.shift == 0 && *changed != changed.history().floor())
    }

    /// The newest of them.
    pub(crate) fn last_changed(&self) -> Sequence {
        let newest = self.slots.iter().map(|slot| slot.tick.get()).max();
        newest.map_or(Sequence(0), |tick| self.sequence_of(tick))
    }

    fn sequence_of(&self, tick: u16) -> Sequence {
        // A page, or whoever pushes a block, may say what is beyond the last sequence there is.
        let steps = u64::try_from(u128::from(tick) << self.shift).unwrap_or(u64::MAX);
        Sequence(self.base.saturating_add(steps))
    }

    /// The tick of a sequence, once ticks are such that there is one.
    fn tick_of(&mut self, mut changed: Sequence) -> U16 {
        if self.slots.is_empty() {
            (self.base, self.shift) = (changed.0, 0);
        }
        changed = changed.max(Sequence(self.base).history().floor());
        let floor = changed.history().floor().0;
        if self.base < floor {
            self.count_from(floor, 0);
        } else if changed.0 < self.base {
            // As far again below: a run of ever older blocks does not have all ticks counted anew for each.
            let span = self.last_changed().0.saturating_sub(changed.0);
            self.count_from(changed.0.saturating_sub(span).max(floor), self.shift);
        }
        if let Some(tick) = tick(changed.0 - self.base, self.shift) {
            return tick;
        }
        // Perhaps nothing is as old any more as what ticks are counted from.
        let oldest = self.slots.iter().map(|slot| slot.tick.get()).min().unwrap_or_default();
        let base = self.sequence_of(oldest).0.min(changed.0);
        self.count_from(base, shift_for(changed.0 - base, self.shift));
        tick(changed.0 - self.base, self.shift).expect("steps are as large as it takes")
    }

    /// Counts ticks from another base, in steps that are no smaller: larger ones if they do not suffice.
    fn count_from(&mut self, base: u64, shift: u8) {
        let shift = shift_for(self.last_changed().0.saturating_sub(base), shift);
        for at in 0..self.slots.len() {
            let changed = self.sequence_of(self.slots[at].tick.get()).0;
            let tick = tick(changed.saturating_sub(base), shift);
            self.slots[at].tick = tick.expect("none changed after the newest, which has a tick");
        }
        (self.base, self.shift) = (base, shift);
    }

    /// Puts a block that changed then, and answers the one it replaces.
    pub(crate) fn set(&mut self, block: u16, entry: Entry, changed: Sequence) -> Option<Entry> {
        self.is_dirty = true;
        let tick = self.tick_of(changed);
        let rank = self.rank(block);
        if self.has(block) {
            return Some(self.replace(rank, entry, tick));
        }
        self.holes += u16::from(entry.is_hole());
        let slot = Slot { location: entry.location.into(), crc32c: entry.crc32c.into(), tick };
        if self.slots.len() == self.slots.capacity() {
            // Small steps: memory per block stays near the 10 bytes of a slot.
            let step = (self.slots.len() / 8).max(4).min(OBJECT_BLOCKS - self.slots.len());
            self.slots.reserve_exact(step);
        }
        self.slots.insert(rank, slot);
        self.bits.set(block);
        None
    }

    /// Puts a copy of a block in place of the one that is there, which is what it was: it changed when that did. One that is not
    /// there changed then.
    pub(crate) fn mend(&mut self, block: u16, entry: Entry, otherwise: Sequence) -> Option<Entry> {
        if !self.has(block) {
            return self.set(block, entry, otherwise);
        }
        self.is_dirty = true;
        let rank = self.rank(block);
        Some(self.replace(rank, entry, self.slots[rank].tick))
    }

    fn replace(&mut self, rank: usize, entry: Entry, tick: U16) -> Entry {
        let slot = Slot { location: entry.location.into(), crc32c: entry.crc32c.into(), tick };
        let old = std::mem::replace(&mut self.slots[rank], slot).entry();
        self.holes += u16::from(entry.is_hole());
        self.holes -= u16::from(old.is_hole());
        old
    }

    /// A block lies elsewhere now, and is what it was: `false` if it is not what and where it was taken to be.
    pub(crate) fn move_to(&mut self, block: u16, from: Entry, location: u32) -> bool {
        if !self.has(block) {
            return false;
        }
        let rank = self.rank(block);
        let slot = &mut self.slots[rank];
        let is_it = slot.entry() == from;
        if is_it {
            slot.location = location.into();
            self.is_dirty = true;
        }
        is_it
    }

    /// Removes a block and answers its entry.
    fn remove(&mut self, block: u16) -> Option<Entry> {
        if !self.has(block) {
            return None;
        }
        self.is_dirty = true;
        let rank = self.rank(block);
        self.bits.clear(block);
        let old = self.slots.remove(rank).entry();
        self.holes -= u16::from(old.is_hole());
        Some(old)
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + '_ {
        self.slots.iter().map(Slot::entry)
    }

    pub(crate) fn block_count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// How many of its blocks lie on the drive.
    fn blocks_on_drive(&self) -> u64 {
        self.slots.len() as u64 - u64::from(self.holes)
    }

    /// Its page: a header, then a slot for each block.
    pub(crate) fn to_page(&self, bytes: &mut Vec<u8>) {
        let header = PageHeader {
            bits: self.bits.0.map(Into::into),
            base: self.base.into(),
            shift: self.shift,
            ..PageHeader::default()
        };
        bytes.clear();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(self.slots.as_bytes());
    }

    /// The object of a page, or `None` if its size does not fit its bits, or it says what cannot be.
    pub(crate) fn from_page(bytes: &[u8]) -> Option<ObjectIndex> {
        let (header, slots) = PageHeader::ref_from_prefix(bytes).ok()?;
        let slots = <[Slot]>::ref_from_bytes(slots).ok()?;
        let bits = Bits(header.bits.map(|word| word.get()));
        // An object without blocks has no page.
        if slots.is_empty()
            || bits.count() as usize != slots.len()
            || header.shift >= 64
            || header.reserved != [0; 7]
        {
            return None;
        }
        let slots = slots.to_vec();
        let holes = slots.iter().filter(|slot| slot.entry().is_hole());
        if holes.clone().any(|slot| slot.entry() != Entry::HOLE) {
            return None;
        }
        Some(ObjectIndex {
            bits,
            holes: holes.count() as u16,
            slots,
            base: header.base.get(),
            shift: header.shift,
            ..ObjectIndex::default()
        })
    }

    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        size_of::<ObjectIndex>() + self.slots.capacity() * size_of::<Slot>()
    }
}

/// How many steps are so many sequences, if a tick counts as far.
fn tick(sequences: u64, shift: u8) -> Option<U16> {
    u16::try_from(sequences.div_ceil(1 << shift)).ok().map(U16::new)
}

/// The smallest steps from `shift` on by which a tick counts so many sequences. They are not tried out on all slots: whoever
/// pushes a block with a sequence that is far off costs one walk over them.
fn shift_for(sequences: u64, shift: u8) -> u8 {
    (shift..).find(|shift| tick(sequences, *shift).is_some()).expect("2^49 times 2^16 is more than there are")
}

/// The objects of one group.
#[derive(Debug, Default)]
struct Group {
    /// By what they are objects of: what all layers of a volume hold of one is found at once.
    objects: Map<(VolumeId, u32), Layers>,
    /// How many there are, those of each layer by themselves.
    count: usize,
}

fn place_of(key: &ObjectKey) -> (VolumeId, u32) {
    (key.layer.volume(), key.object)
}

impl Group {
    fn get(&self, key: &ObjectKey) -> Option<&ObjectIndex> {
        self.objects.get(&place_of(key))?.get(key.layer.number())
    }

    fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut ObjectIndex> {
        self.objects.get_mut(&place_of(key))?.get_mut(key.layer.number())
    }

    /// Where an object is kept, which may be a new one.
    fn layers_with(&mut self, key: &ObjectKey, layers_bytes: &mut u64) -> &mut Layers {
        let number = key.layer.number();
        let layers = self.objects.entry(place_of(key)).or_insert_with(|| {
            self.count += 1;
            Layers::One((number, Box::default()))
        });
        if layers.get(number).is_none() {
            *layers_bytes -= layers.memory_bytes();
            layers.add(number, Box::default());
            *layers_bytes += layers.memory_bytes();
            self.count += 1;
        }
        layers
    }

    /// Takes out an object.
    fn take(&mut self, key: &ObjectKey, layers_bytes: &mut u64) -> Option<Box<ObjectIndex>> {
        let hash_map::Entry::Occupied(mut place) = self.objects.entry(place_of(key)) else { return None };
        let number = key.layer.number();
        let object = match place.get_mut() {
            Layers::One((one, object)) => {
                let object = (*one == number).then(|| std::mem::take(object))?;
                place.remove();
                object
            }
            layers @ Layers::Several(_) => {
                *layers_bytes -= layers.memory_bytes();
                let object = layers.remove(number);
                *layers_bytes += layers.memory_bytes();
                object?
            }
        };
        self.count -= 1;
        Some(object)
    }
}

/// All objects, by group: whoever asks for those of one walks no others, and what grows is a group's table at a time.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Groups without any are absent.
    groups: Map<PgId, Group>,
    object_count: usize,
    /// Blocks that lie on the drive.
    pub(crate) block_count: u64,
    slot_capacity: u64,
    /// Memory of what keeps several layers of an object.
    layers_bytes: u64,
}

impl Index {
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&ObjectIndex> {
        self.groups.get(&key.pg)?.get(key)
    }

    /// An object of which no block may come or go.
    pub(crate) fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut ObjectIndex> {
        self.groups.get_mut(&key.pg)?.get_mut(key)
    }

    /// Brings what is kept of blocks into the processor's cache: see [`bring`]. Of one that its layer does not hold, what an older
    /// one does.
    pub(crate) fn bring(&self, blocks: impl Iterator<Item = (ObjectKey, u16)>) {
        let slot = |(key, block): (ObjectKey, u16)| {
            let layers = self.groups.get(&key.pg)?.objects.get(&place_of(&key))?;
            layers.newest_with(key.layer.number(), block)?.slot(block)
        };
        bring(blocks.filter_map(slot));
    }

    /// Changes an object, which may be a new one. It has a block then.
    pub(crate) fn change(&mut self, key: ObjectKey, change: impl FnOnce(&mut ObjectIndex)) {
        let group = self.groups.entry(key.pg).or_default();
        let before = group.count;
        let layers = group.layers_with(&key, &mut self.layers_bytes);
        layers.change(key.layer.number(), |object| {
            let (capacity, count) = (object.slots.capacity(), object.blocks_on_drive());
            change(object);
            self.slot_capacity += (object.slots.capacity() - capacity) as u64;
            self.block_count = self.block_count + object.blocks_on_drive() - count;
        });
        self.object_count += group.count - before;
    }

    /// Removes blocks, and the object with its last one. Answers the page it had then.
    pub(crate) fn remove(
        &mut self,
        key: &ObjectKey,
        first_block: u16,
        block_count: u16,
        mut removed: impl FnMut(Entry),
    ) -> Option<Piece> {
        let group = self.groups.get_mut(&key.pg)?;
        let layers = group.objects.get_mut(&place_of(key))?;
        let is_empty = layers.change(key.layer.number(), |object| {
            for block in first_block..first_block + block_count {
                if let Some(entry) = object.remove(block) {
                    self.block_count -= u64::from(!entry.is_hole());
                    removed(entry);
                }
            }
            object.slots.is_empty()
        })?;
        if !is_empty {
            return None;
        }
        let object = group.take(key, &mut self.layers_bytes)?;
        if group.objects.is_empty() {
            self.groups.remove(&key.pg);
        }
        self.object_count -= 1;
        self.slot_capacity -= object.slots.capacity() as u64;
        object.page
    }

    /// Gives the objects of a group that are its child's by `modulus` to that one; one of neither stays where it is. One walk
    /// over the group's objects: some milliseconds for each million.
    pub(crate) fn split(&mut self, pg: PgId, modulus: u32) {
        let child = pg.child(modulus / 2);
        let Some(group) = self.groups.get_mut(&pg) else { return };
        let is_given = |place: &(VolumeId, u32), _: &mut Layers| child.holds(modulus, place.0, place.1);
        let given: Vec<_> = group.objects.extract_if(is_given).collect();
        group.objects.shrink_to_fit();
        let count: usize = given.iter().map(|(_, layers)| layers.all().len()).sum();
        group.count -= count;
        if group.objects.is_empty() {
            self.groups.remove(&pg);
        }
        if given.is_empty() {
            return;
        }
        let group = self.groups.entry(child).or_default();
        group.count += count;
        for (place, layers) in given {
            let before = group.objects.insert(place, layers);
            assert!(before.is_none(), "a group that is split off from {pg} holds nothing before");
        }
    }

    /// Takes in an object read from a checkpoint. `false` if it is there already.
    pub(crate) fn insert(&mut self, key: ObjectKey, object: ObjectIndex) -> bool {
        let is_new = self.get(&key).is_none();
        if is_new {
            self.change(key, |place| *place = object);
        }
        is_new
    }

    /// All objects, those of a group one after the other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ObjectKey, &ObjectIndex)> {
        self.groups.keys().flat_map(move |pg| self.of_group(*pg))
    }

    /// Calls `found` with each of some blocks of an object that one of the layers of these spans holds, and what the first of those
    /// holds that does: in each span they come from the newest on. Those of a layer come in order.
    pub(crate) fn look_through(
        &self,
        pg: PgId,
        spans: &[LayerSpan],
        object: u32,
        mut wanted: Bits,
        mut found: impl FnMut(LayerId, u16, Entry),
    ) {
        let Some(group) = self.groups.get(&pg) else { return };
        for span in spans {
            let Some(layers) = group.objects.get(&(span.volume, object)) else { continue };
            layers.look_through(span.oldest, span.newest, &mut wanted, |number, object, block| {
                let entry = object.get(block).expect("it is told of it");
                found(span.volume.layer(number), block, entry);
            });
            if wanted.is_empty() {
                return;
            }
        }
    }

    /// The layers of a span that hold something of an object of a group, the newest first, and what they hold.
    pub(crate) fn layers(
        &self,
        pg: PgId,
        span: LayerSpan,
        object: u32,
    ) -> impl Iterator<Item = (LayerId, &ObjectIndex)> {
        let layers = self.groups.get(&pg).and_then(|group| group.objects.get(&(span.volume, object)));
        let layers = layers.map_or(&[][..], Layers::all).iter().rev();
        layers
            .map(move |(number, object)| (span.volume.layer(*number), &**object))
            .filter(move |(layer, _)| span.has(*layer))
    }

    /// The objects of a group, in no order.
    pub(crate) fn of_group(&self, pg: PgId) -> impl Iterator<Item = (ObjectKey, &ObjectIndex)> {
        let objects = self.groups.get(&pg).into_iter().flat_map(|group| &group.objects);
        objects.flat_map(move |((volume, object), layers)| {
            let key = move |number| ObjectKey { pg, layer: volume.layer(number), object: *object };
            layers.all().iter().map(move |(number, index)| (key(*number), &**index))
        })
    }

    pub(crate) fn objects_mut(&mut self) -> impl Iterator<Item = &mut ObjectIndex> {
        let layers = self.groups.values_mut().flat_map(|group| group.objects.values_mut());
        layers.flat_map(|layers| layers.all_mut()).map(|(_, object)| &mut **object)
    }

    pub(crate) fn len(&self) -> usize {
        self.object_count
    }

    /// The groups that have objects.
    pub(crate) fn groups(&self) -> impl Iterator<Item = PgId> + '_ {
        self.groups.keys().copied()
    }

    pub(crate) fn object_count(&self, pg: PgId) -> u64 {
        self.groups.get(&pg).map_or(0, |group| group.count as u64)
    }

    /// Memory it takes, maps included, without walking the objects.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let slot = size_of::<(VolumeId, u32)>() + size_of::<Layers>() + 1;
        let capacity: usize = self.groups.values().map(|group| group.objects.capacity()).sum();
        let maps = capacity * slot * 8 / 7;
        let objects = self.object_count * size_of::<ObjectIndex>();
        let slots = self.slot_capacity * size_of::<Slot>() as u64;
        self.layers_bytes + maps as u64 + objects as u64 + slots
    }

    /// Whether what is counted and told of the objects is what they hold.
    pub(crate) fn is_told_truly(&self) -> bool {
        let layers = || self.groups.values().flat_map(|group| group.objects.values());
        let held = layers().map(|layers| layers.all().len());
        let bytes = layers().map(Layers::memory_bytes);
        held.sum::<usize>() == self.object_count
            && bytes.sum::<u64>() == self.layers_bytes
            && layers().all(Layers::is_told_truly)
    }
}

/// Of one block at a time.
#[cfg(test)]
impl Index {
    pub(crate) fn entry(&self, key: &ObjectKey, block: u16) -> Option<Entry> {
        self.get(key)?.get(block)
    }

    pub(crate) fn set(&mut self, key: ObjectKey, block: u16, entry: Entry, at: Sequence) -> Option<Entry> {
        let mut old = None;
        self.change(key, |object| old = object.set(block, entry, at));
        old
    }

    fn mend(&mut self, key: ObjectKey, block: u16, entry: Entry, at: Sequence) -> Option<Entry> {
        let mut old = None;
        self.change(key, |object| old = object.mend(block, entry, at));
        old
    }

    fn move_to(&mut self, key: &ObjectKey, block: u16, from: Entry, location: u32) -> bool {
        self.get_mut(key).is_some_and(|object| object.move_to(block, from, location))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::History;

    fn entry(number: u32) -> Entry {
        Entry { location: number, crc32c: !number }
    }

    #[test]
    fn blocks_come_and_go_in_any_order() {
        let mut index = Index::default();
        let key = ObjectKey::default();
        // 389 is prime to 1024: every block once, in a scattered order.
        for step in 0..1024u32 {
            let block = (step * 389 % 1024) as u16;
            assert_eq!(index.set(key, block, entry(step), Sequence(1)), None);
            assert_eq!(index.set(key, block, entry(step + 5000), Sequence(2)), Some(entry(step)));
        }
        for step in 0..1024u32 {
            assert_eq!(index.entry(&key, (step * 389 % 1024) as u16), Some(entry(step + 5000)));
        }
        let mut page = Vec::new();
        index.get(&key).unwrap().to_page(&mut page);
        let copy = ObjectIndex::from_page(&page).unwrap();
        assert_eq!(copy.slots, index.get(&key).unwrap().slots);
        let mut removed = 0;
        assert!(index.remove(&key, 0, 1023, |_| removed += 1).is_none());
        assert_eq!((removed, index.block_count, index.len()), (1023, 1, 1));
        index.remove(&key, 1023, 1, |_| removed += 1);
        assert_eq!((removed, index.block_count, index.len()), (1024, 0, 0));
        assert_eq!(index.memory_bytes(), 0);
        assert_eq!((index.object_count(key.pg), index.remove(&key, 0, 1, |_| {}).is_none()), (0, true));
    }

    #[test]
    fn whatever_changes_of_an_object_is_in_its_next_page() {
        let (mut index, key) = (Index::default(), ObjectKey::default());
        // Whether that made the object one that was changed.
        let changes = |index: &mut Index, change: &dyn Fn(&mut Index)| {
            if let Some(object) = index.get_mut(&key) {
                object.is_dirty = false;
            }
            change(index);
            index.get(&key).unwrap().is_dirty
        };
        assert!(changes(&mut index, &|index| assert_eq!(index.set(key, 1, entry(1), Sequence(1)), None)));
        assert!(changes(&mut index, &|index| assert_eq!(index.set(key, 2, entry(2), Sequence(2)), None)));
        assert!(changes(&mut index, &|index| assert!(index.mend(key, 2, entry(3), Sequence(3)).is_some())));
        // What is not there any more where it was, or is another by now, stays what it is.
        for (block, from) in [(2, entry(2)), (3, entry(3)), (2, Entry { crc32c: 7, ..entry(3) })] {
            assert!(!changes(&mut index, &|index| assert!(!index.move_to(&key, block, from, 9))));
        }
        assert!(changes(&mut index, &|index| assert!(index.move_to(&key, 2, entry(3), 9))));
        assert_eq!(index.entry(&key, 2), Some(Entry { location: 9, ..entry(3) }));
        assert!(!changes(&mut index, &|index| {
            assert!(index.remove(&key, 3, 9, |_| panic!("there is none")).is_none());
        }));
        assert!(changes(&mut index, &|index| assert!(index.remove(&key, 2, 9, |_| {}).is_none())));
        assert_eq!((index.block_count, index.len()), (1, 1));
        // With its last block its page is given back.
        index.get_mut(&key).unwrap().page = Some(Piece { location: 5.into(), ..Piece::default() });
        let page = index.remove(&key, 0, 2, |old| assert_eq!(old, entry(1)));
        assert_eq!(page.map(|page| page.location.get()), Some(5));
    }

    #[test]
    fn the_objects_of_each_group_are_counted_as_they_come_go_and_are_given_away() {
        let mut index = Index::default();
        let pg = PgId { pool: base::PoolId(1), index: 1 };
        let keys = (0..200).map(|object| ObjectKey { pg, object, ..ObjectKey::default() });
        let keys: Vec<ObjectKey> = keys.filter(|key| pg.holds(2, key.layer, key.object)).collect();
        let count = keys.len() as u64;
        for key in &keys {
            index.set(*key, 0, entry(1), Sequence(1));
            index.set(*key, 7, entry(2), Sequence(2));
        }
        index.remove(&keys[0], 0, 1, |_| {});
        assert_eq!(index.object_count(pg), count);
        index.remove(&keys[0], 0, 8, |_| {});
        assert_eq!(index.object_count(pg), count - 1);
        index.split(pg, 4);
        let child = PgId { index: 3, ..pg };
        let held = |index: &Index, pg| index.iter().filter(|(key, _)| key.pg == pg).count() as u64;
        for of in [pg, child] {
            assert_eq!(index.of_group(of).count() as u64, held(&index, of));
            assert!(index.of_group(of).all(|(key, _)| of.holds(4, key.layer, key.object)));
        }
        assert_eq!(index.object_count(pg), held(&index, pg));
        assert_eq!(index.object_count(child), held(&index, child));
        assert_eq!(index.object_count(pg) + index.object_count(child), count - 1);
        assert!(index.object_count(pg) > 0 && index.object_count(child) > 0);
        let mut copy = Index::default();
        let all: Vec<(ObjectKey, ObjectIndex)> = index.iter().map(|(key, it)| (key, it.clone())).collect();
        all.into_iter().for_each(|(key, object)| assert!(copy.insert(key, object)));
        assert_eq!(copy.object_count(child), index.object_count(child));
        assert_eq!((copy.len(), index.len()), (keys.len() - 1, keys.len() - 1));
        assert_eq!((copy.block_count, copy.slot_capacity), (index.block_count, index.block_count));
        let (key, object) = index.iter().next().unwrap();
        assert!(!copy.insert(key, object.clone()), "it is there");
        assert_eq!((copy.len(), copy.block_count), (index.len(), index.block_count));
        // The last of a group goes, and the group with it.
        keys.iter().for_each(|key| {
            index.remove(key, 0, 8, |_| {});
        });
        assert_eq!(index.groups().collect::<Vec<_>>(), [child]);
    }

    #[test]
    fn a_page_of_the_wrong_size_is_refused() {
        let mut object = ObjectIndex::default();
        object.set(7, entry(1), Sequence(1));
        let mut page = Vec::new();
        object.to_page(&mut page);
        assert!(ObjectIndex::from_page(&page).is_some());
        assert!(ObjectIndex::from_page(&page[..page.len() - 10]).is_none());
        assert!(ObjectIndex::from_page(&page[..50]).is_none());
        // Behind the bits and the base, which is what it is for any number.
        let shift_at = size_of::<Bits>() + size_of::<u64>();
        for (at, byte, is_taken) in
            [(0, 63, true), (0, 64, false), (0, 255, false), (1, 1, false), (7, 1, false), (7, 0, true)]
        {
            let mut page = page.clone();
            page[shift_at + at] = byte;
            assert_eq!(ObjectIndex::from_page(&page).is_some(), is_taken, "{byte} at {at}");
        }
        page[0] |= 1;
        assert!(ObjectIndex::from_page(&page).is_none(), "a bit more than there are blocks");
    }

    /// Blocks whose change is told by a generator, against sequences kept whole: never older, and never much newer.
    #[test]
    fn when_a_block_changed_is_never_told_older_than_it_is() {
        let mut random = 7u64;
        let mut next = move || {
            random = base::hash::mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
            random
        };
        for case in 0..60 {
            let (mut object, mut true_ones, mut now) = (ObjectIndex::default(), [0u64; OBJECT_BLOCKS], 1u64);
            for step in 0..6_000 {
                let block = (next() % OBJECT_BLOCKS as u64) as u16;
                // Writes go on; pushes bring what is older, in any order; pauses are long.
                let changed = match next() % 8 {
                    0 if case % 3 != 0 => now.saturating_sub(next() % (now / 2 + 1)),
                    1 if case % 4 == 0 => {
                        now += next() % (1 << (next() % 40));
                        now
                    }
                    _ => {
                        now += 1;
                        now
                    }
                };
                if step % 7 == 6 {
                    object.remove(block);
                    true_ones[usize::from(block)] = 0;
                    continue;
                }
                object.set(block, entry(1), Sequence(changed));
                true_ones[usize::from(block)] = changed;
            }
            let (mut page, all) = (Vec::new(), true_ones.iter().copied().filter(|changed| *changed > 0));
            let (oldest, newest) = (all.clone().min().unwrap(), all.max().unwrap());
            object.to_page(&mut page);
            let copy = ObjectIndex::from_page(&page).unwrap();
            for (block, changed) in (0..).zip(true_ones).filter(|(_, changed)| *changed > 0) {
                let told = object.changed(block).unwrap().0;
                assert!(told >= changed, "case {case}, block {block}: {told} is before {changed}");
                assert_eq!(copy.changed(block), Some(Sequence(told)));
                // What was rounded before, when the span was another, adds to it.
                let most = (newest - oldest) / 4096 + (1 << object.shift);
                assert!(
                    told - changed <= 40 * most,
                    "case {case}: {told} is far behind {changed} of {oldest}..{newest}"
                );
            }
        }
    }

    #[test]
    fn steps_are_as_large_as_it_takes_and_no_larger() {
        // The last is as far as one history goes.
        for far in [65_535_u64, 65_536, 1 << 17, (65_535 << 20) + 1, (1 << 48) - 1001] {
            let mut object = ObjectIndex::default();
            let blocks = [(0, 1000), (1, 1001), (2, 1000 + far)];
            for (block, changed) in blocks {
                object.set(block, entry(1), Sequence(changed));
            }
            let suffices = |shift: u8| far.div_ceil(1 << shift) <= u64::from(u16::MAX);
            let shift = object.shift;
            assert!(suffices(shift) && (shift == 0 || !suffices(shift - 1)), "{far}: {shift}");
            for (block, changed) in blocks {
                let told = object.changed(block).unwrap().0;
                assert!(told >= changed && told - changed < 1 << shift, "{far}: {told} for {changed}");
            }
        }
    }

    #[test]
    fn blocks_of_an_earlier_history_cost_those_of_a_later_one_nothing() {
        let (earlier, later) = (History(3).floor().0, History(4).floor().0);
        let mut object = ObjectIndex::default();
        for (block, changed) in [(0, 5), (1, 9000), (2, 1 << 40)] {
            object.set(block, entry(1), Sequence(earlier + changed));
        }
        assert!(object.shift > 0);
        for (block, changed) in [(3, 7), (4, 8)] {
            object.set(block, entry(1), Sequence(later + changed));
        }
        let exact = |object: &ObjectIndex| [0, 1, 2, 3, 4].map(|block| object.exactly_changed(block));
        let [seventh, eighth] = [7, 8].map(|changed| Some(Sequence(later + changed)));
        assert_eq!(exact(&object), [None, None, None, seventh, eighth]);
        // What is pushed may be of the earlier one still.
        object.set(1, entry(1), Sequence(earlier + 3));
        assert_eq!(exact(&object), [None, None, None, seventh, eighth]);
        assert!([0, 1, 2].iter().all(|block| object.changed(*block) == Some(Sequence(later))));
    }

    #[test]
    fn a_block_that_is_mended_changed_when_it_did() {
        let mut index = Index::default();
        let key = ObjectKey { pg: PgId::default(), layer: LayerId(1), object: 0 };
        assert_eq!(index.set(key, 3, entry(1), Sequence(7)), None);
        assert_eq!(index.mend(key, 3, entry(2), Sequence(9)), Some(entry(1)));
        let object = index.get(&key).unwrap();
        assert_eq!((object.get(3), object.exactly_changed(3)), (Some(entry(2)), Some(Sequence(7))));
        // Who did not have it knows of no change but this.
        assert_eq!(index.mend(key, 4, entry(3), Sequence(9)), None);
        assert_eq!(index.get(&key).unwrap().exactly_changed(4), Some(Sequence(9)));
        assert_eq!(index.block_count, 2);
    }

    #[test]
    fn blocks_of_nearby_sequences_are_told_exactly_however_they_come() {
        for descends in [false, true] {
            let mut object = ObjectIndex::default();
            let sequence = |block: u16| match descends {
                true => 1 << 40 | u64::from(2000 - block),
                false => 1 << 40 | u64::from(block),
            };
            (0..1024).for_each(|block| {
                object.set(block, entry(1), Sequence(sequence(block)));
            });
            (0..1024).for_each(|block| assert_eq!(object.changed(block), Some(Sequence(sequence(block)))));
            // A month later by a clock of 10,000 writes a second: what is told is off by half a minute at most.
            let later = sequence(0) + 30 * 24 * 3600 * 10_000;
            object.set(3, entry(1), Sequence(later));
            let told = object.changed(3).unwrap().0;
            assert!((later..=later + 30 * 2 * 10_000).contains(&told), "{told} for {later}");
        }
    }

    #[test]
    fn a_randomly_written_block_costs_at_most_12_bytes() {
        for percent in [25, 50, 75, 100] {
            let mut index = Index::default();
            for object in 0..200 {
                let key = ObjectKey { object, ..ObjectKey::default() };
                for step in 0..1024 * percent / 100 {
                    index.set(key, (step * 389 % 1024) as u16, entry(step), Sequence(u64::from(step) << 20));
                }
            }
            let walked: usize = index.iter().map(|(_, object)| object.memory_bytes()).sum();
            assert!(index.memory_bytes() >= walked as u64);
            let each = index.memory_bytes() as f64 / index.block_count as f64;
            assert!(each <= 12.0, "{each} bytes a block at {percent} %");
        }
    }
}
