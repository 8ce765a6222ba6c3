//! Fences: nobody is served any more who attached a volume under an older generation.
//!
//! Who attaches a volume from a holder that did not say goodbye has a fence set up before it begins: the old holder may
//! run on, without the registry, by its last map. One member in sync of each placement group is enough for it. That OSD
//! takes the fence over as soon as its own map shows that generation. It sees to it that no primary serves by what it grants and
//! acknowledges unless that knows the fence too: each other OSD that it shares a group with has either answered that it does, or
//! has no connection to this one and no promise of it that still lasts, so that it lacks this member for reads and writes alike.
//! Others are told, and not waited for: before one of them serves by this OSD's word, that must have obeyed it, on the connection
//! on which it was told. On a connection that is made later each end tells the other of every generation that it knows by the
//! map before anything else.
//!
//! What a client says that the map does not show is nobody's word but its own. Other OSDs would take it for this one's, and
//! find that it lied. An honest client has read a map that shows its generation, so this OSD's is on its way; should it not come,
//! for this OSD has lost the registry, another member is asked as well, and this one is told by that.
//!
//! Why that is enough for epochs that begin afterwards is told in docs/protocol.md.

use crate::broken::Sabotage;
use crate::context::{Context, Handled};
use crate::io::Io;
use crate::links::Peer;
use base::{Instant, LinkId, OsdId, PublicKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::{Fence, Kind};

/// Fences of clients that may wait for other OSDs at the same time. Each is told to all of them.
const FENCING_MAX: usize = 1024;
/// The same of one key: a sixteenth, so that whoever stole one keeps nobody from taking volumes over. A host that takes over
/// hundreds of them waits with the rest; each is known within moments, or as late as the first for which an OSD that is away
/// is waited for.
const FENCING_PER_KEY_MAX: usize = 64;
/// The pace at which fences of one key are taken, in time from one to the next: whoever attaches a volume again and again makes
/// each OSD tell all others each time. So many as may wait may come at once.
const FENCE_PAUSE: Duration = Duration::from_millis(30);
/// How long a client's fence may wait in its connection, for the map or for its turn. Nothing is received there meanwhile, so that
/// nobody would notice that the client is gone. One that is there asks anew by then, or asks another member.
const WAITS_MAX: Duration = Duration::from_secs(20);

/// A client's fence that other OSDs are yet to know.
#[derive(Debug)]
struct Fencing {
    fence: Fence,
    client: LinkId,
    /// Whose the client is, if that is checked.
    key: Option<PublicKey>,
    awaited: Vec<Awaited>,
}

/// An OSD that may serve by this one's word, and does not know the fence yet as far as is known here.
#[derive(Debug)]
struct Awaited {
    osd: OsdId,
    /// The connection on which it was told.
    told_on: Option<LinkId>,
}

/// Fences that other OSDs are yet to know.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    fencing: Vec<Fencing>,
    paces: Paces,
}

/// Of keys whose fences came faster than at their pace, when they would all have come at it (the virtual scheduling algorithm,
/// ITU-T I.371).
#[derive(Debug, Default)]
struct Paces(BTreeMap<PublicKey, Instant>);

impl Paces {
    /// Whether it is time for one more fence of a key, which is counted then.
    fn takes(&mut self, key: PublicKey, now: Instant) -> bool {
        let at_pace = self.0.get(&key).map_or(now, |at_pace| now.max(*at_pace));
        if at_pace.since(now) > FENCE_PAUSE * (FENCING_PER_KEY_MAX as u32 - 1) {
            return false;
        }
        self.0.insert(key, at_pace + FENCE_PAUSE);
        true
    }

    fn forget_the_slow(&mut self, now: Instant) {
        self.0.retain(|_, at_pace| *at_pace > now);
    }
}

impl Fences {
    /// Whether all know all of them.
    pub(crate) fn is_idle(&self) -> bool {
        self.fencing.is_empty()
    }

