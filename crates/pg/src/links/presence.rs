//! Who is there: connections to the other OSDs, and the leases that both sides ask for and grant.
//!
//! The rules of leases are in [`super::lease`]; here they meet connections and groups.

use super::lease::{LEASE, Leases};
use super::{Links, OsdLink, Peer};
use crate::group::{Group, Groups};
use base::map::ClusterMap;
use base::{Instant, LinkId, Network, OsdId};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::Lease;

/// How long another OSD may take to greet back: a connection that was dialled into a partition would be tried again by
/// TCP ever more rarely.
const WELCOME_MAX: Duration = Duration::from_secs(1);
/// A connection that brings nothing for so long, although the other end is asked for its lease, is cut.
const SILENCE_MAX: Duration = Duration::from_secs(8);
/// How long a member may be away before its groups go on without it: a process that is started anew is back
/// sooner.
const AWAY_MAX: Duration = Duration::from_millis(600);
/// The same of one that answers, and that the registry does not hear from any more: whoever is there announces itself anew
/// sooner.
const UNHEARD_MAX: Duration = Duration::from_secs(3);
/// How recently the registry must have answered that it is counted on: longer than the pause between two signs of life, and
/// shorter than it takes an OSD for alive behind the last one.
const REGISTRY_HEARD_MAX: Duration = Duration::from_secs(5);
/// How recently the members must have been heard that a group goes on with: twice as long as leases are asked for.
const HEARD_MAX: Duration = Duration::from_millis(500);
/// How long after its own start an OSD waits for the others: nodes do not start at the same moment.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    pub(crate) leases: Leases,
    /// Whom this OSD shares groups with, in order.
    neighbours: Vec<OsdId>,
    /// Since when one of them does not answer.
    away_since: BTreeMap<OsdId, Instant>,
    /// Since when one of them does not count as up in the registry.
    unheard_since: BTreeMap<OsdId, Instant>,
    /// When the registry answered this OSD last.
    registry_heard_at: Option<Instant>,
}

impl Presence {
    pub(crate) fn new(leases: Leases) -> Presence {
        Presence { leases, ..Presence::default() }
    }

    /// Connects to the OSDs this one shares groups with. Of two, the one with the lower id dials, so that there
    /// is one link between them.
    pub(crate) fn dial(
        &self,
        me: OsdId,
        map: &ClusterMap,
        links: &mut Links,
        now: Instant,
        network: &mut impl Network,
    ) {
        for &osd in &self.neighbours {
            if osd < me || !links.may_dial(osd, now) {
                continue;
            }
            let address = map.osds.get(&osd).and_then(|info| info.address);
            if let Some(link) = address.and_then(|address| network.connect(address)) {
                links.insert_osd(link, OsdLink::new(osd, None, now));
            }
        }
    }

    /// Whether an OSD answers: the connection stands, and it grants leases, or was not asked for long.
    pub(crate) fn is_present(&self, links: &Links, osd: OsdId, now: Instant) -> bool {
        links
            .to(osd)
            .filter(|peer| peer.is_ready())
            .is_some_and(|peer| self.leases.holds(osd, now) || now.since(peer.since) < LEASE)
    }

    /// Whether an OSD has not answered, or not been heard by the registry, for so long that its groups go on without it.
    pub(crate) fn is_away(&self, osd: OsdId, now: Instant) -> bool {
        let is_silent = self.away_since.get(&osd).is_some_and(|since| now.since(*since) >= AWAY_MAX);
        is_silent || self.is_unheard(osd, now)
    }

    /// Whether the registry has not heard from an OSD for longer than it takes to announce itself anew.
    pub(crate) fn is_unheard(&self, osd: OsdId, now: Instant) -> bool {
        self.unheard_since.get(&osd).is_some_and(|since| now.since(*since) >= UNHEARD_MAX)
    }

    /// The registry answered this OSD. Answers whether it was not counted on until now.
    pub(crate) fn registry_answered(&mut self, now: Instant) -> bool {
        let was_heard = self.hears_registry(now);
        self.registry_heard_at = Some(now);
        !was_heard
    }

