//! The reactor against the real kernel: files, sockets, wake-ups.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

#[macro_use]
mod each_backend;

use base::Buffer;
use ring::{Backend, Event, Reactor, ReactorOptions, Stream};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

on_each_backend! {
    an_end_right_behind_the_last_bytes_is_told
    it_is_known_how_much_the_other_end_took_of_what_is_sent
    bytes_cross_in_order_however_large_the_send
    a_connect_that_is_refused_is_reported_as_closed
    a_reserved_connection_waits_for_its_socket
    two_reactors_talk_over_a_unix_socket
    another_thread_wakes_a_sleeping_reactor
    one_connection_too_many_is_closed_and_the_others_live
    it_polls_only_when_it_is_eager_and_answers_come_soon
    each_write_to_an_eventfd_that_is_listened_to_is_told_of
    an_eventfd_that_is_not_listened_to_any_more_is_not_told_of
}

fn reactor(backend: Backend) -> Reactor {
    let options = ReactorOptions { connections_max: 64, backend, ..ReactorOptions::default() };
    let reactor = Reactor::new(options).unwrap();
    assert_eq!(reactor.is_polled(), backend == Backend::Poll);
    reactor
}

fn turn(reactor: &mut Reactor) -> Vec<Event> {
    // A turn may end without an event, for example when a part of a send is done.
    let mut events = Vec::new();
    for _ in 0..1000 {
        reactor.turn(Some(Duration::from_secs(5)), &mut events).unwrap();
        if !events.is_empty() {
            return events;
        }
    }
    panic!("nothing happened");
}

fn listener() -> (Socket, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener.into(), address)
}

fn it_is_known_how_much_the_other_end_took_of_what_is_sent(backend: Backend) {
    let mut reactor = reactor(backend);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let deaf = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let connection = reactor.adopt(Stream::new(socket, None)).unwrap();
    let before = reactor.acknowledged_bytes(connection).unwrap();
    reactor.send(connection, &[7; 1000]);
    for _ in 0..500 {
        reactor.turn(Some(Duration::from_millis(10)), &mut Vec::new()).unwrap();
        if reactor.acknowledged_bytes(connection) != Some(before) {
            break;
        }
    }
    assert_eq!(reactor.acknowledged_bytes(connection), Some(before + 1000), "the kernel there took it");
    // More than two kernels hold.
    reactor.send(connection, &vec![7; 64 << 20]);
    let mut looks: Vec<Option<u64>> = Vec::new();
    while looks.len() < 3 || looks[looks.len() - 1] != looks[looks.len() - 2] {
        assert!(looks.len() < 100, "it goes on and on, though nobody reads: {looks:?}");
        reactor.turn(Some(Duration::from_millis(200)), &mut Vec::new()).unwrap();
        looks.push(reactor.acknowledged_bytes(connection));
    }
    assert!(reactor.unsent_bytes(connection) > 0 && looks.iter().all(Option::is_some));
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let connection = reactor.adopt(Stream::new(unix, None)).unwrap();
    assert_eq!(reactor.acknowledged_bytes(connection), None);
    drop(deaf);
}

#[test]
fn what_was_written_is_read_back_and_a_short_read_names_its_place() {
    let mut reactor = reactor(Backend::Ring);
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let file = reactor.add_file(file, 64).unwrap();
    let mut buffer = Buffer::new(8192);
    reactor.register_buffers(std::iter::once(&mut buffer)).unwrap();
    assert_eq!(buffer.registration(), Some(0));
    buffer.bytes_mut().unwrap().fill(7);
    reactor.write(file, 1, 0, buffer, 8192);
    reactor.flush(file, 2);
    let mut done = Vec::new();
    while done.len() < 2 {
        done.extend(turn(&mut reactor));
    }
    let read = Buffer::new(8192);
    reactor.read(file, 3, 4096, read, 4096);
    let Event::FileDone { token: 3, buffer: Some(buffer), result: Ok(()) } = turn(&mut reactor).remove(0)
    else {
        panic!("the read completes")
    };
    assert!(buffer.bytes()[..4096].iter().all(|&byte| byte == 7));
    reactor.read(file, 4, 4096, buffer, 8192);
    let Event::FileDone { token: 4, result: Err(error), .. } = turn(&mut reactor).remove(0) else {
        panic!("the read ends early")
    };
    assert_eq!(error.to_string(), "read at offset 4096 ended after 4096 of 8192 bytes");
}

