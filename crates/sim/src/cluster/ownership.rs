//! Clients that open their volumes: they read at once, own a volume from the first change on, and give it up when another has
//! something to change.
//!
//! Whoever finds that the owner before died without a word starts anew, and fences that first, as who attaches does.

use super::life::Life;
use super::registry::ownership::Asked;
use super::world::{Event, MILLISECOND, Process};
use base::{Generation, VolumeId};
use client::OwnershipStep;

impl Life {
    /// What a client of that life wants with a volume reaches the registry, or does not.
    pub(super) fn changes_hands(
        &mut self,
        process: Process,
        life: u32,
        volume: VolumeId,
        step: OwnershipStep,
    ) -> Result<(), String> {
        if !self.world.is_alive(process, life) {
            return Ok(());
        }
        let index = process.0 - self.nodes.len();
        match step {
            OwnershipStep::Ask { .. } => self.asks_for(process, index, volume),
            OwnershipStep::GiveUp => self.gives_up(process, index, volume)?,
            OwnershipStep::Renew => {
                return Err(format!("{} renews, and gave nothing up", self.world.name(process)));
            }
        }
        Ok(())
    }

    fn asks_for(&mut self, process: Process, index: usize, volume: VolumeId) {
        if self.registry.has_dead_owner(volume) {
            self.world.coverage.count("own: an owner died");
            self.world.event(Some(process), "finds that an owner died, and starts anew to fence it");
            return self.stop_client(index);
        }
        let client = &mut self.clients[index];
        let Some(generation) = client.shown_generation(volume) else { return };
        let id = client.id();
        match self.registry.own(process, id, volume, generation, &mut self.world) {
            Asked::Owned(attached) if attached.unfenced.is_empty() => {
                self.world.coverage.count("volumes that changed hands");
                self.world.event(Some(process), "owns a volume");
                self.world.story(Some(process), || format!("owns {volume} in {:?}", attached.generation));
                // Whoever had it before has nothing under way: that is what giving it up says.
                self.history.fence(volume, attached.generation, self.world.now);
                let history = &mut self.history;
                self.clients[index].owns(volume, attached.generation, history, &mut self.world);
            }
            Asked::Owned(_) => self.stop_client(index),
            Asked::Later | Asked::Unheard => {
                let again = self.world.random.between(5 * MILLISECOND, 300 * MILLISECOND);
                self.asks_again(process, volume, OwnershipStep::Ask { keeps: false }, again);
            }
        }
    }

    fn gives_up(&mut self, process: Process, index: usize, volume: VolumeId) -> Result<(), String> {
        let client = &self.clients[index];
        let (id, generation) = (client.id(), client.owned_generation(volume));
        if let Some(number) = self.history.unfinished_change(process.0, volume, generation) {
            return Err(format!(
                "{} gives {volume} up with something under way: {}",
                self.world.name(process),
                self.history.describe(number)
            ));
        }
        if self.registry.give_volume_up(process, id, volume, generation, &mut self.world) {
            self.world.event(Some(process), "gave a volume up");
            self.world.story(Some(process), || format!("gave {volume} up in {generation:?}"));
            self.clients[index].gave_up(volume, &mut self.world);
        } else {
            self.asks_again(process, volume, OwnershipStep::GiveUp, 100 * MILLISECOND);
        }
        Ok(())
    }

    fn asks_again(&mut self, process: Process, volume: VolumeId, step: OwnershipStep, after: u64) {
        let life = self.world.mailboxes[process.0].life;
        self.world.after(after, Event::ChangesHands { process, life, volume, step });
    }
}

/// The generation of an operation of somebody who does not own its volume: of a change that waits for that.
pub(super) const NOT_YET: Generation = Generation(u32::MAX);
