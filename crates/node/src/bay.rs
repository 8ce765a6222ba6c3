//! The bay of one drive in a node: the OSD on the drive is started and kept, and where that cannot be, the bay is kept for it.
//!
//! - An OSD that is not started, because its drive is not there or what is on it cannot be used, costs the other OSDs of its
//!   process nothing. The manager is told why, for as long as nobody else runs it. It is tried again and again: the drive may
//!   come back. Nor is any other held up by a drive that does not answer at all.
//! - One that gave its drive up lets go of it, and is not tried again by itself.
//! - Either is tried at once when the cluster gives its number to another drive (`millpond osd replace`), which may be in this
//!   very bay.
//! - A bay whose OSD was removed, or is in another bay by now, is dormant. A blank drive in it becomes no new OSD: whoever put it
//!   there meant it for the one that was. The bay wakes when the cluster puts an OSD on the drive in it, under whatever number:
//!   the names of drives shift, and what was the one's path may be the other's by now.

use crate::error::NodeError;
use crate::listeners::{ListenError, Listeners};
use crate::osd_control::{End, Means, OsdControl, control_osd};
use crate::refusals::Refusals;
use crate::shard::{self, Command, Report, ShardConfig, ToShard};
use crate::switchboard::Switchboard;
use api::board::Board;
use auth::Identity;
use base::map::{ClusterMap, DeviceClass};
use base::status::OsdStatus;
use base::{ClusterId, NodeId, OsdId, OsdUuid};
use cluster::{Cluster, ClusterError, ScrubWishes, SlotOsd};
use drive::{Drive, DriveError, Use};
use ring::FREE_WITHIN;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::Device;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

/// The longest queue between a shard and the control side.
const QUEUE_LENGTH: usize = 256;
/// How often it is looked whether an OSD was put in a dormant bay.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A drive that has not said for so long whose it is does nothing of what it is asked: longer than one that somebody has is
/// waited for.
const SILENT_AFTER: Duration = FREE_WITHIN.saturating_add(Duration::from_secs(10));
/// How long a new drive may take until the next one is tried: they are numbered as they are named, unless one does not answer.
const TURN_MAX: Duration = SILENT_AFTER.saturating_mul(2);
/// The pause before an OSD is tried again for the first time that the registry did not take.
const REGISTRY_PAUSE: Duration = Duration::from_secs(5);
/// Pauses before an OSD that was not started is tried again, doubled each time, in seconds.
const PAUSE_SECONDS: std::ops::RangeInclusive<u64> = 1..=30;

/// What the bays of a process have in common.
pub(crate) struct Surroundings {
    pub(crate) node: NodeId,
    pub(crate) identity: Identity,
    pub(crate) volatile_cache: Option<bool>,
    pub(crate) spin_max: Duration,
    pub(crate) listen: Vec<IpAddr>,
    pub(crate) cluster: Cluster,
    pub(crate) maps: watch::Receiver<Arc<ClusterMap>>,
    pub(crate) wishes: ScrubWishes,
    pub(crate) board: Board,
    /// Where connections are made.
    pub(crate) handshakes: Handle,
}

/// See the module's documentation.
struct Bay {
    around: Arc<Surroundings>,
    path: PathBuf,
    /// As what an OSD is formatted that is made here, however often that is tried: where an answer of the registry was lost, no second
    /// one comes of it.
    new_uuid: OsdUuid,
}

/// A bay without a running OSD.
struct Vacancy {
    /// The OSD that belongs there, and as what the cluster knew it, if it knows one.
    slot: Option<(OsdId, OsdUuid)>,
    why: Why,
}

enum Why {
    /// It was not started.
    Refused(Box<NodeError>),
    /// It gave its drive up: how it was then.
    GaveUp(Box<OsdStatus>),
}

impl Vacancy {
    fn of_nobody(error: impl Into<NodeError>) -> Vacancy {
        Vacancy { slot: None, why: Why::Refused(Box::new(error.into())) }
    }

    /// Whether it is for this one drive alone.
    fn is_of_drive(&self) -> bool {
        match &self.why {
            Why::Refused(error) => error.is_of_drive(),
            Why::GaveUp(_) => true,
        }
    }

