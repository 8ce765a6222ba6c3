//! Which OSDs shall hold the replicas of each placement group: [`place`] when a pool is made, [`retarget`]
//! whenever the OSDs that data may lie on have changed since.
//!
//! Replicas follow weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted distributed hash
//! tables", SPAA 2005, the logarithmic method): every OSD draws a number for every group, scaled by its
//! size, and the best draws win. Corrections make the few groups of a pool come out even, which chance alone
//! does not: primaries are dealt by quota, and an OSD that has its fair share is passed over while others can
//! take a replica, one that is behind goes first (a stricter form of Mirrokni, Thorup and Zadimoghaddam,
//! "Consistent hashing with bounded loads", SODA 2018).
//!
//! Rendezvous hashing alone would move no more than it must either, but to where chance says. So a target is
//! never drawn anew: it is kept, and what a change asks for is done to it in single steps
//! (module `layout`).
//!
//! Invariants of both: the replicas of a group lie on distinct OSDs, and on as many nodes, as evenly, as its
//! number of replicas and the OSDs allow. The same arguments give the same result, and `retarget` leaves its
//! own result and that of `place` as they are.

mod layout;
mod shares;
#[cfg(test)]
mod tests;

use base::hash::mix;
use base::map::{Admission, ClusterMap};
use base::{NodeId, OsdId, PoolId};
use layout::Layout;
use shares::{lead_shares, quotas, shares};
use std::collections::{BTreeMap, BTreeSet};

/// An OSD that may hold replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The OSD.
    pub osd: OsdId,
    /// The node that runs it.
    pub node: NodeId,
    /// Its size in bytes, more than 0.
    pub bytes: u64,
}

impl Candidate {
    /// The OSDs of a map that data is placed on, whether they are up or not.
    #[must_use]
    pub fn all(map: &ClusterMap) -> Vec<Candidate> {
        map.osds
            .iter()
            .filter(|(_, info)| info.admission == Admission::In && info.bytes > 0)
            .map(|(&osd, info)| Candidate { osd, node: info.node, bytes: info.bytes })
            .collect()
    }
}

/// An OSD so many replicas behind its fair share goes before the best draw.
const BEHIND: f64 = 2.0;

/// The replicas of each of `pg_count` groups, the preferred primary first. Among OSDs of equal size, the
/// numbers of primaries differ by 1 at most.
///
/// # Panics
/// If there are fewer candidates than `size`, or `size` is 0.
pub(super) fn place(pool: PoolId, pg_count: u32, size: u32, candidates: &[Candidate]) -> Vec<Vec<OsdId>> {
    let size = size as usize;
    assert!(size > 0 && candidates.len() >= size, "the caller saw that there are enough OSDs");
    let dealt = deal(pool, pg_count, size, candidates);
    let mut layout = Layout::new(pool, size, candidates, dealt, |_| false);
    layout.settle();
    layout.targets()
}

/// New targets for the groups of a pool, given the present ones in the order of the groups and the OSDs that
/// data may lie on now. A target without a replica yet is empty.
///
/// - Members that are still candidates stay. The others are replaced, and a target that is too short is filled
///   up: by the best draws among the least crowded nodes, as far as fair shares allow.
/// - Then single replicas move until every target is spread over the nodes as evenly as they allow, and every
///   OSD is within one replica, or 5 %, of its fair share, where the nodes allow that too.
/// - At last the order: primaries follow the shares too, with as few changes as that takes.
///
/// With fewer candidates than `size` a target names all of them. Without any, all stay as they are.
///
/// # Panics
/// If `size` is 0.
#[must_use]
pub fn retarget(
    pool: PoolId,
    size: u32,
    present: &[Vec<OsdId>],
    candidates: &[Candidate],
) -> Vec<Vec<OsdId>> {
    assert!(size > 0, "a pool keeps one copy at least");
    if candidates.is_empty() {
        return present.to_vec();
    }
    let size = (size as usize).min(candidates.len());
    let known: BTreeMap<OsdId, usize> =
        candidates.iter().enumerate().map(|(at, candidate)| (candidate.osd, at)).collect();
    let kept = |target: &Vec<OsdId>| {
        let mut seen = BTreeSet::new();
        let still = target.iter().filter_map(|osd| known.get(osd).copied());
        still.filter(|at| seen.insert(*at)).take(size).collect()
    };
    let lost_primary = |index: usize| present[index].first().is_none_or(|osd| !known.contains_key(osd));
    let groups = present.iter().map(kept).collect();
    let mut layout = Layout::new(pool, size, candidates, groups, lost_primary);
    layout.fill();
    layout.settle();
    layout.targets()
}

/// Deals the replicas of a new pool, as positions among the candidates.
fn deal(pool: PoolId, pg_count: u32, size: usize, candidates: &[Candidate]) -> Vec<Vec<usize>> {
    let shares = shares(candidates, size);
    let mut primaries_left = quotas(pool, pg_count, &lead_shares(candidates, size), candidates);
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
            chosen
        })
        .collect()
}

/// All candidates, the best draw for this group first.
fn ranked(pool: PoolId, index: u32, candidates: &[Candidate]) -> Vec<usize> {
    let mut scored: Vec<(f64, usize)> =
        candidates.iter().enumerate().map(|(at, candidate)| (draw(pool, index, candidate), at)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    scored.into_iter().map(|(_, at)| at).collect()
}

/// What an OSD draws for a group; the highest draws win.
fn draw(pool: PoolId, index: u32, candidate: &Candidate) -> f64 {
    let group = mix(u64::from(pool.0) << 32 | u64::from(index));
    let drawn = mix(group ^ mix(u64::from(candidate.osd.0).wrapping_add(0x9e37_79b9_7f4a_7c15)));
    // Uniform in (0, 1), both ends excluded.
    let uniform = ((drawn >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    -(candidate.bytes as f64) / uniform.ln()
}
