//! What is told of places in a group's order instead of contents: of a write that is sent again when nobody's log has it any more,
//! by a member that was brought up to date itself, to one that is broken off while it is, by one that comes back when the group
//! was given up meanwhile, and by one that died behind a checkpoint beside which it joined.

use super::FOR_EVER;
use crate::cluster::client::{Step, all_of};
use crate::cluster::history::Kind;
use crate::cluster::life::Life;
use crate::cluster::network::TOLD_WITHIN;
use crate::cluster::registry::POOL;
use crate::cluster::world::{Event, MILLISECOND, Process, SECOND};
use base::{OsdId, PgId};

/// Writes whose answers do not arrive: as many as a client of a script has under way.
const FORGOTTEN: usize = 4;
/// How long they take at most to be done.
const DONE_WITHIN: u64 = SECOND;
/// How often a member is broken off while it catches up.
const INTERRUPTIONS: usize = 6;
/// How often it is tried to have a member die behind the right checkpoint.
const CHECKPOINTS_MAX: usize = 4;
/// Writes, one after the other, by which a checkpoint is due.
const DUE_WITHIN: usize = 1400;
/// How long a member may take to join, and a checkpoint to be written that waits for nothing.
const JOINS_WITHIN: u64 = 10 * SECOND;

/// Every other one of these writes. Of what a log ends with, everything is sent anew, and so what these touch.
fn every_other(all: &[Step]) -> Vec<Step> {
    all.iter().copied().filter(|step| step.first_block % 2 == 1).collect()
}

impl Life {
    /// A client writes and is not told: its answers do not arrive. Another one sees what it wrote, writes something else there, and
    /// more elsewhere than the logs hold. Then the first one hears again, and sends what it wrote once more.
    pub(super) fn repeated_past_the_log(&mut self) -> Result<(), String> {
        let mut steps = all_of(Kind::Write, &self.world.plan, 1);
        let elsewhere = steps.split_off(FORGOTTEN);
        let reads: Vec<Step> = steps.iter().map(|step| Step { kind: Kind::Read, ..*step }).collect();
        let silenced = Process(self.nodes.len());
        for node in 0..self.nodes.len() {
            self.world.cut(Process(node), silenced, FOR_EVER);
        }
        self.clients[0].run_errands(steps.clone(), &mut self.world);
        self.run_until(self.world.now + DONE_WITHIN, |_| false)?;
        self.do_steps(1, reads.clone())?;
        self.do_steps(1, steps)?;
        self.do_steps(1, reads.clone())?;
        for node in 0..self.nodes.len() {
            self.world.break_links(Process(node), silenced);
        }
        self.writes_past_logs(1, elsewhere)?;
        self.run_until(self.world.now + TOLD_WITHIN, |_| false)?;
        for node in 0..self.nodes.len() {
            self.world.heal(Process(node), silenced, 0);
        }
        self.wait("the end of what a client does that was not answered", |life| {
            life.clients[0].is_done(&life.history, &life.world.plan)
        })?;
        self.do_steps(1, reads)
    }

    /// Two of three members are away in turn while everything is written over. One comes back and is brought up to date, the one
    /// who did that goes, and the other comes back: what it lacks is told by whoever was told itself.
    pub(super) fn caught_up_from_who_caught_up(&mut self) -> Result<(), String> {
        let first = self.some_node();
        let [second, third] = [1, 2].map(|step| (first + step) % self.nodes.len());
        let all = all_of(Kind::Write, &self.world.plan, 1);
        self.writes_past_logs(0, every_other(&all))?;
        self.stop_node_for(third, false, "is away for long", FOR_EVER);
        self.others_go_on(third)?;
        self.stop_node_for(second, false, "is away for long", FOR_EVER);
        self.others_go_on(second)?;
        self.writes_past_logs(0, all)?;
        self.is_brought_up_to_date(second)?;
        self.stop_node_for(first, false, "is away for long", FOR_EVER);
        self.others_go_on(first)?;
        self.is_brought_up_to_date(third)?;
        self.check_agreement()?;
        self.do_all(Kind::Read, self.world.plan.operation_blocks_max)?;
        self.world.after(0, Event::Start(Process(first)));
        Ok(())
    }

    /// Of two members one is away, and the other one's drive is lost, with the last copy of everything: an operator gives that up.
    /// All is written anew. Then the one is back that has what was written before, by more writes than there are now.
    pub(super) fn given_up_and_back(&mut self) -> Result<(), String> {
        let away = self.some_node();
        let other = 1 - away;
        self.writes_past_logs(0, every_other(&all_of(Kind::Write, &self.world.plan, 1)))?;
        self.misses_everything(away)?;
        for _ in 0..self.world.random.between(1, 2) {
            self.registry.give_up(other);
            self.stop_node_for(other, true, "its drive is lost, with all that was written", SECOND);
            self.wait("that the groups begin anew", Life::all_groups_serve)?;
            self.do_all(Kind::Write, self.world.plan.operation_blocks_max)?;
        }
        if self.world.random.percent(50) {
            self.world.plan.doublings += 1;
            self.world.after(0, Event::SplitPool);
        }
        self.comes_back(away)?;
        self.check_agreement()?;
        self.leads_alone(away)
    }

