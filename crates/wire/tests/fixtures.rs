//! Stored messages: what went over the wire once is understood, and sent, as it was.
//!
//! Each file of `fixtures/` has the bytes of one message in hexadecimal, `xx*n` for repetitions. A kind's bytes change only with
//! the version of the protocol; then a fixture is added, and those before stay.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::log_entry::{REPAIR, UNDONE};
use base::{
    BlockRange, ClientId, ClusterId, Epoch, Generation, LayerId, Limited, LogEntry, ObjectKey, OsdId, PgId,
    PoolId, Sequence, VolumeId,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use wire::*;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const PG: PgId = PgId { pool: PoolId(0x5152_5354), index: 0x0162 };
const KEY: ObjectKey = ObjectKey { pg: PG, layer: LayerId(0x1112_1314_1516_1718), object: 0x2122_2324 };
const EPOCH: Epoch = Epoch(0x3132_3334);
const GENERATION: Generation = Generation(0x4142_4344);
const SEQUENCE: Sequence = Sequence(0x6162_6364_6566_6768);
const ORIGIN: u64 = 0x0172_7374_7576_7778;
const NUMBER: u64 = 0x0102_0304_0506_0708;
const OSD: OsdId = OsdId(0x8182_8384);
const BLOCK: [u8; 4096] = [0xb1; 4096];
const SUMS: [U32; 2] = [U32::new(0xc1c2_c3c4), U32::new(0xd1d2_d3d4)];
/// Of one block: its checksum, and the sequence of its last change.
const WORDS: [U32; PUSH_WORDS] = [SUMS[0], U32::new(0x6566_6768), U32::new(0x6162_6364)];

/// What each fixture says.
fn messages() -> Vec<(&'static str, Message<'static>)> {
    let one_sum = &SUMS[..1];
    let cluster = ClusterId::from_bytes(std::array::from_fn(|at| 0xa0 + at as u8));
    let role = Role::Client(ClientId(0x9192_9394_9596_9798));
    let fourth = Versions::new(Version(4), Version(4)).unwrap();
    let hello = Hello { role, cluster, target: OSD, versions: fourth };
    let of_osd = Hello { role: Role::Osd(OsdId(0x9192_9394)), ..hello };
    let versions = Versions::new(Version(3), Version(0x0304)).unwrap();
    let request = Request {
        request: NUMBER,
        key: KEY,
        offset: 0x0001_3ffd,
        length: 10,
        epoch: EPOCH,
        generation: GENERATION,
        origin: ORIGIN,
        since: None,
        unverified: false,
        of_snapshot: false,
    };
    let allowance = Allowance {
        of: Limited::Volume(VolumeId(NUMBER)),
        is_all: false,
        reads: 0x0102_0304,
        changes: 0x1112_1314,
        read_bytes: SEQUENCE.0,
        changed_bytes: 0x7172_7374_7576_7778,
    };
    let zero = Request { offset: 0x0001_3000, length: 0x2000, ..request };
    let since = Some(SEQUENCE);
    let ok = Outcome {
        request: NUMBER,
        status: Status::Ok,
        details: RefusalDetails::default(),
        is_zeros: false,
        reached: SEQUENCE,
        is_space: false,
    };
    let details = RefusalDetails {
        epoch: EPOCH,
        generation: GENERATION,
        offset: 0x0001_3000,
        osd: OSD,
        was_not_begun: false,
    };
    let damaged = Outcome { status: Status::Damaged, details, reached: Sequence(0), ..ok };
    let details = RefusalDetails { was_not_begun: true, ..RefusalDetails::default() };
    let elsewhere = Outcome { status: Status::NotPrimary, details, ..damaged };
    let reply = |head, checksums, data| Message::Reply(WithData { head, checksums, data });
    let one = BlockRange { key: KEY, first_block: 0x13, block_count: 1 };
    let two = BlockRange { block_count: 2, ..one };
    let replicate = Replicate { range: one, epoch: EPOCH, sequence: SEQUENCE, origin: ORIGIN };
    let push = Push { range: one, epoch: EPOCH };
    let group = GroupEpoch { pg: PG, epoch: EPOCH };
    let activate = Activate { pg: PG, epoch: EPOCH, mark: SEQUENCE, join: None };
    let inquiry = Inquiry { request: NUMBER, range: one, epoch: EPOCH };
    let of_two = Inquiry { range: two, ..inquiry };
    let found = Found { inquiry, status: Status::Ok, through: SEQUENCE, written_in: None };
    let object = ObjectEpoch { key: KEY, epoch: EPOCH };
    let fence = Fence { request: NUMBER, volume: VolumeId(KEY.layer.0), generation: GENERATION };
    let findings = Findings { damaged: 2, digest: [0xe1e2_e3e4_e5e6_e7e8, 0xf1f2_f3f4_f5f6_f7f8] };
    vec![
        ("hello_of_a_client", Message::Hello(hello)),
        ("hello_of_an_osd", Message::Hello(of_osd)),
        ("hello_of_a_range", Message::Hello(Hello { versions, ..of_osd })),
        ("welcome", Message::Welcome(Welcome { version: Version(4) })),
        ("refused", Message::Refused(Refused { reason: "another cluster" })),
        ("read", Message::Read(request)),
        ("read_unverified", Message::Read(Request { unverified: true, ..request })),
        ("read_snapshot", Message::Read(Request { of_snapshot: true, ..request })),
        ("write", Message::Write(WithData { head: request, checksums: &SUMS, data: &BLOCK[..10] })),
        (
            "write_again",
            Message::Write(WithData {
                head: Request { since, ..request },
                checksums: &SUMS,
                data: &BLOCK[..10],
            }),
        ),
        ("zero", Message::Zero(zero)),
        ("zero_again", Message::Zero(Request { since, ..zero })),
        ("allocated", Message::Allocated(request)),
        ("changed", Message::Changed(request)),
        ("space", Message::Space(request)),
        ("reply_refused", reply(damaged, &[], &[])),
        ("reply_not_begun", reply(elsewhere, &[], &[])),
        ("reply_zeros", reply(Outcome { is_zeros: true, ..ok }, &[], &[])),
        ("reply_block", reply(ok, one_sum, &BLOCK)),
        ("reply_allocated", reply(ok, &[], &BLOCK[..128])),
        (
            "replicate_write",
            Message::ReplicateWrite(WithData { head: replicate, checksums: one_sum, data: &BLOCK }),
        ),
        ("replicate_zero", Message::ReplicateZero(Replicate { range: two, ..replicate })),
        ("replicate_hole", Message::ReplicateHole(Replicate { range: two, ..replicate })),
        (
            "replicate_ack",
            Message::ReplicateAck(ReplicateAck { through: NUMBER, is_full: true, takes_no_objects: true }),
        ),
        (
            "replicate_refused",
            Message::ReplicateRefused(ReplicateRefused {
                ordinal: NUMBER,
                status: Status::StaleEpoch,
                epoch: EPOCH,
            }),
        ),
        ("query", Message::Query(Query { pg: PG, modulus: 0x0200, epoch: EPOCH })),
        ("activate", Message::Activate(activate)),
        ("activate_join", Message::Activate(Activate { join: Some(Sequence(NUMBER)), ..activate })),
        ("serves", Message::Serves(group)),
        (
            "lease",
            Message::Lease(Lease {
                ttl_ms: 900,
                stamp: NUMBER,
                granted_ttl_ms: 6000,
                granted_stamp: SEQUENCE.0,
            }),
        ),
        ("push_write", Message::PushWrite(WithData { head: push, checksums: &WORDS, data: &BLOCK })),
        ("push_zero", Message::PushZero(Push { range: two, ..push })),
        ("push_hole", Message::PushHole(PushHole { range: two, epoch: EPOCH, changed: SEQUENCE })),
        ("push_lost", Message::PushLost(PushLost { push, words: WORDS })),
        ("push_entry", Message::PushEntry(PushEntry { pg: PG, epoch: EPOCH, entry: entries()[1] })),
        ("whole", Message::Whole(group)),
        (
            "list_objects",
            Message::ListObjects(ListObjects { pg: PG, epoch: EPOCH, after: Some((KEY.layer, KEY.object)) }),
        ),
        ("list_blocks", Message::ListBlocks(object)),
        ("blocks", Message::Blocks(Blocks { of: object, allocated: &[0xb1; 128], doubted: &[0xc2; 128] })),
        ("reached", Message::Reached(object)),
        ("fetch", Message::Fetch(inquiry)),
        ("fetched", Message::Fetched(WithData { head: found, checksums: one_sum, data: &BLOCK })),
        (
            "fetched_damaged",
            Message::Fetched(WithData {
                head: Found { status: Status::Damaged, written_in: Some(Epoch(0x3536_3738)), ..found },
                checksums: &[],
                data: &[],
            }),
        ),
        ("check", Message::Check(Check { inquiry: of_two, deep: Some(NUMBER) })),
        ("checked", Message::Checked(Checked { inquiry: of_two, findings })),
        ("fence", Message::Fence(fence)),
        ("fence_done", Message::FenceDone(fence)),
        (
            "ask_allowance",
            Message::AskAllowance(Allowance { of: Limited::Key(NUMBER), is_all: true, ..allowance }),
        ),
        ("allowance", Message::Allowance(allowance)),
    ]
}

/// What the position says beside its entries.
fn log_state() -> LogState {
    LogState {
        pg: PG,
        epoch: EPOCH,
        last_sequence: SEQUENCE,
        log_begins: Sequence(NUMBER),
        is_incomplete: true,
        may_lack_tail: true,
    }
}

/// A mark, and a repair.
fn entries() -> [LogEntry; 2] {
    let repair = LogEntry {
        epoch: Epoch(0x3536_3738),
        sequence: SEQUENCE,
        layer: KEY.layer,
        object: KEY.object,
        first_block: 0x13,
        block_count: 0x0102,
        origin: ORIGIN | REPAIR | UNDONE,
    };
    [LogEntry { block_count: 0, origin: 0, ..repair }, repair]
}

fn page() -> Page {
    Page { pg: PG, epoch: EPOCH, is_last: true }
}

fn held() -> [ObjectHeld; 2] {
    let ObjectKey { layer, object, .. } = KEY;
    let one = ObjectHeld { layer, object, block_count: 0x0304, has_doubts: 0, through: SEQUENCE };
    [one, ObjectHeld { object: 0x2526_2728, has_doubts: 1, ..one }]
}

/// The bytes of a message, as it is sent.
fn encode(message: &Message<'_>) -> Vec<u8> {
    fn with_data<T>(header: HeaderBytes, message: &WithData<'_, T>) -> Vec<u8> {
        [&header[..], message.checksums.as_bytes(), message.data].concat()
    }
    match message {
        Message::Hello(hello) => hello.encode(),
        Message::Welcome(welcome) => welcome.encode().to_vec(),
        Message::Refused(refused) => refused.encode(),
        Message::Read(request) => request.encode(Kind::Read).to_vec(),
        Message::Write(write) => {
            [&write.head.encode(Kind::Write)[..], write.checksums.as_bytes(), write.data].concat()
        }
        Message::Zero(request) => request.encode(Kind::Zero).to_vec(),
        Message::Allocated(request) => request.encode(Kind::Allocated).to_vec(),
        Message::Changed(request) => request.encode(Kind::Changed).to_vec(),
        Message::Space(request) => request.encode(Kind::Space).to_vec(),
        Message::Reply(reply) => {
            let Outcome { request, status, details, is_zeros, reached, is_space } = reply.head;
            let body_bytes = reply.data.len() + reply.checksums.as_bytes().len();
            let header = match status {
                Status::Ok if is_zeros => Outcome::zeros(request, reached),
                Status::Ok if is_space => Outcome::space(request, reached, body_bytes),
                Status::Ok => Outcome::done(request, reached, body_bytes),
                _ => Outcome::refused(request, status, details),
            };
            with_data(header, reply)
        }
        Message::ReplicateWrite(write) => with_data(write.head.encode(Kind::ReplicateWrite), write),
        Message::ReplicateZero(zero) => zero.encode(Kind::ReplicateZero).to_vec(),
        Message::ReplicateHole(hole) => hole.encode(Kind::ReplicateHole).to_vec(),
        Message::ReplicateAck(ack) => ack.encode().to_vec(),
        Message::ReplicateRefused(refused) => refused.encode().to_vec(),
        Message::Query(query) => query.encode().to_vec(),
        Message::Position(position) => position.head.encode(position.entries()),
        Message::Activate(activate) => activate.encode().to_vec(),
        Message::Serves(group) => group.encode(Kind::Serves).to_vec(),
        Message::Lease(lease) => lease.encode().to_vec(),
        Message::PushWrite(push) => with_data(push.head.encode(Kind::PushWrite), push),
        Message::PushZero(push) => push.encode(Kind::PushZero).to_vec(),
        Message::PushHole(hole) => hole.encode().to_vec(),
        Message::PushLost(lost) => [&lost.push.encode(Kind::PushLost)[..], lost.words.as_bytes()].concat(),
        Message::PushEntry(entry) => entry.encode().to_vec(),
        Message::Whole(group) => group.encode(Kind::Whole).to_vec(),
        Message::ListObjects(list) => list.encode().to_vec(),
        Message::Objects(objects) => objects.head.encode(objects.entries()),
        Message::ListBlocks(object) => object.encode(Kind::ListBlocks).to_vec(),
        Message::Reached(object) => object.encode(Kind::Reached).to_vec(),
        Message::Blocks(blocks) => blocks.encode(),
        Message::Fetch(inquiry) => inquiry.encode().to_vec(),
        Message::Fetched(fetched) => with_data(fetched.head.encode(!fetched.data.is_empty()), fetched),
        Message::Check(check) => check.encode().to_vec(),
        Message::Checked(checked) => checked.encode(),
        Message::Fence(fence) => fence.encode(Kind::Fence).to_vec(),
        Message::FenceDone(fence) => fence.encode(Kind::FenceDone).to_vec(),
        Message::AskAllowance(asked) => asked.encode(Kind::AskAllowance).to_vec(),
        Message::Allowance(given) => given.encode(Kind::Allowance).to_vec(),
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The bytes of a fixture.
fn fixture(name: &str) -> Vec<u8> {
    let path = folder().join(name).with_extension("hex");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    for word in text.lines().flat_map(|line| line.split('#').next().unwrap().split_whitespace()) {
        let (hex, count) = word.split_once('*').unwrap_or((word, "1"));
        let digits = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
        let part: Vec<u8> = digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect();
        bytes.extend(part.repeat(count.parse().unwrap()));
    }
    bytes
}

fn parsed(bytes: &[u8]) -> Message<'_> {
    let (message, size) = parse(bytes).unwrap().expect("it is whole");
    assert_eq!(size, bytes.len());
    message
}

/// The names of all fixtures of messages that are sent.
fn names() -> Vec<&'static str> {
    let fixed = messages().into_iter().map(|(name, _)| name);
    fixed.chain(["position", "objects"]).collect()
}

#[test]
fn each_fixture_says_what_it_said_and_is_sent_as_it_was() {
    for (name, message) in messages() {
        let bytes = fixture(name);
        assert_eq!(parsed(&bytes), message, "{name}");
        assert_eq!(encode(&message), bytes, "{name}");
    }
    let bytes = fixture("position");
    let Message::Position(position) = parsed(&bytes) else { panic!() };
    assert_eq!((position.head, position.entries().collect::<Vec<_>>()), (log_state(), entries().to_vec()));
    assert_eq!(log_state().encode(entries().into_iter()), bytes);
    let bytes = fixture("objects");
    let Message::Objects(objects) = parsed(&bytes) else { panic!() };
    assert_eq!((objects.head, objects.entries().collect::<Vec<_>>()), (page(), held().to_vec()));
    assert_eq!(page().encode(held().into_iter()), bytes);
}

#[test]
fn a_welcome_that_names_no_version_is_of_the_third_which_is_not_spoken_any_more() {
    let bytes = fixture("welcome_unsaid");
    assert_eq!(parse(&bytes), Err(WireError::Field { kind: Kind::Welcome, field: "version", value: 3 }));
}

#[test]
fn every_kind_has_a_fixture_and_every_fixture_a_test() {
    let kinds: BTreeSet<u8> = names().into_iter().map(|name| fixture(name)[4]).collect();
    let all: BTreeSet<u8> = Kind::ALL.iter().map(|kind| *kind as u8).collect();
    assert_eq!(kinds, all);
    let mut tested: Vec<String> = names().into_iter().chain(["welcome_unsaid"]).map(str::to_owned).collect();
    tested.sort();
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut there: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    there.sort();
    assert_eq!(there, tested);
}

#[test]
fn a_message_is_incomplete_until_its_last_byte() {
    for name in names() {
        let bytes = fixture(name);
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{name} at {end}");
        }
    }
}

/// Every bit of a header says something, or is refused: nothing is overlooked that a later version may mean by it.
#[test]
fn no_bit_of_a_header_is_overlooked() {
    for name in names() {
        let bytes = fixture(name);
        let message = parsed(&bytes);
        for bit in 0..HEADER_BYTES * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&other), Err(WireError::HeaderChecksum), "{name}, bit {bit}");
            if bit < 32 {
                continue;
            }
            let (header, _) = other.split_first_chunk_mut().unwrap();
            seal(header);
            match parse(&other) {
                Ok(Some((changed, _))) => {
                    assert_ne!(changed, message, "{name}, bit {bit}");
                }
                Ok(None) => assert!((64..96).contains(&bit), "{name}, bit {bit}: a longer body is awaited"),
                Err(_) => {}
            }
        }
    }
}
