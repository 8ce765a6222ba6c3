//! What the programs in this directory have in common: how results are dated and published.

use anyhow::Context;
use serde::Serialize;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// What each program is told of its results.
#[derive(clap::Args, Debug)]
pub struct Output {
    /// Also write all results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// The date to print with the results; today's if not given
    #[arg(long, value_name = "DATE")]
    date: Option<String>,
}

impl Output {
    /// The date to print with the results: the one that was given, or now.
    pub fn date(&self) -> anyhow::Result<String> {
        let date = match &self.date {
            Some(date) => date.clone(),
            None => lab::testbed::command::run(
                "date",
                &["--utc", "+%Y-%m-%d %H:%M UTC"],
                Duration::from_secs(10),
            )?,
        };
        Ok(date.trim().to_owned())
    }

    /// Prints the results, and writes them to a file too if that was asked for.
    pub fn publish(&self, summary: &(impl Display + Serialize)) -> anyhow::Result<()> {
        print!("\n{summary}");
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(summary)?;
            std::fs::write(path, text + "\n")
                .with_context(|| format!("{}: cannot write the results", path.display()))?;
        }
        Ok(())
    }
}
