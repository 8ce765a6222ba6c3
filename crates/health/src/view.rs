//! What the commands show, and the JSON they print: stable names in snake_case, ids as numbers, sizes in
//! bytes. A figure that nobody reported is `null`, never 0.

use crate::problem::Problem;
use base::hash::Map;
use base::map::{
    Admission, ClusterMap, DeviceClass, FailureDomain, Location, OsdInfo, PgConfig, SnapshotInfo, Trashed,
    VolumeInfo,
};
use base::schedule::LateSchedule;
use base::status::{Away, LostRange, OsdStatus, PgState, PgStatus, RecoveryProgress, Statuses};
use base::units::ByteSize;
use base::{
    ClusterId, Encryption, Epoch, Generation, LayerId, Limits, NodeId, OsdId, PgId, PlaceName, PoolId,
    Profile, Qos, RecoveryShare, VolumeId, VolumeName,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use utoipa::ToSchema;

/// Digits of a short id.
pub const SHORT_ID_DIGITS: usize = 8;

/// What is known of OSDs besides the map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports {
    /// What they say of themselves.
    pub statuses: Statuses,
    /// Where their drives were when they were started last.
    pub drives: BTreeMap<OsdId, String>,
    /// What becomes of those that are in and down.
    pub away: BTreeMap<OsdId, Away>,
    /// The schedules whose snapshots could not be made, by their names.
    pub late: BTreeMap<String, LateSchedule>,
    /// What is wrong with the registry itself, where it was asked.
    pub registry: Vec<Problem>,
    /// Why nobody tells how the OSDs are, if so: there are no statuses then.
    pub silence: Option<String>,
}

#[cfg(test)]
impl From<BTreeMap<OsdId, OsdStatus>> for Reports {
    fn from(statuses: BTreeMap<OsdId, OsdStatus>) -> Reports {
        let statuses = statuses.into_iter().map(|(osd, status)| (osd, std::sync::Arc::new(status))).collect();
        Reports { statuses, ..Reports::default() }
    }
}

/// An OSD: `osd tree --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OsdView {
    /// Its id.
    #[schema(value_type = u32)]
    pub osd: OsdId,
    /// The node that runs it.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// The host that the node runs on.
    pub host: String,
    /// Where that stands, as far as it is known.
    #[schema(value_type = BTreeMap<String, String>)]
    pub location: Location,
    /// What kind of drive it is on.
    #[schema(value_type = String)]
    pub device_class: DeviceClass,
    /// How much of its part it shall hold, in thousandths.
    pub reweight_thousandths: u16,
    /// Whether it is up.
    pub up: bool,
    /// Whether data is placed on it.
    #[schema(value_type = String)]
    pub admission: Admission,
    /// Seconds until it is taken out if it stays down.
    pub out_in_seconds: Option<u64>,
    /// Why it is not taken out by itself though it is down.
    pub stays_in_because: Option<String>,
    /// Where it listens, while it is up.
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
    /// How often it was started.
    pub incarnation: u64,
    /// The size of its drive in bytes.
    pub bytes: u64,
    /// Bytes in use.
    pub used_bytes: Option<u64>,
    /// Bytes that data may take.
    pub usable_bytes: Option<u64>,
    /// Whether it refuses writes for want of space.
    pub full: Option<bool>,
    /// Placement groups it is the primary of.
    pub primary_of: usize,
    /// Placement groups it holds a copy of.
    pub pgs: usize,
    /// Those of them whose every acknowledged write it holds.
    pub pgs_in_sync: usize,
    /// Placement groups that shall lie on it.
    pub pgs_target: usize,
    /// Bytes written to the drive for each byte that clients wrote.
    pub write_amplification: Option<f64>,
    /// Memory of its index in bytes.
    pub index_bytes: Option<u64>,
    /// Whether its drive has a volatile cache, which is flushed before a write is acknowledged.
    pub volatile_cache: Option<bool>,
    /// Blocks whose checksum did not verify when they were read.
    pub damaged_reads: Option<u64>,
    /// Blocks that it, as primary, had written anew from sound copies.
    pub mended_blocks: Option<u64>,
    /// Blocks of the groups it is primary of that no member has a sound copy of.
    pub lost_blocks: Option<u64>,
    /// The first of them.
    pub lost: Vec<LostView>,
    /// Placement groups it is the primary of that want a sound copy of a block: no member that answered had one.
    #[schema(value_type = Vec<String>)]
    pub in_want: Vec<PgId>,
    /// Bytes a second that it sends to members that catch up.
    pub recovery_bytes_per_s: Option<u64>,
    /// The group that it scrubs as primary.
    #[schema(value_type = Option<String>)]
    pub scrubbing: Option<PgId>,
    /// Its drive; while it is down, where it was.
    pub path: Option<String>,
    /// The process that runs it.
    pub pid: Option<u32>,
    /// Why its drive cannot be used any more, if so.
    pub failure: Option<String>,
    /// Whether its drive does nothing of what it is asked.
    pub drive_hangs: Option<bool>,
    /// Why it was not started on its drive, if so.
    pub start_refused: Option<String>,
    /// What else it has to say, or is to be said of it.
    pub notes: Vec<String>,
}

