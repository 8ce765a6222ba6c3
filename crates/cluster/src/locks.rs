//! Advisory locks of volumes: who works on one, as programs that heed them tell each other. They enforce nothing.
//!
//! A volume has locks by name. Each is held by one locker alone, or by several that share it under one tag; a locker may hold a shared
//! one several times, under different cookies. They stay until somebody removes them, whatever becomes of the lockers, and go with the
//! volume.

use super::clerk::Bearer;
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, by, keys};
use registry::Operation;
use serde::{Deserialize, Serialize};

/// Lockers of one volume, of all its locks.
const LOCKERS_MAX: usize = 64;
/// Bytes of a name, a locker, a cookie or a tag: with all of them full, some tens of kilobytes of the registry.
const TEXT_BYTES_MAX: usize = 128;
/// Bytes of the description of a locker.
const DESCRIPTION_BYTES_MAX: usize = 256;

/// A lock as one locker holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRecord {
    /// The name of the lock.
    pub name: String,
    /// Who holds it, as it calls itself.
    pub locker: String,
    /// What tells this from other times that the same locker holds it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cookie: String,
    /// With whom it is shared: with those of the same tag. None: with nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Who that is, for people: process and host.
    pub description: String,
    /// By whose key it came, where a node noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Since when, by the locker's clock.
    pub since_unix_seconds: u64,
}

impl Cluster {
    /// The locks of a volume, in the order in which they were taken.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn locks(&self, volume: &str) -> Result<Vec<LockRecord>> {
        self.locks_by(None, volume).await
    }

    pub(super) async fn locks_by(&self, bearer: Option<&Bearer>, volume: &str) -> Result<Vec<LockRecord>> {
        let (id, _, info) = self.find_volume_by(bearer, volume).await?;
        bearer.map_or(Ok(()), |bearer| bearer.permission(&info).map(drop))?;
        let read: Read<Vec<LockRecord>> = self.read(&keys::locks(id)).await?;
        Ok(read.value.unwrap_or_default())
    }

    /// Takes a lock.
    ///
    /// # Errors
    /// [`ClusterError::LockHeld`], [`ClusterError::LockOwn`], [`ClusterError::LockInvalid`], [`ClusterError::NoSuchVolume`]; those of
    /// the registry.
    pub async fn lock(&self, volume: &str, lock: LockRecord) -> Result<()> {
        self.lock_by(None, volume, lock).await
    }

    pub(super) async fn lock_by(
        &self,
        bearer: Option<&Bearer>,
        volume: &str,
        lock: LockRecord,
    ) -> Result<()> {
        check(&lock)?;
        let lock = LockRecord { principal: bearer.map(|bearer| bearer.name.clone()), ..lock };
        for _ in 0..ATTEMPTS_MAX {
            let (id, there, info) = self.find_volume_by(bearer, volume).await?;
            bearer.map_or(Ok(()), |bearer| bearer.may_lock(&info))?;
            let read: Read<Vec<LockRecord>> = self.read(&keys::locks(id)).await?;
            let mut locks = read.value.clone().unwrap_or_default();
            let (name, volume_name) = (lock.name.clone(), volume.to_owned());
            let mut held = locks.iter().filter(|held| held.name == lock.name);
            // Who takes what it has already is told so, and not that somebody has it.
            if held.clone().any(|held| is(held, [&lock.name, &lock.locker, &lock.cookie])) {
                return Err(ClusterError::LockOwn { volume: volume_name, name });
            }
            if let Some(held) = held.find(|held| held.tag.is_none() || held.tag != lock.tag) {
                let LockRecord { locker, description, tag, .. } = held.clone();
                let how = tag.map_or_else(|| "alone".to_owned(), |tag| format!("shared as {tag:?}"));
                let holder = format!("{locker} ({description}), {how}");
                return Err(ClusterError::LockHeld { volume: volume_name, name, holder });
            }
            if locks.len() >= LOCKERS_MAX {
                return Err(invalid(format!(
                    "the locks of volume {volume} have {LOCKERS_MAX} lockers, which is the most"
                )));
            }
            locks.push(lock.clone());
            // One that is removed meanwhile leaves nothing behind.
            if self.commit(by(bearer, read.replaced_by(&locks).when(there.unchanged()))).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the locks of volume {volume}") })
    }

    /// Removes a lock that a locker has, or breaks it: `which` is its name, the locker, and the cookie.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchLock`], [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn unlock(&self, volume: &str, which: [&str; 3]) -> Result<()> {
        self.unlock_by(None, volume, which).await
    }

    pub(super) async fn unlock_by(
        &self,
        bearer: Option<&Bearer>,
        volume: &str,
        which: [&str; 3],
    ) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, _, info) = self.find_volume_by(bearer, volume).await?;
            bearer.map_or(Ok(()), |bearer| bearer.may_lock(&info))?;
            let read: Read<Vec<LockRecord>> = self.read(&keys::locks(id)).await?;
            let mut locks = read.value.clone().unwrap_or_default();
            let Some(at) = locks.iter().position(|held| is(held, which)) else {
                let [name, locker, _] = which.map(str::to_owned);
                return Err(ClusterError::NoSuchLock { volume: volume.to_owned(), name, locker });
            };
            if let Some(bearer) = bearer {
                bearer.may_break_lock(&info, locks[at].principal.as_ref())?;
            }
            locks.remove(at);
            let mut txn = read.replaced_by(&locks);
            if locks.is_empty() {
                txn = registry::Txn::new().when(read.unchanged()).then(Operation::delete(&read.key));
            }
            if self.commit(by(bearer, txn)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the locks of volume {volume}") })
    }
}

