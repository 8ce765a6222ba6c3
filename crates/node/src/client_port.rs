//! Where a node serves the registry to clients that have no other way to it: each is served what its key may have, on a
//! connection that is encrypted whatever the rest of the cluster does. All processes of a node serve it on one port, each on a
//! thread and over a link to the registry that are for nothing else: leases and handshakes of OSDs do not wait for clients.

use crate::entrance::{Entrance, accept_all};
use crate::location::Location;
use auth::{Channel, Identity};
use base::map::ClusterMap;
use base::{Access, Encryption, NodeId, Principal, PublicKey};
use cluster::{Cluster, ConfinedRegistry, Pace};
use registry::Connect;
use registry::{Endpoint, Registry};
use registry_remote::{ConnectionLimits, serve_stream};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Handshakes at a time; others wait until they are accepted.
const HANDSHAKES_MAX: usize = 256;
/// Connections of one key: a client has one for each of its processes.
const CONNECTIONS_PER_KEY_MAX: usize = 128;
/// What one connection may occupy: as much as attaching a volume and following the map needs. Each operation in progress may
/// be answered with the whole map.
const LIMITS: ConnectionLimits = ConnectionLimits { in_progress: 2, watches: 2, line_bytes: 64 << 10 };
/// The same for an owner, who may change everything.
const LIMITS_OF_OWNERS: ConnectionLimits =
    ConnectionLimits { in_progress: 16, watches: 16, line_bytes: 2 << 20 };
/// How long a client may leave unacknowledged what it was sent.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The pause before the registry is tried again.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The port, open.
pub struct ClientPort {
    listener: TcpListener,
    address: SocketAddr,
}

impl ClientPort {
    /// Opens it on an address of this machine. Other processes of this user may open it too.
    ///
    /// # Errors
    /// When somebody else has that port, or it is no address of this machine.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(address: SocketAddr) -> io::Result<ClientPort> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from_std(socket.into())?;
        let address = listener.local_addr()?;
        Ok(ClientPort { listener, address })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves whoever comes, for ever.
    pub async fn serve(self, node: NodeId, identity: Identity, cluster: Cluster) {
        let maps = cluster.watch_map();
        let (sender, endpoints) = watch::channel(Vec::new());
        let entrance = Entrance::new(node, identity, CONNECTIONS_PER_KEY_MAX);
        let registry = cluster.registry().clone();
        let paces = Mutex::default();
        let desk = Arc::new(Desk { entrance, registry, maps: maps.clone(), endpoints, paces });
        let meet = |stream, from, permit| {
            let desk = desk.clone();
            async move {
                let client = |key| client_of(&key, &desk.maps.borrow());
                let admitted = desk.entrance.admit(stream, from, Encryption::On, client).await;
                drop(permit);
                if let Some((channel, (name, principal))) = admitted {
                    desk.serve(channel, name, principal).await;
                }
            }
        };
        tokio::select! {
            () = follow_endpoints(maps, sender) => {}
            () = accept_all(self.listener, HANDSHAKES_MAX, meet) => {}
        }
    }
}

