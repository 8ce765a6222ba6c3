//! A job file of fio, run by fio as it is.

use super::fio::{jobs_of, watch};
use super::subjects::sweep;
use super::{Options, Progress, conclude, unix_ms};
use crate::archive::{Archive, Outcome, PointView, SubjectView};
use crate::engine::plan::{Job, Mode, TargetName};
use crate::report::Cpu;
use crate::testbed::{command, keeper};
use crate::trust::{self, FIO};
use anyhow::{Context, bail};
use base::units::ByteSize;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a job file may take.
const LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs a job file so many times. Each of its jobs, or groups of jobs, is a point; all that run at the same time share what is
/// told of CPU time, which is told if there is one.
///
/// # Errors
/// fio fails, or the archive cannot be written. What came before that is in the archive.
pub fn run_fio_file(
    file: &Path,
    rounds: u32,
    options: &Options<'_>,
    archive: &mut Archive,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Outcome> {
    let name = file.file_stem().map_or_else(|| FIO.to_owned(), |stem| stem.to_string_lossy().into_owned());
    let subject = SubjectView {
        name: FIO.to_owned(),
        what: format!("what {} names", file.display()),
        ..SubjectView::default()
    };
    let mut outcome = Outcome {
        title: format!("fio {}", file.display()),
        subjects: vec![subject],
        ..Outcome::begun(&name, &options.command, rounds, unix_ms())
    };
    archive.write(&outcome)?;
    let mut came = Ok(());
    for round in 1..=rounds {
        if options.stopping.load(Ordering::Relaxed) {
            break;
        }
        progress(&Progress::Step(format!("round {round} of {rounds}: fio runs {}", file.display())));
        came = once(file, round, options.stopping, &mut outcome);
        if came.is_err() {
            break;
        }
        outcome.findings = trust::findings(&outcome);
        archive.write(&outcome)?;
    }
    let came = conclude(&mut outcome, came, options);
    archive.write(&outcome)?;
    archive.write_tables(&outcome)?;
    came.map(|()| outcome)
}

fn once(file: &Path, round: u32, stopping: &AtomicBool, outcome: &mut Outcome) -> anyhow::Result<()> {
    let file = file.display().to_string();
    let words = ["--output-format=json+", "--lat_percentiles=1", &file];
    // Its jobs may be processes, in sessions of their own.
    let mark = keeper::new_mark();
    let sweep = sweep(&mark);
    let seen = watch(Vec::new(), || command::run_unless(FIO, &words, &mark, LIMIT, stopping));
    drop(sweep);
    let seen = seen?;
    let jobs = jobs_of(&seen.output)?;
    if round == 1 {
        outcome.points = jobs.iter().enumerate().map(|(number, job)| point_of(number, job)).collect();
    }
    if jobs.len() != outcome.points.len() {
        bail!("fio told of {} jobs in the first round, and of {} now", outcome.points.len(), jobs.len());
    }
    for (point, job) in jobs.iter().enumerate() {
        let name = &outcome.points[point].name;
        let mut sample = seen.sample_of(job).with_context(|| format!("job {name} of round {round}"))?;
        (sample.round, sample.point) = (round, point);
        if jobs.len() == 1 {
            sample.cpu = Some(Cpu::new(&seen.usage, sample.operations()));
        }
        outcome.samples.push(sample);
    }
    Ok(())
}

/// What is known of a job by its options, some of which fio tells.
fn point_of(number: usize, told: &Value) -> PointView {
    let option = |name: &str| told.pointer(&format!("/job options/{name}")).and_then(Value::as_str);
    let mode = option("rw").and_then(|mode| mode.parse().ok()).unwrap_or(Mode::RandomReadWrite);
    let mut job = Job::new(TargetName::Raw("-".into()), mode);
    job.block = option("bs").and_then(|size| size.parse().ok()).unwrap_or(ByteSize(4096));
    job.depth = option("iodepth").and_then(|depth| depth.parse().ok()).unwrap_or(1);
    let name = told["jobname"].as_str().unwrap_or("job");
    // Two may have the same.
    let name = if number == 0 { name.to_owned() } else { format!("{name} ({})", number + 1) };
    PointView { job_name: name.clone(), name, job, clients: 1, run: None, within: None }
}
