//! A cluster of the `millpond` that is measured, driven by its commands.

use super::cleanup::Undo;
use super::jobs::{self, Sample};
use super::{COMMAND_LIMIT, LoopDevice, command};
use crate::engine::cpu::{Watched, parent_of};
use crate::engine::plan::{Job, TargetName};
use anyhow::{Context, bail};
use base::OsdId;
use health::view::{OsdView, PgHealth, PgView};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Starting a cluster formats its drives and waits for every placement group.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A cluster that runs in the background.
#[derive(Debug)]
pub struct Cluster {
    millpond: PathBuf,
    directory: PathBuf,
    _undo: Undo,
}

/// A volume that is served over NBD.
#[derive(Debug)]
pub struct NbdServer {
    /// Where.
    pub uri: String,
    _undo: Undo,
}

/// Whether a group serves, and everyone who shall hold it is in sync and nobody else.
#[must_use]
pub fn is_settled(group: &PgView) -> bool {
    let sorted = |osds: &[OsdId]| {
        let mut osds = osds.to_vec();
        osds.sort_unstable();
        osds
    };
    let lies_right = sorted(&group.in_sync) == sorted(&group.target);
    group.state == PgHealth::Active && group.learners.is_empty() && lies_right
}

/// The scrubs of a placement group in `millpond scrub ls --json`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct ScrubFigures {
    /// What is under way or wished, `-` for nothing.
    pub state: String,
    /// When the last deep one began, in milliseconds since 1970; 0 for never.
    pub deep_ms: u64,
    /// Bytes that the last one read of each member's drive.
    pub bytes: u64,
    /// Blocks that the last one found damaged or different.
    pub found: u64,
}

impl ScrubFigures {
    /// Whether nothing is to be done, and a deep one began after `newest_ms`.
    #[must_use]
    pub fn is_done_since(&self, newest_ms: u64) -> bool {
        self.state == "-" && self.deep_ms > newest_ms
    }
}

impl Cluster {
    /// Starts one in `directory` with so many nodes, a copy of everything on each, and more flags for `up`.
    pub(super) fn start(
        millpond: &Path,
        directory: &Path,
        drives: &[LoopDevice],
        nodes: usize,
        flags: &[&str],
    ) -> anyhow::Result<Cluster> {
        let cluster = Cluster::of_host(millpond, directory);
        let nodes = nodes.to_string();
        // The drives stand for ones with power-loss protection: the raw device is measured without flushes too.
        let fixed = ["up", "--nodes", &nodes, "--replicas", &nodes, "--detach", "--volatile-cache", "false"];
        let mut arguments = [&fixed[..], flags].concat();
        let devices = device_flags(drives);
        arguments.extend(devices.iter().map(String::as_str));
        for drive in drives {
            cluster.wipe(drive)?;
        }
        cluster.run(&arguments, START_LIMIT)?;
        Ok(cluster)
    }

    /// A host whose directory is to be there, and that runs nothing yet.
    pub(super) fn of_host(millpond: &Path, directory: &Path) -> Cluster {
        let undo = {
            let (millpond, directory) = (millpond.to_owned(), directory.to_owned());
            Undo::new(move || stop_cluster(&millpond, &directory))
        };
        Cluster { millpond: millpond.to_owned(), directory: directory.to_owned(), _undo: undo }
    }

    /// Lets this host join a cluster, with these drives.
    pub fn join(&self, token: &str, drives: &[LoopDevice]) -> anyhow::Result<()> {
        let devices = device_flags(drives);
        let mut arguments = vec!["node", "join", token, "--listen", "127.0.0.1"];
        arguments.extend(devices.iter().map(String::as_str));
        self.run(&arguments, START_LIMIT).map(drop)
    }

    /// Its directory, for `millpond --dir`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs a job on it.
    pub fn bench(&self, job: &Job) -> anyhow::Result<Sample> {
        jobs::bench(&self.millpond, &self.directory, job)
    }

    /// Makes a volume that was written once, in the pool that every cluster begins with if no other is named.
    pub fn filled_volume(&self, name: &str, bytes: u64, pool: Option<&str>) -> anyhow::Result<()> {
        let size = bytes.to_string();
        let mut arguments = vec!["volume", "create", name, &size];
        arguments.extend(pool.into_iter().flat_map(|pool| ["--pool", pool]));
        self.command(&arguments)?;
        self.bench(&Job::prefill(TargetName::Volume(name.to_owned()), bytes)).map(drop)
    }

    /// Makes a pool of three replicas; answers its id.
    pub fn create_pool(&self, name: &str, pg_count: u32) -> anyhow::Result<u64> {
        let made: serde_json::Value =
            self.json(&["pool", "create", name, "--pg-count", &pg_count.to_string()])?;
        made["pool"].as_u64().context("`millpond pool create --json` tells no pool")
    }

    /// Makes an OSD on a drive, the only one on its node; answers its number when it is up.
    pub fn add_osd(&self, drive: &LoopDevice, node: u32) -> anyhow::Result<OsdId> {
        self.wipe(drive)?;
        let (device, node) = (drive.path().display().to_string(), node.to_string());
        let added: serde_json::Value = self.json(&["osd", "add", "--device", &device, "--node", &node])?;
        serde_json::from_value(added["osd"].clone()).context("`millpond osd add --json` tells no OSD")
    }

