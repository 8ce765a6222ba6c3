//! Garbage, half messages and thousands of idle connections on every socket, while a client works.

use crate::common::door::Door;
use crate::common::nbd::NbdClient;
use crate::common::pond::{Pond, runs};
use crate::common::random::Random;
use crate::common::{OnDrop, wait_until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::prerequisites::not_tested;

/// Idle connections to one socket.
const IDLE: usize = 10_000;
/// Attempts at each socket.
const ATTEMPTS: usize = 150;
/// An attacker does not wait longer for an answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(20);

/// A socket to attack.
#[derive(Clone, Debug)]
enum Place {
    Tcp(String),
    Unix(PathBuf),
}

/// A connection, of either kind.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Place {
    fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Place::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                Box::new(stream)
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                Box::new(stream)
            }
        })
    }
}

/// Every socket that the cluster and its NBD server listen on.
fn places(pond: &Pond, door: &Door) -> Vec<Place> {
    let mut places: Vec<Place> = pond.osd_addresses().into_iter().map(Place::Tcp).collect();
    assert_eq!(places.len(), 3);
    places.push(Place::Unix(door.socket().to_owned()));
    places.push(Place::Unix(pond.dir().join("registry.sock")));
    wait_until("every node is to be scraped", || pond.http_addresses().len() == 3);
    places.extend(pond.http_addresses().into_iter().map(Place::Tcp));
    places
}

/// What a sincere client of each protocol says first, to be cut off and twisted.
fn sincere() -> Vec<Vec<u8>> {
    let mut go = 3u32.to_be_bytes().to_vec();
    go.extend_from_slice(b"IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01v\0\0");
    let mut with_requests = go.clone();
    for (command, offset, length) in [
        (0u16, 0u64, u32::MAX),
        (1, u64::MAX - 10, 4096),
        (4, 0, 0),
        (6, 1 << 63, 1 << 31),
        (99, 0, 1),
        (7, 0, 1),
    ] {
        with_requests.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        with_requests.extend_from_slice(&[0, 0]);
        with_requests.extend_from_slice(&command.to_be_bytes());
        with_requests.extend_from_slice(&7u64.to_be_bytes());
        with_requests.extend_from_slice(&offset.to_be_bytes());
        with_requests.extend_from_slice(&length.to_be_bytes());
    }
    let long_name = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff".to_vec();
    let mut lines = Vec::new();
    for depth in [1, 1000] {
        lines.extend_from_slice(&b"[".repeat(depth));
        lines.extend_from_slice(b"{\"get\":{\"key\":\"\\u0000\"}}\n");
    }
    let mut framed = (lines.len() as u32).to_le_bytes().to_vec();
    framed.extend_from_slice(&lines);
    vec![
        go,
        with_requests,
        long_name,
        lines,
        framed,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{".to_vec(),
        vec![0; 9000],
    ]
}

/// Attacks a socket in many ways. What is answered is nobody's business here; that it is survived is.
fn attack(place: &Place, random: &mut Random) {
    let sincere = sincere();
    for attempt in 0..ATTEMPTS {
        let mut message = match attempt % 3 {
            0 => {
                let count = 1 + random.below(20_000) as usize;
                random.bytes(count)
            }
            _ => sincere[random.below(sincere.len() as u64) as usize].clone(),
        };
        if attempt % 3 == 2 {
            let at = random.below(message.len() as u64) as usize;
            message[at] ^= 1 << random.below(8);
            message.truncate(1 + random.below(message.len() as u64) as usize);
        }
        let Ok(mut stream) = place.connect() else {
            panic!("{place:?} takes no connection any more, at attempt {attempt}");
        };
        // It may well be closed in the middle: that is an answer too.
        let _ = stream.write_all(&message);
        if attempt % 4 == 0 {
            let _ = stream.read(&mut [0; 4096]);
        }
    }
}

/// Takes what an OSD or an NBD server sends first and sends it back, cut off at every length.
fn mirror(place: &Place) {
    let Ok(mut stream) = place.connect() else { panic!("{place:?} takes no connection") };
    let mut first = vec![0; 4096];
    let count = stream.read(&mut first).unwrap_or(0);
    for end in 1..=count {
        if let Ok(mut stream) = place.connect() {
            let _ = stream.write_all(&first[..end]);
        }
    }
}

/// Writes and reads back until told that it is enough. Any error or wrong byte fails the test.
fn works(socket: &Path, enough: &AtomicBool, done: &AtomicU64) {
    let mut client = NbdClient::connect(socket, "v").expect("the export can be reached");
    let mut random = Random::seeded();
    while !enough.load(Ordering::Relaxed) {
        let offset = random.below(client.bytes / 4096 - 16) * 4096;
        let count = 1 + random.below(16 * 4096) as usize;
        let data = random.bytes(count);
        client.write(offset, &data).expect("writes go on");
        assert!(client.read(offset, data.len() as u32).expect("reads go on") == data, "wrong bytes");
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `trouble` while a client works; the client must have got on during it and after it.
fn while_a_client_works(pond: &Pond, door: &mut Door, trouble: impl FnOnce(&AtomicU64)) {
    let mut pids = pond.node_pids();
    assert_eq!(pids.len(), 3);
    pids.extend(pond.up_pid());
    let (enough, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let socket = door.socket().to_owned();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| works(&socket, &enough, &done));
        // Also when something here panics: the scope waits for the worker.
        let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
        let works_on = |more: u64| {
            let before = done.load(Ordering::Relaxed);
            wait_until("the client works on", || {
                assert!(!worker.is_finished(), "the client ended");
                done.load(Ordering::Relaxed) > before + more
            });
        };
        works_on(0);
        trouble(&done);
        works_on(10);
    });
    assert!(door.runs(), "the NBD server ended: {}", door.log());
    assert!(pids.iter().all(|pid| runs(*pid)), "a process of the cluster ended");
    wait_until("all is well", || pond.status()["health"]["level"] == "ok");
}

#[test]
fn garbage_on_every_socket_harms_nobody() {
    let pond = Pond::start("768MiB");
    pond.volume("v", "64MiB");
    let mut door = pond.serve("v");
    let places = places(&pond, &door);
    while_a_client_works(&pond, &mut door, |done| {
        let before = done.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for place in &places {
                scope.spawn(move || {
                    attack(place, &mut Random::seeded());
                    mirror(place);
                });
            }
        });
        assert!(done.load(Ordering::Relaxed) > before, "the client got nowhere meanwhile");
    });
}

#[test]
fn ten_thousand_idle_connections_harm_nobody() {
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if limit < IDLE as u64 + 100 {
        let why = format!("`ulimit -Hn` allows {limit} open files");
        not_tested(&format!("{IDLE} idle connections"), &why);
        return;
    }
    let pond = Pond::start("768MiB");
    pond.volume("v", "64MiB");
    let mut door = pond.serve("v");
    let mut places = places(&pond, &door);
    let (osd, nbd) = (places.swap_remove(0), Place::Unix(door.socket().to_owned()));
    // After the cluster was started, which is to raise its own.
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).unwrap();
    for place in [osd, nbd] {
        while_a_client_works(&pond, &mut door, |done| {
            let mut idle = Vec::with_capacity(IDLE);
            for number in 0..IDLE {
                match place.connect() {
                    Ok(stream) => idle.push(stream),
                    Err(error) => panic!("{place:?}: connection {number}: {error}"),
                }
            }
            let before = done.load(Ordering::Relaxed);
            wait_until("the client works while they are open", || done.load(Ordering::Relaxed) > before + 10);
        });
    }
}
