//! What `make bench-failover` measures: how long clients wait when a node is lost, how long until everything is
//! redundant again, what clients notice of that, how fast a new OSD is filled, and what a scrub costs.
//!
//! Pauses are measured on a volume whose pool has one placement group, so that it is known whether the lost node led it.
//! The rest is measured on a volume of the pool that every cluster begins with.
//!
//! All nodes share one host here. One that vanishes without closing its connections is played by one that stands still
//! (SIGSTOP): to its peers both are silence. What is kept in its sockets it answers late, which a lost host would not.

mod backfill;
mod loss;
mod scrub;
mod summary;

use super::say;
use super::steady::{self, Timeline};
use crate::engine::plan::{Job, Mode, TargetName};
use crate::testbed::{Cluster, LoopDevice, REPLICAS, Testbed, is_settled};
use backfill::FOREGROUNDS;
use base::units::ByteSize;
use base::{OsdId, PgId, PoolId};
use loss::LOSSES;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use summary::{Rounds, Summary};
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

/// How it is run.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How often each is measured; the worst counts
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = super::rounds())]
    rounds: u32,

    /// The size of the volume in many placement groups; the one in a single group has an eighth of it
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    volume_size: ByteSize,
}

/// Sets up drives and a cluster, measures, and takes everything down.
pub fn run(testbed: &Testbed, options: &Options) -> anyhow::Result<impl fmt::Display + Serialize> {
    let volume_bytes = options.volume_size.0;
    let single_bytes = (volume_bytes / SPREAD_PER_SINGLE).next_multiple_of(1 << 20);
    let drive_bytes = volume_bytes * DRIVE_PER_VOLUME;
    say("filling the drives");
    let drives = testbed.written_drives("drive", DRIVES, drive_bytes)?;
    say("starting the cluster and filling two volumes");
    let cluster = testbed.cluster("cluster", &drives[..REPLICAS], REPLICAS)?;
    let pool = PoolId(cluster.create_pool(SINGLE, 1)?.try_into()?);
    cluster.filled_volume(SINGLE, single_bytes, Some(SINGLE))?;
    cluster.filled_volume(SPREAD, volume_bytes, None)?;
    say("overwriting at random until drives are used up once, since cleaning is part of what clients notice");
    let overwrite = Job::new(TargetName::Volume(SPREAD.to_owned()), Mode::RandomWrite);
    cluster.bench(&Job { depth: AGEING_DEPTH, io_size: Some(drive_bytes), ..overwrite })?;
    let group = PgId { pool, index: 0 };
    let bench = Bench { testbed, cluster: &cluster, drives: &drives, drive_bytes, group };
    bench.becomes_whole("the start")?;
    let mut rounds = Rounds::default();
    for round in 1..=options.rounds {
        bench.measure(round, &mut rounds)?;
    }
    Ok(Summary::new(volume_bytes, single_bytes, rounds))
}

/// Lets the load run while nothing else happens; answers when it counts.
fn stretch_of_calm() -> Range<Instant> {
    std::thread::sleep(WARM_TIME);
    let start = Instant::now();
    std::thread::sleep(STEADY_TIME);
    start..Instant::now()
}

struct Bench<'a> {
    testbed: &'a Testbed,
    cluster: &'a Cluster,
    /// One of them has no OSD.
    drives: &'a [LoopDevice],
    /// Of each drive.
    drive_bytes: u64,
    /// The one group of the pool of one.
    group: PgId,
}

impl Bench<'_> {
    /// One round of everything.
    fn measure(&self, round: u32, rounds: &mut Rounds) -> anyhow::Result<()> {
        for loss in &LOSSES {
            say(&format!("round {round}: {}", loss.explained));
            rounds.losses.entry(loss.name).or_default().push(self.lose(loss, round)?);
        }
        say(&format!("round {round}: catching up after {} s away", AWAY_TIME.as_secs()));
        rounds.catch_ups.push(self.catch_up(round)?);
        for (name, explained) in FOREGROUNDS {
            say(&format!("round {round}: filling a new OSD {explained}"));
            let clients = (name == backfill::LOADED).then_some(round);
            rounds.backfills.entry(name).or_default().push(self.backfill(clients)?);
        }
        say(&format!("round {round}: a deep scrub of everything under the load"));
        rounds.scrubs.push(self.scrub(round)?);
        Ok(())
    }

    /// Does `what` while a load runs on `volume`.
    fn under_load<T>(
        &self,
        volume: &str,
        round: u32,
        what: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(Timeline, T)> {
        let enough = AtomicBool::new(false);
        let cluster = ClusterAccess::local(self.cluster.directory())?;
        std::thread::scope(|scope| {
            let load = scope.spawn(|| steady::run(&cluster, volume, u64::from(round), &enough));
            let happened = what();
            enough.store(true, Ordering::Relaxed);
            let timeline = load.join().expect("the load returns errors and does not panic")?;
            Ok((timeline, happened?))
        })
    }

    /// Waits until every group is active with all of its members in sync; answers when that was.
    fn becomes_whole(&self, after: &str) -> anyhow::Result<Instant> {
        let groups = self.cluster.wait_for_pgs(after, WHOLE_LIMIT, POLL_INTERVAL, |group| {
            is_settled(group) && group.in_sync.len() == REPLICAS
        });
        groups.map(|(when, _)| when)
    }
}

/// Where the status does not say what it must.
fn unknown(what: &str) -> String {
    format!(
        "`millpond status` and `millpond pg dump` do not show {what}; are this program and millpond of one build?"
    )
}

/// The process of an OSD.
fn process_of(cluster: &Cluster, osd: OsdId) -> anyhow::Result<u32> {
    let found = cluster.osds()?.into_iter().find(|one| one.osd == osd);
    found.and_then(|osd| osd.pid).ok_or_else(|| anyhow::anyhow!(unknown(&format!("the process of {osd}"))))
}
