//! What `make bench-failover` measures: how long clients wait when a node is lost, how long until everything is
//! redundant again, what clients notice of that, how fast a new OSD is filled, and what a scrub costs.
//!
//! Pauses are measured on a volume whose pool has one placement group, so that it is known whether the lost node led it.
//! The rest is measured on a volume of the pool that every cluster begins with.
//!
//! All nodes share one host here. One that vanishes without closing its connections is played by one that stands still
//! (SIGSTOP): to its peers both are silence. What is kept in its sockets it answers late, which a lost host would not.

mod backfill;
mod impact;
mod loss;
mod scrub;
mod summary;

pub use backfill::{BackfillResult, Foreground};
pub use impact::Impact;
pub use loss::{CatchUpResult, Loss, LossResult};
pub use scrub::ScrubResult;
pub use summary::{Rounds, Summary};

use crate::engine::plan::{Job, Mode, TargetName};
use crate::scenarios::jobs::{self, JobError};
use crate::scenarios::steady::{self, LoadError, Timeline};
use crate::scenarios::{REPLICAS, Run, RunError};
use crate::testbed::command::CommandError;
use crate::testbed::{Cluster, LoopDevice, PgFigures, Testbed, TestbedError};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use volume::ClusterAccess;

/// One is free for the OSD that comes new.
const DRIVES: usize = REPLICAS + 1;
/// A drive is so many times the volume of many groups.
const DRIVE_PER_VOLUME: u64 = 4;
/// The volume of many groups is so many times the other one. Were they equal, half of all data would lie in one group,
/// and filling an OSD and scrubbing would tell how fast one group is, not how fast an OSD.
const SPREAD_PER_SINGLE: u64 = 8;
/// The volume in a pool of one group, and its pool.
const SINGLE: &str = "single";
/// The volume in the pool of many groups.
const SPREAD: &str = "spread";
const MIB: u64 = 1 << 20;
/// How long the load runs before anything counts.
const WARM_TIME: Duration = Duration::from_secs(2);
/// How long it counts before what happens and after it.
const STEADY_TIME: Duration = Duration::from_secs(5);
/// Writes in flight while the drives are used up.
const AGEING_DEPTH: u32 = 64;
/// How long a node stands still.
const AWAY_TIME: Duration = Duration::from_secs(10);
/// How long everything may take to be redundant again.
const WHOLE_LIMIT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum FailoverError {
    /// There is nothing to measure on.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The cluster cannot be set up, or asked.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// Filling a volume failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The load did not survive.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The cluster does not become redundant again.
    #[error(
        "{lacking} placement groups are not in sync where they shall lie {} s after {after}; the first is {first:?}",
        WHOLE_LIMIT.as_secs()
    )]
    NotWhole {
        /// How many.
        lacking: usize,
        /// After what.
        after: String,
        /// The first.
        first: Box<PgFigures>,
    },
    /// A scrub does not come to its end.
    #[error(
        "{left} placement groups were not scrubbed deeply within {} s; is the machine too busy, or the volume too large \
         (--volume-size)?",
        WHOLE_LIMIT.as_secs()
    )]
    NotScrubbed {
        /// How many.
        left: usize,
    },
    /// The status does not say what it must.
    #[error(
        "`millpond status` and `millpond pg dump` do not show {0}; are the suite and millpond of one build?"
    )]
    Unknown(String),
}

/// How it is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every run is told.
    pub run: Run,
    /// Bytes of the volume of many groups.
    pub volume_bytes: u64,
}

impl Options {
    /// Bytes of the volume of one group.
    fn single_bytes(&self) -> u64 {
        (self.volume_bytes / SPREAD_PER_SINGLE).next_multiple_of(MIB)
    }
}

