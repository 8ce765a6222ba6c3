//! What a comparison runs on: drives made of memory, and a cluster on them. Each is a guard that takes down
//! what it set up; see [`crate::cleanup`] for the ways out that it covers.
//!
//! A run that was killed outright leaves its directory, named after its process. The next run finds it,
//! sees that the process is gone, and takes down what is left.

use crate::cleanup::Undo;
use crate::command::{self, CommandError};
use crate::cpu::{Watched, memory_bytes, parent_of};
use base::Encryption;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Starting a cluster formats its drives and waits for every placement group.
const START_LIMIT: Duration = Duration::from_secs(120);
/// OSDs report their figures every few seconds; this is long enough for the last to be in.
pub const STATUS_DELAY: Duration = Duration::from_secs(6);
const DIRECTORY_PREFIX: &str = "millpond-bench.";

/// Why there is nothing to measure on.
#[derive(thiserror::Error, Debug)]
pub enum TestbedError {
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file or directory could not be made.
    #[error("{}: {error}; choose another directory with --directory", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Loop devices are for root.
    #[error("loop devices need root; run it with sudo, or as root in a privileged container")]
    NotRoot,
    /// Too little memory for the smallest test bed.
    #[error(
        "{}: {available} bytes of memory are free, and the smallest test bed needs {needed}; free some, or choose a \
         larger tmpfs with --directory", path.display()
    )]
    Memory {
        /// The tmpfs.
        path: PathBuf,
        /// Bytes that are free.
        available: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// An OSD that was removed goes on.
    #[error(
        "the process of osd.{osd} has not ended a minute after its removal; its log and that of `up` are in {}",
        directory.display()
    )]
    StillRuns {
        /// The OSD.
        osd: u32,
        /// The cluster's directory.
        directory: PathBuf,
    },
    /// What the cluster says of itself could not be read.
    #[error(
        "`millpond {command} --json` printed what cannot be read: {error}; are the suite and millpond of one build?"
    )]
    Json {
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        error: serde_json::Error,
    },
}

/// A directory for everything that a run makes. Removed in the end.
#[derive(Debug)]
pub struct Testbed {
    directory: PathBuf,
    _undo: Undo,
}

impl Testbed {
    /// Makes a directory below `parent`, which should be a tmpfs, after taking down what earlier runs that
    /// were killed left there.
    ///
    /// # Errors
    /// Not root, or `parent` cannot be written.
    pub fn new(parent: &Path, millpond: &Path) -> Result<Testbed, TestbedError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(TestbedError::NotRoot);
        }
        remove_leftovers(parent, millpond);
        let directory = parent.join(format!("{DIRECTORY_PREFIX}{}", std::process::id()));
        std::fs::create_dir(&directory)
            .map_err(|error| TestbedError::File { path: directory.clone(), error })?;
        let removed = directory.clone();
        let undo = Undo::new(move || told(&removed, std::fs::remove_dir_all(&removed)));
        Ok(Testbed { directory, _undo: undo })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Bytes that files in `directory` may take: what its file system has free, and the memory behind it.
#[must_use]
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let space = nix::sys::statvfs::statvfs(directory).ok()?;
    let free = space.blocks_available() as u64 * space.fragment_size() as u64;
    Some(memory_bytes("MemAvailable").map_or(free, |memory| memory.min(free)))
}

/// A loop device over a sparse file.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    backing: PathBuf,
    direct_io: bool,
    _undo: Undo,
}

