//! Making a drive an OSD, and finding out whose it is.

use crate::actions::{Identity, Options};
use crate::device::{Device, DeviceError};
use crate::error::{FormatError, OpenError};
use crate::layout::{
    COUNT_MAX, FORMAT_OLDEST, FORMAT_VERSION, ROOT_PIECES_MAX, SEGMENTS_OFFSET, SUPERBLOCK_MAGIC,
    SUPERBLOCK_OFFSETS, Secret, Superblock,
};
use base::{BLOCK_BYTES, Buffer, ClusterId, OsdId, OsdUuid};
use zerocopy::{FromBytes, IntoBytes};

/// The least a drive must have when the size of segments is not given, in bytes.
pub const DEVICE_BYTES_MIN: u64 = 256 << 20;
/// The fewest segments that cleaning can work with.
pub(crate) const SEGMENTS_MIN: u64 = 16;
const SEGMENT_BYTES_MIN: u64 = 4 << 20;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// What 32 bits of block numbers can name.
const DEVICE_BYTES_MAX: u64 = 16 << 40;

/// Makes a drive an empty OSD. Whatever it held is lost. The `secret` is drawn for this formatting, by a generator whose
/// numbers nobody can guess: whoever knew it could write data that a start takes for the store's own.
///
/// # Errors
/// When it is too small or too large, or fails.
pub fn format(
    device: &mut impl Device,
    identity: Identity,
    secret: Secret,
    options: &Options,
) -> Result<(), FormatError> {
    let bytes = device.bytes();
    let chosen = (bytes / 1024).next_power_of_two().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let segment_bytes = options.segment_bytes.map_or(chosen, u64::from);
    let bytes_min = match options.segment_bytes {
        None => DEVICE_BYTES_MIN,
        Some(_) => SEGMENTS_OFFSET + SEGMENTS_MIN * segment_bytes,
    };
    if bytes < bytes_min {
        return Err(FormatError::TooSmall { bytes, bytes_min });
    }
    if bytes > DEVICE_BYTES_MAX {
        return Err(FormatError::TooLarge { bytes });
    }
    let superblock = Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: FORMAT_VERSION.into(),
        cluster: identity.cluster.to_bytes(),
        osd_uuid: identity.osd_uuid.to_bytes(),
        osd: identity.osd.0.into(),
        segment_bytes: (segment_bytes as u32).into(),
        device_bytes: bytes.into(),
        secret,
        ..Superblock::empty()
    };
    write_both(device, &superblock, SUPERBLOCK_OFFSETS)?;
    Ok(())
}

/// Writes both copies in that order, one made durable before the other is touched.
fn write_both(
    device: &mut impl Device,
    superblock: &Superblock,
    offsets: [u64; 2],
) -> Result<(), DeviceError> {
    let mut buffer = Buffer::new(BLOCK_BYTES);
    fill(&mut buffer, superblock);
    for offset in offsets {
        device.write(offset, buffer.bytes())?;
        device.flush()?;
    }
    Ok(())
}

/// Puts a sealed superblock into a buffer of one block.
pub(crate) fn fill(buffer: &mut Buffer, superblock: &Superblock) {
    let memory = buffer.bytes_mut().expect("the superblock's buffer has one holder");
    memory[..BLOCK_BYTES].copy_from_slice(superblock.sealed().as_bytes());
}

/// What both copies of the superblock say together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Superblocks {
    /// The newest that verifies.
    pub(crate) newest: Superblock,
    /// The first copy is that.
    is_first: bool,
}

impl Superblocks {
    /// Up to this batch an opening found the log and made it durable; 0 if none is known to have.
    pub(crate) fn durable_through(&self) -> u64 {
        self.newest.mount_begin.get().saturating_sub(1)
    }

    /// Writes the superblock of an opening, with its `mount_begin`, into both copies. At any moment one is whole and durable: the
    /// one that counts is left alone until the other, which may be damaged or older, has been replaced.
    pub(crate) fn replace(
        &self,
        device: &mut impl Device,
        superblock: &Superblock,
    ) -> Result<(), DeviceError> {
        // What was read may be in the drive's cache alone: the copy that counts, and the log, of which the new one says that it
        // is durable.
        device.flush()?;
        let [first, second] = SUPERBLOCK_OFFSETS;
        write_both(device, superblock, if self.is_first { [second, first] } else { [first, second] })
    }
}

