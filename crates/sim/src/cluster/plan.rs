//! What kind of cluster, load and misfortune a seed stands for.

use super::hostile::{self, Malice};
use super::registry::VOLUME_OBJECTS;
use super::topology::Topology;
use super::world::{MICROSECOND, MILLISECOND, Process, SECOND};
use crate::contents::{Collision, Contents};
use crate::random::Random;
use base::{BLOCK_BYTES, SECTOR_BYTES};
use pg::OsdOptions;

/// The ways in which something breaks. Each life draws a weight for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A node's process dies.
    Crash,
    /// A node loses its power.
    PowerCut,
    /// All nodes' processes die at almost the same moment.
    CrashAll,
    /// The whole cluster loses its power.
    PowerCutAll,
    /// A node is shut down properly.
    Shutdown,
    /// A process does nothing for a while.
    Hang,
    /// A node stops in the middle of a turn, with the time it read before.
    StallInTurn,
    /// A connection breaks; each end learns of it at a time of its own.
    BreakLink,
    /// Nothing gets through from one process to another.
    OneWayPartition,
    /// Nothing gets through between two processes.
    TwoWayPartition,
    /// Nothing gets through to or from one process.
    Isolation,
    /// The processes fall into two parts that do not reach each other; the registry is in one of them.
    Split,
    /// A node hangs or loses its power, and another dies a moment later.
    TwoAtOnce,
    /// The registry cannot be reached.
    RegistryDown,
    /// A client's process dies and another takes its place.
    ClientCrash,
    /// The network is slow for a while.
    SlowNetwork,
    /// The drives are slow for a while.
    SlowDrives,
    /// An operator takes an OSD out, or in again.
    Admission,
    /// A group shall lie elsewhere.
    MoveGroup,
    /// The pool shall keep another number of copies.
    ResizePool,
    /// A drive is lost for good.
    DriveLost,
    /// A block of a drive holds something else than was written there.
    Rot,
    /// Some reads of a drive fail for a while.
    ReadErrors,
    /// An operator has a group scrubbed.
    Scrub,
    /// A group's primary reaches its clients but not the other members, and dies with what it alone has written; it
    /// comes back when the others went on.
    PrimaryCutOff,
    /// Some writes and flushes of a drive fail for a while: its OSD gives it up.
    WriteErrors,
    /// A batch is written to another place of the drive than it was meant for, over what lies there, and is told as done.
    MisdirectedWrite,
    /// A drive is lost, and its OSD goes on on a blank one, under its number.
    DriveReplaced,
    /// A node dies, and when it starts a block of its drive cannot be read.
    BadBlock,
    /// A drive does nothing of what it is asked for a while, or of what it is to read or to write, and then all of it.
    StuckDrive,
}

/// How many of the kinds are drawn before anything else: the others came later, and lives without them are what they were.
const DRAWN_FIRST: usize = 24;

/// Every kind of fault.
pub const FAULT_KINDS: [FaultKind; 30] = [
    FaultKind::Crash,
    FaultKind::PowerCut,
    FaultKind::CrashAll,
    FaultKind::PowerCutAll,
    FaultKind::Shutdown,
    FaultKind::Hang,
    FaultKind::StallInTurn,
    FaultKind::BreakLink,
    FaultKind::OneWayPartition,
    FaultKind::TwoWayPartition,
    FaultKind::Isolation,
    FaultKind::Split,
    FaultKind::TwoAtOnce,
    FaultKind::RegistryDown,
    FaultKind::ClientCrash,
    FaultKind::SlowNetwork,
    FaultKind::SlowDrives,
    FaultKind::Admission,
    FaultKind::MoveGroup,
    FaultKind::DriveLost,
    FaultKind::Rot,
    FaultKind::ReadErrors,
    FaultKind::Scrub,
    FaultKind::PrimaryCutOff,
    FaultKind::ResizePool,
    FaultKind::WriteErrors,
    FaultKind::MisdirectedWrite,
    FaultKind::DriveReplaced,
    FaultKind::BadBlock,
    FaultKind::StuckDrive,
];

