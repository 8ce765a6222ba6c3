//! What came in on a connection and was not yet consumed.

use std::ops::Range;

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

    /// Room for `bytes` in all. Shrinks never by itself.
    pub fn grow(&mut self, bytes: usize) {
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
    }

    /// Gives memory back, so that `bytes` are left of it, if nothing is in there.
    pub fn shrink(&mut self, bytes: usize) {
        if self.filled.is_empty() && bytes < self.memory.len() {
            self.memory = vec![0; bytes];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_keeps_what_was_not_consumed() {
        let mut inbox = Inbox::default();
        inbox.grow(8);
        inbox.space()[..6].copy_from_slice(b"abcdef");
        inbox.received(6);
        inbox.consume(4);
        inbox.shrink(4);
        assert_eq!((inbox.bytes(), inbox.capacity()), (&b"ef"[..], 8));
        assert_eq!(inbox.space().len(), 6);
        inbox.space()[..2].copy_from_slice(b"gh");
        inbox.received(2);
        assert_eq!(inbox.bytes(), b"efgh");
        inbox.consume(4);
        inbox.shrink(4);
        assert_eq!((inbox.space().len(), inbox.capacity()), (4, 4));
    }
}
