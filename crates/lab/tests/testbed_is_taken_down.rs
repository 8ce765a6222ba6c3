//! The suite takes down what it set up, however it ends. A script stands in for `millpond`: it answers as far
//! as a test wants it to, and leaves a process behind that `down` does not end.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use testkit::process::run;
use testkit::{Process, wait_until};

const REPORT: &str = r#"{"job":{"target":"raw:/dev/null","rw":"write","bs":1048576,"iodepth":8,"rwmixread":50},
    "seconds":1.0,"read":null,"write":null,"cpu":{"machine_us_per_operation":null,"nodes_us_per_operation":null,
    "client":{"label":"client","pid":1,"us_per_operation":null,"resident_bytes":null},"nodes":[],
    "steal_seconds":null},"errors":0,"first_error":null,"stopped_early":false}"#;

/// A job that runs as long as its cluster is there.
const HANGS: &str = "while [ -e \"$place\" ]; do sleep 0.2; done";

struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    /// `None` where loop devices cannot be made.
    fn new(on_volume: &str) -> Option<Stage> {
        if !testkit::prerequisites::has_device("a testbed is taken down", "/dev/loop-control") {
            return None;
        }
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let script = format!(
            "#!/bin/sh\n\
             place=$2\n\
             case \"$*\" in\n\
             *' up '*) mkdir -p \"$place\"; sh -c 'while :; do sleep 0.2; done' left-behind \"$place/node.1\" \
             >/dev/null 2>&1 & ;;\n\
             *' down') echo cannot >&2; exit 1 ;;\n\
             *'bench --target volume:'*) touch '{marker}'; {on_volume} ;;\n\
             *' bench '*) cat '{report}' ;;\n\
             esac\n",
            marker = directory.path().join("reached").display(),
            report = directory.path().join("report").display(),
        );
        fs::write(directory.path().join("report"), REPORT).unwrap();
        let path = directory.path().join("millpond");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Some(Stage { directory })
    }

    fn start(&self) -> Process {
        let mut suite = Command::new(env!("CARGO_BIN_EXE_millpond-bench"));
        suite
            .args(["volume", "--quick", "--volume-size", "256MiB", "--directory"])
            .arg(self.directory.path());
        suite.arg("--millpond").arg(self.directory.path().join("millpond"));
        Process::start(&mut suite, &self.directory.path().join("log"))
    }

    fn wait_until_the_volume_is_written(&self, suite: &mut Process) {
        wait_until("the volume is written", || {
            assert!(suite.runs(), "{}", suite.said());
            self.directory.path().join("reached").exists()
        });
        assert_eq!(self.loops().lines().count(), 4, "three drives and a raw device");
        assert!(self.processes() > 0, "the stand-in left nothing behind, so that nothing is tested");
    }

    fn loops(&self) -> String {
        let text = run("losetup", &["--noheadings", "--list"]);
        let place = self.directory.path().display().to_string();
        text.lines().filter(|line| line.contains(&place)).map(|line| format!("{line}\n")).collect()
    }

    /// Processes of the cluster that the stand-in left behind.
    fn processes(&self) -> usize {
        let place = self.directory.path().join("millpond-bench.").display().to_string();
        let lines = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        lines
            .filter(|line| {
                let line = String::from_utf8_lossy(line).into_owned();
                line.contains("left-behind") && line.contains(&place)
            })
            .count()
    }

    fn nothing_is_left_of(&self, suite: &Process) {
        assert_eq!(self.loops(), "", "{}", suite.said());
        assert_eq!(self.processes(), 0, "{}", suite.said());
        let left: Vec<_> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("millpond-bench."))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn after_an_interrupt_nothing_is_left() {
    let Some(stage) = Stage::new(HANGS) else { return };
    let mut suite = stage.start();
    stage.wait_until_the_volume_is_written(&mut suite);
    suite.is_sent(Signal::SIGINT);
    let status = suite.ends();
    // The signal's own code, or a failure where the program saw its job killed first.
    assert!(matches!(status.code(), Some(130 | 1)), "{status}");
    stage.nothing_is_left_of(&suite);
}

#[test]
fn after_a_failed_job_nothing_is_left_and_its_reason_is_told() {
    let Some(stage) = Stage::new("echo volume bench: osd.2 is full >&2; exit 1") else { return };
    let mut suite = stage.start();
    let status = suite.ends();
    assert_eq!(status.code(), Some(1), "{}", suite.said());
    assert!(suite.said().contains("osd.2 is full"), "{}", suite.said());
    stage.nothing_is_left_of(&suite);
}

#[test]
fn what_a_killed_run_left_is_taken_down_by_the_next() {
    let Some(stage) = Stage::new(HANGS) else { return };
    let mut suite = stage.start();
    stage.wait_until_the_volume_is_written(&mut suite);
    suite.is_killed();
    assert_eq!(stage.loops().lines().count(), 4);
    fs::remove_file(stage.directory.path().join("reached")).unwrap();
    let mut next = stage.start();
    stage.wait_until_the_volume_is_written(&mut next);
    next.is_sent(Signal::SIGTERM);
    next.ends();
    stage.nothing_is_left_of(&next);
}
