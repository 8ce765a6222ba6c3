//! From bytes to what a header says, and its body: what is checked of all messages alike.

use crate::fields::{Impossible, Place, SHARED, is_rest_zero, together};
use crate::header::{HEADER_BYTES, HeaderBytes, Kind, Prefix};
use crate::version::{VERSIONS, Versions};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Why bytes are no message. The connection they came on cannot be trusted further.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Not this protocol, or damaged on the way.
    #[error(
        "the header of a message does not match its checksum: the peer does not speak Millpond's protocol"
    )]
    HeaderChecksum,
    /// Its first message is no hello of this protocol.
    #[error("the peer's greeting is not Millpond's")]
    NotMillpond,
    /// No version is both its and ours.
    #[error(
        "the peer speaks protocol version {theirs}, this is version {VERSIONS}; upgrade the older of the two"
    )]
    Version {
        /// The peer's.
        theirs: Versions,
    },
    /// A kind that does not exist.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// A field out of its bounds.
    #[error("a {kind:?} message with an impossible {field}: {value}")]
    Field {
        /// The message.
        kind: Kind,
        /// The field.
        field: &'static str,
        /// What it said.
        value: u64,
    },
    /// Something where this version has nothing.
    #[error("a {0:?} message with something in what this version does not use; upgrade the older of the two")]
    Reserved(Kind),
}

/// Why there is no message: none says that its rest has not come yet.
pub(crate) type Stop = Option<WireError>;

/// A message whose header is intact, and of a kind that exists.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub kind: Kind,
    pub body_bytes: usize,
    header: &'a HeaderBytes,
    rest: &'a [u8],
}

#[inline(always)]
fn prefix_of(header: &HeaderBytes) -> &Prefix {
    Prefix::ref_from_prefix(header).expect("a header is longer than its prefix").0
}

impl<'a> Frame<'a> {
    /// What a header says of its frame, whether it is damaged or not.
    #[inline(always)]
    fn of(header: &'a HeaderBytes, rest: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let prefix = prefix_of(header);
        let kind = Kind::from_number(prefix.kind).ok_or(WireError::Kind(prefix.kind))?;
        Ok(Frame { kind, body_bytes: prefix.body_bytes.get() as usize, header, rest })
    }

    #[inline(always)]
    pub fn open(bytes: &'a [u8]) -> Result<Frame<'a>, Stop> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(None)?;
        if prefix_of(header).header_crc32c.get() != base::crc32c(&header[size_of::<U32>()..]) {
            return Err(WireError::HeaderChecksum.into());
        }
        Frame::of(header, rest).map_err(Some)
    }

    /// A frame whose header may be damaged.
    #[inline(always)]
    pub fn unverified(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        Frame::of(header, rest).ok()
    }

    /// What follows it, if that has come.
    #[inline(always)]
    pub fn behind(&self) -> Option<&'a [u8]> {
        self.rest.get(self.body_bytes..)
    }

    pub fn wrong(&self, Impossible(field, value): Impossible) -> Stop {
        Some(WireError::Field { kind: self.kind, field, value })
    }

    /// What the header says.
    #[inline(always)]
    pub fn fields<T: Place<T>>(&self) -> Result<T, Stop> {
        self.parsed(self.header, const { together([SHARED, T::USED]) })
    }

    /// What bytes say, of which these may be used.
    #[inline(always)]
    fn parsed<T: Place<T, BYTES>, const BYTES: usize>(
        &self,
        bytes: &[u8; BYTES],
        used: [u8; BYTES],
    ) -> Result<T, Stop> {
        if !is_rest_zero(bytes, used) {
            return Err(WireError::Reserved(self.kind).into());
        }
        let value = T::read(bytes, "").and_then(|value| T::check(&value, self.kind).map(|()| value));
        value.map_err(|impossible| self.wrong(impossible))
    }

    /// What the header of a message says that is only that.
    #[inline(always)]
    pub fn whole<T: Place<T>>(&self) -> Result<T, Stop> {
        let fields = self.fields()?;
        self.body(self.body_bytes == 0)?;
        Ok(fields)
    }

    /// The body, if its size fits. What does not is refused before the body is awaited.
    #[inline(always)]
    pub fn body(&self, fits: bool) -> Result<&'a [u8], Stop> {
        if !fits {
            return Err(self.wrong(Impossible("body length", self.body_bytes as u64)));
        }
        self.rest.get(..self.body_bytes).ok_or(None)
    }

    /// A body that always has the same parts.
    pub fn body_as<T: FromBytes + Immutable + KnownLayout + Unaligned>(&self) -> Result<&'a T, Stop> {
        let body = self.body(self.body_bytes == size_of::<T>())?;
        Ok(T::ref_from_bytes(body).expect("the size was checked"))
    }

    /// A body of so many entries at most, each of which was checked.
    pub fn entries<T: Place<T, BYTES>, const BYTES: usize>(
        &self,
        max: usize,
    ) -> Result<&'a [[u8; BYTES]], Stop> {
        let body = self.body(self.body_bytes.is_multiple_of(BYTES) && self.body_bytes / BYTES <= max)?;
        let (entries, _) = body.as_chunks();
        entries.iter().try_for_each(|entry| self.parsed::<T, BYTES>(entry, T::USED).map(drop))?;
        Ok(entries)
    }
}
