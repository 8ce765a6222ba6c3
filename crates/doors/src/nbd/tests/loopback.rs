//! Our client and our server, back to back.

use super::*;

/// Both ends and a volume.
struct Loop {
    server: Server,
    client: Client,
    volume: Volume,
    to_client: Vec<u8>,
    to_server: Vec<u8>,
    /// Data of reads, by token, as they come.
    read: Vec<u8>,
    read_offset: u64,
    done: Vec<(u64, Result<(), Failure>)>,
    info: Option<ExportInfo>,
}

impl Loop {
    fn new(limits: Limits, framing: Framing) -> Loop {
        let mut server = Server::new(limits);
        let to_client = server.take_sent();
        let mut both = Loop {
            server,
            client: Client::new("demo", framing),
            volume: Volume::of(16 << 20),
            to_client,
            to_server: Vec::new(),
            read: Vec::new(),
            read_offset: 0,
            done: Vec::new(),
            info: None,
        };
        both.settle(&mut || 0, 1000);
        assert!(both.client.is_ready(), "{:?} {:?}", both.client.closed(), both.server.connection.closed());
        both
    }

    /// Carries bytes and does work, in the order that `choose` says and in parts of at most `part_bytes`,
    /// until nothing moves.
    fn settle(&mut self, choose: &mut impl FnMut() -> usize, part_bytes: usize) {
        let mut inbox = Vec::new();
        loop {
            let part = self.to_server.len().min(part_bytes);
            self.server.feed(&self.to_server[..part]);
            self.to_server.drain(..part);
            let work_left = !self.server.work.is_empty();
            if work_left {
                let index = choose() % self.server.work.len();
                let work = self.server.work.swap_remove(index);
                self.volume.perform(&mut self.server.connection, work, &mut self.server.sent);
            }
            self.to_client.append(&mut self.server.sent);
            let taken = self.to_client.len().min(part_bytes);
            inbox.extend(self.to_client.drain(..taken));
            let mut events = Vec::new();
            let consumed = self.client.handle_bytes(&inbox, &mut events, &mut self.to_server);
            for event in events {
                self.take(event, &inbox);
            }
            inbox.drain(..consumed);
            assert_eq!(self.client.closed(), None);
            if !work_left && part == 0 && taken == 0 && self.to_server.is_empty() {
                assert!(inbox.is_empty());
                return;
            }
        }
    }

    fn take(&mut self, event: ClientEvent, inbox: &[u8]) {
        match event {
            ClientEvent::Connected(info) => self.info = Some(info),
            ClientEvent::Data { offset, data, .. } => {
                let at = (offset - self.read_offset) as usize;
                self.read[at..at + data.len()].copy_from_slice(&inbox[data]);
            }
            ClientEvent::Hole { offset, length, .. } => {
                let at = (offset - self.read_offset) as usize;
                self.read[at..at + length as usize].fill(0);
            }
            ClientEvent::Done { token, result } => self.done.push((token, result)),
        }
    }
}

#[test]
fn client_and_server_agree_on_the_export() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        let info = Loop::new(Limits::default(), framing).info.unwrap();
        assert_eq!((info.bytes, info.framing), (EXPORT_BYTES, framing));
        assert_eq!((info.request_bytes_min, info.request_bytes_max), (1, 32 << 20));
        assert_eq!(info.flags, exports().all()[0].transmission_flags(framing > Framing::Simple));
    }
}

#[test]
fn many_requests_in_flight_are_each_answered_once() {
    let mut both = Loop::new(Limits { requests_in_flight_max: 50, ..small_pieces() }, Framing::Structured);
    both.read = vec![0; 2000 * 4096];
    for token in 0..2000 {
        both.client.read(token, token * 4096, 4096, &mut both.to_server);
    }
    let mut turn = 0;
    both.settle(
        &mut || {
            turn += 7;
            turn
        },
        10_000,
    );
    assert!(both.read == both.volume.bytes[..both.read.len()]);
    let mut tokens: Vec<u64> =
        both.done.iter().map(|(token, result)| (*token, result.clone().unwrap()).0).collect();
    assert_ne!(tokens, (0..2000).collect::<Vec<_>>(), "they were answered out of order");
    tokens.sort_unstable();
    assert_eq!(tokens, (0..2000).collect::<Vec<_>>());
    assert_eq!((both.client.in_flight(), both.server.connection.in_flight()), (0, 0));
}

