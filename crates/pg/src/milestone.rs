//! What a group came through, counted, so that a simulation can show that it reaches what is rare.

use crate::group::Group;
use crate::osd::Osd;
use std::borrow::Cow;
use wire::Status;

/// Defines the milestones with what they are called in a report.
macro_rules! milestones {
    ($($name:ident = $text:literal,)*) => {
        /// What happens in the life of a group.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Milestone {
            $($name,)*
        }

        impl Milestone {
            const NAMES: [&'static str; [$($text),*].len()] = [$($text),*];
        }
    };
}

milestones! {
    ClaimTakeOver = "claim: takes over",
    ClaimMemberRemoved = "claim: a member is removed",
    ClaimMemberTakenIn = "claim: a member is taken in",
    ClaimUnfit = "claim: a member becomes a learner, for its log does not reach",
    ClaimSurplusDropped = "claim: surplus members are dropped",
    ClaimSame = "claim: the same members",
    ClaimHandOver = "claim: hands over",
    ClaimMayLackTail = "claim: hands over, for the end of its log may be gone",
    ClaimMayLackPushes = "peering: a member started before it was in sync",
    ClaimSplit = "claim: is split",
    Split = "split: what is held here is split",
    SplitUnmapped = "split: before the map shows it",
    SplitMissed = "split: several that were missed",
    ClaimInVain = "claim: came to nothing",
    QueryOutdated = "peering: a query of an older epoch is not answered",
    QueryTimeout = "peering: a member does not say where it stands",
    PeeringDiffers = "peering: members differ",
    PeeringAgrees = "peering: members agree",
    PeeringUndone = "peering: a write is undone",
    PeeringBehind = "peering: a log does not reach",
    PromotionLate = "learner: its last acknowledgements are late",
    LearnerByLog = "learner: catches up by log",
    LearnerByDigest = "learner: catches up by digest",
    LearnerFrees = "learner: had no room, and frees some first",
    LearnerGivenUp = "learner: given up",
    LearnerRefused = "learner: refuses",
    LearnerIsWhole = "learner: has everything",
    LeaseEnded = "read: refused, for a lease ended",
    ReadDivided = "read: failed, and is tried block by block",
    SentAgainDone = "sent again: was done",
    SentAgainUndone = "sent again: was undone",
    SentAgainInPart = "sent again: was done in part",
    SentAgainUnknown = "sent again: was not done",
    MendDamaged = "mend: damaged here",
    MendOtherDamaged = "mend: damaged elsewhere",
    MendOutvoted = "mend: outvoted",
    Adopted = "peering: what another member has where this one cannot read is taken",
    MendOfRepair = "mend: damaged while peering",
    FetchedFromLearner = "mend: a learner has it",
    FetchedWrong = "mend: a member answers with something else",
    FetchLate = "mend: a member does not answer",
    LostCertain = "mend: lost",
    LostUnreadable = "mend: lost, unless a drive reads it another time",
    LostUncertain = "mend: lost, unless who is away has it",
    ScrubDamaged = "scrub: damage",
    ScrubDiffers = "scrub: members differ",
    LeftGroup = "placement: deletes what it held",
    LeftGroupReturns = "placement: is a member again before it deleted everything",
    RefusedNotPrimary = "client refused: not primary",
    RefusedStaleEpoch = "client refused: stale epoch",
    RefusedNotActive = "client refused: not active",
    RefusedNoSpace = "client refused: no space",
    RefusedDamaged = "client refused: damaged",
    RefusedOther = "client refused: other",
    ReplicaStaleEpoch = "replica refuses: stale epoch",
    ReplicaNotActive = "replica refuses: not active",
    ReplicaNoSpace = "replica refuses: no space",
    ReplicaOther = "replica refuses: other",
}

impl Milestone {
    /// That a client is refused.
    pub(crate) fn refused(status: Status) -> Milestone {
        match status {
            Status::NotPrimary => Milestone::RefusedNotPrimary,
            Status::StaleEpoch => Milestone::RefusedStaleEpoch,
            Status::NotActive => Milestone::RefusedNotActive,
            Status::NoSpace => Milestone::RefusedNoSpace,
            Status::Damaged => Milestone::RefusedDamaged,
            _ => Milestone::RefusedOther,
        }
    }

    /// That a primary is refused.
    pub(crate) fn replica_refuses(status: Status) -> Milestone {
        match status {
            Status::StaleEpoch => Milestone::ReplicaStaleEpoch,
            Status::NotActive => Milestone::ReplicaNotActive,
            Status::NoSpace => Milestone::ReplicaNoSpace,
            _ => Milestone::ReplicaOther,
        }
    }
}

/// How often what was passed since the start.
#[derive(Debug)]
pub(crate) struct Milestones([u64; Milestone::NAMES.len()]);

impl Default for Milestones {
    fn default() -> Milestones {
        Milestones([0; Milestone::NAMES.len()])
    }
}

impl Milestones {
    pub(crate) fn pass(&mut self, milestone: Milestone) {
        self.0[milestone as usize] += 1;
    }
}

impl Osd {
    /// How often what happened since the start, and how often a group went from one state to another.
    #[doc(hidden)]
    pub fn milestones(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> + '_ {
        let passed = Milestone::NAMES.into_iter().zip(self.milestones.0);
        let passed = passed.map(|(name, times)| (Cow::Borrowed(name), times));
        let transitions = self.groups.iter().flat_map(Group::transitions);
        let transitions =
            transitions.map(|(from, to, times)| (Cow::Owned(format!("state: {from} to {to}")), times));
        passed.chain(transitions).filter(|(_, times)| *times > 0)
    }
}
