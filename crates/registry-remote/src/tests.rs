//! The two ends together: conformance, lost connections, what is refused, and peers that speak garbage.

use super::protocol::{
    CALL, CALL_BYTES_MAX, MAP, QUESTION_BYTES_MAX, SILENCE_MAX, WATCH, WatchQuestion, line,
};
use super::*;
use async_trait::async_trait;
use auth::{Identity, SecretKey};
use axum::Extension;
use base::map::{DeviceClass, NodeInfo};
use base::{Access, ClientId, ClusterId, Encryption, NodeId, OsdUuid, Permission, Principal, VolumeId};
use cluster::{
    Attach, Attachment, Attachments, ChangeVolumes, Changed, Clerk, Cluster, ClusterError, Detach, Grant,
    Identify, KeepAlive, Resume, Revoke, Visitor, VolumeChange, WantedSnapshot,
};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use registry::conformance;
use registry::implement::{Answer, Caller, Request, perform};
use registry::{DEFAULT_TIMEOUT, Endpoint, Endpoints, LeaseId, MemoryRegistry, RegistryError};
use registry::{Operation, Registry, Revision, Txn, Watch, WatchBatch};
use registry_embedded::EmbeddedRegistry;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

struct Served {
    directory: TempDir,
    registry: Arc<dyn Registry>,
    server: Option<SocketServer>,
}

impl Served {
    fn new() -> Served {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("registry.redb");
        let registry: Arc<dyn Registry> =
            Arc::new(EmbeddedRegistry::create(&file, ClusterId::default()).unwrap());
        let server = SocketServer::bind(&directory.path().join("registry.sock"), registry.clone()).unwrap();
        Served { directory, registry, server: Some(server) }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("registry.sock")
    }

    async fn client(&self) -> RemoteRegistry {
        RemoteRegistry::connect(&self.socket(), DEFAULT_TIMEOUT).await.unwrap()
    }

    async fn stop(&mut self) {
        self.server = None;
        // Its connections end when their tasks are next scheduled.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn start(&mut self) {
        self.server = Some(SocketServer::bind(&self.socket(), self.registry.clone()).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_over_the_socket_conforms() {
    conformance::run(|| async {
        let served = Served::new();
        let client: Arc<dyn Registry> = Arc::new(served.client().await);
        (client, served)
    })
    .await;
}

/// A node, and where it serves whoever comes by one clerk.
struct ServedByNode {
    endpoint: Endpoint,
    identity: Identity,
    task: JoinHandle<()>,
}

impl Drop for ServedByNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn identity() -> Identity {
    Identity::new(&SecretKey::generate().unwrap())
}

impl ServedByNode {
    async fn new(clerk: Clerk) -> ServedByNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity = identity();
        let endpoint = Endpoint { address: listener.local_addr().unwrap(), key: identity.public() };
        let own = identity.clone();
        let task = tokio::spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let accepted = own.accept(stream, Encryption::On, |_| Ok(())).await;
                let Ok((channel, ())) = accepted else { continue };
                let service = TowerToHyperService::new(router().layer(Extension(clerk.clone())));
                let stream = TokioIo::new(channel.into_stream());
                served.spawn(
                    async move { drop(http1::Builder::new().serve_connection(stream, service).await) },
                );
            }
        });
        ServedByNode { endpoint, identity, task }
    }

    async fn of_owner(registry: Arc<dyn Registry>) -> ServedByNode {
        ServedByNode::new(Clerk::of_owner(Cluster::new(registry))).await
    }

    /// Has the cluster map show it.
    async fn show(&self, cluster: &Cluster, number: u32) {
        let access = Access::Node(NodeId(number));
        let principal = Principal::new(self.identity.public(), access);
        cluster.put_principal(&format!("node.{number}"), &principal).await.unwrap();
        let info = NodeInfo { client_port: Some(self.endpoint.address), ..NodeInfo::default() };
        let info = serde_json::to_string(&info).unwrap();
        cluster.registry().put(&format!("millpond/map/node/{number}"), info.as_str().into()).await.unwrap();
    }

    /// Ends all connections, and takes no more.
    async fn stop(self) {
        drop(self);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    async fn desk(&self) -> Desk {
        desk_of(vec![self.endpoint]).await
    }

    /// A connection as a client has one that says what it likes, and all that is answered until the node ends it.
    async fn provoke(&self, bytes: &[u8]) -> String {
        let (key, address) = (self.endpoint.key, self.endpoint.address);
        let channel = auth::reach(&identity(), key, address, Encryption::On).await.unwrap();
        answer_to(channel.into_stream(), bytes).await
    }
}

