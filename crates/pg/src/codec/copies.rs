//! Replication: every member gets all bytes of a write.

use super::{Payload, Piece};
use base::{BLOCK_BYTES, Buffer};
use zerocopy::little_endian::U32;

/// What a member gets of a write whose batch is sealed; `None` of one without bytes. `checksums` has one for each of its
/// blocks.
pub(crate) fn piece<'a>(payload: &Payload, checksums: &'a [U32], sealed: &'a Buffer) -> Option<Piece<'a>> {
    let Payload::Staged(_, offset) = *payload else { return None };
    Some(Piece { checksums, memory: sealed, start: offset as usize, length: checksums.len() * BLOCK_BYTES })
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::BatchId;

    #[test]
    fn every_member_gets_the_bytes_as_they_lie_in_the_batch() {
        let sealed = Buffer::new(8 * BLOCK_BYTES);
        let checksums = [1, 2].map(U32::new);
        let piece = piece(&Payload::Staged(BatchId(1), 4096), &checksums, &sealed).expect("it has bytes");
        assert_eq!((piece.start, piece.length, piece.checksums), (4096, 2 * BLOCK_BYTES, &checksums[..]));
        assert!(super::piece(&Payload::None, &[], &sealed).is_none(), "a zeroing has none");
    }
}
