//! Three real OSDs on their own threads, over TCP, on files, and a client; the registry is played by the test.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that cannot go on ends by panicking; no test uses all of this"
)]

use base::map::{Admission, ClusterMap, OsdInfo, PgConfig, PoolInfo, VolumeInfo};
use base::{Buffer, ClientId, ClusterId, Epoch, Generation, NodeId, OsdId, OsdUuid, PgId, PoolId, VolumeId};
use client::{Client, Holding, Outcome, Submission, VolumeHandle};
use drive::{Drive, Use};
use node::shard::{self, Command, Dial, Proposal, Report, ShardConfig, ShardError};
use ring::{ConnectionId, Event, Reactor, ReactorOptions, Stream, Waker};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Identity;
use tokio::sync::mpsc;

pub const OSDS: u32 = 3;
pub const PGS: u32 = 8;
pub const POOL: PoolId = PoolId(1);
pub const VOLUME: VolumeId = VolumeId(1);
pub const VOLUME_BYTES: u64 = 64 << 20;
pub const BLOCK: u64 = 4096;
pub const DEPTH: usize = 32;

pub fn cluster_id() -> ClusterId {
    ClusterId::from_bytes([7; 16])
}

pub struct OsdThread {
    pub reports: mpsc::Receiver<Report>,
    pub commands: mpsc::Sender<Command>,
    pub waker: Waker,
    pub thread: std::thread::JoinHandle<Result<(), ShardError>>,
}

impl OsdThread {
    pub fn start(osd: OsdId, uuid: OsdUuid, directory: &std::path::Path) -> (OsdThread, OsdInfo) {
        let path = directory.join(osd.to_string());
        let bytes = 1 << 30;
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        let (report_sender, mut reports) = mpsc::channel(1024);
        let (commands, command_receiver) = mpsc::channel(1024);
        let (dial_sender, dials) = mpsc::channel(1024);
        let mut drive = Drive::open(&path, Use::Alone).unwrap();
        drive.has_volatile_cache = false;
        let config = ShardConfig {
            drive,
            path: path.display().to_string(),
            identity: Identity { cluster: cluster_id(), osd_uuid: uuid, osd },
            format: true,
            spin_max: Duration::ZERO,
            dials: dial_sender,
        };
        let thread = std::thread::spawn(move || shard::run(config, report_sender, command_receiver));
        let Some(Report::Ready { waker }) = reports.blocking_recv() else {
            panic!("{osd} did not start: {:?}", thread.join());
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        connect(dials, commands.clone(), waker.clone());
        accept(listener, commands.clone(), waker.clone());
        let info = OsdInfo {
            uuid,
            node: NodeId(osd.0),
            bytes,
            address: Some(address),
            incarnation: 1,
            admission: Admission::In,
            ..OsdInfo::default()
        };
        (OsdThread { reports, commands, waker, thread }, info)
    }

    pub fn command(&self, command: Command) {
        self.commands.blocking_send(command).unwrap();
        self.waker.wake();
    }
}

/// Plays the switchboard of an OSD, for whom it connects to: without handshakes.
fn connect(mut dials: mpsc::Receiver<Dial>, commands: mpsc::Sender<Command>, waker: Waker) {
    std::thread::spawn(move || {
        while let Some(Dial { connection, address }) = dials.blocking_recv() {
            let command = match TcpStream::connect(address) {
                Ok(socket) => {
                    Command::Connected { connection, stream: Stream::new(socket, None), credential: None }
                }
                Err(error) => Command::NotConnected { connection, reason: error.to_string() },
            };
            if commands.blocking_send(command).is_err() {
                return;
            }
            waker.wake();
        }
    });
}

/// The same, for who connects to it: whoever says that it is a client is let in as one, and so are OSDs.
fn accept(listener: TcpListener, commands: mpsc::Sender<Command>, waker: Waker) {
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let command = Command::Accepted { stream: Stream::new(socket.unwrap(), None), credential: None };
            if commands.blocking_send(command).is_err() {
                return;
            }
            waker.wake();
        }
    });
}

/// Three OSDs, the map that a registry would keep, and a client.
pub struct Pond {
    pub osds: BTreeMap<OsdId, OsdThread>,
    pub map: ClusterMap,
    pub client: Client,
    pub volume: VolumeHandle,
    pub reactor: Reactor,
    pub events: Vec<Event>,
    pub buffers: Vec<Buffer>,
    pub _directory: tempfile::TempDir,
}

impl Pond {
    pub fn start() -> Pond {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut map = ClusterMap { revision: 1, cluster: cluster_id(), ..ClusterMap::default() };
        let mut osds = BTreeMap::new();
        for osd in (0..OSDS).map(OsdId) {
            let uuid = OsdUuid::from_bytes([osd.0 as u8 + 1; 16]);
            let (thread, info) = OsdThread::start(osd, uuid, directory.path());
            map.osds.insert(osd, info);
            osds.insert(osd, thread);
        }
        let pool = PoolInfo {
            name: "default".to_owned(),
            size: OSDS,
            min_size: 2,
            pg_count: PGS,
            ..PoolInfo::default()
        };
        map.pools.insert(POOL, pool);
        for index in 0..PGS {
            let config = PgConfig {
                epoch: Epoch(1),
                primary: OsdId(index % OSDS),
                in_sync: (0..OSDS).map(OsdId).collect(),
                ..PgConfig::default()
            };
            map.pgs.insert(PgId { pool: POOL, index }, config);
        }
        let info = VolumeInfo {
            name: "disk".to_owned(),
            pool: POOL,
            bytes: VOLUME_BYTES,
            generation: Generation(1),
            ..VolumeInfo::default()
        };
        map.volumes.insert(VOLUME, info);
        let mut client = Client::new(ClientId(1), Arc::new(map.clone()));
        let volume = client.add_volume(VOLUME, Generation(1), Holding::Alone);
        let options = ReactorOptions { connections_max: 16, ..ReactorOptions::default() };
        let reactor = Reactor::new(options).unwrap();
        let buffers = (0..2 * DEPTH).map(|_| Buffer::new(BLOCK as usize)).collect();
        let events = Vec::new();
        let mut pond = Pond { osds, map, client, volume, reactor, events, buffers, _directory: directory };
        pond.publish();
        pond
    }

