//! What has rotted where. A plan never destroys the last sound copy of a block.

use super::life::Life;
use super::node::Node;
use super::plan::FaultKind;
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
    /// How often it had been started.
    starts: u32,
}

/// Where a batch is missing on a node's drive that was written elsewhere and told as done. The node knows as little as
/// anybody, until it is started again: then its log ends there, or it does not start at all.
#[derive(Clone, Debug)]
struct Astray {
    node: usize,
    places: Range<u32>,
    /// How often it had been started.
    starts: u32,
}

/// Who served which group in which epoch: the node, and which of its lives.
pub(super) type Served = BTreeMap<(PgId, Epoch), (usize, u32)>;

/// How long after a failed read an OSD may still say that nobody has a block: for a second by its clock it does not ask again.
const UNREADABLE_PAUSE: u64 = 1100 * MILLISECOND;
/// Why a block is lost although only one copy rotted: a member in sync died with a write of it that the others do not have,
/// and what they have of it rotted. See "What is not there yet" in `docs/protocol.md`.
pub(super) const LOST_HALF_WRITTEN: &str = "a block is lost: rotten here, half written there";

/// Places of a drive that are tried for a write that goes astray.
const PLACES_TRIED: usize = 8;

/// Why a block is lost that a script has taken away everywhere.
const DESTROYED: &str = "a block is lost: its last copy was destroyed";

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Atlas {
    spots: Vec<Spot>,
    tail: Option<Tail>,
    astray: Option<Astray>,
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
    let location = extents.first()?.on_drive()?.0;
    Some(Held { checksum: *checksums.first()?, location, bytes: node.drive().block(location) })
}

/// What a node calls an object: its group may have been split.
fn names_of<'a>(node: &'a Node, key: &'a ObjectKey) -> impl Iterator<Item = ObjectKey> + 'a {
    let objects = node.osd().into_iter().flat_map(|osd| osd.store().objects());
    objects.filter(|name| is_same(name, key))
}

/// The blocks of objects that a node has at these places of its drive, by its index.
fn blocks_within(node: &Node, places: &Range<u32>) -> Vec<(ObjectKey, u16)> {
    let mut found = Vec::new();
    let Some(store) = node.osd().map(pg::Osd::store) else { return found };
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    let mut keys: Vec<ObjectKey> = store.objects().collect();
    keys.sort_unstable();
    for key in keys {
        extents.clear();
        checksums.clear();
        store.lookup(&key, 0, OBJECT_BLOCKS as u16, &mut extents, &mut checksums);
        for extent in &extents {
            let Some(location) = extent.on_drive() else { continue };
            let here = (location.0..).zip(extent.first_block..extent.first_block + extent.block_count);
            found.extend(here.filter(|(place, _)| places.contains(place)).map(|(_, block)| (key, block)));
        }
    }
    found
}

/// Whether something does not verify at these places of a node's drive.
fn has_damage_within(node: &Node, places: &Range<u32>) -> bool {
    let is_sound =
        |(key, block): &(ObjectKey, u16)| look(node, key, *block).is_none_or(|held| held.is_sound());
    !blocks_within(node, places).iter().all(is_sound)
}

fn is_same(one: &ObjectKey, other: &ObjectKey) -> bool {
    (one.layer, one.object) == (other.layer, other.object)
}

impl Atlas {
    /// Whether a node still lacks what the end of its log told.
    pub(super) fn has_short_log(&mut self, nodes: &[Node], served: &Served) -> bool {
        // Whoever led a later epoch of a group brought the node into line, or did without it.
        let is_over = |(pg, epoch): &(PgId, Epoch)| {
            served.range((*pg, Epoch(epoch.0 + 1))..=(*pg, Epoch(u32::MAX))).next().is_some()
        };
        let is_back = |node: usize, starts: u32| nodes[node].is_running() && nodes[node].starts() > starts;
        self.tail.take_if(|tail| is_back(tail.node, tail.starts) && tail.groups.iter().all(is_over));
        self.astray.take_if(|astray| {
            let Astray { node, ref places, starts } = *astray;
            is_back(node, starts) && !has_damage_within(&nodes[node], places)
        });
        self.tail.is_some() || self.astray.is_some()
    }

