//! A client that is answered anything by an OSD. What it was asked to do ends once, or goes on; and as long as each request is
//! answered as one of its own, a read brings what was answered.
//!
//! The input is a script: what is asked of the client, and what it is answered: as an OSD would, or with something else.

use super::osd::name_of_status;
use super::{Script, messages};
use crate::outcomes::{Outcome, Outcomes};
use base::map::ClusterMap;
use base::{
    BLOCK_BYTES, Buffer, ClientId, Generation, Instant, LinkId, Network, OBJECT_BLOCKS, OsdId, Sequence,
    VolumeId, crc32c,
};
use client::{Client, ClientError, Holding, LinkError, Submission};
use sim::random::Random;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use wire::hostile::{Forger, InUse};
use wire::{Kind, Message, RefusalDetails, Request, Status, VERSIONS, Welcome};

const VOLUME: VolumeId = VolumeId(5);
const VOLUME_BYTES: u64 = 64 << 20;
/// The most steps of an input.
const STEPS_MAX: usize = 64;
/// The most bytes of an operation.
const OPERATION_BYTES_MAX: u64 = 24 << 10;
/// The most bytes of most operations.
const SHORT_BYTES_MAX: u64 = 6 << 10;
/// Requests that the input may answer: older ones are never answered.
const PENDING_MAX: usize = 32;
/// What a buffer is full of before something is read to it: no zero, and nothing that any block is full of.
const STALE: u8 = 0xee;

/// What a block of the volume is full of, if an OSD says that it is there.
fn held(block: u64) -> u8 {
    (block % 199) as u8 + 1
}

static MAP: LazyLock<Arc<ClusterMap>> = LazyLock::new(|| {
    let text = r#"{
        "revision": 1, "cluster": "07070707-0707-0707-0707-070707070707",
        "osds": {
            "1": {
                "uuid": "03030303-0303-0303-0303-030303030303", "node": 1, "bytes": 1073741824,
                "address": "127.0.0.1:7000"
            }
        },
        "pools": {"1": {"name": "pool", "size": 1, "min_size": 1, "pg_count": 2}},
        "pgs": {
            "1.0": {"epoch": 3, "primary": 1, "in_sync": [1]},
            "1.1": {"epoch": 3, "primary": 1, "in_sync": [1]}
        },
        "volumes": {"5": {"name": "volume", "pool": 1, "bytes": 67108864, "generation": 1}}
    }"#;
    Arc::new(serde_json::from_str(text).expect("it is a map"))
});

/// A network of which the input is the other end.
#[derive(Default)]
struct Surroundings {
    sent: Vec<u8>,
    links: u64,
}

impl Network for Surroundings {
    fn connect(&mut self, _: SocketAddr) -> Option<LinkId> {
        self.links += 1;
        Some(LinkId(self.links))
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

    fn close(&mut self, _: LinkId, _: &str) {}
}

struct Scene {
    client: Client,
    io: Surroundings,
    now: Instant,
    /// Requests that were sent, and not answered by the input.
    pending: Vec<(Kind, Request)>,
    /// Operations that were asked for, and those that ended.
    asked: u64,
    ended: u64,
    /// What is read, by tokens: the range.
    reads: BTreeMap<u64, (u64, u64)>,
    /// Nothing was answered yet that belongs to another request, or to none.
    is_told: bool,
}

impl Scene {
    fn new() -> Scene {
        let client = Client::new(ClientId(9), MAP.clone());
        let (io, now) = (Surroundings::default(), Instant::default());
        let (pending, reads) = (Vec::new(), BTreeMap::new());
        Scene { client, io, now, pending, asked: 0, ended: 0, reads, is_told: true }
    }

    fn link(&self) -> LinkId {
        LinkId(self.io.links)
    }

    /// What the client sent.
    fn hear(&mut self) {
        let sent = std::mem::take(&mut self.io.sent);
        let mut rest = &sent[..];
        while let Ok(Some((message, size))) = wire::parse(rest) {
            match message {
                Message::Read(request) => self.pending.push((Kind::Read, request)),
                Message::Write(write) => self.pending.push((Kind::Write, write.head)),
                Message::Zero(request) => self.pending.push((Kind::Zero, request)),
                Message::Allocated(request) => self.pending.push((Kind::Allocated, request)),
                _ => {}
            }
            rest = &rest[size..];
        }
        assert!(rest.is_empty(), "what a client says is whole messages");
        let older = self.pending.len().saturating_sub(PENDING_MAX);
        self.pending.drain(..older);
    }

    fn say(&mut self, bytes: &[u8], seen: &mut Outcomes) {
        let link = self.link();
        if let Err(error) = self.client.handle_bytes(self.now, link, bytes, &mut self.io) {
            let why = match &error {
                LinkError::Wire(_) => "no message",
                LinkError::Refused(_) => "refused",
                LinkError::Unexpected => "not for clients",
            };
            seen.note("link", why);
            self.client.handle_closed(self.now, link, &error.to_string());
        }
    }

