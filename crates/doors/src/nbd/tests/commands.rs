//! Every command, and every way in which one is refused.

use super::*;
use protocol::chunk;

fn simple_server() -> Server {
    Server::ready(small_pieces(), "demo", Framing::Simple)
}

fn structured_server() -> Server {
    Server::ready(small_pieces(), "demo", Framing::Structured)
}

/// The operations asked for, in order.
fn operations(server: &Server) -> Vec<Operation> {
    server.work.iter().map(|(request, _)| request.operation.clone()).collect()
}

#[test]
fn a_read_is_answered_with_its_data() {
    let mut volume = Volume::new();
    let data = volume.bytes[100..4100].to_vec();
    let mut server = simple_server();
    server.serve(&read(7, 100, 3000), &mut volume);
    assert_eq!(server.sent, [&simple(0, 7), &data[..3000]].concat());

    let mut server = structured_server();
    server.serve(&read(7, 100, 3000), &mut volume);
    assert_eq!(server.sent, data_chunk(true, 7, 100, &data[..3000]));
}

#[test]
fn a_long_read_comes_in_chunks_in_the_order_of_completion() {
    let volume = Volume::new();
    let mut server = structured_server();
    server.feed(&read(7, 4000, 5000));
    let pieces = [(4000, 96), (4096, 4096), (8192, 808)];
    let asked: Vec<_> = pieces.map(|(offset, length)| Operation::Read { offset, length }).into();
    assert_eq!(operations(&server), asked);
    let mut expected = Vec::new();
    for (turn, index) in [2, 0, 1].into_iter().enumerate() {
        let (offset, length) = pieces[index];
        let data = &volume.bytes[offset as usize..][..length];
        server.connection.complete_read(server.work[index].0.id, [ReadPart::Bytes(data)], &mut server.sent);
        expected.extend(data_chunk(turn == 2, 7, offset, data));
    }
    assert_eq!(server.sent, expected);
    assert_eq!(server.connection.in_flight(), 0);
}

#[test]
fn a_long_read_is_whole_where_chunks_are_not_known_or_not_wanted() {
    let volume = Volume::new();
    let data = &volume.bytes[4000..9000];
    let cases = [
        (simple_server(), read(7, 4000, 5000), [simple(0, 7), data.to_vec()].concat()),
        (structured_server(), read_whole(7, 4000, 5000), data_chunk(true, 7, 4000, data)),
    ];
    for (mut server, request, expected) in cases {
        server.feed(&request);
        for index in [1, 2, 0] {
            assert!(server.sent.is_empty(), "nothing is sent before all is there");
            let (request, _) = server.work[index].clone();
            let Operation::Read { offset, length } = request.operation else { unreachable!() };
            let found = &volume.bytes[offset as usize..][..length];
            let parts = [ReadPart::Bytes(&found[..1]), ReadPart::Bytes(&found[1..])];
            server.connection.complete_read(request.id, parts, &mut server.sent);
        }
        assert_eq!(server.sent, expected);
        // Another reply can follow at once.
        server.feed(&request_flush(8));
        assert!(server.sent.ends_with(&simple(0, 8)));
    }
}

fn request_flush(cookie: u64) -> Vec<u8> {
    request(command::FLUSH, 0, cookie, 0, 0)
}

#[test]
fn zeros_travel_as_holes_where_the_client_knows_them() {
    let mut volume = Volume::new();
    volume.bytes.fill(0);
    let hole = |offset: u64, length: u32, done| {
        chunk_bytes(done, chunk::OFFSET_HOLE, 7, &[&offset.to_be_bytes()[..], &length.to_be_bytes()].concat())
    };
    let mut server = structured_server();
    server.serve(&read(7, 0, 5000), &mut volume);
    assert_eq!(server.take_sent(), [hole(0, 4096, false), hole(4096, 904, true)].concat());
    server.serve(&read_whole(7, 0, 4096), &mut volume);
    assert_eq!(server.take_sent(), hole(0, 4096, true));
    server.serve(&read_whole(7, 0, 5000), &mut volume);
    assert_eq!(server.take_sent(), data_chunk(true, 7, 0, &[0; 5000]));
    let mut server = simple_server();
    server.serve(&read(7, 0, 5000), &mut volume);
    assert_eq!(server.take_sent(), [simple(0, 7), vec![0; 5000]].concat());
}

