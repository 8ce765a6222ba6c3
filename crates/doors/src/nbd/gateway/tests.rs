//! The gateway with real sockets, our own NBD client, and, where they are installed, other people's.

use super::*;
use crate::nbd::{Client, ClientEvent, Framing};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use testkit::prerequisites::not_tested;
use testkit::wait_until;
use volume::OpenAs;
use volume::testing::{Faults, TestCluster};
use wire::Status;

const DISK_BYTES: u64 = 64 << 20;
/// Of a volume with far more objects than are zeroed at a time.
const LARGE_BYTES: u64 = 3 << 30;

/// A cluster in memory with a gateway on a thread of its own.
struct Served {
    cluster: TestCluster,
    socket: PathBuf,
    stopper: Stopper,
    /// While somebody has it, the gateway stands still.
    gate: Arc<Mutex<()>>,
    thread: Option<JoinHandle<(Result<(), GatewayError>, usize)>>,
    directory: tempfile::TempDir,
}

impl Served {
    /// A gateway that waits for orphans until they end, however long this machine takes for it.
    fn start(change: impl FnOnce(&mut GatewayOptions)) -> Served {
        Served::start_settling(Duration::from_secs(3600), change)
    }

    fn start_settling(settle_limit: Duration, change: impl FnOnce(&mut GatewayOptions)) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let cluster = TestCluster::start(directory.path());
        cluster.create_volume("disk", DISK_BYTES);
        cluster.create_volume("other", 1 << 20);
        cluster.create_volume("large", LARGE_BYTES);
        let socket = directory.path().join("nbd.sock");
        let mut options = GatewayOptions {
            cluster: cluster.access(),
            volumes: vec!["disk".to_owned()],
            listen: vec![Listen::Unix(socket.clone())],
            tls: None,
            open: OpenAs::Owner,
            timeout: None,
        };
        change(&mut options);
        let (sender, receiver) = mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let passes = gate.clone();
        let thread = std::thread::spawn(move || {
            let mut gateway = Gateway::open(&options).unwrap();
            gateway.settle_limit = settle_limit;
            sender.send(gateway.stopper()).unwrap();
            let outcome = loop {
                drop(passes.lock().unwrap());
                match gateway.goes_on() {
                    Ok(true) => {}
                    ended => break ended.map(|_| ()),
                }
            };
            // What was still on its way out when the last connection closed.
            let mut events = Vec::new();
            gateway.volumes.reactor().turn(Some(Duration::from_millis(50)), &mut events).unwrap();
            let buffers = &mut gateway.buffers;
            gateway.volumes.take_released(|buffer| buffers.put(buffer));
            (outcome, gateway.buffers.lent())
        });
        let stopper = receiver.recv().unwrap();
        Served { cluster, socket, stopper, gate, thread: Some(thread), directory }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    fn client(&self) -> TestClient {
        TestClient::connect(&self.socket, "disk")
    }

    /// Waits until a write was tried again and again, in vain.
    fn wait_for_tries(&self) {
        let before = self.cluster.hang_ups();
        wait_until("a write is tried again", || self.cluster.hang_ups() >= before + 3);
    }

    /// Stops it and checks that every buffer came home.
    fn stop(mut self) -> Served {
        self.stopper.stop();
        let (outcome, lent) = self.thread.take().unwrap().join().unwrap();
        outcome.unwrap();
        assert_eq!(lent, 0, "every buffer comes back to its pool");
        self
    }

    /// Waits until it ends by itself.
    fn wait(&mut self) -> GatewayError {
        self.thread.take().unwrap().join().unwrap().0.unwrap_err()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // A test that failed already has something to say.
            let _ = thread.join();
        }
    }
}

/// Our own client over a blocking socket, one operation at a time unless asked otherwise.
struct TestClient {
    stream: UnixStream,
    client: Client,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    read: Vec<u8>,
    read_offset: u64,
}

impl TestClient {
    fn connect(socket: &std::path::Path, export: &str) -> TestClient {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = TestClient {
            stream,
            client: Client::new(export, Framing::Structured),
            outbox: Vec::new(),
            inbox: Vec::new(),
            read: Vec::new(),
            read_offset: 0,
        };
        while !client.client.is_ready() {
            client.exchange();
        }
        client
    }