impl OsdView {
    /// Whether anybody tells how it is.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.used_bytes.is_some()
    }
}

/// Bytes of a volume of which no sound copy is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostView {
    /// The volume's name, with its pool and namespace where there are several.
    pub volume: String,
    /// In bytes from its start.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
}

impl LostView {
    fn new(range: &LostRange, map: &ClusterMap) -> LostView {
        let volume = match map.volumes.get(&range.volume) {
            // Another may have its name.
            Some(info) if info.trashed.is_some() => {
                format!("{} (in the trash: {})", range.volume, map.shown_name(info))
            }
            Some(info) => map.shown_name(info),
            None => range.volume.to_string(),
        };
        LostView { volume, offset: range.offset, length: range.length }
    }
}

impl std::fmt::Display for LostView {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}, {} at {}", self.volume, ByteSize(self.length), self.offset)
    }
}

/// How a placement group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PgHealth {
    /// It serves reads and writes.
    Active,
    /// Its members are agreeing on what they hold.
    Peering,
    /// It waits for something that it names.
    Waiting,
    /// It serves nothing, to keep its promise.
    Stopped,
    /// Its primary is up and has not reported it yet.
    Unknown,
}

impl PgHealth {
    /// All of them.
    pub const ALL: [PgHealth; 5] =
        [PgHealth::Active, PgHealth::Peering, PgHealth::Waiting, PgHealth::Stopped, PgHealth::Unknown];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PgHealth::Active => "active",
            PgHealth::Peering => "peering",
            PgHealth::Waiting => "waiting",
            PgHealth::Stopped => "stopped",
            PgHealth::Unknown => "unknown",
        }
    }
}

/// How far members are that catch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryView {
    /// Objects that were not compared or sent yet.
    pub objects_left: u64,
    /// Bytes that are known to be sent yet.
    pub bytes_left: u64,
}

impl From<RecoveryProgress> for RecoveryView {
    fn from(progress: RecoveryProgress) -> RecoveryView {
        RecoveryView { objects_left: progress.objects_left, bytes_left: progress.bytes_left }
    }
}

/// A placement group: `pg dump --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PgView {
    /// Its id, as text: pool and index.
    #[schema(value_type = String)]
    pub pg: PgId,
    /// How it is.
    pub state: PgHealth,
    /// Why it is not active.
    pub reason: Option<String>,
    /// The version of its configuration.
    #[schema(value_type = u32)]
    pub epoch: Epoch,
    /// Who orders its writes.
    #[schema(value_type = u32)]
    pub primary: OsdId,
    /// Who holds every acknowledged write.
    #[schema(value_type = Vec<u32>)]
    pub in_sync: Vec<OsdId>,
    /// Who is catching up.
    #[schema(value_type = Vec<u32>)]
    pub learners: Vec<OsdId>,
    /// Who shall hold it, the preferred primary first.
    #[schema(value_type = Vec<u32>)]
    pub target: Vec<OsdId>,
    /// Objects in it.
    pub objects: Option<u64>,
    /// How far members are that catch up.
    pub recovery: Option<RecoveryView>,
    /// How far clones are with being flattened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flatten: Option<FlattenView>,
}

/// How far the clones that a placement group holds are with being flattened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlattenView {
    /// The number of the newest flattening that is done there, and all before it. Each that is asked for has a higher one.
    pub through: u64,
    /// Objects that are to be looked at, if one is under way.
    pub objects_left: u64,
}

