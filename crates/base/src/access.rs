//! Who may connect, and what they may do then: keys and the access they give.

use crate::ids::{NodeId, PoolId};
use crate::limits::{Limited, Limits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Bytes of a public key.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// What the text of a public key begins with.
const PUBLIC_KEY_PREFIX: &str = "ed25519:";

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encryption {
    /// What is said on a connection goes in plain, once both sides have proved who they are.
    #[default]
    Off,
    /// Nothing goes in plain.
    On,
}

impl fmt::Display for Encryption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Encryption::Off => "off",
            Encryption::On => "on",
        })
    }
}

impl FromStr for Encryption {
    type Err = String;
    fn from_str(text: &str) -> Result<Encryption, String> {
        match text {
            "off" => Ok(Encryption::Off),
            "on" => Ok(Encryption::On),
            _ => Err(format!("{text:?} is neither on nor off")),
        }
    }
}

/// An Ed25519 public key (RFC 8032): whoever has its secret half is the principal that it belongs to. Its text is
/// `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; PUBLIC_KEY_BYTES]);

impl PublicKey {
    /// What limits of this key are of.
    #[must_use]
    pub fn limited(&self) -> Limited {
        let (first, _) = self.0.split_first_chunk().expect("a key has 32 bytes");
        Limited::Key(u64::from_le_bytes(*first))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(PUBLIC_KEY_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl FromStr for PublicKey {
    type Err = String;
    fn from_str(text: &str) -> Result<PublicKey, String> {
        let wrong =
            || format!("{text:?} is no public key; one is {PUBLIC_KEY_PREFIX} and 64 hexadecimal digits");
        let digits = text.strip_prefix(PUBLIC_KEY_PREFIX).map(str::as_bytes).ok_or_else(wrong)?;
        let mut bytes = [0; PUBLIC_KEY_BYTES];
        if digits.len() != 2 * PUBLIC_KEY_BYTES {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
            *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        }
        Ok(PublicKey(bytes))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<PublicKey, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Somebody who may connect, under a name that is unique in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PrincipalEntry", into = "PrincipalEntry")]
pub struct Principal {
    /// Proves who it is.
    pub public_key: PublicKey,
    /// What it may do.
    pub access: Access,
    /// How much it may do.
    pub limits: Limits,
}

/// A principal as the registry has it. Versions that know of no [`Permission::Manage`] could not read a map in which one is; so a
/// pool whose volumes it may change is one that it reads and writes, and is named beside that. Namespaces are named beside it too,
/// and not with their pools: for a version that knows of none, such a key opens nothing.
#[derive(Serialize, Deserialize)]
struct PrincipalEntry {
    public_key: PublicKey,
    access: Access,
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    limits: Limits,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    manages: BTreeSet<PoolId>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    namespaces: BTreeMap<PoolId, BTreeMap<String, Permission>>,
}

impl From<PrincipalEntry> for Principal {
    fn from(entry: PrincipalEntry) -> Principal {
        let PrincipalEntry { public_key, mut access, limits, manages, namespaces } = entry;
        if let Access::Pools(rights) = &mut access {
            let written = |(pool, permission): &(&PoolId, &mut Permission)| {
                **permission == Permission::ReadWrite && manages.contains(pool)
            };
            let managed = rights.pools.iter_mut().filter(written);
            managed.for_each(|(_, permission)| *permission = Permission::Manage);
            rights.namespaces = namespaces;
            rights.namespaces.retain(|_, named| !named.is_empty());
        }
        Principal { public_key, access, limits }
    }
}

impl From<Principal> for PrincipalEntry {
    fn from(principal: Principal) -> PrincipalEntry {
        let Principal { public_key, mut access, limits } = principal;
        let (mut manages, mut namespaces) = (BTreeSet::new(), BTreeMap::new());
        if let Access::Pools(rights) = &mut access {
            let managed = rights.pools.iter_mut().filter(|(_, permission)| permission.may_manage());
            for (pool, permission) in managed {
                *permission = Permission::ReadWrite;
                manages.insert(*pool);
            }
            namespaces = std::mem::take(&mut rights.namespaces);
        }
        PrincipalEntry { public_key, access, limits, manages, namespaces }
    }
}

impl Principal {
    /// One without limits.
    #[must_use]
    pub fn new(public_key: PublicKey, access: Access) -> Principal {
        Principal { public_key, access, limits: Limits::default() }
    }
}

/// What a principal may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It is a node of the cluster: its OSDs replicate, and what they are told by others of their kind they do.
    Node(NodeId),
    /// It is a client that reads and writes every volume, and may change everything else.
    Admin,
    /// It is a client of these pools and namespaces, and of nothing else.
    Pools(Rights),
    /// It may ask how the cluster is, and that is all.
    Monitor,
}

/// What a client may do with the volumes of which pools, and of which namespaces of other pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rights {
    /// Pools with all that is in them, whatever their namespaces.
    pub pools: BTreeMap<PoolId, Permission>,
    /// Namespaces by name, by their pools. What a principal's entry says of them stands beside its access there.
    #[serde(skip)]
    pub namespaces: BTreeMap<PoolId, BTreeMap<String, Permission>>,
}

impl<const N: usize> From<[(PoolId, Permission); N]> for Rights {
    fn from(pools: [(PoolId, Permission); N]) -> Rights {
        pools.into_iter().collect()
    }
}

impl FromIterator<(PoolId, Permission)> for Rights {
    fn from_iter<I: IntoIterator<Item = (PoolId, Permission)>>(pools: I) -> Rights {
        Rights { pools: pools.into_iter().collect(), namespaces: BTreeMap::new() }
    }
}

impl Rights {
    /// What may be done with the volumes of a pool's namespace, if anything. The default one is the empty name.
    #[must_use]
    pub fn to(&self, pool: PoolId, namespace: &str) -> Option<Permission> {
        let whole = self.pools.get(&pool).copied();
        match namespace {
            "" => whole,
            _ => whole.max(self.namespaces.get(&pool).and_then(|named| named.get(namespace)).copied()),
        }
    }

    /// Whether they are for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.namespaces.is_empty()
    }

    /// Namespaces that are named, with what may be done there.
    pub fn named(&self) -> impl Iterator<Item = (PoolId, &str, Permission)> {
        self.namespaces.iter().flat_map(|(pool, named)| {
            named.iter().map(|(name, permission)| (*pool, name.as_str(), *permission))
        })
    }
}

/// What a client may do with the volumes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Read them.
    Read,
    /// Read and write them.
    ReadWrite,
    /// Read and write them, and make, change and remove them.
    Manage,
}

impl Permission {
    /// Whether volumes may be written to, and those fenced who wrote before.
    #[must_use]
    pub fn may_write(self) -> bool {
        self >= Permission::ReadWrite
    }

