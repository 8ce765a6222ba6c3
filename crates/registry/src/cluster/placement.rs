//! Which OSDs hold the replicas of each placement group, computed once when a pool is made.
//!
//! Replicas follow weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted distributed hash
//! tables", SPAA 2005, the logarithmic method): every OSD draws a number for every group, scaled by its
//! size, and the best draws win. Two corrections make the few groups of a pool come out even, which chance
//! alone does not: primaries are dealt by quota, and an OSD that has its fair share of the replicas dealt so
//! far is passed over while others can take them, one that is behind goes first (a stricter form of Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded
//! loads", SODA 2018).

use base::hash::mix;
use base::{NodeId, OsdId, PoolId};
use std::collections::BTreeMap;

/// An OSD that may hold replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) osd: OsdId,
    pub(super) node: NodeId,
    /// More than 0.
    pub(super) bytes: u64,
}

/// An OSD so many replicas behind its fair share goes before the best draw.
const BEHIND: f64 = 2.0;

/// The replicas of each of `pg_count` groups, the primary first. No two replicas of a group share an OSD,
/// nor a node while there is one without. Among OSDs of equal size, the numbers of primaries differ by 1
/// at most.
///
/// # Panics
/// If there are fewer candidates than `size`, or `size` is 0.
pub(super) fn place(pool: PoolId, pg_count: u32, size: u32, candidates: &[Candidate]) -> Vec<Vec<OsdId>> {
    let size = size as usize;
    assert!(size > 0 && candidates.len() >= size, "the caller saw that there are enough OSDs");
    let shares = shares(candidates, size);
    let mut primaries_left = quotas(pool, pg_count, &shares, candidates);
    // What each should hold besides what it is the primary of, and what it holds of that so far.
    let others: Vec<f64> = shares
        .iter()
        .zip(&primaries_left)
        .map(|(share, &primaries)| share * size as f64 * f64::from(pg_count) - primaries as f64)
        .collect();
    let mut held = vec![0.0; candidates.len()];
    (0..pg_count)
        .map(|index| {
            let ranked = ranked(pool, index, candidates);
            let primary = *ranked
                .iter()
                .find(|&&at| primaries_left[at] > 0)
                .expect("the quotas add up to the number of groups");
            primaries_left[primary] -= 1;
            // How far an OSD is ahead of its fair share of what is dealt up to this group.
            let ahead = |at: usize| held[at] - others[at] * f64::from(index + 1) / f64::from(pg_count);
            let mut chosen = vec![primary];
            let mut on_node = BTreeMap::from([(candidates[primary].node, 1)]);
            while chosen.len() < size {
                // Ties go to the best draw, which comes first.
                let next = ranked
                    .iter()
                    .copied()
                    .filter(|at| !chosen.contains(at))
                    .min_by_key(|&at| {
                        let crowd: i32 = on_node.get(&candidates[at].node).copied().unwrap_or(0);
                        let turn = match ahead(at) {
                            ahead if ahead <= -BEHIND => 0,
                            ahead if ahead < 0.0 => 1,
                            _ => 2,
                        };
                        (crowd, turn)
                    })
                    .expect("there are more candidates than replicas chosen");
                *on_node.entry(candidates[next].node).or_insert(0) += 1;
                chosen.push(next);
            }
            for &at in &chosen[1..] {
                held[at] += 1.0;
            }
            chosen.into_iter().map(|at| candidates[at].osd).collect()
        })
        .collect()
}

/// The part of all replicas that each candidate should hold. By size; but none can hold more than one
/// replica of each group, so what a giant cannot take is divided among the others.
fn shares(candidates: &[Candidate], size: usize) -> Vec<f64> {
    let largest = 1.0 / size as f64;
    let mut shares = vec![0.0; candidates.len()];
    let mut full = vec![false; candidates.len()];
    loop {
        let full_count = full.iter().filter(|full| **full).count();
        let free_weight: f64 =
            candidates.iter().zip(&full).filter(|(_, full)| !**full).map(|(one, _)| one.bytes as f64).sum();
        let left = 1.0 - full_count as f64 * largest;
        let mut changed = false;
        for (at, candidate) in candidates.iter().enumerate().filter(|&(at, _)| !full[at]).collect::<Vec<_>>()
        {
            shares[at] = candidate.bytes as f64 / free_weight * left;
            if shares[at] > largest {
                shares[at] = largest;
                full[at] = true;
                changed = true;
            }
        }
        if !changed {
            return shares;
        }
    }
}

/// How many groups each candidate is the primary of: its share, rounded so that the sum is right. Whose
/// remainders are equal differ by 1 at most, and which of them is favoured differs from pool to pool.
fn quotas(pool: PoolId, pg_count: u32, shares: &[f64], candidates: &[Candidate]) -> Vec<u64> {
    let exact: Vec<f64> = shares.iter().map(|share| share * f64::from(pg_count)).collect();
    let mut quotas: Vec<u64> = exact.iter().map(|exact| exact.floor() as u64).collect();
    let mut by_remainder: Vec<usize> = (0..candidates.len()).collect();
    by_remainder.sort_by(|&a, &b| {
        let remainder = |at: usize| exact[at] - exact[at].floor();
        let draw = |at: usize| mix(mix(u64::from(pool.0)) ^ u64::from(candidates[at].osd.0));
        remainder(b).total_cmp(&remainder(a)).then(draw(a).cmp(&draw(b)))
    });
    let missing = u64::from(pg_count).saturating_sub(quotas.iter().sum());
    for &at in by_remainder.iter().cycle().take(missing as usize) {
        quotas[at] += 1;
    }
    quotas
}