async fn desk_of(endpoints: Vec<Endpoint>) -> Desk {
    DeskPlace::Nodes(Endpoints::new(endpoints).unwrap()).open(&identity()).await.unwrap()
}

/// A cluster with the volume `a`, and what it takes to serve a client that may write to that.
async fn cluster_and_client() -> (Cluster, Clerk) {
    let cluster = Cluster::new(Arc::new(MemoryRegistry::new()));
    cluster.create(ClusterId::default()).await.unwrap();
    cluster.register_osd(OsdUuid::default(), NodeId(0), 8 << 30, DeviceClass::Ssd).await.unwrap();
    cluster.create_pool("ours", 1, 1, 8).await.unwrap();
    cluster.create_volume("a", "ours", 1 << 30).await.unwrap();
    let pool = cluster.map().await.unwrap().pool_named("ours").unwrap().0;
    let access = Access::Pools([(pool, Permission::ReadWrite)].into());
    let principal = Principal::new(identity().public(), access);
    cluster.put_principal("host", &principal).await.unwrap();
    let clerk = Clerk::for_visitor(cluster.clone(), Arc::new(Visitor::new("host".into(), principal)));
    (cluster, clerk)
}

fn attach(number: u64, lease: LeaseId) -> Attach {
    let (volume, description) = ("a".to_owned(), "a test".to_owned());
    Attach {
        volume,
        client: ClientId(number),
        lease,
        shared: false,
        description,
        id: None,
        knows_layers: true,
        yields: false,
        renews: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_a_node_serves_conforms() {
    conformance::run(|| async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("registry.redb");
        let registry: Arc<dyn Registry> =
            Arc::new(EmbeddedRegistry::create(&file, ClusterId::default()).unwrap());
        let served = ServedByNode::of_owner(registry).await;
        let endpoints = Endpoints::new(vec![served.endpoint]).unwrap();
        let client =
            RemoteRegistry::connect_to_nodes(&endpoints, &identity(), DEFAULT_TIMEOUT).await.unwrap();
        let client: Arc<dyn Registry> = Arc::new(client);
        (client, (served, directory))
    })
    .await;
}

#[tokio::test]
async fn a_client_outlives_all_nodes_that_it_knew_at_first() {
    let (cluster, clerk) = cluster_and_client().await;
    let first = ServedByNode::new(clerk.clone()).await;
    let second = ServedByNode::new(clerk.clone()).await;
    let desk = first.desk().await;
    let mut maps = desk.watch_map();
    maps.wait_for(|map| map.volume_named("a").is_some()).await.unwrap();
    let lease = desk.ask(Grant { ttl: Duration::from_secs(10) }).await.unwrap();
    // It learns of another, once that is there.
    first.show(&cluster, 0).await;
    second.show(&cluster, 1).await;
    maps.wait_for(|map| endpoints(map).len() == 2).await.unwrap();
    first.stop().await;
    // Its lease is its own there too.
    desk.ask(KeepAlive { lease }).await.unwrap();
    let attached = desk.ask(attach(1, lease)).await.unwrap();
    maps.wait_for(|map| map.volumes[&attached.id].generation == attached.generation).await.unwrap();
    // And of a third, while the first is not there any more.
    let third = ServedByNode::new(clerk.clone()).await;
    third.show(&cluster, 2).await;
    maps.wait_for(|map| endpoints(map).len() == 3).await.unwrap();
    second.stop().await;
    cluster.create_volume("b", "ours", 1 << 30).await.unwrap();
    maps.wait_for(|map| map.volume_named("b").is_some()).await.unwrap();
    let Attachment { id: volume, client, generation, .. } = attached;
    assert!(desk.ask(Resume { volume, client, generation, lease }).await.unwrap());
    desk.ask(Detach { volume, client }).await.unwrap();
    assert_eq!(desk.ask(Attachments { volume }).await.unwrap(), []);
    assert_eq!(desk.map().await.unwrap(), cluster.map().await.unwrap());
}

/// What is wrong with a registry.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    /// It answers nobody, shows no changes, and does not say so.
    Lost,
    /// Of one request it says that nobody answered, and has done it.
    Forgetful,
    /// It has dropped what watches would show.
    Compacted,
}

