//! `millpond lab`: any storage measured by a plan.

mod fleet;
mod host;
mod progress;
mod remote;

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
use lab::present::plots::terminal::{Characters, Terminal, plot};
use lab::present::{self, Summary};
use lab::run::{Options, Progress};
use lab::scenarios::large::fleet::Size;
use lab::targets::{OpenTarget, VolumeAccess, make_file};
use lab::testbed::cleanup::{self, Undo};
use lab::testbed::keeper::{self, Leftover};
use progress::Shown;
use std::io::IsTerminal;
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

/// The most jobs whose latencies are drawn on a terminal.
const POINTS_DRAWN: usize = 4;
/// What a plan is called in an archive, and a job file of fio.
const PLAN: &str = "plan.toml";
const FIO_JOB: &str = "job.fio";

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
    /// Run a job file of fio, by fio as it is, and tell what it found as any run
    Fio(FioArguments),
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
    /// Make load on this host, for plans that are run on another
    Agent(AgentArguments),
    /// Take down what whoever talks on the standard input leaves behind
    #[command(hide = true)]
    Keeper,
    /// Be what an agent at an address is, on the standard input and output
    #[command(hide = true)]
    Reach(ReachArguments),
    /// Add simulated OSDs to the cluster, until this is ended
    #[command(hide = true)]
    Fleet(FleetArguments),
}

const AGENT_EXAMPLES: &str = "\
Examples:
  millpond lab agent --listen 0.0.0.0:7070 --key lab.key    then copy lab.key to where plans are run, and there:
                                                            [[agent]]
                                                            name = \"load-1\"
                                                            tcp = \"load-1:7070\"
                                                            key = \"lab.key\"

Whoever has the key can overwrite what this user can, and run commands as this user.
Without --listen it does what it is told on its standard input, as by ssh.";

#[derive(Args, Clone, Debug)]
#[command(after_help = AGENT_EXAMPLES)]
struct AgentArguments {
    /// Where to listen; what is told on the standard input is done without
    #[arg(long, value_name = "ADDRESS:PORT", requires = "key")]
    listen: Option<String>,

    /// The file of the key that others must have too; it is made if it is missing
    #[arg(long, value_name = "FILE", requires = "listen")]
    key: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct ReachArguments {
    /// Where `millpond lab agent --listen` runs
    #[arg(value_name = "HOST:PORT")]
    address: String,

    /// The file of the key that it was given
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

#[derive(Args, Clone, Debug)]
struct FleetArguments {
    #[command(flatten)]
    size: Size,

    /// A file to make once the manager takes all their groups for active
    #[arg(long, value_name = "PATH")]
    ready: PathBuf,
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

const FIO_EXAMPLES: &str = "\
Examples:
  millpond lab fio job.fio
  millpond lab fio job.fio --rounds 12 --out before";

#[derive(Args, Clone, Debug)]
#[command(after_help = FIO_EXAMPLES)]
struct FioArguments {
    /// The job file
    #[arg(value_name = "JOB.fio")]
    file: PathBuf,

    /// How often it is run
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// The directory to keep it in, which is made [default: the file's name and the time]
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
        LabCommand::Fio(fio) => return run_fio(fio),
        LabCommand::List => list()?,
        LabCommand::Explain(plan) => explain(&read_plan(plan, Path::new("SCRATCH"))?.0)?,
        LabCommand::Report(report) => tell(report)?,
        LabCommand::Compare(compare) => compared(compare)?,
        LabCommand::Agent(AgentArguments { listen: Some(address), key: Some(key) }) => {
            remote::listen(address, key)?;
        }
        LabCommand::Agent(_) => serve()?,
        LabCommand::Keeper => {
            stop::on_wish(|| {})?;
            keeper::serve(std::io::stdin().lock(), std::io::stdout())?;
        }
        LabCommand::Reach(ReachArguments { address, key }) => remote::reach(address, key)?,
        LabCommand::Fleet(FleetArguments { size, ready }) => fleet::run(path, *size, ready)?,
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
    lab::run::check(&plan).map_err(|error| wrong(&error))?;
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
    let out = out_of(arguments.out.as_deref(), &arguments.plan.plan)?;
    let scratch = std::path::absolute(&out)?.join("scratch");
    // Plans have it in commands, where much else has a meaning.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    if !scratch.to_str().is_some_and(|path| path.chars().all(is_plain)) {
        return Err(anyhow!(Usage(format!(
            "{}: plans have this path in commands; take one of letters, digits and . _ + - with --out",
            scratch.display()
        ))));
    }
    let (plan, text) = read_plan(&arguments.plan, &scratch)?;
    let stopping = stop_when_wished()?;
    let mut archive = Archive::create(&out, PLAN, &text)?;
    let kept = keeper::keep(Leftover::Directory(scratch.clone()));
    std::fs::create_dir(&scratch).with_context(|| format!("{}: cannot make it", scratch.display()))?;
    // Before subjects are: so it goes after them.
    let directory = scratch.clone();
    let scratch = Undo::new(move || {
        if let Err(error) = keeper::remove(&scratch) {
            keeper::complain(&error);
        }
        drop(kept);
    });
    for (name, text) in challenges::FILES {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}: cannot write it", path.display()))?;
    }
    let host = ThisHost::new(path)?;
    let options = Options { command: own_command(), stopping: &stopping };
    let mut shown = Shown::default();
    let came = lab::run::run(&plan, &host, &options, &mut archive, &mut |progress| shown.show(progress));
    shown.end();
    drop(scratch);
    conclude(came, &archive, arguments.json)
}

fn run_fio(arguments: &FioArguments) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&arguments.file)
        .with_context(|| format!("{}: cannot read it", arguments.file.display()))?;
    let out = out_of(arguments.out.as_deref(), &arguments.file)?;
    let stopping = stop_when_wished()?;
    let mut archive = Archive::create(&out, FIO_JOB, &text)?;
    let options = Options { command: own_command(), stopping: &stopping };
    let mut shown = Shown::default();
    let mut show = |progress: &Progress<'_>| shown.show(progress);
    let came = lab::run::run_fio_file(&arguments.file, arguments.rounds, &options, &mut archive, &mut show);
    shown.end();
    conclude(came, &archive, arguments.json)
}

