//! The cluster map: what the registry says of nodes, OSDs, pools, placement groups and volumes, at one revision.

pub use crate::topology::{
    DeviceClass, FailureDomain, Location, NodeInfo, PlacementRule, Reweight, ReweightError, UnknownWord,
};

use crate::access::{Access, Encryption, Principal, PublicKey, Rights};
use crate::ids::{
    ClusterId, CutId, Epoch, Generation, History, LayerId, NodeId, OsdId, OsdUuid, PgId, PoolId, ScheduleId,
    VolumeId,
};
use crate::limits::Limits;
use crate::profile::{Profile, WorkClass};
use crate::qos::Qos;
use crate::recovery::RecoveryShare;
use crate::schedule::Schedule;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Whether data is placed on an OSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Yes.
    #[default]
    In,
    /// No: somebody took it out. What it holds is moved elsewhere.
    Out,
    /// No: it was down for too long. It is in again when it is back.
    OutWhileDown,
}

/// One OSD as the cluster knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdInfo {
    /// The formatting of its drive, so that a foreign drive is not taken for it.
    pub uuid: OsdUuid,
    /// The node that runs it.
    pub node: NodeId,
    /// Its size in bytes, as formatted.
    pub bytes: u64,
    /// Where it listens while it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The program that runs it knows layers of volumes.
    #[serde(default)]
    pub knows_layers: bool,
    /// Counts its starts, so that a restart is noticed even when the address stays.
    #[serde(default)]
    pub incarnation: u64,
    /// Whether data is placed on it.
    #[serde(default)]
    pub admission: Admission,
    /// What kind of drive it is on.
    #[serde(default)]
    pub device_class: DeviceClass,
    /// How much of its part it shall hold.
    #[serde(default)]
    pub reweight: Reweight,
}

/// A pool: how often and how finely its data is spread, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Copies of each object.
    pub size: u32,
    /// In-sync copies below which a placement group stops.
    pub min_size: u32,
    /// Its placement groups. Those that were split off since are counted when all are.
    pub pg_count: u32,
    /// Twice as many, while they are being split one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_to: Option<u32>,
    /// Whether the manager has them split when their number is too small for the OSDs.
    #[serde(default)]
    pub pg_autoscale: bool,
    /// Where its replicas may lie.
    #[serde(default)]
    pub rule: PlacementRule,
}

impl PoolInfo {
    /// One more than the largest number that a group of the pool can have now.
    #[must_use]
    pub fn pg_numbers(&self) -> u32 {
        self.split_to.unwrap_or(self.pg_count)
    }
}

/// The configuration of a placement group. Changed only by compare-and-swap, `epoch` + 1 each time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgConfig {
    /// The version of this configuration.
    pub epoch: Epoch,
    /// Who orders its writes and serves its reads; one of `in_sync`.
    pub primary: OsdId,
    /// Everyone who holds every acknowledged write, the primary among them.
    pub in_sync: Vec<OsdId>,
    /// Those who are catching up.
    #[serde(default)]
    pub learners: Vec<OsdId>,
    /// Its present order begins behind the floor of this history, which is the next one each time that the group is given up.
    /// No change of the configuration goes back to an earlier one.
    #[serde(default, skip_serializing_if = "History::is_first")]
    pub history: History,
}

/// A namespace: volumes of a pool that have names of their own, and keys that are for these alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceInfo {}

