//! Whatever an NBD server could say to a client, in parts, while that asks for one thing and another. What the client hands out
//! was asked for and comes once, and each request ends once.
//!
//! The input is a script: a byte that chooses what comes next, then what that needs.

use super::Script;
use super::nbd::said;
use crate::outcomes::{Outcome, Outcomes};
use base::Buffer;
use doors::nbd::protocol::{
    BlockSizeInformation, CHUNK_MAGIC, ChunkHeader, ExportInformation, ExportSize, OPTION_REPLY_MAGIC,
    OptionReplyHeader, RequestHeader, SIMPLE_REPLY_MAGIC, SimpleReply, chunk, command, information, option,
    option_reply, transmission_flag,
};
use doors::nbd::{Client, ClientError, ClientEvent};
use sim::random::Random;
use zerocopy::{FromBytes, IntoBytes};

/// The most requests that are not answered.
const REQUESTS_MAX: usize = 16;
/// The most bytes of a request.
const LENGTH_MAX: u64 = 512;
/// Room for so many bytes that wait is enough for a client.
const INBOX_BYTES: usize = 17 << 10;
/// Of a server that speaks as the client wants it.
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// What the reasons say for which a server is found to break the protocol, each in its words.
const BROKEN: [&str; 15] = [
    "is no reply to an option",
    "structured replies were answered",
    ", not asked for",
    "the size of the export has",
    "the block size has",
    "has no kind",
    "without its size",
    "the export was answered",
    "a reply began with",
    "not agreed on",
    "without a chunk",
    "which was not sent",
    "makes no sense here",
    "which were not asked for",
    "never came",
];

/// A request that was sent and not answered to its end.
struct Asked {
    token: u64,
    cookie: u64,
    reads: bool,
    offset: u64,
    length: u64,
    /// Bytes of a read that did not come yet.
    missing: u64,
}

impl Asked {
    fn came(&mut self, offset: u64, length: u64) {
        assert!(self.reads && length > 0 && length <= self.missing, "what was not read before comes once");
        assert!(offset >= self.offset && offset + length <= self.offset + self.length, "it was asked for");
        self.missing -= length;
    }
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let mut script = Script::new(input);
    let is_structured = script.byte().is_multiple_of(2);
    let mut client = Client::new("a", is_structured);
    let (mut inbox, mut sent): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    let (mut events, mut asked, mut tokens) = (Vec::new(), Vec::<Asked>::new(), 0);
    while let Some(step) = script.step() {
        match step % 8 {
            // The front door.
            0 => inbox.extend(front_door(is_structured, step & 8 == 0)),
            // Bytes as they are.
            1 | 2 => {
                let count = usize::from(script.byte());
                inbox.extend_from_slice(script.bytes(count));
            }
            3 | 4 if client.is_ready() && asked.len() < REQUESTS_MAX => {
                tokens += 1;
                asked.push(ask(&mut client, tokens, step, &mut script));
            }
            _ if !asked.is_empty() => {
                let index = usize::from(script.byte()) % asked.len();
                inbox.extend(answer(&asked[index], &mut script));
            }
            _ => {}
        }
        events.clear();
        sent.clear();
        let consumed = client.handle_bytes(&inbox, &mut events, &mut sent);
        for event in &events {
            check(event, consumed, &mut asked, seen);
        }
        inbox.drain(..consumed);
        if let Some(closed) = client.closed() {
            let (what, why) = name_of(closed);
            return seen.note(what, why);
        }
        assert!(inbox.len() < INBOX_BYTES, "it waits for no more than there is room for");
        assert_eq!(client.in_flight(), asked.len());
    }
    seen.note("open", if client.is_ready() { "ready" } else { "negotiates" });
}

/// Asks for something.
fn ask(client: &mut Client, token: u64, step: u8, script: &mut Script<'_>) -> Asked {
    let (offset, length) = (8 * script.number(), script.number() % LENGTH_MAX);
    let (length_asked, is_flagged) = (length as u32, step & 0x80 != 0);
    let mut sent = Vec::new();
    match step >> 3 & 7 {
        0..=3 => client.read(token, offset, length_asked, &mut sent),
        4 => {
            let buffer = Buffer::new(LENGTH_MAX as usize);
            client.write(token, offset, buffer, 0..length as usize, is_flagged, &mut sent);
        }
        5 => client.write_zeroes(token, offset, length_asked, is_flagged, &mut sent),
        6 => client.trim(token, offset, length_asked, &mut sent),
        _ => client.flush(token, &mut sent),
    }
    let (header, _) = RequestHeader::read_from_prefix(&sent).expect("a request begins with its header");
    let reads = header.command.get() == command::READ;
    let missing = if reads { length } else { 0 };
    Asked { token, cookie: header.cookie.get(), reads, offset, length, missing }
}

