//! Which layers somebody sees who reads a volume, or one of its snapshots, and who sees a layer.
//!
//! A layer lies upon the one of the number below, and the first one upon nothing. Two things are otherwise:
//! - A volume that was rolled back *bends*: what it writes to from then on lies upon the snapshot that it was rolled back to.
//! - The first layer of a clone lies upon the snapshot, of another volume, that it was cloned from, until it is flattened.
//!
//! So the layers of a family are a tree, and what lies beneath another has the lower number where both are of one volume.

use crate::map::{ClusterMap, VolumeInfo};
use crate::{LayerId, VolumeId};
use std::collections::BTreeMap;

/// Layers of one volume, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpan {
    /// The volume.
    pub volume: VolumeId,
    /// The number of the oldest of them.
    pub oldest: u32,
    /// The number of the newest.
    pub newest: u32,
}

impl LayerSpan {
    /// A layer and all older ones of its volume.
    #[must_use]
    pub const fn down_from(layer: LayerId) -> LayerSpan {
        LayerSpan { volume: layer.volume(), oldest: 0, newest: layer.number() }
    }

    /// Whether a layer is one of them.
    #[must_use]
    pub fn has(&self, layer: LayerId) -> bool {
        layer.volume() == self.volume && (self.oldest..=self.newest).contains(&layer.number())
    }
}

/// Those layers of some that are not among others.
#[must_use]
pub fn without(some: &[LayerSpan], others: &[LayerSpan]) -> Vec<LayerSpan> {
    let mut left = some.to_vec();
    for other in others {
        let apart = |span: LayerSpan| {
            if span.volume != other.volume || other.oldest > span.newest || span.oldest > other.newest {
                return [Some(span), None];
            }
            let above = (span.newest > other.newest).then(|| LayerSpan { oldest: other.newest + 1, ..span });
            let below = (span.oldest < other.oldest).then(|| LayerSpan { newest: other.oldest - 1, ..span });
            [above, below]
        };
        left = left.into_iter().flat_map(apart).flatten().collect();
    }
    left
}

/// Who sees the layers of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Views {
    /// The volume.
    pub volume: VolumeId,
    /// The numbers of the layers from which somebody sees it, its snapshots' and the newest one, in order.
    pub from: Vec<u32>,
    /// Of which layers another one lies beneath than that of the number below, and which.
    pub bends: BTreeMap<u32, u32>,
    /// What lies beneath its first layer, the newest first.
    pub beneath: Vec<LayerSpan>,
}

impl Views {
    /// The oldest of the layers that lie one beneath the other by their numbers, down from this one; and the layer that lies beneath
    /// that, of this volume.
    #[must_use]
    pub fn span_of(&self, number: u32) -> (u32, Option<u32>) {
        span_of(&self.bends, number)
    }
}

fn span_of(bends: &BTreeMap<u32, u32>, number: u32) -> (u32, Option<u32>) {
    let bend = bends.range(..=number).next_back();
    bend.map_or((0, None), |(layer, beneath)| (*layer, Some(*beneath)))
}

impl VolumeInfo {
    /// Whether what lies beneath its layers is what their numbers say.
    #[must_use]
    pub fn is_straight(&self) -> bool {
        self.bends.is_empty() && self.parent.is_none()
    }
}

impl ClusterMap {
    /// Clones may be made of clones, to this depth.
    pub const CLONE_DEPTH_MAX: usize = 16;

    /// The layers that somebody sees who reads a layer, the newest first.
    #[must_use]
    pub fn sight_of(&self, layer: LayerId) -> Vec<LayerSpan> {
        let (mut spans, mut depth, mut next) = (Vec::new(), 0, Some(layer));
        while let Some(layer) = next.filter(|_| depth <= ClusterMap::CLONE_DEPTH_MAX) {
            let (volume, newest) = (layer.volume(), layer.number());
            let info = self.volumes.get(&volume);
            let (oldest, beneath) = info.map_or((0, None), |info| span_of(&info.bends, newest));
            spans.push(LayerSpan { volume, oldest, newest });
            next = match beneath {
                Some(beneath) => (beneath < oldest).then(|| volume.layer(beneath)),
                None => {
                    depth += 1;
                    info.and_then(|info| info.parent)
                }
            };
        }
        spans
    }

    /// How many clonings lie between a volume and one that is no clone.
    #[must_use]
    pub fn clone_depth(&self, volume: VolumeId) -> usize {
        let parent = |volume: &VolumeId| Some(self.volumes.get(volume)?.parent?.volume());
        std::iter::successors(parent(&volume), parent).take(ClusterMap::CLONE_DEPTH_MAX + 1).count()
    }

    /// The clones of a volume's snapshots, in the trash or not, and of which.
    pub fn clones_of(&self, volume: VolumeId) -> impl Iterator<Item = (VolumeId, &VolumeInfo, LayerId)> {
        let there = self.volumes.iter().filter(|(_, info)| !info.removed);
        let clones = there.filter_map(|(id, info)| Some((*id, info, info.parent?)));
        clones.filter(move |(.., parent)| parent.volume() == volume)
    }

