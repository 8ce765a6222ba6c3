//! What `make bench-failover` measures: how long clients wait when a node is lost, how long until everything is
//! redundant again, and what clients notice of that.
//!
//! Pauses are measured on a volume whose pool has one placement group, so that it is known whether the lost node led it.
//! Catching up is measured on a volume of the pool that every cluster begins with.
//!
//! All nodes share one host here. One that vanishes without closing its connections is played by one that stands still
//! (SIGSTOP): to its peers both are silence. What is kept in its sockets it answers late, which a lost host would not.

use crate::cleanup::Undo;
use crate::command::CommandError;
use crate::cpu::Machine;
use crate::jobs::{self, JobError};
use crate::plan::{Job, TargetName};
use crate::report::grouped;
use crate::steady::{self, LoadError, Stretch, Timeline};
use crate::testbed::{Cluster, LoopDevice, PgFigures, Testbed, TestbedError, free_bytes};
use base::units::ByteSize;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const REPLICAS: usize = 3;
/// A drive is so many times one of the two volumes on it: half full.
const DRIVE_PER_VOLUME: u64 = 4;
/// The volume in a pool of one group, and its pool.
const SINGLE: &str = "single";
/// The volume in the pool of many groups.
const SPREAD: &str = "spread";
/// How long the load runs before and after what happens.
const STEADY_TIME: Duration = Duration::from_secs(5);
/// How long a node stands still.
const AWAY_TIME: Duration = Duration::from_secs(10);
/// How long everything may take to be redundant again.
const WHOLE_LIMIT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The process of a replica is killed.
    Replica,
    /// The process of the primary is killed.
    Primary,
    /// The primary's host vanishes without closing its connections.
    Host,
}

impl Loss {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Loss; 3] = [Loss::Replica, Loss::Primary, Loss::Host];

    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::Replica => "replica",
            Loss::Primary => "primary",
            Loss::Host => "host",
        }
    }

    /// What the pause must stay below, in seconds.
    #[must_use]
    pub fn must_s(self) -> f64 {
        match self {
            Loss::Replica | Loss::Primary => 3.0,
            Loss::Host => 6.0,
        }
    }

    fn explained(self) -> &'static str {
        match self {
            Loss::Replica => "SIGKILL of a replica's node",
            Loss::Primary => "SIGKILL of the primary's node",
            Loss::Host => {
                "the primary's node stands still for 10 s (SIGSTOP), in place of a host that vanishes"
            }
        }
    }
}

/// Why a run came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum FailoverError {
    /// There is nothing to measure on.
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
        "{lacking} placement groups are not in sync on all nodes {} s after {after}; the first is {first:?}",
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
    /// The status does not say what it must.
    #[error(
        "`millpond status` and `millpond pg dump` do not show {0}; are the suite and millpond of one build?"
    )]
    Unknown(String),
}

/// How it is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `millpond` to measure.
    pub millpond: PathBuf,
    /// A tmpfs for the drives.
    pub directory: PathBuf,
    /// How often each is measured.
    pub rounds: u32,
    /// Bytes of each of the two volumes.
    pub volume_bytes: u64,
    /// Printed with the results.
    pub date: String,
}

/// One loss of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossResult {
    /// The longest time without a completed operation, in seconds.
    pub pause_s: f64,
    /// From the kill, or from when the node goes on, until every group has all of its members in sync, in seconds.
    pub redundant_s: f64,
}

/// A node that was away and caught up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CatchUpResult {
    /// From when the node went on until every group had all of its members in sync, in seconds.
    pub catch_up_s: f64,
    /// Before it went.
    pub before: Stretch,
    /// While it was away.
    pub away: Stretch,
    /// While it caught up.
    pub during: Stretch,
    /// When all were in sync again.
    pub after: Stretch,
}

