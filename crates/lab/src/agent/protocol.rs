//! What agents and those that give them orders say to each other.

use crate::engine::contents::Counts;
use crate::engine::histogram::Buckets;
use crate::engine::plan::Job;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// How a target is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The directory of the cluster that a volume is of.
    pub dir: Option<PathBuf>,
    /// The file of the key to come with.
    pub key: Option<PathBuf>,
    /// Whether others write to it at the same time.
    pub shared: bool,
    /// A file is made first, this large in bytes.
    pub create_bytes: Option<u64>,
    /// Whether that may be there already.
    pub may_be_there: bool,
    /// Whether the page cache lies between, of a drive or a file.
    #[serde(default)]
    pub cached: bool,
}

/// The first line to an agent: what it will do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// What.
    pub job: Job,
    /// On what.
    pub access: Access,
}

/// Every other line to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// Begin.
    Start,
    /// Stop before the end, and say what was measured until then.
    Stop,
    /// Answer with the time.
    Clock,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// The target is open.
    Ready(Ready),
    /// The time on its host, in nanoseconds since 1970.
    Clock(u64),
    /// From now on is measured.
    Opened {
        /// In nanoseconds since 1970.
        unix_ns: u64,
    },
    /// How a second went.
    Second(Second),
    /// It ended.
    Done(Done),
    /// It could not begin, or not end.
    Failed(String),
}

/// What is to be done it can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Bytes of the target.
    pub bytes: u64,
    /// What offsets and lengths must be multiples of, in bytes.
    pub alignment_bytes: u32,
    /// The agent's process on its host.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Whether it was built without optimisation.
    pub is_debug: bool,
}

/// About a second of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Since the window opened, in seconds; absent before.
    pub at_s: Option<f64>,
    /// How long it was, in seconds.
    pub seconds: f64,
    /// All operations, those too that are not measured.
    pub iops: f64,
    /// Measured reads.
    pub reads: Buckets,
    /// Measured writes.
    pub writes: Buckets,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// Bytes that were read, those too that were not measured.
    pub read_bytes: u64,
    /// Bytes that were written, those too that were not measured.
    pub written_bytes: u64,
    /// CPU time that the agent used while it measured, in microseconds.
    #[serde(default)]
    pub cpu_us: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Whether it was stopped before its end.
    pub stopped_early: bool,
    /// Operations that were due and never begun.
    pub overdue: u64,
    /// What reads brought.
    pub read_contents: Counts,
    /// What was written.
    pub write_contents: Counts,
}

/// No job takes longer than this, in seconds: ten years.
const SECONDS_MAX: f64 = 3.2e8;

fn is_time(seconds: f64) -> bool {
    (0.0..=SECONDS_MAX).contains(&seconds)
}

impl Second {
    /// Whether an agent can mean it: what comes from another host is input.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.at_s.is_none_or(is_time) && is_time(self.seconds) && self.iops.is_finite()
    }
}

impl Done {
    /// The same.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        is_time(self.seconds) && self.cpu_us.is_none_or(|us| us.is_finite() && us >= 0.0)
    }
}

/// Nanoseconds since 1970 on this host.
#[must_use]
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
