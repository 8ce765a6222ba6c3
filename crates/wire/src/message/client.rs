//! What clients ask of primaries, and what they are answered.

use super::WithData;
use crate::fields::{At, DataHead, Flag, Impossible, InPrefix, Place, fields, sealed};
use crate::frame::{Frame, Stop};
use crate::header::{HEADER_BYTES, HeaderBytes, Kind, Status};
use base::geometry::blocks_touched;
use base::{BLOCK_BYTES, Epoch, Generation, OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, OsdId, Sequence};
use std::ops::Deref;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// The most bytes of a volume that one request reads or writes.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// The most blocks such a request can touch: one more when it starts within a block.
pub const BLOCKS_PER_MESSAGE_MAX: usize = PAYLOAD_BYTES_MAX / BLOCK_BYTES + 1;
/// The bytes of a block in a reply, with its checksum.
const SUMMED_BLOCK_BYTES: usize = BLOCK_BYTES + size_of::<U32>();
/// The bytes that tell what changed in an object: a bit for each block that did, then one for each that is allocated.
pub const CHANGED_BYTES: usize = 2 * OBJECT_BLOCKS / 8;
/// The bytes behind the header of what was sent before: [`Request::since`].
const SINCE_BYTES: usize = size_of::<u64>();

/// A flag in the header, with which a sequence stands behind it.
struct Behind<const BIT: u8>;

impl<const BIT: u8> Place<Option<Sequence>> for Behind<BIT> {
    const USED: HeaderBytes = <Flag<BIT> as Place<bool>>::USED;

    /// Which sequence it is says the body.
    #[inline(always)]
    fn read(header: &HeaderBytes, field: &'static str) -> Result<Option<Sequence>, Impossible> {
        Ok(<Flag<BIT> as Place<bool>>::read(header, field)?.then_some(Sequence(0)))
    }

    #[inline(always)]
    fn write(value: &Option<Sequence>, header: &mut HeaderBytes) {
        <Flag<BIT> as Place<bool>>::write(&value.is_some(), header);
    }
}

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
        /// Of a write or zeroing: what the client calls it, the same in every attempt. Of the question what changed: the layer of the
        /// snapshot that it changed since; 0 asks for all that the other one holds.
        origin: u64 = At<56>,
        /// Of a write or zeroing that may have been done already, by an attempt whose answer did not arrive: what the group
        /// had reached, as far as the client knew, when the first such attempt was sent. What that one did is behind it.
        since: Option<Sequence> = Behind<1>,
        /// Of a read: whoever asks verifies what it gets, so the OSD need not. If something does not verify, it asks once more,
        /// without this: then the OSD verifies, and mends what is damaged.
        unverified: bool = Flag<2>,
        /// Of a read or a question: a snapshot is meant. Without it the layer is the volume's newest, as far as the client knows.
        of_snapshot: bool = Flag<4>,
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
        if self.since.is_some() && !matches!(kind, Kind::Write | Kind::Zero) {
            return Err(Impossible("since", 1));
        }
        if self.unverified && kind != Kind::Read {
            return Err(Impossible("unverified", 1));
        }
        if self.of_snapshot && !matches!(kind, Kind::Read | Kind::Allocated | Kind::Changed | Kind::Space) {
            return Err(Impossible("of_snapshot", 1));
        }
        Ok(())
    }

    /// Of each message at the front of `bytes` the first block that it asks for, if it is a read. That is a hint of what is about
    /// to be looked up, and no more: nobody looks at checksums.
    pub fn reads_ahead(mut bytes: &[u8]) -> impl Iterator<Item = Option<(ObjectKey, u16)>> {
        std::iter::from_fn(move || {
            let frame = Frame::unverified(bytes)?;
            bytes = frame.behind().unwrap_or_default();
            let request = if frame.kind == Kind::Read { frame.fields::<Request>().ok() } else { None };
            Some(request.map(|request| (request.key, request.blocks().0)))
        })
    }

    /// A write: what it says of an earlier attempt, if there was one, stands before its checksums and data.
    #[inline(always)]
    pub(super) fn parse_write<'a>(frame: &Frame<'a>) -> Result<WithData<'a, Request>, Stop> {
        let mut head: Request = frame.fields()?;
        let (block_count, data_bytes) = (usize::from(head.blocks().1), head.length as usize);
        let own_bytes = block_count * size_of::<U32>() + data_bytes;
        let body = frame.body(frame.body_bytes == head.since_bytes() + own_bytes)?;
        let body = head.take_since(body);
        let (checksums, data) =
            <[U32]>::ref_from_prefix_with_elems(body, block_count).expect("the size was checked");
        Ok(WithData { head, checksums, data })
    }

    /// A zeroing, behind which the same may stand.
    pub(super) fn parse_zero(frame: &Frame<'_>) -> Result<Request, Stop> {
        let mut head: Request = frame.fields()?;
        let body = frame.body(frame.body_bytes == head.since_bytes())?;
        head.take_since(body);
        Ok(head)
    }

    fn since_bytes(&self) -> usize {
        if self.since.is_some() { SINCE_BYTES } else { 0 }
    }

    /// Takes what the front of a body says of an earlier attempt, if it was sent before, and answers the rest.
    #[inline(always)]
    fn take_since<'a>(&mut self, body: &'a [u8]) -> &'a [u8] {
        let Some(since) = &mut self.since else { return body };
        let (bytes, rest) = body.split_first_chunk::<SINCE_BYTES>().expect("the size was checked");
        *since = Sequence(u64::from_le_bytes(*bytes));
        rest
    }

    /// It as that kind of message. Behind a write follow its checksums and its data; all others are whole.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> RequestBytes {
        let own_bytes = match kind {
            Kind::Write => usize::from(self.blocks().1) * size_of::<U32>() + self.length as usize,
            _ => 0,
        };
        let mut bytes = [0; HEADER_BYTES + SINCE_BYTES];
        let (header, behind) = bytes.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&sealed(kind, self.since_bytes() + own_bytes, self));
        if let Some(Sequence(since)) = self.since {
            behind.copy_from_slice(&since.to_le_bytes());
        }
        RequestBytes { bytes, size: HEADER_BYTES + self.since_bytes() }
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

