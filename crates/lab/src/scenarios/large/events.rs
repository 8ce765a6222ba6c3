//! A host that joins, and hosts that die, with 1,024 placement groups on real node processes.

use super::meter::{Meter, Writes};
use super::{LargeError, PATIENCE, http};
use crate::engine::plan::{Job, TargetName};
use crate::scenarios::jobs;
use crate::testbed::cleanup::Undo;
use crate::testbed::{Cluster, LoopDevice, PgFigures, STATUS_DELAY};
use anyhow::Context;
use api::figures::NodeFigures;
use cluster::Cluster as State;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use node::Location;
use registry::Connect;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Nodes at first, one more joins.
const NODES: usize = 3;
const OSDS_PER_NODE: usize = 2;
const COPIES: usize = 3;
/// Groups of the pool that is looked at.
pub const GROUPS: u32 = 1024;
const POOL: &str = "events";
const VOLUME: &str = "events";
const VOLUME_BYTES: u64 = 1 << 30;
const DRIVE_BYTES: u64 = 2 << 30;
/// Between two looks at the groups.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a host that joined brought about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// Until every group lies where it shall, in seconds.
    pub seconds: f64,
    /// OSDs before, and afterwards.
    pub osds: [usize; 2],
    /// How far the OSD that is farthest from its share of the groups is from it, in percent.
    pub imbalance_percent: f64,
    /// Replicas of groups that moved, and the fewest that had to.
    pub replicas_moved: u64,
    /// See there.
    pub replicas_ideal: u64,
    /// Bytes that members sent to members that caught up.
    pub bytes_moved: u64,
    /// The share of all copies that the new OSDs shall hold, in bytes.
    pub bytes_ideal: u64,
    /// What was written to the registry.
    pub writes: Writes,
}

/// What the death of a host brought about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Death {
    /// Until every group is active without it, in seconds.
    pub active_s: f64,
    /// Groups that it held a copy of, and those it was primary of.
    pub groups_held: usize,
    /// See there.
    pub groups_led: usize,
    /// What was written to the registry up to then.
    pub writes: Writes,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Events {
    /// A fourth host.
    pub join: Join,
    /// By how it died: `killed`, its processes end, and `silent`, it stands still.
    pub deaths: BTreeMap<String, Death>,
}

/// Makes a cluster in `directory`, has a host join and hosts die.
///
/// # Errors
/// What failed first.
pub fn run(millpond: &Path, directory: &Path, mut progress: impl FnMut(&str)) -> anyhow::Result<Events> {
    progress("starting a cluster of three nodes, with 1,024 groups and data");
    let drives = (0..(NODES + 1) * OSDS_PER_NODE)
        .map(|index| LoopDevice::new(directory, &format!("drive.{index}"), DRIVE_BYTES))
        .collect::<Result<Vec<_>, _>>()?;
    let (first, new) = drives.split_at(NODES * OSDS_PER_NODE);
    let devices: Vec<&Path> = first.iter().map(LoopDevice::path).collect();
    let place = directory.join("events");
    let cluster = Cluster::start_nodes(millpond, &place, &devices, NODES, COPIES, &["--no-restart"])?;
    cluster.command(&["pool", "rm", "default"])?;
    cluster.create_pool(POOL, GROUPS)?;
    cluster.create_volume(VOLUME, VOLUME_BYTES, Some(POOL))?;
    jobs::bench(millpond, &place, &Job::prefill(TargetName::Volume(VOLUME.to_owned()), VOLUME_BYTES))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let location = Location::Socket(place.join("registry.sock"));
    let state = State::new(runtime.block_on(location.connect())?);
    let scene = Scene { cluster: &cluster, state, runtime };
    scene.wait(is_at_rest)?;
    // Until the OSDs have told what they hold.
    std::thread::sleep(STATUS_DELAY);
    progress("a fourth host joins");
    let join = scene.join(new)?;
    let mut deaths = BTreeMap::new();
    scene.wait(is_at_rest)?;
    progress("a host stands still");
    deaths.insert("silent".to_owned(), scene.die(Signal::SIGSTOP)?);
    progress("a host is killed");
    deaths.insert("killed".to_owned(), scene.die(Signal::SIGKILL)?);
    Ok(Events { join, deaths })
}

/// Whether a group lies where it shall, and is led by whom it shall be.
fn is_at_rest(group: &PgFigures) -> bool {
    group.is_settled() && group.target.first() == Some(&group.primary)
}

struct Scene<'a> {
    cluster: &'a Cluster,
    state: State,
    runtime: tokio::runtime::Runtime,
}

