//! A cluster in memory for tests: a real registry on a real socket, and one OSD that keeps blocks in a map.
//!
//! The OSD speaks the protocol of [`wire`] over TCP, one task a connection, and refuses what a real one
//! would: another cluster, a wrong checksum, a generation that a fence forbids. [`Faults`] make it misbehave.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on ends by panicking")]

use crate::ClusterAccess;
use auth::{Channel, Identity, SecretKey};
use base::{
    Access, BLOCK_BYTES, ClientId, ClusterId, Encryption, NodeId, OBJECT_BLOCKS, ObjectKey, OsdUuid,
    Principal, Sequence, VolumeId, crc32c,
};
use cluster::{Cluster, ClusterError};
use registry::Registry;
use registry_embedded::EmbeddedRegistry;
use registry_remote::{DeskPlace, SocketPlace, SocketServer};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use wire::{Kind, Message, Outcome, RefusalDetails, Refused, Request, Status, Welcome};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// How an OSD misbehaves from now on.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Every write is refused so.
    pub refuse_writes: Option<Status>,
    /// Every read is refused so.
    pub refuse_reads: Option<Status>,
    /// Every write that was sent before is refused so.
    pub refuse_repeats: Option<Status>,
    /// No write is done or answered, and the connection on which it came ends.
    pub hang_up_on_writes: bool,
    /// No request is answered.
    pub silent: bool,
    /// No fence is answered.
    pub deaf_to_fences: bool,
}

type Block = [u8; BLOCK_BYTES];

#[derive(Default)]
struct Stored {
    fences: Vec<wire::Fence>,
    blocks: HashMap<(VolumeId, u32, usize), Box<Block>>,
    /// Writes and zeroings that were done: it is one placement group.
    changes: u64,
    faults: Faults,
    /// Writes upon which it hung up.
    hang_ups: usize,
    /// What it wants of those who connect.
    encryption: Encryption,
    served: Served,
}

/// Messages that an OSD was sent, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// On encrypted connections.
    pub encrypted: usize,
    /// On others.
    pub plain: usize,
}

/// A cluster of one OSD.
pub struct TestCluster {
    runtime: tokio::runtime::Runtime,
    cluster: Cluster,
    access: ClusterAccess,
    stored: Arc<Mutex<Stored>>,
    _server: SocketServer,
}

impl TestCluster {
    /// A cluster whose files lie in `directory`, with the pool `default`.
    #[must_use]
    pub fn start(directory: &Path) -> TestCluster {
        let id = ClusterId::from_bytes([7; 16]);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = directory.join(ClusterAccess::SOCKET);
        let (node, admin) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        let principals = [
            ("node.0", Principal::new(node.public(), Access::Node(NodeId(0)))),
            ("admin", Principal::new(admin.public(), Access::Admin)),
        ];
        let access = ClusterAccess {
            desk: DeskPlace::Registry(Arc::new(SocketPlace(socket.clone()))),
            identity: Identity::new(&admin),
        };
        let stored = Arc::new(Mutex::new(Stored::default()));
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(accept(listener, Identity::new(&node), id, stored.clone()));
        let file = directory.join("registry.redb");
        let (cluster, server) = runtime.block_on(async {
            let registry: Arc<dyn Registry> = Arc::new(EmbeddedRegistry::create(&file, id).unwrap());
            let server = SocketServer::bind(&socket, registry.clone()).unwrap();
            let cluster = Cluster::new(registry);
            cluster.create(id).await.unwrap();
            for (name, principal) in &principals {
                cluster.add_principal(name, principal).await.unwrap();
            }
            let osd = cluster
                .register_osd(OsdUuid::default(), NodeId(0), 8 << 30, base::map::DeviceClass::Ssd)
                .await
                .unwrap();
            let lease = cluster.registry().lease_grant(Duration::from_secs(3600)).await.unwrap();
            cluster.osd_up(osd, address, lease.id).await.unwrap();
            cluster.create_pool("default", 1, 1, 8).await.unwrap();
            (cluster, server)
        });
        TestCluster { runtime, cluster, access, stored, _server: server }
    }

    /// The way in.
    #[must_use]
    pub fn access(&self) -> ClusterAccess {
        self.access.clone()
    }

    /// The cluster's state, and the runtime to reach it on.
    pub fn with<T>(&self, work: impl AsyncFnOnce(&Cluster) -> T) -> T {
        self.runtime.block_on(work(&self.cluster))
    }

