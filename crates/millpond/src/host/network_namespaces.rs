//! Nodes in network namespaces of their own, so that a test can cut the links between them.
//!
//! Whoever makes the namespaces gives each an address that the others reach.

use std::net::Ipv4Addr;
use std::str::FromStr;

/// Node `n` runs in the namespace `PREFIXn`, at the `n`-th address behind `IP`. Written `PREFIX@IP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkNamespaces {
    prefix: String,
    first: Ipv4Addr,
}

impl NetworkNamespaces {
    /// The namespace of a node.
    pub fn name(&self, node: u32) -> String {
        format!("{}{node}", self.prefix)
    }

    /// The address of a node in its namespace.
    pub fn address(&self, node: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first.to_bits().wrapping_add(node))
    }
}

impl FromStr for NetworkNamespaces {
    type Err = String;

    fn from_str(text: &str) -> Result<NetworkNamespaces, String> {
        let wrong =
            || format!("{text:?} names no network namespaces; write PREFIX@IP, for example n@10.1.2.1");
        let (prefix, first) =
            text.split_once('@').filter(|(prefix, _)| !prefix.is_empty()).ok_or_else(wrong)?;
        Ok(NetworkNamespaces { prefix: prefix.to_owned(), first: first.parse().map_err(|_| wrong())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_namespace_and_its_address() {
        let namespaces: NetworkNamespaces = "pond@10.1.2.1".parse().unwrap();
        assert_eq!((namespaces.name(2), namespaces.address(2)), ("pond2".into(), Ipv4Addr::new(10, 1, 2, 3)));
        for wrong in ["", "pond", "@10.1.2.1", "pond@", "pond@::1"] {
            assert!(wrong.parse::<NetworkNamespaces>().is_err(), "{wrong}");
        }
    }
}
