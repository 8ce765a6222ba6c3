//! Whatever an NBD server could say to a client, in parts, while that asks for one thing and another. What the client hands out
//! was asked for and comes once, and each request ends once. A read that works brought every byte, and while the server said
//! nothing but what its export holds, it brought that.
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
use doors::nbd::{Client, ClientError, ClientEvent, Framing};
use sim::random::Random;
use std::ops::Range;
use std::sync::LazyLock;
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
const BROKEN: [&str; 17] = [
    "is no reply to an option",
    "a framing was answered",
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
    "some came twice",
    "with gaps between them",
    "never came",
];

/// What a server says until the export is given: to a client that does not ask for structured replies, and to one that does;
/// both without agreeing, and agreeing.
static DOORS: LazyLock<[[Vec<u8>; 2]; 2]> =
    LazyLock::new(|| [false, true].map(|asks| [false, true].map(|agrees| front_door(asks, agrees))));

thread_local! {
    /// What is written: it is sent, and nothing else.
    static WRITTEN: Buffer = Buffer::new(LENGTH_MAX as usize);
}

/// What the export holds there. Nothing in it is a zero.
fn held(range: Range<u64>) -> impl Iterator<Item = u8> {
    range.map(|offset| (offset % 251) as u8 + 1)
}

/// A request that was sent and not answered to its end.
struct Asked {
    token: u64,
    cookie: u64,
    reads: bool,
    offset: u64,
    length: u64,
    /// Bytes of a read that did not come yet.
    missing: u64,
    /// What came of a read.
    brought: Vec<Option<u8>>,
}

impl Asked {
    fn came(&mut self, offset: u64, bytes: impl ExactSizeIterator<Item = u8>) {
        let length = bytes.len() as u64;
        assert!(self.reads && length > 0, "something of a read comes");
        assert!(offset >= self.offset && offset + length <= self.offset + self.length, "it was asked for");
        for (place, byte) in self.brought[(offset - self.offset) as usize..].iter_mut().zip(bytes) {
            assert!(place.replace(byte).is_none(), "what was not read before comes once");
        }
        self.missing -= length;
    }