/// A pool: `pool ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    /// Its id.
    #[schema(value_type = u32)]
    pub pool: PoolId,
    /// Its name.
    pub name: String,
    /// Copies of each object.
    pub size: u32,
    /// In-sync copies below which a placement group stops.
    pub min_size: u32,
    /// Its placement groups.
    pub pg_count: u32,
    /// How many they will be when all are split, while they are being split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split_to: Option<u32>,
    /// Whether they are split by themselves when they are few for the OSDs.
    pub pg_autoscale: bool,
    /// What no two copies of a group lie in, if there are enough.
    #[schema(value_type = String)]
    pub failure_domain: FailureDomain,
    /// The only drives that it lies on, if it was said.
    #[schema(value_type = Option<String>)]
    pub device_class: Option<DeviceClass>,
    /// Those of its placement groups that are active.
    pub pgs_active: usize,
    /// Its volumes.
    pub volumes: usize,
    /// Bytes that its volumes could hold if they were written in full.
    pub volume_bytes: u64,
}

/// A volume: `volume ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// Its id.
    #[schema(value_type = u64)]
    pub volume: VolumeId,
    /// Its name, unique in its namespace.
    pub name: String,
    /// The name of its pool.
    pub pool: String,
    /// Its namespace; empty: the default one of its pool.
    #[serde(default)]
    pub namespace: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// How often it was attached exclusively, or put into the trash.
    #[schema(value_type = u32)]
    pub generation: Generation,
    /// It was made smaller, and what it held beyond its end is being deleted: it does not grow before that.
    #[serde(default)]
    pub cutting: bool,
    /// The snapshot that it is a clone of and depends on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// It is given all that it sees of that, so that it depends on it no more.
    #[serde(default)]
    pub flattening: bool,
    /// How much clients may do with it in a second.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    #[schema(value_type = Object)]
    pub limits: Limits,
    /// What it has of OSDs where several volumes want more than these do: operations a second that are reserved, and its weight.
    #[serde(default, skip_serializing_if = "Qos::is_default")]
    #[schema(value_type = Object)]
    pub qos: Qos,
}

/// A volume in the trash: `volume trash --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrashedVolumeView {
    /// Its id, which tells it from others that had the same name.
    #[schema(value_type = u64)]
    pub volume: VolumeId,
    /// The name that it had.
    pub name: String,
    /// The name of its pool.
    pub pool: String,
    /// Its namespace; empty: the default one of its pool.
    #[serde(default)]
    pub namespace: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it came there, in seconds since 1970.
    pub trashed_at_unix_seconds: u64,
    /// When it is removed for good. None: when somebody says so.
    pub purged_at_unix_seconds: Option<u64>,
    /// How often it was attached exclusively or put into the trash: it lies there as it did while that is the same.
    #[schema(value_type = u32)]
    pub generation: Generation,
}

impl VolumeView {
    /// Its name in full.
    #[must_use]
    pub fn full_name(&self) -> String {
        full_name(&self.pool, &self.namespace, &self.name)
    }
}

impl TrashedVolumeView {
    /// The name that it had, in full.
    #[must_use]
    pub fn full_name(&self) -> String {
        full_name(&self.pool, &self.namespace, &self.name)
    }
}

fn full_name(pool: &str, namespace: &str, name: &str) -> String {
    let place = PlaceName { pool: pool.to_owned(), namespace: namespace.to_owned() };
    VolumeName { place: Some(place), name: name.to_owned() }.to_string()
}

/// A namespace of a pool: `namespace ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceView {
    /// The name of its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Its volumes, without those in the trash.
    pub volumes: usize,
    /// Bytes that its volumes could hold if they were written in full.
    pub volume_bytes: u64,
    /// Its volumes in the trash: it is not removed as long as there are some.
    pub trashed: usize,
}

/// A snapshot of a volume: `volume snapshot ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotView {
    /// The name of its volume, with its pool and namespace where there are several.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Its number, by which it is told from others of that volume that had the same name. A later one has a higher one.
    pub number: u32,
    /// The size of the volume when it was made, in bytes.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// It is not removed, nor is its volume, before that is taken back.
    pub protected: bool,
    /// The name of the schedule that made it and will remove it, where whoever asks is told of schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The names of the volumes that are clones of it, those in the trash too. It is not removed as long as there are some.
    #[serde(default)]
    pub clones: Vec<String>,
}

