//! An OSD's thread: reap, handle, flush, again and again.

use crate::inboxes::{INBOX_BYTES, INBOX_BYTES_MAX, Inboxes};
use crate::looks::{self, Looks};
use crate::refusals::Refusals;
use crate::rounds::Rounds;
use crate::socket_buffers;
use crate::stalled::Stalled;
use crate::standstill::{self, Standstill};
use crate::tally::Tallier;
use crate::unwelcome::Unwelcome;
use base::figures::Tally;
use base::map::{ClusterMap, PgConfig};
use base::status::{LostRange, OsdStatus, PgState, PgStatus, RecoveryProgress, ScrubProgress};
use base::units::ByteSize;
use base::{
    BLOCK_BYTES, Buffer, Encryption, Epoch, Instant, LinkId, Network, OBJECT_BYTES, OsdId, PgId, Tenant,
};
use drive::{Drive, DriveWatch, Finding};
use pg::{Credential, DamageCounts, GroupSummary, Io, LostBlock, Osd, OsdOptions, ScrubReport};
use ring::{ConnectionId, Event, FileId, Inbox, Reactor, ReactorOptions, Stream, Waker};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{Device, Expected, Identity, Options, Store};
use tokio::sync::mpsc;

/// How long somebody who connected may take to say who it is.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// Lost ranges that a status lists.
const LOST_RANGES_MAX: usize = 64;
/// How often damage is logged while more is found.
const DAMAGE_LOG_PAUSE: Duration = Duration::from_secs(10);
/// How long a shutdown may take.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);

/// Why connections end when the cluster's encryption is switched.
const ENCRYPTION_CAME: &str = "the cluster's traffic is to be encrypted now";
const ENCRYPTION_WENT: &str = "the cluster's traffic is not to be encrypted any more";

/// What the control side tells a shard.
#[derive(Debug)]
pub enum Command {
    /// A newer map.
    Map(Arc<ClusterMap>),
    /// What became of a proposal.
    Proposal {
        /// The group.
        pg: PgId,
        /// The configuration that stands, unless the proposal came to nothing.
        accepted: Option<PgConfig>,
    },
    /// The registry answered a sign of life of the OSD.
    RegistryAnswered,
    /// Scrub these groups, deeply or not.
    Scrub(Vec<(PgId, bool)>),
    /// Somebody connected.
    Accepted {
        /// The connection.
        stream: Stream,
        /// Who it proved to be. None lets it be who it says it is, which is for tests.
        credential: Option<Credential>,
    },
    /// A connection that was dialled stands, and who is there proved to be who it must be.
    Connected {
        /// What was reserved for it.
        connection: ConnectionId,
        /// The connection.
        stream: Stream,
        /// Who is there. None for tests.
        credential: Option<Credential>,
    },
    /// A connection that was dialled came to nothing.
    NotConnected {
        /// What was reserved for it.
        connection: ConnectionId,
        /// Why, for a person.
        reason: String,
    },
    /// Stop, so that the next start is quick.
    Shutdown,
}

/// The way to a shard.
#[derive(Clone, Debug)]
pub(crate) struct ToShard {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) waker: Waker,
}

impl ToShard {
    pub(crate) async fn tell(&self, command: Command) {
        // It fails only when the shard has ended, which is noticed elsewhere.
        if self.commands.send(command).await.is_ok() {
            self.waker.wake();
        }
    }

    /// Tells what waits for the next turn: nobody is woken for it. Dropped if the queue is full, for then it is not the newest.
    pub(crate) fn tell_in_passing(&self, command: Command) {
        let _ = self.commands.try_send(command);
    }
}

/// A configuration that an OSD asks for.
#[derive(Debug)]
pub struct Proposal {
    /// The group.
    pub pg: PgId,
    /// If its epoch still is this one.
    pub expected: Epoch,
    /// What is to replace its configuration.
    pub config: PgConfig,
    /// And with the same the group that is split off from it begins.
    pub is_split: bool,
    /// The map that it was decided by: whoever is to become in sync must still be who it was there.
    pub decided_by: Arc<ClusterMap>,
}

