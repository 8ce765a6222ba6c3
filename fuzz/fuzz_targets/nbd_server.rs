//! Feeds an NBD connection whatever a client could send, in parts, while its requests are answered in
//! some order, with or without success. Every request must lie within its export and every bound hold.
//!
//! The input is a script: a byte that chooses what comes next, then what that needs. So the fuzzer reaches
//! both malformed messages and well-formed ones in odd orders.

#![no_main]

use doors::nbd::{
    Connection, ErrorCode, Export, Exports, Extent, Failure, Limits, Operation, ReadPart, Request, Waiting,
};
use libfuzzer_sys::fuzz_target;

const EXPORT_BYTES: u64 = 1 << 20;
const REQUESTS_MAX: u16 = 16;

/// Structured replies, the context base:allocation, and export `a`.
const HANDSHAKE: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x08\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1c\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01a\0\0";

fuzz_target!(|script: &[u8]| {
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
    let mut script = script.iter().copied();
    while let Some(step) = script.next() {
        match step % 8 {
            // The front door.
            0 => inbox.extend_from_slice(HANDSHAKE),
            // Bytes as they are.
            1 | 2 => {
                let count = usize::from(script.next().unwrap_or(0));
                inbox.extend(script.by_ref().take(count));
            }
            // A request with the right magic number and small numbers.
            3..=5 => {
                let mut next = || script.next().unwrap_or(0);
                inbox.extend_from_slice(&0x2560_9513u32.to_be_bytes());
                inbox.extend_from_slice(&[0, next() & 0x1f, 0, next() % 9]);
                inbox.extend_from_slice(&[next(); 8]);
                inbox.extend_from_slice(&[0, 0, 0, 0, 0, next() & 0x1f, next(), next()]);
                let length = [0, next() & 3, next(), next()];
                inbox.extend_from_slice(&length);
                if step & 0x80 != 0 {
                    inbox.resize(inbox.len() + u32::from_be_bytes(length) as usize, step);
                }
            }
            // An answer.
            _ if !pending.is_empty() => {
                let index = usize::from(script.next().unwrap_or(0)) % pending.len();
                let request = pending.swap_remove(index);
                answer(&mut connection, &request, step, &mut sent);
            }
            _ => {}
        }
        let before = pending.len();
        let consumed = connection.handle_bytes(&inbox, &mut pending, &mut sent);
        for request in &pending[before..] {
            check(request, consumed);
        }
        inbox.drain(..consumed);
        if let Waiting::Bytes(count) = connection.waiting() {
            assert!(inbox.len() < count && count <= 17 << 10);
        }
        assert!(connection.in_flight() <= usize::from(REQUESTS_MAX));
        sent.clear();
    }
});

fn check(request: &Request, consumed: usize) {
    let (offset, length) = match &request.operation {
        Operation::Read { offset, length } => (*offset, *length as u64),
        Operation::Write { offset, data, .. } => {
            assert!(data.end <= consumed, "data are consumed with their request");
            (*offset, data.len() as u64)
        }
        Operation::Trim { offset, length }
        | Operation::WriteZeroes { offset, length, .. }
        | Operation::Extents { offset, length, .. } => (*offset, *length),
    };
    assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= EXPORT_BYTES));
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
