//! Operations on sockets and eventfds without `io_uring`, for where that is forbidden, as in most containers: each is tried, and
//! tried again when epoll tells that it may succeed. What completes looks as if a ring had done it.
//!
//! Descriptors are listened to edge-triggered, once for their lifetime: a connection costs one call of `epoll_ctl`, and what it
//! may do is remembered between the edges.

use crate::operation::{Completion, Operation};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::SockRef;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::time::Duration;

/// What is told of at a time.
const EVENTS_MAX: usize = 256;
/// Connections that are taken at a time before somebody else has a turn.
const ACCEPTS_MAX: usize = 64;
/// Nobody's descriptor.
const NONE: RawFd = -1;
/// The flag of completions of what goes on (`IORING_CQE_F_MORE`).
const MORE: u32 = 1 << 1;

/// An operation, and what it was submitted as.
type Submitted = (u64, Operation);

/// One descriptor that is listened to.
#[derive(Default)]
struct Descriptor {
    may_read: bool,
    may_write: bool,
    /// Nothing comes any more: what is read before the end does not tell that nothing is left.
    is_ended: bool,
    is_connecting: bool,
    reading: Option<Submitted>,
    writing: Option<Submitted>,
}

/// See the module's documentation.
pub(crate) struct Polled {
    poll: Poll,
    told: Events,
    /// The sockets of connections.
    slots: Vec<RawFd>,
    /// Whatever is listened to. Nothing is in here that is closed.
    descriptors: HashMap<RawFd, Descriptor>,
    /// To be tried with the next turn.
    due: VecDeque<Submitted>,
    done: Vec<Completion>,
}

impl Polled {
    pub(crate) fn new() -> io::Result<Polled> {
        Ok(Polled {
            poll: Poll::new()?,
            told: Events::with_capacity(EVENTS_MAX),
            slots: Vec::new(),
            descriptors: HashMap::new(),
            due: VecDeque::new(),
            done: Vec::new(),
        })
    }

    /// Has an operation tried with the next turn.
    ///
    /// # Safety
    /// As [`crate::queue::Queue::push`] says.
    pub(crate) unsafe fn push(&mut self, user_data: u64, operation: Operation) {
        self.due.push_back((user_data, operation));
    }

    /// Whether something completed and was not reaped.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Tries what was pushed, and waits for nothing.
    pub(crate) fn submit(&mut self) {
        for _ in 0..self.due.len() {
            if let Some(submitted) = self.due.pop_front() {
                self.attempt(submitted);
            }
        }
    }

