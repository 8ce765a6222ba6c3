//! Who is there: connections to the other OSDs, and the leases that both sides ask for and grant.
//!
//! The rules of leases are in [`crate::lease`]; here they meet connections and groups.

use crate::group::Group;
use crate::io::Io;
use crate::lease::LEASE;
use crate::osd::{Osd, OsdLink, Peer};
use base::{LinkId, OsdId};
use std::time::Duration;
use wire::encode;

/// How long another OSD may take to greet back: a connection that was dialled into a partition would be tried again by
/// TCP ever more rarely.
const WELCOME_MAX: Duration = Duration::from_secs(1);
/// A connection that brings nothing for so long, although the other end is asked for its lease, is cut.
const SILENCE_MAX: Duration = Duration::from_secs(8);
/// How long a member may be away before its groups go on without it: a process that is started anew is back
/// sooner.
const AWAY_MAX: Duration = Duration::from_millis(600);
/// How recently the members must have been heard that a group goes on with: twice as long as leases are asked for.
const HEARD_MAX: Duration = Duration::from_millis(500);
/// How long after its own start an OSD waits for the others: nodes do not start at the same moment.
const START_PATIENCE: Duration = Duration::from_secs(5);

impl Osd {
    /// Connects to the OSDs this one shares groups with. Of two, the one with the lower id dials, so that there
    /// is one link between them.
    pub(crate) fn dial(&mut self, io: &mut impl Io) {
        for index in 0..self.neighbours.len() {
            let osd = self.neighbours[index];
            let is_due = self.redial_after.get(&osd).is_none_or(|after| *after <= self.now);
            if osd < self.id || self.osd_links.contains_key(&osd) || !is_due {
                continue;
            }
            let address = self.map.osds.get(&osd).and_then(|info| info.address);
            if let Some(link) = address.and_then(|address| io.connect(address)) {
                self.osd_links.insert(osd, link);
                self.peers.insert(link, Peer::Osd(OsdLink::new(osd, false, self.now)));
            }
        }
    }

    /// Whether an OSD answers: the connection stands, and it grants leases, or was not asked for long.
    pub(crate) fn is_present(&self, osd: OsdId) -> bool {
        match self.osd_links.get(&osd).and_then(|link| self.peers.get(link)) {
            Some(Peer::Osd(peer)) if peer.is_ready => {
                self.leases.holds(osd, self.now) || self.now.since(peer.since) < LEASE
            }
            _ => false,
        }
    }

    /// Whether an OSD has not answered for so long that its groups go on without it.
    pub(crate) fn is_away(&self, osd: OsdId) -> bool {
        self.away_since.get(&osd).is_some_and(|since| self.now.since(*since) >= AWAY_MAX)
    }

    /// Whether something came from an OSD a moment ago. Who loses one member after the other may be the one that is cut
    /// off: before it goes on without the first it makes sure of the others.
    pub(crate) fn was_heard(&self, osd: OsdId) -> bool {
        match self.osd_links.get(&osd).and_then(|link| self.peers.get(link)) {
            Some(Peer::Osd(peer)) => peer.is_ready && self.now.since(peer.heard_at) < HEARD_MAX,
            _ => false,
        }
    }

    /// Notes who answers and who does not, among those this OSD shares groups with.
    pub(crate) fn look_around(&mut self) {
        let patience_ends = self.leases.started() + (START_PATIENCE - AWAY_MAX);
        for index in 0..self.neighbours.len() {
            let osd = self.neighbours[index];
            if self.is_present(osd) {
                self.away_since.remove(&osd);
            } else {
                let since = self.now.max(patience_ends);
                self.away_since.entry(osd).or_insert(since);
            }
        }
    }

    /// Finds out whom this OSD shares groups with.
    pub(crate) fn find_neighbours(&mut self) {
        let own = self.groups.iter().filter(|group| group.has_member(self.id));
        let mut osds: Vec<OsdId> = own.flat_map(Group::members).collect();
        osds.sort_unstable();
        osds.dedup();
        osds.retain(|osd| *osd != self.id);
        self.away_since.retain(|osd, _| osds.contains(osd));
        self.neighbours = osds;
    }

    /// Asks for leases where they are due, and cuts connections that nothing comes through.
    pub(crate) fn renew_leases(&mut self, io: &mut impl Io) {
        // While somebody is away, whoever is left is to be heard often: see `was_heard`.
        let is_busy = self.is_busy()
            || !self.away_since.is_empty()
            || self.groups.iter().any(|group| !group.learners.is_empty());
        let mut silent = Vec::new();
        for (&osd, &link) in &self.osd_links {
            let Some(Peer::Osd(peer)) = self.peers.get(&link) else { continue };
            let patience = if peer.is_ready { SILENCE_MAX } else { WELCOME_MAX };
            if self.now.since(peer.heard_at) >= patience {
                silent.push(link);
            } else if peer.is_ready && self.leases.is_due(osd, self.now, is_busy) {
                let lease = self.leases.ask(osd, self.now, is_busy);
                io.send(link, &encode::lease(&lease));
            }
        }
        for link in silent {
            io.close(link, "the OSD is silent");
            self.handle_closed(self.now, link, "it is silent", io);
        }
    }

    /// An OSD asks for a lease, or grants one.
    pub(crate) fn handle_lease(&mut self, link: LinkId, lease: &wire::Lease, io: &mut impl Io) {
        let Some(osd) = self.osd_link_mut(link).map(|peer| peer.osd) else { return };
        if lease.granted_ttl_ms > 0 {
            self.leases.granted(osd, lease);
        }
        if lease.ttl_ms > 0 {
            self.leases.promise(osd, self.now, lease.ttl_ms);
            // Asking in the same message, a little early, saves both sides a wake-up.
            let is_busy = self.is_busy();
            let own = if !is_busy && self.leases.is_nearly_due(osd, self.now) {
                self.leases.ask(osd, self.now, is_busy)
            } else {
                wire::Lease::default()
            };
            let answer = wire::Lease { granted_ttl_ms: lease.ttl_ms, granted_stamp: lease.stamp, ..own };
            io.send(link, &encode::lease(&answer));
        }
    }

    /// Whether no replica of a group may take it over now: only then may what is read be served.
    pub(crate) fn has_leases(&self, group: u32) -> bool {
        let in_sync = &self.groups[group as usize].config.in_sync;
        in_sync.iter().all(|osd| *osd == self.id || self.leases.holds(*osd, self.now))
    }
}
