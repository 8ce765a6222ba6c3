//! Which block of which object lies where.

use crate::layout::Piece;
use base::hash::Map;
use base::{OBJECT_BLOCKS, ObjectKey, PgId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Where a block lies, and its checksum: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) location: u32,
    pub(crate) crc32c: u32,
}

const WORDS: usize = OBJECT_BLOCKS / 64;

/// The blocks of one object: a bit for each that is there, and their entries in order.
#[derive(Clone, Debug)]
pub(crate) struct ObjectIndex {
    bits: [u64; WORDS],
    entries: Vec<Entry>,
    /// Changed since its page was written.
    pub(crate) is_dirty: bool,
    /// Where it was last checkpointed.
    pub(crate) page: Option<Piece>,
}

impl ObjectIndex {
    fn new() -> ObjectIndex {
        ObjectIndex { bits: [0; WORDS], entries: Vec::new(), is_dirty: false, page: None }
    }

    /// Where a block's entry stands, or would stand.
    fn rank(&self, block: u16) -> usize {
        // A dense object needs no counting.
        if self.entries.len() == OBJECT_BLOCKS {
            return usize::from(block);
        }
        let word = usize::from(block) / 64;
        let below: u32 = self.bits[..word].iter().map(|bits| bits.count_ones()).sum();
        (below + (self.bits[word] & ((1 << (block % 64)) - 1)).count_ones()) as usize
    }

    fn has(&self, block: u16) -> bool {
        self.bits[usize::from(block) / 64] >> (block % 64) & 1 != 0
    }

    pub(crate) fn get(&self, block: u16) -> Option<Entry> {
        self.has(block).then(|| self.entries[self.rank(block)])
    }

    /// Puts an entry and answers the one it replaces.
    pub(crate) fn set(&mut self, block: u16, entry: Entry) -> Option<Entry> {
        self.is_dirty = true;
        let rank = self.rank(block);
        if self.has(block) {
            return Some(std::mem::replace(&mut self.entries[rank], entry));
        }
        if self.entries.len() == self.entries.capacity() {
            // Small steps: memory per block stays near the 8 bytes of an entry.
            let step = (self.entries.len() / 8).max(4).min(OBJECT_BLOCKS - self.entries.len());
            self.entries.reserve_exact(step);
        }
        self.entries.insert(rank, entry);
        self.bits[usize::from(block) / 64] |= 1 << (block % 64);
        None
    }

    /// Removes a block and answers its entry.
    fn remove(&mut self, block: u16) -> Option<Entry> {
        if !self.has(block) {
            return None;
        }
        self.is_dirty = true;
        let rank = self.rank(block);
        self.bits[usize::from(block) / 64] &= !(1 << (block % 64));
        Some(self.entries.remove(rank))
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Its page: the bits, then the entries, 8 bytes each.
    pub(crate) fn to_page(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        for word in self.bits {
            bytes.extend_from_slice(U64::new(word).as_bytes());
        }
        for entry in &self.entries {
            bytes.extend_from_slice(U32::new(entry.location).as_bytes());
            bytes.extend_from_slice(U32::new(entry.crc32c).as_bytes());
        }
    }

    /// The object of a page, or `None` if its size does not fit its bits.
    pub(crate) fn from_page(bytes: &[u8]) -> Option<ObjectIndex> {
        let (words, rest) = <[U64]>::ref_from_prefix_with_elems(bytes, WORDS).ok()?;
        let pairs = <[[U32; 2]]>::ref_from_bytes(rest).ok()?;
        let mut object = ObjectIndex::new();
        for (bits, word) in object.bits.iter_mut().zip(words) {
            *bits = word.get();
        }
        let count: u32 = object.bits.iter().map(|bits| bits.count_ones()).sum();
        if count as usize != pairs.len() {
            return None;
        }
        object.entries.reserve_exact(pairs.len());
        object
            .entries
            .extend(pairs.iter().map(|pair| Entry { location: pair[0].get(), crc32c: pair[1].get() }));
        Some(object)
    }

    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        size_of::<ObjectIndex>() + self.entries.capacity() * size_of::<Entry>()
    }
}

