//! Volumes that are rolled back, cloned and flattened in the middle of everything.
//!
//! Who rolls a volume back has all clients end first, as dead as a crash leaves them: what they sent may still be on its way. From
//! then on the volume's blocks have a history of their own, that begins with what the snapshot holds; so has each clone.

use super::client::{Step, all_of_volume};
use super::history::Kind;
use super::life::Life;
use super::node::Node;
use super::registry::{is_clone, volume_id};
use super::snapshots::Taken;
use super::world::{Process, SECOND};

/// The most clones at the same time.
const COUNT_MAX: usize = 2;
/// How long flattening may take when nothing breaks.
const FLATTENING_LIMIT: u64 = 60 * SECOND;

impl Life {
    /// All clients end, and the registry holds them for dead.
    fn clients_end(&mut self) {
        for index in 0..self.world.plan.clients {
            self.stop_client(index);
        }
        self.registry.part_clients(&mut self.world);
    }

    /// An operator rolls a volume back to a snapshot.
    pub(super) fn roll_back(&mut self, taken: &Taken) {
        self.clients_end();
        let Taken { layer, volume, ref name } = *taken;
        if let Some(generation) = self.registry.roll_back(volume, name, &mut self.world) {
            self.world.event(None, "a volume is rolled back");
            self.world.story(None, || format!("volume {} is what {layer} holds", volume + 1));
            self.history.is_rolled_back(volume, layer, generation, self.world.now);
        }
    }

    /// An operator makes a clone of a snapshot.
    pub(super) fn clone_snapshot(&mut self, taken: &Taken) {
        if self.clones().count() >= COUNT_MAX {
            return;
        }
        let Taken { layer, volume, ref name } = *taken;
        if let Some(clone) = self.registry.clone_volume(volume, name, &mut self.world) {
            self.world.event(None, "a snapshot is cloned");
            self.world.story(None, || format!("{} is what {layer} holds", volume_id(clone)));
            self.history.is_cloned(clone, layer, self.world.now);
        }
    }

    /// An operator has a clone flattened, or has that end; or removes it.
    pub(super) fn clone_changes(&mut self) {
        let clones: Vec<usize> = self.clones().collect();
        if clones.is_empty() {
            return;
        }
        let clone = clones[self.world.random.index(clones.len())];
        if self.world.random.one_in(4) {
            self.remove_clone(clone);
        } else {
            self.registry.flatten_or_not(clone, &mut self.world);
        }
    }

    fn remove_clone(&mut self, clone: usize) -> bool {
        self.clients_end();
        let is_removed = self.registry.remove_clone(clone, &mut self.world);
        if is_removed {
            self.world.event(None, "a clone is removed");
            self.snapshots.are_gone_of(clone);
        }
        is_removed
    }

    /// The clones that are there, by their numbers among the volumes.
    fn clones(&self) -> impl Iterator<Item = usize> + '_ {
        self.registry.volumes().filter(|volume| is_clone(*volume))
    }

    /// Reads of everything that the clones hold.
    pub(super) fn reads_of_clones(&self) -> Vec<Step> {
        let plan = &self.world.plan;
        let of = |volume| all_of_volume(Kind::Read, plan, volume, plan.operation_blocks_max);
        self.clones().flat_map(of).collect()
    }

    /// Some clones are flattened and need nothing but themselves then; the others are removed.
    pub(super) fn end_clones(&mut self) -> Result<(), String> {
        // Those of clones first.
        let mut clones: Vec<usize> = self.clones().collect();
        clones.sort_unstable_by_key(|clone| std::cmp::Reverse(self.registry.depth(*clone)));
        let mut removed = Vec::new();
        for clone in clones {
            if self.world.random.percent(50) {
                self.flattens(clone)?;
            } else {
                let its: Vec<usize> = self.registry.clones_of(clone);
                for other in its {
                    self.flattens(other)?;
                }
                while !self.remove_clone(clone) {
                    self.run_until(self.world.now + SECOND, |_| false)?;
                }
                removed.push(volume_id(clone));
            }
        }
        let is_gone = self.run_until(self.world.now + FLATTENING_LIMIT, |life| {
            let holds_none = |node: &Node| {
                node.osd().is_some_and(|osd| {
                    osd.store().objects().all(|key| !removed.contains(&key.layer.volume()))
                })
            };
            life.living().all(holds_none)
        })?;
        if is_gone { Ok(()) } else { Err(format!("a removed clone's data stays: {}", self.troubles())) }
    }

    fn flattens(&mut self, clone: usize) -> Result<(), String> {
        self.registry.flatten(clone, &mut self.world);
        let limit = self.world.now + FLATTENING_LIMIT;
        let is_flat = self.run_until(limit, |life| life.registry.volume(clone).parent.is_none())?;
        if is_flat { Ok(()) } else { Err(format!("a clone is not flattened at rest: {}", self.troubles())) }
    }

    /// What there was is there still.
    pub(super) fn read_again(&mut self) -> Result<(), String> {
        let reader = self.clients.len() - 1;
        if self.clones().next().is_none() {
            return Ok(());
        }
        let process = Process(self.nodes.len() + reader);
        self.clients[reader].stop();
        self.end_process(process, false);
        self.read_back()
    }
}