    /// A client has a fence set up.
    pub(crate) fn handle_client_fence(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        fence: &Fence,
    ) -> Handled {
        if cx.volumes.map.revision == 0 {
            // Who else is to know it is not known yet, nor what an earlier life of this OSD promised.
            cx.io.close(link, "nothing is known of the cluster yet");
            return Handled::Done;
        }
        let key = cx.links.get(link).and_then(Peer::credential).map(|one| one.principal.public_key);
        let is_due = cx.volumes.shows(fence.volume, fence.generation) && self.has_room(cx, key);
        if !is_due || key.is_some_and(|key| !self.paces.takes(key, cx.now)) {
            return wait(cx, link);
        }
        if let Some(Peer::Client(client)) = cx.links.get_mut(link) {
            client.fence_waits_since = None;
        }
        let leases = &cx.presence.leases;
        let mut others: BTreeSet<OsdId> = cx.links.osds().map(|(osd, _)| osd).collect();
        others.extend(leases.promised(cx.now));
        if leases.may_have_forgotten(cx.now) {
            others.extend(cx.volumes.map.osds.keys());
        }
        others.remove(&cx.me.id);
        if cx.breaks(Sabotage::FenceAlone) {
            others.clear();
        }
        let awaited = others.into_iter().map(|osd| Awaited { osd, told_on: None }).collect();
        self.fencing.push(Fencing { fence: *fence, client: link, key, awaited });
        self.advance(cx);
        Handled::Done
    }

    /// Checks that no more fences wait than may.
    ///
    /// # Errors
    /// How many do.
    pub(crate) fn check_bounds(&self) -> Result<(), String> {
        let mut of_keys: BTreeMap<PublicKey, usize> = BTreeMap::new();
        for key in self.fencing.iter().filter_map(|fencing| fencing.key) {
            *of_keys.entry(key).or_default() += 1;
        }
        let (all, most) = (self.fencing.len(), of_keys.into_values().max().unwrap_or(0));
        match all <= FENCING_MAX && most <= FENCING_PER_KEY_MAX {
            true => Ok(()),
            false => Err(format!("{all} fences wait, {most} of one key")),
        }
    }

    /// Whether one more fence of a key may wait. Those of clients that are gone do not count.
    fn has_room(&mut self, cx: &Context<'_, impl Io>, key: Option<PublicKey>) -> bool {
        self.fencing.retain(|fencing| cx.links.get(fencing.client).is_some());
        let of_key = self.fencing.iter().filter(|fencing| fencing.key == key).count();
        self.fencing.len() < FENCING_MAX && (key.is_none() || of_key < FENCING_PER_KEY_MAX)
    }

    /// Another OSD knows a fence.
    pub(crate) fn handle_done(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, done: &Fence) {
        for fencing in &mut self.fencing {
            if fencing.fence.volume == done.volume && fencing.fence.generation <= done.generation {
                fencing.awaited.retain(|awaited| awaited.told_on != Some(link));
            }
        }
        self.advance(cx);
    }

    /// Tells the OSDs that are to know a fence, and the clients whose fences stand.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        self.paces.forget_the_slow(cx.now);
        if self.fencing.is_empty() {
            return;
        }
        // A member of an earlier configuration may lead a group here still.
        let leaders: BTreeSet<OsdId> = cx.groups.iter().filter_map(|group| group.leader).collect();
        let (leases, now) = (&cx.presence.leases, cx.now);
        self.fencing.retain_mut(|Fencing { fence, client, awaited, .. }| {
            if cx.links.get(*client).is_none() {
                return false;
            }
            awaited.retain_mut(|awaited| {
                if let Some(link) = cx.links.ready(awaited.osd)
                    && awaited.told_on != Some(link)
                {
                    awaited.told_on = Some(link);
                    cx.io.send(link, &Fence { request: 1, ..*fence }.encode(Kind::Fence));
                }
                let may_serve = cx.presence.is_neighbour(awaited.osd) || leaders.contains(&awaited.osd);
                // Without a connection it has nothing acknowledged here, and without a promise it serves no reads.
                let is_linked = cx.links.link_of(awaited.osd).is_some();
                may_serve && (is_linked || !leases.is_free_of(awaited.osd, now))
                    || leases.may_have_forgotten(now)
            });
            if awaited.is_empty() {
                cx.io.send(*client, &fence.encode(Kind::FenceDone));
            }
            !awaited.is_empty()
        });
        if !self.fencing.is_empty() {
            cx.turn.tick_soon(cx.now);
        }
    }
}