/// A client that has a volume attached, in `volume info --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachmentView {
    /// The client's id, in hexadecimal: it has more bits than a JSON number keeps.
    pub client: String,
    /// Who it says it is.
    pub description: String,
    /// Whether others may attach too.
    pub shared: bool,
    /// Whether it only opened the volume, and gives it up when another who did has something to write.
    #[serde(default)]
    pub yields: bool,
    /// By whose key it attached, if a node saw to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// A client that has a volume open, in `volume watchers --json` and `volume info --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatcherView {
    /// The client's id, in hexadecimal: it has more bits than a JSON number keeps.
    pub client: String,
    /// Who it says it is.
    pub description: String,
    /// It only reads.
    pub read_only: bool,
    /// It owns the volume just now, and gives it up when another who has it open has something to write.
    pub owns: bool,
    /// The snapshot that it reads, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// By whose key it came, if a node saw to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Since when, by its own clock: seconds since 1970.
    pub since_unix_seconds: u64,
}

/// A volume with its clients: `volume info --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeDetail {
    /// The volume.
    #[serde(flatten)]
    pub volume: VolumeView,
    /// Its clients.
    pub attachments: Vec<AttachmentView>,
    /// Who has it open without having it attached for good.
    #[serde(default)]
    pub watchers: Vec<WatcherView>,
    /// Its snapshots, the oldest first.
    #[serde(default)]
    pub snapshots: Vec<SnapshotView>,
}

/// Space, summed over the OSDs that report it. Each copy of a block counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// Bytes of all drives.
    pub bytes: u64,
    /// Bytes in use; `null` while no OSD reports.
    pub used_bytes: Option<u64>,
    /// Bytes that data may take; `null` while no OSD reports.
    pub usable_bytes: Option<u64>,
    /// OSDs whose figures are missing from the sums.
    pub osds_unreported: usize,
}

/// The cluster's id and revision, in `status --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    /// Its id; over HTTP its first eight digits.
    pub id: String,
    /// The revision of the map that is shown.
    pub revision: u64,
    /// Whether what goes between clients and OSDs, and among OSDs, is encrypted: `on` or `off`.
    #[schema(value_type = String)]
    pub encryption: Encryption,
    /// Whom OSDs favour: `balanced`, `clients`, `recovery` or `background`.
    #[serde(default)]
    #[schema(value_type = String)]
    pub profile: Profile,
    /// How much of what OSDs do may be recovery while they serve clients, in percent.
    #[schema(value_type = u8)]
    pub recovery_share: RecoveryShare,
}

/// Enough of a cluster's id to tell clusters apart, for where everybody may look: who knows all of it can speak to OSDs.
#[must_use]
pub fn short_id(cluster: ClusterId) -> String {
    cluster.to_string().chars().take(SHORT_ID_DIGITS).collect()
}

/// Placement groups of one OSD.
#[derive(Default)]
struct Groups {
    primary: usize,
    member: usize,
    in_sync: usize,
    target: usize,
}

