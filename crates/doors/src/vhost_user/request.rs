//! What a guest's driver asks for: a chain of descriptors, read once, and judged here.
//!
//! A chain is what the device may read, then what it may write (VIRTIO 1.2, 2.7.4 and 5.2.6). However the driver cuts these into
//! descriptors, what can be read begins with a header of 16 bytes and goes on with data to be written, and what can be written ends with
//! one byte for the status, before which data that was read is put.

use super::chain::Table;
use base::BLOCK_BYTES;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, GuestMemoryError, GuestMemoryMmap, Permissions};

/// What offsets and lengths are counted in by drivers, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The most pieces that the data of a request may have.
pub(super) const SEGMENTS_MAX: usize = 126;
/// The most that one request zeroes, in bytes: all operations of it are out together.
pub(super) const ZEROED_BYTES_MAX: u64 = 4 << 30;

const HEADER_BYTES: usize = 16;
/// A range to be zeroed, in bytes.
const RANGE_BYTES: usize = 16;

/// A piece of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: GuestAddress,
    /// In bytes.
    pub(super) length: usize,
}

impl Segment {
    /// The address so many bytes behind its beginning.
    fn at(&self, offset: usize) -> Result<GuestAddress, GuestMemoryError> {
        self.address.checked_add(offset as u64).ok_or(GuestMemoryError::GuestAddressOverflow)
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Write,
    /// Also what is discarded.
    Zero,
    /// Nothing: what was acknowledged is durable.
    Flush,
    /// The disk's name.
    Name,
    /// What there is no such thing as, or the driver did not agree on.
    Unknown,
    /// What cannot be done: beyond the end, or in no whole sectors.
    Wrong(&'static str),
}

/// A request. Its data are in segments beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) what: What,
    /// Where it begins, in bytes.
    pub(super) offset: u64,
    /// In bytes.
    pub(super) length: u64,
    /// Where the driver looks for how it ended.
    pub(super) status: GuestAddress,
}

/// What the disk is, as far as requests are judged by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
}

/// A chain that breaks the rules, or has no place for an answer. There is no going on with a driver that makes such.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("{0}")]
pub(super) struct Broken(pub(super) &'static str);

/// Takes bytes off the front of segments.
fn skip(segments: &mut Vec<Segment>, mut count: usize) {
    let mut whole = 0;
    for segment in segments.iter_mut() {
        if count < segment.length {
            segment.address.0 += count as u64;
            segment.length -= count;
            break;
        }
        count -= segment.length;
        whole += 1;
    }
    segments.drain(..whole);
}

fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.length as u64).sum()
}

