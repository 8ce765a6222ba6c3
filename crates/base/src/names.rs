//! Names of volumes: of which pool and namespace one is, and what it is called there.
//!
//! A volume's name is unique in its place, which is a pool's default namespace or one that somebody made in the pool. In full it
//! is written `POOL/NAME`, or `POOL/NAMESPACE/NAME`. A bare `NAME` says nothing of the place: whoever looks for it looks in all
//! places where it may be meant ([`ClusterMap::find_volume`]), and one that is found in several is an error, never a guess.

use crate::access::Rights;
use crate::ids::{PoolId, VolumeId};
use crate::map::{ClusterMap, VolumeInfo};
use std::fmt;
use std::str::FromStr;

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 100;

/// Which rule for names of pools, namespaces, volumes, snapshots and keys one breaks, if it breaks one.
///
/// # Errors
/// What is wrong with it, in words that follow "it".
pub fn check(name: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() {
        Err("is empty")
    } else if !name.bytes().all(allowed) {
        Err("has another character than those allowed")
    } else if name.len() > NAME_BYTES_MAX {
        Err("is longer than 100 characters")
    } else {
        Ok(())
    }
}

/// The name of a volume, as people write it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName {
    /// Where it is, if that is said.
    pub place: Option<PlaceName>,
    /// What it is called there.
    pub name: String,
}

/// The name of a pool and of a namespace in it. The default one has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceName {
    /// The pool.
    pub pool: String,
    /// The namespace; empty: the default one.
    pub namespace: String,
}

/// Why a text is no name of a volume.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error(
    "{text:?} is no name of a volume: its {part} {reason}; a volume is named NAME, POOL/NAME or POOL/NAMESPACE/NAME, each of 1 to \
     100 of the characters A-Z a-z 0-9 . _ -"
)]
pub struct NameError {
    /// The text, shortened.
    pub text: String,
    /// Which part of it.
    pub part: &'static str,
    /// Which rule that breaks.
    pub reason: &'static str,
}

impl NameError {
    fn new(text: &str, part: &'static str, reason: &'static str) -> NameError {
        NameError { text: text.chars().take(3 * NAME_BYTES_MAX).collect(), part, reason }
    }
}

impl FromStr for VolumeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<VolumeName, NameError> {
        let checked = |part, name: &str| match check(name) {
            Ok(()) => Ok(name.to_owned()),
            Err(reason) => Err(NameError::new(text, part, reason)),
        };
        let parts: Vec<&str> = text.splitn(4, '/').collect();
        let (place, name) = match parts[..] {
            [name] => (None, name),
            [pool, name] => (Some((pool, "")), name),
            [pool, namespace, name] => {
                checked("namespace", namespace)?;
                (Some((pool, namespace)), name)
            }
            _ => return Err(NameError::new(text, "place", "has more than a pool and a namespace")),
        };
        let place = match place {
            None => None,
            Some((pool, namespace)) => {
                Some(PlaceName { pool: checked("pool", pool)?, namespace: namespace.to_owned() })
            }
        };
        Ok(VolumeName { place, name: checked("name", name)? })
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            None => formatter.write_str(&self.name),
            Some(place) => write!(formatter, "{place}/{}", self.name),
        }
    }
}

impl FromStr for PlaceName {
    type Err = String;

    /// `POOL`, or `POOL/NAMESPACE`.
    fn from_str(text: &str) -> Result<PlaceName, String> {
        let (pool, namespace) = text.split_once('/').unwrap_or((text, ""));
        let is_named = text.contains('/');
        let wrong = |part, reason| {
            format!(
                "{text:?} is no place of volumes: its {part} {reason}; one is named POOL or POOL/NAMESPACE, each of 1 to 100 of the \
                 characters A-Z a-z 0-9 . _ -"
            )
        };
        check(pool).map_err(|reason| wrong("pool", reason))?;
        if is_named {
            check(namespace).map_err(|reason| wrong("namespace", reason))?;
        }
        Ok(PlaceName { pool: pool.to_owned(), namespace: namespace.to_owned() })
    }
}

impl fmt::Display for PlaceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.pool)?;
        if !self.namespace.is_empty() {
            write!(formatter, "/{}", self.namespace)?;
        }
        Ok(())
    }
}

/// Why a name leads to no volume.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Unfound {
    /// It cannot be one.
    #[error(transparent)]
    NoName(#[from] NameError),
    /// No volume has it.
    #[error("there is no volume {name}; `millpond volume ls` lists them")]
    Missing {
        /// The name.
        name: String,
    },
    /// Several have it.
    #[error("{}", ambiguous(name, all))]
    Ambiguous {
        /// The name.
        name: String,
        /// The full names of all that it may mean, in order.
        all: Vec<String>,
    },
}

