//! Whatever an NBD client could send, in parts, while its requests are answered in some order, with or without success. Every
//! request lies within its export and every bound holds.
//!
//! The input is a script: a byte that chooses what comes next, then what that needs. So both malformed messages and
//! well-formed ones in odd orders are reached.

use super::Script;
use crate::outcomes::{Outcome, Outcomes};
use doors::nbd::{
    Closed, Connection, ErrorCode, Export, Exports, Extent, Failure, Limits, Operation, ReadPart, Request,
    Waiting,
};
use sim::random::Random;

const EXPORT_BYTES: u64 = 1 << 20;
const REQUESTS_MAX: u16 = 16;
/// The most bytes of one step.
const STEP_BYTES_MAX: usize = 255;
/// With so many bytes that wait, no more are received.
const INBOX_BYTES_MAX: usize = 64 << 10;

/// Structured replies, the context base:allocation, and export `a`.
const HANDSHAKE: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x08\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1c\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01a\0\0";
/// The same with extended headers.
const EXTENDED_HANDSHAKE: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x0b\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1c\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01a\0\0";
/// A write of 16 bytes.
const WRITE: &[u8] = b"\x25\x60\x95\x13\0\0\0\x01cookie!!\0\0\0\0\0\0\x10\0\0\0\0\x10sixteen bytes...";

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let exports = Exports::new(vec![
        Export::new("a", "the first", EXPORT_BYTES, false),
        Export::new("b", "", EXPORT_BYTES, true),
    ])
    .expect("two names");
    let limits = Limits {
        requests_in_flight_max: REQUESTS_MAX,
        bytes_in_flight_max: 64 << 10,
        read_piece_bytes: 4096,
        write_piece_bytes: 4096,
    };
    let mut sent = Vec::new();
    let mut connection = Connection::new(exports, limits, &mut sent);
    let mut inbox = Vec::new();
    let mut pending: Vec<Request> = Vec::new();
    let mut script = Script::new(input);
    let mut is_extended = false;
    while let Some(step) = script.step() {
        match step % 8 {
            0..=5 if inbox.len() >= INBOX_BYTES_MAX => {}
            // The front door.
            0 => {
                is_extended = step & 8 != 0;
                inbox.extend_from_slice(if is_extended { EXTENDED_HANDSHAKE } else { HANDSHAKE });
            }
            // Bytes as they are.
            1 | 2 => {
                let count = usize::from(script.byte());
                inbox.extend_from_slice(script.bytes(count));
            }
            // A request with the right magic number and small numbers.
            3..=5 => {
                let magic = if is_extended { 0x21e4_1c71u32 } else { 0x2560_9513 };
                inbox.extend_from_slice(&magic.to_be_bytes());
                inbox.extend_from_slice(&[0, script.byte() & 0x3f, 0, script.byte() % 9]);
                inbox.extend_from_slice(&[script.byte(); 8]);
                inbox.extend_from_slice(&[0, 0, 0, 0, 0, script.byte() & 0x1f, script.byte(), script.byte()]);
                let length = [0, script.byte() & 3, script.byte(), script.byte()];
                if is_extended {
                    inbox.extend_from_slice(&[0; 4]);
                }
                inbox.extend_from_slice(&length);
                if step & 0x80 != 0 {
                    inbox.resize(inbox.len() + u32::from_be_bytes(length) as usize, step);
                }
            }
            // An answer.
            _ if !pending.is_empty() => {
                let index = usize::from(script.byte()) % pending.len();
                let request = pending.swap_remove(index);
                answer(&mut connection, &request, step, &mut sent);
            }
            _ => {}
        }
        let before = pending.len();
        let consumed = connection.handle_bytes(&inbox, &mut pending, &mut sent);
        for request in &pending[before..] {
            seen.note("request", check(request, consumed));
        }
        inbox.drain(..consumed);
        if let Waiting::Bytes(count) = connection.waiting() {
            assert!(inbox.len() < count && count <= 17 << 10);
        }
        assert!(connection.in_flight() <= usize::from(REQUESTS_MAX));
        sent.clear();
        if let Some(closed) = connection.closed() {
            assert!(!closed.to_string().is_empty());
            return seen.note("closed", name_of(closed));
        }
    }
    seen.note("open", if connection.is_negotiating() { "negotiates" } else { "serves" });
}

