//! Replies, as bytes.

use super::Output;
use super::protocol::{
    CHUNK_MAGIC, ChunkHeader, EXTENDED_CHUNK_MAGIC, ErrorHead, ExtendedChunkHeader, Framing,
    SIMPLE_REPLY_MAGIC, SimpleReply, chunk,
};
use super::vocabulary::{Failure, ReadPart};
use zerocopy::IntoBytes;

/// The longest message that goes with an error, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// What is answered, and how answers travel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// The client's name for the request.
    pub cookie: u64,
    /// Where it starts in the export, in bytes.
    pub offset: u64,
    /// As it was agreed on.
    pub framing: Framing,
}

impl Answered {
    /// A simple reply, with an error number or 0.
    fn push_simple(self, error: u32, output: &mut impl Output) {
        let magic = SIMPLE_REPLY_MAGIC.into();
        output.inline(SimpleReply { magic, error: error.into(), cookie: self.cookie.into() }.as_bytes());
    }

    /// The front of a chunk whose payload has `length` bytes.
    pub fn push_chunk(self, kind: u16, done: bool, length: usize, output: &mut impl Output) {
        let flags = if done { chunk::DONE } else { 0 }.into();
        let (kind, cookie) = (kind.into(), self.cookie.into());
        if self.framing == Framing::Extended {
            let (magic, offset) = (EXTENDED_CHUNK_MAGIC.into(), self.offset.into());
            let length = (length as u64).into();
            let header = ExtendedChunkHeader { magic, flags, kind, cookie, offset, length };
            return output.inline(header.as_bytes());
        }
        let length =
            u32::try_from(length).expect("payloads of chunks are bounded by those of requests").into();
        output.inline(ChunkHeader { magic: CHUNK_MAGIC.into(), flags, kind, cookie, length }.as_bytes());
    }

    /// That it is done. A read is, if there was nothing to read.
    pub fn push_done(self, is_read: bool, output: &mut impl Output) {
        match self.framing {
            Framing::Extended => self.push_chunk(chunk::NONE, true, 0, output),
            Framing::Structured if is_read => self.push_chunk(chunk::NONE, true, 0, output),
            Framing::Structured | Framing::Simple => self.push_simple(0, output),
        }
    }

    /// What precedes `length` bytes of data that stand at `offset`.
    pub fn push_data_head(self, offset: u64, length: u64, done: bool, output: &mut impl Output) {
        self.push_chunk(chunk::OFFSET_DATA, done, size_of::<u64>() + length as usize, output);
        output.inline(&offset.to_be_bytes());
    }

    /// What precedes all of its data, answered in one go.
    pub fn push_whole_head(self, length: u64, output: &mut impl Output) {
        match self.framing {
            Framing::Simple => self.push_simple(0, output),
            Framing::Structured | Framing::Extended => self.push_data_head(self.offset, length, true, output),
        }
    }

    /// The whole reply, if it failed.
    pub fn push_failure(self, failure: &Failure, output: &mut impl Output) {
        let error = failure.code.to_wire();
        if self.framing == Framing::Simple {
            return self.push_simple(error, output);
        }
        let mut end = failure.message.len().min(MESSAGE_BYTES_MAX);
        while !failure.message.is_char_boundary(end) {
            end -= 1;
        }
        let message = &failure.message.as_bytes()[..end];
        let (kind, offset_bytes) = match failure.offset {
            Some(_) => (chunk::ERROR_OFFSET, size_of::<u64>()),
            None => (chunk::ERROR, 0),
        };
        self.push_chunk(kind, true, size_of::<ErrorHead>() + message.len() + offset_bytes, output);
        let message_bytes = (message.len() as u16).into();
        output.inline(ErrorHead { error: error.into(), message_bytes }.as_bytes());
        output.inline(message);
        if let Some(offset) = failure.offset {
            output.inline(&offset.to_be_bytes());
        }
    }
}

/// A run of read data.
pub(super) fn push_part(part: ReadPart<'_>, output: &mut impl Output) {
    match part {
        ReadPart::Shared(buffer, range) => output.shared(buffer, range),
        ReadPart::Bytes(bytes) => output.inline(bytes),
        ReadPart::Zeros(count) => push_zeros(count, output),
    }
}

/// So many zeros.
pub(super) fn push_zeros(mut count: usize, output: &mut impl Output) {
    static ZEROS: [u8; 4096] = [0; 4096];
    while count > 0 {
        let now = count.min(ZEROS.len());
        output.inline(&ZEROS[..now]);
        count -= now;
    }
}