    /// Whether the registry answered this OSD a short while ago.
    pub(crate) fn hears_registry(&self, now: Instant) -> bool {
        self.registry_heard_at.is_some_and(|at| now.since(at) < REGISTRY_HEARD_MAX)
    }

    /// Whether this OSD shares a group with another.
    pub(crate) fn is_neighbour(&self, osd: OsdId) -> bool {
        self.neighbours.binary_search(&osd).is_ok()
    }

    /// Whether all whom this OSD shares groups with answer, and count as up in the registry.
    pub(crate) fn is_complete(&self) -> bool {
        self.away_since.is_empty() && self.unheard_since.is_empty()
    }

    /// Whether the leases of all of them last until then.
    pub(crate) fn holds_all(&self, until: Instant) -> bool {
        self.neighbours.iter().all(|osd| self.leases.holds(*osd, until))
    }

    /// Notes who answers and who does not, among those this OSD shares groups with.
    pub(crate) fn look_around(&mut self, links: &Links, map: &ClusterMap, now: Instant) {
        let patience_ends = self.leases.started() + (START_PATIENCE - AWAY_MAX);
        for index in 0..self.neighbours.len() {
            let osd = self.neighbours[index];
            if self.is_present(links, osd, now) {
                self.away_since.remove(&osd);
            } else {
                self.away_since.entry(osd).or_insert(now.max(patience_ends));
            }
            if map.osds.get(&osd).is_some_and(|info| info.address.is_some()) {
                self.unheard_since.remove(&osd);
            } else {
                self.unheard_since.entry(osd).or_insert(now.max(patience_ends));
            }
        }
    }

    /// Finds out whom this OSD shares groups with.
    pub(crate) fn find_neighbours(&mut self, me: OsdId, groups: &Groups) {
        let own = groups.iter().filter(|group| group.has_member(me));
        let mut osds: Vec<OsdId> = own.flat_map(Group::members).collect();
        osds.sort_unstable();
        osds.dedup();
        osds.retain(|osd| *osd != me);
        self.away_since.retain(|osd, _| osds.contains(osd));
        self.unheard_since.retain(|osd, _| osds.contains(osd));
        self.neighbours = osds;
    }

    /// Asks for leases where they are due. Answers the connections that nothing comes through, to be cut.
    pub(crate) fn renew(
        &mut self,
        links: &Links,
        groups: &Groups,
        is_busy: bool,
        now: Instant,
        network: &mut impl Network,
    ) -> Vec<LinkId> {
        // While somebody is away, whoever is left is to be heard often: see `was_heard`.
        let is_busy =
            is_busy || !self.is_complete() || groups.iter().any(|group| !group.learners().is_empty());
        let mut silent = Vec::new();
        for (osd, link) in links.osds() {
            let Some(Peer::Osd(peer)) = links.get(link) else { continue };
            let patience = if peer.is_ready() { SILENCE_MAX } else { WELCOME_MAX };
            // Whoever is not listened to is not silent.
            if peer.is_listened_to() && now.since(peer.heard_at) >= patience {
                silent.push(link);
            } else if peer.is_ready() && self.leases.is_due(osd, now, is_busy) {
                let lease = self.leases.ask(osd, now, is_busy);
                network.send(link, &lease.encode());
            }
        }
        silent
    }

    /// An OSD asks for a lease, or grants one. Answers what it is told.
    pub(crate) fn handle_lease(
        &mut self,
        osd: OsdId,
        lease: &Lease,
        is_busy: bool,
        now: Instant,
    ) -> Option<Lease> {
        if lease.granted_ttl_ms > 0 {
            self.leases.granted(osd, lease);
        }
        if lease.ttl_ms == 0 {
            return None;
        }
        self.leases.promise(osd, now, lease.ttl_ms);
        // Asking in the same message, a little early, saves both sides a wake-up.
        let own = if !is_busy && self.leases.is_nearly_due(osd, now) {
            self.leases.ask(osd, now, is_busy)
        } else {
            Lease::default()
        };
        Some(Lease { granted_ttl_ms: lease.ttl_ms, granted_stamp: lease.stamp, ..own })
    }
}

