//! However the bytes of a client are cut on their way, the same comes out.

use super::*;
use proptest::prelude::*;

/// One request at a time, so that the order of replies does not depend on the cuts.
fn one_at_a_time() -> Limits {
    Limits { requests_in_flight_max: 1, ..small_pieces() }
}

/// All of the protocol in few bytes.
fn conversation(structured: bool) -> Vec<u8> {
    let mut bytes = handshake_to("nonsense", structured);
    bytes.extend(&handshake_to("demo", structured)[4..]);
    bytes.extend(read(1, 100, 5000));
    bytes.extend(write(2, 4000, &[7; 200]));
    bytes.extend(read_whole(3, 4000, 300));
    bytes.extend(request(command::TRIM, 0, 4, 4096, 4096));
    bytes.extend(read(5, 4096, 4096));
    bytes.extend(request(command::BLOCK_STATUS, 0, 6, 0, 16_384));
    bytes.extend(request(9, 0, 7, 0, 0));
    bytes.extend(write(8, EXPORT_BYTES, &[1; 50]));
    bytes.extend(request(command::FLUSH, 0, 9, 0, 0));
    bytes.extend(request(command::DISCONNECT, 0, 0, 0, 0));
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
    for structured in [false, true] {
        let bytes = conversation(structured);
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
        structured: bool,
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let bytes = conversation(structured);
        let expected = outcome([&bytes[..]]);
        let mut places: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len())).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let parts = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        prop_assert!(outcome(parts) == expected);
    }
}
