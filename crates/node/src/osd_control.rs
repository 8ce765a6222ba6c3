//! The control side of one OSD: keeps its lease, carries maps down and proposals up, until it ends.

use crate::error::NodeError;
use crate::lease::{KEEP_ALIVE, LEASE_TTL};
use crate::scrubbing::{self, Scrubs};
use crate::shard::{Command, Proposal, Report, ShardError, ToShard};
use api::board::Board;
use base::map::ClusterMap;
use base::status::OsdStatus;
use base::{OsdId, OsdUuid};
use cluster::{Cluster, ClusterError, ScrubWishes};
use registry::{LeaseId, RegistryError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How long an OSD waits for the map before it is announced without.
const MAP_LIMIT: Duration = Duration::from_secs(2);
/// For how long a drive that hung and goes on must go on before its OSD is announced again, if it hung before: the second time, and
/// twice as long each time. One that hangs again and again is taken out in the end, like one that is down.
const RECURRENCE_PAUSE: Duration = Duration::from_secs(15);
/// The longest such pause.
const RECURRENCE_PAUSE_MAX: Duration = Duration::from_mins(20);
/// A drive that has not hung for so long is one that never did.
const RECURRENCE_WITHIN: Duration = Duration::from_hours(1);
/// How long the map may take to show a configuration that was claimed: the claim is taken for failed then.
const CLAIM_MAP_LIMIT: Duration = Duration::from_secs(10);

type Maps = watch::Receiver<Arc<ClusterMap>>;

/// One OSD as the control side sees it.
pub(crate) struct OsdControl {
    pub(crate) id: OsdId,
    /// As what its drive is formatted.
    pub(crate) uuid: OsdUuid,
    pub(crate) address: SocketAddr,
    pub(crate) shard: ToShard,
    pub(crate) reports: mpsc::Receiver<Report>,
    pub(crate) ended: oneshot::Receiver<Result<(), ShardError>>,
}

/// How an OSD ended that can be done without.
pub(crate) enum End {
    /// The node was asked to stop.
    Asked,
    /// It was removed from the cluster.
    Removed,
    /// Its number was given to another drive.
    Replaced,
    /// It gave its drive up, and has let go of it: how it was then.
    GaveUp(Box<OsdStatus>),
}

/// As what an OSD counts in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Down, as the registry has not taken yet that it is there.
    Unannounced,
    /// Up, by this lease.
    Up(LeaseId),
    /// Down, until its drive does again what it is asked.
    DriveHangs,
    /// Down from now on: its drive has failed.
    DriveFailed,
}

impl Standing {
    /// The lease by which it is up, if it is.
    fn lease(self) -> Option<LeaseId> {
        if let Standing::Up(lease) = self { Some(lease) } else { None }
    }
}

/// How often a drive has hung of late.
#[derive(Debug, Default)]
struct Hangs {
    times: u32,
    /// Since when it goes on; `None` while it hangs.
    goes_on_since: Option<Instant>,
    /// That it hangs, or hung while its OSD has been down, is counted.
    is_counted: bool,
}

impl Hangs {
    /// What it does now, and whether its OSD is up.
    fn note(&mut self, hangs: bool, is_up: bool, now: Instant) {
        if !hangs {
            self.goes_on_since.get_or_insert(now);
            self.is_counted &= !is_up;
        } else if let Some(since) = self.goes_on_since.take()
            && now - since > RECURRENCE_WITHIN
        {
            self.times = 0;
        }
    }

    /// Its OSD is down for it.
    fn count(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.times += 1;
        }
    }

    /// Whether it has gone on for long enough to be trusted.
    fn is_over(&self, now: Instant) -> bool {
        let pause = match self.times {
            ..2 => Duration::ZERO,
            times => RECURRENCE_PAUSE.saturating_mul(1 << (times - 2).min(16)).min(RECURRENCE_PAUSE_MAX),
        };
        self.goes_on_since.is_some_and(|since| now - since >= pause)
    }
}

impl OsdControl {
    /// Whether a map shows it as what it is formatted.
    fn is_in(&self, map: &ClusterMap) -> bool {
        map.osds.get(&self.id).is_some_and(|info| info.uuid == self.uuid)
    }
}

