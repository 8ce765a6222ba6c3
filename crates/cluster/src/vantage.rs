//! At which of its addresses a node is reached from here. It may be reached at several, over IPv4 and IPv6 or on several
//! networks, and this machine may be on one of these only. What the registry says of ports names the address that the node
//! prefers; all of its ports are at its other addresses too.

use base::map::NodeInfo;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};

/// Where this machine stands. It is found out when it first matters: nodes have one address as a rule.
#[derive(Debug, Default)]
pub struct Vantage {
    networks: OnceCell<Vec<Network>>,
}

impl Vantage {
    /// Where a port of a node is, of its addresses the first in a network that this machine is in itself; else the first that
    /// is of a kind that it has, IPv4 or IPv6; else the one that is preferred.
    #[must_use]
    pub fn nearest(&self, node: Option<&NodeInfo>, port: SocketAddr) -> SocketAddr {
        let addresses: &[IpAddr] = node.map_or(&[], |info| info.addresses.as_slice());
        if addresses.len() < 2 {
            return port;
        }
        let networks = self.networks.get_or_init(own_networks);
        let is_own = |address: &&IpAddr| networks.iter().any(|network| network.contains(**address));
        let is_routed = |address: &&IpAddr| networks.iter().any(|network| network.has_routes_to(**address));
        let found = addresses.iter().find(is_own).or_else(|| addresses.iter().find(is_routed));
        found.map_or(port, |address| SocketAddr::new(*address, port.port()))
    }
}

/// Where a port of a node is, at all of its addresses, the one that is preferred first.
#[must_use]
pub fn all_places(node: Option<&NodeInfo>, port: SocketAddr) -> Vec<SocketAddr> {
    match node {
        Some(info) if info.addresses.len() > 1 => {
            info.addresses.iter().map(|address| SocketAddr::new(*address, port.port())).collect()
        }
        _ => vec![port],
    }
}

/// A network that this machine has an interface to.
#[derive(Clone, Copy, Debug)]
struct Network {
    /// This machine's address in it.
    address: IpAddr,
    mask: IpAddr,
}

impl Network {
    fn contains(&self, other: IpAddr) -> bool {
        match (self.address, self.mask, other) {
            (IpAddr::V4(own), IpAddr::V4(mask), IpAddr::V4(other)) => {
                own.to_bits() & mask.to_bits() == other.to_bits() & mask.to_bits()
            }
            (IpAddr::V6(own), IpAddr::V6(mask), IpAddr::V6(other)) => {
                own.to_bits() & mask.to_bits() == other.to_bits() & mask.to_bits()
            }
            _ => false,
        }
    }

    /// Whether others of that kind may be reached from it.
    fn has_routes_to(&self, other: IpAddr) -> bool {
        let is_for_this_link_alone = match self.address {
            IpAddr::V4(own) => own.is_loopback() || own.is_link_local(),
            IpAddr::V6(own) => own.is_loopback() || own.is_unicast_link_local(),
        };
        !is_for_this_link_alone && self.address.is_ipv4() == other.is_ipv4()
    }
}

/// The networks of this machine. Where the kernel does not say, none is known, and every address is as good as another.
fn own_networks() -> Vec<Network> {
    let ip_of = |address: &SockaddrStorage| -> Option<IpAddr> {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let networks = interfaces.filter_map(|interface| {
        let (address, mask) = (interface.address?, interface.netmask?);
        Some(Network { address: ip_of(&address)?, mask: ip_of(&mask)? })
    });
    networks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A machine with an address in each of these networks.
    fn standing_in(networks: &[(&str, &str)]) -> Vantage {
        let network = |(address, mask): &(&str, &str)| Network { address: ip(address), mask: ip(mask) };
        Vantage { networks: OnceCell::from(networks.iter().map(network).collect::<Vec<_>>()) }
    }

    const LOOPBACK: [(&str, &str); 2] =
        [("127.0.0.1", "255.0.0.0"), ("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")];

    #[test]
    fn a_node_is_reached_in_a_network_that_both_are_in_else_by_what_this_machine_has_at_all() {
        let addresses = ["10.1.0.4", "10.2.0.4", "fd00::4"].map(ip).to_vec();
        let node = NodeInfo { addresses, ..NodeInfo::default() };
        let port = SocketAddr::new(ip("10.1.0.4"), 6480);
        let from = |own: &[(&str, &str)]| {
            let all = [&LOOPBACK[..], own].concat();
            standing_in(&all).nearest(Some(&node), port).to_string()
        };
        assert_eq!(from(&[("10.1.0.9", "255.255.255.0")]), "10.1.0.4:6480");
        assert_eq!(from(&[("10.2.0.9", "255.255.255.0")]), "10.2.0.4:6480");
        // The node prefers the first of those that both are in.
        let both = [("10.2.0.9", "255.255.255.0"), ("10.1.0.9", "255.255.255.0")];
        assert_eq!(from(&both), "10.1.0.4:6480");
        assert_eq!(from(&[("192.168.0.9", "255.255.255.0")]), "10.1.0.4:6480", "by a router");
        let link = ("fe80::9", "ffff:ffff:ffff:ffff::");
        assert_eq!(from(&[link, ("fd01::9", "ffff:ffff:ffff:ffff::")]), "[fd00::4]:6480");
        assert_eq!(from(&[link]), "10.1.0.4:6480", "there is no way at all: it is told of by its name");
    }

    #[test]
    fn a_node_with_one_address_is_reached_there_and_nobody_is_asked() {
        let port = SocketAddr::new(ip("10.1.0.4"), 7000);
        let vantage = Vantage::default();
        let one = NodeInfo { addresses: vec![ip("10.1.0.5")], ..NodeInfo::default() };
        for node in [None, Some(&NodeInfo::default()), Some(&one)] {
            assert_eq!((vantage.nearest(node, port), all_places(node, port)), (port, vec![port]));
        }
        assert!(vantage.networks.get().is_none());
        let two = NodeInfo { addresses: vec![ip("10.1.0.4"), ip("fd00::4")], ..NodeInfo::default() };
        let places = all_places(Some(&two), port);
        assert_eq!(places, [port, SocketAddr::new(ip("fd00::4"), 7000)]);
    }

    #[test]
    fn this_machine_is_in_its_own_networks() {
        let here = own_networks();
        assert!(here.iter().any(|network| network.contains(ip("127.0.0.1"))), "{here:?}");
        assert!(!here.iter().any(|network| network.mask == ip("0.0.0.0")), "{here:?}");
    }
}
