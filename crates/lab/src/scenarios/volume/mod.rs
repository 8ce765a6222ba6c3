//! What `make bench` measures: a raw device and a replicated volume, in turns in one run, and other figures of a cluster.
//!
//! Everything is made of memory: a raw loop device on tmpfs as large as the volume, and three drives of twice
//! that size for the cluster. So what is compared is software, and each figure is the distance from a device.

mod summary;

use super::{DRIVE_PER_VOLUME, VOLUME, say, trials};
use crate::engine::cpu::Monitor;
use crate::engine::plan::{Job, Mode, TargetName, parse_seconds};
use crate::testbed::jobs::{self, FioTarget};
use crate::testbed::{Cluster, LoopDevice, REPLICAS, STATUS_DELAY, Testbed};
use base::BLOCK_BYTES;
use base::units::ByteSize;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use summary::{FIO, Figures, RAW, SUBJECTS, Setup, Summary};

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

/// How it is run.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How often every case is measured; the median counts, and fewer than six have no interval
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = super::rounds())]
    rounds: u32,

    /// How long each job is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    runtime: Duration,

    /// The volume's size; as large as the free memory allows, up to 4GiB, if not given
    #[arg(long, value_name = "SIZE")]
    volume_size: Option<ByteSize>,

    /// One round of three seconds and no ageing: to see that it works, not to publish
    #[arg(long)]
    quick: bool,

    /// Compare fio over NBD with fio on the image rbd/test of the Ceph cluster of this configuration
    #[arg(long, value_name = "FILE")]
    ceph_conf: Option<PathBuf>,
}

/// The largest volume whose test bed fits: a raw device as large as it, and the cluster's drives. A fifth of
/// the free memory is left to the processes.
fn fitting_volume_bytes(free: u64) -> u64 {
    (free / 5 * 4 / PARTS / (64 * MIB) * (64 * MIB)).clamp(VOLUME_BYTES_MIN, VOLUME_BYTES_MAX)
}

/// Sets up drives and a cluster, measures, and takes everything down.
pub fn run(testbed: &Testbed, options: &Options) -> anyhow::Result<impl fmt::Display + Serialize> {
    let volume_bytes = match options.volume_size {
        Some(size) => size.0.max(VOLUME_BYTES_MIN) / MIB * MIB,
        None => {
            let bytes = fitting_volume_bytes(testbed.free_bytes());
            testbed.require_free(bytes * PARTS)?;
            bytes
        }
    };
    let raw = LoopDevice::new(testbed.directory(), "raw", volume_bytes)?;
    let (rounds, runtime) = match options.quick {
        true => (1, Duration::from_secs(3)),
        false => (options.rounds, options.runtime),
    };
    let bench =
        Bench { testbed, rounds, runtime, volume_bytes, drive_bytes: volume_bytes * DRIVE_PER_VOLUME };
    let mut figures = Figures::default();
    let drives = testbed.drives("drive", REPLICAS, bench.drive_bytes)?;
    let direct_io = raw.direct_io() && drives.iter().all(LoopDevice::direct_io);
    say("filling the drives, which also shows how fast they are");
    testbed.bench(&Job::prefill(TargetName::Raw(raw.path().to_owned()), volume_bytes))?;
    bench.measure_drives(&drives, &mut figures)?;
    let (mut trials, mut fresh) = summary::trials();
    bench.measure_fresh(&drives, &raw, &mut fresh)?;
    say("starting the cluster and filling the volume");
    let cluster = testbed.cluster("cluster", &drives, REPLICAS)?;
    cluster.filled_volume(VOLUME, volume_bytes, None)?;
    say("sequential writes and reads");
    let sequential = |mode| cluster.bench(&bench.sequential(volume(), mode));
    figures.volume_write_mib_per_second = Some(sequential(Mode::Write)?.mib_per_second);
    figures.volume_read_mib_per_second = Some(sequential(Mode::Read)?.mib_per_second);
    trials::measure(rounds, &SUBJECTS, &mut trials, |subject, trial, round| {
        let job = |target| Job { size: Some(volume_bytes), ..trial.job(target, runtime, round) };
        match subject {
            RAW => testbed.bench(&job(TargetName::Raw(raw.path().to_owned()))),
            FIO => jobs::fio(&FioTarget::Device(raw.path().to_owned()), &job(volume())),
            _ => cluster.bench(&job(volume())),
        }
    })?;
    trials.push(fresh);
    say("sequential reads of what was overwritten at random");
    figures.overwritten_read_mib_per_second = Some(sequential(Mode::Read)?.mib_per_second);
    say("fio over NBD");
    bench.measure_nbd(&cluster, options.ceph_conf.as_ref(), &mut figures)?;
    say("watching the idle cluster");
    std::thread::sleep(STATUS_DELAY);
    bench.measure_at_rest(&cluster, &mut figures)?;
    drop(cluster);
    drop(drives);
    if !options.quick {
        say("ageing drives at 80 % full with random overwrites of twice their capacity");
        figures.write_amplification = bench.aged_write_amplification()?;
        say("killing an OSD with 8 GiB on it");
        bench.measure_restart(&mut figures)?;
    }
    let setup = Setup {
        directory: testbed.directory().parent().unwrap_or(testbed.directory()).display().to_string(),
        volume_bytes,
        drive_bytes: bench.drive_bytes,
        direct_io,
        rounds,
        runtime_seconds: runtime.as_secs_f64(),
    };
    Ok(Summary::new(setup, trials, figures))
}

