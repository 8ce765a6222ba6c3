//! The child processes of a cluster: started, watched, started again, stopped.
//!
//! Invariant: a child is signalled only by the task that waits for it, so never after it was reaped
//! and its process id given to a stranger.
//!
//! A child dies with its parent: it asks the kernel for a signal on the death of the *thread* that
//! started it, so children are started on the thread that lives as long as the process does. Drive
//! [`Supervisor::supervise`] from the main thread, not from a spawned task.

use anyhow::Context;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Pauses before a child that ended is started again, doubled each time, in seconds.
const PAUSE_SECONDS: std::ops::RangeInclusive<u64> = 1..=30;
/// A child that ran this long is no longer failing at its start.
const STEADY: Duration = Duration::from_secs(60);
/// How long children may take to end when asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// A log larger than this is set aside before a child writes on.
pub const LOG_BYTES_MAX: u64 = 16 << 20;
/// How much of the end of a log is looked at for its last line, in bytes.
const LOG_TAIL_BYTES: u64 = 4096;
/// Exits that wait to be noticed; the tasks that report more of them wait.
const EXITS_QUEUED_MAX: usize = 16;
/// Orders ever sent to one process: to end, and to be killed.
const ORDERS_MAX: usize = 2;

/// A process to keep running.
#[derive(Clone, Debug)]
pub struct ChildPlan {
    /// What it is called in messages, and by its log.
    pub name: String,
    /// The arguments of `millpond`.
    pub arguments: Vec<OsString>,
    /// Where its stdout and stderr go.
    pub log: PathBuf,
    /// The network namespace it runs in, if not in this process's own.
    pub namespace: Option<String>,
}

/// What became of a child.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// What happened and what happens next, for a person.
    pub message: String,
    /// How often in a row it ended without having run steadily.
    pub failures: u32,
    /// Whether it will be started again.
    pub restarts: bool,
    /// It ended because it is not needed any more.
    pub is_retired: bool,
}

/// A child that runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
}

enum State {
    Running { pid: u32, since: Instant, log_start: u64, orders: mpsc::Sender<Signal> },
    Pausing { until: Instant },
    Over,
}

struct Child {
    plan: ChildPlan,
    state: State,
    failures: u32,
    /// It is not needed any more: when it has ended, it stays so.
    is_retired: bool,
}

struct Exit {
    index: usize,
    status: std::io::Result<ExitStatus>,
}

/// Keeps child processes running.
///
/// Call [`Self::start`] once for each, then await [`Self::supervise`] again and again, and end with
/// [`Self::stop`]. All futures can be dropped without losing a child.
pub struct Supervisor {
    program: PathBuf,
    restart: bool,
    children: Vec<Child>,
    exits_in: mpsc::Sender<Exit>,
    exits: mpsc::Receiver<Exit>,
    running: watch::Sender<Vec<Running>>,
}

