//! Deterministic hashing: the same keys in the same order give the same map on every run.

use std::hash::{BuildHasherDefault, Hasher};

/// A hash map whose iteration order depends on nothing but its history. What is in it has ids that this cluster handed out or
/// that were bounded before, so a peer cannot choose them to collide at will; asking for others costs little.
pub type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<IdHasher>>;
/// The set that goes with [`Map`].
pub type Set<K> = std::collections::HashSet<K, BuildHasherDefault<IdHasher>>;

/// Mixes integers; made for ids, not for text.
#[derive(Default, Clone)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        mix(self.0)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(25) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A bijection of 64 bits in which every input bit moves about half of the output bits
/// (the finalizer of `SplitMix64`; Steele, Lea and Flood, OOPSLA 2014).
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