/// Answers what it asks for.
fn check(request: &Request, consumed: usize) -> &'static str {
    let (name, offset, length) = match &request.operation {
        Operation::Read { offset, length } => ("read", *offset, *length as u64),
        Operation::Write { offset, data, .. } => {
            assert!(data.end <= consumed, "data are consumed with their request");
            ("write", *offset, data.len() as u64)
        }
        Operation::Trim { offset, length } => ("trim", *offset, *length),
        Operation::WriteZeroes { offset, length, .. } => ("zeroes", *offset, *length),
        Operation::Extents { offset, length, .. } => ("extents", *offset, *length),
    };
    assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= EXPORT_BYTES));
    name
}

fn answer(connection: &mut Connection, request: &Request, choice: u8, sent: &mut Vec<u8>) {
    if choice & 0x40 != 0 {
        let offset = (choice & 0x20 != 0).then_some(u64::from(choice));
        let failure = Failure { code: ErrorCode::Io, offset, message: "a reason".into() };
        return connection.fail(request.id, failure, sent);
    }
    match &request.operation {
        Operation::Read { length, .. } if choice & 0x20 != 0 => {
            connection.complete_read(request.id, [ReadPart::Zeros(*length)], sent);
        }
        Operation::Read { .. } => connection.complete_hole(request.id, sent),
        Operation::Extents { .. } => {
            let extent = Extent { length: u64::from(choice), hole: true, zero: true };
            connection.complete_extents(request.id, [extent], sent);
        }
        _ => connection.complete(request.id, sent),
    }
}

fn name_of(closed: &Closed) -> &'static str {
    match closed {
        Closed::Disconnected => "disconnected",
        Closed::Aborted => "aborted",
        Closed::ShuttingDown => "shutting down",
        Closed::ClientFlags(_) => "client flags",
        Closed::OptionMagic(_) => "option magic",
        Closed::OptionLength { .. } => "option length",
        Closed::TooManyOptions(_) => "too many options",
        Closed::ExportUnknown(_) => "unknown export",
        Closed::OldWay => "old way",
        Closed::RequestMagic(_) => "request magic",
        Closed::PayloadLength(_) => "payload length",
    }
}

/// The steps that say these bytes.
pub(super) fn said(bytes: &[u8]) -> Vec<u8> {
    let steps = bytes.chunks(STEP_BYTES_MAX).map(|chunk| [&[1, chunk.len() as u8][..], chunk].concat());
    steps.collect::<Vec<_>>().concat()
}

/// An option.
fn option_of(option: u8, data: &[u8]) -> Vec<u8> {
    [&b"IHAVEOPT\0\0\0"[..], &[option], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The flags, and an option.
fn haggled(option: u8, data: &[u8]) -> Vec<u8> {
    said(&[&b"\0\0\0\x03"[..], &option_of(option, data)].concat())
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let mut examples = vec![said(HANDSHAKE), [&[0][..], &said(WRITE)].concat()];
    // All that can be haggled over, about an export that there is.
    for option in [2, 3, 5, 8, 11] {
        examples.push(haggled(option, b""));
    }
    examples.extend([b"a", b"x"].map(|name| haggled(1, name)));
    examples.extend([6, 7].map(|option| haggled(option, b"\0\0\0\x01a\0\0")));
    examples.extend([9, 10].map(|option| haggled(option, b"\0\0\0\x01a\0\0\0\0")));
    let old = [&option_of(11, b"")[..], &option_of(1, b"a")].concat();
    examples.push(said(&[&b"\0\0\0\x03"[..], &old].concat()));
    // Requests and answers in any order.
    let mut random = Random::new(1);
    for door in [0, 8].repeat(8) {
        let steps = (0..120).map(|_| random.next_u64() as u8);
        examples.push([door].into_iter().chain(steps).collect());
    }
    examples
}

pub(super) fn expected() -> Vec<Outcome> {
    let requests = ["read", "write", "trim", "zeroes", "extents"].map(|name| ("request", name));
    let closed = [
        "disconnected",
        "aborted",
        "client flags",
        "option magic",
        "option length",
        "unknown export",
        "old way",
        "request magic",
        "payload length",
    ];
    let open = ["negotiates", "serves"].map(|name| ("open", name));
    requests.into_iter().chain(closed.map(|name| ("closed", name))).chain(open).collect()
}
