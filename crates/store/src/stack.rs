//! The layers of a volume that hold something of an object, one upon the other, and who sees what of them.

use crate::bits::Bits;
use crate::index::{Index, ObjectIndex};
use base::{LayerId, LayerSpan, OBJECT_BLOCKS, PgId, Views};
use std::collections::BTreeMap;

/// See the module's documentation.
pub(crate) struct Stack<'a> {
    /// The layers, the newest first.
    pub(crate) layers: Vec<(LayerId, &'a ObjectIndex)>,
    /// Of each, which blocks somebody sees in it who would, if it held all of them.
    pub(crate) seen: Vec<Bits>,
    /// Which of them lies beneath each.
    beneath: Vec<Option<usize>>,
    /// Which blocks something is there of, in each or beneath it.
    there: Vec<Bits>,
    /// The same of what lies beneath the volume's first layer.
    there_beneath_all: Bits,
    /// What is seen of that, through all layers of the volume.
    pub(crate) seen_beneath_all: Bits,
}

/// What a volume holds of an object, in blocks on the drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectSpace {
    /// All of it.
    pub held: u32,
    /// What only those see who see the volume from the layer of that number.
    pub alone: BTreeMap<u32, u32>,
}

/// The first of layers of these numbers, the newest first, that somebody comes to who begins at a number.
fn first_from(numbers: &[u32], views: &Views, mut number: u32) -> Option<usize> {
    loop {
        let (oldest, next) = views.span_of(number);
        let at = numbers.partition_point(|other| *other > number);
        match numbers.get(at).filter(|other| **other >= oldest) {
            Some(_) => return Some(at),
            None => number = next.filter(|next| *next < oldest)?,
        }
    }
}

impl<'a> Stack<'a> {
    pub(crate) fn of(index: &'a Index, pg: PgId, object: u32, views: &Views) -> Stack<'a> {
        let all = LayerSpan { volume: views.volume, oldest: 0, newest: u32::MAX };
        let layers: Vec<(LayerId, &ObjectIndex)> = index.layers(pg, all, object).collect();
        let numbers: Vec<u32> = layers.iter().map(|(layer, _)| layer.number()).collect();
        let held: Vec<Bits> = layers.iter().map(|(_, object)| *object.bits()).collect();
        let first_from = |number| first_from(&numbers, views, number);
        let beneath_of = |number: &u32| match views.span_of(*number) {
            (oldest, next) if oldest == *number => next.filter(|next| next < number).and_then(first_from),
            _ => first_from(number - 1),
        };
        let beneath: Vec<Option<usize>> = numbers.iter().map(beneath_of).collect();
        let mut stack = Stack {
            seen: vec![Bits::default(); layers.len()],
            there: vec![Bits::default(); layers.len()],
            there_beneath_all: Bits::default(),
            seen_beneath_all: Bits::default(),
            layers,
            beneath,
        };
        stack.look_down(&held, views, first_from);
        let parents = views.beneath.iter().flat_map(|span| index.layers(pg, *span, object));
        parents.for_each(|(_, object)| stack.there_beneath_all.add(object.bits()));
        for at in (0..held.len()).rev() {
            let beneath = *stack.there_beneath(at);
            stack.there[at] = held[at];
            stack.there[at].add(&beneath);
        }
        stack
    }

    /// From the newest layer on: what is seen of each is seen from above and hidden by nothing between.
    fn look_down(&mut self, held: &[Bits], views: &Views, first_from: impl Fn(u32) -> Option<usize>) {
        let newest_view = views.from.last();
        for (seen, (layer, _)) in self.seen.iter_mut().zip(&self.layers) {
            if newest_view.is_none_or(|newest| layer.number() > *newest) {
                *seen = Bits::ALL;
            }
        }
        let mut looks = |from: Option<usize>, bits: &Bits, without: &Bits, seen: &mut [Bits]| match from {
            Some(at) => seen[at].add_without(bits, without),
            None => self.seen_beneath_all.add_without(bits, without),
        };
        for view in &views.from {
            looks(first_from(*view), &Bits::ALL, &Bits::default(), &mut self.seen);
        }
        for (at, held) in held.iter().enumerate() {
            let bits = self.seen[at];
            looks(self.beneath[at], &bits, held, &mut self.seen);
        }
    }

    /// What the volume holds of the object, and how much of that one view alone sees: the space that is free when that is gone.
    pub(crate) fn space(&self, views: &Views) -> ObjectSpace {
        const NOBODY: u32 = u32::MAX;
        const SEVERAL: u32 = u32::MAX - 1;
        let both = |one: u32, other: u32| match (one, other) {
            (one, NOBODY) => one,
            (NOBODY, other) => other,
            (one, other) if one == other => one,
            _ => SEVERAL,
        };
        let mut seen_by = vec![[NOBODY; OBJECT_BLOCKS]; self.layers.len()];
        let numbers = self.numbers();
        for view in &views.from {
            if let Some(at) = first_from(&numbers, views, *view) {
                seen_by[at].iter_mut().for_each(|seen| *seen = both(*seen, *view));
            }
        }
        let mut space = ObjectSpace::default();
        for (at, (_, object)) in self.layers.iter().enumerate() {
            for (block, seen) in (0..).zip(seen_by[at]) {
                match (object.get(block), self.beneath[at]) {
                    (Some(entry), _) => {
                        space.held += u32::from(!entry.is_hole());
                        if !entry.is_hole() && seen < SEVERAL {
                            *space.alone.entry(seen).or_default() += 1;
                        }
                    }
                    (None, Some(beneath)) => {
                        let through = &mut seen_by[beneath][usize::from(block)];
                        *through = both(*through, seen);
                    }
                    (None, None) => {}
                }
            }
        }
        space
    }

    fn numbers(&self) -> Vec<u32> {
        self.layers.iter().map(|(layer, _)| layer.number()).collect()
    }

    /// Which blocks something is there of beneath one of the layers.
    pub(crate) fn there_beneath(&self, at: usize) -> &Bits {
        self.beneath[at].map_or(&self.there_beneath_all, |at| &self.there[at])
    }
}
