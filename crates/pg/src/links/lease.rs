//! Leases between OSDs: who may count on not being replaced.
//!
//! A primary serves reads only while every in-sync replica has promised not to take its groups over. It asks for
//! that promise again and again; the promise covers all groups in which the one is primary and the other is not.
//!
//! # Why a read is never stale
//! The primary counts a lease from the moment it *sent* the request, the replica its promise from the moment it
//! *received* it, which is later; and the promise is longer than the lease by more than two clocks can drift
//! apart ([`promise_for`]). So while the lease lasts, the promise does. Each side uses its own monotonic clock,
//! and only to measure how long something took.
//!
//! A later request *replaces* an earlier one, on both sides. The primary gives the earlier lease up when it sends
//! the later request, so that the replica may shorten its promise when it receives it.
//!
//! An OSD that starts does not know what it promised in an earlier life, and waits for as long as any promise
//! can last.
//!
//! Leases come on the connection of replication, and do not wait for what is in the way there: see [`super::backlog`].

use crate::broken::{Broken, Sabotage};
use base::{Instant, OsdId};
use std::time::Duration;
use wire::{LEASE_MS_MAX, Lease};

/// How long a lease lasts while there is work.
pub(crate) const LEASE: Duration = Duration::from_millis(900);
/// How often it is asked for then.
const RENEW: Duration = Duration::from_millis(250);
/// How long a lease lasts while nothing is to do: few wake-ups, and a slow failover that nobody waits for.
const LEASE_AT_REST: Duration = Duration::from_millis(LEASE_MS_MAX as u64);
/// How often it is asked for then.
const RENEW_AT_REST: Duration = Duration::from_millis(1900);

/// Requests that may be answered: with more under way the other is too slow to count on.
const ASKED_MAX: usize = 8;

/// How long a promise lasts for a lease of `ttl`. A sixteenth more: both clocks may be wrong by up to 3 %, while
/// the quartz of any computer is right to 0.02 %.
fn promise_for(ttl: Duration) -> Duration {
    ttl + ttl / 16
}

/// What stands between this OSD and another.
#[derive(Clone, Copy, Debug, Default)]
struct PeerLease {
    /// When this OSD asked, and for how long: the newest requests, newest first.
    asked: [Option<(Instant, Duration)>; ASKED_MAX],
    /// Until when this OSD holds the other's promise.
    until: Instant,
    /// Until when this OSD has promised the other.
    promised_until: Instant,
}

/// The leases of one OSD, by the other's number.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    peers: Vec<PeerLease>,
    /// When this OSD began to count: promises of an earlier life end at the latest so much later.
    started: Option<Instant>,
    broken: Broken,
}

impl Leases {
    pub(crate) fn new(broken: Broken) -> Leases {
        Leases { broken, ..Leases::default() }
    }

    fn peer(&mut self, osd: OsdId) -> &mut PeerLease {
        let index = osd.0 as usize;
        if index >= self.peers.len() {
            self.peers.resize(index + 1, PeerLease::default());
        }
        &mut self.peers[index]
    }

