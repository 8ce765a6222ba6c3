//! `millpond lab`: any storage measured by a plan.

mod host;
mod progress;

use crate::Usage;
use crate::commands::bench::unusable;
use crate::host::directory::Directory;
use crate::host::stop;
use crate::output;
use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use host::ThisHost;
use lab::agent::{self, Order};
use lab::archive::{Archive, Outcome};
use lab::challenges;
use lab::engine::TargetError;
use lab::engine::plan::TargetName;
use lab::plan::{Plan, filled_in};
use lab::present::{self, Summary};
use lab::run::Options;
use lab::targets::{OpenTarget, VolumeAccess, make_file};
use lab::testbed::cleanup::{self, Undo};
use progress::Shown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use time::OffsetDateTime;
use time::macros::format_description;
use volume::OpenAs;

const EXAMPLES: &str = "\
Examples:
  millpond lab run plan.toml
  millpond lab run 10k                          one of those that `millpond lab list` lists
  millpond lab explain plan.toml                what it would do, and what it would overwrite
  millpond lab report small-20261130-0615       once more, from what is kept
  millpond lab compare before/ after/

A plan in short:
  name = \"small\"
  [[subject]]
  name = \"disk\"
  volume = \"disk\"
  [[job]]
  rw = [\"randread\", \"randwrite\"]
  iodepth = [1, 16, 64]

docs/lab.md tells all its keys.";

/// Measure anything by a plan.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum LabCommand {
    /// Run a plan, keep what came of it, and tell it
    Run(RunArguments),
    /// List the plans that come with the program
    #[command(after_help = "Examples:\n  millpond lab list")]
    List,
    /// Tell what a plan would do
    #[command(
        after_help = "Examples:\n  millpond lab explain plan.toml\n  millpond lab explain 10k --set rounds=1"
    )]
    Explain(PlanArguments),
    /// Tell what a run found, from what was kept of it, and write its reports anew
    Report(ReportArguments),
    /// Compare what two runs found, job by job
    Compare(CompareArguments),
    /// Make the load that is asked for on the standard input
    #[command(hide = true)]
    Agent,
}

#[derive(Args, Clone, Debug)]
struct PlanArguments {
    /// The plan: a file, or the name of one that `millpond lab list` lists
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// Set one of the plan's parameters, or of the keys at its top, as `rounds=2`
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  millpond lab run plan.toml
  millpond lab run 10k                          a plan that comes with the program
  millpond lab run 10k --set rounds=1 --set runtime=5 --out /tmp/10k";

#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
struct RunArguments {
    #[command(flatten)]
    plan: PlanArguments,

    /// The directory to keep it in, which is made [default: the plan's name and the time]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  millpond lab report 10k-20261130-061500
  millpond lab report 10k-20261130-061500 --markdown >> notes.md";

#[derive(Args, Clone, Debug)]
#[command(after_help = REPORT_EXAMPLES)]
struct ReportArguments {
    /// What was kept
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,

    /// Print Markdown, for issues and commits
    #[arg(long)]
    markdown: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  millpond lab compare before/ after/ --markdown")]
struct CompareArguments {
    /// What was kept of the first
    #[arg(value_name = "ARCHIVE")]
    first: PathBuf,

    /// What was kept of the other
    #[arg(value_name = "ARCHIVE")]
    other: PathBuf,

    /// Print Markdown, for issues and commits
    #[arg(long)]
    markdown: bool,
}

/// Does what is asked. A run whose expectations were missed ends with 1.
pub fn run(arguments: &LabArguments, path: &Path) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        LabCommand::Run(run) => return run_plan(run, path),
        LabCommand::List => list()?,
        LabCommand::Explain(plan) => explain(&read_plan(plan, Path::new("SCRATCH"))?.0)?,
        LabCommand::Report(report) => tell(report)?,
        LabCommand::Compare(compare) => compared(compare)?,
        LabCommand::Agent => serve()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads `KEY=VALUE`.
fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no KEY=VALUE; write for example rounds=2")),
    }
}

/// A plan and its text, with its places filled in.
fn read_plan(arguments: &PlanArguments, scratch: &Path) -> anyhow::Result<(Plan, String)> {
    let path = &arguments.plan;
    let wrong = |error: &dyn std::fmt::Display| anyhow!(Usage(format!("{}: {error}", path.display())));
    let text = match (std::fs::read_to_string(path), path.to_str().and_then(challenges::named)) {
        (Ok(text), _) => text,
        (Err(_), Some(text)) => text.to_owned(),
        (Err(error), None) => {
            return Err(wrong(&format!(
                "cannot read it: {error}; `millpond lab list` lists plans that are there"
            )));
        }
    };
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let known = [("scratch", scratch.display().to_string()), ("millpond", program.display().to_string())];
    let known = known.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let text = filled_in(&text, &known, &arguments.settings).map_err(|error| wrong(&error))?;
    let plan = Plan::parse(&text).map_err(|error| wrong(&error))?;
    Ok((plan, text))
}

fn list() -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (name, _) in challenges::ALL {
        let arguments = PlanArguments { plan: PathBuf::from(name), settings: Vec::new() };
        let (plan, _) = read_plan(&arguments, Path::new("SCRATCH"))?;
        rows.push(vec![name.to_owned(), plan.title.unwrap_or_default()]);
    }
    output::print(&output::table::render(&["plan", "what it measures"], rows))
}

