//! Running other programs: with a time limit, their output kept, and none of them left behind.

use super::cleanup::Undo;
use super::keeper::{self, Leftover};
use anyhow::{Context, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a running program is looked at. Rare enough to cost nothing that a measurement would see.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a program's last words that an error repeats.
const WORDS_BYTES_MAX: usize = 2000;

/// Runs `program` with `arguments` and returns what it wrote to its standard output. It is killed after
/// `limit`, and when this process is stopped.
pub fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    limit: Duration,
) -> anyhow::Result<String> {
    run_and_wait(program.as_ref(), arguments, None, limit, |child, limit| wait(child, limit, None))
}

/// As [`run`], and killed as soon as `stopping` is set, or this process is. All that it starts has the mark.
pub fn run_unless<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    mark: &str,
    limit: Duration,
    stopping: &AtomicBool,
) -> anyhow::Result<String> {
    let wait = |child, limit| wait(child, limit, Some(stopping));
    run_and_wait(program.as_ref(), arguments, Some(mark), limit, wait)
}

/// As [`run_unless`], a line for a shell.
pub fn run_line(line: &str, mark: &str, limit: Duration, stopping: &AtomicBool) -> anyhow::Result<String> {
    run_unless("sh", &["-c", line], mark, limit, stopping)
}

/// As [`run`], but not stopped with this process: for use by what takes things down at its end.
pub fn run_unguarded<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    limit: Duration,
) -> anyhow::Result<String> {
    let wait = |child, limit| wait_for(&Mutex::new(child), limit, None);
    run_and_wait(program.as_ref(), arguments, None, limit, wait)
}

fn run_and_wait<S: AsRef<OsStr>>(
    program: &OsStr,
    arguments: &[S],
    mark: Option<&str>,
    limit: Duration,
    wait: impl FnOnce(Child, Duration) -> std::io::Result<Option<ExitStatus>>,
) -> anyhow::Result<String> {
    let is_kept = keeper::is_there();
    let mut command = if is_kept { gated(program) } else { Command::new(program) };
    // A group of its own: what it has started and not left behind goes with it.
    command.args(arguments).process_group(0);
    command.envs(mark.map(|mark| (mark, "1")));
    command.stdin(if is_kept { Stdio::piped() } else { Stdio::null() });
    let words = std::iter::once(program).chain(arguments.iter().map(AsRef::as_ref));
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    // Files and not pipes: a daemon that the program leaves running would hold a pipe open for ever.
    let file = |name: &str| memfd_create(name, MFdFlags::MFD_CLOEXEC).map(File::from);
    let (mut output, mut errors) = (file("output")?, file("errors")?);
    command.stdout(output.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().with_context(|| {
        let program = program.display();
        format!("cannot start `{program}`; install it (`make deps`) or build it (`cargo build --release`)")
    })?;
    let _kept = child.stdin.take().map(|mut gate| {
        let kept = keeper::keep(Leftover::Group(child.id().cast_signed()));
        // Whoever was killed meanwhile has ended, and that is told below.
        let _ = gate.write_all(b"go\n");
        kept
    });
    let status = wait(child, limit)?;
    if status.is_some_and(|status| status.success()) {
        return Ok(contents(&mut output)?);
    }
    let (errors, output) = (last_words(&mut errors)?, last_words(&mut output)?);
    let words = [errors, output].into_iter().find(|words| !words.is_empty());
    let words = words.unwrap_or_else(|| "it said nothing".to_owned());
    match status {
        Some(status) => bail!("`{line}` failed ({status}): {words}"),
        None => {
            bail!(
                "`{line}` did not end within {} s, or was to stop, and was killed; its last words: {words}",
                limit.as_secs()
            )
        }
    }
}

/// A program that begins when it is told to on its standard input: if this process is killed, it begins if the keeper knows of it.
fn gated(program: &OsStr) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "read -r go && exec \"$@\" < /dev/null", "sh"]).arg(program);
    command
}

/// Several commands at the same time; their outputs in order, or the first failure after all have ended.
pub fn run_together(
    program: impl AsRef<OsStr>,
    arguments: &[Vec<String>],
    limit: Duration,
) -> anyhow::Result<Vec<String>> {
    let program = program.as_ref();
    std::thread::scope(|scope| {
        let running: Vec<_> =
            arguments.iter().map(|arguments| scope.spawn(move || run(program, arguments, limit))).collect();
        let ended: Vec<_> = running
            .into_iter()
            .map(|thread| thread.join().expect("running a command returns errors and does not panic"))
            .collect();
        ended.into_iter().collect()
    })
}

/// As [`wait_for`]; whoever stops this process kills the child.
fn wait(child: Child, limit: Duration, stopping: Option<&AtomicBool>) -> std::io::Result<Option<ExitStatus>> {
    // Killed through the same handle, which knows whether the child has ended: its id cannot be
    // mistaken for another process's.
    let child = Arc::new(Mutex::new(child));
    let shared = Arc::clone(&child);
    let guard = Undo::new(move || {
        let mut child = lock(&shared);
        kill_group(&mut child);
    });
    let status = wait_for(&child, limit, stopping)?;
    guard.disarm();
    Ok(status)
}

/// The end of the process, or `None` if it had to be killed for taking too long.
fn wait_for(
    child: &Mutex<Child>,
    limit: Duration,
    stopping: Option<&AtomicBool>,
) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        let mut child = lock(child);
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline || stopping.is_some_and(|stopping| stopping.load(Ordering::Relaxed)) {
            kill_group(&mut child);
            return Ok(None);
        }
        drop(child);
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills a child and what it has started, if it has not ended: then its id is nobody else's.
fn kill_group(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        // Not waited for, it would stay a zombie; nothing can be done about a failure.
        child.wait().ok();
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn contents(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn last_words(file: &mut File) -> std::io::Result<String> {
    let text = contents(file)?;
    let text = text.trim();
    let from = text.len().saturating_sub(WORDS_BYTES_MAX);
    let from = (from..=text.len()).find(|&index| text.is_char_boundary(index)).unwrap_or(0);
    Ok(text[from..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn output_is_returned_whole() {
        let output = run("sh", &["-c", "head -c 300000 /dev/zero | tr '\\0' x; echo end"], LIMIT).unwrap();
        assert_eq!(output.len(), 300_004);
        assert!(output.ends_with("xend\n"));
    }

    #[test]
    fn a_failure_repeats_what_the_program_said() {
        let error = run("sh", &["-c", "echo loop device busy >&2; exit 3"], LIMIT).unwrap_err().to_string();
        assert!(error.contains("loop device busy") && error.contains("exit status: 3"), "{error}");
        let error = run("no-such-program", &["x"], LIMIT).unwrap_err().to_string();
        assert!(error.contains("`no-such-program`") && error.contains("make deps"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let error = run("sleep", &["600"], Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("did not end within"), "{error}");
    }

    #[test]
    fn a_daemon_that_stays_behind_holds_nobody_up() {
        // The background process keeps the standard output that it inherited.
        let output = run("sh", &["-c", "sleep 2 & echo started"], Duration::from_secs(1)).unwrap();
        assert_eq!(output, "started\n");
    }

    #[test]
    fn commands_run_at_the_same_time_and_answer_in_order() {
        let arguments = ["1", "2"].map(|word| vec!["-c".to_owned(), format!("sleep 0.1; echo {word}")]);
        assert_eq!(run_together("sh", &arguments, LIMIT).unwrap(), ["1\n", "2\n"]);
    }
}
