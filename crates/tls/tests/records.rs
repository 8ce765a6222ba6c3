//! Sessions of real handshakes, over whatever cuts up or changes what one says to the other.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use auth::{Identity, SecretKey};
use base::Encryption::On;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::OnceLock;
use tls::{End, PLAINTEXT_BYTES_MAX, Session};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Both ends of a connection.
fn sessions() -> (Session, Session) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| Runtime::new().expect("a runtime starts"));
    runtime.block_on(async {
        let identity = || Identity::new(&SecretKey::generate().expect("there are random numbers"));
        let (client, server) = (identity(), identity());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
        let address = listener.local_addr().expect("it has an address");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (near, far) = tokio::join!(
            client.connect(near.expect("it connects"), server.public(), On),
            server.accept(far.expect("it accepts").0, On, Ok::<_, String>)
        );
        let session = |channel: auth::Channel| {
            channel.into_parts().expect("it has a socket").1.expect("it is encrypted")
        };
        (session(near.expect("it is let in")), session(far.expect("it lets in").0))
    })
}

/// What is sent for these pieces.
fn seal(session: &mut Session, pieces: &[&[u8]]) -> Vec<u8> {
    let mut records = VecDeque::new();
    pieces.iter().for_each(|piece| session.seal(&[piece], &mut records));
    records.into_iter().flatten().collect()
}

/// Receives as much as fits, and answers how much that was.
fn receive(session: &mut Session, bytes: &[u8]) -> usize {
    let space = session.space();
    let count = bytes.len().min(space.len());
    space[..count].copy_from_slice(&bytes[..count]);
    session.received(count);
    count
}

/// Everything that is read when these bytes come, and how that ended, if it did.
fn hear(session: &mut Session, mut bytes: &[u8], room: usize) -> (Vec<u8>, Option<End>) {
    let (mut heard, mut into) = (Vec::new(), vec![0; room]);
    loop {
        match session.read(&mut into) {
            Ok(0) if bytes.is_empty() => return (heard, None),
            Ok(0) => {
                let count = receive(session, bytes);
                assert_ne!(count, 0, "there is room for more whenever more is needed");
                bytes = &bytes[count..];
            }
            Ok(count) => heard.extend_from_slice(&into[..count]),
            Err(end) => return (heard, Some(end)),
        }
    }
}

#[test]
fn records_are_read_whatever_pieces_they_come_in() {
    let (mut near, mut far) = sessions();
    let long: Vec<u8> = (0..PLAINTEXT_BYTES_MAX).map(|index| (index / 7) as u8).collect();
    let said = [b"a".as_slice(), &long, b"", b"bc", &long[..4160]];
    let expected = said.concat();
    for (cut, room) in [(1, 1), (1, 4096), (5, 17), (21, 16 << 10), (4096, 3), (1 << 20, 1 << 20)] {
        let sent = seal(&mut near, &said);
        let mut heard = Vec::new();
        for piece in sent.chunks(cut) {
            let (bytes, end) = hear(&mut far, piece, room);
            assert_eq!(end, None);
            heard.extend(bytes);
        }
        assert!(heard == expected, "cut every {cut} bytes, read by {room}");
        assert!(far.is_drained());
    }
}

#[test]
fn of_tiny_records_some_are_opened_at_a_time_and_none_is_left() {
    let (mut near, mut far) = sessions();
    let pieces: Vec<&[u8]> = [b"x".as_slice(), b""].repeat(300);
    let sent = seal(&mut near, &pieces);
    assert_eq!(receive(&mut far, &sent), sent.len());
    let (mut into, mut reads) = ([0; 4096], Vec::new());
    loop {
        match far.read(&mut into).unwrap() {
            0 => break,
            count => reads.push(count),
        }
    }
    assert!(reads.iter().all(|count| *count <= 64), "{reads:?}");
    assert_eq!(reads.iter().sum::<usize>(), 300);
    assert!(far.is_drained());
}

#[test]
fn pieces_become_one_record_and_nothing_of_them_is_seen_in_it() {
    let (mut near, mut far) = sessions();
    let mut records = VecDeque::new();
    near.seal(&[b"header", &[7; 4096], b"", b"end"], &mut records);
    assert_eq!(records.len(), 1);
    let record: Vec<u8> = records.into_iter().flatten().collect();
    assert_eq!(record.len(), 5 + 6 + 4096 + 3 + 17);
    assert!(!record.windows(6).any(|window| window == b"header" || window == [7; 6]));
    let (heard, end) = hear(&mut far, &record, 1 << 16);
    assert_eq!((&heard[..7], &heard[4101..], end), (b"header\x07".as_slice(), b"\x07end".as_slice(), None));
}

#[test]
fn a_change_of_any_byte_ends_it_and_what_came_before_is_heard() {
    let whole = seal(&mut sessions().0, &[b"before", b"changed", b"after"]);
    let first = 5 + 6 + 17;
    for index in first..first + 5 + 7 + 17 {
        let (mut near, mut far) = sessions();
        let mut sent = seal(&mut near, &[b"before", b"changed", b"after"]);
        assert_eq!(sent.len(), whole.len());
        sent[index] ^= 0x80;
        let (heard, end) = hear(&mut far, &sent, 1 << 16);
        assert_eq!(heard, b"before");
        // A length that grew within its limit waits for more; whatever that is, it does not verify.
        let end = end.or_else(|| hear(&mut far, &[0; 1 << 17], 1 << 16).1);
        assert!(matches!(end, Some(End::Forged | End::NoRecord)), "byte {index}: {end:?}");
        let (heard, end) = hear(&mut far, &seal(&mut near, &[b"again"]), 16);
        assert!(heard.is_empty() && end.is_some(), "it stays ended");
    }
}

