//! The links of an OSD: who is at the other end of each, and what may be said on it.
//!
//! [`access`] tells what somebody may do, [`tenants`] with whom it shares, [`lease`] who may count on not being replaced,
//! [`presence`] who is there at all, [`backlog`] what becomes of what cannot be handled yet, [`inquiries`] of what somebody
//! asks who does not take the answers, and [`unacknowledged`] how much of what it does not take it was sent as a learner.

pub(crate) mod access;
pub(crate) mod backlog;
pub(crate) mod inquiries;
pub(crate) mod lease;
pub(crate) mod presence;
pub(crate) mod tenants;
pub(crate) mod unacknowledged;

use crate::operation::OperationId;
use access::{ClientLink, Credential};
use backlog::Backlog;
use base::hash::Map;
use base::{ClientId, ClusterId, Instant, LinkId, OsdId, Tenant};
use inquiries::Inquiries;
use std::collections::BTreeMap;
use std::sync::Arc;
use tenants::Tenants;
use unacknowledged::Unacknowledged;
use wire::{ReplicateAck, Version, WireError};

/// Why a link is of no use any more: close it with this reason, and tell the peer.
#[derive(thiserror::Error, Debug)]
pub enum LinkError {
    /// It sent what is no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It belongs elsewhere.
    #[error("this is cluster {ours}, not {theirs}; use the address of an OSD of your cluster")]
    OtherCluster {
        /// This OSD's.
        ours: ClusterId,
        /// The peer's.
        theirs: ClusterId,
    },
    /// It wanted another OSD.
    #[error("this is {ours}, not {theirs}; the address in your map is out of date")]
    OtherOsd {
        /// This one.
        ours: OsdId,
        /// Whom the peer wanted.
        theirs: OsdId,
    },
    /// It sent a message out of turn.
    #[error("a message came out of turn: {0}")]
    OutOfTurn(&'static str),
    /// An OSD that this cluster's map does not show.
    #[error("{0} is not an OSD of this cluster")]
    UnknownOsd(OsdId),
    /// Its key does not allow that.
    #[error("the key {name} must not {what}; `millpond auth ls` shows what it may do")]
    NotAllowed {
        /// The key's name.
        name: Arc<str>,
        /// What it wanted to.
        what: &'static str,
    },
    /// Its key has as many connections as one may.
    #[error(
        "the key {name} has {max} connections to this OSD already, as many as one key may; give each machine a key of its own \
         (`millpond auth add`), or end some"
    )]
    TooMany {
        /// The key's name.
        name: Arc<str>,
        /// How many.
        max: usize,
    },
    /// Clients have as many connections as they may, all together.
    #[error(
        "clients have {max} connections to this OSD already, as many as it takes of them; end some, or try again later"
    )]
    TooManyClients {
        /// How many.
        max: usize,
    },
    /// Its key was removed, or replaced.
    #[error("the key {0} was removed or replaced; `millpond auth ls` shows who has one")]
    KeyRemoved(Arc<str>),
    /// This OSD serves nothing, for now or for good.
    #[error("{0} stops, or its drive failed or does nothing")]
    Stopped(OsdId),
    /// An OSD that has itself answered and does not take the answers.
    #[error("{0} asks and asks, and does not take what it is sent")]
    TakesNothing(OsdId),
    /// It refused us.
    #[error("refused: {0}")]
    Refused(String),
}

/// What the acknowledgement of a replicated message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// A write, at a member in sync.
    Write(OperationId),
    /// What a learner of this group was sent.
    Learner { group: u32, session: u32, sent: ToLearner },
}

/// What a learner is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToLearner {
    /// What its log is to say: nobody waits for it.
    Entry,
    /// A client's write of so many blocks: the same.
    Write { blocks: u16 },
    /// The mark of its join.
    Mark,
    /// What it lacked, and for how many blocks that counts.
    Push { cost: u16 },
}

/// Who is at the other end of a link.
#[derive(Debug)]
pub(crate) enum Peer {
    /// It connected and has not said yet.
    Unknown(Option<Credential>),
    Client(ClientLink),
    Osd(OsdLink),
}

/// The link to another OSD. Carries replication in both directions.
#[derive(Debug, Default)]
pub(crate) struct OsdLink {
    pub(crate) osd: OsdId,
    /// Whose key is there, if that is checked.
    pub(crate) credential: Option<Credential>,
    /// Which version of the protocol is spoken on it. None before the welcome.
    pub(crate) version: Option<Version>,
    /// When it was dialled, or became ready.
    pub(crate) since: Instant,
    /// When something came on it.
    pub(crate) heard_at: Instant,
    /// How many bytes were there and not handled when it was looked at last.
    pub(crate) unhandled: usize,
    /// Replicated messages sent on it.
    pub(crate) sent: u64,
    pub(crate) unacknowledged: Unacknowledged,
    /// Replicated messages received on it.
    pub(crate) received: u64,
    /// How many of those are on stable media here.
    pub(crate) durable: u64,
    pub(crate) needs_ack: bool,
    /// The peer is nearly full.
    pub(crate) is_full: bool,
    /// It takes no object that it has not.
    pub(crate) takes_no_objects: bool,
    pub(crate) backlog: Backlog,
    pub(crate) inquiries: Inquiries,
}

