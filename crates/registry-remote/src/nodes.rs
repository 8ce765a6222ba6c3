//! The nodes of a cluster that serve clients, as far as they are known.

use auth::{Identity, Stream};
use base::Encryption;
use base::map::ClusterMap;
use registry::{Endpoint, Endpoints};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a node may leave unacknowledged what it was sent. Another one is found before a lease of ten seconds ends that
/// is kept alive every three.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(4);

/// Where the nodes of a cluster serve clients.
#[must_use]
pub fn endpoints(map: &ClusterMap) -> Vec<Endpoint> {
    let served = map.nodes.iter().filter_map(|(node, info)| {
        Some(Endpoint { address: info.client_port?, key: map.key_of_node(*node)? })
    });
    served.collect()
}

/// Tries one after the other, from one that is drawn: clients shall spread over them. The map tells which there are, so that
/// a client outlives all those that it knew at first.
pub(crate) struct Nodes {
    identity: Identity,
    /// Those that were named at first.
    first: Vec<Endpoint>,
    turn: Mutex<Turn>,
}

struct Turn {
    /// Those that the map showed last.
    shown: Vec<Endpoint>,
    /// Attempts since somebody answered.
    failures: usize,
    /// Counts the attempts.
    next: usize,
}

impl Nodes {
    pub(crate) fn new(endpoints: &Endpoints, identity: &Identity) -> Nodes {
        let next = (uuid::Uuid::new_v4().as_u64_pair().0 >> 1) as usize;
        let first = endpoints.all().to_vec();
        let turn = Mutex::new(Turn { shown: first.clone(), failures: 0, next });
        Nodes { identity: identity.clone(), first, turn }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // Nothing that can panic runs while it is held.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the next. Once none that the map showed lets it in, those that were named at first have their turn.
    pub(crate) async fn open(&self) -> Result<Box<dyn Stream>, String> {
        let endpoint = {
            let mut turn = self.turn();
            let shown = turn.shown.len();
            let among =
                if turn.failures % (shown + self.first.len()) < shown { &turn.shown } else { &self.first };
            let endpoint = among[turn.next % among.len()];
            turn.next += 1;
            turn.failures += 1;
            endpoint
        };
        // Whatever the rest of the cluster does: it costs nothing here.
        let channel = auth::reach(&self.identity, endpoint.key, endpoint.address, Encryption::On).await?;
        channel.end_unless_acknowledged_within(UNACKNOWLEDGED_LIMIT).map_err(|error| error.to_string())?;
        Ok(Box::new(channel.into_stream()))
    }

    /// Somebody answered.
    pub(crate) fn answered(&self) {
        self.turn().failures = 0;
    }

    /// Takes over which there are.
    pub(crate) fn learn(&self, map: &ClusterMap) {
        let shown = endpoints(map);
        if !shown.is_empty() {
            self.turn().shown = shown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::NodeInfo;
    use base::{Access, NodeId, Principal, PublicKey};
    use std::net::SocketAddr;

    #[test]
    fn clients_learn_of_the_nodes_that_serve_them_and_have_keys() {
        let mut map = ClusterMap::default();
        let address = |node: u8| SocketAddr::from(([10, 0, 0, node], 6480));
        for node in 0..3u8 {
            let client_port = (node != 1).then_some(address(node));
            map.nodes.insert(NodeId(node.into()), NodeInfo { client_port, ..NodeInfo::default() });
            if node != 2 {
                let access = Access::Node(NodeId(node.into()));
                let principal = Principal { public_key: PublicKey([node; 32]), access };
                map.principals.insert(format!("node.{node}"), principal);
            }
        }
        assert_eq!(endpoints(&map), [Endpoint { address: address(0), key: PublicKey([0; 32]) }]);
    }
}