fn volume() -> TargetName {
    TargetName::Volume(VOLUME.to_owned())
}

/// What the jobs of one run have in common.
struct Bench<'a> {
    testbed: &'a Testbed,
    rounds: u32,
    runtime: Duration,
    volume_bytes: u64,
    drive_bytes: u64,
}

impl Bench<'_> {
    fn sequential(&self, target: TargetName, mode: Mode) -> Job {
        Job { block: ByteSize(MIB), depth: 8, runtime: Some(self.runtime), ..Job::new(target, mode) }
    }

    /// All drives at the same time, since that is how a cluster uses them.
    fn measure_drives(&self, drives: &[LoopDevice], figures: &mut Figures) -> anyhow::Result<()> {
        let together = |job: &dyn Fn(TargetName) -> Job| -> anyhow::Result<f64> {
            let jobs = drives.iter().map(|drive| job(TargetName::Raw(drive.path().to_owned())));
            let samples = self.testbed.bench_together(&jobs.collect::<Vec<_>>())?;
            Ok(samples.iter().map(|sample| sample.mib_per_second).sum())
        };
        // The first write of a page of tmpfs allocates it; only the later ones tell the drive's speed.
        together(&|target| Job::prefill(target, self.drive_bytes))?;
        let written = together(&|target| self.sequential(target, Mode::Write))?;
        figures.raw_write_mib_per_second = Some(written / REPLICAS as f64);
        figures.raw_read_mib_per_second = Some(together(&|target| self.sequential(target, Mode::Read))?);
        Ok(())
    }

    /// Writes to a cluster whose drives have never been full, so that its cleaner is idle. In all rounds together no more is
    /// written than half of a drive.
    fn measure_fresh(
        &self,
        drives: &[LoopDevice],
        raw: &LoopDevice,
        fresh: &mut trials::Trial,
    ) -> anyhow::Result<()> {
        say("starting a cluster on which nothing is to be cleaned");
        let cluster = self.testbed.cluster("fresh-cluster", drives, REPLICAS)?;
        let volume_bytes = self.volume_bytes / 4;
        cluster.filled_volume(VOLUME, volume_bytes, None)?;
        let io_size = self.drive_bytes / 2 / u64::from(self.rounds);
        trials::measure(self.rounds, &SUBJECTS, std::slice::from_mut(fresh), |subject, trial, round| {
            let job = |target| Job {
                size: Some(volume_bytes),
                io_size: Some(io_size),
                ramp: Duration::ZERO,
                ..trial.job(target, self.runtime, round)
            };
            match subject {
                RAW => self.testbed.bench(&job(TargetName::Raw(raw.path().to_owned()))),
                _ => cluster.bench(&job(volume())),
            }
        })
    }

    fn measure_at_rest(&self, cluster: &Cluster, figures: &mut Figures) -> anyhow::Result<()> {
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
    fn measure_nbd(
        &self,
        cluster: &Cluster,
        ceph: Option<&PathBuf>,
        figures: &mut Figures,
    ) -> anyhow::Result<()> {
        let server = cluster.serve(VOLUME)?;
        let nbd = FioTarget::Nbd { uri: server.uri.clone() };
        let bytes = PEER_BYTES.min(self.volume_bytes);
        let trial = trials::Trial::new(Mode::RandomReadWrite, 4096, 64, 1);
        // fio tells nothing of what it did during a ramp.
        let mixed = Job { size: Some(bytes), ramp: Duration::ZERO, ..trial.job(volume(), self.runtime, 0) };
        let ceph = ceph.map(|configuration| FioTarget::Rbd {
            configuration: configuration.clone(),
            pool: "rbd".to_owned(),
            image: "test".to_owned(),
        });
        if let Some(ceph) = &ceph {
            jobs::fio(ceph, &Job::prefill(volume(), bytes))?;
        }
        for _ in 0..self.rounds {
            figures.nbd.push(jobs::fio(&nbd, &mixed)?);
            if let Some(ceph) = &ceph {
                figures.ceph.push(jobs::fio(ceph, &mixed)?);
            }
        }
        Ok(())
    }

    /// One OSD, much of it written in large and some in small pieces, and killed. Not measured where the
    /// memory is too small.
    fn measure_restart(&self, figures: &mut Figures) -> anyhow::Result<()> {
        let drive_bytes = RESTART_BYTES / 3 * 4;
        if self.testbed.free_bytes() < drive_bytes + RESTART_BYTES / 8 {
            return Ok(());
        }
        let drives = self.testbed.drives("restart", 1, drive_bytes)?;
        let cluster = self.testbed.cluster("restart-cluster", &drives, 1)?;
        cluster.filled_volume(VOLUME, RESTART_BYTES, None)?;
        let overwrite = Job::new(volume(), Mode::RandomWrite);
        cluster.bench(&Job { depth: 64, runtime: Some(self.runtime), ..overwrite })?;
        cluster.kill()?;
        figures.restart_bytes = Some(RESTART_BYTES);
        figures.restart_seconds = Some(cluster.start_again()?.as_secs_f64());
        Ok(())
    }

    /// On fresh drives: filled to 80 %, then overwritten at random with twice their capacity.
    fn aged_write_amplification(&self) -> anyhow::Result<Option<f64>> {
        let drives = self.testbed.drives("aged", REPLICAS, self.drive_bytes)?;
        let cluster = self.testbed.cluster("aged-cluster", &drives, REPLICAS)?;
        let usable = cluster.osds()?.iter().filter_map(|osd| osd.usable_bytes).min();
        let filled = usable.unwrap_or(self.drive_bytes) / 100 * AGED_PERCENT / MIB * MIB;
        let overwritten = 2 * self.drive_bytes;
        cluster.filled_volume(VOLUME, filled, None)?;
        let before = write_amplification(&cluster)?;
        let overwrite = Job::new(volume(), Mode::RandomWrite);
        cluster.bench(&Job { depth: 64, runtime: None, io_size: Some(overwritten), ..overwrite })?;
        let of_all = before.zip(write_amplification(&cluster)?);
        Ok(of_all.map(|(before, after)| overwrite_amplification(before, filled, after, overwritten)))
    }
}

