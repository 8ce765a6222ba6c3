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
use base::{LinkId, OsdId};
use std::collections::BTreeSet;
use wire::{Fence, Kind};

/// Fences of clients that may wait for other OSDs at the same time.
const FENCING_MAX: usize = 1024;

/// A client's fence that other OSDs are yet to know.
#[derive(Debug)]
struct Fencing {
    fence: Fence,
    client: LinkId,
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
        if !cx.volumes.fence(fence.volume, fence.generation) || self.fencing.len() >= FENCING_MAX {
            // It asks again.
            return cx.io.close(link, "too many fences");
        }
        let mut others: BTreeSet<OsdId> = cx.volumes.map.osds.keys().copied().collect();
        others.extend(cx.links.osds().map(|(osd, _)| osd));
        others.extend(cx.presence.leases.promised(cx.now));
        others.remove(&cx.me.id);
        if cx.breaks(Sabotage::FenceAlone) {
            others.clear();
        }
        let awaited = others.into_iter().map(|osd| Awaited { osd, told_on: None }).collect();
        self.fencing.push(Fencing { fence: *fence, client: link, awaited });
        self.advance(cx);
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
        self.fencing.retain_mut(|Fencing { fence, client, awaited }| {
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
    use crate::testing::{Pair, VOLUME};
    use base::Generation;

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
