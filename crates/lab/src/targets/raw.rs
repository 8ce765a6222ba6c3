//! A block device or a file as a target: direct I/O on the reactor that OSDs use, with registered memory.

use crate::engine::{Completion, Kind, Operation, Target, TargetError};
use base::{Buffer, SECTOR_BYTES};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use ring::{Event, FileId, Reactor, ReactorOptions};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What [`Target::wait`] allows a turn.
const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// Entries of the submission queue, at least and at most.
const ENTRIES: std::ops::RangeInclusive<u32> = 64..=4096;

/// A drive, or a file that stands for one.
pub struct RawTarget {
    path: PathBuf,
    bytes: u64,
    alignment_bytes: u32,
    reactor: Reactor,
    file: FileId,
    /// Absent while the slot's operation is in flight.
    buffers: Vec<Option<Buffer>>,
    events: Vec<Event>,
    /// Held while this writes, so that no OSD starts on the drive.
    _lock: Option<Flock<File>>,
}

impl RawTarget {
    /// Opens the drive at `path`, with `depth` slots of `block_bytes`. `writes` says whether it will be
    /// written to: then nobody else may use it.
    ///
    /// # Errors
    /// There is no drive, it is in use, or it takes no direct I/O.
    pub fn open(path: &Path, writes: bool, depth: u32, block_bytes: u32) -> Result<RawTarget, TargetError> {
        let failed = |what: &dyn std::fmt::Display| TargetError(format!("{}: {what}", path.display()));
        let metadata = std::fs::metadata(path).map_err(|error| {
            failed(&format!(
                "{error}; `lsblk` lists the devices of this machine, --target raw:PATH names one"
            ))
        })?;
        let is_block_device = metadata.file_type().is_block_device();
        if !is_block_device && !metadata.is_file() {
            return Err(failed(&"is neither a block device nor a file; give one of these"));
        }
        let mut file = open(path, writes, is_block_device)?;
        let bytes = file
            .seek(SeekFrom::End(0))
            .map_err(|error| failed(&format!("its size cannot be found out: {error}")))?;
        let lock = if writes { Some(lock(path, &file)?) } else { None };
        let options = ReactorOptions {
            entries: depth.next_power_of_two().clamp(*ENTRIES.start(), *ENTRIES.end()),
            connections_max: 1,
            ..ReactorOptions::default()
        };
        let mut reactor = Reactor::new(options).map_err(|error| TargetError(error.to_string()))?;
        let file = reactor.add_file(file, depth as usize).map_err(|error| failed(&error))?;
        let mut buffers: Vec<Buffer> = (0..depth).map(|_| Buffer::new(block_bytes as usize)).collect();
        reactor.register_buffers(buffers.iter_mut()).map_err(|error| {
            failed(&format!("the memory for it cannot be registered: {error}; lower --bs or --iodepth"))
        })?;
        Ok(RawTarget {
            path: path.to_owned(),
            bytes,
            alignment_bytes: alignment_bytes(&metadata),
            reactor,
            file,
            buffers: buffers.into_iter().map(Some).collect(),
            events: Vec::with_capacity(depth as usize),
            _lock: lock,
        })
    }
}

fn open(path: &Path, writes: bool, is_block_device: bool) -> Result<File, TargetError> {
    let failed = |what: &str| TargetError(format!("{}: {what}", path.display()));
    // The kernel opens a block device exclusively only where it is neither mounted nor part of another.
    let exclusive = if writes && is_block_device { OFlag::O_EXCL } else { OFlag::empty() };
    let flags = (OFlag::O_DIRECT | OFlag::O_CLOEXEC | exclusive).bits();
    let open = || OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path);
    let is_busy = |opened: &std::io::Result<File>| {
        opened.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::EBUSY as i32))
    };
    let mut opened = open();
    // The kernel lets go of what an io_uring held a moment after its process has ended.
    for _ in 0..40 {
        if !is_busy(&opened) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        opened = open();
    }
    opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EBUSY) => failed(
            "is in use: mounted, an OSD's, or part of another device, and this job would overwrite it; give \
             another device",
        ),
        Some(Errno::EINVAL) => {
            failed("its file system does not support direct I/O; use XFS or ext4, or a block device")
        }
        Some(Errno::EACCES | Errno::EPERM) => {
            failed("this user may not open it; run as root, or change its owner")
        }
        Some(Errno::EROFS) => failed("is read-only, and this job would write to it; give another device"),
        _ => failed(&format!("cannot be opened: {error}")),
    })
}

/// Takes the lock that an OSD takes on its drive.
fn lock(path: &Path, file: &File) -> Result<Flock<File>, TargetError> {
    let failed = |what: &str| TargetError(format!("{}: {what}", path.display()));
    let descriptor = file.try_clone().map_err(|error| failed(&error.to_string()))?;
    Flock::lock(descriptor, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => {
            failed("is locked, by an OSD or another benchmark, and this job would overwrite it; give another")
        }
        error => failed(&format!("cannot be locked: {error}")),
    })
}

