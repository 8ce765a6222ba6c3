//! The thread that works on an image: takes what the program's threads leave, has it done, and tells them.

use super::Shared;
use super::operation::{Changes, Operation, Request, Work};
use crate::errno::Errno;
use crate::log::Log;
use base::Instant;
use client::{ClientError, Completion, Outcome, VolumeHandle};
use ring::Event;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use volume::{Buffers, PIECE_BYTES_MAX, Slots, VolumeLoop};

/// Buffers for what fits a block.
const SMALL_COUNT: usize = 1024;
/// Buffers for more.
const LARGE_COUNT: usize = 64;

/// The longest step of an operation without data, in bytes: its pieces are out together.
const STEP_BYTES: u64 = 4 << 30;

/// Of damage that is found over and over it is told so often.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Whether somebody has to do something about a drive.
fn is_of_a_drive(error: &ClientError) -> bool {
    matches!(error, ClientError::Damaged { .. } | ClientError::DeviceFailed { .. })
}

/// A part of an operation that is out.
struct Piece {
    operation: usize,
    /// Where it begins in that, in bytes.
    at: u64,
    length: usize,
}

/// See the module's documentation.
pub(super) struct Worker {
    shared: Arc<Shared>,
    volume: VolumeLoop,
    handle: VolumeHandle,
    buffers: Buffers,
    operations: Slots<Operation>,
    pieces: Slots<Piece>,
    /// Operations of which something is still to be submitted, the oldest first.
    waiting: VecDeque<usize>,
    changes: Changes,
    /// Flushes, with the change that they do not wait for any more.
    flushes: VecDeque<(u64, Request)>,
    /// Who waits until the image is owned, or is owned no more.
    owners: Vec<Request>,
    /// It is to be closed when nothing is out any more.
    closing: Option<Request>,
    taken: Vec<Request>,
    events: Vec<Event>,
    log: Log,
    /// When something was written there last.
    logged: Option<Instant>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, volume: VolumeLoop, log: Log) -> Worker {
        let handle = volume.volumes()[0].handle;
        Worker {
            shared,
            volume,
            handle,
            buffers: Buffers::new(SMALL_COUNT, LARGE_COUNT),
            operations: Slots::default(),
            pieces: Slots::default(),
            waiting: VecDeque::new(),
            changes: Changes::default(),
            flushes: VecDeque::new(),
            owners: Vec::new(),
            closing: None,
            taken: Vec::new(),
            events: Vec::new(),
            log,
            logged: None,
        }
    }

    /// Works until it is to be closed, or cannot go on.
    pub(super) fn run(mut self) {
        let failure = loop {
            self.take();
            // What is so already nothing else would tell of.
            self.tell_owners();
            self.begin_what_fits();
            // What cannot be done at all ends at once, and nothing else would tell of it.
            if self.end_what_has() {
                continue;
            }
            let why = Errno(libc::ESHUTDOWN);
            if self.closing.is_some() && self.is_idle() && self.shared.inbox.close_if_empty(why) {
                break why;
            }
            let timeout = if self.shared.inbox.may_sleep() { None } else { Some(Duration::ZERO) };
            let turned = self.volume.turn(timeout, &mut self.events);
            self.shared.inbox.is_awake();
            self.shared.seen.note(&self.volume, self.handle);
            self.tell_owners();
            self.events.clear();
            self.end_what_has();
            if let Err(error) = turned {
                self.log.error(&error.to_string());
                break Errno(libc::ESHUTDOWN);
            }
        };
        self.shared.inbox.close(failure);
        // What came before it was closed is told too.
        self.take();
        let left: Vec<Request> = self.operations.drain().map(|operation| operation.request).collect();
        let flushes = self.flushes.drain(..).map(|(_, flush)| flush);
        for request in left.into_iter().chain(flushes).chain(self.owners.drain(..)) {
            self.shared.ended(request, -i64::from(failure.0));
        }
        let (shared, closing) = (self.shared.clone(), self.closing.take());
        // It is detached when whoever closes it goes on.
        drop(self);
        if let Some(closing) = closing {
            let result = closing.result;
            shared.ended(closing, result);
        }
    }

    /// Ends what has come to its end; whether something has.
    fn end_what_has(&mut self) -> bool {
        let mut has_any = false;
        while let Some(completion) = self.volume.poll_completion() {
            self.piece_ended(completion);
            has_any = true;
        }
        let buffers = &mut self.buffers;
        self.volume.take_released(|buffer| buffers.put(buffer));
        has_any
    }

    /// Ends those who wait to own it, or to own it no more, of whom `which` says so.
    fn end_owners(&mut self, error: i32, which: impl Fn(&Work) -> bool) {
        for request in std::mem::take(&mut self.owners) {
            match which(&request.work) {
                true => self.shared.ended(request, -i64::from(error)),
                false => self.owners.push(request),
            }
        }
    }

    /// Tells who waits for that that the image is owned, or is not.
    fn tell_owners(&mut self) {
        if self.owners.is_empty() {
            return;
        }
        let is_had = self.volume.is_had(self.handle);
        let is_given_up = self.volume.is_given_up(self.handle);
        let result = |request: &Request| match (&request.work, &is_had) {
            (Work::LetGo, _) => is_given_up.then_some(0),
            (_, Err(_)) => Some(-i64::from(libc::EROFS)),
            (_, Ok(is_had)) => is_had.then_some(0),
        };
        let waiting = std::mem::take(&mut self.owners);
        for request in waiting {
            match result(&request) {
                Some(result) => self.shared.ended(request, result),
                None => self.owners.push(request),
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.volume.operations_in_flight() == 0 && self.waiting.is_empty() && self.flushes.is_empty()
    }

    /// Takes what was left, in order.
    fn take(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        self.shared.inbox.take(&mut taken);
        for request in taken.drain(..) {
            let change = match request.work {
                Work::Flush => {
                    self.flushes.push_back((self.changes.next(), request));
                    continue;
                }
                Work::Close => {
                    self.closing = Some(request);
                    continue;
                }
                Work::Own { keeps } => {
                    // Who waited until it is owned no more waited for what was so, or will not be.
                    self.end_owners(0, |work| matches!(work, Work::LetGo));
                    self.volume.own(self.handle, keeps);
                    self.owners.push(request);
                    continue;
                }
                Work::LetGo => {
                    self.end_owners(libc::ECANCELED, |work| matches!(work, Work::Own { .. }));
                    self.volume.let_go(self.handle);
                    self.owners.push(request);
                    continue;
                }
                Work::Refused => {
                    let result = request.result;
                    self.shared.ended(request, result);
                    continue;
                }
                Work::Read(_) | Work::Changed(..) => None,
                Work::Write(_) | Work::Zero => Some(self.changes.begin()),
            };
            let operation = Operation { request, begun: 0, out: 0, failure: None, change };
            self.waiting.push_back(self.operations.insert(operation));
        }
        self.taken = taken;
        self.end_flushes();
    }

    /// Submits what waits, in order, until a buffer is missing.
    fn begin_what_fits(&mut self) {
        while let Some(slot) = self.waiting.front().copied() {
            if !self.begin(slot) {
                return;
            }
            self.waiting.pop_front();
            if self.operations.get(slot).out == 0 {
                self.end(slot);
            }
        }
    }

    /// Submits all that is left of an operation; whether nothing is.
    fn begin(&mut self, slot: usize) -> bool {
        loop {
            let operation = self.operations.get(slot);
            let left = operation.request.length - operation.begun;
            // Of one that failed no more is begun.
            if left == 0 || operation.failure.is_some() {
                operation.begun = operation.request.length;
                return true;
            }
            let (at, from) = (operation.begun, operation.request.offset + operation.begun);
            if !operation.request.work.has_data() {
                let since = match &operation.request.work {
                    Work::Changed(since, _) => Some(*since),
                    _ => None,
                };
                let left = left.min(STEP_BYTES);
                operation.begun += left;
                operation.out += 1;
                let token = self.pieces.insert(Piece { operation: slot, at, length: 0 }) as u64;
                match since {
                    Some(since) => self.volume.changed(self.handle, token, from, left, since),
                    None => self.volume.zero(self.handle, token, from, left),
                }
                // The next step is begun when this one is done.
                return true;
            }
            let length = left.min(PIECE_BYTES_MAX as u64) as usize;
            let Some(mut buffer) = self.buffers.take(length) else { return false };
            let bytes = buffer.bytes_mut().expect("a buffer from a pool has one holder");
            if let Work::Write(memory) = &operation.request.work {
                match memory.length() as u64 == operation.request.length {
                    true => memory.copy_to(at as usize, &mut bytes[..length]),
                    false => memory.repeat_to(at as usize, &mut bytes[..length]),
                }
            }
            operation.begun += length as u64;
            operation.out += 1;
            let is_write = matches!(operation.request.work, Work::Write(_));
            let token = self.pieces.insert(Piece { operation: slot, at, length }) as u64;
            match is_write {
                true => self.volume.write(self.handle, token, from, length as u64, buffer),
                false => self.volume.read(self.handle, token, from, length as u64, buffer),
            }
        }
    }

    fn piece_ended(&mut self, ended: Completion) {
        let Piece { operation: slot, at, length } = self.pieces.remove(ended.token as usize);
        let operation = self.operations.get(slot);
        operation.out -= 1;
        match (&ended.outcome, &operation.request.work, &ended.buffer) {
            (Outcome::Failed(error), ..) => {
                let (now, limit) = (self.volume.now(), LOG_EVERY);
                if is_of_a_drive(error) && self.logged.is_none_or(|last| now.since(last) >= limit) {
                    self.log.error(&error.to_string());
                    self.logged = Some(now);
                }
                operation.failure.get_or_insert(Errno::from(error));
            }
            (Outcome::Changed(changed), Work::Changed(_, told), _) => {
                // Whoever asked waits, and has room for one answer.
                let _ = told.try_send(changed.clone());
            }
            (_, Work::Read(memory), Some(buffer)) => memory.copy_from(at as usize, &buffer.bytes()[..length]),
            _ => {}
        }
        if operation.failure.is_some() && !operation.request.work.has_data() {
            operation.begun = operation.request.length;
        }
        let is_begun = operation.begun == operation.request.length;
        // One with data of which more is still to be begun waits for its turn already.
        let has_next = operation.out == 0 && !is_begun && !operation.request.work.has_data();
        let is_over = operation.out == 0 && is_begun;
        if let Some(buffer) = ended.buffer {
            self.buffers.put(buffer);
        }
        if is_over {
            self.end(slot);
        } else if has_next {
            self.waiting.push_front(slot);
        }
    }

    fn end(&mut self, slot: usize) {
        let Operation { request, failure, change, .. } = self.operations.remove(slot);
        if let Some(change) = change {
            self.changes.end(change);
        }
        let result = failure.map_or(request.result, |Errno(number)| -i64::from(number));
        self.shared.ended(request, result);
        self.end_flushes();
    }

    fn end_flushes(&mut self) {
        while self.flushes.front().is_some_and(|(before, _)| self.changes.are_done_before(*before)) {
            if let Some((_, flush)) = self.flushes.pop_front() {
                let result = flush.result;
                self.shared.ended(flush, result);
            }
        }
    }
}
