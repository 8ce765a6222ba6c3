//! A pool's targets being changed in single steps, each of which keeps what holds already.
//!
//! [`Layout::fill`] first, where replicas are missing, then [`Layout::settle`]. Replicas move and primaries
//! change along shortest paths, as in a maximum flow (Edmonds and Karp, JACM 1972): where no OSD that has too
//! much can give to one that has too little, it gives to a third that gives in turn. Each such path brings the
//! sum of what is too much and too little down, so it ends; and it ends where no path is left, whatever the
//! order of the members, so doing it again changes nothing.

use super::shares::{lead_shares, least, most, shares};
use super::{BEHIND, Candidate, draw};
use base::{NodeId, OsdId, PoolId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// How far from its fair share an OSD may be, in replicas...
const TOLERANCE: f64 = 1.0;
/// ... or in parts of the share, whichever is more.
const TOLERANCE_PART: f64 = 0.05;
/// Less than this is no difference.
const ROUNDING: f64 = 1e-6;

/// The targets of a pool's groups, as positions among the candidates, the preferred primary first.
pub(super) struct Layout<'a> {
    pool: PoolId,
    size: usize,
    candidates: &'a [Candidate],
    /// The node of each candidate, counted from 0.
    nodes: Vec<usize>,
    /// The replicas that each candidate should hold.
    fair: Vec<f64>,
    /// Those it holds.
    held: Vec<u32>,
    groups: Vec<Vec<usize>>,
    /// The groups as they were: what is in them has its data already.
    before: Vec<Vec<usize>>,
    /// Which groups still have the primary they had.
    keeps_primary: Vec<bool>,
}

