//! Who may connect, and how: names, public keys, and what they may do; whether connections are encrypted. Secret keys are
//! never here.

use super::error::check_name;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use base::map::NamespaceInfo;
use base::{Access, Encryption, Limits, NodeId, Principal, PublicKey};
use registry::{Compare, Operation, Txn};
use std::collections::{BTreeMap, BTreeSet};

/// Namespaces that one key is for: with bare names it is looked into each, and each takes part in one transaction.
const NAMESPACES_MAX: usize = 32;

impl Cluster {
    /// Admits a new principal.
    ///
    /// # Errors
    /// [`ClusterError::NameInvalid`], [`ClusterError::AccessInvalid`], [`ClusterError::PrincipalExists`]; those of the
    /// registry.
    pub async fn add_principal(&self, name: &str, principal: &Principal) -> Result<()> {
        check_name("key", name)?;
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<Principal> = self.read(&keys::principal(name)).await?;
            if read.entry.is_some() {
                return Err(ClusterError::PrincipalExists { name: name.to_owned() });
            }
            let conditions = self.pools_are_there(principal).await?;
            let txn = conditions.when(read.unchanged()).then(Operation::put(&read.key, encode(principal)));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the key {name}") })
    }

    /// Admits a principal, or gives the one of that name this key and this access instead of what it had. Its limits stay.
    ///
    /// # Errors
    /// As [`Self::add_principal`], but for [`ClusterError::PrincipalExists`].
    pub async fn put_principal(&self, name: &str, principal: &Principal) -> Result<()> {
        check_name("key", name)?;
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<Principal> = self.read(&keys::principal(name)).await?;
            let limits = read.value.as_ref().map_or(principal.limits, |before| before.limits);
            let principal = Principal { limits, ..principal.clone() };
            if read.value.as_ref() == Some(&principal) {
                return Ok(());
            }
            let conditions = self.pools_are_there(&principal).await?;
            let txn = conditions.when(read.unchanged()).then(Operation::put(&read.key, encode(&principal)));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the key {name}") })
    }

    /// Sets how much may be done under a key. Answers what is set now.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchKey`]; those of the registry.
    pub async fn limit_principal(&self, name: &str, change: impl Fn(&mut Limits)) -> Result<Limits> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<Principal> = self.read(&keys::principal(name)).await?;
            let Some(mut principal) = read.value.clone() else {
                return Err(ClusterError::NoSuchKey { name: name.to_owned() });
            };
            change(&mut principal.limits);
            if self.commit(read.replaced_by(&principal)).await? {
                return Ok(principal.limits);
            }
        }
        Err(ClusterError::Contended { what: format!("the key {name}") })
    }

    /// Takes a principal's access away: its connections end as soon as the OSDs hear of it. Says whether there was one.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn remove_principal(&self, name: &str) -> Result<bool> {
        let key = keys::principal(name);
        let txn = Txn::new().when(Compare::Exists(key.clone())).then(Operation::delete(&key));
        self.commit(txn).await
    }

    /// All principals, by name.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn principals(&self) -> Result<BTreeMap<String, Principal>> {
        let all = self.read_all(keys::PRINCIPALS).await?;
        Ok(all
            .into_iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(keys::PRINCIPALS)?.to_owned(), value)))
            .collect())
    }

    /// Has connections encrypted from now on, or not any more. Those that stand are made anew as soon as their ends hear
    /// of it. Says whether that is a change.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn set_encryption(&self, encryption: Encryption) -> Result<bool> {
        let what = "whether connections are encrypted";
        self.change_value(keys::ENCRYPTION, what, |set| *set = encryption).await
    }

    /// A node's key, if it has one.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn key_of_node(&self, node: NodeId) -> Result<Option<PublicKey>> {
        let mut principals = self.principals().await?.into_values();
        let is_its = |principal: &Principal| principal.access == Access::Node(node);
        Ok(principals.find(is_its).map(|principal| principal.public_key))
    }

    /// A transaction under the condition that the pools and namespaces of an access are there.
    async fn pools_are_there(&self, principal: &Principal) -> Result<Txn> {
        let invalid = |reason| Err(ClusterError::AccessInvalid { reason });
        let Access::Pools(rights) = &principal.access else { return Ok(Txn::new()) };
        if rights.is_empty() {
            return invalid("it names no pool".to_owned());
        }
        let named = rights.named().count();
        if named > NAMESPACES_MAX {
            return invalid(format!(
                "it names {named} namespaces, and {NAMESPACES_MAX} are the most; make several keys, or one for the pool"
            ));
        }
        let mut txn = Txn::new();
        for &pool in rights.pools.keys().chain(rights.namespaces.keys()).collect::<BTreeSet<_>>() {
            let key = keys::pool(pool);
            if self.registry.get(&key).await?.is_none() {
                return invalid(format!("there is no {pool}"));
            }
            txn = txn.when(Compare::Exists(key));
        }
        for (pool, name, _) in rights.named() {
            let there: Read<NamespaceInfo> = self.read(&keys::namespace(pool, name)).await?;
            let Some(info) = &there.value else {
                return invalid(format!("{pool} has no namespace {name}"));
            };
            // Whoever removes the namespace meanwhile looks again whose keys are for it.
            txn = txn.when(there.unchanged()).then(Operation::put(&there.key, encode(info)));
        }
        Ok(txn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ClusterId;
    use registry::Registry;
    use registry_embedded::EmbeddedRegistry;
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test]
    async fn encryption_is_off_until_it_is_switched_and_whoever_watches_the_map_hears_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let id = ClusterId::from_bytes([7; 16]);
        let registry = EmbeddedRegistry::create(&directory.path().join("registry"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry) as Arc<dyn Registry>);
        cluster.create(id).await.unwrap();
        assert_eq!(cluster.map().await.unwrap().encryption, Encryption::Off);
        let mut maps = cluster.watch_map();
        for (encryption, is_change) in [
            (Encryption::Off, false),
            (Encryption::On, true),
            (Encryption::On, false),
            (Encryption::Off, true),
        ] {
            assert_eq!(cluster.set_encryption(encryption).await.unwrap(), is_change);
            let heard = maps.wait_for(|map| map.cluster == id && map.encryption == encryption);
            tokio::time::timeout(Duration::from_secs(20), heard).await.unwrap().unwrap();
        }
    }
}
