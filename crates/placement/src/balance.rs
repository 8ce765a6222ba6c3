//! Replicas move from OSDs above their share to those below.
//!
//! An OSD can give to another if one of its groups would have no more crowded failure domains by it. So nearly everybody
//! can give to nearly everybody: the pairs are never written down. Who has most and who has least is kept in order, and
//! mostly the first pair that is looked at will do; else the shortest path is searched for, with every OSD reached once
//! and every group looked at once for each of its members.

use super::layout::{Layout, ROUNDING};
use super::moves::{Move, Moves, NOT_REACHED, path_to};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

impl Layout<'_> {
    /// Moves replicas from OSDs above their share to those below, until none is far from it that can be helped.
    pub(super) fn balance(&mut self) {
        let mut order = Order::of(self);
        while let Some(worst) = order.worst() {
            let path = if self.excess(worst) > 0.0 {
                self.way_out(worst, &order)
            } else {
                self.way_in(worst, &order)
            };
            if path.is_some_and(|path| self.shift(&path, &mut order)) {
                order.hope_again(self);
            } else {
                order.give_up(self, worst);
            }
        }
    }

    /// A shortest path from an OSD to one below its share, the lowest that is as near.
    fn way_out(&self, from: u32, order: &Order) -> Option<Vec<u32>> {
        let mut lowest = order.emptiest().take_while(|&at| self.excess(at) < -ROUNDING);
        match lowest.find(|&to| self.may_give(from, to)) {
            Some(to) => Some(vec![from, to]),
            None => self.path(&[from], |at| self.excess(at) < -ROUNDING),
        }
    }

    /// A shortest path to an OSD from one above its share, the highest that is as near.
    fn way_in(&self, to: u32, order: &Order) -> Option<Vec<u32>> {
        let highest = || order.fullest().take_while(|&at| self.excess(at) > ROUNDING);
        match highest().find(|&from| self.may_give(from, to)) {
            Some(from) => Some(vec![from, to]),
            None => self.path(&highest().collect::<Vec<_>>(), |at| at == to),
        }
    }

    fn may_give(&self, from: u32, to: u32) -> bool {
        self.groups_of[from as usize].iter().any(|&index| self.may_move(index as usize, from, to))
    }

    /// Whether a group's replica may move without its failure domains being more crowded than before.
    fn may_move(&self, index: usize, from: u32, to: u32) -> bool {
        let (domain, other) = (self.tree.domain(from), self.tree.domain(to));
        !self.groups[index].contains(&to)
            && (domain == other || self.crowd(index, other) < self.crowd(index, domain))
    }

    /// Moves one replica along each step of a path. If a step came to be impossible, none is moved.
    fn shift(&mut self, path: &[u32], order: &mut Order) -> bool {
        let mut done: Vec<(usize, u32, u32)> = Vec::new();
        for step in path.windows(2).rev() {
            let (from, to) = (step[0], step[1]);
            let groups = &self.groups_of[from as usize];
            let rank = |index| self.rank(index, from, to);
            let Some(index) = order.moves.best(from, to, groups, rank) else {
                for (index, from, to) in done.into_iter().rev() {
                    self.give(index, to, from, order);
                }
                return false;
            };
            self.give(index, from, to, order);
            done.push((index, from, to));
        }
        true
    }

    fn give(&mut self, index: usize, from: u32, to: u32, order: &mut Order) {
        order.leave(self, from);
        order.leave(self, to);
        self.replace(index, from, to);
        order.enter(self, from);
        order.enter(self, to);
        order.moves.changed(|from, to| self.rank(index as u32, from, to));
    }

    /// What it costs to move a group's replica, if it is possible.
    fn rank(&self, index: u32, from: u32, to: u32) -> Option<Move> {
        let at = index as usize;
        if !self.groups[at].contains(&from) || !self.may_move(at, from, to) {
            return None;
        }
        // Who has no data yet loses none, and a preferred primary is best left where it is.
        let moves_data = self.was_member(at, from);
        let moves_primary = self.groups[at][0] == from;
        let needs_data = !self.was_member(at, to);
        Some(([moves_data, moves_primary, needs_data], Reverse(self.draw(at, to)), index))
    }

    /// A shortest path from any of `starts`, the first that will do, to any that `ends`: of those that are equally near
    /// the one lowest below its share.
    fn path(&self, starts: &[u32], ends: impl Fn(u32) -> bool) -> Option<Vec<u32>> {
        let mut before = vec![NOT_REACHED; self.candidates.len()];
        let mut distance = vec![NOT_REACHED; self.candidates.len()];
        for &at in starts {
            distance[at as usize] = 0;
        }
        // Those not reached yet, by failure domain.
        let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); self.tree.domains()];
        for at in (0..self.candidates.len() as u32).filter(|&at| distance[at as usize] == NOT_REACHED) {
            waiting[self.tree.domain(at) as usize].push(at);
        }
        let mut domains: Vec<u32> = (0..waiting.len() as u32).collect();
        let mut reached: VecDeque<u32> = starts.iter().copied().collect();
        let mut best: Option<u32> = None;
        while let Some(from) = reached.pop_front() {
            if best.is_some_and(|best| distance[from as usize] >= distance[best as usize]) {
                break;
            }
            let mut found = Vec::new();
            let domain = self.tree.domain(from);
            for &index in &self.groups_of[from as usize] {
                let crowd = self.crowd(index as usize, domain);
                domains.retain(|&other| {
                    let waiting = &mut waiting[other as usize];
                    if other == domain || self.crowd(index as usize, other) < crowd {
                        let group = &self.groups[index as usize];
                        found.extend(waiting.extract_if(.., |at| !group.contains(at)));
                    }
                    !waiting.is_empty()
                });
            }
            found.sort_unstable();
            for to in found {
                (distance[to as usize], before[to as usize]) = (distance[from as usize] + 1, from);
                reached.push_back(to);
                if ends(to) && best.is_none_or(|best| self.excess(to) < self.excess(best)) {
                    best = Some(to);
                }
            }
        }
        best.map(|best| path_to(best, &before))
    }
}

