//! A pool's targets being changed in single steps, each of which keeps what holds already.
//!
//! [`Layout::fill`] first, where replicas are missing, then [`Layout::settle`]. Replicas move (module `balance`) and
//! primaries change (module `lead`) along shortest paths, as in a maximum flow (Edmonds and Karp, JACM 1972): where no
//! OSD that has too much can give to one that has too little, it gives to a third that gives in turn. Each such path
//! brings the sum of what is too much and too little down, so it ends; and it ends where no path is left, whatever the
//! order of the members, so doing it again changes nothing.

use super::shares::shares;
use super::tree::{Group, Openings, Tree};
use super::{Candidate, standing};
use base::{OsdId, PoolId};

/// How far from its fair share an OSD may be, in replicas...
const TOLERANCE: f64 = 1.0;
/// ... or in parts of the share, whichever is more.
const TOLERANCE_PART: f64 = 0.05;
/// Less than this is no difference.
pub(super) const ROUNDING: f64 = 1e-6;

/// How far an OSD may be from such a fair share, in replicas.
pub(super) fn tolerance(fair: f64) -> f64 {
    (fair * TOLERANCE_PART).max(TOLERANCE) + ROUNDING
}

/// The targets of a pool's groups, as positions among the candidates, the preferred primary first.
pub(super) struct Layout<'a> {
    pub(super) pool: PoolId,
    pub(super) size: usize,
    pub(super) candidates: &'a [Candidate],
    pub(super) tree: &'a Tree,
    /// The part of all replicas that each candidate should hold.
    pub(super) shares: Vec<f64>,
    /// The replicas that each candidate should hold.
    pub(super) fair: Vec<f64>,
    /// Those it holds.
    pub(super) held: Vec<u32>,
    /// Both again, of all candidates below each branch of the tree.
    fair_below: Vec<f64>,
    held_below: Vec<u32>,
    pub(super) groups: Vec<Vec<u32>>,
    /// The groups as they were: what is in them has its data already.
    pub(super) before: Vec<Vec<u32>>,
    /// Which groups still have the primary they had.
    pub(super) keeps_primary: Vec<bool>,
    /// The groups that each candidate is in, in no order. Empty until [`Layout::index`].
    pub(super) groups_of: Vec<Vec<u32>>,
    openings: Openings,
}

