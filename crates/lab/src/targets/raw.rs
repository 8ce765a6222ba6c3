//! A block device or a file as a target: on the reactor that OSDs use, with registered memory, past the page cache or through it.

use crate::engine::{Completion, Kind, Operation, Target, TargetError};
use base::Buffer;
use drive::{Drive, Use};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use ring::{Event, FileId, Reactor, ReactorOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::Device;

/// Entries of the submission queue, at least and at most.
const ENTRIES: std::ops::RangeInclusive<u32> = 64..=4096;

/// So many operations are begun by one system call at most. A drive that has answered many at once would have nothing to do until as many
/// are prepared: all of 16 by one call are a fifth fewer reads a second on a virtual machine's disk (docs/performance.md).
pub(crate) const TOGETHER_MAX: u32 = 8;

/// A drive, or a file that stands for one.
pub struct RawTarget {
    path: PathBuf,
    /// Held while this writes, so that no OSD starts on it.
    drive: Drive,
    reactor: Reactor,
    file: FileId,
    /// Absent while the slot's operation is in flight.
    buffers: Vec<Option<Buffer>>,
    /// Operations that were not begun yet.
    waiting: u32,
    events: Vec<Event>,
}

impl RawTarget {
    /// Opens the drive at `path`, with `depth` slots of `block_bytes`. `writes` says whether it will be
    /// written to: then nobody else may use it. Unless `is_direct`, the page cache lies between.
    ///
    /// # Errors
    /// There is no drive, it is in use, or it takes no direct I/O.
    pub fn open(
        path: &Path,
        writes: bool,
        is_direct: bool,
        depth: u32,
        block_bytes: u32,
    ) -> Result<RawTarget, TargetError> {
        let purpose = if writes { Use::Alone } else { Use::ReadOnly };
        let drive = Drive::open(path, purpose).map_err(|error| TargetError(error.to_string()))?;
        let failed = |what: &dyn std::fmt::Display| TargetError(format!("{}: {what}", path.display()));
        let options = ReactorOptions {
            entries: depth.next_power_of_two().clamp(*ENTRIES.start(), *ENTRIES.end()),
            connections_max: 1,
            ..ReactorOptions::default()
        };
        let mut reactor = Reactor::new(options).map_err(|error| TargetError(error.to_string()))?;
        let descriptor = drive.descriptor().map_err(|error| failed(&error))?;
        if !is_direct {
            // Both descriptors are of one open file, whose mode that is.
            let flags = fcntl(&descriptor, FcntlArg::F_GETFL).map_err(|error| failed(&error))?;
            let flags = OFlag::from_bits_retain(flags).difference(OFlag::O_DIRECT);
            fcntl(&descriptor, FcntlArg::F_SETFL(flags)).map_err(|error| failed(&error))?;
        }
        let file = reactor.add_file(descriptor, depth as usize).map_err(|error| failed(&error))?;
        let mut buffers: Vec<Buffer> = (0..depth).map(|_| Buffer::new(block_bytes as usize)).collect();
        reactor.register_buffers(buffers.iter_mut()).map_err(|error| {
            failed(&format!("the memory for it cannot be registered: {error}; lower --bs or --iodepth"))
        })?;
        Ok(RawTarget {
            path: path.to_owned(),
            drive,
            reactor,
            file,
            buffers: buffers.into_iter().map(Some).collect(),
            waiting: 0,
            events: Vec::with_capacity(depth as usize),
        })
    }
}

impl RawTarget {
    fn broken(&self, error: &std::io::Error) -> TargetError {
        TargetError(format!("{}: io_uring failed: {error}", self.path.display()))
    }
}

impl Target for RawTarget {
    fn bytes(&self) -> u64 {
        self.drive.bytes()
    }

    fn alignment_bytes(&self) -> u32 {
        self.drive.alignment_bytes
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
        self.waiting += 1;
        if self.waiting < TOGETHER_MAX {
            return Ok(());
        }
        self.waiting = 0;
        self.reactor.submit().map_err(|error| self.broken(&error))
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        self.waiting = 0;
        let turned = self.reactor.turn(Some(limit), &mut self.events);
        for event in self.events.drain(..) {
            let Event::FileDone { token, buffer, result } = event else { continue };
            let slot = token as u32;
            self.buffers[slot as usize] = buffer;
            let result = result.map_err(|error| format!("{}: {error}", self.path.display()));
            completions.push(Completion { slot, result });
        }
        turned.map_err(|error| self.broken(&error))
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
        let mut target = RawTarget::open(drive.path(), true, true, job.depth, 64 << 10).unwrap();
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
            target.wait(Duration::from_secs(1), &mut completions).unwrap();
        }
        assert_eq!(completions, [Completion { slot: 3, result: Ok(()) }]);
        assert!(target.data_mut(3)[..8192] == contents[12_288..20_480]);
    }

    #[test]
    fn a_failure_names_path_place_and_reason() {
        let drive = drive();
        let mut target = RawTarget::open(drive.path(), false, true, 1, 4096).unwrap();
        target.submit(Operation { slot: 0, kind: Kind::Read, offset: 8 << 20, length: 4096 }).unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            target.wait(Duration::from_secs(1), &mut completions).unwrap();
        }
        let error = completions.remove(0).result.unwrap_err();
        assert!(error.contains("offset 8388608") && error.contains("/var/tmp"), "{error}");
        target.submit(Operation { slot: 0, kind: Kind::Read, offset: 0, length: 4096 }).unwrap();
    }

    #[test]
    fn what_somebody_else_uses_is_not_written_to() {
        let drive = drive();
        let held = Drive::open(drive.path(), Use::Alone).unwrap();
        let error = RawTarget::open(drive.path(), true, true, 1, 4096).err().unwrap();
        assert!(error.0.contains("is in use"), "{error}");
        RawTarget::open(drive.path(), false, true, 1, 4096).unwrap();
        drop(held);
        RawTarget::open(drive.path(), true, true, 1, 4096).unwrap();
    }
}
