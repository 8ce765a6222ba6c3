//! Parses whatever a peer could send. What comes out as a message must be what its type promises, and a
//! stream must be taken in the same way however it is cut.
//!
//! Random bytes hardly ever carry the right checksum, so the first byte of the input says whether the
//! header behind it is sealed first: so the fuzzer reaches the checks of every field.

#![no_main]

use base::{BLOCK_BYTES, OBJECT_BLOCKS, OBJECT_BYTES};
use libfuzzer_sys::fuzz_target;
use wire::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX, Message, PAYLOAD_BYTES_MAX, Request, parse};
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 {
        let mut at = 0;
        while let Some(header) = bytes.get(at..).and_then(|rest| rest.get(..HEADER_BYTES)) {
            let header = Header::read_from_bytes(header).expect("a header has that size").sealed();
            bytes[at..at + HEADER_BYTES].copy_from_slice(header.as_bytes());
            at = at.saturating_add(HEADER_BYTES + header.body_bytes.get() as usize);
        }
    }
    let mut at = 0;
    loop {
        match parse(&bytes[at..]) {
            Ok(Some((message, size))) => {
                assert!((HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&size) && size <= bytes.len() - at);
                check(&message);
                // One byte less is not yet a message, and never an error.
                assert!(matches!(parse(&bytes[at..at + size - 1]), Ok(None)));
                at += size;
            }
            Ok(None) => {
                assert!(bytes.len() - at < MESSAGE_BYTES_MAX, "a whole message is never waited for");
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
});

fn check(message: &Message<'_>) {
    match message {
        Message::Read(request) => check_range(request, PAYLOAD_BYTES_MAX as u64),
        Message::Write(request, checksums, data) => {
            check_range(request, PAYLOAD_BYTES_MAX as u64);
            assert_eq!(data.len(), request.length as usize);
            assert_eq!(checksums.len(), usize::from(request.blocks().1));
        }
        Message::Zero(request) => {
            check_range(request, OBJECT_BYTES);
            assert!(request.is_aligned());
        }
        Message::Allocated(request) => check_range(request, OBJECT_BYTES),
        Message::Reply(reply) => {
            let is_bits = reply.checksums.is_empty() && reply.data.len() == OBJECT_BLOCKS / 8;
            assert!(is_bits || reply.data.len() == reply.checksums.len() * BLOCK_BYTES);
        }
        Message::ReplicateWrite(replicate, checksums, data) => {
            let count = usize::from(replicate.block_count);
            assert!(count > 0 && usize::from(replicate.first_block) + count <= OBJECT_BLOCKS);
            assert_eq!((checksums.len(), data.len()), (count, count * BLOCK_BYTES));
        }
        Message::ReplicateZero(replicate) => {
            let count = usize::from(replicate.block_count);
            assert!(count > 0 && usize::from(replicate.first_block) + count <= OBJECT_BLOCKS);
        }
        Message::Position(position) => {
            for entry in position.entries() {
                assert!(usize::from(entry.first_block) + usize::from(entry.block_count) <= OBJECT_BLOCKS);
            }
        }
        Message::Refused(reason) => assert!(reason.len() <= 512),
        _ => {}
    }
}

fn check_range(request: &Request, length_max: u64) {
    let (offset, length) = (u64::from(request.offset), u64::from(request.length));
    assert!(length > 0 && length <= length_max && offset + length <= OBJECT_BYTES);
    let (first, count) = request.blocks();
    assert!(count > 0 && usize::from(first) + usize::from(count) <= OBJECT_BLOCKS);
}
