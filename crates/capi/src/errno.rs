//! What went wrong, as C's libraries tell it.

use client::ClientError;
use cluster::ClusterError;
use registry::RegistryError;
use std::ffi::c_int;
use volume::AttachError;

/// A number of `errno.h`, positive. Functions of C's libraries answer with its negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// What a function answers that may fail.
pub type Answer<T> = Result<T, Errno>;

impl From<&RegistryError> for Errno {
    fn from(error: &RegistryError) -> Errno {
        Errno(match error {
            RegistryError::Forbidden { .. } => libc::EACCES,
            RegistryError::Unreachable { .. }
            | RegistryError::Closed
            | RegistryError::OutcomeUnknown { .. } => libc::ETIMEDOUT,
            _ => libc::EIO,
        })
    }
}

impl From<&ClusterError> for Errno {
    fn from(error: &ClusterError) -> Errno {
        use ClusterError as Why;
        Errno(match error {
            Why::Registry(error) => return error.into(),
            Why::NoSuchPool { .. }
            | Why::NoSuchNamespace { .. }
            | Why::NoSuchVolume { .. }
            | Why::NoSuchSnapshot { .. }
            | Why::NoSuchMetadata { .. }
            | Why::NoSuchLock { .. }
            | Why::NoSuchGroup { .. }
            | Why::NoSuchGroupSnapshot { .. }
            | Why::NotInGroup { .. }
            | Why::NotInTrash { .. } => libc::ENOENT,
            Why::VolumeExists { .. }
            | Why::PoolExists { .. }
            | Why::SnapshotExists { .. }
            | Why::NamespaceExists { .. }
            | Why::LockOwn { .. }
            | Why::GroupExists { .. }
            | Why::GroupSnapshotExists { .. }
            | Why::GroupedAlready { .. } => libc::EEXIST,
            Why::Attached { .. }
            | Why::HadByOthers { .. }
            | Why::Watched { .. }
            | Why::LockHeld { .. }
            | Why::SnapshotProtected { .. }
            | Why::HasClones { .. }
            | Why::HasUnseenClones { .. }
            | Why::NamespaceInUse { .. }
            | Why::PoolInUse { .. }
            | Why::PoolHasNamespaces { .. }
            | Why::PlaceHasGroup { .. }
            | Why::GroupedInTrash { .. }
            | Why::StillCut { .. }
            | Why::NotStill { .. }
            | Why::Unsettled { .. } => libc::EBUSY,
            Why::Contended { .. } => libc::EAGAIN,
            Why::GroupFull { .. }
            | Why::NoMoreClones { .. }
            | Why::NoMoreSnapshots { .. }
            | Why::BentTooOften { .. } => libc::ENOSPC,
            Why::Unreadable { .. } => libc::EIO,
            Why::NoCluster | Why::OtherCluster { .. } | Why::MovingIn { .. } | Why::Moved { .. } => {
                libc::ENOTCONN
            }
            _ => libc::EINVAL,
        })
    }
}

impl From<&AttachError> for Errno {
    fn from(error: &AttachError) -> Errno {
        Errno(match error {
            AttachError::Cluster(error) => return error.into(),
            AttachError::NoSnapshot { .. } => libc::ENOENT,
            AttachError::NoMap { .. } | AttachError::NotFenced { .. } => libc::ETIMEDOUT,
            AttachError::Lost { .. } => libc::ESHUTDOWN,
            AttachError::Ring(_) | AttachError::Thread(_) => libc::ENOMEM,
            AttachError::Silent => libc::EIO,
        })
    }
}

impl From<&ClientError> for Errno {
    fn from(error: &ClientError) -> Errno {
        Errno(match error {
            ClientError::OutOfRange { .. } => libc::EINVAL,
            ClientError::NoSpace { .. } => libc::ENOSPC,
            ClientError::Fenced { .. } | ClientError::Abandoned { .. } => libc::ESHUTDOWN,
            ClientError::Forbidden { .. } => libc::EACCES,
            ClientError::IsSnapshot { .. }
            | ClientError::ReadOnly { .. }
            // Another keeps it.
            | ClientError::NotOwned { .. } => libc::EROFS,
            ClientError::NoSuchVolume { .. } => libc::ENOENT,
            ClientError::TimedOut { .. } => libc::ETIMEDOUT,
            ClientError::Damaged { .. }
            | ClientError::DeviceFailed { .. }
            | ClientError::OutcomeUnknown { .. }
            | ClientError::CorruptInTransit { .. } => libc::EIO,
        })
    }
}
