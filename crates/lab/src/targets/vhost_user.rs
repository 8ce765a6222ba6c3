//! A disk that a vhost-user-blk back-end serves, as a virtual machine sees it: a front-end, memory that both share, and one queue with a
//! driver (virtio 1.2, section 2.7). No guest runs, so what is measured is the back-end and what lies behind it.
//!
//! The driver does as Linux's does: it kicks and is called by event indices where the back-end has them, and gives all that was
//! submitted in one go.

use crate::engine::{Completion, Kind, Operation, Target, TargetError};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_RO, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The feature by which both agree on more of vhost-user (vhost-user protocol, "Feature negotiation").
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The queue that is used.
const QUEUE: usize = 0;
/// The most entries of a queue that back-ends take, by virtio and by QEMU.
const ENTRIES_MAX: u32 = 1024;
/// A request is a header, its data and its status.
const PIECES: u32 = 3;
const SECTOR_BYTES: u64 = 512;
/// Where the memory is, to the device. Not 0, which is nothing's address to some.
const MEMORY_AT: u64 = 1 << 30;
const PAGE_BYTES: u64 = 4096;
/// Of each slot: its header, and behind that its status.
const HEAD_BYTES: u64 = 32;
const STATUS_AT: u64 = 16;
/// What a status is before the device says one.
const NO_STATUS: u8 = 0xff;

/// Where everything is in the memory, from its beginning.
#[derive(Clone, Copy, Debug)]
struct Layout {
    entries: u16,
    available: u64,
    used: u64,
    heads: u64,
    data: u64,
    /// Of each slot.
    data_bytes: u64,
    bytes: u64,
}

impl Layout {
    fn new(depth: u32, block_bytes: u32) -> Option<Layout> {
        let entries =
            depth.checked_mul(PIECES)?.checked_next_power_of_two().filter(|all| *all <= ENTRIES_MAX)?;
        let page = |at: u64| at.next_multiple_of(PAGE_BYTES);
        let (wide, depth) = (u64::from(entries), u64::from(depth));
        let available = page(16 * wide);
        let used = page(available + 6 + 2 * wide);
        let heads = page(used + 6 + 8 * wide);
        let (data, data_bytes) = (page(heads + HEAD_BYTES * depth), page(block_bytes.into()));
        let bytes = data + data_bytes * depth;
        Some(Layout { entries: entries as u16, available, used, heads, data, data_bytes, bytes })
    }
}

/// Whether the other side wants to be told that an index went from `before` to `after`, if it wants to hear of the one behind `event`
/// (virtio 1.2, section 2.7.7.1).
fn is_wanted(event: u16, after: u16, before: u16) -> bool {
    after.wrapping_sub(event).wrapping_sub(1) < after.wrapping_sub(before)
}

/// See the module's documentation.
pub struct VhostUserTarget {
    name: String,
    // The back-end stops when it is gone.
    _frontend: Frontend,
    memory: GuestMemoryMmap,
    layout: Layout,
    kick: EventFd,
    _call: EventFd,
    /// Tells of each call: what the eventfd counts need not be read.
    calls: Poll,
    called: Events,
    has_events: bool,
    bytes: u64,
    /// What comes next in the available ring, and what the device was told of.
    offered: (u16, u16),
    /// What comes next in the used ring.
    taken: u16,
    buffers: Vec<Box<[u8]>>,
    in_flight: Vec<Option<Operation>>,
}

