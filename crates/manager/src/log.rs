//! What the processes of nodes log, in one place: each keeps its newest records ([`ProcessLog`]) and tells the manager with its
//! reports, which keeps the newest of all ([`ClusterLog`]) for whoever asks with the key of a node or of the owner.
//!
//! Nothing of it is kept on drives: a new manager knows what each process still told it, and a node's own log file has all.

use base::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records that a process keeps until they are told, and that one report tells.
pub const PER_REPORT_MAX: usize = 64;
/// Records from before that a process tells a manager that does not know it.
pub const TOLD_ANEW_MAX: usize = 16;
/// Records of all processes that a manager keeps: what 1,000 of them tell a new one, at least.
const KEPT_MAX: usize = 16 << 10;
/// Records that one answer brings at most.
pub const ANSWER_MAX: usize = 1000;
/// The longest text of a record, in bytes; what is behind is cut off.
const TEXT_BYTES_MAX: usize = 1024;
const SOURCE_BYTES_MAX: usize = 64;

/// How bad what happened is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something wants attention.
    Warn,
    /// Something happened.
    Info,
}

impl LogLevel {
    /// Its name, as in logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "ERROR",
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
        }
    }
}

/// What a process logged at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// Counts what the process logged, from 1.
    pub number: u64,
    /// By its host's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// How bad it is.
    pub level: LogLevel,
    /// The part of the program, as `node::control`.
    pub source: String,
    /// In words, with `name=value` for each field behind.
    pub text: String,
}

/// What a report tells of a process's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// The process.
    pub pid: u32,
    /// In their order. Between two there may have been more than a report holds.
    pub records: Vec<LogRecord>,
}

/// What this process logged last. A clone is the same log.
#[derive(Clone, Debug, Default)]
pub struct ProcessLog {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    records: VecDeque<LogRecord>,
}

impl ProcessLog {
    /// Keeps a record, and gives it its number.
    pub fn add(&self, at_ms: u64, level: LogLevel, source: &str, text: &str) {
        let mut kept = self.lock();
        kept.last += 1;
        if kept.records.len() == PER_REPORT_MAX {
            kept.records.pop_front();
        }
        let number = kept.last;
        let (source, text) = (text_of(source, SOURCE_BYTES_MAX), text_of(text, TEXT_BYTES_MAX));
        kept.records.push_back(LogRecord { number, at_ms, level, source, text });
    }

    /// What is kept of what was logged behind a record.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<LogRecord> {
        self.lock().records.iter().filter(|record| record.number > number).cloned().collect()
    }

    /// The number of the record behind which a manager is told that does not know this process.
    #[must_use]
    pub fn told_anew_after(&self) -> u64 {
        self.lock().last.saturating_sub(TOLD_ANEW_MAX as u64)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A record with where it is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The node.
    pub node: NodeId,
    /// The process.
    pub pid: u32,
    /// What it logged.
    #[serde(flatten)]
    pub record: LogRecord,
}

/// What is asked of the log: the query of `GET /api/v1/log`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogQuery {
    /// Only what came behind this place: `next` of an answer of the same manager.
    pub after: Option<u64>,
    /// Only what is as bad as this.
    pub level: Option<LogLevel>,
    /// Only of this node.
    pub node: Option<NodeId>,
    /// So many at most, the newest.
    pub lines: Option<usize>,
}

/// What the manager knows of the log: the answer to `GET /api/v1/log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogView {
    /// The manager's process: places are its own.
    pub manager: (NodeId, u32),
    /// The place behind the newest.
    pub next: u64,
    /// By the times that their hosts' clocks showed, the oldest first.
    pub lines: Vec<LogLine>,
}

/// What the processes of all nodes logged last.
#[derive(Debug, Default)]
pub struct ClusterLog {
    /// How many were taken ever: the place of the newest.
    place: u64,
    /// In the order in which they came.
    lines: VecDeque<LogLine>,
}

impl ClusterLog {
    /// Takes what a process of `node` told. What it told before is passed over.
    pub fn take(&mut self, node: NodeId, report: LogReport) {
        let pid = report.pid;
        let is_its = |line: &&LogLine| line.node == node && line.pid == pid;
        let mut known = self.lines.iter().rev().find(is_its).map_or(0, |line| line.record.number);
        for mut record in report.records.into_iter().take(PER_REPORT_MAX) {
            if record.number <= known {
                continue;
            }
            known = record.number;
            record.source = text_of(&record.source, SOURCE_BYTES_MAX);
            record.text = text_of(&record.text, TEXT_BYTES_MAX);
            if self.lines.len() == KEPT_MAX {
                self.lines.pop_front();
            }
            self.place += 1;
            self.lines.push_back(LogLine { node, pid, record });
        }
    }

