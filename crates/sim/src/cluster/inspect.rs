//! A cluster at rest, looked over: every store is in order, and the members of each group hold the same bytes.

use super::node::Node;
use crate::contents::Contents;
use base::map::{ClusterMap, PgConfig};
use base::{
    BLOCK_BYTES, BlockRange, LayerId, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, VolumeId, ZERO_BLOCK_CRC32C,
    crc32c, without,
};
use std::collections::BTreeSet;
use std::rc::Rc;
use store::Unseen;

/// What a member has of a block: its checksum by the index, and what lies on the drive, `None` of zeros.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) checksum: u32,
    content: Option<Rc<[u8; BLOCK_BYTES]>>,
    /// It hides what lies beneath its layer, if it is zeros too.
    hides: bool,
}

impl Block {
    pub(super) fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        self.content.as_deref().unwrap_or(&ZEROS)
    }

    /// Whether two members have the same by their indexes, and by every byte where both verify: equal checksums say little
    /// of contents that were made to have them, and what has rotted says nothing.
    pub(super) fn agrees(&self, other: &Block) -> bool {
        let is_sound = |block: &Block| crc32c(block.bytes()) == block.checksum;
        let is_alike = self.checksum == other.checksum && self.hides == other.hides;
        is_alike && (self.has_bytes_of(other) || !is_sound(self) || !is_sound(other))
    }

    /// Whether both hold the same bytes. Most blocks of an object were never written, and are not looked at for that.
    fn has_bytes_of(&self, other: &Block) -> bool {
        self.is_hole() && other.is_hole() || self.bytes() == other.bytes()
    }

    /// Whether nothing is there.
    pub(super) fn is_hole(&self) -> bool {
        self.content.is_none()
    }
}

/// Checks the accounting of every store.
///
/// # Errors
/// The first difference.
pub(super) fn check_stores<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(), String> {
    for node in nodes {
        let osd = node.osd().ok_or("a node does not run")?;
        osd.store().verify().map_err(|error| format!("the store of {}: {error}", osd.id()))?;
        if let Some(failure) = osd.store().failure() {
            return Err(format!("the store of {} failed on a sound drive: {failure}", osd.id()));
        }
    }
    Ok(())
}

/// Checks that nobody holds anything of a group that it is no member of, or that is not there any more.
///
/// # Errors
/// The first who does.
pub(super) fn check_strangers<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    map: &ClusterMap,
) -> Result<(), String> {
    for node in nodes {
        let osd = node.osd().ok_or("a node does not run")?;
        let is_foreign =
            |key: &ObjectKey| map.pgs.get(&key.pg).is_none_or(|config| !config.in_sync.contains(&osd.id()));
        if let Some(key) = osd.store().objects().find(is_foreign) {
            return Err(format!("at rest, {} holds {key}, and is no member of its group", osd.id()));
        }
    }
    Ok(())
}

/// What a member holds of an object, in all layers, that nobody sees or that hides nothing.
fn unseen_of(store: &store::Store, map: &ClusterMap, key: &ObjectKey) -> Vec<Unseen> {
    let views = map.views_of(key.layer.volume());
    views.map_or_else(Vec::new, |views| store.unseen(key.pg, key.object, &views))
}

/// Whether a node holds something of an object that may be deleted at any time.
pub(super) fn holds_unseen(node: &Node, map: &ClusterMap, key: &ObjectKey) -> bool {
    node.osd().is_some_and(|osd| !unseen_of(osd.store(), map, key).is_empty())
}

/// Whether a node holds a block in other layers of the family too, be it a hole.
pub(super) fn is_in_other_layers(node: &Node, key: &ObjectKey, block: u16) -> bool {
    let Some(store) = node.osd().map(pg::Osd::store) else { return false };
    let family = |key: &ObjectKey| (key.pg, key.layer.volume().family(), key.object);
    let mut others = store.objects().filter(|other| other != key && family(other) == family(key));
    others.any(|other| store.allocated_bits(&other)[usize::from(block) / 8] >> (block % 8) & 1 != 0)
}