/// The OSDs by what they hold.
#[derive(Default)]
struct Order {
    /// By how far they are above their shares; below 0 are those that lack something.
    by_excess: BTreeSet<(i64, u32)>,
    /// The same the other way round: equal ones are in the same order in both.
    by_lack: BTreeSet<(i64, u32)>,
    /// Those beyond what they may be off, the farthest first.
    off: BTreeSet<(i64, u32)>,
    /// Those of them for whom nothing could be done, until something else has moved.
    helpless: BTreeSet<u32>,
    moves: Moves,
}

impl Order {
    fn of(layout: &Layout<'_>) -> Order {
        let mut order = Order::default();
        for at in 0..layout.candidates.len() as u32 {
            order.enter(layout, at);
        }
        order
    }

    fn enter(&mut self, layout: &Layout<'_>, at: u32) {
        self.by_excess.insert((ordered(layout.excess(at)), at));
        self.by_lack.insert((ordered(-layout.excess(at)), at));
        if layout.distance(at) > 0.0 && !self.helpless.contains(&at) {
            self.off.insert((ordered(-layout.distance(at)), at));
        }
    }

    /// Nothing can be done for it. It can give to others and take still.
    fn give_up(&mut self, layout: &Layout<'_>, at: u32) {
        self.off.remove(&(ordered(-layout.distance(at)), at));
        self.helpless.insert(at);
    }

    fn hope_again(&mut self, layout: &Layout<'_>) {
        for at in std::mem::take(&mut self.helpless) {
            self.enter(layout, at);
        }
    }

    /// Before what it holds changes.
    fn leave(&mut self, layout: &Layout<'_>, at: u32) {
        self.by_excess.remove(&(ordered(layout.excess(at)), at));
        self.by_lack.remove(&(ordered(-layout.excess(at)), at));
        self.off.remove(&(ordered(-layout.distance(at)), at));
    }

    fn worst(&self) -> Option<u32> {
        self.off.first().map(|&(_, at)| at)
    }

    fn emptiest(&self) -> impl Iterator<Item = u32> {
        self.by_excess.iter().map(|&(_, at)| at)
    }

    fn fullest(&self) -> impl Iterator<Item = u32> {
        self.by_lack.iter().map(|&(_, at)| at)
    }
}

/// A number that is in the same order as others made so from floats (IEEE 754, 5.10).
fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

#[cfg(test)]
mod tests {
    use super::ordered;

    #[test]
    fn numbers_made_of_floats_are_in_their_order() {
        let values = [-2.5, -1.0, -1e-9, -0.0, 0.0, 1e-9, 0.5, 1.0, 7e9];
        assert!(values.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
    }
}
