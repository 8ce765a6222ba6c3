//! One sample: one point on one subject.

use super::events::Events;
use super::subjects::COMMAND_LIMIT;
use super::{Counted, Host, Options, Progress, filled_in, fio};
use crate::agent::{Access, Agent, Done, Order, Said, Second, Wish, unix_ns};
use crate::archive::{
    AgentView, Contents, CyclesPerOperation, Happened, Sample, Second as MergedSecond, Served,
};
use crate::engine::cpu::{LastSeen, Monitor, Role, Snapshot, Watched as Process};
use crate::engine::histogram::{Buckets, Latency};
use crate::engine::plan::{Job, TargetName};
use crate::monitor::{CycleCount, Cycles, Drives, Found, Network, Stalls, ThreadTimes, Watch, clock_mhz};
use crate::plan::{Engine, Plan, Point, Subject};
use crate::report::{Cpu, side};
use crate::testbed::command;
use crate::testbed::keeper::FAREWELL;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it is looked what agents say. Rare enough to cost nothing that the measurement would see.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long agents may take beyond their time: a cluster that recovers stands still for that long.
const GRACE: Duration = Duration::from_secs(120);
/// How long one may say nothing.
const SILENCE_LIMIT: Duration = Duration::from_secs(6);
/// How often it is looked whether a subject counted what was asked for.
const SERVED_TRIES: usize = 3;
/// A second shorter than this has no rate of its own.
const TELLING_SECONDS: f64 = 0.2;

/// What is asked for.
pub(super) struct Asked<'a> {
    pub(super) plan: &'a Plan,
    pub(super) host: &'a dyn Host,
    pub(super) subject: &'a Subject,
    pub(super) point: &'a Point,
    pub(super) round: u32,
    /// Which try of the same it is, from 0.
    pub(super) probe: u32,
    pub(super) options: &'a Options<'a>,
    /// What the plan's commands start has it.
    pub(super) mark: &'a str,
}

/// How a subject is reached by one of so many clients.
pub(super) fn access_of(subject: &Subject, host: &dyn Host, clients: u32) -> Access {
    Access {
        dir: Some(host.directory_of(subject)),
        key: None,
        shared: clients > 1 && !subject.is_by_client(),
        create_bytes: None,
        may_be_there: subject.overwrite,
        cached: !subject.is_direct(),
    }
}

/// Bytes that a point uses of a subject, if they are named: what is beyond the subject's own size is not its own.
pub(super) fn size_of(subject: &Subject, point: &Point) -> Option<u64> {
    point.job.size.or(subject.size.map(|size| size.0.saturating_sub(point.job.offset)))
}

/// What a client does in a round.
pub(super) fn job_of(
    subject: &Subject,
    point: &Point,
    host: &dyn Host,
    client: u32,
    round: u32,
) -> Option<Job> {
    if let Some(line) = &point.run {
        let target = TargetName::Command(filled_in(line, subject, host));
        return Some(Job { target, ..point.job.clone() });
    }
    Some(Job {
        target: subject.target(client)?,
        size: size_of(subject, point),
        // The same on every subject, and another in each round.
        seed: u64::from(round) << 32 | u64::from(client),
        ..point.job.clone()
    })
}

/// The processes whose CPU time is that of a subject's nodes.
pub(super) fn watched(subject: &Subject, host: &dyn Host) -> anyhow::Result<Vec<Process>> {
    if subject.watch.is_empty() {
        return host.processes(subject);
    }
    let all = procfs::process::all_processes().context("cannot list processes")?;
    let mut watched = Vec::new();
    for process in all.flatten() {
        let Ok(stat) = process.stat() else { continue };
        if subject.watch.contains(&stat.comm) {
            watched.push(Process {
                label: format!("{}.{}", stat.comm, stat.pid),
                pid: stat.pid.cast_unsigned(),
            });
        }
    }
    Ok(watched)
}

/// One client, as far as it is known.
struct Client {
    agent: Agent,
    opened_unix_ns: Option<u64>,
    seconds: Vec<Second>,
    done: Option<Done>,
    /// Why nothing more will come of it, although it is not done.
    gone: Option<String>,
    said_at: Instant,
    /// Whether it is on another host.
    is_remote: bool,
}

