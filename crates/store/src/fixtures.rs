//! What an earlier program wrote to a drive, byte for byte. `fixtures/README.md` says which, and how.
//!
//! A test that fails here says that drives in use would be read differently from now on. Then the format is another one:
//! [`FORMAT_VERSION`](crate::layout::FORMAT_VERSION) must grow, docs/formats/ be changed, and a store of the old version be refused
//! or read.

use crate::batch::{header_of, records};
use crate::index::ObjectIndex;
use crate::layout::{
    BatchHeader, FORMAT_OLDEST, Record, RecordKind, RootEntry, RootGroup, RootHeader, RootObject, Superblock,
};
use crate::superblock;
use base::{BLOCK_BYTES, Epoch, Fingerprints, LayerId, LogEntry, ObjectKey, PgId, PoolId, Sequence, crc32c};
use zerocopy::{FromBytes, IntoBytes};

const SUPERBLOCK: &[u8] = include_bytes!("../fixtures/superblock.bin");
const BATCH: &[u8] = include_bytes!("../fixtures/batch.bin");
const PAGE: &[u8] = include_bytes!("../fixtures/page.bin");
const ROOT: &[u8] = include_bytes!("../fixtures/root.bin");

fn found() -> Superblock {
    Superblock::read_from_bytes(SUPERBLOCK).unwrap()
}

fn key(index: u32, object: u32) -> ObjectKey {
    ObjectKey { pg: PgId { pool: PoolId(1), index }, layer: LayerId(1), object }
}

#[test]
fn a_superblock_of_format_6() {
    let found = found();
    assert!(found.is_intact());
    assert_eq!((found.version.get(), FORMAT_OLDEST), (6, 6));
    let identity = superblock::identity(&found);
    assert_eq!(identity.cluster.to_string(), "505e09b8-d4ae-4dd2-8a9f-da4fb4f89d44");
    assert_eq!(identity.osd_uuid.to_string(), "9f86cdf2-5b94-478a-b683-ed7308d223c9");
    assert_eq!(
        (identity.osd.0, found.segment_bytes.get(), found.device_bytes.get()),
        (0, 4 << 20, 256 << 20)
    );
    assert_eq!((found.mount.get(), found.sequence.get(), found.covers.get()), (1, 2, 396));
    let root = found.root[0];
    assert_eq!((found.root_pieces.get(), root.location.get(), root.bytes.get()), (1, 2066, 34_712));
    assert_eq!(found.secret[..4], [0x18, 0xc7, 0x1c, 0x46]);
    assert_eq!((root.crc32c.get(), crc32c(ROOT)), (0x6a48_a67c, 0x6a48_a67c));
}

#[test]
fn a_batch_of_format_6() {
    let block = &BATCH[..BLOCK_BYTES];
    let header = header_of(block, &Fingerprints::new(&found().secret)).expect("it is one of that drive");
    let BatchHeader { sequence, mount, durable_through, mount_begin, .. } = header;
    assert_eq!(header.fingerprint.get(), 7_328_574_751_267_362_899);
    assert_eq!([sequence, mount, durable_through, mount_begin].map(|number| number.get()), [332, 1, 331, 1]);
    assert_eq!((header.next_segment.map(|next| next.get()), header.stream), ([2, 3], 0));
    assert_eq!((header.record_count.get(), header.data_blocks.get()), (3, 2));
    let print = Fingerprints::new(&found().secret).of(&BATCH[BLOCK_BYTES..]);
    assert_eq!(header.data_fingerprint.get(), print);
    let found: Vec<_> = records(block, &header).collect();
    let said = |record: &Record| {
        let (epoch, sequence) = record.position();
        (record.key(), record.first_block.get(), record.block_count.get(), epoch, sequence, record.origin())
    };
    assert_eq!(
        [0, 1, 2].map(|index| (found[index].kind, said(&found[index].record))),
        [
            (RecordKind::Write, (key(9, 8), 908, 1, Epoch(2), Sequence(27), 0x3d3a_342b_8e34_8ed1)),
            (RecordKind::Zero, (key(5, 4), 792, 1, Epoch(2), Sequence(26), 0x282b_4c19_7404_b2fb)),
            (RecordKind::Write, (key(5, 4), 948, 1, Epoch(2), Sequence(27), 0x135f_81a8_1c34_a3f6)),
        ]
    );
    // The writes' blocks, the first right behind the header, and their checksums.
    for (index, block) in [(0, 1), (2, 2)] {
        let data = &BATCH[block * BLOCK_BYTES..][..BLOCK_BYTES];
        assert_eq!((found[index].data_index as usize, found[index].tail.len()), (block - 1, 1));
        assert_eq!(found[index].tail[0].get(), crc32c(data));
    }
    assert_eq!((found[0].tail[0].get(), found[2].tail[0].get()), (0xffa7_d3f9, 0x4156_0762));
}