    /// Whether it is for what the registry did not do.
    fn is_of_registry(&self) -> bool {
        let Why::Refused(error) = &self.why else { return false };
        matches!(**error, NodeError::Cluster(ClusterError::Registry(_)))
    }

    /// Whether the cluster knows an OSD that belongs there.
    fn is_known(&self) -> bool {
        self.slot.is_some()
    }

    /// Why nothing runs there, for a person.
    fn reason(&self) -> String {
        match &self.why {
            Why::Refused(error) => error.to_string(),
            Why::GaveUp(status) => status.failure.clone().unwrap_or_default(),
        }
    }

    /// The same, for whoever cannot go on without.
    fn into_error(self) -> NodeError {
        match self.why {
            Why::Refused(error) => *error,
            Why::GaveUp(status) => NodeError::Store(status.failure.unwrap_or_default()),
        }
    }
}

/// What a map says of a bay's OSD that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nothing yet: it is older than what is known here.
    Unclear,
    /// It was removed, or is of another node.
    Over,
    /// Its number was given to another drive.
    Replaced,
    /// Another process runs it, or the lease of the one before has not run out.
    Runs,
    /// It waits for this bay.
    Waits,
}

/// What a map says of an OSD of `node`; `is_known` if one has shown it as `uuid` before.
fn outlook(map: &ClusterMap, node: NodeId, (osd, uuid): (OsdId, OsdUuid), is_known: bool) -> Outlook {
    match map.osds.get(&osd) {
        Some(info) if info.uuid == uuid && info.node != node => Outlook::Over,
        Some(info) if info.uuid == uuid && info.address.is_some() => Outlook::Runs,
        Some(info) if info.uuid == uuid => Outlook::Waits,
        Some(_) if is_known => Outlook::Replaced,
        None if is_known => Outlook::Over,
        _ => Outlook::Unclear,
    }
}

/// The OSDs of a node that do not run, and as what they are formatted.
fn down(map: &ClusterMap, node: NodeId) -> BTreeSet<(OsdId, OsdUuid)> {
    let down = map.osds.iter().filter(|(_, info)| info.node == node && info.address.is_none());
    down.map(|(osd, info)| (*osd, info.uuid)).collect()
}

/// The bays of a process.
pub(crate) struct Bays {
    /// Those that are tried for the first time.
    starting: JoinSet<Started>,
    tended: JoinSet<(Bay, Result<End, NodeError>)>,
    /// Those in which no OSD belongs, as far as the cluster knew when it was looked last.
    dormant: Vec<Bay>,
    /// Why one of those is left alone, while there is no other.
    left_alone: Option<NodeError>,
    stop: watch::Receiver<bool>,
}

impl Bays {
    /// Begins to start the OSDs on these drives, which end when `stop` changes. [`Self::keep`] goes on with that.
    ///
    /// # Errors
    /// When the registry does not say which of them it knows.
    pub(crate) async fn start(
        around: &Arc<Surroundings>,
        paths: &[PathBuf],
        stop: watch::Receiver<bool>,
    ) -> Result<Bays, NodeError> {
        let starting = start_all(around, paths).await?;
        Ok(Bays { starting, tended: JoinSet::new(), dormant: Vec::new(), left_alone: None, stop })
    }

    /// Keeps them until no OSD belongs in any of them, or the node is to stop. A drive that is of no use and nobody's is left alone.
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// When an OSD cannot be started, or go on, though its drive is sound, or when all drives are left alone.
    pub(crate) async fn keep(&mut self) -> Result<(), NodeError> {
        while !(self.starting.is_empty() && self.tended.is_empty()) {
            tokio::select! {
                Some(started) = self.starting.join_next() => self.was_started(started)?,
                Some(ended) = self.tended.join_next() => match joined(ended)? {
                    (bay, End::Removed) => self.dormant.push(bay),
                    _ => return Ok(()),
                },
                (bay, osd) = wakes(&mut self.dormant) => self.wake(bay, osd),
            }
        }
        self.left_alone.take().map_or(Ok(()), Err)
    }

