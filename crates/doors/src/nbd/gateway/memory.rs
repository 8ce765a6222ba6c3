//! The buffers of a gateway: two sizes, made once, lent for one piece of work each.

use base::{BLOCK_BYTES, Buffer, BufferPool};

/// Buffers for what fits a block.
const SMALL_COUNT: usize = 2048;
/// Buffers for more.
const LARGE_COUNT: usize = 128;
/// The longest piece of work on data, in bytes.
pub(super) const PIECE_BYTES_MAX: usize = wire::PAYLOAD_BYTES_MAX;

/// See the module's documentation.
pub(super) struct Memory {
    small: BufferPool,
    large: BufferPool,
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory {
            small: BufferPool::new(SMALL_COUNT, BLOCK_BYTES),
            large: BufferPool::new(LARGE_COUNT, PIECE_BYTES_MAX),
        }
    }

    /// A buffer for `length` bytes, or `None` until one comes back.
    pub(super) fn take(&mut self, length: usize) -> Option<Buffer> {
        if length <= BLOCK_BYTES { self.small.take() } else { self.large.take() }
    }

    /// A holder's handle comes back.
    pub(super) fn put(&mut self, buffer: Buffer) {
        if buffer.size() == BLOCK_BYTES { self.small.put(buffer) } else { self.large.put(buffer) }
    }

    /// Whether so few of that size are left that none should be tied to how fast a client receives: its
    /// data are copied, so that the rest circulates and nobody waits for the slowest of all clients.
    pub(super) fn is_scarce(&self, buffer: &Buffer) -> bool {
        if buffer.size() == BLOCK_BYTES {
            self.small.available() < SMALL_COUNT / 4
        } else {
            self.large.available() < LARGE_COUNT / 4
        }
    }

    /// How many are lent.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        SMALL_COUNT + LARGE_COUNT - self.small.available() - self.large.available()
    }
}
