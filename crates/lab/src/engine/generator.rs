//! What a job does next, from a seed: kind, place and bytes of each operation.
//!
//! The same job gives the same operations on every run. Data is random, cut from a pool at random places
//! and stamped block by block, so that neither compression nor deduplication finds anything to save.

use crate::engine::Kind;
use crate::engine::plan::{Job, Region};
use base::BLOCK_BYTES;
use base::hash::mix;

/// Bytes of the pool of random data: more than the second-level cache of common CPUs, so that writing
/// from it costs what writing fresh data costs.
const POOL_BYTES: usize = 4 << 20;
/// Bytes of a stamp: the block's offset and the write's serial number.
const STAMP_BYTES: usize = 16;

/// Random numbers from a seed: `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. Its bias is below 2^-20 for every bound up to 2^44.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Lemire, "Fast random integer generation in an interval", ACM TOMACS 29(1), without rejection.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// The same for an index.
    ///
    /// # Panics
    /// If `bound` is 0: there is no index below.
    pub fn index(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no index below zero");
        self.below(bound as u64) as usize
    }
}

/// The operations of one job.
#[derive(Debug)]
pub struct Generator {
    random: Random,
    region: Region,
    is_random: bool,
    read_percent: u64,
    next_read_block: u64,
    next_write_block: u64,
    pool: Vec<u8>,
    /// Whether nothing else is written.
    zeros: bool,
    serial: u64,
}

impl Generator {
    /// The operations of `job` on `region` of its target.
    #[must_use]
    pub fn new(job: &Job, region: Region) -> Generator {
        let mut random = Random::new(mix(job.seed ^ 0x6d69_6c6c_706f_6e64));
        let read_percent = u64::from(job.read_percent());
        let pool = if read_percent == 100 || job.zero_buffers {
            Vec::new()
        } else {
            let words = (POOL_BYTES + region.block_bytes as usize) / 8 + 1;
            (0..words).flat_map(|_| random.bits().to_le_bytes()).collect()
        };
        Generator {
            random,
            region,
            is_random: job.mode.is_random(),
            read_percent,
            next_read_block: 0,
            next_write_block: 0,
            pool,
            zeros: job.zero_buffers,
            serial: 0,
        }
    }

    /// Kind of the next operation and its offset in the target, in bytes.
    pub fn next_operation(&mut self) -> (Kind, u64) {
        let kind = match self.read_percent {
            0 => Kind::Write,
            100 => Kind::Read,
            percent if self.random.below(100) < percent => Kind::Read,
            _ => Kind::Write,
        };
        let block = if self.is_random {
            self.random.below(self.region.blocks)
        } else {
            let next = match kind {
                Kind::Read => &mut self.next_read_block,
                Kind::Write => &mut self.next_write_block,
            };
            let block = *next;
            *next = (block + 1) % self.region.blocks;
            block
        };
        (kind, self.region.offset + block * u64::from(self.region.block_bytes))
    }

