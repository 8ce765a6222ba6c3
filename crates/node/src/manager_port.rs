//! Where this process is told how all OSDs are, and asked how the cluster is, while it manages it: HTTP on connections whose
//! both ends have proved their keys. While it does not, it says so to whoever comes.

use crate::entrance::{Entrance, accept_all};
use crate::listeners::{Listeners, bind};
use api::caller::Caller;
use api::http::{Source, manager_router};
use auth::{Channel, Identity};
use axum::{Extension, Router};
use base::{NodeId, PublicKey};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Handshakes at a time; others wait until they are accepted.
const HANDSHAKES_MAX: usize = 1024;
/// Connections of one key: a node has one for each of its processes, and those of commands.
const CONNECTIONS_PER_CALLER_MAX: usize = 64;
/// How long a connection may be silent. Who tells does so every two seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// The port, open.
pub(crate) struct ManagerPort {
    listeners: Listeners,
    /// Where it is.
    pub(crate) address: SocketAddr,
}

impl ManagerPort {
    /// Opens it on addresses of this machine.
    pub(crate) fn open(addresses: &[IpAddr]) -> std::io::Result<ManagerPort> {
        let listeners = Listeners::on_free_port(addresses, bind)?;
        let address = listeners.address();
        Ok(ManagerPort { listeners, address })
    }

    /// Serves whoever comes, for ever.
    pub(crate) async fn serve(self, node: NodeId, identity: Identity, source: Arc<Source>) {
        let entrance = Entrance::new(node, identity, CONNECTIONS_PER_CALLER_MAX);
        let desk = Arc::new(Desk { entrance, router: manager_router(source.clone()), source });
        let meet = |stream, from, permit| {
            let desk = desk.clone();
            async move {
                let admit = |key| desk.source.admit(&key).map(|caller| (key, caller));
                let admitted = desk.entrance.admit(stream, from, desk.source.encryption(), admit).await;
                drop(permit);
                if let Some((channel, (key, caller))) = admitted {
                    desk.serve(channel, key, caller).await;
                }
            }
        };
        accept_all(self.listeners, HANDSHAKES_MAX, meet).await;
    }
}

struct Desk {
    entrance: Entrance,
    source: Arc<Source>,
    router: Router,
}

impl Desk {
    async fn serve(&self, channel: Channel, key: PublicKey, caller: Caller) {
        let Some(_place) = self.entrance.enter(key) else { return };
        let router = self.router.clone().layer(Extension(caller));
        let is_plain = !channel.is_encrypted();
        tokio::select! {
            () = self.entrance.serve(channel, router, SILENCE_LIMIT) => {}
            // Who is honest hears of it too, and connects anew.
            () = self.source.encryption_is_on(), if is_plain => {}
        }
    }
}
