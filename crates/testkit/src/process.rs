//! Programs that a test runs.

use crate::wait::{PATIENCE, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs a program and gives what came of it.
pub fn attempt(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}; `make deps` installs it"))
}

/// Runs a program that must work, and gives its output.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = attempt(program, arguments);
    assert!(output.status.success(), "{program} {arguments:?}: {}: {}", output.status, text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All that a program printed, for the message of a failed test.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Sends a signal to a process that runs.
#[track_caller]
pub fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("the process runs");
}

/// A process that stands still until this is dropped.
pub struct Frozen(i32);

impl Frozen {
    /// Stops a process that runs.
    #[track_caller]
    pub fn new(pid: i32) -> Frozen {
        signal(pid, Signal::SIGSTOP);
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // One that was killed meanwhile needs nothing.
        let _ = kill(Pid::from_raw(self.0), Signal::SIGCONT);
    }
}

/// A program that runs beside the test, and is killed with it.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// Where in the log its own words begin.
    own_from: usize,
}

impl Process {
    /// Starts it. What it says goes to the file `log`, behind what is there.
    pub fn start(command: &mut Command, log: &Path) -> Process {
        let output = File::options().create(true).append(true).open(log).expect("a log can be made");
        let own_from = output.metadata().expect("a log has a length").len() as usize;
        let copy = output.try_clone().expect("a descriptor can be doubled");
        let child = command.stdin(Stdio::null()).stdout(output).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}; `make deps` installs it"));
        Process { child, log: log.to_owned(), own_from }
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// What it has said.
    pub fn said(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.own_from..).unwrap_or_default()).into_owned()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits until it has said that.
    #[track_caller]
    pub fn says(&mut self, words: &str) {
        wait_until(&format!("it says {words:?}"), || {
            assert!(self.runs() || self.said().contains(words), "it ended: {}", self.said());
            self.said().contains(words)
        });
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ends(&mut self) -> ExitStatus {
        self.ends_within(PATIENCE)
    }

    /// The same for what takes longer.
    #[track_caller]
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(began.elapsed() < limit, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks it to end in good order.
    pub fn is_asked_to_end(&mut self) {
        self.is_sent(Signal::SIGTERM);
    }

    /// Sends it a signal, if it runs.
    pub fn is_sent(&mut self, signal: Signal) {
        if self.runs() {
            // It keeps its number until it is waited for, even if it has ended since.
            kill(Pid::from_raw(self.pid()), signal).expect("it was not waited for");
        }
    }

    /// Kills it, so that it says goodbye to nobody.
    pub fn is_killed(&mut self) {
        // One that ended by itself is what was wanted.
        self.child.kill().and_then(|()| self.child.wait()).ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.is_killed();
    }
}
