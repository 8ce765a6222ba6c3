//! A report as text: for a terminal, and as Markdown for issues and commits.

use super::summary::{Row, Said, Summary};
use super::sweep::knees;
use super::{baseline, published};
use crate::archive::Outcome;
use crate::report::{figure, table};
use crate::statistics::Ratio;
use std::collections::BTreeMap;
use std::fmt::Write;

/// So many findings of a kind are told, and of the rest how many there are.
const FINDINGS_TOLD: usize = 3;

/// For a terminal.
#[must_use]
pub fn terminal(outcome: &Outcome, summary: &Summary) -> String {
    let mut text = head(outcome);
    let headings = headings(outcome);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    text += &table::render(&headings, rows(outcome, summary));
    text += &knee_lines(outcome, summary, "");
    for (headings, rows) in more_tables(outcome, summary) {
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        text += &format!("\n{}", table::render(&headings, rows));
    }
    plain(&(text + &foot(outcome, "")))
}

/// As Markdown.
#[must_use]
pub fn markdown(outcome: &Outcome, summary: &Summary) -> String {
    let mut text = format!("## {}\n\n", outcome.title);
    for line in head(outcome).lines().filter(|line| !line.is_empty()) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}  ");
    }
    let headings = headings(outcome);
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    text += &markdown_table(&headings, &rows(outcome, summary));
    text += &knee_lines(outcome, summary, "- ");
    for (headings, rows) in more_tables(outcome, summary) {
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        text += &markdown_table(&headings, &rows);
    }
    // Some readers of Markdown take tags for what they are.
    plain(&(text + &foot(outcome, "**"))).replace('<', "&lt;")
}

/// What is told beside the table of all figures, where there is any of it: headings and rows.
pub(super) fn more_tables(outcome: &Outcome, summary: &Summary) -> Vec<(Vec<String>, Vec<Vec<String>>)> {
    let published = (published::HEADINGS.map(str::to_owned).to_vec(), published::rows(outcome));
    let tables = [(baseline::headings(outcome), baseline::rows(outcome, summary)), published];
    tables.into_iter().filter(|(_, rows)| !rows.is_empty()).collect()
}