/// Everything that a run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The machine.
    pub machine: Machine,
    /// When.
    pub date: String,
    /// Bytes of each of the two volumes.
    pub volume_bytes: u64,
    /// The worst pause of all rounds, by the name of the loss, in seconds.
    pub pause_s: BTreeMap<String, f64>,
    /// The longest time to full redundancy, by the name of the loss, in seconds.
    pub redundant_s: BTreeMap<String, f64>,
    /// The longest catching up, in seconds.
    pub catch_up_s: Option<f64>,
    /// Latency that 99 % of the operations did not exceed, before, during and after, of the round with the longest
    /// catching up, in microseconds.
    pub catch_up_p99_us: BTreeMap<String, Option<f64>>,
    /// Every round, by the name of the loss.
    pub losses: BTreeMap<String, Vec<LossResult>>,
    /// Every round.
    pub catch_ups: Vec<CatchUpResult>,
}

/// Sets up drives and a cluster, measures, and takes everything down. `progress` is told each step.
///
/// # Errors
/// What failed first. Everything is taken down in any case.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Summary, FailoverError> {
    let testbed = Testbed::new(&options.directory, &options.millpond)?;
    let drive_bytes = options.volume_bytes * DRIVE_PER_VOLUME;
    let needed = drive_bytes * REPLICAS as u64 / 4 * 5;
    let available = free_bytes(&options.directory).unwrap_or(0);
    if available < needed {
        let path = options.directory.clone();
        return Err(TestbedError::Memory { path, available, needed }.into());
    }
    let drives: Vec<LoopDevice> = (0..REPLICAS)
        .map(|index| LoopDevice::new(testbed.directory(), &format!("drive.{index}"), drive_bytes))
        .collect::<Result<_, _>>()?;
    progress("starting the cluster and filling two volumes");
    let devices: Vec<_> = drives.iter().map(LoopDevice::path).collect();
    let cluster = Cluster::start(&options.millpond, &testbed.directory().join("cluster"), &devices)?;
    let pool = cluster.create_pool(SINGLE, 1)?;
    cluster.create_volume_in(SINGLE, options.volume_bytes, SINGLE)?;
    cluster.create_volume(SPREAD, options.volume_bytes)?;
    for volume in [SINGLE, SPREAD] {
        let job = Job::prefill(TargetName::Volume(volume.to_owned()), options.volume_bytes);
        jobs::bench(&options.millpond, cluster.directory(), &job)?;
    }
    let bench = Bench { cluster: &cluster, group: format!("{pool}.0") };
    bench.becomes_whole("the start")?;
    let (mut losses, mut catch_ups) = (BTreeMap::<String, Vec<LossResult>>::new(), Vec::new());
    for round in 1..=options.rounds {
        for loss in Loss::ALL {
            progress(&format!("round {round}: {}", loss.explained()));
            let result = bench.lose(loss, round)?;
            losses.entry(loss.name().to_owned()).or_default().push(result);
        }
        progress(&format!("round {round}: catching up after {} s away", AWAY_TIME.as_secs()));
        catch_ups.push(bench.catch_up(round)?);
    }
    Ok(Summary::new(options, losses, catch_ups))
}

struct Bench<'a> {
    cluster: &'a Cluster,
    /// The one group of the pool of one.
    group: String,
}

