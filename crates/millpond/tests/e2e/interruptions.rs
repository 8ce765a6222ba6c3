//! Runs of the lab that are ended at any moment, in every way: nothing of theirs stays, and what they keep opens.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::random::Random;
use crate::common::{command, path, scratch, wait_until};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use procfs::process::all_processes;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::prerequisites::{installed, is_root, not_tested};

/// Runs that are ended, unless there is another number in this variable.
const RUNS: u64 = 6;
const RUNS_VARIABLE: &str = "MILLPOND_INTERRUPTIONS";
/// All that a run starts inherits it.
const OF_A_RUN: &str = "MILLPOND_TEST_RUN";
/// A run of the plan takes about so long.
const RUN_MS: u64 = 9000;

/// Everything that a run may start is in it. What `start` sets up, `stop` takes down, however much of it there is.
const PLAN: &str = r#"
name = "ended"
rounds = 2
ramp_time = 0.2
runtime = 0.6
threads = true

[[subject]]
name = "file"
raw = "{scratch}/device"
overwrite = true
start = "truncate -s 8M {scratch}/device; setsid sleep 1000 & echo $! > {scratch}/daemon; sleep 0.3"
stop = "kill -KILL $(cat {scratch}/daemon) || true"
before = "setsid sleep 1000 & sleep 0.1"

[[subject]]
name = "commands"
system = "anything"
start = "setsid sleep 1000 &"

[[job]]
name = "reads"
rw = "randread"
iodepth = 4
subjects = ["file", "mounted"]

[[job]]
name = "pipes"
run = "setsid sleep 1000 & sleep 0.2 | sleep 0.3"
iodepth = 3
subjects = ["commands"]

[[event]]
name = "event"
at = 0.1
job = "reads"
run = "setsid sleep 1000 & sleep 0.2; sleep 0.2"
"#;

/// A file system on a loop device, for who may have one.
const MOUNTED: &str = r#"
[[subject]]
name = "mounted"
directory = "{scratch}/mounted"
size = "4MiB"
start = "mkdir {scratch}/mounted && truncate -s 16M {scratch}/disk && mkfs.ext4 -q {scratch}/disk && mount -o loop {scratch}/disk {scratch}/mounted"
stop = "! mountpoint -q {scratch}/mounted || umount {scratch}/mounted"
"#;

/// The processes that a run has started, by what they are.
fn started_by(run: &str) -> Vec<String> {
    let is_of_it = |process: &procfs::process::Process| {
        process.environ().is_ok_and(|all| all.get(OsStr::new(OF_A_RUN)).is_some_and(|value| value == run))
    };
    let all = all_processes().unwrap().flatten().filter(is_of_it);
    all.filter_map(|process| Some(format!("{}: {:?}", process.pid, process.cmdline().ok()?))).collect()
}

/// Loop devices and mounts that have to do with a directory.
fn kernel_has_of(directory: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().map(str::to_owned);
    let loops = std::fs::read_dir("/sys/block")
        .unwrap()
        .flatten()
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    mounts.chain(loops).filter(|line| line.contains(path(directory))).collect()
}

#[test]
fn a_run_may_be_ended_at_any_moment() {
    const TEST: &str = "runs on a file system of their own that are ended";
    let programs = ["mkfs.ext4", "mount", "mountpoint"];
    let may_mount = is_root(TEST, "a file system of its own") && installed(TEST, &programs);
    let directory = scratch();
    let plan = directory.path().join("plan.toml");
    let text = PLAN.to_owned() + if may_mount { MOUNTED } else { "" };
    let text = if may_mount { text } else { text.replace(", \"mounted\"", "") };
    std::fs::write(&plan, text).unwrap();
    let runs = std::env::var(RUNS_VARIABLE).map_or(RUNS, |runs| runs.parse().unwrap());
    let mut random = Random::seeded();
    for number in 0..runs {
        let name = format!("run-{number}-{}", std::process::id());
        let out = directory.path().join(&name);
        let mut run = command(&["lab", "run", path(&plan), "--out", path(&out)]);
        // As a shell does: a group of its own.
        run.env(OF_A_RUN, &name).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = run.spawn().unwrap();
        let pid = Pid::from_raw(run.id().cast_signed());
        // The beginning is short, and has most that can be half done.
        let within_ms = if random.below(3) == 0 { 300 } else { RUN_MS };
        let at_ms = random.below(within_ms);
        std::thread::sleep(Duration::from_millis(at_ms));
        let ways = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL];
        // Of few runs at least one is killed.
        let way = if number == 0 { Signal::SIGKILL } else { ways[random.below(4) as usize] };
        let is_whole_group = random.below(2) == 0;
        let what = format!("{name} after {at_ms} ms by {way}, its group: {is_whole_group}");
        eprintln!("{what}");
        // It may have ended by itself.
        let _ = if is_whole_group { killpg(pid, way) } else { kill(pid, way) };
        if way != Signal::SIGKILL && random.below(4) == 0 {
            // Who does not want to wait.
            let _ = kill(pid, way);
        }
        let output = run.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        wait_until(&format!("nothing of it runs: {what}: {told}"), || started_by(&name).is_empty());
        assert_eq!(kernel_has_of(&out), [""; 0], "{what}: {told}");
        if !out.exists() {
            // It had not begun, or not said so.
            assert!(at_ms < 2000, "{what}: {told}");
            continue;
        }
        assert!(!out.join("scratch").exists(), "{what}: {told}");
        let report = command(&["lab", "report", path(&out)]).output().unwrap();
        assert!(report.status.success(), "{what}: {}", String::from_utf8_lossy(&report.stderr));
        std::fs::remove_dir_all(&out).unwrap();
    }
}

/// In mounts of its own, which a user may have too: what the keeper is told to remove, by a link, has a file system in it.
const KEPT: &str = r#"
mkdir -p there/scratch/mounted && ln -s there link && mount -t tmpfs none there/scratch/mounted && touch there/scratch/mounted/precious
echo "{\"keep\":[0,{\"directory\":\"$PWD/link/scratch\"}]}" | "$1" lab keeper
test -e there/scratch/mounted/precious && umount there/scratch/mounted
echo "{\"keep\":[0,{\"directory\":\"$PWD/link/scratch\"}]}" | "$1" lab keeper
test -e there && ! test -e there/scratch && echo whole
"#;

#[test]
fn what_is_mounted_where_a_killed_run_was_is_not_removed() {
    const TEST: &str = "a scratch directory with a mount in it that is not removed";
    if !installed(TEST, &["unshare", "mount", "umount"]) {
        return;
    }
    let apart = |arguments: &[&str]| {
        let mut apart = Command::new("unshare");
        apart.args(["--user", "--map-root-user", "--mount"]).args(arguments);
        apart
    };
    if !apart(&["true"]).status().unwrap().success() {
        return not_tested(TEST, "users may have no mounts of their own here");
    }
    let directory = scratch();
    let mut run = apart(&["sh", "-e", "-c", KEPT, "sh", env!("CARGO_BIN_EXE_millpond")]);
    let output = run.current_dir(directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("whole\n"), "{said}");
    assert!(said.contains("there/scratch/mounted is mounted in it"), "{said}");
}
