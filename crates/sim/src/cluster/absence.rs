//! Somebody is away for so long that its groups' logs go past it. What it lacks is then told by no log, and where contents
//! collide by no checksum either. It comes back, catches up, is made to lead, and is read whole.

use super::client::{ClientProcess, all_of};
use super::history::Kind;
use super::life::Life;
use super::registry::POOL;
use super::world::{Event, MILLISECOND, Process, SECOND};
use base::{OsdId, PgId};
use std::collections::BTreeMap;

/// How often it is looked whether the next step can be taken.
const TICK: u64 = 250 * MILLISECOND;
/// How long somebody is away at most, whether logs have gone past it by then or not.
const AWAY_MAX: u64 = 15 * SECOND;
/// How long it may take to catch up.
const BACK_MAX: u64 = 15 * SECOND;
/// How long it may take to lead.
const LEAD_MAX: u64 = 12 * SECOND;
/// How long it is away unless it is fetched back.
const FOR_EVER: u64 = 3600 * SECOND;

/// How far it is.
#[derive(Debug, Default)]
pub(super) enum Absence {
    /// Nobody was away so far.
    #[default]
    ToCome,
    /// A primary reaches its clients and not the other members, until it dies: what it writes comes to nothing, or is done
    /// again without it.
    Parted { node: usize, dies_at: u64 },
    /// A node does not run. Its groups' orders had got so far when it went.
    Away { node: usize, left_at: BTreeMap<PgId, u64>, until: u64 },
    /// It was started again, and catches up in those of its groups whose logs have gone past it.
    Back { node: usize, groups: Vec<PgId>, until: u64 },
    /// It is to lead one of them: an operator wants that, or all others are cut away.
    ToLead { node: usize, pg: PgId, is_wanted: bool, until: u64 },
    /// It was all of that, or something came in between.
    Over,
}

impl Life {
    /// The next step, if it can be taken.
    pub(super) fn absence_goes_on(&mut self) {
        if self.world.is_calm {
            return;
        }
        self.absence = match std::mem::take(&mut self.absence) {
            Absence::ToCome => self.somebody_leaves(),
            Absence::Parted { node, dies_at } => self.is_parted(node, dies_at),
            Absence::Away { node, left_at, until } => self.is_away(node, left_at, until),
            Absence::Back { node, groups, until } => self.is_back(node, groups, until),
            Absence::ToLead { node, pg, is_wanted, until } => self.is_to_lead(node, pg, is_wanted, until),
            Absence::Over => Absence::Over,
        };
        if !matches!(self.absence, Absence::Over) {
            self.world.after(TICK, Event::Absence);
        }
    }

    /// Somebody goes without whom its groups can go on, while nothing has rotted that it may have the last copy of.
    fn somebody_leaves(&mut self) -> Absence {
        let parts_first = self.world.random.percent(40);
        let node = if parts_first { self.some_primary() } else { self.some_node() };
        let (osd, min_size) = (OsdId(node as u32), self.registry.pool().min_size as usize);
        let of_it = self.registry.map.pgs.values().filter(|config| config.in_sync.contains(&osd));
        let least = of_it.map(|config| config.in_sync.len()).min();
        let goes_on = least.is_some_and(|least| least > min_size.max(1));
        let is_free =
            self.nodes[node].is_running() && !self.registry.is_gone(node) && !self.registry.retires(node);
        if !goes_on || !is_free || self.atlas.has_damage(&self.nodes, &self.served) {
            return Absence::ToCome;
        }
        self.world.is_hurried = true;
        self.wake_clients();
        if !parts_first {
            return self.goes(node);
        }
        self.world.event(Some(Process(node)), "is parted from its peers before a long absence");
        self.part_from_nodes(node, 3 * SECOND);
        let dies_at = self.world.now + self.world.random.between(100 * MILLISECOND, 700 * MILLISECOND);
        Absence::Parted { node, dies_at }
    }

    fn wake_clients(&mut self) {
        for client in &mut self.clients[..self.world.plan.clients] {
            client.wake_up(&mut self.world);
        }
    }

    fn is_parted(&mut self, node: usize, dies_at: u64) -> Absence {
        if self.world.now < dies_at && self.nodes[node].is_running() {
            return Absence::Parted { node, dies_at };
        }
        if self.world.random.percent(50) {
            // Then nobody asks again for what it had begun.
            for client in 0..self.world.plan.clients {
                self.stop_client(client);
            }
        }
        self.goes(node)
    }

