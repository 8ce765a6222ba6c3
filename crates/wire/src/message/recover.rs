//! How a primary makes members hold the same: what it pushes to a learner, and what it asks members that they hold.

use super::{WithData, WithEntries, whole_blocks};
use crate::fields::{At, DataHead, Flag, If, Impossible, InPrefix, fields, place, sealed};
use crate::frame::{Frame, Stop};
use crate::header::{HeaderBytes, Kind, Status};
use base::{BlockRange, Epoch, LayerId, LogEntry, OBJECT_BLOCKS, ObjectKey, PgId, Sequence};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

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
    /// It as a whole push of zeros, or as the header of another: of [`Kind::PushWrite`] so many words for each block
    /// ([`PUSH_WORDS`]) and data follow, of [`Kind::PushLost`] the words.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        match kind {
            Kind::PushLost => sealed(kind, PUSH_WORDS * size_of::<U32>(), self),
            _ => self.sealed(kind, kind == Kind::PushWrite),
        }
    }
}

/// What a push says of each block beside its data, in words of 4 bytes: first the checksums of all, then of each the sequence
/// of its last change, the low half first.
pub const PUSH_WORDS: usize = 3;

impl DataHead for Push {
    fn data(&self, _: usize) -> (usize, usize) {
        let (block_count, bytes) = whole_blocks(&self.range);
        (PUSH_WORDS * block_count, bytes)
    }
}

fields! {
    /// Blocks that a learner lacks and that read as zeros, whatever lies beneath their layer.
    PushHole is all of Kind::PushHole {
        /// Which; not none.
        range: BlockRange = BlockRange,
        /// The epoch of the primary.
        epoch: Epoch = At<48>,
        /// When they last changed, or earlier than this.
        changed: Sequence = At<56>,
    }
}

/// A block whose content nobody has any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushLost {
    /// Which: one.
    pub push: Push,
    /// The checksum of what it held, and the sequence of its last change, as in another push.
    pub words: [U32; PUSH_WORDS],
}

impl PushLost {
    pub(super) fn parse(frame: &Frame<'_>) -> Result<PushLost, Stop> {
        Ok(PushLost { push: frame.fields()?, words: *frame.body_as()? })
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
        after: Option<(LayerId, u32)> = If<1, (At<24>, At<32>)>,
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

/// Objects of a group that a member has, in the order of layer and object.
pub type Objects<'a> = WithEntries<'a, Page, ObjectHeld, OBJECT_HELD_BYTES>;

/// An object that a learner has, and what it knows of how current that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeld {
    /// The layer.
    pub layer: LayerId,
    /// The 4 MiB piece of it.
    pub object: u32,
    /// How many blocks of it there are.
    pub block_count: u16,
    /// Some of its blocks are in doubt: 1, or 0.
    pub has_doubts: u16,
    /// It was as the group's order has it up to this sequence, but for blocks that are in doubt.
    pub through: Sequence,
}

/// Bytes of an object in such an answer.
const OBJECT_HELD_BYTES: usize = 24;

place! {
    ObjectHeld in OBJECT_HELD_BYTES {
        layer: LayerId = At<0>,
        object: u32 = At<8>,
        block_count: u16 = At<12>,
        has_doubts: u16 = At<14>,
        through: Sequence = At<16>,
    }
}

impl Page {
    /// The whole of an answer.
    ///
    /// # Panics
    /// If there are more than 1,024 entries.
    pub fn encode(&self, entries: impl ExactSizeIterator<Item = ObjectHeld>) -> Vec<u8> {
        Objects::encode(Kind::Objects, self, entries)
    }
}

fields! {
    /// An object in an epoch: all that some kinds say.
    ObjectEpoch {
        /// The object.
        key: ObjectKey = ObjectKey,
        /// The primary's epoch.
        epoch: Epoch = At<48>,
    }
}

impl ObjectEpoch {
    /// It as a whole message of that kind.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        sealed(kind, 0, self)
    }
}

/// A bit for each block of an object, the lowest first.
pub type BlockBits = [u8; OBJECT_BLOCKS / 8];

/// Which blocks of an object a learner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    /// What was asked for.
    pub of: ObjectEpoch,
    /// Those that there are.
    pub allocated: &'a BlockBits,
    /// Those that are in doubt, whether there or not: what the learner has may have come to nothing.
    pub doubted: &'a BlockBits,
}

impl<'a> Blocks<'a> {
    pub(super) fn parse(frame: &Frame<'a>) -> Result<Blocks<'a>, Stop> {
        let of = frame.fields()?;
        let [allocated, doubted] = frame.body_as::<[BlockBits; 2]>()?;
        Ok(Blocks { of, allocated, doubted })
    }

    /// The whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = sealed(Kind::Blocks, 2 * size_of::<BlockBits>(), &self.of);
        [&header[..], self.allocated, self.doubted].concat()
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
        /// Up to this sequence the member surely has all these blocks as the group's order has them; or this is the very
        /// sequence of the last change of the one block, if there is an epoch.
        through: Sequence = At<56>,
        /// The epoch of that change, 0 if it is not known any more.
        written_in: Option<Epoch> = If<1, At<52>>,
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
        /// Reads them from the drive, instead of looking into the index only. What it finds is hashed under this key: whoever
        /// writes data cannot know it.
        deep: Option<u64> = If<1, At<56>>,
    }
}

impl Check {
    fn check(&self, _: Kind) -> Result<(), Impossible> {
        match self.inquiry.range.block_count {
            count if self.deep.is_some() && count > CHECK_BLOCKS_MAX => {
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
    /// Over which of the others there are and their CRC-32C; of a deep check, under its key, over their bytes too.
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
