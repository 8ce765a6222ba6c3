//! Sealed batches on their way to stable media. They may be written in any order, and are durable in the log's.

use crate::actions::Action;
use crate::layout::STREAMS;
use std::collections::VecDeque;
use zerocopy::little_endian::U32;

/// Write tokens of superblocks have it; those of batches are numbers below.
pub(crate) const TOKEN_SUPERBLOCK: u32 = 1 << 31;
const FLUSH_LOG: u32 = 0;
/// The token of flushes of superblocks.
pub(crate) const FLUSH_SUPERBLOCK: u32 = 1;

/// The token that a batch is written with.
pub(crate) fn write_token(sequence: u64) -> u32 {
    sequence as u32 & !TOKEN_SUPERBLOCK
}

/// A batch on its way.
#[derive(Debug)]
pub(crate) struct SealedBatch {
    pub(crate) sequence: u64,
    pub(crate) slot: u32,
    pub(crate) stream: usize,
    pub(crate) segment: u32,
    /// The first data block on the drive.
    pub(crate) data_location: u32,
    pub(crate) data_blocks: u32,
    /// Where the streams go on behind it.
    pub(crate) end_block: u32,
    pub(crate) next_segment: [U32; STREAMS],
    pub(crate) tokens: Vec<u64>,
    pub(crate) is_written: bool,
}

/// All of them, in the log's order.
#[derive(Debug)]
pub(crate) struct InFlight {
    batches: VecDeque<SealedBatch>,
    count: [usize; STREAMS],
    needs_flush: bool,
    /// A flush is under way that covers batches up to this one.
    flushing: Option<u64>,
    flushed_through: u64,
    /// Emptied, to be filled again.
    token_vectors: Vec<Vec<u64>>,
}

impl InFlight {
    /// None, behind a durable batch.
    pub(crate) fn new(needs_flush: bool, durable: u64) -> InFlight {
        InFlight {
            batches: VecDeque::new(),
            count: [0; STREAMS],
            needs_flush,
            flushing: None,
            flushed_through: durable,
            token_vectors: Vec::new(),
        }
    }

    /// How many there are of a stream.
    pub(crate) fn count(&self, stream: usize) -> usize {
        self.count[stream]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// The tokens of all of them.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.batches.iter().flat_map(|batch| batch.tokens.iter().copied())
    }

    /// Memory for the tokens of one more.
    pub(crate) fn token_vector(&mut self) -> Vec<u64> {
        self.token_vectors.pop().unwrap_or_default()
    }

    pub(crate) fn push(&mut self, batch: SealedBatch) {
        self.count[batch.stream] += 1;
        self.batches.push_back(batch);
    }

    /// A write ended.
    pub(crate) fn was_written(&mut self, token: u32) {
        let batch = self.batches.iter_mut().find(|batch| write_token(batch.sequence) == token);
        batch.expect("only batches in flight are written").is_written = true;
    }

    /// Issues a flush if written batches wait for one and none is under way.
    pub(crate) fn issue_flush(&mut self, actions: &mut Vec<Action>) {
        if !self.needs_flush || self.flushing.is_some() {
            return;
        }
        let written = self.batches.iter().take_while(|batch| batch.is_written).last();
        if let Some(last) = written.map(|batch| batch.sequence).filter(|last| *last > self.flushed_through) {
            self.flushing = Some(last);
            actions.push(Action::Flush { token: FLUSH_LOG });
        }
    }

    /// The flush ended.
    pub(crate) fn were_flushed(&mut self) {
        self.flushed_through = self.flushing.take().expect("only a flush under way ends");
    }

    /// The oldest, if it is durable.
    pub(crate) fn take_durable(&mut self) -> Option<SealedBatch> {
        let front = self.batches.front()?;
        if !front.is_written || (self.needs_flush && front.sequence > self.flushed_through) {
            return None;
        }
        self.count[front.stream] -= 1;
        self.batches.pop_front()
    }