/// What a shard tells the control side.
#[derive(Debug)]
pub enum Report {
    /// It takes commands.
    Ready {
        /// Wakes it after a command.
        waker: Waker,
    },
    /// It wants a group's configuration replaced.
    Propose(Proposal),
    /// How it is.
    Status(Box<OsdStatus>),
    /// A scrub ended.
    Scrubbed(ScrubReport),
    /// What it counted.
    Tally(Box<Tally>),
}

/// A connection that an OSD wants.
#[derive(Debug)]
pub struct Dial {
    /// Reserved for it in the OSD's reactor.
    pub connection: ConnectionId,
    /// To whom.
    pub address: SocketAddr,
}

/// Why a shard does not start, or cannot go on. For a person.
#[derive(thiserror::Error, Debug)]
pub enum ShardError {
    /// What is on its drive cannot be used.
    #[error("{0}")]
    Drive(String),
    /// The system refuses something that any drive would need.
    #[error("{0}")]
    System(String),
}

impl ShardError {
    fn of_drive(path: &str, error: impl std::fmt::Display) -> ShardError {
        ShardError::Drive(format!("{path}: {error}"))
    }

    fn of_system(path: &str, error: impl std::fmt::Display) -> ShardError {
        ShardError::System(format!("{path}: {error}"))
    }
}

/// What a shard is started with.
#[derive(Debug)]
pub struct ShardConfig {
    /// The drive, opened.
    pub drive: Drive,
    /// Its path, for people.
    pub path: String,
    /// Who it is, or will be.
    pub identity: Identity,
    /// The drive is blank.
    pub format: bool,
    /// The longest it polls before it sleeps, when it was busy a moment ago.
    pub spin_max: Duration,
    /// Where it asks for connections.
    pub dials: mpsc::Sender<Dial>,
}

/// Runs an OSD until it is told to stop. Reports and commands are bounded queues.
///
/// # Errors
/// Why it cannot start, or cannot go on.
pub fn run(
    mut config: ShardConfig,
    reports: mpsc::Sender<Report>,
    commands: mpsc::Receiver<Command>,
) -> Result<(), ShardError> {
    let osd = config.identity.osd;
    let path = config.path.clone();
    let has_volatile_cache = config.drive.has_volatile_cache;
    let options = Options { volatile_cache: has_volatile_cache, ..Options::default() };
    if config.format {
        // From the kernel's generator.
        let secret = uuid::Uuid::new_v4().into_bytes();
        store::format(&mut config.drive, config.identity, secret, &options)
            .map_err(|error| ShardError::of_drive(&path, error))?;
    }
    let expected =
        Expected { cluster: Some(config.identity.cluster), osd_uuid: Some(config.identity.osd_uuid) };
    let started = ring::now();
    let store = Store::open(&mut config.drive, &expected, options)
        .map_err(|error| ShardError::of_drive(&path, error))?;
    tracing::info!(%osd, path, seconds = ring::now().since(started).as_secs_f64(), "the store is open");
    let unreadable_blocks = store.statistics().unreadable_blocks;
    if unreadable_blocks > 0 {
        tracing::warn!(%osd, path, unreadable_blocks, "bad blocks where the log ends could not be read; if what lay there was acknowledged, the other members have it");
    }
    let mut machine = Osd::new(store, &OsdOptions::default());
    let reactor_options =
        ReactorOptions { spin_max: config.spin_max, inbox_bytes: INBOX_BYTES, ..ReactorOptions::default() };
    let mut reactor = Reactor::new(reactor_options).map_err(|error| ShardError::System(error.to_string()))?;
    reactor
        .register_buffers(machine.buffers_mut())
        .map_err(|error| ShardError::System(format!("registering buffers: {error}")))?;
    let drive_watch = DriveWatch::new(config.drive.bytes(), ring::now());
    let descriptor = config.drive.descriptor().map_err(|error| ShardError::of_system(&path, error))?;
    let file = reactor
        .add_file(descriptor, config.drive.depth)
        .map_err(|error| ShardError::of_system(&path, error))?;
    let ready = Report::Ready { waker: reactor.waker() };
    reports.blocking_send(ready).map_err(|_| ShardError::System("the node is stopping".to_owned()))?;
    let shard = Shard {
        osd: machine,
        reactor,
        file,
        proposals: VecDeque::new(),
        rounds: Rounds::default(),
        stalled: Stalled::default(),
        inboxes: Inboxes::default(),
        deaf: Standstill::default(),
        mute: Standstill::default(),
        refusals: Refusals::default(),
        greetings: VecDeque::new(),
        unwelcome: Unwelcome::default(),
        dials: config.dials,
        reports,
        commands,
        published: None,
        tallier: Tallier::default(),
        recovery_measured: (0, Instant::default()),
        recovery_bytes_per_s: 0,
        looks: Looks::default(),
        shutdown_limit: None,
        drive_watch,
        damage_logged: (DamageCounts::default(), Instant::default()),
        path,
        has_volatile_cache,
        encryption: Encryption::Off,
        map: Arc::default(),
    };
    shard.serve().map_err(|error| ShardError::System(format!("{osd}: the event loop failed: {error}")))
}