/// Entries of the shortest logs: at least twice what can be under way.
const PG_LOG_ENTRIES_LEAST: usize = 64;
/// Of a hundred lives, in how many the drives fill up.
const TIGHT_PERCENT: u64 = 6;
/// Of a hundred lives, in how many one client at a time has the volumes.
const EXCLUSIVE_PERCENT: u64 = 30;
/// Of a hundred lives, in how many there are snapshots, unless something else keeps them from it.
const SNAPSHOT_PERCENT: u64 = 50;
/// Of a hundred lives with snapshots, in how many volumes are rolled back and cloned.
const CLONE_PERCENT: u64 = 60;
/// Of a hundred lives with nodes enough, in how many one of them is added later.
const LATE_PERCENT: u64 = 50;
/// Of a hundred lives, in how many bits flip on the way.
const GARBLED_PERCENT: u64 = 15;
/// Of a hundred lives with nodes enough, in how many they share hosts, or stand in racks.
const SHAPED_PERCENT: u64 = 40;
/// Of a hundred lives of whole blocks, in how many some member is away for longer than its groups' logs reach.
const LONG_ABSENCE_PERCENT: u64 = 12;

/// The parameters of one simulated life, all drawn from its seed. Times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Nodes, each with one OSD.
    pub nodes: usize,
    /// Copies of each object at first.
    pub size: u32,
    /// In-sync copies below which a group stops, at first.
    pub min_size: u32,
    /// Placement groups.
    pub pgs: u32,
    /// Volumes.
    pub volumes: usize,
    /// Whether the last of them lies in a pool of its own, which is to be removed.
    pub has_doomed_pool: bool,
    /// Places of each volume that are worked on; each lies around a border of two objects.
    pub regions: u64,
    /// Bytes of what is called a block here: whole blocks of drives, or sectors, for which primaries have to read and
    /// complete what lies around.
    pub unit_bytes: u64,
    /// Blocks of each such place.
    pub region_blocks: u64,
    /// Clients with a load.
    pub clients: usize,
    /// Operations of each client at the same time.
    pub depth: usize,
    /// Operations of all clients together, at most.
    pub operations: u64,
    /// Blocks of the largest operation.
    pub operation_blocks_max: u64,
    /// Of a hundred operations, how many read.
    pub read_percent: u64,
    /// Whether the first client only reads, and so never waits for a write.
    pub has_reader: bool,
    /// Whether clients open their volumes, and own them by turns.
    pub opens: bool,
    /// Of a hundred operations, how many zero.
    pub zero_percent: u64,
    /// Of a hundred operations, how many ask what is allocated.
    pub allocated_percent: u64,
    /// The longest pause between two operations.
    pub pause_max: u64,
    /// Whether completed writes of the drives still need a flush.
    pub volatile_cache: bool,
    /// Segments of each drive.
    pub segments: u64,
    /// Log between two checkpoints, in segments; 0 leaves it to the store.
    pub checkpoint_segments: u64,
    /// Entries of each group's log: at least twice what can be under way.
    pub pg_log_entries: usize,
    /// Buffers of one block of each OSD.
    pub small_buffers: usize,
    /// Buffers for the largest message of each OSD: more than there are operations that may wait, those of clients
    /// that died a moment ago among them. With fewer, a read waits for ever behind writes that hold them all and
    /// wait for the read.
    pub large_buffers: usize,
    /// How wrong clocks run, at most, in parts per million.
    pub drift_ppm_max: u64,
    /// The usual longest time of a message.
    pub network_delay_max: u64,
    /// One message in so many takes much longer.
    pub long_delay_one_in: u64,
    /// The usual longest time of a drive operation.
    pub drive_delay_max: u64,
    /// One message to or from the registry in so many takes much longer.
    pub slow_registry_one_in: u64,
    /// Of a hundred answers of the registry, how many are lost.
    pub lost_answer_percent: u64,
    /// Of a hundred connections, how many fail without reason.
    pub connect_failure_percent: u64,
    /// How long things break.
    pub fault_time: u64,
    /// The usual pause between two faults, at most.
    pub fault_pause_max: u64,
    /// Faults, at most.
    pub faults_max: u64,
    /// Of a hundred faults while some group does not serve, after how many the next follows at once.
    pub rapid_percent: u64,
    /// Of a hundred faults, how many strike while something is under way.
    pub at_work_percent: u64,
    /// Of a hundred OSDs that asked the registry for an epoch, how many die before they got far with it.
    pub coup_percent: u64,
    /// Of a hundred turns in which a store writes at a checkpoint or cleans, after how many the node dies.
    pub store_coup_percent: u64,
    /// How long a fault lasts, at most.
    pub outage_max: u64,
    /// How long an OSD may be down before its data is placed elsewhere.
    pub out_after: u64,
    /// While a drive fails to read, of a hundred reads, how many fail.
    pub read_error_percent: u64,
    /// Whether the same places of the drive fail all the time then, or any read by chance.
    pub read_errors_have_places: bool,
    /// Whether operators restart one node after the other.
    pub has_rolling_restarts: bool,
    /// Whether a copy differs in silence in the end, and a scrub has to find it.
    pub members_differ: bool,
    /// Whether the registry, once it is away, is away until nothing else breaks.
    pub registry_stays_away: bool,
    /// Whether the registry ends leases of whom it hears.
    pub registry_loses_leases: bool,
    /// Whether an operator takes an OSD away that lives.
    pub retires_somebody: bool,
    /// Whether clients zero whole regions now and then.
    pub discards: bool,
    /// Whether clients want to write more than the drives take.
    pub is_tight: bool,
    /// Whether one client at a time has the volumes, and the others wait until it is gone.
    pub is_exclusive: bool,
    /// How many of the nodes, the last ones, are added while the others serve.
    pub late_nodes: usize,
    /// How often the pool gets twice as many groups.
    pub doublings: u32,
    /// What clients write.
    pub contents: Contents,
    /// Whether some member is away for so long that nothing but the others' indexes tells what it lacks, and leads then.
    pub has_long_absence: bool,
    /// The weight of each of [`FAULT_KINDS`].
    pub weights: [u64; FAULT_KINDS.len()],
    /// Where the nodes stand.
    pub topology: Topology,
    /// Objects of each volume.
    pub volume_objects: u64,
    /// While a drive fails to write, of a hundred writes and flushes, how many fail.
    pub write_error_percent: u64,
    /// Once in so many times that a process takes what came on a link, a bit of it is wrong; 0 for never.
    pub garbled_one_in: u64,
    /// Who means harm, if somebody does.
    pub malice: Option<Malice>,
    /// Whether somebody looks how far the groups' orders have got.
    pub follows_logs: bool,
    /// Whether an operator makes and removes snapshots.
    pub snapshots: bool,
    /// Whether volumes are rolled back, cloned and flattened too.
    pub clones: bool,
}

