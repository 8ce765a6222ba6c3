//! What `make bench-encryption` measures: the same jobs on one cluster, its traffic in plain and encrypted, in turns.

use crate::engine::cpu::Machine;
use crate::engine::plan::{Job, Mode, TargetName};
use crate::report::{grouped, microseconds};
use crate::scenarios::jobs::{self, JobError, Sample};
use crate::scenarios::suite::median;
use crate::testbed::{Cluster, LoopDevice, Testbed, TestbedError, free_bytes};
use base::Encryption;
use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const REPLICAS: usize = 3;
/// A drive is so many times the volume.
const DRIVE_PER_VOLUME: u64 = 2;
const VOLUME: &str = "disk";
/// How long a job runs before it counts.
const RAMP: Duration = Duration::from_secs(1);
/// How long a cluster may take to serve again after a switch.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// How long connections may be made anew after a switch.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum EncryptionError {
    /// There is nothing to measure on.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A job failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The cluster does not come back from a switch.
    #[error("{waiting} placement groups do not serve {} s after encryption was switched", SETTLE_LIMIT.as_secs())]
    NotSettled {
        /// How many.
        waiting: usize,
    },
}

/// One figure of a sample, if it could be measured.
type Figure = fn(&Sample) -> Option<f64>;

/// How it is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `millpond` to measure.
    pub millpond: PathBuf,
    /// A tmpfs for the drives.
    pub directory: PathBuf,
    /// How often each job is measured.
    pub rounds: u32,
    /// How long.
    pub runtime: Duration,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Printed with the results.
    pub date: String,
}

/// A kind of job, measured with encryption off and on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Which operations.
    pub mode: Mode,
    /// Bytes of each.
    pub block: ByteSize,
    /// In flight.
    pub depth: u32,
    /// One for each round.
    pub plain: Vec<Sample>,
    /// The same.
    pub encrypted: Vec<Sample>,
}

impl Case {
    fn all() -> Vec<Case> {
        let case = |mode, block, depth| Case {
            mode,
            block: ByteSize(block),
            depth,
            plain: Vec::new(),
            encrypted: Vec::new(),
        };
        vec![
            case(Mode::RandomRead, 4 << 10, 64),
            case(Mode::RandomWrite, 4 << 10, 64),
            case(Mode::RandomRead, 4 << 10, 1),
            case(Mode::RandomWrite, 4 << 10, 1),
            case(Mode::Read, 256 << 10, 8),
            case(Mode::Write, 256 << 10, 8),
        ]
    }

    /// The median of a figure with encryption off and on, and of their ratios of each round.
    fn medians(&self, figure: impl Fn(&Sample) -> Option<f64>) -> [Option<f64>; 3] {
        let of = |samples: &[Sample]| median(samples.iter().filter_map(&figure).collect());
        let pairs = self.plain.iter().zip(&self.encrypted);
        let ratios = pairs.filter_map(|(plain, encrypted)| Some(figure(encrypted)? / figure(plain)?));
        [of(&self.plain), of(&self.encrypted), median(ratios.collect())]
    }
}

/// Everything that a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The machine.
    pub machine: Machine,
    /// When.
    pub date: String,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// What was measured.
    pub cases: Vec<Case>,
}

