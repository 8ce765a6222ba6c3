//! Snapshots, as an operator makes and removes them.

use super::{CLIENT_LEASE, Registry, done, volume_name};
use crate::cluster::world::{Process, SECOND, World};
use base::map::Stillness;
use base::{LayerId, VolumeId};
use cluster::{Clerk, ClusterError, StandsStill, Standstill, WantedSnapshot};

/// What comes of a look at who is to stand still.
pub(in crate::cluster) enum Look {
    /// The snapshots are made.
    Made(Vec<LayerId>),
    /// They are not, and clients go on: why.
    Ended(&'static str),
    /// Somebody does not stand still yet.
    Moving,
}

impl Registry {
    /// Clients of these volumes are to stand still, so that snapshots of these names can be made. None where that cannot be asked
    /// for now.
    pub(in crate::cluster) fn begin_standstill(
        &mut self,
        wanted: &[(usize, String)],
        number: u64,
        world: &mut World,
    ) -> Option<Standstill> {
        if !self.is_available {
            return None;
        }
        self.set_clock(world);
        let wanted: Vec<WantedSnapshot> = wanted
            .iter()
            .map(|(volume, name)| WantedSnapshot { volume: volume_name(*volume), name: name.clone() })
            .collect();
        let standstill = done(async {
            let lease = self.cluster.registry().lease_grant(CLIENT_LEASE).await?.id;
            self.cluster.begin_standstill(&wanted, Stillness(number), lease).await
        });
        self.show(world);
        match standstill {
            Ok(standstill) => Some(standstill),
            // What was asked for before ends with its lease.
            Err(ClusterError::Contended { .. }) => None,
            Err(error) => panic!("no snapshot can be made: {error}"),
        }
    }

    /// A client says that it stands still, if that gets through.
    pub(in crate::cluster) fn client_stands_still(
        &mut self,
        process: Process,
        client: base::ClientId,
        volume: VolumeId,
        number: Stillness,
        world: &mut World,
    ) {
        let Some(lease) = self.leases[process.0].filter(|_| self.is_reachable(process, world)) else {
            return;
        };
        self.set_clock(world);
        let says = StandsStill { volume, client, number, lease };
        // Its lease may have ended.
        let _ = done(Clerk::of_owner(self.cluster.clone()).ask(says));
        self.show(world);
    }

    /// Makes the snapshots if all clients stand still; else, if it is late, lets them go on.
    pub(in crate::cluster) fn look_at(
        &mut self,
        standstill: &Standstill,
        is_late: bool,
        world: &mut World,
    ) -> Look {
        if !self.is_available {
            // Its lease ends it.
            return if is_late {
                Look::Ended("standstills that the registry did not see")
            } else {
                Look::Moving
            };
        }
        self.set_clock(world);
        let looked = done(async {
            if self.cluster.moves_still(standstill).await?.is_some() {
                return Ok(None);
            }
            Ok(Some(self.cluster.commit_snapshots(standstill, world.now / SECOND).await?))
        });
        let look = match looked {
            Ok(Some(Some(layers))) => Look::Made(layers),
            Ok(Some(None)) => Look::Ended("standstills overtaken by an attach or another change"),
            Ok(None) if is_late => Look::Ended("standstills of which a client said nothing"),
            Ok(None) => Look::Moving,
            Err(ClusterError::Unsettled { .. }) => {
                Look::Ended("standstills beside somebody who is to be fenced first")
            }
            Err(error) => panic!("nobody can look who stands still: {error}"),
        };
        if matches!(look, Look::Ended(_)) {
            done(self.cluster.end_standstill(standstill)).expect("a standstill can be ended");
        }
        self.show(world);
        look
    }

    /// An operator removes a snapshot, if the registry can be reached and nothing was cloned from it.
    pub(in crate::cluster) fn remove_snapshot(
        &mut self,
        volume: usize,
        name: &str,
        world: &mut World,
    ) -> bool {
        if !self.is_available {
            return false;
        }
        self.set_clock(world);
        match done(self.cluster.remove_snapshots(&volume_name(volume), &[name.to_owned()].into())) {
            Ok(_) => {}
            Err(ClusterError::HasClones { .. }) => {
                world.coverage.count("removals of what has clones");
                return false;
            }
            Err(error) => panic!("a snapshot cannot be removed: {error}"),
        }
        self.show(world);
        true
    }
}
