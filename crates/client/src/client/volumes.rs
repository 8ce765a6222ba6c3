//! The volumes and snapshots that a client works on.

use super::ownership::Ownership;
use super::stillness::Still;
use super::waiting::Stalls;
use super::{Client, Holding, VolumeHandle};
use crate::error::ClientError;
use base::map::{ClusterMap, VolumeInfo};
use base::{Generation, LayerId, PoolId, VolumeId};

/// Whether a snapshot is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Snapshot {
    There,
    Removed,
    /// It is no snapshot, but the volume as it is, that is looked at and not attached.
    Looked,
}

/// A volume or a snapshot, as far as requests are concerned.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) id: VolumeId,
    /// The layer that is asked for: the newest one, or a snapshot's.
    pub(super) layer: LayerId,
    /// It is a snapshot, which the newest map shows, or does not any more.
    pub(super) snapshot: Option<Snapshot>,
    pub(super) name: String,
    pub(super) pool: PoolId,
    pub(super) bytes: u64,
    pub(super) generation: Generation,
    /// The one that the newest map shows.
    shown: Generation,
    pub(super) holding: Holding,
    /// It is being attached anew, under a newer generation.
    pub(super) is_renewing: bool,
    /// A change failed at its time limit, and may take effect later, if this generation is served.
    pub(super) loose_end: Option<Generation>,
    pub(super) still: Still,
    pub(super) ownership: Ownership,
    pub(super) stalls: Stalls,
}

impl Volume {
    fn new(id: VolumeId, info: &VolumeInfo, generation: Generation, holding: Holding) -> Volume {
        Volume {
            id,
            layer: info.head_layer(id),
            snapshot: None,
            name: info.name.clone(),
            pool: info.pool,
            bytes: info.bytes,
            generation,
            shown: info.generation,
            holding,
            is_renewing: false,
            loose_end: None,
            still: Still::default(),
            ownership: Ownership::kept(),
            stalls: Stalls::default(),
        }
    }

    /// Takes over what a newer map shows of it.
    pub(super) fn heed(&mut self, map: &ClusterMap) {
        if self.snapshot.is_some_and(|snapshot| snapshot != Snapshot::Looked) {
            let is_there = map.snapshot(self.layer).is_some();
            self.snapshot = Some(if is_there { Snapshot::There } else { Snapshot::Removed });
        } else if let Some(info) = map.volumes.get(&self.id) {
            (self.bytes, self.layer) = (info.bytes, info.head_layer(self.id));
            self.shown = info.generation;
            self.still.asked = map.still.get(&self.id).copied();
            self.ownership.is_wished = map.wishes.contains_key(&self.id);
            // Who owns it has a generation of its own.
            if self.ownership.is_opened() && !self.ownership.is_owner() {
                self.generation = self.generation.max(info.generation);
            }
        }
    }

    /// Whether changes of it begin now. Of what came to be owned none does before a map shows that it is: an older one may show the
    /// layer that a snapshot is by now, and OSDs that know no better would take the change for it.
    pub(super) fn lets_begin(&self) -> bool {
        let knows_layer = !self.ownership.is_opened() || self.shown >= self.generation;
        self.still.asked.is_none() && self.ownership.lets_begin() && knows_layer
    }

    /// Why they do not.
    pub(super) fn why_put_off(&self) -> String {
        if !self.ownership.lets_begin() {
            self.ownership.why()
        } else if self.still.asked.is_some() {
            "it stands still for a snapshot, and was not told yet that this is over".to_owned()
        } else {
            "the map that shows by whom it is owned has not come yet".to_owned()
        }
    }

    /// What that fails with that reaches beyond the end by the newest map.
    pub(super) fn out_of_range(&self, offset: u64, length: u64) -> Option<ClientError> {
        // What a larger snapshot holds lies beyond the end of what is looked at.
        let has_end = self.snapshot != Some(Snapshot::Looked);
        let is_beyond = has_end && offset.checked_add(length).is_none_or(|end| end > self.bytes);
        let (name, bytes) = (&self.name, self.bytes);
        is_beyond.then(|| ClientError::OutOfRange { volume: name.clone(), offset, length, bytes })
    }
}

impl Client {
    /// Adds a volume that was attached with `generation`.
    ///
    /// # Panics
    /// If the map does not know the volume or its pool.
    pub fn add_volume(&mut self, id: VolumeId, generation: Generation, holding: Holding) -> VolumeHandle {
        let mut volume = Volume::new(id, self.info_of(id), generation, holding);
        volume.heed(&self.map);
        self.add(volume)
    }

    /// Adds a snapshot, which needs not be attached: it is read, and not written to.
    ///
    /// # Panics
    /// If the map does not know the snapshot, its volume, or that one's pool.
    pub fn add_snapshot(&mut self, layer: LayerId) -> VolumeHandle {
        let snapshot = self.map.snapshot(layer).expect("a snapshot that is read is in the map");
        let id = layer.volume();
        let volume = Volume::new(id, self.info_of(id), Generation(0), Holding::Shared);
        let name = format!("{}@{}", volume.name, snapshot.name);
        let (bytes, snapshot) = (snapshot.bytes, Some(Snapshot::There));
        self.add(Volume { layer, snapshot, name, bytes, ..volume })
    }

    /// Adds a volume that is not attached: it is asked what room it takes, and neither read nor written to.
    ///
    /// # Panics
    /// If the map does not know the volume or its pool.
    pub fn add_look(&mut self, id: VolumeId) -> VolumeHandle {
        let mut volume = Volume::new(id, self.info_of(id), Generation(0), Holding::Shared);
        volume.snapshot = Some(Snapshot::Looked);
        self.add(volume)
    }

    fn info_of(&self, id: VolumeId) -> &VolumeInfo {
        let info = self.map.volumes.get(&id).expect("a volume that is worked on is in the map");
        assert!(self.map.pools.contains_key(&info.pool), "a volume's pool is in the map");
        info
    }

    fn add(&mut self, volume: Volume) -> VolumeHandle {
        self.volumes.push(volume);
        VolumeHandle(self.volumes.len() as u32 - 1)
    }
}
