//! Clusters in memory, for tests of what is kept in them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on ends by panicking")]

use crate::Cluster;
use base::map::DeviceClass;
use base::{ClusterId, NodeId, OsdUuid};
use registry::MemoryRegistry;
use std::ops::Range;
use std::sync::Arc;

/// A cluster of so many OSDs, each on a node of its own, with a pool `p` of two copies.
pub async fn cluster_of(osds: u32, pg_count: u32) -> Cluster {
    let cluster = Cluster::new(Arc::new(MemoryRegistry::new()));
    cluster.create(ClusterId::from_bytes([1; 16])).await.unwrap();
    add_osds(&cluster, 0..osds).await;
    cluster.create_pool("p", 2, 1, pg_count).await.unwrap();
    cluster
}

/// Registers OSDs, each on the node of its number.
pub async fn add_osds(cluster: &Cluster, osds: Range<u32>) {
    for osd in osds {
        let uuid = OsdUuid::from_bytes([osd as u8 + 1; 16]);
        cluster.register_osd(uuid, NodeId(osd), 1 << 30, DeviceClass::Ssd).await.unwrap();
    }
}