fn run_plan(arguments: &RunArguments, path: &Path) -> anyhow::Result<ExitCode> {
    let name = arguments.plan.plan.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => PathBuf::from(format!("{}-{}", name.unwrap_or_default(), stamp()?)),
    };
    let scratch = std::path::absolute(&out)?.join("scratch");
    let (plan, text) = read_plan(&arguments.plan, &scratch)?;
    let mut archive = Archive::create(&out, &text)?;
    cleanup::undo_after_a_panic();
    std::fs::create_dir(&scratch).with_context(|| format!("{}: cannot make it", scratch.display()))?;
    // Before subjects are: so it goes after them.
    let scratch = Undo::new(move || drop(std::fs::remove_dir_all(&scratch)));
    let stopping = Arc::new(AtomicBool::new(false));
    let wished = stopping.clone();
    stop::on_wish(move || {
        if wished.swap(true, Ordering::Relaxed) {
            // The second wish: what does not end by itself is ended.
            cleanup::undo_and_exit(1);
        }
        output::notice("\nstopping: what is under way ends, and what was measured is kept");
    })?;
    let host = ThisHost::new(path)?;
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let options = Options { command, stopping: &stopping };
    let mut shown = Shown::default();
    let came = lab::run::run(&plan, &host, &options, &mut archive, &mut |progress| shown.show(progress));
    shown.end();
    drop(scratch);
    let kept = archive.directory().display();
    let outcome = came.with_context(|| format!("the run ended early; what was measured is in {kept}"))?;
    let summary = Summary::of(&outcome);
    write_reports(&archive, &outcome, &summary)?;
    output::show(arguments.json, &outcome, || {
        format!("{}\nKept in {kept}; report.html there has pictures\n", present::terminal(&outcome, &summary))
    })?;
    let is_done = outcome.ended_early.is_none() && outcome.disappointments.is_empty();
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes what people read.
fn write_reports(archive: &Archive, outcome: &Outcome, summary: &Summary) -> anyhow::Result<()> {
    archive.put("report.md", present::markdown(outcome, summary).as_bytes())?;
    archive.put("report.html", present::page(outcome, summary).as_bytes())?;
    Ok(())
}

/// The time, as a part of a name.
fn stamp() -> anyhow::Result<String> {
    let format = format_description!("[year][month][day]-[hour][minute][second]");
    OffsetDateTime::now_utc().format(format).context("cannot tell the time")
}

fn explain(plan: &Plan) -> anyhow::Result<()> {
    output::print(&present::explained(plan))
}

fn tell(arguments: &ReportArguments) -> anyhow::Result<()> {
    let (archive, outcome) = Archive::open(&arguments.archive)?;
    // A run that was killed has none yet.
    archive.write_tables(&outcome)?;
    write_reports(&archive, &outcome, &Summary::of(&outcome))?;
    print_outcome(&outcome, arguments.markdown, arguments.json)
}

fn print_outcome(outcome: &Outcome, markdown: bool, json: bool) -> anyhow::Result<()> {
    let summary = Summary::of(outcome);
    output::show(json, outcome, || match markdown {
        true => present::markdown(outcome, &summary),
        false => present::terminal(outcome, &summary),
    })
}

fn compared(arguments: &CompareArguments) -> anyhow::Result<()> {
    let (_, first) = Archive::open(&arguments.first)?;
    let (_, other) = Archive::open(&arguments.other)?;
    let both = lab::archive::side_by_side(&first, &other).map_err(|error| anyhow!(Usage(error)))?;
    print_outcome(&both, arguments.markdown, false)
}

/// What an agent does: the parent says what.
fn serve() -> anyhow::Result<()> {
    // A timer may be late by as little as the kernel can make it.
    lab::agent::wake_on_time();
    // Who asked tells it when to stop; signals to the whole terminal are for who asked.
    stop::on_wish(|| {})?;
    agent::serve(std::io::stdin(), std::io::stdout(), open)
}

fn open(order: &Order) -> Result<OpenTarget, TargetError> {
    if let (TargetName::Raw(path), Some(bytes)) = (&order.job.target, order.access.create_bytes) {
        make_file(path, bytes)?;
    }
    OpenTarget::open(&order.job, || {
        let path = order.access.dir.as_deref().unwrap_or(Path::new("millpond"));
        let directory = Directory::new(path).map_err(|error| unusable(&error))?;
        let cluster = directory.access(order.access.key.as_deref()).map_err(|error| unusable(&error))?;
        let open = match (order.job.mode.writes(), order.access.shared) {
            (false, _) => OpenAs::Reader,
            (true, false) => OpenAs::Owner,
            (true, true) => OpenAs::Sharer,
        };
        Ok(VolumeAccess { cluster, open, timeout: None })
    })
}
