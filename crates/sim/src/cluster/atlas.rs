//! What has rotted where. A plan never destroys the last sound copy of a block.

use super::life::Life;
use super::node::Node;
use super::registry::{POOL, volume_id};
use super::world::{MILLISECOND, Process, SECOND};
use base::{BLOCK_BYTES, Epoch, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, VolumeId, crc32c};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A block of a node's drive that was spoiled.
#[derive(Clone, Copy, Debug)]
struct Spot {
    node: usize,
    key: ObjectKey,
    block: u16,
}

/// The end of a node's log that was spoiled while it did not run.
#[derive(Clone, Debug)]
struct Tail {
    node: usize,
    /// The groups it was in sync in, and their epochs.
    groups: Vec<(PgId, Epoch)>,
}

/// Who served which group in which epoch: the node, and which of its lives.
pub(super) type Served = BTreeMap<(PgId, Epoch), (usize, u32)>;

/// How long after a failed read an OSD may still say that nobody has a block: for a second by its clock it does not ask again.
const UNREADABLE_PAUSE: u64 = 1100 * MILLISECOND;
/// Why a block is lost although only one copy rotted: a member in sync died with a write of it that the others do not have,
/// and what they have of it rotted. See "What is not there yet" in `docs/protocol.md`.
pub(super) const LOST_HALF_WRITTEN: &str = "a block is lost: rotten here, half written there";

/// Why a block is lost that a script has taken away everywhere.
const DESTROYED: &str = "a block is lost: its last copy was destroyed";

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Atlas {
    spots: Vec<Spot>,
    tail: Option<Tail>,
    /// Blocks of volumes of which no sound copy of the newest version is left, as no plan makes it.
    pub(super) destroyed: BTreeSet<(VolumeId, u64)>,
}

/// What a node has of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held<'a> {
    /// By its index.
    checksum: u32,
    /// By its index.
    pub(super) location: u32,
    /// What lies there.
    bytes: &'a [u8; BLOCK_BYTES],
}

impl Held<'_> {
    /// Whether it verifies.
    pub(super) fn is_sound(&self) -> bool {
        crc32c(self.bytes) == self.checksum
    }

    /// Whether another is the same version, which equal checksums do not tell.
    fn is_same(&self, other: &Held<'_>) -> bool {
        self.checksum == other.checksum && self.bytes == other.bytes
    }
}

/// What a node has of a block; `None` of zeros.
pub(super) fn look<'a>(node: &'a Node, key: &ObjectKey, block: u16) -> Option<Held<'a>> {
    let store = node.osd()?.store();
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    store.lookup(key, block, 1, &mut extents, &mut checksums);
    let location = extents.first()?.location?.0;
    Some(Held { checksum: *checksums.first()?, location, bytes: node.drive().block(location) })
}

/// What a node calls an object: its group may have been split.
fn names_of<'a>(node: &'a Node, key: &'a ObjectKey) -> impl Iterator<Item = ObjectKey> + 'a {
    let objects = node.osd().into_iter().flat_map(|osd| osd.store().objects());
    objects.filter(|name| is_same(name, key))
}

fn is_same(one: &ObjectKey, other: &ObjectKey) -> bool {
    (one.volume, one.object) == (other.volume, other.object)
}

impl Atlas {
    /// Whether a node still lacks what the end of its log told.
    pub(super) fn has_short_log(&mut self, nodes: &[Node], served: &Served) -> bool {
        // Whoever led a later epoch of a group brought the node into line, or did without it.
        let is_over = |(pg, epoch): &(PgId, Epoch)| {
            served.range((*pg, Epoch(epoch.0 + 1))..=(*pg, Epoch(u32::MAX))).next().is_some()
        };
        self.tail.take_if(|tail| nodes[tail.node].is_running() && tail.groups.iter().all(is_over));
        self.tail.is_some()
    }

    /// Whether something is still spoiled. What a node that does not run holds counts as spoiled still.
    pub(super) fn has_damage(&mut self, nodes: &[Node], served: &Served) -> bool {
        let has_short_log = self.has_short_log(nodes, served);
        self.spots.retain(|spot| {
            let node = &nodes[spot.node];
            let is_sound = |key| look(node, &key, spot.block).is_none_or(|held| held.is_sound());
            !node.is_running() || !names_of(node, &spot.key).all(is_sound)
        });
        !self.spots.is_empty() || has_short_log
    }
}

