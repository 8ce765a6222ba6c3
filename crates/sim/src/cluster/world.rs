//! What everything in a simulated cluster shares: the clock, what will happen, chance, and the processes'
//! inputs.

use super::coverage::Coverage;
use super::network::Links;
use super::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use base::map::{ClusterMap, PgConfig, Stillness};
use base::{Buffer, Epoch, LinkId, PgId, VolumeId};
use pg::Credential;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

/// Nanoseconds of a microsecond.
pub(super) const MICROSECOND: u64 = 1_000;
/// Nanoseconds of a millisecond.
pub(super) const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds of a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// A place in the network: an OSD's node, a client, somebody who means harm, or the registry. Nodes come first, the registry
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process(pub(super) usize);

/// A proposal on its way to the registry.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) process: Process,
    pub(super) life: u32,
    pub(super) pg: PgId,
    pub(super) expected: Epoch,
    pub(super) config: PgConfig,
    /// And with the same the group that is split off begins.
    pub(super) is_split: bool,
    /// The map that it was decided by.
    pub(super) decided_by: Arc<ClusterMap>,
}

/// What will happen.
#[derive(Debug)]
pub(super) enum Event {
    /// A process takes a turn.
    Wake(Process),
    /// A turn that stopped in its middle goes on.
    Resume { process: Process, life: u32 },
    /// Bytes of a link reach its other end; `from` is the end that sent them.
    Deliver { link: usize, from: usize },
    /// A connection's first packet reaches its goal.
    Syn { link: usize },
    /// The answer to it comes back.
    SynAck { link: usize },
    /// The links between two processes break.
    LinksBreak { one: Process, other: Process },
    /// One end learns that its link is gone.
    Told { link: usize, end: usize, reason: &'static str },
    /// A link over a partition is given up, if that lasts.
    LinkTimeout { link: usize },
    /// The drive of a node completes something.
    DriveDone { process: Process, life: u32 },
    /// A proposal reaches the registry.
    Propose(Box<Proposal>),
    /// Its answer did not come: the proposer looks at the map.
    ProposalLookUp(Box<Proposal>),
    /// The answer reaches its proposer.
    ProposalAnswer { process: Process, life: u32, pg: PgId, accepted: Option<PgConfig> },
    /// A map reaches a process.
    MapArrives { process: Process, life: u32, map: Arc<ClusterMap> },
    /// A node gives the registry a sign of life.
    Heartbeat { process: Process, life: u32 },
    /// The same of a client that has volumes attached.
    ClientHeartbeat { process: Process, life: u32 },
    /// The registry looks for leases that have ended.
    LeaseCheck,
    /// The registry can be reached again.
    RegistryBack { serial: u64 },
    /// A process starts.
    Start(Process),
    /// Something breaks, unless it was decided otherwise since.
    Fault { serial: u64 },
    /// A partition ends.
    Heal { from: Process, to: Process, serial: u64 },
    /// A rolling restart comes to this node.
    Roll { node: usize },
    /// An operator wants to take some OSD away.
    Retire,
    /// An operator wants twice as many groups.
    SplitPool,
    /// The long absence of a member goes on, or to its next step.
    Absence,
    /// A time of slow network or drives ends.
    SpellEnds { serial: u64 },
    /// An operator makes snapshots, or removes one.
    Snapshots,
    /// It is looked whether all clients stand still for them.
    Standstill,
    /// A client says that it does.
    StandsStill { process: Process, life: u32, volume: VolumeId, number: Stillness },
    /// What a client wants with a volume that it opened reaches the registry.
    ChangesHands { process: Process, life: u32, volume: VolumeId, step: client::OwnershipStep },
    /// Somebody who means harm begins, or stops.
    Malice { begins: bool },
}

/// What happened to a process and what it has not looked at yet.
#[derive(Debug)]
pub(super) enum Input {
    /// A drive operation ended.
    FileDone { token: u64, buffer: Option<Buffer>, result: Result<(), String> },
    /// Bytes lie in a link's inbox.
    Received(LinkId),
    /// Somebody connected.
    Accepted(LinkId),
    /// An outgoing link stands.
    Connected(LinkId),
    /// A link ended.
    Closed(LinkId, &'static str),
    /// A newer map.
    Map(Arc<ClusterMap>),
    /// What became of a proposal.
    Proposal { pg: PgId, accepted: Option<PgConfig> },
    /// The registry answered a sign of life.
    RegistryAnswered,
}

/// One process from outside.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Counts its starts.
    pub(super) life: u32,
    pub(super) is_running: bool,
    /// The machine is up, whether the process runs or not: it answers who connects in vain.
    pub(super) is_powered: bool,
    pub(super) inputs: VecDeque<Input>,
    /// Buffers that the network is done with.
    pub(super) released: Vec<Buffer>,
    /// When its next turn is due.
    pub(super) wake_at: Option<u64>,
    /// It takes no turn before then.
    pub(super) hung_until: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) trace: Trace,
    pub(super) coverage: Coverage,
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) links: Links,
    /// Faults are over.
    pub(super) is_calm: bool,
    /// Clients make no pauses, and mostly write.
    pub(super) is_hurried: bool,
    /// By group: the last sequence of any member's log.
    pub(super) group_ends: Vec<u64>,
    /// Something has rotted, so members with sound copies stay.
    pub(super) has_damage: bool,
    /// Blocks of volumes of which some copy has rotted at any time.
    pub(super) spoiled: BTreeSet<(VolumeId, u64)>,
    /// The network is slow for a while, by this factor.
    pub(super) network_slowness: u64,
    /// The same of each drive.
    pub(super) drive_slowness: Vec<u64>,
    /// What each node's drive does nothing of.
    pub(super) stuck: Vec<Stuck>,
    /// What those prove who have to: OSDs take everybody else to be who it says it is.
    pub(super) credentials: BTreeMap<Process, Credential>,
    agenda: Agenda,
    serial: u64,
}

