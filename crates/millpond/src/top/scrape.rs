//! What the processes of all nodes count, read over HTTP at the addresses that the registry has.

use anyhow::{Context, bail};
use api::figures::NodeFigures;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use registry::cluster::HttpRecord;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long one process may take to answer.
const LIMIT: Duration = Duration::from_secs(2);
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Asks all of them at once. Gives what they answered, and in words who did not.
pub async fn all(servers: &[HttpRecord]) -> (Vec<NodeFigures>, Vec<String>) {
    let mut asking = JoinSet::new();
    for server in servers.iter().copied() {
        asking.spawn(async move {
            let answered = tokio::time::timeout(LIMIT, figures(server.address)).await;
            let answered = answered.unwrap_or_else(|_| bail!("no answer within {} s", LIMIT.as_secs()));
            answered.map_err(|error| format!("{} (pid {}): {error:#}", server.node, server.pid))
        });
    }
    let (mut nodes, mut silent) = (Vec::new(), Vec::new());
    while let Some(answered) = asking.join_next().await {
        match answered {
            Ok(Ok(figures)) => nodes.push(figures),
            Ok(Err(reason)) => silent.push(reason),
            Err(error) => silent.push(error.to_string()),
        }
    }
    nodes.sort_by_key(|node| (node.node, node.pid));
    silent.sort();
    (nodes, silent)
}

async fn figures(address: SocketAddr) -> anyhow::Result<NodeFigures> {
    let stream = tokio::net::TcpStream::connect(address).await.context("cannot connect")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("it speaks no HTTP")?;
    let connection = tokio::spawn(connection);
    let request = Request::get("/api/v1/figures")
        .header(hyper::header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())
        .expect("the path is well-formed");
    let answer = sender.send_request(request).await.context("it did not answer")?;
    if answer.status() != StatusCode::OK {
        bail!("it answered {}", answer.status());
    }
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    connection.abort();
    let body = body.map_err(|error| anyhow::anyhow!("its answer broke off: {error}"))?.to_bytes();
    serde_json::from_slice(&body).context("its answer makes no sense")
}
