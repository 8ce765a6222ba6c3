//! What a state machine needs of whoever carries its bytes.

use crate::buffer::Buffer;
use crate::ids::LinkId;
use std::net::SocketAddr;
use std::ops::Range;

/// Stream connections, as a reactor or a simulator offers them. Used as a type parameter, never as `dyn`.
pub trait Network {
    /// Starts to connect. Success or failure is told to the state machine later; `None` when it cannot even
    /// begin.
    fn connect(&mut self, address: SocketAddr) -> Option<LinkId>;
    /// Sends bytes, in order. On a link that is gone they are dropped: its end is told.
    fn send(&mut self, link: LinkId, bytes: &[u8]);
    /// Sends a range of a shared buffer, in order, without a copy.
    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: Range<usize>);
    /// Bytes that were sent and have not left yet: how far the peer lags behind.
    fn unsent_bytes(&self, link: LinkId) -> usize;
    /// Ends a link. Its end is told later, with this reason.
    fn close(&mut self, link: LinkId, reason: &str);
}
