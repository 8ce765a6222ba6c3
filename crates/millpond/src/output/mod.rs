//! What the command prints: results to stdout, notices, errors and logs to stderr.

pub mod logging;
pub mod progress;
pub mod time;

pub use lab::report::table;

use anyhow::Context;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints a result to stdout.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// Prints one line of result to stdout.
pub fn print_line(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Prints a result as indented JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_line(&serde_json::to_string_pretty(value).context("cannot write the result as JSON")?)
}

/// Prints a result as JSON, or as the text that people read.
pub fn show(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

/// Tells the person at the terminal something that is no result. A closed stderr is not worth failing for.
pub fn notice(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Tells of something that went wrong without ending the command.
pub fn warning(text: &str) {
    notice(&format!("warning: {text}"));
}

/// Tells of what ended the command.
pub fn error(text: &str) {
    notice(&format!("error: {text}"));
}

/// Whether the reader of stdout went away, as `head` does: no reason to complain.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .or_else(|| error.root_cause().downcast_ref())
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
        && error.to_string().contains("stdout")
}