    /// Tries what was pushed, and waits until something may succeed, or for the timeout.
    pub(crate) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.submit();
        let has_news = self.has_done() || !self.due.is_empty();
        let timeout = if has_news { Some(Duration::ZERO) } else { timeout };
        let mut told = std::mem::replace(&mut self.told, Events::with_capacity(0));
        let result = self.poll.poll(&mut told, timeout);
        if result.is_ok() {
            for event in &told {
                let Some(descriptor) = self.descriptors.get_mut(&(event.token().0 as RawFd)) else {
                    continue;
                };
                let mut again = [None, None];
                descriptor.is_ended |= event.is_read_closed() || event.is_error();
                if event.is_readable() || event.is_read_closed() || event.is_error() {
                    descriptor.may_read = true;
                    again[0] = descriptor.reading.take();
                }
                if event.is_writable() || event.is_write_closed() || event.is_error() {
                    descriptor.may_write = true;
                    again[1] = descriptor.writing.take();
                }
                for submitted in again.into_iter().flatten() {
                    self.attempt(submitted);
                }
            }
        }
        self.told = told;
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Appends what completed.
    pub(crate) fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    /// Names a connection's socket by its slot.
    pub(crate) fn register(&mut self, slot: u32, socket: RawFd) {
        let slot = slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, NONE);
        }
        self.slots[slot] = socket;
    }

    /// Lets a slot be free. What was forked off may hold the socket open, and epoll would go on telling of it.
    pub(crate) fn unregister(&mut self, slot: u32) {
        let socket = std::mem::replace(&mut self.slots[slot as usize], NONE);
        self.forget(socket);
    }

    fn forget(&mut self, descriptor: RawFd) -> Option<Descriptor> {
        let known = self.descriptors.remove(&descriptor)?;
        // It is listened to, so it can be listened to no more.
        let _ = self.poll.registry().deregister(&mut SourceFd(&descriptor));
        Some(known)
    }

    /// What is known of a descriptor, which is listened to from here on.
    fn descriptor(&mut self, descriptor: RawFd, interest: Interest) -> io::Result<&mut Descriptor> {
        use std::collections::hash_map::Entry;
        match self.descriptors.entry(descriptor) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let token = Token(descriptor as usize);
                self.poll.registry().register(&mut SourceFd(&descriptor), token, interest)?;
                // Whether it can be read is told with the next turn.
                Ok(place.insert(Descriptor { may_write: true, ..Descriptor::default() }))
            }
        }
    }

    fn complete(&mut self, user_data: u64, result: io::Result<usize>, flags: u32) {
        let result = match result {
            Ok(count) => count as i32,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        self.done.push((user_data, result, flags));
    }

    fn attempt(&mut self, (user_data, operation): Submitted) {
        let is_over = match operation {
            Operation::Receive { slot, into, bytes, .. } => self.receive(slot, into, bytes),
            Operation::Send { slot, message } => self.send(slot, message),
            Operation::Connect { slot, address } => self.connect(slot, address),
            Operation::Accept { listener } => self.accept(user_data, listener),
            Operation::Count { eventfd, into } => self.count(eventfd, into),
            Operation::Watch { eventfd } => self.watch(user_data, eventfd),
            Operation::Unwatch { watch } => Ok(Some(self.unwatch(watch))),
            Operation::File(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        };
        match is_over {
            Ok(Some(count)) => self.complete(user_data, Ok(count), 0),
            Ok(None) => self.park((user_data, operation)),
            Err(error) => self.complete(user_data, Err(error), 0),
        }
    }

    /// Keeps an operation until its descriptor is told of.
    fn park(&mut self, submitted: Submitted) {
        let (descriptor, is_read) = match submitted.1 {
            Operation::Receive { slot, .. } => (self.slots[slot as usize], true),
            Operation::Send { slot, .. } | Operation::Connect { slot, .. } => {
                (self.slots[slot as usize], false)
            }
            Operation::Accept { listener: descriptor }
            | Operation::Count { eventfd: descriptor, .. }
            | Operation::Watch { eventfd: descriptor } => (descriptor, true),
            Operation::Unwatch { .. } | Operation::File(_) => return,
        };
        let Some(descriptor) = self.descriptors.get_mut(&descriptor) else { return };
        match is_read {
            // What it may do already it does with the next turn: so many were accepted that others are first.
            true if descriptor.may_read => self.due.push_back(submitted),
            true => descriptor.reading = Some(submitted),
            false => descriptor.writing = Some(submitted),
        }
    }

    fn receive(&mut self, slot: u32, into: *mut u8, bytes: usize) -> io::Result<Option<usize>> {
        let socket = self.slots[slot as usize];
        let descriptor = self.descriptor(socket, Interest::READABLE | Interest::WRITABLE)?;
        if !descriptor.may_read {
            return Ok(None);
        }
        // SAFETY: the connection owns the memory, and hands it to nobody, until this completes.
        let count = of_call(|| unsafe { libc::recv(socket, into.cast(), bytes, libc::MSG_DONTWAIT) })?;
        // What was all there was is not asked for again before there is more.
        descriptor.may_read = count.is_some_and(|count| count == bytes || descriptor.is_ended);
        Ok(count)
    }

    fn send(&mut self, slot: u32, message: *const libc::msghdr) -> io::Result<Option<usize>> {
        let socket = self.slots[slot as usize];
        let descriptor = self.descriptor(socket, Interest::READABLE | Interest::WRITABLE)?;
        if !descriptor.may_write {
            return Ok(None);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the connection owns the message and what it points at until this completes.
        let count = of_call(|| unsafe { libc::sendmsg(socket, message, flags) })?;
        descriptor.may_write = count.is_some();
        Ok(count)
    }

    fn connect(&mut self, slot: u32, address: *const socket2::SockAddr) -> io::Result<Option<usize>> {
        let descriptor = self.slots[slot as usize];
        // SAFETY: the connection keeps its socket open while an operation is on it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let socket = SockRef::from(&borrowed);
        if self.descriptors.get(&descriptor).is_some_and(|known| known.is_connecting) {
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            // Told of too soon.
            if socket.peer_addr().is_err_and(|error| error.kind() == io::ErrorKind::NotConnected) {
                return Ok(None);
            }
        } else {
            socket.set_nonblocking(true)?;
            // SAFETY: whoever pushed the operation keeps the address where it is until this completes.
            match socket.connect(unsafe { &*address }) {
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                    // Before it began it would have been told of as hung up.
                    let known = self.descriptor(descriptor, Interest::READABLE | Interest::WRITABLE)?;
                    (known.is_connecting, known.may_write) = (true, false);
                    return Ok(None);
                }
                result => result?,
            }
        }
        if let Some(known) = self.descriptors.get_mut(&descriptor) {
            known.is_connecting = false;
        }
        Ok(Some(0))
    }

    fn accept(&mut self, user_data: u64, listener: RawFd) -> io::Result<Option<usize>> {
        // SAFETY: the reactor keeps its listeners open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(listener) };
        let socket = SockRef::from(&borrowed);
        if !self.descriptors.contains_key(&listener) {
            socket.set_nonblocking(true)?;
        }
        let descriptor = self.descriptor(listener, Interest::READABLE)?;
        if !descriptor.may_read {
            return Ok(None);
        }
        let mut accepted = Vec::new();
        while accepted.len() < ACCEPTS_MAX {
            match socket.accept() {
                Ok((connection, _)) => accepted.push(connection),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    descriptor.may_read = false;
                    break;
                }
                Err(error) if is_passing(&error) => {}
                Err(error) if accepted.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        for connection in accepted {
            self.complete(user_data, Ok(connection.into_raw_fd() as usize), MORE);
        }
        Ok(None)
    }

    fn count(&mut self, eventfd: RawFd, into: *mut u64) -> io::Result<Option<usize>> {
        let descriptor = self.descriptor(eventfd, Interest::READABLE)?;
        if !descriptor.may_read {
            return Ok(None);
        }
        // SAFETY: the reactor keeps the eventfd open, and the number where it is, until this completes.
        let count = of_call(|| unsafe { libc::read(eventfd, into.cast(), size_of::<u64>()) })?;
        descriptor.may_read = false;
        Ok(count)
    }

    fn watch(&mut self, user_data: u64, eventfd: RawFd) -> io::Result<Option<usize>> {
        let descriptor = self.descriptor(eventfd, Interest::READABLE)?;
        // Nothing is read of it: each write to it is an edge of its own.
        if std::mem::take(&mut descriptor.may_read) {
            self.complete(user_data, Ok(libc::POLLIN as usize), MORE);
        }
        Ok(None)
    }

    fn unwatch(&mut self, watch: u64) -> usize {
        let is_it =
            |known: &Descriptor| known.reading.as_ref().is_some_and(|(user_data, _)| *user_data == watch);
        let eventfd = self.descriptors.iter().find(|(_, known)| is_it(known)).map(|(eventfd, _)| *eventfd);
        if eventfd.and_then(|eventfd| self.forget(eventfd)).is_some() {
            self.complete(watch, Err(io::Error::from_raw_os_error(libc::ECANCELED)), 0);
        }
        0
    }
}

/// What a call of the kernel did; None if it would have to wait.
fn of_call(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(Some(count)),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                error => return Err(error),
            },
        }
    }
}

/// Whether somebody who wanted to connect has given up, or a signal came.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