impl<'a> Layout<'a> {
    /// Groups of at most `size` members each, no two the same in a group. `lost_primary` tells for which of
    /// them the first member only moved up.
    pub(super) fn new(
        pool: PoolId,
        size: usize,
        candidates: &'a [Candidate],
        groups: Vec<Vec<usize>>,
        lost_primary: impl Fn(usize) -> bool,
    ) -> Layout<'a> {
        let mut numbers: BTreeMap<NodeId, usize> = BTreeMap::new();
        let nodes = candidates
            .iter()
            .map(|candidate| {
                let next = numbers.len();
                *numbers.entry(candidate.node).or_insert(next)
            })
            .collect();
        let replicas = (groups.len() * size) as f64;
        let mut held = vec![0; candidates.len()];
        for &at in groups.iter().flatten() {
            held[at] += 1;
        }
        Layout {
            pool,
            size,
            candidates,
            nodes,
            fair: shares(candidates, size).into_iter().map(|share| share * replicas).collect(),
            held,
            before: groups.clone(),
            keeps_primary: (0..groups.len()).map(|index| !lost_primary(index)).collect(),
            groups,
        }
    }

    /// The targets.
    pub(super) fn targets(&self) -> Vec<Vec<OsdId>> {
        let osds = |group: &Vec<usize>| group.iter().map(|&at| self.candidates[at].osd).collect();
        self.groups.iter().map(osds).collect()
    }

    /// Gives every group its full number of replicas.
    pub(super) fn fill(&mut self) {
        for index in 0..self.groups.len() {
            while self.groups[index].len() < self.size {
                let next = self.newcomer(index).expect("there are at least as many candidates as replicas");
                self.groups[index].push(next);
                self.held[next] += 1;
            }
        }
    }

    /// Spreads, balances, and orders. What needs no change is not changed.
    pub(super) fn settle(&mut self) {
        self.spread();
        self.balance();
        self.lead();
    }

    /// Who should join a group: whoever stands on the least crowded node, then whoever is far behind its
    /// share, then whoever is behind at all, then by draw.
    fn newcomer(&self, index: usize) -> Option<usize> {
        let group = &self.groups[index];
        let outside = (0..self.candidates.len()).filter(|at| !group.contains(at));
        outside.min_by(|&one, &other| {
            let turn = |at: usize| match self.excess(at) {
                excess if excess <= -BEHIND => 0,
                excess if excess < 0.0 => 1,
                _ => 2,
            };
            let first = |at: usize| (self.crowd(index, self.nodes[at]), turn(at));
            let drawn = || self.draw(index, other).total_cmp(&self.draw(index, one));
            first(one).cmp(&first(other)).then_with(drawn)
        })
    }

    fn draw(&self, index: usize, at: usize) -> f64 {
        draw(self.pool, index as u32, &self.candidates[at])
    }

    /// How many of a group's members are on a node.
    fn crowd(&self, index: usize, node: usize) -> usize {
        self.groups[index].iter().filter(|&&at| self.nodes[at] == node).count()
    }

    /// How far an OSD is above its fair share, in replicas.
    fn excess(&self, at: usize) -> f64 {
        f64::from(self.held[at]) - self.fair[at]
    }

    fn tolerance(&self, at: usize) -> f64 {
        (self.fair[at] * TOLERANCE_PART).max(TOLERANCE) + ROUNDING
    }

    fn replace(&mut self, index: usize, from: usize, to: usize) {
        let place = self.groups[index].iter().position(|&at| at == from).expect("it is a member");
        self.groups[index][place] = to;
        self.held[from] -= 1;
        self.held[to] += 1;
    }

    /// Whether it was a member before, so that moving it moves data.
    fn was_member(&self, index: usize, at: usize) -> bool {
        self.before[index].contains(&at)
    }

    /// Moves replicas from crowded nodes to less crowded ones, as when nodes were added.
    fn spread(&mut self) {
        for index in 0..self.groups.len() {
            while let Some(to) = self.newcomer(index) {
                let crowd = |at: usize| self.crowd(index, self.nodes[at]);
                let from = self.groups[index].iter().copied().max_by(|&one, &other| {
                    // The newest and the fullest go first, the preferred primary last.
                    let rank = |at: usize| {
                        (crowd(at), !self.was_member(index, at), self.groups[index].first() != Some(&at))
                    };
                    rank(one).cmp(&rank(other)).then(self.excess(one).total_cmp(&self.excess(other)))
                });
                match from.filter(|&from| crowd(from) >= crowd(to) + 2) {
                    Some(from) => self.replace(index, from, to),
                    None => break,
                }
            }
        }
    }

    /// Moves replicas from OSDs above their share to those below, until none is far from it that can be helped.
    fn balance(&mut self) {
        let mut moves = Moves::of(self);
        let mut helpless = vec![false; self.candidates.len()];
        let distance = |layout: &Layout<'_>, at: usize| layout.excess(at).abs() - layout.tolerance(at);
        loop {
            let off = (0..self.candidates.len()).filter(|&at| !helpless[at] && distance(self, at) > 0.0);
            let worst = off.max_by(|&one, &other| {
                distance(self, one).total_cmp(&distance(self, other)).then(other.cmp(&one))
            });
            let Some(worst) = worst else { return };
            let path = if self.excess(worst) > 0.0 {
                moves.path(|at| at == worst, |at| self.excess(at) < -ROUNDING, |at| self.excess(at))
            } else {
                moves.path(|at| self.excess(at) > ROUNDING, |at| at == worst, |at| -self.excess(at))
            };
            if path.is_some_and(|path| self.shift(&path, &mut moves)) {
                helpless.fill(false);
            } else {
                helpless[worst] = true;
            }
        }
    }

    /// Moves one replica along each step of a path. If a step came to be impossible, none is moved.
    fn shift(&mut self, path: &[usize], moves: &mut Moves) -> bool {
        let mut done: Vec<(usize, usize, usize)> = Vec::new();
        for step in path.windows(2).rev() {
            let (from, to) = (step[0], step[1]);
            let groups = (0..self.groups.len()).filter(|&index| self.may_move(index, from, to));
            let best = groups.min_by(|&one, &other| {
                // Who has no data yet loses none, and a preferred primary is best left where it is.
                let rank = |index: usize| {
                    (self.was_member(index, from), self.groups[index][0] == from, !self.was_member(index, to))
                };
                let drawn = || self.draw(other, to).total_cmp(&self.draw(one, to));
                rank(one).cmp(&rank(other)).then_with(drawn)
            });
            let Some(index) = best else {
                for (index, from, to) in done.into_iter().rev() {
                    moves.change(self, index, |layout| layout.replace(index, to, from));
                }
                return false;
            };
            moves.change(self, index, |layout| layout.replace(index, from, to));
            done.push((index, from, to));
        }
        true
    }

    /// Whether a group's replica may move without its nodes being more crowded than before.
    fn may_move(&self, index: usize, from: usize, to: usize) -> bool {
        let group = &self.groups[index];
        let (node, other) = (self.nodes[from], self.nodes[to]);
        group.contains(&from)
            && !group.contains(&to)
            && (node == other || self.crowd(index, other) < self.crowd(index, node))
    }

    /// Chooses the preferred primaries so that their numbers follow the sizes.
    fn lead(&mut self) {
        let groups = self.groups.iter().filter(|group| !group.is_empty()).count() as f64;
        let fair: Vec<f64> =
            lead_shares(self.candidates, self.size).into_iter().map(|share| share * groups).collect();
        let mut led = vec![0u64; self.candidates.len()];
        let mut moves = Moves::none(self.candidates.len());
        for group in self.groups.iter().filter(|group| !group.is_empty()) {
            led[group[0]] += 1;
            moves.count_leads(group, 1);
        }
        let mut helpless = vec![false; self.candidates.len()];
        loop {
            let over = |at: usize| led[at].saturating_sub(most(fair[at]));
            let under = |at: usize| least(fair[at]).saturating_sub(led[at]);
            let off = (0..self.candidates.len()).filter(|&at| !helpless[at] && over(at) + under(at) > 0);
            let Some(worst) = off.max_by_key(|&at| (over(at) + under(at), Reverse(at))) else { return };
            let excess = |at: usize| led[at] as f64 - fair[at];
            let path = if over(worst) > 0 {
                moves.path(|at| at == worst, |at| led[at] < most(fair[at]), excess)
            } else {
                moves.path(|at| led[at] > least(fair[at]), |at| at == worst, |at| -excess(at))
            };
            let Some(path) = path else {
                helpless[worst] = true;
                continue;
            };
            for step in path.windows(2) {
                self.hand_over(step[0], step[1], &mut moves);
            }
            led[path[0]] -= 1;
            led[path[path.len() - 1]] += 1;
            helpless.fill(false);
        }
    }

    /// Prefers another primary for one group of `from`.
    fn hand_over(&mut self, from: usize, to: usize, moves: &mut Moves) {
        let groups = (0..self.groups.len()).filter(|&index| {
            let group = &self.groups[index];
            group.first() == Some(&from) && group.contains(&to)
        });
        let best = groups.min_by(|&one, &other| {
            // A group that lost its primary gets another anyway; and who has the data can lead at once.
            let keeps = |index: usize| self.keeps_primary[index] && self.before[index].first() == Some(&from);
            let rank = |index: usize| (keeps(index), !self.was_member(index, to));
            let drawn = || self.draw(other, to).total_cmp(&self.draw(one, to));
            rank(one).cmp(&rank(other)).then_with(drawn)
        });
        let index = best.expect("steps of one path are of different groups, so each is possible still");
        moves.count_leads(&self.groups[index], -1);
        let place = self.groups[index].iter().position(|&at| at == to).expect("it is a member");
        self.groups[index][..=place].rotate_right(1);
        moves.count_leads(&self.groups[index], 1);
    }
}

