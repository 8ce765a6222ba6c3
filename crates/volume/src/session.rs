//! The control side of attached volumes: a thread that attaches, keeps the lease alive, watches the map.

use super::dialler::{Dial, Dialled, Dialler};
use super::fence::{self, FENCE_LIMIT, Order};
use super::ownership::{self, Step};
use crate::note::Note;
use auth::{Identity, KeyError, SecretKey};
use base::map::{ClusterMap, Stillness};
use base::names::Unfound;
use base::{ClientId, Generation, LayerId, VolumeId};
use cluster::{
    Attach, Attachment, ClusterError, Detach, Fenced, Grant, KeepAlive, Open, Resume, Revoke, StandsStill,
    WatchMode,
};
use registry::{LeaseId, RegistryError};
use registry_remote::{Desk, DeskPlace, SocketPlace};
use ring::{ConnectionId, Waker};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

/// How long the attachments outlive this process if it dies without a word.
const LEASE_TTL: Duration = Duration::from_secs(10);
/// How often the lease is kept alive: three tries before it ends.
pub(super) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(3);
/// How long it is waited for a map that shows another name of a volume which could not be attached anew by the one it had.
const RENAMED_LIMIT: Duration = Duration::from_secs(1);
/// How long the map may take to show volumes that were just attached.
pub(super) const FIRST_MAP_LIMIT: Duration = Duration::from_secs(10);
/// How long the map may take to show a snapshot.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(2);
/// Events that wait for the data side; of more maps only the newest is kept.
const EVENTS_MAX: usize = 16;
/// Connections that wait to be made.
const DIALS_MAX: usize = 1024;
/// Volumes that wait to be attached anew.
const RENEWALS_MAX: usize = 64;
/// Words that volumes stand still which wait to be said.
const STANDSTILLS_MAX: usize = 64;
/// The pause before an event is offered again to a full queue.
const OFFER_PAUSE: Duration = Duration::from_millis(20);
/// How long detaching may take before it is left to the lease's end.
const DETACH_LIMIT: Duration = Duration::from_secs(3);

/// How a client gets into a cluster.
#[derive(Clone, Debug)]
pub struct ClusterAccess {
    /// Where it asks.
    pub desk: DeskPlace,
    /// The client's key.
    pub identity: Identity,
}

impl ClusterAccess {
    /// The socket of the registry in the directory of a cluster on this machine.
    pub const SOCKET: &str = "registry.sock";
    /// The key in such a directory of whoever owns it.
    pub const KEY: &str = "admin.key";

    /// Into the cluster that runs in a directory of this machine, as its owner.
    ///
    /// # Errors
    /// When the key cannot be read.
    pub fn local(directory: &Path) -> Result<ClusterAccess, KeyError> {
        let key = SecretKey::load(&directory.join(ClusterAccess::KEY))?;
        let registry = SocketPlace(directory.join(ClusterAccess::SOCKET));
        Ok(ClusterAccess { desk: DeskPlace::Registry(Arc::new(registry)), identity: Identity::new(&key) })
    }
}

/// How volumes are had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAs {
    /// Attached at once, alone, and kept: whoever had it before is fenced, and nobody else gets it.
    Owner,
    /// Attached at once, beside others who share it too.
    Sharer,
    /// Read at once; attached alone when there is something to change, and given up when another who opened it wishes to change it.
    Writer,
    /// Read, whoever else has it.
    Reader,
}

/// What to attach or open, and how.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The cluster they are in.
    pub cluster: ClusterAccess,
    /// The volumes, by name; or snapshots, as VOLUME@SNAPSHOT: they are read without being attached; or as VOLUME@ volumes that are
    /// asked what room they take, and no more, without being attached.
    pub volumes: Vec<String>,
    /// How the volumes are had.
    pub open: OpenAs,
    /// How long an operation may take before it fails; `None` lets it wait for ever.
    pub timeout: Option<Duration>,
    /// What this process is, for people who see that a volume is attached: `millpond nbd`, for example.
    pub purpose: String,
    /// A file in which the lease is noted under which they are had, so that who follows this process when it is killed need not wait
    /// until that ends by itself: it takes the place of a dead one that had the same file and the same key.
    pub note: Option<PathBuf>,
}

impl SessionOptions {
    /// The volumes among them that are attached at once: snapshots never are.
    fn attached(&self) -> impl Iterator<Item = &String> {
        let is_any = matches!(self.open, OpenAs::Owner | OpenAs::Sharer);
        self.volumes.iter().filter(move |name| is_any && !name.contains('@'))
    }
}