/// A thread that serves clients on a [`ClientPort`], until this is dropped.
pub(crate) struct ClientService {
    address: SocketAddr,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

impl ClientService {
    /// Opens the port, and serves clients what is in a registry, once that is reached.
    pub(crate) fn start(
        node: NodeId,
        registry: Location,
        identity: Identity,
        address: SocketAddr,
    ) -> io::Result<ClientService> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .enable_all()
            .build()?;
        let opened = {
            let _inside = runtime.enter();
            ClientPort::open(address)
        };
        let port = match opened {
            Ok(port) => port,
            Err(error) => {
                // Within another runtime its end must not be waited for.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let address = port.address();
        runtime.spawn(async move {
            let registry = loop {
                match registry.connect().await {
                    Ok(registry) => break registry,
                    Err(error) => tracing::warn!(%node, %error, "clients wait for the registry"),
                }
                tokio::time::sleep(CONNECT_PAUSE).await;
            };
            port.serve(node, identity, Cluster::new(registry)).await;
        });
        Ok(ClientService { address, runtime: Some(runtime) })
    }

    /// Where clients come to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ClientService {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where the nodes of a cluster serve clients.
#[must_use]
pub fn endpoints(map: &ClusterMap) -> Vec<Endpoint> {
    let served = map.nodes.iter().filter_map(|(node, info)| {
        Some(Endpoint { address: info.client_port?, key: map.key_of_node(*node)? })
    });
    served.collect()
}

async fn follow_endpoints(
    mut maps: watch::Receiver<Arc<ClusterMap>>,
    endpoints: watch::Sender<Vec<Endpoint>>,
) {
    loop {
        let now = self::endpoints(&maps.borrow_and_update());
        endpoints.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
        if maps.changed().await.is_err() {
            return;
        }
    }
}

struct Desk {
    entrance: Entrance,
    registry: Arc<dyn Registry>,
    maps: watch::Receiver<Arc<ClusterMap>>,
    endpoints: watch::Receiver<Vec<Endpoint>>,
    /// How much is asked with each key that has a connection.
    paces: Mutex<BTreeMap<PublicKey, Weak<Pace>>>,
}

impl Desk {
    fn pace_of(&self, key: PublicKey) -> Arc<Pace> {
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        paces.retain(|_, pace| pace.strong_count() > 0);
        if let Some(pace) = paces.get(&key).and_then(Weak::upgrade) {
            return pace;
        }
        let pace = Arc::new(Pace::default());
        paces.insert(key, Arc::downgrade(&pace));
        pace
    }

    async fn serve(&self, channel: Channel, name: String, principal: Principal) {
        let Some(_place) = self.entrance.enter(principal.public_key) else { return };
        let node = self.entrance.node;
        if let Err(error) = channel.end_unless_acknowledged_within(SILENCE_LIMIT) {
            tracing::warn!(%node, name, %error, "a client is not served");
            return;
        }
        let registry = self.registry.clone();
        let (registry, limits): (Arc<dyn Registry>, _) = if principal.access == Access::Admin {
            (registry, LIMITS_OF_OWNERS)
        } else {
            let pace = self.pace_of(principal.public_key);
            match ConfinedRegistry::new(registry, name.clone(), principal.clone(), pace) {
                Some(confined) => (Arc::new(confined), LIMITS),
                None => return,
            }
        };
        let mut maps = self.maps.clone();
        tokio::select! {
            () = serve_stream(channel.into_stream(), registry, limits, self.endpoints.clone()) => {}
            // It comes again, and is served what it may have then.
            _ = maps.wait_for(|map| map.principals.get(&name) != Some(&principal)) => {
                tracing::info!(%node, name, "what a client may do was changed, so its connection ends");
            }
        }
    }
}

/// Which client has that key.
///
/// # Errors
/// In words, for the other side: who has no business here.
fn client_of(key: &PublicKey, map: &ClusterMap) -> Result<(String, Principal), String> {
    let (name, principal) = map.whose(key, "this node")?;
    if let Access::Node(_) = principal.access {
        return Err(format!("{name} is a node, which has a way to the registry of its own"));
    }
    Ok((name.to_owned(), principal.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::SecretKey;
    use base::map::NodeInfo;

    #[tokio::test]
    async fn all_processes_of_a_node_share_the_port_and_another_s_is_told_of() {
        let start = |address| {
            let identity = Identity::new(&SecretKey::generate().unwrap());
            ClientService::start(NodeId(0), Location::Socket("/nowhere".into()), identity, address)
        };
        let first = start(([127, 0, 0, 1], 0).into()).unwrap();
        let second = start(first.address()).unwrap();
        assert_eq!(first.address(), second.address());
        let others = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = start(others.local_addr().unwrap()).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn clients_are_told_of_the_nodes_that_serve_them_and_have_keys() {
        let mut map = ClusterMap::default();
        let address = |node: u8| SocketAddr::from(([10, 0, 0, node], 6480));
        for node in 0..3u8 {
            let client_port = (node != 1).then_some(address(node));
            map.nodes.insert(NodeId(node.into()), NodeInfo { client_port, ..NodeInfo::default() });
            if node != 2 {
                let access = Access::Node(NodeId(node.into()));
                let principal = Principal { public_key: PublicKey([node; 32]), access };
                map.principals.insert(format!("node.{node}"), principal);
            }
        }
        assert_eq!(endpoints(&map), [Endpoint { address: address(0), key: PublicKey([0; 32]) }]);
    }

    #[test]
    fn nodes_and_strangers_are_told_why_they_are_not_served() {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        for (number, (name, access)) in
            (0u8..).zip([("node.0", Access::Node(NodeId(0))), ("owner", Access::Admin)])
        {
            let principal = Principal { public_key: PublicKey([number; 32]), access };
            map.principals.insert(name.to_owned(), principal);
        }
        let refusal = |number| client_of(&PublicKey([number; 32]), &map).map(|(name, _)| name);
        assert!(refusal(0).unwrap_err().contains("is a node"));
        assert_eq!(refusal(1).unwrap(), "owner");
        assert!(refusal(2).unwrap_err().contains("auth ls"));
        let unread = client_of(&PublicKey([1; 32]), &ClusterMap::default()).unwrap_err();
        assert!(unread.contains("try again"), "{unread}");
    }
}
