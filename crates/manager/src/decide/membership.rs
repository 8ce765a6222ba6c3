//! Who is in: who has stayed away for too long is taken out, and taken in again when it is back.
//!
//! An OSD that has been down for `osd_out_after` is taken out only if its groups can be rebuilt elsewhere, as good as
//! before ([`Outlook`]):
//! - The OSDs that are in and up, and that the rule of a pool allows, are enough for the copies of every pool that it may
//!   hold. If not, nothing could be rebuilt: its groups go on with what they have anyway, and it would lose by being out,
//!   because it catches up by its log as long as it is a member, and is filled anew once it was none.
//! - They lie in as many failure domains of the pool's rule as the copies did before. Two copies of a group in one are a
//!   risk that nobody chose, and would be undone when the domain is back.
//! - Somebody else in its rack is up, and in its zone, and in its region, if more than one host stands there. A whole rack
//!   does not die by itself: it is its switch or its power, and comes back with what it holds, while rebuilding it would
//!   cost the others days. A host does: it is taken out as its drives are.
//! - They are more than half of those that are in. So many do not die by themselves: it is a switch or the power, and
//!   what is left could hardly take it all.
//!
//! A person may take it out all the same: `millpond osd out`.

use super::Moment;
use base::map::{Admission, ClusterMap, DeviceClass, FailureDomain, OsdInfo, PoolInfo};
use base::status::Away;
use base::{NodeId, OsdId};
use placement::{Candidate, Place, places};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What one process that manages the cluster knows of who is away. It keeps nothing that the registry has not: its successor
/// begins to count anew.
#[derive(Debug, Default)]
pub struct Membership {
    /// Since when each OSD that is in is known to be down.
    down: BTreeMap<OsdId, Moment>,
}

/// Who shall be in and out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Was out while it was down, is back, and comes in again.
    pub back: Vec<OsdId>,
    /// Has been away for too long, and is taken out, one after the other: each is decided as if those before it were out.
    pub out: Vec<OsdId>,
    /// When the next one will have been away for so long, by the monotonic clock.
    pub next: Option<Duration>,
}

impl Membership {
    /// Decides who comes in and goes out by a map that was seen at a moment. Nobody goes out if there is no `out_after`.
    pub fn decide(&mut self, map: &ClusterMap, moment: Moment, out_after: Option<Duration>) -> Decision {
        self.note_who_is_down(map, moment);
        let is_back = |info: &OsdInfo| info.admission == Admission::OutWhileDown && info.address.is_some();
        let back = map.osds.iter().filter(|(_, info)| is_back(info)).map(|(osd, _)| *osd).collect();
        let mut decision = Decision { back, ..Decision::default() };
        let Some(out_after) = out_after else { return decision };
        let at = |down: &Moment| down.now + out_after;
        decision.next = self.down.values().map(at).filter(|at| *at > moment.now).min();
        let mut map = map.clone();
        let mut reasons: Option<BTreeMap<OsdId, Option<String>>> = None;
        for (&osd, _) in self.down.iter().filter(|(_, down)| at(down) <= moment.now) {
            let reasons_now = reasons.get_or_insert_with(|| {
                let outlook = Outlook::of(&map);
                self.down.keys().map(|osd| (*osd, outlook.reason_to_stay(*osd))).collect()
            });
            if reasons_now[&osd].is_none() {
                decision.out.push(osd);
                // What is allowed for the first one may not be for the second.
                if let Some(info) = map.osds.get_mut(&osd) {
                    info.admission = Admission::OutWhileDown;
                }
                reasons = None;
            }
        }
        decision
    }

    fn note_who_is_down(&mut self, map: &ClusterMap, moment: Moment) {
        let is_down = |osd: &OsdId| {
            map.osds.get(osd).is_some_and(|info| info.address.is_none() && info.admission == Admission::In)
        };
        self.down.retain(|osd, _| is_down(osd));
        for osd in map.osds.keys().filter(|osd| is_down(osd)) {
            self.down.entry(*osd).or_insert(moment);
        }
    }

