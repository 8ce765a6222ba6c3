//! What a primary reports of a group.

use super::Group;
use super::learner::Learner;
use super::role::{Phase, State};
use crate::report::GroupSummary;
use base::CutId;

impl Group {
    pub(crate) fn summary(&self) -> GroupSummary {
        let trouble = self.standing.phase().and_then(|phase| match phase {
            Phase::Active if self.is_writable() => None,
            Phase::Active => {
                let (count, min_size) = (self.config.in_sync.len(), self.wanted.min_size);
                Some(format!("takes no writes: {count} of at least {min_size} members are in sync"))
            }
            Phase::Waiting { reason } | Phase::Stopped { reason } => Some(reason.clone()),
            Phase::Claiming => Some("claiming a new epoch in the registry".to_owned()),
            Phase::Querying { .. } => Some("asking the members where they stand".to_owned()),
            Phase::Repairing(repairing) => {
                Some(format!("removing {} differences between the members", repairing.queue.len()))
            }
        });
        let is_stopped = self.state() == State::Stopped;
        let is_peering = matches!(self.state(), State::Claiming | State::Querying | State::Repairing);
        let in_sync = self.config.in_sync.clone();
        let left = self.learners().iter().filter_map(Learner::left);
        let recovery = left.reduce(|one, other| (one.0 + other.0, one.1 + other.1));
        let primary = self.standing.primary().filter(|_| self.is_active());
        let cut_through = primary.map_or(CutId(0), |primary| primary.cutting.through);
        let (pg, epoch) = (self.pg, self.epoch);
        GroupSummary { pg, epoch, trouble, is_stopped, is_peering, in_sync, recovery, cut_through }
    }
}
