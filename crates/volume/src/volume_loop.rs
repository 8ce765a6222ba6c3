//! The data side of attached volumes: one reactor, one client, turned by the thread that owns them.

use super::dialler::Dialled;
use super::ownership::Step;
use super::session::{AttachError, OpenAs, Opened, Parting, SessionEvent, SessionOptions, VolumeSession};
use base::map::ClusterMap;
use base::{Buffer, Encryption, Generation, Instant, LayerId, LinkId, Network, VolumeId};
use client::{Client, Completion, Holding, Notice, OwnershipStep, Submission, VolumeHandle};
use cluster::Attachment;
use ring::{Backend, ConnectionId, Event, Reactor, ReactorOptions};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

/// Room for what an OSD sends: many small replies in one receive, and always a whole message.
const OSD_INBOX_BYTES: usize = (256 << 10) + wire::MESSAGE_BYTES_MAX;

/// Until this long after a request, polling for its answer costs less latency than sleeping. As long as a
/// hypervisor polls for a guest.
const SPIN_MAX: Duration = Duration::from_micros(200);

/// What is said where there is no `io_uring`, as in most containers.
pub const WITHOUT_RING: &str =
    "io_uring is forbidden here (see kernel.io_uring_disabled, and seccomp): epoll serves instead";

/// Why links end when the cluster's encryption is switched.
const ENCRYPTION_CHANGED: &str = "the cluster's encryption was switched; connecting anew";

/// A volume that was attached, or a snapshot.
#[derive(Clone, Debug)]
pub struct AttachedVolume {
    /// What the client knows it by.
    pub handle: VolumeHandle,
    /// Its id in the cluster; of a snapshot its volume's.
    pub id: VolumeId,
    /// Its name, as it was asked for.
    pub name: String,
    /// It is a snapshot, which is read and not attached, or a volume that is looked at only.
    pub is_snapshot: bool,
}

/// What came of attaching a volume anew: see [`VolumeLoop::begin_renewal`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The volume.
    pub volume: VolumeHandle,
    /// That nothing that was sent before takes effect any more; or why it may, in words.
    pub outcome: Result<(), String>,
}

/// Why the volumes cannot be worked on any more.
#[derive(thiserror::Error, Debug)]
pub enum LoopError {
    /// They are not attached any more.
    #[error("{reason}")]
    Lost {
        /// Why, and what to do.
        reason: String,
    },
    /// The reactor failed.
    #[error("the sockets cannot be worked on any more: {0}; start the command again")]
    Ring(#[from] std::io::Error),
}

/// Attached volumes on the calling thread: submit operations, [`turn`](VolumeLoop::turn), poll completions.
///
/// Its reactor also carries connections that are not the client's; their events come out of `turn`.
pub struct VolumeLoop {
    wires: Wires,
    client: Client,
    volumes: Vec<AttachedVolume>,
    holding: Holding,
    renewals: VecDeque<Renewal>,
    events: Vec<Event>,
    now: Instant,
    lost: Option<String>,
}

impl VolumeLoop {
    /// Attaches volumes, to be worked on by this thread.
    ///
    /// # Errors
    /// When one of them is not there or attached elsewhere, or the system refuses a reactor or a thread.
    pub fn attach(options: SessionOptions, reactor: ReactorOptions) -> Result<VolumeLoop, AttachError> {
        let backend = Backend::RingOrPoll;
        let reactor = Reactor::new(ReactorOptions { spin_max: SPIN_MAX, backend, ..reactor })?;
        if reactor.is_polled() {
            tracing::warn!("{WITHOUT_RING}");
        }
        let (names, timeout) = (options.volumes.clone(), options.timeout);
        let holding = if options.open == OpenAs::Sharer { Holding::Shared } else { Holding::Alone };
        let is_read_only = options.open == OpenAs::Reader;
        let (session, attached) = VolumeSession::attach(options, reactor.waker())?;
        let encryption = attached.map.encryption;
        let mut client = Client::new(attached.client, attached.map);
        client.set_timeout(timeout);
        let volumes = names.into_iter().zip(&attached.volumes).map(|(name, opened)| match opened {
            Opened::Attached(attached) => {
                let Attachment { id, generation, .. } = &**attached;
                let handle = client.add_volume(*id, *generation, holding);
                AttachedVolume { handle, id: *id, name, is_snapshot: false }
            }
            Opened::Unowned(id) => {
                let handle = client.add_opened(*id, is_read_only);
                AttachedVolume { handle, id: *id, name, is_snapshot: false }
            }
            Opened::Look(id) => {
                AttachedVolume { handle: client.add_look(*id), id: *id, name, is_snapshot: true }
            }
            Opened::Snapshot(layer) => {
                let handle = client.add_snapshot(*layer);
                AttachedVolume { handle, id: layer.volume(), name, is_snapshot: true }
            }
        });
        let volumes = volumes.collect();
        let wires = Wires { reactor, links: Vec::new(), encryption, session };
        let (renewals, events, now) = (VecDeque::new(), Vec::new(), ring::now());
        Ok(VolumeLoop { wires, client, volumes, holding, renewals, events, now, lost: None })
    }

