//! The control side of a node: it starts the OSDs on its drives, and serves the rest of the cluster beside them, until it is
//! asked to stop. An OSD that was removed from the cluster ends, and one that cannot be started is waited for; the others of
//! its node go on.

use crate::attendance::Attendance;
use crate::bay::{Bays, Surroundings};
use crate::client_port::ClientService;
use crate::error::NodeError;
use crate::location::Location;
use api::board::Board;
use auth::Identity;
use base::map::ClusterMap;
use base::{Access, NodeId, Principal};
use cluster::{Cluster, ScrubWishes};
use manager::log::ProcessLog;
use registry::Connect;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How long what was asked of a drive, or of the registry's file, is waited for in the end.
const BLOCKED_MAX: Duration = Duration::from_secs(2);
/// The pause before it is told again where the node is reached.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(5);

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
    /// The addresses of this machine at which it is reached, each on the same ports; the one that is preferred first. One at
    /// least.
    pub listen: Vec<IpAddr>,
    /// The port of these addresses on which clients are served the registry, if they are.
    pub client_port: Option<u16>,
    /// What the process logs, so that the manager is told.
    pub log: ProcessLog,
}

/// Runs a node until SIGTERM or SIGINT, until all of its OSDs were removed, or until one of them fails with a drive that is
/// sound.
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
    // A drive that does not answer may be waited for still.
    runtime.shutdown_timeout(BLOCKED_MAX);
    outcome
}

async fn serve(config: Config, handshakes: &Handle) -> Result<(), NodeError> {
    let signals =
        |kind| signal(kind).map_err(|source| NodeError::System { what: "listening for signals", source });
    let signals = [signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?];
    let cluster = Cluster::new(config.registry.connect().await?);
    // Before a drive is touched.
    config.check_key(&cluster.map().await?)?;
    // From the start, so that who calls an OSD as soon as it is announced is known to it.
    let maps = cluster.watch_map();
    let board = Board::default();
    let around = Arc::new(Surroundings {
        node: config.node,
        identity: config.identity.clone(),
        volatile_cache: config.volatile_cache,
        spin_max: config.spin_max,
        listen: config.listen.clone(),
        cluster: cluster.clone(),
        maps: maps.clone(),
        wishes: ScrubWishes::watch(&cluster),
        board: board.clone(),
        handshakes: handshakes.clone(),
    });
    let stop = watch::Sender::new(false);
    let attendance = Attendance {
        node: config.node,
        identity: config.identity.clone(),
        cluster,
        asked: Cluster::new(config.registry.connect().await?),
        maps,
        listen: config.listen.clone(),
        board,
        log: config.log.clone(),
    };
    // Before the drives are opened, which takes a while: meanwhile it is settled who manages the cluster.
    let attending = attendance.begin(&stop.subscribe()).await;
    let mut attending = attending.map_err(|source| NodeError::Port { node: config.node, source })?;
    let outcome = serve_drives(&config, &around, &stop, signals).await;
    // They end by the same wish; only their leases are given back.
    stop.send_replace(true);
    while attending.join_next().await.is_some() {}
    outcome
}

/// Starts the OSDs, and keeps them until all have ended, or the node is to.
async fn serve_drives(
    config: &Config,
    around: &Arc<Surroundings>,
    stop: &watch::Sender<bool>,
    [mut terminate, mut interrupt]: [Signal; 2],
) -> Result<(), NodeError> {
    let mut bays = Bays::start(around, &config.osds, stop.subscribe()).await?;
    let clients = config.serve_clients();
    let client_port = clients.as_ref().map(ClientService::address);
    // Where it was to serve and cannot, another process of the node may.
    let client_port = Some(client_port).filter(|port| port.is_some() || config.client_port.is_none());
    tokio::spawn(announce(config.node, around.cluster.clone(), client_port, config.other_addresses()));
    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        stranger = loses_its_key(config, around.maps.clone()) => Err(stranger),
        kept = bays.keep() => kept,
    };
    drop(clients);
    stop.send_replace(true);
    outcome.and(bays.end().await)
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
        let (node, port) = (self.node, self.client_port?);
        let service =
            ClientService::start(node, self.registry.clone(), self.identity.clone(), &self.listen, port);
        service
            .inspect_err(|error| {
                tracing::warn!(
                    %node, port, %error,
                    "clients without another way to the registry are not served here; free that port, or name another as \
                     node.client_port"
                );
            })
            .ok()
    }

    /// All addresses of the node, if it is reached at others than the one that its ports name.
    fn other_addresses(&self) -> Vec<IpAddr> {
        if self.listen.len() > 1 { self.listen.clone() } else { Vec::new() }
    }
}

/// Tells the cluster where a node is reached and serves clients, as soon as the registry takes it. Without a client port
/// nothing is said of that.
async fn announce(
    node: NodeId,
    cluster: Cluster,
    client_port: Option<Option<SocketAddr>>,
    addresses: Vec<IpAddr>,
) {
    loop {
        let changed = cluster.change_node(node, |info| {
            info.addresses.clone_from(&addresses);
            info.client_port = client_port.unwrap_or(info.client_port);
        });
        match changed.await {
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%node, %error, "others are not told where this node is reached; trying again");
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
