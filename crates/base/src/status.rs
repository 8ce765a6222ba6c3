//! How OSDs are, as they tell themselves, and what becomes of those that are down. People are shown it. Nothing is decided by
//! it, but that a pool's tombstone may go ([`OsdStatus::cleared_pools`]), and that a volume that was made smaller may grow again
//! ([`PgStatus::cut_through`]).

use crate::ids::{CutId, Epoch, OsdId, PgId, PoolId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What OSDs tell of themselves.
pub type Statuses = BTreeMap<OsdId, Arc<OsdStatus>>;

/// How an OSD is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OsdStatus {
    /// Bytes that hold something.
    pub used_bytes: u64,
    /// Bytes that can hold something, used ones included.
    pub usable_bytes: u64,
    /// It refuses writes for want of space, or those that begin an object because it takes no more of them.
    pub full: bool,
    /// The placement groups that it is the primary of.
    pub pgs: BTreeMap<PgId, PgStatus>,
    /// Bytes written to the drive for each byte that clients wrote; 0 before the first.
    pub write_amplification: f64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// The drive has a cache that loses its content with power, so every write is flushed.
    pub volatile_cache: bool,
    /// Its device or file.
    pub path: String,
    /// The process that runs it.
    pub pid: u32,
    /// Blocks that did not verify when they were read.
    pub damaged_reads: u64,
    /// Blocks that were written anew from a sound copy.
    pub mended_blocks: u64,
    /// Blocks of the groups it is primary of that no member has a sound copy of.
    pub lost_blocks: u64,
    /// The first of them.
    pub lost: Vec<LostRange>,
    /// The groups it is primary of that want a sound copy of a block, in order: no member that answered had one. One that did
    /// not may have the last.
    pub in_want: Vec<PgId>,
    /// Bytes a second that it sends to members that catch up.
    pub recovery_bytes_per_s: u64,
    /// The group that it scrubs as primary.
    pub scrubbing: Option<ScrubProgress>,
    /// Of the pools that its map shows as removed, those of which it holds nothing any more on stable media, in order.
    pub cleared_pools: Vec<PoolId>,
    /// Why its drive cannot be used any more, if so: it takes part in nothing.
    pub failure: Option<String>,
    /// Its drive does nothing of what it is asked, or nothing of one kind: it counts as down until the drive does.
    pub drive_hangs: bool,
    /// Why it was not started on that drive, if so: nothing else is known of it then.
    pub start_refused: Option<String>,
    /// Whatever a person should know besides.
    pub notes: Vec<String>,
}

/// Bytes of a volume that are lost: no member has a copy that verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// The volume.
    pub volume: VolumeId,
    /// In bytes from the volume's start.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// The group.
    pub pg: PgId,
    /// Whether drives are read.
    pub deep: bool,
    /// Objects still to be looked at.
    pub objects_left: u64,
}

/// How far members are that catch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryProgress {
    /// Objects that were not compared or sent yet.
    pub objects_left: u64,
    /// Bytes that are known to be sent yet.
    pub bytes_left: u64,
}

/// How a placement group is, as its primary sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgStatus {
    /// The configuration it works by.
    pub epoch: Epoch,
    /// Whether it serves.
    pub state: PgState,
    /// The replicas that hold every acknowledged write.
    pub in_sync: Vec<OsdId>,
    /// Objects it holds.
    pub objects: u64,
    /// While members catch up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryProgress>,
    /// Of all volumes of its pool that were cut by this one or before, the group holds nothing beyond their ends any more, on
    /// any member in sync. 0 while that can be said of none, and where no volume of the pool waits for it.
    #[serde(default)]
    pub cut_through: CutId,
    /// How far the clones of its pool are with being flattened.
    #[serde(default)]
    pub flatten: FlattenStatus,
}

/// How far the clones that a group holds are with being flattened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlattenStatus {
    /// Those of this number and of those before hold all that they saw of their parents. 0 while that can be said of none.
    pub through: CutId,
    /// Objects that are to be looked at.
    pub objects_left: u64,
}

/// Whether a placement group serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PgState {
    /// Not yet, and why.
    Waiting {
        /// What it waits for.
        reason: String,
    },
    /// Not yet: its replicas are agreeing on their logs.
    Peering,
    /// Yes.
    Active,
    /// Not until somebody does something, and why.
    Stopped {
        /// What stopped it.
        reason: String,
    },
}

/// What becomes of an OSD that is in and down, if it stays down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Away {
    /// It is taken out.
    Out {
        /// When: seconds since 1970, by the clock of the manager's machine. For people; the manager itself
        /// goes by a clock that nobody sets.
        at_unix_seconds: u64,
    },
    /// It stays in.
    In {
        /// Why.
        reason: String,
    },
}