#[test]
fn a_lock_on_a_file_ends_with_the_reactor() {
    for _ in 0..20 {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut reactor = reactor(Backend::Ring);
        let locked = file.reopen().unwrap();
        locked.try_lock().unwrap();
        reactor.add_file(locked, 1).unwrap();
        assert!(file.as_file().try_lock().is_err());
        drop(reactor);
        file.as_file().try_lock().unwrap();
    }
}

fn bytes_cross_in_order_however_large_the_send(backend: Backend) {
    let mut reactor = reactor(backend);
    let (socket, address) = listener();
    reactor.listen(socket).unwrap();
    let sender = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let mut seen = Vec::new();
    while !seen.iter().any(|event| matches!(event, Event::Received { .. })) {
        seen.extend(turn(&mut reactor));
    }
    let connection = seen
        .iter()
        .find_map(|event| match event {
            Event::Accepted { connection, .. } => Some(*connection),
            _ => None,
        })
        .unwrap();
    let mut inbox = reactor.take_inbox(connection).unwrap();
    assert_eq!(inbox.bytes(), b"hello");
    inbox.consume(5);
    reactor.return_inbox(connection, inbox, true);
    let mut expected = Vec::new();
    for round in 0..3000u32 {
        let mut buffer = Buffer::new(4096);
        buffer.bytes_mut().unwrap().fill(round as u8);
        expected.extend_from_slice(&round.to_le_bytes());
        expected.extend_from_slice(buffer.bytes());
        reactor.send(connection, &round.to_le_bytes());
        reactor.send_shared(connection, buffer, 0..4096);
    }
    loop {
        if turn(&mut reactor).iter().any(|event| matches!(event, Event::Drained { .. })) {
            break;
        }
    }
    let mut released = 0;
    reactor.take_released(|_| released += 1);
    assert_eq!(released, 3000);
    reactor.close(connection, "done");
    let closed = turn(&mut reactor);
    assert!(closed.iter().any(|event| matches!(event, Event::Closed { reason, .. } if reason == "done")));
    assert_eq!(sender.join().unwrap(), expected);
}

fn a_connect_that_is_refused_is_reported_as_closed(backend: Backend) {
    let mut reactor = reactor(backend);
    let (socket, address) = listener();
    drop(socket);
    let connection = reactor.connect(&SockAddr::from(address)).unwrap();
    let events = turn(&mut reactor);
    assert!(
        matches!(&events[0], Event::Closed { connection: closed, reason } if *closed == connection && reason.contains("refused")),
        "{events:?}"
    );
    assert!(!reactor.is_open(connection));
    assert_eq!(reactor.connection_count(), 0);
}

fn a_reserved_connection_waits_for_its_socket(backend: Backend) {
    let mut reactor = reactor(backend);
    let (socket, address) = listener();
    let (kept, given_up) = (reactor.reserve().unwrap(), reactor.reserve().unwrap());
    reactor.send(kept, b"ping");
    reactor.send(given_up, b"lost");
    reactor.close(given_up, "nobody is there");
    let events = turn(&mut reactor);
    assert!(
        matches!(&events[..], [Event::Closed { connection, reason }] if *connection == given_up && reason == "nobody is there"),
        "{events:?}"
    );
    assert_eq!(reactor.connection_count(), 1);
    // Its slot may be another's by the time that its socket comes.
    let next = reactor.reserve().unwrap();
    let made = || Stream::new(TcpStream::connect(address).unwrap(), None);
    reactor.fulfil(given_up, made());
    reactor.fulfil(kept, made());
    let (mut late, mut peer) = (socket.accept().unwrap().0, socket.accept().unwrap().0);
    let events = turn(&mut reactor);
    let is_connected =
        |event: &Event| matches!(event, Event::Connected { connection } if *connection == kept);
    assert!(events.iter().any(is_connected), "{events:?}");
    let mut said = [0; 4];
    peer.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ping");
    assert_eq!(late.read(&mut said).unwrap(), 0, "nobody has it any more");
    assert!(reactor.is_open(next) && reactor.is_open(kept));
    peer.write_all(b"pong").unwrap();
    while !turn(&mut reactor).iter().any(|event| matches!(event, Event::Received { .. })) {}
    let inbox = reactor.take_inbox(kept).unwrap();
    assert_eq!(inbox.bytes(), b"pong");
}