    /// One was tried for the first time.
    fn was_started(&mut self, started: Result<Started, JoinError>) -> Result<(), NodeError> {
        let (bay, before, outcome) = started.map_err(|error| NodeError::Shard(error.to_string()))?;
        match outcome {
            // The others of this node are needed, and nobody misses an OSD on this one.
            Err(vacancy) if vacancy.is_of_drive() && !vacancy.is_known() => {
                bay.log(&vacancy, &mut String::new());
                self.left_alone = Some(vacancy.into_error()).filter(|_| self.tended.is_empty());
                self.dormant.push(bay);
            }
            // Nor do those that run need the registry.
            Err(vacancy) if vacancy.is_of_registry() => {
                bay.log(&vacancy, &mut String::new());
                self.starting.spawn(async move {
                    tokio::time::sleep(REGISTRY_PAUSE).await;
                    start_first(bay, before).await
                });
            }
            Err(vacancy) if !vacancy.is_of_drive() => return Err(vacancy.into_error()),
            outcome => self.tend(bay, outcome),
        }
        Ok(())
    }

    /// Waits until all OSDs have ended. What has not been opened yet is not waited for: its drive may not answer.
    ///
    /// # Errors
    /// When one could not go on though its drive is sound.
    pub(crate) async fn end(mut self) -> Result<(), NodeError> {
        let mut outcome = Ok(());
        while let Some(started) = self.starting.try_join_next() {
            outcome = outcome.and(self.was_started(started));
        }
        while let Some(ended) = self.tended.join_next().await {
            outcome = outcome.and(joined(ended).map(drop));
        }
        outcome
    }

    fn tend(&mut self, bay: Bay, started: Result<OsdControl, Vacancy>) {
        self.left_alone = None;
        let stop = self.stop.clone();
        self.tended.spawn(async move {
            let ended = bay.tend(started, stop).await;
            (bay, ended)
        });
    }

    /// An OSD was put in a dormant bay.
    fn wake(&mut self, bay: Bay, osd: OsdId) {
        let mut stop = self.stop.clone();
        self.tended.spawn(async move {
            let started = tokio::select! {
                started = bay.start(Some(osd)) => Some(started),
                _ = stop.changed() => None,
            };
            let ended = match started {
                None => Ok(End::Asked),
                // It went elsewhere meanwhile, or the registry is away: it is looked again.
                Some(Err(vacancy)) if !vacancy.is_known() => {
                    bay.log(&vacancy, &mut String::new());
                    Ok(End::Removed)
                }
                Some(started) => bay.tend(started, stop).await,
            };
            (bay, ended)
        });
    }
}

/// Waits until the cluster has an OSD for one of the bays, and takes that out. Dropping the future loses none.
async fn wakes(dormant: &mut Vec<Bay>) -> (Bay, OsdId) {
    let Some(around) = dormant.first().map(|bay| bay.around.clone()) else {
        return std::future::pending().await;
    };
    // Whoever was put on another drive is down, and is formatted as what was not there before.
    let mut looked_for = BTreeSet::new();
    loop {
        // The registry may be away.
        tokio::time::sleep(LOOK_EVERY).await;
        let down = down(&around.maps.borrow(), around.node);
        if down == looked_for {
            continue;
        }
        match first_known(dormant).await {
            Ok(Some((index, osd))) => return (dormant.swap_remove(index), osd),
            Ok(None) => looked_for = down,
            Err(error) => tracing::debug!(%error, "it is not known whether a drive is needed; looking again"),
        }
    }
}

/// The first of the bays that the cluster has an OSD for, and which.
async fn first_known(bays: &[Bay]) -> Result<Option<(usize, OsdId)>, ClusterError> {
    for (index, bay) in bays.iter().enumerate() {
        if let Some(SlotOsd { osd, .. }) = bay.known().await? {
            return Ok(Some((index, osd)));
        }
    }
    Ok(None)
}

fn joined(ended: Result<(Bay, Result<End, NodeError>), JoinError>) -> Result<(Bay, End), NodeError> {
    let (bay, ended) = ended.map_err(|error| NodeError::Shard(error.to_string()))?;
    Ok((bay, ended?))
}

/// A bay, the OSD that was known to belong there, and what became of its first start.
type Started = (Bay, Option<OsdId>, Result<OsdControl, Vacancy>);

