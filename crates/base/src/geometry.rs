//! How volumes are cut: volume → objects of 4 MiB → blocks of 4 KiB.

/// Bytes of a block, the unit of checksums, of the index and of linearizability.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a sector, the unit a drive writes without tearing.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of an object, the unit of placement.
pub const OBJECT_BYTES: u64 = 4 << 20;
/// Blocks of an object.
pub const OBJECT_BLOCKS: usize = OBJECT_BYTES as usize / BLOCK_BYTES;
/// The largest volume, in bytes.
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;

/// The blocks that `length` bytes at `offset` touch, as `(first, count)`. Both in blocks; `count` is 0
/// exactly when `length` is.
#[must_use]
pub fn blocks_touched(offset: u64, length: u64) -> (u64, u64) {
    let block = BLOCK_BYTES as u64;
    if length == 0 {
        return (offset / block, 0);
    }
    let first = offset / block;
    (first, (offset + length - 1) / block - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_across_a_block_border_touches_both() {
        assert_eq!(blocks_touched(4095, 2), (0, 2));
        assert_eq!(blocks_touched(4096, 4096), (1, 1));
        assert_eq!(blocks_touched(8192, 0), (2, 0));
    }
}