impl Client {
    fn has_ended(&self) -> bool {
        self.done.is_some() || self.gone.is_some()
    }
}

/// All counters at one moment.
#[derive(Clone)]
struct Moment {
    cpu: Snapshot,
    stalls: Stalls,
    drives: Drives,
    network: Network,
    threads: ThreadTimes,
    clock_mhz: Option<f64>,
}

/// Takes the sample. Its numbers are not filled in.
pub(super) fn take(asked: &Asked<'_>, progress: &mut dyn FnMut(&Progress<'_>)) -> anyhow::Result<Sample> {
    let Asked { host, subject, point, round, .. } = *asked;
    for line in subject.before.iter().chain(&point.before) {
        let line = filled_in(line, subject, host);
        progress(&Progress::Step(format!("before {} on {}: {line}", point.name, subject.name)));
        command::run_line(&line, asked.mark, COMMAND_LIMIT, asked.options.stopping)?;
    }
    let has_prepared = subject.before.is_some() || point.before.is_some();
    if asked.subject.engine == Engine::Fio {
        return fio::take(asked, progress);
    }
    // What agents elsewhere do is counted elsewhere, and what commands do is counted nowhere.
    let is_elsewhere = !asked.plan.agents_of(subject).is_empty();
    let is_counted = !is_elsewhere && point.run.is_none();
    if is_counted && has_prepared {
        // What that did is counted late, too.
        std::thread::sleep(host.served_delay(subject));
    }
    let served = if is_counted { host.served(subject, point.clients)? } else { None };
    let mut clients = Vec::new();
    for number in 1..=point.clients {
        let mut job = job_of(subject, point, host, number, round).context("no agent reaches this subject")?;
        // What one try has read the next is not to find in a cache.
        job.seed ^= u64::from(asked.probe) << 16;
        let order = Order { job, access: access_of(subject, host, point.clients) };
        let (name, mut command) = start_of(asked.plan, subject, host, number);
        let agent = Agent::start(&name, &mut command, &order)?;
        clients.push(Client {
            agent,
            opened_unix_ns: None,
            seconds: Vec::new(),
            done: None,
            gone: None,
            said_at: Instant::now(),
            is_remote: is_elsewhere,
        });
    }
    for client in &mut clients {
        client.agent.get_ready()?;
    }
    let local = || clients.iter().filter(|client| !client.is_remote).map(|client| client.agent.pid());
    let nodes = watched(subject, host)?;
    let processes: Vec<(String, u32)> = local()
        .map(|pid| ("client".to_owned(), pid))
        .chain(nodes.iter().map(|node| (node.label.clone(), node.pid)))
        .collect();
    let watched_threads = if asked.plan.threads { processes.clone() } else { Vec::new() };
    let monitor = Monitor::of(local().collect(), nodes);
    let now = || Moment {
        cpu: monitor.snapshot(),
        stalls: Stalls::now(),
        drives: Drives::now(),
        network: Network::now(),
        threads: ThreadTimes::of(&processes),
        // While they work: at rest it is another.
        clock_mhz: clock_mhz(),
    };
    for client in &mut clients {
        client.agent.wish(Wish::Start)?;
    }
    let watching = Watching::of(asked, &mut clients, watched_threads);
    let Watched { before, mut after, events, threads, cycles } =
        watching.until_done(&monitor, now, progress)?;
    let mut sample = merged(point, &clients);
    (sample.round, sample.events, sample.threads) = (round, events, threads);
    // Some may have been started anew. A cluster that does not answer any more has its own word to say.
    let nodes = watched(subject, host).unwrap_or_default();
    after.cpu.adopt(&nodes);
    let mut usage = monitor.usage(&before.cpu, &after.cpu);
    if is_elsewhere {
        // What they used on their hosts only they know.
        let used = clients.iter().map(|client| client.done.as_ref()?.cpu_us);
        usage.client.cpu_us = used.sum();
        usage.roles.remove(&Role::Client);
    }
    let operations = operations_between(&sample, usage.seconds);
    sample.cpu = Some(Cpu::new(&usage, operations));
    sample.cycles = CycleCount::of(cycles, usage.machine_us, after.clock_mhz)
        .map(|count| CyclesPerOperation::new(count, operations, usage.machine_us));
    sample.drives = after.drives.since(&before.drives);
    sample.network = after.network.since(&before.network);
    sample.thread_times = after.threads.since(&before.threads);
    let pressure = after.stalls.since(&before.stalls);
    (sample.cpu_pressure, sample.io_pressure) = (pressure.cpu, pressure.io);
    let dones = clients.iter().filter_map(|client| client.done.as_ref());
    let asked_bytes =
        dones.fold((0, 0), |(read, written), done| (read + done.read_bytes, written + done.written_bytes));
    // They give back what they had attached, all at the same time.
    clients.iter_mut().for_each(|client| client.agent.dismiss());
    drop(clients);
    if let Some(before) = served {
        sample.served = served_since(asked, &before, asked_bytes)?;
    }
    Ok(sample)
}

