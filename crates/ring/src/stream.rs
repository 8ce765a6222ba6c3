//! A connection that was made elsewhere.

use socket2::{Socket, TcpKeepalive};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tls::Session;

/// A connected stream socket, and the encryption of what goes over it, if there is one.
#[derive(Debug)]
pub struct Stream {
    pub(crate) socket: Socket,
    pub(crate) session: Option<Session>,
}

impl Stream {
    /// A connection that goes on with this session from here on; in plain without one.
    #[must_use]
    pub fn new(socket: impl Into<Socket>, session: Option<Session>) -> Stream {
        Stream { socket: socket.into(), session }
    }

    /// Whether what goes over it is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whoever said nothing for a minute is asked whether it is there, and is gone when it has not answered for another.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(20))
    .with_retries(3);

/// Sets what every stream socket of a reactor has.
pub(crate) fn set_stream_options(socket: &Socket) {
    // Unix sockets have no such option; there nothing is delayed.
    let _ = socket.set_tcp_nodelay(true);
    // A host that lost its power says no goodbye. Where nothing is under way nobody would notice.
    let _ = socket.set_tcp_keepalive(&KEEPALIVE);
    // BBR paces by a timer for each connection. That is for the Internet: here it costs more than the sending.
    if socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr")) {
        let _ = socket.set_tcp_congestion(b"cubic");
    }
}
