//! What people and programs note beside a volume: text by key. Nothing in the cluster heeds it.

use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, decode, encode, keys};
use base::VolumeId;
use registry::{KeyValue, Operation, Txn};
use std::collections::BTreeMap;

/// Bytes of a key.
const KEY_BYTES_MAX: usize = 128;
/// Bytes of a value as it lies in the registry.
const VALUE_BYTES_MAX: usize = 4096;
/// Keys of one volume: with all of them full, half a mebibyte of the registry.
const KEYS_MAX: usize = 128;

impl Cluster {
    /// What is noted beside a volume, by key.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn metadata(&self, volume: &str) -> Result<BTreeMap<String, String>> {
        let (id, ..) = self.find_volume(volume).await?;
        self.metadata_of(id).await
    }

    /// Notes something beside a volume, in place of what was there under that key.
    ///
    /// # Errors
    /// [`ClusterError::MetadataInvalid`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn set_metadata(&self, volume: &str, key: &str, value: &str) -> Result<()> {
        check(key, value)?;
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(volume).await?;
            let known: Read<String> = self.read(&keys::metadatum(id, key)).await?;
            // One that is removed meanwhile leaves nothing behind.
            let mut txn = known.replaced_by(&value).when(read.unchanged());
            if known.value.is_none() {
                if self.metadata_of(id).await?.len() >= KEYS_MAX {
                    return Err(invalid(format!(
                        "the volume {volume} has {KEYS_MAX} keys, which is the most"
                    )));
                }
                // Whoever adds another key at the same time counts again.
                txn = txn.then(Operation::put(&read.key, encode(&info)));
            }
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {volume}") })
    }

    /// Forgets what is noted under a key.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchMetadata`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn remove_metadata(&self, volume: &str, key: &str) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, ..) = self.find_volume(volume).await?;
            let known: Read<String> = self.read(&keys::metadatum(id, key)).await?;
            if known.value.is_none() {
                let (volume, key) = (volume.to_owned(), key.to_owned());
                return Err(ClusterError::NoSuchMetadata { volume, key });
            }
            let txn = Txn::new().when(known.unchanged()).then(Operation::delete(&known.key));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {volume}") })
    }

    async fn metadata_of(&self, volume: VolumeId) -> Result<BTreeMap<String, String>> {
        let prefix = keys::metadata_of(volume);
        let entries = self.registry.range(&prefix).await?.entries;
        let read = |entry: &KeyValue| {
            let key = entry.key.strip_prefix(&prefix).unwrap_or_default().to_owned();
            Ok((key, decode(&entry.key, &entry.value)?))
        };
        entries.iter().map(read).collect()
    }
}

fn invalid(reason: String) -> ClusterError {
    ClusterError::MetadataInvalid { reason }
}

fn check(key: &str, value: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
        return Err(invalid(format!("a key has 1 to {KEY_BYTES_MAX} bytes, and no control characters")));
    }
    let bytes = encode(&value).as_bytes().len();
    if bytes > VALUE_BYTES_MAX {
        return Err(invalid(format!(
            "a value takes {VALUE_BYTES_MAX} bytes of JSON at most, and this one {bytes}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::cluster_of;
    use base::map::Trashed;

    #[tokio::test]
    async fn what_is_noted_beside_a_volume_stays_with_it_and_goes_with_it() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        // Of whose id another one's begins with.
        let mut others = Vec::new();
        while others.iter().all(|other: &VolumeId| !other.0.to_string().starts_with(&volume.0.to_string())) {
            let name = format!("o{}", others.len());
            others.push(cluster.create_volume(&name, "p", 1 << 20).await.unwrap());
            cluster.set_metadata(&name, "owner", "another").await.unwrap();
        }
        for (key, value) in [("owner", "mail"), ("a/b c", "é\n"), ("owner", "web"), ("empty", "")] {
            cluster.set_metadata("v", key, value).await.unwrap();
        }
        let noted = cluster.metadata("v").await.unwrap();
        let noted: Vec<_> = noted.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(noted, [("a/b c", "é\n"), ("empty", ""), ("owner", "web")]);
        cluster.remove_metadata("v", "empty").await.unwrap();
        let error = cluster.remove_metadata("v", "empty").await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchMetadata { .. }), "{error}");
        cluster.rename_volume("v", "w").await.unwrap();
        assert!(matches!(cluster.metadata("v").await, Err(ClusterError::NoSuchVolume { .. })));
        cluster.trash_volume("w", Trashed::default()).await.unwrap();
        assert!(matches!(cluster.set_metadata("w", "k", "v").await, Err(ClusterError::NoSuchVolume { .. })));
        cluster.restore_volume(volume, None).await.unwrap();
        assert_eq!(cluster.metadata("w").await.unwrap().len(), 2);
        cluster.remove_volume("w").await.unwrap();
        assert!(cluster.metadata_of(volume).await.unwrap().is_empty());
        assert_eq!(cluster.metadata("o0").await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn keys_and_values_are_bounded_and_so_is_their_number() {
        let cluster = cluster_of(2, 4).await;
        cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        let long = |bytes: usize| "x".repeat(bytes);
        for (key, value) in [
            (String::new(), String::new()),
            (long(KEY_BYTES_MAX + 1), String::new()),
            ("a\nb".to_owned(), String::new()),
            ("a".to_owned(), long(VALUE_BYTES_MAX - 1)),
            ("a".to_owned(), "\u{1}".repeat(VALUE_BYTES_MAX / 6 + 1)),
        ] {
            let error = cluster.set_metadata("v", &key, &value).await.unwrap_err();
            assert!(matches!(error, ClusterError::MetadataInvalid { .. }), "{error}");
        }
        cluster.set_metadata("v", &long(KEY_BYTES_MAX), &long(VALUE_BYTES_MAX - 2)).await.unwrap();
        for number in 1..KEYS_MAX {
            cluster.set_metadata("v", &number.to_string(), "").await.unwrap();
        }
        let error = cluster.set_metadata("v", "one more", "").await.unwrap_err().to_string();
        assert!(error.contains("128 keys"), "{error}");
        // What is there is replaced still.
        cluster.set_metadata("v", "1", "other").await.unwrap();
        assert_eq!(cluster.metadata("v").await.unwrap()["1"], "other");
    }
}
