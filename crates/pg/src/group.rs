//! One placement group as one of its members sees it.

use crate::operation::OperationId;
use base::figures::Traffic;
use base::map::PgConfig;
use base::{Epoch, Instant, LinkId, LogEntry, ObjectKey, OsdId, PgId, Sequence};
use std::collections::VecDeque;
use wire::Position;

/// The most writes of one group that are ordered and not yet acknowledged. Below the length of the log that a
/// store keeps (1,024), so that members' logs always overlap.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

/// Where a replica stands, as it told its primary.
#[derive(Clone, Debug)]
pub(crate) struct MemberPosition {
    pub(crate) osd: OsdId,
    pub(crate) last_sequence: Sequence,
    pub(crate) log_begins: Sequence,
    pub(crate) is_incomplete: bool,
    pub(crate) may_lack_tail: bool,
    pub(crate) entries: Vec<LogEntry>,
}

impl MemberPosition {
    /// Whether its log goes back to the group's first write.
    pub(crate) fn is_whole(&self) -> bool {
        self.log_begins == Sequence(0)
    }

    /// Whether it started between what it was pushed last as a learner and its first epoch in sync: the end of its log may
    /// be gone unnoticed, with pushes in it, of which no log tells.
    pub(crate) fn may_lack_pushes(&self) -> bool {
        self.is_incomplete && self.may_lack_tail
    }

    pub(crate) fn told(osd: OsdId, position: &Position<'_>) -> MemberPosition {
        MemberPosition {
            osd,
            last_sequence: position.last_sequence,
            log_begins: position.log_begins,
            is_incomplete: position.is_incomplete,
            may_lack_tail: position.may_lack_tail,
            entries: position.entries().collect(),
        }
    }
}

/// Blocks whose content the members may disagree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RepairRange {
    pub(crate) key: ObjectKey,
    pub(crate) first_block: u16,
    pub(crate) block_count: u16,
    /// What the client calls the write that not all members have; 0 if it has no name.
    pub(crate) tag: u64,
}

impl RepairRange {
    pub(crate) fn blocks(self) -> std::ops::Range<u16> {
        self.first_block..self.first_block + self.block_count
    }

    /// What is left of it behind its first `done` blocks.
    pub(crate) fn behind(self, done: u16) -> RepairRange {
        RepairRange { first_block: self.first_block + done, block_count: self.block_count - done, ..self }
    }
}

/// What this member does for the group.
#[derive(Debug)]
pub(crate) enum GroupState {
    /// A replica. `expected` is the sequence of the next write, once an epoch was activated.
    Replica { expected: Option<Sequence> },
    /// The primary, which cannot serve for `reason`.
    Waiting { reason: String },
    /// The primary, which cannot serve until somebody does something.
    Stopped { reason: String },
    /// It has asked the registry for a new epoch. One that would take over goes on as a replica meanwhile.
    Claiming { expected: Option<Sequence> },
    /// The primary has asked the members where they stand.
    Querying { positions: Vec<MemberPosition>, since: Instant },
    /// The primary brings the members to its own state: first the mark of the epoch, then the differences.
    Repairing {
        queue: VecDeque<RepairRange>,
        current: Option<OperationId>,
        mark_is_due: bool,
        /// The other members, those first whose logs are surely whole to their ends.
        others: Vec<MemberPosition>,
    },
    /// The primary serves.
    Active,
    /// It is no member any more, and deletes what it holds. First its log says so, then `is_marked`.
    Left { is_marked: bool },
}

/// The names of the states, in the order of [`GroupState::number`].
const STATES: [&str; 8] =
    ["replica", "waiting", "stopped", "claiming", "querying", "repairing", "active", "left"];

impl GroupState {
    fn number(&self) -> usize {
        match self {
            GroupState::Replica { .. } => 0,
            GroupState::Waiting { .. } => 1,
            GroupState::Stopped { .. } => 2,
            GroupState::Claiming { .. } => 3,
            GroupState::Querying { .. } => 4,
            GroupState::Repairing { .. } => 5,
            GroupState::Active => 6,
            GroupState::Left { .. } => 7,
        }
    }
}

/// What a learner is still to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// These blocks, whatever they hold.
    Range(RepairRange),
    /// The blocks of this object in which it differs.
    Object(ObjectKey),
}

/// How far the comparison of a learner's objects is.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The primary's objects that were not compared yet, in order.
    pub(crate) own: VecDeque<ObjectKey>,
    /// The learner's last object that was.
    pub(crate) after: Option<(base::VolumeId, u32)>,
    /// A page of the learner's objects is on its way.
    pub(crate) is_awaited: bool,
}

/// How far a learner is.
#[derive(Debug)]
pub(crate) enum LearnerState {
    /// It was asked where it stands.
    Asked,
    /// It receives every write from `from` on, and meanwhile what it lacks.
    Joined {
        from: Sequence,
        /// It has the mark of its join on stable media.
        has_mark: bool,
        work: VecDeque<Work>,
        comparison: Option<Comparison>,
        /// The object whose checksums it was asked for.
        blocks_awaited: Option<ObjectKey>,
        /// Blocks that are being read for it, or that it does not have on stable media yet.
        pushed: u32,
    },
}

