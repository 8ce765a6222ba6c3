//! Which OSDs shall hold the replicas of each placement group: [`place`] when a pool is made, [`retarget`]
//! whenever the OSDs that data may lie on have changed since.
//!
//! Replicas follow weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted distributed hash
//! tables", SPAA 2005, the logarithmic method): everybody draws a number for every group, scaled by its
//! weight, and the best draws win. As in CRUSH (Weil, Brandt, Miller and Maltzahn, SC 2006, with its later `straw2`
//! buckets), it is not each OSD that draws but each branch of a tree of failure domains, from the root down (module
//! `tree`). Corrections make the few groups of a pool come out even, which chance alone
//! does not: primaries are dealt by quota, and a branch that has its fair share is passed over while others can
//! take a replica, one that is behind goes first (a stricter form of Mirrokni, Thorup and Zadimoghaddam,
//! "Consistent hashing with bounded loads", SODA 2018).
//!
//! Rendezvous hashing alone would move no more than it must either, but to where chance says. So a target is
//! never drawn anew: it is kept, and what a change asks for is done to it in single steps
//! (modules `layout`, `balance` and `lead`).
//!
//! Invariants of both: the replicas of a group lie on distinct OSDs, and in as many failure domains, as evenly, as its
//! number of replicas and the OSDs allow. The same arguments give the same result, and `retarget` leaves its
//! own result and that of `place` as they are.
//!
//! What it costs, of G groups with R replicas over O OSDs in D failure domains: placing takes G × (D + R × O / D) draws. A
//! change costs a look at every group; each replica that is placed anew a look at the domains; and each that moves a search
//! that mostly ends with the groups of one OSD. Nothing grows with the square of O.

mod balance;
mod count;
mod layout;
mod lead;
mod moves;
mod shares;
mod survey;
#[cfg(test)]
mod tests;
mod tree;

pub use count::{
    PG_COUNT_MAX, PG_COUNT_MIN, default_pg_count, most_replicas, next_pg_count, recommended_pg_count,
};
pub use survey::{Spread, Survey, fair_replicas, moved};

use base::hash::Map;
use base::map::{Admission, ClusterMap, FailureDomain, Location, PlacementRule};
use base::{NodeId, OsdId, PoolId};
use layout::Layout;
use shares::{lead_shares, quotas, shares};
use std::collections::{BTreeMap, BTreeSet};
use tree::{Group, Openings, Tree};

/// Where an OSD stands, by numbers: equal ones mean the same place. What has no name has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The region.
    pub region: Option<u32>,
    /// The zone; no other region has one of that number.
    pub zone: Option<u32>,
    /// The rack; no other zone has one of that number.
    pub rack: Option<u32>,
    /// The host, in one place only.
    pub host: u32,
}

impl Place {
    /// The failure domain of an OSD that stands here, as something to compare.
    #[must_use]
    pub fn domain(&self, of: FailureDomain, osd: OsdId) -> Place {
        let nowhere = Place { host: u32::MAX, ..Place::default() };
        match of {
            FailureDomain::Osd => Place { host: osd.0, ..nowhere },
            FailureDomain::Host => Place { host: self.host, ..nowhere },
            FailureDomain::Rack => Place { host: u32::MAX, ..*self },
            FailureDomain::Zone => Place { region: self.region, zone: self.zone, ..nowhere },
            FailureDomain::Region => Place { region: self.region, ..nowhere },
        }
    }

    /// Whether the failure domain has a name. All places without one count as one.
    #[must_use]
    pub fn is_named(&self, of: FailureDomain) -> bool {
        match of {
            FailureDomain::Osd | FailureDomain::Host => true,
            FailureDomain::Rack => self.rack.is_some(),
            FailureDomain::Zone => self.zone.is_some(),
            FailureDomain::Region => self.region.is_some(),
        }
    }
}