/// Starts the OSDs on these drives. Those that the cluster knows are started at the same time: a drive may be waited for, and a
/// store takes a while to open. The others are started one after the other, while they answer: they are numbered as their drives
/// are named.
///
/// # Errors
/// When the registry does not say which of them it knows.
async fn start_all(around: &Arc<Surroundings>, paths: &[PathBuf]) -> Result<JoinSet<Started>, NodeError> {
    let mut starting = JoinSet::new();
    let mut last: Option<oneshot::Receiver<()>> = None;
    for path in paths {
        let bay = Bay::new(around.clone(), path.clone());
        if let Some(SlotOsd { osd, .. }) = bay.known().await? {
            starting.spawn(start_first(bay, Some(osd)));
            continue;
        }
        let (passes_on, next) = oneshot::channel::<()>();
        let turn = last.replace(next);
        starting.spawn(async move {
            if let Some(turn) = turn {
                // It is passed on by being dropped.
                let _ = turn.await;
            }
            let started = start_first(bay, None);
            tokio::pin!(started);
            let in_time = tokio::time::timeout(TURN_MAX, &mut started).await;
            drop(passes_on);
            match in_time {
                Ok(started) => started,
                Err(_) => started.await,
            }
        });
    }
    Ok(starting)
}

async fn start_first(bay: Bay, before: Option<OsdId>) -> Started {
    let outcome = bay.start(before).await;
    (bay, before, outcome)
}

fn pause(attempts: u32) -> Duration {
    let doubled = PAUSE_SECONDS.start() << attempts.min(16);
    Duration::from_secs(doubled.min(*PAUSE_SECONDS.end()))
}

impl Bay {
    fn new(around: Arc<Surroundings>, path: PathBuf) -> Bay {
        Bay { around, path, new_uuid: OsdUuid(uuid::Uuid::new_v4()) }
    }

