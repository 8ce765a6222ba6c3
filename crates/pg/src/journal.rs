//! What is told of an OSD: notes worth an operator's attention, figures, and milestones: what groups came through,
//! counted, so that a simulation can show that it reaches what is rare. Nothing is decided by any of it.

use base::figures::Figures;
use std::collections::VecDeque;
use wire::Status;

/// How many notes are kept.
const NOTES_MAX: usize = 16;

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
    SplitMissed = "split: several that were missed",
    ClaimInVain = "claim: came to nothing",
    QueryOutdated = "peering: a query of an older epoch is not answered",
    QueryKept = "peering: a query waits for the map",
    QueryTimeout = "peering: a member does not say where it stands",
    PeeringDiffers = "peering: members differ",
    PeeringAgrees = "peering: members agree",
    PeeringUndone = "peering: a write is undone",
    PeeringBehind = "peering: a log does not reach",
    PromotionLate = "learner: its last acknowledgements are late",
    LearnerByLog = "learner: catches up by log",
    LearnerByVersion = "learner: catches up by what changed since",
    LearnerFrees = "learner: had no room, and frees some first",
    LearnerGivenUp = "learner: given up",
    LearnerRefused = "learner: refuses",
    LearnerIsWhole = "learner: has everything",
    LeaseEnded = "read: refused, for a lease ended",
    ReadDivided = "read: failed, and is tried block by block",
    SentAgainDone = "sent again: was done",
    SentAgainUndone = "sent again: was undone",
    SentAgainInPart = "sent again: was done in part",
    SentAgainNotDone = "sent again: was not done",
    SentAgainUnknown = "sent again: nobody can tell whether it was done",
    SentAgainAhead = "sent again: names more than its group has reached",
    MendDamaged = "mend: damaged here",
    MendOtherDamaged = "mend: damaged elsewhere",
    MendOutvoted = "mend: outvoted",
    Adopted = "peering: what another member has where this one cannot read is taken",
    MendOfRepair = "mend: damaged while peering",
    FetchedFromLearner = "mend: a learner has it",
    FetchedWrong = "mend: a member answers with something else",
    FetchedOlder = "fetch: what is not in sync may be older, or come to nothing",
    FetchLate = "mend: a member does not answer",
    LostCertain = "mend: lost",
    LostUnreadable = "mend: lost, unless a drive reads it another time",
    LostUncertain = "mend: lost, unless who is away has it",
    ScrubDamaged = "scrub: damage",
    ScrubDiffers = "scrub: members differ",
    CutSearched = "cut: all objects are searched",
    CutBlocks = "cut: whole blocks",
    CutTail = "cut: a part of a block",
    CutSettled = "cut: nothing is left beyond the ends",
    DeletionSearched = "deletion: all objects are searched",
    LeftGroup = "placement: deletes what it held",
    LeftGroupReturns = "placement: is a member again before it deleted everything",
    PoolForgotten = "placement: nothing is left of a removed pool",
    RefusedNotPrimary = "client refused: not primary",
    RefusedStaleEpoch = "client refused: stale epoch",
    RefusedNotActive = "client refused: not active",
    RefusedNoSpace = "client refused: no space",
    RefusedBeyondEnd = "client refused: beyond the end",
    PruneSearched = "objects are looked through for what nobody sees",
    Pruned = "what nobody sees any more is deleted",
    FlattenSearched = "objects are looked through for what clones see of their parents",
    Flattened = "what a clone sees of its parent is copied to it",
    RefusedFrozen = "client refused: frozen",
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
            Status::BeyondEnd => Milestone::RefusedBeyondEnd,
            Status::Frozen => Milestone::RefusedFrozen,
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
struct Milestones([u64; Milestone::NAMES.len()]);

impl Default for Milestones {
    fn default() -> Milestones {
        Milestones([0; Milestone::NAMES.len()])
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    notes: VecDeque<String>,
    milestones: Milestones,
    /// What it did for clients and primaries since the start.
    pub(crate) figures: Figures,
    /// Bytes that learners were sent since the start.
    pub(crate) pushed_bytes: u64,
}

impl Journal {
    /// Notes something for an operator, unless it is what was noted last.
    pub(crate) fn note(&mut self, text: String) {
        if self.notes.back() != Some(&text) {
            if self.notes.len() == NOTES_MAX {
                self.notes.pop_front();
            }
            self.notes.push_back(text);
        }
    }

    /// The newest notes, oldest first.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    pub(crate) fn pass(&mut self, milestone: Milestone) {
        self.milestones.0[milestone as usize] += 1;
    }

    /// How often what happened since the start.
    pub(crate) fn milestones(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Milestone::NAMES.into_iter().zip(self.milestones.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_notes_are_kept_and_none_twice_in_a_row() {
        let mut journal = Journal::default();
        for number in 0..NOTES_MAX + 4 {
            journal.note(format!("note {number}"));
            journal.note(format!("note {number}"));
        }
        assert_eq!(journal.notes().count(), NOTES_MAX);
        assert_eq!(journal.notes().next(), Some("note 4"));
        // What is not the last may come again.
        ["one", "other", "one"].into_iter().for_each(|note| journal.note(note.to_owned()));
        assert_eq!(journal.notes().collect::<Vec<_>>()[NOTES_MAX - 3..], ["one", "other", "one"]);
    }
}
