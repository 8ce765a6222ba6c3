//! A set of an object's blocks.

use base::OBJECT_BLOCKS;
use std::ops::Range;

const WORDS: usize = OBJECT_BLOCKS / u64::BITS as usize;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSet([u64; WORDS]);

impl BlockSet {
    /// All of these.
    ///
    /// # Panics
    /// If an object has not so many blocks.
    pub(crate) fn of(blocks: Range<u16>) -> BlockSet {
        let mut set = BlockSet::default();
        let (start, end) = (u32::from(blocks.start), u32::from(blocks.end));
        assert!(end as usize <= OBJECT_BLOCKS, "an object has no block {end}");
        for word in start / u64::BITS..end.div_ceil(u64::BITS) {
            let first = word * u64::BITS;
            // The bits of this word up to so many.
            let up_to = |count: u32| 1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1);
            let before = up_to(start.saturating_sub(first));
            set.0[word as usize] = up_to(end.saturating_sub(first)) & !before;
        }
        set
    }

    pub(crate) fn insert(&mut self, block: u16) {
        self.0[usize::from(block) / u64::BITS as usize] |= 1 << (u32::from(block) % u64::BITS);
    }

    pub(crate) fn contains(&self, block: u16) -> bool {
        self.0[usize::from(block) / u64::BITS as usize] & 1 << (u32::from(block) % u64::BITS) != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Those of both.
    pub(crate) fn and(self, other: BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Those of either.
    pub(crate) fn or(self, other: BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Those that the other one has not.
    pub(crate) fn without(self, other: BlockSet) -> BlockSet {
        BlockSet(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The first of them, with those that follow it without a gap.
    pub(crate) fn first_run(&self) -> Option<Range<u16>> {
        let blocks = 0..OBJECT_BLOCKS as u16;
        let first = blocks.clone().find(|block| self.contains(*block))?;
        let end = (first..blocks.end).find(|block| !self.contains(*block));
        Some(first..end.unwrap_or(blocks.end))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_range_has_its_blocks_and_no_others() {
        const ALL: u16 = OBJECT_BLOCKS as u16;
        for blocks in [0..0, 0..1, 0..64, 63..65, 5..60, 64..128, 1..ALL, 0..ALL, 1000..ALL, 70..70, ALL..ALL]
        {
            let set = BlockSet::of(blocks.clone());
            assert!((0..ALL).all(|block| set.contains(block) == blocks.contains(&block)), "{blocks:?}");
            assert_eq!(set.is_empty(), blocks.is_empty());
            assert_eq!(set.first_run(), (!blocks.is_empty()).then_some(blocks));
        }
    }

    #[test]
    fn sets_are_taken_together_and_apart() {
        let (one, other) = (BlockSet::of(10..200), BlockSet::of(100..300));
        assert_eq!(one.and(other), BlockSet::of(100..200));
        assert_eq!(one.or(other), BlockSet::of(10..300));
        assert_eq!(one.without(other), BlockSet::of(10..100));
        let mut some = BlockSet::of(3..5);
        some.insert(700);
        assert_eq!(some.without(BlockSet::of(0..64)).first_run().unwrap(), 700..701);
        assert_eq!(some.first_run().unwrap(), 3..5);
    }
}