impl<'a> Layout<'a> {
    /// Groups of at most `size` members each, no two the same in a group. `lost_primary` tells for which of
    /// them the first member only moved up.
    pub(super) fn new(
        pool: PoolId,
        size: usize,
        tree: &'a Tree,
        candidates: &'a [Candidate],
        groups: Vec<Vec<u32>>,
        lost_primary: impl Fn(usize) -> bool,
    ) -> Layout<'a> {
        let replicas = (groups.len() * size) as f64;
        let shares = shares(tree, candidates, size);
        let fair: Vec<f64> = shares.iter().map(|share| share * replicas).collect();
        let mut held = vec![0; candidates.len()];
        for &at in groups.iter().flatten() {
            held[at as usize] += 1;
        }
        Layout {
            pool,
            size,
            candidates,
            tree,
            fair_below: tree.sums(&fair),
            held_below: tree.sums(&held),
            shares,
            fair,
            held,
            before: groups.clone(),
            keeps_primary: (0..groups.len()).map(|index| !lost_primary(index)).collect(),
            groups_of: Vec::new(),
            openings: Openings::new(tree),
            groups,
        }
    }

    /// The targets.
    pub(super) fn targets(&self) -> Vec<Vec<OsdId>> {
        let osds = |group: &Vec<u32>| group.iter().map(|&at| self.candidates[at as usize].osd).collect();
        self.groups.iter().map(osds).collect()
    }

    /// Gives every group its full number of replicas.
    pub(super) fn fill(&mut self) {
        for index in 0..self.groups.len() {
            while self.groups[index].len() < self.size {
                self.openings.find(self.tree, &self.groups[index]);
                let next = self.newcomer(index).expect("there are at least as many candidates as replicas");
                self.groups[index].push(next);
                self.count(next, 1);
            }
        }
    }

    /// Spreads, balances, and orders. What needs no change is not changed.
    pub(super) fn settle(&mut self) {
        self.spread();
        self.index();
        self.balance();
        self.lead();
    }

    /// Who should join a group whose openings were just found: at each branch whoever is far behind its share, then
    /// whoever is behind at all, then by draw. An OSD that would have to be given something anyway goes first.
    fn newcomer(&self, index: usize) -> Option<u32> {
        let stands = |branch: usize| {
            let ahead = f64::from(self.held_below[branch]) - self.fair_below[branch];
            let is_off = ahead < 0.0 && self.tree.osd(branch).is_some_and(|at| self.distance(at) > 0.0);
            let is_open = self.openings.is_open(self.tree, branch);
            is_open.then(|| if is_off { 0 } else { standing(ahead) })
        };
        self.tree.descend_from_domains(Group::new(self.pool, index as u32), stands)
    }

    /// What an OSD draws for a group, for comparing the draws of one OSD.
    pub(super) fn draw(&self, index: usize, at: u32) -> u64 {
        Group::new(self.pool, index as u32).draw_of(self.candidates[at as usize].osd)
    }

    /// How many of a group's members are in a failure domain.
    pub(super) fn crowd(&self, index: usize, domain: u32) -> usize {
        self.groups[index].iter().filter(|&&at| self.tree.domain(at) == domain).count()
    }

    /// How far an OSD is above its fair share, in replicas.
    pub(super) fn excess(&self, at: u32) -> f64 {
        f64::from(self.held[at as usize]) - self.fair[at as usize]
    }

    /// How far an OSD is beyond what it may be off its fair share, in replicas.
    pub(super) fn distance(&self, at: u32) -> f64 {
        self.excess(at).abs() - tolerance(self.fair[at as usize])
    }

    fn count(&mut self, at: u32, by: i32) {
        let held = &mut self.held[at as usize];
        *held = held.checked_add_signed(by).expect("it gives no more than it holds");
        self.tree.up(at, |branch| {
            self.held_below[branch] = self.held_below[branch].wrapping_add_signed(by);
        });
    }

    /// Notes which groups each candidate is in.
    fn index(&mut self) {
        self.groups_of = self.held.iter().map(|&held| Vec::with_capacity(held as usize + 2)).collect();
        for (index, group) in self.groups.iter().enumerate() {
            for &at in group {
                self.groups_of[at as usize].push(index as u32);
            }
        }
    }

    pub(super) fn replace(&mut self, index: usize, from: u32, to: u32) {
        let place = self.groups[index].iter().position(|&at| at == from).expect("it is a member");
        self.groups[index][place] = to;
        self.count(from, -1);
        self.count(to, 1);
        if let Some(groups) = self.groups_of.get_mut(from as usize) {
            let place = groups.iter().position(|&group| group as usize == index);
            groups.swap_remove(place.expect("it was a member"));
            self.groups_of[to as usize].push(index as u32);
        }
    }

    /// Whether it was a member before, so that moving it moves data.
    pub(super) fn was_member(&self, index: usize, at: u32) -> bool {
        self.before[index].contains(&at)
    }

    /// Moves replicas from crowded failure domains to less crowded ones, as when hosts were added.
    fn spread(&mut self) {
        for index in 0..self.groups.len() {
            loop {
                self.openings.find(self.tree, &self.groups[index]);
                let most = self.openings.most_crowd();
                if self.openings.least_crowd(self.tree).is_none_or(|least| most < least + 2) {
                    break;
                }
                let to = self.newcomer(index).expect("a failure domain is open");
                let from = self.groups[index].iter().copied().max_by(|&one, &other| {
                    // The newest and the fullest go first, the preferred primary last.
                    let rank = |at: u32| {
                        let is_first = self.groups[index].first() == Some(&at);
                        (self.crowd(index, self.tree.domain(at)), !self.was_member(index, at), !is_first)
                    };
                    rank(one).cmp(&rank(other)).then(self.excess(one).total_cmp(&self.excess(other)))
                });
                self.replace(index, from.expect("a crowd has members"), to);
            }
        }
    }
}
