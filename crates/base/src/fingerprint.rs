//! Fingerprints of data under a secret.
//!
//! What is called a CRC by a polynomial that everybody knows is a fingerprint (Rabin, "Fingerprinting by random polynomials",
//! 1981) by one that nobody knows: the rest of the data divided by an irreducible polynomial of degree 64 over GF(2). Two
//! contents of equal length have the same rest only if it divides their difference. Of all such polynomials, nearly 2^58,
//! at most one in 2^44 divides a difference of 64 KiB, and one in 2^40 a difference of 1 MiB, whatever it is; and whoever
//! writes the data cannot know which was drawn. It costs as little as a checksum.

use crate::checksum::keyed_hash;
use crc_fast::{CrcParams, Digest};

/// Makes fingerprints under one secret.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprints {
    params: CrcParams,
}

impl Fingerprints {
    /// Those under a secret: its polynomial is found by trying numbers that follow from it, some forty on the average.
    #[must_use]
    pub fn new(secret: &[u8; 16]) -> Fingerprints {
        let candidates = (0u64..).map(|number| keyed_hash(secret, [&number.to_le_bytes()[..]]) | 1);
        let poly = candidates.into_iter().find(|low| is_irreducible(*low)).expect("one in 32 is irreducible");
        // A start that is not zero tells data from what is longer by zeros in front.
        Fingerprints { params: CrcParams::new("secret", 64, poly, u64::MAX, true, u64::MAX, 0) }
    }

    /// The fingerprint of these bytes.
    #[must_use]
    pub fn of(&self, bytes: &[u8]) -> u64 {
        let mut fingerprint = self.begin();
        fingerprint.add(bytes);
        fingerprint.value()
    }

    /// That of data that comes in parts: none so far.
    #[must_use]
    pub fn begin(&self) -> Fingerprint {
        Fingerprint(Digest::new_with_params(self.params))
    }
}

/// The fingerprint of all parts that there were so far, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(Digest);

impl Fingerprint {
    /// One more part.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// What [`Fingerprints::of`] tells of all of them.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

/// Whether x^64 + `low`, a bit for each power of x, has no divisors: Rabin's test. It divides x^(2^64) - x, and has nothing in
/// common with x^(2^32) - x; 2 is the only prime that divides its degree.
fn is_irreducible(low: u64) -> bool {
    let squared = |power: u64, times: u32| (0..times).fold(power, |power, _| times_modulo(power, power, low));
    let half = squared(2, 32);
    let all = squared(half, 32);
    all == 2 && greatest_divisor(1 << 64 | u128::from(low), u128::from(half ^ 2)) == 1
}

/// The product of two polynomials modulo x^64 + `low`.
fn times_modulo(one: u64, other: u64, low: u64) -> u64 {
    (0..64).rev().fold(0, |product: u64, bit| {
        let doubled = product << 1 ^ if product >> 63 == 1 { low } else { 0 };
        doubled ^ if other >> bit & 1 == 1 { one } else { 0 }
    })
}

/// The greatest common divisor of two polynomials.
fn greatest_divisor(mut one: u128, mut other: u128) -> u128 {
    while other != 0 {
        while one != 0 && one.leading_zeros() <= other.leading_zeros() {
            one ^= other << (other.leading_zeros() - one.leading_zeros());
        }
        (one, other) = (other, one);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc32c;

    #[test]
    fn polynomials_are_known_for_what_they_are() {
        assert!(is_irreducible(0x1b), "x^64 + x^4 + x^3 + x + 1");
        let divided = [0x1a, 0, 1, u64::MAX, 5];
        assert!(divided.into_iter().all(|low| !is_irreducible(low)), "those are no primes");
        // A square, and a product of two of degree 32.
        let square = times_modulo(0x1_0000_008d, 0x1_0000_008d, 0);
        assert!(!is_irreducible(square));
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
    fn parts_have_the_fingerprint_of_what_they_make_up() {
        let (under, bytes) =
            (Fingerprints::new(&[5; 16]), (0..20_000).map(|at| (at / 7) as u8).collect::<Vec<_>>());
        assert_eq!(under.begin().value(), under.of(&[]));
        for size in [1, 100, 4096, 16_384, 20_000] {
            let mut print = under.begin();
            bytes.chunks(size).for_each(|part| print.add(part));
            print.add(&[]);
            assert_eq!(print.value(), under.of(&bytes), "parts of {size}");
        }
    }

    #[test]
    fn a_fingerprint_is_the_rest_of_a_division() {
        // Of the polynomial's own bits nothing is left but what its start brings, which is the same for zeros of that length.
        let under = Fingerprints::new(&[3; 16]);
        let mut bytes = [0u8; 16];
        // In a reflected message the first bit stands for the highest power.
        bytes[..8].copy_from_slice(&(under.params.poly.reverse_bits() << 1 | 1).to_le_bytes());
        bytes[8] = (under.params.poly.reverse_bits() >> 63) as u8;
        assert_eq!(under.of(&bytes), under.of(&[0; 16]));
    }
}
