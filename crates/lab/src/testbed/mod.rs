//! What a comparison runs on: drives made of memory, and a cluster on them. Each is a guard that takes down
//! what it set up; see [`cleanup`] for the ways out that it covers.
//!
//! A run that was killed outright leaves its directory, named after its process. The next run finds it,
//! sees that the process is gone, and takes down what is left.

pub mod cleanup;
mod cluster;
pub mod command;
mod drives;
pub mod etcd;

pub use cluster::{Cluster, NbdServer, OsdFigures, PgFigures, ScrubFigures};
pub use drives::LoopDevice;

use crate::engine::cpu::memory_bytes;
use cleanup::Undo;
use cluster::stop_cluster;
use command::CommandError;
use drives::detach_loops_of;
use std::path::{Path, PathBuf};
use std::time::Duration;

const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// OSDs report their figures every few seconds; this is long enough for the last to be in.
pub const STATUS_DELAY: Duration = Duration::from_secs(6);
const DIRECTORY_PREFIX: &str = "millpond-bench.";

/// Why there is nothing to measure on.
#[derive(thiserror::Error, Debug)]
pub enum TestbedError {
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file or directory could not be made.
    #[error("{}: {error}; choose another directory with --directory", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Loop devices are for root.
    #[error("loop devices need root; run it with sudo, or as root in a privileged container")]
    NotRoot,
    /// Too little memory for the smallest test bed.
    #[error(
        "{}: {available} bytes of memory are free, and the smallest test bed needs {needed}; free some, or choose a \
         larger tmpfs with --directory", path.display()
    )]
    Memory {
        /// The tmpfs.
        path: PathBuf,
        /// Bytes that are free.
        available: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// An OSD that was removed goes on.
    #[error(
        "the process of osd.{osd} has not ended a minute after its removal; its log and that of `up` are in {}",
        directory.display()
    )]
    StillRuns {
        /// The OSD.
        osd: u32,
        /// The cluster's directory.
        directory: PathBuf,
    },
    /// No etcd.
    #[error("etcd cannot be started: {0}; `make deps` installs it")]
    Etcd(std::io::Error),
    /// What the cluster says of itself could not be read.
    #[error(
        "`millpond {command} --json` printed what cannot be read: {error}; are this program and millpond of one build?"
    )]
    Json {
        /// The command.
        command: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
}

/// A directory for everything that a run makes. Removed in the end.
#[derive(Debug)]
pub struct Testbed {
    directory: PathBuf,
    _undo: Undo,
}

impl Testbed {
    /// Makes a directory below `parent`, which should be a tmpfs, after taking down what earlier runs that
    /// were killed left there.
    ///
    /// # Errors
    /// Not root, or `parent` cannot be written.
    pub fn new(parent: &Path, millpond: &Path) -> Result<Testbed, TestbedError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(TestbedError::NotRoot);
        }
        remove_leftovers(parent, millpond);
        let directory = parent.join(format!("{DIRECTORY_PREFIX}{}", std::process::id()));
        std::fs::create_dir(&directory)
            .map_err(|error| TestbedError::File { path: directory.clone(), error })?;
        let removed = directory.clone();
        let undo = Undo::new(move || told(&removed, std::fs::remove_dir_all(&removed)));
        Ok(Testbed { directory, _undo: undo })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Bytes that files in `directory` may take: what its file system has free, and the memory behind it.
#[must_use]
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let space = nix::sys::statvfs::statvfs(directory).ok()?;
    let free = space.blocks_available() as u64 * space.fragment_size() as u64;
    Some(memory_bytes("MemAvailable").map_or(free, |memory| memory.min(free)))
}

fn remove_leftovers(parent: &Path, millpond: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(DIRECTORY_PREFIX)) else { continue };
        if pid.parse::<u32>().is_err() || Path::new("/proc").join(pid).exists() {
            continue;
        }
        let directory = entry.path();
        eprintln!("taking down {}, left by a run that was killed", directory.display());
        let files: Vec<_> = std::fs::read_dir(&directory).into_iter().flatten().flatten().collect();
        for entry in files.iter().filter(|entry| entry.path().is_dir()) {
            stop_cluster(millpond, &entry.path());
        }
        for entry in files.iter().filter(|entry| entry.path().is_file()) {
            detach_loops_of(&entry.path());
        }
        told(&directory, std::fs::remove_dir_all(&directory));
    }
}

/// Taking down goes on whatever fails, but not silently.
fn told(path: &Path, result: std::io::Result<()>) {
    if let Err(error) = result
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("{}: cannot be removed: {error}; remove it by hand", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_taken_down_and_what_runs_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join(format!("{DIRECTORY_PREFIX}{}", u32::MAX));
        let alive = parent.path().join(format!("{DIRECTORY_PREFIX}{}", std::process::id()));
        let other = parent.path().join("millpond-bench.notes");
        for directory in [&dead, &alive, &other] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(dead.join("drive"), "x").unwrap();
        std::fs::create_dir(dead.join("cluster")).unwrap();
        remove_leftovers(parent.path(), Path::new("true"));
        assert!(!dead.exists() && alive.exists() && other.exists());
    }
}