    /// Keeps the bay, from what became of its first start, until no OSD belongs in it any more or `stop` changes.
    ///
    /// # Errors
    /// When its OSD cannot go on though the drive is sound.
    async fn tend(
        &self,
        started: Result<OsdControl, Vacancy>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<End, NodeError> {
        let Surroundings { cluster, maps, wishes, board, .. } = &*self.around;
        let (mut occupant, mut attempts, mut said) = (started, 0, String::new());
        loop {
            let vacancy = match occupant {
                Ok(osd) => {
                    let (id, uuid) = (osd.id, osd.uuid);
                    // Why it was not started before is over.
                    board.forget(id);
                    (attempts, said) = (0, String::new());
                    let means = Means {
                        cluster: cluster.clone(),
                        maps: maps.clone(),
                        wishes: wishes.clone(),
                        board: board.clone(),
                        stop: stop.clone(),
                    };
                    let why = match control_osd(osd, means).await? {
                        End::GaveUp(status) => Why::GaveUp(status),
                        End::Replaced => {
                            let path = self.path.clone();
                            Why::Refused(Box::new(NodeError::Replaced { path, osd: id }))
                        }
                        end => return Ok(end),
                    };
                    Vacancy { slot: Some((id, uuid)), why }
                }
                Err(vacancy) => vacancy,
            };
            self.log(&vacancy, &mut said);
            let ended = self.wait(&vacancy, attempts, &mut stop).await;
            attempts += 1;
            occupant = match ended {
                Some(end) => {
                    self.untell(&vacancy);
                    return Ok(end);
                }
                None => match self.start_unless_stopped(&vacancy, &mut stop).await {
                    None => {
                        self.untell(&vacancy);
                        return Ok(End::Asked);
                    }
                    Some(started) => match started {
                        // What is wrong has nothing to do with the drive, and passes: the registry may be away.
                        Err(trouble) if !trouble.is_of_drive() => {
                            tracing::warn!(
                                path = %self.path.display(), error = %trouble.reason(),
                                "an OSD cannot be tried again now"
                            );
                            Err(vacancy)
                        }
                        // It is on another drive, or was removed before a map showed that.
                        Err(now) if vacancy.is_known() && !now.is_known() => {
                            self.untell(&vacancy);
                            return Ok(End::Removed);
                        }
                        occupant => occupant,
                    },
                },
            };
        }
    }

    /// Tries again what was not started; `None` if the node is to stop before that comes to anything.
    async fn start_unless_stopped(
        &self,
        vacancy: &Vacancy,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<Result<OsdControl, Vacancy>> {
        tokio::select! {
            started = self.start(vacancy.slot.map(|(osd, _)| osd)) => Some(started),
            _ = stop.changed() => None,
        }
    }

    /// Says once why nothing runs.
    fn log(&self, vacancy: &Vacancy, said: &mut String) {
        let reason = vacancy.reason();
        if let (Why::Refused(_), false) = (&vacancy.why, *said == reason) {
            match vacancy.slot {
                Some((osd, _)) => {
                    tracing::error!(%osd, error = %reason, "it is not started; `millpond status` says what to do");
                }
                None => tracing::warn!(error = %reason, "a drive is left alone"),
            }
        }
        *said = reason;
    }

    /// Waits until the OSD is to be tried again; `None` then. Meanwhile the manager is told why it does not run.
    async fn wait(&self, vacancy: &Vacancy, attempts: u32, stop: &mut watch::Receiver<bool>) -> Option<End> {
        let Surroundings { node, maps, board, .. } = &*self.around;
        let pause = async {
            match &vacancy.why {
                Why::Refused(_) => tokio::time::sleep(pause(attempts)).await,
                Why::GaveUp(_) => std::future::pending().await,
            }
        };
        tokio::pin!(pause);
        let mut maps = maps.clone();
        maps.mark_changed();
        let mut is_known = false;
        loop {
            tokio::select! {
                () = &mut pause => return None,
                _ = stop.changed() => return Some(End::Asked),
                Ok(()) = maps.changed() => {
                    let Some(slot) = vacancy.slot else { continue };
                    let seen = outlook(&maps.borrow_and_update(), *node, slot, is_known);
                    is_known |= !matches!(seen, Outlook::Unclear | Outlook::Replaced);
                    match seen {
                        Outlook::Unclear => {}
                        Outlook::Over => return Some(End::Removed),
                        Outlook::Replaced => return None,
                        Outlook::Runs => board.forget(slot.0),
                        Outlook::Waits => board.note_status(slot.0, &self.status_of(vacancy)),
                    }
                }
            }
        }
    }

    /// What the manager is told of an OSD that does not run.
    fn status_of(&self, vacancy: &Vacancy) -> OsdStatus {
        match &vacancy.why {
            Why::GaveUp(status) => OsdStatus::clone(status),
            Why::Refused(error) => OsdStatus {
                path: self.path.display().to_string(),
                pid: std::process::id(),
                start_refused: Some(error.to_string()),
                ..OsdStatus::default()
            },
        }
    }

    /// Nothing more is to be told of it.
    fn untell(&self, vacancy: &Vacancy) {
        if let Some((osd, _)) = vacancy.slot {
            self.around.board.forget(osd);
        }
    }

    /// The OSD that belongs there, if the cluster knows one.
    async fn known(&self) -> Result<Option<SlotOsd>, ClusterError> {
        self.around.cluster.osd_at(self.around.node, &self.path.display().to_string()).await
    }

    /// Opens the drive, learns or makes its identity, and starts its shard. No new OSD is made where another was known to
    /// belong `before`.
    async fn start(&self, before: Option<OsdId>) -> Result<OsdControl, Vacancy> {
        let Surroundings { cluster, volatile_cache, .. } = &*self.around;
        let cluster_id = cluster.id().await.map_err(Vacancy::of_nobody)?;
        let opened = self.is_awaited(before, open(self.path.clone(), *volatile_cache)).await;
        // Only now: the drive may have been waited for while its OSD was replaced once more, or put on another.
        let known = self.known().await.map_err(Vacancy::of_nobody)?;
        let refused = |error: NodeError| {
            let slot = known.map(|slot| (slot.osd, slot.uuid));
            Vacancy { slot, why: Why::Refused(Box::new(error)) }
        };
        let (drive, found) = opened.map_err(refused)?;
        let (bytes, class) = (drive.bytes(), drive.class);
        let (owner, bytes_noted) = match (found, known) {
            (Some(found), _) => {
                let osd = self.check(&found, cluster_id).await.map_err(refused)?;
                // What a drive that was cut short has now is not what its OSD shall hold.
                let noted = cluster.bytes_of(osd).await.map_err(Vacancy::of_nobody)?;
                (Some((osd, found.osd_uuid)), noted.unwrap_or(bytes))
            }
            (None, Some(SlotOsd { osd, uuid, is_new: true })) => (Some((osd, uuid)), bytes),
            // A drive that was emptied by mistake, or is not the one that this path meant before, is no new OSD.
            (None, Some(SlotOsd { osd, .. })) => {
                return Err(refused(NodeError::Emptied { path: self.path.clone(), osd }));
            }
            (None, None) => match before {
                Some(osd) => return Err(refused(NodeError::Left { path: self.path.clone(), osd })),
                None => (None, bytes),
            },
        };
        let (id, uuid) = self.note(owner, bytes_noted, class).await.map_err(refused)?;
        let refused =
            |error: NodeError| Vacancy { slot: Some((id, uuid)), why: Why::Refused(Box::new(error)) };
        let identity = store::Identity { cluster: cluster_id, osd_uuid: uuid, osd: id };
        let osd = self.run(drive, identity, found.is_none()).await.map_err(refused)?;
        if bytes != bytes_noted
            && let Err(error) = self.note(Some((id, uuid)), bytes, class).await
        {
            osd.shard.tell(Command::Shutdown).await;
            let _ = osd.ended.await;
            return Err(refused(error));
        }
        Ok(osd)
    }

    /// What a drive answers. While it does not, the manager is told so of the OSD that was on it, for as long as that waits for it.
    async fn is_awaited<T>(&self, before: Option<OsdId>, answer: impl Future<Output = T>) -> T {
        tokio::pin!(answer);
        if let Ok(answer) = tokio::time::timeout(SILENT_AFTER, &mut answer).await {
            return answer;
        }
        let Surroundings { node, maps, board, .. } = &*self.around;
        let (path, pid) = (self.path.display().to_string(), std::process::id());
        tracing::error!(path, "a drive does not say what is on it; the OSD there is started when it does");
        let mut maps = maps.clone();
        maps.mark_changed();
        let status = OsdStatus { path, pid, drive_hangs: true, ..OsdStatus::default() };
        // What another bay says of its OSD by now stays.
        let untell = |osd: OsdId| {
            if board.statuses().get(&osd).is_some_and(|told| **told == status) {
                board.forget(osd);
            }
        };
        let (mut slot, mut is_known) = (None, false);
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                Ok(()) = maps.changed() => {
                    let map = maps.borrow_and_update().clone();
                    let uuid_in = |osd: OsdId| Some((osd, map.osds.get(&osd)?.uuid));
                    slot = slot.or_else(|| before.and_then(uuid_in));
                    let Some(slot) = slot else { continue };
                    let seen = outlook(&map, *node, slot, is_known);
                    is_known |= !matches!(seen, Outlook::Unclear | Outlook::Replaced);
                    match seen {
                        Outlook::Unclear => {}
                        Outlook::Waits => board.note_status(slot.0, &status),
                        Outlook::Over | Outlook::Replaced | Outlook::Runs => untell(slot.0),
                    }
                }
            }
        };
        before.into_iter().for_each(untell);
        answer
    }

