//! The ring itself: what is submitted, how long a turn waits, and what completed.

use crate::setup::{SetupError, make_ring};
use io_uring::{IoUring, Submitter, cqueue, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// With more operations waiting than this, a turn does not poll.
const EAGER_OPERATIONS_MAX: usize = 2;

/// What completed: what it was submitted as, its result and its flags.
pub(crate) type Completion = (u64, i32, u32);

/// One thread's `io_uring`.
pub(crate) struct Queue {
    ring: IoUring,
    /// What did not fit into the submission queue.
    backlog: VecDeque<squeue::Entry>,
    /// Submitted and not yet completed for good.
    in_flight: usize,
    spin_max: Duration,
    is_eager: bool,
    /// How long recent eager waits were, in nanoseconds, as a moving average; decides whether polling pays.
    wait_average_ns: u64,
    enters: u64,
}

impl Queue {
    pub(crate) fn new(entries: u32, spin_max: Duration) -> Result<Queue, SetupError> {
        Ok(Queue {
            ring: make_ring(entries)?,
            backlog: VecDeque::new(),
            in_flight: 0,
            spin_max,
            is_eager: false,
            wait_average_ns: 0,
            enters: 0,
        })
    }

    /// The calls that register something or cancel.
    pub(crate) fn submitter(&self) -> Submitter<'_> {
        self.ring.submitter()
    }

    /// System calls that entered the ring so far.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    /// How many operations wait for what this ring waits for.
    pub(crate) fn set_waiting(&mut self, operations: usize) {
        self.is_eager = (1..=EAGER_OPERATIONS_MAX).contains(&operations);
    }

    /// Submits an entry with the next turn, or when it fits.
    ///
    /// # Safety
    /// Whatever the entry points at stays where it is, and is touched by nobody else, until its completion. The reactor's
    /// tables own it till then, and its `Drop` waits for all of them.
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        if self.backlog.is_empty() {
            // SAFETY: the caller promises it.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Moves what did not fit into the submission queue before.
    fn push_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`, whose caller promised it.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Forgets what was not submitted, and answers how much of it `matches`.
    pub(crate) fn drop_backlog(&mut self, matches: impl Fn(u64) -> bool) -> usize {
        self.backlog.drain(..).filter(|entry| matches(entry.get_user_data())).count()
    }

    /// Submits, and waits for one completion or the timeout.
    pub(crate) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.push_backlog();
        // What did not fit goes with the next turn, which must not wait for something else to happen:
        // receives and accepts in it would stay unarmed meanwhile.
        let timeout = if self.backlog.is_empty() { timeout } else { Some(Duration::ZERO) };
        if self.in_flight == 0 && timeout.is_none() {
            return Err(io::Error::other(
                "a turn without a timeout and with nothing in flight would never end",
            ));
        }
        let spin_max = self.spin_max;
        let spin_max_ns = spin_max.as_nanos() as u64;
        if !self.is_eager || spin_max.is_zero() || timeout == Some(Duration::ZERO) {
            return self.enter_once(timeout);
        }
        let start = crate::now();
        if self.wait_average_ns > spin_max_ns || !self.spin(start + spin_max)? {
            self.enter_once(timeout)?;
        }
        // However long a wait was, some short ones bring polling back.
        let waited_ns = (crate::now().since(start).as_nanos() as u64).min(8 * spin_max_ns);
        self.wait_average_ns = self.wait_average_ns / 8 * 7 + waited_ns / 8;
        Ok(())
    }

    /// Submits, and polls until something completed or the time is up; answers which.
    fn spin(&mut self, until: base::Instant) -> io::Result<bool> {
        self.enter_once(Some(Duration::ZERO))?;
        while self.ring.completion().is_empty() {
            if self.ring.submission().taskrun() {
                self.enter_once(Some(Duration::ZERO))?;
            } else if crate::now() >= until {
                return Ok(false);
            } else {
                // Who would complete something may need this very processor.
                std::thread::yield_now();
            }
        }
        Ok(true)
    }

    /// Submits, and waits for one completion or the timeout, without polling.
    pub(crate) fn enter_once(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enters += 1;
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
        self.push_backlog();
        self.enters += 1;
        unless_harmless(self.ring.submit())
    }

    /// Appends what completed.
    pub(crate) fn reap(&mut self, completions: &mut Vec<Completion>) {
        let start = completions.len();
        completions
            .extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result(), entry.flags())));
        self.in_flight -= completions[start..].iter().filter(|(_, _, flags)| !cqueue::more(*flags)).count();
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
