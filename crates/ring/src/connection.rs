//! One stream socket: what came in and was not yet consumed, what goes out and was not yet sent.

use crate::encryption::Encryption;
use base::Buffer;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Bytes received and not yet consumed. Taken out of the reactor while they are parsed, so that the
/// reactor is free to queue answers meanwhile.
#[derive(Debug, Default)]
pub struct Inbox {
    memory: Vec<u8>,
    filled: Range<usize>,
}

impl Inbox {
    /// What was received, oldest first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.filled.clone()]
    }

    /// Drops the oldest `count` bytes.
    ///
    /// # Panics
    /// If fewer are there.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.filled.len(), "only what was received can be consumed");
        self.filled.start += count;
        if self.filled.start == self.filled.end {
            self.filled = 0..0;
        }
    }

    /// Whether no more can be received before something is consumed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.filled.len() == self.memory.len()
    }

    /// How much it can hold, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Room for `bytes` in all. Shrinks never.
    pub fn grow(&mut self, bytes: usize) {
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
    }

    /// Where the next bytes go. Moves what is left to the front when little room is behind it.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.memory.len() - self.filled.end < self.memory.len() / 2 {
            self.memory.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        let end = self.filled.end;
        &mut self.memory[end..]
    }

    pub(crate) fn received(&mut self, count: usize) {
        assert!(self.filled.end + count <= self.memory.len(), "the kernel stays within what it was given");
        self.filled.end += count;
    }
}

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
    fn gather(&self, vectors: &mut Vec<libc::iovec>) {
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
        }
    }

    fn release(&mut self, released: &mut Vec<Buffer>) {
        for piece in self.pieces.drain(..) {
            if let Piece::Shared(buffer, _) = piece {
                released.push(buffer);
            }
        }
        self.inline.clear();
        self.bytes = 0;
    }
}

/// The message header of a gathered send, kept where the kernel can find it.
pub(crate) struct SendState {
    vectors: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
}

/// One socket and what is under way on it.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) serial: u32,
    pub(crate) inbox: Option<Inbox>,
    /// None while what goes over it goes in plain.
    pub(crate) encryption: Option<Box<Encryption>>,
    pub(crate) queued: Outbox,
    sending: Outbox,
    send_state: SendState,
    pub(crate) is_receiving: bool,
    /// The last receipt emptied the socket: looking into it before something comes is in vain.
    pub(crate) is_drained: bool,
    pub(crate) is_sending: bool,
    pub(crate) is_dirty: bool,
    pub(crate) is_connecting: bool,
    /// Its socket is being made elsewhere.
    pub(crate) is_reserved: bool,
    /// Why it is being closed; it goes when nothing is in flight on it any more.
    pub(crate) closing: Option<String>,
    /// The reason was reported.
    pub(crate) is_reported: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, serial: u32, inbox_bytes: usize) -> Connection {
        let mut inbox = Inbox::default();
        inbox.grow(inbox_bytes);
        // SAFETY: a msghdr of zeros is valid: no name, no vectors, no control data.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        Connection {
            socket,
            serial,
            inbox: Some(inbox),
            encryption: None,
            queued: Outbox::default(),
            sending: Outbox::default(),
            send_state: SendState { vectors: Vec::new(), message: Box::new(message) },
            is_receiving: false,
            is_drained: false,
            is_sending: false,
            is_dirty: false,
            is_connecting: false,
            is_reserved: false,
            closing: None,
            is_reported: false,
        }
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        let sealed = self.encryption.as_ref().map_or(0, |encryption| encryption.unsent_bytes());
        self.queued.bytes() + self.sending.bytes() + sealed
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_receiving && !self.is_sending && !self.is_connecting
    }

    /// The next gathered send, or `None` when there is nothing to send. The caller submits it and sets
    /// `is_sending`; until [`Self::send_done`] nothing touches the memory it points at. Buffers that are not needed any
    /// more go to `released`.
    pub(crate) fn start_send(&mut self, released: &mut Vec<Buffer>) -> Option<*const libc::msghdr> {
        assert!(!self.is_sending, "one send at a time keeps the bytes in order");
        if self.sending.is_empty() {
            std::mem::swap(&mut self.sending, &mut self.queued);
        }
        match &mut self.encryption {
            None if self.sending.is_empty() => return None,
            None => self.sending.gather(&mut self.send_state.vectors),
            Some(encryption) => {
                if encryption.is_sent() {
                    encryption.seal(&mut self.sending, released);
                }
                if encryption.is_sent() {
                    return None;
                }
                encryption.gather(&mut self.send_state.vectors);
            }
        }
        self.send_state.message.msg_iov = self.send_state.vectors.as_mut_ptr();
        self.send_state.message.msg_iovlen = self.send_state.vectors.len() as _;
        Some(&raw const *self.send_state.message)
    }

    /// The last send, which is not waited for. Says in it that it is the last, where that can be told from a cut.
    pub(crate) fn start_last_send(&mut self, released: &mut Vec<Buffer>) -> Option<*const libc::msghdr> {
        self.start_send(released);
        if let Some(encryption) = &mut self.encryption
            && self.sending.is_empty()
            && self.queued.is_empty()
        {
            encryption.seal_end();
        }
        self.start_send(released)
    }

    pub(crate) fn send_done(&mut self, count: usize, released: &mut Vec<Buffer>) {
        match &mut self.encryption {
            None => self.sending.sent(count, released),
            Some(encryption) => encryption.sent(count),
        }
    }

    pub(crate) fn release_all(&mut self, released: &mut Vec<Buffer>) {
        self.sending.release(released);
        self.queued.release(released);
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
    fn an_inbox_keeps_what_was_not_consumed() {
        let mut inbox = Inbox::default();
        inbox.grow(8);
        inbox.space()[..6].copy_from_slice(b"abcdef");
        inbox.received(6);
        inbox.consume(4);
        assert_eq!(inbox.bytes(), b"ef");
        assert_eq!(inbox.space().len(), 6);
        inbox.space()[..2].copy_from_slice(b"gh");
        inbox.received(2);
        assert_eq!(inbox.bytes(), b"efgh");
    }
}
