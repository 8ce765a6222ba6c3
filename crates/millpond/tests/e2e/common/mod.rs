//! A cluster for one test, in a directory of its own on a real file system, gone when the test ends.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that cannot go on ends by panicking; no test uses all of this"
)]

pub mod authority;
pub mod door;
pub mod fio;
pub mod guardian;
pub mod hosts;
pub mod http;
pub mod nbd;
pub mod network;
pub mod pieces;
pub mod pond;
pub mod probe;
pub mod random;
pub mod replicas;
pub mod site;
pub mod tools;
pub mod whole;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Generous: what must happen happens within it on a busy machine too.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Cluster {
    pub directory: tempfile::TempDir,
    nbd: Option<Child>,
}

impl Cluster {
    /// Three nodes with a file of `osd_size` each, up.
    pub fn start(osd_size: &str) -> Cluster {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let cluster = Cluster { directory, nbd: None };
        cluster.millpond(&["up", "--detach", "--osd-size", osd_size]);
        cluster
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.arg("--dir").arg(self.directory.path()).args(arguments).stdin(Stdio::null());
        command
    }

    pub fn try_millpond(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the command, which must succeed, and answers what it printed.
    pub fn millpond(&self, arguments: &[&str]) -> String {
        let output = self.try_millpond(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.millpond(&["status", "--json"])).unwrap()
    }

    /// The processes that run OSDs.
    pub fn node_pids(&self) -> Vec<i32> {
        let status = self.status();
        status["osds"].as_array().unwrap().iter().map(|osd| osd["pid"].as_i64().unwrap() as i32).collect()
    }

    /// Serves a volume over NBD until the cluster or this ends. Answers its URI.
    pub fn serve(&mut self, volume: &str) -> String {
        let socket = self.path("nbd.sock");
        let child = self.command(&["nbd", volume]).stdout(Stdio::null()).spawn().unwrap();
        self.nbd = Some(child);
        within(Duration::from_secs(30), "the NBD server to listen", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        format!("nbd+unix:///{volume}?socket={}", socket.display())
    }

    pub fn stop_serving(&mut self) {
        if let Some(mut child) = self.nbd.take() {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            child.wait().unwrap();
        }
    }

    /// Ends every process at once, as a power cut does, except that what was written to files stays.
    pub fn kill_everything(&mut self) {
        let lock: Value = serde_json::from_slice(&std::fs::read(self.path("lock")).unwrap()).unwrap();
        let up = lock["pid"].as_i64().unwrap() as i32;
        let mut pids = self.node_pids();
        pids.push(up);
        pids.extend(self.nbd.as_ref().map(|child| child.id() as i32));
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Some(mut child) = self.nbd.take() {
            child.wait().unwrap();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop_serving();
        let _ = self.try_millpond(&["down"]);
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits until `condition` holds, asking less and less often: an answer of the command costs the processor more than what it
/// asks about.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(10);
    while !condition() {
        assert!(Instant::now() < end, "in vain for {limit:?}: {what}");
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(300));
    }
}

/// Runs a program of the system, which must succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; `make deps` installs it"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output));
    text(&output)
}

/// Bytes that no compression shortens, the same for the same seed.
pub fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&base::hash::mix(state).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

pub fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the command to its end, on no cluster in particular.
pub fn millpond(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command can be started")
}

/// The command, free of what the environment would add.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.args(arguments).env_remove("MILLPOND_DIR").env_remove("MILLPOND_LOG");
    command
}

/// Asserts that a message names what it must.
#[track_caller]
pub fn names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A path as an argument.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("scratch paths are text")
}

/// A directory on a real drive, where direct I/O works, that goes away with the test.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("e2e-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a scratch directory can be made")
}

/// Waits for it as long as anything takes on a busy machine.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}
