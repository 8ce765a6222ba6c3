//! What goes into a store and what comes out.

use base::{BlockRange, Buffer, ClusterId, Epoch, LayerId, ObjectKey, OsdId, OsdUuid, Sequence};

/// Whose a drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// This formatting of this drive.
    pub osd_uuid: OsdUuid,
    /// The OSD's number in the cluster.
    pub osd: OsdId,
}

/// Whose a drive must be to be opened; `None` takes any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// The cluster.
    pub cluster: Option<ClusterId>,
    /// The formatting.
    pub osd_uuid: Option<OsdUuid>,
}

/// How a store works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Completed writes need a flush to be durable.
    pub volatile_cache: bool,
    /// Foreground batches under way at the same time. While one is, the next one grows; a second goes only when
    /// it is half full.
    pub batches_in_flight_max: usize,
    /// The largest batch, header included, in bytes.
    pub batch_bytes_max: usize,
    /// The size of a segment in bytes, for formatting; `None` chooses by the drive's size.
    pub segment_bytes: Option<u32>,
    /// Bytes of log between checkpoints; `None` chooses by the drive's size.
    pub checkpoint_interval_bytes: Option<u64>,
    /// Entries of each group's log that are kept, at most [`PG_LOG_ENTRIES`](crate::PG_LOG_ENTRIES). A quarter of it, and no
    /// more than [`IN_FLIGHT_MAX`](crate::IN_FLIGHT_MAX), is how many writes of a group may be under way at the same time:
    /// so what a member has that others may not have is in its log. All members keep the same.
    pub pg_log_entries: usize,
    /// Pieces of a checkpoint's root, at most [`ROOT_PIECES_MAX`](crate::layout::ROOT_PIECES_MAX). They bound how many objects
    /// a store takes.
    pub root_pieces_max: usize,
    /// Breaks a promise on purpose, so that tests can show that they would notice.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            volatile_cache: true,
            batches_in_flight_max: 2,
            batch_bytes_max: 1 << 20,
            segment_bytes: None,
            checkpoint_interval_bytes: None,
            pg_log_entries: crate::PG_LOG_ENTRIES,
            root_pieces_max: crate::layout::ROOT_PIECES_MAX,
            sabotage: None,
        }
    }
}

/// A promise to break. See [`Options::sabotage`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Report batches durable when they are written, not when they are flushed.
    ReportBeforeFlush,
    /// Take a batch's data for good when its header is.
    TrustTornBatch,
    /// Forget the last batch when opening.
    DropLastBatch,
    /// Free segments that still hold live data.
    ReuseLiveSegment,
    /// Free segments that are still being read.
    ReusePinnedSegment,
    /// Take batches of earlier mounts behind those of later ones.
    IgnoreMount,
    /// Skip zeroings when opening.
    ForgetZero,
    /// Skip holes when opening.
    ForgetHole,
    /// Skip splits of groups when opening.
    ForgetSplit,
    /// A checkpoint that is under way goes on with the objects of a group that splits as they were called before.
    KeepOldNames,
    /// When opening, have the groups' logs take in again what the checkpoint's root has of them already.
    ReplayOverLogs,
    /// Take the end of the chain for the end of the log, whatever batches behind it say.
    TrustEnd,
    /// Leave the headers of batches where they are that an opening gives up.
    KeepGivenUp,
}

/// A batch that is being filled or under way: the number of its buffer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u32);

/// A place on the drive: the number of a 4 KiB block.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location(pub u32);

impl Location {
    /// No place: a block of a layer that is there and reads as zeros, whatever lies beneath it.
    pub const HOLE: Location = Location(u32::MAX);
}

/// On whose behalf something is staged, which decides how full the store may be for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client's write: refused first.
    Primary,
    /// What a learner lacks.
    Recovery,
    /// A primary's write, which was admitted there.
    Replica,
    /// What makes the cluster whole or gives space back.
    Housekeeping,
}

/// What is written where in whose order.
#[derive(Clone, Copy, Debug)]
pub struct WriteRecord {
    /// The object.
    pub key: ObjectKey,
    /// The epoch of the group.
    pub epoch: Epoch,
    /// The place in the group's order; 0 for what is given to a learner out of order, which no log shows.
    pub sequence: Sequence,
    /// By which it is known when its client sends it again: see [`base::LogEntry::origin`].
    pub origin: u64,
    /// The first block of the object.
    pub first_block: u16,
    /// How many blocks.
    pub block_count: u16,
    /// What the caller calls it; comes back when it is durable.
    pub token: u64,
    /// On whose behalf.
    pub role: Role,
}

