//! The operations of a group: those under way, and behind them those that wait for their blocks or for room.

use crate::operation::{OperationId, Operations};
use base::BlockRange;
use std::collections::VecDeque;

/// The most writes of one group that are ordered and not yet acknowledged. Below the length of the log that a
/// store keeps (1,024), so that members' logs always overlap.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

/// See the module's documentation. Only a primary has any.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Writes under way, unaligned writes whose edges are being read, and what else holds back what comes after it.
    pub(crate) in_flight: VecDeque<OperationId>,
    /// Operations behind others, oldest first.
    pub(crate) waiting: VecDeque<OperationId>,
}

impl Line {
    /// Whether an operation under way, or one of the first `waiting_before` that wait, touches the same blocks.
    pub(crate) fn has_conflict(
        &self,
        operations: &Operations,
        range: &BlockRange,
        waiting_before: usize,
    ) -> bool {
        let waiting = self.waiting.iter().take(waiting_before);
        self.in_flight
            .iter()
            .chain(waiting)
            .any(|id| operations.get(*id).is_some_and(|other| other.range.overlaps(range)))
    }

    /// The same of all that wait: whether something new must wait.
    pub(crate) fn must_wait(&self, operations: &Operations, range: &BlockRange) -> bool {
        self.has_conflict(operations, range, self.waiting.len())
    }

    /// No more is taken under way.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.len() >= IN_FLIGHT_MAX
    }

    /// An operation is not under way any more.
    pub(crate) fn ended(&mut self, id: OperationId) {
        if self.in_flight.front() == Some(&id) {
            self.in_flight.pop_front();
        } else {
            self.in_flight.retain(|other| *other != id);
        }
    }

    /// An operation that was under way waits again, before all others.
    pub(crate) fn put_back(&mut self, id: OperationId) {
        self.ended(id);
        self.waiting.push_front(id);
    }

    /// Takes all, those under way first.
    pub(crate) fn take_all(&mut self) -> Vec<OperationId> {
        self.in_flight.drain(..).chain(self.waiting.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{OperationKind, Purpose};
    use base::ObjectKey;

    fn add(operations: &mut Operations, first_block: u16) -> OperationId {
        let range = BlockRange { key: ObjectKey::default(), first_block, block_count: 2 };
        operations.add_for(OperationKind::Write, Purpose::Repair, 0, range)
    }

    #[test]
    fn what_touches_the_blocks_of_something_before_it_waits() {
        let mut operations = Operations::default();
        let mut line = Line::default();
        line.in_flight.push_back(add(&mut operations, 0));
        line.waiting.push_back(add(&mut operations, 10));
        let range = |first_block| BlockRange { key: ObjectKey::default(), first_block, block_count: 2 };
        assert!(line.must_wait(&operations, &range(1)) && line.must_wait(&operations, &range(11)));
        assert!(!line.must_wait(&operations, &range(2)));
        // The first that waits is held back by what is under way alone.
        assert!(!line.has_conflict(&operations, &range(11), 0));
    }

    #[test]
    fn what_is_put_back_is_the_first_in_line() {
        let mut operations = Operations::default();
        let mut line = Line::default();
        let ids = [0, 10, 20].map(|block| add(&mut operations, block));
        line.in_flight.extend([ids[0], ids[1]]);
        line.waiting.push_back(ids[2]);
        line.put_back(ids[1]);
        assert_eq!((line.in_flight.len(), line.waiting.front()), (1, Some(&ids[1])));
        assert_eq!(line.take_all(), [ids[0], ids[1], ids[2]]);
    }
}