/// A volume.
///
/// Written as JSON, its name has that of its namespace in front, as `NAMESPACE/NAME`: a version that knows of no namespaces carries
/// it along when it changes something of the volume, and takes it for that of none that it could make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct VolumeInfo {
    /// Its name, unique in its namespace.
    pub name: String,
    /// The namespace of its pool that it is in; empty: the default one. It stays there for good.
    #[serde(skip)]
    pub namespace: String,
    /// The pool it lies in.
    pub pool: PoolId,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of the layer that it writes to: one more with each snapshot.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub head: u32,
    /// Of which of its layers another one lies beneath than that of the number below, and which: one for each time that it was
    /// rolled back, as far as somebody sees it still.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bends: BTreeMap<u32, u32>,
    /// What lies beneath its first layer: the snapshot that it was cloned from. A volume that is no clone, or was flattened, has
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<LayerId>,
    /// The generation of its newest exclusive attach, or of its being put into the trash since; older ones are fenced.
    #[serde(default)]
    pub generation: Generation,
    /// It was removed: its objects are deleted as OSDs come to it, its id is never used again.
    #[serde(default)]
    pub removed: bool,
    /// It was made smaller, and what it held beyond its end may not be deleted yet: it does not grow before that. A volume
    /// that was made smaller once more has the newer number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutId>,
    /// Snapshots of it were removed, and what only they held may not be deleted yet. Of a volume that lost more since it is the
    /// newer number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<CutId>,
    /// It is being flattened: what it sees of its parent is copied to it, and when all of it is, it has none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flatten: Option<CutId>,
    /// How much clients may do with it.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// What it has of OSDs where several volumes want more than these do.
    #[serde(default, skip_serializing_if = "Qos::is_default")]
    pub qos: Qos,
    /// It lies in the trash: its name is free, nobody attaches it, and all that it holds is kept until it is purged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trashed: Option<Trashed>,
}

impl Serialize for VolumeInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.namespace.is_empty() {
            return VolumeInfo::serialize(self, serializer);
        }
        let name = format!("{}/{}", self.namespace, self.name);
        VolumeInfo::serialize(&VolumeInfo { name, ..self.clone() }, serializer)
    }
}

impl<'de> Deserialize<'de> for VolumeInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VolumeInfo, D::Error> {
        let mut info = VolumeInfo::deserialize(deserializer)?;
        if let Some((namespace, name)) = info.name.split_once('/') {
            (info.namespace, info.name) = (namespace.to_owned(), name.to_owned());
        }
        Ok(info)
    }
}

impl VolumeInfo {
    /// The layer that it writes to, where it is the volume of that id.
    #[must_use]
    pub fn head_layer(&self, id: VolumeId) -> LayerId {
        id.layer(self.head)
    }

    /// Whether people see it under its name: it was neither removed nor does it lie in the trash.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        !self.removed && self.trashed.is_none()
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A volume's time in the trash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trashed {
    /// When it came there, in seconds since 1970, by the clock of whoever put it there: for people.
    pub at_unix_seconds: u64,
    /// How long it is kept, in seconds. None: until somebody purges it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u64>,
    /// When it is purged, in seconds since 1970, by the clock of the manager, which says so when it first sees it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_seconds: Option<u64>,
    /// Until when programs that know of such a time refuse to purge it, in seconds since 1970, by the clock of whoever put it there.
    /// Nobody else heeds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarded_until_unix_seconds: Option<u64>,
}

/// A snapshot: what a volume held when it was made. It is known by the number of the layer that was the volume's newest until
/// then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its name, unique among those of its volume.
    pub name: String,
    /// How large the volume was, in bytes.
    pub bytes: u64,
    /// When it was made, in seconds since 1970, by the clock of whoever made it: for people.
    pub at_unix_seconds: u64,
    /// It is not removed before it is unprotected.
    #[serde(default, skip_serializing_if = "is_false")]
    pub protected: bool,
    /// The volume had been made smaller when it was made, and what lay beyond its end might not have been deleted yet. Nobody
    /// reads that; who begins with what the snapshot holds has to delete it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_ragged: bool,
    /// The schedule that it was made for, which removes it again. There may be none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleId>,
}

/// One time that clients of volumes are to stand still: they begin no change and end those under way, so that snapshots can be
/// made. Drawn at random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stillness(pub u64);

/// A wish to own a volume, of somebody who opened it and has a change waiting. Drawn at random: it tells nobody who that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WishId(pub u64);

/// How it stands with such a wish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Whoever owned the volume has given it up for this one.
    #[serde(default)]
    pub is_granted: bool,
}

/// A pool that was removed, for as long as an OSD may hold something of it: its tombstone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedPool {
    /// What it was called. Another pool may be called so by now.
    pub name: String,
    /// Of the OSDs that there were when it was removed, those that have not said yet that they hold nothing of it, in order.
    pub owed_by: Vec<OsdId>,
}