/// All objects.
#[derive(Debug, Default)]
pub(crate) struct Index {
    objects: Map<ObjectKey, Box<ObjectIndex>>,
    /// How many of them each group has, so that nobody has to walk them; groups without any are absent.
    counts: Map<PgId, u64>,
    pub(crate) block_count: u64,
    entry_capacity: u64,
}

impl Index {
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&ObjectIndex> {
        self.objects.get(key).map(|object| &**object)
    }

    pub(crate) fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut ObjectIndex> {
        self.objects.get_mut(key).map(|object| &mut **object)
    }

    pub(crate) fn entry(&self, key: &ObjectKey, block: u16) -> Option<Entry> {
        self.get(key)?.get(block)
    }

    pub(crate) fn set(&mut self, key: ObjectKey, block: u16, entry: Entry) -> Option<Entry> {
        let object = self.objects.entry(key).or_insert_with(|| {
            *self.counts.entry(key.pg).or_default() += 1;
            Box::new(ObjectIndex::new())
        });
        let capacity = object.entries.capacity();
        let old = object.set(block, entry);
        self.entry_capacity += (object.entries.capacity() - capacity) as u64;
        self.block_count += u64::from(old.is_none());
        old
    }

    /// Removes blocks, and the object with its last one. Answers the page it had then.
    pub(crate) fn remove(
        &mut self,
        key: &ObjectKey,
        first_block: u16,
        block_count: u16,
        mut removed: impl FnMut(Entry),
    ) -> Option<Piece> {
        let object = self.objects.get_mut(key)?;
        for block in first_block..first_block + block_count {
            if let Some(entry) = object.remove(block) {
                self.block_count -= 1;
                removed(entry);
            }
        }
        if !object.entries.is_empty() {
            return None;
        }
        let object = self.objects.remove(key)?;
        self.uncount(key.pg);
        self.entry_capacity -= object.entries.capacity() as u64;
        object.page
    }

    fn uncount(&mut self, pg: PgId) {
        let count = self.counts.get_mut(&pg).expect("whose objects are there is counted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&pg);
        }
    }

    /// Gives the objects of a group that are another's by `modulus` to that one. One walk over all objects: some
    /// milliseconds for each million.
    pub(crate) fn split(&mut self, pg: PgId, modulus: u32) {
        let is_given = |key: &&ObjectKey| key.pg == pg && !pg.holds(modulus, key.volume, key.object);
        let given: Vec<ObjectKey> = self.objects.keys().filter(is_given).copied().collect();
        for key in given {
            self.uncount(pg);
            let object = self.objects.remove(&key).expect("it was just found");
            let child = PgId::of_object(pg.pool, modulus, key.volume, key.object);
            *self.counts.entry(child).or_default() += 1;
            let before = self.objects.insert(ObjectKey { pg: child, ..key }, object);
            assert!(before.is_none(), "{key} is there twice: a group that is split off holds nothing before");
        }
    }

