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
        layer: key.layer,
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
    let mut left = objects.iter().filter(|key| after.is_none_or(|after| (key.layer, key.object) > after));
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
    use super::*;
    use crate::operation::{OperationKind, Purpose};
    use crate::replication::order;
    use crate::testing::{Alone, PG, VOLUME};
    use base::map::{OsdInfo, PgConfig};
    use base::{Epoch, OsdId, Sequence};
    use std::sync::Arc;
    use wire::{Activate, Kind, LogState, Message};

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

    #[test]
    fn a_learner_tells_of_each_object_what_it_has_and_which_blocks_of_it_are_in_doubt() {
        let mut alone = Alone::new();
        let key = |object| ObjectKey { pg: PG, layer: VOLUME.first_layer(), object };
        alone.write(key(4));
        alone.write(key(5));
        // What comes behind so much may come to nothing.
        alone.age_log();
        for (first_block, block_count) in [(3, 1), (9, 2), (100, 1)] {
            alone.order(key(3), first_block, block_count, 0);
        }
        alone.with(|_, cx| {
            let range = BlockRange::one(key(3), 100);
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
            assert!(order::zero(cx, id));
        });
        alone.run();
        // Another one leads, and this one joins.
        let primary = OsdId(1);
        let link = alone.connect(primary);
        let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
        let mut map = (*alone.osd.shared.volumes.map).clone();
        map.revision += 1;
        map.osds.insert(primary, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
        map.targets.insert(PG, vec![primary, OsdId(0)]);
        let (in_sync, learners) = (vec![primary], vec![OsdId(0)]);
        map.pgs.insert(PG, PgConfig { epoch, primary, in_sync, learners, ..PgConfig::default() });
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.query(link, PG, 1, epoch);
        let (_, mark) = alone.osd.store().pg_position(PG).unwrap();
        let join = Activate { pg: PG, epoch, mark, join: Some(mark.next()) };
        says(&mut alone, link, &join.encode());
        assert!(alone.osd.store().pg_is_incomplete(PG));
        let sure = alone.osd.store().object_held_through(&key(4));
        assert!(sure > Sequence(0));
        let all: [(u32, u16, u16); 3] = [(3, 3, 1), (4, 1, 0), (5, 1, 0)];
        let scenes = [(None, &all[..]), (Some(3), &all[1..]), (Some(4), &all[2..]), (Some(5), &all[3..])];
        for (after, expected) in scenes {
            let after = after.map(|object| (VOLUME.first_layer(), object));
            says(&mut alone, link, &ListObjects { pg: PG, epoch, after }.encode());
            let told = alone.io.told(link, |message| match message {
                Message::Objects(objects) => Some((objects.head, objects.entries().collect::<Vec<_>>())),
                _ => None,
            });
            let [(page, entries)] = &told[..] else { panic!("{told:?}") };
            assert_eq!(*page, Page { pg: PG, epoch, is_last: true });
            let held = |entry: &ObjectHeld| (entry.object, entry.block_count, entry.has_doubts);
            assert_eq!(entries.iter().map(held).collect::<Vec<_>>(), expected, "behind {after:?}");
            assert!(entries.iter().all(|entry| entry.layer == VOLUME.first_layer() && entry.through == sure));
        }
        says(&mut alone, link, &ObjectEpoch { key: key(3), epoch }.encode(Kind::ListBlocks));
        let told = alone.io.told(link, |message| match message {
            Message::Blocks(blocks) => Some([blocks.allocated, blocks.doubted].map(numbers)),
            _ => None,
        });
        assert_eq!(told, [[vec![3, 9, 10], vec![3, 9, 10, 100]]]);
    }

    /// Which blocks these bits are of.
    fn numbers(bits: &BlockBits) -> Vec<usize> {
        (0..OBJECT_BLOCKS).filter(|block| bits[block / 8] >> (block % 8) & 1 == 1).collect()
    }

    /// The primary says that, and whatever is under way comes to its end.
    fn says(alone: &mut Alone, link: LinkId, bytes: &[u8]) {
        alone.osd.handle_bytes(alone.now, link, bytes, &mut alone.io).unwrap();
        alone.settles();
    }
}