struct Shard {
    osd: Osd,
    reactor: Reactor,
    file: FileId,
    /// Not yet handed to the control side.
    proposals: VecDeque<Report>,
    /// Connections of clients with something to be handled.
    rounds: Rounds<ConnectionId>,
    /// Those of other OSDs with a message that could not be handled yet.
    stalled: Stalled<ConnectionId>,
    inboxes: Inboxes<ConnectionId>,
    /// Clients that take no answers.
    deaf: Standstill<ConnectionId>,
    /// Those that do not go on with what they began to send.
    mute: Standstill<ConnectionId>,
    refusals: Refusals,
    /// Who connected and must say who it is, oldest first.
    greetings: VecDeque<(Instant, ConnectionId)>,
    unwelcome: Unwelcome<ConnectionId>,
    dials: mpsc::Sender<Dial>,
    reports: mpsc::Sender<Report>,
    commands: mpsc::Receiver<Command>,
    published: Option<OsdStatus>,
    tallier: Tallier,
    /// Bytes that members were sent that catch up, and when that was measured; and how many a second that made.
    recovery_measured: (u64, Instant),
    recovery_bytes_per_s: u64,
    /// When it is looked whether there is something to publish.
    looks: Looks,
    shutdown_limit: Option<Instant>,
    drive_watch: DriveWatch,
    /// Blocks that did not verify, as of when that was logged last.
    damage_logged: (DamageCounts, Instant),
    path: String,
    has_volatile_cache: bool,
    /// What the newest map says.
    encryption: Encryption,
    /// The newest that the OSD was given.
    map: Arc<ClusterMap>,
}

/// The reactor and the way to the registry, as the OSD sees them.
struct ShardIo<'a> {
    reactor: &'a mut Reactor,
    file: FileId,
    proposals: &'a mut VecDeque<Report>,
    dials: &'a mpsc::Sender<Dial>,
    map: &'a Arc<ClusterMap>,
}

impl ShardIo<'_> {
    fn ask_for(&mut self, pg: PgId, expected: Epoch, config: PgConfig, is_split: bool) {
        let decided_by = self.map.clone();
        self.proposals.push_back(Report::Propose(Proposal { pg, expected, config, is_split, decided_by }));
    }
}

impl Network for ShardIo<'_> {
    fn connect(&mut self, address: SocketAddr) -> Option<LinkId> {
        let connection = self.reactor.reserve().ok()?;
        if self.dials.try_send(Dial { connection, address }).is_err() {
            self.reactor.close(connection, "too many connections are being made");
            return None;
        }
        Some(connection.link())
    }
    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        Network::send(self.reactor, link, bytes);
    }
    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: Range<usize>) {
        Network::send_shared(self.reactor, link, buffer, range);
    }
    fn unsent_bytes(&self, link: LinkId) -> usize {
        Network::unsent_bytes(self.reactor, link)
    }
    fn close(&mut self, link: LinkId, reason: &str) {
        Network::close(self.reactor, link, reason);
    }
}