impl Supervisor {
    /// A supervisor of processes of this same program.
    pub fn new(restart: bool) -> anyhow::Result<Supervisor> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let (exits_in, exits) = mpsc::channel(EXITS_QUEUED_MAX);
        Ok(Supervisor {
            program,
            restart,
            children: Vec::new(),
            exits_in,
            exits,
            running: watch::Sender::new(Vec::new()),
        })
    }

    /// Who runs now, kept current.
    pub fn running(&self) -> watch::Receiver<Vec<Running>> {
        self.running.subscribe()
    }

    /// Starts a child and keeps it running.
    pub fn start(&mut self, plan: ChildPlan) -> anyhow::Result<()> {
        self.children.push(Child { plan, state: State::Over, failures: 0, is_retired: false });
        self.spawn(self.children.len() - 1)
    }

    /// Has a child started with other arguments the next time.
    pub fn change(&mut self, name: &str, arguments: Vec<OsString>) {
        for child in self.children.iter_mut().filter(|child| child.plan.name == name && !child.is_retired) {
            child.plan.arguments.clone_from(&arguments);
        }
    }

    /// Ends a child for good.
    pub fn retire(&mut self, name: &str) {
        self.start_no_more(name);
        for child in self.children.iter().filter(|child| child.plan.name == name) {
            if let State::Running { orders, .. } = &child.state {
                // A task that is gone has already reported the exit.
                let _ = orders.try_send(Signal::SIGTERM);
            }
        }
    }

    /// Has a child not started again once it has ended by itself.
    pub fn start_no_more(&mut self, name: &str) {
        for child in self.children.iter_mut().filter(|child| child.plan.name == name) {
            child.is_retired = true;
            if let State::Pausing { .. } = child.state {
                child.state = State::Over;
            }
        }
    }

    /// Whether no child runs or will run again.
    pub fn is_over(&self) -> bool {
        self.children.iter().all(|child| matches!(child.state, State::Over))
    }

    /// Starts ended children again when their pause is over, until one ends, and says so.
    pub async fn supervise(&mut self) -> Ended {
        loop {
            let next = self.next_start();
            let pause = async {
                let Some((until, index)) = next else { return std::future::pending().await };
                tokio::time::sleep_until(until).await;
                index
            };
            tokio::select! {
                exit = self.exits.recv() => {
                    let exit = exit.expect("the supervisor holds a sender itself");
                    return self.ended(&exit);
                }
                index = pause => {
                    if let Err(error) = self.spawn(index) {
                        return self.failed(index, &format!("{error:#}"));
                    }
                }
            }
        }
    }

    /// Asks all children to end, waits, and kills those that do not, or all when `hurry` completes.
    /// Returns what had to be forced, as sentences.
    pub async fn stop(&mut self, hurry: impl Future<Output = ()>) -> Vec<String> {
        self.order(Signal::SIGTERM);
        let mut warnings = Vec::new();
        let deadline = tokio::time::sleep(PATIENCE);
        tokio::pin!(deadline, hurry);
        let mut killed = false;
        while self.children.iter().any(|child| matches!(child.state, State::Running { .. })) {
            tokio::select! {
                exit = self.exits.recv() => {
                    let exit = exit.expect("the supervisor holds a sender itself");
                    self.children[exit.index].state = State::Over;
                    self.publish();
                }
                () = &mut deadline, if !killed => {
                    killed = true;
                    for child in &self.children {
                        if let State::Running { pid, .. } = child.state {
                            warnings.push(format!(
                                "{} (pid {pid}) did not end within {} s and was killed; \
                                 what it acknowledged is safe, its next start takes longer",
                                child.plan.name, PATIENCE.as_secs()
                            ));
                        }
                    }
                    self.order(Signal::SIGKILL);
                }
                () = &mut hurry, if !killed => {
                    killed = true;
                    warnings.push("stopped at once on the second signal: nodes were killed".to_owned());
                    self.order(Signal::SIGKILL);
                }
            }
        }
        for child in &mut self.children {
            child.state = State::Over;
        }
        warnings
    }

    fn order(&self, signal: Signal) {
        for child in &self.children {
            if let State::Running { orders, .. } = &child.state {
                // A task that is gone has already reported the exit.
                let _ = orders.try_send(signal);
            }
        }
    }

    fn next_start(&self) -> Option<(Instant, usize)> {
        self.children
            .iter()
            .enumerate()
            .filter_map(|(index, child)| match child.state {
                State::Pausing { until } => Some((until, index)),
                _ => None,
            })
            .min()
    }

    fn spawn(&mut self, index: usize) -> anyhow::Result<()> {
        let child = &mut self.children[index];
        let plan = &child.plan;
        let log = open_log(&plan.log)?;
        let log_start = log.metadata().map(|metadata| metadata.len()).unwrap_or(0);
        let copy = log.try_clone().with_context(|| format!("cannot use {}", plan.log.display()))?;
        let mut command = match &plan.namespace {
            None => std::process::Command::new(&self.program),
            Some(namespace) => {
                // It becomes the program, under the same process id.
                let mut command = std::process::Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.program);
                command
            }
        };
        command
            .args(&plan.arguments)
            .arg("--parent")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(copy)
            .stderr(log)
            // In a group of its own, so that Ctrl-C at the terminal reaches only the parent, which
            // then stops its children in good order.
            .process_group(0);
        let mut process = tokio::process::Command::from(command)
            .spawn()
            .with_context(|| format!("cannot start {} from {}", plan.name, self.program.display()))?;
        let pid = process.id().expect("a process that was just started was not yet waited for");
        let (orders, mut ordered) = mpsc::channel(ORDERS_MAX);
        let exits = self.exits_in.clone();
        tokio::spawn(async move {
            let status = loop {
                tokio::select! {
                    status = process.wait() => break status,
                    Some(signal) = ordered.recv() => send(&process, signal),
                }
            };
            // Nobody listens any more when the whole process is ending.
            let _ = exits.send(Exit { index, status }).await;
        });
        child.state = State::Running { pid, since: Instant::now(), log_start, orders };
        self.publish();
        Ok(())
    }

    fn ended(&mut self, exit: &Exit) -> Ended {
        let child = &mut self.children[exit.index];
        let State::Running { pid, since, log_start, .. } = child.state else {
            panic!("{} ended without having run", child.plan.name);
        };
        if since.elapsed() >= STEADY {
            child.failures = 0;
        }
        let how = match &exit.status {
            Ok(status) => describe(*status),
            Err(error) => format!("ended, and how is unknown ({error})"),
        };
        let name = &child.plan.name;
        if child.is_retired {
            child.state = State::Over;
            let message = format!("{name} (pid {pid}) has ended: it has no OSD any more");
            let ended = Ended { name: name.clone(), message, failures: 0, restarts: false, is_retired: true };
            self.publish();
            return ended;
        }
        let last = last_line(&child.plan.log, log_start);
        let what = match last {
            Some(line) => format!("{name} (pid {pid}) {how}: {line}"),
            None => format!("{name} (pid {pid}) {how}"),
        };
        self.failed(exit.index, &what)
    }

    fn failed(&mut self, index: usize, what: &str) -> Ended {
        let restarts = self.restart;
        let child = &mut self.children[index];
        child.failures += 1;
        let (name, failures, log) = (child.plan.name.clone(), child.failures, child.plan.log.display());
        let message = if restarts {
            let pause = pause_seconds(failures);
            child.state = State::Pausing { until: Instant::now() + Duration::from_secs(pause) };
            format!("{what}\n  it starts again in {pause} s; its log is {log}")
        } else {
            child.state = State::Over;
            format!("{what}\n  it stays down because of --no-restart; its log is {log}")
        };
        self.publish();
        Ended { name, message, failures, restarts, is_retired: false }
    }

    fn publish(&self) {
        let running = self.children.iter().filter_map(|child| match child.state {
            State::Running { pid, .. } => Some(Running { name: child.plan.name.clone(), pid }),
            _ => None,
        });
        self.running.send_replace(running.collect());
    }
}

