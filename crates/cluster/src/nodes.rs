//! Nodes: which host each runs on, and where that stands; and what their processes leave behind.

use super::error::check_name;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::NodeId;
use base::map::{Admission, NodeInfo, OsdInfo};
use registry::{Compare, LeaseId, Operation, RegistryError, Txn};
use std::collections::BTreeSet;
use tokio::task::JoinSet;

impl Cluster {
    /// Makes a new node known. Its number was never used before.
    ///
    /// # Errors
    /// [`ClusterError::NameInvalid`]; those of the registry.
    pub async fn new_node(&self, info: &NodeInfo) -> Result<NodeId> {
        check_names(info)?;
        for _ in 0..ATTEMPTS_MAX {
            let map = self.map().await?;
            let known = map.nodes.keys().copied().chain(map.osds.values().map(|osd| osd.node));
            let first = known.max().map_or(0, |node| u64::from(node.0) + 1);
            let mut next: Read<u64> = self.read(keys::NEXT_NODE).await?;
            // Of a cluster on one machine whoever starts a node chooses its number.
            next.value = next.value.max(Some(first));
            let (number, used) = next.take_u32(first, "number of a node")?;
            let node = NodeId(number);
            let key = keys::node(node);
            let txn = Txn::new()
                .when(next.unchanged())
                .when(Compare::Absent(key.clone()))
                .then(used)
                .then(Operation::put(&key, encode(info)));
            if self.commit(txn).await? {
                return Ok(node);
            }
        }
        Err(ClusterError::Contended { what: "the list of nodes".to_owned() })
    }

    /// Forgets a node that runs no OSD, and its key. Says whether there was one.
    ///
    /// # Errors
    /// [`ClusterError::NodeInUse`]; those of the registry.
    pub async fn remove_node(&self, node: NodeId) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<NodeInfo> = self.read(&keys::node(node)).await?;
            let map = self.map().await?;
            if let Some((osd, _)) = map.osds.iter().find(|(_, info)| info.node == node) {
                return Err(ClusterError::NodeInUse { node, osd: *osd });
            }
            let is_its = |principal: &base::Principal| principal.access == base::Access::Node(node);
            let its = map.principals.iter().filter(|(_, principal)| is_its(principal));
            let mut keys = its.map(|(name, _)| keys::principal(name)).peekable();
            if read.value.is_none() && keys.peek().is_none() {
                return Ok(false);
            }
            let txn = Txn::new().when(read.unchanged()).then(Operation::delete(&read.key));
            let txn = keys.map(Operation::delete).fold(txn, Txn::then);
            if self.commit(txn).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: node.to_string() })
    }

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
            if info == before || self.commit(read.replaced_by(&info)).await? {
                return Ok(info);
            }
        }
        Err(ClusterError::Contended { what: node.to_string() })
    }

    /// Ends the leases by which processes of nodes say that they live, for whoever knows that none does, or that they are
    /// ending: that OSDs are up, who is the manager, where HTTP is served. So nobody calls who is dead, or waits for it, until
    /// its lease has run out.
    ///
    /// No promise rests on these leases: what OSDs promised each other they count themselves, and what a manager decides is
    /// written under conditions. A process that lives after all learns that its lease is gone, and announces itself anew.
    /// Leases of clients stay: those may live. So do those of OSDs that are out: who is out and down is taken for lost, with
    /// what it holds, and such a one may come up in a moment.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub async fn forget_processes(&self) -> Result<()> {
        let map = self.map().await?;
        let mut held = self.registry.range(keys::HTTP).await?.entries;
        held.extend(self.registry.get(keys::MANAGER).await?);
        let is_in_and_up = |info: &OsdInfo| info.admission == Admission::In && info.address.is_some();
        for (osd, _) in map.osds.iter().filter(|(_, info)| is_in_and_up(info)) {
            held.extend(self.registry.get(&keys::up(*osd)).await?);
        }
        let leases: BTreeSet<LeaseId> = held.iter().filter_map(|entry| entry.lease).collect();
        // At the same time: so they share what it takes to write them down.
        let mut ending = JoinSet::new();
        for lease in leases {
            let registry = self.registry.clone();
            ending.spawn(async move { registry.lease_revoke(lease).await });
        }
        for ended in ending.join_all().await {
            match ended {
                // It ran out meanwhile.
                Ok(()) | Err(RegistryError::LeaseNotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