#[test]
fn a_read_without_fragments_is_refused_when_too_long() {
    let mut server = Server::ready(Limits::default(), "demo", Framing::Structured);
    server.feed(&read_whole(1, 0, 65_536));
    server.feed(&read_whole(2, 0, 1 << 20));
    assert!(server.sent.is_empty());
    server.feed(&read_whole(3, 0, (1 << 20) + 1));
    assert_eq!(parse_error(&server.sent).0, 75);
}

#[test]
fn a_failed_piece_names_its_place_and_the_rest_still_comes() {
    let mut server = structured_server();
    server.feed(&read(7, 0, 12_288));
    let ids: Vec<_> = server.work.iter().map(|(request, _)| request.id).collect();
    let failure = Failure {
        code: ErrorCode::Io,
        offset: Some(0),
        message: "demo: object 0 on osd.2 failed its checksum".into(),
    };
    server.connection.fail(ids[1], failure, &mut server.sent);
    server.connection.fail(ids[2], Failure::new(ErrorCode::NoMemory, "later"), &mut server.sent);
    assert!(server.sent.is_empty());
    server.connection.complete_read(ids[0], [ReadPart::Bytes(&[5; 4096])], &mut server.sent);
    let data = data_chunk(false, 7, 0, &[5; 4096]);
    let (sent, error) = server.sent.split_at(data.len());
    assert_eq!(sent, data);
    // The first failure is told, at the first byte that did not come.
    let expected = (5, "demo: object 0 on osd.2 failed its checksum".into(), Some(4096));
    assert_eq!(parse_error(error), expected);
    assert_eq!(server.connection.in_flight(), 0);
}

#[test]
fn a_failed_read_without_chunks_has_no_data() {
    let mut server = simple_server();
    server.feed(&read(7, 0, 8192));
    server.connection.complete_read(server.work[0].0.id, [ReadPart::Zeros(4096)], &mut server.sent);
    let failure = Failure::new(ErrorCode::Io, "words nobody can carry");
    server.connection.fail(server.work[1].0.id, failure, &mut server.sent);
    assert_eq!(server.take_sent(), simple(5, 7));
    // The slot that kept data serves the next request cleanly.
    server.work.clear();
    let mut volume = Volume::new();
    server.serve(&read(8, 0, 8192), &mut volume);
    assert_eq!(server.sent, [&simple(0, 8), &volume.bytes[..8192]].concat());
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let mut server = structured_server();
    server.feed(&read(7, 0, 1));
    let failure = Failure::new(ErrorCode::Io, String::from("x") + &"ü".repeat(5000));
    server.connection.fail(server.work[0].0.id, failure, &mut server.sent);
    assert_eq!(parse_error(&server.sent).1, String::from("x") + &"ü".repeat(511));
}

#[test]
fn a_write_is_handed_out_where_it_stands_and_answered_when_done() {
    let mut server = structured_server();
    let bytes = [request_flush(1), write(2, 10, b"hello"), request(command::WRITE, flag::FUA, 3, 20, 1)];
    server.feed(&[&bytes.concat()[..], b"x"].concat());
    let expected = [
        Operation::Write { offset: 10, data: 56..61, durable: false },
        Operation::Write { offset: 20, data: 89..90, durable: true },
    ];
    assert_eq!(operations(&server), expected);
    assert_eq!(server.work[0].1, b"hello");
    assert_eq!(server.take_sent(), simple(0, 1));
    for index in [1, 0] {
        server.connection.complete(server.work[index].0.id, &mut server.sent);
    }
    assert_eq!(server.sent, [simple(0, 3), simple(0, 2)].concat());
}

#[test]
fn a_write_longer_than_any_inbox_is_handed_out_as_it_arrives() {
    let mut volume = Volume::new();
    let mut server = Server::ready(Limits::default(), "demo", Framing::Simple);
    let data: Vec<u8> = (0..32 << 20).map(|at: u32| (at / 7) as u8).collect();
    let bytes = write(7, 1000, &data);
    let mut kept_max = 0;
    for part in bytes.chunks(100_000) {
        assert!(server.sent.is_empty());
        server.serve(part, &mut volume);
        kept_max = kept_max.max(server.inbox.len());
    }
    assert!(kept_max < 256 << 10, "{kept_max} bytes waited");
    assert_eq!(server.sent, simple(0, 7));
    assert!(volume.bytes[1000..][..data.len()] == data);
}

