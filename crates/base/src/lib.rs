//! What every other crate shares: ids, units, geometry, checksums, buffers, the cluster map.
//!
//! Nothing here performs I/O, reads a clock or draws a random number, so that the state machines
//! built on it can be replayed from a seed.

pub mod access;
#[cfg(target_arch = "x86_64")]
mod block_checksum;
mod blocks;
pub mod buffer;
pub mod calendar;
pub mod checksum;
pub mod duration;
pub mod figures;
mod fingerprint;
pub mod geometry;
pub mod hash;
pub mod ids;
mod layers;
pub mod limits;
pub mod log_entry;
pub mod map;
pub mod names;
pub mod network;
mod profile;
mod qos;
mod recovery;
pub mod schedule;
pub mod status;
pub mod tenant;
pub mod time;
mod topology;
pub mod units;

pub use access::{Access, Encryption, Permission, Principal, PublicKey, Rights};
pub use blocks::BlockRange;
pub use buffer::{Buffer, BufferPool};
pub use checksum::{ZERO_BLOCK_CRC32C, crc32c, keyed_hash};
pub use fingerprint::{Fingerprint, Fingerprints};
pub use geometry::{BLOCK_BYTES, OBJECT_BLOCKS, OBJECT_BYTES, SECTOR_BYTES};
pub use ids::{
    ClientId, ClusterId, CutId, Epoch, Generation, History, LayerId, LinkId, NodeId, ObjectKey, OsdId,
    OsdUuid, PgId, PoolId, ScheduleId, Sequence, VolumeId,
};
pub use layers::{LayerSpan, Views, without};
pub use limits::{Limit, Limited, Limits};
pub use log_entry::LogEntry;
pub use names::{PlaceName, VolumeName};
pub use network::Network;
pub use profile::{Profile, WorkClass};
pub use qos::{Qos, Weight};
pub use recovery::RecoveryShare;
pub use tenant::Tenant;
pub use time::Instant;
