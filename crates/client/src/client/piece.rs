//! The parts that operations are sent in.

use super::waiting::Trouble;
use crate::route::Reached;
use base::{Epoch, Generation, LayerId, LinkId, OBJECT_BYTES, ObjectKey, OsdId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Read,
    Write,
    Zero,
    Allocated,
    /// Since the snapshot of that layer; 0 for all that there is.
    Changed(LayerId),
    Space,
}

/// Where a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceState {
    /// Nowhere: the slot is free.
    Free,
    /// In the queue of an OSD's link that does not stand yet.
    Queued(OsdId),
    /// Sent; the reply is awaited on this link.
    Sent(LinkId),
    /// It will be tried again.
    Waiting,
    /// It waits for a change of some of the same bytes: see [`super::lines`].
    Held,
}

/// A part of an operation within one object, one request on the wire.
#[derive(Debug)]
pub(super) struct Piece {
    /// Distinguishes the slot's uses: a late reply to an earlier one is ignored.
    pub(super) serial: u32,
    /// Its place among all pieces that were ever made.
    pub(super) number: u64,
    pub(super) state: PieceState,
    pub(super) operation: u32,
    pub(super) kind: PieceKind,
    pub(super) key: ObjectKey,
    /// Within the object, in bytes.
    pub(super) offset: u32,
    pub(super) length: u32,
    /// Where its bytes lie in the operation's buffer.
    pub(super) buffer_start: usize,
    pub(super) attempts: u32,
    /// Times in a row that its bytes arrived damaged.
    pub(super) damaged: u32,
    /// Why the attempt before was in vain.
    pub(super) trouble: Trouble,
    /// What OSDs know a write by, the same in every attempt: the name in [`base::LogEntry::origin`].
    pub(super) origin: u64,
    /// Of a change: what the group was known to have reached when the earliest of those attempts was sent that may have been
    /// done, or may be yet.
    pub(super) since: Option<Reached>,
    /// The newest attempt is the earliest of those.
    pub(super) is_first: bool,
    /// Under which generation, and in which epoch of its group, the newest attempt was sent.
    pub(super) generation: Generation,
    pub(super) epoch: Epoch,
    /// What was sent is the question how far the group is, before a change of which that must be known.
    pub(super) asks: bool,
    pub(super) has_asked: bool,
    /// Of a change: what comes after it waits for it, see [`super::lines`].
    pub(super) is_lined_up: bool,
}

impl PieceKind {
    /// Whether it changes what a volume holds.
    pub(super) fn is_change(self) -> bool {
        matches!(self, PieceKind::Write | PieceKind::Zero)
    }
}

impl Piece {
    /// Whether it changes what a volume holds.
    pub(super) fn is_change(&self) -> bool {
        self.kind.is_change()
    }

    /// Where it begins, in bytes from the start of its volume.
    pub(super) fn volume_offset(&self) -> u64 {
        u64::from(self.key.object) * OBJECT_BYTES + u64::from(self.offset)
    }

    /// Whether both are about some of the same bytes, if both are of one object.
    pub(super) fn touches(&self, other: &Piece) -> bool {
        self.offset < other.offset + other.length && other.offset < self.offset + self.length
    }
}