fn two_reactors_talk_over_a_unix_socket(backend: Backend) {
    let directory = tempfile::tempdir().unwrap();
    let address = SockAddr::unix(directory.path().join("socket")).unwrap();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    socket.bind(&address).unwrap();
    socket.listen(8).unwrap();
    let mut reactor = reactor(backend);
    reactor.listen(socket).unwrap();
    let outgoing = reactor.connect(&address).unwrap();
    reactor.send(outgoing, b"ping");
    let mut heard = Vec::new();
    while heard != b"ping" {
        for event in turn(&mut reactor) {
            if let Event::Received { connection } = event {
                let mut inbox = reactor.take_inbox(connection).unwrap();
                heard.extend_from_slice(inbox.bytes());
                inbox.consume(inbox.bytes().len());
                reactor.return_inbox(connection, inbox, true);
            }
        }
    }
}

fn another_thread_wakes_a_sleeping_reactor(backend: Backend) {
    let mut reactor = reactor(backend);
    let waker = reactor.waker();
    let thread = std::thread::spawn(move || waker.wake());
    assert!(matches!(turn(&mut reactor)[0], Event::Woken));
    thread.join().unwrap();
}

fn one_connection_too_many_is_closed_and_the_others_live(backend: Backend) {
    let options = ReactorOptions { connections_max: 2, backend, ..ReactorOptions::default() };
    let mut reactor = Reactor::new(options).unwrap();
    let (socket, address) = listener();
    reactor.listen(socket).unwrap();
    let mut streams: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut events = Vec::new();
    for _ in 0..20 {
        reactor.turn(Some(Duration::from_millis(10)), &mut events).unwrap();
    }
    assert_eq!(reactor.connection_count(), 2);
    assert_eq!(streams[2].read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn more_operations_than_the_device_or_the_queue_takes_all_end() {
    for (entries, depth) in [(8, 4), (8, 1000), (256, 3)] {
        let options = ReactorOptions { entries, connections_max: 8, ..ReactorOptions::default() };
        let mut reactor = Reactor::new(options).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let file = reactor.add_file(file, depth).unwrap();
        for token in 0..200 {
            let mut buffer = Buffer::new(4096);
            buffer.bytes_mut().unwrap().fill(token as u8);
            reactor.write(file, token, token * 4096, buffer, 4096);
        }
        let mut ended = [false; 200];
        while ended.contains(&false) {
            for event in turn(&mut reactor) {
                let Event::FileDone { token, result, .. } = event else { continue };
                result.unwrap();
                assert!(!std::mem::replace(&mut ended[token as usize], true), "{token} ended twice");
            }
        }
        for token in 0..200 {
            reactor.read(file, token, token * 4096, Buffer::new(4096), 4096);
        }
        let event = turn(&mut reactor).remove(0);
        let Event::FileDone { token, buffer: Some(buffer), result: Ok(()) } = event else {
            panic!("{event:?}")
        };
        assert!(buffer.bytes().iter().all(|&byte| byte == token as u8));
        let dropped = std::time::Instant::now();
        drop(reactor);
        assert!(dropped.elapsed() < Duration::from_secs(5), "what never began is not waited for");
    }
}

/// CPU time of this thread in microseconds, and how often others had the processor while it could have gone on.
fn thread_use() -> (u64, u64) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap();
    let us = read("schedstat").split(' ').next().unwrap().parse::<u64>().unwrap() / 1000;
    let status = read("status");
    let others = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    (us, others.unwrap().trim().parse().unwrap())
}

fn it_polls_only_when_it_is_eager_and_answers_come_soon(backend: Backend) {
    let spin_max = Duration::from_millis(100);
    let mut reactor =
        Reactor::new(ReactorOptions { connections_max: 8, spin_max, backend, ..ReactorOptions::default() })
            .unwrap();
    let mut events = Vec::new();
    // Who polls is on the processor all the time, but for when others want it, to whom it is offered at each look.
    let mut has_polled = |reactor: &mut Reactor| {
        let before = thread_use();
        reactor.turn(Some(Duration::from_millis(200)), &mut events).unwrap();
        let after = thread_use();
        after.0 - before.0 > 5_000 || after.1 - before.1 > 5
    };
    assert!(!has_polled(&mut reactor), "nobody waits, so it sleeps");
    reactor.set_waiting(1);
    assert!((0..4).any(|_| has_polled(&mut reactor)), "it polls for a while, and sleeps then");
    // Waits as long as these teach it that polling is in vain.
    let last = (0..12).map(|_| has_polled(&mut reactor)).last();
    assert_eq!(last, Some(false));
}

fn eventfd() -> nix::sys::eventfd::EventFd {
    nix::sys::eventfd::EventFd::from_value_and_flags(0, nix::sys::eventfd::EfdFlags::EFD_NONBLOCK).unwrap()
}

/// A descriptor of an eventfd, beside that of the test's.
fn another(eventfd: &nix::sys::eventfd::EventFd) -> std::os::fd::OwnedFd {
    std::os::fd::AsFd::as_fd(eventfd).try_clone_to_owned().unwrap()
}

fn each_write_to_an_eventfd_that_is_listened_to_is_told_of(backend: Backend) {
    let mut reactor = reactor(backend);
    let (first, second) = (eventfd(), eventfd());
    // One that was written to before too.
    second.write(1).unwrap();
    let watches = [&first, &second].map(|eventfd| reactor.watch(another(eventfd)).unwrap());
    let told = |events: Vec<Event>| match events[..] {
        [Event::Signalled { watch }] => watch,
        _ => panic!("{events:?}"),
    };
    assert_eq!(told(turn(&mut reactor)), watches[1]);
    for _ in 0..3 {
        first.write(1).unwrap();
        assert_eq!(told(turn(&mut reactor)), watches[0]);
    }
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        first.write(1).unwrap();
        first
    });
    assert_eq!(told(turn(&mut reactor)), watches[0], "it sleeps until then");
    let mut events = Vec::new();
    reactor.turn(Some(Duration::from_millis(20)), &mut events).unwrap();
    assert!(events.is_empty(), "{events:?}: what was told is not told again");
    drop(writer.join().unwrap());
}

