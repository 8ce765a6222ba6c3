//! What the layers of a volume hold of one object.

use super::ObjectIndex;
use crate::bits::{Bits, WORDS, blocks_of};
use std::slice;

/// What a layer holds of the object, by the layer's number.
type Layer = (u32, Box<ObjectIndex>);

/// See the module's documentation. There is one layer at least.
#[derive(Debug)]
pub(super) enum Layers {
    /// So it is with most.
    One(Layer),
    Several(Box<Several>),
}

/// Two or more layers.
#[derive(Debug)]
pub(super) struct Several {
    /// In order.
    layers: Vec<Layer>,
    /// Which blocks they hold: for each word of an object's bits those of all layers, one beside the other. Who looks for a block
    /// through a thousand layers goes along them, and not to each.
    held: Vec<u64>,
}

impl Several {
    /// Layers came or went.
    fn hold_anew(&mut self) {
        self.held.clear();
        for word in 0..WORDS {
            self.held.extend(self.layers.iter().map(|(_, object)| object.bits.0[word]));
        }
    }

    /// What the layer at a place holds is another by now.
    fn note(&mut self, at: usize) {
        let bits = self.layers[at].1.bits;
        let words = self.held[at..].iter_mut().step_by(self.layers.len());
        words.zip(bits.0).for_each(|(held, word)| *held = word);
    }
}

fn place(layers: &[Layer], number: u32) -> Result<usize, usize> {
    layers.binary_search_by_key(&number, |(number, _)| *number)
}

impl Layers {
    pub(super) fn all(&self) -> &[Layer] {
        match self {
            Layers::One(layer) => slice::from_ref(layer),
            Layers::Several(several) => &several.layers,
        }
    }

