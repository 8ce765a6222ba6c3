//! What blocks hold that are read and written: a store that compresses, recognises zeros or keeps each block once looks faster
//! than it is on data that nobody has, and a volume that is empty answers without a drive.

use crate::engine::Kind;
use base::BLOCK_BYTES;
use base::hash::mix;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The most blocks of which it is remembered what they held.
const KNOWN_MAX: usize = 16_384;
/// Bits by which the entropy of a block's bytes may fall short of what random ones have: a tenth, by which a store could shrink it.
/// fio's random blocks fall short by up to half a bit.
const SHORT_BITS: f64 = 0.8;
/// Fewer bytes tell nothing of their distribution.
const TELLING_BYTES: usize = 256;

/// Counts of blocks that were looked at, of at most 4 KiB each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// How many.
    pub looked: u64,
    /// Nothing but zeros.
    pub zeros: u64,
    /// Not random: their bytes' entropy (Shannon 1948, of single bytes) is below that of random bytes. Zeros are not counted.
    pub compressible: u64,
    /// The same as a block that was seen at another place.
    pub repeated: u64,
}

impl Counts {
    /// Adds another's.
    pub fn add(&mut self, other: &Counts) {
        self.looked += other.looked;
        self.zeros += other.zeros;
        self.compressible += other.compressible;
        self.repeated += other.repeated;
    }
}

/// What was seen, of reads and of writes.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Blocks that reads brought.
    pub reads: Counts,
    /// Blocks that were written.
    pub writes: Counts,
    /// Where what was first seen, by its hash.
    known: HashMap<u64, u64>,
}

impl Contents {
    /// Looks at a block of what was read from `offset`, or is written there: of larger operations at another one each time.
    pub fn look(&mut self, kind: Kind, offset: u64, data: &[u8]) {
        let which = (self.reads.looked + self.writes.looked) as usize % (data.len() / BLOCK_BYTES).max(1);
        let from = which * BLOCK_BYTES;
        let (offset, block) = (offset + from as u64, &data[from..data.len().min(from + BLOCK_BYTES)]);
        let counts = match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        };
        counts.looked += 1;
        if block.iter().all(|byte| *byte == 0) {
            counts.zeros += 1;
            return;
        }
        counts.compressible += u64::from(is_compressible(block));
        let words =
            block.chunks(8).map(|chunk| chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        let hash = words.fold(0, |hash, word| mix(hash ^ word));
        match self.known.get(&hash) {
            Some(place) => counts.repeated += u64::from(*place != offset),
            None if self.known.len() < KNOWN_MAX => drop(self.known.insert(hash, offset)),
            None => {}
        }
    }
}

/// Whether its bytes are distributed as no random ones are.
fn is_compressible(block: &[u8]) -> bool {
    if block.len() < TELLING_BYTES {
        return false;
    }
    let mut counts = [0u32; 256];
    block.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let length = block.len() as f64;
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = f64::from(*count) / length;
            -share * share.log2()
        })
        .sum();
    // What a sample of random bytes has is less than 8 bits by this much (Miller 1955).
    let expected = 8.0 - 255.0 / (2.0 * length * std::f64::consts::LN_2);
    entropy < expected - SHORT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::generator::Random;

    fn random(seed: u64, bytes: usize) -> Vec<u8> {
        let mut random = Random::new(seed);
        (0..bytes).map(|_| random.bits() as u8).collect()
    }

    #[test]
    fn random_blocks_are_neither_compressible_nor_repeated() {
        for bytes in [512, 4096, 65_536] {
            let mut contents = Contents::default();
            for seed in 0..500 {
                contents.look(Kind::Write, seed * 4096, &random(seed, bytes));
            }
            assert_eq!(contents.writes, Counts { looked: 500, ..Counts::default() }, "{bytes}");
        }
    }

    #[test]
    fn zeros_text_patterns_and_copies_are_told() {
        let mut contents = Contents::default();
        contents.look(Kind::Read, 0, &[0; 4096]);
        contents.look(Kind::Read, 4096, &b"the quick brown fox jumps over the lazy dog ".repeat(94));
        contents.look(Kind::Read, 8192, &random(1, 128).repeat(32));
        contents.look(Kind::Read, 12_288, &random(2, 4096));
        contents.look(Kind::Read, 12_288, &random(2, 4096));
        contents.look(Kind::Write, 16_384, &random(2, 4096));
        assert_eq!(contents.reads, Counts { looked: 5, zeros: 1, compressible: 2, repeated: 0 });
        assert_eq!(contents.writes, Counts { looked: 1, repeated: 1, ..Counts::default() });
    }
}
