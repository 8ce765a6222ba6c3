//! Some of the blocks of an object: a bit for each, the lowest first.

use base::OBJECT_BLOCKS;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many words they are.
pub(crate) const WORDS: usize = OBJECT_BLOCKS / 64;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Bits(pub(crate) [u64; WORDS]);

impl Bits {
    pub(crate) const ALL: Bits = Bits([u64::MAX; WORDS]);

    pub(crate) fn of(blocks: Range<u16>) -> Bits {
        let mut bits = Bits::default();
        for (word, first) in bits.0.iter_mut().zip((0u16..).step_by(64)) {
            // So many of the word's blocks lie before the end, and so many before the first.
            let [end, start] =
                [blocks.end, blocks.start].map(|at| u32::from(at.saturating_sub(first).min(64)));
            let below = |count: u32| u64::MAX.checked_shr(64 - count).unwrap_or(0);
            *word = below(end) & !below(start);
        }
        bits
    }

    pub(crate) fn has(&self, block: u16) -> bool {
        self.0[usize::from(block) / 64] >> (block % 64) & 1 != 0
    }

    pub(crate) fn set(&mut self, block: u16) {
        self.0[usize::from(block) / 64] |= 1 << (block % 64);
    }

    pub(crate) fn clear(&mut self, block: u16) {
        self.0[usize::from(block) / 64] &= !(1 << (block % 64));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().zip((0u16..).step_by(64)).flat_map(|(word, first)| blocks_of(*word, first))
    }

    /// Whether all of them are among others.
    pub(crate) fn is_within(&self, others: &Bits) -> bool {
        self.0.iter().zip(others.0).all(|(word, other)| word & !other == 0)
    }

    /// How many are below a block.
    pub(crate) fn rank(&self, block: u16) -> usize {
        let word = usize::from(block) / 64;
        let below: u32 = self.0[..word].iter().map(|bits| bits.count_ones()).sum();
        (below + (self.0[word] & ((1 << (block % 64)) - 1)).count_ones()) as usize
    }

    /// Takes up those of others.
    pub(crate) fn add(&mut self, others: &Bits) {
        self.add_without(others, &Bits::default());
    }

    /// Takes up those of others that are not among a third.
    pub(crate) fn add_without(&mut self, others: &Bits, without: &Bits) {
        for ((word, other), without) in self.0.iter_mut().zip(others.0).zip(without.0) {
            *word |= other & !without;
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; OBJECT_BLOCKS / 8] {
        zerocopy::transmute!(self.0.map(u64::to_le))
    }
}

/// The blocks of a word of which the first block is that one.
pub(crate) fn blocks_of(word: u64, first: u16) -> impl Iterator<Item = u16> {
    let next = |left: &u64| Some(left & (left - 1)).filter(|left| *left != 0);
    let words = std::iter::successors(Some(word).filter(|word| *word != 0), next);
    words.map(move |left| first + left.trailing_zeros() as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_range_are_those_between_its_ends() {
        for blocks in [0..0, 0..1, 3..70, 63..65, 64..128, 100..100, 1000..1024, 0..1024] {
            let bits = Bits::of(blocks.clone());
            assert!((0..1024).all(|block| bits.has(block) == blocks.contains(&block)), "{blocks:?}");
            let words = bits.0.iter().zip((0u16..).step_by(64));
            let listed: Vec<u16> = words.flat_map(|(word, first)| blocks_of(*word, first)).collect();
            assert_eq!(listed, blocks.clone().collect::<Vec<u16>>());
            assert_eq!((bits.count() as usize, bits.is_empty()), (blocks.len(), blocks.is_empty()));
            let bytes = bits.to_bytes();
            assert!(
                (0..1024)
                    .all(|block| bytes[block / 8] >> (block % 8) & 1 == u8::from(bits.has(block as u16)))
            );
        }
    }

    #[test]
    fn those_that_come_and_go_are_counted_below_others() {
        let mut bits = Bits::default();
        [5, 64, 1023].into_iter().for_each(|block| bits.set(block));
        assert_eq!([0, 5, 6, 64, 65, 1023].map(|block| bits.rank(block)), [0, 0, 1, 1, 2, 2]);
        bits.clear(64);
        assert_eq!((bits.has(64), bits.rank(1023), bits.count()), (false, 1, 2));
        bits.add_without(&Bits::of(4..8), &Bits::of(6..9));
        assert_eq!([4, 5, 6, 7, 1023].map(|block| bits.has(block)), [true, true, false, false, true]);
    }
}
