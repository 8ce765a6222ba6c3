//! The chain of descriptors of a request, walked once (VIRTIO 1.2, 2.7.5).
//!
//! `virtio_queue` has such a walk, which ends in silence where a chain breaks the rules, and begins only where the available ring says.
//! This one tells, and begins where a request of a back-end that died began.

use super::request::{Broken, Segment};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

const DESCRIPTOR_BYTES: u64 = 16;

/// Where the descriptors of a ring are, and how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) address: GuestAddress,
    pub(super) entries: u32,
}

impl Table {
    fn descriptor(self, memory: &GuestMemoryMmap, index: u32) -> Result<Descriptor, Broken> {
        let outside = Broken("a descriptor is outside of the memory");
        let address = self.address.checked_add(DESCRIPTOR_BYTES * u64::from(index)).ok_or(outside)?;
        memory.read_obj(address).map_err(|_| outside)
    }

    /// Walks the chain that begins with descriptor `head`: what the device may read, then what it may write, of at most `most`
    /// descriptors.
    ///
    /// # Errors
    /// It breaks the rules.
    pub(super) fn walk(
        self,
        memory: &GuestMemoryMmap,
        head: u16,
        most: usize,
        readable: &mut Vec<Segment>,
        writable: &mut Vec<Segment>,
    ) -> Result<(), Broken> {
        let (mut table, mut index, mut is_indirect) = (self, u32::from(head), false);
        readable.clear();
        writable.clear();
        for _ in 0..=most {
            if index >= table.entries {
                return Err(Broken("a chain goes on with a descriptor that there is not"));
            }
            let descriptor = table.descriptor(memory, index)?;
            if descriptor.refers_to_indirect_table() {
                let bytes = descriptor.len();
                if is_indirect || descriptor.has_next() {
                    return Err(Broken("a table of descriptors is not the end of a chain"));
                }
                if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES as u32) {
                    return Err(Broken("a table of descriptors has a part of one"));
                }
                table = Table { address: descriptor.addr(), entries: bytes / DESCRIPTOR_BYTES as u32 };
                (index, is_indirect) = (0, true);
                continue;
            }
            let segment = Segment { address: descriptor.addr(), length: descriptor.len() as usize };
            match descriptor.is_write_only() {
                true => writable.push(segment),
                false if writable.is_empty() => readable.push(segment),
                false => return Err(Broken("what can be read comes behind what can be written in a chain")),
            }
            if readable.len() + writable.len() > most {
                break;
            }
            if !descriptor.has_next() {
                return Ok(());
            }
            index = u32::from(descriptor.next());
        }
        Err(Broken("a chain has more descriptors than the device takes"))
    }
}
