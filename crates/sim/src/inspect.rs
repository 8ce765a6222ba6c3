//! Looks at a store from outside and compares it with the model and the drive.

use crate::drive::SimDrive;
use crate::model::{Model, Shown, agrees};
use base::{OBJECT_BLOCKS, ObjectKey, ZERO_BLOCK_CRC32C, crc32c};
use std::collections::{BTreeMap, BTreeSet};
use store::Store;

/// Everything a store's index says.
#[derive(Clone, Debug)]
pub struct View {
    /// Checksums and log positions.
    pub shown: Shown,
    /// By object, by block: the 4 KiB block of the drive, `None` where it reads as zeros.
    pub locations: Vec<Vec<Option<u32>>>,
}

impl View {
    /// Looks at `store`.
    ///
    /// # Errors
    /// If what it shows contradicts itself.
    pub fn of(store: &Store, model: &Model) -> Result<View, String> {
        let (mut checksums, mut locations) = (Vec::new(), Vec::new());
        let mut taken = BTreeMap::new();
        let mut expected_objects = BTreeSet::new();
        let objects: BTreeSet<ObjectKey> = store.objects().collect();
        for key in &model.keys {
            // A split that was not reported durable may have survived: then it has another name.
            let is_it = |listed: &&ObjectKey| (listed.volume, listed.object) == (key.volume, key.object);
            let key = objects.iter().find(is_it).unwrap_or(key);
            let (object_checksums, object_locations) = look_up(store, key)?;
            if object_locations.iter().any(Option::is_some) {
                expected_objects.insert(*key);
            }
            for (block, location) in object_locations.iter().enumerate() {
                if let Some(location) = location
                    && let Some((other, other_block)) = taken.insert(*location, (key, block))
                {
                    return Err(format!(
                        "block {block} of {key} and block {other_block} of {other} are both at {location}"
                    ));
                }
            }
            checksums.push(object_checksums);
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
        Ok(View { shown: Shown { checksums, positions }, locations })
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

/// Compares one object with the durable state of the model, and its data on the drive with its
/// checksums. `rotten` blocks need not verify, but must still have the checksum they were written with.
///
/// # Errors
/// The first difference.
pub fn check_object(
    store: &Store,
    model: &Model,
    object: usize,
    drive: &SimDrive,
    rotten: &BTreeMap<(usize, usize), u64>,
) -> Result<(), String> {
    let key = &model.keys[object];
    let (checksums, locations) = look_up(store, key)?;
    for (block, version) in model.blocks[object].iter().enumerate() {
        if !agrees(*version, checksums[block]) {
            return Err(format!(
                "block {block} of {key} shows {:08x?}, but {version:x?} is durable",
                checksums[block]
            ));
        }
        let Some(location) = locations[block] else { continue };
        if crc32c(drive.block(location)) != version.checksum
            && rotten.get(&(object, block)) != Some(&version.token)
        {
            return Err(format!(
                "block {block} of {key}, written by operation {}, does not verify at block {location} of \
                 the drive",
                version.token
            ));
        }
    }
    Ok(())
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
                    (found.volume, found.object, found.first_block)
                        == (key.volume, key.object, entry.first_block)
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
    Ok(())
}
