//! Along which path OSDs give to each other, and which group had best be the one that an OSD gives.

use base::hash::Map;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Who is in so many groups is not asked for each of its moves which is the best.
const MANY: usize = 256;
/// The most moves that are remembered.
const REMEMBERED_MAX: usize = 1 << 21;

/// Of a candidate that was not reached: how far it is, and whom it was reached from.
pub(super) const NOT_REACHED: u32 = u32::MAX;

/// The path to a candidate, given whom each was reached from.
pub(super) fn path_to(end: u32, before: &[u32]) -> Vec<u32> {
    let earlier = |&at: &u32| Some(before[at as usize]).filter(|&at| at != NOT_REACHED);
    let mut path: Vec<u32> = std::iter::successors(Some(end), earlier).collect();
    path.reverse();
    path
}

/// What a move costs, the worst first, what its new member draws for the group, and the group. The lowest is the best.
pub(super) type Move = ([bool; 3], Reverse<u64>, u32);

/// The moves from OSDs in many groups to others, the best first. Among them are all that are possible, and some that are
/// no longer.
#[derive(Default)]
pub(super) struct Moves {
    known: Map<(u32, u32), BinaryHeap<Reverse<Move>>>,
    count: usize,
}

impl Moves {
    /// The group that had best move, of `groups` that the one is in. `rank` answers what a move of a group costs, if it is
    /// possible.
    pub(super) fn best(
        &mut self,
        from: u32,
        to: u32,
        groups: &[u32],
        rank: impl Fn(u32) -> Option<Move>,
    ) -> Option<usize> {
        if groups.len() < MANY {
            let best = groups.iter().filter_map(|&index| rank(index)).min();
            return best.map(|(.., index)| index as usize);
        }
        if self.count > REMEMBERED_MAX {
            *self = Moves::default();
        }
        let known = self.known.entry((from, to)).or_insert_with(|| {
            let moves: BinaryHeap<_> = groups.iter().filter_map(|&index| rank(index).map(Reverse)).collect();
            self.count += moves.len();
            moves
        });
        while let Some(&Reverse(one)) = known.peek() {
            let (.., index) = one;
            if rank(index) == Some(one) {
                return Some(index as usize);
            }
            known.pop();
            self.count -= 1;
        }
        None
    }

    /// Notes what has become possible, or better, by the change of a group: `rank` answers for a pair what that costs now.
    pub(super) fn changed(&mut self, rank: impl Fn(u32, u32) -> Option<Move>) {
        for (&(from, to), known) in &mut self.known {
            if let Some(one) = rank(from, to) {
                known.push(Reverse(one));
                self.count += 1;
            }
        }
    }
}