/// Sets up drives and a cluster, measures, and takes everything down. `progress` is told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Summary, FailoverError> {
    let testbed = Testbed::new(&options.run.directory, &options.run.millpond)?;
    let drive_bytes = options.volume_bytes * DRIVE_PER_VOLUME;
    progress("filling the drives");
    let drives = options.run.written_drives(&testbed, "drive", DRIVES, drive_bytes)?;
    progress("starting the cluster and filling two volumes");
    let devices: Vec<_> = drives[..REPLICAS].iter().map(LoopDevice::path).collect();
    let cluster = Cluster::start(&options.run.millpond, &testbed.directory().join("cluster"), &devices)?;
    let pool = cluster.create_pool(SINGLE, 1)?;
    let volumes = [(SINGLE, options.single_bytes()), (SPREAD, options.volume_bytes)];
    for (volume, bytes) in volumes {
        match volume {
            SINGLE => cluster.create_volume(volume, bytes, Some(SINGLE))?,
            _ => cluster.create_volume(volume, bytes, None)?,
        }
        let job = Job::prefill(TargetName::Volume(volume.to_owned()), bytes);
        jobs::bench(&options.run.millpond, cluster.directory(), &job)?;
    }
    progress(
        "overwriting at random until drives are used up once, since cleaning is part of what clients notice",
    );
    let overwrite = Job::new(TargetName::Volume(SPREAD.to_owned()), Mode::RandomWrite);
    let overwrite = Job { depth: AGEING_DEPTH, io_size: Some(drive_bytes), ..overwrite };
    jobs::bench(&options.run.millpond, cluster.directory(), &overwrite)?;
    let bench = Bench {
        millpond: &options.run.millpond,
        cluster: &cluster,
        drives: &drives,
        drive_bytes,
        group: format!("{pool}.0"),
    };
    bench.becomes_whole("the start")?;
    let mut rounds = Rounds::default();
    for round in 1..=options.run.rounds {
        bench.measure(round, &mut rounds, &mut progress)?;
    }
    Ok(Summary::new(options, rounds))
}

/// Lets the load run while nothing else happens; answers when it counts.
fn stretch_of_calm() -> Range<Instant> {
    std::thread::sleep(WARM_TIME);
    let start = Instant::now();
    std::thread::sleep(STEADY_TIME);
    start..Instant::now()
}

struct Bench<'a> {
    millpond: &'a Path,
    cluster: &'a Cluster,
    /// One of them has no OSD.
    drives: &'a [LoopDevice],
    /// Of each drive.
    drive_bytes: u64,
    /// The one group of the pool of one.
    group: String,
}

impl Bench<'_> {
    /// One round of everything.
    fn measure(
        &self,
        round: u32,
        rounds: &mut Rounds,
        progress: &mut impl FnMut(&str),
    ) -> Result<(), FailoverError> {
        for loss in Loss::ALL {
            progress(&format!("round {round}: {}", loss.explained()));
            rounds.losses.entry(loss.name().to_owned()).or_default().push(self.lose(loss, round)?);
        }
        progress(&format!("round {round}: catching up after {} s away", AWAY_TIME.as_secs()));
        rounds.catch_ups.push(self.catch_up(round)?);
        for foreground in Foreground::ALL {
            progress(&format!("round {round}: filling a new OSD {}", foreground.explained()));
            let results = rounds.backfills.entry(foreground.name().to_owned()).or_default();
            results.push(self.backfill(foreground, round)?);
        }
        progress(&format!("round {round}: a deep scrub of everything under the load"));
        rounds.scrubs.push(self.scrub(round)?);
        Ok(())
    }

    /// Does `what` while a load runs on `volume`.
    fn under_load<T>(
        &self,
        volume: &str,
        round: u32,
        what: impl FnOnce() -> Result<T, FailoverError>,
    ) -> Result<(Timeline, T), FailoverError> {
        let enough = AtomicBool::new(false);
        let cluster = ClusterAccess::local(self.cluster.directory()).map_err(LoadError::from)?;
        std::thread::scope(|scope| {
            let load = scope.spawn(|| steady::run(&cluster, volume, u64::from(round), &enough));
            let happened = what();
            enough.store(true, Ordering::Relaxed);
            let timeline = load.join().expect("the load returns errors and does not panic")?;
            Ok((timeline, happened?))
        })
    }

    /// Waits until every group is active with all of its members in sync; answers when that was.
    fn becomes_whole(&self, after: &str) -> Result<Instant, FailoverError> {
        let started = Instant::now();
        loop {
            let mut groups = self.cluster.pgs()?;
            let now = Instant::now();
            groups.retain(|group| !group.is_settled() || group.in_sync.len() != REPLICAS);
            if groups.is_empty() {
                return Ok(now);
            }
            if started.elapsed() > WHOLE_LIMIT {
                let lacking = groups.len();
                let first = Box::new(groups.swap_remove(0));
                return Err(FailoverError::NotWhole { lacking, after: after.to_owned(), first });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
