//! Setting subjects up and taking them down.

use super::sample::{access_of, job_of, start_of};
use super::{Host, Progress, filled_in, fio};
use crate::agent::{Access, Agent, Order, Said, Wish};
use crate::engine::plan::{Job, Mode};
use crate::plan::{Place, Plan, Point, Subject};
use crate::testbed::cleanup::Undo;
use crate::testbed::command;
use crate::testbed::keeper::{self, FAREWELL, Leftover};
use anyhow::{Context, anyhow, bail};
use base::units::ByteSize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a subject's `start` or `stop` may take.
pub(super) const COMMAND_LIMIT: Duration = Duration::from_secs(600);
/// How long a second of a filling may take to be told of.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// What [`Job::prefill`] writes at once.
const FILL_BLOCK_BYTES: u64 = 1 << 20;
/// What has been in use was written in such blocks.
const AGE_BLOCK_BYTES: u64 = 4096;
const AGE_DEPTH: u32 = 32;
const MIB: f64 = 1048576.0;

/// Subjects that stand. The last that was started is stopped first: it may live by those before.
#[derive(Default)]
pub(super) struct Standing(pub(super) Vec<Undo>);

impl Drop for Standing {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// Which `stop` failed, and how.
#[derive(Clone, Default)]
pub(super) struct NotStopped(Arc<Mutex<Vec<String>>>);

impl NotStopped {
    pub(super) fn told(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Ends, when it is dropped and on every other way out, what has a mark: what plans' commands have left running.
pub(super) fn sweep(mark: &str) -> Undo {
    let kept = keeper::keep(Leftover::Marked(mark.to_owned()));
    let mark = mark.to_owned();
    Undo::new(move || {
        match keeper::end_marked(&mark, FAREWELL) {
            Ok(killed) if killed.is_empty() => {}
            Ok(killed) => keeper::complain(&anyhow!(
                "processes {killed:?}, which the plan's commands had left running, were killed"
            )),
            Err(error) => keeper::complain(&error),
        }
        drop(kept);
    })
}

/// Starts a subject, and what it starts has the mark; what is given back stops it when it is dropped, and on every other way out.
pub(super) fn start(
    subject: &Subject,
    host: &dyn Host,
    mark: &str,
    stopping: &AtomicBool,
    not_stopped: &NotStopped,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Option<Undo>> {
    let filled_in = |line: &str| filled_in(line, subject, host);
    // First, for what was half started.
    let undo = subject.stop.as_deref().map(filled_in).map(|line| {
        let not_stopped = not_stopped.clone();
        let kept = keeper::keep(Leftover::Command(line.clone()));
        Undo::new(move || {
            if let Err(error) = keeper::run(&line) {
                keeper::complain(&error);
                not_stopped.0.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
            }
            drop(kept);
        })
    });
    if let Some(line) = subject.start.as_deref().map(filled_in) {
        progress(&Progress::Step(format!("starting {}", subject.name)));
        command::run_line(&line, mark, COMMAND_LIMIT, stopping)
            .with_context(|| format!("subject {} cannot be started", subject.name))?;
    }
    Ok(undo)
}

/// Writes what so many clients use of a subject once, if it is to be, and some of it once more if it is to age; answers how many
/// bytes each uses, if any.
pub(super) fn fill(
    plan: &Plan,
    points: &[Point],
    subject: &Subject,
    host: &dyn Host,
    mark: &str,
    stopping: &AtomicBool,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Option<u64>> {
    let points: Vec<&Point> =
        points.iter().filter(|point| point.is_for(subject) && point.run.is_none()).collect();
    let Some(clients) = points.iter().map(|point| point.clients).max() else { return Ok(None) };
    if subject.target(1).is_none() {
        progress(&Progress::Step(format!("filling {}", subject.name)));
        if subject.is_filled() {
            fio::fill(subject, clients, mark, stopping)?;
        }
        return Ok(subject.size.map(|size| size.0));
    }
    let mut bytes = None;
    let hosts = match subject.place() {
        // What is called the same on several hosts is another on each.
        Some(Place::Raw(_)) => plan.agents_of(subject).len().max(1) as u32,
        _ => 1,
    };
    let places = if subject.is_by_client() { clients } else { clients.min(hosts) };
    for client in 1..=places {
        if stopping.load(Ordering::Relaxed) {
            break;
        }
        let filled = fill_for(plan, &points, subject, host, client, stopping, progress);
        bytes = Some(filled.with_context(|| format!("subject {} cannot be filled", subject.name))?);
    }
    Ok(bytes)
}

fn fill_for(
    plan: &Plan,
    points: &[&Point],
    subject: &Subject,
    host: &dyn Host,
    client: u32,
    stopping: &AtomicBool,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<u64> {
    let target = subject.target(client).context("no agent reaches it")?;
    // Past the page cache: what it would write back later falls into somebody's sample.
    let access = Access { cached: false, ..access_of(subject, host, 1) };
    // On the host of that client: what it has may be nowhere else.
    let start = |order: &Order| {
        let (name, mut command) = start_of(plan, subject, host, client);
        let mut agent = Agent::start(&name, &mut command, order)?;
        agent.get_ready()?;
        anyhow::Ok(agent)
    };
    // How large it is says who opened it.
    let glance = Job { size: None, ..Job::new(target.clone(), Mode::RandomRead) };
    let create_bytes = match subject.place() {
        Some(Place::Directory(_)) => subject.size.map(|size| size.0),
        _ => None,
    };
    let agent = start(&Order { job: glance, access: Access { create_bytes, ..access.clone() } })?;
    let ready = agent.ready.as_ref().map(|ready| (ready.bytes, ready.alignment_bytes.max(1)));
    let (found, alignment) = ready.unwrap_or((0, 1));
    drop(agent);
    let bytes = subject.size.map_or(found, |size| size.0);
    if bytes > found {
        bail!("it has {found} bytes, and its size is to be {bytes}; lower the size");
    }
    // Before anything is lost for a job that does not fit.
    for point in points {
        let job = job_of(subject, point, host, client, 1).context("no agent reaches it")?;
        job.region(bytes, alignment)
            .map_err(|error| anyhow!("job {:?}: {}", point.name, error.to_string().replace("--", "")))?;
    }
    if !subject.is_filled() {
        return Ok(bytes);
    }
    let whole = bytes / FILL_BLOCK_BYTES * FILL_BLOCK_BYTES;
    let step = u64::from(alignment);
    let rest = (bytes - whole) / step * step;
    let rest = Job { block: ByteSize(step), offset: whole, ..Job::prefill(target.clone(), rest) };
    let mut jobs = vec![(Job::prefill(target.clone(), whole), "filling"), (rest, "filling")];
    if let Some(ByteSize(age)) = subject.age {
        let size = Some(bytes / AGE_BLOCK_BYTES * AGE_BLOCK_BYTES);
        let aging = Job {
            size,
            runtime: None,
            io_size: Some(age),
            depth: AGE_DEPTH,
            ..Job::new(target, Mode::RandomWrite)
        };
        jobs.push((aging, "ageing"));
    }
    for (job, what) in jobs {
        let (mut written, total) = (0.0, job.io_size.unwrap_or(0) as f64 / MIB);
        let block_bytes = job.block.0 as f64;
        if job.io_size == Some(0) {
            continue;
        }
        let mut agent = start(&Order { job, access: access.clone() })?;
        agent.wish(Wish::Start)?;
        loop {
            match agent.next(Instant::now() + SILENCE_LIMIT)? {
                Said::Done(done) => {
                    if let Some(error) = &done.first_error {
                        bail!("{error}");
                    }
                    break;
                }
                Said::Second(second) => {
                    written += second.iops * second.seconds * block_bytes / MIB;
                    let which =
                        if subject.is_by_client() { format!(" of client {client}") } else { String::new() };
                    progress(&Progress::Step(format!(
                        "{what} {}{which}: {written:.0} of {total:.0} MiB",
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
    Ok(bytes)
}
