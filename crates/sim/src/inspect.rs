//! Looks at a store from outside and compares it with the model and the drive.

use crate::contents::{Contents, Place};
use crate::drive::SimDrive;
use crate::model::{Model, Seen, Shown};
use base::{OBJECT_BLOCKS, ObjectKey, Sequence, ZERO_BLOCK_CRC32C, crc32c};
use std::collections::{BTreeMap, BTreeSet};
use store::{Location, Store};

/// Where a hole is shown to lie.
pub const HOLE: u32 = Location::HOLE.0;

/// Everything a store shows.
#[derive(Clone, Debug)]
pub struct View {
    /// Blocks and log positions.
    pub shown: Shown,
    /// By object, by block: the 4 KiB block of the drive, [`HOLE`] of a hole, `None` where nothing is.
    pub locations: Vec<Vec<Option<u32>>>,
}

/// What lies under a store, and how its bytes are read. The places of its objects' blocks have the object's number among the
/// model's as their volume.
#[derive(Clone, Copy, Debug)]
pub struct Media<'a> {
    /// The drive.
    pub drive: &'a SimDrive,
    /// What was written.
    pub contents: Contents,
    /// By object and block: the token of the version that rotted there last.
    pub rotten: &'a BTreeMap<(usize, usize), u64>,
}

impl Media<'_> {
    /// Who wrote what lies at a location, as it says; `None` if that has rotted.
    fn author(&self, object: usize, block: usize, location: u32, checksum: u32) -> Option<u64> {
        let bytes = self.drive.block(location);
        let is_rotten = self.rotten.contains_key(&(object, block)) && crc32c(bytes) != checksum;
        (!is_rotten).then(|| self.contents.author_of(bytes))
    }
}

impl View {
    /// Looks at `store`.
    ///
    /// # Errors
    /// If what it shows contradicts itself.
    pub fn of(store: &Store, model: &Model, media: Media<'_>) -> Result<View, String> {
        let (mut blocks, mut locations) = (Vec::new(), Vec::new());
        let mut taken = BTreeMap::new();
        let mut expected_objects = BTreeSet::new();
        let objects: BTreeSet<ObjectKey> = store.objects().collect();
        for (object, key) in model.keys.iter().enumerate() {
            // A split that was not reported durable may have survived: then it has another name.
            let is_it = |listed: &&ObjectKey| (listed.layer, listed.object) == (key.layer, key.object);
            let key = objects.iter().find(is_it).unwrap_or(key);
            let (object_checksums, object_locations) = look_up(store, key)?;
            if object_locations.iter().any(Option::is_some) {
                expected_objects.insert(*key);
            }
            for (block, location) in object_locations.iter().enumerate() {
                if let Some(location) = location.filter(|location| *location != HOLE)
                    && let Some((other, other_block)) = taken.insert(location, (key, block))
                {
                    return Err(format!(
                        "block {block} of {key} and block {other_block} of {other} are both at {location}"
                    ));
                }
            }
            let seen =
                (0..).zip(&object_locations).zip(object_checksums).map(|((block, location), checksum)| {
                    let (location, checksum) = ((*location)?, checksum?);
                    let is_hole = location == HOLE;
                    let author = || media.author(object, block, location, checksum);
                    Some(Seen { checksum, token: if is_hole { None } else { author() }, is_hole })
                });
            blocks.push(seen.collect());
            locations.push(object_locations);
        }
        if objects != expected_objects {
            return Err(format!("the store lists {objects:?}, but {expected_objects:?} have blocks"));
        }
        for pg in &model.pgs {
            let (counted, listed) =
                (store.object_count(*pg), objects.iter().filter(|key| key.pg == *pg).count());
            if counted != listed as u64 {
                return Err(format!("the store counts {counted} objects of {pg}, and lists {listed}"));
            }
        }
        let positions = model.pgs.iter().map(|pg| store.pg_position(*pg)).collect();
        Ok(View { shown: Shown { blocks, positions }, locations })
    }
}

type Looked = (Vec<Option<u32>>, Vec<Option<u32>>);

/// Checksums and places of all blocks of one object.
fn look_up(store: &Store, key: &ObjectKey) -> Result<Looked, String> {
    let (mut extents, mut found) = (Vec::new(), Vec::new());
    store.lookup(key, 0, OBJECT_BLOCKS as u16, &mut extents, &mut found);
    if found.len() != OBJECT_BLOCKS {
        return Err(format!("lookup of {key} gave {} checksums for {OBJECT_BLOCKS} blocks", found.len()));
    }
    let (mut checksums, mut locations) = (vec![None; OBJECT_BLOCKS], vec![None; OBJECT_BLOCKS]);
    let mut next = 0;
    for extent in &extents {
        let (first, count) = (usize::from(extent.first_block), usize::from(extent.block_count));
        if first != next || count == 0 || first + count > OBJECT_BLOCKS {
            return Err(format!("lookup of {key} gave extents that do not follow each other: {extents:?}"));
        }
        next = first + count;
        for block in first..next {
            match extent.location {
                Some(Location::HOLE) => {
                    checksums[block] = Some(found[block]);
                    locations[block] = Some(HOLE);
                }
                Some(location) => {
                    checksums[block] = Some(found[block]);
                    locations[block] = Some(location.0 + (block - first) as u32);
                }
                None if found[block] != ZERO_BLOCK_CRC32C => {
                    return Err(format!(
                        "block {block} of {key} is zeros with checksum {:08x}",
                        found[block]
                    ));
                }
                None => {}
            }
        }
    }
    if next != OBJECT_BLOCKS {
        return Err(format!("lookup of {key} ends at block {next}"));
    }
    let bits = store.allocated_bits(key);
    for (block, location) in locations.iter().enumerate() {
        if (bits[block / 8] >> (block % 8) & 1 == 1) != location.is_some() {
            return Err(format!("the allocation bit of block {block} of {key} contradicts its lookup"));
        }
    }
    Ok((checksums, locations))
}

