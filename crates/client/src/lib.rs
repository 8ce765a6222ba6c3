//! A client of volumes, without I/O: cuts a range into pieces of objects, sends each to the primary of its
//! placement group, verifies what comes back, and tries again what could not be done yet.
//!
//! Drive a [`Client`] with `handle_*` for what happened and `submit_*` for what is wanted; each takes the
//! [`base::Network`] through which it sends. Completions are fetched with [`Client::poll_completion`].
//!
//! # Promises
//! - A read completes only with bytes whose CRC-32C, computed by the client that wrote them, verified.
//! - A write completes when every in-sync replica has it on stable media.
//! - What cannot be done now (a primary that is away, a placement group that peers) is tried again until it
//!   can, or until the time limit, if there is one; what never can (a fenced attach, a full OSD, damaged data)
//!   fails with the reason.
//! - What lies beyond the end that the newest map shows of a volume fails; what an OSD alone takes for that is tried again.
//! - An answer to an attempt that was given up changes nothing, however late it comes.
//! - A write is done once. One whose answer was lost is sent again with what its group had reached before; where nobody can
//!   tell any more whether it was done, it fails, unless this client alone writes to the volume. What touches the same bytes
//!   and was submitted after a change that is sent again waits for it.

mod client;
mod error;
mod fence;
mod route;

pub use client::{
    Change, Client, Completion, Holding, LinkError, Notice, Outcome, OwnershipStep, Space, Submission,
    VolumeHandle,
};
pub use error::ClientError;
pub use fence::Fencing;
