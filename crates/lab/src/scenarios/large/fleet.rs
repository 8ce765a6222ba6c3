//! Nodes that exist only as far as the cluster's state and the manager can tell: OSDs in the registry, leases that are kept
//! alive, and statuses that change as under load. They have neither drives nor clients.

use crate::scenarios::say;
use anyhow::Context;
use api::board::Board;
use auth::{Identity, SecretKey};
use base::map::{ClusterMap, DeviceClass, FailureDomain, NodeInfo, PlacementRule, PoolInfo};
use base::status::{OsdStatus, PgState, PgStatus};
use base::{Access, NodeId, OsdId, OsdUuid, PgId, Principal};
use cluster::Cluster;
use manager::log::ProcessLog;
use node::ToManager;
use registry::{LeaseId, Registry};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Bytes of each simulated drive.
const DRIVE_BYTES: u64 = 4 << 40;
/// Longer than a node's leases, so that a busy moment of this machine is no failure of a node; kept alive as often.
const LEASE_TTL: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// How often the status of an OSD changes under load.
const CHANGE_EVERY: Duration = Duration::from_secs(2);
/// Requests to the registry at a time.
const CONCURRENT: usize = 64;
/// The pool of the simulated OSDs. Those of the real nodes are of another class.
pub const POOL: &str = "large";
const CLASS: DeviceClass = DeviceClass::Nvme;

/// How large it is.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Size {
    /// Simulated nodes
    #[arg(long, value_name = "COUNT", default_value_t = 581)]
    nodes: u32,

    /// Simulated OSDs of each
    #[arg(long, value_name = "COUNT", default_value_t = 14)]
    osds_per_node: u32,

    /// Placement groups on them
    #[arg(long, value_name = "COUNT", default_value_t = 65536)]
    pub groups: u32,
}

impl Size {
    /// All simulated OSDs.
    #[must_use]
    pub fn osds(&self) -> u32 {
        self.nodes * self.osds_per_node
    }
}

struct SimulatedNode {
    id: NodeId,
    identity: Identity,
    osds: Vec<(OsdId, LeaseId)>,
}

/// The simulated nodes; they live until it is dropped.
pub struct Fleet {
    nodes: Vec<SimulatedNode>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// Puts the nodes, their OSDs and the pool into the registry.
    ///
    /// # Errors
    /// The registry does not answer, or they cannot be placed.
    pub async fn register(cluster: &Cluster, size: Size) -> anyhow::Result<Fleet> {
        say(&format!("registering {} simulated OSDs on {} nodes", size.osds(), size.nodes));
        let mut nodes = Vec::new();
        for index in 0..size.nodes {
            let id =
                cluster.new_node(&NodeInfo { host: format!("sim{index}"), ..NodeInfo::default() }).await?;
            let key = SecretKey::generate()?;
            let principal = Principal::new(key.public(), Access::Node(id));
            cluster.put_principal(&id.to_string(), &principal).await?;
            let mut osds = Vec::new();
            for _ in 0..size.osds_per_node {
                let uuid = OsdUuid(uuid::Uuid::new_v4());
                osds.push((cluster.register_osd(uuid, id, DRIVE_BYTES, CLASS).await?, uuid));
            }
            nodes.push((id, Identity::new(&key), osds));
        }
        say("announcing them");
        let mut announced = Vec::new();
        let places = Arc::new(Semaphore::new(CONCURRENT));
        for (id, identity, osds) in nodes {
            let mut announcing = JoinSet::new();
            for (osd, uuid) in osds {
                let (cluster, places) = (cluster.clone(), places.clone());
                announcing.spawn(async move {
                    let _place = places.acquire_owned().await?;
                    let lease = cluster.registry().lease_grant(LEASE_TTL).await?.id;
                    cluster.osd_up(osd, address_of(osd), lease).await?;
                    cluster.note_drive(osd, uuid, &format!("/dev/simulated{}", osd.0)).await?;
                    anyhow::Ok((osd, lease))
                });
            }
            let mut osds = Vec::new();
            while let Some(done) = announcing.join_next().await {
                osds.push(done??);
            }
            announced.push(SimulatedNode { id, identity, osds });
        }
        let mut fleet = Fleet { nodes: announced, tasks: JoinSet::new() };
        for node in &fleet.nodes {
            let leases = node.osds.iter().map(|(_, lease)| *lease).collect();
            fleet.tasks.spawn(keep_alive(cluster.registry().clone(), leases));
        }
        say(&format!("placing {} groups on them", size.groups));
        let rule = PlacementRule { failure_domain: FailureDomain::Host, device_class: Some(CLASS) };
        let pool = PoolInfo {
            name: POOL.to_owned(),
            size: 3,
            min_size: 2,
            pg_count: size.groups,
            rule,
            ..PoolInfo::default()
        };
        let making = cluster.clone();
        // Placement computes for seconds, and the leases are kept alive meanwhile.
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(making.create_pool_by(&pool))).await??;
        Ok(fleet)
    }

    /// Has each node tell the manager how its OSDs are, and change that every two seconds.
    ///
    /// # Errors
    /// The map is not kept current.
    pub async fn report(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let mut maps = cluster.watch_map();
        let shown = maps.wait_for(|map| map.pool_named(POOL).is_some()).await;
        let map = shown.context("the map is not kept current")?.clone();
        let led = groups_led(&map);
        let manager = cluster.watch_manager();
        let changes = watch::Sender::new(0u64);
        for node in &self.nodes {
            let board = Board::default();
            let statuses: Vec<(OsdId, OsdStatus)> =
                node.osds.iter().map(|(osd, _)| (*osd, status_of(*osd, &map, led.get(osd)))).collect();
            let to =
                ToManager { identity: node.identity.clone(), maps: maps.clone(), manager: manager.clone() };
            self.tasks.spawn(change(statuses, board.clone(), changes.subscribe()));
            self.tasks.spawn(node::report(node.id, cluster.clone(), to, board, ProcessLog::default()));
        }
        self.tasks.spawn(async move {
            loop {
                changes.send_modify(|round| *round += 1);
                tokio::time::sleep(CHANGE_EVERY).await;
            }
        });
        Ok(())
    }
}

