//! fio, writing and verifying on a volume while a test does something to the cluster.

use super::random::Random;
use super::replicas::replicas_are_equal;
use super::site::Cluster;
use super::whole::{BLOCK, becomes_whole};
use super::{OnDrop, Process};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a run of fio may take. It writes and verifies 8 MiB, and waits out a few failures meanwhile.
const FIO_LIMIT: Duration = Duration::from_secs(240);

/// Runs fio on a cluster, does `trouble` to it meanwhile, and looks at everything afterwards. Each OSD needs 3 GiB.
pub fn fio_notices_nothing_of<C: Cluster>(cluster: &C, trouble: impl FnOnce(&C)) {
    cluster.volume("v", "1GiB");
    let mut door = cluster.serve("v");
    becomes_whole(cluster);
    let enough = AtomicBool::new(false);
    let jobs: Vec<FioJob> = std::thread::scope(|scope| {
        // Also when `trouble` panics: the scope waits for its threads.
        let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
        let verifying = [0, 1].map(|half| {
            let (scratch, uri, enough) = (cluster.scratch(), door.uri(), &enough);
            scope.spawn(move || verify_until(enough, scratch, &uri, half))
        });
        trouble(cluster);
        assert!(verifying.iter().all(|thread| !thread.is_finished()), "fio ended early");
        enough.store(true, Ordering::Relaxed);
        verifying.into_iter().flat_map(|thread| thread.join().expect("fio found nothing")).collect()
    });
    assert!(door.runs(), "the NBD server ended");
    becomes_whole(cluster);
    for job in &jobs {
        // From the seed of the last job of each part fio knows what it must find.
        job.run(cluster.scratch(), &door.uri(), &["--verify_only"]);
    }
    drop(door);
    replicas_are_equal(cluster, jobs.len() as u64 * FioJob::BYTES / BLOCK);
}

/// Writes and verifies, again and again. Answers the last job of each part of the half.
fn verify_until(enough: &AtomicBool, scratch: &Path, uri: &str, half: u64) -> Vec<FioJob> {
    let mut random = Random::seeded();
    let mut jobs = BTreeMap::new();
    let mut count = 0;
    while !enough.load(Ordering::Relaxed) {
        // One part after the other, so that what a member missed is not soon written over.
        let job = FioJob { half, part: count % FioJob::PARTS, seed: random.below(1 << 30) };
        // Verifying not only at the end of a job: reads and writes are mixed at any time.
        // Some 2 MiB a second: what a member missed is what healing takes, and how fast that is beside a full load is measured
        // elsewhere. By pauses, since fio keeps a rate by looking at the clock all the time.
        let blocks = format!("--thinktime_blocks={}", if half == 0 { 128 } else { 8 });
        job.run(scratch, uri, &["--verify_backlog=512", "--thinktime=250ms", &blocks]);
        jobs.insert(job.part, job);
        count += 1;
    }
    eprintln!("fio wrote and verified {count} parts of half {half}");
    jobs.into_values().collect()
}

/// One run of fio: whole blocks in the first half of the volume, anything in the second.
struct FioJob {
    half: u64,
    part: u64,
    seed: u64,
}

impl FioJob {
    const BYTES: u64 = 8 << 20;
    const PARTS: u64 = 64;

    pub fn run(&self, scratch: &Path, uri: &str, more: &[&str]) {
        let sizes = if self.half == 0 { "--bs=4k" } else { "--bsrange=512-128k" };
        let mut command = Command::new("fio");
        command
            .args(["--name=failover", "--ioengine=nbd", "--rw=randwrite", "--iodepth=16", sizes])
            .args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--randrepeat=0"])
            .arg(format!("--uri={uri}"))
            .arg(format!("--offset={}", (self.half * Self::PARTS + self.part) * Self::BYTES))
            .arg(format!("--size={}", Self::BYTES))
            .arg(format!("--randseed={}", self.seed))
            .args(more);
        let mut fio = Process::start(&mut command, &scratch.join(format!("fio.{}.log", self.half)));
        let status = fio.ends_within(FIO_LIMIT);
        assert!(status.success(), "fio: {status}: {}", fio.said());
    }
}
