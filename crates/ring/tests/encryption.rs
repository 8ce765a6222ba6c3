//! Encrypted connections on a reactor, against a peer that seals and opens by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

#[macro_use]
mod each_backend;

use auth::{Channel, Identity, SecretKey};
use base::{Buffer, Encryption};
use ring::{Backend, ConnectionId, Event, Reactor, ReactorOptions, Stream};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tls::{End, Session};
use tokio::net::TcpListener;

on_each_backend! {
    what_is_sent_crosses_in_order_and_no_byte_of_it_is_seen_on_the_way
    who_does_not_take_what_comes_is_sent_no_more
    what_is_sealed_and_not_taken_stays_lent_as_in_plain
    a_reserved_connection_sends_what_waited_once_it_is_encrypted
    whoever_breaks_a_connection_breaks_that_one_alone
}

fn reactor(backend: Backend) -> Reactor {
    let options = ReactorOptions { connections_max: 64, backend, ..ReactorOptions::default() };
    Reactor::new(options).expect("it is carried")
}

/// Both ends of an encrypted connection: one for a reactor, one to be worked by hand.
fn ends() -> (Stream, Peer) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let identity = || Identity::new(&SecretKey::generate().expect("there are random numbers"));
        let (client, server) = (identity(), identity());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
        let address = listener.local_addr().expect("it has an address");
        let connecting = tokio::net::TcpStream::connect(address);
        let (near, far) = tokio::join!(connecting, listener.accept());
        let (near, far) = tokio::join!(
            client.connect(near.expect("it connects"), server.public(), Encryption::On),
            server.accept(far.expect("it accepts").0, Encryption::On, Ok::<_, String>)
        );
        let parts = |channel: Channel| channel.into_parts().expect("it has a socket");
        let (socket, session) = parts(near.expect("it is let in"));
        let (peer, peer_session) = parts(far.expect("it lets in").0);
        peer.set_nonblocking(false).expect("it blocks");
        peer.set_read_timeout(Some(Duration::from_secs(20))).expect("it has a limit");
        let peer = Peer { socket: peer, session: peer_session.expect("it is encrypted"), seen: Vec::new() };
        (Stream::new(socket, session), peer)
    })
}

/// The other end.
struct Peer {
    socket: TcpStream,
    session: Session,
    /// What was on the wire.
    seen: Vec<u8>,
}

impl Peer {
    fn say(&mut self, bytes: &[u8]) {
        let mut records = VecDeque::new();
        bytes.chunks(10_000).for_each(|piece| self.session.seal(&[piece], &mut records));
        records.iter().for_each(|record| self.socket.write_all(record).expect("it is sent"));
    }

    /// Hears so many bytes, or fewer if nothing more comes, and why.
    fn hear(&mut self, bytes: usize) -> (Vec<u8>, Option<End>) {
        let (mut heard, mut into) = (Vec::new(), vec![0; 1 << 16]);
        while heard.len() < bytes {
            match self.session.read(&mut into) {
                Ok(0) => {
                    let space = self.session.space();
                    let count = self.socket.read(space).expect("something comes");
                    assert_ne!(count, 0, "the end is announced");
                    self.seen.extend_from_slice(&space[..count]);
                    self.session.received(count);
                }
                Ok(count) => heard.extend_from_slice(&into[..count]),
                Err(end) => return (heard, Some(end)),
            }
        }
        (heard, None)
    }
}

/// Turns until there is an answer.
fn turn_until<T>(reactor: &mut Reactor, mut look: impl FnMut(&mut Reactor, Event) -> Option<T>) -> T {
    let mut events = Vec::new();
    for _ in 0..10_000 {
        reactor.turn(Some(Duration::from_secs(5)), &mut events).expect("the ring works");
        for event in events.drain(..) {
            if let Some(found) = look(reactor, event) {
                return found;
            }
        }
    }
    panic!("it does not come");
}

