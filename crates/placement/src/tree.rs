//! The failure domains as a tree, down which the place of a replica is drawn.
//!
//! Regions hold zones, these hold racks, hosts and OSDs; a level that nobody named is left out, and so is what is above the
//! failure domains of a rule unless these are very many. At each branch the best draw wins, weighted by what hangs below, so a choice costs a
//! draw for each branch that is passed, not one for each OSD. The best of weighted draws is distributed as one draw of
//! their sum, so going down the tree chooses an OSD as often as drawing among all of them would.

use super::{Candidate, Place};
use base::hash::{Map, mix};
use base::map::FailureDomain;
use base::{OsdId, PoolId};
use std::ops::{AddAssign, Range};

/// Added before mixing, so that no number is mixed to itself.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const ROOT: u32 = 0;

/// So many failure domains each draw for themselves. If whole racks of them drew, those that lie together would end up in
/// groups that are alike, of which the few that are left when one is lost could not take equal parts.
const DOMAINS_FLAT_MAX: usize = 1024;

/// A step down the tree: a level, and the number of a place there.
type Step = (FailureDomain, u32);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It holds failure domains.
    Above,
    /// It is the failure domain of that number.
    Domain(u32),
    /// It is within one.
    Within,
}

struct Branch {
    kind: Kind,
    parent: u32,
    /// They follow each other. None below an OSD.
    children: Range<u32>,
    /// What it draws by.
    key: u64,
    weight: f64,
    /// What replicas of one group could be chosen from here: failure domains, or within one of them OSDs.
    units: u32,
    /// Its first candidate.
    candidate: u32,
}

/// The candidates, each a leaf somewhere below the root.
pub(super) struct Tree {
    /// Each behind its parent.
    branches: Vec<Branch>,
    /// The leaf of each candidate.
    leaves: Vec<u32>,
    /// The failure domain of each candidate.
    domain_of: Vec<u32>,
    /// The branch of each failure domain, and the OSDs below it.
    domains: Vec<(u32, u32)>,
}

impl Tree {
    pub(super) fn new(failure_domain: FailureDomain, candidates: &[Candidate]) -> Tree {
        let paths = paths(failure_domain, candidates);
        let mut tree = Tree {
            branches: Vec::new(),
            leaves: vec![0; candidates.len()],
            domain_of: vec![0; candidates.len()],
            domains: Vec::new(),
        };
        tree.add_branch(ROOT, 0, Kind::Above, &(0..candidates.len() as u32).collect::<Vec<_>>(), candidates);
        let mut members: Vec<Vec<u32>> = vec![(0..candidates.len() as u32).collect()];
        let mut depths = vec![0];
        let mut branch = 0;
        while branch < tree.branches.len() {
            let (within, depth) = (std::mem::take(&mut members[branch]), depths[branch]);
            let mut numbers: Map<Step, usize> = Map::default();
            let mut children: Vec<(Step, Vec<u32>)> = Vec::new();
            for &candidate in &within {
                let Some(&step) = paths[candidate as usize].get(depth) else {
                    tree.leaves[candidate as usize] = branch as u32;
                    continue;
                };
                let number = *numbers.entry(step).or_insert(children.len());
                if number == children.len() {
                    children.push((step, Vec::new()));
                }
                children[number].1.push(candidate);
            }
            let first = tree.branches.len() as u32;
            tree.branches[branch].children = first..first + children.len() as u32;
            for ((level, _), candidates_below) in children {
                let kind = match tree.branches[branch].kind {
                    Kind::Above if level == failure_domain => Kind::Domain(tree.domains.len() as u32),
                    Kind::Above => Kind::Above,
                    Kind::Domain(_) | Kind::Within => Kind::Within,
                };
                tree.add_branch(branch as u32, depth, kind, &candidates_below, candidates);
                members.push(candidates_below);
                depths.push(depth + 1);
            }
            branch += 1;
        }
        for domain in 0..tree.domains.len() {
            let mut at = tree.domains[domain].0;
            while at != ROOT {
                at = tree.branches[at as usize].parent;
                tree.branches[at as usize].units += 1;
            }
        }
        tree
    }

    fn add_branch(
        &mut self,
        parent: u32,
        depth: usize,
        kind: Kind,
        members: &[u32],
        candidates: &[Candidate],
    ) {
        let number = self.branches.len() as u32;
        let candidate = members.first().copied().unwrap_or(0);
        let key = candidates.get(candidate as usize).map_or(0, |candidate| key(candidate.osd));
        let weight: u64 = members.iter().map(|&at| candidates[at as usize].weight).sum();
        if let Kind::Domain(domain) = kind {
            self.domains.push((number, members.len() as u32));
            for &member in members {
                self.domain_of[member as usize] = domain;
            }
        }
        self.branches.push(Branch {
            kind,
            parent,
            children: 0..0,
            // What is drawn below a branch has nothing to do with what the branch drew.
            key: if depth == 0 { key } else { mix(key.wrapping_add(depth as u64)) },
            weight: weight as f64,
            units: match kind {
                Kind::Above => 0,
                Kind::Domain(_) => 1,
                Kind::Within => members.len() as u32,
            },
            candidate,
        });
    }