    /// Notes that this OSD runs. Only the first call counts.
    pub(crate) fn start(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// When this OSD began to run.
    pub(crate) fn started(&self) -> Instant {
        self.started.unwrap_or_default()
    }

    /// Whether it is time to ask that OSD again.
    pub(crate) fn is_due(&self, osd: OsdId, now: Instant, is_busy: bool) -> bool {
        let (every, wanted) = if is_busy { (RENEW, LEASE) } else { (RENEW_AT_REST, LEASE_AT_REST) };
        let asked = self.peers.get(osd.0 as usize).and_then(|peer| peer.asked[0]);
        // When work begins or ends, the other kind of lease is asked for at once.
        asked.is_none_or(|(at, ttl)| now.since(at) >= every || ttl != wanted)
    }

    /// Whether it will be time, at rest, so soon that it may as well be now.
    pub(crate) fn is_nearly_due(&self, osd: OsdId, now: Instant) -> bool {
        let asked = self.peers.get(osd.0 as usize).and_then(|peer| peer.asked[0]);
        asked.is_none_or(|(at, _)| now.since(at) >= RENEW_AT_REST / 2)
    }

    /// The request to send now.
    pub(crate) fn ask(&mut self, osd: OsdId, now: Instant, is_busy: bool) -> Lease {
        let ttl = if is_busy { LEASE } else { LEASE_AT_REST };
        let peer = self.peer(osd);
        // The other's promise may become this short, so the lease does.
        peer.until = peer.until.min(now + ttl);
        peer.asked.rotate_right(1);
        peer.asked[0] = Some((now, ttl));
        Lease { ttl_ms: ttl.as_millis() as u32, stamp: now.nanoseconds, ..Lease::default() }
    }

    /// The other promised.
    pub(crate) fn granted(&mut self, osd: OsdId, lease: &Lease) {
        let peer = self.peer(osd);
        let stamp = Instant { nanoseconds: lease.granted_stamp };
        // Of an older request, no more than what each later one leaves: the other may have heard any of them.
        let mut until: Option<Instant> = None;
        for (at, ttl) in peer.asked.iter().copied().map_while(|asked| asked) {
            until = Some(until.map_or(at + ttl, |until| until.min(at + ttl)));
            if at == stamp {
                peer.until = peer.until.max(until.expect("it was just set"));
                return;
            }
        }
    }

    /// This OSD promises.
    pub(crate) fn promise(&mut self, osd: OsdId, now: Instant, ttl_ms: u32) {
        self.peer(osd).promised_until = now + promise_for(Duration::from_millis(u64::from(ttl_ms)));
    }

    /// This OSD promises nothing more. What it promised before lasts no longer than what was asked for: the other gave that up
    /// when it asked.
    pub(crate) fn refuse(&mut self, osd: OsdId, now: Instant, ttl_ms: u32) {
        let asked_until = now + promise_for(Duration::from_millis(u64::from(ttl_ms)));
        let peer = self.peer(osd);
        peer.promised_until = peer.promised_until.min(asked_until);
    }

    /// Whom this OSD has promised something that still binds it.
    pub(crate) fn promised(&self, now: Instant) -> impl Iterator<Item = OsdId> + '_ {
        let peers = (0u32..).zip(&self.peers);
        peers.filter(move |(_, peer)| peer.promised_until > now).map(|(osd, _)| OsdId(osd))
    }

    /// Whether this OSD holds the other's promise.
    pub(crate) fn holds(&self, osd: OsdId, now: Instant) -> bool {
        let holds = self.peers.get(osd.0 as usize).is_some_and(|peer| peer.until > now);
        holds || self.broken.is(Sabotage::SkipLease)
    }

    /// Whether what this OSD promised in an earlier life, which it does not know, may still bind it.
    pub(crate) fn may_have_forgotten(&self, now: Instant) -> bool {
        now < self.started() + promise_for(LEASE_AT_REST)
    }