    /// What is asked for, and the place behind the newest.
    #[must_use]
    pub fn lines(&self, query: &LogQuery) -> (u64, Vec<LogLine>) {
        let new = self.place.saturating_sub(query.after.unwrap_or(0));
        let new = usize::try_from(new).unwrap_or(usize::MAX).min(self.lines.len());
        let is_meant = |line: &&LogLine| {
            query.level.is_none_or(|level| line.record.level <= level)
                && query.node.is_none_or(|node| line.node == node)
        };
        let limit = query.lines.unwrap_or(ANSWER_MAX).min(ANSWER_MAX);
        let newest = self.lines.iter().rev().take(new).filter(is_meant).take(limit);
        let mut lines: Vec<LogLine> = newest.cloned().collect();
        // Those of one process stay in its order, whatever its clock does.
        lines.reverse();
        lines.sort_by_key(|line| line.record.at_ms);
        (self.place, lines)
    }

    /// Forgets all, at the end of being the manager.
    pub fn clear(&mut self) {
        self.lines = VecDeque::new();
    }
}

/// A text from elsewhere as it is kept: not longer than that, and without what would steer the terminal of who reads it.
#[must_use]
pub(crate) fn text_of(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn logged(count: u64) -> ProcessLog {
        let log = ProcessLog::default();
        for number in 1..=count {
            log.add(1000 * number, LogLevel::Info, "node::control", &format!("record {number}"));
        }
        log
    }

    fn numbers(lines: &[LogLine]) -> Vec<u64> {
        lines.iter().map(|line| line.record.number).collect()
    }

    #[test]
    fn a_process_keeps_the_newest_of_what_it_logged() {
        let log = logged(PER_REPORT_MAX as u64 + 5);
        let kept: Vec<u64> = log.after(0).iter().map(|record| record.number).collect();
        assert_eq!(kept, (6..=PER_REPORT_MAX as u64 + 5).collect::<Vec<_>>());
        assert_eq!(log.after(kept[kept.len() - 2]).len(), 1);
        assert_eq!(log.after(log.told_anew_after()).len(), TOLD_ANEW_MAX);
        assert_eq!(logged(2).told_anew_after(), 0);
    }

    #[test]
    fn what_is_told_twice_is_known_once_and_what_another_process_tells_beside_it() {
        let mut all = ClusterLog::default();
        let log = logged(3);
        let told = LogReport { pid: 7, records: log.after(0) };
        all.take(NODE, told.clone());
        log.add(500, LogLevel::Error, "store", "its clock was set back");
        all.take(NODE, LogReport { pid: 7, records: log.after(1) });
        all.take(NODE, told.clone());
        all.take(NODE, LogReport { pid: 8, records: told.records[..1].to_vec() });
        all.take(NodeId(2), LogReport { pid: 7, records: told.records[2..].to_vec() });
        let (place, lines) = all.lines(&LogQuery::default());
        assert_eq!((place, numbers(&lines)), (6, vec![4, 1, 1, 2, 3, 3]));
        let of = |query| numbers(&all.lines(&query).1);
        assert_eq!(of(LogQuery { node: Some(NodeId(2)), ..LogQuery::default() }), [3]);
        assert_eq!(of(LogQuery { level: Some(LogLevel::Warn), ..LogQuery::default() }), [4]);
        assert_eq!(of(LogQuery { lines: Some(2), ..LogQuery::default() }), [1, 3], "the newest to come");
        assert_eq!(of(LogQuery { after: Some(place), ..LogQuery::default() }), [0; 0]);
        assert_eq!(of(LogQuery { after: Some(place - 1), ..LogQuery::default() }), [3]);
        assert_eq!(of(LogQuery { after: Some(99), ..LogQuery::default() }), [0; 0]);
        all.clear();
        assert_eq!(all.lines(&LogQuery::default()), (place, vec![]));
    }

    #[test]
    fn no_process_takes_more_memory_than_its_part() {
        let mut all = ClusterLog::default();
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let record =
            LogRecord { number: 1, at_ms: 0, level: LogLevel::Info, source: long.clone(), text: long };
        let flood = (1..=KEPT_MAX as u64 + 9).map(|number| LogRecord { number, ..record.clone() });
        let flood: Vec<LogRecord> = flood.collect();
        all.take(NODE, LogReport { pid: 1, records: flood.clone() });
        assert_eq!(all.lines.len(), PER_REPORT_MAX, "one report tells no more");
        for part in flood.chunks(PER_REPORT_MAX) {
            all.take(NODE, LogReport { pid: 1, records: part.to_vec() });
        }
        assert_eq!((all.lines.len(), all.place), (KEPT_MAX, KEPT_MAX as u64 + 9));
        let (_, lines) = all.lines(&LogQuery { lines: Some(usize::MAX), ..LogQuery::default() });
        assert_eq!(lines.len(), ANSWER_MAX);
        let is_cut = |line: &LogLine| {
            line.record.text.len() <= TEXT_BYTES_MAX && line.record.source.len() <= SOURCE_BYTES_MAX
        };
        assert!(lines.iter().all(is_cut));
        assert_eq!(text_of("a\x1b[2Jb\nc", 8), "a [2Jb c");
    }
}