/// Everything that routes a request, as of one revision of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The registry's revision this map shows.
    pub revision: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// What is known of its nodes. One without an entry is a host of its own, in no rack.
    #[serde(default)]
    pub nodes: BTreeMap<NodeId, NodeInfo>,
    /// Its OSDs.
    pub osds: BTreeMap<OsdId, OsdInfo>,
    /// Its pools.
    pub pools: BTreeMap<PoolId, PoolInfo>,
    /// Its placement groups.
    pub pgs: BTreeMap<PgId, PgConfig>,
    /// Where the replicas of a group shall lie, the preferred primary first. A group without an entry stays as
    /// its configuration says.
    #[serde(default)]
    pub targets: BTreeMap<PgId, Vec<OsdId>>,
    /// The namespaces that were made in pools, by name. A pool without any has no entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<PoolId, BTreeMap<String, NamespaceInfo>>,
    /// Its volumes, removed ones included until their objects are gone.
    pub volumes: BTreeMap<VolumeId, VolumeInfo>,
    /// Their snapshots, by the numbers of their layers. A volume without any has no entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub snapshots: BTreeMap<VolumeId, BTreeMap<u32, SnapshotInfo>>,
    /// The volumes whose clients are to stand still.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub still: BTreeMap<VolumeId, Stillness>,
    /// Wishes to own volumes. Whoever owns one of these, and opened it only, gives it up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub wishes: BTreeMap<VolumeId, BTreeMap<WishId, Wish>>,
    /// Which volumes have snapshots made by themselves, by the names of the schedules. The manager goes by them; clients are not told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub schedules: BTreeMap<String, Schedule>,
    /// Pools that were removed, until every OSD that may hold something of them has said that it does not. OSDs and the
    /// manager go by them; clients are not told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removed_pools: BTreeMap<PoolId, RemovedPool>,
    /// Who may connect, by name.
    #[serde(default)]
    pub principals: BTreeMap<String, Principal>,
    /// Whether what goes between clients and OSDs, and among OSDs, is encrypted.
    #[serde(default)]
    pub encryption: Encryption,
    /// Whom OSDs favour, of clients and work that nobody waits for.
    #[serde(default)]
    pub profile: Profile,
    /// How much of what OSDs do may be recovery while they serve clients: what was set, or what the profile says.
    #[serde(default)]
    pub recovery_share: RecoveryShare,
    /// What whoever this map is for may do with volumes: where bare names are looked for. None: an owner, or the cluster itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
}

impl ClusterMap {
    /// How much of what OSDs do may be work of a class while they serve clients.
    #[must_use]
    pub fn share_of(&self, class: WorkClass) -> RecoveryShare {
        match class {
            WorkClass::Recovery => self.recovery_share,
            _ => self.profile.share(class),
        }
    }

    /// What decides which objects are a group's ([`PgId::holds`]): the number of groups of its pool, counted as if all had
    /// been split that shall be, if it was. `None` without its pool.
    #[must_use]
    pub fn modulus_of(&self, pg: PgId) -> Option<u32> {
        let pool = self.pools.get(&pg.pool)?;
        Some(match pool.split_to {
            Some(modulus) if pg.index >= pool.pg_count || self.pgs.contains_key(&pg.child(pool.pg_count)) => {
                modulus
            }
            _ => pool.pg_count,
        })
    }

    /// The group of an object now: the one that was split off from another, if it was. `None` without the pool.
    #[must_use]
    pub fn pg_of(&self, pool: PoolId, layer: impl Into<LayerId>, object: u32) -> Option<PgId> {
        let layer = layer.into();
        let info = self.pools.get(&pool)?;
        let pg = PgId::of_object(pool, info.pg_numbers(), layer, object);
        let is_there = self.pgs.contains_key(&pg);
        Some(if is_there { pg } else { PgId::of_object(pool, info.pg_count, layer, object) })
    }

    /// The groups of a pool, in order.
    pub fn pgs_of(&self, pool: PoolId) -> impl Iterator<Item = (PgId, &PgConfig)> {
        let all = PgId { pool, index: 0 }..=PgId { pool, index: u32::MAX };
        self.pgs.range(all).map(|(pg, config)| (*pg, config))
    }

