//! The control side of a node: registers its OSDs, keeps their leases, carries maps down and proposals up. An OSD
//! that was removed from the cluster ends; the others of its node go on.

use crate::attendance::Attendance;
use crate::client_port::ClientService;
use crate::lease::{KEEP_ALIVE, LEASE_TTL};
use crate::location::Location;
use crate::refusals::Refusals;
use crate::scrubbing::{self, Scrubs};
use crate::shard::{self, Command, Proposal, Report, ShardConfig, ToShard};
use crate::switchboard::Switchboard;
use api::board::Board;
use auth::Identity;
use base::map::ClusterMap;
use base::status::OsdStatus;
use base::{Access, NodeId, OsdId, OsdUuid, Principal, PublicKey};
use cluster::{Cluster, ClusterError, ScrubWishes};
use drive::{Drive, DriveError, Use};
use manager::log::ProcessLog;
use registry::Connect;
use registry::{LeaseId, RegistryError};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::Device;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

/// The longest queue between a shard and the control side.
const QUEUE_LENGTH: usize = 256;
/// How long an OSD waits for the map before it is announced without.
const MAP_LIMIT: Duration = Duration::from_secs(2);
/// The pause before it is told again where clients are served.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(5);
/// How long the map may take to show a configuration that was claimed: the claim is taken for failed then.
const CLAIM_MAP_LIMIT: Duration = Duration::from_secs(10);

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node.
    pub node: NodeId,
    /// Where the registry is.
    pub registry: Location,
    /// The node's key.
    pub identity: Identity,
    /// The drives of its OSDs.
    pub osds: Vec<PathBuf>,
    /// Whether the drives have volatile write caches, where what the kernel says is to be overridden.
    pub volatile_cache: Option<bool>,
    /// The longest a shard polls before it sleeps, when it was busy a moment ago.
    pub spin_max: Duration,
    /// The address of this machine that its OSDs listen on.
    pub listen: IpAddr,
    /// The port of that address on which clients are served the registry, if they are.
    pub client_port: Option<u16>,
    /// What the process logs, so that the manager is told.
    pub log: ProcessLog,
}

/// Why a node cannot start or go on.
#[derive(thiserror::Error, Debug)]
pub enum NodeError {
    /// A drive cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A drive of another cluster.
    #[error(
        "{path}: belongs to cluster {found}, not {expected}; give another drive, or erase this one with `millpond osd \
         wipe {path} --yes`"
    )]
    OtherCluster {
        /// The drive.
        path: PathBuf,
        /// Its cluster.
        found: base::ClusterId,
        /// This one.
        expected: base::ClusterId,
    },
    /// A drive whose OSD was removed.
    #[error(
        "{path}: was {osd}, which was removed from the cluster; to use the drive again, erase it with `millpond osd \
         wipe {path} --yes`, then `millpond osd add --device {path}`"
    )]
    Removed {
        /// The drive.
        path: PathBuf,
        /// What it was.
        osd: OsdId,
    },
    /// A drive that lost what it held.
    #[error(
        "{path}: is blank, but {osd} was on it; bring its drive back, or replace the OSD: `millpond osd out {number}`, \
         `millpond osd rm {number}`, then `millpond osd add --device {path}`",
        number = osd.0
    )]
    Emptied {
        /// The drive.
        path: PathBuf,
        /// What was on it.
        osd: OsdId,
    },
    /// A key that is not the node's.
    #[error(
        "the key {key} is not that of {node} in cluster {cluster}, so nobody would speak to it; put the key back that the \
         host had when it joined, or remove the node from the cluster and let this host join anew with a new directory"
    )]
    Stranger {
        /// The key.
        key: PublicKey,
        /// Whose it should be.
        node: NodeId,
        /// Where.
        cluster: base::ClusterId,
    },
    /// The cluster state cannot be read or changed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// An OSD has no port.
    #[error("{osd} cannot listen on {address}: {source}; is that an address of this machine?")]
    Listen {
        /// The OSD.
        osd: OsdId,
        /// Where it was to listen.
        address: IpAddr,
        /// Why it cannot.
        source: std::io::Error,
    },
    /// There is no port on which others could tell it how their OSDs are.
    #[error("{node} cannot listen on {address}: {source}; is that an address of this machine?")]
    Port {
        /// The node.
        node: NodeId,
        /// Where it was to listen.
        address: IpAddr,
        /// Why it cannot.
        source: std::io::Error,
    },
    /// An OSD ended.
    #[error("{0}")]
    Shard(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// Runs a node until SIGTERM or SIGINT, until all of its OSDs were removed, or until one of them fails.
///
/// # Errors
/// When it cannot start, or an OSD cannot go on.
pub fn run(config: Config) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| NodeError::System { what: "starting the control thread", source })?;
    // On a thread of their own: strangers can ask for very many handshakes, and leases must be kept alive meanwhile.
    let handshakes = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("handshakes")
        .enable_all()
        .build()
        .map_err(|source| NodeError::System { what: "starting the thread of handshakes", source })?;
    let outcome = runtime.block_on(serve(config, handshakes.handle()));
    handshakes.shutdown_background();
    outcome
}

