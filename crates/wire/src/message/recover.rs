//! How a primary makes members hold the same: what it pushes to a learner, and what it asks members that they hold.

use super::{WithData, WithEntries, whole_blocks};
use crate::fields::{At, DataHead, Flag, If, Impossible, InPrefix, fields, place, sealed};
use crate::frame::{Frame, Stop};
use crate::header::{HeaderBytes, Kind, Status};
use base::{BlockRange, Epoch, LogEntry, OBJECT_BLOCKS, ObjectKey, PgId, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most blocks of one deep check: a bit of [`Findings::damaged`] for each.
pub const CHECK_BLOCKS_MAX: u16 = 64;

fields! {
    /// Blocks of an object that a learner lacks: zeros, or what follows.
    Push {
        /// Which; not none.
        range: BlockRange = BlockRange,
        /// The primary's epoch.
        epoch: Epoch = At<48>,
    }
}

impl Push {
    /// It as a whole push of zeros, or as the header of another: of [`Kind::PushWrite`] checksums and data follow, of
    /// [`Kind::PushLost`] the checksum.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        match kind {
            Kind::PushLost => sealed(kind, size_of::<U32>(), self),
            _ => self.sealed(kind, kind == Kind::PushWrite),
        }
    }
}

impl DataHead for Push {
    fn data(&self, _: usize) -> (usize, usize) {
        whole_blocks(&self.range)
    }
}

/// A block whose content nobody has any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushLost {
    /// Which: one.
    pub push: Push,
    /// The checksum of what it held.
    pub checksum: U32,
}

impl PushLost {
    pub(super) fn parse(frame: &Frame<'_>) -> Result<PushLost, Stop> {
        Ok(PushLost { push: frame.fields()?, checksum: *frame.body_as()? })
    }
}

fields! {
    /// An entry of a group's log.
    PushEntry is all of Kind::PushEntry {
        /// The group.
        pg: PgId = At<40>,
        /// The primary's epoch; the entry's own may be older.
        epoch: Epoch = At<48>,
        /// The entry.
        entry: LogEntry = LogEntry,
    }
}

fields! {
    /// A request for the objects of a group that a member has.
    ListObjects is all of Kind::ListObjects {
        /// The group.
        pg: PgId = At<40>,
        /// The primary's epoch.
        epoch: Epoch = At<48>,
        /// Only those behind this one.
        after: Option<(VolumeId, u32)> = If<1, (At<24>, At<32>)>,
    }
}

fields! {
    /// Which answer to [`ListObjects`] it is.
    Page {
        /// The group.
        pg: PgId = At<40>,
        /// The epoch of the request it answers.
        epoch: Epoch = At<48>,
        /// There are no more.
        is_last: bool = Flag<1>,
    }
}

/// Objects of a group that a member has, in the order of volume and object.
pub type Objects<'a> = WithEntries<'a, Page, ObjectDigest, OBJECT_DIGEST_BYTES>;

/// An object and what it holds, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectDigest {
    /// The volume.
    pub volume: VolumeId,
    /// The 4 MiB piece of it.
    pub object: u32,
    /// Over which blocks there are, and their checksums.
    pub digest: u64,
}

/// Bytes of an object in such an answer.
const OBJECT_DIGEST_BYTES: usize = 24;

place! {
    ObjectDigest in OBJECT_DIGEST_BYTES {
        volume: VolumeId = At<0>,
        object: u32 = At<8>,
        digest: u64 = At<16>,
    }
}

impl Page {
    /// The whole of an answer.
    ///
    /// # Panics
    /// If there are more than 1,024 entries.
    pub fn encode(&self, entries: impl ExactSizeIterator<Item = ObjectDigest>) -> Vec<u8> {
        Objects::encode(Kind::Objects, self, entries)
    }
}

fields! {
    /// A request for the checksums of an object's blocks.
    ListBlocks is all of Kind::ListBlocks {
        /// The object.
        key: ObjectKey = ObjectKey,
        /// The primary's epoch.
        epoch: Epoch = At<48>,
    }
}