/// Compares one object with the durable state of the model, by its index and by every byte on the drive. What rotted need not
/// have its bytes, but still has the checksum it was written with.
///
/// # Errors
/// The first difference.
pub fn check_object(store: &Store, model: &Model, object: usize, media: Media<'_>) -> Result<(), String> {
    let key = &model.keys[object];
    let (checksums, locations) = look_up(store, key)?;
    for (block, version) in model.blocks[object].iter().enumerate() {
        let (Some(location), Some(checksum)) = (locations[block], checksums[block]) else {
            if version.token == 0 {
                continue;
            }
            return Err(format!("block {block} of {key} shows zeros, but {version:x?} is durable"));
        };
        let is_hole = location == HOLE;
        if version.token == 0 || (version.checksum, version.is_hole) != (checksum, is_hole) {
            let what = if is_hole { "a hole".to_owned() } else { format!("{checksum:08x}") };
            return Err(format!("block {block} of {key} shows {what}, but {version:x?} is durable"));
        }
        if is_hole {
            continue;
        }
        let bytes = media.drive.block(location);
        let place = Place { volume: object as u64, block: block as u64 };
        if media.rotten.get(&(object, block)) != Some(&version.token)
            && !media.contents.is_by(version.token, place, bytes)
        {
            let author = media.contents.author_of(bytes);
            let what = match media.contents.is_by(author, place, bytes) {
                true if author < version.token => format!("is stale: it holds what operation {author} wrote"),
                true => format!("holds what operation {author} wrote, which is not durable"),
                false => "holds bytes that nobody wrote".to_owned(),
            };
            return Err(format!(
                "block {block} of {key}, written by operation {}, {what}, at block {location} of the drive",
                version.token
            ));
        }
    }
    check_changes(store, model, object)
}

/// An index may say that a block changed later than it did, but never earlier; and not later than its group has got, but for
/// what 16 bits a block leave of that. How far a group has got whose log was forgotten nobody knows, and what is pushed to it
/// afterwards may have changed later than its new log says.
fn check_changes(store: &Store, model: &Model, object: usize) -> Result<(), String> {
    let (key, versions) = (&model.keys[object], &model.blocks[object]);
    let last = model.logs[model.pg_of[object]].position().map(|(_, sequence)| sequence);
    let most = |since: Sequence| {
        last.map_or(Sequence(u64::MAX), |last| {
            let last = last.max(since).0;
            Sequence(last + last / (1 << 15))
        })
    };
    let mut wrong = None;
    store.for_each_block(key, |block, _, changed: Sequence| {
        let since = versions[usize::from(block)].changed;
        if changed < since || changed > most(since) {
            wrong.get_or_insert((block, changed, since));
        }
    });
    wrong.map_or(Ok(()), |(block, changed, since)| {
        Err(format!(
            "block {block} of {key} changed at {since}, in a group that has got to {last:?}; its index says at {changed}"
        ))
    })
}

/// Compares the logs of all placement groups with the model's.
///
/// # Errors
/// The first difference.
pub fn check_logs(store: &Store, model: &Model) -> Result<(), String> {
    for (pg, log) in model.pgs.iter().zip(&model.logs) {
        if store.pg_position(*pg) != log.position() {
            return Err(format!(
                "pg {pg} stands at {:?}, but {:?} is durable",
                store.pg_position(*pg),
                log.position()
            ));
        }
        let found = store.pg_log(*pg);
        if found.len() != log.entries.len() {
            return Err(format!("pg {pg} has {} log entries, not {}", found.len(), log.entries.len()));
        }
        for (found, entry) in found.zip(&log.entries) {
            let places_agree = match entry.object {
                Some(object) => {
                    let key = &model.keys[object];
                    (found.layer, found.object, found.first_block)
                        == (key.layer, key.object, entry.first_block)
                }
                None => true,
            };
            if (found.epoch, found.sequence) != (entry.epoch, entry.sequence)
                || found.block_count != entry.block_count
                || !places_agree
            {
                return Err(format!("pg {pg} has the log entry {found:?} where {entry:?} belongs"));
            }
        }
        let begins = store.pg_log_begins(*pg);
        if begins != log.begins {
            return Err(format!("pg {pg} has a log that begins at {}, and it says {begins}", log.begins));
        }
    }
    check_held(store, model)
}

/// A member that missed something may say that it surely has less than it has, but never more.
fn check_held(store: &Store, model: &Model) -> Result<(), String> {
    for (key, missed_behind) in model.keys.iter().zip(&model.missed_behind) {
        let through = store.object_held_through(key);
        if let Some(missed_behind) = missed_behind.filter(|missed_behind| through > *missed_behind) {
            return Err(format!(
                "{key} is said to be held through {through}, and what came behind {missed_behind} was missed"
            ));
        }
    }
    Ok(())
}