/// What is said of a bare name that several volumes have.
#[must_use]
pub fn ambiguous(name: &str, all: &[String]) -> String {
    format!("{} volumes are called {name}: {}; say which, with its pool in front", all.len(), all.join(", "))
}

/// Whether a bare name may mean a volume that lies there, for whoever has those rights; None: for an owner.
///
/// It is looked for in the default namespaces of pools, and in those namespaces that a key was made for by name: of what its pools
/// hold beside, somebody else makes volumes there, and that must not change what its bare names mean.
#[must_use]
pub fn is_searched(rights: Option<&Rights>, pool: PoolId, namespace: &str) -> bool {
    match rights {
        None => namespace.is_empty(),
        Some(rights) if namespace.is_empty() => rights.to(pool, "").is_some(),
        Some(rights) => rights.namespaces.get(&pool).is_some_and(|named| named.contains_key(namespace)),
    }
}

impl ClusterMap {
    /// Whether a name may mean a volume, for whoever this map is for; whether it is there, in the trash or removed is not asked.
    #[must_use]
    pub fn may_mean(&self, name: &VolumeName, info: &VolumeInfo) -> bool {
        name.name == info.name
            && match &name.place {
                Some(place) => {
                    let pool = self.pools.get(&info.pool);
                    place.namespace == info.namespace && pool.is_some_and(|pool| pool.name == place.pool)
                }
                None => is_searched(self.rights.as_ref(), info.pool, &info.namespace),
            }
    }

    /// The volume that a name leads to, unless it was removed or lies in the trash.
    ///
    /// # Errors
    /// [`Unfound`].
    pub fn find_volume(&self, name: &str) -> Result<(VolumeId, &VolumeInfo), Unfound> {
        let wanted: VolumeName = name.parse()?;
        let listed = self.volumes.iter().filter(|(_, info)| info.is_listed());
        let mut found: Vec<(VolumeId, &VolumeInfo)> =
            listed.filter(|(_, info)| self.may_mean(&wanted, info)).map(|(id, info)| (*id, info)).collect();
        match found.pop() {
            None => Err(Unfound::Missing { name: name.to_owned() }),
            Some(only) if found.is_empty() => Ok(only),
            Some(last) => {
                let mut all: Vec<String> =
                    found.iter().chain([&last]).map(|(_, info)| self.full_name(info)).collect();
                all.sort_unstable();
                Err(Unfound::Ambiguous { name: name.to_owned(), all })
            }
        }
    }

    /// The volume that a name leads to, if it leads to one alone, which was not removed and does not lie in the trash.
    #[must_use]
    pub fn volume_named(&self, name: &str) -> Option<(VolumeId, &VolumeInfo)> {
        self.find_volume(name).ok()
    }

    /// Where a volume is.
    #[must_use]
    pub fn place_of(&self, info: &VolumeInfo) -> PlaceName {
        let pool = self.pools.get(&info.pool).map_or_else(|| info.pool.to_string(), |pool| pool.name.clone());
        PlaceName { pool, namespace: info.namespace.clone() }
    }

    /// The name of a volume in full, which is no other's.
    #[must_use]
    pub fn full_name(&self, info: &VolumeInfo) -> String {
        format!("{}/{}", self.place_of(info), info.name)
    }

    /// What a volume is called before people: its name alone in the default namespace of the only pool, else in full.
    #[must_use]
    pub fn shown_name(&self, info: &VolumeInfo) -> String {
        match info.namespace.is_empty() && self.pools.len() <= 1 {
            true => info.name.clone(),
            false => self.full_name(info),
        }
    }

