//! Where this process is told how all OSDs are, and asked how the cluster is, while it manages it: HTTP on connections whose
//! both ends have proved their keys. While it does not, it says so to whoever comes. It is served on a thread that does nothing
//! else: strangers' handshakes and what they are told take their time, and leases must be kept alive meanwhile.

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
use tokio::runtime::Runtime;

/// Handshakes at a time; others wait until they are accepted.
const HANDSHAKES_MAX: usize = 1024;
/// Connections of one key: a node has one for each of its processes, and those of commands.
const CONNECTIONS_PER_CALLER_MAX: usize = 64;
/// How long a connection may be silent. Who tells does so every two seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// The port, open.
pub(crate) struct ManagerPort {
    listeners: Listeners,
    thread: Thread,
    /// Where it is.
    pub(crate) address: SocketAddr,
}

impl ManagerPort {
    /// Opens it on addresses of this machine.
    pub(crate) fn open(addresses: &[IpAddr]) -> std::io::Result<ManagerPort> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("manager port")
            .enable_all()
            .build()?;
        let thread = Thread(Some(runtime));
        let listeners = {
            let _inside = thread.runtime().enter();
            Listeners::on_free_port(addresses, bind)?
        };
        let address = listeners.address();
        Ok(ManagerPort { listeners, thread, address })
    }

    /// Serves whoever comes, until this is dropped.
    pub(crate) async fn serve(self, node: NodeId, identity: Identity, source: Arc<Source>) {
        let ManagerPort { listeners, thread, .. } = self;
        let serving = thread.runtime().spawn(serve(listeners, node, identity, source));
        serving.await.expect("the port is served for ever");
    }
}

/// A thread that ends when this is dropped, wherever that is.
struct Thread(Option<Runtime>);

impl Thread {
    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until this is dropped")
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Within another runtime its end must not be waited for.
            runtime.shutdown_background();
        }
    }
}

async fn serve(listeners: Listeners, node: NodeId, identity: Identity, source: Arc<Source>) {
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
    accept_all(listeners, HANDSHAKES_MAX, meet).await;
}

struct Desk {
    entrance: Entrance,
    source: Arc<Source>,
    router: Router,
}

impl Desk {
    async fn serve(&self, channel: Channel, key: PublicKey, caller: Caller) {
        let Some(_place) = self.entrance.enter(key) else { return };
        // Who takes nothing of a long answer would keep it.
        if let Err(error) = channel.end_unless_acknowledged_within(SILENCE_LIMIT) {
            tracing::warn!(node = %self.entrance.node, %error, "somebody is not told how the cluster is");
            return;
        }
        let router = self.router.clone().layer(Extension(caller));
        let is_plain = !channel.is_encrypted();
        tokio::select! {
            () = self.entrance.serve(channel, router, SILENCE_LIMIT) => {}
            // Who is honest hears of it too, and connects anew.
            () = self.source.encryption_is_on(), if is_plain => {}
        }
    }
}