/// The superblock that counts, or `None` if there never was one. A copy that cannot be read is done without where the other
/// verifies: either one alone may be what a crash leaves.
pub(crate) fn read(device: &mut impl Device) -> Result<Option<Superblocks>, OpenError> {
    let mut copies: [Option<Superblock>; 2] = [None, None];
    let (mut was_any, mut unreadable) = (false, None);
    let mut buffer = Buffer::new(BLOCK_BYTES);
    for (offset, copy) in SUPERBLOCK_OFFSETS.into_iter().zip(&mut copies) {
        if device.bytes() < offset + BLOCK_BYTES as u64 {
            continue;
        }
        let memory = buffer.bytes_mut().expect("a new buffer has one holder");
        if let Err(error) = device.read(offset, memory) {
            unreadable = Some(error);
            continue;
        }
        let found = Superblock::read_from_bytes(&memory[..BLOCK_BYTES])
            .expect("a block has the size of a superblock");
        // A damaged copy is still an OSD's, as far as its magic or anything else of it stands.
        was_any |= found.magic == SUPERBLOCK_MAGIC || found.cluster != [0; 16];
        *copy = Some(found).filter(Superblock::is_intact);
    }
    // Of two that are equally new the first.
    let newest = copies
        .into_iter()
        .flatten()
        .reduce(|first, second| if second.sequence.get() > first.sequence.get() { second } else { first });
    match newest {
        None => match unreadable {
            Some(error) => Err(error.into()),
            None if was_any => Err(OpenError::SuperblocksDamaged),
            None => Ok(None),
        },
        Some(found) if found.version.get() > FORMAT_VERSION => {
            Err(OpenError::NewerFormat { found: found.version.get(), known: FORMAT_VERSION })
        }
        Some(found) if found.version.get() < FORMAT_OLDEST => {
            Err(OpenError::OlderFormat { found: found.version.get(), known: FORMAT_VERSION })
        }
        Some(newest) => {
            let is_first = copies[0].is_some_and(|first| first.sequence == newest.sequence);
            Ok(Some(Superblocks { newest, is_first }))
        }
    }
}

/// What a superblock says that cannot be, though its checksum is right: nothing is laid out by it.
pub(crate) fn fault(superblock: &Superblock, options: &Options) -> Option<&'static str> {
    let segment_bytes = u64::from(superblock.segment_bytes.get());
    let has_segments = match options.segment_bytes {
        None => {
            segment_bytes.is_power_of_two()
                && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
        }
        Some(_) => segment_bytes > 0 && segment_bytes.is_multiple_of(BLOCK_BYTES as u64),
    };
    let device_bytes = SEGMENTS_OFFSET + SEGMENTS_MIN * segment_bytes..=DEVICE_BYTES_MAX;
    let segments_bytes = superblock.device_bytes.get().saturating_sub(SEGMENTS_OFFSET);
    let segment_count = segments_bytes.checked_div(segment_bytes).unwrap_or_default();
    // What lies behind the last block has a number too.
    let has_numbers = SEGMENTS_OFFSET + segment_count * segment_bytes < DEVICE_BYTES_MAX;
    let counts = [superblock.mount, superblock.sequence, superblock.covers, superblock.mount_begin];
    let checks = [
        (has_segments, "the size of segments in the superblock"),
        (device_bytes.contains(&superblock.device_bytes.get()), "the size of the drive in the superblock"),
        (has_numbers, "the size of segments and of the drive in the superblock"),
        (counts.iter().all(|count| count.get() <= COUNT_MAX), "a count in the superblock"),
        (superblock.root_pieces.get() as usize <= ROOT_PIECES_MAX, "the number of pieces in the superblock"),
        // What a checkpoint covers is overwritten.
        (
            superblock.root_pieces.get() > 0 || superblock.covers.get() == 0,
            "a checkpoint without a root in the superblock",
        ),
    ];
    checks.iter().find(|(holds, _)| !holds).map(|(_, what)| *what)
}