    fn exchange(&mut self) -> Vec<ClientEvent> {
        self.stream.write_all(&self.outbox).unwrap();
        self.outbox.clear();
        let mut part = vec![0; 1 << 20];
        let count = self.stream.read(&mut part).unwrap();
        assert!(count > 0, "the gateway closed the connection: {:?}", self.client.closed());
        self.inbox.extend_from_slice(&part[..count]);
        let mut events = Vec::new();
        let consumed = self.client.handle_bytes(&self.inbox, &mut events, &mut self.outbox);
        for event in &events {
            if let ClientEvent::Data { offset, data, .. } = event {
                let start = (offset - self.read_offset) as usize;
                self.read[start..start + data.len()].copy_from_slice(&self.inbox[data.clone()]);
            }
        }
        self.inbox.drain(..consumed);
        events
    }

    fn done(&mut self) -> Result<(), Failure> {
        loop {
            for event in self.exchange() {
                if let ClientEvent::Done { result, .. } = event {
                    return result;
                }
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut buffer = Buffer::new(bytes.len());
        buffer.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
        self.client.write(1, offset, buffer, 0..bytes.len(), false, &mut self.outbox);
        self.done()
    }

    /// Sends a write, and does not wait for its answer.
    fn begin_write(&mut self, offset: u64, bytes: &[u8]) {
        let mut buffer = Buffer::new(bytes.len());
        buffer.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
        self.client.write(1, offset, buffer, 0..bytes.len(), false, &mut self.outbox);
        self.stream.write_all(&self.outbox).unwrap();
        self.outbox.clear();
    }

    /// Says that nothing more will be asked for, and that nothing more will be sent.
    fn says_goodbye(&mut self) {
        self.client.disconnect(&mut self.outbox);
        self.stream.write_all(&self.outbox).unwrap();
        self.outbox.clear();
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Failure> {
        (self.read, self.read_offset) = (vec![0; length], offset);
        self.client.read(2, offset, length as u32, &mut self.outbox);
        self.done().map(|()| std::mem::take(&mut self.read))
    }
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64 / 8 + 1)
        .flat_map(|index| base::hash::mix(index ^ seed << 32).to_le_bytes())
        .take(bytes)
        .collect()
}

#[test]
fn a_volume_of_many_objects_is_trimmed_by_one_request_and_read_meanwhile() {
    let served = Served::start(|options| options.volumes.push("large".to_owned()));
    let mut client = TestClient::connect(&served.socket, "large");
    client.write(LARGE_BYTES - 4096, &[7; 4096]).unwrap();
    // With nothing behind it, and with a read that does not wait for it.
    client.client.trim(3, 0, LARGE_BYTES, &mut client.outbox);
    client.done().unwrap();
    assert_eq!(client.read(LARGE_BYTES - 4096, 4096).unwrap(), [0; 4096]);
    client.write(0, &[7; 4096]).unwrap();
    client.client.write_zeroes(3, 4096, LARGE_BYTES - 4096, true, &mut client.outbox);
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    client.done().unwrap();
    drop(client);
    served.stop();
}

#[test]
fn bytes_of_any_alignment_are_read_back_as_they_were_written() {
    let served = Served::start(|_| ());
    let mut client = served.client();
    let mut model = vec![0u8; 12 << 20];
    for (seed, (offset, length)) in
        [(0usize, 4096usize), (4095, 2), (100, 5 << 20), ((4 << 20) - 1, 70_001), (8 << 20, 1)]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(length, seed as u64);
        client.write(offset as u64, &bytes).unwrap();
        model[offset..offset + length].copy_from_slice(&bytes);
    }
    for (offset, length) in [(0, 12 << 20), (1, 300_000), (4090, 20)] {
        assert!(client.read(offset as u64, length).unwrap() == model[offset..offset + length]);
    }
    drop(client);
    served.stop();
}

#[test]
fn many_clients_and_deep_queues_get_every_answer_and_every_buffer_comes_back() {
    let served = Served::start(|_| ());
    // More in flight than there are buffers of either size: who waits must not wait for ever.
    std::thread::scope(|scope| {
        for number in 0..6u64 {
            let served = &served;
            scope.spawn(move || {
                let mut client = served.client();
                let base = number * (8 << 20);
                let data = pattern(8 << 20, number);
                let mut buffer = Buffer::new(data.len());
                buffer.bytes_mut().unwrap().copy_from_slice(&data);
                let large = 256 << 10;
                let mut left = 0;
                for start in (0..data.len()).step_by(large) {
                    client.client.write(
                        left,
                        base + start as u64,
                        buffer.clone(),
                        start..start + large,
                        false,
                        &mut client.outbox,
                    );
                    left += 1;
                }
                while left > 0 {
                    left -= client
                        .exchange()
                        .iter()
                        .filter(|e| matches!(e, ClientEvent::Done { result: Ok(()), .. }))
                        .count() as u64;
                }
                (client.read, client.read_offset) = (vec![0; data.len()], base);
                for start in (0..data.len()).step_by(4096) {
                    client.client.read(left, base + start as u64, 4096, &mut client.outbox);
                    left += 1;
                }
                // All at once; the gateway takes in what it can hold.
                let outbox = std::mem::take(&mut client.outbox);
                let mut sender = client.stream.try_clone().unwrap();
                let sending = std::thread::spawn(move || sender.write_all(&outbox).unwrap());
                while left > 0 {
                    left -= client
                        .exchange()
                        .iter()
                        .filter(|e| matches!(e, ClientEvent::Done { result: Ok(()), .. }))
                        .count() as u64;
                }
                sending.join().unwrap();
                assert!(client.read == data);
            });
        }
    });
    served.stop();
}

#[test]
fn a_client_that_does_not_receive_holds_up_nobody_else() {
    let served = Served::start(|_| ());
    served.client().write(0, &pattern(32 << 20, 1)).unwrap();
    let stuck: Vec<_> = (0..20)
        .map(|_| {
            let mut client = served.client();
            for token in 0..8 {
                client.client.read(token, 0, 32 << 20, &mut client.outbox);
            }
            client.stream.write_all(&client.outbox).unwrap();
            client
        })
        .collect();
    let mut client = served.client();
    for round in 0..20 {
        let bytes = pattern(1 << 20, round);
        client.write(40 << 20, &bytes).unwrap();
        assert!(client.read(40 << 20, 1 << 20).unwrap() == bytes);
    }
    drop((stuck, client));
    served.stop();
}

#[test]
fn failures_reach_the_client_with_their_code_and_words() {
    let served = Served::start(|_| ());
    let mut client = served.client();
    client.write(0, &pattern(4096, 1)).unwrap();
    for (status, code) in [
        (Status::NoSpace, ErrorCode::NoSpace),
        (Status::Fenced, ErrorCode::Shutdown),
        (Status::DeviceFailed, ErrorCode::Io),
        (Status::Forbidden, ErrorCode::NotPermitted),
    ] {
        served.cluster.set_faults(Faults { refuse_writes: Some(status), ..Faults::default() });
        let failure = client.write(0, &pattern(4096, 1)).unwrap_err();
        assert_eq!(failure.code, code, "{failure:?}");
        assert!(failure.message.contains("\"disk\""), "{failure:?}");
    }
    served.cluster.set_faults(Faults { refuse_reads: Some(Status::Damaged), ..Faults::default() });
    let failure = client.read((4 << 20) + 8192, 4096).unwrap_err();
    assert_eq!((failure.code, failure.offset), (ErrorCode::Io, Some((4 << 20) + 8192)));
    assert!(failure.message.contains("object 1") && failure.message.contains("osd.0"), "{failure:?}");
    drop(client);
    served.stop();
}

#[test]
fn an_operation_past_its_time_limit_is_an_io_error_and_its_late_end_is_nobodys() {
    let served = Served::start(|options| options.timeout = Some(Duration::from_secs(1)));
    let mut client = served.client();
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    client.write(0, &old).unwrap();
    served.cluster.set_faults(Faults { refuse_writes: Some(Status::NotActive), ..Faults::default() });
    let failure = client.write(0, &new).unwrap_err();
    assert_eq!(failure.code, ErrorCode::Io);
    for part in ["\"disk\"", "osd.0 does not serve: not active", "may still take effect"] {
        assert!(failure.message.contains(part), "{failure:?}");
    }
    served.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    let failure = client.read(0, 4096).unwrap_err();
    assert!(failure.code == ErrorCode::Io && failure.message.contains("osd.0"), "{failure:?}");
    served.cluster.set_faults(Faults::default());
    assert!(client.read(0, 4096).unwrap() == old);
    client.write(0, &new).unwrap();
    assert!(client.read(0, 4096).unwrap() == new);
    drop(client);
    served.stop();
}

/// Writes of every connection end with their connections to the OSD, and are tried again.
fn hang_up() -> Faults {
    Faults { hang_up_on_writes: true, ..Faults::default() }
}

/// Time for what is tried again and again to have been tried at its longest pause.
const SOME_TRIES: Duration = Duration::from_millis(1500);

#[test]
fn who_comes_back_is_not_overwritten_by_what_it_sent_before() {
    let served = Served::start(|_| ());
    for round in 0..3 {
        let (old, new) = (pattern(4096, round), pattern(4096, 100 + round));
        let mut client = served.client();
        served.cluster.set_faults(hang_up());
        client.begin_write(0, &old);
        served.wait_for_tries();
        drop(client);
        served.cluster.set_faults(Faults::default());
        let mut client = served.client();
        client.write(0, &new).unwrap();
        std::thread::sleep(SOME_TRIES);
        assert!(client.read(0, 4096).unwrap() == new, "round {round}: the older write came later");
    }
    served.stop();
}

#[test]
fn what_a_dead_connection_sent_and_nobody_took_in_is_done_never_more() {
    let served = Served::start(|_| ());
    // One more than a connection may have under way: it waits, and nothing is received, not even that the client is gone.
    let count = u64::from(REQUESTS_IN_FLIGHT_MAX) + 1;
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    let mut dying = served.client();
    served.cluster.set_faults(hang_up());
    (0..count).for_each(|number| dying.begin_write(number * 4096, &old));
    std::thread::sleep(Duration::from_millis(300));
    drop(dying);
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            let mut client = served.client();
            client.write((count - 1) * 4096, &new).unwrap();
            client
        });
        std::thread::sleep(Duration::from_millis(700));
        served.cluster.set_faults(Faults::default());
        let mut client = coming.join().unwrap();
        std::thread::sleep(SOME_TRIES);
        assert!(client.read((count - 1) * 4096, 4096).unwrap() == new, "the older write came later");
    });
    served.stop();
}

