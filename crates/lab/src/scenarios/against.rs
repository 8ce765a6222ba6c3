//! What `make bench-against` measures: two builds of `millpond`, each with a cluster of its own, in turns.
//!
//! Both clusters run all the time, on drives of the same memory; the one whose turn it is not is idle. So both find the same
//! machine, and only figures of the same minute are divided by each other.

use crate::engine::cpu::Machine;
use crate::scenarios::ab::{self, Summary};
use crate::scenarios::{Run, RunError, VOLUME, jobs};
use crate::testbed::Testbed;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sets up both clusters, measures `base` and the run's own `millpond` in turns, and takes everything down. `progress` is
/// told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(
    run: &Run,
    base: &Path,
    runtime: Duration,
    volume_bytes: u64,
    mut progress: impl FnMut(&str),
) -> Result<Summary, RunError> {
    let testbed = Testbed::new(&run.directory, &run.millpond)?;
    let runs: [Run; 2] =
        [base.to_path_buf(), run.millpond.clone()].map(|millpond: PathBuf| Run { millpond, ..run.clone() });
    progress("filling the drives and the volumes of both builds");
    let (_drives_of_base, base) = runs[0].cluster_with_volume(&testbed, "base", volume_bytes)?;
    let (_drives_of_this, this) = runs[1].cluster_with_volume(&testbed, "this", volume_bytes)?;
    let clusters = [base, this];
    let cases = ab::measure(run.rounds, progress, |variant, case, round| {
        let (run, cluster) = (&runs[variant], &clusters[variant]);
        let sample = jobs::bench(&run.millpond, cluster.directory(), &case.job(VOLUME, runtime, round));
        sample.map_err(RunError::from)
    })?;
    Ok(Summary {
        machine: Machine::this(),
        date: run.date.clone(),
        volume_bytes,
        variants: ["base", "this"].map(str::to_owned),
        cases,
    })
}