    /// Makes a volume.
    pub fn create_volume(&self, name: &str, bytes: u64) {
        self.with(async |cluster| cluster.create_volume(name, "default", bytes).await.unwrap());
    }

    /// Makes the OSD misbehave, or behave again.
    pub fn set_faults(&self, faults: Faults) {
        self.stored.lock().unwrap().faults = faults;
    }

    /// Switches the cluster's encryption, of which the OSD hears at once.
    pub fn set_encryption(&self, encryption: Encryption) {
        self.stored.lock().unwrap().encryption = encryption;
        self.with(async |cluster| cluster.set_encryption(encryption).await.unwrap());
    }

    /// What the OSD was sent so far.
    #[must_use]
    pub fn served(&self) -> Served {
        self.stored.lock().unwrap().served
    }

    /// Writes upon which the OSD hung up.
    #[must_use]
    pub fn hang_ups(&self) -> usize {
        self.stored.lock().unwrap().hang_ups
    }

    /// Blocks that hold something.
    #[must_use]
    pub fn allocated_blocks(&self) -> usize {
        self.stored.lock().unwrap().blocks.len()
    }

    /// The fences that the OSD was told of.
    #[must_use]
    pub fn fences(&self) -> Vec<wire::Fence> {
        self.stored.lock().unwrap().fences.clone()
    }

    /// Ends every lease of clients, as if the registry had not heard of them for too long, and attaches a volume for
    /// somebody else.
    pub fn take_over(&self, volume: &str) {
        self.with(async |cluster| {
            let lease = cluster.registry().lease_grant(Duration::from_secs(60)).await.unwrap().id;
            let attach =
                || cluster.attach(volume, ClientId(u64::MAX), lease, false, "somebody else".to_owned());
            revoke_attachments(cluster).await;
            // Who lost a lease may take it up again before the other comes.
            while let Err(error) = attach().await {
                assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
                revoke_attachments(cluster).await;
            }
        });
    }

    /// Ends every lease of clients, as if the registry had not heard of them for too long.
    pub fn revoke_attachments(&self) {
        self.with(async |cluster| revoke_attachments(cluster).await);
    }
}

async fn revoke_attachments(cluster: &Cluster) {
    for entry in cluster.registry().range("millpond/attached/").await.unwrap().entries {
        if let Some(lease) = entry.lease {
            // Several attachments may have one lease.
            let _ = cluster.registry().lease_revoke(lease).await;
        }
    }
}

async fn accept(listener: TcpListener, identity: Identity, cluster: ClusterId, stored: Arc<Mutex<Stored>>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let (identity, stored) = (identity.clone(), stored.clone());
        tokio::spawn(async move {
            let encryption = stored.lock().unwrap().encryption;
            if let Ok((channel, ())) = identity.accept(stream, encryption, |_| Ok::<_, String>(())).await {
                serve(channel, cluster, &stored).await;
            }
        });
    }
}

async fn serve(mut channel: Channel, cluster: ClusterId, stored: &Mutex<Stored>) {
    let mut inbox = Vec::new();
    while matches!(channel.receive(&mut inbox).await, Ok(1..)) {
        let (mut consumed, mut replies) = (0, Vec::new());
        while let Some((message, size)) = wire::parse(&inbox[consumed..]).unwrap() {
            let mut stored = stored.lock().unwrap();
            match channel.is_encrypted() {
                true => stored.served.encrypted += 1,
                false => stored.served.plain += 1,
            }
            match message {
                Message::Hello(hello) if hello.cluster == cluster => {
                    replies.extend_from_slice(&Welcome { version: hello.version() }.encode());
                }
                Message::Hello(_) => {
                    replies.extend_from_slice(&Refused { reason: "another cluster" }.encode());
                }
                _ if !answer(&mut stored, &message, &mut replies) => return,
                _ => {}
            }
            consumed += size;
        }
        inbox.drain(..consumed);
        if channel.send(&replies).await.is_err() {
            return;
        }
    }
}

