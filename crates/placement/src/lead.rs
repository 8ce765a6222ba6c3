//! Which member of each group is the preferred primary.
//!
//! An OSD can hand the lead of a group to its other members, so there are few ways from each. They are written down, and
//! kept as groups change hands.

use super::layout::Layout;
use super::moves::{Move, Moves, NOT_REACHED, path_to};
use super::shares::{lead_shares, least, most};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many groups each candidate is the primary of, and should be.
struct Leads {
    led: Vec<u32>,
    fair: Vec<f64>,
    /// Those who lead too many or too few, by how many, the farthest first.
    off: BTreeSet<(Reverse<u64>, u32)>,
}

impl Leads {
    fn of(layout: &Layout<'_>) -> Leads {
        let groups = layout.groups.iter().filter(|group| !group.is_empty()).count() as f64;
        let shares = lead_shares(&layout.shares, layout.candidates, layout.size);
        let mut led = vec![0; layout.candidates.len()];
        for &first in layout.groups.iter().filter_map(|group| group.first()) {
            led[first as usize] += 1;
        }
        let fair = shares.into_iter().map(|share| share * groups).collect();
        let mut leads = Leads { led, fair, off: BTreeSet::new() };
        for at in 0..layout.candidates.len() as u32 {
            leads.enter(at);
        }
        leads
    }

    fn over(&self, at: u32) -> u64 {
        u64::from(self.led[at as usize]).saturating_sub(most(self.fair[at as usize]))
    }

    fn under(&self, at: u32) -> u64 {
        least(self.fair[at as usize]).saturating_sub(u64::from(self.led[at as usize]))
    }

    fn may_take(&self, at: u32) -> bool {
        u64::from(self.led[at as usize]) < most(self.fair[at as usize])
    }

    fn may_give(&self, at: u32) -> bool {
        u64::from(self.led[at as usize]) > least(self.fair[at as usize])
    }

    fn excess(&self, at: u32) -> f64 {
        f64::from(self.led[at as usize]) - self.fair[at as usize]
    }

    /// A shortest path from an OSD to one that may lead more: of those equally near, the one that lacks most.
    fn heirs_of(&self, from: u32, ways: &Ways) -> Option<Vec<u32>> {
        let reached = reach(from, &ways.heirs, |heir, best| {
            self.may_take(heir) && best.is_none_or(|best| self.excess(heir) < self.excess(best))
        })?;
        Some(path_to(reached.best, &reached.before))
    }

    /// A shortest path to an OSD from one that may lead less: of those equally near, the one that has most too many. It
    /// is searched for from its end, which few lead to.
    fn lenders_to(&self, to: u32, ways: &Ways) -> Option<Vec<u32>> {
        let Reached { best, distance, .. } = reach(to, &ways.lenders, |lender, best| {
            let has_more =
                |best: u32| self.excess(best).total_cmp(&self.excess(lender)).then(lender.cmp(&best)).is_lt();
            self.may_give(lender) && best.is_none_or(has_more)
        })?;
        let mut path = vec![best];
        while path[path.len() - 1] != to {
            let last = path[path.len() - 1] as usize;
            let nearer = ways.heirs[last].keys().find(|&&at| distance[at as usize] < distance[last]);
            path.push(*nearer.expect("somebody nearer was reached before it"));
        }
        Some(path)
    }

    fn enter(&mut self, at: u32) {
        let off = self.over(at) + self.under(at);
        if off > 0 {
            self.off.insert((Reverse(off), at));
        }
    }

    fn leave(&mut self, at: u32) {
        self.off.remove(&(Reverse(self.over(at) + self.under(at)), at));
    }

    fn change(&mut self, at: u32, by: i32) {
        self.leave(at);
        let led = &mut self.led[at as usize];
        *led = led.checked_add_signed(by).expect("nobody gives what it does not lead");
        self.enter(at);
    }
}

/// Who can hand a group to whom.
struct Ways {
    /// For each candidate the other members of the groups that it leads, and of how many.
    heirs: Vec<BTreeMap<u32, u32>>,
    /// The other way round: who leads groups that it is in.
    lenders: Vec<BTreeMap<u32, u32>>,
    moves: Moves,
}

