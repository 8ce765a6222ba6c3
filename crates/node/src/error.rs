//! Why a node cannot start or go on, and why an OSD is not started.

use crate::shard::ShardError;
use base::{NodeId, OsdId, PublicKey};
use cluster::ClusterError;
use drive::DriveError;
use registry::RegistryError;
use std::net::IpAddr;
use std::path::PathBuf;

/// Why a node cannot start or go on.
#[derive(thiserror::Error, Debug)]
pub enum NodeError {
    /// A drive cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// What is on a drive cannot be used.
    #[error("{0}")]
    Store(String),
    /// A drive of another cluster.
    #[error(
        "{path}: belongs to cluster {found}, not {expected}; give another drive, or erase this one with `millpond osd \
         wipe {path} --yes`"
    )]
    OtherCluster {
        /// The drive.
        path: PathBuf,
        /// Its cluster.
        found: base::ClusterId,
        /// This one.
        expected: base::ClusterId,
    },
    /// A drive whose OSD was removed.
    #[error(
        "{path}: was {osd}, which was removed from the cluster; to use the drive again, erase it with `millpond osd \
         wipe {path} --yes`, then `millpond osd add --device {path}`"
    )]
    Removed {
        /// The drive.
        path: PathBuf,
        /// What it was.
        osd: OsdId,
    },
    /// A drive whose OSD was put on another one.
    #[error(
        "{path}: holds {osd} as it was before it was put on another drive, and what is on it is out of date; to have {osd} on \
         this one after all, `millpond osd replace {number} --drive {path}`; to use it for another, erase it with `millpond \
         osd wipe {path} --yes`",
        number = osd.0
    )]
    Replaced {
        /// The drive.
        path: PathBuf,
        /// What it was.
        osd: OsdId,
    },
    /// A drive that lost what it held.
    #[error(
        "{path}: is blank, but {osd} was on it; bring its drive back, or have it made anew on a blank one with `millpond osd \
         replace {number}`",
        number = osd.0
    )]
    Emptied {
        /// The drive.
        path: PathBuf,
        /// What was on it.
        osd: OsdId,
    },
    /// A drive whose OSD went elsewhere while it was started here.
    #[error(
        "{path}: belonged to {osd}, which was put on another drive or removed meanwhile; to have another OSD made on it, start \
         its node again, or `millpond osd add --device {path}` if that does not know the drive any more"
    )]
    Left {
        /// The drive.
        path: PathBuf,
        /// Whose it was.
        osd: OsdId,
    },
    /// A key that is not the node's.
    #[error(
        "the key {key} is not that of {node} in cluster {cluster}, so nobody would speak to it; put the key back that the \
         host had when it joined, or remove the node from the cluster and let this host join anew with a new directory"
    )]
    Stranger {
        /// The key.
        key: PublicKey,
        /// Whose it should be.
        node: NodeId,
        /// Where.
        cluster: base::ClusterId,
    },
    /// The cluster state cannot be read or changed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// An OSD has no port.
    #[error("{osd} cannot listen on {address}: {source}; is that an address of this machine?")]
    Listen {
        /// The OSD.
        osd: OsdId,
        /// Where it was to listen.
        address: IpAddr,
        /// Why it cannot.
        source: std::io::Error,
    },
    /// There is no port on which others could tell it how their OSDs are.
    #[error("{node} cannot listen on {source}; is that an address of this machine?")]
    Port {
        /// The node.
        node: NodeId,
        /// Where, and why it cannot.
        source: std::io::Error,
    },
    /// An OSD ended.
    #[error("{0}")]
    Shard(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl NodeError {
    /// Whether it is one drive that cannot be used: the others of its node can.
    pub(crate) fn is_of_drive(&self) -> bool {
        match self {
            NodeError::Drive(_)
            | NodeError::Store(_)
            | NodeError::OtherCluster { .. }
            | NodeError::Removed { .. }
            | NodeError::Replaced { .. }
            | NodeError::Emptied { .. }
            | NodeError::Left { .. } => true,
            NodeError::Stranger { .. }
            | NodeError::Cluster(_)
            | NodeError::Registry(_)
            | NodeError::Listen { .. }
            | NodeError::Port { .. }
            | NodeError::Shard(_)
            | NodeError::System { .. } => false,
        }
    }
}

impl From<ShardError> for NodeError {
    fn from(error: ShardError) -> NodeError {
        match error {
            ShardError::Drive(reason) => NodeError::Store(reason),
            ShardError::System(reason) => NodeError::Shard(reason),
        }
    }
}
