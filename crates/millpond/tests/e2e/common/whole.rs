//! Whether a cluster is whole, and signals to its nodes.

use super::pond::Pond;
use super::site::Site;
use super::{PATIENCE, names, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::{Duration, Instant};

/// OSDs of a test's cluster, one on each node, unless it says otherwise; and copies of its data.
pub const OSDS: u32 = 3;
/// What a volume is made of, in bytes.
pub const BLOCK: u64 = 4096;

pub fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("the process runs");
}

/// A process that stands still until this is dropped.
pub struct Frozen(i32);

impl Frozen {
    pub fn new(pid: i32) -> Frozen {
        signal(pid, Signal::SIGSTOP);
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0), Signal::SIGCONT);
    }
}

/// The process that runs an OSD.
pub fn node_of(pond: &Pond, osd: u32) -> i32 {
    let mut found = None;
    // Just after a start the status may still have the process before.
    wait_until("the OSD's process is known", || {
        let pid = osd_view(pond, osd).and_then(|view| view["pid"].as_i64());
        found = pid.map(|pid| pid as i32).filter(|pid| pond.node_pids().contains(pid));
        found.is_some()
    });
    found.expect("it was waited for")
}

/// An OSD as `osd tree --json` shows it, if there is one of that number.
pub fn osd_view(site: &Site, osd: u32) -> Option<Value> {
    let osds: Vec<Value> =
        serde_json::from_str(&site.run(&["osd", "tree", "--json"])).expect("the OSDs are JSON");
    osds.into_iter().find(|view| view["osd"] == osd)
}

/// `pg dump --json`.
pub fn groups(site: &Site) -> Vec<Value> {
    serde_json::from_str(&site.run(&["pg", "dump", "--json"])).expect("the groups are JSON")
}

/// The epoch of each group.
pub fn epochs(site: &Site) -> Vec<u64> {
    groups(site).iter().map(|group| group["epoch"].as_u64().expect("an epoch is a number")).collect()
}

/// Asserts that `trouble` ends the epoch of every group: if not, nothing was tested.
pub fn every_epoch_ends(site: &Site, trouble: impl FnOnce()) {
    let before = epochs(site);
    trouble();
    wait_until("every group has a new epoch", || {
        epochs(site).iter().zip(&before).all(|(now, before)| now > before)
    });
}

/// Asserts that `trouble` ends the epoch of some group.
pub fn some_epoch_ends(site: &Site, trouble: impl FnOnce()) {
    let before = epochs(site);
    trouble();
    wait_until("some group has a new epoch", || epochs(site) != before);
}

/// Removes an OSD that is out as soon as nothing is on it that is needed.
#[track_caller]
pub fn is_removed(site: &Site, osd: u32) {
    let mut told = String::new();
    wait_until("it can be removed", || {
        let (worked, stdout, stderr) = site.attempt(&["osd", "rm", &osd.to_string()]);
        told = stdout;
        assert!(worked || stderr.contains("cannot be removed yet"), "{stderr}");
        worked
    });
    names(&told, &[&format!("osd.{osd} is removed"), "is left as it is", "osd wipe", "osd add --device"]);
    wait_until("status has forgotten it", || osd_view(site, osd).is_none());
}

/// Waits until every group is active, with all copies in sync, where they shall lie.
#[track_caller]
pub fn becomes_whole(site: &Site) {
    becomes_whole_within(site, PATIENCE);
}

/// The same where much data must be moved for it.
#[track_caller]
pub fn becomes_whole_within(site: &Site, limit: Duration) {
    let started = Instant::now();
    loop {
        let groups = groups(site);
        let is_whole = |group: &Value| {
            let count = |field: &str| group[field].as_array().map(Vec::len);
            let sorted = |field: &str| {
                let mut osds: Vec<u64> = group[field].as_array()?.iter().filter_map(Value::as_u64).collect();
                osds.sort_unstable();
                Some(osds)
            };
            group["state"] == "active"
                && count("in_sync") == Some(OSDS as usize)
                && count("learners") == Some(0)
                && sorted("in_sync") == sorted("target")
                && group["target"][0] == group["primary"]
        };
        let lacking: Vec<&Value> = groups.iter().filter(|group| !is_whole(group)).collect();
        if lacking.is_empty() && !groups.is_empty() {
            eprintln!("whole after {:.1} s", started.elapsed().as_secs_f64());
            return;
        }
        assert!(
            started.elapsed() < limit,
            "{} of {} groups are not whole after {limit:?}, the first: {}",
            lacking.len(),
            groups.len(),
            lacking.first().map_or_else(String::new, ToString::to_string)
        );
        // Seldom: asking is work for a machine that is busy.
        std::thread::sleep(Duration::from_millis(300));
    }
}
