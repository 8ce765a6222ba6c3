//! What operators change of volumes.

use super::{Registry, done, volume_name};
use crate::cluster::world::World;
use base::Limits;
use cluster::ClusterError;

impl Registry {
    /// An operator gives a volume another size. False where it is to grow, and waits for what it lost before to be gone.
    pub(in crate::cluster) fn resize_volume(&mut self, index: usize, bytes: u64, world: &mut World) -> bool {
        self.set_clock(world);
        let is_resized = match done(self.cluster.resize_volume(&volume_name(index), bytes, true)) {
            Ok(()) => true,
            Err(ClusterError::StillCut { .. }) => false,
            Err(error) => panic!("a volume cannot be resized: {error}"),
        };
        let outcome = if is_resized { "has" } else { "cannot have" };
        world.story(None, || format!("{} {outcome} {bytes} bytes from now on", volume_name(index)));
        self.show(world);
        is_resized
    }

    /// An operator gives a volume other limits.
    pub(in crate::cluster) fn limit_volume(&mut self, index: usize, limits: Limits, world: &mut World) {
        self.set_clock(world);
        done(self.cluster.limit_volume(&volume_name(index), |set| *set = limits)).expect("it is there");
        world.story(None, || format!("limits of {}: {limits}", volume_name(index)));
        self.show(world);
    }
}
