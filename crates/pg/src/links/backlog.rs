//! What another OSD sent and cannot be handled yet.
//!
//! A message that has to come again stays where it came in, and so does what came behind it: nothing more is received on its
//! connection meanwhile. Between OSDs that is borne for a moment only, for their leases come on the same connection: a drive
//! that takes nothing for a second would end every epoch that its OSD is part of. So what is in the way for longer is put
//! aside, in order, and whatever comes is received on. Leases are handled as they come, or not at all; all else is put behind
//! what was put aside, which is taken up again with every turn.
//!
//! A lease may overtake whatever came before it but another lease: what it asks for replaces what was asked for before. A promise binds whoever gives it from when it was given, whatever else it
//! knows by then, and a lease counts from when it was asked for. What must be known before anything is promised, the
//! generations of volumes, is told as the first thing on a connection, before anything that can be in the way.
//!
//! A drive that takes nothing for long may take nothing any more. Whoever waits for it is to go on without it: so leases are
//! answered for so long only.

use super::{Links, Peer};
use base::{Instant, LinkId};
use std::time::Duration;

/// How long a message may be in the way before it is put aside: less than half of how often leases are asked for.
const IN_THE_WAY_MAX: Duration = Duration::from_millis(100);

/// How long leases are answered while nothing else can be handled. With the rest of a lease, and the moment that its primary
/// waits for a member that is away, this is less than the 5 s after which clients give a connection up.
const LEASES_ANSWERED_MAX: Duration = Duration::from_secs(3);

/// The most bytes that are put aside of one OSD. It may have more than that under way; what it sends then stays in its
/// connection, leases among it.
const ASIDE_BYTES_MAX: usize = 4 << 20;

/// The same of all OSDs together.
pub(super) const ASIDE_BYTES_ALL_MAX: usize = 64 << 20;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) enum Backlog {
    /// All was handled that came.
    #[default]
    None,
    /// The first message of those that are there is in the way, since then.
    InTheWay(Instant),
    /// It was put aside, with what came behind it.
    Aside(Aside),
}

/// Whole messages, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    bytes: Vec<u8>,
    /// How many of these were handled.
    done: usize,
    /// Since when nothing can be handled.
    since: Instant,
}

impl Aside {
    /// What is still to be handled.
    pub(crate) fn left(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    /// The first message of what is left was handled.
    pub(crate) fn was_handled(&mut self, size: usize, now: Instant) {
        (self.done, self.since) = (self.done + size, now);
    }
}

impl Backlog {
    /// A message cannot be handled, or is behind one that was put aside. Answers whether it is to be put aside too.
    pub(super) fn is_to_be_put_aside(&mut self, size: usize, now: Instant) -> bool {
        match self {
            Backlog::None => {
                *self = Backlog::InTheWay(now);
                false
            }
            Backlog::InTheWay(since) => now.since(*since) >= IN_THE_WAY_MAX,
            Backlog::Aside(aside) => aside.left().len() + size <= ASIDE_BYTES_MAX,
        }
    }

    /// Puts a whole message aside that is to be. Answers whether it is the first.
    pub(super) fn put_aside(&mut self, message: &[u8]) -> bool {
        let is_first = if let Backlog::InTheWay(since) = *self {
            *self = Backlog::Aside(Aside { since, ..Aside::default() });
            true
        } else {
            false
        };
        let Backlog::Aside(aside) = self else { panic!("only what is in the way is put aside") };
        if aside.bytes.len() + message.len() > ASIDE_BYTES_MAX {
            aside.bytes.drain(..aside.done);
            aside.done = 0;
        }
        aside.bytes.extend_from_slice(message);
        is_first
    }

    /// How much is put aside.
    pub(super) fn bytes(&self) -> usize {
        if let Backlog::Aside(aside) = self { aside.left().len() } else { 0 }
    }

