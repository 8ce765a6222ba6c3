//! One cluster's life: it works while things break, then heals, and is looked over.

use super::absence::Absence;
use super::atlas::{Atlas, LOST_HALF_WRITTEN, Served, look};
use super::client::{ClientProcess, Refusal, Work, all_of};
use super::faults::Doomed;
use super::fencer::Progress;
use super::history::{History, Kind};
use super::hostile::Hostile;
use super::inspect;
use super::node::{Node, Started, TurnEnd};
use super::plan::{FaultKind, Plan};
use super::registry::{POOL, Registry, volume_id};
use super::snapshots::Snapshots;
use super::world::{Event, Input, MILLISECOND, Process, SECOND, World};
use super::{Report, Settings};
use crate::contents::{Contents, Place};
use crate::random::Random;
use crate::trace::Trace;
use base::{BLOCK_BYTES, Epoch, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, OsdId, PgId, Sequence};
use client::ClientError;
use pg::ScrubReport;
use std::collections::{BTreeMap, BTreeSet};

/// How long a cluster may take to heal when nothing breaks any more.
const HEALING_LIMIT: u64 = 60 * SECOND;
/// How much longer, where groups are still to be split: where an heir could not lead, the next hand-over is put off by 20 s, and a
/// split waits for it; and two splits may be due, the second of groups that are at home elsewhere.
const SPLITTING_MORE: u64 = 30 * SECOND;
/// How long reading everything may take then.
const READING_LIMIT: u64 = 30 * SECOND;
/// How long a scrub of everything may take.
const SCRUB_LIMIT: u64 = 60 * SECOND;
/// How often a scrub is asked for that was given up.
const SCRUB_ATTEMPTS: usize = 5;
/// How long it is left alone before it is looked over.
const REST: u64 = 3 * SECOND;
/// How long nothing happens then, so that leases of those at rest are renewed.
const LONG_REST: u64 = 12 * SECOND;
/// Operations begun when nothing breaks any more, to see the healed cluster at work.
const OPERATIONS_AT_PEACE: u64 = 30;
/// A client's change that says it was sent first when its group had reached more than it has now: nobody can tell what became of
/// it, and the client is told of an outcome unknown though it may never have been begun.
const AHEAD: &str = "sent again: names more than its group has reached";
/// Events of a life that is taken for one that runs in circles.
const EVENTS_MAX: u64 = 5_000_000;

/// See the module's documentation.
pub(super) struct Life {
    pub(super) world: World,
    pub(super) nodes: Vec<Node>,
    /// The last one has no load: it reads everything in the end.
    pub(super) clients: Vec<ClientProcess>,
    pub(super) registry: Registry,
    pub(super) history: History,
    pub(super) faults: u64,
    /// The fault that comes next.
    pub(super) next_fault: u64,
    /// A fault strikes after so many more messages and drive operations.
    pub(super) armed: Option<u64>,
    /// What strikes next, whatever chance says.
    pub(super) encore: Option<FaultKind>,
    /// Who dies before that.
    pub(super) doomed: Option<Doomed>,
    /// Who ends in good order for its drive to be replaced.
    pub(super) ends_for_another: Option<usize>,
    /// The newest time of slowness.
    pub(super) spell: u64,
    /// What rotted where.
    pub(super) atlas: Atlas,
    /// How far somebody's long absence is.
    pub(super) absence: Absence,
    /// Who means harm.
    pub(super) hostile: Option<Hostile>,
    pub(super) served: Served,
    pub(super) snapshots: Snapshots,
    /// The epoch in which somebody began to serve a group last, and when.
    pub(super) serving_since: BTreeMap<PgId, (Epoch, u64)>,
    events: u64,
}

impl Life {
    pub(super) fn new(seed: u64, settings: Settings) -> Life {
        let mut random = Random::new(seed);
        let mut plan = match settings.scenario {
            Some(scenario) => scenario.plan(&mut random.fork()),
            None => Plan::draw(&mut random.fork()),
        };
        if settings.scarce_buffers {
            plan.large_buffers = random.choose(&[2, 4, 8]);
        }
        if settings.plain_faults {
            plan.keep_drives_sound_and_data_still();
        }
        if settings.opens {
            plan.open_volumes();
        }
        let mut drives = random.fork();
        let nodes =
            (0..plan.nodes).map(|index| Node::new(Process(index), &plan, &settings, &mut drives)).collect();
        let mut loads = random.fork();
        let clients = (0..=plan.clients)
            .map(|index| {
                let work = if index < plan.clients { Work::Load } else { Work::List(Vec::new()) };
                let gives_up_early = settings.gives_up_early && index < plan.clients;
                let process = Process(plan.nodes + index);
                let mut client = ClientProcess::new(process, loads.fork(), work);
                client.gives_up_early = gives_up_early;
                client
            })
            .collect();
        let mut registry = Registry::new(&plan);
        registry.gives_up_what_counts = settings.gives_up_what_counts;
        let history = History::new(&plan);
        let hostile = plan.malice.map(|malice| Hostile::new(malice, &plan, loads.fork()));
        let world = World::new(plan, random, Trace::new(settings.print));
        Life {
            world,
            nodes,
            clients,
            registry,
            history,
            faults: 0,
            next_fault: 0,
            armed: None,
            encore: None,
            doomed: None,
            ends_for_another: None,
            spell: 0,
            atlas: Atlas::default(),
            absence: Absence::default(),
            hostile,
            served: BTreeMap::new(),
            snapshots: Snapshots::default(),
            serving_since: BTreeMap::new(),
            events: 0,
        }
    }