/// What the data side must know.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// A newer map.
    Map(Arc<ClusterMap>),
    /// A volume was attached anew, as was asked for: this is its generation now.
    Reattached {
        /// The volume.
        volume: VolumeId,
        /// What every request bears from now on.
        generation: Generation,
    },
    /// What came of it: nobody serves the older generation any more, or why that may be.
    Renewed {
        /// The volume.
        volume: VolumeId,
        /// Why not, in words.
        outcome: Result<(), String>,
    },
    /// A volume that was asked for is owned, and nobody else is served of changes.
    Owned {
        /// The volume.
        volume: VolumeId,
        /// What every request bears from now on.
        generation: Generation,
    },
    /// It is not, and is not asked for any more.
    NotOwned {
        /// The volume.
        volume: VolumeId,
        /// Why, and what to do.
        reason: String,
    },
    /// It is waited for.
    AwaitsOwner {
        /// The volume.
        volume: VolumeId,
        /// Who has it, if somebody has.
        holder: Option<String>,
    },
    /// A volume was given up.
    GaveUp {
        /// The volume.
        volume: VolumeId,
    },
    /// The volumes are attached no more: nothing may be written from now on.
    Lost {
        /// Why, and what to do.
        reason: String,
    },
}

/// Why volumes could not be attached.
#[derive(thiserror::Error, Debug)]
pub enum AttachError {
    /// The registry refused, or did not answer.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// There is no reactor for the data side.
    #[error(transparent)]
    Ring(#[from] ring::SetupError),
    /// There is no thread or runtime for the control side.
    #[error("cannot start the thread that attaches volumes: {0}; is the limit of processes reached?")]
    Thread(#[from] std::io::Error),
    /// The map does not come to show what was attached.
    #[error(
        "volume {volume} was attached, but the cluster map did not show it within {} s; see `millpond status`",
        FIRST_MAP_LIMIT.as_secs()
    )]
    NoMap {
        /// The first of the volumes.
        volume: String,
    },
    /// There is no such snapshot.
    #[error(
        "the map shows no snapshot {name}; `millpond volume snapshot ls` lists those of a volume. If it was made just now, try \
         again"
    )]
    NoSnapshot {
        /// The names of the volume and the snapshot.
        name: String,
    },
    /// An OSD may still serve who had the volume before.
    #[error(
        "volume {volume} is not attached: {holder} had it before, did not detach, and may still be served by {osds}. \
         That was tried for {} s. Bring these OSDs back, or what is between here and them; then attach it again",
        FENCE_LIMIT.as_secs()
    )]
    NotFenced {
        /// The volume.
        volume: String,
        /// Who had it.
        holder: String,
        /// Which OSDs, and what is with them.
        osds: String,
    },
    /// The attachment did not outlive its making.
    #[error("{reason}")]
    Lost {
        /// Why, and what to do.
        reason: String,
    },
    /// The thread ended without a word, which is a bug.
    #[error("the thread that attaches volumes ended without saying why; its log may tell")]
    Silent,
}

impl From<RegistryError> for AttachError {
    fn from(error: RegistryError) -> AttachError {
        AttachError::Cluster(error.into())
    }
}

/// A volume that was attached, or a snapshot.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    Attached(Box<Attachment>),
    /// A volume that was opened, and is attached when there is something to change, if ever.
    Unowned(VolumeId),
    Snapshot(LayerId),
    /// A volume that is asked what room it takes, and not attached.
    Look(VolumeId),
}

/// What was attached, at the start.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) client: ClientId,
    /// In the order of [`SessionOptions::volumes`].
    pub(super) volumes: Vec<Opened>,
    /// Shows all of them, and their pools.
    pub(super) map: Arc<ClusterMap>,
}

/// How the data side parts with its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting {
    /// Something that was asked for may still take effect.
    WithLooseEnds,
    /// Nothing is under way.
    Quiet,
}

/// Attached volumes, as long as this lives. Dropping it detaches them.
#[derive(Debug)]
pub struct VolumeSession {
    events: Receiver<SessionEvent>,
    dials: mpsc::Sender<Dial>,
    dialled: Receiver<Dialled>,
    renewals: mpsc::Sender<VolumeId>,
    standstills: mpsc::Sender<(VolumeId, Stillness)>,
    steps: mpsc::Sender<(VolumeId, Step)>,
    /// Asks the thread to end.
    stop: Option<oneshot::Sender<Parting>>,
    parting: Parting,
    thread: Option<JoinHandle<()>>,
}