    /// How many failure domains there are.
    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }

    /// The failure domain of a candidate.
    pub(super) fn domain(&self, candidate: u32) -> u32 {
        self.domain_of[candidate as usize]
    }

    /// The candidate that a branch is, if it is no more than one.
    pub(super) fn osd(&self, branch: usize) -> Option<u32> {
        let branch = &self.branches[branch];
        branch.children.is_empty().then_some(branch.candidate)
    }

    /// The candidates in each failure domain.
    pub(super) fn by_domain(&self) -> Vec<Vec<usize>> {
        let mut within = vec![Vec::new(); self.domains.len()];
        for (candidate, &domain) in self.domain_of.iter().enumerate() {
            within[domain as usize].push(candidate);
        }
        within
    }

    /// For each branch the sum of what the candidates below it have.
    pub(super) fn sums<T: Copy + Default + AddAssign>(&self, of_candidates: &[T]) -> Vec<T> {
        let mut sums = vec![T::default(); self.branches.len()];
        for (&leaf, &value) in self.leaves.iter().zip(of_candidates) {
            sums[leaf as usize] = value;
        }
        for branch in (1..self.branches.len()).rev() {
            let value = sums[branch];
            sums[self.branches[branch].parent as usize] += value;
        }
        sums
    }

    /// Performs something for each branch that a candidate is below, the leaf first and the root last.
    pub(super) fn up(&self, candidate: u32, mut change: impl FnMut(usize)) {
        self.upwards(self.leaves[candidate as usize]).for_each(|branch| change(branch as usize));
    }

    /// A branch and those that it is below, the root last.
    fn upwards(&self, from: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(from), move |&at| (at != ROOT).then(|| self.branches[at as usize].parent))
    }

    /// What each branch right below the root draws for a group.
    pub(super) fn first_draws(&self, group: Group, into: &mut Vec<f64>) {
        into.clear();
        let branches = self.branches[ROOT as usize].children.clone();
        into.extend(branches.map(|branch| self.draw(group, branch)));
    }

    fn draw(&self, group: Group, branch: u32) -> f64 {
        let branch = &self.branches[branch as usize];
        // Uniform in (0, 1), both ends excluded.
        let uniform = (drawn(group, branch.key) as f64 + 0.5) / (1u64 << 52) as f64;
        -branch.weight / uniform.ln()
    }

    /// Goes down from the root, at each branch to whichever of its children stands first and draws best; `standing`
    /// is the lower the better, and `None` for who cannot be chosen. `first` are the draws right below the root. `None` if
    /// nobody can be chosen.
    pub(super) fn descend(
        &self,
        group: Group,
        first: &[f64],
        standing: impl Fn(usize) -> Option<u8>,
    ) -> Option<u32> {
        let children = self.branches[ROOT as usize].children.clone();
        let begin = children.start;
        let branch = best(children, &standing, |branch| first[(branch - begin) as usize])?;
        self.descend_from(branch, group, standing)
    }

    /// The same, but the failure domain is chosen among all, whatever is above them: this costs a draw for each of those
    /// that stand first.
    pub(super) fn descend_from_domains(
        &self,
        group: Group,
        standing: impl Fn(usize) -> Option<u8>,
    ) -> Option<u32> {
        let domains = self.domains.iter().map(|(branch, _)| *branch);
        let branch = best(domains, &standing, |branch| self.draw(group, branch))?;
        self.descend_from(branch, group, standing)
    }

    fn descend_from(
        &self,
        mut branch: u32,
        group: Group,
        standing: impl Fn(usize) -> Option<u8>,
    ) -> Option<u32> {
        loop {
            let children = self.branches[branch as usize].children.clone();
            if children.is_empty() {
                return Some(self.branches[branch as usize].candidate);
            }
            branch = best(children, &standing, |branch| self.draw(group, branch))?;
        }
    }
}

/// Of some branches the one that stands first and draws best.
fn best(
    branches: impl Iterator<Item = u32>,
    standing: impl Fn(usize) -> Option<u8>,
    draw: impl Fn(u32) -> f64,
) -> Option<u32> {
    let mut best: Option<(u8, f64, u32)> = None;
    for branch in branches {
        let Some(stands) = standing(branch as usize) else { continue };
        if best.is_some_and(|(first, ..)| first < stands) {
            continue;
        }
        let drawn = draw(branch);
        if best.is_none_or(|(first, highest, _)| stands < first || drawn > highest) {
            best = Some((stands, drawn, branch));
        }
    }
    best.map(|(.., branch)| branch)
}

