//! The agent's side.

use super::protocol::{Done, Order, Ready, Said, Second, Wish, unix_ns};
use crate::engine::cpu::Monitor;
use crate::engine::{self, Live, Measured, Target, TargetError};
use crate::testbed::keeper::FAREWELL;
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What an agent writes, by a thread of its own: who measures waits for nobody.
struct Speaker {
    lines: Sender<Said>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Speaker {
    fn start(mut output: impl Write + Send + 'static) -> anyhow::Result<Speaker> {
        let (lines, said): (Sender<Said>, Receiver<Said>) = channel();
        let write = move || {
            for said in said {
                let line = serde_json::to_string(&said).map_err(std::io::Error::other)?;
                output.write_all(line.as_bytes())?;
                output.write_all(b"\n")?;
                output.flush()?;
                // The last words. Who listens for wishes could speak as well, and would keep this waiting.
                if matches!(said, Said::Done(_) | Said::Failed(_)) {
                    break;
                }
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("agent-speaks".to_owned()).spawn(write);
        Ok(Speaker { lines, thread: thread.context("cannot start a thread")? })
    }

    /// If nobody listens any more, the other thread hears of that.
    fn say(&self, said: Said) {
        let _ = self.lines.send(said);
    }

    fn end(self) {
        drop(self.lines);
        // Whoever does not listen any more is told nothing.
        let _ = self.thread.join();
    }
}

/// Does what the order says that comes by `input`, on what `open` opens for it, and tells it by `output`. Returns when it is done,
/// or when whoever gave the order is gone. What does not end by itself then is for `abandon` to end, some seconds later.
///
/// # Errors
/// The order makes no sense, or there is no thread. What fails later is said to whoever gave it.
pub fn serve<T: Target>(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    open: impl FnOnce(&Order) -> Result<T, TargetError>,
    abandon: impl FnOnce() + Send + 'static,
) -> anyhow::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    input.read_line(&mut line).context("cannot read what to do")?;
    if line.is_empty() {
        bail!("nothing was asked for; agents are started by `millpond lab run`");
    }
    let order: Order = serde_json::from_str(&line).context("what is asked for makes no sense")?;
    let speaker = Speaker::start(output)?;
    // Opening may take for ever, too.
    let ears = Ears::start(input, speaker.lines.clone(), abandon)?;
    match open(&order) {
        Err(error) => speaker.say(Said::Failed(error.to_string())),
        Ok(mut target) => {
            speaker.say(Said::Ready(Ready {
                bytes: target.bytes(),
                alignment_bytes: target.alignment_bytes(),
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                is_debug: cfg!(debug_assertions),
            }));
            match work(&order, &mut target, &ears, &speaker) {
                Ok(Some(measured)) => speaker.say(Said::Done(done(&order, &measured))),
                Ok(None) => speaker.say(Said::Failed("it was not to begin".to_owned())),
                Err(error) => speaker.say(Said::Failed(format!("{error:#}"))),
            }
        }
    }
    speaker.end();
    Ok(())
}

/// Has this thread, and those that it starts, woken when they are due, and not up to 50 µs later, as the kernel does to save power.
pub fn wake_on_time() {
    // A kernel that does not do that costs precision, and no more.
    let _ = nix::sys::prctl::set_timerslack(1);
}

/// `None` if it was not to begin.
fn work<T: Target>(
    order: &Order,
    target: &mut T,
    ears: &Ears,
    speaker: &Speaker,
) -> anyhow::Result<Option<Measured>> {
    if ears.begin.recv().is_err() {
        return Ok(None);
    }
    let mut opened: Option<Duration> = None;
    let live = |live: &Live<'_>| {
        if opened.is_none() && !live.ramping {
            opened = Some(live.elapsed);
            speaker.say(Said::Opened { unix_ns: unix_ns() });
        } else {
            let at_s = opened.map(|opened| (live.elapsed - opened).as_secs_f64());
            speaker.say(Said::Second(Second {
                at_s,
                seconds: live.since.as_secs_f64(),
                iops: live.read_iops + live.write_iops,
                reads: live.reads.into(),
                writes: live.writes.into(),
            }));
        }
        if ears.stopping.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    Ok(Some(engine::run(target, &order.job, &Monitor::new(Vec::new()), live)?))
}

/// What an agent hears, by a thread of its own.
struct Ears {
    /// A word when it is to begin; closed when it never is.
    begin: Receiver<()>,
    stopping: Arc<AtomicBool>,
}

impl Ears {
    fn start(
        mut input: impl BufRead + Send + 'static,
        lines: Sender<Said>,
        abandon: impl FnOnce() + Send + 'static,
    ) -> anyhow::Result<Ears> {
        let (starts, begin) = channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let listen = move || {
            let mut starts = Some(starts);
            while let Some(wish) = next_wish(&mut input) {
                match wish {
                    Wish::Clock => drop(lines.send(Said::Clock(unix_ns()))),
                    Wish::Start => drop(starts.as_ref().map(|starts| starts.send(()))),
                    Wish::Stop => {
                        stop.store(true, Ordering::Relaxed);
                        starts = None;
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            drop(starts);
            std::thread::sleep(FAREWELL);
            abandon();
        };
        let thread = std::thread::Builder::new().name("agent-listens".to_owned()).spawn(listen);
        thread.context("cannot start a thread")?;
        Ok(Ears { begin, stopping })
    }
}

/// `None` when whoever gives orders is gone, or says what makes no sense.
fn next_wish(input: &mut impl BufRead) -> Option<Wish> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    serde_json::from_str(&line).ok()
}

fn done(order: &Order, measured: &Measured) -> Done {
    let bytes = |operations: u64| operations * order.job.block.0;
    Done {
        seconds: measured.window.as_secs_f64(),
        read_bytes: bytes(measured.reads_in_all),
        written_bytes: bytes(measured.writes_in_all),
        cpu_us: measured.usage.client.cpu_us,
        errors: measured.errors,
        first_error: measured.first_error.clone(),
        stopped_early: measured.stopped_early,
        overdue: measured.overdue,
        read_contents: measured.contents.reads,
        write_contents: measured.contents.writes,
    }
}