impl LoopDevice {
    /// Makes `directory/name` of `bytes` and a loop device over it, which hands I/O to the file directly
    /// where the file system can do that.
    ///
    /// # Errors
    /// The file cannot be made, or `losetup` failed.
    pub fn new(directory: &Path, name: &str, bytes: u64) -> Result<LoopDevice, TestbedError> {
        let backing = directory.join(name);
        std::fs::File::create_new(&backing)
            .and_then(|file| file.set_len(bytes))
            .map_err(|error| TestbedError::File { path: backing.clone(), error })?;
        let file = backing.display().to_string();
        // The device's name is not known before it exists, so undoing asks for it: nothing that fails or
        // ends the process in between leaves a device behind.
        let undone = backing.clone();
        let undo = Undo::new(move || {
            detach_loops_of(&undone);
            told(&undone, std::fs::remove_file(&undone));
        });
        let attach = |direct: &str| {
            command::run("losetup", &["--find", "--show", direct, file.as_str()], COMMAND_LIMIT)
        };
        let path = attach("--direct-io=on").or_else(|error| {
            // A failed attempt may have left the device without direct I/O.
            detach_loops_of(&backing);
            attach("--direct-io=off").map_err(|_| error)
        })?;
        let path = PathBuf::from(path.trim());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let direct_io = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio"))
            .is_ok_and(|flag| flag.trim() == "1");
        Ok(LoopDevice { path, backing, direct_io, _undo: undo })
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file behind it.
    #[must_use]
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Whether the file is read and written without the page cache in between.
    #[must_use]
    pub fn direct_io(&self) -> bool {
        self.direct_io
    }
}

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
        let undo = {
            let (millpond, directory) = (millpond.to_owned(), directory.to_owned());
            Undo::new(move || stop_cluster(&millpond, &directory))
        };
        let cluster = Cluster { millpond: millpond.to_owned(), directory: directory.to_owned(), _undo: undo };
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