#[test]
fn records_left_out_repeated_or_swapped_do_not_verify() {
    let three = |near: &mut Session| {
        let mut records = VecDeque::new();
        [b"one", b"two", b"six"].iter().for_each(|said| near.seal(&[*said], &mut records));
        records
    };
    for order in [[1, 2, 0], [0, 2, 1], [0, 0, 1]] {
        let (mut near, mut far) = sessions();
        let records = three(&mut near);
        let sent: Vec<u8> = order.iter().flat_map(|&index: &usize| records[index].clone()).collect();
        let (heard, end) = hear(&mut far, &sent, 64);
        assert_eq!(heard.len(), if order[0] == 0 { 3 } else { 0 });
        assert_eq!(end, Some(End::Forged));
    }
    // Nor do those of another connection, or one's own.
    let (mut near, mut far) = sessions();
    let foreign = three(&mut sessions().0)[0].clone();
    assert_eq!(hear(&mut far, &foreign, 64), (vec![], Some(End::Forged)));
    let own = three(&mut near)[0].clone();
    assert_eq!(hear(&mut near, &own, 64), (vec![], Some(End::Forged)));
}

#[test]
fn what_is_plain_or_too_long_is_no_record() {
    for sent in [
        b"GET / HTTP/1.1\r\n".as_slice(),
        // An alert in plain, as anybody on the way could send it: 40 is a failed handshake, 0 the end.
        &[21, 3, 3, 0, 2, 2, 40],
        &[21, 3, 3, 0, 2, 1, 0],
        &[20, 3, 3, 0, 1, 1],
        &[23, 3, 3, 0x41, 1],
        &[23, 3, 1, 0, 20],
    ] {
        let (_, mut far) = sessions();
        assert_eq!(hear(&mut far, sent, 64), (vec![], Some(End::NoRecord)), "{sent:?}");
    }
    let (_, mut far) = sessions();
    assert_eq!(hear(&mut far, &[23, 3, 3, 0, 0], 64), (vec![], Some(End::Forged)), "it has no tag");
}

#[test]
fn keys_are_renewed_before_they_wear_out() {
    let (mut near, mut far) = sessions();
    near.limit_records_per_key(3);
    far.limit_records_per_key(5);
    for round in 0..100u32 {
        let said = round.to_le_bytes();
        let sent = seal(&mut near, &[&said]);
        // The first key sealed what the handshake ended with, too.
        assert_eq!(hear(&mut far, &sent, 64), (said.to_vec(), None));
        let sent = seal(&mut far, &[&said, &said]);
        assert_eq!(hear(&mut near, &sent, 64), ([said, said].concat(), None));
        assert!(!near.has_answer() && !far.has_answer(), "nobody asks for a new key of the other");
    }
}

#[test]
fn only_the_word_of_the_other_side_ends_it() {
    let (mut near, mut far) = sessions();
    let mut records = VecDeque::new();
    near.seal(&[b"last words"], &mut records);
    near.seal_end(&mut records);
    let sent: Vec<u8> = records.into_iter().flatten().collect();
    let cut = sent.len() - 1;
    assert_eq!(hear(&mut far, &sent[..cut], 4), (b"last words".to_vec(), None));
    assert!(!far.is_drained());
    assert_eq!(hear(&mut far, &sent[cut..], 4), (vec![], Some(End::Closed)));
}

#[test]
fn records_without_data_are_not_taken_for_ever() {
    let (mut near, mut far) = sessions();
    let empty = vec![b"".as_slice(); 32];
    let few = [&empty[..], &[b"x"]].concat();
    for _ in 0..3 {
        assert_eq!(hear(&mut far, &seal(&mut near, &few), 64), (b"x".to_vec(), None));
    }
    let many = [&empty[..], &[b""]].concat();
    let (heard, end) = hear(&mut far, &seal(&mut near, &many), 64);
    assert!(heard.is_empty() && matches!(end, Some(End::Unexpected(_))), "{end:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes: what is read is a beginning of what was said, or there is an end of it.
    #[test]
    fn nothing_is_heard_that_was_not_said(
        lengths in prop::collection::vec(0usize..20_000, 1..8),
        change in prop::option::of((any::<prop::sample::Index>(), 1u8..)),
        cuts in prop::collection::vec(1usize..40_000, 1..8),
        room in 1usize..40_000,
    ) {
        let (mut near, mut far) = sessions();
        near.limit_records_per_key(4);
        let said: Vec<u8> = (0..lengths.iter().sum()).map(|index: usize| (index % 251) as u8).collect();
        let (mut sent, mut rest) = (Vec::new(), said.as_slice());
        for length in lengths {
            let (part, behind) = rest.split_at(length);
            rest = behind;
            let pieces: Vec<_> = part.chunks(PLAINTEXT_BYTES_MAX).collect();
            sent.extend(seal(&mut near, &pieces));
        }
        let is_changed = change.is_some() && !sent.is_empty();
        if let Some((index, bits)) = change.filter(|_| is_changed) {
            *index.get_mut(&mut sent) ^= bits;
        }
        let (mut heard, mut ended, mut rest) = (Vec::new(), None, sent.as_slice());
        for cut in cuts.into_iter().cycle() {
            if rest.is_empty() || ended.is_some() {
                break;
            }
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            rest = behind;
            let (bytes, end) = hear(&mut far, piece, room);
            heard.extend(bytes);
            ended = end;
        }
        prop_assert!(said.starts_with(&heard));
        prop_assert!(is_changed || (heard == said && ended.is_none()));
        prop_assert!(!is_changed || heard.len() < said.len() || ended.is_some() || !far.is_drained());
    }
}