impl VolumeSession {
    /// Attaches all of the volumes, or none. `waker` is called after each event.
    pub(super) fn attach(
        options: SessionOptions,
        waker: Waker,
    ) -> Result<(VolumeSession, Attached), AttachError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (event_sender, events) = sync_channel(EVENTS_MAX);
        let (started_sender, started) = sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        let (dials, dial_receiver) = mpsc::channel(DIALS_MAX);
        let (renewals, renewal_receiver) = mpsc::channel(RENEWALS_MAX);
        let (standstills, standstill_receiver) = mpsc::channel(STANDSTILLS_MAX);
        // One of each volume waits to be taken, and another only when it was told of.
        let (steps, step_receiver) = mpsc::channel(options.volumes.len().max(1));
        // Bounded by the connections that the data side's reactor takes.
        let (dialled_sender, dialled) = channel();
        let thread = std::thread::Builder::new().name("volume-session".to_owned()).spawn(move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                match Session::start(&options).await {
                    Ok((session, attached)) => {
                        // If nobody waits any more, `stopped` says so too.
                        let _ = started_sender.send(Ok(attached));
                        let identity = options.cluster.identity.clone();
                        let maps = session.maps.clone();
                        let dialler = Dialler {
                            identity: identity.clone(),
                            maps,
                            dialled: dialled_sender,
                            waker: waker.clone(),
                        };
                        tokio::spawn(dialler.run(dial_receiver));
                        let renewals = Renewals { wanted: renewal_receiver, identity };
                        let wishes =
                            Wanted { renewals, standstills: standstill_receiver, steps: step_receiver };
                        session.run(wishes, event_sender, waker, stopped).await;
                    }
                    Err(error) => drop(started_sender.send(Err(error))),
                }
            });
        })?;
        let session = VolumeSession {
            events,
            dials,
            dialled,
            renewals,
            standstills,
            steps,
            stop: Some(stop),
            parting: Parting::WithLooseEnds,
            thread: Some(thread),
        };
        match started.recv() {
            Ok(Ok(attached)) => Ok((session, attached)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(AttachError::Silent),
        }
    }

    /// Says how it will part, when it is dropped: with loose ends unless this is called.
    pub(super) fn set_parting(&mut self, parting: Parting) {
        self.parting = parting;
    }

    /// Has a connection made to an OSD, for one that the reactor reserved. Says whether that can be.
    pub(super) fn dial(&self, connection: ConnectionId, address: SocketAddr) -> bool {
        self.dials.try_send(Dial { connection, address }).is_ok()
    }

    /// Has a volume that nobody shares attached anew, and its older generation fenced. Says whether that can be; then
    /// [`SessionEvent::Renewed`] follows.
    pub(super) fn renew(&self, volume: VolumeId) -> bool {
        self.renewals.try_send(volume).is_ok()
    }

    /// Says in the registry that a volume stands still, as the map asked for. If that cannot be, whoever asked finds out.
    pub(super) fn stands_still(&self, volume: VolumeId, number: Stillness) {
        if self.standstills.try_send((volume, number)).is_err() {
            tracing::warn!(%volume, "too many volumes are to stand still; no snapshot is made of it now");
        }
    }

    /// Has a volume that was opened owned, or given up. Says whether that can be; then [`SessionEvent::Owned`] or
    /// [`SessionEvent::NotOwned`] follows, or [`SessionEvent::GaveUp`].
    pub(super) fn take_step(&self, volume: VolumeId, step: Step) -> bool {
        self.steps.try_send((volume, step)).is_ok()
    }

    /// What became of a dial, if something did.
    pub(super) fn poll_dialled(&self) -> Option<Dialled> {
        self.dialled.try_recv().ok()
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(SessionEvent::Lost {
                reason: "the thread that holds the attachment has ended".to_owned(),
            }),
        }
    }
}

impl Drop for VolumeSession {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // If the thread has ended already, so has the lease, or will.
            let _ = stop.send(self.parting);
        }
        if let Some(thread) = self.thread.take() {
            // It ends within `DETACH_LIMIT`; if it panicked, it has said so itself.
            let _ = thread.join();
        }
    }
}

/// The session as its thread sees it.
struct Session {
    hold: Rc<Hold>,
    maps: watch::Receiver<Arc<ClusterMap>>,
}

/// What the data side wants.
struct Wanted {
    renewals: Renewals,
    standstills: mpsc::Receiver<(VolumeId, Stillness)>,
    steps: mpsc::Receiver<(VolumeId, Step)>,
}

/// Volumes that are to be attached anew.
struct Renewals {
    wanted: mpsc::Receiver<VolumeId>,
    identity: Identity,
}

