//! What each member of a group gets of a write.
//!
//! A write's bytes belong to its operation from when they are taken up until they are staged: as [`Payload`]. What of them a
//! member is sent is its [`Piece`]. In a pool of copies ([`copies`]) that is the same for everybody, and is sent from the
//! batch in which the primary's own store has it, so that it is copied once. Codes whose pieces differ from member to member
//! have their place beside that.

pub(crate) mod copies;

use base::{BLOCK_BYTES, Buffer, LinkId, Network, crc32c};
use std::ops::Range;
use store::BatchId;
use wire::Checksums;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Where the bytes of a write are.
#[derive(Debug, Default)]
pub(crate) enum Payload {
    /// There are none, or they were not taken over yet.
    #[default]
    None,
    /// Held while they cannot be staged, laid out from the start of the write's first block.
    Held(Buffer),
    /// In a batch of the store, this far from its start.
    Staged(BatchId, u32),
}

impl Payload {
    /// Takes what is held.
    pub(crate) fn take_held(&mut self) -> Option<Buffer> {
        match std::mem::take(self) {
            Payload::Held(buffer) => Some(buffer),
            other => {
                *self = other;
                None
            }
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Payload::Held(_))
    }

    /// The batch in which it is.
    pub(crate) fn batch(&self) -> Option<BatchId> {
        if let Payload::Staged(batch, _) = self { Some(*batch) } else { None }
    }
}

/// What a member is sent behind the header of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// One for each block.
    pub(crate) checksums: &'a [U32],
    /// Where its bytes lie.
    pub(crate) memory: &'a Buffer,
    /// And where in there.
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl Piece<'_> {
    /// Sends it: as a share of the memory, or copied where that must not be kept.
    pub(crate) fn send(self, link: LinkId, is_shared: bool, network: &mut impl Network) {
        let range: Range<usize> = self.start..self.start + self.length;
        network.send(link, self.checksums.as_bytes());
        if is_shared {
            network.send_shared(link, self.memory.clone(), range);
        } else {
            network.send(link, &self.memory.bytes()[range]);
        }
    }
}

/// Whether the parts of a write's data, one for each block it touches, match their checksums.
pub(crate) fn payload_verifies(offset: u32, checksums: Checksums<'_>, data: &[u8]) -> bool {
    let head = data.len().min(BLOCK_BYTES - offset as usize % BLOCK_BYTES);
    let (head, rest) = data.split_at(head);
    let parts = std::iter::once(head).chain(rest.chunks(BLOCK_BYTES));
    parts.zip(checksums).all(|(part, checksum)| crc32c(part) == checksum.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_write_is_verified_by_the_checksum_of_its_block() {
        let data: Vec<u8> = (0..2 * BLOCK_BYTES).map(|byte| byte as u8).collect();
        // It begins in the middle of a block.
        let offset = 1000;
        let (head, rest) = data.split_at(BLOCK_BYTES - offset);
        let parts = std::iter::once(head).chain(rest.chunks(BLOCK_BYTES));
        let mut checksums: Vec<U32> = parts.map(|part| U32::new(crc32c(part))).collect();
        assert!(payload_verifies(offset as u32, &checksums, &data));
        checksums[2] = U32::new(0);
        assert!(!payload_verifies(offset as u32, &checksums, &data));
    }

    #[test]
    fn what_is_held_is_taken_once() {
        let mut payload = Payload::Held(Buffer::new(BLOCK_BYTES));
        assert!(payload.is_held() && payload.take_held().is_some() && payload.take_held().is_none());
        let mut staged = Payload::Staged(BatchId(3), 0);
        assert!(staged.take_held().is_none());
        assert_eq!(staged.batch(), Some(BatchId(3)), "what is staged stays where it is");
    }
}