impl Plan {
    /// Draws a plan.
    #[must_use]
    pub fn draw(random: &mut Random) -> Plan {
        let nodes = random.choose(&[2, 3, 3, 3, 4, 5]);
        let size = random.between(2, (nodes as u64).min(3)) as u32;
        let mut weights = [0u64; FAULT_KINDS.len()];
        for weight in weights.iter_mut().take(DRAWN_FIRST) {
            // Some kinds are absent in some lives: a rare thing alone shows what a mixture hides.
            *weight = random.choose(&[0, 0, 1, 3, 8]);
        }
        // What hurts drives and what moves data takes the place of other faults: some lives are without.
        let is_still = random.percent(40);
        let is_sound = random.percent(40);
        // Everything at once is one kind of fault among many, and hides the finer ones.
        for (kind, weight) in FAULT_KINDS.iter().zip(&mut weights) {
            if matches!(kind, FaultKind::CrashAll | FaultKind::PowerCutAll) {
                *weight = weight.div_ceil(4);
            }
            match kind {
                FaultKind::Admission | FaultKind::MoveGroup | FaultKind::DriveLost if is_still => *weight = 0,
                FaultKind::Rot | FaultKind::ReadErrors | FaultKind::Scrub if is_sound => *weight = 0,
                FaultKind::DriveLost => *weight = (*weight).min(1),
                _ => {}
            }
        }
        weights[0] += 1;
        let clients = random.between(1, 3) as usize;
        let depth = (random.choose(&[1, 2, 4, 4, 8, 8, 16]) as usize).min(16 / clients);
        let operations = random.between(200, 1200);
        let fault_time = random.between(5, 60) * SECOND;
        let per_slot = operations / (depth * clients) as u64 + 1;
        let unit_bytes = if random.percent(30) { SECTOR_BYTES as u64 } else { BLOCK_BYTES as u64 };
        let units = BLOCK_BYTES as u64 / unit_bytes;
        let mut plan = Plan {
            nodes,
            size,
            min_size: random.between(1, u64::from(size)) as u32,
            pgs: random.between(1, 4) as u32,
            volumes: random.between(1, 2) as usize,
            regions: random.between(1, 3),
            unit_bytes,
            region_blocks: random.choose(&[2, 8, 16, 32]) * units,
            clients,
            depth,
            operations,
            operation_blocks_max: random.choose(&[1, 2, 4, 8]) * if units > 1 { 3 } else { 1 },
            read_percent: random.choose(&[20, 40, 60]),
            opens: false,
            has_reader: clients > 1 && random.percent(50),
            zero_percent: random.choose(&[0, 2, 5, 15]),
            // Part of a block that was never written is there as soon as another part was.
            allocated_percent: if units > 1 { 0 } else { random.choose(&[0, 0, 2]) },
            // One operation in eight is followed by a long pause: the load lasts as long as the faults.
            pause_max: (fault_time * 16 / per_slot).min(20 * SECOND),
            volatile_cache: random.percent(75),
            segments: random.between(18, 30),
            checkpoint_segments: random.choose(&[0, 1, 1, 4, 8]),
            pg_log_entries: random.choose(&[PG_LOG_ENTRIES_LEAST, 128, 1024, 1024, 1024]),
            small_buffers: random.choose(&[16, 32, 64]) as usize,
            large_buffers: 2 * depth * clients + random.between(1, 4) as usize,
            drift_ppm_max: random.choose(&[0, 1000, 10_000]),
            network_delay_max: random.choose(&[100 * MICROSECOND, 500 * MICROSECOND, 5 * MILLISECOND]),
            long_delay_one_in: random.choose(&[100, 1000, 10_000]),
            drive_delay_max: random.choose(&[100 * MICROSECOND, MILLISECOND, 10 * MILLISECOND]),
            slow_registry_one_in: random.choose(&[3, 10, 100]),
            lost_answer_percent: random.choose(&[0, 5, 30]),
            connect_failure_percent: random.choose(&[0, 2, 20]),
            fault_time,
            fault_pause_max: random.choose(&[300 * MILLISECOND, SECOND, 4 * SECOND]),
            faults_max: random.between(10, 60),
            rapid_percent: random.choose(&[0, 30, 60]),
            at_work_percent: random.choose(&[20, 60, 90]),
            coup_percent: random.choose(&[0, 0, 5, 20]),
            outage_max: random.choose(&[SECOND, 5 * SECOND, 20 * SECOND]),
            out_after: random.choose(&[2 * SECOND, 30 * SECOND, 600 * SECOND]),
            read_error_percent: random.choose(&[20, 20, 100]),
            discards: random.percent(30),
            volume_objects: VOLUME_OBJECTS,
            weights,
            ..Plan::default()
        };
        // Last, so that other seeds stand for what they stood for.
        if random.percent(TIGHT_PERCENT) {
            plan.fill_drives(random);
        }
        let resizes = random.choose(&[0, 0, 1, 3]);
        if !is_still && !plan.is_tight {
            *plan.weight_of(FaultKind::ResizePool) = resizes;
        }
        if random.percent(EXCLUSIVE_PERCENT) {
            (plan.is_exclusive, plan.has_reader) = (true, false);
        }
        if random.percent(LATE_PERCENT) && !is_still && plan.nodes > plan.size as usize {
            plan.late_nodes = 1;
        }
        plan.read_errors_have_places = random.percent(50);
        plan.has_rolling_restarts = random.percent(50);
        plan.registry_stays_away = random.percent(10);
        plan.members_differ = random.percent(25);
        if random.percent(20) {
            // As far as leases are made for.
            plan.drift_ppm_max = 30_000;
        }
        plan.registry_loses_leases = random.percent(30);
        plan.retires_somebody = random.percent(50) && !is_still && plan.nodes > plan.size as usize;
        plan.store_coup_percent = random.choose(&[0, 0, 5, 25]);
        plan.topology = Topology::of_hosts(plan.nodes);
        if random.percent(SHAPED_PERCENT) && plan.nodes > 2 {
            let sure = plan.nodes - plan.late_nodes;
            plan.topology = Topology::draw(plan.nodes, sure, plan.size, random);
        }
        plan.doublings = random.choose(&[0, 0, 1, 2]);
        // Where clients write parts of blocks, whoever completes them decides what a block's checksum is.
        if plan.unit_bytes == BLOCK_BYTES as u64 {
            plan.contents = Contents::draw(random, plan.nodes as u32);
            if random.percent(LONG_ABSENCE_PERCENT) && !plan.is_tight {
                plan.be_away_for_long(random);
            }
        }
        let fails_to_write = random.choose(&[0, 1, 2, 5]);
        let goes_astray = random.choose(&[0, 5, 15, 40]);
        let is_replaced = random.choose(&[0, 1, 2, 4]);
        if !is_sound {
            *plan.weight_of(FaultKind::WriteErrors) = fails_to_write;
            *plan.weight_of(FaultKind::MisdirectedWrite) = goes_astray;
        }
        if !is_still && !plan.is_tight {
            *plan.weight_of(FaultKind::DriveReplaced) = is_replaced;
        }
        plan.write_error_percent = random.choose(&[5, 30, 100]);
        let garbled_one_in = random.choose(&[50, 300, 2000]);
        if random.percent(GARBLED_PERCENT) {
            plan.garbled_one_in = garbled_one_in;
        }
        let malice = hostile::draw(random);
        // Whoever may write may fill the drives that its pool shares with others.
        if !plan.is_tight {
            plan.malice = malice;
        }
        if plan.malice.is_some() {
            plan.have_it_withstand_malice();
        }
        let goes_bad = random.choose(&[0, 0, 1, 3]);
        if !is_sound {
            *plan.weight_of(FaultKind::BadBlock) = goes_bad;
        }
        *plan.weight_of(FaultKind::StuckDrive) = random.choose(&[0, 0, 1, 2]);
        if random.percent(SNAPSHOT_PERCENT) && plan.malice.is_none() && !plan.is_tight {
            plan.snapshots = true;
            plan.clones = random.percent(CLONE_PERCENT);
            // Snapshots hold what was written over.
            plan.segments += 12;
            // Whoever is refused for damage asks of what the volume holds now.
            for kind in
                [FaultKind::Rot, FaultKind::ReadErrors, FaultKind::MisdirectedWrite, FaultKind::BadBlock]
            {
                *plan.weight_of(kind) = 0;
            }
        }
        plan
    }