impl Scene<'_> {
    /// Waits until all groups are so; answers when that was, and the groups.
    fn wait(&self, is_so: impl Fn(&PgFigures) -> bool) -> anyhow::Result<(Instant, Vec<PgFigures>)> {
        let began = Instant::now();
        loop {
            let groups = self.cluster.pgs()?;
            let now = Instant::now();
            if groups.len() == GROUPS as usize && groups.iter().all(&is_so) {
                return Ok((now, groups));
            }
            if began.elapsed() > PATIENCE {
                return Err(LargeError::NotActive { pool: POOL.to_owned() }.into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn meter(&self) -> anyhow::Result<Meter> {
        self.runtime.block_on(Meter::begin(self.state.registry()))
    }

    /// Bytes that members were sent since their processes started.
    fn sent_bytes(&self) -> anyhow::Result<BTreeMap<u32, u64>> {
        let servers = self.runtime.block_on(self.state.http_servers())?;
        let mut sent = BTreeMap::new();
        for server in servers {
            let figures: NodeFigures = serde_json::from_str(&http::body(server.address, "/api/v1/figures")?)?;
            sent.extend(figures.osds.iter().map(|osd| (osd.osd.0, osd.recovery_sent_bytes)));
        }
        Ok(sent)
    }

    fn join(&self, drives: &[LoopDevice]) -> anyhow::Result<Join> {
        let (before, sent_before) = (self.cluster.pgs()?, self.sent_bytes()?);
        let osds_before = self.cluster.osds()?;
        let used: u64 = osds_before.iter().filter_map(|osd| osd.used_bytes).sum();
        let (meter, began) = (self.meter()?, Instant::now());
        for drive in drives {
            self.cluster.add_osd(drive.path(), NODES as u32)?;
        }
        // What was decided for the first of them may be changed for the second: the last word counts.
        std::thread::sleep(Duration::from_secs(1));
        let (settled, groups) = self.wait(PgFigures::is_settled)?;
        let writes = meter.end();
        // Figures are told once a second.
        std::thread::sleep(Duration::from_secs(2));
        let sent = self.sent_bytes()?;
        let osds = self.cluster.osds()?.len();
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        for osd in groups.iter().flat_map(|group| &group.in_sync) {
            *held.entry(*osd).or_default() += 1;
        }
        let share = f64::from(GROUPS) * COPIES as f64 / osds as f64;
        let off = held.values().map(|count| (*count as f64 / share - 1.0).abs() * 100.0);
        let new_in = |(now, then): (&PgFigures, &PgFigures)| {
            now.in_sync.iter().filter(|osd| !then.in_sync.contains(osd)).count() as u64
        };
        let new_share = drives.len() as f64 / osds as f64;
        let copies = f64::from(GROUPS) * COPIES as f64;
        Ok(Join {
            seconds: (settled - began).as_secs_f64(),
            osds: [osds_before.len(), osds],
            imbalance_percent: off.fold(0.0, f64::max),
            replicas_moved: groups.iter().zip(&before).map(new_in).sum(),
            replicas_ideal: (copies * new_share) as u64,
            bytes_moved: sent.iter().map(|(osd, now)| now - sent_before.get(osd).copied().unwrap_or(0)).sum(),
            bytes_ideal: (used as f64 * new_share) as u64,
            writes,
        })
    }

    /// A host whose process is not the manager stops; with SIGSTOP it goes on afterwards, and catches up.
    fn die(&self, signal: Signal) -> anyhow::Result<Death> {
        let record = self.runtime.block_on(self.state.manager())?.context("nobody manages the cluster")?;
        let osds = self.cluster.osds()?;
        // The first nodes have one process each.
        let first =
            osds.iter().filter(|osd| osd.osd.is_some_and(|osd| (osd as usize) < NODES * OSDS_PER_NODE));
        let victim = first.filter_map(|osd| osd.pid).find(|pid| *pid != record.pid);
        let victim = victim.context("every process manages the cluster")?;
        let dead: Vec<u32> =
            osds.iter().filter(|osd| osd.pid == Some(victim)).filter_map(|osd| osd.osd).collect();
        let groups = self.cluster.pgs()?;
        let holds = |group: &&PgFigures| group.in_sync.iter().any(|osd| dead.contains(osd));
        let meter = self.meter()?;
        let pid = Pid::from_raw(victim.cast_signed());
        let undo = (signal == Signal::SIGSTOP).then(|| {
            Undo::new(move || {
                // One that has ended needs no waking.
                let _ = kill(pid, Signal::SIGCONT);
            })
        });
        let died = Instant::now();
        kill(pid, signal).context("the process of a node cannot be stopped")?;
        let is_without = |group: &PgFigures| {
            group.state == "active" && !group.in_sync.iter().any(|osd| dead.contains(osd))
        };
        let (active, _) = self.wait(is_without)?;
        let writes = meter.end();
        let death = Death {
            active_s: (active - died).as_secs_f64(),
            groups_held: groups.iter().filter(holds).count(),
            groups_led: groups.iter().filter(|group| dead.contains(&group.primary)).count(),
            writes,
        };
        if let Some(undo) = undo {
            drop(undo);
            self.wait(is_at_rest)?;
        }
        Ok(death)
    }
}
