//! What drivers are told of the disk: its features, and the space of its configuration (`struct virtio_blk_config`, VIRTIO 1.2, 5.2.4).

use super::request::{BLOCK_EXPONENT, SECTOR_BYTES, SEGMENTS_MAX, ZEROED_BYTES_MAX};
use vhost::vhost_user::VhostUserProtocolFeatures;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::{VIRTIO_F_ANY_LAYOUT, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The size of the space, in bytes: all that VIRTIO 1.2 has.
const SPACE_BYTES: usize = 96;
/// The front-end has pages noted that are written to.
pub(super) const LOG_ALL: u64 = 1 << 26;
/// The front-end knows protocol features, and says when rings are to be served.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;

/// What a driver may choose from. There is no cache to be flushed: what is acknowledged is durable, and a driver that is not offered
/// flushes knows it.
pub(super) fn features(is_read_only: bool) -> u64 {
    let common = [
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_MQ,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_F_VERSION_1,
        // Drivers of before the standard choose it whether it is offered or not.
        VIRTIO_F_ANY_LAYOUT,
    ];
    let changes = [VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES];
    let features = common.into_iter().fold(LOG_ALL | PROTOCOL_FEATURES, |all, bit| all | 1 << bit);
    match is_read_only {
        true => features | 1 << VIRTIO_BLK_F_RO,
        false => changes.into_iter().fold(features, |all, bit| all | 1 << bit),
    }
}

/// What a front-end may choose from.
pub(super) fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::REPLY_ACK
}

/// The space of the configuration of a disk of `bytes` with `queues` rings.
fn space(bytes: u64, queues: u16) -> [u8; SPACE_BYTES] {
    let mut space = [0; SPACE_BYTES];
    let mut put = |at: usize, value: &[u8]| space[at..at + value.len()].copy_from_slice(value);
    let zeroed_max = ((ZEROED_BYTES_MAX / SECTOR_BYTES) as u32).to_le_bytes();
    let one = 1u32.to_le_bytes();
    // capacity, seg_max, blk_size
    put(0, &(bytes / SECTOR_BYTES).to_le_bytes());
    put(12, &(SEGMENTS_MAX as u32).to_le_bytes());
    put(20, &(SECTOR_BYTES as u32).to_le_bytes());
    // physical_block_exp, alignment_offset, min_io_size, opt_io_size in blocks of blk_size
    put(24, &[BLOCK_EXPONENT, 0]);
    put(26, &(1u16 << BLOCK_EXPONENT).to_le_bytes());
    // num_queues
    put(34, &queues.to_le_bytes());
    // max_discard_sectors, max_discard_seg, discard_sector_alignment
    put(36, &zeroed_max);
    put(40, &one);
    put(44, &(1u32 << BLOCK_EXPONENT).to_le_bytes());
    // max_write_zeroes_sectors, max_write_zeroes_seg, write_zeroes_may_unmap
    put(48, &zeroed_max);
    put(52, &one);
    put(56, &[1]);
    space
}

/// A part of that space. Behind its end are zeros: front-ends of other versions know more or less of it. `None` if that is no part.
pub(super) fn part_of_space(bytes: u64, queues: u16, offset: u32, length: u32) -> Option<Vec<u8>> {
    // As much as a message of the protocol carries.
    let is_part = offset <= 256 && length <= 256;
    let space = space(bytes, queues);
    let byte = |at: u32| space.get(at as usize).copied().unwrap_or(0);
    is_part.then(|| (offset..offset + length).map(byte).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_says_what_the_disk_is_and_has_zeros_behind_its_end() {
        let space = part_of_space(1 << 30, 4, 0, 200).unwrap();
        let u32_at = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(space[..8].try_into().unwrap()), 1 << 21, "capacity in sectors");
        assert_eq!((u32_at(12), u32_at(20)), (126, 512));
        assert_eq!((space[24], space[34]), (3, 4), "physical blocks of 4 KiB, four rings");
        assert_eq!((u32_at(36), u32_at(40), u32_at(44)), (1 << 23, 1, 8), "discards");
        assert_eq!((u32_at(48), u32_at(52), space[56]), (1 << 23, 1, 1), "zeroes");
        assert!(space[60..].iter().all(|byte| *byte == 0));
        assert_eq!(part_of_space(1 << 30, 4, 12, 4).unwrap(), 126u32.to_le_bytes());
        assert_eq!(part_of_space(1 << 30, 4, u32::MAX, 8), None);
        assert_eq!(part_of_space(1 << 30, 4, 8, u32::MAX), None);
    }

    #[test]
    fn what_is_only_read_is_neither_discarded_nor_zeroed() {
        let bit = |features: u64, bit: u32| features >> bit & 1 == 1;
        assert!(bit(features(true), VIRTIO_BLK_F_RO) && !bit(features(true), VIRTIO_BLK_F_DISCARD));
        assert!(!bit(features(false), VIRTIO_BLK_F_RO) && bit(features(false), VIRTIO_BLK_F_DISCARD));
    }
}