/// What an OSD is controlled with, besides itself.
pub(crate) struct Means {
    pub(crate) cluster: Cluster,
    pub(crate) maps: Maps,
    pub(crate) wishes: ScrubWishes,
    pub(crate) board: Board,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Announces an OSD and keeps it, until it ends. While the registry does not take that it is there, that is tried again: the other
/// OSDs of the process serve without the registry, too.
///
/// # Errors
/// When it cannot go on though its drive is sound.
pub(crate) async fn control_osd(mut osd: OsdControl, mut means: Means) -> Result<End, NodeError> {
    // Before it is announced, so that it knows who calls it at once.
    let _ = tokio::time::timeout(MAP_LIMIT, means.maps.wait_for(|map| osd.is_in(map))).await;
    let map = means.maps.borrow_and_update().clone();
    let is_known = osd.is_in(&map);
    if is_known {
        osd.shard.tell(Command::Map(map)).await;
    }
    let mut standing = Standing::Unannounced;
    let end = match announce_first(&osd, &means.cluster, &mut standing).await {
        Some(end) => end,
        None => keep(&mut osd, &mut means, &mut standing, is_known).await?,
    };
    if let End::GaveUp(_) = end {
        return Ok(end);
    }
    osd.shard.tell(Command::Shutdown).await;
    let _ = (&mut osd.ended).await;
    means.board.forget(osd.id);
    if let Standing::Up(lease) = standing {
        // Gone at once instead of when the lease ends.
        let _ = means.cluster.registry().lease_revoke(lease).await;
    }
    Ok(end)
}

/// Announces an OSD, if the registry takes that. Answers how it ends if the cluster can do without it.
async fn announce_first(osd: &OsdControl, cluster: &Cluster, standing: &mut Standing) -> Option<End> {
    match announce(osd, cluster).await {
        Ok(granted) => *standing = Standing::Up(granted),
        Err(NodeError::Cluster(ClusterError::OsdReplaced { .. })) => return Some(End::Replaced),
        Err(NodeError::Cluster(ClusterError::NoSuchOsd { .. })) => {
            tracing::info!(osd = %osd.id, "it was removed from the cluster, so it ends");
            return Some(End::Removed);
        }
        Err(error) => {
            tracing::warn!(osd = %osd.id, %error, "the registry does not take that an OSD is there; trying again");
        }
    }
    None
}

/// Keeps an OSD that is open. It is known once a map has shown it: what shows it otherwise is older until then.
async fn keep(
    osd: &mut OsdControl,
    means: &mut Means,
    standing: &mut Standing,
    mut is_known: bool,
) -> Result<End, NodeError> {
    let Means { cluster, maps, wishes, board, stop } = means;
    // It was granted just now, and claims wait for nothing.
    let mut keep_alive = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut scrubs = Scrubs::new();
    let mut look = tokio::time::interval(scrubbing::LOOK_EVERY);
    let mut scrubs_are_due = false;
    let mut status: Option<OsdStatus> = None;
    let mut drive_hangs = Hangs::default();
    loop {
        let mut is_to_be_looked_at = false;
        tokio::select! {
            Some(report) = osd.reports.recv() => match report {
                Report::Propose(proposal) => {
                    tokio::spawn(propose(osd, cluster.clone(), maps.clone(), proposal));
                }
                Report::Tally(tally) => board.note_figures(osd.id, *tally),
                Report::Status(new) => {
                    board.note_status(osd.id, &new);
                    status = Some(*new);
                    is_to_be_looked_at = true;
                }
                Report::Scrubbed(report) => {
                    tracing::info!(osd = %osd.id, pg = %report.pg, deep = report.is_deep, found = report.found, "scrubbed");
                    // What is not noted is done again.
                    let _ = cluster.scrub_done(report.pg, &scrubs.ended(&report)).await;
                }
                Report::Ready { .. } => {}
            },
            () = wishes.changed() => scrubs_are_due = true,
            _ = look.tick() => scrubs_are_due = true,
            Ok(()) = maps.changed() => {
                let map: Arc<ClusterMap> = maps.borrow_and_update().clone();
                if osd.is_in(&map) {
                    is_known = true;
                    osd.shard.tell(Command::Map(map)).await;
                } else if is_known && map.osds.contains_key(&osd.id) {
                    tracing::warn!(osd = %osd.id, "it was put on another drive, so it ends on this one");
                    return Ok(End::Replaced);
                } else if is_known {
                    tracing::info!(osd = %osd.id, "it was removed from the cluster, so it ends");
                    return Ok(End::Removed);
                }
                is_to_be_looked_at = true;
            }
            _ = keep_alive.tick() => {
                is_to_be_looked_at = true;
                let lease = match *standing {
                    Standing::Up(held) => renew(osd, cluster, held).await,
                    Standing::Unannounced => match announce_first(osd, cluster, standing).await {
                        Some(end) => return Ok(end),
                        None => standing.lease(),
                    },
                    Standing::DriveHangs | Standing::DriveFailed => None,
                };
                if let Some(lease) = lease {
                    *standing = Standing::Up(lease);
                    osd.shard.tell_in_passing(Command::RegistryAnswered);
                }
            }
            result = &mut osd.ended => {
                return match (result, status) {
                    // It was told to.
                    (_, Some(status)) if *standing == Standing::DriveFailed => Ok(End::GaveUp(Box::new(status))),
                    (Ok(Err(error)), _) => Err(error.into()),
                    _ => Err(NodeError::Shard(format!("{} ended", osd.id))),
                };
            }
            _ = stop.changed() => return Ok(End::Asked),
        }
        if is_to_be_looked_at && let Some(status) = &status {
            let (map, now) = (maps.borrow().clone(), Instant::now());
            drive_hangs.note(status.drive_hangs, standing.lease().is_some(), now);
            // Who is taken out meanwhile is not to be taken for gone, not for a moment.
            let may_be_up = drive_hangs.is_over(now) || !map.is_down_while_it_hangs(osd.id);
            if *standing == Standing::DriveHangs && status.failure.is_none() && may_be_up {
                if let Ok(lease) = announce(osd, cluster).await {
                    *standing = Standing::Up(lease);
                    osd.shard.tell_in_passing(Command::RegistryAnswered);
                }
            } else if let Some(new) = follows(*standing, status, &map, osd.id)
                && withdraw(osd, cluster, *standing, status).await
            {
                *standing = new;
                match new {
                    Standing::DriveHangs => drive_hangs.count(),
                    // Another drive may be where this one was, and this one put to another use: it must be let go of.
                    _ => osd.shard.tell(Command::Shutdown).await,
                }
            }
        }
        if scrubs_are_due && let Some(status) = &status {
            scrubs_are_due = false;
            let due = scrubs.due(cluster, status).await;
            if !due.is_empty() {
                osd.shard.tell(Command::Scrub(due)).await;
            }
        }
    }
}

async fn announce(osd: &OsdControl, cluster: &Cluster) -> Result<LeaseId, NodeError> {
    let lease = cluster.registry().lease_grant(LEASE_TTL).await?;
    if let Err(error) = cluster.osd_up_as(osd.id, osd.uuid, osd.address, lease.id).await {
        let _ = cluster.registry().lease_revoke(lease.id).await;
        return Err(error.into());
    }
    tracing::info!(osd = %osd.id, address = %osd.address, "up");
    Ok(lease.id)
}

/// An OSD whose drive failed counts as down from now on, and one whose drive hangs until it goes on, so that it is replaced in
/// time: as what it is to count now. `None` if that does not change.
fn follows(standing: Standing, status: &OsdStatus, map: &ClusterMap, osd: OsdId) -> Option<Standing> {
    match (standing, &status.failure) {
        (Standing::Unannounced | Standing::Up(_) | Standing::DriveHangs, Some(_)) => {
            Some(Standing::DriveFailed)
        }
        (Standing::Unannounced | Standing::Up(_), None)
            if status.drive_hangs && map.is_down_while_it_hangs(osd) =>
        {
            Some(Standing::DriveHangs)
        }
        _ => None,
    }
}

/// Has an OSD count as down; the manager goes on being told why. False while the registry is away.
async fn withdraw(osd: &OsdControl, cluster: &Cluster, standing: Standing, status: &OsdStatus) -> bool {
    if let Some(lease) = standing.lease() {
        match cluster.registry().lease_revoke(lease).await {
            Ok(()) | Err(RegistryError::LeaseNotFound { .. }) => {}
            Err(_) => return false,
        }
    }
    match &status.failure {
        Some(reason) => tracing::error!(
            osd = %osd.id, reason,
            "the drive failed; the placement groups go on without this OSD, and `millpond status` says how to replace it"
        ),
        None => tracing::error!(
            osd = %osd.id,
            "the drive does nothing of what it is asked; the placement groups go on without this OSD until it does"
        ),
    }
    true
}

/// Renews the lease, or announces the OSD again if it was lost. Answers the lease that it is up by; `None` if the registry
/// does not answer.
async fn renew(osd: &OsdControl, cluster: &Cluster, lease: LeaseId) -> Option<LeaseId> {
    match cluster.registry().lease_keep_alive(lease).await {
        Ok(()) => Some(lease),
        Err(RegistryError::LeaseNotFound { .. }) => announce(osd, cluster).await.ok(),
        Err(error) => {
            tracing::warn!(osd = %osd.id, %error, "the registry does not answer");
            None
        }
    }
}

/// Carries a proposal to the registry and tells the shard what came of it.
///
/// The shard is given a map before that has the new configuration: whoever begins an epoch knows of every attach that was
/// registered before its claim. Who attaches later finds in the map who must be told.
fn propose(
    osd: &OsdControl,
    cluster: Cluster,
    mut maps: Maps,
    Proposal { pg, expected, config, is_split, decided_by }: Proposal,
) -> impl Future<Output = ()> + use<> {
    let (osd, shard) = (osd.id, osd.shard.clone());
    async move {
        let changed = match is_split {
            true => cluster.split_pg(pg, expected, config.clone()).await,
            false => cluster.claim_pg(pg, expected, config.clone(), &decided_by).await,
        };
        let claimed = match changed {
            Ok(is_changed) => is_changed,
            Err(error) => {
                tracing::warn!(%osd, %pg, %error, "a new epoch could not be claimed");
                false
            }
        };
        // The answer to an earlier attempt may have been lost: whoever is primary claims, and nobody else.
        let stands = claimed || cluster.map().await.is_ok_and(|map| map.pgs.get(&pg) == Some(&config));
        let mut accepted = None;
        if stands {
            let is_new =
                |map: &Arc<ClusterMap>| map.pgs.get(&pg).is_some_and(|found| found.epoch >= config.epoch);
            let shown = tokio::time::timeout(CLAIM_MAP_LIMIT, maps.wait_for(is_new));
            let map = shown.await.ok().and_then(|map| Some(map.ok()?.clone()));
            if let Some(map) = map
                && shard.commands.send(Command::Map(map)).await.is_ok()
            {
                accepted = Some(config);
            }
        }
        shard.tell(Command::Proposal { pg, accepted }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{Admission, DeviceClass, PgConfig};
    use base::status::{PgState, PgStatus};
    use base::{CutId, Epoch, NodeId, PgId, PoolId};
    use cluster::ScrubWish;
    use registry_embedded::EmbeddedRegistry;
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::task::yield_now;

    const UUID: OsdUuid = OsdUuid(uuid::Uuid::from_u128(2));
    const OTHER: OsdUuid = OsdUuid(uuid::Uuid::from_u128(3));
    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7000);
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A cluster of one OSD, whose shard a test plays, as it plays whoever shows it maps.
    struct Scene {
        cluster: Cluster,
        id: OsdId,
        maps: watch::Sender<Arc<ClusterMap>>,
        board: Board,
        stop: watch::Sender<bool>,
        commands: mpsc::Receiver<Command>,
        reports: mpsc::Sender<Report>,
        ends: Option<oneshot::Sender<Result<(), ShardError>>>,
        _reactor: ring::Reactor,
        _scratch: tempfile::TempDir,
    }

    impl Scene {
        async fn new() -> (Scene, OsdControl) {
            let scratch = tempfile::tempdir().unwrap();
            let id = base::ClusterId(uuid::Uuid::from_u128(1));
            let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
            let cluster = Cluster::new(Arc::new(registry));
            cluster.create(id).await.unwrap();
            let id = cluster.register_osd(UUID, NodeId(0), 1 << 30, DeviceClass::Ssd).await.unwrap();
            let (sender, commands) = mpsc::channel(4);
            let (reports, receiver) = mpsc::channel(4);
            let (ends, ended) = oneshot::channel();
            let reactor = ring::Reactor::new(ring::ReactorOptions::default()).unwrap();
            let shard = ToShard { commands: sender, waker: reactor.waker() };
            let osd = OsdControl { id, uuid: UUID, address: ADDRESS, shard, reports: receiver, ended };
            let scene = Scene {
                cluster,
                id,
                maps: watch::Sender::new(Arc::default()),
                board: Board::default(),
                stop: watch::Sender::new(false),
                commands,
                reports,
                ends: Some(ends),
                _reactor: reactor,
                _scratch: scratch,
            };
            (scene, osd)
        }

        fn means(&self) -> Means {
            Means {
                cluster: self.cluster.clone(),
                maps: self.maps.subscribe(),
                wishes: ScrubWishes::watch(&self.cluster),
                board: self.board.clone(),
                stop: self.stop.subscribe(),
            }
        }

        /// Has the OSD see the map as it is.
        async fn shows(&self) -> Arc<ClusterMap> {
            let map = Arc::new(self.cluster.map().await.unwrap());
            self.maps.send_replace(map.clone());
            map
        }

        async fn is_up(&self) -> bool {
            self.cluster.map().await.unwrap().osds[&self.id].address.is_some()
        }

        async fn comes_up(&self) {
            self.is_soon(true).await;
        }

        /// Before long it is up, or down.
        async fn is_soon(&self, up: bool) {
            let coming = async {
                while self.is_up().await != up {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(PATIENCE, coming).await.expect("the registry shows it so");
        }

        /// What the shard is told next, whichever.
        async fn told_anything(&mut self) -> Command {
            let told = tokio::time::timeout(PATIENCE, self.commands.recv()).await;
            told.expect("the shard is told something").expect("it is controlled still")
        }

        /// The same, beside that the registry answers, of which it is told again and again.
        async fn told(&mut self) -> Command {
            loop {
                let told = self.told_anything().await;
                if !matches!(told, Command::RegistryAnswered) {
                    return told;
                }
            }
        }

        /// The shard says how it is, and that is known.
        async fn says(&self, status: &OsdStatus) {
            self.reports.send(Report::Status(Box::new(status.clone()))).await.unwrap();
            let knowing = async {
                while self.board.statuses().get(&self.id).is_none_or(|known| **known != *status) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::time::timeout(PATIENCE, knowing).await.expect("it is noted");
        }

        fn ends(&mut self, result: Result<(), ShardError>) {
            self.ends.take().unwrap().send(result).unwrap();
        }

        /// The next proposal for the only group of a new pool, as its primary makes it; and the sender of the maps by which it
        /// is looked whether it stands.
        async fn proposal(&self) -> (Proposal, watch::Sender<Arc<ClusterMap>>) {
            let lease = self.cluster.registry().lease_grant(LEASE_TTL).await.unwrap().id;
            self.cluster.osd_up(self.id, ADDRESS, lease).await.unwrap();
            self.cluster.create_pool("default", 1, 1, 1).await.unwrap();
            let decided_by = Arc::new(self.cluster.map().await.unwrap());
            let (pg, config) =
                decided_by.pgs.first_key_value().map(|(pg, config)| (*pg, config.clone())).unwrap();
            let next = PgConfig { epoch: Epoch(config.epoch.0 + 1), ..config.clone() };
            let maps = watch::Sender::new(decided_by.clone());
            (Proposal { pg, expected: config.epoch, config: next, is_split: false, decided_by }, maps)
        }
    }

    #[tokio::test]
    async fn an_osd_has_the_map_before_it_is_announced_and_is_down_once_it_has_ended() {
        let (mut scene, osd) = Scene::new().await;
        let id = scene.id;
        scene.shows().await;
        let controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(map) if map.osds[&id].address.is_none()));
        scene.comes_up().await;
        scene.shows().await;
        assert!(matches!(scene.told().await, Command::Map(map) if map.osds[&id].address == Some(ADDRESS)));
        scene.says(&OsdStatus { used_bytes: 7, ..OsdStatus::default() }).await;
        scene.stop.send_replace(true);
        assert!(matches!(scene.told().await, Command::Shutdown));
        assert!(scene.is_up().await && !controlled.is_finished(), "it is waited for");
        scene.ends(Ok(()));
        assert!(matches!(controlled.await.unwrap(), Ok(End::Asked)));
        assert!(!scene.is_up().await && scene.board.statuses().is_empty());
    }

    #[tokio::test]
    async fn what_a_map_does_not_show_is_gone_only_once_one_showed_it() {
        for is_removed in [true, false] {
            let (mut scene, mut osd) = Scene::new().await;
            let (id, mut means) = (scene.id, scene.means());
            let mut standing = Standing::Up(announce(&osd, &scene.cluster).await.unwrap());
            let map = scene.cluster.map().await.unwrap();
            let mut without = map.clone();
            match is_removed {
                true => drop(without.osds.remove(&id)),
                false => without.osds.get_mut(&id).unwrap().uuid = OTHER,
            }
            let kept = tokio::spawn(async move { keep(&mut osd, &mut means, &mut standing, false).await });
            scene.maps.send_replace(Arc::new(without.clone()));
            for _ in 0..20 {
                yield_now().await;
            }
            assert!(!kept.is_finished(), "that map may be an older one");
            scene.maps.send_replace(Arc::new(map));
            assert!(matches!(scene.told().await, Command::Map(map) if map.osds[&id].uuid == UUID));
            scene.maps.send_replace(Arc::new(without));
            let ended = kept.await.unwrap();
            assert!(match is_removed {
                true => matches!(ended, Ok(End::Removed)),
                false => matches!(ended, Ok(End::Replaced)),
            });
        }
    }

    #[tokio::test]
    async fn an_osd_whose_number_another_drive_has_is_not_announced() {
        let (mut scene, mut osd) = Scene::new().await;
        osd.uuid = OTHER;
        let announced = announce(&osd, &scene.cluster).await;
        assert!(matches!(announced, Err(NodeError::Cluster(ClusterError::OsdReplaced { .. }))));
        // By a map of before it still has it.
        let mut map = scene.cluster.map().await.unwrap();
        map.osds.get_mut(&scene.id).unwrap().uuid = OTHER;
        scene.maps.send_replace(Arc::new(map));
        let controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        assert!(matches!(scene.told().await, Command::Shutdown));
        scene.ends(Ok(()));
        assert!(matches!(controlled.await.unwrap(), Ok(End::Replaced)));
        assert!(!scene.is_up().await);
    }

    #[tokio::test]
    async fn an_osd_that_the_registry_does_not_take_at_first_is_announced_as_soon_as_it_does() {
        let (mut scene, osd) = Scene::new().await;
        scene.shows().await;
        // A registry takes no change that is of no cluster.
        let registry = scene.cluster.registry().clone();
        let cluster = registry.get("millpond/map/cluster").await.unwrap().unwrap();
        assert!(registry.delete(&cluster.key).await.unwrap());
        let controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        tokio::time::sleep(KEEP_ALIVE * 2).await;
        scene.says(&OsdStatus::default()).await;
        assert!(!controlled.is_finished(), "the others of its process would end with it");
        registry.put(&cluster.key, cluster.value).await.unwrap();
        scene.comes_up().await;
        assert!(matches!(scene.told_anything().await, Command::RegistryAnswered));
        scene.stop.send_replace(true);
        assert!(matches!(scene.told().await, Command::Shutdown));
        scene.ends(Ok(()));
        assert!(matches!(controlled.await.unwrap(), Ok(End::Asked)));
    }

    #[tokio::test]
    async fn an_osd_that_is_removed_before_it_was_announced_ends() {
        let (mut scene, osd) = Scene::new().await;
        scene.shows().await;
        scene.cluster.set_admission(scene.id, Admission::Out).await.unwrap();
        assert!(scene.cluster.remove_osd(scene.id, registry::Txn::new()).await.unwrap());
        let controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        assert!(matches!(scene.told().await, Command::Shutdown));
        scene.ends(Ok(()));
        assert!(matches!(controlled.await.unwrap(), Ok(End::Removed)));
    }

    #[tokio::test]
    async fn an_osd_whose_drive_failed_is_down_at_once_and_lets_go_of_it_and_why_goes_on_being_told() {
        let (mut scene, osd) = Scene::new().await;
        scene.shows().await;
        let controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        scene.comes_up().await;
        scene.says(&OsdStatus::default()).await;
        let failed = OsdStatus { failure: Some("it does not answer".to_owned()), ..OsdStatus::default() };
        scene.says(&failed).await;
        assert!(matches!(scene.told().await, Command::Shutdown));
        assert!(!scene.is_up().await && !controlled.is_finished());
        scene.ends(Ok(()));
        let Ok(Ok(End::GaveUp(status))) = controlled.await else { panic!("it gave its drive up") };
        assert_eq!(*status, failed);
        assert!(scene.commands.try_recv().is_err(), "it was told to end once");
        assert_eq!(scene.board.statuses().keys().copied().collect::<Vec<_>>(), [scene.id]);
    }

    #[tokio::test]
    async fn an_osd_whose_drive_hangs_is_down_until_it_goes_on_or_fails() {
        let (mut scene, osd) = Scene::new().await;
        scene.shows().await;
        let controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        scene.comes_up().await;
        let (hangs, goes_on) =
            (OsdStatus { drive_hangs: true, ..OsdStatus::default() }, OsdStatus::default());
        // As long as it is out it must not be taken for gone.
        let is = async |scene: &mut Scene, admission| {
            scene.cluster.set_admission(scene.id, admission).await.unwrap();
            scene.shows().await;
            assert!(matches!(scene.told().await, Command::Map(_)));
        };
        is(&mut scene, Admission::Out).await;
        scene.says(&hangs).await;
        tokio::time::sleep(KEEP_ALIVE * 2).await;
        assert!(scene.is_up().await);
        is(&mut scene, Admission::In).await;
        scene.is_soon(false).await;
        // At once, however often it hung before.
        for _ in 0..4 {
            is(&mut scene, Admission::Out).await;
            scene.is_soon(true).await;
            is(&mut scene, Admission::In).await;
            scene.is_soon(false).await;
        }
        is(&mut scene, Admission::OutWhileDown).await;
        tokio::time::sleep(KEEP_ALIVE * 2).await;
        assert!(!scene.is_up().await, "it is out because it is down");
        scene.says(&goes_on).await;
        scene.is_soon(true).await;
        scene.says(&hangs).await;
        scene.is_soon(false).await;
        let failed = OsdStatus { failure: Some("a write failed".to_owned()), ..hangs };
        scene.says(&failed).await;
        assert!(matches!(scene.told().await, Command::Shutdown));
        assert!(!scene.is_up().await && !controlled.is_finished());
        scene.ends(Ok(()));
        let Ok(Ok(End::GaveUp(status))) = controlled.await else { panic!("it gave its drive up") };
        assert_eq!(*status, failed);
    }

    #[test]
    fn a_drive_that_hangs_again_and_again_must_go_on_for_longer_each_time() {
        let (mut hangs, mut now) = (Hangs::default(), Instant::now());
        let moment = Duration::from_millis(1);
        for pause in [0, 15, 30, 60, 120, 240, 480, 960, 1200, 1200] {
            let pause = Duration::from_secs(pause);
            hangs.note(true, true, now);
            hangs.count();
            assert!(!hangs.is_over(now + moment));
            // It stutters: that is one time.
            for stutters in [false, true, false] {
                now += Duration::from_secs(10);
                hangs.note(stutters, false, now);
            }
            assert_eq!(hangs.is_over(now), pause.is_zero());
            assert!(pause.is_zero() || !hangs.is_over(now + pause - moment));
            now += pause;
            assert!(hangs.is_over(now));
            hangs.note(false, true, now);
            now += Duration::from_secs(60);
        }
        now += RECURRENCE_WITHIN;
        hangs.note(true, true, now);
        hangs.count();
        hangs.note(false, false, now);
        assert!(hangs.is_over(now));
    }

    #[test]
    fn a_drive_that_hangs_all_the_time_hangs_once_whatever_its_osd_counts_as() {
        let (mut hangs, now) = (Hangs::default(), Instant::now());
        for is_up in [true, false, true, false, true] {
            hangs.note(true, is_up, now);
            hangs.count();
        }
        hangs.note(false, false, now);
        assert!(hangs.is_over(now), "as the first time");
    }

    #[tokio::test]
    async fn an_osd_that_ends_by_itself_is_an_error_whatever_it_said_before() {
        let system = ShardError::System("no memory".to_owned());
        for (result, words) in [(Ok(()), "osd.0 ended"), (Err(system), "no memory")] {
            let (mut scene, osd) = Scene::new().await;
            scene.shows().await;
            let controlled = tokio::spawn(control_osd(osd, scene.means()));
            assert!(matches!(scene.told().await, Command::Map(_)));
            scene.comes_up().await;
            scene.says(&OsdStatus::default()).await;
            scene.ends(result);
            let error = controlled.await.unwrap().err().expect("nobody asked it to");
            assert_eq!(error.to_string(), words);
        }
    }

    #[tokio::test]
    async fn groups_that_are_to_be_scrubbed_are_told_once_it_is_known_that_they_serve() {
        let (mut scene, osd) = Scene::new().await;
        let pg = PgId { pool: PoolId(1), index: 3 };
        scene.cluster.wish_scrubs([pg], ScrubWish { at_ms: 1, deep: true }).await.unwrap();
        scene.shows().await;
        let _controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        scene.comes_up().await;
        scene.says(&OsdStatus::default()).await;
        let state = PgStatus {
            epoch: Epoch(1),
            state: PgState::Active,
            in_sync: vec![scene.id],
            objects: 0,
            recovery: None,
            cut_through: CutId::default(),
            flatten: Default::default(),
        };
        scene.says(&OsdStatus { pgs: [(pg, state)].into(), ..OsdStatus::default() }).await;
        // What serves now is looked at with the next wish that is seen.
        let mut at_ms = 1;
        let told = loop {
            at_ms += 1;
            scene.cluster.wish_scrubs([pg], ScrubWish { at_ms, deep: true }).await.unwrap();
            let told = tokio::time::timeout(Duration::from_millis(200), scene.commands.recv()).await;
            match told {
                Err(_) | Ok(Some(Command::RegistryAnswered)) => {}
                Ok(told) => break told.expect("it is controlled still"),
            }
            assert!(at_ms < 150, "nothing is scrubbed");
        };
        assert!(matches!(&told, Command::Scrub(due) if *due == [(pg, true)]), "{told:?}");
    }

    #[tokio::test]
    async fn a_lease_that_was_lost_is_taken_anew() {
        let (scene, osd) = Scene::new().await;
        let lease = announce(&osd, &scene.cluster).await.unwrap();
        assert_eq!(renew(&osd, &scene.cluster, lease).await, Some(lease));
        scene.cluster.registry().lease_revoke(lease).await.unwrap();
        assert!(!scene.is_up().await);
        let anew = renew(&osd, &scene.cluster, lease).await.unwrap();
        assert!(anew != lease && scene.is_up().await);
        let failed = OsdStatus { failure: Some("it failed".to_owned()), ..OsdStatus::default() };
        for _ in 0..2 {
            // The second time one that is gone.
            assert!(withdraw(&osd, &scene.cluster, Standing::Up(anew), &failed).await);
            assert!(!scene.is_up().await);
        }
    }

    #[tokio::test]
    async fn a_shard_is_told_whenever_the_registry_has_answered_a_sign_of_life() {
        let (mut scene, osd) = Scene::new().await;
        scene.shows().await;
        let _controlled = tokio::spawn(control_osd(osd, scene.means()));
        assert!(matches!(scene.told().await, Command::Map(_)));
        for _ in 0..2 {
            assert!(matches!(scene.told_anything().await, Command::RegistryAnswered));
        }
    }

    #[tokio::test]
    async fn an_epoch_that_was_claimed_begins_only_with_a_map_that_shows_it() {
        let (mut scene, osd) = Scene::new().await;
        let (proposal, maps) = scene.proposal().await;
        let (pg, next) = (proposal.pg, proposal.config.clone());
        let proposing = tokio::spawn(propose(&osd, scene.cluster.clone(), maps.subscribe(), proposal));
        // Claimed, and the watch is late.
        while scene.cluster.map().await.unwrap().pgs[&pg] != next {
            yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(scene.commands.try_recv().is_err(), "the shard was told before it had the map");
        maps.send_replace(Arc::new(scene.cluster.map().await.unwrap()));
        proposing.await.unwrap();
        assert!(matches!(scene.told().await, Command::Map(map) if map.pgs[&pg] == next));
        let told = scene.told().await;
        assert!(matches!(told, Command::Proposal { accepted: Some(config), .. } if config == next));
    }

    #[tokio::test]
    async fn what_was_claimed_before_stands_and_what_somebody_else_claimed_since_does_not() {
        for is_over in [false, true] {
            let (mut scene, osd) = Scene::new().await;
            let (proposal, maps) = scene.proposal().await;
            let (pg, expected, next) = (proposal.pg, proposal.expected, proposal.config.clone());
            // The answer was lost.
            assert!(scene.cluster.change_pg(pg, expected, next.clone()).await.unwrap());
            if is_over {
                let later = PgConfig { epoch: Epoch(next.epoch.0 + 1), ..next.clone() };
                assert!(scene.cluster.change_pg(pg, next.epoch, later).await.unwrap());
            }
            maps.send_replace(Arc::new(scene.cluster.map().await.unwrap()));
            propose(&osd, scene.cluster.clone(), maps.subscribe(), proposal).await;
            let told = scene.told().await;
            if is_over {
                assert!(matches!(told, Command::Proposal { accepted: None, .. }), "{told:?}");
                continue;
            }
            assert!(matches!(told, Command::Map(map) if map.pgs[&pg] == next));
            let told = scene.told().await;
            assert!(matches!(told, Command::Proposal { accepted: Some(config), .. } if config == next));
        }
    }
}
