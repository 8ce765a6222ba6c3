//! The store of one OSD: an append-only log on a drive, and an index of it in memory. No I/O.
//!
//! Everything is written by appending *batches* to *segments*. A batch is one header block (what, where, in
//! which order, and a CRC-32C for each data block) and the data, written by one I/O and made durable by one
//! flush where the drive has a volatile cache. Batches have one global sequence and are reported durable in
//! that order, so what survives a crash is always a prefix.
//!
//! Drive it like this: `stage_*` any number of times in a turn, [`Store::flush`] at its end, then perform the
//! [`Action`]s and tell their outcome with `handle_*`. [`Store::retry_reads`] tells it that time passes. Opening is the only
//! blocking part, over [`Device`].
//!
//! # Where to look
//! Each file depends on those before it only; what but one of them changes is that one's own.
//!
//! - [`layout`]: the bytes on the drive, drawn in `docs/formats/`; `superblock` and `batch` read and write them.
//! - `contents`: what is durable: `index`, `pg_log`, `segments`. A durable record changes it in `apply`, and nothing else.
//!   `cache`: how what that needs comes into the processor's cache.
//! - `log`: the log's end, with the memory of its batches (`slots`), their places (`streams`), and what is on its way to the
//!   drive (`in_flight`). `space`: who is refused how early.
//! - `checkpoint`: how a start is spared the whole log. `cleaner`: how space is won back.
//! - `store`: a turn's end, and what the drive answered: settling, where a batch becomes durable.
//! - `staging`: what is to be written. `read`: what is there; `stack`: who sees it. `audit`: counting again.
//! - `recovery`: opening: which batches count after a crash, and why no other can.
//!
//! # Invariants
//! - A batch is reported durable only when it and all before it are on stable media.
//! - The index points only at durable data, and at each place from one block only.
//! - A segment is written anew only when nothing points into it, nobody reads it, and no start needs it.

mod actions;
mod audit;
mod batch;
mod bits;
mod cache;
mod checkpoint;
mod cleaner;
mod contents;
mod device;
mod error;
#[cfg(test)]
mod fixtures;
mod in_flight;
mod index;
pub mod layout;
mod log;
mod pg_log;
mod read;
mod recovery;
mod segments;
mod slots;
mod space;
mod stack;
mod staging;
mod store;
mod streams;
mod superblock;
#[cfg(feature = "testing")]
pub mod testing;

pub use actions::{
    Action, BatchId, Expected, Extent, Identity, Location, Options, Role, Sabotage, StageError, Staged,
    Statistics, Unseen, WriteRecord,
};
pub use device::{Device, DeviceError};
pub use error::{FormatError, OpenError};
pub use layout::{RecordKind, Secret};
pub use pg_log::{Currency, IN_FLIGHT_MAX, LastWrite, PG_LOG_ENTRIES};
pub use recovery::identify;
pub use stack::ObjectSpace;
pub use store::Store;
pub use superblock::{DEVICE_BYTES_MIN, format};