    /// Whether it does without `io_uring`, for that is forbidden here.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.wires.reactor.is_polled()
    }

    /// The volumes, in the order in which they were named.
    #[must_use]
    pub fn volumes(&self) -> &[AttachedVolume] {
        &self.volumes
    }

    /// A volume's size in bytes, as of the newest map.
    #[must_use]
    pub fn volume_bytes(&self, volume: VolumeHandle) -> u64 {
        self.client.volume_bytes(volume)
    }

    /// The newest map.
    #[must_use]
    pub fn map(&self) -> &ClusterMap {
        self.client.map()
    }

    /// The revision of the newest map: what was changed before it is heeded.
    #[must_use]
    pub fn map_revision(&self) -> u64 {
        self.client.map_revision()
    }

    /// Whether a volume is attached to this loop now, and under which generation.
    #[must_use]
    pub fn owned(&self, volume: VolumeHandle) -> Option<Generation> {
        self.client.is_owner(volume).then(|| self.client.generation(volume))
    }

    /// Owns a volume that was opened: [`Self::is_had`] says when it does. Who `keeps` it gives it to nobody.
    pub fn own(&mut self, volume: VolumeHandle, keeps: bool) {
        self.client.own(volume, keeps);
    }

    /// Whether a volume that was to be owned is, as it was to be.
    ///
    /// # Errors
    /// Why it is not to be had: said once.
    pub fn is_had(&mut self, volume: VolumeHandle) -> Result<bool, String> {
        self.client.is_had(volume)
    }

    /// Whether nothing is had of a volume that was opened, and the registry knows that.
    #[must_use]
    pub fn is_given_up(&self, volume: VolumeHandle) -> bool {
        self.client.is_given_up(volume)
    }

    /// Gives up a volume that was opened, when what was begun has ended: [`Self::is_given_up`] says when it is.
    pub fn let_go(&mut self, volume: VolumeHandle) {
        self.client.let_go(volume);
    }

    /// The reactor, for connections that are not the client's.
    pub fn reactor(&mut self) -> &mut Reactor {
        &mut self.wires.reactor
    }

    /// Operations that have not ended.
    #[must_use]
    pub fn operations_in_flight(&self) -> usize {
        self.client.operations_in_flight()
    }

    /// Why operations wait, if some do for longer than a round trip: in words, for a person.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.client.trouble()
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Reads; see [`Client::submit_read`].
    pub fn read(&mut self, volume: VolumeHandle, token: u64, offset: u64, length: u64, buffer: Buffer) {
        let what = Submission { volume, token, offset, length };
        self.client.submit_read(self.now, what, buffer, &mut self.wires);
    }

    /// Writes the first `length` bytes of `buffer`; see [`Client::submit_write`].
    pub fn write(&mut self, volume: VolumeHandle, token: u64, offset: u64, length: u64, buffer: Buffer) {
        let what = Submission { volume, token, offset, length };
        self.client.submit_write(self.now, what, buffer, &mut self.wires);
    }

