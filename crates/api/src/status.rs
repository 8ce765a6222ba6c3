//! Everything about the cluster at one moment: the verdict, and what it was made from.

use crate::health::{self, Health};
use crate::registry_health;
use crate::view::{self, Capacity, ClusterView, OsdView, PoolView, Reports, VolumeView};
use base::NodeId;
use base::map::ClusterMap;
use registry::cluster::{Cluster, ClusterError};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Everything: `status --json`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Status {
    /// Which cluster this is.
    pub cluster: ClusterView,
    /// The verdict.
    pub health: Health,
    /// The nodes.
    pub nodes: Vec<NodeView>,
    /// The OSDs.
    pub osds: Vec<OsdView>,
    /// Space, summed over the OSDs.
    pub capacity: Capacity,
    /// The placement groups, counted.
    pub pgs: PgCounts,
    /// The pools.
    pub pools: Vec<PoolView>,
    /// The volumes.
    pub volumes: Vec<VolumeView>,
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct NodeView {
    /// Its id.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Its OSDs.
    pub osds: usize,
    /// Those of them that are up.
    pub osds_up: usize,
}

/// How many placement groups are in which state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PgCounts {
    /// All.
    pub total: usize,
    /// By the name of the state; states without a group are absent.
    #[schema(value_type = BTreeMap<String, usize>)]
    pub by_state: BTreeMap<&'static str, usize>,
}

impl Status {
    /// Reads everything that the status shows.
    ///
    /// # Errors
    /// Those of the registry, or an entry that makes no sense.
    pub async fn read(cluster: &Cluster) -> Result<Status, ClusterError> {
        let map = cluster.map().await?;
        Ok(Status::of(&map, &Reports::read_with_registry(cluster).await?))
    }

    /// The status that map and reports amount to.
    #[must_use]
    pub fn of(map: &ClusterMap, reports: &Reports) -> Status {
        let osds = view::osds(map, reports);
        let pgs = view::pgs(map, &reports.statuses);
        let pools = view::pools(map, &pgs);
        let mut nodes: BTreeMap<NodeId, NodeView> = BTreeMap::new();
        for osd in &osds {
            let node = nodes.entry(osd.node).or_insert(NodeView { node: osd.node, osds: 0, osds_up: 0 });
            node.osds += 1;
            node.osds_up += usize::from(osd.up);
        }
        let mut counts = PgCounts { total: pgs.len(), ..PgCounts::default() };
        for pg in &pgs {
            *counts.by_state.entry(pg.state.name()).or_default() += 1;
        }
        Status {
            cluster: ClusterView {
                id: map.cluster.to_string(),
                revision: map.revision,
                encryption: map.encryption,
            },
            health: health::judge(&osds, &pgs, &pools)
                .with(reports.registry.iter().map(registry_health::problem)),
            nodes: nodes.into_values().collect(),
            capacity: view::capacity(&osds),
            osds,
            pgs: counts,
            pools,
            volumes: view::volumes(map),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::PoolId;
    use base::map::PoolInfo;

    #[test]
    fn the_json_names_are_those_that_were_promised() {
        let mut map = ClusterMap::default();
        let pool =
            PoolInfo { name: "default".into(), size: 3, min_size: 2, pg_count: 64, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        let json = serde_json::to_value(Status::of(&map, &Reports::default())).unwrap();
        for pointer in [
            "/cluster/id",
            "/cluster/encryption",
            "/health/level",
            "/health/problems",
            "/capacity/used_bytes",
            "/pgs/by_state",
            "/osds",
        ] {
            assert!(json.pointer(pointer).is_some(), "{pointer} is missing in {json}");
        }
        assert_eq!(json["pools"][0]["min_size"], 2);
        assert_eq!(json["capacity"]["used_bytes"], serde_json::Value::Null);
    }
}