    /// Who lacks a batch of its log, and has not been started since.
    fn lacks_a_batch(&self, nodes: &[Node]) -> Option<usize> {
        let is_new = |astray: &&Astray| nodes[astray.node].starts() == astray.starts;
        self.astray.as_ref().filter(is_new).map(|astray| astray.node)
    }

    /// Whether something is still spoiled. What a node that does not run holds counts as spoiled still.
    pub(super) fn has_damage(&mut self, nodes: &[Node], served: &Served) -> bool {
        let has_short_log = self.has_short_log(nodes, served);
        // What goes astray hits when the drive gets to it.
        let hit = self.lacks_a_batch(nodes);
        self.spots.retain(|spot| {
            let node = &nodes[spot.node];
            let is_sound = |key| look(node, &key, spot.block).is_none_or(|held| held.is_sound());
            hit == Some(spot.node) || !node.is_running() || !names_of(node, &spot.key).all(is_sound)
        });
        !self.spots.is_empty() || has_short_log
    }
}

impl Life {
    /// Why an operation that was refused just now may have found no sound copy to read of one of some blocks of its volume,
    /// if there is a reason.
    pub(super) fn why_unreadable(&self, operation: u64, blocks: Range<u64>) -> Option<&'static str> {
        // What is seen may lie in whichever layer of the family.
        let volume = volume_id(self.history.step(operation).volume).family();
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
            // Members agree when an epoch begins: half written is only what began before.
            let (pg, ..) = self.place_of(volume, block);
            let (epoch_at, now) = (self.settled_since(pg), self.world.now);
            let before = epoch_at.filter(|at| *at <= since).unwrap_or(now);
            self.world.spoiled.contains(&(volume, block))
                && self.history.has_unfinished_write(operation, &bytes, before, epoch_at.unwrap_or(now))
        };
        blocks.into_iter().any(is_half_written).then_some(LOST_HALF_WRITTEN)
    }

    /// Whether a member in sync had for sure a sound copy of a block of a volume all the time since then, on a drive that
    /// could be read.
    fn was_readable(&self, volume: VolumeId, block: u64, since: u64) -> bool {
        let (pg, object, first) = self.place_of(volume, block);
        let key = ObjectKey { pg, layer: volume.first_layer(), object };
        let config = &self.registry.map.pgs[&pg];
        let primary = &self.nodes[config.primary.0 as usize];
        // In another epoch others were asked.
        let is_settled = self.settled_since(pg).is_some_and(|at| at <= since);
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
            let is_there = node.is_running() && !node.has_failed_drive();
            is_right && is_there && node.reads_since(since) && self.registry.is_in(*osd)
        })
    }

    /// Where a block of a volume lies: its group, its object, and the block of that.
    fn place_of(&self, volume: VolumeId, block: u64) -> (PgId, u32, u16) {
        let object = (block / OBJECT_BLOCKS as u64) as u32;
        let pg = self.registry.map.pg_of(POOL, volume, object).expect("the pool is there");
        (pg, object, (block % OBJECT_BLOCKS as u64) as u16)
    }

    /// Since when somebody serves a group in the newest epoch of it, if somebody does.
    fn settled_since(&self, pg: PgId) -> Option<u64> {
        let (epoch, at) = *self.serving_since.get(&pg)?;
        (epoch == self.registry.map.pgs[&pg].epoch).then_some(at)
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
        let key = ObjectKey { pg, layer: entry.layer, object: entry.object };
        (entry.block_count > 0).then_some((key, entry.first_block))
    }

    /// A group of which somebody lacks something and so many have everything, if there is one.
    pub(super) fn some_degraded_group(&mut self, in_sync_min: usize) -> Option<PgId> {
        let is_degraded = |pg: &&PgId| {
            let in_sync = &self.registry.map.pgs[*pg].in_sync;
            in_sync.len() >= in_sync_min
                && self.registry.map.targets[*pg].iter().any(|osd| !in_sync.contains(osd))
        };
        let of_pool = self.registry.map.pgs.keys().filter(|pg| pg.pool == POOL);
        let degraded: Vec<PgId> = of_pool.filter(is_degraded).copied().collect();
        (!degraded.is_empty()).then(|| degraded[self.world.random.index(degraded.len())])
    }

    /// A block rots of which another member in sync has a sound copy.
    pub(super) fn rot_some_block(&mut self) {
        let any = self.registry.some_group(&mut self.world.random);
        let degraded = self.some_degraded_group(2);
        let is_at_the_primary = degraded.is_some() || self.world.random.percent(50);
        let pg = degraded.unwrap_or(any);
        let in_sync: Vec<OsdId> = self.registry.map.pgs[&pg].in_sync.clone();
        let index = match is_at_the_primary {
            true => self.registry.map.pgs[&pg].primary.0 as usize,
            false => in_sync[self.world.random.index(in_sync.len())].0 as usize,
        };
        let found = match is_at_the_primary {
            true => self.some_new_block(pg, index),
            false => self.some_block(pg, index),
        };
        let Some((key, block)) = found else { return };
        if !self.may_lose_copy(index, &key, block) {
            return;
        }
        let Some(location) = look(&self.nodes[index], &key, block).map(|held| held.location) else { return };
        if self.nodes[index].rot(location, &mut self.world.random) {
            self.world.event(Some(Process(index)), "rot");
            self.world.story(Some(Process(index)), || format!("block {block} of {key} rots"));
            self.has_lost_copy(index, key, block);
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

    /// Whether a block of a node may be spoiled: another member in sync has it, sound, and is there to stay.
    fn may_lose_copy(&self, index: usize, key: &ObjectKey, block: u16) -> bool {
        let map = &self.registry.map;
        let (Some(config), Some(target)) = (map.pgs.get(&key.pg), map.targets.get(&key.pg)) else {
            return false;
        };
        let held = look(&self.nodes[index], key, block).filter(Held::is_sound);
        // Nobody else may have lost the same block, and one who has it must be there.
        let is_spoiled = |spot: &Spot| is_same(&spot.key, key) && spot.block == block;
        let has_it = |osd: &OsdId| {
            let node = osd.0 as usize;
            node != index
                && target.contains(osd)
                // Who is out counts as gone when it is down.
                && self.registry.is_in(*osd)
                && !self.registry.has_lost_its_drive(node)
                && self.atlas.lacks_a_batch(&self.nodes) != Some(node)
                && look(&self.nodes[node], key, block)
                    .zip(held)
                    .is_some_and(|(theirs, held)| theirs.is_sound() && theirs.is_same(&held))
        };
        // Of a pool that keeps one copy the others are on their way out.
        let keeps_one = self.registry.pool().size < 2;
        key.pg.pool == POOL
            && !keeps_one
            && !self.atlas.spots.iter().any(is_spoiled)
            && config.in_sync.iter().any(has_it)
    }

    /// Notes that a node has a block no more as it was.
    fn has_lost_copy(&mut self, node: usize, key: ObjectKey, block: u16) {
        self.world.has_damage = true;
        let in_volume = u64::from(key.object) * OBJECT_BLOCKS as u64 + u64::from(block);
        self.world.spoiled.insert((key.layer.volume().family(), in_volume));
        self.atlas.spots.push(Spot { node, key, block });
    }

    /// A batch on its way to some drive is written to another place of it, over what lies there, and is told as done. So it
    /// counts as durable, and is not where it belongs; and other blocks are not what they were. The others have all of it.
    pub(super) fn misdirect_some_write(&mut self) {
        let index = self.world.random.index(self.nodes.len());
        let groups = self.groups_in_sync(index);
        // It may not be started again for that, and be given a blank drive: what others have lost it must not be the last to have.
        self.atlas.has_damage(&self.nodes, &self.served);
        let have_others_lost = self.atlas.spots.iter().any(|spot| spot.node != index);
        if have_others_lost || !self.may_lose_the_end_of_a_log(&groups) {
            return;
        }
        let Some((from, blocks)) = self.nodes[index].some_batch_in_flight(&mut self.world.random) else {
            // Some node will have one soon.
            if self.world.random.percent(70) {
                self.strike_soon(FaultKind::MisdirectedWrite, 10);
            }
            return;
        };
        for _ in 0..PLACES_TRIED {
            let Some(to) = self.some_place_of_drive(index, blocks) else { return };
            let hit = blocks_within(&self.nodes[index], &(to..to + blocks));
            let may_hit = hit.iter().all(|(key, block)| self.may_lose_copy(index, key, *block));
            if !may_hit || !self.nodes[index].misdirect(from, to) {
                continue;
            }
            self.world.event(Some(Process(index)), "a write goes astray");
            self.world.story(Some(Process(index)), || {
                format!("what was meant for {from}+{blocks} of its drive goes to {to}, and hits {hit:?}")
            });
            self.world.coverage.add("blocks that a write hit which went astray", hit.len() as u64);
            for (key, block) in hit {
                self.has_lost_copy(index, key, block);
            }
            let starts = self.nodes[index].starts();
            self.world.has_damage = true;
            self.atlas.astray = Some(Astray { node: index, places: from..from + blocks, starts });
            self.atlas.tail = Some(Tail { node: index, groups, starts });
            if self.doomed.is_none() {
                let outage = self.world.random.between(100 * MILLISECOND, 6 * SECOND);
                self.doom(index, outage);
            }
            return;
        }
    }

    /// Where so many blocks may lie in a node's log, mostly over some that count.
    fn some_place_of_drive(&mut self, index: usize, blocks: u32) -> Option<u32> {
        let log = self.nodes[index].log_places();
        let last = log.end.checked_sub(blocks).filter(|last| *last > log.start)?;
        let pg = self.registry.some_group(&mut self.world.random);
        let found = self.some_block(pg, index).filter(|_| self.world.random.percent(70));
        let over = found.and_then(|(key, block)| look(&self.nodes[index], &key, block));
        Some(match over.map(|held| held.location) {
            Some(place) => {
                let before = self.world.random.below(u64::from(blocks)) as u32;
                place.saturating_sub(before).clamp(log.start, last)
            }
            None => self.world.random.between(u64::from(log.start), u64::from(last)) as u32,
        })
    }

    /// Whoever lacks a batch of its log and does not know is started anew: nothing shall break any more, and that would.
    pub(super) fn start_anew_who_lacks_a_batch(&mut self) {
        if let Some(node) = self.atlas.lacks_a_batch(&self.nodes) {
            self.stop_node_for(node, false, "is started anew after a write went astray", SECOND);
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
        let key = ObjectKey { pg, layer: entry.layer, object: entry.object };
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
        if !self.may_lose_the_end_of_a_log(&groups) {
            return false;
        }
        self.stop_node(index, false, "crash");
        let is_rotten = self.nodes[index].rot_end(location);
        if is_rotten {
            self.world.event(Some(Process(index)), "the end of a log rots");
            self.world.story(Some(Process(index)), || format!("block {location} of its drive rots"));
            self.world.has_damage = true;
            self.atlas.tail = Some(Tail { node: index, groups, starts: self.nodes[index].starts() });
        }
        is_rotten
    }

    /// Whether nothing is lost if a node that is in sync in these groups starts without what it acknowledged last: all the others
    /// in sync have it, and it must never be alone with what it has.
    fn may_lose_the_end_of_a_log(&mut self, groups: &[(PgId, Epoch)]) -> bool {
        let is_alone = groups.iter().any(|(pg, _)| self.registry.map.pgs[pg].in_sync.len() < 2);
        let has_lost = (0..self.nodes.len()).any(|node| self.registry.has_lost_its_drive(node));
        let fails_to_read = self.nodes.iter().any(|node| !node.reads_since(self.world.now));
        let mut nodes = (0..self.nodes.len()).map(|node| OsdId(node as u32));
        // One that was not added yet holds nothing.
        let has_out = nodes.any(|osd| self.registry.map.osds.contains_key(&osd) && !self.registry.is_in(osd));
        // A group that goes on with one member alone may go on with this one.
        let waits_for_others = self.registry.map.pools.values().all(|pool| pool.min_size > 1);
        waits_for_others
            && !is_alone
            && !has_lost
            && !has_out
            && !fails_to_read
            && self.registry.is_settled()
            && !self.atlas.has_damage(&self.nodes, &self.served)
    }
}