/// Copies from a guest what lies `at` bytes from the beginning of its segments.
///
/// # Errors
/// There is no such memory.
pub(super) fn copy_from(
    memory: &GuestMemoryMmap,
    segments: &[Segment],
    mut at: usize,
    mut bytes: &mut [u8],
) -> Result<(), GuestMemoryError> {
    for segment in segments {
        if at >= segment.length {
            at -= segment.length;
            continue;
        }
        let count = bytes.len().min(segment.length - at);
        let (now, later) = std::mem::take(&mut bytes).split_at_mut(count);
        memory.read_slice(now, segment.at(at)?)?;
        (bytes, at) = (later, 0);
        if bytes.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Copies to a guest what is to lie `at` bytes from the beginning of its segments, and tells `wrote` where that is.
///
/// # Errors
/// There is no such memory.
pub(super) fn copy_to(
    memory: &GuestMemoryMmap,
    segments: &[Segment],
    mut at: usize,
    mut bytes: &[u8],
    mut wrote: impl FnMut(GuestAddress, usize),
) -> Result<(), GuestMemoryError> {
    for segment in segments {
        if at >= segment.length {
            at -= segment.length;
            continue;
        }
        let (now, later) = bytes.split_at(bytes.len().min(segment.length - at));
        let address = segment.at(at)?;
        // What fails may have been done in part.
        wrote(address, now.len());
        memory.write_slice(now, address)?;
        (bytes, at) = (later, 0);
        if bytes.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Reads a request, whose chain begins with descriptor `head`. `data` is what is to be written, or where to put what is read; what it
/// and `other` held before is forgotten.
///
/// # Errors
/// The chain breaks the rules, or has no header, or no place for a status.
pub(super) fn read(
    table: Table,
    head: u16,
    memory: &GuestMemoryMmap,
    disk: Disk,
    data: &mut Vec<Segment>,
    other: &mut Vec<Segment>,
) -> Result<Request, Broken> {
    let (readable, writable) = (data, other);
    // The data, a header and a status.
    table.walk(memory, head, SEGMENTS_MAX + 2, readable, writable)?;
    if total(readable) < HEADER_BYTES as u64 {
        return Err(Broken("a chain has no header"));
    }
    let mut header = [0; HEADER_BYTES];
    copy_from(memory, readable, 0, &mut header).map_err(|_| Broken("a header is outside of the memory"))?;
    skip(readable, HEADER_BYTES);
    writable.retain(|segment| segment.length > 0);
    let last = writable.last_mut().ok_or(Broken("a chain has no place for a status"))?;
    last.length -= 1;
    let status = GuestAddress(last.address.0.wrapping_add(last.length as u64));
    if !memory.check_range(status, 1, Permissions::Write) {
        return Err(Broken("a status is outside of the memory"));
    }
    let [kind, _priority] = [0, 4].map(|at| u32_at(&header, at));
    let (mut offset, mut length) = (0, 0);
    let what = match kind {
        VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT => {
            let is_read = kind == VIRTIO_BLK_T_IN;
            length = total(if is_read { writable } else { readable });
            offset = bytes_of(u64_at(&header, 8));
            let what = if is_read { What::Read } else { What::Write };
            within(what, offset, length, disk)
        }
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            let mut range = [0; RANGE_BYTES];
            // One range a request, as the device told the driver.
            let is_one = total(readable) == RANGE_BYTES as u64;
            if is_one && copy_from(memory, readable, 0, &mut range).is_ok() {
                length = u64::from(u32_at(&range, 8)) * SECTOR_BYTES;
                offset = bytes_of(u64_at(&range, 0));
                let allowed = match kind {
                    VIRTIO_BLK_T_WRITE_ZEROES => VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
                    _ => 0,
                };
                match u32_at(&range, 12) & !allowed {
                    0 if length > ZEROED_BYTES_MAX => What::Wrong("more than is zeroed at once"),
                    0 => within(What::Zero, offset, length, disk),
                    _ => What::Unknown,
                }
            } else {
                What::Wrong("not one range")
            }
        }
        VIRTIO_BLK_T_FLUSH => What::Flush,
        VIRTIO_BLK_T_GET_ID => {
            length = u64::from(VIRTIO_BLK_ID_BYTES);
            if total(writable) < length { What::Wrong("no room for the name") } else { What::Name }
        }
        _ => What::Unknown,
    };
    if matches!(what, What::Read | What::Name) {
        std::mem::swap(readable, writable);
    }
    Ok(Request { what, offset, length, status })
}

/// Where a sector begins. One that no disk has begins behind all ends.
fn bytes_of(sector: u64) -> u64 {
    sector.saturating_mul(SECTOR_BYTES)
}

/// What it is, if the disk has such a range.
fn within(what: What, offset: u64, length: u64, disk: Disk) -> What {
    if what != What::Read && disk.is_read_only {
        return What::Wrong("a change of what is only read");
    }
    if !length.is_multiple_of(SECTOR_BYTES) || length == 0 {
        return What::Wrong("no whole sectors");
    }
    match offset.checked_add(length) {
        Some(end) if end <= disk.bytes => what,
        _ => What::Wrong("beyond the end"),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What drivers are told of blocks: sectors count, and blocks of the volume cost least.
pub(super) const BLOCK_EXPONENT: u8 = (BLOCK_BYTES as u64 / SECTOR_BYTES).ilog2() as u8;

/// Reads a request out of memory that a guest wrote: whose first bytes are a table of `entries` descriptors, and which begins at guest
/// address [`JUDGED_AT`]. Says what it is taken for, or why it breaks its ring. For who feeds it with what nobody meant.
///
/// # Panics
/// If a request is taken that is not within the disk or not of its data, which is a bug.
#[must_use]
pub fn judge(bytes: &[u8], head: u16, entries: u16, disk_bytes: u64) -> (&'static str, &'static str) {
    let at = GuestAddress(JUDGED_AT);
    let memory = GuestMemoryMmap::from_ranges(&[(at, bytes.len().max(1))]).expect("there is memory for that");
    memory.write_slice(bytes, at).expect("it is as long as that");
    let disk = Disk { bytes: disk_bytes, is_read_only: false };
    let (mut data, mut other) = (Vec::new(), Vec::new());
    let table = Table { address: at, entries: entries.into() };
    let request = match read(table, head, &memory, disk, &mut data, &mut other) {
        Ok(request) => request,
        Err(Broken(reason)) => return ("broken", reason),
    };
    let mut part = [0; 4096];
    let what = match request.what {
        What::Read => "read",
        What::Write => "write",
        What::Zero => "zero",
        What::Flush => "flush",
        What::Name => "name",
        What::Unknown => "unknown",
        What::Wrong(why) => return ("wrong", why),
    };
    if matches!(request.what, What::Read | What::Write | What::Zero) {
        let end = request.offset.checked_add(request.length);
        assert!(request.length > 0 && end.is_some_and(|end| end <= disk_bytes), "it is within the disk");
    }
    if matches!(request.what, What::Read | What::Write) {
        assert_eq!(total(&data), request.length, "it is as long as its data");
        for from in [0, total(&data) as usize / 2] {
            let _ = match request.what {
                What::Read => copy_to(&memory, &data, from, &part, |_, _| {}),
                _ => copy_from(&memory, &data, from, &mut part),
            };
        }
    }
    ("request", what)
}

/// Where the memory begins that [`judge`] looks at.
pub const JUDGED_AT: u64 = 0x1000;
