//! A registry over a connection: a Unix socket, so that the processes of one machine share the embedded one, or an
//! encrypted one to a node of the cluster, for clients that reach no other registry.
//!
//! The socket's mode is 0600: who may connect is who may read the registry's file. Who comes to a node has proved a
//! key, and is served what that may have (`cluster::ConfinedRegistry`).

mod client;
mod place;
mod protocol;
mod server;
#[cfg(test)]
mod tests;

pub use client::RemoteRegistry;
pub use place::RemotePlace;
pub use server::{ConnectionLimits, ServeError, SocketServer, serve_stream};
