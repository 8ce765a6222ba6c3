//! One run of the suite: sets up drives and a cluster, measures in turns, takes everything down.
//!
//! Everything is made of memory: a raw loop device on tmpfs as large as the volume, and three drives of twice
//! that size for the cluster. So what is compared is software, and each figure is the distance from a device.

use crate::engine::cpu::{Machine, Monitor};
use crate::engine::plan::{Job, Mode, TargetName};
use crate::scenarios::jobs::{self, FioTarget, JobError, Sample};
use crate::scenarios::suite::{
    Case, Figures, Setup, Subject, Summary, engine_by_fio, measure, overwrite_amplification, ratios,
};
use crate::scenarios::{DRIVE_PER_VOLUME, REPLICAS, Run, VOLUME};
use crate::testbed::command::CommandError;
use crate::testbed::{Cluster, LoopDevice, STATUS_DELAY, Testbed, TestbedError, free_bytes};
use base::BLOCK_BYTES;
use base::units::ByteSize;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// All of these in units of the volume: the raw device and the drives.
const PARTS: u64 = 1 + DRIVE_PER_VOLUME * REPLICAS as u64;
const VOLUME_BYTES_MIN: u64 = 256 * MIB;
const VOLUME_BYTES_MAX: u64 = 4096 * MIB;
/// How full the drives are while write amplification is measured, in percent of what data may take.
const AGED_PERCENT: u64 = 80;
const IDLE_TIME: Duration = Duration::from_secs(10);
/// How much of the volume, and of a peer's image, the two are compared on.
const PEER_BYTES: u64 = 1 << 30;
/// What is on an OSD when it is killed.
const RESTART_BYTES: u64 = 8 << 30;

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum SuiteError {
    /// There is nothing to measure on.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A job failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// How the suite is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every run is told.
    pub run: Run,
    /// How long each job is measured.
    pub runtime: Duration,
    /// Bytes of the volume; chosen by the free memory if absent.
    pub volume_bytes: Option<u64>,
    /// Whether to age drives and measure write amplification, and how soon a killed OSD with much on it serves
    /// again. Takes a few minutes.
    pub ageing: bool,
    /// The configuration of a Ceph cluster to compare with, which has an image `test` in a pool `rbd`.
    pub ceph_configuration: Option<PathBuf>,
}

/// The largest volume whose test bed fits: a raw device as large as it, and the cluster's drives. A fifth of
/// the free memory is left to the processes.
fn fitting_volume_bytes(free: u64) -> Option<u64> {
    let bytes = (free / 5 * 4 / PARTS / (64 * MIB) * (64 * MIB)).min(VOLUME_BYTES_MAX);
    (bytes >= VOLUME_BYTES_MIN).then_some(bytes)
}

fn volume_bytes(options: &Options) -> Result<u64, SuiteError> {
    if let Some(bytes) = options.volume_bytes {
        return Ok(bytes.max(VOLUME_BYTES_MIN) / MIB * MIB);
    }
    let available = free_bytes(&options.run.directory).unwrap_or(0);
    let needed = VOLUME_BYTES_MIN * PARTS / 4 * 5;
    fitting_volume_bytes(available)
        .ok_or_else(|| TestbedError::Memory { path: options.run.directory.clone(), available, needed }.into())
}

/// Sets up drives and a cluster, measures, and takes everything down. `progress` is told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Summary, SuiteError> {
    let testbed = Testbed::new(&options.run.directory, &options.run.millpond)?;
    let volume_bytes = volume_bytes(options)?;
    let raw = LoopDevice::new(testbed.directory(), "raw", volume_bytes)?;
    let bench = Bench {
        options,
        testbed: &testbed,
        raw: TargetName::Raw(raw.path().to_owned()),
        volume: TargetName::Volume(VOLUME.to_owned()),
        cluster: testbed.directory().join("cluster"),
        volume_bytes,
    };
    let mut figures = Figures::default();
    let drives = bench.drives("drive")?;
    let direct_io = raw.direct_io() && drives.iter().all(LoopDevice::direct_io);
    progress("filling the drives, which also shows how fast they are");
    bench.run(&Job::prefill(bench.raw.clone(), volume_bytes))?;
    bench.measure_drives(&drives, &mut figures)?;
    progress("starting the cluster and filling the volume");
    let cluster = bench.start_cluster(&drives)?;
    cluster.create_volume(VOLUME, volume_bytes, None)?;
    bench.run(&Job::prefill(bench.volume.clone(), volume_bytes))?;
    progress("sequential writes and reads");
    figures.volume_write_mib_per_second =
        Some(bench.run(&bench.sequential(bench.volume.clone(), Mode::Write))?.mib_per_second);
    figures.volume_read_mib_per_second =
        Some(bench.run(&bench.sequential(bench.volume.clone(), Mode::Read))?.mib_per_second);
    let case = |subject, case: &Case, round| bench.case(subject, case, round);
    let results = measure(options.run.rounds, case, &mut progress)?;
    progress("fio over NBD");
    bench.measure_nbd(&cluster, &mut figures)?;
    progress("watching the idle cluster");
    std::thread::sleep(STATUS_DELAY);
    bench.measure_at_rest(&cluster, &mut figures)?;
    drop(cluster);
    drop(drives);
    if options.ageing {
        progress("ageing drives at 80 % full with random overwrites of twice their capacity");
        figures.write_amplification = bench.aged_write_amplification()?;
        progress("killing an OSD with 8 GiB on it");
        bench.measure_restart(&mut figures)?;
    }
    Ok(Summary {
        machine: Machine::this(),
        date: options.run.date.clone(),
        setup: Setup {
            directory: options.run.directory.display().to_string(),
            volume_bytes,
            drive_bytes: bench.drive_bytes(),
            direct_io,
            rounds: options.run.rounds,
            runtime_seconds: options.runtime.as_secs_f64(),
        },
        ratios: ratios(&results),
        engine_by_fio: engine_by_fio(&results),
        results,
        figures,
    })
}

