//! The client against an OSD that the tests play.

use super::*;
use base::Epoch;
use base::map::{OsdInfo, PgConfig, PoolInfo, VolumeInfo};
use std::ops::Range;
use wire::{RefusalDetails, WithData};

pub(super) const OSD: OsdId = OsdId(1);
pub(super) const LINK: LinkId = LinkId(77);
/// What is spoken.
pub(super) const VERSION: Version = Version(4);
/// What the OSD says that each group has reached.
pub(super) const REACHED: Sequence = Sequence(40);

#[derive(Default)]
pub(super) struct TestIo {
    sent: Vec<u8>,
    pub(super) connects: u32,
    pub(super) closed: Vec<LinkId>,
}

impl Network for TestIo {
    fn connect(&mut self, _: SocketAddr) -> Option<LinkId> {
        self.connects += 1;
        Some(LinkId(LINK.0 + u64::from(self.connects) - 1))
    }
    fn send(&mut self, _: LinkId, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
    }
    fn send_shared(&mut self, _: LinkId, buffer: Buffer, range: Range<usize>) {
        self.sent.extend_from_slice(&buffer.bytes()[range]);
    }
    fn unsent_bytes(&self, _: LinkId) -> usize {
        0
    }
    fn close(&mut self, link: LinkId, _: &str) {
        self.closed.push(link);
    }
}

impl TestIo {
    /// The requests sent since the last call: kind, request and, of writes, the data.
    pub(super) fn requests(&mut self) -> Vec<(Kind, Request, Vec<u8>)> {
        let bytes = std::mem::take(&mut self.sent);
        let mut at = 0;
        let mut requests = Vec::new();
        while let Some((message, size)) = wire::parse(&bytes[at..]).unwrap() {
            match message {
                Message::Read(request) => requests.push((Kind::Read, request, Vec::new())),
                Message::Zero(request) => requests.push((Kind::Zero, request, Vec::new())),
                Message::Allocated(request) => requests.push((Kind::Allocated, request, Vec::new())),
                Message::Write(WithData { head: request, checksums: sums, data }) => {
                    let mut expected = [U32::ZERO; BLOCKS_PER_MESSAGE_MAX];
                    let count = block_checksums(request.offset, data, &mut expected);
                    assert_eq!(sums, &expected[..count]);
                    requests.push((Kind::Write, request, data.to_vec()));
                }
                _ => {}
            }
            at += size;
        }
        assert_eq!(at, bytes.len());
        requests
    }
}

pub(super) fn map() -> ClusterMap {
    let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
    let address = Some("127.0.0.1:7000".parse().unwrap());
    let osd = OsdInfo { bytes: 1 << 30, address, ..OsdInfo::default() };
    map.osds.insert(OSD, osd);
    map.pools.insert(
        PoolId(1),
        PoolInfo { name: "default".into(), size: 1, min_size: 1, pg_count: 4, ..PoolInfo::default() },
    );
    for index in 0..4 {
        let config = PgConfig { epoch: Epoch(3), primary: OSD, in_sync: vec![OSD], ..PgConfig::default() };
        map.pgs.insert(PgId { pool: PoolId(1), index }, config);
    }
    let volume = VolumeInfo {
        name: "v".into(),
        pool: PoolId(1),
        bytes: 64 << 20,
        generation: Generation(1),
        removed: false,
        cut: None,
    };
    map.volumes.insert(VolumeId(5), volume);
    map
}

/// An operation on that part of a volume.
pub(super) fn of(volume: VolumeHandle, token: u64, offset: u64, length: u64) -> Submission {
    Submission { volume, token, offset, length }
}

pub(super) fn connected() -> (Client, VolumeHandle, TestIo) {
    connected_as(Holding::Alone)
}

/// Connected, after a read of the first object was answered.
pub(super) fn connected_as(holding: Holding) -> (Client, VolumeHandle, TestIo) {
    let mut client = Client::new(ClientId(9), Arc::new(map()));
    let volume = client.add_volume(VolumeId(5), Generation(1), holding);
    let mut io = TestIo::default();
    client.submit_read(Instant::default(), of(volume, 0, 0, 1), Buffer::new(1), &mut io);
    client.handle_connected(LINK, &mut io);
    client.handle_bytes(Instant::default(), LINK, &Welcome { version: VERSION }.encode(), &mut io).unwrap();
    let (_, request, _) = io.requests().remove(0);
    client
        .handle_bytes(Instant::default(), LINK, &wire::Outcome::zeros(request.request, REACHED), &mut io)
        .unwrap();
    assert_eq!(client.poll_completion().unwrap().outcome, Outcome::Done);
    (client, volume, io)
}

