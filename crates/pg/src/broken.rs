//! Promises to break on purpose, so that the simulator can show that its checkers notice.
//!
//! Only with the feature `broken`, which no release has: without it [`Broken::is`] is a constant.

/// Which promise an OSD breaks, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    #[cfg(feature = "broken")]
    sabotage: Option<Sabotage>,
}

impl Broken {
    #[cfg(feature = "broken")]
    pub(crate) const fn by(sabotage: Option<Sabotage>) -> Broken {
        Broken { sabotage }
    }

    /// Whether this promise is broken.
    #[inline]
    pub(crate) const fn is(self, promise: Sabotage) -> bool {
        #[cfg(feature = "broken")]
        if let Some(sabotage) = self.sabotage {
            return sabotage as u8 == promise as u8;
        }
        let _ = promise;
        false
    }
}

/// A promise to break. See `OsdOptions::sabotage`.
#[doc(hidden)]
#[cfg_attr(not(feature = "broken"), allow(unreachable_pub, reason = "nobody else can name a promise then"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A write is acknowledged when the first member has it on stable media.
    AcknowledgeEarly,
    /// A primary serves reads without leases.
    SkipLease,
    /// Who takes over lets the old primary be, which takes writes without leases, and members go on taking those of older
    /// epochs.
    ForgetFence,
    /// What is pushed to a learner does not hold back newer writes.
    StalePush,
    /// A learner is taken for in sync as soon as it has joined.
    CountLearner,
    /// The order of a group that was given up begins at the beginning, as if there had been none before; and who is sure of more
    /// than that has is believed.
    BeginAtOne,
    /// Writes of all epochs are numbered as if there were one, so that two may have the same place.
    ReuseSequence,
    /// Reads do not wait for writes that are under way on their blocks.
    ReadUncommitted,
    /// Members that disagree are left as they are.
    SkipRepair,
    /// A write that is sent again is done again.
    ForgetOrigin,
    /// A member that deletes what it holds goes on saying by its log that it has it.
    KeepLog,
    /// What replaces a damaged block does not hold back newer writes.
    StaleMend,
    /// What a member answers in place of a damaged block is taken for right, whatever the index says.
    TrustFetched,
    /// What clients read is not verified, not even where they ask for that.
    NeverVerify,
    /// Who was dropped from a group deletes what it holds although the target is not yet in sync.
    LeaveEarly,
    /// A primary that restarted takes what it finds for the end of its log, whatever the others have.
    TrustTail,
    /// A primary serves objects that went to the other half of its group, for whoever has a map from before.
    ServeOtherHalf,
    /// A primary serves what lies beyond the end of a volume, for whoever has a map from before.
    ServeBeyondEnd,
    /// A primary begins whatever it is asked for, whichever limits there are.
    ForgetLimits,
    /// A primary says that nothing is left beyond the end of a volume that was made smaller, and deletes nothing.
    KeepBeyondEnd,
    /// A replica goes on with what it holds as if its group had not been split.
    IgnoreSplit,
    /// What a removed pool left on an OSD that was away is kept, as if nobody had said that it was removed.
    ForgetTombstones,
    /// A primary orders however many writes before the first of them is on all members.
    OrderUnbounded,
    /// Of a write that is sent again a primary takes for not done whatever its log does not tell, however short that is.
    TrustSilence,
    /// A learner does not tell of what it has that may have come to nothing.
    ForgetDoubts,
    /// What is pushed to a learner does not say when it changed last.
    ForgetChanged,
    /// A learner is told how far it got before it has what comes before that.
    ReachedEarly,
    /// The copy of a member that is not in sync replaces a damaged block, however old it is, if its checksum is the right one.
    TrustOldCopy,
    /// A member takes orders of any OSD that knows which comes next.
    ObeyAnybody,
    /// A member obeys whoever says that it claimed an epoch later than the map shows.
    ObeyAnyQuery,
    /// A member takes from the primary of a group what is about objects of other groups too.
    TakeForeign,
    /// A client may do anything, whatever its key is good for.
    ForgetRights,
    /// Who is sent a client's fence answers without making sure of the other OSDs.
    FenceAlone,
    /// What a volume with snapshots loses by a zeroing is not hidden: what lies beneath is seen again.
    HideNothing,
    /// When a snapshot is removed, what others see is deleted too.
    PruneSeen,
    /// Where a hole was that hid nothing, whatever is there by now is deleted.
    PruneWritten,
    /// When a snapshot is removed, nothing is deleted.
    PruneNothing,
    /// A clone is said to hold all that it saw of its parent, and was given nothing of it.
    FlattenNothing,
    /// What a clone sees of its parent is copied to it while somebody writes there.
    FlattenWritten,
    /// Who reads sees all older layers of the volume and no others, whatever it was rolled back to or cloned from.
    ReadStraight,
    /// Who reads a snapshot sees what was written since.
    ReadNewest,
    /// Who does not know of the newest snapshot yet reads what was there before it.
    ReadOlder,
    /// Whoever had a volume before goes on changing it.
    ForgetGeneration,
}

#[cfg(feature = "broken")]
impl Sabotage {
    /// All of them.
    pub const ALL: [Sabotage; 43] = [
        Sabotage::PruneWritten,
        Sabotage::ReadOlder,
        Sabotage::HideNothing,
        Sabotage::PruneSeen,
        Sabotage::PruneNothing,
        Sabotage::FlattenNothing,
        Sabotage::FlattenWritten,
        Sabotage::ReadStraight,
        Sabotage::ReadNewest,
        Sabotage::BeginAtOne,
        Sabotage::OrderUnbounded,
        Sabotage::AcknowledgeEarly,
        Sabotage::SkipLease,
        Sabotage::ForgetFence,
        Sabotage::ForgetGeneration,
        Sabotage::StalePush,
        Sabotage::CountLearner,
        Sabotage::ReuseSequence,
        Sabotage::ReadUncommitted,
        Sabotage::SkipRepair,
        Sabotage::ForgetOrigin,
        Sabotage::KeepLog,
        Sabotage::StaleMend,
        Sabotage::TrustFetched,
        Sabotage::NeverVerify,
        Sabotage::LeaveEarly,
        Sabotage::TrustTail,
        Sabotage::FenceAlone,
        Sabotage::ServeOtherHalf,
        Sabotage::IgnoreSplit,
        Sabotage::ForgetTombstones,
        Sabotage::ServeBeyondEnd,
        Sabotage::KeepBeyondEnd,
        Sabotage::ForgetLimits,
        Sabotage::TrustSilence,
        Sabotage::ForgetDoubts,
        Sabotage::ForgetChanged,
        Sabotage::ReachedEarly,
        Sabotage::TrustOldCopy,
        Sabotage::ObeyAnybody,
        Sabotage::ObeyAnyQuery,
        Sabotage::TakeForeign,
        Sabotage::ForgetRights,
    ];
}
