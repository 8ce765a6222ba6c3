//! Blocks of an object.

use crate::{OBJECT_BLOCKS, ObjectKey};
use std::ops::Range;

/// Blocks of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRange {
    /// The object.
    pub key: ObjectKey,
    /// The first of them.
    pub first_block: u16,
    /// How many.
    pub block_count: u16,
}

impl BlockRange {
    /// One of them.
    #[must_use]
    pub fn one(key: ObjectKey, block: u16) -> BlockRange {
        BlockRange { key, first_block: block, block_count: 1 }
    }

    /// All of an object.
    #[must_use]
    pub fn whole(key: ObjectKey) -> BlockRange {
        BlockRange { key, first_block: 0, block_count: OBJECT_BLOCKS as u16 }
    }

    /// Their numbers.
    #[must_use]
    pub fn blocks(self) -> Range<u16> {
        self.first_block..self.first_block + self.block_count
    }

    /// What is left of it behind its first `done` blocks.
    #[must_use]
    pub fn behind(self, done: u16) -> BlockRange {
        BlockRange { first_block: self.first_block + done, block_count: self.block_count - done, ..self }
    }

    /// Whether both have a block.
    #[must_use]
    pub fn overlaps(&self, other: &BlockRange) -> bool {
        self.key == other.key
            && self.first_block < other.first_block + other.block_count
            && other.first_block < self.first_block + self.block_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_one_object_overlap_where_they_share_a_block() {
        let key = ObjectKey::default();
        let range = |first_block, block_count| BlockRange { key, first_block, block_count };
        assert!(range(0, 4).overlaps(&range(3, 1)) && range(3, 1).overlaps(&range(0, 4)));
        assert!(!range(0, 3).overlaps(&range(3, 1)) && !range(3, 1).overlaps(&range(0, 3)));
        let other = BlockRange { key: ObjectKey { object: 1, ..key }, ..range(0, 4) };
        assert!(!range(0, 4).overlaps(&other));
        assert_eq!(range(2, 5).behind(2), range(4, 3));
    }
}
