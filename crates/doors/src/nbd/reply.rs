//! Replies, as bytes.

use super::Output;
use super::in_flight::Plan;
use super::protocol::{
    CHUNK_MAGIC, ChunkHeader, DataChunk, ErrorChunk, SIMPLE_REPLY_MAGIC, SimpleReply, chunk,
};
use super::vocabulary::{Failure, ReadPart};
use zerocopy::IntoBytes;

/// The longest message that goes with an error, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A simple reply, with an error number or 0.
pub(super) fn simple_reply(cookie: u64, error: u32) -> SimpleReply {
    SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() }
}

/// The front of a chunk whose payload has `length` bytes.
pub(super) fn chunk_header(cookie: u64, kind: u16, done: bool, length: usize) -> ChunkHeader {
    ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: if done { chunk::DONE } else { 0 }.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        length: u32::try_from(length).expect("payloads of chunks are bounded by those of requests").into(),
    }
}

/// What precedes the data of a chunk.
pub(super) fn data_header(cookie: u64, offset: u64, length: u64, done: bool, output: &mut impl Output) {
    let header = chunk_header(cookie, chunk::OFFSET_DATA, done, size_of::<u64>() + length as usize);
    output.inline(DataChunk { header, offset: offset.into() }.as_bytes());
}

/// What precedes data that are answered in one go.
pub(super) fn whole_header(plan: &Plan, output: &mut impl Output) {
    if plan.structured {
        data_header(plan.cookie, plan.offset, plan.length, true, output);
    } else {
        output.inline(simple_reply(plan.cookie, 0).as_bytes());
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

/// The whole reply to a request that failed.
pub(super) fn push_failure(cookie: u64, structured: bool, failure: &Failure, output: &mut impl Output) {
    let error = failure.code.to_wire();
    if !structured {
        return output.inline(simple_reply(cookie, error).as_bytes());
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
    let length = size_of::<u32>() + size_of::<u16>() + message.len() + offset_bytes;
    let header = chunk_header(cookie, kind, true, length);
    let message_bytes = (message.len() as u16).into();
    output.inline(ErrorChunk { header, error: error.into(), message_bytes }.as_bytes());
    output.inline(message);
    if let Some(offset) = failure.offset {
        output.inline(&offset.to_be_bytes());
    }
}