/// A registry with a fault.
#[derive(Clone)]
struct Faulty {
    registry: Arc<dyn Registry>,
    fault: Arc<Mutex<Fault>>,
}

impl Faulty {
    fn of(cluster: &Cluster) -> Faulty {
        let (registry, fault) = (cluster.registry().clone(), Arc::new(Mutex::new(Fault::Nothing)));
        Faulty { registry, fault }
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn is(&self, fault: Fault) -> bool {
        *self.fault.lock().unwrap() == fault
    }

    async fn unless_lost(&self) {
        if self.is(Fault::Lost) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Caller for Faulty {
    fn place(&self) -> String {
        "a test".to_owned()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        self.unless_lost().await;
        let answer = perform(&*self.registry, request).await;
        if self.is(Fault::Forgetful) {
            self.set(Fault::Nothing);
            let reason = "it forgot".to_owned();
            return Err(RegistryError::Unreachable { registry: self.place(), waited_ms: 0, reason });
        }
        answer
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        self.unless_lost().await;
        Ok(Box::new(FaultyWatch(self.registry.watch(&prefix, start).await?, self.clone())))
    }
}

struct FaultyWatch(Box<dyn Watch>, Faulty);

#[async_trait]
impl Watch for FaultyWatch {
    fn position(&self) -> Revision {
        self.0.position()
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        if self.1.is(Fault::Compacted) {
            return Err(RegistryError::Compacted { asked: Revision(1), compacted: Revision(2) });
        }
        let next = self.0.next().await;
        self.1.unless_lost().await;
        next
    }
}

/// A cluster with two nodes, the first of them with such a registry, and a desk that knew only that one.
async fn cluster_and_faulty_node() -> (Cluster, Faulty, [ServedByNode; 2], Desk) {
    let (cluster, _) = cluster_and_client().await;
    let faulty = Faulty::of(&cluster);
    let first = ServedByNode::of_owner(Arc::new(faulty.clone())).await;
    let second = ServedByNode::of_owner(cluster.registry().clone()).await;
    first.show(&cluster, 0).await;
    second.show(&cluster, 1).await;
    let desk = first.desk().await;
    (cluster, faulty, [first, second], desk)
}

#[tokio::test]
async fn a_map_is_followed_elsewhere_when_its_node_loses_the_registry() {
    let (cluster, faulty, _nodes, desk) = cluster_and_faulty_node().await;
    let mut maps = desk.watch_map();
    maps.wait_for(|map| map.volume_named("a").is_some()).await.unwrap();
    faulty.set(Fault::Lost);
    cluster.create_volume("b", "ours", 1 << 30).await.unwrap();
    let shown = maps.wait_for(|map| map.volume_named("b").is_some());
    tokio::time::timeout(SILENCE_MAX * 10, shown).await.expect("it is shown").unwrap();
}

#[tokio::test]
async fn a_node_that_died_is_asked_once_however_many_connections_there_are() {
    let (_cluster, faulty, _nodes, desk) = cluster_and_faulty_node().await;
    let ask = || desk.ask(Identify {});
    let (a, b, c, d, e) = tokio::join!(ask(), ask(), ask(), ask(), ask());
    assert!([a, b, c, d, e].iter().all(Result::is_ok));
    // Which nodes there are.
    desk.map().await.unwrap();
    faulty.set(Fault::Lost);
    ask().await.unwrap();
}

#[tokio::test]
async fn who_reads_the_map_learns_of_the_nodes() {
    let (_cluster, _faulty, [first, _second], desk) = cluster_and_faulty_node().await;
    desk.map().await.unwrap();
    first.stop().await;
    desk.ask(Identify {}).await.unwrap();
}

#[tokio::test]
async fn a_lease_that_an_attempt_without_an_answer_ended_is_ended() {
    let (_cluster, faulty, [first, _second], _) = cluster_and_faulty_node().await;
    let endpoints = Endpoints::new(vec![first.endpoint]).unwrap();
    let client = RemoteRegistry::connect_to_nodes(&endpoints, &identity(), DEFAULT_TIMEOUT).await.unwrap();
    let lease = client.lease_grant(Duration::from_secs(60)).await.unwrap().id;
    faulty.set(Fault::Forgetful);
    assert_eq!(client.lease_revoke(lease).await, Ok(()));
    let error = client.lease_revoke(lease).await.unwrap_err();
    assert!(matches!(error, RegistryError::LeaseNotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_watch_tells_of_one_error_and_ends() {
    let (_cluster, faulty, [first, _second], _) = cluster_and_faulty_node().await;
    faulty.set(Fault::Compacted);
    let question = WatchQuestion { prefix: String::new(), start: Revision(0) };
    let bytes = post(WATCH, &line(&question));
    let answer = tokio::time::timeout(Duration::from_secs(20), first.provoke(&bytes)).await.expect("it ends");
    assert!(answer.matches("\"Err\"").count() == 1 && answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_node_with_another_key_is_none_of_the_cluster() {
    let served = ServedByNode::of_owner(Arc::new(MemoryRegistry::new())).await;
    let impostor = Endpoint { key: identity().public(), ..served.endpoint };
    let endpoints = Endpoints::new(vec![impostor]).unwrap();
    let connecting =
        RemoteRegistry::connect_to_nodes(&endpoints, &identity(), Duration::from_millis(500)).await;
    let error = connecting.err().unwrap().to_string();
    assert!(error.contains("not who it should be") && error.contains("auth ls"), "{error}");
}

#[tokio::test]
async fn the_registry_is_for_owners_and_nothing_of_it_is_read_or_changed_by_others() {
    let (cluster, clerk) = cluster_and_client().await;
    let served = ServedByNode::new(clerk).await;
    let before = cluster.registry().range("").await.unwrap();
    let endpoints = Endpoints::new(vec![served.endpoint]).unwrap();
    let refused = RemoteRegistry::connect_to_nodes(&endpoints, &identity(), DEFAULT_TIMEOUT).await;
    let refused = refused.err().unwrap();
    assert!(matches!(refused, RegistryError::Forbidden { .. }), "{refused}");
    assert!(refused.to_string().contains("host may not do that"), "{refused}");
    let key = || "millpond/settings".to_owned();
    let write = Operation::put(key(), "1");
    let requests = [
        Request::Get { key: key() },
        Request::Get { key: "millpond/map/cluster".to_owned() },
        Request::Range { prefix: String::new() },
        Request::Range { prefix: "millpond/map/".to_owned() },
        Request::Txn(Txn::new()),
        Request::Txn(Txn::new().then(Operation::range(""))),
        Request::Txn(Txn::new().then(write.clone())),
        Request::Txn(Txn::new().otherwise(write)),
        Request::LeaseGrant { ttl_ms: 10_000 },
        Request::LeaseKeepAlive { lease: LeaseId(1) },
        Request::LeaseRevoke { lease: LeaseId(1) },
        Request::Compact { revision: Revision(1) },
    ];
    for request in &requests {
        let answer = served.provoke(&post(CALL, &line(request))).await;
        assert!(answer.contains("\"forbidden\""), "{request:?}: {answer}");
    }
    for prefix in ["", "millpond/map/", "millpond/attached/"] {
        let question = WatchQuestion { prefix: prefix.to_owned(), start: Revision(0) };
        let answer = served.provoke(&post(WATCH, &line(&question))).await;
        assert!(answer.contains("\"forbidden\""), "{prefix}: {answer}");
    }
    assert_eq!(cluster.registry().range("").await.unwrap(), before);
}

#[tokio::test]
async fn what_is_too_large_or_makes_no_sense_is_refused_and_others_do_not_notice() {
    let (_, clerk) = cluster_and_client().await;
    let served = ServedByNode::new(clerk).await;
    let desk = served.desk().await;
    let long = vec![b' '; QUESTION_BYTES_MAX + 1];
    let flood: String = (0..1000).map(|number| format!("h{number}: x\r\n")).collect();
    let cases = [
        (post("/desk/1/identify", &long), "413"),
        (post("/desk/1/identify", b"7"), "422"),
        (post("/desk/1/identify", b"nul"), "400"),
        (post("/desk/1/attach", b"{}"), "422"),
        (post("/desk/1/burn", b"null"), "404"),
        (post("/desk/2/identify", b"null"), "404"),
        (b"GET /desk/1/identify HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), "405"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "404"),
        (format!("GET / HTTP/1.1\r\n{flood}\r\n").into_bytes(), "431"),
        (vec![b'x'; 1 << 20], ""),
    ];
    for (bytes, code) in cases {
        let answer = served.provoke(&bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        assert!(code.is_empty() || answer.starts_with(&format!("HTTP/1.1 {code}")), "{shown}: {answer}");
    }
    desk.ask(Identify {}).await.unwrap();
}

#[tokio::test]
async fn an_attach_whose_answer_is_lost_is_not_repeated_and_what_may_be_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = identity();
    let endpoint = Endpoint { address: listener.local_addr().unwrap(), key: node.public() };
    let (heard, mut questions) = tokio::sync::mpsc::unbounded_channel();
    // It hears a question, and dies.
    let deaf = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok((mut channel, ())) = node.accept(stream, Encryption::On, |_| Ok(())).await else {
                continue;
            };
            let mut said = Vec::new();
            while !String::from_utf8_lossy(&said).trim_end().ends_with('}') {
                if channel.receive(&mut said).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            heard.send(String::from_utf8_lossy(&said).into_owned()).unwrap();
        }
    });
    let desk = desk_of(vec![endpoint]).await;
    let error = desk.ask(attach(1, LeaseId(1))).await.unwrap_err();
    assert!(matches!(error, ClusterError::Registry(RegistryError::OutcomeUnknown { .. })), "{error}");
    assert!(questions.recv().await.unwrap().starts_with("POST /desk/1/attach "));
    let question = Attachments { volume: VolumeId(1) };
    let _ = tokio::time::timeout(Duration::from_secs(1), desk.ask(question)).await;
    for _ in 0..2 {
        assert!(questions.recv().await.unwrap().starts_with("POST /desk/1/attachments "));
    }
    deaf.abort();
}

#[tokio::test]
async fn only_the_owner_may_connect_and_a_second_server_is_refused() {
    let served = Served::new();
    let mode = std::fs::metadata(served.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = SocketServer::bind(&served.socket(), served.registry.clone()).err().unwrap();
    assert!(matches!(second, ServeError::InUse { .. }), "{second}");
    let file = served.directory.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let second = SocketServer::bind(&file, served.registry.clone()).err().unwrap();
    assert!(matches!(second, ServeError::NotASocket { .. }), "{second}");
    let long = served.directory.path().join("x".repeat(120));
    assert!(matches!(
        SocketServer::bind(&long, served.registry.clone()),
        Err(ServeError::PathTooLong { .. })
    ));
}

#[tokio::test]
async fn a_socket_left_by_a_dead_server_is_replaced() {
    let mut served = Served::new();
    served.stop().await;
    assert!(!served.socket().exists(), "a server that ends well removes its socket");
    drop(std::os::unix::net::UnixListener::bind(served.socket()).unwrap());
    assert!(served.socket().exists());
    served.start();
    served.client().await;
}

#[tokio::test]
async fn an_operation_waits_for_the_registry_and_then_says_how_to_start_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let error = RemoteRegistry::connect(&socket, Duration::from_millis(300)).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains("registry.sock") && text.contains("millpond up"), "{text}");

    let client = RemoteRegistry::new(&socket, Duration::from_secs(20));
    let waiting = tokio::spawn(async move { client.put("a", "1".into()).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let file = directory.path().join("registry.redb");
    let registry = Arc::new(EmbeddedRegistry::create(&file, ClusterId::default()).unwrap());
    let _server = SocketServer::bind(&socket, registry).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(Revision(1)));
}

#[tokio::test]
async fn watches_and_leases_survive_a_lost_connection() {
    let mut served = Served::new();
    let client = served.client().await;
    let lease = client.lease_grant(Duration::from_secs(60)).await.unwrap();
    client.txn(Txn::new().then(Operation::put_leased("key/a", "1", lease.id))).await.unwrap();
    let mut watch = client.watch("key/", Revision(1)).await.unwrap();
    let mut from_now = client.watch("key/", Revision(0)).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, Revision(1));
    for round in 0..3u64 {
        served.stop().await;
        let missed = served.registry.put("key/b", "x".into()).await.unwrap();
        served.start();
        client.lease_keep_alive(lease.id).await.unwrap();
        let seen = client.put("key/c", "x".into()).await.unwrap();
        for watch in [&mut watch, &mut from_now] {
            let mut shown = Vec::new();
            while shown.len() < 2 {
                let batch =
                    tokio::time::timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap();
                shown.extend(batch.events.iter().map(registry::Event::revision));
            }
            assert_eq!(shown, [missed, seen], "round {round}");
        }
    }
    assert!(client.get("key/a").await.unwrap().is_some());
}

#[tokio::test]
async fn a_watch_whose_history_went_while_disconnected_says_so() {
    let mut served = Served::new();
    let client = served.client().await;
    let mut watch = client.watch("", Revision(0)).await.unwrap();
    served.stop().await;
    let first = served.registry.put("a", "1".into()).await.unwrap();
    served.registry.put("a", "2".into()).await.unwrap();
    served.registry.compact(first).await.unwrap();
    served.start();
    let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.unwrap();
    assert_eq!(next, Err(RegistryError::Compacted { asked: first, compacted: first }));
}

#[tokio::test]
async fn a_watch_that_is_not_read_hurts_nobody_and_misses_nothing() {
    let served = Served::new();
    let client = served.client().await;
    let mut idle = client.watch("key", Revision(0)).await.unwrap();
    let value = "v".repeat(20_000);
    for _ in 0..400 {
        client.put("key", value.as_str().into()).await.unwrap();
    }
    let mut seen = 0;
    while seen < 400 {
        let batch = tokio::time::timeout(Duration::from_secs(20), idle.next()).await.unwrap().unwrap();
        for event in batch.events {
            seen += 1;
            assert_eq!(event.revision(), Revision(seen));
        }
    }
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_reported_as_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    // A server that takes the request, and dies.
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut taken = Vec::new();
            while !taken.ends_with(b"}\n") {
                if stream.read_buf(&mut taken).await.unwrap() == 0 {
                    break;
                }
            }
        }
    });
    let client = RemoteRegistry::new(&socket, Duration::from_millis(800));
    let error = client.put("a", "1".into()).await.unwrap_err();
    assert!(matches!(error, RegistryError::OutcomeUnknown { .. }), "{error}");
    let error = client.get("a").await.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
    server.abort();
}

#[tokio::test]
async fn volumes_are_changed_through_a_node_by_who_manages_them_and_what_is_to_be_done_next_is_understood() {
    let (cluster, writer) = cluster_and_client().await;
    let create = |name: &str| {
        let (name, pool) = (name.to_owned(), "ours".to_owned());
        ChangeVolumes { change: VolumeChange::Create { name, pool, bytes: 1 << 30, notes: BTreeMap::new() } }
    };
    let served = ServedByNode::new(writer).await;
    let refused = served.desk().await.ask(create("b")).await.unwrap_err();
    assert!(matches!(refused, ClusterError::Registry(RegistryError::Forbidden { .. })), "{refused}");
    let pool = cluster.map().await.unwrap().pool_named("ours").unwrap().0;
    let access = Access::Pools([(pool, Permission::Manage)].into());
    let principal = Principal::new(identity().public(), access);
    cluster.put_principal("host", &principal).await.unwrap();
    let manager = Clerk::for_visitor(cluster.clone(), Arc::new(Visitor::new("host".into(), principal)));
    let served = ServedByNode::new(manager).await;
    let desk = served.desk().await;
    let Changed::Volume(volume) = desk.ask(create("b")).await.unwrap() else { panic!("it is made") };
    assert_eq!(desk.map().await.unwrap().volume_named("b").unwrap().0, volume);
    let refused = desk.ask(create("b")).await.unwrap_err();
    assert!(matches!(&refused, ClusterError::VolumeExists { name } if name == "b"), "{refused}");
    let change = async |change| desk.ask(ChangeVolumes { change }).await;
    let resize = |bytes| VolumeChange::Resize { name: "b".to_owned(), bytes, allow_shrink: true };
    assert_eq!(change(resize(1 << 20)).await.unwrap(), Changed::Done);
    let refused = change(resize(1 << 30)).await.unwrap_err();
    assert!(matches!(&refused, ClusterError::StillCut { name } if name == "b"), "{refused}");
    // Who had it is gone without a word.
    let lease = desk.ask(Grant { ttl: Duration::from_secs(10) }).await.unwrap();
    desk.ask(attach(1, lease)).await.unwrap();
    desk.ask(Revoke { lease }).await.unwrap();
    let wanted = vec![WantedSnapshot { volume: "a".to_owned(), name: "s".to_owned() }];
    let refused = change(VolumeChange::TakeSnapshots { wanted, at_unix_seconds: 5 }).await.unwrap_err();
    assert!(matches!(&refused, ClusterError::Unsettled { volume, .. } if volume == "a"), "{refused}");
}

#[tokio::test]
async fn a_server_of_another_version_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let error = RemoteRegistry::connect(&socket, Duration::from_millis(300)).await.err().unwrap();
    for words in ["404", "versions", "upgrade all nodes"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    server.abort();
}

#[tokio::test]
async fn a_change_whose_answer_makes_no_sense_or_is_cut_may_be_done() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let body = Arc::new(Mutex::new(""));
    let said = body.clone();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let body = *said.lock().unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let client = RemoteRegistry::new(&socket, Duration::from_millis(500));
    let done = "{\"Ok\":{\"txn\":{\"succeeded\":true,\"revision\":1,\"results\":[\"put\"]}}}";
    for nonsense in ["{}\n", "", done] {
        *body.lock().unwrap() = nonsense;
        let error = client.put("a", "1".into()).await.unwrap_err();
        assert!(matches!(error, RegistryError::OutcomeUnknown { .. }), "{nonsense}: {error}");
    }
    let error = client.get("a").await.unwrap_err().to_string();
    assert!(error.contains("cut within a line"), "{error}");
    *body.lock().unwrap() = "{}\n";
    let error = client.get("a").await.unwrap_err();
    assert!(matches!(error, RegistryError::Protocol { .. }), "{error}");
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_come_to_its_end_holds_no_place() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let _server = SocketServer::bind(&socket, Arc::new(MemoryRegistry::new())).unwrap();
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    let put = post(CALL, &line(&Request::Txn(Txn::new().then(Operation::put("cut", "off")))));
    stream.write_all(&put[..put.len() - 3]).await.unwrap();
    let mut answer = String::new();
    let ended = tokio::time::timeout(Duration::from_secs(120), stream.read_to_string(&mut answer)).await;
    ended.expect("it ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

/// A request as the client sends them.
fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sends bytes as a client and returns all that comes back until the server closes, or says nothing more.
async fn answer_to(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    bytes: &[u8],
) -> String {
    // A server that has heard enough may close before all is written.
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.write_all(bytes)).await;
    let mut answer = Vec::new();
    while let Ok(Ok(1..)) =
        tokio::time::timeout(Duration::from_millis(500), stream.read_buf(&mut answer)).await
    {}
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_refused_with_a_reason_and_others_do_not_notice() {
    let served = Served::new();
    let client = served.client().await;
    let mut watch = client.watch("", Revision(0)).await.unwrap();
    let provoke =
        async |bytes: &[u8]| answer_to(UnixStream::connect(served.socket()).await.unwrap(), bytes).await;
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "404"),
        (b"\x00\xff\xfe\r\n\r\n".to_vec(), "400"),
        (b"{}\r\n\r\n".to_vec(), "400"),
        (post("/registry/2/call", b"{}"), "404"),
        (post(CALL, b"{}"), "4"),
        (post(CALL, b"{\"burn\":{}}"), "422"),
        (post(CALL, "[".repeat(100_000).as_bytes()), "4"),
        (post(WATCH, b"{\"prefix\":\"\",\"start\":-1}"), "422"),
        (post(CALL, &vec![b' '; CALL_BYTES_MAX + 1]), "413"),
        (vec![b'x'; CALL_BYTES_MAX * 2], ""),
    ];
    for (bytes, code) in cases {
        let answer = provoke(&bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
        assert!(code.is_empty() || answer.starts_with(&format!("HTTP/1.1 {code}")), "{shown}: {answer}");
    }
    // Requests beyond the limits are answered with an error and leave the connection open.
    let get = post(CALL, &line(&Request::Get { key: "k".repeat(2000) }));
    let answer = provoke(&[get.clone(), get].concat()).await;
    assert_eq!(answer.matches("1024").count(), 2, "{answer}");
    // One that is cut off is none.
    let put = post(CALL, &line(&Request::Txn(Txn::new().then(Operation::put("cut", "off")))));
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    stream.write_all(&put[..put.len() - 3]).await.unwrap();
    drop(stream);
    let mut seed = 1u64;
    for _ in 0..50 {
        let noise: Vec<u8> = (0..500)
            .map(|_| {
                seed = base::hash::mix(seed.wrapping_add(1));
                seed as u8
            })
            .collect();
        let mut stream = UnixStream::connect(served.socket()).await.unwrap();
        stream.write_all(&[&post(CALL, b"")[..30], &noise].concat()).await.unwrap();
    }
    client.put("still", "here".into()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].key(), "still");
}

#[tokio::test]
async fn the_largest_transaction_is_taken_and_the_largest_answer_comes_whole() {
    use registry::{BYTES_PER_TXN_MAX, Compare, KEY_BYTES_MAX, OPERATIONS_PER_TXN_MAX};
    let quotes = "\"".repeat(KEY_BYTES_MAX - 3);
    let key = |index: usize| format!("{quotes}{index:03}");
    let keys = 3 * OPERATIONS_PER_TXN_MAX * KEY_BYTES_MAX;
    let each = (BYTES_PER_TXN_MAX - keys) / (3 * OPERATIONS_PER_TXN_MAX);
    let mut txn = Txn::new();
    for index in 0..OPERATIONS_PER_TXN_MAX {
        txn.compares.push(Compare::Value(key(index), vec![0xff; each].into()));
        txn.then.push(Operation::put_leased(key(index), vec![0xff; each], LeaseId(u64::MAX)));
        txn.otherwise.push(Operation::put_leased(key(index), vec![0xff; each], LeaseId(u64::MAX)));
    }
    txn.check().unwrap();
    assert!(line(&Request::Txn(txn)).len() <= CALL_BYTES_MAX);

    let served = Served::new();
    let client = served.client().await;
    let value = "\"\\é".repeat(5000);
    for index in 0..300 {
        client.put(&format!("key/\"é\"/{index}"), value.as_str().into()).await.unwrap();
    }
    let range = client.range("key/").await.unwrap();
    assert_eq!(range, served.registry.range("key/").await.unwrap());
    assert!(line(&range).len() > 2 * CALL_BYTES_MAX);
}

#[tokio::test]
async fn a_stream_with_nothing_to_say_says_so() {
    let served = Served::new();
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    stream.write_all(&post(MAP, b"null")).await.unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).ends_with("1\r\n\n\r\n") {
        let reading = tokio::time::timeout(SILENCE_MAX * 2, stream.read_buf(&mut said));
        assert!(reading.await.expect("it says so").unwrap() > 0);
    }
}

#[tokio::test]
async fn a_watch_leaves_a_server_that_falls_silent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        let mut silent = Vec::new();
        for round in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let mut lines = vec![line(&Ok::<_, ()>(Revision(round)))];
            if round > 1 {
                lines.push(line(&Ok::<_, ()>(registry::WatchBatch {
                    revision: Revision(7),
                    events: Vec::new(),
                })));
            }
            let chunks: Vec<String> = lines
                .into_iter()
                .map(|line| format!("{:x}\r\n{}\r\n", line.len(), String::from_utf8(line).unwrap()))
                .collect();
            stream.write_all(format!("{head}{}", chunks.concat()).as_bytes()).await.unwrap();
            silent.push(stream);
        }
    });
    let client = RemoteRegistry::new(&socket, Duration::from_secs(5));
    let mut watch = client.watch("", Revision(0)).await.unwrap();
    assert_eq!(watch.position(), Revision(1));
    let batch = tokio::time::timeout(SILENCE_MAX * 5, watch.next()).await.unwrap().unwrap();
    assert_eq!(batch.revision, Revision(7));
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_silent_connections_is_turned_away_and_the_others_go_on() {
    let served = Served::new();
    let client = served.client().await;
    let mut crowd = Vec::new();
    for _ in 0..3000 {
        // The test's own descriptors may run out first.
        if let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_secs(1), UnixStream::connect(served.socket())).await
        {
            crowd.push(stream);
        }
    }
    client.put("a", "1".into()).await.unwrap();
    drop(crowd);
    tokio::time::sleep(Duration::from_millis(100)).await;
    served.client().await.put("a", "2".into()).await.unwrap();
}

#[tokio::test]
async fn many_requests_are_in_progress_at_once() {
    let served = Served::new();
    let client = Arc::new(served.client().await);
    let tasks: Vec<_> = (0..1000)
        .map(|index| {
            let client = client.clone();
            tokio::spawn(async move { client.put(&format!("key/{index}"), "x".into()).await.unwrap() })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(client.range("key/").await.unwrap().entries.len(), 1000);
}
