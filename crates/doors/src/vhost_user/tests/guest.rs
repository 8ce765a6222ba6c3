//! A front-end and its guest: two rings of eight entries in shared memory, and a driver that puts into them what a test wants.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use testkit::wait_until;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(super) const ENTRIES: u16 = 8;
pub(super) const QUEUES: u16 = 2;
/// Where the guest's memory begins, and how long it is.
pub(super) const MEMORY_AT: u64 = 1 << 30;
pub(super) const MEMORY_BYTES: u64 = 8 << 20;
/// Where the front-end has it.
pub(super) const USER_AT: u64 = 0x7f00_0000_0000;
/// Of each ring, from the beginning of the memory.
const RING_BYTES: u64 = 0x3000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Where requests' headers, data and statuses are.
pub(super) const DATA: u64 = 0x10_0000;

pub(super) const IN: u32 = 0;
pub(super) const OUT: u32 = 1;

/// A descriptor, by offsets in the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) length: u32,
    pub(super) is_writable: bool,
}

/// A request as a driver cuts it.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain(pub(super) Vec<Piece>);

impl Chain {
    pub(super) fn readable(mut self, at: u64, length: u32) -> Chain {
        self.0.push(Piece { at, length, is_writable: false });
        self
    }

    pub(super) fn writable(mut self, at: u64, length: u32) -> Chain {
        self.0.push(Piece { at, length, is_writable: true });
        self
    }
}

/// See the module's documentation.
pub(super) struct Guest {
    pub(super) memory: File,
    pub(super) frontend: Option<Frontend>,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    errors: Vec<EventFd>,
    /// What comes next in the available ring and in the used ring.
    next: Vec<(u16, u16)>,
    in_flight: Option<(VhostUserInflight, File)>,
    pub(super) features: u64,
    /// Whether rings are served from their start on.
    pub(super) connects_enabled: bool,
}

fn eventfds() -> Vec<EventFd> {
    (0..QUEUES).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect()
}

impl Guest {
    pub(super) fn new() -> Guest {
        let memory = tempfile::tempfile().unwrap();
        memory.set_len(MEMORY_BYTES).unwrap();
        Guest {
            memory,
            frontend: None,
            kicks: eventfds(),
            calls: eventfds(),
            errors: eventfds(),
            next: vec![(0, 0); usize::from(QUEUES)],
            in_flight: None,
            features: !(1 << 26),
            connects_enabled: true,
        }
    }

