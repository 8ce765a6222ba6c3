//! Running a plan: every point on every subject in every round, and all of it into an archive.
//!
//! What makes the load are agents, processes of their own; this one watches. Whatever ends it (an error, a signal, a panic), it
//! ends the agents and has each subject's `stop` run; what came until then is in the archive.

mod events;
mod expectations;
mod fio;
mod fio_file;
mod sample;
mod search;
mod subjects;

pub use fio_file::run_fio_file;

use crate::agent::unix_ns;
use crate::archive::{Archive, FIGURES, Outcome, PointView, Served, SubjectView, figure_named};
use crate::engine::cpu::Watched;
use crate::engine::generator::Random;
use crate::plan::{Plan, Point, Subject, TurnOrder};
use crate::testbed::keeper;
use crate::trust;
use anyhow::bail;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use subjects::{NotStopped, Standing};

/// What the program that a plan is run by knows, and this does not.
pub trait Host {
    /// A program that serves as an agent: it does what it is told on its standard input.
    fn agent(&self) -> Command;

    /// The directory of the cluster that a subject is of.
    fn directory_of(&self, subject: &Subject) -> PathBuf;

    /// The processes whose CPU time is that of a subject's nodes, where the plan does not name them.
    ///
    /// # Errors
    /// Its cluster does not answer.
    fn processes(&self, subject: &Subject) -> anyhow::Result<Vec<Watched>>;

    /// How long after an operation [`Self::served`] counts it at the latest.
    fn served_delay(&self, subject: &Subject) -> Duration;

    /// What a subject served so far, by its own account; `None` if it has none. Asked for what so many clients use.
    ///
    /// # Errors
    /// It does not answer.
    fn served(&self, subject: &Subject, clients: u32) -> anyhow::Result<Option<Counted>>;

    /// What a subject is like, once it is filled.
    ///
    /// # Errors
    /// It does not answer.
    fn condition(&self, subject: &Subject) -> anyhow::Result<Condition>;
}

/// What a subject is like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Condition {
    /// How full what it lies on is, of 1, if that is known.
    pub full: Option<f64>,
    /// Whether what serves it was built without optimisation.
    pub is_debug: bool,
}

/// What a subject counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The processes that counted: others count from the beginning.
    pub by: Vec<u32>,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl Counted {
    /// What came since `earlier`, and was asked for: as much by the clients' account. `None` if others have counted since.
    fn since(&self, earlier: &Counted, asked: (u64, u64)) -> Option<Served> {
        Some(Served {
            asked_read_bytes: asked.0,
            asked_written_bytes: asked.1,
            read_bytes: self.read_bytes.checked_sub(earlier.read_bytes)?,
            written_bytes: self.written_bytes.checked_sub(earlier.written_bytes)?,
        })
        .filter(|_| self.by == earlier.by)
    }
}

/// What is asked for beside the plan.
pub struct Options<'a> {
    /// The command that is told as what made it.
    pub command: String,
    /// Whether it is to end.
    pub stopping: &'a Arc<AtomicBool>,
}

/// How it goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress<'a> {
    /// Something takes its time before or between measurements.
    Step(String),
    /// A sample begins.
    Sample {
        /// What it is called.
        name: String,
        /// Which of how many it is, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// How long all that is left takes at least.
        left: Duration,
    },
    /// It goes on: operations a second, of each second so far.
    Going(&'a [f64]),
    /// It is done: operations a second, and the average latency in microseconds.
    Sampled(f64, Option<f64>),
}

/// A command of a plan for a subject, with its places filled in.
fn filled_in(line: &str, subject: &Subject, host: &dyn Host) -> String {
    let target = subject.target(1).map_or_else(String::new, |target| target.to_string());
    line.replace("{subject}", &subject.name)
        .replace("{dir}", &host.directory_of(subject).display().to_string())
        .replace("{target}", &target)
}

/// One turn: a subject, or the second of two of the same.
#[derive(Clone, Copy)]
struct Turn {
    subject: usize,
    is_control: bool,
}