    /// What ended, and that it was asked for.
    fn count(&mut self, seen: &mut Outcomes) {
        while let Some(completion) = self.client.poll_completion() {
            self.ended += 1;
            let read = self.reads.remove(&completion.token);
            match completion.outcome {
                client::Outcome::Done => {
                    if let Some(range) = read.filter(|_| self.is_told) {
                        let buffer = completion.buffer.expect("a read gives its buffer back");
                        seen.note("brought", brought(range, &buffer));
                    }
                    seen.note("ended", "done");
                }
                client::Outcome::Allocated(_) => seen.note("ended", "allocated"),
                client::Outcome::Changed(_) => seen.note("ended", "changed"),
                client::Outcome::Space(_) => seen.note("ended", "space"),
                client::Outcome::Failed(error) => seen.note("failed", name_of_error(&error)),
            }
        }
        assert_eq!(self.client.operations_in_flight() as u64, self.asked - self.ended);
    }
}

/// Looks at what a read of a range brought.
fn brought((offset, length): (u64, u64), buffer: &Buffer) -> &'static str {
    let (mut at, mut rest, mut is_held) = (offset, &buffer.bytes()[..length as usize], false);
    while let Some(byte) = rest.first().copied() {
        let (block, within) = (at / BLOCK_BYTES as u64, at as usize % BLOCK_BYTES);
        let (part, behind) = rest.split_at(rest.len().min(BLOCK_BYTES - within));
        assert!(byte == 0 || byte == held(block), "{byte} is not what was answered for block {block}");
        assert!(part.iter().all(|one| *one == byte), "block {block} is not what was answered");
        is_held |= byte != 0;
        (at, rest) = (at + part.len() as u64, behind);
    }
    if is_held { "data" } else { "zeros" }
}

fn name_of_error(error: &ClientError) -> &'static str {
    match error {
        ClientError::OutOfRange { .. } => "out of range",
        ClientError::Damaged { .. } => "damaged",
        ClientError::NoSpace { .. } => "no space",
        ClientError::Fenced { .. } => "fenced",
        ClientError::Forbidden { .. } => "forbidden",
        ClientError::NoSuchVolume { .. } => "no such volume",
        ClientError::DeviceFailed { .. } => "device failed",
        ClientError::OutcomeUnknown { .. } => "outcome unknown",
        _ => "other",
    }
}

/// What an OSD could answer a request with, or what none would.
fn answer(
    kind: Kind,
    request: &Request,
    script: &mut Script<'_>,
    is_told: &mut bool,
    seen: &mut Outcomes,
) -> Vec<u8> {
    let (how, details) = (script.byte(), script.byte());
    let number = if how & 0x80 != 0 { request.request ^ u64::from(details) } else { request.request };
    *is_told &= number == request.request;
    let reached = Sequence(script.number());
    match how % 8 {
        0 => wire::Outcome::zeros(number, reached).to_vec(),
        1 | 2 if kind == Kind::Read => {
            // So many blocks as were asked for, or a few others; with their checksums, or with others.
            let (first, asked) = request.blocks();
            let count = if how % 8 == 1 { asked } else { u16::from(details) % 9 };
            let first = u64::from(request.key.object) * OBJECT_BLOCKS as u64 + u64::from(first);
            let mut data = Vec::with_capacity(usize::from(count) * BLOCK_BYTES);
            for block in first..first + u64::from(count) {
                data.resize(data.len() + BLOCK_BYTES, held(block));
            }
            let spoils = u32::from(how & 0x40 != 0);
            let checksums = data.chunks(BLOCK_BYTES).flat_map(|block| (crc32c(block) ^ spoils).to_le_bytes());
            let checksums: Vec<u8> = checksums.collect();
            let header = wire::Outcome::done(number, reached, checksums.len() + data.len());
            [&header[..], &checksums, &data].concat()
        }
        1 | 2 if kind == Kind::Allocated => {
            let header = wire::Outcome::done(number, reached, OBJECT_BLOCKS / 8);
            [&header[..], &[details; OBJECT_BLOCKS / 8]].concat()
        }
        1..=3 => wire::Outcome::done(number, reached, 0).to_vec(),
        4 | 5 => {
            let status = Status::ALL[usize::from(details) % Status::ALL.len()];
            seen.note("answered", name_of_status(status));
            let details = RefusalDetails {
                epoch: request.epoch,
                generation: Generation(request.generation.0.wrapping_add(u32::from(how >> 6))),
                offset: request.offset,
                osd: OsdId(1),
                was_not_begun: how & 0x20 != 0,
            };
            wire::Outcome::refused(number, status, details).to_vec()
        }
        _ => {
            *is_told = false;
            forged(how & 0x40 != 0, request, script)
        }
    }
}

