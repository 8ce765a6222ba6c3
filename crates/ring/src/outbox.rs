//! What goes out on a connection and was not yet sent.

use base::Buffer;
use std::collections::VecDeque;
use std::ops::Range;

/// A run of bytes on its way out.
#[derive(Debug)]
enum Piece {
    /// In the outbox's own memory, which only grows until all is sent.
    Inline(Range<usize>),
    /// In a shared buffer: sent without a copy.
    Shared(Buffer, Range<usize>),
}

impl Piece {
    fn remaining(&mut self) -> &mut Range<usize> {
        match self {
            Piece::Inline(range) | Piece::Shared(_, range) => range,
        }
    }
}

/// Bytes to send, gathered from small inline runs and shared buffers.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inline: Vec<u8>,
    pieces: VecDeque<Piece>,
    bytes: usize,
}

/// Memory for inline runs that is kept when all is sent. What a peer leaves unread now and then would be tied up for good.
const INLINE_BYTES_KEPT_MAX: usize = 64 << 10;

/// The most pieces one gathered send takes (the kernel's `UIO_MAXIOV`).
const PIECES_PER_SEND_MAX: usize = 1024;

impl Outbox {
    pub(crate) fn push_inline(&mut self, bytes: &[u8]) {
        let start = self.inline.len();
        self.inline.extend_from_slice(bytes);
        self.bytes += bytes.len();
        let end = self.inline.len();
        match self.pieces.back_mut() {
            Some(Piece::Inline(range)) if range.end == start => range.end = end,
            _ => self.pieces.push_back(Piece::Inline(start..end)),
        }
    }

    pub(crate) fn push_shared(&mut self, buffer: Buffer, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= buffer.size(), "a piece lies within its buffer");
        self.bytes += range.len();
        self.pieces.push_back(Piece::Shared(buffer, range));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills `vectors` for one gathered send. The memory they point at stays where it is until
    /// [`Self::sent`]: inline memory because nothing is pushed to an outbox that is being sent, shared
    /// memory because the piece holds a handle of it.
    pub(crate) fn gather(&self, vectors: &mut Vec<libc::iovec>) {
        vectors.clear();
        for bytes in self.pieces().take(PIECES_PER_SEND_MAX) {
            vectors.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        }
    }

    /// What waits, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Inline(range) => &self.inline[range.clone()],
            Piece::Shared(buffer, range) => &buffer.bytes()[range.clone()],
        })
    }

    /// Drops the first `count` bytes; buffers that are done go to `released`.
    pub(crate) fn sent(&mut self, mut count: usize, released: &mut Vec<Buffer>) {
        self.bytes -= count;
        while let Some(piece) = self.pieces.front_mut() {
            let range = piece.remaining();
            let step = count.min(range.len());
            range.start += step;
            count -= step;
            if range.start < range.end {
                break;
            }
            if let Some(Piece::Shared(buffer, _)) = self.pieces.pop_front() {
                released.push(buffer);
            }
        }
        assert_eq!(count, 0, "no more is sent than was asked for");
        if self.pieces.is_empty() {
            self.inline.clear();
            self.inline.shrink_to(INLINE_BYTES_KEPT_MAX);
        }
    }

    pub(crate) fn release(&mut self, released: &mut Vec<Buffer>) {
        for piece in self.pieces.drain(..) {
            if let Piece::Shared(buffer, _) = piece {
                released.push(buffer);
            }
        }
        self.inline.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(outbox: &Outbox) -> Vec<u8> {
        outbox
            .pieces
            .iter()
            .flat_map(|piece| match piece {
                Piece::Inline(range) => outbox.inline[range.clone()].to_vec(),
                Piece::Shared(buffer, range) => buffer.bytes()[range.clone()].to_vec(),
            })
            .collect()
    }

    #[test]
    fn a_partial_send_leaves_exactly_the_rest() {
        for cut in 0..=12 {
            let mut outbox = Outbox::default();
            let mut buffer = Buffer::new(4096);
            buffer.bytes_mut().unwrap()[..6].copy_from_slice(b"shared");
            outbox.push_inline(b"in");
            outbox.push_inline(b"li");
            outbox.push_shared(buffer, 0..6);
            outbox.push_inline(b"ne");
            let mut released = Vec::new();
            outbox.sent(cut, &mut released);
            assert_eq!(contents(&outbox), b"inlisharedne"[cut..], "cut at {cut}");
            assert_eq!(released.len(), usize::from(cut >= 10));
            assert_eq!(outbox.bytes(), 12 - cut);
        }
    }

    #[test]
    fn memory_of_what_was_long_unsent_is_given_back() {
        let mut outbox = Outbox::default();
        for size in [INLINE_BYTES_KEPT_MAX, 4 << 20] {
            outbox.push_inline(&vec![7; size]);
            outbox.sent(size, &mut Vec::new());
            assert!(outbox.is_empty() && outbox.inline.capacity() <= INLINE_BYTES_KEPT_MAX);
        }
        outbox.push_inline(&[7; 64]);
        assert_eq!(outbox.inline.capacity(), INLINE_BYTES_KEPT_MAX, "so much is kept");
    }
}
