//! What serves goes on serving while a primary does not reach the registry, or nobody does; or while a drive does nothing.

use super::FOR_EVER;
use crate::cluster::client::all_of;
use crate::cluster::history::Kind;
use crate::cluster::life::Life;
use crate::cluster::world::{Event, Process, SECOND, Stuck};
use base::OsdId;

/// How long a primary does not reach the registry.
const CUT_OFF: u64 = 60 * SECOND;
/// How long it may lead on when the registry takes it for dead: it may be back in a moment, and then leases of those at rest run
/// out.
const REPLACED_WITHIN: u64 = 20 * SECOND;
/// How long a drive does nothing.
const STUCK: u64 = 60 * SECOND;
/// When a client is served again at the latest.
const DONE_WITHOUT_WITHIN: u64 = 20 * SECOND;
/// How long the registry is away from all.
const AWAY: u64 = 30 * SECOND;
/// When it has been away for so long, everybody knows.
const NOTICED_WITHIN: u64 = 6 * SECOND;
/// How long a member of a script may take to catch up.
const CAUGHT_UP_WITHIN: u64 = 10 * SECOND;

impl Life {
    /// A primary loses its way to the registry, and to nobody else. Clients go on, at first with it, and soon with who takes its
    /// groups over.
    pub(super) fn primary_cut_off(&mut self) -> Result<(), String> {
        let primary = self.some_primary();
        let (osd, process, registry) = (OsdId(primary as u32), Process(primary), self.world.registry());
        self.world.event(Some(process), "does not reach the registry");
        self.world.cut(process, registry, CUT_OFF);
        self.world.cut(registry, process, CUT_OFF);
        self.wait("that it is taken for dead", |life| life.registry.map.osds[&osd].address.is_none())?;
        let limit = self.world.now + REPLACED_WITHIN;
        self.is_written_before(limit)?;
        let is_replaced = self.run_until(limit, |life| {
            life.registry.map.pgs.values().all(|config| config.primary != osd) && life.all_groups_serve()
        })?;
        if !is_replaced {
            return Err(format!("{osd} leads on without the registry: {}", self.troubles()));
        }
        self.is_written_before(limit + REPLACED_WITHIN)?;
        self.world.heal(process, registry, 0);
        self.world.heal(registry, process, 0);
        Ok(())
    }

    /// A drive does nothing, or reads on and writes nothing, and no error comes of it either. Clients go on with the other members,
    /// whoever led; and when it does again what it is asked, its OSD catches up.
    pub(super) fn drive_does_nothing(&mut self) -> Result<(), String> {
        let leads = self.world.random.percent(50);
        let node = if leads { self.some_primary() } else { self.some_node() };
        let stuck_until = self.world.now + STUCK;
        let reads = self.world.random.percent(50);
        let what = if reads { "a drive writes nothing" } else { "a drive does nothing" };
        self.world.event(Some(Process(node)), what);
        let reads_until = if reads { 0 } else { stuck_until };
        self.world.stuck[node] = Stuck { reads_until, changes_until: stuck_until };
        self.is_written_before(self.world.now + DONE_WITHOUT_WITHIN)?;
        self.is_written_before(self.world.now + DONE_WITHOUT_WITHIN)?;
        let osd = OsdId(node as u32);
        if self.registry.map.pgs.values().any(|config| config.in_sync.contains(&osd)) {
            return Err(format!("{osd} counts as in sync: {}", self.troubles()));
        }
        if self.registry.is_up(osd) {
            return Err(format!("{osd} counts as up"));
        }
        self.run_until(stuck_until, |_| false)?;
        Ok(())
    }

    /// The first client writes everything, and has done so by then.
    fn is_written_before(&mut self, limit: u64) -> Result<(), String> {
        let steps = all_of(Kind::Write, &self.world.plan, self.world.plan.operation_blocks_max);
        self.clients[0].run_errands(steps, &mut self.world);
        let is_written = self.run_until(limit, |life| {
            life.clients[0].is_running() && life.clients[0].is_done(&life.history, &life.world.plan)
        })?;
        if is_written { Ok(()) } else { Err(format!("a client is not served: {}", self.troubles())) }
    }

    /// A member that missed everything catches up while the registry is away. Clients are served all the while, and when the
    /// registry is back it is taken in.
    pub(super) fn caught_up_while_the_registry_is_away(&mut self) -> Result<(), String> {
        let away = self.some_node();
        self.misses_everything(away)?;
        self.part_from_nodes(away, FOR_EVER);
        self.world.after(0, Event::Start(Process(away)));
        self.wait("that who was away is started", |life| life.nodes[away].is_running())?;
        // All have the map that shows it.
        self.run_until(self.world.now + SECOND, |_| false)?;
        let back_at = self.world.now + AWAY;
        self.world.event(None, "registry outage");
        self.registry.go_away(AWAY, &mut self.world);
        self.run_until(self.world.now + NOTICED_WITHIN, |_| false)?;
        for other in (0..self.nodes.len()).map(Process) {
            self.world.heal(Process(away), other, 0);
            self.world.heal(other, Process(away), 0);
        }
        self.run_until(self.world.now + CAUGHT_UP_WITHIN, |_| false)?;
        let (osd, groups) = (self.nodes[away].osd(), self.registry.map.pgs.keys());
        let has_joined = osd.is_some_and(|osd| groups.copied().all(|pg| osd.store().pg_is_incomplete(pg)));
        if !has_joined {
            return Err(format!("who was away does not join: {}", self.troubles()));
        }
        if !self.all_groups_serve() {
            return Err(format!("a group stops though it lost nobody: {}", self.troubles()));
        }
        self.is_written_before(back_at - SECOND)?;
        self.wait("that who was away is in sync again", Life::has_healed)
    }
}