/// What a subject counted since then. A machine that is busy has it counted late: what does not agree is looked at again.
pub(super) fn served_since(
    asked: &Asked<'_>,
    before: &Counted,
    asked_bytes: (u64, u64),
) -> anyhow::Result<Option<Served>> {
    let Asked { host, subject, point, .. } = *asked;
    let delay = host.served_delay(subject);
    let mut served = None;
    for _ in 0..SERVED_TRIES {
        std::thread::sleep(delay);
        let after = host.served(subject, point.clients)?;
        served = after.and_then(|after| after.since(before, asked_bytes));
        let agrees = |served: &Served| {
            (served.read_bytes, served.written_bytes) == (served.asked_read_bytes, served.asked_written_bytes)
        };
        if delay.is_zero() || served.as_ref().is_none_or(agrees) {
            break;
        }
    }
    Ok(served)
}

/// What a client is called, and how it is started: on this host, or on one of the plan's in turns.
pub(super) fn start_of(plan: &Plan, subject: &Subject, host: &dyn Host, number: u32) -> (String, Command) {
    let agents = plan.agents_of(subject);
    match agents.get((number as usize - 1) % agents.len().max(1)) {
        None => (format!("client {number}"), host.agent()),
        Some(agent) => (format!("client {number} on {}", agent.name), agent.start()),
    }
}

/// Operations in the time in which CPU time was counted: a little less than what was measured.
fn operations_between(sample: &Sample, seconds: f64) -> u64 {
    let share = if sample.seconds > 0.0 { (seconds / sample.seconds).min(1.0) } else { 0.0 };
    (sample.operations() as f64 * share).round() as u64
}

/// What was seen of a sample from outside, when the last of all windows had opened and when the first had closed, and between.
struct Watched {
    before: Moment,
    after: Moment,
    events: Vec<Happened>,
    threads: Option<Found>,
    cycles: Option<u64>,
}

/// A sample that is under way.
struct Watching<'a, 'b> {
    asked: &'a Asked<'a>,
    clients: &'b mut [Client],
    /// Processes whose threads are looked at, by what they are called.
    processes: Vec<(String, u32)>,
    deadline: Instant,
    stopped: bool,
}

impl<'a, 'b> Watching<'a, 'b> {
    fn of(
        asked: &'a Asked<'a>,
        clients: &'b mut [Client],
        processes: Vec<(String, u32)>,
    ) -> Watching<'a, 'b> {
        let Job { ramp, runtime, .. } = &asked.point.job;
        // A rate that cannot be kept takes twice its time.
        let deadline = Instant::now() + *ramp + 2 * runtime.unwrap_or_default() + GRACE;
        Watching { asked, clients, processes, deadline, stopped: false }
    }

