//! Why a drive cannot be used, and what to do then.

use crate::OSD_BYTES_MIN;
use base::units::ByteSize;
use std::io;
use std::path::PathBuf;
use store::{DeviceError, OpenError};

/// Why the drive at a path cannot be used.
#[derive(thiserror::Error, Debug)]
pub enum DriveError {
    /// Nothing is there.
    #[error("{0}: there is no such device or file; `lsblk` lists the devices of this machine")]
    Missing(PathBuf),
    /// It is a directory.
    #[error("{0}: is a directory; give a block device, or a file that serves as one")]
    Directory(PathBuf),
    /// It is a terminal, a pipe or the like.
    #[error("{0}: is neither a block device nor a file; give one of these")]
    NeitherDeviceNorFile(PathBuf),
    /// The kernel uses it, in the way that the sentence ends with.
    #[error("{0}: {1}")]
    Used(PathBuf, String),
    /// It is the file of a loop device.
    #[error("{0}: is the file behind {1}; give {1}, or detach it with `losetup -d {1}`")]
    BehindLoop(PathBuf, String),
    /// Nobody can write to it.
    #[error(
        "{0}: is read-only; give another one, or make it writable (a device with `blockdev --setrw {0}`)"
    )]
    ReadOnly(PathBuf),
    /// Others may do more with it.
    #[error(
        "{0}: is read-only or closed for this user; run as root, or change its owner or mode with `chown` or `chmod`"
    )]
    NotPermitted(PathBuf),
    /// Another process has it.
    #[error("{0}: is in use by another process (an OSD that still runs, or a mount); stop that first")]
    InUse(PathBuf),
    /// Its file system takes no direct I/O.
    #[error("{0}: its file system does not support direct I/O; put it on XFS or ext4, or use a block device")]
    NoDirectIo(PathBuf),
    /// The kernel would not open it.
    #[error("{0}: cannot open it: {1}")]
    Open(PathBuf, io::Error),
    /// A read, a write or a flush failed.
    #[error("{0}: {1}")]
    Device(PathBuf, DeviceError),
    /// No OSD has room on it.
    #[error("{0}: too small: it has {1}, and an OSD needs at least {min}", min = ByteSize(OSD_BYTES_MIN))]
    TooSmall(PathBuf, ByteSize),
    /// Two paths lead to it.
    #[error("{0}: is the same drive as {1}; give each drive once")]
    Twice(PathBuf, PathBuf),
    /// It holds something well known that is no OSD.
    #[error(
        "{0}: holds {1}, and would lose it; give another device, or erase this one with `millpond osd wipe {0} --yes`"
    )]
    Foreign(PathBuf, &'static str),
    /// It holds something that is no OSD.
    #[error(
        "{0}: is not blank and holds no OSD that can be read; if its data is not needed, erase it with `millpond osd \
         wipe {0} --yes`"
    )]
    NotBlank(PathBuf),
    /// Its superblocks say what cannot be.
    #[error("{0}: {1}")]
    Superblock(PathBuf, OpenError),
}
