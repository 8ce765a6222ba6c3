//! A cluster of a test's own, and NBD servers on it. Whatever a test started ends with it.

use super::guardian::Guardian;
use super::nbd::NbdClient;
use super::{command, millpond, path, scratch, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A cluster of three nodes in a directory of its own.
pub struct Pond {
    guardian: Guardian,
    scratch: tempfile::TempDir,
}

impl Pond {
    /// Starts one with OSD files of that size.
    pub fn start(osd_size: &str) -> Pond {
        Pond::start_with(&["--osd-size", osd_size])
    }

    /// Starts one with these flags.
    pub fn start_with(flags: &[&str]) -> Pond {
        let scratch = scratch();
        let pond = Pond { guardian: Guardian::of(scratch.path()), scratch };
        pond.up_with(flags);
        pond
    }

    /// The cluster's directory.
    pub fn dir(&self) -> PathBuf {
        self.scratch.path().join("p")
    }

    /// Where the test may put files of its own.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Starts it where it left off.
    pub fn up(&self) {
        self.up_with(&[]);
    }

    fn up_with(&self, flags: &[&str]) {
        let mut arguments = vec!["up", "--detach"];
        arguments.extend(flags);
        self.run(&arguments);
    }

    /// Runs a command on it that must work, and gives its output.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let (worked, stdout, stderr) = self.attempt(arguments);
        assert!(worked, "{arguments:?}: {stdout}{stderr}\n{}", self.logs());
        stdout
    }

    /// Runs a command on it; gives whether it worked, what it printed, and what it complained of.
    pub fn attempt(&self, arguments: &[&str]) -> (bool, String, String) {
        let dir = self.dir();
        let mut all = arguments.to_vec();
        all.extend(["--dir", path(&dir)]);
        let output = millpond(&all);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    /// Ends it in good order.
    #[track_caller]
    pub fn down(&self) {
        self.run(&["down"]);
    }

    /// Makes a volume.
    pub fn volume(&self, name: &str, size: &str) {
        self.run(&["volume", "create", name, size]);
    }

    /// `status --json`.
    #[track_caller]
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "--json"])).expect("the status is JSON")
    }

    /// Waits until every placement group is active.
    #[track_caller]
    pub fn becomes_active(&self) {
        wait_until("all placement groups are active", || {
            let status = self.status();
            status["pgs"]["by_state"]["active"] == status["pgs"]["total"]
        });
    }

    /// The file of that OSD.
    pub fn osd_file(&self, osd: u32) -> PathBuf {
        self.dir().join(format!("osd.{osd}.img"))
    }

    /// The TCP ports of the OSDs.
    pub fn osd_addresses(&self) -> Vec<String> {
        let status = self.status();
        let osds = status["osds"].as_array().expect("the status lists the OSDs");
        osds.iter().map(|osd| osd["address"].as_str().expect("the OSD is up").to_owned()).collect()
    }

    /// Where the nodes' processes serve HTTP, as Prometheus is told.
    pub fn http_addresses(&self) -> Vec<String> {
        let Ok(listed) = std::fs::read_to_string(self.dir().join("prometheus.json")) else {
            return Vec::new();
        };
        let groups: Vec<Value> = serde_json::from_str(&listed).expect("the list of targets is JSON");
        let targets =
            groups.iter().flat_map(|group| group["targets"].as_array().expect("targets are listed"));
        targets.map(|target| target.as_str().expect("a target is text").to_owned()).collect()
    }

    /// The process that keeps the others running, by the directory's lock.
    pub fn up_pid(&self) -> Option<i32> {
        let lock = std::fs::read_to_string(self.dir().join("lock")).ok()?;
        let lock: Value = serde_json::from_str(&lock).ok()?;
        lock["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| runs(*pid))
    }

    /// The processes of the nodes, by the command's own process table.
    pub fn node_pids(&self) -> Vec<i32> {
        self.up_pid().map(children_of).unwrap_or_default()
    }

    /// SIGKILL to every process of the cluster, in an order that `order` gives.
    pub fn kill_all(&self, door: &mut Door, order: impl FnOnce(&mut Vec<i32>)) {
        let mut pids = self.node_pids();
        pids.extend(self.up_pid());
        pids.push(door.pid());
        order(&mut pids);
        for pid in &pids {
            // One that is gone already is what was wanted.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        door.ends();
        wait_until("killed processes are gone", || pids.iter().all(|pid| !runs(*pid)));
    }

    /// SIGKILL to every process of the cluster but the servers of volumes.
    pub fn kill_nodes_and_up(&self) {
        let pids: Vec<i32> = self.up_pid().into_iter().chain(self.node_pids()).collect();
        for pid in &pids {
            // One that is gone already is what was wanted.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        wait_until("killed processes are gone", || pids.iter().all(|pid| !runs(*pid)));
    }

    /// What the processes logged, for the message of a failed test.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["up.log", "node.0.log", "node.1.log", "node.2.log", "node.3.log"] {
            let log = std::fs::read(self.dir().join(name)).unwrap_or_default();
            let tail = &log[log.len().saturating_sub(2000)..];
            text.push_str(&format!("--- {name}\n{}\n", String::from_utf8_lossy(tail)));
        }
        text
    }

    /// What one of its processes logged: `up.log`, `node.0.log` and so on.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir().join(name)).unwrap_or_default()
    }

    /// Serves a volume over NBD on a Unix socket.
    pub fn serve(&self, volume: &str) -> Door {
        Door::open(self, volume, volume, &[])
    }

    /// The same, or what the server said when it ended instead.
    pub fn try_serve(&self, volume: &str) -> Result<Door, String> {
        Door::try_open(self, volume, volume, &[])
    }

    /// Serves it with more flags.
    pub fn serve_with(&self, volume: &str, flags: &[&str]) -> Door {
        Door::open(self, volume, volume, flags)
    }

    /// Serves it without waiting for the attachment of a killed server to expire.
    pub fn serve_shared(&self, volume: &str) -> Door {
        self.serve_shared_at(volume, volume)
    }

    /// Serves it shared, on a socket of that name, so that there can be several servers of it.
    pub fn serve_shared_at(&self, volume: &str, name: &str) -> Door {
        Door::open(self, volume, name, &["--shared"])
    }
}