fn an_eventfd_that_is_not_listened_to_any_more_is_not_told_of(backend: Backend) {
    let mut reactor = reactor(backend);
    let eventfd = eventfd();
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..100 {
        let watch = reactor.watch(another(&eventfd)).unwrap();
        reactor.unwatch(watch);
        reactor.unwatch(watch);
        eventfd.write(1).unwrap();
        let mut events = Vec::new();
        reactor.turn(Some(Duration::from_millis(1)), &mut events).unwrap();
        reactor.turn(Some(Duration::from_millis(1)), &mut events).unwrap();
        assert!(events.is_empty(), "{events:?}");
    }
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert_eq!(before, after, "descriptors are closed");
    // Something that is no eventfd is refused by the kernel, and says nothing.
    let watch = reactor.watch(std::fs::File::open("/proc/self/maps").unwrap().into()).unwrap();
    let mut events = Vec::new();
    reactor.turn(Some(Duration::from_millis(5)), &mut events).unwrap();
    assert!(events.len() <= 1, "{events:?}");
    reactor.unwatch(watch);
}

#[test]
fn without_a_ring_there_are_no_files_and_this_is_told() {
    let mut reactor = reactor(Backend::Poll);
    let error = reactor.add_file(tempfile::tempfile().unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("need io_uring"), "{error}");
}

/// What a connection has sent and ended is told, in whatever order it is noticed: nothing else would come to tell of the end.
fn an_end_right_behind_the_last_bytes_is_told(backend: Backend) {
    let mut reactor = reactor(backend);
    let (socket, address) = listener();
    for round in 0..200u32 {
        let connection = reactor.connect(&SockAddr::from(address)).unwrap();
        let listener = socket.try_clone().unwrap();
        let peer = std::thread::spawn(move || {
            let mut peer = listener.accept().unwrap().0;
            peer.write_all(&[7; 100]).unwrap();
            if round % 2 == 0 {
                std::thread::yield_now();
            }
        });
        let (mut heard, mut is_closed) = (0, false);
        while !is_closed {
            for event in turn(&mut reactor) {
                match event {
                    Event::Received { .. } => {
                        let mut inbox = reactor.take_inbox(connection).unwrap();
                        heard += inbox.bytes().len();
                        inbox.consume(inbox.bytes().len());
                        reactor.return_inbox(connection, inbox, true);
                    }
                    Event::Closed { .. } => is_closed = true,
                    _ => {}
                }
            }
        }
        assert_eq!(heard, 100);
        peer.join().unwrap();
    }
}
