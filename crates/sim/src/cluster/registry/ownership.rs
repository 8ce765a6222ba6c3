//! Volumes that clients only open: asked for, and given up.

use super::{CLIENT_HEARTBEAT, CLIENT_LEASE, Registry, done};
use crate::cluster::registry::volume_id;
use crate::cluster::world::{Event, Process, World};
use base::map::WishId;
use base::{ClientId, Generation, VolumeId};
use cluster::{Attachment, Clerk, ClusterError, GiveUp, Own, Owning, WishNoMore};
use registry::RegistryError;

/// Who is about to start asks so often for a volume whose owner died.
const ASKED_MAX: usize = 100;

/// What comes of asking for a volume.
#[derive(Debug)]
pub(in crate::cluster) enum Asked {
    Owned(Box<Attachment>),
    /// Another has it, or is before.
    Later,
    /// The registry was not reached, or the lease has ended.
    Unheard,
}

impl Registry {
    /// A client opens the volumes. Answers those whose owners died without a word: it has them attached then, and they are to be
    /// fenced.
    pub(in crate::cluster) fn open(
        &mut self,
        process: Process,
        client: ClientId,
        world: &mut World,
    ) -> Vec<Attachment> {
        self.set_clock(world);
        let lease = done(self.cluster.registry().lease_grant(CLIENT_LEASE)).expect("a lease is granted").id;
        self.leases[process.0] = Some(lease);
        let life = world.mailboxes[process.0].life + 1;
        world.after(CLIENT_HEARTBEAT, Event::ClientHeartbeat { process, life });
        let volumes: Vec<VolumeId> = self.volumes().map(volume_id).collect();
        let mut attached = Vec::new();
        let is_reader = world.plan.has_reader && process.0 == world.plan.nodes;
        for volume in volumes.into_iter().filter(|_| !is_reader) {
            if self.has_dead_owner(volume) {
                // Who heard no answer may have it, and asks again, by what the map shows then.
                let mut asks = (0..ASKED_MAX).map(|_| {
                    let generation = self.map.volumes[&volume].generation;
                    self.own(process, client, volume, generation, world)
                });
                match asks.find(|asked| !matches!(asked, Asked::Unheard)) {
                    Some(Asked::Owned(one)) => attached.push(*one),
                    // Another wished it before. This one has nothing to change yet, and must not be waited for.
                    Some(Asked::Later) => {
                        let wish = WishId(client.0);
                        let asked = WishNoMore { volume, wish, lease };
                        done(Clerk::of_owner(self.cluster.clone()).ask(asked))
                            .expect("a wish can be taken back");
                    }
                    Some(Asked::Unheard) | None => {}
                }
            }
        }
        attached
    }

    /// Whether somebody had a volume and fell silent, and nobody has it who fences that one: to ask for it then would leave a wish.
    pub(in crate::cluster) fn has_dead_owner(&self, volume: VolumeId) -> bool {
        let at = |what: &str| format!("millpond/{what}/{}/", volume.0);
        let count = |prefix: String| {
            done(self.cluster.registry().range(&prefix))
                .expect("a registry in memory can be read")
                .entries
                .len()
        };
        count(at("attached")) == 0 && count(at("holder")) > 0
    }

    /// A client asks for a volume, by what its map shows.
    pub(in crate::cluster) fn own(
        &mut self,
        process: Process,
        client: ClientId,
        volume: VolumeId,
        generation: Generation,
        world: &mut World,
    ) -> Asked {
        let reachable = self.is_reachable(process, world);
        let Some(lease) = self.leases[process.0].filter(|_| reachable) else { return Asked::Unheard };
        self.set_clock(world);
        // A client has one wish for a volume at a time.
        let (wish, description) = (WishId(client.0), format!("process {}", process.0));
        let own = Own { volume, client, lease, description, wish, generation, keeps: false };
        let asked = done(Clerk::of_owner(self.cluster.clone()).ask(own));
        self.show(world);
        match asked {
            Ok(Owning::Owned(_))
                if !world.is_calm && world.random.percent(world.plan.lost_answer_percent) =>
            {
                world.event(Some(process), "own: answer lost");
                Asked::Unheard
            }
            Ok(Owning::Owned(attached)) => Asked::Owned(attached),
            Ok(Owning::Awaited { holder }) => {
                let shown = self.map.volumes.get(&volume).map(|info| info.generation);
                world.story(Some(process), || {
                    format!("{volume} is to be waited for: {holder:?} has it; {generation:?} of {shown:?}")
                });
                Asked::Later
            }
            // The life is about to end.
            Err(ClusterError::NoSuchVolume { .. }) => Asked::Unheard,
            Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. })) => Asked::Unheard,
            other => panic!("a volume is not to be had: {other:?}"),
        }
    }

    /// A client gives a volume up. Says whether that was heard.
    pub(in crate::cluster) fn give_volume_up(
        &mut self,
        process: Process,
        client: ClientId,
        volume: VolumeId,
        generation: Generation,
        world: &mut World,
    ) -> bool {
        if !self.is_reachable(process, world) {
            return false;
        }
        self.set_clock(world);
        let asked = GiveUp { volume, client, generation };
        done(Clerk::of_owner(self.cluster.clone()).ask(asked)).expect("a volume can be given up");
        self.show(world);
        true
    }
}