    /// Who sees the layers of a volume. None of a volume that is not there.
    #[must_use]
    pub fn views_of(&self, volume: VolumeId) -> Option<Views> {
        let info = self.volumes.get(&volume)?;
        let snapshots = self.snapshots_of(volume).map(|(layer, _)| layer.number());
        Some(Views {
            volume,
            from: snapshots.chain([info.head]).collect(),
            bends: info.bends.clone(),
            beneath: info.parent.map_or_else(Vec::new, |parent| self.sight_of(parent)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::SnapshotInfo;

    const V: VolumeId = VolumeId(5);
    const CLONE: VolumeId = VolumeId(5 | 1 << 28);
    const CLONE_OF_CLONE: VolumeId = VolumeId(5 | 2 << 28);

    /// A volume with snapshots of its layers 1, 3 and 7, that was rolled back to the second one before it wrote to its sixth layer;
    /// a clone of its newest snapshot, which has a snapshot of its first layer; and a clone of that.
    fn family() -> ClusterMap {
        let mut map = ClusterMap::default();
        let volume = |head, parent| VolumeInfo { head, parent, ..VolumeInfo::default() };
        map.volumes.insert(V, VolumeInfo { bends: [(6, 3)].into(), ..volume(8, None) });
        map.volumes.insert(CLONE, volume(1, Some(V.layer(7))));
        map.volumes.insert(CLONE_OF_CLONE, volume(0, Some(CLONE.layer(0))));
        let snapshots =
            |numbers: &[u32]| numbers.iter().map(|number| (*number, SnapshotInfo::default())).collect();
        map.snapshots.insert(V, snapshots(&[1, 3, 7]));
        map.snapshots.insert(CLONE, snapshots(&[0]));
        map
    }

    fn told(spans: &[LayerSpan]) -> Vec<(VolumeId, u32, u32)> {
        spans.iter().map(|span| (span.volume, span.newest, span.oldest)).collect()
    }

    #[test]
    fn who_reads_a_layer_sees_what_it_was_rolled_back_to_and_cloned_from() {
        let map = family();
        let sight = |layer| told(&map.sight_of(layer));
        assert_eq!(sight(V.layer(8)), [(V, 8, 6), (V, 3, 0)]);
        assert_eq!(sight(V.layer(6)), [(V, 6, 6), (V, 3, 0)]);
        assert_eq!(sight(V.layer(5)), [(V, 5, 0)]);
        assert_eq!(sight(V.layer(0)), [(V, 0, 0)]);
        assert_eq!(sight(CLONE.layer(1)), [(CLONE, 1, 0), (V, 7, 6), (V, 3, 0)]);
        assert_eq!(
            sight(CLONE_OF_CLONE.layer(0)),
            [(CLONE_OF_CLONE, 0, 0), (CLONE, 0, 0), (V, 7, 6), (V, 3, 0)]
        );
        assert_eq!(sight(VolumeId(9).layer(2)), [(VolumeId(9), 2, 0)], "one that is not known");
        assert_eq!([V, CLONE, CLONE_OF_CLONE].map(|volume| map.clone_depth(volume)), [0, 1, 2]);
        let clones: Vec<_> = map.clones_of(V).map(|(id, _, of)| (id, of)).collect();
        assert_eq!(clones, [(CLONE, V.layer(7))]);
        let views = map.views_of(CLONE_OF_CLONE).expect("it is there");
        assert_eq!((views.from, told(&views.beneath).len()), (vec![0], 3));
        let views = map.views_of(V).expect("it is there");
        assert_eq!((&views.from[..], views.beneath.len()), (&[1, 3, 7, 8][..], 0));
        assert_eq!(
            [8, 6, 5, 0].map(|number| views.span_of(number)),
            [(6, Some(3)), (6, Some(3)), (0, None), (0, None)]
        );
    }

    #[test]
    fn what_one_sees_and_another_does_not_lies_between_them() {
        let map = family();
        let between = |one, other| told(&without(&map.sight_of(one), &map.sight_of(other)));
        assert_eq!(between(V.layer(7), V.layer(1)), [(V, 7, 6), (V, 3, 2)]);
        assert_eq!(between(V.layer(5), V.layer(1)), [(V, 5, 2)]);
        assert_eq!(between(V.layer(1), V.layer(5)), []);
        assert_eq!(between(V.layer(7), V.layer(5)), [(V, 7, 6)], "two branches");
        assert_eq!(between(V.layer(5), V.layer(7)), [(V, 5, 4)]);
        assert_eq!(between(CLONE.layer(1), V.layer(7)), [(CLONE, 1, 0)]);
        assert_eq!(between(V.layer(7), CLONE.layer(1)), []);
        let middle = [LayerSpan { volume: V, oldest: 2, newest: 2 }];
        assert_eq!(told(&without(&map.sight_of(V.layer(3)), &middle)), [(V, 3, 3), (V, 1, 0)]);
    }

    #[test]
    fn a_span_has_the_layers_of_its_volume_between_its_ends() {
        let span = LayerSpan { volume: V, oldest: 3, newest: 7 };
        assert!([3, 5, 7].iter().all(|number| span.has(V.layer(*number))));
        assert!(![2, 8].iter().any(|number| span.has(V.layer(*number))) && !span.has(CLONE.layer(5)));
    }

    #[test]
    fn a_map_that_cannot_be_leads_nobody_in_circles() {
        let mut map = family();
        map.volumes.get_mut(&V).expect("it is there").parent = Some(CLONE_OF_CLONE.layer(0));
        assert!(map.sight_of(V.layer(8)).len() < 100);
        assert_eq!(map.clone_depth(V), ClusterMap::CLONE_DEPTH_MAX + 1);
        let bent = VolumeInfo { head: 9, bends: [(6, 6)].into(), ..VolumeInfo::default() };
        map.volumes.insert(V, bent);
        assert_eq!(told(&map.sight_of(V.layer(8))), [(V, 8, 6)]);
    }
}