    pub(super) fn all_mut(&mut self) -> &mut [Layer] {
        match self {
            Layers::One(layer) => slice::from_mut(layer),
            Layers::Several(several) => &mut several.layers,
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&ObjectIndex> {
        match self {
            Layers::One((one, object)) => (*one == number).then_some(&**object),
            Layers::Several(several) => place(&several.layers, number).ok().map(|at| &*several.layers[at].1),
        }
    }

    /// What a layer holds, of which no block may come or go.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut ObjectIndex> {
        let layers = self.all_mut();
        place(layers, number).ok().map(|at| &mut *layers[at].1)
    }

    /// Changes what a layer holds.
    pub(super) fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut ObjectIndex) -> T) -> Option<T> {
        match self {
            Layers::One((one, object)) => (*one == number).then(|| change(object)),
            Layers::Several(several) => {
                let at = place(&several.layers, number).ok()?;
                let answer = change(&mut several.layers[at].1);
                several.note(at);
                Some(answer)
            }
        }
    }

    /// Takes in what a further layer holds. `false` if there is something of it already.
    pub(super) fn add(&mut self, number: u32, object: Box<ObjectIndex>) -> bool {
        let Err(at) = place(self.all(), number) else { return false };
        let mut several = match std::mem::replace(self, Layers::One((number, Box::default()))) {
            Layers::One(layer) => Box::new(Several { layers: vec![layer], held: Vec::new() }),
            Layers::Several(several) => several,
        };
        several.layers.insert(at, (number, object));
        several.hold_anew();
        *self = Layers::Several(several);
        true
    }

    /// Takes out what a layer holds, which is not the only one.
    pub(super) fn remove(&mut self, number: u32) -> Option<Box<ObjectIndex>> {
        let Layers::Several(several) = self else { return None };
        let (_, object) = several.layers.remove(place(&several.layers, number).ok()?);
        match several.layers.len() {
            1 => *self = Layers::One(several.layers.remove(0)),
            _ => several.hold_anew(),
        }
        Some(object)
    }

    /// What the newest layer holds that holds a block, of those up to that number.
    pub(super) fn newest_with(&self, newest: u32, block: u16) -> Option<&ObjectIndex> {
        match self {
            Layers::One((number, object)) => (*number <= newest && object.has(block)).then_some(object),
            Layers::Several(several) => {
                let held = &several.held[usize::from(block) / 64 * several.layers.len()..];
                let each = several.layers.iter().zip(held).rev();
                let mut holding =
                    each.filter(|((number, _), held)| *number <= newest && *held >> (block % 64) & 1 != 0);
                holding.next().map(|((_, object), _)| &**object)
            }
        }
    }

    /// Calls `found` with each of the wanted blocks that a layer from `oldest` to `newest` holds, and what the newest of those
    /// holds. They are not wanted any more then.
    pub(super) fn look_through<'a>(
        &'a self,
        oldest: u32,
        newest: u32,
        wanted: &mut Bits,
        mut found: impl FnMut(u32, &'a ObjectIndex, u16),
    ) {
        let layers = self.all();
        let (first, end) = match self {
            Layers::One((number, _)) => (0, usize::from((oldest..=newest).contains(number))),
            Layers::Several(_) => {
                let before = |bound: u64| layers.partition_point(|(number, _)| u64::from(*number) < bound);
                (before(oldest.into()), before(u64::from(newest) + 1))
            }
        };
        for (at, wanted) in wanted.0.iter_mut().enumerate().filter(|(_, wanted)| **wanted != 0) {
            let held = match self {
                Layers::One((_, object)) => slice::from_ref(&object.bits.0[at]),
                Layers::Several(several) => &several.held[at * layers.len()..][..layers.len()],
            };
            for (held, (number, object)) in held[first..end].iter().zip(&layers[first..end]).rev() {
                let hits = held & *wanted;
                if hits == 0 {
                    continue;
                }
                blocks_of(hits, (at * 64) as u16).for_each(|block| found(*number, object, block));
                *wanted &= !hits;
                if *wanted == 0 {
                    break;
                }
            }
        }
    }

    /// Memory that it takes beside what a table of one layer each would.
    pub(super) fn memory_bytes(&self) -> u64 {
        let Layers::Several(several) = self else { return 0 };
        let vectors =
            several.layers.capacity() * size_of::<Layer>() + several.held.capacity() * size_of::<u64>();
        (size_of::<Several>() + vectors) as u64
    }

    /// Whether what is told of each layer's blocks is what it holds.
    pub(super) fn is_told_truly(&self) -> bool {
        let Layers::Several(several) = self else { return true };
        let is_told = |at: usize, object: &ObjectIndex| {
            let told = several.held[at..].iter().step_by(several.layers.len());
            told.eq(&object.bits.0)
        };
        several.layers.iter().enumerate().all(|(at, (_, object))| is_told(at, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Entry;
    use base::Sequence;

    fn object(blocks: &[u16]) -> Box<ObjectIndex> {
        let mut object = Box::<ObjectIndex>::default();
        for block in blocks {
            object.set(*block, Entry { location: u32::from(*block), crc32c: 0 }, Sequence(1));
        }
        object
    }

    fn seen(layers: &Layers, oldest: u32, newest: u32, wanted: &[u16]) -> (Vec<(u32, u16)>, Bits) {
        let (mut bits, mut seen) = (Bits::default(), Vec::new());
        wanted.iter().for_each(|block| bits.set(*block));
        layers.look_through(oldest, newest, &mut bits, |number, object, block| {
            assert!(object.get(block).is_some());
            seen.push((number, block));
        });
        seen.sort_unstable();
        (seen, bits)
    }

    #[test]
    fn what_is_wanted_is_found_in_the_newest_layer_that_holds_it() {
        let mut layers = Layers::One((3, object(&[1, 2, 900])));
        assert_eq!(seen(&layers, 0, 9, &[1, 5]).0, [(3, 1)]);
        assert!(seen(&layers, 4, 9, &[1]).0.is_empty() && seen(&layers, 0, 2, &[1]).0.is_empty());
        assert!(layers.add(7, object(&[2, 3])) && layers.add(0, object(&[1, 4])));
        assert!(!layers.add(7, object(&[9])), "it is there");
        assert_eq!(layers.all().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 3, 7]);
        let all = [1, 2, 3, 4, 5, 900];
        let (found, left) = seen(&layers, 0, u32::MAX, &all);
        assert_eq!(found, [(0, 4), (3, 1), (3, 900), (7, 2), (7, 3)]);
        assert_eq!((left.has(5), left.count()), (true, 1));
        assert_eq!(seen(&layers, 1, 6, &all).0, [(3, 1), (3, 2), (3, 900)]);
        assert_eq!(seen(&layers, 0, 0, &all).0, [(0, 1), (0, 4)]);
        for (newest, block) in [(9, 2), (6, 2), (2, 2), (9, 1), (2, 1), (9, 900), (9, 5)] {
            let expected = seen(&layers, 0, newest, &[block]).0.first().map(|(number, _)| *number);
            let found = layers.newest_with(newest, block).map(|object| object as *const ObjectIndex);
            assert_eq!(
                found,
                expected.and_then(|number| layers.get(number)).map(|object| object as *const _)
            );
        }
        assert!(seen(&layers, 4, 6, &all).0.is_empty());
    }

    #[test]
    fn what_comes_and_goes_of_a_layer_is_told_of_it() {
        let mut layers = Layers::One((0, object(&[1])));
        assert_eq!((layers.memory_bytes(), layers.remove(0).is_none()), (0, true));
        layers.add(5, object(&[2]));
        assert!(layers.is_told_truly() && layers.memory_bytes() > 0);
        let entry = Entry { location: 3, crc32c: 3 };
        assert_eq!(layers.change(5, |object| object.set(70, entry, Sequence(2))), Some(None));
        assert!(layers.change(4, |_| panic!("there is none")).is_none());
        assert!(layers.is_told_truly());
        layers.get_mut(5).unwrap().remove(2);
        assert!(!layers.is_told_truly(), "who changes it behind its back is found out");
        assert!(layers.remove(4).is_none());
        assert_eq!(layers.remove(5).unwrap().get(70), Some(entry));
        assert!(matches!(&layers, Layers::One((0, _))));
        assert_eq!((layers.get(0).is_some(), layers.get(5).is_some()), (true, false));
    }
}
