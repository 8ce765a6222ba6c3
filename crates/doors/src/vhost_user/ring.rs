//! A ring (virtqueue) of a guest's driver, as far as it is not about disks: where it is, whether it runs, what of it is under way.

use super::chain::Table;
use super::dirty::DirtyLog;
use super::in_flight::InFlight;
use super::memory::Memory;
use ring::WatchId;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The most entries that a ring may have.
pub(super) const ENTRIES_MAX: u16 = 1024;
/// A used ring begins with its flags and its index; an entry is a head and a length. In bytes.
const USED_HEADER_BYTES: u64 = 4;
const USED_ENTRY_BYTES: u64 = 8;
/// What tells a driver that something ended.
const ONE: [u8; 8] = 1u64.to_ne_bytes();

/// Where the parts of a ring are, by the front-end's addresses, and where its used ring is noted when it is written to, by the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    pub(super) log: Option<u64>,
}

/// Whether requests are taken from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Stopped,
    Running,
    /// Its driver broke the rules: nothing is taken any more before it is stopped and started.
    Broken,
}

/// See the module's documentation.
pub(super) struct Ring {
    /// Its number among the device's.
    index: u16,
    queue: Queue,
    stage: Stage,
    addresses: Option<Addresses>,
    /// The driver's notice that there is something; it starts the ring.
    pub(super) kick: Option<WatchId>,
    call: Option<File>,
    error: Option<File>,
    pub(super) is_enabled: bool,
    /// Requests taken that have not ended.
    under_way: u16,
    /// In which order requests are taken.
    counter: u64,
    /// Requests of a back-end that died, which come before all others.
    left: Vec<u16>,
    /// Something ended, and the driver was not told.
    has_news: bool,
    /// Something may be there to be taken.
    pub(super) is_due: bool,
    /// That all of its used ring was written to was noted, since its writes are.
    is_noted: bool,
}

/// What a driver did that it may not.
#[derive(thiserror::Error, Debug)]
#[error("the driver of ring {ring} broke the rules: {reason}")]
pub(super) struct Misuse {
    ring: u16,
    reason: String,
}

impl Ring {
    pub(super) fn new(index: u16) -> Ring {
        Ring {
            index,
            queue: Queue::new(ENTRIES_MAX).expect("it is a power of two"),
            stage: Stage::Stopped,
            addresses: None,
            kick: None,
            call: None,
            error: None,
            is_enabled: false,
            under_way: 0,
            counter: 0,
            left: Vec::new(),
            has_news: false,
            is_due: false,
            is_noted: false,
        }
    }

    /// Sets how many entries it has. `false` if it cannot have so many, or now.
    pub(super) fn set_entries(&mut self, entries: u32) -> bool {
        let entries = u16::try_from(entries).unwrap_or(0);
        self.stage == Stage::Stopped && self.queue.try_set_size(entries).is_ok()
    }

    /// Sets where it is. One that runs stays where it is, and may begin or end being noted. `false` if it cannot be there.
    pub(super) fn set_addresses(&mut self, addresses: Addresses) -> bool {
        let here = self.addresses.map(|here| Addresses { log: addresses.log, ..here });
        if self.stage != Stage::Stopped && here != Some(addresses) {
            return false;
        }
        self.is_noted &= addresses.log.is_some();
        self.addresses = Some(addresses);
        true
    }

    /// Sets which entry of its available ring comes next. `false` while it runs.
    pub(super) fn set_base(&mut self, base: u32) -> bool {
        let Ok(base) = u16::try_from(base) else { return false };
        if self.stage != Stage::Stopped {
            return false;
        }
        self.queue.set_next_avail(base);
        self.queue.set_next_used(base);
        true
    }

    /// Sets whom to tell of what ended. What ended while nobody was told of it is told now.
    pub(super) fn set_call(&mut self, call: Option<File>) {
        self.call = call;
        self.signal(self.call.as_ref());
    }

    /// Sets whom to tell of a driver that breaks the rules.
    pub(super) fn set_error(&mut self, error: Option<File>) {
        self.error = error;
    }

    pub(super) fn is_running(&self) -> bool {
        self.stage == Stage::Running
    }

    /// Whether it was stopped, and nothing of it is under way.
    pub(super) fn rests(&self) -> bool {
        self.stage == Stage::Stopped && self.under_way == 0 && self.left.is_empty()
    }

