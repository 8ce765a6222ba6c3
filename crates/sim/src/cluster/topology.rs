//! Where the nodes of a life stand: each alone on its host, several on one, or in racks.

use crate::random::Random;
use base::map::{FailureDomain, Location, NodeInfo};

/// Where the nodes stand, by their index, and which domains the pool's copies are spread over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// What the pool's rule names.
    pub failure_domain: FailureDomain,
    /// By node: which of these domains it stands in.
    domains: Vec<usize>,
}

impl Topology {
    /// Each of so many nodes is a host of its own.
    pub(super) fn of_hosts(nodes: usize) -> Topology {
        Topology { failure_domain: FailureDomain::Host, domains: (0..nodes).collect() }
    }

    /// Fewer domains than nodes, or as many; but as many among the first `sure` nodes as there are copies, where a rule asks
    /// for that.
    pub(super) fn draw(nodes: usize, sure: usize, size: u32, random: &mut Random) -> Topology {
        let failure_domain = if random.percent(50) { FailureDomain::Host } else { FailureDomain::Rack };
        let most = sure as u64;
        // Copies share a host where there are too few; racks must be enough.
        let least = if failure_domain == FailureDomain::Host { 2 } else { u64::from(size) };
        let count = random.between(least.min(most), most) as usize;
        Topology { failure_domain, domains: (0..nodes).map(|node| node % count).collect() }
    }

    /// Whether some domain has several nodes, or is not just a host.
    pub(super) fn has_shape(&self) -> bool {
        *self != Topology::of_hosts(self.domains.len())
    }

    /// What the map says of a node.
    pub(super) fn info(&self, node: usize) -> NodeInfo {
        let domain = self.domains[node];
        match self.failure_domain {
            FailureDomain::Rack => NodeInfo {
                host: format!("host-{node}"),
                location: Location { rack: Some(format!("rack-{domain}")), ..Location::default() },
                ..NodeInfo::default()
            },
            _ => NodeInfo { host: format!("host-{domain}"), ..NodeInfo::default() },
        }
    }

    /// Some domain that there is, by its number.
    pub(super) fn some_domain(&self, random: &mut Random) -> usize {
        self.domains[random.index(self.domains.len())]
    }

    /// Some domain's nodes.
    pub(super) fn some_neighbours(&self, random: &mut Random) -> Vec<usize> {
        let domain = self.some_domain(random);
        (0..self.domains.len()).filter(|node| self.domains[*node] == domain).collect()
    }

    /// A node is carried elsewhere.
    pub(super) fn carry(&mut self, node: usize, domain: usize) {
        self.domains[node] = domain;
    }
}