    /// The number of OSDs is that of nodes, and one more that no node runs; and each has the memory that OSDs have, for here it
    /// is not the load alone that wants some.
    fn have_it_withstand_malice(&mut self) {
        if self.malice == Some(Malice::Stranger) {
            self.late_nodes = 0;
        }
        let OsdOptions { small_buffers, large_buffers, .. } = OsdOptions::default();
        (self.small_buffers, self.large_buffers) = (small_buffers, large_buffers);
    }

    fn weight_of(&mut self, wanted: FaultKind) -> &mut u64 {
        let place = FAULT_KINDS.iter().position(|kind| *kind == wanted);
        &mut self.weights[place.expect("all kinds are listed")]
    }

    /// How many places the network has: nodes, clients and who reads everything in the end, who means harm, the registry.
    pub(super) fn processes(&self) -> usize {
        self.nodes + self.clients + 2 + usize::from(self.malice.is_some())
    }

    /// Where in the network somebody is who means harm.
    pub(super) fn malicious_process(&self) -> Option<Process> {
        self.malice.map(|_| Process(self.nodes + self.clients + 1))
    }

    /// What a life that goes by a script has: a pool on so many nodes that keep everything, short logs, a small volume whose
    /// blocks no CRC-32C tells from each other, and nothing that breaks by itself. The client does what it is told to.
    #[must_use]
    pub fn scripted(nodes: usize, random: &mut Random) -> Plan {
        let mut weights = [0; FAULT_KINDS.len()];
        weights[0] = 1;
        Plan {
            nodes,
            size: nodes as u32,
            min_size: 1,
            pgs: 2,
            volumes: 1,
            regions: 1,
            unit_bytes: BLOCK_BYTES as u64,
            region_blocks: 16,
            clients: 1,
            depth: 4,
            operation_blocks_max: 4,
            pause_max: MILLISECOND,
            volatile_cache: random.percent(75),
            segments: random.between(18, 30),
            checkpoint_segments: random.choose(&[0, 1, 4]),
            pg_log_entries: PG_LOG_ENTRIES_LEAST,
            small_buffers: 32,
            large_buffers: 12,
            network_delay_max: 500 * MICROSECOND,
            long_delay_one_in: 10_000,
            drive_delay_max: MILLISECOND,
            slow_registry_one_in: 100,
            fault_time: SECOND,
            fault_pause_max: SECOND,
            outage_max: SECOND,
            out_after: 600 * SECOND,
            contents: Contents::Colliding(Collision::draw(random)),
            topology: Topology::of_hosts(nodes),
            volume_objects: VOLUME_OBJECTS,
            follows_logs: true,
            weights,
            ..Plan::default()
        }
    }