/// Runs a plan, whose text is in `archive` already.
///
/// # Errors
/// A subject cannot be set up, a sample cannot be had, or the archive not be written. What came before that is in the archive.
pub fn run(
    plan: &Plan,
    host: &dyn Host,
    options: &Options<'_>,
    archive: &mut Archive,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Outcome> {
    let points = plan.points()?;
    check(plan)?;
    let mut outcome = begin(plan, &points, options);
    outcome.findings = trust::findings(&outcome);
    archive.write(&outcome)?;
    let not_stopped = NotStopped::default();
    let asked = Run { plan, points: &points, host, options, not_stopped: &not_stopped };
    let came = measure_all(&asked, &mut outcome, archive, progress);
    outcome.not_stopped = not_stopped.told();
    let came = conclude(&mut outcome, came, options);
    outcome.disappointments = expectations::missed(plan, &outcome);
    archive.write(&outcome)?;
    archive.write_tables(&outcome)?;
    came.map(|()| outcome)
}

/// Notes how it ended, and what speaks against it. What was stopped may have failed of that: it counts as interrupted.
fn conclude(outcome: &mut Outcome, came: anyhow::Result<()>, options: &Options<'_>) -> anyhow::Result<()> {
    let was_stopped = options.stopping.load(Ordering::Relaxed);
    let came = if was_stopped { Ok(()) } else { came };
    outcome.ended_unix_ms = unix_ms();
    outcome.ended_early = match &came {
        Ok(()) => was_stopped.then(|| "it was interrupted".to_owned()),
        Err(error) => Some(format!("{error:#}")),
    };
    outcome.findings = trust::findings(outcome);
    came
}

/// Whether a plan can be run, as far as can be told without what it measures.
///
/// # Errors
/// Something is said of a figure that is none, or is to be kept within that grows with the rate.
pub fn check(plan: &Plan) -> anyhow::Result<()> {
    let objectives = plan.jobs.iter().filter_map(|job| job.within.as_ref()).map(|within| &within.figure);
    let expected = plan.expectations.iter().map(|expected| &expected.figure);
    let published = plan.published.iter().map(|published| &published.figure);
    for name in expected.chain(published).chain(objectives.clone()) {
        if figure_named(name).is_none() {
            let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
            bail!("{name:?} is no figure; these are: {}", names.join(", "));
        }
    }
    match objectives.into_iter().find(|name| figure_named(name).is_some_and(|figure| figure.more_is_better)) {
        Some(name) => bail!("nothing keeps {name} within a bound; take a latency, as p99_us"),
        None => Ok(()),
    }
}

fn begin(plan: &Plan, points: &[Point], options: &Options<'_>) -> Outcome {
    let subject = |subject: &Subject| SubjectView {
        name: subject.name.clone(),
        what: subject.described(),
        is_filled: subject.is_filled(),
        is_cached: !subject.is_direct(),
        by: subject.by.as_ref().and_then(|name| plan.subjects.iter().position(|one| one.name == *name)),
        ..SubjectView::default()
    };
    let point = |point: &Point| PointView {
        name: point.name.clone(),
        job_name: point.job_name.clone(),
        job: point.job.clone(),
        clients: point.clients,
        run: point.run.clone(),
        within: point.within.clone(),
    };
    Outcome {
        title: plan.title.clone().unwrap_or_else(|| plan.name.clone()),
        note: plan.note.clone(),
        control: plan.control,
        subjects: plan.subjects.iter().map(subject).collect(),
        points: points.iter().map(point).collect(),
        published: plan.published.clone(),
        baseline: plan.baseline.as_ref().and_then(|name| points.iter().position(|point| point.name == *name)),
        ..Outcome::begun(&plan.name, &options.command, plan.rounds, unix_ms())
    }
}

/// What is run, by whom, and how.
struct Run<'a> {
    plan: &'a Plan,
    points: &'a [Point],
    host: &'a dyn Host,
    options: &'a Options<'a>,
    not_stopped: &'a NotStopped,
}