impl Io for ShardIo<'_> {
    fn read(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize) {
        self.reactor.read(self.file, token, offset, buffer, length);
    }
    fn write(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize) {
        self.reactor.write(self.file, token, offset, buffer, length);
    }
    fn flush(&mut self, token: u64) {
        self.reactor.flush(self.file, token);
    }
    fn propose(&mut self, pg: PgId, expected: Epoch, config: PgConfig) {
        self.ask_for(pg, expected, config, false);
    }
    fn propose_split(&mut self, pg: PgId, expected: Epoch, config: PgConfig) {
        self.ask_for(pg, expected, config, true);
    }
}

/// Splits a shard into its OSD and what that works with.
macro_rules! parts {
    ($shard:expr) => {
        (
            &mut $shard.osd,
            ShardIo {
                reactor: &mut $shard.reactor,
                file: $shard.file,
                proposals: &mut $shard.proposals,
                dials: &$shard.dials,
                map: &$shard.map,
            },
        )
    };
}

impl Shard {
    fn serve(mut self) -> std::io::Result<()> {
        let mut events = Vec::new();
        loop {
            let now = ring::now();
            let timeout = self.next_timeout(now);
            self.reactor.set_waiting(self.osd.view().operations_in_flight());
            self.reactor.turn(Some(timeout), &mut events)?;
            let (osd, reactor) = (&mut self.osd, &mut self.reactor);
            reactor.take_released(|buffer| osd.put_buffer(buffer));
            let now = ring::now();
            for event in events.drain(..) {
                self.handle_event(now, event);
            }
            // What was told in passing comes with no event.
            if !self.commands.is_empty() {
                self.handle_commands(now);
            }
            self.retry_stalled(now);
            self.serve_clients(now);
            let (osd, mut io) = parts!(self);
            // Read anew: what is served by a lease must be served while it lasts, however long the turn took.
            osd.end_turn(ring::now(), &mut io);
            let begun = self.drive_watch.begin(now, self.osd.store(), &mut self.reactor, self.file);
            self.osd.note_own_reads(begun, 0);
            self.hand_over_proposals();
            self.close_the_silent(now);
            self.close_the_deaf(now);
            self.close_the_mute(now);
            self.publish(now);
            self.tallier.tell(now, &self.osd, |tally| {
                // Should the control side lag, it is told later.
                self.reports.try_send(Report::Tally(Box::new(tally))).is_ok()
            });
            if self.shutdown_limit.is_some_and(|limit| self.osd.is_shut_down() || now >= limit) {
                return Ok(());
            }
        }
    }

    /// How long a turn may wait for something to happen.
    fn next_timeout(&self, now: Instant) -> Duration {
        let due = self.osd.next_timeout();
        let due = self.looks.next_timeout().map_or(due, |look| due.min(look));
        let pauses = [self.stalled.pause_max(), self.rounds.pause_max()];
        pauses.into_iter().flatten().fold(due.since(now), Duration::min)
    }

    fn handle_event(&mut self, now: Instant, event: Event) {
        let (osd, mut io) = parts!(self);
        match event {
            Event::FileDone { token, buffer, result } if DriveWatch::is_own(token) => {
                osd.note_own_reads(0, 1);
                let finding = self.drive_watch.was_read(token, buffer, &result, osd.store());
                self.heed(now, finding);
            }
            Event::FileDone { token, buffer, result } => {
                osd.handle_file(now, token, buffer, result.map_err(|error| error.to_string()), &mut io);
            }
            Event::Received { connection } => match osd.tenant(connection.link()) {
                Some(tenant) => self.rounds.push(tenant, connection),
                None => self.look_into(now, connection),
            },
            Event::Connected { connection } => osd.handle_connected(connection.link(), &mut io),
            Event::Closed { connection, reason } => {
                tracing::debug!(osd = %osd.id(), ?connection, reason, "a connection ended");
                osd.handle_closed(now, connection.link(), &reason, &mut io);
                self.inboxes.shrank(connection);
                self.unwelcome.take(connection);
            }
            Event::Woken => self.handle_commands(now),
            // It has no listener, and listens to nobody's eventfd.
            Event::Drained { .. } | Event::Accepted { .. } | Event::Signalled { .. } => {}
        }
    }

