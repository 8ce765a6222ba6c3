//! Tests of whole connections, and what they share: a server with its inbox, a volume in memory, and the
//! bytes of a client written by hand.

mod client;
mod commands;
mod extended;
mod handshake;
mod hostile;
mod limits;
mod loopback;
mod streams;
mod terms;

use super::*;
use proptest::prelude::*;
use protocol::{
    ALLOCATION_CONTEXT, EXTENDED_CHUNK_MAGIC, EXTENDED_REQUEST_MAGIC, Framing, REQUEST_MAGIC, command,
    command_flag as flag, option,
};

/// Bytes of the exports named `demo` and `frozen`, of which the second is read-only.
pub const EXPORT_BYTES: u64 = 64 << 20;

/// Small pieces, so that short requests have several.
pub fn small_pieces() -> Limits {
    Limits { read_piece_bytes: 4096, write_piece_bytes: 4096, ..Limits::default() }
}

pub fn exports() -> Exports {
    Exports::new(vec![
        Export::new("demo", "a volume to try", EXPORT_BYTES, false),
        Export::new("frozen", "", EXPORT_BYTES, true),
    ])
    .unwrap()
}

/// A request with a copy of its data, if it is a write.
pub type Work = (Request, Vec<u8>);

/// The server's side of a connection, and what its owner keeps.
pub struct Server {
    pub connection: Connection,
    pub inbox: Vec<u8>,
    pub work: Vec<Work>,
    pub sent: Vec<u8>,
}

impl Server {
    /// Just connected; the greeting is sent.
    pub fn new(limits: Limits) -> Server {
        let mut sent = Vec::new();
        let connection = Connection::new(exports(), limits, &mut sent);
        Server { connection, inbox: Vec::new(), work: Vec::new(), sent }
    }

    /// After a handshake, with nothing left to send.
    pub fn ready(limits: Limits, export: &str, framing: Framing) -> Server {
        let mut server = Server::new(limits);
        server.feed(&handshake_to(export, framing));
        assert!(server.connection.export().is_some(), "{:?}", server.connection.closed());
        server.sent.clear();
        server
    }

    /// Hands `bytes` in behind those not yet consumed.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        let mut requests = Vec::new();
        let consumed = self.connection.handle_bytes(&self.inbox, &mut requests, &mut self.sent);
        for request in requests {
            let data = match &request.operation {
                Operation::Write { data, .. } => self.inbox[data.clone()].to_vec(),
                _ => Vec::new(),
            };
            self.work.push((request, data));
        }
        self.inbox.drain(..consumed);
        if let Waiting::Bytes(count) = self.connection.waiting() {
            assert!(self.inbox.len() < count, "it waits for what is already there");
        }
    }

    /// Hands `bytes` in and does what is asked, until nothing more comes of it.
    pub fn serve(&mut self, bytes: &[u8], volume: &mut Volume) {
        self.feed(bytes);
        while !self.work.is_empty() {
            for work in std::mem::take(&mut self.work) {
                volume.perform(&mut self.connection, work, &mut self.sent);
            }
            self.feed(&[]);
        }
    }

    /// What was sent since the last call.
    pub fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }
}

/// A volume in memory.
pub struct Volume {
    pub bytes: Vec<u8>,
}

impl Volume {
    /// The whole of an export.
    pub fn new() -> Volume {
        Volume::of(EXPORT_BYTES)
    }

    /// Only the start of one, quickly made.
    pub fn of(bytes: u64) -> Volume {
        Volume { bytes: (0..bytes).map(|at| (at / 512 + at) as u8).collect() }
    }

    /// Does one piece of work and completes it.
    pub fn perform(&mut self, connection: &mut Connection, (request, data): Work, output: &mut Vec<u8>) {
        let id = request.id;
        match request.operation {
            Operation::Read { offset, length } => {
                let found = &self.bytes[offset as usize..][..length];
                if found.iter().all(|byte| *byte == 0) {
                    connection.complete_hole(id, output);
                } else {
                    // In two parts, the first without a copy.
                    let (first, second) = found.split_at(length / 2);
                    let mut buffer = Buffer::new(first.len());
                    buffer.bytes_mut().unwrap()[..first.len()].copy_from_slice(first);
                    let parts = [ReadPart::Shared(buffer, 0..first.len()), ReadPart::Bytes(second)];
                    connection.complete_read(id, parts, output);
                }
            }
            Operation::Write { offset, data: range, .. } => {
                assert_eq!(range.len(), data.len());
                self.bytes[offset as usize..][..data.len()].copy_from_slice(&data);
                connection.complete(id, output);
            }
            Operation::Trim { offset, length } | Operation::WriteZeroes { offset, length, .. } => {
                assert_eq!(offset / base::OBJECT_BYTES, (offset + length - 1) / base::OBJECT_BYTES);
                self.bytes[offset as usize..][..length as usize].fill(0);
                connection.complete(id, output);
            }
            Operation::Extents { offset, length, .. } => {
                let range = &self.bytes[offset as usize..][..length as usize];
                let extents = range.chunks(512).map(|sector| {
                    let zero = sector.iter().all(|byte| *byte == 0);
                    Extent { length: sector.len() as u64, hole: zero, zero }
                });
                connection.complete_extents(id, extents, output);
            }
        }
    }
}

