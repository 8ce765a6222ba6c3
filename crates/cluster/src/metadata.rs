//! What people and programs note beside a volume, a pool or a namespace: text by key. Nothing in the cluster heeds it.

use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, decode, encode, keys};
use base::{PlaceName, VolumeId};
use registry::{KeyValue, Operation, Txn};
use std::collections::BTreeMap;

/// Bytes of a key.
const KEY_BYTES_MAX: usize = 128;
/// Bytes of a value as it lies in the registry.
const VALUE_BYTES_MAX: usize = 4096;
/// Keys of one volume or place: with all of them full, half a mebibyte of the registry.
const KEYS_MAX: usize = 128;
/// Notes that a volume is made with, at most: they are made by one transaction with it.
const FIRST_MAX: usize = 16;

/// Beside what something is noted.
#[derive(Clone, Copy)]
enum Beside<'a> {
    /// A volume, by its name.
    Volume(&'a str),
    /// A pool, or a namespace in one.
    Place(&'a str),
}

/// Where notes are, as it was read: under which keys, how people call it, and how a transaction has whoever else adds a key there, or
/// removes all of it, look again.
struct Where {
    prefix: String,
    called: String,
    touch: Txn,
}

impl Cluster {
    /// What is noted beside a volume, by key.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn metadata(&self, volume: &str) -> Result<BTreeMap<String, String>> {
        let (id, ..) = self.find_volume(volume).await?;
        self.notes(&keys::metadata_of(id)).await
    }

    /// Notes something beside a volume, in place of what was there under that key.
    ///
    /// # Errors
    /// [`ClusterError::MetadataInvalid`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn set_metadata(&self, volume: &str, key: &str, value: &str) -> Result<()> {
        self.note(Beside::Volume(volume), key, value).await
    }

    /// Forgets what is noted under a key.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchMetadata`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn remove_metadata(&self, volume: &str, key: &str) -> Result<()> {
        self.forget_note(Beside::Volume(volume), key).await
    }

    /// What is noted beside a pool or a namespace, by key: `place` is `POOL` or `POOL/NAMESPACE`.
    ///
    /// # Errors
    /// [`ClusterError::PlaceInvalid`], [`ClusterError::NoSuchPool`], [`ClusterError::NoSuchNamespace`]; those of the registry.
    pub async fn place_metadata(&self, place: &str) -> Result<BTreeMap<String, String>> {
        self.notes(&self.find_beside(Beside::Place(place)).await?.prefix).await
    }

    /// Notes something beside a pool or a namespace.
    ///
    /// # Errors
    /// [`ClusterError::MetadataInvalid`]; those of [`Self::place_metadata`].
    pub async fn set_place_metadata(&self, place: &str, key: &str, value: &str) -> Result<()> {
        self.note(Beside::Place(place), key, value).await
    }

    /// Forgets what is noted beside a pool or a namespace under a key.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchMetadata`]; those of [`Self::place_metadata`].
    pub async fn remove_place_metadata(&self, place: &str, key: &str) -> Result<()> {
        self.forget_note(Beside::Place(place), key).await
    }

    async fn find_beside(&self, what: Beside<'_>) -> Result<Where> {
        match what {
            Beside::Volume(volume) => {
                let (id, read, info) = self.find_volume(volume).await?;
                // One that is removed meanwhile leaves nothing behind.
                let touch = read.replaced_by(&info);
                Ok(Where { prefix: keys::metadata_of(id), called: format!("the volume {volume}"), touch })
            }
            Beside::Place(place) => {
                let place: PlaceName = super::namespaces::parse(place)?;
                let (pool, touch) = self.touch_place(&place).await?;
                let prefix = keys::place_metadata_of(pool, &place.namespace);
                Ok(Where { prefix, called: place.to_string(), touch })
            }
        }
    }

    async fn note(&self, what: Beside<'_>, key: &str, value: &str) -> Result<()> {
        check(key, value)?;
        let mut called = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let Where { prefix, called: it, touch } = self.find_beside(what).await?;
            let known: Read<String> = self.read(&format!("{prefix}{key}")).await?;
            if known.value.is_none() && self.notes(&prefix).await?.len() >= KEYS_MAX {
                return Err(invalid(format!("{it} has {KEYS_MAX} keys, which is the most")));
            }
            let txn = touch.when(known.unchanged()).then(Operation::put(&known.key, encode(&value)));
            if self.commit(txn).await? {
                return Ok(());
            }
            called = it;
        }
        Err(ClusterError::Contended { what: called })
    }

    async fn forget_note(&self, what: Beside<'_>, key: &str) -> Result<()> {
        let mut called = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let Where { prefix, called: it, .. } = self.find_beside(what).await?;
            let known: Read<String> = self.read(&format!("{prefix}{key}")).await?;
            if known.value.is_none() {
                return Err(ClusterError::NoSuchMetadata { what: it, key: key.to_owned() });
            }
            let txn = Txn::new().when(known.unchanged()).then(Operation::delete(&known.key));
            if self.commit(txn).await? {
                return Ok(());
            }
            called = it;
        }
        Err(ClusterError::Contended { what: called })
    }

    async fn notes(&self, prefix: &str) -> Result<BTreeMap<String, String>> {
        let entries = self.registry.range(prefix).await?.entries;
        let read = |entry: &KeyValue| {
            let key = entry.key.strip_prefix(prefix).unwrap_or_default().to_owned();
            Ok((key, decode(&entry.key, &entry.value)?))
        };
        entries.iter().map(read).collect()
    }
}

