//! The side that gives orders.

use super::protocol::{Order, Ready, Said, Wish, unix_ns};
use crate::testbed::cleanup::Undo;
use crate::testbed::keeper::{self, FAREWELL, Kept, Leftover};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an agent may take to open its target.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to tell the time.
const CLOCK_LIMIT: Duration = Duration::from_secs(5);
/// The shortest of so many round trips tells the difference of two clocks best.
const CLOCK_TRIPS: usize = 5;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Lines of its complaints that are repeated when it is gone.
const WORDS_MAX: usize = 10;

/// Why an agent is of no use any more.
#[derive(thiserror::Error, Debug)]
pub enum AgentError {
    /// It could not be started.
    #[error("an agent cannot be started: {0}")]
    Start(String),
    /// It is gone, or says what makes no sense.
    #[error("{agent} is gone: {reason}")]
    Gone {
        /// Which.
        agent: String,
        /// What is known.
        reason: String,
    },
    /// It says what hinders it.
    #[error("{0}")]
    Failed(String),
}

/// An agent that was given an order. Dropping it ends it.
#[derive(Debug)]
pub struct Agent {
    name: String,
    input: Option<ChildStdin>,
    said: Receiver<Result<Said, String>>,
    child: Arc<Mutex<Child>>,
    _undo: Undo,
    _kept: Kept,
    /// What it said when its target was open.
    pub ready: Option<Ready>,
    /// By how much its clock is ahead of this one, in nanoseconds.
    pub clock_ahead_ns: i64,
}

