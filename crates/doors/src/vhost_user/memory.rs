//! The memory of a guest, as its front-end shares it: regions of files, mapped here.
//!
//! Addresses come in two kinds. Those in rings and descriptors are the guest's. Where the rings themselves are, the front-end says
//! by its own addresses.
//!
//! Whatever the guest writes, nothing outside of these regions is read or written: every access goes through
//! [`vm_memory::Bytes`], which finds the region and checks both ends. A file is at least as long as what is mapped of it, when it is; a
//! front-end that makes it shorter after that ends this process with `SIGBUS`, and with it nobody's service but its own.

use std::fs::File;
use std::io;
use std::sync::Arc;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion};

/// How many regions there may be: one for each module of memory that is plugged in.
pub(super) const REGIONS_MAX: usize = 509;

/// One of them.
#[derive(Clone, Debug)]
struct Region {
    /// Its address in the front-end.
    user: u64,
    mapped: Arc<GuestRegionMmap>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    regions: Vec<Region>,
    guest: GuestMemoryMmap,
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

/// Maps a part of a file, which is long enough for that.
///
/// # Errors
/// It is not, or the system refuses.
pub(super) fn map(file: File, offset: u64, bytes: u64) -> io::Result<MmapRegion> {
    let end = offset.checked_add(bytes).filter(|end| i64::try_from(*end).is_ok());
    let length = file.metadata()?.len();
    if bytes == 0 || end.is_none_or(|end| end > length) {
        return Err(invalid(format!("{bytes} bytes at {offset} are not in a file of {length} bytes")));
    }
    let size = usize::try_from(bytes).map_err(|_| invalid("it is larger than this machine's memory"))?;
    MmapRegion::from_file(FileOffset::new(file, offset), size).map_err(|error| invalid(error.to_string()))
}

impl Memory {
    /// All of them anew.
    ///
    /// # Errors
    /// Regions that overlap, or are not in their files.
    pub(super) fn of(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> io::Result<Memory> {
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory.add(region, file)?;
        }
        Ok(memory)
    }

    /// One more.
    ///
    /// # Errors
    /// It overlaps another or is not in its file, or there are too many.
    pub(super) fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> io::Result<()> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(invalid(format!("there are more than {REGIONS_MAX} regions of memory")));
        }
        let user = region.user_addr;
        if user.checked_add(region.memory_size).is_none() {
            return Err(invalid("a region of memory ends behind the last address"));
        }
        let mapped = map(file, region.mmap_offset, region.memory_size)?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(region.guest_phys_addr));
        let mapped =
            Arc::new(mapped.ok_or_else(|| invalid("a region of memory ends behind the last address"))?);
        self.guest = self.guest.insert_region(mapped.clone()).map_err(|error| invalid(error.to_string()))?;
        self.regions.push(Region { user, mapped });
        Ok(())
    }

    /// One less.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn remove(&mut self, region: &VhostUserMemoryRegion) -> io::Result<()> {
        let (guest, size) = (GuestAddress(region.guest_phys_addr), region.memory_size);
        let is_it = |known: &Region| {
            (known.user, known.mapped.start_addr(), known.mapped.len()) == (region.user_addr, guest, size)
        };
        let place = self.regions.iter().position(is_it);
        let place = place.ok_or_else(|| invalid("no such region of memory is there"))?;
        let (left, _) = self.guest.remove_region(guest, size).map_err(|error| invalid(error.to_string()))?;
        (self.guest, _) = (left, self.regions.remove(place));
        Ok(())
    }

    /// What the guest sees.
    pub(super) fn guest(&self) -> &GuestMemoryMmap {
        &self.guest
    }

    /// The guest's address of what the front-end has at one of its own.
    pub(super) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = user.checked_sub(region.user).filter(|offset| *offset < region.mapped.len())?;
            Some(GuestAddress(region.mapped.start_addr().0 + offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(guest: u64, bytes: u64, user: u64) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion::new(guest, bytes, user, 0)
    }

    fn file(bytes: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    #[test]
    fn addresses_of_the_front_end_are_found_in_regions_that_come_and_go() {
        let (low, high) = (region(0, 0x3000, 0x7000_0000), region(0x10_0000, 0x2000, 0x1000));
        let mut memory = Memory::of(&[high, low], vec![file(0x2000), file(0x3000)]).unwrap();
        assert_eq!(memory.guest_address(0x7000_0000), Some(GuestAddress(0)));
        assert_eq!(memory.guest_address(0x7000_2fff), Some(GuestAddress(0x2fff)));
        assert_eq!(memory.guest_address(0x7000_3000), None);
        assert_eq!(memory.guest_address(0x1004), Some(GuestAddress(0x10_0004)));
        memory.remove(&low).unwrap();
        assert!(memory.remove(&low).is_err());
        assert_eq!(memory.guest_address(0x7000_0000), None);
        memory.add(&low, file(0x3000)).unwrap();
        assert_eq!(memory.guest_address(0x7000_0000), Some(GuestAddress(0)));
    }

    #[test]
    fn regions_that_overlap_wrap_or_are_longer_than_their_file_are_refused() {
        let refused = |regions: &[VhostUserMemoryRegion], bytes: u64| {
            let files = regions.iter().map(|_| file(bytes)).collect();
            Memory::of(regions, files).unwrap_err()
        };
        let first = region(0, 0x2000, 0);
        refused(&[first, region(0x1000, 0x2000, 0x10_0000)], 0x2000);
        refused(&[first], 0x1fff);
        refused(&[region(0, 0, 0)], 0x1000);
        refused(&[region(u64::MAX - 0xfff, 0x2000, 0)], 0x2000);
        refused(&[region(0, 0x2000, u64::MAX - 0xfff)], 0x2000);
        let told = refused(&[VhostUserMemoryRegion::new(0, 0x1000, 0, u64::MAX - 0xfff)], 0x1000);
        assert!(told.to_string().contains("are not in a file of 4096 bytes"), "{told}");
        refused(&[VhostUserMemoryRegion::new(0, 0x1000, 0, 1)], 0x10_0000);
    }
}
