//! Progress of long work: a bar on a terminal, plain lines elsewhere.

use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// How one piece of work comes along.
#[derive(Debug)]
pub struct Progress {
    label: String,
    total: u64,
    bar: Option<ProgressBar>,
    shown: Option<u64>,
}

impl Progress {
    /// Work of `total` steps, none of them done.
    pub fn new(label: &str, total: u64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:28} [{bar:40}] {pos}/{len}")
                .expect("the template is well-formed")
                .progress_chars("=> ");
            ProgressBar::new(total).with_style(style).with_message(label.to_owned())
        });
        Progress { label: label.to_owned(), total, bar, shown: None }
    }

    /// Shows that `done` steps are done. Says nothing twice.
    pub fn set(&mut self, done: u64) {
        if self.shown == Some(done) {
            return;
        }
        self.shown = Some(done);
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None => output::notice(&format!("{}: {done} of {}", self.label, self.total)),
        }
    }

    /// Runs `print` without tearing the bar.
    pub fn aside(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // A bar left behind would be torn by the next line.
        if let Some(bar) = &self.bar {
            if self.shown == Some(self.total) { bar.finish() } else { bar.abandon() }
        }
    }
}
