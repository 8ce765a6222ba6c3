//! Making a drive an OSD, and finding out whose it is.

use crate::actions::{Identity, Options};
use crate::device::{Device, DeviceError};
use crate::error::{FormatError, OpenError};
use crate::layout::{
    COUNT_MAX, FORMAT_VERSION, ROOT_PIECES_MAX, SEGMENTS_OFFSET, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS,
    Secret, Superblock,
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
    write_both(device, &superblock)?;
    Ok(())
}

/// Writes both copies, one made durable before the other is touched.
pub(crate) fn write_both(device: &mut impl Device, superblock: &Superblock) -> Result<(), DeviceError> {
    let mut buffer = Buffer::new(BLOCK_BYTES);
    fill(&mut buffer, superblock);
    for offset in SUPERBLOCK_OFFSETS {
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

/// The newest superblock that verifies, or `None` if there never was one.
pub(crate) fn read(device: &mut impl Device) -> Result<Option<Superblock>, OpenError> {
    let mut newest: Option<Superblock> = None;
    let mut was_any = false;
    let mut buffer = Buffer::new(BLOCK_BYTES);
    for offset in SUPERBLOCK_OFFSETS {
        if device.bytes() < offset + BLOCK_BYTES as u64 {
            continue;
        }
        let memory = buffer.bytes_mut().expect("a new buffer has one holder");
        device.read(offset, memory)?;
        let found = Superblock::read_from_bytes(&memory[..BLOCK_BYTES])
            .expect("a block has the size of a superblock");
        // A damaged copy is still an OSD's, as far as its magic or anything else of it stands.
        was_any |= found.magic == SUPERBLOCK_MAGIC || found.cluster != [0; 16];
        let is_newer = newest.is_none_or(|newest| found.sequence.get() > newest.sequence.get());
        if found.is_intact() && is_newer {
            newest = Some(found);
        }
    }
    match newest {
        None if was_any => Err(OpenError::SuperblocksDamaged),
        Some(found) if found.version.get() > FORMAT_VERSION => {
            Err(OpenError::NewerFormat { found: found.version.get(), known: FORMAT_VERSION })
        }
        Some(found) if found.version.get() < FORMAT_VERSION => {
            Err(OpenError::OlderFormat { found: found.version.get(), known: FORMAT_VERSION })
        }
        newest => Ok(newest),
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
    let counts = [superblock.mount, superblock.sequence, superblock.covers, superblock.mount_begin];
    let checks = [
        (has_segments, "the size of segments in the superblock"),
        (device_bytes.contains(&superblock.device_bytes.get()), "the size of the drive in the superblock"),
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