/// The OSDs, in order, as of a moment: seconds since 1970.
pub fn osds(map: &ClusterMap, reports: &Reports, now_unix_seconds: u64) -> Vec<OsdView> {
    let mut groups: Map<OsdId, Groups> = Map::default();
    for (_, config, target) in placed(map) {
        groups.entry(config.primary).or_default().primary += 1;
        for osd in &config.in_sync {
            let groups = groups.entry(*osd).or_default();
            groups.member += 1;
            groups.in_sync += 1;
        }
        for osd in &config.learners {
            groups.entry(*osd).or_default().member += 1;
        }
        for osd in target {
            groups.entry(*osd).or_default().target += 1;
        }
    }
    let mut leftovers = leftovers(map);
    map.osds
        .iter()
        .map(|(id, info)| {
            let told = reports.statuses.get(id);
            // Of one that was not started nobody knows how it is.
            let status = told.filter(|told| told.start_refused.is_none());
            let groups = groups.remove(id).unwrap_or_default();
            let is_away = info.address.is_none() && info.admission == Admission::In;
            let (out_in_seconds, stays_in_because) = match reports.away.get(id).filter(|_| is_away) {
                Some(Away::Out { at_unix_seconds }) => {
                    (Some(at_unix_seconds.saturating_sub(now_unix_seconds)), None)
                }
                Some(Away::In { reason }) => (None, Some(reason.clone())),
                None => (None, None),
            };
            OsdView {
                osd: *id,
                node: info.node,
                host: map.host_of(info.node),
                location: map.nodes.get(&info.node).map(|node| node.location.clone()).unwrap_or_default(),
                device_class: info.device_class,
                reweight_thousandths: info.reweight.thousandths(),
                up: info.address.is_some(),
                admission: info.admission,
                out_in_seconds,
                stays_in_because,
                address: info.address,
                incarnation: info.incarnation,
                bytes: info.bytes,
                used_bytes: status.map(|status| status.used_bytes),
                usable_bytes: status.map(|status| status.usable_bytes),
                full: status.map(|status| status.full),
                primary_of: groups.primary,
                pgs: groups.member,
                pgs_in_sync: groups.in_sync,
                pgs_target: groups.target,
                // Reported as 0 before the first write, when there is no ratio yet.
                write_amplification: status
                    .map(|status| status.write_amplification)
                    .filter(|ratio| *ratio > 0.0),
                index_bytes: status.map(|status| status.index_bytes),
                volatile_cache: status.map(|status| status.volatile_cache),
                damaged_reads: status.map(|status| status.damaged_reads),
                mended_blocks: status.map(|status| status.mended_blocks),
                lost_blocks: status.map(|status| status.lost_blocks),
                lost: status.map_or_else(Vec::new, |status| {
                    status.lost.iter().map(|range| LostView::new(range, map)).collect()
                }),
                in_want: status.map_or_else(Vec::new, |status| status.in_want.clone()),
                recovery_bytes_per_s: status.map(|status| status.recovery_bytes_per_s),
                scrubbing: status.and_then(|status| status.scrubbing).map(|progress| progress.pg),
                path: told.map(|told| told.path.clone()).or_else(|| reports.drives.get(id).cloned()),
                pid: told.map(|told| told.pid),
                failure: status.and_then(|status| status.failure.clone()),
                drive_hangs: status.map(|status| status.drive_hangs),
                start_refused: told.and_then(|told| told.start_refused.clone()),
                notes: status
                    .into_iter()
                    .flat_map(|status| status.notes.iter().cloned())
                    .chain(leftovers.remove(id))
                    .collect(),
            }
        })
        .collect()
}

/// Of the OSDs that are away, those that may still hold something of removed pools: in words, of which.
fn leftovers(map: &ClusterMap) -> BTreeMap<OsdId, String> {
    let mut names: BTreeMap<OsdId, Vec<&str>> = BTreeMap::new();
    for pool in map.removed_pools.values() {
        let is_away = |osd: &&OsdId| map.osds.get(osd).is_some_and(|info| info.address.is_none());
        for osd in pool.owed_by.iter().filter(is_away) {
            names.entry(*osd).or_default().push(&pool.name);
        }
    }
    let told = names.into_iter().map(|(osd, names)| {
        let what = match names.len() {
            1 => format!("pool {} was", names[0]),
            count => format!("{count} pools, {} among them, were", names[0]),
        };
        (osd, format!("{what} removed while it was away; what it still holds of that goes when it is back"))
    });
    told.collect()
}

/// The placement groups, in order.
pub fn pgs(map: &ClusterMap, reports: &Reports) -> Vec<PgView> {
    // There are many times more groups than OSDs.
    let primaries: Map<OsdId, Primary<'_>> = map
        .osds
        .iter()
        .map(|(osd, info)| {
            (*osd, Primary { info, status: reports.statuses.get(osd).map(|status| &**status) })
        })
        .collect();
    placed(map)
        .map(|(pg, config, target)| {
            let primary = primaries.get(&config.primary);
            let reported = primary.and_then(|primary| primary.status).and_then(|status| status.pgs.get(pg));
            let (state, reason) = pg_health(reports, config, primary, reported);
            PgView {
                pg: *pg,
                state,
                reason,
                epoch: config.epoch,
                primary: config.primary,
                in_sync: config.in_sync.clone(),
                learners: config.learners.clone(),
                target: target.to_vec(),
                objects: reported.map(|status| status.objects),
                recovery: reported.and_then(|status| status.recovery).map(RecoveryView::from),
                flatten: reported.map(|status| FlattenView {
                    through: status.flatten.through.0,
                    objects_left: status.flatten.objects_left,
                }),
            }
        })
        .collect()
}

