//! What clients ask of primaries, and what they are answered.

use super::{SUMMED_BLOCK_BYTES, WithData};
use crate::fields::{At, DataHead, Flag, Impossible, InPrefix, fields, sealed};
use crate::header::{HeaderBytes, Kind, Status};
use base::geometry::blocks_touched;
use base::{BLOCK_BYTES, Epoch, Generation, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, OsdId};

/// The most bytes of a volume that one request reads or writes.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// The most blocks such a request can touch: one more when it starts within a block.
pub const BLOCKS_PER_MESSAGE_MAX: usize = PAYLOAD_BYTES_MAX / BLOCK_BYTES + 1;

fields! {
    /// What a client asks of an object. `offset + length` lies within the object.
    Request, checked by Request::check {
        /// The client's number for it.
        request: u64 = At<16>,
        /// The object.
        key: ObjectKey = ObjectKey,
        /// In bytes from the object's start.
        offset: u32 = At<36>,
        /// In bytes; not 0, at most [`PAYLOAD_BYTES_MAX`] of a read or write. A zeroing is of whole blocks.
        length: u32 = At<12>,
        /// The client's idea of the group's epoch.
        epoch: Epoch = At<48>,
        /// The client's attach generation.
        generation: Generation = At<52>,
        /// Of a write or zeroing: what the client calls it, the same in every attempt.
        origin: u64 = At<56>,
        /// It may have been done already, by an attempt whose answer did not arrive.
        is_again: bool = Flag<1>,
    }
}

impl Request {
    fn check(&self, kind: Kind) -> Result<(), Impossible> {
        let Request { offset, length, .. } = *self;
        let length_max = match kind {
            Kind::Read | Kind::Write => PAYLOAD_BYTES_MAX as u64,
            _ => OBJECT_BYTES,
        };
        if length == 0 || u64::from(length) > length_max {
            return Err(Impossible("length", length.into()));
        }
        if u64::from(offset) + u64::from(length) > OBJECT_BYTES {
            return Err(Impossible("offset", offset.into()));
        }
        if kind == Kind::Zero && !self.is_aligned() {
            return Err(Impossible("alignment", (offset | length).into()));
        }
        Ok(())
    }

    /// It as that kind of message. Behind a write follow its checksums and its data; all others are whole.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        self.sealed(kind, kind == Kind::Write)
    }

    /// The blocks it touches, as `(first, count)`.
    #[must_use]
    pub fn blocks(&self) -> (u16, u16) {
        let (first, count) = blocks_touched(u64::from(self.offset), u64::from(self.length));
        (first as u16, count as u16)
    }

    /// Whether it starts and ends on block borders.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        ((self.offset | self.length) as usize).is_multiple_of(BLOCK_BYTES)
    }
}

impl DataHead for Request {
    fn data(&self, _: usize) -> (usize, usize) {
        (self.blocks().1.into(), self.length as usize)
    }
}

fields! {
    /// How a request ended.
    Outcome {
        /// The client's number for it.
        request: u64 = At<16>,
        /// Whether it was done, or why not.
        status: Status = InPrefix,
        /// More about that.
        details: RefusalDetails = RefusalDetails,
        /// Every byte that was to be read is zero, and none is sent.
        is_zeros: bool = Flag<1>,
    }
}

fields! {
    /// What a refusal tells beside the status, which says what of it counts.
    #[derive(Default)]
    RefusalDetails {
        /// The group's epoch, when the request's was stale.
        epoch: Epoch = At<48>,
        /// The newest generation, when the request's was fenced.
        generation: Generation = At<52>,
        /// The place of damage: bytes from the object's start.
        offset: u32 = At<36>,
        /// The OSD whose damage or failure it is.
        osd: OsdId = At<56>,
    }
}

/// The answer to a request. Its data are whole blocks, those that the request touched; or 128 bytes of allocation bits.
pub type Reply<'a> = WithData<'a, Outcome>;

impl Outcome {
    /// The header of a reply to what was done, which carries nothing, or `body_bytes` of checksums and data that follow.
    #[must_use]
    pub fn done(request: u64, body_bytes: usize) -> HeaderBytes {
        let (status, details) = (Status::Ok, RefusalDetails::default());
        sealed(Kind::Reply, body_bytes, &Outcome { request, status, details, is_zeros: false })
    }

    /// A whole reply to a read of nothing but zeros.
    #[must_use]
    pub fn zeros(request: u64) -> HeaderBytes {
        let (status, details) = (Status::Ok, RefusalDetails::default());
        sealed(Kind::Reply, 0, &Outcome { request, status, details, is_zeros: true })
    }

    /// A whole reply that refuses.
    #[must_use]
    pub fn refused(request: u64, status: Status, details: RefusalDetails) -> HeaderBytes {
        sealed(Kind::Reply, 0, &Outcome { request, status, details, is_zeros: false })
    }
}

impl DataHead for Outcome {
    fn data(&self, body_bytes: usize) -> (usize, usize) {
        if body_bytes == OBJECT_BLOCKS / 8 {
            return (0, body_bytes);
        }
        let block_count = (body_bytes / SUMMED_BLOCK_BYTES).min(BLOCKS_PER_MESSAGE_MAX);
        (block_count, block_count * BLOCK_BYTES)
    }
}
