//! Where this process is told how all OSDs are, and asked how the cluster is, while it manages it: HTTP on connections whose
//! both ends have proved their keys. While it does not, it says so to whoever comes.
//!
//! Strangers can occupy handshakes, [`HANDSHAKES_MAX`] at a time for five seconds each, and nothing else. Nodes and owners can
//! occupy [`CONNECTIONS_PER_CALLER_MAX`] connections each.

use crate::refusals::Refusals;
use api::caller::Caller;
use api::http::{Source, manager_router};
use auth::{AuthError, Channel, Identity};
use axum::{Extension, Router};
use base::{NodeId, PublicKey};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Handshakes at a time; others wait until they are accepted.
const HANDSHAKES_MAX: usize = 1024;
/// Connections of one key: a node has one for each of its processes, and those of commands.
const CONNECTIONS_PER_CALLER_MAX: usize = 64;
/// How long a connection may be silent. Who tells does so every two seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The pause after a connection could not be accepted: descriptors may be short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The port, open.
pub(crate) struct ManagerPort {
    listener: TcpListener,
    /// Where it is.
    pub(crate) address: SocketAddr,
}

impl ManagerPort {
    /// Opens it on an address of this machine.
    pub(crate) async fn open(ip: IpAddr) -> std::io::Result<ManagerPort> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let address = listener.local_addr()?;
        Ok(ManagerPort { listener, address })
    }

    /// Serves whoever comes, for ever.
    pub(crate) async fn serve(self, node: NodeId, identity: Identity, source: Arc<Source>) {
        let door = Arc::new(Door {
            node,
            identity,
            router: manager_router(source.clone()),
            source,
            connections: Mutex::default(),
            refusals: Refusals::default(),
        });
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let place = handshakes.clone().acquire_owned().await.expect("nobody closes it");
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let door = door.clone();
                    tokio::spawn(async move {
                        let admitted = door.admit(stream, from).await;
                        drop(place);
                        if let Some((stream, key, caller)) = admitted {
                            door.serve(stream, key, caller).await;
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%node, %error, "a connection to the manager's port could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

struct Door {
    node: NodeId,
    identity: Identity,
    source: Arc<Source>,
    router: Router,
    /// How many each key has.
    connections: Mutex<BTreeMap<PublicKey, usize>>,
    refusals: Refusals,
}

impl Door {
    async fn admit(&self, stream: TcpStream, from: SocketAddr) -> Option<(Channel, PublicKey, Caller)> {
        // Questions and answers are small messages back and forth.
        let _ = stream.set_nodelay(true);
        let admit = |key| self.source.admit(&key).map(|caller| (key, caller));
        match self.identity.accept(stream, self.source.encryption(), admit).await {
            Ok((channel, (key, caller))) => Some((channel, key, caller)),
            Err(error @ AuthError::Unauthorized { .. }) => {
                self.refusals.log(&self.node, from, &error);
                None
            }
            Err(error) => {
                // Anybody can send garbage, as often as he likes.
                tracing::debug!(node = %self.node, %from, %error, "a connection came to nothing");
                None
            }
        }
    }

    async fn serve(&self, channel: Channel, key: PublicKey, caller: Caller) {
        if !self.count(key, |count| {
            *count += 1;
            *count <= CONNECTIONS_PER_CALLER_MAX
        }) {
            tracing::warn!(node = %self.node, %key, "it has too many connections, so one more is closed");
        } else {
            let router = self.router.clone().layer(Extension(caller));
            let is_plain = !channel.is_encrypted();
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(SILENCE_LIMIT)
                .serve_connection(TokioIo::new(channel.into_stream()), TowerToHyperService::new(router));
            tokio::select! {
                served = served => if let Err(error) = served {
                    tracing::debug!(node = %self.node, %error, "a connection ended");
                },
                // Who is honest hears of it too, and connects anew.
                () = self.source.encryption_is_on(), if is_plain => {}
            }
        }
        self.count(key, |count| {
            *count -= 1;
            true
        });
    }

    /// Changes how many connections a key has; answers what `change` does.
    fn count(&self, key: PublicKey, change: impl FnOnce(&mut usize) -> bool) -> bool {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let count = connections.entry(key).or_default();
        let answer = change(count);
        if *count == 0 {
            connections.remove(&key);
        }
        answer
    }
}