fn markdown_table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let cells: Vec<&str> = headings.iter().map(|heading| heading.trim_start_matches('>')).collect();
    let mark = |heading: &&str| if heading.starts_with('>') { "---:" } else { "---" };
    let marks: Vec<&str> = headings.iter().map(mark).collect();
    let mut text = format!("\n{}{}", line(&cells), line(&marks));
    for row in rows {
        text += &line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// With how much at once subjects have nearly all that they have at most.
fn knee_lines(outcome: &Outcome, summary: &Summary, mark: &str) -> String {
    let lines = knees(outcome, summary).into_iter().map(|knee| format!("{mark}{knee}\n"));
    lines.fold(String::new(), |text, line| if text.is_empty() { format!("\n{line}") } else { text + &line })
}

/// Without what a terminal would take for a command.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

fn head(outcome: &Outcome) -> String {
    let mut text = String::new();
    let subjects: Vec<String> =
        outcome.subjects.iter().map(|subject| format!("{} ({})", subject.name, subject.what)).collect();
    let _ = writeln!(text, "Run       {}, {}", outcome.name, date(outcome.began_unix_ms));
    if let Some(note) = &outcome.note {
        let _ = writeln!(text, "Note      {}", note.trim().replace('\n', " "));
    }
    let _ = writeln!(text, "Machine   {}", outcome.machine);
    let _ = writeln!(text, "Subjects  {}", subjects.join(", "));
    for subject in &outcome.subjects {
        if let Some(why) = &subject.left_out {
            let _ = writeln!(text, "Left out  {}: {why}", subject.name);
        }
    }
    let _ = writeln!(text, "Rounds    {} of {}", rounds(outcome), outcome.rounds);
    let _ = writeln!(text, "Command   {}\n", outcome.command);
    text
}

/// How many rounds there are of every point on every subject.
fn rounds(outcome: &Outcome) -> u32 {
    outcome.samples.iter().map(|sample| sample.round).max().unwrap_or(0)
}

/// A moment, as it is written down everywhere: UTC.
#[must_use]
pub(super) fn date(unix_ms: u64) -> String {
    let moment = time::UtcDateTime::from_unix_timestamp(unix_ms.cast_signed() / 1000);
    let text = moment.map(|moment| {
        let (date, hour, minute) = (moment.date(), moment.hour(), moment.minute());
        format!("{date} {hour:02}:{minute:02} UTC")
    });
    text.unwrap_or_else(|_| "at an unknown time".to_owned())
}

pub(super) fn headings(outcome: &Outcome) -> Vec<String> {
    let mut headings = vec!["job".to_owned(), "figure".to_owned()];
    for (number, subject) in outcome.subjects.iter().enumerate() {
        headings.push(format!(">{}", subject.name));
        if outcome.base_of(number).is_some() {
            headings.extend([format!(">by {}", outcome.name_of_base(number)), String::new()]);
        }
    }
    if outcome.control {
        headings.push(">A/A".to_owned());
    }
    headings
}

pub(super) fn rows(outcome: &Outcome, summary: &Summary) -> Vec<Vec<String>> {
    let mut last = None;
    let row = |row: &Row| {
        let is_next = last.replace(row.point) != Some(row.point);
        let name = if is_next { outcome.points[row.point].name.clone() } else { String::new() };
        let mut cells = vec![name, row.figure.heading.to_owned()];
        for (number, (value, ratio)) in row.values.iter().zip(&row.ratios).enumerate() {
            cells.push(figure(*value));
            if outcome.base_of(number).is_some() {
                cells.push(told(ratio.as_ref()));
                cells.push(ratio.as_ref().map_or("", |ratio| words(outcome, row, ratio)).to_owned());
            }
        }
        if outcome.control {
            cells.push(told(row.control.as_ref()));
        }
        cells
    };
    summary.rows.iter().map(row).collect()
}

/// A ratio and its interval.
pub(super) fn told(ratio: Option<&Ratio>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(Ratio { estimate, interval: None, .. }) => format!("{estimate:.2}"),
        Some(Ratio { estimate, interval: Some([low, high]), .. }) => {
            format!("{estimate:.2} ({low:.2}-{high:.2})")
        }
    }
}

pub(super) fn words(outcome: &Outcome, row: &Row, ratio: &Ratio) -> &'static str {
    match row.said(ratio) {
        // What was not measured in turns may differ for many reasons.
        _ if !outcome.in_turns => "",
        // Latencies at other rates are not each other's.
        _ if outcome.points[row.point].within.is_some() && row.figure.name != "iops" => "",
        Said::Better => "better",
        Said::Worse => "worse",
        Said::NoDifferenceShown if ratio.interval.is_some() => "no difference shown",
        Said::NoDifferenceShown => "",
    }
}

fn foot(outcome: &Outcome, strong: &str) -> String {
    let mut text = String::new();
    for missed in &outcome.disappointments {
        let _ = writeln!(text, "\n{strong}MISSED{strong}: {missed}");
    }
    if outcome.findings.is_empty() {
        let _ = writeln!(text, "\nNothing speaks against these figures.");
        return text;
    }
    let _ = writeln!(text, "\n{strong}NOT TO BE TRUSTED{strong}:");
    for (code, texts) in findings_by_code(outcome) {
        for told in texts.iter().take(FINDINGS_TOLD) {
            let _ = writeln!(text, "- {code}: {told}");
        }
        if texts.len() > FINDINGS_TOLD {
            let _ = writeln!(text, "- {code}: and {} more", texts.len() - FINDINGS_TOLD);
        }
    }
    text
}

/// The findings, by their codes.
pub(super) fn findings_by_code(outcome: &Outcome) -> BTreeMap<&str, Vec<&str>> {
    let mut by_code: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for finding in &outcome.findings {
        by_code.entry(&finding.code).or_default().push(&finding.text);
    }
    by_code
}
