//! A cluster of the `millpond` that is measured, driven by its commands.

use super::cleanup::Undo;
use super::command;
use super::{COMMAND_LIMIT, TestbedError};
use crate::engine::cpu::{Watched, parent_of};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Starting a cluster formats its drives and waits for every placement group.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A cluster that runs in the background, with a node for each drive.
#[derive(Debug)]
pub struct Cluster {
    millpond: PathBuf,
    directory: PathBuf,
    _undo: Undo,
}

/// A volume that is served over NBD.
#[derive(Debug)]
pub struct NbdServer {
    uri: String,
    _undo: Undo,
}

impl NbdServer {
    /// Where.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

/// What an OSD says of itself in `millpond status --json`.
#[derive(Clone, Debug, PartialEq)]
pub struct OsdFigures {
    /// Its number.
    pub osd: Option<u32>,
    /// Its name.
    pub label: String,
    /// Its process.
    pub pid: Option<u32>,
    /// The size of its drive.
    pub bytes: Option<u64>,
    /// Bytes that data may take.
    pub usable_bytes: Option<u64>,
    /// Bytes that data takes.
    pub used_bytes: Option<u64>,
    /// Its drive.
    pub path: Option<PathBuf>,
    /// Memory of its index in bytes.
    pub index_bytes: Option<u64>,
    /// Bytes written to the drive for each byte that clients wrote.
    pub write_amplification: Option<f64>,
}

/// A placement group in `millpond pg dump --json`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct PgFigures {
    /// Pool and index.
    pub pg: String,
    /// How it is: `active` when it serves.
    pub state: String,
    /// Why it is not active.
    pub reason: Option<String>,
    /// The OSD that orders its writes.
    pub primary: u32,
    /// The OSDs that hold every acknowledged write.
    pub in_sync: Vec<u32>,
    /// The OSDs that are catching up.
    pub learners: Vec<u32>,
    /// The OSDs that shall hold it.
    pub target: Vec<u32>,
}

