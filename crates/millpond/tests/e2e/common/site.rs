//! What every cluster of a test's own is: a directory that commands name, where the test may put files, and whoever ends it
//! all when the test is killed.

use super::door::Door;
use super::guardian::Guardian;
use super::{command, names, scratch, urgent_command, wait_until};
use serde_json::Value;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A cluster, however it is made.
pub trait Cluster: Deref<Target = Site> {
    /// Ends it in good order.
    fn down(&self);
}

/// See the module's documentation.
pub struct Site {
    scratch: tempfile::TempDir,
    guardian: Guardian,
    /// The cluster's directory, below `scratch`.
    dir: &'static str,
}

impl Site {
    /// Where commands reach the cluster by the directory of that name.
    pub fn new(dir: &'static str) -> Site {
        let scratch = scratch();
        Site { guardian: Guardian::of(scratch.path()), scratch, dir }
    }

    /// The cluster's directory.
    pub fn dir(&self) -> PathBuf {
        self.scratch.path().join(self.dir)
    }

    /// Where the test may put files of its own.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
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
        let starts_nodes = arguments.first() == Some(&"up");
        let mut command = if starts_nodes { urgent_command(arguments) } else { command(arguments) };
        let output = command.arg("--dir").arg(self.dir()).output().expect("the command can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    /// Runs a command on it that must be refused, with these words.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], words: &[&str]) {
        let (worked, stdout, stderr) = self.attempt(arguments);
        assert!(!worked, "{arguments:?}: {stdout}");
        names(&stderr, words);
    }

    /// Runs a command on it that must work, and gives what it printed as JSON.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).expect("it prints JSON")
    }

    /// The same of a command that prints a list.
    #[track_caller]
    pub fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let Value::Array(list) = self.json(arguments) else { panic!("{arguments:?} prints no list") };
        list
    }

    /// Makes a volume.
    pub fn volume(&self, name: &str, size: &str) {
        self.run(&["volume", "create", name, size]);
    }

    /// `status --json`.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.json(&["status"])
    }

    /// The same; nothing while it cannot be had.
    pub fn try_status(&self) -> Value {
        let (_, status, _) = self.attempt(&["status", "--json"]);
        serde_json::from_str(&status).unwrap_or_default()
    }

    /// Waits until every placement group is active.
    #[track_caller]
    pub fn becomes_active(&self) {
        wait_until("all placement groups are active", || {
            let status = self.status();
            status["pgs"]["by_state"]["active"] == status["pgs"]["total"]
        });
    }

    /// The TCP ports of the OSDs.
    pub fn osd_addresses(&self) -> Vec<String> {
        let status = self.status();
        let osds = status["osds"].as_array().expect("the status lists the OSDs");
        osds.iter().map(|osd| osd["address"].as_str().expect("the OSD is up").to_owned()).collect()
    }

    /// What the processes logged, for the message of a failed test.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for log in logs_below(self.scratch()) {
            let found = std::fs::read(&log).unwrap_or_default();
            let tail = &found[found.len().saturating_sub(2000)..];
            text.push_str(&format!("--- {}\n{}\n", log.display(), String::from_utf8_lossy(tail)));
        }
        text
    }

    /// Kills every process of the cluster.
    pub fn kill_everything(&self) {
        self.guardian.kill_everything();
    }

    /// Serves a volume over NBD on a Unix socket.
    #[track_caller]
    pub fn serve(&self, volume: &str) -> Door {
        self.serve_with(volume, &[])
    }

    /// The same, or what the server said when it ended instead.
    pub fn try_serve(&self, volume: &str) -> Result<Door, String> {
        Door::open(self, volume, volume, &[])
    }

    /// Serves it with more flags.
    #[track_caller]
    pub fn serve_with(&self, volume: &str, flags: &[&str]) -> Door {
        served(Door::open(self, volume, volume, flags))
    }

    /// Serves it without waiting for the attachment of a killed server to expire.
    #[track_caller]
    pub fn serve_shared(&self, volume: &str) -> Door {
        self.serve_shared_at(volume, volume)
    }

    /// Serves it shared, on a socket of that name, so that there can be several servers of it.
    #[track_caller]
    pub fn serve_shared_at(&self, volume: &str, name: &str) -> Door {
        served(Door::open(self, volume, name, &["--shared"]))
    }
}

#[track_caller]
fn served(door: Result<Door, String>) -> Door {
    door.unwrap_or_else(|said| panic!("the NBD server ended: {said}"))
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// The logs in a folder, and in those in it.
fn logs_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.map(|entry| entry.path()) {
        if entry.is_dir() {
            found.extend(logs_below(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "log") {
            found.push(entry);
        }
    }
    found.sort();
    found
}