/// Receives so many bytes on a connection, of which each look consumes whole messages of `message` bytes.
fn receive(reactor: &mut Reactor, from: ConnectionId, bytes: usize, message: usize) -> Vec<u8> {
    let mut heard = Vec::new();
    turn_until(reactor, |reactor, event| {
        let Event::Received { connection } = event else {
            assert!(!matches!(event, Event::Closed { .. }), "{event:?}");
            return None;
        };
        assert_eq!(connection, from);
        let mut inbox = reactor.take_inbox(connection)?;
        let whole = inbox.bytes().len() / message * message;
        heard.extend_from_slice(&inbox.bytes()[..whole]);
        let was_full = inbox.is_full();
        inbox.consume(whole);
        if was_full {
            inbox.grow(inbox.capacity() * 2);
        }
        reactor.return_inbox(connection, inbox, true);
        (heard.len() >= bytes).then(|| std::mem::take(&mut heard))
    })
}

fn end_of(reactor: &mut Reactor, connection: ConnectionId) -> String {
    turn_until(reactor, |_, event| match event {
        Event::Closed { connection: closed, reason } if closed == connection => Some(reason),
        _ => None,
    })
}

fn what_is_sent_crosses_in_order_and_no_byte_of_it_is_seen_on_the_way(backend: Backend) {
    let mut reactor = reactor(backend);
    let (stream, mut peer) = ends();
    let connection = reactor.adopt(stream).unwrap();
    assert!(reactor.is_encrypted(connection));
    peer.session.limit_records_per_key(7);
    let mut expected = Vec::new();
    for round in 0..2000u32 {
        let mut buffer = Buffer::new(4096);
        buffer.bytes_mut().unwrap().fill(round as u8);
        expected.extend_from_slice(&round.to_le_bytes());
        expected.extend_from_slice(buffer.bytes());
        reactor.send(connection, &round.to_le_bytes());
        reactor.send_shared(connection, buffer, 0..4096);
    }
    reactor.send_shared(connection, Buffer::new(4096), 8..8);
    assert!(reactor.unsent_bytes(connection) >= expected.len());
    let hearing = std::thread::spawn({
        let count = expected.len();
        move || (peer.hear(count).0, peer)
    });
    turn_until(&mut reactor, |_, event| matches!(event, Event::Drained { .. }).then_some(()));
    assert_eq!(reactor.unsent_bytes(connection), 0);
    let (heard, mut peer) = hearing.join().unwrap();
    assert!(heard == expected);
    let mut released = 0;
    reactor.take_released(|_| released += 1);
    assert_eq!(released, 2001);
    let seen = std::mem::take(&mut peer.seen);
    assert!(!seen.windows(8).any(|window| window.iter().all(|byte| *byte == window[0])));

    // And back, in messages that end anywhere.
    let said: Vec<u8> = (0..3_000_000u32).map(|index| (index / 5) as u8).collect();
    let saying = std::thread::spawn({
        let said = said.clone();
        move || {
            peer.say(&said);
            peer
        }
    });
    assert!(receive(&mut reactor, connection, said.len(), 30_000) == said);
    let mut peer = saying.join().unwrap();

    reactor.send(connection, b"last words");
    reactor.close(connection, "done");
    assert_eq!(peer.hear(100), (b"last words".to_vec(), Some(End::Closed)));
}

fn who_does_not_take_what_comes_is_sent_no_more(backend: Backend) {
    let mut reactor = reactor(backend);
    let (stream, mut peer) = ends();
    let connection = reactor.adopt(stream).unwrap();
    peer.socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let record = {
        let mut records = VecDeque::new();
        peer.session.seal(&[&[7; 16_000]], &mut records);
        records.remove(0).unwrap()
    };
    peer.socket.write_all(&record).unwrap();
    // Its inbox has room for no second one.
    turn_until(&mut reactor, |_, event| matches!(event, Event::Received { .. }).then_some(()));
    let inbox = reactor.take_inbox(connection).unwrap();
    assert_eq!(inbox.bytes().len(), 16_000);
    reactor.return_inbox(connection, inbox, true);
    let flood = std::thread::spawn(move || {
        let mut sent = 0;
        loop {
            let mut records = VecDeque::new();
            peer.session.seal(&[&[7; 16_000]], &mut records);
            if peer.socket.write_all(&records[0]).is_err() {
                return (sent, peer);
            }
            sent += 1;
            assert!(sent < 10_000, "it is taken without end");
        }
    });
    let mut events = Vec::new();
    while !flood.is_finished() {
        reactor.turn(Some(Duration::from_millis(20)), &mut events).unwrap();
    }
    assert!(!events.iter().any(|event| matches!(event, Event::Closed { .. })), "{events:?}");
    flood.join().unwrap();
}

