//! Eventfds of others that a reactor listens to: whoever writes to one is told of by an event.

use crate::event::{Event, WatchId};
use crate::operation::Operation;
use crate::queue::Queue;
use io_uring::cqueue;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// One that is listened to, or that the kernel still has.
struct Watch {
    signal: OwnedFd,
    serial: u32,
    is_ended: bool,
}

/// All of them.
pub(crate) struct Watches {
    /// What their completions are told by; the number of the watch is added.
    user_data: u64,
    /// What the completion of asking for an end is told by; the same is added.
    ended_user_data: u64,
    watches: Vec<Option<Watch>>,
    serial: u32,
}

impl Watches {
    pub(crate) fn new(user_data: u64, ended_user_data: u64) -> Watches {
        Watches { user_data, ended_user_data, watches: Vec::new(), serial: 0 }
    }

    /// Listens to one.
    pub(crate) fn add(&mut self, signal: OwnedFd, most: usize, queue: &mut Queue) -> io::Result<WatchId> {
        let slot = match self.watches.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.watches.len() < most => {
                self.watches.push(None);
                self.watches.len() - 1
            }
            None => return Err(io::Error::other(format!("a reactor listens to at most {most} eventfds"))),
        };
        self.serial = self.serial.wrapping_add(1);
        self.watches[slot] = Some(Watch { signal, serial: self.serial, is_ended: false });
        self.arm(slot, queue);
        Ok(WatchId { slot: slot as u32, serial: self.serial })
    }

    /// Listens to it no more.
    pub(crate) fn end(&mut self, id: WatchId, queue: &mut Queue) {
        let watch = self.watches.get_mut(id.slot as usize).and_then(Option::as_mut);
        let Some(watch) = watch.filter(|watch| watch.serial == id.serial && !watch.is_ended) else { return };
        watch.is_ended = true;
        self.ask_for_end(id.slot, queue);
    }

    fn ask_for_end(&self, slot: u32, queue: &mut Queue) {
        let operation = Operation::Unwatch { watch: self.user_data | u64::from(slot) };
        // SAFETY: it points at nothing.
        unsafe { queue.push(self.ended_user_data | u64::from(slot), operation) };
    }

    /// The kernel has answered that: while it is about to tell of a write it does not end, and is asked again.
    pub(crate) fn end_asked(&mut self, slot: u32, result: i32, queue: &mut Queue) {
        let is_still_there = self.watches[slot as usize].as_ref().is_some_and(|watch| watch.is_ended);
        if result == -libc::EALREADY && is_still_there {
            self.ask_for_end(slot, queue);
        }
    }

    /// Stays armed from one write to the next: what the eventfd counts need not be read.
    fn arm(&mut self, slot: usize, queue: &mut Queue) {
        let Some(watch) = &self.watches[slot] else { return };
        let operation = Operation::Watch { eventfd: watch.signal.as_raw_fd() };
        // SAFETY: it points at nothing, and the descriptor is open until its last completion.
        unsafe { queue.push(self.user_data | slot as u64, operation) };
    }

    /// A completion of one came.
    pub(crate) fn done(&mut self, slot: u32, result: i32, flags: u32, queue: &mut Queue) -> Option<Event> {
        let watch = self.watches[slot as usize].as_ref().expect("a watch outlives its operation");
        let watch_id = WatchId { slot, serial: watch.serial };
        let is_ended = watch.is_ended;
        if !cqueue::more(flags) {
            // One that cannot be listened to is not tried again: it would fail without end.
            if is_ended || result < 0 {
                self.watches[slot as usize] = None;
            } else {
                self.arm(slot as usize, queue);
            }
        }
        (!is_ended && result >= 0).then_some(Event::Signalled { watch: watch_id })
    }
}
