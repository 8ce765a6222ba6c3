//! The control side of a node: registers its OSDs, keeps their leases, carries maps down and proposals up.

use crate::device::{Drive, DriveError};
use crate::shard::{self, Command, Report, ShardConfig};
use base::map::{ClusterMap, PgConfig};
use base::{Epoch, NodeId, OsdId, OsdUuid, PgId};
use registry::cluster::{Cluster, ClusterError, OsdStatus};
use registry::{LeaseId, RegistryError, RemoteRegistry};
use ring::Waker;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{Device, Identity};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// How long an OSD counts as up without a sign of life.
const LEASE_TTL: Duration = Duration::from_secs(6);
/// How often a sign of life is given.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// The longest queue between a shard and the control side.
const QUEUE_LENGTH: usize = 256;
/// How long one request to the registry may wait for it.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node.
    pub node: NodeId,
    /// The socket that serves the registry.
    pub registry: PathBuf,
    /// The drives of its OSDs.
    pub osds: Vec<PathBuf>,
    /// Whether the drives have volatile write caches, where what the kernel says is to be overridden.
    pub volatile_cache: Option<bool>,
    /// The longest a shard polls before it sleeps, when it was busy a moment ago.
    pub spin_max: Duration,
}

/// Why a node cannot start or go on.
#[derive(thiserror::Error, Debug)]
pub enum NodeError {
    /// A drive cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A drive's superblocks say what cannot be.
    #[error("{path}: {source}")]
    Superblock {
        /// The drive.
        path: PathBuf,
        /// What is wrong.
        source: store::OpenError,
    },
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
    /// The cluster state cannot be read or changed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
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

/// Runs a node until SIGTERM or SIGINT, or until one of its OSDs fails.
///
/// # Errors
/// When it cannot start, or an OSD cannot go on.
pub fn run(config: Config) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| NodeError::System { what: "starting the control thread", source })?;
    runtime.block_on(serve(config))
}

/// One OSD as the control side sees it.
struct OsdControl {
    id: OsdId,
    address: SocketAddr,
    waker: Waker,
    commands: mpsc::Sender<Command>,
    reports: mpsc::Receiver<Report>,
    ended: oneshot::Receiver<Result<(), String>>,
}

async fn serve(config: Config) -> Result<(), NodeError> {
    let signals =
        |kind| signal(kind).map_err(|source| NodeError::System { what: "listening for signals", source });
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let registry = RemoteRegistry::connect(&config.registry, REGISTRY_TIMEOUT).await?;
    let cluster = Cluster::new(Arc::new(registry));
    let mut osds = Vec::new();
    for path in &config.osds {
        osds.push(start_osd(&config, path.clone(), &cluster).await?);
    }
    let stop = tokio::sync::watch::Sender::new(false);
    let mut tasks = tokio::task::JoinSet::new();
    for osd in osds {
        tasks.spawn(control_osd(osd, cluster.clone(), stop.subscribe()));
    }
    let mut outcome = Ok(());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        Some(ended) = tasks.join_next() => outcome = ended.unwrap_or_else(|error| Err(NodeError::Shard(error.to_string()))),
    }
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(ended.unwrap_or_else(|error| Err(NodeError::Shard(error.to_string()))));
    }
    outcome
}

/// Opens a drive, learns or makes its identity, and starts its shard.
async fn start_osd(config: &Config, path: PathBuf, cluster: &Cluster) -> Result<OsdControl, NodeError> {
    let cluster_id = cluster.id().await?;
    let mut drive = Drive::open(&path, config.volatile_cache)?;
    let is_blank = drive.is_blank()?;
    let uuid = if is_blank {
        OsdUuid(uuid::Uuid::new_v4())
    } else {
        let found = store::identify(&mut drive)
            .map_err(|source| NodeError::Superblock { path: path.clone(), source })?
            .ok_or_else(|| DriveError::NotBlank { path: path.clone() })?;
        if found.cluster != cluster_id {
            return Err(NodeError::OtherCluster { path, found: found.cluster, expected: cluster_id });
        }
        found.osd_uuid
    };
    let id = cluster.register_osd(uuid, config.node, drive.bytes()).await?;
    let (report_sender, mut reports) = mpsc::channel(QUEUE_LENGTH);
    let (commands, command_receiver) = mpsc::channel(QUEUE_LENGTH);
    let (ended_sender, mut ended) = oneshot::channel();
    let shard_config = ShardConfig {
        drive,
        path: path.display().to_string(),
        identity: Identity { cluster: cluster_id, osd_uuid: uuid, osd: id },
        format: is_blank,
        spin_max: config.spin_max,
    };
    std::thread::Builder::new()
        .name(shard::thread_name(id))
        .spawn(move || {
            let result = shard::run(shard_config, report_sender, command_receiver);
            // Nobody listens any more only when the node is stopping.
            let _ = ended_sender.send(result);
        })
        .map_err(|source| NodeError::System { what: "starting an OSD's thread", source })?;
    tokio::select! {
        biased;
        Some(report) = reports.recv() => match report {
            Report::Ready { address, waker } => Ok(OsdControl { id, address, waker, commands, reports, ended }),
            report => Err(NodeError::Shard(format!("{id} spoke before it was ready: {report:?}"))),
        },
        result = &mut ended => Err(NodeError::Shard(match result {
            Ok(Err(error)) => error,
            _ => format!("{id} ended before it was ready"),
        })),
    }
}

