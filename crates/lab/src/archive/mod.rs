//! What came of a plan, as it is kept: a directory that programs read as well as people.
//!
//! | file | what |
//! |---|---|
//! | `run.json` | everything but latencies: an [`Outcome`] |
//! | `latency.hlog` | the latencies of every second, an interval log of HdrHistogram, version 2 |
//! | `seconds.csv` | how every second went |
//! | `metrics.txt` | the figures of all samples, as OpenMetrics |
//! | `plan.toml`, or `job.fio` | the plan, or fio's job file |
//! | `report.html`, `report.md` | for readers |
//!
//! It is written anew after every sample, each file under another name first: whatever ends a run, what is there can be read.

mod files;
mod hlog;
mod outcome;
mod side_by_side;

pub use files::{Archive, ArchiveError};
pub use outcome::{
    AgentView, Build, Contents, CyclesPerOperation, FIGURES, FORMAT, Figure, Finding, Happened, Outcome,
    PointView, Probe, Sample, Second, Served, SubjectView, figure_named, quantile_us,
};
pub use side_by_side::side_by_side;
