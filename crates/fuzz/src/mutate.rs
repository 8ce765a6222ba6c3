//! Inputs that are nearly valid: most of what they say is right, so that what is wrong is looked at.

use sim::random::Random;

/// Where headers are: half of all changes are among the first of so many bytes.
const HEAD_BYTES: usize = 160;
/// The most bytes that are taken from one place to another.
const PIECE_BYTES_MAX: u64 = 300;
/// Numbers at which bounds are wont to be.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    4,
    16,
    64,
    0x7f,
    0xff,
    512,
    1024,
    4096,
    0x7fff,
    0xffff,
    4 << 20,
    0x7fff_ffff,
    0x7fff_ffff_ffff_ffff,
];

/// Changes some places of an input, which has at most `bytes_max` bytes then. What comes from elsewhere is of `other`.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8], bytes_max: usize) {
    // Of many changes only the first that is refused is seen.
    for _ in 0..random.choose(&[1, 1, 1, 1, 2, 2, 3, 6]) {
        if bytes.is_empty() {
            bytes.push(random.next_u64() as u8);
        }
        match random.below(16) {
            0..=2 => {
                let at = place(random, bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            3..=8 => change_number(random, bytes),
            9 => {
                let at = place(random, bytes.len());
                bytes[at] = random.next_u64() as u8;
            }
            10 => {
                let piece = piece_of(random, bytes.len());
                bytes[piece].fill(random.choose(&[0, 0xff]));
            }
            11 => {
                let piece = piece_of(random, bytes.len());
                bytes.drain(piece);
            }
            12 => {
                let length = random.index(bytes.len() + 1);
                bytes.truncate(length);
            }
            13 => {
                let piece = bytes[piece_of(random, bytes.len())].to_vec();
                for _ in 0..random.between(1, 4) {
                    insert(random, bytes, &piece);
                }
            }
            14 if !other.is_empty() => {
                let piece = &other[piece_of(random, other.len())];
                let at = place(random, bytes.len());
                let count = piece.len().min(bytes.len() - at);
                bytes[at..at + count].copy_from_slice(&piece[..count]);
            }
            _ if !other.is_empty() => {
                let piece = &other[piece_of(random, other.len())];
                insert(random, bytes, piece);
            }
            _ => bytes.push(random.next_u64() as u8),
        }
    }
    bytes.truncate(bytes_max);
}

/// An index below `length`, which is not 0.
fn place(random: &mut Random, length: usize) -> usize {
    let length = if random.one_in(2) { length.min(HEAD_BYTES) } else { length };
    random.index(length)
}

/// A part of what has `length` bytes, which is not 0.
fn piece_of(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let start = place(random, length);
    let count_max = random.choose(&[4, 16, 64, PIECE_BYTES_MAX]);
    let count = 1 + random.below(count_max) as usize;
    start..length.min(start + count)
}

fn insert(random: &mut Random, bytes: &mut Vec<u8>, piece: &[u8]) {
    let at = random.index(bytes.len() + 1);
    bytes.splice(at..at, piece.iter().copied());
}

/// Has a number say something else: a little more or less, or what is at a bound.
fn change_number(random: &mut Random, bytes: &mut [u8]) {
    let width = random.choose(&[1, 2, 4, 4, 8, 8]);
    let Some(last) = bytes.len().checked_sub(width) else { return };
    let at = place(random, last + 1);
    // Numbers are mostly aligned behind the byte that says what is put right.
    let aligned = 1 + at / width * width;
    let at = if random.one_in(4) || aligned > last { at } else { aligned };
    let is_big_endian = random.one_in(4);
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    if is_big_endian {
        word[..width].reverse();
    }
    let now = u64::from_le_bytes(word);
    let number = match random.below(6) {
        0 => now.wrapping_add(random.between(1, 8)),
        1 => now.wrapping_sub(random.between(1, 8)),
        2 => random.choose(&NUMBERS),
        3 => u64::MAX,
        4 => 1 << random.below(64),
        _ => random.next_u64() >> random.below(64),
    };
    word = number.to_le_bytes();
    if is_big_endian {
        word[..width].reverse();
    }
    bytes[at..at + width].copy_from_slice(&word[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_follow_from_the_seed_and_keep_to_the_bound() {
        let example = [7; 200];
        let run = |seed| {
            let mut random = Random::new(seed);
            let mut all = Vec::new();
            for _ in 0..2000 {
                let mut bytes = example.to_vec();
                mutate(&mut random, &mut bytes, &[9; 50], 256);
                assert!(bytes.len() <= 256);
                all.push(bytes);
            }
            all
        };
        let all = run(1);
        assert_eq!(all, run(1));
        assert_ne!(all, run(2));
        let is_changed = |bytes: &&Vec<u8>| bytes[..] != example;
        assert!(all.iter().filter(is_changed).count() > 1900, "few changes change nothing");
        assert!(all.iter().any(|bytes| bytes.len() > 200) && all.iter().any(|bytes| bytes.len() < 100));
    }

    #[test]
    fn nothing_is_too_short_to_be_changed() {
        let mut random = Random::new(3);
        let mut bytes = Vec::new();
        for _ in 0..10_000 {
            mutate(&mut random, &mut bytes, &[], 5);
        }
        assert!(bytes.len() <= 5);
    }
}
