//! The client before servers that are old, mean or broken.

use super::*;

/// What comes of a client that gets these bytes.
fn meet(client: &mut Client, bytes: &[u8]) -> (Vec<ClientEvent>, Vec<u8>) {
    let (mut events, mut sent) = (Vec::new(), Vec::new());
    client.handle_bytes(bytes, &mut events, &mut sent);
    (events, sent)
}

/// A client that got the export, and has a read of 10 bytes at 100 in flight.
fn reading(framing: Framing) -> Client {
    let mut client = Client::new("demo", framing);
    let mut server = Server::new(Limits::default());
    for _ in 0..4 {
        let (_, sent) = meet(&mut client, &server.take_sent());
        server.feed(&sent);
    }
    assert!(client.is_ready());
    let mut sent = Vec::new();
    client.read(77, 100, 10, &mut sent);
    assert_eq!(sent, request_in(framing, command::READ, 0, COOKIE, 100, 10));
    client
}

/// The client's name for its first request.
const COOKIE: u64 = 1 << 32;

fn broken_by(framing: Framing, reply: &[u8]) -> String {
    let mut client = reading(framing);
    meet(&mut client, reply);
    client.closed().expect("it is over").to_string()
}

#[test]
fn the_client_opens_with_flags_and_asks_one_thing_after_the_other() {
    let mut client = Client::new("demo", Framing::Structured);
    let (_, sent) = meet(&mut client, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(sent, flags_and(&[&option_bytes(option::STRUCTURED_REPLY, &[])]));
    let mut client = Client::new("demo", Framing::Simple);
    let (_, sent) = meet(&mut client, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(sent, flags_and(&[&option_bytes(option::GO, &info_data("demo", &[3]))]));
}

#[test]
fn a_server_of_another_kind_or_age_is_named() {
    let mut client = Client::new("", Framing::Structured);
    meet(&mut client, b"SSH-2.0-OpenSSH_9.9p1\r\n");
    assert!(matches!(client.closed(), Some(ClientError::NotNbd(_))));
    for old in [&b"NBDMAGIC\0\x00\x42\x02\x81\x86\x12\x53\0\0"[..], b"NBDMAGICIHAVEOPT\0\x02"] {
        let mut client = Client::new("", Framing::Structured);
        meet(&mut client, old);
        assert_eq!(client.closed(), Some(&ClientError::TooOld));
    }
}

#[test]
fn a_refusal_carries_the_servers_words() {
    let mut client = Client::new("nonsense", Framing::Structured);
    let mut server = Server::new(Limits::default());
    for _ in 0..4 {
        let (_, sent) = meet(&mut client, &server.take_sent());
        server.feed(&sent);
    }
    let error = client.closed().unwrap().to_string();
    assert!(error.contains("refused export \"nonsense\"") && error.contains("nbdinfo --list"), "{error}");
}

#[test]
fn replies_that_make_no_sense_end_the_connection() {
    assert!(broken_by(Framing::Structured, b"rubbish.........").contains("a reply began with 0x72756262"));
    assert!(broken_by(Framing::Structured, &simple(0, COOKIE)).contains("without a chunk"));
    assert!(broken_by(Framing::Simple, &data_chunk(true, COOKIE, 100, &[0; 10])).contains("not agreed on"));
    assert!(broken_by(Framing::Structured, &simple(0, 99)).contains("which was not sent"));
    assert!(
        broken_by(Framing::Structured, &chunk_bytes(true, 0, COOKIE + 1, &[])).contains("which was not sent")
    );
    assert!(
        broken_by(Framing::Structured, &chunk_bytes(true, 0, COOKIE, &[]))
            .contains("10 bytes of a read never came")
    );
    assert!(broken_by(Framing::Structured, &chunk_bytes(false, 0, COOKIE, &[])).contains("makes no sense"));
    assert!(
        broken_by(Framing::Structured, &chunk_bytes(true, 5, COOKIE, &[0; 12])).contains("makes no sense")
    );
    assert!(
        broken_by(Framing::Structured, &chunk_bytes(true, 2, COOKIE, &[0; 11])).contains("makes no sense")
    );
    assert!(
        broken_by(Framing::Structured, &chunk_bytes(true, 0x8001, COOKIE, &[0; 5]))
            .contains("makes no sense")
    );
    for (offset, length) in [(99, 1), (100, 11), (109, 2), (u64::MAX, 2)] {
        assert!(
            broken_by(Framing::Structured, &data_chunk(true, COOKIE, offset, &vec![0; length]))
                .contains("not asked for")
        );
    }
}

#[test]
fn every_byte_of_a_read_comes_once_in_whatever_order() {
    let read_in = |parts: &[(u64, usize)]| {
        let chunks = parts.iter().enumerate().map(|(number, (offset, length))| {
            data_chunk(number + 1 == parts.len(), COOKIE, *offset, &vec![7; *length])
        });
        let mut client = reading(Framing::Structured);
        let (events, _) = meet(&mut client, &chunks.collect::<Vec<_>>().concat());
        let is_done = events.last() == Some(&ClientEvent::Done { token: 77, result: Ok(()) });
        (is_done, client.closed().map(ClientError::to_string).unwrap_or_default())
    };
    for whole in [&[(100, 10)][..], &[(100, 5), (105, 5)], &[(106, 4), (100, 2), (104, 2), (102, 2)]] {
        assert_eq!(read_in(whole), (true, String::new()), "{whole:?}");
    }
    // As many bytes as were asked for, but not all of them.
    for twice in [&[(100, 5), (100, 5)][..], &[(104, 4), (102, 3), (100, 3)], &[(100, 8), (100, 8)]] {
        let (is_done, reason) = read_in(twice);
        assert!(!is_done && reason.contains("some came twice"), "{twice:?}: {reason}");
    }
}

#[test]
fn a_read_does_not_come_in_any_number_of_parts() {
    let mut client = reading(Framing::Structured);
    client.read(78, 1000, 200, &mut Vec::new());
    let every_other = (0..40).map(|number| data_chunk(false, COOKIE + 1, 1000 + 2 * number, &[7]));
    meet(&mut client, &every_other.collect::<Vec<_>>().concat());
    let reason = client.closed().unwrap().to_string();
    assert!(reason.contains("more than 32 parts with gaps between them"), "{reason}");
}

#[test]
fn a_request_is_answered_once() {
    let mut client = reading(Framing::Simple);
    let (events, _) = meet(&mut client, &[simple(0, COOKIE), vec![5; 10]].concat());
    let expected = [
        ClientEvent::Data { token: 77, offset: 100, data: 16..26 },
        ClientEvent::Done { token: 77, result: Ok(()) },
    ];
    assert_eq!(events, expected);
    meet(&mut client, &simple(0, COOKIE));
    assert!(matches!(client.closed(), Some(ClientError::Broken(_))));
}

#[test]
fn an_error_in_a_chunk_fails_its_request_only() {
    let mut client = reading(Framing::Structured);
    let payload = [&5u32.to_be_bytes()[..], &3u16.to_be_bytes(), b"bad", &104u64.to_be_bytes()].concat();
    let (events, _) = meet(&mut client, &chunk_bytes(true, 0x8002, COOKIE, &payload));
    let failure = Failure { code: ErrorCode::Io, offset: Some(104), message: "bad".into() };
    assert_eq!(events, [ClientEvent::Done { token: 77, result: Err(failure) }]);
    assert!(client.is_ready());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_servers_harm_no_client(
        start in 0..5u8,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        part_bytes in 1..100usize,
    ) {
        let mut client = match start {
            0 => Client::new("demo", Framing::Structured),
            1 => {
                let mut client = Client::new("demo", Framing::Structured);
                meet(&mut client, b"NBDMAGICIHAVEOPT\0\x03");
                client
            }
            2 => reading(Framing::Structured),
            3 => reading(Framing::Simple),
            _ => reading(Framing::Extended),
        };
        feed_in_parts(&mut client, &bytes, part_bytes);
    }

    #[test]
    fn servers_that_are_nearly_right_harm_no_client(
        framing in framings(),
        kinds in prop::collection::vec((0..8u16, any::<bool>(), 95..112u64, 0..14usize), 0..6),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        part_bytes in 1..100usize,
    ) {
        let mut bytes: Vec<u8> = kinds
            .into_iter()
            .flat_map(|(kind, done, offset, length)| match kind {
                0 | 1 if framing == Framing::Extended => {
                    let data = [&offset.to_be_bytes()[..], &vec![1; length]].concat();
                    extended_chunk(done, protocol::chunk::OFFSET_DATA, COOKIE, 100, &data)
                }
                _ if framing == Framing::Extended => {
                    extended_chunk(done, kind, COOKIE, 100, &vec![0; length])
                }
                0 => simple(u32::from(!done), COOKIE),
                1 | 2 => data_chunk(done, COOKIE, offset, &vec![1; length]),
                3 => chunk_bytes(done, 0x8001, COOKIE, &vec![0; length]),
                _ => chunk_bytes(done, kind, COOKIE, &vec![0; length]),
            })
            .collect();
        for (place, mask) in flips {
            if !bytes.is_empty() {
                let at = place.index(bytes.len());
                bytes[at] ^= mask;
            }
        }
        feed_in_parts(&mut reading(framing), &bytes, part_bytes);
    }
}

fn feed_in_parts(client: &mut Client, bytes: &[u8], part_bytes: usize) {
    let mut inbox = Vec::new();
    for part in bytes.chunks(part_bytes) {
        inbox.extend_from_slice(part);
        let (mut events, mut sent) = (Vec::new(), Vec::new());
        let consumed = client.handle_bytes(&inbox, &mut events, &mut sent);
        for event in &events {
            if let ClientEvent::Data { data, offset, .. } = event {
                assert!(data.end <= consumed && *offset >= 100 && offset + data.len() as u64 <= 110);
            }
        }
        inbox.drain(..consumed);
    }
}
