//! Promises to break on purpose, so that the simulator can show that its checkers notice.

/// A promise to break. See `OsdOptions::sabotage`.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A replica acknowledges what is not on stable media.
    AcknowledgeStaged,
    /// A primary serves reads without leases.
    SkipLease,
    /// A replica takes a group over although it promised not to.
    BreakPromise,
    /// A replica goes on taking the writes of an older epoch.
    ForgetFence,
    /// What is pushed to a learner does not hold back newer writes.
    StalePush,
    /// A learner is taken for in sync as soon as it has joined.
    CountLearner,
    /// A new epoch's sequences begin behind what its primary has, whatever the others have.
    ReuseSequence,
    /// Reads do not wait for writes that are under way on their blocks.
    ReadUncommitted,
    /// Members that disagree are left as they are.
    SkipRepair,
    /// A write that is sent again is done again.
    ForgetOrigin,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Sabotage; 10] = [
        Sabotage::AcknowledgeStaged,
        Sabotage::SkipLease,
        Sabotage::BreakPromise,
        Sabotage::ForgetFence,
        Sabotage::StalePush,
        Sabotage::CountLearner,
        Sabotage::ReuseSequence,
        Sabotage::ReadUncommitted,
        Sabotage::SkipRepair,
        Sabotage::ForgetOrigin,
    ];
}
