//! How OSDs begin an epoch of a group, and the leases by which a primary serves it.

use super::{WithEntries, check_end};
use crate::fields::{At, Flag, If, Impossible, Units, fields, place, sealed};
use crate::header::{HEADER_BYTES, HeaderBytes, Kind};
use base::{Epoch, LayerId, LogEntry, PgId, Sequence};

/// The longest lease that may be asked for, in milliseconds. Who has just started and does not know what it
/// promised in an earlier life waits for as long.
pub const LEASE_MS_MAX: u32 = 6000;

fields! {
    /// A group in an epoch: all that some kinds say.
    GroupEpoch {
        /// The group.
        pg: PgId = At<40>,
        /// The epoch: that has begun, or in which a learner was brought up to date.
        epoch: Epoch = At<48>,
    }
}

impl GroupEpoch {
    /// It as a whole message of that kind.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        sealed(kind, 0, self)
    }
}

fields! {
    /// A primary has claimed an epoch, and asks a member where it stands.
    Query is all of Kind::Query, checked by Query::check {
        /// The group.
        pg: PgId = At<40>,
        /// Which objects are the group's in that epoch: see [`PgId::holds`].
        modulus: u32 = At<12>,
        /// The epoch the primary claimed.
        epoch: Epoch = At<48>,
    }
}

impl Query {
    fn check(&self, _: Kind) -> Result<(), Impossible> {
        // A group's number is a remainder.
        if self.modulus <= self.pg.index || self.modulus > PgId::COUNT_MAX {
            return Err(Impossible("modulus", self.modulus.into()));
        }
        Ok(())
    }
}

fields! {
    /// Where a member stands in a group's order.
    LogState {
        /// The group.
        pg: PgId = At<40>,
        /// The epoch of the query it answers.
        epoch: Epoch = At<48>,
        /// The last write it has, 0 if none.
        last_sequence: Sequence = At<56>,
        /// From here on its log lacks nothing; 0 if it goes back to the group's first write.
        log_begins: Sequence = At<16>,
        /// The member was catching up when its log began, and does not have what came before.
        is_incomplete: bool = Flag<2>,
        /// The member was in no epoch of the group since it started: the end of its log may have rotted before that,
        /// which looks like the end of what was written.
        may_lack_tail: bool = Flag<4>,
    }
}

/// Where a member stands, with the newest entries of its log, oldest first.
pub type Position<'a> = WithEntries<'a, LogState, LogEntry, LOG_ENTRY_BYTES>;

/// Bytes of a log's entry in a position.
const LOG_ENTRY_BYTES: usize = 40;

place! {
    LogEntry in LOG_ENTRY_BYTES, checked by check_entry {
        sequence: Sequence = At<0>,
        layer: LayerId = At<8>,
        epoch: Epoch = At<16>,
        object: u32 = At<20>,
        first_block: u16 = At<24>,
        block_count: u16 = At<26>,
        origin: u64 = At<32>,
    }
}

// In the header of a message that has one.
place! {
    LogEntry in HEADER_BYTES, checked by check_entry {
        block_count: u16 = Units<12, 1>,
        origin: u64 = At<16>,
        layer: LayerId = At<24>,
        object: u32 = At<32>,
        first_block: u16 = Units<36, 1>,
        epoch: Epoch = At<52>,
        sequence: Sequence = At<56>,
    }
}

/// Whether an entry's blocks lie within its object.
fn check_entry(entry: &LogEntry, _: Kind) -> Result<(), Impossible> {
    check_end(entry.first_block, entry.block_count)
}

impl LogState {
    /// The whole of a position.
    ///
    /// # Panics
    /// If there are more than 1,024 entries.
    pub fn encode(&self, entries: impl ExactSizeIterator<Item = LogEntry>) -> Vec<u8> {
        Position::encode(Kind::Position, self, entries)
    }
}

fields! {
    /// An epoch begins.
    Activate is all of Kind::Activate {
        /// The group.
        pg: PgId = At<40>,
        /// The epoch that begins.
        epoch: Epoch = At<48>,
        /// The sequence of the mark that begins this epoch; its first write follows.
        mark: Sequence = At<56>,
        /// The receiver is a learner: its log begins anew with the mark, and does not tell what it has. It gets
        /// what is ordered from this sequence on.
        join: Option<Sequence> = If<1, At<16>>,
    }
}

fields! {
    /// What an OSD asks of another, and grants it.
    #[derive(Default)]
    Lease is all of Kind::Lease, checked by Lease::check {
        /// For how long the sender counts on the receiver not to take over its groups, from `stamp` on, in
        /// milliseconds. 0 asks for nothing.
        ttl_ms: u32 = At<12>,
        /// The sender's clock, in nanoseconds. Comes back in the grant.
        stamp: u64 = At<16>,
        /// The `ttl_ms` of what is granted; 0 grants nothing.
        granted_ttl_ms: u32 = At<36>,
        /// The `stamp` of what is granted.
        granted_stamp: u64 = At<56>,
    }
}

impl Lease {
    fn check(&self, _: Kind) -> Result<(), Impossible> {
        match self.ttl_ms.max(self.granted_ttl_ms) {
            0..=LEASE_MS_MAX => Ok(()),
            longer => Err(Impossible("lease", longer.into())),
        }
    }
}
