//! `millpond monitor`: what Prometheus on this machine asks to scrape all nodes, wherever they are. It asks these in turn, with
//! the key of its directory, so that nothing of the cluster is told to anybody on the network.
//!
//! | path | what |
//! |---|---|
//! | `/targets` | the processes of all nodes, for Prometheus' `http_sd_configs` |
//! | `/metrics/NODE/NUMBER` | what one of them serves as `/metrics`: the first, or another, of a node |

use crate::Usage;
use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::host::stop::StopSignals;
use crate::output;
use anyhow::{Context, bail};
use auth::Identity;
use axum::extract::{Path as Segments, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base::NodeId;
use base::map::ClusterMap;
use clap::Args;
use cluster::{HttpRecord, HttpServers};
use health::view;
use registry_remote::Desk;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What Prometheus takes an answer for.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How long a node may take to answer: less than Prometheus waits.
const ANSWER_LIMIT: Duration = Duration::from_secs(8);
/// How long the registry may take.
const REGISTRY_LIMIT: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  millpond monitor
  millpond monitor --dir /etc/millpond --listen 127.0.0.1:9283

In prometheus.yml:
  scrape_configs:
    - job_name: millpond
      http_sd_configs:
        - url: http://127.0.0.1:6481/targets

On a machine that is no host of the cluster: `millpond auth add prometheus --monitor` and `millpond auth token
prometheus.key` on a host, `millpond client join` here. That key is for asking how the cluster is, and nothing else.";

/// Have a Prometheus on this machine scrape the nodes of all machines, until Ctrl-C.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct MonitorArguments {
    /// Where Prometheus asks, on the loopback interface
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6481")]
    pub listen: SocketAddr,
}

/// Serves until someone wishes it to stop.
pub fn run(arguments: &MonitorArguments, path: &Path) -> anyhow::Result<()> {
    let listen = arguments.listen;
    if !listen.ip().is_loopback() {
        bail!(Usage(format!(
            "--listen {listen}: who asks there needs no key, so it must be an address of the loopback interface, such as \
             127.0.0.1:{}; run it on the machine that Prometheus runs on",
            listen.port()
        )));
    }
    access::with_inquiry(path, async |inquiry| serve(inquiry, listen).await)
}

async fn serve(inquiry: &Inquiry, listen: SocketAddr) -> anyhow::Result<()> {
    let mut stop = StopSignals::install()?;
    let identity = inquiry.identity().map_err(anyhow::Error::msg)?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}; name another port with --listen"))?;
    let address = listener.local_addr().context("the socket has no address")?;
    let mut maps = inquiry.desk().watch_map();
    // Until the first reading there are no keys to know the nodes by.
    let read = tokio::time::timeout(REGISTRY_LIMIT, maps.wait_for(|map| map.revision > 0)).await;
    drop(read.context("the cluster map could not be read; `millpond status` says more")?);
    let relay = Relay { desk: inquiry.desk().clone(), maps, identity, address };
    let router = Router::new()
        .route("/targets", get(targets))
        .route("/metrics/{node}/{number}", get(metrics))
        .with_state(Arc::new(relay));
    output::print_line(&format!(
        "Prometheus finds what to scrape at http://{address}/targets (http_sd_configs). Ctrl-C stops it."
    ))?;
    tokio::select! {
        served = axum::serve(listener, router) => served.context("the port is lost"),
        () = stop.wait() => Ok(()),
    }
}

struct Relay {
    desk: Desk,
    maps: watch::Receiver<Arc<ClusterMap>>,
    identity: Identity,
    /// Where this listens.
    address: SocketAddr,
}

impl Relay {
    async fn servers(&self) -> anyhow::Result<Vec<HttpRecord>> {
        let asked = tokio::time::timeout(REGISTRY_LIMIT, self.desk.ask(HttpServers {})).await;
        let answered =
            asked.with_context(|| format!("the registry did not answer in {} s", REGISTRY_LIMIT.as_secs()));
        Ok(answered??)
    }

    async fn metrics(&self, node: u32, number: usize) -> anyhow::Result<axum::body::Bytes> {
        let servers = self.servers().await?;
        let mut of_node = servers.iter().filter(|server| server.node == NodeId(node));
        let server = number.checked_sub(1).and_then(|before| of_node.nth(before));
        let server = server.context("there is no such process now; /targets lists those there are")?;
        let map = self.maps.borrow().clone();
        let asking = Inquiry::ask_process(&self.identity, server, &map, "/metrics");
        let answered = tokio::time::timeout(ANSWER_LIMIT, asking).await;
        answered.with_context(|| format!("it did not answer within {} s", ANSWER_LIMIT.as_secs()))?
    }
}

/// A group of targets as Prometheus reads it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct TargetGroup {
    targets: [SocketAddr; 1],
    labels: BTreeMap<&'static str, String>,
}

/// Which processes there are: a node's are numbered, so that one that starts anew goes on with the same series.
fn target_groups(address: SocketAddr, cluster: &str, servers: &[HttpRecord]) -> Vec<TargetGroup> {
    let mut numbers: BTreeMap<NodeId, usize> = BTreeMap::new();
    let group = |server: &HttpRecord| {
        let number = numbers.entry(server.node).or_default();
        *number += 1;
        let node = server.node;
        let instance = if *number == 1 { node.to_string() } else { format!("{node}/{number}") };
        let labels = BTreeMap::from([
            ("__metrics_path__", format!("/metrics/{}/{number}", node.0)),
            ("cluster", cluster.to_owned()),
            ("instance", instance),
        ]);
        TargetGroup { targets: [address], labels }
    };
    servers.iter().map(group).collect()
}

async fn targets(State(relay): State<Arc<Relay>>) -> Response {
    match relay.servers().await {
        Ok(servers) => {
            let cluster = view::short_id(relay.maps.borrow().cluster);
            Json(target_groups(relay.address, &cluster, &servers)).into_response()
        }
        // Prometheus goes on with the targets that it has.
        Err(error) => failure(&error),
    }
}

async fn metrics(
    State(relay): State<Arc<Relay>>,
    Segments((node, number)): Segments<(u32, usize)>,
) -> Response {
    match relay.metrics(node, number).await {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => failure(&error.context(format!("node.{node}"))),
    }
}

fn failure(error: &anyhow::Error) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_told_apart_by_node_and_number() {
        let server = |node, pid| HttpRecord {
            node: NodeId(node),
            pid,
            address: ([127, 0, 0, 1], 1).into(),
            remote_address: None,
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 6481));
        let groups = target_groups(address, "abcd", &[server(0, 10), server(2, 7), server(2, 9)]);
        let shown: Vec<(&str, &str)> = groups
            .iter()
            .map(|group| (group.labels["instance"].as_str(), group.labels["__metrics_path__"].as_str()))
            .collect();
        assert_eq!(
            shown,
            [("node.0", "/metrics/0/1"), ("node.2", "/metrics/2/1"), ("node.2/2", "/metrics/2/2")]
        );
        let json = serde_json::to_value(&groups).unwrap();
        assert_eq!(json[0]["targets"][0], "127.0.0.1:6481");
    }
}
