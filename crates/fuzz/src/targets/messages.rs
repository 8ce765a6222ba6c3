//! Whatever a peer could send. What comes out as a message is what its type promises, and a message is no other for what
//! comes behind it.

use super::{SEALED, leaked_name};
use crate::outcomes::{Outcome, Outcomes};
use base::{
    BLOCK_BYTES, ClientId, Epoch, Generation, LayerId, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, OsdId, PgId,
    PoolId, Sequence,
};
use sim::random::Random;
use std::sync::LazyLock;
use wire::hostile::{Forger, InUse};
use wire::{
    CHANGED_BYTES, HEADER_BYTES, Kind, MESSAGE_BYTES_MAX, Message, PAYLOAD_BYTES_MAX, Replicate, Request,
    VERSIONS, WireError, parse, seal,
};

/// Where the kind stands in a header.
const KIND: usize = 4;
/// Messages of each kind among the examples.
const EXAMPLES_EACH: usize = 3;
/// The most bytes of an example.
const EXAMPLE_BYTES_MAX: usize = 20 << 10;

/// The names of all kinds, by their numbers.
static NAMES: LazyLock<[&str; 256]> = LazyLock::new(|| {
    let mut names = ["none"; 256];
    for kind in Kind::ALL {
        names[usize::from(*kind as u8)] = leaked_name(kind);
    }
    names
});

/// The name of a kind.
pub(super) fn name_of(kind: Kind) -> &'static str {
    NAMES[usize::from(kind as u8)]
}

/// The name of the kind of the message that `bytes` begin with.
pub(super) fn name_of_message(bytes: &[u8]) -> &'static str {
    NAMES[usize::from(bytes[KIND])]
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if choice & SEALED != 0 {
        seal_all(&mut bytes);
    }
    let mut at = 0;
    loop {
        match parse(&bytes[at..]) {
            Ok(Some((message, size))) => {
                assert!((HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&size) && size <= bytes.len() - at);
                check(&message);
                // One byte less is not yet a message, and never an error.
                assert!(matches!(parse(&bytes[at..at + size - 1]), Ok(None)));
                // And alone it is the same.
                assert_eq!(parse(&bytes[at..at + size]), Ok(Some((message, size))));
                seen.note("message", name_of_message(&bytes[at..]));
                at += size;
            }
            Ok(None) => {
                assert!(bytes.len() - at < MESSAGE_BYTES_MAX, "a whole message is never waited for");
                return seen.note("cut off", "");
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let (what, why) = name_of_error(&error);
                return seen.note(what, why);
            }
        }
    }
}

/// Gives all headers their checksums, one behind the body of the other.
fn seal_all(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        seal(header);
        let body_bytes = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        at = at.saturating_add(HEADER_BYTES + body_bytes as usize);
    }
}

/// Why bytes are refused.
pub(super) fn name_of_error(error: &WireError) -> Outcome {
    match error {
        WireError::HeaderChecksum => ("refused", "checksum"),
        WireError::NotMillpond => ("refused", "greeting"),
        WireError::Version { .. } => ("refused", "version"),
        WireError::Kind(_) => ("refused", "kind"),
        WireError::Reserved(_) => ("refused", "reserved"),
        WireError::Field { field, .. } => ("impossible", *field),
    }
}

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
            let bits = [OBJECT_BLOCKS / 8, CHANGED_BYTES];
            let has_no_blocks = reply.head.is_space || bits.contains(&reply.data.len());
            let block_count = if has_no_blocks { 0 } else { reply.data.len() / BLOCK_BYTES };
            assert_eq!(reply.checksums.len(), block_count);
            assert!(has_no_blocks || reply.data.len().is_multiple_of(BLOCK_BYTES));
        }
        Message::ReplicateWrite(write) => {
            let count = check_blocks(&write.head);
            assert_eq!((write.checksums.len(), write.data.len()), (count, count * BLOCK_BYTES));
        }
        Message::ReplicateZero(replicate) | Message::ReplicateHole(replicate) => {
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

/// Messages of each kind, and some of them one behind the other.
pub(super) fn examples() -> Vec<Vec<u8>> {
    let pg = PgId { pool: PoolId(1), index: 5 };
    let in_use = InUse {
        keys: vec![ObjectKey { pg, layer: LayerId(2), object: 3 }],
        epochs: vec![Epoch(4)],
        generations: vec![Generation(6)],
        sequences: vec![Sequence(70)],
        origins: vec![8],
        requests: vec![9],
        clients: vec![ClientId(10)],
        osds: vec![OsdId(1)],
        ..InUse::default()
    };
    let mut random = Random::new(1);
    let mut forger = Forger::new(&in_use, || random.next_u64());
    let mut messages = Vec::new();
    for kind in Kind::ALL {
        let drawn = (0..1000).map(|_| forger.message(*kind));
        messages.extend(drawn.filter(|bytes| bytes.len() <= EXAMPLE_BYTES_MAX).take(EXAMPLES_EACH));
    }
    let small: Vec<Vec<u8>> = messages.iter().filter(|bytes| bytes.len() < 1000).cloned().collect();
    messages.extend(small.chunks(3).step_by(4).map(|some| some.concat()));
    messages.iter().map(|bytes| [&[SEALED][..], bytes].concat()).collect()
}

pub(super) fn expected() -> Vec<Outcome> {
    let kinds = Kind::ALL.iter().map(|kind| ("message", name_of(*kind)));
    let refused =
        ["checksum", "greeting", "version", "kind", "reserved"].into_iter().map(|why| ("refused", why));
    let fields = [
        "length",
        "offset",
        "body length",
        "alignment",
        "number of blocks",
        "last block",
        "modulus",
        "lease",
        "status",
    ];
    let fields = fields.into_iter().map(|field| ("impossible", field));
    kinds.chain(refused).chain(fields).chain([("cut off", "")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_a_wrong_checksum_is_taken_once_that_is_put_right() {
        let input = &examples()[0];
        let mut spoilt = input.clone();
        spoilt[1] ^= 0xff;
        let outcome = |input: &[u8]| Outcomes::of(run, input);
        let hello = ("message", "Hello");
        assert_eq!((outcome(input).times(hello), outcome(&spoilt).times(hello)), (1, 1));
        spoilt[0] = 0;
        assert_eq!(outcome(&spoilt).times(("refused", "checksum")), 1);
    }
}