    /// Does what a look at the drive calls for.
    fn heed(&mut self, now: Instant, finding: Finding) {
        let (osd, mut io) = parts!(self);
        let (id, path) = (osd.id(), &self.path);
        match finding {
            Finding::Sound => {}
            Finding::Overwritten { offset } => {
                tracing::error!(osd = %id, path, offset, "the superblock at this offset was overwritten by something else, or cannot be read; all that a start needs is written anew");
                osd.renew_superblocks(offset);
            }
            Finding::Truncated { bytes } => {
                let reason = format!(
                    "it was truncated: it had {}, and its end is not there any more",
                    ByteSize(bytes)
                );
                osd.fail_drive(now, &reason, &mut io);
            }
        }
    }

    /// Logs the damage that reads met, in sum: a drive may have very many such blocks.
    fn log_damage(&mut self, now: Instant) {
        let counts = self.osd.view().damage();
        let (logged, at) = self.damage_logged;
        let has_more = counts.found > logged.found && now.since(at) >= DAMAGE_LOG_PAUSE;
        if has_more || counts.renewals > logged.renewals {
            self.damage_logged = (counts, now);
            let DamageCounts { found, mended, renewals } = counts;
            tracing::warn!(osd = %self.osd.id(), path = self.path, found, mended, renewals, "blocks whose checksum does not verify were found on the drive since the start; what a start needs was written anew as often as there are renewals");
        }
    }

    /// Handles what a connection brought, if it is still there, and receives more unless it is stalled.
    fn look_into(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(reason) = self.unwelcome.take(connection) {
            return self.refuse(connection, &reason);
        }
        let Some(mut inbox) = self.reactor.take_inbox(connection) else { return };
        let (osd, mut io) = parts!(self);
        match osd.handle_bytes(now, connection.link(), inbox.bytes(), &mut io) {
            Ok(progress) => {
                let was_full = inbox.is_full();
                inbox.consume(progress.consumed);
                let tenant = self.osd.tenant(connection.link());
                self.fit(connection, tenant, &mut inbox, was_full);
                // What is there does not end where the memory does, and there is no more.
                let is_stalled = progress.is_stalled || inbox.is_full();
                self.reactor.return_inbox(connection, inbox, !is_stalled);
                match tenant {
                    _ if !is_stalled => {}
                    None => self.stalled.push(connection),
                    // It was the turn of others.
                    Some(tenant) if progress.consumed > 0 => self.rounds.push(tenant, connection),
                    // Nothing is received, so nothing else tells.
                    Some(_) if self.reactor.has_peer_left(connection) => {
                        self.reactor.close(connection, "the client is gone");
                    }
                    Some(tenant) => self.rounds.push_stalled(tenant, connection),
                }
            }
            Err(error) => {
                self.reactor.return_inbox(connection, inbox, false);
                self.refuse(connection, &error.to_string());
            }
        }
    }

    /// Has an inbox be as large as it needs to be, or as there is memory for it.
    fn fit(&mut self, connection: ConnectionId, tenant: Option<Tenant>, inbox: &mut Inbox, was_full: bool) {
        let Some(tenant) = tenant else {
            if was_full {
                inbox.grow((inbox.capacity() * 2).min(INBOX_BYTES_MAX));
            }
            return;
        };
        if was_full {
            // It brings more than fits: larger receipts carry more messages each.
            inbox.grow(self.inboxes.grow(connection, tenant, inbox.capacity()));
            if inbox.is_full() {
                self.inboxes.is_short(tenant);
            }
        } else if inbox.bytes().is_empty() && self.inboxes.are_scarce(tenant) {
            inbox.shrink(INBOX_BYTES);
            self.inboxes.shrank(connection);
        }
    }