    /// Makes a cluster in an etcd; answers its token.
    ///
    /// # Errors
    /// `millpond cluster init` failed.
    pub fn init(&self, etcd: &str) -> Result<String, TestbedError> {
        #[derive(serde::Deserialize)]
        struct Made {
            token: String,
        }
        let text = self.command(&["cluster", "init", "--registry", etcd, "--json"])?;
        let made: Made = serde_json::from_str(&text)
            .map_err(|error| TestbedError::Json { command: "cluster init", error })?;
        Ok(made.token)
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

    /// Has its traffic encrypted, or not any more.
    ///
    /// # Errors
    /// `millpond cluster encryption` failed.
    pub fn set_encryption(&self, encryption: Encryption) -> Result<(), TestbedError> {
        let arguments = ["cluster", "encryption", &encryption.to_string()].map(str::to_owned);
        self.millpond(&arguments, COMMAND_LIMIT).map(drop)
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// `millpond volume create` failed.
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<(), TestbedError> {
        let arguments = ["volume", "create", name, &bytes.to_string()].map(str::to_owned);
        self.millpond(&arguments, COMMAND_LIMIT).map(drop)
    }

    /// Makes a volume in a pool that was made before.
    ///
    /// # Errors
    /// `millpond volume create` failed.
    pub fn create_volume_in(&self, name: &str, bytes: u64, pool: &str) -> Result<(), TestbedError> {
        let bytes = bytes.to_string();
        let arguments = ["volume", "create", name, &bytes, "--pool", pool].map(str::to_owned);
        self.millpond(&arguments, COMMAND_LIMIT).map(drop)
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
        let pg_count = pg_count.to_string();
        let arguments = ["pool", "create", name, "--pg-count", &pg_count, "--json"].map(str::to_owned);
        let text = self.millpond(&arguments, COMMAND_LIMIT)?;
        let made: Pool = serde_json::from_str(&text)
            .map_err(|error| TestbedError::Json { command: "pool create", error })?;
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
        let arguments = ["osd", "add", "--device", &device, "--node", &node, "--json"].map(str::to_owned);
        let text = self.millpond(&arguments, START_LIMIT)?;
        let added: Added =
            serde_json::from_str(&text).map_err(|error| TestbedError::Json { command: "osd add", error })?;
        Ok(added.osd)
    }

    /// Has the data of an OSD moved to others.
    ///
    /// # Errors
    /// `millpond osd out` failed.
    pub fn take_out_osd(&self, osd: u32) -> Result<(), TestbedError> {
        let arguments = ["osd", "out", &osd.to_string()].map(str::to_owned);
        self.millpond(&arguments, COMMAND_LIMIT).map(drop)
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

    /// Has every placement group scrubbed deeply; returns at once.
    ///
    /// # Errors
    /// `millpond scrub start` failed.
    pub fn start_deep_scrub(&self) -> Result<(), TestbedError> {
        self.millpond(&["scrub", "start", "--deep"].map(str::to_owned), COMMAND_LIMIT).map(drop)
    }

    /// The scrubs of its placement groups.
    ///
    /// # Errors
    /// `millpond scrub ls` failed.
    pub fn scrubs(&self) -> Result<Vec<ScrubFigures>, TestbedError> {
        let text = self.millpond(&["scrub", "ls", "--json"].map(str::to_owned), COMMAND_LIMIT)?;
        serde_json::from_str(&text).map_err(|error| TestbedError::Json { command: "scrub ls", error })
    }

    /// Its placement groups.
    ///
    /// # Errors
    /// `millpond pg dump` failed.
    pub fn pgs(&self) -> Result<Vec<PgFigures>, TestbedError> {
        let text = self.millpond(&["pg", "dump", "--json"].map(str::to_owned), COMMAND_LIMIT)?;
        serde_json::from_str(&text).map_err(|error| TestbedError::Json { command: "pg dump", error })
    }

    /// What its OSDs say of themselves.
    ///
    /// # Errors
    /// `millpond status` failed.
    pub fn osds(&self) -> Result<Vec<OsdFigures>, TestbedError> {
        let text = self.millpond(&["status".to_owned(), "--json".to_owned()], COMMAND_LIMIT)?;
        let status =
            serde_json::from_str(&text).map_err(|error| TestbedError::Json { command: "status", error })?;
        let mut osds = Vec::new();
        collect_osds(&status, &mut osds);
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

fn stop_cluster(millpond: &Path, directory: &Path) {
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

fn detach_loops_of(backing: &Path) {
    let arguments = ["--noheadings", "--output", "NAME", "--associated", &backing.display().to_string()];
    match command::run_unguarded("losetup", &arguments, COMMAND_LIMIT) {
        Ok(names) => {
            for name in names.split_whitespace() {
                if let Err(error) = command::run_unguarded("losetup", &["--detach", name], COMMAND_LIMIT) {
                    eprintln!("{error}");
                }
            }
        }
        Err(error) => eprintln!("{error}"),
    }
}

fn remove_leftovers(parent: &Path, millpond: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(DIRECTORY_PREFIX)) else { continue };
        if pid.parse::<u32>().is_err() || Path::new("/proc").join(pid).exists() {
            continue;
        }
        let directory = entry.path();
        eprintln!("taking down {}, left by a run that was killed", directory.display());
        let files: Vec<_> = std::fs::read_dir(&directory).into_iter().flatten().flatten().collect();
        for entry in files.iter().filter(|entry| entry.path().is_dir()) {
            stop_cluster(millpond, &entry.path());
        }
        for entry in files.iter().filter(|entry| entry.path().is_file()) {
            detach_loops_of(&entry.path());
        }
        told(&directory, std::fs::remove_dir_all(&directory));
    }
}

/// Taking down goes on whatever fails, but not silently.
fn told(path: &Path, result: std::io::Result<()>) {
    if let Err(error) = result
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("{}: cannot be removed: {error}; remove it by hand", path.display());
    }
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

    fn loops_of(backing: &Path) -> String {
        let arguments = ["--noheadings", "--associated", &backing.display().to_string()];
        command::run("losetup", &arguments, COMMAND_LIMIT).unwrap()
    }

    #[test]
    fn a_loop_device_and_its_file_are_gone_after_use() {
        if !nix::unistd::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("not tested: loop devices need root and /dev/loop-control");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let device = LoopDevice::new(directory.path(), "drive", 16 << 20).unwrap();
        let backing = device.backing().to_owned();
        assert!(loops_of(&backing).contains(device.path().to_str().unwrap()));
        drop(device);
        assert_eq!(loops_of(&backing), "");
        assert!(!backing.exists());
    }

    #[test]
    fn what_a_killed_run_left_is_taken_down_and_what_runs_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join(format!("{DIRECTORY_PREFIX}{}", u32::MAX));
        let alive = parent.path().join(format!("{DIRECTORY_PREFIX}{}", std::process::id()));
        let other = parent.path().join("millpond-bench.notes");
        for directory in [&dead, &alive, &other] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(dead.join("drive"), "x").unwrap();
        std::fs::create_dir(dead.join("cluster")).unwrap();
        remove_leftovers(parent.path(), Path::new("true"));
        assert!(!dead.exists() && alive.exists() && other.exists());
    }
}
