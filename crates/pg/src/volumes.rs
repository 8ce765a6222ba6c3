//! What an OSD knows of the cluster: its newest map, and of each volume what requests need.
//!
//! # Whose word counts for a generation
//! What the map shows, and what a client names that may write to the volume, is *vouched* for: it counts for good, and other
//! OSDs are told of it. What another OSD tells beyond that, nobody can tell from a lie before a map comes that is new enough. It
//! counts at once, for as long as the link lasts on which it came: who told it has a say in what is served here only as long
//! (docs/protocol.md). When the map shows that the volume was attached anew, and still an older generation than the one told,
//! that link ends: it was a lie, or this map is late, and then it is told again. So an OSD that lies costs a volume no more than
//! that it is attached anew.

use base::figures::Traffic;
use base::hash::Map;
use base::map::{Admission, ClusterMap};
use base::{CutId, Generation, LinkId, OsdId, PoolId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Volumes that the map does not show and that fences are remembered of; of other OSDs, for each link.
const UNKNOWN_MAX: usize = 4096;

/// What requests need to know of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VolumeState {
    pub(crate) pool: PoolId,
    /// Its size in bytes: nobody is served beyond.
    pub(crate) bytes: u64,
    /// The oldest that is served.
    pub(crate) generation: Generation,
    /// The newest that is vouched for.
    pub(crate) vouched: Generation,
    /// The one that the newest map shows.
    shown: Generation,
    pub(crate) is_removed: bool,
    /// What clients were served of it here.
    pub(crate) traffic: Traffic,
}

impl VolumeState {
    /// A client that may write to it names that generation.
    pub(crate) fn is_attached_as(&mut self, generation: Generation) {
        self.vouched = self.vouched.max(generation);
        self.generation = self.generation.max(generation);
    }
}

