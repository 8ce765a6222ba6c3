//! Handshakes, byte by byte.

use super::*;
use protocol::option_reply as reply;

/// A reply to an option as it should be.
fn option_reply(code: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    [&magic[..], &code.to_be_bytes(), &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn negotiating() -> Server {
    let mut server = Server::new(Limits::default());
    server.feed(&3u32.to_be_bytes());
    server.sent.clear();
    server
}

/// What a fresh connection answers to these options.
fn answers(options: &[Vec<u8>]) -> Vec<u8> {
    let mut server = negotiating();
    server.feed(&options.concat());
    server.sent
}

/// The kind of the only reply there is.
fn only_reply_kind(sent: &[u8]) -> u32 {
    let length = u32::from_be_bytes(sent[16..20].try_into().unwrap()) as usize;
    assert_eq!(sent.len(), 20 + length, "one reply");
    u32::from_be_bytes(sent[12..16].try_into().unwrap())
}

fn closed_by(options: &[Vec<u8>]) -> Closed {
    let mut server = negotiating();
    server.feed(&options.concat());
    assert_eq!(server.connection.waiting(), Waiting::Close);
    server.connection.closed().expect("it is closed").clone()
}

/// Flags of `demo` without structured replies, and with.
const FLAGS: u16 = 0b1101_0110_1101;
const FLAGS_STRUCTURED: u16 = FLAGS | 0b1000_0000;

#[test]
fn the_greeting_is_fixed_newstyle_without_zeroes() {
    assert_eq!(Server::new(Limits::default()).sent, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn a_client_of_the_old_way_gets_size_flags_and_padding() {
    let name = option_bytes(option::EXPORT_NAME, b"demo");
    let expected = [&EXPORT_BYTES.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
    for (flags, padding) in [(0u32, 124), (1, 124), (2, 0), (3, 0)] {
        let mut server = Server::new(Limits::default());
        server.sent.clear();
        server.feed(&[&flags.to_be_bytes()[..], &name].concat());
        assert_eq!(server.sent, [expected.clone(), vec![0; padding]].concat(), "flags {flags}");
        assert_eq!(server.connection.export(), Some(0));
    }
}

#[test]
fn an_unknown_export_asked_for_in_the_old_way_ends_the_connection() {
    let closed = closed_by(&[option_bytes(option::EXPORT_NAME, b"nonsense")]);
    assert_eq!(closed, Closed::ExportUnknown("nonsense".into()));
    assert!(!closed.is_clean());
}

#[test]
fn an_abort_is_acknowledged_and_ends_the_connection() {
    let mut server = negotiating();
    server.feed(&option_bytes(option::ABORT, &[]));
    assert_eq!(server.sent, option_reply(option::ABORT, reply::ACK, &[]));
    assert_eq!(server.connection.closed(), Some(&Closed::Aborted));
    assert!(Closed::Aborted.is_clean());
}

#[test]
fn a_list_names_and_describes_every_export() {
    let demo = [string("demo"), b"a volume to try".to_vec()].concat();
    let expected = [
        option_reply(option::LIST, reply::SERVER, &demo),
        option_reply(option::LIST, reply::SERVER, &string("frozen")),
        option_reply(option::LIST, reply::ACK, &[]),
    ];
    assert_eq!(answers(&[option_bytes(option::LIST, &[])]), expected.concat());
    assert_eq!(only_reply_kind(&answers(&[option_bytes(option::LIST, b"x")])), reply::ERR_INVALID);
}

#[test]
fn go_tells_block_size_and_size_and_begins_transmission() {
    let mut server = negotiating();
    server.feed(&option_bytes(option::GO, &info_data("demo", &[])));
    let block_size =
        [&3u16.to_be_bytes()[..], &1u32.to_be_bytes(), &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()];
    let size = [&0u16.to_be_bytes()[..], &EXPORT_BYTES.to_be_bytes(), &FLAGS.to_be_bytes()];
    let expected = [
        option_reply(option::GO, reply::INFO, &block_size.concat()),
        option_reply(option::GO, reply::INFO, &size.concat()),
        option_reply(option::GO, reply::ACK, &[]),
    ];
    assert_eq!(server.sent, expected.concat());
    assert_eq!(server.connection.export(), Some(0));
    assert!(!server.connection.is_negotiating());
}

#[test]
fn info_tells_what_is_asked_and_the_negotiation_goes_on() {
    let mut server = negotiating();
    server.feed(&option_bytes(option::STRUCTURED_REPLY, &[]));
    server.sent.clear();
    server.feed(&option_bytes(option::INFO, &info_data("demo", &[1, 2, 99])));
    let name = [&1u16.to_be_bytes()[..], b"demo"].concat();
    let description = [&2u16.to_be_bytes()[..], b"a volume to try"].concat();
    let size = [&0u16.to_be_bytes()[..], &EXPORT_BYTES.to_be_bytes(), &FLAGS_STRUCTURED.to_be_bytes()];
    let facts = [
        option_reply(option::INFO, reply::INFO, &name),
        option_reply(option::INFO, reply::INFO, &description),
    ];
    assert!(server.sent.starts_with(&facts.concat()));
    let end = [
        option_reply(option::INFO, reply::INFO, &size.concat()),
        option_reply(option::INFO, reply::ACK, &[]),
    ];
    assert!(server.sent.ends_with(&end.concat()));
    assert!(server.connection.is_negotiating());
}

#[test]
fn a_wrong_name_is_refused_and_the_right_one_still_accepted() {
    let mut server = negotiating();
    server.feed(&option_bytes(option::GO, &info_data("nonsense", &[])));
    assert_eq!(only_reply_kind(&server.sent), reply::ERR_UNKNOWN);
    assert!(String::from_utf8_lossy(&server.sent).contains("no export \"nonsense\""));
    server.feed(&option_bytes(option::GO, &info_data("frozen", &[])));
    assert_eq!(server.connection.export(), Some(1));
}

#[test]
fn the_empty_name_is_ambiguous_with_two_exports_and_names_the_only_one() {
    let go = option_bytes(option::GO, &info_data("", &[1]));
    assert_eq!(only_reply_kind(&answers(std::slice::from_ref(&go))), reply::ERR_UNKNOWN);
    let only = Exports::new(vec![Export::new("only", "", 1, false)]).unwrap();
    let mut sent = Vec::new();
    let mut connection = Connection::new(only, Limits::default(), &mut sent);
    connection.handle_bytes(&flags_and(&[&go]), &mut Vec::new(), &mut sent);
    assert_eq!(connection.export(), Some(0));
    assert!(String::from_utf8_lossy(&sent).contains("only"));
}

#[test]
fn malformed_options_are_refused() {
    let mut short = info_data("demo", &[1]);
    short.pop();
    let mut lying = info_data("demo", &[]);
    lying[0] = 0xff;
    for data in [vec![], short, lying, [info_data("demo", &[]), vec![0]].concat()] {
        for code in [option::GO, option::INFO] {
            assert_eq!(only_reply_kind(&answers(&[option_bytes(code, &data)])), reply::ERR_INVALID);
        }
    }
}

#[test]
fn metadata_contexts_need_structured_replies_first() {
    for code in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let sent = answers(&[option_bytes(code, &context_data("demo", &[ALLOCATION_CONTEXT]))]);
        assert_eq!(only_reply_kind(&sent), reply::ERR_INVALID);
    }
}

#[test]
fn metadata_queries_match_as_the_protocol_says() {
    let list = option::LIST_META_CONTEXT;
    let set = option::SET_META_CONTEXT;
    let cases: [(u32, &[&str], bool); 8] = [
        (list, &[], true),
        (list, &["base:"], true),
        (list, &["base:allocation"], true),
        (list, &["qemu:", "base:allo"], false),
        (set, &[], false),
        (set, &["base:"], false),
        (set, &["x-other:y", "base:allocation", "base:allocation"], true),
        (set, &["qemu:allocation-depth"], false),
    ];
    for (code, queries, matched) in cases {
        let mut server = negotiating();
        server.feed(&option_bytes(option::STRUCTURED_REPLY, &[]));
        server.sent.clear();
        server.feed(&option_bytes(code, &context_data("demo", queries)));
        let id = u32::from(code == set).to_be_bytes();
        let context = option_reply(code, reply::META_CONTEXT, &[&id[..], b"base:allocation"].concat());
        let context = if matched { context } else { Vec::new() };
        assert_eq!(server.sent, [context, option_reply(code, reply::ACK, &[])].concat(), "{queries:?}");
    }
}

#[test]
fn metadata_options_with_lying_counts_or_wrong_exports_are_refused() {
    let ask = option_bytes(option::STRUCTURED_REPLY, &[]);
    let answer = |data: Vec<u8>| {
        let mut server = negotiating();
        server.feed(&ask);
        server.sent.clear();
        server.feed(&option_bytes(option::SET_META_CONTEXT, &data));
        only_reply_kind(&server.sent)
    };
    let many = [string("demo"), u32::MAX.to_be_bytes().to_vec()].concat();
    assert_eq!(answer(many), reply::ERR_INVALID);
    assert_eq!(answer([context_data("demo", &["base:allocation"]), vec![1]].concat()), reply::ERR_INVALID);
    assert_eq!(answer(context_data("nonsense", &["base:allocation"])), reply::ERR_UNKNOWN);
}

#[test]
fn what_is_not_supported_is_refused_and_the_negotiation_goes_on() {
    for code in [option::STARTTLS, 4, 12, 4711, u32::MAX] {
        let mut server = negotiating();
        server.feed(&option_bytes(code, b"some data"));
        assert_eq!(only_reply_kind(&server.sent), reply::ERR_UNSUP, "option {code}");
        server.feed(&option_bytes(option::GO, &info_data("demo", &[])));
        assert_eq!(server.connection.export(), Some(0));
    }
}

#[test]
fn a_long_option_is_skipped_and_refused_and_an_absurd_one_ends_the_connection() {
    let mut server = negotiating();
    let long = option_bytes(4711, &vec![7; 500_000]);
    for part in long.chunks(1000) {
        server.feed(part);
        assert!(server.inbox.len() < 16, "it is not kept");
    }
    assert_eq!(only_reply_kind(&server.take_sent()), reply::ERR_TOO_BIG);
    server.feed(&option_bytes(option::GO, &info_data("demo", &[])));
    assert_eq!(server.connection.export(), Some(0));

    let absurd =
        [b"IHAVEOPT".to_vec(), 3u32.to_be_bytes().to_vec(), u32::MAX.to_be_bytes().to_vec()].concat();
    assert_eq!(closed_by(&[absurd]), Closed::OptionLength { option: 3, bytes: u32::MAX as usize });
    let name = option_bytes(option::EXPORT_NAME, &vec![b'x'; 20_000]);
    assert_eq!(closed_by(&[name]), Closed::OptionLength { option: 1, bytes: 20_000 });
}

#[test]
fn haggling_without_end_ends_the_connection() {
    let mut server = negotiating();
    let list = option_bytes(option::LIST, &[]).repeat(1000);
    for _ in 0..1000 {
        server.feed(&list);
        if server.connection.closed().is_some() {
            break;
        }
    }
    assert!(matches!(server.connection.closed(), Some(Closed::TooManyOptions(_))));
    assert!(server.sent.len() < 1 << 20);
}

#[test]
fn whoever_does_not_speak_the_protocol_is_told_so() {
    let mut server = Server::new(Limits::default());
    server.feed(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(server.connection.closed(), Some(&Closed::ClientFlags(0x4745_5420)));
    assert_eq!(closed_by(&[b"IHAVENOT12345678".to_vec()]), Closed::OptionMagic(0x4948_4156_454e_4f54));
}

#[test]
fn a_server_that_is_going_refuses_options_and_requests() {
    let mut server = negotiating();
    server.connection.shut_down();
    server.feed(&option_bytes(option::GO, &info_data("demo", &[])));
    assert_eq!(only_reply_kind(&server.take_sent()), reply::ERR_SHUTDOWN);
    server.feed(&option_bytes(option::EXPORT_NAME, b"demo"));
    assert_eq!(server.connection.closed(), Some(&Closed::ShuttingDown));

    let mut server = Server::ready(Limits::default(), "demo", Framing::Simple);
    server.feed(&read(1, 0, 1));
    server.connection.shut_down();
    server.feed(&read(2, 0, 1));
    assert_eq!(server.take_sent(), simple(108, 2));
    // What came before is still answered.
    let (request, _) = server.work.pop().unwrap();
    server.connection.complete_read(request.id, [ReadPart::Bytes(b"x")], &mut server.sent);
    assert_eq!(server.sent, [simple(0, 1), b"x".to_vec()].concat());
}

#[test]
fn nobody_begins_to_use_an_export_that_settles() {
    let go = option_bytes(option::GO, &info_data("demo", &[]));
    for choice in [go, option_bytes(option::EXPORT_NAME, b"demo")] {
        let (exports, mut requests, mut sent) = (exports(), Vec::new(), Vec::<u8>::new());
        let mut connection = Connection::new(exports.clone(), Limits::default(), &mut sent);
        exports.set_settling(0, true);
        let about = option_bytes(option::INFO, &info_data("demo", &[]));
        let bytes = flags_and(&[&about, &choice]);
        let consumed = connection.handle_bytes(&bytes, &mut requests, &mut sent);
        assert_eq!(bytes.len() - consumed, choice.len(), "it is told about it");
        assert_eq!(connection.waiting(), Waiting::Settlement);
        sent.clear();
        // However often it is asked, and whatever the client sends meanwhile.
        let behind = [&bytes[consumed..], &request(command::FLUSH, 0, 1, 0, 0)].concat();
        for _ in 0..1000 {
            assert_eq!(connection.handle_bytes(&behind, &mut requests, &mut sent), 0);
        }
        assert!(sent.is_empty() && connection.is_negotiating());
        exports.set_settling(0, false);
        assert_eq!(connection.handle_bytes(&behind, &mut requests, &mut sent), behind.len());
        assert_eq!(connection.export(), Some(0));
        // Who has begun goes on, and the other export is open.
        exports.set_settling(0, true);
        let flush = request(command::FLUSH, 0, 2, 0, 0);
        assert_eq!(connection.handle_bytes(&flush, &mut requests, &mut sent), flush.len());
        let mut other = Connection::new(exports, Limits::default(), &mut sent);
        other.handle_bytes(&handshake_to("frozen", Framing::Structured), &mut requests, &mut sent);
        assert_eq!(other.export(), Some(1));
    }
}
