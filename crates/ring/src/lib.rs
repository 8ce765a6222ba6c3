//! The shard loop's hands: one `io_uring`, one thread, a drive and many sockets.
//!
//! Who needs no drive may do without the ring where that is forbidden ([`Backend`]).
//!
//! A [`Reactor`] performs what the state machines ask for and reports what happened, once per
//! [`Reactor::turn`]: it issues everything that was queued in one system call, waits for at least one
//! completion, and reaps all that are there. So under load one `io_uring_enter` carries many
//! operations, and at depth one nothing waits.
//!
//! Memory safety rests on ownership: an operation in flight owns (a handle of) the memory the kernel
//! reads or writes, in the reactor's own tables, and gives it back with its completion. When the
//! reactor is dropped with operations in flight, it waits for them first.
//!
//! A connection that comes with an encryption of its own ([`Stream`]) is sealed and opened here, by [`tls`]: what is
//! queued to be sent and what is found in an [`Inbox`] is plaintext either way. One in plain pays nothing for that.
//!
//! This crate is the one home of `unsafe`; each use states why it is sound.
#![allow(unsafe_code)]

mod connection;
pub mod counting;
mod encryption;
mod event;
mod files;
mod inbox;
mod operation;
mod outbox;
mod polled;
mod queue;
mod reactor;
mod release;
mod setup;
mod stream;
mod uring;
mod wake;
mod watches;

pub use event::{ConnectionId, Event, FileId, ListenerId, WatchId};
pub use inbox::Inbox;
pub use reactor::{Backend, Reactor, ReactorOptions};
pub use release::{FREE_WITHIN, when_free};
pub use setup::SetupError;
pub use stream::Stream;
pub use wake::Waker;

use base::Instant;

/// The monotonic clock that shard loops hand to their state machines. It goes on while the machine is suspended: leases are
/// over when it wakes up.
#[must_use]
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec for the duration of the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "every Linux has CLOCK_BOOTTIME");
    Instant { nanoseconds: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 }
}