    /// What becomes of those who are down, for people.
    #[must_use]
    pub fn away(&self, map: &ClusterMap, out_after: Option<Duration>) -> BTreeMap<OsdId, Away> {
        if self.down.is_empty() {
            return BTreeMap::new();
        }
        let outlook = Outlook::of(map);
        let becomes = |(&osd, down): (&OsdId, &Moment)| {
            let away = match (out_after, outlook.reason_to_stay(osd)) {
                (None, _) => Away::In { reason: "--osd-out-after is never".to_owned() },
                (_, Some(reason)) => Away::In { reason },
                (Some(out_after), None) => {
                    Away::Out { at_unix_seconds: down.unix.as_secs().saturating_add(out_after.as_secs()) }
                }
            };
            (osd, away)
        };
        self.down.iter().map(becomes).collect()
    }
}

/// What is left of a cluster, as far as it says who of those that are in and down is taken out. The rule and its reasons are
/// in the module's documentation. It is made once for all of them: after a power cut they are many.
struct Outlook<'a> {
    map: &'a ClusterMap,
    places: BTreeMap<NodeId, Place>,
    /// What keeps every OSD of a class in, if anything; absent where no pool may have replicas on it.
    by_class: BTreeMap<DeviceClass, Option<String>>,
    /// The OSDs and hosts of racks, zones and regions of which everything is down.
    dead: BTreeMap<FailureDomain, BTreeMap<Place, (usize, BTreeSet<u32>)>>,
    /// What keeps everybody in, if anything.
    for_all: Option<String>,
}

/// Levels that die by their power or their switch.
const LEVELS: [FailureDomain; 3] = [FailureDomain::Rack, FailureDomain::Zone, FailureDomain::Region];