/// An address that nobody has.
fn address_of(osd: OsdId) -> SocketAddr {
    ([127, 77, (osd.0 >> 8) as u8, osd.0 as u8], 6800).into()
}

fn groups_led(map: &ClusterMap) -> BTreeMap<OsdId, Vec<PgId>> {
    let mut led: BTreeMap<OsdId, Vec<PgId>> = BTreeMap::new();
    for (pg, config) in &map.pgs {
        led.entry(config.primary).or_default().push(*pg);
    }
    led
}

/// What an OSD under load tells.
fn status_of(osd: OsdId, map: &ClusterMap, led: Option<&Vec<PgId>>) -> OsdStatus {
    let group = |pg: &PgId| {
        let config = &map.pgs[pg];
        let state = PgState::Active;
        let (epoch, in_sync) = (config.epoch, config.in_sync.clone());
        let (cut_through, flatten) = Default::default();
        (*pg, PgStatus { epoch, state, in_sync, objects: 9000, recovery: None, cut_through, flatten })
    };
    OsdStatus {
        used_bytes: DRIVE_BYTES / 3,
        usable_bytes: DRIVE_BYTES / 100 * 88,
        pgs: led.into_iter().flatten().map(group).collect(),
        write_amplification: 1.7,
        index_bytes: 3 << 30,
        path: format!("/dev/simulated{}", osd.0),
        pid: std::process::id(),
        ..OsdStatus::default()
    }
}

/// Changes what OSDs under load change: space, and the objects of some of their groups.
async fn change(mut statuses: Vec<(OsdId, OsdStatus)>, board: Board, mut rounds: watch::Receiver<u64>) {
    loop {
        for (osd, status) in &mut statuses {
            status.used_bytes += 4096;
            status.write_amplification += 1e-6;
            if let Some(group) = status.pgs.values_mut().next() {
                group.objects += 1;
            }
            board.note_status(*osd, status);
        }
        if rounds.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps leases alive as often as a node does, spread over the time.
async fn keep_alive(registry: Arc<dyn Registry>, leases: Vec<LeaseId>) {
    let pause = KEEP_ALIVE / u32::try_from(leases.len()).unwrap_or(1).max(1);
    loop {
        for lease in &leases {
            // One that fails is tried again in two seconds, and the lease lives far longer.
            let _ = registry.lease_keep_alive(*lease).await;
            tokio::time::sleep(pause).await;
        }
    }
}
