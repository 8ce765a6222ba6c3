//! What a placement group's log says of one write.

use crate::{Epoch, LayerId, ObjectKey, Sequence};

/// Bit of an origin, with [`REPAIR`]: it brought what all members in sync had there, once more.
pub const MEND: u64 = 1 << 61;
/// Bit of an origin: it made members agree, and changed nothing that a client could tell.
pub const REPAIR: u64 = 1 << 62;
/// Bit of an origin: the write of that name was replaced by what was there before.
pub const UNDONE: u64 = 1 << 63;

/// What its client calls a write, the same in every attempt: the other bits of an origin. 0 if it has no name.
#[must_use]
pub const fn name_of(origin: u64) -> u64 {
    origin & (MEND - 1)
}

/// One write in a group's log: what it changed, not to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The epoch in which it was ordered.
    pub epoch: Epoch,
    /// Its place in the group's order.
    pub sequence: Sequence,
    /// The layer.
    pub layer: LayerId,
    /// The 4 MiB piece of it.
    pub object: u32,
    /// The first block it changed.
    pub first_block: u16,
    /// How many; 0 for a mark.
    pub block_count: u16,
    /// What the write comes from: the name that its client gave it ([`name_of`]), with [`MEND`], [`REPAIR`]
    /// and [`UNDONE`].
    pub origin: u64,
}

impl LogEntry {
    /// Whether it begins an epoch or a log, and changed nothing.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        self.block_count == 0
    }

    /// Whether it made members agree on blocks.
    #[must_use]
    pub fn is_repair(&self) -> bool {
        !self.is_mark() && self.origin & REPAIR != 0
    }

    /// Whether it brought what was there before, in place of a copy that was damaged.
    #[must_use]
    pub fn is_mend(&self) -> bool {
        !self.is_mark() && self.origin & MEND != 0
    }

    /// The first block behind it.
    #[must_use]
    pub fn end(&self) -> u16 {
        self.first_block + self.block_count
    }

    /// Whether it changed a block.
    #[must_use]
    pub fn covers(&self, block: u16) -> bool {
        (self.first_block..self.end()).contains(&block)
    }

    /// Whether it changed a block of an object. In which group that was is told elsewhere.
    #[must_use]
    pub fn is_about(&self, key: &ObjectKey, block: u16) -> bool {
        (self.layer, self.object) == (key.layer, key.object) && self.covers(block)
    }

    /// Whether it is of the write that a client calls `name`, or of a repair of it.
    #[must_use]
    pub fn is_of(&self, key: &ObjectKey, name: u64) -> bool {
        name_of(self.origin) == name && (self.layer, self.object) == (key.layer, key.object)
    }
}
