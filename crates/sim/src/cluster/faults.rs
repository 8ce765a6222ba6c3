//! What breaks when, and how it becomes whole again.

use super::life::Life;
use super::node::StoreWork;
use super::plan::FaultKind;
use super::world::{Event, MILLISECOND, Process, SECOND, Stuck};
use base::map::Admission;
use base::{Epoch, OsdId, PgId};

/// A node that dies with the next fault.
#[derive(Debug)]
pub(super) struct Doomed {
    node: usize,
    /// How long it is away then.
    outage: u64,
    /// Of a hundred clients, how many die with it, so that nobody asks again for what it had begun.
    clients_percent: u64,
    /// Of a hundred of these deaths, how many take the power with them.
    power_cut_percent: u64,
}

/// Of a hundred deaths at the worst moment for a group, how many are power cuts.
const POWER_CUT_PERCENT: u64 = 30;
/// The same of those at the worst moment for a drive.
const POWER_CUT_PERCENT_AT_THE_STORE: u64 = 70;

impl Life {
    /// Something breaks now, and the next thing later.
    pub(super) fn fault(&mut self, serial: u64) {
        if serial != self.next_fault || self.faults_are_over() {
            return;
        }
        // What hurts most is what breaks while something is under way: the next fault strikes with one of the
        // next messages or drive operations.
        if self.armed.is_none() && self.world.random.percent(self.world.plan.at_work_percent) {
            self.armed = Some(self.world.random.below(100));
            // Should nothing be under way for long, it strikes then.
            return self.schedule_fault(SECOND);
        }
        self.strike();
    }

    /// The next fault is of this kind, and strikes with one of the next messages or drive operations.
    pub(super) fn strike_soon(&mut self, kind: FaultKind, within: u64) {
        self.encore = Some(kind);
        self.armed = Some(self.world.random.below(within));
    }

    /// Counts what is under way, and lets an armed fault strike.
    pub(super) fn count_work(&mut self) {
        match &mut self.armed {
            Some(0) => self.strike(),
            Some(left) => *left -= 1,
            None => {}
        }
    }

    fn strike(&mut self) {
        if self.world.is_calm {
            return;
        }
        self.armed = None;
        self.faults += 1;
        match self.doomed.take() {
            Some(doomed) => self.die(&doomed),
            None => {
                let drawn = self.world.plan.clone().draw_fault(&mut self.world.random);
                let kind = self.encore.take().unwrap_or(drawn);
                self.inflict(kind);
            }
        }
        let plan = &self.world.plan;
        let (rapid, pause_max) = (plan.rapid_percent, plan.fault_pause_max);
        // What hurts most is what breaks while something else is being repaired.
        let hurries = self.world.random.percent(rapid) && !self.all_groups_serve();
        let pause = if hurries {
            self.world.random.below(300 * MILLISECOND)
        } else {
            self.world.random.between(MILLISECOND, pause_max)
        };
        self.schedule_fault(pause);
    }

    /// Whether nothing more shall break.
    fn faults_are_over(&self) -> bool {
        self.world.is_calm || self.faults >= self.world.plan.faults_max
    }

    /// The next fault comes after `pause`, and none before.
    pub(super) fn schedule_fault(&mut self, pause: u64) {
        let serial = self.world.next_serial();
        self.next_fault = serial;
        self.world.after(pause, Event::Fault { serial });
    }

    /// How long an outage lasts: most are short.
    fn outage(&mut self) -> u64 {
        let longest = self.world.plan.outage_max;
        let limit = match self.world.random.below(5) {
            0 | 1 => 20 * MILLISECOND,
            2 => SECOND,
            _ => longest,
        };
        self.world.random.between(10 * MILLISECOND, limit.min(longest))
    }

    pub(super) fn some_node(&mut self) -> usize {
        self.world.random.index(self.nodes.len())
    }

