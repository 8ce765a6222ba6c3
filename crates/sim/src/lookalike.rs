//! Blocks of clients that look like what a store writes for itself: headers of batches, superblocks, pages and roots of
//! checkpoints. Their checksums are right, and their fields say what no store ever wrote, or what it may write next.
//!
//! A store must take none of them for its own, whether they lie where an earlier use of a segment left them or where a write
//! went astray. What keeps it from that is its formatting's secret, of which clients know nothing: see [`guess`].

use crate::random::Random;
use base::{BLOCK_BYTES, Fingerprints, crc32c};
use store::Identity;
use store::layout::{
    BatchHeader, Cursor, FORMAT_VERSION, LogEnd, NO_SEGMENT, PageHeader, Record, RootHeader, RootObject,
    SUPERBLOCK_MAGIC, Secret, Superblock,
};
use store::testing::seal_batch;
use zerocopy::{Immutable, IntoBytes};

/// What a client takes for the secret of a formatting. It reads the map, so the ids are all that it knows; a format whose
/// batches were known by those would let it write some.
#[must_use]
pub fn guess(known: &Identity) -> Secret {
    known.osd_uuid.to_bytes()
}

/// Fills a block with one of them, and with noise where that has nothing. The last `kept_bytes` stay as they are. The block
/// is the same for the same state of `random`.
///
/// # Panics
/// If it is not a whole block, or nearly all of it is kept.
pub fn fill(known: &Identity, random: &mut Random, bytes: &mut [u8], kept_bytes: usize) {
    assert!(bytes.len() == BLOCK_BYTES && kept_bytes <= 256, "structures of a store are whole blocks");
    let end = BLOCK_BYTES - kept_bytes;
    bytes[..end].fill(0);
    match random.below(8) {
        0..=4 => {
            header(random, &mut bytes[..end]);
            seal_batch(bytes, &Fingerprints::new(&guess(known)));
            return;
        }
        5 => {
            put(&mut bytes[..end], 0, &superblock(known, random));
        }
        6 => page(random, &mut bytes[..end]),
        _ => root(random, &mut bytes[..end]),
    }
    // Pages and roots have theirs elsewhere; of a superblock it is the first field.
    let checksum = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// Puts as much of a structure as there is room for, and answers where it ends.
fn put<T: IntoBytes + Immutable>(bytes: &mut [u8], at: usize, what: &T) -> usize {
    let what = what.as_bytes();
    let end = (at + what.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&what[..end - at]);
    end
}

/// A sequence that comes soon, that is far ahead, or that there can never be.
fn some_sequence(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => u64::MAX,
        1 => 1 << random.below(64),
        _ => random.between(1, 4000),
    }
}

/// A number that a field of a record may have, or just may not.
fn some_count(random: &mut Random) -> u16 {
    random.choose(&[0, 1, 2, 16, 1023, 1024, 1025, u16::MAX])
}

fn header(random: &mut Random, bytes: &mut [u8]) {
    let sequence = some_sequence(random);
    let segments = [0, 1, 2, 7, NO_SEGMENT - 1, NO_SEGMENT];
    let header = BatchHeader {
        sequence: sequence.into(),
        mount: random.choose(&[0, 1, 2, 3, 5, 9, u64::MAX]).into(),
        durable_through: random.choose(&[0, 1, sequence - 1, sequence, u64::MAX]).into(),
        next_segment: [random.choose(&segments).into(), random.choose(&segments).into()],
        stream: random.choose(&[0, 0, 0, 1, 1, 2, u8::MAX]),
        record_count: random.choose(&[0, 1, 1, 2, 3, 80, u16::MAX]).into(),
        data_blocks: random.choose(&[0, 0, 1, 1, 2, 5, 127, u32::MAX]).into(),
        mount_begin: random.choose(&[0, 1, sequence, u64::MAX]).into(),
        ..BatchHeader::default()
    };
    let mut at = put(bytes, 0, &header);
    for _ in 0..random.below(4) {
        let is_known = random.percent(80);
        let record = Record {
            kind: if is_known { random.between(1, 11) as u8 } else { random.next_u64() as u8 },
            flags: random.choose(&[0, 0, 0, 1, u8::MAX]),
            block_count: some_count(random).into(),
            first_block: some_count(random).into(),
            pool: random.choose(&[1, 1, 1, u32::MAX]).into(),
            pg_index: random.choose(&[0, 1, 2, u32::MAX]).into(),
            layer: random.choose(&[1, 2, u64::MAX]).into(),
            object: random.choose(&[0, 1, 2, u32::MAX]).into(),
            epoch: random.choose(&[0, 1, 7, u32::MAX]).into(),
            sequence: some_sequence(random).into(),
            bytes: random.choose(&[0, 1, 4096, u32::MAX]).into(),
            crc32c: (random.next_u64() as u32).into(),
            ..Record::default()
        };
        at = put(bytes, at, &record);
        let words = random.below(9) as usize * 4;
        at = (at + words).min(bytes.len());
    }
}

