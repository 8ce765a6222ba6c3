//! What a primary has its replicas apply, and what they answer.

use super::whole_blocks;
use crate::fields::{At, DataHead, Flag, InPrefix, fields};
use crate::header::{HeaderBytes, Kind, Status};
use base::{BlockRange, Epoch, Sequence};

fields! {
    /// A write or zeroing for a replica to apply. Whole blocks.
    Replicate {
        /// What it changes; not nothing.
        range: BlockRange = BlockRange,
        /// The epoch of the primary that ordered it.
        epoch: Epoch = At<48>,
        /// Its place in the group's order.
        sequence: Sequence = At<56>,
        /// Its origin: see [`base::LogEntry::origin`].
        origin: u64 = At<16>,
    }
}

impl Replicate {
    /// It as a whole replicated zeroing or hole, or as the header of a replicated write, which checksums and data follow.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        self.sealed(kind, kind == Kind::ReplicateWrite)
    }
}

impl DataHead for Replicate {
    fn data(&self, _: usize) -> (usize, usize) {
        whole_blocks(&self.range)
    }
}

fields! {
    /// Replicated messages are on stable media.
    ReplicateAck is all of Kind::ReplicateAck {
        /// How many of this connection, in order.
        through: u64 = At<56>,
        /// The replica takes no more new data than what is under way.
        is_full: bool = Flag<1>,
        /// It takes no object that it has not, beyond what is under way.
        takes_no_objects: bool = Flag<2>,
    }
}

fields! {
    /// A replicated message was refused.
    ReplicateRefused is all of Kind::ReplicateRefused {
        /// Its number among the replicated messages of this connection.
        ordinal: u64 = At<56>,
        /// Why.
        status: Status = InPrefix,
        /// The newer epoch, if that is why.
        epoch: Epoch = At<48>,
    }
}
