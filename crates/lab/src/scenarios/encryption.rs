//! What `make bench-encryption` measures: the same jobs on one cluster, its traffic in plain and encrypted, in turns.

use crate::engine::cpu::Machine;
use crate::scenarios::ab::{self, Summary};
use crate::scenarios::{Run, RunError, VOLUME, jobs};
use crate::testbed::{Cluster, Testbed, TestbedError};
use base::Encryption;
use std::time::{Duration, Instant};

/// How long a cluster may take to serve again after a switch.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// How long connections may be made anew after a switch.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum EncryptionError {
    /// There is nothing to measure on, or a job failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The cluster refuses to switch, or cannot be asked.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The cluster does not come back from a switch.
    #[error("{waiting} placement groups do not serve {} s after encryption was switched", SETTLE_LIMIT.as_secs())]
    NotSettled {
        /// How many.
        waiting: usize,
    },
}

/// Sets up drives and a cluster, measures, and takes everything down. `progress` is told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(
    run: &Run,
    runtime: Duration,
    volume_bytes: u64,
    mut progress: impl FnMut(&str),
) -> Result<Summary, EncryptionError> {
    let testbed = Testbed::new(&run.directory, &run.millpond)?;
    progress("filling the drives and a volume");
    let (_drives, cluster) = run.cluster_with_volume(&testbed, "cluster", volume_bytes)?;
    let cases = ab::measure(run.rounds, progress, |variant, case, round| {
        switch(&cluster, [Encryption::Off, Encryption::On][variant])?;
        let sample = jobs::bench(&run.millpond, cluster.directory(), &case.job(VOLUME, runtime, round));
        Ok::<_, EncryptionError>(sample.map_err(RunError::from)?)
    })?;
    Ok(Summary {
        machine: Machine::this(),
        date: run.date.clone(),
        volume_bytes,
        variants: ["plain", "encrypted"].map(str::to_owned),
        cases,
    })
}

/// Switches encryption, and waits until all groups serve on new connections.
fn switch(cluster: &Cluster, encryption: Encryption) -> Result<(), EncryptionError> {
    cluster.command(&["cluster", "encryption", &encryption.to_string()])?;
    std::thread::sleep(SETTLE_TIME);
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        let waiting = cluster.pgs()?.iter().filter(|group| !group.is_settled()).count();
        match waiting {
            0 => return Ok(()),
            _ if Instant::now() >= deadline => return Err(EncryptionError::NotSettled { waiting }),
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