/// One OSD as the control side sees it.
struct OsdControl {
    id: OsdId,
    address: SocketAddr,
    shard: ToShard,
    reports: mpsc::Receiver<Report>,
    ended: oneshot::Receiver<Result<(), String>>,
}

async fn serve(config: Config, handshakes: &Handle) -> Result<(), NodeError> {
    let signals =
        |kind| signal(kind).map_err(|source| NodeError::System { what: "listening for signals", source });
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let cluster = Cluster::new(config.registry.connect().await?);
    // Before a drive is touched.
    config.check_key(&cluster.map().await?)?;
    // From the start, so that who calls an OSD as soon as it is announced is known to it.
    let maps = cluster.watch_map();
    let mut osds = Vec::new();
    let mut removed = Ok(());
    for path in &config.osds {
        match start_osd(&config, path.clone(), &cluster, &maps, handshakes).await {
            Ok(osd) => osds.push(osd),
            // The others of this node are needed.
            Err(error @ NodeError::Removed { .. }) => {
                tracing::warn!(%error, "a drive is left alone");
                removed = Err(error);
            }
            Err(error) => return Err(error),
        }
    }
    if osds.is_empty() {
        return removed;
    }
    let stop = watch::Sender::new(false);
    let board = Board::default();
    let attendance = Attendance {
        node: config.node,
        identity: config.identity.clone(),
        cluster: cluster.clone(),
        maps: maps.clone(),
        listen: config.listen,
        board: board.clone(),
        log: config.log.clone(),
    };
    let attending = attendance.begin(&stop.subscribe()).await;
    let mut attending =
        attending.map_err(|source| NodeError::Port { node: config.node, address: config.listen, source })?;
    let clients = config.serve_clients();
    let client_port = clients.as_ref().map(ClientService::address);
    // Where it was to serve and cannot, another process of the node may.
    if client_port.is_some() || config.client_port.is_none() {
        tokio::spawn(announce_client_port(config.node, cluster.clone(), client_port));
    }
    let wishes = ScrubWishes::watch(&cluster);
    let mut tasks = tokio::task::JoinSet::new();
    for osd in osds {
        let wishes = wishes.clone();
        tasks.spawn(control_osd(osd, cluster.clone(), maps.clone(), wishes, board.clone(), stop.subscribe()));
    }
    let mut outcome = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            stranger = loses_its_key(&config, maps.clone()) => break Err(stranger),
            Some(ended) = tasks.join_next() => match joined(ended) {
                Ok(End::Removed) if !tasks.is_empty() => {}
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        }
    };
    drop(clients);
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(joined(ended).map(drop));
    }
    // They end by the same wish; only their leases are given back.
    while attending.join_next().await.is_some() {}
    outcome
}

impl Config {
    /// Whether the node's key is the one that the cluster knows.
    ///
    /// # Errors
    /// [`NodeError::Stranger`] if not.
    fn check_key(&self, map: &ClusterMap) -> Result<(), NodeError> {
        let (key, node) = (self.identity.public(), self.node);
        match map.principal_of(&key) {
            Some((_, Principal { access: Access::Node(whose), .. })) if *whose == node => Ok(()),
            _ => Err(NodeError::Stranger { key, node, cluster: map.cluster }),
        }
    }

