//! What a program wants done with an image.

use crate::completion::Completion;
use crate::errno::Errno;
use crate::memory::Memory;
use base::LayerId;
use client::Change;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::ThreadId;

/// On which bytes, and how.
#[derive(Debug)]
pub(super) enum Work {
    /// Into that memory.
    Read(Memory),
    /// From that memory, which is written again and again if it is shorter.
    Write(Memory),
    /// They are zeros then, and take no space as far as they are whole blocks.
    Zero,
    /// What of them may have changed since that snapshot is told; without one, what is there.
    Changed(Option<LayerId>, SyncSender<Vec<(u64, Change)>>),
    /// The image is owned; who keeps it gives it to nobody.
    Own { keeps: bool },
    /// It is owned no more.
    LetGo,
    /// What was wanted before is done.
    Flush,
    /// It cannot be done.
    Refused,
    /// All of it is done, and no more comes.
    Close,
}

impl Work {
    /// Whether it is cut into pieces that have data.
    pub(super) fn has_data(&self) -> bool {
        matches!(self, Work::Read(_) | Work::Write(_))
    }
}

/// An operation as it is left for the thread that works on the image. One that nobody ends ends with `EIO` when it is dropped: whoever
/// waits for it is not to wait for ever.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) work: Work,
    /// In bytes.
    pub(super) offset: u64,
    /// In bytes.
    pub(super) length: u64,
    /// What it ends with if it is done.
    pub(super) result: i64,
    /// What ends with it. None: it has.
    completion: Option<Arc<Completion>>,
}

impl Request {
    pub(super) fn new(
        work: Work,
        (offset, length): (u64, u64),
        result: i64,
        completion: Arc<Completion>,
    ) -> Request {
        Request { work, offset, length, result, completion: Some(completion) }
    }

    /// Ends it; `listed` is called with the completion before who waits for that goes on.
    pub(super) fn end(&mut self, result: i64, listed: impl FnOnce(&Arc<Completion>)) {
        if let Some(completion) = self.completion.take() {
            completion.end(result, || listed(&completion));
        }
    }

    /// Notes which thread ends it.
    pub(super) fn is_left_to(&self, worker: ThreadId) {
        if let Some(completion) = &self.completion {
            completion.is_left_to(worker);
        }
    }

    /// Its completion does not end with it.
    pub(super) fn forget(mut self) {
        self.completion = None;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.end(-i64::from(libc::EIO), |_| {});
    }
}

/// One that is under way.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) request: Request,
    /// Bytes of it that were submitted.
    pub(super) begun: u64,
    /// Pieces of it that are out.
    pub(super) out: u32,
    pub(super) failure: Option<Errno>,
    /// Which change it is, if it is one.
    pub(super) change: Option<u64>,
}

/// Changes in the order in which they were wanted, and which of them are done: what a flush waits for.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The oldest that is not done.
    oldest: u64,
    /// Whether it is done, of each from that on.
    done: VecDeque<bool>,
}

impl Changes {
    /// Another one; its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.done.push_back(false);
        self.next() - 1
    }

    /// The number that the next one has.
    pub(super) fn next(&self) -> u64 {
        self.oldest + self.done.len() as u64
    }

    /// It is done.
    pub(super) fn end(&mut self, number: u64) {
        self.done[(number - self.oldest) as usize] = true;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.oldest += 1;
        }
    }

    /// Whether all before that number are done.
    pub(super) fn are_done_before(&self, number: u64) -> bool {
        self.oldest >= number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_what_was_wanted_before_it_alone() {
        let mut changes = Changes::default();
        assert!(changes.are_done_before(changes.next()));
        let (first, second) = (changes.begin(), changes.begin());
        let flush = changes.next();
        let third = changes.begin();
        changes.end(second);
        changes.end(third);
        assert!(!changes.are_done_before(flush));
        changes.end(first);
        assert!(changes.are_done_before(flush) && changes.are_done_before(changes.next()));
    }
}