    /// Fills the data of a write to `offset`, at most one operation long.
    ///
    /// # Panics
    /// If the job writes nothing, or `data` is longer than an operation.
    pub fn fill(&mut self, offset: u64, data: &mut [u8]) {
        assert!(data.len() <= self.region.block_bytes as usize, "a write is no longer than the job's block");
        if self.zeros {
            data.fill(0);
            return;
        }
        assert!(!self.pool.is_empty(), "a job that only reads fills nothing");
        let start = self.random.below(POOL_BYTES as u64 / 8) as usize * 8;
        data.copy_from_slice(&self.pool[start..start + data.len()]);
        self.serial += 1;
        for (index, block) in data.chunks_mut(BLOCK_BYTES).enumerate() {
            if let Some(stamp) = block.first_chunk_mut::<STAMP_BYTES>() {
                let place = offset + (index * BLOCK_BYTES) as u64;
                stamp[..8].copy_from_slice(&place.to_le_bytes());
                stamp[8..].copy_from_slice(&self.serial.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{Mode, TargetName};
    use base::units::ByteSize;
    use std::collections::HashSet;

    fn generator(mode: Mode, change: impl FnOnce(&mut Job)) -> Generator {
        let mut job = Job::new(TargetName::Volume("demo".into()), mode);
        change(&mut job);
        let region = job.region(64 << 20, 1).unwrap();
        Generator::new(&job, region)
    }

    #[test]
    fn the_same_seed_gives_the_same_operations_and_bytes() {
        let run = |seed| {
            let mut generator = generator(Mode::RandomReadWrite, |job| job.seed = seed);
            let mut data = vec![0; 4096];
            (0..100)
                .map(|_| {
                    let (kind, offset) = generator.next_operation();
                    generator.fill(offset, &mut data);
                    (kind, offset, base::crc32c(&data))
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn random_offsets_are_aligned_inside_the_region_and_uniform() {
        let mut generator =
            generator(Mode::RandomRead, |job| (job.offset, job.size) = (1 << 20, Some(32 * 4096)));
        let mut counts = [0u32; 32];
        for _ in 0..64_000 {
            let (kind, offset) = generator.next_operation();
            assert_eq!(kind, Kind::Read);
            assert_eq!(offset % 4096, 0);
            counts[((offset - (1 << 20)) / 4096) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (1750..2250).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_mix_holds_its_share_of_reads() {
        let mut generator = generator(Mode::RandomReadWrite, |job| job.mix_read_percent = 75);
        let reads = (0..100_000).filter(|_| generator.next_operation().0 == Kind::Read).count();
        assert!((74_500..75_500).contains(&reads), "{reads}");
    }

    #[test]
    fn sequential_operations_follow_each_other_and_wrap() {
        let mut generator = generator(Mode::Write, |job| (job.offset, job.size) = (8192, Some(3 * 4096)));
        let offsets: Vec<_> = (0..4).map(|_| generator.next_operation()).collect();
        let write = |offset| (Kind::Write, offset);
        assert_eq!(offsets, [write(8192), write(12_288), write(16_384), write(8192)]);
    }

    #[test]
    fn sequential_reads_and_writes_keep_their_own_positions() {
        let mut generator = generator(Mode::ReadWrite, |_| ());
        let (mut reads, mut writes) = (0, 0);
        for _ in 0..1000 {
            let (kind, offset) = generator.next_operation();
            let expected = if kind == Kind::Read { &mut reads } else { &mut writes };
            assert_eq!(offset, *expected);
            *expected += 4096;
        }
        assert!(reads > 0 && writes > 0);
    }

    #[test]
    fn written_data_neither_repeats_nor_compresses() {
        let mut generator = generator(Mode::Write, |job| job.block = ByteSize(1 << 20));
        let mut seen = HashSet::new();
        let mut values = [0u64; 256];
        let mut data = vec![0; 1 << 20];
        for _ in 0..16 {
            // The same place again and again: only the serial number tells the writes apart for certain.
            generator.fill(0, &mut data);
            for block in data.chunks(4096) {
                assert!(seen.insert(base::hash::mix(u64::from(base::crc32c(block)) << 32 ^ stamp(block))));
                block.iter().for_each(|&byte| values[byte as usize] += 1);
            }
        }
        let total: u64 = values.iter().sum();
        let entropy: f64 =
            values.iter().map(|&count| count as f64 / total as f64).map(|share| -share * share.log2()).sum();
        assert!(entropy > 7.9, "{entropy} bits a byte");
    }

    fn stamp(block: &[u8]) -> u64 {
        u64::from_le_bytes(block[..8].try_into().unwrap())
    }

    #[test]
    fn each_block_is_stamped_with_its_place_and_the_serial_number() {
        let mut generator = generator(Mode::Write, |job| job.block = ByteSize(10_000));
        let mut data = vec![0; 10_000];
        generator.fill(20_000, &mut data);
        generator.fill(20_000, &mut data);
        assert_eq!(stamp(&data), 20_000);
        assert_eq!(stamp(&data[4096..]), 24_096);
        assert_eq!(data[8..16], 2u64.to_le_bytes());
        // Too short for a stamp is still random data.
        generator.fill(0, &mut data[..5]);
    }
}
