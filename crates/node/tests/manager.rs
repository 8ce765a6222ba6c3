//! Processes that tell whoever manages the cluster how their OSDs are, over real connections.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use api::board::Board;
use api::http::{Answer, REPORTS_PATH};
use auth::{Identity, SecretKey};
use base::map::{ClusterMap, DeviceClass};
use base::status::{OsdStatus, PgState, PgStatus};
use base::{Access, ClusterId, Encryption, NodeId, OsdId, OsdUuid, Permission, PoolId, Principal};
use cluster::Cluster;
use manager::log::ProcessLog;
use node::{Attendance, ManagerLink};
use registry_embedded::EmbeddedRegistry;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(30);

/// A node's process without OSDs.
struct Process {
    board: Board,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

struct Scene {
    cluster: Cluster,
    processes: BTreeMap<NodeId, Process>,
    keys: BTreeMap<&'static str, Identity>,
    _scratch: tempfile::TempDir,
}

impl Scene {
    /// A cluster of two nodes with one OSD each, which are up and tell that their groups are active.
    async fn new() -> Scene {
        let scratch = tempfile::tempdir().unwrap();
        let id = ClusterId(uuid::Uuid::from_u128(1));
        let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
        for node in 0..2 {
            let uuid = OsdUuid(uuid::Uuid::from_u128(u128::from(node) + 2));
            let osd = cluster.register_osd(uuid, NodeId(node), 1 << 30, DeviceClass::Ssd).await.unwrap();
            cluster.osd_up(osd, ([127, 0, 0, 1], 7000 + node as u16).into(), lease).await.unwrap();
        }
        let pool = cluster.create_pool("default", 2, 1, 16).await.unwrap();
        let mut keys = BTreeMap::new();
        let pools = Access::Pools([(pool, Permission::ReadWrite)].into());
        for (name, access) in [
            ("node.0", Access::Node(NodeId(0))),
            ("node.1", Access::Node(NodeId(1))),
            ("owner", Access::Admin),
            ("client", pools),
        ] {
            let key = SecretKey::generate().unwrap();
            cluster.add_principal(name, &Principal::new(key.public(), access)).await.unwrap();
            keys.insert(name, Identity::new(&key));
        }
        let mut scene = Scene { cluster, processes: BTreeMap::new(), keys, _scratch: scratch };
        for node in 0..2 {
            scene.start(NodeId(node)).await;
        }
        scene
    }

    async fn start(&mut self, node: NodeId) {
        self.start_at(node, vec![HERE]).await;
    }

    async fn start_at(&mut self, node: NodeId, listen: Vec<IpAddr>) {
        let (board, stop) = (Board::default(), watch::Sender::new(false));
        board.note_status(OsdId(node.0), &self.status(OsdId(node.0)).await);
        let attendance = Attendance {
            node,
            identity: self.keys[if node.0 == 0 { "node.0" } else { "node.1" }].clone(),
            cluster: self.cluster.clone(),
            asked: self.cluster.clone(),
            maps: self.cluster.watch_map(),
            listen,
            board: board.clone(),
            log: ProcessLog::default(),
        };
        let tasks = attendance.begin(&stop.subscribe()).await.unwrap();
        self.processes.insert(node, Process { board, stop, tasks });
    }

    async fn stop(&mut self, node: NodeId) {
        let mut process = self.processes.remove(&node).unwrap();
        process.stop.send_replace(true);
        while process.tasks.join_next().await.is_some() {}
    }

    /// That all of its groups are active.
    async fn status(&self, osd: OsdId) -> OsdStatus {
        let map = self.cluster.map().await.unwrap();
        let led = map.pgs.iter().filter(|(_, config)| config.primary == osd);
        let pgs = led.map(|(pg, config)| {
            let in_sync = config.in_sync.clone();
            let state = PgState::Active;
            let (epoch, cut_through) = (config.epoch, Default::default());
            (
                *pg,
                PgStatus {
                    epoch,
                    state,
                    in_sync,
                    objects: 0,
                    recovery: None,
                    cut_through,
                    flatten: Default::default(),
                },
            )
        });
        OsdStatus { usable_bytes: 1 << 30, pgs: pgs.collect(), ..OsdStatus::default() }
    }

    async fn connect(&self, who: &str) -> Result<ManagerLink, String> {
        let record = self.cluster.manager().await.unwrap().ok_or("nobody manages")?;
        let key = self.cluster.key_of_node(record.node).await.unwrap().unwrap();
        ManagerLink::connect(&self.keys[who], key, record.address.unwrap(), Encryption::Off).await
    }

    async fn ask(&self, path: &str) -> Result<Answer, String> {
        self.connect("owner").await?.get(path).await
    }