impl Session {
    async fn start(options: &SessionOptions) -> Result<(Session, Attached), AttachError> {
        let desk = options.cluster.desk.open(&options.cluster.identity).await?;
        let mut note = options.note.as_deref().and_then(Note::take);
        if let Some(dead) = note.as_mut().and_then(Note::read)
            && let Err(error) = desk.ask(Revoke { lease: dead }).await
            && !matches!(error, ClusterError::Registry(RegistryError::LeaseNotFound { .. }))
        {
            tracing::warn!(%error, "the lease of who had the volumes before is not ended; it is waited for");
        }
        let lease = desk.ask(Grant { ttl: LEASE_TTL }).await?;
        if let Some(note) = &mut note {
            note.write(lease);
        }
        let client = ClientId(uuid::Uuid::new_v4().as_u64_pair().0);
        let (volumes, description) = (RefCell::new(Vec::new()), describe(&options.purpose));
        let (lease_now, watched, asked) = (Cell::new(lease), RefCell::default(), RefCell::default());
        let (in_doubt, note) = (Cell::default(), RefCell::new(note));
        let hold =
            Hold { desk, client, volumes, lease: lease_now, note, description, watched, asked, in_doubt };
        // Fencing may take longer than the lease lasts.
        let attached = tokio::select! {
            attached = attach_all(&hold, options) => attached,
            () = keep_alive(&hold.desk, lease) => Err(AttachError::Lost { reason: lost() }),
        };
        match attached {
            Ok((maps, attached)) => Ok((Session { hold: Rc::new(hold), maps }, attached)),
            Err(error) => {
                release(&hold.desk, lease).await;
                // What was never used has nothing under way, and who tries again and again leaves nothing behind, nor does one
                // attach more, whose answer was lost.
                let count = hold.volumes.borrow().len();
                hold.detach(options.attached().nth(count)).await;
                Err(error)
            }
        }
    }

    /// Tells of maps, and attaches anew what is to be, until it is stopped or the volumes are lost.
    async fn run(
        self,
        wanted: Wanted,
        events: SyncSender<SessionEvent>,
        waker: Waker,
        mut stopped: oneshot::Receiver<Parting>,
    ) {
        let Session { hold, mut maps } = self;
        let Wanted { renewals, standstills, steps } = wanted;
        let identity = renewals.identity.clone();
        let keeping = hold.keep();
        tokio::pin!(keeping);
        let (told, mut renewed) = mpsc::channel(1);
        let owning = ownership::see_to(hold.clone(), steps, maps.clone(), identity, told.clone());
        let owning = AbortOnDrop(tokio::task::spawn_local(owning));
        let renewing = hold.renew_all(renewals, maps.clone(), told);
        tokio::pin!(renewing);
        let standing = hold.stand_still(standstills);
        tokio::pin!(standing);
        let mut may_stand = true;
        let mut waiting: VecDeque<SessionEvent> = VecDeque::new();
        let (mut is_lost, mut may_renew) = (false, true);
        let mut parting = Parting::WithLooseEnds;
        'told: loop {
            let mut lost_by = None;
            tokio::select! {
                said = &mut stopped => {
                    parting = said.unwrap_or(Parting::WithLooseEnds);
                    break;
                }
                reason = &mut keeping, if !is_lost => lost_by = Some(reason),
                () = &mut renewing, if !is_lost && may_renew => may_renew = false,
                () = &mut standing, if !is_lost && may_stand => may_stand = false,
                Some(event) = renewed.recv(), if !is_lost => match event {
                    SessionEvent::Lost { reason } => lost_by = Some(reason),
                    event => waiting.push_back(event),
                },
                changed = maps.changed(), if !is_lost => match changed {
                    Ok(()) => {
                        waiting.retain(|event| !matches!(event, SessionEvent::Map(_)));
                        waiting.push_back(SessionEvent::Map(maps.borrow_and_update().clone()));
                    }
                    Err(_) => lost_by = Some("the cluster map is not watched any more".to_owned()),
                },
                () = tokio::time::sleep(OFFER_PAUSE), if !waiting.is_empty() => {}
            }
            if let Some(reason) = lost_by {
                is_lost = true;
                waiting = VecDeque::from([SessionEvent::Lost { reason }]);
            }
            while let Some(event) = waiting.pop_front() {
                match events.try_send(event) {
                    Ok(()) => waker.wake(),
                    Err(TrySendError::Full(event)) => {
                        waiting.push_front(event);
                        break;
                    }
                    Err(TrySendError::Disconnected(_)) => break 'told,
                }
            }
        }
        drop(owning);
        release(&hold.desk, hold.lease.get()).await;
        if parting == Parting::Quiet {
            hold.detach(None).await;
        }
    }
}

