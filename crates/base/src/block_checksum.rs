//! CRC-32C of a whole block on processors whose vector registers have 16 or 32 bytes.
//!
//! They have an instruction that takes 8 bytes into a CRC-32C, one each cycle, but its result comes three cycles later. So a
//! block is taken in three lanes at a time. What the front lanes come to is moved behind what follows them by a product with a
//! power of x (V. Gopal and others, "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011).

// For instructions that not every processor has. Nothing else here is unsafe.
#![allow(unsafe_code)]

use crate::BLOCK_BYTES;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_set_epi64x};

/// The polynomial, the lowest bit for the highest power of x.
const CRC32C: u32 = 0x82f6_3b78;
/// Words of 8 bytes.
const WORDS: usize = BLOCK_BYTES / 8;
/// Those of a lane; two are left.
const LANE: usize = WORDS / 3;

/// The checksum of a block, or `None` where this processor has no instruction for it, or wider ones than these.
pub(crate) fn of_block(block: &[u8; BLOCK_BYTES]) -> Option<u32> {
    let is_for_this = has!("sse4.2") && has!("pclmulqdq") && !(has!("avx512vl") && has!("vpclmulqdq"));
    // SAFETY: the processor has what it takes.
    is_for_this.then(|| unsafe { in_lanes(block) })
}

/// What moves a lane's checksum behind so many bytes: x to the power of the bits in them, less 33, for a product of two is one
/// bit too low, and the instruction multiplies by another 32.
const fn behind(bytes: usize) -> u32 {
    let mut power = 1 << 31;
    let mut bits = 8 * bytes - 33;
    while bits > 0 {
        power = power >> 1 ^ if power & 1 == 1 { CRC32C } else { 0 };
        bits -= 1;
    }
    power
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
fn in_lanes(block: &[u8; BLOCK_BYTES]) -> u32 {
    let (words, _) = block.as_chunks::<8>();
    let (first, rest) = words.split_at(LANE);
    let (second, rest) = rest.split_at(LANE);
    let (third, last) = rest.split_at(LANE);
    let next = |sum: u64, word: &[u8; 8]| _mm_crc32_u64(sum, u64::from_le_bytes(*word));
    let mut sums = [u64::from(!0u32), 0, 0];
    for ((one, two), three) in first.iter().zip(second).zip(third) {
        sums = [next(sums[0], one), next(sums[1], two), next(sums[2], three)];
    }
    let product = |sum: u64, power: u32| {
        let factor = |word: u64| _mm_set_epi64x(0, word as i64);
        _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(factor(sum), factor(power.into()))) as u64
    };
    const BEHIND: [u32; 2] = [behind(2 * 8 * LANE), behind(8 * LANE)];
    let moved = product(sums[0], BEHIND[0]) ^ product(sums[1], BEHIND[1]);
    let sum = _mm_crc32_u64(0, moved) ^ sums[2];
    !last.iter().fold(sum, next) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_come_to_what_the_library_says() {
        if !(has!("sse4.2") && has!("pclmulqdq")) {
            return;
        }
        let mut block = [0; BLOCK_BYTES];
        for round in 0..2000u64 {
            // SAFETY: it was just looked at.
            let found = unsafe { in_lanes(&block) };
            let expected = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block);
            assert_eq!(u64::from(found), expected, "{round}");
            // Each place, and much at once.
            let at = (round * 797) as usize % BLOCK_BYTES;
            block[at..]
                .iter_mut()
                .step_by(1 + round as usize % 37)
                .for_each(|byte| *byte = byte.wrapping_mul(5).wrapping_add(round as u8 | 1));
        }
    }
}
