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

use crate::io::Io;
use crate::osd::Osd;
use crate::sabotage::Sabotage;
use base::{Generation, LinkId, OsdId, VolumeId};
use std::collections::BTreeSet;
use wire::{Fence, encode};

/// Fences of clients that may wait for other OSDs at the same time.
const FENCING_MAX: usize = 1024;
/// Volumes that the map does not show and that fences are remembered of.
const UNKNOWN_MAX: usize = 4096;

/// A client's fence that other OSDs are yet to know.
#[derive(Debug)]
pub(crate) struct Fencing {
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

impl Osd {
    /// A client has a fence set up.
    pub(crate) fn handle_client_fence(&mut self, link: LinkId, fence: &Fence, io: &mut impl Io) {
        if self.map.revision == 0 {
            // Who else is to know it is not known yet, nor what an earlier life of this OSD promised.
            return io.close(link, "nothing is known of the cluster yet");
        }
        if !self.take_fence(fence.volume, fence.generation) || self.fencing.len() >= FENCING_MAX {
            // It asks again.
            return io.close(link, "too many fences");
        }
        let mut others: BTreeSet<OsdId> = self.map.osds.keys().copied().collect();
        others.extend(self.osd_links.keys());
        others.extend(self.leases.promised(self.now));
        others.remove(&self.id);
        if self.sabotage == Some(Sabotage::FenceAlone) {
            others.clear();
        }
        let awaited = others.into_iter().map(|osd| Awaited { osd, told_on: None }).collect();
        self.fencing.push(Fencing { fence: *fence, client: link, awaited });
        self.advance_fences(io);
    }

    /// Another OSD tells of a fence.
    pub(crate) fn handle_peer_fence(&mut self, link: LinkId, fence: &Fence, io: &mut impl Io) {
        if self.take_fence(fence.volume, fence.generation) && fence.request != 0 {
            io.send(link, &encode::fence_done(fence));
        }
    }

    /// Another OSD knows a fence.
    pub(crate) fn handle_fence_done(&mut self, link: LinkId, done: &Fence, io: &mut impl Io) {
        for fencing in &mut self.fencing {
            if fencing.fence.volume == done.volume && fencing.fence.generation <= done.generation {
                fencing.awaited.retain(|awaited| awaited.told_on != Some(link));
            }
        }
        self.advance_fences(io);
    }

    /// Serves nobody with an older generation from here on. `false` if it cannot be remembered.
    fn take_fence(&mut self, volume: VolumeId, generation: Generation) -> bool {
        if let Some(state) = self.volumes.get_mut(&volume) {
            state.generation = state.generation.max(generation);
            return true;
        }
        // The map that shows the volume is on its way, and may be from before the fence.
        if self.fences.len() >= UNKNOWN_MAX && !self.fences.contains_key(&volume) {
            return false;
        }
        let known = self.fences.entry(volume).or_default();
        *known = generation.max(*known);
        true
    }

    /// Tells the OSDs that are to know a fence, and the clients whose fences stand.
    pub(crate) fn advance_fences(&mut self, io: &mut impl Io) {
        let mut fencing = std::mem::take(&mut self.fencing);
        fencing.retain_mut(|fencing| {
            if !self.peers.contains_key(&fencing.client) {
                return false;
            }
            let Fencing { fence, client, awaited } = fencing;
            awaited.retain_mut(|awaited| {
                let is_linked = self.osd_links.contains_key(&awaited.osd);
                match self.ready_link(awaited.osd) {
                    Some(link) if awaited.told_on != Some(link) => {
                        awaited.told_on = Some(link);
                        io.send(link, &encode::fence(&Fence { request: 1, ..*fence }));
                    }
                    _ => {}
                }
                // Without a connection it has nothing acknowledged here, and without a promise it serves no reads.
                is_linked || !self.leases.is_free_of(awaited.osd, self.now)
            });
            if awaited.is_empty() {
                io.send(*client, &encode::fence_done(fence));
            }
            !awaited.is_empty()
        });
        self.fencing = fencing;
        if !self.fencing.is_empty() {
            self.next_tick_soon();
        }
    }

    /// Tells an OSD, on a connection that was just made, of every generation that is known here: it may have claimed an
    /// epoch before it could hear of one, and may be about to begin it.
    pub(crate) fn tell_fences(&self, link: LinkId, io: &mut impl Io) {
        let known = self.volumes.iter().filter(|(_, state)| !state.is_removed);
        let known = known.map(|(volume, state)| (*volume, state.generation));
        let mut fences: Vec<_> =
            known.chain(self.fences.iter().map(|(volume, generation)| (*volume, *generation))).collect();
        fences.retain(|(_, generation)| *generation > Generation(0));
        fences.sort_unstable();
        for (volume, generation) in fences {
            io.send(link, &encode::fence(&Fence { request: 0, volume, generation }));
        }
    }
}
