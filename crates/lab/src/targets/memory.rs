//! A target in memory whose drive is perfect or broken on request and whose clock is its own.
//!
//! It is the engine's testing twin of a device: a test says how long an operation takes, and finds
//! exactly that in the report.

use crate::engine::{Clock, Completion, Kind, Operation, Target, TargetError};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A clock that somebody else moves.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Rc<Cell<u64>>);

impl ManualClock {
    /// Moves it forward.
    pub fn advance(&self, nanoseconds: u64) {
        self.0.set(self.0.get() + nanoseconds);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}

/// Bytes in memory behind a queue. Each `wait` takes `turn_ns` and completes up to `completions_per_turn`.
#[derive(Debug)]
pub struct MemoryTarget {
    bytes: Vec<u8>,
    buffers: Vec<Vec<u8>>,
    queue: std::collections::VecDeque<Operation>,
    clock: ManualClock,
    /// What a turn takes, in nanoseconds.
    pub turn_ns: u64,
    /// What a turn completes at most.
    pub completions_per_turn: usize,
    /// What each operation must be a multiple of, in bytes.
    pub alignment_bytes: u32,
    /// The operation, counted from 0, that fails.
    pub fails_at: Option<u64>,
    completed: u64,
    /// The most operations that were ever in flight at once.
    pub in_flight_max: usize,
}

impl MemoryTarget {
    /// `size` zeros, with `depth` slots of `block_bytes`.
    #[must_use]
    pub fn new(size: usize, depth: u32, block_bytes: u32, clock: ManualClock) -> MemoryTarget {
        MemoryTarget {
            bytes: vec![0; size],
            buffers: vec![vec![0; block_bytes as usize]; depth as usize],
            queue: std::collections::VecDeque::new(),
            clock,
            turn_ns: 100_000,
            completions_per_turn: usize::MAX,
            alignment_bytes: 1,
            fails_at: None,
            completed: 0,
            in_flight_max: 0,
        }
    }

    /// What it holds.
    #[must_use]
    pub fn contents(&self) -> &[u8] {
        &self.bytes
    }

    fn perform(&mut self, operation: Operation) -> Result<(), String> {
        if self.fails_at == Some(self.completed) {
            return Err(format!("memory: offset {}: broken on request", operation.offset));
        }
        let start = operation.offset as usize;
        let range = start..start + operation.length as usize;
        let buffer = &mut self.buffers[operation.slot as usize][..operation.length as usize];
        match operation.kind {
            Kind::Read => buffer.copy_from_slice(&self.bytes[range]),
            Kind::Write => self.bytes[range].copy_from_slice(buffer),
        }
        Ok(())
    }
}

impl Target for MemoryTarget {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn alignment_bytes(&self) -> u32 {
        self.alignment_bytes
    }

    fn data_mut(&mut self, slot: u32) -> &mut [u8] {
        &mut self.buffers[slot as usize]
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        assert!(self.queue.iter().all(|other| other.slot != operation.slot), "a slot holds one operation");
        self.queue.push_back(operation);
        self.in_flight_max = self.in_flight_max.max(self.queue.len());
        Ok(())
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        // An empty queue is waited for no longer than it may last.
        let turn_ns = if self.queue.is_empty() { limit.as_nanos() as u64 } else { self.turn_ns };
        self.clock.advance(turn_ns);
        for _ in 0..self.completions_per_turn {
            let Some(operation) = self.queue.pop_front() else { break };
            let result = self.perform(operation);
            self.completed += 1;
            completions.push(Completion { slot: operation.slot, result });
        }
        Ok(())
    }
}