impl Drop for Pond {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        if let Some(up) = self.up_pid() {
            let _ = self.attempt(&["down"]);
            if runs(up) {
                let _ = kill(Pid::from_raw(up), Signal::SIGKILL);
            }
        }
    }
}

/// A `millpond nbd` of one volume, killed with the test.
pub struct Door {
    child: Child,
    volume: String,
    socket: PathBuf,
    log: PathBuf,
}

impl Door {
    fn open(pond: &Pond, volume: &str, name: &str, flags: &[&str]) -> Door {
        Door::try_open(pond, volume, name, flags)
            .unwrap_or_else(|said| panic!("the NBD server ended: {said}"))
    }

    fn try_open(pond: &Pond, volume: &str, name: &str, flags: &[&str]) -> Result<Door, String> {
        let socket = pond.scratch().join(format!("{name}.sock"));
        let log = pond.scratch().join(format!("{name}.log"));
        let output = File::create(&log).expect("a log can be made");
        let copy = output.try_clone().expect("a descriptor can be doubled");
        let dir = pond.dir();
        let listen = format!("unix:{}", path(&socket));
        let child = command(&["nbd", volume, "--listen", &listen, "--dir", path(&dir)])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(copy)
            .spawn()
            .expect("the command can be started");
        pond.guardian.watch(child.id());
        let mut door = Door { child, volume: volume.to_owned(), socket, log };
        let mut ended = false;
        wait_until("the volume is served, or refused", || {
            ended = !door.runs();
            ended || door.log().contains("Serving ")
        });
        if ended { Err(door.log()) } else { Ok(door) }
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///{}?socket={}", self.volume, path(&self.socket))
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A connection to it.
    #[track_caller]
    pub fn client(&self) -> NbdClient {
        NbdClient::connect(&self.socket, &self.volume).expect("the export can be reached")
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids are positive")
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Kills it, so that it says goodbye to nobody.
    pub fn is_killed(&mut self) {
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
        self.ends();
    }

    /// Waits for its end.
    fn ends(&mut self) {
        wait_until("the NBD server has ended", || !self.runs());
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
        // In good order, so that the volume is detached and the next server need not wait.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
        let asked = Instant::now();
        while self.runs() && asked.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process runs. One that only waits to be reaped does not.
pub fn runs(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

fn children_of(parent: i32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

/// Its state and its parent, by `/proc/PID/stat` (proc(5)).
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in parentheses and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
