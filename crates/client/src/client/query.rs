//! Questions of what there is, and what changed.

use super::Outcome;
use super::piece::{Piece, PieceKind};
use base::geometry::blocks_touched;
use base::{BLOCK_BYTES, OBJECT_BLOCKS};
use std::collections::BTreeMap;

/// What became of a part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It holds what it held.
    Same,
    /// It may hold something else, that is to be read.
    Data,
    /// It is zeros, and may have been something else.
    Zeros,
}

/// The room that a part of a volume takes, in blocks of which each copy takes as much again. What it sees of a parent is not its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All of it: what the volume holds now and what its snapshots hold.
    pub held: u64,
    /// What one snapshot holds alone, or the volume as it is now, by the number of its layer: so much is free when it is gone.
    pub alone: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Allocated,
    Changed,
    Space,
}

/// A question, and what was answered.
#[derive(Debug)]
pub(super) struct Query {
    offset: u64,
    length: u64,
    first_block: u64,
    asks: Asks,
    /// Which blocks are allocated.
    allocated: Bits,
    /// Which changed.
    changed: Bits,
    space: Space,
}

/// A bit a block, from the first one that is asked about.
#[derive(Clone, Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, bit: u64) -> bool {
        self.0[bit as usize / 64] >> (bit % 64) & 1 != 0
    }

    /// Takes over what is told of blocks of an object, of which the first one has that place.
    fn take(&mut self, told: &[u8], first: u64, count: u64, place: u64) {
        for number in 0..count {
            let (block, bit) = (first + number, place + number);
            if told[block as usize / 8] >> (block % 8) & 1 != 0 {
                self.0[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
    }
}

impl Query {
    /// None of what is no question.
    pub(super) fn of(kind: PieceKind, offset: u64, length: u64) -> Option<Query> {
        let asks = match kind {
            PieceKind::Allocated => Asks::Allocated,
            PieceKind::Changed(_) => Asks::Changed,
            PieceKind::Space => Asks::Space,
            PieceKind::Read | PieceKind::Write | PieceKind::Zero => return None,
        };
        let (first_block, blocks) = blocks_touched(offset, length);
        let words = if asks == Asks::Space { 0 } else { blocks.div_ceil(64) };
        let none = Bits(vec![0; words as usize]);
        let space = Space::default();
        Some(Query { offset, length, first_block, asks, allocated: none.clone(), changed: none, space })
    }

    /// Takes over what was answered about a piece of it. An error is an answer to something else.
    pub(super) fn take(&mut self, piece: &Piece, told: &[u8]) -> Result<(), ()> {
        let each = OBJECT_BLOCKS / 8;
        let (changed, allocated) = match self.asks {
            Asks::Space => return self.take_space(told),
            Asks::Changed => told.split_at_checked(each).ok_or(())?,
            Asks::Allocated => (&[][..], told),
        };
        if allocated.len() != each {
            return Err(());
        }
        let (first, count) = blocks_touched(u64::from(piece.offset), u64::from(piece.length));
        let place = u64::from(piece.key.object) * OBJECT_BLOCKS as u64 + first - self.first_block;
        self.allocated.take(allocated, first, count, place);
        if self.asks == Asks::Changed {
            self.changed.take(changed, first, count, place);
        }
        Ok(())
    }

    /// What came of it when all was answered.
    pub(super) fn outcome(&self) -> Outcome {
        match self.asks {
            Asks::Allocated => Outcome::Allocated(self.runs(|query, bit| query.allocated.has(bit))),
            Asks::Changed => Outcome::Changed(self.runs(Query::change)),
            Asks::Space => Outcome::Space(self.space.clone()),
        }
    }

    fn take_space(&mut self, told: &[u8]) -> Result<(), ()> {
        let (words, rest) = told.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let held = words.next().filter(|_| rest.is_empty() && words.len().is_multiple_of(2)).ok_or(())?;
        self.space.held += u64::from(held);
        while let (Some(number), Some(blocks)) = (words.next(), words.next()) {
            *self.space.alone.entry(number).or_default() += u64::from(blocks);
        }
        Ok(())
    }

    fn change(&self, bit: u64) -> Change {
        match (self.changed.has(bit), self.allocated.has(bit)) {
            (false, _) => Change::Same,
            (true, true) => Change::Data,
            (true, false) => Change::Zeros,
        }
    }

    fn runs<T: Copy + PartialEq>(&self, of: impl Fn(&Query, u64) -> T) -> Vec<(u64, T)> {
        let mut runs: Vec<(u64, T)> = Vec::new();
        let end = self.offset + self.length;
        let mut at = self.offset;
        while at < end {
            let what = of(self, at / BLOCK_BYTES as u64 - self.first_block);
            let step = (BLOCK_BYTES as u64 - at % BLOCK_BYTES as u64).min(end - at);
            match runs.last_mut() {
                Some((bytes, last)) if *last == what => *bytes += step,
                _ => runs.push((step, what)),
            }
            at += step;
        }
        runs
    }
}