/// Where a run is kept.
fn out_of(out: Option<&Path>, plan: &Path) -> anyhow::Result<PathBuf> {
    let name = plan.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok(match out {
        Some(out) => out.to_owned(),
        None => PathBuf::from(format!("{}-{}", name.unwrap_or_default(), stamp()?)),
    })
}

/// The command line of this process.
fn own_command() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Takes down what was set up however this ends. The first wish to stop sets what is given back, the second waits for nothing.
fn stop_when_wished() -> anyhow::Result<Arc<AtomicBool>> {
    begin_keeper()?;
    cleanup::undo_after_a_panic();
    let stopping = Arc::new(AtomicBool::new(false));
    let wished = stopping.clone();
    stop::on_wish(move || {
        if wished.swap(true, Ordering::Relaxed) {
            // What does not end by itself is ended.
            cleanup::undo_and_exit(1);
        }
        output::notice("\nstopping: what is under way ends, and what was measured is kept");
    })?;
    Ok(stopping)
}

/// Writes the reports, and prints what came of a run.
fn conclude(came: anyhow::Result<Outcome>, archive: &Archive, json: bool) -> anyhow::Result<ExitCode> {
    let kept = archive.directory().display();
    let outcome = match came {
        Ok(outcome) => outcome,
        Err(error) => {
            let (_, outcome) = Archive::open(archive.directory())?;
            write_reports(archive, &outcome, &Summary::of(&outcome))?;
            return Err(error.context(format!("the run ended early; what was measured is in {kept}")));
        }
    };
    let summary = Summary::of(&outcome);
    write_reports(archive, &outcome, &summary)?;
    output::show(json, &outcome, || {
        let told = told(&outcome, &summary);
        format!("{told}\nKept in {kept}; report.html there has pictures\n")
    })?;
    let has_failed = outcome.samples.iter().any(|sample| sample.errors > 0);
    let is_done = outcome.ended_early.is_none() && outcome.disappointments.is_empty() && !has_failed;
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
    print_outcome(&outcome, arguments.markdown, arguments.json)?;
    // A run that was killed has none yet.
    let written = archive.write_tables(&outcome).map_err(anyhow::Error::from);
    if let Err(error) = written.and_then(|()| write_reports(&archive, &outcome, &Summary::of(&outcome))) {
        output::warning(&format!("its reports are not written anew: {error:#}"));
    }
    Ok(())
}

fn print_outcome(outcome: &Outcome, markdown: bool, json: bool) -> anyhow::Result<()> {
    let summary = Summary::of(outcome);
    output::show(json, outcome, || match markdown {
        true => present::markdown(outcome, &summary),
        false => told(outcome, &summary),
    })
}

/// What is told at the end, on a terminal with the latencies of the first jobs drawn before.
fn told(outcome: &Outcome, summary: &Summary) -> String {
    let mut text = String::new();
    if std::io::stdout().is_terminal() {
        for point in 0..outcome.points.len().min(POINTS_DRAWN) {
            let terminal = Terminal {
                width: 100,
                height: 12,
                characters: Characters::Unicode,
                colour: std::env::var_os("NO_COLOR").is_none(),
            };
            text += &plot(&present::percentile_chart(outcome, point), terminal);
            text.push('\n');
        }
    }
    text + &present::terminal(outcome, summary)
}

fn compared(arguments: &CompareArguments) -> anyhow::Result<()> {
    let (_, first) = Archive::open(&arguments.first)?;
    let (_, other) = Archive::open(&arguments.other)?;
    let both = lab::archive::side_by_side(&first, &other).map_err(|error| anyhow!(Usage(error)))?;
    print_outcome(&both, arguments.markdown, false)
}

/// Starts what takes down what this process leaves behind if it is killed.
fn begin_keeper() -> anyhow::Result<()> {
    let mut keeper = host::own_program();
    keeper.args(["lab", "keeper"]);
    keeper::begin(keeper)
}

/// What an agent does: the parent says what.
fn serve() -> anyhow::Result<()> {
    // A timer may be late by as little as the kernel can make it.
    lab::agent::wake_on_time();
    // Who asked tells it when to stop; signals to the whole terminal are for who asked.
    stop::on_wish(|| {})?;
    agent::serve(std::io::stdin(), std::io::stdout(), open, || std::process::exit(1))
}

fn open(order: &Order) -> Result<OpenTarget, TargetError> {
    if matches!(order.job.target, TargetName::Command(_)) {
        begin_keeper().map_err(|error| unusable(&error))?;
    }
    if let (TargetName::Raw(path), Some(bytes)) = (&order.job.target, order.access.create_bytes) {
        make_file(path, bytes, order.access.may_be_there)?;
    }
    OpenTarget::open(&order.job, !order.access.cached, || {
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