/// Chooses an export and writes, without waiting for any answer.
fn writes_blindly(export: &str, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let flags = 3u32.to_be_bytes();
    let (option, name_bytes, infos) = (7u32.to_be_bytes(), export.len() as u32, 0u16.to_be_bytes());
    let chosen = [&name_bytes.to_be_bytes()[..], export.as_bytes(), &infos].concat();
    let go = [&b"IHAVEOPT"[..], &option, &(chosen.len() as u32).to_be_bytes(), &chosen].concat();
    let header = [&0x2560_9513u32.to_be_bytes()[..], &0u16.to_be_bytes(), &1u16.to_be_bytes()].concat();
    let place =
        [&9u64.to_be_bytes()[..], &offset.to_be_bytes(), &(bytes.len() as u32).to_be_bytes()].concat();
    [&flags[..], &go, &header, &place, bytes].concat()
}

#[test]
fn what_a_dead_connection_sent_is_not_done_when_its_end_waits_behind_it_as_the_next_one_comes() {
    const WRITES: u64 = 30;
    let served = Served::start(|_| ());
    let (old, new) = (pattern(4096, 1), pattern(512, 2));
    let last = (WRITES - 1) * 4096;
    for _ in 0..10 {
        let mut dying = served.client();
        dying.write(last, &[0; 4096]).unwrap();
        let held = served.gate.lock().unwrap();
        // It gets through the gate once more at most.
        served.stopper.waker.wake();
        std::thread::sleep(Duration::from_millis(20));
        // More than is received at a time.
        (0..WRITES).for_each(|number| dying.begin_write(number * 4096, &old));
        drop(dying);
        let mut coming = UnixStream::connect(&served.socket).unwrap();
        coming.write_all(&writes_blindly("disk", last, &new)).unwrap();
        drop(held);
        let mut told = Vec::new();
        coming.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // A greeting, what is told of the export, and the answer.
        while !told.windows(16).any(|words| words[..4] == 0x6744_6698u32.to_be_bytes()) {
            let mut part = [0; 4096];
            let count = coming.read(&mut part).unwrap();
            assert!(count > 0, "the gateway closed the connection");
            told.extend_from_slice(&part[..count]);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(served.client().read(last, 512).unwrap() == new, "the older write came later");
    }
    served.stop();
}

#[test]
fn who_says_goodbye_hears_the_last_answers_unless_somebody_else_comes() {
    for comes in [false, true] {
        let served = Served::start(|_| ());
        let mut parting = served.client();
        served.cluster.set_faults(hang_up());
        parting.begin_write(0, &pattern(4096, 1));
        parting.says_goodbye();
        // It is looked at each second.
        std::thread::sleep(Duration::from_millis(2500));
        std::thread::scope(|scope| {
            let coming = comes.then(|| scope.spawn(|| served.client()));
            std::thread::sleep(Duration::from_millis(300));
            served.cluster.set_faults(Faults::default());
            if comes {
                let mut rest = Vec::new();
                parting.stream.read_to_end(&mut rest).unwrap();
                assert!(rest.is_empty(), "it may be gone, and who comes is not to be passed by what it sent");
            } else {
                parting.done().unwrap();
            }
            drop(coming.map(|coming| coming.join().unwrap()));
        });
        served.stop();
    }
}

#[test]
fn a_new_connection_waits_for_what_a_dead_one_left_and_those_that_live_go_on() {
    let served = Served::start(|_| ());
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    let (mut dying, mut living) = (served.client(), served.client());
    served.cluster.set_faults(hang_up());
    dying.begin_write(0, &old);
    served.wait_for_tries();
    drop(dying);
    let (sender, connected) = mpsc::channel();
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            let mut client = served.client();
            sender.send(()).unwrap();
            client.read(0, 4096).unwrap()
        });
        assert!(connected.recv_timeout(Duration::from_secs(1)).is_err(), "it does not begin");
        // Elsewhere nothing is waited for.
        assert!(living.read(8 << 20, 4096).is_ok());
        living.begin_write(0, &new);
        served.cluster.set_faults(Faults::default());
        living.done().unwrap();
        assert!(coming.join().unwrap() == new);
    });
    assert_eq!(served.cluster.fences(), [], "it was settled in time");
    drop(living);
    served.stop();
}

