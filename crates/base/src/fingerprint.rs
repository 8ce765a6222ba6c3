//! Fingerprints of data under a secret.
//!
//! Data is taken in chunks of 1 KiB. Each is hashed by products of polynomials over GF(2): each word of 8 bytes and a secret word
//! are added, neighbours are multiplied, and the 64 products are added up (NH of Black, Halevi, Krawczyk, Krovetz and Rogaway,
//! "UMAC: fast and secure message authentication", 1999, with products that carry nothing, as of Lemire and Kaser, "Faster
//! 64-bit universal hashing using carry-less multiplications", 2015). What the chunks come to are the coefficients of a polynomial
//! over GF(2^128) without a constant term, whose value at a secret point is the fingerprint, or 64 bits of that. (A constant
//! term would be there as it is, and 64 bits of one product tell little of its factors.)
//!
//! Whoever writes data knows neither words nor point. Of two contents of the same length that differ in a chunk this has the same
//! sum in one of 2^64 cases; and if the sums differ, of `n` chunks the 64 bits are the same for `n` of 2^64 points at most: one
//! in 2^58 of 64 KiB, and one in 2^54 of 1 MiB. It takes one multiplication for 16 bytes, half of what a checksum takes.

// For instructions that not every processor has. Nothing else here is unsafe.
#![allow(unsafe_code)]

use crate::checksum::keyed_hash;
use std::sync::Arc;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 1024;
const WORDS: usize = CHUNK_BYTES / size_of::<u64>();

/// What nobody knows.
struct Keys {
    secret: [u8; 16],
    words: [u64; WORDS],
    point: u128,
}

/// Makes fingerprints under one secret.
#[derive(Clone)]
pub struct Fingerprints(Arc<Keys>);

impl Fingerprints {
    /// What data comes in, in bytes: a fingerprint is of multiples of that.
    pub const CHUNK_BYTES: usize = CHUNK_BYTES;

    /// Those under a secret.
    #[must_use]
    pub fn new(secret: &[u8; 16]) -> Fingerprints {
        let number = |which: usize| keyed_hash(secret, [&(which as u64).to_le_bytes()[..]]);
        let point = u128::from(number(WORDS)) << 64 | u128::from(number(WORDS + 1));
        Fingerprints(Arc::new(Keys { secret: *secret, words: std::array::from_fn(number), point }))
    }

    /// The secret.
    #[must_use]
    pub fn secret(&self) -> &[u8; 16] {
        &self.0.secret
    }

    /// The fingerprint of these bytes.
    ///
    /// # Panics
    /// If they are no multiple of [`Self::CHUNK_BYTES`].
    #[must_use]
    pub fn of(&self, bytes: &[u8]) -> u64 {
        let mut fingerprint = self.begin();
        fingerprint.add(bytes);
        fingerprint.value()
    }

    /// That of data that comes in parts: none so far.
    #[must_use]
    pub fn begin(&self) -> Fingerprint {
        Fingerprint { keys: self.clone(), sum: 0 }
    }
}

impl std::fmt::Debug for Fingerprints {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Fingerprints")
    }
}

/// The fingerprint of all parts that there were so far, one behind the other.
#[derive(Clone, Debug)]
pub struct Fingerprint {
    keys: Fingerprints,
    sum: u128,
}

impl Fingerprint {
    /// One more part.
    ///
    /// # Panics
    /// If it is no multiple of [`Fingerprints::CHUNK_BYTES`].
    pub fn add(&mut self, part: &[u8]) {
        let (chunks, rest) = part.as_chunks::<CHUNK_BYTES>();
        assert!(rest.is_empty(), "data comes in whole chunks");
        self.sum = add(&self.keys.0, self.sum, chunks);
    }

    /// Those that it is one of.
    #[must_use]
    pub fn under(&self) -> &Fingerprints {
        &self.keys
    }

    /// What [`Fingerprints::of`] tells of all of them.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.sum as u64
    }
}

/// The value of the polynomial that goes on with these chunks behind others that came to `sum`.
fn add(keys: &Keys, sum: u128, chunks: &[[u8; CHUNK_BYTES]]) -> u128 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("pclmulqdq") && has!("sse2") {
            if has!("vpclmulqdq") && has!("avx2") {
                if has!("avx512f") {
                    // SAFETY: this processor has all that it takes; so below.
                    return unsafe { x86::add_by_four(keys, sum, chunks) };
                }
                // SAFETY: see above.
                return unsafe { x86::add_by_two(keys, sum, chunks) };
            }
            // SAFETY: see above.
            return unsafe { x86::add_one_by_one(keys, sum, chunks) };
        }
    }
    add_anywhere(keys, sum, chunks)
}