/// A task that ends with whoever has this.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What one client has.
pub(super) struct Hold {
    pub(super) desk: Desk,
    pub(super) client: ClientId,
    /// What is attached.
    volumes: RefCell<Vec<(VolumeId, Generation)>>,
    /// The lease that all of it has now.
    pub(super) lease: Cell<LeaseId>,
    /// Where that is noted.
    note: RefCell<Option<Note>>,
    /// Who has it, for people.
    pub(super) description: String,
    /// What is open, and since when.
    watched: RefCell<Vec<(VolumeId, WatchMode, u64)>>,
    /// What it is asked to own: it may be attached before that is known here.
    asked: RefCell<BTreeSet<VolumeId>>,
    /// What is being attached anew, while it is not known whether that was done.
    in_doubt: Cell<Option<VolumeId>>,
}

impl Hold {
    /// Keeps them until somebody else has one of them, and says so.
    ///
    /// A lease ends while the registry serves others and not this client. As long as nobody else attached, nobody has
    /// fenced it, and all that it has under way is as good as before.
    async fn keep(&self) -> String {
        loop {
            keep_alive(&self.desk, self.lease.get()).await;
            loop {
                match self.resume().await {
                    Ok(true) => {
                        break tracing::warn!(
                            "the attachment's lease had ended; nobody else attached meanwhile"
                        );
                    }
                    Ok(false) => return lost(),
                    Err(error) => {
                        tracing::warn!(%error, "the attachment's lease has ended; trying to go on with it")
                    }
                }
                tokio::time::sleep(KEEP_ALIVE_EVERY).await;
            }
        }
    }

    /// Goes on with all of them under a new lease, or says that it cannot.
    async fn resume(&self) -> Result<bool, ClusterError> {
        let lease = self.desk.ask(Grant { ttl: LEASE_TTL }).await?;
        self.lease.set(lease);
        if let Some(note) = &mut *self.note.borrow_mut() {
            note.write(lease);
        }
        let volumes = self.volumes.borrow().clone();
        for (volume, _) in volumes {
            if !self.resume_one(volume).await? {
                return Ok(false);
            }
        }
        let watched = self.watched.borrow().clone();
        for (volume, mode, since_unix_seconds) in watched {
            self.open(volume, mode, since_unix_seconds).await?;
        }
        Ok(true)
    }

