//! What a drive holds already, so that nobody's data is overwritten by a mistyped path.

/// Bytes from the start of a drive that the signatures below lie in.
pub(crate) const PROBE_BYTES: usize = 68 * 1024;

/// `(offset in bytes, magic, what it is)`. From the formats' own documentation; more telling ones first.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"bluestore block device", "a Ceph OSD"),
    (0, b"hsqs", "a squashfs file system"),
    (0, b"QFI\xfb", "a qcow2 image"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (512, b"EFI PART", "a partition table"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (4096, b"\xfc\x4e\x2b\xa9", "a Linux RAID member"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (32_769, b"CD001", "an ISO 9660 file system"),
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// What the drive whose first bytes are `start` holds, if it is something well known.
pub(crate) fn find(start: &[u8]) -> Option<&'static str> {
    SIGNATURES
        .iter()
        .find(|(offset, magic, _)| start.get(*offset..offset + magic.len()) == Some(*magic))
        .map(|(_, _, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_recognised_and_an_empty_drive_is_not() {
        let mut start = vec![0u8; PROBE_BYTES];
        assert_eq!(find(&start), None);
        start[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(find(&start), Some("an ext2, ext3 or ext4 file system"));
    }

    #[test]
    fn every_signature_lies_in_the_probed_bytes() {
        assert!(SIGNATURES.iter().all(|(offset, magic, _)| offset + magic.len() <= PROBE_BYTES));
    }

    #[test]
    fn a_short_file_is_no_reason_to_fail() {
        assert_eq!(find(b"XF"), None);
        assert_eq!(find(b"XFSB"), Some("an XFS file system"));
    }
}