    /// The primary of some group.
    pub(super) fn some_primary(&mut self) -> usize {
        let pg = self.registry.some_group(&mut self.world.random);
        self.registry.map.pgs[&pg].primary.0 as usize
    }

    fn some_process(&mut self) -> Process {
        Process(self.world.random.index(self.nodes.len() + self.world.plan.clients))
    }

    fn inflict(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Crash => {
                let node = self.some_node();
                self.stop_node(node, false, "crash");
            }
            FaultKind::PowerCut => {
                let node = self.some_node();
                self.stop_node(node, true, "power cut");
            }
            FaultKind::CrashAll | FaultKind::PowerCutAll => {
                for node in 0..self.nodes.len() {
                    let is_power_cut = kind == FaultKind::PowerCutAll;
                    let what = if is_power_cut { "power cut of all" } else { "crash of all" };
                    self.stop_node(node, is_power_cut, what);
                }
            }
            FaultKind::Shutdown if self.world.plan.has_rolling_restarts && self.world.random.percent(50) => {
                self.world.event(None, "a rolling restart");
                self.roll(0);
            }
            FaultKind::Shutdown => {
                let node = self.some_node();
                if self.nodes[node].shut_down(&mut self.world) {
                    self.world.event(Some(Process(node)), "shutdown begins");
                }
            }
            FaultKind::Hang => {
                let process = self.some_process();
                let outage = self.outage();
                self.world.mailboxes[process.0].hung_until = self.world.now + outage;
                self.world.event(Some(process), "hang");
            }
            FaultKind::StallInTurn => {
                let node = self.some_node();
                let outage = self.outage();
                if self.nodes[node].arm_stall(outage) {
                    self.world.event(Some(Process(node)), "stall in a turn");
                }
            }
            FaultKind::BreakLink => {
                if self.world.break_some_link() {
                    self.world.event(None, "link break");
                }
            }
            FaultKind::OneWayPartition | FaultKind::TwoWayPartition => {
                let (from, to) = (self.some_process(), self.some_peer());
                if from != to {
                    let outage = self.outage();
                    self.partition(from, to, outage, kind == FaultKind::TwoWayPartition);
                }
            }
            FaultKind::Isolation => {
                let process = self.some_process();
                let outage = self.outage();
                self.world.event(Some(process), "isolation");
                self.isolate(process, outage);
            }
            FaultKind::Split if self.world.plan.is_exclusive && self.world.random.percent(60) => {
                self.cut_off_the_holder();
            }
            FaultKind::Split => {
                let mut outage = self.outage();
                self.world.event(None, "split");
                let registry = self.world.registry();
                let mut is_away: Vec<bool> = (0..self.world.mailboxes.len())
                    .map(|index| Process(index) != registry && self.world.random.percent(40))
                    .collect();
                if self.world.random.percent(60) {
                    // A primary and a client that reads there, neither of which hears of what the others decide: for long
                    // enough that they do.
                    outage = self.world.random.between(1500 * MILLISECOND, 6 * SECOND);
                    is_away.fill(false);
                    is_away[self.some_primary()] = true;
                    is_away[self.nodes.len()] = true;
                }
                for (one, is_here) in is_away.iter().enumerate() {
                    for (other, _) in is_away.iter().enumerate().filter(|(_, there)| *there != is_here) {
                        self.world.cut(Process(one), Process(other), outage);
                    }
                }
            }
            FaultKind::TwoAtOnce if self.world.plan.topology.has_shape() && self.world.random.percent(60) => {
                let neighbours = self.registry.some_neighbours(&mut self.world.random);
                let is_power_cut = self.world.random.percent(50);
                self.world.event(None, "a failure domain goes down");
                for node in neighbours {
                    self.stop_node(node, is_power_cut, "with its neighbours");
                }
            }
            FaultKind::TwoAtOnce => {
                let node = self.some_node();
                if self.world.random.percent(50) {
                    let outage = self.world.random.between(900 * MILLISECOND, 4 * SECOND);
                    self.world.mailboxes[node].hung_until = self.world.now + outage;
                    self.world.event(Some(Process(node)), "hang");
                } else {
                    self.stop_node(node, true, "power cut");
                }
                self.encore = Some(self.world.random.choose(&[FaultKind::Crash, FaultKind::PowerCut]));
                self.armed = Some(self.world.random.below(60));
            }
            FaultKind::PrimaryCutOff => self.cut_off_some_primary(),
            FaultKind::RegistryDown
                if self.world.plan.registry_loses_leases && self.world.random.percent(50) =>
            {
                let process = self.some_process();
                self.world.event(Some(process), "its lease is lost");
                self.registry.lose_a_lease(process, &mut self.world);
            }
            FaultKind::RegistryDown => {
                let drawn = self.outage();
                // It is back when everything calms down.
                let outage = if self.world.plan.registry_stays_away { 600 * SECOND } else { drawn };
                self.world.event(None, "registry outage");
                self.registry.go_away(outage, &mut self.world);
            }
            FaultKind::ClientCrash => {
                let index = self.world.random.index(self.world.plan.clients);
                self.stop_client(index);
            }
            // Whoever holds the last sound copy of something stays until it is mended.
            FaultKind::Admission
            | FaultKind::MoveGroup
            | FaultKind::ResizePool
            | FaultKind::DriveLost
            | FaultKind::DriveReplaced
                if self.atlas.has_damage(&self.nodes, &self.served) => {}
            FaultKind::Admission if self.world.plan.topology.has_shape() && self.world.random.percent(30) => {
                let node = self.some_node();
                self.world.event(Some(Process(node)), "carried elsewhere");
                self.registry.carry(node, &mut self.world);
            }
            FaultKind::Admission if self.world.random.percent(30) => {
                let node = self.some_node();
                self.world.event(Some(Process(node)), "reweighed");
                self.registry.reweigh(node, &mut self.world);
            }
            FaultKind::Admission => {
                let node = self.some_node();
                if !self.registry.is_gone(node) && !self.registry.retires(node) {
                    let osd = OsdId(node as u32);
                    let is_in = self.registry.map.osds.get(&osd).map(|info| info.admission);
                    let admission = if is_in == Some(Admission::In) { Admission::Out } else { Admission::In };
                    self.world.event(Some(Process(node)), "taken out or in");
                    self.registry.admit(node, admission, &mut self.world);
                }
            }
            FaultKind::MoveGroup => {
                self.world.event(None, "a group moves");
                self.registry.move_group(&mut self.world);
            }
            FaultKind::ResizePool => {
                self.world.event(None, "the pool is resized");
                self.registry.resize_pool(&mut self.world);
            }
            FaultKind::DriveLost => {
                let node = self.some_node();
                let is_there = !self.registry.has_lost_its_drive(node);
                if is_there && self.registry.is_settled() && self.registry.can_lose(node) {
                    self.world.event(Some(Process(node)), "drive lost");
                    self.registry.lose(node);
                    self.stop_node(node, true, "its process ends");
                }
            }
            FaultKind::DriveReplaced => {
                let node = self.some_node();
                // With the power, or alone; or an operator ends the OSD in good order to take a drive away that works.
                match self.world.random.below(3) {
                    0 if self.nodes[node].shut_down(&mut self.world) => {
                        self.world.event(Some(Process(node)), "shutdown begins");
                        self.ends_for_another = Some(node);
                    }
                    ending if self.nodes[node].is_running() && self.lose_for_another(node) => {
                        self.stop_node(node, ending == 1, "its process ends");
                    }
                    _ => {}
                }
            }
            FaultKind::WriteErrors => {
                let node = self.some_node();
                let outage = self.outage();
                self.world.event(Some(Process(node)), "write errors");
                self.nodes[node].fail_writes(self.world.now + outage);
            }
            FaultKind::MisdirectedWrite => self.misdirect_some_write(),
            FaultKind::StuckDrive => {
                let node = self.some_node();
                let outage = self.world.random.between(SECOND, 30 * SECOND);
                let until = self.world.now + outage;
                let (what, stuck) = match self.world.random.below(3) {
                    0 => ("a drive does nothing", Stuck { reads_until: until, changes_until: until }),
                    1 => ("a drive reads nothing", Stuck { reads_until: until, changes_until: 0 }),
                    _ => ("a drive writes nothing", Stuck { reads_until: 0, changes_until: until }),
                };
                self.world.event(Some(Process(node)), what);
                self.world.stuck[node] = stuck;
            }
            FaultKind::Rot if !self.registry.is_settled() => {}
            FaultKind::Rot if self.world.random.percent(30) => self.rot_the_end_of_some_log(),
            FaultKind::Rot => {
                let count = self.world.random.between(1, 4);
                for _ in 0..count {
                    self.rot_some_block();
                }
            }
            FaultKind::BadBlock => {
                let node = self.some_node();
                self.stop_node(node, self.faults.is_multiple_of(2), "is stopped, and its drive goes bad");
                if self.nodes[node].go_bad(&mut self.world.random) {
                    self.world.event(Some(Process(node)), "a block goes bad");
                }
            }
            // What a log has lost only one other may have, and that one has to be readable.
            FaultKind::ReadErrors if self.atlas.has_short_log(&self.nodes, &self.served) => {}
            FaultKind::ReadErrors => {
                let node = self.some_node_that_is_needed();
                let outage = self.outage();
                self.world.event(Some(Process(node)), "read errors");
                for other in &mut self.nodes {
                    other.read_again(self.world.now);
                }
                self.nodes[node].fail_reads(self.world.now + outage);
            }
            FaultKind::Scrub => {
                let is_deep = self.world.random.percent(70);
                let pg = self.registry.some_group(&mut self.world.random);
                self.world.event(None, "a scrub is asked for");
                self.scrub(pg, is_deep);
            }
            FaultKind::SlowNetwork | FaultKind::SlowDrives => {
                let factor = self.world.random.choose(&[10, 100]);
                let serial = self.world.next_serial();
                let outage = self.outage();
                self.spell = serial;
                if kind == FaultKind::SlowNetwork {
                    self.world.network_slowness = factor;
                    self.world.event(None, "slow network");
                } else {
                    let node = self.some_node();
                    let is_alone = self.world.random.percent(70);
                    for (index, slowness) in self.world.drive_slowness.iter_mut().enumerate() {
                        *slowness = if !is_alone || index == node { factor } else { 1 };
                    }
                    self.world.event(Some(Process(node)), "slow drives");
                    if self.world.random.percent(50) {
                        // A member that knows more than its drive, while another one comes back.
                        self.encore = Some(FaultKind::Crash);
                        self.armed = Some(self.world.random.below(60));
                    }
                }
                self.world.after(outage, Event::SpellEnds { serial });
            }
        }
    }

    /// A node's drive is lost, and an operator has another one, if nothing is lost for good by that.
    fn lose_for_another(&mut self, node: usize) -> bool {
        let is_known = self.registry.map.osds.contains_key(&OsdId(node as u32));
        let is_there = is_known && !self.registry.has_lost_its_drive(node) && !self.registry.retires(node);
        let is_lost = is_there && self.registry.is_settled() && self.registry.can_lose(node);
        if is_lost {
            self.world.event(Some(Process(node)), "drive lost, and another is there");
            self.registry.lose_for_another(node, &mut self.world);
        }
        is_lost
    }

    /// A node has ended in good order: perhaps for its drive to be replaced.
    pub(super) fn ended_in_good_order(&mut self, node: usize) {
        let is_meant = self.ends_for_another.take_if(|meant| *meant == node).is_some();
        if is_meant
            && !self.world.is_calm
            && !self.atlas.has_damage(&self.nodes, &self.served)
            && self.lose_for_another(node)
        {
            self.world.event(Some(Process(node)), "ended in good order for another drive");
        }
    }

    /// An operator wants to take some OSD away that lives.
    pub(super) fn retire_somebody(&mut self) {
        if self.world.is_calm {
            return;
        }
        let node = self.some_node();
        // Whoever holds the last sound copy of something stays until it is mended.
        let may_go = !self.atlas.has_damage(&self.nodes, &self.served);
        if may_go && self.registry.retire(node, &mut self.world) {
            self.world.event(Some(Process(node)), "shall be drained and removed");
        } else {
            self.world.after(SECOND, Event::Retire);
        }
    }

    /// An operator shuts a node down as soon as the one before it is back, then the next one.
    pub(super) fn roll(&mut self, node: usize) {
        if self.world.is_calm || node >= self.nodes.len() {
            return;
        }
        let is_back = node == 0 || self.nodes[node - 1].is_running() || self.registry.is_gone(node - 1);
        let next = if is_back { node + 1 } else { node };
        if is_back && self.nodes[node].shut_down(&mut self.world) {
            self.world.event(Some(Process(node)), "its turn in a rolling restart");
        }
        let pause = self.world.random.between(500 * MILLISECOND, 3 * SECOND);
        self.world.after(pause, Event::Roll { node: next });
    }

    /// The primary of a group of which somebody lacks something, if there is one; sometimes the other one who has all
    /// dies a moment later, and whom the primary can ask holds something older.
    fn some_node_that_is_needed(&mut self) -> usize {
        let Some(pg) = self.some_degraded_group(1) else { return self.some_node() };
        let config = self.registry.map.pgs[&pg].clone();
        if let Some(other) = config.in_sync.iter().find(|osd| **osd != config.primary)
            && self.doomed.is_none()
            && self.world.random.percent(50)
        {
            let outage = self.world.random.between(SECOND, 6 * SECOND);
            self.doom(other.0 as usize, outage);
        }
        config.primary.0 as usize
    }

    /// A primary that its clients reach, and its replicas do not, mostly dies a moment later. What it wrote meanwhile is on
    /// its drive alone, and in no other order than its own.
    fn cut_off_some_primary(&mut self) {
        let node = self.some_primary();
        self.world.event(Some(Process(node)), "a primary is cut off");
        // For about as long as a lease lasts, so that it is heard again when another is about to take its place; or longer.
        let lives = self.world.random.percent(40);
        let outage = match lives {
            true => self.world.random.between(700 * MILLISECOND, 1600 * MILLISECOND),
            false => self.world.random.between(SECOND, 3 * SECOND),
        };
        self.part_from_nodes(node, outage);
        if lives {
            return;
        }
        // The others go on no sooner than its leases have ended.
        let outage = self.world.random.between(SECOND, 8 * SECOND);
        let clients_percent = self.world.random.choose(&[0, 50, 100]);
        self.will_die(Doomed { node, outage, clients_percent, power_cut_percent: POWER_CUT_PERCENT }, 60);
    }

    /// The client that has the volumes and a primary hear nothing of the registry or of other clients, until another client
    /// has attached: neither knows, and the other OSDs are there for both.
    fn cut_off_the_holder(&mut self) {
        let holder = self.clients.iter().position(|client| client.is_running() && client.fencer.is_none());
        let primary = self.some_primary();
        let Some(holder) = holder else { return };
        let holder = Process(self.nodes.len() + holder);
        self.world.event(Some(holder), "the holder and a primary are cut off");
        let outage = self.world.random.between(5 * SECOND, 12 * SECOND);
        for one in [holder, Process(primary)] {
            for other in (self.nodes.len()..self.world.mailboxes.len()).map(Process) {
                if other != holder {
                    self.world.cut(one, other, outage);
                    self.world.cut(other, one, outage);
                }
            }
        }
    }

    /// A node has an epoch: the worst moment to lose it is before all have agreed on it.
    pub(super) fn epoch_was_claimed(&mut self, node: usize, pg: PgId, epoch: Epoch) {
        let is_over = self.faults_are_over();
        if !is_over && self.world.plan.drives_rot() && self.world.random.percent(30) {
            self.rot_the_end_of_a_newcomer(pg, epoch);
        }
        if is_over || self.doomed.is_some() || !self.world.random.percent(self.world.plan.coup_percent) {
            return;
        }
        let outage = self.outage();
        self.doom(node, outage);
    }

    /// A node's store writes a checkpoint or cleans: the worst moment for a drive to lose its power is before that has ended.
    pub(super) fn store_is_at_work(&mut self, node: usize) {
        let is_over = self.faults_are_over();
        let Some(work) = self.nodes[node].store_work() else { return };
        let percent = self.world.plan.store_coup_percent;
        let (what, percent) = match work {
            StoreWork::Checkpoint => ("to die while a checkpoint is written", percent),
            // Few drives ever fill up so far.
            StoreWork::Cleaning => ("to die while blocks are cleaned", 10 * percent),
        };
        if is_over || self.doomed.is_some() || !self.world.random.percent(percent) {
            return;
        }
        self.world.event(Some(Process(node)), what);
        let outage = self.outage();
        let power_cut_percent = POWER_CUT_PERCENT_AT_THE_STORE;
        self.will_die(Doomed { node, outage, clients_percent: 0, power_cut_percent }, 20);
    }

    /// A node dies with one of the next messages or drive operations.
    pub(super) fn doom(&mut self, node: usize, outage: u64) {
        self.will_die(Doomed { node, outage, clients_percent: 0, power_cut_percent: POWER_CUT_PERCENT }, 60);
    }

    /// A node dies with one of so many messages or drive operations that come next.
    fn will_die(&mut self, doomed: Doomed, within: u64) {
        self.doomed = Some(doomed);
        self.armed = Some(self.world.random.below(within));
    }

    /// A node comes back and is brought up to date: a bad moment for others not to read what they have.
    pub(super) fn node_came_back(&mut self) {
        let may_fail = !self.faults_are_over() && self.encore.is_none() && self.world.plan.drives_fail();
        if may_fail && self.world.random.percent(20) {
            self.encore = Some(FaultKind::ReadErrors);
            self.armed = Some(self.world.random.below(400));
        }
    }

    fn die(&mut self, doomed: &Doomed) {
        let is_power_cut = self.world.random.percent(doomed.power_cut_percent);
        self.stop_node_for(doomed.node, is_power_cut, "a death at the worst moment", doomed.outage);
        for client in 0..self.world.plan.clients {
            if self.world.random.percent(doomed.clients_percent) {
                self.stop_client(client);
            }
        }
    }

    /// A client does not hear that groups are split, and loses what it sent to those that were.
    pub(super) fn split_is_unheard_of(&mut self) {
        if self.faults_are_over() || !self.world.random.percent(50) {
            return;
        }
        let client = Process(self.nodes.len() + self.world.random.index(self.world.plan.clients));
        self.world.event(Some(client), "a split is unheard of");
        let outage = self.world.random.between(2 * SECOND, 10 * SECOND);
        self.world.cut(self.world.registry(), client, outage);
        for node in (0..self.nodes.len()).map(Process) {
            for _ in 0..4 {
                let at = self.world.random.below(outage);
                self.world.after(at, Event::LinksBreak { one: client, other: node });
            }
        }
    }

    /// Nodes are what matters most, the registry comes next.
    fn some_peer(&mut self) -> Process {
        if self.world.random.one_in(5) { self.world.registry() } else { Process(self.some_node()) }
    }

    /// Nothing gets through between a node and the others.
    pub(super) fn part_from_nodes(&mut self, node: usize, outage: u64) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.world.cut(Process(node), Process(other), outage);
            self.world.cut(Process(other), Process(node), outage);
        }
    }

    /// Nothing gets through to or from a process.
    pub(super) fn isolate(&mut self, process: Process, outage: u64) {
        for other in (0..self.world.mailboxes.len()).map(Process).filter(|other| *other != process) {
            self.world.cut(process, other, outage);
            self.world.cut(other, process, outage);
        }
    }

    fn partition(&mut self, from: Process, to: Process, outage: u64, is_two_way: bool) {
        let what = if is_two_way { "two-way partition" } else { "one-way partition" };
        let (world, turned) = (&mut self.world, self.faults.is_multiple_of(2));
        let (from, to) = if turned { (to, from) } else { (from, to) };
        world.event(Some(from), what);
        world.story(Some(from), || format!("does not reach {}", world.name(to)));
        world.cut(from, to, outage);
        if is_two_way {
            world.cut(to, from, outage);
        }
    }

    /// A node's process ends; it starts again later.
    pub(super) fn stop_node(&mut self, node: usize, is_power_cut: bool, what: &'static str) {
        if self.nodes[node].is_running() {
            let outage = self.outage();
            self.stop_node_for(node, is_power_cut, what, outage);
        }
    }

    pub(super) fn stop_node_for(&mut self, node: usize, is_power_cut: bool, what: &'static str, outage: u64) {
        if !self.nodes[node].is_running() {
            return;
        }
        let process = Process(node);
        self.world.event(Some(process), what);
        self.note_milestones_of(node);
        self.nodes[node].stop(is_power_cut);
        self.end_process(process, is_power_cut);
        self.world.after(outage, Event::Start(process));
    }

    pub(super) fn stop_client(&mut self, index: usize) {
        if !self.clients[index].is_running() {
            return;
        }
        let process = Process(self.nodes.len() + index);
        self.world.event(Some(process), "client crash");
        self.clients[index].stop();
        self.end_process(process, false);
        let outage = self.outage();
        self.world.after(outage, Event::Start(process));
    }

    pub(super) fn end_process(&mut self, process: Process, is_power_cut: bool) {
        let mailbox = &mut self.world.mailboxes[process.0];
        mailbox.is_running = false;
        mailbox.is_powered = !is_power_cut;
        mailbox.inputs.clear();
        mailbox.released.clear();
        mailbox.hung_until = 0;
        mailbox.wake_at = None;
        self.world.cut_off(process, is_power_cut);
    }

    /// Everything that is broken becomes whole, and nothing breaks any more.
    pub(super) fn calm_down(&mut self) {
        self.world.story(None, || "no more faults from here on".to_owned());
        self.malice_ends();
        self.start_anew_who_lacks_a_batch();
        self.world.is_calm = true;
        self.world.is_hurried = false;
        self.world.network_slowness = 1;
        self.world.drive_slowness.fill(1);
        self.world.stuck.fill(Stuck::default());
        self.registry.come_back(0, &mut self.world);
        self.registry.admit_all(&mut self.world);
        let processes = self.world.mailboxes.len();
        for from in 0..processes {
            for to in 0..processes {
                self.world.heal(Process(from), Process(to), 0);
            }
        }
        for index in 0..processes - 1 {
            self.world.mailboxes[index].hung_until = 0;
            let now = self.world.now;
            if self.world.mailboxes[index].is_running {
                self.world.wake(Process(index), now);
            } else if index < self.nodes.len() + self.world.plan.clients {
                let delay = self.world.random.between(MILLISECOND, SECOND);
                self.world.after(delay, Event::Start(Process(index)));
            }
        }
        for node in 0..self.nodes.len() {
            self.nodes[node].read_again(self.world.now);
            self.nodes[node].fail_writes(self.world.now);
            self.nodes[node].disarm_stall();
            if self.nodes[node].is_running() {
                let life = self.world.mailboxes[node].life;
                self.world.after(0, Event::Resume { process: Process(node), life });
            }
        }
    }
}