    pub fn publish(&mut self) {
        self.map.revision += 1;
        let map = Arc::new(self.map.clone());
        for osd in self.osds.values() {
            osd.command(Command::Map(map.clone()));
        }
        self.client.handle_map(ring::now(), map, &mut self.reactor);
    }

    /// Plays the registry: a proposal stands if nobody was faster.
    pub fn answer_proposals(&mut self) {
        let mut is_changed = false;
        for osd in self.osds.values_mut() {
            while let Ok(report) = osd.reports.try_recv() {
                let Report::Propose(Proposal { pg, expected, config, is_split: false, .. }) = report else {
                    continue;
                };
                let current = self.map.pgs.get_mut(&pg).unwrap();
                let accepted = (current.epoch == expected).then_some(config);
                if let Some(config) = &accepted {
                    *current = config.clone();
                    is_changed = true;
                }
                osd.command(Command::Proposal { pg, accepted });
            }
        }
        if is_changed {
            self.publish();
        }
    }

    pub fn turn(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.turn(Some(Duration::from_millis(20)), &mut events).unwrap();
        let now = ring::now();
        for event in events.drain(..) {
            match event {
                Event::Connected { connection } => {
                    self.client.handle_connected(connection.link(), &mut self.reactor);
                }
                Event::Received { connection } => self.receive(connection),
                Event::Closed { connection, reason } => {
                    self.client.handle_closed(now, connection.link(), &reason);
                }
                _ => {}
            }
        }
        self.events = events;
        self.client.handle_timeout(now, &mut self.reactor);
        let buffers = &mut self.buffers;
        self.reactor.take_released(|buffer| {
            if buffer.is_unique() {
                buffers.push(buffer);
            }
        });
    }

    pub fn receive(&mut self, connection: ConnectionId) {
        let Some(mut inbox) = self.reactor.take_inbox(connection) else { return };
        let (client, reactor) = (&mut self.client, &mut self.reactor);
        let consumed = client.handle_bytes(ring::now(), connection.link(), inbox.bytes(), reactor).unwrap();
        inbox.consume(consumed);
        inbox.grow(2 << 20);
        self.reactor.return_inbox(connection, inbox, true);
    }

    pub fn submit(&mut self, number: u64, is_write: bool, mut buffer: Buffer) {
        let (client, reactor) = (&mut self.client, &mut self.reactor);
        let (now, offset) = (ring::now(), scattered(number));
        let what = Submission { volume: self.volume, token: number, offset, length: BLOCK };
        if is_write {
            buffer.bytes_mut().unwrap()[..8].copy_from_slice(&number.to_le_bytes());
            client.submit_write(now, what, buffer, reactor);
        } else {
            client.submit_read(now, what, buffer, reactor);
        }
    }

    /// Runs `count` operations, `DEPTH` at a time; the n-th is a write if `is_write` says so.
    pub fn run(&mut self, count: u64, is_write: impl Fn(u64) -> bool) {
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            while begun < count && self.client.operations_in_flight() < DEPTH {
                let Some(buffer) = self.buffers.pop() else { break };
                self.submit(begun, is_write(begun), buffer);
                begun += 1;
            }
            self.turn();
            while let Some(completion) = self.client.poll_completion() {
                assert_eq!(completion.outcome, Outcome::Done);
                ended += 1;
                // A write's buffer may still be on its way out; it comes back from the reactor then.
                self.buffers.extend(completion.buffer.filter(Buffer::is_unique));
            }
        }
    }

    /// Waits until every group serves in an epoch that was claimed here.
    pub fn becomes_active(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.map.pgs.values().any(|config| config.epoch == Epoch(1)) {
            assert!(Instant::now() < deadline, "the groups do not become active: {:?}", self.map.pgs);
            self.answer_proposals();
            self.turn();
        }
    }

    /// What became of one operation.
    pub fn outcome(&mut self, number: u64, is_write: bool) -> Outcome {
        let buffer = self.buffers.pop().expect("few buffers are lent");
        self.submit(number, is_write, buffer);
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < deadline, "it does not end: {:?}", self.client.trouble());
            self.answer_proposals();
            self.turn();
            if let Some(completion) = self.client.poll_completion() {
                self.buffers.extend(completion.buffer.filter(Buffer::is_unique));
                return completion.outcome;
            }
        }
    }

    pub fn stop(self) {
        for osd in self.osds.into_values() {
            osd.command(Command::Shutdown);
            osd.thread.join().unwrap().unwrap();
        }
    }
}

/// Scattered over the volume, every block once.
pub fn scattered(number: u64) -> u64 {
    number * 7919 % (VOLUME_BYTES / BLOCK) * BLOCK
}