#[test]
fn what_a_dead_connection_left_is_fenced_when_it_takes_too_long() {
    let served = Served::start_settling(Duration::from_secs(3), |_| ());
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    let (mut dying, mut living) = (served.client(), served.client());
    served.cluster.set_faults(hang_up());
    dying.begin_write(0, &old);
    living.begin_write(4096, &old);
    std::thread::sleep(Duration::from_millis(500));
    drop(dying);
    let mut client = served.client();
    assert!(!served.cluster.fences().is_empty(), "it began without a fence");
    served.cluster.set_faults(Faults::default());
    client.write(0, &new).unwrap();
    living.done().unwrap();
    std::thread::sleep(SOME_TRIES);
    assert!(client.read(0, 4096).unwrap() == new);
    assert!(client.read(4096, 4096).unwrap() == old, "who lives has lost nothing");
    drop((client, living));
    served.stop();
}

#[test]
fn where_others_share_the_volume_a_new_connection_begins_and_the_same_bytes_wait() {
    let served = Served::start_settling(Duration::from_secs(3), |options| options.open = OpenAs::Sharer);
    let (old, new) = (pattern(4096, 1), pattern(4096, 2));
    let mut client = served.client();
    served.cluster.set_faults(hang_up());
    client.begin_write(0, &old);
    served.wait_for_tries();
    drop(client);
    let mut client = served.client();
    assert_eq!(served.cluster.fences(), [], "who shares it would be fenced too");
    assert!(client.read(8 << 20, 4096).is_ok());
    client.begin_write(0, &new);
    std::thread::sleep(Duration::from_millis(100));
    served.cluster.set_faults(Faults::default());
    client.done().unwrap();
    std::thread::sleep(SOME_TRIES);
    assert!(client.read(0, 4096).unwrap() == new);
    drop(client);
    served.stop();
}

