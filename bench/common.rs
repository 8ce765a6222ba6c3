//! What the programs in this directory have in common: how results are dated and published.

use anyhow::Context;
use serde::Serialize;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// The date to print with the results: the one that was given, or now.
pub fn date_or_now(given: Option<String>) -> anyhow::Result<String> {
    let date = match given {
        Some(date) => date,
        None => lab::command::run("date", &["--utc", "+%Y-%m-%d %H:%M UTC"], Duration::from_secs(10))?,
    };
    Ok(date.trim().to_owned())
}

/// Prints the results, and writes them to `json` too if that was asked for.
pub fn publish(summary: &(impl Display + Serialize), json: Option<PathBuf>) -> anyhow::Result<()> {
    print!("\n{summary}");
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(summary)?;
        std::fs::write(&path, text + "\n")
            .with_context(|| format!("{}: cannot write the results", path.display()))?;
    }
    Ok(())
}
