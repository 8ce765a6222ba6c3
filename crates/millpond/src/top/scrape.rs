//! What the processes of all nodes count: each is asked at its node's address, with the key that the manager is asked with.

use crate::host::inquiry::Inquiry;
use anyhow::{Context, bail};
use api::figures::NodeFigures;
use api::http::FIGURES_PATH;
use auth::Identity;
use base::map::ClusterMap;
use cluster::HttpRecord;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long one process may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Asks all of them at once. Gives what they answered, and in words who did not.
pub async fn all(
    servers: &[HttpRecord],
    map: &Arc<ClusterMap>,
    inquiry: &Inquiry,
) -> anyhow::Result<(Vec<NodeFigures>, Vec<String>)> {
    let identity = inquiry.identity().map_err(anyhow::Error::msg)?;
    let mut asking = JoinSet::new();
    for server in servers.iter().copied() {
        let (identity, map) = (identity.clone(), map.clone());
        asking.spawn(async move {
            let answered = tokio::time::timeout(LIMIT, figures(&server, &map, &identity)).await;
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
    nodes.sort_by_key(|node: &NodeFigures| (node.node, node.pid));
    silent.sort();
    Ok((nodes, silent))
}

async fn figures(server: &HttpRecord, map: &ClusterMap, identity: &Identity) -> anyhow::Result<NodeFigures> {
    let answer = Inquiry::ask_process(identity, server, map, FIGURES_PATH).await?;
    serde_json::from_slice(&answer).context("its answer makes no sense")
}
