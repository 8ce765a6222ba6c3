//! What an OSD tells of itself: values without ties to it.

use base::status::FlattenStatus;
use base::{CutId, Epoch, LayerId, OsdId, PgId};

/// What a primary reports of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// The group.
    pub pg: PgId,
    /// Its epoch.
    pub epoch: Epoch,
    /// `None` when it serves, else why not.
    pub trouble: Option<String>,
    /// Whether somebody must do something before it can serve.
    pub is_stopped: bool,
    /// Whether it is on its way to serve.
    pub is_peering: bool,
    /// Who holds every acknowledged write.
    pub in_sync: Vec<OsdId>,
    /// While members catch up: how many objects were not compared or sent yet, and how many bytes are known to be
    /// sent yet.
    pub recovery: Option<(u64, u64)>,
    /// See [`base::status::PgStatus::cut_through`].
    pub cut_through: CutId,
    /// See [`base::status::PgStatus::flatten`].
    pub flatten: FlattenStatus,
}

/// What a scrub found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubReport {
    /// The group.
    pub pg: PgId,
    /// Whether drives were read.
    pub is_deep: bool,
    /// Objects that were looked at.
    pub objects: u64,
    /// Bytes that were read of each member's drive.
    pub bytes: u64,
    /// Blocks that did not verify or differed.
    pub found: u64,
}

/// What became of damage that was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageCounts {
    /// Blocks that did not verify when they were read, here or at a member that a scrub asked.
    pub found: u64,
    /// Blocks that were written anew.
    pub mended: u64,
    /// How often all that a start needs was written anew, lest that be damaged too.
    pub renewals: u64,
}

/// A block of which no member has a copy that verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBlock {
    /// Its group.
    pub pg: PgId,
    /// Its layer.
    pub layer: LayerId,
    /// The 4 MiB piece of it.
    pub object: u32,
    /// The 4 KiB block of that.
    pub block: u16,
}
