//! Who is at the other end of a connection to the manager: somebody who proved a key.

use base::map::ClusterMap;
use base::{Access, Principal, PublicKey};
use manager::collector::{Collector, Line};
use std::sync::Arc;

/// Who asks or tells on one connection. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Caller {
    name: Arc<str>,
    pub(crate) principal: Arc<Principal>,
    pub(crate) line: Arc<Line>,
}

impl Caller {
    /// Whoever has that key, on a connection of its own.
    ///
    /// # Errors
    /// In words, for the other side: who has no business here.
    pub fn admit(key: &PublicKey, map: &ClusterMap, collector: &Collector) -> Result<Caller, String> {
        let (name, principal) = map.whose(key, "the manager")?;
        if let Access::Pools(_) = principal.access {
            return Err(format!(
                "{name} may use volumes, and not ask how the cluster is; that takes a key made with `millpond auth add NAME --monitor`, or that of \
                 an owner"
            ));
        }
        let (name, principal) = (name.into(), Arc::new(principal.clone()));
        Ok(Caller { name, principal, line: Arc::new(collector.line()) })
    }

    /// Whether it may still do what it could when it connected.
    pub(crate) fn is_admitted(&self, map: &ClusterMap) -> bool {
        map.principals.get(&*self.name) == Some(&*self.principal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{NodeId, Permission, PoolId};

    #[test]
    fn nodes_and_owners_are_admitted_for_as_long_as_the_map_has_their_keys() {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        let accesses = [
            ("node.0", Access::Node(NodeId(0))),
            ("owner", Access::Admin),
            ("client", Access::Pools([(PoolId(1), Permission::ReadWrite)].into())),
        ];
        for (number, (name, access)) in (0u8..).zip(accesses) {
            let principal = Principal::new(PublicKey([number; 32]), access);
            map.principals.insert(name.to_owned(), principal);
        }
        let collector = Collector::default();
        let admit = |number| Caller::admit(&PublicKey([number; 32]), &map, &collector);
        let (node, owner) = (admit(0).unwrap(), admit(1).unwrap());
        assert!(node.is_admitted(&map) && owner.is_admitted(&map));
        assert!(admit(2).unwrap_err().contains("client may use volumes"));
        assert!(admit(3).unwrap_err().contains("is not one of this cluster"));
        let mut later = map.clone();
        later.principals.remove("owner");
        later.principals.get_mut("node.0").unwrap().public_key = PublicKey([9; 32]);
        assert!(!node.is_admitted(&later) && !owner.is_admitted(&later));
    }
}