    /// When the life stands now, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.world.now as f64 / SECOND as f64
    }

    pub(super) fn live(&mut self) -> Result<Report, String> {
        self.world.story(None, || format!("{:?}", self.world.plan));
        let added = self.nodes.len() - self.world.plan.late_nodes..self.nodes.len();
        for index in 0..self.nodes.len() + self.world.plan.clients {
            let delay = match added.contains(&index) {
                true => self.world.random.between(SECOND, self.world.plan.fault_time / 2),
                false => self.world.random.below(50 * MILLISECOND),
            };
            self.world.after(delay, Event::Start(Process(index)));
        }
        self.world.after(SECOND, Event::LeaseCheck);
        let first = self.world.random.between(100 * MILLISECOND, 3 * SECOND);
        self.schedule_fault(first);
        if self.world.plan.retires_somebody {
            let at = self.world.random.between(SECOND, self.world.plan.fault_time);
            self.world.after(at, Event::Retire);
        }
        for _ in 0..self.world.plan.doublings {
            let at = self.world.random.between(SECOND, self.world.plan.fault_time);
            self.world.after(at, Event::SplitPool);
        }
        if self.world.plan.snapshots {
            let at = self.world.random.between(200 * MILLISECOND, 2 * SECOND);
            self.world.after(at, Event::Snapshots);
        }
        if self.world.plan.has_long_absence {
            let at = self.world.random.between(2 * SECOND, 6 * SECOND);
            self.world.after(at, Event::Absence);
        }
        if self.hostile.is_some() {
            let begins_at = self.world.random.between(500 * MILLISECOND, self.world.plan.fault_time / 2);
            let ends_at = self.world.random.between(begins_at, self.world.plan.fault_time);
            self.world.after(begins_at, Event::Malice { begins: true });
            self.world.after(ends_at, Event::Malice { begins: false });
        }
        let peace_at = self.world.plan.fault_time;
        self.run_until(peace_at, |_| false)?;
        self.calm_down();
        self.world.plan.operations = self.world.plan.operations.min(self.history.len() + OPERATIONS_AT_PEACE);
        let peace_at = self.world.now;
        let mut limit = HEALING_LIMIT;
        let mut has_healed = self.run_until(peace_at + limit, |life| life.has_healed())?;
        // Groups that were split late are moved later still.
        if !has_healed && self.world.plan.doublings > 0 {
            limit += SPLITTING_MORE;
            has_healed = self.run_until(peace_at + limit, |life| life.has_healed())?;
        }
        if !has_healed {
            let troubles = self.troubles();
            return Err(format!("the cluster does not heal within {} s: {troubles}", limit / SECOND));
        }
        let crowded = self.registry.crowded_groups();
        if crowded > 0 {
            return Err(format!(
                "{crowded} groups have too many copies in one failure domain: {}",
                self.troubles()
            ));
        }
        let healing = (self.world.now - peace_at) / MILLISECOND;
        self.world.coverage.add("milliseconds of healing", healing);
        self.read_back()?;
        self.are_pruned()?;
        // Before a scrub would make them agree: no fault that a drive can have makes sound copies differ.
        self.check_agreement()?;
        if self.world.plan.members_differ {
            self.find_a_forged_copy()?;
        }
        self.scrub_everything(true)?;
        let rest_until = self.world.now + REST;
        self.run_until(rest_until, |_| false)?;
        // A message that was delayed before the peace may still arrive late, and a lease run out meanwhile.
        let limit = self.world.now + HEALING_LIMIT;
        if !self.run_until(limit, |life| life.has_healed())? {
            return Err(format!("the cluster does not stay whole: {}", self.troubles()));
        }
        // With nothing to do, nothing changes.
        self.run_until(self.world.now + LONG_REST, |_| false)?;
        let epochs =
            |life: &Life| -> Vec<Epoch> { life.registry.map.pgs.values().map(|pg| pg.epoch).collect() };
        let before = epochs(self);
        self.run_until(self.world.now + LONG_REST, |_| false)?;
        if epochs(self) != before {
            return Err(format!("epochs change at rest: {}", self.troubles()));
        }
        self.remove_all_snapshots()?;
        self.remove_a_volume()?;
        self.check_everything()?;
        Ok(self.report())
    }

    /// Checks the history, and what is left at rest.
    pub(super) fn check_everything(&mut self) -> Result<(), String> {
        let blocks = self.history.check()?;
        inspect::check_stores(self.living())?;
        inspect::check_strangers(self.living(), &self.registry.map)?;
        inspect::check_pools(self.living(), &self.registry.map)?;
        inspect::check_members(&self.nodes, &self.registry.map, self.world.plan.contents)?;
        self.world.coverage.add("blocks checked", blocks);
        self.note_milestones();
        self.check_milestones()
    }

    /// What never happens where nobody lies.
    fn check_milestones(&self) -> Result<(), String> {
        let is_possible = self.world.plan.malice.is_some();
        let ahead = self.world.coverage.of(AHEAD);
        if is_possible || ahead == 0 { Ok(()) } else { Err(format!("{ahead} times: {AHEAD}")) }
    }

    /// What happened.
    pub(super) fn report(&mut self) -> Report {
        for node in &self.nodes {
            let statistics = node.osd().map(|osd| osd.store().statistics()).unwrap_or_default();
            self.world.coverage.add("blocks cleaned", statistics.cleaned_blocks);
            self.world.coverage.add("writes torn by power cuts and failures", node.drive().torn_writes());
            let damage = node.osd().map(|osd| osd.view().damage()).unwrap_or_default();
            self.world.coverage.add("damage: blocks found", damage.found);
            self.world.coverage.add("damage: blocks mended", damage.mended);
        }
        self.world.coverage.count(match self.world.plan.contents {
            Contents::Plain => "content: plain",
            Contents::Colliding(_) => "content: of equal checksums",
            Contents::Lookalike { .. } => "content: like the store's own",
        });
        Report {
            trace_hash: self.world.trace.hash(),
            events: self.events,
            operations: self.history.len(),
            milliseconds: self.world.now / MILLISECOND,
            coverage: std::mem::take(&mut self.world.coverage),
        }
    }

    /// Checks that members hold the same.
    pub(super) fn check_agreement(&self) -> Result<(), String> {
        inspect::check_agreement(&self.nodes, &self.registry.map, self.world.plan.contents)
    }

    /// What a removed volume held goes, everywhere.
    fn remove_a_volume(&mut self) -> Result<(), String> {
        for index in 0..self.clients.len() {
            self.clients[index].stop();
            self.end_process(Process(self.nodes.len() + index), false);
        }
        let index = self.world.plan.volumes - 1;
        let volume = volume_id(index);
        self.registry.remove_volume(index, &mut self.world);
        let is_gone = self.run_until(self.world.now + HEALING_LIMIT, |life| {
            life.living().all(|node| {
                node.osd().is_some_and(|osd| osd.store().objects().all(|key| key.layer.volume() != volume))
            })
        })?;
        if is_gone { Ok(()) } else { Err(format!("a removed volume's data stays: {}", self.troubles())) }
    }

    /// Counts what the groups of nodes that run came through.
    fn note_milestones(&mut self) {
        for node in 0..self.nodes.len() {
            self.note_milestones_of(node);
        }
    }

    /// Counts what a node's groups came through, before the process ends.
    pub(super) fn note_milestones_of(&mut self, node: usize) {
        for (what, times) in self.nodes[node].osd().into_iter().flat_map(|osd| osd.view().milestones()) {
            self.world.coverage.add(what, times);
        }
    }

    /// A new client reads everything: what was acknowledged is there, and what is there was written.
    pub(super) fn read_back(&mut self) -> Result<(), String> {
        let reader = self.clients.len() - 1;
        let process = Process(self.nodes.len() + reader);
        let plan = &self.world.plan;
        let mut reads = all_of(Kind::Read, plan, plan.operation_blocks_max);
        reads.extend(self.reads_of_clones());
        reads.extend(self.reads_of_snapshots());
        self.clients[reader].work = Work::List(reads);
        self.start(process)?;
        let limit = self.world.now + READING_LIMIT;
        let is_read = self.run_until(limit, |life| {
            life.clients[reader].is_running() && life.clients[reader].is_done(&life.history, &life.world.plan)
        })?;
        if is_read { Ok(()) } else { Err(format!("not everything can be read: {}", self.troubles())) }
    }

    /// An operator has a group scrubbed.
    pub(super) fn scrub(&mut self, pg: PgId, is_deep: bool) {
        let Some(config) = self.registry.map.pgs.get(&pg) else { return };
        let primary = Process(config.primary.0 as usize);
        if let Some(osd) = self.nodes[primary.0].osd_mut()
            && osd.begin_scrub(pg, is_deep)
        {
            let now = self.world.now;
            self.world.wake(primary, now);
        }
    }

    /// A copy of a block differs in silence, as no fault of a drive makes it. A scrub of either kind finds it, and what most
    /// members hold is right; of two, what the primary holds.
    fn find_a_forged_copy(&mut self) -> Result<(), String> {
        let pg = self.registry.some_group(&mut self.world.random);
        let config = &self.registry.map.pgs[&pg];
        // Where two others agree, the primary's own copy may be the wrong one.
        let may_be = |osd: &&OsdId| config.in_sync.len() > 2 || **osd != config.primary;
        let victims: Vec<OsdId> = config.in_sync.iter().filter(may_be).copied().collect();
        let Some(victim) = victims.get(self.world.random.index(victims.len().max(1))).copied() else {
            return Ok(());
        };
        let Some(witness) = config.in_sync.iter().find(|osd| **osd != victim) else { return Ok(()) };
        let (victim, witness) = (victim.0 as usize, witness.0 as usize);
        let objects: BTreeSet<ObjectKey> = inspect::objects_of(&self.nodes[witness], &pg).collect();
        let index = self.world.random.index(objects.len().max(1));
        let Some(&key) = objects.iter().nth(index) else { return Ok(()) };
        // Where the members' logs differ, whoever leads next brings them its own copy, as it should.
        let words = |osd: &OsdId| -> Vec<(Epoch, Sequence)> {
            let store = self.nodes[osd.0 as usize].osd().map(pg::Osd::store);
            let log = store.into_iter().flat_map(|store| store.pg_log(pg));
            log.filter(|entry| !entry.is_mark()).map(|entry| (entry.epoch, entry.sequence)).collect()
        };
        let all: BTreeSet<Vec<(Epoch, Sequence)>> = config.in_sync.iter().map(words).collect();
        if all.len() > 1 {
            return Ok(());
        }
        // What hides nothing may go at any time.
        if inspect::holds_unseen(&self.nodes[witness], &self.registry.map, &key) {
            return Ok(());
        }
        let right = inspect::blocks(&self.nodes[witness], &key);
        let block = self.world.random.index(right.len()) as u16;
        let is_filled = |block: &inspect::Block| !block.is_hole() && *block.bytes() != [0; BLOCK_BYTES];
        let filled = (0..).zip(&right).filter(|(_, block)| is_filled(block));
        let filled: Vec<u16> = filled.map(|(block, _)| block).collect();
        // Other content, content where there is none, or none where there is some.
        let (block, has_content) = match self.world.random.below(3) {
            0 if !filled.is_empty() => (filled[self.world.random.index(filled.len())], false),
            1 if !filled.is_empty() => (filled[self.world.random.index(filled.len())], true),
            _ => (block, true),
        };
        // A primary that lacks what a hole hides takes that for one that hides nothing.
        if !has_content && inspect::is_in_other_layers(&self.nodes[witness], &key, block) {
            return Ok(());
        }
        // Behind the checksums that the block had, where contents collide.
        let is_alike = self.world.plan.contents.collide() && self.world.random.percent(50);
        let forged = if is_alike { self.forgery_of(&key, block) } else { [0x5a; BLOCK_BYTES] };
        let content = has_content.then_some(&forged);
        // What rotted may not have been found yet, and two copies that are wrong are more than is promised for.
        let has_rotted =
            |osd: &OsdId| look(&self.nodes[osd.0 as usize], &key, block).is_some_and(|held| !held.is_sound());
        if config.in_sync.iter().any(has_rotted) {
            return Ok(());
        }
        self.stop_node_for(victim, false, "a copy is forged", SECOND);
        self.nodes[victim].forge(key, block, content)?;
        let limit = self.world.now + HEALING_LIMIT;
        if !self.run_until(limit, |life| life.has_healed())? {
            return Err(format!("a node with a forged copy does not come back: {}", self.troubles()));
        }
        // What a light scrub compares tells of blocks that verify no more than their checksums do.
        let is_deep = self.world.random.percent(50) || is_alike;
        self.scrub_everything(is_deep)?;
        self.check_agreement()?;
        // The one that was to lead may lead again by now.
        let config = &self.registry.map.pgs[&pg];
        let is_right = config.in_sync.len() <= 2 && config.primary.0 as usize == victim;
        let is_as_it_was = inspect::blocks(&self.nodes[witness], &key)
            .iter()
            .zip(&right)
            .all(|(now, before)| now.agrees(before));
        if !is_right && !is_as_it_was {
            return Err(format!("a forged copy of block {block} of {key} was taken for right"));
        }
        Ok(())
    }

    /// What no operation ever wrote to a block, with the checksums of what was written there.
    pub(super) fn forgery_of(&self, key: &ObjectKey, block: u16) -> [u8; BLOCK_BYTES] {
        let in_volume = u64::from(key.object) * OBJECT_BLOCKS as u64 + u64::from(block);
        let place = Place { volume: key.layer.volume().family().0 - 1, block: in_volume };
        let mut forged = [0; BLOCK_BYTES];
        self.world.plan.contents.fill(u64::MAX, place, &mut forged);
        forged
    }

    /// A scrub of every group finds and mends what nobody read.
    pub(super) fn scrub_everything(&mut self, is_deep: bool) -> Result<(), String> {
        // One that began before the last fault may have gone past what broke after it.
        self.scrubs_end()?;
        let mut left: BTreeSet<PgId> = self.registry.map.pgs.keys().copied().collect();
        for _ in 0..SCRUB_ATTEMPTS {
            if left.is_empty() {
                break;
            }
            // A message that comes late may break a connection still: then its groups begin anew.
            self.run_until(self.world.now + HEALING_LIMIT, |life| life.has_healed())?;
            for pg in &left {
                self.scrub(*pg, is_deep);
            }
            for report in self.scrubs_end()?.iter().filter(|report| report.is_deep == is_deep) {
                left.remove(&report.pg);
            }
        }
        if !left.is_empty() {
            return Err(format!("scrubs of {left:?} come to nothing again and again: {}", self.troubles()));
        }
        // What they found is being mended.
        self.run_until(self.world.now + SECOND, |_| false)?;
        for index in 0..self.nodes.len() {
            let Some(osd) = self.nodes[index].osd_mut() else { continue };
            if let Some(lost) = osd.lost_blocks().first() {
                return Err(format!("osd.{index} lost {lost:?}, and a sound copy was left"));
            }
        }
        Ok(())
    }

    /// Waits until no scrub is under way; what those that ended since the last call report.
    fn scrubs_end(&mut self) -> Result<Vec<ScrubReport>, String> {
        let limit = self.world.now + SCRUB_LIMIT;
        let is_done = self.run_until(limit, |life| {
            life.living().all(|node| node.osd().is_some_and(|osd| osd.view().scrub_is_over()))
        })?;
        if !is_done {
            return Err(format!("a scrub does not end: {}", self.troubles()));
        }
        let mut reports = Vec::new();
        for node in &mut self.nodes {
            reports.extend(node.osd_mut().into_iter().flat_map(pg::Osd::take_scrub_reports));
        }
        for report in &reports {
            self.world.coverage.count("a scrub ends");
            self.world.coverage.add("blocks found by scrubs", report.found);
        }
        Ok(reports)
    }

    /// Handles events until `limit`, or until `is_reached`; answers whether that was so.
    pub(super) fn run_until(
        &mut self,
        limit: u64,
        is_reached: impl Fn(&Life) -> bool,
    ) -> Result<bool, String> {
        loop {
            if self.events.is_multiple_of(16) && is_reached(self) {
                return Ok(true);
            }
            if self.world.next_at().is_none_or(|at| at > limit) {
                return Ok(is_reached(self));
            }
            let event = self.world.next_event().expect("there is one");
            self.events += 1;
            if self.events > EVENTS_MAX {
                return Err(format!("the life runs in circles: {}", self.troubles()));
            }
            self.handle(event)?;
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let world = &mut self.world;
        match event {
            Event::Wake(process) => return self.wake(process),
            Event::Resume { process, life } => {
                if world.is_alive(process, life) {
                    let end = self.nodes[process.0].resume(world)?;
                    return self.turn_ended(process, end);
                }
            }
            Event::Deliver { link, from } => {
                world.trace.count(5, world.now);
                world.deliver(link, from);
                self.count_work();
            }
            Event::Syn { link } => world.syn(link),
            Event::SynAck { link } => world.syn_ack(link),
            Event::LinksBreak { one, other } if !world.is_calm => world.break_links(one, other),
            Event::LinksBreak { .. } => {}
            Event::Told { link, end, reason } => world.tell_closed(link, end, reason),
            Event::LinkTimeout { link } => world.link_timeout(link),
            Event::DriveDone { process, life } => {
                if world.is_alive(process, life) {
                    self.nodes[process.0].drive_done(world);
                    self.count_work();
                }
            }
            Event::Propose(proposal) => {
                let (node, pg, epoch) = (proposal.process.0, proposal.pg, proposal.config.epoch);
                if self.registry.propose(proposal, world)? {
                    self.epoch_was_claimed(node, pg, epoch);
                }
            }
            Event::ProposalLookUp(proposal) => self.registry.look_up(*proposal, world),
            Event::ProposalAnswer { process, life, pg, accepted } => {
                if !world.is_alive(process, life) {
                    return Ok(());
                }
                // Whoever begins an epoch knows of every attach that was registered before its claim.
                if accepted.is_none() || self.registry.shows_map(process, world) {
                    world.tell(process, Input::Proposal { pg, accepted });
                } else {
                    let again = world.random.between(100 * MILLISECOND, SECOND);
                    world.after(again, Event::ProposalAnswer { process, life, pg, accepted });
                }
            }
            Event::MapArrives { process, life, map } => {
                self.registry.map_arrives(process, life, map, world);
                if self.registry.knows_of_its_removal(process) && self.nodes[process.0].shut_down(world) {
                    world.event(Some(process), "it was removed, so it ends");
                }
            }
            // One whose drive failed counts as up no longer than its lease lasts.
            Event::Heartbeat { process, .. } if self.nodes[process.0].has_failed_drive() => {}
            Event::Heartbeat { process, life } => self.registry.heartbeat(process, life, world),
            Event::ClientHeartbeat { process, life } => {
                if world.is_alive(process, life) && !self.registry.client_heartbeat(process, life, world) {
                    world.event(Some(process), "its volumes are no longer attached");
                    self.stop_client(process.0 - self.nodes.len());
                }
            }
            Event::LeaseCheck => {
                world.has_damage = self.atlas.has_damage(&self.nodes, &self.served);
                self.nodes.iter().filter_map(Node::osd).for_each(|osd| self.registry.hear(osd));
                self.registry.check_leases(world);
            }
            Event::RegistryBack { serial } => self.registry.come_back(serial, world),
            Event::Start(process) => return self.start(process),
            Event::Fault { serial } => self.fault(serial),
            Event::Heal { from, to, serial } => world.heal(from, to, serial),
            Event::Roll { node } => self.roll(node),
            Event::Retire => self.retire_somebody(),
            Event::Absence => self.absence_goes_on(),
            Event::SplitPool => {
                if self.registry.split_pool(world) {
                    self.split_is_unheard_of();
                } else {
                    world.after(SECOND, Event::SplitPool);
                }
            }
            Event::Snapshots => self.snapshots_change(),
            Event::Standstill => self.look_at_standstill(),
            Event::StandsStill { process, life, volume, number } => {
                if world.is_alive(process, life) {
                    let client = self.clients[process.0 - self.nodes.len()].id();
                    self.registry.client_stands_still(process, client, volume, number, world);
                }
            }
            Event::ChangesHands { process, life, volume, step } => {
                return self.changes_hands(process, life, volume, step);
            }
            Event::Malice { begins: true } => self.malice_begins(),
            Event::Malice { begins: false } => self.malice_ends(),
            Event::SpellEnds { serial } => {
                if serial == self.spell {
                    world.network_slowness = 1;
                    world.drive_slowness.fill(1);
                }
            }
        }
        Ok(())
    }

    fn wake(&mut self, process: Process) -> Result<(), String> {
        let world = &mut self.world;
        let mailbox = &mut world.mailboxes[process.0];
        // Another turn was asked for earlier, or the process is another one by now.
        if mailbox.wake_at != Some(world.now) || !mailbox.is_running {
            return Ok(());
        }
        mailbox.wake_at = None;
        if mailbox.hung_until > world.now {
            let at = mailbox.hung_until;
            world.wake(process, at);
            return Ok(());
        }
        world.trace.count(6, world.now ^ (process.0 as u64) << 56);
        if process.0 < self.nodes.len() {
            let end = self.nodes[process.0].turn(world)?;
            self.turn_ended(process, end)
        } else if Some(process) == world.plan.malicious_process() {
            self.hostile_turn();
            Ok(())
        } else {
            self.client_turn(process)
        }
    }

    fn client_turn(&mut self, process: Process) -> Result<(), String> {
        let (index, world) = (process.0 - self.nodes.len(), &mut self.world);
        let client = &mut self.clients[index];
        if client.fencer.is_some() {
            match client.fence(world) {
                Progress::UnderWay => return Ok(()),
                // Its records stay, so that whoever attaches next must do the same.
                Progress::Done if self.registry.is_reachable(process, world) => {}
                Progress::Done | Progress::Failed => {
                    world.event(Some(process), "attach: not made sure of");
                    self.stop_client(index);
                    return Ok(());
                }
            }
            let Some(fencer) = client.fencer.take() else { return Ok(()) };
            self.registry.fenced(&fencer.volumes, world);
            let volumes: Vec<_> =
                fencer.volumes.iter().map(|attached| (attached.id, attached.generation)).collect();
            for attached in fencer.volumes.iter().filter(|attached| !attached.unfenced.is_empty()) {
                world.event(Some(process), "attach: the fence stands");
                self.history.fence(attached.id, attached.generation, world.now);
            }
            if world.plan.opens {
                client.begin_opened(self.registry.volumes(), fencer.map(), &mut self.history, world);
                for (volume, generation) in volumes {
                    client.owns(volume, generation, &mut self.history, world);
                }
            } else {
                client.begin(&volumes, fencer.map(), world);
            }
            return Ok(());
        }
        client.turn(&mut self.history, world)?;
        for refusal in std::mem::take(&mut client.refusals) {
            self.check_refusal(process, index, &refusal)?;
        }
        if self.clients[index].is_fenced {
            self.stop_client(index);
        }
        Ok(())
    }

    /// A client was refused something: that must have a reason.
    fn check_refusal(&mut self, process: Process, index: usize, refusal: &Refusal) -> Result<(), String> {
        let Refusal { operation, ref error } = *refusal;
        let reason = match *error {
            ClientError::Fenced { .. } => {
                let volume = volume_id(self.history.step(operation).volume);
                let newest = self.registry.map.volumes[&volume].generation;
                match newest > self.history.generation(operation) {
                    true => Some("an operation is fenced"),
                    false => self.is_fenced_by_a_lie().then_some("an operation is fenced by a lie"),
                }
            }
            ClientError::Damaged { object, offset, .. } => {
                let byte = u64::from(object) * OBJECT_BYTES + u64::from(offset);
                let block = byte / BLOCK_BYTES as u64;
                self.why_unreadable(operation, block..block + 1)
            }
            ClientError::DeviceFailed { .. } if self.is_unwritable(operation) => {
                Some("an operation fails for a drive that takes no writes")
            }
            ClientError::DeviceFailed { .. } => {
                self.why_unreadable(operation, self.history.blocks_of(operation))
            }
            ClientError::OutOfRange { offset, length, bytes, .. } => {
                let volume = volume_id(self.history.step(operation).volume);
                let is_beyond = offset + length > bytes && self.registry.had_size(volume, bytes);
                is_beyond.then_some("an operation lies beyond the end of its volume")
            }
            _ => None,
        };
        let Some(reason) = reason else {
            let (name, operation) = (self.world.name(process), self.history.describe(operation));
            return Err(format!("{name}: {operation}: {error}"));
        };
        self.world.coverage.count(reason);
        if reason == LOST_HALF_WRITTEN {
            // As who uses the volume would do, before everything is read in the end.
            self.clients[index].write_off(operation, &self.history, &mut self.world);
        }
        Ok(())
    }

    fn turn_ended(&mut self, process: Process, end: TurnEnd) -> Result<(), String> {
        if self.world.plan.follows_logs
            && let Some(osd) = self.nodes[process.0].osd()
        {
            for (index, end) in (0..).zip(&mut self.world.group_ends) {
                let position = osd.store().pg_position(PgId { pool: POOL, index });
                *end = (*end).max(position.map_or(0, |(_, sequence)| sequence.0));
            }
        }
        if self.world.plan.malice.is_some()
            && let Some(osd) = self.nodes[process.0].osd()
        {
            osd.view().check_bounds().map_err(|error| format!("{}: {error}", osd.id()))?;
        }
        if self.world.plan.store_coup_percent > 0 {
            self.store_is_at_work(process.0);
        }
        for (pg, epoch, trouble) in self.nodes[process.0].changes() {
            let Some(epoch) = epoch else {
                let trouble = trouble.unwrap_or_default();
                self.world.story(Some(process), || format!("does not serve pg {pg}: {trouble}"));
                continue;
            };
            self.world.coverage.count("a group begins to serve");
            self.serving_since.insert(pg, (epoch, self.world.now));
            self.world.story(Some(process), || format!("serves pg {pg} in {epoch}"));
            let server = (process.0, self.world.mailboxes[process.0].life);
            let first = *self.served.entry((pg, epoch)).or_insert(server);
            if first != server {
                return Err(format!(
                    "pg {pg} is served in {epoch} by {server:?} and was by {first:?} (node, life)"
                ));
            }
            let primary = self.registry.config_of(pg, epoch).map(|config| config.primary);
            if primary != Some(self.nodes[process.0].osd_id()) {
                return Err(format!(
                    "node {process:?} serves pg {pg} in {epoch}, whose primary is {primary:?}"
                ));
            }
        }
        for pg in self.nodes[process.0].osd().into_iter().flat_map(|osd| osd.view().left_groups()) {
            if !self.registry.is_dispensable(pg, self.nodes[process.0].osd_id()) {
                return Err(format!(
                    "node {process:?} deletes what it holds of pg {pg}, and its target was never in sync without it"
                ));
            }
        }
        if self.nodes[process.0].has_failed_drive() {
            self.nodes[process.0].refuses_writes(self.world.now);
        }
        if end == TurnEnd::Exits {
            self.stop_node(process.0, false, "shutdown done");
            self.registry.withdraw(process.0, &mut self.world);
            self.ended_in_good_order(process.0);
        } else if self.nodes[process.0].has_failed_drive() {
            self.gives_its_drive_up(process);
        } else if let Some(osd) = self.nodes[process.0].osd() {
            self.registry.heed_drive(process.0, osd.view().drive_hangs(), &mut self.world);
        }
        Ok(())
    }

    /// As whoever controls an OSD does that has given its drive up: it counts as down from now on, and lets go of the drive. A
    /// person starts it again.
    fn gives_its_drive_up(&mut self, process: Process) {
        if self.registry.is_reachable(process, &self.world)
            && self.nodes[process.0].shut_down(&mut self.world)
        {
            self.world.event(Some(process), "gives its drive up");
            self.registry.withdraw(process.0, &mut self.world);
        }
    }

    /// Whether some drive failed to take a write since an operation began that changes something, or a moment before, and it may
    /// have been the only one that was left.
    fn is_unwritable(&self, operation: u64) -> bool {
        let is_change = matches!(self.history.step(operation).kind, Kind::Write | Kind::Zero);
        let since = self.history.began_at(operation).saturating_sub(SECOND);
        is_change
            && self.registry.had_one_member_alone()
            && self.nodes.iter().any(|node| node.failed_to_write_since(since))
    }

    /// A process starts, if it can reach the registry; else it tries again.
    fn start(&mut self, process: Process) -> Result<(), String> {
        let world = &mut self.world;
        if world.mailboxes[process.0].is_running {
            return Ok(());
        }
        if process.0 < self.nodes.len() && self.registry.is_gone(process.0) {
            return Ok(());
        }
        world.mailboxes[process.0].is_powered = true;
        if !self.registry.is_reachable(process, world) {
            let again = world.random.between(50 * MILLISECOND, SECOND);
            world.after(again, Event::Start(process));
            return Ok(());
        }
        let mut attached = None;
        if let Some(index) = process.0.checked_sub(self.nodes.len())
            && index < world.plan.clients
        {
            let id = self.clients[index].draw_id();
            attached = match world.plan.opens {
                true => Some(self.registry.open(process, id, world)),
                false => self.registry.attach(process, id, world),
            };
            if attached.is_none() {
                let again = world.random.between(100 * MILLISECOND, SECOND);
                world.after(again, Event::Start(process));
                return Ok(());
            }
        }
        if process.0 < self.nodes.len() {
            let node = &mut self.nodes[process.0];
            if self.registry.is_to_be_replaced(process.0) {
                if !self.registry.replace(process.0, node.next_identity(), world) {
                    let again = world.random.between(200 * MILLISECOND, SECOND);
                    world.after(again, Event::Start(process));
                    return Ok(());
                }
                node.replace_drive(&mut world.random);
            }
            let blows = !world.is_calm && world.now > 0 && world.random.percent(5);
            let fuse = blows.then(|| world.random.below(40));
            let again = match node.start(fuse, world)? {
                Started::Yes => None,
                Started::PowerFailed => {
                    world.event(Some(process), "power cut while starting");
                    Some(world.random.between(10 * MILLISECOND, 2 * SECOND))
                }
                Started::Refused(reason) => {
                    world.event(Some(process), "is not started, and shall have a blank drive");
                    world.story(Some(process), || reason);
                    self.registry.lose_for_another(process.0, world);
                    Some(SECOND)
                }
            };
            if let Some(again) = again {
                world.after(again, Event::Start(process));
                return Ok(());
            }
        }
        let mailbox = &mut world.mailboxes[process.0];
        mailbox.is_running = true;
        mailbox.life += 1;
        let life = mailbox.life;
        world.event(Some(process), "start");
        world.story(Some(process), || format!("lives for the {life}. time"));
        if process.0 < self.nodes.len() {
            self.registry.announce(process, world);
            self.node_came_back();
        }
        let (map, world) = (self.registry.map_at_start(process), &mut self.world);
        if process.0 < self.nodes.len() {
            world.tell(process, Input::Map(map));
            return Ok(());
        }
        let client = &mut self.clients[process.0 - self.nodes.len()];
        match attached {
            Some(volumes) => client.start_fencing(volumes, map, world),
            None => {
                // Who reads everything in the end is no danger to anybody.
                let listed = map.volumes.iter().filter(|(_, info)| info.is_listed());
                let volumes: Vec<_> = listed.map(|(id, info)| (*id, info.generation)).collect();
                client.draw_id();
                client.begin(&volumes, map, world);
            }
        }
        Ok(())
    }

    /// Whether every group is served by whoever should.
    pub(super) fn all_groups_serve(&self) -> bool {
        self.registry.map.pgs.iter().all(|(pg, config)| {
            let primary = self.nodes[config.primary.0 as usize].osd();
            primary.is_some_and(|osd| {
                osd.view().summaries().any(|summary| {
                    summary.pg == *pg && summary.trouble.is_none() && summary.epoch == config.epoch
                })
            })
        })
    }

    pub(super) fn has_healed(&self) -> bool {
        let is_whole = |(pg, config): (&PgId, &base::map::PgConfig)| {
            let target = &self.registry.map.targets[pg];
            config.in_sync.len() == target.len()
                && config.in_sync.iter().all(|osd| target.contains(osd))
                && config.learners.is_empty()
                && config.primary == target[0]
        };
        self.clients.iter().all(|client| client.is_done(&self.history, &self.world.plan))
            && self.living().all(|node| node.is_running() && !node.is_shutting_down())
            && self.living().all(|node| self.registry.is_up(node.osd_id()))
            && self.registry.map.pgs.iter().all(is_whole)
            && self.all_groups_serve()
            && self.registry.is_settled()
            && self.registry.has_removed_all()
            && self.is_split()
    }

    /// Whether the pool has as many groups as it is to have.
    fn is_split(&self) -> bool {
        self.registry.pool().pg_count == self.world.plan.pg_numbers()
    }

    /// The nodes that are not gone for good.
    pub(super) fn living(&self) -> impl Iterator<Item = &Node> {
        let is_there = |(index, _): &(usize, &Node)| !self.registry.is_gone(*index);
        self.nodes.iter().enumerate().filter(is_there).map(|(_, node)| node)
    }

    /// What is not as it should be, in words.
    pub(super) fn troubles(&self) -> String {
        let mut text = String::new();
        for (pg, config) in &self.registry.map.pgs {
            let target = &self.registry.map.targets[pg];
            text.push_str(&format!("\n    pg {pg} is registered as {config:?}, and shall lie on {target:?}"));
        }
        let (pool, clients) = (self.registry.pool(), &self.clients);
        let busy = clients.iter().filter(|client| !client.is_done(&self.history, &self.world.plan)).count();
        text.push_str(&format!(
            "\n    {} of {} groups, split to {:?}; targets are settled: {}; removed: {}; {busy} clients are not done",
            pool.pg_count,
            self.world.plan.pg_numbers(),
            pool.split_to,
            self.registry.is_settled(),
            self.registry.has_removed_all(),
        ));
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(osd) = node.osd() else {
                text.push_str(&format!("\n    osd.{index} does not run"));
                continue;
            };
            text.push_str(&format!("\n    osd.{index}: {}", node.state()));
            for summary in osd.view().summaries() {
                let trouble = summary.trouble.as_deref().unwrap_or("serves");
                text.push_str(&format!(
                    "\n    osd.{index}: pg {} in {}: {trouble}",
                    summary.pg, summary.epoch
                ));
            }
            for note in osd.view().notes() {
                text.push_str(&format!("\n    osd.{index} notes: {note}"));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            text.push_str(&format!("\n    client {index}: {}", client.trouble()));
        }
        for operation in self.history.pending().take(20) {
            text.push_str(&format!("\n    not ended: {operation}"));
        }
        text
    }
}
