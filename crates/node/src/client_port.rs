//! Where a node serves clients that have no way to the registry: each is answered what its key may ask, on connections that are
//! encrypted whatever the rest of the cluster does. All processes of a node serve them on one port, each on a thread and over a
//! link to the registry that are for nothing else: leases and handshakes of OSDs do not wait for clients.

use crate::entrance::{Entrance, accept_all};
use crate::listeners::Listeners;
use crate::location::Location;
use auth::{Channel, Identity};
use axum::{Extension, Router};
use base::map::ClusterMap;
use base::{Access, Encryption, NodeId, Principal, PublicKey};
use cluster::{Clerk, Cluster, Visitor};
use registry::Connect;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Handshakes at a time; others wait until they are accepted.
const HANDSHAKES_MAX: usize = 256;
/// Connections of one key, of which each has one request at a time: a client has two for each of its processes, one for what it
/// asks and one to follow the map.
const CONNECTIONS_PER_KEY_MAX: usize = 256;
/// How long a client may leave unacknowledged what it was sent, and ask nothing.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The pause before the registry is tried again.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The port, open.
pub struct ClientPort {
    listeners: Listeners,
}

impl ClientPort {
    /// Opens it on addresses of this machine. Other processes of this user may open it too.
    ///
    /// # Errors
    /// When somebody else has that port at one of them, or that is no address of this machine: at which, and why.
    ///
    /// # Panics
    /// Without an address, or outside a tokio runtime.
    pub fn open(addresses: &[IpAddr], port: u16) -> io::Result<ClientPort> {
        Ok(ClientPort { listeners: Listeners::on_port(addresses, port, bind)? })
    }

    /// Where it is, at the first of its addresses.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listeners.address()
    }

    /// Serves whoever comes, for ever.
    pub async fn serve(self, node: NodeId, identity: Identity, cluster: Cluster) {
        let maps = cluster.watch_map();
        let entrance = Entrance::new(node, identity, CONNECTIONS_PER_KEY_MAX);
        let (router, visitors) = (registry_remote::router(), Mutex::default());
        let counter = Arc::new(Counter { entrance, cluster, maps, router, visitors });
        let meet = |stream, from, permit| {
            let counter = counter.clone();
            async move {
                let client = |key| client_of(&key, &counter.maps.borrow());
                let admitted = counter.entrance.admit(stream, from, Encryption::On, client).await;
                drop(permit);
                if let Some((channel, (name, principal))) = admitted {
                    counter.serve(channel, name, principal).await;
                }
            }
        };
        accept_all(self.listeners, HANDSHAKES_MAX, meet).await;
    }
}

/// Listens at an address beside other processes of this user.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
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
    TcpListener::from_std(socket.into())
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
        addresses: &[IpAddr],
        port: u16,
    ) -> io::Result<ClientService> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .enable_all()
            .build()?;
        let opened = {
            let _inside = runtime.enter();
            ClientPort::open(addresses, port)
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

struct Counter {
    entrance: Entrance,
    cluster: Cluster,
    maps: watch::Receiver<Arc<ClusterMap>>,
    router: Router,
    /// Those who came, for as long as their keys are of the cluster: who comes again has used what he used.
    visitors: Mutex<BTreeMap<String, Arc<Visitor>>>,
}

impl Counter {
    fn visitor(&self, name: &str, principal: &Principal) -> Arc<Visitor> {
        let mut visitors = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
        visitors.retain(|name, _| self.maps.borrow().principals.contains_key(name));
        let known = visitors.get(name).filter(|visitor| visitor.is(name, principal));
        known.cloned().unwrap_or_else(|| {
            let visitor = Arc::new(Visitor::new(name.to_owned(), principal.clone()));
            visitors.insert(name.to_owned(), visitor.clone());
            visitor
        })
    }

    async fn serve(&self, channel: Channel, name: String, principal: Principal) {
        let Some(_place) = self.entrance.enter(principal.public_key) else { return };
        let node = self.entrance.node;
        if let Err(error) = channel.end_unless_acknowledged_within(SILENCE_LIMIT) {
            tracing::warn!(%node, name, %error, "a client is not served");
            return;
        }
        let cluster = self.cluster.clone();
        let clerk = match principal.access {
            Access::Admin => Clerk::of_owner(cluster),
            _ => Clerk::for_visitor(cluster, self.visitor(&name, &principal)),
        };
        let router = self.router.clone().layer(Extension(clerk));
        let mut maps = self.maps.clone();
        tokio::select! {
            () = self.entrance.serve(channel, router, SILENCE_LIMIT) => {}
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

    #[tokio::test]
    async fn all_processes_of_a_node_share_the_port_and_another_s_is_told_of() {
        let start = |port| {
            let identity = Identity::new(&SecretKey::generate().unwrap());
            let here = [IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];
            ClientService::start(NodeId(0), Location::Socket("/nowhere".into()), identity, &here, port)
        };
        let first = start(0).unwrap();
        let second = start(first.address().port()).unwrap();
        assert_eq!(first.address(), second.address());
        let others = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = start(others.local_addr().unwrap().port()).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn nodes_and_strangers_are_told_why_they_are_not_served() {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        for (number, (name, access)) in
            (0u8..).zip([("node.0", Access::Node(NodeId(0))), ("owner", Access::Admin)])
        {
            let principal = Principal::new(PublicKey([number; 32]), access);
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