    /// Whether volumes may be made, changed and removed.
    #[must_use]
    pub fn may_manage(self) -> bool {
        self >= Permission::Manage
    }
}

impl Access {
    /// What it may do as a client with all volumes of a pool, if anything.
    #[must_use]
    pub fn to_pool(&self, pool: PoolId) -> Option<Permission> {
        self.to_volumes(pool, "")
    }

    /// What it may do as a client with the volumes of a pool's namespace, if anything. The default one is the empty name.
    #[must_use]
    pub fn to_volumes(&self, pool: PoolId, namespace: &str) -> Option<Permission> {
        match self {
            Access::Node(_) | Access::Monitor => None,
            Access::Admin => Some(Permission::Manage),
            Access::Pools(rights) => rights.to(pool, namespace),
        }
    }

    /// Whether it is for namespaces of a pool, so that it depends on the volume what it may do.
    #[must_use]
    pub fn names_namespaces_of(&self, pool: PoolId) -> bool {
        matches!(self, Access::Pools(rights) if rights.namespaces.contains_key(&pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_reads_back_what_it_prints_and_refuses_the_rest() {
        let key = PublicKey(std::array::from_fn(|index| index as u8 * 7));
        let text = key.to_string();
        assert_eq!(text.parse(), Ok(key));
        for wrong in ["", "ed25519:", &text[1..], &text[..text.len() - 1], &text.replace("07", "0g")] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn access_ends_where_its_pools_end() {
        let access = Access::Pools(Rights::from([(PoolId(1), Permission::Read)]));
        assert_eq!(access.to_pool(PoolId(1)), Some(Permission::Read));
        assert_eq!(access.to_pool(PoolId(2)), None);
        assert_eq!(Access::Admin.to_pool(PoolId(2)), Some(Permission::Manage));
        assert_eq!(Access::Monitor.to_pool(PoolId(1)), None);
    }

    #[test]
    fn each_permission_implies_those_below_it() {
        let all = [Permission::Read, Permission::ReadWrite, Permission::Manage];
        assert!(all.is_sorted());
        let may = all.map(|permission| (permission.may_write(), permission.may_manage()));
        assert_eq!(may, [(false, false), (true, false), (true, true)]);
    }

    #[test]
    fn who_manages_a_pool_reads_and_writes_it_for_a_version_that_knows_of_no_more() {
        let access = Access::Pools(Rights::from([
            (PoolId(1), Permission::Read),
            (PoolId(2), Permission::ReadWrite),
            (PoolId(3), Permission::Manage),
        ]));
        let principal = Principal::new(PublicKey([0; PUBLIC_KEY_BYTES]), access);
        let text = serde_json::to_string(&principal).unwrap();
        assert!(text.ends_with(
            r#""access":{"pools":{"1":"read","2":"read_write","3":"read_write"}},"manages":[3]}"#
        ));
        assert_eq!(serde_json::from_str::<Principal>(&text).unwrap(), principal);
        // That a pool is named there raises no other access.
        for (access, manages, read) in [
            (r#"{"pools":{"1":"read"}}"#, "[1,2]", r#"{"pools":{"1":"read"}}"#),
            (r#""monitor""#, "[1]", r#""monitor""#),
        ] {
            let key = PublicKey([0; PUBLIC_KEY_BYTES]);
            let text = format!(r#"{{"public_key":"{key}","access":{access},"manages":{manages}}}"#);
            let principal: Principal = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&principal.access).unwrap(), read);
        }
    }
    #[test]
    fn who_is_for_a_namespace_is_for_nothing_of_the_pool_and_for_nothing_at_all_before_who_knows_of_none() {
        let named =
            BTreeMap::from([("a".to_owned(), Permission::Manage), ("b".to_owned(), Permission::Read)]);
        let namespaces = BTreeMap::from([(PoolId(1), named)]);
        let rights = Rights { pools: [(PoolId(2), Permission::ReadWrite)].into(), namespaces };
        let access = Access::Pools(rights.clone());
        assert_eq!(access.to_pool(PoolId(1)), None);
        assert_eq!(access.to_volumes(PoolId(1), "a"), Some(Permission::Manage));
        assert_eq!(access.to_volumes(PoolId(1), "b"), Some(Permission::Read));
        assert_eq!(access.to_volumes(PoolId(1), "c"), None);
        assert_eq!(access.to_volumes(PoolId(3), "a"), None);
        assert_eq!(access.to_volumes(PoolId(2), "a"), Some(Permission::ReadWrite), "a pool has all of its");
        assert!(access.names_namespaces_of(PoolId(1)) && !access.names_namespaces_of(PoolId(2)));
        // The larger of the two counts.
        let both = Rights { pools: [(PoolId(1), Permission::Read)].into(), ..rights };
        assert_eq!(
            (both.to(PoolId(1), "a"), both.to(PoolId(1), "c")),
            (Some(Permission::Manage), Some(Permission::Read))
        );
        let named = both.named().collect::<Vec<_>>();
        assert_eq!(named, [(PoolId(1), "a", Permission::Manage), (PoolId(1), "b", Permission::Read)]);

        let principal = Principal::new(PublicKey([0; PUBLIC_KEY_BYTES]), access);
        let text = serde_json::to_string(&principal).unwrap();
        assert!(
            text.ends_with(
                r#""access":{"pools":{"2":"read_write"}},"namespaces":{"1":{"a":"manage","b":"read"}}}"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Principal>(&text).unwrap(), principal);
    }
}