/// The client's flags and an option after the other.
pub fn flags_and(options: &[&[u8]]) -> Vec<u8> {
    [&3u32.to_be_bytes()[..], &options.concat()].concat()
}

pub fn option_bytes(code: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &code.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A string behind its length.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// Data of `INFO` and `GO`.
pub fn info_data(export: &str, kinds: &[u16]) -> Vec<u8> {
    let kinds_bytes: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_be_bytes()).collect();
    [string(export), (kinds.len() as u16).to_be_bytes().to_vec(), kinds_bytes].concat()
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn context_data(export: &str, queries: &[&str]) -> Vec<u8> {
    let texts: Vec<u8> = queries.iter().flat_map(|query| string(query)).collect();
    [string(export), (queries.len() as u32).to_be_bytes().to_vec(), texts].concat()
}

/// Everything a client sends until it can read and write.
pub fn handshake_to(export: &str, framing: Framing) -> Vec<u8> {
    let go = option_bytes(option::GO, &info_data(export, &[]));
    let ask = match framing {
        Framing::Simple => return flags_and(&[&go]),
        Framing::Structured => option::STRUCTURED_REPLY,
        Framing::Extended => option::EXTENDED_HEADERS,
    };
    let ask = option_bytes(ask, &[]);
    let contexts = context_data(export, &[ALLOCATION_CONTEXT]);
    flags_and(&[&ask, &option_bytes(option::SET_META_CONTEXT, &contexts), &go])
}

/// A request as a client sends it, without payload.
pub fn request(code: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    header(REQUEST_MAGIC, code, flags, cookie, offset, &length.to_be_bytes())
}

/// The same as it is sent where that framing was agreed on.
pub fn request_in(framing: Framing, code: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    if framing != Framing::Extended {
        return request(code, flags, cookie, offset, length as u32);
    }
    header(EXTENDED_REQUEST_MAGIC, code, flags, cookie, offset, &length.to_be_bytes())
}

fn header(magic: u32, code: u16, flags: u16, cookie: u64, offset: u64, length: &[u8]) -> Vec<u8> {
    let (flags, code) = (flags.to_be_bytes(), code.to_be_bytes());
    [&magic.to_be_bytes()[..], &flags, &code, &cookie.to_be_bytes(), &offset.to_be_bytes(), length].concat()
}

/// A chunk as it should be where extended headers were agreed on, of a request at `offset`.
pub fn extended_chunk(done: bool, kind: u16, cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    [
        &EXTENDED_CHUNK_MAGIC.to_be_bytes()[..],
        &u16::from(done).to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &(payload.len() as u64).to_be_bytes(),
        payload,
    ]
    .concat()
}

/// Any framing.
pub fn framings() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Simple), Just(Framing::Structured), Just(Framing::Extended)]
}

pub fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [request(command::WRITE, 0, cookie, offset, data.len() as u32), data.to_vec()].concat()
}

/// A simple reply as it should be.
pub fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// A chunk as it should be.
pub fn chunk_bytes(done: bool, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    [
        &0x668e_33efu32.to_be_bytes()[..],
        &u16::from(done).to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &(payload.len() as u32).to_be_bytes(),
        payload,
    ]
    .concat()
}

/// A data chunk as it should be.
pub fn data_chunk(done: bool, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    chunk_bytes(done, protocol::chunk::OFFSET_DATA, cookie, &[&offset.to_be_bytes()[..], data].concat())
}

/// The error number, message and trailing offset of one error chunk that is the last of its reply.
pub fn parse_error(bytes: &[u8]) -> (u32, String, Option<u64>) {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let short = |at: usize| u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap());
    assert_eq!((word(0), short(4)), (0x668e_33ef, 1));
    let (kind, length, message) = (short(6), word(16) as usize, usize::from(short(24)));
    let text = String::from_utf8(bytes[26..26 + message].to_vec()).unwrap();
    let rest = &bytes[26 + message..];
    assert_eq!(bytes.len(), 20 + length);
    match kind {
        protocol::chunk::ERROR => assert!(rest.is_empty()),
        protocol::chunk::ERROR_OFFSET => assert_eq!(rest.len(), 8),
        _ => panic!("a chunk of kind {kind:#x} is no error"),
    }
    (word(20), text, rest.try_into().ok().map(u64::from_be_bytes))
}

/// A plain read.
pub fn read(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    request(command::READ, 0, cookie, offset, length)
}

/// An unfragmented read.
pub fn read_whole(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    request(command::READ, flag::DF, cookie, offset, length)
}
