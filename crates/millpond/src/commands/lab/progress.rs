//! How a run goes, on a terminal on one line that is drawn again and again, and elsewhere a line for each sample.

use crate::commands::bench::show_on_terminal;
use crate::output;
use lab::present::plots::terminal::{Characters, sparkline};
use lab::report::{figure, grouped};
use lab::run::Progress;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The last seconds of a sample that are drawn.
const SECONDS_DRAWN: usize = 30;

/// What is shown.
#[derive(Default)]
pub struct Shown {
    /// What is under way.
    sample: String,
    /// When all is done, as far as can be told.
    until: Option<Instant>,
    last_step: String,
}

impl Shown {
    /// Shows what is new.
    pub fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Step(step) => {
                // Off a terminal each kind of step is a line of its own.
                let kind = step.split(':').next().unwrap_or_default();
                if !std::io::stderr().is_terminal() && self.last_step != kind {
                    output::notice(kind);
                }
                kind.clone_into(&mut self.last_step);
                show_on_terminal(step);
            }
            Progress::Sample { name, number, of, left } => {
                self.sample = format!("{number}/{of} {name}");
                self.until = Some(Instant::now() + *left);
                show_on_terminal(&format!("{}, {} left", self.sample, words(*left)));
            }
            Progress::Going(rates) => {
                let last = &rates[rates.len().saturating_sub(SECONDS_DRAWN)..];
                let drawn = sparkline(last, SECONDS_DRAWN, Characters::Unicode);
                let now = grouped(rates.last().copied().unwrap_or_default());
                let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
                let left = words(left.unwrap_or_default());
                show_on_terminal(&format!("{}  {drawn} {now} IOPS, {left} left", self.sample));
            }
            Progress::Sampled(iops, mean_us) => {
                show_on_terminal("");
                let (iops, mean) = (grouped(*iops), figure(*mean_us));
                output::notice(&format!("{:<60} {iops:>10} IOPS {mean:>10} µs", self.sample));
            }
        }
    }

    /// Leaves the line.
    pub fn end(&self) {
        show_on_terminal("");
    }
}

/// So long, for a reader.
fn words(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..100 => format!("{seconds} s"),
        100..5400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", left.as_secs_f64() / 3600.0),
    }
}