    /// Starts it, if all is there that it needs.
    ///
    /// # Errors
    /// It is not where it was said to be.
    pub(super) fn start(
        &mut self,
        memory: &Memory,
        has_event_index: bool,
        in_flight: Option<&InFlight>,
    ) -> Result<(), Misuse> {
        let (Stage::Stopped, Some(_), Some(addresses)) = (self.stage, self.kick, self.addresses) else {
            return Ok(());
        };
        let index = self.index;
        let misuse = |reason: &str| Misuse { ring: index, reason: reason.to_owned() };
        let places = [addresses.descriptors, addresses.available, addresses.used];
        let found = places.map(|place| memory.guest_address(place));
        let [Some(descriptors), Some(available), Some(used)] = found else {
            return Err(misuse("it is outside of the memory that is shared"));
        };
        let queue = &mut self.queue;
        let is_aligned = queue.try_set_desc_table_address(descriptors).is_ok()
            && queue.try_set_avail_ring_address(available).is_ok()
            && queue.try_set_used_ring_address(used).is_ok();
        if !is_aligned {
            return Err(misuse("its parts are not aligned"));
        }
        queue.set_event_idx(has_event_index);
        queue.set_ready(true);
        if !queue.is_valid(memory.guest()) {
            queue.set_ready(false);
            return Err(misuse("it is outside of the memory that is shared"));
        }
        // The used ring says how far a back-end got that died; one that ended well says the same by the base.
        let used_index = queue.used_idx(memory.guest(), Ordering::Acquire);
        let used_index = used_index.map_err(|_| misuse("it is outside of the memory that is shared"))?.0;
        let entries = queue.size();
        if let Some(in_flight) = in_flight {
            if !in_flight.has(self.index, entries) {
                queue.set_ready(false);
                return Err(misuse("it is larger than what requests under way are noted in"));
            }
            let (mut left, counter) = in_flight.take_up(self.index, entries, used_index);
            queue.set_next_avail(used_index.wrapping_add(left.len() as u16));
            left.reverse();
            (self.left, self.counter) = (left, counter);
        }
        queue.set_next_used(used_index);
        self.stage = Stage::Running;
        self.is_due = true;
        Ok(())
    }

    /// Takes no more from its available ring. What is under way ends, and what a back-end that died had taken is done before: whoever
    /// goes on with the ring elsewhere does not find that.
    pub(super) fn stop(&mut self) {
        self.stage = Stage::Stopped;
        self.queue.set_ready(false);
        self.is_due = !self.left.is_empty();
    }

    /// Which entry of the available ring comes next.
    pub(super) fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    /// It is a ring of nobody again.
    pub(super) fn forget(&mut self) {
        *self = Ring::new(self.index);
    }

    /// A request that was taken is none.
    pub(super) fn gives_up(&mut self, reason: &str) -> Misuse {
        self.under_way -= 1;
        self.misuse(reason)
    }

