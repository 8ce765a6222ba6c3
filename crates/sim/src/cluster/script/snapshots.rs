//! Snapshots are made while two clients work on the same volumes, and one of them does not hear that it was done. It goes on in the
//! layers that are the snapshots' now: nobody serves it there, neither what the other one wrote over nor to write there.

use super::FOR_EVER;
use super::sizes::OUT_OF_TOUCH;
use crate::cluster::client::all_of;
use crate::cluster::history::Kind;
use crate::cluster::life::Life;
use crate::cluster::world::{MILLISECOND, Process};

/// How often snapshots are made.
const ROUNDS: usize = 4;
/// How long they work before, between, and afterwards, at most.
const WORK: u64 = 30 * MILLISECOND;
const GOES_ON: u64 = 200 * MILLISECOND;

impl Life {
    /// The life of the script.
    pub(super) fn snapshots_out_of_touch(&mut self) -> Result<(), String> {
        let (deaf, registry) = (Process(self.nodes.len() + OUT_OF_TOUCH), self.world.registry());
        for _ in 0..ROUNDS {
            [0, OUT_OF_TOUCH].into_iter().for_each(|client| self.works_on_everything(client));
            self.passes(WORK)?;
            let made = self.snapshots.count();
            while self.snapshots.count() == made {
                self.ask_for_snapshots((0..self.world.plan.volumes).collect());
                self.wait("that snapshots are made, or given up", |life| !life.snapshots.are_under_way())?;
            }
            self.world.event(Some(deaf), "does not hear that snapshots were made");
            self.world.cut(registry, deaf, FOR_EVER);
            self.works_on_everything(0);
            self.passes(GOES_ON)?;
            let reads = all_of(Kind::Read, &self.world.plan, self.world.plan.operation_blocks_max);
            self.clients[OUT_OF_TOUCH].run_errands(reads, &mut self.world);
            self.passes(WORK)?;
            self.works_on_everything(OUT_OF_TOUCH);
            self.passes(GOES_ON)?;
            self.world.heal(registry, deaf, 0);
            self.wait("that the cluster is whole after snapshots were made", Life::has_healed)?;
            self.do_all(Kind::Read, self.world.plan.operation_blocks_max)?;
        }
        Ok(())
    }
}