fn send(process: &tokio::process::Child, signal: Signal) {
    let Some(pid) = process.id().and_then(|pid| i32::try_from(pid).ok()) else { return };
    // It can only fail because the process has ended, which is what was wanted.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

fn pause_seconds(failures: u32) -> u64 {
    let doubled = PAUSE_SECONDS.start() << failures.saturating_sub(1).min(16);
    doubled.min(*PAUSE_SECONDS.end())
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "ended by itself".to_owned(),
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => match Signal::try_from(signal) {
            Ok(signal) => format!("was killed by {}", signal.as_str()),
            Err(_) => format!("was killed by signal {signal}"),
        },
        (None, None) => "ended".to_owned(),
    }
}

/// Opens a log to append to it; a large one becomes `*.log.old` first.
pub fn open_log(path: &Path) -> anyhow::Result<File> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        std::fs::rename(path, &old).with_context(|| format!("cannot set {} aside", path.display()))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        // It says who connected from where, and what volumes are called.
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot open the log {}", path.display()))
}

/// Starts this program in the background, with what it says in a log.
pub fn start_in_background(
    arguments: impl IntoIterator<Item = OsString>,
    log: File,
) -> anyhow::Result<std::process::Child> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    std::process::Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot use the log")?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// The last line that a log got after `start`, cleaned for printing.
pub fn last_line(path: &Path, start: u64) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let end = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(LOG_TAIL_BYTES)))).ok()?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let line = line.strip_prefix("error: ").unwrap_or(line);
    Some(line.chars().filter(|character| !character.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let pauses: Vec<u64> = (1..=8).map(pause_seconds).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(pause_seconds(u32::MAX), 30);
    }

    #[test]
    fn the_last_line_is_one_of_this_run() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        std::fs::write(&path, "an older run\n").unwrap();
        assert_eq!(last_line(&path, 13), None);
        std::fs::write(&path, "an older run\nfirst\nerror: the drive is gone\n\n").unwrap();
        assert_eq!(last_line(&path, 13).as_deref(), Some("the drive is gone"));
    }

    #[test]
    fn a_large_log_is_set_aside() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("node.0.log");
        File::create(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        open_log(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert!(scratch.path().join("node.0.log.old").exists());
    }

    fn plan(log: &Path, script: &str) -> ChildPlan {
        let (name, arguments) = ("child".into(), vec!["-c".into(), script.into()]);
        ChildPlan { name, arguments, log: log.to_owned(), namespace: None }
    }

    fn shell(restart: bool) -> Supervisor {
        let mut supervisor = Supervisor::new(restart).unwrap();
        supervisor.program = "/bin/sh".into();
        supervisor
    }

    #[tokio::test]
    async fn a_child_that_ends_is_reported_with_its_last_words_and_started_again() {
        let scratch = tempfile::tempdir().unwrap();
        let mut supervisor = shell(true);
        let log = scratch.path().join("log");
        supervisor.start(plan(&log, "echo 'error: no luck' >&2; exit 3")).unwrap();
        let ended = supervisor.supervise().await;
        assert!(ended.message.contains("exit code 3: no luck"), "{}", ended.message);
        assert!(ended.restarts && !supervisor.is_over());
        let again = supervisor.supervise().await;
        assert_eq!((ended.failures, again.failures), (1, 2));
        supervisor.stop(std::future::pending()).await;
        assert!(supervisor.is_over());
    }

    #[tokio::test]
    async fn without_restart_a_child_stays_down() {
        let scratch = tempfile::tempdir().unwrap();
        let mut supervisor = shell(false);
        supervisor.start(plan(&scratch.path().join("log"), "kill -9 $$")).unwrap();
        let ended = supervisor.supervise().await;
        assert!(ended.message.contains("killed by SIGKILL"), "{}", ended.message);
        assert!(!ended.restarts && supervisor.is_over());
    }

    #[tokio::test]
    async fn a_retired_child_ends_and_is_not_started_again() {
        let scratch = tempfile::tempdir().unwrap();
        let mut supervisor = shell(true);
        let log = scratch.path().join("log");
        supervisor.start(plan(&log, "while :; do sleep 0.1; done")).unwrap();
        supervisor.retire("child");
        let ended = supervisor.supervise().await;
        assert!(ended.is_retired && !ended.restarts && supervisor.is_over(), "{}", ended.message);
        // One that waits for its next start, too.
        supervisor.start(plan(&log, "exit 1")).unwrap();
        assert!(supervisor.supervise().await.restarts);
        supervisor.change("child", Vec::new());
        assert_eq!(supervisor.children.last().unwrap().plan.arguments.len(), 0);
        supervisor.retire("child");
        assert!(supervisor.is_over());
    }

    #[tokio::test]
    async fn a_child_that_is_not_to_be_started_again_runs_on_until_it_ends_by_itself() {
        let scratch = tempfile::tempdir().unwrap();
        let (log, gate) = (scratch.path().join("log"), scratch.path().join("gate"));
        let mut supervisor = shell(true);
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
        supervisor.start(plan(&log, &script)).unwrap();
        supervisor.start_no_more("child");
        let runs_on = tokio::time::timeout(Duration::from_millis(300), supervisor.supervise()).await;
        assert!(runs_on.is_err(), "{runs_on:?}");
        File::create(&gate).unwrap();
        let ended = supervisor.supervise().await;
        assert!(ended.is_retired && !ended.restarts && supervisor.is_over(), "{}", ended.message);
    }

    #[tokio::test]
    async fn a_child_that_ignores_the_signal_is_killed_on_the_second_wish() {
        let scratch = tempfile::tempdir().unwrap();
        let log = scratch.path().join("log");
        let mut supervisor = shell(true);
        supervisor.start(plan(&log, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")).unwrap();
        while last_line(&log, 0).as_deref() != Some("deaf") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(supervisor.running().borrow().len(), 1);
        let warnings = supervisor.stop(async {}).await;
        assert!(warnings[0].contains("second signal"), "{warnings:?}");
        assert!(supervisor.is_over());
    }
}