impl Agent {
    /// Starts `command` as one, and gives it an order.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &str, command: &mut Command, order: &Order) -> Result<Agent, AgentError> {
        let start = |error: &dyn std::fmt::Display| AgentError::Start(format!("{name}: {error}"));
        // What a terminal sends is for who measures: agents hear from it when to stop.
        command.process_group(0);
        // What it starts has it too.
        let mark = keeper::new_mark();
        command.env(&mark, "1");
        let kept = keeper::keep(Leftover::Marked(mark.clone()));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| start(&error))?;
        let input = child.stdin.take().expect("it was asked for");
        let output = child.stdout.take().expect("it was asked for");
        let errors = child.stderr.take().expect("it was asked for");
        let child = Arc::new(Mutex::new(child));
        let ended = Arc::clone(&child);
        let undo = Undo::new(move || {
            let mut child = ended.lock().unwrap_or_else(PoisonError::into_inner);
            if child.try_wait().is_ok_and(|ended| ended.is_some_and(|status| status.success())) {
                return;
            }
            child.kill().ok();
            child.wait().ok();
            // It could not end what it had started itself.
            if let Err(error) = keeper::end_marked(&mark, Duration::ZERO) {
                keeper::complain(&error);
            }
        });
        let complaints = std::thread::Builder::new()
            .name("agent-complains".to_owned())
            .spawn(move || last_words(errors))
            .map_err(|error| start(&error))?;
        let (lines, said) = channel();
        let listen = move || {
            for line in BufReader::new(output).lines() {
                let line = line.map_err(|error| error.to_string());
                let said = line.and_then(|line| {
                    serde_json::from_str(&line).map_err(|error| format!("it says {line:?}: {error}"))
                });
                if lines.send(said).is_err() {
                    return;
                }
            }
            // Its last words come when it has closed both.
            let words = complaints.join().unwrap_or_default();
            let _ = lines.send(Err(if words.is_empty() { "it said nothing".to_owned() } else { words }));
        };
        std::thread::Builder::new().name("agent".to_owned()).spawn(listen).map_err(|error| start(&error))?;
        let mut agent = Agent {
            name: name.to_owned(),
            input: Some(input),
            said,
            child,
            _undo: undo,
            _kept: kept,
            ready: None,
            clock_ahead_ns: 0,
        };
        agent.tell(order)?;
        Ok(agent)
    }

    /// Waits until its target is open, and compares its clock.
    ///
    /// # Errors
    /// It could not open it, or is gone.
    pub fn get_ready(&mut self) -> Result<(), AgentError> {
        match self.next(Instant::now() + READY_LIMIT)? {
            Said::Ready(ready) => self.ready = Some(ready),
            other => return Err(self.gone(format!("it says {other:?} before it is ready"))),
        }
        let mut best: Option<(u64, i64)> = None;
        for _ in 0..CLOCK_TRIPS {
            let sent_ns = unix_ns();
            self.wish(Wish::Clock)?;
            let Said::Clock(theirs_ns) = self.next(Instant::now() + CLOCK_LIMIT)? else {
                return Err(self.gone("it does not tell the time".to_owned()));
            };
            let took_ns = unix_ns().saturating_sub(sent_ns);
            let middle_ns = sent_ns + took_ns / 2;
            let ahead_ns = theirs_ns.wrapping_sub(middle_ns).cast_signed();
            if best.is_none_or(|(shortest, _)| took_ns < shortest) {
                best = Some((took_ns, ahead_ns));
            }
        }
        self.clock_ahead_ns = best.map_or(0, |(_, ahead_ns)| ahead_ns);
        Ok(())
    }

    /// What it says next.
    ///
    /// # Errors
    /// It says what hinders it, is gone, or says nothing until the deadline.
    pub fn next(&self, deadline: Instant) -> Result<Said, AgentError> {
        match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(Said::Failed(reason))) => Err(AgentError::Failed(reason)),
            Ok(Ok(said)) => Ok(said),
            Ok(Err(reason)) => Err(self.gone(reason)),
            Err(RecvTimeoutError::Timeout) => Err(self.gone("it says nothing any more".to_owned())),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone("its connection ended".to_owned())),
        }
    }

    /// What it has said meanwhile, if it has.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn try_next(&self) -> Result<Option<Said>, AgentError> {
        match self.said.try_recv() {
            Err(std::sync::mpsc::TryRecvError::Empty) => Ok(None),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                Err(self.gone("its connection ended".to_owned()))
            }
            Ok(Ok(Said::Failed(reason))) => Err(AgentError::Failed(reason)),
            Ok(Ok(said)) => Ok(Some(said)),
            Ok(Err(reason)) => Err(self.gone(reason)),
        }
    }

    /// Wishes something of it.
    ///
    /// # Errors
    /// It is gone.
    pub fn wish(&mut self, wish: Wish) -> Result<(), AgentError> {
        self.tell(&wish)
    }

    /// Lets it know that nobody will want anything more of it.
    pub fn dismiss(&mut self) {
        self.input = None;
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process on this host.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    fn tell(&mut self, what: &impl serde::Serialize) -> Result<(), AgentError> {
        let mut line = serde_json::to_string(what).map_err(|error| self.gone(error.to_string()))?;
        line.push('\n');
        let told =
            self.input.as_mut().map(|input| input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        match told {
            Some(Ok(())) => Ok(()),
            // Why it went it has said on another way.
            Some(Err(_)) | None => match self.next(Instant::now() + CLOCK_LIMIT) {
                Err(error) => Err(error),
                Ok(said) => Err(self.gone(format!("it takes nothing and says {said:?}"))),
            },
        }
    }

    fn gone(&self, reason: String) -> AgentError {
        AgentError::Gone { agent: self.name.clone(), reason }
    }
}

impl Drop for Agent {
    /// Lets it end by itself, so that it gives back what it has attached; what is left of it is killed.
    fn drop(&mut self) {
        self.dismiss();
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline {
            match self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait() {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return,
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The last lines of what somebody complains of, all of which is taken in.
fn last_words(errors: impl std::io::Read) -> String {
    let mut last = VecDeque::with_capacity(WORDS_MAX);
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        if last.len() == WORDS_MAX {
            last.pop_front();
        }
        last.push_back(line);
    }
    Vec::from(last).join("; ")
}