/// The drive's logical block; a sector where that is unknown.
fn alignment_bytes(metadata: &Metadata) -> u32 {
    let sector = SECTOR_BYTES as u32;
    if !metadata.file_type().is_block_device() {
        return sector;
    }
    let number = metadata.rdev();
    let device =
        format!("/sys/dev/block/{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
    // A partition has the queue of its drive.
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| std::fs::read_to_string(format!("{device}/{queue}/logical_block_size")).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(sector)
}

impl Target for RawTarget {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn alignment_bytes(&self) -> u32 {
        self.alignment_bytes
    }

    fn data_mut(&mut self, slot: u32) -> &mut [u8] {
        let buffer = self.buffers[slot as usize].as_mut().expect("the slot has nothing in flight");
        buffer.bytes_mut().expect("the slot is its buffer's only holder")
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        let Operation { slot, kind, offset, length } = operation;
        let buffer = self.buffers[slot as usize].take().expect("the slot has nothing in flight");
        let (token, length) = (u64::from(slot), length as usize);
        match kind {
            Kind::Read => self.reactor.read(self.file, token, offset, buffer, length),
            Kind::Write => self.reactor.write(self.file, token, offset, buffer, length),
        }
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        let turned = self.reactor.turn(Some(WAIT_LIMIT), &mut self.events);
        for event in self.events.drain(..) {
            let Event::FileDone { token, buffer, result } = event else { continue };
            let slot = token as u32;
            self.buffers[slot as usize] = buffer;
            let result = result.map_err(|error| format!("{}: {error}", self.path.display()));
            completions.push(Completion { slot, result });
        }
        turned.map_err(|error| TargetError(format!("{}: io_uring failed: {error}", self.path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cpu::Monitor;
    use crate::engine::plan::{Job, TargetName};
    use crate::engine::run;
    use base::units::ByteSize;
    use std::ops::ControlFlow;

    fn drive() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        file
    }

    #[test]
    fn what_is_written_lies_where_it_belongs_and_is_read_back() {
        let drive = drive();
        let mut job = Job::prefill(TargetName::Raw(drive.path().to_owned()), 8 << 20);
        job.block = ByteSize(64 << 10);
        let mut target = RawTarget::open(drive.path(), true, job.depth, 64 << 10).unwrap();
        assert_eq!((target.bytes(), target.alignment_bytes()), (8 << 20, 512));
        let measured =
            run(&mut target, &job, &Monitor::new(Vec::new()), |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((measured.writes.count(), measured.errors), (128, 0), "{:?}", measured.first_error);
        let contents = std::fs::read(drive.path()).unwrap();
        for (index, block) in contents.chunks(4096).enumerate() {
            assert_eq!(block[..8], (index as u64 * 4096).to_le_bytes());
        }
        target.submit(Operation { slot: 3, kind: Kind::Read, offset: 12_288, length: 8192 }).unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            target.wait(&mut completions).unwrap();
        }
        assert_eq!(completions, [Completion { slot: 3, result: Ok(()) }]);
        assert!(target.data_mut(3)[..8192] == contents[12_288..20_480]);
    }

    #[test]
    fn a_failure_names_path_place_and_reason() {
        let drive = drive();
        let mut target = RawTarget::open(drive.path(), false, 1, 4096).unwrap();
        target.submit(Operation { slot: 0, kind: Kind::Read, offset: 8 << 20, length: 4096 }).unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            target.wait(&mut completions).unwrap();
        }
        let error = completions.remove(0).result.unwrap_err();
        assert!(error.contains("offset 8388608") && error.contains("/var/tmp"), "{error}");
        target.submit(Operation { slot: 0, kind: Kind::Read, offset: 0, length: 4096 }).unwrap();
    }

    #[test]
    fn what_somebody_else_uses_is_not_written_to() {
        let drive = drive();
        let held = Flock::lock(File::open(drive.path()).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        let error = RawTarget::open(drive.path(), true, 1, 4096).err().unwrap();
        assert!(error.0.contains("is locked"), "{error}");
        RawTarget::open(drive.path(), false, 1, 4096).unwrap();
        drop(held);
        RawTarget::open(drive.path(), true, 1, 4096).unwrap();
    }

    #[test]
    fn what_is_no_drive_is_named() {
        let error = RawTarget::open(Path::new("/nowhere/drive"), false, 1, 4096).err().unwrap();
        assert!(error.0.contains("/nowhere/drive") && error.0.contains("lsblk"), "{error}");
        let error = RawTarget::open(Path::new("/dev/null"), false, 1, 4096).err().unwrap();
        assert!(error.0.contains("neither"), "{error}");
    }
}
