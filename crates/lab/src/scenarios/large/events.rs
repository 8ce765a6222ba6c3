//! A host that joins, and hosts that die, with 1,024 placement groups on real node processes.

use super::meter::{Meter, Writes};
use super::{PATIENCE, http};
use crate::scenarios::say;
use crate::testbed::{Cluster, LoopDevice, REPLICAS, STATUS_DELAY, Testbed, frozen, is_settled, signal};
use anyhow::Context;
use api::figures::NodeFigures;
use base::OsdId;
use cluster::Cluster as State;
use health::view::{PgHealth, PgView};
use nix::sys::signal::Signal;
use node::Location;
use registry::Connect;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Nodes at first, each with a copy of everything; one more joins.
const NODES: usize = REPLICAS;
const OSDS_PER_NODE: usize = 2;
/// Groups of the pool that is looked at.
pub const GROUPS: u32 = 1024;
const POOL: &str = "events";
const VOLUME: &str = "events";
const VOLUME_BYTES: u64 = 1 << 30;
const DRIVE_BYTES: u64 = 2 << 30;
/// Between two looks at the groups.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a host that joined brought about.
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
pub struct Events {
    /// A fourth host.
    pub join: Join,
    /// By how it died: `killed`, its processes end, and `silent`, it stands still.
    pub deaths: BTreeMap<&'static str, Death>,
}

/// Makes a cluster, has a host join and hosts die.
pub fn run(testbed: &Testbed) -> anyhow::Result<Events> {
    say("starting a cluster of three nodes, with 1,024 groups and data");
    let drives = testbed.drives("drive", (NODES + 1) * OSDS_PER_NODE, DRIVE_BYTES)?;
    let (first, new) = drives.split_at(NODES * OSDS_PER_NODE);
    let cluster = testbed.cluster_of(testbed.millpond(), "events", first, NODES, &["--no-restart"])?;
    cluster.command(&["pool", "rm", "default"])?;
    cluster.create_pool(POOL, GROUPS)?;
    cluster.filled_volume(VOLUME, VOLUME_BYTES, Some(POOL))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let location = Location::Socket(cluster.directory().join("registry.sock"));
    let state = State::new(runtime.block_on(location.connect())?);
    let scene = Scene { cluster: &cluster, state, runtime };
    scene.wait("the start", is_at_rest)?;
    // Until the OSDs have told what they hold.
    std::thread::sleep(STATUS_DELAY);
    say("a fourth host joins");
    let join = scene.join(new)?;
    let mut deaths = BTreeMap::new();
    scene.wait("a host joined", is_at_rest)?;
    say("a host stands still");
    deaths.insert("silent", scene.die(Signal::SIGSTOP)?);
    say("a host is killed");
    deaths.insert("killed", scene.die(Signal::SIGKILL)?);
    Ok(Events { join, deaths })
}

/// Whether a group lies where it shall, and is led by whom it shall be.
fn is_at_rest(group: &PgView) -> bool {
    is_settled(group) && group.target.first() == Some(&group.primary)
}

struct Scene<'a> {
    cluster: &'a Cluster,
    state: State,
    runtime: tokio::runtime::Runtime,
}

impl Scene<'_> {
    /// Waits until all groups are so; answers when that was, and the groups.
    fn wait(&self, after: &str, is_so: impl Fn(&PgView) -> bool) -> anyhow::Result<(Instant, Vec<PgView>)> {
        self.cluster.wait_for_pgs(after, PATIENCE, LOOK_EVERY, is_so)
    }

    fn meter(&self) -> anyhow::Result<Meter> {
        self.runtime.block_on(Meter::begin(self.state.registry()))
    }

    /// Bytes that members were sent since their processes started.
    fn sent_bytes(&self) -> anyhow::Result<BTreeMap<OsdId, u64>> {
        let servers = self.runtime.block_on(self.state.http_servers())?;
        let mut sent = BTreeMap::new();
        for server in servers {
            let figures: NodeFigures = serde_json::from_str(&http::body(server.address, "/api/v1/figures")?)?;
            sent.extend(figures.osds.iter().map(|osd| (osd.osd, osd.recovery_sent_bytes)));
        }
        Ok(sent)
    }

    fn join(&self, drives: &[LoopDevice]) -> anyhow::Result<Join> {
        let (before, sent_before) = (self.cluster.pgs()?, self.sent_bytes()?);
        let osds_before = self.cluster.osds()?;
        let used: u64 = osds_before.iter().filter_map(|osd| osd.used_bytes).sum();
        let (meter, began) = (self.meter()?, Instant::now());
        for drive in drives {
            self.cluster.add_osd(drive, NODES as u32)?;
        }
        // What was decided for the first of them may be changed for the second: the last word counts.
        std::thread::sleep(Duration::from_secs(1));
        let (settled, groups) = self.wait("a host joined", is_settled)?;
        let writes = meter.end();
        // Figures are told once a second.
        std::thread::sleep(Duration::from_secs(2));
        let sent = self.sent_bytes()?;
        let osds = self.cluster.osds()?.len();
        let mut held: BTreeMap<OsdId, u64> = BTreeMap::new();
        for osd in groups.iter().flat_map(|group| &group.in_sync) {
            *held.entry(*osd).or_default() += 1;
        }
        let share = f64::from(GROUPS) * REPLICAS as f64 / osds as f64;
        let off = held.values().map(|count| (*count as f64 / share - 1.0).abs() * 100.0);
        let new_in = |(now, then): (&PgView, &PgView)| {
            now.in_sync.iter().filter(|osd| !then.in_sync.contains(osd)).count() as u64
        };
        let new_share = drives.len() as f64 / osds as f64;
        let copies = f64::from(GROUPS) * REPLICAS as f64;
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
    fn die(&self, how: Signal) -> anyhow::Result<Death> {
        let record = self.runtime.block_on(self.state.manager())?.context("nobody manages the cluster")?;
        let osds = self.cluster.osds()?;
        // The first nodes have one process each.
        let first = osds.iter().filter(|osd| (osd.osd.0 as usize) < NODES * OSDS_PER_NODE);
        let victim = first.filter_map(|osd| osd.pid).find(|pid| *pid != record.pid);
        let victim = victim.context("every process manages the cluster")?;
        let dead: Vec<OsdId> = osds.iter().filter(|osd| osd.pid == Some(victim)).map(|osd| osd.osd).collect();
        let groups = self.cluster.pgs()?;
        let holds = |group: &&PgView| group.in_sync.iter().any(|osd| dead.contains(osd));
        let meter = self.meter()?;
        let died = Instant::now();
        let frozen = (how == Signal::SIGSTOP).then(|| frozen(victim));
        if frozen.is_none() {
            signal(victim, how);
        }
        let (active, _) =
            self.wait("a host died", |group| group.state == PgHealth::Active && !holds(&group))?;
        let writes = meter.end();
        let death = Death {
            active_s: (active - died).as_secs_f64(),
            groups_held: groups.iter().filter(holds).count(),
            groups_led: groups.iter().filter(|group| dead.contains(&group.primary)).count(),
            writes,
        };
        if frozen.is_some() {
            drop(frozen);
            self.wait("a host goes on", is_at_rest)?;
        }
        Ok(death)
    }
}
