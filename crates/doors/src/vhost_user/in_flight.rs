//! Which requests of a guest are under way, in memory that outlives this process: the front-end keeps it, and gives it to the back-end
//! that follows one that died. That does again what had not ended.
//!
//! The layout is that of the protocol's `QueueRegionSplit` ("Inflight I/O tracking"). For each ring a header of 16 bytes (`u64` features,
//! `u16` version, entries, head of the last batch, index of the used ring), and 16 bytes for each descriptor: `u8` whether a request
//! that begins there is under way, `u16` at 6, and `u64` at 8 in which order it was taken.
//!
//! A request that ends is noted as the last batch, then put into the used ring, then noted as ended together with the ring's index. Who
//! finds another index than the ring's knows that the last batch had got there.

use super::memory::map;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use vm_memory::{AtomicInteger, MmapRegion, VolatileMemory};

const HEADER_BYTES: usize = 16;
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_BATCH_AT: usize = 12;
const USED_INDEX_AT: usize = 14;
const ENTRY_BYTES: usize = 16;
const COUNTER_AT: usize = 8;
/// What each ring's part is rounded up to.
const ALIGNED_TO: usize = 64;
/// The only one there is.
const VERSION: u16 = 1;

/// See the module's documentation.
pub(super) struct InFlight {
    mapped: MmapRegion,
    queues: u16,
    entries: u16,
}

fn queue_bytes(entries: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(entries)).next_multiple_of(ALIGNED_TO)
}

