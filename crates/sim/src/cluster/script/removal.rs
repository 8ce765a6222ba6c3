//! A pool, or one of its volumes, is removed while a member is away and the others work on. Whoever was away lets go of what it
//! holds of it as soon as it is back, whatever it knew before, and whatever befalls it then.

use super::FOR_EVER;
use crate::cluster::client::{Step, all_of};
use crate::cluster::history::Kind;
use crate::cluster::life::Life;
use crate::cluster::node::Node;
use crate::cluster::registry::volume_id;
use crate::cluster::world::{Event, MILLISECOND, Process, SECOND};
use base::{ObjectKey, OsdId, PoolId, VolumeId};

/// How long whoever is back may take to let go of it.
const GONE_WITHIN: u64 = 30 * SECOND;

/// What was removed.
#[derive(Clone, Copy, Debug)]
enum Removed {
    Pool(PoolId),
    Volume(VolumeId),
}

impl Removed {
    /// Whether a node runs and holds nothing of it.
    fn is_gone_from(self, node: &Node) -> bool {
        let is_of_it = |key: &ObjectKey| match self {
            Removed::Pool(pool) => key.pg.pool == pool,
            Removed::Volume(volume) => key.layer.volume() == volume,
        };
        node.osd().is_some_and(|osd| {
            let knows = |pool| osd.store().groups().any(|pg| pg.pool == pool);
            let is_known = matches!(self, Removed::Pool(pool) if knows(pool));
            !is_known && !osd.store().objects().any(|key| is_of_it(&key))
        })
    }
}

impl Life {
    /// The life of the script: the last volume is removed, and if `with_pool` its pool behind it.
    pub(super) fn removed_while_away(&mut self, with_pool: bool) -> Result<(), String> {
        let volume = self.world.plan.volumes - 1;
        let away = self.some_node();
        let process_lives = self.world.random.percent(50);
        if process_lives {
            self.world.event(Some(Process(away)), "hears of nobody while something is removed");
            self.isolate(Process(away), FOR_EVER);
        } else {
            let is_power_cut = self.world.random.percent(50);
            self.stop_node_for(away, is_power_cut, "is away while something is removed", FOR_EVER);
        }
        self.others_go_on(away)?;
        if self.world.random.percent(50) {
            // What nobody needs any more holds up nothing else.
            self.world.plan.doublings += 1;
            self.world.after(0, Event::SplitPool);
        }
        self.works_beside(volume);
        let pause = self.world.random.between(MILLISECOND, 50 * MILLISECOND);
        self.run_until(self.world.now + pause, |_| false)?;
        let removed = match with_pool {
            true => Removed::Pool(self.registry.remove_doomed_pool(volume, &mut self.world)),
            false => {
                self.registry.remove_volume(volume, &mut self.world);
                Removed::Volume(volume_id(volume))
            }
        };
        self.world.plan.volumes -= 1;
        self.wait("that the others hold nothing of what was removed", |life| {
            let others = life.nodes.iter().enumerate().filter(|(index, _)| *index != away);
            others.map(|(_, node)| node).all(|node| removed.is_gone_from(node))
        })?;
        if with_pool {
            let osd = OsdId(away as u32);
            self.wait("that nobody but who is away owes the removed pool anything", |life| {
                let tombstones = &life.registry.map.removed_pools;
                tombstones.len() == 1 && tombstones.values().all(|pool| pool.owed_by == [osd])
            })?;
        }
        self.works_beside(volume);
        self.returns(away, process_lives)?;
        let limit = self.world.now + GONE_WITHIN;
        if !self.run_until(limit, |life| removed.is_gone_from(&life.nodes[away]))? {
            let seconds = GONE_WITHIN / SECOND;
            return Err(format!(
                "osd.{away} was away when {removed:?} was removed, and holds something of it {seconds} s after its return: {}",
                self.troubles()
            ));
        }
        self.wait("that no removed pool is remembered", |life| life.registry.map.removed_pools.is_empty())
    }

    /// The first client writes everything anew but one volume.
    fn works_beside(&mut self, volume: usize) {
        let beside = |step: &Step| step.volume != volume;
        let steps = all_of(Kind::Write, &self.world.plan, 1).into_iter().filter(beside).collect();
        self.clients[0].run_errands(steps, &mut self.world);
    }

    /// Who was away is back, and sometimes dies once more before it has done what there is to do.
    fn returns(&mut self, away: usize, process_lives: bool) -> Result<(), String> {
        if process_lives {
            for other in (0..self.world.mailboxes.len()).map(Process) {
                self.world.heal(Process(away), other, 0);
                self.world.heal(other, Process(away), 0);
            }
        } else {
            self.world.after(0, Event::Start(Process(away)));
        }
        if self.world.random.percent(50) {
            let pause = self.world.random.between(MILLISECOND, 3 * SECOND);
            self.run_until(self.world.now + pause, |_| false)?;
            let is_power_cut = self.world.random.percent(50);
            self.stop_node_for(away, is_power_cut, "dies while it lets go of what was removed", SECOND);
        }
        Ok(())
    }
}