/// An OSD that may hold replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The OSD.
    pub osd: OsdId,
    /// How much it shall hold, by that of others: its size in bytes, as far as people want it used. More than 0.
    pub weight: u64,
    /// Where it stands.
    pub place: Place,
}

impl Candidate {
    /// The OSDs of a map that data is placed on, whether they are up or not.
    #[must_use]
    pub fn all(map: &ClusterMap) -> Vec<Candidate> {
        Candidate::of_rule(map, &PlacementRule::default())
    }

    /// Those of them that a rule allows.
    #[must_use]
    pub fn of_rule(map: &ClusterMap, rule: &PlacementRule) -> Vec<Candidate> {
        let places = places(map);
        map.osds
            .iter()
            .filter(|(_, info)| info.admission == Admission::In)
            .filter(|(_, info)| rule.device_class.is_none_or(|class| class == info.device_class))
            .map(|(&osd, info)| Candidate {
                osd,
                weight: info.reweight.of(info.bytes),
                place: places[&info.node],
            })
            .filter(|candidate| candidate.weight > 0)
            .collect()
    }

    /// How many failure domains these stand in, those without a name left out.
    #[must_use]
    pub fn named_domains(candidates: &[Candidate], of: FailureDomain) -> usize {
        let named = candidates.iter().filter(|candidate| candidate.place.is_named(of));
        named.map(|candidate| candidate.place.domain(of, candidate.osd)).collect::<BTreeSet<_>>().len()
    }
}

/// Where the node of each OSD stands. A host that several nodes run on stands where the first of them that says so
/// does.
pub fn places(map: &ClusterMap) -> BTreeMap<NodeId, Place> {
    let nodes: BTreeSet<NodeId> =
        map.osds.values().map(|info| info.node).chain(map.nodes.keys().copied()).collect();
    let mut hosts: BTreeMap<String, (u32, Location)> = BTreeMap::new();
    for &node in &nodes {
        let number = hosts.len() as u32;
        let (_, location) = hosts.entry(map.host_of(node)).or_insert((number, Location::default()));
        if let Some(info) = map.nodes.get(&node).filter(|_| *location == Location::default()) {
            *location = info.location.clone();
        }
    }
    let (mut regions, mut zones, mut racks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    fn number<K: Ord>(numbers: &mut BTreeMap<K, u32>, of: K) -> u32 {
        let next = numbers.len() as u32;
        *numbers.entry(of).or_insert(next)
    }
    let mut of_host: BTreeMap<u32, Place> = BTreeMap::new();
    let place = |node: NodeId| {
        let (host, Location { region, zone, rack }) = &hosts[&map.host_of(node)];
        let place = of_host.entry(*host).or_insert_with(|| {
            let region = region.as_ref().map(|name| number(&mut regions, name));
            let zone = zone.as_ref().map(|name| number(&mut zones, (region, name)));
            let rack = rack.as_ref().map(|name| number(&mut racks, (region, zone, name)));
            Place { region, zone, rack, host: *host }
        });
        (node, *place)
    };
    nodes.iter().copied().map(place).collect()
}

/// Whoever is so many replicas behind its fair share goes before the best draw.
const BEHIND: f64 = 2.0;

/// How soon somebody gets a replica who is `ahead` of its fair share by so many: the lower, the sooner.
fn standing(ahead: f64) -> u8 {
    match ahead {
        ahead if ahead <= -BEHIND => 0,
        ahead if ahead < 0.0 => 1,
        _ => 2,
    }
}

/// The replicas of each of `pg_count` groups, the preferred primary first. Among OSDs of equal weight, the
/// numbers of primaries differ by 1 at most.
///
/// # Panics
/// If there are fewer candidates than `size`, or `size` is 0.
#[must_use]
pub fn place(
    pool: PoolId,
    pg_count: u32,
    size: u32,
    failure_domain: FailureDomain,
    candidates: &[Candidate],
) -> Vec<Vec<OsdId>> {
    let size = size as usize;
    assert!(size > 0 && candidates.len() >= size, "the caller saw that there are enough OSDs");
    let tree = Tree::new(failure_domain, candidates);
    let dealt = deal(pool, pg_count, size, &tree, candidates);
    let mut layout = Layout::new(pool, size, &tree, candidates, dealt, |_| false);
    layout.settle();
    layout.targets()
}

/// New targets for the groups of a pool, given the present ones in the order of the groups and the OSDs that
/// data may lie on now. A target without a replica yet is empty.
///
/// - Members that are still candidates stay. The others are replaced, and a target that is too short is filled
///   up: in the least crowded failure domains, by the best draws, as far as fair shares allow.
/// - Then single replicas move until every target is spread over the failure domains as evenly as they allow, and every
///   OSD is within one replica, or 5 %, of its fair share, where the domains allow that too.
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
    failure_domain: FailureDomain,
    present: &[Vec<OsdId>],
    candidates: &[Candidate],
) -> Vec<Vec<OsdId>> {
    assert!(size > 0, "a pool keeps one copy at least");
    if candidates.is_empty() {
        return present.to_vec();
    }
    let size = (size as usize).min(candidates.len());
    let known: Map<OsdId, u32> = (0..).zip(candidates).map(|(at, candidate)| (candidate.osd, at)).collect();
    let kept = |target: &Vec<OsdId>| {
        let mut kept: Vec<u32> = Vec::with_capacity(size);
        for at in target.iter().filter_map(|osd| known.get(osd).copied()) {
            if kept.len() < size && !kept.contains(&at) {
                kept.push(at);
            }
        }
        kept
    };
    let lost_primary = |index: usize| present[index].first().is_none_or(|osd| !known.contains_key(osd));
    let groups = present.iter().map(kept).collect();
    let tree = Tree::new(failure_domain, candidates);
    let mut layout = Layout::new(pool, size, &tree, candidates, groups, lost_primary);
    layout.fill();
    layout.settle();
    layout.targets()
}

