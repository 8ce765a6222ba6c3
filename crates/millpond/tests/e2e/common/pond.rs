//! A cluster of `millpond up`. Whatever a test started ends with it.

use super::door::Door;
use super::site::{Cluster, Site};
use super::{path, run, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::Process;
use serde_json::Value;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A cluster of three nodes in a directory of its own.
pub struct Pond(Site);

impl Deref for Pond {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

impl Cluster for Pond {
    fn down(&self) {
        Pond::down(self);
    }
}

impl Pond {
    /// Starts one with OSD files of that size.
    pub fn start(osd_size: &str) -> Pond {
        Pond::start_with(&["--osd-size", osd_size])
    }

    /// Starts one with these flags.
    pub fn start_with(flags: &[&str]) -> Pond {
        let pond = Pond(Site::new("p"));
        pond.up_with(flags);
        pond
    }

    /// Starts the one whose directory is in that archive.
    pub fn unpacked(archive: &Path) -> Pond {
        let pond = Pond(Site::new("p"));
        let dir = pond.dir();
        std::fs::create_dir(&dir).expect("the directory is not there yet");
        run("tar", &["-xzf", path(archive), "-C", path(&dir)]);
        pond.up();
        pond
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

    /// Ends it in good order.
    #[track_caller]
    pub fn down(&self) {
        self.run(&["down"]);
    }

    /// The file of that OSD.
    pub fn osd_file(&self, osd: u32) -> PathBuf {
        self.dir().join(format!("osd.{osd}.img"))
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

    /// SIGKILL to every process of the cluster and these servers of volumes, in an order that `order` gives.
    pub fn kill_all(&self, doors: &[&Door], order: impl FnOnce(&mut Vec<i32>)) {
        let mut pids = self.node_pids();
        pids.extend(self.up_pid());
        pids.extend(doors.iter().map(|door| door.pid()));
        order(&mut pids);
        for pid in &pids {
            // One that is gone already is what was wanted.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        wait_until("killed processes are gone", || pids.iter().all(|pid| !runs(*pid)));
    }

    /// What one of its processes logged: `up.log`, `node.0.log` and so on.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir().join(name)).unwrap_or_default()
    }
}

impl Drop for Pond {
    fn drop(&mut self) {
        if let Some(up) = self.up_pid() {
            let _ = self.attempt(&["down"]);
            if runs(up) {
                let _ = kill(Pid::from_raw(up), Signal::SIGKILL);
            }
        }
    }
}

/// Whether a process runs. One that only waits to be reaped does not.
pub fn runs(pid: i32) -> bool {
    Process::new(pid).is_ok_and(|process| process.is_alive())
}

fn children_of(parent: i32) -> Vec<i32> {
    let processes = procfs::process::all_processes().expect("/proc is mounted").flatten();
    let stats = processes.filter_map(|process| process.stat().ok());
    stats.filter(|stat| stat.ppid == parent).map(|stat| stat.pid).collect()
}