    /// Notes in the cluster whose drive it is, where, and how it is; a new OSD's if it is nobody's. Before it is formatted: what
    /// never came up is formatted by whoever starts it next.
    async fn note(
        &self,
        owner: Option<(OsdId, OsdUuid)>,
        bytes: u64,
        class: DeviceClass,
    ) -> Result<(OsdId, OsdUuid), NodeError> {
        let Surroundings { node, cluster, .. } = &*self.around;
        let (id, uuid) = match owner {
            Some(owner) => owner,
            None => {
                let uuid = self.new_uuid;
                (cluster.register_osd(uuid, *node, bytes, class).await?, uuid)
            }
        };
        let noted = async {
            cluster.note_osd(id, uuid, *node, bytes, class).await?;
            cluster.note_drive(id, uuid, &self.path.display().to_string()).await
        };
        match noted.await {
            Ok(()) => Ok((id, uuid)),
            Err(ClusterError::OsdReplaced { osd } | ClusterError::NoSuchOsd { osd }) => {
                Err(NodeError::Left { path: self.path.clone(), osd })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether what a drive holds is an OSD of this cluster, and which.
    async fn check(&self, found: &store::Identity, cluster_id: ClusterId) -> Result<OsdId, NodeError> {
        let (cluster, path) = (&self.around.cluster, self.path.clone());
        if found.cluster != cluster_id {
            return Err(NodeError::OtherCluster { path, found: found.cluster, expected: cluster_id });
        }
        if let Some(osd) = cluster.osd_of(found.osd_uuid).await? {
            return Ok(osd);
        }
        let osd = found.osd;
        match cluster.map().await?.osds.contains_key(&osd) {
            true => Err(NodeError::Replaced { path, osd }),
            false => Err(NodeError::Removed { path, osd }),
        }
    }

    /// Starts the shard of an OSD, and what makes its connections.
    async fn run(
        &self,
        drive: Drive,
        identity: store::Identity,
        is_to_be_formatted: bool,
    ) -> Result<OsdControl, NodeError> {
        let Surroundings { listen, maps, spin_max, handshakes, .. } = &*self.around;
        let (id, uuid) = (identity.osd, identity.osd_uuid);
        let (report_sender, mut reports) = mpsc::channel(QUEUE_LENGTH);
        let (commands, command_receiver) = mpsc::channel(QUEUE_LENGTH);
        let (ended_sender, mut ended) = oneshot::channel();
        let (dial_sender, dials) = mpsc::channel(QUEUE_LENGTH);
        let listeners = Listeners::on_free_port(listen, bind);
        let listeners = listeners.map_err(|ListenError { address, source }| NodeError::Listen {
            osd: id,
            address,
            source,
        })?;
        let address = listeners.address();
        let shard_config = ShardConfig {
            drive,
            path: self.path.display().to_string(),
            identity,
            format: is_to_be_formatted,
            spin_max: *spin_max,
            dials: dial_sender,
        };
        std::thread::Builder::new()
            .name(shard::thread_name(id))
            .spawn(move || {
                let result = shard::run(shard_config, report_sender, command_receiver);
                // Nobody listens any more only when the node is stopping.
                let _ = ended_sender.send(result);
            })
            .map_err(|source| NodeError::System { what: "starting an OSD's thread", source })?;
        let shard = tokio::select! {
            biased;
            Some(report) = reports.recv() => match report {
                Report::Ready { waker } => ToShard { commands, waker },
                report => return Err(NodeError::Shard(format!("{id} spoke before it was ready: {report:?}"))),
            },
            result = &mut ended => return Err(match result {
                Ok(Err(error)) => error.into(),
                _ => NodeError::Shard(format!("{id} ended before it was ready")),
            }),
        };
        let switchboard = Switchboard {
            osd: id,
            identity: self.around.identity.clone(),
            maps: maps.clone(),
            shard: shard.clone(),
            refusals: Refusals::default(),
        };
        handshakes.spawn(switchboard.run(listeners, dials));
        Ok(OsdControl { id, uuid, address, shard, reports, ended })
    }
}

/// Opens a drive, and looks whose it is. It may be waited for, and be slow: nobody's lease may wait for that.
async fn open(
    path: PathBuf,
    volatile_cache: Option<bool>,
) -> Result<(Drive, Option<store::Identity>), NodeError> {
    let opening = move || -> Result<_, DriveError> {
        let mut drive = Drive::open(&path, Use::Alone)?;
        drive.has_volatile_cache = volatile_cache.unwrap_or(drive.has_volatile_cache);
        let found = drive.osd()?;
        Ok((drive, found))
    };
    match tokio::task::spawn_blocking(opening).await {
        Ok(opened) => Ok(opened?),
        Err(error) => Err(NodeError::Shard(error.to_string())),
    }
}

/// Listens at an address.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    // Of the default queue of 128, a burst of clients overflows into retransmissions a second apart.
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::MAXCONN)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod tests;
