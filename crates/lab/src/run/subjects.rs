//! Setting subjects up and taking them down.

use super::sample::{access_of, start_of};
use super::{Host, Progress, fio};
use crate::agent::{Agent, Order, Said, Wish};
use crate::engine::plan::{Job, Mode};
use crate::plan::{Engine, Plan, Subject};
use crate::testbed::cleanup::Undo;
use crate::testbed::command;
use anyhow::{Context, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a subject's `start` or `stop` may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);
/// How long a second of a filling may take to be told of.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
const MIB: f64 = 1048576.0;

/// Starts a subject; what is given back stops it when it is dropped, and on every other way out.
pub(super) fn start(
    subject: &Subject,
    host: &dyn Host,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Option<Undo>> {
    let filled_in = |line: &str| {
        line.replace("{subject}", &subject.name)
            .replace("{dir}", &host.directory_of(subject).display().to_string())
    };
    // First, for what was half started.
    let undo = subject.stop.as_deref().map(filled_in).map(|line| {
        Undo::new(move || {
            if let Err(error) = command::run_unguarded("sh", &["-c", &line], COMMAND_LIMIT) {
                eprintln!("{error}");
            }
        })
    });
    if let Some(line) = subject.start.as_deref().map(filled_in) {
        progress(&Progress::Step(format!("starting {}", subject.name)));
        command::run("sh", &["-c", &line], COMMAND_LIMIT)
            .with_context(|| format!("subject {} cannot be started", subject.name))?;
    }
    Ok(undo)
}

/// Writes what so many clients use of a subject once, if it is to be; answers how many bytes that is for each.
pub(super) fn fill(
    plan: &Plan,
    subject: &Subject,
    host: &dyn Host,
    clients: u32,
    stopping: &AtomicBool,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<u64> {
    if subject.target(1).is_none() {
        progress(&Progress::Step(format!("filling {}", subject.name)));
        if subject.is_filled() {
            fio::fill(subject, clients)?;
        }
        return Ok(subject.size.map_or(0, |size| size.0));
    }
    let mut bytes = 0;
    let places = if subject.is_by_client() { clients } else { 1 };
    for client in 1..=places {
        if stopping.load(Ordering::Relaxed) {
            break;
        }
        bytes = fill_for(plan, subject, host, client, stopping, progress)
            .with_context(|| format!("subject {} cannot be filled", subject.name))?;
    }
    Ok(bytes)
}

fn fill_for(
    plan: &Plan,
    subject: &Subject,
    host: &dyn Host,
    client: u32,
    stopping: &AtomicBool,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<u64> {
    let target = subject.target(client).context("no agent reaches it")?;
    let access = access_of(subject, host, 1);
    // On the host of that client: what it has may be nowhere else.
    let start = || start_of(plan, host, client);
    // How large it is says who opened it.
    let glance = Job { size: None, ..Job::new(target.clone(), Mode::RandomRead) };
    let order = Order { job: glance, access: access.clone() };
    let (name, mut command) = start();
    let mut agent = Agent::start(&name, &mut command, &order)?;
    agent.get_ready()?;
    let found = agent.ready.as_ref().map_or(0, |ready| ready.bytes);
    drop(agent);
    let bytes = subject.size.map_or(found, |size| size.0);
    if bytes > found {
        bail!("it has {found} bytes, and its size is to be {bytes}; lower the size");
    }
    if !subject.is_filled() {
        return Ok(bytes);
    }
    let order = Order { job: Job::prefill(target, bytes), access };
    let (name, mut command) = start();
    let mut agent = Agent::start(&name, &mut command, &order)?;
    agent.get_ready()?;
    agent.wish(Wish::Start)?;
    let mut written = 0.0;
    loop {
        match agent.next(Instant::now() + SILENCE_LIMIT)? {
            Said::Done(done) => {
                if let Some(error) = &done.first_error {
                    bail!("{error}");
                }
                return Ok(bytes);
            }
            Said::Second(second) => {
                written += second.iops * second.seconds;
                let total = bytes as f64 / MIB;
                let which =
                    if subject.is_by_client() { format!(" of client {client}") } else { String::new() };
                progress(&Progress::Step(format!(
                    "filling {}{which}: {written:.0} of {total:.0} MiB",
                    subject.name
                )));
            }
            _ => {}
        }
        if stopping.load(Ordering::Relaxed) {
            agent.wish(Wish::Stop)?;
        }
    }
}

/// Whether fio makes a subject's load.
pub(super) fn is_by_fio(subject: &Subject) -> bool {
    subject.engine == Engine::Fio
}