/// What the jobs of one run have in common.
struct Bench<'a> {
    options: &'a Options,
    testbed: &'a Testbed,
    raw: TargetName,
    volume: TargetName,
    cluster: PathBuf,
    volume_bytes: u64,
}

impl Bench<'_> {
    fn drive_bytes(&self) -> u64 {
        self.volume_bytes * DRIVE_PER_VOLUME
    }

    fn drives(&self, name: &str) -> Result<Vec<LoopDevice>, TestbedError> {
        (0..REPLICAS)
            .map(|index| {
                LoopDevice::new(self.testbed.directory(), &format!("{name}.{index}"), self.drive_bytes())
            })
            .collect()
    }

    fn start_cluster(&self, drives: &[LoopDevice]) -> Result<Cluster, TestbedError> {
        let devices: Vec<_> = drives.iter().map(LoopDevice::path).collect();
        Cluster::start(&self.options.run.millpond, &self.cluster, &devices)
    }

    fn run(&self, job: &Job) -> Result<Sample, JobError> {
        jobs::bench(&self.options.run.millpond, &self.cluster, job)
    }

    /// As [`Self::run`], on a cluster of its own.
    fn run_on(&self, cluster: &Cluster, job: &Job) -> Result<Sample, JobError> {
        jobs::bench(&self.options.run.millpond, cluster.directory(), job)
    }

    fn case(&self, subject: Subject, case: &Case, round: u32) -> Result<Sample, JobError> {
        let target = match subject {
            Subject::Raw | Subject::Fio => self.raw.clone(),
            Subject::Volume => self.volume.clone(),
        };
        let job = case.job(target, self.volume_bytes, self.options.runtime, u64::from(round));
        match (subject, &job.target) {
            (Subject::Fio, TargetName::Raw(path)) => jobs::fio(&FioTarget::Device(path.clone()), &job),
            _ => self.run(&job),
        }
    }

    fn sequential(&self, target: TargetName, mode: Mode) -> Job {
        Job { block: ByteSize(MIB), depth: 8, runtime: Some(self.options.runtime), ..Job::new(target, mode) }
    }

    /// All drives at the same time, since that is how a cluster uses them.
    fn measure_drives(&self, drives: &[LoopDevice], figures: &mut Figures) -> Result<(), JobError> {
        let targets = || drives.iter().map(|drive| TargetName::Raw(drive.path().to_owned()));
        let together = |jobs: Vec<Job>| -> Result<f64, JobError> {
            let samples = jobs::bench_together(&self.options.run.millpond, &self.cluster, &jobs)?;
            Ok(samples.iter().map(|sample| sample.mib_per_second).sum())
        };
        // The first write of a page of tmpfs allocates it; only the later ones tell the drive's speed.
        together(targets().map(|target| Job::prefill(target, self.drive_bytes())).collect())?;
        let written = together(targets().map(|target| self.sequential(target, Mode::Write)).collect())?;
        let read = together(targets().map(|target| self.sequential(target, Mode::Read)).collect())?;
        figures.raw_write_mib_per_second = Some(written / REPLICAS as f64);
        figures.raw_read_mib_per_second = Some(read);
        Ok(())
    }

    fn measure_at_rest(&self, cluster: &Cluster, figures: &mut Figures) -> Result<(), TestbedError> {
        figures.index_bytes = cluster.osds()?.iter().filter_map(|osd| osd.index_bytes).max();
        let blocks = self.volume_bytes / BLOCK_BYTES as u64;
        figures.index_bytes_per_block = figures.index_bytes.map(|bytes| bytes as f64 / blocks as f64);
        let monitor = Monitor::new(cluster.processes()?);
        let before = monitor.snapshot();
        std::thread::sleep(IDLE_TIME);
        let usage = monitor.usage(&before, &monitor.snapshot());
        figures.idle_cpu_percent = usage.nodes_us().map(|us| us / 1e6 / usage.seconds * 100.0);
        Ok(())
    }

    /// In turns with Ceph, if there is one.
    fn measure_nbd(&self, cluster: &Cluster, figures: &mut Figures) -> Result<(), SuiteError> {
        let server = cluster.serve(VOLUME)?;
        let nbd = FioTarget::Nbd { uri: server.uri().to_owned() };
        let bytes = PEER_BYTES.min(self.volume_bytes);
        let mixed = Job {
            depth: 64,
            mix_read_percent: 75,
            runtime: Some(self.options.runtime),
            ramp: Duration::from_secs(1),
            size: Some(bytes),
            ..Job::new(self.volume.clone(), Mode::RandomReadWrite)
        };
        let ceph = self.options.ceph_configuration.as_ref().map(|configuration| FioTarget::Rbd {
            configuration: configuration.clone(),
            pool: "rbd".to_owned(),
            image: "test".to_owned(),
        });
        if let Some(ceph) = &ceph {
            jobs::fio(ceph, &Job::prefill(self.volume.clone(), bytes))?;
        }
        for _ in 0..self.options.run.rounds {
            figures.nbd_iops.push(jobs::fio(&nbd, &mixed)?.iops);
            if let Some(ceph) = &ceph {
                figures.ceph_iops.push(jobs::fio(ceph, &mixed)?.iops);
            }
        }
        Ok(())
    }

    /// One OSD, much of it written in large and some in small pieces, and killed. Not measured where the
    /// memory is too small.
    fn measure_restart(&self, figures: &mut Figures) -> Result<(), SuiteError> {
        let drive_bytes = RESTART_BYTES / 3 * 4;
        if free_bytes(&self.options.run.directory).unwrap_or(0) < drive_bytes + RESTART_BYTES / 8 {
            return Ok(());
        }
        let drive = LoopDevice::new(self.testbed.directory(), "restart", drive_bytes)?;
        let directory = self.testbed.directory().join("restart-cluster");
        let cluster = Cluster::start(&self.options.run.millpond, &directory, &[drive.path()])?;
        cluster.create_volume(VOLUME, RESTART_BYTES, None)?;
        self.run_on(&cluster, &Job::prefill(self.volume.clone(), RESTART_BYTES))?;
        let overwrite = Job::new(self.volume.clone(), Mode::RandomWrite);
        self.run_on(&cluster, &Job { depth: 64, runtime: Some(self.options.runtime), ..overwrite })?;
        cluster.kill()?;
        figures.restart_bytes = Some(RESTART_BYTES);
        figures.restart_seconds = Some(cluster.start_again()?.as_secs_f64());
        Ok(())
    }

    /// On fresh drives: filled to 80 %, then overwritten at random with twice their capacity.
    fn aged_write_amplification(&self) -> Result<Option<f64>, SuiteError> {
        let drives = self.drives("aged")?;
        let cluster = Cluster::start(
            &self.options.run.millpond,
            &self.testbed.directory().join("aged-cluster"),
            &drives.iter().map(LoopDevice::path).collect::<Vec<_>>(),
        )?;
        let usable = cluster.osds()?.iter().filter_map(|osd| osd.usable_bytes).min();
        let filled = usable.unwrap_or(self.drive_bytes()) / 100 * AGED_PERCENT / MIB * MIB;
        let overwritten = 2 * self.drive_bytes();
        cluster.create_volume(VOLUME, filled, None)?;
        self.run_on(&cluster, &Job::prefill(self.volume.clone(), filled))?;
        let before = write_amplification(&cluster)?;
        let overwrite = Job::new(self.volume.clone(), Mode::RandomWrite);
        self.run_on(&cluster, &Job { depth: 64, runtime: None, io_size: Some(overwritten), ..overwrite })?;
        let after = write_amplification(&cluster)?;
        Ok(before
            .zip(after)
            .and_then(|(before, after)| overwrite_amplification(before, filled, after, overwritten)))
    }
}

/// The average over the OSDs, each of which holds everything; `None` if one does not tell.
fn write_amplification(cluster: &Cluster) -> Result<Option<f64>, TestbedError> {
    std::thread::sleep(STATUS_DELAY);
    let osds = cluster.osds()?;
    let sum: Option<f64> = osds.iter().map(|osd| osd.write_amplification).sum();
    Ok(sum.filter(|_| !osds.is_empty()).map(|sum| sum / osds.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_fits_the_memory() {
        assert_eq!(fitting_volume_bytes(0), None);
        assert_eq!(fitting_volume_bytes(2 << 30), None);
        assert_eq!(fitting_volume_bytes(200 << 30), Some(4 << 30));
        let free = 23 << 30;
        let volume = fitting_volume_bytes(free).unwrap();
        assert!(volume >= 2 << 30 && volume * PARTS <= free / 5 * 4, "{volume}");
    }
}
