//! What is impossible is refused as soon as the header is there. What is possible: `tests/fixtures.rs`.

use super::*;
use crate::header::{HeaderBytes, seal};
use base::{Epoch, Generation, LayerId, LogEntry, ObjectKey, PgId, PoolId, Sequence};

const PG: PgId = PgId { pool: PoolId(1), index: 5 };
const KEY: ObjectKey = ObjectKey { pg: PG, layer: LayerId(2), object: 3 };
const EPOCH: Epoch = Epoch(4);
const REQUEST: Request = Request {
    request: 9,
    key: KEY,
    offset: 8192,
    length: 8192,
    epoch: EPOCH,
    generation: Generation(6),
    origin: 7,
    since: None,
    unverified: false,
    of_snapshot: false,
};
const RANGE: BlockRange = BlockRange { key: KEY, first_block: 2, block_count: 1 };
const INQUIRY: Inquiry = Inquiry { request: 9, range: RANGE, epoch: EPOCH };

/// Why a header is refused with something else there, if it is.
fn refused<const BYTES: usize>(
    mut header: HeaderBytes,
    offset: usize,
    bytes: [u8; BYTES],
) -> Option<WireError> {
    assert!(parse(&header).is_ok());
    header[offset..offset + BYTES].copy_from_slice(&bytes);
    seal(&mut header);
    parse(&header).err()
}

fn is_impossible(error: Option<WireError>, name: &str) -> bool {
    matches!(error, Some(WireError::Field { field, .. }) if field == name)
}

#[test]
fn a_request_beyond_its_object_or_a_message_is_refused() {
    let write = REQUEST.encode(Kind::Write).header();
    for (offset, value, field) in [
        (12, 0, "length"),
        (12, u32::MAX, "length"),
        (36, (4 << 20) - 1, "offset"),
        (8, u32::MAX, "body length"),
        (8, 0, "body length"),
    ] {
        assert!(is_impossible(refused(write, offset, value.to_le_bytes()), field), "{value} at {offset}");
    }
    assert_eq!(refused(write, 4, [99]), Some(WireError::Kind(99)));
    let zero = REQUEST.encode(Kind::Zero).header();
    assert!(is_impossible(refused(zero, 36, 8193u32.to_le_bytes()), "alignment"));
    let all = (4u32 << 20).to_le_bytes();
    let whole = Request { offset: 0, ..REQUEST };
    assert!(is_impossible(refused(whole.encode(Kind::Read).header(), 12, all), "length"));
    assert_eq!(refused(whole.encode(Kind::Zero).header(), 12, all), None);
}

#[test]
fn what_reads_among_messages_are_about_is_told_before_they_are_verified() {
    let read = |first_block: u32| {
        Request { offset: first_block * 4096 + 7, length: 4096, ..REQUEST }.encode(Kind::Read).to_vec()
    };
    let write = [&REQUEST.encode(Kind::Write)[..], &[0; 2 * (4096 + 4)]].concat();
    let mut garbled = read(5);
    garbled[0] ^= 1;
    let mut impossible = read(0);
    impossible[36..40].copy_from_slice(&u32::MAX.to_le_bytes());
    let bytes = [&read(3)[..], &write, &garbled, &impossible, &read(7)].concat();
    let told = |bytes: &[u8]| Request::reads_ahead(bytes).collect::<Vec<_>>();
    assert_eq!(told(&bytes), [Some((KEY, 3)), None, Some((KEY, 5)), None, Some((KEY, 7))]);
    // Nothing is behind what has not come, or is no message.
    assert_eq!(told(&bytes[..bytes.len() - 1]), told(&bytes)[..4]);
    assert_eq!(told(&bytes[..64 + write.len() - 1]), [Some((KEY, 3)), None]);
    let unknown = [&read(3)[..], &[0xff; 64], &read(7)].concat();
    assert_eq!(told(&unknown), [Some((KEY, 3))]);
}