impl OsdLink {
    pub(crate) fn new(osd: OsdId, version: Option<Version>, now: Instant) -> OsdLink {
        OsdLink { osd, version, since: now, heard_at: now, ..OsdLink::default() }
    }

    /// Whether both ends have greeted.
    pub(crate) fn is_ready(&self) -> bool {
        self.version.is_some()
    }

    /// Whether what comes on it is received: not while something is in the way.
    pub(crate) fn is_listened_to(&self) -> bool {
        matches!(self.backlog, Backlog::None)
    }

    /// Notes that one more replicated message is sent.
    pub(crate) fn sends(&mut self, awaited: Awaited) {
        self.sent += 1;
        self.unacknowledged.add(self.sent, awaited);
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Links {
    peers: Map<LinkId, Peer>,
    osds: BTreeMap<OsdId, LinkId>,
    /// Clients draw their ids, and know nothing of those of others.
    clients: Map<(Tenant, ClientId), LinkId>,
    pub(crate) tenants: Tenants,
    /// Those whose link ended a moment ago.
    pub(crate) redial_after: BTreeMap<OsdId, Instant>,
    /// Links on which an acknowledgement is due.
    to_ack: Vec<LinkId>,
    /// Links of which something was put aside.
    pub(crate) with_aside: Vec<LinkId>,
    /// Links with inquiries that wait.
    pub(crate) with_inquiries: Vec<LinkId>,
    /// What this OSD said last: whether it is nearly full, and whether it takes no more objects.
    said: (bool, bool),
}

impl Links {
    pub(crate) fn get(&self, link: LinkId) -> Option<&Peer> {
        self.peers.get(&link)
    }

    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut Peer> {
        self.peers.get_mut(&link)
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = (LinkId, &Peer)> {
        self.peers.iter().map(|(link, peer)| (*link, peer))
    }

    /// The links to other OSDs, in the order of those.
    pub(crate) fn osds(&self) -> impl Iterator<Item = (OsdId, LinkId)> + '_ {
        self.osds.iter().map(|(osd, link)| (*osd, *link))
    }

    /// Notes who is at the end of a link.
    pub(crate) fn insert(&mut self, link: LinkId, peer: Peer) {
        if let Peer::Client(client) = &peer {
            self.clients.insert((self.tenants.of(link), client.id), link);
        }
        self.peers.insert(link, peer);
    }

    /// The link of a client.
    fn of_client(&self, tenant: Tenant, client: ClientId) -> Option<LinkId> {
        self.clients.get(&(tenant, client)).copied()
    }

    fn remove(&mut self, link: LinkId) -> Option<Peer> {
        let tenant = self.tenants.of(link);
        self.tenants.leave(link);
        let peer = self.peers.remove(&link)?;
        if let Peer::Client(client) = &peer
            && self.of_client(tenant, client.id) == Some(link)
        {
            self.clients.remove(&(tenant, client.id));
        }
        Some(peer)
    }

    /// So many bytes that came on a link are to be handled. What was there before says nothing new of who sent it.
    pub(crate) fn came(&mut self, link: LinkId, bytes: usize, now: Instant) {
        if let Some(peer) = self.osd_mut(link)
            && bytes > peer.unhandled
        {
            peer.heard_at = now;
        }
    }

    /// So many of them could not be handled.
    pub(crate) fn are_left(&mut self, link: LinkId, bytes: usize) {
        if let Some(peer) = self.osd_mut(link) {
            peer.unhandled = bytes;
        }
    }

    /// Notes the link to an OSD. Answers the one that there was before, of which nothing is known any more.
    pub(crate) fn insert_osd(&mut self, link: LinkId, peer: OsdLink) -> Option<LinkId> {
        let older = self.osds.insert(peer.osd, link);
        if let Some(older) = older {
            self.remove(older);
        }
        self.peers.insert(link, Peer::Osd(peer));
        older
    }

    /// Forgets a link without a word to anybody.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.remove(link);
    }

    /// A link ended. Answers which OSD cannot be reached any more; it is not dialled again before then.
    pub(crate) fn ended(&mut self, link: LinkId, redial_after: Instant) -> Option<OsdId> {
        let Some(Peer::Osd(peer)) = self.remove(link) else { return None };
        if self.osds.get(&peer.osd) != Some(&link) {
            return None;
        }
        self.osds.remove(&peer.osd);
        self.redial_after.insert(peer.osd, redial_after);
        Some(peer.osd)
    }

    /// The link to an OSD, whether it stands or not.
    pub(crate) fn link_of(&self, osd: OsdId) -> Option<LinkId> {
        self.osds.get(&osd).copied()
    }

    /// What is known of the link to an OSD.
    pub(crate) fn to(&self, osd: OsdId) -> Option<&OsdLink> {
        match self.peers.get(self.osds.get(&osd)?) {
            Some(Peer::Osd(peer)) => Some(peer),
            _ => None,
        }
    }

    /// The link to an OSD, if it stands.
    pub(crate) fn ready(&self, osd: OsdId) -> Option<LinkId> {
        self.to(osd).filter(|peer| peer.is_ready()).and_then(|_| self.link_of(osd))
    }

    /// The OSD at the end of a link.
    pub(crate) fn osd_mut(&mut self, link: LinkId) -> Option<&mut OsdLink> {
        match self.peers.get_mut(&link) {
            Some(Peer::Osd(peer)) => Some(peer),
            _ => None,
        }
    }

    /// Which OSD is at the end of a link.
    pub(crate) fn osd_at(&self, link: LinkId) -> Option<OsdId> {
        match self.peers.get(&link) {
            Some(Peer::Osd(peer)) => Some(peer.osd),
            _ => None,
        }
    }

    /// A whole message of a link cannot be handled yet, or is behind one that was put aside. Answers whether it was put aside
    /// too; else it stays where it came in. Those of clients always do.
    pub(crate) fn put_aside(&mut self, link: LinkId, message: &[u8], now: Instant) -> bool {
        let Some(peer) = self.osd_mut(link) else { return false };
        if !peer.backlog.is_to_be_put_aside(message.len(), now) {
            return false;
        }
        let peers = self.osds.values().filter_map(|link| self.peers.get(link));
        let of = |peer: &Peer| if let Peer::Osd(peer) = peer { peer.backlog.bytes() } else { 0 };
        let in_all: usize = peers.map(of).sum();
        if in_all + message.len() > backlog::ASIDE_BYTES_ALL_MAX {
            return false;
        }
        let peer = self.osd_mut(link).expect("it was there a moment ago");
        if peer.backlog.put_aside(message) {
            self.with_aside.push(link);
        }
        true
    }

    /// Whether it is time to dial an OSD: there is no link to it.
    pub(crate) fn may_dial(&self, osd: OsdId, now: Instant) -> bool {
        let is_due = self.redial_after.get(&osd).is_none_or(|after| *after <= now);
        !self.osds.contains_key(&osd) && is_due
    }

    /// Notes that something that came on a link is on stable media.
    pub(crate) fn note_ack(&mut self, link: LinkId, ordinal: u64) {
        let Some(Peer::Osd(peer)) = self.peers.get_mut(&link) else { return };
        peer.durable = peer.durable.max(ordinal);
        if !peer.needs_ack {
            peer.needs_ack = true;
            self.to_ack.push(link);
        }
    }

    /// The OSD at the end of a link has everything up to a message on stable media: see [`Self::next_had`].
    pub(crate) fn heard_ack(&mut self, link: LinkId, ack: &ReplicateAck) -> Result<(), LinkError> {
        let peer = self.osd_mut(link).expect("only OSDs acknowledge");
        if ack.through > peer.sent {
            return Err(LinkError::OutOfTurn("an acknowledgement of what was not sent"));
        }
        (peer.is_full, peer.takes_no_objects) = (ack.is_full, ack.takes_no_objects);
        Ok(())
    }

    /// The oldest message up to there that was not noted as acknowledged, if the link is still there.
    pub(crate) fn next_had(&mut self, link: LinkId, through: u64) -> Option<Awaited> {
        self.osd_mut(link)?.unacknowledged.pop_through(through)
    }

    /// The OSD at the end of a link did not apply a message: who, and what it was.
    pub(crate) fn refused(&mut self, link: LinkId, ordinal: u64) -> Option<(OsdId, Awaited)> {
        let peer = self.osd_mut(link)?;
        Some((peer.osd, peer.unacknowledged.remove(ordinal)?))
    }

    /// Acknowledges what became durable since the last call; to everybody, if whether this OSD is full changed, or whether it
    /// takes no more objects.
    pub(crate) fn send_acks(
        &mut self,
        is_full: bool,
        takes_no_objects: bool,
        network: &mut impl base::Network,
    ) {
        if (is_full, takes_no_objects) != self.said {
            self.said = (is_full, takes_no_objects);
            let links: Vec<_> = self.osds.values().copied().collect();
            for link in links {
                self.note_ack(link, 0);
            }
        }
        let mut links = std::mem::take(&mut self.to_ack);
        for link in links.drain(..) {
            if let Some(peer) = self.osd_mut(link) {
                peer.needs_ack = false;
                let ack = ReplicateAck { through: peer.durable, is_full, takes_no_objects };
                network.send(link, &ack.encode());
            }
        }
        self.to_ack = links;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Surroundings;
    use wire::Message;

    const VERSION: Option<Version> = Some(Version(3));

    #[test]
    fn a_link_that_was_replaced_ends_without_its_osd_being_lost() {
        let mut links = Links::default();
        let (osd, now) = (OsdId(3), Instant::default());
        assert_eq!(links.insert_osd(LinkId(1), OsdLink::new(osd, VERSION, now)), None);
        assert_eq!(links.insert_osd(LinkId(2), OsdLink::new(osd, VERSION, now)), Some(LinkId(1)));
        assert!(links.get(LinkId(1)).is_none(), "nothing that comes on it is listened to any more");
        assert_eq!(links.ended(LinkId(1), now), None);
        assert_eq!(links.ready(osd), Some(LinkId(2)));
        let later = now + std::time::Duration::from_secs(1);
        assert_eq!(links.ended(LinkId(2), later), Some(osd));
        assert!(!links.may_dial(osd, now) && links.may_dial(osd, later));
    }

    #[test]
    fn acknowledgements_are_taken_in_order_and_not_of_what_was_not_sent() {
        let mut links = Links::default();
        let link = LinkId(1);
        links.insert_osd(link, OsdLink::new(OsdId(3), VERSION, Instant::default()));
        let awaited = |group| Awaited::Learner { group, session: 0, sent: ToLearner::Entry };
        for group in 0..4 {
            links.osd_mut(link).expect("it is there").sends(awaited(group));
        }
        let ack = |through, is_full| ReplicateAck { through, is_full, takes_no_objects: false };
        assert!(links.heard_ack(link, &ack(5, false)).is_err());
        links.heard_ack(link, &ack(2, true)).expect("so much was sent");
        assert_eq!([0, 1].map(|_| links.next_had(link, 2)), [0, 1].map(|group| Some(awaited(group))));
        assert_eq!(links.next_had(link, 2), None);
        assert_eq!(links.refused(link, 4), Some((OsdId(3), awaited(3))));
        assert_eq!(links.refused(link, 4), None, "once");
        assert!(links.to(OsdId(3)).is_some_and(|peer| peer.is_full));
    }

    #[test]
    fn everybody_is_told_once_when_room_for_data_or_for_objects_ends_or_is_there_again() {
        let (mut links, mut network) = (Links::default(), Surroundings::default());
        let link = LinkId(1);
        links.insert_osd(link, OsdLink::new(OsdId(3), VERSION, Instant::default()));
        let mut told = |is_full, takes_no_objects| {
            links.send_acks(is_full, takes_no_objects, &mut network);
            let bytes = network.to.remove(&link)?;
            match wire::parse(&bytes).expect("it is sound").expect("it is whole").0 {
                Message::ReplicateAck(ack) => Some((ack.is_full, ack.takes_no_objects)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(false, false), None);
        assert_eq!(told(false, true), Some((false, true)));
        assert_eq!(told(false, true), None);
        assert_eq!(told(true, true), Some((true, true)));
        assert_eq!(told(false, false), Some((false, false)));
    }

    #[test]
    fn a_link_that_does_not_stand_yet_is_not_ready() {
        let mut links = Links::default();
        links.insert_osd(LinkId(1), OsdLink::new(OsdId(3), None, Instant::default()));
        assert_eq!((links.ready(OsdId(3)), links.link_of(OsdId(3))), (None, Some(LinkId(1))));
    }

    #[test]
    fn what_is_durable_is_acknowledged_once_to_whoever_sent_it() {
        let (mut links, mut network) = (Links::default(), Surroundings::default());
        let (first, second) = (LinkId(1), LinkId(2));
        for (link, osd) in [(first, OsdId(3)), (second, OsdId(4))] {
            links.insert_osd(link, OsdLink::new(osd, VERSION, Instant::default()));
        }
        // How far each is told that what it sent is durable.
        let mut told = |links: &mut Links, is_full| -> [Vec<u64>; 2] {
            links.send_acks(is_full, false, &mut network);
            [first, second].map(|link| {
                network.told(link, |message| match message {
                    Message::ReplicateAck(ack) => Some(ack.through),
                    other => panic!("{other:?}"),
                })
            })
        };
        for ordinal in [2, 3, 1] {
            links.note_ack(first, ordinal);
        }
        assert_eq!(told(&mut links, false), [vec![3], vec![]]);
        assert!(told(&mut links, false).iter().all(Vec::is_empty), "once");
        assert_eq!(told(&mut links, true), [vec![3], vec![0]], "everybody is told that it is full");
        links.note_ack(second, 7);
        assert_eq!(told(&mut links, true), [vec![], vec![7]]);
    }
}
