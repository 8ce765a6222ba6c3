//! Clients of an OSD begin more large messages than there is memory to receive them in, and end none.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

mod common;

use base::{BLOCK_BYTES, ClientId, Epoch, Generation, ObjectKey, OsdId, PgId, crc32c};
use common::{Pond, VOLUME, cluster_id};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::{Hello, Kind, Message, Request, Role, VERSIONS};

const PATIENCE: Duration = Duration::from_secs(30);
const HEADER_BYTES: usize = 64;
const ASKED: OsdId = OsdId(0);
/// More than have room for a large message.
const CLIENTS: u64 = 1200;

/// Connects as a client, and is let in.
fn connect(pond: &Pond, client: u64) -> TcpStream {
    let mut stream = TcpStream::connect(pond.map.osds[&ASKED].address.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (role, cluster) = (Role::Client(ClientId(client)), cluster_id());
    let hello = Hello { role, cluster, target: ASKED, versions: VERSIONS };
    stream.write_all(&hello.encode()).unwrap();
    let mut welcome = [0; HEADER_BYTES];
    stream.read_exact(&mut welcome).unwrap();
    assert!(matches!(wire::parse(&welcome), Ok(Some((Message::Welcome(_), HEADER_BYTES)))));
    stream
}

/// The largest write, by an epoch that is over.
fn write() -> Vec<u8> {
    const BLOCKS: usize = 64;
    let request = Request {
        request: 9,
        key: ObjectKey { pg: PgId::default(), layer: VOLUME.first_layer(), object: 0 },
        offset: 0,
        length: (BLOCKS * BLOCK_BYTES) as u32,
        epoch: Epoch(0),
        generation: Generation(1),
        origin: 5,
        since: None,
        unverified: false,
        of_snapshot: false,
    };
    let block = [7; BLOCK_BYTES];
    let checksums = crc32c(&block).to_le_bytes().repeat(BLOCKS);
    [&request.encode(Kind::Write)[..], &checksums, &block.repeat(BLOCKS)].concat()
}

/// So many clients begin one and do not go on with it.
fn begin(pond: &Pond, first: u64) -> Vec<TcpStream> {
    let whole = write();
    let begins = |client: u64| {
        let mut stream = connect(pond, client);
        stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
        // What is not received at once may stay away.
        let _ = stream.write_all(&whole[..whole.len() - 100]);
        stream
    };
    (first..first + CLIENTS).map(begins).collect()
}

/// How long it takes until somebody else is answered.
fn is_answered(pond: &Pond, client: u64) -> Duration {
    let (mut stream, began) = (connect(pond, client), Instant::now());
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&write()).unwrap();
    let mut reply = [0; HEADER_BYTES];
    stream.read_exact(&mut reply).unwrap();
    assert!(matches!(wire::parse(&reply), Ok(Some((Message::Reply(_), HEADER_BYTES)))));
    began.elapsed()
}

/// Somebody who writes now and then, for as long as this lives.
struct Lively {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Lively {
    fn start(pond: &Pond, client: u64) -> Lively {
        let mut stream = connect(pond, client);
        let enough = Arc::new(AtomicBool::new(false));
        let until = enough.clone();
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                stream.write_all(&write()).unwrap();
                let mut reply = [0; HEADER_BYTES];
                stream.read_exact(&mut reply).expect("who goes on is not let go");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Lively { enough, thread }
    }

    fn ends(self) {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn who_does_not_end_a_message_keeps_nobody_else_from_ending_one() {
    let mut pond = Pond::start();
    pond.becomes_active();
    is_answered(&pond, 1);
    let gone = begin(&pond, 10_000);
    drop(gone);
    let took = is_answered(&pond, 2);
    assert!(took < Duration::from_secs(5), "those that are gone are waited for: {took:?}");
    // Those that are there and send nothing are let go in the end; not who has as much memory, and nothing in it now and then.
    let lively = Lively::start(&pond, 4);
    let mut silent = begin(&pond, 20_000);
    let took = is_answered(&pond, 3);
    assert!(took > Duration::from_secs(5), "there is memory for all of them: {took:?}");
    let told = silent.iter_mut().filter_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut words = Vec::new();
        let _ = stream.read_to_end(&mut words);
        String::from_utf8_lossy(&words).contains("did not go on").then_some(())
    });
    assert!(told.count() > 0, "they are told why");
    lively.ends();
    pond.stop();
}