impl VhostUserTarget {
    /// Connects to the back-end that listens on a socket, with `depth` slots of `block_bytes`.
    ///
    /// # Errors
    /// Nobody listens there, somebody is connected already, it is no disk, or depth and block do not fit its queues.
    pub fn connect(socket: &Path, depth: u32, block_bytes: u32) -> Result<VhostUserTarget, TargetError> {
        let name = format!("vhost-user:{}", socket.display());
        let failed = |what: &str, why: &dyn std::fmt::Display| TargetError(format!("{name}: {what}: {why}"));
        let layout = Layout::new(depth, block_bytes).ok_or_else(|| {
            TargetError(format!(
                "{name}: a queue has room for a depth of {}; lower --iodepth",
                ENTRIES_MAX / PIECES
            ))
        })?;
        let file: File = memfd_create("millpond-bench", MFdFlags::MFD_CLOEXEC)
            .map_err(|error| failed("no memory can be shared", &error))?
            .into();
        file.set_len(layout.bytes).map_err(|error| failed("no memory can be shared", &error))?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: MEMORY_AT,
            memory_size: layout.bytes,
            userspace_addr: MEMORY_AT,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        let range = (GuestAddress(MEMORY_AT), layout.bytes as usize, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range])
            .map_err(|error| failed("its memory cannot be had", &error))?;
        let eventfd = || EventFd::new(EFD_NONBLOCK).map_err(|error| failed("eventfd", &error));
        let (kick, call) = (eventfd()?, eventfd()?);
        let mut frontend = Frontend::connect(socket, 1).map_err(|error| failed("cannot connect", &error))?;
        let agreed = agree(&mut frontend, region, &layout, &kick, &call);
        let (features, bytes) =
            agreed.map_err(|error| failed("the back-end does not do what a disk's does", &error))?;
        let calls = Poll::new().map_err(|error| failed("epoll", &error))?;
        let called =
            calls.registry().register(&mut SourceFd(&call.as_raw_fd()), Token(0), Interest::READABLE);
        called.map_err(|error| failed("epoll", &error))?;
        let mut target = VhostUserTarget {
            name,
            _frontend: frontend,
            memory,
            layout,
            kick,
            _call: call,
            calls,
            called: Events::with_capacity(1),
            has_events: features & 1 << VIRTIO_RING_F_EVENT_IDX != 0,
            bytes,
            offered: (0, 0),
            taken: 0,
            buffers: (0..depth).map(|_| vec![0; block_bytes as usize].into_boxed_slice()).collect(),
            in_flight: vec![None; depth as usize],
        };
        for slot in 0..depth {
            target.describe(slot).map_err(|error| target.broken(error))?;
        }
        Ok(target)
    }

    fn broken(&self, what: impl std::fmt::Display) -> TargetError {
        TargetError(format!("{}: {what}", self.name))
    }

    fn head_at(&self, slot: u32) -> u64 {
        self.layout.heads + HEAD_BYTES * u64::from(slot)
    }

    fn data_at(&self, slot: u32) -> u64 {
        self.layout.data + self.layout.data_bytes * u64::from(slot)
    }

    /// Writes what of a slot's chain stays the same.
    fn describe(&mut self, slot: u32) -> Result<(), vm_memory::GuestMemoryError> {
        let first = slot * PIECES;
        let (head, next) = (self.head_at(slot), VRING_DESC_F_NEXT as u16);
        self.put_descriptor(first, head, 16, next, first + 1)?;
        self.put_descriptor(first + 2, head + STATUS_AT, 1, VRING_DESC_F_WRITE as u16, 0)
    }

    fn put_descriptor(
        &mut self,
        index: u32,
        at: u64,
        length: u32,
        flags: u16,
        next: u32,
    ) -> Result<(), vm_memory::GuestMemoryError> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(MEMORY_AT + at).to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&(next as u16).to_le_bytes());
        self.memory.write_slice(&bytes, GuestAddress(MEMORY_AT + 16 * u64::from(index)))
    }

    fn load(&self, at: u64, order: Ordering) -> Result<u16, TargetError> {
        let number: u16 =
            self.memory.load(GuestAddress(MEMORY_AT + at), order).map_err(|error| self.broken(error))?;
        Ok(u16::from_le(number))
    }

    fn store(&self, at: u64, number: u16, order: Ordering) -> Result<(), TargetError> {
        let stored = self.memory.store(number.to_le(), GuestAddress(MEMORY_AT + at), order);
        stored.map_err(|error| self.broken(error))
    }

    /// Has the device see what was submitted, and tells it if it waits.
    fn offer(&mut self) -> Result<(), TargetError> {
        let (next, told) = self.offered;
        if next == told {
            return Ok(());
        }
        self.store(self.layout.available + 2, next, Ordering::Release)?;
        self.offered.1 = next;
        // What the device wishes is looked at after it can see that: it looks in the other order.
        fence(Ordering::SeqCst);
        let is_to_be_kicked = match self.has_events {
            true => {
                let event_at = self.layout.used + 4 + 8 * u64::from(self.layout.entries);
                is_wanted(self.load(event_at, Ordering::Acquire)?, next, told)
            }
            false => self.load(self.layout.used, Ordering::Acquire)? & 1 == 0,
        };
        if is_to_be_kicked {
            self.kick.write(1).map_err(|error| self.broken(error))?;
        }
        Ok(())
    }

    /// Takes what ended.
    fn take(&mut self, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        let end = self.load(self.layout.used + 2, Ordering::Acquire)?;
        while self.taken != end {
            let place = u64::from(self.taken % self.layout.entries);
            let at = GuestAddress(MEMORY_AT + self.layout.used + 4 + 8 * place);
            let head: u32 = self.memory.read_obj(at).map_err(|error| self.broken(error))?;
            self.taken = self.taken.wrapping_add(1);
            let slot = u32::from_le(head) / PIECES;
            let operation = self.in_flight.get_mut(slot as usize).and_then(Option::take);
            let operation = operation.ok_or_else(|| self.broken("a request ended that was not begun"))?;
            completions.push(Completion { slot, result: self.result_of(&operation)? });
        }
        Ok(())
    }

    /// What came of an operation, whose data is put where it belongs.
    fn result_of(&mut self, operation: &Operation) -> Result<Result<(), String>, TargetError> {
        let Operation { slot, kind, offset, length } = *operation;
        let status_at = GuestAddress(MEMORY_AT + self.head_at(slot) + STATUS_AT);
        let status: u8 = self.memory.read_obj(status_at).map_err(|error| self.broken(error))?;
        if u32::from(status) == VIRTIO_BLK_S_OK {
            if kind == Kind::Read {
                let at = GuestAddress(MEMORY_AT + self.data_at(slot));
                let into = &mut self.buffers[slot as usize][..length as usize];
                let read = self.memory.read_slice(into, at);
                read.map_err(|error| self.broken(error))?;
            }
            return Ok(Ok(()));
        }
        let what = match u32::from(status) {
            VIRTIO_BLK_S_IOERR => "an error of the disk, whose log says which".to_owned(),
            VIRTIO_BLK_S_UNSUPP => "the disk does not do that".to_owned(),
            _ => format!("status {status}, which means nothing"),
        };
        Ok(Err(format!("{}: offset {offset}: {what}", self.name)))
    }

    /// Says that it wants to hear of what ends next. Answers whether something has ended already.
    fn wishes_to_be_called(&self) -> Result<bool, TargetError> {
        if self.has_events {
            let event_at = self.layout.available + 4 + 2 * u64::from(self.layout.entries);
            self.store(event_at, self.taken, Ordering::Release)?;
        }
        // As in `offer`, the other way round.
        fence(Ordering::SeqCst);
        Ok(self.load(self.layout.used + 2, Ordering::Acquire)? != self.taken)
    }
}