    fn goes(&mut self, node: usize) -> Absence {
        let osd = OsdId(node as u32);
        let of_it = self.registry.map.pgs.iter().filter(|(_, config)| config.in_sync.contains(&osd));
        let of_it = of_it.filter(|(pg, _)| pg.pool == POOL);
        let ends = of_it.map(|(pg, _)| (*pg, self.world.group_ends[pg.index as usize]));
        let left_at: BTreeMap<PgId, u64> = ends.filter(|(_, end)| *end > 0).collect();
        if left_at.is_empty() || !self.nodes[node].is_running() {
            self.world.is_hurried = false;
            return Absence::ToCome;
        }
        let is_power_cut = self.world.random.percent(50);
        self.stop_node_for(node, is_power_cut, "is away for long", FOR_EVER);
        // Clients do not stop before the logs have gone past it.
        let writes = 3 * self.world.plan.pg_log_entries * left_at.len().min(4);
        let operations = self.history.len() + writes as u64;
        self.world.plan.operations = self.world.plan.operations.max(operations);
        self.wake_clients();
        Absence::Away { node, left_at, until: self.world.now + AWAY_MAX }
    }

    fn is_away(&mut self, node: usize, left_at: BTreeMap<PgId, u64>, until: u64) -> Absence {
        let entries = self.world.plan.pg_log_entries as u64;
        let has_gone_past =
            |(pg, end): &(&PgId, &u64)| self.world.group_ends[pg.index as usize] > **end + entries;
        let groups: Vec<PgId> = left_at.iter().filter(has_gone_past).map(|(pg, _)| *pg).collect();
        if self.world.now < until && groups.len() < left_at.len() && !self.nodes[node].is_running() {
            return Absence::Away { node, left_at, until };
        }
        self.world.is_hurried = false;
        self.world.after(0, Event::Start(Process(node)));
        if groups.is_empty() {
            self.world.event(Some(Process(node)), "comes back, and no log has gone past it");
            return Absence::Over;
        }
        self.world.event(Some(Process(node)), "comes back, and logs have gone past it");
        Absence::Back { node, groups, until: self.world.now + BACK_MAX }
    }

    fn is_back(&mut self, node: usize, groups: Vec<PgId>, until: u64) -> Absence {
        let osd = OsdId(node as u32);
        let in_sync = |pg: &&PgId| self.registry.map.pgs[*pg].in_sync.contains(&osd);
        let may_go_on = groups.iter().all(|pg| in_sync(&pg)) || self.world.now >= until;
        let pg = groups.iter().find(in_sync).copied().filter(|_| may_go_on);
        let Some(pg) = pg else {
            return match self.world.now < until {
                true => Absence::Back { node, groups, until },
                false => Absence::Over,
            };
        };
        self.world.event(Some(Process(node)), "has caught up although logs had gone past it");
        let is_wanted = self.registry.pool().min_size > 1 || self.world.random.percent(30);
        if is_wanted {
            self.registry.have_it_lead(pg, osd, &mut self.world);
        } else {
            self.cut_all_others_away(pg, osd);
        }
        Absence::ToLead { node, pg, is_wanted, until: self.world.now + LEAD_MAX }
    }

    /// The other members of a group die, or hear nothing and are not heard.
    fn cut_all_others_away(&mut self, pg: PgId, osd: OsdId) {
        let in_sync = self.registry.map.pgs[&pg].in_sync.clone();
        let dies = self.world.random.percent(50);
        for other in in_sync.iter().filter(|other| **other != osd).map(|other| other.0 as usize) {
            let outage = self.world.random.between(6 * SECOND, 10 * SECOND);
            if dies {
                self.stop_node_for(other, false, "is cut away from who was away for long", outage);
            } else {
                self.world.event(Some(Process(other)), "is cut away from who was away for long");
                self.isolate(Process(other), outage);
            }
        }
    }

    fn is_to_lead(&mut self, node: usize, pg: PgId, is_wanted: bool, until: u64) -> Absence {
        let osd = OsdId(node as u32);
        let leads = self.nodes[node].osd().is_some_and(|osd| {
            osd.view().summaries().any(|summary| summary.pg == pg && summary.trouble.is_none())
        });
        let is_free = |client: &ClientProcess| client.is_running() && client.fencer.is_none();
        let reader = self.clients[..self.world.plan.clients].iter().position(is_free);
        if let Some(reader) = reader.filter(|_| leads) {
            self.world.event(Some(Process(node)), "leads after a long absence, and is read whole");
            let plan = &self.world.plan;
            let everything = all_of(Kind::Read, plan, plan.operation_blocks_max);
            self.clients[reader].run_errands(everything, &mut self.world);
            return Absence::Over;
        }
        if self.world.now >= until {
            return Absence::Over;
        }
        if is_wanted {
            // The manager may have wanted otherwise meanwhile.
            self.registry.have_it_lead(pg, osd, &mut self.world);
        }
        Absence::ToLead { node, pg, is_wanted, until }
    }
}