/// Where staged data lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The batch.
    pub batch: BatchId,
    /// From the start of the batch's buffer, in bytes.
    pub offset: u32,
}

/// Why something was not staged.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum StageError {
    /// No space for this role, or none for one more object; or none can be made, as the drive fails to give what is to be moved.
    #[error("the OSD is full")]
    Full,
    /// No room right now: try again after the next `handle_*` call.
    #[error("the OSD is busy")]
    Busy,
    /// The drive failed.
    #[error("the drive failed: {0}")]
    Failed(String),
}

/// What whoever drives the store must do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Write the front of `buffer`; `Store::handle_written` follows.
    Write {
        /// For the answer.
        token: u32,
        /// In bytes.
        offset: u64,
        /// The memory.
        buffer: Buffer,
        /// In bytes.
        length: usize,
    },
    /// Flush the drive; `Store::handle_flushed` follows.
    Flush {
        /// For the answer.
        token: u32,
    },
    /// Read, at most 256 KiB; `Store::handle_read` follows.
    Read {
        /// For the answer.
        token: u32,
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: usize,
    },
    /// What was staged in this batch will not change any more, and may be sent from `buffer`.
    Sealed {
        /// Which.
        batch: BatchId,
        /// Its memory.
        buffer: Buffer,
    },
    /// What was staged with this token is on stable media. In the order of staging.
    Durable {
        /// The caller's.
        token: u64,
    },
    /// What was staged with this token will never be durable.
    Lost {
        /// The caller's.
        token: u64,
        /// Why.
        reason: String,
    },
    /// A shutdown that was begun is done.
    ShutdownDone,
}

/// A run of blocks that lie together on the drive, or are all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The layer that holds them; of zeros that none holds, the one that was asked for.
    pub layer: LayerId,
    /// The first block of the object.
    pub first_block: u16,
    /// How many.
    pub block_count: u16,
    /// Where; `None` reads as zeros, and so does [`Location::HOLE`].
    pub location: Option<Location>,
}

impl Extent {
    /// Where it lies on the drive, if it does.
    #[must_use]
    pub fn on_drive(&self) -> Option<Location> {
        self.location.filter(|location| *location != Location::HOLE)
    }
}

/// Blocks of a layer of which nothing is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// Which.
    pub range: BlockRange,
    /// Newer layers hide them from everybody: they are never seen again. Else they are holes that hide nothing: as long as they are
    /// that, it makes no difference whether they are there.
    pub is_hidden: bool,
}

/// Figures of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The drive's size.
    pub device_bytes: u64,
    /// What clients can store.
    pub usable_bytes: u64,
    /// What they store.
    pub live_bytes: u64,
    /// Segments that can be written.
    pub free_segments: u32,
    /// All segments.
    pub segments: u32,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Objects with at least one block.
    pub objects: u64,
    /// Batches written since opening.
    pub batches: u64,
    /// Data blocks written for clients.
    pub client_blocks: u64,
    /// Data blocks moved by cleaning.
    pub cleaned_blocks: u64,
    /// Header blocks.
    pub header_blocks: u64,
    /// Blocks of checkpoints.
    pub checkpoint_blocks: u64,
    /// Batches with clients' records that opening had to replay.
    pub replayed_batches: u64,
    /// Bad blocks, for which the opening ended the log where it did: what may have lain there counts as never acknowledged, and
    /// nothing tells whether it was.
    pub unreadable_blocks: u64,
    /// Blocks that cleaning found damaged.
    pub damaged_blocks: u64,
}

impl Statistics {
    /// Blocks written to the drive for each block that clients wrote; 0 before the first.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.client_blocks == 0 {
            return 0.0;
        }
        let all = self.client_blocks + self.cleaned_blocks + self.header_blocks + self.checkpoint_blocks;
        all as f64 / self.client_blocks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_written_is_told_for_each_block_that_clients_wrote() {
        let statistics = Statistics {
            client_blocks: 100,
            cleaned_blocks: 50,
            header_blocks: 20,
            checkpoint_blocks: 30,
            ..Statistics::default()
        };
        assert!((statistics.write_amplification() - 2.0).abs() < 1e-9);
        let none = Statistics { client_blocks: 0, ..statistics };
        assert!(none.write_amplification().abs() < 1e-9, "nobody wrote");
    }
}
