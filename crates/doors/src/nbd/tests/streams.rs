//! However the bytes of a client are cut on their way, the same comes out.

use super::*;

/// One request at a time, so that the order of replies does not depend on the cuts.
fn one_at_a_time() -> Limits {
    Limits { requests_in_flight_max: 1, ..small_pieces() }
}

/// All of the protocol in few bytes.
fn conversation(framing: Framing) -> Vec<u8> {
    let mut bytes = handshake_to("nonsense", framing);
    bytes.extend(&handshake_to("demo", framing)[4..]);
    let say = |code, flags, cookie, offset, length| request_in(framing, code, flags, cookie, offset, length);
    bytes.extend(say(command::READ, 0, 1, 100, 5000));
    bytes.extend([say(command::WRITE, 0, 2, 4000, 200), vec![7; 200]].concat());
    bytes.extend(say(command::READ, flag::DF, 3, 4000, 300));
    bytes.extend(say(command::TRIM, 0, 4, 4096, 4096));
    bytes.extend(say(command::READ, 0, 5, 4096, 4096));
    bytes.extend(say(command::BLOCK_STATUS, 0, 6, 0, 16_384));
    bytes.extend(say(9, 0, 7, 0, 0));
    bytes.extend([say(command::WRITE, 0, 8, EXPORT_BYTES, 50), vec![1; 50]].concat());
    if framing == Framing::Extended {
        // A payload where there is none.
        bytes.extend([say(command::TRIM, flag::PAYLOAD_LEN, 8, 0, 30), vec![1; 30]].concat());
    }
    bytes.extend(say(command::FLUSH, 0, 9, 0, 0));
    bytes.extend(say(command::DISCONNECT, 0, 0, 0, 0));
    bytes
}

/// What is sent when the bytes come in these parts, and what the volume is like at the end.
fn outcome<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut volume = Volume::of(20_000);
    let mut server = Server::new(one_at_a_time());
    for part in parts {
        server.serve(part, &mut volume);
    }
    let mut sent = server.take_sent();
    sent.extend_from_slice(format!("{:?}", server.connection.closed()).as_bytes());
    sent.extend_from_slice(&volume.bytes);
    sent
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        let bytes = conversation(framing);
        let expected = outcome([&bytes[..]]);
        for at in 0..=bytes.len() {
            let found = outcome([&bytes[..at], &bytes[at..]]);
            assert!(found == expected, "a cut at byte {at} of {}", bytes.len());
        }
        let found = outcome(bytes.chunks(1));
        assert!(found == expected, "byte by byte");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_cuts_at_all_change_nothing(
        framing in framings(),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let bytes = conversation(framing);
        let expected = outcome([&bytes[..]]);
        let mut places: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len())).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let parts = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        prop_assert!(outcome(parts) == expected);
    }
}
