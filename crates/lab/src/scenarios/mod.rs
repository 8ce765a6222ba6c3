//! What the benchmarks measure. Each scenario is told of its [`Run`], sets up a test bed, measures in rounds, takes everything
//! down, and answers a summary that people and programs can read.

pub mod ab;
pub mod against;
pub mod comparison;
pub mod encryption;
pub mod failover;
pub mod jobs;
pub mod large;
pub mod steady;
pub mod suite;

use crate::engine::plan::{Job, TargetName};
use crate::testbed::{Cluster, LoopDevice, Testbed, TestbedError, free_bytes};
use jobs::JobError;
use std::path::PathBuf;

/// Copies of each block, each on a node of its own.
const REPLICAS: usize = 3;
/// The volume of [`Run::cluster_with_volume`].
const VOLUME: &str = "bench";
/// Its drives are so many times the volume: half full.
const DRIVE_PER_VOLUME: u64 = 2;

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum RunError {
    /// There is nothing to measure on.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A job failed.
    #[error(transparent)]
    Job(#[from] JobError),
}

/// What every run is told.
#[derive(Clone, Debug)]
pub struct Run {
    /// The `millpond` to measure.
    pub millpond: PathBuf,
    /// A tmpfs for the drives.
    pub directory: PathBuf,
    /// How often everything is measured.
    pub rounds: u32,
    /// Printed with the results.
    pub date: String,
}

impl Run {
    /// Drives of memory that were written once: the first write of a page of tmpfs allocates it, which takes longer than what
    /// is measured.
    fn written_drives(
        &self,
        testbed: &Testbed,
        name: &str,
        count: usize,
        bytes: u64,
    ) -> Result<Vec<LoopDevice>, RunError> {
        // A fifth of what is free is left to the processes.
        let needed = bytes * count as u64 / 4 * 5;
        let available = free_bytes(&self.directory).unwrap_or(0);
        if available < needed {
            let path = self.directory.clone();
            return Err(TestbedError::Memory { path, available, needed }.into());
        }
        let mut drives = Vec::with_capacity(count);
        for index in 0..count {
            let drive = LoopDevice::new(testbed.directory(), &format!("{name}.{index}"), bytes)?;
            let job = Job::prefill(TargetName::Raw(drive.path().to_owned()), bytes);
            jobs::bench(&self.millpond, testbed.directory(), &job)?;
            drives.push(drive);
        }
        Ok(drives)
    }

    /// A cluster in a directory `name`, and a volume in it that was written once. The drives must be dropped after it.
    fn cluster_with_volume(
        &self,
        testbed: &Testbed,
        name: &str,
        volume_bytes: u64,
    ) -> Result<(Vec<LoopDevice>, Cluster), RunError> {
        let drive_bytes = volume_bytes * DRIVE_PER_VOLUME;
        let drives = self.written_drives(testbed, &format!("{name}-drive"), REPLICAS, drive_bytes)?;
        let devices: Vec<_> = drives.iter().map(LoopDevice::path).collect();
        let cluster = Cluster::start(&self.millpond, &testbed.directory().join(name), &devices)?;
        cluster.create_volume(VOLUME, volume_bytes, None)?;
        let prefill = Job::prefill(TargetName::Volume(VOLUME.to_owned()), volume_bytes);
        jobs::bench(&self.millpond, cluster.directory(), &prefill)?;
        Ok((drives, cluster))
    }
}
