//! What an OSD knows of the cluster: its newest map, and of each volume what requests need.
//!
//! # Whose word counts for a generation
//! What the map shows counts for good, and other OSDs are told of it. A request may name a newer generation, of who may write
//! to the volume: that counts for good too, here and nowhere else. It may be a lie, about a volume that the liar may spoil
//! anyhow; others would take it for this OSD's, and end their links to it, which everybody needs. So a client's fence waits for
//! the map ([`crate::fence`]).
//!
//! What another OSD tells beyond what is vouched for here, nobody can tell from a lie before a map comes that is new enough. It
//! counts at once, for as long as the link lasts on which it came: who told it has a say in what is served here only as long
//! (docs/protocol.md). When the map shows that the volume was attached anew, and still an older generation than one that was
//! told [some time](LATE_MAX) before, that link ends: it was a lie, or this map is late, and then it is told again. So an OSD
//! that lies costs a volume no more than that it is attached anew; and nobody has links of honest ones ended by attaching it
//! so fast that maps are behind.

use base::figures::Traffic;
use base::hash::Map;
use base::map::{Admission, ClusterMap, OsdInfo};
use base::{CutId, Generation, Instant, LayerId, LayerSpan, LinkId, ObjectKey, OsdId, PoolId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Volumes that the map does not show and that another OSD's fences are remembered of, for each link.
const UNKNOWN_MAX: usize = 4096;
/// How much later than another's a map may come that is not late: as long as the registry waits for a sign of life before it
/// shows an OSD as down.
pub(crate) const LATE_MAX: Duration = Duration::from_secs(6);

/// What requests need to know of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeState {
    pub(crate) pool: PoolId,
    /// The namespace of the pool that it is in; empty: the default one.
    pub(crate) namespace: Arc<str>,
    /// The layer that it writes to.
    pub(crate) head: LayerId,
    /// Of the layers that the newest one sees, those from this one on hold what nobody sees when it is written over.
    unshared: u32,
    /// What is seen from its newest layer, if it was rolled back or is a clone; else nothing.
    sight: Arc<[LayerSpan]>,
    /// Its size in bytes: nobody is served beyond.
    pub(crate) bytes: u64,
    /// The oldest that is served.
    pub(crate) generation: Generation,
    /// The newest that is vouched for: a map showed it, or a request of who may write to the volume named it.
    pub(crate) vouched: Generation,
    /// The one that the newest map shows: others are told of that one.
    shown: Generation,
    pub(crate) is_removed: bool,
    /// It lies in the trash: all of it stays, and nobody is served.
    pub(crate) is_in_trash: bool,
    /// What clients were served of it here.
    pub(crate) traffic: Traffic,
}

/// Layers that somebody sees, the newest first.
#[derive(Clone, Debug)]
pub(crate) enum Sight {
    /// Of a volume that was never rolled back and is no clone.
    Straight([LayerSpan; 1]),
    /// Of another one.
    Of(Arc<[LayerSpan]>),
}

impl Sight {
    /// A layer and all older ones of its volume.
    pub(crate) fn straight(layer: LayerId) -> Sight {
        Sight::Straight([LayerSpan::down_from(layer)])
    }
}

impl Deref for Sight {
    type Target = [LayerSpan];

    fn deref(&self) -> &[LayerSpan] {
        match self {
            Sight::Straight(spans) => spans,
            Sight::Of(spans) => spans,
        }
    }
}

impl VolumeState {
    /// The map shows that generation, or a client that may write to it names it.
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

/// Something that is to be done with a volume in all groups of its pool, and the number under which it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) pool: PoolId,
    pub(crate) cut: CutId,
}

impl Task {
    /// The numbers of those in a pool, in no order.
    fn of_pool(tasks: &BTreeMap<VolumeId, Task>, pool: PoolId) -> impl Iterator<Item = CutId> {
        tasks.values().filter(move |task| task.pool == pool).map(|task| task.cut)
    }
}