/// Answers a message, unless the connection ends.
fn answer(stored: &mut Stored, message: &Message<'_>, replies: &mut Vec<u8>) -> bool {
    if let Message::Fence(fence) = message {
        if !stored.faults.deaf_to_fences {
            stored.fences.push(*fence);
            replies.extend_from_slice(&fence.encode(Kind::FenceDone));
        }
        return true;
    }
    let faults = &stored.faults;
    let of_change = |request: &Request| request.since.and(faults.refuse_repeats).or(faults.refuse_writes);
    let (request, is_change, refusal) = match message {
        Message::Read(request) => (request, false, faults.refuse_reads),
        Message::Write(write) => (&write.head, true, of_change(&write.head)),
        Message::Zero(request) => (request, true, of_change(request)),
        Message::Allocated(request) | Message::Changed(request) | Message::Space(request) => {
            (request, false, None)
        }
        _ => panic!("clients send requests"),
    };
    if faults.silent {
        return true;
    }
    if is_change && faults.hang_up_on_writes {
        stored.hang_ups += 1;
        return false;
    }
    let fences = stored.fences.iter().filter(|fence| fence.volume == request.key.layer.volume());
    let oldest = fences.map(|fence| fence.generation).max().unwrap_or_default();
    let refusal = if is_change && request.generation < oldest { Some(Status::Fenced) } else { refusal };
    if let Some(status) = refusal {
        let (offset, generation) = (request.offset, oldest);
        let details = RefusalDetails { offset, generation, ..RefusalDetails::default() };
        replies.extend_from_slice(&Outcome::refused(request.request, status, details));
        return true;
    }
    stored.changes += u64::from(is_change);
    let reached = Sequence(1 + stored.changes);
    match message {
        Message::Read(request) => read(stored, request, replies),
        Message::Write(sent) => match write(stored, request, sent.checksums, sent.data) {
            true => replies.extend_from_slice(&Outcome::done(request.request, reached, 0)),
            false => {
                let details = RefusalDetails::default();
                replies.extend(Outcome::refused(request.request, Status::CorruptPayload, details));
            }
        },
        Message::Zero(request) => {
            for block in blocks(request) {
                stored.blocks.remove(&place(request.key, block));
            }
            replies.extend_from_slice(&Outcome::done(request.request, reached, 0));
        }
        _ => {
            let mut bits = [0u8; OBJECT_BLOCKS / 8];
            for block in 0..OBJECT_BLOCKS {
                let is_there = stored.blocks.contains_key(&place(request.key, block));
                bits[block / 8] |= u8::from(is_there) << (block % 8);
            }
            replies.extend_from_slice(&Outcome::done(request.request, reached, bits.len()));
            replies.extend_from_slice(&bits);
        }
    }
    true
}

fn read(stored: &Stored, request: &Request, replies: &mut Vec<u8>) {
    const ZEROS: Block = [0; BLOCK_BYTES];
    let reached = Sequence(1 + stored.changes);
    if blocks(request).all(|block| !stored.blocks.contains_key(&place(request.key, block))) {
        replies.extend_from_slice(&Outcome::zeros(request.request, reached));
        return;
    }
    let found: Vec<&Block> = blocks(request)
        .map(|block| stored.blocks.get(&place(request.key, block)).map_or(&ZEROS, |block| block))
        .collect();
    let checksums: Vec<U32> = found.iter().map(|block| crc32c(&block[..]).into()).collect();
    let body_bytes = found.len() * (BLOCK_BYTES + 4);
    replies.extend_from_slice(&Outcome::done(request.request, reached, body_bytes));
    replies.extend_from_slice(checksums.as_bytes());
    found.iter().for_each(|block| replies.extend_from_slice(&block[..]));
}

fn write(stored: &mut Stored, request: &Request, checksums: &[U32], mut data: &[u8]) -> bool {
    let mut start = request.offset as usize % BLOCK_BYTES;
    for (block, checksum) in blocks(request).zip(checksums) {
        let (part, rest) = data.split_at(data.len().min(BLOCK_BYTES - start));
        if crc32c(part) != checksum.get() {
            return false;
        }
        let slot =
            stored.blocks.entry(place(request.key, block)).or_insert_with(|| Box::new([0; BLOCK_BYTES]));
        slot[start..start + part.len()].copy_from_slice(part);
        (data, start) = (rest, 0);
    }
    true
}

fn blocks(request: &Request) -> impl Iterator<Item = usize> + use<> {
    let (first, count) = request.blocks();
    usize::from(first)..usize::from(first) + usize::from(count)
}

fn place(key: ObjectKey, block: usize) -> (VolumeId, u32, usize) {
    (key.layer.volume(), key.object, block)
}
