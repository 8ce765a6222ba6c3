//! A target of whichever kind: what a job on any of them runs on.

use super::command::CommandTarget;
use super::nbd::NbdTarget;
use super::raw::RawTarget;
use super::vhost_user::VhostUserTarget;
use super::volume::VolumeTarget;
use crate::engine::plan::{Job, TargetName};
use crate::engine::{Completion, Operation, Target, TargetError};
use nix::fcntl::OFlag;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use volume::{ClusterAccess, OpenAs};

/// One of them, open.
pub enum OpenTarget {
    /// A drive or a file.
    Raw(Box<RawTarget>),
    /// A volume.
    Volume(Box<VolumeTarget>),
    /// An export.
    Nbd(Box<NbdTarget>),
    /// The disk of a back-end.
    VhostUser(Box<VhostUserTarget>),
    /// Runs of a command.
    Command(CommandTarget),
}

/// How a volume is had.
pub struct VolumeAccess {
    /// Its cluster.
    pub cluster: ClusterAccess,
    /// As what.
    pub open: OpenAs,
    /// How long an operation may take before it fails.
    pub timeout: Option<Duration>,
}

impl OpenTarget {
    /// Opens what a job is for: a drive or file past the page cache if `is_direct`. `access` is asked for if that is a volume.
    ///
    /// # Errors
    /// As each kind's own.
    pub fn open(
        job: &Job,
        is_direct: bool,
        access: impl FnOnce() -> Result<VolumeAccess, TargetError>,
    ) -> Result<OpenTarget, TargetError> {
        let block_bytes =
            u32::try_from(job.block.0).map_err(|_| TargetError("--bs is too large".to_owned()))?;
        Ok(match &job.target {
            TargetName::Raw(path) => {
                let drive = RawTarget::open(path, job.mode.writes(), is_direct, job.depth, block_bytes)?;
                OpenTarget::Raw(Box::new(drive))
            }
            TargetName::Volume(name) => {
                let VolumeAccess { cluster, open, timeout } = access()?;
                let volume = VolumeTarget::attach(&cluster, name, open, job.depth, block_bytes, timeout)?;
                OpenTarget::Volume(Box::new(volume))
            }
            TargetName::Nbd(uri) => {
                OpenTarget::Nbd(Box::new(NbdTarget::connect(uri, job.depth, block_bytes)?))
            }
            TargetName::VhostUser(socket) => {
                OpenTarget::VhostUser(Box::new(VhostUserTarget::connect(socket, job.depth, block_bytes)?))
            }
            TargetName::Command(line) => {
                OpenTarget::Command(CommandTarget::new(line, job.depth, block_bytes)?)
            }
        })
    }
}

/// Makes a file of so many bytes. One that is there is made as large, if it may be there; never is one that a link names.
///
/// # Errors
/// It is there and may not be, or the file system refuses.
pub fn make_file(path: &Path, bytes: u64, may_be_there: bool) -> Result<(), TargetError> {
    let failed = |error: std::io::Error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AlreadyExists => "; say `overwrite = true` if what it holds may go",
            _ => "",
        };
        TargetError(format!("{}: {error}{advice}", path.display()))
    };
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    match may_be_there {
        true => options.create(true).truncate(false),
        false => options.create_new(true),
    };
    let file = options.open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() < bytes {
        file.set_len(bytes).map_err(failed)?;
    }
    Ok(())
}

impl Target for OpenTarget {
    fn bytes(&self) -> u64 {
        match self {
            OpenTarget::Raw(target) => target.bytes(),
            OpenTarget::Volume(target) => target.bytes(),
            OpenTarget::Nbd(target) => target.bytes(),
            OpenTarget::VhostUser(target) => target.bytes(),
            OpenTarget::Command(target) => target.bytes(),
        }
    }

    fn alignment_bytes(&self) -> u32 {
        match self {
            OpenTarget::Raw(target) => target.alignment_bytes(),
            OpenTarget::Volume(target) => target.alignment_bytes(),
            OpenTarget::Nbd(target) => target.alignment_bytes(),
            OpenTarget::VhostUser(target) => target.alignment_bytes(),
            OpenTarget::Command(target) => target.alignment_bytes(),
        }
    }

    fn holds_data(&self) -> bool {
        !matches!(self, OpenTarget::Command(_))
    }

    fn data_mut(&mut self, slot: u32) -> &mut [u8] {
        match self {
            OpenTarget::Raw(target) => target.data_mut(slot),
            OpenTarget::Volume(target) => target.data_mut(slot),
            OpenTarget::Nbd(target) => target.data_mut(slot),
            OpenTarget::VhostUser(target) => target.data_mut(slot),
            OpenTarget::Command(target) => target.data_mut(slot),
        }
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        match self {
            OpenTarget::Raw(target) => target.submit(operation),
            OpenTarget::Volume(target) => target.submit(operation),
            OpenTarget::Nbd(target) => target.submit(operation),
            OpenTarget::VhostUser(target) => target.submit(operation),
            OpenTarget::Command(target) => target.submit(operation),
        }
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        match self {
            OpenTarget::Raw(target) => target.wait(limit, completions),
            OpenTarget::Volume(target) => target.wait(limit, completions),
            OpenTarget::Nbd(target) => target.wait(limit, completions),
            OpenTarget::VhostUser(target) => target.wait(limit, completions),
            OpenTarget::Command(target) => target.wait(limit, completions),
        }
    }
}