impl<'a> Outlook<'a> {
    fn of(map: &'a ClusterMap) -> Outlook<'a> {
        let places = places(map);
        let mut pools: Vec<&PoolInfo> = map.pools.values().collect();
        pools.sort_by_key(|pool| std::cmp::Reverse(pool.size));
        let lacking: Vec<(&PoolInfo, Option<String>)> =
            pools.into_iter().map(|pool| (pool, what_is_lacking(map, pool))).collect();
        let classes: BTreeSet<DeviceClass> = map.osds.values().map(|info| info.device_class).collect();
        let by_class = classes.into_iter().filter_map(|class| {
            let mut may_hold = lacking.iter().filter(|(pool, _)| may_hold(pool, class)).peekable();
            may_hold.peek()?;
            Some((class, may_hold.find_map(|(_, lacking)| lacking.clone())))
        });
        let by_class = by_class.collect();
        let dead = LEVELS.map(|level| (level, dead_at(map, &places, level))).into();
        let within = || map.osds.values().filter(|info| info.admission == Admission::In && info.bytes > 0);
        let (count, left) = (within().count(), within().filter(|info| info.address.is_some()).count());
        let for_all = (left * 2 <= count).then(|| {
            format!(
                "only {left} of the {count} OSDs that are in would be left, which looks like more than a lost drive"
            )
        });
        Outlook { map, places, by_class, dead, for_all }
    }

    /// Why an OSD that is in and down is not taken out, however long it stays away.
    fn reason_to_stay(&self, osd: OsdId) -> Option<String> {
        let info = &self.map.osds[&osd];
        let here = self.places[&info.node];
        let dead_with_it = |level: &FailureDomain| {
            let (osds, hosts) = self.dead[level].get(&here.domain(*level, osd))?;
            (here.is_named(*level) && hosts.len() > 1).then(|| {
                format!(
                    "all {osds} OSDs of its {level}, on {} hosts, are down, which looks like power or a switch",
                    hosts.len()
                )
            })
        };
        // Nothing would be lost or gained.
        let by_class = self.by_class.get(&info.device_class)?;
        by_class.clone().or_else(|| LEVELS.iter().find_map(dead_with_it)).or_else(|| self.for_all.clone())
    }
}

/// Why what is left of the OSDs is not enough for the copies of a pool, if so.
fn what_is_lacking(map: &ClusterMap, pool: &PoolInfo) -> Option<String> {
    let within = Candidate::of_rule(map, &pool.rule);
    let is_left = |candidate: &&Candidate| map.osds[&candidate.osd].address.is_some();
    let left: Vec<&Candidate> = within.iter().filter(is_left).collect();
    let (name, copies, domain) = (&pool.name, pool.size as usize, pool.rule.failure_domain);
    if left.len() < copies {
        let class = pool.rule.device_class.map_or(String::new(), |class| format!(" on {class} drives"));
        let (osds, are) = if left.len() == 1 { ("OSD", "is") } else { ("OSDs", "are") };
        return Some(format!(
            "pool {name} wants {copies} copies, and only {} other {osds}{class} {are} in and up",
            left.len()
        ));
    }
    let domains: BTreeSet<Place> = within.iter().map(|one| one.place.domain(domain, one.osd)).collect();
    let domains_left: BTreeSet<Place> = left.iter().map(|one| one.place.domain(domain, one.osd)).collect();
    (domains_left.len() < copies.min(domains.len())).then(|| match domains_left.len() {
        1 => format!("the {copies} copies of pool {name} would have to share the one {domain} that is left"),
        left => {
            format!(
                "the {copies} copies of pool {name} would have to share the {left} {domain}s that are left"
            )
        }
    })
}

/// Whether a pool may have replicas on OSDs of a class.
fn may_hold(pool: &PoolInfo, class: DeviceClass) -> bool {
    pool.rule.device_class.is_none_or(|allowed| allowed == class)
}

/// The domains of a level in which everything is down, with their OSDs and hosts.
fn dead_at(
    map: &ClusterMap,
    places: &BTreeMap<NodeId, Place>,
    level: FailureDomain,
) -> BTreeMap<Place, (usize, BTreeSet<u32>)> {
    let mut dead: BTreeMap<Place, (usize, BTreeSet<u32>)> = BTreeMap::new();
    let mut alive: BTreeSet<Place> = BTreeSet::new();
    for (&osd, info) in map.osds.iter().filter(|(_, info)| info.admission != Admission::Out) {
        let place = places[&info.node];
        let domain = place.domain(level, osd);
        if info.address.is_some() {
            alive.insert(domain);
        } else {
            let (osds, hosts) = dead.entry(domain).or_default();
            *osds += 1;
            hosts.insert(place.host);
        }
    }
    dead.retain(|domain, _| !alive.contains(domain));
    dead
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::PoolId;
    use base::map::{Location, NodeInfo, PlacementRule};

    fn reason_to_stay(map: &ClusterMap, osd: OsdId) -> Option<String> {
        Outlook::of(map).reason_to_stay(osd)
    }

    /// OSDs on these nodes, all in, and all up but the first `down`; one pool.
    fn map(nodes: &[u32], down: usize, copies: u32) -> ClusterMap {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        for (osd, &node) in nodes.iter().enumerate() {
            let address = (osd >= down).then(|| "127.0.0.1:7000".parse().unwrap());
            let info = OsdInfo { node: NodeId(node), bytes: 1 << 30, address, ..OsdInfo::default() };
            map.osds.insert(OsdId(osd as u32), info);
        }
        let pool =
            PoolInfo { name: "p".into(), size: copies, min_size: 1, pg_count: 16, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        map
    }

    fn stays_because(nodes: &[u32], down: usize, copies: u32) -> String {
        reason_to_stay(&map(nodes, down, copies), OsdId(0)).unwrap_or_default()
    }

    fn at(seconds: u64) -> Moment {
        Moment { now: Duration::from_secs(seconds), unix: Duration::from_secs(1_800_000_000 + seconds) }
    }

    #[test]
    fn who_stays_away_for_long_enough_is_taken_out_and_in_again_when_it_is_back() {
        let out_after = Some(Duration::from_secs(600));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut map = map(&[0, 1, 2, 3, 4, 5], 1, 3);
        let mut membership = Membership::default();
        let waits = Decision { next: seconds(610), ..Decision::default() };
        assert_eq!(membership.decide(&map, at(10), out_after), waits);
        let told = Away::Out { at_unix_seconds: 1_800_000_610 };
        assert_eq!(membership.away(&map, out_after), BTreeMap::from([(OsdId(0), told)]));
        map.osds.get_mut(&OsdId(1)).unwrap().address = None;
        assert_eq!(membership.decide(&map, at(400), out_after), waits);
        let first = Decision { out: vec![OsdId(0)], next: seconds(1000), back: vec![] };
        assert_eq!(membership.decide(&map, at(610), out_after), first);
        // The map does not show it yet.
        let both = Decision { out: vec![OsdId(0), OsdId(1)], ..Decision::default() };
        assert_eq!(membership.decide(&map, at(1000), out_after), both);
        assert_eq!(membership.decide(&map, at(1000), None), Decision::default());
        // Half of them do not die by themselves.
        map.osds.get_mut(&OsdId(2)).unwrap().address = None;
        let nobody = Decision { next: seconds(1601), ..Decision::default() };
        assert_eq!(membership.decide(&map, at(1001), out_after), nobody);
        let info = map.osds.get_mut(&OsdId(0)).unwrap();
        (info.address, info.admission) = ("127.0.0.1:7000".parse().ok(), Admission::OutWhileDown);
        let back = Decision { back: vec![OsdId(0)], ..Decision::default() };
        assert_eq!(membership.decide(&map, at(1002), None), back);
    }

    #[test]
    fn who_is_away_is_taken_out_only_if_its_groups_can_be_rebuilt_as_good_as_before() {
        assert_eq!(stays_because(&[0, 1, 2, 3], 1, 3), "");
        assert_eq!(stays_because(&[0, 0, 1, 1, 2, 2], 1, 3), "");
        assert_eq!(stays_because(&[0, 0, 0, 0], 1, 3), "", "there is only one node anyway");
        assert!(stays_because(&[0, 1, 2], 1, 3).contains("only 2 other OSDs"));
        assert!(stays_because(&[0, 1, 2, 3], 2, 3).contains("only 2 other OSDs"));
        assert!(stays_because(&[0, 1, 2, 3], 3, 3).contains("only 1 other OSD is in"));
        assert!(stays_because(&[0, 0, 1, 1, 2, 2], 2, 3).contains("share the 2 hosts"));
        assert!(stays_because(&[0, 1, 2, 3], 2, 2).contains("2 of the 4 OSDs"));
    }

    #[test]
    fn an_osd_that_is_out_counts_for_nothing() {
        let mut map = map(&[0, 1, 2, 3], 1, 3);
        map.osds.get_mut(&OsdId(3)).unwrap().admission = Admission::Out;
        assert!(reason_to_stay(&map, OsdId(0)).is_some());
        // Of two pools the one with more copies decides.
        let mut two = self::map(&[0, 1, 2], 1, 2);
        assert_eq!(reason_to_stay(&two, OsdId(0)), None);
        let pool = PoolInfo { name: "q".into(), size: 3, min_size: 2, pg_count: 16, ..PoolInfo::default() };
        two.pools.insert(PoolId(2), pool);
        assert!(reason_to_stay(&two, OsdId(0)).unwrap().contains("pool q wants 3"));
    }

    /// Racks of hosts of OSDs, one node a host; all up.
    fn racks(racks: u32, hosts: u32, osds: u32, rule: PlacementRule) -> ClusterMap {
        let nodes: Vec<u32> = (0..racks * hosts).flat_map(|host| vec![host; osds as usize]).collect();
        let mut map = map(&nodes, 0, 3);
        map.pools.get_mut(&PoolId(1)).unwrap().rule = rule;
        for host in 0..racks * hosts {
            let location = Location { rack: Some(format!("r{}", host / hosts)), ..Location::default() };
            map.nodes.insert(NodeId(host), NodeInfo { location, ..NodeInfo::default() });
        }
        map
    }

    fn kill(map: &mut ClusterMap, hosts: std::ops::Range<u32>) {
        for info in map.osds.values_mut().filter(|info| hosts.contains(&info.node.0)) {
            info.address = None;
        }
    }

    #[test]
    fn a_host_that_died_is_taken_out_and_a_rack_that_died_is_waited_for() {
        for failure_domain in [FailureDomain::Osd, FailureDomain::Host, FailureDomain::Rack] {
            let mut map = racks(5, 3, 2, PlacementRule { failure_domain, device_class: None });
            kill(&mut map, 0..1);
            assert_eq!(reason_to_stay(&map, OsdId(0)), None);
            kill(&mut map, 0..3);
            let reason = reason_to_stay(&map, OsdId(0)).unwrap();
            assert!(reason.contains("all 6 OSDs of its rack, on 3 hosts"), "{reason}");
            // Who was taken out before is as dead as the others.
            for osd in 0..4 {
                map.osds.get_mut(&OsdId(osd)).unwrap().admission = Admission::OutWhileDown;
            }
            assert!(reason_to_stay(&map, OsdId(4)).unwrap().contains("of its rack"));
        }
        // A rack of one host says nothing about its switch.
        let mut map = racks(5, 1, 2, PlacementRule::default());
        kill(&mut map, 0..1);
        assert_eq!(reason_to_stay(&map, OsdId(0)), None);
    }

    #[test]
    fn the_failure_domains_of_the_rule_must_be_as_many_as_before() {
        let by_rack = PlacementRule { failure_domain: FailureDomain::Rack, device_class: None };
        let mut map = racks(3, 1, 4, by_rack);
        kill(&mut map, 0..1);
        assert!(reason_to_stay(&map, OsdId(0)).unwrap().contains("share the 2 racks that are left"));
        let mut by_osd = racks(3, 1, 4, PlacementRule { failure_domain: FailureDomain::Osd, ..by_rack });
        kill(&mut by_osd, 0..1);
        assert_eq!(reason_to_stay(&by_osd, OsdId(0)), None);
        // Two nodes on one host are one.
        let mut hosts = self::map(&[0, 1, 2, 3], 1, 3);
        assert_eq!(reason_to_stay(&hosts, OsdId(0)), None);
        for node in [2, 3] {
            hosts.nodes.insert(NodeId(node), NodeInfo { host: "same".into(), ..NodeInfo::default() });
        }
        assert!(reason_to_stay(&hosts, OsdId(0)).unwrap().contains("share the 2 hosts"));
    }

    #[test]
    fn only_pools_whose_rule_allows_an_osd_are_asked_about_it() {
        let mut map = self::map(&[0, 1, 2, 3, 4, 5], 1, 3);
        map.pools.get_mut(&PoolId(1)).unwrap().rule.device_class = Some(DeviceClass::Nvme);
        for osd in 3..6 {
            map.osds.get_mut(&OsdId(osd)).unwrap().device_class = DeviceClass::Nvme;
        }
        assert_eq!(reason_to_stay(&map, OsdId(0)), None);
        map.osds.get_mut(&OsdId(3)).unwrap().address = None;
        let reason = reason_to_stay(&map, OsdId(3)).unwrap();
        assert!(reason.contains("only 2 other OSDs on nvme drives"), "{reason}");
    }
}
