//! Clients that must encrypt, and those that have: what they are told, see and may do.

use super::*;
use crate::nbd::negotiation::{Negotiation, Step};
use protocol::option_reply as reply;

/// The kinds of the replies there are, in order.
fn kinds(mut sent: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !sent.is_empty() {
        let number = |at: usize| u32::from_be_bytes(sent[at..at + 4].try_into().unwrap());
        kinds.push(number(12));
        sent = &sent[20 + number(16) as usize..];
    }
    kinds
}

/// One that has encrypted, on those terms.
fn encrypted(terms: Terms) -> Server {
    let connection = Connection::encrypted(exports(), Limits::default(), terms, false);
    Server { connection, inbox: Vec::new(), work: Vec::new(), sent: Vec::new() }
}

/// The kinds of what it is answered.
fn answered(terms: &Terms, code: u32, data: &[u8]) -> Vec<u32> {
    let mut server = encrypted(terms.clone());
    server.feed(&option_bytes(code, data));
    kinds(&server.sent)
}

#[test]
fn who_must_encrypt_has_nothing_before_it_does() {
    let mut sent = Vec::new();
    let mut negotiation = Negotiation::start(exports(), Terms::MustEncrypt, &mut sent);
    let mut step = |bytes: &[u8]| {
        let mut sent = Vec::new();
        let step = negotiation.step(bytes, false, &mut sent);
        (step, sent)
    };
    assert!(matches!(step(&3u32.to_be_bytes()), (Step::Consumed(4), _)));
    for (code, data) in [
        (option::LIST, vec![]),
        (option::STRUCTURED_REPLY, vec![]),
        (option::INFO, info_data("demo", &[])),
        (option::GO, info_data("demo", &[])),
        (option::STARTTLS, b"x".to_vec()),
        (99, vec![]),
    ] {
        let (next, sent) = step(&option_bytes(code, &data));
        assert!(matches!(next, Step::Consumed(_)), "option {code}");
        assert_eq!(kinds(&sent), [reply::ERR_TLS_REQD], "option {code}");
    }
    assert!(matches!(step(&option_bytes(option::EXPORT_NAME, b"demo")).0, Step::Closed(..)));
    let starttls = option_bytes(option::STARTTLS, &[]);
    // Whatever follows in the clear is not taken for what the client says behind it.
    let (next, sent) = step(&[starttls.clone(), option_bytes(option::LIST, &[])].concat());
    assert!(matches!(next, Step::Encrypt(count) if count == starttls.len()));
    assert_eq!(kinds(&sent), [reply::ACK]);
}

#[test]
fn a_client_sees_the_exports_that_it_may_see_and_writes_where_it_may() {
    use Admittance::{Hidden, Read, Write};
    let demo = |terms: &Terms, code| answered(terms, code, &info_data("demo", &[]));
    let all = Terms::Admitted(vec![Write, Write]);
    assert_eq!(answered(&all, option::LIST, &[]), [reply::SERVER, reply::SERVER, reply::ACK]);
    assert_eq!(answered(&all, option::STARTTLS, &[]), [reply::ERR_INVALID], "it has encrypted already");
    let hidden = Terms::Admitted(vec![Hidden, Write]);
    assert_eq!(answered(&hidden, option::LIST, &[]), [reply::SERVER, reply::ACK]);
    for code in [option::INFO, option::GO] {
        assert_eq!(demo(&hidden, code), [reply::ERR_UNKNOWN]);
        assert_eq!(demo(&Terms::Admitted(vec![]), code), [reply::ERR_UNKNOWN]);
    }
    let mut server = encrypted(hidden);
    server.feed(&option_bytes(option::EXPORT_NAME, b"demo"));
    assert_eq!(server.connection.closed(), Some(&Closed::ExportUnknown("demo".into())));

    for (terms, flags, error) in [
        (all, 0, None),
        (Terms::Admitted(vec![Read, Hidden]), protocol::transmission_flag::READ_ONLY, Some(1)),
    ] {
        let mut server = encrypted(terms);
        server.feed(&option_bytes(option::EXPORT_NAME, b"demo"));
        let told = u16::from_be_bytes(server.sent[8..10].try_into().unwrap());
        assert_eq!(told & protocol::transmission_flag::READ_ONLY, flags);
        server.sent.clear();
        server.feed(&write(7, 0, &[1; 512]));
        assert_eq!(
            (server.work.len(), server.sent.is_empty()),
            (usize::from(error.is_none()), error.is_none())
        );
        if let Some(error) = error {
            assert_eq!(server.sent, simple(error, 7));
        }
    }
}

#[test]
fn who_is_refused_is_told_why_whatever_it_asks() {
    let terms = Terms::Refused("the cluster does not know you".to_owned());
    for (code, data) in [(option::LIST, vec![]), (option::GO, info_data("demo", &[])), (99, vec![])] {
        let mut server = encrypted(terms.clone());
        server.feed(&option_bytes(code, &data));
        assert_eq!(kinds(&server.sent), [reply::ERR_POLICY], "option {code}");
        assert!(server.sent.ends_with(b"the cluster does not know you"));
        assert!(server.connection.is_negotiating());
    }
}
