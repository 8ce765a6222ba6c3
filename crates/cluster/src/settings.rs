//! What people set for the whole cluster.

use super::current::{self, Known};
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, keys};
use base::{Profile, RecoveryShare};
use registry::Operation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long an OSD may be down before its data is placed elsewhere, unless something else is set.
const OSD_OUT_AFTER_SECONDS: u64 = 600;

/// How many operations of 4 KiB an OSD is taken to do in a second, unless something else is set: what one on a modest NVMe drive does
/// beside others with half of a core. A write counts for each of its copies.
const OSD_IOPS: u32 = 20_000;

/// What people set for the whole cluster. What they did not set is as if it were the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How long an OSD may be down before it is taken out, in seconds. 0: for ever.
    pub osd_out_after_seconds: u64,
    /// How many operations of 4 KiB an OSD is taken to do in a second: what may be reserved goes by it.
    pub osd_iops: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { osd_out_after_seconds: OSD_OUT_AFTER_SECONDS, osd_iops: OSD_IOPS }
    }
}

impl Settings {
    /// How long an OSD may be down before it is taken out. None: for ever.
    #[must_use]
    pub fn osd_out_after(&self) -> Option<Duration> {
        (self.osd_out_after_seconds > 0).then(|| Duration::from_secs(self.osd_out_after_seconds))
    }
}

impl Cluster {
    /// The settings.
    ///
    /// # Errors
    /// Those of the registry, or settings that cannot be read.
    pub async fn settings(&self) -> Result<Settings> {
        Ok(self.read(keys::SETTINGS).await?.value.unwrap_or_default())
    }

    /// Changes the settings.
    ///
    /// # Errors
    /// Those of the registry, or settings that cannot be read.
    pub async fn change_settings(&self, change: impl Fn(&mut Settings)) -> Result<()> {
        self.change_value(keys::SETTINGS, "the cluster's settings", change).await.map(drop)
    }

    /// Sets how much of what OSDs do may be recovery while they serve clients. Says whether that is a change.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn set_recovery_share(&self, share: RecoveryShare) -> Result<bool> {
        let set = |set: &mut Option<RecoveryShare>| *set = Some(share);
        self.change_value(keys::RECOVERY_SHARE, "the share of recovery", set).await
    }

    /// Has OSDs favour clients, or work that nobody waits for. The share of recovery is what the profile says from then on.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn set_profile(&self, profile: Profile) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<Profile> = self.read(keys::PROFILE).await?;
            let txn = read.replaced_by(&profile).then(Operation::delete(keys::RECOVERY_SHARE));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: "the profile".to_owned() })
    }

    /// Changes a value that is as if it were the default where nobody has set it. Says whether that is a change.
    pub(crate) async fn change_value<T>(&self, key: &str, what: &str, change: impl Fn(&mut T)) -> Result<bool>
    where
        T: Copy + Default + PartialEq + Serialize + DeserializeOwned,
    {
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<T> = self.read(key).await?;
            let before = read.value.unwrap_or_default();
            let mut value = before;
            change(&mut value);
            if value == before {
                return Ok(false);
            }
            if self.commit(read.replaced_by(&value)).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: what.to_owned() })
    }

    /// The settings, kept current by a task of its own for as long as a receiver lives.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch_settings(&self) -> tokio::sync::watch::Receiver<Known<Settings>> {
        current::keep_entry(self.registry.clone(), keys::SETTINGS)
    }
}