/// In how many groups one candidate could give something to another.
struct Moves {
    count: usize,
    /// At `from * count + to`.
    groups: Vec<i32>,
}

impl Moves {
    fn none(count: usize) -> Moves {
        Moves { count, groups: vec![0; count * count] }
    }

    /// The moves of replicas.
    fn of(layout: &Layout<'_>) -> Moves {
        let mut moves = Moves::none(layout.candidates.len());
        for index in 0..layout.groups.len() {
            moves.count_replicas(layout, index, 1);
        }
        moves
    }

    fn count_replicas(&mut self, layout: &Layout<'_>, index: usize, by: i32) {
        for &from in &layout.groups[index] {
            for to in (0..self.count).filter(|&to| layout.may_move(index, from, to)) {
                self.groups[from * self.count + to] += by;
            }
        }
    }

    fn count_leads(&mut self, group: &[usize], by: i32) {
        for &to in &group[1..] {
            self.groups[group[0] * self.count + to] += by;
        }
    }

    /// Changes a group, and what can move in it.
    fn change(&mut self, layout: &mut Layout<'_>, index: usize, change: impl FnOnce(&mut Layout<'_>)) {
        self.count_replicas(layout, index, -1);
        change(layout);
        self.count_replicas(layout, index, 1);
    }

    /// A shortest path from any that `starts` to any that `ends`. Of ends, or else of starts, that are equally
    /// near, the one with the least `rank`.
    fn path(
        &self,
        starts: impl Fn(usize) -> bool,
        ends: impl Fn(usize) -> bool,
        rank: impl Fn(usize) -> f64,
    ) -> Option<Vec<usize>> {
        let mut before: Vec<Option<usize>> = vec![None; self.count];
        let mut distance = vec![usize::MAX; self.count];
        let mut first: Vec<usize> = (0..self.count).filter(|&at| starts(at)).collect();
        first.sort_by(|&one, &other| rank(one).total_cmp(&rank(other)).then(one.cmp(&other)));
        for &at in &first {
            distance[at] = 0;
        }
        let mut reached = VecDeque::from(first);
        let mut best: Option<usize> = None;
        while let Some(from) = reached.pop_front() {
            if best.is_some_and(|best| distance[from] >= distance[best]) {
                break;
            }
            for to in 0..self.count {
                if distance[to] != usize::MAX || self.groups[from * self.count + to] == 0 {
                    continue;
                }
                (distance[to], before[to]) = (distance[from] + 1, Some(from));
                reached.push_back(to);
                if ends(to) && best.is_none_or(|best| rank(to) < rank(best)) {
                    best = Some(to);
                }
            }
        }
        let mut path = vec![best?];
        while let Some(from) = before[path[path.len() - 1]] {
            path.push(from);
        }
        path.reverse();
        Some(path)
    }
}
