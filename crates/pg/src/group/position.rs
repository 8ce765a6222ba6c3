//! Where members stand in a group's order, and what they may differ in.

use base::{BlockRange, LogEntry, ObjectKey, OsdId, PgId, Sequence};
use wire::LogState;

/// Blocks whose content the members may disagree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    pub(crate) range: BlockRange,
    /// That of the write that not all members have, or of its repair: see [`LogEntry::origin`].
    pub(crate) origin: u64,
}

/// The blocks that an entry of a group's log is about.
pub(crate) fn range_of(pg: PgId, entry: &LogEntry) -> BlockRange {
    let LogEntry { layer: volume, object, first_block, block_count, .. } = *entry;
    BlockRange { key: ObjectKey { pg, layer: volume, object }, first_block, block_count }
}

/// Where a member stands, as it told its primary: see [`LogState`].
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
    pub(crate) fn new(
        osd: OsdId,
        state: &LogState,
        entries: impl Iterator<Item = LogEntry>,
    ) -> MemberPosition {
        let LogState { last_sequence, log_begins, is_incomplete, may_lack_tail, .. } = *state;
        let entries = entries.collect();
        MemberPosition { osd, last_sequence, log_begins, is_incomplete, may_lack_tail, entries }
    }

    /// Whether its log goes back to the group's first write.
    pub(crate) fn is_whole(&self) -> bool {
        self.log_begins == Sequence(0)
    }

    /// Whether it started between what it was pushed last as a learner and its first epoch in sync: the end of its log may
    /// be gone unnoticed, with pushes in it, of which no log tells.
    pub(crate) fn may_lack_pushes(&self) -> bool {
        self.is_incomplete && self.may_lack_tail
    }
}
