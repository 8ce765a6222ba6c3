//! Which pages of a guest were written to while it is being moved to another machine: a bit for each, in memory that the front-end
//! shares.

use super::memory::map;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use vm_memory::{MmapRegion, VolatileMemory};

/// What a bit stands for, in bytes (`VHOST_LOG_PAGE` of the protocol).
const PAGE_BYTES: u64 = 4096;

/// See the module's documentation.
pub(super) struct DirtyLog {
    mapped: MmapRegion,
}

impl DirtyLog {
    /// # Errors
    /// It is not in that file.
    pub(super) fn new(file: File, offset: u64, bytes: u64) -> io::Result<DirtyLog> {
        Ok(DirtyLog { mapped: map(file, offset, bytes)? })
    }

    /// Notes that something was written there. What lies behind the end of the log is not the guest's.
    pub(super) fn mark(&self, address: u64, length: u64) {
        if length == 0 {
            return;
        }
        let last = address.saturating_add(length - 1) / PAGE_BYTES;
        for page in address / PAGE_BYTES..=last {
            let byte = self.mapped.get_atomic_ref::<AtomicU8>((page / 8) as usize);
            let Ok(byte) = byte else { return };
            // The front-end takes bits away meanwhile.
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn each_page_that_was_touched_has_its_bit() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096 + 16).unwrap();
        let log = DirtyLog::new(file.try_clone().unwrap(), 4096, 16).unwrap();
        let bits = || {
            let mut bytes = [0; 16];
            file.read_exact_at(&mut bytes, 4096).unwrap();
            u128::from_le_bytes(bytes)
        };
        log.mark(0, 0);
        assert_eq!(bits(), 0);
        log.mark(4095, 2);
        assert_eq!(bits(), 0b11);
        log.mark(9 * 4096, 4096);
        assert_eq!(bits(), 0b10_0000_0011);
        log.mark(127 * 4096, 1 << 40);
        log.mark(u64::MAX - 1, 100);
        assert_eq!(bits(), 1 << 127 | 0b10_0000_0011, "what is not there is not marked");
        assert!(DirtyLog::new(file, 4096, 17).is_err());
    }
}