    /// Whether somebody who just connected is waited for until it says something, if only to hear why it is refused.
    fn is_awaited(&mut self, connection: ConnectionId, accepted: Result<(), pg::LinkError>) -> bool {
        let Err(error) = accepted else { return true };
        let has_room = self.unwelcome.add(connection, error.to_string());
        if !has_room {
            self.refuse(connection, "too many are refused at once");
        }
        has_room
    }

    /// Tells whoever is there why, and closes the connection.
    fn refuse(&mut self, connection: ConnectionId, reason: &str) {
        // Whoever has a key can have this done as often as he likes.
        match self.refusals.due() {
            None => {}
            Some(1) => tracing::info!(osd = %self.osd.id(), reason, "a connection is refused"),
            Some(count) => {
                tracing::info!(osd = %self.osd.id(), reason, count, "connections were refused; this is the last of them");
            }
        }
        self.reactor.send(connection, &wire::Refused { reason }.encode());
        self.reactor.close(connection, reason);
    }

    /// Handles what clients sent, for as long as it is their turn.
    fn serve_clients(&mut self, now: Instant) {
        if self.rounds.is_empty() {
            return;
        }
        let began = ring::now();
        self.rounds.begin();
        while let Some((_, connection)) = self.rounds.next(ring::now().since(began)) {
            self.look_into(now, connection);
        }
    }

    fn retry_stalled(&mut self, now: Instant) {
        for _ in 0..self.stalled.due() {
            let Some(connection) = self.stalled.pop() else { return };
            self.look_into(now, connection);
        }
    }

    fn handle_commands(&mut self, now: Instant) {
        while let Ok(command) = self.commands.try_recv() {
            if !matches!(command, Command::RegistryAnswered) {
                // Groups may have got another configuration, and people wait for what their primaries say of it.
                self.looks.hasten();
            }
            let (osd, mut io) = parts!(self);
            match command {
                Command::RegistryAnswered => osd.handle_registry(now),
                Command::Map(map) => self.heed_map(now, map),
                Command::Proposal { pg, accepted } => osd.handle_proposal(now, pg, accepted, &mut io),
                Command::Scrub(groups) => {
                    for (pg, is_deep) in groups {
                        // One that it does not lead any more is another OSD's.
                        osd.begin_scrub(pg, is_deep);
                    }
                }
                // It was made by an older map. Dropping it has it made anew.
                Command::Accepted { stream, .. } if is_too_open(self.encryption, &stream) => {}
                Command::Connected { connection, stream, .. } if is_too_open(self.encryption, &stream) => {
                    self.reactor.close(connection, ENCRYPTION_CAME);
                }
                Command::Accepted { stream, credential } => {
                    if let Some(Credential { principal, .. }) = &credential
                        && let others = osd.view().links_of(&principal.public_key)
                        && let Some(bytes) = socket_buffers::of_one_more(&principal.access, others)
                        && let Err(error) = socket_buffers::limit(&stream, bytes)
                    {
                        tracing::debug!(osd = %osd.id(), %error, "the kernel keeps as much of a connection as it likes");
                    }
                    // Too many connections: dropping it closes it, which is all that can be said to its peer.
                    if let Ok(connection) = self.reactor.adopt(stream) {
                        let accepted = osd.handle_accepted(connection.link(), credential);
                        if self.is_awaited(connection, accepted) {
                            self.greetings.push_back((now + GREETING_LIMIT, connection));
                        }
                    }
                }
                Command::Connected { connection, stream, credential } => {
                    let still = credential.map_or(Ok(()), |one| osd.handle_proved(connection.link(), one));
                    match still {
                        Ok(()) => self.reactor.fulfil(connection, stream),
                        Err(error) => self.reactor.close(connection, &error.to_string()),
                    }
                }
                Command::NotConnected { connection, reason } => self.reactor.close(connection, &reason),
                Command::Shutdown => {
                    osd.begin_shutdown(&mut io);
                    self.shutdown_limit = Some(now + SHUTDOWN_LIMIT);
                }
            }
        }
    }