    /// Watches until all clients have ended.
    fn until_done(
        mut self,
        monitor: &Monitor,
        now: impl Fn() -> Moment,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> anyhow::Result<Watched> {
        let (mut before, mut after, mut events, mut threads) = (None, None, None, None);
        let (mut rates, mut found) = (Vec::new(), None);
        let (mut counting, mut cycles) = (None, None);
        let mut seen = LastSeen::default();
        loop {
            let told = self.hear();
            if before.is_none() && self.clients.iter().all(|client| client.opened_unix_ns.is_some()) {
                before = Some(now());
                counting = Cycles::begin();
                monitor.look(&mut seen);
                let Asked { plan, host, subject, point, mark, .. } = *self.asked;
                events = Events::begin(plan, host, (subject, point), mark, self.asked.options.stopping);
                if !self.processes.is_empty() {
                    threads = Watch::begin(std::mem::take(&mut self.processes));
                }
            }
            if after.is_none() && self.clients.iter().any(Client::has_ended) {
                cycles = counting.take().and_then(Cycles::end);
                let mut last = now();
                last.cpu.fill_in(&seen);
                after = Some(last);
                found = threads.take().map(Watch::end);
            }
            if told {
                let known = rates.len();
                self.rates(&mut rates);
                if after.is_none() && rates.len() > known {
                    // A node that an event kills takes along what it used since.
                    monitor.look(&mut seen);
                }
                progress(&Progress::Going(&rates));
            }
            if self.clients.iter().all(Client::has_ended) {
                break;
            }
            if Instant::now() > self.deadline && !self.stopped {
                bail!("clients have not ended {} s after their time", GRACE.as_secs());
            }
            let is_missed = self.clients.iter().any(|client| client.gone.is_some());
            if !self.stopped && (is_missed || self.asked.options.stopping.load(Ordering::Relaxed)) {
                self.stop(if is_missed { FAREWELL } else { GRACE });
            }
            if is_missed && Instant::now() > self.deadline {
                for client in self.clients.iter_mut().filter(|client| !client.has_ended()) {
                    client.gone = Some(format!("{} does not end", client.agent.name()));
                }
                continue;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let events = events.map(Events::end).unwrap_or_default();
        // Who was stopped in the ramp measured nothing.
        let after = after.context("no client has ended")?;
        let before = match before {
            Some(before) => before,
            None => after.clone(),
        };
        Ok(Watched { before, after, events, threads: found, cycles })
    }

    /// Has all clients end, who have so long for it.
    fn stop(&mut self, limit: Duration) {
        self.stopped = true;
        self.deadline = Instant::now() + limit;
        for client in self.clients.iter_mut().filter(|client| !client.has_ended()) {
            if let Err(error) = client.agent.wish(Wish::Stop) {
                client.gone = Some(error.to_string());
            }
        }
    }

    /// Takes in what clients say; answers whether a second was told.
    fn hear(&mut self) -> bool {
        let mut told = false;
        for client in self.clients.iter_mut().filter(|client| !client.has_ended()) {
            while !client.has_ended() {
                let said = match client.agent.try_next() {
                    Ok(Some(said)) => said,
                    Ok(None) => break,
                    Err(error) => {
                        client.gone = Some(error.to_string());
                        break;
                    }
                };
                client.said_at = Instant::now();
                match said {
                    Said::Opened { unix_ns } => client.opened_unix_ns = Some(unix_ns),
                    Said::Second(second) if second.is_possible() => {
                        told = true;
                        client.seconds.push(second);
                    }
                    Said::Done(done) if done.is_possible() => client.done = Some(done),
                    Said::Second(_) | Said::Done(_) => {
                        client.gone = Some(format!("{} says what cannot be", client.agent.name()));
                    }
                    Said::Ready(_) | Said::Clock(_) => {}
                    Said::Failed(reason) => client.gone = Some(reason),
                }
            }
            // One that works says so every second, however its target fares.
            if !client.has_ended() && client.said_at.elapsed() > SILENCE_LIMIT {
                let seconds = SILENCE_LIMIT.as_secs();
                client.gone = Some(format!("{} has said nothing for {seconds} s", client.agent.name()));
            }
        }
        told
    }

    /// Operations a second so far, of each second that all clients have told of.
    fn rates(&self, rates: &mut Vec<f64>) {
        let told = self.clients.iter().map(|client| client.seconds.len()).min().unwrap_or(0);
        for second in rates.len()..told {
            rates.push(self.clients.iter().map(|client| client.seconds[second].iops).sum());
        }
    }
}

/// A second of all clients, as it is put together.
#[derive(Default)]
struct Together {
    at_s: f64,
    seconds: f64,
    read_iops: f64,
    write_iops: f64,
    reads: Latency,
    writes: Latency,
}

/// What one client did in a second, or in a second and the short rest behind it.
#[derive(Default)]
struct Own {
    at_s: f64,
    seconds: f64,
    reads: Latency,
    writes: Latency,
}

/// A client's measured seconds. What is too short for a rate of its own is added to the one before.
fn own_seconds(client: &Client) -> Vec<Own> {
    let mut own: Vec<Own> = Vec::new();
    for second in &client.seconds {
        let Some(at_s) = second.at_s else { continue };
        if second.seconds >= TELLING_SECONDS || own.is_empty() {
            own.push(Own::default());
        }
        let Some(last) = own.last_mut() else { continue };
        last.at_s = at_s;
        last.seconds += second.seconds;
        last.reads.merge(&Latency::from(&second.reads));
        last.writes.merge(&Latency::from(&second.writes));
    }
    own
}

/// What all clients measured together.
fn merged(point: &Point, clients: &[Client]) -> Sample {
    let rate = point.job.rate_iops.map(|rate| f64::from(rate) * f64::from(point.clients));
    let mut sample = Sample { asked_iops: rate, ..Sample::default() };
    let mut by_second: BTreeMap<u64, Together> = BTreeMap::new();
    let (mut reads, mut writes) = (Latency::default(), Latency::default());
    for client in clients {
        let mut operations = 0;
        for own in own_seconds(client) {
            operations += own.reads.count() + own.writes.count();
            reads.merge(&own.reads);
            writes.merge(&own.writes);
            // Those of several clients begin a little apart; their middles lie in the same second.
            let together = by_second.entry((own.at_s - own.seconds / 2.0).max(0.0) as u64).or_default();
            together.at_s = together.at_s.max(own.at_s);
            together.seconds = together.seconds.max(own.seconds);
            if own.seconds > 0.0 {
                together.read_iops += own.reads.count() as f64 / own.seconds;
                together.write_iops += own.writes.count() as f64 / own.seconds;
            }
            together.reads.merge(&own.reads);
            together.writes.merge(&own.writes);
        }
        // Of one that is gone what it told until then counts.
        let told_s = client.seconds.iter().filter_map(|second| second.at_s).fold(0.0, f64::max);
        let seconds = client.done.as_ref().map_or(told_s, |done| done.seconds);
        sample.seconds = sample.seconds.max(seconds);
        sample.missing.extend(client.gone.clone());
        if let Some(done) = &client.done {
            sample.errors += done.errors;
            sample.first_error = sample.first_error.or_else(|| done.first_error.clone());
            sample.overdue += done.overdue;
            sample.stopped_early |= done.stopped_early;
            sample.contents.add(&Contents { read: done.read_contents, written: done.write_contents });
        }
        let ahead_ns = client.agent.clock_ahead_ns;
        let opened_ns = client.opened_unix_ns.unwrap_or_else(unix_ns).saturating_add_signed(-ahead_ns);
        sample.agents.push(AgentView {
            name: client.agent.name().to_owned(),
            clock_ahead_ms: ahead_ns as f64 / 1e6,
            opened_unix_ms: opened_ns as f64 / 1e6,
            seconds,
            iops: if seconds > 0.0 { operations as f64 / seconds } else { 0.0 },
            is_remote: client.is_remote,
            is_debug: client.agent.ready.as_ref().is_some_and(|ready| ready.is_debug),
        });
    }
    sample.began_unix_ms =
        sample.agents.iter().map(|agent| agent.opened_unix_ms).reduce(f64::min).map_or(0, |ms| ms as u64);
    for together in by_second.into_values() {
        let mut all = Latency::default();
        all.merge(&together.reads);
        all.merge(&together.writes);
        let summary = all.summary();
        sample.series.push(MergedSecond {
            at_s: together.at_s,
            seconds: together.seconds,
            read_iops: together.read_iops,
            write_iops: together.write_iops,
            mean_us: summary.map(|summary| summary.mean_us),
            p99_us: summary.map(|summary| summary.p99_us),
        });
        sample.latencies.push((Buckets::from(&together.reads), Buckets::from(&together.writes)));
    }
    sample.read = side(&reads, sample.seconds, point.job.block);
    sample.write = side(&writes, sample.seconds, point.job.block);
    sample
}