/// A member that is being brought up to date.
#[derive(Debug)]
pub(crate) struct Learner {
    pub(crate) osd: OsdId,
    pub(crate) link: LinkId,
    /// Tells this attempt from earlier ones, whose messages may still be under way.
    pub(crate) session: u32,
    /// When it last answered.
    pub(crate) heard_at: Instant,
    pub(crate) state: LearnerState,
}

/// A learner that was sent everything.
#[derive(Clone, Debug)]
pub(crate) struct Promotion {
    pub(crate) osd: OsdId,
    pub(crate) link: LinkId,
    /// The ordinal of the last message that was sent to it.
    pub(crate) through: u64,
    pub(crate) since: Instant,
}

impl Learner {
    /// Blocks that are being read for it, or that it does not have on stable media yet.
    pub(crate) fn pushed(&self) -> u32 {
        match &self.state {
            LearnerState::Joined { pushed, .. } => *pushed,
            LearnerState::Asked => 0,
        }
    }

    /// What it was not given yet: `(objects, bytes known)`.
    fn left(&self) -> Option<(u64, u64)> {
        let LearnerState::Joined { work, comparison, .. } = &self.state else { return None };
        let compared = comparison.as_ref().map_or(0, |comparison| comparison.own.len() as u64);
        let bytes = work.iter().map(|work| match work {
            Work::Range(range) => u64::from(range.block_count) * base::BLOCK_BYTES as u64,
            Work::Object(_) => 0,
        });
        Some((compared + work.len() as u64, bytes.sum()))
    }

    /// Whether it has been asked for something.
    pub(crate) fn is_owing(&self) -> bool {
        match &self.state {
            LearnerState::Asked => true,
            LearnerState::Joined { has_mark, comparison, blocks_awaited, pushed, .. } => {
                let compares = comparison.as_ref().is_some_and(|comparison| comparison.is_awaited);
                !has_mark || compares || blocks_awaited.is_some() || *pushed > 0
            }
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) pg: PgId,
    /// Which objects are its own: see [`PgId::holds`]. What is on the drive may be about to be split by it still.
    pub(crate) modulus: u32,
    pub(crate) config: PgConfig,
    /// Who shall hold it, the preferred primary first.
    pub(crate) target: Vec<OsdId>,
    /// How many copies its pool wants, and how few of them in sync still take writes.
    pub(crate) size: usize,
    pub(crate) min_size: usize,
    /// The newest epoch this member has obeyed; older primaries are refused.
    pub(crate) epoch: Epoch,
    pub(crate) state: GroupState,
    /// Primary: the sequence of the next write.
    pub(crate) next_sequence: Sequence,
    /// Primary: writes under way, and unaligned writes whose edges are being read.
    pub(crate) in_flight: VecDeque<OperationId>,
    /// Primary: operations behind others, oldest first.
    pub(crate) waiting: VecDeque<OperationId>,
    /// Staged in the store and not yet durable, in whatever role; and splits that are to be.
    pub(crate) staged_count: u32,
    /// What clients were served of it here.
    pub(crate) traffic: Traffic,
    /// A query that waits until nothing is staged any more: only then is the log's end known.
    pub(crate) query_pending: Option<(LinkId, Epoch)>,
    /// Not before then does the primary claim again.
    pub(crate) claim_after: Instant,
    /// Replica: who began the epoch it obeys.
    pub(crate) leader: Option<OsdId>,
    /// Replica: since when nothing binds it to the primary any more.
    pub(crate) free_since: Option<Instant>,
    /// When the configuration was first seen: its primary is given time to show itself.
    pub(crate) config_seen_at: Instant,
    /// Primary: members that are being brought up to date.
    pub(crate) learners: Vec<Learner>,
    /// Primary: who was asked to be one in this epoch, whatever became of that.
    pub(crate) asked: Vec<OsdId>,
    /// Primary: learners that had no room for what they lack. Until what they have too much is gone, nothing else is pushed.
    pub(crate) cramped: Vec<OsdId>,
    /// Primary: a learner that was sent everything, to be made a member in sync.
    pub(crate) promoted: Option<Promotion>,
    /// Primary: a member in sync whose log does not reach into those of the others.
    pub(crate) unfit: Option<OsdId>,
    /// Primary: not before then is a learner tried again.
    pub(crate) learn_after: Instant,
    /// Primary: when it was handed over last, and before when it is not again.
    pub(crate) handed_over_at: Option<Instant>,
    pub(crate) hand_over_after: Instant,
    /// This OSD was in no epoch of the group since it started: see `peering::who_lacks_less`.
    pub(crate) may_lack_tail: bool,
    /// How often it went from one state to another.
    transitions: [[u32; STATES.len()]; STATES.len()],
}

impl Group {
    pub(crate) fn new(
        pg: PgId,
        modulus: u32,
        config: PgConfig,
        target: Vec<OsdId>,
        is_primary: bool,
        now: Instant,
    ) -> Group {
        let epoch = config.epoch;
        let state = if is_primary {
            GroupState::Waiting { reason: "just started".to_owned() }
        } else {
            GroupState::Replica { expected: None }
        };
        Group {
            pg,
            modulus,
            config,
            target,
            size: 0,
            min_size: 0,
            epoch,
            state,
            next_sequence: Sequence(0),
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            staged_count: 0,
            traffic: Traffic::default(),
            query_pending: None,
            claim_after: Instant::default(),
            leader: None,
            free_since: None,
            config_seen_at: now,
            learners: Vec::new(),
            asked: Vec::new(),
            cramped: Vec::new(),
            promoted: None,
            unfit: None,
            learn_after: Instant::default(),
            handed_over_at: None,
            hand_over_after: Instant::default(),
            may_lack_tail: true,
            transitions: [[0; STATES.len()]; STATES.len()],
        }
    }

