//! A command as a target: each run of it is an operation, and its latency is how long that takes.

use crate::engine::{Completion, Operation, Target, TargetError};
use crate::testbed::keeper::{self, Kept, Leftover};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Of what a command complains of so much is repeated, in characters.
const WORDS_MAX: usize = 300;

/// Runs of a command by a shell, each slot's on a thread of its own. When it is dropped, or this process is killed, all that they have
/// started ends, wherever it went.
pub struct CommandTarget {
    /// By slot: whoever waits there runs it once for each word.
    slots: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    /// Whether nothing is to begin any more.
    is_over: Arc<AtomicBool>,
    done: Receiver<Completion>,
    /// What slots have as data: nothing that anybody looks at.
    data: Vec<u8>,
    /// What is started has it.
    mark: String,
    _kept: Kept,
}

impl CommandTarget {
    /// Prepares `depth` runs of `line` at the same time.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(line: &str, depth: u32, block_bytes: u32) -> Result<CommandTarget, TargetError> {
        let (completions, done) = channel();
        let mark = keeper::new_mark();
        let kept = keeper::keep(Leftover::Marked(mark.clone()));
        let (mut slots, mut threads) = (Vec::new(), Vec::new());
        let is_over = Arc::new(AtomicBool::new(false));
        for slot in 0..depth {
            let (begin, begins) = channel();
            let (line, mark, completions) = (line.to_owned(), mark.clone(), completions.clone());
            let ends = is_over.clone();
            let runs = move || {
                for () in begins.iter().take_while(|()| !ends.load(Ordering::Relaxed)) {
                    // Whoever hears of it does not go before this thread.
                    let _ = completions.send(Completion { slot, result: run(&line, &mark) });
                }
            };
            let thread = std::thread::Builder::new().name(format!("command-{slot}")).spawn(runs);
            threads.push(thread.map_err(|error| TargetError(format!("cannot start a thread: {error}")))?);
            slots.push(begin);
        }
        Ok(CommandTarget {
            slots,
            done,
            threads,
            is_over,
            data: vec![0; block_bytes as usize],
            mark,
            _kept: kept,
        })
    }
}

/// Runs it once. What it prints goes nowhere.
fn run(line: &str, mark: &str) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env(mark, "1");
    let failed = |error: std::io::Error| format!("{line:?} cannot be run: {error}");
    // A pipe would be waited for as long as anybody whom it leaves behind holds it.
    let memory = memfd_create(c"complaints", MFdFlags::MFD_CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut complaints = File::from(memory);
    let errors = complaints.try_clone().map_err(failed)?;
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).status().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut words = Vec::new();
    complaints.rewind().and_then(|()| complaints.read_to_end(&mut words)).map_err(failed)?;
    let words: String = String::from_utf8_lossy(&words).trim().chars().take(WORDS_MAX).collect();
    Err(format!("{line:?} ends with {status}: {words}"))
}

impl Drop for CommandTarget {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.slots.clear();
        loop {
            if let Err(error) = keeper::end_marked(&self.mark, Duration::ZERO) {
                return keeper::complain(&error);
            }
            // One may have begun meanwhile.
            if self.threads.iter().all(JoinHandle::is_finished) {
                return;
            }
        }
    }
}

impl Target for CommandTarget {
    /// As much as one operation: there are no places.
    fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn alignment_bytes(&self) -> u32 {
        1
    }

    fn holds_data(&self) -> bool {
        false
    }

    fn data_mut(&mut self, _: u32) -> &mut [u8] {
        &mut self.data
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        let slot = operation.slot;
        let begun = self.slots[slot as usize].send(());
        begun.map_err(|_| TargetError(format!("the thread of slot {slot} has ended")))
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        // Its threads hold the other ends as long as this is there: what fails is the time.
        completions.extend(self.done.recv_timeout(limit));
        completions.extend(self.done.try_iter());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    fn completions(target: &mut CommandTarget, slots: &[u32]) -> Vec<Completion> {
        for slot in slots {
            target.submit(Operation { slot: *slot, kind: Kind::Read, offset: 0, length: 1 }).unwrap();
        }
        let mut completions = Vec::new();
        while completions.len() < slots.len() {
            target.wait(Duration::from_secs(10), &mut completions).unwrap();
        }
        completions.sort_by_key(|completion| completion.slot);
        completions
    }

    #[test]
    fn each_operation_is_one_run_and_one_that_fails_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let counted = directory.path().join("counted");
        let line = format!("echo x >> {}", counted.display());
        let mut target = CommandTarget::new(&line, 2, 1).unwrap();
        let ran = completions(&mut target, &[0, 1]);
        assert_eq!(ran.iter().map(|one| one.result.clone()).collect::<Vec<_>>(), [Ok(()), Ok(())]);
        completions(&mut target, &[1]);
        assert_eq!(std::fs::read_to_string(&counted).unwrap(), "x\nx\nx\n");
        let mut target = CommandTarget::new("echo no such thing >&2; exit 3", 1, 1).unwrap();
        let error = completions(&mut target, &[0]).remove(0).result.unwrap_err();
        assert!(error.contains("exit status: 3") && error.contains("no such thing"), "{error}");
    }
}