fn measure_all(
    run: &Run<'_>,
    outcome: &mut Outcome,
    archive: &mut Archive,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<()> {
    let Run { plan, points, host, options, not_stopped } = *run;
    let mark = keeper::new_mark();
    let is_stopping = || options.stopping.load(Ordering::Relaxed);
    let mut standing = Standing::default();
    // The first, so the last to go.
    standing.0.push(subjects::sweep(&mark));
    let left_out: Vec<Option<&str>> = plan.subjects.iter().map(Subject::missing).collect();
    let is_there = |subject: usize| left_out[subject].is_none();
    for (number, subject) in plan.subjects.iter().enumerate() {
        if is_stopping() {
            return Ok(());
        }
        if let Some(program) = left_out[number] {
            outcome.subjects[number].left_out = Some(format!("it needs {program}, which is not there"));
            continue;
        }
        standing.0.extend(subjects::start(subject, host, &mark, options.stopping, not_stopped, progress)?);
        let bytes = subjects::fill(plan, points, subject, host, &mark, options.stopping, progress)?;
        std::thread::sleep(host.served_delay(subject));
        let Condition { full, is_debug } = host.condition(subject)?;
        let view = &mut outcome.subjects[number];
        (view.bytes, view.full, view.is_debug) = (bytes, full, is_debug);
    }
    let mut turns: Vec<Turn> = (0..plan.subjects.len())
        .filter(|subject| is_there(*subject))
        .map(|subject| Turn { subject, is_control: false })
        .collect();
    if plan.control && is_there(0) {
        turns.push(Turn { subject: 0, is_control: true });
    }
    let in_a_round =
        |point: &Point| turns.iter().filter(|turn| point.is_for(&plan.subjects[turn.subject])).count();
    let of = points.iter().map(in_a_round).sum::<usize>() * plan.rounds as usize;
    let began = Instant::now();
    let mut number = 0;
    for round in 1..=plan.rounds {
        for (point_number, point) in points.iter().enumerate() {
            let drawn = (outcome.began_unix_ms, round, point_number);
            for Turn { subject, is_control } in ordered(&turns, plan.order, drawn) {
                let plan_subject = &plan.subjects[subject];
                if !point.is_for(plan_subject) {
                    continue;
                }
                if is_stopping() {
                    return Ok(());
                }
                number += 1;
                let twin = if is_control { " once more" } else { "" };
                let name = format!("round {round}: {} on {}{twin}", point.name, plan_subject.name);
                let left = left(plan, began, number - 1, of);
                progress(&Progress::Sample { name: name.clone(), number, of, left });
                let asked = sample::Asked {
                    plan,
                    host,
                    subject: plan_subject,
                    point,
                    round,
                    probe: 0,
                    options,
                    mark: &mark,
                };
                let taken = match &point.within {
                    Some(objective) => search::take(&asked, objective, progress),
                    None => sample::take(&asked, progress),
                };
                let mut sample = match taken {
                    Ok(sample) => sample,
                    Err(error) => bail!("{name}: {error:#}"),
                };
                (sample.subject, sample.point, sample.is_control) = (subject, point_number, is_control);
                progress(&Progress::Sampled(sample.iops(), sample.mean_us()));
                outcome.samples.push(sample);
                outcome.ended_unix_ms = unix_ms();
                // Should nothing more come: what is there is judged as what it is.
                outcome.findings = trust::findings(outcome);
                archive.write(outcome)?;
                if let Some(missing) = outcome.samples.last().and_then(|sample| sample.missing.first()) {
                    bail!("{name}: {missing}");
                }
            }
        }
    }
    Ok(())
}

/// The turns of a round, in their order, by when the run began, by the round and by the job.
fn ordered(turns: &[Turn], order: TurnOrder, (began, round, point): (u64, u32, usize)) -> Vec<Turn> {
    let mut turns = turns.to_vec();
    match order {
        TurnOrder::Turns => {
            let count = turns.len().max(1);
            turns.rotate_left((round as usize - 1) % count);
        }
        TurnOrder::Random => {
            // Fisher and Yates (1938).
            let mut random = Random::new(began ^ u64::from(round) << 48 ^ (point as u64) << 40);
            for last in (1..turns.len()).rev() {
                turns.swap(last, random.index(last + 1));
            }
        }
    }
    turns
}

/// How long what is left takes, as far as can be told.
fn left(plan: &Plan, began: Instant, done: usize, of: usize) -> Duration {
    match done {
        0 => plan.least_duration(),
        _ => began.elapsed() / done as u32 * (of - done) as u32,
    }
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    unix_ns() / 1_000_000
}

#[cfg(test)]
mod tests;