/// The steps from the root to each candidate. The failure domain is always one of them.
fn paths(failure_domain: FailureDomain, candidates: &[Candidate]) -> Vec<Vec<Step>> {
    let mut numbers: Map<Place, u32> = Map::default();
    let domain = |candidate: &Candidate| {
        let next = numbers.len() as u32;
        *numbers.entry(candidate.place.domain(failure_domain, candidate.osd)).or_insert(next)
    };
    let domains: Vec<u32> = candidates.iter().map(domain).collect();
    let is_passed = |level: FailureDomain| level <= failure_domain || numbers.len() > DOMAINS_FLAT_MAX;
    let path = |(candidate, domain): (&Candidate, u32)| {
        let place = candidate.place;
        let steps = [
            (FailureDomain::Region, place.region),
            (FailureDomain::Zone, place.zone),
            (FailureDomain::Rack, place.rack),
            (FailureDomain::Host, Some(place.host)),
            (FailureDomain::Osd, Some(candidate.osd.0)),
        ];
        let step = |(level, name): (FailureDomain, Option<u32>)| match name {
            _ if level == failure_domain => Some((level, domain)),
            name => name.filter(|_| is_passed(level)).map(|name| (level, name)),
        };
        steps.into_iter().filter_map(step).collect()
    };
    candidates.iter().zip(domains).map(path).collect()
}

/// What a group brings to every draw.
#[derive(Clone, Copy)]
pub(super) struct Group(u64);

impl Group {
    pub(super) fn new(pool: PoolId, index: u32) -> Group {
        Group(mix(u64::from(pool.0) << 32 | u64::from(index)))
    }

    /// What an OSD draws for this group, before its weight counts.
    pub(super) fn draw_of(self, osd: OsdId) -> u64 {
        drawn(self, key(osd))
    }
}

fn key(osd: OsdId) -> u64 {
    mix(u64::from(osd.0).wrapping_add(GOLDEN))
}

/// A number below 2^52.
fn drawn(group: Group, key: u64) -> u64 {
    mix(group.0 ^ key) >> 12
}

/// Who can take another replica of a group: OSDs outside it, in those failure domains that have the fewest of it.
pub(super) struct Openings {
    /// Of the units of each branch, those that cannot.
    closed: Vec<u32>,
    touched: Vec<u32>,
    /// The members of the group in each failure domain that has any.
    crowds: Vec<(u32, u32)>,
}

impl Openings {
    pub(super) fn new(tree: &Tree) -> Openings {
        Openings { closed: vec![0; tree.branches.len()], touched: Vec::new(), crowds: Vec::new() }
    }

    /// Finds them out for a group of these members.
    pub(super) fn find(&mut self, tree: &Tree, members: &[u32]) {
        for branch in self.touched.drain(..) {
            self.closed[branch as usize] = 0;
        }
        self.crowds.clear();
        for &member in members {
            let domain = tree.domain(member);
            match self.crowds.iter_mut().find(|(other, _)| *other == domain) {
                Some((_, crowd)) => *crowd += 1,
                None => self.crowds.push((domain, 1)),
            }
            let is_within = |branch: &u32| tree.branches[*branch as usize].kind == Kind::Within;
            for branch in tree.upwards(tree.leaves[member as usize]).take_while(is_within) {
                self.close(branch);
            }
        }
        let least = self.least_crowd(tree);
        for at in 0..self.crowds.len() {
            let (domain, crowd) = self.crowds[at];
            let (branch, osds) = tree.domains[domain as usize];
            if Some(crowd) != least || crowd == osds {
                tree.upwards(branch).for_each(|branch| self.close(branch));
            }
        }
    }

    fn close(&mut self, branch: u32) {
        self.closed[branch as usize] += 1;
        self.touched.push(branch);
    }

    /// The fewest members of the group in a failure domain that has an OSD outside it.
    pub(super) fn least_crowd(&self, tree: &Tree) -> Option<u32> {
        if self.crowds.len() < tree.domains.len() {
            return Some(0);
        }
        let open = self.crowds.iter().filter(|(domain, crowd)| *crowd < tree.domains[*domain as usize].1);
        open.map(|(_, crowd)| *crowd).min()
    }

    /// The most members of the group in one failure domain.
    pub(super) fn most_crowd(&self) -> u32 {
        self.crowds.iter().map(|(_, crowd)| *crowd).max().unwrap_or(0)
    }

    /// Whether somebody can below a branch.
    pub(super) fn is_open(&self, tree: &Tree, branch: usize) -> bool {
        self.closed[branch] < tree.branches[branch].units
    }
}