    /// Has somebody mean harm in a life that goes by a script.
    pub(super) fn with_malice(mut self, malice: Malice) -> Plan {
        self.malice = Some(malice);
        self.have_it_withstand_malice();
        self
    }

    /// Somebody is away while everybody else writes over what it has, nothing of what it misses can be told from what it has
    /// by a CRC-32C, and nobody takes its place.
    fn be_away_for_long(&mut self, random: &mut Random) {
        (self.has_long_absence, self.follows_logs) = (true, true);
        if !self.contents.collide() {
            self.contents = Contents::Colliding(Collision::draw(random));
        }
        self.pg_log_entries = PG_LOG_ENTRIES_LEAST;
        // Whoever comes back can lead alone, if all others are gone.
        self.min_size = 1;
        self.out_after = 600 * SECOND;
        self.fault_time = self.fault_time.max(40 * SECOND);
        // More than a log of that length lets a group have under way.
        self.depth = 2 * PG_LOG_ENTRIES_LEAST / 4 / self.clients;
        self.large_buffers = 2 * self.depth * self.clients + random.between(1, 4) as usize;
    }

    /// One more than the largest number that a group can have.
    #[must_use]
    pub fn pg_numbers(&self) -> u32 {
        self.pgs << self.doublings
    }

    /// Gives clients more room than drives have. Every node holds everything: so the room of one is that of all, and who
    /// comes back finds room for what it lacks as soon as it has let go of what it has too much.
    fn fill_drives(&mut self, random: &mut Random) {
        (self.is_tight, self.discards) = (true, true);
        self.nodes = self.nodes.min(3);
        self.size = self.nodes as u32;
        self.segments = random.between(16, 20);
        (self.volumes, self.regions, self.region_blocks) = (2, 3, 128);
        (self.unit_bytes, self.operation_blocks_max) = (BLOCK_BYTES as u64, 16);
        (self.read_percent, self.has_reader, self.allocated_percent) = (20, false, 0);
        self.zero_percent = random.choose(&[5, 15, 40]);
        self.operations = random.between(600, 1200);
        // Who is away for long misses that much was deleted and something else written.
        (self.min_size, self.outage_max) = (1, 20 * SECOND);
    }

