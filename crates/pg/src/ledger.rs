//! What was staged in the store and is not durable yet, in the order of staging.

use crate::group::Groups;
use crate::operation::OperationId;
use base::{BlockRange, Instant, LinkId};
use std::collections::VecDeque;
use store::WriteRecord;
use wire::Replicate;

/// A write or zeroing that a primary sent, to be counted when it is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicated {
    /// The length of what is written.
    pub(crate) bytes: u32,
    /// When it was taken up.
    pub(crate) at: Instant,
}

/// What was staged of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StagedRecord {
    Own(OperationId),
    Replica {
        link: LinkId,
        ordinal: u64,
        write: Option<Replicated>,
    },
    /// A part of the deletion of a group that this OSD left: nobody waits for it.
    Left,
    /// A split: both groups wait for it, since before it was staged.
    Split {
        child: u32,
    },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What becomes durable in this order, each with its group.
    staged: VecDeque<(u32, StagedRecord)>,
    staged_token: u64,
    durable_token: u64,
    /// Ordered and not yet sent to the replicas: their batch is still being filled.
    pub(crate) outgoing: VecDeque<OperationId>,
}

impl Ledger {
    /// A token for the store, whose answer comes in the order of staging.
    pub(crate) fn next_token(&self) -> u64 {
        self.staged_token
    }

    /// A write as the store takes it, with that token.
    pub(crate) fn record(&self, write: &Replicate, role: store::Role) -> WriteRecord {
        let Replicate { range, epoch, sequence, origin } = *write;
        let BlockRange { key, first_block, block_count } = range;
        let token = self.next_token();
        WriteRecord { key, epoch, sequence, origin, first_block, block_count, token, role }
    }

    /// Notes what was staged with [`Self::next_token`].
    pub(crate) fn note(&mut self, group: u32, record: StagedRecord, groups: &mut Groups) {
        self.staged_token += 1;
        if !matches!(record, StagedRecord::Split { .. }) {
            groups[group].staged_count += 1;
        }
        self.staged.push_back((group, record));
    }

    /// The store is done with the oldest record, in whatever way: its group, and what it was.
    pub(crate) fn settle(&mut self, token: u64, groups: &mut Groups) -> (u32, StagedRecord) {
        assert_eq!(token, self.durable_token, "what is staged becomes durable in order");
        self.durable_token += 1;
        let (group, record) = self.staged.pop_front().expect("only what was staged becomes durable");
        groups[group].staged_count -= 1;
        (group, record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Group;
    use base::map::PgConfig;
    use base::{Epoch, OsdId, PgId};

    #[test]
    fn a_group_waits_for_what_was_staged_for_it_and_a_split_was_counted_before() {
        let mut groups = Groups::default();
        let config = PgConfig { epoch: Epoch(1), primary: OsdId(0), in_sync: vec![], ..PgConfig::default() };
        let group = groups.add(Group::new(PgId::default(), 1, config, vec![], true, Instant::default()));
        let mut ledger = Ledger::default();
        ledger.note(group, StagedRecord::Left, &mut groups);
        groups[group].staged_count += 1;
        ledger.note(group, StagedRecord::Split { child: group }, &mut groups);
        assert_eq!((groups[group].staged_count, ledger.next_token()), (2, 2));
        assert!(matches!(ledger.settle(0, &mut groups), (_, StagedRecord::Left)));
        assert!(matches!(ledger.settle(1, &mut groups), (_, StagedRecord::Split { .. })));
        assert_eq!(groups[group].staged_count, 0);
    }
}
