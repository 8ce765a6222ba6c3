//! The client against an OSD that the tests play.

use super::*;
use base::map::{OsdInfo, PgConfig, PoolInfo, VolumeInfo};
use base::{Epoch, OBJECT_BLOCKS, PoolId, VolumeId};
use std::collections::BTreeSet;
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
                Message::Changed(request) => requests.push((Kind::Changed, request, Vec::new())),
                Message::Write(WithData { head: request, checksums: sums, data }) => {
                    let (mut from, mut expected) = (0, Vec::new());
                    while from < data.len() {
                        let in_block = (request.offset as usize + from) % BLOCK_BYTES;
                        let to = data.len().min(from + BLOCK_BYTES - in_block);
                        expected.push(U32::new(crc32c(&data[from..to])));
                        from = to;
                    }
                    assert_eq!(sums, expected);
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
        ..VolumeInfo::default()
    };
    map.volumes.insert(VolumeId(5), volume);
    map
}

/// The next one, in which these groups are two each, in an epoch behind those that they were one in.
pub(super) fn map_with_halves_of(groups: &[u32]) -> ClusterMap {
    let mut map = map();
    map.revision += 1;
    map.pools.get_mut(&PoolId(1)).unwrap().split_to = Some(8);
    for index in groups {
        let pg = PgId { pool: PoolId(1), index: *index };
        map.pgs.get_mut(&pg).unwrap().epoch = Epoch(4);
        map.pgs.insert(pg.child(4), map.pgs[&pg].clone());
    }
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
    for attempt in 1..TRANSIT_ATTEMPTS_MAX {
        let (_, request, _) = io.requests().remove(0);
        assert_eq!(request.unverified, attempt == 1, "from then on it may be damaged where it is kept");
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
fn what_changed_comes_as_runs_of_data_and_of_zeros_and_says_since_when() {
    let (mut client, volume, mut io) = connected();
    let what = of(volume, 1, 4096, 5 * 4096);
    client.submit_changed(Instant::default(), what, Some(VolumeId(1).layer(3)), &mut io);
    let (kind, request, _) = io.requests().remove(0);
    assert_eq!((kind, request.origin), (Kind::Changed, VolumeId(1).layer(3).0));
    let mut bits = [0u8; wire::CHANGED_BYTES];
    (bits[0], bits[OBJECT_BLOCKS / 8]) = (0b01_1100, 0b10_0100);
    reply(&mut client, &mut io, &reply_with_data(&request, &bits, &[]));
    let runs =
        vec![(4096, Change::Same), (4096, Change::Data), (2 * 4096, Change::Zeros), (4096, Change::Same)];
    assert_eq!(client.poll_completion().unwrap().outcome, Outcome::Changed(runs));
    // What is half of that answers something else.
    client.submit_changed(Instant::default(), what, None, &mut io);
    let (_, request, _) = io.requests().remove(0);
    assert_eq!(request.origin, 0);
    reply(&mut client, &mut io, &reply_with_data(&request, &bits[..OBJECT_BLOCKS / 8], &[]));
    assert!(client.poll_completion().is_none());
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
    // Groups 1 and 3 are still to be split.
    let map = map_with_halves_of(&[0, 2]);
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
        let late = wire::Outcome::done(request.request, REACHED, 0);
        reply(&mut client, &mut io, &late);
        assert!(client.poll_completion().is_none());
        // Nor when another piece has its slot.
        reply(&mut client, &mut io, &wire::Outcome::done(other.request, REACHED, 0));
        assert_eq!(client.poll_completion().unwrap().outcome, Outcome::Done);
        let what = of(volume, 100, u64::from(request.key.object) * OBJECT_BYTES, 1);
        client.submit_write(Instant::default(), what, Buffer::new(1), &mut io);
        let (_, next, _) = io.requests().remove(0);
        assert_eq!(next.request as u32, request.request as u32);
        reply(&mut client, &mut io, &late);
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
    pub(super) fn tries_again(&mut self) {
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
    assert_eq!(scene.client.volume_bytes(scene.volume), end);
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

/// A map comes that shows where the OSD listens since that start of it, or that it is down.
fn is_shown(scene: &mut Scene, revision: u64, incarnation: u64, address: Option<SocketAddr>) {
    let mut newer = map();
    newer.revision = revision;
    let info = newer.osds.get_mut(&OSD).unwrap();
    (info.address, info.incarnation) = (address, incarnation);
    scene.client.handle_map(scene.now, Arc::new(newer), &mut scene.io);
}

#[test]
fn an_osd_that_only_the_registry_does_not_hear_from_is_asked_on_the_connection_that_stands() {
    let mut scene = Scene::new(Holding::Alone);
    let address = map().osds[&OSD].address;
    is_shown(&mut scene, 2, 0, None);
    scene.read(1, 0, 4096);
    let (_, read) = scene.sent_one();
    scene.done(&read);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    // When it has ended, nobody knows where to connect to.
    let link = scene.link();
    scene.client.handle_closed(scene.now, link, "cut");
    scene.write(2, 0, 4096);
    assert_eq!(scene.sent(), []);
    assert!(scene.client.trouble().unwrap().contains("is down") && scene.io.connects == 1);
    is_shown(&mut scene, 3, 1, address);
    scene.wait();
    scene.greet();
    let (_, write) = scene.sent_one();
    scene.done(&write);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    // It announced itself anew, which is not to be told from another start.
    is_shown(&mut scene, 4, 1, None);
    let link = scene.link();
    is_shown(&mut scene, 5, 2, address);
    assert_eq!(scene.io.closed, [link]);
}

/// What a client says first.
fn hello() -> Hello {
    let (role, cluster) = (Role::Client(ClientId(9)), map().cluster);
    Hello { role, cluster, target: OSD, versions: VERSIONS }
}

#[test]
fn what_is_submitted_before_an_osd_greets_is_sent_in_order_once_it_does() {
    let mut client = Client::new(ClientId(9), Arc::new(map()));
    let volume = client.add_volume(VolumeId(5), Generation(1), Holding::Alone);
    let mut scene = Scene { client, volume, io: TestIo::default(), now: Instant::default() };
    let places: [(u32, u32); 3] = [(0, 0), (0, 8192), (1, 0)];
    for (token, (object, offset)) in (1..).zip(places) {
        scene.write(token, u64::from(object) * OBJECT_BYTES + u64::from(offset), 4096);
    }
    assert!(scene.io.connects == 1 && scene.io.sent.is_empty(), "one connection, on which nobody spoke");
    scene.client.handle_connected(LinkId(LINK.0 + 1), &mut scene.io);
    assert!(scene.io.sent.is_empty(), "that one is of nobody");
    scene.client.handle_connected(LINK, &mut scene.io);
    assert_eq!(std::mem::take(&mut scene.io.sent), hello().encode(), "whom it speaks to is not known yet");
    scene.hear(&Welcome { version: VERSION }.encode());
    let sent = scene.sent();
    let found: Vec<(u32, u32)> =
        sent.iter().map(|(_, request)| (request.key.object, request.offset)).collect();
    assert_eq!(found, places);
    for (token, (_, request)) in (1..).zip(&sent) {
        scene.done(request);
        assert_eq!(scene.ended(), Some((token, Outcome::Done)));
    }
    assert_eq!((scene.io.connects, scene.client.next_timeout()), (1, None));
}

#[test]
fn who_refuses_this_client_or_speaks_as_to_an_osd_is_left_and_half_a_message_is_waited_for() {
    let mut scene = Scene::new(Holding::Alone);
    let refused = wire::Refused { reason: "no such key" }.encode();
    let error = scene.client.handle_bytes(scene.now, LINK, &refused, &mut scene.io).unwrap_err();
    assert_eq!(error.to_string(), "refused: no such key");
    let error = scene.client.handle_bytes(scene.now, LINK, &hello().encode(), &mut scene.io).unwrap_err();
    assert!(matches!(error, LinkError::Unexpected), "{error}");
    scene.write(1, 0, 4096);
    scene.write(2, 8192, 4096);
    let sent = scene.sent();
    let mut bytes = wire::Outcome::done(sent[0].1.request, REACHED, 0).to_vec();
    let whole = bytes.len();
    bytes.extend_from_slice(&wire::Outcome::done(sent[1].1.request, REACHED, 0)[..20]);
    let consumed = scene.client.handle_bytes(scene.now, LINK, &bytes, &mut scene.io).unwrap();
    assert_eq!(consumed, whole);
    assert_eq!((scene.ended(), scene.ended()), (Some((1, Outcome::Done)), None));
}

#[test]
fn pauses_between_attempts_double_up_to_a_bound_and_nothing_is_done_before_its_time() {
    let mut scene = Scene::new(Holding::Alone);
    let start = Instant::default() + Duration::from_secs(10);
    let after = |milliseconds| start + Duration::from_millis(milliseconds);
    scene.now = start;
    scene.write(1, 0, 4096);
    assert_eq!(scene.client.next_timeout(), Some(after(250)), "it is looked around while something waits");
    let (_, mut first) = scene.sent_one();
    scene.now = after(10);
    scene.write(2, OBJECT_BYTES, 4096);
    assert_eq!(scene.client.next_timeout(), Some(after(250)), "who comes later does not put that off");
    let (_, second) = scene.sent_one();
    scene.refuse(&first, Status::NotActive, true);
    scene.now = after(20);
    scene.refuse(&second, Status::NotActive, true);
    assert_eq!(scene.client.next_timeout(), Some(after(30)));
    scene.tries_again();
    first = scene.sent_one().1;
    assert_eq!((first.key.object, scene.client.next_timeout()), (0, Some(after(40))));
    scene.tries_again();
    let (_, second) = scene.sent_one();
    scene.done(&second);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    assert_eq!(scene.client.next_timeout(), Some(after(250)), "it was not looked around meanwhile");
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let began = scene.now;
        scene.refuse(&first, Status::NotActive, true);
        scene.wait();
        pauses.push(scene.now.since(began).as_millis());
        first = scene.sent_one().1;
    }
    assert_eq!(pauses, [80, 320, 400, 400, 400]);
    scene.done(&first);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    assert_eq!(scene.client.next_timeout(), None, "at rest there is nothing to do");
}

#[test]
fn bytes_that_arrive_damaged_are_counted_in_a_row() {
    let mut scene = Scene::new(Holding::Alone);
    scene.read(1, 4096, 4096);
    let good = [7u8; BLOCK_BYTES];
    let damaged_until_last = |scene: &mut Scene| {
        for _ in 1..TRANSIT_ATTEMPTS_MAX {
            let (_, request) = scene.sent_one();
            let damaged = reply_with_data(&request, &good, &[U32::ZERO]);
            scene.hear(&damaged);
            // The same once more answers nothing that is asked.
            scene.hear(&damaged);
            assert_eq!(scene.ended(), None);
        }
        scene.sent_one().1
    };
    let last = damaged_until_last(&mut scene);
    scene.refuse(&last, Status::NotActive, false);
    scene.wait();
    let last = damaged_until_last(&mut scene);
    scene.hear(&reply_with_data(&last, &good, &[U32::new(crc32c(&good))]));
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn a_change_that_is_sent_again_at_once_is_not_passed_by_what_comes_after_it() {
    let newer = RefusalDetails { epoch: Epoch(8), was_not_begun: true, ..RefusalDetails::default() };
    for (status, details) in
        [(Status::CorruptPayload, RefusalDetails::default()), (Status::StaleEpoch, newer)]
    {
        let mut scene = Scene::new(Holding::Alone);
        scene.write(1, 0, 4096);
        let (_, first) = scene.sent_one();
        let answer = wire::Outcome::refused(first.request, status, details);
        scene.hear(&answer);
        let (kind, again) = scene.sent_one();
        assert_eq!((kind, again.origin, again.since), (Kind::Write, first.origin, None), "{status:?}");
        scene.hear(&answer);
        scene.write(2, 0, 4096);
        assert_eq!((scene.sent(), scene.ended()), (Vec::new(), None), "{status:?}");
        scene.done(&again);
        assert_eq!(scene.ended(), Some((1, Outcome::Done)));
        scene.sent_one();
    }
}

#[test]
fn what_waits_for_a_limit_is_waited_for_and_sent_again_when_that_is_said() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    let (_, first) = scene.sent_one();
    let said = |request, status, was_not_begun| {
        let details = RefusalDetails { was_not_begun, ..RefusalDetails::default() };
        wire::Outcome::refused(request, status, details)
    };
    for _ in 0..3 {
        scene.hear(&said(first.request, Status::Throttled, false));
        assert_eq!((scene.sent(), scene.ended()), (Vec::new(), None), "it is no end of it");
    }
    scene.hear(&said(first.request, Status::SendAgain, true));
    let (kind, again) = scene.sent_one();
    assert_eq!((kind, again.origin, again.since), (Kind::Write, first.origin, None));
    scene.hear(&said(first.request, Status::SendAgain, true));
    assert_eq!(scene.sent(), [], "that was of the one before");
    scene.done(&again);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn an_epoch_that_is_known_already_is_no_reason_to_ask_again_at_once() {
    let mut scene = Scene::new(Holding::Alone);
    scene.write(1, 0, 4096);
    let (_, mut request) = scene.sent_one();
    let details = RefusalDetails { epoch: Epoch(3), was_not_begun: true, ..RefusalDetails::default() };
    for (status, words) in
        [(Status::StaleEpoch, "does not serve: another epoch"), (Status::NotPrimary, "not its primary")]
    {
        scene.hear(&wire::Outcome::refused(request.request, status, details));
        assert_eq!(scene.sent(), []);
        let why = scene.client.trouble().unwrap();
        assert!(why.contains(words), "{why}");
        scene.wait();
        request = scene.sent_one().1;
        assert_eq!(request.epoch, Epoch(3));
    }
}

#[test]
fn an_operation_of_several_pieces_fails_as_the_first_of_them_that_does() {
    let mut scene = Scene::new(Holding::Alone);
    let what = of(scene.volume, 1, OBJECT_BYTES - 4096, OBJECT_BYTES + 8192);
    scene.client.submit_zero(scene.now, what, &mut scene.io);
    let sent = scene.sent();
    let pieces: Vec<_> = sent
        .iter()
        .map(|(kind, request)| (*kind, request.key.object, request.offset, request.length))
        .collect();
    let object = OBJECT_BYTES as u32;
    let zeroings = [(0, object - 4096, 4096), (1, 0, object), (2, 0, 4096)];
    assert_eq!(pieces, zeroings.map(|(of, offset, length)| (Kind::Zero, of, offset, length)));
    scene.refuse(&sent[1].1, Status::NoSpace, true);
    scene.refuse(&sent[2].1, Status::Forbidden, true);
    assert_eq!(scene.ended(), None, "one of them is still under way");
    scene.done(&sent[0].1);
    let failed = Outcome::Failed(ClientError::NoSpace { volume: "v".into() });
    assert_eq!((scene.ended(), scene.ended()), (Some((1, failed)), None));
}

#[test]
fn a_read_brings_what_its_blocks_hold_and_zeros_where_nothing_is() {
    let (mut client, volume, mut io) = connected();
    let byte = |at: u64| (at / 7 + (at >> 9)) as u8;
    let (start, length) = (1000, 600_000);
    let mut buffer = Buffer::new(length as usize);
    buffer.bytes_mut().unwrap().fill(0xee);
    client.submit_read(Instant::default(), of(volume, 1, start, length), buffer, &mut io);
    let sent = io.requests();
    let pieces: Vec<(u32, u32)> =
        sent.iter().map(|(_, request, _)| (request.offset, request.length)).collect();
    let expected = [(1000, 261_144), (262_144, 262_144), (524_288, 76_712)];
    assert_eq!(pieces, expected, "all but the first begin where a block does");
    for index in [2, 1, 0] {
        assert!(client.poll_completion().is_none());
        let request = &sent[index].1;
        if index == 1 {
            reply(&mut client, &mut io, &wire::Outcome::zeros(request.request, REACHED));
            continue;
        }
        let (first, count) = request.blocks();
        let blocks = u64::from(first)..u64::from(first + count);
        let bytes = blocks.start * BLOCK_BYTES as u64..blocks.end * BLOCK_BYTES as u64;
        let data: Vec<u8> = bytes.map(byte).collect();
        let sums: Vec<U32> = data.chunks(BLOCK_BYTES).map(|block| U32::new(crc32c(block))).collect();
        reply(&mut client, &mut io, &reply_with_data(request, &data, &sums));
    }
    let completion = client.poll_completion().unwrap();
    assert_eq!(completion.outcome, Outcome::Done);
    let buffer = completion.buffer.unwrap();
    let (read, behind) = buffer.bytes().split_at(length as usize);
    let is_right = |(at, found): (u64, &u8)| {
        let expected = if (262_144..524_288).contains(&at) { 0 } else { byte(at) };
        *found == expected
    };
    assert_eq!((start..).zip(read).find(|one| !is_right(*one)), None);
    assert!(behind.iter().all(|byte| *byte == 0xee), "nobody asked for more");
}

#[test]
fn an_answer_of_another_size_than_was_asked_for_is_none() {
    let mut scene = Scene::new(Holding::Alone);
    scene.read(1, 0, 8192);
    let sum = [U32::new(crc32c(&[7; BLOCK_BYTES]))];
    let (_, request) = scene.sent_one();
    scene.hear(&reply_with_data(&request, &[7; BLOCK_BYTES], &sum));
    let (_, request) = scene.sent_one();
    scene.hear(&reply_with_data(&request, &[7; 3 * BLOCK_BYTES], &[sum[0]; 3]));
    let (_, request) = scene.sent_one();
    scene.hear(&reply_with_data(&request, &[7; 2 * BLOCK_BYTES], &[sum[0]; 2]));
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    scene.client.submit_allocated(scene.now, of(scene.volume, 2, 0, 4096), &mut scene.io);
    let (_, request) = scene.sent_one();
    scene.hear(&wire::Outcome::done(request.request, REACHED, 0));
    assert_eq!((scene.sent_one().0, scene.ended()), (Kind::Allocated, None));
}

#[test]
fn allocation_is_told_over_the_borders_of_objects_and_of_many_blocks() {
    let mut scene = Scene::new(Holding::Alone);
    let block = BLOCK_BYTES as u64;
    // 71 blocks, the last 30 of the first object among them, the first and the last in part.
    let (start, end) = (994 * block + 100, 1064 * block + 50);
    scene.client.submit_allocated(scene.now, of(scene.volume, 1, start, end - start), &mut scene.io);
    let sent = scene.sent();
    assert_eq!(sent.len(), 2);
    let is_allocated = |block: usize| {
        [994..995, 1000..1003, 1023..1030, 1057..1059, 1064..1065].iter().any(|run| run.contains(&block))
    };
    for (_, request) in sent.iter().rev() {
        let first = request.key.object as usize * OBJECT_BLOCKS;
        let mut bits = [0u8; OBJECT_BLOCKS / 8];
        for index in (0..OBJECT_BLOCKS).filter(|index| is_allocated(first + index)) {
            bits[index / 8] |= 1 << (index % 8);
        }
        scene.hear(&reply_with_data(request, &bits, &[]));
    }
    let expected = [
        (block - 100, true),
        (5 * block, false),
        (3 * block, true),
        (20 * block, false),
        (7 * block, true),
        (27 * block, false),
        (2 * block, true),
        (5 * block, false),
        (50, true),
    ];
    assert_eq!(scene.ended(), Some((1, Outcome::Allocated(expected.to_vec()))));
}

#[test]
fn each_change_has_a_name_of_its_own_that_leaves_room_for_the_marks_of_osds() {
    let mut scene = Scene::new(Holding::Alone);
    (0..50).for_each(|token| scene.write(token, token * 4096, 4096));
    let names: BTreeSet<u64> = scene.sent().iter().map(|(_, request)| request.origin).collect();
    assert_eq!(names.len(), 50);
    let is_name = |name: &u64| *name != 0 && base::log_entry::name_of(*name) == *name;
    assert!(names.iter().all(is_name), "{names:x?}");
}
