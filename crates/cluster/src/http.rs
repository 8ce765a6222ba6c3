//! Where the processes of nodes serve HTTP: metrics, health and the read side of the API.

use super::{Cluster, Result, encode, keys};
use base::NodeId;
use registry::{LeaseId, Operation, Txn};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The HTTP server of one process. It is there as long as that keeps its lease alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRecord {
    /// The node whose process it is.
    pub node: NodeId,
    /// That process.
    pub pid: u32,
    /// Where it listens: on the loopback interface of its machine.
    pub address: SocketAddr,
    /// Where it is asked from other machines, by who proves the key of a node or of an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_address: Option<SocketAddr>,
}

impl Cluster {
    /// The keys of [`HttpRecord`]s begin with this, for watches.
    pub const HTTP_PREFIX: &str = keys::HTTP;

    /// Tells where a process serves HTTP, for as long as the lease lives.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn announce_http(&self, record: &HttpRecord, lease: LeaseId) -> Result<()> {
        let put = Operation::put_leased(keys::http(record.node, record.pid), encode(record), lease);
        self.registry.txn(Txn::new().then(put)).await?;
        Ok(())
    }

    /// The HTTP servers of all processes whose leases live, by node.
    ///
    /// # Errors
    /// Those of the registry, or a record that cannot be read.
    pub async fn http_servers(&self) -> Result<Vec<HttpRecord>> {
        let mut servers: Vec<HttpRecord> =
            self.read_all(keys::HTTP).await?.into_iter().map(|(_, record)| record).collect();
        servers.sort_by_key(|record| (record.node, record.pid));
        Ok(servers)
    }
}