/// What another OSD told of a volume's attaches.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// The newest generation.
    generation: Generation,
    /// The first one that no map has shown since, and when it was told. Whoever tells of ever newer ones is judged by that.
    first: Generation,
    at: Instant,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    pub(crate) map: Arc<ClusterMap>,
    known: Map<VolumeId, VolumeState>,
    /// Those that the newest map shows to be cut, by the layers that they write to.
    pub(crate) shrunk: BTreeMap<LayerId, Shrunk>,
    /// Those that the newest map shows to be pruned: they lost snapshots, and something may be left that nobody sees any more.
    pub(crate) pruned: BTreeMap<VolumeId, Task>,
    /// Those that the newest map shows to be flattened: clones that are to be given all that they see of their parents.
    pub(crate) flattened: BTreeMap<VolumeId, Task>,
    /// The pools of volumes that have had snapshots or are clones.
    pub(crate) with_layers: BTreeSet<PoolId>,
    /// Objects, by the newest layer, of which that was written to where older ones hold what nobody sees then. Some are enough: each
    /// epoch begins by looking at all.
    pub(crate) replaced: BTreeSet<ObjectKey>,
    /// The OSDs that the newest map shows out and down, and since when maps did.
    out_and_down: BTreeMap<OsdId, Instant>,
    /// What other OSDs told on their links beyond what is vouched for.
    told: BTreeMap<LinkId, BTreeMap<VolumeId, Told>>,
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

    /// The volume of a layer, if a map showed it.
    pub(crate) fn of_layer(&self, layer: LayerId) -> Option<&VolumeState> {
        self.get(layer.volume())
    }

    pub(crate) fn of_layer_mut(&mut self, layer: LayerId) -> Option<&mut VolumeState> {
        self.get_mut(layer.volume())
    }

    /// The layers that somebody sees who reads a layer, the newest first.
    pub(crate) fn sight_of(&self, layer: LayerId) -> Sight {
        match self.of_layer(layer) {
            Some(state) if state.sight.is_empty() => Sight::straight(layer),
            Some(state) if state.head == layer => Sight::Of(state.sight.clone()),
            Some(_) => Sight::Of(self.map.sight_of(layer).into()),
            None => Sight::straight(layer),
        }
    }

    /// Those of them that lie beneath the layer itself.
    pub(crate) fn beneath(&self, layer: LayerId) -> impl Iterator<Item = LayerSpan> + Clone {
        let sight = self.sight_of(layer);
        (0..sight.len()).filter_map(move |at| match sight[at] {
            span if at > 0 => Some(span),
            LayerSpan { oldest, newest, .. } if oldest == newest => None,
            span => Some(LayerSpan { newest: span.newest - 1, ..span }),
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (VolumeId, &VolumeState)> {
        self.known.iter().map(|(id, state)| (*id, state))
    }

    /// Whether the volume of a layer was removed.
    pub(crate) fn is_removed(&self, layer: LayerId) -> bool {
        self.of_layer(layer).is_some_and(|state| state.is_removed)
    }

    /// The cuts that the newest map shows of volumes of a pool, in no order.
    pub(crate) fn cuts_of(&self, pool: PoolId) -> impl Iterator<Item = CutId> {
        let shrunk = self.shrunk.values().map(|shrunk| (shrunk.pool, shrunk.cut));
        shrunk.filter(move |(of, _)| *of == pool).map(|(_, cut)| cut).chain(self.prunes_of(pool))
    }

    /// Those of them that are removals of snapshots.
    pub(crate) fn prunes_of(&self, pool: PoolId) -> impl Iterator<Item = CutId> {
        Task::of_pool(&self.pruned, pool)
    }

    /// The flattenings that the newest map shows of volumes of a pool, in no order.
    pub(crate) fn flattens_of(&self, pool: PoolId) -> impl Iterator<Item = CutId> {
        Task::of_pool(&self.flattened, pool)
    }

    /// Older layers of a volume, where this is its newest one, of which nobody may see any more what it writes over.
    pub(crate) fn replaced_by(&self, layer: LayerId) -> impl Iterator<Item = LayerSpan> + Clone {
        let unshared = self.of_layer(layer).filter(|state| state.head == layer).map(|state| state.unshared);
        let its_own = self.beneath(layer).filter(move |span| span.volume == layer.volume());
        its_own.filter_map(move |span| {
            let unshared = unshared.filter(|unshared| *unshared <= span.newest)?;
            Some(LayerSpan { oldest: span.oldest.max(unshared), ..span })
        })
    }

    /// Takes over what a newer map shows of volumes. Answers whether one of them was removed.
    pub(crate) fn heed(&mut self, map: &ClusterMap, now: Instant) -> bool {
        let (mut is_one_removed, mut attached_anew) = (false, BTreeSet::new());
        let is_out_and_down = |info: &OsdInfo| info.admission != Admission::In && info.address.is_none();
        self.out_and_down.retain(|osd, _| map.osds.get(osd).is_some_and(is_out_and_down));
        for (osd, _) in map.osds.iter().filter(|(_, info)| is_out_and_down(info)) {
            self.out_and_down.entry(*osd).or_insert(now);
        }
        self.shrunk.clear();
        self.pruned.clear();
        self.flattened.clear();
        self.with_layers.clear();
        for (id, info) in &map.volumes {
            if !map.pools.contains_key(&info.pool) {
                continue;
            }
            if self.known.get(id).is_some_and(|state| state.shown < info.generation) {
                attached_anew.insert(*id);
            }
            let state = self.known.entry(*id).or_default();
            (state.pool, state.bytes, state.is_removed) = (info.pool, info.bytes, info.removed);
            if *state.namespace != *info.namespace {
                state.namespace = info.namespace.as_str().into();
            }
            state.head = info.head_layer(*id);
            // What a snapshot sees of a branch, it may see through another one.
            let newest = map.snapshots_of(*id).next_back().filter(|_| info.bends.is_empty());
            state.unshared = newest.map_or(0, |(layer, _)| layer.number() + 1);
            state.sight = if info.is_straight() { Arc::default() } else { map.sight_of(state.head).into() };
            // One that was flattened may have holes still.
            if (info.head > 0 || id.is_clone() || info.prune.is_some()) && !info.removed {
                self.with_layers.insert(info.pool);
            }
            state.is_in_trash = info.trashed.is_some();
            if let Some(cut) = info.cut.filter(|_| !info.removed) {
                self.shrunk.insert(state.head, Shrunk { pool: info.pool, end: info.bytes, cut });
            }
            if let Some(cut) = info.prune.filter(|_| !info.removed) {
                self.pruned.insert(*id, Task { pool: info.pool, cut });
            }
            if let Some(cut) = info.flatten.filter(|_| !info.removed) {
                self.flattened.insert(*id, Task { pool: info.pool, cut });
            }
            state.shown = info.generation;
            state.is_attached_as(info.generation);
            is_one_removed |= info.removed;
        }
        for (link, told) in &mut self.told {
            told.retain(|volume, Told { generation, first, at }| {
                let Some(state) = self.known.get_mut(volume) else { return true };
                state.generation = state.generation.max(*generation);
                if *first <= state.shown {
                    (*first, *at) = (*generation, now);
                }
                let is_contradicted = attached_anew.contains(volume) && *first > state.shown;
                if is_contradicted && now.since(*at) >= LATE_MAX {
                    self.contradicted.insert(*link);
                }
                *generation > state.vouched
            });
        }
        is_one_removed
    }

    /// Whether the newest map shows that a volume was attached under that generation, or under a newer one.
    pub(crate) fn shows(&self, volume: VolumeId, generation: Generation) -> bool {
        self.get(volume).is_some_and(|state| state.shown >= generation)
    }

    /// Another OSD says on a link that a volume was attached under that generation: nobody is served with an older one for as
    /// long as the link lasts. `false` if it cannot be remembered.
    pub(crate) fn was_told(
        &mut self,
        link: LinkId,
        volume: VolumeId,
        generation: Generation,
        now: Instant,
    ) -> bool {
        let known = self.known.get_mut(&volume);
        if known.as_ref().is_some_and(|state| generation <= state.vouched) {
            return true;
        }
        let told = self.told.entry(link).or_default();
        if known.is_none() && told.len() >= UNKNOWN_MAX && !told.contains_key(&volume) {
            return false;
        }
        let told = told.entry(volume).or_insert(Told { generation, first: generation, at: now });
        told.generation = told.generation.max(generation);
        if let Some(state) = known {
            state.generation = state.generation.max(generation);
        }
        true
    }

    /// A link ended: what was told on it counts no more.
    pub(crate) fn forget_told(&mut self, link: LinkId) {
        self.contradicted.remove(&link);
        for volume in self.told.remove(&link).unwrap_or_default().into_keys() {
            let others = self.told.values().filter_map(|told| told.get(&volume));
            let others = others.map(|told| told.generation).max().unwrap_or_default();
            if let Some(state) = self.known.get_mut(&volume) {
                state.generation = state.vouched.max(others);
            }
        }
    }

    /// Every generation that the newest map shows, in order.
    pub(crate) fn generations(&self) -> Vec<(VolumeId, Generation)> {
        let known = self.known.iter().filter(|(_, state)| !state.is_removed);
        let mut all: Vec<_> = known.map(|(volume, state)| (*volume, state.shown)).collect();
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
    /// reached for a moment; and one that was down because its drive hung shows itself when it hears that it was taken out, so it
    /// takes as long as an OSD may be silent. What was removed is gone at once.
    pub(crate) fn is_gone(&self, osd: OsdId, now: Instant) -> bool {
        let was_removed = !self.map.osds.contains_key(&osd);
        was_removed || self.out_and_down.get(&osd).is_some_and(|since| now.since(*since) >= LATE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{OsdInfo, VolumeInfo};

    /// When all happens of which nobody asks how long it took.
    const NOW: Instant = Instant { nanoseconds: 1_000_000_000 };

    #[test]
    fn what_a_client_names_beyond_the_map_counts_for_good_and_others_are_not_told_of_it() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        assert!(!volumes.shows(VOLUME, Generation(1)), "it is not known");
        volumes.heed(&map, NOW);
        volumes.get_mut(VOLUME).expect("it is there").is_attached_as(Generation(7));
        let shown = |volumes: &Volumes| [1, 2, 7].map(|number| volumes.shows(VOLUME, Generation(number)));
        assert_eq!((served(&volumes), shown(&volumes)), (Some(Generation(7)), [true, false, false]));
        assert_eq!(volumes.generations(), [(VOLUME, Generation(1))]);
        map.volumes.get_mut(&VOLUME).expect("it is there").generation = Generation(2);
        volumes.heed(&map, NOW);
        assert_eq!((served(&volumes), shown(&volumes)), (Some(Generation(7)), [true, true, false]));
        assert_eq!(volumes.generations(), [(VOLUME, Generation(2))]);
    }

    #[test]
    fn of_volumes_the_newest_map_says_where_they_end_and_which_are_cut() {
        let mut volumes = Volumes::default();
        let mut map = crate::testing::map(1);
        let volume = *map.volumes.keys().next().expect("there is one");
        let heed = |volumes: &mut Volumes, map: &ClusterMap| {
            volumes.heed(map, NOW);
            let ends = volumes.get(volume).map(|state| state.bytes);
            (ends, volumes.shrunk.get(&volume.first_layer()).map(|shrunk| (shrunk.end, shrunk.cut)))
        };
        assert_eq!(heed(&mut volumes, &map), (Some(1 << 30), None));
        let info = map.volumes.get_mut(&volume).expect("it is there");
        (info.bytes, info.cut) = (4097, Some(CutId(3)));
        assert_eq!(heed(&mut volumes, &map), (Some(4097), Some((4097, CutId(3)))));
        map.volumes.get_mut(&volume).expect("it is there").removed = true;
        assert_eq!(heed(&mut volumes, &map), (Some(4097), None), "it goes as a whole");
    }

    #[test]
    fn an_osd_cannot_have_fences_remembered_without_end() {
        let mut volumes = Volumes::default();
        let (link, last) = (LinkId(1), UNKNOWN_MAX as u64);
        let mut told =
            |link, volume, generation| volumes.was_told(link, VolumeId(volume), Generation(generation), NOW);
        assert!((1..=last).all(|volume| told(link, volume, 1)));
        assert!(!told(link, last + 1, 1));
        assert!(told(link, last, 2), "one that is known may change");
        assert!(told(LinkId(2), last + 1, 1), "another one is not kept by that");
    }

    const VOLUME: VolumeId = crate::testing::VOLUME;

    fn served(volumes: &Volumes) -> Option<Generation> {
        volumes.get(VOLUME).map(|state| state.generation)
    }

    #[test]
    fn what_an_osd_tells_beyond_the_map_counts_as_long_as_its_link_lasts_and_is_not_passed_on() {
        let mut volumes = Volumes::default();
        volumes.heed(&crate::testing::map(1), NOW);
        assert!(volumes.was_told(LinkId(1), VOLUME, Generation(9), NOW));
        assert!(volumes.was_told(LinkId(2), VOLUME, Generation(3), NOW));
        assert_eq!(served(&volumes), Some(Generation(9)));
        assert_eq!(volumes.generations(), [(VOLUME, Generation(1))]);
        // The same map, or another one of something else, changes nothing.
        volumes.heed(&crate::testing::map(1), NOW + LATE_MAX);
        assert_eq!((served(&volumes), volumes.contradicted.len()), (Some(Generation(9)), 0));
        volumes.forget_told(LinkId(1));
        assert_eq!(served(&volumes), Some(Generation(3)));
        // What a client names that may write counts for good.
        volumes.get_mut(VOLUME).expect("it is there").is_attached_as(Generation(2));
        volumes.forget_told(LinkId(2));
        assert_eq!(served(&volumes), Some(Generation(2)));
    }

    #[test]
    fn a_generation_that_no_attach_bears_out_ends_the_link_on_which_it_was_told() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        let (liar, other) = (LinkId(1), LinkId(2));
        // Before the map shows the volume, and what it shows first may be from before the fence.
        assert!(volumes.was_told(liar, VOLUME, Generation(u32::MAX), NOW));
        assert!(volumes.was_told(other, VOLUME, Generation(2), NOW));
        volumes.heed(&map, NOW + LATE_MAX);
        assert_eq!((served(&volumes), volumes.contradicted.len()), (Some(Generation(u32::MAX)), 0));
        // Somebody attaches it.
        map.volumes.get_mut(&VOLUME).expect("it is there").generation = Generation(2);
        volumes.heed(&map, NOW + LATE_MAX);
        assert_eq!(std::mem::take(&mut volumes.contradicted), BTreeSet::from([liar]));
        volumes.forget_told(liar);
        assert_eq!(served(&volumes), Some(Generation(2)), "and is served");
    }

    #[test]
    fn a_map_that_is_behind_by_no_more_than_maps_may_be_ends_no_link() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        volumes.heed(&map, NOW);
        let mut is_contradicted = |generation: u32, link: u64, told: u32, told_at, now| {
            assert!(volumes.was_told(LinkId(link), VOLUME, Generation(told), told_at));
            map.volumes.get_mut(&VOLUME).expect("it is there").generation = Generation(generation);
            volumes.heed(&map, now);
            std::mem::take(&mut volumes.contradicted).contains(&LinkId(link))
        };
        let late = NOW + LATE_MAX;
        assert!(!is_contradicted(2, 1, 5, NOW, late - Duration::from_nanos(1)), "that may be on its way");
        // It is told of again, which makes it no newer.
        assert!(is_contradicted(3, 1, 5, late, late));
        assert!(is_contradicted(4, 1, 6, late, late), "nor does it if it tells of ever newer ones");
        assert!(is_contradicted(5, 2, 9, NOW, late));
        assert!(!is_contradicted(9, 2, 9, NOW, late), "it is borne out");
        assert!(!is_contradicted(10, 3, 11, NOW, NOW));
        assert!(
            !is_contradicted(11, 3, 12, late, late),
            "what it told first is, and the next may be on its way"
        );
    }

    #[test]
    fn generations_are_told_in_order_of_volumes_that_were_attached_and_are_there() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        let info = map.volumes[&VOLUME].clone();
        for (volume, generation, removed) in [(5, 4, false), (2, 3, false), (9, 0, false), (3, 8, true)] {
            let info = VolumeInfo { generation: Generation(generation), removed, ..info.clone() };
            map.volumes.insert(VolumeId(volume), info);
        }
        assert!(volumes.heed(&map, NOW), "one of them was removed");
        let told = [(1, 1), (2, 3), (5, 4)];
        let told = told.map(|(volume, generation)| (VolumeId(volume), Generation(generation)));
        assert_eq!(volumes.generations(), told);
    }

    #[test]
    fn a_volume_of_a_pool_that_the_map_does_not_show_stays_what_it_was() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        let pools = std::mem::take(&mut map.pools);
        assert!(!volumes.heed(&map, NOW) && volumes.get(VOLUME).is_none());
        map.pools = pools;
        volumes.heed(&map, NOW);
        map.pools.clear();
        let info = map.volumes.get_mut(&VOLUME).expect("it is there");
        (info.bytes, info.removed) = (1, true);
        assert!(!volumes.heed(&map, NOW) && !volumes.is_removed(VOLUME.first_layer()));
        assert_eq!(volumes.get(VOLUME).map(|state| state.bytes), Some(1 << 30));
    }

    #[test]
    fn of_what_several_osds_tell_the_newest_counts_and_nothing_is_kept_of_what_is_vouched_for() {
        let (mut volumes, mut map) = (Volumes::default(), crate::testing::map(1));
        volumes.heed(&map, NOW);
        for (link, generation) in [(1, 9), (2, 3), (3, 5), (4, 4), (3, 2), (5, 1)] {
            assert!(volumes.was_told(LinkId(link), VOLUME, Generation(generation), NOW));
        }
        assert!(!volumes.told.contains_key(&LinkId(5)), "whoever connects tells what is known anyway");
        volumes.forget_told(LinkId(1));
        assert_eq!(served(&volumes), Some(Generation(5)));
        map.volumes.get_mut(&VOLUME).expect("it is there").generation = Generation(2);
        volumes.heed(&map, NOW + LATE_MAX);
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
        let mut volumes = Volumes { map: Arc::new(map.clone()), ..Volumes::default() };
        volumes.heed(&map, NOW);
        // The last one was removed.
        let all = [1, 2, 3, 4, 5].map(OsdId);
        assert_eq!(all.map(|osd| volumes.is_up(osd)), [true, false, true, false, false]);
        assert_eq!(all.map(|osd| volumes.is_out(osd)), [false, false, true, true, true]);
        let are_gone = |volumes: &Volumes, now| all.map(|osd| volumes.is_gone(osd, now));
        let almost = NOW + (LATE_MAX - Duration::from_nanos(1));
        assert_eq!(are_gone(&volumes, almost), [false, false, false, false, true]);
        assert_eq!(are_gone(&volumes, NOW + LATE_MAX), [false, false, false, true, true]);
        // It is up for a moment, and down again.
        for address in [up, None] {
            map.osds.get_mut(&OsdId(4)).unwrap().address = address;
            volumes.heed(&map, NOW + LATE_MAX);
        }
        assert_eq!(are_gone(&volumes, NOW + LATE_MAX), [false, false, false, false, true]);
    }
}