impl Life {
    /// Why an operation that was refused just now may have found no sound copy to read of one of some blocks of its volume,
    /// if there is a reason.
    pub(super) fn why_unreadable(&self, operation: u64, blocks: Range<u64>) -> Option<&'static str> {
        let volume = volume_id(self.history.step(operation).volume);
        // What was known a moment before the operation began may have been the answer.
        let since = self.history.began_at(operation).saturating_sub(UNREADABLE_PAUSE);
        if blocks.clone().any(|block| self.atlas.destroyed.contains(&(volume, block))) {
            return Some(DESTROYED);
        }
        if blocks.clone().all(|block| self.was_readable(volume, block, since)) {
            return None;
        }
        if self.nodes.iter().any(|node| !node.reads_since(since)) {
            return Some("an operation fails for a drive");
        }
        let is_half_written = |block: u64| {
            let bytes = block * BLOCK_BYTES as u64..(block + 1) * BLOCK_BYTES as u64;
            self.world.spoiled.contains(&(volume, block))
                && self.history.has_unfinished_write(operation, &bytes)
        };
        blocks.into_iter().any(is_half_written).then_some(LOST_HALF_WRITTEN)
    }

    /// Whether a member in sync had for sure a sound copy of a block of a volume all the time since then, on a drive that
    /// could be read.
    fn was_readable(&self, volume: VolumeId, block: u64, since: u64) -> bool {
        let (object, first) = (block / OBJECT_BLOCKS as u64, block % OBJECT_BLOCKS as u64);
        let map = &self.registry.map;
        let pg = map.pg_of(POOL, volume, object as u32).expect("the pool is there");
        let (key, first) = (ObjectKey { pg, volume, object: object as u32 }, first as u16);
        let config = &self.registry.map.pgs[&pg];
        let primary = &self.nodes[config.primary.0 as usize];
        // In another epoch others were asked.
        let is_settled =
            self.serving_since.get(&pg).is_some_and(|(epoch, at)| *epoch == config.epoch && *at <= since);
        if !is_settled || !primary.is_running() || self.world.spoiled.contains(&(volume, block)) {
            return false;
        }
        let wanted = look(primary, &key, first);
        config.in_sync.iter().any(|osd| {
            let node = &self.nodes[osd.0 as usize];
            let is_right = match (look(node, &key, first), &wanted) {
                (Some(held), Some(wanted)) => held.is_sound() && held.is_same(wanted),
                (held, wanted) => held.is_none() && wanted.is_none(),
            };
            is_right && node.is_running() && node.reads_since(since) && self.registry.is_in(*osd)
        })
    }

    /// A block of one member in sync.
    fn some_block(&mut self, pg: PgId, index: usize) -> Option<(ObjectKey, u16)> {
        let osd = self.nodes[index].osd()?;
        let mut keys: Vec<ObjectKey> = osd.store().objects().filter(|key| key.pg == pg).collect();
        keys.sort_unstable();
        if keys.is_empty() {
            return None;
        }
        let key = keys[self.world.random.index(keys.len())];
        let mut blocks = Vec::new();
        osd.store().for_each_block(&key, |block, _, _| blocks.push(block));
        Some((key, blocks[self.world.random.index(blocks.len())]))
    }

    /// A block that a member wrote a moment ago: whoever is away, or just came back, has something else there.
    fn some_new_block(&mut self, pg: PgId, index: usize) -> Option<(ObjectKey, u16)> {
        let back = self.world.random.index(16);
        let entry = self.nodes[index].osd()?.store().pg_log(pg).rev().nth(back)?;
        let key = ObjectKey { pg, volume: entry.volume, object: entry.object };
        (entry.block_count > 0).then_some((key, entry.first_block))
    }

    /// A group of which somebody lacks something and so many have everything, if there is one.
    pub(super) fn some_degraded_group(&mut self, in_sync_min: usize) -> Option<PgId> {
        let is_degraded = |pg: &&PgId| {
            let in_sync = &self.registry.map.pgs[*pg].in_sync;
            in_sync.len() >= in_sync_min
                && self.registry.map.targets[*pg].iter().any(|osd| !in_sync.contains(osd))
        };
        let degraded: Vec<PgId> = self.registry.map.pgs.keys().filter(is_degraded).copied().collect();
        (!degraded.is_empty()).then(|| degraded[self.world.random.index(degraded.len())])
    }

    /// A block rots of which another member in sync has a sound copy.
    pub(super) fn rot_some_block(&mut self) {
        let any = self.registry.some_group(&mut self.world.random);
        let degraded = self.some_degraded_group(2);
        let is_at_the_primary = degraded.is_some() || self.world.random.percent(50);
        let pg = degraded.unwrap_or(any);
        let in_sync: Vec<OsdId> = self.registry.map.pgs[&pg].in_sync.clone();
        let target = self.registry.map.targets[&pg].clone();
        let index = match is_at_the_primary {
            true => self.registry.map.pgs[&pg].primary.0 as usize,
            false => in_sync[self.world.random.index(in_sync.len())].0 as usize,
        };
        let found = match is_at_the_primary {
            true => self.some_new_block(pg, index),
            false => self.some_block(pg, index),
        };
        let Some((key, block)) = found else { return };
        let Some(held) = look(&self.nodes[index], &key, block).filter(Held::is_sound) else { return };
        // Nobody else may have lost the same block, and one who has it must be there.
        let is_spoiled = |spot: &Spot| is_same(&spot.key, &key) && spot.block == block;
        let has_it = |osd: &OsdId| {
            let node = osd.0 as usize;
            node != index
                && target.contains(osd)
                // Who is out counts as gone when it is down.
                && self.registry.is_in(*osd)
                && !self.registry.is_gone(node)
                && look(&self.nodes[node], &key, block)
                    .is_some_and(|theirs| theirs.is_sound() && theirs.is_same(&held))
        };
        // Of a pool that keeps one copy the others are on their way out.
        let keeps_one = self.registry.pool().size < 2;
        if keeps_one || self.atlas.spots.iter().any(is_spoiled) || !in_sync.iter().any(has_it) {
            return;
        }
        let location = held.location;
        if self.nodes[index].rot(location, &mut self.world.random) {
            self.world.event(Some(Process(index)), "rot");
            self.world.story(Some(Process(index)), || format!("block {block} of {key} rots"));
            self.world.has_damage = true;
            let in_volume = u64::from(key.object) * OBJECT_BLOCKS as u64 + u64::from(block);
            self.world.spoiled.insert((key.volume, in_volume));
            self.atlas.spots.push(Spot { node: index, key, block });
            if let Some(other) = in_sync.iter().map(|osd| osd.0 as usize).find(|other| *other != index)
                && self.doomed.is_none()
                && self.world.random.percent(40)
            {
                // Who has it still goes, and who has something older is asked.
                let outage = self.world.random.between(SECOND, 6 * SECOND);
                self.doom(other, outage);
            }
        }
    }

    /// A node's process dies, and what its log ended with has rotted when it starts again. So it starts without writes
    /// that it had acknowledged: all the others in sync have them, and it must never be alone with what it has. So nobody is
    /// out, for a group may go on without those, and no other drive fails.
    pub(super) fn rot_the_end_of_some_log(&mut self) {
        let index = self.world.random.index(self.nodes.len());
        let groups = self.groups_in_sync(index);
        let newest = self.nodes[index].osd().and_then(|osd| {
            let logs = groups
                .iter()
                .filter_map(|(pg, _)| osd.store().pg_log(*pg).next_back().map(|entry| (*pg, entry)));
            logs.filter(|(_, entry)| entry.block_count > 0).max_by_key(|(_, entry)| entry.sequence)
        });
        let Some((pg, entry)) = newest else { return };
        let key = ObjectKey { pg, volume: entry.volume, object: entry.object };
        let held = look(&self.nodes[index], &key, entry.first_block).filter(Held::is_sound);
        let Some(location) = held.map(|held| held.location) else { return };
        if self.rot_end(index, groups, location) && self.world.random.percent(40) {
            // Then nobody was in an epoch since it started, and none knows better than its log.
            for other in 0..self.nodes.len() {
                self.stop_node(other, true, "power cut of all");
            }
        }
    }

    /// A member that was taken in just now dies, and what it was pushed last has rotted when it starts again: its log does
    /// not tell of that.
    pub(super) fn rot_the_end_of_a_newcomer(&mut self, pg: PgId, epoch: Epoch) {
        let before = self.registry.config_of(pg, Epoch(epoch.0 - 1)).map(|config| config.in_sync.clone());
        let Some(before) = before else { return };
        let in_sync = &self.registry.map.pgs[&pg].in_sync;
        let Some(newcomer) = in_sync.iter().find(|osd| !before.contains(osd)) else { return };
        let index = newcomer.0 as usize;
        if !self.nodes[index].is_running() {
            return;
        }
        let writes = self.world.random.between(1, 4);
        let blocks = self.nodes[index].drive().newest_blocks(writes);
        if !blocks.is_empty() {
            let location = blocks[self.world.random.index(blocks.len())];
            let groups = self.groups_in_sync(index);
            self.rot_end(index, groups, location);
        }
    }

    /// The groups that a node is in sync in, and their epochs.
    fn groups_in_sync(&self, index: usize) -> Vec<(PgId, Epoch)> {
        let is_in_sync = |osds: &[OsdId]| osds.iter().any(|osd| osd.0 as usize == index);
        (self.registry.map.pgs.iter())
            .filter(|(_, config)| is_in_sync(&config.in_sync))
            .map(|(pg, config)| (*pg, config.epoch))
            .collect()
    }

    /// A node's process dies, and a block at the end of its log rots, if no write can be lost for good by that.
    fn rot_end(&mut self, index: usize, groups: Vec<(PgId, Epoch)>, location: u32) -> bool {
        let is_alone = groups.iter().any(|(pg, _)| self.registry.map.pgs[pg].in_sync.len() < 2);
        let has_lost = (0..self.nodes.len()).any(|node| self.registry.is_gone(node));
        let fails_to_read = self.nodes.iter().any(|node| !node.reads_since(self.world.now));
        let is_in = |info: &base::map::OsdInfo| info.admission == base::map::Admission::In;
        let has_out = !self.registry.map.osds.values().all(is_in);
        if self.registry.pool().min_size < 2
            || is_alone
            || has_lost
            || has_out
            || fails_to_read
            || !self.registry.is_settled()
            || self.atlas.has_damage(&self.nodes, &self.served)
        {
            return false;
        }
        self.stop_node(index, false, "crash");
        let is_rotten = self.nodes[index].rot_end(location);
        if is_rotten {
            self.world.event(Some(Process(index)), "the end of a log rots");
            self.world.story(Some(Process(index)), || format!("block {location} of its drive rots"));
            self.world.has_damage = true;
            self.atlas.tail = Some(Tail { node: index, groups });
        }
        is_rotten
    }
}