impl Links {
    /// Whether something came from an OSD a moment ago. Who loses one member after the other may be the one that is cut
    /// off: before it goes on without the first it makes sure of the others.
    pub(crate) fn was_heard(&self, osd: OsdId, now: Instant) -> bool {
        self.to(osd).is_some_and(|peer| peer.is_ready() && now.since(peer.heard_at) < HEARD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::learner::Learner;
    use crate::links::backlog::Backlog;
    use crate::testing::{Pair, REPLICA, Surroundings};
    use base::map::{OsdInfo, PgConfig};
    use base::{Epoch, PgId, PoolId};
    use std::net::SocketAddr;
    use std::sync::Arc;
    use wire::{LEASE_MS_MAX, Message};

    const OTHER: OsdId = OsdId(1);

    fn at(milliseconds: u64) -> Instant {
        Instant { nanoseconds: milliseconds * 1_000_000 }
    }

    fn linked(is_ready: bool, now: Instant) -> Links {
        let mut links = Links::default();
        links.insert_osd(LinkId(1), OsdLink::new(OTHER, is_ready.then_some(wire::Version(3)), now));
        links
    }

    #[test]
    fn who_connected_is_present_until_it_should_have_granted_a_lease() {
        let presence = Presence::default();
        assert!(!presence.is_present(&linked(false, at(1000)), OTHER, at(1000)));
        let links = linked(true, at(1000));
        assert!(
            presence.is_present(&links, OTHER, at(1899)) && !presence.is_present(&links, OTHER, at(1900))
        );
        assert!(links.was_heard(OTHER, at(1499)) && !links.was_heard(OTHER, at(1500)));
    }

    #[test]
    fn who_does_not_answer_is_away_after_a_moment_and_not_right_after_a_start() {
        let mut presence = Presence::default();
        presence.leases.start(at(1000));
        presence.neighbours = vec![OTHER];
        let links = Links::default();
        presence.look_around(&links, &map(true), at(2000));
        assert!(!presence.is_complete() && !presence.is_away(OTHER, at(5999)));
        assert!(presence.is_away(OTHER, at(6000)), "nodes do not start at the same moment");
        presence.look_around(&linked(true, at(7000)), &map(true), at(7000));
        assert!(presence.is_complete() && !presence.is_away(OTHER, at(9000)));
    }

    /// The map of one OSD, which the registry hears from or not.
    fn map(is_up: bool) -> ClusterMap {
        let mut map = ClusterMap::default();
        let address = is_up.then_some(([127, 0, 0, 1], 7000).into());
        map.osds.insert(OTHER, OsdInfo { address, ..OsdInfo::default() });
        map
    }

    #[test]
    fn who_has_another_address_is_dialled_at_once_however_short_ago_its_link_ended() {
        let mut pair = Pair::new();
        let (now, link) = (pair.alone.now, pair.link);
        pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
        let map = ClusterMap::clone(&pair.alone.osd.shared.volumes.map);
        let same = map.osds[&REPLICA].address;
        let other: SocketAddr = ([127, 0, 0, 2], 7001).into();
        for (address, dialled) in [(same, vec![]), (Some(other), vec![other])] {
            let mut map = map.clone();
            map.revision += 1;
            map.osds.get_mut(&REPLICA).expect("it is there").address = address;
            pair.alone.osd.handle_map(now, Arc::new(map), &mut pair.alone.io);
            pair.alone.osd.end_turn(now, &mut pair.alone.io);
            assert_eq!(pair.alone.io.dialled, dialled, "{address:?}");
        }
    }

    #[test]
    fn who_answers_and_does_not_reach_the_registry_is_away_after_some_seconds() {
        let mut presence = Presence::default();
        presence.leases.start(at(1000));
        presence.neighbours = vec![OTHER];
        let links = linked(true, at(9800));
        presence.look_around(&links, &map(false), at(10_000));
        assert!(presence.away_since.is_empty(), "it is there for the epochs that have begun");
        assert!(!presence.is_complete(), "and may be gone for the next one");
        assert!(!presence.is_away(OTHER, at(12_999)) && presence.is_away(OTHER, at(13_000)));
        assert!(!presence.is_unheard(OTHER, at(12_999)) && presence.is_unheard(OTHER, at(13_000)));
        presence.look_around(&links, &map(true), at(10_100));
        assert!(!presence.is_away(OTHER, at(20_000)) && presence.is_complete());
    }

    #[test]
    fn the_registry_is_counted_on_for_some_seconds_behind_each_answer() {
        let mut presence = Presence::default();
        assert!(!presence.hears_registry(at(0)) && presence.registry_answered(at(1000)));
        assert!(presence.hears_registry(at(5999)) && !presence.hears_registry(at(6000)));
        assert!(!presence.registry_answered(at(5999)), "it was all the while");
        assert!(presence.hears_registry(at(10_998)) && !presence.hears_registry(at(10_999)));
        assert!(presence.registry_answered(at(10_999)));
    }

    fn group(index: u32, in_sync: &[u32], learners: &[u32], target: &[u32]) -> Group {
        let osds = |numbers: &[u32]| numbers.iter().copied().map(OsdId).collect::<Vec<_>>();
        let (in_sync, learners) = (osds(in_sync), osds(learners));
        let config =
            PgConfig { epoch: Epoch(1), primary: in_sync[0], in_sync, learners, ..PgConfig::default() };
        let pg = PgId { pool: PoolId(1), index };
        Group::new(pg, 4, config, osds(target), true, Instant::default())
    }

    #[test]
    fn whoever_holds_or_shall_hold_a_group_of_this_osd_is_its_neighbour_and_nobody_else() {
        let mut groups = Groups::default();
        groups.add(group(0, &[4, 3, 1], &[], &[4, 3, 1]));
        groups.add(group(1, &[1, 3], &[7], &[1, 3]));
        groups.add(group(2, &[3], &[], &[3, 5]));
        groups.add(group(3, &[2, 6], &[], &[2, 6]));
        let mut presence = Presence::default();
        for osd in [OsdId(1), OsdId(2)] {
            presence.away_since.insert(osd, at(1));
            presence.unheard_since.insert(osd, at(1));
        }
        presence.find_neighbours(OsdId(3), &groups);
        assert_eq!(presence.neighbours, [1, 4, 5, 7].map(OsdId));
        assert!(presence.is_neighbour(OsdId(5)) && !presence.is_neighbour(OsdId(2)));
        // Who is none any more is not waited for.
        let left = BTreeMap::from([(OsdId(1), at(1))]);
        assert_eq!((&presence.away_since, &presence.unheard_since), (&left, &left));
    }

    #[test]
    fn an_osd_may_rest_while_the_leases_of_all_its_neighbours_last() {
        let mut presence = Presence { neighbours: vec![OTHER, OsdId(2)], ..Presence::default() };
        for osd in [OTHER, OsdId(2)] {
            assert!(!presence.holds_all(at(1500)));
            let asked = presence.leases.ask(osd, at(1000), true);
            let (granted_ttl_ms, granted_stamp) = (asked.ttl_ms, asked.stamp);
            let grant = Lease { granted_ttl_ms, granted_stamp, ..Lease::default() };
            assert_eq!(presence.handle_lease(osd, &grant, true, at(1100)), None);
        }
        assert!(presence.holds_all(at(1899)) && !presence.holds_all(at(1900)));
    }

    #[test]
    fn who_asks_is_promised_and_is_asked_in_return_if_that_is_due_soon_at_rest() {
        let mut presence = Presence::default();
        presence.leases.start(at(0));
        let wanted = Lease { ttl_ms: 900, stamp: 7, ..Lease::default() };
        let granted = Lease { granted_ttl_ms: 900, granted_stamp: 7, ..Lease::default() };
        presence.leases.ask(OTHER, at(0), true);
        assert_eq!(presence.handle_lease(OTHER, &wanted, true, at(100)), Some(granted));
        assert!(!presence.leases.holds(OTHER, at(100)), "who asks grants nothing by that");
        // The shortest that there is.
        let grant = Lease { granted_ttl_ms: 1, granted_stamp: 0, ..Lease::default() };
        assert_eq!(presence.handle_lease(OTHER, &grant, true, at(200)), None);
        assert!(presence.leases.holds(OTHER, at(200)));
        let at_rest = Lease { ttl_ms: LEASE_MS_MAX, stamp: at(10_000).nanoseconds, ..granted };
        assert_eq!(presence.handle_lease(OTHER, &wanted, false, at(10_000)), Some(at_rest));
        assert_eq!(presence.handle_lease(OTHER, &wanted, false, at(10_100)), Some(granted), "not due soon");
        assert_eq!(presence.handle_lease(OTHER, &wanted, true, at(12_000)), Some(granted), "there is work");
        // Who grants something does not give up what it was promised.
        assert_eq!(presence.handle_lease(OTHER, &grant, true, at(12_100)), None);
        let is_free = |milliseconds| presence.leases.is_free_of(OTHER, at(milliseconds));
        assert!(!is_free(12_956) && is_free(12_957));
    }

    #[test]
    fn who_is_silent_is_cut_sooner_before_it_has_greeted_and_never_while_it_is_not_listened_to() {
        let mut links = Links::default();
        let version = Some(wire::Version(3));
        for (osd, version) in [(1, version), (2, None), (3, version)] {
            links.insert_osd(LinkId(u64::from(osd)), OsdLink::new(OsdId(osd), version, at(0)));
        }
        links.osd_mut(LinkId(3)).expect("it is there").backlog = Backlog::InTheWay(at(0));
        assert!(links.was_heard(OsdId(1), at(499)) && !links.was_heard(OsdId(2), at(499)));
        // Who is cut, and who is asked for a lease.
        let renewed = |milliseconds| {
            let (mut presence, mut network) = (Presence::default(), Surroundings::default());
            let silent = presence.renew(&links, &Groups::default(), true, at(milliseconds), &mut network);
            (silent, network.to.into_keys().collect::<Vec<_>>())
        };
        let of = |numbers: &[u64]| numbers.iter().copied().map(LinkId).collect::<Vec<_>>();
        assert_eq!(renewed(999), (of(&[]), of(&[1, 3])));
        assert_eq!(renewed(1000), (of(&[2]), of(&[1, 3])));
        assert_eq!(renewed(7999), (of(&[2]), of(&[1, 3])));
        assert_eq!(renewed(8000), (of(&[1, 2]), of(&[3])));
    }

    #[test]
    fn short_leases_are_asked_for_while_there_is_work_or_somebody_is_away_or_catches_up() {
        let links = linked(true, at(1000));
        let (mut presence, mut groups) = (Presence::default(), Groups::default());
        for index in 0..2 {
            groups.add(group(index, &[0, 1], &[], &[0, 1]));
        }
        let (short, long) = ([LEASE.as_millis() as u32], [LEASE_MS_MAX]);
        let asked = |presence: &mut Presence, groups: &Groups, is_busy| {
            let mut network = Surroundings::default();
            assert!(presence.renew(&links, groups, is_busy, at(1000), &mut network).is_empty());
            network.told(LinkId(1), |message| match message {
                Message::Lease(lease) => Some(lease.ttl_ms),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(asked(&mut presence, &groups, false), long);
        assert!(asked(&mut presence, &groups, false).is_empty(), "it is not due again");
        assert_eq!(asked(&mut presence, &groups, true), short);
        assert_eq!(asked(&mut presence, &groups, false), long);
        presence.away_since.insert(OTHER, at(1000));
        assert_eq!(asked(&mut presence, &groups, false), short);
        presence.away_since.clear();
        assert_eq!(asked(&mut presence, &groups, false), long);
        let (osd, link, heard_at) = (OsdId(2), LinkId(2), at(1000));
        let learner = Learner { osd, link, session: 1, heard_at, joined: None };
        groups[1].learning_mut().expect("it is led here").learners.push(learner);
        assert_eq!(asked(&mut presence, &groups, false), short);
    }
}
