//! Extended headers: lengths of 64 bits, and every answer in chunks.

use super::*;
use protocol::{chunk, option_reply as reply};

fn server() -> Server {
    Server::ready(small_pieces(), "demo", Framing::Extended)
}

fn asked(code: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    request_in(Framing::Extended, code, flags, cookie, offset, length)
}

fn operations(server: &Server) -> Vec<Operation> {
    server.work.iter().map(|(request, _)| request.operation.clone()).collect()
}

/// The kind and the error of the one chunk that a failure is answered with, and where it says that the request was.
fn failed(sent: &[u8]) -> (u16, u32, u64) {
    let number =
        |at: std::ops::Range<usize>| sent[at].iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
    assert_eq!((number(0..4), number(4..6)), (u64::from(EXTENDED_CHUNK_MAGIC), 1));
    assert_eq!(sent.len() as u64, 32 + number(24..32));
    (number(6..8) as u16, number(32..36) as u32, number(16..24))
}

#[test]
fn they_are_agreed_on_once_and_there_is_no_way_back() {
    let answers = |options: &[u32]| {
        let mut server = Server::new(Limits::default());
        server.sent.clear();
        let asked: Vec<Vec<u8>> = options.iter().map(|code| option_bytes(*code, &[])).collect();
        server.feed(&flags_and(&asked.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        let mut kinds = Vec::new();
        let mut rest = &server.sent[..];
        while !rest.is_empty() {
            kinds.push(u32::from_be_bytes(rest[12..16].try_into().unwrap()));
            rest = &rest[20 + u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize..];
        }
        kinds
    };
    let (structured, extended) = (option::STRUCTURED_REPLY, option::EXTENDED_HEADERS);
    assert_eq!(answers(&[structured, extended]), [reply::ACK, reply::ACK]);
    assert_eq!(answers(&[extended, structured]), [reply::ACK, reply::ERR_EXT_HEADER_REQD]);
    assert_eq!(answers(&[extended, extended]), [reply::ACK, reply::ERR_INVALID]);
    let mut server = Server::new(Limits::default());
    server.sent.clear();
    server.feed(&flags_and(&[&option_bytes(extended, b"x")]));
    assert_eq!(server.sent[12..16], reply::ERR_INVALID.to_be_bytes());
}

#[test]
fn every_answer_is_a_chunk_that_names_the_place_of_its_request() {
    let mut volume = Volume::of(20_000);
    let mut server = server();
    server.serve(&asked(command::READ, 0, 1, 100, 50), &mut volume);
    let data = [&100u64.to_be_bytes()[..], &volume.bytes[100..150]].concat();
    assert_eq!(server.take_sent(), extended_chunk(true, chunk::OFFSET_DATA, 1, 100, &data));
    let write = [asked(command::WRITE, flag::PAYLOAD_LEN, 2, 4000, 200), vec![0; 200]].concat();
    server.serve(&write, &mut volume);
    assert!(volume.bytes[4000..4200].iter().all(|byte| *byte == 0));
    assert_eq!(server.take_sent(), extended_chunk(true, chunk::NONE, 2, 4000, &[]));
    server.serve(&asked(command::READ, 0, 3, 4000, 96), &mut volume);
    let hole = [&4000u64.to_be_bytes()[..], &96u32.to_be_bytes()].concat();
    assert_eq!(server.take_sent(), extended_chunk(true, chunk::OFFSET_HOLE, 3, 4000, &hole));
    for (code, offset) in [(command::FLUSH, 0), (command::READ, 7), (command::TRIM, 7), (command::CACHE, 7)] {
        server.serve(&asked(code, 0, 4, offset, 0), &mut volume);
        assert_eq!(server.take_sent(), extended_chunk(true, chunk::NONE, 4, offset, &[]), "command {code}");
    }
    server.serve(&asked(command::WRITE, flag::PAYLOAD_LEN, 5, EXPORT_BYTES, 3), &mut volume);
    server.serve(b"abc", &mut volume);
    assert_eq!(failed(&server.take_sent()), (chunk::ERROR, 28, EXPORT_BYTES));
    // A place is told by the error too.
    server.feed(&asked(command::READ, 0, 6, 100, 50));
    let failure = Failure { code: ErrorCode::Io, offset: Some(110), message: "damaged".into() };
    server.connection.fail(server.work[0].0.id, failure, &mut server.sent);
    assert!(server.sent.ends_with(&110u64.to_be_bytes()));
    assert_eq!(failed(&server.take_sent()), (chunk::ERROR_OFFSET, 5, 100));
}

#[test]
fn a_payload_where_none_belongs_is_skipped_and_refused() {
    let mut server = server();
    for code in [command::READ, command::FLUSH, command::TRIM, command::BLOCK_STATUS, 99] {
        server.feed(&[asked(code, flag::PAYLOAD_LEN, 1, 0, 5), b"12345".to_vec()].concat());
        assert_eq!(failed(&server.take_sent()), (chunk::ERROR, 22, 0), "command {code}");
        assert!(server.work.is_empty() && server.inbox.is_empty());
    }
    server.feed(&asked(command::READ, flag::PAYLOAD_LEN, 1, 0, u64::MAX));
    assert_eq!(server.connection.closed(), Some(&Closed::PayloadLength(u64::MAX)));
}

#[test]
fn requests_of_the_other_framing_are_not_understood() {
    let mut server = server();
    server.feed(&request(command::FLUSH, 0, 1, 0, 0));
    server.feed(&[0; 4]);
    assert_eq!(server.connection.closed(), Some(&Closed::RequestMagic(REQUEST_MAGIC)));
    let mut server = Server::ready(Limits::default(), "demo", Framing::Structured);
    server.feed(&asked(command::FLUSH, 0, 1, 0, 0));
    assert_eq!(server.connection.closed(), Some(&Closed::RequestMagic(EXTENDED_REQUEST_MAGIC)));
}

#[test]
fn a_write_that_does_not_say_that_it_has_a_payload_has_one_nevertheless() {
    // QEMU's client (10.0) sends such.
    let mut volume = Volume::of(20_000);
    let mut server = server();
    server.serve(&[asked(command::WRITE, flag::FUA, 1, 0, 3), b"abc".to_vec()].concat(), &mut volume);
    assert_eq!(server.take_sent(), extended_chunk(true, chunk::NONE, 1, 0, &[]));
    assert_eq!(volume.bytes[..3], *b"abc");
    let mut server = Server::ready(small_pieces(), "frozen", Framing::Extended);
    server.feed(&[asked(command::WRITE, 0, 1, 0, 3), b"abc".to_vec()].concat());
    assert_eq!(failed(&server.take_sent()), (chunk::ERROR, 1, 0));
    server.feed(&asked(command::FLUSH, 0, 2, 0, 0));
    assert_eq!(server.sent, extended_chunk(true, chunk::NONE, 2, 0, &[]));
}

#[test]
fn an_export_is_not_chosen_in_the_old_way() {
    let mut server = Server::new(Limits::default());
    let options = [option_bytes(option::EXTENDED_HEADERS, &[]), option_bytes(option::EXPORT_NAME, b"demo")];
    server.feed(&flags_and(&[&options[0], &options[1]]));
    assert_eq!(server.connection.closed(), Some(&Closed::OldWay));
}

/// A server of an export of 5 TiB.
fn large() -> Server {
    let exports = Exports::new(vec![Export::new("demo", "", LARGE_BYTES, false)]).unwrap();
    let mut sent = Vec::new();
    let connection = Connection::new(exports, Limits::default(), &mut sent);
    let mut server = Server { connection, inbox: Vec::new(), work: Vec::new(), sent };
    server.feed(&handshake_to("demo", Framing::Extended));
    server.sent.clear();
    server
}

const LARGE_BYTES: u64 = 5 << 40;

#[test]
fn what_comes_behind_a_long_request_is_served_meanwhile() {
    let mut server = large();
    server.feed(&asked(command::TRIM, 0, 1, 0, LARGE_BYTES));
    let trims = server.work.len();
    assert!(trims > 2 && server.connection.goes_on_by_completions());
    assert!(matches!(server.connection.waiting(), Waiting::Bytes(_)), "more is taken in");
    // Of two long ones each has its turn; a read and a write come between.
    server.feed(&asked(command::WRITE_ZEROES, 0, 2, 0, 1 << 40));
    server.feed(&asked(command::READ, 0, 3, 0, 4096));
    server.feed(&[asked(command::WRITE, flag::PAYLOAD_LEN, 4, 8192, 3), b"abc".to_vec()].concat());
    let others: Vec<_> = operations(&server).split_off(trims);
    assert!(matches!(others[..], [Operation::Read { .. }, Operation::Write { .. }]), "{others:?}");
    let mut seen = [0, 0];
    for (request, _) in server.work.drain(..trims).collect::<Vec<_>>() {
        server.connection.complete(request.id, &mut server.sent);
    }
    server.feed(&[]);
    for operation in operations(&server) {
        match operation {
            Operation::Trim { .. } => seen[0] += 1,
            Operation::WriteZeroes { .. } => seen[1] += 1,
            _ => {}
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    // A server that goes away says so, and a client that takes leave is answered first.
    server.feed(&asked(command::DISCONNECT, 0, 0, 0, 0));
    server.connection.shut_down();
    for (request, _) in std::mem::take(&mut server.work) {
        match request.operation {
            Operation::Read { .. } => server.connection.complete_hole(request.id, &mut server.sent),
            _ => server.connection.complete(request.id, &mut server.sent),
        }
    }
    server.feed(&[]);
    assert!(server.work.is_empty());
    assert_eq!(server.connection.closed(), Some(&Closed::Disconnected));
}

#[test]
fn a_volume_of_tebibytes_is_trimmed_and_looked_at_by_one_request() {
    const BYTES: u64 = LARGE_BYTES;
    let mut server = large();
    server.feed(&asked(command::BLOCK_STATUS, 0, 1, 0, BYTES));
    let (status, _) = server.work.pop().unwrap();
    assert_eq!(status.operation, Operation::Extents { offset: 0, length: BYTES, first_only: false });
    let extents =
        [(4096, false), (BYTES - 4096, true)].map(|(length, hole)| Extent { length, hole, zero: hole });
    server.connection.complete_extents(status.id, extents, &mut server.sent);
    let words = [4096, 0, BYTES - 4096, 3].map(u64::to_be_bytes).concat();
    let payload = [&1u32.to_be_bytes()[..], &2u32.to_be_bytes(), &words].concat();
    assert_eq!(server.take_sent(), extended_chunk(true, chunk::BLOCK_STATUS_EXT, 1, 0, &payload));
    // Object by object, and never more at a time than the connection may have.
    server.feed(&asked(command::TRIM, 0, 2, 0, BYTES));
    let (mut trimmed, mut most) = (0, 0);
    while !server.work.is_empty() {
        most = most.max(server.work.len());
        for (request, _) in std::mem::take(&mut server.work) {
            let Operation::Trim { offset, length } = request.operation else { panic!("{request:?}") };
            assert_eq!((offset, length), (trimmed, base::OBJECT_BYTES));
            trimmed += length;
            server.connection.complete(request.id, &mut server.sent);
        }
        server.feed(&[]);
    }
    assert_eq!(trimmed, BYTES);
    assert!((2..=64).contains(&most), "{most}");
    assert_eq!(server.sent, extended_chunk(true, chunk::NONE, 2, 0, &[]));
}

#[test]
fn a_client_takes_what_the_server_knows() {
    let (mut client, mut events, mut sent) = (Client::new("demo", Framing::Extended), Vec::new(), Vec::new());
    let mut hear = |client: &mut Client, bytes: &[u8]| {
        client.handle_bytes(bytes, &mut events, &mut sent);
        std::mem::take(&mut sent)
    };
    let refusal = |code: u32| {
        let kind = reply::ERR_UNSUP.to_be_bytes();
        [&protocol::OPTION_REPLY_MAGIC.to_be_bytes()[..], &code.to_be_bytes(), &kind, &[0; 4]].concat()
    };
    let asked = hear(&mut client, b"NBDMAGICIHAVEOPT\0\x03");
    assert!(asked.ends_with(&option_bytes(option::EXTENDED_HEADERS, &[])));
    let asked = hear(&mut client, &refusal(option::EXTENDED_HEADERS));
    assert_eq!(asked, option_bytes(option::STRUCTURED_REPLY, &[]));
    let asked = hear(&mut client, &refusal(option::STRUCTURED_REPLY));
    assert_eq!(asked, option_bytes(option::GO, &info_data("demo", &[3])));
    assert_eq!(client.closed(), None);
}