#[test]
fn a_write_that_fails_midway_is_drained_and_then_answered() {
    for framing in [Framing::Simple, Framing::Structured] {
        let mut server = Server::ready(small_pieces(), "demo", framing);
        let bytes = write(7, 0, &[1; 20_000]);
        server.feed(&bytes[..28 + 4096 + 10]);
        assert_eq!(server.work.len(), 1);
        let mut failure = Failure::new(ErrorCode::NoSpace, "osd.1 is full");
        failure.offset = Some(0);
        server.connection.fail(server.work[0].0.id, failure, &mut server.sent);
        server.feed(&bytes[28 + 4096 + 10..bytes.len() - 1]);
        assert_eq!((server.work.len(), server.sent.len()), (1, 0), "no further piece, no answer yet");
        server.feed(&[bytes[bytes.len() - 1]]);
        match framing {
            Framing::Simple => assert_eq!(server.take_sent(), simple(28, 7)),
            _ => assert_eq!(parse_error(&server.take_sent()), (28, "osd.1 is full".into(), None)),
        }
        server.feed(&request_flush(8));
        assert_eq!(server.sent, simple(0, 8));
    }
}

#[test]
fn a_flush_has_nothing_to_wait_for() {
    let mut server = simple_server();
    server.feed(&request_flush(1));
    server.feed(&request(command::FLUSH, flag::FUA, 2, 0, 0));
    server.feed(&request(command::FLUSH, 0, 3, 4096, 0));
    assert_eq!(server.sent, [simple(0, 1), simple(0, 2), simple(22, 3)].concat());
}

#[test]
fn trims_and_zeroings_are_cut_at_objects() {
    let object = base::OBJECT_BYTES;
    let mut server = simple_server();
    server.feed(&request(command::TRIM, 0, 1, object - 1, 2));
    server.feed(&request(command::WRITE_ZEROES, 0, 2, 0, 10));
    server.feed(&request(command::WRITE_ZEROES, flag::NO_HOLE | flag::FUA, 3, 0, 10));
    server.feed(&request(command::WRITE_ZEROES, flag::FAST_ZERO, 4, 0, 10));
    let zero = |may_punch, fast| Operation::WriteZeroes { offset: 0, length: 10, may_punch, fast };
    let expected = [
        Operation::Trim { offset: object - 1, length: 1 },
        Operation::Trim { offset: object, length: 1 },
        zero(true, false),
        zero(false, false),
        zero(true, true),
    ];
    assert_eq!(operations(&server), expected);
    for (request, _) in server.work[..4].iter() {
        server.connection.complete(request.id, &mut server.sent);
    }
    assert_eq!(server.take_sent(), [simple(0, 1), simple(0, 2), simple(0, 3)].concat());
    let failure = Failure::new(ErrorCode::NotSupported, "not fast");
    server.connection.fail(server.work[4].0.id, failure, &mut server.sent);
    assert_eq!(server.sent, simple(95, 4));
}

#[test]
fn block_status_merges_clips_and_counts() {
    let status = |cookie, extents: &[(u32, u32)]| {
        let words: Vec<u8> = extents
            .iter()
            .flat_map(|(length, flags)| [length.to_be_bytes(), flags.to_be_bytes()].concat())
            .collect();
        chunk_bytes(true, chunk::BLOCK_STATUS, cookie, &[&1u32.to_be_bytes()[..], &words].concat())
    };
    let mut server = structured_server();
    let extents = [(100, true), (0, false), (50, true), (70, false), (10_000, true)]
        .map(|(length, hole)| Extent { length, hole, zero: hole });
    for (flags, length, expected) in [
        (0, 300, &[(150, 3), (70, 0), (80, 3)][..]),
        (0, 120, &[(120, 3)]),
        (flag::REQ_ONE, 300, &[(150, 3)]),
    ] {
        server.feed(&request(command::BLOCK_STATUS, flags, 9, 512, length));
        let (request, _) = server.work.pop().unwrap();
        let first_only = flags == flag::REQ_ONE;
        assert_eq!(
            request.operation,
            Operation::Extents { offset: 512, length: u64::from(length), first_only }
        );
        server.connection.complete_extents(request.id, extents, &mut server.sent);
        assert_eq!(server.take_sent(), status(9, expected));
    }
    // More extents than fit are cut; the client asks again behind them.
    server.feed(&request(command::BLOCK_STATUS, 0, 9, 0, 1 << 20));
    let (request, _) = server.work.pop().unwrap();
    let many = (0..10_000).map(|number| Extent { length: 1, hole: number % 2 == 0, zero: false });
    server.connection.complete_extents(request.id, many, &mut server.sent);
    assert_eq!(server.sent.len(), 20 + 4 + 2048 * 8);
}

