//! `millpond log`: what the processes of all nodes logged lately, as the manager was told.

use crate::commands::node::parse_node;
use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::output;
use base::NodeId;
use clap::{Args, ValueEnum};
use manager::log::{ANSWER_MAX, LogLevel, LogLine, LogQuery, LogView};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

const EXAMPLES: &str = "\
Examples:
  millpond log                          the newest 100 lines of all nodes
  millpond log --follow --level warn    what is wrong, as it happens
  millpond log --node 2 --lines 1000
  millpond log --json | jq 'select(.level == \"error\")'

It shows what the manager remembers: the newest of each node's lines. All lines of a node are in its own log, node.N.log in
the cluster's directory on its host, or the systemd journal. Times are UTC, by each host's own clock.";

/// How often somebody who follows asks.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);
/// RFC 3339, in UTC.
const TIME: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// Show what the nodes logged.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LogArguments {
    /// Go on showing lines as they come, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,

    /// How many lines to show at most, the newest
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 100, value_parser = parse_lines)]
    pub lines: usize,

    /// Only lines as bad as this
    #[arg(long, value_enum, default_value_t = Level::Info)]
    pub level: Level,

    /// Only lines of this node
    #[arg(long, value_name = "NUMBER", value_parser = parse_node)]
    pub node: Option<NodeId>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// How bad what happened is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Something failed
    Error,
    /// Something wants attention
    Warn,
    /// Something happened
    Info,
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> LogLevel {
        match level {
            Level::Error => LogLevel::Error,
            Level::Warn => LogLevel::Warn,
            Level::Info => LogLevel::Info,
        }
    }
}

fn parse_lines(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(lines) if (1..=ANSWER_MAX).contains(&lines) => Ok(lines),
        _ => Err(format!("write a number from 1 to {ANSWER_MAX}; a node's own log has more")),
    }
}

/// Performs a `log` command.
pub fn run(arguments: &LogArguments, directory: &Path) -> anyhow::Result<()> {
    access::with_inquiry(directory, async |inquiry| show(arguments, inquiry).await)
}

async fn show(arguments: &LogArguments, inquiry: &Inquiry) -> anyhow::Result<()> {
    let mut query = LogQuery {
        after: None,
        level: Some(arguments.level.into()),
        node: arguments.node,
        lines: Some(arguments.lines),
    };
    let mut shown = Shown::default();
    loop {
        let view = inquiry.log(&query).await?;
        for line in shown.new_of(&view) {
            output::print_line(&match arguments.json {
                true => serde_json::to_string(line)?,
                false => in_words(line),
            })?;
        }
        if !arguments.follow {
            return Ok(());
        }
        query = LogQuery { after: shown.place(&view), lines: None, ..query };
        tokio::time::sleep(FOLLOW_PAUSE).await;
    }
}

/// What was shown already.
#[derive(Default)]
struct Shown {
    manager: Option<(NodeId, u32)>,
    /// The last line of each process.
    last: BTreeMap<(NodeId, u32), u64>,
}

impl Shown {
    /// The lines of an answer that were not shown. Another manager tells some anew.
    fn new_of<'a>(&mut self, view: &'a LogView) -> Vec<&'a LogLine> {
        let new = |line: &&LogLine| {
            let last = self.last.entry((line.node, line.pid)).or_default();
            let is_new = line.record.number > *last;
            *last = line.record.number.max(*last);
            is_new
        };
        view.lines.iter().filter(new).collect()
    }

    /// What to ask for next: of a manager that is another than before everything that it knows.
    fn place(&mut self, view: &LogView) -> Option<u64> {
        let before = self.manager.replace(view.manager);
        before.is_none_or(|before| before == view.manager).then_some(view.next)
    }
}

fn in_words(line: &LogLine) -> String {
    let LogLine { node, record, .. } = line;
    let level = record.level.name();
    format!("{} {level:>5} {node} {}: {}", moment(record.at_ms), record.source, record.text)
}

fn moment(at_ms: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000);
    let text = at.ok().and_then(|at| at.format(TIME).ok());
    text.unwrap_or_else(|| format!("{at_ms} ms after 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use manager::log::LogRecord;

    fn line(node: u32, number: u64) -> LogLine {
        let (source, text) = ("node::control".to_owned(), format!("line {number}"));
        let record = LogRecord { number, at_ms: 1_795_443_296_789, level: LogLevel::Warn, source, text };
        LogLine { node: NodeId(node), pid: 7, record }
    }

    #[test]
    fn a_line_says_when_where_and_what() {
        assert_eq!(in_words(&line(2, 1)), "2026-11-23T14:14:56.789Z  WARN node.2 node::control: line 1");
        assert_eq!(moment(u64::MAX), format!("{} ms after 1970", u64::MAX));
    }

    #[test]
    fn a_line_is_shown_once_whoever_tells_it() {
        let view = |manager, next, lines: &[(u32, u64)]| LogView {
            manager: (NodeId(manager), 1),
            next,
            lines: lines.iter().map(|(node, number)| line(*node, *number)).collect(),
        };
        let mut shown = Shown::default();
        let mut see = |view: LogView| {
            let new: Vec<(u32, u64)> =
                shown.new_of(&view).iter().map(|line| (line.node.0, line.record.number)).collect();
            (new, shown.place(&view))
        };
        assert_eq!(see(view(0, 5, &[(0, 1), (1, 1), (0, 2)])), (vec![(0, 1), (1, 1), (0, 2)], Some(5)));
        assert_eq!(see(view(0, 6, &[(1, 2)])), (vec![(1, 2)], Some(6)));
        // Its places are others, so it is asked for everything once.
        assert_eq!(see(view(1, 9, &[])), (vec![], None));
        assert_eq!(see(view(1, 9, &[(1, 1), (1, 2), (0, 2), (0, 3)])), (vec![(0, 3)], Some(9)));
    }

    #[test]
    fn lines_are_asked_for_by_a_number_that_makes_sense() {
        assert_eq!(parse_lines("1000"), Ok(1000));
        for wrong in ["0", "1001", "-1", "all"] {
            assert!(parse_lines(wrong).is_err_and(|error| error.contains("from 1 to 1000")), "{wrong}");
        }
    }
}