    /// Whether an OSD whose drive hangs is to count as down until that goes on. One that was taken out does not: who is out and
    /// down is taken for gone with all that it holds, and whoever takes it out wants that moved. Nor does one that some group has no
    /// other member in sync than: what its drive reads is read nowhere else. One that is out because it was down for long stays
    /// down: what it held was made anew elsewhere.
    #[must_use]
    pub fn is_down_while_it_hangs(&self, osd: OsdId) -> bool {
        self.osds.get(&osd).is_some_and(|info| info.admission != Admission::Out)
            && self.pgs.values().all(|config| config.in_sync != [osd])
    }

    /// The host that a node runs on.
    #[must_use]
    pub fn host_of(&self, node: NodeId) -> String {
        match self.nodes.get(&node) {
            Some(info) if !info.host.is_empty() => info.host.clone(),
            _ => node.to_string(),
        }
    }

    /// The snapshots of a volume, the oldest first.
    pub fn snapshots_of(
        &self,
        volume: VolumeId,
    ) -> impl DoubleEndedIterator<Item = (LayerId, &SnapshotInfo)> {
        let snapshots = self.snapshots.get(&volume).into_iter().flatten();
        snapshots.map(move |(number, info)| (volume.layer(*number), info))
    }

    /// The snapshot that a layer was frozen for.
    #[must_use]
    pub fn snapshot(&self, layer: LayerId) -> Option<&SnapshotInfo> {
        self.snapshots.get(&layer.volume())?.get(&layer.number())
    }

    /// The snapshot of a volume that has that name.
    #[must_use]
    pub fn snapshot_named(&self, volume: VolumeId, name: &str) -> Option<LayerId> {
        self.snapshots_of(volume).find(|(_, info)| info.name == name).map(|(layer, _)| layer)
    }

    /// The volumes in the trash.
    pub fn trash(&self) -> impl Iterator<Item = (VolumeId, &VolumeInfo, Trashed)> {
        let lying = self.volumes.iter().filter(|(_, info)| !info.removed);
        lying.filter_map(|(id, info)| Some((*id, info, info.trashed?)))
    }

    /// Whose key that is.
    #[must_use]
    pub fn principal_of(&self, key: &PublicKey) -> Option<(&str, &Principal)> {
        let mut all = self.principals.iter();
        all.find(|(_, principal)| principal.public_key == *key)
            .map(|(name, principal)| (name.as_str(), principal))
    }

    /// Whoever has that key, for `place`, to which it connected.
    ///
    /// # Errors
    /// In words, for the other side.
    pub fn whose(&self, key: &PublicKey, place: &str) -> Result<(&str, &Principal), String> {
        self.principal_of(key).ok_or_else(|| match self.revision {
            0 => format!("{place} knows nothing of its cluster yet; try again"),
            _ => format!(
                "the key {key} is not one of this cluster: it was removed, or is of another cluster; `millpond auth ls` \
                 shows whose are"
            ),
        })
    }

    /// The key of the node that runs an OSD, if that node has one.
    #[must_use]
    pub fn key_of_osd(&self, osd: OsdId) -> Option<PublicKey> {
        self.key_of_node(self.osds.get(&osd)?.node)
    }

    /// A node's key, if it has one.
    #[must_use]
    pub fn key_of_node(&self, node: NodeId) -> Option<PublicKey> {
        let is_its = |principal: &&Principal| principal.access == Access::Node(node);
        self.principals.values().find(is_its).map(|principal| principal.public_key)
    }

    /// The pool of that name.
    #[must_use]
    pub fn pool_named(&self, name: &str) -> Option<(PoolId, &PoolInfo)> {
        self.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, pool)| (*id, pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_a_namespace_reads_back_and_one_of_none_is_written_as_ever() {
        let plain = VolumeInfo { name: "v".to_owned(), pool: PoolId(1), ..VolumeInfo::default() };
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(text, r#"{"name":"v","pool":1,"bytes":0,"generation":0,"removed":false}"#);
        assert_eq!(serde_json::from_str::<VolumeInfo>(&text).unwrap(), plain);
        let spaced = VolumeInfo { namespace: "n".to_owned(), ..plain };
        let text = serde_json::to_string(&spaced).unwrap();
        // So a version that knows of no namespaces writes it back as it read it.
        assert!(text.starts_with(r#"{"name":"n/v","pool":1,"#), "{text}");
        assert_eq!(serde_json::from_str::<VolumeInfo>(&text).unwrap(), spaced);
    }
}