/// The placement groups, in order, each with who shall hold it. Both are in order already, so none is looked up.
fn placed(map: &ClusterMap) -> impl Iterator<Item = (&PgId, &PgConfig, &[OsdId])> {
    let mut targets = map.targets.iter().peekable();
    map.pgs.iter().map(move |(pg, config)| {
        while targets.next_if(|(of, _)| *of < pg).is_some() {}
        let target = targets.next_if(|(of, _)| *of == pg).map_or(&config.in_sync, |(_, target)| target);
        (pg, config, target.as_slice())
    })
}

/// An OSD that leads groups.
struct Primary<'a> {
    info: &'a OsdInfo,
    status: Option<&'a OsdStatus>,
}

fn pg_health(
    reports: &Reports,
    config: &PgConfig,
    found: Option<&Primary<'_>>,
    reported: Option<&PgStatus>,
) -> (PgHealth, Option<String>) {
    let primary = config.primary;
    let Some(found) = found.filter(|found| found.info.address.is_some()) else {
        return (PgHealth::Stopped, Some(format!("primary {primary} is down")));
    };
    let Some(reported) = reported else {
        // The same words for all of them, so that they are one problem and not as many as OSDs.
        let reason = match (&reports.silence, found.status.is_some()) {
            (Some(_), _) => "nobody tells anything".to_owned(),
            (None, false) => format!("{}, which runs the primary, tells nothing", found.info.node),
            (None, true) => format!("primary {primary} has not reported yet"),
        };
        return (PgHealth::Unknown, Some(reason));
    };
    if config.epoch > reported.epoch {
        return (PgHealth::Peering, Some(format!("primary {primary} is taking up a new configuration")));
    }
    match &reported.state {
        PgState::Active => (PgHealth::Active, None),
        PgState::Peering => {
            (PgHealth::Peering, Some("the members are agreeing on what they hold".to_owned()))
        }
        PgState::Waiting { reason } => (PgHealth::Waiting, Some(reason.clone())),
        PgState::Stopped { reason } => (PgHealth::Stopped, Some(reason.clone())),
    }
}

/// The pools, in order.
pub fn pools(map: &ClusterMap, pgs: &[PgView]) -> Vec<PoolView> {
    map.pools
        .iter()
        .map(|(id, info)| {
            let volumes = map.volumes.values().filter(|volume| volume.pool == *id && volume.is_listed());
            let of_pool = |view: &&PgView| view.pg.pool == *id && view.state == PgHealth::Active;
            PoolView {
                pool: *id,
                name: info.name.clone(),
                size: info.size,
                min_size: info.min_size,
                // Those that were split off are there before the pool counts them.
                pg_count: info.pg_count.max(map.pgs_of(*id).count() as u32),
                split_to: info.split_to,
                pg_autoscale: info.pg_autoscale,
                failure_domain: info.rule.failure_domain,
                device_class: info.rule.device_class,
                pgs_active: pgs.iter().filter(of_pool).count(),
                volumes: volumes.clone().count(),
                volume_bytes: volumes.map(|volume| volume.bytes).sum(),
            }
        })
        .collect()
}

/// The volumes that were neither removed nor put into the trash, by name.
pub fn volumes(map: &ClusterMap) -> Vec<VolumeView> {
    let mut volumes: Vec<VolumeView> = map
        .volumes
        .iter()
        .filter(|(_, info)| info.is_listed())
        .map(|(id, info)| VolumeView {
            volume: *id,
            name: info.name.clone(),
            pool: pool_name(map, info.pool),
            namespace: info.namespace.clone(),
            bytes: info.bytes,
            generation: info.generation,
            cutting: info.cut.is_some(),
            parent: info.parent.map(|parent| snapshot_name(map, parent)),
            flattening: info.flatten.is_some(),
            limits: info.limits,
            qos: info.qos,
        })
        .collect();
    let place = |one: &VolumeView| (one.name.clone(), one.pool.clone(), one.namespace.clone());
    volumes.sort_by_cached_key(place);
    volumes
}