    /// Serves clients the registry from now on, until what is answered is dropped. What prevents that is no reason not to run
    /// OSDs.
    fn serve_clients(&self) -> Option<ClientService> {
        let (node, address) = (self.node, SocketAddr::new(self.listen, self.client_port?));
        let service = ClientService::start(node, self.registry.clone(), self.identity.clone(), address);
        service
            .inspect_err(|error| {
                tracing::warn!(
                    %node, %address, %error,
                    "clients without another way to the registry are not served here; free that port, or name another as \
                     node.client_port"
                );
            })
            .ok()
    }
}

/// Tells the cluster where a node serves clients, as soon as the registry takes it.
async fn announce_client_port(node: NodeId, cluster: Cluster, address: Option<SocketAddr>) {
    loop {
        match cluster.change_node(node, |info| info.client_port = address).await {
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%node, %error, "clients are not told where this node serves them; trying again");
            }
        }
        tokio::time::sleep(ANNOUNCE_PAUSE).await;
    }
}

/// Waits until the node's key is removed from the cluster: OSDs to which nobody speaks any more must not count as up.
async fn loses_its_key(config: &Config, mut maps: watch::Receiver<Arc<ClusterMap>>) -> NodeError {
    loop {
        let checked = {
            let map = maps.borrow_and_update();
            // Nothing is known before the first map.
            if map.revision == 0 { Ok(()) } else { config.check_key(&map) }
        };
        match checked {
            Err(stranger) => return stranger,
            // No more maps come: that is noticed by whom it concerns.
            Ok(()) if maps.changed().await.is_err() => std::future::pending().await,
            Ok(()) => {}
        }
    }
}

/// How an OSD ended that did not fail.
enum End {
    /// The node was asked to stop.
    Asked,
    /// It was removed from the cluster.
    Removed,
}

fn joined(ended: Result<Result<End, NodeError>, tokio::task::JoinError>) -> Result<End, NodeError> {
    ended.unwrap_or_else(|error| Err(NodeError::Shard(error.to_string())))
}