    /// It is said to have worked, by a server that said what the export holds and nothing else, or that cannot be told of.
    fn worked(&self, is_told: bool, seen: &mut Outcomes) {
        for (place, held) in self.brought.iter().zip(held(self.offset..self.offset + self.length)) {
            let byte = place.expect("a read that works brings all");
            assert!(!is_told || byte == 0 || byte == held, "a read brings what the server said");
        }
        if is_told && !self.brought.is_empty() {
            seen.note("brought", if self.brought.contains(&Some(0)) { "zeros" } else { "data" });
        }
    }
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let mut script = Script::new(input);
    let is_structured = script.byte().is_multiple_of(2);
    let wanted = if is_structured { Framing::Structured } else { Framing::Simple };
    let mut client = Client::new("a", wanted);
    let (mut inbox, mut sent): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    let (mut events, mut asked, mut tokens) = (Vec::new(), Vec::<Asked>::new(), 0);
    let mut is_told = true;
    while let Some(step) = script.step() {
        match step % 8 {
            // The front door.
            0 => inbox.extend_from_slice(&DOORS[usize::from(is_structured)][usize::from(step & 8 == 0)]),
            // Bytes as they are.
            1 | 2 => {
                let count = usize::from(script.byte());
                inbox.extend_from_slice(script.bytes(count));
                is_told = false;
            }
            3 | 4 if client.is_ready() && asked.len() < REQUESTS_MAX => {
                tokens += 1;
                asked.push(ask(&mut client, tokens, step, &mut script, &mut sent));
            }
            _ if !asked.is_empty() => {
                let index = usize::from(script.byte()) % asked.len();
                is_told &= answer(&asked[index], &mut script, &mut inbox);
            }
            _ => {}
        }
        events.clear();
        sent.clear();
        let consumed = client.handle_bytes(&inbox, &mut events, &mut sent);
        for event in &events {
            check(event, &inbox[..consumed], &mut asked, is_told, seen);
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
fn ask(client: &mut Client, token: u64, step: u8, script: &mut Script<'_>, sent: &mut Vec<u8>) -> Asked {
    let (offset, length) = (8 * script.number(), script.number() % LENGTH_MAX);
    let (length_asked, is_flagged) = (length as u32, step & 0x80 != 0);
    sent.clear();
    match step >> 3 & 7 {
        0..=3 => client.read(token, offset, length_asked, sent),
        4 => {
            let buffer = WRITTEN.with(Buffer::clone);
            client.write(token, offset, buffer, 0..length as usize, is_flagged, sent);
        }
        5 => client.write_zeroes(token, offset, length, is_flagged, sent),
        6 => client.trim(token, offset, length, sent),
        _ => client.flush(token, sent),
    }
    let (header, _) = RequestHeader::read_from_prefix(sent).expect("a request begins with its header");
    let reads = header.command.get() == command::READ;
    let missing = if reads { length } else { 0 };
    let brought = vec![None; missing as usize];
    Asked { token, cookie: header.cookie.get(), reads, offset, length, missing, brought }
}

/// Takes note of what the client hands out of the bytes that it consumed.
fn check(event: &ClientEvent, consumed: &[u8], asked: &mut Vec<Asked>, is_told: bool, seen: &mut Outcomes) {
    let place = |token: &u64| asked.iter().position(|one| one.token == *token);
    match event {
        ClientEvent::Connected(info) => {
            seen.note("connected", if info.framing == Framing::Structured { "structured" } else { "simple" });
        }
        ClientEvent::Data { token, offset, data } => {
            let bytes = consumed.get(data.clone()).expect("data are consumed as they are handed out");
            let at = place(token).expect("data are of what was asked for");
            asked[at].came(*offset, bytes.iter().copied());
            seen.note("read", "data");
        }
        ClientEvent::Hole { token, offset, length } => {
            let at = place(token).expect("zeros are of what was asked for");
            asked[at].came(*offset, std::iter::repeat_n(0, *length as usize));
            seen.note("read", "hole");
        }
        ClientEvent::Done { token, result } => {
            let at = place(token).expect("what ends was asked for");
            let ended = asked.swap_remove(at);
            if result.is_ok() {
                ended.worked(is_told, seen);
            }
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

/// Has a server say what it could answer, or nearly. False if that may be something else than what its export holds.
fn answer(asked: &Asked, script: &mut Script<'_>, said: &mut Vec<u8>) -> bool {
    let (how, detail) = (script.byte(), script.byte());
    // Seldom one of a request that nobody sent.
    let cookie = if how >= 0xf0 { asked.cookie ^ 1 << (detail % 64) } else { asked.cookie };
    let begin = asked.offset + asked.length - asked.missing;
    let (offset, length) = match detail % 4 {
        0 | 1 => (begin, asked.missing),
        2 => (begin, asked.missing / 2),
        _ => (begin + script.number() % 16, script.number() % LENGTH_MAX),
    };
    let simple = |said: &mut Vec<u8>, error: u32| {
        let reply =
            SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
        said.extend_from_slice(reply.as_bytes());
    };
    let in_chunk = |said: &mut Vec<u8>, kind: u16, parts: &[&[u8]]| {
        push_chunk(said, how & 8 != 0, kind, cookie, parts);
    };
    match how % 8 {
        0 => {
            simple(said, 0);
            if asked.reads {
                said.extend(held(asked.offset..asked.offset + asked.length));
            }
        }
        1 => simple(said, 1 + u32::from(detail)),
        2 | 3 => {
            let mut data = [0; LENGTH_MAX as usize];
            data.iter_mut().zip(held(offset..offset + length)).for_each(|(place, byte)| *place = byte);
            in_chunk(said, chunk::OFFSET_DATA, &[&offset.to_be_bytes(), &data[..length as usize]]);
        }
        4 => {
            let length = length as u32;
            in_chunk(said, chunk::OFFSET_HOLE, &[&offset.to_be_bytes(), &length.to_be_bytes()]);
        }
        5 => in_chunk(said, chunk::NONE, &[]),
        6 => {
            let message = script.bytes(usize::from(detail % 16));
            let (code, bytes) = (u32::from(detail).to_be_bytes(), (message.len() as u16).to_be_bytes());
            match detail & 0x80 {
                0 => in_chunk(said, chunk::ERROR, &[&code, &bytes, message]),
                _ => {
                    let offset = offset.to_be_bytes();
                    in_chunk(said, chunk::ERROR_OFFSET, &[&code, &bytes, message, &offset]);
                }
            }
        }
        _ => {
            let (kind, payload) = (script.number() as u16, script.bytes(usize::from(detail % 32)));
            in_chunk(said, kind, &[payload]);
            return false;
        }
    }
    how < 0xf0
}

/// A chunk, which is the last of its reply or not.
fn push_chunk(said: &mut Vec<u8>, is_last: bool, kind: u16, cookie: u64, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header = ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: u16::from(is_last).into(),
        kind: kind.into(),
        cookie: cookie.into(),
        length: (length as u32).into(),
    };
    said.extend_from_slice(header.as_bytes());
    parts.iter().for_each(|part| said.extend_from_slice(part));
}

/// A server that says this to a client that asks for structured replies or not.
fn of_server(is_structured: bool, bytes: &[u8]) -> Vec<u8> {
    [vec![u8::from(!is_structured)], said(bytes)].concat()
}

/// A read of 100 bytes; then its first half, its second, as the last chunk.
const READ_IN_CHUNKS: &[u8] = &[0, 0, 3, 0, 0, 100, 0, 5, 0, 2, 2, 5, 0, 2 | 8, 0];
/// The same, answered by all of it.
const READ_AT_ONCE: &[u8] = &[1, 0, 3, 0, 0, 100, 0, 5, 0, 0, 0];
/// The same, answered by its first half, and a hole.
const READ_WITH_A_HOLE: &[u8] = &[0, 0, 3, 0, 0, 100, 0, 5, 0, 2, 2, 5, 0, 4 | 8, 0];

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
    examples.extend([READ_IN_CHUNKS, READ_AT_ONCE, READ_WITH_A_HOLE].map(<[u8]>::to_vec));
    // Every other byte of a read.
    let mut parts = Vec::new();
    for number in 0..40u64 {
        push_chunk(&mut parts, false, chunk::OFFSET_DATA, 1 << 32, &[&(2 * number).to_be_bytes(), &[7]]);
    }
    examples.push([&[0, 0][..], &[3, 0, 0, 200, 0], &said(&parts)].concat());
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
    let brought = ["data", "zeros"].map(|what| ("brought", what));
    let ended = ["done", "failed"].map(|how| ("ended", how));
    let closed = ["not NBD", "too old", "refused"].map(|why| ("closed", why));
    let open = ["negotiates", "ready"].map(|how| ("open", how));
    let broken = BROKEN.map(|words| ("broken", words));
    let served = connected.into_iter().chain(read).chain(brought).chain(ended);
    served.chain(closed).chain(open).chain(broken).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_answered_in_chunks_or_in_one_go() {
        for (input, how, chunks, brought) in [
            (READ_IN_CHUNKS, "structured", 2, "data"),
            (READ_AT_ONCE, "simple", 1, "data"),
            (READ_WITH_A_HOLE, "structured", 1, "zeros"),
        ] {
            let seen = Outcomes::of(run, input);
            assert_eq!(seen.times(("connected", how)), 1, "{seen}");
            assert_eq!((seen.times(("read", "data")), seen.times(("ended", "done"))), (chunks, 1), "{seen}");
            assert_eq!((seen.times(("open", "ready")), seen.times(("brought", brought))), (1, 1), "{seen}");
        }
    }
}
