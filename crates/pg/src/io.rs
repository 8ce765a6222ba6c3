//! What an OSD needs of whoever drives it.

use base::map::PgConfig;
use base::{Buffer, Epoch, Network, PgId};

/// The drive, the network and the way to the registry.
pub trait Io: Network {
    /// Reads `length` bytes at `offset` of the drive into the front of `buffer`; `Osd::handle_file` follows.
    fn read(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize);
    /// Writes the front of `buffer` to the drive; `Osd::handle_file` follows.
    fn write(&mut self, token: u64, offset: u64, buffer: Buffer, length: usize);
    /// Makes the drive's completed writes durable; `Osd::handle_file` follows.
    fn flush(&mut self, token: u64);
    /// Asks the registry to replace a group's configuration if its epoch still is `expected`;
    /// `Osd::handle_proposal` follows, behind a map that shows the new one if it was granted.
    fn propose(&mut self, pg: PgId, expected: Epoch, config: PgConfig);
    /// The same, and in one with it the configuration of the group that is split off, with the same epoch and members.
    fn propose_split(&mut self, pg: PgId, expected: Epoch, config: PgConfig);
}

// What a drive operation was for.
pub(crate) const TOKEN_SHIFT: u32 = 56;
pub(crate) const TOKEN_STORE_WRITE: u64 = 1;
pub(crate) const TOKEN_STORE_FLUSH: u64 = 2;
pub(crate) const TOKEN_STORE_READ: u64 = 3;
pub(crate) const TOKEN_PART: u64 = 4;

/// Whether a drive operation reads, for whomever.
pub(crate) fn reads(token: u64) -> bool {
    reads_data(token) || token >> TOKEN_SHIFT == TOKEN_STORE_READ
}

/// Whether a drive operation reads data for somebody, and not for the store itself.
#[doc(hidden)]
#[must_use]
pub fn reads_data(token: u64) -> bool {
    token >> TOKEN_SHIFT == TOKEN_PART
}