    pub(super) fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: MEMORY_AT,
            memory_size: MEMORY_BYTES,
            userspace_addr: USER_AT,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        }
    }

    /// Connects, and agrees on everything.
    pub(super) fn greet(&mut self, socket: &Path) {
        let frontend = Frontend::connect(socket, QUEUES.into()).unwrap();
        self.frontend = Some(frontend);
        let (wanted, frontend) = (self.features, self.front());
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features & wanted).unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD | VhostUserProtocolFeatures::MQ));
        let region = self.region();
        self.front().set_mem_table(&[region]).unwrap();
    }

    pub(super) fn front(&mut self) -> &mut Frontend {
        self.frontend.as_mut().unwrap()
    }

    pub(super) fn ring(&self, queue: u16, log: bool) -> VringConfigData {
        let at = USER_AT + RING_BYTES * u64::from(queue);
        VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: u32::from(log),
            desc_table_addr: at,
            used_ring_addr: at + USED,
            avail_ring_addr: at + AVAILABLE,
            log_addr: log.then_some(MEMORY_AT + RING_BYTES * u64::from(queue) + USED),
        }
    }

    /// Connects and starts all rings, as a hypervisor does after its back-end died: it knows of requests under way what their ring
    /// says, and gives the memory in which they are noted.
    pub(super) fn connect(&mut self, socket: &Path) {
        self.greet(socket);
        match self.in_flight.take() {
            None => {
                let wanted = VhostUserInflight::new(0, 0, QUEUES, ENTRIES);
                self.in_flight = Some(self.front().get_inflight_fd(&wanted).unwrap());
            }
            Some((place, file)) => {
                self.front().set_inflight_fd(&place, file.as_raw_fd()).unwrap();
                self.in_flight = Some((place, file));
            }
        }
        (0..QUEUES).for_each(|queue| self.start(queue));
    }

    /// The front-end is gone.
    pub(super) fn hang_up(&mut self) {
        self.frontend = None;
    }

    pub(super) fn start(&mut self, queue: u16) {
        let (index, ring) = (usize::from(queue), self.ring(queue, false));
        let used_index = self.used_index(queue);
        let (kick, call, error) = (&self.kicks[index], &self.calls[index], &self.errors[index]);
        let frontend = self.frontend.as_mut().unwrap();
        frontend.set_vring_num(index, ENTRIES).unwrap();
        frontend.set_vring_base(index, used_index).unwrap();
        frontend.set_vring_addr(index, &ring).unwrap();
        frontend.set_vring_err(index, error).unwrap();
        frontend.set_vring_kick(index, kick).unwrap();
        frontend.set_vring_call(index, call).unwrap();
        frontend.set_vring_enable(index, self.connects_enabled).unwrap();
    }

    pub(super) fn configuration(&mut self, offset: u32, length: usize) -> Vec<u8> {
        let bytes = vec![0; length];
        let front = self.front();
        front.get_config(offset, length as u32, VhostUserConfigFlags::empty(), &bytes).unwrap().1
    }

    // Its memory.

    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    pub(super) fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn u16_at(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    pub(super) fn ring_at(queue: u16) -> u64 {
        RING_BYTES * u64::from(queue)
    }

    fn used_index(&self, queue: u16) -> u16 {
        self.u16_at(Self::ring_at(queue) + USED + 2)
    }

    pub(super) fn put_descriptor(&self, at: u64, piece: Piece, flags: u16, next: u16) {
        let flags = flags | if piece.is_writable { 2 } else { 0 };
        self.put(at, &(MEMORY_AT.wrapping_add(piece.at)).to_le_bytes());
        self.put(at + 8, &piece.length.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &next.to_le_bytes());
    }

    /// Writes a chain into a table of descriptors, from the `first` on.
    pub(super) fn put_chain(&self, table: u64, first: u16, chain: &Chain) {
        for (place, piece) in chain.0.iter().enumerate() {
            let place = first + place as u16;
            let is_last = place + 1 == first + chain.0.len() as u16;
            let flags = if is_last { 0 } else { 1 };
            self.put_descriptor(table + 16 * u64::from(place), *piece, flags, place + 1);
        }
    }

    /// Makes the request available that begins with a descriptor, and tells of it.
    pub(super) fn offer(&mut self, queue: u16, head: u16) {
        let at = Self::ring_at(queue) + AVAILABLE;
        let (next, _) = &mut self.next[usize::from(queue)];
        let slot = u64::from(*next % ENTRIES);
        *next = next.wrapping_add(1);
        let next = *next;
        self.put(at + 4 + 2 * slot, &head.to_le_bytes());
        // A driver that has agreed on it says that it wants to hear of each.
        self.put(at + 4 + 2 * u64::from(ENTRIES), &self.used_index(queue).to_le_bytes());
        self.put(at + 2, &next.to_le_bytes());
        self.kicks[usize::from(queue)].write(1).unwrap();
    }

    /// Has a request done whose chain begins at the first descriptor, and waits for it. The answer is how much of the memory was
    /// written, as the device says.
    pub(super) fn ask(&mut self, queue: u16, chain: &Chain) -> u32 {
        self.put_chain(Self::ring_at(queue), 0, chain);
        self.offer(queue, 0);
        let (head, length) = self.wait(queue);
        assert_eq!(head, 0);
        length
    }

    /// What ended next, if something has.
    pub(super) fn ended(&mut self, queue: u16) -> Option<(u16, u32)> {
        let (_, next) = self.next[usize::from(queue)];
        if self.used_index(queue) == next {
            return None;
        }
        let at = Self::ring_at(queue) + USED + 4 + 8 * u64::from(next % ENTRIES);
        self.next[usize::from(queue)].1 = next.wrapping_add(1);
        let word = |at| u32::from_le_bytes(self.get(at, 4).try_into().unwrap());
        Some((word(at) as u16, word(at + 4)))
    }

    /// Waits for the next that ends.
    pub(super) fn wait(&mut self, queue: u16) -> (u16, u32) {
        let mut found = None;
        wait_until("a request ends", || {
            found = self.ended(queue);
            found.is_some()
        });
        found.unwrap()
    }

    /// Whether the driver was told since it asked last.
    pub(super) fn is_told(&self, queue: u16) -> bool {
        self.calls[usize::from(queue)].read().is_ok()
    }

    /// Waits until it is told that the ring is broken.
    pub(super) fn wait_for_break(&self, queue: u16) {
        wait_until("the ring is broken", || self.errors[usize::from(queue)].read().is_ok());
    }

    pub(super) fn kick(&self, queue: u16) -> &EventFd {
        &self.kicks[usize::from(queue)]
    }

    // Requests.

    pub(super) fn put_header(&self, at: u64, kind: u32, sector: u64) {
        self.put(at, &kind.to_le_bytes());
        self.put(at + 4, &[0; 4]);
        self.put(at + 8, &sector.to_le_bytes());
    }

    /// A header, the data, and a status, in three pieces; the data at [`DATA`] and a page. `0xee` stands where the status will.
    pub(super) fn plain(&self, kind: u32, sector: u64, length: u32) -> Chain {
        self.put_header(DATA, kind, sector);
        self.put(DATA + 16, &[0xee]);
        let chain = Chain::default().readable(DATA, 16);
        let chain = match (length, kind) {
            (0, _) => chain,
            (_, IN | 8) => chain.writable(DATA + 4096, length),
            _ => chain.readable(DATA + 4096, length),
        };
        chain.writable(DATA + 16, 1)
    }

    /// Has such a request done; the answer is its status.
    pub(super) fn status_of(&mut self, queue: u16, kind: u32, sector: u64, length: u32) -> u8 {
        let chain = self.plain(kind, sector, length);
        self.ask(queue, &chain);
        self.get(DATA + 16, 1)[0]
    }

    /// Writes to the disk.
    pub(super) fn write(&mut self, queue: u16, sector: u64, bytes: &[u8]) {
        self.put(DATA + 4096, bytes);
        assert_eq!(self.status_of(queue, OUT, sector, bytes.len() as u32), 0);
    }

    /// Reads from the disk.
    pub(super) fn read(&mut self, queue: u16, sector: u64, length: usize) -> Vec<u8> {
        self.put(DATA + 4096, &vec![0xdd; length]);
        let chain = self.plain(IN, sector, length as u32);
        let written = self.ask(queue, &chain);
        assert_eq!((self.get(DATA + 16, 1)[0], written), (0, length as u32 + 1));
        self.get(DATA + 4096, length)
    }
}

/// Nothing ends for a while.
pub(super) fn nothing_ends(guest: &mut Guest, queue: u16) {
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(guest.ended(queue), None);
}
