//! What is taken down although this process was killed: a process of its own, the keeper, knows all of it, and takes down what is left
//! when this one is gone.
//!
//! [`cleanup`](super::cleanup) covers the ways out that a process hears of. Of SIGKILL, as a user or the kernel that is out of memory
//! sends it, it hears nothing; but then the keeper's input ends. It is in a session of its own: what ends a terminal does not end it.

use super::command;
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, setsid};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long a command that takes something down may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);
/// A mark is a variable of the environment, so that whoever is started by one that has it has it too; its name begins with this.
const MARK: &str = "MILLPOND_LAB_MARK_";
/// What has been started and has its mark soon is waited for so long.
const MARK_DELAY: Duration = Duration::from_millis(100);
/// How long processes have for ending by themselves.
pub const FAREWELL: Duration = Duration::from_secs(3);
/// How long processes with a mark may take to die.
const MARKED_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a command that takes something down and fails is tried: the kernel gives back what a killed process had a little later.
const TRIED_FOR: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(200);

/// Something that is there and is to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leftover {
    /// Whatever it is that this command takes down, by a shell.
    Command(String),
    /// A directory and all in it.
    Directory(PathBuf),
    /// The processes of a group, by its id.
    Group(i32),
    /// The processes that have a mark.
    Marked(String),
}

/// What a keeper is told.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Keep(u64, Leftover),
    Forget(u64),
}

/// This process's keeper.
struct Keeper {
    /// Its end is what tells that this process has ended.
    input: ChildStdin,
    next: u64,
}

static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

fn keeper() -> MutexGuard<'static, Option<Keeper>> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    fn tell(&mut self, word: &Word) {
        // One that was killed itself is missed only if this process is too.
        if let Ok(line) = serde_json::to_string(word) {
            let _ = writeln!(self.input, "{line}");
        }
    }
}

/// Starts this process's keeper: `command` is to [`serve`]. Without one, [`keep`] does nothing.
///
/// # Errors
/// It cannot be started.
pub fn begin(mut command: Command) -> anyhow::Result<()> {
    // It is not to be ended with what it is to take down.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(MARK.as_bytes()) {
            command.env_remove(name);
        }
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process that takes down what a killed one leaves behind")?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (input, output) = (input.context("it has no input")?, output.context("it has no output")?);
    let mut ready = String::new();
    BufReader::new(output).read_line(&mut ready).context("cannot hear whether it is ready")?;
    if ready.is_empty() {
        bail!("the process that takes down what a killed one leaves behind has ended");
    }
    *keeper() = Some(Keeper { input, next: 0 });
    Ok(())
}

/// Whether this process has one.
#[must_use]
pub fn is_there() -> bool {
    keeper().is_some()
}

/// Something that the keeper knows, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it has it forgotten"]
pub struct Kept(Option<u64>);

/// Has it taken down if this process is gone.
pub fn keep(leftover: Leftover) -> Kept {
    let mut keeper = keeper();
    Kept(keeper.as_mut().map(|keeper| {
        let id = keeper.next;
        keeper.next += 1;
        keeper.tell(&Word::Keep(id, leftover));
        id
    }))
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let (Some(id), Some(keeper)) = (self.0, keeper().as_mut()) {
            keeper.tell(&Word::Forget(id));
        }
    }
}

/// Is a keeper: says that it is ready, hears what there is, and when nobody will say more takes down what is left, the newest first.
/// Whoever calls this does not end of SIGINT, SIGTERM and SIGHUP.
///
/// # Errors
/// It cannot say anything.
pub fn serve(input: impl BufRead, mut output: impl Write) -> anyhow::Result<()> {
    // Whoever leads a group has no session of its own to be had, and needs none.
    let _ = setsid();
    writeln!(output, "ready").and_then(|()| output.flush()).context("cannot say that it is ready")?;
    for leftover in left_of(input) {
        take_down(leftover);
    }
    Ok(())
}

/// What is left when nobody says more, the newest first.
fn left_of(input: impl BufRead) -> Vec<Leftover> {
    let mut left = BTreeMap::new();
    for line in input.lines() {
        // Whoever is killed while it says something has not begun what it was to be about.
        match line.map(|line| serde_json::from_str(&line)) {
            Ok(Ok(Word::Keep(id, leftover))) => drop(left.insert(id, leftover)),
            Ok(Ok(Word::Forget(id))) => drop(left.remove(&id)),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    left.into_values().rev().collect()
}

fn take_down(leftover: Leftover) {
    let done = match leftover {
        Leftover::Command(line) => run(&line),
        Leftover::Directory(path) => remove(&path),
        // One that has no processes any more is no error.
        Leftover::Group(group) => {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            Ok(())
        }
        Leftover::Marked(mark) => end_marked(&mark, FAREWELL).map(drop),
    };
    if let Err(error) = done {
        complain(&error);
    }
}

/// Tells of a failure, if anybody listens: one that does not must not end whoever takes things down.
pub fn complain(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr(), "{error:#}");
}

/// Removes a directory and all in it, if it is there.
///
/// # Errors
/// Something is mounted in it, which would be removed too, or it cannot be removed.
pub fn remove(directory: &Path) -> anyhow::Result<()> {
    // As the kernel calls it, which knows of no links.
    let directory = match directory.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.with_context(|| format!("{} cannot be looked at", directory.display()))?,
    };
    let mounts = procfs::process::Process::myself().and_then(|process| process.mountinfo());
    let mounts = mounts.context("cannot tell what is mounted")?;
    if let Some(mount) = mounts.into_iter().find(|mount| mount.mount_point.starts_with(&directory)) {
        bail!("{} stays: {} is mounted in it", directory.display(), mount.mount_point.display());
    }
    std::fs::remove_dir_all(&directory).with_context(|| format!("{} cannot be removed", directory.display()))
}

