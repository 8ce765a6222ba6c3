//! The buffers of who works on volumes for others: two sizes, made once, lent for one piece of work each.

use base::{BLOCK_BYTES, Buffer, BufferPool};

/// The longest piece of work on data, in bytes: of longer work several are begun.
pub const PIECE_BYTES_MAX: usize = wire::PAYLOAD_BYTES_MAX;

/// See the module's documentation.
pub struct Buffers {
    small: BufferPool,
    large: BufferPool,
    small_count: usize,
    large_count: usize,
}

impl Buffers {
    /// So many for what fits a block, and so many for [`PIECE_BYTES_MAX`].
    #[must_use]
    pub fn new(small_count: usize, large_count: usize) -> Buffers {
        Buffers {
            small: BufferPool::new(small_count, BLOCK_BYTES),
            large: BufferPool::new(large_count, PIECE_BYTES_MAX),
            small_count,
            large_count,
        }
    }

    /// A buffer for `length` bytes, or `None` until one comes back.
    pub fn take(&mut self, length: usize) -> Option<Buffer> {
        if length <= BLOCK_BYTES { self.small.take() } else { self.large.take() }
    }

    /// A holder's handle comes back.
    pub fn put(&mut self, buffer: Buffer) {
        if buffer.size() == BLOCK_BYTES { self.small.put(buffer) } else { self.large.put(buffer) }
    }

    /// Whether so few of that size are left that none should be tied to how fast somebody receives: its
    /// data are copied, so that the rest circulates and nobody waits for the slowest of all.
    #[must_use]
    pub fn is_scarce(&self, buffer: &Buffer) -> bool {
        if buffer.size() == BLOCK_BYTES {
            self.small.available() < self.small_count / 4
        } else {
            self.large.available() < self.large_count / 4
        }
    }

    /// How many are lent.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.small_count + self.large_count - self.small.available() - self.large.available()
    }
}
