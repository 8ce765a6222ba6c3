//! Changes of volumes, as whoever may asks a [`Clerk`](super::Clerk) for them.
//!
//! Whoever comes with a key has them done by the same code as an owner: by a [`Cluster`] that was made for that key. Such a one finds
//! no volume, no pool and nothing in the trash but of pools and namespaces whose volumes the key may change: where a volume is is
//! looked at before anything else of it, that never changes, and no id is used twice. Only what clones are made of it may also have
//! from where it reads. Each transaction is under the condition that the key's entry
//! is what it was when the question came; so whose key was removed or changed meanwhile changes nothing any more.
//!
//! What is in here is all that such a key may have changed. Limits, schedules, pools and keys are the owner's.

use super::{Cluster, GroupChange, Result, WantedSnapshot};
use base::map::{Trashed, VolumeInfo};
use base::{Generation, LayerId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A change of volumes: each is an operation of [`Cluster`], which says what its fields are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the operations of `Cluster` say what the fields are")]
pub enum VolumeChange {
    /// [`Cluster::create_volume_noted`]. Answered with [`Changed::Volume`].
    Create {
        name: String,
        pool: String,
        bytes: u64,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        notes: BTreeMap<String, String>,
    },
    /// [`Cluster::resize_volume`].
    Resize { name: String, bytes: u64, allow_shrink: bool },
    /// [`Cluster::rename_volume`].
    Rename { name: String, new: String },
    /// [`Cluster::remove_volume`]. Answered with [`Changed::Volume`].
    Remove { name: String },
    /// [`Cluster::trash_volume`], at a time by the clock of whoever asks. Answered with [`Changed::Volume`].
    Trash {
        name: String,
        at_unix_seconds: u64,
        keep_seconds: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guarded_until_unix_seconds: Option<u64>,
    },
    /// [`Cluster::restore_volume`].
    Restore { id: VolumeId, name: Option<String> },
    /// [`Cluster::purge_volume`].
    Purge { id: VolumeId, generation: Generation },
    /// [`Cluster::clone_volume_noted`]. Answered with [`Changed::Volume`].
    Clone {
        volume: String,
        snapshot: String,
        name: String,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        notes: BTreeMap<String, String>,
    },
    /// [`Cluster::flatten_volume`].
    Flatten { name: String, is_wanted: bool },
    /// [`Cluster::roll_back_volume`].
    RollBack { volume: String, snapshot: String },
    /// [`Cluster::take_snapshots`]. Answered with [`Changed::Snapshots`].
    TakeSnapshots { wanted: Vec<WantedSnapshot>, at_unix_seconds: u64 },
    /// [`Cluster::rename_snapshot`].
    RenameSnapshot { volume: String, name: String, new: String },
    /// [`Cluster::protect_snapshot`].
    ProtectSnapshot { volume: String, name: String, protected: bool },
    /// [`Cluster::remove_snapshots`]. Answered with [`Changed::Snapshots`].
    RemoveSnapshots { volume: String, names: BTreeSet<String> },
    /// [`Cluster::set_metadata`].
    SetMetadata { volume: String, key: String, value: String },
    /// [`Cluster::remove_metadata`].
    RemoveMetadata { volume: String, key: String },
    /// [`Cluster::set_place_metadata`].
    SetPlaceMetadata { place: String, key: String, value: String },
    /// [`Cluster::remove_place_metadata`].
    RemovePlaceMetadata { place: String, key: String },
    /// [`Cluster::change_group`].
    Group { name: String, change: GroupChange },
    /// [`Cluster::take_away`].
    TakeAway { volume: String, generation: Generation },
    /// [`Cluster::create_namespace`].
    CreateNamespace { pool: String, name: String },
    /// [`Cluster::remove_namespace`].
    RemoveNamespace { pool: String, name: String },
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    /// It is done.
    Done,
    /// There is nothing to do any more: it is not as it was thought to be.
    Nothing,
    /// It is done, with that volume.
    Volume(VolumeId),
    /// These snapshots were made or removed, in the order in which they were named.
    Snapshots(Vec<LayerId>),
}

impl Cluster {
    /// Changes volumes.
    ///
    /// # Errors
    /// Those of the operation that does it; [`RegistryError::Forbidden`](registry::RegistryError::Forbidden).
    pub(super) async fn change_volumes(&self, change: VolumeChange) -> Result<Changed> {
        use VolumeChange as To;
        let done = match change {
            To::Create { name, pool, bytes, notes } => {
                return self.create_volume_noted(&name, &pool, bytes, &notes).await.map(Changed::Volume);
            }
            To::Remove { name } => return self.remove_volume(&name).await.map(Changed::Volume),
            To::Trash { name, at_unix_seconds, keep_seconds, guarded_until_unix_seconds } => {
                // When it is purged the manager says.
                let until_unix_seconds = None;
                let trashed =
                    Trashed { at_unix_seconds, keep_seconds, until_unix_seconds, guarded_until_unix_seconds };
                return self.trash_volume(&name, trashed).await.map(Changed::Volume);
            }
            To::Purge { id, generation } => {
                let is_purged = self.purge_volume(id, generation).await?;
                return Ok(if is_purged { Changed::Done } else { Changed::Nothing });
            }
            To::Clone { volume, snapshot, name, notes } => {
                let made = self.clone_volume_noted(&volume, &snapshot, &name, &notes).await;
                return made.map(Changed::Volume);
            }
            To::TakeSnapshots { wanted, at_unix_seconds } => {
                return self.take_snapshots(&wanted, at_unix_seconds).await.map(Changed::Snapshots);
            }
            To::RemoveSnapshots { volume, names } => {
                return self.remove_snapshots(&volume, &names).await.map(Changed::Snapshots);
            }
            To::Resize { name, bytes, allow_shrink } => self.resize_volume(&name, bytes, allow_shrink).await,
            To::Rename { name, new } => self.rename_volume(&name, &new).await,
            To::Restore { id, name } => self.restore_volume(id, name.as_deref()).await,
            To::Flatten { name, is_wanted } => self.flatten_volume(&name, is_wanted).await,
            To::RollBack { volume, snapshot } => self.roll_back_volume(&volume, &snapshot).await.map(drop),
            To::RenameSnapshot { volume, name, new } => self.rename_snapshot(&volume, &name, &new).await,
            To::ProtectSnapshot { volume, name, protected } => {
                self.protect_snapshot(&volume, &name, protected).await
            }
            To::SetMetadata { volume, key, value } => self.set_metadata(&volume, &key, &value).await,
            To::RemoveMetadata { volume, key } => self.remove_metadata(&volume, &key).await,
            To::SetPlaceMetadata { place, key, value } => self.set_place_metadata(&place, &key, &value).await,
            To::RemovePlaceMetadata { place, key } => self.remove_place_metadata(&place, &key).await,
            To::Group { name, change } => self.change_group(&name, change).await,
            To::TakeAway { volume, generation } => self.take_away(&volume, generation).await,
            To::CreateNamespace { pool, name } => self.create_namespace(&pool, &name).await,
            To::RemoveNamespace { pool, name } => self.remove_namespace(&pool, &name).await,
        };
        done.map(|()| Changed::Done)
    }

    /// Whether whoever this is done for may change a volume. An owner may.
    pub(super) fn check_managed(&self, info: &VolumeInfo) -> Result<()> {
        self.bearer.as_ref().map_or(Ok(()), |bearer| bearer.may_manage(info))
    }
}