/// A message of somebody who means harm.
fn forged(is_reply: bool, request: &Request, script: &mut Script<'_>) -> Vec<u8> {
    let in_use = InUse {
        keys: vec![request.key],
        epochs: vec![request.epoch],
        generations: vec![request.generation],
        requests: vec![request.request],
        osds: vec![OsdId(1)],
        cluster: MAP.cluster,
        ..InUse::default()
    };
    let kind = if is_reply { Kind::Reply } else { Kind::ALL[usize::from(script.byte()) % Kind::ALL.len()] };
    let (is_twisted, blocks_max) = (script.byte().is_multiple_of(2), script.blocks_max());
    let mut forger = Forger::new(&in_use, || script.draw()).with_blocks_max(blocks_max);
    if is_twisted { forger.twisted(kind) } else { forger.message(kind) }
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let mut script = Script::new(input);
    let mut scene = Scene::new();
    let holding = if script.byte().is_multiple_of(2) { Holding::Alone } else { Holding::Shared };
    let volume = scene.client.add_volume(VOLUME, Generation(1), holding);
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        match step % 8 {
            0..=3 => {
                scene.asked += 1;
                let offset = script.number() * 4093 % (VOLUME_BYTES + 4096);
                let length_max = if step >> 6 == 3 { OPERATION_BYTES_MAX } else { SHORT_BYTES_MAX };
                let length = 1 + script.number() % length_max;
                let what = Submission { volume, token: scene.asked, offset, length };
                let Scene { client, io, now, reads, .. } = &mut scene;
                match step % 8 {
                    0 => {
                        let mut buffer = Buffer::new(length as usize);
                        buffer.bytes_mut().expect("nobody else holds it").fill(STALE);
                        reads.insert(what.token, (offset, length));
                        client.submit_read(*now, what, buffer, io);
                    }
                    1 => client.submit_write(*now, what, Buffer::new(length as usize), io),
                    2 => client.submit_zero(*now, what, io),
                    _ => client.submit_allocated(*now, what, io),
                }
            }
            4 => {
                scene.now = scene.now + Duration::from_millis(20 * u64::from(script.byte()));
                scene.client.handle_timeout(scene.now, &mut scene.io);
            }
            // The newest link stands, or ends.
            5 if scene.io.links > 0 => {
                let link = scene.link();
                scene.client.handle_connected(link, &mut scene.io);
                scene.say(&Welcome { version: VERSIONS.common(VERSIONS).expect("its own") }.encode(), seen);
            }
            6 if scene.io.links > 0 => {
                let link = scene.link();
                scene.client.handle_closed(scene.now, link, "it ended");
            }
            7 if !scene.pending.is_empty() => {
                let index = usize::from(step >> 3) % scene.pending.len();
                let (kind, request) = scene.pending.swap_remove(index);
                let bytes = answer(kind, &request, &mut script, &mut scene.is_told, seen);
                if let Ok(Some(_)) = wire::parse(&bytes) {
                    seen.note("said", messages::name_of_message(&bytes));
                }
                scene.say(&bytes, seen);
            }
            _ => {}
        }
        scene.hear();
        scene.count(seen);
    }
}

/// A read of two blocks that are not whole, answered by data, or by zeros.
const READ: [&[u8]; 2] = [&[0, 0, 3, 0, 0, 16, 5, 7, 1, 0], &[0, 0, 3, 0, 0, 16, 5, 7, 0, 0]];

pub(super) fn examples() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let mut examples = READ.map(<[u8]>::to_vec).to_vec();
    for number in 0..24 {
        // Connected with something to do, and then whatever comes.
        let mut script = vec![number % 2];
        for kind in 0..4 {
            script.extend([kind, number, 3, 0, 16, 5]);
        }
        script.extend((0..16 + 8 * number).map(|_| random.next_u64() as u8));
        examples.push(script);
    }
    examples
}

pub(super) fn expected() -> Vec<Outcome> {
    let ended = ["done", "allocated"].map(|how| ("ended", how));
    let brought = ["data", "zeros"].map(|what| ("brought", what));
    let failed =
        ["out of range", "damaged", "no space", "forbidden", "device failed"].map(|why| ("failed", why));
    let links = ["no message", "refused", "not for clients"].map(|why| ("link", why));
    ended.into_iter().chain(brought).chain(failed).chain(links).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_read_brought_is_what_was_answered() {
        for (input, brought) in READ.into_iter().zip(["data", "zeros"]) {
            let seen = Outcomes::of(run, input);
            assert_eq!((seen.times(("ended", "done")), seen.times(("brought", brought))), (1, 1), "{seen}");
        }
    }

    #[test]
    #[should_panic(expected = "is not what was answered for block 0")]
    fn what_was_in_the_buffer_before_is_not_what_was_answered() {
        let mut buffer = Buffer::new(BLOCK_BYTES);
        buffer.bytes_mut().unwrap().fill(STALE);
        brought((0, 100), &buffer);
    }
}
