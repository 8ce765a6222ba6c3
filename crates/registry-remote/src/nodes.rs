//! The nodes of a cluster that serve clients, as far as they are known.

use auth::{Identity, Stream};
use base::map::{ClusterMap, NodeInfo};
use base::{Encryption, PublicKey};
use cluster::{Vantage, all_places};
use registry::{Endpoint, Endpoints};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a node may leave unacknowledged what it was sent. Another one is found before a lease of ten seconds ends that
/// is kept alive every three.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(4);
/// How long one that did not answer is not asked, while another is known.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// Where the nodes of a cluster serve clients: each at all of its addresses, for whoever stands where nobody knows.
#[must_use]
pub fn endpoints(map: &ClusterMap) -> Vec<Endpoint> {
    let served = served(map).flat_map(|(info, port, key)| {
        all_places(Some(info), port).into_iter().map(move |address| Endpoint { address, key })
    });
    served.collect()
}

/// The same for who stands here: each at the address that is the nearest.
fn nearest_endpoints(map: &ClusterMap) -> Vec<Endpoint> {
    let vantage = Vantage::default();
    let served =
        served(map).map(|(info, port, key)| Endpoint { address: vantage.nearest(Some(info), port), key });
    served.collect()
}

fn served(map: &ClusterMap) -> impl Iterator<Item = (&NodeInfo, SocketAddr, PublicKey)> {
    map.nodes.iter().filter_map(|(node, info)| Some((info, info.client_port?, map.key_of_node(*node)?)))
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
    /// Those that did not answer, and when.
    failed: Vec<(Endpoint, Instant)>,
    /// Counts the attempts.
    next: usize,
}

impl Nodes {
    pub(crate) fn new(endpoints: &Endpoints, identity: &Identity) -> Nodes {
        let next = (uuid::Uuid::new_v4().as_u64_pair().0 >> 1) as usize;
        let first = endpoints.all().to_vec();
        let turn = Mutex::new(Turn { shown: first.clone(), failed: Vec::new(), next });
        Nodes { identity: identity.clone(), first, turn }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // Nothing that can panic runs while it is held.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next that did not fail a moment ago. Once all did that the map showed, those that were named at first have their
    /// turn, and then all of them anew.
    pub(crate) fn next(&self) -> Endpoint {
        let turn = &mut *self.turn();
        turn.failed.retain(|(_, at)| at.elapsed() < AVOIDED_FOR);
        turn.next += 1;
        for among in [&turn.shown, &self.first] {
            let has_failed = |endpoint: &Endpoint| turn.failed.iter().any(|(failed, _)| failed == endpoint);
            let left: Vec<_> = among.iter().filter(|endpoint| !has_failed(endpoint)).collect();
            if !left.is_empty() {
                return *left[turn.next % left.len()];
            }
        }
        turn.failed.clear();
        turn.shown[turn.next % turn.shown.len()]
    }

    /// Connects to one.
    pub(crate) async fn open(&self, endpoint: Endpoint) -> Result<Box<dyn Stream>, String> {
        // Whatever the rest of the cluster does: it costs nothing here.
        let channel = auth::reach(&self.identity, endpoint.key, endpoint.address, Encryption::On).await?;
        channel.end_unless_acknowledged_within(UNACKNOWLEDGED_LIMIT).map_err(|error| error.to_string())?;
        Ok(Box::new(channel.into_stream()))
    }

    /// One did not answer.
    pub(crate) fn failed(&self, endpoint: Endpoint) {
        let mut turn = self.turn();
        turn.failed.retain(|(failed, _)| *failed != endpoint);
        turn.failed.push((endpoint, Instant::now()));
    }

    /// Takes over which there are.
    pub(crate) fn learn(&self, map: &ClusterMap) {
        let shown = nearest_endpoints(map);
        if !shown.is_empty() {
            self.turn().shown = shown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Access, NodeId, Principal};

    #[test]
    fn a_node_that_failed_is_passed_over_while_another_is_known() {
        let all = [1u8, 2, 3].map(|number| Endpoint {
            address: SocketAddr::from(([10, 0, 0, number], 6480)),
            key: PublicKey([number; 32]),
        });
        let identity = Identity::new(&auth::SecretKey::generate().unwrap());
        let nodes = Nodes::new(&Endpoints::new(all.to_vec()).unwrap(), &identity);
        nodes.turn().shown = all[..2].to_vec();
        let turns = |count| -> Vec<_> { (0..count).map(|_| nodes.next()).collect() };
        let before = turns(4);
        assert!(before.contains(&all[0]) && before.contains(&all[1]) && !before.contains(&all[2]));
        for (failed, others) in [(0, [all[1]; 4]), (1, [all[2]; 4])] {
            nodes.failed(all[failed]);
            assert_eq!(turns(4), others);
        }
        nodes.failed(all[2]);
        assert!(turns(4).contains(&all[0]), "where all failed, all have their turn");
    }

    #[test]
    fn clients_learn_of_the_nodes_that_serve_them_and_have_keys() {
        let mut map = ClusterMap::default();
        let address = |node: u8| SocketAddr::from(([10, 0, 0, node], 6480));
        for node in 0..3u8 {
            let client_port = (node != 1).then_some(address(node));
            map.nodes.insert(NodeId(node.into()), NodeInfo { client_port, ..NodeInfo::default() });
            if node != 2 {
                let access = Access::Node(NodeId(node.into()));
                let principal = Principal::new(PublicKey([node; 32]), access);
                map.principals.insert(format!("node.{node}"), principal);
            }
        }
        let key = PublicKey([0; 32]);
        assert_eq!(endpoints(&map), [Endpoint { address: address(0), key }]);
        // Who joins may stand in any of a node's networks.
        let other = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 6480));
        let addresses = vec![address(0).ip(), other.ip()];
        map.nodes.get_mut(&NodeId(0)).unwrap().addresses = addresses;
        assert_eq!(endpoints(&map), [address(0), other].map(|address| Endpoint { address, key }));
        assert_eq!(nearest_endpoints(&map).len(), 1);
    }
}
