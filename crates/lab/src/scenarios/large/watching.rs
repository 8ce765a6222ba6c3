//! What it costs to look at a cluster of thousands of OSDs.

use super::fleet::{Fleet, POOL, Size};
use super::meter::{Meter, Writes};
use super::{PATIENCE, http};
use crate::engine::cpu::{Monitor, Watched};
use crate::scenarios::say;
use crate::testbed::Cluster;
use anyhow::{Context, bail};
use cluster::{Cluster as State, HttpRecord};
use health::view::PoolView;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use node::Location;
use registry::Connect;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often each question is asked.
const QUESTIONS: u32 = 10;
/// Between two, so that none is answered from what the one before had made.
const PAUSE: Duration = Duration::from_millis(1200);
/// How long it is looked what the manager does when nobody asks, and what is written.
const STEADY: Duration = Duration::from_secs(20);

/// What a question costs: the worst of ten in time, their average in CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Until the whole answer was there, in seconds: the longest.
    pub seconds_max: f64,
    /// CPU time of who asked, and of who answered beyond what it used anyway, in milliseconds: the average.
    pub cpu_ms: f64,
    /// Bytes of the answer.
    pub bytes: u64,
}

/// What was found with one kind of registry.
#[derive(Clone, Debug, Serialize)]
pub struct Watching {
    /// `embedded`, or `etcd`.
    pub registry: &'static str,
    /// OSDs, those of the real nodes included.
    pub osds: u64,
    /// Placement groups.
    pub groups: u64,
    /// A scrape of `/metrics` at a node that is not the manager.
    pub node_scrape: Cost,
    /// The same at the manager, with its summary of the cluster.
    pub manager_scrape: Cost,
    /// `millpond status`.
    pub status: Cost,
    /// `millpond status --json`, with every OSD.
    pub status_json: Cost,
    /// CPU that the manager uses when nobody asks, while every OSD tells something new every two seconds, in percent of a core.
    pub manager_cpu_percent: f64,
    /// Memory of the manager's process, in bytes.
    pub manager_bytes: Option<u64>,
    /// From when nodes begin to tell until the manager answers that every group is active, in seconds.
    pub gathered_s: f64,
    /// What was written to the registry meanwhile, with every lease kept alive.
    pub steady: Writes,
}

/// Looks at a real cluster of two nodes or more, after giving it a fleet.
pub fn watch(
    cluster: &Cluster,
    registry: &'static str,
    location: &Location,
    size: Size,
) -> anyhow::Result<Watching> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let state = State::new(runtime.block_on(location.connect())?);
    let mut fleet = runtime.block_on(Fleet::register(&state, size))?;
    say("every OSD begins to tell");
    let began = Instant::now();
    runtime.block_on(fleet.report(&state))?;
    while active(cluster)? < size.groups as usize {
        if began.elapsed() > PATIENCE {
            bail!("the groups of pool {POOL} are not all active after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let gathered_s = began.elapsed().as_secs_f64();

    let servers = runtime.block_on(state.http_servers())?;
    let record = runtime.block_on(state.manager())?.context("nobody manages the cluster")?;
    let is_manager = |server: &&HttpRecord| (server.node, server.pid) == (record.node, record.pid);
    let manager = servers.iter().find(is_manager).context("the manager serves no HTTP")?;
    let node = servers.iter().find(|server| !is_manager(server)).context("there is one node only")?;

    say("nobody asks, and all is counted that is written");
    let meter = runtime.block_on(Meter::begin(state.registry()))?;
    let idle = Background::measure(manager.pid, STEADY);
    let steady = meter.end();
    say("asking");
    let scrape = |server: &HttpRecord| Ok(http::get(server.address, "/metrics")?.len() as u64);
    let node_idle = Background::measure(node.pid, STEADY / 4);
    let map = runtime.block_on(state.map())?;
    Ok(Watching {
        registry,
        osds: map.osds.len() as u64,
        groups: map.pgs.len() as u64,
        node_scrape: ask(node.pid, node_idle, || scrape(node))?,
        manager_scrape: ask(manager.pid, idle, || scrape(manager))?,
        status: ask(manager.pid, idle, || status_bytes(cluster, &["status"]))?,
        status_json: ask(manager.pid, idle, || status_bytes(cluster, &["status", "--json"]))?,
        manager_cpu_percent: idle.cpu_us_per_s / 1e4,
        manager_bytes: idle.bytes,
        gathered_s,
        steady,
    })
}

/// Groups that the manager takes for active.
fn active(cluster: &Cluster) -> anyhow::Result<usize> {
    let pools: Vec<PoolView> = cluster.json(&["pool", "ls"])?;
    Ok(pools.iter().find(|pool| pool.name == POOL).map_or(0, |pool| pool.pgs_active))
}

/// What a process uses when nobody asks it.
#[derive(Clone, Copy, Debug)]
struct Background {
    cpu_us_per_s: f64,
    bytes: Option<u64>,
}

impl Background {
    fn measure(pid: u32, time: Duration) -> Background {
        let monitor = Monitor::new(vec![Watched { label: String::new(), pid }]);
        let before = monitor.snapshot();
        std::thread::sleep(time);
        let usage = monitor.usage(&before, &monitor.snapshot());
        let cpu_us_per_s = usage.nodes_us().unwrap_or(f64::NAN) / usage.seconds;
        Background { cpu_us_per_s, bytes: usage.nodes.first().and_then(|node| node.resident_bytes) }
    }
}

/// Asks a process some times, and divides what it and children of this process used.
fn ask(pid: u32, background: Background, question: impl Fn() -> anyhow::Result<u64>) -> anyhow::Result<Cost> {
    let monitor = Monitor::new(vec![Watched { label: String::new(), pid }]);
    let (mut seconds_max, mut bytes) = (0f64, 0);
    let (before, children_before) = (monitor.snapshot(), children_cpu_us()?);
    for _ in 0..QUESTIONS {
        std::thread::sleep(PAUSE);
        let began = Instant::now();
        bytes = question()?;
        seconds_max = seconds_max.max(began.elapsed().as_secs_f64());
    }
    let usage = monitor.usage(&before, &monitor.snapshot());
    let answering = usage.nodes_us().unwrap_or(f64::NAN) - background.cpu_us_per_s * usage.seconds;
    let cpu_us = answering + children_cpu_us()? - children_before;
    Ok(Cost { seconds_max, cpu_ms: cpu_us / 1000.0 / f64::from(QUESTIONS), bytes })
}

/// CPU time of the processes that this one has started and that have ended, in microseconds.
fn children_cpu_us() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read what children used")?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64)
}

fn status_bytes(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<u64> {
    let output = cluster.process(arguments).output()?;
    if !output.status.success() || !output.stderr.is_empty() {
        bail!("`millpond status` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout.len() as u64)
}
