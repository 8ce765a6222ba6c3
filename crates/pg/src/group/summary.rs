//! What a primary reports of a group.

use super::Group;
use super::learner::Learner;
use super::role::Phase;
use crate::report::GroupSummary;

impl Group {
    pub(crate) fn summary(&self) -> GroupSummary {
        let (trouble, is_stopped, is_peering) = match self.standing.phase() {
            Some(Phase::Active) if !self.is_writable() => {
                let (count, min_size) = (self.config.in_sync.len(), self.wanted.min_size);
                let reason = format!("takes no writes: {count} of at least {min_size} members are in sync");
                (Some(reason), false, false)
            }
            None | Some(Phase::Active) => (None, false, false),
            Some(Phase::Waiting { reason }) => (Some(reason.clone()), false, false),
            Some(Phase::Stopped { reason }) => (Some(reason.clone()), true, false),
            Some(Phase::Claiming) => (Some("claiming a new epoch in the registry".to_owned()), false, true),
            Some(Phase::Querying { .. }) => {
                (Some("asking the members where they stand".to_owned()), false, true)
            }
            Some(Phase::Repairing(repairing)) => {
                let ranges = repairing.queue.len();
                (Some(format!("removing {ranges} differences between the members")), false, true)
            }
        };
        let in_sync = self.config.in_sync.clone();
        let left = self.learners().iter().filter_map(Learner::left);
        let recovery = left.reduce(|one, other| (one.0 + other.0, one.1 + other.1));
        GroupSummary { pg: self.pg, epoch: self.epoch, trouble, is_stopped, is_peering, in_sync, recovery }
    }
}
