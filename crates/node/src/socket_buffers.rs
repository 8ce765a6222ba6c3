//! How much the kernel may keep of a connection: of what came and was not received, and of what was sent and not taken.
//!
//! By itself it gives a connection as much as that can use, some MiB. But there is one bound for the TCP of a whole machine, and
//! beyond that every connection crawls: those between OSDs are taken for dead. A key that may have thousands of connections, and
//! leaves unread and unsaid what it likes on all of them, would come to that. So a connection of a key that has
//! many has the less the more there are when it comes. Strangers have none: whatever they send is received, and what is too much ends them.

use base::Access;
use socket2::SockRef;
use std::io;
use std::os::fd::AsFd;

/// So many connections of a client's key have what the kernel gives them: more than one client has to one OSD.
const FREE: usize = 16;
/// The same of a node's key: more than it has OSDs.
const FREE_OF_NODES: usize = 256;
/// What a further one has a part of, each way, in bytes: all of them come to some times that, for the earlier ones keep theirs.
const SHARED_BYTES: usize = 16 << 20;
/// The most that one of them has: what a network takes away within its round trip.
const BYTES_MAX: usize = 128 << 10;
/// The least, so that messages do not come in crumbs.
const BYTES_MIN: usize = 16 << 10;

/// What a connection has each way on which questions are answered one by one, in bytes: there are few of a key, and nobody waits
/// for an answer's last byte.
pub(crate) const OF_QUESTIONS: usize = 64 << 10;

/// How many bytes a connection to an OSD has each way whose key, which is good for that, has so many others there already; `None`
/// where the kernel decides. The kernel doubles that for what it needs itself.
pub(crate) fn of_one_more(access: &Access, others: usize) -> Option<usize> {
    let free = if matches!(access, Access::Node(_)) { FREE_OF_NODES } else { FREE };
    (others >= free).then(|| (SHARED_BYTES / (others + 1)).clamp(BYTES_MIN, BYTES_MAX))
}

/// Has the kernel keep so many bytes of a connection each way, and what it needs itself for that.
///
/// # Errors
/// When it does not do so: then it keeps what it thinks fit.
pub(crate) fn limit(stream: &impl AsFd, bytes: usize) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use base::NodeId;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_keeps_as_much_as_it_is_told_and_twice_that_with_what_it_needs_itself() {
        const BYTES: usize = 16 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.recv_buffer_size().unwrap() > 2 * BYTES, "by itself it keeps more");
        limit(&stream, BYTES).unwrap();
        assert_eq!(socket.recv_buffer_size().unwrap(), 2 * BYTES);
        assert_eq!(socket.send_buffer_size().unwrap(), 2 * BYTES);
    }

    #[test]
    fn the_more_connections_a_key_has_the_less_a_further_one_may_keep_and_all_of_them_keep_little() {
        let (client, node) = (Access::Admin, Access::Node(NodeId(3)));
        assert_eq!([0, FREE - 1].map(|others| of_one_more(&client, others)), [None; 2]);
        let kept = [FREE, 127, 255, 4095].map(|others| of_one_more(&client, others));
        assert_eq!(kept, [128, 128, 64, 16].map(|kib| Some(kib << 10)));
        let all: usize = (0..4096).filter_map(|others| of_one_more(&client, others)).sum();
        assert!(all < 100 << 20, "{all}");
        let kept = [FREE, FREE_OF_NODES - 1, 511].map(|others| of_one_more(&node, others));
        assert_eq!(kept, [None, None, Some(32 << 10)]);
    }
}
