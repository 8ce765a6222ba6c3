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

/// A primary asks which objects of a group this member has. Whoever may ask costs a walk over all of them
/// ([`Turn::has_listed`](crate::context::Turn::has_listed)).
pub(crate) fn list_objects(cx: &mut Context<'_, impl Io>, link: LinkId, wanted: &ListObjects) {
    let ListObjects { pg, epoch, after } = *wanted;
    let Some(index) = cx.groups.find(pg) else { return };
    if !may_inquire(&cx.groups[index], cx.links.osd_at(link), epoch) {
        return;
    }
    cx.turn.has_listed = true;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use crate::testing::{Alone, PG};
    use base::map::OsdInfo;
    use base::{OsdId, Sequence};
    use std::sync::Arc;
    use wire::LogState;

    #[test]
    fn a_learner_that_says_again_where_it_stands_is_not_compared_again() {
        let mut alone = Alone::new();
        let learner = OsdId(1);
        let map = Arc::make_mut(&mut alone.osd.shared.volumes.map);
        let address = Some(([127, 0, 0, 1], 7001).into());
        map.osds.insert(learner, OsdInfo { address, ..OsdInfo::default() });
        let link = alone.connect(learner);
        alone.osd.shared.groups[0].wanted.target = vec![OsdId(0), learner];
        alone.with(|router, cx| router.backfill.advance(cx));
        let state = LogState {
            pg: PG,
            epoch: alone.osd.shared.groups[0].epoch,
            last_sequence: Sequence(1),
            log_begins: Sequence(0),
            is_incomplete: true,
            may_lack_tail: false,
        };
        let said = state.encode(std::iter::empty()).repeat(10);
        let Alone { osd, io, now } = &mut alone;
        osd.handle_bytes(*now, link, &said, io).unwrap();
        assert_eq!(alone.passed("learner: catches up by what changed since"), 1);
    }
}