    /// Takes the next request, if there is one; its driver tells of further ones. The answer is its first descriptor.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub(super) fn take(
        &mut self,
        memory: &GuestMemoryMmap,
        in_flight: Option<&InFlight>,
        log: Option<&DirtyLog>,
    ) -> Result<Option<u16>, Misuse> {
        let entries = self.queue.size();
        let goes_on = match self.stage {
            Stage::Running => self.is_enabled,
            Stage::Stopped => !self.left.is_empty(),
            Stage::Broken => false,
        };
        // When one of many ends it is looked at again.
        if !goes_on || self.under_way >= entries {
            return Ok(None);
        }
        let head = match self.left.pop() {
            // It is noted still, by its number in the order of then.
            Some(head) => head,
            None => {
                let next = self.next_available(memory, log).map_err(|reason| self.misuse(reason))?;
                let Some(head) = next else { return Ok(None) };
                if head >= entries {
                    return Err(
                        self.misuse(format!("it has {entries} descriptors, and a request begins at {head}"))
                    );
                }
                if let Some(in_flight) = in_flight {
                    in_flight.begin(self.index, head, self.counter);
                }
                self.counter = self.counter.wrapping_add(1);
                head
            }
        };
        self.under_way += 1;
        Ok(Some(head))
    }

    fn misuse(&self, reason: impl Into<String>) -> Misuse {
        Misuse { ring: self.index, reason: reason.into() }
    }

    /// Takes the next entry of the available ring. Where there is none its driver is asked to tell of the next.
    fn next_available(
        &mut self,
        memory: &GuestMemoryMmap,
        log: Option<&DirtyLog>,
    ) -> Result<Option<u16>, String> {
        let noted = log.zip(self.addresses.and_then(|addresses| addresses.log));
        let queue = &mut self.queue;
        for _ in 0..2 {
            let next = queue.iter(memory).map_err(|error| error.to_string())?.next();
            if let Some(chain) = next {
                return Ok(Some(chain.head_index()));
            }
            if let Some((log, at)) = noted {
                // Where it is said from which entry on the driver tells, and flags that say the same.
                log.mark(at.wrapping_add(USED_HEADER_BYTES + USED_ENTRY_BYTES * u64::from(queue.size())), 2);
                log.mark(at, 2);
            }
            if !queue.enable_notification(memory).map_err(|error| error.to_string())? {
                return Ok(None);
            }
            // One came meanwhile.
        }
        Err("its available ring cannot be read".to_owned())
    }

    /// Where its descriptors are.
    pub(super) fn table(&self) -> Table {
        Table { address: GuestAddress(self.queue.desc_table()), entries: u32::from(self.queue.size()) }
    }

    /// Tells the driver that a request ended, for which `length` bytes of its memory were written.
    ///
    /// # Errors
    /// The ring is not there any more.
    pub(super) fn end(
        &mut self,
        head: u16,
        length: u32,
        memory: &GuestMemoryMmap,
        in_flight: Option<&InFlight>,
        log: Option<&DirtyLog>,
    ) -> Result<(), Misuse> {
        self.under_way -= 1;
        self.is_due |= self.is_running();
        if let Some(in_flight) = in_flight {
            in_flight.ending(self.index, head);
        }
        let slot = u64::from(self.queue.next_used() % self.queue.size());
        let put = self.queue.add_used(memory, head, length);
        put.map_err(|error| Misuse { ring: self.index, reason: error.to_string() })?;
        if let Some(in_flight) = in_flight {
            in_flight.ended(self.index, head, self.queue.next_used());
        }
        if let (Some(log), Some(at)) = (log, self.addresses.and_then(|addresses| addresses.log)) {
            // A back-end that died may have written to it, and not have come to noting that.
            if !std::mem::replace(&mut self.is_noted, true) {
                log.mark(at, USED_HEADER_BYTES + USED_ENTRY_BYTES * u64::from(self.queue.size()));
            }
            // Flags and index, and the entry.
            log.mark(at, USED_HEADER_BYTES);
            log.mark(at.wrapping_add(USED_HEADER_BYTES + USED_ENTRY_BYTES * slot), USED_ENTRY_BYTES);
        }
        self.has_news = true;
        Ok(())
    }

    /// Tells the driver that something ended, if it wants to know.
    pub(super) fn tell(&mut self, memory: &GuestMemoryMmap) {
        if std::mem::take(&mut self.has_news) && self.queue.needs_notification(memory).unwrap_or(true) {
            self.signal(self.call.as_ref());
        }
    }

    /// Takes nothing more from it, and says so.
    pub(super) fn breaks(&mut self) {
        if self.is_running() {
            self.stage = Stage::Broken;
        }
        self.left.clear();
        self.is_due = false;
        self.signal(self.error.as_ref());
    }

    fn signal(&self, eventfd: Option<&File>) {
        if let Some(mut eventfd) = eventfd {
            // It fails only when the counter is full, and then whoever reads it is told already.
            let _ = eventfd.write(&ONE);
        }
    }
}

/// An eventfd that a front-end sent, which is written to without waiting.
///
/// # Errors
/// It is something else.
pub(super) fn eventfd(file: File) -> std::io::Result<OwnedFd> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let descriptor = OwnedFd::from(file);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    if std::fs::read_link(path)?.to_str() != Some("anon_inode:[eventfd]") {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "what was sent is no eventfd"));
    }
    let flags = OFlag::from_bits_retain(fcntl(&descriptor, FcntlArg::F_GETFL)?);
    fcntl(&descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(descriptor)
}