fn is(lock: &LockRecord, which: [&str; 3]) -> bool {
    [&*lock.name, &*lock.locker, &*lock.cookie] == which
}

fn invalid(reason: String) -> ClusterError {
    ClusterError::LockInvalid { reason }
}

fn check(lock: &LockRecord) -> Result<()> {
    let LockRecord { name, locker, cookie, tag, description, .. } = lock;
    let texts = [(name, 1), (locker, 1), (cookie, 0)];
    let texts = texts.into_iter().chain(tag.iter().map(|tag| (tag, 1)));
    let is_wrong = |text: &str| text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control);
    if texts.into_iter().any(|(text, bytes_min)| text.len() < bytes_min || is_wrong(text)) {
        return Err(invalid(format!(
            "the names of a lock, its locker and its tag have 1 to {TEXT_BYTES_MAX} bytes, a cookie none to as many, and none \
             of them control characters"
        )));
    }
    if description.len() > DESCRIPTION_BYTES_MAX || description.chars().any(char::is_control) {
        return Err(invalid(format!("a locker describes itself in {DESCRIPTION_BYTES_MAX} printable bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::cluster_of;
    use base::map::Trashed;

    fn lock(name: &str, locker: &str, cookie: &str, tag: Option<&str>) -> LockRecord {
        let description = format!("{locker}, a test");
        let [name, locker, cookie] = [name, locker, cookie].map(str::to_owned);
        let (tag, since_unix_seconds) = (tag.map(str::to_owned), 7);
        LockRecord { name, locker, cookie, tag, description, principal: None, since_unix_seconds }
    }

    #[tokio::test]
    async fn a_lock_is_held_by_one_or_shared_by_those_of_one_tag_until_it_is_removed() {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        let take = async |name, locker, cookie, tag| cluster.lock("v", lock(name, locker, cookie, tag)).await;
        let held = |taken: Result<()>, words: &str| match taken {
            Err(ClusterError::LockHeld { holder, .. }) => assert!(holder.contains(words), "{holder}"),
            other => panic!("{other:?}"),
        };
        take("a", "one", "", None).await.unwrap();
        held(take("a", "two", "", None).await, "one (one, a test), alone");
        held(take("a", "two", "", Some("t")).await, "alone");
        held(take("a", "one", "c", None).await, "alone");
        for tag in [None, Some("t")] {
            assert!(matches!(take("a", "one", "", tag).await, Err(ClusterError::LockOwn { .. })));
        }
        take("b", "one", "", Some("t")).await.unwrap();
        take("b", "one", "c", Some("t")).await.unwrap();
        take("b", "two", "", Some("t")).await.unwrap();
        held(take("b", "three", "", Some("u")).await, "shared as \"t\"");
        held(take("b", "three", "", None).await, "shared as \"t\"");
        assert_eq!(cluster.locks("v").await.unwrap().len(), 4);

        for which in [["a", "two", ""], ["a", "one", "c"], ["c", "one", ""]] {
            let error = cluster.unlock("v", which).await.unwrap_err();
            assert!(matches!(error, ClusterError::NoSuchLock { .. }), "{error}");
        }
        cluster.unlock("v", ["a", "one", ""]).await.unwrap();
        take("a", "two", "", Some("t")).await.unwrap();
        // They enforce nothing, and stay with the volume.
        cluster.trash_volume("v", Trashed::default()).await.unwrap();
        cluster.restore_volume(volume, Some("w")).await.unwrap();
        let left = cluster.locks("w").await.unwrap();
        assert_eq!(left.iter().map(|one| &*one.locker).collect::<Vec<_>>(), ["one", "one", "two", "two"]);
        cluster.remove_volume("w").await.unwrap();
        let left = cluster.registry().range("millpond/locks/").await.unwrap().entries;
        assert!(left.is_empty(), "{left:?}");
    }

    #[tokio::test]
    async fn locks_are_bounded_in_number_and_size() {
        let cluster = cluster_of(2, 4).await;
        cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let fine = lock("a", "b", "c", Some("d"));
        for wrong in [
            LockRecord { name: String::new(), ..fine.clone() },
            LockRecord { locker: String::new(), ..fine.clone() },
            LockRecord { tag: Some(String::new()), ..fine.clone() },
            LockRecord { name: long.clone(), ..fine.clone() },
            LockRecord { locker: "a\n".to_owned(), ..fine.clone() },
            LockRecord { cookie: long.clone(), ..fine.clone() },
            LockRecord { tag: Some(long.clone()), ..fine.clone() },
            LockRecord { description: "\u{1b}[2J".to_owned(), ..fine.clone() },
            LockRecord { description: "x".repeat(DESCRIPTION_BYTES_MAX + 1), ..fine.clone() },
        ] {
            let error = cluster.lock("v", wrong).await.unwrap_err();
            assert!(matches!(error, ClusterError::LockInvalid { .. }), "{error}");
        }
        for number in 0..LOCKERS_MAX {
            cluster.lock("v", lock("a", &number.to_string(), "", Some("t"))).await.unwrap();
        }
        let error = cluster.lock("v", lock("b", "one more", "", None)).await.unwrap_err();
        assert!(error.to_string().contains("64 lockers"), "{error}");
        cluster.unlock("v", ["a", "5", ""]).await.unwrap();
        cluster.lock("v", lock("b", "one more", "", None)).await.unwrap();
    }
}