/// What people call a snapshot.
fn snapshot_name(map: &ClusterMap, layer: LayerId) -> String {
    let volume = map
        .volumes
        .get(&layer.volume())
        .map_or_else(|| layer.volume().to_string(), |info| map.shown_name(info));
    let snapshot = map.snapshot(layer).map_or_else(|| layer.number().to_string(), |info| info.name.clone());
    format!("{volume}@{snapshot}")
}

/// The snapshots of a volume, the oldest first.
pub fn snapshots(map: &ClusterMap, volume: VolumeId) -> Vec<SnapshotView> {
    let of = map.volumes.get(&volume).map(|info| map.shown_name(info)).unwrap_or_default();
    let view = |(layer, info): (LayerId, &SnapshotInfo)| SnapshotView {
        volume: of.clone(),
        name: info.name.clone(),
        number: layer.number(),
        bytes: info.bytes,
        at_unix_seconds: info.at_unix_seconds,
        protected: info.protected,
        schedule: info.schedule.and_then(|id| {
            let its = map.schedules.iter().find(|(_, schedule)| schedule.id == id);
            its.map(|(name, _)| name.clone())
        }),
        clones: map
            .clones_of(volume)
            .filter(|(.., of)| *of == layer)
            .map(|(_, clone, _)| map.shown_name(clone))
            .collect(),
    };
    map.snapshots_of(volume).map(view).collect()
}

/// The volumes in the trash, by the names that they had, those that came there first before others.
pub fn trash(map: &ClusterMap) -> Vec<TrashedVolumeView> {
    let view = |(volume, info, trashed): (VolumeId, &VolumeInfo, Trashed)| TrashedVolumeView {
        volume,
        name: info.name.clone(),
        pool: pool_name(map, info.pool),
        namespace: info.namespace.clone(),
        bytes: info.bytes,
        trashed_at_unix_seconds: trashed.at_unix_seconds,
        // The manager says so within a moment.
        purged_at_unix_seconds: trashed
            .until_unix_seconds
            .or_else(|| trashed.keep_seconds.map(|keep| trashed.at_unix_seconds.saturating_add(keep))),
        generation: info.generation,
    };
    let mut volumes: Vec<TrashedVolumeView> = map.trash().map(view).collect();
    volumes.sort_by_key(|one| (one.name.clone(), one.trashed_at_unix_seconds, one.volume));
    volumes
}

/// The namespaces that were made, by their pools and names.
pub fn namespaces(map: &ClusterMap) -> Vec<NamespaceView> {
    let view = |(pool, name): (PoolId, &String)| {
        let inside = map.volumes.values().filter(|info| info.pool == pool && info.namespace == *name);
        let listed = inside.clone().filter(|info| info.is_listed());
        NamespaceView {
            pool: pool_name(map, pool),
            name: name.clone(),
            volumes: listed.clone().count(),
            volume_bytes: listed.map(|info| info.bytes).sum(),
            trashed: inside.filter(|info| !info.removed && info.trashed.is_some()).count(),
        }
    };
    let all = map.namespaces.iter().flat_map(|(pool, named)| named.keys().map(|name| (*pool, name)));
    let mut namespaces: Vec<NamespaceView> = all.map(view).collect();
    namespaces.sort_by_cached_key(|one| (one.pool.clone(), one.name.clone()));
    namespaces
}

fn pool_name(map: &ClusterMap, pool: PoolId) -> String {
    map.pools.get(&pool).map_or_else(|| pool.to_string(), |info| info.name.clone())
}

/// The sums over the OSDs.
pub fn capacity(osds: &[OsdView]) -> Capacity {
    let reporting = || osds.iter().filter(|osd| osd.used_bytes.is_some());
    let sum = |of: fn(&OsdView) -> Option<u64>| reporting().next().map(|_| reporting().filter_map(of).sum());
    Capacity {
        bytes: osds.iter().map(|osd| osd.bytes).sum(),
        used_bytes: sum(|osd| osd.used_bytes),
        usable_bytes: sum(|osd| osd.usable_bytes),
        osds_unreported: osds.len() - reporting().count(),
    }
}