    /// Whether this OSD promised the other nothing that still binds it.
    pub(crate) fn is_free_of(&self, osd: OsdId, now: Instant) -> bool {
        let promised = self.peers.get(osd.0 as usize).map_or(Instant::default(), |peer| peer.promised_until);
        now >= promised && !self.may_have_forgotten(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: OsdId = OsdId(1);

    fn at(milliseconds: u64) -> Instant {
        Instant { nanoseconds: milliseconds * 1_000_000 }
    }

    fn grant(asked: &Lease) -> Lease {
        Lease { granted_ttl_ms: asked.ttl_ms, granted_stamp: asked.stamp, ..Lease::default() }
    }

    #[test]
    fn a_lease_counts_from_when_it_was_asked_for() {
        let mut leases = Leases::default();
        let asked = leases.ask(PEER, at(1000), true);
        assert!(!leases.holds(PEER, at(1000)));
        leases.granted(PEER, &grant(&asked));
        assert!(leases.holds(PEER, at(1899)) && !leases.holds(PEER, at(1900)));
    }

    #[test]
    fn a_shorter_lease_replaces_a_longer_one_as_soon_as_it_is_asked_for() {
        let mut leases = Leases::default();
        let long = leases.ask(PEER, at(0), false);
        leases.granted(PEER, &grant(&long));
        assert!(leases.holds(PEER, at(5000)));
        let _short = leases.ask(PEER, at(100), true);
        assert!(leases.holds(PEER, at(999)) && !leases.holds(PEER, at(1000)));
        // The answer to the long one comes late.
        leases.granted(PEER, &grant(&long));
        assert!(!leases.holds(PEER, at(1000)));
    }

    #[test]
    fn what_was_not_asked_for_is_not_granted() {
        let mut leases = Leases::default();
        let forged =
            Lease { granted_ttl_ms: LEASE_MS_MAX, granted_stamp: at(50).nanoseconds, ..Lease::default() };
        leases.granted(PEER, &forged);
        assert!(!leases.holds(PEER, at(60)));
        let asked = leases.ask(PEER, at(10), true);
        leases.granted(PEER, &forged);
        assert!(!leases.holds(PEER, at(11)));
        leases.granted(PEER, &grant(&asked));
        assert!(leases.holds(PEER, at(11)));
    }

    #[test]
    fn a_promise_outlasts_its_lease_and_a_start_waits_for_the_longest() {
        let mut leases = Leases::default();
        leases.start(at(0));
        assert!(!leases.is_free_of(PEER, at(6374)) && leases.is_free_of(PEER, at(6375)));
        leases.promise(PEER, at(10_000), 900);
        assert!(!leases.is_free_of(PEER, at(10_950)) && leases.is_free_of(PEER, at(10_957)));
        let promised = |at| leases.promised(at).collect::<Vec<_>>();
        assert_eq!((promised(at(10_950)), promised(at(10_957))), (vec![PEER], vec![]));
    }

    #[test]
    fn who_is_refused_was_promised_what_it_asked_for_at_most_and_no_more_however_often_it_asks() {
        let mut leases = Leases::default();
        leases.start(at(0));
        leases.promise(PEER, at(10_000), LEASE_MS_MAX);
        // One that would last longer leaves the promise as it is.
        leases.refuse(PEER, at(10_100), LEASE_MS_MAX);
        assert!(!leases.is_free_of(PEER, at(16_374)) && leases.is_free_of(PEER, at(16_375)));
        for asked in [10_200, 10_450, 10_700] {
            leases.refuse(PEER, at(asked), 900);
            assert!(!leases.is_free_of(PEER, at(11_156)) && leases.is_free_of(PEER, at(11_157)));
        }
        leases.refuse(OsdId(5), at(12_000), 900);
        assert!(leases.is_free_of(OsdId(5), at(12_000)), "it was promised nothing");
    }

    #[test]
    fn the_answer_to_an_older_request_counts_for_as_much_as_those_after_it_leave() {
        let mut leases = Leases::default();
        let asked: Vec<Lease> =
            (0..=ASKED_MAX as u64).map(|number| leases.ask(PEER, at(1000 + 10 * number), true)).collect();
        leases.granted(PEER, &grant(&asked[0]));
        assert!(!leases.holds(PEER, at(1090)), "too many were sent since");
        leases.granted(PEER, &grant(&asked[1]));
        assert!(leases.holds(PEER, at(1909)) && !leases.holds(PEER, at(1910)));
    }

    #[test]
    fn a_lease_is_asked_for_again_long_before_it_ends_and_at_once_when_another_kind_is_wanted() {
        let mut leases = Leases::default();
        assert!(leases.is_due(PEER, at(1000), true) && leases.is_nearly_due(PEER, at(1000)));
        let _busy = leases.ask(PEER, at(1000), true);
        assert!(!leases.is_due(PEER, at(1249), true) && leases.is_due(PEER, at(1250), true));
        assert!(leases.is_due(PEER, at(1001), false));
        let _at_rest = leases.ask(PEER, at(2000), false);
        assert!(!leases.is_due(PEER, at(3899), false) && leases.is_due(PEER, at(3900), false));
        assert!(!leases.is_nearly_due(PEER, at(2949)) && leases.is_nearly_due(PEER, at(2950)));
    }

    #[test]
    fn what_stands_between_this_osd_and_another_is_nothing_to_a_third() {
        let mut leases = Leases::default();
        let (low, high) = (OsdId(2), OsdId(5));
        let asked = leases.ask(high, at(10_000), true);
        leases.granted(high, &grant(&asked));
        leases.promise(high, at(10_000), 900);
        let _not_granted = leases.ask(low, at(10_000), true);
        leases.promise(low, at(10_000), LEASE_MS_MAX);
        assert!([OsdId(0), low, OsdId(9)].into_iter().all(|osd| !leases.holds(osd, at(10_899))));
        assert!(leases.holds(high, at(10_899)));
        // To the nanosecond.
        let ends = at(10_000) + Duration::from_micros(956_250);
        let before = Instant { nanoseconds: ends.nanoseconds - 1 };
        let promised = |at| leases.promised(at).collect::<Vec<_>>();
        assert_eq!((promised(before), promised(ends)), (vec![low, high], vec![low]));
        assert!(!leases.is_free_of(high, before) && leases.is_free_of(high, ends));
        assert!(!leases.is_free_of(low, ends));
    }
}