    /// A name that leads to a volume, as short as it can be said: versions that know of no namespaces know bare names only.
    #[must_use]
    pub fn short_name(&self, volume: VolumeId, info: &VolumeInfo) -> String {
        match self.find_volume(&info.name) {
            Ok((found, _)) if found == volume => info.name.clone(),
            _ => self.full_name(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Permission;
    use crate::map::{PoolInfo, Trashed};
    use std::collections::BTreeMap;

    #[test]
    fn a_name_reads_back_what_it_prints_and_refuses_the_rest() {
        let place = |pool: &str, namespace: &str| {
            Some(PlaceName { pool: pool.to_owned(), namespace: namespace.to_owned() })
        };
        for (text, expected) in
            [("disk", None), ("p/disk", place("p", "")), ("p/n.s/disk-1_a", place("p", "n.s"))]
        {
            let name: VolumeName = text.parse().unwrap();
            assert_eq!(name.place, expected, "{text}");
            assert_eq!(name.to_string(), text);
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for (wrong, part) in [
            ("", "name is empty"),
            ("p/", "name is empty"),
            ("/disk", "pool is empty"),
            ("p//disk", "namespace is empty"),
            ("p/n/", "name is empty"),
            ("p/n/m/disk", "place has more"),
            ("p/n/disk/", "place has more"),
            ("disk@monday", "name has another character"),
            ("p/d isk", "name has another character"),
            ("p@x/disk", "pool has another character"),
            ("p/n@x/disk", "namespace has another character"),
            (&long, "name is longer"),
        ] {
            let error = wrong.parse::<VolumeName>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("POOL/NAMESPACE/NAME"), "{wrong}: {error}");
        }
        assert_eq!("p".parse(), Ok(place("p", "").unwrap()));
        assert_eq!("p/n".parse(), Ok(place("p", "n").unwrap()));
        assert_eq!(place("p", "n").unwrap().to_string(), "p/n");
        for wrong in ["", "/", "p/", "/n", "p/n/m", "p/n@x"] {
            assert!(wrong.parse::<PlaceName>().unwrap_err().contains("POOL/NAMESPACE"), "{wrong}");
        }
    }

    /// `a` in both pools and in a namespace of each, `b` in one pool, `c` in one namespace.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::default();
        for (id, name) in [(1, "p"), (2, "q")] {
            map.pools.insert(PoolId(id), PoolInfo { name: name.to_owned(), ..PoolInfo::default() });
        }
        let all = [(1, "", "a"), (2, "", "a"), (1, "n", "a"), (2, "n", "a"), (2, "", "b"), (1, "n", "c")];
        for (id, (pool, namespace, name)) in (1..).zip(all) {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let info = VolumeInfo { pool: PoolId(pool), namespace, name, ..VolumeInfo::default() };
            map.volumes.insert(VolumeId(id), info);
        }
        map
    }

    fn found(map: &ClusterMap, name: &str) -> Result<u64, Vec<String>> {
        match map.find_volume(name) {
            Ok((id, _)) => Ok(id.0),
            Err(Unfound::Ambiguous { all, .. }) => Err(all),
            Err(_) => Err(vec![]),
        }
    }

    #[test]
    fn a_bare_name_means_what_lies_in_a_default_namespace_if_one_does_and_nothing_if_several_do() {
        let mut map = map();
        assert_eq!(found(&map, "a"), Err(vec!["p/a".to_owned(), "q/a".to_owned()]));
        assert_eq!(map.volume_named("a"), None);
        assert_eq!(found(&map, "b"), Ok(5));
        assert_eq!(found(&map, "c"), Err(vec![]), "one in a namespace is named in full");
        for (name, id) in [("p/a", 1), ("q/a", 2), ("p/n/a", 3), ("q/n/a", 4), ("q/b", 5), ("p/n/c", 6)] {
            assert_eq!(found(&map, name), Ok(id), "{name}");
            let info = &map.volumes[&VolumeId(id)];
            assert_eq!((map.full_name(info).as_str(), map.shown_name(info).as_str()), (name, name));
            let short = if id == 5 { "b" } else { name };
            assert_eq!(map.short_name(VolumeId(id), info), short);
        }
        for missing in ["p/b", "p/c", "q/n/c", "x/a", "p/x/a", "p//a"] {
            assert_eq!(found(&map, missing), Err(vec![]), "{missing}");
        }
        map.volumes.get_mut(&VolumeId(2)).unwrap().trashed = Some(Trashed::default());
        assert_eq!(found(&map, "a"), Ok(1));
        map.volumes.get_mut(&VolumeId(1)).unwrap().removed = true;
        assert_eq!(found(&map, "a"), Err(vec![]));
        map.pools.remove(&PoolId(1));
        assert_eq!(map.shown_name(&map.volumes[&VolumeId(5)]), "b", "there is one pool");
        assert_eq!(map.shown_name(&map.volumes[&VolumeId(4)]), "q/n/a");
    }

    #[test]
    fn a_bare_name_of_a_key_means_what_lies_where_that_is_for_by_name() {
        let mut map = map();
        let seen = |map: &ClusterMap, name| found(map, name);
        map.rights = Some(Rights::from([(PoolId(1), Permission::Read)]));
        assert_eq!((seen(&map, "a"), seen(&map, "b"), seen(&map, "c")), (Ok(1), Err(vec![]), Err(vec![])));
        assert_eq!(seen(&map, "p/n/c"), Ok(6), "it sees the whole pool");
        let named = BTreeMap::from([("n".to_owned(), Permission::Manage)]);
        let only = Rights { namespaces: BTreeMap::from([(PoolId(1), named)]), ..Rights::default() };
        map.rights = Some(only.clone());
        assert_eq!((seen(&map, "a"), seen(&map, "b"), seen(&map, "c")), (Ok(3), Err(vec![]), Ok(6)));
        map.rights = Some(Rights { pools: BTreeMap::from([(PoolId(2), Permission::Read)]), ..only });
        assert_eq!(seen(&map, "a"), Err(vec!["p/n/a".to_owned(), "q/a".to_owned()]));
    }
}
