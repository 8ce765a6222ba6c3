//! Blocks that a CRC does not tell apart.
//!
//! A CRC is the remainder of a division of polynomials, so it is linear: what is xored into a message changes its CRC by
//! something that does not depend on the message, and nothing at all if it is a multiple of the divisor. So contents of equal
//! CRC are not rare. A file system makes them in good faith: an extent tree block or directory block of ext4 ends in the CRC-32C
//! of what precedes it, and all versions of one such block have one CRC-32C ([`ending`]). And whoever wants some makes them by
//! xoring a multiple of the divisor into a block, even of the divisors of two CRCs ([`multiple_of_both`]).

/// The divisor of CRC-32C (RFC 3720, B.4), reflected: the lowest bit is the coefficient of x^31, that of x^32 is left out.
const CRC32C: u32 = 0x82f6_3b78;
/// The same of CRC-64/NVME (NVM Express NVM Command Set 1.0, section 5.2.1.3.4).
const CRC64: u64 = 0x9a6c_9329_ac4b_c9b5;
/// The product of both, in the same way: of degree 96.
const PRODUCT: u128 = product();

/// Bytes of what [`multiple_of_both`] makes.
pub const MULTIPLE_BYTES: usize = 20;

/// Multiplies without carries, as polynomials over two elements are.
const fn product() -> u128 {
    let (one, other) = ((CRC32C as u128) << 1 | 1, (CRC64 as u128) << 1 | 1);
    let (mut product, mut bit) = (0, 0);
    while bit <= 64 {
        if other >> bit & 1 == 1 {
            product ^= one << bit;
        }
        bit += 1;
    }
    product >> 1
}

/// The 4 bytes that, put behind a message whose CRC-32C is `so_far`, make that of the whole `wanted`.
#[must_use]
pub fn ending(so_far: u32, wanted: u32) -> [u8; 4] {
    // From the register at the end, 32 steps back: a step whose result has the highest bit has subtracted the divisor.
    let mut register = !wanted;
    for _ in 0..32 {
        register = match register >> 31 {
            0 => register << 1,
            _ => (register ^ CRC32C) << 1 | 1,
        };
    }
    (register ^ !so_far).to_le_bytes()
}

/// A number, followed by the 12 bytes that make the whole a multiple of the divisors of CRC-32C and of CRC-64/NVME. Xored into
/// a message, wherever that may be, it leaves both CRCs of the message as they were; and so do several of them.
#[must_use]
pub fn multiple_of_both(number: u64) -> [u8; MULTIPLE_BYTES] {
    // As a CRC of 96 bits that begins with zeros would be computed: what ends in its own is a multiple.
    let mut register = u128::from(number);
    for _ in 0..64 {
        register = register >> 1 ^ if register & 1 == 1 { PRODUCT } else { 0 };
    }
    let mut bytes = [0; MULTIPLE_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&register.to_le_bytes()[..12]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use base::{BLOCK_BYTES, ZERO_BLOCK_CRC32C, crc32c};

    /// CRC-64/NVME, bit by bit as the standard has it: slow, and by nothing of what is tested here.
    fn crc64(bytes: &[u8]) -> u64 {
        !bytes.iter().fold(u64::MAX, |register, byte| {
            (0..8).fold(register ^ u64::from(*byte), |register, _| {
                register >> 1 ^ if register & 1 == 1 { CRC64 } else { 0 }
            })
        })
    }

    fn noise(random: &mut Random, bytes: usize) -> Vec<u8> {
        std::iter::repeat_with(|| random.next_u64() as u8).take(bytes).collect()
    }

    #[test]
    fn a_block_gets_whatever_crc32c_is_wanted() {
        let mut random = Random::new(1);
        for wanted in [0, 1, 0x79fb_930c, ZERO_BLOCK_CRC32C, u32::MAX] {
            let mut block = noise(&mut random, BLOCK_BYTES - 4);
            block.extend(ending(crc32c(&block), wanted));
            assert_eq!(crc32c(&block), wanted);
        }
    }

    #[test]
    fn blocks_that_end_in_their_own_crc32c_collide() {
        let mut random = Random::new(2);
        let all: Vec<u32> = (0..3)
            .map(|_| {
                let mut block = noise(&mut random, BLOCK_BYTES - 4);
                block.extend(crc32c(&block).to_le_bytes());
                crc32c(&block)
            })
            .collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:08x?}");
    }

    #[test]
    fn a_multiple_of_both_changes_neither_crc_wherever_it_is() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888, "the published check value");
        let mut random = Random::new(3);
        let block = noise(&mut random, BLOCK_BYTES);
        let mut changed = block.clone();
        for at in [0, 7, 512, 2000, BLOCK_BYTES - MULTIPLE_BYTES] {
            let number = random.next_u64();
            for (byte, more) in changed[at..].iter_mut().zip(multiple_of_both(number)) {
                *byte ^= more;
            }
            assert_ne!(changed, block);
            assert_eq!((crc32c(&changed), crc64(&changed)), (crc32c(&block), crc64(&block)), "at {at}");
        }
    }

    #[test]
    fn different_numbers_make_different_multiples() {
        let multiples = [0, 1, 2, 3, u64::MAX].map(multiple_of_both);
        for (one, number) in multiples.iter().zip([0u64, 1, 2, 3, u64::MAX]) {
            assert_eq!(one[..8], number.to_le_bytes(), "the number stands in it");
        }
        assert_eq!(multiples[0], [0; MULTIPLE_BYTES]);
    }
}