    /// Removes an OSD that was taken out, the only one of its node, as soon as nothing is on it that is needed; returns
    /// when its process `pid` has ended, so that its drive is free.
    pub fn remove_osd(&self, osd: OsdId, pid: Option<u32>) -> anyhow::Result<()> {
        self.run_once_possible(&["osd", "rm", &osd.0.to_string()], "cannot be removed yet")?;
        let deadline = Instant::now() + COMMAND_LIMIT;
        while pid.is_some_and(is_alive) {
            if Instant::now() >= deadline {
                bail!(
                    "the process of {osd} has not ended a minute after its removal; its log and that of `up` are in {}",
                    self.directory.display()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The scrubs of its placement groups.
    pub fn scrubs(&self) -> anyhow::Result<Vec<ScrubFigures>> {
        self.json(&["scrub", "ls"])
    }

    /// Its placement groups.
    pub fn pgs(&self) -> anyhow::Result<Vec<PgView>> {
        self.json(&["pg", "dump"])
    }

    /// Waits until a condition holds of all of its placement groups; answers when that was, and the groups.
    pub fn wait_for_pgs(
        &self,
        what: &str,
        limit: Duration,
        pause: Duration,
        is_so: impl Fn(&PgView) -> bool,
    ) -> anyhow::Result<(Instant, Vec<PgView>)> {
        let began = Instant::now();
        loop {
            let groups = self.pgs()?;
            let now = Instant::now();
            let lacking: Vec<_> = groups.iter().filter(|group| !is_so(group)).collect();
            if lacking.is_empty() && !groups.is_empty() {
                return Ok((now, groups));
            }
            if began.elapsed() > limit {
                bail!(
                    "{} of {} placement groups are not as they shall be {} s after {what}; the first is {:?}",
                    lacking.len(),
                    groups.len(),
                    limit.as_secs(),
                    lacking.first()
                );
            }
            std::thread::sleep(pause);
        }
    }

    /// What its OSDs say of themselves.
    pub fn osds(&self) -> anyhow::Result<Vec<OsdView>> {
        #[derive(serde::Deserialize)]
        struct Status {
            osds: Vec<OsdView>,
        }
        Ok(self.json::<Status>(&["status"])?.osds)
    }

    /// All of its processes: the nodes, and the one that started them and holds the registry.
    pub fn processes(&self) -> anyhow::Result<Vec<Watched>> {
        let mut processes: Vec<Watched> = Vec::new();
        for osd in self.osds()? {
            let Some(pid) = osd.pid.filter(|pid| processes.iter().all(|known| known.pid != *pid)) else {
                continue;
            };
            processes.push(Watched { label: osd.osd.to_string(), pid });
        }
        let parent = processes.first().and_then(|node| parent_of(node.pid)).filter(|&pid| pid > 1);
        processes.extend(parent.map(|pid| Watched { label: "registry".to_owned(), pid }));
        Ok(processes)
    }

    /// Serves `volume` over NBD until the answer is dropped.
    pub fn serve(&self, volume: &str) -> anyhow::Result<NbdServer> {
        let socket = self.directory.join("bench.sock");
        let listen = format!("unix:{}", socket.display());
        let child = self.process(&["nbd", volume, "--listen", &listen]).stdout(Stdio::null()).spawn()?;
        let child = Mutex::new(child);
        let undo = Undo::new(move || {
            let mut child = child.into_inner().unwrap_or_else(PoisonError::into_inner);
            // Gently: a volume whose server is killed stays attached until its lease ends.
            signal(child.id(), Signal::SIGTERM);
            child.wait().ok();
        });
        let deadline = Instant::now() + COMMAND_LIMIT;
        while let Err(error) = UnixStream::connect(&socket) {
            if Instant::now() >= deadline {
                return Err(error)
                    .with_context(|| format!("`millpond nbd` does not listen on {}", socket.display()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(NbdServer { uri: format!("nbd+unix:///{volume}?socket={}", socket.display()), _undo: undo })
    }

    /// Kills every process of the cluster at the same time.
    pub fn kill(&self) -> anyhow::Result<()> {
        let processes = self.processes()?;
        // The parent first: it would start the others again.
        for process in processes.iter().rev() {
            signal(process.pid, Signal::SIGKILL);
        }
        while processes.iter().any(|process| is_alive(process.pid)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts it again after [`Self::kill`]; answers how long it took until every placement group served.
    pub fn start_again(&self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.run(&["up", "--detach"], START_LIMIT)?;
        Ok(started.elapsed())
    }

    /// Makes a drive blank: it may have been written to or have been an OSD's, and an OSD is made only of a blank one.
    fn wipe(&self, drive: &LoopDevice) -> anyhow::Result<()> {
        // The kernel lets go of what an io_uring held a moment after its process has ended.
        self.run_once_possible(&["osd", "wipe", "--yes", &drive.path().display().to_string()], "is in use")
    }

    /// Runs a command again and again while it fails with these words, for a minute.
    fn run_once_possible(&self, arguments: &[&str], words: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + COMMAND_LIMIT;
        loop {
            match self.command(arguments) {
                Err(error) if error.to_string().contains(words) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                result => return result.map(drop),
            }
        }
    }

    /// Runs a command on it; answers what it printed.
    pub fn command(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.run(arguments, COMMAND_LIMIT)
    }

    /// Runs a command on it with `--json`; answers what it printed.
    pub fn json<T: serde::de::DeserializeOwned>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        let text = self.command(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&text).with_context(|| {
            let line = arguments.join(" ");
            format!("`millpond {line} --json` printed what cannot be read; are this program and millpond of one build?")
        })
    }

    /// A command on it, not yet started: for who does not want to wait in steps, as [`Self::command`] does.
    #[must_use]
    pub fn process(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.millpond);
        command.arg("--dir").arg(&self.directory).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str], limit: Duration) -> anyhow::Result<String> {
        let directory = self.directory.display().to_string();
        command::run(&self.millpond, &[&["--dir", &directory][..], arguments].concat(), limit)
    }
}

fn device_flags(drives: &[LoopDevice]) -> Vec<String> {
    drives.iter().flat_map(|drive| ["--device".to_owned(), drive.path().display().to_string()]).collect()
}

/// Whether a process still runs; one that has ended and was not waited for does not.
fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).join("exe").exists()
}

/// Sends a signal. It can only fail because the process is gone, and whoever waits for something of it sees that.
pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).ok();
}

/// Has a process stand still until the answer is dropped, or this program is stopped.
pub fn frozen(pid: u32) -> Undo {
    let undo = Undo::new(move || signal(pid, Signal::SIGCONT));
    signal(pid, Signal::SIGSTOP);
    undo
}

pub(super) fn stop_cluster(millpond: &Path, directory: &Path) {
    if directory.exists() {
        let arguments = ["--dir", &directory.display().to_string(), "down"].map(str::to_owned);
        if let Err(error) = command::run_unguarded(millpond, &arguments, COMMAND_LIMIT) {
            eprintln!("{error}; killing its processes");
        }
        kill_processes_of(directory);
    }
}

/// Kills what still runs in `directory`, which is named after one run, so that nobody else's process can be
/// meant.
fn kill_processes_of(directory: &Path) {
    let place = directory.display().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in processes {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() && names_directory(&line, &place) {
            eprintln!("killing process {pid}, which is still there after `millpond down`");
            signal(pid, Signal::SIGKILL);
        }
    }
}

/// Whether an argument of a command line, as `/proc` gives it, is `directory` or lies in it.
fn names_directory(command_line: &[u8], directory: &str) -> bool {
    command_line.split(|&byte| byte == 0).any(|argument| {
        let argument = String::from_utf8_lossy(argument);
        argument.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Epoch, PgId};

    #[test]
    fn a_group_is_settled_when_it_serves_from_where_it_shall_lie_and_nowhere_else() {
        let settled = |state, in_sync: &[u32], learners: &[u32]| {
            let osds = |osds: &[u32]| osds.iter().copied().map(OsdId).collect();
            is_settled(&PgView {
                pg: PgId::default(),
                state,
                reason: None,
                epoch: Epoch(1),
                primary: OsdId(2),
                in_sync: osds(in_sync),
                learners: osds(learners),
                target: osds(&[2, 3, 4]),
                objects: None,
                recovery: None,
                flatten: None,
            })
        };
        assert!(settled(PgHealth::Active, &[4, 2, 3], &[]));
        assert!(!settled(PgHealth::Peering, &[4, 2, 3], &[]));
        assert!(!settled(PgHealth::Active, &[2, 3], &[4]));
        assert!(!settled(PgHealth::Active, &[2, 3], &[]));
        assert!(!settled(PgHealth::Active, &[1, 2, 3, 4], &[]), "one has not gone yet");
        assert!(!settled(PgHealth::Active, &[2, 3, 4], &[1]));
    }

    #[test]
    fn a_scrub_is_done_when_a_newer_deep_one_was_and_nothing_more_is_wished() {
        let scrub = |state: &str, deep_ms| ScrubFigures { state: state.into(), deep_ms, bytes: 0, found: 0 };
        assert!(scrub("-", 8).is_done_since(7));
        assert!(!scrub("-", 7).is_done_since(7));
        assert!(!scrub("deep wished", 7).is_done_since(7));
        assert!(!scrub("running", 8).is_done_since(7));
    }

    #[test]
    fn only_processes_of_that_directory_are_meant() {
        let directory = "/dev/shm/millpond-bench.17";
        assert!(names_directory(b"millpond\0--dir\0/dev/shm/millpond-bench.17/cluster\0up\0", directory));
        assert!(names_directory(b"millpond\0--dir\0/dev/shm/millpond-bench.17\0", directory));
        assert!(!names_directory(b"millpond\0--dir\0/dev/shm/millpond-bench.170/cluster\0up\0", directory));
        assert!(!names_directory(b"grep\0x/dev/shm/millpond-bench.17\0", directory));
    }
}