#[test]
fn a_write_of_which_nobody_can_tell_is_an_io_error_where_others_may_write_and_done_where_not() {
    for shared in [true, false] {
        let served =
            Served::start(|options| options.open = if shared { OpenAs::Sharer } else { OpenAs::Owner });
        let bytes = pattern(4096, 1);
        let mut client = served.client();
        served.cluster.set_faults(hang_up());
        client.begin_write(0, &bytes);
        std::thread::sleep(Duration::from_millis(500));
        // The group's log has forgotten what was before.
        let refuse_repeats = Some(Status::OutcomeUnknown);
        served.cluster.set_faults(Faults { refuse_repeats, ..Faults::default() });
        let outcome = client.done();
        let is_done = client.read(0, 4096).unwrap() == bytes;
        match outcome {
            Ok(()) => assert!(!shared && is_done),
            Err(failure) => {
                assert!(shared && !is_done && failure.code == ErrorCode::Io, "{failure:?}");
                assert!(failure.message.contains("nobody can tell"), "{failure:?}");
            }
        }
        drop(client);
        served.stop();
    }
}

#[test]
fn a_lost_attachment_fails_what_is_in_flight_and_ends_the_gateway() {
    let mut served = Served::start(|_| ());
    let mut client = served.client();
    client.write(0, &pattern(4096, 1)).unwrap();
    served.cluster.set_faults(Faults { silent: true, ..Faults::default() });
    let mut buffer = Buffer::new(4096);
    buffer.bytes_mut().unwrap().fill(1);
    client.client.write(1, 0, buffer, 0..4096, false, &mut client.outbox);
    client.stream.write_all(&client.outbox).unwrap();
    client.outbox.clear();
    std::thread::sleep(Duration::from_millis(200));
    served.cluster.take_over("disk");
    let failure = client.done().unwrap_err();
    assert_eq!(failure.code, ErrorCode::Shutdown);
    assert!(failure.message.contains("lease"), "{failure:?}");
    let error = served.wait();
    assert!(error.to_string().contains("not served any more"), "{error}");
}