pub(crate) fn identity(superblock: &Superblock) -> Identity {
    Identity {
        cluster: ClusterId::from_bytes(superblock.cluster),
        osd_uuid: OsdUuid::from_bytes(superblock.osd_uuid),
        osd: OsdId(superblock.osd.get()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Memory;

    const SECRET: Secret = *b"this one is ours";

    fn identity_of(number: u8) -> Identity {
        let (cluster, osd_uuid) = (ClusterId::from_bytes([1; 16]), OsdUuid::from_bytes([number; 16]));
        Identity { cluster, osd_uuid, osd: OsdId(number.into()) }
    }

    fn formatted(bytes: u64, segment_bytes: Option<u32>) -> Result<Superblock, FormatError> {
        let (mut drive, options) = (Memory::new(bytes), Options { segment_bytes, ..Options::default() });
        format(&mut drive, identity_of(7), SECRET, &options)?;
        let [first, second] = SUPERBLOCK_OFFSETS;
        // One is whole when the other is begun.
        assert_eq!(drive.done, [Some(first), None, Some(second), None]);
        let found = read(&mut drive).unwrap().expect("it was just made one").newest;
        assert_eq!(fault(&found, &options), None);
        Ok(found)
    }

    #[test]
    fn segments_are_as_large_as_a_drive_wants_them() {
        let segment_bytes = |bytes| formatted(bytes, None).unwrap().segment_bytes.get();
        for (gigabytes, megabytes) in [(1, 4), (4, 4), (5, 8), (8, 8), (9, 16), (64, 64), (16 << 10, 64)] {
            assert_eq!(segment_bytes(gigabytes << 30), megabytes << 20, "{gigabytes} GiB");
        }
        assert_eq!(segment_bytes((4 << 30) + BLOCK_BYTES as u64), 8 << 20, "a little more than 4 GiB");
        let found = formatted(DEVICE_BYTES_MIN, None).unwrap();
        assert_eq!((found.segment_bytes.get(), found.device_bytes.get()), (4 << 20, DEVICE_BYTES_MIN));
        assert!(identity(&found) == identity_of(7) && found.secret == SECRET && found.is_intact());
        assert_eq!((found.mount.get(), found.covers.get(), found.pieces().len()), (0, 0, 0));
    }

    #[test]
    fn a_drive_of_which_an_osd_can_make_nothing_is_refused_with_what_it_takes() {
        let too_small = |bytes, segment_bytes| match formatted(bytes, segment_bytes) {
            Err(FormatError::TooSmall { bytes_min, .. }) => Some(bytes_min),
            _ => None,
        };
        assert_eq!(too_small(DEVICE_BYTES_MIN - 1, None), Some(DEVICE_BYTES_MIN));
        let least = SEGMENTS_OFFSET + (16 * (64 << 10));
        assert_eq!(too_small(least - 1, Some(64 << 10)), Some(least));
        assert!(formatted(least, Some(64 << 10)).is_ok());
        let largest = formatted(DEVICE_BYTES_MAX, None).unwrap();
        assert_eq!(largest.device_bytes.get(), DEVICE_BYTES_MAX);
        assert!(matches!(formatted(DEVICE_BYTES_MAX + 4096, None), Err(FormatError::TooLarge { .. })));
    }

    /// What is read of a drive with these superblocks.
    fn found(copies: [Option<Superblock>; 2], bytes: u64) -> Result<Option<Superblock>, OpenError> {
        let mut drive = Memory::new(8 << 20);
        for (superblock, offset) in copies.iter().zip(SUPERBLOCK_OFFSETS) {
            if let Some(superblock) = superblock {
                drive.write(offset, superblock.as_bytes()).unwrap();
            }
        }
        drive.bytes = bytes;
        Ok(read(&mut drive)?.map(|found| found.newest))
    }

    #[test]
    fn the_newer_of_two_superblocks_counts_and_a_damaged_one_does_not() {
        const ALL: u64 = 8 << 20;
        let one = formatted(DEVICE_BYTES_MIN, None).unwrap();
        let of = |sequence: u64| {
            let mut superblock = one;
            superblock.sequence = sequence.into();
            superblock.sealed()
        };
        let damaged = |sequence: u64| Superblock { crc32c: 7u32.into(), ..of(sequence) };
        let sequence =
            |copies: [Superblock; 2]| found(copies.map(Some), ALL).unwrap().map(|found| found.sequence.get());
        assert_eq!([[4, 5], [5, 4], [5, 5]].map(|copies| sequence(copies.map(of))), [Some(5); 3]);
        assert_eq!(sequence([of(4), damaged(5)]), Some(4));
        assert_eq!(sequence([damaged(5), of(4)]), Some(4));
        // The second one is not there, or would not be all there.
        let second = SUPERBLOCK_OFFSETS[1];
        for (bytes, expected) in [(second, 4), (second + 4095, 4), (second + 4096, 5)] {
            let found = found([Some(of(4)), Some(of(5))], bytes).unwrap();
            assert_eq!(found.map(|found| found.sequence.get()), Some(expected));
        }
        // Of one that is damaged its magic may be left, or anything else.
        assert!(found([None, None], ALL).unwrap().is_none());
        let left = [
            damaged(1),
            Superblock { magic: [0; 8], ..damaged(1) },
            Superblock { cluster: [0; 16], ..damaged(1) },
        ];
        for damaged in left {
            for copies in [[Some(damaged), None], [None, Some(damaged)]] {
                assert!(matches!(found(copies, ALL), Err(OpenError::SuperblocksDamaged)));
            }
        }
        let version = |version: u32| {
            let mut other = one;
            other.version = version.into();
            found([Some(other.sealed()); 2], ALL)
        };
        let newer = version(FORMAT_VERSION + 1);
        assert!(matches!(newer, Err(OpenError::NewerFormat { found, .. }) if found == FORMAT_VERSION + 1));
        let older = version(FORMAT_OLDEST - 1);
        assert!(matches!(older, Err(OpenError::OlderFormat { found, .. }) if found == FORMAT_OLDEST - 1));
        assert!(version(FORMAT_OLDEST).is_ok());
    }

    #[test]
    fn a_superblock_that_cannot_be_read_is_done_without_if_the_other_verifies() {
        let one = formatted(DEVICE_BYTES_MIN, None).unwrap();
        let of = |sequence: u64| {
            let mut other = one;
            other.sequence = sequence.into();
            other.sealed()
        };
        let damaged = Superblock { crc32c: 7u32.into(), ..one };
        let read_without = |copies: [Superblock; 2], bad: &[usize]| {
            let mut drive = Memory::new(8 << 20);
            for (superblock, offset) in copies.iter().zip(SUPERBLOCK_OFFSETS) {
                drive.write(offset, superblock.as_bytes()).unwrap();
            }
            drive.bad = bad.iter().map(|copy| SUPERBLOCK_OFFSETS[*copy] / BLOCK_BYTES as u64).collect();
            read(&mut drive).map(|found| found.map(|found| found.newest.sequence.get()))
        };
        let both = [of(4), of(5)];
        for (copies, bad, expected) in [(both, 0, 5), ([of(5), of(4)], 0, 4), (both, 1, 4)] {
            assert_eq!(read_without(copies, &[bad]).unwrap(), Some(expected));
        }
        // What it says may be what counts: it is tried again.
        for (copies, bad) in [([of(5), damaged], vec![0]), ([damaged, of(5)], vec![1]), (both, vec![0, 1])] {
            let error = read_without(copies, &bad).unwrap_err();
            assert!(matches!(error, OpenError::Device(_)), "{error}");
        }
        // Nor is a drive blank of which one of them cannot be read.
        let error = read_without([Superblock::empty(); 2], &[0]).unwrap_err();
        assert!(matches!(error, OpenError::Device(_)), "{error}");
    }

    #[test]
    fn the_copy_that_counts_is_replaced_last_and_nothing_before_what_was_read_is_durable() {
        let one = formatted(DEVICE_BYTES_MIN, None).unwrap();
        let of = |sequence: u64, mount_begin: u64| {
            let mut other = one;
            (other.sequence, other.mount_begin) = (sequence.into(), mount_begin.into());
            other.sealed()
        };
        let damaged = Superblock { crc32c: 7u32.into(), ..one };
        let [first, second] = SUPERBLOCK_OFFSETS;
        for (copies, [earlier, later], durable_through) in [
            ([of(5, 9), of(5, 9)], [second, first], 8),
            ([of(6, 12), of(5, 9)], [second, first], 11),
            ([of(5, 9), of(6, 12)], [first, second], 11),
            ([of(5, 9), damaged], [second, first], 8),
            ([damaged, of(5, 9)], [first, second], 8),
            // It was not noted, or nothing was there.
            ([of(5, 0), of(5, 0)], [second, first], 0),
            ([of(5, 1), of(5, 1)], [second, first], 0),
        ] {
            let mut drive = Memory::new(8 << 20);
            for (superblock, offset) in copies.iter().zip(SUPERBLOCK_OFFSETS) {
                drive.write(offset, superblock.as_bytes()).unwrap();
            }
            let found = read(&mut drive).unwrap().unwrap();
            assert_eq!(found.durable_through(), durable_through);
            drive.done.clear();
            found.replace(&mut drive, &of(7, 13)).unwrap();
            assert_eq!(drive.done, [None, Some(earlier), None, Some(later), None]);
            assert_eq!(read(&mut drive).unwrap().unwrap().newest.sequence, 7);
        }
    }

    #[test]
    fn each_field_of_a_superblock_by_which_a_drive_is_laid_out_is_looked_at() {
        let one = formatted(DEVICE_BYTES_MIN, None).unwrap();
        let is_right = |change: &dyn Fn(&mut Superblock), segment_bytes: Option<u32>| {
            let mut changed = one;
            change(&mut changed);
            fault(&changed, &Options { segment_bytes, ..Options::default() }).is_none()
        };
        // By itself: powers of two, within bounds.
        for (megabytes, is) in [(2u32, false), (4, true), (6, false), (64, true), (128, false)] {
            let laid_out = |superblock: &mut Superblock| {
                superblock.segment_bytes = (megabytes << 20).into();
                superblock.device_bytes = (1u64 << 40).into();
            };
            assert_eq!(is_right(&laid_out, None), is, "{megabytes} MiB");
        }
        // As whoever formats it says.
        for (segment_bytes, is) in [(0u32, false), (4096, true), (6 << 10, false), (64 << 10, true)] {
            let laid_out = |superblock: &mut Superblock| superblock.segment_bytes = segment_bytes.into();
            assert_eq!(is_right(&laid_out, Some(4096)), is, "{segment_bytes}");
        }
        let least = SEGMENTS_OFFSET + 16 * (4 << 20);
        // The block behind the last segment has to have a number.
        let whole = [(DEVICE_BYTES_MAX - 1, true), (DEVICE_BYTES_MAX, false), (u64::MAX, false)];
        for (bytes, is) in [(least - 1, false), (least, true)].into_iter().chain(whole) {
            assert_eq!(is_right(&|superblock| superblock.device_bytes = bytes.into(), None), is, "{bytes}");
        }
        for (bytes, is) in [(DEVICE_BYTES_MAX, true), (DEVICE_BYTES_MAX + 1, false)] {
            let laid_out = |superblock: &mut Superblock| {
                superblock.segment_bytes = (64 << 20).into();
                superblock.device_bytes = bytes.into();
            };
            assert_eq!(is_right(&laid_out, None), is, "{bytes}");
        }
        for (count, is) in [(COUNT_MAX, true), (COUNT_MAX + 1, false)] {
            assert_eq!(is_right(&|superblock| superblock.mount = count.into(), None), is);
            assert_eq!(is_right(&|superblock| superblock.sequence = count.into(), None), is);
            assert_eq!(is_right(&|superblock| superblock.mount_begin = count.into(), None), is);
            let covers = |superblock: &mut Superblock| {
                (superblock.covers, superblock.root_pieces) = (count.into(), 1u32.into());
            };
            assert_eq!(is_right(&covers, None), is);
        }
        let most = ROOT_PIECES_MAX as u32;
        for (pieces, is) in [(most, true), (most + 1, false)] {
            assert_eq!(is_right(&|superblock| superblock.root_pieces = pieces.into(), None), is);
        }
        assert!(!is_right(&|superblock| superblock.covers = 1u64.into(), None), "it is gone");
    }
}