/// Agrees with a back-end on everything, and starts its queue. Answers which features it has, and the bytes of its disk.
fn agree(
    frontend: &mut Frontend,
    region: VhostUserMemoryRegionInfo,
    layout: &Layout,
    kick: &EventFd,
    call: &EventFd,
) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    frontend.set_owner()?;
    let offered = frontend.get_features()?;
    if offered & PROTOCOL_FEATURES == 0 {
        return Err("it does not tell what its disk is like".into());
    }
    let protocol = frontend.get_protocol_features()?;
    if !protocol.contains(VhostUserProtocolFeatures::CONFIG) {
        return Err("it does not tell what its disk is like".into());
    }
    frontend.set_protocol_features(
        protocol & (VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ),
    )?;
    let wanted =
        PROTOCOL_FEATURES | 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_BLK_F_RO;
    let features = offered & wanted;
    frontend.set_features(features)?;
    let (_, told) = frontend.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8])?;
    let sectors = u64::from_le_bytes(told.try_into().map_err(|_| "its configuration is too short")?);
    frontend.set_mem_table(&[region])?;
    frontend.set_vring_num(QUEUE, layout.entries)?;
    frontend.set_vring_base(QUEUE, 0)?;
    let places = VringConfigData {
        queue_max_size: layout.entries,
        queue_size: layout.entries,
        flags: 0,
        desc_table_addr: MEMORY_AT,
        used_ring_addr: MEMORY_AT + layout.used,
        avail_ring_addr: MEMORY_AT + layout.available,
        log_addr: None,
    };
    frontend.set_vring_addr(QUEUE, &places)?;
    frontend.set_vring_kick(QUEUE, kick)?;
    frontend.set_vring_call(QUEUE, call)?;
    frontend.set_vring_enable(QUEUE, true)?;
    Ok((features, sectors * SECTOR_BYTES))
}

