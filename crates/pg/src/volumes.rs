//! What an OSD knows of the cluster: its newest map, and of each volume what requests need.

use base::figures::Traffic;
use base::hash::Map;
use base::map::{Admission, ClusterMap};
use base::{Generation, OsdId, PoolId, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Volumes that the map does not show and that fences are remembered of.
const UNKNOWN_MAX: usize = 4096;

/// What requests need to know of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VolumeState {
    pub(crate) pool: PoolId,
    pub(crate) generation: Generation,
    pub(crate) is_removed: bool,
    /// What clients were served of it here.
    pub(crate) traffic: Traffic,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    pub(crate) map: Arc<ClusterMap>,
    known: Map<VolumeId, VolumeState>,
    /// Generations of volumes that the map does not show yet.
    fences: BTreeMap<VolumeId, Generation>,
}

impl Volumes {
    pub(crate) fn get(&self, volume: VolumeId) -> Option<&VolumeState> {
        self.known.get(&volume)
    }

    pub(crate) fn get_mut(&mut self, volume: VolumeId) -> Option<&mut VolumeState> {
        self.known.get_mut(&volume)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (VolumeId, &VolumeState)> {
        self.known.iter().map(|(id, state)| (*id, state))
    }

    pub(crate) fn is_removed(&self, volume: VolumeId) -> bool {
        self.get(volume).is_some_and(|state| state.is_removed)
    }

    /// Takes over what a newer map shows of volumes. Answers whether one of them was removed.
    pub(crate) fn heed(&mut self, map: &ClusterMap) -> bool {
        let mut is_one_removed = false;
        for (id, info) in &map.volumes {
            if !map.pools.contains_key(&info.pool) {
                continue;
            }
            let fence = self.fences.remove(id).unwrap_or_default();
            let state = self.known.entry(*id).or_default();
            (state.pool, state.is_removed) = (info.pool, info.removed);
            state.generation = state.generation.max(info.generation).max(fence);
            is_one_removed |= info.removed;
        }
        is_one_removed
    }

    /// Serves nobody with an older generation from here on. `false` if it cannot be remembered.
    pub(crate) fn fence(&mut self, volume: VolumeId, generation: Generation) -> bool {
        if let Some(state) = self.known.get_mut(&volume) {
            state.generation = state.generation.max(generation);
            return true;
        }
        // The map that shows the volume is on its way, and may be from before the fence.
        if self.fences.len() >= UNKNOWN_MAX && !self.fences.contains_key(&volume) {
            return false;
        }
        let known = self.fences.entry(volume).or_default();
        *known = generation.max(*known);
        true
    }

    /// Every generation that is known, in order.
    pub(crate) fn generations(&self) -> Vec<(VolumeId, Generation)> {
        let known = self.known.iter().filter(|(_, state)| !state.is_removed);
        let known = known.map(|(volume, state)| (*volume, state.generation));
        let mut all: Vec<_> =
            known.chain(self.fences.iter().map(|(volume, generation)| (*volume, *generation))).collect();
        all.retain(|(_, generation)| *generation > Generation(0));
        all.sort_unstable();
        all
    }

    /// Whether an OSD is not expected to come back with what it holds: it was taken out, or removed.
    pub(crate) fn is_out(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_none_or(|info| info.admission != Admission::In)
    }

    /// Whether an OSD is out and down: it is not expected to answer ever again. One that is out and up may just not be
    /// reached for a moment.
    pub(crate) fn is_gone(&self, osd: OsdId) -> bool {
        self.is_out(osd) && self.map.osds.get(&osd).is_none_or(|info| info.address.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_of_a_volume_that_no_map_shows_yet_counts_when_one_does() {
        let mut volumes = Volumes::default();
        let volume = VolumeId(1);
        assert!(volumes.fence(volume, Generation(7)) && volumes.fence(volume, Generation(5)));
        assert_eq!(volumes.generations(), [(volume, Generation(7))]);
        assert!(!volumes.heed(&crate::testing::map(1)));
        assert_eq!(volumes.get(volume).map(|state| state.generation), Some(Generation(7)));
    }

    #[test]
    fn strangers_cannot_have_fences_remembered_without_end() {
        let mut volumes = Volumes::default();
        let last = UNKNOWN_MAX as u64;
        assert!((1..=last).all(|volume| volumes.fence(VolumeId(volume), Generation(1))));
        assert!(!volumes.fence(VolumeId(last + 1), Generation(1)));
        assert!(volumes.fence(VolumeId(last), Generation(2)), "one that is known may change");
    }
}
