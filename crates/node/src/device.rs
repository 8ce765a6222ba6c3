//! The drive under an OSD: a block device or a file.

use crate::device_class::class_of;
use base::BLOCK_BYTES;
use base::Buffer;
use base::map::DeviceClass;
use nix::fcntl::{Flock, FlockArg, OFlag};
use ring::{FREE_WITHIN, when_free};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use store::{Device, DeviceError};

/// How many operations a file takes at the same time. Its file system has its own queue.
const FILE_DEPTH: usize = 256;

/// Why a drive cannot be used.
#[derive(thiserror::Error, Debug)]
pub enum DriveError {
    /// The kernel would not open it.
    #[error("{path}: cannot open it: {source}")]
    Open {
        /// The drive.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// Its file system takes no direct I/O.
    #[error(
        "{path}: its file system does not support direct I/O; put it on XFS or ext4, or use a block device"
    )]
    NoDirectIo {
        /// The drive.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{path}: is in use by another process (an OSD that still runs, or a mount); stop that first")]
    InUse {
        /// The drive.
        path: PathBuf,
    },
    /// It holds something that is no OSD.
    #[error(
        "{path}: is not blank and holds no OSD that can be read; if its data is not needed, erase it with `millpond \
         osd wipe {path} --yes`"
    )]
    NotBlank {
        /// The drive.
        path: PathBuf,
    },
    /// A read failed.
    #[error("{path}: {source}")]
    Device {
        /// The drive.
        path: PathBuf,
        /// What happened.
        source: DeviceError,
    },
}

/// An opened drive: locked against a second opener, read and written without the page cache.
#[derive(Debug)]
pub struct Drive {
    path: PathBuf,
    file: Flock<File>,
    bytes: u64,
    has_volatile_cache: bool,
    depth: usize,
    class: DeviceClass,
}

impl Drive {
    /// Opens the drive at `path`, waiting up to [`FREE_WITHIN`] for it. `volatile_cache` overrides what is detected.
    ///
    /// # Errors
    /// When it is in use, or the kernel refuses.
    pub fn open(path: &Path, volatile_cache: Option<bool>) -> Result<Drive, DriveError> {
        let is_in_use = |error: &DriveError| matches!(error, DriveError::InUse { .. });
        when_free(FREE_WITHIN, is_in_use, || Drive::open_once(path, volatile_cache))
    }

    fn open_once(path: &Path, volatile_cache: Option<bool>) -> Result<Drive, DriveError> {
        let open_error = |source| DriveError::Open { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(open_error)?;
        let is_block_device = metadata.file_type().is_block_device();
        // The kernel opens a block device exclusively only when nobody has it mounted or opened so.
        let exclusive = if is_block_device { OFlag::O_EXCL } else { OFlag::empty() };
        let flags = (OFlag::O_DIRECT | OFlag::O_CLOEXEC | exclusive).bits();
        let mut file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => {
                return Err(DriveError::NoDirectIo { path: path.to_owned() });
            }
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                return Err(DriveError::InUse { path: path.to_owned() });
            }
            Err(error) => return Err(open_error(error)),
        };
        let bytes =
            file.seek(SeekFrom::End(0)).map_err(open_error)? / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let attribute = |name| if is_block_device { queue_attribute(metadata.rdev(), name) } else { None };
        // A cache that cannot be asked about is taken to be volatile: a flush too many costs time, one too few
        // costs data.
        let detected = attribute("write_cache").is_none_or(|kind| kind.trim() != "write through");
        let depth = attribute("nr_requests").and_then(|count| count.trim().parse().ok());
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| DriveError::InUse { path: path.to_owned() })?;
        Ok(Drive {
            path: path.to_owned(),
            file,
            bytes,
            has_volatile_cache: volatile_cache.unwrap_or(detected),
            depth: depth.unwrap_or(FILE_DEPTH),
            class: class_of(&metadata),
        })
    }

    /// Whether completed writes need a flush to be durable.
    #[must_use]
    pub fn has_volatile_cache(&self) -> bool {
        self.has_volatile_cache
    }

    /// What kind of drive it is; of a file, what it lies on.
    #[must_use]
    pub fn class(&self) -> DeviceClass {
        self.class
    }

    /// How many operations it takes at the same time.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Another descriptor of it, for a reactor. The lock is shared, and held until both are closed.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn descriptor(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Whether the places of an OSD's superblocks hold nothing at all.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn is_blank(&mut self) -> Result<bool, DriveError> {
        let mut buffer = Buffer::new(64 << 10);
        let memory = buffer.bytes_mut().expect("a new buffer has one holder");
        for offset in [0, 1 << 20] {
            self.read(offset, memory)
                .map_err(|source| DriveError::Device { path: self.path.clone(), source })?;
            if memory.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Device for Drive {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.file
            .read_exact_at(into, offset)
            .map_err(|error| DeviceError(format!("read of {} bytes at offset {offset}: {error}", into.len())))
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.file.write_all_at(data, offset).map_err(|error| {
            DeviceError(format!("write of {} bytes at offset {offset}: {error}", data.len()))
        })
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|error| DeviceError(format!("flush: {error}")))
    }
}

/// What the kernel says of the queue of the block device with that number.
fn queue_attribute(device: u64, name: &str) -> Option<String> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    // A partition has no queue of its own; its parent directory is the whole device's.
    ["queue", "../queue"].iter().find_map(|queue| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/{name}")).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_cannot_be_opened_twice() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let mut first = Drive::open(file.path(), None).unwrap();
        assert!(first.has_volatile_cache());
        let second = Drive::open(file.path(), None).unwrap_err();
        assert!(matches!(second, DriveError::InUse { .. }), "{second}");
        assert!(first.is_blank().unwrap());
        let mut block = Buffer::new(4096);
        block.bytes_mut().unwrap().fill(1);
        first.write(1 << 20, block.bytes()).unwrap();
        assert!(!first.is_blank().unwrap());
        drop(first);
        assert!(!Drive::open(file.path(), Some(false)).unwrap().has_volatile_cache());
    }
}