/// Until when a drive does nothing of what it is asked, and gives no error either.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stuck {
    pub(super) reads_until: u64,
    /// Writes and flushes.
    pub(super) changes_until: u64,
}

impl Stuck {
    pub(super) fn until(&self, is_read: bool) -> u64 {
        if is_read { self.reads_until } else { self.changes_until }
    }
}

/// What will happen, by its time, and of one moment in the order of its making.
#[derive(Debug, Default)]
struct Agenda {
    /// When, in which order then, and where the event lies.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
}

impl Agenda {
    fn put(&mut self, at: u64, serial: u64, event: Event) {
        let place = self.free.pop().unwrap_or(self.events.len());
        if place == self.events.len() {
            self.events.push(None);
        }
        self.events[place] = Some(event);
        self.due.push(Reverse((at, serial, place)));
    }

    fn take_next(&mut self) -> Option<(u64, Event)> {
        let Reverse((at, _, place)) = self.due.pop()?;
        self.free.push(place);
        Some((at, self.events[place].take().expect("what is due lies where it was put")))
    }

    fn next_at(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }
}

impl World {
    pub(super) fn new(plan: Plan, random: Random, trace: Trace) -> World {
        let processes = plan.processes();
        World {
            now: 0,
            random,
            trace,
            coverage: Coverage::default(),
            mailboxes: (0..processes).map(|_| Mailbox { is_powered: true, ..Mailbox::default() }).collect(),
            links: Links::new(processes),
            is_calm: false,
            is_hurried: false,
            group_ends: vec![0; plan.pg_numbers() as usize],
            has_damage: false,
            spoiled: BTreeSet::new(),
            network_slowness: 1,
            drive_slowness: vec![1; plan.nodes],
            stuck: vec![Stuck::default(); plan.nodes],
            credentials: BTreeMap::new(),
            agenda: Agenda::default(),
            serial: 0,
            plan,
        }
    }