    /// Clients open their volumes: nobody shares one.
    pub(super) fn open_volumes(&mut self) {
        (self.opens, self.is_exclusive) = (true, true);
        self.clients = self.clients.max(2);
        // Else one alone would write.
        self.has_reader &= self.clients > 2;
    }

    /// Leaves out what hurts drives and what moves data.
    pub fn keep_drives_sound_and_data_still(&mut self) {
        for (kind, weight) in FAULT_KINDS.iter().zip(&mut self.weights) {
            let is_of_drives = matches!(
                kind,
                FaultKind::Rot
                    | FaultKind::ReadErrors
                    | FaultKind::DriveLost
                    | FaultKind::WriteErrors
                    | FaultKind::MisdirectedWrite
                    | FaultKind::DriveReplaced
                    | FaultKind::BadBlock
            );
            let is_of_data = matches!(
                kind,
                FaultKind::Admission | FaultKind::MoveGroup | FaultKind::ResizePool | FaultKind::Scrub
            );
            if is_of_drives || is_of_data {
                *weight = 0;
            }
        }
        (self.out_after, self.late_nodes, self.retires_somebody) = (u64::MAX, 0, false);
        (self.garbled_one_in, self.malice) = (0, None);
    }

    /// Whether drives fail to give what they hold.
    pub fn drives_fail(&self) -> bool {
        self.has(FaultKind::ReadErrors)
    }

    /// Whether drives give something else than they were given.
    pub fn drives_rot(&self) -> bool {
        self.has(FaultKind::Rot)
    }

    fn has(&self, wanted: FaultKind) -> bool {
        FAULT_KINDS.iter().zip(&self.weights).any(|(kind, weight)| *kind == wanted && *weight > 0)
    }

    /// Draws a kind of fault by weight.
    pub fn draw_fault(&self, random: &mut Random) -> FaultKind {
        let mut left = random.below(self.weights.iter().sum());
        for (kind, weight) in FAULT_KINDS.into_iter().zip(self.weights) {
            if left < weight {
                return kind;
            }
            left -= weight;
        }
        unreachable!("what is left is below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_of_fault_is_drawn() {
        let plans = (0..100).map(|seed| Plan::draw(&mut Random::new(seed)));
        let drawn: BTreeSet<_> = plans
            .flat_map(|plan| FAULT_KINDS.into_iter().filter(move |kind| plan.has(*kind)))
            .map(|kind| format!("{kind:?}"))
            .collect();
        let all: BTreeSet<_> = FAULT_KINDS.iter().map(|kind| format!("{kind:?}")).collect();
        assert_eq!(drawn, all);
    }
}
