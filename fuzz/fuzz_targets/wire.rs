//! Parses whatever a peer could send. What comes out as a message must be what its type promises, and a
//! stream must be taken in the same way however it is cut.
//!
//! Random bytes hardly ever carry the right checksum, so the first byte of the input says whether the
//! header behind it is sealed first: so the fuzzer reaches the checks of every field.

#![no_main]

use base::{BLOCK_BYTES, OBJECT_BLOCKS, OBJECT_BYTES};
use libfuzzer_sys::fuzz_target;
use wire::{
    HEADER_BYTES, MESSAGE_BYTES_MAX, Message, PAYLOAD_BYTES_MAX, Replicate, Request, VERSIONS, parse, seal,
};

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & 1 != 0 {
        let mut at = 0;
        while let Some(header) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            seal(header);
            let body_bytes = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
            at = at.saturating_add(HEADER_BYTES + body_bytes as usize);
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
        Message::Write(write) => {
            check_range(&write.head, PAYLOAD_BYTES_MAX as u64);
            assert_eq!(write.data.len(), write.head.length as usize);
            assert_eq!(write.checksums.len(), usize::from(write.head.blocks().1));
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
        Message::ReplicateWrite(write) => {
            let count = check_blocks(&write.head);
            assert_eq!((write.checksums.len(), write.data.len()), (count, count * BLOCK_BYTES));
        }
        Message::ReplicateZero(replicate) => {
            check_blocks(replicate);
        }
        Message::Position(position) => {
            for entry in position.entries() {
                assert!(usize::from(entry.first_block) + usize::from(entry.block_count) <= OBJECT_BLOCKS);
            }
        }
        Message::Hello(hello) => assert!(VERSIONS.contains(hello.version())),
        Message::Refused(refused) => assert!(refused.reason.len() <= 512),
        _ => {}
    }
}

/// Answers how many blocks.
fn check_blocks(replicate: &Replicate) -> usize {
    let count = usize::from(replicate.range.block_count);
    assert!(count > 0 && usize::from(replicate.range.first_block) + count <= OBJECT_BLOCKS);
    count
}

fn check_range(request: &Request, length_max: u64) {
    let (offset, length) = (u64::from(request.offset), u64::from(request.length));
    assert!(length > 0 && length <= length_max && offset + length <= OBJECT_BYTES);
    let (first, count) = request.blocks();
    assert!(count > 0 && usize::from(first) + usize::from(count) <= OBJECT_BLOCKS);
}
