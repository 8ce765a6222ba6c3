//! What each OSD should hold: by weight, as far as the rules of spreading let it.

use super::Candidate;
use super::tree::Tree;
use base::PoolId;
use base::hash::mix;

/// Halvings after which a bisection has used up the digits of a float.
const HALVINGS: usize = 128;
/// Less than this is no difference between shares.
const ROUNDING: f64 = 1e-6;

/// The part of all replicas that each candidate should hold; they add up to 1. By weight, but no OSD takes two
/// replicas of a group, and no failure domain more of them than when they are spread evenly: what a giant cannot
/// take is divided among the others, and the smallest of few domains must take its part.
pub(super) fn shares(tree: &Tree, candidates: &[Candidate], size: usize) -> Vec<f64> {
    let domains = tree.by_domain();
    // Replicas of one group that each domain takes if it has the OSDs; what is left over goes to some of them.
    let taken = |level: usize| domains.iter().map(|osds| osds.len().min(level)).sum::<usize>();
    let level = (0..size).take_while(|level| taken(level + 1) <= size).count();
    let part = |at: usize, least: usize, most: usize| Part {
        weight: candidates[at].weight as f64,
        least: least as f64,
        most: most as f64,
    };
    let of_domains: Vec<Part> = domains
        .iter()
        .map(|osds| Part {
            weight: osds.iter().map(|&at| candidates[at].weight as f64).sum(),
            ..part(osds[0], osds.len().min(level), osds.len().min(level + 1))
        })
        .collect();
    let mut shares = vec![0.0; candidates.len()];
    for (osds, replicas) in domains.iter().zip(divide(size as f64, &of_domains)) {
        let of_osds: Vec<Part> = osds.iter().map(|&at| part(at, 0, 1)).collect();
        for (&at, replicas) in osds.iter().zip(divide(replicas, &of_osds)) {
            shares[at] = replicas / size as f64;
        }
    }
    shares
}

/// The part of all groups that each candidate should be the primary of, given its share of the replicas. By weight,
/// wherever it stands: who must hold a replica of every group need not lead them too. But no OSD leads more than it
/// holds, and no giant more than its equal part of the groups it cannot but hold.
pub(super) fn lead_shares(shares: &[f64], candidates: &[Candidate], size: usize) -> Vec<f64> {
    let parts = candidates.iter().zip(shares).map(|(candidate, share)| Part {
        weight: candidate.weight as f64,
        least: 0.0,
        most: (share * size as f64).min(1.0 / size as f64),
    });
    divide(1.0, &parts.collect::<Vec<_>>())
}

/// Somebody who takes part in a division.
struct Part {
    weight: f64,
    least: f64,
    most: f64,
}

impl Part {
    fn at(&self, per_weight: f64) -> f64 {
        (self.weight * per_weight).clamp(self.least, self.most)
    }
}

/// Divides `total` by weight, each part within its bounds.
fn divide(total: f64, parts: &[Part]) -> Vec<f64> {
    let divided = |per_weight: f64| parts.iter().map(|part| part.at(per_weight)).sum::<f64>();
    let (mut low, mut high) = (0.0, parts.iter().map(|part| part.most / part.weight).fold(0.0, f64::max));
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if divided(middle) < total { low = middle } else { high = middle }
    }
    // Who is bounded is known now; the others' parts follow without the error of the bisection.
    let is_free = |part: &&Part| part.least < part.weight * high && part.weight * high < part.most;
    let free: f64 = parts.iter().filter(is_free).map(|part| part.weight).sum();
    let bounded: f64 = parts.iter().filter(|part| !is_free(part)).map(|part| part.at(high)).sum();
    let per_weight = if free > 0.0 { (total - bounded) / free } else { high };
    parts.iter().map(|part| if is_free(&part) { part.weight * per_weight } else { part.at(high) }).collect()
}

/// How many groups each candidate is the primary of: its share, rounded so that the sum is right. Whose
/// remainders are equal differ by 1 at most, and which of them is favoured differs from pool to pool.
pub(super) fn quotas(pool: PoolId, pg_count: u32, shares: &[f64], candidates: &[Candidate]) -> Vec<u64> {
    let exact: Vec<f64> = shares.iter().map(|share| share * f64::from(pg_count)).collect();
    let mut quotas: Vec<u64> = exact.iter().map(|exact| least(*exact)).collect();
    let mut by_remainder: Vec<usize> = (0..candidates.len()).collect();
    by_remainder.sort_by(|&a, &b| {
        let remainder = |at: usize| exact[at] - quotas[at] as f64;
        let draw = |at: usize| mix(mix(u64::from(pool.0)) ^ u64::from(candidates[at].osd.0));
        remainder(b).total_cmp(&remainder(a)).then(draw(a).cmp(&draw(b)))
    });
    let missing = u64::from(pg_count).saturating_sub(quotas.iter().sum());
    for &at in by_remainder.iter().cycle().take(missing as usize) {
        quotas[at] += 1;
    }
    quotas
}

/// The fewest that a fair part may be rounded to.
pub(super) fn least(exact: f64) -> u64 {
    (exact + ROUNDING).floor() as u64
}

/// The most that a fair part may be rounded to.
pub(super) fn most(exact: f64) -> u64 {
    (exact - ROUNDING).ceil().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;
    use base::OsdId;
    use base::map::FailureDomain;

    fn on_hosts(drives: &[(u32, u64)]) -> Vec<Candidate> {
        let place = |host| Place { host, ..Place::default() };
        let candidate = |(osd, &(host, weight))| Candidate { osd: OsdId(osd), weight, place: place(host) };
        (0..).zip(drives).map(candidate).collect()
    }

    fn percents(drives: &[(u32, u64)], size: usize) -> Vec<u32> {
        let candidates = on_hosts(drives);
        let tree = Tree::new(FailureDomain::Host, &candidates);
        shares(&tree, &candidates, size).iter().map(|share| (share * 1000.0).round() as u32).collect()
    }

    #[test]
    fn a_share_follows_the_weight_up_to_one_replica_of_each_group() {
        assert_eq!(percents(&[(0, 1), (1, 1), (2, 2)], 1), [250, 250, 500]);
        assert_eq!(percents(&[(0, 1), (1, 1), (2, 1), (3, 999)], 3), [222, 222, 222, 333]);
    }

    #[test]
    fn the_smallest_of_as_many_domains_as_copies_takes_its_part() {
        assert_eq!(percents(&[(0, 9), (0, 9), (1, 9), (1, 9), (2, 1)], 3), [167, 167, 167, 167, 333]);
    }

    #[test]
    fn fewer_domains_than_copies_are_filled_evenly() {
        assert_eq!(percents(&[(0, 1), (1, 1), (1, 1), (1, 1), (1, 1)], 4), [250, 188, 188, 188, 188]);
        assert_eq!(percents(&[(0, 1), (0, 1), (1, 1), (1, 1)], 3), [250, 250, 250, 250]);
    }
}