    /// Zeroes; see [`Client::submit_zero`].
    pub fn zero(&mut self, volume: VolumeHandle, token: u64, offset: u64, length: u64) {
        self.client.submit_zero(self.now, Submission { volume, token, offset, length }, &mut self.wires);
    }

    /// Asks what is allocated; see [`Client::submit_allocated`].
    pub fn allocated(&mut self, volume: VolumeHandle, token: u64, offset: u64, length: u64) {
        self.client.submit_allocated(self.now, Submission { volume, token, offset, length }, &mut self.wires);
    }

    /// Asks what changed since a snapshot; see [`Client::submit_changed`].
    pub fn changed(
        &mut self,
        volume: VolumeHandle,
        token: u64,
        offset: u64,
        length: u64,
        since: Option<LayerId>,
    ) {
        let what = Submission { volume, token, offset, length };
        self.client.submit_changed(self.now, what, since, &mut self.wires);
    }

    /// Asks what room a range takes; see [`Client::submit_space`].
    pub fn space(&mut self, volume: VolumeHandle, token: u64, offset: u64, length: u64) {
        self.client.submit_space(self.now, Submission { volume, token, offset, length }, &mut self.wires);
    }

    /// Whoever asked for some operations is gone; see [`Client::abandon`].
    pub fn abandon(&mut self, is_gone: impl FnMut(u64) -> bool) {
        self.client.abandon(self.now, is_gone, &mut self.wires);
    }

    /// Has a volume attached anew under a newer generation, and the older one fenced, so that nothing that was abandoned can
    /// take effect any more. All else goes on. `false` where that cannot be: whoever shares the volume would be fenced too.
    ///
    /// What came of it is told by [`Self::poll_renewal`] after a turn that brought [`Event::Woken`].
    pub fn begin_renewal(&mut self, volume: VolumeHandle) -> bool {
        if self.client.is_renewing(volume) {
            return true;
        }
        let attached =
            self.volumes.iter().find(|attached| attached.handle == volume && !attached.is_snapshot);
        let is_begun = self.holding == Holding::Alone
            && self.client.is_owner(volume)
            && attached.is_some_and(|attached| self.wires.session.renew(attached.id));
        if is_begun {
            self.client.begin_renewal(volume);
        }
        is_begun
    }

    /// The next renewal that came to an end.
    pub fn poll_renewal(&mut self) -> Option<Renewal> {
        self.renewals.pop_front()
    }