impl Target for VhostUserTarget {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn alignment_bytes(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    fn data_mut(&mut self, slot: u32) -> &mut [u8] {
        &mut self.buffers[slot as usize]
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        let Operation { slot, kind, offset, length } = operation;
        let (code, flags) = match kind {
            Kind::Read => (VIRTIO_BLK_T_IN, VRING_DESC_F_WRITE | VRING_DESC_F_NEXT),
            Kind::Write => (VIRTIO_BLK_T_OUT, VRING_DESC_F_NEXT),
        };
        let (head_at, data_at, first) = (self.head_at(slot), self.data_at(slot), slot * PIECES);
        let mut head = [0; STATUS_AT as usize + 1];
        head[..4].copy_from_slice(&code.to_le_bytes());
        head[8..16].copy_from_slice(&(offset / SECTOR_BYTES).to_le_bytes());
        head[STATUS_AT as usize] = NO_STATUS;
        let put = |bytes: &[u8], at: u64| {
            let written = self.memory.write_slice(bytes, GuestAddress(MEMORY_AT + at));
            written.map_err(|error| self.broken(error))
        };
        put(&head, head_at)?;
        if kind == Kind::Write {
            put(&self.buffers[slot as usize][..length as usize], data_at)?;
        }
        let described = self.put_descriptor(first + 1, data_at, length, flags as u16, first + 2);
        described.map_err(|error| self.broken(error))?;
        let place = u64::from(self.offered.0 % self.layout.entries);
        self.store(self.layout.available + 4 + 2 * place, first as u16, Ordering::Relaxed)?;
        self.offered.0 = self.offered.0.wrapping_add(1);
        self.in_flight[slot as usize] = Some(operation);
        Ok(())
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        let deadline = Instant::now() + limit;
        self.offer()?;
        loop {
            self.take(completions)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if !completions.is_empty() || left.is_zero() {
                return Ok(());
            }
            if self.wishes_to_be_called()? {
                continue;
            }
            match self.calls.poll(&mut self.called, Some(left)) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(self.broken(format!("cannot wait for the disk: {error}")));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::engine::cpu::Monitor;
    use crate::engine::plan::{Job, Mode, TargetName};
    use crate::engine::run;
    use base::units::ByteSize;
    use std::ops::ControlFlow;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use testkit::prerequisites::installed;
    use testkit::wait_until;

    #[test]
    fn parts_of_the_memory_do_not_overlap_and_too_deep_a_queue_is_refused() {
        for (depth, block) in [(1, 512), (64, 4096), (341, 1 << 20)] {
            let layout = Layout::new(depth, block).unwrap();
            let entries = u64::from(layout.entries);
            assert!(entries >= u64::from(3 * depth) && entries.is_power_of_two());
            assert!(layout.available >= 16 * entries && layout.used >= layout.available + 6 + 2 * entries);
            assert!(layout.heads >= layout.used + 6 + 8 * entries);
            assert!(layout.data >= layout.heads + HEAD_BYTES * u64::from(depth));
            assert!(layout.bytes >= layout.data + u64::from(depth) * u64::from(block));
        }
        assert!(Layout::new(342, 4096).is_none() && Layout::new(u32::MAX, 4096).is_none());
    }

    #[test]
    fn who_waits_for_an_index_is_told_when_it_is_passed() {
        for (event, after, before, is_told) in [
            (5, 6, 5, true),
            (5, 9, 3, true),
            (5, 5, 3, false),
            (9, 6, 5, false),
            (u16::MAX, 0, u16::MAX, true),
        ] {
            assert_eq!(is_wanted(event, after, before), is_told, "{event} {after} {before}");
        }
    }

    /// Somebody else's back-end over a file.
    struct BackEnd {
        process: Child,
        directory: tempfile::TempDir,
    }

    impl BackEnd {
        fn start(test: &str) -> Option<BackEnd> {
            if !installed(test, &["qemu-storage-daemon"]) {
                return None;
            }
            let directory = tempfile::tempdir().unwrap();
            let (file, socket) = (directory.path().join("disk"), directory.path().join("socket"));
            File::create(&file).unwrap().set_len(8 << 20).unwrap();
            let process = Command::new("qemu-storage-daemon")
                .arg("--blockdev")
                .arg(format!("driver=file,node-name=disk,filename={}", file.display()))
                .arg("--export")
                .arg(format!(
                    "type=vhost-user-blk,id=export,node-name=disk,writable=on,addr.type=unix,addr.path={}",
                    socket.display()
                ))
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            wait_until("the back-end listens", || socket.exists());
            Some(BackEnd { process, directory })
        }

        fn socket(&self) -> PathBuf {
            self.directory.path().join("socket")
        }
    }

    impl Drop for BackEnd {
        fn drop(&mut self) {
            self.process.kill().ok();
            self.process.wait().ok();
        }
    }

    #[test]
    fn the_disk_of_another_s_back_end_is_written_and_read() {
        let Some(back_end) = BackEnd::start("a vhost-user disk") else { return };
        let mut target = VhostUserTarget::connect(&back_end.socket(), 4, 8192).unwrap();
        assert_eq!((target.bytes(), target.alignment_bytes()), (8 << 20, 512));
        let done = |target: &mut VhostUserTarget, count: usize| {
            let mut completions = Vec::new();
            while completions.len() < count {
                target.wait(Duration::from_secs(5), &mut completions).unwrap();
            }
            completions.sort_unstable_by_key(|completion| completion.slot);
            completions
        };
        for slot in 0..4 {
            target.data_mut(slot).fill(slot as u8 + 1);
            let offset = u64::from(slot) * 8192;
            target.submit(Operation { slot, kind: Kind::Write, offset, length: 8192 }).unwrap();
        }
        assert!(done(&mut target, 4).iter().all(|completion| completion.result == Ok(())));
        let mut found = vec![0; 4 * 8192];
        File::open(back_end.directory.path().join("disk")).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert!(found.chunks(8192).zip(1..).all(|(block, number)| block.iter().all(|byte| *byte == number)));
        target.data_mut(0).fill(0);
        target.submit(Operation { slot: 0, kind: Kind::Read, offset: 3 * 8192 + 512, length: 512 }).unwrap();
        // Beyond its end.
        target.submit(Operation { slot: 1, kind: Kind::Read, offset: 8 << 20, length: 512 }).unwrap();
        let ended = done(&mut target, 2);
        assert_eq!(ended[0].result, Ok(()));
        assert!(target.data_mut(0)[..512].iter().all(|byte| *byte == 4) && target.data_mut(0)[512] == 0);
        assert!(ended[1].result.as_ref().is_err_and(|error| error.contains("offset 8388608")));
    }

    #[test]
    fn a_job_runs_on_it() {
        let Some(back_end) = BackEnd::start("a job on a vhost-user disk") else { return };
        let job = Job {
            block: ByteSize(4096),
            depth: 32,
            runtime: None,
            io_size: Some(16 << 20),
            mix_read_percent: 50,
            ..Job::new(TargetName::VhostUser(back_end.socket()), Mode::RandomReadWrite)
        };
        let mut target = VhostUserTarget::connect(&back_end.socket(), job.depth, 4096).unwrap();
        let measured =
            run(&mut target, &job, &Monitor::new(Vec::new()), |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((measured.errors, measured.reads.count() + measured.writes.count()), (0, 4096));
    }

    #[test]
    fn nobody_there_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let error = VhostUserTarget::connect(&directory.path().join("socket"), 1, 4096).err().unwrap();
        assert!(error.to_string().contains("cannot connect"), "{error}");
    }
}
