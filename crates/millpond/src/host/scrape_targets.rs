//! `prometheus.json` in the cluster's directory: where to scrape, in the format of Prometheus' `file_sd_configs`,
//! kept current as processes come and go.

use anyhow::Context;
use base::NodeId;
use cluster::{Cluster, HttpRecord};
use health::view;
use registry::Revision;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The pause before it is looked again after the registry failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A group of targets as Prometheus reads it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct TargetGroup {
    targets: Vec<String>,
    labels: BTreeMap<&'static str, String>,
}

/// Keeps the file current until it is stopped.
pub struct ScrapeTargets {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl ScrapeTargets {
    /// Writes the file at `path`, and again whenever the processes that serve HTTP change: all of them, or those of
    /// `nodes`.
    pub fn keep(cluster: Cluster, path: PathBuf, nodes: Option<BTreeSet<NodeId>>) -> ScrapeTargets {
        let task = tokio::spawn(keep(cluster, path.clone(), nodes));
        ScrapeTargets { path, task }
    }

    /// Ends it, and leaves a file without targets: nothing is up any more.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.task.abort();
        // However it ended: nobody else writes the file from here on.
        let _ = self.task.await;
        write(&self.path, &[])
    }
}

async fn keep(cluster: Cluster, path: PathBuf, nodes: Option<BTreeSet<NodeId>>) {
    loop {
        if let Err(error) = follow(&cluster, &path, nodes.as_ref()).await {
            tracing::warn!("{} may be out of date: {error:#}", path.display());
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Writes the file after each change, until the registry fails or the watch missed something.
async fn follow(cluster: &Cluster, path: &Path, nodes: Option<&BTreeSet<NodeId>>) -> anyhow::Result<()> {
    let id = view::short_id(cluster.id().await?);
    // From here on: what changes while the records are read is seen after it.
    let now = cluster.registry().range(Cluster::HTTP_PREFIX).await?.revision;
    let mut changes = cluster.registry().watch(Cluster::HTTP_PREFIX, Revision(now.0 + 1)).await?;
    loop {
        let mut servers = cluster.http_servers().await?;
        servers.retain(|server| nodes.is_none_or(|nodes| nodes.contains(&server.node)));
        write(path, &target_groups(&id, &servers))?;
        changes.next().await?;
    }
}

fn target_groups(cluster: &str, servers: &[HttpRecord]) -> Vec<TargetGroup> {
    let targets: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
    let labels = BTreeMap::from([("cluster", cluster.to_owned())]);
    if targets.is_empty() { Vec::new() } else { vec![TargetGroup { targets, labels }] }
}

/// Replaces the file at once: who reads it meanwhile sees the old or the new one.
fn write(path: &Path, groups: &[TargetGroup]) -> anyhow::Result<()> {
    let new = path.with_extension("json.new");
    let text = serde_json::to_string_pretty(groups).context("cannot write the targets as JSON")?;
    std::fs::write(&new, text + "\n").with_context(|| format!("cannot write {}", new.display()))?;
    std::fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ClusterId;
    use registry_embedded::EmbeddedRegistry;
    use std::sync::Arc;

    fn content(path: &Path) -> Vec<String> {
        let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
        let groups: serde_json::Value = serde_json::from_str(&text).unwrap();
        let groups = groups.as_array().unwrap().iter();
        let targets = groups.flat_map(|group| group["targets"].as_array().unwrap().clone());
        targets.map(|target| target.as_str().unwrap().to_owned()).collect()
    }

    async fn shows(path: &Path, expected: &[&str]) {
        for _ in 0..1000 {
            if content(path) == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} is not {expected:?}", content(path));
    }

    #[tokio::test]
    async fn the_file_follows_the_processes() {
        let scratch = tempfile::tempdir().unwrap();
        let id = ClusterId(uuid::Uuid::from_u128(0xabcd_ef01 << 96));
        let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let path = scratch.path().join("prometheus.json");
        let targets = ScrapeTargets::keep(cluster.clone(), path.clone(), None);
        let mut leases = Vec::new();
        for node in 0..2u16 {
            let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
            let address = ([127, 0, 0, 1], 7000 + node).into();
            let node = NodeId(node.into());
            let record = HttpRecord { node, pid: 1, address, remote_address: None };
            cluster.announce_http(&record, lease).await.unwrap();
            leases.push(lease);
        }
        shows(&path, &["127.0.0.1:7000", "127.0.0.1:7001"]).await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"cluster\": \"abcdef01\""), "{text}");
        cluster.registry().lease_revoke(leases[0]).await.unwrap();
        shows(&path, &["127.0.0.1:7001"]).await;
        targets.stop().await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[]\n");
    }
}
