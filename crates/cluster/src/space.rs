//! How full the cluster is, as its manager last noted it: for programs that ask a cluster for that, and no more often than it changes.

use super::{Cluster, Read, Result, keys};
use base::PoolId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How full the cluster is. Each copy of a block counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// Bytes that OSDs can hold, used ones included.
    pub usable_bytes: u64,
    /// Bytes that hold something.
    pub used_bytes: u64,
    /// Objects of each pool, without their copies.
    pub objects: BTreeMap<PoolId, u64>,
}

impl Cluster {
    /// How full it is, if somebody has noted that.
    ///
    /// # Errors
    /// Those of the registry, or a record that cannot be read.
    pub async fn space(&self) -> Result<Option<SpaceRecord>> {
        Ok(self.read(keys::SPACE).await?.value)
    }

    /// Notes how full it is. Where another does so at the same time that is as good.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn note_space(&self, space: &SpaceRecord) -> Result<()> {
        let read: Read<serde_json::Value> = self.read(keys::SPACE).await?;
        self.commit(read.replaced_by(space)).await.map(drop)
    }
}