    /// Tells that everything in a batch is durable.
    pub(crate) fn tell(&mut self, mut tokens: Vec<u64>, actions: &mut Vec<Action>) {
        actions.extend(tokens.drain(..).map(|token| Action::Durable { token }));
        if tokens.capacity() > 0 {
            self.token_vectors.push(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sequence: u64) -> SealedBatch {
        SealedBatch {
            sequence,
            slot: 0,
            stream: 0,
            segment: 0,
            data_location: 0,
            data_blocks: 0,
            end_block: 0,
            next_segment: [U32::ZERO; STREAMS],
            tokens: vec![sequence],
            is_written: false,
        }
    }

    #[test]
    fn batches_are_durable_in_order_and_behind_a_flush_that_began_after_they_were_written() {
        let mut in_flight = InFlight::new(true, 0);
        let mut actions = Vec::new();
        for sequence in 1..=3 {
            in_flight.push(batch(sequence));
        }
        in_flight.was_written(2);
        in_flight.issue_flush(&mut actions);
        assert!(actions.is_empty(), "the first is not written");
        in_flight.was_written(1);
        in_flight.issue_flush(&mut actions);
        assert!(matches!(actions[..], [Action::Flush { token: FLUSH_LOG }]));
        // The flush that is under way says nothing of what is written meanwhile.
        in_flight.was_written(3);
        assert!(in_flight.take_durable().is_none());
        in_flight.were_flushed();
        let durable: Vec<u64> =
            std::iter::from_fn(|| in_flight.take_durable()).map(|batch| batch.sequence).collect();
        assert_eq!(durable, [1, 2]);
        assert_eq!(in_flight.tokens().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn one_flush_is_under_way_and_none_is_issued_of_which_nobody_waits() {
        let mut in_flight = InFlight::new(true, 0);
        let mut actions = Vec::new();
        let flushes = |in_flight: &mut InFlight, actions: &mut Vec<Action>| {
            in_flight.issue_flush(actions);
            std::mem::take(actions).len()
        };
        for sequence in 1..=3 {
            in_flight.push(SealedBatch { stream: sequence as usize % 2, ..batch(sequence) });
        }
        assert_eq!([0, 1].map(|stream| in_flight.count(stream)), [1, 2]);
        in_flight.was_written(1);
        assert_eq!(flushes(&mut in_flight, &mut actions), 1);
        in_flight.was_written(2);
        assert_eq!(flushes(&mut in_flight, &mut actions), 0, "one is under way");
        in_flight.were_flushed();
        assert_eq!(flushes(&mut in_flight, &mut actions), 1, "the second was written meanwhile");
        in_flight.were_flushed();
        assert_eq!(flushes(&mut in_flight, &mut actions), 0, "nothing was written since");
        assert_eq!(std::iter::from_fn(|| in_flight.take_durable()).count(), 2);
        assert!([0, 1].map(|stream| in_flight.count(stream)) == [0, 1] && !in_flight.is_empty());
        // Where writes are durable as they end there is nothing to flush.
        let mut in_flight = InFlight::new(false, 0);
        (1..=2).for_each(|sequence| in_flight.push(batch(sequence)));
        in_flight.was_written(2);
        assert!(in_flight.take_durable().is_none());
        in_flight.was_written(1);
        assert_eq!(flushes(&mut in_flight, &mut actions), 0);
        assert_eq!(std::iter::from_fn(|| in_flight.take_durable()).count(), 2);
        assert!(in_flight.is_empty());
    }

    #[test]
    fn memory_for_tokens_is_used_again_and_what_has_none_is_not_kept() {
        let (mut in_flight, mut actions) = (InFlight::new(true, 0), Vec::new());
        // Nobody waits for a batch that cleaning wrote.
        in_flight.tell(Vec::new(), &mut actions);
        assert!(actions.is_empty() && in_flight.token_vectors.is_empty());
        in_flight.tell(vec![7, 8], &mut actions);
        assert!(matches!(actions[..], [Action::Durable { token: 7 }, Action::Durable { token: 8 }]));
        let again = in_flight.token_vector();
        assert!(again.is_empty() && again.capacity() >= 2);
    }
}