    /// The registry's place in the network.
    pub(super) fn registry(&self) -> Process {
        Process(self.mailboxes.len() - 1)
    }

    /// The name of a process for people.
    pub(super) fn name(&self, process: Process) -> String {
        let Process(index) = process;
        if index < self.plan.nodes {
            format!("osd.{index}")
        } else if index + 1 == self.mailboxes.len() {
            "registry".to_owned()
        } else if Some(process) == self.plan.malicious_process() {
            "malice".to_owned()
        } else {
            format!("client.{}", index - self.plan.nodes)
        }
    }

    /// Lets `event` happen `delay` nanoseconds from now.
    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.serial += 1;
        self.agenda.put(self.now + delay, self.serial, event);
    }

    /// The next event, to which the clock moves.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let (at, event) = self.agenda.take_next()?;
        self.now = at;
        Some(event)
    }

    /// When the next event happens.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.agenda.next_at()
    }

    /// A number that no other call answers.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Tells a process something, and wakes it.
    pub(super) fn tell(&mut self, process: Process, input: Input) {
        self.mailboxes[process.0].inputs.push_back(input);
        let delay = if self.random.one_in(50) {
            self.random.below(2 * MILLISECOND)
        } else {
            self.random.between(MICROSECOND, 20 * MICROSECOND)
        };
        self.wake(process, self.now + delay);
    }

    /// A process takes a turn at `at` at the latest.
    pub(super) fn wake(&mut self, process: Process, at: u64) {
        let mailbox = &mut self.mailboxes[process.0];
        let at = at.max(mailbox.hung_until).max(self.now);
        if mailbox.wake_at.is_none_or(|known| at < known) {
            mailbox.wake_at = Some(at);
            self.after(at - self.now, Event::Wake(process));
        }
    }

    /// Whether this life of a process is its present one.
    pub(super) fn is_alive(&self, process: Process, life: u32) -> bool {
        let mailbox = &self.mailboxes[process.0];
        mailbox.is_running && mailbox.life == life
    }

    /// Adds a line to the story.
    pub(super) fn story(&self, process: Option<Process>, text: impl FnOnce() -> String) {
        self.trace.remark(|| {
            let name = process.map_or_else(|| "life".to_owned(), |process| self.name(process));
            let (seconds, micros) = (self.now / SECOND, self.now % SECOND / MICROSECOND);
            format!("{seconds:>4}.{micros:06} {name:<10} {}", text())
        });
    }

    /// Something broke or is notable: counted, told, and part of the trace.
    pub(super) fn event(&mut self, process: Option<Process>, what: &'static str) {
        self.coverage.count(what);
        self.trace.count(what.len() as u64, self.now);
        self.story(process, || what.to_owned());
    }

    /// How long a message takes.
    pub(super) fn network_delay(&mut self) -> u64 {
        let plan = &self.plan;
        let base = plan.network_delay_max;
        let delay = if !self.is_calm && self.random.one_in(plan.long_delay_one_in) {
            self.random.below(300 * MILLISECOND)
        } else {
            self.random.between(5 * MICROSECOND, base)
        };
        delay * self.network_slowness
    }

    /// How long a drive operation takes.
    pub(super) fn drive_delay(&mut self, process: Process) -> u64 {
        let delay = if !self.is_calm && self.random.one_in(200) {
            self.random.below(100 * MILLISECOND)
        } else {
            self.random.between(10 * MICROSECOND, self.plan.drive_delay_max)
        };
        delay * self.drive_slowness[process.0]
    }

    /// How long the registry takes to hear or to answer.
    pub(super) fn registry_delay(&mut self) -> u64 {
        if !self.is_calm && self.random.one_in(self.plan.slow_registry_one_in) {
            self.random.below(3 * SECOND)
        } else {
            self.random.between(200 * MICROSECOND, 20 * MILLISECOND)
        }
    }
}