#[test]
fn a_stop_answers_what_is_in_flight_detaches_and_removes_the_socket() {
    let served = Served::start(|_| ());
    let mut client = served.client();
    served.cluster.set_faults(Faults { refuse_writes: Some(Status::NotActive), ..Faults::default() });
    let mut buffer = Buffer::new(4096);
    buffer.bytes_mut().unwrap().fill(1);
    client.client.write(1, 0, buffer, 0..4096, false, &mut client.outbox);
    client.stream.write_all(&client.outbox).unwrap();
    client.outbox.clear();
    std::thread::sleep(Duration::from_millis(200));
    served.stopper.stop();
    std::thread::sleep(Duration::from_millis(100));
    served.cluster.set_faults(Faults::default());
    client.done().unwrap();
    let served = served.stop();
    assert!(!served.socket.exists());
    let attachments = served.cluster.with(async |cluster| {
        let map = cluster.map().await.unwrap();
        cluster.attachments(map.volume_named("disk").unwrap().0).await.unwrap()
    });
    assert_eq!(attachments, []);
}

#[test]
fn a_read_only_export_refuses_writes_and_leaves_the_volume_to_others() {
    let served = Served::start(|options| options.open = OpenAs::Reader);
    let mut client = served.client();
    let mut buffer = Buffer::new(4096);
    buffer.bytes_mut().unwrap().fill(1);
    client.client.write(1, 0, buffer, 0..4096, false, &mut client.outbox);
    assert_eq!(client.done().unwrap_err().code, ErrorCode::NotPermitted);
    assert_eq!(client.read(0, 8192).unwrap(), vec![0; 8192]);
    let other = SessionOptions {
        cluster: served.cluster.access(),
        volumes: vec!["disk".to_owned()],
        open: OpenAs::Sharer,
        timeout: None,
        purpose: "another".to_owned(),
        note: None,
    };
    VolumeLoop::attach(other, ReactorOptions { connections_max: 64, ..ReactorOptions::default() }).unwrap();
}