/// The average over the OSDs, each of which holds everything; `None` if one does not tell.
fn write_amplification(cluster: &Cluster) -> anyhow::Result<Option<f64>> {
    std::thread::sleep(STATUS_DELAY);
    let osds = cluster.osds()?;
    let sum: Option<f64> = osds.iter().map(|osd| osd.write_amplification).sum();
    Ok(sum.filter(|_| !osds.is_empty()).map(|sum| sum / osds.len() as f64))
}

/// Random overwrites' own write amplification: from what an OSD says of its whole life before and after.
/// `filled` bytes had been written before, and `overwritten` came on top.
fn overwrite_amplification(before: f64, filled: u64, after: f64, overwritten: u64) -> f64 {
    let (filled, overwritten) = (filled as f64, overwritten as f64);
    (after * (filled + overwritten) - before * filled) / overwritten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_fits_the_memory() {
        assert_eq!(
            fitting_volume_bytes(0),
            VOLUME_BYTES_MIN,
            "which is refused then, and says how much is needed"
        );
        assert_eq!(fitting_volume_bytes(200 << 30), 4 << 30);
        let free = 23 << 30;
        let volume = fitting_volume_bytes(free);
        assert!(volume >= 2 << 30 && volume * PARTS <= free / 5 * 4, "{volume}");
    }

    #[test]
    fn overwrites_are_told_apart_from_the_fill_before_them() {
        // 8 filled at 1.0x, then 20 overwritten at 3.0x: 68 written for 28.
        let amplification = overwrite_amplification(1.0, 8, 68.0 / 28.0, 20);
        assert!((amplification - 3.0).abs() < 1e-9);
    }
}