#[test]
fn block_status_needs_its_context_for_this_very_export() {
    let mut server = Server::new(Limits::default());
    let ask = option_bytes(option::STRUCTURED_REPLY, &[]);
    let contexts = option_bytes(option::SET_META_CONTEXT, &context_data("frozen", &[ALLOCATION_CONTEXT]));
    server.feed(&flags_and(&[&ask, &contexts, &option_bytes(option::GO, &info_data("demo", &[]))]));
    server.sent.clear();
    server.feed(&request(command::BLOCK_STATUS, 0, 1, 0, 512));
    assert_eq!(parse_error(&server.sent).0, 22);
}

#[test]
fn that_a_range_will_be_read_is_taken_note_of() {
    let mut server = structured_server();
    server.feed(&request(command::CACHE, 0, 1, 512, 1 << 20));
    assert_eq!((server.take_sent(), server.work.len()), (simple(0, 1), 0));
}

#[test]
fn requests_beyond_the_end_are_refused() {
    for (code, error) in [
        (command::READ, 22),
        (command::WRITE, 28),
        (command::TRIM, 22),
        (command::WRITE_ZEROES, 28),
        (command::BLOCK_STATUS, 22),
        (command::CACHE, 22),
    ] {
        for (offset, length) in
            [(EXPORT_BYTES, 1u32), (EXPORT_BYTES - 1, 2), (u64::MAX, 2), (u64::MAX - 1, 2)]
        {
            let mut server = structured_server();
            server.feed(&request(code, 0, 1, offset, length));
            assert_eq!(parse_error(&server.take_sent()).0, error, "command {code}");
            if code == command::WRITE {
                server.feed(&vec![0; length as usize]);
            }
            server.feed(&request_flush(2));
            assert_eq!(server.sent, simple(0, 2));
            assert!(server.work.is_empty());
        }
    }
}

#[test]
fn a_resize_counts_from_the_next_request() {
    let mut server = simple_server();
    server.feed(&read(1, EXPORT_BYTES, 1));
    assert_eq!(server.take_sent(), simple(22, 1));
    let exports = exports();
    let mut sent = Vec::new();
    let mut connection = Connection::new(exports.clone(), Limits::default(), &mut sent);
    let mut requests = Vec::new();
    connection.handle_bytes(&handshake_to("demo", Framing::Simple), &mut requests, &mut sent);
    exports.set_bytes(0, EXPORT_BYTES + 1);
    connection.handle_bytes(&read(1, EXPORT_BYTES, 1), &mut requests, &mut sent);
    assert_eq!(requests.len(), 1);
    exports.set_bytes(0, 512);
    sent.clear();
    connection.handle_bytes(&read(2, 512, 1), &mut requests, &mut sent);
    assert_eq!(sent, simple(22, 2));
}

#[test]
fn a_read_only_export_refuses_to_change() {
    let mut server = Server::ready(Limits::default(), "frozen", Framing::Structured);
    for code in [command::TRIM, command::WRITE_ZEROES] {
        server.feed(&request(code, 0, 1, 0, 512));
        assert_eq!(parse_error(&server.take_sent()).0, 1);
    }
    server.feed(&write(2, 0, &[0; 100]));
    assert_eq!(parse_error(&server.take_sent()), (1, "export \"frozen\" is read-only".into(), None));
    server.feed(&read(3, 0, 1));
    assert_eq!(server.work.len(), 1);
}

