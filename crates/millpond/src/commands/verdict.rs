//! `millpond health`: the verdict alone, and what each of its codes means.

use crate::Usage;
use crate::host::access;
use crate::output;
use clap::{Args, Subcommand};
use health::codes::{Code, Explanation, Level};
use health::problem::Health;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  millpond health                        the verdict, and what is wrong
  millpond health --json | jq -r '.problems[].code'
  millpond health explain OSD_DOWN       what a code means, and what to do
  millpond health explain                all codes

It exits with 0 while everything serves, problems or not, and with 1 when something does not serve (level error) or
the cluster does not answer.";

/// Show whether everything serves, and what is wrong.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct HealthArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// What else.
    #[command(subcommand)]
    pub command: Option<HealthCommand>,
}

/// What can be asked besides the verdict.
#[derive(Subcommand, Clone, Debug)]
pub enum HealthCommand {
    /// Say what a code means, what to do, and when it goes away; without a code, all of them
    #[command(after_help = "Examples:\n  millpond health explain OSD_DOWN\n  \
                            millpond health explain --json | jq -r '.[].code'")]
    Explain {
        /// The code, as the verdict shows it
        code: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Performs a `health` command, and gives the exit code.
pub fn run(arguments: &HealthArguments, directory: &Path) -> anyhow::Result<ExitCode> {
    if let Some(HealthCommand::Explain { code, json }) = &arguments.command {
        explain(code.as_deref(), *json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let health = access::with_inquiry(directory, async |inquiry| inquiry.health().await)?;
    output::show(arguments.json, &health, || render(&health, ""))?;
    Ok(if health.level == Level::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The verdict and the problems, each line behind the first with `indent` in front.
pub fn render(health: &Health, indent: &str) -> String {
    let verdict = match health.level {
        Level::Ok => "ok",
        Level::Warning => "WARNING",
        Level::Error => "ERROR",
    };
    let mut text = format!("{verdict}\n");
    for problem in &health.problems {
        text.push_str(&format!(
            "{indent}- {}: {}; {}\n{indent}  next: {}\n",
            problem.code, problem.what, problem.consequence, problem.next
        ));
    }
    text
}

fn explain(code: Option<&str>, json: bool) -> anyhow::Result<()> {
    let explanations: Vec<Explanation> = match code {
        None => Code::ALL.into_iter().map(Code::explanation).collect(),
        Some(text) => {
            let unknown = |error: health::codes::UnknownCode| {
                Usage(format!("{error}; `millpond health explain` lists them all"))
            };
            vec![text.parse::<Code>().map_err(unknown)?.explanation()]
        }
    };
    match (json, code, explanations.as_slice()) {
        (true, Some(_), [one]) => output::print_json(one),
        (true, ..) => output::print_json(&explanations),
        (false, ..) => {
            let texts: Vec<String> = explanations.iter().map(explained).collect();
            output::print(&texts.join("\n"))
        }
    }
}

fn explained(explanation: &Explanation) -> String {
    let Explanation { code, level, meaning, consequence, action, clears } = explanation;
    let level = level.name();
    format!(
        "{code} ({level})\n  means       {meaning}\n  for data    {consequence}\n  do          {action}\n  \
         goes away   {clears}\n"
    )
}
