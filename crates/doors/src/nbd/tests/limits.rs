//! What a connection may occupy, and that it goes on after it was at a bound.

use super::*;

#[test]
fn at_the_bound_of_requests_it_stops_consuming() {
    let mut server =
        Server::ready(Limits { requests_in_flight_max: 3, ..Limits::default() }, "demo", Framing::Simple);
    let reads: Vec<u8> = (0..10).flat_map(|cookie| read(cookie, 0, 1)).collect();
    server.feed(&reads);
    assert_eq!(server.work.len(), 3);
    assert_eq!(server.inbox.len(), 7 * 28);
    assert_eq!(server.connection.waiting(), Waiting::Completion);
    let mut volume = Volume::new();
    server.serve(&[], &mut volume);
    assert_eq!(server.sent.len(), 10 * 17);
    assert_eq!(server.connection.in_flight(), 0);
    assert_eq!(server.connection.waiting(), Waiting::Bytes(28));
}

#[test]
fn at_the_bound_of_bytes_a_long_read_waits_for_its_own_pieces() {
    let limits = Limits { bytes_in_flight_max: 10_000, ..small_pieces() };
    let mut server = Server::ready(limits, "demo", Framing::Structured);
    server.feed(&[read(1, 0, 40_960), read(2, 0, 4096)].concat());
    let mut handed_out = 0;
    let mut volume = Volume::new();
    while let Some(work) = (!server.work.is_empty()).then(|| server.work.remove(0)) {
        handed_out += 1;
        assert!(server.work.len() < 2, "two pieces fit");
        volume.perform(&mut server.connection, work, &mut server.sent);
        server.feed(&[]);
    }
    assert_eq!(handed_out, 11);
    assert_eq!(server.connection.in_flight(), 0);
    assert_eq!(server.sent.len(), 11 * (28 + 4096));
}

#[test]
fn a_read_in_one_go_waits_until_all_of_it_fits() {
    let limits = Limits { bytes_in_flight_max: 10_000, ..small_pieces() };
    let mut server = Server::ready(limits, "demo", Framing::Simple);
    server.feed(&[read(1, 0, 4096), read(2, 0, 8192), read(3, 0, 4096)].concat());
    assert_eq!(server.work.len(), 1);
    let mut volume = Volume::new();
    let work = server.work.remove(0);
    volume.perform(&mut server.connection, work, &mut server.sent);
    server.feed(&[]);
    assert_eq!(server.work.len(), 2, "both pieces, and not yet the third request");
    // The first piece is kept, so its room is not free.
    let work = server.work.remove(0);
    volume.perform(&mut server.connection, work, &mut server.sent);
    server.feed(&[]);
    assert_eq!(server.work.len(), 1);
    server.serve(&[], &mut volume);
    assert_eq!(server.sent.len(), 3 * 16 + 4 * 4096);
}

#[test]
fn a_request_larger_than_the_bound_goes_alone() {
    let limits = Limits { bytes_in_flight_max: 5000, ..small_pieces() };
    let mut server = Server::ready(limits, "demo", Framing::Simple);
    server.feed(&[read(1, 0, 20_000), read(2, 0, 1)].concat());
    assert_eq!(server.work.len(), 5);
    let mut volume = Volume::new();
    server.serve(&[], &mut volume);
    assert_eq!(server.sent.len(), 2 * 16 + 20_001);
}

#[test]
fn writes_wait_for_room_and_leave_their_payload_outside() {
    let limits = Limits { bytes_in_flight_max: 8192, ..small_pieces() };
    let mut server = Server::ready(limits, "demo", Framing::Simple);
    server.feed(&write(1, 0, &[1; 20_000]));
    assert_eq!(server.work.len(), 2);
    assert_eq!(server.inbox.len(), 20_000 - 8192);
    assert_eq!(server.connection.waiting(), Waiting::Completion);
    let mut volume = Volume::new();
    server.serve(&[], &mut volume);
    assert_eq!(server.sent, simple(0, 1));
    assert!(volume.bytes[..20_000].iter().all(|byte| *byte == 1));
}

#[test]
fn a_trim_of_everything_is_handed_out_little_by_little() {
    let exports = Exports::new(vec![Export::new("large", "", 64 << 40, false)]).unwrap();
    let mut sent = Vec::new();
    let mut connection = Connection::new(exports, Limits::default(), &mut sent);
    let mut requests = Vec::new();
    let bytes =
        [handshake_to("large", Framing::Simple), request(command::TRIM, 0, 1, 4096, u32::MAX)].concat();
    connection.handle_bytes(&bytes, &mut requests, &mut sent);
    sent.clear();
    let mut trimmed = 0;
    while let Some(next) = requests.pop() {
        assert!(requests.len() < 128);
        let Operation::Trim { length, .. } = next.operation else { unreachable!() };
        trimmed += length;
        connection.complete(next.id, &mut sent);
        connection.handle_bytes(&[], &mut requests, &mut sent);
    }
    assert_eq!(trimmed, u64::from(u32::MAX));
    assert_eq!(sent, simple(0, 1));
}

#[test]
fn a_failure_stops_the_handing_out() {
    let limits = Limits { bytes_in_flight_max: 8192, ..small_pieces() };
    let mut server = Server::ready(limits, "demo", Framing::Structured);
    server.feed(&[read(1, 0, 1 << 20), read(2, 0, 1)].concat());
    assert_eq!(server.work.len(), 2);
    for (request, _) in std::mem::take(&mut server.work) {
        server.connection.fail(request.id, Failure::new(ErrorCode::Io, "gone"), &mut server.sent);
    }
    server.feed(&[]);
    assert_eq!(parse_error(&server.sent), (5, "gone".into(), None));
    assert_eq!(server.work.len(), 1, "the next request is handed out");
    assert_eq!(server.connection.in_flight(), 1);
}

#[test]
fn it_says_how_much_room_the_next_unit_needs() {
    let mut server = Server::new(Limits::default());
    assert_eq!(server.connection.waiting(), Waiting::Bytes(4));
    server.feed(&3u32.to_be_bytes());
    assert_eq!(server.connection.waiting(), Waiting::Bytes(16));
    let go = option_bytes(option::GO, &info_data("demo", &[]));
    server.feed(&go[..20]);
    assert_eq!(server.connection.waiting(), Waiting::Bytes(go.len()));
    server.feed(&go[20..]);
    assert_eq!(server.connection.waiting(), Waiting::Bytes(28));
    server.feed(&request(command::WRITE, 0, 1, 0, 1 << 20));
    assert_eq!(server.connection.waiting(), Waiting::Bytes(256 << 10));
}