#[test]
fn an_export_grows_with_its_volume() {
    let served = Served::start(|_| ());
    served.cluster.with(async |cluster| cluster.resize_volume("disk", 2 * DISK_BYTES, false).await.unwrap());
    let deadline = ring::now() + Duration::from_secs(20);
    loop {
        let mut client = served.client();
        if client.read(DISK_BYTES, 4096).is_ok() {
            break;
        }
        assert!(ring::now() < deadline, "the new size does not arrive");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn thousands_of_idle_clients_and_garbage_leave_others_in_peace() {
    let served = Served::start(|_| ());
    // This process holds both ends; `connections_max` has raised the limit as far as it goes.
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let count = (limit.saturating_sub(1000) / 2).min(10_000) as usize;
    let mut idle: Vec<_> = (0..count).map(|_| UnixStream::connect(&served.socket).unwrap()).collect();
    for (number, stream) in idle.iter_mut().enumerate().step_by(10) {
        let garbage = pattern(100 + number % 5000, number as u64);
        // Whether it is still wanted is the gateway's to decide.
        let _ = stream.write_all(&garbage);
    }
    let mut client = served.client();
    let bytes = pattern(1 << 20, 5);
    client.write(0, &bytes).unwrap();
    assert!(client.read(0, 1 << 20).unwrap() == bytes);
    drop((idle, client));
    served.stop();
}

/// Runs somebody else's program; `None` where it is not installed.
fn program(name: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(name).args(arguments).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
            Some(text)
        }
        Err(error) => {
            not_tested(name, &format!("{error}; install it with `make deps`"));
            None
        }
    }
}

#[test]
fn nbdinfo_sees_every_export_with_what_it_can_do() {
    let served = Served::start(|options| options.volumes.push("other".to_owned()));
    let Some(text) = program("nbdinfo", &["--list", &served.uri("")]) else { return };
    for expected in ["export=\"disk\"", "export=\"other\"", "export-size: 67108864", "can_multi_conn: true"] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    for expected in ["can_fua: true", "can_fast_zero: true", "can_zero: true", "base:allocation"] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    served.stop();
}

#[test]
fn nbdcopy_brings_a_sparse_file_there_and_back_and_holes_stay_holes() {
    let served = Served::start(|_| ());
    let (source, target) = (served.directory.path().join("source"), served.directory.path().join("target"));
    let mut file = std::fs::File::create(&source).unwrap();
    file.set_len(DISK_BYTES).unwrap();
    file.write_all(&pattern(3 << 20, 1)).unwrap();
    use std::os::unix::fs::FileExt;
    file.write_all_at(&pattern(5000, 2), 33_333_333).unwrap();
    let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
    if program("nbdcopy", &[source, &served.uri("disk")]).is_none() {
        return;
    }
    // nbdcopy writes whole requests around what is there.
    assert!(served.cluster.allocated_blocks() < 2048, "{} blocks", served.cluster.allocated_blocks());
    let map = program("nbdinfo", &["--map", &served.uri("disk")]).unwrap();
    assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
    program("nbdcopy", &[&served.uri("disk"), target]).unwrap();
    assert!(std::fs::read(source).unwrap() == std::fs::read(target).unwrap());
    served.stop();
}

#[test]
fn qemu_io_writes_zeroes_discards_and_verifies_at_odd_places() {
    let served = Served::start(|_| ());
    let commands = [
        "write -P 0xaa 1000 100000",
        "write -z 5000 20000",
        "write -z -u 40000 20000",
        "discard 65536 8192",
        "aio_write -P 0xbb 1048576 1048576",
        "aio_flush",
        "flush",
        "read -P 0xaa 1000 4000",
        "read -P 0 5000 20000",
        "read -P 0xaa 25000 15000",
        "read -P 0 40000 20000",
        "read -P 0xaa 80000 21000",
        "read -P 0xbb 1048576 1048576",
    ];
    let uri = served.uri("disk");
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let Some(text) = program("qemu-io", &arguments) else { return };
    assert!(!text.contains("failed") && !text.contains("Pattern verification"), "{text}");
    served.stop();
}

#[test]
fn fio_verifies_what_it_wrote_at_random_over_four_connections() {
    let served = Served::start(|_| ());
    let uri = served.uri("disk");
    let uri = format!("--uri={uri}");
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--size=8M",
        "--numjobs=4",
        "--offset_increment=8M",
        "--iodepth=64",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--thread=1",
    ];
    if program("fio", &arguments).is_some() {
        served.stop();
    }
}