/// The same on any processor.
fn add_anywhere(keys: &Keys, sum: u128, chunks: &[[u8; CHUNK_BYTES]]) -> u128 {
    let of_chunk = |chunk: &[u8; CHUNK_BYTES]| {
        let (words, _) = chunk.as_chunks::<8>();
        let mixed = |at: usize| u64::from_le_bytes(words[at]) ^ keys.words[at];
        (0..WORDS).step_by(2).fold(0, |sum, at| sum ^ product(mixed(at), mixed(at + 1)))
    };
    add_by(keys, sum, chunks, of_chunk, product)
}

/// The same by whatever hashes a chunk and multiplies two words.
#[inline(always)]
fn add_by(
    keys: &Keys,
    sum: u128,
    chunks: &[[u8; CHUNK_BYTES]],
    of_chunk: impl Fn(&[u8; CHUNK_BYTES]) -> u128,
    product: impl Fn(u64, u64) -> u128 + Copy,
) -> u128 {
    chunks.iter().fold(sum, |sum, chunk| times(sum ^ of_chunk(chunk), keys.point, product))
}

/// The product in GF(2^128), modulo x^128 + x^7 + x^2 + x + 1.
#[inline(always)]
fn times(one: u128, other: u128, product: impl Fn(u64, u64) -> u128) -> u128 {
    let halves = |number: u128| [number as u64, (number >> 64) as u64];
    let ([low, high], [other_low, other_high]) = (halves(one), halves(other));
    let middle = product(low, other_high) ^ product(high, other_low);
    let below = product(low, other_low) ^ middle << 64;
    let [above, far_above] = halves(product(high, other_high) ^ middle >> 64);
    // x^128 is x^7 + x^2 + x + 1; what of that is beyond once more has few bits.
    let folded = product(far_above, 0x87);
    below ^ product(above, 0x87) ^ folded << 64 ^ product((folded >> 64) as u64, 0x87)
}

