//! A registry over a Unix socket, so that the processes of one machine share the embedded one.
//!
//! The socket's mode is 0600: who may connect is who may read the registry's file.

mod client;
mod protocol;
mod server;
#[cfg(test)]
mod tests;

pub use client::{DEFAULT_TIMEOUT, RemoteRegistry};
pub use server::{ServeError, SocketServer};