/// Takes note of what the client hands out.
fn check(event: &ClientEvent, consumed: usize, asked: &mut Vec<Asked>, seen: &mut Outcomes) {
    let place = |token: &u64| asked.iter().position(|one| one.token == *token);
    match event {
        ClientEvent::Connected(info) => {
            seen.note("connected", if info.structured { "structured" } else { "simple" });
        }
        ClientEvent::Data { token, offset, data } => {
            assert!(data.end <= consumed, "data are consumed as they are handed out");
            let at = place(token).expect("data are of what was asked for");
            asked[at].came(*offset, data.len() as u64);
            seen.note("read", "data");
        }
        ClientEvent::Hole { token, offset, length } => {
            let at = place(token).expect("zeros are of what was asked for");
            asked[at].came(*offset, *length);
            seen.note("read", "hole");
        }
        ClientEvent::Done { token, result } => {
            let at = place(token).expect("what ends was asked for");
            let ended = asked.swap_remove(at);
            assert!(result.is_err() || ended.missing == 0, "a read that works brings all");
            seen.note("ended", if result.is_ok() { "done" } else { "failed" });
        }
    }
}

fn name_of(closed: &ClientError) -> Outcome {
    match closed {
        ClientError::NotNbd(_) => ("closed", "not NBD"),
        ClientError::TooOld => ("closed", "too old"),
        ClientError::Refused { .. } => ("closed", "refused"),
        ClientError::Broken(reason) => {
            let known = BROKEN.into_iter().find(|words| reason.contains(words));
            ("broken", known.expect("these are all the reasons"))
        }
    }
}

fn reply_to_option(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        length: (data.len() as u32).into(),
    };
    [header.as_bytes(), data].concat()
}

/// What a server says until the export is given, to a client that asks for structured replies or not, and gets them or not.
fn front_door(asks: bool, agrees: bool) -> Vec<u8> {
    let export = ExportSize { bytes: (1u64 << 20).into(), flags: transmission_flag::HAS_FLAGS.into() };
    let size = ExportInformation { kind: information::EXPORT.into(), export };
    let block_size = BlockSizeInformation {
        kind: information::BLOCK_SIZE.into(),
        bytes_min: 1u32.into(),
        bytes_preferred: 4096u32.into(),
        bytes_max: (32u32 << 20).into(),
    };
    let agreed = if agrees { option_reply::ACK } else { option_reply::ERR_UNSUP };
    let asked = if asks { reply_to_option(option::STRUCTURED_REPLY, agreed, &[]) } else { Vec::new() };
    let given = [
        reply_to_option(option::GO, option_reply::INFO, size.as_bytes()),
        reply_to_option(option::GO, option_reply::INFO, block_size.as_bytes()),
        reply_to_option(option::GO, option_reply::ACK, &[]),
    ];
    [GREETING, &asked, &given.concat()].concat()
}

