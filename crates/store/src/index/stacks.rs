//! Which layers of a volume hold something of an object, besides its first one.

use base::hash::Map;
use base::{LayerId, LayerSpan, ObjectKey, VolumeId};
use std::collections::hash_map::Entry;

/// For each object of which some layer behind the first one of a volume holds something: the numbers of these layers, in order.
/// Volumes without snapshots have none.
#[derive(Debug, Default)]
pub(super) struct Stacks(Map<(VolumeId, u32), Vec<u32>>);

impl Stacks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A layer holds something of an object now, of which it held nothing.
    pub(super) fn add(&mut self, layer: LayerId, object: u32) {
        if layer.number() == 0 {
            return;
        }
        let numbers = self.0.entry((layer.volume(), object)).or_default();
        if let Err(place) = numbers.binary_search(&layer.number()) {
            numbers.insert(place, layer.number());
        }
    }

    /// It holds nothing of it any more.
    pub(super) fn remove(&mut self, layer: LayerId, object: u32) {
        if layer.number() == 0 {
            return;
        }
        let Entry::Occupied(mut stack) = self.0.entry((layer.volume(), object)) else { return };
        let numbers = stack.get_mut();
        if let Ok(place) = numbers.binary_search(&layer.number()) {
            numbers.remove(place);
        }
        if numbers.is_empty() {
            stack.remove();
        }
    }

    /// The layers of a span that may hold something of an object, the newest first.
    pub(super) fn of(&self, span: LayerSpan, object: u32) -> impl Iterator<Item = LayerId> + '_ {
        // Those of a clone's parents are often no more than the first one, of which nothing is here.
        let stack = (span.newest > 0).then(|| self.0.get(&(span.volume, object))).flatten();
        let numbers = stack.map_or(&[][..], Vec::as_slice);
        let numbers = &numbers[..numbers.partition_point(|number| *number <= span.newest)];
        let numbers = &numbers[numbers.partition_point(|number| *number < span.oldest)..];
        let first = (span.oldest == 0).then_some(0);
        numbers.iter().rev().copied().chain(first).map(move |number| span.volume.layer(number))
    }

    /// What they take of memory, about.
    pub(super) fn memory_bytes(&self) -> u64 {
        let slot = size_of::<((VolumeId, u32), Vec<u32>)>() + 1;
        let numbers: usize = self.0.values().map(Vec::capacity).sum();
        (self.0.capacity() * slot * 8 / 7 + numbers * size_of::<u32>()) as u64
    }
}

/// Those of objects that have been counted already.
impl FromIterator<ObjectKey> for Stacks {
    fn from_iter<I: IntoIterator<Item = ObjectKey>>(keys: I) -> Stacks {
        let mut stacks = Stacks::default();
        keys.into_iter().for_each(|key| stacks.add(key.layer, key.object));
        stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_a_span_that_hold_something_come_from_the_newest_on_and_the_first_one_always() {
        let (volume, other) = (VolumeId(5), VolumeId(6));
        let mut stacks = Stacks::default();
        for number in [7, 0, 3, 9, 3] {
            stacks.add(volume.layer(number), 1);
        }
        stacks.add(other.layer(4), 1);
        stacks.add(volume.layer(5), 2);
        let of = |stacks: &Stacks, oldest, newest| {
            let span = LayerSpan { volume, oldest, newest };
            stacks.of(span, 1).map(LayerId::number).collect::<Vec<_>>()
        };
        assert_eq!(of(&stacks, 0, 20), [9, 7, 3, 0]);
        assert_eq!(of(&stacks, 0, 7), [7, 3, 0]);
        assert_eq!(of(&stacks, 0, 6), [3, 0]);
        assert_eq!(of(&stacks, 4, 9), [9, 7]);
        assert_eq!(of(&stacks, 4, 6), []);
        assert_eq!(of(&stacks, 0, 0), [0]);
        stacks.remove(volume.layer(7), 1);
        stacks.remove(volume.layer(0), 1);
        stacks.remove(volume.layer(77), 1);
        assert_eq!(of(&stacks, 0, 20), [9, 3, 0]);
        for key in [(volume.layer(9), 1), (volume.layer(3), 1), (volume.layer(5), 2), (other.layer(4), 1)] {
            assert!(!stacks.is_empty());
            stacks.remove(key.0, key.1);
        }
        assert!(stacks.is_empty());
    }
}
