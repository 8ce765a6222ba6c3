//! A cluster and its registry over a connection, which speaks HTTP: a Unix socket, so that the processes of one machine share
//! the embedded registry, or an encrypted connection to a node, for clients that reach no registry.
//!
//! - [`RemoteRegistry`]: the whole registry, for who may have it: who reaches the socket, whose mode is 0600, or has the key of
//!   an owner.
//! - [`Desk`]: what a client needs of a cluster, as [questions](cluster::Question), which a [`cluster::Clerk`] answers: its own
//!   where it reaches the registry, else that of a node, as far as the key goes that it has proved there.
//! - [`router`] serves both. What a request may be is bounded before it is read; what makes no sense is answered with a
//!   reason, and others do not notice.
//!
//! When things fail: an operation is tried anew, at the next node where there are several, until its time is up. One that may
//! have been done and must not be done twice is reported as of unknown outcome. Leases live in the registry and outlive
//! connections. What is followed goes on where it was, or begins anew.

mod client;
mod desk;
mod link;
mod nodes;
mod protocol;
mod service;
mod socket;
#[cfg(test)]
mod tests;

pub use client::{RemoteRegistry, SocketPlace};
pub use desk::{Desk, DeskPlace};
pub use nodes::endpoints;
pub use service::{in_time, router};
pub use socket::{ServeError, SocketServer};