/// What a server could answer, or nearly.
fn answer(asked: &Asked, script: &mut Script<'_>) -> Vec<u8> {
    let (how, detail) = (script.byte(), script.byte());
    // Seldom one of a request that nobody sent.
    let cookie = if how >= 0xf0 { asked.cookie ^ 1 << (detail % 64) } else { asked.cookie };
    let begin = asked.offset + asked.length - asked.missing;
    let (offset, length) = match detail % 4 {
        0 | 1 => (begin, asked.missing),
        2 => (begin, asked.missing / 2),
        _ => (begin + script.number() % 16, script.number() % LENGTH_MAX),
    };
    let simple = |error: u32, data: &[u8]| {
        let reply =
            SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
        [reply.as_bytes(), data].concat()
    };
    let in_chunk = |kind: u16, payload: &[u8]| {
        let header = ChunkHeader {
            magic: CHUNK_MAGIC.into(),
            flags: u16::from(how & 8 != 0).into(),
            kind: kind.into(),
            cookie: cookie.into(),
            length: (payload.len() as u32).into(),
        };
        [header.as_bytes(), payload].concat()
    };
    match how % 8 {
        0 if asked.reads => simple(0, &vec![detail; asked.length as usize]),
        0 => simple(0, &[]),
        1 => simple(1 + u32::from(detail), &[]),
        2 | 3 => {
            let data = vec![detail; length as usize];
            in_chunk(chunk::OFFSET_DATA, &[&offset.to_be_bytes()[..], &data].concat())
        }
        4 => {
            let length = length as u32;
            in_chunk(chunk::OFFSET_HOLE, &[&offset.to_be_bytes()[..], &length.to_be_bytes()].concat())
        }
        5 => in_chunk(chunk::NONE, &[]),
        6 => {
            let message = script.bytes(usize::from(detail % 16));
            let code = u32::from(detail).to_be_bytes();
            let front = [&code[..], &(message.len() as u16).to_be_bytes(), message].concat();
            match detail & 0x80 {
                0 => in_chunk(chunk::ERROR, &front),
                _ => in_chunk(chunk::ERROR_OFFSET, &[&front[..], &offset.to_be_bytes()].concat()),
            }
        }
        _ => in_chunk(script.number() as u16, script.bytes(usize::from(detail % 32))),
    }
}

/// A server that says this to a client that asks for structured replies or not.
fn of_server(is_structured: bool, bytes: &[u8]) -> Vec<u8> {
    [vec![u8::from(!is_structured)], said(bytes)].concat()
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let mut examples = vec![
        of_server(true, b"SSH-2.0-OpenSSH_9.9p1\r\n"),
        of_server(true, b"NBDMAGICIHAVEOPT\0\x02"),
        of_server(true, &front_door(true, true)),
        of_server(true, &front_door(true, false)),
        of_server(false, &front_door(false, false)),
    ];
    // A refusal, and what makes no sense.
    let replies: [(u32, &[u8]); 6] = [
        (option_reply::ERR_UNKNOWN, b"no such export"),
        (option_reply::ACK, b""),
        (option_reply::SERVER, b""),
        (option_reply::INFO, b"\0"),
        (option_reply::INFO, b"\0\0size"),
        (option_reply::INFO, b"\0\x03size"),
    ];
    for (kind, data) in replies {
        let reply = reply_to_option(option::GO, kind, data);
        examples.push(of_server(false, &[GREETING, &reply].concat()));
    }
    let oddly = reply_to_option(option::STRUCTURED_REPLY, option_reply::INFO, b"");
    let unasked = reply_to_option(option::LIST, option_reply::ACK, b"");
    examples.extend([oddly, unasked].map(|reply| of_server(true, &[GREETING, &reply].concat())));
    // Requests and answers in any order.
    let mut random = Random::new(1);
    for number in 0..24u8 {
        let steps = (0..20 + 4 * number).map(|_| random.next_u64() as u8);
        // Every fourth is refused structured replies.
        let door = if number % 8 < 2 { 8 } else { 0 };
        examples.push([number % 2, door].into_iter().chain(steps).collect());
    }
    examples
}

pub(super) fn expected() -> Vec<Outcome> {
    let connected = ["structured", "simple"].map(|how| ("connected", how));
    let read = ["data", "hole"].map(|what| ("read", what));
    let ended = ["done", "failed"].map(|how| ("ended", how));
    let closed = ["not NBD", "too old", "refused"].map(|why| ("closed", why));
    let open = ["negotiates", "ready"].map(|how| ("open", how));
    let broken = BROKEN.map(|words| ("broken", words));
    connected.into_iter().chain(read).chain(ended).chain(closed).chain(open).chain(broken).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_answered_in_chunks_or_in_one_go() {
        // A read of 100 bytes; then its first half, its second, as the last chunk; or all of it.
        let read = [3, 0, 0, 100, 0];
        let in_chunks = [&[0, 0][..], &read, &[5, 0, 2, 2], &[5, 0, 2 | 8, 0]].concat();
        let at_once = [&[1, 0][..], &read, &[5, 0, 0, 0]].concat();
        for (input, how, times) in [(in_chunks, "structured", 2), (at_once, "simple", 1)] {
            let seen = Outcomes::of(run, &input);
            assert_eq!(seen.times(("connected", how)), 1, "{seen}");
            assert_eq!((seen.times(("read", "data")), seen.times(("ended", "done"))), (times, 1), "{seen}");
            assert_eq!(seen.times(("open", "ready")), 1, "{seen}");
        }
    }
}
