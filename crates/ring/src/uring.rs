//! Operations by `io_uring`.

use crate::operation::{Completion, Operation};
use crate::setup::{SetupError, make_ring};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// A receive waits for the socket to have something before it looks (`IORING_RECVSEND_POLL_FIRST`).
const RECEIVE_POLL_FIRST: u16 = 1;

/// One thread's ring.
pub(crate) struct Uring {
    ring: IoUring,
    /// What did not fit into the submission queue.
    backlog: VecDeque<squeue::Entry>,
}

impl Uring {
    /// A ring with so many entries, and a table of so many descriptors.
    pub(crate) fn new(entries: u32, descriptors: u32) -> Result<Uring, SetupError> {
        let ring = make_ring(entries)?;
        ring.submitter().register_files_sparse(descriptors).map_err(|source| SetupError::Other {
            step: "making the table of files (raise `ulimit -n`)",
            source,
        })?;
        Ok(Uring { ring, backlog: VecDeque::new() })
    }

    /// Submits an operation with the next turn, or when it fits.
    ///
    /// # Safety
    /// As [`crate::queue::Queue::push`] says.
    pub(crate) unsafe fn push(&mut self, user_data: u64, operation: Operation) {
        let entry = entry_of(operation).user_data(user_data);
        if self.backlog.is_empty() {
            // SAFETY: the caller promises it.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Moves what did not fit into the submission queue before. Answers whether all of it does now.
    pub(crate) fn push_backlog(&mut self) -> bool {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`, whose caller promised it.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    /// Forgets what was not submitted, and answers how much of it `matches`.
    pub(crate) fn drop_backlog(&mut self, matches: impl Fn(u64) -> bool) -> usize {
        self.backlog.drain(..).filter(|entry| matches(entry.get_user_data())).count()
    }

    /// Whether something completed and was not reaped.
    pub(crate) fn has_done(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Whether something completes as soon as the ring is entered.
    pub(crate) fn is_to_be_entered(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Submits, and waits for one completion or the timeout.
    pub(crate) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let result = match timeout {
            Some(timeout) if timeout.is_zero() => {
                let pending = self.ring.submission().len() as u32;
                const GETEVENTS: u32 = 1;
                // SAFETY: no argument is passed; entries in the queue are sound as `push` says.
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(pending, 0, GETEVENTS, None) }
            }
            Some(timeout) => {
                let timespec = types::Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                let arguments = types::SubmitArgs::new().timespec(&timespec);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
            None => self.ring.submit_and_wait(1),
        };
        unless_harmless(result)
    }

    /// Submits, and waits for nothing.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        unless_harmless(self.ring.submit())
    }

    /// Appends what completed.
    pub(crate) fn reap(&mut self, completions: &mut Vec<Completion>) {
        let done = self.ring.completion();
        completions.extend(done.map(|entry| (entry.user_data(), entry.result(), entry.flags())));
    }

    /// Names a descriptor by a slot of the table.
    pub(crate) fn register(&self, slot: u32, descriptor: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files_update(slot, &[descriptor]).map(|_| ())
    }

    /// Lets a slot be free.
    pub(crate) fn unregister(&self, slot: u32) {
        // An update to -1 empties the slot; should it fail, the next connection overwrites it.
        let _ = self.ring.submitter().register_files_update(slot, &[-1]);
    }

    /// Registers memory.
    ///
    /// # Safety
    /// What the vectors point at is memory.
    pub(crate) unsafe fn register_buffers(&self, vectors: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the caller promises it.
        unsafe { self.ring.submitter().register_buffers(vectors) }
    }

    /// Has everything end that can.
    pub(crate) fn cancel_all(&self) {
        let limit = types::Timespec::new().sec(5);
        let _ = self.ring.submitter().register_sync_cancel(Some(limit), types::CancelBuilder::any());
    }

    /// What is registered would be given back some time after the ring is closed: locks on files and mounts would be held on.
    pub(crate) fn unregister_all(&self) {
        let _ = self.ring.submitter().unregister_files();
    }
}

fn entry_of(operation: Operation) -> squeue::Entry {
    match operation {
        Operation::Receive { slot, into, bytes, is_drained } => {
            let poll_first = if is_drained { RECEIVE_POLL_FIRST } else { 0 };
            opcode::Recv::new(types::Fixed(slot), into, bytes as u32).ioprio(poll_first).build()
        }
        Operation::Send { slot, message } => opcode::SendMsg::new(types::Fixed(slot), message)
            .flags((libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32)
            .build(),
        Operation::Connect { slot, address } => {
            // SAFETY: whoever pushes it keeps the address where it is until the completion.
            let address = unsafe { &*address };
            opcode::Connect::new(types::Fixed(slot), address.as_ptr().cast(), address.len()).build()
        }
        Operation::Accept { listener } => {
            opcode::AcceptMulti::new(types::Fd(listener)).flags(libc::SOCK_CLOEXEC).build()
        }
        Operation::Count { eventfd, into } => opcode::Read::new(types::Fd(eventfd), into.cast(), 8).build(),
        // Stays armed from one write to the next.
        Operation::Watch { eventfd } => {
            opcode::PollAdd::new(types::Fd(eventfd), libc::POLLIN as u32).multi(true).build()
        }
        Operation::Unwatch { watch } => opcode::PollRemove::new(watch).build(),
        Operation::File(entry) => entry,
    }
}

/// What failed because the time was up, a signal came, or the completion queue must be reaped first did no harm.
fn unless_harmless(result: io::Result<usize>) -> io::Result<()> {
    const HARMLESS: [i32; 4] = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
    match result {
        Err(error) if !error.raw_os_error().is_some_and(|code| HARMLESS.contains(&code)) => Err(error),
        _ => Ok(()),
    }
}
