//! Serves `api::http` on the loopback interface, and tells the registry where.
//!
//! There is neither authentication nor encryption, so nobody on another machine can reach it, whatever the OSDs listen
//! on: whoever does asks at `manager_port`, with a key. Nobody who scrapes can hold the control side up, which keeps leases on the same thread: connections, what they
//! may send and how long they may last are limited, and an answer is whole before its first byte is sent.

use crate::entrance::accept_all;
use crate::lease::{KEEP_ALIVE, LEASE_TTL};
use crate::listeners::{Listeners, bind};
use api::http::{Source, router};
use base::NodeId;
use cluster::{Cluster, ClusterError, HttpRecord};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use registry::{LeaseId, RegistryError};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Connections at a time; others wait until they are accepted.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may take, from when it is accepted to the last byte of its one answer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// How long its request may take to come.
const REQUEST_LIMIT: Duration = Duration::from_secs(3);
/// The most a request may have in front of its body, in bytes. A body is not read.
const HEADERS_BYTES_MAX: usize = 16 << 10;

/// Serves HTTP until `stop` changes. A process that cannot serve it says so in its log, and its OSDs go on.
pub(crate) async fn run(
    cluster: Cluster,
    node: NodeId,
    remote_address: SocketAddr,
    source: Arc<Source>,
    mut stop: watch::Receiver<bool>,
) {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let listeners = match Listeners::on_free_port(&loopback, bind) {
        Ok(listeners) => listeners,
        Err(error) => {
            tracing::warn!(%node, error = %error.source, "metrics and the API are not served: no port of the loopback interface is free");
            return;
        }
    };
    let address = listeners.address();
    tracing::info!(%node, %address, "metrics and the API are served");
    let record = HttpRecord { node, pid: std::process::id(), address, remote_address: Some(remote_address) };
    let mut lease = None;
    tokio::select! {
        () = accept(listeners, source) => {}
        () = stay_announced(&cluster, &record, &mut lease) => {}
        _ = stop.changed() => {}
    }
    if let Some(lease) = lease {
        // Gone at once instead of when the lease ends.
        let _ = cluster.registry().lease_revoke(lease).await;
    }
}

/// Answers whoever connects, for ever.
async fn accept(listeners: Listeners, source: Arc<Source>) {
    let router = router(source);
    let meet = |stream, _, place| {
        let service = TowerToHyperService::new(router.clone());
        async move {
            // Whoever is too slow is cut off, which is all there is to say to it.
            let _ = tokio::time::timeout(CONNECTION_LIMIT, answer(stream, service)).await;
            drop(place);
        }
    };
    accept_all(listeners, CONNECTIONS_MAX, meet).await;
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, service: TowerToHyperService<axum::Router>) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .max_buf_size(HEADERS_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// Tells where this process serves, and keeps it told, for ever. While the registry is away it tries again.
async fn stay_announced(cluster: &Cluster, record: &HttpRecord, lease: &mut Option<LeaseId>) {
    loop {
        let kept = match *lease {
            Some(lease) => cluster.registry().lease_keep_alive(lease).await.map_err(ClusterError::from),
            None => announce(cluster, record).await.map(|granted| *lease = Some(granted)),
        };
        if let Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. })) = kept {
            *lease = None;
            continue;
        }
        tokio::time::sleep(KEEP_ALIVE).await;
    }
}

async fn announce(cluster: &Cluster, record: &HttpRecord) -> Result<LeaseId, ClusterError> {
    let lease = cluster.registry().lease_grant(LEASE_TTL).await?.id;
    cluster.announce_http(record, lease).await?;
    Ok(lease)
}