    /// Asks again and again until the answer is as it shall be.
    async fn see(&self, path: &str, what: &str, is_so: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            if let Ok(answer) = self.ask(path).await
                && let Ok(found) = serde_json::from_slice(&answer.body)
                && is_so(&found)
            {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "never seen at {path}: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn sees_all_active(&self) {
        let all = |pgs: &Value| {
            pgs.as_array().is_some_and(|pgs| pgs.len() == 16 && pgs.iter().all(|pg| pg["state"] == "active"))
        };
        self.see("/api/v1/pgs", "all groups are active", all).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_knows_of_all_osds_and_its_successor_is_told_anew() {
    let mut scene = Scene::new().await;
    scene.sees_all_active().await;
    // What changes is seen.
    let new = OsdStatus { used_bytes: 77, ..scene.status(OsdId(1)).await };
    scene.processes[&NodeId(1)].board.note_status(OsdId(1), &new);
    scene.see("/api/v1/osds", "77 bytes are used", |osds| osds[1]["used_bytes"] == 77).await;

    let first = scene.cluster.manager().await.unwrap().unwrap().node;
    let other = NodeId(1 - first.0);
    scene.stop(first).await;
    // The OSD of the one that ended is up by the registry, and nobody tells of it.
    let silent = |health: &Value| {
        let problems = health["problems"].as_array().into_iter().flatten();
        let named: Vec<&str> = problems
            .filter(|problem| problem["code"] == "NODE_SILENT")
            .filter_map(|problem| problem["what"].as_str())
            .collect();
        named.len() == 1 && named[0].starts_with(&first.to_string())
    };
    scene.see("/api/v1/health", "that node is silent", silent).await;
    assert_eq!(scene.cluster.manager().await.unwrap().unwrap().node, other);
    scene.start(first).await;
    scene.sees_all_active().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_pool_is_forgotten_when_the_last_osd_has_said_that_it_holds_nothing_of_it() {
    let scene = Scene::new().await;
    scene.sees_all_active().await;
    let mut maps = scene.cluster.watch_map();
    scene.cluster.remove_pool("default").await.unwrap();
    let says_so = |osd: u32| {
        let status = OsdStatus { cleared_pools: vec![PoolId(1)], ..OsdStatus::default() };
        scene.processes[&NodeId(osd)].board.note_status(OsdId(osd), &status);
    };
    says_so(1);
    let owed_by = |map: &ClusterMap| map.removed_pools.get(&PoolId(1)).map(|pool| pool.owed_by.clone());
    let is_left = maps.wait_for(|map| owed_by(map) == Some(vec![OsdId(0)]));
    drop(tokio::time::timeout(PATIENCE, is_left).await.expect("osd.1 is struck off").unwrap());
    says_so(0);
    let is_gone = maps.wait_for(|map| owed_by(map).is_none());
    drop(tokio::time::timeout(PATIENCE, is_gone).await.expect("nobody owes it anything").unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_business_with_the_manager_is_told_nothing_and_harms_nobody() {
    let scene = Scene::new().await;
    scene.sees_all_active().await;
    let record = scene.cluster.manager().await.unwrap().unwrap();
    let address = record.address.unwrap();
    let refused = scene.connect("client").await.err().unwrap();
    assert!(refused.contains("client may use volumes"), "{refused}");
    let stranger = Identity::new(&SecretKey::generate().unwrap());
    let key = scene.cluster.key_of_node(record.node).await.unwrap().unwrap();
    let refused = ManagerLink::connect(&stranger, key, address, Encryption::Off).await.err().unwrap();
    assert!(refused.contains("is not one of this cluster"), "{refused}");
    // Who asks takes nobody else for the manager.
    let refused = ManagerLink::connect(&scene.keys["owner"], stranger.public(), address, Encryption::Off)
        .await
        .err()
        .unwrap();
    assert!(refused.contains("is not who it should be"), "{refused}");
    for garbage in [&b"GET /api/v1/status HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0x16, 3, 1, 0xff, 0xff]] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        // Whether it is read to its end is the other side's affair.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        assert!(!String::from_utf8_lossy(&said).contains("HTTP"), "{said:?}");
    }
    // An owner asks, and tells nothing.
    let mut owner = scene.connect("owner").await.unwrap();
    let told = owner.post(REPORTS_PATH, "{}".into()).await.unwrap();
    assert_eq!(told.code.as_u16(), 403);
    // One key has so many connections and no more; those of others stand.
    let mut links = Vec::new();
    for _ in 0..64 {
        links.push(scene.connect("owner").await.unwrap());
    }
    let mut surplus = scene.connect("owner").await.unwrap();
    assert!(surplus.get("/api/v1/health").await.is_err());
    let mut node = scene.connect("node.0").await.unwrap();
    assert_eq!(node.get("/api/v1/health").await.unwrap().code.as_u16(), 200);
    drop((links, owner));
    // A key that is taken away opens nothing, on connections that stand neither.
    scene.cluster.remove_principal("node.0").await.unwrap();
    let began = Instant::now();
    while node.get("/api/v1/health").await.is_ok_and(|answer| answer.code.as_u16() == 200) {
        assert!(began.elapsed() < PATIENCE, "a key that was removed still opens the manager");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_reached_at_every_address_of_its_node_on_one_port_and_at_none_else() {
    let mut scene = Scene::new().await;
    let [other, another] = [2, 3].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
    for node in [NodeId(0), NodeId(1)] {
        scene.stop(node).await;
    }
    for node in [NodeId(0), NodeId(1)] {
        scene.start_at(node, vec![HERE, other]).await;
    }
    scene.sees_all_active().await;
    let record = scene.cluster.manager().await.unwrap().unwrap();
    let key = scene.cluster.key_of_node(record.node).await.unwrap().unwrap();
    let address = record.address.unwrap();
    assert_eq!(address.ip(), HERE, "the first is told");
    let reach = async |ip| {
        let place = SocketAddr::new(ip, address.port());
        let mut link = ManagerLink::connect(&scene.keys["owner"], key, place, Encryption::Off).await?;
        link.get("/api/v1/health").await.map(|answer| answer.code.as_u16())
    };
    assert_eq!((reach(HERE).await, reach(other).await), (Ok(200), Ok(200)));
    assert!(reach(another).await.is_err(), "nobody listens there");
}