    /// Whether a lease that comes is handled, whatever came before it.
    pub(crate) fn lets_leases_by(&self, now: Instant) -> bool {
        match self {
            Backlog::None | Backlog::InTheWay(_) => true,
            Backlog::Aside(aside) => now.since(aside.since) < LEASES_ANSWERED_MAX,
        }
    }
}

/// Checks that what was put aside is within these bounds.
///
/// # Errors
/// How much it is.
pub(crate) fn check_bounds(links: &Links) -> Result<(), String> {
    let aside = |link: &LinkId| match links.get(*link) {
        Some(Peer::Osd(peer)) => peer.backlog.bytes(),
        _ => 0,
    };
    let most = links.osds.values().map(aside).max().unwrap_or(0);
    let in_all: usize = links.osds.values().map(aside).sum();
    match most <= ASIDE_BYTES_MAX && in_all <= ASIDE_BYTES_ALL_MAX {
        true => Ok(()),
        false => Err(format!("{in_all} bytes were put aside, {most} of one OSD")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::context::Shared;
    use crate::links::OsdLink;
    use crate::operation::{OperationKind, Purpose};
    use crate::osd::Progress;
    use crate::replication::order;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::map::{OsdInfo, PgConfig};
    use base::{BlockRange, Epoch, LinkId, ObjectKey, OsdId, PgId, Sequence};
    use std::sync::Arc;
    use wire::{Activate, Kind, Lease, Message, Replicate};

    const EPOCH: Epoch = Epoch(9);

    /// A replica that another OSD leads, on that link, in one group. In the other, which it leads itself, so much is ordered
    /// that its store takes no more until its drive has written.
    fn busy() -> (Alone, LinkId) {
        let mut alone = Alone::with_groups(2);
        let (me, primary) = (OsdId(0), OsdId(1));
        let link = alone.connect(primary);
        let mut map = map(2);
        map.revision = 2;
        map.osds.insert(primary, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
        let in_sync = vec![primary, me];
        map.targets.insert(PG, in_sync.clone());
        let own = alone.osd.shared.groups[1].config.clone();
        map.pgs.insert(PgId { index: 1, ..PG }, own);
        map.pgs.insert(PG, PgConfig { epoch: EPOCH, primary, in_sync, ..PgConfig::default() });
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.query(link, PG, 2, EPOCH);
        alone.with(|_, cx| {
            let key = ObjectKey { pg: PgId { index: 1, ..PG }, layer: VOLUME.first_layer(), object: 3 };
            for first_block in 0.. {
                let range = BlockRange { key, first_block, block_count: 1 };
                let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 1, range);
                if !order::zero(cx, id) {
                    return cx.operations.remove(id);
                }
            }
        });
        alone.io.to.clear();
        (alone, link)
    }

    fn comes(alone: &mut Alone, link: LinkId, bytes: &[u8]) -> Progress {
        alone.osd.handle_bytes(alone.now, link, bytes, &mut alone.io).unwrap()
    }

    /// How many leases were granted since the last time.
    fn granted(alone: &mut Alone, link: LinkId) -> usize {
        let is_grant =
            |message: Message<'_>| matches!(message, Message::Lease(lease) if lease.granted_ttl_ms > 0);
        alone.io.told(link, |message| is_grant(message).then_some(())).len()
    }

    fn activate() -> Vec<u8> {
        Activate { pg: PG, epoch: EPOCH, mark: Sequence(50), join: None }.encode().to_vec()
    }

    /// The first write behind that.
    fn zero() -> Vec<u8> {
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let range = BlockRange { key, first_block: 0, block_count: 1 };
        let zero = Replicate { range, epoch: EPOCH, sequence: Sequence(51), origin: 0 };
        zero.encode(Kind::ReplicateZero).to_vec()
    }

    fn lease() -> Vec<u8> {
        Lease { ttl_ms: 900, stamp: 5, ..Lease::default() }.encode().to_vec()
    }

    #[test]
    fn a_lease_does_not_wait_for_what_has_to_come_again() {
        let (mut alone, link) = busy();
        let bytes = [activate(), lease()].concat();
        assert_eq!(comes(&mut alone, link, &bytes), Progress { consumed: 0, is_stalled: true });
        assert_eq!(granted(&mut alone, link), 0, "for a moment it does");
        alone.now = alone.now + IN_THE_WAY_MAX;
        assert_eq!(comes(&mut alone, link, &bytes), Progress { consumed: bytes.len(), is_stalled: false });
        assert_eq!(granted(&mut alone, link), 1);
        // Whatever comes then is received.
        let more = [lease(), zero(), lease()].concat();
        assert_eq!(comes(&mut alone, link, &more), Progress { consumed: more.len(), is_stalled: false });
        assert_eq!(granted(&mut alone, link), 2);
        assert_eq!(alone.osd.shared.links.osd_mut(link).unwrap().received, 0, "and not handled out of order");
        // The drive writes.
        for _ in 0..8 {
            alone.drive_answers();
            alone.osd.end_turn(alone.now, &mut alone.io);
        }
        let peer = alone.osd.shared.links.osd_mut(link).unwrap();
        assert_eq!((peer.received, peer.durable), (2, 2));
        assert!(matches!(peer.backlog, Backlog::None));
        assert!(alone.osd.shared.links.with_aside.is_empty());
    }

    #[test]
    fn what_is_presented_again_is_no_sign_of_life_and_who_is_not_listened_to_is_not_silent() {
        let (mut alone, link) = busy();
        let heard_at = |alone: &mut Alone| alone.osd.shared.links.osd_mut(link).unwrap().heard_at;
        comes(&mut alone, link, &activate());
        let came_at = alone.now;
        for _ in 0..3 {
            alone.now = alone.now + IN_THE_WAY_MAX / 4;
            assert_eq!(comes(&mut alone, link, &activate()), Progress { consumed: 0, is_stalled: true });
            assert_eq!(heard_at(&mut alone), came_at);
        }
        comes(&mut alone, link, &[activate(), lease()].concat());
        assert_eq!(heard_at(&mut alone), alone.now, "something came");
        // It stays in the way, and nothing more is received: for so long that whoever is silent is cut off.
        let Shared { presence, links, groups, .. } = &mut alone.osd.shared;
        let later = alone.now + Duration::from_secs(60);
        assert!(presence.renew(links, groups, true, later, &mut alone.io).is_empty());
        links.osd_mut(link).unwrap().backlog = Backlog::None;
        assert_eq!(presence.renew(links, groups, true, later, &mut alone.io), [link]);
    }

    #[test]
    fn who_cannot_take_anything_for_long_grants_no_more_leases() {
        let (mut alone, link) = busy();
        comes(&mut alone, link, &activate());
        alone.now = alone.now + LEASES_ANSWERED_MAX;
        let bytes = [activate(), lease()].concat();
        assert_eq!(comes(&mut alone, link, &bytes).consumed, bytes.len());
        assert_eq!(granted(&mut alone, link), 0, "its primary is to go on without it");
        // Nor is it handled later, behind others that its primary may have asked for meanwhile.
        let aside = alone.osd.shared.links.osd_mut(link).unwrap().backlog.bytes();
        assert_eq!(aside, activate().len());
    }

    #[test]
    fn what_is_put_aside_is_bounded_and_stays_in_order() {
        let now = Instant::default() + IN_THE_WAY_MAX;
        let mut backlog = Backlog::default();
        assert!(!backlog.is_to_be_put_aside(100, Instant::default()));
        assert!(backlog.lets_leases_by(now) && backlog.is_to_be_put_aside(100, now));
        assert!(backlog.put_aside(&[1; 100]), "the first");
        let message = [2; 1 << 16];
        let mut count = 0;
        while backlog.is_to_be_put_aside(message.len(), now) {
            assert!(!backlog.put_aside(&message));
            count += 1;
        }
        assert_eq!(count, ASIDE_BYTES_MAX / message.len() - 1);
        assert!(backlog.lets_leases_by(now));
        let Backlog::Aside(aside) = &mut backlog else { panic!("so much was put aside") };
        assert_eq!(aside.left()[..101], [[1_u8; 100].as_slice(), &[2]].concat());
        // What was handled makes room, and time.
        let later = now + LEASES_ANSWERED_MAX;
        aside.was_handled(100, later);
        aside.was_handled(message.len(), later);
        assert!(backlog.lets_leases_by(later) && !backlog.lets_leases_by(later + LEASES_ANSWERED_MAX));
        for _ in 0..2 {
            assert!(backlog.is_to_be_put_aside(message.len(), later));
            backlog.put_aside(&message);
        }
        assert!(!backlog.is_to_be_put_aside(message.len(), later));
        assert_eq!(backlog.bytes(), ASIDE_BYTES_MAX);
        let Backlog::Aside(Aside { bytes, .. }) = backlog else { panic!("it is all there still") };
        assert!(bytes.len() <= ASIDE_BYTES_MAX);
    }

    /// Links to so many OSDs, of each of which so many bytes were put aside.
    fn with_aside(count: u32, bytes: usize) -> Links {
        let mut links = Links::default();
        for osd in 0..count {
            let backlog = Backlog::Aside(Aside { bytes: vec![0; bytes], ..Aside::default() });
            let peer = OsdLink { backlog, ..OsdLink::new(OsdId(osd), None, Instant::default()) };
            links.insert_osd(LinkId(u64::from(osd)), peer);
        }
        links
    }

    /// So many OSDs may have as much put aside as each may.
    const FULL: u32 = (ASIDE_BYTES_ALL_MAX / ASIDE_BYTES_MAX) as u32;

    #[test]
    fn what_is_put_aside_of_all_together_is_bounded() {
        let mut links = with_aside(FULL - 1, ASIDE_BYTES_MAX);
        let (one, other, now) = (LinkId(100), LinkId(101), Instant::default() + IN_THE_WAY_MAX);
        for link in [one, other] {
            let backlog = Backlog::InTheWay(Instant::default());
            let peer = OsdLink { backlog, ..OsdLink::new(OsdId(link.0 as u32), None, now) };
            links.insert_osd(link, peer);
        }
        assert!(links.put_aside(one, &vec![0; ASIDE_BYTES_MAX - 2], now));
        assert!(!links.put_aside(other, &[0; 3], now), "it stays in its connection");
        assert!(links.put_aside(other, &[0; 1], now) && links.put_aside(other, &[0; 1], now));
        assert_eq!(check_bounds(&links), Ok(()));
        assert!(!links.put_aside(other, &[0; 1], now));
        links.osd_mut(one).unwrap().backlog = Backlog::None;
        assert!(links.put_aside(other, &[0; 1], now), "there is room again");
        assert_eq!(links.with_aside, [one, other], "each is taken up once in a turn");
    }

    #[test]
    fn more_put_aside_than_may_be_of_one_or_of_all_is_found() {
        assert_eq!(check_bounds(&Links::default()), Ok(()));
        assert_eq!(check_bounds(&with_aside(FULL, ASIDE_BYTES_MAX)), Ok(()));
        assert!(check_bounds(&with_aside(2 * FULL, ASIDE_BYTES_MAX / 2 + 1)).is_err());
        let mut links = with_aside(2, 0);
        let aside = Aside { bytes: vec![0; ASIDE_BYTES_MAX + 1], ..Aside::default() };
        links.osd_mut(LinkId(1)).unwrap().backlog = Backlog::Aside(aside);
        assert!(check_bounds(&links).is_err());
    }
}