#[test]
fn unknown_commands_and_flags_out_of_place_are_refused() {
    let cases = [
        (command::CACHE, flag::DF),
        (8, 0),
        (u16::MAX, 0),
        (command::READ, flag::NO_HOLE),
        (command::WRITE, flag::DF),
        (command::TRIM, flag::FAST_ZERO),
        (command::FLUSH, flag::REQ_ONE),
        (command::WRITE_ZEROES, flag::DF),
        (command::BLOCK_STATUS, flag::NO_HOLE),
        (command::READ, 1 << 5),
        (command::READ, 1 << 15),
    ];
    for (code, flags) in cases {
        let mut server = structured_server();
        server.feed(&request(code, flags, 1, 0, 0));
        assert_eq!(parse_error(&server.take_sent()).0, 22, "command {code} flags {flags}");
        server.feed(&request_flush(2));
        assert_eq!(server.sent, simple(0, 2));
    }
    // Without structured replies, nobody can ask for one chunk.
    let mut server = simple_server();
    server.feed(&read_whole(1, 0, 512));
    assert_eq!(server.sent, simple(22, 1));
}

#[test]
fn requests_of_no_length_succeed_except_where_an_answer_needs_one() {
    let mut server = simple_server();
    for code in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        server.feed(&request(code, 0, 1, EXPORT_BYTES, 0));
        assert_eq!(server.take_sent(), simple(0, 1));
    }
    let mut server = structured_server();
    server.feed(&read(1, 0, 0));
    assert_eq!(server.take_sent(), chunk_bytes(true, chunk::NONE, 1, &[]));
    server.feed(&request(command::BLOCK_STATUS, 0, 1, 0, 0));
    assert_eq!(parse_error(&server.sent).0, 22);
    assert_eq!(server.connection.in_flight(), 0);
}

#[test]
fn a_payload_beyond_the_offer_is_drained_and_an_absurd_one_ends_the_connection() {
    let offered = 32 << 20;
    let mut server = simple_server();
    server.feed(&read(1, 0, offered + 1));
    assert_eq!(server.take_sent(), simple(22, 1));
    server.feed(&request(command::WRITE, 0, 2, 0, offered + 1));
    assert_eq!(server.take_sent(), simple(22, 2));
    for _ in 0..32 {
        server.feed(&vec![9; 1 << 20]);
        assert!(server.inbox.is_empty() && server.sent.is_empty());
    }
    server.feed(&[&[9][..], &request_flush(3)].concat());
    assert_eq!(server.take_sent(), simple(0, 3));
    server.feed(&request(command::WRITE, 0, 4, 0, u32::MAX));
    assert_eq!(server.connection.closed(), Some(&Closed::PayloadLength(u32::MAX.into())));
    assert_eq!(server.connection.waiting(), Waiting::Close);
}

#[test]
fn a_disconnect_waits_for_what_was_asked_before() {
    let mut server = simple_server();
    server.feed(&[write(1, 0, b"x"), request(command::DISCONNECT, 0, 0, 0, 0), read(2, 0, 1)].concat());
    assert_eq!(server.connection.waiting(), Waiting::Completion);
    assert_eq!(server.work.len(), 1, "nothing is taken in behind it");
    server.connection.complete(server.work[0].0.id, &mut server.sent);
    assert_eq!(server.sent, simple(0, 1));
    assert_eq!(server.connection.closed(), Some(&Closed::Disconnected));
    assert_eq!(server.connection.waiting(), Waiting::Close);

    let mut idle = simple_server();
    idle.feed(&request(command::DISCONNECT, 0, 0, 0, 0));
    assert_eq!(idle.connection.closed(), Some(&Closed::Disconnected));
}

#[test]
fn a_connection_that_lost_its_place_is_closed_and_late_completions_are_silent() {
    let mut server = structured_server();
    server.feed(&[read(1, 0, 8192), read(2, 0, 1), write(3, 0, b"x"), vec![0xee; 28]].concat());
    assert_eq!(server.connection.closed(), Some(&Closed::RequestMagic(0xeeee_eeee)));
    server.sent.clear();
    let ids: Vec<_> = server.work.iter().map(|(request, _)| request.id).collect();
    server.connection.complete_read(ids[0], [ReadPart::Zeros(4096)], &mut server.sent);
    server.connection.fail(ids[1], Failure::new(ErrorCode::Io, ""), &mut server.sent);
    server.connection.complete_hole(ids[2], &mut server.sent);
    server.connection.complete(ids[3], &mut server.sent);
    assert!(server.sent.is_empty());
}

#[test]
#[should_panic(expected = "as many bytes as it asked for")]
fn a_completion_of_the_wrong_length_is_a_bug() {
    let mut server = simple_server();
    server.feed(&read(1, 0, 10));
    server.connection.complete_read(server.work[0].0.id, [ReadPart::Zeros(9)], &mut server.sent);
}
