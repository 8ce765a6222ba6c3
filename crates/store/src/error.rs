//! Why a drive cannot be formatted or opened.

use crate::device::DeviceError;
use base::units::ByteSize;
use base::{ClusterId, OsdUuid};

/// Why a drive cannot be made an OSD.
#[derive(thiserror::Error, Debug)]
pub enum FormatError {
    /// Too few segments fit.
    #[error("the drive has {}, an OSD needs at least {}; use a larger one", ByteSize(*bytes), ByteSize(*bytes_min))]
    TooSmall {
        /// Its size.
        bytes: u64,
        /// The least.
        bytes_min: u64,
    },
    /// More blocks than an index entry can name.
    #[error("the drive has {}, more than the 16TiB an OSD can use; give a slice of it", ByteSize(*bytes))]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The drive failed.
    #[error("formatting failed: {0}")]
    Device(#[from] DeviceError),
}

/// Why a drive cannot be opened as an OSD.
#[derive(thiserror::Error, Debug)]
pub enum OpenError {
    /// Neither superblock says so.
    #[error("holds no OSD; to make it one, erase it with `millpond osd wipe` and start again")]
    NotAnOsd,
    /// Somebody else's.
    #[error(
        "belongs to cluster {found}, not {expected}; to reuse the drive, wipe it with `millpond osd wipe`"
    )]
    OtherCluster {
        /// Its cluster.
        found: ClusterId,
        /// This one.
        expected: ClusterId,
    },
    /// The right cluster's, but not the one that was meant.
    #[error("holds OSD {found}, not {expected}; were drives swapped?")]
    OtherOsd {
        /// What it holds.
        found: OsdUuid,
        /// What was meant.
        expected: OsdUuid,
    },
    /// Made by a newer program.
    #[error("has format version {found}, this program knows up to {known}; use the newer program")]
    NewerFormat {
        /// Its version.
        found: u32,
        /// The newest this program knows.
        known: u32,
    },
    /// Made by an older program, whose format is not read any more.
    #[error(
        "has format version {found}, this program knows {known} only; use the older program, or have \
         `millpond osd replace` make it anew and the other replicas bring its data back"
    )]
    OlderFormat {
        /// Its version.
        found: u32,
        /// The one this program knows.
        known: u32,
    },
    /// Both copies are damaged.
    #[error(
        "both superblocks (at 0 and 1MiB) are damaged; the data of this OSD cannot be read, the other replicas have it: \
         `millpond osd replace` makes it anew, and they fill it"
    )]
    SuperblocksDamaged,
    /// Smaller than it was.
    #[error(
        "the drive has {}, but was formatted with {}; it was truncated, or is another one: restore its size, or \
         have `millpond osd replace` make it anew and the others fill it", ByteSize(*found), ByteSize(*formatted)
    )]
    Truncated {
        /// Its size now.
        found: u64,
        /// Its size when formatted.
        formatted: u64,
    },
    /// A durable part of the log cannot be read.
    #[error(
        "{what} at offset {offset} is damaged; acknowledged writes are in it, which the other replicas have: `millpond \
         osd replace` makes it anew, and they fill it"
    )]
    Damaged {
        /// The thing.
        what: &'static str,
        /// In bytes.
        offset: u64,
    },
    /// A newer program wrote it, and did not say so in the superblock.
    #[error(
        "the batch at offset {offset} has a record of kind {kind}, which this program does not know; use the newer program"
    )]
    UnknownRecord {
        /// Its number.
        kind: u8,
        /// Of the batch, in bytes.
        offset: u64,
    },
    /// Its checksum is right, and it says what no program of ours writes.
    #[error(
        "{what} at offset {offset} cannot be; a newer or faulty program wrote it: use that, or have \
         `millpond osd replace` make it anew and the others fill it"
    )]
    Impossible {
        /// What of a superblock, of a checkpoint's root, or of a batch.
        what: &'static str,
        /// Of the superblock, root or batch, in bytes.
        offset: u64,
    },
    /// The drive failed.
    #[error("the drive failed: {0}")]
    Device(#[from] DeviceError),
}