/// Sets up drives and a cluster, measures, and takes everything down. `progress` is told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Summary, EncryptionError> {
    let testbed = Testbed::new(&options.directory, &options.millpond)?;
    let drive_bytes = options.volume_bytes * DRIVE_PER_VOLUME;
    let needed = drive_bytes * REPLICAS as u64 / 4 * 5;
    let available = free_bytes(&options.directory).unwrap_or(0);
    if available < needed {
        let path = options.directory.clone();
        return Err(TestbedError::Memory { path, available, needed }.into());
    }
    let drives = (0..REPLICAS)
        .map(|index| LoopDevice::new(testbed.directory(), &format!("drive.{index}"), drive_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    progress("filling the drives and a volume");
    for drive in &drives {
        // The first write of a page of tmpfs allocates it, which takes longer than what is measured.
        let job = Job::prefill(TargetName::Raw(drive.path().to_owned()), drive_bytes);
        jobs::bench(&options.millpond, testbed.directory(), &job)?;
    }
    let devices: Vec<_> = drives.iter().map(LoopDevice::path).collect();
    let cluster = Cluster::start(&options.millpond, &testbed.directory().join("cluster"), &devices)?;
    cluster.create_volume(VOLUME, options.volume_bytes, None)?;
    let prefill = Job::prefill(TargetName::Volume(VOLUME.to_owned()), options.volume_bytes);
    jobs::bench(&options.millpond, cluster.directory(), &prefill)?;
    let mut cases = Case::all();
    for round in 1..=options.rounds {
        // Whoever comes first finds the machine in another state than who comes last: take turns.
        let turns = match round % 2 {
            1 => [Encryption::Off, Encryption::On],
            _ => [Encryption::On, Encryption::Off],
        };
        for encryption in turns {
            progress(&format!("round {round} of {}: encryption {encryption}", options.rounds));
            switch(&cluster, encryption)?;
            for case in &mut cases {
                let mut job = Job::new(TargetName::Volume(VOLUME.to_owned()), case.mode);
                (job.block, job.depth, job.seed) = (case.block, case.depth, u64::from(round));
                (job.runtime, job.ramp) = (Some(options.runtime), RAMP);
                let sample = jobs::bench(&options.millpond, cluster.directory(), &job)?;
                match encryption {
                    Encryption::Off => case.plain.push(sample),
                    Encryption::On => case.encrypted.push(sample),
                }
            }
        }
    }
    Ok(Summary {
        machine: Machine::this(),
        date: options.date.clone(),
        volume_bytes: options.volume_bytes,
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

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.cases.first().map_or(0, |case| case.plain.len());
        writeln!(formatter, "Machine   {}", self.machine)?;
        writeln!(formatter, "Date      {}", self.date)?;
        writeln!(
            formatter,
            "Volume    {}, {REPLICAS} copies; medians of {rounds} rounds: in plain, encrypted, and the ratio of each round\n",
            ByteSize(self.volume_bytes)
        )?;
        let figures: [(&str, Figure); 5] = [
            ("IOPS", |sample| Some(sample.iops)),
            ("average µs", |sample| sample.mean_us),
            ("machine µs", |sample| sample.machine_us_per_operation),
            ("client µs", |sample| sample.client_us_per_operation),
            ("nodes µs", |sample| sample.nodes_us_per_operation),
        ];
        writeln!(
            formatter,
            "{:26} {:12} {:>12} {:>12} {:>7}",
            "case", "figure", "plain", "encrypted", "ratio"
        )?;
        for case in &self.cases {
            let name = format!("{} {} depth {}", case.mode, case.block, case.depth);
            for (index, (figure, of)) in figures.iter().enumerate() {
                let [plain, encrypted, ratio] = case.medians(of);
                let shown = |value: Option<f64>| match (index, value) {
                    (0, Some(value)) => grouped(value),
                    _ => microseconds(value),
                };
                let ratio = ratio.map_or("unavailable".to_owned(), |ratio| format!("{ratio:.2}"));
                let name = if index == 0 { name.as_str() } else { "" };
                let (plain, encrypted) = (shown(plain), shown(encrypted));
                writeln!(formatter, "{name:26} {figure:12} {plain:>12} {encrypted:>12} {ratio:>7}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_one_round_and_what_was_not_measured_has_none() {
        let sample =
            |iops, nodes_us_per_operation| Sample { iops, nodes_us_per_operation, ..Sample::default() };
        let mut case = Case::all().remove(0);
        case.plain = vec![sample(100.0, None), sample(50.0, None), sample(10.0, None)];
        case.encrypted = vec![sample(50.0, Some(1.0)), sample(50.0, None), sample(9.0, None)];
        assert_eq!(case.medians(|sample| Some(sample.iops)), [Some(50.0), Some(50.0), Some(0.9)]);
        assert_eq!(case.medians(|sample| sample.nodes_us_per_operation), [None, Some(1.0), None]);
    }
}