/// A client with one volume, and the OSD that a test plays.
pub(super) struct Scene {
    pub(super) client: Client,
    pub(super) volume: VolumeHandle,
    pub(super) io: TestIo,
    pub(super) now: Instant,
}

impl Scene {
    /// Connected, and nothing under way.
    pub(super) fn new(holding: Holding) -> Scene {
        let (client, volume, io) = connected_as(holding);
        Scene { client, volume, io, now: Instant::default() }
    }

    pub(super) fn write(&mut self, token: u64, offset: u64, length: u64) {
        let buffer = Buffer::new(length as usize);
        self.client.submit_write(self.now, of(self.volume, token, offset, length), buffer, &mut self.io);
    }

    pub(super) fn read(&mut self, token: u64, offset: u64, length: u64) {
        let buffer = Buffer::new(length as usize);
        self.client.submit_read(self.now, of(self.volume, token, offset, length), buffer, &mut self.io);
    }

    /// The requests that were sent since this was asked last.
    pub(super) fn sent(&mut self) -> Vec<(Kind, Request)> {
        self.io.requests().into_iter().map(|(kind, request, _)| (kind, request)).collect()
    }

    /// The only one.
    #[track_caller]
    pub(super) fn sent_one(&mut self) -> (Kind, Request) {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// The newest connection.
    pub(super) fn link(&self) -> LinkId {
        LinkId(LINK.0 + u64::from(self.io.connects) - 1)
    }

    pub(super) fn hear(&mut self, bytes: &[u8]) {
        let link = self.link();
        let consumed = self.client.handle_bytes(self.now, link, bytes, &mut self.io).unwrap();
        assert_eq!(consumed, bytes.len());
    }

    /// The OSD has done that; a read brings zeros.
    pub(super) fn done(&mut self, request: &Request) {
        self.hear(&wire::Outcome::zeros(request.request, REACHED));
    }

    pub(super) fn refuse(&mut self, request: &Request, status: Status, was_not_begun: bool) {
        let details = RefusalDetails { was_not_begun, ..RefusalDetails::default() };
        self.hear(&wire::Outcome::refused(request.request, status, details));
    }

    /// Time passes until something is sent, or a connection wanted.
    pub(super) fn wait(&mut self) {
        let connects = self.io.connects;
        while self.io.sent.is_empty() && self.io.connects == connects {
            self.now = self.now.max(self.client.next_timeout().unwrap());
            self.client.handle_timeout(self.now, &mut self.io);
        }
    }

    /// The OSD greets on the newest connection.
    pub(super) fn greet(&mut self) {
        let link = self.link();
        self.client.handle_connected(link, &mut self.io);
        self.hear(&Welcome { version: VERSION }.encode());
    }

    /// The connection is cut, and what was under way goes to the next one.
    pub(super) fn reconnect(&mut self) {
        let link = self.link();
        self.client.handle_closed(self.now, link, "cut");
        self.wait();
        self.greet();
    }

    pub(super) fn ended(&mut self) -> Option<(u64, Outcome)> {
        self.client.poll_completion().map(|completion| (completion.token, completion.outcome))
    }
}

fn reply(client: &mut Client, io: &mut TestIo, bytes: &[u8]) {
    assert_eq!(client.handle_bytes(Instant::default(), LINK, bytes, io).unwrap(), bytes.len());
}

fn reply_with_data(request: &Request, data: &[u8], checksums: &[U32]) -> Vec<u8> {
    let mut bytes =
        wire::Outcome::done(request.request, REACHED, data.len() + checksums.as_bytes().len()).to_vec();
    bytes.extend_from_slice(checksums.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn a_range_is_cut_at_objects_and_blocks() {
    let (mut client, volume, mut io) = connected();
    let mut buffer = Buffer::new(1 << 20);
    for (index, byte) in buffer.bytes_mut().unwrap().iter_mut().enumerate() {
        *byte = (index / 7) as u8;
    }
    let start = OBJECT_BYTES - 100_001;
    client.submit_write(Instant::default(), of(volume, 1, start, 600_000), buffer.clone(), &mut io);
    let mut at = start;
    for (kind, request, data) in io.requests() {
        assert_eq!(kind, Kind::Write);
        assert_eq!(u64::from(request.key.object) * OBJECT_BYTES + u64::from(request.offset), at);
        let from = (at - start) as usize;
        assert_eq!(data, &buffer.bytes()[from..from + request.length as usize]);
        at += u64::from(request.length);
        assert!(client.poll_completion().is_none());
        reply(&mut client, &mut io, &wire::Outcome::done(request.request, REACHED, 0));
    }
    assert_eq!(at, start + 600_000);
    assert_eq!(client.poll_completion().unwrap().outcome, Outcome::Done);
}

#[test]
fn an_unaligned_zeroing_writes_zeros_at_its_edges() {
    let (mut client, volume, mut io) = connected();
    client.submit_zero(Instant::default(), of(volume, 1, 1000, 10_000), &mut io);
    let pieces: Vec<_> =
        io.requests().into_iter().map(|(kind, request, _)| (kind, request.offset, request.length)).collect();
    assert_eq!(pieces, [(Kind::Write, 1000, 3096), (Kind::Zero, 4096, 4096), (Kind::Write, 8192, 2808)]);
}

#[test]
fn bytes_that_do_not_verify_are_asked_for_again_and_never_returned() {
    let (mut client, volume, mut io) = connected();
    client.submit_read(Instant::default(), of(volume, 1, 4096, 4096), Buffer::new(4096), &mut io);
    let good = [7u8; BLOCK_BYTES];
    let sum = [U32::new(crc32c(&good))];
    for _ in 1..TRANSIT_ATTEMPTS_MAX {
        let (_, request, _) = io.requests().remove(0);
        let mut bad = good;
        bad[100] ^= 1;
        reply(&mut client, &mut io, &reply_with_data(&request, &bad, &sum));
        assert!(client.poll_completion().is_none());
    }
    let (_, request, _) = io.requests().remove(0);
    reply(&mut client, &mut io, &reply_with_data(&request, &good, &sum));
    let completion = client.poll_completion().unwrap();
    assert_eq!(completion.outcome, Outcome::Done);
    assert_eq!(completion.buffer.unwrap().bytes(), good);

    client.submit_read(Instant::default(), of(volume, 1, 4096, 4096), Buffer::new(4096), &mut io);
    for _ in 0..TRANSIT_ATTEMPTS_MAX {
        let (_, request, _) = io.requests().remove(0);
        reply(&mut client, &mut io, &reply_with_data(&request, &good, &[U32::ZERO]));
    }
    let outcome = client.poll_completion().unwrap().outcome;
    assert!(matches!(outcome, Outcome::Failed(ClientError::CorruptInTransit { .. })), "{outcome:?}");
}

#[test]
fn a_stale_epoch_is_replaced_by_the_newer_one_at_once() {
    let (mut client, volume, mut io) = connected();
    client.submit_zero(Instant::default(), of(volume, 1, 0, 4096), &mut io);
    let (_, request, _) = io.requests().remove(0);
    assert_eq!(request.epoch, Epoch(3));
    let details = RefusalDetails { epoch: Epoch(8), ..Default::default() };
    reply(&mut client, &mut io, &wire::Outcome::refused(request.request, Status::StaleEpoch, details));
    let (_, request, _) = io.requests().remove(0);
    assert_eq!(request.epoch, Epoch(8));
}

#[test]
fn what_was_under_way_on_a_lost_connection_is_tried_again_on_a_new_one() {
    let (mut client, volume, mut io) = connected();
    client.submit_zero(Instant::default(), of(volume, 1, 0, 4096), &mut io);
    let (_, first, _) = io.requests().remove(0);
    client.handle_closed(Instant::default(), LINK, "cut");
    assert!(client.trouble().unwrap().contains("cut"));
    let later = client.next_timeout().unwrap();
    client.handle_timeout(later, &mut io);
    let new_link = LinkId(LINK.0 + 1);
    client.handle_connected(new_link, &mut io);
    client.handle_bytes(later, new_link, &Welcome { version: VERSION }.encode(), &mut io).unwrap();
    let (kind, again, _) = io.requests().remove(0);
    assert_eq!((kind, again.key, again.offset), (Kind::Zero, first.key, first.offset));
    // The old connection's answer, should it still come, is nobody's.
    client.handle_bytes(later, LINK, &wire::Outcome::done(first.request, REACHED, 0), &mut io).unwrap();
    assert!(client.poll_completion().is_none());
    client.handle_bytes(later, new_link, &wire::Outcome::done(again.request, REACHED, 0), &mut io).unwrap();
    assert_eq!(client.poll_completion().unwrap().outcome, Outcome::Done);
}

#[test]
fn damage_names_volume_object_and_osd() {
    let (mut client, volume, mut io) = connected();
    let what = of(volume, 1, OBJECT_BYTES + 4096, 4096);
    client.submit_read(Instant::default(), what, Buffer::new(4096), &mut io);
    let (_, request, _) = io.requests().remove(0);
    let details = RefusalDetails { offset: 4096, osd: OSD, ..Default::default() };
    reply(&mut client, &mut io, &wire::Outcome::refused(request.request, Status::Damaged, details));
    let Outcome::Failed(error) = client.poll_completion().unwrap().outcome else { panic!() };
    let text = error.to_string();
    assert!(text.contains("\"v\"") && text.contains("object 1") && text.contains("osd.1"), "{text}");
}

#[test]
fn allocation_comes_as_runs_clipped_to_the_range() {
    let (mut client, volume, mut io) = connected();
    client.submit_allocated(Instant::default(), of(volume, 1, 100, 3 * 4096), &mut io);
    let (_, request, _) = io.requests().remove(0);
    let mut bits = [0u8; OBJECT_BLOCKS / 8];
    bits[0] = 0b0110;
    reply(&mut client, &mut io, &reply_with_data(&request, &bits, &[]));
    let outcome = client.poll_completion().unwrap().outcome;
    assert_eq!(outcome, Outcome::Allocated(vec![(3996, false), (8192, true), (100, false)]));
}

#[test]
fn a_range_beyond_the_end_is_an_error_with_the_size() {
    let (mut client, volume, mut io) = connected();
    client.submit_read(Instant::default(), of(volume, 1, (64 << 20) - 1, 2), Buffer::new(4096), &mut io);
    let completion = client.poll_completion().unwrap();
    assert!(matches!(completion.outcome, Outcome::Failed(ClientError::OutOfRange { bytes: 67_108_864, .. })));
    assert!(completion.buffer.is_some());
}

#[test]
fn what_a_group_was_sent_goes_to_the_half_that_was_split_off_if_it_is_its_own_now() {
    let (mut client, volume, mut io) = connected();
    // One byte of each of 16 objects: of 4 groups each has four, and keeps two when it is split.
    for object in 0..16 {
        let buffer = Buffer::new(1);
        let what = of(volume, object + 1, object * OBJECT_BYTES, 1);
        client.submit_write(Instant::default(), what, buffer, &mut io);
    }
    let sent = io.requests();
    assert!(sent.iter().all(|(_, request, _)| request.key.pg.index < 4 && request.since.is_none()));
    // Groups 0 and 2 were split, 1 and 3 are to be.
    let mut map = map();
    map.revision = 2;
    map.pools.get_mut(&PoolId(1)).unwrap().split_to = Some(8);
    for index in [0, 2] {
        let pg = PgId { pool: PoolId(1), index };
        map.pgs.get_mut(&pg).unwrap().epoch = Epoch(4);
        map.pgs.insert(pg.child(4), map.pgs[&pg].clone());
    }
    client.handle_map(Instant::default(), Arc::new(map.clone()), &mut io);
    let again = io.requests();
    let mut elsewhere = 0;
    for (_, request, _) in &sent {
        let now = map.pg_of(PoolId(1), VolumeId(5), request.key.object).unwrap();
        let moved = again.iter().find(|(_, other, _)| other.key.object == request.key.object);
        assert_eq!(moved.is_some(), now != request.key.pg, "object {}", request.key.object);
        let Some((_, other, _)) = moved else { continue };
        assert_eq!((other.key.pg, other.epoch, other.since.is_some()), (now, Epoch(4), true));
        assert_eq!(other.origin, request.origin, "it is the same write");
        elsewhere += 1;
        // An answer to the first attempt says nothing any more.
        reply(&mut client, &mut io, &wire::Outcome::done(request.request, REACHED, 0));
        assert!(client.poll_completion().is_none());
    }
    assert_eq!(elsewhere, 4);
}

impl Scene {
    /// A newer map comes, in which the volume has that size.
    fn hears_of_size(&mut self, bytes: u64) {
        let mut newer = map();
        newer.revision += 1;
        newer.volumes.get_mut(&VolumeId(5)).unwrap().bytes = bytes;
        self.client.handle_map(self.now, Arc::new(newer), &mut self.io);
    }

    /// Time passes until what waits is due.
    fn tries_again(&mut self) {
        self.now = self.now.max(self.client.next_timeout().unwrap());
        self.client.handle_timeout(self.now, &mut self.io);
    }
}

#[test]
fn what_an_osd_refuses_beyond_the_end_is_tried_again_until_a_map_says_so_too() {
    let mut scene = Scene::new(Holding::Alone);
    let end = 32 << 20;
    scene.write(1, end - 4096, 8192);
    let first: Vec<_> = scene.sent();
    assert_eq!(first.len(), 2, "of two objects");
    scene.done(&first[0].1);
    // The OSD has a map of a moment ago, or this client has.
    scene.refuse(&first[1].1, Status::BeyondEnd, true);
    assert!(scene.client.trouble().unwrap().contains("beyond the end"));
    scene.wait();
    let (kind, again) = scene.sent_one();
    assert_eq!((kind, again.origin, again.since), (Kind::Write, first[1].1.origin, None));
    scene.refuse(&again, Status::BeyondEnd, true);
    scene.hears_of_size(end);
    assert_eq!(scene.ended(), None, "it is looked at when it is to be sent again");
    scene.tries_again();
    assert_eq!(scene.sent(), []);
    let Some((1, Outcome::Failed(error))) = scene.ended() else { panic!("it fails for good") };
    let expected = ClientError::OutOfRange { volume: "v".into(), offset: end, length: 4096, bytes: end };
    assert_eq!(error, expected);
    assert!(scene.client.is_quiet(), "nothing of what failed can take effect");
    // What lies within the new size is as before.
    scene.read(2, end - 4096, 4096);
    let (_, read) = scene.sent_one();
    scene.done(&read);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
}

#[test]
fn what_waits_beyond_an_end_that_moves_back_is_not_lost() {
    let mut scene = Scene::new(Holding::Alone);
    scene.hears_of_size(128 << 20);
    scene.write(1, 100 << 20, 4096);
    let (_, first) = scene.sent_one();
    // The map that shows the larger volume is on its way to the OSD.
    scene.refuse(&first, Status::BeyondEnd, true);
    scene.wait();
    let (_, again) = scene.sent_one();
    scene.done(&again);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn a_write_beyond_the_end_that_may_have_been_done_leaves_a_loose_end_and_lets_go_of_those_behind_it() {
    let mut scene = Scene::new(Holding::Alone);
    let end = 32 << 20;
    scene.write(1, end, 4096);
    scene.sent_one();
    scene.reconnect();
    let (_, again) = scene.sent_one();
    assert!(again.since.is_some(), "the answer to the first attempt is lost");
    scene.write(2, end, 4096);
    assert_eq!(scene.sent(), [], "it waits for the one before");
    scene.hears_of_size(end);
    scene.refuse(&again, Status::BeyondEnd, true);
    scene.tries_again();
    assert_eq!(scene.sent(), []);
    for token in [1, 2] {
        let ended = scene.ended();
        let is_beyond =
            |outcome: &Outcome| matches!(outcome, Outcome::Failed(ClientError::OutOfRange { .. }));
        assert!(ended.as_ref().is_some_and(|(of, outcome)| *of == token && is_beyond(outcome)), "{ended:?}");
    }
    assert!(scene.client.operations_in_flight() == 0 && !scene.client.is_quiet());
}
