//! The reactor: files, sockets, listeners and timers on one `io_uring`, or sockets on what stands in for it.

use crate::connection::Connection;
use crate::encryption::Encryption;
use crate::event::{ConnectionId, Event, FileId, ListenerId, WatchId};
use crate::files::Files;
use crate::inbox::Inbox;
use crate::operation::{Completion, Operation};
use crate::queue::Queue;
use crate::setup::SetupError;
use crate::stream::{Stream, set_stream_options};
use crate::wake::Waker;
use crate::watches::Watches;
use base::{Buffer, LinkId, Network};
use io_uring::cqueue;
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Sizes of a reactor.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// Submission queue entries.
    pub entries: u32,
    /// Connections at the same time; one more is closed at once.
    pub connections_max: u32,
    /// Bytes a new connection can receive before something is consumed. Grow it with [`Inbox::grow`].
    pub inbox_bytes: usize,
    /// The longest a turn polls before it sleeps, when somebody waits ([`Reactor::set_waiting`]) and recent waits were
    /// no longer than this on average. Polling spares the latency of a wake-up, which in a virtual machine
    /// is larger than that of a network. The processor is offered to others meanwhile.
    pub spin_max: Duration,
    /// What carries it.
    pub backend: Backend,
}

/// What carries a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `io_uring`, without which there is no reactor.
    #[default]
    Ring,
    /// `io_uring`; where the system refuses it, [`Backend::Poll`].
    RingOrPoll,
    /// epoll, and a system call for each operation. It does sockets and eventfds, and no files.
    Poll,
}

impl Default for ReactorOptions {
    fn default() -> ReactorOptions {
        ReactorOptions {
            entries: 512,
            connections_max: 16_384,
            inbox_bytes: 16 << 10,
            spin_max: Duration::ZERO,
            backend: Backend::default(),
        }
    }
}

const KIND_SHIFT: u32 = 56;
const KIND_FILE: u64 = 1;
const KIND_RECEIVE: u64 = 2;
const KIND_SEND: u64 = 3;
const KIND_ACCEPT: u64 = 4;
const KIND_CONNECT: u64 = 5;
const KIND_WAKE: u64 = 6;
const KIND_WATCH: u64 = 7;
const KIND_WATCH_ENDED: u64 = 8;

/// Files and listeners that fit beside the connections.
const FILES_MAX: u32 = 64;
/// Eventfds that are listened to at the same time.
const WATCHES_MAX: usize = 4096;

/// One thread's `io_uring` with everything on it. See the crate's documentation.
pub struct Reactor {
    queue: Queue,
    options: ReactorOptions,
    files: Files,
    watches: Watches,
    listeners: Vec<Socket>,
    connections: Vec<Option<Connection>>,
    connections_free: Vec<u32>,
    connection_serial: u32,
    /// Addresses of connects in flight, by connection slot.
    connecting: Vec<(u32, Box<SockAddr>)>,
    dirty: Vec<u32>,
    released: Vec<Buffer>,
    completions: Vec<Completion>,
    /// Events that arise outside of completions, such as a close asked for by the caller.
    waiting_events: VecDeque<Event>,
    waker: Waker,
    wake_counter: Box<u64>,
}

impl Reactor {
    /// A reactor for the calling thread, which alone may use it.
    ///
    /// # Errors
    /// When the system refuses; the error says which part of it, and how to allow it.
    pub fn new(options: ReactorOptions) -> Result<Reactor, SetupError> {
        let descriptors = options.connections_max + FILES_MAX;
        let on_ring = || Queue::on_ring(options.entries, descriptors, options.spin_max);
        let queue = match options.backend {
            Backend::Ring => on_ring()?,
            Backend::RingOrPoll => match on_ring() {
                Err(error) if error.is_refusal() => Queue::polled(options.spin_max)?,
                queue => queue?,
            },
            Backend::Poll => Queue::polled(options.spin_max)?,
        };
        let waker = Waker::new().map_err(|source| SetupError::Other { step: "eventfd", source })?;
        let mut reactor = Reactor {
            queue,
            files: Files::new(options.connections_max, KIND_FILE << KIND_SHIFT),
            watches: Watches::new(KIND_WATCH << KIND_SHIFT, KIND_WATCH_ENDED << KIND_SHIFT),
            options,
            listeners: Vec::new(),
            connections: Vec::new(),
            connections_free: Vec::new(),
            connection_serial: 0,
            connecting: Vec::new(),
            dirty: Vec::new(),
            released: Vec::new(),
            completions: Vec::new(),
            waiting_events: VecDeque::new(),
            waker,
            wake_counter: Box::new(0),
        };
        reactor.arm_wake();
        Ok(reactor)
    }

