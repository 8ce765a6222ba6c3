//! Aligned memory that a drive can read and write directly, shared without copying.
//!
//! A [`Buffer`] has one owner while it is filled and any number of readers afterwards: a batch is
//! written to the drive and sent to two replicas from the same bytes. The rule is the type's:
//! [`Buffer::bytes_mut`] answers only while nobody else holds a clone. An operation in flight holds
//! one, so its memory can neither change nor go away beneath the kernel.

use crate::geometry::BLOCK_BYTES;
use crate::tenant::{Held, Tenant, may_have};
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// 4 KiB aligned to 4 KiB, as direct I/O wants it.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// A run of whole blocks of aligned memory. Cloning shares it; it stays on its thread.
#[derive(Clone)]
pub struct Buffer {
    blocks: Rc<[Block]>,
    /// Where it stands in an `io_uring`'s table of registered buffers, if it does.
    registration: Option<u16>,
    /// To whom it is lent.
    tenant: Tenant,
}

impl Buffer {
    /// A zeroed buffer of at least `bytes`, rounded up to whole blocks.
    #[must_use]
    pub fn new(bytes: usize) -> Buffer {
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
        // SAFETY: a block of zeros is a block, as `FromZeros` says.
        #[allow(unsafe_code)]
        let blocks = unsafe { Rc::<[Block]>::new_zeroed_slice(blocks).assume_init() };
        Buffer { blocks, registration: None, tenant: Tenant::NOBODY }
    }

    /// Its size in bytes, a multiple of 4 KiB.
    #[must_use]
    pub fn size(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// All its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.blocks.as_bytes()
    }

    /// All its bytes to change, or `None` while a clone of it lives.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Rc::get_mut(&mut self.blocks).map(|blocks| blocks.as_mut_bytes())
    }

    /// Whether no clone of it lives, so that it can be filled anew.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Rc::strong_count(&self.blocks) == 1
    }

    /// To whom it is lent, its clones included.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Notes to whom it is lent, before it is cloned.
    pub fn lend_to(&mut self, tenant: Tenant) {
        self.tenant = tenant;
    }

    /// Its number among an `io_uring`'s registered buffers.
    #[must_use]
    pub fn registration(&self) -> Option<u16> {
        self.registration
    }

    /// Notes where it was registered. For whoever registers it with a ring.
    pub fn set_registration(&mut self, index: u16) {
        self.registration = Some(index);
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Buffer({} bytes, {} holders)", self.size(), Rc::strong_count(&self.blocks))
    }
}

/// Buffers of one size, made once and lent again and again.
#[derive(Debug)]
pub struct BufferPool {
    free: Vec<Buffer>,
    /// Those that nobody wanted yet, which are made when somebody does, unless all are wanted before.
    unmade: usize,
    buffer_bytes: usize,
    count: usize,
    lent: Held,
}

impl BufferPool {
    /// `count` buffers of at least `buffer_bytes` each, rounded up to whole blocks.
    #[must_use]
    pub fn new(count: usize, buffer_bytes: usize) -> BufferPool {
        let buffer_bytes = buffer_bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        let (free, lent) = (Vec::with_capacity(count), Held::default());
        BufferPool { free, unmade: count, buffer_bytes, count, lent }
    }

    /// A buffer that nobody else holds, or `None` when all are lent.
    pub fn take(&mut self) -> Option<Buffer> {
        self.take_for(Tenant::NOBODY)
    }

    /// The same, lent to a tenant. Whether that may have it, [`Self::has_for`] tells.
    pub fn take_for(&mut self, tenant: Tenant) -> Option<Buffer> {
        let mut buffer = self.free.pop().or_else(|| {
            self.unmade = self.unmade.checked_sub(1)?;
            Some(Buffer::new(self.buffer_bytes))
        })?;
        buffer.lend_to(tenant);
        self.lent.add(tenant, 1);
        Some(buffer)
    }

    /// Whether a tenant may have so many more, `kept` of those that are free left out of account.
    #[must_use]
    pub fn has_for(&self, tenant: Tenant, count: usize, kept: usize) -> bool {
        may_have(tenant, self.lent.of(tenant), count, self.available().saturating_sub(kept))
    }

    /// Takes a holder's handle back. The last holder's makes the buffer free; an earlier one is dropped.
    pub fn put(&mut self, buffer: Buffer) {
        if buffer.is_unique() && buffer.size() == self.buffer_bytes {
            assert!(self.available() < self.count, "more buffers came back than were lent");
            self.lent.take_off(buffer.tenant(), 1);
            self.free.push(buffer);
        }
    }

    /// How many there are, lent or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many could be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.unmade
    }

    /// The size of each, in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Every buffer that is not lent, all of them made, to be registered with a ring before the work starts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        let unmade = std::mem::take(&mut self.unmade);
        self.free.extend(std::iter::repeat_with(|| Buffer::new(self.buffer_bytes)).take(unmade));
        self.free.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_buffer_cannot_change() {
        let mut buffer = Buffer::new(4097);
        assert_eq!(buffer.size(), 8192);
        assert_eq!(buffer.bytes().as_ptr() as usize % 4096, 0);
        buffer.bytes_mut().unwrap()[0] = 7;
        let clone = buffer.clone();
        assert!(buffer.bytes_mut().is_none());
        assert_eq!(clone.bytes()[0], 7);
        drop(clone);
        assert!(buffer.bytes_mut().is_some());
    }

    #[test]
    fn a_pool_gets_a_buffer_back_from_its_last_holder() {
        let mut pool = BufferPool::new(1, 4096);
        let buffer = pool.take().unwrap();
        assert!(pool.take().is_none());
        pool.put(buffer.clone());
        assert!(pool.take().is_none());
        pool.put(buffer);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_pool_has_its_buffers_whether_they_were_made_or_not() {
        let mut pool = BufferPool::new(3, 4096);
        let first = pool.take().unwrap();
        assert_eq!((pool.available(), pool.unmade), (2, 2));
        assert_eq!(pool.iter_mut().count(), 2, "who registers them gets all that are not lent");
        assert_eq!((pool.available(), pool.unmade), (2, 0));
        let others = [pool.take().unwrap(), pool.take().unwrap()];
        assert!(pool.take().is_none());
        others.into_iter().chain([first]).for_each(|buffer| pool.put(buffer));
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn a_tenant_has_what_was_lent_to_it_until_its_last_holder_gives_it_back() {
        let mut pool = BufferPool::new(4, 4096);
        let (tenant, other) = (Tenant(1), Tenant(2));
        let first = pool.take_for(tenant).unwrap();
        let second = pool.take_for(tenant).unwrap();
        assert!(!pool.has_for(tenant, 1, 0) && pool.has_for(other, 1, 0) && pool.has_for(other, 2, 0));
        assert!(!pool.has_for(other, 1, 2), "two of them are kept");
        let clone = first.clone();
        pool.put(first);
        assert!(!pool.has_for(tenant, 1, 0), "somebody holds it still");
        pool.put(clone);
        assert!(pool.has_for(tenant, 1, 0));
        pool.put(second);
        assert!(pool.has_for(tenant, 4, 0));
    }
}