    /// Goes on in another state; answers the one before.
    pub(crate) fn enter(&mut self, state: GroupState) -> GroupState {
        let (from, to) = (self.state.number(), state.number());
        self.transitions[from][to] += u32::from(from != to);
        std::mem::replace(&mut self.state, state)
    }

    /// How often it went from one state to another: `(from, to, times)`.
    pub(crate) fn transitions(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let rows = STATES.iter().zip(&self.transitions);
        rows.flat_map(|(from, row)| {
            STATES.iter().zip(row).map(move |(to, times)| (*from, *to, u64::from(*times)))
        })
    }

    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, GroupState::Active)
    }

    /// Whether enough members are in sync for writes.
    pub(crate) fn is_writable(&self) -> bool {
        self.config.in_sync.len() >= self.min_size
    }

    pub(crate) fn is_claiming(&self) -> bool {
        matches!(self.state, GroupState::Claiming { .. })
    }

    /// Whether this OSD acts as its primary, or tries to.
    pub(crate) fn is_led_here(&self) -> bool {
        !matches!(
            self.state,
            GroupState::Replica { .. } | GroupState::Claiming { expected: Some(_) } | GroupState::Left { .. }
        )
    }

    /// Everybody who holds a part of it, or shall.
    pub(crate) fn members(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.config.in_sync.iter().chain(&self.config.learners).chain(&self.target).copied()
    }

    /// Whether an object is one of the group's.
    pub(crate) fn holds(&self, key: &ObjectKey) -> bool {
        self.pg == key.pg && self.pg.holds(self.modulus, key.volume, key.object)
    }

    pub(crate) fn learner_mut(&mut self, osd: OsdId) -> Option<&mut Learner> {
        self.learners.iter_mut().find(|learner| learner.osd == osd)
    }

    pub(crate) fn replicas(&self, me: OsdId) -> impl Iterator<Item = OsdId> + '_ {
        self.config.in_sync.iter().copied().filter(move |osd| *osd != me)
    }
}

/// What a primary reports of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// The group.
    pub pg: PgId,
    /// Its epoch.
    pub epoch: Epoch,
    /// `None` when it serves, else why not.
    pub trouble: Option<String>,
    /// Whether somebody must do something before it can serve.
    pub is_stopped: bool,
    /// Whether it is on its way to serve.
    pub is_peering: bool,
    /// Who holds every acknowledged write.
    pub in_sync: Vec<OsdId>,
    /// While members catch up: how many objects were not compared or sent yet, and how many bytes are known to be
    /// sent yet.
    pub recovery: Option<(u64, u64)>,
}

impl Group {
    pub(crate) fn summary(&self) -> GroupSummary {
        let (trouble, is_stopped, is_peering) = match &self.state {
            GroupState::Active if !self.is_writable() => {
                let (count, min_size) = (self.config.in_sync.len(), self.min_size);
                let reason = format!("takes no writes: {count} of at least {min_size} members are in sync");
                (Some(reason), false, false)
            }
            GroupState::Replica { .. } | GroupState::Active | GroupState::Left { .. } => (None, false, false),
            GroupState::Waiting { reason } => (Some(reason.clone()), false, false),
            GroupState::Stopped { reason } => (Some(reason.clone()), true, false),
            GroupState::Claiming { .. } => {
                (Some("claiming a new epoch in the registry".to_owned()), false, true)
            }
            GroupState::Querying { .. } => {
                (Some("asking the members where they stand".to_owned()), false, true)
            }
            GroupState::Repairing { queue, .. } => {
                let ranges = queue.len();
                (Some(format!("removing {ranges} differences between the members")), false, true)
            }
        };
        let in_sync = self.config.in_sync.clone();
        let left = self.learners.iter().filter_map(Learner::left);
        let recovery = left.reduce(|one, other| (one.0 + other.0, one.1 + other.1));
        GroupSummary { pg: self.pg, epoch: self.epoch, trouble, is_stopped, is_peering, in_sync, recovery }
    }
}