impl InFlight {
    /// New memory for so many rings of so many entries each. Also the file that it is in, and its size in bytes.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn create(queues: u16, entries: u16) -> io::Result<(InFlight, File, u64)> {
        let file = File::from(memfd_create("vhost-inflight", MFdFlags::MFD_CLOEXEC)?);
        let bytes = (queue_bytes(entries) * usize::from(queues)) as u64;
        file.set_len(bytes)?;
        let in_flight = InFlight::open(file.try_clone()?, 0, bytes, queues, entries)?;
        Ok((in_flight, file, bytes))
    }

    /// What another left.
    ///
    /// # Errors
    /// It is too small for that.
    pub(super) fn open(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        entries: u16,
    ) -> io::Result<InFlight> {
        let needed = (queue_bytes(entries) * usize::from(queues)) as u64;
        if entries == 0 || queues == 0 || bytes < needed {
            let reason =
                format!("{queues} rings of {entries} entries need {needed} bytes, and there are {bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let in_flight = InFlight { mapped: map(file, offset, needed)?, queues, entries };
        for queue in 0..queues {
            in_flight.word(queue, VERSION_AT).store(VERSION, Ordering::Relaxed);
            in_flight.word(queue, ENTRIES_AT).store(entries, Ordering::Relaxed);
        }
        Ok(in_flight)
    }

    /// Whether a ring of that size is among those whose requests are noted.
    pub(super) fn has(&self, queue: u16, entries: u16) -> bool {
        queue < self.queues && entries <= self.entries
    }

    fn at<T: AtomicInteger>(&self, queue: u16, offset: usize) -> &T {
        let at = queue_bytes(self.entries) * usize::from(queue) + offset;
        self.mapped
            .get_atomic_ref(at)
            .expect("it is as long as all rings need, and parts of them are aligned")
    }

    fn word(&self, queue: u16, offset: usize) -> &AtomicU16 {
        self.at(queue, offset)
    }

    fn is_under_way(&self, queue: u16, head: u16) -> &AtomicU8 {
        self.at(queue, HEADER_BYTES + ENTRY_BYTES * usize::from(head))
    }

    fn counter(&self, queue: u16, head: u16) -> &AtomicU64 {
        self.at(queue, HEADER_BYTES + ENTRY_BYTES * usize::from(head) + COUNTER_AT)
    }

    /// A request is taken.
    pub(super) fn begin(&self, queue: u16, head: u16, counter: u64) {
        self.counter(queue, head).store(counter, Ordering::Relaxed);
        self.is_under_way(queue, head).store(1, Ordering::Release);
    }

    /// A request is about to be put into the used ring.
    pub(super) fn ending(&self, queue: u16, head: u16) {
        self.word(queue, LAST_BATCH_AT).store(head, Ordering::Release);
    }

    /// It is there, and the ring's index is that.
    pub(super) fn ended(&self, queue: u16, head: u16, used_index: u16) {
        self.is_under_way(queue, head).store(0, Ordering::Release);
        self.word(queue, USED_INDEX_AT).store(used_index, Ordering::Release);
    }

    /// What is under way on a ring whose index is that, in the order in which it was taken, and the next number in that order.
    pub(super) fn take_up(&self, queue: u16, entries: u16, used_index: u16) -> (Vec<u16>, u64) {
        if self.word(queue, USED_INDEX_AT).load(Ordering::Acquire) != used_index {
            let head = self.word(queue, LAST_BATCH_AT).load(Ordering::Acquire);
            if head < self.entries {
                self.is_under_way(queue, head).store(0, Ordering::Release);
            }
            self.word(queue, USED_INDEX_AT).store(used_index, Ordering::Release);
        }
        let is_under_way = |head: &u16| self.is_under_way(queue, *head).load(Ordering::Acquire) == 1;
        let counted = |head| (self.counter(queue, head).load(Ordering::Relaxed), head);
        let mut heads: Vec<_> = (0..entries).filter(is_under_way).map(counted).collect();
        heads.sort_unstable();
        let next = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        (heads.into_iter().map(|(_, head)| head).collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the one who follows finds it.
    fn again(file: &File, bytes: u64) -> InFlight {
        InFlight::open(file.try_clone().unwrap(), 0, bytes, 2, 8).unwrap()
    }

    #[test]
    fn who_follows_finds_what_had_not_ended_in_its_order() {
        let (first, file, bytes) = InFlight::create(2, 8).unwrap();
        assert_eq!(bytes, 2 * 192, "a header and eight entries of 16 bytes, rounded up");
        for (counter, head) in [(5, 3), (6, 7), (7, 0), (8, 1)] {
            first.begin(1, head, counter);
        }
        first.ending(1, 7);
        first.ended(1, 7, 1);
        let second = again(&file, bytes);
        assert_eq!(second.take_up(1, 8, 1), (vec![3, 0, 1], 9));
        assert_eq!(second.take_up(0, 8, 0), (vec![], 0));
    }

    #[test]
    fn a_request_that_got_into_the_used_ring_had_ended_at_whatever_moment_its_process_did() {
        let (first, file, bytes) = InFlight::create(2, 8).unwrap();
        first.begin(0, 2, 0);
        first.begin(0, 4, 1);
        first.ending(0, 2);
        // Here the first process ends: before the used ring's index is raised, and after it was.
        assert_eq!(again(&file, bytes).take_up(0, 8, 0), (vec![2, 4], 2));
        assert_eq!(again(&file, bytes).take_up(0, 8, 1), (vec![4], 2));
        assert_eq!(again(&file, bytes).take_up(0, 8, 1), (vec![4], 2), "once is enough");
    }

    #[test]
    fn memory_that_is_too_small_or_holds_nonsense_does_no_harm() {
        let (_, file, bytes) = InFlight::create(2, 8).unwrap();
        let open =
            |bytes, queues, entries| InFlight::open(file.try_clone().unwrap(), 0, bytes, queues, entries);
        assert!(open(bytes - 1, 2, 8).is_err() && open(bytes, 0, 8).is_err() && open(bytes, 2, 0).is_err());
        assert!(open(1 << 40, 2000, 2000).is_err(), "it is longer than its file");
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; bytes as usize], 0).unwrap();
        let hostile = again(&file, bytes);
        // 255 is not 1: nothing is under way, and the last batch is none.
        assert_eq!(hostile.take_up(0, 8, 3), (vec![], 0));
    }
}
