//! What objects hold, in short: so that members are compared without their data.

use crate::context::Context;
use crate::io::Io;
use base::hash::mix;
use base::{LinkId, OBJECT_BLOCKS, ObjectKey};
use store::Store;
use wire::{Blocks, ENTRIES_MAX, ListBlocks, ListObjects, ObjectDigest, Page};
use zerocopy::little_endian::U32;

/// A digest with one more value in it.
pub(crate) fn mixed(digest: u64, value: u64) -> u64 {
    mix(digest.rotate_left(1) ^ value)
}

/// A digest of blocks with one more in it.
pub(crate) fn with_block(digest: u64, block: u16, crc32c: u32) -> u64 {
    mixed(digest, u64::from(block) << 32 | u64::from(crc32c))
}

/// What an object holds here.
pub(crate) fn digest_of(store: &Store, key: &ObjectKey) -> ObjectDigest {
    let mut digest = 0u64;
    store.for_each_block(key, |block, crc32c| {
        digest = with_block(digest, block, crc32c);
    });
    ObjectDigest { volume: key.volume, object: key.object, digest }
}

/// A primary asks which objects of a group this member has.
pub(crate) fn list_objects(cx: &mut Context<'_, impl Io>, link: LinkId, wanted: &ListObjects) {
    let ListObjects { pg, epoch, after } = *wanted;
    if cx.groups.find(pg).is_none_or(|index| cx.groups[index].epoch != epoch) {
        return;
    }
    let objects = cx.disk.objects_of(pg);
    let mut left = objects.iter().filter(|key| after.is_none_or(|after| (key.volume, key.object) > after));
    let page = left.by_ref().take(ENTRIES_MAX).map(|key| digest_of(&cx.disk.store, key));
    let digests: Vec<ObjectDigest> = page.collect();
    let page = Page { pg, epoch, is_last: left.next().is_none() };
    cx.io.send(link, &page.encode(digests.into_iter()));
}

/// A primary asks for the checksums of an object's blocks.
pub(crate) fn list_blocks(cx: &mut Context<'_, impl Io>, link: LinkId, of: ListBlocks) {
    let store = &cx.disk.store;
    let mut checksums = Box::new([U32::ZERO; OBJECT_BLOCKS]);
    store.for_each_block(&of.key, |block, crc32c| checksums[usize::from(block)] = crc32c.into());
    let allocated = store.allocated_bits(&of.key);
    cx.io.send(link, &Blocks { of, allocated: &allocated, checksums: &checksums }.encode());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_which_block_has_which_checksum() {
        let of =
            |blocks: &[(u16, u32)]| blocks.iter().fold(0, |all, (block, crc)| with_block(all, *block, *crc));
        assert_eq!(of(&[(1, 5), (2, 6)]), of(&[(1, 5), (2, 6)]));
        assert_ne!(of(&[(1, 5), (2, 6)]), of(&[(1, 6), (2, 5)]));
        assert_ne!(of(&[(1, 5)]), of(&[(2, 5)]));
        assert_ne!(of(&[(1, 5)]), of(&[]));
    }
}