#[test]
fn a_checkpoint_of_format_6() {
    let (header, rest) = RootHeader::read_from_prefix(ROOT).unwrap();
    let end = header.end;
    assert_eq!((end.sequence.get(), end.mount.get()), (396, 1));
    let cursors = end.cursors.map(|cursor| (cursor.segment.get(), cursor.block.get()));
    assert_eq!((cursors, end.next_segment.map(|next| next.get())), ([(0, 1009), (1, 0)], [2, 3]));
    let (objects, mut rest) = <[RootObject]>::ref_from_prefix_with_elems(rest, 16).unwrap();
    assert_eq!((header.object_count.get(), header.group_count.get()), (16, 64));
    let object = objects[0];
    assert_eq!(
        (object.pool.get(), object.pg_index.get(), object.layer.get(), object.object.get()),
        (1, 1, 1, 0)
    );
    let page = object.page;
    assert_eq!((page.location.get(), page.bytes.get() as usize), (2049, PAGE.len()));
    assert_eq!((page.crc32c.get(), crc32c(PAGE)), (1_976_445_472, 1_976_445_472));
    let mut groups = Vec::new();
    for _ in 0..header.group_count.get() {
        let (group, after) = RootGroup::read_from_prefix(rest).unwrap();
        let count = group.entry_count.get() as usize;
        let (entries, after) = <[RootEntry]>::ref_from_prefix_with_elems(after, count).unwrap();
        groups.push((group, entries));
        rest = after;
    }
    assert!(rest.is_empty());
    let (group, entries) = groups[58];
    assert_eq!((group.pool.get(), group.pg_index.get(), group.log_begins.get()), (1, 1, 0));
    // Whole, and of 64 groups.
    assert_eq!((group.flags.get(), entries.len()), (64 << 8, 54));
    assert_eq!((group.log_started.get(), group.doubt_count.get(), group.held_count.get()), (0, 0, 0));
    for entry in entries {
        assert_eq!(RootEntry::from(&LogEntry::from(entry)).as_bytes(), entry.as_bytes());
    }
    let entry = entries[53];
    assert_eq!(
        (entry.epoch.get(), entry.sequence.get(), entry.layer.get(), entry.object.get()),
        (2, 54, 1, 0)
    );
    assert_eq!((entry.first_block.get(), entry.block_count.get()), (676, 1));
    assert_eq!(entry.origin.get(), 481_546_832_825_712_810);
    let page = ObjectIndex::from_page(PAGE).expect("its size fits its bits");
    assert_eq!(page.entries().len(), 17);
    let at = |block| page.get(block).map(|entry| (entry.location, entry.crc32c, page.changed(block)));
    let changed = |sequence| Some(Sequence(sequence));
    assert_eq!(at(0), Some((1708, 1_371_770_432, changed(33))));
    assert_eq!(at(1), None);
    assert_eq!(at(52), Some((1599, 3_896_946_416, changed(23))));
}

#[test]
fn what_is_written_today_has_the_same_bytes() {
    assert_eq!(found().sealed().as_bytes(), SUPERBLOCK);
    let mut page = Vec::new();
    ObjectIndex::from_page(PAGE).unwrap().to_page(&mut page);
    assert_eq!(page, PAGE);
}