    /// Who was stopped is started, and comes to be in sync everywhere, whoever else is away.
    fn is_brought_up_to_date(&mut self, node: usize) -> Result<(), String> {
        self.world.after(0, Event::Start(Process(node)));
        let osd = OsdId(node as u32);
        self.wait("that who was away is in sync again", |life| {
            life.registry.map.pgs.values().all(|config| config.in_sync.contains(&osd))
                && life.all_groups_serve()
        })
    }

    /// A member misses everything of many objects, and is broken off again and again while it is brought up to date, each time at
    /// another moment. Then the others die, it leads, and is read whole.
    pub(super) fn broken_off_catching_up(&mut self) -> Result<(), String> {
        let away = self.some_node();
        self.misses_everything(away)?;
        for _ in 0..INTERRUPTIONS {
            // What is pushed is read slowly, while the one who gets it writes fast.
            let slowness = self.world.random.choose(&[1, 20, 100]);
            self.world.drive_slowness.fill(slowness);
            self.world.drive_slowness[away] = 1;
            self.world.after(0, Event::Start(Process(away)));
            let pause = self.world.random.between(50 * MILLISECOND, 3 * SECOND);
            self.run_until(self.world.now + pause, |_| false)?;
            if self.world.random.percent(50) {
                let is_power_cut = self.world.random.percent(50);
                self.stop_node_for(away, is_power_cut, "is broken off while it catches up", FOR_EVER);
            } else {
                self.world.event(Some(Process(away)), "is broken off while it catches up");
                self.part_from_nodes(away, SECOND);
                self.run_until(self.world.now + 2 * SECOND, |_| false)?;
            }
        }
        self.world.drive_slowness.fill(1);
        self.comes_back(away)?;
        self.check_agreement()?;
        self.leads_alone(away)
    }

    /// A member dies behind a checkpoint whose root has its join, and that covers what was before it lagged. Then it is brought
    /// up to date, leads alone, and is read whole.
    pub(super) fn joins_beside_a_checkpoint(&mut self) -> Result<(), String> {
        let pg = PgId { pool: POOL, index: 0 };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let primary = self.registry.map.pgs[&pg].primary.0 as usize;
            let away = (primary + 1) % self.nodes.len();
            let is_behind_it = self.dies_behind_a_checkpoint(pg, primary, away)?;
            self.comes_back(away)?;
            if is_behind_it || attempts == CHECKPOINTS_MAX {
                self.check_agreement()?;
                return self.leads_alone(away);
            }
        }
    }

    /// A member in sync begins a checkpoint, whose batches its drive writes only where something else waits for them. Before its
    /// root is made an epoch begins with the member, and then one without it, in which everything is written over; and the member
    /// joins as a learner. It dies when there is a superblock that points to the root. Answers whether a start finds more in that
    /// root than the checkpoint covers, and would be wrong about the member if it did not heed that.
    fn dies_behind_a_checkpoint(&mut self, pg: PgId, primary: usize, away: usize) -> Result<bool, String> {
        let all = all_of(Kind::Write, &self.world.plan, 1);
        // All of them are to get pages.
        self.do_steps(0, all.clone())?;
        self.run_until(self.world.now + SECOND, |_| false)?;
        self.nodes[away].have_checkpoints_wait(true);
        let written = self.nodes[away].checkpoint_blocks();
        for step in all.iter().cycle().take(DUE_WITHIN) {
            if self.nodes[away].checkpoint_blocks() > written {
                break;
            }
            self.do_steps(0, vec![*step])?;
        }
        let superblocks = self.nodes[away].superblocks();
        let epoch = self.registry.map.pgs[&pg].epoch;
        self.world.end_links(Process(primary), Process(away));
        self.wait("the next epoch", |life| {
            life.registry.map.pgs[&pg].epoch > epoch && life.all_groups_serve()
        })?;
        self.part_from_nodes(away, FOR_EVER);
        self.world.end_links(Process(primary), Process(away));
        self.others_go_on(away)?;
        self.writes_past_logs(0, all)?;
        for other in (0..self.nodes.len()).map(Process) {
            self.world.heal(Process(away), other, 0);
            self.world.heal(other, Process(away), 0);
        }
        let joins_until = self.world.now + JOINS_WITHIN;
        self.run_until(joins_until, |life| {
            life.nodes[away].osd().is_some_and(|osd| osd.store().pg_is_incomplete(pg))
        })?;
        self.nodes[away].have_checkpoints_wait(false);
        let written_until = self.world.now + JOINS_WITHIN;
        self.run_until(written_until, |life| life.nodes[away].superblocks() != superblocks)?;
        let is_power_cut = self.world.random.percent(30);
        self.stop_node_for(away, is_power_cut, "dies behind a checkpoint", FOR_EVER);
        let is_behind_it = self.nodes[away].has_logs_ahead();
        if is_behind_it {
            self.world.event(Some(Process(away)), "finds logs in a root that go further than it covers");
        }
        Ok(is_behind_it)
    }
}