/// All candidates, the best draw for this group first.
fn ranked(pool: PoolId, index: u32, candidates: &[Candidate]) -> Vec<usize> {
    let group = mix(u64::from(pool.0) << 32 | u64::from(index));
    let mut scored: Vec<(f64, usize)> = candidates
        .iter()
        .enumerate()
        .map(|(at, candidate)| {
            let drawn = mix(group ^ mix(u64::from(candidate.osd.0).wrapping_add(0x9e37_79b9_7f4a_7c15)));
            // Uniform in (0, 1), both ends excluded.
            let uniform = ((drawn >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
            (-(candidate.bytes as f64) / uniform.ln(), at)
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    scored.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn equal(nodes: u32, each: u32) -> Vec<Candidate> {
        (0..nodes * each)
            .map(|osd| Candidate { osd: OsdId(osd), node: NodeId(osd % nodes), bytes: 8 << 30 })
            .collect()
    }

    fn count<'a>(osds: impl Iterator<Item = &'a OsdId>) -> BTreeMap<OsdId, u32> {
        let mut counts = BTreeMap::new();
        for osd in osds {
            *counts.entry(*osd).or_insert(0) += 1;
        }
        counts
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0..8u32, prop::sample::select(vec![1u64 << 30, 2 << 30, 2 << 30, 64 << 30]));
        prop::collection::vec(one, 1..40).prop_map(|drives| {
            (0..)
                .zip(drives)
                .map(|(osd, (node, bytes))| Candidate { osd: OsdId(osd), node: NodeId(node), bytes })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_group_has_its_replicas_on_distinct_osds_and_nodes(
            candidates in candidates(), pool in 0..5u32, pg_count in 1..200u32, size in 1..6u32,
        ) {
            prop_assume!(candidates.len() >= size as usize);
            let nodes: BTreeMap<OsdId, NodeId> = candidates.iter().map(|one| (one.osd, one.node)).collect();
            let node_count = nodes.values().collect::<BTreeSet<_>>().len();
            let groups = place(PoolId(pool), pg_count, size, &candidates);
            prop_assert_eq!(groups.len(), pg_count as usize);
            for group in &groups {
                prop_assert_eq!(group.len(), size as usize);
                prop_assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), size as usize);
                let used: BTreeSet<_> = group.iter().map(|osd| nodes[osd]).collect();
                prop_assert_eq!(used.len(), node_count.min(size as usize));
            }
            prop_assert_eq!(groups, place(PoolId(pool), pg_count, size, &candidates));
        }

        #[test]
        fn primaries_of_equal_osds_differ_by_one_at_most(
            candidates in candidates(), pool in 0..5u32, pg_count in 1..200u32, size in 1..4u32,
        ) {
            prop_assume!(candidates.len() >= size as usize);
            let groups = place(PoolId(pool), pg_count, size, &candidates);
            let primaries = count(groups.iter().map(|group| &group[0]));
            let mut by_bytes: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for one in &candidates {
                by_bytes.entry(one.bytes).or_default().push(primaries.get(&one.osd).copied().unwrap_or(0));
            }
            for (bytes, counts) in by_bytes {
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{bytes}: {counts:?}");
            }
        }

        #[test]
        fn replicas_of_equal_osds_are_spread(
            nodes in 1..12u32, each in 1..5u32, size in 1..4u32, pool in 0..5u32, per_osd in 4..40u32,
        ) {
            prop_assume!(nodes >= size);
            let candidates = equal(nodes, each);
            let pg_count = (nodes * each * per_osd / size).max(1);
            let groups = place(PoolId(pool), pg_count, size, &candidates);
            let replicas = count(groups.iter().flatten());
            let fair = f64::from(pg_count * size) / f64::from(nodes * each);
            for one in &candidates {
                let held = f64::from(replicas.get(&one.osd).copied().unwrap_or(0));
                prop_assert!((held - fair).abs() <= 3.0 + fair * 0.15, "{held} of {fair}: {replicas:?}");
            }
        }
    }

    #[test]
    fn three_equal_nodes_share_64_groups_evenly() {
        let groups = place(PoolId(1), 64, 3, &equal(3, 1));
        let mut primaries: Vec<u32> = count(groups.iter().map(|group| &group[0])).into_values().collect();
        primaries.sort_unstable();
        assert_eq!(primaries, [21, 21, 22]);
    }

    #[test]
    fn a_drive_of_twice_the_size_holds_about_twice_as_much() {
        let mut candidates = equal(12, 1);
        for candidate in &mut candidates[..6] {
            candidate.bytes *= 2;
        }
        let replicas = count(place(PoolId(1), 512, 2, &candidates).iter().flatten());
        let sum = |range: std::ops::Range<u32>| range.map(|osd| replicas[&OsdId(osd)]).sum::<u32>();
        let ratio = f64::from(sum(0..6)) / f64::from(sum(6..12));
        assert!((1.8..2.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_giant_is_not_the_primary_of_everything() {
        let mut candidates = equal(4, 1);
        candidates[0].bytes <<= 10;
        let groups = place(PoolId(1), 90, 3, &candidates);
        let primaries = count(groups.iter().map(|group| &group[0]));
        assert_eq!(primaries[&OsdId(0)], 30);
    }

    #[test]
    fn two_pools_do_not_lie_alike() {
        let candidates = equal(6, 2);
        assert_ne!(place(PoolId(1), 64, 3, &candidates), place(PoolId(2), 64, 3, &candidates));
    }
}