    fn heed_map(&mut self, now: Instant, map: Arc<ClusterMap>) {
        // One may have been overtaken by another that brought the answer to a proposal.
        if map.revision >= self.map.revision {
            self.map = map.clone();
        }
        let encryption = map.encryption;
        let (osd, mut io) = parts!(self);
        osd.handle_map(now, map, &mut io);
        self.heed_encryption(encryption);
    }

    /// Ends the connections that are not as the cluster has them now: they are made anew.
    fn heed_encryption(&mut self, encryption: Encryption) {
        if std::mem::replace(&mut self.encryption, encryption) == encryption {
            return;
        }
        let (is_wanted, reason) = match encryption {
            Encryption::On => (true, ENCRYPTION_CAME),
            Encryption::Off => (false, ENCRYPTION_WENT),
        };
        let all = self.reactor.connections();
        let other: Vec<_> = all.filter(|link| self.reactor.is_encrypted(*link) != is_wanted).collect();
        tracing::info!(osd = %self.osd.id(), %encryption, connections = other.len(), "the cluster's encryption changed; connections are made anew");
        for connection in other {
            self.reactor.close(connection, reason);
        }
    }

    fn hand_over_proposals(&mut self) {
        self.proposals.extend(self.osd.take_scrub_reports().into_iter().map(Report::Scrubbed));
        while let Some(proposal) = self.proposals.pop_front() {
            match self.reports.try_send(proposal) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(proposal)) => {
                    self.proposals.push_front(proposal);
                    return;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
        }
    }

    fn close_the_silent(&mut self, now: Instant) {
        while let Some((limit, connection)) = self.greetings.front().copied() {
            if limit > now {
                return;
            }
            self.greetings.pop_front();
            self.unwelcome.take(connection);
            if self.reactor.is_open(connection) && !self.osd.is_greeted(connection.link()) {
                self.reactor.close(connection, "it never said who it is");
            }
        }
    }

    /// Lets clients go that take no answers while others with their keys wait for the memory of these.
    fn close_the_deaf(&mut self, now: Instant) {
        if !self.deaf.is_due(now) {
            return;
        }
        let (osd, reactor) = (&self.osd, &self.reactor);
        let is_short = |tenant| osd.was_held_back(tenant, now - standstill::SHORT_WITHIN);
        let owing = reactor.connections().filter(|connection| {
            reactor.unsent_bytes(*connection) > 0 && osd.tenant(connection.link()).is_some_and(is_short)
        });
        let taken =
            owing.filter_map(|connection| Some((connection, reactor.acknowledged_bytes(connection)?)));
        for connection in self.deaf.look(now, taken) {
            self.refuse(connection, standstill::TAKES_NOTHING);
        }
    }

    /// Lets clients go that send nothing into the memory that others with their keys wait for.
    fn close_the_mute(&mut self, now: Instant) {
        if !self.mute.is_due(now) {
            return;
        }
        let reactor = &self.reactor;
        let received = |connection| Some((connection, reactor.received_bytes(connection)?));
        for connection in self.mute.look(now, self.inboxes.of_the_short().filter_map(received)) {
            self.refuse(connection, standstill::SENDS_NOTHING);
        }
    }

    /// Publishes figures that changed, not too often.
    fn publish(&mut self, now: Instant) {
        if !self.looks.is_due(now) {
            return;
        }
        let states_changed = self.published.as_ref().is_none_or(|published| {
            !self.osd.view().summaries().all(|summary| {
                published.pgs.get(&summary.pg).is_some_and(|known| {
                    let now = status_of(&summary, known.objects);
                    *known == PgStatus { recovery: known.recovery, ..now }
                })
            })
        });
        // Peering takes no longer than a moment, and whoever makes a volume larger waits for what is being cut.
        let is_peering = self.osd.view().summaries().any(|summary| summary.is_peering);
        let will_change = states_changed || is_peering || self.osd.view().is_cutting();
        self.looks.looked(now, will_change);
        let (pushed, measured_at) = self.recovery_measured;
        if now.since(measured_at) >= looks::PAUSE {
            let bytes = self.osd.view().pushed_bytes() - pushed;
            self.recovery_bytes_per_s = (bytes as f64 / now.since(measured_at).as_secs_f64()) as u64;
            self.recovery_measured = (self.osd.view().pushed_bytes(), now);
        }
        self.log_damage(now);
        let status = self.status();
        if self.published.as_ref() != Some(&status)
            && self.reports.try_send(Report::Status(Box::new(status.clone()))).is_ok()
        {
            self.published = Some(status);
        }
    }

