//! Why an operation failed for good.

use base::OsdId;
use std::time::Duration;

/// Why an operation on a volume failed for good. What may pass is retried instead.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The range does not lie within the volume, or not any more.
    #[error("{offset}+{length} lies beyond the end of volume {volume:?}, which has {bytes} bytes")]
    OutOfRange {
        /// The volume's name.
        volume: String,
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
        /// The volume's size.
        bytes: u64,
    },
    /// Stored bytes do not verify. They are not returned.
    #[error(
        "volume {volume:?}: the data of object {object}, bytes {offset}+4096, is damaged on {osd} (its checksum does \
         not verify); restore this range from a copy, writing it heals it"
    )]
    Damaged {
        /// The volume's name.
        volume: String,
        /// The 4 MiB piece of the volume.
        object: u32,
        /// In bytes from the object's start.
        offset: u32,
        /// Who holds the damaged copy.
        osd: OsdId,
    },
    /// No room.
    #[error(
        "volume {volume:?}: an OSD that holds it is full; trim or remove data, or add OSDs (`millpond status` shows \
         which)"
    )]
    NoSpace {
        /// The volume's name.
        volume: String,
    },
    /// Somebody else attached the volume since.
    #[error("volume {volume:?} was attached by another client since; this one must not write to it any more")]
    Fenced {
        /// The volume's name.
        volume: String,
    },
    /// The key of this client does not allow it.
    #[error("volume {volume:?}: the key in use does not allow that; `millpond auth ls` shows what it may do")]
    Forbidden {
        /// The volume's name.
        volume: String,
    },
    /// It is a snapshot, which does not change.
    #[error("{volume:?} is a snapshot and is not written to; clone it, or write to the volume itself")]
    IsSnapshot {
        /// The names of the volume and the snapshot.
        volume: String,
    },
    /// It is gone.
    #[error("volume {volume:?} was removed")]
    NoSuchVolume {
        /// The volume's name.
        volume: String,
    },
    /// The drive of a primary does not work.
    #[error("volume {volume:?}: the drive of {osd} failed; replace it (`millpond status` says more)")]
    DeviceFailed {
        /// The volume's name.
        volume: String,
        /// Whose drive.
        osd: OsdId,
    },
    /// A write or zeroing whose answer was lost was sent again when nobody could tell any more whether it was done. It is not
    /// done again, for others may have written there since.
    #[error(
        "volume {volume:?}: whether a write was done nobody can tell any more: its answer was lost, and much was written \
         since; read what is there. It was not done again, for the volume is shared"
    )]
    OutcomeUnknown {
        /// The volume's name.
        volume: String,
    },
    /// Whoever asked for it is gone ([`Client::abandon`](crate::Client::abandon)). It is not sent again.
    #[error("volume {volume:?}: given up, since whoever asked for it is gone")]
    Abandoned {
        /// The volume's name.
        volume: String,
    },
    /// Bytes arrived damaged again and again.
    #[error(
        "volume {volume:?}: bytes arrive damaged from or at {osd}, {attempts} times in a row; check the network"
    )]
    CorruptInTransit {
        /// The volume's name.
        volume: String,
        /// The other end.
        osd: OsdId,
        /// How often it was tried.
        attempts: u32,
    },
    /// It was opened to be read.
    #[error("volume {volume:?} is open read-only, and was not changed; open it read-write to change it")]
    ReadOnly {
        /// The volume's name.
        volume: String,
    },
    /// It is another's, and was not changed.
    #[error("volume {volume:?} was not changed: {reason}")]
    NotOwned {
        /// The volume's name.
        volume: String,
        /// Whose, and what to do.
        reason: String,
    },
    /// It was not done within the time limit. A write may still take effect.
    #[error(
        "volume {volume:?}: not done within {} s and given up ({why}); a write may still take effect; `millpond \
         status` says what is wrong",
        limit.as_secs_f64()
    )]
    TimedOut {
        /// The volume's name.
        volume: String,
        /// The limit.
        limit: Duration,
        /// For what it waited, naming placement group and OSD.
        why: String,
    },
}