/// The checksums of an object's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    /// What was asked for.
    pub of: ListBlocks,
    /// A bit for each block that there is, the lowest first.
    pub allocated: &'a [u8; OBJECT_BLOCKS / 8],
    /// A checksum for each block.
    pub checksums: &'a [U32; OBJECT_BLOCKS],
}

/// The body of [`Blocks`].
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct BlocksBytes {
    allocated: [u8; OBJECT_BLOCKS / 8],
    checksums: [U32; OBJECT_BLOCKS],
}

impl<'a> Blocks<'a> {
    pub(super) fn parse(frame: &Frame<'a>) -> Result<Blocks<'a>, Stop> {
        let of = frame.fields()?;
        let BlocksBytes { allocated, checksums } = frame.body_as()?;
        Ok(Blocks { of, allocated, checksums })
    }

    /// The whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = sealed(Kind::Blocks, size_of::<BlocksBytes>(), &self.of);
        [&header[..], self.allocated, self.checksums.as_bytes()].concat()
    }
}

fields! {
    /// Blocks of an object that a primary asks a member about: all of a fetch.
    Inquiry is all of Kind::Fetch {
        /// The primary's number for it, repeated in the answer.
        request: u64 = At<16>,
        /// Which; not none.
        range: BlockRange = BlockRange,
        /// The primary's epoch.
        epoch: Epoch = At<48>,
    }
}

fields! {
    /// Whether a fetch is answered.
    Found {
        /// What was asked.
        inquiry: Inquiry = Inquiry,
        /// Whether it is answered.
        status: Status = InPrefix,
    }
}

/// What blocks hold. Its data are the blocks; none if the status is not ok, or if all of them hold zeros.
pub type Fetched<'a> = WithData<'a, Found>;

impl Found {
    /// The header of the answer. Checksums and data of all blocks follow if it is `with_data`.
    #[must_use]
    pub fn encode(&self, with_data: bool) -> HeaderBytes {
        self.sealed(Kind::Fetched, with_data)
    }
}

impl DataHead for Found {
    fn data(&self, body_bytes: usize) -> (usize, usize) {
        if body_bytes == 0 { (0, 0) } else { whole_blocks(&self.inquiry.range) }
    }
}

fields! {
    /// A request to check blocks.
    Check is all of Kind::Check, checked by Check::check {
        /// The blocks: at most [`CHECK_BLOCKS_MAX`] if it is deep.
        inquiry: Inquiry = Inquiry,
        /// Reads them from the drive, instead of looking into the index only.
        is_deep: bool = Flag<1>,
    }
}

impl Check {
    fn check(&self, _: Kind) -> Result<(), Impossible> {
        match self.inquiry.range.block_count {
            count if self.is_deep && count > CHECK_BLOCKS_MAX => {
                Err(Impossible("number of blocks", count.into()))
            }
            _ => Ok(()),
        }
    }
}

/// What blocks hold, in short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// A bit for each block that does not verify, the lowest for the first block asked about.
    pub damaged: u64,
    /// Over which of the others there are and their CRC-32C; of a deep check over their bytes too.
    pub digest: [u64; 2],
}

/// The answer to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What was asked.
    pub inquiry: Inquiry,
    /// What was found.
    pub findings: Findings,
}

impl Checked {
    pub(super) fn parse(frame: &Frame<'_>) -> Result<Checked, Stop> {
        let inquiry = frame.fields()?;
        let [damaged, digest @ ..] = frame.body_as::<[U64; 3]>()?.map(U64::get);
        Ok(Checked { inquiry, findings: Findings { damaged, digest } })
    }

    /// The whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Findings { damaged, digest: [index, data] } = self.findings;
        let body = [damaged, index, data].map(U64::new);
        [&sealed(Kind::Checked, size_of_val(&body), &self.inquiry)[..], body.as_bytes()].concat()
    }
}
