//! One placement group as one of its members sees it.

use crate::operation::OperationId;
use base::map::PgConfig;
use base::{Epoch, Instant, LinkId, ObjectKey, OsdId, PgId, Sequence};
use std::collections::VecDeque;
use wire::LogEntry;

/// The most writes of one group that are ordered and not yet acknowledged. Below the length of the log that a
/// store keeps (1,024), so that members' logs always overlap.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

/// Where a replica stands, as it told its primary.
#[derive(Debug)]
pub(crate) struct MemberPosition {
    pub(crate) osd: OsdId,
    pub(crate) last_sequence: Sequence,
    pub(crate) is_whole: bool,
    pub(crate) entries: Vec<LogEntry>,
}

/// Blocks whose content the members may disagree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RepairRange {
    pub(crate) key: ObjectKey,
    pub(crate) first_block: u16,
    pub(crate) block_count: u16,
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
    /// The primary has asked the registry for a new epoch.
    Claiming,
    /// The primary has asked the members where they stand.
    Querying { positions: Vec<MemberPosition>, since: Instant },
    /// The primary brings the members to its own state: first the mark of the epoch, then the differences.
    Repairing { queue: VecDeque<RepairRange>, current: Option<OperationId>, mark_is_due: bool },
    /// The primary serves.
    Active,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) pg: PgId,
    pub(crate) config: PgConfig,
    /// The newest epoch this member has obeyed; older primaries are refused.
    pub(crate) epoch: Epoch,
    pub(crate) state: GroupState,
    /// Primary: the sequence of the next write.
    pub(crate) next_sequence: Sequence,
    /// Primary: writes under way, and unaligned writes whose edges are being read.
    pub(crate) in_flight: VecDeque<OperationId>,
    /// Primary: operations behind others, oldest first.
    pub(crate) waiting: VecDeque<OperationId>,
    /// Staged in the store and not yet durable, in whatever role.
    pub(crate) staged_count: u32,
    /// A query that waits until nothing is staged any more: only then is the log's end known.
    pub(crate) query_pending: Option<(LinkId, Epoch)>,
    /// Not before then does the primary claim again.
    pub(crate) claim_after: Instant,
}

impl Group {
    pub(crate) fn new(pg: PgId, config: PgConfig, is_primary: bool) -> Group {
        let epoch = config.epoch;
        let state = if is_primary {
            GroupState::Waiting { reason: "just started".to_owned() }
        } else {
            GroupState::Replica { expected: None }
        };
        Group {
            pg,
            config,
            epoch,
            state,
            next_sequence: Sequence(0),
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            staged_count: 0,
            query_pending: None,
            claim_after: Instant::default(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, GroupState::Active)
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
    /// Its members.
    pub in_sync: Vec<OsdId>,
}

impl Group {
    pub(crate) fn summary(&self) -> GroupSummary {
        let (trouble, is_stopped, is_peering) = match &self.state {
            GroupState::Replica { .. } | GroupState::Active => (None, false, false),
            GroupState::Waiting { reason } => (Some(reason.clone()), false, false),
            GroupState::Stopped { reason } => (Some(reason.clone()), true, false),
            GroupState::Claiming => (Some("claiming a new epoch in the registry".to_owned()), false, true),
            GroupState::Querying { .. } => {
                (Some("asking the members where they stand".to_owned()), false, true)
            }
            GroupState::Repairing { queue, .. } => {
                let ranges = queue.len();
                (Some(format!("removing {ranges} differences between the members")), false, true)
            }
        };
        let in_sync = self.config.in_sync.clone();
        GroupSummary { pg: self.pg, epoch: self.epoch, trouble, is_stopped, is_peering, in_sync }
    }
}
