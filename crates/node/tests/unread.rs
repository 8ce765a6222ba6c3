//! Who has the key of a node, asks an OSD, and does not take the answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

mod common;

use base::{ClientId, Epoch, Generation, ObjectKey, OsdId, PgId};
use common::{BLOCK, PGS, Pond, VOLUME, cluster_id};
use node::shard::Command;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use wire::{Hello, Kind, Message, Query, Request, Role, VERSIONS};

const PATIENCE: Duration = Duration::from_secs(30);
const HEADER_BYTES: usize = 64;

/// Who is asked, and who asks.
const ASKED: OsdId = OsdId(0);
const ASKING: OsdId = OsdId(2);

/// Connects to the OSD that is asked, as whoever somebody says that it is, and is let in.
fn connect(pond: &Pond, role: Role) -> TcpStream {
    let mut stream = TcpStream::connect(pond.map.osds[&ASKED].address.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let hello = Hello { role, cluster: cluster_id(), target: ASKED, versions: VERSIONS };
    stream.write_all(&hello.encode()).unwrap();
    let mut welcome = [0; HEADER_BYTES];
    stream.read_exact(&mut welcome).unwrap();
    assert!(matches!(wire::parse(&welcome), Ok(Some((Message::Welcome(_), HEADER_BYTES)))));
    stream
}

/// A client asks for something by an epoch that is over, and is told so: that takes a turn of the OSD.
fn takes_a_turn(client: &mut TcpStream, pg: PgId) {
    let request = Request {
        request: 9,
        key: ObjectKey { pg, layer: VOLUME.first_layer(), object: 0 },
        offset: 0,
        length: BLOCK as u32,
        epoch: Epoch(0),
        generation: Generation(1),
        origin: 0,
        since: None,
        unverified: false,
        of_snapshot: false,
    };
    client.write_all(&request.encode(Kind::Read)).unwrap();
    let mut reply = [0; HEADER_BYTES];
    client.read_exact(&mut reply).unwrap();
    assert!(matches!(wire::parse(&reply), Ok(Some((Message::Reply(_), HEADER_BYTES)))));
}

/// What an OSD says, message by message.
struct Heard {
    bytes: Vec<u8>,
    /// How many of them came.
    filled: usize,
    /// How many of those were looked at.
    taken: usize,
}

impl Heard {
    fn new() -> Heard {
        Heard { bytes: vec![0; 4 << 20], filled: 0, taken: 0 }
    }

    /// The group of the next position, or none if something else came, or nothing whole.
    fn next(&mut self, stream: &mut TcpStream) -> Option<PgId> {
        if let Some((message, size)) = wire::parse(&self.bytes[self.taken..self.filled]).unwrap() {
            self.taken += size;
            return if let Message::Position(position) = message { Some(position.head.pg) } else { None };
        }
        self.bytes.copy_within(self.taken..self.filled, 0);
        (self.filled, self.taken) = (self.filled - self.taken, 0);
        let count = stream.read(&mut self.bytes[self.filled..]).unwrap();
        assert!(count > 0, "it let go of who asks");
        self.filled += count;
        None
    }
}

#[test]
fn an_osd_that_does_not_read_gets_no_more_answers() {
    let mut pond = Pond::start();
    pond.becomes_active();
    // So that there is something to tell of each group.
    pond.run(4000, |_| true);
    let gone = pond.osds.remove(&ASKING).unwrap();
    gone.command(Command::Shutdown);
    gone.thread.join().unwrap().unwrap();
    let led = pond.map.pgs.iter().filter(|(_, config)| config.primary == ASKING);
    let queries: Vec<Query> =
        led.map(|(pg, config)| Query { pg: *pg, modulus: PGS, epoch: config.epoch }).collect();
    let [flooded, other, ..] = queries[..] else { panic!("it leads few groups: {queries:?}") };
    let count = 20_000;
    let mut stream = connect(&pond, Role::Osd(ASKING));
    stream.write_all(&flooded.encode().repeat(count)).unwrap();
    // All of it is handled before any of it is read, and others are served meanwhile.
    let mut client = connect(&pond, Role::Client(ClientId(77)));
    (0..2000).for_each(|_| takes_a_turn(&mut client, flooded.pg));
    // What is asked now is answered behind all that is kept to be sent.
    let (mut heard, mut answered, mut asked_at) = (Heard::new(), 0, 0);
    stream.write_all(&other.encode()).unwrap();
    loop {
        match heard.next(&mut stream) {
            Some(pg) if pg == other.pg => break,
            Some(pg) if pg == flooded.pg => answered += 1,
            _ => {}
        }
        // While too much waits it is not noted.
        if answered >= asked_at + 500 {
            asked_at = answered;
            stream.write_all(&other.encode()).unwrap();
        }
    }
    println!("{answered} of {count} were answered");
    assert!(answered >= 100, "what it takes it is told");
    assert!(answered <= count / 2, "{answered} answers were kept for who does not read");
    pond.stop();
}