fn what_is_sealed_and_not_taken_stays_lent_as_in_plain(backend: Backend) {
    const BUFFER_BYTES: usize = 256 << 10;
    const COUNT: usize = 128;
    let mut reactor = reactor(backend);
    let (stream, mut peer) = ends();
    let connection = reactor.adopt(stream).unwrap();
    let buffer = Buffer::new(BUFFER_BYTES);
    (0..COUNT).for_each(|_| reactor.send_shared(connection, buffer.clone(), 0..BUFFER_BYTES));
    let (mut released, mut events) = (0, Vec::new());
    for _ in 0..50 {
        reactor.turn(Some(Duration::from_millis(20)), &mut events).unwrap();
        reactor.take_released(|_| released += 1);
        let unsent = reactor.unsent_bytes(connection);
        // What makes a record of it counts too.
        let is_lent = released * BUFFER_BYTES + unsent <= COUNT * BUFFER_BYTES + 4096;
        assert!(is_lent, "{released} were given back while {unsent} bytes were not sent");
    }
    assert!(released < COUNT, "the kernel takes it without end");
    let hearing = std::thread::spawn(move || peer.hear(COUNT * BUFFER_BYTES).0.len());
    turn_until(&mut reactor, |_, event| matches!(event, Event::Drained { .. }).then_some(()));
    assert_eq!(hearing.join().unwrap(), COUNT * BUFFER_BYTES);
    reactor.take_released(|_| released += 1);
    assert_eq!(released, COUNT);
}

fn a_reserved_connection_sends_what_waited_once_it_is_encrypted(backend: Backend) {
    let mut reactor = reactor(backend);
    let (stream, mut peer) = ends();
    let connection = reactor.reserve().unwrap();
    reactor.send(connection, b"hello");
    assert!(reactor.is_reserved(connection) && reactor.connections().count() == 0);
    reactor.fulfil(connection, stream);
    assert_eq!(reactor.connections().collect::<Vec<_>>(), [connection]);
    turn_until(&mut reactor, |_, event| matches!(event, Event::Drained { .. }).then_some(()));
    assert_eq!(peer.hear(5).0, b"hello");
    assert!(!peer.seen.windows(5).any(|window| window == b"hello"));
}

fn whoever_breaks_a_connection_breaks_that_one_alone(backend: Backend) {
    let mut reactor = reactor(backend);
    let (stream, mut sound) = ends();
    let untouched = reactor.adopt(stream).unwrap();
    let mut broken = |work: &mut dyn FnMut(&mut Peer)| {
        let (stream, mut peer) = ends();
        let connection = reactor.adopt(stream).unwrap();
        work(&mut peer);
        let reason = end_of(&mut reactor, connection);
        assert!(!reactor.is_open(connection));
        reason
    };
    let garbage = broken(&mut |peer| peer.socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    assert!(garbage.contains("not encrypted"), "{garbage}");
    let forged = broken(&mut |peer| {
        peer.socket.write_all(&[23, 3, 3, 0x40, 0]).unwrap();
        peer.socket.write_all(&[7; 1 << 14]).unwrap();
    });
    assert!(forged.contains("does not verify"), "{forged}");
    let nothing = broken(&mut |peer| {
        let mut records = VecDeque::new();
        (0..40).for_each(|_| peer.session.seal(&[], &mut records));
        records.iter().for_each(|record| peer.socket.write_all(record).unwrap());
    });
    assert!(nothing.contains("records without data"), "{nothing}");
    let cut = broken(&mut |peer| {
        peer.socket.write_all(&[23, 3, 3]).unwrap();
        peer.socket.shutdown(std::net::Shutdown::Both).unwrap();
    });
    assert!(cut.contains("cut off"), "{cut}");
    let ended = broken(&mut |peer| {
        let mut records = VecDeque::new();
        peer.session.seal_end(&mut records);
        records.iter().for_each(|record| peer.socket.write_all(record).unwrap());
    });
    assert!(ended.contains("the peer closed"), "{ended}");
    sound.say(b"still here");
    assert_eq!(receive(&mut reactor, untouched, 10, 10), b"still here");
}
