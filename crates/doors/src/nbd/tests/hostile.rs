//! Whatever comes, nothing panics, every request lies within its export, every bound holds.

use super::*;

/// Feeds `bytes` in parts of `part_bytes`, and answers requests as `choices` say: in which order, and
/// whether with success.
fn torment(mut server: Server, bytes: &[u8], part_bytes: usize, choices: &[u8]) {
    let mut choices = choices.iter().copied().cycle();
    let mut choose = || choices.next().unwrap_or(0);
    let mut parts = bytes.chunks(part_bytes);
    loop {
        let part = parts.next();
        server.feed(part.unwrap_or_default());
        server.sent.clear();
        assert!(server.connection.in_flight() <= 16);
        let bytes_out: usize = server
            .work
            .iter()
            .map(|(request, _)| match &request.operation {
                Operation::Read { length, .. } => *length,
                Operation::Write { data, .. } => data.len(),
                _ => 0,
            })
            .sum();
        // One request may go alone beyond the bound.
        assert!(bytes_out <= 20_000 + (32 << 20));
        if server.connection.closed().is_some() {
            assert_eq!(server.connection.waiting(), Waiting::Close);
        }
        let count = server.work.len();
        let answered = if part.is_some() { usize::from(choose()) % (count + 1) } else { count };
        for _ in 0..answered {
            let (request, _) = server.work.swap_remove(usize::from(choose()) % server.work.len());
            answer(&mut server, &request, choose());
        }
        if part.is_none() && count == 0 {
            break;
        }
    }
    if server.connection.closed().is_none() {
        assert!(!matches!(server.connection.waiting(), Waiting::Completion), "all is completed");
    }
}

fn answer(server: &mut Server, request: &Request, choice: u8) {
    let within = |offset: u64, length: u64| {
        assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= EXPORT_BYTES));
    };
    let (connection, sent) = (&mut server.connection, &mut server.sent);
    let id = request.id;
    match &request.operation {
        Operation::Read { offset, length } => within(*offset, *length as u64),
        Operation::Write { offset, data, .. } => within(*offset, data.len() as u64),
        Operation::Trim { offset, length }
        | Operation::WriteZeroes { offset, length, .. }
        | Operation::Extents { offset, length, .. } => within(*offset, *length),
    }
    if choice.is_multiple_of(4) {
        let failure = Failure { code: ErrorCode::Io, offset: Some(u64::from(choice)), message: "no".into() };
        return connection.fail(id, failure, sent);
    }
    match &request.operation {
        Operation::Read { length, .. } if choice.is_multiple_of(2) => {
            connection.complete_read(id, [ReadPart::Zeros(*length)], sent);
        }
        Operation::Read { .. } => connection.complete_hole(id, sent),
        Operation::Extents { .. } => {
            let extent = Extent { length: u64::from(choice), hole: true, zero: true };
            connection.complete_extents(id, [extent; 3], sent);
        }
        _ => connection.complete(id, sent),
    }
}

fn limits() -> Limits {
    Limits { requests_in_flight_max: 16, bytes_in_flight_max: 20_000, ..small_pieces() }
}

/// Requests that are nearly right: the magic number and some fields are, so that they get far.
fn near_requests(framing: Framing) -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..EXPORT_BYTES, Just(EXPORT_BYTES - 1), any::<u64>()];
    let length = prop_oneof![
        8 => 0..9000u64,
        1 => 0..(64u64 << 20),
        1 => any::<u32>().prop_map(u64::from),
        1 => any::<u64>(),
    ];
    let flags = prop_oneof![3 => Just(0), 2 => 0..64u16, 1 => any::<u16>()];
    let one = (0..9u16, flags, any::<u64>(), offset, length, any::<bool>()).prop_map(
        move |(code, flags, cookie, offset, length, payload)| {
            let mut bytes = request_in(framing, code, flags, cookie, offset, length);
            if code == command::WRITE && payload {
                bytes.resize(bytes.len() + length.min(20_000) as usize, 0x55);
            }
            bytes
        },
    );
    prop::collection::vec(one, 0..12).prop_map(|requests| requests.concat())
}

/// Options that are nearly right.
fn near_options() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof!["demo", "frozen", "", "[a-z]{0,20}"];
    let data = prop_oneof![
        (name.clone(), prop::collection::vec(0..5u16, 0..4))
            .prop_map(|(name, kinds)| info_data(&name, &kinds)),
        name.clone().prop_map(|name| context_data(&name, &["base:", ALLOCATION_CONTEXT])),
        name.prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let code = prop_oneof![5 => 0..12u32, 1 => any::<u32>()];
    let one = (code, data).prop_map(|(code, data)| option_bytes(code, &data));
    prop::collection::vec(one, 0..12).prop_map(|options| options.concat())
}

fn flip(bytes: &mut [u8], flips: &[(prop::sample::Index, u8)]) {
    for (place, mask) in flips.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
        bytes[place.index(bytes.len())] ^= mask;
    }
}

fn flips() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_harm_nobody(
        start in 0..3u8,
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        part_bytes in 1..100usize,
        choices in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let mut server = match start {
            2 => Server::ready(limits(), "demo", Framing::Structured),
            _ => Server::new(limits()),
        };
        if start == 1 {
            server.feed(&3u32.to_be_bytes());
        }
        torment(server, &bytes, part_bytes, &choices);
    }

    #[test]
    fn options_that_are_nearly_right_harm_nobody(
        options in near_options(),
        requests in framings().prop_flat_map(near_requests),
        flips in flips(),
        part_bytes in 1..5000usize,
        choices in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let mut bytes = [flags_and(&[&options]), requests].concat();
        flip(&mut bytes, &flips);
        torment(Server::new(limits()), &bytes, part_bytes, &choices);
    }

    #[test]
    fn requests_that_are_nearly_right_harm_nobody(
        (framing, mut bytes) in framings().prop_flat_map(|framing| (Just(framing), near_requests(framing))),
        flips in flips(),
        part_bytes in 1..5000usize,
        choices in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        flip(&mut bytes, &flips);
        torment(Server::ready(limits(), "demo", framing), &bytes, part_bytes, &choices);
    }
}
