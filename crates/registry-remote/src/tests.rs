//! The two ends together: conformance, lost connections, and peers that speak garbage.

use super::protocol::LINE_BYTES_MAX;
use super::*;
use auth::{Identity, SecretKey};
use base::{ClusterId, Encryption};
use registry::conformance;
use registry::{DEFAULT_TIMEOUT, Endpoint, Endpoints, RegistryError};
use registry::{Operation, Registry, Revision, Txn};
use registry_embedded::EmbeddedRegistry;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
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

/// A registry that a node serves, and where.
struct ServedByNode {
    endpoint: Endpoint,
    /// Where clients are told that it is served too.
    endpoints: watch::Sender<Vec<Endpoint>>,
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
    async fn new(registry: Arc<dyn Registry>) -> ServedByNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity = identity();
        let endpoint = Endpoint { address: listener.local_addr().unwrap(), key: identity.public() };
        let endpoints = watch::Sender::new(Vec::new());
        let told = endpoints.clone();
        let task = tokio::spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let accepted = identity.accept(stream, Encryption::On, |_| Ok(())).await;
                let Ok((channel, ())) = accepted else { continue };
                let limits = ConnectionLimits { in_progress: 8, watches: 64, line_bytes: LINE_BYTES_MAX };
                let stream = channel.into_stream();
                served.spawn(serve_stream(stream, registry.clone(), limits, told.subscribe()));
            }
        });
        ServedByNode { endpoint, endpoints, task }
    }

    /// Ends all connections, and takes no more.
    async fn stop(self) {
        drop(self);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn client_of(endpoints: Vec<Endpoint>) -> RemoteRegistry {
    let endpoints = Endpoints::new(endpoints).unwrap();
    RemoteRegistry::connect_to_nodes(&endpoints, &identity(), DEFAULT_TIMEOUT).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_a_node_serves_conforms() {
    conformance::run(|| async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("registry.redb");
        let registry: Arc<dyn Registry> =
            Arc::new(EmbeddedRegistry::create(&file, ClusterId::default()).unwrap());
        let served = ServedByNode::new(registry).await;
        let client: Arc<dyn Registry> = Arc::new(client_of(vec![served.endpoint]).await);
        (client, (served, directory))
    })
    .await;
}

#[tokio::test]
async fn a_client_outlives_all_nodes_that_it_knew_at_first() {
    let registry: Arc<dyn Registry> = Arc::new(registry::MemoryRegistry::new());
    let first = ServedByNode::new(registry.clone()).await;
    let second = ServedByNode::new(registry.clone()).await;
    let client = client_of(vec![first.endpoint]).await;
    let mut changes = client.watch("k", Revision(0)).await.unwrap();
    // It is told of another, once that is there.
    first.endpoints.send_replace(vec![first.endpoint, second.endpoint]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    first.stop().await;
    client.put("k", "1".into()).await.unwrap();
    assert_eq!(changes.next().await.unwrap().events.len(), 1);
    // And of a third, while the first is not there any more.
    let third = ServedByNode::new(registry.clone()).await;
    second.endpoints.send_replace(vec![third.endpoint]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    second.stop().await;
    client.put("k", "2".into()).await.unwrap();
    assert_eq!(changes.next().await.unwrap().events.len(), 1);
}

#[tokio::test]
async fn a_node_with_another_key_is_none_of_the_cluster() {
    let served = ServedByNode::new(Arc::new(registry::MemoryRegistry::new())).await;
    let impostor = Endpoint { key: identity().public(), ..served.endpoint };
    let endpoints = Endpoints::new(vec![impostor]).unwrap();
    let connecting =
        RemoteRegistry::connect_to_nodes(&endpoints, &identity(), Duration::from_millis(500)).await;
    let error = connecting.err().unwrap().to_string();
    assert!(error.contains("not who it should be") && error.contains("auth ls"), "{error}");
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
    // A server that greets, takes the request, and dies.
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"{\"hello\":{\"version\":1}}\n").await.unwrap();
            let mut taken = Vec::new();
            while !taken.ends_with(b"}\n") || !taken.windows(9).any(|word| word == b"\"request\"") {
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
async fn a_server_of_another_version_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(b"{\"hello\":{\"version\":99}}\n").await;
        }
    });
    let error = RemoteRegistry::connect(&socket, Duration::from_millis(300)).await.err().unwrap();
    assert!(error.to_string().contains("version 99"), "{error}");
    server.abort();
}

/// Sends bytes as a client and returns all that comes back until the server closes.
async fn provoke(socket: &std::path::Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    // A server that has heard enough may close before all is written.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the server closes");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_closes_its_connection_with_a_reason_and_nothing_else() {
    const HELLO: &str = "{\"hello\":{\"protocol\":\"millpond-registry\",\"version\":1}}\n";
    let served = Served::new();
    let client = served.client().await;
    let mut watch = client.watch("", Revision(0)).await.unwrap();
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "makes no sense"),
        (b"\x00\xff\xfe\n".to_vec(), "makes no sense"),
        (b"{}\n".to_vec(), "makes no sense"),
        (b"{\"unwatch\":{\"watch\":1}}\n".to_vec(), "hello"),
        (HELLO.replace(":1}", ":2}").into_bytes(), "version"),
        (HELLO.replace("millpond-registry", "etcd").into_bytes(), "etcd"),
        (HELLO.repeat(2).into_bytes(), "second hello"),
        (
            format!("{HELLO}{{\"request\":{{\"id\":1,\"request\":{{\"burn\":{{}}}}}}}}\n").into_bytes(),
            "makes no sense",
        ),
        (format!("{HELLO}{{\"request\":{{\"id\":-1}}}}\n").into_bytes(), "makes no sense"),
        (format!("{HELLO}{}\n", "[".repeat(100_000)).into_bytes(), "makes no sense"),
        (format!("{HELLO}{{\"request\"").into_bytes(), "within a line"),
        (vec![b'x'; LINE_BYTES_MAX * 2], ""),
    ];
    for (bytes, reason) in cases {
        let answer = provoke(&served.socket(), &bytes).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
        assert!(answer.contains(reason), "{shown}: {answer}");
        assert!(reason.is_empty() || answer.contains("\"close\""), "{shown}: {answer}");
    }
    // Requests beyond the limits are answered with an error and leave the connection open.
    let long = "k".repeat(2000);
    let get = format!("{HELLO}{{\"request\":{{\"id\":1,\"request\":{{\"get\":{{\"key\":\"{long}\"}}}}}}}}\n");
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    for round in 1..=2 {
        let text = if round == 1 { get.as_str() } else { &get[HELLO.len()..] };
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}\n") || !String::from_utf8_lossy(&answer).contains("1024") {
            let reading = tokio::time::timeout(Duration::from_secs(20), stream.read_buf(&mut answer));
            assert!(reading.await.expect("the server answers").unwrap() > 0, "round {round}");
        }
    }
    let mut seed = 1u64;
    for _ in 0..50 {
        let noise: Vec<u8> = (0..500)
            .map(|_| {
                seed = base::hash::mix(seed.wrapping_add(1));
                seed as u8
            })
            .collect();
        provoke(&served.socket(), &[HELLO.as_bytes(), &noise].concat()).await;
    }
    client.put("still", "here".into()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].key(), "still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_silent_connections_is_turned_away_and_the_others_go_on() {
    let served = Served::new();
    let client = served.client().await;
    let mut crowd = Vec::new();
    for _ in 0..700 {
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
