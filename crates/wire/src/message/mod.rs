//! The messages: of each kind what it says, where in its header that lies, and its bounds; by who talks to whom.

mod client;
mod fence;
mod limits;
mod peer;
mod recover;
mod replicate;

use crate::Checksums;
use crate::fields::{DataHead, Impossible, InBytes, Place, place, sealed};
use crate::frame::{Frame, Stop, WireError};
use crate::header::{HEADER_BYTES, Kind};
use crate::hello::{Hello, Refused, Welcome};
use base::{BLOCK_BYTES, BlockRange, OBJECT_BLOCKS, ObjectKey};
use std::marker::PhantomData;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

pub use {client::*, fence::*, limits::*, peer::*, recover::*, replicate::*};

/// The bytes of a block in a body, with the words that go with it.
const SUMMED_BLOCK_BYTES: usize = BLOCK_BYTES + PUSH_WORDS * size_of::<U32>();
/// The most bytes after a header.
pub(crate) const BODY_BYTES_MAX: usize = BLOCKS_PER_MESSAGE_MAX * SUMMED_BLOCK_BYTES;
/// The most entries in one message: of a log, or objects.
pub const ENTRIES_MAX: usize = 1024;

macro_rules! messages {
    ($(#[$doc:meta])* $name:ident<$lifetime:lifetime> { $($kind:ident($type:ty) = $parse:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum $name<$lifetime> {
            $(#[doc = concat!("See [`Kind::", stringify!($kind), "`].")] $kind($type),)*
        }

        impl<$lifetime> $name<$lifetime> {
            fn parse(frame: &Frame<$lifetime>) -> Result<Option<(Self, usize)>, WireError> {
                let size = HEADER_BYTES + frame.body_bytes;
                match frame.kind {
                    $(Kind::$kind => match $parse(frame) {
                        Ok(message) => Ok(Some(($name::$kind(message), size))),
                        Err(stop) => stop.map_or(Ok(None), Err),
                    },)*
                }
            }
        }
    };
}

messages! {
    /// A message that was checked.
    Message<'a> {
        Hello(Hello) = Hello::parse,
        Welcome(Welcome) = Frame::whole,
        Refused(Refused<'a>) = Refused::parse,
        Read(Request) = Frame::whole,
        Write(WithData<'a, Request>) = Request::parse_write,
        Zero(Request) = Request::parse_zero,
        Allocated(Request) = Frame::whole,
        Changed(Request) = Frame::whole,
        Space(Request) = Frame::whole,
        Reply(Reply<'a>) = WithData::parse,
        ReplicateWrite(WithData<'a, Replicate>) = WithData::parse,
        ReplicateZero(Replicate) = Frame::whole,
        ReplicateHole(Replicate) = Frame::whole,
        ReplicateAck(ReplicateAck) = Frame::whole,
        ReplicateRefused(ReplicateRefused) = Frame::whole,
        Query(Query) = Frame::whole,
        Position(Position<'a>) = WithEntries::parse,
        Activate(Activate) = Frame::whole,
        Serves(GroupEpoch) = Frame::whole,
        Lease(Lease) = Frame::whole,
        PushWrite(WithData<'a, Push>) = WithData::parse,
        PushZero(Push) = Frame::whole,
        PushHole(PushHole) = Frame::whole,
        PushLost(PushLost) = PushLost::parse,
        PushEntry(PushEntry) = Frame::whole,
        Whole(GroupEpoch) = Frame::whole,
        Reached(ObjectEpoch) = Frame::whole,
        ListObjects(ListObjects) = Frame::whole,
        Objects(Objects<'a>) = WithEntries::parse,
        ListBlocks(ObjectEpoch) = Frame::whole,
        Blocks(Blocks<'a>) = Blocks::parse,
        Fetch(Inquiry) = Frame::whole,
        Fetched(Fetched<'a>) = WithData::parse,
        Check(Check) = Frame::whole,
        Checked(Checked) = Checked::parse,
        Fence(Fence) = Frame::whole,
        FenceDone(Fence) = Frame::whole,
        AskAllowance(Allowance) = Frame::whole,
        Allowance(Allowance) = Frame::whole,
    }
}

/// The message at the front of `bytes` and its size, or `None` while it is not all there. A message is
/// refused as soon as its header is, so a peer cannot make the receiver wait for what it will refuse.
///
/// # Errors
/// When the bytes are no message of this protocol.
pub fn parse(bytes: &[u8]) -> Result<Option<(Message<'_>, usize)>, WireError> {
    match Frame::open(bytes) {
        Ok(frame) => Message::parse(&frame),
        Err(stop) => stop.map_or(Ok(None), Err),
    }
}

/// A message with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithData<'a, T> {
    /// What it says beside.
    pub head: T,
    /// One for each block or part of one; of a push what else it says of each block behind them.
    pub checksums: Checksums<'a>,
    /// The data.
    pub data: &'a [u8],
}

impl<'a, T: DataHead> WithData<'a, T> {
    #[inline(always)]
    fn parse(frame: &Frame<'a>) -> Result<WithData<'a, T>, Stop> {
        let head: T = frame.fields()?;
        let (words, data_bytes) = head.data(frame.body_bytes);
        let body = frame.body(frame.body_bytes == words * size_of::<U32>() + data_bytes)?;
        let (checksums, data) =
            <[U32]>::ref_from_prefix_with_elems(body, words).expect("the size was checked");
        Ok(WithData { head, checksums, data })
    }
}

/// A message with entries of so many bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithEntries<'a, T, E, const BYTES: usize> {
    /// What it says beside.
    pub head: T,
    entries: &'a [[u8; BYTES]],
    entry: PhantomData<E>,
}

impl<'a, T: Place<T>, E: Place<E, BYTES>, const BYTES: usize> WithEntries<'a, T, E, BYTES> {
    fn parse(frame: &Frame<'a>) -> Result<Self, Stop> {
        let (head, entries) = (frame.fields()?, frame.entries::<E, BYTES>(ENTRIES_MAX)?);
        Ok(WithEntries { head, entries, entry: PhantomData })
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = E> + use<'a, T, E, BYTES> {
        self.entries.iter().map(|entry| E::read(entry, "").expect("each was checked when it came"))
    }

    /// A whole message of that kind.
    fn encode(kind: Kind, head: &T, entries: impl ExactSizeIterator<Item = E>) -> Vec<u8> {
        assert!(entries.len() <= ENTRIES_MAX, "{} entries do not fit", entries.len());
        let body_bytes = entries.len() * BYTES;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body_bytes);
        bytes.extend_from_slice(&sealed(kind, body_bytes, head));
        for entry in entries {
            let mut place = [0; BYTES];
            E::write(&entry, &mut place);
            bytes.extend_from_slice(&place);
        }
        bytes
    }
}

place! {
    BlockRange in HEADER_BYTES, checked by check_blocks {
        key: ObjectKey = ObjectKey,
        first_block: u16 = InBytes<36>,
        block_count: u16 = InBytes<12>,
    }
}

/// Whether blocks lie within their object, and are no more than a message of that kind may be about.
fn check_blocks(range: &BlockRange, kind: Kind) -> Result<(), Impossible> {
    let count_max = match kind {
        Kind::ReplicateWrite | Kind::PushWrite | Kind::Fetch | Kind::Fetched => BLOCKS_PER_MESSAGE_MAX,
        Kind::PushLost => 1,
        _ => OBJECT_BLOCKS,
    };
    if range.block_count == 0 || usize::from(range.block_count) > count_max {
        return Err(Impossible("number of blocks", range.block_count.into()));
    }
    check_end(range.first_block, range.block_count)
}

/// Whether blocks lie within an object.
fn check_end(first_block: u16, block_count: u16) -> Result<(), Impossible> {
    match u64::from(first_block) + u64::from(block_count) {
        end if end > OBJECT_BLOCKS as u64 => Err(Impossible("last block", end)),
        _ => Ok(()),
    }
}

/// The data of whole blocks: how many, and their bytes.
fn whole_blocks(range: &BlockRange) -> (usize, usize) {
    (range.block_count.into(), usize::from(range.block_count) * BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
