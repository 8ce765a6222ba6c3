//! What simulated clients write: blocks whose bytes follow from who wrote them and where, so that a checker compares what it
//! finds with what was written, byte by byte, and keeps no copy. And blocks that are as hard on a store and on replication as
//! a tenant can make them: see [`Contents`].

use crate::collide::{MULTIPLE_BYTES, ending, multiple_of_both};
use crate::lookalike;
use crate::machine::identity_of;
use crate::random::Random;
use base::hash::mix;
use base::{BLOCK_BYTES, SECTOR_BYTES, ZERO_BLOCK_CRC32C, crc32c};

/// Where a block belongs. Its bytes tell it: what went astray is not taken for what belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of its volume, or of whatever else is cut into blocks.
    pub volume: u64,
    /// The number of the block in that.
    pub block: u64,
}

impl Place {
    fn word(self) -> u64 {
        self.volume << 48 | self.block
    }
}

/// What all content of a life is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// No two blocks have a checksum in common, but for chance. Of any size.
    #[default]
    Plain,
    /// Whole blocks that a CRC-32C does not tell from each other.
    Colliding(Collision),
    /// Whole blocks, most of which look like what stores write for themselves.
    Lookalike {
        /// The stores of so many drives, of those that [`identity_of`] names.
        drives: u32,
    },
}

/// Which blocks have equal checksums, and which checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collision {
    /// The CRC-32C of every block. Without: that of all versions of a block is one, and each block has another.
    pub crc32c: Option<u32>,
    /// Versions of a block have one CRC-64/NVME too, and so has each mixture of their sectors: they differ by multiples of the
    /// divisors of both CRCs. Otherwise they differ all over, and end in 4 bytes that make their CRC-32C right, as some blocks of
    /// file systems do.
    pub of_both: bool,
}

/// Of a hundred lives, how many have plain content.
const PLAIN_PERCENT: u64 = 45;
/// And in how many contents collide; in the others they look like the store's own.
const COLLIDING_PERCENT: u64 = 35;

/// Where look-alikes tell whose they are: in their last bytes, behind whatever they look like.
const TAG_BYTES: usize = 24;

impl Contents {
    /// Draws one for clients that write whole blocks, to the stores of so many drives.
    #[must_use]
    pub fn draw(random: &mut Random, drives: u32) -> Contents {
        let number = random.below(100);
        if number < PLAIN_PERCENT {
            Contents::Plain
        } else if number < PLAIN_PERCENT + COLLIDING_PERCENT {
            Contents::Colliding(Collision::draw(random))
        } else {
            Contents::Lookalike { drives }
        }
    }

    /// Whether blocks of equal checksums are not rare.
    #[must_use]
    pub fn collide(self) -> bool {
        matches!(self, Contents::Colliding(_))
    }

    /// Makes what `author`, a number from 1, writes to a place.
    ///
    /// # Panics
    /// If these contents are whole blocks, and `bytes` is none.
    pub fn fill(self, author: u64, place: Place, bytes: &mut [u8]) {
        match self {
            Contents::Plain => fill_plainly(author, place, bytes),
            Contents::Colliding(collision) => collision.fill(author, place, bytes),
            Contents::Lookalike { drives } => fill_alike(drives, author, place, bytes),
        }
    }

    /// Who says to have written a block or a part of one, whether that is true or not.
    #[must_use]
    pub fn author_of(self, bytes: &[u8]) -> u64 {
        let at = match self {
            Contents::Plain | Contents::Colliding(_) => 0,
            Contents::Lookalike { .. } => bytes.len() - TAG_BYTES,
        };
        let number = bytes[at..at + 8].try_into().expect("8 bytes of a block are 8 bytes");
        u64::from_le_bytes(number)
    }

    /// Whether these are the bytes, all of them, that `author` wrote to a place.
    #[must_use]
    pub fn is_by(self, author: u64, place: Place, bytes: &[u8]) -> bool {
        let mut expected = [0; BLOCK_BYTES];
        let expected = &mut expected[..bytes.len()];
        self.fill(author, place, expected);
        expected == bytes
    }
}

/// Every sector says who wrote it, where it belongs, and which of the block it is.
fn fill_plainly(author: u64, place: Place, bytes: &mut [u8]) {
    for (index, sector) in (0u64..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        sector[..8].copy_from_slice(&author.to_le_bytes());
        sector[8..16].copy_from_slice(&place.word().to_le_bytes());
        sector[16..24].copy_from_slice(&index.to_le_bytes());
        sector[24..].fill(author as u8 ^ 0x5a);
    }
}

impl Collision {
    /// Draws one.
    #[must_use]
    pub fn draw(random: &mut Random) -> Collision {
        let any = random.next_u64() as u32;
        let crc32c = match random.below(10) {
            0..=6 => None,
            7 | 8 => Some(any),
            // As blocks have that are not there, or that a drive has never written.
            _ => Some(ZERO_BLOCK_CRC32C),
        };
        Collision { crc32c, of_both: random.percent(50) }
    }

    /// The CRC-32C of what is written to a place.
    #[must_use]
    pub fn crc32c_of(self, place: Place) -> u32 {
        self.crc32c.unwrap_or(mix(place.word()) as u32)
    }

