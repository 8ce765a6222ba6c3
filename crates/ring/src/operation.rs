//! What a reactor has done for it by whatever carries it.

use io_uring::squeue;
use socket2::SockAddr;
use std::os::fd::RawFd;

/// What completed: what it was submitted as, its result and its flags, all as `io_uring` has them.
pub(crate) type Completion = (u64, i32, u32);

/// One operation. It completes once; those that say so go on completing until they are ended. Connections are named by their
/// slots.
pub(crate) enum Operation {
    /// Bytes from a connection.
    Receive {
        slot: u32,
        into: *mut u8,
        bytes: usize,
        /// Looking before the socket has something would be in vain.
        is_drained: bool,
    },
    /// Bytes to a connection, as many as go.
    Send { slot: u32, message: *const libc::msghdr },
    /// Connects its socket.
    Connect { slot: u32, address: *const SockAddr },
    /// Takes connections as they come: each completes it with a new descriptor.
    Accept { listener: RawFd },
    /// Reads what an eventfd of this reactor's counts, when it does.
    Count { eventfd: RawFd, into: *mut u64 },
    /// Listens to an eventfd of somebody else's: each write completes it. What it counts is not read.
    Watch { eventfd: RawFd },
    /// Ends the watch that was submitted as this.
    Unwatch { watch: u64 },
    /// Anything on a file, which nothing but a ring does.
    File(squeue::Entry),
}
