//! Running other programs: with a time limit, their output kept, and none of them left behind.

use super::cleanup::Undo;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a running program is looked at. Rare enough to cost nothing that a measurement would see.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a program's last words that an error repeats.
const WORDS_BYTES_MAX: usize = 2000;

/// Why a program's work is missing.
#[derive(thiserror::Error, Debug)]
pub enum CommandError {
    /// It could not be started.
    #[error("cannot start `{program}`: {error}; {advice}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        error: std::io::Error,
        /// What to do.
        advice: String,
    },
    /// It failed.
    #[error("`{command}` failed ({status}): {words}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said last.
        words: String,
    },
    /// It did not end in time, and was stopped.
    #[error("`{command}` did not end within {} s and was killed; its last words: {words}", limit.as_secs())]
    Timeout {
        /// The command line.
        command: String,
        /// The time it had.
        limit: Duration,
        /// What it said last.
        words: String,
    },
    /// Its output could not be kept.
    #[error("`{command}`: cannot keep its output in {}: {error}", directory.display())]
    Output {
        /// The command line.
        command: String,
        /// Where.
        directory: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// Runs `program` with `arguments` and returns what it wrote to its standard output. It is killed after
/// `limit`, and when this process is stopped.
///
/// # Errors
/// It could not be started, failed, or took too long.
pub fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    limit: Duration,
) -> Result<String, CommandError> {
    run_and_wait(program, arguments, limit, wait)
}

/// As [`run`], but not stopped with this process: for use by what takes things down at its end.
///
/// # Errors
/// As [`run`].
pub fn run_unguarded<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    limit: Duration,
) -> Result<String, CommandError> {
    run_and_wait(program, arguments, limit, |child, limit| wait_for(&Mutex::new(child), limit))
}

fn run_and_wait<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
    limit: Duration,
    wait: impl FnOnce(Child, Duration) -> std::io::Result<Option<ExitStatus>>,
) -> Result<String, CommandError> {
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::null());
    let line = shown(&command);
    let kept = |error| CommandError::Output { command: line.clone(), directory: std::env::temp_dir(), error };
    // Files and not pipes: a daemon that the program leaves running would hold a pipe open for ever.
    let mut output = unnamed_file().map_err(kept)?;
    let mut errors = unnamed_file().map_err(kept)?;
    command.stdout(output.try_clone().map_err(kept)?).stderr(errors.try_clone().map_err(kept)?);
    let child = command.spawn().map_err(|error| CommandError::Start {
        program: program.as_ref().to_string_lossy().into_owned(),
        error,
        advice: "install it (`make deps`) or build it (`cargo build --release`)".to_owned(),
    })?;
    let status = wait(child, limit).map_err(kept)?;
    let words = |errors: &mut File, output: &mut File| -> std::io::Result<String> {
        let mut words = last_words(errors)?;
        if words.is_empty() {
            words = last_words(output)?;
        }
        Ok(if words.is_empty() { "it said nothing".to_owned() } else { words })
    };
    match status {
        Some(status) if status.success() => contents(&mut output).map_err(kept),
        Some(status) => {
            let words = words(&mut errors, &mut output).map_err(kept)?;
            Err(CommandError::Failed { command: line, status, words })
        }
        None => {
            let words = words(&mut errors, &mut output).map_err(kept)?;
            Err(CommandError::Timeout { command: line, limit, words })
        }
    }
}

/// Several commands at the same time; their outputs in order.
///
/// # Errors
/// The first of them that failed, after all have ended.
pub fn run_together(
    program: impl AsRef<OsStr>,
    arguments: &[Vec<String>],
    limit: Duration,
) -> Result<Vec<String>, CommandError> {
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
fn wait(child: Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    // Killed through the same handle, which knows whether the child has ended: its id cannot be
    // mistaken for another process's.
    let child = Arc::new(Mutex::new(child));
    let shared = Arc::clone(&child);
    let guard = Undo::new(move || {
        let mut child = lock(&shared);
        if child.kill().is_ok() {
            // Not waited for, it would stay a zombie; nothing can be done about a failure.
            child.wait().ok();
        }
    });
    let status = wait_for(&child, limit)?;
    guard.disarm();
    Ok(status)
}

/// The end of the process, or `None` if it had to be killed for taking too long.
fn wait_for(child: &Mutex<Child>, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        let mut child = lock(child);
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        drop(child);
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is gone when it is closed.
fn unnamed_file() -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!(".millpond-output.{}.{serial}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
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

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
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
        assert!(matches!(error, CommandError::Timeout { .. }), "{error}");
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