/// Checks that members in sync hold nothing of these volumes that nobody sees.
///
/// # Errors
/// The first that is found.
pub(super) fn check_nothing_is_unseen(
    nodes: &[Node],
    map: &ClusterMap,
    volumes: &[VolumeId],
) -> Result<(), String> {
    for osd in nodes.iter().filter_map(Node::osd) {
        let store = osd.store();
        let is_its = |key: &ObjectKey| {
            let is_member = map.pgs.get(&key.pg).is_some_and(|pg| pg.in_sync.contains(&osd.id()));
            volumes.contains(&key.layer.volume()) && is_member
        };
        for key in store.objects().filter(is_its) {
            // What was zeroed beside something that lies beneath hides nothing, and goes sooner or later.
            if let Some(unseen) = unseen_of(store, map, &key).iter().find(|unseen| unseen.is_hidden) {
                return Err(format!("{} holds {unseen:?}, which nobody sees", osd.id()));
            }
            let head = map.volumes[&key.layer.volume()].head;
            if key.layer.number() > head {
                return Err(format!("{} holds {key}, and layer {head} is written to", osd.id()));
            }
        }
    }
    Ok(())
}

/// Checks that whatever one snapshot holds and another of its volume does not, or the volume itself, counts as changed between both.
///
/// # Errors
/// The first block that does not.
pub(super) fn check_changes(nodes: &[Node], map: &ClusterMap) -> Result<(), String> {
    for (volume, info) in map.volumes.iter().filter(|(_, info)| info.is_listed()) {
        let views: Vec<LayerId> =
            map.snapshots_of(*volume).map(|(layer, _)| layer).chain([info.head_layer(*volume)]).collect();
        let family = |key: &ObjectKey| key.layer.volume().family() == volume.family();
        for node in nodes {
            let Some(osd) = node.osd() else { continue };
            let leads = |key: &ObjectKey| map.pgs.get(&key.pg).is_some_and(|pg| pg.primary == osd.id());
            let keys = osd.store().objects().filter(|key| family(key) && leads(key));
            let objects: BTreeSet<(PgId, u32)> = keys.map(|key| (key.pg, key.object)).collect();
            for (pg, object) in objects {
                let seen: Vec<_> = views.iter().map(|view| seen_from(node, map, pg, *view, object)).collect();
                for (newer, of_newer) in views.iter().zip(&seen) {
                    for (older, of_older) in views.iter().zip(&seen) {
                        let (sees, saw) = (map.sight_of(*newer), map.sight_of(*older));
                        let between = [without(&sees, &saw), without(&saw, &sees)].concat();
                        let changed = osd.store().held_by(&between, pg, object);
                        let is_told = |block: usize| changed[block / 8] >> (block % 8) & 1 != 0;
                        let untold = (0..OBJECT_BLOCKS)
                            .find(|block| of_newer[*block] != of_older[*block] && !is_told(*block));
                        if let Some(block) = untold {
                            return Err(format!(
                                "{newer} and {older} differ in block {block} of object {object}, which does not count as changed"
                            ));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// What the blocks of an object hold for whom sees them from a layer; None: zeros.
fn seen_from(
    node: &Node,
    map: &ClusterMap,
    pg: PgId,
    layer: LayerId,
    object: u32,
) -> Vec<Option<Rc<[u8; BLOCK_BYTES]>>> {
    let mut seen = vec![None; OBJECT_BLOCKS];
    let Some(osd) = node.osd() else { return seen };
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    let range = BlockRange::whole(ObjectKey { pg, layer, object });
    osd.store().lookup_through(&map.sight_of(layer), &range, &mut extents, &mut checksums);
    for extent in extents {
        let Some(location) = extent.on_drive() else { continue };
        for offset in 0..extent.block_count {
            let block = usize::from(extent.first_block + offset);
            seen[block] = node.drive().content(location.0 + u32::from(offset));
        }
    }
    seen
}

/// Checks that what lies in a group is of a volume of its pool.
///
/// # Errors
/// The first object that is not.
pub(super) fn check_pools<'a>(nodes: impl Iterator<Item = &'a Node>, map: &ClusterMap) -> Result<(), String> {
    let is_misplaced = |key: &ObjectKey| {
        map.volumes.get(&key.layer.volume()).is_none_or(|volume| volume.pool != key.pg.pool)
    };
    for osd in nodes.filter_map(Node::osd) {
        if let Some(key) = osd.store().objects().find(is_misplaced) {
            return Err(format!(
                "at rest, {} holds {key}, whose volume is of another pool, or of none",
                osd.id()
            ));
        }
    }
    Ok(())
}

/// Checks that the in-sync members of every group hold the same, and that it verifies.
///
/// # Errors
/// The first difference.
pub(super) fn check_members(nodes: &[Node], map: &ClusterMap, contents: Contents) -> Result<(), String> {
    check_agreement(nodes, map, contents)?;
    for (pg, config) in &map.pgs {
        let members = members_of(nodes, config)?;
        for node in &members {
            check_drive(node, pg)?;
        }
        check_positions(pg, &members)?;
    }
    Ok(())
}

/// Checks that the in-sync members of every group hold the same, but for what their drives made of it.
///
/// # Errors
/// The first difference.
pub(super) fn check_agreement(nodes: &[Node], map: &ClusterMap, contents: Contents) -> Result<(), String> {
    for (pg, config) in &map.pgs {
        let members = members_of(nodes, config)?;
        let mut keys = BTreeSet::new();
        for node in &members {
            keys.extend(objects_of(node, pg));
        }
        for key in &keys {
            let all: Vec<Vec<Block>> = members.iter().map(|node| blocks(node, key)).collect();
            let Some((first, others)) = all.split_first() else { continue };
            for other in others {
                if let Some(block) = first.iter().zip(other).position(|(one, other)| !one.agrees(other)) {
                    return Err(differs(pg, key, block, &members, contents));
                }
            }
        }
    }
    Ok(())
}

fn members_of<'a>(nodes: &'a [Node], config: &PgConfig) -> Result<Vec<&'a Node>, String> {
    let members: Vec<&Node> = config.in_sync.iter().map(|OsdId(index)| &nodes[*index as usize]).collect();
    match members.iter().find(|node| node.osd().is_none()) {
        None => Ok(members),
        Some(node) => Err(format!("{} does not run", node.osd_id())),
    }
}

pub(super) fn objects_of<'a>(node: &'a Node, pg: &'a PgId) -> impl Iterator<Item = ObjectKey> + 'a {
    node.osd().into_iter().flat_map(|osd| osd.store().objects()).filter(|key| key.pg == *pg)
}

fn check_positions(pg: &PgId, members: &[&Node]) -> Result<(), String> {
    let positions: Vec<_> =
        members.iter().filter_map(|node| node.osd()).map(|osd| osd.store().pg_position(*pg)).collect();
    if positions.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(format!("at rest, the members of pg {pg} stand at {positions:?}"));
    }
    Ok(())
}

/// What one member has of an object.
pub(super) fn blocks(node: &Node, key: &ObjectKey) -> Vec<Block> {
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    if let Some(osd) = node.osd() {
        osd.store().lookup(key, 0, OBJECT_BLOCKS as u16, &mut extents, &mut checksums);
    }
    let mut blocks =
        vec![Block { checksum: ZERO_BLOCK_CRC32C, content: None, hides: false }; checksums.len()];
    for extent in extents {
        if extent.location.is_none() {
            continue;
        }
        for offset in 0..extent.block_count {
            let block = usize::from(extent.first_block + offset);
            let on_drive = extent.on_drive();
            let content = on_drive.and_then(|location| node.drive().content(location.0 + u32::from(offset)));
            let hides = key.layer.number() > 0 || key.layer.volume().is_clone();
            blocks[block] = Block { checksum: checksums[block], content, hides };
        }
    }
    blocks
}

/// Checks that what a member's drive holds of a group is what its index says.
fn check_drive(node: &Node, pg: &PgId) -> Result<(), String> {
    let Some(osd) = node.osd() else { return Ok(()) };
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    for key in objects_of(node, pg) {
        extents.clear();
        checksums.clear();
        osd.store().lookup(&key, 0, OBJECT_BLOCKS as u16, &mut extents, &mut checksums);
        for extent in &extents {
            let Some(location) = extent.on_drive() else { continue };
            for offset in 0..extent.block_count {
                let block = extent.first_block + offset;
                let found = crc32c(node.drive().block(location.0 + u32::from(offset)));
                if found != checksums[usize::from(block)] {
                    return Err(format!("block {block} of {key} on {} does not verify", node.osd_id()));
                }
            }
        }
    }
    Ok(())
}

fn differs(pg: &PgId, key: &ObjectKey, block: usize, members: &[&Node], contents: Contents) -> String {
    let mut text = format!("at rest, the members of pg {pg} differ in block {block} of {key}:");
    for node in members {
        let held = blocks(node, key).swap_remove(block);
        let (author, checksum) = (contents.author_of(held.bytes()), held.checksum);
        text.push_str(&format!(
            " {} has the value of operation {author}, of checksum {checksum:08x};",
            node.osd_id()
        ));
    }
    text
}
