//! What an earlier program wrote to a drive, byte for byte. `fixtures/README.md` says which, and how.
//!
//! A test that fails here says that drives in use would be read differently from now on. Then the format is another one:
//! [`FORMAT_VERSION`] must grow, docs/formats/ be changed, and a store of the old version be refused or read.

use crate::batch::{header_of, records};
use crate::index::ObjectIndex;
use crate::layout::{
    BATCH_MAGIC, BatchHeader, FORMAT_VERSION, Record, RecordKind, RootEntry, RootGroup, RootHeader,
    RootObject, Superblock,
};
use crate::superblock;
use base::{BLOCK_BYTES, Epoch, ObjectKey, PgId, PoolId, Sequence, VolumeId, crc32c};
use zerocopy::{FromBytes, IntoBytes};

const SUPERBLOCK: &[u8] = include_bytes!("../fixtures/superblock.bin");
const BATCH: &[u8] = include_bytes!("../fixtures/batch.bin");
const PAGE: &[u8] = include_bytes!("../fixtures/page.bin");
const ROOT: &[u8] = include_bytes!("../fixtures/root.bin");

fn found() -> Superblock {
    Superblock::read_from_bytes(SUPERBLOCK).unwrap()
}

fn key(index: u32, object: u32) -> ObjectKey {
    ObjectKey { pg: PgId { pool: PoolId(1), index }, volume: VolumeId(1), object }
}

#[test]
fn a_superblock_of_format_3() {
    let found = found();
    assert!(found.is_intact());
    assert_eq!((found.version.get(), FORMAT_VERSION), (3, 3));
    let identity = superblock::identity(&found);
    assert_eq!(identity.cluster.to_string(), "05b4df8c-2380-4e66-a861-719e127f82c4");
    assert_eq!(identity.osd_uuid.to_string(), "66b20155-14fe-470d-885f-d37e073dcb8b");
    assert_eq!(
        (identity.osd.0, found.segment_bytes.get(), found.device_bytes.get()),
        (0, 4 << 20, 256 << 20)
    );
    assert_eq!((found.mount.get(), found.sequence.get(), found.covers.get()), (1, 2, 507));
    let root = found.root[0];
    assert_eq!((found.root_pieces.get(), root.location.get(), root.bytes.get()), (1, 2066, 32_664));
    assert_eq!((root.crc32c.get(), crc32c(ROOT)), (0x2af3_aa08, 0x2af3_aa08));
    assert_eq!(superblock::salt(&found), 11_291_985_527_597_893_845);
}

#[test]
fn a_batch_of_format_3() {
    let block = &BATCH[..BLOCK_BYTES];
    let header = header_of(block, superblock::salt(&found())).expect("it is one of that drive");
    let BatchHeader { magic, sequence, mount, durable_through, mount_begin, .. } = header;
    assert_eq!((header.crc32c.get(), magic.get()), (4_201_071_263, BATCH_MAGIC));
    assert_eq!([sequence, mount, durable_through, mount_begin].map(|number| number.get()), [327, 1, 326, 1]);
    assert_eq!((header.next_segment.map(|next| next.get()), header.stream), ([2, 3], 0));
    assert_eq!((header.record_count.get(), header.data_blocks.get()), (3, 2));
    let found: Vec<_> = records(block, &header).collect();
    let said = |record: &Record| {
        let (epoch, sequence) = record.position();
        (record.key(), record.first_block.get(), record.block_count.get(), epoch, sequence, record.origin())
    };
    assert_eq!(
        [0, 1, 2].map(|index| (found[index].kind, said(&found[index].record))),
        [
            (RecordKind::Write, (key(12, 11), 280, 1, Epoch(2), Sequence(29), 0x254d_d449_48e6_f7d5)),
            (RecordKind::Zero, (key(16, 15), 188, 1, Epoch(2), Sequence(6), 0x12fc_fe9a_e1e1_d8d7)),
            (RecordKind::Write, (key(7, 6), 460, 1, Epoch(2), Sequence(30), 0x371f_32ba_626f_ce4b)),
        ]
    );
    // The writes' blocks, the first right behind the header, and their checksums.
    for (index, block) in [(0, 1), (2, 2)] {
        let data = &BATCH[block * BLOCK_BYTES..][..BLOCK_BYTES];
        assert_eq!((found[index].data_index as usize, found[index].tail.len()), (block - 1, 1));
        assert_eq!(found[index].tail[0].get(), crc32c(data));
    }
    assert_eq!((found[0].tail[0].get(), found[2].tail[0].get()), (0x44df_5818, 0x1c6d_9cdd));
}

#[test]
fn a_checkpoint_of_format_3() {
    let (header, rest) = RootHeader::read_from_prefix(ROOT).unwrap();
    let end = header.end;
    assert_eq!((end.sequence.get(), end.mount.get()), (507, 1));
    let cursors = end.cursors.map(|cursor| (cursor.segment.get(), cursor.block.get()));
    assert_eq!((cursors, end.next_segment.map(|next| next.get())), ([(2, 96), (1, 0)], [4, 3]));
    let (objects, mut rest) = <[RootObject]>::ref_from_prefix_with_elems(rest, 16).unwrap();
    assert_eq!((header.object_count.get(), header.group_count.get()), (16, 64));
    let object = objects[0];
    assert_eq!(
        (object.pool.get(), object.pg_index.get(), object.volume.get(), object.object.get()),
        (1, 1, 1, 0)
    );
    let page = object.page;
    assert_eq!((page.location.get(), page.bytes.get() as usize), (2049, PAGE.len()));
    assert_eq!((page.crc32c.get(), crc32c(PAGE)), (442_438_198, 442_438_198));
    let mut groups = Vec::new();
    for _ in 0..header.group_count.get() {
        let (group, after) = RootGroup::read_from_prefix(rest).unwrap();
        let count = group.entry_count.get() as usize;
        let (entries, after) = <[RootEntry]>::ref_from_prefix_with_elems(after, count).unwrap();
        groups.push((group, entries));
        rest = after;
    }
    assert!(rest.is_empty());
    let (group, entries) = groups[12];
    assert_eq!((group.pool.get(), group.pg_index.get(), group.log_begins.get()), (1, 7, 0));
    // Whole, and of 64 groups.
    assert_eq!((group.flags.get(), entries.len()), (64 << 8, 49));
    let entry = entries[48];
    assert_eq!(
        (entry.epoch.get(), entry.sequence.get(), entry.volume.get(), entry.object.get()),
        (2, 49, 1, 6)
    );
    assert_eq!((entry.first_block.get(), entry.block_count.get()), (876, 1));
    assert_eq!(entry.origin.get(), 4_305_017_074_295_213_972);
    let page = ObjectIndex::from_page(PAGE).expect("its size fits its bits");
    assert_eq!(page.entries().len(), 17);
    let at = |block| page.get(block).map(|entry| (entry.location, entry.crc32c));
    assert_eq!([0, 1, 52].map(at), [Some((1718, 1_371_770_432)), None, Some((1609, 3_896_946_416))]);
}

#[test]
fn what_is_written_today_has_the_same_bytes() {
    assert_eq!(found().sealed().as_bytes(), SUPERBLOCK);
    let mut page = Vec::new();
    ObjectIndex::from_page(PAGE).unwrap().to_page(&mut page);
    assert_eq!(page, PAGE);
}