/// Opens a drive, learns or makes its identity, and starts its shard.
async fn start_osd(
    config: &Config,
    path: PathBuf,
    cluster: &Cluster,
    maps: &watch::Receiver<Arc<ClusterMap>>,
    handshakes: &Handle,
) -> Result<OsdControl, NodeError> {
    let cluster_id = cluster.id().await?;
    let mut drive = Drive::open(&path, Use::Alone)?;
    drive.has_volatile_cache = config.volatile_cache.unwrap_or(drive.has_volatile_cache);
    let found = drive.osd()?;
    let uuid = if let Some(found) = found {
        if found.cluster != cluster_id {
            return Err(NodeError::OtherCluster { path, found: found.cluster, expected: cluster_id });
        }
        if cluster.osd_of(found.osd_uuid).await?.is_none() {
            return Err(NodeError::Removed { path, osd: found.osd });
        }
        found.osd_uuid
    } else {
        // A drive that was emptied by mistake, or is not the one that this path meant before, is no new OSD.
        if let Some(osd) = known_at(&path, config.node, cluster).await? {
            return Err(NodeError::Emptied { path, osd });
        }
        OsdUuid(uuid::Uuid::new_v4())
    };
    let id = cluster.register_osd(uuid, config.node, drive.bytes(), drive.class).await?;
    let shown = path.display().to_string();
    let (report_sender, mut reports) = mpsc::channel(QUEUE_LENGTH);
    let (commands, command_receiver) = mpsc::channel(QUEUE_LENGTH);
    let (ended_sender, mut ended) = oneshot::channel();
    let (dial_sender, dials) = mpsc::channel(QUEUE_LENGTH);
    let (listener, address) = listen(config.listen).map_err(|source| NodeError::Listen {
        osd: id,
        address: config.listen,
        source,
    })?;
    let shard_config = ShardConfig {
        drive,
        path: shown.clone(),
        identity: store::Identity { cluster: cluster_id, osd_uuid: uuid, osd: id },
        format: found.is_none(),
        spin_max: config.spin_max,
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
    let osd = tokio::select! {
        biased;
        Some(report) = reports.recv() => match report {
            Report::Ready { waker } => {
                OsdControl { id, address, shard: ToShard { commands, waker }, reports, ended }
            }
            report => return Err(NodeError::Shard(format!("{id} spoke before it was ready: {report:?}"))),
        },
        result = &mut ended => return Err(NodeError::Shard(match result {
            Ok(Err(error)) => error,
            _ => format!("{id} ended before it was ready"),
        })),
    };
    let switchboard = Switchboard {
        osd: id,
        identity: config.identity.clone(),
        maps: maps.clone(),
        shard: osd.shard.clone(),
        refusals: Refusals::default(),
    };
    handshakes.spawn(switchboard.run(listener, dials));
    // Only now: a drive that was not formatted in the end holds nothing that could be missed.
    cluster.note_drive(id, &shown).await?;
    Ok(osd)
}

/// Listens on a port that is free.
fn listen(ip: IpAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind((ip, 0))?;
    // Of the default queue of 128, a burst of clients overflows into retransmissions a second apart.
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::MAXCONN)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

/// The OSD of this node whose drive was at that path when it was started last.
async fn known_at(path: &Path, node: NodeId, cluster: &Cluster) -> Result<Option<OsdId>, NodeError> {
    let (map, shown) = (cluster.map().await?, path.display().to_string());
    let is_here = |osd: &OsdId| map.osds.get(osd).is_some_and(|info| info.node == node);
    let mut drives = cluster.drives().await?.into_iter();
    Ok(drives.find(|(osd, drive)| *drive == shown && is_here(osd)).map(|(osd, _)| osd))
}

async fn control_osd(
    mut osd: OsdControl,
    cluster: Cluster,
    mut maps: watch::Receiver<Arc<ClusterMap>>,
    mut wishes: ScrubWishes,
    board: Board,
    mut stop: watch::Receiver<bool>,
) -> Result<End, NodeError> {
    // Before it is announced, so that it knows who calls it at once.
    let _ = tokio::time::timeout(MAP_LIMIT, maps.wait_for(|map| map.osds.contains_key(&osd.id))).await;
    let map = maps.borrow_and_update().clone();
    let mut is_known = map.osds.contains_key(&osd.id);
    if is_known {
        osd.shard.tell(Command::Map(map)).await;
    }
    let end;
    // None once its drive has failed: it is down from then on.
    let mut lease = Some(announce(&osd, &cluster).await?);
    let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut scrubs = Scrubs::new();
    let mut look = tokio::time::interval(scrubbing::LOOK_EVERY);
    let mut scrubs_are_due = false;
    let mut status: Option<OsdStatus> = None;
    loop {
        tokio::select! {
            Some(report) = osd.reports.recv() => match report {
                Report::Propose(proposal) => {
                    tokio::spawn(propose(&osd, cluster.clone(), maps.clone(), proposal));
                }
                Report::Tally(tally) => board.note_figures(osd.id, *tally),
                Report::Status(new) => {
                    board.note_status(osd.id, &new);
                    status = Some(*new);
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
                match map.osds.contains_key(&osd.id) {
                    true => {
                        is_known = true;
                        osd.shard.tell(Command::Map(map)).await;
                    }
                    false if is_known => {
                        tracing::info!(osd = %osd.id, "it was removed from the cluster, so it ends");
                        end = End::Removed;
                        break;
                    }
                    // The map from before it was registered.
                    false => {}
                }
            }
            _ = keep_alive.tick() => {
                if let Some(held) = lease {
                    lease = Some(renew(&osd, &cluster, held).await);
                }
            }
            result = &mut osd.ended => {
                return match result {
                    Ok(Err(error)) => Err(NodeError::Shard(error)),
                    _ => Err(NodeError::Shard(format!("{} ended", osd.id))),
                };
            }
            _ = stop.changed() => {
                end = End::Asked;
                break;
            }
        }
        if let Some(held) = lease
            && let Some(reason) = status.as_ref().and_then(|status| status.failure.as_ref())
            && withdraw(&osd, &cluster, held, reason).await
        {
            lease = None;
        }
        if scrubs_are_due && let Some(status) = &status {
            scrubs_are_due = false;
            let due = scrubs.due(&cluster, status).await;
            if !due.is_empty() {
                osd.shard.tell(Command::Scrub(due)).await;
            }
        }
    }
    osd.shard.tell(Command::Shutdown).await;
    let _ = (&mut osd.ended).await;
    board.forget(osd.id);
    if let Some(lease) = lease {
        // Gone at once instead of when the lease ends.
        let _ = cluster.registry().lease_revoke(lease).await;
    }
    Ok(end)
}

async fn announce(osd: &OsdControl, cluster: &Cluster) -> Result<LeaseId, NodeError> {
    let lease = cluster.registry().lease_grant(LEASE_TTL).await?;
    cluster.osd_up(osd.id, osd.address, lease.id).await?;
    tracing::info!(osd = %osd.id, address = %osd.address, "up");
    Ok(lease.id)
}

/// An OSD whose drive failed counts as down from now on, so that it is replaced in time; it goes on telling the manager why.
/// False while the registry is away.
async fn withdraw(osd: &OsdControl, cluster: &Cluster, lease: LeaseId, reason: &str) -> bool {
    match cluster.registry().lease_revoke(lease).await {
        Ok(()) | Err(RegistryError::LeaseNotFound { .. }) => {}
        Err(_) => return false,
    }
    tracing::error!(
        osd = %osd.id, reason,
        "the drive failed; the placement groups go on without this OSD, and `millpond status` says how to replace it"
    );
    true
}

/// Renews the lease, or announces the OSD again if it was lost. Answers the lease that it is up by.
async fn renew(osd: &OsdControl, cluster: &Cluster, lease: LeaseId) -> LeaseId {
    match cluster.registry().lease_keep_alive(lease).await {
        Ok(()) => lease,
        Err(RegistryError::LeaseNotFound { .. }) => announce(osd, cluster).await.unwrap_or(lease),
        Err(error) => {
            tracing::warn!(osd = %osd.id, %error, "the registry does not answer");
            lease
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
    mut maps: watch::Receiver<Arc<ClusterMap>>,
    Proposal { pg, expected, config, is_split }: Proposal,
) -> impl Future<Output = ()> + use<> {
    let (osd, shard) = (osd.id, osd.shard.clone());
    async move {
        let changed = match is_split {
            true => cluster.split_pg(pg, expected, config.clone()).await,
            false => cluster.change_pg(pg, expected, config.clone()).await,
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
    use base::Epoch;
    use base::map::PgConfig;
    use registry_embedded::EmbeddedRegistry;

    #[tokio::test]
    async fn an_epoch_that_was_claimed_begins_only_with_a_map_that_shows_it() {
        let scratch = tempfile::tempdir().unwrap();
        let id = base::ClusterId(uuid::Uuid::from_u128(1));
        let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let id = cluster
            .register_osd(OsdUuid(uuid::Uuid::from_u128(2)), NodeId(0), 1 << 30, base::map::DeviceClass::Ssd)
            .await
            .unwrap();
        let address: SocketAddr = ([127, 0, 0, 1], 7000).into();
        let lease = cluster.registry().lease_grant(LEASE_TTL).await.unwrap().id;
        cluster.osd_up(id, address, lease).await.unwrap();
        cluster.create_pool("default", 1, 1, 1).await.unwrap();
        let before = cluster.map().await.unwrap();
        let (pg, config) = before.pgs.first_key_value().map(|(pg, config)| (*pg, config.clone())).unwrap();
        let (commands, mut received) = mpsc::channel(4);
        let (_reports, reports) = mpsc::channel(4);
        let (_ended, ended) = oneshot::channel();
        let reactor = ring::Reactor::new(ring::ReactorOptions::default()).unwrap();
        let shard = ToShard { commands, waker: reactor.waker() };
        let osd = OsdControl { id, address, shard, reports, ended };
        let (maps, watched) = watch::channel(Arc::new(before));
        let next = PgConfig { epoch: Epoch(config.epoch.0 + 1), ..config.clone() };
        let proposal = Proposal { pg, expected: config.epoch, config: next.clone(), is_split: false };
        let proposing = tokio::spawn(propose(&osd, cluster.clone(), watched, proposal));
        // Claimed, and the watch is late.
        while cluster.map().await.unwrap().pgs[&pg] != next {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(received.try_recv().is_err(), "the shard was told before it had the map");
        maps.send_replace(Arc::new(cluster.map().await.unwrap()));
        proposing.await.unwrap();
        assert!(matches!(received.recv().await, Some(Command::Map(map)) if map.pgs[&pg] == next));
        let told = received.recv().await;
        assert!(matches!(told, Some(Command::Proposal { accepted: Some(config), .. }) if config == next));
    }
}