#[test]
fn what_was_sent_before_says_since_when_and_nothing_else_can() {
    let since = Some(Sequence(0x0102_0304_0506_0708));
    let again = Request { since, ..REQUEST };
    let zero = again.encode(Kind::Zero);
    assert_eq!(parse(&zero), Ok(Some((Message::Zero(again), HEADER_BYTES + 8))));
    // It stands before the checksums.
    let sums = [U32::new(0xc1c2_c3c4), U32::new(0xd1d2_d3d4)];
    let data = [7u8; 8192];
    let write = [&again.encode(Kind::Write)[..], zerocopy::IntoBytes::as_bytes(&sums[..]), &data].concat();
    let message = Message::Write(WithData { head: again, checksums: &sums, data: &data });
    assert_eq!(parse(&write), Ok(Some((message, write.len()))));
    // One that says so, and whose body has no room for it.
    let first = REQUEST.encode(Kind::Zero).header();
    assert!(is_impossible(refused(first, 5, [1]), "body length"));
    assert!(is_impossible(refused(REQUEST.encode(Kind::Write).header(), 5, [1]), "body length"));
    for kind in [Kind::Read, Kind::Allocated] {
        assert!(is_impossible(refused(REQUEST.encode(kind).header(), 5, [1]), "since"), "{kind:?}");
    }
}

#[test]
fn blocks_that_are_none_or_too_many_are_refused() {
    let blocks = |count: u32| (count * 4096).to_le_bytes();
    let fetch = INQUIRY.encode();
    assert!(is_impossible(refused(fetch, 12, blocks(0)), "number of blocks"));
    assert!(is_impossible(refused(fetch, 12, blocks(66)), "number of blocks"));
    assert!(is_impossible(refused(fetch, 12, 4097u32.to_le_bytes()), "block_count"));
    assert!(is_impossible(refused(fetch, 36, blocks(1024)), "last block"));
    assert!(is_impossible(refused(fetch, 36, u32::MAX.to_le_bytes()), "first_block"));
    let check = |is_deep: bool| Check { inquiry: INQUIRY, deep: is_deep.then_some(7) }.encode();
    assert_eq!(refused(check(false), 12, blocks(1022)), None);
    assert!(is_impossible(refused(check(true), 12, blocks(65)), "number of blocks"));
    let push = Push { range: RANGE, epoch: EPOCH };
    assert_eq!(refused(push.encode(Kind::PushZero), 12, blocks(1022)), None);
    assert!(is_impossible(refused(push.encode(Kind::PushLost), 12, blocks(2)), "number of blocks"));
}

#[test]
fn what_only_some_may_say_is_refused_of_the_others() {
    let query = Query { pg: PG, modulus: 8, epoch: EPOCH }.encode();
    assert!(is_impossible(refused(query, 12, 5u32.to_le_bytes()), "modulus"));
    assert!(is_impossible(refused(query, 12, (PgId::COUNT_MAX + 1).to_le_bytes()), "modulus"));
    let lease = Lease { ttl_ms: 900, ..Lease::default() }.encode();
    assert!(is_impossible(refused(lease, 12, 6001u32.to_le_bytes()), "lease"));
    assert!(is_impossible(refused(lease, 36, 6001u32.to_le_bytes()), "lease"));
    let outcome = Outcome::done(9, Sequence(0), 0);
    assert!(is_impossible(refused(outcome, 6, [99, 0]), "status"));
    let activate = Activate { pg: PG, epoch: EPOCH, mark: Sequence(1), join: None }.encode();
    assert!(is_impossible(refused(activate, 16, [1]), "join"));
    let list = ListObjects { pg: PG, epoch: EPOCH, after: None }.encode();
    assert!(is_impossible(refused(list, 32, [1]), "after"));
}

#[test]
fn what_is_reserved_is_refused_with_what_to_do() {
    for (offset, what) in [(5, "a flag"), (6, "a status"), (16, "a field")] {
        let error = refused(GroupEpoch { pg: PG, epoch: EPOCH }.encode(Kind::Serves), offset, [1]);
        assert_eq!(error, Some(WireError::Reserved(Kind::Serves)), "{what}");
        assert!(error.unwrap().to_string().ends_with("upgrade the older of the two"));
    }
}

#[test]
fn an_entry_is_refused_that_reaches_beyond_its_object_or_says_what_is_reserved() {
    let state = LogState {
        pg: PG,
        epoch: EPOCH,
        last_sequence: Sequence(3),
        log_begins: Sequence(0),
        is_incomplete: false,
        may_lack_tail: false,
    };
    let entry = LogEntry {
        epoch: EPOCH,
        sequence: Sequence(3),
        layer: LayerId(4),
        object: 5,
        first_block: 1020,
        block_count: 4,
        origin: 8,
    };
    let bytes = state.encode([entry].into_iter());
    assert!(parse(&bytes).is_ok());
    for (offset, value) in [(26, 5), (28, 1)] {
        let mut other = bytes.clone();
        other[HEADER_BYTES + offset] = value;
        assert!(parse(&other).is_err(), "{value} at {offset}");
    }
}