    /// Something another thread can wake this reactor with.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Whether it does without `io_uring`.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.queue.is_polled()
    }

    /// System calls that entered the ring so far, or waited for something.
    #[must_use]
    pub fn enters(&self) -> u64 {
        self.queue.enters()
    }

    /// Registers the memory of `buffers`, so that the kernel need not map it for each operation. Once, before
    /// the work starts. Where the limit of locked memory forbids it, the buffers work unregistered.
    ///
    /// # Errors
    /// When the kernel refuses for another reason, or without `io_uring`.
    pub fn register_buffers<'a>(&mut self, buffers: impl Iterator<Item = &'a mut Buffer>) -> io::Result<()> {
        self.files.register_buffers(buffers, &self.queue)
    }

    /// Gives a file (a drive) to the reactor, which has at most `depth` operations on it in flight; others wait.
    ///
    /// # Errors
    /// When the table of files is full, the kernel refuses, or without `io_uring`.
    pub fn add_file(&mut self, file: File, depth: usize) -> io::Result<FileId> {
        self.check_table()?;
        self.files.add(file, depth, &self.queue)
    }

    /// Reads `length` bytes at `offset` into the front of `buffer`, which nobody else may hold.
    ///
    /// # Panics
    /// If the buffer is shared or too small.
    pub fn read(&mut self, file: FileId, token: u64, offset: u64, buffer: Buffer, length: usize) {
        self.files.read(file, token, offset, buffer, length, &mut self.queue);
    }

    /// Writes the first `length` bytes of `buffer` at `offset`.
    ///
    /// # Panics
    /// If the buffer is smaller than that.
    pub fn write(&mut self, file: FileId, token: u64, offset: u64, buffer: Buffer, length: usize) {
        self.files.write(file, token, offset, buffer, length, &mut self.queue);
    }

    /// Makes every write that completed before durable.
    pub fn flush(&mut self, file: FileId, token: u64) {
        self.files.flush(file, token, &mut self.queue);
    }

    /// Listens to an eventfd: [`Event::Signalled`] follows each write to it, and one that was before. What it counts is not read.
    ///
    /// # Errors
    /// When there are too many.
    pub fn watch(&mut self, eventfd: OwnedFd) -> io::Result<WatchId> {
        self.watches.add(eventfd, WATCHES_MAX, &mut self.queue)
    }

    /// Listens to an eventfd no more.
    pub fn unwatch(&mut self, watch: WatchId) {
        self.watches.end(watch, &mut self.queue);
    }

    /// Accepts connections on a listening socket from now on.
    ///
    /// # Errors
    /// When the table of files is full.
    pub fn listen(&mut self, socket: Socket) -> io::Result<ListenerId> {
        self.check_table()?;
        let listener = ListenerId(self.listeners.len() as u32);
        self.listeners.push(socket);
        self.arm_accept(listener.0);
        Ok(listener)
    }

    /// Starts to connect; [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn connect(&mut self, address: &SockAddr) -> io::Result<ConnectionId> {
        let socket = Socket::new(address.domain(), socket2::Type::STREAM, None)?;
        set_stream_options(&socket);
        let (connection, state) = self.insert_connection(socket.into())?;
        state.is_connecting = true;
        let address = Box::new(address.clone());
        let operation = Operation::Connect { slot: connection.slot, address: &raw const *address };
        self.connecting.push((connection.slot, address));
        // SAFETY: `connecting` owns the address until the completion.
        unsafe { self.queue.push(KIND_CONNECT << KIND_SHIFT | u64::from(connection.slot), operation) };
        Ok(connection)
    }

    /// Takes a connection that was made elsewhere.
    ///
    /// # Errors
    /// When there are too many connections.
    pub fn adopt(&mut self, stream: Stream) -> io::Result<ConnectionId> {
        let Stream { socket, session } = stream;
        set_stream_options(&socket);
        let (connection, state) = self.insert_connection(socket.into())?;
        state.encryption = session.map(|session| Box::new(Encryption::new(session)));
        self.arm_receive(connection.slot);
        Ok(connection)
    }

    /// A connection whose socket is made elsewhere, by who can do more than connect: what is sent on it meanwhile waits.
    /// [`Self::fulfil`] gives it its socket, [`Self::close`] gives it up.
    ///
    /// # Errors
    /// When there are too many connections.
    pub fn reserve(&mut self) -> io::Result<ConnectionId> {
        let stand_in = Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        let (connection, state) = self.insert_connection(stand_in.into())?;
        (state.is_connecting, state.is_reserved) = (true, true);
        Ok(connection)
    }

    /// Gives a reserved connection its connected socket; [`Event::Connected`] follows, or [`Event::Closed`] if the
    /// kernel's table does not take it. A socket for a connection that was closed meanwhile is closed too.
    pub fn fulfil(&mut self, connection: ConnectionId, stream: Stream) {
        let Stream { socket, session } = stream;
        let Some(state) = self.connection_mut(connection).filter(|state| state.is_reserved) else { return };
        set_stream_options(&socket);
        let socket = OwnedFd::from(socket);
        let descriptor = socket.as_raw_fd();
        (state.socket, state.is_connecting, state.is_reserved) = (socket, false, false);
        state.encryption = session.map(|session| Box::new(Encryption::new(session)));
        if let Err(error) = self.queue.register(connection.slot, descriptor) {
            return self.begin_close(connection.slot, error.to_string());
        }
        self.waiting_events.push_back(Event::Connected { connection });
        self.arm_receive(connection.slot);
        self.start_send(connection.slot);
    }

    /// Whether the connection still stands and is not being closed.
    #[must_use]
    pub fn is_open(&self, connection: ConnectionId) -> bool {
        self.connection(connection).is_some_and(|state| state.closing.is_none())
    }

    /// Whether what goes over a connection is encrypted.
    #[must_use]
    pub fn is_encrypted(&self, connection: ConnectionId) -> bool {
        self.connection(connection).is_some_and(|state| state.encryption.is_some())
    }

    /// Whether a connection still waits for its socket.
    #[must_use]
    pub fn is_reserved(&self, connection: ConnectionId) -> bool {
        self.connection(connection).is_some_and(|state| state.is_reserved)
    }

    /// The connections that stand and are not being closed, those that wait for their socket excepted.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        let states = self.connections.iter().enumerate();
        states.filter_map(|(slot, state)| {
            let state = state.as_ref().filter(|state| state.closing.is_none() && !state.is_reserved)?;
            Some(ConnectionId { slot: slot as u32, serial: state.serial })
        })
    }

    /// Whether the other end of a connection has ended it, or is gone, as far as this machine knows. What it sent before may still
    /// wait to be received: of a connection that does not receive nothing else tells.
    #[must_use]
    pub fn has_peer_left(&self, connection: ConnectionId) -> bool {
        let Some(state) = self.connection(connection) else { return true };
        let mut asked = libc::pollfd { fd: state.socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: it is one, of a descriptor that is open, and nothing is waited for.
        let count = unsafe { libc::poll(&raw mut asked, 1, 0) };
        count > 0 && asked.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// What was received on a connection, to be parsed. Nothing more is received until
    /// [`Self::return_inbox`]. `None` when the connection is gone, or nothing is to be taken.
    pub fn take_inbox(&mut self, connection: ConnectionId) -> Option<Inbox> {
        let state = self.connection_mut(connection)?;
        if state.is_receiving { None } else { state.inbox.take() }
    }

    /// How many bytes came on a connection so far: it grows for as long as whoever is there sends something. `None` while nothing is
    /// received.
    #[must_use]
    pub fn received_bytes(&self, connection: ConnectionId) -> Option<u64> {
        let state = self.connection(connection).filter(|state| state.is_receiving)?;
        Some(state.received_bytes)
    }

    /// Gives the inbox back. With `receive`, more is received as soon as there is room.
    pub fn return_inbox(&mut self, connection: ConnectionId, inbox: Inbox, receive: bool) {
        if let Some(state) = self.connection_mut(connection) {
            state.inbox = Some(inbox);
            if receive && state.closing.is_none() {
                self.arm_receive(connection.slot);
            }
        }
    }

    /// Queues bytes to be sent with this turn. They are copied. Silently dropped if the connection is gone:
    /// its end is reported as an event.
    pub fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if let Some(state) = self.outgoing(connection) {
            state.queued.push_inline(bytes);
        }
    }

    /// Queues a range of a shared buffer to be sent with this turn, without a copy.
    pub fn send_shared(&mut self, connection: ConnectionId, buffer: Buffer, range: Range<usize>) {
        match self.outgoing(connection) {
            Some(state) => state.queued.push_shared(buffer, range),
            None => self.released.push(buffer),
        }
    }

    /// Bytes queued or being sent on a connection: how far its peer lags behind.
    #[must_use]
    pub fn unsent_bytes(&self, connection: ConnectionId) -> usize {
        self.connection(connection).map_or(0, Connection::unsent_bytes)
    }

    /// Bytes that the other end of a TCP connection has acknowledged so far: it grows for as long as whoever is there takes
    /// something. `None` if that cannot be told.
    #[must_use]
    pub fn acknowledged_bytes(&self, connection: ConnectionId) -> Option<u64> {
        let state = self.connection(connection)?;
        // SAFETY: a tcp_info of zeros is valid: it is numbers alone.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut size = size_of_val(&info) as libc::socklen_t;
        let place = (&raw mut info).cast::<libc::c_void>();
        // SAFETY: the descriptor is open, and the kernel writes no more than `size` bytes to `info`.
        let result = unsafe {
            libc::getsockopt(
                state.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                place,
                &raw mut size,
            )
        };
        // An older kernel says less.
        let is_told = size as usize >= std::mem::offset_of!(libc::tcp_info, tcpi_bytes_received);
        (result == 0 && is_told).then_some(info.tcpi_bytes_acked)
    }

    /// Sends what is queued if it can go at once, then ends the connection; [`Event::Closed`] follows with
    /// `reason`.
    pub fn close(&mut self, connection: ConnectionId, reason: &str) {
        if self.connection(connection).is_none_or(|state| state.closing.is_some()) {
            return;
        }
        self.send_last_words(connection.slot);
        self.begin_close(connection.slot, reason.to_owned());
    }

    /// Buffers whose sends are done, to be put back where they came from.
    pub fn take_released(&mut self, mut put: impl FnMut(Buffer)) {
        for buffer in self.released.drain(..) {
            put(buffer);
        }
    }

    /// Connections that stand.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len() - self.connections_free.len()
    }

    /// How many operations wait for what this reactor waits for. While they are few, a turn may poll before it
    /// sleeps, as [`ReactorOptions::spin_max`] says. Of more, throughput counts for more than the latency of
    /// each, and who sleeps finds more when it wakes.
    pub fn set_waiting(&mut self, operations: usize) {
        self.queue.set_waiting(operations);
    }

    /// One turn: issues everything queued, waits until something happened or `timeout` has passed, and
    /// appends what happened to `events`.
    ///
    /// # Errors
    /// Only when the ring itself fails, which leaves nothing to go on with.
    pub fn turn(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.start_sends();
        let timeout = if self.waiting_events.is_empty() { timeout } else { Some(Duration::ZERO) };
        self.queue.enter(timeout)?;
        self.reap(events);
        events.extend(self.waiting_events.drain(..));
        Ok(())
    }

    /// Begins what was asked for, and waits for nothing: a drive is at work while more is prepared for it. A turn does it too.
    ///
    /// # Errors
    /// The ring does not work.
    pub fn submit(&mut self) -> io::Result<()> {
        self.queue.submit()
    }

    fn check_table(&self) -> io::Result<()> {
        if self.files.count() + self.listeners.len() < FILES_MAX as usize {
            return Ok(());
        }
        Err(io::Error::other("a reactor takes at most 64 files and listeners"))
    }

    fn connection(&self, connection: ConnectionId) -> Option<&Connection> {
        self.connections.get(connection.slot())?.as_ref().filter(|state| state.serial == connection.serial)
    }

    fn connection_mut(&mut self, connection: ConnectionId) -> Option<&mut Connection> {
        self.connections
            .get_mut(connection.slot())?
            .as_mut()
            .filter(|state| state.serial == connection.serial)
    }

    /// The connection to queue bytes on, marked as having some.
    fn outgoing(&mut self, connection: ConnectionId) -> Option<&mut Connection> {
        let state = self.connections.get_mut(connection.slot())?.as_mut()?;
        if state.serial != connection.serial || state.closing.is_some() {
            return None;
        }
        if !state.is_dirty {
            state.is_dirty = true;
            self.dirty.push(connection.slot);
        }
        Some(state)
    }

    fn insert_connection(&mut self, socket: OwnedFd) -> io::Result<(ConnectionId, &mut Connection)> {
        let slot = match self.connections_free.pop() {
            Some(slot) => slot,
            None if self.connections.len() < self.options.connections_max as usize => {
                self.connections.push(None);
                self.connections.len() as u32 - 1
            }
            None => {
                return Err(io::Error::other(format!(
                    "{} connections are open, which is the most",
                    self.options.connections_max
                )));
            }
        };
        if let Err(error) = self.queue.register(slot, socket.as_raw_fd()) {
            self.connections_free.push(slot);
            return Err(error);
        }
        self.connection_serial = self.connection_serial.wrapping_add(1);
        let serial = self.connection_serial;
        let state = Connection::new(socket, serial, self.options.inbox_bytes);
        Ok((ConnectionId { slot, serial }, self.connections[slot as usize].insert(state)))
    }

    fn arm_wake(&mut self) {
        let into = &raw mut *self.wake_counter;
        let operation = Operation::Count { eventfd: self.waker.file().as_raw_fd(), into };
        // SAFETY: `wake_counter` lives as long as the reactor.
        unsafe { self.queue.push(KIND_WAKE << KIND_SHIFT, operation) };
    }

    fn arm_accept(&mut self, listener: u32) {
        let operation = Operation::Accept { listener: self.listeners[listener as usize].as_raw_fd() };
        // SAFETY: it points at nothing.
        unsafe { self.queue.push(KIND_ACCEPT << KIND_SHIFT | u64::from(listener), operation) };
    }

    fn arm_receive(&mut self, slot: u32) {
        let Some(state) = self.connections[slot as usize].as_mut() else { return };
        if state.is_receiving || state.is_connecting || state.closing.is_some() {
            return;
        }
        let Some(inbox) = state.inbox.as_mut() else { return };
        let mut space = inbox.space();
        if space.is_empty() {
            return;
        }
        if let Some(encryption) = state.encryption.as_mut() {
            let read = encryption.read(inbox);
            if encryption.has_answer() && !state.is_dirty {
                state.is_dirty = true;
                self.dirty.push(slot);
            }
            match read {
                Ok(false) => space = encryption.space(inbox.capacity()),
                Ok(true) => {
                    let connection = ConnectionId { slot, serial: state.serial };
                    return self.waiting_events.push_back(Event::Received { connection });
                }
                Err(end) => return self.begin_close(slot, end.to_string()),
            }
        }
        let (into, bytes, is_drained) = (space.as_mut_ptr(), space.len(), state.is_drained);
        let operation = Operation::Receive { slot, into, bytes, is_drained };
        state.is_receiving = true;
        // SAFETY: the connection owns the memory until the completion, and hands out no inbox meanwhile.
        unsafe { self.queue.push(KIND_RECEIVE << KIND_SHIFT | u64::from(slot), operation) };
    }

    fn start_sends(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(state) = self.connections[slot as usize].as_mut() else { continue };
            state.is_dirty = false;
            self.start_send(slot);
        }
        self.dirty = dirty;
    }

    fn start_send(&mut self, slot: u32) {
        let Some(state) = self.connections[slot as usize].as_mut() else { return };
        if state.is_sending || state.is_connecting || state.closing.is_some() {
            return;
        }
        let Some(message) = state.start_send(&mut self.released) else { return };
        state.is_sending = true;
        let operation = Operation::Send { slot, message };
        // SAFETY: the connection owns the message and what it points at until the completion.
        unsafe { self.queue.push(KIND_SEND << KIND_SHIFT | u64::from(slot), operation) };
    }

    /// Before a connection is closed on purpose its last message, often the reason, is tried without waiting.
    fn send_last_words(&mut self, slot: u32) {
        let Some(state) = self.connections[slot as usize].as_mut() else { return };
        if state.is_sending || state.is_connecting {
            return;
        }
        if let Some(message) = state.start_last_send(&mut self.released) {
            // SAFETY: `message` and what it points at belong to `state`, which is borrowed for the call.
            unsafe {
                libc::sendmsg(state.socket.as_raw_fd(), message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
        }
    }

    fn begin_close(&mut self, slot: u32, reason: String) {
        let Some(state) = self.connections[slot as usize].as_mut() else { return };
        if state.is_reserved {
            // Nothing is in flight on it.
            (state.is_connecting, state.is_reserved) = (false, false);
        }
        if state.closing.is_none() {
            state.closing = Some(reason);
            // Ends what is in flight on the socket; its completions then let the slot go.
            // SAFETY: the descriptor is open: the connection owns it.
            unsafe { libc::shutdown(state.socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
        let id = ConnectionId { slot, serial: state.serial };
        if !state.is_reported {
            state.is_reported = true;
            let reason = state.closing.clone().unwrap_or_default();
            self.waiting_events.push_back(Event::Closed { connection: id, reason });
        }
        self.reclaim_if_idle(slot);
    }

    fn reclaim_if_idle(&mut self, slot: u32) {
        let Some(state) = self.connections[slot as usize].as_mut() else { return };
        if state.closing.is_none() || !state.is_idle() {
            return;
        }
        state.release_all(&mut self.released);
        self.queue.unregister(slot);
        self.connections[slot as usize] = None;
        self.connections_free.push(slot);
    }

    fn reap(&mut self, events: &mut Vec<Event>) {
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(&mut completions);
        for (user_data, result, flags) in completions.drain(..) {
            let index = user_data as u32;
            match user_data >> KIND_SHIFT {
                KIND_FILE => events.push(self.files.done(index, result, &mut self.queue)),
                KIND_RECEIVE => self.receive_done(index, result, flags, events),
                KIND_SEND => self.send_done(index, result, events),
                KIND_ACCEPT => self.accept_done(index, result, flags, events),
                KIND_CONNECT => self.connect_done(index, result, events),
                KIND_WATCH => events.extend(self.watches.done(index, result, flags, &mut self.queue)),
                KIND_WATCH_ENDED => self.watches.end_asked(index, result, &mut self.queue),
                KIND_WAKE => {
                    events.push(Event::Woken);
                    self.arm_wake();
                }
                kind => unreachable!("no operation of kind {kind} is ever submitted"),
            }
        }
        self.completions = completions;
    }

    fn receive_done(&mut self, slot: u32, result: i32, flags: u32, events: &mut Vec<Event>) {
        let state = self.connections[slot as usize].as_mut().expect("a connection outlives its operations");
        state.is_receiving = false;
        state.is_drained = !cqueue::sock_nonempty(flags);
        if state.closing.is_some() {
            self.reclaim_if_idle(slot);
            return;
        }
        if result > 0 {
            state.received_bytes += result as u64;
            if let Some(encryption) = state.encryption.as_mut() {
                encryption.received(result as usize);
                // Reads of it what it can.
                return self.arm_receive(slot);
            }
            let inbox = state.inbox.as_mut().expect("the inbox is at home while receiving");
            inbox.received(result as usize);
            events.push(Event::Received { connection: ConnectionId { slot, serial: state.serial } });
        } else if matches!(-result, libc::EINTR | libc::EAGAIN | libc::ENOBUFS) {
            self.arm_receive(slot);
        } else if result == 0 && state.encryption.is_some() {
            self.begin_close(slot, "the connection was cut off: its end was not announced".to_owned());
        } else {
            self.begin_close(slot, describe_end(result));
        }
    }

    fn send_done(&mut self, slot: u32, result: i32, events: &mut Vec<Event>) {
        let state = self.connections[slot as usize].as_mut().expect("a connection outlives its operations");
        state.is_sending = false;
        if state.closing.is_some() {
            self.reclaim_if_idle(slot);
            return;
        }
        if result >= 0 {
            state.send_done(result as usize, &mut self.released);
            if state.unsent_bytes() == 0 {
                events.push(Event::Drained { connection: ConnectionId { slot, serial: state.serial } });
            }
            self.start_send(slot);
        } else if matches!(-result, libc::EINTR | libc::EAGAIN | libc::ENOBUFS) {
            self.start_send(slot);
        } else {
            self.begin_close(slot, describe_end(result));
        }
    }

    fn accept_done(&mut self, listener: u32, result: i32, flags: u32, events: &mut Vec<Event>) {
        if result >= 0 {
            // SAFETY: the kernel just made this descriptor for us; nobody else has it.
            let socket = unsafe { Socket::from_raw_fd(result) };
            // Too many connections: dropping it closes it, which is all that can be said to its peer.
            if let Ok(connection) = self.adopt(Stream::new(socket, None)) {
                events.push(Event::Accepted { listener: ListenerId(listener), connection });
            }
        }
        if !cqueue::more(flags) {
            self.arm_accept(listener);
        }
    }

    fn connect_done(&mut self, slot: u32, result: i32, events: &mut Vec<Event>) {
        self.connecting.retain(|(connecting, _)| *connecting != slot);
        let state = self.connections[slot as usize].as_mut().expect("a connection outlives its operations");
        state.is_connecting = false;
        let id = ConnectionId { slot, serial: state.serial };
        if state.closing.is_some() {
            self.reclaim_if_idle(slot);
        } else if result < 0 {
            self.begin_close(slot, describe_end(result));
        } else {
            events.push(Event::Connected { connection: id });
            self.arm_receive(slot);
            self.start_send(slot);
        }
    }
}

impl Network for Reactor {
    fn connect(&mut self, address: SocketAddr) -> Option<LinkId> {
        self.connect(&SockAddr::from(address)).ok().map(ConnectionId::link)
    }
    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        self.send(ConnectionId::of_link(link), bytes);
    }
    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: Range<usize>) {
        self.send_shared(ConnectionId::of_link(link), buffer, range);
    }
    fn unsent_bytes(&self, link: LinkId) -> usize {
        self.unsent_bytes(ConnectionId::of_link(link))
    }
    fn close(&mut self, link: LinkId, reason: &str) {
        self.close(ConnectionId::of_link(link), reason);
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // The kernel may still read or write memory that the tables own: end everything and wait for it.
        let is_file = |user_data: u64| user_data >> KIND_SHIFT == KIND_FILE;
        let unsubmitted = self.queue.drop_backlog(is_file);
        for connection in self.connections.iter().flatten() {
            // SAFETY: the descriptor is open: the connection owns it.
            unsafe { libc::shutdown(connection.socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
        for listener in &self.listeners {
            // SAFETY: the descriptor is open: the table owns it.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        }
        self.queue.cancel_all();
        let mut file_operations = self.files.in_flight().saturating_sub(unsubmitted);
        let deadline = crate::now() + Duration::from_secs(10);
        while file_operations > 0 && crate::now() < deadline {
            if self.queue.enter_once(Some(Duration::from_millis(100))).is_err() {
                break;
            }
            self.completions.clear();
            self.queue.reap(&mut self.completions);
            file_operations -= self.completions.iter().filter(|(user_data, ..)| is_file(*user_data)).count();
        }
        if file_operations > 0 {
            self.files.forget();
        }
        self.queue.unregister_all();
    }
}

fn describe_end(result: i32) -> String {
    if result == 0 {
        "the peer closed the connection".to_owned()
    } else {
        io::Error::from_raw_os_error(-result).to_string()
    }
}
