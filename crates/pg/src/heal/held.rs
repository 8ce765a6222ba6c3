//! What a learner says it has, and how current that is, so that its primary knows what it lacks.

use crate::broken::Sabotage;
use crate::context::Context;
use crate::group::obedience::may_inquire;
use crate::io::Io;
use base::{BlockRange, LinkId, OBJECT_BLOCKS, ObjectKey};
use store::Store;
use wire::{BlockBits, Blocks, ENTRIES_MAX, ListObjects, ObjectEpoch, ObjectHeld, Page};

/// An object as it is here.
fn held(store: &Store, key: &ObjectKey) -> ObjectHeld {
    ObjectHeld {
        volume: key.volume,
        object: key.object,
        block_count: store.block_count(key),
        has_doubts: store.doubts(key).next().is_some().into(),
        through: store.object_held_through(key),
    }
}

/// A primary asks which objects of a group this member has.
pub(crate) fn list_objects(cx: &mut Context<'_, impl Io>, link: LinkId, wanted: &ListObjects) {
    let ListObjects { pg, epoch, after } = *wanted;
    let Some(index) = cx.groups.find(pg) else { return };
    if !may_inquire(&cx.groups[index], cx.links.osd_at(link), epoch) {
        return;
    }
    let objects = cx.disk.objects_of(pg);
    let mut left = objects.iter().filter(|key| after.is_none_or(|after| (key.volume, key.object) > after));
    let page = left.by_ref().take(ENTRIES_MAX).map(|key| held(&cx.disk.store, key));
    let entries: Vec<ObjectHeld> = page.collect();
    let page = Page { pg, epoch, is_last: left.next().is_none() };
    cx.io.send(link, &page.encode(entries.into_iter()));
}

/// A primary asks which blocks of an object this member has.
pub(crate) fn list_blocks(cx: &mut Context<'_, impl Io>, link: LinkId, of: ObjectEpoch) {
    let Some(index) = cx.groups.find(of.key.pg) else { return };
    if !may_inquire(&cx.groups[index], cx.links.osd_at(link), of.epoch) {
        return;
    }
    let store = &cx.disk.store;
    let mut doubted: BlockBits = [0; OBJECT_BLOCKS / 8];
    for entry in store.doubts(&of.key).filter(|_| !cx.breaks(Sabotage::ForgetDoubts)) {
        let range =
            BlockRange { key: of.key, first_block: entry.first_block, block_count: entry.block_count };
        range.blocks().for_each(|block| doubted[usize::from(block) / 8] |= 1 << (block % 8));
    }
    let allocated = store.allocated_bits(&of.key);
    cx.io.send(link, &Blocks { of, allocated: &allocated, doubted: &doubted }.encode());
}