    /// The next operation that ended.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.client.poll_completion()
    }

    /// Buffers that are sent and were held for that, to be put back where they came from.
    pub fn take_released(&mut self, put: impl FnMut(Buffer)) {
        self.wires.reactor.take_released(put);
    }

    /// One turn: sends what was submitted, waits until something happens or `timeout` has passed, and hands
    /// it to the client. Events of connections that are not the client's are appended to `others`, and so is
    /// [`Event::Woken`], after which sizes may have changed. Without a timeout it sleeps as long as
    /// nothing happens.
    ///
    /// # Errors
    /// The volumes are attached no more, or the reactor failed. Nothing is sent to OSDs after that.
    pub fn turn(&mut self, timeout: Option<Duration>, others: &mut Vec<Event>) -> Result<(), LoopError> {
        self.check_attached()?;
        // What was submitted since the last turn may need its volume.
        self.take_steps();
        let due = self.client.next_timeout().map(|at| at.since(ring::now()));
        let timeout = [timeout, due].into_iter().flatten().min();
        self.wires.reactor.set_waiting(self.client.operations_in_flight());
        let mut events = std::mem::take(&mut self.events);
        let turned = self.wires.reactor.turn(timeout, &mut events);
        self.now = ring::now();
        for event in events.drain(..) {
            self.handle(event, others);
        }
        self.events = events;
        turned?;
        while let Some((volume, number)) = self.client.poll_still() {
            if let Some(attached) = self.volumes.iter().find(|attached| attached.handle == volume) {
                self.wires.session.stands_still(attached.id, number);
            }
        }
        if self.client.next_timeout().is_some_and(|at| at <= self.now) {
            self.client.handle_timeout(self.now, &mut self.wires);
        }
        self.take_steps();
        while let Some(notice) = self.client.poll_notice() {
            log(notice);
        }
        self.check_attached()
    }

    /// Has asked for what there is something to change of, and given up what another wishes.
    fn take_steps(&mut self) {
        while let Some((volume, step)) = self.client.poll_ownership(self.now) {
            let id = self.volumes.iter().find(|opened| opened.handle == volume).map(|opened| opened.id);
            let is_begun = id.is_some_and(|id| match step {
                OwnershipStep::Ask { keeps } => self.wires.session.take_step(id, Step::Own { keeps }),
                OwnershipStep::GiveUp => self.wires.session.take_step(id, Step::GiveUp),
                OwnershipStep::Renew => self.begin_renewal(volume),
            });
            if !is_begun {
                tracing::warn!(?step, "too many volumes change hands at once, or none does any more");
            }
        }
    }

    fn check_attached(&self) -> Result<(), LoopError> {
        let lost = |reason: &String| Err(LoopError::Lost { reason: reason.clone() });
        self.lost.as_ref().map_or(Ok(()), lost)
    }

    fn handle(&mut self, event: Event, others: &mut Vec<Event>) {
        match event {
            Event::Received { connection } if self.wires.is_link(connection) => self.receive(connection),
            Event::Drained { connection } if self.wires.is_link(connection) => {}
            Event::Connected { connection } if self.wires.is_link(connection) => {
                self.client.handle_connected(connection.link(), &mut self.wires);
            }
            Event::Closed { connection, reason } if self.wires.is_link(connection) => {
                self.wires.forget(connection);
                self.client.handle_closed(self.now, connection.link(), &reason);
            }
            Event::Woken => {
                self.hear_session();
                others.push(Event::Woken);
            }
            other => others.push(other),
        }
    }

    fn receive(&mut self, connection: ConnectionId) {
        let Some(mut inbox) = self.wires.reactor.take_inbox(connection) else { return };
        let handled = self.client.handle_bytes(self.now, connection.link(), inbox.bytes(), &mut self.wires);
        match handled {
            Ok(consumed) => inbox.consume(consumed),
            Err(error) => self.wires.reactor.close(connection, &error.to_string()),
        }
        inbox.grow(OSD_INBOX_BYTES);
        self.wires.reactor.return_inbox(connection, inbox, true);
    }

    fn hear_session(&mut self) {
        while let Some(Dialled { connection, result }) = self.wires.session.poll_dialled() {
            match result {
                Ok(stream) if self.wires.encryption == Encryption::On && !stream.is_encrypted() => {
                    // It was made by an older map, and is made anew.
                    self.wires.reactor.close(connection, ENCRYPTION_CHANGED);
                }
                Ok(stream) => self.wires.reactor.fulfil(connection, stream),
                Err(reason) => self.wires.reactor.close(connection, &reason),
            }
        }
        while let Some(event) = self.wires.session.poll_event() {
            match event {
                SessionEvent::Map(map) => {
                    self.wires.heed_encryption(map.encryption);
                    self.client.handle_map(self.now, map, &mut self.wires);
                }
                SessionEvent::Reattached { volume, generation } => {
                    if let Some(handle) = self.handle_of(volume) {
                        self.client.reattached(handle, generation);
                    }
                }
                SessionEvent::Renewed { volume, outcome } => {
                    if let Some(handle) = self.handle_of(volume) {
                        self.was_renewed(handle, outcome);
                    }
                }
                SessionEvent::Owned { volume, generation } => {
                    if let Some(handle) = self.handle_of(volume) {
                        self.client.owned(self.now, handle, generation, &mut self.wires);
                    }
                }
                SessionEvent::NotOwned { volume, reason } => {
                    if let Some(handle) = self.handle_of(volume) {
                        tracing::warn!(reason, "a volume is not changed that was to be");
                        self.client.not_owned(handle, &reason);
                    }
                }
                SessionEvent::AwaitsOwner { volume, holder } => {
                    if let Some(handle) = self.handle_of(volume) {
                        self.client.waits_for_owner(handle, holder);
                    }
                }
                SessionEvent::GaveUp { volume } => {
                    if let Some(handle) = self.handle_of(volume) {
                        self.client.gave_up(handle);
                    }
                }
                SessionEvent::Lost { reason } => {
                    // No request may follow, and what waits for a retry never gets a link again.
                    self.wires.cut(&reason);
                    self.lost = Some(reason);
                    return;
                }
            }
        }
    }

    fn handle_of(&self, volume: VolumeId) -> Option<VolumeHandle> {
        let is_it = |attached: &&AttachedVolume| attached.id == volume && !attached.is_snapshot;
        self.volumes.iter().find(is_it).map(|attached| attached.handle)
    }

    fn was_renewed(&mut self, volume: VolumeHandle, outcome: Result<(), String>) {
        match &outcome {
            Ok(()) => self.client.renewed(self.now, volume, &mut self.wires),
            Err(reason) => {
                tracing::warn!(reason, "what was sent by clients that are gone may still take effect");
                self.client.not_renewed(volume);
            }
        }
        self.renewals.push_back(Renewal { volume, outcome });
    }
}