impl Bench<'_> {
    fn lose(&self, loss: Loss, round: u32) -> Result<LossResult, FailoverError> {
        let (timeline, (lost, back, whole)) = self.under_load(SINGLE, round, || {
            std::thread::sleep(STEADY_TIME);
            let pid = self.node_of(self.member(loss)?)?;
            let lost = Instant::now();
            let back = if loss == Loss::Host {
                let frozen = Frozen::new(pid);
                std::thread::sleep(AWAY_TIME);
                drop(frozen);
                Instant::now()
            } else {
                signal(pid, Signal::SIGKILL);
                // The groups do not know of it at once, and would still look whole.
                std::thread::sleep(Duration::from_secs(1));
                lost
            };
            let whole = self.becomes_whole(loss.explained())?;
            std::thread::sleep(STEADY_TIME);
            Ok((lost, back, whole))
        })?;
        // Up to the end of the load, since catching up and becoming in sync can make clients wait too.
        let until = whole + STEADY_TIME;
        Ok(LossResult {
            pause_s: timeline.longest_pause(lost, until).as_secs_f64(),
            redundant_s: (whole - back).as_secs_f64(),
        })
    }

    fn catch_up(&self, round: u32) -> Result<CatchUpResult, FailoverError> {
        // Another node each time.
        let osds = self.cluster.osds()?;
        let osd = &osds[round as usize % osds.len()];
        let pid = osd.pid.ok_or_else(|| FailoverError::Unknown(format!("the process of {}", osd.label)))?;
        let (timeline, [began, lost, back, whole]) = self.under_load(SPREAD, round, || {
            std::thread::sleep(STEADY_TIME);
            let began = Instant::now();
            std::thread::sleep(STEADY_TIME);
            let lost = Instant::now();
            let frozen = Frozen::new(pid);
            std::thread::sleep(AWAY_TIME);
            drop(frozen);
            let back = Instant::now();
            let whole = self.becomes_whole("a node was away")?;
            std::thread::sleep(STEADY_TIME);
            Ok([began, lost, back, whole])
        })?;
        Ok(CatchUpResult {
            catch_up_s: (whole - back).as_secs_f64(),
            before: timeline.stretch(began, lost),
            away: timeline.stretch(lost, back),
            during: timeline.stretch(back, whole),
            after: timeline.stretch(whole, whole + STEADY_TIME),
        })
    }

    /// Does `what` while a load runs on `volume`.
    fn under_load<T>(
        &self,
        volume: &str,
        round: u32,
        what: impl FnOnce() -> Result<T, FailoverError>,
    ) -> Result<(Timeline, T), FailoverError> {
        let enough = AtomicBool::new(false);
        let registry = self.cluster.directory().join("registry.sock");
        std::thread::scope(|scope| {
            let load = scope.spawn(|| steady::run(&registry, volume, u64::from(round), &enough));
            let happened = what();
            enough.store(true, Ordering::Relaxed);
            let timeline = load.join().expect("the load returns errors and does not panic")?;
            Ok((timeline, happened?))
        })
    }

    /// The OSD to lose.
    fn member(&self, loss: Loss) -> Result<u32, FailoverError> {
        let groups = self.cluster.pgs()?;
        let group = groups.iter().find(|group| group.pg == self.group);
        let member = group.and_then(|group| match loss {
            Loss::Primary | Loss::Host => Some(group.primary),
            Loss::Replica => group.in_sync.iter().copied().find(|osd| *osd != group.primary),
        });
        member.ok_or_else(|| FailoverError::Unknown(format!("the members of group {}", self.group)))
    }

    fn node_of(&self, osd: u32) -> Result<u32, FailoverError> {
        let label = format!("osd.{osd}");
        let found = self.cluster.osds()?.into_iter().find(|osd| osd.label == label);
        let pid = found.and_then(|osd| osd.pid);
        pid.ok_or_else(|| FailoverError::Unknown(format!("the process of {label}")))
    }

    /// Waits until every group is active with all of its members in sync; answers when that was.
    fn becomes_whole(&self, after: &str) -> Result<Instant, FailoverError> {
        let started = Instant::now();
        loop {
            let mut groups = self.cluster.pgs()?;
            let now = Instant::now();
            groups.retain(|group| {
                group.state != "active" || group.in_sync.len() != REPLICAS || !group.learners.is_empty()
            });
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

/// A process that stands still until this is dropped, or this program is stopped.
struct Frozen(#[expect(dead_code, reason = "dropping it undoes")] Undo);

impl Frozen {
    fn new(pid: u32) -> Frozen {
        let undo = Undo::new(move || signal(pid, Signal::SIGCONT));
        signal(pid, Signal::SIGSTOP);
        Frozen(undo)
    }
}

fn signal(pid: u32, signal: Signal) {
    // It can only fail because the process is gone; then waiting for it to come back shows it.
    kill(Pid::from_raw(pid.cast_signed()), signal).ok();
}

impl Summary {
    fn new(
        options: &Options,
        losses: BTreeMap<String, Vec<LossResult>>,
        catch_ups: Vec<CatchUpResult>,
    ) -> Summary {
        let worst = |of: fn(&LossResult) -> f64| {
            let worst = |results: &Vec<LossResult>| results.iter().map(of).fold(0.0, f64::max);
            losses.iter().map(|(name, results)| (name.clone(), worst(results))).collect()
        };
        let longest =
            catch_ups.iter().max_by(|one, other| one.catch_up_s.total_cmp(&other.catch_up_s)).cloned();
        let p99 = |stretch: &Stretch| stretch.latency.map(|latency| latency.p99_us);
        let catch_up_p99_us = longest.iter().flat_map(|longest| {
            let stretches =
                [("before", &longest.before), ("during", &longest.during), ("after", &longest.after)];
            stretches.map(|(name, stretch)| (name.to_owned(), p99(stretch)))
        });
        Summary {
            machine: Machine::this(),
            date: options.date.clone(),
            volume_bytes: options.volume_bytes,
            pause_s: worst(|result| result.pause_s),
            redundant_s: worst(|result| result.redundant_s),
            catch_up_s: longest.as_ref().map(|longest| longest.catch_up_s),
            catch_up_p99_us: catch_up_p99_us.collect(),
            losses,
            catch_ups,
        }
    }

    fn write_losses(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<10}{:>10}{:>9}{:>10}{:>14}  all pauses, s",
            "lost", "pause s", "must", "", "redundant s"
        )?;
        for loss in Loss::ALL {
            let Some(results) = self.losses.get(loss.name()) else { continue };
            let pause = self.pause_s.get(loss.name()).copied().unwrap_or_default();
            let redundant = self.redundant_s.get(loss.name()).copied().unwrap_or_default();
            let verdict = if pause < loss.must_s() { "met" } else { "MISSED" };
            let all: Vec<String> = results.iter().map(|result| format!("{:.2}", result.pause_s)).collect();
            writeln!(
                formatter,
                "{:<10}{pause:>10.2}{:>9}{verdict:>10}{redundant:>14.1}  {}",
                loss.name(),
                format!("< {:.0}", loss.must_s()),
                all.join(" ")
            )?;
        }
        for loss in Loss::ALL {
            writeln!(formatter, "  {:<8}{}", loss.name(), loss.explained())?;
        }
        Ok(())
    }

    fn write_catch_ups(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (round, result) in (1..).zip(&self.catch_ups) {
            writeln!(
                formatter,
                "\nround {round}: caught up in {:.1} s after {} s away, in which clients wrote {}",
                result.catch_up_s,
                AWAY_TIME.as_secs(),
                ByteSize(result.away.written_bytes)
            )?;
            writeln!(formatter, "{:<10}{:>10}{:>12}{:>12}", "", "IOPS", "p99 ms", "longest ms")?;
            for (name, stretch) in [
                ("before", &result.before),
                ("away", &result.away),
                ("during", &result.during),
                ("after", &result.after),
            ] {
                let milliseconds = |of: fn(&crate::histogram::LatencySummary) -> f64| {
                    let of = stretch.latency.as_ref().map(of);
                    of.map_or_else(|| "unavailable".to_owned(), |us| format!("{:.2}", us / 1000.0))
                };
                writeln!(
                    formatter,
                    "{name:<10}{:>10}{:>12}{:>12}",
                    grouped(stretch.iops),
                    milliseconds(|latency| latency.p99_us),
                    milliseconds(|latency| latency.max_us)
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "Machine   {}", self.machine)?;
        writeln!(formatter, "Date      {}", self.date)?;
        writeln!(
            formatter,
            "Setup     3 nodes on this machine, 3 replicas, loop devices on tmpfs; two volumes of {}",
            ByteSize(self.volume_bytes)
        )?;
        writeln!(
            formatter,
            "Load      4 KiB at random, {} % reads, {} in flight; a pause is the longest time without a completed \
             operation,\n          on a volume with one placement group; the worst of {} rounds counts. `up` starts a \
             killed node again\n          after 1 s, and after twice as long each time that it ran less than a minute.\n",
            steady::READ_PERCENT,
            steady::DEPTH,
            self.catch_ups.len()
        )?;
        self.write_losses(formatter)?;
        self.write_catch_ups(formatter)
    }
}
