//! What a benchmark runs on: drives made of memory, a cluster on them, and jobs as processes. Each is a guard that takes down
//! what it set up; see [`cleanup`] for the ways out that it covers.
//!
//! A run that was killed outright leaves its directory, named after its process. The next run finds it,
//! sees that the process is gone, and takes down what is left.

pub mod cleanup;
mod cluster;
pub mod command;
mod drives;
pub mod etcd;
pub mod jobs;
pub mod keeper;

pub use cluster::{Cluster, ScrubFigures, frozen, is_settled, signal};
pub use drives::LoopDevice;

use crate::engine::plan::{Job, TargetName};
use anyhow::{Context, bail};
use base::units::ByteSize;
use cleanup::Undo;
use cluster::stop_cluster;
use drives::detach_loops_of;
use jobs::Sample;
use procfs::{Current, Meminfo};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Copies of each block in most clusters that are measured, each on a node of its own.
pub const REPLICAS: usize = 3;
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// OSDs report their figures every few seconds; this is long enough for the last to be in.
pub const STATUS_DELAY: Duration = Duration::from_secs(6);
const DIRECTORY_PREFIX: &str = "millpond-bench.";

/// Where everything of one run is made. It is removed in the end.
#[derive(Debug)]
pub struct Testbed {
    millpond: PathBuf,
    directory: PathBuf,
    _undo: Undo,
}

impl Testbed {
    /// Makes a directory below `parent`, which should be a tmpfs, after taking down what earlier runs that
    /// were killed left there. `millpond` is what is measured. Fails for anybody but root.
    pub fn new(parent: &Path, millpond: &Path) -> anyhow::Result<Testbed> {
        if !nix::unistd::geteuid().is_root() {
            bail!("loop devices need root; run it with sudo, or as root in a privileged container");
        }
        remove_leftovers(parent, millpond);
        let directory = parent.join(format!("{DIRECTORY_PREFIX}{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| cannot_make(&directory))?;
        let removed = directory.clone();
        let undo = Undo::new(move || told(&removed, std::fs::remove_dir_all(&removed)));
        Ok(Testbed { millpond: millpond.to_owned(), directory, _undo: undo })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Bytes that files in it may take: what its file system has free, and the memory behind it.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let free = nix::sys::statvfs::statvfs(&self.directory)
            .map_or(0, |space| space.blocks_available() * space.fragment_size());
        let memory = Meminfo::current().ok().and_then(|memory| memory.mem_available);
        memory.map_or(free, |memory| memory.min(free))
    }

    /// Fails unless so many bytes are free, and a quarter as many again for the processes.
    pub fn require_free(&self, bytes: u64) -> anyhow::Result<()> {
        let (available, needed) = (self.free_bytes(), bytes / 4 * 5);
        if available < needed {
            bail!(
                "{}: {} of memory are free, and this needs {}; free some, or choose a larger tmpfs with --directory",
                self.directory.display(),
                ByteSize(available),
                ByteSize(needed)
            );
        }
        Ok(())
    }

    /// Drives of memory, blank.
    pub fn drives(&self, name: &str, count: usize, bytes: u64) -> anyhow::Result<Vec<LoopDevice>> {
        (0..count).map(|index| LoopDevice::new(&self.directory, &format!("{name}.{index}"), bytes)).collect()
    }

    /// Drives of memory that were written once: the first write of a page of tmpfs allocates it, which takes longer than
    /// what is measured.
    pub fn written_drives(&self, name: &str, count: usize, bytes: u64) -> anyhow::Result<Vec<LoopDevice>> {
        self.require_free(bytes * count as u64)?;
        let drives = self.drives(name, count, bytes)?;
        for drive in &drives {
            self.bench(&Job::prefill(TargetName::Raw(drive.path().to_owned()), bytes))?;
        }
        Ok(drives)
    }

    /// Runs a job on a drive.
    pub fn bench(&self, job: &Job) -> anyhow::Result<Sample> {
        jobs::bench(&self.millpond, &self.directory, job)
    }

    /// Runs several jobs on drives at the same time.
    pub fn bench_together(&self, all: &[Job]) -> anyhow::Result<Vec<Sample>> {
        jobs::bench_together(&self.millpond, &self.directory, all)
    }

    /// Starts a cluster of so many nodes in the directory `name`, with a copy of everything on each node. The drives must be
    /// dropped after it.
    pub fn cluster(&self, name: &str, drives: &[LoopDevice], nodes: usize) -> anyhow::Result<Cluster> {
        self.cluster_of(&self.millpond, name, drives, nodes, &[])
    }

    /// The same of another `millpond`, and with more flags for `up`.
    pub fn cluster_of(
        &self,
        millpond: &Path,
        name: &str,
        drives: &[LoopDevice],
        nodes: usize,
        flags: &[&str],
    ) -> anyhow::Result<Cluster> {
        Cluster::start(millpond, &self.directory.join(name), drives, nodes, flags)
    }

    /// A host that shall join a cluster in an etcd, with its directory at `name`.
    #[must_use]
    pub fn host(&self, name: &str) -> Cluster {
        Cluster::of_host(&self.millpond, &self.directory.join(name))
    }

    /// The `millpond` that is measured.
    #[must_use]
    pub fn millpond(&self) -> &Path {
        &self.millpond
    }
}

fn cannot_make(path: &Path) -> String {
    format!("{} cannot be made; choose another directory with --directory", path.display())
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