impl Ways {
    fn of(layout: &Layout<'_>) -> Ways {
        let none = vec![BTreeMap::new(); layout.candidates.len()];
        let mut ways = Ways { heirs: none.clone(), lenders: none, moves: Moves::default() };
        for group in layout.groups.iter().filter(|group| !group.is_empty()) {
            ways.open(group);
        }
        ways
    }

    fn open(&mut self, group: &[u32]) {
        for &heir in &group[1..] {
            *self.heirs[group[0] as usize].entry(heir).or_insert(0) += 1;
            *self.lenders[heir as usize].entry(group[0]).or_insert(0) += 1;
        }
    }

    fn close(&mut self, group: &[u32]) {
        let less = |ways: &mut BTreeMap<u32, u32>, to: u32| {
            let groups = ways.get_mut(&to).expect("it was opened");
            *groups -= 1;
            if *groups == 0 {
                ways.remove(&to);
            }
        };
        for &heir in &group[1..] {
            less(&mut self.heirs[group[0] as usize], heir);
            less(&mut self.lenders[heir as usize], group[0]);
        }
    }
}

/// What a search found along the ways of one direction.
struct Reached {
    /// The best of the nearest that will do.
    best: u32,
    /// Whom each candidate was reached from.
    before: Vec<u32>,
    /// In how many steps.
    distance: Vec<u32>,
}

/// Searches for the nearest that will do: of those equally near, the one that `is_better` than the others, and than nobody.
fn reach(
    from: u32,
    ways: &[BTreeMap<u32, u32>],
    is_better: impl Fn(u32, Option<u32>) -> bool,
) -> Option<Reached> {
    let mut before = vec![NOT_REACHED; ways.len()];
    let mut distance = vec![NOT_REACHED; ways.len()];
    distance[from as usize] = 0;
    let mut reached = VecDeque::from([from]);
    let mut best: Option<u32> = None;
    while let Some(at) = reached.pop_front() {
        if best.is_some_and(|best| distance[at as usize] >= distance[best as usize]) {
            break;
        }
        for &next in ways[at as usize].keys() {
            if distance[next as usize] != NOT_REACHED {
                continue;
            }
            (distance[next as usize], before[next as usize]) = (distance[at as usize] + 1, at);
            reached.push_back(next);
            if is_better(next, best) {
                best = Some(next);
            }
        }
    }
    Some(Reached { best: best?, before, distance })
}

impl Layout<'_> {
    /// Chooses the preferred primaries so that their numbers follow the shares.
    pub(super) fn lead(&mut self) {
        let (mut leads, mut ways) = (Leads::of(self), Ways::of(self));
        let mut helpless: Vec<u32> = Vec::new();
        while let Some(&(_, worst)) = leads.off.first() {
            let path = if leads.over(worst) > 0 {
                leads.heirs_of(worst, &ways)
            } else {
                leads.lenders_to(worst, &ways)
            };
            let Some(path) = path else {
                leads.leave(worst);
                helpless.push(worst);
                continue;
            };
            for step in path.windows(2) {
                self.hand_over(step[0], step[1], &mut ways);
            }
            leads.change(path[0], -1);
            leads.change(path[path.len() - 1], 1);
            for at in helpless.drain(..) {
                leads.enter(at);
            }
        }
    }

    /// Prefers another primary for one group of `from`.
    fn hand_over(&mut self, from: u32, to: u32, ways: &mut Ways) {
        let groups = &self.groups_of[from as usize];
        let best = ways.moves.best(from, to, groups, |index| self.rank_of_lead(index, from, to));
        let index = best.expect("steps of one path are of different groups, so each is possible still");
        ways.close(&self.groups[index]);
        let place = self.groups[index].iter().position(|&at| at == to).expect("it is a member");
        self.groups[index][..=place].rotate_right(1);
        ways.open(&self.groups[index]);
        ways.moves.changed(|from, to| self.rank_of_lead(index as u32, from, to));
    }

    /// What it costs to hand a group over, if it is possible.
    fn rank_of_lead(&self, index: u32, from: u32, to: u32) -> Option<Move> {
        let at = index as usize;
        let group = &self.groups[at];
        if group[0] != from || !group[1..].contains(&to) {
            return None;
        }
        // A group that lost its primary gets another anyway; and who has the data can lead at once.
        let keeps = self.keeps_primary[at] && self.before[at].first() == Some(&from);
        Some(([keeps, !self.was_member(at, to), false], Reverse(self.draw(at, to)), index))
    }
}