/// A client's fence stays in its connection for now, unless it has done so for too long.
fn wait(cx: &mut Context<'_, impl Io>, link: LinkId) -> Handled {
    if let Some(Peer::Client(client)) = cx.links.get_mut(link) {
        let since = *client.fence_waits_since.get_or_insert(cx.now);
        if cx.now.since(since) >= WAITS_MAX {
            cx.io.close(link, "its fence waited for too long");
            return Handled::Done;
        }
    }
    cx.turn.tick_soon(cx.now);
    Handled::Stalled
}

/// Another OSD tells of a fence. It counts as long as the link lasts: the one that was told by the client has a say in what is
/// served here for as long.
pub(crate) fn handle_peer_fence(cx: &mut Context<'_, impl Io>, link: LinkId, fence: &Fence) {
    if cx.volumes.was_told(link, fence.volume, fence.generation, cx.now) && fence.request != 0 {
        cx.io.send(link, &fence.encode(Kind::FenceDone));
    }
}

/// Tells an OSD, on a connection that was just made, of every generation that the map shows: it may have claimed an epoch before
/// it could hear of one, and may be about to begin it. What others told is theirs to tell.
pub(crate) fn tell_all(cx: &mut Context<'_, impl Io>, link: LinkId) {
    for (volume, generation) in cx.volumes.generations() {
        cx.io.send(link, &Fence { request: 0, volume, generation }.encode(Kind::Fence));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::context::LOOK_AGAIN;
    use crate::links::OsdLink;
    use crate::links::access::{ClientLink, Credential};
    use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME};
    use crate::volumes::LATE_MAX;
    use base::{Access, ClientId, Generation, Permission, Principal, VolumeId};
    use std::sync::Arc;
    use wire::{Lease, Message, Request, Version};

    /// A pair whose map shows the volume attached as often as any fence here says that it was, unless it lies.
    fn attached() -> Pair {
        let mut pair = Pair::new();
        pair.alone.is_attached(VOLUME, Generation(10));
        pair
    }

    #[test]
    fn a_client_hears_that_its_fence_stands_when_every_other_osd_knows_it() {
        let mut pair = attached();
        let fence = Fence { request: 5, volume: VOLUME, generation: Generation(9) };
        let client = LinkId(98);
        pair.alone.with(|router, cx| router.fences.handle_client_fence(cx, client, &fence));
        assert!(pair.alone.osd.router.fences.is_idle(), "who is gone is not waited for");
        let peer = crate::links::access::ClientLink::new(base::ClientId(4), None);
        pair.alone.osd.shared.links.insert(client, crate::links::Peer::Client(peer));
        pair.alone.with(|router, cx| router.fences.handle_client_fence(cx, client, &fence));
        pair.turn();
        assert!(pair.heard.iter().any(|message| message.starts_with("Fence(")), "{:?}", pair.heard);
        assert!(!pair.alone.io.to.contains_key(&client), "the other OSD has not said that it knows it");
        let due = pair.alone.now + Duration::from_secs(60);
        pair.alone.osd.shared.turn.next_tick = due;
        let done = Fence { request: 1, ..fence }.encode(Kind::FenceDone);
        pair.hears(&done);
        assert!(pair.alone.io.to.contains_key(&client) && pair.alone.osd.router.fences.is_idle());
        assert_eq!(pair.alone.osd.shared.turn.next_tick, due, "there is nothing to look after any more");
    }

    /// A client with that key connects and has a fence set up; answers whether it is taken.
    fn is_let(pair: &mut Pair, link: u64, key: u8) -> bool {
        let link = LinkId(link);
        let principal = Principal::new(PublicKey([key; 32]), Access::Admin);
        let credential = Credential { name: format!("key-{key}").into(), principal, seen_at: 0 };
        let client = ClientLink::new(ClientId(link.0), Some(credential));
        pair.alone.osd.shared.links.insert(link, Peer::Client(client));
        let fence = Fence { request: 5, volume: VOLUME, generation: Generation(9) };
        pair.alone.with(|router, cx| router.fences.handle_client_fence(cx, link, &fence)) == Handled::Done
    }

    /// The other OSD knows all of them.
    fn are_known(pair: &mut Pair) {
        let done = Fence { request: 1, volume: VOLUME, generation: Generation(9) }.encode(Kind::FenceDone);
        pair.hears(&done);
        assert!(pair.alone.osd.router.fences.is_idle());
    }

    #[test]
    fn one_key_leaves_room_for_the_fences_of_others() {
        let mut pair = attached();
        let most = FENCING_PER_KEY_MAX as u64;
        assert!((0..most).all(|number| is_let(&mut pair, 1000 + number, 1)), "the other OSD does not answer");
        assert!(!is_let(&mut pair, 1000 + most, 1));
        for key in 2..=(FENCING_MAX / FENCING_PER_KEY_MAX) as u8 {
            let first = 1000 * u64::from(key);
            assert!((first..first + most).all(|link| is_let(&mut pair, link, key)));
        }
        assert!(!is_let(&mut pair, 50_000, 50), "no more than so many in all");
        // Who goes makes room, and so does who has its answer.
        pair.alone.now = pair.alone.now + Duration::from_secs(1);
        pair.alone.osd.shared.links.forget(LinkId(1000));
        assert!(is_let(&mut pair, 60_000, 1));
        assert!(!is_let(&mut pair, 60_001, 1));
        are_known(&mut pair);
        assert!(is_let(&mut pair, 70_000, 1));
    }

    #[test]
    fn a_key_has_others_told_of_its_fences_at_a_pace_however_soon_they_know() {
        let mut pair = attached();
        let most = FENCING_PER_KEY_MAX as u64;
        for number in 0..most {
            assert!(is_let(&mut pair, 1000 + number, 1), "so many may come at once");
            are_known(&mut pair);
        }
        pair.alone.osd.shared.turn.next_tick = pair.alone.now + Duration::from_secs(60);
        assert!(!is_let(&mut pair, 2000, 1), "it stays in its connection");
        assert!(pair.alone.osd.shared.turn.next_tick <= pair.alone.now + LOOK_AGAIN, "and comes again soon");
        assert!(!pair.alone.io.closed.contains(&LinkId(2000)));
        assert!(is_let(&mut pair, 3000, 2), "another key is not kept by that");
        pair.alone.now = pair.alone.now + FENCE_PAUSE;
        assert!(is_let(&mut pair, 2000, 1) && !is_let(&mut pair, 2001, 1));
        are_known(&mut pair);
        // Nothing is kept of who went slowly.
        pair.alone.now = pair.alone.now + FENCE_PAUSE * (most as u32 + 1);
        pair.alone.with(|router, cx| router.fences.advance(cx));
        assert!(pair.alone.osd.router.fences.paces.0.is_empty());
    }

    /// A fence of an attach that never was.
    const LIE: Fence = Fence { request: 1, volume: VOLUME, generation: Generation(u32::MAX) };

    /// The oldest generation that is served.
    fn served(pair: &Pair) -> Generation {
        pair.alone.osd.shared.volumes.get(VOLUME).unwrap().generation
    }

    /// A pair whose replica lies.
    fn lied_to() -> Pair {
        let mut pair = Pair::new();
        pair.hears(&LIE.encode(Kind::Fence));
        assert_eq!(served(&pair), LIE.generation, "it may be true");
        pair
    }

    #[test]
    fn an_osd_that_lies_of_an_attach_costs_no_more_than_another_attach() {
        let mut pair = lied_to();
        pair.alone.now = pair.alone.now + LATE_MAX;
        pair.alone.is_attached(VOLUME, Generation(2));
        assert_eq!((served(&pair), &pair.alone.io.closed[..]), (Generation(2), &[pair.link][..]));
    }

    /// Somebody who may write to the volume lies, by a request and by a fence.
    fn is_lied_to_by_a_tenant(pair: &mut Pair) {
        let tenant = LinkId(1000);
        let access = Access::Pools([(PG.pool, Permission::ReadWrite)].into());
        let principal = Principal::new(PublicKey([3; 32]), access);
        let credential = Credential { name: "tenant".into(), principal, seen_at: 0 };
        let client = ClientLink::new(ClientId(4), Some(credential));
        pair.alone.osd.shared.links.insert(tenant, Peer::Client(client));
        let read = Request { generation: LIE.generation, ..pair.request(10) };
        let said = [&read.encode(Kind::Read)[..], &LIE.encode(Kind::Fence)].concat();
        let Alone { osd, io, now } = &mut pair.alone;
        let progress = osd.handle_bytes(*now, tenant, &said, io).unwrap();
        assert!(progress.is_stalled, "the fence stays in its connection");
        assert_eq!(served(pair), LIE.generation, "the volume is its own");
    }

    #[test]
    fn a_client_that_lies_of_an_attach_ends_no_link_between_osds() {
        let (mut teller, mut told) = (Pair::new(), Pair::new());
        let link = teller.link;
        teller.alone.io.to.clear();
        is_lied_to_by_a_tenant(&mut teller);
        // Also when the two have lost each other.
        teller.alone.with(|_, cx| tell_all(cx, link));
        let said = teller.alone.io.to.remove(&link).expect("it tells of what the map shows");
        told.hears(&said);
        told.alone.now = told.alone.now + LATE_MAX;
        told.alone.is_attached(VOLUME, Generation(2));
        assert!(told.alone.io.closed.is_empty(), "the two are needed by everybody");
        assert_eq!(served(&told), Generation(2));
    }

    #[test]
    fn a_fence_ahead_of_the_map_waits_for_it_and_nobody_is_told_of_it_before() {
        let mut pair = Pair::new();
        let (link, client, other, now) = (pair.link, LinkId(1000), VolumeId(7), pair.alone.now);
        let told = |pair: &mut Pair| {
            pair.alone.io.told(link, |message| match message {
                Message::Fence(fence) => Some((fence.volume, fence.generation)),
                _ => None,
            })
        };
        told(&mut pair);
        pair.alone.osd.shared.turn.next_tick = now + Duration::from_secs(60);
        assert_eq!(asks(&mut pair, client, VOLUME, 3), Handled::Stalled);
        assert!(pair.alone.osd.shared.turn.next_tick <= now + LOOK_AGAIN, "and comes again soon");
        pair.alone.is_attached(VOLUME, Generation(2));
        assert_eq!(asks(&mut pair, client, VOLUME, 3), Handled::Stalled);
        assert!(told(&mut pair).is_empty() && pair.alone.osd.router.fences.is_idle());
        assert_eq!(served(&pair), Generation(2), "who has it now is served");
        pair.alone.is_attached(VOLUME, Generation(3));
        assert_eq!(asks(&mut pair, client, VOLUME, 3), Handled::Done);
        assert_eq!(told(&mut pair), [(VOLUME, Generation(3))]);
        // The same of a volume that was just made.
        assert_eq!(asks(&mut pair, client, other, 1), Handled::Stalled);
        pair.alone.is_attached(other, Generation(1));
        assert_eq!(asks(&mut pair, client, other, 1), Handled::Done);
        assert_eq!(told(&mut pair), [(other, Generation(1))]);
    }

    #[test]
    fn a_connection_ends_whose_fence_waits_for_too_long() {
        let mut pair = attached();
        let (client, begin) = (LinkId(1000), pair.alone.now);
        let asks_at = |pair: &mut Pair, after: Duration, generation: u32| {
            pair.alone.now = begin + after;
            asks(pair, client, VOLUME, generation)
        };
        let moment = Duration::from_millis(1);
        assert_eq!(asks_at(&mut pair, Duration::ZERO, 11), Handled::Stalled);
        assert_eq!(asks_at(&mut pair, WAITS_MAX - moment, 10), Handled::Done);
        // The next one has its own time.
        assert_eq!(asks_at(&mut pair, WAITS_MAX, 11), Handled::Stalled);
        assert_eq!(asks_at(&mut pair, 2 * WAITS_MAX - moment, 11), Handled::Stalled);
        assert!(pair.alone.io.closed.is_empty());
        assert_eq!(asks_at(&mut pair, 2 * WAITS_MAX, 11), Handled::Done);
        assert_eq!(pair.alone.io.closed, [client]);
    }

    #[test]
    fn what_an_osd_lied_of_is_forgotten_with_its_link() {
        let mut pair = lied_to();
        let (now, link) = (pair.alone.now, pair.link);
        pair.alone.osd.handle_closed(now, link, "its key was removed", &mut pair.alone.io);
        assert_eq!(served(&pair), Generation(1));
    }

    #[test]
    fn who_shares_no_group_is_told_of_a_fence_and_keeps_nobody_waiting() {
        let mut pair = attached();
        // What an earlier life promised has run out.
        pair.run();
        let stranger = pair.alone.connect(OsdId(7));
        let lease = wire::Lease { ttl_ms: 6000, stamp: 5, ..wire::Lease::default() };
        let Pair { alone: Alone { osd, io, now }, .. } = &mut pair;
        osd.handle_bytes(*now, stranger, &lease.encode(), io).unwrap();
        pair.alone.io.to.clear();
        assert!(is_let(&mut pair, 1000, 1));
        let told = pair.alone.io.to.remove(&stranger).expect("it is told");
        assert!(matches!(wire::parse(&told), Ok(Some((wire::Message::Fence(_), _)))));
        assert!(!pair.alone.osd.router.fences.is_idle(), "the other member is waited for");
        are_known(&mut pair);
        assert!(pair.alone.io.to.contains_key(&LinkId(1000)));
    }

    #[test]
    fn whoever_connects_is_told_every_generation() {
        let mut pair = Pair::new();
        pair.alone.io.to.clear();
        let link = pair.link;
        pair.alone.with(|_, cx| tell_all(cx, link));
        let told = pair.alone.io.to.remove(&link).unwrap();
        assert!(matches!(
            wire::parse(&told).unwrap().unwrap().0,
            wire::Message::Fence(Fence { request: 0, volume: VOLUME, generation: Generation(1) })
        ));
    }

    /// A client without a key wants a fence; answers what becomes of that.
    fn asks(pair: &mut Pair, link: LinkId, volume: VolumeId, generation: u32) -> Handled {
        if pair.alone.osd.shared.links.get(link).is_none() {
            let client = ClientLink::new(ClientId(link.0), None);
            pair.alone.osd.shared.links.insert(link, Peer::Client(client));
        }
        let fence = Fence { request: 5, volume, generation: Generation(generation) };
        pair.alone.with(|router, cx| router.fences.handle_client_fence(cx, link, &fence))
    }

    /// The same of one that is taken; answers the client's link.
    fn fences(pair: &mut Pair, link: u64, volume: VolumeId, generation: u32) -> LinkId {
        assert_eq!(asks(pair, LinkId(link), volume, generation), Handled::Done);
        LinkId(link)
    }

    /// Whether a client was told that its fence stands.
    fn stands(pair: &Pair, client: LinkId) -> bool {
        pair.alone.io.to.contains_key(&client)
    }

    /// It is that late, and fences are looked at.
    fn advances(pair: &mut Pair, now: Instant) {
        pair.alone.now = now;
        pair.alone.with(|router, cx| router.fences.advance(cx));
    }

    #[test]
    fn a_fence_stands_when_others_know_that_generation_of_its_volume_or_a_newer_one() {
        let mut pair = attached();
        let other = VolumeId(7);
        pair.alone.is_attached(other, Generation(5));
        let older = fences(&mut pair, 1000, VOLUME, 5);
        let newer = fences(&mut pair, 1001, VOLUME, 9);
        let of_other = fences(&mut pair, 1002, other, 5);
        let known = |pair: &mut Pair, volume: VolumeId, generation: u32| {
            let done = Fence { request: 1, volume, generation: Generation(generation) };
            pair.hears(&done.encode(Kind::FenceDone));
            [older, newer, of_other].map(|client| stands(pair, client))
        };
        assert_eq!(known(&mut pair, VOLUME, 4), [false, false, false]);
        assert_eq!(known(&mut pair, VOLUME, 6), [true, false, false]);
        assert_eq!(known(&mut pair, other, 5), [true, false, true]);
        assert_eq!(known(&mut pair, VOLUME, 10), [true, true, true]);
    }

    #[test]
    fn an_osd_is_told_of_a_fence_once_on_each_connection() {
        let mut pair = attached();
        let told = |pair: &mut Pair, link: LinkId| {
            let is_fence = |message: Message<'_>| matches!(message, Message::Fence(_)).then_some(());
            pair.alone.io.told(link, is_fence).len()
        };
        let (link, now) = (pair.link, pair.alone.now);
        told(&mut pair, link);
        pair.alone.osd.shared.turn.next_tick = now + Duration::from_secs(60);
        let client = fences(&mut pair, 1000, VOLUME, 9);
        assert_eq!(told(&mut pair, link), 1);
        assert!(pair.alone.osd.shared.turn.next_tick <= now + LOOK_AGAIN, "it may be gone soon");
        advances(&mut pair, now);
        assert_eq!(told(&mut pair, link), 0);
        // It connects anew, and may not know it yet.
        let again = LinkId(500);
        let peer = OsdLink::new(REPLICA, Some(Version(3)), now);
        assert_eq!(pair.alone.osd.shared.links.insert_osd(again, peer), Some(link));
        advances(&mut pair, now);
        advances(&mut pair, now);
        assert_eq!(told(&mut pair, again), 1);
        assert!(!stands(&pair, client));
    }

    #[test]
    fn who_is_not_connected_is_waited_for_while_a_promise_to_it_lasts() {
        let mut pair = attached();
        // What an earlier life promised has run out.
        pair.run();
        let (link, now) = (pair.link, pair.alone.now);
        assert!(!pair.alone.osd.shared.presence.leases.may_have_forgotten(now));
        let lease = Lease { ttl_ms: 900, stamp: 5, ..Lease::default() };
        pair.hears(&lease.encode());
        pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
        let client = fences(&mut pair, 1000, VOLUME, 9);
        advances(&mut pair, now + Duration::from_millis(956));
        assert!(!stands(&pair, client), "it may serve reads still");
        advances(&mut pair, now + Duration::from_millis(957));
        assert!(stands(&pair, client));
        let client = fences(&mut pair, 1001, VOLUME, 10);
        assert!(stands(&pair, client), "nothing binds this OSD to anybody any more");
    }

    #[test]
    fn while_this_osd_may_have_forgotten_what_it_promised_all_are_waited_for() {
        let mut pair = attached();
        let (link, now) = (pair.link, pair.alone.now);
        pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
        let leases = &pair.alone.osd.shared.presence.leases;
        let known_at = leases.started() + Duration::from_millis(6375);
        assert!(leases.may_have_forgotten(now) && leases.promised(now).next().is_none());
        let client = fences(&mut pair, 1000, VOLUME, 9);
        advances(&mut pair, known_at - Duration::from_millis(1));
        assert!(!stands(&pair, client));
        advances(&mut pair, known_at);
        assert!(stands(&pair, client));
    }

    #[test]
    fn who_knows_nothing_of_the_cluster_takes_no_fence() {
        let mut pair = attached();
        // Nor does it know then who else is to know it.
        pair.alone.osd.shared.volumes.map = Arc::default();
        let client = fences(&mut pair, 1000, VOLUME, 9);
        assert_eq!(pair.alone.io.closed, [client], "it is to ask again");
        assert!(!stands(&pair, client) && pair.alone.osd.router.fences.is_idle());
    }

    #[test]
    fn who_tells_of_a_fence_and_asks_for_an_answer_gets_one_if_it_is_remembered() {
        let mut pair = Pair::new();
        let (link, now) = (pair.link, pair.alone.now);
        pair.alone.io.to.clear();
        let answered = |pair: &mut Pair, request: u64, volume: VolumeId| {
            let fence = Fence { request, volume, generation: Generation(5) };
            pair.hears(&fence.encode(Kind::Fence));
            pair.alone.io.told(link, |message| match message {
                Message::FenceDone(done) => Some(done),
                _ => None,
            })
        };
        assert!(answered(&mut pair, 0, VOLUME).is_empty());
        let done = Fence { request: 1, volume: VOLUME, generation: Generation(5) };
        assert_eq!(answered(&mut pair, 1, VOLUME), [done]);
        let mut unknown = VolumeId(1000);
        while pair.alone.osd.shared.volumes.was_told(link, unknown, Generation(1), now) {
            unknown = VolumeId(unknown.0 + 1);
        }
        assert!(answered(&mut pair, 1, unknown).is_empty());
    }

    #[test]
    fn more_fences_than_may_wait_of_one_key_or_of_all_are_found() {
        let check = |waiting: &[(usize, Option<u8>)]| {
            let mut fences = Fences::default();
            for (count, key) in waiting {
                let key = key.map(|key| PublicKey([key; 32]));
                let fence = Fence { request: 5, volume: VOLUME, generation: Generation(9) };
                let one = || Fencing { fence, client: LinkId(1), key, awaited: Vec::new() };
                fences.fencing.extend((0..*count).map(|_| one()));
            }
            fences.check_bounds()
        };
        let (all, of_key) = (FENCING_MAX, FENCING_PER_KEY_MAX);
        assert_eq!(check(&[(of_key, Some(1)), (1, Some(2)), (all - of_key - 1, None)]), Ok(()));
        assert!(check(&[(of_key + 1, Some(1)), (1, Some(2))]).is_err());
        assert!(check(&[(all + 1, None)]).is_err());
    }
}