    fn fill(self, author: u64, place: Place, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), BLOCK_BYTES, "what collides are whole blocks");
        if self.of_both {
            // What all versions have in common.
            fill_plainly(0, place, bytes);
        } else {
            fill_plainly(author, place, bytes);
        }
        let (front, end) = bytes.split_at_mut(BLOCK_BYTES - 4);
        end.copy_from_slice(&ending(crc32c(front), self.crc32c_of(place)));
        if self.of_both {
            let multiple = multiple_of_both(author);
            for sector in bytes.chunks_exact_mut(SECTOR_BYTES) {
                for (byte, more) in sector.iter_mut().zip(multiple) {
                    *byte ^= more;
                }
            }
        }
    }
}
const _: () = assert!(MULTIPLE_BYTES < SECTOR_BYTES);

/// Most are structures of one of the stores, the others plain. All end in a tag.
fn fill_alike(drives: u32, author: u64, place: Place, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), BLOCK_BYTES, "structures of a store are whole blocks");
    let mut random = Random::new(mix(author).wrapping_add(place.word()));
    fill_plainly(author, place, bytes);
    bytes[BLOCK_BYTES - TAG_BYTES..].copy_from_slice(&tag(author, place));
    if random.percent(75) {
        let known = identity_of(random.index(drives as usize));
        lookalike::fill(&known, &mut random, bytes, TAG_BYTES);
    }
}

fn tag(author: u64, place: Place) -> [u8; TAG_BYTES] {
    let mut tag = [0; TAG_BYTES];
    tag[..8].copy_from_slice(&author.to_le_bytes());
    tag[8..16].copy_from_slice(&place.word().to_le_bytes());
    // What a block ends in that was not torn.
    tag[16..].copy_from_slice(&mix(author ^ place.word()).to_le_bytes());
    tag
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn colliding(crc32c: Option<u32>) -> [Contents; 2] {
        [false, true].map(|of_both| Contents::Colliding(Collision { crc32c, of_both }))
    }

    fn block(contents: Contents, author: u64, place: Place) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        contents.fill(author, place, &mut bytes);
        bytes
    }

    const HERE: Place = Place { volume: 1, block: 5 };
    const THERE: Place = Place { volume: 1, block: 6 };

    #[test]
    fn all_versions_of_a_block_have_the_crc32c_of_their_family() {
        for contents in colliding(None) {
            let Contents::Colliding(collision) = contents else { unreachable!("it was made so") };
            let versions = [1, 2, 255, 256, u64::MAX].map(|author| block(contents, author, HERE));
            assert_eq!(BTreeSet::from(versions).len(), 5, "they differ");
            for version in versions {
                assert_eq!(crc32c(&version), collision.crc32c_of(HERE), "{contents:?}");
            }
            assert_ne!(crc32c(&block(contents, 1, THERE)), collision.crc32c_of(HERE), "another family");
        }
        for contents in colliding(Some(ZERO_BLOCK_CRC32C)) {
            for place in [HERE, THERE] {
                assert_eq!(crc32c(&block(contents, 7, place)), ZERO_BLOCK_CRC32C);
            }
        }
    }

    #[test]
    fn sectors_of_different_versions_make_no_other_checksum_where_both_collide() {
        let [_, contents] = colliding(None);
        let (mut one, other) = (block(contents, 3, HERE), block(contents, 4, HERE));
        let checksum = crc32c(&one);
        one[SECTOR_BYTES..3 * SECTOR_BYTES].copy_from_slice(&other[SECTOR_BYTES..3 * SECTOR_BYTES]);
        assert_eq!(crc32c(&one), checksum);
        assert!(!contents.is_by(3, HERE, &one) && !contents.is_by(4, HERE, &one));
    }

    #[test]
    fn bytes_tell_who_wrote_them_and_where() {
        let all = [Contents::Plain, Contents::Lookalike { drives: 3 }].into_iter();
        for contents in all.chain(colliding(None)).chain(colliding(Some(3))) {
            for author in [1, 77, 1 << 40] {
                let bytes = block(contents, author, HERE);
                assert_eq!(contents.author_of(&bytes), author, "{contents:?}");
                assert!(contents.is_by(author, HERE, &bytes));
                assert!(!contents.is_by(author, THERE, &bytes) && !contents.is_by(author + 1, HERE, &bytes));
                for at in [40, 2000, BLOCK_BYTES - 1] {
                    let mut rotten = bytes;
                    rotten[at] ^= 1;
                    assert!(!contents.is_by(author, HERE, &rotten), "{contents:?}");
                }
            }
        }
        let mut sector = [0; SECTOR_BYTES];
        Contents::Plain.fill(9, HERE, &mut sector);
        assert!(Contents::Plain.is_by(9, HERE, &sector) && Contents::Plain.author_of(&sector) == 9);
    }

    #[test]
    fn every_kind_is_drawn() {
        let mut random = Random::new(1);
        let drawn: Vec<Contents> = (0..200).map(|_| Contents::draw(&mut random, 3)).collect();
        let plain = drawn.iter().filter(|one| **one == Contents::Plain).count();
        let colliding = drawn.iter().filter(|one| one.collide()).count();
        assert!((60..120).contains(&plain) && (45..95).contains(&colliding), "{plain}, {colliding}");
        assert!(drawn.contains(&Contents::Lookalike { drives: 3 }));
        for wanted in [false, true] {
            let is_it = |one: &Contents| matches!(one, Contents::Colliding(one) if one.of_both == wanted);
            assert!(drawn.iter().any(is_it));
        }
    }
}
