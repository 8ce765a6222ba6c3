//! How good a placement is: what simulations print, and tests assert.

use super::layout::tolerance;
use super::shares::{lead_shares, shares};
use super::tree::Tree;
use super::{Candidate, Place};
use base::OsdId;
use base::hash::Map;
use base::map::FailureDomain;
use serde::Serialize;

/// What the OSDs have of something, against their fair shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The fewest that an OSD has.
    pub least: u32,
    /// The mean.
    pub mean: f64,
    /// The most that an OSD has.
    pub most: u32,
    /// The least of its fair share that an OSD has, in percent.
    pub least_percent: f64,
    /// The most, in percent.
    pub most_percent: f64,
    /// The farthest that an OSD is off its fair share, in replicas or groups.
    pub off_max: f64,
    /// OSDs that are off by more than one, and by more than 5 % of their share.
    pub beyond: usize,
}

/// How the replicas of a pool lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Survey {
    /// Groups with too few replicas, with two on one OSD, with one on a stranger, or with more of them in one failure
    /// domain than it takes.
    pub violations: usize,
    /// The replicas.
    pub replicas: Spread,
    /// The preferred primaries.
    pub primaries: Spread,
}

impl Survey {
    /// Surveys the targets of a pool of `size` copies over these candidates.
    ///
    /// # Panics
    /// If there is no candidate, or `size` is 0.
    #[must_use]
    pub fn of(
        size: u32,
        failure_domain: FailureDomain,
        targets: &[Vec<OsdId>],
        candidates: &[Candidate],
    ) -> Survey {
        assert!(size > 0 && !candidates.is_empty(), "there is something to place, and somewhere");
        let size = (size as usize).min(candidates.len());
        let tree = Tree::new(failure_domain, candidates);
        let known: Map<OsdId, u32> =
            (0..).zip(candidates).map(|(at, candidate)| (candidate.osd, at)).collect();
        let mut held = vec![0; candidates.len()];
        let mut led = vec![0; candidates.len()];
        let domains: Map<Place, usize> = candidates.iter().fold(Map::default(), |mut domains, one| {
            *domains.entry(one.place.domain(failure_domain, one.osd)).or_insert(0) += 1;
            domains
        });
        let evenest = evenest(size, domains.values().copied());
        let mut violations = 0;
        for target in targets {
            let members: Vec<u32> = target.iter().filter_map(|osd| known.get(osd).copied()).collect();
            for &at in &members {
                held[at as usize] += 1;
            }
            if let Some(&first) = members.first() {
                led[first as usize] += 1;
            }
            let mut osds = members.clone();
            osds.sort_unstable();
            osds.dedup();
            let mut crowds: Map<Place, usize> = Map::default();
            for &at in &osds {
                let one = &candidates[at as usize];
                *crowds.entry(one.place.domain(failure_domain, one.osd)).or_insert(0) += 1;
            }
            let crowding: usize = crowds.values().map(|crowd| crowd * crowd).sum();
            let is_right = target.len() == size && osds.len() == size && crowding == evenest;
            violations += usize::from(!is_right);
        }
        let shares = shares(&tree, candidates, size);
        let leads = lead_shares(&shares, candidates, size);
        let groups = targets.len() as f64;
        Survey {
            violations,
            replicas: Spread::of(&held, shares.iter().map(|share| share * groups * size as f64)),
            primaries: Spread::of(&led, leads.iter().map(|share| share * groups)),
        }
    }
}

impl Spread {
    fn of(have: &[u32], fair: impl Iterator<Item = f64>) -> Spread {
        let total: u64 = have.iter().map(|&have| u64::from(have)).sum();
        let mut spread = Spread {
            least: have.iter().copied().min().unwrap_or(0),
            mean: total as f64 / have.len() as f64,
            most: have.iter().copied().max().unwrap_or(0),
            least_percent: f64::INFINITY,
            ..Spread::default()
        };
        for (&have, fair) in have.iter().zip(fair) {
            let have = f64::from(have);
            let percent = if fair > 0.0 { have / fair * 100.0 } else { 100.0 };
            spread.least_percent = spread.least_percent.min(percent);
            spread.most_percent = spread.most_percent.max(percent);
            spread.off_max = spread.off_max.max((have - fair).abs());
            spread.beyond += usize::from((have - fair).abs() > tolerance(fair));
        }
        spread
    }
}

/// The least sum of squares of the replicas of a group in each failure domain, of those that have so many OSDs.
fn evenest(size: usize, osds: impl Iterator<Item = usize>) -> usize {
    let osds: Vec<usize> = osds.collect();
    let (mut left, mut level, mut sum) = (size, 0, 0);
    while left > 0 {
        // Each further replica in a domain that has `level` of them adds (level + 1)^2 - level^2.
        let take = osds.iter().filter(|&&osds| osds > level).count().min(left);
        sum += take * (2 * level + 1);
        left -= take;
        level += 1;
    }
    sum
}

/// The replicas of `pg_count` groups of `size` that each candidate should hold.
///
/// # Panics
/// If there is no candidate.
#[must_use]
pub fn fair_replicas(
    size: u32,
    failure_domain: FailureDomain,
    pg_count: u32,
    candidates: &[Candidate],
) -> Vec<f64> {
    let size = (size as usize).min(candidates.len());
    let shares = shares(&Tree::new(failure_domain, candidates), candidates, size);
    shares.into_iter().map(|share| share * size as f64 * f64::from(pg_count)).collect()
}

/// Replicas that lie elsewhere in `after` than in `before`: what is to be copied.
#[must_use]
pub fn moved(before: &[Vec<OsdId>], after: &[Vec<OsdId>]) -> usize {
    let new = |(before, after): (&Vec<OsdId>, &Vec<OsdId>)| {
        after.iter().filter(|osd| !before.contains(osd)).count()
    };
    before.iter().zip(after).map(new).sum()
}
