//! Whether a cluster is whole, and what it must go through.

use super::pond::Pond;
use super::site::Site;
use super::{names, wait_longer, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

/// OSDs of a test's cluster, one on each node, unless it says otherwise; and copies of its data.
pub const OSDS: u32 = 3;
/// What a volume is made of, in bytes.
pub const BLOCK: u64 = 4096;
/// What must be moved, or caught up with, is so within this, on a busy machine and beside fio too.
pub const MOVED_WITHIN: Duration = Duration::from_secs(240);
/// How often a trouble is begun anew that began at a bad moment.
const BEGINNINGS_MAX: usize = 5;

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
    site.list(&["osd", "tree"]).into_iter().find(|view| view["osd"] == osd)
}

/// `pg dump --json`.
pub fn groups(site: &Site) -> Vec<Value> {
    site.list(&["pg", "dump"])
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

/// Nobody reaches that OSD, and it reaches nobody.
pub fn without(lost: u32) -> impl Fn(u64, u64) -> bool {
    move |one, other| one != u64::from(lost) && other != u64::from(lost)
}

/// These two do not reach each other.
pub fn without_link(between: [u32; 2]) -> impl Fn(u64, u64) -> bool {
    let [one, other] = between.map(u64::from);
    move |from, to| ![(one, other), (other, one)].contains(&(from, to))
}

/// Begins a trouble in which every group can go on, and waits until each is led by an OSD that reaches all of its members.
/// `reach` says which OSDs still reach each other. What `begin` gives ends the trouble when it is dropped.
///
/// On a busy machine an OSD may have been silent for a moment just before, so that a group counts on two members. When the
/// trouble takes one of them, too few are left, and the group rightly waits until it is over. That was a bad moment to begin,
/// so another is looked for.
#[track_caller]
pub fn goes_on_in<T>(site: &Site, reach: impl Fn(u64, u64) -> bool, mut begin: impl FnMut() -> T) -> T {
    for _ in 0..BEGINNINGS_MAX {
        becomes_whole(site);
        let trouble = begin();
        let mut waiting = None;
        wait_until("every group has a configuration that can go on", || {
            let groups = groups(site);
            let are_two_left = |group: &&Value| {
                let members = osds_in(group, "in_sync");
                members.iter().any(|one| members.iter().any(|other| one < other && reach(*one, *other)))
            };
            waiting = groups.iter().find(|group| !are_two_left(group)).cloned();
            let goes_on = |group: &Value| {
                let primary = group["primary"].as_u64().expect("a group has a primary");
                osds_in(group, "in_sync").iter().all(|osd| *osd == primary || reach(primary, *osd))
            };
            waiting.is_some() || groups.iter().all(goes_on)
        });
        match waiting {
            None => return trouble,
            Some(group) => eprintln!("once more, for a member was silent just before: {group}"),
        }
    }
    panic!(
        "{BEGINNINGS_MAX} times some group had lost a member before; is the machine too busy for a cluster?"
    );
}

/// The OSDs that a group has in one of its lists.
pub fn osds_in(group: &Value, field: &str) -> Vec<u64> {
    group[field].as_array().expect("it is a list").iter().filter_map(Value::as_u64).collect()
}

/// Removes an OSD that is out as soon as nothing is on it that is needed.
#[track_caller]
pub fn is_removed(site: &Site, osd: u32) {
    let mut told = String::new();
    wait_longer(MOVED_WITHIN, "it can be removed", || {
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
    let started = Instant::now();
    loop {
        let groups = groups(site);
        let is_whole = |group: &Value| {
            let sorted = |field: &str| {
                let mut osds = osds_in(group, field);
                osds.sort_unstable();
                osds
            };
            let members = sorted("in_sync");
            group["state"] == "active"
                && members.len() == OSDS as usize
                && osds_in(group, "learners").is_empty()
                && members == sorted("target")
                && group["target"][0] == group["primary"]
        };
        let lacking: Vec<&Value> = groups.iter().filter(|group| !is_whole(group)).collect();
        if lacking.is_empty() && !groups.is_empty() {
            return eprintln!("whole after {:.1} s", started.elapsed().as_secs_f64());
        }
        assert!(
            started.elapsed() < MOVED_WITHIN,
            "{} of {} groups are not whole, the first: {}",
            lacking.len(),
            groups.len(),
            lacking.first().map_or_else(String::new, ToString::to_string)
        );
        // Seldom: asking is work for a machine that is busy.
        std::thread::sleep(Duration::from_millis(300));
    }
}