    fn status(&mut self) -> OsdStatus {
        let (lost, in_want) = (self.osd.lost_blocks(), self.osd.groups_in_want());
        let store = self.osd.store();
        let (statistics, is_full) =
            (store.statistics(), store.is_full() || store.is_blocked() || store.takes_no_objects());
        let objects = |pg| self.osd.store().object_count(pg);
        let groups = self.osd.view().summaries();
        let pgs = groups.map(|summary| (summary.pg, status_of(&summary, objects(summary.pg)))).collect();
        OsdStatus {
            used_bytes: statistics.live_bytes,
            usable_bytes: statistics.usable_bytes,
            full: is_full,
            pgs,
            write_amplification: statistics.write_amplification(),
            index_bytes: statistics.index_bytes,
            volatile_cache: self.has_volatile_cache,
            path: self.path.clone(),
            pid: std::process::id(),
            damaged_reads: self.osd.view().damage().found,
            mended_blocks: self.osd.view().damage().mended,
            lost_blocks: lost.len() as u64,
            lost: ranges_of(&lost),
            in_want,
            recovery_bytes_per_s: self.recovery_bytes_per_s,
            scrubbing: self.osd.view().scrub_progress().map(|(pg, deep, objects_left)| ScrubProgress {
                pg,
                deep,
                objects_left,
            }),
            cleared_pools: self.osd.view().cleared_pools().collect(),
            failure: self.osd.store().failure().map(str::to_owned),
            drive_hangs: self.osd.view().drive_hangs(),
            start_refused: None,
            notes: self.osd.view().notes().map(str::to_owned).collect(),
        }
    }
}

/// Whether a connection is in plain though nothing may be said in plain any more.
fn is_too_open(encryption: Encryption, stream: &Stream) -> bool {
    encryption == Encryption::On && !stream.is_encrypted()
}

fn status_of(summary: &GroupSummary, objects: u64) -> PgStatus {
    let state = match &summary.trouble {
        None => PgState::Active,
        Some(reason) if summary.is_stopped => PgState::Stopped { reason: reason.clone() },
        Some(_) if summary.is_peering => PgState::Peering,
        Some(reason) => PgState::Waiting { reason: reason.clone() },
    };
    let recovery =
        summary.recovery.map(|(objects_left, bytes_left)| RecoveryProgress { objects_left, bytes_left });
    let GroupSummary { epoch, cut_through, flatten, .. } = *summary;
    PgStatus { epoch, state, in_sync: summary.in_sync.clone(), objects, recovery, cut_through, flatten }
}

/// Lost blocks as ranges of their volumes, the first of them.
fn ranges_of(lost: &[LostBlock]) -> Vec<LostRange> {
    let mut ranges: Vec<LostRange> = Vec::new();
    for block in lost {
        let offset = u64::from(block.object) * OBJECT_BYTES + u64::from(block.block) * BLOCK_BYTES as u64;
        let is_behind = |last: &&mut LostRange| {
            last.volume == block.layer.volume() && last.offset + last.length == offset
        };
        if let Some(last) = ranges.last_mut().filter(is_behind) {
            last.length += BLOCK_BYTES as u64;
        } else if ranges.len() < LOST_RANGES_MAX {
            ranges.push(LostRange { volume: block.layer.volume(), offset, length: BLOCK_BYTES as u64 });
        } else {
            break;
        }
    }
    ranges
}

/// The name of an OSD's thread.
#[must_use]
pub fn thread_name(osd: OsdId) -> String {
    osd.to_string()
}
