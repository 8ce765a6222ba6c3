//! Nodes: which host each runs on, and where that stands.

use super::error::check_name;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use crate::interface::{Operation, Txn};
use base::NodeId;
use base::map::NodeInfo;

impl Cluster {
    /// Changes what is known of a node: its host, and where that stands. Answers what is known now.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchNode`] if it runs no OSD and was never heard of; [`ClusterError::NameInvalid`]; those of the
    /// registry.
    pub async fn change_node(&self, node: NodeId, change: impl Fn(&mut NodeInfo)) -> Result<NodeInfo> {
        let is_known = self.map().await?.osds.values().any(|info| info.node == node);
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<NodeInfo> = self.read(&keys::node(node)).await?;
            if read.value.is_none() && !is_known {
                return Err(ClusterError::NoSuchNode { node });
            }
            let before = read.value.clone().unwrap_or_default();
            let mut info = before.clone();
            change(&mut info);
            check_names(&info)?;
            if info == before {
                return Ok(info);
            }
            let txn = Txn::new().when(read.unchanged()).then(Operation::put(&read.key, encode(&info)));
            if self.commit(txn).await? {
                return Ok(info);
            }
        }
        Err(ClusterError::Contended { what: node.to_string() })
    }
}

fn check_names(info: &NodeInfo) -> Result<()> {
    let location = &info.location;
    let host = Some(&info.host).filter(|host| !host.is_empty());
    let names = [
        ("host", host),
        ("region", location.region.as_ref()),
        ("zone", location.zone.as_ref()),
        ("rack", location.rack.as_ref()),
    ];
    names.into_iter().try_for_each(|(what, name)| name.map_or(Ok(()), |name| check_name(what, name)))
}