/// Runs a command that takes something down, for a while again if it fails.
///
/// # Errors
/// It fails time and again.
pub fn run(line: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match command::run_unguarded("sh", &["-c", line], COMMAND_LIMIT) {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() >= TRIED_FOR => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A mark that nobody has: a variable that is to be in the environment of who is to have it, with any value.
#[must_use]
pub fn new_mark() -> String {
    format!("{MARK}{}", Uuid::new_v4().simple())
}

/// Waits until no process has a mark any more, and kills those that are left after `grace`, and what they start meanwhile. Answers
/// which had to be killed, by their ids.
///
/// # Errors
/// Some do not die.
pub fn end_marked(mark: &str, grace: Duration) -> anyhow::Result<BTreeSet<i32>> {
    let began = Instant::now();
    let mut killed = BTreeSet::new();
    let mut none_since: Option<Instant> = None;
    while none_since.is_none_or(|since| since.elapsed() < MARK_DELAY) {
        let found = marked(mark)?;
        if found.is_empty() {
            none_since.get_or_insert_with(Instant::now);
        } else if began.elapsed() > grace + MARKED_LIMIT {
            bail!("processes {found:?}, which the lab has started, do not die");
        } else {
            none_since = None;
        }
        if began.elapsed() >= grace {
            for pid in found {
                // It may have ended by itself.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                killed.insert(pid);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(killed)
}

/// The processes that have a mark, of those whose environment may be looked at.
fn marked(mark: &str) -> anyhow::Result<Vec<i32>> {
    let all = procfs::process::all_processes().context("cannot list processes")?;
    let has = |process: &procfs::process::Process| {
        process.environ().is_ok_and(|environ| environ.contains_key(OsStr::new(mark)))
    };
    Ok(all.flatten().filter(has).map(|process| process.pid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn what_was_not_forgotten_is_left_the_newest_first_and_half_a_word_is_none() {
        let word = |word: Word| serde_json::to_string(&word).unwrap();
        let command = |line: &str| Leftover::Command(line.to_owned());
        let said = [
            word(Word::Keep(0, command("first"))),
            word(Word::Keep(1, Leftover::Group(7))),
            word(Word::Keep(2, command("last"))),
            word(Word::Forget(1)),
            "{\"keep\":[3,{\"comm".to_owned(),
        ];
        assert_eq!(left_of(said.join("\n").as_bytes()), [command("last"), command("first")]);
    }

    #[test]
    fn all_of_it_is_taken_down() {
        let directory = tempfile::tempdir().unwrap();
        let (made, gone) = (directory.path().join("made"), directory.path().join("gone"));
        std::fs::create_dir_all(gone.join("within")).unwrap();
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        take_down(Leftover::Command(format!("touch {}", made.display())));
        take_down(Leftover::Directory(gone.clone()));
        take_down(Leftover::Group(child.id().cast_signed()));
        assert!(made.exists() && !gone.exists());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn what_cannot_be_taken_down_yet_is_tried_again_and_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let count = directory.path().join("count").display().to_string();
        let line = |tries: u32| format!("echo x >> {count}; test $(wc -l < {count}) -ge {tries}");
        run(&line(3)).unwrap();
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\nx\nx\n");
        assert!(run(&line(20)).is_err());
        let tries = std::fs::read_to_string(&count).unwrap().lines().count() - 3;
        assert!((2..=6).contains(&tries), "{tries}");
    }

    #[test]
    fn who_has_a_mark_is_ended_wherever_it_went() {
        let mark = new_mark();
        // The shell ends at once and leaves one in the background, another in a session of its own.
        let line = "sleep 600 & setsid sleep 600 & exit";
        assert!(Command::new("sh").args(["-c", line]).env(&mark, "1").status().unwrap().success());
        let mut other = Command::new("sleep").arg("600").env(new_mark(), "1").spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while marked(&mark).unwrap().len() < 2 && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        assert_eq!(marked(&mark).unwrap().len(), 2);
        let all: BTreeSet<i32> = marked(&mark).unwrap().into_iter().collect();
        let (began, grace) = (Instant::now(), Duration::from_millis(300));
        assert_eq!(end_marked(&mark, grace).unwrap(), all);
        assert!(began.elapsed() >= grace);
        assert_eq!(marked(&mark).unwrap(), [0; 0]);
        assert!(other.try_wait().unwrap().is_none(), "another's is left alone");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