/// The product of two polynomials, a bit for each power of x: the lowest is the constant term.
fn product(one: u64, other: u64) -> u128 {
    // Those of four bits, each once.
    let mut multiples = [0u128; 16];
    for bits in 1..16 {
        let doubled = multiples[bits / 2] << 1;
        multiples[bits] = doubled ^ if bits % 2 == 1 { u128::from(one) } else { 0 };
    }
    (0..16).rev().fold(0, |product, at| product << 4 ^ multiples[(other >> (4 * at) & 15) as usize])
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHUNK_BYTES, Keys, add_by};
    use std::arch::x86_64::*;

    /// Of what one register holds.
    fn number(register: __m128i) -> u128 {
        // SAFETY: both are 16 bytes of which each value is possible.
        unsafe { std::mem::transmute(register) }
    }

    #[target_feature(enable = "pclmulqdq")]
    fn product(one: u64, other: u64) -> u128 {
        let register = |word: u64| _mm_set_epi64x(0, word as i64);
        number(_mm_clmulepi64_si128::<0>(register(one), register(other)))
    }

    /// Products of neighbours, as many at a time as a register of that type has room for. Several sums, for each product takes
    /// some cycles.
    macro_rules! adder {
        (
            $(#[$meta:meta])* $name:ident, $register:ty, $zero:ident, $load:ident, $xor:ident, $multiply:ident,
            $narrow:expr
        ) => {
            $(#[$meta])*
            pub(super) fn $name(keys: &Keys, sum: u128, chunks: &[[u8; CHUNK_BYTES]]) -> u128 {
                const SUMS: usize = 4;
                const STEP_BYTES: usize = SUMS * size_of::<$register>();
                let of_chunk = |chunk: &[u8; CHUNK_BYTES]| {
                    let (steps, _) = chunk.as_chunks::<STEP_BYTES>();
                    let (keys, _) = keys.words.as_chunks::<{ STEP_BYTES / size_of::<u64>() }>();
                    let mut sums = [$zero(); SUMS];
                    for (step, keys) in steps.iter().zip(keys) {
                        for (at, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: a step has as many bytes as these registers, of data and of keys.
                            let (data, key) = unsafe {
                                (
                                    $load(step.as_ptr().cast::<$register>().add(at)),
                                    $load(keys.as_ptr().cast::<$register>().add(at)),
                                )
                            };
                            let mixed = $xor(data, key);
                            // In each lane the low word times the high one.
                            *sum = $xor(*sum, $multiply::<0x10>(mixed, mixed));
                        }
                    }
                    let [a, b, c, d] = sums;
                    number($narrow($xor($xor(a, b), $xor(c, d))))
                };
                add_by(keys, sum, chunks, of_chunk, |one, other| product(one, other))
            }
        };
    }

    adder!(
        #[target_feature(enable = "pclmulqdq,sse2")]
        add_one_by_one,
        __m128i,
        _mm_setzero_si128,
        _mm_loadu_si128,
        _mm_xor_si128,
        _mm_clmulepi64_si128,
        |sum| sum
    );

    #[target_feature(enable = "avx2")]
    fn halves_added(sum: __m256i) -> __m128i {
        _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum))
    }

    adder!(
        #[target_feature(enable = "vpclmulqdq,pclmulqdq,avx2,sse2")]
        add_by_two,
        __m256i,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_xor_si256,
        _mm256_clmulepi64_epi128,
        |sum| halves_added(sum)
    );

    adder!(
        #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,avx2,sse2")]
        add_by_four,
        __m512i,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_xor_si512,
        _mm512_clmulepi64_epi128,
        |sum| {
            let halves = (_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
            halves_added(_mm256_xor_si256(halves.0, halves.1))
        }
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc32c;

    fn data(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| ((at / 7) ^ at) as u8).collect()
    }

    #[test]
    fn products_carry_nothing_and_stay_within_128_bits() {
        let slow = |one: u64, other: u64| {
            (0..64).filter(|bit| other >> bit & 1 == 1).fold(0, |sum, bit| sum ^ u128::from(one) << bit)
        };
        let words = [0, 1, 2, 0x87, u64::MAX, 0x8000_0000_0000_0001, 0x0123_4567_89ab_cdef];
        for (one, other) in words.iter().flat_map(|one| words.map(|other| (*one, other))) {
            assert_eq!(product(one, other), slow(one, other), "{one:x} times {other:x}");
        }
        let times = |one, other| times(one, other, product);
        let (x, top) = (2u128, 1u128 << 127);
        assert_eq!([times(x, 1), times(x, top), times(top, 1)], [x, 0x87, top]);
        // In a field each but 0 has 2^128 - 1 as its order, or a divisor of that.
        let one = 0x0123_4567_89ab_cdef_1122_3344_5566_7788u128;
        let power = (0..128).fold(one, |power, _| times(power, power));
        assert_eq!(power, one);
        assert_eq!(times(times(one, x), top), times(one, times(x, top)));
    }

    #[test]
    fn every_processor_comes_to_the_same() {
        let prints = Fingerprints::new(&[5; 16]);
        for chunks in [0, 1, 2, 7, 64] {
            let bytes = data(chunks * CHUNK_BYTES);
            let parts = bytes.as_chunks::<CHUNK_BYTES>().0;
            let expected = add_anywhere(&prints.0, 7, parts);
            assert_eq!(super::add(&prints.0, 7, parts), expected);
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::is_x86_feature_detected as has;
                if has!("pclmulqdq") && has!("sse2") {
                    // SAFETY: it was just looked at; so below.
                    assert_eq!(unsafe { x86::add_one_by_one(&prints.0, 7, parts) }, expected);
                }
                if has!("pclmulqdq") && has!("vpclmulqdq") && has!("avx2") {
                    // SAFETY: see above.
                    assert_eq!(unsafe { x86::add_by_two(&prints.0, 7, parts) }, expected);
                }
            }
            assert_eq!(prints.of(&bytes), add_anywhere(&prints.0, 0, parts) as u64);
        }
    }

    #[test]
    fn contents_of_one_checksum_have_two_fingerprints_that_depend_on_the_secret() {
        let (one, mut other) = (vec![7u8; 8192], vec![7u8; 8192]);
        let multiple = (1u64 << 32 | 0x1edc_6f41).reverse_bits() >> 31;
        for (byte, of) in other[5000..].iter_mut().zip(multiple.to_le_bytes()) {
            *byte ^= of;
        }
        assert_eq!(crc32c(&one), crc32c(&other));
        let prints: Vec<Fingerprints> = (0..8).map(|secret| Fingerprints::new(&[secret; 16])).collect();
        for (at, under) in prints.iter().enumerate() {
            assert_ne!(under.of(&one), under.of(&other));
            assert_ne!(under.of(&one), under.of(&one[..4096]));
            assert_eq!(under.of(&one), Fingerprints::new(&[at as u8; 16]).of(&one));
            assert!(prints[..at].iter().all(|before| before.of(&one) != under.of(&one)));
        }
        assert_ne!(prints[0].of(&[0; 4096]), prints[0].of(&[0; 8192]));
    }

    #[test]
    fn each_bit_and_the_place_of_each_chunk_count() {
        let prints = Fingerprints::new(&[9; 16]);
        let bytes = data(3 * CHUNK_BYTES);
        let mut seen = std::collections::BTreeSet::from([prints.of(&bytes)]);
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(prints.of(&other)), "bit {bit}");
        }
        let mut moved = bytes.clone();
        moved.rotate_left(CHUNK_BYTES);
        assert!(seen.insert(prints.of(&moved)));
    }

    #[test]
    fn parts_have_the_fingerprint_of_what_they_make_up() {
        let (under, bytes) = (Fingerprints::new(&[5; 16]), data(20 * CHUNK_BYTES));
        assert_eq!(under.begin().value(), under.of(&[]));
        for chunks in [1, 3, 4, 20] {
            let mut print = under.begin();
            bytes.chunks(chunks * CHUNK_BYTES).for_each(|part| print.add(part));
            print.add(&[]);
            assert_eq!(print.value(), under.of(&bytes), "parts of {chunks}");
        }
    }
}