/// A volume that was made smaller, and of which something may be left beyond its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shrunk {
    pub(crate) pool: PoolId,
    /// Where it ends, in bytes.
    pub(crate) end: u64,
    pub(crate) cut: CutId,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    pub(crate) map: Arc<ClusterMap>,
    known: Map<VolumeId, VolumeState>,
    /// Those that the newest map shows to be cut.
    pub(crate) shrunk: BTreeMap<VolumeId, Shrunk>,
    /// Generations of volumes that the map does not show yet, as clients name them.
    fences: BTreeMap<VolumeId, Generation>,
    /// What other OSDs told on their links beyond what is vouched for.
    told: BTreeMap<LinkId, BTreeMap<VolumeId, Generation>>,
    /// Links on which something was told that a newer map does not bear out. They are to end.
    pub(crate) contradicted: BTreeSet<LinkId>,
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
        let (mut is_one_removed, mut attached_anew) = (false, BTreeSet::new());
        self.shrunk.clear();
        for (id, info) in &map.volumes {
            if !map.pools.contains_key(&info.pool) {
                continue;
            }
            let fence = self.fences.remove(id).unwrap_or_default();
            if self.known.get(id).is_some_and(|state| state.shown < info.generation) {
                attached_anew.insert(*id);
            }
            let state = self.known.entry(*id).or_default();
            (state.pool, state.bytes, state.is_removed) = (info.pool, info.bytes, info.removed);
            if let Some(cut) = info.cut.filter(|_| !info.removed) {
                self.shrunk.insert(*id, Shrunk { pool: info.pool, end: info.bytes, cut });
            }
            state.shown = info.generation;
            state.is_attached_as(info.generation.max(fence));
            is_one_removed |= info.removed;
        }
        for (link, told) in &mut self.told {
            told.retain(|volume, generation| {
                let Some(state) = self.known.get_mut(volume) else { return true };
                state.generation = state.generation.max(*generation);
                if attached_anew.contains(volume) && *generation > state.shown {
                    self.contradicted.insert(*link);
                }
                *generation > state.vouched
            });
        }
        is_one_removed
    }

    /// A client that may write has nobody served with an older generation from here on. `false` if it cannot be remembered.
    pub(crate) fn fence(&mut self, volume: VolumeId, generation: Generation) -> bool {
        if let Some(state) = self.known.get_mut(&volume) {
            state.is_attached_as(generation);
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

    /// Another OSD says on a link that a volume was attached under that generation: nobody is served with an older one for as
    /// long as the link lasts. `false` if it cannot be remembered.
    pub(crate) fn was_told(&mut self, link: LinkId, volume: VolumeId, generation: Generation) -> bool {
        let known = self.known.get_mut(&volume);
        if known.as_ref().is_some_and(|state| generation <= state.vouched) {
            return true;
        }
        let told = self.told.entry(link).or_default();
        if known.is_none() && told.len() >= UNKNOWN_MAX && !told.contains_key(&volume) {
            return false;
        }
        let newest = told.entry(volume).or_default();
        *newest = generation.max(*newest);
        if let Some(state) = known {
            state.generation = state.generation.max(generation);
        }
        true
    }

    /// A link ended: what was told on it counts no more.
    pub(crate) fn forget_told(&mut self, link: LinkId) {
        self.contradicted.remove(&link);
        for volume in self.told.remove(&link).unwrap_or_default().into_keys() {
            let others = self.told.values().filter_map(|told| told.get(&volume)).max().copied();
            if let Some(state) = self.known.get_mut(&volume) {
                state.generation = state.vouched.max(others.unwrap_or_default());
            }
        }
    }

    /// Every generation that is vouched for, in order.
    pub(crate) fn generations(&self) -> Vec<(VolumeId, Generation)> {
        let known = self.known.iter().filter(|(_, state)| !state.is_removed);
        let known = known.map(|(volume, state)| (*volume, state.vouched));
        let mut all: Vec<_> =
            known.chain(self.fences.iter().map(|(volume, generation)| (*volume, *generation))).collect();
        all.retain(|(_, generation)| *generation > Generation(0));
        all.sort_unstable();
        all
    }

    /// Whether an OSD counts as up: the registry hears from it.
    pub(crate) fn is_up(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_some_and(|info| info.address.is_some())
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
    use base::map::{OsdInfo, VolumeInfo};

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
    fn of_volumes_the_newest_map_says_where_they_end_and_which_are_cut() {
        let mut volumes = Volumes::default();
        let mut map = crate::testing::map(1);
        let volume = *map.volumes.keys().next().expect("there is one");
        let heed = |volumes: &mut Volumes, map: &ClusterMap| {
            volumes.heed(map);
            let ends = volumes.get(volume).map(|state| state.bytes);
            (ends, volumes.shrunk.get(&volume).map(|shrunk| (shrunk.end, shrunk.cut)))
        };
        assert_eq!(heed(&mut volumes, &map), (Some(1 << 30), None));
        let info = map.volumes.get_mut(&volume).expect("it is there");
        (info.bytes, info.cut) = (4097, Some(CutId(3)));
        assert_eq!(heed(&mut volumes, &map), (Some(4097), Some((4097, CutId(3)))));
        map.volumes.get_mut(&volume).expect("it is there").removed = true;
        assert_eq!(heed(&mut volumes, &map), (Some(4097), None), "it goes as a whole");
    }

    #[test]
    fn strangers_cannot_have_fences_remembered_without_end() {
        let mut volumes = Volumes::default();
        let last = UNKNOWN_MAX as u64;
        assert!((1..=last).all(|volume| volumes.fence(VolumeId(volume), Generation(1))));
        assert!(!volumes.fence(VolumeId(last + 1), Generation(1)));
        assert!(volumes.fence(VolumeId(last), Generation(2)), "one that is known may change");
        // Nor can an OSD; another one is not kept by that, nor by what clients do.
        let link = LinkId(1);
        assert!((1..=last).all(|volume| volumes.was_told(link, VolumeId(volume), Generation(1))));
        assert!(!volumes.was_told(link, VolumeId(last + 1), Generation(1)));
        assert!(volumes.was_told(LinkId(2), VolumeId(last + 1), Generation(1)));
    }

    const VOLUME: VolumeId = crate::testing::VOLUME;

    fn served(volumes: &Volumes) -> Option<Generation> {
        volumes.get(VOLUME).map(|state| state.generation)
    }

    #[test]
    fn what_an_osd_tells_beyond_the_map_counts_as_long_as_its_link_lasts_and_is_not_passed_on() {
        let mut volumes = Volumes::default();
        volumes.heed(&crate::testing::map(1));
        assert!(volumes.was_told(LinkId(1), VOLUME, Generation(9)));
        assert!(volumes.was_told(LinkId(2), VOLUME, Generation(3)));
        assert_eq!(served(&volumes), Some(Generation(9)));
        assert_eq!(volumes.generations(), [(VOLUME, Generation(1))]);
        // The same map, or another one of something else, changes nothing.
        volumes.heed(&crate::testing::map(1));
        assert_eq!((served(&volumes), volumes.contradicted.len()), (Some(Generation(9)), 0));
        volumes.forget_told(LinkId(1));
        assert_eq!(served(&volumes), Some(Generation(3)));
        // What a client names that may write counts for good.
        assert!(volumes.fence(VOLUME, Generation(2)));
        volumes.forget_told(LinkId(2));
        assert_eq!(served(&volumes), Some(Generation(2)));
        assert_eq!(volumes.generations(), [(VOLUME, Generation(2))]);
    }

    #[test]
    fn a_generation_that_no_attach_bears_out_ends_the_link_on_which_it_was_told() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        let (liar, other) = (LinkId(1), LinkId(2));
        // Before the map shows the volume, and what it shows first may be from before the fence.
        assert!(volumes.was_told(liar, VOLUME, Generation(u32::MAX)));
        assert!(volumes.was_told(other, VOLUME, Generation(2)));
        volumes.heed(&map);
        assert_eq!((served(&volumes), volumes.contradicted.len()), (Some(Generation(u32::MAX)), 0));
        // Somebody attaches it.
        map.volumes.get_mut(&VOLUME).expect("it is there").generation = Generation(2);
        volumes.heed(&map);
        assert_eq!(std::mem::take(&mut volumes.contradicted), BTreeSet::from([liar]));
        volumes.forget_told(liar);
        assert_eq!(served(&volumes), Some(Generation(2)), "and is served");
    }

    #[test]
    fn generations_are_told_in_order_of_volumes_that_were_attached_and_are_there() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        let info = map.volumes[&VOLUME].clone();
        for (volume, generation, removed) in [(5, 4, false), (2, 3, false), (9, 0, false), (3, 8, true)] {
            let info = VolumeInfo { generation: Generation(generation), removed, ..info.clone() };
            map.volumes.insert(VolumeId(volume), info);
        }
        assert!(volumes.heed(&map), "one of them was removed");
        assert!(volumes.fence(VolumeId(4), Generation(6)));
        let told = [(1, 1), (2, 3), (4, 6), (5, 4)];
        let told = told.map(|(volume, generation)| (VolumeId(volume), Generation(generation)));
        assert_eq!(volumes.generations(), told);
    }

    #[test]
    fn a_volume_of_a_pool_that_the_map_does_not_show_stays_what_it_was() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        let pools = std::mem::take(&mut map.pools);
        assert!(!volumes.heed(&map) && volumes.get(VOLUME).is_none());
        map.pools = pools;
        volumes.heed(&map);
        map.pools.clear();
        let info = map.volumes.get_mut(&VOLUME).expect("it is there");
        (info.bytes, info.removed) = (1, true);
        assert!(!volumes.heed(&map) && !volumes.is_removed(VOLUME));
        assert_eq!(volumes.get(VOLUME).map(|state| state.bytes), Some(1 << 30));
    }

    #[test]
    fn of_what_several_osds_tell_the_newest_counts_and_nothing_is_kept_of_what_is_vouched_for() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        volumes.heed(&map);
        for (link, generation) in [(1, 9), (2, 3), (3, 5), (4, 4), (3, 2), (5, 1)] {
            assert!(volumes.was_told(LinkId(link), VOLUME, Generation(generation)));
        }
        assert!(!volumes.told.contains_key(&LinkId(5)), "whoever connects tells what is known anyway");
        volumes.forget_told(LinkId(1));
        assert_eq!(served(&volumes), Some(Generation(5)));
        map.volumes.get_mut(&VOLUME).expect("it is there").generation = Generation(2);
        volumes.heed(&map);
        volumes.forget_told(LinkId(3));
        assert_eq!(served(&volumes), Some(Generation(4)));
        let left = BTreeSet::from([2, 4].map(LinkId));
        assert_eq!(volumes.contradicted, left, "a link that has ended is not to end");
    }

    #[test]
    fn who_is_out_may_be_up_and_who_is_out_and_down_is_gone() {
        let mut map = ClusterMap::default();
        let (up, out) = (Some(([127, 0, 0, 1], 7000).into()), Admission::OutWhileDown);
        let osds =
            [(1, up, Admission::In), (2, None, Admission::In), (3, up, Admission::Out), (4, None, out)];
        for (osd, address, admission) in osds {
            map.osds.insert(OsdId(osd), OsdInfo { address, admission, ..OsdInfo::default() });
        }
        let volumes = Volumes { map: Arc::new(map), ..Volumes::default() };
        // The last one was removed.
        let are = |is: fn(&Volumes, OsdId) -> bool| [1, 2, 3, 4, 5].map(|osd| is(&volumes, OsdId(osd)));
        assert_eq!(are(Volumes::is_up), [true, false, true, false, false]);
        assert_eq!(are(Volumes::is_out), [false, false, true, true, true]);
        assert_eq!(are(Volumes::is_gone), [false, false, false, true, true]);
    }
}
