//! What happened on a reactor, and the names of what it happened to.

use base::{Buffer, LinkId};
use std::io;

/// A file given to a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub(crate) u32);

/// A listening socket given to a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(crate) u32);

/// An eventfd that a reactor listens to. Never equal to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

/// A connection of a reactor. Never equal to that of an earlier connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

impl ConnectionId {
    /// A small number below the reactor's `connections_max`, unique among the live ones: for tables beside
    /// the reactor's.
    #[must_use]
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// The name of this connection for state machines that know no reactor.
    #[must_use]
    pub fn link(self) -> LinkId {
        LinkId(u64::from(self.serial) << 32 | u64::from(self.slot))
    }

    /// The connection that [`Self::link`] named.
    #[must_use]
    pub fn of_link(link: LinkId) -> ConnectionId {
        ConnectionId { slot: link.0 as u32, serial: (link.0 >> 32) as u32 }
    }
}

/// What happened. Results of file operations are byte counts already checked to be complete.
#[derive(Debug)]
pub enum Event {
    /// A read, write or flush ended. `buffer` is the one it was given.
    FileDone {
        /// What the caller named it.
        token: u64,
        /// The memory it worked on; `None` for a flush.
        buffer: Option<Buffer>,
        /// An error names the place.
        result: Result<(), io::Error>,
    },
    /// Somebody connected.
    Accepted {
        /// Where.
        listener: ListenerId,
        /// The new connection; it receives already.
        connection: ConnectionId,
    },
    /// An outgoing connection stands; it receives already.
    Connected {
        /// The one [`Reactor::connect`](crate::Reactor::connect) named.
        connection: ConnectionId,
    },
    /// Bytes came: take them with [`Reactor::take_inbox`](crate::Reactor::take_inbox).
    Received {
        /// From where.
        connection: ConnectionId,
    },
    /// All that was queued on it is sent.
    Drained {
        /// Where.
        connection: ConnectionId,
    },
    /// The connection ended, for whatever reason. Its id is dead.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// In words.
        reason: String,
    },
    /// Somebody wrote to an eventfd, at least once.
    Signalled {
        /// The one [`Reactor::watch`](crate::Reactor::watch) named.
        watch: WatchId,
    },
    /// Another thread called [`Waker::wake`](crate::Waker::wake).
    Woken,
}
