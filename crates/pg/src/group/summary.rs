//! What a primary reports of a group.

use super::Group;
use super::learner::Learner;
use super::role::{Phase, State};
use crate::report::GroupSummary;
use base::CutId;
use base::status::FlattenStatus;

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
        let flatten = primary.map_or_else(FlattenStatus::default, |primary| primary.cutting.flatten);
        let (pg, epoch) = (self.pg, self.epoch);
        GroupSummary { pg, epoch, trouble, is_stopped, is_peering, in_sync, recovery, cut_through, flatten }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::learner::{Joined, Work};
    use crate::group::position::Difference;
    use crate::group::role::Repairing;
    use base::map::PgConfig;
    use base::{BLOCK_BYTES, BlockRange, Epoch, Instant, LinkId, ObjectKey, OsdId, PgId, Sequence};
    use std::collections::VecDeque;

    fn learner(osd: u32, work: Option<Work>) -> Learner {
        let joined = work.map(|work| Joined { work: VecDeque::from([work]), ..Joined::default() });
        let (osd, link) = (OsdId(osd), LinkId(1));
        Learner { osd, link, session: osd.0, heard_at: Instant::default(), joined }
    }

    #[test]
    fn a_primary_says_what_keeps_it_from_serving_and_whether_somebody_must_help() {
        let in_sync = vec![OsdId(0), OsdId(1)];
        let config = PgConfig { epoch: Epoch(5), primary: OsdId(0), in_sync, ..PgConfig::default() };
        let mut group = Group::new(PgId::default(), 1, config, vec![], true, Instant::default());
        group.wanted.min_size = 2;
        let told = |group: &Group| {
            let GroupSummary { trouble, is_stopped, is_peering, .. } = group.summary();
            (trouble.unwrap_or_default(), is_stopped, is_peering)
        };
        assert_eq!(told(&group), ("just started".to_owned(), false, false));
        group.standing.must_stop("replace it".to_owned());
        assert_eq!(told(&group), ("replace it".to_owned(), true, false));
        group.standing.claims();
        assert_eq!(told(&group), ("claiming a new epoch in the registry".to_owned(), false, true));
        group.standing.epoch_was_granted(Instant::default());
        assert_eq!(told(&group), ("asking the members where they stand".to_owned(), false, true));
        let queue = VecDeque::from([Difference { range: BlockRange::default(), origin: 0 }; 3]);
        let repairing = Repairing { queue, current: None, mark_is_due: true, others: Vec::new() };
        group.standing.differences_are_known(Sequence(7), repairing);
        assert_eq!(told(&group), ("removing 3 differences between the members".to_owned(), false, true));
        group.standing.serves();
        assert_eq!(group.summary().trouble, None);
        assert_eq!(told(&group), (String::new(), false, false));
        group.wanted.min_size = 3;
        let few = "takes no writes: 2 of at least 3 members are in sync";
        assert_eq!(told(&group), (few.to_owned(), false, false));
    }

    #[test]
    fn what_is_cut_is_told_by_who_serves_and_what_learners_lack_is_told_of_all_together() {
        let config = PgConfig { primary: OsdId(0), in_sync: vec![OsdId(0)], ..PgConfig::default() };
        let mut group = Group::new(PgId::default(), 1, config, vec![], true, Instant::default());
        let cut_through = |group: &mut Group, through| {
            group.standing.primary_mut().expect("it is one").cutting.through = through;
            group.summary().cut_through
        };
        assert_eq!(cut_through(&mut group, CutId(4)), CutId(0), "another may have led since");
        group.standing.claims();
        group.standing.epoch_was_granted(Instant::default());
        let (queue, others) = (VecDeque::new(), Vec::new());
        let repairing = Repairing { queue, current: None, mark_is_due: false, others };
        group.standing.differences_are_known(Sequence(7), repairing);
        group.standing.serves();
        assert_eq!(cut_through(&mut group, CutId(4)), CutId(4));
        assert_eq!(group.summary().recovery, None);
        let range = |block_count| BlockRange { block_count, ..BlockRange::default() };
        let work = [None, Some(Work::Range(range(3))), Some(Work::Range(range(2)))];
        let object = Work::Object(ObjectKey::default(), Sequence(0));
        let learning = group.learning_mut().expect("it is a primary");
        learning.learners.extend((1..).zip(work).map(|(osd, work)| learner(osd, work)));
        learning.learners.push(learner(4, Some(object)));
        assert_eq!(group.summary().recovery, Some((3, 5 * BLOCK_BYTES as u64)));
    }
}