async fn control_osd(
    mut osd: OsdControl,
    cluster: Cluster,
    mut stop: tokio::sync::watch::Receiver<bool>,
) -> Result<(), NodeError> {
    let mut maps = cluster.watch_map();
    let mut lease = announce(&osd, &cluster).await?;
    let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut status: Option<OsdStatus> = None;
    let mut status_is_due = false;
    loop {
        tokio::select! {
            Some(report) = osd.reports.recv() => match report {
                Report::Propose { pg, expected, config } => {
                    tokio::spawn(propose(osd.id, cluster.clone(), pg, expected, config, osd.commands.clone(), osd.waker.clone()));
                }
                Report::Status(new) => {
                    status = Some(*new);
                    status_is_due = true;
                }
                Report::Ready { .. } => {}
            },
            Ok(()) = maps.changed() => {
                let map: Arc<ClusterMap> = maps.borrow_and_update().clone();
                // The first value is empty: nothing was read yet.
                if map.revision > 0 {
                    command(&osd, Command::Map(map)).await;
                }
            }
            _ = keep_alive.tick() => {
                if let Some(renewed) = renew(&osd, &cluster, lease).await {
                    lease = renewed;
                    status_is_due = true;
                }
            }
            result = &mut osd.ended => {
                return match result {
                    Ok(Err(error)) => Err(NodeError::Shard(error)),
                    _ => Err(NodeError::Shard(format!("{} ended", osd.id))),
                };
            }
            _ = stop.changed() => break,
        }
        if status_is_due && let Some(status) = &status {
            // While the registry is away figures are stale, nothing more; the next change tries again.
            status_is_due = cluster.publish_osd_status(osd.id, lease, status).await.is_err();
        }
    }
    command(&osd, Command::Shutdown).await;
    let _ = (&mut osd.ended).await;
    // Gone at once instead of when the lease ends.
    let _ = cluster.registry().lease_revoke(lease).await;
    Ok(())
}

async fn command(osd: &OsdControl, command: Command) {
    // It fails only when the shard has ended, which is noticed elsewhere.
    if osd.commands.send(command).await.is_ok() {
        osd.waker.wake();
    }
}

async fn announce(osd: &OsdControl, cluster: &Cluster) -> Result<LeaseId, NodeError> {
    let lease = cluster.registry().lease_grant(LEASE_TTL).await?;
    cluster.osd_up(osd.id, osd.address, lease.id).await?;
    tracing::info!(osd = %osd.id, address = %osd.address, "up");
    Ok(lease.id)
}

/// Renews the lease. Answers a new one if the old was lost and the OSD announced again.
async fn renew(osd: &OsdControl, cluster: &Cluster, lease: LeaseId) -> Option<LeaseId> {
    match cluster.registry().lease_keep_alive(lease).await {
        Ok(_) => None,
        Err(RegistryError::LeaseNotFound { .. }) => announce(osd, cluster).await.ok(),
        Err(error) => {
            tracing::warn!(osd = %osd.id, %error, "the registry does not answer");
            None
        }
    }
}

/// Carries a proposal to the registry and tells the shard what came of it.
async fn propose(
    osd: OsdId,
    cluster: Cluster,
    pg: PgId,
    expected: Epoch,
    config: PgConfig,
    commands: mpsc::Sender<Command>,
    waker: Waker,
) {
    let accepted = match cluster.change_pg(pg, expected, config.clone()).await {
        Ok(true) => Some(config.clone()),
        Ok(false) => None,
        Err(error) => {
            tracing::warn!(%osd, %pg, %error, "a new epoch could not be claimed");
            None
        }
    };
    let accepted = match accepted {
        Some(config) => Some(config),
        // The answer to an earlier attempt may have been lost: whoever is primary claims, and nobody else.
        None => cluster
            .map()
            .await
            .ok()
            .and_then(|map| map.pgs.get(&pg).cloned())
            .filter(|found| *found == config),
    };
    if commands.send(Command::Proposal { pg, accepted }).await.is_ok() {
        waker.wake();
    }
}