#[test]
fn failures_reach_the_client_with_their_words() {
    let mut both = Loop::new(Limits::default(), Framing::Structured);
    both.client.read(1, EXPORT_BYTES, 1, &mut both.to_server);
    both.client.write(2, EXPORT_BYTES - 1, Buffer::new(10), 0..10, false, &mut both.to_server);
    both.client.flush(3, &mut both.to_server);
    both.settle(&mut || 0, 1000);
    let codes: Vec<_> =
        both.done.iter().map(|(token, result)| (*token, result.as_ref().map_err(|f| f.code))).collect();
    assert_eq!(codes, [(1, Err(ErrorCode::Invalid)), (2, Err(ErrorCode::NoSpace)), (3, Ok(&()))]);
    assert!(both.done[0].1.as_ref().unwrap_err().message.contains("beyond the end of \"demo\""));
}

#[test]
fn both_ends_part_cleanly() {
    let mut both = Loop::new(Limits::default(), Framing::Structured);
    both.client.disconnect(&mut both.to_server);
    both.settle(&mut || 0, 1000);
    assert_eq!(both.server.connection.closed(), Some(&Closed::Disconnected));
}

#[derive(Clone, Debug)]
enum Step {
    Read { offset: u64, length: u32 },
    Write { offset: u64, length: u32, seed: u8 },
    Trim { offset: u64, length: u32 },
    Zero { offset: u64, length: u32, may_punch: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..100_000u64, 1..30_000u32);
    prop_oneof![
        range.clone().prop_map(|(offset, length)| Step::Read { offset, length }),
        (range.clone(), 1..255u8).prop_map(|((offset, length), seed)| Step::Write { offset, length, seed }),
        range.clone().prop_map(|(offset, length)| Step::Trim { offset, length }),
        (range, any::<bool>()).prop_map(|((offset, length), may_punch)| Step::Zero {
            offset,
            length,
            may_punch
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn what_was_written_is_read(
        framing in framings(),
        bytes_in_flight_max in 1..60_000u64,
        part_bytes in 1..9000usize,
        choices in prop::collection::vec(any::<usize>(), 1..30),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut both = Loop::new(Limits { bytes_in_flight_max, ..small_pieces() }, framing);
        let mut model = both.volume.bytes[..200_000].to_vec();
        let mut choices = choices.into_iter().cycle();
        let mut choose = || choices.next().unwrap();
        for (token, step) in (0..).zip(steps) {
            let mut expected = None;
            match step {
                Step::Read { offset, length } => {
                    both.read = vec![0xaa; length as usize];
                    both.read_offset = offset;
                    expected = Some(model[offset as usize..][..length as usize].to_vec());
                    both.client.read(token, offset, length, &mut both.to_server);
                }
                Step::Write { offset, length, seed } => {
                    let mut buffer = Buffer::new(length as usize + 3);
                    let data = &mut buffer.bytes_mut().unwrap()[3..][..length as usize];
                    data.iter_mut().enumerate().for_each(|(at, byte)| *byte = seed.wrapping_mul(at as u8));
                    model[offset as usize..][..length as usize].copy_from_slice(data);
                    let range = 3..3 + length as usize;
                    both.client.write(token, offset, buffer, range, true, &mut both.to_server);
                }
                Step::Trim { offset, length } => {
                    model[offset as usize..][..length as usize].fill(0);
                    both.client.trim(token, offset, length.into(), &mut both.to_server);
                }
                Step::Zero { offset, length, may_punch } => {
                    model[offset as usize..][..length as usize].fill(0);
                    both.client.write_zeroes(token, offset, length.into(), may_punch, &mut both.to_server);
                }
            }
            both.settle(&mut choose, part_bytes);
            prop_assert_eq!(both.done.pop(), Some((token, Ok(()))));
            if let Some(expected) = expected {
                prop_assert!(both.read == expected);
            }
        }
        prop_assert!(both.volume.bytes[..200_000] == model);
    }
}