impl Drop for VolumeLoop {
    fn drop(&mut self) {
        if self.client.is_quiet() {
            self.wires.session.set_parting(Parting::Quiet);
        }
    }
}

/// What people learn who read the log of the process.
fn log(notice: Notice) {
    match notice {
        Notice::Blocked { volume, operations, why } => {
            tracing::warn!(volume, operations, why, "operations wait; `millpond status` says more");
        }
        Notice::GoesOn { volume, waited } => {
            // As loud as what it takes back.
            tracing::warn!(volume, seconds = waited.as_secs(), "operations that waited go on again");
        }
        Notice::GivenUp { volume, operations, limit, why } => {
            let limit_seconds = limit.as_secs_f64();
            tracing::warn!(volume, operations, limit_seconds, why, "operations failed at their time limit");
        }
    }
}

/// The reactor as the client sees it, with a note of which connections are the client's, and who makes them.
struct Wires {
    reactor: Reactor,
    /// By the connection's slot.
    links: Vec<Option<ConnectionId>>,
    /// What the newest map says.
    encryption: Encryption,
    // Detaches when dropped, so it is the last field: the reactor has let go of every request by then.
    session: VolumeSession,
}

impl Wires {
    fn is_link(&self, connection: ConnectionId) -> bool {
        self.links.get(connection.slot()).is_some_and(|link| *link == Some(connection))
    }

    fn forget(&mut self, connection: ConnectionId) {
        self.links[connection.slot()] = None;
    }

    /// Ends the links that are not as the cluster has them now: they are made anew.
    fn heed_encryption(&mut self, encryption: Encryption) {
        if std::mem::replace(&mut self.encryption, encryption) == encryption {
            return;
        }
        let is_wanted = encryption == Encryption::On;
        for link in self.links.iter().flatten() {
            if !self.reactor.is_reserved(*link) && self.reactor.is_encrypted(*link) != is_wanted {
                self.reactor.close(*link, ENCRYPTION_CHANGED);
            }
        }
    }

    fn cut(&mut self, reason: &str) {
        for link in self.links.iter().flatten() {
            self.reactor.close(*link, reason);
        }
    }
}

impl Network for Wires {
    fn connect(&mut self, address: SocketAddr) -> Option<LinkId> {
        let connection = self.reactor.reserve().ok()?;
        if !self.session.dial(connection, address) {
            self.reactor.close(connection, "too many connections are being made");
            return None;
        }
        if self.links.len() <= connection.slot() {
            self.links.resize(connection.slot() + 1, None);
        }
        self.links[connection.slot()] = Some(connection);
        Some(connection.link())
    }
    fn send(&mut self, link: LinkId, bytes: &[u8]) {
        Network::send(&mut self.reactor, link, bytes);
    }
    fn send_shared(&mut self, link: LinkId, buffer: Buffer, range: Range<usize>) {
        Network::send_shared(&mut self.reactor, link, buffer, range);
    }
    fn unsent_bytes(&self, link: LinkId) -> usize {
        Network::unsent_bytes(&self.reactor, link)
    }
    fn close(&mut self, link: LinkId, reason: &str) {
        Network::close(&mut self.reactor, link, reason);
    }
}
