//! What a client may do that has proved which key it has: as the newest map says of that key.

use super::super::terms::{Admittance, Terms};
use base::map::ClusterMap;
use base::{Access, Permission, PublicKey, VolumeId};

/// The terms for whoever has a key, of exports of these volumes.
pub(super) fn terms(map: &ClusterMap, key: &PublicKey, exports: &[VolumeId]) -> Terms {
    let Some((name, principal)) = map.principal_of(key) else {
        return Terms::Refused(format!(
            "the cluster does not know the key of this certificate, {key}; `millpond auth ls` lists those that it knows, `millpond auth \
             add` makes one"
        ));
    };
    let all = |of: &dyn Fn(&VolumeId) -> Admittance| Terms::Admitted(exports.iter().map(of).collect());
    match &principal.access {
        Access::Admin => all(&|_| Admittance::Write),
        Access::Pools(rights) => all(&|volume| {
            let info = map.volumes.get(volume);
            match info.and_then(|info| rights.to(info.pool, &info.namespace)) {
                Some(Permission::ReadWrite | Permission::Manage) => Admittance::Write,
                Some(Permission::Read) => Admittance::Read,
                None => Admittance::Hidden,
            }
        }),
        Access::Node(_) | Access::Monitor => {
            Terms::Refused(format!("{name} is not for volumes; `millpond auth add` makes a key that is"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::VolumeInfo;
    use base::{NodeId, PoolId, Principal};

    #[test]
    fn a_key_sees_what_it_is_for_and_writes_where_it_may() {
        let mut map = ClusterMap::default();
        let (ours, theirs) = (VolumeId(1), VolumeId(2));
        for (volume, pool) in [(ours, 1), (theirs, 2)] {
            map.volumes.insert(volume, VolumeInfo { pool: PoolId(pool), ..VolumeInfo::default() });
        }
        let key = |number: u8| PublicKey([number; 32]);
        let rights = |permission| Access::Pools([(PoolId(1), permission)].into_iter().collect());
        let keys = [
            ("owner", Access::Admin),
            ("reader", rights(Permission::Read)),
            ("writer", rights(Permission::ReadWrite)),
            ("node", Access::Node(NodeId(1))),
            ("monitor", Access::Monitor),
        ];
        for (number, (name, access)) in (1..).zip(keys) {
            map.principals.insert(name.to_owned(), Principal::new(key(number), access));
        }
        let terms = |number: u8| terms(&map, &key(number), &[ours, theirs, VolumeId(3)]);
        let admitted = |all: [Admittance; 3]| Terms::Admitted(all.to_vec());
        use Admittance::{Hidden, Read, Write};
        assert_eq!(terms(1), admitted([Write, Write, Write]));
        assert_eq!(terms(2), admitted([Read, Hidden, Hidden]));
        assert_eq!(terms(3), admitted([Write, Hidden, Hidden]));
        for (number, words) in [(4, "not for volumes"), (5, "not for volumes"), (9, "does not know")] {
            assert!(matches!(terms(number), Terms::Refused(reason) if reason.contains(words)), "{number}");
        }
    }
}