/// Has notes be made beside a volume that a transaction makes.
///
/// # Errors
/// [`ClusterError::MetadataInvalid`].
pub(super) fn noted_first(mut txn: Txn, id: VolumeId, notes: &BTreeMap<String, String>) -> Result<Txn> {
    if notes.len() > FIRST_MAX {
        return Err(invalid(format!("a volume is made with {FIRST_MAX} notes at most")));
    }
    for (key, value) in notes {
        check(key, value)?;
        txn = txn.then(Operation::put(keys::metadatum(id, key), encode(value)));
    }
    Ok(txn)
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
        assert!(cluster.notes(&keys::metadata_of(volume)).await.unwrap().is_empty());
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

    #[tokio::test]
    async fn what_is_noted_beside_a_place_goes_with_it_and_is_no_other_place_s() {
        let cluster = cluster_of(2, 4).await;
        cluster.create_namespace("p", "n").await.unwrap();
        for (place, value) in [("p", "of the pool"), ("p/n", "of the namespace")] {
            cluster.set_place_metadata(place, "k", value).await.unwrap();
            assert_eq!(cluster.place_metadata(place).await.unwrap(), [("k".into(), value.into())].into());
        }
        cluster.remove_place_metadata("p", "k").await.unwrap();
        let error = cluster.remove_place_metadata("p", "k").await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchMetadata { .. }), "{error}");
        for (place, words) in [("q", "pool"), ("p/m", "namespace"), ("a b", "no place"), ("", "no place")] {
            let error = cluster.place_metadata(place).await.unwrap_err().to_string();
            assert!(error.contains(words), "{place}: {error}");
            let error = cluster.set_place_metadata(place, "k", "v").await.unwrap_err().to_string();
            assert!(error.contains(words), "{place}: {error}");
        }
        // One that is made later has nothing of one that was called so.
        cluster.remove_namespace("p", "n").await.unwrap();
        cluster.create_namespace("p", "n").await.unwrap();
        assert!(cluster.place_metadata("p/n").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_volume_is_made_with_notes_or_not_at_all() {
        let cluster = cluster_of(2, 4).await;
        let notes = |count: usize, key: &str| -> BTreeMap<String, String> {
            (0..count).map(|number| (format!("{key}{number}"), "v".to_owned())).collect()
        };
        for wrong in [notes(FIRST_MAX + 1, "k"), notes(1, "\n")] {
            let error = cluster.create_volume_noted("v", "p", 1 << 20, &wrong).await.unwrap_err();
            assert!(matches!(error, ClusterError::MetadataInvalid { .. }), "{error}");
        }
        assert!(matches!(cluster.metadata("v").await, Err(ClusterError::NoSuchVolume { .. })));
        cluster.create_volume_noted("v", "p", 1 << 20, &notes(FIRST_MAX, "k")).await.unwrap();
        assert_eq!(cluster.metadata("v").await.unwrap(), notes(FIRST_MAX, "k"));
    }
}
