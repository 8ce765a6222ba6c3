//! Fences: nobody is served any more who attached a volume under an older generation.
//!
//! Who attaches a volume from a holder that did not say goodbye has a fence set up before it begins: the old holder may
//! run on, without the registry, by its last map. One member in sync of each placement group is enough for it. That OSD
//! takes the fence over and sees to it that no primary serves by what it grants and acknowledges unless it knows the fence
//! too: each other OSD has either answered that it does, or has no connection to this one and no promise of it that still
//! lasts, so that it lacks this member for reads and writes alike. On a connection that is made later each end tells the
//! other of every generation that it knows before anything else.
//!
//! Why that is enough for epochs that begin afterwards is told in docs/protocol.md.

use crate::broken::Sabotage;
use crate::context::Context;
use crate::io::Io;
use crate::links::Peer;
use base::{LinkId, OsdId, PublicKey};
use std::collections::BTreeSet;
use wire::{Fence, Kind};

/// Fences of clients that may wait for other OSDs at the same time. Each is told to all of them.
const FENCING_MAX: usize = 1024;
/// The same of one key: a sixteenth, so that whoever stole one keeps nobody from taking volumes over. A host that takes over
/// hundreds of them asks again for the rest; each is known within moments, or as late as the first for which an OSD that
/// is away is waited for.
const FENCING_PER_KEY_MAX: usize = 64;

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
}

impl Fences {
    /// Whether all know all of them.
    pub(crate) fn is_idle(&self) -> bool {
        self.fencing.is_empty()
    }

    /// A client has a fence set up.
    pub(crate) fn handle_client_fence(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, fence: &Fence) {
        if cx.volumes.map.revision == 0 {
            // Who else is to know it is not known yet, nor what an earlier life of this OSD promised.
            return cx.io.close(link, "nothing is known of the cluster yet");
        }
        let key = cx.links.get(link).and_then(Peer::credential).map(|one| one.principal.public_key);
        if !cx.volumes.fence(fence.volume, fence.generation) || !self.has_room(cx, key) {
            // It asks again.
            return cx.io.close(link, "too many fences");
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
                // Without a connection it has nothing acknowledged here, and without a promise it serves no reads.
                let is_linked = cx.links.link_of(awaited.osd).is_some();
                is_linked || !cx.presence.leases.is_free_of(awaited.osd, cx.now)
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

/// Another OSD tells of a fence.
pub(crate) fn handle_peer_fence(cx: &mut Context<'_, impl Io>, link: LinkId, fence: &Fence) {
    if cx.volumes.fence(fence.volume, fence.generation) && fence.request != 0 {
        cx.io.send(link, &fence.encode(Kind::FenceDone));
    }
}

/// Tells an OSD, on a connection that was just made, of every generation that is known here: it may have claimed an
/// epoch before it could hear of one, and may be about to begin it.
pub(crate) fn tell_all(cx: &mut Context<'_, impl Io>, link: LinkId) {
    for (volume, generation) in cx.volumes.generations() {
        cx.io.send(link, &Fence { request: 0, volume, generation }.encode(Kind::Fence));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::links::access::{ClientLink, Credential};
    use crate::testing::{Pair, VOLUME};
    use base::{Access, ClientId, Generation, Principal};

    #[test]
    fn a_client_hears_that_its_fence_stands_when_every_other_osd_knows_it() {
        let mut pair = Pair::new();
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
        let done = Fence { request: 1, ..fence }.encode(Kind::FenceDone);
        pair.hears(&done);
        assert!(pair.alone.io.to.contains_key(&client) && pair.alone.osd.router.fences.is_idle());
        assert_eq!(pair.alone.osd.shared.volumes.get(VOLUME).unwrap().generation, Generation(9));
    }

    /// A client with that key connects and has a fence set up; answers whether it is let.
    fn is_let(pair: &mut Pair, link: u64, key: u8) -> bool {
        let link = LinkId(link);
        let principal = Principal { public_key: PublicKey([key; 32]), access: Access::Admin };
        let credential = Credential { name: format!("key-{key}").into(), principal, seen_at: 0 };
        let client = ClientLink::new(ClientId(link.0), Some(credential));
        pair.alone.osd.shared.links.insert(link, Peer::Client(client));
        let fence = Fence { request: 5, volume: VOLUME, generation: Generation(9) };
        pair.alone.with(|router, cx| router.fences.handle_client_fence(cx, link, &fence));
        !pair.alone.io.closed.contains(&link)
    }

    #[test]
    fn one_key_leaves_room_for_the_fences_of_others() {
        let mut pair = Pair::new();
        let most = FENCING_PER_KEY_MAX as u64;
        assert!((0..most).all(|number| is_let(&mut pair, 1000 + number, 1)), "the other OSD does not answer");
        assert!(!is_let(&mut pair, 1000 + most, 1));
        for key in 2..=(FENCING_MAX / FENCING_PER_KEY_MAX) as u8 {
            let first = 1000 * u64::from(key);
            assert!((first..first + most).all(|link| is_let(&mut pair, link, key)));
        }
        assert!(!is_let(&mut pair, 50_000, 50), "no more than so many in all");
        // Who goes makes room, and so does who has its answer.
        pair.alone.osd.shared.links.forget(LinkId(1000));
        assert!(is_let(&mut pair, 60_000, 1));
        let done = Fence { request: 1, volume: VOLUME, generation: Generation(9) }.encode(Kind::FenceDone);
        pair.hears(&done);
        assert!(pair.alone.osd.router.fences.is_idle() && is_let(&mut pair, 70_000, 1));
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
}
