//! What is submitted, how long a turn waits, and what completed: by a ring, or by what does the same without one.

use crate::operation::{Completion, Operation};
use crate::polled::Polled;
use crate::setup::SetupError;
use crate::uring::Uring;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// With more operations waiting than this, a turn does not poll.
const EAGER_OPERATIONS_MAX: usize = 2;

/// Who does the operations.
enum Engine {
    Uring(Uring),
    Polled(Polled),
}

/// One thread's operations.
pub(crate) struct Queue {
    engine: Engine,
    /// Submitted and not yet completed for good.
    in_flight: usize,
    spin_max: Duration,
    is_eager: bool,
    /// How long recent eager waits were, in nanoseconds, as a moving average; decides whether polling pays.
    wait_average_ns: u64,
    enters: u64,
}

impl Queue {
    /// By a ring with so many entries, and a table of so many descriptors.
    pub(crate) fn on_ring(entries: u32, descriptors: u32, spin_max: Duration) -> Result<Queue, SetupError> {
        Ok(Queue::new(Engine::Uring(Uring::new(entries, descriptors)?), spin_max))
    }

    /// Without a ring.
    pub(crate) fn polled(spin_max: Duration) -> Result<Queue, SetupError> {
        let polled = Polled::new().map_err(|source| SetupError::Other { step: "epoll", source })?;
        Ok(Queue::new(Engine::Polled(polled), spin_max))
    }

    fn new(engine: Engine, spin_max: Duration) -> Queue {
        Queue { engine, in_flight: 0, spin_max, is_eager: false, wait_average_ns: 0, enters: 0 }
    }

    /// Whether it does without a ring.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self.engine, Engine::Polled(_))
    }

    /// System calls that submitted or waited so far.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    /// How many operations wait for what this queue waits for.
    pub(crate) fn set_waiting(&mut self, operations: usize) {
        self.is_eager = (1..=EAGER_OPERATIONS_MAX).contains(&operations);
    }

    /// Submits an operation with the next turn, or when it fits.
    ///
    /// # Safety
    /// Whatever the operation points at stays where it is, and is touched by nobody else, until its completion. The reactor's
    /// tables own it till then, and its `Drop` waits for all of them.
    pub(crate) unsafe fn push(&mut self, user_data: u64, operation: Operation) {
        self.in_flight += 1;
        match &mut self.engine {
            // SAFETY: the caller promises it.
            Engine::Uring(uring) => unsafe { uring.push(user_data, operation) },
            // SAFETY: the caller promises it.
            Engine::Polled(polled) => unsafe { polled.push(user_data, operation) },
        }
    }

    /// Forgets what was not submitted, and answers how much of it `matches`.
    pub(crate) fn drop_backlog(&mut self, matches: impl Fn(u64) -> bool) -> usize {
        match &mut self.engine {
            Engine::Uring(uring) => uring.drop_backlog(matches),
            Engine::Polled(_) => 0,
        }
    }

    /// Submits, and waits for one completion or the timeout.
    pub(crate) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_room = match &mut self.engine {
            Engine::Uring(uring) => uring.push_backlog(),
            Engine::Polled(_) => true,
        };
        // What did not fit goes with the next turn, which must not wait for something else to happen:
        // receives and accepts in it would stay unarmed meanwhile.
        let timeout = if has_room { timeout } else { Some(Duration::ZERO) };
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
        loop {
            let (has_done, is_to_be_entered) = match &mut self.engine {
                Engine::Uring(uring) => (uring.has_done(), uring.is_to_be_entered()),
                Engine::Polled(polled) => (polled.has_done(), true),
            };
            if has_done {
                return Ok(true);
            }
            if crate::now() >= until {
                return Ok(false);
            }
            if is_to_be_entered {
                self.enter_once(Some(Duration::ZERO))?;
            }
            // Who would complete something may need this very processor.
            std::thread::yield_now();
        }
    }

    /// Submits, and waits for one completion or the timeout, without polling.
    pub(crate) fn enter_once(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enters += 1;
        match &mut self.engine {
            Engine::Uring(uring) => uring.enter(timeout),
            Engine::Polled(polled) => polled.enter(timeout),
        }
    }

    /// Submits, and waits for nothing.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.enters += 1;
        match &mut self.engine {
            Engine::Uring(uring) => {
                uring.push_backlog();
                uring.submit()
            }
            Engine::Polled(polled) => {
                polled.submit();
                Ok(())
            }
        }
    }

    /// Appends what completed.
    pub(crate) fn reap(&mut self, completions: &mut Vec<Completion>) {
        let start = completions.len();
        match &mut self.engine {
            Engine::Uring(uring) => uring.reap(completions),
            Engine::Polled(polled) => polled.reap(completions),
        }
        let is_over = |(_, _, flags): &&Completion| !io_uring::cqueue::more(*flags);
        self.in_flight -= completions[start..].iter().filter(is_over).count();
    }

    /// Names a connection's socket by its slot.
    pub(crate) fn register(&mut self, slot: u32, socket: RawFd) -> io::Result<()> {
        match &mut self.engine {
            Engine::Uring(uring) => uring.register(slot, socket),
            Engine::Polled(polled) => {
                polled.register(slot, socket);
                Ok(())
            }
        }
    }

    /// Lets the slot of a connection be free whose socket is about to be closed.
    pub(crate) fn unregister(&mut self, slot: u32) {
        match &mut self.engine {
            Engine::Uring(uring) => uring.unregister(slot),
            Engine::Polled(polled) => polled.unregister(slot),
        }
    }

    /// The ring, where operations on files are to be done.
    pub(crate) fn ring(&self) -> io::Result<&Uring> {
        match &self.engine {
            Engine::Uring(uring) => Ok(uring),
            Engine::Polled(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "drives and files need io_uring, which this reactor does without",
            )),
        }
    }

    /// Has everything end that can.
    pub(crate) fn cancel_all(&self) {
        if let Engine::Uring(uring) = &self.engine {
            uring.cancel_all();
        }
    }

    /// Gives back what is registered.
    pub(crate) fn unregister_all(&self) {
        if let Engine::Uring(uring) = &self.engine {
            uring.unregister_all();
        }
    }
}