/// A request as it is sent, as far as it is no checksums and no data: its header, and what stands right behind it.
#[derive(Clone, Copy, Debug)]
pub struct RequestBytes {
    bytes: [u8; HEADER_BYTES + SINCE_BYTES],
    size: usize,
}

impl RequestBytes {
    /// The header alone.
    #[must_use]
    pub fn header(&self) -> HeaderBytes {
        *self.bytes.first_chunk().expect("a header is the front of it")
    }
}

impl Deref for RequestBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.size]
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
        /// Where the group's order stands, as far as that is for good: whatever is sent from now on is done behind it, in
        /// whichever epoch. 0 if nothing is said of it.
        reached: Sequence = At<24>,
        /// The data tell of the space: how many blocks there are, then pairs of the number of a layer and how many blocks nobody else
        /// sees than who sees the volume from that, 4 bytes each.
        is_space: bool = Flag<4>,
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
        /// Nothing was done for this attempt, and nothing will be. Else it may have been done, or undone.
        was_not_begun: bool = Flag<2>,
    }
}

/// The answer to a request. Its data are whole blocks, those that the request touched; or 128 bytes of allocation bits, before which
/// as many tell what changed if that was asked.
pub type Reply<'a> = WithData<'a, Outcome>;

impl Outcome {
    /// The header of a reply to what was done, which carries nothing, or `body_bytes` of checksums and data that follow.
    #[must_use]
    pub fn done(request: u64, reached: Sequence, body_bytes: usize) -> HeaderBytes {
        sealed(Kind::Reply, body_bytes, &Outcome::ok(request, reached))
    }

    /// A whole reply to a read of nothing but zeros.
    #[must_use]
    pub fn zeros(request: u64, reached: Sequence) -> HeaderBytes {
        sealed(Kind::Reply, 0, &Outcome { is_zeros: true, ..Outcome::ok(request, reached) })
    }

    /// The header of a reply that tells of the space, in so many bytes that follow.
    #[must_use]
    pub fn space(request: u64, reached: Sequence, body_bytes: usize) -> HeaderBytes {
        sealed(Kind::Reply, body_bytes, &Outcome { is_space: true, ..Outcome::ok(request, reached) })
    }

    /// A whole reply that refuses.
    #[must_use]
    pub fn refused(request: u64, status: Status, details: RefusalDetails) -> HeaderBytes {
        let outcome = Outcome { status, details, ..Outcome::ok(request, Sequence(0)) };
        sealed(Kind::Reply, 0, &outcome)
    }

    fn ok(request: u64, reached: Sequence) -> Outcome {
        let (status, details) = (Status::Ok, RefusalDetails::default());
        Outcome { request, status, details, is_zeros: false, reached, is_space: false }
    }
}

impl DataHead for Outcome {
    fn data(&self, body_bytes: usize) -> (usize, usize) {
        if self.is_space || [OBJECT_BLOCKS / 8, CHANGED_BYTES].contains(&body_bytes) {
            return (0, body_bytes);
        }
        let block_count = (body_bytes / SUMMED_BLOCK_BYTES).min(BLOCKS_PER_MESSAGE_MAX);
        (block_count, block_count * BLOCK_BYTES)
    }
}
