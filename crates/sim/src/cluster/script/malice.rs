//! Somebody means harm while clients work and nothing else is wrong: so what they wait for is its doing.

use super::FOR_EVER;
use crate::cluster::client::all_of;
use crate::cluster::history::Kind;
use crate::cluster::hostile::Malice;
use crate::cluster::life::Life;
use crate::cluster::registry::POOL;
use crate::cluster::world::{MILLISECOND, SECOND};
use base::{Epoch, PgId};
use std::collections::BTreeMap;

/// For how long.
const MALICE_TIME: u64 = 8 * SECOND;
/// The pause between two rounds of work.
const WORK_PAUSE: u64 = 50 * MILLISECOND;
/// How long an operation of others may take meanwhile: longer than whoever means harm leaves its answers unread.
const OPERATION_MAX: u64 = 5 * SECOND;

impl Life {
    /// Two clients read and write everything again and again, beside somebody who means harm.
    pub(super) fn work_beside_malice(&mut self, malice: Malice) -> Result<(), String> {
        let (began_at, epochs) = (self.world.now, self.epochs());
        self.malice_begins();
        let blocks_max = self.world.plan.operation_blocks_max;
        while self.world.now < began_at + MALICE_TIME {
            let everything = all_of(Kind::Read, &self.world.plan, blocks_max);
            self.clients[1].run_errands(everything, &mut self.world);
            self.do_all(Kind::Write, blocks_max)?;
            self.run_until(self.world.now + WORK_PAUSE, |_| false)?;
        }
        self.malice_ends();
        // A client is no reason for OSDs to part, nor for anybody else to lead.
        let now = self.epochs();
        if malice == Malice::Client && now != epochs {
            return Err(format!("epochs of others began beside {malice:?}: {epochs:?}, then {now:?}"));
        }
        let (number, took) = self.history.slowest_since(began_at, self.world.now);
        // Who has the key of a member takes its connections away.
        if !matches!(malice, Malice::Member | Malice::Leader) && took > OPERATION_MAX {
            return Err(format!(
                "{} after {:.3} s, beside {malice:?}: {}",
                self.history.describe(number),
                took as f64 / SECOND as f64,
                self.troubles()
            ));
        }
        Ok(())
    }

    /// In which epochs the groups are whose clients are others.
    fn epochs(&self) -> BTreeMap<PgId, Epoch> {
        self.registry.map.pgs_of(POOL).map(|(pg, config)| (pg, config.epoch)).collect()
    }

    /// One node after the other dies and starts anew: it does by its log once more what it did.
    pub(super) fn all_start_anew(&mut self) -> Result<(), String> {
        self.wait("that the cluster is whole again", Life::has_healed)?;
        for node in 0..self.nodes.len() {
            self.stop_node_for(node, false, "starts anew", FOR_EVER);
            self.comes_back(node)?;
        }
        Ok(())
    }
}