impl PgFigures {
    /// Whether it serves, and everyone who shall hold it is in sync and nobody else.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let sorted = |osds: &[u32]| {
            let mut osds = osds.to_vec();
            osds.sort_unstable();
            osds
        };
        let lies_right = sorted(&self.in_sync) == sorted(&self.target);
        self.state == "active" && self.learners.is_empty() && lies_right
    }
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
    /// Starts one in `directory`, one node and one replica for each device.
    ///
    /// # Errors
    /// `millpond up` failed.
    pub fn start(millpond: &Path, directory: &Path, devices: &[&Path]) -> Result<Cluster, TestbedError> {
        Cluster::start_nodes(millpond, directory, devices, devices.len(), devices.len(), &[])
    }

    /// Starts one in `directory` with so many nodes and copies, and more flags for `up`.
    ///
    /// # Errors
    /// `millpond up` failed.
    pub fn start_nodes(
        millpond: &Path,
        directory: &Path,
        devices: &[&Path],
        nodes: usize,
        replicas: usize,
        flags: &[&str],
    ) -> Result<Cluster, TestbedError> {
        let cluster = Cluster::of_host(millpond, directory);
        let (nodes, replicas) = (nodes.to_string(), replicas.to_string());
        let mut arguments: Vec<String> =
            ["up", "--nodes", &nodes, "--replicas", &replicas, "--detach"].map(str::to_owned).into();
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        // The drives stand for ones with power-loss protection: the raw device is measured without flushes too.
        arguments.extend(["--volatile-cache".to_owned(), "false".to_owned()]);
        for device in devices {
            cluster.wipe(device)?;
            arguments.extend(["--device".to_owned(), device.display().to_string()]);
        }
        cluster.millpond(&arguments, START_LIMIT)?;
        Ok(cluster)
    }

    /// A host that shall join a cluster in an etcd, with its directory there.
    #[must_use]
    pub fn of_host(millpond: &Path, directory: &Path) -> Cluster {
        let undo = {
            let (millpond, directory) = (millpond.to_owned(), directory.to_owned());
            Undo::new(move || stop_cluster(&millpond, &directory))
        };
        Cluster { millpond: millpond.to_owned(), directory: directory.to_owned(), _undo: undo }
    }

    /// Lets this host join, with these drives.
    ///
    /// # Errors
    /// `millpond node join` failed.
    pub fn join(&self, token: &str, devices: &[&Path]) -> Result<(), TestbedError> {
        let mut arguments = ["node", "join", token, "--listen", "127.0.0.1"].map(str::to_owned).to_vec();
        for device in devices {
            arguments.extend(["--device".to_owned(), device.display().to_string()]);
        }
        self.millpond(&arguments, START_LIMIT).map(drop)
    }

    /// Its directory, for `millpond --dir`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes a volume, in the pool that every cluster begins with if no other is named.
    ///
    /// # Errors
    /// `millpond volume create` failed.
    pub fn create_volume(&self, name: &str, bytes: u64, pool: Option<&str>) -> Result<(), TestbedError> {
        let bytes = bytes.to_string();
        let mut arguments = vec!["volume", "create", name, &bytes];
        arguments.extend(pool.into_iter().flat_map(|pool| ["--pool", pool]));
        self.command(&arguments).map(drop)
    }

    /// Makes a pool of three replicas; answers its id.
    ///
    /// # Errors
    /// `millpond pool create` failed.
    pub fn create_pool(&self, name: &str, pg_count: u32) -> Result<u64, TestbedError> {
        #[derive(serde::Deserialize)]
        struct Pool {
            pool: u64,
        }
        let made: Pool = self.json(&["pool", "create", name, "--pg-count", &pg_count.to_string()])?;
        Ok(made.pool)
    }

    /// Makes an OSD on `device`, the only one on its node; answers its number when it is up.
    ///
    /// # Errors
    /// `millpond osd add` failed.
    pub fn add_osd(&self, device: &Path, node: u32) -> Result<u32, TestbedError> {
        #[derive(serde::Deserialize)]
        struct Added {
            osd: u32,
        }
        self.wipe(device)?;
        let (device, node) = (device.display().to_string(), node.to_string());
        let added: Added = self.json(&["osd", "add", "--device", &device, "--node", &node])?;
        Ok(added.osd)
    }

    /// Removes an OSD that was taken out, the only one of its node, as soon as nothing is on it that is needed; returns
    /// when its process `pid` has ended, so that its drive is free.
    ///
    /// # Errors
    /// `millpond osd rm` failed, or still refuses it after a minute.
    pub fn remove_osd(&self, osd: u32, pid: Option<u32>) -> Result<(), TestbedError> {
        let arguments = ["osd", "rm", &osd.to_string()].map(str::to_owned);
        self.millpond_once_possible(&arguments, "cannot be removed yet")?;
        let deadline = Instant::now() + COMMAND_LIMIT;
        while pid.is_some_and(is_alive) {
            if Instant::now() >= deadline {
                return Err(TestbedError::StillRuns { osd, directory: self.directory.clone() });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The scrubs of its placement groups.
    ///
    /// # Errors
    /// `millpond scrub ls` failed.
    pub fn scrubs(&self) -> Result<Vec<ScrubFigures>, TestbedError> {
        self.json(&["scrub", "ls"])
    }

    /// Its placement groups.
    ///
    /// # Errors
    /// `millpond pg dump` failed.
    pub fn pgs(&self) -> Result<Vec<PgFigures>, TestbedError> {
        self.json(&["pg", "dump"])
    }

    /// What its OSDs say of themselves.
    ///
    /// # Errors
    /// `millpond status` failed.
    pub fn osds(&self) -> Result<Vec<OsdFigures>, TestbedError> {
        let mut osds = Vec::new();
        collect_osds(&self.json(&["status"])?, &mut osds);
        Ok(osds)
    }

    /// All of its processes: the nodes, and the one that started them and holds the registry.
    ///
    /// # Errors
    /// `millpond status` failed.
    pub fn processes(&self) -> Result<Vec<Watched>, TestbedError> {
        let mut processes: Vec<Watched> = Vec::new();
        for osd in self.osds()? {
            let Some(pid) = osd.pid.filter(|pid| processes.iter().all(|known| known.pid != *pid)) else {
                continue;
            };
            processes.push(Watched { label: osd.label, pid });
        }
        let parent = processes.first().and_then(|node| parent_of(node.pid)).filter(|&pid| pid > 1);
        processes.extend(parent.map(|pid| Watched { label: "registry".to_owned(), pid }));
        Ok(processes)
    }

    /// Serves `volume` over NBD until the answer is dropped.
    ///
    /// # Errors
    /// `millpond nbd` did not come to listen.
    pub fn serve(&self, volume: &str) -> Result<NbdServer, TestbedError> {
        let socket = self.directory.join("bench.sock");
        let failed = |error| TestbedError::File { path: socket.clone(), error };
        let child = std::process::Command::new(&self.millpond)
            .args(["--dir".as_ref(), self.directory.as_os_str(), "nbd".as_ref(), volume.as_ref()])
            .arg("--listen")
            .arg(format!("unix:{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let child = Mutex::new(child);
        let undo = Undo::new(move || {
            let mut child = child.into_inner().unwrap_or_else(PoisonError::into_inner);
            // Gently: a volume whose server is killed stays attached until its lease ends.
            let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
            child.wait().ok();
        });
        let deadline = Instant::now() + COMMAND_LIMIT;
        loop {
            match UnixStream::connect(&socket) {
                Ok(_) => break,
                Err(error) if Instant::now() >= deadline => return Err(failed(error)),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        Ok(NbdServer { uri: format!("nbd+unix:///{volume}?socket={}", socket.display()), _undo: undo })
    }

    /// Kills every process of the cluster at the same time.
    ///
    /// # Errors
    /// `millpond status` failed, or a process does not end.
    pub fn kill(&self) -> Result<(), TestbedError> {
        let processes = self.processes()?;
        // The parent first: it would start the others again.
        for process in processes.iter().rev() {
            let pid = nix::unistd::Pid::from_raw(process.pid.cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).ok();
        }
        while processes.iter().any(|process| is_alive(process.pid)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts it again after [`Self::kill`]; answers how long it took until every placement group served.
    ///
    /// # Errors
    /// `millpond up` failed.
    pub fn start_again(&self) -> Result<Duration, TestbedError> {
        let started = Instant::now();
        self.millpond(&["up", "--detach"].map(str::to_owned), START_LIMIT)?;
        Ok(started.elapsed())
    }

    /// Makes a drive blank: it may have been written to or have been an OSD's, and an OSD is made only of a blank one.
    fn wipe(&self, device: &Path) -> Result<(), TestbedError> {
        let arguments = ["osd", "wipe", "--yes", &device.display().to_string()].map(str::to_owned);
        // The kernel lets go of what an io_uring held a moment after its process has ended.
        self.millpond_once_possible(&arguments, "is in use")
    }

    /// Runs `millpond` again and again while it fails with these words, for a minute.
    fn millpond_once_possible(&self, arguments: &[String], words: &str) -> Result<(), TestbedError> {
        let deadline = Instant::now() + COMMAND_LIMIT;
        loop {
            match self.millpond(arguments, COMMAND_LIMIT) {
                Err(error) if error.to_string().contains(words) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                result => return result.map(drop),
            }
        }
    }

    /// Runs a command on it; answers what it printed.
    ///
    /// # Errors
    /// It failed, or took a minute.
    pub fn command(&self, arguments: &[&str]) -> Result<String, TestbedError> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self.millpond(&arguments, COMMAND_LIMIT)
    }

    /// Runs a command on it with `--json`; answers what it printed.
    ///
    /// # Errors
    /// It failed, took a minute, or printed something else.
    pub fn json<T: serde::de::DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, TestbedError> {
        let text = self.command(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&text)
            .map_err(|error| TestbedError::Json { command: arguments.join(" "), error })
    }

    fn millpond(&self, arguments: &[String], limit: Duration) -> Result<String, TestbedError> {
        let mut all = vec!["--dir".to_owned(), self.directory.display().to_string()];
        all.extend_from_slice(arguments);
        Ok(command::run(&self.millpond, &all, limit)?)
    }
}

/// Whether a process still runs; one that has ended and was not waited for does not.
fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).join("exe").exists()
}

/// Every object in `value` that looks like an OSD, in order.
fn collect_osds(value: &serde_json::Value, osds: &mut Vec<OsdFigures>) {
    match value {
        serde_json::Value::Array(values) => values.iter().for_each(|value| collect_osds(value, osds)),
        serde_json::Value::Object(fields) if fields.contains_key("write_amplification") => {
            let number = |name: &str| fields.get(name).and_then(serde_json::Value::as_u64);
            osds.push(OsdFigures {
                osd: number("osd").and_then(|osd| u32::try_from(osd).ok()),
                label: number("osd")
                    .map_or_else(|| format!("osd#{}", osds.len()), |osd| format!("osd.{osd}")),
                pid: number("pid").and_then(|pid| u32::try_from(pid).ok()),
                bytes: number("bytes"),
                usable_bytes: number("usable_bytes"),
                used_bytes: number("used_bytes"),
                path: fields.get("path").and_then(serde_json::Value::as_str).map(PathBuf::from),
                index_bytes: number("index_bytes"),
                write_amplification: fields.get("write_amplification").and_then(serde_json::Value::as_f64),
            });
        }
        serde_json::Value::Object(fields) => fields.values().for_each(|value| collect_osds(value, osds)),
        _ => {}
    }
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
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() as i32 && names_directory(&line, &place) {
            eprintln!("killing process {pid}, which is still there after `millpond down`");
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).ok();
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

    #[test]
    fn osds_are_found_wherever_the_status_has_them() {
        let status = serde_json::json!({
            "cluster": {"id": "x"},
            "osds": [
                {"osd": 0, "pid": 100, "bytes": 10, "usable_bytes": 9, "used_bytes": 8,
                 "path": "/dev/loop3", "write_amplification": 1.5, "index_bytes": 7},
                {"osd": 1, "pid": null, "write_amplification": null},
            ],
        });
        let mut osds = Vec::new();
        collect_osds(&status, &mut osds);
        assert_eq!(osds.len(), 2);
        assert_eq!((osds[0].label.as_str(), osds[0].osd, osds[0].pid), ("osd.0", Some(0), Some(100)));
        assert_eq!((osds[0].write_amplification, osds[0].index_bytes), (Some(1.5), Some(7)));
        assert_eq!((osds[0].usable_bytes, osds[0].used_bytes), (Some(9), Some(8)));
        assert_eq!((osds[0].path.as_deref(), &osds[1].path), (Some(Path::new("/dev/loop3")), &None));
        assert_eq!((osds[1].pid, osds[1].write_amplification), (None, None));
    }

    #[test]
    fn a_group_is_settled_when_it_serves_from_where_it_shall_lie_and_nowhere_else() {
        let group = |state: &str, in_sync: &[u32], learners: &[u32]| PgFigures {
            pg: "1.0".into(),
            state: state.into(),
            reason: None,
            primary: 2,
            in_sync: in_sync.into(),
            learners: learners.into(),
            target: vec![2, 3, 4],
        };
        assert!(group("active", &[4, 2, 3], &[]).is_settled());
        assert!(!group("peering", &[4, 2, 3], &[]).is_settled());
        assert!(!group("active", &[2, 3], &[4]).is_settled());
        assert!(!group("active", &[2, 3], &[]).is_settled());
        assert!(!group("active", &[1, 2, 3, 4], &[]).is_settled(), "one has not gone yet");
        assert!(!group("active", &[2, 3, 4], &[1]).is_settled());
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