    /// The same with one of them, under the present lease. One that is given up, or attached anew by this client itself, is not asked
    /// for: whoever does that hears whether it has it still.
    async fn resume_one(&self, volume: VolumeId) -> Result<bool, ClusterError> {
        let known = || self.generation_of(volume).filter(|_| self.in_doubt.get() != Some(volume));
        while let Some(generation) = known() {
            let (client, lease) = (self.client, self.lease.get());
            if self.desk.ask(Resume { volume, client, generation, lease }).await? {
                return Ok(true);
            }
            if known() == Some(generation) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has this client listed among those who have a volume open, for as long as the present lease lives.
    async fn open(
        &self,
        volume: VolumeId,
        mode: WatchMode,
        since_unix_seconds: u64,
    ) -> Result<(), ClusterError> {
        let (client, lease, description) = (self.client, self.lease.get(), self.description.clone());
        let open = Open { volume, client, lease, mode, description, since_unix_seconds };
        match self.desk.ask(open).await {
            // What it reads of a volume that is gone is refused.
            Err(ClusterError::NoSuchVolume { .. }) => Ok(()),
            Err(ClusterError::Registry(error @ RegistryError::Protocol { .. })) => {
                tracing::warn!(%error, %volume, "nobody is shown that the volume is open here, and it may be removed meanwhile");
                Ok(())
            }
            opened => opened,
        }
    }

    /// Opens a volume, or a snapshot of it.
    async fn watch(&self, volume: VolumeId, mode: WatchMode) -> Result<(), ClusterError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.open(volume, mode.clone(), since).await?;
        self.watched.borrow_mut().push((volume, mode, since));
        Ok(())
    }

    pub(super) fn generation_of(&self, volume: VolumeId) -> Option<Generation> {
        let volumes = self.volumes.borrow();
        volumes.iter().find(|(id, _)| *id == volume).map(|(_, generation)| *generation)
    }

    /// A volume that was opened is owned from now on.
    pub(super) fn note_owned(&self, volume: VolumeId, generation: Generation) {
        self.forget(volume);
        self.volumes.borrow_mut().push((volume, generation));
    }

    /// A volume is attached no more.
    pub(super) fn forget(&self, volume: VolumeId) {
        self.volumes.borrow_mut().retain(|(id, _)| *id != volume);
    }

    /// Whether the volume was opened, and is given up when another wishes it.
    fn yields(&self, volume: VolumeId) -> bool {
        self.watched.borrow().iter().any(|(id, mode, _)| *id == volume && *mode == WatchMode::ReadWrite)
    }

    pub(super) fn asks_for(&self, volume: VolumeId) {
        self.asked.borrow_mut().insert(volume);
    }

    pub(super) fn asks_no_more(&self, volume: VolumeId) {
        self.asked.borrow_mut().remove(&volume);
    }

    fn note_generation(&self, volume: VolumeId, generation: Generation) {
        let mut volumes = self.volumes.borrow_mut();
        volumes.iter_mut().filter(|(id, _)| *id == volume).for_each(|(_, known)| *known = generation);
    }

    /// Says that volumes stand still, one after the other. Whoever asked waits for it a second, and then does without.
    async fn stand_still(&self, mut standstills: mpsc::Receiver<(VolumeId, Stillness)>) {
        while let Some((volume, number)) = standstills.recv().await {
            let says = StandsStill { volume, client: self.client, number, lease: self.lease.get() };
            if let Err(error) = self.desk.ask(says).await {
                tracing::warn!(%error, %volume, "the registry was not told that the volume stands still for a snapshot");
            }
        }
    }

    /// Attaches volumes anew, one after the other, as they are asked for, and tells what comes of it.
    async fn renew_all(
        &self,
        mut renewals: Renewals,
        maps: watch::Receiver<Arc<ClusterMap>>,
        told: mpsc::Sender<SessionEvent>,
    ) {
        while let Some(volume) = renewals.wanted.recv().await {
            let renewed = self.renew(volume, maps.clone(), &renewals.identity, &told).await;
            let outcome = renewed.map_err(|error| error.to_string());
            if told.send(SessionEvent::Renewed { volume, outcome }).await.is_err() {
                return;
            }
        }
    }

    /// Attaches a volume anew: that raises its generation. Then makes sure that the older one is served no more.
    async fn renew(
        &self,
        volume: VolumeId,
        mut maps: watch::Receiver<Arc<ClusterMap>>,
        identity: &Identity,
        told: &mpsc::Sender<SessionEvent>,
    ) -> Result<(), AttachError> {
        self.in_doubt.set(Some(volume));
        let attached = self.attach_again(volume, &mut maps).await;
        self.in_doubt.set(None);
        if attached.is_err() && !self.has_still(volume).await {
            // If nobody listens any more, nobody goes on with it either.
            let _ = told.send(SessionEvent::Lost { reason: lost() }).await;
        }
        let (name, attached) = attached?;
        let (client, generation) = (self.client, attached.generation);
        self.note_generation(volume, generation);
        // If nobody listens any more, nobody waits for the rest either.
        let _ = told.send(SessionEvent::Reattached { volume, generation }).await;
        let shows_it = |map: &Arc<ClusterMap>| {
            map.volumes.get(&volume).is_some_and(|info| info.generation >= generation)
        };
        if !matches!(tokio::time::timeout(FIRST_MAP_LIMIT, maps.wait_for(shows_it)).await, Ok(Ok(_))) {
            return Err(AttachError::NoMap { volume: name });
        }
        let order = Order { volume, generation };
        let may_be_served = |osds: String| AttachError::Lost {
            reason: format!("what was sent of volume {name} before may still be served by {osds}"),
        };
        fence::set_up(maps, order, identity).await.map_err(may_be_served)?;
        if !attached.unfenced.is_empty() {
            self.desk.ask(Fenced { volume, client, generation }).await?;
        }
        Ok(())
    }

    /// Whether this client has a volume that it could not attach anew: its lease may have ended meanwhile, and another have had it.
    async fn has_still(&self, volume: VolumeId) -> bool {
        loop {
            match self.resume_one(volume).await {
                Ok(has_it) => return has_it,
                Err(error) => {
                    tracing::warn!(%error, %volume, "it is not known whether the volume is attached still");
                    tokio::time::sleep(KEEP_ALIVE_EVERY).await;
                }
            }
        }
    }

    /// Attaches a volume once more for this client alone. While it is not known whether that was done, everything this
    /// client sends may be refused for its generation: so it is asked until it is.
    ///
    /// It is asked for by its name, which may have changed, and be another's by now.
    async fn attach_again(
        &self,
        volume: VolumeId,
        maps: &mut watch::Receiver<Arc<ClusterMap>>,
    ) -> Result<(String, Attachment), AttachError> {
        let name_in = |map: &Arc<ClusterMap>| {
            let info = map.volumes.get(&volume).filter(|info| info.is_listed())?;
            Some(map.short_name(volume, info))
        };
        let removed = || AttachError::Lost { reason: format!("{volume} was removed") };
        loop {
            let name = name_in(&maps.borrow_and_update()).ok_or_else(removed)?;
            let (client, lease, description) = (self.client, self.lease.get(), self.description.clone());
            let attach = Attach {
                volume: name.clone(),
                client,
                lease,
                shared: false,
                description,
                id: Some(volume),
                knows_layers: true,
                yields: self.yields(volume),
                renews: true,
            };
            match self.desk.ask(attach).await {
                // Under a lease that ended meanwhile it would be nobody's soon.
                Ok(_) if self.lease.get() != lease => {}
                Ok(attached) if attached.id == volume => return Ok((name, attached)),
                // By a node of an older version, which knows no ids there.
                Ok(other) => {
                    if self.volumes.borrow().iter().all(|(own, _)| *own != other.id) {
                        self.desk.ask(Detach { volume: other.id, client }).await?;
                    }
                    return Err(removed());
                }
                Err(ClusterError::Registry(error)) => {
                    tracing::warn!(%error, volume = name, "the volume is not attached anew yet; trying again");
                    tokio::time::sleep(KEEP_ALIVE_EVERY).await;
                }
                Err(error) => {
                    // The map that shows another name may be on its way.
                    let is_renamed = |map: &Arc<ClusterMap>| name_in(map).as_ref() != Some(&name);
                    let renamed = tokio::time::timeout(RENAMED_LIMIT, maps.wait_for(is_renamed)).await;
                    if !matches!(renamed, Ok(Ok(_))) {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// Spares who attaches next the fencing, also of a volume that may be attached. If it cannot be said, that is all that
    /// follows.
    async fn detach(&self, perhaps: Option<&String>) {
        let detaching = async {
            let asked = self.asked.borrow().clone();
            let attached = self.volumes.borrow().clone();
            for volume in attached.into_iter().map(|(volume, _)| volume).chain(asked) {
                self.desk.ask(Detach { volume, client: self.client }).await?;
            }
            if let Some(name) = perhaps
                && let Some((volume, _)) = self.desk.map().await?.volume_named(name)
            {
                self.desk.ask(Detach { volume, client: self.client }).await?;
            }
            Ok::<(), ClusterError>(())
        };
        if !matches!(tokio::time::timeout(DETACH_LIMIT, detaching).await, Ok(Ok(()))) {
            tracing::warn!(
                "the registry was not told that nothing is under way; who attaches next makes sure of it"
            );
        }
    }
}

/// Why a client has its volumes no more.
fn lost() -> String {
    format!(
        "the attachment's lease ended, because the registry was not reached for more than {} s, and somebody else may have \
         attached meanwhile; attach the volumes again",
        LEASE_TTL.as_secs()
    )
}

/// Who has volumes, for people who see it.
fn describe(purpose: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("pid {} on {}, {purpose}", std::process::id(), host.trim())
}

/// Attaches all volumes, and notes in `hold` which are.
async fn attach_all(
    hold: &Hold,
    options: &SessionOptions,
) -> Result<(watch::Receiver<Arc<ClusterMap>>, Attached), AttachError> {
    let (desk, client) = (&hold.desk, hold.client);
    let mut volumes = Vec::with_capacity(options.volumes.len());
    for name in options.attached() {
        let (volume, description) = (name.clone(), hold.description.clone());
        let attach = Attach {
            volume,
            client,
            lease: hold.lease.get(),
            shared: options.open == OpenAs::Sharer,
            description,
            id: None,
            knows_layers: true,
            yields: false,
            renews: false,
        };
        let attached = desk.ask(attach).await?;
        if volumes.iter().any(|other: &Attachment| other.id == attached.id) {
            return Err(ClusterError::NamedTwice { volume: name.clone() }.into());
        }
        hold.volumes.borrow_mut().push((attached.id, attached.generation));
        volumes.push(attached);
    }
    let mut maps = desk.watch_map();
    let shows_all = |map: &Arc<ClusterMap>| {
        volumes.iter().all(|attached| {
            let volume = map.volumes.get(&attached.id);
            volume.is_some_and(|volume| {
                volume.generation >= attached.generation && map.pools.contains_key(&volume.pool)
            })
        })
    };
    if !matches!(tokio::time::timeout(FIRST_MAP_LIMIT, maps.wait_for(shows_all)).await, Ok(Ok(_))) {
        return Err(AttachError::NoMap { volume: options.volumes.first().cloned().unwrap_or_default() });
    }
    for attached in &volumes {
        fence_those_before(desk, &maps, client, attached, &options.cluster.identity).await?;
    }
    let (mut opened, mut volumes) = (Vec::with_capacity(options.volumes.len()), volumes.into_iter());
    for name in &options.volumes {
        opened.push(match name.split_once('@') {
            Some((volume, "")) => Opened::Look(find_volume(&mut maps, volume).await?),
            Some(names) => {
                let layer = find_snapshot(&mut maps, names).await?;
                hold.watch(layer.volume(), WatchMode::Snapshot(layer.number())).await?;
                Opened::Snapshot(layer)
            }
            None if matches!(options.open, OpenAs::Reader | OpenAs::Writer) => {
                let volume = find_volume(&mut maps, name).await?;
                if opened.iter().any(|other| matches!(other, Opened::Unowned(id) if *id == volume)) {
                    return Err(ClusterError::NamedTwice { volume: name.clone() }.into());
                }
                let is_read_only = options.open == OpenAs::Reader;
                let mode = if is_read_only { WatchMode::ReadOnly } else { WatchMode::ReadWrite };
                hold.watch(volume, mode).await?;
                Opened::Unowned(volume)
            }
            None => Opened::Attached(Box::new(volumes.next().expect("each volume was attached"))),
        });
    }
    let map = maps.borrow_and_update().clone();
    Ok((maps, Attached { client, volumes: opened, map }))
}

/// A volume, once a map shows it.
async fn find_volume(
    maps: &mut watch::Receiver<Arc<ClusterMap>>,
    name: &str,
) -> Result<VolumeId, AttachError> {
    let find = |map: &ClusterMap| match map.find_volume(name) {
        Ok((id, _)) => Some(Ok(id)),
        Err(Unfound::Missing { .. }) => None,
        // Another map says the same.
        Err(error) => Some(Err(ClusterError::from(error))),
    };
    let shown = tokio::time::timeout(SNAPSHOT_LIMIT, maps.wait_for(|map| find(map).is_some())).await;
    let found = shown.ok().and_then(Result::ok).and_then(|map| find(&map));
    Ok(found.unwrap_or_else(|| Err(ClusterError::NoSuchVolume { name: name.to_owned() }))?)
}

/// The layer of a snapshot, once a map shows it.
async fn find_snapshot(
    maps: &mut watch::Receiver<Arc<ClusterMap>>,
    (volume, snapshot): (&str, &str),
) -> Result<LayerId, AttachError> {
    // One that may be another is told before it is waited for.
    let id = find_volume(maps, volume).await?;
    let find = |map: &ClusterMap| map.snapshot_named(id, snapshot);
    // One that was made just now is in the next map.
    let shown = tokio::time::timeout(SNAPSHOT_LIMIT, maps.wait_for(|map| find(map).is_some())).await;
    let found = shown.ok().and_then(Result::ok).and_then(|map| find(&map));
    found.ok_or_else(|| AttachError::NoSnapshot { name: format!("{volume}@{snapshot}") })
}

/// Sees to it that nobody is served who had the volume before and did not detach.
pub(super) async fn fence_those_before(
    desk: &Desk,
    maps: &watch::Receiver<Arc<ClusterMap>>,
    client: ClientId,
    attached: &Attachment,
    identity: &Identity,
) -> Result<(), AttachError> {
    let Some(before) = attached.unfenced.last() else { return Ok(()) };
    let (volume, generation) = (attached.id, attached.generation);
    let order = Order { volume, generation };
    fence::set_up(maps.clone(), order, identity).await.map_err(|osds| AttachError::NotFenced {
        volume: attached.info.name.clone(),
        holder: before.description.clone(),
        osds,
    })?;
    Ok(desk.ask(Fenced { volume, client, generation }).await?)
}

/// Keeps a lease alive until it has ended in spite of that.
async fn keep_alive(desk: &Desk, lease: LeaseId) {
    let mut ticks = tokio::time::interval(KEEP_ALIVE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match desk.ask(KeepAlive { lease }).await {
            Ok(()) => {}
            Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. })) => return,
            // The data path does not need the registry, so this alone ends nothing.
            Err(error) => tracing::warn!(%error, "the attachment is not confirmed now; trying again"),
        }
    }
}

/// Ends the lease, and with it every attachment under it. If it cannot, time will.
async fn release(desk: &Desk, lease: LeaseId) {
    match tokio::time::timeout(DETACH_LIMIT, desk.ask(Revoke { lease })).await {
        Ok(Ok(()) | Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. }))) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the volumes stay attached until their lease ends"),
        Err(_) => {
            tracing::warn!("the registry does not answer; the volumes stay attached until their lease ends")
        }
    }
}
