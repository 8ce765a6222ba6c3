//! Volumes rolled back, cloned and flattened, as an operator does it.

use super::{Registry, done, volume_name};
use crate::cluster::world::World;
use base::{Generation, VolumeId};
use cluster::ClusterError;

/// Who was not told that it has a volume has it until its lease ends.
const HELD: &str = "what somebody has who does not know it";

/// Clones have numbers from here on: as many of each family.
const CLONES_FROM: usize = 1000;

/// The id of a volume, by its number among those of a life.
pub(in crate::cluster) fn volume_id(index: usize) -> VolumeId {
    match index / CLONES_FROM {
        0 => VolumeId(index as u64 + 1),
        family => VolumeId(family as u64).clone_of_family((index % CLONES_FROM) as u32),
    }
}

/// The number of a volume among those of a life.
pub(in crate::cluster) fn volume_index(id: VolumeId) -> usize {
    let family = id.family().0 as usize;
    if id.is_clone() { family * CLONES_FROM + id.clone_number() as usize } else { family - 1 }
}

/// Whether a volume is a clone, by its number among those of a life.
pub(in crate::cluster) fn is_clone(index: usize) -> bool {
    index >= CLONES_FROM
}

/// The volume that a clone's family began with.
pub(in crate::cluster) fn family_of(index: usize) -> usize {
    if is_clone(index) { index / CLONES_FROM - 1 } else { index }
}

impl Registry {
    /// The volumes that people see, clones too, by their numbers among those of a life.
    pub(in crate::cluster) fn volumes(&self) -> impl Iterator<Item = usize> + '_ {
        let clones = self.map.volumes.iter().filter(|(id, info)| id.is_clone() && info.is_listed());
        (0..self.volumes).chain(clones.map(|(id, _)| volume_index(*id)))
    }

    /// How many clonings lie between a volume and one that is none.
    pub(in crate::cluster) fn depth(&self, volume: usize) -> usize {
        self.map.clone_depth(volume_id(volume))
    }

    /// The clones of a volume.
    pub(in crate::cluster) fn clones_of(&self, volume: usize) -> Vec<usize> {
        self.map.clones_of(volume_id(volume)).map(|(id, ..)| volume_index(id)).collect()
    }

    /// A volume is rolled back to a snapshot of it, if nobody has it attached. Answers its generation then.
    pub(in crate::cluster) fn roll_back(
        &mut self,
        volume: usize,
        name: &str,
        world: &mut World,
    ) -> Option<Generation> {
        if !self.is_available {
            return None;
        }
        self.set_clock(world);
        match done(self.cluster.roll_back_volume(&volume_name(volume), name)) {
            Ok(_) => {}
            Err(ClusterError::Attached { .. }) => {
                world.coverage.count(HELD);
                return None;
            }
            Err(error) => panic!("a volume cannot be rolled back: {error}"),
        }
        self.show(world);
        Some(self.volume(volume).generation)
    }

    /// A clone of a snapshot is made. Answers its number among the volumes.
    pub(in crate::cluster) fn clone_volume(
        &mut self,
        volume: usize,
        name: &str,
        world: &mut World,
    ) -> Option<usize> {
        if !self.is_available {
            return None;
        }
        self.set_clock(world);
        let made = done(async {
            let id = self.cluster.clone_volume(&volume_name(volume), name, "clone").await?;
            // It is called as all others are.
            self.cluster.rename_volume("clone", &volume_name(volume_index(id))).await?;
            Ok::<_, ClusterError>(volume_index(id))
        });
        self.show(world);
        Some(made.expect("a snapshot can be cloned"))
    }

    /// A clone is to be flattened, or not any more.
    pub(in crate::cluster) fn flatten_or_not(&mut self, clone: usize, world: &mut World) {
        if !self.is_available {
            return;
        }
        let is_wanted = self.volume(clone).flatten.is_none();
        self.set_clock(world);
        match done(self.cluster.flatten_volume(&volume_name(clone), is_wanted)) {
            Ok(()) if is_wanted => world.event(None, "a clone is to be flattened"),
            Ok(()) => world.event(None, "a clone is not to be flattened any more"),
            Err(ClusterError::NoClone { .. }) => world.coverage.count("flattenings of what was flat"),
            Err(error) => panic!("a clone cannot be flattened: {error}"),
        }
        self.show(world);
    }

    /// A clone is to be flattened, if it is not.
    pub(in crate::cluster) fn flatten(&mut self, clone: usize, world: &mut World) {
        if self.volume(clone).parent.is_some() && self.volume(clone).flatten.is_none() {
            self.flatten_or_not(clone, world);
        }
    }

    /// A clone is removed, unless somebody has it attached, or there are clones of it.
    pub(in crate::cluster) fn remove_clone(&mut self, clone: usize, world: &mut World) -> bool {
        if !self.is_available {
            return false;
        }
        self.set_clock(world);
        match done(self.cluster.remove_volume(&volume_name(clone))) {
            Ok(_) => {}
            Err(ClusterError::HasClones { .. }) => {
                world.coverage.count("removals of what has clones");
                return false;
            }
            Err(ClusterError::Attached { .. }) => {
                world.coverage.count(HELD);
                return false;
            }
            Err(error) => panic!("a clone cannot be removed: {error}"),
        }
        self.show(world);
        true
    }
}