    /// Takes in an object read from a checkpoint.
    pub(crate) fn insert(&mut self, key: ObjectKey, object: ObjectIndex) {
        self.block_count += object.entries.len() as u64;
        self.entry_capacity += object.entries.capacity() as u64;
        if self.objects.insert(key, Box::new(object)).is_none() {
            *self.counts.entry(key.pg).or_default() += 1;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &ObjectIndex)> {
        self.objects.iter().map(|(key, object)| (key, &**object))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&ObjectKey, &mut ObjectIndex)> {
        self.objects.iter_mut().map(|(key, object)| (key, &mut **object))
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn object_count(&self, pg: PgId) -> u64 {
        self.counts.get(&pg).copied().unwrap_or(0)
    }

    /// Memory it takes, map included, without walking it.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let slot = size_of::<ObjectKey>() + size_of::<Box<ObjectIndex>>() + 1;
        let map = self.objects.capacity() * slot * 8 / 7;
        let objects = self.objects.len() * size_of::<ObjectIndex>();
        map as u64 + objects as u64 + self.entry_capacity * size_of::<Entry>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(index.set(key, block, entry(step)), None);
            assert_eq!(index.set(key, block, entry(step + 5000)), Some(entry(step)));
        }
        for step in 0..1024u32 {
            assert_eq!(index.entry(&key, (step * 389 % 1024) as u16), Some(entry(step + 5000)));
        }
        let mut page = Vec::new();
        index.get(&key).unwrap().to_page(&mut page);
        let copy = ObjectIndex::from_page(&page).unwrap();
        assert_eq!(copy.entries(), index.get(&key).unwrap().entries());
        let mut removed = 0;
        assert!(index.remove(&key, 0, 1023, |_| removed += 1).is_none());
        assert_eq!((removed, index.block_count, index.len()), (1023, 1, 1));
        index.remove(&key, 1023, 1, |_| removed += 1);
        assert_eq!((removed, index.block_count, index.len()), (1024, 0, 0));
    }

    #[test]
    fn the_objects_of_each_group_are_counted_as_they_come_go_and_are_given_away() {
        let mut index = Index::default();
        let pg = PgId { pool: base::PoolId(1), index: 1 };
        let keys = (0..200).map(|object| ObjectKey { pg, object, ..ObjectKey::default() });
        let keys: Vec<ObjectKey> = keys.filter(|key| pg.holds(2, key.volume, key.object)).collect();
        let count = keys.len() as u64;
        for key in &keys {
            index.set(*key, 0, entry(1));
            index.set(*key, 7, entry(2));
        }
        index.remove(&keys[0], 0, 1, |_| {});
        assert_eq!(index.object_count(pg), count);
        index.remove(&keys[0], 0, 8, |_| {});
        assert_eq!(index.object_count(pg), count - 1);
        index.split(pg, 4);
        let child = PgId { index: 3, ..pg };
        let held = |index: &Index, pg| index.iter().filter(|(key, _)| key.pg == pg).count() as u64;
        assert_eq!(index.object_count(pg), held(&index, pg));
        assert_eq!(index.object_count(child), held(&index, child));
        assert_eq!(index.object_count(pg) + index.object_count(child), count - 1);
        assert!(index.object_count(pg) > 0 && index.object_count(child) > 0);
        let mut copy = Index::default();
        let all: Vec<(ObjectKey, ObjectIndex)> = index.iter().map(|(key, it)| (*key, it.clone())).collect();
        all.into_iter().for_each(|(key, object)| copy.insert(key, object));
        assert_eq!(copy.object_count(child), index.object_count(child));
    }

    #[test]
    fn a_page_of_the_wrong_size_is_refused() {
        let mut object = ObjectIndex::new();
        object.set(7, entry(1));
        let mut page = Vec::new();
        object.to_page(&mut page);
        assert!(ObjectIndex::from_page(&page).is_some());
        assert!(ObjectIndex::from_page(&page[..page.len() - 8]).is_none());
        assert!(ObjectIndex::from_page(&page[..50]).is_none());
    }

    #[test]
    fn a_randomly_written_block_costs_at_most_12_bytes() {
        for percent in [25, 50, 75, 100] {
            let mut index = Index::default();
            for object in 0..200 {
                let key = ObjectKey { object, ..ObjectKey::default() };
                for step in 0..1024 * percent / 100 {
                    index.set(key, (step * 389 % 1024) as u16, entry(step));
                }
            }
            let walked: usize = index.iter().map(|(_, object)| object.memory_bytes()).sum();
            assert!(index.memory_bytes() >= walked as u64);
            let each = index.memory_bytes() as f64 / index.block_count as f64;
            assert!(each <= 12.0, "{each} bytes a block at {percent} %");
        }
    }
}