fn superblock(known: &Identity, random: &mut Random) -> Superblock {
    Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: FORMAT_VERSION.into(),
        cluster: known.cluster.to_bytes(),
        osd_uuid: known.osd_uuid.to_bytes(),
        osd: known.osd.0.into(),
        segment_bytes: random.choose(&[0, 1, 4096, 512 << 10, u32::MAX]).into(),
        device_bytes: random.choose(&[0, 16 << 20, u64::MAX]).into(),
        mount: random.choose(&[0, 1, u64::MAX]).into(),
        sequence: u64::MAX.into(),
        covers: random.choose(&[0, u64::MAX]).into(),
        root_pieces: random.choose(&[0, 1, 300, 301, u32::MAX]).into(),
        secret: guess(known),
        ..Superblock::empty()
    }
}

/// A page of an object whose blocks lie anywhere.
fn page(random: &mut Random, bytes: &mut [u8]) {
    let header = PageHeader {
        bits: std::array::from_fn(|_| random.next_u64().into()),
        base: some_sequence(random).into(),
        shift: random.choose(&[0, 1, 63, 64, u8::MAX]),
        ..PageHeader::default()
    };
    let at = put(bytes, 0, &header);
    for word in bytes[at..].chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
}

/// The start of a root that says that there is more than any drive has.
fn root(random: &mut Random, bytes: &mut [u8]) {
    let cursor = |random: &mut Random| Cursor {
        segment: random.choose(&[0, 1, NO_SEGMENT]).into(),
        block: random.choose(&[0, 1, u32::MAX]).into(),
    };
    let end = LogEnd {
        sequence: some_sequence(random).into(),
        mount: random.choose(&[0, 1, u64::MAX]).into(),
        cursors: [cursor(random), cursor(random)],
        next_segment: [0u32.into(), NO_SEGMENT.into()],
    };
    let header = RootHeader {
        end,
        object_count: random.choose(&[0, 1, 1 << 60, u64::MAX]).into(),
        group_count: random.choose(&[0, 1, u64::MAX]).into(),
    };
    let mut at = put(bytes, 0, &header);
    for object in 0..random.below(20) {
        let object = RootObject {
            pool: 1u32.into(),
            layer: 1u64.into(),
            object: (object as u32).into(),
            ..RootObject::default()
        };
        at = put(bytes, at, &object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::identity_of;
    use store::testing::{BatchRead, read_batch};
    use zerocopy::FromBytes;

    fn known() -> Identity {
        identity_of(1)
    }

    fn block(seed: u64) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0xee; BLOCK_BYTES];
        fill(&known(), &mut Random::new(seed), &mut bytes, 32);
        bytes
    }

    #[test]
    fn they_have_the_checksums_secrets_and_magics_of_what_they_look_like() {
        let (mut headers, mut superblocks, mut others) = (0, 0, 0);
        for seed in 0..200 {
            let bytes = block(seed);
            assert_eq!(bytes[BLOCK_BYTES - 32..], [0xee; 32], "what is kept");
            let (header, _) = BatchHeader::read_from_prefix(&bytes).unwrap();
            let superblock = Superblock::read_from_bytes(&bytes).unwrap();
            if header.secret == guess(&known()) {
                let read = read_batch(&bytes, &Fingerprints::new(&header.secret));
                assert_ne!(read, BatchRead::Foreign);
                headers += 1;
                continue;
            }
            assert_eq!(bytes[..4], crc32c(&bytes[4..]).to_le_bytes());
            if superblock.magic == SUPERBLOCK_MAGIC {
                assert!(superblock.is_intact());
                superblocks += 1;
            } else {
                others += 1;
            }
        }
        assert!(headers > 90 && superblocks > 10 && others > 20, "{headers}, {superblocks}, {others}");
    }

    #[test]
    fn one_state_of_chance_makes_one_block() {
        assert_eq!(block(7), block(7));
        assert_ne!(block(7), block(8));
    }
}