/// Deals the replicas of a new pool, as positions among the candidates.
fn deal(pool: PoolId, pg_count: u32, size: usize, tree: &Tree, candidates: &[Candidate]) -> Vec<Vec<u32>> {
    let shares = shares(tree, candidates, size);
    let quotas = quotas(pool, pg_count, &lead_shares(&shares, candidates, size), candidates);
    // What each should hold besides what it is the primary of, and what it holds of that so far.
    let others: Vec<f64> = shares
        .iter()
        .zip(&quotas)
        .map(|(share, &primaries)| share * size as f64 * f64::from(pg_count) - primaries as f64)
        .collect();
    let others = tree.sums(&others);
    let mut held = tree.sums(&vec![0u32; candidates.len()]);
    let mut primaries_left = tree.sums(&quotas);
    let (mut openings, mut draws) = (Openings::new(tree), Vec::new());
    (0..pg_count)
        .map(|index| {
            let group = Group::new(pool, index);
            tree.first_draws(group, &mut draws);
            let may_lead = |branch: usize| (primaries_left[branch] > 0).then_some(0);
            let primary = tree.descend(group, &draws, may_lead);
            let primary = primary.expect("the quotas add up to the number of groups");
            tree.up(primary, |branch| primaries_left[branch] -= 1);
            let mut chosen = Vec::with_capacity(size);
            chosen.push(primary);
            while chosen.len() < size {
                openings.find(tree, &chosen);
                // How far a branch is ahead of its fair share of what is dealt up to this group.
                let ahead = |branch: usize| {
                    f64::from(held[branch]) - others[branch] * f64::from(index + 1) / f64::from(pg_count)
                };
                let stands = |branch: usize| openings.is_open(tree, branch).then(|| standing(ahead(branch)));
                let next = tree.descend(group, &draws, stands);
                chosen.push(next.expect("there are more candidates than replicas chosen"));
            }
            for &at in &chosen[1..] {
                tree.up(at, |branch| held[branch] += 1);
            }
            chosen
        })
        .collect()
}
